// SPDX-License-Identifier: Apache-2.0
// Pairs of a parallel corpus as batches of a prefix language model: the model sees the whole source
// and the separator as a prefix, and learns the target. Or windows of any text, whose first token
// is the prefix.
//
//     tokens    source …… BOS  target ……             | padding
//     prefix    |←— seen by all —→|
//     targets   –  –  –  –  t0   t1 ……  EOS          | –            (–: KERN_IGNORE)
//
// Each sequence has its own row. To save padding, a batch holds sequences of similar length, as
// many as fit into config.tokens. Batch k depends on (corpus, seed, k) only, so two sites with the
// same shards draw the same batches.
#ifndef INTRA_PAIRS_H
#define INTRA_PAIRS_H
#include "intra/data/data.h"

struct intra_pairs_config {
    uint64_t seed;
    int32_t seq_len;   // longest sequence of inputs; longer pairs are left out
    int32_t tokens;    // most tokens of a batch, padding included; at least seq_len
    int32_t n_sources; // 0: all
    int32_t sources[INTRA_SOURCES_MAX];
    bool windows;      // windows of seq_len inputs instead of pairs; documents follow each other
    bool may_be_empty; // text without pairs, or with long ones only, is not an error (evaluation)
    // Looks at this many documents of each source, and at more until a pair fits, to check that the
    // text is parallel. 0: all.
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
// The corpus is borrowed. NEB_ERR_INVALID: the vocabulary has no BOS or no EOS, or, without
// may_be_empty, the text is not parallel or no pair is short enough; NEB_ERR_FORMAT: a document has
// no end; NEB_ERR_NOMEM. Windows need neither of these tokens.
NEB_MUST_CHECK enum neb_status intra_pairs_create(const struct intra_corpus *corpus,
                                                  enum intra_split split,
                                                  const struct intra_pairs_config *c,
                                                  struct intra_pairs **out);
void intra_pairs_destroy(struct intra_pairs **p);
uint64_t intra_pairs_count(const struct intra_pairs *p);
uint64_t intra_pairs_skipped(const struct intra_pairs *p); // pairs longer than seq_len
uint64_t intra_pairs_batches(const struct intra_pairs *p); // per epoch
int32_t intra_pairs_eos(const struct intra_pairs *p);
// Draws batch k, of epoch k / batches. There must be at least one pair. NEB_ERR_NOMEM only.
NEB_MUST_CHECK enum neb_status intra_pairs_draw(struct intra_pairs *p, uint64_t k,
                                                struct intra_pair_batch *out);
// Room for any batch of this configuration. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_pair_batch_create(const struct intra_pairs_config *c,
                                                       struct intra_pair_batch *out);
void intra_pair_batch_free(struct intra_pair_batch *b);

// Pair i in corpus order. ids: room for seq_len + 1; the return value is the number of tokens, EOS
// included. *prefix: how many of them are the source and the separator. source: may be NULL.
int32_t intra_pairs_get(const struct intra_pairs *p, uint64_t i, int32_t *ids, int32_t *prefix,
                        int32_t *source);

#endif
