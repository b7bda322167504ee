// SPDX-License-Identifier: Apache-2.0
#include "intra/hf/targets.h"
#include "agent/base/bytes.h"
#include "intra/hf/keys.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <math.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// Limits: steps of one match, matches of a file (both bound the time to seconds), bytes of an
// expression, bytes of a module's name.
enum { STEPS_MAX = 100000, MATCHES_MAX = 4 << 20, PATTERN_MAX = 4096, NAME_BYTES = 96 };

#define ALPHA_MAX 1e6f

const char *const intra_hf_linear[INTRA_LORA_SLOTS] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                       "gate_proj", "up_proj", "down_proj"};

// The other modules of a model, as named_modules() lists them. None of them can be adapted.
static const char *const others[] = {"model",      "model.embed_tokens", "model.layers",
                                     "model.norm", "model.rotary_emb",   "lm_head"};
static const char *const parts[] = {
    "", ".self_attn", ".mlp", ".mlp.act_fn", ".input_layernorm", ".post_attention_layernorm"};
enum { N_OTHERS = sizeof others / sizeof *others, N_PARTS = sizeof parts / sizeof *parts };

struct module {
    char name[NAME_BYTES];
    int32_t layer, slot; // slot -1: cannot be adapted
};

struct pattern {
    const char *text; // borrowed
    pcre2_code *code;
};
struct patterns {
    const char *key;
    struct pattern *p; // (n)
    size_t n;
};

struct reading {
    const json_t *config;
    const char *file;
    int32_t n_layers;
    pcre2_match_context *limits;
    pcre2_match_data *match;
    int32_t matches;
    // only the keys whose values are expressions
    struct patterns target, exclude, layers, rank, alpha;
    int32_t default_rank;
    double default_alpha;
    bool all_linear;
};

static enum neb_status wrong(const struct reading *r, const char *key, const char *needed) {
    return neb_fail(NEB_ERR_FORMAT, "%s: %s: %s", r->file, key, needed);
}

static const json_t *get(const struct reading *r, const char *key) { // NULL also for null
    const json_t *v = json_object_get(r->config, key);
    return json_is_null(v) ? NULL : v;
}

// ---- expressions --------------------------------------------------------------------------------

// "x{,3}" means "x{0,3}" in Python, but PCRE2 before 10.43 reads it as text.
static void add_pattern(struct neb_buf *b, const char *text) {
    for (const char *p = text; *p; p++) {
        neb_buf_u8(b, (uint8_t)*p);
        if (*p == '\\' && p[1])
            neb_buf_u8(b, (uint8_t) * ++p);
        else if (*p == '{' && p[1] == ',' && isdigit((unsigned char)p[2]))
            neb_buf_u8(b, '0');
    }
}

static enum neb_status compile(const struct reading *r, const char *key, const char *before,
                               const char *text, const char *behind, uint32_t how,
                               struct pattern *out) {
    struct neb_buf b = {0};
    PCRE2_UCHAR why[128] = "";
    int error;
    size_t at;
    out->text = text;
    if (strlen(text) > PATTERN_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%s: %s: an expression has %zu bytes; the limit is %d",
                        r->file, key, strlen(text), PATTERN_MAX);
    neb_buf_add(&b, before, strlen(before));
    add_pattern(&b, text);
    // with its NUL, so that an empty expression allocates too
    neb_buf_add(&b, behind, strlen(behind) + 1);
    if (b.oom)
        return neb_buf_check(&b);
    out->code =
        pcre2_compile(b.p, b.len - 1, how | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &at, NULL);
    neb_buf_free(&b);
    if (out->code)
        return NEB_OK;
    pcre2_get_error_message(error, why, sizeof why);
    return neb_fail(NEB_ERR_FORMAT, "%s: %s: '%.80s' is not a valid expression: %s", r->file, key,
                    text, (const char *)why);
}

static enum neb_status matches(struct reading *r, const char *key, const struct pattern *p,
                               const char *name, bool *out) {
    if (++r->matches > MATCHES_MAX)
        return neb_fail(NEB_ERR_LIMIT, "%s: %s: too many expressions to try on each layer", r->file,
                        key);
    int rc = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0, r->match, r->limits);
    *out = rc >= 0;
    return rc >= 0 || rc == PCRE2_ERROR_NOMATCH
               ? NEB_OK
               : neb_fail(NEB_ERR_LIMIT, "%s: %s: '%.80s' takes too many steps on '%s'", r->file,
                          key, p->text, name);
}

static enum neb_status patterns_make(struct patterns *s, const char *key, size_t n) {
    s->key = key;
    s->p = n ? calloc(n, sizeof *s->p) : NULL;
    return s->p || !n ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory reading %s", key);
}

