// SPDX-License-Identifier: Apache-2.0
#include "agent/job/label_request.h"
#include "kernels/kern.h"

static int32_t sequences_max(const struct agent_request_limits *l) {
    int32_t n = l->tokens / INTRA_PAIRS_SEQ_MIN;
    return n > 1 ? n : 1;
}

size_t agent_request_ids(const struct agent_request_limits *l) {
    return (size_t)l->tokens + (size_t)sequences_max(l);
}

// Four bytes per token, with the heads of the planes, and two numbers per sequence.
size_t agent_request_most(const struct agent_request_limits *l, int32_t accumulate) {
    size_t batch = 4 * agent_request_ids(l) + 64 + 10 * (size_t)sequences_max(l);
    return 8 + (size_t)accumulate * batch;
}

void agent_request_begin(int64_t step, struct neb_buf *out) { neb_buf_u64(out, (uint64_t)step); }

enum neb_status agent_request_add(struct cmp_tokens *t, const struct agent_request_limits *l,
                                  const struct intra_pair_batch *b, int32_t *ids,
                                  struct neb_buf *out) {
    uint32_t n = 0;
    NEB_ASSERT(b->B <= sequences_max(l) && b->B * b->T <= l->tokens);
    neb_buf_varint(out, (uint64_t)b->B);
    for (int32_t i = 0; i < b->B; i++) {
        const int32_t *x = b->tokens + (size_t)i * (size_t)b->T,
                      *y = b->targets + (size_t)i * (size_t)b->T;
        int32_t targets = 0, prefix = b->prefix[i];
        while (prefix - 1 + targets < b->T && y[prefix - 1 + targets] != KERN_IGNORE)
            targets++;
        neb_buf_varint(out, (uint64_t)prefix);
        neb_buf_varint(out, (uint64_t)targets);
        for (int32_t k = 0; k < prefix; k++)
            ids[n++] = x[k];
        for (int32_t k = 0; k < targets; k++)
            ids[n++] = y[prefix - 1 + k];
    }
    return cmp_text_encode(t, ids, n, l->vocab, out);
}

enum neb_status agent_request_open(struct neb_rd *r, int64_t due, int64_t steps) {
    uint64_t step = neb_rd_u64(r);
    if (r->bad || step >= (uint64_t)steps || step != (uint64_t)due)
        return neb_fail(NEB_ERR_FORMAT,
                        "a student asks for labels of step %llu, but step %lld of %lld is due",
                        (unsigned long long)step, (long long)due, (long long)steps);
    return NEB_OK;
}

// Reads the lengths of all sequences: prefixes into b->prefix, numbers of targets into b->targets
// for now. Returns how many ids follow; 0: they do not fit the job.
static uint32_t read_lengths(const struct agent_request_limits *l, struct neb_rd *r,
                             struct intra_pair_batch *b) {
    uint64_t B = neb_rd_varint(r);
    uint32_t n = 0;
    if (r->bad || B < 1 || B > (uint64_t)sequences_max(l))
        return 0;
    b->B = (int32_t)B;
    b->T = 0;
    for (int32_t i = 0; i < b->B; i++) {
        uint64_t prefix = neb_rd_varint(r), targets = neb_rd_varint(r);
        if (r->bad || prefix < 1 || targets < 1 || prefix > (uint64_t)l->seq_len ||
            targets > (uint64_t)l->seq_len || prefix + targets > (uint64_t)l->seq_len + 1)
            return 0;
        b->prefix[i] = (int32_t)prefix;
        b->targets[i] = (int32_t)targets;
        n += (uint32_t)(prefix + targets);
        int32_t inputs = (int32_t)(prefix + targets) - 1;
        b->T = inputs > b->T ? inputs : b->T;
    }
    return (int64_t)b->B * b->T <= l->tokens ? n : 0;
}

// Goes from the last sequence to the first, so that targets overwrite only lengths that were read
// already.
static void lay_out(const struct agent_request_limits *l, const int32_t *ids, uint32_t n,
                    struct intra_pair_batch *b) {
    b->n_targets = 0;
    for (int32_t i = b->B - 1; i >= 0; i--) {
        int32_t targets = b->targets[i], prefix = b->prefix[i], all = prefix + targets;
        int32_t *x = b->tokens + (size_t)i * (size_t)b->T,
                *y = b->targets + (size_t)i * (size_t)b->T;
        n -= (uint32_t)all;
        for (int32_t t = 0; t < b->T; t++) {
            bool wanted = t >= prefix - 1 && t < all - 1;
            x[t] = t < all - 1 ? ids[n + (uint32_t)t] : l->eos;
            y[t] = wanted ? ids[n + (uint32_t)t + 1] : KERN_IGNORE;
        }
        b->n_targets += targets;
    }
}

enum neb_status agent_request_next(struct cmp_tokens *t, const struct agent_request_limits *l,
                                   struct neb_rd *r, int32_t *ids, struct intra_pair_batch *b) {
    uint32_t n = read_lengths(l, r, b);
    if (!n)
        return neb_fail(NEB_ERR_FORMAT,
                        "a student asks for labels of a batch that is cut short, or exceeds %d "
                        "tokens or sequences of %d",
                        l->tokens, l->seq_len);
    NEB_TRY(cmp_text_decode(t, r, l->vocab, ids, n));
    lay_out(l, ids, n, b);
    return NEB_OK;
}
