// SPDX-License-Identifier: Apache-2.0
// What Hugging Face folders may contain and what is refused: config.json, adapter_config.json,
// tensors. The layout from a checkpoint's description equals that of intra_model_load().
#include "intra/hf/hf.h"
#include "intra/model/rope.h"
#include "intra/train/trainer.h"
#include "tests/unit/scratch.h"

#include <math.h>
#include <string.h>

static char warning[2048];

static void keep(void *user, enum neb_log_level level, const char *text) {
    if (!strstr(text, "see above"))
        scratch_keep(user, level, text);
    if (level == NEB_LOG_WARN)
        snprintf(warning, sizeof warning, "%s", text);
}

static const char *in(char *out, const char *name) {
    snprintf(out, NEB_PATH_MAX, "%s/%s", dir, name);
    return out;
}

// ---- config.json

#define SHAPE                                                                                      \
    "\"vocab_size\":32,\"hidden_size\":8,\"num_hidden_layers\":2,\"num_attention_heads\":2,"       \
    "\"intermediate_size\":12,\"max_position_embeddings\":64"
#define LLAMA          "{\"model_type\":\"llama\"," SHAPE
#define MISTRAL        "{\"model_type\":\"mistral\",\"num_key_value_heads\":2," SHAPE
#define QWEN2          "{\"model_type\":\"qwen2\",\"num_key_value_heads\":2," SHAPE
#define LLAMA3(values) LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\"," values "}}"
#define ORIGINAL       "\"original_max_position_embeddings\":8192"

static enum neb_status parse(const char *text, struct intra_hf_config *c) {
    message[0] = 0;
    return intra_hf_config_parse(text, strlen(text), "config.json", c);
}

static void test_config_values(void **state) {
    (void)state;
    struct intra_hf_config c;
    assert_int_equal(parse(LLAMA "}", &c), NEB_OK); // missing keys have the class's defaults
    assert_true(c.arch == INTRA_HF_LLAMA && c.model.vocab == 32 && c.model.d_model == 8 &&
                c.model.n_layers == 2 && c.model.n_heads == 2 && c.model.n_kv_heads == 2 &&
                c.model.head_dim == 4 && c.model.d_ff == 12 && c.model.max_seq == 64 &&
                c.model.rope_theta == 10000 && c.model.norm_eps == 1e-6f && !c.model.tied &&
                !c.model.qkv_bias && c.window == 0 && c.bos == 1 && c.eos == 2);
    assert_int_equal(
        parse(LLAMA ",\"num_key_value_heads\":1,\"head_dim\":6,\"rope_theta\":5e5,"
                    "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true,\"rope_scaling\":null,"
                    "\"bos_token_id\":1,\"eos_token_id\":[7,9],\"architectures\":"
                    "[\"LlamaForCausalLM\"],\"hidden_act\":\"silu\",\"sliding_window\":4}",
              &c),
        NEB_OK);
    assert_true(c.model.n_kv_heads == 1 && c.model.head_dim == 6 && c.model.rope_theta == 5e5f &&
                c.model.norm_eps == 1e-5f && c.model.tied && c.bos == 1 && c.eos == 7 &&
                c.window == 0);
    assert_int_equal(parse(LLAMA ",\"rope_theta\":5,\"rope_parameters\":{\"rope_type\":"
                                 "\"default\",\"rope_theta\":1e6},\"eos_token_id\":32}",
                           &c),
                     NEB_OK);
    assert_true(c.model.rope_theta == 1e6f && c.eos == -1); // 32 is outside the vocabulary
    // with both objects the older one counts, as in transformers 5, unless it is empty
    static const struct {
        const char *text;
        float theta;
    } both[] = {
        {"\"rope_scaling\":{\"rope_type\":\"default\",\"rope_theta\":7e4},", 7e4f},
        {"\"rope_scaling\":{\"rope_type\":\"default\"},", 1e4f},
        {"\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"default\"},", 5e5f},
        {"\"rope_theta\":5e5,\"rope_scaling\":{},", 1e6f},
        {"\"rope_theta\":5e5,\"rope_scaling\":null,", 1e6f},
    };
    for (size_t i = 0; i < sizeof both / sizeof both[0]; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 LLAMA ",%s\"rope_parameters\":{\"rope_type\":\"default\","
                       "\"rope_theta\":1e6}}",
                 both[i].text);
        assert_int_equal(parse(text, &c), NEB_OK);
        if (c.model.rope_theta != both[i].theta)
            fail_msg("%s: rope_theta %g", text, (double)c.model.rope_theta);
    }
    assert_int_equal(parse(QWEN2 ",\"sliding_window\":8}", &c), NEB_OK);
    assert_true(c.arch == INTRA_HF_QWEN2 && c.model.qkv_bias && c.window == 0);
    // Qwen2: layers from max_window_layers (default 28) on have the window. layer_types overrides
    // this
    static const struct {
        const char *text;
        int32_t window;
    } windows[] = {
        {QWEN2 ",\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":1}", 8},
        {QWEN2 ",\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":0}", 8},
        {QWEN2 ",\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":2}", 0},
        {QWEN2 ",\"sliding_window\":8,\"use_sliding_window\":true}", 0},
        {QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":1}", 4096},
        {QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":0,\"sliding_window\":8,"
               "\"layer_types\":[\"full_attention\",\"attention\"]}",
         0},
        {QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":8,"
               "\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         8},
        {MISTRAL "}", 4096},
        {MISTRAL ",\"sliding_window\":null}", 0},
        {MISTRAL ",\"sliding_window\":9}", 9},
        {LLAMA ",\"sliding_window\":9}", 0},
    };
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        int32_t w = windows[i].window;
        assert_int_equal(parse(windows[i].text, &c), NEB_OK);
        if (c.window != w || c.model.max_seq != (w && w < 64 ? w : 64) || c.max_positions != 64)
            fail_msg("%s: window %d, sequences of %d", windows[i].text, c.window, c.model.max_seq);
    }
}

