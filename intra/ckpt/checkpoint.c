// SPDX-License-Identifier: Apache-2.0
#include "intra/ckpt/checkpoint.h"
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/moved.h"
#include "agent/base/sha256.h"
#include "intra/ckpt/checkpoint_parts.h"

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
static const char magic[8] = INTRA_CKPT_MAGIC;
static const size_t dtype_bytes[] = {1, 4, 4, 8};

struct intra_ckpt_writer {
    struct neb_fs_writer *file;
    struct neb_sha256 *sha;
    struct neb_buf index;
    uint64_t at, bytes;
    uint64_t left; // bytes that the section still needs
    uint32_t n;
    struct neb_buf names;   // NUL-separated, to refuse duplicates
    enum neb_status failed; // the first failure stays: a file with a hole is never committed
    char path[NEB_PATH_MAX];
    intra_ckpt_sink *sink; // instead of a file
    void *user;
    bool seals;
    char split[NEB_PATH_MAX];
    bool may_split;
    uint64_t token; // of its parts
    uint32_t parts;
    _Atomic uint64_t *written; // borrowed; NULL: not watched
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
    w->seals = vault != NULL;
    NEB_TRY_GOTO(neb_sha256_create(&w->sha), fail);
    NEB_TRY_GOTO(neb_fs_writer_open(path, 0600, &w->file), fail);
    NEB_TRY_GOTO(neb_fs_writer_seal(w->file, vault), fail);
    // The index is at the end, where its position is known. The trailer holds the fields about it;
    // the leading 64 bytes only name the format.
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

enum neb_status intra_ckpt_create_sink(intra_ckpt_sink *sink, void *user, bool seals,
                                       struct intra_ckpt_writer **out) {
    struct intra_ckpt_writer *w = calloc(1, sizeof *w);
    if (!w)
        return neb_fail(NEB_ERR_NOMEM, "out of memory beginning a checkpoint");
    w->sink = sink;
    w->user = user;
    w->seals = seals;
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

static bool is_part(const char *path) {
    size_t n = strlen(path), tail = strlen(".part");
    return n > tail && !strcmp(path + n - tail, ".part");
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// A reader takes one of two sections of the same name.
static enum neb_status check_names(const struct intra_ckpt_writer *w) {
    const char **all = malloc(((size_t)w->n + 1) * sizeof *all), *at = (const char *)w->names.p;
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %u names of sections", w->n);
    for (uint32_t i = 0; i < w->n; i++, at += strlen(at) + 1)
        all[i] = at;
    qsort(all, w->n, sizeof *all, by_text);
    for (uint32_t i = 1; i < w->n; i++)
        NEB_ASSERT(strcmp(all[i - 1], all[i]) != 0);
    free(all);
    return NEB_OK;
}

enum neb_status intra_ckpt_begin(struct intra_ckpt_writer *w, const char *name,
                                 enum intra_dtype dtype, uint64_t rows, uint64_t cols) {
    NEB_ASSERT(strlen(name) <= INTRA_CKPT_NAME_MAX && w->n < INTRA_CKPT_SECTIONS_MAX && !w->left &&
               !w->sink);
    neb_buf_add(&w->names, name, strlen(name) + 1);
    w->left = rows * cols * dtype_bytes[dtype];
    w->bytes += w->left;
    neb_buf_str(&w->index, name);
    neb_buf_u8(&w->index, (uint8_t)dtype);
    neb_buf_u64(&w->index, rows);
    neb_buf_u64(&w->index, cols);
    neb_buf_u64(&w->index, w->at);
    w->at += w->left;
    w->n++;
    return w->left ? w->failed : intra_ckpt_put(w, NULL, 0);
}

enum neb_status intra_ckpt_put(struct intra_ckpt_writer *w, const void *data, uint64_t bytes) {
    static const uint8_t zeros[ALIGN] = {0};
    uint8_t digest[32];
    const uint8_t *at = data;
    NEB_ASSERT(bytes <= w->left);
    w->left -= bytes;
    while (bytes) { // in pieces: the disk works while the next piece is hashed
        size_t n = bytes < NEB_MOVED_PIECE ? (size_t)bytes : NEB_MOVED_PIECE;
        neb_sha256_add(w->sha, at, n);
        if (w->failed == NEB_OK)
            w->failed = neb_fs_writer_add(w->file, at, n);
        at += n;
        bytes -= n;
        if (w->written)
            *w->written += n;
    }
    if (w->left)
        return w->failed;
    neb_sha256_finish(w->sha, digest);
    neb_buf_add(&w->index, digest, sizeof digest);
    uint64_t pad = (ALIGN - w->at % ALIGN) % ALIGN;
    w->at += pad;
    if (w->failed == NEB_OK)
        w->failed = neb_fs_writer_add(w->file, zeros, pad);
    return w->failed;
}

static enum neb_status to_sink(struct intra_ckpt_writer *w, const char *name,
                               enum intra_dtype dtype, uint64_t rows, uint64_t cols,
                               const void *data) {
    uint64_t bytes = rows * cols * dtype_bytes[dtype];
    NEB_ASSERT(strlen(name) <= INTRA_CKPT_NAME_MAX && w->n < INTRA_CKPT_SECTIONS_MAX);
    w->bytes += bytes;
    w->n++;
    if (w->failed == NEB_OK)
        w->failed = w->sink(w->user, name, dtype, rows, cols, data, bytes);
    return w->failed;
}

enum neb_status intra_ckpt_add(struct intra_ckpt_writer *w, const char *name,
                               enum intra_dtype dtype, uint64_t rows, uint64_t cols,
                               const void *data) {
    if (!strcmp(name, INTRA_PARTS_SECTION) && !is_part(w->path)) {
        const uint64_t *p = data;
        w->token = p[0];
        w->parts = (uint32_t)p[1];
    }
    if (w->sink)
        return to_sink(w, name, dtype, rows, cols, data);
    enum neb_status st = intra_ckpt_begin(w, name, dtype, rows, cols);
    return w->left ? intra_ckpt_put(w, data, w->left) : st;
}

void intra_ckpt_split(struct intra_ckpt_writer *w, const char *path) {
    w->may_split = path != NULL;
    snprintf(w->split, sizeof w->split, "%s", path ? path : "");
}
const char *intra_ckpt_split_path(const struct intra_ckpt_writer *w) {
    return w->may_split ? w->split : NULL;
}
bool intra_ckpt_is_sink(const struct intra_ckpt_writer *w) { return w->sink != NULL; }
bool intra_ckpt_seals(const struct intra_ckpt_writer *w) { return w->seals; }
uint64_t intra_ckpt_bytes(const struct intra_ckpt_writer *w) { return w->bytes; }
void intra_ckpt_watch(struct intra_ckpt_writer *w, _Atomic uint64_t *written) {
    w->written = written;
}

// All parts are there: notes their digests.
static enum neb_status add_digests(struct intra_ckpt_writer *w) {
    struct neb_buf all = {0};
    enum neb_status st = NEB_OK;
    for (uint32_t k = 1; k <= w->parts && st == NEB_OK; k++) {
        char path[NEB_PATH_MAX];
        uint8_t digest[INTRA_PART_DIGEST];
        st = intra_part_path(w->path, w->token, k, path, sizeof path);
        if (st == NEB_OK)
            st = intra_part_digest(path, digest);
        if (st == NEB_OK)
            neb_buf_add(&all, digest, sizeof digest);
    }
    if (st == NEB_OK)
        st = neb_buf_check(&all);
    if (st == NEB_OK)
        st = intra_ckpt_add(w, INTRA_PARTS_DIGESTS, INTRA_BYTES, all.len, 1, all.p);
    neb_buf_free(&all);
    return st;
}

// The trailer: the header again, now with all fields, then the digest over index and header.
enum neb_status intra_ckpt_commit(struct intra_ckpt_writer *w) {
    uint8_t header[HEADER_BYTES], digest[32];
    NEB_TRY(w->failed);
    NEB_ASSERT(!w->left);
    if (!w->sink && w->parts) {
        NEB_TRY(intra_parts_wait(w->path, w->token, w->parts, INTRA_PARTS_IDLE_S * NEB_S));
        NEB_TRY(add_digests(w));
    }
    NEB_TRY(neb_buf_check(&w->index));
    NEB_TRY(neb_buf_check(&w->names));
    if (w->sink)
        return NEB_OK;
    NEB_TRY(check_names(w));
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
    const struct neb_vault *vault; // only during open
    struct ckpt_file {
        struct neb_file *f;
        uint64_t len;
        uint8_t digest[INTRA_PART_DIGEST]; // over its index
    } * files;                             // (n_files) the file and its parts
    uint32_t n_files;
    struct intra_ckpt_section *sections; // of all files
    // (n) by name, then in order; NULL until all files are open. Ranks write a section for each
    // unit, and a reader looks for each of them.
    const struct intra_ckpt_section **by_name;
    void **copies; // (n) of sections of a sealed file; NULL: not made
    uint32_t n;
    struct neb_moving *reading; // progress of reading
};

static enum neb_status damaged(const char *path, const char *what) {
    return neb_fail(
        NEB_ERR_CORRUPT,
        "checkpoint %s: %s; the file is damaged or is not a checkpoint: use an older one", path,
        what);
}

// The leading 64 bytes are the same in all files of a version. They are read first, so that a later
// version can move everything else.
static enum neb_status check_header(const char *path, const struct ckpt_file *file) {
    uint8_t expected[HEADER_BYTES], h[HEADER_BYTES] = {0};
    put_header(expected, 0, 0, 0);
    if (file->len >= HEADER_BYTES)
        NEB_TRY(neb_file_read(file->f, 0, h, sizeof h));
    if (memcmp(h, magic, sizeof magic))
        return damaged(path, "it has no checkpoint header");
    struct neb_rd r = neb_rd_make(h + sizeof magic, 4);
    uint32_t version = neb_rd_u32(&r);
    if (version != VERSION)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "checkpoint %s: version %" PRIu32 ", but this program reads version %d",
                        path, version, VERSION);
    return memcmp(h, expected, sizeof expected) ? damaged(path, "the header at offset 0 is damaged")
                                                : NEB_OK;
}

enum { TRAILER_BYTES = HEADER_BYTES + 32 };

static enum neb_status parse_entry(struct neb_rd *r, const char *path, uint64_t len, uint64_t end,
                                   struct intra_ckpt_section *s) {
    neb_rd_str(r, s->name, sizeof s->name);
    uint8_t dtype = neb_rd_u8(r);
    s->rows = neb_rd_u64(r);
    s->cols = neb_rd_u64(r);
    s->at = neb_rd_u64(r);
    neb_rd_copy(r, s->sha256, sizeof s->sha256);
    if (r->bad || dtype > INTRA_U64 || (s->cols && s->rows > len / s->cols))
        return damaged(path, "an index entry is malformed");
    s->dtype = (enum intra_dtype)dtype;
    s->bytes = s->rows * s->cols * dtype_bytes[dtype];
    if (s->at % ALIGN || s->at < HEADER_BYTES || s->at > end || s->bytes > end - s->at)
        return damaged(path, "a section lies outside the file");
    return NEB_OK;
}

static enum neb_status parse_entries(struct intra_ckpt *c, const char *path, uint32_t part,
                                     uint64_t end, uint32_t n, struct neb_rd *r) {
    struct intra_ckpt_section *all = realloc(c->sections, (c->n + (size_t)n + 1) * sizeof *all);
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    c->sections = all;
    for (uint32_t i = 0; i < n; i++) {
        struct intra_ckpt_section *s = &c->sections[c->n++];
        *s = (struct intra_ckpt_section){.part = part};
        NEB_TRY(parse_entry(r, path, c->files[part].len, end, s));
    }
    return neb_rd_done(r) ? NEB_OK : damaged(path, "there are bytes after the index");
}

// Adds the sections of one file to the list. b: a buffer for its index.
static enum neb_status parse_index(struct intra_ckpt *c, const char *path, uint32_t part,
                                   struct neb_buf *b) {
    struct ckpt_file *file = &c->files[part];
    uint8_t got[32], expected[HEADER_BYTES], tail[TRAILER_BYTES];
    NEB_TRY(check_header(path, file));
    if (file->len < HEADER_BYTES + TRAILER_BYTES)
        return damaged(path, "it has no trailer: it was cut short");
    NEB_TRY(neb_file_read(file->f, file->len - TRAILER_BYTES, tail, sizeof tail));
    struct neb_rd t = neb_rd_make(tail, HEADER_BYTES);
    (void)neb_rd_view(&t, sizeof magic + 4); // magic and version: compared below
    uint32_t n = neb_rd_u32(&t);
    uint64_t at = neb_rd_u64(&t), len = neb_rd_u64(&t);
    put_header(expected, at, len, n);
    if (memcmp(tail, expected, sizeof expected))
        return damaged(path, "it has no trailer: it was cut short");
    if (at < HEADER_BYTES || at > file->len - TRAILER_BYTES ||
        len != file->len - TRAILER_BYTES - at || n > INTRA_CKPT_SECTIONS_MAX ||
        n > len / INDEX_ENTRY_BYTES_MIN)
        return damaged(path, "the index lies outside the file");
    NEB_TRY(neb_buf_reserve(b, len + HEADER_BYTES));
    NEB_TRY(neb_file_read(file->f, at, b->p, len + HEADER_BYTES));
    b->len = len + HEADER_BYTES;
    neb_sha256(b->p, b->len, got);
    if (memcmp(got, tail + HEADER_BYTES, 32))
        return damaged(path, "the digest of the index does not match");
    memcpy(file->digest, got, sizeof got);
    struct neb_rd r = neb_rd_make(b->p, len);
    return parse_entries(c, path, part, at, n, &r);
}

static enum neb_status open_file(struct intra_ckpt *c, const char *path) {
    struct neb_buf index = {0};
    struct ckpt_file *files = realloc(c->files, (c->n_files + 1) * sizeof *files);
    if (!files)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    c->files = files;
    struct ckpt_file *file = &files[c->n_files];
    *file = (struct ckpt_file){0};
    NEB_TRY(neb_file_open(path, c->vault, &file->f));
    file->len = neb_file_len(file->f);
    enum neb_status st = parse_index(c, path, c->n_files++, &index);
    neb_buf_free(&index);
    return st;
}

// Reads a section about parts (checkpoint_parts.h) of one file. False: there is none of this size.
static bool read_in(const struct intra_ckpt *c, uint32_t part, const char *name,
                    enum intra_dtype dtype, void *out, size_t bytes) {
    for (uint32_t i = 0; i < c->n; i++) {
        const struct intra_ckpt_section *s = &c->sections[i];
        if (s->part != part || strcmp(s->name, name) != 0)
            continue;
        return s->dtype == dtype && s->bytes == bytes &&
               neb_file_read(c->files[part].f, s->at, out, bytes) == NEB_OK;
    }
    return false;
}

static bool read_parts(const struct intra_ckpt *c, uint32_t part, uint64_t *out, size_t words) {
    return read_in(c, part, INTRA_PARTS_SECTION, INTRA_U64, out, words * sizeof *out);
}

enum { NAMED = NEB_PATH_MAX + 32 };

// The path of part k, and the rank that wrote it if the file names it.
static const char *name_part(const struct intra_ckpt *c, uint32_t k, char out[NAMED]) {
    uint64_t parts[2], ranks[INTRA_PARTS_MAX];
    char path[NEB_PATH_MAX];
    if (!k || !read_parts(c, 0, parts, 2) || parts[1] > INTRA_PARTS_MAX ||
        intra_part_path(c->path, parts[0], k, path, sizeof path) != NEB_OK)
        return c->path;
    bool known = read_in(c, 0, INTRA_PARTS_RANKS, INTRA_U64, ranks, parts[1] * sizeof *ranks);
    snprintf(out, NAMED, known ? "%s (of rank %" PRIu64 ")" : "%s", path, known ? ranks[k - 1] : 0);
    return out;
}

// True if file k is that part of this generation. A part of a sealed checkpoint must be sealed too:
// only then are its values authenticated.
static bool belongs(const struct intra_ckpt *c, uint32_t k, const uint64_t parts[2]) {
    uint64_t own[3];
    if (neb_file_sealed(c->files[k].f) != neb_file_sealed(c->files[0].f))
        return false;
    return read_parts(c, k, own, 3) && own[0] == parts[0] && own[1] == k && own[2] == parts[1];
}

// digests: (n, INTRA_PART_DIGEST); NULL: an older version wrote the file.
static enum neb_status open_part(struct intra_ckpt *c, uint32_t k, const uint64_t parts[2],
                                 const uint8_t *digests) {
    static const uint8_t sealed[INTRA_PART_DIGEST];
    const uint8_t *own = digests ? digests + (k - 1) * sizeof sealed : sealed;
    char path[NEB_PATH_MAX], named[NAMED];
    NEB_TRY(intra_part_path(c->path, parts[0], k, path, sizeof path));
    enum neb_status st = open_file(c, path);
    if (st != NEB_OK) { // an error has named the file
        neb_warn("checkpoint %s: its part %s cannot be used", c->path, name_part(c, k, named));
        return st;
    }
    if (!belongs(c, k, parts))
        return neb_fail(NEB_ERR_CORRUPT,
                        "checkpoint %s: not part %" PRIu32 " of %" PRIu64
                        " of its checkpoint; it belongs to another checkpoint or rank: use an "
                        "older checkpoint",
                        name_part(c, k, named), k, parts[1]);
    if (memcmp(own, sealed, sizeof sealed) && memcmp(own, c->files[k].digest, sizeof sealed))
        return neb_fail(NEB_ERR_CORRUPT,
                        "checkpoint %s: its digest is not the one that the checkpoint names: use "
                        "an older checkpoint",
                        name_part(c, k, named));
    return NEB_OK;
}

static enum neb_status open_parts(struct intra_ckpt *c) {
    uint64_t parts[2];
    if (!read_parts(c, 0, parts, 2))
        return NEB_OK;
    if (!parts[1] || parts[1] > INTRA_PARTS_MAX)
        return damaged(c->path, "the number of parts is impossible");
    size_t bytes = (size_t)parts[1] * INTRA_PART_DIGEST;
    uint8_t *digests = malloc(bytes);
    if (!digests)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", c->path);
    bool known = read_in(c, 0, INTRA_PARTS_DIGESTS, INTRA_BYTES, digests, bytes);
    enum neb_status st = NEB_OK;
    for (uint32_t k = 1; k <= parts[1] && st == NEB_OK; k++)
        st = open_part(c, k, parts, known ? digests : NULL);
    free(digests);
    return st;
}

static void digest_section(const struct neb_file *file, const struct intra_ckpt_section *s,
                           struct neb_sha256 *sha, struct neb_moving *m, uint8_t out[32]) {
    const uint8_t *p = neb_file_view(file) + s->at;
    for (uint64_t left = s->bytes; left;) {
        size_t n = left < NEB_MOVED_PIECE ? (size_t)left : NEB_MOVED_PIECE;
        (void)neb_fault("file.read"); // a slow disk
        neb_sha256_add(sha, p, n);
        neb_moving_add(m, n);
        p += n;
        left -= n;
    }
    neb_sha256_finish(sha, out);
}

static uint64_t all_bytes(const struct intra_ckpt *c) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->n; i++)
        sum += c->sections[i].bytes;
    return sum;
}

