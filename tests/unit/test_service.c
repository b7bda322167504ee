// inter/service: two agents' services in one process over loopback. Updates become commits on both, through restarts in the
// middle of a round; messages arrive once and in order, also after a ledger was lost.
#include "agent/base/fault.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "compress/update.h"
#include "inter/ledger_verify.h"
#include "inter/service_state.h"
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

enum { ELEMENTS = 1 << 20, FRAGMENTS = 2, TOLD = 77 }; // 4 MiB an update

struct site {
    int who; // 0 anna, dials; 1 bert, listens
    char dir[64];
    struct inter_service *s;
    bool up;
    uint32_t commits[FRAGMENTS]; // delivered
    uint8_t last[INTER_SHA_BYTES];
    uint64_t blob_bytes;
    char text[256];            // messages, in order
    int opened, unanswered;    // snapshots: looked for; asked others for in vain
    int denied;                // what the other one said
    int no_room;               // updates that there was none for
    int floods;                // messages beyond what is taken
    uint64_t told, told_bytes; // telemetry of kind TOLD
};

static char root[] = "/tmp/nebula-service-XXXXXX";
static struct sec_identity *ids[2];
static struct sec_members list;
static uint32_t index_of[2];
static char listen_at[32];
static uint8_t job[INTER_ID_BYTES] = {5, 6, 7};
static struct site anna, bert;

// ---- sites ----------------------------------------------------------------------------------------------------

static void on_commit(void *user, const struct inter_record *r, const struct neb_map *blobs) {
    struct site *x = user;
    uint8_t sha[INTER_SHA_BYTES];
    assert_int_equal(r->n, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(blobs[i].len, r->entries[i].bytes);
        neb_sha256(blobs[i].p, blobs[i].len, sha);
        assert_memory_equal(sha, r->entries[i].sha256, sizeof sha);
        x->blob_bytes += blobs[i].len;
    }
    x->commits[r->fragment]++;
    inter_record_hash(r, x->last);
}

static void on_message(void *user, uint32_t peer, uint32_t kind, const uint8_t *p, size_t n) {
    struct site *x = user;
    assert_int_equal(peer, index_of[!x->who]);
    x->told += kind == TOLD;
    x->told_bytes += kind == TOLD ? n : 0;
    if (kind == TOLD)
        return;
    size_t at = strlen(x->text);
    snprintf(x->text + at, sizeof x->text - at, "%u:%.*s ", kind, (int)n, (const char *)p);
}

static void on_peer(void *user, uint32_t peer, bool up) {
    struct site *x = user;
    assert_int_equal(peer, index_of[!x->who]);
    x->up = up;
}

static void on_fault(void *user, uint32_t peer, enum inter_fault f) {
    struct site *x = user;
    x->denied += f == INTER_FAULT_DENIED;
    x->no_room += f == INTER_FAULT_NO_ROOM;
    if (f == INTER_FAULT_NO_ROOM) {
        assert_int_equal(peer, INTER_PEER_NONE);
        return;
    }
    assert_int_equal(peer, index_of[!x->who]);
    // what comes twice after a restart; nothing worse, but where a test counts it
    assert_true(f == INTER_FAULT_REPLAY || f == INTER_FAULT_DENIED || f == INTER_FAULT_FLOOD);
    x->floods += f == INTER_FAULT_FLOOD;
}

static enum neb_status on_snapshot_open(void *user, const uint8_t id[INTER_ID_BYTES],
                                        struct inter_snapshot_source *out) {
    struct site *x = user;
    (void)id, (void)out;
    x->opened++;
    return NEB_ERR_NOT_FOUND;
}
static void on_snapshot_done(void *user, const uint8_t id[INTER_ID_BYTES], enum neb_status st,
                             const char *part, uint64_t header_bytes) {
    struct site *x = user;
    (void)id, (void)part, (void)header_bytes;
    x->unanswered += st == NEB_ERR_NOT_FOUND;
}

