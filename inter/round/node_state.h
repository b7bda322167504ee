// SPDX-License-Identifier: Apache-2.0
// State of a node, shared by the files of the pure core. Besides them only tests include it.
//
//     node.c             set-up, restore, events, dispatch of messages, status
//     node_send.c        how messages are sent, and to whom
//     node_evidence.c    what signatures prove; equivocation, divergence, digests of parameters
//     node_transfer.c    manifests, chunks that arrive, which member holds what
//     node_lost.c        updates that were complete and are lost
//     node_serve.c       chunks that leave
//     node_round.c       proposals, votes, commits
//     node_short.c       proposals in short
//     node_check.c       what a proposal must be
//     node_plan.c        plans in a proposal
//     node_elect.c       heartbeats, epochs, terms
#ifndef INTER_NODE_STATE_H
#define INTER_NODE_STATE_H
#include "inter/record/robust.h"
#include "inter/round/node.h"

enum { JOBS_MAX = 8, PEERS_MAX = INTER_PEERS_MAX };
enum message {
    MSG_MANIFEST = 1,
    MSG_STATE,
    MSG_ACK,
    MSG_PROPOSE,
    MSG_ACCEPT,
    MSG_COMMIT,
    MSG_PULL,
    MSG_CHUNK,
    MSG_HEARTBEAT,
    MSG_ELECT,
    MSG_PROMISE,
    MSG_WANT,
    MSG_GONE,
    MSG_FORWARD,
    MSG_EVIDENCE,
    MSG_SHORT,
    MSG_UPDATE,
    MSG_AGREE,
};

enum { ANY_ATTEMPT = 0 }; // in a WANT: any attempt
// Bytes of the blob's SHA-256 in a STATE: a member may have signed another blob under the key.
enum { STATE_DIGEST = 8 };
// HEAD_BYTES: length of a record's hash in a HEARTBEAT, enough against collisions. HEADS: newest
// hashes that are remembered per fragment.
enum { HEAD_BYTES = 16, HEADS = 16 };

static const neb_ns heartbeat_every = NEB_S;
static const neb_ns heartbeat_rare = 2 * NEB_S; // of two members that send each other messages
enum { ROUNDS_NEAR = 32 };                      // that a member makes between two heartbeats
static const neb_ns fresh_for = 5 * NEB_S;      // a member heard within this time is live
static const neb_ns repeat_after = 2 * NEB_S;   // open messages are repeated
// no progress from a source: ask a (or another) member
static const neb_ns want_soon = 300 * NEB_MS, want_late = 6 * NEB_S;
// Time until a blob that the disk had no room for is opened again. A retry looks at the disk. If
// that shows room where there is none, one transfer is wasted.
static const neb_ns room_first = 5 * NEB_S, room_last = 60 * NEB_S;
// a transfer that its receiver does not take is dropped
static const neb_ns serve_idle = 120 * NEB_S;
static const neb_ns leader_silent = 4 * NEB_S, stagger = NEB_S; // when to ask for a term
// a node that has just heard its leader promises nothing
static const neb_ns leader_sticky = 3 * NEB_S;
// A candidate that was just promised a term and has proposed nothing in it gets no other promise.
// It asks again after leader_silent; by then other members may have asked.
static const neb_ns promise_pause = 3 * NEB_S;
// too few follow a leader although enough are live; no term is available
static const neb_ns unfollowed = 8 * NEB_S, no_term_patience = 10 * NEB_S;
// No step for this long, with a tick every 200 ms, means that this node was busy or stopped and
// cannot have heard the others. One pass over the links, which finishes updates, may hold several
// such pauses. A member counts as silent if more than EXCUSED_MAX such pauses have passed since it
// was last heard.
static const neb_ns away = NEB_S;
enum { EXCUSED_MAX = 4 };
// Least time between two new epochs of a member. Each is a synced write; an honest member has one
// per disk.
static const neb_ns restart_pause = 2 * NEB_S;
// Least time between two answers to a candidate or a recovering member. An answer costs a signature
// per fragment; the member asks each second.
static const neb_ns answer_pause = 700 * NEB_MS;
// time to find the record in which two histories first differ
static const neb_ns divergence_patience = 10 * NEB_S;

