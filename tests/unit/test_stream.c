// SPDX-License-Identifier: Apache-2.0
// Streams: the wire format, both endpoints step by step, and the spool. test_stream_world.c
// simulates complete runs.
#include "agent/base/fault.h"
#include "agent/base/file.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/vault.h"
#include "inter/stream/spool.h"
#include "inter/stream/wire.h"
#include "tests/unit/stream_fixture.h"

#include <stdlib.h>
#include <unistd.h>

static struct inter_stream *make(enum inter_stream_role role) {
    struct inter_stream_config c = config(role);
    struct inter_stream *s = NULL;
    assert_int_equal(inter_stream_create(&c, &crypto, &s), NEB_OK);
    return s;
}

static void data_message(struct inter_stream *any, uint64_t seq, size_t n, uint8_t spoil,
                         struct neb_buf *b) {
    uint8_t bytes[300];
    memset(bytes, (int)seq, n);
    neb_buf_clear(b);
    assert_int_equal(inter_stream_data_header(any, seq, 5, bytes, n, b), NEB_OK);
    neb_buf_add(b, bytes, n);
    b->p[b->len - 1] ^= spoil;
}

static void feed(struct inter_stream *s, struct inter_stream_actions *out, bool bulk,
                 const struct neb_buf *b) {
    assert_int_equal(inter_stream_step(s, NEB_S,
                                       &(struct inter_stream_event){.kind = INTER_STREAM_EV_MESSAGE,
                                                                    .bulk = bulk,
                                                                    .data = b->p,
                                                                    .len = b->len},
                                       out),
                     NEB_OK);
}

static uint64_t faults(const struct inter_stream *s, enum inter_stream_fault f) {
    struct inter_stream_stats t;
    inter_stream_stats(s, &t);
    return t.faults[f];
}

static void test_refused_data(void **state) {
    (void)state;
    struct inter_stream *in = make(INTER_STREAM_CONSUMER), *out = make(INTER_STREAM_PRODUCER);
    struct inter_stream_actions a = {0};
    struct neb_buf b = {0};
    data_message(out, 0, 10, 0, &b);
    feed(in, &a, true, &b); // no worker is attached
    assert_int_equal(faults(in, INTER_STREAM_FAULT_LATE), 1);
    assert_int_equal(
        inter_stream_step(
            in, 0, &(struct inter_stream_event){.kind = INTER_STREAM_EV_ATTACH, .session = 1}, &a),
        NEB_OK);
    data_message(out, 0, 10, 1, &b); // a byte differs from the signed ones
    feed(in, &a, true, &b);
    assert_int_equal(faults(in, INTER_STREAM_FAULT_DENIED), 1);
    data_message(out, 6, 10, 0, &b); // beyond the window of 6
    feed(in, &a, true, &b);
    assert_int_equal(faults(in, INTER_STREAM_FAULT_OUTSIDE), 1);
    data_message(out, 0, 201, 0, &b);
    feed(in, &a, true, &b);
    assert_int_equal(faults(in, INTER_STREAM_FAULT_OVERSIZE), 1);
    // 4 × 200 bytes that wait for batch 0 are more than the window's 700.
    for (uint64_t seq = 1; seq <= 4; seq++) {
        data_message(out, seq, 200, 0, &b);
        feed(in, &a, true, &b);
    }
    assert_int_equal(faults(in, INTER_STREAM_FAULT_OVERSIZE), 2);
    data_message(out, 1, 200, 0, &b);
    feed(in, &a, true, &b);
    assert_int_equal(faults(in, INTER_STREAM_FAULT_DUPLICATE), 1);
    data_message(out, 0, 10, 0, &b);
    feed(in, &a, false, &b); // on the wrong channel
    assert_int_equal(faults(in, INTER_STREAM_FAULT_MALFORMED), 1);
    feed(in, &a, true, &b);
    size_t delivered = 0;
    for (size_t i = 0; i < a.n; i++)
        delivered += a.list[i].kind == INTER_STREAM_ACT_DELIVER;
    assert_int_equal(delivered, 4); // batch 0, and the batches that waited for it
    feed(in, &a, true, &b);
    assert_int_equal(faults(in, INTER_STREAM_FAULT_DUPLICATE), 2);
    neb_buf_free(&b);
    inter_stream_actions_free(&a);
    inter_stream_destroy(&in);
    inter_stream_destroy(&out);
}