static void start(struct site *x) {
    struct inter_service_config c = {.dir = x->dir,
                                     .identity = ids[x->who],
                                     .members = &list,
                                     .listen = x->who ? listen_at : NULL,
                                     .callbacks = {.user = x,
                                                   .commit = on_commit,
                                                   .message = on_message,
                                                   .peer = on_peer,
                                                   .fault = on_fault,
                                                   .snapshot_open = on_snapshot_open,
                                                   .snapshot_done = on_snapshot_done}};
    OK(inter_service_create(&c, &x->s));
    if (x->who) { // the port that was found is kept over restarts
        snprintf(listen_at, sizeof listen_at, "127.0.0.1:%u", inter_service_port(x->s));
        snprintf(list.m[index_of[1]].endpoint, SEC_ENDPOINT_MAX, "%s", listen_at);
    }
}

static void open_job(struct site *x) {
    struct inter_job_config c = {.n_members = 2,
                                 .self = (uint8_t)x->who,
                                 .peers = {index_of[0], index_of[1]},
                                 .fragments = FRAGMENTS,
                                 .merge_after = 4,
                                 .eta = 0.9f,
                                 .mu = 0.6f,
                                 .tune = {.start_interval = 10}};
    memcpy(c.id, job, sizeof c.id);
    OK(inter_service_job_open(x->s, &c));
}

static void stop(struct site *x) {
    inter_service_destroy(&x->s);
    x->up = false;
}

static void restart(struct site *x) {
    stop(x);
    start(x);
    open_job(x);
}

static void go(void) {
    // both dial: two sets of nine connections each, twice while they are replaced
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
        neb_ns end_ = neb_now() + 30 * NEB_S;                                                      \
        while (!(cond) && neb_now() < end_)                                                        \
            go();                                                                                  \
        assert_true(cond);                                                                         \
    } while (0)

static void go_for(neb_ns time) {
    for (neb_ns end = neb_now() + time; neb_now() < end;)
        go();
}

// ---- updates --------------------------------------------------------------------------------------------------

static void submit(struct site *x, uint32_t fragment, uint32_t round) {
    static float data[ELEMENTS];
    struct neb_buf b = {0};
    struct cmp_work *w = NULL;
    struct cmp_codec codec;
    struct cmp_unit_shape shape = {.unit = 0, .rows = 1024, .cols = ELEMENTS / 1024};
    struct inter_manifest m = {.key = {.round = round, .fragment = fragment}, .tokens = 10};
    memcpy(m.key.job, job, sizeof job);
    m.key.member = (uint8_t)x->who;
    for (uint32_t i = 0; i < ELEMENTS; i++) // no two bytes alike: zstd finds nothing
        data[i] =
            (float)(int32_t)(neb_mix64(i + round * 7919ull + fragment + x->who * 31ull) >> 33) *
            1e-9f;
    OK(cmp_work_create(&w));
    OK(cmp_codec_parse("fp32", &codec));
    cmp_update_begin(&b, 1);
    OK(cmp_update_add(w, &b, &shape, &codec, data, NULL));
    OK(inter_service_submit(x->s, &m, b.p, b.len));
    OK(inter_service_submit(x->s, &m, b.p, b.len)); // said twice
    neb_buf_free(&b);
    cmp_work_destroy(&w);
}

static enum neb_status signed_by(void *user, const uint8_t id[INTER_ID_BYTES], uint8_t member,
                                 const char *context, const void *msg, size_t len,
                                 const uint8_t sig[INTER_SIG_BYTES]) {
    (void)user, (void)id;
    return sec_verify(sec_identity_public(ids[member])->sign, context, msg, len, sig);
}

static void expect_sound(const struct site *x, uint64_t records) {
    struct inter_ledger *l = NULL;
    struct inter_ledger_counts n;
    struct inter_ledger_check c = {NULL, signed_by, NULL, NULL};
    OK(inter_ledger_open_readonly(x->dir, &l));
    OK(inter_ledger_verify(l, &c, &n));
    assert_int_equal(n.records, records);
    inter_ledger_close(&l);
}

