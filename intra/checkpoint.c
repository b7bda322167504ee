#include "intra/checkpoint.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_BYTES = 64,
    ALIGN = 64,
    VERSION = 1,
    STEP_DIGITS = 12,
    INDEX_ENTRY_BYTES_MIN = 2 + 1 + 3 * 8 + 32
};
static const char magic[8] = "NEBCKPT";
static const size_t dtype_bytes[] = {1, 4, 4, 8};

struct intra_ckpt_writer {
    struct neb_fs_writer *file;
    struct neb_sha256 *sha;
    struct neb_buf index;
    uint64_t at, bytes;
    uint32_t n;
    struct neb_buf names;   // NUL-separated, to refuse duplicates
    enum neb_status failed; // the first failure stays: a file with a hole is never committed
    char path[NEB_PATH_MAX];
    intra_ckpt_sink *sink; // in place of a file
    void *user;
};

static void put_header(uint8_t h[HEADER_BYTES], uint64_t index_at, uint64_t index_len, uint32_t n) {
    memset(h, 0, HEADER_BYTES);
    memcpy(h, magic, sizeof magic);
    neb_put_u32(h + 8, VERSION);
    neb_put_u32(h + 12, n);
    neb_put_u64(h + 16, index_at);
    neb_put_u64(h + 24, index_len);
}

enum neb_status intra_ckpt_create(const char *path, struct intra_ckpt_writer **out) {
    return intra_ckpt_create_in(NULL, path, out);
}

enum neb_status intra_ckpt_create_in(const struct neb_vault *vault, const char *path,
                                     struct intra_ckpt_writer **out) {
    enum neb_status st = NEB_OK;
    struct intra_ckpt_writer *w = calloc(1, sizeof *w);
    if (!w)
        return neb_fail(NEB_ERR_NOMEM, "out of memory writing %s", path);
    snprintf(w->path, sizeof w->path, "%s", path);
    NEB_TRY_GOTO(neb_sha256_create(&w->sha), fail);
    NEB_TRY_GOTO(neb_fs_writer_open(path, 0600, &w->file), fail);
    NEB_TRY_GOTO(neb_fs_writer_seal(w->file, vault), fail);
    // The index stands at the end, where its place is known: header fields about it live in the trailer, and the
    // leading 64 bytes only name the format.
    uint8_t header[HEADER_BYTES];
    put_header(header, 0, 0, 0);
    NEB_TRY_GOTO(neb_fs_writer_add(w->file, header, sizeof header), fail);
    w->at = HEADER_BYTES;
    *out = w;
    return NEB_OK;
fail:
    intra_ckpt_writer_destroy(&w);
    return st;
}

enum neb_status intra_ckpt_create_sink(intra_ckpt_sink *sink, void *user,
                                       struct intra_ckpt_writer **out) {
    struct intra_ckpt_writer *w = calloc(1, sizeof *w);
    if (!w)
        return neb_fail(NEB_ERR_NOMEM, "out of memory beginning a checkpoint");
    w->sink = sink;
    w->user = user;
    *out = w;
    return NEB_OK;
}

void intra_ckpt_writer_destroy(struct intra_ckpt_writer **wp) {
    if (*wp) {
        neb_fs_writer_destroy(&(*wp)->file);
        neb_sha256_destroy(&(*wp)->sha);
        neb_buf_free(&(*wp)->index);
        neb_buf_free(&(*wp)->names);
    }
    free(*wp);
    *wp = NULL;
}

static bool name_taken(const struct intra_ckpt_writer *w, const char *name) {
    for (size_t i = 0; i < w->names.len; i += strlen((const char *)w->names.p + i) + 1)
        if (!strcmp((const char *)w->names.p + i, name))
            return true;
    return false;
}

enum neb_status intra_ckpt_add(struct intra_ckpt_writer *w, const char *name,
                               enum intra_dtype dtype, uint64_t rows, uint64_t cols,
                               const void *data) {
    static const uint8_t zeros[ALIGN] = {0};
    NEB_ASSERT(strlen(name) <= INTRA_CKPT_NAME_MAX && !name_taken(w, name) &&
               w->n < INTRA_CKPT_SECTIONS_MAX);
    uint64_t bytes = rows * cols * dtype_bytes[dtype];
    uint8_t digest[32];
    neb_buf_add(&w->names, name, strlen(name) + 1);
    w->bytes += bytes;
    if (w->sink) {
        w->n++;
        if (w->failed == NEB_OK)
            w->failed = w->sink(w->user, name, dtype, rows, cols, data, bytes);
        return w->failed;
    }
    neb_sha256_add(w->sha, data, bytes);
    neb_sha256_finish(w->sha, digest);
    neb_buf_str(&w->index, name);
    neb_buf_u8(&w->index, (uint8_t)dtype);
    neb_buf_u64(&w->index, rows);
    neb_buf_u64(&w->index, cols);
    neb_buf_u64(&w->index, w->at);
    neb_buf_add(&w->index, digest, sizeof digest);
    w->n++;
    uint64_t pad = (ALIGN - bytes % ALIGN) % ALIGN;
    w->at += bytes + pad;
    if (w->failed == NEB_OK)
        w->failed = neb_fs_writer_add(w->file, data, bytes);
    if (w->failed == NEB_OK)
        w->failed = neb_fs_writer_add(w->file, zeros, pad);
    return w->failed;
}

