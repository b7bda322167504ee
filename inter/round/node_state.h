// SPDX-License-Identifier: Apache-2.0
// What a node knows, shared by the files of the pure core: node.c (life, ticks, dispatch), node_send.c (what is said and
// to whom), node_evidence.c (what signatures prove, who lies, whether members have diverged, what
// they say of their parameters), node_transfer.c (manifests, chunks that arrive, who holds what),
// node_lost.c (what was whole and is not any more), node_serve.c (chunks that leave), node_round.c
// (proposals, votes, commits), node_check.c (what a proposal must be), node_elect.c (heartbeats, epochs, terms). But for tests, nobody else includes this.
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
};

enum { ANY_ATTEMPT = 0 }; // of a WANT: whatever is there
// bytes of the blob's SHA-256 in a STATE: its member may have signed another one under the key
enum { STATE_DIGEST = 8 };
// hashes of records in a HEARTBEAT, cut: nobody makes two values of one; and how many of a fragment's newest are remembered
enum { HEAD_BYTES = 16, HEADS = 16 };

#define BIT(m) (1u << (m))

static const neb_ns heartbeat_every = NEB_S;
static const neb_ns fresh_for = 5 * NEB_S;    // a member heard within this is live
static const neb_ns repeat_after = 2 * NEB_S; // what is open is said again
// no progress from a source: ask (another) one
static const neb_ns want_soon = 300 * NEB_MS, want_late = 6 * NEB_S;
// until a blob that the disk had no room for is opened again: a try is a look at the disk, and one transfer in vain where that says wrong
static const neb_ns room_first = 5 * NEB_S, room_last = 60 * NEB_S;
static const neb_ns serve_idle = 120 * NEB_S; // a transfer that nobody takes is dropped
static const neb_ns leader_silent = 4 * NEB_S, stagger = NEB_S; // when to ask for a term
static const neb_ns leader_sticky = 3 * NEB_S; // who has just heard the leader promises nothing
// nothing more to whoever was promised a term just now and has proposed nothing in it; it asks again after leader_silent, others by then
static const neb_ns promise_pause = 3 * NEB_S;
// a leader that so few follow, although enough are there; a term that is waited for
static const neb_ns unfollowed = 8 * NEB_S, no_term_patience = 10 * NEB_S;
// No step for so long, where one has a tick every 200 ms: this side was busy or stopped, and others cannot have been heard. Several such times
// may be in one pass over the links, in which updates are finished; one who is not heard between more of them is silent.
static const neb_ns away = NEB_S;
enum { EXCUSED_MAX = 4 };
// between two epochs of one member, each of which is a write that is synced; an honest one has one a disk
static const neb_ns restart_pause = 2 * NEB_S;
// between two answers to one that asks for a term or recovers, each a signature a fragment; it asks again each second
static const neb_ns answer_pause = 700 * NEB_MS;
// for the record in which two histories differ first
static const neb_ns divergence_patience = 10 * NEB_S;

struct slot {      // one member's update in the open round
    bool known;    // manifest is here, and durable
    bool whole;    // blob is durable here, and passed the gate
    bool checking; // BLOB_FINISH is under way
    bool refused;  // by the gate
    // The disk has no room for it: what arrives is dropped, and it is opened again at room_at, later each time.
    bool no_room;
    neb_ns room_at, room_wait;
    struct inter_manifest m;
    uint8_t attempts;           // taken in this round
    bool bad;                   // of this node's own: its gate would refuse it
    float norm;                 // of the decoded update; 0: not known
    float *sketch;              // (CMP_SKETCH) owned; NULL: not known
    uint16_t holders, refusers; // bit per member: blob durable there; refused there
    uint16_t hints;             // who says to hold a blob whose manifest is not here,
    uint32_t hint_attempt;      // of this attempt, the newest told of
    uint16_t gone;              // who was asked and does not have it
    uint16_t other;             // and has another one that its owner signed under the same key
    bool anew;                  // all were asked once, and some of them had such a one
    bool sought;                // somebody was asked
    uint8_t asked;              // member asked last
    uint16_t may_send;          // bit per member: was asked in this round; its owner may anyway
    bool single;                // several sent bytes that do not fit together: only `asked` may
    struct inter_bitmap got;    // while it arrives
    uint16_t senders;           // bit per member: whose chunks those are; of before a restart: all
    neb_ns moved;               // last progress, or last time somebody was asked
    // since its manifest is here, until all live data members held it; 0: before this start, not yet
    neb_ns began, spread;
};

