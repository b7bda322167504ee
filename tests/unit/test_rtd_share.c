// SPDX-License-Identifier: Apache-2.0
// agent/rtd_share: an exchange makes one block of rows of two models almost equal. Blocks take
// turns, an exchange in flight survives a checkpoint, and bad frames do not change the model.
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "agent/train/rtd_share.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { V = 3000, D = 32 }; // 2,048 rows in the first block, 952 in the second

static struct intra_model *make(uint64_t seed) {
    struct intra_model_config c = {.vocab = V,
                                   .d_model = D,
                                   .n_layers = 1,
                                   .n_heads = 2,
                                   .n_kv_heads = 2,
                                   .head_dim = 16,
                                   .d_ff = 16,
                                   .max_seq = 8,
                                   .rope_theta = 10000,
                                   .norm_eps = 1e-5f,
                                   .tied = true};
    struct intra_model *m = NULL;
    assert_int_equal(intra_model_create(&c, &(struct intra_trainable){0}, seed, &m), NEB_OK);
    return m;
}

static double distance(const struct intra_model *a, const struct intra_model *b, int32_t row0,
                       int32_t rows) {
    double sum = 0;
    for (size_t i = (size_t)row0 * D; i < (size_t)(row0 + rows) * D; i++) {
        double d = (double)a->params[a->embed->at + i] - (double)b->params[b->embed->at + i];
        sum += d * d;
    }
    return sqrt(sum);
}

static void test_blocks_converge(void **state) {
    (void)state;
    struct intra_model *a = make(1), *b = make(2);
    struct rtd_share *x = NULL, *y = NULL;
    assert_int_equal(rtd_share_create(a, &x), NEB_OK);
    assert_int_equal(rtd_share_create(b, &y), NEB_OK);
    assert_int_equal(x->block, RTD_SHARE_BYTES / D);
    assert_int_equal(x->n_blocks, 2);
    for (int64_t k = 1; k <= 2; k++) {
        int32_t first = k % 2 ? x->block : 0, rows = k % 2 ? V - x->block : x->block;
        double before = distance(a, b, first, rows),
               other = distance(a, b, k % 2 ? 0 : x->block, 900);
        assert_int_equal(rtd_share_send(x, k), NEB_OK);
        assert_int_equal(rtd_share_send(y, k), NEB_OK);
        assert_true(x->frame.len <= RTD_SHARE_FRAME_MAX);
        assert_int_equal(rtd_share_take(x, k, y->frame.p, y->frame.len), NEB_OK);
        assert_int_equal(rtd_share_take(y, k, x->frame.p, x->frame.len), NEB_OK);
        rtd_share_merge(x, k);
        rtd_share_merge(y, k);
        assert_true(distance(a, b, first, rows) < 0.05 * before); // the error of int8
        assert_true(distance(a, b, k % 2 ? 0 : x->block, 900) == other);
    }
    rtd_share_destroy(&x);
    rtd_share_destroy(&y);
    intra_model_destroy(&a);
    intra_model_destroy(&b);
}

static void test_refuses_bad_frames(void **state) {
    (void)state;
    struct intra_model *a = make(1);
    struct rtd_share *x = NULL;
    struct neb_buf was = {0};
    assert_int_equal(rtd_share_create(a, &x), NEB_OK);
    assert_int_equal(rtd_share_send(x, 0), NEB_OK);
    neb_buf_add(&was, a->params, sizeof(float) * a->n_params);
    struct neb_buf f = {0};
    neb_buf_add(&f, x->frame.p, x->frame.len);
    // the frame is for the other block
    assert_int_equal(rtd_share_take(x, 1, f.p, f.len), NEB_ERR_FORMAT);
    for (size_t n = 0; n < f.len; n += 1 + f.len / 97)
        assert_int_equal(rtd_share_take(x, 0, f.p, n), NEB_ERR_FORMAT);
    struct cmp_codec fp32;
    neb_buf_clear(&f);
    assert_int_equal(cmp_codec_parse("fp32", &fp32), NEB_OK);
    assert_int_equal(cmp_encode(x->work, &fp32, a->params, (size_t)x->block * D, &f), NEB_OK);
    assert_int_equal(rtd_share_take(x, 0, f.p, f.len), NEB_ERR_FORMAT); // the codec is too large
    struct neb_rng r = neb_rng_make(4, 4);
    for (int i = 0; i < 2000; i++) { // any bytes: refused, or finite
        neb_buf_clear(&f);
        neb_buf_add(&f, x->frame.p, x->frame.len);
        for (uint64_t k = 1 + neb_rng_below(&r, 3); k > 0; k--)
            f.p[neb_rng_below(&r, k == 1 ? 64 : f.len)] = (uint8_t)neb_rng_u64(&r);
        enum neb_status st = rtd_share_take(x, 0, f.p, f.len);
        assert_true(st == NEB_OK || st == NEB_ERR_FORMAT);
        for (size_t k = 0; st == NEB_OK && k < (size_t)x->block * D; k++)
            assert_true(isfinite(x->theirs[k]));
    }
    assert_memory_equal(was.p, a->params, was.len);
    a->params[a->embed->at + 5] = NAN;
    assert_int_equal(rtd_share_send(x, 0), NEB_ERR_INVALID);
    neb_buf_free(&was);
    neb_buf_free(&f);
    rtd_share_destroy(&x);
    intra_model_destroy(&a);
}

