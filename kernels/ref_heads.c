// SPDX-License-Identifier: Apache-2.0
// The reference's ops on logits. They may allocate.
#include "kernels/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *room(size_t n) {
    double *p = malloc(n * sizeof *p);
    NEB_ASSERT(p);
    return p;
}

// z (V) = logits of one row x (d).
static void logits_of(const struct kern *K, double *z, const float *x, const float *w, int V,
                      int d) {
    for (int c = 0; c < V; c++) {
        z[c] = 0;
        for (int j = 0; j < d; j++)
            z[c] += ref_operand(K, x[j]) * ref_operand(K, w[(size_t)c * d + j]);
    }
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

// Adds the gradients of row i by its logits' gradient.
static void row_bwd(const struct kern *K, const struct kern_head *h, int i, const double *dz) {
    const float *x = (const float *)h->x + (size_t)i * h->d, *w = h->w;
    float *dx = (float *)h->dx + (size_t)i * h->d;
    for (int c = 0; c < h->V; c++) {
        double g = K->ctx ? ref_operand(K, (float)dz[c]) : dz[c];
        for (int j = 0; j < h->d; j++) {
            if (h->dx)
                dx[j] += (float)(g * ref_operand(K, w[(size_t)c * h->d + j]));
            if (h->dw)
                h->dw[(size_t)c * h->d + j] += (float)(g * ref_operand(K, x[j]));
        }
    }
}

void ref_head_loss(struct kern *K, enum kern_type t, const struct kern_head *h,
                   const struct kern_soft *s) {
    double *z = room(4 * (size_t)h->V), *logq = z + h->V, *soft = logq + h->V, *dkl = soft + h->V;
    double T = s ? (double)s->temperature : 1, lambda = s ? (double)s->lambda : 0;
    (void)t;
    for (int i = 0; i < h->n; i++) {
        int32_t target = h->targets[i];
        if (h->losses)
            h->losses[i] = 0;
        if (h->dx)
            memset((float *)h->dx + (size_t)i * h->d, 0, sizeof(float) * (size_t)h->d);
        if (target == KERN_IGNORE)
            continue;
        NEB_ASSERT(target >= 0 && target < h->V);
        logits_of(K, z, (const float *)h->x + (size_t)i * h->d, h->w, h->V, h->d);
        log_softmax(z, h->V, 1, logq);
        log_softmax(z, h->V, T, soft);
        double kl = s ? kl_row(s, i, h->V, soft, dkl) : 0,
               loss = (1 - lambda) * -logq[target] + lambda * T * T * kl;
        *h->total += loss;
        if (h->losses)
            h->losses[i] = (float)loss;
        for (int c = 0; c < h->V && (h->dx || h->dw); c++) {
            double dce = exp(logq[c]) - (c == target);
            z[c] =
                ((1 - lambda) * dce + (s ? lambda * T * T * dkl[c] : 0)) * (double)*h->grad_scale;
        }
        if (h->dx || h->dw)
            row_bwd(K, h, i, z);
    }
    free(z);
}

// ---- a vocabulary cut over ranks

static float *row_of(const struct kern_vocab *v, int i) {
    return (float *)v->logits + (size_t)i * (size_t)kern_logits_ld(v->V);
}
// This rank's column of the target of row i, or -1.
static int column_of(const struct kern_vocab *v, int i) {
    int32_t target = v->targets[i];
    return target >= v->row0 && target < v->row0 + v->V ? target - v->row0 : -1;
}

void ref_vocab_max(struct kern *K, enum kern_type t, const struct kern_vocab *v) {
    (void)K, (void)t;
    for (int i = 0; i < v->n; i++) {
        v->max[i] = -INFINITY;
        for (int c = 0; c < v->V; c++)
            v->max[i] = fmaxf(v->max[i], row_of(v, i)[c]);
    }
}

// True if the teacher names column c of this rank in row i. *logp: its log-probability.
static bool named(const struct kern_vocab *v, int i, int c, double *logp) {
    const struct kern_soft *s = v->soft;
    for (int j = 0; j < s->k; j++) {
        size_t at = (size_t)i * (size_t)s->k + (size_t)j;
        *logp = (double)s->logp[at];
        if (s->ids[at] == v->row0 + c)
            return true;
    }
    return false;
}

// Sums of a teacher's classes: kern_vocab.sums.
static void soft_sums(const struct kern_vocab *v, int i) {
    double rest = 0, all = 0, far = 0, logp;
    for (int c = 0; v->targets[i] != KERN_IGNORE && c < v->V; c++) {
        double z = ((double)row_of(v, i)[c] - (double)v->max[i]) / (double)v->soft->temperature;
        bool is = named(v, i, c, &logp);
        all += exp(z);
        rest += is ? 0 : exp(z);
        far += is ? exp(logp) * (logp - z) : 0;
    }
    v->sums[2 * v->n + i] = all;
    v->sums[3 * v->n + i] = rest;
    v->sums[4 * v->n + i] = far;
}

// KL of row i, from the sums over all ranks.
static double soft_loss(const struct kern_vocab *v, int i) {
    const struct kern_soft *s = v->soft;
    double all = v->sums[2 * v->n + i], rest = fmax(v->sums[3 * v->n + i] / all, 1e-12),
           kl = v->sums[4 * v->n + i], tail = (double)s->tail[i];
    for (int j = 0; j < s->k; j++)
        kl += exp((double)s->logp[i * s->k + j]) * log(all);
    return kl + (tail > 0 ? tail * (log(tail) - log(rest)) : 0);
}

// The gradient of KL by (column c's logit / temperature).
static double soft_grad(const struct kern_vocab *v, int i, int c, double z) {
    double q = exp((z - (double)v->max[i]) / (double)v->soft->temperature) / v->sums[2 * v->n + i],
           rest = fmax(v->sums[3 * v->n + i] / v->sums[2 * v->n + i], 1e-12), logp;
    return named(v, i, c, &logp) ? q - exp(logp) : q * (1 - (double)v->soft->tail[i] / rest);
}

void ref_vocab_sum(struct kern *K, enum kern_type t, const struct kern_vocab *v) {
    (void)K, (void)t;
    for (int i = 0; i < v->n; i++) {
        if (v->soft)
            soft_sums(v, i);
        float *z = row_of(v, i);
        int at = column_of(v, i);
        v->sums[i] = 0;
        v->sums[v->n + i] = at < 0 ? 0 : (double)z[at];
        for (int c = 0; c < v->V; c++)
            v->sums[i] += exp((double)z[c] - (double)v->max[i]);
    }
}

void ref_vocab_loss(struct kern *K, enum kern_type t, const struct kern_vocab *v) {
    (void)K, (void)t;
    for (int i = 0; i < v->n; i++) {
        float *z = row_of(v, i);
        int at = column_of(v, i);
        bool counts = v->targets[i] != KERN_IGNORE;
        double loss = counts ? (double)v->max[i] + log(v->sums[i]) - v->sums[v->n + i] : 0,
               lambda = v->soft ? (double)v->soft->lambda : 0,
               T = v->soft ? (double)v->soft->temperature : 1;
        if (v->soft && counts)
            loss = (1 - lambda) * loss + lambda * T * T * soft_loss(v, i);
        if (v->losses)
            v->losses[i] = (float)loss;
        *v->total += loss;
        for (int c = 0; v->learn && c < v->V; c++) {
            double p = exp((double)z[c] - (double)v->max[i]) / v->sums[i],
                   g = (1 - lambda) * (p - (c == at)) +
                       (v->soft && counts ? lambda * T * soft_grad(v, i, c, (double)z[c]) : 0);
            z[c] = counts ? (float)(g * (double)*v->grad_scale) : 0;
        }
    }
}

// ---- a discriminator

void ref_rtd_loss(struct kern *K, enum kern_type t, const struct kern_rtd *h) {
    double db = 0, *dw = room((size_t)h->d);
    (void)K, (void)t;
    memset(dw, 0, (size_t)h->d * sizeof *dw);
    for (int i = 0; i < h->n; i++) {
        const float *x = (const float *)h->x + (size_t)i * h->d;
        double z = (double)h->b[0], label = h->labels[i];
        bool counts = h->labels[i] != KERN_IGNORE;
        for (int k = 0; k < h->d; k++)
            z += (double)x[k] * (double)h->w[k];
        double loss = counts ? fmax(z, 0) + log1p(exp(-fabs(z))) - label * z : 0,
               g = counts ? (1 / (1 + exp(-z)) - label) * (double)*h->grad_scale : 0;
        h->scores[i] = (float)z;
        if (h->losses)
            h->losses[i] = (float)loss;
        *h->total += loss;
        db += g;
        for (int k = 0; k < h->d; k++) {
            dw[k] += g * (double)x[k];
            if (h->dx)
                ((float *)h->dx)[(size_t)i * h->d + k] = (float)(g * (double)h->w[k]);
        }
    }
    for (int k = 0; h->dw && k < h->d; k++)
        h->dw[k] += (float)dw[k];
    if (h->db)
        h->db[0] += (float)db;
    free(dw);
}

// ---- logits of some rows

void ref_sample_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, float temperature,
                     const double *u, int32_t *ids) {
    double *z = room(2 * (size_t)r->V), *logq = z + r->V;
    (void)t;
    for (int i = 0; i < r->n; i++) {
        double run = 0;
        logits_of(K, z, (const float *)r->x + (size_t)r->at[i] * r->d, r->w, r->V, r->d);
        log_softmax(z, r->V, (double)temperature, logq);
        ids[i] = 0;
        while (ids[i] < r->V - 1 && !((run += exp(logq[ids[i]])) > u[i]))
            ids[i]++;
    }
    free(z);
}

void ref_label_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, int k,
                    float temperature, int32_t *ids, float *logp, float *tail) {
    double *z = room(2 * (size_t)r->V), *logq = z + r->V;
    (void)t;
    for (int i = 0; i < r->n; i++) {
        double named = 0;
        logits_of(K, z, (const float *)r->x + (size_t)r->at[i] * r->d, r->w, r->V, r->d);
        double log_sum = log_softmax(z, r->V, (double)temperature, logq);
        if (k && r->log_sums)
            r->log_sums[i] = (float)log_sum;
        for (int c = 0; !k && c < r->V; c++)
            logp[(size_t)i * r->V + c] = (float)logq[c];
        for (int j = 0; j < k; j++) { // the largest that is left
            int best = -1;
            for (int c = 0; c < r->V; c++)
                if (z[c] > -INFINITY && (best < 0 || z[c] > z[best]))
                    best = c;
            ids[(size_t)i * k + j] = best;
            logp[(size_t)i * k + j] = (float)logq[best];
            named += exp(logq[best]);
            z[best] = -INFINITY;
        }
        if (k)
            tail[i] = (float)fmax(1 - named, 0);
    }
    free(z);
}