static void patterns_free(struct patterns *s) {
    for (size_t i = 0; i < s->n; i++)
        pcre2_code_free(s->p[i].code);
    free(s->p);
}

// Reads target_modules or exclude_modules if the value is one expression.
static enum neb_status read_expression(const struct reading *r, const char *key,
                                       struct patterns *out) {
    const json_t *v = get(r, key);
    if (!json_is_string(v))
        return NEB_OK;
    NEB_TRY(patterns_make(out, key, 1));
    out->n = 1;
    return compile(r, key, "", json_string_value(v), "", PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                   out->p);
}

// The keys of rank_pattern or alpha_pattern are expressions that match the end of a name.
static enum neb_status read_pattern_keys(const struct reading *r, const char *key,
                                         struct patterns *out) {
    const json_t *o = get(r, key);
    const char *text;
    json_t *v;
    if (o && !json_is_object(o))
        return wrong(r, key, "an object is needed");
    NEB_TRY(patterns_make(out, key, json_object_size(o)));
    json_object_foreach((json_t *)(uintptr_t)o, text, v) {
        out->n++;
        NEB_TRY(compile(r, key, "(?:.*\\.)?(?:", text, ")$", PCRE2_ANCHORED, &out->p[out->n - 1]));
    }
    return NEB_OK;
}

static enum neb_status read_layers_pattern(const struct reading *r, struct patterns *out) {
    static const char key[] = "layers_pattern",
                      before[] = "(?:^|.*?\\.)(?:", behind[] = ")\\.\\d+\\.";
    const json_t *v = get(r, key);
    size_t n = json_is_string(v) ? json_string_length(v) > 0 : json_array_size(v);
    if (v && !json_is_string(v) && !json_is_array(v))
        return wrong(r, key, "a string or a list of strings is needed");
    NEB_TRY(patterns_make(out, key, n));
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_is_string(v) ? v : json_array_get(v, i));
        if (!text)
            return wrong(r, key, "a string or a list of strings is needed");
        out->n++;
        NEB_TRY(compile(r, key, before, text, behind, PCRE2_ANCHORED, &out->p[i]));
    }
    return NEB_OK;
}

// ---- one module ---------------------------------------------------------------------------------

static bool ends_with(const char *name, const char *end) { // in whole components of the name
    size_t n = strlen(name), k = strlen(end);
    return n > k && name[n - k - 1] == '.' && !strcmp(name + n - k, end);
}

static enum neb_status in_list(const struct reading *r, const char *key, const json_t *list,
                               const char *name, bool *whole, bool *end) {
    const json_t *v;
    size_t i;
    *whole = *end = false;
    json_array_foreach((json_t *)(uintptr_t)list, i, v) {
        if (!json_is_string(v))
            return wrong(r, key, "a list of names is needed");
        *whole = *whole || !strcmp(name, json_string_value(v));
        *end = *end || ends_with(name, json_string_value(v));
    }
    return NEB_OK;
}

static enum neb_status is_excluded(struct reading *r, const char *name, bool *out) {
    const json_t *v = get(r, "exclude_modules");
    bool whole, end;
    if (r->exclude.n)
        return matches(r, "exclude_modules", r->exclude.p, name, out);
    if (v && !json_is_array(v))
        return wrong(r, "exclude_modules", "an expression or a list of names is needed");
    NEB_TRY(in_list(r, "exclude_modules", v, name, &whole, &end));
    *out = whole || end;
    return NEB_OK;
}

// Applies layers_to_transform, which narrows the modules that were found by the end of their name.
static enum neb_status is_of_layers(struct reading *r, const struct module *m, bool *out) {
    static const char key[] = "layers_to_transform";
    const json_t *v = get(r, key), *one;
    bool found = !r->layers.n;
    size_t i;
    *out = !v || (json_is_array(v) && !json_array_size(v));
    if (*out)
        return NEB_OK;
    if (!json_is_array(v) && !json_is_integer(v))
        return wrong(r, key, "a number, or a list of numbers, is needed");
    for (i = 0; i < r->layers.n && !found; i++)
        NEB_TRY(matches(r, r->layers.key, &r->layers.p[i], m->name, &found));
    if (!found || m->layer < 0 || m->slot < 0)
        return NEB_OK;
    *out = json_is_integer(v) && json_integer_value(v) == m->layer;
    json_array_foreach((json_t *)(uintptr_t)v, i, one) {
        if (!json_is_integer(one))
            return wrong(r, key, "a number, or a list of numbers, is needed");
        *out = *out || json_integer_value(one) == m->layer;
    }
    return NEB_OK;
}

