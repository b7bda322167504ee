// SPDX-License-Identifier: Apache-2.0
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
//       ── STATE whole ──────────────────────►     both blobs are durable on both
//       ◄───────────────────────── PROPOSE ──      store proposal (its own vote)
//     store proposal
//       ── ACCEPT (signed) ──────────────────►     a majority (of two: both) has it on disk: store commit
//       ◄────────────────────────── COMMIT ──      deliver to the worker
//     store commit, deliver to the worker
//
// A commit carries the signatures of the majority that accepted it, so it proves itself, whoever passes it on.
//
// Leaders (three or more members). A term belongs to member term % n. A member that has not heard its leader for some
// seconds, while most others say that they hear none either, asks for the next term of its own (ELECT); a voter that hears no leader promises (PROMISE): nothing below
// that term is accepted any more, and says for every fragment which round is open there and what it has accepted in it.
// With a majority of promises the new leader leads; in a round where somebody had accepted something, it proposes that same
// value again, the one of the highest term; it never proposes below the highest round that it was told of. This is
// Paxos with one ballot for all fragments of a job (Lamport, "Paxos Made Simple"). With two members, member 0 leads for ever.
//
// Terms that are only said (in heartbeats, which nobody signs) raise none and make nobody a leader: who leads is whom this node has promised its
// term. Whoever asks takes a term above those of the majority that it hopes for, whatever the rest say. A leader gives way when those who say
// that they are beyond its term leave too few to vote for it, or when for some time too few of enough that are there follow it (check quorum and
// pre-vote: Ongaro, "Consensus: Bridging Theory and Practice", 6.2, 9.6; here both are in the heartbeats). Whoever was away while the others promised
// is asked by the leader itself. How far terms can be driven up is bounded by the time of day (INTER_TERM_MAX).
//
// Memory. A voter that lost its disk must not vote as if it had never voted. Every ledger has an epoch that grows with
// each new ledger; members remember each other's. A node votes once every other member has said that it knows it under its
// present epoch; where one knows it under an older one, it first collects from all others what they have accepted.
//
// Liars. Accepts, promises and manifests are signed. A proposal carries its leader's own accept, and, of a term that somebody asked
// for, the promises of a majority, so that voters see that it had to propose, or was free to propose, this value. Whoever sees two
// statements of one member that no honest one makes (inter/record/evidence.h) keeps them, hands them on (EVIDENCE), says whose they are,
// votes for nothing more that it leads, and counts no vote of it for a new record. Beats say how the record behind the open round
// hashes: two members that hold different records of one round, each with a majority's accepts, learn it with the next heartbeat,
// fetch each other's until the first one that differs, find in those two who has signed both, and commit no more (SPLIT).
//
// Masked sums would give members away where a round had two records. There votes and promises are
// of so many that `colluders` who lie together get none through (inter_job_quorum), and a leader
// that is told of several values of one term proposes one only where no other can be committed.
// With a new disk nobody leads a term again that it may have led: two values of one are a lie.
//
// Every second each member tells each other one (HEARTBEAT): its term, whether it leads, its epoch, whom it reaches, whom it has
// evidence against, and of every fragment the open round and the hash before it; whoever is behind pulls the commits, then the blobs that they list, from whoever has them
// (WANT, answered by MANIFEST and CHUNK, or GONE). Control messages to a member that cannot be reached directly go through
// a third, signed by their origin (FORWARD).
//
// An update that a disk has lost since it was whole is asked for in the same way, whether its
// record is committed or not (inter/round/node_lost.c).
//
// Every message is idempotent and is said again after a reconnect and while something is open. With fewer than two
// contributing members nothing commits: alone, one trains locally.
#ifndef INTER_NODE_H
#define INTER_NODE_H
#include "inter/record/evidence.h"
#include "inter/record/outlier.h"
#include "inter/record/tune.h"
#include "inter/round/transfer.h"

// Places in a job's peers; the last one is nobody's.
enum { INTER_PEERS_MAX = 32, INTER_PEER_NONE = INTER_PEERS_MAX - 1 };