static void test_refused_puts(void **state) {
    (void)state;
    struct inter_stream *out = make(INTER_STREAM_PRODUCER);
    struct inter_stream_actions a = {0};
    uint8_t b[201] = {0};
    struct inter_stream_event e = {.kind = INTER_STREAM_EV_PUT, .data = b, .len = 201};
    assert_int_equal(inter_stream_step(out, 0, &e, &a), NEB_OK);
    assert_int_equal(faults(out, INTER_STREAM_FAULT_OVERSIZE), 1);
    e.seq = 1;
    e.len = 10;
    assert_int_equal(inter_stream_step(out, 0, &e, &a), NEB_OK); // a gap before this batch
    assert_int_equal(faults(out, INTER_STREAM_FAULT_OUTSIDE), 1);
    e.seq = 0;
    assert_int_equal(inter_stream_step(out, 0, &e, &a), NEB_OK);
    assert_int_equal(a.list[0].kind, INTER_STREAM_ACT_STORE);
    assert_int_equal(inter_stream_step(out, 0, &e, &a), NEB_OK); // repeating the same bytes is fine
    assert_int_equal(faults(out, INTER_STREAM_FAULT_CONFLICT), 0);
    b[3] = 1;
    assert_int_equal(inter_stream_step(out, 0, &e, &a), NEB_OK); // other bytes are not
    assert_int_equal(faults(out, INTER_STREAM_FAULT_CONFLICT), 1);
    for (e.seq = 1; e.seq < 40; e.seq++)
        assert_int_equal(inter_stream_step(out, 0, &e, &a), NEB_OK);
    struct inter_stream_stats t;
    inter_stream_stats(out, &t);
    assert_int_equal(t.next, 24); // then the spool is full
    inter_stream_actions_free(&a);
    inter_stream_destroy(&out);
}

static void test_terms(void **state) {
    (void)state;
    struct inter_stream *in = make(INTER_STREAM_CONSUMER), *out = NULL;
    struct inter_stream_actions a = {0}, messages = {0};
    struct inter_stream_config c = config(INTER_STREAM_PRODUCER);
    uint8_t b[10] = {0};
    c.terms[0].sha256[5] = 1;
    assert_int_equal(inter_stream_create(&c, &crypto, &out), NEB_OK);
    assert_int_equal(
        inter_stream_step(
            in, 0, &(struct inter_stream_event){.kind = INTER_STREAM_EV_ATTACH, .session = 1}, &a),
        NEB_OK);
    assert_int_equal(
        inter_stream_step(
            out, 0, &(struct inter_stream_event){.kind = INTER_STREAM_EV_PUT, .data = b, .len = 10},
            &a),
        NEB_OK);
    assert_int_equal(inter_stream_step(
                         out, 0, &(struct inter_stream_event){.kind = INTER_STREAM_EV_PEER_UP}, &a),
                     NEB_OK);
    // The producer gets all messages that the consumer sends when the link comes up. It sends no
    // data, and reports the digests.
    assert_int_equal(
        inter_stream_step(in, 0, &(struct inter_stream_event){.kind = INTER_STREAM_EV_PEER_UP},
                          &messages),
        NEB_OK);
    size_t named = 0, sent = 0;
    for (size_t i = 0; i < messages.n; i++) {
        struct inter_stream_event e = {.kind = INTER_STREAM_EV_MESSAGE,
                                       .data = messages.bytes.p + messages.list[i].at,
                                       .len = messages.list[i].size};
        assert_int_equal(inter_stream_step(out, 0, &e, &a), NEB_OK);
        for (size_t k = 0; k < a.n; k++) {
            sent += a.list[k].kind == INTER_STREAM_ACT_SEND;
            if (a.list[k].kind != INTER_STREAM_ACT_TERMS)
                continue;
            named++;
            assert_string_equal(a.list[k].term, "shards");
            assert_memory_equal(a.list[k].ours, c.terms[0].sha256, INTER_SHA_BYTES);
            assert_int_equal(a.list[k].theirs[0], 9);
        }
    }
    assert_int_equal(messages.n, 2);
    assert_int_equal(named, 1);
    assert_int_equal(sent, 0);
    inter_stream_actions_free(&a);
    inter_stream_actions_free(&messages);
    inter_stream_destroy(&in);
    inter_stream_destroy(&out);
}

// A consumer restarts before the base of the spool. This is reported.
static void test_lost_batches_reported(void **state) {
    (void)state;
    struct inter_stream *out = make(INTER_STREAM_PRODUCER);
    struct inter_stream_actions a = {0};
    struct inter_stream_key k = config(INTER_STREAM_PRODUCER).key;
    struct neb_buf b = {0};
    size_t lost = 0;
    inter_stream_restore_base(out, 10);
    inter_stream_put_grant(&b, &k, &(struct inter_stream_grant){5, 4, 4, 0, 6, 700});
    feed(out, &a, false, &b);
    for (size_t i = 0; i < a.n; i++)
        lost += a.list[i].kind == INTER_STREAM_ACT_LOST && a.list[i].seq == 4 &&
                a.list[i].durable == 10;
    assert_int_equal(lost, 1);
    neb_buf_free(&b);
    inter_stream_actions_free(&a);
    inter_stream_destroy(&out);
}

