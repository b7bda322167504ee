// SPDX-License-Identifier: Apache-2.0
// Tensor operations over the memory of a device, behind one table of functions. The processors are
// a device, too: their queue runs each op at once, and their memory is the host's.
//
//     kern_ref_create    the readable definition: one thread, plain loops, sums in double
//     kern_cpu_create    processors: OpenBLAS or oneDNN, SIMD chosen at run time, all threads
//     kern_device_open   an accelerator (device.h)
//
// tests/ops and tests/cuda check every op of every backend against the reference.
//
// An accelerator has memory of its own and one queue (stream) of operations. They run in the order
// of the calls, while the caller goes on. Errors are sticky: an op returns nothing, the first
// failure is logged and kept, later calls do nothing, and `finish` returns the failure. Ops on
// processors cannot fail and assert their shapes. A shape that no kernel of an accelerator takes is
// a failure (intra_device_create refuses these shapes first).
//
// There are two element types. Activations and working weights have type T: fp32, or on an
// accelerator bfloat16 with fp32 accumulation. All else is fp32: master parameters, gradients,
// moments, the residual stream, statistics. void * operands have type T, which an op takes as `t`.
// Tensors are dense and row-major. Operands must not overlap unless a comment allows it. "+=" in a
// comment means that the op adds to the output. An op allocates only when it meets a larger shape
// than before (scratch grows), so a step allocates nothing. One thread at a time uses a device.
//
// Processors give the same bits for any number of threads: work is cut by shape alone, and partial
// sums are added in a fixed order. Bits differ between instruction sets and between releases of the
// libraries (exact.h has functions whose bits never differ). The libraries choose their own
// kernels: NEBULA_ISA has no effect on them, OPENBLAS_CORETYPE and DNNL_MAX_CPU_ISA have. Creating
// a CPU backend sets OpenBLAS to one thread for the whole process.
#ifndef KERN_KERN_H
#define KERN_KERN_H
#include "agent/base/status.h"
#include "kernels/pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kern_type { KERN_F32 = 0, KERN_BF16 = 1 };
static inline size_t kern_type_bytes(enum kern_type t) { return t == KERN_BF16 ? 2 : 4; }
// p advanced by elements of type t.
static inline void *kern_at(enum kern_type t, const void *p, size_t elements) {
    return (char *)(uintptr_t)p + elements * kern_type_bytes(t);
}

enum kern_mask {
    KERN_MASK_CAUSAL = 0,    // query i sees key j if j <= i
    KERN_MASK_BIDIRECTIONAL, // a query sees all keys of the sequence
    KERN_MASK_PREFIX,        // causal, and all keys j < prefix_len of the sequence
};

enum kern_trans { KERN_N = 0, KERN_T = 1 };

// C (m, n) = alpha * op(A) op(B) + beta * C, plus bias on each row. op(A) is (m, k), op(B) is
// (k, n). Sums are fp32 until they become C, even if a library splits k.
struct kern_gemm {
    enum kern_type t, tc; // of A, B and bias; of C
    enum kern_trans ta, tb;
    int m, n, k;
    float alpha, beta;
    const void *a, *b;
    int lda, ldb, ldc; // row strides in elements
    void *c;
    const void *bias; // (n); NULL: none. With a bias, beta is 0 and tc is t
    // B is A and tb is not ta, so op(A) op(B) is symmetric, and C is, too: a backend may compute
    // one half and copy it to the other. Without bias.
    bool symmetric;
};

// Gradients of y (n, out) = x (n, in) w^T + bias.
struct kern_linear_bwd {
    enum kern_type t, tx; // of dy, x and w; of dx
    int n, out, in;
    const void *dy; // (n, out)
    int ld;         // row stride of dy; out if db is wanted
    const void *x, *w;
    void *dx;  // (n, in) written; NULL: not wanted
    float *dw; // (out, in) += dy^T x; NULL: frozen
    float *db; // (out) += column sums of dy; NULL: frozen
};

