// SPDX-License-Identifier: Apache-2.0
// Inside of intra_device: device.c (set-up, steps), device_memory.c, device_copy.c (to and from the host), device_pass.c (forward
// and backward), device_picks.c (scores, draws and labels of a pass), device_graph.c (parts of a step that are recorded), device_rows.c (what tensor-parallel ranks say to each other), device_update.c, device_pipe.c.
#ifndef INTRA_DEVICE_STATE_H
#define INTRA_DEVICE_STATE_H
#include "intra/device/device.h"
#include "intra/model/seqpar.h"

enum {
    DEVICE_SLOTS = 2,  // pinned buffers that take turns
    DEVICE_PIECES = 8, // places in backward where a reduction of gradients may begin
    // places in the queue (kern_device_ops.mark)
    MARK_BATCH = 0,   // and the next: a batch's buffer was read
    MARK_CAME = 4,    // and the next: what a neighbour sent was read
    MARK_LEAVING = 6, // and the next: what goes to a neighbour was written
    MARK_PIECE = 8,   // DEVICE_PIECES: backward has passed a piece of the gradients
    MARK_TIME = 16,   // and the next: around what is timed
};

// Rows of the stream: all n of a pass, or with tensor parallelism this rank's own (seqpar.h).
struct device_block {                     // as struct block_acts of forward.c
    float *h1, *rstd1, *lse, *h2, *rstd2; // fp32
    void *y1, *qkv, *att, *y2, *gu, *act; // T
};

// What differs from one micro-batch to the next, on either side: all else of a pass is where and as it was.
struct device_batch {
    int32_t *tokens, *targets; // tokens: rows of this rank's embedding, -1 where another has it
    struct kern_buckets rows;  // where which token was seen
    float *grad_scale;         // (1)
    int32_t *prefix;           // (n) of the sequences, where there are prefixes
};

struct device_acts {             // of one micro-batch in flight
    struct device_block *blocks; // (local.n_layers)
    struct device_batch batch;
    int T;                        // tokens of its sequences
    bool prefixed, targets;       // has prefixes; has a loss
    int n_rows;                   // that the output layer takes: gathered; 0: all
    struct kern_device_soft soft; // k > 0: of a teacher
};

struct intra_device {
    struct intra_device_config c;
    struct intra_model *m;
    struct intra_optim *o;
    void *arena; // device memory; all pointers below but the pinned ones lie in it
    size_t bytes;
    // parameters and their like: offsets as in the model's arenas
    float *params, *grads, *moment1, *moment2, *rope;
    void *working; // params as T; params itself when T is fp32
    // activations
    int n_acts;
    struct device_acts *acts;        // (n_acts) host array
    const struct device_acts *holds; // with recompute: whose last block is in the shared one
    void *r, *y, *yf, *lora, *dlora, *logits, *dy, *dqkv, *datt, *dact, *dht;
    float *hf, *rstdf, *dh, *delta, *losses;
    float *scores;    // (n) of a discriminator
    int32_t *picked;  // (n) rows of a pass that are drawn from, or labelled
    int32_t *pick_id; // (n, soft_k) soft labels, made or learned from; draws
    float *pick_logp, *pick_tail;
    // Of the output layer, where few positions have a target: (n) rows of the pass, their targets; of each position its row, or -1
    int32_t *row_at, *row_target, *row_of;
    void *row_dx;             // (n, d) T
    int32_t *lists;           // (3, n) host: these
    struct device_soft_rows { // host: labels of rows
        int32_t *ids;
        float *logp, *tail;
    } soft_rows;
    // (n, d) fp32: sums over ranks, and what a stage passes on; of no size with one of each
    float *wide;
    float *vocab_max, *vocab_sums; // (logit_rows) (2, logit_rows) with a cut vocabulary
    int logit_rows;
    float *came[2], *leaving[2]; // by enum intra_pipe_way: this rank's rows
    bool came_used[2];
    int passed_on; // sequences of the last forward
    // the update
    struct kern_chunk *chunks; // of this rank's part of the gradients (optim.h)
    int32_t *first;
    int n_chunks;
    float *factors;
    // gradients of which each tensor-parallel rank has a part (intra_tensor.partial), apart from the others: in device_grad's place, and
    // into grads when they are summed up
    float *partial;     // (n_partial)
    size_t *partial_at; // (m->n_tensors) host
    size_t n_partial;   // with gaps, so that each begins as the kernels like it
    double *sums;       // (n_all_tensors), then the losses of the step and of an evaluation
    double *total, *eval_total;
    double *all; // (n_all_tensors + 2) host: what is summed over the world
    // (local.n_layers + 2) from layer0 - 1: gradients below this are not complete when backward has
    // come below a layer
    size_t *pending;
    int n_pieces, pieces_left; // in backward: not yet marked
    // pinned
    void *batch_pinned[DEVICE_SLOTS];
    bool batch_used[DEVICE_SLOTS];
    int turn;
    bool staged; // the device's stage is taken
    float *factors_pinned;
    double *sums_pinned;
    int32_t *next; // (V) scratch of kern_buckets_fill
    struct device_graphs *graphs;
    bool tp_aborted; // nothing of the ranks beside this one is in the queue any more
};