struct slot {      // one member's update in the open round
    bool known;    // manifest is here and durable
    bool whole;    // blob is durable here and has passed the gate
    bool checking; // BLOB_FINISH is under way
    bool refused;  // by the gate
    // The disk has no room: what arrives is dropped. A retry follows at room_at, later each time.
    bool no_room;
    neb_ns room_at, room_wait;
    struct inter_manifest m;
    uint8_t attempts;                    // taken in this round
    bool bad;                            // this node's own update, which its gate would refuse
    float norm;                          // of the decoded update; 0: not known
    float *sketch;                       // (CMP_SKETCH) owned; NULL: not known
    struct member_set holders, refusers; // blob durable there; refused there
    struct member_set hints;             // report a blob whose manifest is not here
    uint32_t hint_attempt;               // of this attempt, the newest reported
    struct member_set gone;              // were asked and do not have it
    struct member_set other;    // and have another blob that the owner signed under this key
    bool anew;                  // all were asked once, and some had such a blob
    bool sought;                // some member was asked
    uint8_t asked;              // member asked last
    struct member_set may_send; // were asked in this round; the owner need not be
    bool single;                // chunks of several members did not fit: only `asked` may send
    struct inter_bitmap got;    // chunks that have arrived
    struct member_set senders;  // sent some of them; after a restart: all
    neb_ns moved;               // last progress, or last time a member was asked
    // began: when its manifest arrived, 0: before this start. spread: when all live data members
    // held it, 0: not yet.
    neb_ns began, spread;
};

struct fragment {
    uint32_t round; // open
    uint8_t previous[INTER_SHA_BYTES];
    uint64_t cursors[NEB_MEMBERS_MAX]; // of the previous record
    struct inter_absence absences[NEB_MEMBERS_MAX];
    struct slot slots[NEB_MEMBERS_MAX];
    struct inter_tuner tuners[NEB_MEMBERS_MAX];
    struct inter_past past[NEB_MEMBERS_MAX];
    struct inter_pair pair; // used if two members have workers
    bool voted;
    struct inter_record vote;
    uint8_t vote_hash[INTER_SHA_BYTES];
    struct member_set accepted; // have accepted `vote` (known to its leader)
    struct inter_accept accepts[NEB_MEMBERS_MAX];
    struct member_set promised; // for the term that this node asked for
    struct inter_promise promises[NEB_MEMBERS_MAX];
    uint8_t heads[HEADS][HEAD_BYTES]; // by round % HEADS: hash of the record before it
    uint32_t n_heads;                 // known ones; the newest is that of the open round
    bool decided;                     // the round is committed; a blob is still missing here
    struct inter_record decision;
    bool waits; // `pending` cannot be judged before its updates are here
    struct inter_record pending;
    // this node's own newest update, while a proposal lists an older one that has taken its slot
    bool has_own;
    struct inter_manifest own;
    uint32_t floor; // highest open round in a promise: nothing is proposed below
    bool has_best;  // and what was accepted in it, at the highest term
    struct inter_record best;
    // Masked: other values of that term, which its leader proposed too. Owned; NULL: none.
    struct inter_record *rivals;
    uint8_t n_rivals;
    // since when this node has to propose `best` again but cannot judge it; 0: it can
    neb_ns doubted;
    // Round after the newest record that is proven to have a majority's accepts: other members have
    // got that far. Their own reports prove nothing.
    uint32_t proven;
    struct member_set pulled;   // asked for the open round's record
    struct member_set bare;     // those of them that answered that they have none
    neb_ns bare_at;             // when the first such answer came
    struct member_set early;    // sent an update of a later round already
    neb_ns proposed;            // by this node, last; 0: never since the start
    neb_ns said, ready_since;   // last repetition; since when enough updates are durable
    struct member_set diverged; // reported for this round
};

struct serve { // one blob that is sent to one member
    uint8_t to;
    bool pushed; // its only chunk brings the manifest (UPDATE)
    struct inter_manifest m;
    struct inter_sender out;
    neb_ns moved;
};

