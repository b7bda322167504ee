// SPDX-License-Identifier: Apache-2.0
// The two ends of a model whose vocabulary is cut over tensor-parallel ranks: look-up, and output layer with
// cross-entropy (as in Megatron-LM: only maxima, sums and the target's logit cross ranks, never logits). With one
// tensor-parallel rank the kernels' own operations do it. All calls are collective over m->mesh->tp, with the same
// tokens; failures are kept in m->failed. Host memory.
#ifndef INTRA_VOCAB_H
#define INTRA_VOCAB_H
#include "intra/model/model.h"

enum { INTRA_VOCAB_ROWS = 256 }; // positions whose logits exist at one time
// Floats of scratch that intra_vocab_head needs; 0 with one rank.
size_t intra_vocab_scratch(const struct intra_model *m);

// out (n, d) = embedding of tokens (n): with a cut vocabulary this rank's part of a sum over ranks, zeros where the token is
// another's.
void intra_vocab_embed(struct kern *K, struct intra_model *m, float *out, const int32_t *tokens,
                       int n);
// Gradient of the above: dout (n, d).
void intra_vocab_embed_bwd(struct kern *K, struct intra_model *m, const float *dout,
                           const int32_t *tokens, int n);
// As kern_ops.head_loss, with h describing this rank's rows of the output weight; targets are of the whole vocabulary. h->dx
// becomes this rank's part of a sum over ranks.
double intra_vocab_head(struct kern *K, struct intra_model *m, const struct kern_head *h,
                        float *scratch, int64_t *count);

#endif
