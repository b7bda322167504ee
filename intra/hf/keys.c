// SPDX-License-Identifier: Apache-2.0
#include "intra/hf/keys.h"
#include "agent/base/log.h"

#include <stdlib.h>
#include <string.h>

const struct intra_hf_class intra_hf_classes[] = {
    {"llama", "LlamaForCausalLM", 32000, 4096, 11008, 32, 32, 0, 2048, 0, 1, 2},
    {"mistral", "MistralForCausalLM", 32000, 4096, 14336, 32, 32, 8, 131072, 4096, 1, 2},
    {"qwen2", "Qwen2ForCausalLM", 151936, 4096, 22016, 32, 32, 32, 32768, 4096, -1, -1},
    {0}};

enum { ALL = 7, LLAMA = 1 << INTRA_HF_LLAMA, MISTRAL = 1 << INTRA_HF_MISTRAL, QWEN2 = 4 };

// Keys that config.c reads.
static const struct {
    const char *key;
    int classes; // that read it; for the other classes the key is unknown
} used[] = {
    {"model_type", ALL},
    {"architectures", ALL},
    {"vocab_size", ALL},
    {"hidden_size", ALL},
    {"intermediate_size", ALL},
    {"num_hidden_layers", ALL},
    {"num_attention_heads", ALL},
    {"num_key_value_heads", ALL},
    {"head_dim", ALL},
    {"hidden_act", ALL},
    {"max_position_embeddings", ALL},
    {"original_max_position_embeddings", ALL},
    {"rms_norm_eps", ALL},
    {"tie_word_embeddings", ALL},
    {"rope_theta", ALL},
    {"rope_scaling", ALL},
    {"rope_parameters", ALL},
    {"partial_rotary_factor", ALL},
    {"rope_interleaved", ALL},
    {"bos_token_id", ALL},
    {"eos_token_id", ALL},
    {"attention_bias", LLAMA},
    {"mlp_bias", LLAMA},
    {"sliding_window", MISTRAL | QWEN2},
    {"layer_types", ALL},
    {"use_sliding_window", QWEN2},
    {"max_window_layers", QWEN2},
};

// Keys without effect on the logits of a causal language model: what wrote the file, how it is run,
// how text is generated, other heads.
static const char *const ignored[] = {"_attn_implementation",
                                      "_attn_implementation_autoset",
                                      "_attn_implementation_internal",
                                      "_commit_hash",
                                      "_experts_implementation",
                                      "_experts_implementation_internal",
                                      "_flash_attn_2_enabled",
                                      "_from_model_config",
                                      "_name_or_path",
                                      "assistant_confidence_threshold",
                                      "assistant_lookbehind",
                                      "attn_implementation",
                                      "bad_words_ids",
                                      "begin_suppress_tokens",
                                      "chunk_size_feed_forward",
                                      "cross_attention_hidden_size",
                                      "decoder_start_token_id",
                                      "diversity_penalty",
                                      "do_sample",
                                      "dtype",
                                      "early_stopping",
                                      "encoder_no_repeat_ngram_size",
                                      "encoder_repetition_penalty",
                                      "epsilon_cutoff",
                                      "eta_cutoff",
                                      "experts_implementation",
                                      "exponential_decay_length_penalty",
                                      "finetuning_task",
                                      "forced_bos_token_id",
                                      "forced_eos_token_id",
                                      "id2label",
                                      "initializer_range",
                                      "is_decoder",
                                      "is_llama_config",
                                      "label2id",
                                      "length_penalty",
                                      "max_length",
                                      "max_new_tokens",
                                      "min_length",
                                      "name_or_path",
                                      "no_repeat_ngram_size",
                                      "num_assistant_tokens",
                                      "num_assistant_tokens_schedule",
                                      "num_beam_groups",
                                      "num_beams",
                                      "num_labels",
                                      "num_return_sequences",
                                      "output_attentions",
                                      "output_hidden_states",
                                      "output_scores",
                                      "pad_token_id",
                                      "prefix",
                                      "pretraining_tp",
                                      "problem_type",
                                      "remove_invalid_values",
                                      "repetition_penalty",
                                      "return_dict",
                                      "return_dict_in_generate",
                                      "sep_token_id",
                                      "suppress_tokens",
                                      "target_lookbehind",
                                      "task_specific_params",
                                      "temperature",
                                      "tf_legacy_loss",
                                      "tie_encoder_decoder",
                                      "tie_last_hidden_states",
                                      "tokenizer_class",
                                      "top_k",
                                      "top_p",
                                      "torch_dtype",
                                      "torchscript",
                                      "transformers.js_config",
                                      "transformers_version",
                                      "typical_p",
                                      "unk_token_id",
                                      "unsloth_fixed",
                                      "unsloth_version",
                                      "use_bfloat16",
                                      "use_cache",
                                      "use_return_dict"};

