// SPDX-License-Identifier: Apache-2.0
// The reference backend: the definition of every op, as plain loops with sums in double. It is slow
// and readable. All other backends are tested against it, and it against finite differences.
#include "kernels/bf16.h"
#include "kernels/kern.h"

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

// An operand of a product. ctx is set if products are in bf16.
static double operand(const struct kern *K, float x) {
    return (double)(K->ctx ? kern_bf16_round(x) : x);
}
void kern_ref_bf16(struct kern *K) { K->ctx = K; }

static void gemm(struct kern *K, enum kern_trans ta, enum kern_trans tb, int m, int n, int k,
                 float alpha, const float *a, int lda, const float *b, int ldb, float beta,
                 float *c, int ldc) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double s = 0;
            for (int l = 0; l < k; l++)
                s += operand(K, ta ? a[(size_t)l * lda + i] : a[(size_t)i * lda + l]) *
                     operand(K, tb ? b[(size_t)j * ldb + l] : b[(size_t)l * ldb + j]);
            float *out = &c[(size_t)i * ldc + j];
            *out = (float)((double)alpha * s + (beta != 0 ? (double)beta * (double)*out : 0.0));
        }
}

static void linear_bwd(struct kern *K, float *dx, float *dw, const float *dy, int ld,
                       const float *x, const float *w, int n, int out, int in) {
    if (dw)
        gemm(K, KERN_T, KERN_N, out, in, n, 1, dy, ld, x, in, 1, dw, in);
    if (dx)
        gemm(K, KERN_N, KERN_N, n, in, out, 1, dy, ld, w, in, 0, dx, in);
}

static void weights(struct kern *K, const float *params, size_t n) {
    (void)K, (void)params, (void)n;
}

static void embed_fwd(struct kern *K, float *out, const float *table, const int32_t *ids, int n,
                      int d) {
    (void)K;
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)i * d, table + (size_t)ids[i] * d, sizeof(float) * d);
}

static void embed_bwd(struct kern *K, float *dtable, const float *dout, const int32_t *ids, int n,
                      int d, int V) {
    (void)K;
    for (int i = 0; i < n; i++) {
        NEB_ASSERT(ids[i] >= 0 && ids[i] < V);
        for (int j = 0; j < d; j++)
            dtable[(size_t)ids[i] * d + j] += dout[(size_t)i * d + j];
    }
}