// Missing keys have the defaults of the class in transformers.
static void test_config_defaults(void **state) {
    (void)state;
    enum { N = 12 };
    static const struct {
        const char *text;
        enum intra_hf_arch arch;
        // vocabulary, width, layers, heads, key and value heads, head_dim, feed-forward, longest
        // sequence; positions, window, BOS, EOS
        int32_t want[N];
    } all[] = {
        {"{\"model_type\":\"llama\"}",
         INTRA_HF_LLAMA,
         {32000, 4096, 32, 32, 32, 128, 11008, 2048, 2048, 0, 1, 2}},
        {"{\"model_type\":\"mistral\"}",
         INTRA_HF_MISTRAL,
         {32000, 4096, 32, 32, 8, 128, 14336, 4096, 131072, 4096, 1, 2}},
        {"{\"model_type\":\"mistral\",\"sliding_window\":null,\"num_key_value_heads\":null}",
         INTRA_HF_MISTRAL,
         {32000, 4096, 32, 32, 32, 128, 14336, 131072, 131072, 0, 1, 2}},
        {"{\"model_type\":\"qwen2\"}",
         INTRA_HF_QWEN2,
         {151936, 4096, 32, 32, 32, 128, 22016, 32768, 32768, 0, -1, -1}},
        {"{\"model_type\":\"qwen2\",\"num_attention_heads\":64,\"hidden_size\":null}",
         INTRA_HF_QWEN2,
         {151936, 4096, 32, 64, 32, 64, 22016, 32768, 32768, 0, -1, -1}},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct intra_hf_config c;
        warning[0] = 0;
        if (parse(all[i].text, &c) != NEB_OK)
            fail_msg("%s: %s", all[i].text, message);
        const struct intra_model_config *m = &c.model;
        const int32_t got[N] = {m->vocab,        m->d_model,  m->n_layers, m->n_heads,
                                m->n_kv_heads,   m->head_dim, m->d_ff,     m->max_seq,
                                c.max_positions, c.window,    c.bos,       c.eos};
        for (int k = 0; k < N; k++)
            if (got[k] != all[i].want[k])
                fail_msg("%s: number %d is %d, not %d", all[i].text, k, got[k], all[i].want[k]);
        assert_true(c.arch == all[i].arch && m->norm_eps == 1e-6f && m->rope_theta == 10000 &&
                    !m->tied && m->rope_scaling.type == KERN_ROPE_DEFAULT && !warning[0]);
        assert_int_equal(m->qkv_bias, c.arch == INTRA_HF_QWEN2);
    }
}

// Odd values that Python writes in unused keys are no reason to refuse a model. Unknown keys are
// named.
static void test_config_keys(void **state) {
    (void)state;
    static const struct {
        const char *text, *warns; // NULL: no warning
    } all[] = {
        {LLAMA
         ",\"max_length\":1000000000000000019884624838656,\"name_or_path\":\"a\\u0000\\ud83d\"}",
         NULL},
        {"\xef\xbb\xbf" LLAMA ",\"temperature\":NaN,\"top_p\":1e999}", NULL},
        {LLAMA ",\"time_step_limit\":[0.0,Infinity,-Infinity]}",
         "time_step_limit: unknown, and ignored"},
        {LLAMA ",\"hidden_size\":1e999,\"hidden_size\":8}", NULL}, // the last one counts
        {LLAMA ",\"is_causal\":true,\"attention_dropout\":0.0,\"logit_scale\":1,"
               "\"logits_scaling\":1.0,\"final_logit_softcapping\":null,\"pruned_heads\":{},"
               "\"quantization_config\":null,\"no_rope_layers\":[],\"num_experts\":0,"
               "\"architectures\":[]}",
         NULL},
        {LLAMA ",\"attention_dropout\":0.1}", "attention_dropout: ignored, because training"},
        {LLAMA ",\"attention_dropout\":Infinity}", "attention_dropout: ignored, because training"},
        {LLAMA ",\"is_causul\":false,\"my_scale\":3}", "is_causul, my_scale: unknown, and ignored"},
        // Llama has no such key
        {LLAMA ",\"sliding_window\":7}", "sliding_window: unknown, and ignored"},
        {MISTRAL ",\"attention_bias\":true,\"mlp_bias\":true}", "attention_bias, mlp_bias: unk"},
        {QWEN2 ",\"attention_bias\":false}", "attention_bias: unknown, and ignored"},
        {LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_thta\":1}}",
         "rope_parameters.rope_thta: unknown, and ignored"},
        {LLAMA ",\"eos_token_id\":1000000000000000000000000000000}",
         "eos_token_id is not an id from 0"},
        {LLAMA ",\"bos_token_id\":-1}", "bos_token_id is not an id from 0 to 31"},
        {LLAMA ",\"bos_token_id\":NaN}", "bos_token_id is not an id"},
        {LLAMA ",\"bos_token_id\":null,\"eos_token_id\":[],\"pad_token_id\":-1}", NULL},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct intra_hf_config c;
        warning[0] = 0;
        if (parse(all[i].text, &c) != NEB_OK)
            fail_msg("%s: %s", all[i].text, message);
        if (all[i].warns ? !strstr(warning, all[i].warns) : warning[0])
            fail_msg("%s: warned \"%s\"", all[i].text, warning);
        assert_true(c.model.d_model == 8);
    }
}

