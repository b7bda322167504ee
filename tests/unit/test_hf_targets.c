// SPDX-License-Identifier: Apache-2.0
// Which layers an adapter_config.json names, matched as PEFT does. A setting that differs between
// blocks is refused by name.
#include "agent/base/log.h"
#include "intra/hf/hf.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char message[2048];

static void keep(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    if (level == NEB_LOG_ERROR)
        snprintf(message, sizeof message, "%s", text);
}

enum {
    Q = INTRA_LORA_Q,
    K = INTRA_LORA_K,
    V = INTRA_LORA_V,
    O = INTRA_LORA_O,
    MLP = INTRA_LORA_GATE | INTRA_LORA_UP | INTRA_LORA_DOWN,
    ATTENTION = Q | K | V | O,
};

static enum neb_status parse(const char *keys, int32_t layers, struct intra_trainable *t) {
    char text[2048];
    snprintf(text, sizeof text, "{\"peft_type\":\"LORA\"%s%s}", *keys ? "," : "", keys);
    message[0] = 0;
    return intra_hf_peft_parse(text, strlen(text), "a.json", layers, t);
}

#define T(value) "\"target_modules\":" value
#define R        "\"r\":4,\"lora_alpha\":8,"

static void test_taken(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        uint32_t targets;
        int32_t rank;
        float alpha;
    } all[] = {
        {"", Q | V, 8, 8}, // PEFT's own defaults
        {T("null"), Q | V, 8, 8},
        {R T("[\"q_proj\",\"o_proj\"]"), Q | O, 4, 8},
        {R T("[\"self_attn.q_proj\"]"), Q, 4, 8},
        {R T("[\"model.layers.0.self_attn.q_proj\",\"model.layers.1.self_attn.q_proj\"]"), Q, 4, 8},
        {R T("[\"layers.0.mlp.up_proj\",\"1.mlp.up_proj\"]"), INTRA_LORA_UP, 4, 8},
        {R T("[\"lm_headx\",\"k_proj\",\"nothing\"]"), K, 4, 8},
        // expressions match full names
        {R T("\".*\\\\.self_attn\\\\.(q|k)_proj\""), Q | K, 4, 8},
        {R T("\".*(q_proj|v_proj)\""), Q | V, 4, 8},
        {R T("\"model\\\\.layers\\\\.\\\\d+\\\\.mlp\\\\.(?:gate|up|down)_proj\""), MLP, 4, 8},
        {R T("\"(?P<all>.*)\\\\.[qkvo]_proj$\""), ATTENTION, 4, 8},
        {R T("\"^model\\\\.layers\\\\.[01]{,1}\\\\..*_proj\\\\Z\""), ATTENTION | MLP, 4, 8},
        {R T("\"(?i:.*Q_PROJ)\""), Q, 4, 8},
        {R T("\"(?!.*mlp).*_proj\""), ATTENTION, 4, 8},
        // all-linear includes all but the output layer
        {R T("\"all-linear\""), ATTENTION | MLP, 4, 8},
        {R T("\"ALL-Linear\""), ATTENTION | MLP, 4, 8},
        // the choice is narrowed
        {R T("\"all-linear\"") ",\"exclude_modules\":\".*mlp.*\"", ATTENTION, 4, 8},
        {R T("\"all-linear\"") ",\"exclude_modules\":[\"q_proj\",\"mlp.up_proj\",\"lm_head\"]",
         (ATTENTION | MLP) & ~(Q | INTRA_LORA_UP), 4, 8},
        {R T("[\"q_proj\",\"lm_head\"]") ",\"exclude_modules\":[\"lm_head\"]", Q, 4, 8},
        {R T("[\"q_proj\"]") ",\"layers_to_transform\":[0,1]", Q, 4, 8},
        {R T("[\"q_proj\"]") ",\"layers_to_transform\":[1,0,7],\"layers_pattern\":\"layers\"", Q, 4,
         8},
        {R T("[\"q_proj\"]") ",\"layers_to_transform\":[1,0],\"layers_pattern\":[\"h\",\"layers\"]",
         Q, 4, 8},
        {R T("[\"q_proj\"]") ",\"layers_to_transform\":[]", Q, 4, 8},
        {R T("[\"q_proj\"]") ",\"layers_pattern\":[]", Q, 4, 8},
        {R "\"layers_to_transform\":[0,1]", Q | V, 4, 8},
        // ranks and alphas that give one value
        {R T("[\"q_proj\"]") ",\"rank_pattern\":{\"q_proj\":2}", Q, 2, 8},
        {R T("[\"q_proj\"]") ",\"rank_pattern\":{\"k_proj\":2}", Q, 4, 8},
        {R T("[\"q_proj\"]") ",\"rank_pattern\":{\"layers.[0-9].self_attn.q_proj\":6},"
                             "\"alpha_pattern\":{\"^model.*q_proj\":1.5}",
         Q, 6, 1.5f},
        {R T("[\"q_proj\"]") ",\"rank_pattern\":{\"model.layers.0.self_attn.q_proj\":2,"
                             "\"layers.1.self_attn.q_proj\":2}",
         Q, 2, 8},
        {R T("[\"q_proj\"]") ",\"rank_pattern\":{\"_proj\":2,\"q_proj\":3,\"q_.*\":5}", Q, 3, 8},
        {R T("[\"q_proj\"]") ",\"use_rslora\":true", Q, 4, 16},
        {R T("[\"q_proj\"]") ",\"use_rslora\":true,\"rank_pattern\":{\"q_proj\":9}", Q, 9, 24},
        {R T("[\"q_proj\"]") ",\"use_rslora\":null", Q, 4, 8},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct intra_trainable t;
        if (parse(all[i].keys, 2, &t) != NEB_OK || t.lora_targets != all[i].targets ||
            t.lora_rank != all[i].rank || t.lora_alpha != all[i].alpha)
            fail_msg("%s: targets %x, rank %d, alpha %g (%s)", all[i].keys, t.lora_targets,
                     t.lora_rank, (double)t.lora_alpha, message);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *keys, *says;
    } all[] = {
        {R T("[]"), "target_modules: [] cannot be imported: it names no linear layer"},
        {R T("[\"nothing\"]"), "it names no linear layer"},
        {R T("[\"proj\"]"), "it names no linear layer"}, // a name must match from a dot to its end
        {R T("\"q_proj\""), "it names no linear layer"}, // an expression matches the full name
        {R T("\"\""), "it names no linear layer"},
        {R T("[7]"), "target_modules"},
        {R T("{\"q_proj\":1}"), "target_modules: an expression or a list"},
        {R T("NaN"), "target_modules: an expression or a list"},
        {R T("[\"lm_head\"]"), "names 'lm_head'"},
        {R T("[\"q_proj\",\"embed_tokens\"]"), "names 'model.embed_tokens'"},
        {R T("[\"mlp\"]"), "names 'model.layers.0.mlp'"},
        {R T("\".*\""), "names 'model'"},
        {R T("\".*layernorm\""), "names 'model.layers.0.input_layernorm'"},
        {R T("\"(\""), "'(' is not a valid expression"},
        {R T("\"(?P<a>x)(?P<a>y)\""), "is not a valid expression"},
        {R T("\"((a*)*)*b|(.*)*z((m|o)+)*x\""), "too many steps"},
        {R T("\".*layers\\\\.0\\\\..*q_proj\""),
         "target_modules: 1 of 2 layers have an adapter on q_"},
        {R T("[\"layers.1.self_attn.q_proj\",\"v_proj\"]"),
         "1 of 2 layers have an adapter on q_proj"},
        {R T("[\"q_proj\"]") ",\"layers_to_transform\":0", "layers_to_transform: 1 of 2 layers"},
        {R T("[\"q_proj\"]") ",\"layers_to_transform\":[1]", "(layer 1 has one)"},
        {R T("[\"q_proj\"]") ",\"layers_to_transform\":[9]", "it names no linear layer"},
        {R T("[\"q_proj\"]") ",\"layers_to_transform\":\"all\"", "layers_to_transform: a number"},
        {R T("[\"q_proj\"]") ",\"layers_to_transform\":[0.5]", "layers_to_transform: a number"},
        {R T("[\"q_proj\"]") ",\"layers_to_transform\":[0],\"layers_pattern\":\"h\"",
         "it names no"},
        {R T("[\"q_proj\"]") ",\"layers_pattern\":\"h\"",
         "layers_pattern: PEFT allows it only with"},
        {R T("\".*q_proj\"") ",\"layers_to_transform\":[0,1]",
         "layers_to_transform: PEFT allows it"},
        {R T("[\"q_proj\"]") ",\"exclude_modules\":[\"layers.0.self_attn.q_proj\"]",
         "exclude_modules: 1 of 2 layers"},
        {R T("[\"q_proj\"]") ",\"exclude_modules\":\"[\"",
         "exclude_modules: '[' is not a valid expression"},
        {R T("[\"q_proj\"]") ",\"exclude_modules\":7", "exclude_modules: an expression or a list"},
        {R T("[\"q_proj\",\"v_proj\"]") ",\"rank_pattern\":{\"q_proj\":2}",
         "rank_pattern: the adapter of 'model.layers.0.self_attn.v_proj' has rank 4, that of "
         "'model.layers.0.self_attn.q_proj' has 2"},
        {R T("[\"q_proj\",\"v_proj\"]") ",\"alpha_pattern\":{\"v_proj\":2}",
         "alpha_pattern: the adapter"},
        {R T("[\"q_proj\"]") ",\"rank_pattern\":{\"layers.1.*\":2}", "rank_pattern: the adapter"},
        {R T("[\"q_proj\"]") ",\"rank_pattern\":{\"q_proj\":0}", "rank_pattern: 0 cannot"},
        {R T("[\"q_proj\"]") ",\"rank_pattern\":{\"q_proj\":1e30}", "rank_pattern"},
        {R T("[\"q_proj\"]") ",\"alpha_pattern\":{\"q_proj\":Infinity}", "alpha_pattern"},
        {R T("[\"q_proj\"]") ",\"rank_pattern\":{\"*\":2}",
         "rank_pattern: '*' is not a valid expression"},
        {R T("[\"q_proj\"]") ",\"rank_pattern\":[2]", "rank_pattern: an object"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct intra_trainable t;
        if (parse(all[i].keys, 2, &t) == NEB_OK || !strstr(message, all[i].says))
            fail_msg("%s: %s", all[i].keys, message);
    }
}

// The largest model with many expressions gets an answer in bounded time.
static void test_bounded(void **state) {
    (void)state;
    struct neb_buf b = {0};
    struct intra_trainable t;
    const char head[] =
        "{\"peft_type\":\"LORA\",\"target_modules\":\"all-linear\",\"rank_pattern\":{";
    neb_buf_add(&b, head, sizeof head - 1);
    for (int i = 0; i < 2000; i++) {
        char one[64];
        int n = snprintf(one, sizeof one, "%s\"no%d\":2", i ? "," : "", i);
        neb_buf_add(&b, one, (size_t)n);
    }
    neb_buf_add(&b, "}}", 2);
    message[0] = 0;
    assert_int_equal(intra_hf_peft_parse((const char *)b.p, b.len, "a.json", 1024, &t),
                     NEB_ERR_LIMIT);
    assert_non_null(strstr(message, "rank_pattern: too many expressions"));
    neb_buf_free(&b);
    assert_int_equal(parse(T("\"all-linear\""), 1024, &t), NEB_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_taken), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_bounded)};
    neb_log_set_sink(keep, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
