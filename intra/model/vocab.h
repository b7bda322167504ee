// SPDX-License-Identifier: Apache-2.0
// Embedding look-up, and output layer with cross-entropy, for a vocabulary cut over tensor-parallel
// ranks (as in Megatron-LM: ranks exchange maxima, sums and the target's logit, never logits). With
// one tensor-parallel rank the kernels' operations are used. All calls are collective over
// m->mesh->tp, with the same tokens. Failures are kept in m->failed. Host memory.
#ifndef INTRA_VOCAB_H
#define INTRA_VOCAB_H
#include "intra/model/model.h"

enum { INTRA_VOCAB_ROWS = 256 }; // positions whose logits exist at the same time
// Floats of scratch for intra_vocab_head; 0 with one rank.
size_t intra_vocab_scratch(const struct intra_model *m);

// out (n, d): embedding of tokens (n). With a cut vocabulary it is a part of a sum over ranks:
// zeros for the tokens of other ranks.
void intra_vocab_embed(struct kern *K, struct intra_model *m, float *out, const int32_t *tokens,
                       int n);
// Gradient of intra_vocab_embed. dout: (n, d).
void intra_vocab_embed_bwd(struct kern *K, struct intra_model *m, const float *dout,
                           const int32_t *tokens, int n);
// As kern_ops.head_loss, where h describes this rank's rows of the output weight and targets are
// ids of the full vocabulary. h->dx becomes this rank's part of a sum over ranks.
double intra_vocab_head(struct kern *K, struct intra_model *m, const struct kern_head *h,
                        float *scratch, int64_t *count);

#endif