// Scaled positions, in all places where transformers has written them.
static void test_scaled_positions(void **state) {
    (void)state;
    static const struct kern_rope_scaling llama31 = {KERN_ROPE_LLAMA3, 8, 1, 4, 8192},
                                          own = {KERN_ROPE_LLAMA3, 8, 1, 4, 64},
                                          linear = {.type = KERN_ROPE_LINEAR, .factor = 2.5f},
                                          plain = {0};
#define VALUES "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0," ORIGINAL
    static const struct {
        const char *text;
        const struct kern_rope_scaling *s;
        float theta;
    } all[] = {
        {LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\"," VALUES "}}",
         &llama31, 5e5f},
        {LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"llama3\"," VALUES "}}", &llama31,
         5e5f},
        {LLAMA ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":5e5," VALUES "}}",
         &llama31, 5e5f},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}", &linear, 1e4f},
        // missing: max_position_embeddings, as in transformers
        {LLAMA3("\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4"), &own, 1e4f},
        // these keys do not matter to linear and default
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"type\":\"llama3\",\"factor\":2.5,"
               "\"low_freq_factor\":1}}",
         &linear, 1e4f},
        {LLAMA ",\"rope_scaling\":{\"rope_type\":\"default\"," VALUES "}}", &plain, 1e4f},
        // both objects: the older one counts, unless it is empty
        {LLAMA ",\"rope_parameters\":{\"rope_type\":\"llama3\"," VALUES
               "},\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}",
         &linear, 1e4f},
        {LLAMA ",\"rope_parameters\":{\"rope_type\":\"llama3\"," VALUES
               "},\"rope_scaling\":{\"type\":\"default\"}}",
         &plain, 1e4f},
        {LLAMA ",\"rope_parameters\":{\"rope_type\":\"llama3\"," VALUES "},\"rope_scaling\":{}}",
         &llama31, 1e4f},
        {LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5},\"rope_parameters\":null}",
         &linear, 1e4f},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct intra_hf_config c;
        char text[INTRA_ROPE_TEXT];
        if (parse(all[i].text, &c) != NEB_OK || !intra_rope_same(&c.model.rope_scaling, all[i].s) ||
            c.model.rope_theta != all[i].theta)
            fail_msg("%s: %s, theta %g (%s)", all[i].text,
                     intra_rope_text(&c.model.rope_scaling, text), (double)c.model.rope_theta,
                     message);
    }
}

