// SPDX-License-Identifier: Apache-2.0
// For test_node*.c: one member of a job as a pure state machine. The test plays the other members
// and sets the clock. Signatures are valid, except those of `unknown_key`.
// test_evidence.c tests what signatures prove, tests/sim tests whole federations.
#ifndef NODE_FIXTURE_H
#define NODE_FIXTURE_H
#include "inter/round/node_state.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define OK(x) assert_int_equal((x), NEB_OK)

enum { LEADS = 1, JOINED = 2, FOLLOWS = 8, IDLE = 16, EPOCH = 70, MEMBERS = 5 };
enum { TERM_PROMISE, RECOVERY_PROMISE };

static const uint8_t job_id[INTER_ID_BYTES] = {7};
static struct inter_node *node;
static struct inter_actions actions;
static neb_ns now;
static uint32_t faults[INTER_FAULTS], asked, promised; // counted since the last reset
static uint32_t unknown_key = INTER_PEER_NONE;         // signatures of this member do not verify

static inline bool sign(void *user, const char *context, const void *msg, size_t len,
                        uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)context, (void)msg, (void)len;
    memset(sig, 0, INTER_SIG_BYTES);
    return true;
}
static inline bool verify(void *user, uint32_t peer, const char *context, const void *msg,
                          size_t len, const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)context, (void)msg, (void)len, (void)sig;
    return peer != unknown_key;
}

static inline void step(const struct inter_event *e) {
    OK(inter_node_step(node, now, e, &actions));
    for (size_t i = 0; i < actions.n; i++) {
        const struct inter_action *a = &actions.list[i];
        uint8_t type = a->kind == INTER_ACT_SEND ? actions.bytes.p[a->at] : 0;
        if (a->kind == INTER_ACT_FAULT)
            faults[a->fault]++;
        asked += type == MSG_ELECT;
        promised += type == MSG_PROMISE;
    }
}

// Creates member `self` of n members. It has promised `term` and all its links are up.
static inline void begin_of(uint8_t n, uint16_t witnesses, uint8_t self, uint32_t term,
                            bool joined) {
    const struct inter_node_crypto crypto = {NULL, sign, verify};
    struct inter_job_config c = {.n_members = n,
                                 .witnesses = mset_from_bits(witnesses),
                                 .self = self,
                                 .fragments = 1,
                                 .epoch = EPOCH,
                                 .merge_after = 3,
                                 .eta = 1,
                                 .tune = {.start_interval = 10}};
    struct inter_standing st = {.term = term, .joined = joined, .epoch = EPOCH};
    memcpy(c.id, job_id, sizeof job_id);
    memcpy(st.job, job_id, sizeof job_id);
    for (uint8_t m = 0; m < n; m++) {
        c.peers[m] = m;
        st.epochs[m] = m == self ? 0 : EPOCH;
    }
    now = NEB_S;
    memset(faults, 0, sizeof faults);
    inter_node_destroy(&node);
    OK(inter_node_create(&crypto, &node));
    OK(inter_node_job_open(node, &c));
    inter_node_restore_standing(node, &st);
    for (uint8_t m = 0; m < n; m++)
        if (m != self)
            step(&(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = m});
    asked = promised = 0;
}

static inline void begin(uint8_t self, uint32_t term, bool joined) {
    begin_of(MEMBERS, 0, self, term, joined);
}

static inline struct inter_job_status status(void) {
    struct inter_job_status st;
    assert_true(inter_node_job_status(node, job_id, now, &st));
    return st;
}

static inline void message(uint8_t from, struct neb_buf *b) {
    assert_false(b->oom);
    step(
        &(struct inter_event){.kind = INTER_EV_MESSAGE, .peer = from, .data = b->p, .len = b->len});
    neb_buf_free(b);
}

static inline void
heartbeat_known(uint8_t from, uint32_t term, uint8_t flags, uint32_t round,
                uint64_t known) { // known: the epoch of this node that the sender knows
    static const uint8_t head[HEAD_BYTES];
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_HEARTBEAT);
    neb_buf_add(&b, job_id, sizeof job_id);
    neb_buf_u32(&b, term);
    neb_buf_u8(&b, flags);
    neb_buf_u64(&b, EPOCH);
    neb_buf_u64(&b, known);
    neb_buf_u16(&b, (1 << MEMBERS) - 1);
    neb_buf_u32(&b, 1);
    neb_buf_u16(&b, 0);
    neb_buf_u32(&b, round);
    neb_buf_add(&b, head, sizeof head);
    message(from, &b);
}
static inline void heartbeat_at(uint8_t from, uint32_t term, uint8_t flags, uint32_t round) {
    // a peer that has not joined knows this node's previous epoch
    heartbeat_known(from, term, flags, round, flags & JOINED ? EPOCH : EPOCH - 1);
}
static inline void heartbeat(uint8_t from, uint32_t term, uint8_t flags) {
    heartbeat_at(from, term, flags, 0);
}

