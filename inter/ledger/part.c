// SPDX-License-Identifier: Apache-2.0
// Blobs that arrive in chunks, in any order, over several runs of the agent.
//
//     in clear:  .part: chunk i at i * chunk_bytes                finish: SHA-256, rename to .blob
//     sealed:    .part: sealed chunks (security/seal_chunks.h)    finish: chunk by chunk through
//                                                                 SHA-256 into a sealed .blob
//
// Beside both, .map tells which chunks have arrived. It is only a hint: the digest of the complete
// blob decides in the end.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "inter/ledger/db.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAP_EVERY = 16, // chunks between two writes of an arriving blob's bitmap
    FILES_MAX = 64, // files kept open
};

static struct inter_part *find_part(struct inter_ledger *l, const struct inter_key *k) {
    for (size_t i = 0; i < l->n_parts; i++)
        if (l->parts[i].open && inter_key_equal(&l->parts[i].key, k))
            return &l->parts[i];
    return NULL;
}

void inter_part_close(struct inter_part *p) {
    if (p->open && p->fd >= 0)
        close(p->fd);
    inter_bitmap_free(&p->got);
    sec_chunks_destroy(&p->seal);
    *p = (struct inter_part){0};
}

void inter_part_drop(struct inter_ledger *l, const struct inter_key *k) {
    struct inter_part *p = find_part(l, k);
    if (!p)
        return;
    l->used -= p->bytes;
    inter_part_close(p);
}

// ---- bytes --------------------------------------------------------------------------------------

