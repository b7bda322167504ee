// SPDX-License-Identifier: Apache-2.0
#include "intra/hf/config.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "intra/hf/keys.h"
#include "intra/model/rope.h"
#include "intra/read/folder.h"
#include "intra/read/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct reading {
    const json_t *root;
    const char *file;
    const struct intra_hf_class *class;
    struct intra_hf_config *out;
};

static enum neb_status wrong(const struct reading *r, const char *key, const char *what) {
    return neb_fail(NEB_ERR_FORMAT, "%s: %s: %s", r->file, key, what);
}

static enum neb_status unsupported(const struct reading *r, const char *key, const json_t *v,
                                   const char *needed) {
    return intra_hf_refuse(r->file, key, v, needed);
}

static const json_t *get(const struct reading *r, const char *key) { // NULL also for null
    const json_t *v = json_object_get(r->root, key);
    return json_is_null(v) ? NULL : v;
}

// ---- values -------------------------------------------------------------------------------------

// preset: the value if the key is missing or null.
static enum neb_status get_int(const struct reading *r, const char *key, int32_t preset,
                               int32_t *out) {
    const json_t *v = get(r, key);
    *out = preset;
    if (!v)
        return NEB_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > INT32_MAX)
        return wrong(r, key, "a whole number from 1 to 2147483647 is needed");
    *out = (int32_t)json_integer_value(v);
    return NEB_OK;
}

static enum neb_status get_float(const struct reading *r, const json_t *v, const char *key,
                                 float preset, float *out) {
    *out = preset;
    if (!v || json_is_null(v))
        return NEB_OK;
    double d = json_number_value(v);
    if (!json_is_number(v) || !(d > 0) || !(d < 1e30))
        return wrong(r, key, "a number above 0 and below 1e30 is needed");
    *out = (float)d;
    return NEB_OK;
}

// false if the key is missing
static enum neb_status get_bool(const struct reading *r, const char *key, bool *out) {
    const json_t *v = get(r, key);
    *out = json_is_true(v);
    return !v || json_is_boolean(v) ? NEB_OK : wrong(r, key, "true or false is needed");
}

// A token id: a number, or the first of a list. A bad value only warns, as transformers does; here
// the ids only mark the end of a document.
static int32_t token_id(const struct reading *r, const char *key, int32_t preset) {
    const json_t *v = json_object_get(r->root, key);
    int32_t vocab = r->out->model.vocab;
    if (!v)
        return preset < vocab ? preset : -1;
    v = json_is_array(v) ? json_array_get(v, 0) : v;
    if (!v || json_is_null(v))
        return -1;
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    if (id >= 0 && id < vocab)
        return (int32_t)id;
    neb_warn("%s: %s is not an id from 0 to %d: the model is read as one without this token",
             r->file, key, vocab - 1);
    return -1;
}

// ---- sections -----------------------------------------------------------------------------------

static enum neb_status read_arch(struct reading *r) {
    const char *type = json_string_value(get(r, "model_type"));
    const json_t *list = get(r, "architectures");
    int i = 0;
    if (!type)
        return wrong(r, "model_type", "is missing: is this the config.json of a model?");
    while (intra_hf_classes[i].type && strcmp(intra_hf_classes[i].type, type))
        i++;
    r->class = &intra_hf_classes[i];
    if (!r->class->type)
        return unsupported(r, "model_type", get(r, "model_type"),
                           strstr(type, "moe") || strstr(type, "mixtral")
                               ? "layers of experts (MoE) would be needed; llama, mistral and "
                                 "qwen2 can be read"
                               : "another architecture; llama, mistral and qwen2 can be read");
    r->out->arch = (enum intra_hf_arch)i;
    const char *name = json_string_value(json_array_get(list, 0));
    bool none = json_is_array(list) && !json_array_size(list);
    if (list && !none && (!name || strcmp(name, r->class->architecture)))
        return unsupported(
            r, "architectures", list,
            "only a causal language model (…ForCausalLM) can be read, because of its output layer");
    return intra_hf_keys_check(r->root, r->file, r->out->arch);
}

