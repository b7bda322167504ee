// SPDX-License-Identifier: Apache-2.0
// Scaled rotary positions against a second implementation of the formula (as in transformers,
// modeling_rope_utils.py: _compute_llama3_parameters) and against known numbers; bad values are
// refused; models with scaling give other results, and a checkpoint keeps the scaling.
#include "agent/base/log.h"
#include "intra/model/rope.h"
#include "intra/train/trainer.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct kern_rope_scaling
    llama31 = {.type = KERN_ROPE_LLAMA3, .factor = 8, .low = 1, .high = 4, .original = 8192},
    llama32 = {.type = KERN_ROPE_LLAMA3, .factor = 32, .low = 1, .high = 4, .original = 8192},
    small = {.type = KERN_ROPE_LLAMA3, .factor = 2.5f, .low = 1.5f, .high = 3, .original = 40},
    linear = {.type = KERN_ROPE_LINEAR, .factor = 4}, plain = {0};

static double second_definition(double theta, int head_dim, int i,
                                const struct kern_rope_scaling *s) {
    const double two_pi = 6.283185307179586;
    double frequency = 1 / pow(theta, 2.0 * i / head_dim), wavelength = two_pi / frequency;
    double factor = (double)s->factor, low = (double)s->low, high = (double)s->high;
    if (s->type == KERN_ROPE_DEFAULT)
        return frequency;
    if (s->type == KERN_ROPE_LINEAR || wavelength > s->original / low)
        return frequency / factor;
    if (wavelength < s->original / high)
        return frequency;
    double smooth = (s->original / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

static void test_second_definition(void **state) {
    (void)state;
    static const struct {
        double theta;
        int head_dim, length;
        const struct kern_rope_scaling *s;
    } all[] = {{5e5, 128, 600, &llama31}, {5e5, 64, 600, &llama32}, {1e4, 34, 300, &small},
               {1e4, 16, 300, &linear},   {1e4, 16, 300, &plain},   {1e4, 16, 300, NULL}};
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        int pairs = all[k].head_dim / 2, kinds[3] = {0};
        float *table = calloc((size_t)all[k].length * (size_t)pairs * 2, sizeof *table);
        assert_non_null(table);
        kern_rope_table(table, all[k].length, all[k].head_dim, all[k].theta, all[k].s);
        for (int i = 0; i < pairs; i++) {
            const struct kern_rope_scaling *s = all[k].s ? all[k].s : &plain;
            double f = second_definition(all[k].theta, all[k].head_dim, i, s),
                   whole = second_definition(all[k].theta, all[k].head_dim, i, &plain);
            kinds[f == whole ? 0 : fabs(f * (double)s->factor - whole) < 1e-12 * whole ? 2 : 1]++;
            for (int t = 0; t < all[k].length; t++) {
                const float *at = table + ((size_t)t * (size_t)pairs + (size_t)i) * 2;
                if (!(fabs((double)at[0] - cos(t * f)) < 1e-6) ||
                    !(fabs((double)at[1] - sin(t * f)) < 1e-6))
                    fail_msg("table %zu, position %d, pair %d: %g, %g, not %g, %g", k, t, i,
                             (double)at[0], (double)at[1], cos(t * f), sin(t * f));
            }
        }
        if (k < 3) // some pairs of each kind: kept, between, divided
            assert_true(kinds[0] && kinds[1] && kinds[2]);
        free(table);
    }
}

// Frequencies of Llama 3.1 8B and Llama 3.2 1B, computed by a separate program.
static void test_known_numbers(void **state) {
    (void)state;
    static const struct {
        const struct kern_rope_scaling *s;
        int head_dim, pair;
        double frequency;
    } all[] = {
        {&llama31, 128, 28, 0.0032114459947525913}, {&llama31, 128, 29, 0.002166570763503359},
        {&llama31, 128, 32, 0.0005248461609929547}, {&llama31, 128, 34, 0.00017850781276799638},
        {&llama31, 128, 35, 9.556212353964683e-05}, {&llama31, 128, 63, 3.068925988914511e-07},
        {&llama32, 64, 14, 0.0032114459947525913},  {&llama32, 64, 16, 0.00042955679655936815},
        {&llama32, 64, 31, 9.418306725434909e-08},
    };
    enum { LENGTH = 4097 };
    static float table[LENGTH * 128];
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        kern_rope_table(table, LENGTH, all[k].head_dim, 5e5, all[k].s);
        const float *at = table + ((LENGTH - 1) * (all[k].head_dim / 2) + all[k].pair) * 2;
        double angle = (LENGTH - 1) * all[k].frequency;
        if (!(fabs((double)at[0] - cos(angle)) < 1e-6) ||
            !(fabs((double)at[1] - sin(angle)) < 1e-6))
            fail_msg("%zu: %.9g, %.9g, not %.9g, %.9g", k, (double)at[0], (double)at[1], cos(angle),
                     sin(angle));
    }
}