uint64_t intra_ckpt_bytes(const struct intra_ckpt_writer *w) { return w->bytes; }

// Trailer: the header again, now filled, then the digest over index and trailer header.
enum neb_status intra_ckpt_commit(struct intra_ckpt_writer *w) {
    uint8_t header[HEADER_BYTES], digest[32];
    NEB_TRY(w->failed);
    NEB_TRY(neb_buf_check(&w->index));
    NEB_TRY(neb_buf_check(&w->names));
    if (w->sink)
        return NEB_OK;
    put_header(header, w->at, w->index.len, w->n);
    neb_sha256_add(w->sha, w->index.p, w->index.len);
    neb_sha256_add(w->sha, header, sizeof header);
    neb_sha256_finish(w->sha, digest);
    NEB_TRY(neb_fs_writer_add(w->file, w->index.p, w->index.len));
    NEB_TRY(neb_fs_writer_add(w->file, header, sizeof header));
    NEB_TRY(neb_fs_writer_add(w->file, digest, sizeof digest));
    return neb_fs_writer_commit(w->file);
}

struct intra_ckpt {
    char path[NEB_PATH_MAX];
    struct neb_file *file;
    uint64_t len;
    struct intra_ckpt_section *sections;
    void **copies; // (n) of sections of a sealed file; NULL: not made
    uint32_t n;
};

static enum neb_status damaged(const char *path, const char *what) {
    return neb_fail(NEB_ERR_CORRUPT,
                    "checkpoint %s: %s; the file is damaged or not a checkpoint, use an older one",
                    path, what);
}

// The leading 64 bytes: always the same for a version. They are read first, so that a later version may move the rest.
static enum neb_status check_header(const struct intra_ckpt *c) {
    uint8_t expected[HEADER_BYTES], h[HEADER_BYTES] = {0};
    put_header(expected, 0, 0, 0);
    if (c->len >= HEADER_BYTES)
        NEB_TRY(neb_file_read(c->file, 0, h, sizeof h));
    if (memcmp(h, magic, sizeof magic))
        return damaged(c->path, "no checkpoint header");
    struct neb_rd r = neb_rd_make(h + sizeof magic, 4);
    uint32_t version = neb_rd_u32(&r);
    if (version != VERSION)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "checkpoint %s: version %" PRIu32 ", this program reads %d", c->path,
                        version, VERSION);
    return memcmp(h, expected, sizeof expected) ? damaged(c->path, "header at offset 0 is damaged")
                                                : NEB_OK;
}

enum { TRAILER_BYTES = HEADER_BYTES + 32 };

static enum neb_status read_entries(struct intra_ckpt *c, uint64_t at, uint32_t n, struct neb_rd *r) {
    c->sections = calloc(n ? n : 1, sizeof *c->sections);
    c->copies = calloc(n ? n : 1, sizeof *c->copies);
    if (!c->sections || !c->copies)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", c->path);
    for (c->n = 0; c->n < n; c->n++) {
        struct intra_ckpt_section *s = &c->sections[c->n];
        neb_rd_str(r, s->name, sizeof s->name);
        uint8_t dtype = neb_rd_u8(r);
        s->rows = neb_rd_u64(r);
        s->cols = neb_rd_u64(r);
        s->at = neb_rd_u64(r);
        neb_rd_copy(r, s->sha256, sizeof s->sha256);
        if (r->bad || dtype > INTRA_U64 || (s->cols && s->rows > c->len / s->cols))
            return damaged(c->path, "malformed index entry");
        s->dtype = (enum intra_dtype)dtype;
        s->bytes = s->rows * s->cols * dtype_bytes[dtype];
        if (s->at % ALIGN || s->at < HEADER_BYTES || s->at > at || s->bytes > at - s->at)
            return damaged(c->path, "section outside the file");
    }
    return neb_rd_done(r) ? NEB_OK : damaged(c->path, "bytes after the index");
}