// The products of a linear layer: y = x w^T of type ty, and its gradients dw and dx.
static inline struct kern_gemm kern_linear(enum kern_type t, enum kern_type ty, int n, int out,
                                           int in, const void *x, const void *w, void *y) {
    struct kern_gemm g = {t, ty, KERN_N, KERN_T, n,   out, in,   1,    0,
                          x, w,  in,     in,     out, y,   NULL, false};
    return g;
}
static inline struct kern_gemm kern_linear_dw(const struct kern_linear_bwd *l) {
    struct kern_gemm g = {l->t,  KERN_F32, KERN_T, KERN_N, l->out, l->in, l->n, 1,    1,
                          l->dy, l->x,     l->ld,  l->in,  l->in,  l->dw, NULL, false};
    return g;
}
static inline struct kern_gemm kern_linear_dx(const struct kern_linear_bwd *l) {
    struct kern_gemm g = {l->t,  l->tx, KERN_N, KERN_N, l->n,  l->in, l->out, 1,    0,
                          l->dy, l->w,  l->ld,  l->in,  l->in, l->dx, NULL,   false};
    return g;
}

// An attention call. q and out: (B, T, n_heads, head_dim). k and v: (B, T, n_kv_heads, head_dim).
// Query head h reads key-value head h / (n_heads / n_kv_heads). Scores are scaled by
// 1/sqrt(head_dim).
struct kern_attn {
    int B, T, n_heads, n_kv_heads, head_dim; // head_dim even, <= 256; B <= KERN_SEQUENCES_MAX
    enum kern_mask mask;
    const int32_t *prefix_len; // (B) device, for KERN_MASK_PREFIX only
};
enum { KERN_SEQUENCES_MAX = 65535 };

// Keys and values of sequences that are decoded token by token, keys after rotary. A slot holds one
// sequence. Sizes are as in kern_attn.
struct kern_cache {
    int n_heads, n_kv_heads, head_dim;
    int longest; // positions of a slot
    void *k, *v; // (slots, longest, n_kv_heads * head_dim) T
};

// The rows of a table that a batch of ids touches, made on the host by kern_buckets_fill. Token k
// of `used` occurs at rows[start[k]] … rows[start[k + 1] - 1], ascending, so that sums over rows
// have one order.
struct kern_buckets {
    int32_t *used;  // (1)
    int32_t *ids;   // (n) the first `used` are set
    int32_t *start; // (n + 1) the first used + 1 are set
    int32_t *rows;  // (n)
};
// ids (n) in [0, V); an id below 0 is no row of this table. next (V): scratch, all 0 on entry and
// on return.
void kern_buckets_fill(struct kern_buckets *b, const int32_t *ids, int n, int32_t *next);

// Output layer and cross-entropy in one op. Logits have type T and exist only for one block of rows
// at a time. A target equal to KERN_IGNORE gives loss 0 and no gradient.
#define KERN_IGNORE (-1)
struct kern_head {
    int n, d, V;
    const void *x;           // (n, d) T
    const void *w;           // (V, d) T
    const int32_t *targets;  // (n) device
    const float *grad_scale; // (1) device: gradients are of the sum of losses times this
    void *dx;                // (n, d) T, written; NULL: loss only
    float *dw;               // (V, d) +=; NULL: frozen
    // Scratch for a block of rows: (rows, kern_logits_ld(V)) T. Processors have their own.
    void *logits;
    int rows;
    float *losses; // (n) nats, written; on processors it may be NULL
    double *total; // += the sum of losses, in a fixed order
};

// A teacher's soft labels for kern_head: either the k most likely tokens of each row and the tail
// (all other tokens, which count as one class), or on processors all tokens.
// loss = (1 - lambda) * cross-entropy + lambda * temperature^2 * KL(teacher || student)
struct kern_soft {
    int k; // 1 to KERN_SOFT_K_MAX; 0: all tokens
    float lambda;
    float temperature; // of the teacher's labels below, and of the student's logits in KL
    // in device memory; rows without a target are not read
    const int32_t *ids; // (n, k) distinct
    const float *logp;  // (n, k) log-probabilities; k 0: (n, V)
    const float *tail;  // (n) probability of all other tokens
};
enum { KERN_SOFT_K_MAX = 64 };