static enum neb_status is_target(struct reading *r, const struct module *m, bool *out) {
    static const char key[] = "target_modules";
    bool excluded, whole, end;
    *out = false;
    NEB_TRY(is_excluded(r, m->name, &excluded));
    if (excluded)
        return NEB_OK;
    if (r->all_linear) {
        *out = m->slot >= 0;
        return NEB_OK;
    }
    if (r->target.n)
        return matches(r, key, r->target.p, m->name, out);
    if (!get(r, key)) { // PEFT's default for these classes
        *out = m->slot == 0 || m->slot == 2;
        return *out ? is_of_layers(r, m, out) : NEB_OK;
    }
    NEB_TRY(in_list(r, key, get(r, key), m->name, &whole, &end));
    *out = whole || end;
    return end && !whole ? is_of_layers(r, m, out) : NEB_OK;
}

// The value of rank_pattern or alpha_pattern for a module. *out does not change if there is none.
static enum neb_status pattern_value(struct reading *r, const struct patterns *s, const char *name,
                                     const json_t **out) {
    bool found = false;
    for (size_t i = 0; i < s->n && !found; i++) {
        NEB_TRY(matches(r, s->key, &s->p[i], name, &found));
        if (found)
            *out = json_object_get(get(r, s->key), s->p[i].text);
    }
    return NEB_OK;
}

static enum neb_status rank_of(const struct reading *r, const char *key, const json_t *v,
                               int32_t *out) {
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1024)
        return intra_hf_refuse(r->file, key, v, "a rank from 1 to 1024 is needed");
    *out = (int32_t)json_integer_value(v);
    return NEB_OK;
}

static enum neb_status alpha_of(const struct reading *r, const char *key, const json_t *v,
                                double *out) {
    *out = json_number_value(v);
    return json_is_number(v) && *out > 0 && *out < (double)ALPHA_MAX
               ? NEB_OK
               : intra_hf_refuse(r->file, key, v, "a number above 0 and below 1e6 is needed");
}

// Rank and alpha of a module: its own, or the defaults.
static enum neb_status size_of(struct reading *r, const char *name, int32_t *rank, double *alpha) {
    const json_t *v = NULL, *w = NULL;
    *rank = r->default_rank;
    *alpha = r->default_alpha;
    NEB_TRY(pattern_value(r, &r->rank, name, &v));
    NEB_TRY(pattern_value(r, &r->alpha, name, &w));
    if (v)
        NEB_TRY(rank_of(r, "rank_pattern", v, rank));
    return w ? alpha_of(r, "alpha_pattern", w, alpha) : NEB_OK;
}

// ---- all modules --------------------------------------------------------------------------------

// Module i of the model; false: there are no more.
static bool module_at(const struct reading *r, int32_t i, struct module *m) {
    const int32_t each = N_PARTS + INTRA_LORA_SLOTS;
    *m = (struct module){.layer = -1, .slot = -1};
    if (i < N_OTHERS) {
        snprintf(m->name, sizeof m->name, "%s", others[i]);
        return true;
    }
    m->layer = (i - N_OTHERS) / each;
    int32_t k = (i - N_OTHERS) % each;
    m->slot = k < N_PARTS ? -1 : k - N_PARTS;
    if (m->slot < 0)
        snprintf(m->name, sizeof m->name, "model.layers.%d%s", m->layer, parts[k]);
    else
        snprintf(m->name, sizeof m->name, "model.layers.%d.%s.%s", m->layer,
                 m->slot < 4 ? "self_attn" : "mlp", intra_hf_linear[m->slot]);
    return m->layer < r->n_layers;
}

struct found {
    // how many layers have an adapter here, and the last that has one
    int32_t layers[INTRA_LORA_SLOTS], last[INTRA_LORA_SLOTS];
    int32_t rank; // 0: none yet
    double alpha;
    char first[NAME_BYTES]; // the module that rank and alpha come from
};

static enum neb_status take(struct reading *r, const struct module *m, struct found *f) {
    int32_t rank;
    double alpha;
    if (m->slot < 0)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "%s: target_modules names '%s'; adapters are supported only on the linear "
                        "layers of a block",
                        r->file, m->name);
    NEB_TRY(size_of(r, m->name, &rank, &alpha));
    f->layers[m->slot]++;
    f->last[m->slot] = m->layer;
    if (!f->rank) {
        f->rank = rank;
        f->alpha = alpha;
        memcpy(f->first, m->name, sizeof f->first);
    }
    if (rank != f->rank)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "%s: rank_pattern: the adapter of '%s' has rank %d, that of '%s' has %d; "
                        "all adapters must have the same rank",
                        r->file, m->name, rank, f->first, f->rank);
    if (alpha != f->alpha)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "%s: alpha_pattern: the adapter of '%s' has alpha %g, that of '%s' has %g; "
                        "all adapters must have the same alpha",
                        r->file, m->name, alpha, f->first, f->alpha);
    return NEB_OK;
}

