// SPDX-License-Identifier: Apache-2.0
// Writes config.json for transformers, and compares the models of a folder and a checkpoint.
#include "intra/hf/config.h"
#include "intra/hf/keys.h"
#include "intra/model/rope.h"

#include <stdlib.h>

// The shortest decimal that reads back as this float: 1e-5f becomes 1e-05, not 9.99999975e-06.
static json_t *real(float f) {
    char text[32];
    int digits = 5;
    do
        snprintf(text, sizeof text, "%.*g", ++digits, (double)f);
    while (digits < 9 && strtof(text, NULL) != f);
    return json_real(strtod(text, NULL));
}

// In the form that transformers 4.43 and later read. NULL: out of memory.
static json_t *rope_json(const struct kern_rope_scaling *s) {
    const char *type = intra_rope_types[s->type];
    if (s->type == KERN_ROPE_LINEAR)
        return json_pack("{s:s,s:o}", "rope_type", type, "factor", real(s->factor));
    return json_pack("{s:s,s:o,s:o,s:o,s:i}", "rope_type", type, "factor", real(s->factor),
                     "low_freq_factor", real(s->low), "high_freq_factor", real(s->high),
                     "original_max_position_embeddings", s->original);
}

json_t *intra_hf_config_json(const struct intra_hf_config *c, const char *dtype) {
    const struct intra_model_config *m = &c->model;
    json_t *o = json_pack("{s:[s],s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:o,s:o,s:b,s:s,s:b}",
                          "architectures", intra_hf_classes[c->arch].architecture, "model_type",
                          intra_hf_classes[c->arch].type, "hidden_act", "silu", "vocab_size",
                          m->vocab, "hidden_size", m->d_model, "intermediate_size", m->d_ff,
                          "num_hidden_layers", m->n_layers, "num_attention_heads", m->n_heads,
                          "num_key_value_heads", m->n_kv_heads, "head_dim", m->head_dim,
                          "max_position_embeddings", c->max_positions, "rms_norm_eps",
                          real(m->norm_eps), "rope_theta", real(m->rope_theta),
                          "tie_word_embeddings", m->tied, "torch_dtype", dtype, "use_cache", 1);
    if (!o)
        return NULL;
    if (m->rope_scaling.type != KERN_ROPE_DEFAULT &&
        json_object_set_new(o, "rope_scaling", rope_json(&m->rope_scaling)) != 0) {
        json_decref(o); // without rope_scaling it would be another model
        return NULL;
    }
    json_object_set_new(o, "bos_token_id", c->bos < 0 ? json_null() : json_integer(c->bos));
    json_object_set_new(o, "eos_token_id", c->eos < 0 ? json_null() : json_integer(c->eos));
    if (c->arch == INTRA_HF_QWEN2) {
        json_object_set_new(o, "use_sliding_window", json_boolean(c->window > 0));
        json_object_set_new(o, "max_window_layers", json_integer(0));
    }
    if (c->arch == INTRA_HF_LLAMA) {
        json_object_set_new(o, "attention_bias", json_false());
        json_object_set_new(o, "mlp_bias", json_false());
    } else {
        json_object_set_new(o, "sliding_window", c->window ? json_integer(c->window) : json_null());
    }
    return o;
}

enum neb_status intra_hf_config_of_model(const struct intra_model_config *m,
                                         struct intra_hf_config *out) {
    if (m->mask != KERN_MASK_CAUSAL)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "this model is not a causal language model, because positions attend to "
                        "later ones; it cannot be exported for transformers");
    *out = (struct intra_hf_config){.arch = m->qkv_bias ? INTRA_HF_QWEN2 : INTRA_HF_LLAMA,
                                    .model = *m,
                                    .max_positions = m->max_seq,
                                    .bos = -1,
                                    .eos = -1};
    return NEB_OK;
}

enum neb_status intra_hf_config_same(const struct intra_hf_config *c,
                                     const struct intra_model_config *m, const char *file) {
    const struct {
        const char *key;
        double theirs, ours;
    } all[] = {
        {"vocab_size", c->model.vocab, m->vocab},
        {"hidden_size", c->model.d_model, m->d_model},
        {"num_hidden_layers", c->model.n_layers, m->n_layers},
        {"num_attention_heads", c->model.n_heads, m->n_heads},
        {"num_key_value_heads", c->model.n_kv_heads, m->n_kv_heads},
        {"head_dim", c->model.head_dim, m->head_dim},
        {"intermediate_size", c->model.d_ff, m->d_ff},
        {"rope_theta", (double)c->model.rope_theta, (double)m->rope_theta},
        {"rms_norm_eps", (double)c->model.norm_eps, (double)m->norm_eps},
        {"tie_word_embeddings", c->model.tied, m->tied},
        {"qkv bias", c->model.qkv_bias, m->qkv_bias},
        {"causal", c->model.mask == KERN_MASK_CAUSAL, m->mask == KERN_MASK_CAUSAL},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].theirs != all[i].ours)
            return neb_fail(NEB_ERR_INVALID, "%s: %s is %g, the checkpoint's is %g: another model",
                            file, all[i].key, all[i].theirs, all[i].ours);
    char theirs[INTRA_ROPE_TEXT], ours[INTRA_ROPE_TEXT];
    if (!intra_rope_same(&c->model.rope_scaling, &m->rope_scaling))
        return neb_fail(NEB_ERR_INVALID,
                        "%s: rope_scaling is %s, the checkpoint's is %s: another model", file,
                        intra_rope_text(&c->model.rope_scaling, theirs),
                        intra_rope_text(&m->rope_scaling, ours));
    return NEB_OK;
}