// Dropout acts in training only, not in the forward pass of a trained model.
static const char *const dropouts[] = {"attention_dropout", "attn_pdrop", "embd_pdrop",
                                       "hidden_dropout", "resid_pdrop"};

enum { NONE = 0, FALSE = 1, TRUE = 2, ZERO = 4, ONE = 8 };

// Keys that change the mathematics without a trace in the tensors.
static const struct {
    const char *key;
    int neutral; // values without effect; also null and empty, unless strict
    bool strict;
    const char *needed;
} changing[] = {
    {"is_causal", TRUE, true, "attention to later tokens would be needed; here it is causal"},
    {"use_bidirectional_attention", FALSE, false,
     "attention to later tokens would be needed; here it is causal"},
    {"is_encoder_decoder", FALSE, false, "an encoder would be needed"},
    {"add_cross_attention", FALSE, false, "attention to another sequence would be needed"},
    {"auto_map", NONE, false,
     "the folder brings its own model code, which this program does not run"},
    {"quantization_config", NONE, false,
     "weights must be F32, F16 or BF16; dequantise and save the model first"},
    {"quantization", NONE, false,
     "weights must be F32, F16 or BF16; dequantise and save the model first"},
    {"rope_traditional", FALSE, false,
     "rotary pairs must be (i, i + head_dim / 2); weights would have to be permuted"},
    {"compression_config", NONE, false,
     "weights must be F32, F16 or BF16; dequantise and save the model first"},
    {"per_layer_config", NONE, false, "layers that differ from one another would be needed"},
    {"pruned_heads", NONE, false, "layers with fewer heads than others would be needed"},
    {"attention_chunk_size", ZERO, false, "attention within chunks would be needed"},
    {"no_rope_layers", NONE, false, "layers without rotary positions would be needed"},
    {"no_rope_layer_interval", ZERO, false, "layers without rotary positions would be needed"},
    {"alibi", FALSE, false, "attention biased by distance would be needed"},
    {"rotary_pct", ONE, false, "rotation of a part of each head would be needed"},
    {"attn_logit_softcapping", ZERO, false, "attention with a cap would be needed"},
    {"final_logit_softcapping", ZERO, false, "logits with a cap would be needed"},
    {"logits_soft_cap", ZERO, false, "logits with a cap would be needed"},
    {"logit_scale", ONE, false, "scaled logits would be needed"},
    {"logits_scale", ONE, false, "scaled logits would be needed"},
    {"logits_scaling", ONE, false, "scaled logits would be needed"},
    {"logit_scaling", ONE, false, "scaled logits would be needed"},
    {"output_multiplier_scale", ONE, false, "scaled logits would be needed"},
    {"embedding_multiplier", ONE, false, "scaled embeddings would be needed"},
    {"embedding_scale", ONE, false, "scaled embeddings would be needed"},
    {"scale_emb", ONE, false, "scaled embeddings would be needed"},
    {"scale_embedding", FALSE, false, "scaled embeddings would be needed"},
    {"residual_multiplier", ONE, false, "scaled residuals would be needed"},
    {"scale_depth", NONE, false, "scaled residuals would be needed"},
    {"dim_model_base", NONE, false, "scaled logits would be needed"},
    {"attention_multiplier", NONE, false, "attention with another scale would be needed"},
    {"query_pre_attn_scalar", NONE, false, "attention with another scale would be needed"},
    {"clip_qkv", NONE, false, "queries, keys and values with a cap would be needed"},
    {"use_qk_norm", FALSE, false, "normalised queries and keys would be needed"},
    {"qk_norm", FALSE, false, "normalised queries and keys would be needed"},
    {"qk_layernorm", FALSE, false, "normalised queries and keys would be needed"},
    {"use_parallel_residual", FALSE, false, "blocks with parallel halves would be needed"},
    {"parallel_attn", FALSE, false, "blocks with parallel halves would be needed"},
    {"num_experts", ZERO | ONE, false, "layers of experts (MoE) would be needed"},
    {"num_local_experts", ZERO | ONE, false, "layers of experts (MoE) would be needed"},
    {"n_routed_experts", ZERO | ONE, false, "layers of experts (MoE) would be needed"},
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

enum neb_status intra_hf_refuse(const char *file, const char *key, const json_t *v,
                                const char *needed) {
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    enum neb_status st = neb_fail(NEB_ERR_UNSUPPORTED, "%s: %s: %.80s cannot be imported: %s", file,
                                  key, text ? text : "(none)", needed);
    free(text);
    return st;
}

static bool is_neutral(const json_t *v, int neutral) {
    double x = json_number_value(v);
    return (json_is_false(v) && neutral & FALSE) || (json_is_true(v) && neutral & TRUE) ||
           (json_is_number(v) && ((x == 0 && neutral & ZERO) || (x == 1 && neutral & ONE)));
}

static bool is_empty(const json_t *v) {
    return json_is_null(v) || (json_is_object(v) && !json_object_size(v)) ||
           (json_is_array(v) && !json_array_size(v));
}

static bool is_known(const char *key, enum intra_hf_arch arch) {
    size_t i;
    for (i = 0; i < COUNT(used); i++)
        if (!strcmp(used[i].key, key))
            return used[i].classes & 1 << arch;
    for (i = 0; i < COUNT(ignored); i++)
        if (!strcmp(ignored[i], key))
            return true;
    for (i = 0; i < COUNT(dropouts); i++)
        if (!strcmp(dropouts[i], key))
            return true;
    for (i = 0; i < COUNT(changing); i++)
        if (!strcmp(changing[i].key, key))
            return true;
    return false;
}

// The names that a warning lists, up to the size of the line.
struct list {
    char text[800];
    size_t len;
    int n, more; // names in the text, and names that had no room
};

static void list_add(struct list *l, const char *within, const char *key) {
    int k = l->len > sizeof l->text - 128
                ? 0
                : snprintf(l->text + l->len, sizeof l->text - l->len, "%s%s%s%.80s",
                           l->n ? ", " : "", within, *within ? "." : "", key);
    l->n += k > 0;
    l->more += k <= 0;
    l->len += k > 0 ? (size_t)k : 0;
}

static void list_warn(const struct list *l, const char *file) {
    char more[32] = "";
    if (l->more)
        snprintf(more, sizeof more, " and %d more", l->more);
    if (l->n)
        neb_warn("%s: %s%s: unknown, and ignored; check whether %s the model's answers", file,
                 l->text, more, l->n == 1 ? "it changes" : "they change");
}

void intra_hf_keys_warn(const json_t *object, const char *file, const char *within,
                        const char *const *known) {
    struct list l = {0};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, key, v) {
        const char *const *k = known;
        while (*k && strcmp(*k, key))
            k++;
        if (!*k)
            list_add(&l, within, key);
    }
    list_warn(&l, file);
}

enum neb_status intra_hf_keys_check(const json_t *root, const char *file, enum intra_hf_arch arch) {
    struct list l = {0};
    const char *key;
    json_t *v;
    for (size_t i = 0; i < COUNT(changing); i++) {
        v = json_object_get(root, changing[i].key);
        bool nothing = !v || is_neutral(v, changing[i].neutral);
        if (!nothing && !(is_empty(v) && !changing[i].strict))
            return intra_hf_refuse(file, changing[i].key, v, changing[i].needed);
    }
    for (size_t i = 0; i < COUNT(dropouts); i++) {
        v = json_object_get(root, dropouts[i]);
        if (v && !is_empty(v) && !is_neutral(v, ZERO | FALSE))
            neb_warn("%s: %s: ignored, because training here has no dropout; the model's answers "
                     "are the same",
                     file, dropouts[i]);
    }
    json_object_foreach((json_t *)(uintptr_t)root, key, v) if (!is_known(key, arch))
        list_add(&l, "", key);
    list_warn(&l, file);
    return NEB_OK;
}
