// SPDX-License-Identifier: Apache-2.0
// Muon (intra/model/optim.h): steps of matrices against the definition in double precision, all
// else as with AdamW; memory, balance over replicas, checkpoints.
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "intra/train/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { V = 29, T = 8, B = 2, N = B * T, STEPS = 5 };
#define LR    0.02
#define DECAY 0.1

static struct kern *K;
static char dir[] = "/tmp/nebula-muon-XXXXXX", path[NEB_PATH_MAX], message[1024];

static void swallow(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    if (level == NEB_LOG_ERROR)
        snprintf(message, sizeof message, "%s", text);
}

// q is square, k and v are wide, gate and up tall.
static struct intra_trainer_config config(enum intra_optim_kind kind) {
    return (struct intra_trainer_config){
        .model = {.vocab = V,
                  .d_model = 24,
                  .n_layers = 2,
                  .n_heads = 4,
                  .n_kv_heads = 2,
                  .head_dim = 6,
                  .d_ff = 40,
                  .max_seq = T,
                  .rope_theta = 100,
                  .norm_eps = 1e-5f,
                  .tied = true,
                  .qkv_bias = true,
                  .mask = KERN_MASK_CAUSAL},
        .trainable = {.mode = INTRA_TRAIN_FULL},
        .batch = B,
        .seq_len = T,
        .accumulate = 1,
        .seed = 4,
        .optim = {.kind = kind,
                  .momentum = 0.95f,
                  .schedule = {.kind = INTRA_SCHEDULE_CONSTANT, .lr = (float)LR},
                  .clip = {.kind = INTRA_CLIP_GLOBAL_NORM, .max_norm = 0.1f},
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .weight_decay = (float)DECAY}};
}

static struct intra_trainer *make(enum intra_optim_kind kind) {
    struct intra_trainer_config c = config(kind);
    struct intra_trainer *t = NULL;
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
    return t;
}

static void micro(struct intra_trainer *t, uint64_t batch) {
    int32_t x[N], y[N];
    struct neb_rng r = neb_rng_make(batch, 9);
    for (int i = 0; i < N; i++) {
        x[i] = (int32_t)neb_rng_below(&r, V);
        y[i] = (x[i] * 7 + 3) % V;
    }
    intra_trainer_micro(t, x, y);
}

static double step(struct intra_trainer *t, uint64_t batch) {
    struct intra_step_stats s;
    micro(t, batch);
    intra_trainer_update(t, &s);
    return s.loss;
}

// ---- the definition -----------------------------------------------------------------------------

// out (r, r) = x x^T, x (r, c)
static void gram(const double *x, int r, int c, double *out) {
    for (int i = 0; i < r; i++)
        for (int j = 0; j < r; j++) {
            out[i * r + j] = 0;
            for (int k = 0; k < c; k++)
                out[i * r + j] += x[i * c + k] * x[j * c + k];
        }
}

static void iterate(double *x, int r, int c) {
    double norm = 0, *A = calloc((size_t)(r * r), sizeof *A),
           *BB = calloc((size_t)(r * r), sizeof *A), *y = calloc((size_t)(r * c), sizeof *y);
    for (int i = 0; i < r * c; i++)
        norm += x[i] * x[i];
    for (int i = 0; i < r * c; i++)
        x[i] /= sqrt(norm) + 1e-7;
    for (int n = 0; n < 5; n++) {
        gram(x, r, c, A);
        gram(A, r, r, BB); // A is symmetric
        for (int i = 0; i < r * r; i++)
            BB[i] = -4.7750 * A[i] + 2.0315 * BB[i];
        for (int i = 0; i < r; i++)
            for (int j = 0; j < c; j++) {
                y[i * c + j] = 3.4445 * x[i * c + j];
                for (int k = 0; k < r; k++)
                    y[i * c + j] += BB[i * r + k] * x[k * c + j];
            }
        memcpy(x, y, (size_t)(r * c) * sizeof *x);
    }
    free(A);
    free(BB);
    free(y);
}