// No gate checks the bytes of a stream. So one exchange must not move rows far, neither a block nor
// one row.
static void test_rows_move_little(void **state) {
    (void)state;
    struct intra_model *a = make(1), *b = make(1);
    struct rtd_share *x = NULL, *y = NULL;
    struct neb_buf was = {0};
    assert_int_equal(rtd_share_create(a, &x), NEB_OK);
    assert_int_equal(rtd_share_create(b, &y), NEB_OK);
    neb_buf_add(&was, a->params, sizeof(float) * a->n_params);
    float *rows = b->params + b->embed->at;
    size_t n = (size_t)y->block * D;
    const struct {
        size_t rows; // changed rows in the block
        float times;
        enum neb_status st;
    } cases[] = {{0, 1, NEB_OK},
                 // the row points the other way and is longer: at most seven times its length
                 {(size_t)y->block, -5, NEB_OK},
                 {(size_t)y->block, 20, NEB_ERR_FORMAT},
                 {(size_t)y->block, 1e37f, NEB_ERR_FORMAT},
                 {1, 20, NEB_ERR_FORMAT},
                 {1, -1e37f, NEB_ERR_FORMAT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(rows, a->params + a->embed->at, n * sizeof *rows);
        for (size_t k = 0; k < cases[i].rows * D; k++)
            rows[k] *= cases[i].times;
        assert_int_equal(rtd_share_send(y, 0), NEB_OK);
        assert_int_equal(rtd_share_take(x, 0, y->frame.p, y->frame.len), cases[i].st);
        assert_memory_equal(was.p, a->params, was.len);
    }
    neb_buf_free(&was);
    rtd_share_destroy(&x);
    rtd_share_destroy(&y);
    intra_model_destroy(&a);
    intra_model_destroy(&b);
}

static void test_checkpoint(void **state) {
    (void)state;
    char dir[] = "/tmp/nebula-share-XXXXXX", path[NEB_PATH_MAX];
    struct intra_model *a = make(1), *b = make(2);
    struct rtd_share *x = NULL, *y = NULL;
    struct intra_ckpt_writer *w = NULL;
    struct intra_ckpt *c = NULL;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(neb_path(path, sizeof path, dir, "share.ckpt"), NEB_OK);
    assert_int_equal(rtd_share_create(a, &x), NEB_OK);
    assert_int_equal(rtd_share_create(b, &y), NEB_OK);
    assert_int_equal(rtd_share_send(x, 7), NEB_OK);
    x->pending = 7;
    assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
    assert_int_equal(rtd_share_save(x, w), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
    assert_int_equal(intra_ckpt_open(path, true, &c), NEB_OK);
    assert_int_equal(rtd_share_restore(y, c), NEB_OK);
    intra_ckpt_close(&c);
    assert_int_equal(y->pending, 7);
    assert_memory_equal(y->ours, x->ours, sizeof(float) * (size_t)(V - x->block) * D);
    assert_int_equal(y->frame.len, x->frame.len);
    unlink(path);
    rmdir(dir);
    rtd_share_destroy(&x);
    rtd_share_destroy(&y);
    intra_model_destroy(&a);
    intra_model_destroy(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_converge), cmocka_unit_test(test_refuses_bad_frames),
        cmocka_unit_test(test_rows_move_little), cmocka_unit_test(test_checkpoint)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
