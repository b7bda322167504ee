// SPDX-License-Identifier: Apache-2.0
// Stream messages from a hostile peer: the parser, and both endpoints. All signatures count as
// good, so that the code after the check is reached. A consumer's buffers stay within its window,
// it delivers in order, and a producer sends only what it has. Input: messages, each after a u16
// little-endian length. Its top bits say: bulk; to the producer; one of two connections broke
// before this message. tests/unit/test_stream.c writes the corpus (WRITE_CORPUS=DIR).
#include "inter/stream/wire.h"
#include "tests/fuzz/trusting.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct side {
    struct inter_stream *s;
    uint64_t expected; // consumer: next to be delivered
    uint64_t put;      // producer
};

static void feed(struct side *x, struct inter_stream_actions *a, neb_ns now,
                 const struct inter_stream_event *e) {
    NEB_ASSERT(inter_stream_step(x->s, now, e, a) == NEB_OK);
    for (size_t i = 0; i < a->n; i++) {
        const struct inter_stream_action *k = &a->list[i];
        NEB_ASSERT(k->at + k->size <= a->bytes.len);
        if (k->kind == INTER_STREAM_ACT_DELIVER)
            NEB_ASSERT(k->seq == x->expected++ && k->len > 0 && k->view);
        if (k->kind == INTER_STREAM_ACT_SEND)
            NEB_ASSERT(k->seq < x->put);
        if (k->kind == INTER_STREAM_ACT_SEND)
            inter_stream_sent_on(x->s, k->seq, 1 + k->seq % 2);
    }
    struct inter_stream_stats t;
    inter_stream_stats(x->s, &t);
    NEB_ASSERT(t.held_bytes <= 3000);
}

static void begin(struct side *x, struct inter_stream_actions *a, enum inter_stream_role role,
                  const struct inter_node_crypto *crypto) {
    struct inter_stream_config c = {.key = {.id = 7, .job = {1, 2, 3}},
                                    .type = INTER_STREAM_SOFT_LABELS,
                                    .role = role,
                                    .peer = 1,
                                    .batch_bytes = 200,
                                    .window_batches = 6,
                                    .window_bytes = 700,
                                    .spool_batches = 24,
                                    .spool_bytes = 3000,
                                    .n_terms = 1,
                                    .terms = {{"shards", {9}}}};
    NEB_ASSERT(inter_stream_create(&c, crypto, &x->s) == NEB_OK);
    feed(x, a, 0, &(struct inter_stream_event){.kind = INTER_STREAM_EV_ATTACH, .session = 1});
    feed(x, a, 0, &(struct inter_stream_event){.kind = INTER_STREAM_EV_PEER_UP});
    for (; role == INTER_STREAM_PRODUCER && x->put < 5;) {
        uint64_t seq = x->put++;
        feed(x, a, 0,
             &(struct inter_stream_event){.kind = INTER_STREAM_EV_PUT,
                                          .seq = seq,
                                          .data = (const uint8_t *)"batch",
                                          .len = 5});
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct inter_stream_actions a = {0};
    struct side sides[2] = {{0}};
    struct neb_rd r = neb_rd_make(data, size);
    begin(&sides[0], &a, INTER_STREAM_CONSUMER, &trusting);
    begin(&sides[1], &a, INTER_STREAM_PRODUCER, &trusting);
    for (neb_ns now = NEB_S; neb_rd_left(&r) >= 2; now += 300 * NEB_MS) {
        uint16_t head = neb_rd_u16(&r);
        size_t n = head & 0x1fff;
        n = n < neb_rd_left(&r) ? n : neb_rd_left(&r);
        struct side *x = &sides[head >> 14 & 1];
        if (head >> 13 & 1)
            feed(&sides[1], &a, now,
                 &(struct inter_stream_event){.kind = INTER_STREAM_EV_CONN_LOST, .way = n % 3});
        feed(x, &a, now,
             &(struct inter_stream_event){.kind = INTER_STREAM_EV_MESSAGE,
                                          .bulk = head >> 15,
                                          .data = neb_rd_view(&r, n),
                                          .len = n});
        if (x == &sides[0]) {
            feed(x, &a, now,
                 &(struct inter_stream_event){.kind = INTER_STREAM_EV_APPLIED, .seq = x->expected});
            feed(x, &a, now,
                 &(struct inter_stream_event){.kind = INTER_STREAM_EV_DURABLE,
                                              .seq = x->expected / 2});
        }
        feed(x, &a, now, &(struct inter_stream_event){.kind = INTER_STREAM_EV_TICK});
    }
    for (int i = 0; i < 2; i++)
        inter_stream_destroy(&sides[i].s);
    inter_stream_actions_free(&a);
    return 0;
}