// Output layer of a discriminator (intra/train/rtd.h): score = x w + b,
// loss = log(1 + exp(score)) - label * score, in nats.
struct kern_rtd {
    int n, d;
    const void *x;           // (n, d) T
    const float *w, *b;      // (d) (1) device
    const int32_t *labels;   // (n) device: 0, 1, or KERN_IGNORE for loss 0 and no gradient
    const float *grad_scale; // (1) device
    void *dx;                // (n, d) T, written; NULL: loss only
    float *dw, *db;          // (d) (1) +=, in a fixed order; NULL: frozen
    float *scores;           // (n) written
    float *losses;           // (n) written; on processors it may be NULL
    double *total;           // += the sum of losses, in a fixed order
};

// A model's predictions at some rows of a pass: softmax over the first V rows of w. Logits are
// fp32, formed in blocks of rows.
struct kern_rows {
    int n, d, V;
    const void *x;     // (any, d) T hidden states
    const int32_t *at; // (n) device: rows of x
    const void *w;     // (V or more, d) T
    // Scratch for `block` rows: of d T, of kern_logits_ld(V). Processors have their own.
    void *gathered;
    float *logits;
    int block;
    // (n) label_rows with k > 0: written, the log of the sum of exp(logit / temperature). It joins
    // the labels of several parts of a vocabulary. NULL: not wanted
    float *log_sums;
};

// Rows of logits whose columns are divided over tensor-parallel ranks. The loss takes three steps:
// vocab_max, vocab_sum, vocab_loss. After the first step the ranks reduce max to the maximum, after
// the second they reduce sums to the sum. Nothing else crosses ranks.
struct kern_vocab {
    // (n, kern_logits_ld(V)) T: this rank's columns; if learn, the third step overwrites them with
    // their gradient
    void *logits;
    int n, V;
    const int32_t *targets; // (n) device, ids of the full vocabulary
    int32_t row0;           // this rank has columns row0 … row0 + V - 1 of it
    float *max;             // (n) written by the first step
    // (2, n) written by the second step: the sum of exp(z - max); the target's logit, or 0 if
    // another rank has it. With a teacher (KERN_VOCAB_SOFT, n): then also the sum of
    // exp((z - max) / temperature); the same over classes that are not named; and over named
    // classes the sum of p (log p - (z - max) / temperature), p being the teacher's probability
    double *sums;
    // NULL: no teacher. Else its labels of these n rows, k >= 1, with ids of the full vocabulary;
    // the loss is that of kern_soft
    const struct kern_soft *soft;
    const float *grad_scale; // (1) device
    bool learn;
    float *losses; // (n) written by the third step: the same on all ranks
    double *total; // += the sum of losses by the third step, in a fixed order
};

enum { KERN_VOCAB_SOFT = 5 };

// Row stride of logits: rows stay aligned for any vocabulary.
static inline int kern_logits_ld(int V) { return (V + 7) / 8 * 8; }
// Returns how many of n rows of logits kern_head and kern_vocab should have scratch for. Blocks
// have nearly one size, fit into a share of the device's memory, and are no longer than useful. The
// result depends on memory_bytes (all memory of the device) and not on free memory: the gradient of
// w is added block by block, and its bits must be the same after a restart.
int kern_logits_rows(double memory_bytes, int V, enum kern_type t, int n);

struct kern_adamw {
    float lr, beta1, beta2, eps, weight_decay; // decoupled decay: p -= lr * weight_decay * p
    float bias1, bias2;                        // 1 - beta^t, computed by the caller in double
    float momentum;                            // of chunks with kern_chunk.momentum
};

// A part of a parameter tensor: at most KERN_CHUNK elements, in the order of the arena. Clipping
// and AdamW use one array of these on the device.
enum { KERN_CHUNK = 16384 };
struct kern_chunk {
    uint64_t param_at, grad_at, moment_at; // offsets; param_at holds for the working copy too
    uint32_t n;
    int32_t tensor; // its index: for its sum and its factor
    uint32_t decay; // nonzero: weight decay applies
    // Nonzero: the gradient g, times its factor, becomes what Muon makes orthogonal, and nothing
    // else changes: m = b m + (1 - b) g; g = b m + (1 - b) g, where b is kern_adamw.momentum.
    uint32_t momentum;
};

