// SPDX-License-Identifier: Apache-2.0
// The simulated federation: real round core, real worker schedule; time, network, disks and tensors are modelled.
//
//     nebula-sim-world.c    virtual time, the event queue, links (sessions, cuts, delay, loss, duplication, reordering), faults
//     nebula-sim-host.c     one agent: carries out the core's actions on a modelled disk; boots from what that disk holds
//     nebula-sim-worker.c   one worker: integers for tensors, so that no update can be lost or counted twice unnoticed
//     nebula-sim-byzantine.c     a member that lies: two brains behind one key, and what it does to messages
//     nebula-sim-terms.c    what it says about terms
//     nebula-sim-masks.c    masked sums, and what can be read of all that is ever revealed
//     nebula-sim-oracle.c   invariants after every store and merge; recomputes the parameters from the commits
//     nebula-sim-dump.c     where everybody stands, when a run fails
//     nebula-sim.c          seeds, exhaustive faults, the command line
//
// Everything follows from the seed: a failing run is repeated by its number alone, and prints its last events.
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
    SIM_PAST = 64,  // messages that a byzantine keeps to say again
    SIM_SUMS = 127, // first byte of a message that is inter/sums', and not a node's
};

enum sim_fault_kind { // of one exact place, for exhaustive runs
    SIM_NO_FAULT,
    SIM_DROP_MESSAGE,
    SIM_DOUBLE_MESSAGE,
    SIM_DELAY_MESSAGE, // by 7 s
    SIM_CUT_AT_MESSAGE,
    SIM_CRASH_AT_MESSAGE, // its receiver, before it arrives
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
    bool byzantine; // one member lies
    bool
        terms; // about terms alone, all the time, and nothing else is wrong: rounds go on, and an honest leader leads on
    bool idle; // one member's worker ends for good; its agent goes on
    bool rot;  // disks lose updates that were whole
    bool robust; // the gate's profile
    bool masked; // likewise, with so many colluders
    uint32_t colluders;
    bool pace;    // no faults; links and workers unlike: nothing waits for what is not slow
    bool orderly; // no loss, duplication or reordering inside a session
    struct sim_point points[SIM_POINTS];
    bool trace; // print every event
};

// Why nobody can go on: an update in a record that only a byzantine has, or that honest gates refuse;
// rounds need all members, and the byzantine is revoked; masked: of two values of a term either may be
// committed, by all that anybody can know.
enum sim_stuck { SIM_GOES_ON, SIM_STUCK_UPDATE, SIM_STUCK_NEEDED, SIM_STUCK_TORN, SIM_STUCKS };

struct sim_result {
    uint64_t messages, stores, steps;
    uint32_t committed, rejected, merges; // rounds times fragments; refused updates; merge rounds
    uint32_t returns; // updates of members that were away for longer than others, in them
    uint32_t snapshots;
    uint32_t no_room;    // times that a disk had no room for an update, or a part of one
    uint32_t rotten;     // updates that a disk lost
    uint32_t taken_over; // updates of a former life that were committed while a later one trained
    double seconds;      // virtual
    uint32_t splits,
        caught; // runs in which honest members diverged; in which the byzantine was named
    uint32_t stuck[SIM_STUCKS]; // runs that stood still at the end, as a byzantine can bring about
    double detected;            // s from the divergence until all knew, at most
    bool failed;
    char why[256];
};

// ---- events ---------------------------------------------------------------------------------------------------

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
    uint32_t boot; // of the receiver when it was sent
    bool stale;    // its session is over; it waited in the receiver's queue
    size_t len;
    uint8_t bytes[]; // owned by the event
};

struct sim_event {
    neb_ns at;
    uint64_t seq;
    enum sim_event_kind kind;
    uint8_t a, b;
    uint32_t tag; // boot or session it belongs to
    struct sim_message *m;
};

// ---- a disk ---------------------------------------------------------------------------------------------------