struct member {
    neb_ns heard;              // last heartbeat; 0: none since the start
    neb_ns said, beat;         // last message to it, last heartbeat to it
    uint8_t excused;           // times that this node itself was away since then
    struct member_set reaches; // as it reports
    // Of its ledger, by its newest heartbeat. What it held under an older epoch is gone.
    uint64_t epoch;
    // to the slowest member that it sends to, by its newest STATE; 0: unknown
    uint32_t goodput_kbps;
    bool full;             // as in inter/round/estimate.h
    bool idle;             // it reports that it sends no more updates
    bool leaves, knows_me; // knows_me: it has reported that it knows this node's present epoch
    uint64_t knows_me_by;  // epoch of this node that it knows, by its newest heartbeat; 0: none
    uint64_t told;         // bit per fragment: has promised in the current election or recovery
    uint32_t rounds[INTER_FRAGMENTS_MAX]; // open there, as it reports
    // The next three are from its newest heartbeat; only it vouches for them.
    bool behind; // some rounds behind when that came; later rounds do not count
    uint32_t term;
    bool follows;      // it hears a leader, or leads
    neb_ns promised;   // when it was last promised a term; 0: never, or it has proposed since
    neb_ns restart_at; // when it last came with a newer epoch
    // when this node last reported all that it has accepted: for a term, for a recovery
    neb_ns answered[2];
};

struct job {
    bool open, judges; // judges: its gate knows what an update must hold
    struct inter_job_config c;
    uint64_t blob_max; // 0: INTER_BLOB_MAX
    struct inter_standing standing;
    struct fragment *fragments; // (c.fragments)
    struct member members[NEB_MEMBERS_MAX];
    struct serve *serves;
    size_t n_serves, cap_serves;
    struct slot *missing; // owned: updates of earlier rounds whose bytes are lost here
    size_t n_missing, cap_missing;
    bool leads;                     // at standing.term
    bool asks;                      // candidate for standing.term: promises are being collected
    bool recovers;                  // its disk was lost: it asks the others what they have accepted
    struct member_set knew_older;   // report an older epoch of this node
    uint32_t own_first;             // attempt of this node's first update since its start; 0: none
    bool lost;                      // its disk was lost before it opened the job
    struct member_set told_without; // removed or revoked when the recovery began
    uint32_t recovered_term;
    bool leaving;
    bool idle;                      // this member has no worker any more (inter_node_job_idle)
    bool held;                      // by its own rate limit: no chunk leaves before the next tick
    struct member_set equivocators; // evidence is here
    struct inter_evidence evidence[NEB_MEMBERS_MAX];
    struct member_set diverged; // have shown a record that is not in this node's history
    neb_ns diverged_at;
    bool split;                // INTER_ACT_SPLIT was issued
    struct inter_record other; // the record of another member, to be compared with this node's own
    uint32_t other_from;       // peer
    int leader;                // heard last; -1: none
    uint8_t leader_excused;    // as in struct member
    neb_ns leader_heard, next_heartbeat, asked_at, born;
    neb_ns unfollowed_at; // leads: since when too few follow; 0: enough do
    neb_ns unled_at;      // follows: since when too many have another term than its leader; 0: no
    neb_ns no_term_at; // since when this node wants to ask for a term and has none; 0: it has one
    bool no_term;      // and this was reported
};

struct path {
    bool up;
    struct inter_estimate estimate;
    struct inter_path_stats stats;
};

struct inter_node {
    struct inter_node_crypto crypto;
    struct job jobs[JOBS_MAX];
    struct path paths[PEERS_MAX];
    struct neb_buf scratch, envelope;
    neb_ns stepped;           // time of the last step
    struct inter_action sink; // written when the list cannot grow; the step then fails
};

struct step { // context of one step
    struct inter_node *n;
    neb_ns now;
    const struct inter_event *e;
    uint32_t from; // peer that speaks: the origin of a forwarded message
    struct inter_actions *out;
    enum neb_status st;
};

