// SPDX-License-Identifier: Apache-2.0
// bf16 of the fast CPU backend: products and attention round their operands, and keep sums and
// results in fp32 (cpu_panel.h). All else is fp32, so parameters, activations and gradients keep
// their types. This file chooses how this processor multiplies panels, and measures what bf16
// gains.
#include "agent/base/count.h"
#include "kernels/cpu_panel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct cpu_bf16 {
    const struct panel_isa *v;
    struct cpu_panels *panels;
    char name[64];
};

bool cpu_bf16_takes(const struct kern *K, int m, int n, int k) {
    int least = m < n ? m : n;
    return ((const struct cpu_ctx *)K->ctx)->bf16 && (least < k ? least : k) >= KERN_BF16_LEAST;
}

void cpu_weights(struct kern *K, const float *params, size_t n) {
    if (cpu_of(K)->bf16)
        cpu_panels_weights(cpu_of(K)->bf16->panels, params, n);
}

void cpu_bf16_gemm(struct kern *K, const struct kern_gemm *g) {
    cpu_panels_gemm(K, cpu_of(K)->bf16->panels, g);
}

void cpu_bf16_linear_bwd(struct kern *K, const struct kern_linear_bwd *l) {
    cpu_panels_linear_bwd(K, cpu_of(K)->bf16->panels, l);
}

static bool takes_attention(struct kern *K, const struct cpu_attn *a) {
    return cpu_of(K)->bf16 && a->s.head_dim >= KERN_BF16_LEAST && a->s.T >= KERN_BF16_LEAST;
}
bool cpu_bf16_attn_fwd(struct kern *K, const struct cpu_attn *a) {
    bool takes = takes_attention(K, a);
    if (takes)
        cpu_panels_attn_fwd(K, cpu_of(K)->bf16->v, a);
    return takes;
}
bool cpu_bf16_attn_bwd(struct kern *K, const struct cpu_attn *a) {
    bool takes = takes_attention(K, a);
    if (takes)
        cpu_panels_attn_bwd(K, cpu_of(K)->bf16->v, a);
    return takes;
}

// ---- set-up

void cpu_bf16_destroy(struct cpu_bf16 *h) {
    if (h)
        cpu_panels_destroy(h->panels);
    free(h);
}

// Multiplies small integers, which are exact in bf16 and in fp32: full and partial blocks, and both
// ways to pack.
static bool proves_itself(const struct panel_isa *v) {
    enum { M = 37, N = 41, D = 64, SIDES = 3, NEXT = D / PANEL_DEPTH * PANEL_BLOCK };
    float a[M * D], b[D * N], c[M * N];
    _Alignas(64) uint16_t rows[SIDES * NEXT], cols[SIDES * NEXT];
    for (int i = 0; i < M * D; i++)
        a[i] = (float)(i % 7 - 3);
    for (int i = 0; i < D * N; i++)
        b[i] = (float)(i % 5 - 2);
    for (int p = 0; p < SIDES; p++)
        for (int t = 0; t < D / PANEL_DEPTH; t++) {
            int at = p * PANEL_SIDE, depth = t * PANEL_DEPTH, to = p * NEXT + t * PANEL_BLOCK;
            v->pack(rows + to, PANEL_A, a + at * D + depth, D, false,
                    M - at < PANEL_SIDE ? M - at : PANEL_SIDE, PANEL_DEPTH);
            v->pack(cols + to, PANEL_B, b + depth * N + at, N, true,
                    N - at < PANEL_SIDE ? N - at : PANEL_SIDE, PANEL_DEPTH);
        }
    struct panel_mul m = {rows, cols, NEXT, NEXT, D / PANEL_DEPTH, M, N, 1, c, N, PANEL_STORE};
    v->mul(&m);
    m.how = PANEL_ADD;
    v->mul(&m);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int d = 0; d < D; d++)
                sum += 2 * a[i * D + d] * b[d * N + j];
            if (c[i * N + j] != sum)
                return false;
        }
    return true;
}

