// SPDX-License-Identifier: Apache-2.0
// The launchers of kernels: plain C functions with an explicit stream. Operands are as in
// kernels/kern.h. Each returns the launch's error (cudaErrorInvalidValue: it does not take the
// shape). None waits or allocates: the caller provides scratch, whose size another function here
// returns.
#ifndef KERN_CUDA_LAUNCH_H
#define KERN_CUDA_LAUNCH_H
#include "kernels/device.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- rows.cu
cudaError_t kern_cu_cast(enum kern_type t, void *out, const float *x, size_t n, cudaStream_t s);
// t: type of out and table
cudaError_t kern_cu_embed_fwd(enum kern_type t, void *out, const void *table, const int32_t *ids,
                              int n, int d, cudaStream_t s);
cudaError_t kern_cu_embed_bwd(float *dtable, const float *dout, const struct kern_buckets *b, int n,
                              int d, cudaStream_t s);
cudaError_t kern_cu_rmsnorm_fwd(enum kern_type t, enum kern_type tr, void *y, float *rstd, float *h,
                                const float *x, const void *r, const float *w, int n, int d,
                                float eps, cudaStream_t s);
size_t kern_cu_rmsnorm_bwd_scratch(int n, int d); // floats
cudaError_t kern_cu_rmsnorm_bwd(enum kern_type t, float *dh, void *dh_t, float *dw, const void *dy,
                                const float *h, const float *w, const float *rstd, int n, int d,
                                float *scratch, cudaStream_t s);
cudaError_t kern_cu_rope(enum kern_type t, void *x, int ld, const float *cos_sin, int n, int T,
                         int heads, int head_dim, bool inverse, cudaStream_t s);
cudaError_t kern_cu_swiglu_fwd(enum kern_type t, void *y, const void *gu, int n, int f,
                               cudaStream_t s);
cudaError_t kern_cu_swiglu_bwd(enum kern_type t, void *dgu, const void *dy, const void *gu, int n,
                               int f, cudaStream_t s);
cudaError_t kern_cu_bias_fwd(enum kern_type t, void *x, const float *b, int n, int d,
                             cudaStream_t s);
size_t kern_cu_bias_bwd_scratch(int n, int d); // floats
// by (n): a factor for each row; NULL: 1
cudaError_t kern_cu_bias_bwd(enum kern_type t, float *db, const void *dy, const float *by, int n,
                             int d, float *scratch, cudaStream_t s);

// ---- attn_simple.cu: every head_dim, both types; attn_mma.cu: bf16 on tensor cores.
// cos_sin is as in kern_ops.attn_bwd.
bool kern_cu_attn_mma_takes(const struct kern_attn *a, const void *const p[], int n_p,
                            const int ld[], int n_ld); // bf16 operands
cudaError_t kern_cu_attn_fwd_mma(const struct kern_attn *a, void *out, int ldo, float *lse,
                                 const void *q, int ldq, const void *k, int ldk, const void *v,
                                 int ldv, cudaStream_t s);
cudaError_t kern_cu_attn_bwd_mma(const struct kern_attn *a, void *dq, void *dk, void *dv,
                                 const void *dout, int ldo, const float *lse, const void *q,
                                 int ldq, const void *k, int ldk, const void *v, int ldv,
                                 const float *delta, const float *cos_sin, cudaStream_t s);
// attn_wgmma.cu: Hopper, head_dim 64 and 128. The backward pass writes delta.
bool kern_cu_attn_wgmma_takes(const struct kern_attn *a, const void *const p[], int n_p,
                              const int ld[], int n_ld);
cudaError_t kern_cu_attn_fwd_wgmma(const struct kern_attn *a, void *out, int ldo, float *lse,
                                   const void *q, int ldq, const void *k, int ldk, const void *v,
                                   int ldv, cudaStream_t s);
cudaError_t kern_cu_attn_bwd_wgmma(const struct kern_attn *a, void *dq, void *dk, void *dv,
                                   const void *dout, const void *out, int ldo, const float *lse,
                                   const void *q, int ldq, const void *k, int ldk, const void *v,
                                   int ldv, float *delta, const float *cos_sin, cudaStream_t s);
cudaError_t kern_cu_attn_delta(enum kern_type t, const struct kern_attn *a, float *delta,
                               const void *dout, const void *out, int ldo, cudaStream_t s);
cudaError_t kern_cu_attn_fwd_simple(enum kern_type t, const struct kern_attn *a, void *out, int ldo,
                                    float *lse, const void *q, int ldq, const void *k, int ldk,
                                    const void *v, int ldv, cudaStream_t s);
cudaError_t kern_cu_attn_bwd_simple(enum kern_type t, const struct kern_attn *a, void *dq, void *dk,
                                    void *dv, const void *dout, int ldo, const float *lse,
                                    const void *q, int ldq, const void *k, int ldk, const void *v,
                                    int ldv, const float *delta, cudaStream_t s);

// ---- cache.cu: see kern_ops.cache_put, cache_copy and cache_attn
cudaError_t kern_cu_cache_put(enum kern_type t, const struct kern_cache *c, int B, int T,
                              const int32_t *slot, const int32_t *at, const void *k, const void *v,
                              int ld, cudaStream_t s);
cudaError_t kern_cu_cache_copy(enum kern_type t, const struct kern_cache *c, const int32_t *pairs,
                               int m, int n, cudaStream_t s);
