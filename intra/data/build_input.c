// SPDX-License-Identifier: Apache-2.0
// Reads a file of a source as lines of UTF-8: drops the byte order mark, and converts from the
// source's encoding. Invalid bytes pass, with their offset; the check of the documents finds them.
#include "intra/data/build_state.h"
#include "intra/read/charset.h"
#include "intra/read/convert.h"
#include "intra/read/text_kind.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 20, LINE_BYTES_MAX = 1 << 30 };

// An unnamed file that ends with the build.
static enum neb_status create_aside(struct build *b, FILE **aside) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_fs_mkdirs(b->dir, 0755));
    NEB_TRY(neb_path(path, sizeof path, b->dir, "pipe-XXXXXX"));
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return neb_fail_errno("cannot create %s", path);
    (void)unlink(path);
    *aside = fdopen(fd, "w+");
    if (!*aside)
        close(fd);
    return *aside ? NEB_OK : neb_fail_errno("cannot create %s", path);
}

enum neb_status build_input_spool(struct build *b, const char *path) {
    FILE *f = NULL, **aside = &b->pipes[b->source];
    enum neb_status st = neb_fs_stream_open(path, &f);
    struct neb_buf block = {0};
    if (st == NEB_OK)
        st = create_aside(b, aside);
    if (st == NEB_OK)
        st = neb_buf_reserve(&block, BLOCK_BYTES);
    for (size_t n = 1; st == NEB_OK && n;) {
        n = fread(block.p, 1, BLOCK_BYTES, f);
        if (ferror(f))
            st = neb_fail_errno("cannot read %s", path);
        else if (fwrite(block.p, 1, n, *aside) != n || fflush(*aside) != 0)
            st = neb_fail_errno("cannot save a copy of %s in %s", path, b->dir);
    }
    neb_buf_free(&block);
    if (f)
        fclose(f);
    return st;
}

enum neb_status build_input_file(struct build *b, const char *path, struct intra_input **out) {
    FILE *aside = b->pipes[b->source];
    *out = NULL;
    if (!aside)
        return intra_input_open(path, out);
    int fd = fcntl(fileno(aside), F_DUPFD_CLOEXEC, 0);
    FILE *f = fd >= 0 && lseek(fd, 0, SEEK_SET) == 0 ? fdopen(fd, "r") : NULL;
    if (f)
        return intra_input_take(f, path, 0, NULL, out);
    enum neb_status st = neb_fail_errno("cannot read the copy of %s", path);
    if (fd >= 0)
        close(fd);
    return st;
}

enum neb_status build_input_open(struct build *b, const char *path) {
    const struct intra_source_spec *s = &b->spec->sources[b->source];
    struct build_input *in = &b->input;
    struct neb_buf raw = in->raw, text = in->text;
    neb_buf_clear(&raw);
    neb_buf_clear(&text);
    *in = (struct build_input){.raw = raw, .text = text};
    b->file = path;
    b->chunk.has_file = false;
    NEB_TRY(s->format == INTRA_PARQUET ? intra_convert_open("parquet", path, s->field, &in->f)
            : s->format == INTRA_ARROW ? intra_convert_open("arrow", path, s->field, &in->f)
                                       : build_input_file(b, path, &in->f));
    // a shard of a corpus that streams: the documents before it need not be read
    const struct build_place *from = b->piece ? &b->piece->from : NULL;
    if (from && b->file_no == from->file_no && from->line &&
        (!s->encoding[0] || intra_charset_is_utf8(s->encoding)) &&
        intra_input_seek(in->f, from->offset)) {
        in->begun = true;
        in->line = (size_t)from->line - 1;
        in->offset = from->offset;
        b->at.doc = from->doc;
    }
    return NEB_OK;
}

void build_input_close(struct build *b) {
    intra_input_close(&b->input.f);
    intra_charset_close(&b->input.charset);
    b->file = NULL;
}

void build_input_free(struct build *b) {
    build_input_close(b);
    neb_buf_free(&b->input.raw);
    neb_buf_free(&b->input.text);
}