static const struct refusal {
    const char *text;
    enum neb_status status;
    const char *says[2];
} refusals[] = {
    {"", NEB_ERR_FORMAT, {"config.json"}},
    {"[]", NEB_ERR_FORMAT, {"not a JSON object"}},
    {"{}", NEB_ERR_FORMAT, {"model_type"}},
    {"{\"model_type\":7}", NEB_ERR_FORMAT, {"model_type"}},
    {"{\"model_type\":\"llama\\u0000\"}", NEB_ERR_UNSUPPORTED, {"model_type", "architecture"}},
    {"{\"model_type\":\"mistral\"," SHAPE "}",
     NEB_ERR_FORMAT,
     {"num_key_value_heads is missing, so it is 8 for mistral", "num_attention_heads is 2"}},
    {"{\"model_type\":\"qwen2\"," SHAPE "}", NEB_ERR_FORMAT, {"so it is 32 for qwen2"}},
    {LLAMA ",\"is_causal\":false}", NEB_ERR_UNSUPPORTED, {"is_causal: false", "causal"}},
    {LLAMA ",\"is_causal\":null}", NEB_ERR_UNSUPPORTED, {"is_causal: null"}},
    {MISTRAL ",\"is_causal\":0}", NEB_ERR_UNSUPPORTED, {"is_causal: 0"}},
    {QWEN2 ",\"is_causal\":false}", NEB_ERR_UNSUPPORTED, {"is_causal: false"}},
    {LLAMA ",\"use_bidirectional_attention\":true}", NEB_ERR_UNSUPPORTED, {"use_bidirectional"}},
    {LLAMA ",\"logit_scale\":0.0625}", NEB_ERR_UNSUPPORTED, {"logit_scale", "scaled logits"}},
    {LLAMA ",\"logits_scaling\":8}", NEB_ERR_UNSUPPORTED, {"logits_scaling", "scaled logits"}},
    {LLAMA ",\"logits_scaling\":NaN}", NEB_ERR_UNSUPPORTED, {"logits_scaling", "scaled logits"}},
    {QWEN2 ",\"final_logit_softcapping\":30.0}", NEB_ERR_UNSUPPORTED, {"final_logit_softcapping"}},
    {LLAMA ",\"embedding_multiplier\":12}", NEB_ERR_UNSUPPORTED, {"embedding_multiplier"}},
    {LLAMA ",\"attention_multiplier\":0.1}", NEB_ERR_UNSUPPORTED, {"attention_multiplier"}},
    {LLAMA ",\"per_layer_config\":{\"0\":{\"head_dim\":8}}}", NEB_ERR_UNSUPPORTED, {"per_layer"}},
    {LLAMA ",\"pruned_heads\":{\"0\":[1]}}", NEB_ERR_UNSUPPORTED, {"pruned_heads"}},
    {LLAMA ",\"no_rope_layers\":[1,0]}", NEB_ERR_UNSUPPORTED, {"no_rope_layers"}},
    {LLAMA ",\"num_local_experts\":8}", NEB_ERR_UNSUPPORTED, {"num_local_experts", "MoE"}},
    {LLAMA ",\"compression_config\":{\"a\":1}}", NEB_ERR_UNSUPPORTED, {"compression_config"}},
    {LLAMA ",\"quantization\":{\"bits\":4}}", NEB_ERR_UNSUPPORTED, {"quantization", "dequantise"}},
    {LLAMA ",\"rope_traditional\":true}", NEB_ERR_UNSUPPORTED, {"rope_traditional", "permuted"}},
    {LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}",
     NEB_ERR_UNSUPPORTED,
     {"rope_parameters", "differ between layers"}},
    {LLAMA ",\"rope_theta\":Infinity}", NEB_ERR_FORMAT, {"rope_theta", "a number above 0"}},
    {LLAMA ",\"rope_theta\":NaN}", NEB_ERR_FORMAT, {"rope_theta"}},
    {LLAMA ",\"rms_norm_eps\":1e999}", NEB_ERR_FORMAT, {"rms_norm_eps", "below 1e30"}},
    {LLAMA ",\"rope_scaling\":NaN}", NEB_ERR_FORMAT, {"rope_scaling"}},
    {LLAMA ",\"num_hidden_layers\":-Infinity}", NEB_ERR_FORMAT, {"num_hidden_layers"}},
    {LLAMA ",\"num_hidden_layers\":1000000000000000019884624838656}",
     NEB_ERR_FORMAT,
     {"num_hidden_layers", "a whole number from 1"}},
    {LLAMA ",\"num_hidden_layers\":2.0}", NEB_ERR_FORMAT, {"num_hidden_layers"}},
    {LLAMA ",\"tie_word_embeddings\":Infinity}", NEB_ERR_FORMAT, {"tie_word_embeddings"}},
    {LLAMA ",\"hidden_act\":NaN}", NEB_ERR_UNSUPPORTED, {"hidden_act", "SwiGLU"}},
    {QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":-1}",
     NEB_ERR_FORMAT,
     {"max_window_layers"}},
    {MISTRAL ",\"sliding_window\":1e30}", NEB_ERR_FORMAT, {"sliding_window"}},
    {"{\"model_type\":\"mixtral\"," SHAPE "}", NEB_ERR_UNSUPPORTED, {"mixtral", "MoE"}},
    {"{\"model_type\":\"qwen2_moe\"," SHAPE "}", NEB_ERR_UNSUPPORTED, {"qwen2_moe", "MoE"}},
    {"{\"model_type\":\"qwen3\"," SHAPE "}", NEB_ERR_UNSUPPORTED, {"qwen3", "architecture"}},
    {LLAMA ",\"architectures\":[\"LlamaForSequenceClassification\"]}",
     NEB_ERR_UNSUPPORTED,
     {"architectures", "ForCausalLM"}},
    {LLAMA ",\"auto_map\":{\"AutoModel\":\"m.M\"}}", NEB_ERR_UNSUPPORTED, {"auto_map", "code"}},
    {LLAMA ",\"quantization_config\":{\"bits\":4}}", NEB_ERR_UNSUPPORTED, {"bits", "dequantise"}},
    {LLAMA ",\"hidden_act\":\"gelu\"}", NEB_ERR_UNSUPPORTED, {"hidden_act", "SwiGLU"}},
    {LLAMA ",\"attention_bias\":true}", NEB_ERR_UNSUPPORTED, {"attention_bias", "output proj"}},
    {LLAMA ",\"mlp_bias\":true}", NEB_ERR_UNSUPPORTED, {"mlp_bias", "bias"}},
    {LLAMA ",\"mlp_bias\":1}", NEB_ERR_FORMAT, {"mlp_bias", "true or false is needed"}},
    {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}",
     NEB_ERR_FORMAT,
     {"rope_scaling.low_freq_factor", "missing"}},
    {LLAMA3("\"factor\":0.5,\"low_freq_factor\":1,\"high_freq_factor\":4," ORIGINAL),
     NEB_ERR_FORMAT,
     {"rope_scaling.factor", "0.5 is not a number from 1"}},
    {LLAMA3("\"factor\":1e300,\"low_freq_factor\":1,\"high_freq_factor\":4," ORIGINAL),
     NEB_ERR_FORMAT,
     {"rope_scaling.factor", "is not a number from 1 to 1000000"}},
    {LLAMA3("\"factor\":\"8\",\"low_freq_factor\":1,\"high_freq_factor\":4," ORIGINAL),
     NEB_ERR_FORMAT,
     {"rope_scaling.factor", "missing"}},
    {LLAMA3("\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4," ORIGINAL),
     NEB_ERR_FORMAT,
     {"rope_scaling.high_freq_factor", "4 is not a number above low_freq_factor"}},
    {LLAMA3("\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
            "\"original_max_position_embeddings\":-8192"),
     NEB_ERR_FORMAT,
     {"rope_scaling.original_max_position_embeddings", "-8192 is not a whole number"}},
    {LLAMA3("\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
            "\"partial_rotary_factor\":0.5," ORIGINAL),
     NEB_ERR_UNSUPPORTED,
     {"rope_scaling", "part of each head"}},
    {LLAMA ",\"original_max_position_embeddings\":4096,\"rope_scaling\":{\"rope_type\":\"llama3\","
           "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4," ORIGINAL "}}",
     NEB_ERR_FORMAT,
     {"original_max_position_embeddings", "make them equal"}},
    {LLAMA ",\"rope_scaling\":{\"type\":\"linear\"}}",
     NEB_ERR_FORMAT,
     {"rope_scaling.factor", "missing"}},
    {LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}",
     NEB_ERR_UNSUPPORTED,
     {"rope_scaling", "must have rope_type default, linear or llama3"}},
    {LLAMA ",\"rope_scaling\":{\"rope_type\":8}}",
     NEB_ERR_UNSUPPORTED,
     {"rope_scaling", "must have rope_type"}},
    {LLAMA ",\"rope_scaling\":{\"factor\":2}}", NEB_ERR_UNSUPPORTED, {"rope_scaling", "scaled"}},
    {LLAMA ",\"rope_parameters\":{\"rope_type\":\"longrope\"},\"rope_scaling\":{\"rope_type\":"
           "\"default\"}}",
     NEB_ERR_UNSUPPORTED,
     {"rope_parameters", "longrope"}},
    {LLAMA ",\"rope_scaling\":7}", NEB_ERR_FORMAT, {"rope_scaling"}},
    {LLAMA ",\"rope_parameters\":{\"rope_type\":\"yarn\"}}",
     NEB_ERR_UNSUPPORTED,
     {"rope_parameters", "yarn"}},
    {LLAMA ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}",
     NEB_ERR_UNSUPPORTED,
     {"rope_parameters", "part of each head"}},
    {LLAMA ",\"partial_rotary_factor\":0.5}",
     NEB_ERR_UNSUPPORTED,
     {"partial_rotary_factor", "part of each head"}},
    {LLAMA ",\"rope_interleaved\":true}", NEB_ERR_UNSUPPORTED, {"rope_interleaved", "permuted"}},
    {LLAMA ",\"layer_types\":[\"full_attention\",\"linear_attention\"]}",
     NEB_ERR_UNSUPPORTED,
     {"layer_types", "linear_attention"}},
    {LLAMA ",\"rope_theta\":-1}", NEB_ERR_FORMAT, {"rope_theta"}},
    {LLAMA ",\"rope_theta\":\"x\"}", NEB_ERR_FORMAT, {"rope_theta"}},
    {LLAMA ",\"num_key_value_heads\":3}", NEB_ERR_INVALID, {"n_kv_heads"}},
    {LLAMA ",\"num_key_value_heads\":0}", NEB_ERR_FORMAT, {"num_key_value_heads"}},
    {LLAMA ",\"head_dim\":3}", NEB_ERR_INVALID, {"head_dim", "odd"}},
    {LLAMA ",\"head_dim\":99999999999}", NEB_ERR_FORMAT, {"head_dim"}},
    {LLAMA ",\"hidden_size\":8,\"hidden_size\":1e999}", NEB_ERR_FORMAT, {"hidden_size"}},
};

