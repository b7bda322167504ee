// SPDX-License-Identifier: Apache-2.0
// inter/service: two agents' services in one process over loopback. Updates become commits on both,
// also if an agent restarts within a round. Messages arrive once and in order, also after a ledger
// is lost.
#include "inter/link/state.h"
#include "inter/round/node_state.h"
#include "tests/unit/service_fixture.h"

// ---- rounds ----

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
    k = m.key; // the key has the attempt that the service chose
    // Some chunks of it are in flight.
    assert_false(inter_ledger_has_blob(inter_service_ledger(bert.s), &k));
    restart(&bert);
    UNTIL(inter_ledger_has_blob(inter_service_ledger(bert.s), &k));
    restart(&anna); // the sender restarts; its promises are in its ledger
    submit(&bert, 0, 0);
    k.member = 1;
    UNTIL(inter_ledger_get_manifest(inter_service_ledger(anna.s), &k, &m) == NEB_OK);
    restart(&anna);
    UNTIL(anna.commits[0] == 1 && bert.commits[0] == 1);
    assert_memory_equal(anna.last, bert.last, sizeof anna.last);
    // A member that submits for a past round gets its commit again, and continues with the next
    // round.
    restart(&anna);
    submit(&anna, 0, 0);
    assert_int_equal(anna.commits[0], 3); // delivered twice
    submit(&anna, 0, 1);
    submit(&bert, 0, 1);
    UNTIL(anna.commits[0] == 4 && bert.commits[0] == 2);
    assert_memory_equal(anna.last, bert.last, sizeof anna.last);
    expect_sound(&anna, 2);
    expect_sound(&bert, 2);
}

// The number of fragments that bert takes from a snapshot. The last record of the snapshot is
// anna's record of this round.
static uint64_t installs(uint32_t round) {
    struct inter_job_config c = job_config(&bert);
    struct inter_snapshot *s = calloc(1, sizeof *s);
    uint64_t taken;
    assert_non_null(s);
    memcpy(s->job, job, sizeof job);
    s->fragments = FRAGMENTS;
    s->parts[0].round = round + 1;
    OK(inter_ledger_get_commit(inter_service_ledger(anna.s), job, 0, round, &s->parts[0].last));
    OK(inter_service_snapshot_install(bert.s, &c, s, &taken));
    free(s);
    return taken;
}

// A snapshot that is in the ledger can be installed again, until the updates since it are gone.
static void test_snapshot_installed_again(void **state) {
    (void)state;
    open_job(&anna);
    open_job(&bert);
    for (uint32_t round = 0; round < 3; round++) {
        submit(&anna, 0, round);
        submit(&bert, 0, round);
        UNTIL(anna.commits[0] == round + 1 && bert.commits[0] == round + 1);
    }
    anna.other_renews = true;
    inter_service_job_close(bert.s, job);
    OK(inter_service_job_renew(bert.s, job));
    assert_int_equal(installs(1), 1);
    assert_int_equal(installs(1), 1);
    open_job(&bert);
    UNTIL(inter_node_round(bert.s->node, job, 0) == 3);
    assert_int_equal(installs(1), 1);
    assert_int_equal(installs(2), 0); // no further than the ledger
    OK(inter_service_prune(bert.s, job, 0, 3));
    assert_int_equal(installs(1), 0);
    expect_sound(&bert, 2);
}

static uint64_t resent_by_anna(void) {
    struct inter_path_stats t;
    inter_node_path(anna.s->node, index_of[1], &t);
    return t.payload_resent;
}

// How many of anna's chunks are in flight on this connection; 0: on any.
static uint32_t in_flight_on(uint64_t way) {
    const struct job *j = node_find_job(anna.s->node, job);
    uint32_t n = 0;
    for (size_t k = 0; k < j->n_serves; k++)
        for (uint32_t i = 0; i < j->serves[k].out.flying.n; i++)
            n += inter_bitmap_has(&j->serves[k].out.flying, i) &&
                 (!way || j->serves[k].out.sent[i].way == way);
    return n;
}

// How many of the chunks in `was` are still in flight on this connection. `was` has a bit for each
// of the first 64 chunks of each transfer.
static uint32_t still_in_flight(uint64_t way, const uint64_t was[8]) {
    const struct job *j = node_find_job(anna.s->node, job);
    uint32_t n = 0;
    for (size_t k = 0; k < j->n_serves && k < 8; k++)
        for (uint32_t i = 0; i < j->serves[k].out.flying.n && i < 64; i++)
            n += was[k] >> i & 1 && inter_bitmap_has(&j->serves[k].out.flying, i) &&
                 j->serves[k].out.sent[i].way == way;
    return n;
}

