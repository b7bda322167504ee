// SPDX-License-Identifier: Apache-2.0
// The side that fetches a snapshot. Asks one peer after the other, keeps a window of requested
// chunks, and writes PATH.part with PATH.map beside it, so that a transfer can resume.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "agent/base/vault.h"
#include "inter/ledger/ledger.h"
#include "inter/service/snapshot_state.h"
#include "security/seal_chunks.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAP_EVERY = 64, // chunks between two writes of the map
};
#define TOTAL_MAX (1ull << 42)
static const neb_ns offer_patience = 10 * NEB_S, idle_patience = 100 * NEB_S;
// Patience with a requested chunk. At first one chunk is requested, with the time it takes at 64
// kbit/s. Later chunks get the time of the last ones and more: a repeated request would queue
// behind the chunk in flight. The window holds what arrives in some seconds.
static const neb_ns chunk_first = 30 * NEB_S, chunk_least = 10 * NEB_S, chunk_most = 240 * NEB_S;
static const neb_ns chunk_quick = 5 * NEB_S, chunk_slow = 10 * NEB_S;

void snapshot_fetch_end(struct fetch *f) {
    if (f->used && f->fd >= 0)
        close(f->fd);
    inter_bitmap_free(&f->got);
    sec_chunks_destroy(&f->seal);
    *f = (struct fetch){.fd = -1};
}

struct fetch *snapshot_fetch_find(const struct inter_snapshots *s,
                                  const uint8_t job[INTER_ID_BYTES]) {
    for (int i = 0; i < INTER_SNAPSHOT_JOBS; i++)
        if (s->fetches[i].used && !memcmp(s->fetches[i].job, job, INTER_ID_BYTES))
            return (struct fetch *)(uintptr_t)&s->fetches[i];
    return NULL;
}

enum neb_status inter_snapshots_fetch(struct inter_snapshots *s, const uint8_t job[INTER_ID_BYTES],
                                      const char *path, const uint32_t *peers, uint32_t n,
                                      bool header_only, neb_ns now) {
    struct fetch *f = NULL;
    if (snapshot_fetch_find(s, job))
        return NEB_OK;
    for (int i = 0; i < INTER_SNAPSHOT_JOBS && !f; i++)
        f = s->fetches[i].used ? NULL : &s->fetches[i];
    if (!f || !n)
        return neb_fail(NEB_ERR_LIMIT, "cannot fetch a snapshot: %s",
                        n ? "too many are in progress" : "no other member is reachable");
    *f = (struct fetch){
        .used = true, .header_only = header_only, .fd = -1, .since = now, .asked = UINT32_MAX};
    memcpy(f->job, job, sizeof f->job);
    f->n_peers = n < PEERS ? n : PEERS;
    memcpy(f->peers, peers, f->n_peers * sizeof *peers);
    if (snprintf(f->part, sizeof f->part, "%s.part", path) >= (int)sizeof f->part ||
        snprintf(f->map, sizeof f->map, "%s.map", path) >= (int)sizeof f->map) {
        snapshot_fetch_end(f);
        return neb_fail(NEB_ERR_LIMIT, "path too long: %s", path);
    }
    return inter_snapshots_tick(s, now);
}

bool inter_snapshots_progress(const struct inter_snapshots *s, const uint8_t job[INTER_ID_BYTES],
                              struct inter_snapshot_progress *out) {
    const struct fetch *f = snapshot_fetch_find(s, job);
    if (!f)
        return false;
    *out = (struct inter_snapshot_progress){.total = f->offered ? f->total : 0, .since = f->since};
    if (f->offered)
        out->bytes =
            f->got.set == f->got.n ? f->total : (uint64_t)f->got.set * INTER_SNAPSHOT_CHUNK;
    return true;
}

