// SPDX-License-Identifier: Apache-2.0
// For test_service*.c: the services of two agents, anna and bert, in one process over loopback,
// with one job.
#ifndef SERVICE_FIXTURE_H
#define SERVICE_FIXTURE_H
#include "agent/base/fault.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "compress/update.h"
#include "inter/ledger/verify.h"
#include "inter/service/state.h"
#include "security/sign.h"
#include "tests/testing.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(x) assert_int_equal((x), NEB_OK)

enum { ELEMENTS = 1 << 20, FRAGMENTS = 2, TELEMETRY = 77 }; // an update has 4 MiB

struct site {
    int who; // 0: anna, who dials; 1: bert, who listens
    char dir[64];
    struct inter_service *s;
    bool up;
    uint32_t commits[FRAGMENTS]; // delivered
    uint8_t last[INTER_SHA_BYTES];
    uint64_t blob_bytes;
    bool may_miss; // redelivered commits may lack updates
    int missing;
    bool other_renews;      // the other site has a new ledger
    int previous_key_asked; // how often it was asked whether a previous key signed something
    char text[256];         // messages, in order
    int opened, unanswered; // snapshots: requests from the other site; own requests that found none
    int denied;             // DENIED faults
    int no_room;            // NO_ROOM faults
    int behind, lost;       // updates that nobody has; own updates that the disk lost
    int gone;               // own masked updates that no member brings
    bool masked;            // the job is opened as masked
    uint32_t run;           // number of the worker's run: each run computes other bytes
    int floods;             // FLOOD faults
    uint64_t told, telemetry_bytes; // telemetry of kind TELEMETRY
};

static char root[] = "/tmp/nebula-service-XXXXXX";
static struct sec_identity *ids[2];
static struct sec_members list;
static uint32_t index_of[2];
static char listen_at[32];
static uint8_t job[INTER_ID_BYTES] = {5, 6, 7};
static struct site anna, bert;

// ---- sites

static inline void on_commit(void *user, const struct inter_record *r,
                             const struct neb_map *blobs) {
    struct site *x = user;
    uint8_t sha[INTER_SHA_BYTES];
    assert_int_equal(r->n, 2);
    for (int i = 0; i < 2; i++) {
        if (x->may_miss && !blobs[i].p) {
            x->missing++;
            continue;
        }
        assert_int_equal(blobs[i].len, r->entries[i].bytes);
        neb_sha256(blobs[i].p, blobs[i].len, sha);
        assert_memory_equal(sha, r->entries[i].sha256, sizeof sha);
        x->blob_bytes += blobs[i].len;
    }
    x->commits[r->fragment]++;
    inter_record_hash(r, x->last);
}

static inline void on_message(void *user, uint32_t peer, uint32_t kind, const uint8_t *p,
                              size_t n) {
    struct site *x = user;
    assert_int_equal(peer, index_of[!x->who]);
    x->told += kind == TELEMETRY;
    x->telemetry_bytes += kind == TELEMETRY ? n : 0;
    if (kind == TELEMETRY)
        return;
    size_t at = strlen(x->text);
    snprintf(x->text + at, sizeof x->text - at, "%u:%.*s ", kind, (int)n, (const char *)p);
}

static inline void on_peer(void *user, uint32_t peer, bool up) {
    struct site *x = user;
    assert_int_equal(peer, index_of[!x->who]);
    x->up = up;
}

static inline void on_fault(void *user, uint32_t peer, enum inter_fault f) {
    struct site *x = user;
    x->denied += f == INTER_FAULT_DENIED;
    x->no_room += f == INTER_FAULT_NO_ROOM;
    x->behind += f == INTER_FAULT_BEHIND;
    if (f == INTER_FAULT_NO_ROOM || f == INTER_FAULT_BEHIND) {
        assert_int_equal(peer, INTER_PEER_NONE);
        return;
    }
    assert_int_equal(peer, index_of[!x->who]);
    // after a restart some messages arrive twice; a test that expects other faults counts these too
    assert_true(f == INTER_FAULT_REPLAY || f == INTER_FAULT_DENIED || f == INTER_FAULT_FLOOD ||
                (f == INTER_FAULT_RENEWED && x->other_renews));
    x->floods += f == INTER_FAULT_FLOOD;
}

