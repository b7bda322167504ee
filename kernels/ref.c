// SPDX-License-Identifier: Apache-2.0
// The reference backend: the definition of every op, as plain loops with sums in double. It is slow
// and readable. All other backends are tested against it, and it against finite differences.
#include "kernels/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double scaled(double frequency, const struct kern_rope_scaling *s) {
    double slow = frequency / (double)s->factor, low = (double)s->low, high = (double)s->high;
    if (s->type == KERN_ROPE_LINEAR)
        return slow;
    double turns = s->original * frequency / (2 * acos(-1));
    if (turns > high)
        return frequency;
    return turns < low ? slow : slow + (turns - low) / (high - low) * (frequency - slow);
}

void kern_rope_table(float *cos_sin, int T, int head_dim, double theta,
                     const struct kern_rope_scaling *scaling) {
    int pairs = head_dim / 2;
    for (int i = 0; i < pairs; i++) {
        double frequency = pow(theta, -2.0 * i / head_dim);
        if (scaling && scaling->type != KERN_ROPE_DEFAULT)
            frequency = scaled(frequency, scaling);
        for (int t = 0; t < T; t++) {
            float *out = cos_sin + ((size_t)t * (size_t)pairs + (size_t)i) * 2;
            out[0] = (float)cos(t * frequency);
            out[1] = (float)sin(t * frequency);
        }
    }
}

void kern_ref_bf16(struct kern *K) { K->ctx = K; }

static void bias_bwd(struct kern *K, enum kern_type t, float *db, const void *dy, int n, int d);

static void gemm(struct kern *K, const struct kern_gemm *g) {
    const float *a = g->a, *b = g->b;
    for (int i = 0; i < g->m; i++)
        for (int j = 0; j < g->n; j++) {
            double s = 0, beta = (double)g->beta;
            for (int l = 0; l < g->k; l++)
                s += ref_operand(K, g->ta ? a[(size_t)l * g->lda + i] : a[(size_t)i * g->lda + l]) *
                     ref_operand(K, g->tb ? b[(size_t)j * g->ldb + l] : b[(size_t)l * g->ldb + j]);
            float *out = (float *)g->c + (size_t)i * g->ldc + j;
            *out = (float)((double)g->alpha * s + (beta != 0 ? beta * (double)*out : 0.0));
            if (g->bias)
                *out += ((const float *)g->bias)[j];
        }
}

static void linear_bwd(struct kern *K, const struct kern_linear_bwd *l) {
    const struct kern_gemm dw = kern_linear_dw(l), dx = kern_linear_dx(l);
    if (l->dw)
        gemm(K, &dw);
    if (l->dx)
        gemm(K, &dx);
    if (l->db)
        bias_bwd(K, l->t, l->db, l->dy, l->n, l->out);
}

static void weights(struct kern *K, const float *params, size_t n) {
    (void)K, (void)params, (void)n;
}

static void cast(struct kern *K, enum kern_type t, void *out, const float *x, size_t n) {
    (void)K, (void)t;
    memcpy(out, x, n * sizeof *x);
}

static void embed_fwd(struct kern *K, enum kern_type t, void *out, const void *table,
                      const int32_t *ids, int n, int d) {
    (void)K, (void)t;
    size_t row = sizeof(float) * (size_t)d;
    for (int i = 0; i < n; i++)
        if (ids[i] < 0)
            memset((char *)out + (size_t)i * row, 0, row);
        else
            memcpy((char *)out + (size_t)i * row, (const char *)table + (size_t)ids[i] * row, row);
}

static void embed_bwd(struct kern *K, float *dtable, const float *dout,
                      const struct kern_buckets *b, int n, int d) {
    (void)K, (void)n;
    for (int32_t k = 0; k < *b->used; k++)
        for (int32_t i = b->start[k]; i < b->start[k + 1]; i++)
            for (int j = 0; j < d; j++)
                dtable[(size_t)b->ids[k] * d + j] += dout[(size_t)b->rows[i] * d + j];
}

static void rmsnorm_fwd(struct kern *K, enum kern_type t, enum kern_type tr, void *y_out,
                        float *rstd, float *h, const float *x, const void *r_in, const float *w,
                        int n, int d, float eps) {
    float *y = y_out;
    const float *r = r_in;
    (void)K, (void)t, (void)tr;
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)i * d;
        double ss = 0;
        for (int j = 0; j < d; j++) {
            h[at + j] = r ? x[at + j] + r[at + j] : x[at + j];
            ss += (double)h[at + j] * (double)h[at + j];
        }
        rstd[i] = (float)(1.0 / sqrt(ss / d + (double)eps));
        for (int j = 0; j < d; j++)
            y[at + j] = h[at + j] * rstd[i] * w[j];
    }
}