static bool find(const struct inter_stream_actions *a, enum inter_stream_action_kind kind,
                 struct inter_stream_action *out) {
    for (size_t i = 0; i < a->n; i++)
        if (a->list[i].kind == kind) {
            *out = a->list[i];
            return true;
        }
    return false;
}

// A consumer without checkpoints attaches anywhere: it grants nothing until the producer reports
// the base of its spool. The base is after the batches that are saved but not yet dropped. Earlier
// data is ignored.
static void test_consumer_without_checkpoints(void **state) {
    (void)state;
    struct inter_stream *in = make(INTER_STREAM_CONSUMER), *out = make(INTER_STREAM_PRODUCER);
    struct inter_stream_actions a = {0};
    struct inter_stream_action x = {0};
    struct inter_stream_message m;
    struct inter_stream_key k = config(INTER_STREAM_PRODUCER).key;
    struct neb_buf b = {0};
    uint8_t batch[10] = {0};
    inter_stream_restore_base(out, 10);
    for (uint64_t seq = 10; seq < 14; seq++)
        assert_int_equal(inter_stream_restore(out, seq, batch, sizeof batch), NEB_OK);
    assert_int_equal(
        inter_stream_step(out, NEB_S, &(struct inter_stream_event){.kind = INTER_STREAM_EV_PEER_UP},
                          &a),
        NEB_OK);
    for (uint64_t saved = 11; saved <= 12; saved++) { // only the first batch is dropped at once
        neb_buf_clear(&b);
        inter_stream_put_grant(&b, &k, &(struct inter_stream_grant){1, 12, 12, saved, 6, 700});
        feed(out, &a, false, &b);
    }
    assert_int_equal(
        inter_stream_step(in, NEB_S, &(struct inter_stream_event){.kind = INTER_STREAM_EV_PEER_UP},
                          &a),
        NEB_OK);
    assert_int_equal(inter_stream_step(in, NEB_S,
                                       &(struct inter_stream_event){.kind = INTER_STREAM_EV_ATTACH,
                                                                    .seq = INTER_STREAM_ANYWHERE,
                                                                    .session = 2},
                                       &a),
                     NEB_OK);
    assert_int_equal(a.n, 1); // a HELLO, and no GRANT
    neb_buf_clear(&b);
    neb_buf_add(&b, a.bytes.p + a.list[0].at, a.list[0].size);
    assert_true(inter_stream_parse(b.p, b.len, &m) && m.kind == INTER_STREAM_HELLO && m.hello.ask);
    feed(out, &a, false, &b);
    assert_true(find(&a, INTER_STREAM_ACT_SEND_CONTROL, &x));
    neb_buf_clear(&b);
    neb_buf_add(&b, a.bytes.p + x.at, x.size);
    assert_true(inter_stream_parse(b.p, b.len, &m) && m.hello.base == 12);
    struct neb_buf data = {0};
    data_message(out, 0, 10, 0, &data);
    feed(in, &a, true, &data);
    assert_int_equal(faults(in, INTER_STREAM_FAULT_LATE), 1);
    feed(in, &a, false, &b);
    assert_true(find(&a, INTER_STREAM_ACT_BEGIN, &x) && x.seq == 12);
    assert_true(find(&a, INTER_STREAM_ACT_SEND_CONTROL, &x));
    neb_buf_clear(&b);
    neb_buf_add(&b, a.bytes.p + x.at, x.size);
    feed(out, &a, false, &b);
    assert_false(find(&a, INTER_STREAM_ACT_LOST, &x));
    assert_true(find(&a, INTER_STREAM_ACT_SEND, &x) && x.seq == 12);
    data_message(out, 12, 10, 0, &data);
    feed(in, &a, true, &data);
    assert_true(find(&a, INTER_STREAM_ACT_DELIVER, &x) && x.seq == 12);
    neb_buf_free(&data);
    neb_buf_free(&b);
    inter_stream_actions_free(&a);
    inter_stream_destroy(&in);
    inter_stream_destroy(&out);
}