static enum neb_status parse_index(struct intra_ckpt *c, struct neb_buf *b) {
    uint8_t got[32], expected[HEADER_BYTES], tail[TRAILER_BYTES];
    NEB_TRY(check_header(c));
    if (c->len < HEADER_BYTES + TRAILER_BYTES)
        return damaged(c->path, "no trailer: cut short");
    NEB_TRY(neb_file_read(c->file, c->len - TRAILER_BYTES, tail, sizeof tail));
    struct neb_rd t = neb_rd_make(tail, HEADER_BYTES);
    (void)neb_rd_view(&t, sizeof magic + 4); // magic and version: compared below
    uint32_t n = neb_rd_u32(&t);
    uint64_t at = neb_rd_u64(&t), len = neb_rd_u64(&t);
    put_header(expected, at, len, n);
    if (memcmp(tail, expected, sizeof expected))
        return damaged(c->path, "no trailer: cut short");
    if (at < HEADER_BYTES || at > c->len - TRAILER_BYTES || len != c->len - TRAILER_BYTES - at ||
        n > INTRA_CKPT_SECTIONS_MAX || n > len / INDEX_ENTRY_BYTES_MIN)
        return damaged(c->path, "index outside the file");
    NEB_TRY(neb_buf_reserve(b, len + HEADER_BYTES));
    NEB_TRY(neb_file_read(c->file, at, b->p, len + HEADER_BYTES));
    b->len = len + HEADER_BYTES;
    neb_sha256(b->p, b->len, got);
    if (memcmp(got, tail + HEADER_BYTES, 32))
        return damaged(c->path, "digest of the index does not match");
    struct neb_rd r = neb_rd_make(b->p, len);
    return read_entries(c, at, n, &r);
}

enum neb_status intra_ckpt_open(const char *path, bool verify, struct intra_ckpt **out) {
    return intra_ckpt_open_in(NULL, path, verify, out);
}

enum neb_status intra_ckpt_open_in(const struct neb_vault *vault, const char *path, bool verify,
                                   struct intra_ckpt **out) {
    enum neb_status st = NEB_OK;
    struct neb_buf index = {0};
    struct intra_ckpt *c = calloc(1, sizeof *c);
    if (!c)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    snprintf(c->path, sizeof c->path, "%s", path);
    NEB_TRY_GOTO(neb_file_open(path, vault, &c->file), fail);
    c->len = neb_file_len(c->file);
    NEB_TRY_GOTO(parse_index(c, &index), fail);
    for (uint32_t i = 0; verify && i < c->n && !neb_file_sealed(c->file); i++) {
        uint8_t got[32];
        neb_sha256(neb_file_view(c->file) + c->sections[i].at, c->sections[i].bytes, got);
        if (memcmp(got, c->sections[i].sha256, sizeof got)) {
            st =
                neb_fail(NEB_ERR_CORRUPT,
                         "checkpoint %s: section '%s' at offset %" PRIu64 ": digest does not match",
                         path, c->sections[i].name, c->sections[i].at);
            goto fail;
        }
    }
    neb_buf_free(&index);
    *out = c;
    return NEB_OK;
fail:
    neb_buf_free(&index);
    intra_ckpt_close(&c);
    return st;
}

void intra_ckpt_close(struct intra_ckpt **cp) {
    if (*cp) {
        neb_file_close(&(*cp)->file);
        for (uint32_t i = 0; (*cp)->copies && i < (*cp)->n; i++)
            free((*cp)->copies[i]);
        free((*cp)->copies);
        free((*cp)->sections);
    }
    free(*cp);
    *cp = NULL;
}

const struct intra_ckpt_section *intra_ckpt_find(const struct intra_ckpt *c, const char *name) {
    for (uint32_t i = 0; i < c->n; i++)
        if (!strcmp(c->sections[i].name, name))
            return &c->sections[i];
    return NULL;
}

const void *intra_ckpt_data(const struct intra_ckpt *c, const struct intra_ckpt_section *s) {
    void **copy = &c->copies[s - c->sections];
    if (!neb_file_sealed(c->file))
        return neb_file_view(c->file) + s->at;
    if (*copy)
        return *copy;
    void *p = aligned_alloc(ALIGN, (s->bytes / ALIGN + 1) * ALIGN);
    if (!p || neb_file_read(c->file, s->at, p, s->bytes) != NEB_OK) {
        neb_log(NEB_LOG_ERROR, "checkpoint %s: section '%s' (%" PRIu64 " bytes) could not be opened", c->path,
                s->name, s->bytes);
        free(p);
        return NULL;
    }
    return *copy = p;
}