// In the name of others: of messages that a third member passes on.
#define INTER_CONTEXT_FORWARD "nebula forward v1"

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
    uint8_t n_members, self; // self: index of this node in members
    uint16_t witnesses;      // bit per member: votes, but has no worker and holds no updates
    uint16_t removed; // bit per member: by a signed membership version (inter_node_job_removed)
    uint16_t gone; // bit per member: revoked, so that nobody waits for it (inter_node_job_revoked)
    bool commit_all; // never commit without every data member
    neb_ns grace;    // how long a slow member is waited for
    uint64_t epoch;  // of this node's ledger, not 0; later ledgers have greater ones
    uint64_t day;    // time of day, ns since 1970, when it is opened: bounds terms
    uint32_t peers[INTER_MEMBERS_MAX]; // link peer of each member (of self: unused)
    uint32_t fragments;
    uint32_t merge_after; // S
    // of one inner step; of the job: a member's weight is not taken beyond them. 0: not known
    uint64_t step_tokens, steps;
    // from one send of a fragment to its next, at the least, in the first early_steps steps; afterwards tune.start_interval
    uint32_t early_interval;
    uint64_t early_steps;
    float eta, mu;
    // the learning rate over the job's steps (inter_reach); all zero: not known
    float pace[INTER_PACE];
    // of every member; where it is off, its start values are all plans
    struct inter_tune_config tune;
    // Gate profile `private`: only sums of enough members may be read (inter_sums_least), of one
    // record a round though `colluders` members lie together; and a member's update of a round is
    // never taken back for a newer one.
    bool masked;
    uint8_t colluders;
    bool robust; // gate profile: norms are clipped to their median (inter/record/robust.h)
    // a data member's gate does not know yet what an update must hold: until inter_node_job_judges nothing is taken for good, or voted for
    bool awaits_shape;
};

// Votes that a record needs, and promises that a leader needs. robust: so many equivocators as that
// profile bounds; masked: `colluders`.
uint8_t inter_job_quorum(const struct inter_job_config *c);

enum { INTER_NO_MEMBER = 255 };

enum inter_event_kind {
    INTER_EV_TICK,      // time passes: about every 200 ms
    INTER_EV_PEER_UP,   // peer
    INTER_EV_PEER_DOWN, // peer
    INTER_EV_MESSAGE,   // peer, bulk?, data: one message of types 1..31
    INTER_EV_SUBMIT, // manifest (signed by this node; its blob is durable already); a greater attempt takes the
    // place of an earlier one of the round, unless that is voted for already, or masked
    INTER_EV_BLOB_DONE, // key, ok, refused, no_room: answer to INTER_ACT_BLOB_FINISH
    // key, ok: whether there is room for the blob. After INTER_ACT_BLOB_OPEN; not ok also when a manifest or chunks could not be kept. What had
    // arrived is gone then, and it is opened again later.
    INTER_EV_BLOB_ROOM,
    INTER_EV_SERVE, // peer, key, manifest (NULL: not here): answer to INTER_ACT_SERVE; with key.member
                    // INTER_NO_MEMBER to SEND_COMMIT: the record is not here
    // manifest: the bytes of this update, of the open round or one before, were here and are not
    // any more, or are others
    INTER_EV_BLOB_LOST,
    INTER_EV_COMMIT_READ, // key, record (NULL: not here): answer to INTER_ACT_READ_COMMIT
    INTER_EV_LEAVE,       // key.job: this member is about to go; nobody shall wait for it
    INTER_EV_SEND_FAILED, // peer, key, chunk: the link's queue is full: not sent; ok: there is room, the job's own limit holds it back
    INTER_EV_CONN_LOST, // peer, way: one of the connections to it broke (INTER_LINK_LOST); 0: any may have
};
struct inter_event {
    enum inter_event_kind kind;
    uint32_t peer;
    bool bulk, ok, refused; // refused: the blob is whole, but the gate does not let it pass
    bool no_room;           // its bytes could not be kept
    const uint8_t *data;
    size_t len;
    const struct inter_manifest *manifest;
    const struct inter_record *record;
    struct inter_key key;
    uint32_t chunk;
    uint64_t way;
    float norm; // SUBMIT, BLOB_DONE: L2 of the decoded update; 0: not known
};

