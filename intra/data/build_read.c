// SPDX-License-Identifier: Apache-2.0
// Reads the documents of a corpus from files, folders, lines, columns, archives and message
// catalogues, in the order of the sources.
#include "agent/base/log.h"
#include "intra/data/build_state.h"
#include "intra/data/po.h"
#include "intra/read/charset.h"
#include "intra/read/input.h"
#include "intra/read/tar.h"
#include "intra/read/text_kind.h"

#include <stdlib.h>
#include <string.h>

enum { DOC_BYTES_MAX = 64 << 20 };

// Adds a cleaned pair. Its message decides the split, so all languages and both directions of a
// pair are held out together.
static enum neb_status add_pair(struct build *b, const char *message, const char *translation) {
    const struct intra_source_spec *s = &b->spec->sources[b->source];
    const char *from = s->reverse ? translation : message, *to = s->reverse ? message : translation;
    return build_add(
        b, &(struct build_text){
               .tag = s->tag, .text = from, .len = strlen(from), .target = to, .name = message});
}

static enum neb_status add_fault(struct build *b, size_t line, const char *why) {
    return build_add(b, &(struct build_text){.fault = why, .line = line});
}

// ---- whole files --------------------------------------------------------------------------------

static enum neb_status on_po_pair(void *user, const char *message, const char *translation) {
    return add_pair(user, message, translation);
}

static enum neb_status on_po_fault(void *user, size_t line, const char *why) {
    return add_fault(user, line, why);
}

static enum neb_status take_po(struct build *b, const char *path, const struct neb_buf *f) {
    const struct intra_source_spec *s = &b->spec->sources[b->source];
    char why[256];
    size_t skip;
    if (!build_fault_head(b, f->p, f->len, &skip, why))
        return neb_fail(NEB_ERR_FORMAT, "%s: %s", path, why);
    return intra_po_read(&(struct intra_po){.name = path,
                                            .encoding = s->encoding[0] ? s->encoding : NULL,
                                            .each = on_po_pair,
                                            .fault = on_po_fault,
                                            .user = b},
                         (const char *)f->p, f->len);
}

// name: decides the split; NULL: the text decides.
static enum neb_status take_document(struct build *b, const char *name, const struct neb_buf *f) {
    struct intra_charset *charset = NULL;
    struct neb_buf text = {0};
    char why[256];
    size_t skip = 0;
    if (!build_fault_head(b, f->p, f->len, &skip, why))
        return add_fault(b, 0, why);
    NEB_TRY(build_fault_charset(b, f->p, f->len, &charset));
    struct build_text t = {.name = name,
                           .line = 1,
                           .offset = skip,
                           .text = (const char *)f->p + skip,
                           .len = f->len - skip};
    enum neb_status st = NEB_OK;
    if (charset) {
        st = intra_charset_convert(charset, f->p, f->len, true, &text);
        bool mark = text.len >= 3 && !memcmp(text.p, "\xef\xbb\xbf", 3);
        t.text = (const char *)text.p + 3 * mark;
        t.len = text.len - 3 * mark;
    }
    if (st == NEB_OK && t.len)
        st = build_add(b, &t);
    intra_charset_close(&charset);
    neb_buf_free(&text);
    return st;
}

// A file of a folder is one document. Its name without the folder and the suffix of a packer
// decides the split, so translations of a page under the same name fall into the same split.
static enum neb_status take_file(struct build *b, const char *path, const struct neb_buf *f) {
    char name[NEB_PATH_MAX];
    const char *slash = strrchr(path, '/'), *from = slash ? slash + 1 : path;
    snprintf(name, sizeof name, "%.*s", (int)intra_input_name(from), from);
    return take_document(b, name, f);
}