void snapshot_fetch_finish(struct inter_snapshots *s, struct fetch *f, enum neb_status st) {
    uint8_t job[INTER_ID_BYTES];
    char part[NEB_PATH_MAX];
    uint64_t header = f->header;
    bool one = !f->found && mset_count(f->gave) == 1;
    uint32_t giver = one ? f->peers[mset_lowest(f->gave)] : UINT32_MAX;
    memcpy(job, f->job, sizeof job);
    memcpy(part, f->part, sizeof part);
    snapshot_fetch_end(f);
    s->c.done(s->c.user, job, st, part, header, giver);
}

// The map beside the part: | id | total u64 | header u64 | bits |. The part is synced first, so the
// map never claims more than the disk holds.
static enum neb_status write_map(struct inter_snapshots *s, struct fetch *f) {
    if (fdatasync(f->fd) != 0)
        return neb_fail_errno("cannot write %s", f->part);
    neb_buf_clear(&s->out);
    neb_buf_add(&s->out, f->id, sizeof f->id);
    neb_buf_u64(&s->out, f->total);
    neb_buf_u64(&s->out, f->header);
    neb_buf_add(&s->out, f->got.bits, (f->got.n + 7) / 8);
    NEB_TRY(neb_buf_check(&s->out));
    f->unmapped = 0;
    return neb_fs_write(f->map, s->out.p, s->out.len, 0600);
}

// Takes over what an earlier transfer of the same snapshot left.
static void read_map(struct fetch *f) {
    struct neb_buf b = {0};
    uint8_t id[INTER_SHA_BYTES];
    if (!neb_fs_exists(f->map) || neb_fs_read(f->map, 1 << 24, &b) != NEB_OK) {
        neb_buf_free(&b);
        return;
    }
    struct neb_rd r = neb_rd_make(b.p, b.len);
    neb_rd_copy(&r, id, sizeof id);
    bool same = neb_rd_u64(&r) == f->total && neb_rd_u64(&r) == f->header && !r.bad &&
                !memcmp(id, f->id, sizeof id);
    size_t n = neb_rd_left(&r);
    const uint8_t *bits = neb_rd_view(&r, n);
    if (same && !r.bad && inter_bitmap_merge(&f->got, bits, n))
        neb_info("resumes a snapshot: %u of %u chunks are here", f->got.set, f->got.n);
    neb_buf_free(&b);
}

// The id of the snapshot that is here in part; zeros: none.
static void begun_id(const struct fetch *f, uint8_t id[INTER_SHA_BYTES]) {
    struct neb_buf b = {0};
    if (neb_fs_exists(f->map) && neb_fs_exists(f->part) &&
        neb_fs_read(f->map, 1 << 24, &b) == NEB_OK && b.len >= INTER_SHA_BYTES)
        memcpy(id, b.p, INTER_SHA_BYTES);
    neb_buf_free(&b);
}

static enum neb_status write_part(const struct fetch *f, const uint8_t *p, size_t n,
                                  uint64_t offset) {
    for (size_t at = 0; at < n;) {
        ssize_t w = pwrite(f->fd, p + at, n - at, (off_t)(offset + at));
        if (w < 0 && errno != EINTR)
            return neb_fail_errno("cannot write %s", f->part);
        at += w > 0 ? (size_t)w : 0;
    }
    return NEB_OK;
}

// True if the part was written as this run writes: sealed with its key, or in clear.
static bool part_goes_on(const struct inter_snapshots *s, struct fetch *f) {
    uint8_t front[SEC_CHUNKS_FRONT];
    bool whole = pread(f->fd, front, sizeof front, 0) == (ssize_t)sizeof front,
         sealed = whole && neb_is_sealed(front, sizeof front);
    if (!s->c.seal)
        return !sealed;
    return sealed && sec_chunks_open(s->c.seal, f->part, front, &f->seal) == NEB_OK &&
           sec_chunks_total(f->seal) == f->total;
}

// Bytes of the job's largest snapshot: header, θ and v.
static bool known(const struct inter_snapshots *s, const struct fetch *f) {
    return s->c.elements && s->c.elements(s->c.user, f->job) < TOTAL_MAX;
}
static uint64_t limit_of(const struct inter_snapshots *s, const struct fetch *f) {
    return known(s, f) ? f->header + 2 * sizeof(float) * s->c.elements(s->c.user, f->job)
                       : f->header;
}