static void test_config_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct intra_hf_config c;
        const struct refusal *r = &refusals[i];
        enum neb_status st = parse(r->text, &c);
        if (st != r->status || !strstr(message, r->says[0]) ||
            (r->says[1] && !strstr(message, r->says[1])))
            fail_msg("%s: status %d (%s), expected %d with \"%s\"", r->text, st, message, r->status,
                     r->says[0]);
    }
}

// A config that we write for transformers reads back as the same model, with the shortest exact
// numbers.
static void test_config_round_trip(void **state) {
    (void)state;
    struct intra_hf_config c, back;
    struct intra_model_config m = {.vocab = 100,
                                   .d_model = 48,
                                   .n_layers = 3,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 10,
                                   .d_ff = 96,
                                   .max_seq = 77,
                                   .rope_theta = 12345.678f,
                                   .norm_eps = 1e-5f,
                                   .tied = true,
                                   .mask = KERN_MASK_CAUSAL};
    static const struct kern_rope_scaling scaled[] = {
        {0}, {KERN_ROPE_LLAMA3, 8.1f, 1.25f, 4, 8192}, {.type = KERN_ROPE_LINEAR, .factor = 3}};
    for (int i = 0; i < 6; i++) {
        bool bias = i % 2;
        m.qkv_bias = bias;
        m.rope_scaling = scaled[i / 2];
        assert_int_equal(intra_hf_config_of_model(&m, &c), NEB_OK);
        json_t *o = intra_hf_config_json(&c, "float32");
        char *text = json_dumps(o, JSON_REAL_PRECISION(9));
        assert_non_null(text);
        assert_non_null(strstr(text, "\"rms_norm_eps\": 1e-5,"));
        assert_int_equal(strstr(text, "rope_scaling") != NULL, i >= 2);
        assert_int_equal(parse(text, &back), NEB_OK);
        assert_int_equal(intra_hf_config_same(&back, &m, "back"), NEB_OK);
        assert_int_equal(back.arch, bias ? INTRA_HF_QWEN2 : INTRA_HF_LLAMA);
        assert_int_equal(back.model.max_seq, 77);
        assert_true(intra_rope_same(&back.model.rope_scaling, &m.rope_scaling));
        free(text);
        json_decref(o);
    }
    m.rope_scaling.factor = 4;
    assert_int_equal(intra_hf_config_same(&back, &m, "back"), NEB_ERR_INVALID);
    assert_non_null(strstr(message, "rope_scaling is linear, factor 3, the checkpoint's is linear, "
                                    "factor 4: another model"));
    m.n_kv_heads = 4;
    assert_int_equal(intra_hf_config_same(&back, &m, "back"), NEB_ERR_INVALID);
    assert_non_null(strstr(message, "num_key_value_heads is 2"));
    m.mask = KERN_MASK_BIDIRECTIONAL;
    assert_int_equal(intra_hf_config_of_model(&m, &c), NEB_ERR_UNSUPPORTED);
}

