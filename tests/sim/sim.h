// SPDX-License-Identifier: Apache-2.0
// The simulated federation: real round core and worker schedule; time, network, disks and tensors
// are modelled.
//
//     nebula-sim-world.c      virtual time, the event queue, links (sessions, cuts, delay, loss,
//                             duplication, reordering), faults
//     nebula-sim-host.c       one agent: the core's actions on a modelled disk, and its boot
//     nebula-sim-worker.c     one worker: integers for tensors, so that nothing is lost unseen
//     nebula-sim-byzantine.c  a Byzantine member: two brains behind one key, altered messages
//     nebula-sim-terms.c      its false terms
//     nebula-sim-masks.c      masked sums, and what can be read from all revealed seeds
//     nebula-sim-oracle.c     invariants after every store and merge; recomputes the parameters
//     nebula-sim-dump.c       prints the state of every host when a run fails
//     nebula-sim.c            seeds, exhaustive faults, the command line
//
// Everything follows from the seed: a failed run prints its seed and its last events, and can be
// repeated.
#ifndef TESTS_SIM_H
#define TESTS_SIM_H
#include "agent/base/rng.h"
#include "agent/exchange/schedule.h"
#include "inter/round/node.h"

#include <setjmp.h>

enum {
    SIM_WORDS = 3,     // parameters of a fragment
    SIM_FRAGMENTS = 4, // at most
    SIM_ROUNDS = 160,  // at most; more is a violation
    SIM_ATTEMPTS = 8,  // updates of one key that a disk may hold
    SIM_ATTEMPTS_OF_EPOCH = 10,
    SIM_BLOB = INTER_CHUNK_MIN + 256, // two chunks
    SIM_TRACE = 256,
    SIM_POINTS = 2,
    SIM_PAST = 64,  // messages that a Byzantine member keeps to replay them
    SIM_SUMS = 127, // first byte of a message of inter/sums
};

enum sim_fault_kind { // a fault at one exact place, for exhaustive runs
    SIM_NO_FAULT,
    SIM_DROP_MESSAGE,
    SIM_DOUBLE_MESSAGE,
    SIM_DELAY_MESSAGE, // delays it by 7 s
    SIM_CUT_AT_MESSAGE,
    SIM_CRASH_AT_MESSAGE, // the receiver, before the message arrives
    SIM_CRASH_BEFORE_STORE,
    SIM_CRASH_AFTER_STORE,
    SIM_LOSE_DISK_AFTER_STORE,
};
struct sim_point {
    enum sim_fault_kind kind;
    uint64_t index; // of the message or store in the run
};

struct sim_options {
    uint64_t seed;
    uint32_t members, witnesses, rounds, fragments;
    bool chaos;     // random faults by seed
    bool byzantine; // one member is Byzantine
    bool terms;     // it sends false terms only: rounds and an honest leader go on
    bool idle;      // one member's worker ends for good; its agent goes on
    bool rot;       // disks lose complete updates
    bool robust;    // the profile `robust`
    bool masked;    // masked sums, with `colluders`
    uint32_t colluders;
    bool pace;    // no faults; links and workers differ in speed
    bool orderly; // no loss, duplication or reordering inside a session
    struct sim_point points[SIM_POINTS];
    bool trace; // print every event
};

// Why a run cannot go on. UPDATE: a record lists an update that only the Byzantine member has, or
// that honest gates refuse. NEEDED: rounds need all members, and one is revoked. TORN (masked):
// each of two values of a term may be committed.
enum sim_stuck { SIM_GOES_ON, SIM_STUCK_UPDATE, SIM_STUCK_NEEDED, SIM_STUCK_TORN, SIM_STUCKS };

struct sim_result {
    uint64_t messages, stores, steps;
    uint32_t committed, rejected, merges; // commits of all fragments; refused updates; merge rounds
    uint32_t returns; // committed updates of members that were away for longer than others
    uint32_t snapshots;
    uint32_t no_room;    // times that a disk had no room for an update or a part of one
    uint32_t rotten;     // updates that a disk lost
    uint32_t taken_over; // updates of a previous incarnation, committed while a later one trained
    double seconds;      // virtual
    uint32_t splits,
        caught; // runs with diverged honest members; runs with evidence of an equivocation
    uint32_t stuck[SIM_STUCKS]; // runs that the Byzantine member stopped, which is allowed
    double detected; // longest time in s from a divergence until all honest members knew it
    bool failed;
    char why[256];
};

