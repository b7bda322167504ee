// SPDX-License-Identifier: Apache-2.0
// The state of a model on a device, and what the files that compute with it offer to each other. T
// is the type of activations, bf16 or fp32.
#ifndef INTRA_STATE_H
#define INTRA_STATE_H
#include "intra/model/block.h"
#include "intra/model/device.h"
#include "intra/model/rows.h"

enum {
    DEVICE_SLOTS = 2,  // pinned buffers used in turn
    DEVICE_PIECES = 8, // marks in backward, after which gradients may be reduced
    // marks in the queue (kern_ops.mark); "and the next": the number after it is a second
    // mark of this kind
    MARK_BATCH = 0,   // and the next: a batch's buffer was read
    MARK_CAME = 4,    // and the next: data from a neighbour was read
    MARK_LEAVING = 6, // and the next: data for a neighbour was written
    MARK_PIECE = 8,   // DEVICE_PIECES marks: backward has completed a piece of the gradients
    MARK_TIME = 16,   // and the next: before and after a timed pass
};

// A block in a micro-batch.
struct device_block {
    float *h1;  // (own, d) fp32: the block's input
    void *acts; // host: the kind's struct of its activations
};

// What decoding keeps (cache.c).
struct device_cache {
    int32_t slots, longest;
    void *arena;              // device memory; the pointers below point into it
    struct kern_cache *layer; // (local.n_layers) host
    // of the pass: (slots) twice, (slots, 2); and `slots` zeros
    int32_t *slot, *at, *pairs, *zeros;
    float *angles; // (slots, D) rotary angles of the positions `at`
};

// Sizes of one pass.
struct pass_shape {
    int B, T, n, d; // n: all rows
    enum kern_type t;
    struct intra_rows rows; // of the stream
    bool cut;               // there are several tensor-parallel ranks
};

// All that differs between micro-batches, on the host or the device. A recorded pass reads it at
// fixed addresses.
struct device_batch {
    int32_t *tokens, *targets; // tokens: rows of this rank's embedding; -1: another rank has it
    struct kern_buckets rows;  // positions by token
    float *grad_scale;         // (1)
    int32_t *prefix;           // (n) of the sequences, if they have prefixes
};

struct device_acts {             // activations of one micro-batch in flight
    struct device_block *blocks; // (local.n_layers)
    struct device_batch batch;
    int T;                  // tokens per sequence
    bool prefixed, targets; // has prefixes; has a loss
    int n_rows;             // rows gathered for the output layer; 0: it takes all
    bool taught;            // there are a teacher's labels
    bool kept, follows;     // keys and values go into the cache; the pass continues it
    struct kern_soft soft;  // these
};

// The matrices that Muon updates on this rank, or with tensor parallelism on the ranks of its tp
// group together (muon.c).
struct device_muon {
    const struct intra_tensor **list; // (n) host
    int n;
    size_t most, side; // elements of the largest full matrix; longest shorter side
    // device: of the matrices' gradients; first: (n + 1); sums: (n)
    struct kern_chunk *chunks;
    int32_t *first;
    int n_chunks;
    double *sums;
    void *x, *y, *a, *b;       // device, T: (most) twice, (side, side) twice
    float *parts;              // device: with tensor parallelism the parts of some matrices
    void *results;             // device, T: (tp, most) with tensor parallelism
    float *rate, *rate_pinned; // (2) device, pinned
    size_t parts_floats;       // of `parts`
    double seconds;            // spent so far, on processors
};

