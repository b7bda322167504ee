// SPDX-License-Identifier: Apache-2.0
// The rounds of a federation as a pure state machine: no clock, socket, file or random number
// inside.
//
//     step(node, now, event) -> actions
//
// The caller carries the actions out IN ORDER. A store action is durable (fsynced) before a later
// action of the list begins. So a crash between two actions is a crash between two durable states,
// and a simulator can cut there.
//
// One round of one fragment, two members; member 0 leads:
//
//     member 1                                   member 0 (leader)
//     SUBMIT: store manifest + blob              SUBMIT: store manifest + blob
//       ── MANIFEST, CHUNK… ─────────────────►     store manifest, write chunks, verify
//       ◄───────────────── MANIFEST, CHUNK… ──     (UPDATE: both, if one chunk is enough)
//       ── STATE whole ──────────────────────►     both blobs are durable on both
//       ◄───────────────────────── PROPOSE ──      store proposal (its own accept)
//     store proposal                               (SHORT: without what the other knows)
//       ── ACCEPT (signed) ──────────────────►     a majority (of two: both) has it on disk:
//     store commit, deliver to the worker          store commit, deliver to the worker
//
// Of two members the second completes the majority with its own accept, which it sends in short
// (AGREE). With three or more the leader sends a COMMIT to all.
//
// A commit holds the signed accepts of a majority. So it proves itself, whichever member passes it
// on.
//
// Leaders (three or more members). This is Paxos with one ballot for all fragments of a job
// (Lamport, "Paxos Made Simple"); a ballot is called a term. A term belongs to member term % n. A
// candidate is a member that has not heard its leader for some seconds while most others report
// that they hear none either. It asks for its own next term (ELECT). A voter that hears no leader
// promises (PROMISE): it accepts nothing below that term any more. For every fragment its promise
// reports the open round and what it has accepted there. With the promises of a majority the
// candidate leads. If a voter has accepted something in a round, the new leader proposes that value
// again: the one of the highest term. It never proposes below the highest round that a promise
// reports. With two members, member 0 leads for ever.
//
// Heartbeats are not signed. So a term in a heartbeat raises no other node's term, and it makes no
// leader: a node follows the member to which it has promised its term. A candidate takes a term
// above those of the majority that it hopes for, whatever the other members report. A leader steps
// down if the members that report a later term leave too few votes for it, or if for some time too
// few follow it although enough are live (check quorum and pre-vote: Ongaro, "Consensus: Bridging
// Theory and Practice", 6.2, 9.6; here heartbeats carry both). A member that was away while the
// others promised is asked by the leader itself. The time of day limits how far terms can be driven
// up (INTER_TERM_MAX).
//
// Memory. A voter that has lost its disk must not vote as if it had never voted. Every ledger has
// an epoch, and a new ledger has a greater one. Members remember each other's epochs. A node votes
// once every other member has reported that it knows the node's present epoch. If a member knows an
// older one, the node first collects from all others what they have accepted (recovery).
//
// Evidence. Accepts, promises and manifests are signed. A proposal holds its leader's own accept
// and, in a term above 0, the promises of a majority. From these a voter sees that the leader was
// free to propose this value, or had to. A node that sees two statements of one member that no
// honest member signs (inter/record/evidence.h) stores them, passes them on (EVIDENCE) and reports
// the member. It no longer votes for that member's proposals, and does not count that member's
// votes for a new record.
//
// Divergence. A heartbeat holds the hash of the record before the open round. Two members may hold
// different records of one round, each with a majority's accepts. The next heartbeat shows it. They
// fetch each other's records back to the first that differs, find there which members have signed
// both, and commit nothing more (SPLIT).
//
// Masked sums. Two records of one round would expose members. So the quorums of votes and promises
// are so large that `colluders` Byzantine members together cannot get both accepted
// (inter_job_quorum). A leader that learns of several values of one term proposes one of them only
// if no other can have been committed. After a disk loss a member does not lead again in a term in
// which it may have led, because two values of one term are equivocation.
//
// Messages. Every second (of two members that send each other messages: every three seconds) each
// member sends each other member a HEARTBEAT: its term, whether it leads, its epoch, which members
// it reaches, against which it has evidence, and for every fragment the open round and the hash
// before it. A member that is behind pulls the commits, then the blobs
// that they list, from any member that has them (WANT, answered by MANIFEST and CHUNK, or by GONE).
// It asks in the same way for an update that its disk has lost, whether the record is committed or
// not (inter/round/node_lost.c). A control message to a member without a direct connection goes
// through a third member, signed by its origin (FORWARD).
//
// Every message is idempotent. It is repeated after a reconnect and while something is open. With
// fewer than two updates nothing commits, unless the job has only one data member left: a cluster
// that is alone trains locally.
#ifndef INTER_NODE_H
#define INTER_NODE_H
#include "inter/record/evidence.h"
#include "inter/record/outlier.h"
#include "inter/record/tune.h"
#include "inter/round/transfer.h"