struct sim_blob {
    bool here;
    struct inter_manifest m;
    bool whole, rotten;           // rotten: was whole
    int64_t words[SIM_WORDS + 1]; // the last: 1: the gate refuses it
};
struct sim_round { // of one fragment
    struct sim_blob blobs[INTER_MEMBERS_MAX][SIM_ATTEMPTS];
    bool voted, committed, holds; // holds: a blob, since it was pruned
    struct inter_record vote, commit;
};
struct sim_worker_state {
    int64_t step;
    struct agent_fragment frags[SIM_FRAGMENTS];
    int64_t counted_miss[SIM_FRAGMENTS];
    uint32_t again[SIM_FRAGMENTS]; // how often the update under way was taken back for a newer one
    uint64_t
        incarnation; // updates of earlier epochs were sent by a life whose state went with its disk
    int64_t theta[SIM_FRAGMENTS][SIM_WORDS]; // global value
    // residual; of the update in flight too, until it settles: u
    int64_t e[SIM_FRAGMENTS][SIM_WORDS];
    int64_t p[SIM_FRAGMENTS][SIM_WORDS]; // learned since the last send
    int64_t dropped[SIM_FRAGMENTS][SIM_WORDS];
    uint64_t tokens;                     // seen in the steps that it made itself
    uint64_t tokens_base[SIM_FRAGMENTS]; // of them, in committed updates (or refused ones)
    uint64_t tokens_sent[SIM_FRAGMENTS]; // behind the update in flight
    uint32_t missed_sent[SIM_FRAGMENTS]; // intervals, likewise
    int64_t tokens_lost[SIM_FRAGMENTS];  // of steps that a former life made, and skipped ones
};
struct sim_reveal { // of masked sums
    bool known;
    uint16_t set;
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
    uint16_t equivocators; // bit per member
    struct inter_evidence evidence[INTER_MEMBERS_MAX];
    uint64_t epoch;
    struct sim_round *rounds[SIM_FRAGMENTS][SIM_ROUNDS]; // made when first written
    struct sim_worker_state checkpoint;
    bool has_checkpoint;
    struct sim_log log[SIM_FRAGMENTS][SIM_ROUNDS];
    uint32_t n_log[SIM_FRAGMENTS];
    struct sim_reveal reveals[SIM_FRAGMENTS][SIM_ROUNDS];
    bool knows_shape; // its worker has been there
    bool jumped;      // its worker has taken a state over: runs repeat differently from there on
    uint32_t base[SIM_FRAGMENTS]; // first record of the chain: the one that a snapshot came with
};

struct sim_host {
    uint8_t id;
    bool alive, witness;
    uint32_t boot;
    neb_ns clock_offset;
    int32_t clock_ppm;
    struct inter_node *node;
    struct sim_disk disk;
    uint8_t *parts[SIM_FRAGMENTS][INTER_MEMBERS_MAX]; // (SIM_BLOB) while a blob arrives
    bool up[INTER_MEMBERS_MAX];
    bool worker_alive, finished, leaving;
    bool promised_own; // the last update that its worker submitted was taken
    bool needs_state;  // its disk was lost
    // its disk was lost once: what it accepted before, it is told, and accepts again
    bool previous_incarnation;
    bool fetching; // a snapshot is on its way
    // by fragment: the round, from 1 on, whose updates this disk has lost and nobody has; 0: none
    uint32_t lacks[SIM_FRAGMENTS];
    uint32_t worker_boot;
    struct sim_worker_state w;
    neb_ns step_time;
    bool idle;                         // no worker of it comes any more, and that is on its disk
    bool split;                        // it knows that members have diverged: its job has ended
    bool split_now;                    // and has heard so since it was started last
    uint32_t submitted[SIM_FRAGMENTS]; // of a byzantine: rounds, the next one
    uint64_t crash_in;                 // stores until a crash; 0: none
    neb_ns busy_until;                 // it handles nothing before
};

struct sim_link { // of a pair, i < j
    bool open[2]; // i to j, j to i
    bool session; // connected
    uint32_t number;
    neb_ns last[2][2]; // last delivery by direction and channel: order within a session
    neb_ns slow;       // added delay
};

struct sim_trace {
    neb_ns at;
    const char *what;
    int64_t v[5];
};