// ---- events ----

enum sim_event_kind {
    SIM_TICK,
    SIM_WORK,
    SIM_MESSAGE,
    SIM_CONNECT,
    SIM_NOTICE,
    SIM_BOOT,
    SIM_BOOT_WORKER,
    SIM_SNAPSHOT,
    SIM_CHAOS,
    SIM_ROT
};

struct sim_message {
    uint8_t from, to;
    bool bulk;
    uint32_t session;
    uint32_t boot; // the receiver's boot number at sending
    bool stale;    // its session is over: the message waited in the receiver's queue
    size_t len;
    uint8_t bytes[]; // owned by the event
};

struct sim_event {
    neb_ns at;
    uint64_t seq;
    enum sim_event_kind kind;
    uint8_t a, b;
    uint32_t tag; // the boot or session to which it belongs
    struct sim_message *m;
};

// ---- a disk ----

struct sim_blob {
    bool here;
    struct inter_manifest m;
    bool whole, rotten;           // rotten: was complete
    int64_t words[SIM_WORDS + 1]; // the last word is 1 if the gate refuses the update
};
struct sim_round { // of one fragment
    struct sim_blob blobs[NEB_MEMBERS_MAX][SIM_ATTEMPTS];
    bool voted, committed, holds; // holds: has a blob since the last pruning
    struct inter_record vote, commit;
};
struct sim_worker_state {
    int64_t step;
    struct agent_fragment frags[SIM_FRAGMENTS];
    int64_t counted_miss[SIM_FRAGMENTS];
    uint32_t again[SIM_FRAGMENTS]; // how often a newer update replaced the one in flight
    uint64_t incarnation; // updates of earlier epochs are from an incarnation whose disk is lost
    int64_t theta[SIM_FRAGMENTS][SIM_WORDS]; // global value
    // the residual; u, while an update is in flight
    int64_t e[SIM_FRAGMENTS][SIM_WORDS];
    int64_t p[SIM_FRAGMENTS][SIM_WORDS]; // learned since the last send
    int64_t dropped[SIM_FRAGMENTS][SIM_WORDS];
    uint64_t tokens;                     // seen in the worker's own steps
    uint64_t tokens_base[SIM_FRAGMENTS]; // part of them in committed or refused updates
    uint64_t tokens_sent[SIM_FRAGMENTS]; // in the update in flight
    uint32_t missed_sent[SIM_FRAGMENTS]; // missed intervals in the update in flight
    int64_t tokens_lost[SIM_FRAGMENTS];  // steps of a previous incarnation, and skipped steps
};
struct sim_reveal { // set for which a member revealed
    bool known;
    struct member_set set;
    uint8_t hash[INTER_SHA_BYTES];
};
struct sim_log {
    uint32_t round;
    int64_t step;
    bool foreign;
};
struct sim_disk {
    bool has_standing;
    struct inter_standing standing;
    struct member_set equivocators;
    struct inter_evidence evidence[NEB_MEMBERS_MAX];
    uint64_t epoch;
    struct sim_round *rounds[SIM_FRAGMENTS][SIM_ROUNDS]; // allocated at the first write
    struct sim_worker_state checkpoint;
    bool has_checkpoint;
    struct sim_log log[SIM_FRAGMENTS][SIM_ROUNDS];
    uint32_t n_log[SIM_FRAGMENTS];
    struct sim_reveal reveals[SIM_FRAGMENTS][SIM_ROUNDS];
    bool knows_shape; // its worker has run
    bool jumped;      // its worker took over a state, so a repeated run differs from there on
    uint32_t base[SIM_FRAGMENTS]; // first record of the chain: the last one of a snapshot
};