struct kern_update {
    struct kern_adamw c;
    const struct kern_chunk *chunks;
    int n_chunks;
    const float *factors;          // (tensors) device: a gradient is multiplied by this first
    float *params, *grads, *m, *v; // grads of AdamW are zeroed afterwards
    void *working;                 // params as T for the next step; NULL: not wanted (T is fp32)
};

// The step of a matrix, or of the part of it that this rank holds:
// p (rows, cols) = rate[0] * p - rate[1] * scale * x.
struct kern_matrix_step {
    float *p;
    void *working; // the same as T; NULL: not wanted (T is fp32)
    const void *x; // T, with row stride ldx
    int ldx, rows, cols;
    const float *rate; // (2) device
    float scale;
};

// A recorded part of the queue (kern_ops.record).
struct kern_graph {
    int ops;   // launches, copies and fills
    int parts; // pieces between marks: a replay enqueues each in one call
    void *ctx;
};
enum { KERN_WHY_MAX = 512 };

// A part of a tensor of another program, and a unit of the exchange: elements [first, first + n) of
// the tensor in row-major order (agent/lib/pieces.h).
enum kern_stored { KERN_STORED_F32 = 0, KERN_STORED_BF16, KERN_STORED_F16 };
enum { KERN_PIECE_DIMS = 8 };
struct kern_piece {
    int dims;
    int64_t shape[KERN_PIECE_DIMS]; // of the tensor
    // The part: its first index and its size in each dimension, and where its elements are.
    int64_t at[KERN_PIECE_DIMS], extent[KERN_PIECE_DIMS], stride[KERN_PIECE_DIMS];
    enum kern_stored stored;
    void *data; // of the element `at`
    int64_t first;
    size_t n;
};

struct kern;        // a device
struct kern_digest; // exact.h

struct kern_ops {
    const char *name;
    void (*destroy)(struct kern *K);

    // ---- memory. The host must not dereference pointers of an accelerator. Processors copy at
    // once, and do nothing in mark, wait and finish.
    // aligned to 256 bytes; on processors to 64
    enum neb_status (*alloc)(struct kern *K, size_t bytes, void **out);
    void (*release)(struct kern *K, void *p);                                  // accepts NULL
    enum neb_status (*alloc_pinned)(struct kern *K, size_t bytes, void **out); // host memory
    void (*release_pinned)(struct kern *K, void *p);
    // Free bytes of an accelerator's memory, whoever uses the rest. 0: none, or unknown.
    size_t (*free_bytes)(struct kern *K);
    // Enqueue a copy. The caller must not change pinned host memory until it has waited for a later
    // mark. Memory that is not pinned goes through device_stage.h unless it is small.
    void (*upload)(struct kern *K, void *dst, const void *src, size_t bytes);
    void (*download)(struct kern *K, void *dst, const void *src, size_t bytes);
    void (*copy)(struct kern *K, void *dst, const void *src, size_t bytes); // on the device
    void (*zero)(struct kern *K, void *p, size_t bytes);
    // mark remembers this place in the queue; wait returns when the queue has passed it. slot <
    // KERN_MARKS
    void (*mark)(struct kern *K, int slot);
    void (*wait)(struct kern *K, int slot);
    // Milliseconds on the device between two marks that the caller has waited for.
    double (*elapsed_ms)(struct kern *K, int from, int to);
    // Waits until everything enqueued has run. Returns the first failure since the device was
    // opened.
    enum neb_status (*finish)(struct kern *K);
    // The queue as its library knows it (here a cudaStream_t), for another library that enqueues
    // its work between ops. If such work may never end, the device needs a watch
    // (kern.watch).
    void *(*queue)(struct kern *K);

    // ---- a device that is shared with another program's code in this process; NULL for
    // processors. after: what is enqueued here from now on waits for all that `theirs`, a queue of
    // the same library (NULL: its default queue), holds now. before: the other way round. The host
    // waits for neither.
    void (*after)(struct kern *K, void *theirs);
    void (*before)(struct kern *K, void *theirs);
    // Makes this device the one of the calling thread, as all other calls need it. Returns the one
    // that it was, for leave.
    int (*enter)(struct kern *K);
    void (*leave)(struct kern *K, int was);