// node.c
struct inter_action *node_act(struct step *s, enum inter_action_kind kind);
void node_blame(struct step *s, uint32_t peer, enum inter_fault f);
void node_fault(struct step *s, enum inter_fault f); // blames the sender
void node_blame_author(struct step *s, const struct job *j, uint8_t m, enum inter_fault f);
struct job *node_find_job(struct inter_node *n, const uint8_t id[INTER_ID_BYTES]);
struct fragment *node_find_fragment(struct job *j, uint32_t f);
int node_member(const struct job *j, uint32_t peer); // -1: not a member
void node_message(struct step *s, const uint8_t *p, size_t len, bool bulk);

static inline struct member_set node_everyone(const struct job *j) {
    return mset_first(j->c.n_members);
}
// The members whose votes count.
static inline struct member_set node_voters(const struct job *j) {
    return mset_minus(node_everyone(j), j->c.removed);
}
static inline struct member_set node_data(const struct job *j) {
    return mset_minus(node_voters(j), j->c.witnesses);
}
// The data members that are still in the member list.
static inline struct member_set node_data_left(const struct job *j) {
    return mset_minus(node_data(j), j->c.gone);
}
// True if a list removed or revoked this member.
static inline bool node_left(const struct job *j, int m) {
    return mset_has(j->c.removed, m) || mset_has(j->c.gone, m);
}
// While this is true, this node votes for nothing and commits nothing.
static inline bool node_diverged(const struct job *j) {
    return !mset_within(j->diverged, j->equivocators);
}
static inline bool node_is_witness(const struct job *j) {
    return mset_has(j->c.witnesses, j->c.self);
}
// True for a quorum. Any two share an honest voter, with as many Byzantine members as the profile
// tolerates. So of two records that a leader signs in one term, at most one gets enough votes.
static inline bool node_majority(const struct job *j, struct member_set votes) {
    return mset_count(mset_common(votes, node_voters(j))) >= inter_job_quorum(&j->c);
}
// Two members hold no election: member 0 leads, unless a membership version removed one of them.
static inline bool node_fixed_leader(const struct job *j) {
    return j->c.n_members < 3 && mset_empty(j->c.removed);
}
// A data member whose worker has never attached has nothing of its own to propose. It leads only if
// no other member can.
static inline bool node_leads(const struct job *j) {
    return j->leads && (j->judges || node_fixed_leader(j));
}
// Record whose updates this node must get, whatever their members have sent since. NULL: none.
static inline const struct inter_record *node_sought(const struct fragment *g) {
    return g->decided ? &g->decision : g->waits ? &g->pending : NULL;
}
// The newest round that a member can have open, by proven records; at least this node's own.
static inline uint32_t node_proven_round(const struct fragment *g) {
    uint32_t own = g->round + g->decided;
    return g->proven > own ? g->proven : own;
}
static inline uint32_t node_index(const struct job *j, const struct fragment *g) {
    return (uint32_t)(g - j->fragments);
}

// node_send.c
struct neb_buf *node_begin(struct step *s, enum message type); // into the scratch buffer
void node_send(struct step *s, struct job *j, uint8_t member); // what node_begin started
bool node_direct(const struct step *s, const struct job *j, uint8_t member);
// Goodput of this node's chunks to the slowest member that takes them; 0: not known.
uint32_t node_goodput(const struct step *s, const struct job *j, bool *full);
// Sets the plans of a record to be proposed. They are part of its value: if another value is
// committed, inter_tune_adopt takes the plans of that one.
void node_plan(const struct step *s, const struct job *j, struct fragment *g,
               struct inter_record *r);
// True if connected, directly or through a third member.
bool node_reaches(const struct step *s, const struct job *j, uint8_t member);
bool node_live(const struct step *s, const struct job *j, uint8_t member); // and heard lately
bool node_idle(const struct job *j, uint8_t member); // it sends no more updates
void node_on_forward(struct step *s, struct neb_rd *r);
void node_send_manifest(struct step *s, struct job *j, const struct inter_manifest *m,
                        uint8_t member);
void node_send_state(struct step *s, struct job *j, const struct slot *t, uint8_t member);
void node_send_state_all(struct step *s, struct job *j, const struct slot *t);
void node_send_record(struct step *s, struct job *j, enum message type,
                      const struct inter_record *r, uint8_t to);