static int open_pair(void **state) {
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

static int close_pair(void **state) {
    (void)state;
    stop(&anna);
    stop(&bert);
    return 0;
}

// ---- tests ----------------------------------------------------------------------------------------------------

static void test_rounds(void **state) {
    (void)state;
    open_job(&anna);
    open_job(&bert);
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t f = 0; f < FRAGMENTS; f++) {
            submit(&anna, f, round);
            submit(&bert, f, round);
            UNTIL(anna.commits[f] == round + 1 && bert.commits[f] == round + 1);
            assert_memory_equal(anna.last, bert.last, sizeof anna.last);
        }
    assert_true(anna.blob_bytes == bert.blob_bytes && anna.blob_bytes > 12ull * 3 * ELEMENTS);
    OK(inter_service_prune(bert.s, job, 0, 2));
    expect_sound(&anna, 6); // while it runs
    expect_sound(&bert, 6);
}

static void test_restarts_in_a_round(void **state) {
    (void)state;
    struct inter_key k = {.member = 0};
    struct inter_manifest m;
    memcpy(k.job, job, sizeof job);
    open_job(&anna);
    open_job(&bert);
    submit(&anna, 0, 0);
    UNTIL(inter_ledger_get_manifest(inter_service_ledger(bert.s), &k, &m) == NEB_OK);
    k = m.key; // with the attempt that the service chose
    // some of it is under way
    assert_false(inter_ledger_has_blob(inter_service_ledger(bert.s), &k));
    restart(&bert);
    UNTIL(inter_ledger_has_blob(inter_service_ledger(bert.s), &k));
    restart(&anna); // the one who sent it; what it promised is in its ledger
    submit(&bert, 0, 0);
    k.member = 1;
    UNTIL(inter_ledger_get_manifest(inter_service_ledger(anna.s), &k, &m) == NEB_OK);
    restart(&anna);
    UNTIL(anna.commits[0] == 1 && bert.commits[0] == 1);
    assert_memory_equal(anna.last, bert.last, sizeof anna.last);
    // Whoever asks for a round that is over gets its commit again, and the next round goes on from there.
    restart(&anna);
    submit(&anna, 0, 0);
    assert_int_equal(anna.commits[0], 3); // said twice
    submit(&anna, 0, 1);
    submit(&bert, 0, 1);
    UNTIL(anna.commits[0] == 4 && bert.commits[0] == 2);
    assert_memory_equal(anna.last, bert.last, sizeof anna.last);
    expect_sound(&anna, 2);
    expect_sound(&bert, 2);
}

static void send(struct site *x, uint32_t kind, const char *text) {
    OK(inter_service_send(x->s, index_of[!x->who], kind, text, strlen(text)));
}

// What a disk has lost of one update costs its round, and no agent: neither the one that is asked for it, nor the one that is to hand it on.
static void test_cut_blob(void **state) {
    (void)state;
    char pattern[NEB_PATH_MAX];
    glob_t found;
    stop(&bert);
    open_job(&anna);
    submit(&anna, 0, 0);
    snprintf(pattern, sizeof pattern, "%s/blobs/*.blob", anna.dir);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    assert_int_equal(truncate(found.gl_pathv[0], 1000), 0);
    globfree(&found);
    start(&bert);
    open_job(&bert);
    UNTIL(anna.up && bert.up);
    go_for(2 * NEB_S);
    send(&anna, 1, "alive");
    UNTIL(!strcmp(bert.text, "1:alive "));
}

static void test_messages(void **state) {
    (void)state;
    stop(&bert);
    send(&anna, 1, "one"); // bert is away
    send(&anna, 2, "two");
    start(&bert);
    UNTIL(anna.up && bert.up);
    send(&anna, 3, "three");
    send(&bert, 9, "back");
    UNTIL(!strcmp(bert.text, "1:one 2:two 3:three ") && !strcmp(anna.text, "9:back "));
    go_for(4 * NEB_S); // what is not acknowledged would be said again
    assert_string_equal(bert.text, "1:one 2:two 3:three ");
    struct inter_ledger *l = inter_service_ledger(anna.s);
    uint64_t last, epoch = inter_ledger_epoch(l);
    OK(inter_ledger_taken(inter_service_ledger(bert.s), "anna", epoch, &last));
    assert_int_equal(last, 3);
    // Anna's disk is lost: her numbers begin at 1 again, and are not taken for repeated ones.
    stop(&anna);
    OK(neb_fs_remove_tree(anna.dir));
    start(&anna);
    assert_true(inter_ledger_epoch(inter_service_ledger(anna.s)) != epoch);
    send(&anna, 4, "four");
    UNTIL(!strcmp(bert.text, "1:one 2:two 3:three 4:four "));
    // Bert's disk is lost: he takes what waits, though he has seen none of the numbers before it.
    send(&anna, 5, "five");
    UNTIL(strstr(bert.text, "5:five"));
    stop(&bert);
    OK(neb_fs_remove_tree(bert.dir));
    bert.text[0] = 0;
    start(&bert);
    send(&anna, 6, "six");
    send(&anna, 7, "seven");
    UNTIL(strstr(bert.text, "7:seven"));
    assert_non_null(strstr(bert.text, "6:six 7:seven ")); // five as well, were its receipt lost
}

