// SPDX-License-Identifier: Apache-2.0
// The transformer: pre-norm RMSNorm, rotary positions, SwiGLU, grouped-query attention, optional QKV bias, tied or
// untied embeddings. Parameters carry the names of Hugging Face's Llama and Qwen2 layouts, so that folders can be
// imported and exported tensor by tensor.
//
// All parameters live in one arena, in canonical order:
//
//     model.embed_tokens.weight                    (V, d)
//     per layer l:
//       model.layers.l.input_layernorm.weight      (1, d)
//       model.layers.l.self_attn.q_proj.weight     (H*D, d)  ┐ one matrix (H+2G)*D x d for the GEMM
//       model.layers.l.self_attn.k_proj.weight     (G*D, d)  │
//       model.layers.l.self_attn.v_proj.weight     (G*D, d)  ┘
//       model.layers.l.self_attn.{q,k,v}_proj.bias (1, …)    with qkv_bias: one vector of (H+2G)*D
//       model.layers.l.self_attn.o_proj.weight     (d, H*D)
//       model.layers.l.post_attention_layernorm.weight (1, d)
//       model.layers.l.mlp.gate_proj.weight        (f, d)    ┐ one matrix 2f x d
//       model.layers.l.mlp.up_proj.weight          (f, d)    ┘
//       model.layers.l.mlp.down_proj.weight        (d, f)
//     model.norm.weight                            (1, d)
//     lm_head.weight                               (V, d)    unless tied
//     rtd_head.weight, rtd_head.bias               (1, d) (1, 1)  of a discriminator
//     then LoRA adapters, layer by layer: NAME.lora_A.weight (r, in), NAME.lora_B.weight (out, r)
//
// On a mesh a rank holds a part, in the same order: the blocks of its stage (the embedding on the first, norm and output
// on the last, a second copy of a tied embedding there), and of each of their tensors with tensor parallelism
//
//     rows of   embed, lm_head (vocabulary; uneven where tp does not divide it), q, k, v (heads) with biases, gate, up,
//               and lora_B of these                                         column-parallel in Megatron-LM's terms
//     columns of  o, down and their lora_A                                  row-parallel
//     all of    the norms (of the stream each rank has some rows: seqpar.h), and the adapters' other halves   replicated
#ifndef INTRA_MODEL_H
#define INTRA_MODEL_H
#include "intra/model/mesh.h"
#include "kernels/kern.h"

enum intra_head {
    INTRA_HEAD_LM,  // logits over the vocabulary
    INTRA_HEAD_RTD, // one logit a position: was its token replaced? (rtd.h)
};

struct intra_model_config {
    int32_t vocab;   // V
    int32_t d_model; // d
    int32_t n_layers;
    int32_t n_heads;    // H
    int32_t n_kv_heads; // G, divides H
    int32_t head_dim;   // D, even
    int32_t d_ff;       // f
    int32_t max_seq;    // longest sequence
    float rope_theta, norm_eps;
    struct kern_rope_scaling rope_scaling; // all zero: positions are not scaled (rope.h)
    bool tied;                             // output weight is the embedding
    bool qkv_bias;
    enum kern_mask mask;  // prefix: causal, but what intra_acts_prefix says is seen by all
    enum intra_head head; // RTD: tied, since the vocabulary has no output
};
NEB_MUST_CHECK enum neb_status intra_model_config_check(const struct intra_model_config *c);

// What learns, and thus what is exchanged between clusters.
enum intra_trainable_mode {
    INTRA_TRAIN_FULL,
    INTRA_TRAIN_LORA,
    INTRA_TRAIN_BITFIT,
    INTRA_TRAIN_LAST_LAYERS
};
enum intra_lora_target { // bits
    INTRA_LORA_Q = 1,
    INTRA_LORA_K = 2,
    INTRA_LORA_V = 4,
    INTRA_LORA_O = 8,
    INTRA_LORA_GATE = 16,
    INTRA_LORA_UP = 32,
    INTRA_LORA_DOWN = 64,
};
struct intra_trainable {
    // bitfit: biases and RMSNorm gains (Ben Zaken et al. 2021; gains are our only other vectors)
    enum intra_trainable_mode mode;
    int32_t lora_rank;     // r; fields of other modes are ignored, and cleared in a model's copy
    float lora_alpha;      // adapters are scaled by alpha / r
    uint32_t lora_targets; // INTRA_LORA_* bits
    int32_t last_layers; // n: the last n blocks, the final norm and, unless tied, the output weight
    bool freeze_embeddings; // also the output weight when tied
};

enum intra_row_kind { // which token counts weigh a tensor's rows between clusters
    INTRA_ROWS_NONE,
    INTRA_ROWS_INPUT,
    INTRA_ROWS_OUTPUT,
    INTRA_ROWS_BOTH,
};

enum intra_cut { INTRA_CUT_NONE, INTRA_CUT_ROWS, INTRA_CUT_COLS }; // over tensor-parallel ranks