// null means as many as heads, whatever default the class has for a missing key.
static enum neb_status read_kv_heads(struct reading *r) {
    struct intra_model_config *m = &r->out->model;
    bool left_out = !json_object_get(r->root, "num_key_value_heads");
    int32_t preset = left_out && r->class->n_kv_heads ? r->class->n_kv_heads : m->n_heads;
    NEB_TRY(get_int(r, "num_key_value_heads", preset, &m->n_kv_heads));
    if (!left_out || m->n_heads % m->n_kv_heads == 0)
        return NEB_OK;
    return neb_fail(NEB_ERR_FORMAT,
                    "%s: num_key_value_heads is missing, so it is %d for %s, but "
                    "num_attention_heads is %d, not a multiple of it",
                    r->file, m->n_kv_heads, r->class->type, m->n_heads);
}

static enum neb_status read_shape(struct reading *r) {
    struct intra_model_config *m = &r->out->model;
    NEB_TRY(get_int(r, "vocab_size", r->class->vocab, &m->vocab));
    NEB_TRY(get_int(r, "hidden_size", r->class->d_model, &m->d_model));
    NEB_TRY(get_int(r, "num_hidden_layers", r->class->n_layers, &m->n_layers));
    NEB_TRY(get_int(r, "num_attention_heads", r->class->n_heads, &m->n_heads));
    NEB_TRY(read_kv_heads(r));
    NEB_TRY(get_int(r, "intermediate_size", r->class->d_ff, &m->d_ff));
    NEB_TRY(get_int(r, "max_position_embeddings", r->class->max_positions, &r->out->max_positions));
    NEB_TRY(get_int(r, "head_dim", 0, &m->head_dim));
    if (!m->head_dim) {
        if (m->d_model % m->n_heads)
            return wrong(r, "head_dim",
                         "is missing, and hidden_size is not a multiple of num_attention_heads");
        m->head_dim = m->d_model / m->n_heads;
    }
    NEB_TRY(get_float(r, get(r, "rms_norm_eps"), "rms_norm_eps", 1e-6f, &m->norm_eps));
    return get_bool(r, "tie_word_embeddings", &m->tied);
}

// 0 if missing or not a number. A larger value is clamped to 32 bits, and no key allows such a
// value.
static double rope_number(const json_t *o, const char *key) {
    return fmax(fmin(json_number_value(json_object_get(o, key)), INT32_MAX), INT32_MIN);
}

// Like transformers, it ignores values that the type does not use.
static enum neb_status read_rope_scaling(const struct reading *r, const char *key, const json_t *o,
                                         struct kern_rope_scaling *out) {
    char why[INTRA_ROPE_TEXT], path[64];
    if (out->type != KERN_ROPE_DEFAULT)
        out->factor = (float)rope_number(o, "factor");
    if (out->type == KERN_ROPE_LLAMA3) {
        bool left_out = !json_object_get(o, "original_max_position_embeddings");
        double original = left_out ? r->out->max_positions // as in transformers
                                   : rope_number(o, "original_max_position_embeddings");
        out->low = (float)rope_number(o, "low_freq_factor");
        out->high = (float)rope_number(o, "high_freq_factor");
        out->original = original == floor(original) ? (int32_t)original : 0;
    }
    const char *bad = intra_rope_check(out, why);
    if (!bad)
        return NEB_OK;
    snprintf(path, sizeof path, "%s.%s", key, bad);
    return wrong(r, path, why);
}

// Other known keys belong to types that are refused. A nested object means different values for
// some layers.
static enum neb_status check_rope_keys(const struct reading *r, const char *key, const json_t *o) {
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "original_max_position_embeddings",
                                        "partial_rotary_factor",
                                        "attention_factor",
                                        "beta_fast",
                                        "beta_slow",
                                        "short_factor",
                                        "long_factor",
                                        "mscale",
                                        "mscale_all_dim",
                                        "truncate",
                                        NULL};
    const char *name;
    json_t *v;
    json_object_foreach(
        (json_t *)(uintptr_t)o, name,
        v) if (json_is_object(v) &&
               !json_object_get(v,
                                "__float__")) return unsupported(r, key, o,
                                                                 "rotary positions that differ "
                                                                 "between layers would be needed");
    intra_hf_keys_warn(o, r->file, key, known);
    return NEB_OK;
}