// Places in a job's peers. The last one is no peer.
enum { INTER_PEERS_MAX = 32, INTER_PEER_NONE = INTER_PEERS_MAX - 1 };

// Signing context of the envelope of a message that a third member passes on.
#define INTER_CONTEXT_FORWARD "nebula forward v1"

struct inter_node_crypto { // pure functions: the same input gives the same answer
    void *user;
    // Signs as this node. False: the key cannot be used.
    bool (*sign)(void *user, const char *context, const void *msg, size_t len,
                 uint8_t sig[INTER_SIG_BYTES]);
    // True if `peer` signed msg.
    bool (*verify)(void *user, uint32_t peer, const char *context, const void *msg, size_t len,
                   const uint8_t sig[INTER_SIG_BYTES]);
};

struct inter_job_config {
    uint8_t id[INTER_ID_BYTES];
    uint8_t n_members, self;     // self: index of this node among the members
    struct member_set witnesses; // vote, but have no worker and hold no updates
    struct member_set removed;   // no voters any more (inter_node_job_removed)
    struct member_set gone;      // revoked; no round waits for them (inter_node_job_revoked)
    bool commit_all;             // never commit without every data member
    neb_ns grace;                // how long a slow member is waited for
    uint64_t epoch;              // of this node's ledger, not 0; a later ledger has a greater one
    uint64_t day;                // time of day when the job is opened, ns since 1970: limits terms
    uint32_t peers[NEB_MEMBERS_MAX]; // link peer of each member (of self: unused)
    uint32_t fragments;
    uint32_t merge_after; // S: a member that missed more intervals returns in a merge round
    // Tokens of one inner step; inner steps of the job. An update cannot claim more. 0: not known.
    uint64_t step_tokens, steps;
    // Least number of steps between two sends of a fragment in the first early_steps steps.
    // Afterwards it is tune.start_interval.
    uint32_t early_interval;
    uint64_t early_steps;
    float eta, mu; // of fragments without a rule of their own
    struct inter_fragment_rule {
        bool own; // these eta and mu hold
        float eta, mu;
        bool owned; // only updates of the member `owner` may rest on tokens
        uint8_t owner;
    } rules[INTER_FRAGMENTS_MAX];
    // learning rate over the job's steps (inter_reach); all zero: not known
    float pace[INTER_PACE];
    // the controller for every member; if it is off, every plan has its start values
    struct inter_tune_config tune;
    // Gate profile `private`: only sums of enough members may be read (inter_sums_least), and of
    // one record per round even if `colluders` members collude. A newer attempt never replaces a
    // member's update of a round.
    bool masked;
    uint8_t colluders;
    bool robust; // gate profile: norms are clipped to their median (inter/record/robust.h)
    // This data member's gate does not know yet what an update must hold. Before
    // inter_node_job_judges the node neither accepts nor refuses an update, and votes for nothing.
    bool awaits_shape;
};

static inline float inter_job_eta(const struct inter_job_config *c, uint32_t fragment) {
    return c->rules[fragment].own ? c->rules[fragment].eta : c->eta;
}
static inline float inter_job_mu(const struct inter_job_config *c, uint32_t fragment) {
    return c->rules[fragment].own ? c->rules[fragment].mu : c->mu;
}

// Votes that a record needs, and promises that a leader needs. Byzantine members are tolerated: as
// many as the profile `robust` limits, or `colluders` if masked.
uint8_t inter_job_quorum(const struct inter_job_config *c);

enum { INTER_NO_MEMBER = 255 };

