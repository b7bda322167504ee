// SPDX-License-Identifier: Apache-2.0
// Every backward op of the reference against finite differences of its forward op, since the
// reference defines all backends. The loss is sum(c * out) in double with random c. Its derivative
// along a random direction u, by central differences, must equal the gradient's product with u.
#include "agent/base/rng.h"
#include "kernels/kern.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct kern *K;
static struct neb_rng R;

static int setup(void **state) {
    (void)state;
    R = neb_rng_make(5, 6);
    return kern_ref_create(&K) == NEB_OK ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    kern_destroy(&K);
    return 0;
}

static void fill(float *p, int n) {
    for (int i = 0; i < n; i++)
        p[i] = neb_rng_normal(&R);
}
static double dot(const float *a, const float *b, int n) {
    double s = 0;
    for (int i = 0; i < n; i++)
        s += (double)a[i] * (double)b[i];
    return s;
}

typedef double loss_fn(void *arg);

// the gradient (n) of the loss by x (n), computed in place
static void check(loss_fn *loss, void *arg, float *x, const float *grad, int n) {
    enum { N_MAX = 4096, DIRECTIONS = 4 };
    static float keep[N_MAX], u[N_MAX];
    const double step = 4e-3;
    assert_true(n <= N_MAX);
    memcpy(keep, x, sizeof *x * n);
    for (int k = 0; k < DIRECTIONS; k++) {
        double side[2], size = sqrt(dot(grad, grad, n));
        fill(u, n);
        for (int s = 0; s < 2; s++) {
            for (int i = 0; i < n; i++)
                x[i] = (float)((double)keep[i] + (s ? step : -step) * (double)u[i]);
            side[s] = loss(arg);
        }
        memcpy(x, keep, sizeof *x * n);
        double numeric = (side[1] - side[0]) / (2 * step), analytic = dot(grad, u, n);
        if (!(size > 1e-3)) // a gradient of zero would prove nothing
            fail_msg("gradient vanishes");
        if (!(fabs(numeric - analytic) < 2e-3 * (size + fabs(numeric))))
            fail_msg("numeric %g, analytic %g, gradient's norm %g", numeric, analytic, size);
    }
}

struct rms {
    float x[5 * 7], r[5 * 7], w[7], h[5 * 7], y[5 * 7], rstd[5], c[5 * 7];
};
static double rms_loss(void *arg) {
    struct rms *a = arg;
    K->ops->rmsnorm_fwd(K, KERN_F32, KERN_F32, a->y, a->rstd, a->h, a->x, a->r, a->w, 5, 7, 1e-5f);
    return dot(a->c, a->y, 5 * 7);
}
static void test_rmsnorm(void **state) {
    (void)state;
    struct rms a;
    float dh[5 * 7] = {0}, dw[7] = {0};
    fill(a.x, 35), fill(a.r, 35), fill(a.w, 7), fill(a.c, 35);
    rms_loss(&a);
    K->ops->rmsnorm_bwd(K, KERN_F32, dh, NULL, dw, a.c, a.h, a.w, a.rstd, 5, 7);
    check(rms_loss, &a, a.x, dh, 35);
    check(rms_loss, &a, a.r, dh, 35); // h = x + r: the same gradient
    check(rms_loss, &a, a.w, dw, 7);
    float twice[7];
    memcpy(twice, dw, sizeof dw);
    K->ops->rmsnorm_bwd(K, KERN_F32, dh, NULL, twice, a.c, a.h, a.w, a.rstd, 5, 7); // accumulates
    for (int i = 0; i < 7; i++)
        assert_true(fabsf(twice[i] - 2 * dw[i]) < 1e-4f);
}

struct glu {
    float gu[4 * 22], y[4 * 11], c[4 * 11];
};
static double glu_loss(void *arg) {
    struct glu *a = arg;
    K->ops->swiglu_fwd(K, KERN_F32, a->y, a->gu, 4, 11);
    return dot(a->c, a->y, 44);
}
static void test_swiglu(void **state) {
    (void)state;
    struct glu a;
    float dgu[4 * 22];
    fill(a.gu, 88), fill(a.c, 44);
    K->ops->swiglu_bwd(K, KERN_F32, dgu, a.c, a.gu, 4, 11);
    check(glu_loss, &a, a.gu, dgu, 88);
}

