// The rounds of a federation as a pure state machine: no clock, socket, file or random number inside.
//
//     step(node, now, event) -> actions
//
// A shell carries the actions out IN ORDER: a store action is durable (fsynced) before any later action of the list is
// begun. So a crash between two actions is a crash between two durable states, and a simulator can cut there.
//
// One round of one fragment, two members; member 0 leads:
//
//     member 1                                   member 0 (leader)
//     SUBMIT: store manifest + blob              SUBMIT: store manifest + blob
//       ── MANIFEST, CHUNK… ─────────────────►     store manifest, write chunks, verify
//       ◄───────────────── MANIFEST, CHUNK… ──
//       ── STATE complete ───────────────────►     both blobs are durable on both
//       ◄───────────────────────── PROPOSE ──      store proposal (its own vote)
//     store proposal
//       ── ACCEPT ───────────────────────────►     a majority (of two: both) has it on disk: store commit
//       ◄────────────────────────── COMMIT ──      deliver to the worker
//     store commit, deliver to the worker
//
// Every message is idempotent and is said again after a reconnect and when nothing moved for a while; whoever speaks of an
// old round is answered with its commit record from the ledger. Votes bind to (round, fragment): a member votes for one
// record of a term only. With fewer than two contributing members nothing commits: alone, one trains locally.
//
// Limits today: the leader is fixed (the first member of the job), so with three or more members a lost leader
// stops commits (not training) until it returns.
#ifndef INTER_NODE_H
#define INTER_NODE_H
#include "inter/transfer.h"

struct inter_node_crypto { // pure functions: the same input gives the same answer
    void *user;
    // Signs as this node. False: the key cannot be used.
    bool (*sign)(void *user, const char *context, const void *msg, size_t len,
                 uint8_t sig[INTER_SIG_BYTES]);
    // Whether `peer` signed msg.
    bool (*verify)(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                   const uint8_t sig[INTER_SIG_BYTES]);
};

struct inter_job_config {
    uint8_t id[INTER_ID_BYTES];
    uint8_t n_members, self;           // self: index of this node in members
    uint32_t peers[INTER_MEMBERS_MAX]; // link peer of each member (of self: unused)
    uint32_t fragments;
    uint32_t merge_after; // S
    float eta, mu;
    uint32_t interval, overlap;
};

enum inter_event_kind {
    INTER_EV_TICK,        // time passes: about every 200 ms
    INTER_EV_PEER_UP,     // peer
    INTER_EV_PEER_DOWN,   // peer
    INTER_EV_MESSAGE,     // peer, bulk?, data: one message of types 1..8
    INTER_EV_SUBMIT,      // manifest (signed by this node; its blob is durable already)
    INTER_EV_BLOB_DONE,   // key, ok: answer to INTER_ACT_BLOB_FINISH
    INTER_EV_SEND_FAILED, // peer, key, chunk: the link's queue is full: not sent
};
struct inter_event {
    enum inter_event_kind kind;
    uint32_t peer;
    bool bulk, ok;
    const uint8_t *data;
    size_t len;
    const struct inter_manifest *manifest;
    struct inter_key key;
    uint32_t chunk;
};

enum inter_action_kind {
    INTER_ACT_SEND, // peer, bytes: control message
    INTER_ACT_SEND_CHUNK, // peer, key, chunk, offset, len: bytes = header of the bulk message, then the blob's bytes
    INTER_ACT_SEND_COMMIT, // peer, key.job/round/fragment: the ledger's record as a COMMIT message
    INTER_ACT_STORE_MANIFEST, // manifest
    INTER_ACT_STORE_VOTE,     // record: proposed or accepted by this node
    INTER_ACT_STORE_COMMIT,   // record
    INTER_ACT_BLOB_OPEN,      // manifest: room for a blob that will arrive
    INTER_ACT_BLOB_WRITE,     // key, offset, bytes (view into the event)
    INTER_ACT_BLOB_FINISH, // manifest: verify SHA-256 and content, make durable; answer with BLOB_DONE
    INTER_ACT_DELIVER,     // record: tell the worker
    INTER_ACT_FAULT,       // peer, fault
};
enum inter_fault {
    INTER_FAULT_MALFORMED, // a message that does not parse: dropped
    INTER_FAULT_DENIED,    // a signature or sender that does not fit: dropped
    INTER_FAULT_REPLAY,    // old or repeated: dropped
    INTER_FAULT_CORRUPT,   // a chunk or blob whose digest does not match: asked for again
    INTER_FAULT_SECOND,    // a second digest for one update key: refused
    INTER_FAULT_REFUSED,   // an update whose content the gate refuses
    INTER_FAULT_DIVERGED,  // members computed different parameters from the same commits
    INTER_FAULTS
};
const char *inter_fault_name(enum inter_fault f);

struct inter_action {
    enum inter_action_kind kind;
    uint32_t peer;
    struct inter_key key;
    uint32_t chunk;
    uint64_t offset;
    size_t len;          // bytes of a chunk
    size_t at, size;     // of `bytes` in inter_actions.bytes (SEND, SEND_CHUNK)
    const uint8_t *view; // BLOB_WRITE
    struct inter_manifest manifest;
    struct inter_record record;
    enum inter_fault fault;
};
struct inter_actions {
    struct inter_action *list; // owned
    size_t n, cap;
    struct neb_buf bytes;
};
void inter_actions_clear(struct inter_actions *a);
void inter_actions_free(struct inter_actions *a);

struct inter_node;
NEB_MUST_CHECK enum neb_status inter_node_create(const struct inter_node_crypto *crypto,
                                                 struct inter_node **out);
void inter_node_destroy(struct inter_node **n);
// Opens a job. Restoring after a restart: in this order, per fragment, then carry on with events.
NEB_MUST_CHECK enum neb_status inter_node_job_open(struct inter_node *n,
                                                   const struct inter_job_config *c);
void inter_node_job_close(struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
void inter_node_restore_commit(struct inter_node *n,
                               const struct inter_record *last); // newest committed record
// got: chunks of a blob that had begun to arrive; NULL: none.
NEB_MUST_CHECK enum neb_status inter_node_restore_manifest(struct inter_node *n,
                                                           const struct inter_manifest *m,
                                                           bool blob_durable,
                                                           const struct inter_bitmap *got);
void inter_node_restore_vote(struct inter_node *n, const struct inter_record *r);

NEB_MUST_CHECK enum neb_status inter_node_step(struct inter_node *n, neb_ns now,
                                               const struct inter_event *e,
                                               struct inter_actions *out);

// For status and tests.
struct inter_path_stats {
    double goodput_bps;
    neb_ns rtt;
    uint64_t payload_sent, payload_resent, payload_received;
};
void inter_node_path(const struct inter_node *n, uint32_t peer, struct inter_path_stats *out);
uint64_t inter_node_faults(const struct inter_node *n, enum inter_fault f);
// Next round of a fragment; UINT32_MAX: no such job.
uint32_t inter_node_round(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                          uint32_t fragment);
uint32_t inter_node_chunk_bytes(const struct inter_node *n,
                                uint32_t blob_bytes); // for a manifest to come

#endif