enum inter_event_kind {
    INTER_EV_TICK,      // time passes: about every 200 ms
    INTER_EV_PEER_UP,   // peer
    INTER_EV_PEER_DOWN, // peer
    INTER_EV_MESSAGE,   // peer, bulk, data: one message of types 1..31
    // manifest, signed by this node; its blob is durable already. A greater attempt replaces an
    // earlier one of the round, unless that one is voted for or masked.
    INTER_EV_SUBMIT,
    INTER_EV_BLOB_DONE, // key, ok, refused, no_room: answer to INTER_ACT_BLOB_FINISH
    // key, ok: whether there is room for the blob, after INTER_ACT_BLOB_OPEN. ok is also false if a
    // manifest or chunks could not be stored: then what had arrived is gone, and the blob is opened
    // again later.
    INTER_EV_BLOB_ROOM,
    // peer, key, manifest (NULL: not here): answer to INTER_ACT_SERVE. key.member INTER_NO_MEMBER:
    // the record of INTER_ACT_SEND_COMMIT is not here.
    INTER_EV_SERVE,
    // manifest: the bytes of this update, of the open round or an earlier one, were here and are
    // lost or changed.
    INTER_EV_BLOB_LOST,
    INTER_EV_COMMIT_READ, // key, record (NULL: not here): answer to INTER_ACT_READ_COMMIT
    INTER_EV_LEAVE,       // key.job: this member is about to leave; no member shall wait for it
    // peer, key, chunk: not sent, because the link's queue is full; with ok: because of the job's
    // own rate limit.
    INTER_EV_SEND_FAILED,
    // peer, way: this connection to it broke (INTER_LINK_LOST); 0: any may have broken
    INTER_EV_CONN_LOST,
};
struct inter_event {
    enum inter_event_kind kind;
    uint32_t peer;
    bool bulk, ok, refused; // refused: the blob is complete, but the gate refuses it
    bool no_room;           // its bytes could not be stored
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
    // peer, key, chunk, offset, len; bytes: header of a bulk message, which the blob's bytes follow
    INTER_ACT_SEND_CHUNK,
    // peer, key.job/round/fragment: the ledger's record, as inter_node_commit_message makes it
    INTER_ACT_SEND_COMMIT,
    // peer (this node's own: for itself), key: does the ledger have this blob? Answer with
    // INTER_EV_SERVE.
    INTER_ACT_SERVE,
    // peer, key: as SERVE, but read and hash the bytes, because the peer got all of them and they
    // were not the update.
    INTER_ACT_VERIFY,
    INTER_ACT_STORE_STANDING, // standing
    INTER_ACT_STORE_MANIFEST, // manifest
    // manifest: a record lists it. It replaces a stored manifest with the same key and another
    // digest, together with that manifest's blob.
    INTER_ACT_REPLACE_MANIFEST,
    INTER_ACT_STORE_VOTE,   // record: proposed or accepted by this node
    INTER_ACT_STORE_COMMIT, // record
    // manifest: make room for a blob that will arrive. If the blob is here already, answer as to
    // BLOB_FINISH.
    INTER_ACT_BLOB_OPEN,
    INTER_ACT_BLOB_WRITE, // key, offset, bytes (view into the event)
    // manifest: verify SHA-256 and content, make durable; answer with BLOB_DONE
    INTER_ACT_BLOB_FINISH,
    INTER_ACT_DELIVER, // record: pass it to the worker
    INTER_ACT_FAULT,   // peer (to blame), fault
    // evidence, peer: proof of that member's equivocation; once per member
    INTER_ACT_STORE_EVIDENCE,
    INTER_ACT_READ_COMMIT, // key.job/round/fragment: answer with INTER_EV_COMMIT_READ
    // key.job/round/fragment, peer: it has another record of the round than this node, and both
    // hold a majority's accepts. Nothing is committed any more.
    INTER_ACT_SPLIT,
    INTER_ACT_RESTART_LINK, // peer: inter_link_restart
    // key.job/round/fragment: no member has what this node needs. It needs a snapshot.
    INTER_ACT_BEHIND,
    // key.job/round/fragment: all lost updates (INTER_EV_BLOB_LOST) of this earlier round are here
    // again.
    INTER_ACT_FOUND,
};
// Updates, records and votes may arrive through other members than their author. Who is to blame:
//     for bytes       the member that sent them here, because no other signature covers them. For a
//                     message in an envelope that is the origin, which signed the envelope; for a
//                     replay it is the member that passed the message on.
//     for content     the member that signed it: it also arrives through honest members
//     nobody          INTER_PEER_NONE
enum inter_fault {
    // for bytes
    INTER_FAULT_MALFORMED, // a message that does not parse: dropped
    INTER_FAULT_DENIED,    // a signature or sender that does not fit: dropped
    INTER_FAULT_REPLAY,    // old or repeated: dropped
    // more messages than an honest member sends (inter/service/service.h): dropped
    INTER_FAULT_FLOOD,
    // a chunk or blob with a wrong digest: asked for again. NONE: several members sent its chunks
    INTER_FAULT_CORRUPT,
    // for content
    // a second digest under one update key (that of the record counts); a second proposal of a term
    INTER_FAULT_SECOND,
    INTER_FAULT_REFUSED, // an update whose content the gate refuses
    // Members computed different parameters from the same commits: each one that differs from this
    // node, or, at a witness, from most members.
    INTER_FAULT_DIVERGED,
    INTER_FAULT_RENEWED, // a member came back with an empty disk
    INTER_FAULT_FORGED,  // a weight, size or number of attempts that the job cannot give
    INTER_FAULT_OUTLIER, // a committed update stands out from the others (inter/record/outlier.h)
    // The disk has no room for an update (NONE). The node takes it when there is room.
    INTER_FAULT_NO_ROOM,
    INTER_FAULT_BEHIND,      // no other member has the blobs that this node needs (NONE)
    INTER_FAULT_EQUIVOCATED, // a member's equivocation is proven
    INTER_FAULT_SPLIT,       // members have committed different records for one round
    // this node: it has wanted to ask for a term for some time, and there is none (INTER_TERM_MAX)
    INTER_FAULT_TERMS,
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
    size_t at, size;     // place of `bytes` in inter_actions.bytes (SEND, SEND_CHUNK)
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
void inter_actions_free(struct inter_actions *a);

struct inter_node;
// crypto is borrowed. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_node_create(const struct inter_node_crypto *crypto,
                                                 struct inter_node **out);