// ---- a member that does not follow the protocol

struct rogue {
    struct inter_link *l;
    bool up;
    uint64_t heard, epoch, newest; // reliable messages, and their numbers
};

static void on_rogue(void *user, const struct inter_link_event *e) {
    struct rogue *r = user;
    r->up |= e->kind == INTER_LINK_UP;
    if (e->kind != INTER_LINK_MSG || !e->len || e->data[0] != 32)
        return;
    struct neb_rd in = neb_rd_make(e->data + 1, e->len - 1);
    r->heard++;
    r->epoch = neb_rd_u64(&in);
    uint64_t seq = neb_rd_u64(&in);
    r->newest = seq > r->newest ? seq : r->newest;
}

static void rogue_go(struct rogue *r, neb_ns time) {
    for (neb_ns end = neb_now() + time; neb_now() < end;) {
        OK(inter_link_process(r->l, on_rogue, r));
        go();
    }
}

static struct rogue rogue(void) { // anna's keys in other hands
    struct rogue r = {.up = false};
    struct inter_link_config c = {.identity = ids[0], .members = &list};
    stop(&anna);
    OK(inter_link_create(&c, &r.l));
    for (int i = 0; i < 100 && !r.up; i++)
        rogue_go(&r, 50 * NEB_MS);
    assert_true(r.up);
    return r;
}

static void rogue_says(struct rogue *r, uint64_t epoch, uint64_t seq, uint64_t previous,
                       size_t cut) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, 32); // a message of inter/service
    neb_buf_u64(&b, epoch);
    neb_buf_u64(&b, seq);
    neb_buf_u64(&b, previous);
    neb_buf_u32(&b, 8);
    neb_buf_add(&b, "x", 1);
    OK(inter_link_send(r->l, index_of[1], INTER_CONTROL, b.p, b.len - cut));
    neb_buf_free(&b);
    rogue_go(r, 5 * NEB_MS);
}

static void test_wrong_messages(void **state) {
    (void)state;
    struct rogue r = rogue();
    send(&bert, 1, "waits");
    for (size_t cut = 2; cut < 30; cut++)
        rogue_says(&r, 1, 1, 0, cut);
    rogue_says(&r, 1, 0, 0, 0);
    rogue_says(&r, 1, UINT64_MAX, 0, 0);
    rogue_says(&r, 1, 1ull << 63, 0, 0);
    rogue_says(&r, 1, 5, 5, 0);
    rogue_says(&r, 1, 5, UINT64_MAX, 0);
    rogue_says(&r, 1, 5, 4, 0); // 4 has not come
    assert_string_equal(bert.text, "");
    struct neb_buf ack = {0}; // for another ledger's numbers: what waits goes on waiting
    neb_buf_u8(&ack, 33);
    neb_buf_u64(&ack, 1);
    neb_buf_u64(&ack, UINT64_MAX);
    OK(inter_link_send(r.l, index_of[1], INTER_CONTROL, ack.p, ack.len));
    neb_buf_free(&ack);
    rogue_says(&r, 1, 4, 0, 0);
    rogue_says(&r, 1, 5, 4, 0);
    rogue_says(&r, 1, 5, 4, 0);
    rogue_says(&r, 1, 4, 0, 0);
    rogue_go(&r, 300 * NEB_MS);
    assert_string_equal(bert.text, "8:x 8:x ");
    inter_link_destroy(&r.l);
    start(&anna);
    UNTIL(!strcmp(anna.text, "1:waits "));
}