static enum neb_status verify_with(const struct intra_ckpt *c, struct neb_sha256 *sha) {
    struct neb_moving m = {.what = "verifying", .path = c->path, .total = all_bytes(c)};
    for (uint32_t i = 0; i < c->n; i++) {
        const struct intra_ckpt_section *s = &c->sections[i];
        const struct neb_file *file = c->files[s->part].f;
        uint8_t got[32];
        char named[NAMED];
        if (neb_file_sealed(file)) // authenticated when it was opened
            continue;
        digest_section(file, s, sha, &m, got);
        if (memcmp(got, s->sha256, sizeof got))
            return neb_fail(NEB_ERR_CORRUPT,
                            "checkpoint %s: section '%s' at offset %" PRIu64
                            ": the digest does not match; use an older checkpoint",
                            name_part(c, s->part, named), s->name, s->at);
    }
    return NEB_OK;
}

static enum neb_status verify_all(const struct intra_ckpt *c) {
    struct neb_sha256 *sha = NULL;
    NEB_TRY(neb_sha256_create(&sha));
    enum neb_status st = verify_with(c, sha);
    neb_sha256_destroy(&sha);
    return st;
}

static int in_order(const void *x, const void *y) {
    const struct intra_ckpt_section *a = *(const struct intra_ckpt_section *const *)x,
                                    *b = *(const struct intra_ckpt_section *const *)y;
    int order = strcmp(a->name, b->name);
    return order ? order : (a > b) - (a < b);
}