struct intra_device {
    struct intra_device_config c;
    struct intra_model *m;
    struct intra_optim *o;      // NULL: no updates
    struct device_cache *cache; // NULL: none
    void *arena; // device memory; unless marked host or pinned, pointers point into it
    size_t bytes;
    // parameters, gradients and moments; offsets as in the model's arenas
    float *params, *grads, *moment1, *moment2, *rope;
    void *working; // params in T; params itself if T is fp32
    // activations
    int n_acts;
    struct device_acts *acts;         // (n_acts) host
    const struct device_acts *holds;  // with recompute: whose last block is in the shared memory
    void *scratch[INTRA_BLOCK_KINDS]; // host: the kinds' structs of scratch
    void *r, *y, *yf, *lora, *dlora, *logits, *dy, *dht;
    float *hf, *rstdf, *dh, *losses;
    float *scores;      // (n) of a discriminator
    int32_t *picked;    // (n) rows of a pass for draws or labels
    double *draws;      // (n) numbers in [0, 1) that draws use
    double *draws_host; // host: with a cut vocabulary, draws among this rank's ids
    float *told;        // host: with a cut vocabulary, what ranks tell each other (picks.c)
    int32_t *own_rows;  // host: (2, n) rows of these draws; scratch
    int32_t *pick_id;   // (n, soft_k) ids of draws, of new labels or of a teacher's
    float *pick_logp, *pick_tail, *pick_sum;
    // for gathered rows: (n) row of the pass, (n) its target; (n) for each position its row, or -1
    int32_t *row_at, *row_target, *row_of;
    void *row_dx;             // (n, d) T; with a cut vocabulary fp32
    int32_t *lists;           // (3, n) host: the same three
    struct device_soft_rows { // host: labels of gathered rows
        int32_t *ids;
        float *logp, *tail;
    } soft_rows;
    // (n, d) fp32: sums over ranks, and a stage's output; empty with one rank and one stage
    float *wide;
    float *vocab_max;   // (logit_rows) with a cut vocabulary
    double *vocab_sums; // (2, logit_rows) with a cut vocabulary; with soft_k KERN_VOCAB_SOFT rows
    int logit_rows;
    float *came[2], *leaving[2]; // by enum intra_pipe_way: this rank's rows
    bool came_used[2];
    int passed_on; // sequences of the last forward
    // the update
    struct kern_chunk *chunks; // of this rank's shard of the gradients (optim.h)
    int32_t *first;
    int n_chunks;
    float *factors;
    // Gradients of partial tensors (intra_tensor.partial): device_grad points here. They move into
    // grads when they are summed over ranks.
    float *partial;     // (n_partial)
    size_t *partial_at; // (m->n_tensors) host
    size_t n_partial;   // with gaps, so that each tensor is aligned
    double *sums;       // (n_all_tensors), then the losses of the step and of an evaluation
    double *total, *eval_total;
    // (local.n_layers + 2) host, for the layers from layer0 - 1 on: when backward has come below
    // the layer, the gradients from this offset on are complete
    size_t *pending;
    struct intra_shard *pieces; // (n_pieces) host: shards of the gradients, or parts of shards
    int n_pieces, pieces_left;  // pieces_left: not yet marked by backward
    struct device_muon muon;
    // pinned
    void *batch_pinned[DEVICE_SLOTS];
    bool batch_used[DEVICE_SLOTS];
    int turn;
    bool staged; // kern_stage_acquire was called
    float *factors_pinned;
    double *sums_pinned;
    int32_t *next; // (V) host: scratch of kern_buckets_fill
    struct device_graphs *graphs;
    bool tp_aborted; // the tp communicator was aborted: none of its operations is in the queue
};

static inline const struct kern_ops *device_ops(const struct intra_device *d) {
    return d->c.D->ops;
}
static inline void *device_weight(const struct intra_device *d, const struct intra_tensor *t) { // T
    return (char *)d->working + t->at * kern_type_bytes(d->c.type);
}
static inline float *device_gain(const struct intra_device *d, const struct intra_tensor *t) {
    return d->params + t->at;
}
static inline float *device_grad(const struct intra_device *d, const struct intra_tensor *t) {
    if (!t->trainable)
        return NULL;
    return t->partial ? d->partial + d->partial_at[t - d->m->tensors] : d->grads + t->grad_at;
}
// p advanced by elements of T.
static inline void *device_at(const struct intra_device *d, void *p, size_t elements) {
    return kern_at(d->c.type, p, elements);
}
// True with several tensor-parallel ranks.
static inline bool device_cut(const struct intra_device *d) { return intra_mesh_tp(d->c.mesh) > 1; }
// True for the shape that a trainer's micro-batches have, with tokens and targets only. Only this
// shape is recorded.
static inline bool device_plain(const struct intra_device *d, const struct device_acts *a, int B) {
    return B == d->c.batch && a->T == d->c.seq_len && a->targets && !a->prefixed && !a->taught &&
           !a->n_rows && !a->kept;
}
// Where rows are gathered: free after the final norm.
static inline void *device_gathered(const struct intra_device *d) {
    return device_cut(d) ? d->y : d->r;
}
static inline bool device_learns(const struct intra_device *d) { return d->c.learn; }
static inline bool device_host(const struct intra_device *d) { return kern_on_host(d->c.D); }
static inline size_t device_tokens(const struct intra_device *d) {
    return (size_t)d->c.batch * (size_t)d->c.seq_len;
}
static inline struct intra_comm *device_dp(const struct intra_device *d) {
    return d->c.mesh ? d->c.mesh->dp : NULL;
}
static inline struct pass_shape device_shape(const struct intra_device *d, int B, int T) {
    return (struct pass_shape){.B = B,
                               .T = T,
                               .n = B * T,
                               .d = d->m->c.d_model,
                               .t = d->c.type,
                               .rows = intra_rows_of(d->m, B * T),
                               .cut = device_cut(d)};
}
// This rank's rows of a buffer of all rows: fp32 in d->wide, or T.
static inline size_t pass_own_floats(const struct pass_shape *s) {
    return (size_t)s->rows.own * (size_t)s->d;
}
static inline float *pass_own_wide(const struct intra_device *d, const struct pass_shape *s) {
    return d->wide + (size_t)s->rows.from * (size_t)s->d;
}
static inline void *pass_own_rows(const struct intra_device *d, const struct pass_shape *s,
                                  void *x) {
    return device_at(d, x, (size_t)s->rows.from * (size_t)s->d);
}
// Waits until the queue and its collectives have run. Returns m->failed, the first failure so far.
NEB_MUST_CHECK enum neb_status device_finish(struct intra_device *d);
// The same before a collective that the host calls. False: a failure; the collective must not be
// called.
bool device_finish_ok(struct intra_device *d);