static enum neb_status read_whole(struct build *b, const char *path) {
    struct neb_buf f = {0};
    struct intra_input *in = NULL;
    enum neb_status st = build_input_file(b, path, &in);
    b->file = path;
    b->chunk.has_file = false;
    if (st == NEB_OK)
        st = intra_input_whole(in, DOC_BYTES_MAX, &f);
    if (st == NEB_OK)
        b->done += intra_input_taken(in);
    if (st == NEB_OK)
        st = b->spec->sources[b->source].format == INTRA_PO ? take_po(b, path, &f)
                                                            : take_file(b, path, &f);
    intra_input_close(&in);
    neb_buf_free(&f);
    b->file = NULL;
    return st;
}

// ---- archives -----------------------------------------------------------------------------------

static enum neb_status take_members(struct build *b, struct intra_tar *t, struct neb_buf *text) {
    const char *suffix = b->spec->sources[b->source].member;
    char label[NEB_PATH_MAX + INTRA_TAR_NAME_MAX + 2], first[256] = "";
    uint64_t taken = 0, before = 0;
    enum neb_status st = NEB_OK;
    for (bool found = true; st == NEB_OK;) {
        st = intra_tar_next(t, &found);
        if (st != NEB_OK || !found)
            break;
        size_t n = strlen(t->name), k = strlen(suffix);
        if (!*first)
            snprintf(first, sizeof first, "%.255s", t->name);
        if (n <= k || t->name[n - k - 1] != '.' || strcmp(t->name + n - k, suffix) != 0)
            continue;
        taken++;
        st = intra_tar_content(t, DOC_BYTES_MAX, text);
        snprintf(label, sizeof label, "%s: %s", t->path, t->name);
        b->file = label;
        b->chunk.has_file = false;
        if (st == NEB_OK)
            st = take_document(b, NULL, text);
        b->file = t->path;
        b->done += intra_input_taken(t->in) - before;
        before = intra_input_taken(t->in);
    }
    return st != NEB_OK || taken
               ? st
               : neb_fail(NEB_ERR_FORMAT, "%s: no file in the archive ends in .%s; %s%s", t->path,
                          suffix, *first ? "set member; the first file is " : "it holds no files",
                          first);
}

static enum neb_status read_tar(struct build *b, const char *path) {
    struct intra_tar t = {.path = path};
    struct neb_buf text = {0};
    enum neb_status st = build_input_file(b, path, &t.in);
    b->file = path;
    if (st == NEB_OK)
        st = take_members(b, &t, &text);
    intra_input_close(&t.in);
    neb_buf_free(&text);
    b->file = NULL;
    return st;
}

// ---- documents between blank lines --------------------------------------------------------------

struct paragraph {
    struct neb_buf text; // as in the file, line ends included
    size_t lines, first; // first: number of its first line
    uint64_t offset;
};

// blank: a blank line ended the document, so the end of its last line is dropped.
static enum neb_status end_paragraph(struct build *b, struct paragraph *p, bool blank) {
    size_t n = p->text.len;
    if (blank && n && p->text.p[n - 1] == '\n') {
        n--;
        n -= n && p->text.p[n - 1] == '\r';
    }
    enum neb_status st = n ? build_add(b, &(struct build_text){.text = (const char *)p->text.p,
                                                               .len = n,
                                                               .line = p->first,
                                                               .offset = p->offset})
                           : NEB_OK;
    neb_buf_clear(&p->text);
    p->lines = 0;
    return st;
}

static enum neb_status take_paragraphs(struct build *b, const char *path, struct paragraph *p) {
    for (;;) {
        struct build_input_line l;
        NEB_TRY(build_input_line(b, &l));
        if (!l.p)
            return end_paragraph(b, p, false);
        bool blank = l.ended && (l.len == 0 || (l.len == 1 && *l.p == '\r'));
        if (blank && p->lines) {
            NEB_TRY(end_paragraph(b, p, true));
            continue;
        }
        if (!p->lines++) {
            p->first = l.number;
            p->offset = l.offset;
        }
        neb_buf_add(&p->text, l.p, l.len + l.ended);
        NEB_TRY(neb_buf_check(&p->text));
        if (p->text.len > DOC_BYTES_MAX)
            return neb_fail(
                NEB_ERR_LIMIT,
                "%s: a document has more than %d bytes (blank lines separate documents)", path,
                DOC_BYTES_MAX);
    }
}