// One step of p (rows, cols) with the clipped gradient g; m is the momentum.
static void define(double *p, double *m, const double *g, int rows, int cols) {
    bool tall = rows > cols;
    double *x = calloc((size_t)(rows * cols), sizeof *x);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            int at = i * cols + j;
            m[at] = 0.95 * m[at] + 0.05 * g[at];
            x[tall ? j * rows + i : at] = 0.95 * m[at] + 0.05 * g[at];
        }
    iterate(x, tall ? cols : rows, tall ? rows : cols);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            int at = i * cols + j;
            p[at] = (1 - LR * DECAY) * p[at] -
                    LR * 0.2 * sqrt(tall ? rows : cols) * x[tall ? j * rows + i : at];
        }
    free(x);
}

static double grad_norm(const struct intra_model *m) {
    double sum = 0;
    for (size_t i = 0; i < m->n_grads; i++)
        sum += (double)m->grads[i] * (double)m->grads[i];
    return sqrt(sum);
}

static bool is_matrix(const struct intra_tensor *t) { return strstr(t->name, "_proj.weight"); }

// The same step by AdamW, beginning with the same parameters and gradients, is the definition for
// everything that is no matrix of a block.
static void test_definition(void **state) {
    struct intra_trainer *t = make(INTRA_OPTIM_MUON), *adam = make(INTRA_OPTIM_ADAMW);
    const struct intra_model *m = t->model;
    double *p = calloc(m->n_params, sizeof *p), *mom = calloc(m->n_grads, sizeof *mom),
           *g = calloc(m->n_grads, sizeof *g);
    (void)state;
    for (uint64_t s = 0; s < STEPS; s++) {
        struct intra_step_stats stats;
        micro(t, s);
        double norm = grad_norm(m), by = norm > 0.1 ? 0.1 / norm : 1;
        memcpy(adam->model->grads, m->grads, m->n_grads * sizeof *m->grads);
        memcpy(adam->model->params, m->params, m->n_params * sizeof *m->params);
        adam->loss_count = t->loss_count;
        for (size_t i = 0; i < m->n_grads; i++)
            g[i] = by * (double)m->grads[i];
        for (size_t i = 0; i < m->n_params; i++)
            p[i] = (double)m->params[i];
        intra_trainer_update(t, &stats);
        intra_trainer_update(adam, &stats);
        for (int32_t i = 0; i < m->n_tensors; i++) {
            const struct intra_tensor *x = &m->tensors[i];
            size_t n = intra_tensor_size(x);
            if (!is_matrix(x)) {
                assert_memory_equal(intra_param(m, x), intra_param(adam->model, x), n * 4);
                continue;
            }
            define(p + x->at, mom + x->grad_at, g + x->grad_at, x->rows, x->cols);
            double step_size = LR * 0.2 * sqrt(fmax(x->rows, x->cols)), far = 0;
            for (size_t k = 0; k < n; k++)
                far = fmax(far, fabs(p[x->at + k] - (double)intra_param(m, x)[k]) / step_size);
            if (far > 1e-4)
                fail_msg("%s, step %d: %g of a step apart", x->name, (int)s, far);
        }
        for (size_t i = 0; i < m->n_grads; i++)
            assert_true(m->grads[i] == 0);
    }
    free(p);
    free(mom);
    free(g);
    intra_trainer_destroy(&t);
    intra_trainer_destroy(&adam);
}

// A norm that is not finite skips the step, and the matrices' gradients do not stay.
static void test_skipped(void **state) {
    struct intra_trainer *t = make(INTRA_OPTIM_MUON);
    struct intra_step_stats s;
    (void)state;
    float *before = malloc(t->model->n_params * sizeof *before);
    memcpy(before, t->model->params, t->model->n_params * sizeof *before);
    micro(t, 1);
    t->model->grads[t->model->n_grads - 1] = INFINITY;
    intra_trainer_update(t, &s);
    assert_memory_equal(before, t->model->params, t->model->n_params * sizeof *before);
    for (size_t i = 0; i < t->model->n_grads; i++)
        assert_true(t->model->grads[i] == 0);
    free(before);
    intra_trainer_destroy(&t);
}

// ---- memory and balance -------------------------------------------------------------------------

