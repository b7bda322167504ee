// SPDX-License-Identifier: Apache-2.0
// The transformer: pre-norm RMSNorm, rotary positions, SwiGLU, grouped-query attention, optional
// QKV bias, tied or untied embeddings. Parameters have the names of Hugging Face's Llama and Qwen2,
// so folders are imported and exported tensor by tensor.
//
// All parameters are in one arena, in canonical order:
//
//     model.embed_tokens.weight                    (V, d)
//     per layer l:
//       model.layers.l.input_layernorm.weight      (1, d)
//       model.layers.l.self_attn.q_proj.weight     (H*D, d)  ┐ one matrix (H+2G)*D x d for GEMM
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
//     then LoRA adapters by layer: NAME.lora_A.weight (r, in), NAME.lora_B.weight (out, r)
//
// On a mesh a rank holds a part, in the same order. A stage has its blocks; the first also has the
// embedding, the last the final norm and the output, and a second copy of a tied embedding. With
// tensor parallelism a rank has, of each of these tensors,
//
//     rows of     embed, lm_head (vocabulary; uneven if tp does not divide it), q, k, v (heads)
//                 with biases, gate, up, and their lora_B Megatron-LM: column-parallel
//     columns of  o, down and their lora_A                Megatron-LM: row-parallel
//     all of      the norms, and the other halves of the adapters (replicated)
#ifndef INTRA_MODEL_H
#define INTRA_MODEL_H
#include "intra/model/mesh.h"
#include "kernels/kern.h"

enum intra_head {
    INTRA_HEAD_LM,  // logits over the vocabulary
    INTRA_HEAD_RTD, // one logit per position: was its token replaced? (kern_rtd)
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
    bool tied;                             // the output weight is the embedding
    bool qkv_bias;
    enum kern_mask mask;  // prefix: causal, but all positions see the prefix (intra_batch)
    enum intra_head head; // RTD: must be tied, because there is no vocabulary output
};
NEB_MUST_CHECK enum neb_status intra_model_config_check(const struct intra_model_config *c);

// What learns, and so what clusters exchange.
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
    // bitfit: biases and RMSNorm gains, the only vectors here (Ben Zaken et al. 2021)
    enum intra_trainable_mode mode;
    int32_t lora_rank;      // r. A model's copy has the fields of other modes cleared
    float lora_alpha;       // adapters are scaled by alpha / r
    uint32_t lora_targets;  // INTRA_LORA_* bits
    int32_t last_layers;    // the last n blocks, the final norm and, unless tied, the output weight
    bool freeze_embeddings; // if tied, the output weight, too
};

enum intra_row_kind { // token counts that weigh a tensor's rows between clusters
    INTRA_ROWS_NONE,
    INTRA_ROWS_INPUT,
    INTRA_ROWS_OUTPUT,
    INTRA_ROWS_BOTH,
};

enum intra_cut { INTRA_CUT_NONE, INTRA_CUT_ROWS, INTRA_CUT_COLS }; // over tensor-parallel ranks

// One tensor, or the part of it that this rank holds. On one rank rows = all_rows, and so on.
struct intra_tensor {
    char name[96];
    int32_t rows, cols;
    // shape of the full tensor, and where in it this part begins
    int32_t all_rows, all_cols, row0, col0;
    enum intra_cut cut;
    int32_t index;      // in the list of the full model
    size_t all_grad_at; // like grad_at, in the full model
    // the last stage's copy of a tied embedding; the original is on the first stage
    bool copy;
    // replicated over tp, but each rank computes only a part of its gradient (adapters, norms)
    bool partial;
    int32_t layer; // -1 embedding, 0..L-1 blocks, L final norm and output
    size_t at;     // offset in params
    bool trainable;
    size_t grad_at; // offset in grads, if trainable
    bool decay;     // weight decay applies: to matrices, not to vectors
    bool matrix;    // of a block, and no adapter: Muon may update it as a whole (optim.h)
    enum intra_row_kind row_kind;
};
// The part of t that tensor-parallel rank r of `ways` holds: its shape and position. The offsets
// (at, grad_at) stay those of t.
struct intra_tensor intra_tensor_part(const struct intra_tensor *t, int32_t ways, int32_t r);

struct intra_lora_pair { // adapter of one linear layer; NULL tensors: none
    struct intra_tensor *a, *b;
};
// The linear layers of a block, in the order of the bits. Q begins the fused qkv, GATE the fused
// gate-up: their parts follow each other in intra_model.tensors.
enum { INTRA_Q, INTRA_K, INTRA_V, INTRA_O, INTRA_GATE, INTRA_UP, INTRA_DOWN, INTRA_LORA_SLOTS };