static enum neb_status read_paragraphs(struct build *b, const char *path) {
    struct paragraph p = {0};
    enum neb_status st = build_input_open(b, path);
    if (st == NEB_OK)
        st = take_paragraphs(b, path, &p);
    build_input_close(b);
    neb_buf_free(&p.text);
    return st;
}

// ---- lines --------------------------------------------------------------------------------------

// Column n of a line, and its length. NULL: the line has fewer columns.
static char *column(const struct build_input_line *l, int32_t n, size_t *len) {
    char *p = l->p, *end = l->p + l->len;
    for (; n > 0 && p; n--) {
        p = memchr(p, '\t', (size_t)(end - p));
        p = p ? p + 1 : NULL;
    }
    const char *tab = p ? memchr(p, '\t', (size_t)(end - p)) : NULL;
    *len = !p ? 0 : tab ? (size_t)(tab - p) : (size_t)(end - p);
    return p;
}

static enum neb_status take_tsv(struct build *b, const struct build_input_line *l) {
    const struct intra_source_spec *s = &b->spec->sources[b->source];
    size_t n_from, n_to = 0;
    char *from = column(l, s->column, &n_from), why[64];
    char *to = s->parallel ? column(l, s->target_column, &n_to) : from;
    // the check of the document then refuses the line
    if (intra_utf8_length((const uint8_t *)l->p, l->len) < l->len)
        return build_add(b,
                         &(struct build_text){
                             .text = l->p, .len = l->len, .line = l->number, .offset = l->offset});
    if (!from || !to) {
        snprintf(why, sizeof why, "fewer than %d columns",
                 (s->parallel && s->target_column > s->column ? s->target_column : s->column) + 1);
        return add_fault(b, l->number, why);
    }
    if (!s->parallel)
        return n_from ? build_add(b, &(struct build_text){.text = from,
                                                          .len = n_from,
                                                          .line = l->number,
                                                          .offset = l->offset})
                      : NEB_OK;
    from[n_from] = 0; // was a tab, or the end of the line
    to[n_to] = 0;
    if (intra_po_clean(from, to))
        return add_pair(b, from, to);
    b->units += !b->again; // the line counts, though it gives no pair
    return NEB_OK;
}

static enum neb_status take_lines(struct build *b, bool jsonl) {
    for (;;) {
        struct build_input_line l;
        NEB_TRY(build_input_line(b, &l));
        if (!l.p)
            return NEB_OK;
        l.len -= l.len && l.p[l.len - 1] == '\r';
        if (l.len)
            NEB_TRY(jsonl ? build_add(b, &(struct build_text){.text = l.p,
                                                              .len = l.len,
                                                              .line = l.number,
                                                              .offset = l.offset})
                          : take_tsv(b, &l));
    }
}

static enum neb_status read_lines(struct build *b, const char *path) {
    enum neb_status st = build_input_open(b, path);
    if (st == NEB_OK)
        st = take_lines(b, build_is_json(b));
    build_input_close(b);
    return st;
}

// ---- sources ------------------------------------------------------------------------------------

static enum neb_status read_entry(struct build *b, const char *path) {
    b->file_no++;
    if (b->file_no <= b->skip_files)
        return NEB_OK;
    switch (b->spec->sources[b->source].format) {
    case INTRA_TEXT:
    case INTRA_PO: return read_whole(b, path);
    case INTRA_TAR: return read_tar(b, path);
    case INTRA_NANOGPT:
    case INTRA_MEGATRON: return build_read_ids(b, path);
    case INTRA_JSONL:
    case INTRA_TSV:
    case INTRA_PARQUET:
    case INTRA_ARROW: break;
    }
    return read_lines(b, path);
}