// A member with two brains: its own host, and one more (twin) with a disk of its own that signs with the same key. Each honest
// member is talked to by one of them at a time.
struct sim_byzantine {
    uint8_t who, twin;
    bool one_update;                          // both brains send the same
    bool told;                                // both hear all that either is told
    uint16_t side;                            // bit per honest member: the twin talks to it
    neb_ns siege;                             // when a long division begins; 0: none is to come
    neb_ns divided;                           // until then the two sides do not hear each other
    bool gone;                                // revoked: faults are over
    bool rejects;                             // all updates of others are no good, it says
    double have, alter, replay, leak, forget; // probabilities
    double push;                              // false chunks of an update that it has just heard of
    double terms;                             // that it lies about one
    double far; // that it says to be rounds ahead, and that the others' are gone
    struct neb_rng on_terms;
    uint64_t one_kind; // always the same lie, from 1; 0: one after the other
    // Whose votes it takes from the leader: they hear nobody else from `silence` to `silence_end`, and promise it `term` (0: none yet).
    uint16_t captives;
    bool poses; // and then hear that it leads
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
        int64_t words[INTER_MEMBERS_MAX][SIM_WORDS]; // D(c) of each accepted entry
        uint64_t tokens[INTER_MEMBERS_MAX];          // behind each listed one, refused or not
        int64_t steps[INTER_MEMBERS_MAX];            // that its member had made when it was sent
    } commits[SIM_FRAGMENTS][SIM_ROUNDS];
    int64_t theta[SIM_FRAGMENTS][SIM_ROUNDS + 1][SIM_WORDS];
    struct {
        uint8_t hash[INTER_SHA_BYTES];
        uint16_t voters; // whoever had it on disk, ever
    } votes[SIM_FRAGMENTS][SIM_ROUNDS][8];
    // disks that held a blob, ever
    uint16_t copies[SIM_FRAGMENTS][SIM_ROUNDS][INTER_MEMBERS_MAX][SIM_ATTEMPTS];
    uint32_t attempts[SIM_FRAGMENTS][SIM_ROUNDS][INTER_MEMBERS_MAX][SIM_ATTEMPTS];
    uint32_t top[SIM_FRAGMENTS]; // rounds committed anywhere
    uint32_t used;               // rounds from here on are all zeros (of theta, those behind)
};