void node_send_key(struct step *s, struct job *j, enum message type, const struct inter_key *k,
                   uint8_t member); // WANT, GONE
void node_send_pull(struct step *s, struct job *j, struct fragment *g, uint8_t member);
// Pulls the record of any round.
void node_send_pull_of(struct step *s, struct job *j, const struct fragment *g, uint32_t round,
                       uint8_t member);
void node_answer_old(struct step *s, const struct job *j, uint32_t round, uint32_t f);
// Repeats what a member may have missed. pulled: it has just come to this round.
void node_repeat(struct step *s, struct job *j, struct fragment *g, uint8_t member, bool pulled);

// node_evidence.c
void node_on_evidence(struct step *s, struct neb_rd *r);
void node_on_commit_read(struct step *s);
void node_diverged_tick(struct step *s, struct job *j);
void node_send_evidence(struct step *s, struct job *j, uint8_t equivocator, uint8_t to);
// Checks signatures. Stores new evidence and passes it on. False: it proves nothing.
bool node_take_evidence(struct step *s, struct job *j, const struct inter_evidence *e);
// Looks for evidence in two records of one fragment. Their statements need not be checked before.
void node_compare(struct step *s, struct job *j, const struct inter_record *x,
                  const struct inter_record *y);
// Two manifests that fit one key: evidence if they differ.
void node_second_update(struct step *s, struct job *j, const struct inter_manifest *former,
                        const struct inter_manifest *m);
// Compares this node's vote, with the accepts that it has received, with another record.
void node_compare_vote(struct step *s, struct job *j, const struct fragment *g,
                       const struct inter_record *c);
// The sender's record c holds a majority's accepts but is not in this node's history.
void node_diverge(struct step *s, struct job *j, struct fragment *g, const struct inter_record *c);
// Hash of the record before round `round`, HEAD_BYTES of it; NULL: not known.
const uint8_t *node_head(const struct fragment *g, uint32_t round);
void node_new_head(struct fragment *g); // for g->round, from g->previous
// Signs this node's own promise. False: it cannot sign.
bool node_promise(struct step *s, const struct job *j, const struct fragment *g,
                  struct inter_promise *out);
bool node_promise_fits(struct inter_node *n, const struct job *j, const struct inter_record *r,
                       const struct inter_promise *p);
// True if the promises in a record of a term above 0 left its leader free to propose it.
bool node_justified(struct inter_node *n, const struct job *j, const struct inter_record *r);
void node_add_promises(const struct job *j, const struct fragment *g, struct inter_record *r);
// True if a majority has accepted the record; accepts that do not fit are dropped. The second: true
// if it is a majority even without equivocators.
bool node_proven(struct inter_node *n, const struct job *j, struct inter_record *r);
bool node_proven_without_equivocators(const struct job *j, const struct inter_record *r);
// Masked: picks from `best` and its rivals a value such that, by the promises that are here, no
// other can have been committed, and makes it `best`. False: there is none.
bool node_settle_rivals(const struct job *j, struct fragment *g);
// True if r holds a valid accept of its leader.
bool node_leader_voted(struct inter_node *n, const struct job *j, const struct inter_record *r);

// node_transfer.c
void node_on_submit(struct step *s);
void node_on_manifest(struct step *s, struct neb_rd *r);
void node_on_state(struct step *s, struct neb_rd *r);
void node_on_chunk(struct step *s, struct neb_rd *r);
void node_on_update(struct step *s, struct neb_rd *r);
void node_on_gone(struct step *s, struct neb_rd *r);
void node_on_blob_done(struct step *s);
void node_on_blob_room(struct step *s);
void node_transfer_tick(struct step *s, struct job *j);
// What this node's own disk has of a sought update. m NULL: nothing.
void node_own_kept(struct step *s, struct job *j, const struct inter_key *k,
                   const struct inter_manifest *m);
// Drops a pending proposal of an earlier leader or an equivocator, and restores this node's newer
// update.
void node_drop_pending(struct step *s, struct job *j, struct fragment *g);
void node_clear_slot(struct slot *t);
// No member has what this node needs of k's round and fragment.
void node_behind(struct step *s, struct job *j, const struct inter_key *k);

