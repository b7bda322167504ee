// adapter_config.json: LoRA adapters as PEFT describes them.
#include "intra/hf.h"

#include <stdlib.h>
#include <string.h>

// In the order of the bits of enum intra_lora_target.
static const char *const modules[INTRA_LORA_SLOTS] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                      "gate_proj", "up_proj", "down_proj"};

static bool is_off(const json_t *v) { // absent, null, false, "none", empty
    const char *s = json_string_value(v);
    return !v || json_is_null(v) || json_is_false(v) || (s && (!strcmp(s, "none") || !*s)) ||
           (json_is_object(v) && !json_object_size(v)) || (json_is_array(v) && !json_array_size(v));
}

static enum neb_status refuse(const char *file, const char *key, const json_t *v,
                              const char *needed) {
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    enum neb_status st = neb_fail(NEB_ERR_UNSUPPORTED, "%s: %s: %.80s cannot be imported: %s", file,
                                  key, text ? text : "(none)", needed);
    free(text);
    return st;
}

static enum neb_status read_targets(const char *file, const json_t *list,
                                    struct intra_trainable *out) {
    const json_t *v;
    size_t i;
    if (!json_array_size(list))
        return refuse(file, "target_modules", list,
                      "a list of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj is "
                      "needed");
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        int k = 0;
        while (k < INTRA_LORA_SLOTS &&
               (!json_is_string(v) || strcmp(modules[k], json_string_value(v))))
            k++;
        if (k == INTRA_LORA_SLOTS)
            return refuse(file, "target_modules", v,
                          "adapters sit on the linear layers of a block only");
        out->lora_targets |= 1u << k;
    }
    return NEB_OK;
}

static enum neb_status read_config(const char *file, const json_t *o, struct intra_trainable *out) {
    static const struct {
        const char *key, *needed;
    } off[] = {
        {"bias", "biases that learn beside the adapters would be needed"},
        {"use_dora", "DoRA (magnitudes of their own) would be needed"},
        {"use_rslora", "adapters are scaled by alpha / rank here; multiply lora_alpha by "
                       "sqrt(rank) and switch it off"},
        {"fan_in_fan_out", "transposed weights would be needed"},
        {"rank_pattern", "one rank for all adapters is needed"},
        {"alpha_pattern", "one alpha for all adapters is needed"},
        {"modules_to_save", "merge the adapter into its model first"},
        {"layers_to_transform", "adapters must be on all layers"},
        {"layer_replication", "layers that share weights would be needed"},
        {"exclude_modules", "adapters must be on all layers"},
        {"target_parameters", "adapters sit on the linear layers of a block only"},
        {"trainable_token_indices", "rows of the embedding that learn would be needed"},
        {"lora_bias", "a bias in the adapters would be needed"},
        {"use_qalora", "adapters of pooled inputs would be needed"},
        {"alora_invocation_tokens", "adapters that a token switches on would be needed"},
    };
    // PiSSA, OLoRA, CorDA and LoftQ take their start out of the base model's weights: with those as they are the adapter is another one.
    static const char *const starts[] = {"gaussian", "eva", "orthogonal"};
    const json_t *start = json_object_get(o, "init_lora_weights");
    bool plain = !start || json_is_null(start) || json_is_boolean(start);
    const char *type = json_string_value(json_object_get(o, "peft_type"));
    *out = (struct intra_trainable){.mode = INTRA_TRAIN_LORA};
    if (!type || strcmp(type, "LORA"))
        return refuse(file, "peft_type", json_object_get(o, "peft_type"), "only LORA is known");
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        if (!is_off(json_object_get(o, off[i].key)))
            return refuse(file, off[i].key, json_object_get(o, off[i].key), off[i].needed);
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        plain |= json_is_string(start) && !strcmp(json_string_value(start), starts[i]);
    if (!plain)
        return refuse(file, "init_lora_weights", start,
                      "it has changed the base model's weights; convert the adapter to plain LoRA "
                      "first");
    const json_t *r = json_object_get(o, "r"), *alpha = json_object_get(o, "lora_alpha");
    if (!json_is_integer(r) || json_integer_value(r) < 1 || json_integer_value(r) > 1024)
        return refuse(file, "r", r, "a rank from 1 to 1024 is needed");
    if (!json_is_number(alpha) || !(json_number_value(alpha) > 0) ||
        !(json_number_value(alpha) < 1e6))
        return refuse(file, "lora_alpha", alpha, "a number above 0 is needed");
    out->lora_rank = (int32_t)json_integer_value(r);
    out->lora_alpha = (float)json_number_value(alpha);
    return read_targets(file, json_object_get(o, "target_modules"), out);
}

enum neb_status intra_hf_peft_parse(const char *text, size_t len, const char *file,
                                    struct intra_trainable *out) {
    json_error_t e;
    json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (!o)
        return neb_fail(NEB_ERR_FORMAT, "%s:%d: %.160s", file, e.line, e.text);
    enum neb_status st = read_config(file, o, out);
    json_decref(o);
    return st;
}

enum neb_status intra_hf_peft_read(const char *dir, struct intra_trainable *out) {
    char path[NEB_PATH_MAX];
    struct neb_buf text = {0};
    NEB_TRY(neb_path(path, sizeof path, dir, "adapter_config.json"));
    enum neb_status st = neb_fs_read(path, INTRA_HF_JSON_MAX, &text);
    if (st == NEB_OK)
        st = intra_hf_peft_parse((const char *)text.p, text.len, path, out);
    neb_buf_free(&text);
    return st;
}

json_t *intra_hf_peft_json(const struct intra_trainable *t, const char *base) {
    json_t *list = json_array();
    for (int i = 0; i < INTRA_LORA_SLOTS; i++)
        if (t->lora_targets & 1u << i)
            json_array_append_new(list, json_string(modules[i]));
    return json_pack("{s:s,s:s,s:s?,s:i,s:f,s:f,s:s,s:b,s:b,s:o,s:b}", "peft_type", "LORA",
                     "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "r", t->lora_rank,
                     "lora_alpha", (double)t->lora_alpha, "lora_dropout", 0.0, "bias", "none",
                     "use_rslora", 0, "fan_in_fan_out", 0, "target_modules", list, "inference_mode",
                     1);
}