// The ledger needs its reserve on the same disk: the agent ends when it cannot write the ledger.
static bool leaves_room(const struct fetch *f, uint64_t bytes) {
    return !neb_fault("snapshot.room") && neb_fs_fits(f->part, bytes + INTER_LEDGER_RESERVE);
}

static enum neb_status open_part(struct inter_snapshots *s, struct fetch *f) {
    f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f->fd < 0)
        return neb_fail_errno("cannot create %s", f->part);
    if (!f->got.set || !part_goes_on(s, f)) {
        sec_chunks_destroy(&f->seal);
        inter_bitmap_free(&f->got);
        NEB_TRY(inter_bitmap_init(
            &f->got, (uint32_t)((f->total + INTER_SNAPSHOT_CHUNK - 1) / INTER_SNAPSHOT_CHUNK)));
        if (ftruncate(f->fd, 0) != 0)
            return neb_fail_errno("cannot empty %s", f->part);
        if (s->c.seal) {
            NEB_TRY(sec_chunks_create(s->c.seal, f->job, INTER_SNAPSHOT_CHUNK, f->total, &f->seal));
            NEB_TRY(write_part(f, sec_chunks_front(f->seal), SEC_CHUNKS_FRONT, 0));
        }
    }
    if (f->total > limit_of(s, f)) // an unproven size reserves no disk: room is checked per chunk
        return NEB_OK;
    // Reserve the space now, so that a full disk fails now and not at the last chunk.
    uint64_t want = f->seal ? sec_chunks_at(f->seal, f->got.n) : f->total;
    struct stat info;
    uint64_t here = fstat(f->fd, &info) == 0 ? (uint64_t)info.st_blocks * 512 : 0;
    bool room = want <= here || leaves_room(f, want - here);
    int rc = room ? posix_fallocate(f->fd, 0, (off_t)want) : ENOSPC;
    if (rc)
        return neb_fail(rc == ENOSPC || rc == EFBIG ? NEB_ERR_NOSPC : NEB_ERR_IO,
                        "%s: no room for a snapshot of %llu bytes: %s", f->part,
                        (unsigned long long)f->total, strerror(rc));
    return NEB_OK;
}

// This peer gives nothing, or no more. The next peer is asked. It may have the same snapshot, so
// what is here stays.
static enum neb_status leave_peer(struct inter_snapshots *s, struct fetch *f) {
    if (f->fd >= 0) {
        NEB_TRY(write_map(s, f));
        close(f->fd);
        f->fd = -1;
    }
    sec_chunks_destroy(&f->seal);
    f->offered = false;
    f->at++;
    f->asked = UINT32_MAX;
    return NEB_OK;
}
static enum neb_status next_peer(struct inter_snapshots *s, struct fetch *f, neb_ns now) {
    NEB_TRY(leave_peer(s, f));
    return inter_snapshots_tick(s, now);
}

// Removes what was begun: a peer's claim alone must not keep the disk full or end the agent.
static enum neb_status give_up(struct inter_snapshots *s, struct fetch *f, enum neb_status st) {
    NEB_TRY(neb_fs_remove(f->map)); // before the bytes that it describes
    NEB_TRY(neb_fs_remove(f->part));
    snapshot_fetch_finish(s, f, st);
    return NEB_OK;
}

static uint32_t place_of(const struct fetch *f, uint32_t peer) {
    uint32_t i = 0;
    while (i < f->n_peers && f->peers[i] != peer)
        i++;
    return i;
}

