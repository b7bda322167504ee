// SPDX-License-Identifier: Apache-2.0
// Hugging Face folders: the logits after an import are compared with those of transformers
// (make_hf_golden.py; the values of parameters follow from their names). All round trips are made:
// fp32 bit by bit, bf16 rounded once, shards, LoRA adapters alone and merged.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "kernels/half.h"
#include "intra/hf/hf.h"
#include "intra/train/trainer.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { V = 29, T = 9 };

static const struct golden {
    const char *name, *config;
    double logits[T][V];
} goldens[] = {
#include "tests/golden/hf_golden.inc"
};
enum { N_GOLDENS = sizeof goldens / sizeof goldens[0] };
static const int32_t tokens[T] = {3, 28, 7, 7, 0, 19, 11, 2, 25};

static char dir[] = "/tmp/nebula-hf-XXXXXX", message[2048];

static void keep(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    if (level == NEB_LOG_ERROR)
        snprintf(message, sizeof message, "%s", text);
}

static const char *in(char *out, const char *name, const char *file) { // dir/name/file
    snprintf(out, NEB_PATH_MAX, "%s/%s%s%s", dir, name, *file ? "/" : "", file);
    return out;
}

// The folder that transformers would have written for golden g.
static void write_folder(const struct golden *g) {
    char path[NEB_PATH_MAX];
    struct intra_hf_config c;
    struct intra_model *m = NULL;
    struct intra_st_spec specs[32];
    struct intra_st_writer *w = NULL;
    assert_int_equal(neb_fs_mkdirs(in(path, g->name, ""), 0755), NEB_OK);
    assert_int_equal(
        neb_fs_write(in(path, g->name, "config.json"), g->config, strlen(g->config), 0644), NEB_OK);
    assert_int_equal(intra_hf_config_read(in(path, g->name, ""), &c), NEB_OK);
    assert_int_equal(
        intra_model_create(&c.model, &(struct intra_trainable){.mode = INTRA_TRAIN_FULL}, 1, &m),
        NEB_OK);
    testing_set_params(m);
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        bool vector = t->rows == 1;
        specs[i] = (struct intra_st_spec){
            t->name, vector ? 1 : 2, {(uint64_t)(vector ? t->cols : t->rows), (uint64_t)t->cols}};
    }
    assert_int_equal(
        intra_st_writer_create(path, "model", specs, m->n_tensors, INTRA_ST_F32, 0, &w), NEB_OK);
    for (int32_t i = 0; i < m->n_tensors; i++)
        assert_int_equal(intra_st_writer_add(w, intra_param(m, &m->tensors[i]),
                                             intra_tensor_size(&m->tensors[i])),
                         NEB_OK);
    assert_int_equal(intra_st_writer_commit(w), NEB_OK);
    intra_st_writer_destroy(&w);
    intra_model_destroy(&m);
}

static void import(const char *from, const char *adapter, const char *to) {
    char a[NEB_PATH_MAX], b[NEB_PATH_MAX], c[NEB_PATH_MAX];
    struct intra_hf_imported r;
    struct intra_hf_import i = {.dir = in(a, from, ""),
                                .adapter = adapter ? in(b, adapter, "") : NULL,
                                .out = in(c, to, "")};
    if (intra_hf_import(&i, &r) != NEB_OK)
        fail_msg("import of %s: %s", from, message);
}

static void export(const char *file, const char *to, struct intra_hf_export e) {
    char b[NEB_PATH_MAX];
    struct intra_hf_exported r;
    e.checkpoint = file;
    e.dir = in(b, to, "");
    if (intra_hf_export(&e, &r) != NEB_OK)
        fail_msg("export to %s: %s", to, message);
}

static struct intra_model *load(const char *file) {
    struct intra_ckpt *c = NULL;
    struct intra_model *m = NULL;
    assert_int_equal(intra_ckpt_open(file, true, &c), NEB_OK);
    assert_int_equal(intra_model_load(c, &m), NEB_OK);
    intra_ckpt_close(&c);
    return m;
}

static void compute(struct kern *K, struct intra_model *m, double out[T][V]) {
    float row[V];
    struct intra_device *acts = NULL;
    assert_int_equal(intra_device_on_host(K, m, 1, T, false, false, &acts), NEB_OK);
    assert_int_equal(intra_device_pass(acts,
                                       &(struct intra_batch){.tokens = tokens, .B = 1, .T = T}, 0,
                                       NULL, NULL),
                     NEB_OK);
    for (int t = 0; t < T; t++) {
        intra_device_logits(acts, t, 1, row);
        for (int v = 0; v < V; v++)
            out[t][v] = (double)row[v];
    }
    intra_device_destroy(&acts);
}

static double worst(const double *a, const double *b) {
    double most = 0;
    for (int i = 0; i < T * V; i++) {
        double d = fabs(a[i] - b[i]);
        most = d <= most ? most : d; // NaN counts as the largest
    }
    return most;
}

static void test_logits(void **state) {
    (void)state;
    for (int i = 0; i < N_GOLDENS; i++) {
        char path[NEB_PATH_MAX], name[64];
        double logits[T][V];
        struct kern *K = NULL;
        write_folder(&goldens[i]);
        snprintf(name, sizeof name, "%s-ckpt", goldens[i].name);
        import(goldens[i].name, NULL, name);
        struct intra_model *m = load(in(path, name, "model.ckpt"));
        for (int fast = 0; fast < 2; fast++) {
            assert_int_equal(fast ? kern_cpu_create(1, &K) : kern_ref_create(&K), NEB_OK);
            compute(K, m, logits);
            double d = worst(logits[0], goldens[i].logits[0]);
            if (!(d < 1e-5))
                fail_msg("%s, %s: a logit differs by %g", goldens[i].name, K->ops->name, d);
            kern_destroy(&K);
        }
        intra_model_destroy(&m);
    }
}