// Each message that is taken is a write that is synced: more than a few a second wait. None is lost.
static void test_many_messages(void **state) {
    (void)state;
    enum { MANY = 600 };
    struct rogue r = rogue();
    uint64_t last = 0;
    neb_ns start_at = neb_now();
    // as a sender repeats what is not acknowledged
    for (int pass = 0; pass < 200 && last < MANY; pass++) {
        OK(inter_ledger_taken(inter_service_ledger(bert.s), "anna", 1, &last));
        for (uint64_t seq = last + 1; seq <= MANY; seq++) {
            struct neb_buf b = {0};
            neb_buf_u8(&b, 32);
            neb_buf_u64(&b, 1);
            neb_buf_u64(&b, seq);
            neb_buf_u64(&b, seq - 1);
            neb_buf_u32(&b, 8);
            (void)!inter_link_send(r.l, index_of[1], INTER_CONTROL, b.p, b.len);
            neb_buf_free(&b);
        }
        rogue_go(&r, 300 * NEB_MS);
    }
    assert_int_equal(last, MANY);
    assert_true(neb_now() - start_at > (MANY - 200) / 50 * NEB_S * 9 / 10);
    assert_true(bert.floods > 0);
    inter_link_destroy(&r.l);
    start(&anna);
}

// Telemetry of so many bytes, until `end`, as fast as it goes.
static void tell_on(struct rogue *r, size_t n, neb_ns end) {
    static const uint8_t zeros[INTER_MESSAGE_MAX];
    struct neb_buf b = {0};
    neb_buf_u8(&b, 34);
    neb_buf_u32(&b, TOLD);
    neb_buf_add(&b, zeros, n);
    bert.told = bert.told_bytes = 0;
    while (neb_now() < end) {
        for (int i = 0; i < 2000 && inter_link_send(r->l, index_of[1], INTER_CONTROL, b.p, b.len) !=
                                        NEB_ERR_AGAIN;
             i++)
            ;
        rogue_go(r, NEB_MS);
    }
    rogue_go(r, 200 * NEB_MS);
    neb_buf_free(&b);
}

// Telemetry is taken by number and by bytes, and no more than that however much comes. What an honest agent says at once is.
static void test_told_without_end(void **state) {
    (void)state;
    struct rogue r = rogue();
    neb_ns from = neb_now();
    tell_on(&r, 1, from + NEB_S);
    double passed = neb_seconds(neb_now() - from);
    assert_true(bert.floods > 0);
    assert_in_range(bert.told, INTER_TOLD_BURST, INTER_TOLD_BURST + INTER_TOLD_A_SECOND * passed);
    from = neb_now();
    tell_on(&r, INTER_MESSAGE_MAX, from + 1500 * NEB_MS);
    passed = neb_seconds(neb_now() - from);
    assert_in_range(bert.told_bytes, INTER_TOLD_BYTES_BURST / 2,
                    INTER_TOLD_BYTES_BURST + INTER_TOLD_BYTES_A_SECOND * passed);
    assert_true(bert.told < INTER_TOLD_A_SECOND * passed); // it was the bytes that counted
    inter_link_destroy(&r.l);
    start(&anna);
}

// Of what waits for a peer so many are under way, however many there are; who acknowledges hears the rest at once, who does not hears them
// seldom, and what it says to have had of what was not sent is not believed.
static void test_window(void **state) {
    (void)state;
    enum { MANY = 100 };
    struct rogue r;
    stop(&anna);
    for (int i = 0; i < MANY; i++)
        send(&bert, 1, "x");
    r = rogue();
    rogue_go(&r, 4 * NEB_S);
    assert_in_range(r.heard, INTER_RESEND_MESSAGES, 2 * INTER_RESEND_MESSAGES);
    for (uint64_t had = 0; r.newest < MANY && had != r.newest;) {
        struct neb_buf ack = {0};
        had = r.newest;
        neb_buf_u8(&ack, 33);
        neb_buf_u64(&ack, r.epoch);
        neb_buf_u64(&ack, MANY); // of which it has not heard most
        (void)!inter_link_send(r.l, index_of[1], INTER_CONTROL, ack.p, ack.len);
        neb_put_u64(ack.p + 9, had);
        OK(inter_link_send(r.l, index_of[1], INTER_CONTROL, ack.p, ack.len));
        neb_buf_free(&ack);
        rogue_go(&r, 300 * NEB_MS);
    }
    assert_int_equal(r.newest, MANY);
    assert_true(r.heard < 2 * MANY);
    inter_link_destroy(&r.l);
    start(&anna);
}