struct turn {
    float x[6 * 16], y[6 * 16], c[6 * 16], table[3 * 8];
};
static double turn_loss(void *arg) {
    struct turn *a = arg;
    memcpy(a->y, a->x, sizeof a->x);
    K->ops->rope(K, KERN_F32, a->y, 16, a->table, 6, 3, 2, 8, false);
    return dot(a->c, a->y, 96);
}
static void test_rope(void **state) {
    (void)state;
    struct turn a;
    float dx[96];
    kern_rope_table(a.table, 3, 8, 50, NULL);
    fill(a.x, 96), fill(a.c, 96);
    memcpy(dx, a.c, sizeof dx);
    K->ops->rope(K, KERN_F32, dx, 16, a.table, 6, 3, 2, 8, true);
    check(turn_loss, &a, a.x, dx, 96);
}

enum {
    B = 2,
    T = 6,
    H = 4,
    G = 2,
    E = 6,
    Q_LD = (H + 2 * G) * E,
    QKV = B * T * Q_LD,
    OUT = B * T * H * E
};
struct att {
    struct kern_attn s;
    float qkv[QKV], out[OUT], lse[B * H * T], c[OUT];
};
static double att_loss(void *arg) {
    struct att *a = arg;
    K->ops->attn_fwd(K, KERN_F32, &a->s, a->out, H * E, a->lse, a->qkv, Q_LD, a->qkv + H * E, Q_LD,
                     a->qkv + (H + G) * E, Q_LD);
    return dot(a->c, a->out, OUT);
}
static void test_attention(void **state) {
    (void)state;
    static const int32_t prefix[B] = {0, 4};
    for (int mask = 0; mask < 3; mask++) {
        static struct att a;
        static float d[QKV], delta[B * H * T];
        a.s = (struct kern_attn){.B = B,
                                 .T = T,
                                 .n_heads = H,
                                 .n_kv_heads = G,
                                 .head_dim = E,
                                 .mask = (enum kern_mask)mask,
                                 .prefix_len = prefix};
        fill(a.qkv, QKV), fill(a.c, OUT);
        att_loss(&a);
        K->ops->attn_bwd(K, KERN_F32, &a.s, d, d + H * E, d + (H + G) * E, a.c, a.out, H * E, a.lse,
                         a.qkv, Q_LD, a.qkv + H * E, Q_LD, a.qkv + (H + G) * E, Q_LD, delta, NULL);
        check(att_loss, &a, a.qkv, d, QKV);
    }
}

// Moves one key and checks which queries change.
static void test_masks(void **state) {
    (void)state;
    static const int32_t prefix[B] = {0, 4};
    for (int mask = 0; mask < 3; mask++)
        for (int j = 0; j < T; j++) {
            static struct att a;
            static float before[OUT];
            a.s = (struct kern_attn){.B = B,
                                     .T = T,
                                     .n_heads = H,
                                     .n_kv_heads = G,
                                     .head_dim = E,
                                     .mask = (enum kern_mask)mask,
                                     .prefix_len = prefix};
            fill(a.qkv, QKV), fill(a.c, OUT);
            att_loss(&a);
            memcpy(before, a.out, sizeof before);
            for (int e = 0; e < G * E; e++)
                a.qkv[(T + j) * Q_LD + (H + G) * E + e] += 1; // a value of the second sequence
            att_loss(&a);
            for (int i = 0; i < B * T; i++) {
                bool seen = i >= T && (mask == KERN_MASK_BIDIRECTIONAL || j <= i - T ||
                                       (mask == KERN_MASK_PREFIX && j < 4));
                assert_int_equal(
                    memcmp(before + i * H * E, a.out + i * H * E, sizeof(float) * H * E) != 0,
                    seen);
            }
        }
}

struct ce {
    struct kern_head h;
    float x[6 * 5], w[9 * 5], dx[6 * 5], dw[9 * 5];
};
static double ce_loss(void *arg) {
    struct ce *a = arg;
    struct kern_head h = a->h;
    double total = 0;
    h.dx = NULL;
    h.dw = NULL;
    h.total = &total;
    K->ops->head_loss(K, KERN_F32, &h, NULL);
    return total;
}
static void test_head(void **state) {
    (void)state;
    static const int32_t targets[6] = {3, KERN_IGNORE, 8, 0, 3, KERN_IGNORE};
    static struct ce a;
    const float by = 1;
    double total = 0;
    memset(&a, 0, sizeof a);
    fill(a.x, 30), fill(a.w, 45);
    a.h = (struct kern_head){.n = 6,
                             .d = 5,
                             .V = 9,
                             .x = a.x,
                             .w = a.w,
                             .targets = targets,
                             .grad_scale = &by,
                             .total = &total,
                             .dx = a.dx,
                             .dw = a.dw};
    K->ops->head_loss(K, KERN_F32, &a.h, NULL);
    check(ce_loss, &a, a.x, a.dx, 30);
    check(ce_loss, &a, a.w, a.dw, 45);
}