struct sim {
    struct sim_options o;
    struct neb_rng rng;
    neb_ns now;
    uint64_t seq;
    struct sim_event *heap;
    size_t n_heap, cap_heap;
    struct sim_host h[INTER_MEMBERS_MAX + 1]; // the last place: a byzantine's twin
    struct sim_link links[INTER_MEMBERS_MAX][INTER_MEMBERS_MAX];
    struct sim_oracle *oracle;
    struct sim_result r;
    jmp_buf on_fail;
    struct sim_trace trace[SIM_TRACE];
    uint64_t n_trace;
    double loss, twice, swap,
        stale;        // probabilities inside a session; of a message that outlives it
    bool hunts;       // this seed goes for the leader
    bool stalls;      // in this one agents are busy or stopped for some seconds
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
static inline uint64_t sim_day(const struct sim *s) { // ns since 1970: of the first day of 2025
    return 1735689600u * (uint64_t)NEB_S + (uint64_t)s->now;
}

// nebula-sim-host.c
void sim_host_boot(struct sim *s, uint8_t i);
void sim_host_stop(struct sim *s, uint8_t i);
void sim_host_step(struct sim *s, uint8_t i, const struct inter_event *e);
void sim_host_submit(struct sim *s, uint8_t i, uint32_t f, const struct inter_manifest *m,
                     const int64_t words[SIM_WORDS + 1]);
// As member `who`, whoever that is.
void sim_sign(uint8_t who, const char *context, const uint8_t *p, size_t n,
              uint8_t sig[INTER_SIG_BYTES]);
struct sim_round *sim_disk_round(struct sim *s, struct sim_disk *d, uint32_t f, uint32_t round);
const struct sim_blob *sim_disk_blob(const struct sim_round *r, uint8_t member, uint32_t attempt);
void sim_disk_lose(struct sim *s, uint8_t i);
void sim_host_free(struct sim_host *h);
void sim_disk_prune(struct sim *s, uint8_t i);
// What the disk of i has lost of a committed round is asked for; false: nothing is lost.
bool sim_disk_seeks(struct sim *s, uint8_t i, uint32_t f, uint32_t round);
void sim_disk_rots(struct sim *s);           // one update, somewhere
void sim_snapshot(struct sim *s, uint8_t i); // has arrived, if somebody can give one

struct inter_node_crypto sim_host_crypto(struct sim_host *h);
// It reveals for this record: NEB_ERR_EXISTS: it has for another one; NEB_ERR_IO: it is down.
enum neb_status sim_host_keeps(struct sim *s, uint8_t i, const struct inter_record *r);

// nebula-sim-masks.c: without effect where nothing is masked
void sim_masks_set_up(struct sim *s);
void sim_masks_free(struct sim *s);
void sim_masks_boot(struct sim *s, uint8_t i);
void sim_masks_tick(struct sim *s, uint8_t i);
// A member's update, whose manifest is on its disk.
void sim_masks_handed_out(struct sim *s, const struct inter_manifest *m, const int64_t *words);
void sim_masks_commit(struct sim *s, uint8_t i, const struct inter_record *r);
void sim_masks_message(struct sim *s, uint8_t i, uint8_t from, const uint8_t *p, size_t n);
void sim_masks_asked(struct sim *s);

// nebula-sim-byzantine.c
bool sim_lies(const struct sim *s, uint8_t i); // the byzantine's host, or its twin
void sim_byzantine_set_up(struct sim *s);
void sim_byzantine_shuffle(struct sim *s); // who is talked to by whom
bool sim_byzantine_divides(const struct sim *s, uint8_t i,
                           uint8_t j); // what must not be healed yet
// By one of its hosts, or both.
void sim_byzantine_hears(struct sim *s, const struct sim_message *m);
// What is sent in the end; false: nothing. bytes: (cap).
bool sim_byzantine_says(struct sim *s, uint8_t from, uint8_t to, uint8_t *bytes, size_t *len);
void sim_byzantine_forgets(struct sim *s, uint8_t i);
void sim_byzantine_leaves_out(struct sim *s,
                              uint8_t i); // masked: each of its two brains another member
void sim_byzantine_works(struct sim *s, uint8_t i);
void sim_byzantine_revoked(struct sim *s);
bool sim_byzantine_needed(const struct sim *s); // it is revoked, and rounds need all members
enum sim_stuck sim_byzantine_stuck(const struct sim *s);
bool sim_byzantine_rejects(const struct sim *s, uint8_t i, uint8_t owner);
// It has just refused this update: its own program shall take the owner for one that says so too, and propose that it is rejected.
void sim_byzantine_pretends(struct sim *s, uint8_t i, const struct inter_manifest *m);

// nebula-sim-terms.c
void sim_byzantine_terms_set_up(struct sim *s);
// Of a message that its host `from` is about to send: it may become another one; false: none. bytes: (SIM_BLOB).
bool sim_byzantine_on_terms(struct sim *s, uint8_t from, uint8_t to, uint8_t *bytes, size_t *len);
bool sim_byzantine_silences(const struct sim *s, uint8_t from, uint8_t to); // nothing arrives

// nebula-sim-worker.c
void sim_work(struct sim *s, uint8_t i);
void sim_worker_boot(struct sim *s, uint8_t i);
void sim_worker_adopt(struct sim *s, uint8_t i, const struct sim_worker_state *from,
                      uint64_t taken); // fragments of a snapshot
// the gate refuses it
bool sim_bad_update(const struct sim *s, uint8_t i, uint32_t f, uint32_t round);
uint64_t sim_tokens_of_step(uint8_t member); // members are unlike
void sim_produced(uint64_t seed, uint8_t member, uint32_t f, int64_t steps, int64_t out[SIM_WORDS]);

// nebula-sim-oracle.c
struct sim_oracle *sim_oracle(void); // one, of this process: a run at a time
void sim_check_vote(struct sim *s, uint8_t i, const struct inter_record *r);
void sim_check_standing(struct sim *s, uint8_t i, const struct inter_standing *st);
void sim_check_blob(struct sim *s, uint8_t i, const struct inter_manifest *m);
void sim_check_commit(struct sim *s, uint8_t i, const struct inter_record *r);
void sim_check_worker(struct sim *s, uint8_t i, uint32_t f);
void sim_check_bounds(struct sim *s, uint8_t i, const struct inter_actions *a);
void sim_check_end(struct sim *s);
// Whether honest members hold different records of one round, committed or as good as: proven to them, with an update still missing.
bool sim_check_divergence(struct sim *s);
// Whether all honest members that are up know that they have diverged, and whose doing it is; fails when that takes too long.
bool sim_check_split(struct sim *s);

// nebula-sim-dump.c
void sim_dump(const struct sim *s);

#endif