// A consumer that needs no more batches attaches after the last one. The producer's worker learns
// that all is stored.
static void test_consumer_wants_no_more(void **state) {
    (void)state;
    enum { ALL = 100 };
    struct inter_stream *in = make(INTER_STREAM_CONSUMER), *out = make(INTER_STREAM_PRODUCER);
    struct inter_stream_actions a = {0};
    struct inter_stream_action x = {0};
    struct inter_stream_key k = config(INTER_STREAM_PRODUCER).key;
    struct neb_buf b = {0};
    uint8_t batch[10] = {0};
    for (uint64_t seq = 0; seq < 4; seq++)
        assert_int_equal(inter_stream_step(out, NEB_S,
                                           &(struct inter_stream_event){.kind = INTER_STREAM_EV_PUT,
                                                                        .seq = seq,
                                                                        .data = batch,
                                                                        .len = sizeof batch},
                                           &a),
                         NEB_OK);
    inter_stream_put_grant(&b, &k, &(struct inter_stream_grant){1, 2, 2, 1, 6, 700});
    feed(out, &a, false, &b); // the saved batches were dropped a moment ago
    const struct inter_stream_event events[] = {
        {.kind = INTER_STREAM_EV_PEER_UP},
        {.kind = INTER_STREAM_EV_ATTACH, .seq = ALL, .session = 2},
        {.kind = INTER_STREAM_EV_DURABLE, .seq = ALL}};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        assert_int_equal(inter_stream_step(in, NEB_S, &events[i], &a), NEB_OK);
    assert_true(find(&a, INTER_STREAM_ACT_SEND_CONTROL, &x));
    neb_buf_clear(&b);
    neb_buf_add(&b, a.bytes.p + x.at, x.size);
    feed(out, &a, false, &b);
    assert_true(find(&a, INTER_STREAM_ACT_ROOM, &x) && x.durable == ALL);
    assert_int_equal(inter_stream_step(out, 3 * NEB_S,
                                       &(struct inter_stream_event){.kind = INTER_STREAM_EV_TICK},
                                       &a),
                     NEB_OK);
    assert_true(find(&a, INTER_STREAM_ACT_DROP, &x) && x.seq == ALL);
    assert_true(find(&a, INTER_STREAM_ACT_ROOM, &x) && x.stored == ALL && x.durable == ALL);
    assert_false(find(&a, INTER_STREAM_ACT_SEND, &x));
    neb_buf_free(&b);
    inter_stream_actions_free(&a);
    inter_stream_destroy(&in);
    inter_stream_destroy(&out);
}

// To drop batches from the spool is a synced write. A consumer that saves batch after batch causes
// one a second.
static void test_drops_are_rare(void **state) {
    (void)state;
    struct inter_stream *out = make(INTER_STREAM_PRODUCER);
    struct inter_stream_actions a = {0};
    struct inter_stream_key k = config(INTER_STREAM_PRODUCER).key;
    struct neb_buf b = {0};
    uint8_t batch[10] = {0};
    uint64_t drops = 0, below = 0;
    for (uint64_t seq = 0; seq < 20; seq++)
        assert_int_equal(inter_stream_step(out, 0,
                                           &(struct inter_stream_event){.kind = INTER_STREAM_EV_PUT,
                                                                        .seq = seq,
                                                                        .data = batch,
                                                                        .len = sizeof batch},
                                           &a),
                         NEB_OK);
    for (uint64_t saved = 1; saved <= 20; saved++) {
        neb_buf_clear(&b);
        inter_stream_put_grant(&b, &k, &(struct inter_stream_grant){5, 20, 20, saved, 6, 700});
        feed(out, &a, false, &b);
        for (size_t i = 0; i < a.n; i++)
            drops += a.list[i].kind == INTER_STREAM_ACT_DROP;
    }
    assert_int_equal(drops, 1);
    assert_int_equal(inter_stream_step(out, 3 * NEB_S,
                                       &(struct inter_stream_event){.kind = INTER_STREAM_EV_TICK},
                                       &a),
                     NEB_OK);
    for (size_t i = 0; i < a.n; i++)
        below = a.list[i].kind == INTER_STREAM_ACT_DROP ? a.list[i].seq : below;
    assert_int_equal(below, 20);
    neb_buf_free(&b);
    inter_stream_actions_free(&a);
    inter_stream_destroy(&out);
}