// An honest peer hears all of it in order, and soon.
static void test_window_moves(void **state) {
    (void)state;
    enum { MANY = 150 };
    UNTIL(anna.up && bert.up);
    stop(&anna);
    UNTIL(!bert.up);
    for (int i = 0; i < MANY; i++)
        OK(inter_service_send(bert.s, index_of[0], TOLD, "x", 1));
    start(&anna);
    UNTIL(anna.up);
    neb_ns from = neb_now();
    UNTIL(anna.told == MANY);
    assert_true(neb_now() - from < 10 * NEB_S);
    assert_int_equal(anna.floods, 0);
}

// What waits for a peer that does not come has an end, and the agent none.
static void test_full_outbox(void **state) {
    (void)state;
    static const uint8_t zeros[INTER_MESSAGE_MAX];
    enum { MOST = INTER_OUTBOX_BYTES / INTER_MESSAGE_MAX };
    stop(&anna);
    for (int i = 0; i < MOST; i++)
        OK(inter_service_send(bert.s, index_of[0], 1, zeros, sizeof zeros));
    assert_int_equal(inter_service_send(bert.s, index_of[0], 1, zeros, sizeof zeros),
                     NEB_ERR_LIMIT);
    go_for(100 * NEB_MS);
}

// Anna is a member, and asks for the state of a job: of one that she is no cluster of, of one that she is.
static void test_snapshots_of_others(void **state) {
    (void)state;
    char path[128];
    struct inter_job_config c = {.n_members = 2,
                                 .self = 1,
                                 .peers = {index_of[0] + 7, index_of[1]},
                                 .fragments = FRAGMENTS,
                                 .tune = {.start_interval = 10}};
    snprintf(path, sizeof path, "%s/snapshot", root);
    memcpy(c.id, job, sizeof c.id);
    open_job(&anna);
    OK(inter_service_job_open(bert.s, &c));
    UNTIL(anna.up && bert.up);
    OK(inter_service_snapshot_fetch(anna.s, job, path, &index_of[1], 1, false));
    UNTIL(anna.unanswered == 1);
    assert_int_equal(bert.opened, 0);
    assert_int_equal(bert.denied, 1);
    inter_service_job_close(bert.s, job);
    open_job(&bert);
    OK(inter_service_snapshot_fetch(anna.s, job, path, &index_of[1], 1, false));
    UNTIL(anna.unanswered == 2);
    assert_int_equal(bert.opened, 1);
    assert_int_equal(bert.denied, 1);
}

// Another member's job brings along a limit that nothing gets through: its own updates wait, this site's job does not.
static void test_limit_of_another(void **state) {
    (void)state;
    struct inter_rate_limit slow = {.bps = 4000000}, quick = {.bps = 80000000};
    uint8_t theirs[INTER_ID_BYTES];
    memcpy(theirs, job, sizeof theirs);
    inter_service_limit(anna.s, theirs, &slow, false); // 8 s for an update
    open_job(&anna);
    open_job(&bert);
    neb_ns start_at = neb_now();
    submit(&anna, 0, 0);
    submit(&bert, 0, 0);
    job[0]++;
    open_job(&anna);
    open_job(&bert);
    submit(&anna, 1, 0);
    submit(&bert, 1, 0);
    UNTIL(anna.commits[1] == 1 && bert.commits[1] == 1);
    assert_true(neb_now() - start_at < 6 * NEB_S);
    assert_int_equal(anna.commits[0], 0);
    start_at = neb_now();
    inter_service_limit(anna.s, theirs, &quick, false); // 0.4 s, from when it is looked at
    UNTIL(anna.commits[0] == 1 && bert.commits[0] == 1);
    assert_true(neb_now() - start_at > NEB_S / 5);
    // where it is this site's own, all of it waits, and the smallest counts
    struct inter_job_limits l = {0};
    inter_job_limits_set(&l, theirs, &slow, true);
    inter_job_limits_set(&l, job, &quick, true);
    assert_int_equal(inter_job_limits_apply(&l, 0, 0), slow.bps);
    assert_true(inter_job_limits_pass(&l, theirs, 0));
    inter_job_limits_set(&l, theirs, NULL, false);
    assert_int_equal(inter_job_limits_apply(&l, 0, 0), quick.bps);
    assert_true(inter_job_limits_due(&l) == INT64_MAX);
    job[0]--;
}