static enum neb_status sort_names(struct intra_ckpt *c) {
    const struct intra_ckpt_section **all = calloc((size_t)c->n + 1, sizeof *all);
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", c->path);
    for (uint32_t i = 0; i < c->n; i++)
        all[i] = &c->sections[i];
    qsort(all, c->n, sizeof *all, in_order);
    c->by_name = all;
    return NEB_OK;
}

static enum neb_status open_ckpt(const struct neb_vault *vault, const char *path, bool parts,
                                 bool verify, struct intra_ckpt **out) {
    struct intra_ckpt *c = calloc(1, sizeof *c);
    if (!c)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    snprintf(c->path, sizeof c->path, "%s", path);
    c->vault = vault;
    enum neb_status st = open_file(c, path);
    if (st == NEB_OK && parts)
        st = open_parts(c);
    if (st == NEB_OK)
        st = sort_names(c);
    if (st == NEB_OK && (!(c->copies = calloc(c->n ? c->n : 1, sizeof *c->copies)) ||
                         !(c->reading = calloc(1, sizeof *c->reading))))
        st = neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    if (st == NEB_OK && verify)
        st = verify_all(c);
    c->vault = NULL;
    if (st == NEB_OK) {
        // a caller that does not verify reads only a part, or reports its progress itself
        *c->reading = (struct neb_moving){
            .what = verify ? "reading" : NULL, .path = c->path, .total = all_bytes(c)};
        *out = c;
    } else {
        intra_ckpt_close(&c);
    }
    return st;
}

