// SPDX-License-Identifier: Apache-2.0
// An accelerator: memory of its own and one queue (stream) of operations. They run in the order of
// the calls, while the caller goes on. The CUDA implementation is a separate object
// (libnebula_cuda.so, sources in kernels/cuda). kern_device_open loads it when a job asks for it,
// so that one build serves machines with and without a GPU.
//
// There are two element types. Activations and working weights have type T: fp32, or bfloat16 with
// fp32 accumulation. All else is fp32: master parameters, gradients, moments, the residual stream,
// statistics. Tensors are dense and row-major as in kern.h. An op without a comment means the same
// as there.
//
// Errors are sticky. An op returns nothing: the first failure is logged and kept, later calls do
// nothing, and `finish` returns the failure. A shape that no kernel takes is such a failure
// (intra_device_create refuses these shapes first). An op allocates only when it meets a larger
// shape than ever before (scratch grows), so a step allocates nothing. One thread calls at a time.
#ifndef KERN_DEVICE_H
#define KERN_DEVICE_H
#include "kernels/exact.h"
#include "kernels/kern.h"

enum kern_type { KERN_F32 = 0, KERN_BF16 = 1 };
static inline size_t kern_type_bytes(enum kern_type t) { return t == KERN_BF16 ? 2 : 4; }

struct kern_device;

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

// Output layer with cross-entropy, as kern_head, but logits have type T. A row without a target
// gives loss 0 and no gradient.
struct kern_device_head {
    int n, d, V;
    const void *x;           // (n, d) T
    const void *w;           // (V, d) T
    const int32_t *targets;  // (n) device
    const float *grad_scale; // (1) device
    bool learn;              // compute dx (and dw)
    void *dx;                // (n, d) T, written
    float *dw;               // (V, d) +=, NULL: frozen
    void *logits;            // (rows, kern_logits_ld(V)) T: scratch for a block of rows
    int rows;
    float *losses; // (n) written
    double *total; // += the sum of losses, in a fixed order
};

// A teacher's soft labels for the same rows (kern_soft):
// loss = (1 - lambda) * cross-entropy + lambda * temperature^2 * KL.
struct kern_device_soft {
    int k; // named tokens a row, 1 to KERN_SOFT_K_MAX; all others are one more class
    float lambda, temperature;
    // in device memory; rows without a target are not read
    const int32_t *ids; // (n, k) distinct
    const float *logp;  // (n, k) the teacher's log-probabilities at the temperature
    const float *tail;  // (n) probability of all other tokens
};
enum { KERN_SOFT_K_MAX = 64 };

// Output layer of a discriminator (intra/train/rtd.h): score = x w + b,
// loss = log(1 + exp(score)) - label * score.
struct kern_device_rtd {
    int n, d;
    const void *x;           // (n, d) T
    const float *w, *b;      // (d) (1) device
    const int32_t *labels;   // (n) device: 0, 1, or KERN_IGNORE for loss 0 and no gradient
    const float *grad_scale; // (1) device
    bool learn;              // compute dx (and dw, db)
    void *dx;                // (n, d) T, written
    float *dw, *db;          // (d) (1) +=, in a fixed order; NULL: frozen
    float *scores, *losses;  // (n) (n) written
    double *total;           // += the sum of losses, in a fixed order
};

// A model's predictions at some rows of a pass: softmax over the first V rows of w. Logits are
// fp32, formed in blocks of rows.
struct kern_device_rows {
    int n, d, V;
    const void *x;     // (any, d) T hidden states
    const int32_t *at; // (n) device: rows of x
    const void *w;     // (V or more, d) T
    void *gathered;    // scratch for `block` rows of d T
    float *logits;     // scratch for `block` rows of kern_logits_ld(V)
    int block;
};

