// Documents of a corpus, from files, folders, lines, columns and message catalogues; in the order of their sources.
#include "agent/base/log.h"
#include "intra/build_state.h"
#include "intra/po.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DOC_BYTES_MAX = 64 << 20 };

uint64_t build_hash(const void *p, size_t n) {
    uint8_t sha[INTRA_SHA_BYTES];
    neb_sha256(p, n, sha);
    struct neb_rd r = neb_rd_make(sha, sizeof sha);
    return neb_rd_u64(&r);
}

static enum neb_status add_doc(struct build *b, int32_t source, const char *text, size_t len,
                               uint64_t name_hash) {
    while (len && (text[len - 1] == '\n' || text[len - 1] == ' '))
        len--;
    if (!len)
        return NEB_OK;
    if (b->docs.n == b->docs.cap) {
        size_t cap = b->docs.cap ? 2 * b->docs.cap : 1024;
        struct doc *p = realloc(b->docs.p, cap * sizeof *p);
        if (!p)
            return neb_fail(NEB_ERR_NOMEM, "out of memory after %zu documents", b->docs.n);
        b->docs.p = p;
        b->docs.cap = cap;
    }
    char *copy = malloc(len + 1);
    if (!copy)
        return neb_fail(NEB_ERR_NOMEM, "out of memory after %zu documents", b->docs.n);
    memcpy(copy, text, len);
    copy[len] = 0;
    neb_sha256_add(b->inputs, text, len);
    b->docs.p[b->docs.n++] =
        (struct doc){.text = copy, .len = len, .source = source, .name_hash = name_hash};
    return NEB_OK;
}

// A pair, cleaned: split by its message, so that it is held out in all languages and directions or in none.
static enum neb_status add_pair(struct build *b, int32_t source, const char *message,
                                const char *translation) {
    const struct intra_source_spec *s = &b->spec->sources[source];
    const char *from = s->reverse ? translation : message, *to = s->reverse ? message : translation;
    size_t tag = strlen(s->tag), n = strlen(from), before = b->docs.n;
    char *text = malloc(tag + n + 1), *target = strdup(to);
    enum neb_status st = text && target ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory");
    if (st == NEB_OK) {
        memcpy(text, s->tag, tag);
        memcpy(text + tag, from, n + 1);
        st = add_doc(b, source, text, tag + n, build_hash(message, strlen(message)));
    }
    free(text);
    if (st != NEB_OK || b->docs.n == before) {
        free(target);
        return st;
    }
    neb_sha256_add(b->inputs, target, strlen(target) + 1);
    b->docs.p[before].target = target;
    return NEB_OK;
}

struct po_target {
    struct build *b;
    int32_t source;
};
static enum neb_status on_po_pair(void *user, const char *message, const char *translation) {
    struct po_target *t = user;
    return add_pair(t->b, t->source, message, translation);
}

static enum neb_status read_po(struct build *b, int32_t source, const char *path) {
    struct neb_buf f = {0};
    struct po_target t = {b, source};
    enum neb_status st = neb_fs_read(path, DOC_BYTES_MAX, &f);
    if (st == NEB_OK)
        st = intra_po_read((const char *)f.p, f.len, path, on_po_pair, &t);
    neb_buf_free(&f);
    return st;
}

static enum neb_status read_file(struct build *b, int32_t source, const char *path,
                                 bool one_document) {
    struct neb_buf f = {0};
    if (b->spec->sources[source].format == INTRA_PO)
        return read_po(b, source, path);
    enum neb_status st = neb_fs_read(path, DOC_BYTES_MAX, &f);
    if (st == NEB_OK && one_document) {
        const char *base = strrchr(path, '/');
        base =
            base
                ? base + 1
                : path; // translations of a page carry the same name: they fall into the same split
        st = add_doc(b, source, (const char *)f.p, f.len, build_hash(base, strlen(base)));
    }
    for (size_t at = 0;
         st == NEB_OK && !one_document && at < f.len;) { // blank lines separate documents
        const char *p = (const char *)f.p + at, *end = memmem(p, f.len - at, "\n\n", 2);
        size_t len = end ? (size_t)(end - p) : f.len - at;
        st = add_doc(b, source, p, len, build_hash(p, len));
        at += len + 2;
    }
    neb_buf_free(&f);
    return st;
}