// A consumer keeps several checkpoints, saves only when asked, and may restart once. Returns the
// batch where the spool filled up for good, or 0. bytes: of a batch; large ones fill the spool by
// bytes, small ones by number.
static uint64_t runs_through(int keep, size_t bytes, int restart_at) {
    enum { ALL = 400 };
    struct inter_stream_config c = config(INTER_STREAM_CONSUMER);
    struct inter_stream_actions a = {0};
    struct inter_stream *in = NULL, *out = make(INTER_STREAM_PRODUCER);
    struct neb_buf b = {0};
    uint64_t saved[16], n_saved = 0, durable = 0, applied = 0, newest = 0, session = 1;
    c.spool_batches = 120;
    c.spool_bytes = bytes > 100 ? 100 * bytes : 120 * 200;
    assert_int_equal(inter_stream_create(&c, &crypto, &in), NEB_OK);
    assert_int_equal(
        inter_stream_step(
            in, 0, &(struct inter_stream_event){.kind = INTER_STREAM_EV_ATTACH, .session = 1}, &a),
        NEB_OK);
    while (applied < ALL && applied - durable < c.spool_batches &&
           (applied + 1 - durable) * bytes <= c.spool_bytes) { // the room that the producer has
        if ((int)applied == restart_at && newest) {
            struct inter_stream_hello h = {.role = INTER_STREAM_PRODUCER,
                                           .type = (uint8_t)c.type,
                                           .batch_bytes = c.batch_bytes,
                                           .base = durable,
                                           .n_terms = 1,
                                           .terms = {c.terms[0]}};
            restart_at = -1;
            applied = saved[0] = newest;
            n_saved = 1;
            inter_stream_destroy(&in); // its agent restarts too
            assert_int_equal(inter_stream_create(&c, &crypto, &in), NEB_OK);
            assert_int_equal(
                inter_stream_step(in, 0,
                                  &(struct inter_stream_event){.kind = INTER_STREAM_EV_ATTACH,
                                                               .seq = applied,
                                                               .session = ++session},
                                  &a),
                NEB_OK);
            neb_buf_clear(&b);
            inter_stream_put_hello(&b, &c.key, &h);
            feed(in, &a, false, &b);
        }
        data_message(out, applied, bytes, 0, &b);
        feed(in, &a, true, &b);
        applied++;
        assert_int_equal(
            inter_stream_step(
                in, NEB_S,
                &(struct inter_stream_event){.kind = INTER_STREAM_EV_APPLIED, .seq = applied}, &a),
            NEB_OK);
        bool asked = false;
        for (size_t i = 0; i < a.n; i++)
            asked = asked || a.list[i].kind == INTER_STREAM_ACT_CHECKPOINT;
        if (!asked)
            continue;
        newest = saved[n_saved++ % (uint64_t)keep] = applied;
        if (n_saved < (uint64_t)keep)
            continue;
        durable = saved[n_saved % (uint64_t)keep];
        assert_int_equal(
            inter_stream_step(
                in, NEB_S,
                &(struct inter_stream_event){.kind = INTER_STREAM_EV_DURABLE, .seq = durable}, &a),
            NEB_OK);
    }
    neb_buf_free(&b);
    inter_stream_actions_free(&a);
    inter_stream_destroy(&in);
    inter_stream_destroy(&out);
    return applied == ALL ? 0 : applied;
}

static void test_spool_never_fills(void **state) {
    (void)state;
    static const int keeps[] = {1, 2, 3, 5, 9, 16};
    for (size_t i = 0; i < sizeof keeps / sizeof *keeps; i++)
        for (size_t bytes = 50; bytes <= 200; bytes += 150)
            for (int restart_at = -1; restart_at < 115; restart_at += 3) {
                uint64_t stuck = runs_through(keeps[i], bytes, restart_at);
                if (stuck)
                    fail_msg("keep %d, batches of %zu bytes, restarted at %d: stuck behind batch "
                             "%llu",
                             keeps[i], bytes, restart_at, (unsigned long long)stuck);
            }
}

static void test_limits(void **state) {
    (void)state;
    struct inter_stream *s = NULL;
    neb_log_set_sink(testing_drop, NULL);
    for (int i = 0; i < 8; i++) {
        struct inter_stream_config c = config(INTER_STREAM_PRODUCER);
        i == 0   ? (c.batch_bytes = 0)
        : i == 1 ? (c.batch_bytes = INTER_STREAM_BATCH_MAX + 1)
        : i == 2 ? (c.window_batches = 0)
                 : 0;
        i == 3   ? (c.window_bytes = 199)
        : i == 4 ? (c.spool_batches = 5)
        : i == 5 ? (c.spool_batches = 1 << 17)
                 : 0;
        c.window_start = i == 7 ? 7 : c.window_start;
        c.type = i == 6 ? INTER_STREAM_TYPES : c.type;
        assert_int_equal(inter_stream_create(&c, &crypto, &s), NEB_ERR_INVALID);
    }
    neb_log_set_sink(NULL, NULL);
}