// One tensor, as much of it as this rank holds; on one rank all_rows = rows, and so on.
struct intra_tensor {
    char name[96];
    int32_t rows, cols;
    int32_t all_rows, all_cols, row0, col0; // the whole tensor, and where in it this part lies
    enum intra_cut cut;
    int32_t index;      // place in the whole model's list
    size_t all_grad_at; // like grad_at, in the whole model
    // the last stage's copy of a tied embedding: the first stage's is the one that counts
    bool copy;
    // replicated over tp, but each rank computes a part of its gradient only (adapters, norms)
    bool partial;
    int32_t layer; // -1 embedding, 0..L-1 blocks, L final norm and output
    size_t at;     // offset in params
    bool trainable;
    size_t grad_at; // offset in grads, m and v when trainable
    bool decay;     // weight decay applies: matrices yes, vectors no
    enum intra_row_kind row_kind;
};
// Shape and place of the part that tensor-parallel rank r of `ways` holds of t; offsets are t's.
struct intra_tensor intra_tensor_part(const struct intra_tensor *t, int32_t ways, int32_t r);

struct intra_lora_pair { // adapter of one linear layer; NULL tensors: none
    struct intra_tensor *a, *b;
};
enum { INTRA_LORA_SLOTS = 7 }; // q k v o gate up down, in the order of the bits

struct intra_layer { // the tensors of one block
    // q heads the fused qkv, gate the fused gate-up
    struct intra_tensor *norm1, *q, *q_bias, *o, *norm2, *gate, *down;
    struct intra_lora_pair lora[INTRA_LORA_SLOTS];
};

struct intra_model {
    struct intra_model_config c;
    struct intra_trainable trainable;
    const struct intra_mesh *mesh;   // borrowed; NULL: one rank, which holds everything
    struct intra_model_config local; // what this rank holds: its vocabulary, layers, heads and d_ff
    int32_t layer0;                  // first of its local.n_layers blocks
    // lowest layer (see intra_tensor) of the whole model that learns: backward ends there
    int32_t low;
    struct intra_tensor *tensors; // (n_tensors) of this rank, canonical order
    int32_t n_tensors;
    // NULL where another stage has them; head is embed when tied
    struct intra_tensor *embed, *norm, *head;
    struct intra_tensor *rtd_weight, *rtd_bias; // NULL but on the last stage of a discriminator
    struct intra_layer *layers; // (n_layers) all; of other stages' blocks nothing is set
    float *params;              // (n_params) arena, 64-byte aligned
    // (n_grads) gradients of trainable tensors, same order; NULL in a model that was loaded to be used
    float *grads;
    size_t n_params, n_trainable;
    size_t n_grads;        // n_trainable, and zeros that make dp equal parts of it
    int32_t n_all_tensors; // of the whole model
    size_t n_all_trainable;
    bool *learns;           // (n_all_tensors) by index
    float *rope;            // (max_seq, D/2, 2)
    enum neb_status failed; // first failure of a collective; nothing is communicated after it
};

// Parameters are initialised from the seed, each tensor by its own stream: normal 0.02, residual outputs 0.02/sqrt(2L),
// gains 1, biases 0, LoRA A normal 0.02 and B 0.
NEB_MUST_CHECK enum neb_status intra_model_create(const struct intra_model_config *c,
                                                  const struct intra_trainable *t, uint64_t seed,
                                                  struct intra_model **out);
// The two halves of it: names, shapes and trainable set without any arena (cheap: sizes can be judged first); then zeroed
// arenas and the rotary table, gradients only to learn. After a failure of either: destroy.
NEB_MUST_CHECK enum neb_status intra_model_layout(const struct intra_model_config *c,
                                                  const struct intra_trainable *t,
                                                  struct intra_model **out);
NEB_MUST_CHECK enum neb_status intra_model_allocate(struct intra_model *m, bool learn);
// Back to the layout alone. NULL-safe for what is not there.
void intra_model_release(struct intra_model *m);
// The part of a model that one rank of a mesh holds (NULL: all of it); the initial values do not depend on the mesh.
NEB_MUST_CHECK enum neb_status intra_model_create_on(const struct intra_model_config *c,
                                                     const struct intra_trainable *t, uint64_t seed,
                                                     const struct intra_mesh *mesh,
                                                     struct intra_model **out);
void intra_model_destroy(struct intra_model **m);
// NULL: no such tensor here
const struct intra_tensor *intra_model_find(const struct intra_model *m, const char *name);
static inline bool intra_model_first(const struct intra_model *m) {
    return intra_mesh_pp_rank(m->mesh) == 0;
}
static inline bool intra_model_last(const struct intra_model *m) {
    return intra_mesh_pp_rank(m->mesh) == intra_mesh_pp(m->mesh) - 1;
}
// Whether a position says what comes next: not where it sees that (a masked language model), or says something else.
static inline bool intra_model_continues(const struct intra_model *m) {
    return m->c.head == INTRA_HEAD_LM && m->c.mask != KERN_MASK_BIDIRECTIONAL;
}
// Keeps the first failure of a collective: passes return nothing, and the caller of a step asks once (m->failed).
static inline void intra_model_keep_failure(struct intra_model *m, enum neb_status st) {
    if (m->failed == NEB_OK)
        m->failed = st;
}
static inline float *intra_param(const struct intra_model *m, const struct intra_tensor *t) {
    return m->params + t->at;
}
static inline float *intra_grad(const struct intra_model *m, const struct intra_tensor *t) {
    return t->trainable ? m->grads + t->grad_at : NULL;
}
static inline size_t intra_tensor_size(const struct intra_tensor *t) {
    return (size_t)t->rows * (size_t)t->cols;
}

