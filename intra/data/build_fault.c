// SPDX-License-Identifier: Apache-2.0
// Handles text of a source that cannot be read. A file that is not text ends the build, and so does
// the first bad line, document or entry. A source may allow a share of bad ones: they are counted,
// the first ones are named, and all are left out.
#include "agent/base/log.h"
#include "intra/data/build_state.h"
#include "intra/read/charset.h"
#include "intra/read/json.h"
#include "intra/read/text_kind.h"

#include <string.h>

// BEFORE: the guess of the encoding uses this many bytes before the fault
enum { NAMED_MAX = 10, BEFORE = 256 };

static const struct intra_source_spec *source_of(const struct build *b) {
    return &b->spec->sources[b->source];
}

static const char *encoding_of(const struct build *b) {
    const char *name = source_of(b)->encoding;
    return name[0] && !intra_charset_is_utf8(name) ? name : NULL;
}

static const char *unit_of(const struct build *b) {
    enum intra_format f = source_of(b)->format;
    return f == INTRA_JSONL || f == INTRA_TSV       ? "lines"
           : f == INTRA_PO                          ? "entries"
           : f == INTRA_PARQUET || f == INTRA_ARROW ? "rows"
                                                    : "documents";
}

// ---- one document -------------------------------------------------------------------------------

// Describes where bytes are not text, and what they look like.
static void say_bytes(const struct build *b, const struct doc *d, const char *file, char *out,
                      size_t cap) {
    const uint8_t *p = (const uint8_t *)b->chunk.text.p + d->at;
    size_t line = d->line ? d->line : 1, from = d->bad_at > BEFORE ? d->bad_at - BEFORE : 0;
    char looks[160];
    bool lines = source_of(b)->format == INTRA_TEXT || source_of(b)->format == INTRA_TAR;
    for (size_t i = 0; lines && i < d->bad_at; i++)
        line += p[i] == '\n';
    if (encoding_of(b)) {
        snprintf(out, cap, p[d->bad_at] ? "%s:%zu: bytes that are not %s" : "%s:%zu: a NUL in %s",
                 file, line, encoding_of(b));
        return;
    }
    intra_text_guess(p + from - from % 4, d->given - (from - from % 4), looks, sizeof looks);
    snprintf(out, cap, "%s:%zu: byte 0x%02x at offset %llu of the file is %s%s", file, line,
             p[d->bad_at], (unsigned long long)(d->offset + d->bad_at),
             p[d->bad_at] ? "not UTF-8" : "NUL, which is not text", looks);
}

static void say_json(const struct build *b, const struct doc *d, const char *file, char *out,
                     size_t cap) {
    json_error_t why;
    json_t *line = intra_json_line((const char *)b->chunk.text.p + d->at, d->given, &why);
    char at[24] = "";
    if (d->line) // 0: the whole file
        snprintf(at, sizeof at, ":%zu", d->line);
    if (line)
        snprintf(out, cap, "%s%s: no text in field \"%s\"", file, at, source_of(b)->field);
    else
        snprintf(out, cap, "%s%s: cannot be read as JSON: %s", file, at, why.text);
    json_decref(line);
}

enum neb_status build_fault_count(struct build *b, const struct doc *d) {
    const char *text = (const char *)b->chunk.text.p, *file = text + d->file_at;
    double share = source_of(b)->max_bad_share;
    char what[NEB_PATH_MAX + 640];
    switch (d->fault) {
    case BUILD_BYTES: say_bytes(b, d, file, what, sizeof what); break;
    case BUILD_NO_TEXT: say_json(b, d, file, what, sizeof what); break;
    default:
        if (d->line)
            snprintf(what, sizeof what, "%s:%zu: %s", file, d->line, text + d->at);
        else
            snprintf(what, sizeof what, "%s: %s", file, text + d->at);
    }
    if (share <= 0)
        return neb_fail(NEB_ERR_FORMAT, "%s", what);
    if (++b->bad <= NAMED_MAX)
        neb_warn("source %s: left out: %s", source_of(b)->name, what);
    return NEB_OK;
}

enum neb_status build_fault_source_end(struct build *b) {
    const struct intra_source_spec *s = source_of(b);
    uint64_t bad = b->bad, units = b->units, over = b->passed_over;
    double share = units ? (double)bad / (double)units : 0;
    b->bad = b->units = b->passed_over = 0;
    if (over)
        neb_info("source %s: %llu %s are left out", s->name, (unsigned long long)over,
                 s->format == INTRA_PO ? "compiled catalogues (.mo)" : "files of other kinds");
    if (!bad)
        return NEB_OK;
    if (share > s->max_bad_share)
        return neb_fail(NEB_ERR_FORMAT,
                        "source %s: %llu of %llu %s cannot be read, a share of %.3g; max_bad_share "
                        "allows %.3g",
                        s->name, (unsigned long long)bad, (unsigned long long)units, unit_of(b),
                        share, s->max_bad_share);
    neb_warn("source %s: %llu of %llu %s cannot be read and are left out", s->name,
             (unsigned long long)bad, (unsigned long long)units, unit_of(b));
    return NEB_OK;
}

// ---- the beginning of a file --------------------------------------------------------------------

bool build_fault_head(const struct build *b, const uint8_t *p, size_t n, size_t *skip,
                      char why[256]) {
    const char *encoding = encoding_of(b), *order = NULL;
    struct intra_text_kind kind;
    bool bom = n >= 3 && !memcmp(p, "\xef\xbb\xbf", 3);
    *skip = bom ? 3 : 0;
    if (n >= 2 && (!memcmp(p, "\xff\xfe", 2) || !memcmp(p, "\xfe\xff", 2)))
        order = intra_text_order(p, n);
    if (n >= 4 && !memcmp(p, "\0\0\xfe\xff", 4))
        order = "UTF-32BE";
    if (intra_text_kind_of(p, n, &kind))
        snprintf(why, 256, "offset %zu: this is %s%s%s", kind.at, kind.name, kind.help ? "; " : "",
                 kind.help ? kind.help : "");
    else if (bom && encoding)
        snprintf(why, 256,
                 "offset 0: the byte order mark of UTF-8, but the source names the encoding %s",
                 encoding);
    else if (order && !encoding)
        snprintf(why, 256,
                 "offset 0: the byte order mark of %s, not of UTF-8; set the encoding of the "
                 "source to %.6s",
                 order, order);
    else
        return true;
    return false;
}

enum neb_status build_fault_charset(const struct build *b, const uint8_t *head, size_t n,
                                    struct intra_charset **out) {
    const char *encoding = encoding_of(b);
    *out = NULL;
    if (!encoding || !n)
        return NEB_OK;
    enum neb_status st = intra_charset_open(encoding, head, n, out);
    if (st == NEB_ERR_INVALID)
        return neb_fail(NEB_ERR_FORMAT, "source %s: encoding '%s' is not known here",
                        source_of(b)->name, encoding);
    return st != NEB_ERR_FORMAT ? st
                                : neb_fail(NEB_ERR_FORMAT,
                                           "%s: the byte order of %s is unknown, because there is "
                                           "no byte order mark; use the encoding %sle or %sbe",
                                           b->file, encoding, encoding, encoding);
}