// Returns NULL, or why bf16 is not possible. NEBULA_BF16=plain chooses plain C, the definition.
static const char *choose_panels(struct cpu_bf16 *h, const struct cpu_isa *isa) {
    const char *asked = getenv("NEBULA_BF16");
    if (neb_counting() || (asked && !strcmp(asked, "plain"))) // nothing is computed then
        h->v = &panel_plain;
#if defined(__x86_64__)
    else if (!strcmp(isa->name, "avx512") && __builtin_cpu_supports("avx512bf16"))
        h->v = panel_amx_here() && proves_itself(&panel_amx) ? &panel_amx : &panel_avx512;
#endif
    (void)isa;
    if (!h->v)
        return "this processor lacks avx512_bf16";
    if (!proves_itself(h->v))
        return "this processor computes wrong bf16 products";
    snprintf(h->name, sizeof h->name, "bf16 by %s", h->v->name);
    return NULL;
}

static enum neb_status take_bf16(struct kern *K, const char **why) {
    struct cpu_ctx *x = cpu_of(K);
    NEB_ASSERT(K->ops == &cpu_ops);
    if (x->bf16)
        return NEB_OK;
    struct cpu_bf16 *h = calloc(1, sizeof *h);
    if (h && (*why = choose_panels(h, x->isa))) {
        cpu_bf16_destroy(h);
        return NEB_ERR_UNSUPPORTED;
    }
    if (!h || !(h->panels = cpu_panels_create(h->v))) {
        free(h);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for bf16 products");
    }
    x->bf16 = h;
    return NEB_OK;
}

enum neb_status kern_cpu_bf16(struct kern *K) {
    const char *why = NULL;
    enum neb_status st = take_bf16(K, &why);
    return why ? neb_fail(st, "precision bf16 on processors: %s; set precision: fp32", why) : st;
}

bool kern_cpu_bf16_possible(struct kern *K) {
    const char *why = NULL;
    return take_bf16(K, &why) == NEB_OK;
}

const char *kern_cpu_products(const struct kern *K) {
    const struct cpu_ctx *x = K->ctx;
    return K->ops == &cpu_ops && x->bf16 ? x->bf16->name : "fp32";
}

static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { TRIAL_SIDE = 384 };

static void trial_pack(const struct panel_isa *v, uint16_t *to, enum panel_form form,
                       const float *x) {
    for (size_t i = 0; i < TRIAL_SIDE; i += PANEL_SIDE)
        for (size_t d = 0; d < TRIAL_SIDE; d += PANEL_DEPTH, to += PANEL_BLOCK)
            v->pack(to, form, x + i * TRIAL_SIDE + d, TRIAL_SIDE, false, PANEL_SIDE, PANEL_DEPTH);
}

double kern_cpu_bf16_gain(struct kern *K) {
    enum { S = TRIAL_SIDE, ROUNDS = 4 };
    const struct cpu_bf16 *h = cpu_of(K)->bf16;
    float *x = aligned_alloc(64, 4 * S * S * sizeof *x);
    if (!h || !x) {
        free(x);
        return 1;
    }
    for (size_t i = 0; i < S * S; i++)
        x[i] = (float)(i % 17) - 8;
    float *a = x + S * S, *w = a + S * S, *y = w + S * S;
    uint16_t *ap = (uint16_t *)(void *)a, *wp = (uint16_t *)(void *)w;
    const struct kern_gemm product = {.tb = KERN_T,
                                      .m = S,
                                      .n = S,
                                      .k = S,
                                      .alpha = 1,
                                      .a = x,
                                      .lda = S,
                                      .b = x,
                                      .ldb = S,
                                      .c = y,
                                      .ldc = S};
    struct panel_mul m = {ap, wp, PANEL_SIDE * S, PANEL_SIDE * S, S / PANEL_DEPTH, S, S, 1,
                          y,  S,  PANEL_STORE};
    double best[2] = {INFINITY, INFINITY};
    trial_pack(h->v, wp, PANEL_B, x);  // not timed: a parameter is packed once a step
    for (int i = 0; i < ROUNDS; i++) { // the first round warms up
        double from = thread_seconds();
        cpu_sgemm(&product);
        double middle = thread_seconds();
        trial_pack(h->v, ap, PANEL_A, x);
        h->v->mul(&m);
        double end = thread_seconds();
        best[0] = i ? fmin(best[0], middle - from) : best[0];
        best[1] = i ? fmin(best[1], end - middle) : best[1];
    }
    free(x);
    return best[0] / best[1];
}