enum neb_status snapshot_on_offer(struct inter_snapshots *s, neb_ns now, uint32_t peer,
                                  struct neb_rd *r, const uint8_t job[INTER_ID_BYTES]) {
    uint8_t id[INTER_SHA_BYTES];
    neb_rd_copy(r, id, sizeof id);
    uint64_t total = neb_rd_u64(r), header = neb_rd_u64(r);
    struct fetch *f = snapshot_fetch_find(s, job);
    uint32_t place = f ? place_of(f, peer) : 0;
    if (!neb_rd_done(r) || !f || place == f->n_peers)
        return NEB_OK;
    if (!total) // it has no snapshot, or no more
        return place == f->at ? next_peer(s, f, now) : NEB_OK;
    // A late answer is accepted too, but only one per peer. Otherwise one member's answers could
    // keep the answers of the others away.
    bool late = place != f->at;
    if (f->offered || (late && mset_has(f->answered, (int)place)) || header < 32 ||
        header > INTER_SNAPSHOT_HEADER_MAX || total < header || total > TOTAL_MAX)
        return NEB_OK;
    mset_add(&f->answered, (int)place);
    f->total = f->header_only ? header : total;
    f->header = header;
    if (!f->header_only && known(s, f) && total > limit_of(s, f)) {
        neb_warn(
            "a snapshot of %llu bytes was offered, more than the job's model can need; asks the "
            "next member",
            (unsigned long long)total);
        return late ? NEB_OK : next_peer(s, f, now);
    }
    f->at = f->asked = place;
    memcpy(f->id, id, sizeof id);
    uint64_t chunks = (f->total + INTER_SNAPSHOT_CHUNK - 1) / INTER_SNAPSHOT_CHUNK;
    inter_bitmap_free(&f->got);
    NEB_TRY(inter_bitmap_init(&f->got, (uint32_t)chunks));
    read_map(f);
    enum neb_status st = open_part(s, f);
    if (st == NEB_ERR_NOSPC)
        return give_up(s, f, st);
    NEB_TRY(st);
    NEB_TRY(write_map(s, f));
    f->found = f->got.set && (f->found || mset_empty(f->gave));
    if (!f->got.set)
        f->gave = mset_none();
    f->offered = true;
    f->window = 1;
    f->patience = chunk_first;
    f->n_flights = f->next = 0;
    f->moved = f->since = now;
    return inter_snapshots_tick(s, now);
}

static bool flying(const struct fetch *f, uint32_t chunk) {
    for (uint32_t i = 0; i < f->n_flights; i++)
        if (f->flights[i].chunk == chunk)
            return true;
    return false;
}

static enum neb_status ask_chunks(struct inter_snapshots *s, struct fetch *f, neb_ns now) {
    for (uint32_t scanned = 0; scanned < f->got.n && f->n_flights < f->window; scanned++) {
        uint32_t i = f->next;
        if (inter_bitmap_has(&f->got, i) || flying(f, i)) {
            f->next = (i + 1) % f->got.n;
            continue;
        }
        struct neb_buf *b = snapshot_begin(s, INTER_SNAPSHOT_GET, f->job);
        neb_buf_add(b, f->id, sizeof f->id);
        neb_buf_u32(b, i);
        enum neb_status st = snapshot_send(s, f->peers[f->at]);
        if (st == NEB_ERR_AGAIN)
            return NEB_OK;
        NEB_TRY(st);
        f->flights[f->n_flights++] = (struct flight){i, now};
        f->next = (i + 1) % f->got.n;
    }
    return NEB_OK;
}

static void took(struct fetch *f, neb_ns time) {
    neb_ns want = chunk_least + 4 * time;
    f->patience = want < chunk_most ? want : chunk_most;
    if (time < chunk_quick)
        f->window += f->window < WINDOW_MAX;
    else if (time > chunk_slow)
        f->window -= f->window > 1;
}