struct sim_host {
    uint8_t id;
    bool alive, witness;
    uint32_t boot;
    neb_ns clock_offset;
    int32_t clock_ppm;
    struct inter_node *node;
    struct sim_disk disk;
    uint8_t *parts[SIM_FRAGMENTS][NEB_MEMBERS_MAX]; // [SIM_BLOB] each, while a blob arrives
    bool up[NEB_MEMBERS_MAX];
    bool worker_alive, finished, leaving;
    bool promised_own; // the last update of its worker was accepted
    bool needs_state;  // its disk was lost
    // its disk was lost once: others report its earlier votes, and it votes again
    bool previous_incarnation;
    bool fetching; // a snapshot is in flight
    // by fragment: 1 + the round whose updates this disk lost and nobody has; 0: none
    uint32_t lacks[SIM_FRAGMENTS];
    uint32_t worker_boot;
    struct sim_worker_state w;
    neb_ns step_time;
    bool idle;                         // its worker has ended for good; survives a restart
    bool split;                        // it knows that members have diverged, so its job has ended
    bool split_now;                    // the same, but since its last start
    uint32_t submitted[SIM_FRAGMENTS]; // Byzantine: the next round to submit
    uint64_t crash_in;                 // stores until a crash; 0: none
    neb_ns busy_until;                 // it handles no event before this time
};

struct sim_link { // of a pair, i < j
    bool open[2]; // i to j, j to i
    bool session; // connected
    uint32_t number;
    neb_ns last[2][2]; // last delivery by direction and channel: keeps the order within a session
    neb_ns slow;       // added delay
};

struct sim_trace {
    neb_ns at;
    const char *what;
    int64_t v[5];
};

// A Byzantine member with two brains: its own host, and a twin with its own disk and the same key.
// Each honest member talks to one of them at a time.
struct sim_byzantine {
    uint8_t who, twin;
    bool one_update;                          // both brains send the same update
    bool told;                                // both brains hear all messages
    struct member_set side;                   // honest members that talk to the twin
    neb_ns siege;                             // start of a long division; 0: none is planned
    neb_ns divided;                           // until then the two sides do not hear each other
    bool gone;                                // revoked: faults are over
    bool rejects;                             // it refuses all updates of others
    double have, alter, replay, leak, forget; // probabilities
    double push;                              // probability of a false chunk of an announced update
    double terms;                             // probability of a false term
    double far; // probability of a claim to be rounds ahead, or that records are gone
    struct neb_rng on_terms;
    uint64_t one_kind; // 1 + the only kind of false term that it uses; 0: all kinds
    // captives: members that hear only this member from `silence` to `silence_end`. They promise it
    // `term` (0: none yet)
    struct member_set captives;
    bool poses; // afterwards it claims to lead them
    neb_ns silence, silence_end;
    uint32_t term;
    struct {
        size_t len;
        uint8_t bytes[1 << 13];
    } past[SIM_PAST];
    uint64_t n_past;
};
struct sim_oracle {
    struct {
        bool known;
        uint8_t hash[INTER_SHA_BYTES];
        struct inter_record r;
        int64_t words[NEB_MEMBERS_MAX][SIM_WORDS]; // D(c) of each accepted entry
        uint64_t tokens[NEB_MEMBERS_MAX];          // of each listed update, refused or not
        int64_t steps[NEB_MEMBERS_MAX];            // steps of its member when the update was sent
    } commits[SIM_FRAGMENTS][SIM_ROUNDS];
    int64_t theta[SIM_FRAGMENTS][SIM_ROUNDS + 1][SIM_WORDS];
    struct {
        uint8_t hash[INTER_SHA_BYTES];
        struct member_set voters; // every member that ever had the vote on disk
    } votes[SIM_FRAGMENTS][SIM_ROUNDS][8];
    // disks that ever held a blob
    struct member_set copies[SIM_FRAGMENTS][SIM_ROUNDS][NEB_MEMBERS_MAX][SIM_ATTEMPTS];
    uint32_t attempts[SIM_FRAGMENTS][SIM_ROUNDS][NEB_MEMBERS_MAX][SIM_ATTEMPTS];
    uint32_t top[SIM_FRAGMENTS]; // rounds committed anywhere
    uint32_t used;               // from this round on all entries are zero (of theta: after it)
};