struct fragment {
    uint32_t round; // open
    uint8_t previous[INTER_SHA_BYTES];
    uint64_t cursors[INTER_MEMBERS_MAX]; // of the record before
    struct inter_absence absences[INTER_MEMBERS_MAX];
    struct slot slots[INTER_MEMBERS_MAX];
    struct inter_tuner tuners[INTER_MEMBERS_MAX];
    struct inter_past past[INTER_MEMBERS_MAX];
    struct inter_pair pair; // where two have workers
    bool voted;
    struct inter_record vote;
    uint8_t vote_hash[INTER_SHA_BYTES];
    uint16_t accepted; // bit per member (leader, at its own term)
    struct inter_accept accepts[INTER_MEMBERS_MAX];
    uint16_t promised; // bit per member: for the term that this node asked for
    struct inter_promise promises[INTER_MEMBERS_MAX];
    uint8_t heads[HEADS][HEAD_BYTES]; // by round % HEADS: of the record before it
    uint32_t n_heads;                 // known ones, the newest that of the open round
    bool decided;                     // the round is committed; a blob is still missing here
    struct inter_record decision;
    bool waits; // for what its updates are: this node cannot judge the proposal `pending` before
    struct inter_record pending;
    // this node's own newest update, where a proposal lists an older one that took its place meanwhile
    bool has_own;
    struct inter_manifest own;
    uint32_t floor; // highest open round that a promise told of: nothing is proposed below
    bool has_best;  // and what was accepted in it, at the highest term
    struct inter_record best;
    // Masked: other values of that term, which its leader proposed too. Owned; NULL: there were none.
    struct inter_record *rivals;
    uint8_t n_rivals;
    neb_ns
        doubted; // since when this node would propose that again, and cannot tell whether it is right; 0: it can
    // Open round behind the newest record that was shown to be a majority's: others are as far. What they say themselves proves nothing.
    uint32_t proven;
    uint16_t pulled; // bit per member: asked for the open round's record
    uint16_t bare;   // and has answered that it has none any more;
    neb_ns bare_at;  // since the first such answer
    uint16_t early;  // bit per member: its update of a later round came before this ended here
    neb_ns proposed; // by this node, last; 0: never since the start
    neb_ns said, ready_since; // last repetition; since when enough updates are durable for a commit
    uint16_t diverged;        // bit per member: told about this round
};

struct serve { // one blob on its way to one member
    uint8_t to;
    struct inter_manifest m;
    struct inter_sender out;
    neb_ns moved;
};

struct member {
    neb_ns heard;     // last heartbeat; 0: never since the start
    uint8_t excused;  // times that this node was away itself since then
    uint16_t reaches; // bit per member, as it says
    // of its ledger, by the newest heartbeat; what it said to hold under an older one is gone
    uint64_t epoch;
    uint32_t goodput_kbps; // of its way to the slowest other one, by its newest STATE; 0: unknown
    bool full;             // as in inter/round/estimate.h
    bool idle;             // as it says: no update of its comes any more
    bool leaves, knows_me; // knows_me: it has said that it knows this node under its present epoch
    uint64_t knows_me_by;  // under which epoch, by its newest heartbeat; 0: none
    uint64_t told;         // fragments of the election or recovery under way, bit each
    uint32_t rounds[INTER_FRAGMENTS_MAX]; // open there, as it says
    // by its newest heartbeat, and nobody's word but its own
    bool behind; // some rounds, when that came: later, rounds made since would count too
    uint32_t term;
    bool follows;      // it hears a leader, or leads
    neb_ns promised;   // a term, last; 0: never, or it has proposed since
    neb_ns restart_at; // came under a newer epoch, last
    // was told all that this node has accepted, last: for a term, for its own recovery
    neb_ns answered[2];
};