// Rows of logits whose columns are divided over tensor-parallel ranks. The loss takes three steps:
// vocab_max, vocab_sum, vocab_loss. After the first step the ranks reduce max to the maximum, after
// the second they reduce sums to the sum. Nothing else crosses ranks.
struct kern_device_vocab {
    // (n, kern_logits_ld(V)) T: this rank's columns; if learn, the third step overwrites them with
    // their gradient
    void *logits;
    int n, V;
    const int32_t *targets; // (n) device, ids of the full vocabulary
    int32_t row0;           // this rank has columns row0 … row0 + V - 1 of it
    float *max;             // (n) written by the first step
    // (2, n) written by the second step: the sum of exp(z - max); the target's logit, or 0 if
    // another rank has it
    float *sums;
    const float *grad_scale; // (1) device
    bool learn;
    float *losses; // (n) written by the third step: the same on all ranks
};

// Row stride of logits: rows stay aligned for any vocabulary.
static inline int kern_logits_ld(int V) { return (V + 7) / 8 * 8; }
// Returns how many of n rows of logits kern_device_head and kern_device_vocab should have scratch
// for. Blocks have nearly one size, fit into a share of the device's memory, and are no longer than
// useful. The result depends on memory_bytes (all memory of the device) and not on free memory: the
// gradient of w is added block by block, and its bits must be the same after a restart.
int kern_logits_rows(double memory_bytes, int V, enum kern_type t, int n);

// A part of a parameter tensor: at most KERN_CHUNK elements, in the order of the arena. Clipping
// and AdamW use one array of these on the device.
enum { KERN_CHUNK = 16384 };
struct kern_chunk {
    uint64_t param_at, grad_at; // offsets; param_at holds for the working copy too
    uint32_t n;
    int32_t tensor; // its index: for its sum and its factor
    uint32_t decay; // nonzero: weight decay applies
    uint32_t unused;
};

struct kern_device_adamw {
    struct kern_adamw c; // grad_scale is not used: factors replace it
    const struct kern_chunk *chunks;
    int n_chunks;
    const float *factors;          // (tensors) device: clipping factors
    float *params, *grads, *m, *v; // grads are zeroed afterwards
    // Moments may belong to a part of the gradients only. This offset into the gradients is where
    // they begin: a multiple of 4.
    size_t moments_at;
    void *working; // params as T for the next step; NULL: not wanted (T is fp32)
};

// A recorded part of the queue (kern_device_ops.record).
struct kern_graph {
    int ops;   // launches, copies and fills
    int parts; // pieces between marks: a replay enqueues each in one call
    void *ctx;
};
enum { KERN_WHY_MAX = 512 };

struct kern_device_ops {
    const char *name;

    // ---- memory. The host must not dereference device pointers.
    // aligned to 256 bytes
    enum neb_status (*alloc)(struct kern_device *D, size_t bytes, void **out);
    void (*release)(struct kern_device *D, void *p); // accepts NULL
    enum neb_status (*alloc_pinned)(struct kern_device *D, size_t bytes, void **out); // host memory
    void (*release_pinned)(struct kern_device *D, void *p);
    // Free bytes of the device's memory, whoever uses the rest. 0: none, or unknown.
    size_t (*free_bytes)(struct kern_device *D);
    // Enqueue a copy. The caller must not change pinned host memory until it has waited for a later
    // mark. Memory that is not pinned goes through device_stage.h unless it is small.
    void (*upload)(struct kern_device *D, void *dst, const void *src, size_t bytes);
    void (*download)(struct kern_device *D, void *dst, const void *src, size_t bytes);
    void (*copy)(struct kern_device *D, void *dst, const void *src, size_t bytes); // on the device
    void (*zero)(struct kern_device *D, void *p, size_t bytes);
    // mark remembers this place in the queue; wait returns when the queue has passed it. slot <
    // KERN_MARKS
    void (*mark)(struct kern_device *D, int slot);
    void (*wait)(struct kern_device *D, int slot);
    // Milliseconds on the device between two marks that the caller has waited for.
    double (*elapsed_ms)(struct kern_device *D, int from, int to);
    // Waits until everything enqueued has run. Returns the first failure since the device was
    // opened.
    enum neb_status (*finish)(struct kern_device *D);
    // The queue as its library knows it (here a cudaStream_t), for another library that enqueues
    // between ops. If that may never end, the device needs a watch (kern_device.watch).
    void *(*queue)(struct kern_device *D);