static inline const struct kern_device_ops *device_ops(const struct intra_device *d) {
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
// T elements on.
static inline void *device_at(const struct intra_device *d, void *p, size_t elements) {
    return (char *)p + elements * kern_type_bytes(d->c.type);
}
// Over tensor-parallel ranks; sums of theirs are fp32.
static inline bool device_cut(const struct intra_device *d) { return intra_mesh_tp(d->c.mesh) > 1; }
// Of every possible shape the one that a trainer's own micro-batches have, and nothing beside tokens and targets: what is recorded.
static inline bool device_plain(const struct intra_device *d, const struct device_acts *a, int B) {
    return B == d->c.batch && a->T == d->c.seq_len && a->targets && !a->prefixed && !a->soft.k &&
           !a->n_rows;
}
static inline bool device_learns(const struct intra_device *d) { return d->o; }
static inline size_t device_tokens(const struct intra_device *d) {
    return (size_t)d->c.batch * (size_t)d->c.seq_len;
}
static inline struct intra_comm *device_dp(const struct intra_device *d) {
    return d->c.mesh ? d->c.mesh->dp : NULL;
}
// Until the queue has run, and what the ranks beside this one had in it; what went wrong since the model was made, which is kept.
NEB_MUST_CHECK enum neb_status device_finish(struct intra_device *d);
// The same, for a collective on what is in the queue: true when there is nothing to keep one from being called.
bool device_finish_ok(struct intra_device *d);

// ---- device.c: copies a batch into the pinned buffer whose turn it is, and from there to a; a teacher's labels, too. Returns the targets
// that count.
int64_t device_send_batch(struct intra_device *d, struct device_acts *a,
                          const struct intra_batch *b, float grad_scale);

// ---- device_picks.c: with few targets (count of them) the output layer takes their rows alone; a teacher's labels go along.
void device_send_rows(struct intra_device *d, struct device_acts *a, const struct intra_batch *b,
                      int64_t count);
NEB_MUST_CHECK enum neb_status device_picks_create(struct intra_device *d); // host's; NEB_ERR_NOMEM
void device_picks_destroy(struct intra_device *d);

// ---- device_memory.c
NEB_MUST_CHECK enum neb_status device_allocate(struct intra_device *d);
void device_release(struct intra_device *d);
size_t device_logits_bytes(const struct intra_device *d);
// A micro-batch of n tokens in one piece of memory, of so many bytes; prefixes are behind all else.
struct device_batch device_batch_in(void *room, size_t n);
size_t device_batch_bytes(size_t n, bool prefixes);

// ---- device_update.c
NEB_MUST_CHECK enum neb_status device_update_create(struct intra_device *d); // sizes, before memory
NEB_MUST_CHECK enum neb_status device_update_send(struct intra_device *d);   // tables, after it
void device_update_destroy(struct intra_device *d);
// Updated parameters of all replicas into the gradient arena, from where they are gathered, and from there.
void device_params_pack(struct intra_device *d);
void device_params_unpack(struct intra_device *d);
// Backward has come below block l (the block behind the last: below the output; the one before the first: it is done).
void device_update_passed(struct intra_device *d, int32_t l);

// ---- device_pass.c: forward and backward over what is in a->batch, B sequences. Losses are added to *total; of several stages the
// first begins with tokens, others with d->hf, and what goes on is in device_out and d->dh.
void device_forward(struct intra_device *d, struct device_acts *a, int B, bool learn,
                    double *total);
void device_backward(struct intra_device *d, struct device_acts *a, int B);
float *device_out(const struct intra_device *d, const struct device_acts *a, int B);

// ---- device_graph.c: a part of a step, op by op or as a graph.
enum device_part {
    DEVICE_TRAIN, // forward, then backward
    DEVICE_FORWARD,
    DEVICE_BACKWARD,
    DEVICE_EVAL,
    DEVICE_PACK, // without a micro-batch, as the next
    DEVICE_UNPACK,
};
NEB_MUST_CHECK enum neb_status device_graphs_create(struct intra_device *d); // after memory
void device_graphs_destroy(struct intra_device *d);                          // before it
void device_run(struct intra_device *d, enum device_part part, struct device_acts *a, int B);

// ---- device_rows.c, as seqpar.h and vocab.h; nothing to do on one rank. Between device_tp_create and _destroy tensor-parallel ranks whose
// communicator can have their collectives in the queue, and the host may wait for it without waiting for ever.
void device_tp_create(struct intra_device *d);
void device_tp_destroy(struct intra_device *d);
void device_tp_reduce(struct intra_device *d, float *x, size_t n, enum intra_comm_op op);
void device_rows_gather(struct intra_device *d, const struct intra_rows *r, void *x, size_t bytes);
void device_rows_sum(struct intra_device *d, const struct intra_rows *r, float *x);
// h as kern_device_ops.head_loss takes it, with this rank's rows of the output weight; its dx goes to d->wide, fp32, a part of a sum.
void device_vocab_head(struct intra_device *d, const struct kern_device_head *h);

#endif