enum neb_status intra_ckpt_open(const char *path, bool verify, struct intra_ckpt **out) {
    return open_ckpt(NULL, path, true, verify, out);
}
enum neb_status intra_ckpt_open_in(const struct neb_vault *vault, const char *path, bool verify,
                                   struct intra_ckpt **out) {
    return open_ckpt(vault, path, true, verify, out);
}
enum neb_status intra_ckpt_open_index(const struct neb_vault *vault, const char *path,
                                      struct intra_ckpt **out) {
    return open_ckpt(vault, path, false, false, out);
}

void intra_ckpt_close(struct intra_ckpt **cp) {
    if (*cp) {
        for (uint32_t i = 0; i < (*cp)->n_files; i++)
            neb_file_close(&(*cp)->files[i].f);
        free((*cp)->files);
        for (uint32_t i = 0; (*cp)->copies && i < (*cp)->n; i++)
            free((*cp)->copies[i]);
        free((*cp)->copies);
        free((*cp)->reading);
        free((*cp)->by_name);
        free((*cp)->sections);
    }
    free(*cp);
    *cp = NULL;
}

const struct intra_ckpt_section *intra_ckpt_find(const struct intra_ckpt *c, const char *name) {
    uint32_t low = 0, high = c->n; // the first section that is not before `name`
    for (uint32_t i = 0; i < c->n && !c->by_name; i++)
        if (!strcmp(c->sections[i].name, name))
            return &c->sections[i];
    while (c->by_name && low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (strcmp(c->by_name[mid]->name, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    bool found = c->by_name && low < c->n && !strcmp(c->by_name[low]->name, name);
    return found ? c->by_name[low] : NULL;
}

const void *intra_ckpt_data(const struct intra_ckpt *c, const struct intra_ckpt_section *s) {
    const struct neb_file *file = c->files[s->part].f;
    void **copy = &c->copies[s - c->sections];
    if (!neb_file_sealed(file))
        return neb_file_view(file) + s->at;
    if (*copy)
        return *copy;
    void *p = aligned_alloc(ALIGN, (s->bytes / ALIGN + 1) * ALIGN);
    if (!p || neb_file_read(file, s->at, p, s->bytes) != NEB_OK) {
        neb_log(NEB_LOG_ERROR, "checkpoint %s: cannot read section '%s' (%" PRIu64 " bytes)",
                c->path, s->name, s->bytes);
        free(p);
        return NULL;
    }
    return *copy = p;
}

bool intra_ckpt_sealed(const struct intra_ckpt *c) { return neb_file_sealed(c->files[0].f); }

enum neb_status intra_ckpt_range(const struct intra_ckpt *c, const struct intra_ckpt_section *s,
                                 uint64_t at, void *dst, size_t n) {
    uint8_t *to = dst;
    NEB_ASSERT(at <= s->bytes && n <= s->bytes - at);
    while (n) {
        size_t piece = n < NEB_MOVED_PIECE ? n : NEB_MOVED_PIECE;
        NEB_TRY(neb_file_read(c->files[s->part].f, s->at + at, to, piece));
        neb_moving_add(c->reading, piece);
        to += piece;
        at += piece;
        n -= piece;
    }
    return NEB_OK;
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
                        ", but this model needs %" PRIu64 " x %" PRIu64,
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
#define DAMAGED ".damaged"
static int is_leftover(const struct dirent *e) {
    return is_step(e->d_name, ".ckpt.tmp") || is_step(e->d_name, ".ckpt" DAMAGED);
}

enum neb_status intra_ckpt_open_latest_in(const struct neb_vault *vault, const char *dir,
                                          struct intra_ckpt **out) {
    struct dirent **names = NULL;
    int n;
    NEB_TRY(intra_names_list(dir, is_generation, &names, &n));
    enum neb_status st = NEB_ERR_NOT_FOUND;
    for (int i = n - 1; i >= 0 && st != NEB_OK; i--) {
        char path[NEB_PATH_MAX];
        st = neb_path(path, sizeof path, dir, names[i]->d_name);
        if (st == NEB_OK)
            st = intra_ckpt_open_in(vault, path, true, out);
        if (st != NEB_OK && i > 0)
            neb_warn("%s is not usable; trying the previous checkpoint", path);
    }
    intra_names_free(names, n);
    // a part is missing: NEB_ERR_NOT_FOUND would make the caller start from nothing
    if (n > 0 && st == NEB_ERR_NOT_FOUND)
        return neb_fail(NEB_ERR_CORRUPT,
                        "no checkpoint in %s is usable, because files are missing: restore them, "
                        "or remove the checkpoints to start without",
                        dir);
    return st;
}

// True for damage to a file or a part. False for another key, another version, a failure to read.
static bool is_damage(enum neb_status st) {
    return st == NEB_ERR_CORRUPT || st == NEB_ERR_NOT_FOUND;
}

static enum neb_status put_aside(const char *path) {
    char aside[NEB_PATH_MAX];
    int n = snprintf(aside, sizeof aside, "%s%s", path, DAMAGED);
    if (n < 0 || n >= (int)sizeof aside)
        return neb_fail(NEB_ERR_LIMIT, "%s: the path is too long", path);
    neb_warn("%s is damaged and is treated as missing: renamed to %s", path, aside);
    return rename(path, aside) == 0 ? NEB_OK : neb_fail_errno("cannot rename %s", path);
}

enum neb_status intra_ckpt_take_latest_in(const struct neb_vault *vault, const char *dir,
                                          struct intra_ckpt **out) {
    struct dirent **names = NULL;
    int n;
    NEB_TRY(intra_names_list(dir, is_generation, &names, &n));
    enum neb_status st = NEB_ERR_NOT_FOUND, other = NEB_OK;
    for (int i = n - 1; i >= 0 && st != NEB_OK; i--) {
        char path[NEB_PATH_MAX];
        NEB_TRY_GOTO(neb_path(path, sizeof path, dir, names[i]->d_name), out);
        st = intra_ckpt_open_in(vault, path, true, out);
        if (is_damage(st)) {
            NEB_TRY_GOTO(put_aside(path), out);
            st = NEB_ERR_NOT_FOUND;
        } else if (st != NEB_OK) {
            other = st;
            if (i > 0)
                neb_warn("%s is not usable; trying the previous checkpoint", path);
        }
    }
    st = st == NEB_ERR_NOT_FOUND && other != NEB_OK ? other : st;
out:
    intra_names_free(names, n);
    return st;
}

enum neb_status intra_ckpt_any(const char *dir, bool *out) {
    struct dirent **names = NULL;
    int n;
    NEB_TRY(intra_names_list(dir, is_generation, &names, &n));
    *out = n > 0;
    intra_names_free(names, n);
    return NEB_OK;
}

static enum neb_status remove_but(const char *dir, int (*which)(const struct dirent *e), int keep) {
    struct dirent **names = NULL;
    int n;
    NEB_TRY(intra_names_list(dir, which, &names, &n));
    enum neb_status st = NEB_OK;
    for (int i = 0; i + keep < n && st == NEB_OK; i++) {
        char path[NEB_PATH_MAX];
        st = neb_path(path, sizeof path, dir, names[i]->d_name);
        if (st == NEB_OK)
            st = neb_fs_remove(path);
    }
    intra_names_free(names, n);
    return st;
}

enum neb_status intra_ckpt_prune(const struct neb_vault *vault, const char *dir, int keep) {
    NEB_TRY(remove_but(dir, is_generation, keep));
    NEB_TRY(remove_but(dir, is_leftover, 0));
    return intra_parts_prune(vault, dir);
}