struct job {
    bool open, judges; // judges: its gate knows what an update must hold
    struct inter_job_config c;
    uint64_t blob_max; // 0: INTER_BLOB_MAX
    struct inter_standing standing;
    struct fragment *fragments; // (c.fragments)
    struct member members[INTER_MEMBERS_MAX];
    struct serve *serves;
    size_t n_serves, cap_serves;
    struct slot *missing; // owned: updates of rounds that are over, whose bytes are here no more
    size_t n_missing, cap_missing;
    bool leads;            // at standing.term
    bool asks;             // for standing.term: promises are being collected
    bool recovers;         // its disk was lost: the others are asked what they have accepted
    uint16_t knew_older;   // bit per member: by whose word
    uint32_t own_first;    // attempt of this node's first update since its start; 0: there was none
    bool lost;             // that was so since this node opened the job
    uint16_t told_without; // bit per member: no member any more when the others began to tell
    uint32_t recovered_term;
    bool leaving;
    bool idle;             // no worker of this member comes any more (inter_node_job_idle)
    bool held;             // by its own limit of rate: no chunk of it leaves before the next tick
    uint16_t equivocators; // bit per member: evidence is here
    struct inter_evidence evidence[INTER_MEMBERS_MAX];
    uint16_t diverged; // bit per member: has shown a record that is not in this node's history
    neb_ns diverged_at;
    bool split;                // that was said
    struct inter_record other; // diverged: of another member, to be compared with this node's own
    uint32_t other_from;       // peer
    int leader;                // heard last, -1: none
    uint8_t leader_excused;    // like a member's
    neb_ns leader_heard, next_heartbeat, asked_at, born;
    neb_ns unfollowed_at; // leads: since when too few follow; 0: enough do
    neb_ns unled_at;      // follows: since when too many are in other terms than its leader; 0: no
    neb_ns no_term_at;    // since when this node would ask for a term, and has none; 0: it has
    bool no_term;         // that was said
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
    neb_ns stepped;           // last
    struct inter_action sink; // written when the list cannot grow; the step then reports it
};