static void same_bytes(const char *a, const char *b) {
    struct neb_buf x = {0}, y = {0};
    assert_int_equal(neb_fs_read(a, 1 << 24, &x), NEB_OK);
    assert_int_equal(neb_fs_read(b, 1 << 24, &y), NEB_OK);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.p, y.p, x.len);
    neb_buf_free(&x);
    neb_buf_free(&y);
}

// fp32: the checkpoint after a round trip is the same file, from one file and from shards.
static void test_round_trip(void **state) {
    (void)state;
    for (int i = 0; i < N_GOLDENS; i++)
        for (int shards = 0; shards < 2; shards++) {
            char ckpt[64], out[64], back[64], a[NEB_PATH_MAX], b[NEB_PATH_MAX];
            snprintf(ckpt, sizeof ckpt, "%s-ckpt", goldens[i].name);
            snprintf(out, sizeof out, "%s-out%d", goldens[i].name, shards);
            snprintf(back, sizeof back, "%s-back%d", goldens[i].name, shards);
            export(
                in(a, ckpt, "model.ckpt"), out,
                (struct intra_hf_export){.dtype = INTRA_ST_F32, .shard_bytes = shards ? 3000 : 0});
            assert_int_equal(neb_fs_exists(in(b, out, "model.safetensors.index.json")), shards);
            import(out, NULL, back);
            same_bytes(in(a, ckpt, "model.ckpt"), in(b, back, "model.ckpt"));
        }
}

static void test_bf16(void **state) {
    (void)state;
    char a[NEB_PATH_MAX], b[NEB_PATH_MAX];
    export(in(a, "qwen2-ckpt", "model.ckpt"), "bf16-out",
           (struct intra_hf_export){.dtype = INTRA_ST_BF16, .shard_bytes = 2000});
    import("bf16-out", NULL, "bf16-back");
    struct intra_model *m = load(a), *r = load(in(b, "bf16-back", "model.ckpt"));
    bool changed = false;
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (size_t k = 0; k < intra_tensor_size(&m->tensors[i]); k++) {
            float x = intra_param(m, &m->tensors[i])[k], y = intra_param(r, &r->tensors[i])[k];
            assert_true(y == kern_f32_of_bf16(kern_bf16_of_f32(x)));
            changed = changed || x != y;
        }
    assert_true(changed);
    export(b, "bf16-again", (struct intra_hf_export){.dtype = INTRA_ST_BF16}); // rounded only once
    import("bf16-again", NULL, "bf16-twice");
    same_bytes(in(a, "bf16-back", "model.ckpt"), in(b, "bf16-twice", "model.ckpt"));
    intra_model_destroy(&m);
    intra_model_destroy(&r);
}

// A checkpoint with adapters: merged at export it gives the logits of the model with its adapters;
// exported as a base and a PEFT folder, it comes back byte for byte.
static void test_lora(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], a[NEB_PATH_MAX], b[NEB_PATH_MAX];
    struct intra_model *plain = load(in(path, "llama-ckpt", "model.ckpt")), *m = NULL;
    struct intra_ckpt_writer *w = NULL;
    const struct intra_trainable t = {.mode = INTRA_TRAIN_LORA,
                                      .lora_rank = 3,
                                      .lora_alpha = 5,
                                      .lora_targets =
                                          INTRA_LORA_Q | INTRA_LORA_V | INTRA_LORA_DOWN};
    double with[T][V], merged[T][V], before[T][V];
    struct kern *K = NULL;
    assert_int_equal(kern_ref_create(&K), NEB_OK);
    assert_int_equal(intra_model_create(&plain->c, &t, 1, &m), NEB_OK);
    testing_set_params(m);
    compute(K, plain, before);
    compute(K, m, with);
    assert_true(worst(before[0], with[0]) > 0.1); // the adapters have an effect
    assert_int_equal(intra_ckpt_create(in(path, "lora.ckpt", ""), &w), NEB_OK);
    assert_int_equal(intra_model_save(m, w), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);

    export(path, "merged", (struct intra_hf_export){.what = INTRA_HF_MERGED, .K = K});
    import("merged", NULL, "merged-ckpt");
    struct intra_model *r = load(in(a, "merged-ckpt", "model.ckpt"));
    compute(K, r, merged);
    assert_true(worst(with[0], merged[0]) < 1e-5);

    export(path, "adapter", (struct intra_hf_export){.what = INTRA_HF_ADAPTER});
    import("llama", "adapter", "lora-back");
    same_bytes(path, in(b, "lora-back", "model.ckpt"));

    struct intra_hf_exported e;
    struct intra_hf_export bare = {.checkpoint = path, .dir = in(a, "never", "")};
    assert_int_equal(intra_hf_export(&bare, &e), NEB_ERR_STATE);
    assert_non_null(strstr(message, "LoRA adapters"));
    assert_false(neb_fs_exists(a));
    intra_model_destroy(&r);
    intra_model_destroy(&plain);
    intra_model_destroy(&m);
    kern_destroy(&K);
}

static int set_up(void **state) {
    (void)state;
    neb_log_set_sink(keep, NULL);
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    neb_log_set_sink(NULL, NULL);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        // later tests use the checkpoints of the first
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_lora),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