// Refuses a file that puts an adapter on some layers only; names the key that says so.
static enum neb_status not_alike(const struct reading *r, const struct found *f, int slot) {
    const char *key = get(r, "layers_to_transform") ? "layers_to_transform"
                      : get(r, "exclude_modules")   ? "exclude_modules"
                                                    : "target_modules";
    return neb_fail(NEB_ERR_UNSUPPORTED,
                    "%s: %s: %d of %d layers have an adapter on %s (layer %d has one); all layers "
                    "must have the same adapters",
                    r->file, key, f->layers[slot], r->n_layers, intra_hf_linear[slot],
                    f->last[slot]);
}

static enum neb_status find_all(struct reading *r, struct intra_trainable *out) {
    struct found f = {.rank = 0};
    struct module m;
    bool on;
    for (int32_t i = 0; module_at(r, i, &m); i++) {
        NEB_TRY(is_target(r, &m, &on));
        if (on)
            NEB_TRY(take(r, &m, &f));
    }
    if (!f.rank)
        return intra_hf_refuse(r->file, "target_modules",
                               json_object_get(r->config, "target_modules"),
                               "it names no linear layer of this model (q_proj, k_proj, v_proj, "
                               "o_proj, gate_proj, up_proj, down_proj)");
    for (int k = 0; k < INTRA_LORA_SLOTS; k++) {
        if (f.layers[k] && f.layers[k] < r->n_layers)
            return not_alike(r, &f, k);
        out->lora_targets |= f.layers[k] ? 1u << k : 0;
    }
    out->lora_rank = f.rank;
    bool stabilised = json_is_true(get(r, "use_rslora")); // alpha / sqrt(rank), not alpha / rank
    out->lora_alpha = (float)(f.alpha * (stabilised ? sqrt(f.rank) : 1));
    return out->lora_alpha > 0 && out->lora_alpha < ALPHA_MAX
               ? NEB_OK
               : intra_hf_refuse(r->file, "lora_alpha", json_object_get(r->config, "lora_alpha"),
                                 "a number above 0 and below 1e6 is needed, also after use_rslora "
                                 "multiplies it by the square root of the rank");
}

static enum neb_status read_all(struct reading *r, struct intra_trainable *out) {
    const json_t *target = get(r, "target_modules"), *v;
    if (target && !json_is_array(target) && !json_is_string(target))
        return wrong(r, "target_modules", "an expression or a list of names is needed");
    if (json_is_string(target) && (get(r, "layers_to_transform") || get(r, "layers_pattern")))
        return wrong(r, "layers_to_transform",
                     "PEFT allows it only with a list of names in target_modules");
    r->default_rank = 8;
    r->default_alpha = 8; // defaults of PEFT's LoraConfig
    if ((v = json_object_get(r->config, "r")))
        NEB_TRY(rank_of(r, "r", v, &r->default_rank));
    if ((v = json_object_get(r->config, "lora_alpha")))
        NEB_TRY(alpha_of(r, "lora_alpha", v, &r->default_alpha));
    r->all_linear = json_is_string(target) && !strcasecmp(json_string_value(target), "all-linear");
    if (!r->all_linear)
        NEB_TRY(read_expression(r, "target_modules", &r->target));
    NEB_TRY(read_expression(r, "exclude_modules", &r->exclude));
    NEB_TRY(read_layers_pattern(r, &r->layers));
    if (r->layers.n && !get(r, "layers_to_transform"))
        return wrong(r, "layers_pattern", "PEFT allows it only with layers_to_transform");
    NEB_TRY(read_pattern_keys(r, "rank_pattern", &r->rank));
    NEB_TRY(read_pattern_keys(r, "alpha_pattern", &r->alpha));
    return find_all(r, out);
}

enum neb_status intra_hf_targets_read(const json_t *config, const char *file, int32_t n_layers,
                                      struct intra_trainable *out) {
    struct reading r = {.config = config,
                        .file = file,
                        .n_layers = n_layers,
                        .limits = pcre2_match_context_create(NULL),
                        .match = pcre2_match_data_create(1, NULL)};
    enum neb_status st = NEB_ERR_NOMEM;
    out->lora_targets = 0;
    if (r.limits && r.match) {
        pcre2_set_match_limit(r.limits, STEPS_MAX);
        pcre2_set_depth_limit(r.limits, STEPS_MAX);
        st = read_all(&r, out);
    } else {
        st = neb_fail(st, "out of memory reading %s", file);
    }
    patterns_free(&r.target);
    patterns_free(&r.exclude);
    patterns_free(&r.layers);
    patterns_free(&r.rank);
    patterns_free(&r.alpha);
    pcre2_match_data_free(r.match);
    pcre2_match_context_free(r.limits);
    return st;
}