// node_lost.c
void node_on_blob_lost(struct step *s);
struct slot *node_lost_slot(struct job *j, const struct inter_key *k); // NULL: it is not missing
void node_lost_found(struct step *s, struct job *j, struct slot *t);   // frees t
// False: the update is not missing.
bool node_lost_on_manifest(struct step *s, struct job *j, const struct inter_manifest *m,
                           uint8_t from);
void node_lost_on_gone(struct job *j, const struct inter_key *k, uint8_t from);
void node_lost_tick(struct step *s, struct job *j);
void node_lost_free(struct job *j);

// node_serve.c
void node_on_ack(struct step *s, struct neb_rd *r);
void node_on_want(struct step *s, struct neb_rd *r);
void node_on_serve(struct step *s);
void node_on_send_failed(struct step *s);
void node_on_way_lost(struct step *s);
void node_serve_on_state(struct step *s, struct job *j, const struct inter_key *k,
                         const uint8_t digest[STATE_DIGEST], uint8_t from, enum inter_holding h,
                         const uint8_t *bits, uint32_t len);
enum neb_status node_serve_add(struct step *s, struct job *j, uint8_t to,
                               const struct inter_manifest *m);
// The update's only chunk shall bring the manifest. False: it has more, or is not served.
bool node_serve_push(struct job *j, uint8_t to, const struct inter_manifest *m);
// The member is in an earlier round: an UPDATE waits until it comes to the round (PULL) or answers
// a manifest (STATE).
void node_serve_behind(struct job *j, uint8_t to, uint32_t fragment);
// The member has dropped the UPDATE: it was not in that round yet. False: none was sent to it.
bool node_serve_push_again(struct job *j, uint8_t to, const struct inter_manifest *m);
void node_serve_remove(struct job *j, size_t i);
void node_serves_lost(struct step *s, struct job *j, uint8_t member);
void node_serves_decided(struct job *j, const struct fragment *g);
void node_serves_round_over(struct step *s, struct job *j, const struct fragment *g);
void node_serves_tick(struct step *s, struct job *j);
void node_pump(struct step *s); // fills the window of every path

// node_round.c
void node_forget_rivals(struct fragment *g);
void node_try_propose(struct step *s, struct job *j, struct fragment *g);
void node_try_commit(struct step *s, struct job *j, struct fragment *g);
void node_send_accept(struct step *s, struct job *j, struct fragment *g);
void node_on_propose(struct step *s, struct neb_rd *r);
void node_on_accept(struct step *s, struct neb_rd *r);
void node_on_commit(struct step *s, struct neb_rd *r);
void node_on_pull(struct step *s, struct neb_rd *r);
void node_clear_round(struct job *j, struct fragment *g);
void node_vote(struct step *s, struct job *j, struct fragment *g, const struct inter_record *r);
// Least number of updates in a record.
int node_least(const struct job *j);
// Bit per live data member: no record can do without its update, which has been missing for longer
// than the grace.
struct member_set node_owing(const struct step *s, const struct job *j);
struct member_set node_no_room(const struct job *j);
bool node_verify_record(struct inter_node *n, const struct job *j, const struct inter_record *r);
// A proposal of the sender's; epoch: of its ledger. given: (n_given) manifests that came with it.
void node_take_proposal(struct step *s, const struct inter_record *r, uint64_t epoch,
                        const struct inter_manifest *given, uint8_t n_given);

// node_short.c
// Jobs are named by the first TAG_BYTES of their id.
enum { TAG_BYTES = 8 };
struct job *node_job_of_tag(struct inter_node *n, const uint8_t tag[TAG_BYTES]);
// An own update without what its receiver knows: its member, its size and its digest. get sets
// these from the sender and the bytes (data). False: malformed. *j NULL: the job is not open here,
// or the bytes are damaged, which was reported.
void node_put_pushed(struct neb_buf *b, const struct inter_manifest *m);
bool node_get_pushed(struct step *s, struct neb_rd *r, struct job **j, struct inter_manifest *m,
                     const uint8_t **data);