static void rmsnorm_fwd(struct kern *K, float *y, float *rstd, float *h, const float *x,
                        const float *r, const float *w, int n, int d, float eps) {
    (void)K;
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
static void rmsnorm_bwd(struct kern *K, float *dh, float *dw, const float *dy, const float *h,
                        const float *w, const float *rstd, int n, int d) {
    (void)K;
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
    for (int j = 0; dw && j < d; j++) {
        double s = 0;
        for (int i = 0; i < n; i++)
            s += (double)dy[(size_t)i * d + j] * (double)h[(size_t)i * d + j] * (double)rstd[i];
        dw[j] += (float)s;
    }
}

static void rope(struct kern *K, float *x, int ld, const float *cos_sin, int n, int T, int heads,
                 int head_dim, bool inverse) {
    (void)K;
    int half = head_dim / 2;
    for (int r = 0; r < n; r++)
        for (int h = 0; h < heads; h++) {
            float *p = x + (size_t)r * ld + (size_t)h * head_dim;
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

static void attn_fwd(struct kern *K, const struct kern_attn *s, float *out, int ldo, float *lse,
                     const float *q, int ldq, const float *k, int ldk, const float *v, int ldv) {
    (void)K;
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
static void attn_bwd(struct kern *K, const struct kern_attn *s, float *dq, float *dk, float *dv,
                     const float *dout, const float *out, int ldo, const float *lse, const float *q,
                     int ldq, const float *k, int ldk, const float *v, int ldv, float *delta) {
    (void)K;
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
}

static void swiglu_fwd(struct kern *K, float *y, const float *gu, int n, int f) {
    (void)K;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < f; j++) {
            double g = (double)gu[(size_t)i * 2 * f + j];
            y[(size_t)i * f + j] =
                (float)(g / (1 + exp(-g)) * (double)gu[(size_t)i * 2 * f + f + j]);
        }
}

static void swiglu_bwd(struct kern *K, float *dgu, const float *dy, const float *gu, int n, int f) {
    (void)K;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < f; j++) {
            size_t at = (size_t)i * 2 * f + j;
            double g = (double)gu[at], u = (double)gu[at + f], dyij = (double)dy[(size_t)i * f + j];
            double sig = 1 / (1 + exp(-g));
            dgu[at] = (float)(dyij * u * sig * (1 + g * (1 - sig)));
            dgu[at + f] = (float)(dyij * g * sig);
        }
}

static void bias_fwd(struct kern *K, float *x, const float *b, int n, int d) {
    (void)K;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < d; j++)
            x[(size_t)i * d + j] += b[j];
}

static void bias_bwd(struct kern *K, float *db, const float *dy, int n, int d) {
    (void)K;
    for (int j = 0; j < d; j++) {
        double s = 0;
        for (int i = 0; i < n; i++)
            s += (double)dy[(size_t)i * d + j];
        db[j] += (float)s;
    }
}

static double head_loss(struct kern *K, const struct kern_head *h, int64_t *n_counted) {
    double total = 0, *z = malloc(sizeof *z * h->V); // the reference may allocate
    NEB_ASSERT(z);
    *n_counted = 0;
    for (int i = 0; i < h->n; i++) {
        const float *x = h->x + (size_t)i * h->d;
        double max = -INFINITY, sum = 0;
        if (h->losses)
            h->losses[i] = 0;
        if (h->dx)
            memset(h->dx + (size_t)i * h->d, 0, sizeof(float) * h->d);
        if (h->targets[i] == KERN_IGNORE)
            continue;
        NEB_ASSERT(h->targets[i] >= 0 && h->targets[i] < h->V);
        for (int c = 0; c < h->V; c++) {
            z[c] = 0;
            for (int j = 0; j < h->d; j++)
                z[c] += operand(K, x[j]) * operand(K, h->w[(size_t)c * h->d + j]);
            max = fmax(max, z[c]);
        }
        for (int c = 0; c < h->V; c++)
            sum += exp(z[c] - max);
        double loss = max + log(sum) - z[h->targets[i]];
        total += loss;
        ++*n_counted;
        if (h->losses)
            h->losses[i] = (float)loss;
        for (int c = 0; c < h->V && (h->dx || h->dw); c++) {
            double dz = (exp(z[c] - max) / sum - (c == h->targets[i])) * (double)h->grad_scale;
            dz = K->ctx ? operand(K, (float)dz) : dz;
            for (int j = 0; j < h->d; j++) {
                if (h->dx)
                    h->dx[(size_t)i * h->d + j] +=
                        (float)(dz * operand(K, h->w[(size_t)c * h->d + j]));
                if (h->dw)
                    h->dw[(size_t)c * h->d + j] += (float)(dz * operand(K, x[j]));
            }
        }
    }
    free(z);
    return total;
}

static double log_softmax(const double *z, int V, double T, double *logq) {
    double max = -INFINITY, sum = 0;
    for (int c = 0; c < V; c++)
        max = fmax(max, z[c] / T);
    for (int c = 0; c < V; c++)
        sum += exp(z[c] / T - max);
    for (int c = 0; c < V; c++)
        logq[c] = z[c] / T - max - log(sum);
    return max + log(sum);
}

// Returns KL of one row, and its gradient in dz (V). p: the teacher's probabilities, q: the
// student's, t: the tail. dKL/dz_c is (q_c - p_c) / T for a named class c, and
// (q_c - p_t q_c / q_t) / T for a class of the tail.
static double kl_row(const struct kern_soft *s, int row, int V, const double *logq, double *dz) {
    double kl = 0, T = (double)s->temperature, named = 0, p_tail = s->k ? (double)s->tail[row] : 0;
    for (int c = 0; c < V; c++)
        dz[c] = exp(logq[c]) / T;
    for (int j = 0; j < (s->k ? s->k : V); j++) {
        size_t at = (size_t)row * (size_t)(s->k ? s->k : V) + (size_t)j;
        int c = s->k ? s->ids[at] : j;
        double p = exp((double)s->logp[at]);
        kl += p > 0 ? p * ((double)s->logp[at] - logq[c]) : 0;
        dz[c] -= p / T;
        named += exp(logq[c]);
    }
    if (!s->k)
        return kl;
    double q_tail = fmax(1 - named, 1e-12);
    kl += p_tail > 0 ? p_tail * (log(p_tail) - log(q_tail)) : 0;
    for (int c = 0; c < V; c++) {
        bool is_named = false;
        for (int j = 0; j < s->k; j++)
            is_named = is_named || s->ids[(size_t)row * (size_t)s->k + (size_t)j] == c;
        if (!is_named)
            dz[c] -= p_tail * exp(logq[c]) / q_tail / T;
    }
    return kl;
}

static double distill(struct kern *K, const struct kern_head *h, const struct kern_soft *s,
                      int64_t *n_counted) {
    double total = 0, ce_sum = 0, kl_sum = 0, *z = malloc(sizeof *z * 4 * (size_t)h->V);
    double *logq = z + h->V, *logqT = logq + h->V, *dkl = logqT + h->V;
    double T = (double)s->temperature, lambda = (double)s->lambda;
    NEB_ASSERT(z);
    *n_counted = 0;
    for (int i = 0; i < h->n; i++) {
        const float *x = h->x + (size_t)i * h->d;
        if (h->losses)
            h->losses[i] = 0;
        if (h->dx)
            memset(h->dx + (size_t)i * h->d, 0, sizeof(float) * h->d);
        if (h->targets[i] == KERN_IGNORE)
            continue;
        for (int c = 0; c < h->V; c++) {
            z[c] = 0;
            for (int j = 0; j < h->d; j++)
                z[c] += operand(K, x[j]) * operand(K, h->w[(size_t)c * h->d + j]);
        }
        log_softmax(z, h->V, 1, logq);
        log_softmax(z, h->V, T, logqT);
        double ce = -logq[h->targets[i]], kl = kl_row(s, i, h->V, logqT, dkl);
        double loss = (1 - lambda) * ce + lambda * T * T * kl;
        total += loss;
        ce_sum += ce;
        kl_sum += kl;
        ++*n_counted;
        if (h->losses)
            h->losses[i] = (float)loss;
        for (int c = 0; c < h->V && (h->dx || h->dw); c++) {
            double dce = exp(logq[c]) - (c == h->targets[i]);
            double dz = ((1 - lambda) * dce + lambda * T * T * dkl[c]) * (double)h->grad_scale;
            dz = K->ctx ? operand(K, (float)dz) : dz;
            for (int j = 0; j < h->d; j++) {
                if (h->dx)
                    h->dx[(size_t)i * h->d + j] +=
                        (float)(dz * operand(K, h->w[(size_t)c * h->d + j]));
                if (h->dw)
                    h->dw[(size_t)c * h->d + j] += (float)(dz * operand(K, x[j]));
            }
        }
    }
    free(z);
    if (s->ce_sum)
        *s->ce_sum = ce_sum;
    if (s->kl_sum)
        *s->kl_sum = kl_sum;
    return total;
}

static void adamw(struct kern *K, const struct kern_adamw *c, float *p, const float *g, float *m,
                  float *v, size_t n) {
    (void)K;
    for (size_t i = 0; i < n; i++) {
        double gi = (double)g[i] * (double)c->grad_scale;
        double mi = (double)c->beta1 * (double)m[i] + (1 - (double)c->beta1) * gi;
        double vi = (double)c->beta2 * (double)v[i] + (1 - (double)c->beta2) * gi * gi;
        m[i] = (float)mi;
        v[i] = (float)vi;
        double update = mi / (double)c->bias1 / (sqrt(vi / (double)c->bias2) + (double)c->eps);
        p[i] = (float)((double)p[i] -
                       (double)c->lr * (update + (double)c->weight_decay * (double)p[i]));
    }
}

static double sumsq(struct kern *K, const float *x, size_t n) {
    double s = 0;
    (void)K;
    for (size_t i = 0; i < n; i++)
        s += (double)x[i] * (double)x[i];
    return s;
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

static void zero(struct kern *K, float *y, size_t n) {
    (void)K;
    memset(y, 0, sizeof *y * n);
}

static const struct kern_ops ref_ops = {
    .name = "reference",
    .gemm = gemm,
    .linear_bwd = linear_bwd,
    .weights = weights,
    .embed_fwd = embed_fwd,
    .embed_bwd = embed_bwd,
    .rmsnorm_fwd = rmsnorm_fwd,
    .rmsnorm_bwd = rmsnorm_bwd,
    .rope = rope,
    .attn_fwd = attn_fwd,
    .attn_bwd = attn_bwd,
    .swiglu_fwd = swiglu_fwd,
    .swiglu_bwd = swiglu_bwd,
    .bias_fwd = bias_fwd,
    .bias_bwd = bias_bwd,
    .head_loss = head_loss,
    .distill = distill,
    .adamw = adamw,
    .sumsq = sumsq,
    .add = add,
    .scale = scale,
    .zero = zero,
};

static void ref_destroy(struct kern *K) {
    kern_pool_destroy(&K->pool);
    free(K);
}

enum neb_status kern_ref_create(struct kern **out) {
    struct kern *K = calloc(1, sizeof *K);
    if (!K)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating the reference backend");
    enum neb_status st = kern_pool_create(1, &K->pool);
    if (st != NEB_OK) {
        free(K);
        return st;
    }
    K->ops = &ref_ops;
    K->destroy = ref_destroy;
    *out = K;
    return NEB_OK;
}

void kern_destroy(struct kern **K) {
    if (*K)
        (*K)->destroy(*K);
    *K = NULL;
}
