// SPDX-License-Identifier: Apache-2.0
// How a model is split over a mesh, without communication: the parts of all ranks make up each
// tensor exactly once, with the values of one rank. An impossible split is refused with its key.
#include "agent/base/log.h"
#include "intra/model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct intra_model_config config = {.vocab = 37, // not divisible by any tp
                                                 .d_model = 24,
                                                 .n_layers = 4,
                                                 .n_heads = 8,
                                                 .n_kv_heads = 4,
                                                 .head_dim = 6,
                                                 .d_ff = 20,
                                                 .max_seq = 8,
                                                 .rope_theta = 100,
                                                 .norm_eps = 1e-5f};

static char message[512];
static void capture(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    snprintf(message, sizeof message, "%s", text);
}

// Rank `rank` of a mesh without communicators.
static struct intra_mesh place(struct intra_mesh_config c, int rank) {
    return (struct intra_mesh){.c = c,
                               .tp_rank = rank % c.tp,
                               .dp_rank = rank / c.tp % c.dp,
                               .pp_rank = rank / (c.tp * c.dp)};
}

// Marks the elements of the full tensor that this part has, and compares their values.
static void compare(const struct intra_model *whole, const struct intra_model *part,
                    const struct intra_tensor *t, uint8_t *seen) {
    const struct intra_tensor *w = &whole->tensors[t->index];
    assert_string_equal(t->name, w->name);
    assert_true(t->trainable == w->trainable && t->all_grad_at == w->grad_at);
    assert_true(part->learns[t->index] == w->trainable && t->row_kind == w->row_kind);
    for (int32_t r = 0; r < t->rows; r++)
        for (int32_t c = 0; c < t->cols; c++) {
            size_t at = (size_t)(t->row0 + r) * (size_t)w->cols + (size_t)(t->col0 + c);
            assert_true(intra_param(part, t)[(size_t)r * (size_t)t->cols + (size_t)c] ==
                        intra_param(whole, w)[at]);
            seen[w->at + at] = (uint8_t)(seen[w->at + at] + !t->copy);
        }
}

static void check_mesh(struct intra_mesh_config c, const struct intra_model_config *mc,
                       const struct intra_trainable *tr) {
    struct intra_model *whole = NULL;
    assert_int_equal(intra_model_create(mc, tr, 3, &whole), NEB_OK);
    uint8_t *seen = calloc(whole->n_params, 1);
    assert_non_null(seen);
    for (int rank = 0; rank < c.dp * c.pp * c.tp; rank++) {
        struct intra_mesh mesh = place(c, rank);
        struct intra_model *part = NULL;
        assert_int_equal(intra_mesh_rank(&c, mesh.dp_rank, mesh.pp_rank, mesh.tp_rank), rank);
        assert_int_equal(intra_model_create_on(mc, tr, 3, &mesh, &part), NEB_OK);
        assert_int_equal(part->n_all_tensors, whole->n_tensors);
        assert_true(part->n_all_trainable == whole->n_trainable && part->low == whole->low);
        assert_true(part->n_grads % (size_t)c.dp == 0 && part->n_grads >= part->n_trainable);
        for (int32_t i = 0; i < part->n_tensors; i++)
            compare(whole, part, &part->tensors[i], seen);
        intra_model_destroy(&part);
    }
    for (int32_t i = 0; i < whole->n_tensors; i++) {
        const struct intra_tensor *w = &whole->tensors[i];
        // these are replicas, and tensors that are not split
        int times = c.dp * (w->cut == INTRA_CUT_NONE ? c.tp : 1);
        for (size_t k = 0; k < intra_tensor_size(w); k++)
            assert_int_equal(seen[w->at + k], times);
    }
    free(seen);
    intra_model_destroy(&whole);
}

static void test_parts(void **state) {
    (void)state;
    const struct intra_trainable full = {.mode = INTRA_TRAIN_FULL},
                                 lora = {.mode = INTRA_TRAIN_LORA,
                                         .lora_rank = 3,
                                         .lora_alpha = 6,
                                         .lora_targets = 127},
                                 last = {.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1};
    for (int v = 0; v < 4; v++) {
        struct intra_model_config mc = config;
        mc.tied = v & 1;
        mc.qkv_bias = v & 2;
        for (int32_t pp = 1; pp <= 4; pp *= 2)
            for (int32_t tp = 1; tp <= 4; tp *= 2)
                for (int32_t dp = 1; dp <= 3; dp += 2) {
                    struct intra_mesh_config c = {dp, pp, tp};
                    check_mesh(c, &mc, &full);
                    check_mesh(c, &mc, &lora);
                    check_mesh(c, &mc, &last);
                }
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        struct intra_mesh_config mesh;
        const char *expect;
    } cases[] = {
        {{0, 1, 1}, "mesh: dp 0, pp 1, tp 1 must each be at least 1"},
        {{1, 3, 1}, "mesh.pp: 3 does not divide model.n_layers 4"},
        {{1, 8, 1}, "mesh.pp: 8 does not divide model.n_layers 4"},
        {{1, 1, 8}, "mesh.tp: 8 does not divide model.n_kv_heads 4"},
        {{1, 1, 3}, "mesh.tp: 3 does not divide model.n_heads 8"},
    };
    neb_log_set_sink(capture, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(intra_mesh_check(&cases[i].mesh, &config), NEB_ERR_INVALID);
        assert_non_null(strstr(message, cases[i].expect));
    }
    struct intra_comm *self = NULL;
    struct intra_mesh *mesh = NULL;
    assert_int_equal(intra_comm_self(&self), NEB_OK);
    assert_int_equal(intra_mesh_create(&(struct intra_mesh_config){2, 1, 1}, self, &mesh),
                     NEB_ERR_INVALID);
    assert_non_null(strstr(message, "is not the number of ranks that were started, 1"));
    assert_null(mesh);
    intra_comm_destroy(&self);
    neb_log_set_sink(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