struct intra_layer { // a block and its tensors
    int kind;        // its kind (block.h)
    struct intra_tensor *norm1, *q_bias, *norm2;
    struct intra_tensor *linear[INTRA_LORA_SLOTS];
    struct intra_lora_pair lora[INTRA_LORA_SLOTS];
};

struct intra_model {
    struct intra_model_config c;
    struct intra_trainable trainable;
    const struct intra_mesh *mesh;   // borrowed; NULL: one rank, which holds everything
    struct intra_model_config local; // this rank's part: its vocabulary, layers, heads and d_ff
    int32_t layer0;                  // first of its local.n_layers blocks
    // lowest layer (see intra_tensor) of the full model that learns; backward ends there
    int32_t low;
    struct intra_tensor *tensors; // (n_tensors) of this rank, in canonical order
    int32_t n_tensors;
    // NULL if another stage has them; head is embed if tied
    struct intra_tensor *embed, *norm, *head;
    // only on the last stage of a discriminator, else NULL
    struct intra_tensor *rtd_weight, *rtd_bias;
    struct intra_layer *layers; // (n_layers) of the full model; other stages' blocks are empty
    float *params;              // (n_params) arena, 64-byte aligned
    // (n_grads) gradients of trainable tensors, in the same order; NULL in a model that only infers
    float *grads;
    size_t n_params, n_trainable;
    size_t n_grads;        // n_trainable, padded with zeros so that dp divides it
    int32_t n_all_tensors; // of the full model
    size_t n_all_trainable;
    bool *learns;           // (n_all_tensors) by index
    float *rope;            // (max_seq, D/2, 2)
    enum neb_status failed; // first failure of a collective; no collective runs after it
};

// Draws initial parameters from the seed, each tensor from its own stream: normal 0.02, residual
// outputs 0.02/sqrt(2L), gains 1, biases 0, LoRA A normal 0.02 and B 0. NEB_ERR_INVALID,
// NEB_ERR_UNSUPPORTED: config or trainable set; NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status intra_model_create(const struct intra_model_config *c,
                                                  const struct intra_trainable *t, uint64_t seed,
                                                  struct intra_model **out);
// The two halves of create. layout: names, shapes and trainable set without arenas; cheap, so sizes
// can be judged first. allocate: zeroed arenas and the rotary table; gradients only with `learn`.
// After a failed allocate the caller destroys the model.
NEB_MUST_CHECK enum neb_status intra_model_layout(const struct intra_model_config *c,
                                                  const struct intra_trainable *t,
                                                  struct intra_model **out);
NEB_MUST_CHECK enum neb_status intra_model_allocate(struct intra_model *m, bool learn);
// Frees the arenas and keeps the layout. Safe if there are none.
void intra_model_release(struct intra_model *m);
// Initial values of a tensor, or of some of its rows (t: a copy with row0 and rows changed),
// without a model's memory. out: (t->rows, t->cols).
void intra_model_draw(const struct intra_model *m, const struct intra_tensor *t, uint64_t seed,
                      float *out);
// Makes the part of a model that this rank of a mesh holds (mesh NULL: all). The initial values do
// not depend on the mesh.
NEB_MUST_CHECK enum neb_status intra_model_create_on(const struct intra_model_config *c,
                                                     const struct intra_trainable *t, uint64_t seed,
                                                     const struct intra_mesh *mesh,
                                                     struct intra_model **out);
// The same without gradients and initial values: all parameters are zero.
NEB_MUST_CHECK enum neb_status intra_model_create_frozen(const struct intra_model_config *c,
                                                         const struct intra_trainable *t,
                                                         const struct intra_mesh *mesh,
                                                         struct intra_model **out);
void intra_model_destroy(struct intra_model **m);
// NULL: this rank has no such tensor.
const struct intra_tensor *intra_model_find(const struct intra_model *m, const char *name);
static inline bool intra_model_first(const struct intra_model *m) {
    return intra_mesh_pp_rank(m->mesh) == 0;
}
static inline bool intra_model_last(const struct intra_model *m) {
    return intra_mesh_pp_rank(m->mesh) == intra_mesh_pp(m->mesh) - 1;
}
// True if a position predicts the next token. False for a masked language model and a
// discriminator.
static inline bool intra_model_continues(const struct intra_model *m) {
    return m->c.head == INTRA_HEAD_LM && m->c.mask != KERN_MASK_BIDIRECTIONAL;
}
// Keeps the first failure of a collective. Passes return nothing; the caller checks m->failed once
// per step.
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

// Adds every adapter to its base weight (W += alpha/r * B A) and zeroes B, so the function stays
// the same.
void intra_lora_merge(struct kern *K, struct intra_model *m);

// Parameters in matrix products: the output layer counts, the embedding look-up does not. This is
// the N of 6*N FLOP per token.
size_t intra_model_matmul_params(const struct intra_model *m);

#endif
