// Documents of a corpus, from files, folders, lines, columns and message catalogues; in the order of their sources.
#include "agent/base/log.h"
#include "intra/build_state.h"
#include "intra/po.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DOC_BYTES_MAX = 64 << 20, BLOCK_BYTES = 1 << 20 };

// One document, if it is not empty.
static enum neb_status add_text(struct build *b, const char *text, size_t len, const char *name,
                                size_t line) {
    return build_add(b, &(struct build_text){.text = text, .len = len, .name = name, .line = line});
}

// A pair, cleaned: split by its message, so that it is held out in all languages and directions or in none.
static enum neb_status add_pair(struct build *b, const char *message, const char *translation) {
    const struct intra_source_spec *s = &b->spec->sources[b->source];
    const char *from = s->reverse ? translation : message, *to = s->reverse ? message : translation;
    return build_add(
        b, &(struct build_text){
               .tag = s->tag, .text = from, .len = strlen(from), .target = to, .name = message});
}

static enum neb_status on_po_pair(void *user, const char *message, const char *translation) {
    return add_pair(user, message, translation);
}

static enum neb_status read_po(struct build *b, const char *path) {
    struct neb_buf f = {0};
    enum neb_status st = neb_fs_read(path, DOC_BYTES_MAX, &f);
    if (st == NEB_OK)
        st = intra_po_read((const char *)f.p, f.len, path, on_po_pair, b);
    b->done += f.len;
    neb_buf_free(&f);
    return st;
}

// Lines that end as on Windows: every "\r\n" from `from` on becomes "\n".
static void drop_returns(struct neb_buf *f, size_t from) {
    size_t to = from;
    for (size_t i = from; i < f->len; i++)
        if (f->p[i] != '\r' || i + 1 == f->len || f->p[i + 1] != '\n')
            f->p[to++] = f->p[i];
    f->len = to;
}

// A file of a folder is one document. Translations of a page carry the same name: they fall into the same split.
static enum neb_status read_document(struct build *b, const char *path) {
    struct neb_buf f = {0};
    const char *slash = strrchr(path, '/');
    enum neb_status st = neb_fs_read(path, DOC_BYTES_MAX, &f);
    b->done += f.len;
    drop_returns(&f, 0);
    if (st == NEB_OK)
        st = add_text(b, (const char *)f.p, f.len, slash ? slash + 1 : path, 0);
    neb_buf_free(&f);
    return st;
}

// The documents that end in `f`, or at the file's end; what is left of f begins the next one.
static enum neb_status take_paragraphs(struct build *b, const char *path, struct neb_buf *f,
                                       bool end) {
    size_t at = 0;
    const char *gap;
    while (at < f->len && (gap = memmem(f->p + at, f->len - at, "\n\n", 2))) {
        size_t len = (size_t)(gap - (const char *)f->p) - at;
        NEB_TRY(add_text(b, (const char *)f->p + at, len, NULL, 0));
        at += len + 2;
    }
    memmove(f->p, f->p + at, f->len - at);
    f->len -= at;
    if (f->len > DOC_BYTES_MAX)
        return neb_fail(NEB_ERR_LIMIT,
                        "%s: a document of more than %d bytes (a blank line ends one)", path,
                        DOC_BYTES_MAX);
    return end && f->len ? add_text(b, (const char *)f->p, f->len, NULL, 0) : NEB_OK;
}

// A file of documents between blank lines.
static enum neb_status read_paragraphs(struct build *b, const char *path) {
    struct neb_buf text = {0};
    struct stat info;
    enum neb_status st = NEB_OK;
    FILE *f = NULL;
    NEB_TRY(neb_fs_stream_open(path, &f));
    if (fstat(fileno(f), &info) != 0 || !S_ISREG(info.st_mode))
        st = neb_fail(NEB_ERR_INVALID, "%s is not a regular file", path);
    for (bool end = false; st == NEB_OK && !end;) {
        size_t had = text.len, got;
        if ((st = neb_buf_reserve(&text, BLOCK_BYTES)) != NEB_OK)
            break;
        got = fread(text.p + had, 1, BLOCK_BYTES, f);
        text.len += got;
        b->done += got;
        drop_returns(&text, had ? had - 1 : 0); // a block may end between the two
        end = got < BLOCK_BYTES;
        if (ferror(f))
            st = neb_fail_errno("cannot read %s", path);
        else
            st = take_paragraphs(b, path, &text, end);
    }
    fclose(f);
    neb_buf_free(&text);
    return st;
}

static enum neb_status read_lines(struct build *b, const char *path);

static enum neb_status read_entry(struct build *b, const char *path) {
    switch (b->spec->sources[b->source].format) {
    case INTRA_TEXT: return read_document(b, path);
    case INTRA_PO: return read_po(b, path);
    case INTRA_JSONL:
    case INTRA_TSV: break;
    }
    return read_lines(b, path);
}