static int said_full, said_room;
static void count_room(void *user, enum neb_log_level level, const char *line) {
    (void)user, (void)level;
    said_full += strstr(line, "no room for updates of others") != NULL;
    said_room += strstr(line, "there is room for updates of others") != NULL;
}

// Disks without room for what others send, when it is opened, when chunks of it are written, and when the agent starts: the agents stay, say
// it once, and go on when there is room. Their own updates are refused to the worker.
static void test_full_disk(void **state) {
    (void)state;
    struct inter_manifest own = {.key = {.round = 1}, .tokens = 1, .step = 20, .steps = 10};
    memcpy(own.key.job, job, sizeof job);
    said_full = said_room = 0;
    neb_log_set_sink(count_room, NULL);
    open_job(&anna);
    open_job(&bert);
    submit(&anna, 0, 0);
    submit(&bert, 0, 0);
    submit(&anna, 1, 0);
    submit(&bert, 1, 0);
    neb_fault_arm("ledger.blob:*");
    UNTIL(anna.no_room == 2 && bert.no_room == 2);
    neb_fault_arm("ledger.room:*");
    stop(&bert);
    start(&bert);
    open_job(&bert);
    go_for(NEB_S);
    assert_int_equal(anna.commits[0] + anna.commits[1] + bert.commits[0] + bert.commits[1], 0);
    neb_fault_arm(NULL);
    UNTIL(anna.commits[0] && anna.commits[1] && bert.commits[0] && bert.commits[1]);
    assert_int_equal(said_full, 3); // of each agent's life one
    assert_int_equal(said_room, 2);
    neb_fault_arm("ledger.room:*");
    assert_int_equal(inter_service_submit(anna.s, &own, "x", 1), NEB_ERR_NOSPC);
    neb_fault_arm(NULL);
    submit(&anna, 0, 1);
    submit(&bert, 0, 1);
    UNTIL(anna.commits[0] == 2 && bert.commits[0] == 2);
    neb_log_set_sink(testing_drop, NULL);
    stop(&anna);
    stop(&bert);
    expect_sound(&anna, 3);
    expect_sound(&bert, 3);
}

static int said_sick;
static void count_sick(void *user, enum neb_log_level level, const char *line) {
    (void)user, (void)level;
    said_sick += strstr(line, "updates of others cannot be kept (") != NULL;
    said_room += strstr(line, "there is room for updates of others") != NULL;
}

// Disks that fail where updates of others are opened, synced or renamed: no agent ends; each says what failed, and asks again.
static void test_sick_disk(void **state) {
    static const char *const points[] = {"ledger.sync:*", "ledger.rename:*", "fs.folder:*"};
    (void)state;
    open_job(&anna);
    open_job(&bert);
    for (uint32_t i = 0; i < sizeof points / sizeof *points; i++) {
        int before[2] = {anna.no_room, bert.no_room};
        said_sick = said_room = 0;
        neb_log_set_sink(count_sick, NULL);
        submit(&anna, 0, i);
        submit(&bert, 0, i);
        neb_fault_arm(points[i]);
        UNTIL(anna.no_room > before[0] || bert.no_room > before[1]);
        neb_fault_arm(NULL);
        UNTIL(anna.commits[0] == i + 1 && bert.commits[0] == i + 1);
        neb_log_set_sink(testing_drop, NULL);
        assert_true(said_sick || i); // after that a minute is quiet
        assert_true(said_room);
    }
    stop(&anna);
    stop(&bert);
    expect_sound(&anna, 3);
    expect_sound(&bert, 3);
}