    // ---- graphs. Some ops run faster than the host can enqueue them. So a part of the queue that
    // repeats is recorded once, and replayed with as many calls as it has parts.
    //
    // record: from here to record_end nothing runs, and calls are recorded with their operands,
    // numbers included. A replay reads and writes the same addresses. So whatever changes must lie
    // in device memory, or in pinned memory that is uploaded. All memory must stay until the graph
    // is forgotten.
    //
    // The same calls must have run once without recording, so that all things made at first use
    // exist. Not allowed between record and record_end: alloc, release, wait, elapsed_ms, finish,
    // and copies of memory that is not pinned.
    void (*record)(struct kern_device *D);
    // NEB_ERR_UNSUPPORTED: recording failed, `why` has the reason, and nothing has run: enqueue the
    // same calls without recording. The device itself has not failed; its earlier failures stay.
    enum neb_status (*record_end)(struct kern_device *D, struct kern_graph **out,
                                  char why[KERN_WHY_MAX]);
    void (*replay)(struct kern_device *D, const struct kern_graph *g);
    // accepts NULL; waits for the queue
    void (*forget)(struct kern_device *D, struct kern_graph **g);

    // ---- training. t: the type of void * operands.
    //
    // As in kern.h. a and b have type t, c has type tc. bias (n) of type T is added to each row of
    // the product (NULL: none; with a bias, beta is 0 and tc is t). Sums are fp32 until they become
    // C, even if the library splits k.
    void (*gemm)(struct kern_device *D, enum kern_type t, enum kern_type tc, enum kern_trans ta,
                 enum kern_trans tb, int m, int n, int k, float alpha, const void *a, int lda,
                 const void *b, int ldb, float beta, void *c, int ldc, const void *bias);
    // Gradients of y = x W^T + bias: dw (m, n) += dy^T x, db (m) += column sums of dy. The product
    // itself computes db if the library can. dy (k, m) is dense; x is (k, n); both T.
    void (*gemm_grads)(struct kern_device *D, enum kern_type t, int m, int n, int k, const void *dy,
                       const void *x, int ldx, float *dw, float *db);
    void (*cast)(struct kern_device *D, enum kern_type t, void *out, const float *x, size_t n);
    // Copies rows of a table of type t. An id below 0 gives a row of zeros.
    void (*embed_fwd)(struct kern_device *D, enum kern_type t, void *out, const void *table,
                      const int32_t *ids, int n, int d);
    // b: device copies of the arrays. n: ids of the batch, at least b->used.
    void (*embed_bwd)(struct kern_device *D, float *dtable, const float *dout,
                      const struct kern_buckets *b, int n, int d);
    // r has type tr: T or fp32
    void (*rmsnorm_fwd)(struct kern_device *D, enum kern_type t, enum kern_type tr, void *y,
                        float *rstd, float *h, const float *x, const void *r, const float *w, int n,
                        int d, float eps);
    // dh (fp32) += gradient through y. dh_t: the sum as T (NULL: not wanted)
    void (*rmsnorm_bwd)(struct kern_device *D, enum kern_type t, float *dh, void *dh_t, float *dw,
                        const void *dy, const float *h, const float *w, const float *rstd, int n,
                        int d);
    void (*rope)(struct kern_device *D, enum kern_type t, void *x, int ld, const float *cos_sin,
                 int n, int T, int heads, int head_dim, bool inverse);
    // s->prefix_len is a device pointer. s->B is at most KERN_SEQUENCES_MAX. With cos_sin, attn_bwd
    // gives the gradients of q and k before their rope; without (NULL), after it.
    void (*attn_fwd)(struct kern_device *D, enum kern_type t, const struct kern_attn *s, void *out,
                     int ldo, float *lse, const void *q, int ldq, const void *k, int ldk,
                     const void *v, int ldv);
    void (*attn_bwd)(struct kern_device *D, enum kern_type t, const struct kern_attn *s, void *dq,
                     void *dk, void *dv, const void *dout, const void *out, int ldo,
                     const float *lse, const void *q, int ldq, const void *k, int ldk,
                     const void *v, int ldv, float *delta, const float *cos_sin);
    void (*swiglu_fwd)(struct kern_device *D, enum kern_type t, void *y, const void *gu, int n,
                       int f);
    void (*swiglu_bwd)(struct kern_device *D, enum kern_type t, void *dgu, const void *dy,
                       const void *gu, int n, int f);
    void (*bias_fwd)(struct kern_device *D, enum kern_type t, void *x, const float *b, int n,
                     int d);
    void (*bias_bwd)(struct kern_device *D, enum kern_type t, float *db, const void *dy, int n,
                     int d);
    void (*head_loss)(struct kern_device *D, enum kern_type t, const struct kern_device_head *h);
    void (*vocab_max)(struct kern_device *D, enum kern_type t, const struct kern_device_vocab *v);
    void (*vocab_sum)(struct kern_device *D, enum kern_type t, const struct kern_device_vocab *v);
    void (*vocab_loss)(struct kern_device *D, enum kern_type t, const struct kern_device_vocab *v);
    // head_loss with a teacher: losses are the mix of kern_device_soft.
    void (*distill_loss)(struct kern_device *D, enum kern_type t, const struct kern_device_head *h,
                         const struct kern_device_soft *s);
    void (*rtd_loss)(struct kern_device *D, enum kern_type t, const struct kern_device_rtd *h);
    // Draws from each row: ids (n) = the first id at which the running sum of probabilities exceeds
    // u. ids and u (n) in device memory, u in [0, 1].
    void (*sample_rows)(struct kern_device *D, enum kern_type t, const struct kern_device_rows *r,
                        const float *u, int32_t *ids);
    // Soft labels (intra/train/distill.h): of softmax(logits / temperature), the k most likely ids
    // of each row, most likely first, a tie to the lower id. ids, logp (n, k) and tail (n) are in
    // device memory.
    void (*label_rows)(struct kern_device *D, enum kern_type t, const struct kern_device_rows *r,
                       int k, float temperature, int32_t *ids, float *logp, float *tail);
    // *total += the sum of n losses, in a fixed order
    void (*loss_total)(struct kern_device *D, double *total, const float *losses, int n);
    // sums (tensors): the squares of each tensor's gradients, added in a fixed order. first
    // (tensors + 1): the first chunk of each tensor.
    void (*sumsq)(struct kern_device *D, const struct kern_chunk *chunks, int n_chunks,
                  const int32_t *first, int tensors, const float *grads, double *sums);
    void (*adamw)(struct kern_device *D, enum kern_type t, const struct kern_device_adamw *a);
    void (*scale)(struct kern_device *D, float *y, float a, size_t n);
    void (*add)(struct kern_device *D, float *y, const float *x, size_t n);