enum inter_action_kind {
    INTER_ACT_SEND, // peer, bytes: control message
    INTER_ACT_SEND_CHUNK, // peer, key, chunk, offset, len: bytes = header of the bulk message, then the blob's bytes
    INTER_ACT_SEND_COMMIT, // peer, key.job/round/fragment: the ledger's record, as inter_node_commit_message makes it
    INTER_ACT_SERVE, // peer (this node's own: for itself), key: does the ledger have this blob? answer with INTER_EV_SERVE
    // peer, key: as SERVE, but its bytes are read and hashed: the peer has had all of them, and they
    // were not the update
    INTER_ACT_VERIFY,
    INTER_ACT_STORE_STANDING, // standing
    INTER_ACT_STORE_MANIFEST, // manifest
    // manifest: a record lists it; what is stored under its key with another digest gives way, blob and all
    INTER_ACT_REPLACE_MANIFEST,
    INTER_ACT_STORE_VOTE,   // record: proposed or accepted by this node
    INTER_ACT_STORE_COMMIT, // record
    INTER_ACT_BLOB_OPEN, // manifest: room for a blob that will arrive; is it here already: BLOB_FINISH's answer
    INTER_ACT_BLOB_WRITE, // key, offset, bytes (view into the event)
    INTER_ACT_BLOB_FINISH, // manifest: verify SHA-256 and content, make durable; answer with BLOB_DONE
    INTER_ACT_DELIVER,     // record: tell the worker
    INTER_ACT_FAULT,       // peer (who is to blame), fault
    INTER_ACT_STORE_EVIDENCE, // evidence, peer: that member has lied; once a member
    INTER_ACT_READ_COMMIT,    // key.job/round/fragment: answer with INTER_EV_COMMIT_READ
    // key.job/round/fragment, peer: it has another record of the round than this node, and both carry a majority's accepts. Nothing
    // is committed any more.
    INTER_ACT_SPLIT,
    INTER_ACT_RESTART_LINK, // peer: inter_link_restart
    INTER_ACT_BEHIND, // key.job/round/fragment: nobody has what this node needs to go on: it needs a snapshot
    // key.job/round/fragment: all that was lost (INTER_EV_BLOB_LOST) of this round, which is over, is
    // here again
    INTER_ACT_FOUND,
};
// Updates, records and votes may come through others than their author. To blame is
//     by the bytes     whoever sent them here: no signature of anybody else covers what is wrong. Of a message in an envelope that is its
//                      origin, who signed the envelope; but whoever passed it on where it is an old one said again.
//     by what they say whoever signed them: they reach others through honest members too
//     nobody           INTER_PEER_NONE
enum inter_fault {
    // by the bytes
    INTER_FAULT_MALFORMED, // a message that does not parse: dropped
    INTER_FAULT_DENIED,    // a signature or sender that does not fit: dropped
    INTER_FAULT_REPLAY,    // old or repeated: dropped
    INTER_FAULT_FLOOD, // more messages than an honest member sends (inter/service/service.h): dropped
    // a chunk or blob whose digest does not match: asked for again. NONE: its chunks came from several members
    INTER_FAULT_CORRUPT,
    // by what they say
    INTER_FAULT_SECOND, // a member signed a second digest under one update key: that of the record counts
    INTER_FAULT_REFUSED, // an update whose content the gate refuses
    // Members computed different parameters from the same commits: each that differs from this one, or, for a witness, from most.
    INTER_FAULT_DIVERGED,
    INTER_FAULT_RENEWED, // a member came back with an empty disk
    INTER_FAULT_FORGED,  // a weight, a size or a number of updates that the job cannot give
    INTER_FAULT_OUTLIER, // an update was committed that stands out from the others (inter/record/outlier.h)
    // The disk has no room for an update (NONE): it is taken when there is.
    INTER_FAULT_NO_ROOM,
    INTER_FAULT_BEHIND,      // blobs that this node needs are on no other member any more (NONE)
    INTER_FAULT_EQUIVOCATED, // evidence that a member has signed what no honest one does
    INTER_FAULT_SPLIT,       // members have committed different records for one round
    INTER_FAULT_TERMS, // of this node: it would ask for a term, and for some time there is none for it (INTER_TERM_MAX)
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
    struct inter_standing standing;
    struct inter_evidence evidence;
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
// crypto is borrowed. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_node_create(const struct inter_node_crypto *crypto,
                                                 struct inter_node **out);