static void note_in_flight(uint64_t way, uint64_t was[8]) {
    const struct job *j = node_find_job(anna.s->node, job);
    for (size_t k = 0; k < 8; k++)
        was[k] = 0;
    for (size_t k = 0; k < j->n_serves && k < 8; k++)
        for (uint32_t i = 0; i < j->serves[k].out.flying.n && i < 64; i++)
            if (inter_bitmap_has(&j->serves[k].out.flying, i) &&
                j->serves[k].out.sent[i].way == way)
                was[k] |= 1ull << i;
}

// A connection with a chunk of anna's in flight, or NULL.
static struct conn *connection_of_a_chunk(void) {
    struct set *s = link_active(anna.s->link, &anna.s->link->peers[index_of[1]]);
    for (uint32_t x = 1; s && x < CONNS; x++)
        if (s->c[x].way && in_flight_on(s->c[x].way))
            return &s->c[x];
    return NULL;
}

// The link reports a broken connection. The report reaches the update that was in flight on it.
static void test_connection_lost(void **state) {
    (void)state;
    struct conn *c = NULL;
    open_job(&anna);
    open_job(&bert);
    UNTIL(anna.up && bert.up);
    submit(&anna, 0, 0);
    UNTIL((c = connection_of_a_chunk()) != NULL);
    struct inter_link_event e = {
        .kind = INTER_LINK_LOST, .peer = index_of[1], .way = c->way + 1000};
    uint32_t flying = in_flight_on(0);
    assert_int_equal(resent_by_anna(), 0);
    service_on_event(anna.s, &e); // no chunk of the update was on this connection
    assert_int_equal(in_flight_on(0), flying);
    assert_int_equal(resent_by_anna(), 0);
    e.way = c->way;
    struct set *s = link_active(anna.s->link, &anna.s->link->peers[index_of[1]]);
    for (uint32_t i = 1; i < CONNS; i++)
        // a broken connection queues nothing, and the other connections have room
        s->c[i].acked = s->c[i].sent;
    uint64_t was[8];
    note_in_flight(e.way, was);
    service_on_event(anna.s, &e);
    OK(anna.s->st);
    // The chunks are resent at once, or with the next room on a slow path. They may use the same
    // connection, which the link in fact still has.
    assert_true(resent_by_anna() > 0 || !still_in_flight(e.way, was));
    submit(&bert, 0, 0);
    UNTIL(anna.commits[0] == 1 && bert.commits[0] == 1); // chunks that arrive twice do no harm
    expect_sound(&bert, 1);
}

static void send_text(struct site *x, uint32_t kind, const char *text) {
    OK(inter_service_send(x->s, index_of[!x->who], kind, text, strlen(text)));
}

// An update that the disk has lost costs its round. It does not end an agent: neither the one that
// asks nor the one that should send.
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
    send_text(&anna, 1, "alive");
    UNTIL(!strcmp(bert.text, "1:alive "));
}

static void test_messages(void **state) {
    (void)state;
    stop(&bert);
    send_text(&anna, 1, "one"); // bert is away
    send_text(&anna, 2, "two");
    start(&bert);
    UNTIL(anna.up && bert.up);
    send_text(&anna, 3, "three");
    send_text(&bert, 9, "back");
    UNTIL(!strcmp(bert.text, "1:one 2:two 3:three ") && !strcmp(anna.text, "9:back "));
    go_for(4 * NEB_S); // a message without acknowledgement would be resent
    assert_string_equal(bert.text, "1:one 2:two 3:three ");
    struct inter_ledger *l = inter_service_ledger(anna.s);
    uint64_t last, epoch = inter_ledger_epoch(l);
    OK(inter_ledger_taken(inter_service_ledger(bert.s), "anna", epoch, &last));
    assert_int_equal(last, 3);
    // Anna's disk is lost. Her numbers begin at 1 again, and do not count as repeats.
    stop(&anna);
    OK(neb_fs_remove_tree(anna.dir));
    start(&anna);
    assert_true(inter_ledger_epoch(inter_service_ledger(anna.s)) != epoch);
    send_text(&anna, 4, "four");
    UNTIL(!strcmp(bert.text, "1:one 2:two 3:three 4:four "));
    // Bert's disk is lost. He takes the waiting messages, although he has none of the messages
    // before them.
    send_text(&anna, 5, "five");
    UNTIL(strstr(bert.text, "5:five"));
    stop(&bert);
    OK(neb_fs_remove_tree(bert.dir));
    bert.text[0] = 0;
    start(&bert);
    send_text(&anna, 6, "six");
    send_text(&anna, 7, "seven");
    UNTIL(strstr(bert.text, "7:seven"));
    // five arrives too, if its receipt is lost
    assert_non_null(strstr(bert.text, "6:six 7:seven "));
}