    // ---- the exact path and codecs (exact.h, quant.h): the CPU's bits. Only the bits of a NaN may
    // differ; it appears at the same elements.
    void (*exact_add_rows)(struct kern_device *D, float *acc, const float *x, const float *w,
                           size_t rows, size_t cols);
    void (*exact_add_scaled)(struct kern_device *D, float *acc, const float *x, float w, size_t n);
    void (*exact_outer_step)(struct kern_device *D, float *theta, float *v, const float *delta,
                             float eta, float mu, size_t n);
    void (*exact_pseudo_gradient)(struct kern_device *D, float *u, const float *theta,
                                  const float *theta_m, float beta, size_t n);
    void (*exact_residual)(struct kern_device *D, float *u, const float *d, size_t n);
    void (*exact_rebase)(struct kern_device *D, float *theta_m, const float *theta,
                         const float *sent, size_t n);
    // *sum (device) += the digest of this part
    void (*exact_digest)(struct kern_device *D, struct kern_digest *sum, const float *theta,
                         const float *v, uint64_t first_index, size_t n);
    // *bits (device) = the bits of the largest |x|; 0x7f800000 or more: not finite
    void (*absmax)(struct kern_device *D, uint32_t *bits, const float *x, size_t n);
    // Encodes blocks of `block` elements: one scale byte a block, and codes of int8, or two codes a
    // byte if four_bits (block even, or only one block). levels: codes lie in [-levels, levels],
    // see compress/codec.h. top: kern_scale_top of all blocks together.
    void (*encode_blocks)(struct kern_device *D, uint8_t *scales, uint8_t *codes, const float *x,
                          size_t n, uint32_t block, int levels, bool four_bits, int top);
    // *bad (device) = nonzero if a code is out of range (out is undefined then), otherwise 0.
    void (*decode_blocks)(struct kern_device *D, float *out, const uint8_t *scales,
                          const uint8_t *codes, size_t n, uint32_t block, bool four_bits, int top,
                          uint32_t *bad);
    void (*bf16_split)(struct kern_device *D, uint8_t *high, uint8_t *low, const float *x,
                       size_t n);
    void (*bf16_join)(struct kern_device *D, float *out, const uint8_t *high, const uint8_t *low,
                      size_t n);
    // For each chunk, the k largest |x| (k_last in the last chunk, which may be shorter): their
    // indices in the chunk, ascending, a tie to the lower index, and their values. idx, values:
    // (chunks, k).
    void (*topk)(struct kern_device *D, uint16_t *idx, float *values, const float *x, size_t n,
                 uint32_t chunk, uint32_t k, uint32_t k_last);
    // out (n) = 0, then out[at[i]] = x[i] for i < m. at ascends and is below n.
    void (*scatter)(struct kern_device *D, float *out, size_t n, const uint32_t *at, const float *x,
                    size_t m);