bool intra_ckpt_sealed(const struct intra_ckpt *c) { return neb_file_sealed(c->file); }

enum neb_status intra_ckpt_range(const struct intra_ckpt *c, const struct intra_ckpt_section *s,
                                 uint64_t at, void *dst, size_t n) {
    NEB_ASSERT(at <= s->bytes && n <= s->bytes - at);
    return neb_file_read(c->file, s->at + at, dst, n);
}

const char *intra_ckpt_path(const struct intra_ckpt *c) { return c->path; }

enum neb_status intra_ckpt_read(const struct intra_ckpt *c, const char *name,
                                enum intra_dtype dtype, uint64_t rows, uint64_t cols, void *dst) {
    const struct intra_ckpt_section *s = intra_ckpt_find(c, name);
    if (!s)
        return neb_fail(NEB_ERR_NOT_FOUND, "checkpoint %s has no section '%s'", c->path, name);
    if (s->dtype != dtype || s->rows != rows || s->cols != cols)
        return neb_fail(NEB_ERR_FORMAT,
                        "checkpoint %s: '%s' is %" PRIu64 " x %" PRIu64
                        ", this model needs %" PRIu64 " x %" PRIu64,
                        c->path, name, s->rows, s->cols, rows, cols);
    return intra_ckpt_range(c, s, 0, dst, s->bytes);
}

enum neb_status intra_ckpt_step_path(const char *dir, int64_t step, char *out, size_t cap) {
    char name[64];
    snprintf(name, sizeof name, "step-%0*" PRId64 ".ckpt", STEP_DIGITS, step);
    return neb_path(out, cap, dir, name);
}

static bool is_step(const char *name, const char *end) {
    return strlen(name) == 5 + STEP_DIGITS + strlen(end) && !strncmp(name, "step-", 5) &&
           strspn(name + 5, "0123456789") == STEP_DIGITS && !strcmp(name + 5 + STEP_DIGITS, end);
}
static int is_generation(const struct dirent *e) { return is_step(e->d_name, ".ckpt"); }
static int is_leftover(const struct dirent *e) { return is_step(e->d_name, ".ckpt.tmp"); }

// Entries of a folder, oldest first. A missing folder has none; one that cannot be read is an error, or a run would
// quietly begin anew.
static enum neb_status list(const char *dir, int (*which)(const struct dirent *e),
                            struct dirent ***out, int *n) {
    *n = scandir(dir, out, which, alphasort);
    if (*n >= 0)
        return NEB_OK;
    *n = 0;
    return errno == ENOENT ? NEB_OK : neb_fail_errno("cannot read folder %s", dir);
}

static void free_names(struct dirent **names, int n) {
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

enum neb_status intra_ckpt_open_latest(const char *dir, struct intra_ckpt **out) {
    return intra_ckpt_open_latest_in(NULL, dir, out);
}

enum neb_status intra_ckpt_open_latest_in(const struct neb_vault *vault, const char *dir,
                                          struct intra_ckpt **out) {
    struct dirent **names = NULL;
    int n;
    NEB_TRY(list(dir, is_generation, &names, &n));
    enum neb_status st = NEB_ERR_NOT_FOUND;
    for (int i = n - 1; i >= 0 && st != NEB_OK; i--) {
        char path[NEB_PATH_MAX];
        st = neb_path(path, sizeof path, dir, names[i]->d_name);
        if (st == NEB_OK)
            st = intra_ckpt_open_in(vault, path, true, out);
        if (st != NEB_OK && i > 0)
            neb_warn("%s is not usable; trying the previous checkpoint", path);
    }
    free_names(names, n);
    return st;
}

static enum neb_status remove_but(const char *dir, int (*which)(const struct dirent *e), int keep) {
    struct dirent **names = NULL;
    int n;
    NEB_TRY(list(dir, which, &names, &n));
    enum neb_status st = NEB_OK;
    for (int i = 0; i + keep < n && st == NEB_OK; i++) {
        char path[NEB_PATH_MAX];
        st = neb_path(path, sizeof path, dir, names[i]->d_name);
        if (st == NEB_OK)
            st = neb_fs_remove(path);
    }
    free_names(names, n);
    return st;
}

enum neb_status intra_ckpt_prune(const char *dir, int keep) {
    NEB_TRY(remove_but(dir, is_generation, keep));
    return remove_but(dir, is_leftover, 0);
}