static inline void on_lost(void *user, const struct inter_key *key) {
    struct site *x = user;
    assert_int_equal(key->member, x->who);
    x->lost++;
}

static inline void on_gone(void *user, const struct inter_key *key, const char *text) {
    struct site *x = user;
    assert_int_equal(key->member, x->who);
    assert_non_null(strstr(text, ".blob"));
    x->gone++;
}

static inline bool on_signed_by_previous_key(void *user, const char *name, const char *context,
                                             const void *msg, size_t len,
                                             const uint8_t sig[INTER_SIG_BYTES]) {
    struct site *x = user;
    (void)context, (void)msg, (void)len, (void)sig;
    assert_string_equal(name, x->who ? "anna" : "bert");
    x->previous_key_asked++;
    return false;
}

static inline enum neb_status on_snapshot_open(void *user, const uint8_t id[INTER_ID_BYTES],
                                               struct inter_snapshot_source *out) {
    struct site *x = user;
    (void)id, (void)out;
    x->opened++;
    return NEB_ERR_NOT_FOUND;
}
static inline void on_snapshot_done(void *user, const uint8_t id[INTER_ID_BYTES],
                                    enum neb_status st, const char *part, uint64_t header_bytes,
                                    uint32_t giver) {
    struct site *x = user;
    (void)id, (void)part, (void)header_bytes, (void)giver;
    x->unanswered += st == NEB_ERR_NOT_FOUND;
}

static inline void start(struct site *x) {
    struct inter_service_config c = {.dir = x->dir,
                                     .identity = ids[x->who],
                                     .members = &list,
                                     .listen = x->who ? listen_at : NULL,
                                     .callbacks = {.user = x,
                                                   .commit = on_commit,
                                                   .message = on_message,
                                                   .peer = on_peer,
                                                   .fault = on_fault,
                                                   .signed_before = on_signed_by_previous_key,
                                                   .lost = on_lost,
                                                   .gone = on_gone,
                                                   .snapshot_open = on_snapshot_open,
                                                   .snapshot_done = on_snapshot_done}};
    OK(inter_service_create(&c, &x->s));
    if (x->who) { // the port stays the same over restarts
        snprintf(listen_at, sizeof listen_at, "127.0.0.1:%u", inter_service_port(x->s));
        snprintf(list.m[index_of[1]].endpoint, SEC_ENDPOINT_MAX, "%s", listen_at);
    }
}

static inline struct inter_job_config job_config(const struct site *x) {
    struct inter_job_config c = {.n_members = 2,
                                 .self = (uint8_t)x->who,
                                 .peers = {index_of[0], index_of[1]},
                                 .fragments = FRAGMENTS,
                                 .masked = x->masked,
                                 .merge_after = 4,
                                 .eta = 0.9f,
                                 .mu = 0.6f,
                                 .tune = {.start_interval = 10}};
    memcpy(c.id, job, sizeof c.id);
    return c;
}

static inline void open_job(struct site *x) {
    struct inter_job_config c = job_config(x);
    OK(inter_service_job_open(x->s, &c));
}

static inline void stop(struct site *x) {
    inter_service_destroy(&x->s);
    x->up = false;
}

static inline void restart(struct site *x) {
    stop(x);
    start(x);
    open_job(x);
}

static inline void go(void) {
    // both sites dial: two sets of nine connections each, and twice that number while sets are
    // replaced
    zmq_pollitem_t items[256];
    size_t n = anna.s ? inter_service_poll_items(anna.s, items, 128) : 0;
    assert_true(n <= 128);
    n += bert.s ? inter_service_poll_items(bert.s, items + n, 256 - n) : 0;
    assert_true(n <= 256);
    zmq_poll(items, (int)n, 10);
    if (anna.s)
        OK(inter_service_process(anna.s));
    if (bert.s)
        OK(inter_service_process(bert.s));
}

#define UNTIL(cond)                                                                                \
    do {                                                                                           \
        neb_ns end_ = neb_now() + TESTING_SLOWER * 30 * NEB_S;                                     \
        while (!(cond) && neb_now() < end_)                                                        \
            go();                                                                                  \
        assert_true(cond);                                                                         \
    } while (0)