static enum neb_status write_at(const struct inter_ledger *l, const struct inter_part *p,
                                const void *data, size_t n, uint64_t offset) {
    const uint8_t *at = data;
    for (size_t done = 0; done < n;) {
        ssize_t k = neb_fault("ledger.blob")
                        ? (errno = ENOSPC, -1)
                        : pwrite(p->fd, at + done, n - done, (off_t)(offset + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return neb_fail_errno("ledger %s: cannot write an arriving update", l->dir);
        done += (size_t)k;
    }
    return NEB_OK;
}

// False: the file ends before these bytes, or cannot be read.
static bool read_at(const struct inter_part *p, void *data, size_t n, uint64_t offset) {
    for (size_t done = 0; done < n;) {
        ssize_t k = pread(p->fd, (uint8_t *)data + done, n - done, (off_t)(offset + done));
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        done += (size_t)k;
    }
    return true;
}

// ---- open files ---------------------------------------------------------------------------------

static enum neb_status sync_part(const struct inter_ledger *l, const struct inter_part *p) {
    if (neb_fault("ledger.sync") ? (errno = EIO, true) : fsync(p->fd) != 0)
        return neb_fail_errno("ledger %s: cannot sync an arriving update", l->dir);
    return NEB_OK;
}

static enum neb_status save_map(struct inter_ledger *l, struct inter_part *p) {
    char map[NEB_PATH_MAX];
    NEB_TRY(inter_blob_path(l, &p->key, ".map", map, sizeof map));
    NEB_TRY(sync_part(l, p)); // first the bytes, then the map that names them
    NEB_TRY(neb_fs_write(map, p->got.bits, (p->got.n + 7) / 8, 0600));
    p->unsaved = 0;
    return NEB_OK;
}

// If too many files are open, closes the one unused for longest. It syncs the file first, because a
// later opening would not report a write error.
static enum neb_status make_room_for_file(struct inter_ledger *l) {
    struct inter_part *oldest = NULL;
    size_t files = 0;
    for (size_t i = 0; i < l->n_parts; i++) {
        struct inter_part *p = &l->parts[i];
        if (!p->open || p->fd < 0)
            continue;
        files++;
        oldest = oldest && oldest->touched < p->touched ? oldest : p;
    }
    if (files < FILES_MAX)
        return NEB_OK;
    if (oldest->unsaved)
        NEB_TRY(save_map(l, oldest));
    close(oldest->fd);
    oldest->fd = -1;
    return NEB_OK;
}

// Opens p's file. It stays open until another one is used.
static enum neb_status use_file(struct inter_ledger *l, struct inter_part *p, const char *path,
                                int flags) {
    char own[NEB_PATH_MAX];
    p->touched = ++l->touches;
    if (p->fd >= 0)
        return NEB_OK;
    NEB_TRY(make_room_for_file(l));
    if (!path)
        NEB_TRY(inter_blob_path(l, &p->key, ".part", own, sizeof own));
    path = path ? path : own;
    p->fd = neb_fault("ledger.open") ? (errno = ENOSPC, -1)
                                     : open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    return p->fd < 0 ? neb_fail_errno("cannot open %s", path) : NEB_OK;
}

// ---- the file -----------------------------------------------------------------------------------

// True if this run can continue what an earlier run left: both in clear, or sealed in the same way.
static bool goes_on(struct inter_ledger *l, struct inter_part *p, const char *path) {
    uint8_t front[SEC_CHUNKS_FRONT];
    bool whole = read_at(p, front, sizeof front, 0),
         sealed = whole && neb_is_sealed(front, sizeof front);
    if (!l->seal)
        return !sealed;
    if (!sealed || sec_chunks_open(l->seal, path, front, &p->seal) != NEB_OK)
        return false;
    if (sec_chunks_bytes(p->seal) == p->chunk_bytes && sec_chunks_total(p->seal) == p->bytes)
        return true;
    sec_chunks_destroy(&p->seal);
    return false;
}

static enum neb_status begin_file(struct inter_ledger *l, struct inter_part *p) {
    if (neb_fault("ledger.truncate") ? (errno = EIO, true) : ftruncate(p->fd, 0) != 0)
        return neb_fail_errno("ledger %s: cannot empty an arriving update", l->dir);
    if (!l->seal)
        return NEB_OK;
    if (!p->seal)
        NEB_TRY(sec_chunks_create(l->seal, p->key.job, p->chunk_bytes, p->bytes, &p->seal));
    return write_at(l, p, sec_chunks_front(p->seal), SEC_CHUNKS_FRONT, 0);
}

static enum neb_status open_file(struct inter_ledger *l, struct inter_part *p, const char *path,
                                 const char *map, struct inter_bitmap *got) {
    struct neb_buf b = {0};
    if (!goes_on(l, p, path)) {
        NEB_TRY(inter_blob_remove(map)); // first the map, then the bytes
        NEB_TRY(begin_file(l, p));
    }
    if (p->seal)
        NEB_TRY(neb_buf_reserve(&l->sealed, (size_t)p->chunk_bytes + SEC_CHUNKS_EXTRA));
    if (neb_fs_exists(map) && neb_fs_read(map, INTER_CHUNKS_MAX, &b) == NEB_OK &&
        inter_bitmap_merge(&p->got, b.p, b.len))
        (void)inter_bitmap_merge(got, b.p, b.len);
    neb_buf_free(&b);
    return NEB_OK;
}

// A place for one more arriving blob; NULL: no place or no memory is left.
static struct inter_part *free_place(struct inter_ledger *l) {
    for (size_t i = 0; i < l->n_parts; i++)
        if (!l->parts[i].open)
            return &l->parts[i];
    size_t n = l->n_parts ? 2 * l->n_parts : 64;
    struct inter_part *all =
        l->n_parts < INTER_LEDGER_ARRIVING_MAX ? realloc(l->parts, n * sizeof *all) : NULL;
    if (!all)
        return NULL;
    memset(all + l->n_parts, 0, (n - l->n_parts) * sizeof *all);
    l->parts = all;
    struct inter_part *p = &all[l->n_parts];
    l->n_parts = n;
    return p;
}

// Removes this member's other arriving blobs of the fragment: an attempt that this one replaces, or
// an update that came too late for its round.
static enum neb_status discard_former(struct inter_ledger *l, const struct inter_key *k,
                                      bool again) {
    for (size_t i = 0; i < l->n_parts; i++) {
        const struct inter_part *p = &l->parts[i];
        if (!p->open || p->key.fragment != k->fragment || p->key.member != k->member ||
            p->again != again || memcmp(p->key.job, k->job, sizeof k->job))
            continue;
        struct inter_key former = p->key;
        NEB_TRY(inter_blob_discard(l, &former));
    }
    return NEB_OK;
}

// Finds whether an update's round is committed: then its blob was here before.
static enum neb_status comes_again(struct inter_ledger *l, const struct inter_key *k, bool *out) {
    struct inter_chain c = {0};
    enum neb_status st = inter_ledger_chain(l, k->job, k->fragment, &c);
    *out = st == NEB_OK && k->round < c.next;
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

enum neb_status inter_ledger_part_open(struct inter_ledger *l, const struct inter_manifest *m,
                                       struct inter_bitmap *got) {
    bool again;
    char path[NEB_PATH_MAX], map[NEB_PATH_MAX];
    struct inter_part *p = find_part(l, &m->key);
    NEB_TRY(comes_again(l, &m->key, &again));
    if (p) {
        p->again = again;
        (void)inter_bitmap_merge(got, p->got.bits, (p->got.n + 7) / 8);
        return NEB_OK;
    }
    NEB_TRY(discard_former(l, &m->key, again));
    if (!(p = free_place(l)))
        return neb_fail(NEB_ERR_LIMIT,
                        "ledger %s: %zu blobs arrive already, and there is no room for another",
                        l->dir, l->n_parts);
    NEB_TRY(inter_blob_make_room(l, m->bytes));
    // a sealed blob is copied when all is here
    if (!inter_blob_fits(l, (l->seal ? 2 : 1) * (uint64_t)m->bytes, INTER_LEDGER_RESERVE))
        return NEB_ERR_NOSPC;
    NEB_TRY(inter_blob_path(l, &m->key, ".part", path, sizeof path));
    NEB_TRY(inter_blob_path(l, &m->key, ".map", map, sizeof map));
    *p = (struct inter_part){.open = true,
                             .again = again,
                             .key = m->key,
                             .fd = -1,
                             .bytes = m->bytes,
                             .chunk_bytes = m->chunk_bytes};
    enum neb_status st = inter_bitmap_init(&p->got, inter_chunks(m->bytes, m->chunk_bytes));
    if (st == NEB_OK)
        st = use_file(l, p, path, O_CREAT);
    if (st == NEB_OK)
        st = open_file(l, p, path, map, got);
    if (st != NEB_OK) {
        inter_part_close(p);
        return st;
    }
    l->used += m->bytes;
    return NEB_OK;
}

enum neb_status inter_ledger_part_discard(struct inter_ledger *l, const struct inter_key *key) {
    return inter_ledger_has_blob(l, key) ? NEB_OK : inter_blob_discard(l, key);
}

void inter_ledger_parts_close(struct inter_ledger *l, const uint8_t job[INTER_ID_BYTES]) {
    for (size_t i = 0; i < l->n_parts; i++) {
        struct inter_part *p = &l->parts[i];
        if (!p->open || memcmp(p->key.job, job, INTER_ID_BYTES))
            continue;
        if (p->unsaved && (use_file(l, p, NULL, 0) != NEB_OK || save_map(l, p) != NEB_OK))
            neb_warn("ledger %s: a part of an arriving update is lost and must be sent again",
                     l->dir);
        l->used -= p->bytes;
        inter_part_close(p);
    }
}

enum neb_status inter_ledger_part_write(struct inter_ledger *l, const struct inter_key *key,
                                        uint64_t offset, const void *data, size_t n) {
    struct inter_part *p = find_part(l, key);
    if (!p)
        return NEB_ERR_NOT_FOUND;
    NEB_ASSERT(offset % p->chunk_bytes == 0 && offset + n <= p->bytes);
    // The disk may fill while blobs arrive: several were opened together, or a worker writes. The
    // reserve here is smaller than at opening. Otherwise the last chunk of a blob that just fitted
    // would be refused each time, because the file system needs some space too.
    if (!inter_blob_fits(l, n, INTER_LEDGER_RESERVE_OWN))
        return NEB_ERR_NOSPC;
    NEB_TRY(use_file(l, p, NULL, 0));
    uint32_t i = (uint32_t)(offset / p->chunk_bytes);
    if (p->seal) {
        NEB_ASSERT(n == sec_chunks_len(p->seal, i));
        sec_chunks_seal(p->seal, i, data, l->sealed.p);
        NEB_TRY(write_at(l, p, l->sealed.p, n + SEC_CHUNKS_EXTRA, sec_chunks_at(p->seal, i)));
    } else {
        NEB_TRY(write_at(l, p, data, n, offset));
    }
    (void)inter_bitmap_set(&p->got, i);
    return ++p->unsaved >= MAP_EVERY ? save_map(l, p) : NEB_OK;
}

bool inter_ledger_part_has(struct inter_ledger *l, const struct inter_key *key, uint32_t i) {
    const struct inter_part *p = find_part(l, key);
    return p && i < p->got.n && inter_bitmap_has(&p->got, i);
}

enum neb_status inter_ledger_part_read(struct inter_ledger *l, const struct inter_key *key,
                                       uint32_t i, uint8_t *out) {
    struct inter_part *p = find_part(l, key);
    NEB_ASSERT(p && i < p->got.n);
    size_t n = inter_chunk_length(p->bytes, p->chunk_bytes, i);
    NEB_TRY(use_file(l, p, NULL, 0));
    bool good = p->seal
                    ? read_at(p, l->sealed.p, n + SEC_CHUNKS_EXTRA, sec_chunks_at(p->seal, i)) &&
                          sec_chunks_unseal(p->seal, i, l->sealed.p, out) == NEB_OK
                    : read_at(p, out, n, (uint64_t)i * p->chunk_bytes);
    return good ? NEB_OK
                : neb_fail(NEB_ERR_CORRUPT, "ledger %s: a chunk that arrived cannot be read back",
                           l->dir);
}

void inter_ledger_part_hashed(struct inter_ledger *l, const struct inter_manifest *m) {
    struct inter_part *p = find_part(l, &m->key);
    if (p)
        p->hashed = true;
}

// ---- completing ---------------------------------------------------------------------------------

static enum neb_status empty_part(struct inter_ledger *l, struct inter_part *p, const char *map) {
    memset(p->got.bits, 0, (p->got.n + 7) / 8);
    p->got.set = 0;
    p->hashed = false;
    NEB_TRY(inter_blob_remove(map)); // first the map, then the bytes
    return begin_file(l, p);
}

static enum neb_status finish_clear(const struct inter_part *p, const struct inter_manifest *m,
                                    const char *part, const char *path, bool *good) {
    struct neb_map bytes;
    uint8_t sha[INTER_SHA_BYTES];
    NEB_TRY(neb_map_open(part, &bytes));
    if (!p->hashed)
        neb_sha256(bytes.p, bytes.len, sha);
    *good = bytes.len == m->bytes && (p->hashed || !memcmp(sha, m->sha256, sizeof sha));
    neb_map_close(&bytes);
    if (*good && (neb_fault("ledger.rename") ? (errno = EIO, true) : rename(part, path) != 0))
        return neb_fail_errno("cannot rename %s", part);
    return NEB_OK;
}

// Only one chunk is in memory in clear.
static enum neb_status finish_sealed(struct inter_ledger *l, struct inter_part *p,
                                     const struct inter_manifest *m, const char *path, bool *good) {
    enum neb_status st = NEB_OK;
    struct neb_fs_writer *w = NULL;
    struct neb_sha256 *sha = NULL;
    uint8_t digest[INTER_SHA_BYTES], *clear = malloc(p->chunk_bytes);
    if (!clear)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for an update that has arrived");
    NEB_TRY_GOTO(neb_sha256_create(&sha), out);
    NEB_TRY_GOTO(neb_fs_writer_open(path, 0600, &w), out);
    NEB_TRY_GOTO(sec_vault_seal_writer(l->seal, m->key.job, w), out);
    for (uint32_t i = 0; i < inter_chunks(m->bytes, m->chunk_bytes); i++) {
        size_t n = sec_chunks_len(p->seal, i);
        if (!read_at(p, l->sealed.p, n + SEC_CHUNKS_EXTRA, sec_chunks_at(p->seal, i)) ||
            sec_chunks_unseal(p->seal, i, l->sealed.p, clear) != NEB_OK) {
            // sealed here, so the sender is not to blame
            st =
                neb_fail(NEB_ERR_IO, "ledger %s: a chunk that arrived cannot be read back", l->dir);
            goto out;
        }
        if (!p->hashed) // its seal authenticates each chunk
            neb_sha256_add(sha, clear, n);
        NEB_TRY_GOTO(neb_fs_writer_add(w, clear, n), out);
    }
    neb_sha256_finish(sha, digest);
    *good = p->hashed || !memcmp(digest, m->sha256, sizeof digest);
    if (*good)
        st = neb_fs_writer_commit(w);
out:
    neb_fs_writer_destroy(&w);
    neb_sha256_destroy(&sha);
    free(clear);
    return st;
}

enum neb_status inter_ledger_part_finish(struct inter_ledger *l, const struct inter_manifest *m) {
    char path[NEB_PATH_MAX], part[NEB_PATH_MAX], map[NEB_PATH_MAX];
    struct inter_part *p = find_part(l, &m->key);
    bool good;
    if (!p) // the call is repeated after a failure that followed the rename
        return inter_ledger_has_blob(l, &m->key) ? neb_fs_sync_dir(l->blobs) : NEB_ERR_NOT_FOUND;
    NEB_TRY(use_file(l, p, NULL, 0));
    NEB_TRY(inter_blob_path(l, &m->key, ".blob", path, sizeof path));
    NEB_TRY(inter_blob_path(l, &m->key, ".part", part, sizeof part));
    NEB_TRY(inter_blob_path(l, &m->key, ".map", map, sizeof map));
    NEB_TRY(sync_part(l, p));
    NEB_TRY(p->seal ? finish_sealed(l, p, m, path, &good) : finish_clear(p, m, part, path, &good));
    if (!good) {
        NEB_TRY(empty_part(l, p, map));
        return neb_fail(
            NEB_ERR_CORRUPT,
            "an update of member %u for round %u arrived damaged; it will be sent again",
            m->key.member, m->key.round);
    }
    l->used += inter_blob_bytes(path) - p->bytes; // the same, or a little more if sealed
    bool sealed = p->seal;
    inter_part_close(p);
    NEB_TRY(neb_fs_sync_dir(l->blobs));
    if (sealed)
        NEB_TRY(inter_blob_remove(part));
    return inter_blob_remove(map);
}