struct sim {
    struct sim_options o;
    struct neb_rng rng;
    neb_ns now;
    uint64_t seq;
    struct sim_event *heap;
    size_t n_heap, cap_heap;
    struct sim_host h[NEB_MEMBERS_MAX + 1]; // the last place: the Byzantine member's twin
    struct sim_link links[NEB_MEMBERS_MAX][NEB_MEMBERS_MAX];
    struct sim_oracle *oracle;
    struct sim_result r;
    jmp_buf on_fail;
    struct sim_trace trace[SIM_TRACE];
    uint64_t n_trace;
    double loss, twice, swap,
        stale;        // probabilities inside a session; stale: that a message outlives it
    bool hunts;       // this seed aims at the leader
    bool stalls;      // in this seed agents are busy or stopped for some seconds
    struct {          // what happens when the next message of a type has arrived
        uint8_t type; // 0: nothing is planned
        uint32_t skip;
        enum {
            SIM_CRASH_SENDER,
            SIM_CRASH_RECEIVER,
            SIM_ISOLATE_SENDER,
            SIM_ISOLATE_RECEIVER
        } what;
    } ambush;
    bool calm;                       // faults are over
    struct sim_byzantine *byzantine; // owned; NULL: all are honest
    struct sim_masks *masks;         // owned; NULL: nothing is masked
    struct {
        bool on; // two honest members have committed different records
        neb_ns at, look;
        uint32_t fragment, round;
    } split;
    int64_t interval, overlap;
    uint64_t epochs;
};

// nebula-sim-world.c
void sim_run(const struct sim_options *o, struct sim_result *out);
void sim_post(struct sim *s, neb_ns after, enum sim_event_kind k, uint8_t a, uint8_t b,
              uint32_t tag);
void sim_transmit(struct sim *s, uint8_t from, uint8_t to, bool bulk, const uint8_t *p, size_t n,
                  const uint8_t *q, size_t m);
void sim_crash(struct sim *s, uint8_t host, neb_ns down_for);
void sim_cut(struct sim *s, uint8_t i, uint8_t j, bool open_ij, bool open_ji);
bool sim_point_hits(const struct sim *s, enum sim_fault_kind k, uint64_t index);
void sim_note(struct sim *s, const char *what, int64_t a, int64_t b, int64_t c, int64_t d,
              int64_t e);
__attribute__((format(printf, 2, 3), noreturn)) void sim_fail(struct sim *s, const char *fmt, ...);
neb_ns sim_clock(const struct sim *s, const struct sim_host *h);
static inline uint64_t sim_day(const struct sim *s) { // ns since 1970; the run starts on 2025-01-01
    return 1735689600u * (uint64_t)NEB_S + (uint64_t)s->now;
}

// nebula-sim-host.c
void sim_host_boot(struct sim *s, uint8_t i);
void sim_host_stop(struct sim *s, uint8_t i);
void sim_host_step(struct sim *s, uint8_t i, const struct inter_event *e);
void sim_host_submit(struct sim *s, uint8_t i, uint32_t f, const struct inter_manifest *m,
                     const int64_t words[SIM_WORDS + 1]);
// Signs as member `who`; any member is allowed.
void sim_sign(uint8_t who, const char *context, const uint8_t *p, size_t n,
              uint8_t sig[INTER_SIG_BYTES]);
struct sim_round *sim_disk_round(struct sim *s, struct sim_disk *d, uint32_t f, uint32_t round);
const struct sim_blob *sim_disk_blob(const struct sim_round *r, uint8_t member, uint32_t attempt);
void sim_disk_lose(struct sim *s, uint8_t i);
void sim_host_free(struct sim_host *h);
void sim_disk_prune(struct sim *s, uint8_t i);
// Requests what disk i lost of a committed round. False: nothing is lost.
bool sim_disk_seeks(struct sim *s, uint8_t i, uint32_t f, uint32_t round);
void sim_disk_rots(struct sim *s);           // loses one random update
void sim_snapshot(struct sim *s, uint8_t i); // a snapshot arrives, if a member can give one

struct inter_node_crypto sim_host_crypto(struct sim_host *h);
// Notes the set of this record before i reveals for it. NEB_ERR_EXISTS: it revealed for another
// set; NEB_ERR_IO: the host is down.
enum neb_status sim_host_keeps(struct sim *s, uint8_t i, const struct inter_record *r);