// With n = h * rstd: dh = rstd * (w dy - n * mean(w dy n)).
static void rmsnorm_bwd(struct kern *K, enum kern_type t, float *dh, void *dh_t, float *dw,
                        const void *dy_in, const float *h, const float *w, const float *rstd, int n,
                        int d) {
    const float *dy = dy_in;
    (void)K, (void)t;
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)i * d;
        double mean = 0, s = (double)rstd[i];
        for (int j = 0; j < d; j++)
            mean += (double)dy[at + j] * (double)w[j] * (double)h[at + j] * s;
        mean /= d;
        for (int j = 0; j < d; j++)
            dh[at + j] +=
                (float)(s * ((double)dy[at + j] * (double)w[j] - (double)h[at + j] * s * mean));
    }
    if (dh_t)
        memcpy(dh_t, dh, sizeof(float) * (size_t)n * (size_t)d);
    for (int j = 0; dw && j < d; j++) {
        double s = 0;
        for (int i = 0; i < n; i++)
            s += (double)dy[(size_t)i * d + j] * (double)h[(size_t)i * d + j] * (double)rstd[i];
        dw[j] += (float)s;
    }
}

static void rope(struct kern *K, enum kern_type t, void *x, int ld, const float *cos_sin, int n,
                 int T, int heads, int head_dim, bool inverse) {
    (void)K, (void)t;
    int half = head_dim / 2;
    for (int r = 0; r < n; r++)
        for (int h = 0; h < heads; h++) {
            float *p = (float *)x + (size_t)r * ld + (size_t)h * head_dim;
            for (int i = 0; i < half; i++) {
                float c = cos_sin[((r % T) * half + i) * 2],
                      s = cos_sin[((r % T) * half + i) * 2 + 1];
                float a = p[i], b = p[i + half];
                if (inverse)
                    s = -s;
                p[i] = a * c - b * s;
                p[i + half] = b * c + a * s;
            }
        }
}

static bool visible(const struct kern_attn *s, int b, int i, int j) {
    switch (s->mask) {
    case KERN_MASK_CAUSAL: return j <= i;
    case KERN_MASK_BIDIRECTIONAL: return true;
    case KERN_MASK_PREFIX: return j <= i || j < s->prefix_len[b];
    }
    return false;
}

static double score(const struct kern_attn *s, const float *q, const float *k) {
    double dot = 0;
    for (int e = 0; e < s->head_dim; e++)
        dot += (double)q[e] * (double)k[e];
    return dot / sqrt((double)s->head_dim);
}

static void attn_fwd(struct kern *K, enum kern_type t, const struct kern_attn *s, void *out_at,
                     int ldo, float *lse, const void *q_at, int ldq, const void *k_at, int ldk,
                     const void *v_at, int ldv) {
    const float *q = q_at, *k = k_at, *v = v_at;
    float *out = out_at;
    (void)K, (void)t;
    int D = s->head_dim, group = s->n_heads / s->n_kv_heads;
    for (int b = 0; b < s->B; b++)
        for (int h = 0; h < s->n_heads; h++)
            for (int i = 0; i < s->T; i++) {
                const float *qi = q + (size_t)(b * s->T + i) * ldq + h * D;
                float *oi = out + (size_t)(b * s->T + i) * ldo + h * D;
                double max = -INFINITY, sum = 0, acc[256] = {0};
                for (int j = 0; j < s->T; j++)
                    if (visible(s, b, i, j))
                        max = fmax(max,
                                   score(s, qi, k + (size_t)(b * s->T + j) * ldk + h / group * D));
                for (int j = 0; j < s->T; j++) {
                    if (!visible(s, b, i, j))
                        continue;
                    double p =
                        exp(score(s, qi, k + (size_t)(b * s->T + j) * ldk + h / group * D) - max);
                    const float *vj = v + (size_t)(b * s->T + j) * ldv + h / group * D;
                    sum += p;
                    for (int e = 0; e < D; e++)
                        acc[e] += p * (double)vj[e];
                }
                for (int e = 0; e < D; e++)
                    oi[e] = (float)(acc[e] / sum);
                lse[((size_t)b * s->n_heads + h) * s->T + i] = (float)(max + log(sum));
            }
}

