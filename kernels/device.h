// SPDX-License-Identifier: Apache-2.0
// An accelerator: memory of its own and one queue (stream) of operations that run in the order of the calls, while the
// caller goes on. The CUDA implementation is an object of its own (libnebula_cuda.so, sources in kernels/cuda) that
// kern_device_open loads when a job asks for it, so that one build serves machines with and without a GPU.
//
// Two element types: activations and working weights are of type T (fp32, or bfloat16 with fp32 accumulation); everything
// else (master parameters, gradients, moments, the residual stream, statistics) is fp32. Tensors are dense and row-major
// like those of kern.h, and an op without a comment means what it means there.
//
// Errors are sticky: ops return nothing, the first failure is logged and kept, later calls do nothing, and
// `finish` returns it. Shapes that no kernel takes (intra_device_create refuses them) fail like that too.
// Ops allocate only when they meet a larger shape than ever before (scratch grows), so a step allocates nothing.
// One thread calls at a time.
#ifndef KERN_DEVICE_H
#define KERN_DEVICE_H
#include "kernels/exact.h"
#include "kernels/kern.h"

enum kern_type { KERN_F32 = 0, KERN_BF16 = 1 };
static inline size_t kern_type_bytes(enum kern_type t) { return t == KERN_BF16 ? 2 : 4; }

struct kern_device;

// Rows of a table that a batch of ids touches, made on the host by kern_buckets_fill: token k of `used` was seen at
// rows[start[k]] … rows[start[k + 1] - 1], ascending, so that sums over them have one order.
struct kern_buckets {
    int32_t *used;  // (1)
    int32_t *ids;   // (n) used of them
    int32_t *start; // (n + 1) used + 1 of them
    int32_t *rows;  // (n)
};
// ids (n) in [0, V), or below 0: no row of this table. next: scratch (V), all zero on entry and on return.
void kern_buckets_fill(struct kern_buckets *b, const int32_t *ids, int n, int32_t *next);

// Output layer: losses (n) of type T logits; see kern_head. Rows without a target give loss 0 and no gradient.
struct kern_device_head {
    int n, d, V;
    const void *x;           // (n, d) T
    const void *w;           // (V, d) T
    const int32_t *targets;  // (n) device
    const float *grad_scale; // (1) device
    bool learn;              // dx (and dw) are wanted
    void *dx;                // (n, d) T, written
    float *dw;               // (V, d) +=, NULL: frozen
    void *logits;            // (rows, kern_logits_ld(V)) T: room for a block of rows
    int rows;
    float *losses; // (n) written
    double *total; // += sum of losses, in a fixed order
};

// A teacher's soft labels of the same rows (struct kern_soft): loss = (1 - lambda) * cross-entropy + lambda * temperature^2 * KL.
struct kern_device_soft {
    int k; // named tokens a row, 1 to KERN_SOFT_K_MAX; what is left is one class more
    float lambda, temperature;
    // device; of rows without a target nothing is read
    const int32_t *ids; // (n, k) distinct
    const float *logp;  // (n, k) the teacher's, at the temperature
    const float *tail;  // (n) probability of all others
};
enum { KERN_SOFT_K_MAX = 64 };

// Output layer of a discriminator (intra/train/rtd.h): score = x w + b, loss = log(1 + exp(score)) - label * score.
struct kern_device_rtd {
    int n, d;
    const void *x;           // (n, d) T
    const float *w, *b;      // (d) (1) device
    const int32_t *labels;   // (n) device: 0, 1, or KERN_IGNORE, which gives loss 0 and no gradient
    const float *grad_scale; // (1) device
    bool learn;              // dx (and dw, db) are wanted
    void *dx;                // (n, d) T, written
    float *dw, *db;          // (d) (1) +=, in a fixed order; NULL: frozen
    float *scores, *losses;  // (n) (n) written
    double *total;           // += sum of losses, in a fixed order
};

// What a model says at some rows of a pass: softmax over the first V rows of w, of logits in fp32, formed in blocks.
struct kern_device_rows {
    int n, d, V;
    const void *x;     // (any, d) T hidden states
    const int32_t *at; // (n) device: rows of x
    const void *w;     // (V or more, d) T
    void *gathered;    // room for `block` rows of d T
    float *logits;     // room for `block` rows of kern_logits_ld(V)
    int block;
};

