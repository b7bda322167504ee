// SPDX-License-Identifier: Apache-2.0
// Messages between agents: the parsers of inter/record/types.h, and the round core on any message.
// All signatures count as good, so that the code after the check is reached; a blob is complete
// after BLOB_FINISH, as the service guarantees. Input: messages, each after a u16 little-endian
// length (lowest bit of the top byte: bulk).
#include "inter/round/node.h"
#include "tests/fuzz/trusting.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void feed(struct inter_node *n, struct inter_actions *a, neb_ns now,
                 const struct inter_event *e) {
    NEB_ASSERT(inter_node_step(n, now, e, a) == NEB_OK);
    for (size_t i = 0; i < a->n; i++) {
        const struct inter_action *x = &a->list[i];
        NEB_ASSERT(x->at + x->size <= a->bytes.len);
        if (x->kind == INTER_ACT_BLOB_WRITE)
            NEB_ASSERT(x->len > 0 && x->view);
        if (x->kind != INTER_ACT_BLOB_FINISH)
            continue;
        struct inter_event done = {
            .kind = INTER_EV_BLOB_DONE, .peer = 1, .key = x->manifest.key, .ok = true};
        feed(n, a, now, &done);
        return; // the list was replaced
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct inter_job_config job = {.n_members = 2,
                                   .self = 0,
                                   .peers = {0, 1},
                                   .fragments = 2,
                                   .merge_after = 4,
                                   .eta = 0.9f,
                                   .epoch = 1,
                                   .tune = {.on = true,
                                            .codec = true,
                                            .overlap = true,
                                            .interval = true,
                                            .finest = (uint8_t)cmp_level_of("int8"),
                                            .coarsest = (uint8_t)cmp_level_of("topk:64/4096"),
                                            .first = (uint8_t)cmp_level_of("int4"),
                                            .start_interval = 10,
                                            .interval_max = 40,
                                            .overlap_max = 9,
                                            .fragments = 2,
                                            .error_max = 0.6f}};
    struct inter_actions actions = {0};
    struct inter_node *n = NULL;
    struct inter_manifest m,
        own = {.key = {.member = 0}, .bytes = 20000, .chunk_bytes = INTER_CHUNK_MIN, .tokens = 1};
    struct inter_record rec;
    struct neb_rd r = neb_rd_make(data, size);
    (void)!inter_manifest_get(&r, &m);
    r = neb_rd_make(data, size);
    (void)!inter_record_get(&r, &rec);
    if (inter_node_create(&trusting, &n) != NEB_OK || inter_node_job_open(n, &job) != NEB_OK)
        return 0;
    neb_ns now = NEB_S;
    feed(n, &actions, now, &(struct inter_event){.kind = INTER_EV_PEER_UP, .peer = 1});
    feed(n, &actions, now,
         &(struct inter_event){.kind = INTER_EV_SUBMIT, .peer = 0, .manifest = &own});
    r = neb_rd_make(data, size);
    for (int i = 0; i < 64 && neb_rd_left(&r) >= 2; i++, now += 300 * NEB_MS) {
        uint16_t head = neb_rd_u16(&r);
        size_t len = head & 0x7fff;
        len = len < neb_rd_left(&r) ? len : neb_rd_left(&r);
        const uint8_t *p = neb_rd_view(&r, len);
        feed(n, &actions, now,
             &(struct inter_event){
                 .kind = INTER_EV_MESSAGE, .peer = 1, .bulk = head >> 15, .data = p, .len = len});
        feed(n, &actions, now, &(struct inter_event){.kind = INTER_EV_TICK, .peer = 0});
    }
    inter_actions_free(&actions);
    inter_node_destroy(&n);
    return 0;
}