// P = exp(S - lse); dV = P^T dO; dP = dO V^T;
// dS = P (dP - delta) / sqrt(D) with delta = rowsum(dO * O).
static void attn_bwd(struct kern *K, enum kern_type t, const struct kern_attn *s, void *dq_at,
                     void *dk_at, void *dv_at, const void *dout_at, const void *out_at, int ldo,
                     const float *lse, const void *q_at, int ldq, const void *k_at, int ldk,
                     const void *v_at, int ldv, float *delta, const float *cos_sin) {
    const float *q = q_at, *k = k_at, *v = v_at, *dout = dout_at, *out = out_at;
    float *dq = dq_at, *dk = dk_at, *dv = dv_at;
    int D = s->head_dim, group = s->n_heads / s->n_kv_heads;
    double scale = 1 / sqrt((double)D);
    for (int r = 0; r < s->B * s->T; r++) {
        memset(dq + (size_t)r * ldq, 0, sizeof(float) * D * s->n_heads);
        memset(dk + (size_t)r * ldk, 0, sizeof(float) * D * s->n_kv_heads);
        memset(dv + (size_t)r * ldv, 0, sizeof(float) * D * s->n_kv_heads);
    }
    for (int b = 0; b < s->B; b++)
        for (int h = 0; h < s->n_heads; h++)
            for (int i = 0; i < s->T; i++) {
                size_t ri = (size_t)(b * s->T + i), at = ((size_t)b * s->n_heads + h) * s->T + i;
                const float *qi = q + ri * ldq + h * D, *oi = out + ri * ldo + h * D,
                            *doi = dout + ri * ldo + h * D;
                double dd = 0;
                for (int e = 0; e < D; e++)
                    dd += (double)oi[e] * (double)doi[e];
                delta[at] = (float)dd;
                for (int j = 0; j < s->T; j++) {
                    if (!visible(s, b, i, j))
                        continue;
                    size_t rj = (size_t)(b * s->T + j);
                    const float *kj = k + rj * ldk + h / group * D,
                                *vj = v + rj * ldv + h / group * D;
                    double p = exp(score(s, qi, kj) - (double)lse[at]), dp = 0;
                    for (int e = 0; e < D; e++)
                        dp += (double)doi[e] * (double)vj[e];
                    double ds = p * (dp - dd) * scale;
                    for (int e = 0; e < D; e++) {
                        dv[rj * ldv + h / group * D + e] += (float)(p * (double)doi[e]);
                        dq[ri * ldq + h * D + e] += (float)(ds * (double)kj[e]);
                        dk[rj * ldk + h / group * D + e] += (float)(ds * (double)qi[e]);
                    }
                }
            }
    if (cos_sin) {
        rope(K, t, dq, ldq, cos_sin, s->B * s->T, s->T, s->n_heads, D, true);
        rope(K, t, dk, ldk, cos_sin, s->B * s->T, s->T, s->n_kv_heads, D, true);
    }
}

static void swiglu_fwd(struct kern *K, enum kern_type t, void *y_out, const void *gu_in, int n,
                       int f) {
    const float *gu = gu_in;
    float *y = y_out;
    (void)K, (void)t;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < f; j++) {
            double g = (double)gu[(size_t)i * 2 * f + j];
            y[(size_t)i * f + j] =
                (float)(g / (1 + exp(-g)) * (double)gu[(size_t)i * 2 * f + f + j]);
        }
}

static void swiglu_bwd(struct kern *K, enum kern_type t, void *dgu_out, const void *dy_in,
                       const void *gu_in, int n, int f) {
    const float *gu = gu_in, *dy = dy_in;
    float *dgu = dgu_out;
    (void)K, (void)t;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < f; j++) {
            size_t at = (size_t)i * 2 * f + j;
            double g = (double)gu[at], u = (double)gu[at + f], dyij = (double)dy[(size_t)i * f + j];
            double sig = 1 / (1 + exp(-g));
            dgu[at] = (float)(dyij * u * sig * (1 + g * (1 - sig)));
            dgu[at + f] = (float)(dyij * g * sig);
        }
}

static void bias_fwd(struct kern *K, enum kern_type t, void *x, const float *b, int n, int d) {
    (void)K, (void)t;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < d; j++)
            ((float *)x)[(size_t)i * d + j] += b[j];
}

static void bias_bwd(struct kern *K, enum kern_type t, float *db, const void *dy_in, int n, int d) {
    const float *dy = dy_in;
    (void)K, (void)t;
    for (int j = 0; j < d; j++) {
        double s = 0;
        for (int i = 0; i < n; i++)
            s += (double)dy[(size_t)i * d + j];
        db[j] += (float)s;
    }
}