static enum neb_status read_rope_object(const struct reading *r, const char *key, const json_t *o,
                                        struct kern_rope_scaling *out) {
    const json_t *type = json_object_get(o, "rope_type");
    int known = KERN_ROPE_DEFAULT;
    if (!json_is_object(o) || json_object_get(o, "__float__"))
        return wrong(r, key, "an object or null is needed");
    NEB_TRY(check_rope_keys(r, key, o));
    type = type ? type : json_object_get(o, "type");
    while (type && intra_rope_types[known] &&
           (!json_is_string(type) || strcmp(json_string_value(type), intra_rope_types[known])))
        known++;
    if (!intra_rope_types[known])
        return unsupported(r, key, o,
                           "rotary positions must have rope_type default, linear or llama3");
    const json_t *part = json_object_get(o, "partial_rotary_factor");
    if (part && json_number_value(part) != 1)
        return unsupported(r, key, o, "rotation of a part of each head would be needed");
    if (!type && json_object_get(o, "factor"))
        return unsupported(r, key, o, "scaled rotary positions need a rope_type");
    *out = (struct kern_rope_scaling){.type = (enum kern_rope_type)known};
    return read_rope_scaling(r, key, o, out);
}

// Older files have rope_theta and rope_scaling, newer ones rope_parameters with both. If a file has
// all, transformers 5 ignores rope_parameters unless rope_scaling is empty. An object without its
// own rope_theta takes the outer one.
static enum neb_status read_rope(struct reading *r) {
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    const json_t *theta = NULL;
    for (int i = 0; i < 2; i++) {
        const json_t *o = get(r, keys[i]);
        struct kern_rope_scaling scaling;
        if (!o)
            continue;
        NEB_TRY(read_rope_object(r, keys[i], o, &scaling));
        if (i == 0 || json_object_size(o)) {
            theta = json_object_get(o, "rope_theta");
            r->out->model.rope_scaling = scaling;
        }
    }
    theta = theta ? theta : get(r, "rope_theta");
    const struct kern_rope_scaling *s = &r->out->model.rope_scaling;
    const json_t *outer = get(r, "original_max_position_embeddings"); // as in Phi 3
    if (s->type == KERN_ROPE_LLAMA3 && outer && json_number_value(outer) != s->original)
        return wrong(r, "original_max_position_embeddings",
                     "differs from the number beside `factor`, and transformers would use this "
                     "one; make them equal");
    const json_t *part = get(r, "partial_rotary_factor");
    if (part && json_number_value(part) != 1)
        return unsupported(r, "partial_rotary_factor", part,
                           "rotation of a part of each head would be needed");
    return get_float(r, theta, "rope_theta", 10000, &r->out->model.rope_theta);
}

// Files that nanotron converted (SmolLM) say how the numbers of a head are paired.
static enum neb_status read_pairs(struct reading *r) {
    bool interleaved;
    NEB_TRY(get_bool(r, "rope_interleaved", &interleaved));
    return interleaved ? unsupported(r, "rope_interleaved", get(r, "rope_interleaved"),
                                     "rotary pairs must be (i, i + head_dim / 2); weights would "
                                     "have to be permuted")
                       : NEB_OK;
}

static enum neb_status read_block(struct reading *r) {
    static const char *const biases[] = {"attention_bias", "mlp_bias"};
    const json_t *act = get(r, "hidden_act");
    const char *name = json_string_value(act);
    if (act && (!name || (strcmp(name, "silu") && strcmp(name, "swish"))))
        return unsupported(r, "hidden_act", act, "the feed-forward layer is SwiGLU (silu)");
    // the other classes ignore these keys
    for (int i = 0; i < 2 && r->out->arch == INTRA_HF_LLAMA; i++) {
        bool on;
        NEB_TRY(get_bool(r, biases[i], &on));
        if (on)
            return unsupported(r, biases[i], get(r, biases[i]),
                               "a bias on the output projections would be needed; only query, key "
                               "and value can have one");
    }
    r->out->model.qkv_bias = r->out->arch == INTRA_HF_QWEN2;
    return NEB_OK;
}