static void test_spool(void **state) {
    (void)state;
    char dir[] = "/tmp/nebula-spool-XXXXXX";
    struct inter_spool *sp = NULL;
    struct inter_streams *all = NULL;
    struct inter_stream *s = make(INTER_STREAM_PRODUCER);
    struct inter_stream_key k = config(INTER_STREAM_PRODUCER).key, other = k;
    struct neb_buf b = {0};
    uint8_t bytes[200];
    other.id = 8;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(inter_spool_open(dir, &sp), NEB_OK);
    for (uint64_t seq = 0; seq < 9; seq++) {
        size_t n = body(seq, bytes);
        assert_int_equal(inter_spool_put(sp, &k, seq, bytes, n), NEB_OK);
    }
    neb_fault_arm("spool.room:*"); // the remaining room is reserved for the ledger
    assert_int_equal(inter_spool_put(sp, &other, 0, "other", 5), NEB_ERR_NOSPC);
    neb_fault_arm(NULL);
    assert_int_equal(inter_spool_put(sp, &other, 0, "other", 5), NEB_OK);
    assert_int_equal(inter_spool_drop(sp, &k, 4), NEB_OK);
    inter_spool_close(&sp);
    assert_int_equal(inter_spool_open(dir, &sp), NEB_OK);
    assert_int_equal(inter_spool_restore(sp, s), NEB_OK);
    struct inter_stream_stats t;
    inter_stream_stats(s, &t);
    assert_int_equal(t.base, 4);
    assert_int_equal(t.next, 9);
    assert_int_equal(inter_spool_get(sp, &k, 3, &b), NEB_ERR_NOT_FOUND);
    assert_int_equal(inter_spool_get(sp, &k, 8, &b), NEB_OK);
    assert_int_equal(b.len, body(8, bytes));
    assert_memory_equal(b.p, bytes, b.len);
    inter_spool_close(&sp);
    // A restarted agent that opens no stream any more.
    assert_int_equal(inter_streams_create(&(struct inter_streams_config){.dir = dir}, &all),
                     NEB_OK);
    assert_int_equal(inter_streams_close(all, k.job, true), NEB_OK);
    inter_streams_destroy(&all);
    assert_int_equal(inter_spool_open(dir, &sp), NEB_OK);
    assert_int_equal(inter_spool_get(sp, &other, 0, &b), NEB_ERR_NOT_FOUND);
    inter_spool_close(&sp);
    neb_buf_free(&b);
    inter_stream_destroy(&s);
    assert_int_equal(neb_fs_remove_tree(dir), NEB_OK);
}

// A sealed spool has nothing in clear in its files, needs its key, and holds each batch in its own
// place.
static void test_sealed(void **state) {
    (void)state;
    char dir[] = "/tmp/nebula-spool-XXXXXX", path[64], key_path[64];
    struct inter_spool *sp = NULL;
    struct sec_seal_key *key = NULL, *other = NULL;
    struct inter_stream_key k = config(INTER_STREAM_PRODUCER).key, elsewhere = k;
    struct neb_buf b = {0}, file = {0};
    uint8_t bytes[200];
    elsewhere.id++;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/streams.db-wal", dir);
    snprintf(key_path, sizeof key_path, "%s/a.key", dir);
    assert_int_equal(sec_seal_key_make(key_path, NULL, &key), NEB_OK);
    snprintf(key_path, sizeof key_path, "%s/b.key", dir);
    assert_int_equal(sec_seal_key_make(key_path, NULL, &other), NEB_OK);
    assert_int_equal(inter_spool_open(dir, &sp), NEB_OK);
    assert_int_equal(inter_spool_put(sp, &k, 0, "before the site sealed", 22), NEB_OK);
    inter_spool_seal(sp, key);
    assert_int_equal(inter_spool_put(sp, &k, 1, "what nobody may read", 20), NEB_OK);
    for (uint64_t seq = 2; seq < 6; seq++)
        assert_int_equal(inter_spool_put(sp, &k, seq, bytes, body(seq, bytes)), NEB_OK);
    struct neb_map map;
    assert_int_equal(neb_map_open(path, &map), NEB_OK);
    assert_non_null(memmem(map.p, map.len, "before the site sealed", 22));
    assert_null(memmem(map.p, map.len, "nobody may read", 15));
    neb_map_close(&map);
    struct inter_stream *s = make(INTER_STREAM_PRODUCER);
    assert_int_equal(inter_spool_restore(sp, s), NEB_OK); // also the unsealed one
    struct inter_stream_stats t;
    inter_stream_stats(s, &t);
    assert_int_equal(t.next, 6);
    assert_int_equal(inter_spool_get(sp, &k, 5, &b), NEB_OK);
    assert_int_equal(b.len, body(5, bytes));
    assert_memory_equal(b.p, bytes, b.len);
    neb_log_set_sink(testing_drop, NULL);
    inter_spool_seal(sp, NULL);
    assert_int_equal(inter_spool_get(sp, &k, 5, &b), NEB_ERR_DENIED);
    inter_spool_seal(sp, other);
    assert_int_equal(inter_spool_get(sp, &k, 5, &b), NEB_ERR_DENIED);
    // A batch in another place, of another stream, or changed.
    assert_int_equal(inter_stream_seal(key, &k, 7, "seven", 5, &file), NEB_OK);
    assert_int_equal(inter_stream_unseal(key, "f", &k, 7, file.p, file.len, &b), NEB_OK);
    assert_true(b.len == 5 && !memcmp(b.p, "seven", 5));
    assert_int_equal(inter_stream_unseal(key, "f", &k, 8, file.p, file.len, &b), NEB_ERR_CORRUPT);
    assert_int_equal(inter_stream_unseal(key, "f", &elsewhere, 7, file.p, file.len, &b),
                     NEB_ERR_CORRUPT);
    for (size_t n = NEB_SEALED_MAGIC_BYTES; n < file.len; n++)
        assert_int_not_equal(inter_stream_unseal(key, "f", &k, 7, file.p, n, &b), NEB_OK);
    for (size_t i = NEB_SEALED_MAGIC_BYTES; i < file.len; i++) {
        file.p[i] ^= 1;
        assert_int_not_equal(inter_stream_unseal(key, "f", &k, 7, file.p, file.len, &b), NEB_OK);
        file.p[i] ^= 1;
    }
    neb_log_set_sink(NULL, NULL);
    inter_spool_close(&sp);
    inter_stream_destroy(&s);
    neb_buf_free(&b);
    neb_buf_free(&file);
    sec_seal_key_destroy(&key);
    sec_seal_key_destroy(&other);
    assert_int_equal(neb_fs_remove_tree(dir), NEB_OK);
}

