// SPDX-License-Identifier: Apache-2.0
// Reads and writes adapter_config.json: LoRA adapters as PEFT describes them.
#include "agent/base/log.h"
#include "intra/hf/hf.h"
#include "intra/hf/keys.h"
#include "intra/hf/targets.h"
#include "intra/read/folder.h"
#include "intra/read/json.h"

#include <string.h>

// Keys that are used, and keys without effect on a trained adapter.
static const char *const known[] = {"alora_invocation_tokens",
                                    "alpha_pattern",
                                    "arrow_config",
                                    "auto_mapping",
                                    "base_model_name_or_path",
                                    "bias",
                                    "corda_config",
                                    "ensure_weight_tying",
                                    "eva_config",
                                    "exclude_modules",
                                    "fan_in_fan_out",
                                    "inference_mode",
                                    "init_lora_weights",
                                    "kasa_config",
                                    "layer_replication",
                                    "layers_pattern",
                                    "layers_to_transform",
                                    "loftq_config",
                                    "lora_alpha",
                                    "lora_bias",
                                    "lora_dropout",
                                    "lora_ga_config",
                                    "megatron_config",
                                    "megatron_core",
                                    "modules_to_save",
                                    "monteclora_config",
                                    "peft_type",
                                    "peft_version",
                                    "qalora_group_size",
                                    "r",
                                    "rank_pattern",
                                    "revision",
                                    "runtime_config",
                                    "target_modules",
                                    "target_parameters",
                                    "task_type",
                                    "trainable_token_indices",
                                    "use_bdlora",
                                    "use_dora",
                                    "use_qalora",
                                    "use_rslora",
                                    "velora_config",
                                    NULL};

static bool is_off(const json_t *v) { // absent, null, false, "none" or empty
    const char *s = json_string_value(v);
    return !v || json_is_null(v) || json_is_false(v) || (s && (!strcmp(s, "none") || !*s)) ||
           (json_is_object(v) && !json_object_size(v)) || (json_is_array(v) && !json_array_size(v));
}

static enum neb_status read_config(const char *file, const json_t *o, int32_t n_layers,
                                   struct intra_trainable *out) {
    static const struct {
        const char *key, *needed;
    } off[] = {
        {"bias", "trainable biases beside the adapters would be needed"},
        {"use_dora", "DoRA (separate magnitudes) would be needed"},
        {"fan_in_fan_out", "transposed weights would be needed"},
        {"modules_to_save", "merge the adapter into its model first"},
        {"layer_replication", "layers that share weights would be needed"},
        {"target_parameters", "adapters are supported only on the linear layers of a block"},
        {"trainable_token_indices", "trainable rows of the embedding would be needed"},
        {"lora_bias", "a bias in the adapters would be needed"},
        {"use_qalora", "adapters of pooled inputs would be needed"},
        {"alora_invocation_tokens", "adapters that a token switches on would be needed"},
        {"arrow_config", "adapters that a router chooses would be needed"},
        {"kasa_config", "singular values between the two halves would be needed"},
        {"monteclora_config", "randomly sampled adapters would be needed"},
        {"use_bdlora", "block-diagonal adapters would be needed"},
        {"megatron_config", "layers of Megatron-LM would be needed"},
    };
    // PiSSA, OLoRA, CorDA and LoftQ derive their start from the base model's weights and change
    // them, so their adapter does not fit the original weights.
    static const char *const starts[] = {"gaussian", "eva", "orthogonal"};
    const json_t *start = json_object_get(o, "init_lora_weights");
    bool plain = !start || json_is_null(start) || json_is_boolean(start);
    const char *type = json_string_value(json_object_get(o, "peft_type"));
    *out = (struct intra_trainable){.mode = INTRA_TRAIN_LORA};
    if (!type || strcmp(type, "LORA"))
        return intra_hf_refuse(file, "peft_type", json_object_get(o, "peft_type"),
                               "only LORA is supported");
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        if (!is_off(json_object_get(o, off[i].key)))
            return intra_hf_refuse(file, off[i].key, json_object_get(o, off[i].key), off[i].needed);
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        plain |= json_is_string(start) && !strcmp(json_string_value(start), starts[i]);
    if (!plain)
        return intra_hf_refuse(
            file, "init_lora_weights", start,
            "it changes the base model's weights; convert the adapter to plain LoRA first");
    const json_t *stabilised = json_object_get(o, "use_rslora"),
                 *dropout = json_object_get(o, "lora_dropout");
    if (stabilised && !json_is_null(stabilised) && !json_is_boolean(stabilised))
        return neb_fail(NEB_ERR_FORMAT, "%s: use_rslora: true or false is needed", file);
    if (dropout && !json_is_null(dropout) &&
        (!json_is_number(dropout) || json_number_value(dropout) != 0))
        neb_warn("%s: lora_dropout: ignored, because training here has no dropout; the model's "
                 "answers are the same",
                 file);
    intra_hf_keys_warn(o, file, "", known);
    return intra_hf_targets_read(o, file, n_layers, out);
}

enum neb_status intra_hf_peft_parse(const char *text, size_t len, const char *file,
                                    int32_t n_layers, struct intra_trainable *out) {
    json_t *o;
    NEB_TRY(intra_json_parse(text, len, file, &o));
    enum neb_status st = json_is_object(o)
                             ? read_config(file, o, n_layers, out)
                             : neb_fail(NEB_ERR_FORMAT, "%s: not a JSON object", file);
    json_decref(o);
    return st;
}

enum neb_status intra_hf_peft_read(const char *dir, int32_t n_layers, struct intra_trainable *out) {
    char path[NEB_PATH_MAX];
    struct neb_buf text = {0};
    bool there;
    NEB_TRY(intra_folder_file(dir, "adapter_config.json", path, sizeof path, &there));
    if (!there)
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "%s: there is no adapter_config.json; name a folder that PEFT saved", dir);
    enum neb_status st = neb_fs_read(path, INTRA_HF_JSON_MAX, &text);
    if (st == NEB_OK)
        st = intra_hf_peft_parse((const char *)text.p, text.len, path, n_layers, out);
    neb_buf_free(&text);
    return st;
}

json_t *intra_hf_peft_json(const struct intra_trainable *t, const char *base) {
    json_t *list = json_array();
    for (int i = 0; i < INTRA_LORA_SLOTS; i++)
        if (t->lora_targets & 1u << i)
            json_array_append_new(list, json_string(intra_hf_linear[i]));
    return json_pack("{s:s,s:s,s:s?,s:i,s:f,s:f,s:s,s:b,s:b,s:o,s:b}", "peft_type", "LORA",
                     "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "r", t->lora_rank,
                     "lora_alpha", (double)t->lora_alpha, "lora_dropout", 0.0, "bias", "none",
                     "use_rslora", 0, "fan_in_fan_out", 0, "target_modules", list, "inference_mode",
                     1);
}
