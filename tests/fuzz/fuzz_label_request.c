// SPDX-License-Identifier: Apache-2.0
// Hostile requests of a student: the result is OK or NEB_ERR_FORMAT, and nothing is written outside
// the batch. An accepted request fits the job, and gives the same bytes when it is written again.
#include "agent/job/label_request.h"
#include "kernels/kern.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 192, SEQ = 48, VOCAB = 400, STEPS = 10, GUARD = 0x5ca1ab1e };

static void require(bool good) {
    if (!good)
        abort();
}

static void check(const struct agent_request_limits *l, const struct intra_pair_batch *b) {
    int64_t targets = 0;
    require(b->B >= 1 && b->T >= 1 && b->T <= l->seq_len && b->B * b->T <= l->tokens);
    for (int32_t i = 0; i < b->B * b->T; i++) {
        require(b->tokens[i] >= 0 && b->tokens[i] < l->vocab);
        require(b->targets[i] == KERN_IGNORE || (b->targets[i] >= 0 && b->targets[i] < l->vocab));
        targets += b->targets[i] != KERN_IGNORE;
    }
    for (int32_t i = 0; i < b->B; i++)
        require(b->prefix[i] >= 1 && b->prefix[i] <= b->T);
    require(targets == b->n_targets && targets >= b->B);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct cmp_tokens *t;
    const struct agent_request_limits l = {VOCAB, 3, SEQ, TOKENS};
    const struct intra_pairs_config c = {.seq_len = SEQ, .tokens = TOKENS};
    struct neb_rd r = neb_rd_make(data, size);
    struct intra_pair_batch b = {0}, again = {0};
    size_t n = agent_request_ids(&l);
    if (!t)
        require(cmp_tokens_create(&t) == NEB_OK);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    require(ids && intra_pair_batch_create(&c, &b) == NEB_OK &&
            intra_pair_batch_create(&c, &again) == NEB_OK);
    ids[n] = GUARD;
    enum neb_status st = agent_request_open(&r, 7, STEPS);
    while (st == NEB_OK && neb_rd_left(&r)) {
        struct neb_buf out = {0};
        st = agent_request_next(t, &l, &r, ids, &b);
        if (st != NEB_OK)
            break;
        check(&l, &b);
        require(agent_request_add(t, &l, &b, ids, &out) == NEB_OK);
        struct neb_rd back = neb_rd_make(out.p, out.len);
        require(agent_request_next(t, &l, &back, ids, &again) == NEB_OK && neb_rd_done(&back));
        require(again.B == b.B && again.T == b.T &&
                !memcmp(again.tokens, b.tokens, sizeof *b.tokens * (size_t)(b.B * b.T)) &&
                !memcmp(again.targets, b.targets, sizeof *b.targets * (size_t)(b.B * b.T)));
        neb_buf_free(&out);
    }
    require(st == NEB_OK || st == NEB_ERR_FORMAT);
    require(ids[n] == GUARD);
    free(ids);
    intra_pair_batch_free(&b);
    intra_pair_batch_free(&again);
    return 0;
}
