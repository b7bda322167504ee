// SPDX-License-Identifier: Apache-2.0
// Reads the documents of a corpus from files, folders, lines, columns and message catalogues, in
// the order of the sources.
#include "agent/base/log.h"
#include "intra/data/build_state.h"
#include "intra/data/po.h"
#include "intra/read/charset.h"
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

// A file of a folder is one document. Its name without the folder decides the split, so
// translations of a page under the same name fall into the same split.
static enum neb_status take_document(struct build *b, const char *path, const struct neb_buf *f) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
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

static enum neb_status read_whole(struct build *b, const char *path) {
    struct neb_buf f = {0};
    enum neb_status st = neb_fs_read(path, DOC_BYTES_MAX, &f);
    b->file = path;
    b->chunk.has_file = false;
    b->done += f.len;
    if (st == NEB_OK)
        st = b->spec->sources[b->source].format == INTRA_PO ? take_po(b, path, &f)
                                                            : take_document(b, path, &f);
    neb_buf_free(&f);
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
        st = take_lines(b, b->spec->sources[b->source].format == INTRA_JSONL);
    build_input_close(b);
    return st;
}

// ---- sources ------------------------------------------------------------------------------------

static enum neb_status read_entry(struct build *b, const char *path) {
    switch (b->spec->sources[b->source].format) {
    case INTRA_TEXT:
    case INTRA_PO: return read_whole(b, path);
    case INTRA_JSONL:
    case INTRA_TSV: break;
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

static enum neb_status visit(struct build *b, const char *path, const struct stat *info) {
    (void)info;
    if (b->spec->sources[b->source].format == INTRA_PO && is_compiled(path)) {
        b->compiled += !b->again;
        return NEB_OK;
    }
    return read_entry(b, path);
}

enum neb_status build_read_source(struct build *b, int32_t i) {
    const struct intra_source_spec *s = &b->spec->sources[i];
    struct stat info;
    b->source = i;
    if (stat(s->path, &info) != 0)
        return neb_fail_errno("source %s: cannot read %s", s->name, s->path);
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