// Folders of catalogues also hold compiled ones.
static bool is_compiled(const char *path) {
    uint8_t head[4];
    FILE *f = NULL;
    size_t n = strlen(path);
    if (n < 5 || (strcmp(path + n - 3, ".mo") && strcmp(path + n - 4, ".gmo")) ||
        neb_fs_stream_open(path, &f) != NEB_OK)
        return false;
    n = fread(head, 1, sizeof head, f);
    fclose(f);
    return intra_text_is_catalogue(head, n);
}

static bool ends_in(const char *name, size_t n, const char *end) {
    size_t k = strlen(end);
    return n > k && !strncmp(name + n - k, end, k);
}

// Folders of binary files also hold descriptions, licences and indexes.
static bool is_wanted(enum intra_format f, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = intra_input_name(name);
    switch (f) {
    case INTRA_TEXT:
    case INTRA_JSONL:
    case INTRA_TSV: return true;
    case INTRA_PO: return !is_compiled(path);
    case INTRA_TAR: return ends_in(name, n, ".tar") || ends_in(name, n, ".tgz");
    case INTRA_PARQUET: return ends_in(name, n, ".parquet") || ends_in(name, n, ".pq");
    case INTRA_ARROW: // the datasets package keeps results of its functions in cache-*.arrow
        return (ends_in(name, n, ".arrow") && strncmp(name, "cache-", 6) != 0) ||
               ends_in(name, n, ".feather");
    case INTRA_NANOGPT: return ends_in(name, n, ".bin");
    case INTRA_MEGATRON: return ends_in(name, n, ".idx");
    }
    return false;
}

static enum neb_status visit(struct build *b, const char *path, const struct stat *info) {
    (void)info;
    if (is_wanted(b->spec->sources[b->source].format, path))
        return read_entry(b, path);
    bool ids = b->spec->sources[b->source].format == INTRA_MEGATRON; // its .bin files are read, too
    b->passed_over += !b->again && !(ids && ends_in(path, strlen(path), ".bin"));
    return NEB_OK;
}

enum neb_status build_read_source(struct build *b, int32_t i) {
    const struct intra_source_spec *s = &b->spec->sources[i];
    struct stat info;
    b->source = i;
    b->file_no = 0;
    if (stat(s->path, &info) != 0)
        return neb_fail_errno("source %s: cannot read %s", s->name, s->path);
    if (b->spec->shuffle && !b->again &&
        (S_ISFIFO(info.st_mode) || s->parallel || s->format == INTRA_PO))
        return neb_fail(NEB_ERR_INVALID,
                        "source %s: %s cannot stream: build a corpus without `stream` from it",
                        s->name, S_ISFIFO(info.st_mode) ? "a pipe" : "parallel text");
    if (S_ISFIFO(info.st_mode) && !b->again) {
        if (s->format == INTRA_PARQUET || s->format == INTRA_ARROW || s->format == INTRA_MEGATRON)
            return neb_fail(NEB_ERR_INVALID,
                            "source %s: %s is a pipe, but its format needs a regular file", s->name,
                            s->path);
        NEB_TRY(build_input_spool(b, s->path));
    }
    if (S_ISDIR(info.st_mode))
        NEB_TRY(build_walk(b, s->path, false, visit));
    else if (s->format == INTRA_TEXT)
        NEB_TRY(read_paragraphs(b, s->path));
    else
        NEB_TRY(read_entry(b, s->path));
    return build_flush(b);
}

static enum neb_status add_bytes(struct build *b, const char *path, const struct stat *info) {
    (void)path;
    b->total += (uint64_t)info->st_size;
    return NEB_OK;
}

// Files that cannot be examined are skipped; reading them reports the error.
void build_measure(struct build *b) {
    for (int32_t i = 0; i < b->spec->n_sources; i++) {
        const char *path = b->spec->sources[i].path;
        struct stat info;
        if (stat(path, &info) != 0)
            continue;
        if (S_ISREG(info.st_mode))
            b->total += (uint64_t)info.st_size;
        else if (S_ISDIR(info.st_mode))
            (void)!build_walk(b, path, true, add_bytes);
    }
}