void inter_node_destroy(struct inter_node **n);
// Opens a job (c is copied). NEB_ERR_INVALID: a number out of range; NEB_ERR_EXISTS: it is open; NEB_ERR_LIMIT: too many are.
// Restoring after a restart: standing, then per fragment commit, manifests with norms, vote; then carry on with events.
NEB_MUST_CHECK enum neb_status inter_node_job_open(struct inter_node *n,
                                                   const struct inter_job_config *c);
// No update of this member comes any more, though it votes on: its next heartbeats say so, and nobody waits for one, but by commit_all.
void inter_node_job_idle(struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
// This member's gate knows what the job's updates hold (awaits_shape).
void inter_node_job_judges(struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
// A signed membership version took the vote from these members (of two: `nebula promote`). Whoever remains goes on without
// them in a term of its own, after proposing again what it had accepted; alone it commits alone. False: no such job.
bool inter_node_job_removed(struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                            uint16_t removed);
void inter_node_job_close(struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
void inter_node_restore_standing(struct inter_node *n, const struct inter_standing *s);
// newest committed record
void inter_node_restore_commit(struct inter_node *n, const struct inter_record *last);
enum inter_holding { INTER_HOLD_PART, INTER_HOLD_COMPLETE, INTER_HOLD_REFUSED };
// got: chunks of a blob that had begun to arrive; NULL: none. REFUSED: whole, but the gate does not let it pass.
NEB_MUST_CHECK enum neb_status inter_node_restore_manifest(struct inter_node *n,
                                                           const struct inter_manifest *m,
                                                           enum inter_holding h,
                                                           const struct inter_bitmap *got);
// There was no room for it: it is opened again.
void inter_node_restore_no_room(struct inter_node *n, const struct inter_key *k);
// Of this node's own update: its gate would refuse it. It then says so, and votes for a record that does.
void inter_node_own_bad(struct inter_node *n, const struct inter_key *k);
// norm: L2 of the decoded update, 0: not known.
void inter_node_restore_norm(struct inter_node *n, const struct inter_key *k, float norm);
void inter_node_restore_vote(struct inter_node *n, const struct inter_record *r);
void inter_node_restore_evidence(struct inter_node *n, const struct inter_evidence *e);

// One event at monotonic time `now`. out is cleared and filled with what is to be done, IN ORDER; views in it are valid until the
// next step. NEB_ERR_NOMEM: none of it is to be carried out.
NEB_MUST_CHECK enum neb_status inter_node_step(struct inter_node *n, neb_ns now,
                                               const struct inter_event *e,
                                               struct inter_actions *out);
// A chunk (SEND_CHUNK) has left by a connection.
void inter_node_sent_on(struct inter_node *n, uint32_t peer, const struct inter_key *k,
                        uint32_t chunk, uint64_t way);

// For status and tests.
struct inter_path_stats {
    double goodput_bps;
    bool full;       // see inter/round/estimate.h
    uint64_t window; // bytes that may be in flight
    neb_ns rtt;
    // resent: of what was sent, chunks that had left before, after an outage or without an acknowledgement for too long
    uint64_t payload_sent, payload_resent, payload_received;
};
void inter_node_path(const struct inter_node *n, uint32_t peer, struct inter_path_stats *out);
// Next round of a fragment; UINT32_MAX: no such job.
uint32_t inter_node_round(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                          uint32_t fragment);
// Whether a peer is another one of the job's members. False also where no such job is open.
bool inter_node_is_member(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                          uint32_t peer);
// The peer that a member of the job is; INTER_PEER_NONE: no such job or member, or this node.
uint32_t inter_node_peer(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                         uint8_t member);
// The sketch (compress/sketch.h) of an update of the open round that has passed the gate: copied. Of what is not known here, nothing.
void inter_node_sketch(struct inter_node *n, const struct inter_key *k, const float *sketch);
// Whether norms and directions of updates matter in a job: they are clipped, or compared with each other (two members or more).
bool inter_node_weighs(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
// Whether a message of this node's says no more than that it is there and where it stands. It may be said again while the node cannot be
// stepped, in the same term.
struct inter_node_heartbeat {
    uint8_t job[INTER_ID_BYTES];
    uint8_t to; // the member whom the peer is to pass it on to, or INTER_NO_MEMBER
    uint32_t term;
};
bool inter_node_is_heartbeat(const uint8_t *message, size_t len, struct inter_node_heartbeat *out);
// Whether a member of the job that is here is some rounds behind this node.
bool inter_node_catching_up(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                            neb_ns now);
struct inter_job_status {
    uint32_t term;
    int leader;        // member, -1: none known
    bool leads, votes; // this node
    bool lost;         // its disk was: the others knew it with an older ledger
    // from this one on: attempts of this node's present ledger; earlier ones are of a lost disk
    uint32_t attempts;
    uint16_t live, direct; // bit per member: heard lately; connected to this node
    uint16_t idle;         // bit per member: no update of its comes any more, as it says
    uint16_t removed;      // bit per member: by a signed membership version
    uint16_t equivocators; // bit per member: there is evidence against it
    uint16_t renewed;      // bit per member: came back with an empty ledger and has not caught up
    bool split;            // INTER_ACT_SPLIT: the job's members have diverged
    uint16_t
        waits; // bit per member: not heard, or idle, and without it no round can end; 0: rounds can
    uint16_t no_room, // bit per member: its update is announced, and there is no room for it here
        owing; // bit per member: heard, but a round needs its update, which has been missing for longer than the grace
    // Rounds that the fragment furthest behind has to catch up, as records have shown that a majority has signed: nobody's word.
    uint32_t lag;
};
// False: no such job.
bool inter_node_job_status(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                           neb_ns now, struct inter_job_status *out);
// Members that a newer list holds no more: their votes count as before, of whoever is left most must agree, but no round waits for an update
// of theirs, be it by commit_all or because the profile `robust` wants five; `private` takes as many as ever.
void inter_node_job_revoked(struct inter_node *n, const uint8_t job[INTER_ID_BYTES], uint16_t gone);
// What members say that (θ, v) of a fragment digested to before a round, beside what somebody else says of it: bit per member.
struct inter_digests {
    uint16_t same, other;
};
void inter_record_digests(const struct inter_record *r, const uint64_t digest[2],
                          struct inter_digests *out);
// Of the open round: in the manifests that are here, or the record where it is decided. False: another one is open, or no such job.
bool inter_node_digests(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                        uint32_t fragment, uint32_t round, const uint64_t digest[2],
                        struct inter_digests *out);
// Whether a record carries the signatures of a majority of the voters of the job that `c` describes. Accepts that do not fit are dropped.
bool inter_node_proves(struct inter_node *n, const struct inter_job_config *c,
                       struct inter_record *r);
// No update of the job is larger than this. What claims to be is not taken.
void inter_node_job_bound(struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                          uint64_t blob_bytes);
// The first attempt under which this node submits: of its present ledger (inter_attempt_first).
uint32_t inter_node_attempt(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
// A record as the COMMIT that members send each other, appended.
void inter_node_commit_message(struct neb_buf *out, const struct inter_record *r);
// for a manifest to come
uint32_t inter_node_chunk_bytes(const struct inter_node *n, uint32_t blob_bytes);

#endif