static void adamw(struct kern *K, enum kern_type t, const struct kern_update *u) {
    const struct kern_adamw *c = &u->c;
    (void)K, (void)t;
    for (int k = 0; k < u->n_chunks; k++) {
        const struct kern_chunk *of = &u->chunks[k];
        double decay = of->decay ? (double)c->weight_decay : 0;
        for (size_t i = 0; i < of->n; i++) {
            float *p = u->params + of->param_at + i, *g = u->grads + of->grad_at + i,
                  *m = u->m + of->moment_at + i, *v = u->v + of->moment_at + i;
            double gi = (double)*g * (double)u->factors[of->tensor], b = (double)c->momentum;
            if (of->momentum) {
                *m = (float)(b * (double)*m + (1 - b) * gi);
                *g = (float)(b * (double)*m + (1 - b) * gi);
                continue;
            }
            double mi = (double)c->beta1 * (double)*m + (1 - (double)c->beta1) * gi;
            double vi = (double)c->beta2 * (double)*v + (1 - (double)c->beta2) * gi * gi;
            double update = mi / (double)c->bias1 / (sqrt(vi / (double)c->bias2) + (double)c->eps);
            *m = (float)mi;
            *v = (float)vi;
            *p = (float)((double)*p - (double)c->lr * (update + decay * (double)*p));
            *g = 0;
        }
    }
}

static void normalise(struct kern *K, enum kern_type t, void *x, int ldx, const float *g, int rows,
                      int cols, const double *sumsq) {
    (void)K, (void)t;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            ((float *)x)[(size_t)i * ldx + j] =
                (float)((double)g[(size_t)i * cols + j] / (sqrt(*sumsq) + 1e-7));
}

static void matrix_step(struct kern *K, enum kern_type t, const struct kern_matrix_step *s) {
    (void)K, (void)t;
    for (int i = 0; i < s->rows; i++)
        for (int j = 0; j < s->cols; j++) {
            float *p = s->p + (size_t)i * s->cols + j,
                  x = ((const float *)s->x)[(size_t)i * s->ldx + j];
            *p = (float)((double)s->rate[0] * (double)*p -
                         (double)s->rate[1] * (double)s->scale * (double)x);
        }
}

static void sumsq(struct kern *K, const struct kern_chunk *chunks, int n_chunks,
                  const int32_t *first, int tensors, const float *grads, double *sums) {
    (void)K, (void)n_chunks;
    for (int i = 0; i < tensors; i++) {
        sums[i] = 0;
        for (int32_t k = first[i]; k < first[i + 1]; k++)
            for (size_t j = 0; j < chunks[k].n; j++) {
                double x = (double)grads[chunks[k].grad_at + j];
                sums[i] += x * x;
            }
    }
}

static void add(struct kern *K, float *y, const float *x, size_t n) {
    (void)K;
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void scale(struct kern *K, float *y, float a, size_t n) {
    (void)K;
    for (size_t i = 0; i < n; i++)
        y[i] *= a;
}

static void ref_destroy(struct kern *K) {
    kern_pool_destroy(&K->pool);
    free(K);
}

static const struct kern_ops ref_ops = {
    .name = "reference",
    .destroy = ref_destroy,
    KERN_HOST_MEMORY,
    .gemm = gemm,
    .linear_bwd = linear_bwd,
    .weights = weights,
    .cast = cast,
    .embed_fwd = embed_fwd,
    .embed_bwd = embed_bwd,
    .rmsnorm_fwd = rmsnorm_fwd,
    .rmsnorm_bwd = rmsnorm_bwd,
    .rope = rope,
    .attn_fwd = attn_fwd,
    .attn_bwd = attn_bwd,
    .cache_put = ref_cache_put,
    .cache_copy = ref_cache_copy,
    .cache_attn = ref_cache_attn,
    .swiglu_fwd = swiglu_fwd,
    .swiglu_bwd = swiglu_bwd,
    .bias_fwd = bias_fwd,
    .bias_bwd = bias_bwd,
    .head_loss = ref_head_loss,
    .vocab_max = ref_vocab_max,
    .vocab_sum = ref_vocab_sum,
    .vocab_loss = ref_vocab_loss,
    .rtd_loss = ref_rtd_loss,
    .sample_rows = ref_sample_rows,
    .label_rows = ref_label_rows,
    .sumsq = sumsq,
    .adamw = adamw,
    .normalise = normalise,
    .matrix_step = matrix_step,
    .scale = scale,
    .add = add,
};

enum neb_status kern_ref_create(struct kern **out) {
    struct kern *K = calloc(1, sizeof *K);
    if (!K)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating the reference backend");
    enum neb_status st = kern_pool_create(1, &K->pool);
    if (st != NEB_OK) {
        free(K);
        return st;
    }
    kern_host_init(K, &ref_ops);
    *out = K;
    return NEB_OK;
}
