// SPDX-License-Identifier: Apache-2.0
// Snapshots: how a member that is too far behind, or has lost its disk, gets the state that the others' blobs no longer give.
//
//     joiner                                    holder
//       ── ASK job, id begun ───────────────►     pins its newest checkpoint (checked first, which takes its time), unless one is here
//       ◄──────────── OFFER id, bytes, header ──
//       ── GET chunk ───────────────────────►     …as many at once as come back in time
//       ◄─────────────── DATA chunk (bulk) ──     written beside, fsynced, handed over whole
//
// The snapshot, as bytes: header (per fragment: its round, what (θ, v) must digest to, and the commit record that it ends with,
// signed by a majority), θ, v (fp32, little-endian). Its id is the SHA-256 of the header, so the same id means the same bytes,
// whoever gives them: a transfer that broke off goes on where it was, after a restart of either side too. A state is for the clusters of
// its job: another member that asks hears what it would hear where there is none, and what it offers is not looked at. Nothing here believes
// the holder: the records prove themselves. But what (θ, v) must digest to is the holder's word, so whoever takes a state asks the others
// first: their signed manifests and records of the round say the same, or it is dropped (agent/daemon/snapshot_proof.h).
//
// One thread. Memory: the header, one bit a chunk, one chunk.
#ifndef INTER_SNAPSHOT_H
#define INTER_SNAPSHOT_H
#include "agent/base/clock.h"
#include "inter/record/types.h"

enum {
    INTER_SNAPSHOT_CHUNK = 256 << 10,
    INTER_SNAPSHOT_HEADER_MAX = 1 << 20,
    INTER_SNAPSHOT_JOBS = 8,
};

struct inter_snapshot_part {  // one fragment
    uint32_t round;           // open: all before it are in θ and v
    uint32_t version;         // commits in them
    uint64_t digest[2];       // of (version, θ, v)
    struct inter_record last; // of round - 1; unless round is 0
};
struct inter_snapshot {
    uint8_t job[INTER_ID_BYTES];
    uint64_t elements; // of θ, and of v
    uint32_t fragments;
    struct inter_snapshot_part parts[INTER_FRAGMENTS_MAX];
};
void inter_snapshot_put(struct neb_buf *out, const struct inter_snapshot *s);
// false: malformed
NEB_MUST_CHECK bool inter_snapshot_get(struct neb_rd *r, struct inter_snapshot *s);

struct inter_snapshot_source { // what a holder gives: header, then the two ranges
    struct neb_buf header;     // freed by close
    uint64_t len[2];           // of the ranges
    // Bytes of range i. An error (logged): the source is given up.
    enum neb_status (*read)(void *pin, int i, uint64_t at, void *dst, size_t n);
    void *pin; // whatever keeps the ranges valid
};

struct sec_seal_key; // security/seal_key.h
struct inter_snapshots_config {
    void *user;
    // borrowed; PATH.part is a file of chunks sealed for the job. NULL: in clear
    const struct sec_seal_key *seal;
    // The newest state of a job that can be given. NEB_ERR_NOT_FOUND (not logged): none. NEB_ERR_AGAIN: it is being looked for; asked
    // again at the next tick, and whoever wants it gets its answer then.
    enum neb_status (*open)(void *user, const uint8_t job[INTER_ID_BYTES],
                            struct inter_snapshot_source *out);
    void (*close)(void *user, struct inter_snapshot_source *s);
    // NEB_OK: PATH.part is whole and on disk, header_bytes of it are the header. NEB_ERR_NOT_FOUND: nobody has one. giver: the peer that all
    // of it came from; UINT32_MAX: it came from several, or some of it was here before this fetch.
    void (*done)(void *user, const uint8_t job[INTER_ID_BYTES], enum neb_status st,
                 const char *part, uint64_t header_bytes, uint32_t giver);
    // NEB_ERR_AGAIN: later.
    enum neb_status (*send)(void *user, uint32_t peer, bool bulk, const void *head, size_t n,
                            const void *body, size_t m);
    // Parameters of the job's model; UINT64_MAX: not known yet. Nothing larger is taken. NULL: of no job they are.
    uint64_t (*elements)(void *user, const uint8_t job[INTER_ID_BYTES]);
    // Whether `peer` is a member and one of the job's clusters. Nobody else is given anything, or believed.
    bool (*takes_part)(void *user, const uint8_t job[INTER_ID_BYTES], uint32_t peer);
    // One that is not has said something about the job: it was dropped.
    void (*refused)(void *user, const uint8_t job[INTER_ID_BYTES], uint32_t peer);
};

struct inter_snapshots;
// c is copied, what it points to borrowed. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_snapshots_create(const struct inter_snapshots_config *c,
                                                      struct inter_snapshots **out);
void inter_snapshots_destroy(struct inter_snapshots **s);
// Fetches from the first of `peers` that gives one, into PATH.part (what is there of the same snapshot is kept). No effect while
// one is on its way. header_only: for a witness, which holds no parameters. NEB_ERR_LIMIT: no peers, or too many jobs at once.
NEB_MUST_CHECK enum neb_status inter_snapshots_fetch(struct inter_snapshots *s,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     const char *path, const uint32_t *peers,
                                                     uint32_t n, bool header_only, neb_ns now);
struct inter_snapshot_progress {
    uint64_t bytes, total; // total 0: nothing offered yet
    neb_ns since;
};
// False: none is on its way.
bool inter_snapshots_progress(const struct inter_snapshots *s, const uint8_t job[INTER_ID_BYTES],
                              struct inter_snapshot_progress *out);
// A member that is here catches up with the job's rounds, with a snapshot or without.
void inter_snapshots_catching_up(struct inter_snapshots *s, neb_ns now,
                                 const uint8_t job[INTER_ID_BYTES]);
// Whether somebody does, or takes a state of the job from this member, or did until just now: the updates since are wanted next, and
// shall stay.
bool inter_snapshots_hold(const struct inter_snapshots *s, neb_ns now,
                          const uint8_t job[INTER_ID_BYTES]);
// One message, with its type.
enum {
    INTER_SNAPSHOT_ASK = 40,
    INTER_SNAPSHOT_OFFER,
    INTER_SNAPSHOT_GET,
    INTER_SNAPSHOT_DATA,
};
static inline bool inter_snapshot_is(uint8_t type) {
    return type >= INTER_SNAPSHOT_ASK && type <= INTER_SNAPSHOT_DATA;
}
// An error is one of this member's disk.
NEB_MUST_CHECK enum neb_status inter_snapshots_message(struct inter_snapshots *s, neb_ns now,
                                                       uint32_t peer, bool bulk, const uint8_t *p,
                                                       size_t n);
// Every 200 ms or so: repeats what was lost, goes on to the next peer. Errors as above.
NEB_MUST_CHECK enum neb_status inter_snapshots_tick(struct inter_snapshots *s, neb_ns now);

#endif