// ---- adapter_config.json

static bool same_trainable(const struct intra_trainable *a, const struct intra_trainable *b) {
    return a->mode == b->mode && a->lora_rank == b->lora_rank && a->lora_alpha == b->lora_alpha &&
           a->lora_targets == b->lora_targets && a->last_layers == b->last_layers &&
           a->freeze_embeddings == b->freeze_embeddings;
}

#define PEFT "\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8"

static enum neb_status parse_peft(const char *text, int32_t layers, struct intra_trainable *t) {
    message[0] = warning[0] = 0;
    return intra_hf_peft_parse(text, strlen(text), "a.json", layers, t);
}

static void test_peft(void **state) {
    (void)state;
    struct intra_trainable t;
    static const char good[] = "{" PEFT ",\"target_modules\":[\"v_proj\",\"down_proj\"],"
                               "\"bias\":\"none\",\"use_dora\":false,\"rank_pattern\":{},"
                               "\"modules_to_save\":null,\"lora_dropout\":0.1}";
    assert_int_equal(parse_peft(good, 2, &t), NEB_OK);
    assert_true(t.mode == INTRA_TRAIN_LORA && t.lora_rank == 4 && t.lora_alpha == 8 &&
                t.lora_targets == (INTRA_LORA_V | INTRA_LORA_DOWN));
    assert_non_null(strstr(warning, "lora_dropout"));
    json_t *o = intra_hf_peft_json(&t, NULL);
    char *text = json_dumps(o, 0);
    struct intra_trainable back;
    assert_int_equal(parse_peft(text, 2, &back), NEB_OK);
    assert_true(same_trainable(&t, &back));
    free(text);
    json_decref(o);
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "a.json"},
        {"[]", "not a JSON object"},
        {"{\"peft_type\":\"IA3\"}", "only LORA"},
        {"{" PEFT ",\"target_modules\":[\"q_proj\"],\"use_dora\":true}", "use_dora"},
        {"{" PEFT ",\"target_modules\":[\"q_proj\"],\"use_rslora\":1}", "use_rslora"},
        {"{" PEFT ",\"target_modules\":[\"q_proj\"],\"use_rslora\":Infinity}", "use_rslora"},
        {"{" PEFT ",\"target_modules\":[\"q_proj\"],\"bias\":\"all\"}", "bias"},
        {"{" PEFT ",\"target_modules\":[\"q_proj\"],\"bias\":NaN}", "bias"},
        {"{" PEFT ",\"target_modules\":[\"q_proj\"],\"modules_to_save\":[\"x\"]}", "modules_to"},
        {"{" PEFT ",\"target_modules\":[\"q_proj\"],\"init_lora_weights\":\"pissa_niter_16\"}",
         "init_lora"},
        {"{" PEFT ",\"target_modules\":[\"q_proj\"],\"use_qalora\":true}", "use_qalora"},
        {"{" PEFT ",\"target_modules\":[\"q_proj\"],\"kasa_config\":{\"a\":1}}", "kasa_config"},
        {"{" PEFT ",\"target_modules\":[\"q_proj\"],\"arrow_config\":{\"a\":1}}", "arrow_config"},
        {"{\"peft_type\":\"LORA\",\"r\":0}", "rank from 1"},
        {"{\"peft_type\":\"LORA\",\"r\":1e30}", "rank from 1"},
        {"{\"peft_type\":\"LORA\",\"r\":1000000000000000019884624838656}", "rank from 1"},
        {"{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":-1}", "lora_alpha"},
        {"{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":NaN}", "lora_alpha"},
        {"{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1e-320}", "lora_alpha"},
        {"{\"peft_type\":\"LORA\",\"r\":16,\"lora_alpha\":9e5,\"use_rslora\":true}", "lora_alpha"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (parse_peft(bad[i].text, 2, &t) == NEB_OK || !strstr(message, bad[i].says))
            fail_msg("%s: %s", bad[i].text, message);
    assert_int_equal(parse_peft("{" PEFT ",\"target_modules\":[\"q_proj\"],\"max\":1e999,"
                                "\"lora_colour\":1,\"auto_mapping\":{\"a\":-Infinity}}",
                                2, &t),
                     NEB_OK);
    assert_non_null(strstr(warning, "max, lora_colour: unknown, and ignored"));
}

// ---- folders

struct damage { // how a folder of the model below differs from a correct one
    const char *drop, *add, *reshape, *nan;
    const char *front, *within; // put before all names; put before each "self_attn."
    bool tied_head;             // lm_head stored beside a tied embedding
    float head;                 // added to its first value
};