// Matrices have a first moment only. Of several ranks, each has about the same work, and every
// element that learns has exactly one owner.
static void test_shares(void **state) {
    struct intra_trainer *t = make(INTRA_OPTIM_MUON);
    size_t matrices = 0, all = 0;
    (void)state;
    for (int32_t i = 0; i < t->model->n_tensors; i++) {
        size_t n = (intra_tensor_size(&t->model->tensors[i]) + 63) / 64 * 64;
        all += n;
        matrices += is_matrix(&t->model->tensors[i]) ? n : 0;
    }
    assert_int_equal(t->optim->n, all);
    assert_int_equal(t->optim->n_second, all - matrices);
    intra_trainer_destroy(&t);
    for (int dp = 2; dp <= 5; dp++) {
        struct intra_trainer_config c = config(INTRA_OPTIM_MUON);
        c.model.n_layers = 6;
        double least = INFINITY, most = 0;
        char *owned = NULL;
        size_t n = 0;
        for (int r = 0; r < dp; r++) {
            struct intra_mesh mesh = {.c = {dp, 1, 1}, .dp_rank = r};
            struct intra_model *m = NULL;
            struct intra_optim *o = NULL;
            double work = 0;
            assert_int_equal(intra_model_create_on(&c.model, &c.trainable, 1, &mesh, &m), NEB_OK);
            assert_int_equal(intra_optim_create(&c.optim, m, &o), NEB_OK);
            n = m->n_trainable;
            owned = owned ? owned : calloc(n, 1);
            for (int32_t i = 0; i < m->n_tensors; i++) {
                const struct intra_tensor *x = &m->tensors[i];
                size_t from, len = intra_optim_part(o, x, &from);
                for (size_t k = 0; k < len; k++)
                    owned[x->grad_at + from + k]++;
                if (is_matrix(x) && len) {
                    assert_int_equal(len, intra_tensor_size(x));
                    work += intra_optim_muon_flops(x);
                }
            }
            least = fmin(least, work);
            most = fmax(most, work);
            intra_optim_destroy(&o);
            intra_model_destroy(&m);
        }
        for (size_t k = 0; k < n; k++)
            assert_int_equal(owned[k], 1);
        assert_true(most < 1.35 * least);
        free(owned);
    }
}

// ---- checkpoints --------------------------------------------------------------------------------

static void save(const struct intra_trainer *t) {
    struct intra_ckpt_writer *w = NULL;
    assert_int_equal(intra_ckpt_create(path, &w), NEB_OK);
    assert_int_equal(intra_trainer_save(t, w), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
}

static enum neb_status load(struct intra_trainer *t) {
    struct intra_ckpt *c = NULL;
    assert_int_equal(intra_ckpt_open(path, true, &c), NEB_OK);
    enum neb_status st = intra_trainer_restore(t, c);
    intra_ckpt_close(&c);
    return st;
}

static void test_resume(void **state) {
    struct intra_trainer *t = make(INTRA_OPTIM_MUON), *again = make(INTRA_OPTIM_MUON);
    (void)state;
    for (uint64_t s = 0; s < STEPS; s++)
        step(t, s);
    save(t);
    assert_int_equal(load(again), NEB_OK);
    for (uint64_t s = STEPS; s < 2 * STEPS; s++)
        assert_true(step(t, s) == step(again, s));
    assert_memory_equal(t->model->params, again->model->params, t->model->n_params * sizeof(float));
    intra_trainer_destroy(&t);
    intra_trainer_destroy(&again);
}

static void test_another_optimiser(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        enum intra_optim_kind was = k ? INTRA_OPTIM_MUON : INTRA_OPTIM_ADAMW;
        struct intra_trainer *t = make(was),
                             *other = make(k ? INTRA_OPTIM_ADAMW : INTRA_OPTIM_MUON);
        step(t, 0);
        save(t);
        assert_int_equal(load(other), NEB_ERR_INVALID);
        assert_non_null(strstr(message, k ? "optim.name: muon, the job's is adamw"
                                          : "optim.name: adamw, the job's is muon"));
        intra_trainer_destroy(&t);
        intra_trainer_destroy(&other);
    }
}

static int set_up(void **state) {
    (void)state;
    neb_log_set_sink(swallow, NULL);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/x.ckpt", dir);
    assert_int_equal(kern_cpu_create(2, &K), NEB_OK);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    kern_destroy(&K);
    unlink(path);
    rmdir(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_skipped),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_another_optimiser),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