// ---- a Byzantine member ----

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

static struct rogue rogue(void) { // a Byzantine member with anna's keys
    struct rogue r = {.up = false};
    struct inter_link_config c = {.identity = ids[0], .members = &list};
    stop(&anna);
    OK(inter_link_create(&c, &r.l));
    for (int i = 0; i < 600 && !r.up; i++)
        rogue_go(&r, 50 * NEB_MS);
    assert_true(r.up);
    return r;
}

static void rogue_sends(struct rogue *r, uint64_t epoch, uint64_t seq, uint64_t previous,
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
    send_text(&bert, 1, "waits");
    for (size_t cut = 2; cut < 30; cut++)
        rogue_sends(&r, 1, 1, 0, cut);
    rogue_sends(&r, 1, 0, 0, 0);
    rogue_sends(&r, 1, UINT64_MAX, 0, 0);
    rogue_sends(&r, 1, 1ull << 63, 0, 0);
    rogue_sends(&r, 1, 5, 5, 0);
    rogue_sends(&r, 1, 5, UINT64_MAX, 0);
    rogue_sends(&r, 1, 5, 4, 0); // 4 has not arrived
    assert_string_equal(bert.text, "");
    struct neb_buf ack = {0}; // an acknowledgement for another ledger must not drop what waits
    neb_buf_u8(&ack, 33);
    neb_buf_u64(&ack, 1);
    neb_buf_u64(&ack, UINT64_MAX);
    OK(inter_link_send(r.l, index_of[1], INTER_CONTROL, ack.p, ack.len));
    neb_buf_free(&ack);
    rogue_sends(&r, 1, 4, 0, 0);
    rogue_sends(&r, 1, 5, 4, 0);
    rogue_sends(&r, 1, 5, 4, 0);
    rogue_sends(&r, 1, 4, 0, 0);
    for (int i = 0; i < 100 && strcmp(bert.text, "8:x 8:x ") != 0; i++)
        rogue_go(&r, 200 * NEB_MS);
    rogue_go(&r, 300 * NEB_MS); // nothing follows
    assert_string_equal(bert.text, "8:x 8:x ");
    inter_link_destroy(&r.l);
    start(&anna);
    UNTIL(!strcmp(anna.text, "1:waits "));
}

// A message of the kind `repeats` is passed on before it is noted as taken. So it is not lost if
// that fails, or if the process is killed in between: it comes again.
static void test_repeats(void **state) {
    (void)state;
    struct rogue r = rogue();
    uint64_t last = 0;
    bert.text[0] = 0;
    bert.s->repeats = 8;
    neb_fault_arm("ledger.write:*");
    rogue_sends(&r, 50, 1, 0, 0);
    for (int i = 0; i < 100 && strcmp(bert.text, "8:x ") != 0; i++)
        rogue_go(&r, 100 * NEB_MS);
    neb_fault_arm(NULL);
    assert_string_equal(bert.text, "8:x ");
    OK(inter_ledger_taken(inter_service_ledger(bert.s), "anna", 50, &last));
    assert_int_equal(last, 0);
    for (int i = 0; i < 100 && last != 1; i++) {
        rogue_sends(&r, 50, 1, 0, 0);
        OK(inter_ledger_taken(inter_service_ledger(bert.s), "anna", 50, &last));
    }
    assert_string_equal(bert.text, "8:x 8:x ");
    bert.s->repeats = 0;
    bert.text[0] = 0;
    inter_link_destroy(&r.l);
    start(&anna);
}