// Fills all of a record but plans, verdicts, weights and clip factors, which are the usual ones.
void node_expect(const struct job *j, const struct fragment *g, struct member_set listed,
                 struct inter_record *r);
// Sends the proposal in short. False: the member needs it in full, and nothing was sent.
bool node_send_short(struct step *s, struct job *j, const struct inter_record *r, uint8_t to);
void node_on_short(struct step *s, struct neb_rd *r);
void node_send_agree(struct step *s, struct job *j, const struct fragment *g,
                     const struct inter_accept *a);
void node_on_agree(struct step *s, struct neb_rd *r);

// node_check.c
// UNKNOWN: not before the bytes are here.
enum node_judgement { NODE_FAIR, NODE_UNFAIR, NODE_UNKNOWN };
// True if a record follows from the previous one.
bool node_follows(const struct job *j, const struct fragment *g, const struct inter_record *r);
// Judges a proposal in the open round. given: (n) manifests that came with it, and fit.
enum node_judgement node_judge(const struct job *j, const struct fragment *g,
                               const struct inter_record *r, const struct inter_manifest *given,
                               uint8_t n);
// Judges a record that has to be proposed again: would this node vote for its rejections? A promise
// only claims that the record was accepted: without this check the promising member and the new
// leader would be enough to reject an update. A record of a revoked first leader is taken as it is.
enum node_judgement node_rejudge(const struct job *j, const struct fragment *g,
                                 const struct inter_record *r, uint8_t first_leader);
// Norms of the updates that a record accepts, by member. False: one of them is not known here.
bool node_norms_of(const struct fragment *g, const struct inter_record *r,
                   float norms[NEB_MEMBERS_MAX]);
// Manifests of the listed updates, as far as they are here. They follow a proposal in its message.
void node_put_manifests(struct neb_buf *b, const struct job *j, const struct inter_record *r);
bool node_get_manifests(struct neb_rd *in, struct inter_manifest out[NEB_MEMBERS_MAX], uint8_t *n);
bool node_manifests_fit(struct inter_node *x, const struct job *j, const struct fragment *g,
                        const struct inter_record *r, const struct inter_manifest *m, uint8_t n);
// Least number of updates in a record of the profile `robust`: fewer members cannot outvote a bad
// one. A signed list that removed members lowers it.
static inline int node_robust_least(const struct job *j) {
    int left = mset_count(node_data_left(j));
    return left < INTER_ROBUST_MEMBERS ? left : INTER_ROBUST_MEMBERS;
}

// node_transfer.c
bool node_verify_manifest(struct inter_node *n, const struct job *j,
                          const struct inter_manifest *m);
// True if a member can have made the steps that its update claims since its last committed one.
bool node_possible(const struct job *j, const struct fragment *g, const struct inter_manifest *m);

// node_round.c
// True if a member, last committed at g->cursors, can have seen so many tokens by this step.
bool node_weight_possible(const struct job *j, const struct fragment *g, uint8_t m, uint64_t step,
                          uint64_t tokens);
// True if an update counts as refused. A node that judges it decides by its own gate. Otherwise
// (its own update, or a witness, which has no bytes) most of the others that judge must refuse it,
// so that no member alone rejects anything. If only one other judges it, the owner must refuse it
// too (REFUSED in its own STATE). In a job of two the other's report is enough: both are needed.
bool node_is_refused(const struct job *j, const struct slot *t, uint8_t m);
// True if a witness with this node's information would vote for a record that rejects it.
bool node_witness_rejects(const struct job *j, const struct slot *t, uint8_t m);
// True if r lists exactly m.
bool node_lists(const struct inter_record *r, const struct inter_manifest *m);

// node_elect.c
void node_heartbeat(struct step *s, struct job *j, uint8_t member);
void node_on_heartbeat(struct step *s, struct neb_rd *r);
void node_on_elect(struct step *s, struct neb_rd *r);
void node_on_promise(struct step *s, struct neb_rd *r);
void node_elect_tick(struct step *s, struct job *j);
void node_store_standing(struct step *s, struct job *j);
bool node_vote_counts(const struct job *j, uint8_t member, uint64_t epoch);
void node_step_down(struct job *j);

#endif