// A job's bound is known however many others were opened, and forgotten when it is closed.
static void test_bounds(void **state) {
    (void)state;
    uint8_t id[INTER_ID_BYTES] = {0};
    for (uint8_t i = 0; i < 40; i++) {
        id[0] = i;
        inter_service_bound(anna.s, id, 1000 + i, true);
    }
    for (uint8_t i = 0; i < 40; i++) {
        id[0] = i;
        assert_int_equal(service_elements_max(anna.s, id), 1000 + i);
        inter_service_bound(anna.s, id, 2000 + i, true);
        assert_int_equal(service_elements_max(anna.s, id), 2000 + i);
    }
    id[0] = 3;
    inter_service_job_close(anna.s, id);
    assert_true(service_elements_max(anna.s, id) == UINT64_MAX);
    id[0] = 39;
    assert_int_equal(service_elements_max(anna.s, id), 2039);
}

static void add_messages(void *user, const char *peer, uint64_t messages, uint64_t bytes) {
    (void)peer, (void)bytes;
    *(uint64_t *)user += messages;
}

static uint64_t waits_for_anna(void) {
    uint64_t n = 0;
    OK(inter_ledger_outbox(inter_service_ledger(bert.s), add_messages, &n));
    return n;
}

// What waits for a member is gone with it from the list, under the service and where it starts after that.
static void test_outbox_of_former(void **state) {
    (void)state;
    struct sec_members all = list, rest = {.version = list.version + 1};
    uint32_t waiting;
    for (uint32_t i = 0; i < list.n; i++)
        if (i != index_of[0])
            rest.m[rest.n++] = list.m[i];
    memcpy(rest.federation, list.federation, sizeof rest.federation);
    stop(&anna);
    OK(inter_service_send(bert.s, index_of[0], 1, "x", 1));
    restart(&bert);
    assert_int_equal(waits_for_anna(), 1);
    stop(&bert);
    list = rest;
    start(&bert);
    assert_int_equal(waits_for_anna(), 0);
    stop(&bert);
    list = all;
    start(&bert);
    OK(inter_service_send(bert.s, index_of[0], 1, "x", 1));
    OK(inter_service_reload(bert.s, &rest, NULL, 0, &waiting));
    assert_int_equal(waits_for_anna(), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_pair, close_pair)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_rounds),          TEST(test_restarts_in_a_round), TEST(test_cut_blob),
        TEST(test_messages),        TEST(test_wrong_messages),      TEST(test_many_messages),
        TEST(test_bounds),          TEST(test_snapshots_of_others), TEST(test_limit_of_another),
        TEST(test_full_disk),       TEST(test_sick_disk),           TEST(test_told_without_end),
        TEST(test_window),          TEST(test_window_moves),        TEST(test_full_outbox),
        TEST(test_outbox_of_former)};
    static const char *const names[] = {"anna", "bert"};
    if (!mkdtemp(root) || sec_init() != NEB_OK)
        return 1;
    neb_log_set_sink(testing_drop, NULL);
    for (int i = 0; i < 2; i++) {
        char home[64];
        snprintf(home, sizeof home, "%s/keys-%s", root, names[i]);
        struct sec_member m = {.connect = SEC_CONNECT_AUTO};
        if (neb_fs_mkdirs(home, 0700) != NEB_OK ||
            sec_identity_create(home, names[i], &ids[i]) != NEB_OK)
            return 1;
        m.pub = *sec_identity_public(ids[i]);
        if (sec_members_add(&list, &m) != NEB_OK)
            return 1;
    }
    for (int i = 0; i < 2; i++)
        index_of[i] = (uint32_t)(sec_members_by_name(&list, names[i]) - list.m);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sec_identity_destroy(&ids[0]);
    sec_identity_destroy(&ids[1]);
    return neb_fs_remove_tree(root) != NEB_OK || failed;
}