enum neb_status snapshot_on_data(struct inter_snapshots *s, neb_ns now, uint32_t peer,
                                 struct neb_rd *r, const uint8_t job[INTER_ID_BYTES]) {
    uint8_t id[INTER_SHA_BYTES], check[8], sha[INTER_SHA_BYTES];
    neb_rd_copy(r, id, sizeof id);
    uint64_t offset = neb_rd_u64(r);
    neb_rd_copy(r, check, sizeof check);
    size_t n = neb_rd_left(r);
    const uint8_t *p = neb_rd_view(r, n);
    struct fetch *f = snapshot_fetch_find(s, job);
    if (r->bad || !f || !f->offered || peer != f->peers[f->at] || memcmp(id, f->id, sizeof id) ||
        offset % INTER_SNAPSHOT_CHUNK || offset >= f->total)
        return NEB_OK; // from a transfer that was given up
    uint32_t i = (uint32_t)(offset / INTER_SNAPSHOT_CHUNK);
    neb_sha256(p, n, sha);
    // A holder does not know that only the header is wanted.
    size_t want = (size_t)snapshot_chunk_bytes(f->total, i);
    if ((f->header_only ? n < want : n != want) || memcmp(sha, check, sizeof check))
        return NEB_OK; // requested again later
    n = want;
    for (uint32_t k = 0; k < f->n_flights; k++)
        if (f->flights[k].chunk == i) {
            took(f, now - f->flights[k].at);
            f->flights[k] = f->flights[--f->n_flights];
        }
    f->moved = now;
    if (!inter_bitmap_set(&f->got, i))
        return NEB_OK;
    mset_add(&f->gave, (int)f->at);
    // No space was reserved for this snapshot.
    if (f->total > limit_of(s, f) && !leaves_room(f, n))
        return give_up(s, f,
                       neb_fail(NEB_ERR_NOSPC,
                                "%s: a snapshot would leave less than %d MiB free on the disk",
                                f->part, INTER_LEDGER_RESERVE >> 20));
    if (f->seal)
        sec_chunks_seal(f->seal, i, p, s->chunk);
    enum neb_status st =
        f->seal ? write_part(f, s->chunk, n + SEC_CHUNKS_EXTRA, sec_chunks_at(f->seal, i))
                : write_part(f, p, n, offset);
    if (st == NEB_ERR_NOSPC)
        return give_up(s, f, st);
    NEB_TRY(st);
    if (f->got.set == f->got.n) {
        NEB_TRY(write_map(s, f));
        NEB_TRY(neb_fs_remove(f->map));
        snapshot_fetch_finish(s, f, NEB_OK);
        return NEB_OK;
    }
    if (++f->unmapped >= MAP_EVERY)
        NEB_TRY(write_map(s, f));
    return ask_chunks(s, f, now);
}

enum neb_status snapshot_fetch_tick(struct inter_snapshots *s, struct fetch *f, neb_ns now) {
    for (; !f->offered; f->at++, f->asked = UINT32_MAX) {
        if (f->at >= f->n_peers) {
            snapshot_fetch_finish(s, f, NEB_ERR_NOT_FOUND);
            return NEB_OK;
        }
        if (f->asked == f->at && now - f->moved < offer_patience)
            return NEB_OK;
        if (f->asked == f->at)
            continue; // it does not answer
        uint8_t begun[INTER_SHA_BYTES] = {0};
        begun_id(f, begun);
        neb_buf_add(snapshot_begin(s, INTER_SNAPSHOT_ASK, f->job), begun, sizeof begun);
        enum neb_status st = snapshot_send(s, f->peers[f->at]);
        if (st != NEB_OK && st != NEB_ERR_AGAIN)
            return st;
        f->asked = f->at;
        f->moved = now;
        return NEB_OK;
    }
    uint32_t flew = f->n_flights;
    for (uint32_t k = 0; k < f->n_flights;) {
        if (now - f->flights[k].at < f->patience) {
            k++;
            continue;
        }
        f->flights[k] = f->flights[--f->n_flights];
        f->window = f->window > 1 ? f->window / 2 : 1;
    }
    if (f->n_flights < flew)
        f->patience = 2 * f->patience < chunk_most ? 2 * f->patience : chunk_most;
    if (now - f->moved > idle_patience) {
        NEB_TRY(leave_peer(s, f));
        return snapshot_fetch_tick(s, f, now);
    }
    return ask_chunks(s, f, now);
}