static void write_folder(const struct damage *d) {
    char path[NEB_PATH_MAX], name[32][INTRA_ST_NAME_MAX + 1];
    static const char config[] = LLAMA ",\"tie_word_embeddings\":true}";
    struct intra_hf_config c;
    struct intra_model *m = NULL;
    struct intra_st_spec specs[32];
    const struct intra_tensor *source[32];
    struct intra_st_writer *w = NULL;
    int32_t n = 0, extra = 0;
    assert_int_equal(neb_fs_remove_tree(in(path, "hf")), NEB_OK);
    assert_int_equal(neb_fs_remove_tree(in(path, "out")), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(in(path, "hf"), 0755), NEB_OK);
    assert_int_equal(neb_fs_write(in(path, "hf/config.json"), config, sizeof config - 1, 0644),
                     NEB_OK);
    assert_int_equal(parse(config, &c), NEB_OK);
    assert_int_equal(
        intra_model_create(&c.model, &(struct intra_trainable){.mode = INTRA_TRAIN_FULL}, 1, &m),
        NEB_OK);
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (d->drop && !strcmp(t->name, d->drop))
            continue;
        bool other = d->reshape && !strcmp(t->name, d->reshape), vector = t->rows == 1 && !other;
        const char *at = d->within ? strstr(t->name, "self_attn.") : NULL;
        snprintf(name[extra], sizeof name[0], "%s%.*s%s%s", d->front ? d->front : "",
                 (int)(at ? at - t->name : 0), t->name, at ? d->within : "", at ? at : t->name);
        source[n] = t;
        specs[n++] = (struct intra_st_spec){name[extra++],
                                            vector ? 1 : 2,
                                            {(uint64_t)(other || vector ? t->cols : t->rows),
                                             (uint64_t)(other ? t->rows : t->cols)}};
    }
    if (d->add || d->tied_head) {
        snprintf(name[extra], sizeof name[0], "%s", d->add ? d->add : "lm_head.weight");
        source[n] = m->embed;
        specs[n++] = (struct intra_st_spec){
            name[extra++], 2, {(uint64_t)m->embed->rows, (uint64_t)m->embed->cols}};
    }
    assert_int_equal(intra_st_writer_create(in(path, "hf"), "model", specs, n, INTRA_ST_F32, 0, &w),
                     NEB_OK);
    for (int32_t i = 0; i < n; i++) {
        float *p = intra_param(m, source[i]), was = p[0];
        if (d->nan && !strcmp(specs[i].name, d->nan))
            p[0] = NAN;
        if (!strcmp(specs[i].name, "lm_head.weight"))
            p[0] += d->head;
        assert_int_equal(intra_st_writer_add(w, p, intra_tensor_size(source[i])), NEB_OK);
        p[0] = was;
    }
    assert_int_equal(intra_st_writer_commit(w), NEB_OK);
    intra_st_writer_destroy(&w);
    intra_model_destroy(&m);
}

static enum neb_status import(int32_t max_seq, struct intra_hf_imported *r) {
    char a[NEB_PATH_MAX], b[NEB_PATH_MAX];
    struct intra_hf_import i = {.dir = in(a, "hf"), .out = in(b, "out"), .max_seq = max_seq};
    message[0] = warning[0] = 0;
    return intra_hf_import(&i, r);
}

