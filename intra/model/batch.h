// SPDX-License-Identifier: Apache-2.0
// What a pass works on: a micro-batch, and what else is made from it.
#ifndef INTRA_BATCH_H
#define INTRA_BATCH_H
#include "kernels/kern.h"

// A micro-batch: B sequences of T tokens, borrowed.
struct intra_batch {
    // (B, T). A target is the next token, or for a discriminator 1 if the token was replaced, else
    // 0; KERN_IGNORE where there is none. targets NULL: no loss, only hidden states
    const int32_t *tokens, *targets;
    int B, T;
    // (B) tokens of each sequence that all its positions see (mask prefix). NULL: the mask is
    // causal
    const int32_t *prefix;
    // A pass of decoding (intra/train/decode.h), without targets. On a mesh one replica runs all of
    // it. Without slots it computes all positions. With slots (B) it also leaves keys and values in
    // the cache of the device. With positions `at` (B), T is 1: each token follows what its slot
    // holds. Before that, the first n_copied positions of slot pairs[2i] are copied to slot
    // pairs[2i + 1], i < n_pairs.
    bool decodes;
    const int32_t *slot, *at, *pairs;
    int n_pairs, n_copied;
    // NULL: cross-entropy alone. With tensor parallelism k >= 1, and ids are of the whole
    // vocabulary
    const struct kern_soft *teacher;
};

// What a pass also makes at some of its positions. Results: ids and, of labels, logp and tail.
enum intra_pick_kind { INTRA_PICK_DRAWS, INTRA_PICK_LABELS, INTRA_PICK_SCORES };
struct intra_picks {
    enum intra_pick_kind kind;
    int32_t n;
    const int32_t *at; // (n) positions, ascending; of scores NULL: the first n
    int32_t n_ids;     // draws: among ids [0, n_ids)
    const double *u;   // draws: (n) in [0, 1)
    int32_t k;         // labels: for each position
    float temperature; // draws (0: 1) and labels
    int32_t *ids;      // draws (n), labels (n, k)
    float *logp;       // labels (n, k), scores (n)
    float *tail;       // labels (n)
};

#endif
