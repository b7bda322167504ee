// SPDX-License-Identifier: Apache-2.0
// Pairs of a parallel corpus as batches for prefix language modelling: the model reads the source and the separator as a
// prefix that it sees wholly, and learns the target.
//
//     tokens    source …… BOS  target ……             | padding
//     prefix    |←— seen by all —→|
//     targets   –  –  –  –  t0   t1 ……  EOS          | –            (–: KERN_IGNORE)
//
// Sequences share no row, so none sees another. What that would waste in padding is saved by grouping: a batch holds
// sequences of like length, as many as fit batch x seq_len tokens. Batch k is a function of (corpus, seed, k) alone: two sites
// with the same shards draw the same.
#ifndef INTRA_PAIRS_H
#define INTRA_PAIRS_H
#include "intra/data/data.h"

struct intra_pairs_config {
    uint64_t seed;
    int32_t seq_len;   // longest sequence of inputs; longer pairs are left out
    int32_t tokens;    // of a batch, at most, padding included; at least seq_len
    int32_t n_sources; // 0: all
    int32_t sources[INTRA_SOURCES_MAX];
    bool
        may_be_empty; // no pair short enough, or text that is not parallel, is no error: what is only measured may lack
    // Of each source so many documents are looked at, and more until a pair fits: to see whether the text is parallel. 0: all.
    uint64_t documents;
};

enum { INTRA_PAIRS_SEQ_MIN = 16 }; // a batch holds at most tokens / 16 sequences

struct intra_pair_batch {
    int32_t B, T;
    int32_t *tokens, *targets; // (B, T); room for config.tokens
    int32_t *prefix;           // (B)
    int64_t n_targets;
};

struct intra_pairs;
// NEB_ERR_INVALID: no vocabulary with BOS and EOS, text that is not parallel, or no pair short enough (but for may_be_empty).
// NEB_ERR_FORMAT: a document without end. NEB_ERR_NOMEM. The corpus is borrowed.
NEB_MUST_CHECK enum neb_status intra_pairs_create(const struct intra_corpus *corpus,
                                                  enum intra_split split,
                                                  const struct intra_pairs_config *c,
                                                  struct intra_pairs **out);
void intra_pairs_destroy(struct intra_pairs **p);
uint64_t intra_pairs_count(const struct intra_pairs *p);
uint64_t intra_pairs_skipped(const struct intra_pairs *p); // longer than seq_len
uint64_t intra_pairs_batches(const struct intra_pairs *p); // of an epoch
int32_t intra_pairs_eos(const struct intra_pairs *p);
// Batch k, of epoch k / batches; there must be one. NEB_ERR_NOMEM only.
NEB_MUST_CHECK enum neb_status intra_pairs_draw(struct intra_pairs *p, uint64_t k,
                                                struct intra_pair_batch *out);
// Room for any batch of this configuration. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_pair_batch_create(const struct intra_pairs_config *c,
                                                       struct intra_pair_batch *out);
void intra_pair_batch_free(struct intra_pair_batch *b);

// Pair i in corpus order: all of it (n tokens, EOS included) into ids (seq_len + 1), *prefix of them source and separator.
int32_t intra_pairs_get(const struct intra_pairs *p, uint64_t i, int32_t *ids, int32_t *prefix,
                        int32_t *source);

#endif