static inline void elect_of(uint8_t from, uint8_t kind, uint32_t term) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_ELECT);
    neb_buf_add(&b, job_id, sizeof job_id);
    neb_buf_u8(&b, kind);
    neb_buf_u32(&b, term);
    neb_buf_u64(&b, EPOCH);
    message(from, &b);
}
static inline void elect(uint8_t from, uint32_t term) { elect_of(from, TERM_PROMISE, term); }

static inline void promise_at(uint8_t from, uint8_t kind, uint32_t term, uint32_t round) {
    static const uint8_t sig[INTER_SIG_BYTES];
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_PROMISE);
    neb_buf_add(&b, job_id, sizeof job_id);
    neb_buf_u8(&b, kind);
    neb_buf_u32(&b, term);
    neb_buf_u64(&b, EPOCH);
    neb_buf_u32(&b, 0); // fragment
    neb_buf_u32(&b, round);
    neb_buf_u8(&b, 0); // the sender has accepted nothing
    neb_buf_add(&b, sig, sizeof sig);
    message(from, &b);
}
static inline void promise(uint8_t from, uint8_t kind, uint32_t term) {
    promise_at(from, kind, term, 0);
}

// ---- updates

static inline struct inter_manifest update(uint8_t member, uint32_t attempt, uint8_t digest) {
    struct inter_manifest m = {.key = {.member = member, .attempt = attempt},
                               .bytes = 100,
                               .chunk_bytes = INTER_CHUNK_MIN};
    memcpy(m.key.job, job_id, sizeof job_id);
    m.sha256[0] = digest;
    return m;
}

static inline void say_manifest(uint8_t from, const struct inter_manifest *m) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_MANIFEST);
    inter_manifest_put(&b, m);
    message(from, &b);
}

static inline void say_holding(uint8_t from, const struct inter_manifest *m, enum inter_holding h) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_STATE);
    inter_key_put(&b, &m->key);
    neb_buf_add(&b, m->sha256, STATE_DIGEST);
    neb_buf_u64(&b, EPOCH);
    neb_buf_u8(&b, (uint8_t)h);
    neb_buf_u32(&b, 0);
    neb_buf_u32(&b, 0);
    neb_buf_u8(&b, 0);
    message(from, &b);
}

static inline void say_gone(uint8_t from, const struct inter_manifest *m) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, MSG_GONE);
    inter_key_put(&b, &m->key);
    message(from, &b);
}

// A record with the accepts of all members.
static inline void show_record(uint8_t from, uint32_t round) {
    struct inter_record r = {.round = round, .n = 1, .eta = 1, .n_plans = MEMBERS};
    struct neb_buf b = {0};
    memcpy(r.job, job_id, sizeof r.job);
    r.entries[0] = (struct inter_entry){.bytes = 1, .clip = 1};
    for (r.n_accepts = 0; r.n_accepts < MEMBERS; r.n_accepts++)
        r.accepts[r.n_accepts] = (struct inter_accept){.member = r.n_accepts, .epoch = EPOCH};
    neb_buf_u8(&b, MSG_COMMIT);
    inter_record_put(&b, &r);
    message(from, &b);
}

static const uint8_t all_follow[] = {0, JOINED | FOLLOWS, JOINED | FOLLOWS, JOINED | FOLLOWS,
                                     JOINED | FOLLOWS};

// Runs the clock for some seconds. Each second every member with flags sends a heartbeat.
static inline void pass(int seconds, const uint32_t terms[MEMBERS], const uint8_t flags[MEMBERS]) {
    for (int i = 0; i < 5 * seconds; i++) {
        now += NEB_S / 5;
        step(&(struct inter_event){.kind = INTER_EV_TICK});
        for (uint8_t m = 0; m < MEMBERS && i % 5 == 0; m++)
            if (flags[m])
                heartbeat(m, terms[m], flags[m]);
    }
}

static inline int done(void **state) {
    (void)state;
    inter_node_destroy(&node);
    inter_actions_free(&actions);
    return 0;
}
#endif