static enum neb_status read_folder(struct build *b, const char *dir) {
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
                st = read_folder(b, path);
            else if (st == NEB_OK && S_ISREG(info.st_mode))
                st = read_entry(b, path);
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

static enum neb_status read_tsv(struct build *b, const char *path, char *line, size_t number) {
    const struct intra_source_spec *s = &b->spec->sources[b->source];
    char *from = column(line, s->column), *to = s->parallel ? column(line, s->target_column) : from;
    if (!from || !to)
        return neb_fail(
            NEB_ERR_FORMAT, "%s:%zu: fewer than %d columns", path, number,
            (s->parallel && s->target_column > s->column ? s->target_column : s->column) + 1);
    from[strcspn(from, "\t")] = 0;
    if (!s->parallel)
        return add_text(b, from, strlen(from), NULL, number);
    to[strcspn(to, "\t")] = 0;
    return intra_po_clean(from, to) ? add_pair(b, from, to) : NEB_OK;
}

// What comes through a pipe comes once: it is put aside, in a file that has no name and ends with the build.
static enum neb_status put_aside(struct build *b, FILE **aside) {
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

// The file, and where its lines are to be put aside too; or what was put aside.
static enum neb_status open_lines(struct build *b, const char *path, FILE **f, FILE **aside) {
    struct stat info;
    *aside = NULL;
    if (b->pipes[b->source]) {
        *f = b->pipes[b->source];
        b->pipes[b->source] = NULL;
        rewind(*f);
        return NEB_OK;
    }
    NEB_TRY(neb_fs_stream_open(path, f));
    enum neb_status st = NEB_OK;
    if (!b->again && (fstat(fileno(*f), &info) != 0 || !S_ISREG(info.st_mode)))
        st = put_aside(b, &b->pipes[b->source]);
    if (st != NEB_OK)
        fclose(*f);
    *aside = b->pipes[b->source];
    return st;
}

static enum neb_status read_lines(struct build *b, const char *path) {
    bool jsonl = b->spec->sources[b->source].format == INTRA_JSONL;
    enum neb_status st = NEB_OK;
    char *line = NULL;
    size_t cap = 0, number = 0;
    FILE *f = NULL, *aside = NULL;
    NEB_TRY(open_lines(b, path, &f, &aside));
    b->file = path;
    for (ssize_t len; st == NEB_OK && (len = getline(&line, &cap, f)) > 0;) {
        number++;
        b->done += (uint64_t)len;
        if (aside && fwrite(line, 1, (size_t)len, aside) != (size_t)len)
            st = neb_fail_errno("cannot put %s aside", path);
        if (line[len - 1] == '\n')
            line[--len] = 0;
        if (len && line[len - 1] == '\r')
            line[--len] = 0;
        if (len && st == NEB_OK)
            st = jsonl ? add_text(b, line, (size_t)len, NULL, number)
                       : read_tsv(b, path, line, number);
    }
    if (st == NEB_OK && ferror(f))
        st = neb_fail_errno("cannot read %s", path);
    if (st == NEB_OK && aside && fflush(aside) != 0)
        st = neb_fail_errno("cannot put %s aside", path);
    if (st == NEB_OK)
        st = build_flush(b); // whose complaints name this file
    b->file = NULL;
    free(line);
    fclose(f);
    return st;
}

enum neb_status build_read_source(struct build *b, int32_t i) {
    const struct intra_source_spec *s = &b->spec->sources[i];
    struct stat info;
    b->source = i;
    if (stat(s->path, &info) != 0)
        return neb_fail_errno("source %s: cannot read %s", s->name, s->path);
    if (S_ISDIR(info.st_mode))
        NEB_TRY(read_folder(b, s->path));
    else if (s->format == INTRA_TEXT)
        NEB_TRY(read_paragraphs(b, s->path));
    else
        NEB_TRY(read_entry(b, s->path));
    return build_flush(b);
}

// False: it could not be looked at. That is for the reading to say.
static bool add_bytes(const char *path, uint64_t *bytes) {
    struct stat info;
    if (stat(path, &info) != 0)
        return false;
    if (!S_ISDIR(info.st_mode)) {
        *bytes += S_ISREG(info.st_mode) ? (uint64_t)info.st_size : 0;
        return true;
    }
    DIR *d = opendir(path);
    bool good = d != NULL;
    for (struct dirent *e; good && (e = readdir(d));) {
        char name[NEB_PATH_MAX];
        if (e->d_name[0] != '.')
            good = snprintf(name, sizeof name, "%s/%s", path, e->d_name) < (int)sizeof name &&
                   add_bytes(name, bytes);
    }
    if (d)
        closedir(d);
    return good;
}

void build_measure(struct build *b) {
    for (int32_t i = 0; i < b->spec->n_sources; i++)
        (void)add_bytes(b->spec->sources[i].path, &b->total);
}