// A peer of another protocol version is reported once for each link. The report says this, and not
// that its messages are malformed.
static void test_other_version(void **state) {
    (void)state;
    struct inter_stream *s = make(INTER_STREAM_PRODUCER);
    struct inter_stream_actions out = {0};
    struct inter_stream_key k = config(INTER_STREAM_PRODUCER).key;
    struct inter_stream_hello h = {.role = INTER_STREAM_CONSUMER, .type = INTER_STREAM_SOFT_LABELS};
    struct neb_buf b = {0};
    inter_stream_put_hello(&b, &k, &h);
    assert_false(inter_stream_other_version(b.p, b.len));
    b.p[4 + INTER_ID_BYTES]--;
    assert_true(inter_stream_other_version(b.p, b.len));
    for (uint64_t links = 1; links < 3; links++) {
        assert_int_equal(
            inter_stream_step(s, NEB_S,
                              &(struct inter_stream_event){.kind = INTER_STREAM_EV_PEER_UP}, &out),
            NEB_OK);
        for (int i = 0; i < 3; i++)
            feed(s, &out, false, &b);
        assert_int_equal(faults(s, INTER_STREAM_FAULT_VERSION), links);
    }
    assert_int_equal(faults(s, INTER_STREAM_FAULT_MALFORMED), 0);
    assert_false(inter_stream_other_version(b.p, 20));
    neb_buf_free(&b);
    inter_stream_actions_free(&out);
    inter_stream_destroy(&s);
}

static void test_wire(void **state) { // what is written can be read; truncated messages are refused
    (void)state;
    struct inter_stream_key k = config(INTER_STREAM_CONSUMER).key;
    struct inter_stream_hello h = {
        .role = 1, .type = 2, .ask = true, .batch_bytes = 99, .n_terms = 2, .base = 1ull << 40};
    struct inter_stream_message m;
    struct neb_buf b[3] = {{0}};
    uint8_t sig[INTER_SIG_BYTES] = {5};
    snprintf(h.terms[0].name, sizeof h.terms[0].name, "vocabulary");
    snprintf(h.terms[1].name, sizeof h.terms[1].name, "shards");
    inter_stream_put_hello(&b[0], &k, &h);
    inter_stream_put_grant(&b[1], &k, &(struct inter_stream_grant){3, 9, 8, 7, 6, 5});
    inter_stream_put_data(&b[2], &k, 1234567890123, 77, sig);
    neb_buf_add(&b[2], "body", 4);
    assert_true(inter_stream_parse(b[0].p, b[0].len, &m) && m.kind == INTER_STREAM_HELLO &&
                m.hello.ask && m.hello.base == 1ull << 40);
    assert_string_equal(m.hello.terms[1].name, "shards");
    assert_true(inter_stream_parse(b[1].p, b[1].len, &m) && m.grant.have == 9 &&
                m.grant.window_bytes == 5);
    assert_true(inter_stream_parse(b[2].p, b[2].len, &m) && m.seq == 1234567890123 && m.len == 4 &&
                m.sig[0] == 5 && m.put_at == 77);
    for (int i = 0; i < 3; i++)
        for (size_t n = 0; n < (i == 2 ? INTER_STREAM_DATA_HEADER + 1 : b[i].len); n++)
            assert_false(inter_stream_parse(b[i].p, n, &m));
    neb_buf_u8(&b[1], 0);
    assert_false(inter_stream_parse(b[1].p, b[1].len, &m));
    neb_buf_clear(&b[1]);
    // the consumer applied more than it has
    inter_stream_put_grant(&b[1], &k, &(struct inter_stream_grant){3, 7, 8, 7, 6, 5});
    assert_false(inter_stream_parse(b[1].p, b[1].len, &m));
    for (int i = 0; i < 3; i++)
        neb_buf_free(&b[i]);
}