// Each accepted message costs a synced write. If more than a few come in a second, the rest wait.
// No message is lost.
static void test_many_messages(void **state) {
    (void)state;
    enum { MANY = 600 };
    struct rogue r = rogue();
    uint64_t last = 0;
    neb_ns start_at = neb_now();
    // The sender repeats what is not acknowledged.
    for (int pass = 0; pass < TESTING_SLOWER * 200 && last < MANY; pass++) {
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

// Sends telemetry of n bytes at full speed until `end`. If `count` is below `least` then, it goes
// on for up to 20 s.
static void send_telemetry(struct rogue *r, size_t n, neb_ns end, const uint64_t *count,
                           uint64_t least) {
    static const uint8_t zeros[INTER_MESSAGE_MAX];
    struct neb_buf b = {0};
    neb_buf_u8(&b, 34);
    neb_buf_u32(&b, TELEMETRY);
    neb_buf_add(&b, zeros, n);
    bert.told = bert.telemetry_bytes = 0;
    while (neb_now() < end || (*count < least && neb_now() < end + 20 * NEB_S)) {
        for (int i = 0; i < 2000 && inter_link_send(r->l, index_of[1], INTER_CONTROL, b.p, b.len) !=
                                        NEB_ERR_AGAIN;
             i++)
            ;
        rogue_go(r, NEB_MS);
    }
    rogue_go(r, 200 * NEB_MS);
    neb_buf_free(&b);
}

// The number and the bytes of telemetry are limited. A burst of an honest agent passes.
static void test_telemetry_flood(void **state) {
    (void)state;
    struct rogue r = rogue();
    neb_ns from = neb_now();
    send_telemetry(&r, 1, from + NEB_S, &bert.told, INTER_TELEMETRY_BURST);
    double passed = neb_seconds(neb_now() - from);
    assert_true(bert.floods > 0);
    assert_in_range(bert.told, INTER_TELEMETRY_BURST,
                    INTER_TELEMETRY_BURST + INTER_TELEMETRY_A_SECOND * passed);
    from = neb_now();
    send_telemetry(&r, INTER_MESSAGE_MAX, from + 1500 * NEB_MS, &bert.telemetry_bytes,
                   INTER_TELEMETRY_BYTES_BURST / 2);
    passed = neb_seconds(neb_now() - from);
    assert_in_range(bert.telemetry_bytes, INTER_TELEMETRY_BYTES_BURST / 2,
                    INTER_TELEMETRY_BYTES_BURST + INTER_TELEMETRY_BYTES_A_SECOND * passed);
    // bytes were the limit that held
    assert_true((double)bert.told < INTER_TELEMETRY_A_SECOND * passed);
    inter_link_destroy(&r.l);
    start(&anna);
}

// Sends a message of the rounds at full speed until `end`. Returns how many were sent.
static uint64_t send_round_messages(struct rogue *r, const struct neb_buf *b, neb_ns end) {
    uint64_t said = 0;
    while (neb_now() < end) {
        for (int i = 0;
             i < 4000 && inter_link_send(r->l, index_of[1], INTER_CONTROL, b->p, b->len) == NEB_OK;
             i++)
            said++;
        rogue_go(r, NEB_MS);
    }
    rogue_go(r, 300 * NEB_MS);
    return said;
}

// The number of unsigned manifests whose signatures are checked is limited. Valid messages count
// less, but are limited as well.
static void test_round_message_flood(void **state) {
    (void)state;
    struct rogue r = rogue();
    struct neb_buf b = {0};
    struct inter_manifest m = {
        .bytes = 1 << 20, .chunk_bytes = INTER_CHUNK_MIN, .tokens = 10, .step = 10, .steps = 10};
    memcpy(m.key.job, job, sizeof job);
    open_job(&bert);
    neb_buf_u8(&b, 1); // inter/round/node_state.h: MANIFEST
    inter_manifest_put(&b, &m);
    bert.denied = bert.floods = 0;
    neb_ns from = neb_now();
    uint64_t said = send_round_messages(&r, &b, from + 2 * NEB_S);
    double most = (INTER_ROUNDS_BURST + INTER_ROUNDS_A_SECOND * neb_seconds(neb_now() - from)) /
                  INTER_ROUNDS_BAD;
    // enough was sent to exceed the limit
    assert_true(TESTING_SLOWER > 1 || (double)said > 2 * most);
    assert_in_range(bert.denied, INTER_ROUNDS_BURST / INTER_ROUNDS_BAD / 2, most + 1);
    assert_true(bert.floods > 0 && bert.up);
    neb_buf_free(&b);
    inter_link_destroy(&r.l);
    start(&anna);
}

// Only a window of the waiting messages is in flight. After an acknowledgement the rest is sent at
// once. After silence, messages are repeated now and then. An acknowledgement of messages that were
// not sent yet is ignored.
static void test_window(void **state) {
    (void)state;
    enum { MANY = 100 };
    struct rogue r;
    stop(&anna);
    for (int i = 0; i < MANY; i++)
        send_text(&bert, 1, "x");
    r = rogue();
    rogue_go(&r, 4 * NEB_S);
    assert_in_range(r.heard, INTER_RESEND_MESSAGES, 2 * INTER_RESEND_MESSAGES);
    for (uint64_t had = 0; r.newest < MANY && had != r.newest;) {
        struct neb_buf ack = {0};
        had = r.newest;
        neb_buf_u8(&ack, 33);
        neb_buf_u64(&ack, r.epoch);
        neb_buf_u64(&ack, MANY); // most of these were not sent yet
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

// An honest peer gets all messages, in order and soon.
static void test_window_of_honest_peer(void **state) {
    (void)state;
    enum { MANY = 150 };
    UNTIL(anna.up && bert.up);
    stop(&anna);
    UNTIL(!bert.up);
    for (int i = 0; i < MANY; i++)
        OK(inter_service_send(bert.s, index_of[0], TELEMETRY, "x", 1));
    start(&anna);
    UNTIL(anna.up);
    neb_ns from = neb_now();
    UNTIL(anna.told == MANY);
    assert_true(neb_now() - from < 25 * NEB_S); // a window that does not move takes longer
    assert_int_equal(anna.floods, 0);
}

static uint64_t queued(const struct site *x) {
    struct inter_link_control c = inter_link_control(x->s->link, index_of[!x->who]);
    return c.sent - c.acked;
}

// Large messages do not fill the connection that rounds need. Each waits until the one before has
// arrived, and none is lost or repeated.
static void test_outbox_in_turn(void **state) {
    (void)state;
    static const uint8_t zeros[INTER_MESSAGE_MAX];
    enum { MANY = 40, MOST = INTER_TELEMETRY_QUEUED + INTER_MESSAGE_MAX + 100 };
    UNTIL(anna.up && bert.up);
    for (int i = 0; i < MANY; i++) {
        OK(inter_service_send(bert.s, index_of[0], TELEMETRY, zeros, sizeof zeros));
        assert_true(queued(&bert) < MOST);
    }
    neb_ns end = neb_now() + 30 * NEB_S;
    while (anna.told < MANY && neb_now() < end) {
        go();
        assert_true(queued(&bert) < MOST);
    }
    go_for(4 * NEB_S); // a message without acknowledgement would be resent
    assert_int_equal(anna.told, MANY);
    // The same over a new link.
    stop(&anna);
    UNTIL(!bert.up);
    for (int i = 0; i < MANY; i++)
        OK(inter_service_send(bert.s, index_of[0], TELEMETRY, zeros, sizeof zeros));
    start(&anna);
    end = neb_now() + 30 * NEB_S;
    while (anna.told < 2 * MANY && neb_now() < end) {
        go();
        assert_true(queued(&bert) < MOST);
    }
    assert_int_equal(anna.told, 2 * MANY);
    assert_int_equal(anna.floods, 0);
}

// The sender of telemetry is told whether the link took it, and whether something is queued before
// it.
static void test_telemetry_in_turn(void **state) {
    (void)state;
    static const uint8_t zeros[INTER_MESSAGE_MAX];
    uint64_t n = 0;
    UNTIL(anna.up && bert.up);
    for (; inter_service_may_send_telemetry(bert.s, index_of[0]); n++)
        OK(inter_service_send_telemetry(bert.s, index_of[0], TELEMETRY, zeros, sizeof zeros));
    assert_in_range(n, 1, 2);
    UNTIL(inter_service_may_send_telemetry(bert.s, index_of[0]));
    enum neb_status st = NEB_OK; // telemetry out of turn is refused by the full queue
    while ((st = inter_service_send_telemetry(bert.s, index_of[0], TELEMETRY, zeros,
                                              sizeof zeros)) == NEB_OK)
        n++;
    assert_int_equal(st, NEB_ERR_AGAIN);
    UNTIL(anna.told == n);
    stop(&anna);
    UNTIL(!bert.up);
    assert_false(inter_service_may_send_telemetry(bert.s, index_of[0]));
    assert_int_equal(inter_service_send_telemetry(bert.s, index_of[0], TELEMETRY, zeros, 1),
                     NEB_ERR_AGAIN);
    assert_false(inter_service_may_send_telemetry(bert.s, NEB_MEMBERS_MAX));
}

// ---- a stream whose consumer has finished its job ----

struct over {
    int asked;
    bool yes;
    uint64_t durable, stored;
};

static bool is_over(void *user, const struct inter_stream_key *k, uint32_t peer) {
    struct over *x = user;
    assert_memory_equal(k->job, job, sizeof job);
    assert_int_equal(peer, index_of[0]);
    x->asked++;
    return x->yes;
}

static void on_stream_act(void *user, const struct inter_stream_config *c,
                          const struct inter_stream_action *a, const struct inter_stream_stats *now,
                          neb_ns age) {
    struct over *x = user;
    (void)c, (void)now, (void)age;
    if (a->kind != INTER_STREAM_ACT_ROOM)
        return;
    x->durable = a->durable;
    x->stored = a->stored;
}

static void put_batches(const struct inter_stream_key *k, uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; i++)
        OK(inter_streams_put(inter_service_streams(anna.s), k, i, "batch", 5));
}

// Once the consumer's job is done, the last batches of a producer count as stored for good. So do
// batches that are put later, or after a restart. Nothing is granted before that.
static void test_finished_consumer(void **state) {
    (void)state;
    struct inter_stream_config c = {.key = {.id = 3},
                                    .type = INTER_STREAM_REPLACEMENTS,
                                    .role = INTER_STREAM_PRODUCER,
                                    .peer = index_of[1],
                                    .batch_bytes = 100,
                                    .window_batches = 4,
                                    .window_bytes = 1000,
                                    .spool_batches = 8,
                                    .spool_bytes = 10000};
    struct over there = {0}, here = {0};
    memcpy(c.key.job, job, sizeof job);
    inter_streams_listen(inter_service_streams(anna.s),
                         &(struct inter_streams_callbacks){.user = &here, .act = on_stream_act});
    inter_streams_listen(inter_service_streams(bert.s),
                         &(struct inter_streams_callbacks){.user = &there, .over = is_over});
    OK(inter_streams_open(inter_service_streams(anna.s), &c));
    put_batches(&c.key, 0, 4);
    UNTIL(there.asked >= 2);
    assert_int_equal(here.durable, 0);
    there.yes = true;
    UNTIL(here.durable >= 4);
    // puts batches as a worker that continues from its checkpoint; there is always room
    put_batches(&c.key, 4, 9);
    assert_true(here.durable >= 9 && here.stored >= 9);
    stop(&anna);
    start(&anna);
    here = (struct over){0};
    inter_streams_listen(inter_service_streams(anna.s),
                         &(struct inter_streams_callbacks){.user = &here, .act = on_stream_act});
    OK(inter_streams_open(inter_service_streams(anna.s), &c));
    put_batches(&c.key, 7, 12);
    UNTIL(here.durable >= 12);
}

// The queue for a peer that stays away is bounded, and the agent goes on.
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

// A member gets the state of a job only if it is a cluster of that job.
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

// The rate limit of another member's job delays that job's updates, not those of this site's job.
static void test_limit_of_another(void **state) {
    (void)state;
    struct inter_rate_limit slow = {.bps = 1000000}, quick = {.bps = 80000000};
    uint8_t theirs[INTER_ID_BYTES];
    memcpy(theirs, job, sizeof theirs);
    inter_service_limit(anna.s, theirs, &slow, false); // an update takes half a minute
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
    assert_true(neb_now() - start_at < 24 * NEB_S);
    assert_int_equal(anna.commits[0], 0);
    start_at = neb_now();
    inter_service_limit(anna.s, theirs, &quick, false); // 0.4 s, counted from the next check
    UNTIL(anna.commits[0] == 1 && bert.commits[0] == 1);
    assert_true(neb_now() - start_at > NEB_S / 5);
    // A limit that this site sets holds for all its traffic. The smallest limit counts.
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

// Coarse row counts of an honest member always fit its tokens (few tokens in many rows, a long job,
// rounding). Counts that are half as large again do not fit.
static void test_coarse_counts_fit(void **state) {
    (void)state;
    enum { ROWS = 512, ROUNDS = 400 };
    for (unsigned tokens = 16; tokens <= 4096; tokens *= 4) {
        struct neb_rng rng = neb_rng_make(tokens, 2);
        uint64_t all[ROWS] = {0}, so_far = 0, most = 0;
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t seen[ROWS] = {0};
            struct cmp_update_stats stats = {0};
            for (unsigned i = 0; i < 2 * tokens; i++) { // each token counts as input and as target
                uint64_t row = neb_rng_below(&rng, 1 + neb_rng_below(&rng, ROWS));
                seen[row]++;
                all[row]++;
            }
            so_far += tokens;
            for (int r = 0; r < ROWS; r++) {
                uint64_t told = cmp_count_coarse(seen[r], all[r], (double)tokens / (double)so_far);
                stats.counts += cmp_count_value(cmp_count_code(told));
                stats.count_rows += told != 0;
            }
            assert_true(service_counts_fit(INTER_COUNTS_COARSE, &stats, tokens));
            most = stats.counts > most ? stats.counts : most;
            stats.counts = 6 * tokens + stats.count_rows;
            assert_false(service_counts_fit(INTER_COUNTS_COARSE, &stats, tokens));
        }
        struct cmp_update_stats twice = {.counts = most, .count_rows = ROWS};
        assert_true(tokens > 256 || !service_counts_fit(INTER_COUNTS_EXACT, &twice, tokens));
    }
}

// A job's bound is known however many jobs were opened, and forgotten when the job is closed.
static void test_bounds(void **state) {
    (void)state;
    uint8_t id[INTER_ID_BYTES] = {0};
    for (uint8_t i = 0; i < 40; i++) {
        id[0] = i;
        inter_service_bound(anna.s, id, 1000 + i, INTER_COUNTS_EXACT);
    }
    for (uint8_t i = 0; i < 40; i++) {
        id[0] = i;
        assert_int_equal(service_elements_max(anna.s, id), 1000 + i);
        inter_service_bound(anna.s, id, 2000 + i, INTER_COUNTS_EXACT);
        assert_int_equal(service_elements_max(anna.s, id), 2000 + i);
    }
    id[0] = 3;
    inter_service_job_close(anna.s, id);
    assert_true(service_elements_max(anna.s, id) == UINT64_MAX);
    id[0] = 39;
    assert_int_equal(service_elements_max(anna.s, id), 2039);
    // So are the shapes of its fragments.
    const uint8_t sha[INTER_SHA_BYTES] = {1};
    for (uint8_t i = 0; i < 20; i++) {
        id[0] = i;
        for (uint32_t f = 0; f < INTER_FRAGMENTS_MAX; f++)
            OK(inter_service_shape(anna.s, id, f, 10, sha));
    }
    assert_int_equal(anna.s->n_shapes, 20 * INTER_FRAGMENTS_MAX);
    for (uint8_t i = 1; i < 20; i++) {
        id[0] = i;
        inter_service_job_close(anna.s, id);
    }
    assert_int_equal(anna.s->n_shapes, INTER_FRAGMENTS_MAX);
    assert_int_equal(anna.s->shapes[0].job[0], 0);
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

// Messages for a removed member are dropped, both while the service runs and when it starts.
static void test_outbox_of_removed_member(void **state) {
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

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_rounds),
                                       TEST(test_restarts_in_a_round),
                                       TEST(test_snapshot_installed_again),
                                       TEST(test_cut_blob),
                                       TEST(test_connection_lost),
                                       TEST(test_messages),
                                       TEST(test_wrong_messages),
                                       TEST(test_repeats),
                                       TEST(test_many_messages),
                                       TEST(test_bounds),
                                       TEST(test_coarse_counts_fit),
                                       TEST(test_snapshots_of_others),
                                       TEST(test_limit_of_another),
                                       TEST(test_telemetry_flood),
                                       TEST(test_window),
                                       TEST(test_window_of_honest_peer),
                                       TEST(test_outbox_in_turn),
                                       TEST(test_telemetry_in_turn),
                                       TEST(test_finished_consumer),
                                       TEST(test_full_outbox),
                                       TEST(test_outbox_of_removed_member),
                                       TEST(test_round_message_flood)};
    if (!set_up())
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return !tear_down() || failed;
}