cudaError_t kern_cu_cache_attn(enum kern_type t, const struct kern_cache *c, int B,
                               const int32_t *slot, const int32_t *at, void *out, int ldo,
                               const void *q, int ldq, cudaStream_t s);

// ---- loss.cu. z (n, V) T with row stride ld, all of it allocated: logits, or after the
// call their gradient if learn. soft: labels of these rows; NULL: no teacher.
cudaError_t kern_cu_loss_rows(enum kern_type t, void *z, int n, int V, int ld,
                              const int32_t *targets, const float *grad_scale, bool learn,
                              float *losses, const struct kern_soft *soft, cudaStream_t s);
// The three steps of kern_vocab.
cudaError_t kern_cu_vocab_max(enum kern_type t, const struct kern_vocab *v, cudaStream_t s);
cudaError_t kern_cu_vocab_sum(enum kern_type t, const struct kern_vocab *v, cudaStream_t s);
cudaError_t kern_cu_vocab_loss(enum kern_type t, const struct kern_vocab *v, cudaStream_t s);
cudaError_t kern_cu_loss_total(double *total, const float *losses, int n, cudaStream_t s);
cudaError_t kern_cu_add_sum(float *to, const float *x, int n, cudaStream_t s); // *to += sum of x
// ---- rtd.cu
size_t kern_cu_rtd_scratch(int n, int d); // floats; used if learn
cudaError_t kern_cu_rtd(enum kern_type t, const struct kern_rtd *h, float *scratch, cudaStream_t s);

// ---- choose.cu. z (n, V) fp32 with row stride ld; see kern_ops.sample_rows and label_rows
cudaError_t kern_cu_sample_rows(const float *z, int n, int V, int ld, const double *u, int32_t *ids,
                                cudaStream_t s);
cudaError_t kern_cu_label_rows(const float *z, int n, int V, int ld, int k, float temperature,
                               int32_t *ids, float *logp, float *tail, float *log_sums,
                               cudaStream_t s);

// ---- optim.cu
cudaError_t kern_cu_sumsq(const struct kern_chunk *chunks, int n_chunks, const int32_t *first,
                          int tensors, const float *grads, double *sums, double *partial,
                          cudaStream_t s); // partial (n_chunks): scratch
cudaError_t kern_cu_adamw(enum kern_type t, const struct kern_update *a, cudaStream_t s);
cudaError_t kern_cu_normalise(enum kern_type t, void *x, int ldx, const float *g, int rows,
                              int cols, const double *sumsq, cudaStream_t s);
cudaError_t kern_cu_matrix_step(enum kern_type t, const struct kern_matrix_step *a, cudaStream_t s);
cudaError_t kern_cu_scale(float *y, float a, size_t n, cudaStream_t s);
cudaError_t kern_cu_add(float *y, const float *x, size_t n, cudaStream_t s);

// ---- exact.cu: compiled without contraction and without flush to zero
cudaError_t kern_cu_exact_add_rows(float *acc, const float *x, const float *w, size_t rows,
                                   size_t cols, cudaStream_t s);
cudaError_t kern_cu_exact_add_scaled(float *acc, const float *x, float w, size_t n, cudaStream_t s);
cudaError_t kern_cu_exact_outer_step(float *theta, float *v, const float *delta, float eta,
                                     float mu, size_t n, cudaStream_t s);
cudaError_t kern_cu_exact_pseudo_gradient(float *u, const float *theta, const float *theta_m,
                                          float beta, size_t n, cudaStream_t s);
cudaError_t kern_cu_exact_residual(float *u, const float *d, size_t n, cudaStream_t s);
cudaError_t kern_cu_exact_rebase(float *theta_m, const float *theta, const float *sent, size_t n,
                                 cudaStream_t s);
cudaError_t kern_cu_exact_digest(struct kern_digest *sum, const float *theta, const float *v,
                                 uint64_t first_index, size_t n, cudaStream_t s);

// ---- exact_codec.cu: compiled likewise
cudaError_t kern_cu_absmax(uint32_t *bits, const float *x, size_t n, cudaStream_t s);
cudaError_t kern_cu_encode_blocks(uint8_t *scales, uint8_t *codes, const float *x, size_t n,
                                  uint32_t block, int levels, bool four_bits, int top,
                                  cudaStream_t s);
cudaError_t kern_cu_decode_blocks(float *out, const uint8_t *scales, const uint8_t *codes, size_t n,
                                  uint32_t block, bool four_bits, int top, uint32_t *bad,
                                  cudaStream_t s);
cudaError_t kern_cu_bf16_split(uint8_t *high, uint8_t *low, const float *x, size_t n,
                               cudaStream_t s);
cudaError_t kern_cu_bf16_join(float *out, const uint8_t *high, const uint8_t *low, size_t n,
                              cudaStream_t s);
// ---- exact_pieces.cu: compiled likewise
cudaError_t kern_cu_piece_read(float *unit, const float *shadow, const struct kern_piece *p,
                               cudaStream_t s);
cudaError_t kern_cu_piece_write(const struct kern_piece *p, const float *unit, float *shadow,
                                cudaStream_t s);
// ---- topk.cu
cudaError_t kern_cu_topk(uint16_t *idx, float *values, const float *x, size_t n, uint32_t chunk,
                         uint32_t k, uint32_t k_last, cudaStream_t s);
cudaError_t kern_cu_scatter(float *out, size_t n, const uint32_t *at, const float *x, size_t m,
                            cudaStream_t s);

#ifdef __cplusplus
}
#endif
#endif