static void test_values(void **state) {
    (void)state;
    static const struct {
        struct kern_rope_scaling s;
        const char *key, *reason; // NULL: valid
    } all[] = {
        {{0}, NULL, NULL},
        {{KERN_ROPE_LLAMA3, 8, 1, 4, 8192}, NULL, NULL},
        {{KERN_ROPE_LLAMA3, 1, 1, 4, 1}, NULL, NULL},
        {{KERN_ROPE_LINEAR, 1, 0, 0, 0}, NULL, NULL},
        {{0, 8, 0, 0, 0}, "factor", "has no effect with rope_type default"},
        {{KERN_ROPE_LINEAR, 8, 0, 0, 5}, "original_max_position_embeddings", "rope_type linear"},
        {{KERN_ROPE_LINEAR, 8, 1, 0, 0}, "low_freq_factor", "rope_type linear"},
        {{KERN_ROPE_LINEAR, 0.5f, 0, 0, 0}, "factor", "0.5 is not a number from 1 to 1000000"},
        {{KERN_ROPE_LLAMA3, 0, 1, 4, 8192}, "factor", "missing or 0; it must be a number from 1"},
        {{KERN_ROPE_LLAMA3, INFINITY, 1, 4, 8192}, "factor", "inf is not a number from 1"},
        {{KERN_ROPE_LLAMA3, NAN, 1, 4, 8192}, "factor", "nan is not a number from 1"},
        {{KERN_ROPE_LLAMA3, 8, 0, 4, 8192},
         "low_freq_factor",
         "missing or 0; it must be a number above 0"},
        {{KERN_ROPE_LLAMA3, 8, -1, 4, 8192}, "low_freq_factor", "-1 is not a number above 0"},
        {{KERN_ROPE_LLAMA3, 8, 4, 4, 8192},
         "high_freq_factor",
         "4 is not a number above low_freq_factor"},
        {{KERN_ROPE_LLAMA3, 8, 1, NAN, 8192}, "high_freq_factor", "nan is not a number above"},
        {{KERN_ROPE_LLAMA3, 8, 1, 4, 0},
         "original_max_position_embeddings",
         "missing or 0; it must be a whole"},
        {{KERN_ROPE_LLAMA3, 8, 1, 4, -5},
         "original_max_position_embeddings",
         "-5 is not a whole number"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char why[INTRA_ROPE_TEXT] = "";
        const char *key = intra_rope_check(&all[i].s, why);
        if (!key != !all[i].key ||
            (key && (strcmp(key, all[i].key) || !strstr(why, all[i].reason))))
            fail_msg("%zu: %s: %s", i, key ? key : "good", why);
    }
    char text[INTRA_ROPE_TEXT];
    assert_string_equal(intra_rope_text(&plain, text), "default");
    assert_string_equal(intra_rope_text(&linear, text), "linear, factor 4");
    assert_string_equal(intra_rope_text(&llama31, text),
                        "llama3, factor 8, low_freq_factor 1, high_freq_factor 4, "
                        "original_max_position_embeddings 8192");
}

// ---- models ----

static char dir[] = "/tmp/nebula-rope-XXXXXX", message[1024];

static void keep(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    snprintf(message, sizeof message, "%s", text);
}

static const char *in(char *out, const char *name) {
    snprintf(out, NEB_PATH_MAX, "%s/%s", dir, name);
    return out;
}

static struct intra_model *model(const struct kern_rope_scaling *s, enum intra_head head) {
    struct intra_model_config c =
        testing_small_trainer((struct intra_trainable){.mode = INTRA_TRAIN_FULL}).model;
    struct intra_model *m = NULL;
    c.rope_scaling = *s;
    c.head = head; // the model is tied, as a discriminator must be
    c.head_dim = 6, c.max_seq = 8;
    assert_int_equal(
        intra_model_create(&c, &(struct intra_trainable){.mode = INTRA_TRAIN_FULL}, 1, &m), NEB_OK);
    testing_set_params(m);
    return m;
}

// returns the bytes of its description
static uint64_t save(const struct intra_model *m, const char *path) {
    struct intra_ckpt_writer *w = NULL;
    struct intra_ckpt *k = NULL;
    assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
    assert_int_equal(intra_model_save(m, w), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
    assert_int_equal(intra_ckpt_open(path, true, &k), NEB_OK);
    uint64_t bytes = intra_ckpt_find(k, "model.config")->bytes;
    intra_ckpt_close(&k);
    return bytes;
}

// The stored description of a model holds head and scaling only where they are not the default.
static void test_checkpoint(void **state) {
    (void)state;
    const struct kern_rope_scaling *const all[] = {&plain, &linear, &small};
    char path[NEB_PATH_MAX];
    in(path, "m.ckpt");
    for (int i = 0; i < 3; i++)
        for (int head = INTRA_HEAD_LM; head <= INTRA_HEAD_RTD; head++) {
            struct intra_model *m = model(all[i], (enum intra_head)head), *back = NULL;
            struct intra_ckpt *k = NULL;
            assert_int_equal(save(m, path), 19 * 4 + (i || head ? 4 : 0) + (i ? 5 * 4 : 0));
            assert_int_equal(intra_ckpt_open(path, true, &k), NEB_OK);
            assert_int_equal(intra_model_load(k, &back), NEB_OK);
            assert_true(intra_rope_same(&back->c.rope_scaling, all[i]));
            assert_int_equal(back->c.head, head);
            assert_memory_equal(back->rope, m->rope,
                                sizeof *m->rope * (size_t)m->c.max_seq * (size_t)m->c.head_dim);
            intra_ckpt_close(&k);
            intra_model_destroy(&m);
            intra_model_destroy(&back);
        }
}

// Words of the description after the 19th (head; type, factor, low, high, original), and the
// result.
static void test_bad_descriptions(void **state) {
    (void)state;
    const float f[] = {2.5f, 1.5f, 3, 0.5f};
    uint32_t bits[4];
    memcpy(bits, f, sizeof bits);
    const struct {
        int n;
        uint32_t words[7];
        enum neb_status st;
    } all[] = {
        {6, {0, KERN_ROPE_LLAMA3, bits[0], bits[1], bits[2], 40}, NEB_OK},
        {5, {0, KERN_ROPE_LLAMA3, bits[0], bits[1], bits[2]}, NEB_ERR_FORMAT},
        {7, {0, KERN_ROPE_LLAMA3, bits[0], bits[1], bits[2], 40, 0}, NEB_ERR_FORMAT},
        {6, {0, KERN_ROPE_DEFAULT, 0, 0, 0, 0}, NEB_ERR_FORMAT},
        {6, {0, 3, bits[0], bits[1], bits[2], 40}, NEB_ERR_FORMAT},
        {6, {2, KERN_ROPE_LLAMA3, bits[0], bits[1], bits[2], 40}, NEB_ERR_FORMAT},
        {6, {0, KERN_ROPE_LLAMA3, bits[3], bits[1], bits[2], 40}, NEB_ERR_INVALID},
        {6, {0, KERN_ROPE_LLAMA3, bits[0], bits[2], bits[1], 40}, NEB_ERR_INVALID},
        {6, {0, KERN_ROPE_LLAMA3, bits[0], bits[1], bits[2], UINT32_MAX}, NEB_ERR_INVALID},
        {6, {0, KERN_ROPE_LINEAR, bits[0], bits[1], bits[2], 40}, NEB_ERR_INVALID},
    };
    char path[NEB_PATH_MAX], bad[NEB_PATH_MAX];
    struct intra_model *m = model(&plain, INTRA_HEAD_LM);
    struct intra_ckpt *k = NULL;
    save(m, in(path, "plain.ckpt"));
    assert_int_equal(intra_ckpt_open(path, true, &k), NEB_OK);
    const struct intra_ckpt_section *s = intra_ckpt_find(k, "model.config");
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct intra_ckpt_writer *w = NULL;
        struct intra_ckpt *l = NULL;
        struct intra_model *back = NULL;
        struct neb_buf b = {0};
        neb_buf_add(&b, intra_ckpt_data(k, s), s->bytes);
        for (int n = 0; n < all[i].n; n++)
            neb_buf_u32(&b, all[i].words[n]);
        assert_int_equal(intra_ckpt_create(in(bad, "bad.ckpt"), &w), NEB_OK);
        assert_int_equal(intra_ckpt_add(w, "model.config", INTRA_BYTES, b.len, 1, b.p), NEB_OK);
        for (int32_t t = 0; t < m->n_tensors; t++)
            assert_int_equal(
                intra_ckpt_add(w, m->tensors[t].name, INTRA_F32, (uint64_t)m->tensors[t].rows,
                               (uint64_t)m->tensors[t].cols, intra_param(m, &m->tensors[t])),
                NEB_OK);
        assert_int_equal(intra_ckpt_commit(w), NEB_OK);
        intra_ckpt_writer_destroy(&w);
        assert_int_equal(intra_ckpt_open(bad, true, &l), NEB_OK);
        enum neb_status st = intra_model_load(l, &back);
        if (st != all[i].st)
            fail_msg("description %zu: status %d (%s)", i, st, message);
        intra_model_destroy(&back);
        intra_ckpt_close(&l);
        neb_buf_free(&b);
    }
    intra_ckpt_close(&k);
    intra_model_destroy(&m);
}

// The same parameters give other logits with scaled positions.
static void test_scaling_changes_logits(void **state) {
    (void)state;
    enum { LENGTH = 4, VOCAB_MAX = 64 };
    const struct kern_rope_scaling *const all[] = {&plain, &linear, &small};
    static const int32_t tokens[LENGTH] = {1, 3, 2, 0};
    float logits[3][VOCAB_MAX];
    struct kern *K = NULL;
    assert_int_equal(kern_ref_create(&K), NEB_OK);
    for (int i = 0; i < 3; i++) {
        struct intra_model *m = model(all[i], INTRA_HEAD_LM);
        struct intra_device *a = NULL;
        assert_true(m->c.vocab <= VOCAB_MAX && m->c.max_seq >= LENGTH);
        assert_int_equal(intra_device_on_host(K, m, 1, LENGTH, false, false, &a), NEB_OK);
        assert_int_equal(
            intra_device_pass(a, &(struct intra_batch){.tokens = tokens, .B = 1, .T = LENGTH}, 0,
                              NULL, NULL),
            NEB_OK);
        memset(logits[i], 0, sizeof logits[i]);
        intra_device_logits(a, LENGTH - 1, 1, logits[i]);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(logits[i], logits[j], sizeof logits[i]);
        intra_device_destroy(&a);
        intra_model_destroy(&m);
    }
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
        cmocka_unit_test(test_second_definition),
        cmocka_unit_test(test_known_numbers),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_checkpoint),
        cmocka_unit_test(test_bad_descriptions),
        cmocka_unit_test(test_scaling_changes_logits),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