static enum neb_status read_folder(struct build *b, int32_t source, const char *dir) {
    struct dirent **names = NULL;
    enum neb_status st = NEB_OK;
    int n = scandir(dir, &names, NULL, alphasort); // sorted: the same corpus on every machine
    if (n < 0)
        return neb_fail_errno("cannot read folder %s", dir);
    for (int i = 0; i < n; i++) {
        char path[NEB_PATH_MAX];
        struct stat info;
        if (st == NEB_OK && names[i]->d_name[0] != '.') {
            st = neb_path(path, sizeof path, dir, names[i]->d_name);
            if (st == NEB_OK && stat(path, &info) != 0)
                st = neb_fail_errno("cannot stat %s", path);
            else if (st == NEB_OK && S_ISDIR(info.st_mode))
                st = read_folder(b, source, path);
            else if (st == NEB_OK && S_ISREG(info.st_mode))
                st = read_file(b, source, path, true);
        }
        free(names[i]);
    }
    free(names);
    return st;
}

static char *column(char *line, int32_t n) { // NULL: there are fewer
    for (; n > 0 && line; n--) {
        line = strchr(line, '\t');
        line = line ? line + 1 : NULL;
    }
    return line;
}

static enum neb_status read_tsv_pair(struct build *b, int32_t source,
                                     const struct intra_source_spec *s, char *line, size_t number) {
    char *from = column(line, s->column), *to = column(line, s->target_column);
    if (!from || !to)
        return neb_fail(NEB_ERR_FORMAT, "%s:%zu: fewer than %d columns", s->path, number,
                        (s->column > s->target_column ? s->column : s->target_column) + 1);
    from[strcspn(from, "\t")] = 0;
    to[strcspn(to, "\t")] = 0;
    return intra_po_clean(from, to) ? add_pair(b, source, from, to) : NEB_OK;
}

static enum neb_status read_lines(struct build *b, int32_t source,
                                  const struct intra_source_spec *s) {
    enum neb_status st = NEB_OK;
    char *line = NULL;
    size_t cap = 0, number = 0;
    FILE *f = NULL;
    NEB_TRY(neb_fs_stream_open(s->path, &f));
    for (ssize_t len; st == NEB_OK && (len = getline(&line, &cap, f)) > 0;) {
        number++;
        if (line[len - 1] == '\n')
            line[--len] = 0;
        if (!len)
            continue;
        if (s->format == INTRA_JSONL) {
            json_t *o = json_loadb(line, (size_t)len, 0, NULL);
            const json_t *v = json_object_get(o, s->field);
            if (!json_is_string(v))
                st = neb_fail(NEB_ERR_FORMAT, "%s:%zu: no text in field \"%s\"", s->path, number,
                              s->field);
            else
                st = add_doc(b, source, json_string_value(v), json_string_length(v),
                             build_hash(json_string_value(v), json_string_length(v)));
            json_decref(o);
            continue;
        }
        char *at = column(line, s->column);
        if (s->parallel) {
            st = read_tsv_pair(b, source, s, line, number);
            continue;
        }
        if (!at)
            st = neb_fail(NEB_ERR_FORMAT, "%s:%zu: fewer than %d columns", s->path, number,
                          s->column + 1);
        else
            st = add_doc(b, source, at, strcspn(at, "\t"), build_hash(at, strcspn(at, "\t")));
    }
    free(line);
    fclose(f);
    return st;
}

enum neb_status build_read_sources(struct build *b) {
    for (int32_t i = 0; i < b->spec->n_sources; i++) {
        const struct intra_source_spec *s = &b->spec->sources[i];
        struct stat info;
        size_t before = b->docs.n;
        neb_sha256_add(b->inputs, s->name, strlen(s->name) + 1);
        b->progress(b->user, "reading", (uint64_t)i, (uint64_t)b->spec->n_sources);
        if (stat(s->path, &info) != 0)
            return neb_fail_errno("source %s: cannot read %s", s->name, s->path);
        if (s->format == INTRA_JSONL || s->format == INTRA_TSV)
            NEB_TRY(read_lines(b, i, s));
        else if (S_ISDIR(info.st_mode))
            NEB_TRY(read_folder(b, i, s->path));
        else
            NEB_TRY(read_file(b, i, s->path, false));
        if (b->docs.n == before)
            return neb_fail(NEB_ERR_INVALID, "source %s: %s holds no documents", s->name, s->path);
    }
    return NEB_OK;
}