    // ---- graphs, of accelerators only. Some ops run faster than the host can enqueue them. So a
    // part of the queue that repeats is recorded once, and replayed with as many calls as it has
    // parts.
    //
    // record: from here to record_end nothing runs, and calls are recorded with their operands,
    // numbers included. A replay reads and writes the same addresses. So whatever changes must lie
    // in device memory, or in pinned memory that is uploaded. All memory must stay until the graph
    // is forgotten.
    //
    // The same calls must have run once without recording, so that all things made at first use
    // exist. Not allowed between record and record_end: alloc, release, wait, elapsed_ms, finish,
    // and copies of memory that is not pinned.
    void (*record)(struct kern *K);
    // NEB_ERR_UNSUPPORTED: recording failed, `why` has the reason, and nothing has run: enqueue the
    // same calls without recording. The device itself has not failed; its earlier failures stay.
    enum neb_status (*record_end)(struct kern *K, struct kern_graph **out, char why[KERN_WHY_MAX]);
    void (*replay)(struct kern *K, const struct kern_graph *g);
    // accepts NULL; waits for the queue
    void (*forget)(struct kern *K, struct kern_graph **g);

    // ---- training
    void (*gemm)(struct kern *K, const struct kern_gemm *g);
    void (*linear_bwd)(struct kern *K, const struct kern_linear_bwd *l);
    // The caller promises not to change these n parameters until the next call (n 0: no promise),
    // so that the backend may keep them packed. Results are right without this call. NULL on an
    // accelerator.
    void (*weights)(struct kern *K, const float *params, size_t n);
    void (*cast)(struct kern *K, enum kern_type t, void *out, const float *x, size_t n);

    // Copies rows of a table: out (n, d) = table[ids]. An id below 0 gives a row of zeros.
    void (*embed_fwd)(struct kern *K, enum kern_type t, void *out, const void *table,
                      const int32_t *ids, int n, int d);
    // dtable (V, d) += rows of dout (n, d) at the ids of b, in the order of the rows: the result is
    // reproducible. b: device copies of the arrays. n: ids of the batch, at least b->used.
    void (*embed_bwd)(struct kern *K, float *dtable, const float *dout,
                      const struct kern_buckets *b, int n, int d);

    // Adds the residual and normalises: h = x + r (r NULL: h = x; h may be x),
    // y = h / sqrt(mean(h^2) + eps) * w. rstd: (n). r has type tr: T or fp32.
    void (*rmsnorm_fwd)(struct kern *K, enum kern_type t, enum kern_type tr, void *y, float *rstd,
                        float *h, const float *x, const void *r, const float *w, int n, int d,
                        float eps);
    // dh (n, d) += gradient through y; dh_t: the sum as T (NULL: not wanted); dw (d) += (NULL:
    // frozen)
    void (*rmsnorm_bwd)(struct kern *K, enum kern_type t, float *dh, void *dh_t, float *dw,
                        const void *dy, const float *h, const float *w, const float *rstd, int n,
                        int d);

    // Rotary positions in place on x (n, heads, head_dim) with row stride ld. Pairs are
    // (i, i + head_dim/2) as in Hugging Face's Llama. Row r has position r % T.
    // cos_sin: (T, head_dim/2, 2) from kern_rope_table. inverse: the backward pass.
    void (*rope)(struct kern *K, enum kern_type t, void *x, int ld, const float *cos_sin, int n,
                 int T, int heads, int head_dim, bool inverse);

    // lse (B, n_heads, T): log-sum-exp of the scores, for the backward pass. No (T, T) matrix is
    // formed. q, k, v, out may be slices of wider rows: ldq, ldk, ldv, ldo are row strides.
    void (*attn_fwd)(struct kern *K, enum kern_type t, const struct kern_attn *s, void *out,
                     int ldo, float *lse, const void *q, int ldq, const void *k, int ldk,
                     const void *v, int ldv);
    // Overwrites dq, dk, dv, which have the strides of q, k, v. delta (B, n_heads, T): scratch.
    // With cos_sin the gradients of q and k are those before their rope; without (NULL), after it.
    void (*attn_bwd)(struct kern *K, enum kern_type t, const struct kern_attn *s, void *dq,
                     void *dk, void *dv, const void *dout, const void *out, int ldo,
                     const float *lse, const void *q, int ldq, const void *k, int ldk,
                     const void *v, int ldv, float *delta, const float *cos_sin);