// The mix with a teacher: listed classes and tail, and all classes.
static const struct kern_soft *teacher;
static double soft_loss(void *arg) {
    struct ce *a = arg;
    struct kern_head h = a->h;
    double total = 0;
    h.dx = NULL;
    h.dw = NULL;
    h.total = &total;
    K->ops->head_loss(K, KERN_F32, &h, teacher);
    return total;
}
static void test_distill(void **state) {
    (void)state;
    static const int32_t targets[6] = {3, KERN_IGNORE, 8, 0, 3, KERN_IGNORE};
    static const int32_t named[12] = {3, 1, 0, 1, 2, 8, 5, 4, 7, 3, 0, 1};
    static float logp[12], tail[6], all[6 * 9];
    for (int i = 0; i < 6; i++) {
        double sum = 0;
        tail[i] = 0.1f + 0.1f * (float)i;
        logp[2 * i] = logf((1 - tail[i]) * 0.7f);
        logp[2 * i + 1] = logf((1 - tail[i]) * 0.3f);
        fill(all + 9 * i, 9);
        for (int c = 0; c < 9; c++)
            sum += exp((double)all[9 * i + c]);
        for (int c = 0; c < 9; c++)
            all[9 * i + c] -= (float)log(sum);
    }
    const struct kern_soft cases[] = {
        {.k = 2, .lambda = 1, .temperature = 1, .ids = named, .logp = logp, .tail = tail},
        {.k = 2, .lambda = 0.6f, .temperature = 2, .ids = named, .logp = logp, .tail = tail},
        {.k = 0, .lambda = 1, .temperature = 1, .logp = all},
        {.k = 0, .lambda = 0.3f, .temperature = 1.7f, .logp = all}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct ce a;
        const float by = 1;
        double total = 0;
        memset(&a, 0, sizeof a);
        fill(a.x, 30), fill(a.w, 45);
        a.h = (struct kern_head){.n = 6,
                                 .d = 5,
                                 .V = 9,
                                 .x = a.x,
                                 .w = a.w,
                                 .targets = targets,
                                 .grad_scale = &by,
                                 .total = &total,
                                 .dx = a.dx,
                                 .dw = a.dw};
        teacher = &cases[i];
        K->ops->head_loss(K, KERN_F32, &a.h, teacher);
        assert_true(total > 0);
        check(soft_loss, &a, a.x, a.dx, 30);
        check(soft_loss, &a, a.w, a.dw, 45);
    }
}

struct lin { // the linear ops: embedding, bias
    float table[7 * 3], out[10 * 3], c[10 * 3];
    int32_t ids[10];
};
static double embed_loss(void *arg) {
    struct lin *a = arg;
    K->ops->embed_fwd(K, KERN_F32, a->out, a->table, a->ids, 10, 3);
    return dot(a->c, a->out, 30);
}
static double bias_loss(void *arg) {
    struct lin *a = arg;
    memset(a->out, 0, sizeof a->out);
    K->ops->bias_fwd(K, KERN_F32, a->out, a->table, 10, 3);
    return dot(a->c, a->out, 30);
}
static void test_linear(void **state) {
    (void)state;
    struct lin a = {.ids = {1, 1, 6, 0, 3, 1, 3, 6, 6, 2}};
    float dtable[21] = {0}, db[3] = {0};
    fill(a.table, 21), fill(a.c, 30);
    int32_t room[3 * 10 + 2], next[7] = {0};
    struct kern_buckets b = {.ids = room, .start = room + 10, .rows = room + 21, .used = room + 31};
    kern_buckets_fill(&b, a.ids, 10, next);
    K->ops->embed_bwd(K, dtable, a.c, &b, 10, 3);
    check(embed_loss, &a, a.table, dtable, 21);
    K->ops->bias_bwd(K, KERN_F32, db, a.c, 10, 3);
    check(bias_loss, &a, a.table, db, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm), cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_rope),    cmocka_unit_test(test_attention),
        cmocka_unit_test(test_masks),   cmocka_unit_test(test_head),
        cmocka_unit_test(test_linear),  cmocka_unit_test(test_distill),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
