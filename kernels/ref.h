// SPDX-License-Identifier: Apache-2.0
// Internals of the reference backend: ref.c, and ref_heads.c for losses, draws and labels.
#ifndef KERN_REF_H
#define KERN_REF_H
#include "kernels/bf16.h"
#include "kernels/host.h"

// An operand of a product. ctx is set if products are in bf16.
static inline double ref_operand(const struct kern *K, float x) {
    return (double)(K->ctx ? kern_bf16_round(x) : x);
}

void ref_head_loss(struct kern *K, enum kern_type t, const struct kern_head *h,
                   const struct kern_soft *s);
void ref_vocab_max(struct kern *K, enum kern_type t, const struct kern_vocab *v);
void ref_vocab_sum(struct kern *K, enum kern_type t, const struct kern_vocab *v);
void ref_vocab_loss(struct kern *K, enum kern_type t, const struct kern_vocab *v);
void ref_rtd_loss(struct kern *K, enum kern_type t, const struct kern_rtd *h);
void ref_sample_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, const double *u,
                     int32_t *ids);
void ref_label_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, int k,
                    float temperature, int32_t *ids, float *logp, float *tail);

#endif