// ---- device.c: copies a batch, with a teacher's labels, into the next pinned buffer and from
// there to a. Returns the number of targets that count.
int64_t device_send_batch(struct intra_device *d, struct device_acts *a,
                          const struct intra_batch *b, float grad_scale);

// ---- picks.c: prepares the gathered rows if few positions (count) have a target; uploads a
// teacher's labels.
void device_send_rows(struct intra_device *d, struct device_acts *a, const struct intra_batch *b,
                      int64_t count);
// host memory; NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status device_picks_create(struct intra_device *d);
void device_picks_destroy(struct intra_device *d);

// ---- memory.c
// A layout of device memory, which is made twice: first it adds up sizes, then it sets pointers.
struct device_carve {
    char *base; // NULL: only sizes
    size_t used;
};
// Sets the pointer at pointer_at to the next `bytes`.
void device_take(struct device_carve *c, void *pointer_at, size_t bytes);
NEB_MUST_CHECK enum neb_status device_allocate(struct intra_device *d);
void device_release(struct intra_device *d);
size_t device_logits_bytes(const struct intra_device *d);
// Lays out a micro-batch of n tokens in `room`, prefixes last. The second returns how many bytes
// that takes.
struct device_batch device_batch_in(void *room, size_t n);
size_t device_batch_bytes(size_t n, bool prefixes);

// ---- update.c
// Computes the sizes. Call it before device_allocate.
NEB_MUST_CHECK enum neb_status device_update_create(struct intra_device *d);
// sends the tables; call it after device_allocate
NEB_MUST_CHECK enum neb_status device_update_send(struct intra_device *d);
void device_update_destroy(struct intra_device *d);
// Copies updated parameters into the gradient arena, where they are all-gathered, and back from
// there.
void device_params_pack(struct intra_device *d);
void device_params_unpack(struct intra_device *d);
// Call it when backward is done with all blocks from l on. One above the last block: backward is
// done with the output only. One below the first block: backward is done with all.
void device_update_passed(struct intra_device *d, int32_t l);

// Chunks of this rank's part of tensor t. Chunk boundaries count from the start of the tensor,
// which is aligned for the kernels. Writes them unless out is NULL; returns their number.
int device_chunks(const struct intra_device *d, const struct intra_tensor *t,
                  struct kern_chunk *out);

// ---- muon.c. create and send: as those of update.c, which calls them.
NEB_MUST_CHECK enum neb_status device_muon_create(struct intra_device *d);
NEB_MUST_CHECK enum neb_status device_muon_send(struct intra_device *d);
void device_muon_destroy(struct intra_device *d);
// The step of all matrices, after kern_ops.adamw.
void device_muon(struct intra_device *d, float lr);
// What of it is recorded: without tensor parallelism all but the norms.
void device_muon_all(struct intra_device *d);

// ---- linear.c: what blocks are made of.
// y (n, out), of type ty, = x (n, in) W^T + bias, plus the adapters of W's parts. With a bias, ty
// is T.
void pass_linear(struct intra_device *d, enum kern_type ty, void *y, const void *x, int n, int out,
                 int in, const struct intra_tensor *w, const struct intra_tensor *bias,
                 const struct intra_lora_pair *lora, int parts);
// dx (n, in), of type tx, = dy W, unless dx is NULL. dW += dy^T x, and the bias += sums of dy, if
// they learn. The same for adapters.
void pass_linear_bwd(struct intra_device *d, enum kern_type tx, void *dx, void *dy, const void *x,
                     int n, int out, int in, const struct intra_tensor *w,
                     const struct intra_tensor *bias, const struct intra_lora_pair *lora,
                     int parts);