// *out: some layer attends within a window. layer_types decides if present.
static enum neb_status has_window(struct reading *r, bool *out) {
    const json_t *layers = get(r, "layer_types"), *v;
    int32_t from;
    size_t i;
    *out = r->out->arch == INTRA_HF_MISTRAL;
    if (r->out->arch == INTRA_HF_QWEN2) {
        NEB_TRY(get_bool(r, "use_sliding_window", out));
        v = get(r, "max_window_layers"); // 0 is allowed
        from = json_is_integer(v) && !json_integer_value(v) ? 0 : -1;
        if (from)
            NEB_TRY(get_int(r, "max_window_layers", 28, &from));
        *out = *out && !layers && from < r->out->model.n_layers;
    }
    json_array_foreach((json_t *)(uintptr_t)layers, i, v) {
        const char *type = json_is_string(v) ? json_string_value(v) : "";
        if (!strcmp(type, "sliding_attention"))
            *out = true;
        else if (strcmp(type, "full_attention") && strcmp(type, "attention"))
            return unsupported(r, "layer_types", v, "another kind of attention would be needed");
    }
    return NEB_OK;
}

// Sequences up to the window are not affected by it.
static enum neb_status read_window(struct reading *r) {
    bool used;
    NEB_TRY(has_window(r, &used));
    r->out->window = 0;
    if (!used || r->out->arch == INTRA_HF_LLAMA)
        return NEB_OK;
    bool left_out = !json_object_get(r->root, "sliding_window");
    return get_int(r, "sliding_window", left_out ? r->class->window : 0, &r->out->window);
}

static void set_length(struct reading *r) {
    struct intra_hf_config *c = r->out;
    c->model.max_seq = c->max_positions;
    if (c->window && c->window < c->model.max_seq)
        c->model.max_seq = c->window;
    if (c->model.max_seq > 1 << 18) // limit of the rotary table at any head size
        c->model.max_seq = 1 << 18;
}

static enum neb_status read_all(struct reading *r) {
    NEB_TRY(read_arch(r));
    NEB_TRY(read_shape(r));
    NEB_TRY(read_rope(r));
    NEB_TRY(read_pairs(r));
    NEB_TRY(read_block(r));
    NEB_TRY(read_window(r));
    set_length(r);
    r->out->bos = token_id(r, "bos_token_id", r->class->bos);
    r->out->eos = token_id(r, "eos_token_id", r->class->eos);
    enum neb_status st = intra_model_config_check(&r->out->model);
    return st == NEB_OK ? st : neb_fail(st, "%s: this model cannot be built (see above)", r->file);
}

enum neb_status intra_hf_config_parse(const char *text, size_t len, const char *file,
                                      struct intra_hf_config *out) {
    json_t *root;
    *out = (struct intra_hf_config){.model.mask = KERN_MASK_CAUSAL};
    NEB_TRY(intra_json_parse(text, len, file, &root));
    struct reading r = {root, file, NULL, out};
    enum neb_status st =
        json_is_object(root) ? read_all(&r) : wrong(&r, "file", "is not a JSON object");
    json_decref(root);
    return st;
}

enum neb_status intra_hf_config_read(const char *dir, struct intra_hf_config *out) {
    char path[NEB_PATH_MAX];
    struct neb_buf text = {0};
    bool model, adapter;
    NEB_TRY(intra_folder_file(dir, "adapter_config.json", path, sizeof path, &adapter));
    NEB_TRY(intra_folder_file(dir, "config.json", path, sizeof path, &model));
    if (!model && adapter)
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "%s holds a PEFT adapter and no model: import the model that the adapter "
                        "is for, with --adapter %s",
                        dir, dir);
    if (!model)
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "%s: there is no config.json; name a Hugging Face model folder "
                        "(config.json and *.safetensors)",
                        dir);
    enum neb_status st = neb_fs_read(path, INTRA_HF_JSON_MAX, &text);
    if (st == NEB_OK)
        st = intra_hf_config_parse((const char *)text.p, text.len, path, out);
    neb_buf_free(&text);
    return st;
}