// Rows of logits of which other ranks hold other columns (a vocabulary cut over tensor-parallel ranks): three steps, between which
// the ranks reduce max to the largest, and sums to the sum, so that only these cross ranks.
struct kern_device_vocab {
    // (n, kern_logits_ld(V)) T: these columns; with learn their gradient after the third step
    void *logits;
    int n, V;
    const int32_t *targets; // (n) device, of the whole vocabulary
    int32_t row0;           // these columns are row0 ... row0 + V - 1 of it
    float *max;             // (n) first step
    // (2, n) second: of exp(z - max), and the target's logit, 0 where another rank has it
    float *sums;
    const float *grad_scale; // (1) device
    bool learn;
    float *losses; // (n) third: the same on all ranks
};

// Row stride of logits, so that rows stay aligned whatever the vocabulary.
static inline int kern_logits_ld(int V) { return (V + 7) / 8 * 8; }
// Rows of logits that kern_device_head and kern_device_vocab should have room for, of n on a device of so many bytes: blocks of one size, as
// few as a share of its memory allows, and none longer than pays. A property of the device, not of what is free now: the gradient of w is
// added up block by block, and its bits are to be the same after a restart.
int kern_logits_rows(double memory_bytes, int V, enum kern_type t, int n);

// Parts of parameter tensors, at most KERN_CHUNK elements each, in the order of the arena. One array on the device serves
// clipping and AdamW.
enum { KERN_CHUNK = 16384 };
struct kern_chunk {
    uint64_t param_at, grad_at; // offsets; the working copy shares the first
    uint32_t n;
    int32_t tensor; // whose sum and factor
    uint32_t decay; // weight decay applies
    uint32_t unused;
};

struct kern_device_adamw {
    struct kern_adamw c; // grad_scale is not used: factors are
    const struct kern_chunk *chunks;
    int n_chunks;
    const float *factors;          // (tensors) device: clipping
    float *params, *grads, *m, *v; // grads are zeroed afterwards
    // where in the gradients the moments begin, which may be of a part of them only: a multiple of 4
    size_t moments_at;
    void *working; // params as T for the next step; NULL: not wanted (T is fp32)
};

// A stretch of the queue, recorded (kern_device_ops.record).
struct kern_graph {
    int ops;   // launches, copies and fills in it
    int parts; // pieces between marks: one call each
    void *ctx;
};
enum { KERN_WHY_MAX = 512 };

struct kern_device_ops {
    const char *name;

    // ---- memory. Device pointers are opaque to the host.
    enum neb_status (*alloc)(struct kern_device *D, size_t bytes, void **out); // 256-byte aligned
    void (*release)(struct kern_device *D, void *p);                           // NULL-safe
    enum neb_status (*alloc_pinned)(struct kern_device *D, size_t bytes, void **out); // host memory
    void (*release_pinned)(struct kern_device *D, void *p);
    // Of its memory, whoever uses the rest. 0: none, also where it cannot say.
    size_t (*free_bytes)(struct kern_device *D);
    // Enqueued. Pinned host memory must stay as it is until a later mark was waited for. What is not pinned and not small goes through
    // device_stage.h.
    void (*upload)(struct kern_device *D, void *dst, const void *src, size_t bytes);
    void (*download)(struct kern_device *D, void *dst, const void *src, size_t bytes);
    void (*copy)(struct kern_device *D, void *dst, const void *src, size_t bytes); // on the device
    void (*zero)(struct kern_device *D, void *p, size_t bytes);
    // mark: remembers this place in the queue; wait: until it was passed. slot < KERN_MARKS
    void (*mark)(struct kern_device *D, int slot);
    void (*wait)(struct kern_device *D, int slot);
    // Milliseconds of the device between two marks that were waited for.
    double (*elapsed_ms)(struct kern_device *D, int from, int to);
    // Until everything enqueued has run. The first failure since the device was opened.
    enum neb_status (*finish)(struct kern_device *D);
    // The queue as its library knows it, here a cudaStream_t, for another library that puts something in between ops. What may never end
    // there needs a watch (kern_device).
    void *(*queue)(struct kern_device *D);