static inline void go_for(neb_ns time) {
    for (neb_ns end = neb_now() + time; neb_now() < end;)
        go();
}

// ---- updates

static inline void submit_of(struct site *x, uint32_t fragment, uint32_t round, uint64_t tokens) {
    static float data[ELEMENTS];
    struct neb_buf b = {0};
    struct cmp_work *w = NULL;
    struct cmp_codec codec;
    struct cmp_unit_shape shape = {.unit = 0, .rows = 1024, .cols = ELEMENTS / 1024};
    struct inter_manifest m = {.key = {.round = round, .fragment = fragment}, .tokens = tokens};
    memcpy(m.key.job, job, sizeof job);
    m.key.member = (uint8_t)x->who;
    for (uint32_t i = 0; i < ELEMENTS; i++) // no two bytes alike, so that zstd cannot compress them
        data[i] = (float)(int32_t)(neb_mix64(i + round * 7919ull + fragment + x->who * 31ull +
                                             x->run * 104729ull) >>
                                   33) *
                  1e-9f;
    OK(cmp_work_create(&w));
    OK(cmp_codec_parse("fp32", &codec));
    cmp_update_begin(&b, 1);
    OK(cmp_update_add(w, &b, &shape, &codec, &(struct cmp_source){.x = data}, NULL));
    OK(inter_service_submit(x->s, &m, b.p, b.len));
    OK(inter_service_submit(x->s, &m, b.p, b.len)); // a second submit is harmless
    neb_buf_free(&b);
    cmp_work_destroy(&w);
}

static inline void submit(struct site *x, uint32_t fragment, uint32_t round) {
    submit_of(x, fragment, round, 10);
}

static inline enum neb_status signed_by(void *user, const uint8_t id[INTER_ID_BYTES],
                                        uint8_t member, const char *context, const void *msg,
                                        size_t len, const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)id;
    return sec_verify(sec_identity_public(ids[member])->sign, context, msg, len, sig);
}

static inline void expect_sound(const struct site *x, uint64_t records) {
    struct inter_ledger *l = NULL;
    struct inter_ledger_counts n;
    struct inter_ledger_check c = {NULL, signed_by, NULL, NULL};
    OK(inter_ledger_open_readonly(x->dir, &l));
    OK(inter_ledger_verify(l, &c, &n));
    assert_int_equal(n.records, records);
    inter_ledger_close(&l);
}

static inline int open_pair(void **state) {
    (void)state;
    static int made;
    snprintf(listen_at, sizeof listen_at, "127.0.0.1:*");
    anna = (struct site){.who = 0};
    bert = (struct site){.who = 1};
    snprintf(anna.dir, sizeof anna.dir, "%s/anna%d", root, made);
    snprintf(bert.dir, sizeof bert.dir, "%s/bert%d", root, made++);
    start(&bert);
    start(&anna);
    return 0;
}

static inline int close_pair(void **state) {
    (void)state;
    stop(&anna);
    stop(&bert);
    return 0;
}

static inline bool set_up(void) {
    static const char *const names[] = {"anna", "bert"};
    if (!mkdtemp(root) || sec_init() != NEB_OK)
        return false;
    neb_log_set_sink(testing_drop, NULL);
    for (int i = 0; i < 2; i++) {
        char home[64];
        snprintf(home, sizeof home, "%s/keys-%s", root, names[i]);
        struct sec_member m = {.connect = SEC_CONNECT_AUTO};
        if (neb_fs_mkdirs(home, 0700) != NEB_OK ||
            sec_identity_create(home, names[i], &ids[i]) != NEB_OK)
            return false;
        m.pub = *sec_identity_public(ids[i]);
        if (sec_members_add(&list, &m) != NEB_OK)
            return false;
    }
    for (int i = 0; i < 2; i++)
        index_of[i] = (uint32_t)(sec_members_by_name(&list, names[i]) - list.m);
    return true;
}

static inline bool tear_down(void) {
    sec_identity_destroy(&ids[0]);
    sec_identity_destroy(&ids[1]);
    return neb_fs_remove_tree(root) == NEB_OK;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_pair, close_pair)

#endif
