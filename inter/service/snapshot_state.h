// SPDX-License-Identifier: Apache-2.0
// Shared by snapshot.c (create, messages, ticks), snapshot_fetch.c and snapshot_give.c. No other
// file includes it.
#ifndef INTER_SNAPSHOT_STATE_H
#define INTER_SNAPSHOT_STATE_H
#include "agent/base/fs.h"
#include "inter/round/transfer.h"
#include "inter/service/snapshot.h"

enum {
    PEERS = NEB_MEMBERS_MAX,
    WINDOW_MAX = 64,            // chunks requested at once: 16 MiB
    SHARE_MAX = 2 * WINDOW_MAX, // chunks that one peer may wait for: of two jobs
    QUEUE_MAX = PEERS * SHARE_MAX,
};

struct flight { // a requested chunk
    uint32_t chunk;
    neb_ns at;
};
struct fetch { // the snapshot of one job that this member fetches
    bool used, offered, header_only;
    uint8_t job[INTER_ID_BYTES], id[INTER_SHA_BYTES];
    char part[NEB_PATH_MAX], map[NEB_PATH_MAX];
    uint32_t peers[PEERS], n_peers;
    uint32_t at, asked; // index in peers: fetched from; asked last, UINT32_MAX: none
    // Sets of indices in peers: those whose offer was accepted once; those that sent chunks of the
    // snapshot.
    struct member_set answered, gave;
    bool found;             // some chunks were here before this fetch
    uint64_t total, header; // bytes
    struct inter_bitmap got;
    uint32_t next, window, n_flights;
    uint32_t unmapped; // chunks since the map was written
    struct flight flights[WINDOW_MAX];
    neb_ns patience;         // with a requested chunk
    int fd;                  // of part
    struct sec_chunks *seal; // NULL: in clear
    neb_ns since, moved; // begin of the fetch, or its offer; last chunk, or last request to a peer
};
struct given { // a state that others may take
    bool used;
    uint8_t job[INTER_ID_BYTES], id[INTER_SHA_BYTES];
    struct inter_snapshot_source source;
    uint64_t total;
    neb_ns opened, taken; // taken: last chunk sent; 0: none yet
    uint32_t taker;       // peer that got the last chunk that was sent
    bool whole;           // the taker got the end of the state
};
struct held { // how long updates since a given state of the job must stay
    uint8_t job[INTER_ID_BYTES];
    neb_ns from, until; // 0: none
};
struct asker { // a peer that waits until a state is open
    neb_ns at;
    uint32_t peer;
    uint8_t job[INTER_ID_BYTES], begun[INTER_SHA_BYTES];
};
struct wanted { // a requested chunk that waits for the link
    neb_ns at;
    uint32_t peer, chunk;
    uint8_t job[INTER_ID_BYTES], id[INTER_SHA_BYTES];
};
struct inter_snapshots {
    struct inter_snapshots_config c;
    struct fetch fetches[INTER_SNAPSHOT_JOBS];
    struct given given[INTER_SNAPSHOT_JOBS];
    struct held held[INTER_SNAPSHOT_JOBS];
    struct asker askers[PEERS];
    uint32_t n_askers;
    struct wanted queue[QUEUE_MAX];
    uint32_t n_queue;
    struct neb_buf out;
    uint8_t *chunk; // (INTER_SNAPSHOT_CHUNK + SEC_CHUNKS_EXTRA)
};

// snapshot.c. snapshot_begin starts a message in s->out.
uint64_t snapshot_chunk_bytes(uint64_t total, uint32_t chunk);
struct neb_buf *snapshot_begin(struct inter_snapshots *s, uint8_t type,
                               const uint8_t job[INTER_ID_BYTES]);
// Sends the message that snapshot_begin started. NEB_ERR_AGAIN: retry later.
NEB_MUST_CHECK enum neb_status snapshot_send(struct inter_snapshots *s, uint32_t peer);

// snapshot_fetch.c
void snapshot_fetch_end(struct fetch *f); // keeps what is on disk
struct fetch *snapshot_fetch_find(const struct inter_snapshots *s,
                                  const uint8_t job[INTER_ID_BYTES]);
// Ends the fetch and reports it to the caller (done).
void snapshot_fetch_finish(struct inter_snapshots *s, struct fetch *f, enum neb_status st);
// Errors are those of this member's disk.
NEB_MUST_CHECK enum neb_status snapshot_on_offer(struct inter_snapshots *s, neb_ns now,
                                                 uint32_t peer, struct neb_rd *r,
                                                 const uint8_t job[INTER_ID_BYTES]);
NEB_MUST_CHECK enum neb_status snapshot_on_data(struct inter_snapshots *s, neb_ns now,
                                                uint32_t peer, struct neb_rd *r,
                                                const uint8_t job[INTER_ID_BYTES]);
NEB_MUST_CHECK enum neb_status snapshot_fetch_tick(struct inter_snapshots *s, struct fetch *f,
                                                   neb_ns now);

// snapshot_give.c
void snapshot_release(struct inter_snapshots *s, struct given *g);
NEB_MUST_CHECK enum neb_status snapshot_offer_none(struct inter_snapshots *s, uint32_t peer,
                                                   const uint8_t job[INTER_ID_BYTES]);
NEB_MUST_CHECK enum neb_status snapshot_on_ask(struct inter_snapshots *s, neb_ns now, uint32_t peer,
                                               struct neb_rd *r, const uint8_t job[INTER_ID_BYTES]);
NEB_MUST_CHECK enum neb_status snapshot_on_get(struct inter_snapshots *s, neb_ns now, uint32_t peer,
                                               struct neb_rd *r, const uint8_t job[INTER_ID_BYTES]);
// Answers the peers that wait until a state is open.
NEB_MUST_CHECK enum neb_status snapshot_answer(struct inter_snapshots *s, neb_ns now);
// Sends the chunks that wait for the links.
NEB_MUST_CHECK enum neb_status snapshot_pump(struct inter_snapshots *s, neb_ns now);

#endif