    // ---- graphs. Where ops are so short that the host cannot enqueue them as fast as they run, a stretch of the queue that
    // comes again and again is recorded once, and enqueued anew by as many calls as it has parts.
    //
    // record: what is enqueued from here on does not run but is noted, to record_end. Operands are noted as they are passed, the
    // numbers among them too: a replay reads and writes the same addresses, so what shall differ lies in device memory (or in pinned
    // memory that is uploaded), and memory in it stays where it is until the graph is forgotten. The same stretch has run before in
    // the plain way, so that whatever is made at a first use is there. Between the two: no alloc and release, wait, elapsed_ms
    // and finish, no transfers of memory that is not pinned.
    void (*record)(struct kern_device *D);
    // NEB_ERR_UNSUPPORTED: it could not be recorded, for the reason in `why`, and nothing has run: to be enqueued in the plain
    // way. That is no failure of the device, whose errors from before stay.
    enum neb_status (*record_end)(struct kern_device *D, struct kern_graph **out,
                                  char why[KERN_WHY_MAX]);
    void (*replay)(struct kern_device *D, const struct kern_graph *g);
    void (*forget)(struct kern_device *D, struct kern_graph **g); // NULL-safe; waits for the queue

    // ---- training. t: type of void * operands.
    // As kern.h; a and b are of type t, c of type tc. bias (n) T is added to the rows of the product (NULL: none; with
    // one, beta is 0 and tc is t). Sums are fp32 until they are C, however a library cuts k.
    void (*gemm)(struct kern_device *D, enum kern_type t, enum kern_type tc, enum kern_trans ta,
                 enum kern_trans tb, int m, int n, int k, float alpha, const void *a, int lda,
                 const void *b, int ldb, float beta, void *c, int ldc, const void *bias);
    // Of y = x W^T + bias: dw (m, n) += dy^T x, and db (m) += sums of dy's columns, by the product itself where the library can. dy (k, m)
    // dense, x (k, n), both T.
    void (*gemm_grads)(struct kern_device *D, enum kern_type t, int m, int n, int k, const void *dy,
                       const void *x, int ldx, float *dw, float *db);
    void (*cast)(struct kern_device *D, enum kern_type t, void *out, const float *x, size_t n);
    // Rows of a table of type t, whatever they are. An id below 0 gives a row of zeros.
    void (*embed_fwd)(struct kern_device *D, enum kern_type t, void *out, const void *table,
                      const int32_t *ids, int n, int d);
    // b: device copies of the arrays; n: of the batch, no less than are used
    void (*embed_bwd)(struct kern_device *D, float *dtable, const float *dout,
                      const struct kern_buckets *b, int n, int d);
    // r is of type tr: T, or fp32
    void (*rmsnorm_fwd)(struct kern_device *D, enum kern_type t, enum kern_type tr, void *y,
                        float *rstd, float *h, const float *x, const void *r, const float *w, int n,
                        int d, float eps);
    // dh (fp32) += …; dh_t: the sum as T (NULL: not wanted)
    void (*rmsnorm_bwd)(struct kern_device *D, enum kern_type t, float *dh, void *dh_t, float *dw,
                        const void *dy, const float *h, const float *w, const float *rstd, int n,
                        int d);
    void (*rope)(struct kern_device *D, enum kern_type t, void *x, int ld, const float *cos_sin,
                 int n, int T, int heads, int head_dim, bool inverse);
    // s->prefix_len is a device pointer; s->B is at most KERN_SEQUENCES_MAX. cos_sin: dq and dk are the gradients of q and k before their rope (NULL: as they are).
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
    // head_loss with a teacher. Losses are of the mix.
    void (*distill_loss)(struct kern_device *D, enum kern_type t, const struct kern_device_head *h,
                         const struct kern_device_soft *s);
    void (*rtd_loss)(struct kern_device *D, enum kern_type t, const struct kern_device_rtd *h);
    // ids (n) device: at each row the first id at which the running sum of probabilities passes u (n) device, in [0, 1]
    void (*sample_rows)(struct kern_device *D, enum kern_type t, const struct kern_device_rows *r,
                        const float *u, int32_t *ids);
    // Soft labels (intra/train/distill.h): of softmax(logits / temperature) the k most likely of each row, most likely first, ties by id. ids,
    // logp (n, k), tail (n) device.
    void (*label_rows)(struct kern_device *D, enum kern_type t, const struct kern_device_rows *r,
                       int k, float temperature, int32_t *ids, float *logp, float *tail);
    // *total += the sum of n losses, in a fixed order
    void (*loss_total)(struct kern_device *D, double *total, const float *losses, int n);
    // sums (tensors) of squares, each in a fixed order; first (tensors + 1): the chunks of a tensor
    void (*sumsq)(struct kern_device *D, const struct kern_chunk *chunks, int n_chunks,
                  const int32_t *first, int tensors, const float *grads, double *sums);
    void (*adamw)(struct kern_device *D, enum kern_type t, const struct kern_device_adamw *a);
    void (*scale)(struct kern_device *D, float *y, float a, size_t n);
    void (*add)(struct kern_device *D, float *y, const float *x, size_t n);