// y (n, d) = norm of the stream, which goes to `sum`. The stream is h, plus the last
// pass_linear_added if `added`.
void pass_norm(struct intra_device *d, void *y, float *rstd, float *sum, const float *h, bool added,
               const struct intra_tensor *gain, const struct pass_shape *s);
// Computes y again if it was not kept and the backward of a product reads it.
void pass_norm_again(struct intra_device *d, void *y, float *rstd, float *h,
                     const struct intra_tensor *gain, const struct pass_shape *s,
                     const struct intra_tensor *w, const struct intra_lora_pair *lora, int parts);
// d->dh, and d->dht in T: += gradient of a norm's input. d->dy: gradient of its output.
void pass_norm_bwd(struct intra_device *d, const float *h, const float *rstd,
                   const struct intra_tensor *gain, const struct pass_shape *s);
// Computes what a product adds to the stream: rows of T in d->r, or their sum over ranks, fp32 in
// d->wide.
void pass_linear_added(struct intra_device *d, const void *x, int in, const struct intra_tensor *w,
                       const struct intra_lora_pair *lora, bool wide, const struct pass_shape *s);
// Backward of a product that reads a norm's output. d->dy: gradient of that output, rows of T.
void pass_linear_bwd_in(struct intra_device *d, void *dy, const void *x, int out,
                        const struct intra_tensor *w, const struct intra_tensor *bias,
                        const struct intra_lora_pair *lora, int parts, bool through,
                        const struct pass_shape *s);
// All rows of the stream's gradient, in T.
void *pass_stream_grad(struct intra_device *d, const struct pass_shape *s);

// ---- pass.c: forward and backward of B sequences in a->batch. Losses are added to *total. With
// several stages the first begins with tokens, others with d->hf; the output is device_out and
// d->dh.
void device_forward(struct intra_device *d, struct device_acts *a, int B, bool learn,
                    double *total);
void device_backward(struct intra_device *d, struct device_acts *a, int B);
float *device_out(const struct intra_device *d, const struct device_acts *a, int B);

// ---- cache.c
// Sends slots and positions of a pass that decodes, and copies slots.
void device_cache_send(struct intra_device *d, struct device_acts *a, const struct intra_batch *b);
// Puts k and v (row stride ld) of block l into the cache. True: the pass continues the cache, and
// attention over it is in out.
bool device_cache_attend(struct intra_device *d, const struct device_acts *a, int32_t l,
                         const struct pass_shape *s, void *out, int ldo, const void *q,
                         const void *k, const void *v, int ld);
void device_cache_destroy(struct intra_device *d);

// ---- graph.c: runs a part of a step, op by op or as a graph.
enum device_part {
    DEVICE_TRAIN, // forward, then backward
    DEVICE_FORWARD,
    DEVICE_BACKWARD,
    DEVICE_EVAL,
    DEVICE_PACK, // without a micro-batch, like the next: device_params_pack
    DEVICE_UNPACK,
    DEVICE_MUON, // device_muon_all
};
// call it after device_allocate
NEB_MUST_CHECK enum neb_status device_graphs_create(struct intra_device *d);
void device_graphs_destroy(struct intra_device *d); // before device_release
void device_run(struct intra_device *d, enum device_part part, struct device_acts *a, int B);

// ---- rows.c: collectives; with one rank they do nothing. Between device_tp_create
// and device_tp_destroy, collectives may be in the queue, and the host's waits for it are watched,
// so they end even if a rank hangs.
void device_tp_create(struct intra_device *d);
void device_tp_destroy(struct intra_device *d);
void device_tp_sum(struct intra_device *d, float *x, size_t n);
void device_tp_sum_doubles(struct intra_device *d, double *x, size_t n);
// x (tp, n): each rank has filled its row; afterwards every rank has all rows. They are copied as
// floats, whatever their type.
void device_tp_gather(struct intra_device *d, void *x, size_t n);
void device_rows_gather(struct intra_device *d, const struct intra_rows *r, void *x, size_t bytes);
void device_rows_sum(struct intra_device *d, const struct intra_rows *r, float *x);
// As kern_ops.head_loss, with this rank's rows of the output weight. h->dx is fp32: a part of a sum
// over ranks. soft: NULL, or k >= 1.
void device_vocab_head(struct intra_device *d, const struct kern_head *h,
                       const struct kern_soft *soft);

#endif