    void (*destroy)(struct kern_device *D);
};

enum { KERN_SEQUENCES_MAX = 65535 };
struct kern_stage;
enum { KERN_MARKS = 20 }; // device_stage.c uses the last two

struct kern_device {
    const struct kern_device_ops *ops;
    int index, count;       // of this device; number of devices that this process sees
    char name[64];          // "NVIDIA H100 80GB HBM3"
    size_t total_bytes;     // memory
    bool tensor_cores_bf16; // T may be bf16 (compute capability 8.0 or higher)
    int norm_most; // largest d of rmsnorm_bwd: a row of fp32 must fit into a block's shared memory
    // The host calls this again and again while it waits for the queue; `first` is true when a wait
    // begins. Returns false once it has ended all that could block the queue forever. NULL: nothing
    // could.
    bool (*watch)(void *ctx, bool first);
    void *watch_ctx;
    struct kern_stage *stage; // device_stage.h; NULL: not taken
    void *ctx;
};

// Gives the number of this process among those of its job on this machine: LOCAL_RANK, else the
// variable of Open MPI or Slurm; 0 if none is set. With of_several (one rank of several) LOCAL_RANK
// comes last, since whatever started the launcher may have set it for all ranks. NEB_ERR_INVALID:
// not a number.
NEB_MUST_CHECK enum neb_status kern_device_index(bool of_several, int *out);
// Opens device `index` modulo the number of devices that this process sees. The reason of a failure
// goes to `why`; if that is NULL, it goes to the log, with a hint. NEB_ERR_UNSUPPORTED: no object,
// driver or device, or the device is too old. NEB_ERR_IO: a device is there and cannot be opened.
// NEB_ERR_NOMEM: the device or the host has too little memory left.
NEB_MUST_CHECK enum neb_status kern_device_open(int index, char why[KERN_WHY_MAX],
                                                struct kern_device **out);
void kern_device_close(struct kern_device **D); // *D may be NULL
// True if there is an object and, for CUDA, a driver, so that opening a device may succeed. Opens
// none.
bool kern_device_likely(void);

// The type of the object's kern_cuda_open. NEB_ERR_NOT_FOUND: the driver lists no device or does
// not answer. text receives the reason of a failure.
enum { KERN_DEVICE_VERSION = 10 };
typedef enum neb_status kern_device_opener(int version, int index, struct kern_device **out,
                                           char *text, size_t text_cap);

#endif