    // k and v: T new positions of B sequences, (B * T) rows with row stride ld. Copies them into
    // slot[b], from position at[b] on. slot, at: (B) device.
    void (*cache_put)(struct kern *K, enum kern_type t, const struct kern_cache *c, int B, int T,
                      const int32_t *slot, const int32_t *at, const void *k, const void *v, int ld);
    // Copies the first n positions of slot pairs[2i] to slot pairs[2i + 1], for i < m. No slot is
    // both read and written. pairs: (m, 2) device.
    void (*cache_copy)(struct kern *K, enum kern_type t, const struct kern_cache *c,
                       const int32_t *pairs, int m, int n);
    // Attention of one query for each of B sequences over the positions 0 to at[b] of slot[b].
    // q, out: (B, n_heads, head_dim) with row strides ldq, ldo.
    void (*cache_attn)(struct kern *K, enum kern_type t, const struct kern_cache *c, int B,
                       const int32_t *slot, const int32_t *at, void *out, int ldo, const void *q,
                       int ldq);

    // gu (n, 2*f): gate in columns [0, f), up in columns [f, 2f). y (n, f) = silu(gate) * up
    void (*swiglu_fwd)(struct kern *K, enum kern_type t, void *y, const void *gu, int n, int f);
    // Overwrites dgu (n, 2*f), which may be gu itself.
    void (*swiglu_bwd)(struct kern *K, enum kern_type t, void *dgu, const void *dy, const void *gu,
                       int n, int f);

    // x (n, d) += b (d)
    void (*bias_fwd)(struct kern *K, enum kern_type t, void *x, const float *b, int n, int d);
    // db (d) += column sums of dy
    void (*bias_bwd)(struct kern *K, enum kern_type t, float *db, const void *dy, int n, int d);

    // soft NULL: no teacher
    void (*head_loss)(struct kern *K, enum kern_type t, const struct kern_head *h,
                      const struct kern_soft *soft);
    void (*vocab_max)(struct kern *K, enum kern_type t, const struct kern_vocab *v);
    void (*vocab_sum)(struct kern *K, enum kern_type t, const struct kern_vocab *v);
    void (*vocab_loss)(struct kern *K, enum kern_type t, const struct kern_vocab *v);
    void (*rtd_loss)(struct kern *K, enum kern_type t, const struct kern_rtd *h);
    // Draws from softmax(logits / temperature) of each row: ids (n) = the first id at which the
    // running sum of probabilities exceeds u. ids and u (n) in device memory, u in [0, 1].
    void (*sample_rows)(struct kern *K, enum kern_type t, const struct kern_rows *r,
                        float temperature, const double *u, int32_t *ids);
    // Soft labels (intra/train/distill.h): of softmax(logits / temperature), the k most likely ids
    // of each row, most likely first, a tie to the lower id. ids, logp (n, k) and tail (n) are in
    // device memory. On processors k may be 0: logp (n, V) of all tokens.
    void (*label_rows)(struct kern *K, enum kern_type t, const struct kern_rows *r, int k,
                       float temperature, int32_t *ids, float *logp, float *tail);

    // sums (tensors): the squares of each tensor's gradients, added in a fixed order. first
    // (tensors + 1): the first chunk of each tensor.
    void (*sumsq)(struct kern *K, const struct kern_chunk *chunks, int n_chunks,
                  const int32_t *first, int tensors, const float *grads, double *sums);
    void (*adamw)(struct kern *K, enum kern_type t, const struct kern_update *u);
    // x (rows, cols) as T with row stride ldx = g / (sqrt(*sumsq) + 1e-7). sumsq: device
    void (*normalise)(struct kern *K, enum kern_type t, void *x, int ldx, const float *g, int rows,
                      int cols, const double *sumsq);
    void (*matrix_step)(struct kern *K, enum kern_type t, const struct kern_matrix_step *s);
    void (*scale)(struct kern *K, float *y, float a, size_t n);      // y *= a
    void (*add)(struct kern *K, float *y, const float *x, size_t n); // y += x