struct step { // what one step carries along
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
void node_fault(struct step *s, enum inter_fault f); // of whoever sent what is looked at
void node_blame_author(struct step *s, const struct job *j, uint8_t m, enum inter_fault f);
struct job *node_find_job(struct inter_node *n, const uint8_t id[INTER_ID_BYTES]);
struct fragment *node_find_fragment(struct job *j, uint32_t f);
int node_member(const struct job *j, uint32_t peer); // -1: not of this job
void node_message(struct step *s, const uint8_t *p, size_t len, bool bulk);

static inline int node_count(uint32_t bits) { return __builtin_popcount(bits); }
static inline uint16_t node_everyone(const struct job *j) {
    return (uint16_t)(BIT(j->c.n_members) - 1);
}
static inline uint16_t node_data(const struct job *j) {
    return (uint16_t)(node_everyone(j) & ~j->c.witnesses & ~j->c.removed);
}
// Nothing is voted for or committed meanwhile.
static inline bool node_diverged(const struct job *j) { return j->diverged & ~j->equivocators; }
static inline bool node_is_witness(const struct job *j) { return j->c.witnesses >> j->c.self & 1; }
// So many that any two majorities share an honest voter, as many lying as the profile bounds: a
// leader that signs two records of one term gets votes enough for one of them at most.
static inline bool node_majority(const struct job *j, uint32_t votes) {
    uint32_t voters = node_everyone(j) & ~(uint32_t)j->c.removed;
    return node_count(votes & voters) >= inter_job_quorum(&j->c);
}
// Two members do not elect: member 0 leads for ever, unless a membership version removed one of them.
static inline bool node_fixed_leader(const struct job *j) {
    return j->c.n_members < 3 && !j->c.removed;
}
// A data member whose worker has never attached proposes nothing of its own: it is no leader, but where there can be no other.
static inline bool node_leads(const struct job *j) {
    return j->leads && (j->judges || node_fixed_leader(j));
}
// What this node must have the updates of: they are asked for, whatever else their members have sent since.
static inline const struct inter_record *node_sought(const struct fragment *g) {
    return g->decided ? &g->decision : g->waits ? &g->pending : NULL;
}
// The open round that a member can have, as far as records have shown; at least this node's own.
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
// What this node's chunks get on the way to the slowest member that takes them; 0: not known.
uint32_t node_goodput(const struct step *s, const struct job *j, bool *full);
// Plans of the record that is to be proposed. They are part of its value: where another one is committed, inter_tune_adopt takes
// that one's.
void node_plan(const struct step *s, const struct job *j, struct fragment *g,
               struct inter_record *r);
// directly or through a third
bool node_reaches(const struct step *s, const struct job *j, uint8_t member);
bool node_live(const struct step *s, const struct job *j, uint8_t member); // and heard lately
bool node_idle(const struct job *j, uint8_t member); // no update of its comes any more
void node_on_forward(struct step *s, struct neb_rd *r);
void node_send_manifest(struct step *s, struct job *j, const struct inter_manifest *m,
                        uint8_t member);
void node_send_state(struct step *s, struct job *j, const struct slot *t, uint8_t member);
void node_send_state_all(struct step *s, struct job *j, const struct slot *t);
void node_send_record_all(struct step *s, struct job *j, enum message type,
                          const struct inter_record *r);
void node_send_key(struct step *s, struct job *j, enum message type, const struct inter_key *k,
                   uint8_t member); // WANT, GONE
void node_send_pull(struct step *s, struct job *j, struct fragment *g, uint8_t member);
// For the record of any round.
void node_send_pull_of(struct step *s, struct job *j, const struct fragment *g, uint32_t round,
                       uint8_t member);
void node_answer_old(struct step *s, const struct job *j, uint32_t round, uint32_t f);
void node_repeat(struct step *s, struct job *j, struct fragment *g, uint8_t member);

// node_evidence.c
void node_on_evidence(struct step *s, struct neb_rd *r);
void node_on_commit_read(struct step *s);
void node_diverged_tick(struct step *s, struct job *j);
void node_send_evidence(struct step *s, struct job *j, uint8_t equivocator, uint8_t to);
// Checks signatures; what is new is stored and handed on. False: it proves nothing.
bool node_take_evidence(struct step *s, struct job *j, const struct inter_evidence *e);
// Of two records of one fragment, whose statements need not have been checked.
void node_compare(struct step *s, struct job *j, const struct inter_record *x,
                  const struct inter_record *y);
// Of two manifests that fit one key.
void node_second_update(struct step *s, struct job *j, const struct inter_manifest *former,
                        const struct inter_manifest *m);
// Of what this node has voted for, with the accepts that it was told, and another one.
void node_compare_vote(struct step *s, struct job *j, const struct fragment *g,
                       const struct inter_record *c);
// c, of the member that speaks, carries a majority's accepts, and is no part of this node's history.
void node_diverge(struct step *s, struct job *j, struct fragment *g, const struct inter_record *c);
// The hash before round `round`, HEAD_BYTES of it; NULL: not known (any more).
const uint8_t *node_head(const struct fragment *g, uint32_t round);
void node_new_head(struct fragment *g); // of g->round and g->previous
// This node's own, signed. False: it cannot sign.
bool node_promise(struct step *s, const struct job *j, const struct fragment *g,
                  struct inter_promise *out);
bool node_promise_fits(struct inter_node *n, const struct job *j, const struct inter_record *r,
                       const struct inter_promise *p);
// Whether the promises that a record of a term above 0 carries left its leader free to propose it.
bool node_justified(struct inter_node *n, const struct job *j, const struct inter_record *r);
void node_add_promises(const struct job *j, const struct fragment *g, struct inter_record *r);
// Whether those of the accepts that a record carries which are good are a majority's: the others are dropped; or would be one's without those of
// equivocators.
bool node_proven(struct inter_node *n, const struct job *j, struct inter_record *r);
bool node_proven_without_equivocators(const struct job *j, const struct inter_record *r);
// Masked: makes that one of `best` and its rivals the best of which, by the promises that are here,
// no other may have been committed. False: there is none.
bool node_settle_rivals(const struct job *j, struct fragment *g);
// Whether an accept of r that its leader signed is among r's.
bool node_leader_voted(struct inter_node *n, const struct job *j, const struct inter_record *r);

// node_transfer.c
void node_on_submit(struct step *s);
void node_on_manifest(struct step *s, struct neb_rd *r);
void node_on_state(struct step *s, struct neb_rd *r);
void node_on_chunk(struct step *s, struct neb_rd *r);
void node_on_gone(struct step *s, struct neb_rd *r);
void node_on_blob_done(struct step *s);
void node_on_blob_room(struct step *s);
void node_transfer_tick(struct step *s, struct job *j);
// What this node's own disk has of an update that is sought; m NULL: nothing.
void node_own_kept(struct step *s, struct job *j, const struct inter_key *k,
                   const struct inter_manifest *m);
// A proposal that waits to be judged and is one of a leader of before, or of an equivocator: what is known beside it counts again.
void node_drop_pending(struct step *s, struct job *j, struct fragment *g);
void node_clear_slot(struct slot *t);
// Nobody has what this node needs of a round (inter_key's round and fragment).
void node_behind(struct step *s, struct job *j, const struct inter_key *k);

// node_lost.c
void node_on_blob_lost(struct step *s);
struct slot *node_lost_slot(struct job *j, const struct inter_key *k); // NULL: it is not sought
void node_lost_found(struct step *s, struct job *j, struct slot *t);   // t is gone
// False: the update is not sought.
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
bool node_accept_fits(struct inter_node *n, const struct job *j, const struct inter_record *r,
                      const struct inter_accept *a);
void node_on_propose(struct step *s, struct neb_rd *r);
void node_on_accept(struct step *s, struct neb_rd *r);
void node_on_commit(struct step *s, struct neb_rd *r);
void node_on_pull(struct step *s, struct neb_rd *r);
void node_clear_round(struct job *j, struct fragment *g);
void node_vote(struct step *s, struct job *j, struct fragment *g, const struct inter_record *r);
// Updates that a record must list.
int node_least(const struct job *j);
// Bit per data member that is here: its update has been missing for longer than the grace, and no record can do without it.
uint16_t node_owing(const struct step *s, const struct job *j);
uint16_t node_no_room(const struct job *j);
bool node_verify_record(struct inter_node *n, const struct job *j, const struct inter_record *r);
// node_check.c
// UNKNOWN: not before its bytes are here
enum node_judgement { NODE_FAIR, NODE_UNFAIR, NODE_UNKNOWN };
// Whether a record is what those before it ask for.
bool node_follows(const struct job *j, const struct fragment *g, const struct inter_record *r);
// Of a proposal in the open round; given: (n) manifests that came with it, which fit.
enum node_judgement node_judge(const struct job *j, const struct fragment *g,
                               const struct inter_record *r, const struct inter_manifest *given,
                               uint8_t n);
// Of a record that has to be proposed again: whether this node would vote for what it rejects. A promise says that it was accepted, and proves
// nothing; with whoever says so two votes would be enough for it. Once its first leader is revoked, it is as good as any other.
enum node_judgement node_rejudge(const struct job *j, const struct fragment *g,
                                 const struct inter_record *r, uint8_t first_leader);
// Norms of the updates that a record accepts, by member; false: one of them is not known here.
bool node_norms_of(const struct fragment *g, const struct inter_record *r,
                   float norms[INTER_MEMBERS_MAX]);
// Manifests of what a proposal lists, as far as they are here: behind it in its message.
void node_put_manifests(struct neb_buf *b, const struct job *j, const struct inter_record *r);
bool node_get_manifests(struct neb_rd *in, struct inter_manifest out[INTER_MEMBERS_MAX],
                        uint8_t *n);
bool node_manifests_fit(struct inter_node *x, const struct job *j, const struct fragment *g,
                        const struct inter_record *r, const struct inter_manifest *m, uint8_t n);
// Updates that a record of the profile `robust` must list: of fewer members one bad one is not outvoted, unless a signed list removed some.
static inline int node_robust_least(const struct job *j) {
    int left = node_count(node_data(j) & ~j->c.gone);
    return left < INTER_ROBUST_MEMBERS ? left : INTER_ROBUST_MEMBERS;
}

// node_transfer.c
bool node_verify_manifest(struct inter_node *n, const struct job *j,
                          const struct inter_manifest *m);
// Whether what is said to be behind an update fits the steps that its member can have made since its last committed one.
bool node_possible(const struct job *j, const struct fragment *g, const struct inter_manifest *m);

// node_round.c
// Whether a member that was at g->cursors when its last update was committed can have seen so many tokens by this step.
bool node_weight_possible(const struct job *j, const struct fragment *g, uint8_t m, uint64_t step,
                          uint64_t tokens);
// Whether an update is refused: by this node's gate. Where this node does not judge (its own update; a witness has no bytes), by that of most
// others who do: one member's word rejects nothing. Where there is one other only, its owner has to say so too (REFUSED in its own STATE).
// Of a job of two members the other one's word is enough: neither can do without it.
bool node_is_refused(const struct job *j, const struct slot *t, uint8_t m);
// Whether a witness that has heard what this node has heard would vote for a record that rejects it.
bool node_witness_rejects(const struct job *j, const struct slot *t, uint8_t m);
// r commits exactly m
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