void inter_node_destroy(struct inter_node **n);
// Opens a job. c is copied. NEB_ERR_INVALID: a number is out of range. NEB_ERR_EXISTS: the job is
// open. NEB_ERR_LIMIT: too many jobs are open. NEB_ERR_NOMEM. After a restart, restore the
// standing, then per fragment the commit, manifests with norms, and the vote; then continue with
// events.
NEB_MUST_CHECK enum neb_status inter_node_job_open(struct inter_node *n,
                                                   const struct inter_job_config *c);
// This member sends no updates any more but still votes. Its next heartbeats report this, and no
// member waits for an update of this one, except with commit_all.
void inter_node_job_idle(struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
// This member's gate now knows what the job's updates hold (awaits_shape).
void inter_node_job_judges(struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
// A signed membership version took the vote from these members (of two: `nebula promote`). The
// remaining members continue in a term of their own, after they have proposed again what they had
// accepted. A single member commits alone. False: no such job.
bool inter_node_job_removed(struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                            struct member_set removed);
void inter_node_job_close(struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
void inter_node_restore_standing(struct inter_node *n, const struct inter_standing *s);
// last: newest committed record
void inter_node_restore_commit(struct inter_node *n, const struct inter_record *last);
enum inter_holding { INTER_HOLD_PART, INTER_HOLD_COMPLETE, INTER_HOLD_REFUSED };
// got: chunks of a blob that had begun to arrive; NULL: none. REFUSED: complete, but the gate
// refuses it.
NEB_MUST_CHECK enum neb_status inter_node_restore_manifest(struct inter_node *n,
                                                           const struct inter_manifest *m,
                                                           enum inter_holding h,
                                                           const struct inter_bitmap *got);
// There was no room for this update: it is opened again.
void inter_node_restore_no_room(struct inter_node *n, const struct inter_key *k);
// This node's own update: its gate would refuse it. The node reports this, and votes for a record
// that rejects the update.
void inter_node_own_bad(struct inter_node *n, const struct inter_key *k);
// norm: L2 of the decoded update; 0: not known.
void inter_node_restore_norm(struct inter_node *n, const struct inter_key *k, float norm);
void inter_node_restore_vote(struct inter_node *n, const struct inter_record *r);
void inter_node_restore_evidence(struct inter_node *n, const struct inter_evidence *e);

// One event at monotonic time `now`. out is cleared, then filled with what to do, IN ORDER. Views
// in it are valid until the next step. NEB_ERR_NOMEM: carry out none of it.
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
    // resent: the part of payload_sent in chunks that had left before
    uint64_t payload_sent, payload_resent, payload_received;
};
void inter_node_path(const struct inter_node *n, uint32_t peer, struct inter_path_stats *out);
// Open round of a fragment; UINT32_MAX: no such job.
uint32_t inter_node_round(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                          uint32_t fragment);
// True if a peer is another member of the job. False also if no such job is open.
bool inter_node_is_member(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                          uint32_t peer);
// Peer of a member; INTER_PEER_NONE: no such job or member, or this node.
uint32_t inter_node_peer(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                         uint8_t member);
// Copies the sketch (compress/sketch.h) of an update of the open round that has passed the gate.
// Does nothing if the update is not known here.
void inter_node_sketch(struct inter_node *n, const struct inter_key *k, const float *sketch);
// True if norms and directions of updates matter in a job: they are clipped, or compared with each
// other (two members or more).
bool inter_node_weighs(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
// True if the job's updates are masked: a member sends only one update per round.
bool inter_node_masked(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
// True if the message only tells that this node is alive and where it stands. It may be sent again,
// in the same term, while the node cannot be stepped.
struct inter_node_heartbeat {
    uint8_t job[INTER_ID_BYTES];
    uint8_t to; // member to whom the peer shall pass it on, or INTER_NO_MEMBER
    uint32_t term;
};
bool inter_node_is_heartbeat(const uint8_t *message, size_t len, struct inter_node_heartbeat *out);
// True if a live member of the job is some rounds behind this node.
bool inter_node_catching_up(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                            neb_ns now);
struct inter_job_status {
    uint32_t term;
    int leader;        // member; -1: none known
    bool leads, votes; // this node
    bool lost;         // its disk was lost: the others knew an older ledger
    // first attempt of this node's present ledger; smaller ones are of a lost disk
    uint32_t attempts;
    struct member_set live, direct; // heard lately; connected to this node
    struct member_set idle;         // report that they send no more updates
    struct member_set removed;      // by a signed membership version
    struct member_set equivocators; // there is evidence against them
    struct member_set renewed;      // came back with an empty ledger, have not caught up
    bool split;                     // INTER_ACT_SPLIT: the job's members have diverged
    // silent or idle, and no round can end without them; none: rounds can end
    struct member_set waits;
    // no_room: their update is announced, but has no room here. owing: they are live, but a round
    // has needed their update for longer than the grace.
    struct member_set no_room, owing;
    // Rounds that the fragment furthest behind has to catch up, proven by signed records.
    uint32_t lag;
};
// False: no such job.
bool inter_node_job_status(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                           neb_ns now, struct inter_job_status *out);
// Members that a newer list does not hold any more. Votes and quorums stay as they are, but no
// round waits for an update of theirs: neither with commit_all, nor because `robust` needs five.
// `private` needs as many updates as before.
void inter_node_job_revoked(struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                            struct member_set gone);
// Members by the digest of (θ, v) that they report for a fragment before a round: the same as
// `digest`, or another one.
struct inter_digests {
    struct member_set same, other;
};
void inter_record_digests(const struct inter_record *r, const uint64_t digest[2],
                          struct inter_digests *out);
// The same for the open round. The digests are in the manifests that are here or, once the round is
// decided, in its record. False: another round is open, or no such job.
bool inter_node_digests(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                        uint32_t fragment, uint32_t round, const uint64_t digest[2],
                        struct inter_digests *out);
// True if a record holds the accepts of a majority of the voters of the job `c`. Accepts that do
// not fit are dropped.
bool inter_node_proves(struct inter_node *n, const struct inter_job_config *c,
                       struct inter_record *r);
// Upper limit of an update's size in the job. A manifest that claims more is not taken.
void inter_node_job_bound(struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                          uint64_t blob_bytes);
// First attempt of this node's present ledger (inter_attempt_first).
uint32_t inter_node_attempt(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES]);
// True for messages that bring an update with its manifest. They are bulk messages, but their
// signature is checked, so they count against a peer's limit.
bool inter_node_is_update(uint8_t type);
// Appends a record as the COMMIT that members send each other.
void inter_node_commit_message(struct neb_buf *out, const struct inter_record *r);
// Chunk size for a new manifest.
uint32_t inter_node_chunk_bytes(const struct inter_node *n, uint32_t blob_bytes);

#endif