    // ---- the exact path and codecs (exact.h, quant.h): the CPU's bits. Only the bits of a NaN may
    // differ; it appears at the same elements. Processors have NULL here, so callers use the
    // functions of those files; but the processors of kern_exact_create have the slots exact_*.
    void (*exact_add_rows)(struct kern *K, float *acc, const float *x, const float *w, size_t rows,
                           size_t cols);
    void (*exact_add_scaled)(struct kern *K, float *acc, const float *x, float w, size_t n);
    void (*exact_outer_step)(struct kern *K, float *theta, float *v, const float *delta, float eta,
                             float mu, size_t n);
    void (*exact_pseudo_gradient)(struct kern *K, float *u, const float *theta,
                                  const float *theta_m, float beta, size_t n);
    void (*exact_residual)(struct kern *K, float *u, const float *d, size_t n);
    void (*exact_rebase)(struct kern *K, float *theta_m, const float *theta, const float *sent,
                         size_t n);
    // *sum (device) += the digest of this part
    void (*exact_digest)(struct kern *K, struct kern_digest *sum, const float *theta,
                         const float *v, uint64_t first_index, size_t n);
    // *bits (device) = the bits of the largest |x|; 0x7f800000 or more: not finite
    void (*absmax)(struct kern *K, uint32_t *bits, const float *x, size_t n);
    // Encodes blocks of `block` elements: one scale byte per block, and codes of int8, or two codes
    // per byte if four_bits (block even, or only one block). levels: codes lie in [-levels,
    // levels], see compress/codec.h. top: kern_scale_top of all blocks together.
    void (*encode_blocks)(struct kern *K, uint8_t *scales, uint8_t *codes, const float *x, size_t n,
                          uint32_t block, int levels, bool four_bits, int top);
    // *bad (device) = nonzero if a code is out of range (out is undefined then), otherwise 0.
    void (*decode_blocks)(struct kern *K, float *out, const uint8_t *scales, const uint8_t *codes,
                          size_t n, uint32_t block, bool four_bits, int top, uint32_t *bad);
    void (*bf16_split)(struct kern *K, uint8_t *high, uint8_t *low, const float *x, size_t n);
    void (*bf16_join)(struct kern *K, float *out, const uint8_t *high, const uint8_t *low,
                      size_t n);
    // For each chunk, the k largest |x| (k_last in the last chunk, which may be shorter): their
    // indices in the chunk, ascending, a tie to the lower index, and their values. idx, values:
    // (chunks, k).
    void (*topk)(struct kern *K, uint16_t *idx, float *values, const float *x, size_t n,
                 uint32_t chunk, uint32_t k, uint32_t k_last);
    // out (n) = 0, then out[at[i]] = x[i] for i < m. at ascends and is below n.
    void (*scatter)(struct kern *K, float *out, size_t n, const uint32_t *at, const float *x,
                    size_t m);
    // Between a unit (n) and a part of its tensor: only elements of the part are touched. shadow
    // (n; NULL: none): the fp32 values behind a part that is stored in 16 bits. A read adds to the
    // shadow what has changed since its rounded value was written; a write sets it.
    void (*piece_read)(struct kern *K, float *unit, const float *shadow,
                       const struct kern_piece *p);
    void (*piece_write)(struct kern *K, const struct kern_piece *p, const float *unit,
                        float *shadow);
};

struct kern_stage;
enum { KERN_MARKS = 20 }; // device_stage.c uses the last two