// Writes message sequences of a short exchange for tests/fuzz/fuzz_stream.c, if WRITE_CORPUS names
// a folder.
static void write_corpus(void) {
    const char *dir = getenv("WRITE_CORPUS");
    struct inter_stream_key k = config(INTER_STREAM_PRODUCER).key;
    struct inter_stream_hello h = {.role = INTER_STREAM_CONSUMER,
                                   .type = INTER_STREAM_SOFT_LABELS,
                                   .ask = true,
                                   .batch_bytes = 200,
                                   .n_terms = 1};
    struct inter_stream *out = make(INTER_STREAM_PRODUCER);
    struct neb_buf m = {0}, to_producer = {0}, to_consumer = {0}, broken = {0};
    char path[NEB_PATH_MAX];
    h.terms[0] = config(INTER_STREAM_PRODUCER).terms[0];
    inter_stream_put_hello(&m, &k, &h);
    neb_buf_u16(&to_producer, (uint16_t)(m.len | 0x4000));
    neb_buf_add(&to_producer, m.p, m.len);
    neb_buf_add(&broken, to_producer.p, to_producer.len);
    for (uint64_t i = 0; i < 4; i++) {
        neb_buf_clear(&m);
        inter_stream_put_grant(&m, &k,
                               &(struct inter_stream_grant){2 + i / 3, 2 + i, 1 + i, i, 6, 700});
        neb_buf_u16(&to_producer, (uint16_t)(m.len | 0x4000));
        neb_buf_add(&to_producer, m.p, m.len);
        neb_buf_u16(&broken, (uint16_t)(m.len | 0x6000));
        neb_buf_add(&broken, m.p, m.len);
    }
    h.role = INTER_STREAM_PRODUCER;
    neb_buf_clear(&m);
    inter_stream_put_hello(&m, &k, &h);
    neb_buf_u16(&to_consumer, (uint16_t)m.len);
    neb_buf_add(&to_consumer, m.p, m.len);
    static const uint64_t order[] = {0, 2, 3, 1, 1, 5, 4, 9};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        data_message(out, order[i], 20 + i, 0, &m);
        neb_buf_u16(&to_consumer, (uint16_t)(m.len | 0x8000));
        neb_buf_add(&to_consumer, m.p, m.len);
    }
    if (dir) {
        assert_int_equal(neb_path(path, sizeof path, dir, "producer"), NEB_OK);
        assert_int_equal(neb_fs_write(path, to_producer.p, to_producer.len, 0644), NEB_OK);
        assert_int_equal(neb_path(path, sizeof path, dir, "consumer"), NEB_OK);
        assert_int_equal(neb_fs_write(path, to_consumer.p, to_consumer.len, 0644), NEB_OK);
        assert_int_equal(neb_path(path, sizeof path, dir, "connections-that-break"), NEB_OK);
        assert_int_equal(neb_fs_write(path, broken.p, broken.len, 0644), NEB_OK);
    }
    neb_buf_free(&m);
    neb_buf_free(&to_producer);
    neb_buf_free(&to_consumer);
    neb_buf_free(&broken);
    inter_stream_destroy(&out);
}

int main(void) {
    write_corpus();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire),
        cmocka_unit_test(test_other_version),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_refused_data),
        cmocka_unit_test(test_refused_puts),
        cmocka_unit_test(test_terms),
        cmocka_unit_test(test_lost_batches_reported),
        cmocka_unit_test(test_spool),
        cmocka_unit_test(test_sealed),
        cmocka_unit_test(test_drops_are_rare),
        cmocka_unit_test(test_spool_never_fills),
        cmocka_unit_test(test_consumer_without_checkpoints),
        cmocka_unit_test(test_consumer_wants_no_more),

    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