// Adds every adapter to its base weight (W += alpha/r * B A) and zeroes B, so that the function stays the same.
void intra_lora_merge(struct kern *K, struct intra_model *m);

// Parameters that take part in matrix products (embedding look-ups excluded, output layer included): the N of 6*N FLOP a
// token.
size_t intra_model_matmul_params(const struct intra_model *m);

// A micro-batch: B sequences of T tokens, borrowed.
struct intra_batch {
    const int32_t *tokens, *targets; // (B, T); targets as intra_model_pass takes them
    int B, T;
    const int32_t *prefix;           // as intra_acts_prefix
    const struct kern_soft *teacher; // as intra_acts_teacher
};

// Activations for up to B sequences of T tokens: made once, reused by every call.
struct intra_acts;
// backward: gradients can be taken; recompute: then a block's activations are made again from its input, which saves most of the memory.
// NEB_ERR_NOMEM, here and below.
NEB_MUST_CHECK enum neb_status intra_acts_create(const struct intra_model *m, int B, int T,
                                                 bool backward, bool recompute,
                                                 struct intra_acts **out);
// Activations of the same kind for one more micro-batch in flight. Scratch is shared with `first`, which lives longer.
NEB_MUST_CHECK enum neb_status intra_acts_create_shared(const struct intra_model *m,
                                                        struct intra_acts *first,
                                                        struct intra_acts **out);
// For forward passes only, but with what every block computed kept: intra_acts_qkv gives q, k and v (B * T, (H + 2G) * D) of
// block l after rotary.
NEB_MUST_CHECK enum neb_status intra_acts_create_kept(const struct intra_model *m, int B, int T,
                                                      struct intra_acts **out);
const float *intra_acts_qkv(const struct intra_acts *a, int32_t l);
void intra_acts_destroy(struct intra_acts **a);
// Of its own arena, without shared scratch: for tests, which compare it with what cost.h predicts.
size_t intra_acts_bytes(const struct intra_acts *a);

// Mean-free pass over tokens (B, T): forward, loss in nats (sum in *loss, counted targets in *count), and with
// grad_scale > 0 backward: gradients of (sum of losses * grad_scale) are added to grads. targets (B, T), KERN_IGNORE
// where none; NULL: no loss, hidden states only. A discriminator's targets are 1 where the token was replaced, else 0. Not for a model of several stages. Tensor-parallel ranks call it
// together, with the same tokens, and get the same loss.
void intra_model_pass(struct kern *K, struct intra_model *m, struct intra_acts *a,
                      const int32_t *tokens, const int32_t *targets, int B, int T, float grad_scale,
                      double *loss, int64_t *count);
// The two halves of a pass, for one stage. Forward: the first stage begins with tokens, others with what is in
// intra_acts_in(a); the last leaves loss and count as above (others: 0), others leave the stream in intra_acts_out(a).
// Backward after a forward with grad_scale > 0: the last stage begins at its loss, others at the stream's gradient in
// intra_acts_grad(a), where each leaves that of its own input. All three are this rank's rows of (B * T, d)
// (intra_rows_of), scratch that the next forward or backward of any activations of this stage overwrites.
void intra_model_forward(struct kern *K, struct intra_model *m, struct intra_acts *a,
                         const int32_t *tokens, const int32_t *targets, int B, int T,
                         float grad_scale, double *loss, int64_t *count);
void intra_model_backward(struct kern *K, struct intra_model *m, struct intra_acts *a,
                          const int32_t *tokens, int B, int T);
float *intra_acts_in(struct intra_acts *a);
float *intra_acts_out(struct intra_acts *a);
float *intra_acts_grad(struct intra_acts *a);
// Of the last pass: final hidden states after the norm (B * T, d), and a discriminator's logits (B * T).
const float *intra_acts_hidden(const struct intra_acts *a);
const float *intra_acts_scores(const struct intra_acts *a);
// For the passes that follow, until it is set again: of sequence b the first lengths[b] tokens are its prefix (of a model with
// mask prefix; borrowed, (B)). NULL, as at first: none, the mask is causal.
void intra_acts_prefix(struct intra_acts *a, const int32_t *lengths);
// For the passes that follow: the loss is with a teacher (borrowed; NULL: cross-entropy alone). Not with a vocabulary cut
// over ranks.
void intra_acts_teacher(struct intra_acts *a, const struct kern_soft *teacher);
// Logits (V) of one position (row of the last pass), into out. One rank only.
void intra_model_logits(struct kern *K, const struct intra_model *m, const struct intra_acts *a,
                        int row, float *out);

#endif