struct kern {
    const struct kern_ops *ops;
    struct kern_pool *pool; // of processors, owned (the reference has one thread); else NULL
    int index, count;       // of this accelerator; number of those that this process sees
    char name[64];          // "NVIDIA H100 80GB HBM3"
    size_t total_bytes;     // memory of an accelerator
    bool tensor_cores_bf16; // T may be bf16 (compute capability 8.0 or higher)
    int norm_most; // largest d of rmsnorm_bwd: a row of fp32 must fit into a block's shared memory
    // The host calls this again and again while it waits for the queue; `first` is true when a wait
    // begins. Returns false once it has ended all that could block the queue forever. NULL: nothing
    // could.
    bool (*watch)(void *ctx, bool first);
    void *watch_ctx;
    struct kern_stage *stage; // device_stage.h; NULL: not taken
    void *ctx;                // the backend's own
};
// True for processors: device memory is host memory.
static inline bool kern_on_host(const struct kern *K) { return K->pool != NULL; }

// n_threads as in kern_pool_create. NEBULA_ISA=sse2|avx2|avx512 lowers the instruction set of
// kern_cpu_create (tests). NEB_ERR_NOMEM; NEB_ERR_UNSUPPORTED: NEBULA_ISA names no known set.
NEB_MUST_CHECK enum neb_status kern_ref_create(struct kern **out);
NEB_MUST_CHECK enum neb_status kern_cpu_create(int n_threads, struct kern **out);
void kern_destroy(struct kern **K); // of any backend; *K may be NULL
// Processors for the exact path alone: memory, copies and exact_*; the other ops are NULL. Each op
// runs in the calling thread, so threads may share the device. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status kern_exact_create(struct kern **out);

// bf16: products round their operands to nearest even and sum in fp32. All else stays as it is. A
// product with a side below KERN_BF16_LEAST stays in fp32, since bf16 gains nothing there.
enum { KERN_BF16_LEAST = 16 };
// Makes a backend of kern_cpu_create multiply in bf16; a second call changes nothing.
// NEB_ERR_NOMEM; NEB_ERR_UNSUPPORTED: this processor cannot, and the log says what to do.
// NEBULA_BF16=plain computes the same on any machine, slowly (tests).
NEB_MUST_CHECK enum neb_status kern_cpu_bf16(struct kern *K);
// The same, but if this processor cannot, returns false and logs nothing.
bool kern_cpu_bf16_possible(struct kern *K);
// The same for the reference.
void kern_ref_bf16(struct kern *K);
// "fp32", "bf16 by AMX", "bf16 by AVX-512"
const char *kern_cpu_products(const struct kern *K);
// Measures how many times as fast a product is in bf16 as in fp32, with packing: 384 x 384 x 384 on
// the calling thread, for some milliseconds. Returns 1 for a backend in fp32.
double kern_cpu_bf16_gain(struct kern *K);

// The library of fp32 products: "oneDNN 2.6", "OpenBLAS SkylakeX". NEBULA_SGEMM=openblas|onednn
// overrides the choice.
const char *kern_cpu_library(void);
// c = a b, (n, n) each, by that library on the calling thread and without the backend's tiles:
// shows what a core can do (benchmarks). Call it after kern_cpu_create.
void kern_cpu_product(int n, const float *a, const float *b, float *c);

const char *kern_cpu_isa(void); // what kern_cpu_create picks: "avx512", "avx2" or "sse2"

// How the frequencies theta^(-2i/head_dim) of rotary positions are scaled, for sequences that are
// longer than those of a model's first training. All fields 0: not scaled.
enum kern_rope_type {
    KERN_ROPE_DEFAULT = 0, // not scaled
    KERN_ROPE_LINEAR,      // divided by factor (position interpolation, arXiv 2306.15595)
    // A frequency that turns fewer than `low` times in `original` positions is divided by factor,
    // one that turns more than `high` times is kept, and between them the result is interpolated
    // linearly (Llama 3.1; rope_type llama3 of transformers).
    KERN_ROPE_LLAMA3,
};
struct kern_rope_scaling {
    enum kern_rope_type type;
    float factor;
    float low, high;  // llama3: turns
    int32_t original; // llama3: positions
};

// cos_sin (T, head_dim/2, 2) = cos and sin of t * theta^(-2i/head_dim), computed in double.
// scaling NULL: not scaled.
void kern_rope_table(float *cos_sin, int T, int head_dim, double theta,
                     const struct kern_rope_scaling *scaling);

#endif
