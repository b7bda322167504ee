// SPDX-License-Identifier: Apache-2.0
// Internals of the reference backend: ref.c; ref_heads.c for losses, draws and labels;
// ref_cache.c for decoding.
#ifndef KERN_REF_H
#define KERN_REF_H
#include "kernels/bf16.h"
#include "kernels/host.h"

// An operand of a product. ctx is set if products are in bf16.
static inline double ref_operand(const struct kern *K, float x) {
    return (double)(K->ctx ? kern_bf16_round(x) : x);
}

// ref_cache.c
void ref_cache_put(struct kern *K, enum kern_type t, const struct kern_cache *c, int B, int T,
                   const int32_t *slot, const int32_t *at, const void *k, const void *v, int ld);
void ref_cache_copy(struct kern *K, enum kern_type t, const struct kern_cache *c,
                    const int32_t *pairs, int m, int n);
void ref_cache_attn(struct kern *K, enum kern_type t, const struct kern_cache *c, int B,
                    const int32_t *slot, const int32_t *at, void *out, int ldo, const void *q,
                    int ldq);
// ref_heads.c
void ref_head_loss(struct kern *K, enum kern_type t, const struct kern_head *h,
                   const struct kern_soft *s);
void ref_vocab_max(struct kern *K, enum kern_type t, const struct kern_vocab *v);
void ref_vocab_sum(struct kern *K, enum kern_type t, const struct kern_vocab *v);
void ref_vocab_loss(struct kern *K, enum kern_type t, const struct kern_vocab *v);
void ref_rtd_loss(struct kern *K, enum kern_type t, const struct kern_rtd *h);
void ref_sample_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, float temperature,
                     const double *u, int32_t *ids);
void ref_label_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, int k,
                    float temperature, int32_t *ids, float *logp, float *tail);

#endif