static void test_folders(void **state) {
    (void)state;
    static const struct {
        struct damage d;
        enum neb_status status;
        const char *says;
    } all[] = {
        {{.drop = NULL}, NEB_OK, ""},
        {{.tied_head = true}, NEB_OK, ""},
        {{.add = "model.layers.0.self_attn.rotary_emb.inv_freq"}, NEB_OK, ""},
        {{.tied_head = true, .head = 1}, NEB_ERR_FORMAT, "tie_word_embeddings"},
        {{.drop = "model.norm.weight"}, NEB_ERR_FORMAT, "'model.norm.weight' is missing: check"},
        {{.drop = "model.norm.weight", .add = "norms.weight"},
         NEB_ERR_FORMAT,
         "'model.norm.weight' is missing, and there is 'norms.weight'"},
        {{.front = "_orig_mod."}, NEB_OK, ""},
        {{.front = "module."}, NEB_OK, ""},
        {{.front = "base_model.model."}, NEB_OK, ""},
        {{.front = "module._orig_mod.module.base_model.model._orig_mod."}, NEB_OK, ""},
        {{.within = "_orig_mod."}, NEB_OK, ""},
        {{.front = "_fsdp_wrapped_module.",
          .within = "_fsdp_wrapped_module._checkpoint_wrapped_module._orig_mod."},
         NEB_OK,
         ""},
        {{.front = "network."}, NEB_ERR_FORMAT, "there is 'network.model."},
        {{.front = "module.", .add = "_orig_mod.model.norm.weight"},
         NEB_ERR_FORMAT,
         "are the same tensor of the model"},
        {{.add = "model.layers.0.self_attn.q_norm.weight"},
         NEB_ERR_UNSUPPORTED,
         "no place for tensor 'model.layers.0.self_attn.q_norm.weight'"},
        {{.reshape = "model.layers.1.mlp.up_proj.weight"},
         NEB_ERR_FORMAT,
         "(8, 12), but its config needs (12, 8)"},
        {{.nan = "model.layers.0.mlp.down_proj.weight"},
         NEB_ERR_FORMAT,
         "'model.layers.0.mlp.down_proj.weight' holds nan at element 0"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct intra_hf_imported r;
        char path[NEB_PATH_MAX];
        write_folder(&all[i].d);
        enum neb_status st = import(0, &r);
        if (st != all[i].status || !strstr(message, all[i].says))
            fail_msg("%zu: status %d (%s), expected %d with \"%s\"", i, st, message, all[i].status,
                     all[i].says);
        assert_null(strstr(message, "fetch"));
        assert_int_equal(neb_fs_exists(in(path, "out/model.ckpt")), st == NEB_OK);
        assert_int_equal(neb_fs_exists(in(path, "out")), st == NEB_OK);
        assert_false(neb_fs_exists(in(path, "out.nebula-building")));
        assert_false(neb_fs_exists(in(path, "out.nebula-building.lock")));
        if (st == NEB_OK) { // without a vocabulary: imported with a warning
            assert_false(r.tokenizer);
            assert_non_null(strstr(warning, "must tokenise text"));
            assert_int_equal(import(0, &r), NEB_ERR_EXISTS);
        }
    }
}

// A folder with an adapter beside the weights is refused, because transformers would add it. A
// folder with only an adapter is no model.
static void test_adapter_beside(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct intra_hf_imported r;
    write_folder(&(struct damage){0});
    assert_int_equal(neb_fs_write(in(path, "hf/adapter_config.json"), "{}", 2, 0644), NEB_OK);
    assert_int_equal(import(0, &r), NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(message, "--adapter"));
    assert_false(neb_fs_exists(in(path, "out")));
    assert_int_equal(neb_fs_remove(in(path, "hf/config.json")), NEB_OK);
    assert_int_equal(import(0, &r), NEB_ERR_NOT_FOUND);
    assert_non_null(strstr(message, "no model: import the model that the adapter is for"));
}

// A sliding window allows sequences up to its length.
static void test_window(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct intra_hf_imported r;
    static const char config[] = MISTRAL ",\"tie_word_embeddings\":true,\"sliding_window\":16}";
    write_folder(&(struct damage){0});
    assert_int_equal(neb_fs_write(in(path, "hf/config.json"), config, sizeof config - 1, 0644),
                     NEB_OK);
    assert_int_equal(import(17, &r), NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(message, "sliding-window attention beyond 16"));
    assert_int_equal(import(0, &r), NEB_OK);
    assert_int_equal(r.config.model.max_seq, 16);
}

static bool same_model(const struct intra_model *x, const struct intra_model *y) {
    const struct intra_model_config *a = &x->c, *b = &y->c;
    return a->vocab == b->vocab && a->d_model == b->d_model && a->n_layers == b->n_layers &&
           a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads &&
           a->head_dim == b->head_dim && a->d_ff == b->d_ff && a->max_seq == b->max_seq &&
           a->rope_theta == b->rope_theta && a->norm_eps == b->norm_eps && a->tied == b->tied &&
           a->qkv_bias == b->qkv_bias && a->mask == b->mask &&
           intra_rope_same(&a->rope_scaling, &b->rope_scaling) &&
           same_trainable(&x->trainable, &y->trainable);
}

// intra_hf_layout() reads what intra_model_save() writes.
static void test_layout(void **state) {
    (void)state;
    static const struct intra_trainable sets[] = {
        {.mode = INTRA_TRAIN_FULL, .freeze_embeddings = true},
        {.mode = INTRA_TRAIN_LORA, .lora_rank = 2, .lora_alpha = 3.5f, .lora_targets = 9},
        {.mode = INTRA_TRAIN_BITFIT},
        {.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1},
    };
    for (size_t i = 0; i < 4; i++) {
        const struct intra_model_config c = {
            .vocab = 11,
            .d_model = 8,
            .n_layers = 2,
            .n_heads = 4,
            .n_kv_heads = 2,
            .head_dim = 6,
            .d_ff = 10,
            .max_seq = 13,
            .rope_theta = 77.5f,
            .norm_eps = 3e-6f,
            .tied = i % 2,
            .qkv_bias = i / 2 % 2,
            .rope_scaling = {.type = i == 1 ? KERN_ROPE_LINEAR : KERN_ROPE_DEFAULT,
                             .factor = i == 1 ? 2.0f : 0},
            .mask = i == 3 ? KERN_MASK_BIDIRECTIONAL : KERN_MASK_CAUSAL};
        char path[NEB_PATH_MAX];
        struct intra_model *m = NULL, *full = NULL, *light = NULL;
        struct intra_ckpt_writer *w = NULL;
        struct intra_ckpt *k = NULL;
        assert_int_equal(intra_model_create(&c, &sets[i], 1, &m), NEB_OK);
        assert_int_equal(intra_ckpt_create(in(path, "layout.ckpt"), &w), NEB_OK);
        assert_int_equal(intra_model_save(m, w), NEB_OK);
        assert_int_equal(intra_ckpt_commit(w), NEB_OK);
        intra_ckpt_writer_destroy(&w);
        assert_int_equal(intra_ckpt_open(path, true, &k), NEB_OK);
        assert_int_equal(intra_model_load(k, &full), NEB_OK);
        assert_int_equal(intra_hf_layout(k, &light), NEB_OK);
        assert_true(same_model(full, light));
        assert_int_equal(full->n_tensors, light->n_tensors);
        for (int32_t t = 0; t < full->n_tensors; t++)
            assert_string_equal(full->tensors[t].name, light->tensors[t].name);
        intra_ckpt_close(&k);
        intra_model_destroy(&m);
        intra_model_destroy(&full);
        intra_model_destroy(&light);
    }
}

static int set_up(void **state) {
    neb_log_set_sink(keep, NULL);
    return scratch_make(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_values),
        cmocka_unit_test(test_scaled_positions),
        cmocka_unit_test(test_config_defaults),
        cmocka_unit_test(test_config_keys),
        cmocka_unit_test(test_config_refused),
        cmocka_unit_test(test_config_round_trip),
        cmocka_unit_test(test_peft),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_adapter_beside),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_layout),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_remove);
}