// nebula-sim-masks.c: no effect where nothing is masked
void sim_masks_set_up(struct sim *s);
void sim_masks_free(struct sim *s);
void sim_masks_boot(struct sim *s, uint8_t i);
void sim_masks_tick(struct sim *s, uint8_t i);
// The manifest is on the disk of its member, so the masked update may be seen.
void sim_masks_handed_out(struct sim *s, const struct inter_manifest *m, const int64_t *words);
void sim_masks_commit(struct sim *s, uint8_t i, const struct inter_record *r);
void sim_masks_message(struct sim *s, uint8_t i, uint8_t from, const uint8_t *p, size_t n);
void sim_masks_asked(struct sim *s);

// nebula-sim-byzantine.c
bool sim_lies(const struct sim *s, uint8_t i); // i is the Byzantine member's host or its twin
void sim_byzantine_set_up(struct sim *s);
void sim_byzantine_shuffle(struct sim *s); // assigns new sides
bool sim_byzantine_divides(const struct sim *s, uint8_t i,
                           uint8_t j); // this link must not heal yet
// Delivers a message to one of the two brains, or to both.
void sim_byzantine_hears(struct sim *s, const struct sim_message *m);
// Changes a message before it is sent; false: it is not sent. bytes: [SIM_BLOB].
bool sim_byzantine_says(struct sim *s, uint8_t from, uint8_t to, uint8_t *bytes, size_t *len);
void sim_byzantine_forgets(struct sim *s, uint8_t i);
void sim_byzantine_leaves_out(struct sim *s,
                              uint8_t i); // masked: each brain omits another member
void sim_byzantine_works(struct sim *s, uint8_t i);
void sim_byzantine_revoked(struct sim *s);
bool sim_byzantine_needed(const struct sim *s); // it is revoked, and rounds need all members
enum sim_stuck sim_byzantine_stuck(const struct sim *s);
bool sim_byzantine_rejects(const struct sim *s, uint8_t i, uint8_t owner);
// Host i has just refused this update. Its node also counts the owner as refusing, and so it
// proposes a rejection.
void sim_byzantine_pretends(struct sim *s, uint8_t i, const struct inter_manifest *m);

// nebula-sim-terms.c
void sim_byzantine_terms_set_up(struct sim *s);
// Changes the terms of a message that host `from` is about to send; false: it is not sent. bytes:
// [SIM_BLOB].
bool sim_byzantine_on_terms(struct sim *s, uint8_t from, uint8_t to, uint8_t *bytes, size_t *len);
// nothing arrives on this link
bool sim_byzantine_silences(const struct sim *s, uint8_t from, uint8_t to);

// nebula-sim-worker.c
void sim_work(struct sim *s, uint8_t i);
void sim_worker_boot(struct sim *s, uint8_t i);
void sim_worker_adopt(struct sim *s, uint8_t i, const struct sim_worker_state *from,
                      uint64_t taken); // bit per fragment of the snapshot
// True if the gate refuses this update.
bool sim_bad_update(const struct sim *s, uint8_t i, uint32_t f, uint32_t round);
uint64_t sim_tokens_of_step(uint8_t member); // differs between members
void sim_produced(uint64_t seed, uint8_t member, uint32_t f, int64_t steps, int64_t out[SIM_WORDS]);

// nebula-sim-oracle.c
struct sim_oracle *sim_oracle(void); // one per process, for one run at a time
void sim_check_vote(struct sim *s, uint8_t i, const struct inter_record *r);
void sim_check_standing(struct sim *s, uint8_t i, const struct inter_standing *st);
void sim_check_blob(struct sim *s, uint8_t i, const struct inter_manifest *m);
void sim_check_commit(struct sim *s, uint8_t i, const struct inter_record *r);
void sim_check_worker(struct sim *s, uint8_t i, uint32_t f);
void sim_check_bounds(struct sim *s, uint8_t i, const struct inter_actions *a);
void sim_check_end(struct sim *s);
// True if honest members hold different records of one round. The records are committed, or they
// are proven and an update is still missing.
bool sim_check_divergence(struct sim *s);
// True if all honest members that are up know of the divergence and of the equivocator; fails when
// that takes too long.
bool sim_check_split(struct sim *s);

// nebula-sim-dump.c
void sim_dump(const struct sim *s);

#endif
