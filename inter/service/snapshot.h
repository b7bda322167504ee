// SPDX-License-Identifier: Apache-2.0
// Snapshots: the state of a job for a member that is too far behind or has lost its disk, when the
// other members no longer have the updates that it needs.
//
//     joiner                                    holder
//       ── ASK job, id begun ───────────────►     pins its newest checkpoint, after a check that
//                                                 takes time, unless a snapshot is pinned already
//       ◄──────────── OFFER id, bytes, header ──
//       ── GET chunk ───────────────────────►     …as many at once as come back in time
//       ◄─────────────── DATA chunk (bulk) ──     written to PATH.part, synced, handed over whole
//
// A snapshot is bytes: header, θ, v (fp32, little-endian). The header holds, per fragment, its
// round, the digest of (θ, v), and the last commit record, which a majority signed. The id is the
// SHA-256 of the header, so snapshots with the same id have the same bytes, whoever gives them. A
// transfer that breaks off resumes, also after a restart of either side.
//
// Only the clusters of a job get its state. Another member that asks gets the answer "none", and
// its own offers are ignored. The holder is not trusted. The records prove themselves. The digest
// of (θ, v) is only the holder's claim, so the joiner compares it with the other members' signed
// manifests and records of the round, and drops the state if they differ
// (agent/daemon/judge.h).
//
// Threads: one. Memory: the header, one bit per chunk, one chunk.
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
    uint32_t round;           // the open round: all earlier ones are in θ and v
    uint32_t version;         // commits in θ and v
    uint64_t digest[2];       // of (version, θ, v)
    struct inter_record last; // of round - 1; not used if round is 0
};
struct inter_snapshot {
    uint8_t job[INTER_ID_BYTES];
    uint64_t elements; // of θ, and of v
    uint32_t fragments;
    struct inter_snapshot_part parts[INTER_FRAGMENTS_MAX];
};
void inter_snapshot_put(struct neb_buf *out, const struct inter_snapshot *s);
// False: malformed.
NEB_MUST_CHECK bool inter_snapshot_get(struct neb_rd *r, struct inter_snapshot *s);

struct inter_snapshot_source { // the bytes of a snapshot: header, then two ranges
    struct neb_buf header;     // `close` frees it
    uint64_t len[2];           // of the ranges
    // Reads bytes of range i. After an error (logged) the source is closed.
    enum neb_status (*read)(void *pin, int i, uint64_t at, void *dst, size_t n);
    void *pin; // keeps the ranges valid
};

struct sec_seal_key; // security/seal_key.h
struct inter_snapshots_config {
    void *user;
    // Borrowed. PATH.part is sealed in chunks for the job; NULL: in clear.
    const struct sec_seal_key *seal;
    // Opens the newest state of a job. NEB_ERR_NOT_FOUND (not logged): there is none.
    // NEB_ERR_AGAIN: it is being prepared; the next ticks ask again, and the members that wait get
    // their answer then.
    enum neb_status (*open)(void *user, const uint8_t job[INTER_ID_BYTES],
                            struct inter_snapshot_source *out);
    void (*close)(void *user, struct inter_snapshot_source *s);
    // A fetch has ended. NEB_OK: PATH.part is complete and on disk, and begins with header_bytes
    // bytes of header. NEB_ERR_NOT_FOUND: no peer has a snapshot. giver: the peer that gave all of
    // it; UINT32_MAX: it came from several, or a part was here before this fetch.
    void (*done)(void *user, const uint8_t job[INTER_ID_BYTES], enum neb_status st,
                 const char *part, uint64_t header_bytes, uint32_t giver);
    // NEB_ERR_AGAIN: retry later.
    enum neb_status (*send)(void *user, uint32_t peer, bool bulk, const void *head, size_t n,
                            const void *body, size_t m);
    // Parameters of the job's model; UINT64_MAX: not known yet. Larger snapshots are refused. NULL:
    // not known for any job.
    uint64_t (*elements)(void *user, const uint8_t job[INTER_ID_BYTES]);
    // True if `peer` is a member and one of the job's clusters. Others get nothing and are not
    // believed.
    bool (*takes_part)(void *user, const uint8_t job[INTER_ID_BYTES], uint32_t peer);
    // A peer that does not take part sent a message about the job. It was dropped.
    void (*refused)(void *user, const uint8_t job[INTER_ID_BYTES], uint32_t peer);
};

struct inter_snapshots;
// c is copied; what it points to is borrowed. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_snapshots_create(const struct inter_snapshots_config *c,
                                                      struct inter_snapshots **out);
void inter_snapshots_destroy(struct inter_snapshots **s);
// Fetches a snapshot from the first of `peers` that gives one, into PATH.part. Chunks of the same
// snapshot that are there are kept. No effect while a fetch of the job is in progress. header_only:
// for a witness, which holds no parameters. NEB_ERR_LIMIT: no peers, or too many jobs at once.
NEB_MUST_CHECK enum neb_status inter_snapshots_fetch(struct inter_snapshots *s,
                                                     const uint8_t job[INTER_ID_BYTES],
                                                     const char *path, const uint32_t *peers,
                                                     uint32_t n, bool header_only, neb_ns now);
struct inter_snapshot_progress {
    uint64_t bytes, total; // total 0: no offer yet
    neb_ns since;
};
// False: no fetch is in progress.
bool inter_snapshots_progress(const struct inter_snapshots *s, const uint8_t job[INTER_ID_BYTES],
                              struct inter_snapshot_progress *out);
// A connected member catches up with the job's rounds, with a snapshot or without.
void inter_snapshots_catching_up(struct inter_snapshots *s, neb_ns now,
                                 const uint8_t job[INTER_ID_BYTES]);
// True if a member catches up or takes a state of the job from this member, or did until just now.
// The updates since then must stay, because that member needs them next.
bool inter_snapshots_hold(const struct inter_snapshots *s, neb_ns now,
                          const uint8_t job[INTER_ID_BYTES]);
// Types of messages.
enum {
    INTER_SNAPSHOT_ASK = 40,
    INTER_SNAPSHOT_OFFER,
    INTER_SNAPSHOT_GET,
    INTER_SNAPSHOT_DATA,
};
static inline bool inter_snapshot_is(uint8_t type) {
    return type >= INTER_SNAPSHOT_ASK && type <= INTER_SNAPSHOT_DATA;
}
// p: one message with its type. Errors are those of this member's disk.
NEB_MUST_CHECK enum neb_status inter_snapshots_message(struct inter_snapshots *s, neb_ns now,
                                                       uint32_t peer, bool bulk, const uint8_t *p,
                                                       size_t n);
// Call about every 200 ms. Repeats lost requests and moves on to the next peer. Errors as above.
NEB_MUST_CHECK enum neb_status inter_snapshots_tick(struct inter_snapshots *s, neb_ns now);

#endif