    // ---- the exact path and codecs (exact.h, quant.h): the CPU's bits, but for those of a NaN, which is one here where it is one there
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
    // *sum (device) += the digest part
    void (*exact_digest)(struct kern_device *D, struct kern_digest *sum, const float *theta,
                         const float *v, uint64_t first_index, size_t n);
    // Bits of the largest |x| into *bits (device); at or above 0x7f800000: not finite.
    void (*absmax)(struct kern_device *D, uint32_t *bits, const float *x, size_t n);
    // Blocks of `block`: scale bytes (one a block) and codes: int8, or packed pairs for four bits (block even, or one
    // block). levels: codes in [-levels, levels]; see compress/codec.h. top: kern_scale_top of the whole.
    void (*encode_blocks)(struct kern_device *D, uint8_t *scales, uint8_t *codes, const float *x,
                          size_t n, uint32_t block, int levels, bool four_bits, int top);
    // *bad (device) is set when a code is out of range; what out holds then is undefined.
    void (*decode_blocks)(struct kern_device *D, float *out, const uint8_t *scales,
                          const uint8_t *codes, size_t n, uint32_t block, bool four_bits, int top,
                          uint32_t *bad);
    void (*bf16_split)(struct kern_device *D, uint8_t *high, uint8_t *low, const float *x,
                       size_t n);
    void (*bf16_join)(struct kern_device *D, float *out, const uint8_t *high, const uint8_t *low,
                      size_t n);
    // Of every chunk (the last may be shorter: k_last of it) the k largest |x|: indices in it, ascending, ties to the
    // lower; and their values. idx, values (chunks, k), rows of k.
    void (*topk)(struct kern_device *D, uint16_t *idx, float *values, const float *x, size_t n,
                 uint32_t chunk, uint32_t k, uint32_t k_last);
    // out (n) = 0, then out[at[i]] = x[i] (m); at ascend, below n
    void (*scatter)(struct kern_device *D, float *out, size_t n, const uint32_t *at, const float *x,
                    size_t m);

    void (*destroy)(struct kern_device *D);
};

enum { KERN_SEQUENCES_MAX = 65535 };
struct kern_stage;
enum { KERN_MARKS = 20 }; // the last two: device_stage.c

struct kern_device {
    const struct kern_device_ops *ops;
    int index, count;       // of this process; how many it sees
    char name[64];          // "NVIDIA H100 80GB HBM3"
    size_t total_bytes;     // memory
    bool tensor_cores_bf16; // T may be bf16 (compute capability 8.0 and above)
    int norm_most;          // d of rmsnorm_bwd: a row of fp32 fits into a block's shared memory
    // Asked again and again whenever the host waits for the queue, `first` when it begins to: false once whatever could keep the queue
    // from ever getting there has been ended. NULL: nothing could.
    bool (*watch)(void *ctx, bool first);
    void *watch_ctx;
    struct kern_stage *stage; // device_stage.h; NULL: nobody has taken it
    void *ctx;
};

// The number of this process among those of its job on this machine, as its launcher says: LOCAL_RANK, else Open MPI's or Slurm's
// variable; 0 without. For one rank of several their variables come first: LOCAL_RANK may be of whoever started the launcher, and
// the same for all. NEB_ERR_INVALID: not a number.
NEB_MUST_CHECK enum neb_status kern_device_index(bool of_several, int *out);
// Opens device `index` modulo the number of devices that this process sees. NEB_ERR_UNSUPPORTED: no object, no driver, no such device,
// or one that is too old; NEB_ERR_IO: one is there and cannot be opened; NEB_ERR_NOMEM: it, or the host, has too little memory left. The
// reason goes to `why`, or with NULL to the log, with a hint.
NEB_MUST_CHECK enum neb_status kern_device_open(int index, char why[KERN_WHY_MAX],
                                                struct kern_device **out);
void kern_device_close(struct kern_device **D); // NULL-safe
// Whether there is an object and, for CUDA's, a driver: then it may be worth a process that opens a device. Opens none itself.
bool kern_device_likely(void);

// What the object exports as kern_cuda_open. NEB_ERR_NOT_FOUND: its driver names no device, or does not answer; text: of the failure.
enum { KERN_DEVICE_VERSION = 10 };
typedef enum neb_status kern_device_opener(int version, int index, struct kern_device **out,
                                           char *text, size_t text_cap);

#endif