// Determines from the first block what kind of file it is.
static enum neb_status begin(struct build *b, const uint8_t *p, size_t n) {
    struct build_input *in = &b->input;
    char why[256];
    in->begun = true;
    size_t skip;
    if (!build_fault_head(b, p, n, &skip, why))
        return neb_fail(NEB_ERR_FORMAT, "%s: %s", b->file, why);
    in->at = in->offset = skip;
    NEB_TRY(build_fault_charset(b, p, n, &in->charset));
    size_t good = in->charset ? n : skip + intra_utf8_length(p + skip, n - skip);
    // fails early, before the whole file is in memory
    if (good + 3 < n && !memchr(p, '\n', n) && n == BLOCK_BYTES) {
        intra_text_guess(p, n, why, sizeof why);
        return neb_fail(
            NEB_ERR_FORMAT,
            "%s: byte 0x%02x at offset %zu is not UTF-8 text, and no line ends before offset %zu%s",
            b->file, p[good], good, n, why);
    }
    return NEB_OK;
}

// Reads a block to p.
static enum neb_status take_block(struct build *b, uint8_t *p, size_t *got) {
    struct build_input *in = &b->input;
    uint64_t before = intra_input_taken(in->f);
    NEB_TRY(intra_input_read(in->f, p, BLOCK_BYTES, got));
    in->end = *got < BLOCK_BYTES;
    b->done += intra_input_taken(in->f) - before;
    return in->begun || !*got ? NEB_OK : begin(b, p, *got);
}

static enum neb_status fill_converted(struct build *b) {
    struct build_input *in = &b->input;
    bool first = !in->begun;
    NEB_TRY(neb_buf_reserve(&in->raw, BLOCK_BYTES));
    size_t got;
    NEB_TRY(take_block(b, in->raw.p, &got));
    if (in->charset)
        NEB_TRY(intra_charset_convert(in->charset, in->raw.p, got, in->end, &in->text));
    if (first && in->text.len >= 3 && !memcmp(in->text.p, "\xef\xbb\xbf", 3))
        in->at = in->offset = 3; // the byte order mark
    return NEB_OK;
}

// Moves the remaining text to the front and appends a block.
static enum neb_status fill(struct build *b) {
    struct build_input *in = &b->input;
    const struct intra_source_spec *s = &b->spec->sources[b->source];
    if (in->at) {
        memmove(in->text.p, in->text.p + in->at, in->text.len - in->at);
        in->text.len -= in->at;
        in->scanned -= in->at;
        in->at = 0;
    }
    if (in->text.len > LINE_BYTES_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%s:%zu: a line has more than %d bytes", b->file,
                        in->line + 1, LINE_BYTES_MAX);
    if (s->encoding[0] && !intra_charset_is_utf8(s->encoding))
        return fill_converted(b);
    NEB_TRY(neb_buf_reserve(&in->text, BLOCK_BYTES));
    size_t got;
    NEB_TRY(take_block(b, in->text.p + in->text.len, &got));
    in->text.len += got;
    in->scanned = in->scanned < in->at ? in->at : in->scanned;
    return NEB_OK;
}

enum neb_status build_input_line(struct build *b, struct build_input_line *l) {
    struct build_input *in = &b->input;
    const uint8_t *end = NULL;
    *l = (struct build_input_line){0};
    for (;;) {
        in->scanned = in->scanned < in->at ? in->at : in->scanned;
        if (in->scanned < in->text.len)
            end = memchr(in->text.p + in->scanned, '\n', in->text.len - in->scanned);
        if (end || in->end)
            break;
        in->scanned = in->text.len;
        NEB_TRY(fill(b));
    }
    if (!end && in->at == in->text.len)
        return NEB_OK;
    if (!end) // room for a NUL, if the caller terminates the line
        NEB_TRY(neb_buf_reserve(&in->text, 1));
    l->p = (char *)in->text.p + in->at;
    l->len = end ? (size_t)(end - in->text.p) - in->at : in->text.len - in->at;
    l->number = ++in->line;
    l->offset = in->offset;
    l->ended = end != NULL;
    in->at += l->len + l->ended;
    in->offset += l->len + l->ended;
    return NEB_OK;
}
