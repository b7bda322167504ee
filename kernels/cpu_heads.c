// SPDX-License-Identifier: Apache-2.0
// Losses, draws and soft labels: ops on logits, block by block, so that few logits exist at a time.
#include "kernels/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEAD_LOGITS = 1 << 20, // floats of one block of logits, approximately
    HEAD_ROWS_MIN = 64,
    HEAD_ROWS_MAX = 512,
    DRAW_ROWS = 256, // rows of logits in memory at once
    LABEL_ROWS = 64,
};

static void form_logits(struct kern *K, float *z, int ld, const float *x, int n, const float *w,
                        int V, int d) {
    struct kern_gemm g = kern_linear(KERN_F32, KERN_F32, n, V, d, x, w, z);
    g.ldc = ld;
    cpu_gemm(K, &g);
}

// The output layer. Rows without a target are skipped: the other rows are gathered, block by block.
struct head_job {
    const struct kern_head *h;
    float by; // gradients are multiplied by this
    const struct cpu_isa *v;
    const int32_t *rows;          // rows of x in this block
    float *z;                     // (block, V) logits, then their gradient
    double *loss;                 // (block)
    const struct kern_soft *soft; // NULL: no teacher
    float *zt;                    // (block, V) logits at the teacher's temperature
    float *x, *dx;                // (block, d) gathered
};

static void head_gather(void *arg, size_t i) {
    const struct head_job *j = arg;
    size_t d = (size_t)j->h->d;
    memcpy(j->x + i * d, (const float *)j->h->x + (size_t)j->rows[i] * d, sizeof(float) * d);
}

static void head_softmax(void *arg, size_t i) {
    const struct head_job *j = arg;
    size_t V = (size_t)j->h->V;
    float *z = j->z + i * V, max;
    int32_t target = j->h->targets[j->rows[i]];
    double at = (double)z[target], sum = j->v->exp_row(z, V, &max);
    j->loss[i] = (double)max + log(sum) - at;
    if (j->h->losses)
        j->h->losses[j->rows[i]] = (float)j->loss[i];
    if (j->h->dx || j->h->dw) {
        j->v->scale(z, (float)((double)j->by / sum), V);
        z[target] -= j->by;
    }
}

// z holds exp(logit / T - max). Replaces it with the gradient of KL by logit / T, and returns KL,
// as kl_row in ref.c. The tail's mass is summed class by class: 1 - (mass of the named classes)
// would lose all digits where that mass is nearly 1.
static double soft_row(const struct kern_soft *s, const struct cpu_isa *v, float *z, size_t V,
                       size_t row, double sum, double max, const double *named_logit) {
    const float *logp = s->logp + row * (s->k ? (size_t)s->k : V);
    double log_sum = max + log(sum), kl = 0;
    if (!s->k) {
        for (size_t c = 0; c < V; c++) {
            float p = expf(logp[c]), q = (float)((double)z[c] / sum);
            kl +=
                p > 0 ? (double)p * ((double)logp[c] - (log((double)z[c] + 1e-300) - log(sum))) : 0;
            z[c] = q - p;
        }
        return kl;
    }
    const int32_t *ids = s->ids + row * (size_t)s->k;
    double rest = 0, p_tail = (double)s->tail[row];
    for (int j = 0; j < s->k; j++)
        z[ids[j]] = 0;
    for (size_t c = 0; c < V; c++)
        rest += (double)z[c];
    double q_tail = rest / sum > 1e-12 ? rest / sum : 1e-12;
    kl = p_tail > 0 ? p_tail * (log(p_tail) - log(q_tail)) : 0;
    v->scale(z, (float)((1 - p_tail / q_tail) / sum), V);
    for (int j = 0; j < s->k; j++) {
        double p = exp((double)logp[j]), logq = named_logit[j] - log_sum;
        kl += p > 0 ? p * ((double)logp[j] - logq) : 0;
        z[ids[j]] = (float)(exp(logq) - p);
    }
    return kl;
}

static void head_soft(void *arg, size_t i) {
    const struct head_job *j = arg;
    const struct kern_soft *s = j->soft;
    size_t V = (size_t)j->h->V, row = (size_t)j->rows[i];
    float *z = j->z + i * V, *zt = j->zt + i * V, max;
    int32_t target = j->h->targets[row];
    double named[KERN_SOFT_K_MAX], T = (double)s->temperature, at = (double)z[target];
    memcpy(zt, z, sizeof *zt * V);
    if (s->temperature != 1)
        j->v->scale(zt, 1 / s->temperature, V);
    for (int k = 0; k < s->k; k++)
        named[k] = (double)zt[s->ids[row * (size_t)s->k + (size_t)k]];
    double sum = j->v->exp_row(z, V, &max), ce = (double)max + log(sum) - at;
    double sum_t = j->v->exp_row(zt, V, &max);
    double kl = soft_row(s, j->v, zt, V, row, sum_t, (double)max, named),
           lambda = (double)s->lambda;
    double loss = (1 - lambda) * ce + lambda * T * T * kl, by = (double)j->by;
    j->loss[i] = loss;
    if (j->h->losses)
        j->h->losses[row] = (float)loss;
    if (!j->h->dx && !j->h->dw)
        return;
    j->v->scale(z, (float)((1 - lambda) * by / sum), V);
    z[target] -= (float)((1 - lambda) * by);
    j->v->scale(zt, (float)(lambda * T * by), V); // T^2 from the loss, 1 / T from the logits
    j->v->add(z, zt, V);
}

static void head_scatter(void *arg, size_t i) {
    const struct head_job *j = arg;
    size_t d = (size_t)j->h->d;
    memcpy((float *)j->h->dx + (size_t)j->rows[i] * d, j->dx + i * d, sizeof(float) * d);
}

static size_t head_pick(struct cpu_ctx *x, const struct kern_head *h) {
    size_t counted = 0, n = (size_t)h->n;
    if (n > x->picked_n) {
        free(x->picked);
        x->picked = malloc(n * sizeof *x->picked);
        NEB_ASSERT(x->picked);
        x->picked_n = n;
    }
    for (size_t i = 0; i < n; i++) {
        if (h->targets[i] != KERN_IGNORE) {
            NEB_ASSERT(h->targets[i] >= 0 && h->targets[i] < h->V);
            x->picked[counted++] = (int32_t)i;
            continue;
        }
        if (h->losses)
            h->losses[i] = 0;
        if (h->dx)
            memset((float *)h->dx + i * (size_t)h->d, 0, sizeof(float) * (size_t)h->d);
    }
    return counted;
}

void cpu_head_loss(struct kern *K, enum kern_type t, const struct kern_head *h,
                   const struct kern_soft *soft) {
    NEB_ASSERT(t == KERN_F32);
    NEB_ASSERT(!soft || (soft->k >= 0 && soft->k <= KERN_SOFT_K_MAX && soft->temperature > 0));
    struct cpu_ctx *x = cpu_of(K);
    size_t counted = head_pick(x, h), d = (size_t)h->d, V = (size_t)h->V,
           block = HEAD_LOGITS / V / 16 * 16;
    block = block < HEAD_ROWS_MIN ? HEAD_ROWS_MIN : block > HEAD_ROWS_MAX ? HEAD_ROWS_MAX : block;
    bool all = counted == (size_t)h->n;
    struct head_job j = {.h = h, .v = x->isa, .z = cpu_buf_need(&x->logits, block * V)};
    j.loss = (double *)cpu_buf_need(&x->partial, 2 * block);
    j.by = h->dx || h->dw ? *h->grad_scale : 0;
    j.soft = soft;
    j.zt = soft ? cpu_buf_need(&x->soft, block * V) : NULL;
    float *rows = all ? NULL : cpu_buf_need(&x->rows, block * d);
    float *drows = all || !h->dx ? NULL : cpu_buf_need(&x->drows, block * d);
    double total = 0;
    for (size_t from = 0; from < counted; from += block) {
        size_t n = counted - from < block ? counted - from : block;
        j.rows = x->picked + from;
        j.x = rows;
        j.dx = all && h->dx ? (float *)h->dx + from * d : drows;
        if (!all)
            kern_pool_run(K->pool, n, head_gather, &j);
        const float *xb = all ? (const float *)h->x + from * d : rows;
        form_logits(K, j.z, h->V, xb, (int)n, h->w, h->V, h->d);
        kern_pool_run(K->pool, n, soft ? head_soft : head_softmax, &j);
        for (size_t i = 0; i < n; i++)
            total += j.loss[i];
        cpu_linear_bwd(K, &(struct kern_linear_bwd){.n = (int)n,
                                                    .out = h->V,
                                                    .in = h->d,
                                                    .dy = j.z,
                                                    .ld = h->V,
                                                    .x = xb,
                                                    .w = h->w,
                                                    .dx = h->dx ? j.dx : NULL,
                                                    .dw = h->dw});
        if (h->dx && !all)
            kern_pool_run(K->pool, n, head_scatter, &j);
    }
    *h->total += total;
}

// ---- a vocabulary cut over ranks ----------------------------------------------------------------

static float *vocab_row(const struct kern_vocab *v, size_t i) {
    return (float *)v->logits + i * (size_t)kern_logits_ld(v->V);
}
// This rank's column of a row's target, or -1.
static int32_t vocab_column(const struct kern_vocab *v, size_t i) {
    int32_t target = v->targets[i];
    return target >= v->row0 && target < v->row0 + v->V ? target - v->row0 : -1;
}

static void row_max(void *arg, size_t i) {
    const struct kern_vocab *v = arg;
    const float *z = vocab_row(v, i);
    float max = z[0];
    for (int k = 1; k < v->V; k++)
        max = z[k] > max ? z[k] : max;
    v->max[i] = max;
}

static void row_exp(void *arg, size_t i) {
    const struct kern_vocab *v = arg;
    float *z = vocab_row(v, i);
    int32_t at = vocab_column(v, i);
    v->sums[(size_t)v->n + i] = at < 0 ? 0 : (double)z[at];
    double sum = 0;
    for (int k = 0; k < v->V; k++) {
        z[k] = expf(z[k] - v->max[i]);
        sum += (double)z[k];
    }
    v->sums[i] = sum;
}

// This rank's column of the j-th class that the teacher names in row i, or -1.
static int32_t vocab_named(const struct kern_vocab *v, size_t i, int j) {
    int32_t at = v->soft->ids[i * (size_t)v->soft->k + (size_t)j] - v->row0;
    return at >= 0 && at < v->V ? at : -1;
}

// With a teacher z stays: the third step needs exponentials at two temperatures.
static void row_soft_exp(void *arg, size_t i) {
    const struct kern_vocab *v = arg;
    const struct kern_soft *s = v->soft;
    float *z = vocab_row(v, i), max = v->max[i], by = 1 / s->temperature, held[KERN_SOFT_K_MAX];
    int32_t at = vocab_column(v, i);
    size_t n = (size_t)v->n;
    double sum = 0, rest = 0, named = 0, far = 0;
    v->sums[n + i] = at < 0 ? 0 : (double)z[at];
    for (int k = 0; k < v->V; k++)
        sum += (double)expf(z[k] - max);
    bool counts = v->targets[i] != KERN_IGNORE;
    for (int j = 0; counts && j < s->k; j++) {
        int32_t c = vocab_named(v, i, j);
        if (c < 0)
            continue;
        double logp = (double)s->logp[i * (size_t)s->k + (size_t)j],
               y = (double)((z[c] - max) * by);
        named += exp(y);
        far += exp(logp) * (logp - y);
        held[j] = z[c];
        z[c] = -INFINITY; // leaves the sum of the other classes
    }
    for (int k = 0; counts && k < v->V; k++)
        rest += (double)expf((z[k] - max) * by);
    for (int j = 0; counts && j < s->k; j++)
        if (vocab_named(v, i, j) >= 0)
            z[vocab_named(v, i, j)] = held[j];
    v->sums[i] = sum;
    v->sums[2 * n + i] = rest + named;
    v->sums[3 * n + i] = rest;
    v->sums[4 * n + i] = far;
}

static double vocab_tail(const struct kern_vocab *v, size_t i) { // of the student
    size_t n = (size_t)v->n;
    return fmax(v->sums[3 * n + i] / v->sums[2 * n + i], 1e-12);
}

static double vocab_kl(const struct kern_vocab *v, size_t i) {
    const struct kern_soft *s = v->soft;
    double named = 0, tail = (double)s->tail[i];
    for (int j = 0; j < s->k; j++)
        named += exp((double)s->logp[i * (size_t)s->k + (size_t)j]);
    return v->sums[4 * (size_t)v->n + i] + named * log(v->sums[2 * (size_t)v->n + i]) +
           (tail > 0 ? tail * (log(tail) - log(vocab_tail(v, i))) : 0);
}

static void row_soft_grad(void *arg, size_t i) {
    const struct kern_vocab *v = arg;
    const struct kern_soft *s = v->soft;
    float *z = vocab_row(v, i), max = v->max[i], T = s->temperature, scale = *v->grad_scale,
          soft = scale * s->lambda * T, hard = scale * (1 - s->lambda), held[KERN_SOFT_K_MAX];
    if (v->targets[i] == KERN_IGNORE) {
        memset(z, 0, (size_t)v->V * sizeof *z);
        return;
    }
    double all = v->sums[2 * (size_t)v->n + i];
    float by = (float)((double)hard / v->sums[i]),
          rest = (float)((double)soft * (1 - (double)s->tail[i] / vocab_tail(v, i)) / all);
    int32_t at = vocab_column(v, i);
    for (int j = 0; j < s->k; j++) {
        int32_t c = vocab_named(v, i, j);
        held[j] = c < 0 ? 0 : z[c];
    }
    for (int k = 0; k < v->V; k++)
        z[k] = expf(z[k] - max) * by + expf((z[k] - max) / T) * rest;
    for (int j = 0; j < s->k; j++) {
        int32_t c = vocab_named(v, i, j);
        double p = exp((double)s->logp[i * (size_t)s->k + (size_t)j]);
        if (c >= 0)
            z[c] = expf(held[j] - max) * by +
                   soft * (float)(exp((double)((held[j] - max) / T)) / all - p);
    }
    if (at >= 0)
        z[at] -= hard;
}

// z becomes the gradient: probabilities times grad_scale, minus grad_scale at the target.
static void row_grad(void *arg, size_t i) {
    const struct kern_vocab *v = arg;
    float *z = vocab_row(v, i), by = *v->grad_scale,
          scale = v->targets[i] == KERN_IGNORE ? 0 : (float)((double)by / v->sums[i]);
    int32_t at = vocab_column(v, i);
    for (int k = 0; k < v->V; k++)
        z[k] *= scale;
    if (at >= 0)
        z[at] -= by;
}

static void vocab_run(struct kern *K, enum kern_type t, const struct kern_vocab *v,
                      void (*row)(void *arg, size_t i)) {
    struct kern_vocab job = *v;
    NEB_ASSERT(t == KERN_F32);
    kern_pool_run(K->pool, (size_t)v->n, row, &job);
}
void cpu_vocab_max(struct kern *K, enum kern_type t, const struct kern_vocab *v) {
    vocab_run(K, t, v, row_max);
}
void cpu_vocab_sum(struct kern *K, enum kern_type t, const struct kern_vocab *v) {
    vocab_run(K, t, v, v->soft ? row_soft_exp : row_exp);
}
void cpu_vocab_loss(struct kern *K, enum kern_type t, const struct kern_vocab *v) {
    double total = 0;
    for (int i = 0; i < v->n; i++) {
        double l = v->targets[i] == KERN_IGNORE
                       ? 0
                       : (double)v->max[i] + log(v->sums[i]) - v->sums[v->n + i];
        if (v->soft && v->targets[i] != KERN_IGNORE) {
            double lambda = (double)v->soft->lambda, T = (double)v->soft->temperature;
            l = (1 - lambda) * l + lambda * T * T * vocab_kl(v, (size_t)i);
        }
        if (v->losses)
            v->losses[i] = (float)l;
        total += l;
    }
    *v->total += total;
    if (v->learn)
        vocab_run(K, t, v, v->soft ? row_soft_grad : row_grad);
}

// ---- a discriminator ----------------------------------------------------------------------------

// rows of one partial sum; fixed, so that results do not depend on threads
enum { RTD_BLOCK = 64 };

struct rtd_job {
    const struct kern_rtd *h;
    double *loss, *db; // (blocks)
    double *dw;        // (blocks, d)
};

static void rtd_block(void *arg, size_t block) {
    const struct rtd_job *j = arg;
    const struct kern_rtd *h = j->h;
    size_t d = (size_t)h->d;
    double *dw = j->dw + block * d, loss = 0, db = 0;
    int end = (int)(block + 1) * RTD_BLOCK < h->n ? (int)(block + 1) * RTD_BLOCK : h->n;
    memset(dw, 0, h->dx ? d * sizeof *dw : 0);
    for (int i = (int)block * RTD_BLOCK; i < end; i++) {
        const float *x = (const float *)h->x + (size_t)i * d;
        double z = (double)h->b[0];
        for (size_t k = 0; k < d; k++)
            z += (double)x[k] * (double)h->w[k];
        h->scores[i] = (float)z;
        bool counts = h->labels[i] != KERN_IGNORE;
        double away = exp(-fabs(z)), sigma = z >= 0 ? 1 / (1 + away) : away / (1 + away);
        double l = counts ? (z > 0 ? z : 0) + log1p(away) - h->labels[i] * z : 0,
               g = counts && h->dx ? (sigma - h->labels[i]) * (double)*h->grad_scale : 0;
        if (h->losses)
            h->losses[i] = (float)l;
        loss += l;
        db += g;
        for (size_t k = 0; h->dx && k < d; k++) {
            ((float *)h->dx)[(size_t)i * d + k] = (float)(g * (double)h->w[k]);
            dw[k] += g * (double)x[k];
        }
    }
    j->loss[block] = loss;
    j->db[block] = db;
}

void cpu_rtd_loss(struct kern *K, enum kern_type t, const struct kern_rtd *h) {
    NEB_ASSERT(t == KERN_F32);
    size_t blocks = ((size_t)h->n + RTD_BLOCK - 1) / RTD_BLOCK, d = (size_t)h->d;
    struct rtd_job j = {.h = h};
    j.loss = (double *)cpu_buf_need(&cpu_of(K)->partial, 2 * blocks * (d + 2));
    j.db = j.loss + blocks;
    j.dw = j.db + blocks;
    kern_pool_run(K->pool, blocks, rtd_block, &j);
    double total = 0;
    for (size_t b = 0; b < blocks; b++) {
        total += j.loss[b];
        if (h->db)
            h->db[0] += (float)j.db[b];
        for (size_t k = 0; h->dw && k < d; k++)
            h->dw[k] += (float)j.dw[b * d + k];
    }
    *h->total += total;
}

// ---- logits of some rows ------------------------------------------------------------------------

struct picks_job {
    const struct kern_rows *r;
    float *z; // (block, V)
    size_t from;
    float temperature;
    const double *u; // of draws
    int k;           // of labels
    int32_t *ids;
    float *logp, *tail;
};

static void picks_run(struct kern *K, struct picks_job *j, size_t block,
                      void (*row)(void *arg, size_t i)) {
    const struct kern_rows *r = j->r;
    size_t d = (size_t)r->d, n_all = (size_t)r->n;
    float *x = cpu_buf_need(&cpu_of(K)->rows, block * d);
    j->z = cpu_buf_need(&cpu_of(K)->logits, block * (size_t)r->V);
    for (j->from = 0; j->from < n_all; j->from += block) {
        size_t n = n_all - j->from < block ? n_all - j->from : block;
        for (size_t i = 0; i < n; i++)
            memcpy(x + i * d, (const float *)r->x + (size_t)r->at[j->from + i] * d,
                   sizeof(float) * d);
        form_logits(K, j->z, r->V, x, (int)n, r->w, r->V, r->d);
        kern_pool_run(K->pool, n, row, j);
    }
}

static void draw_row(void *arg, size_t i) {
    const struct picks_job *j = arg;
    int V = j->r->V;
    float *z = j->z + i * (size_t)V, max = z[0];
    double sum = 0, run = 0;
    int32_t id = 0;
    for (int k = 1; k < V; k++)
        max = z[k] > max ? z[k] : max;
    for (int k = 0; k < V; k++) {
        z[k] = expf((z[k] - max) / j->temperature);
        sum += (double)z[k];
    }
    for (double goal = j->u[j->from + i] * sum; id < V - 1; id++) {
        run += (double)z[id];
        if (run > goal)
            break;
    }
    j->ids[j->from + i] = id;
}

void cpu_sample_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, float temperature,
                     const double *u, int32_t *ids) {
    NEB_ASSERT(t == KERN_F32);
    struct picks_job j = {.r = r, .temperature = temperature, .u = u, .ids = ids};
    picks_run(K, &j, DRAW_ROWS, draw_row);
}

// Finds the k largest of z, largest first, by insertion: k is small, and after the first few
// columns little is inserted.
static void largest(const float *z, int V, int k, int32_t *ids) {
    int n = 0;
    for (int32_t c = 0; c < V; c++) {
        if (n == k && !(z[c] > z[ids[n - 1]]))
            continue;
        int at = n < k ? n++ : n - 1;
        for (; at > 0 && z[c] > z[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = c;
    }
}

static void label_row(void *arg, size_t i) {
    const struct picks_job *j = arg;
    int V = j->r->V;
    float *z = j->z + i * (size_t)V, max = z[0];
    size_t row = j->from + i, k = (size_t)j->k;
    double sum = 0, named = 0;
    for (int c = 1; c < V; c++)
        max = z[c] > max ? z[c] : max;
    for (int c = 0; c < V; c++) {
        z[c] = (z[c] - max) / j->temperature;
        sum += (double)expf(z[c]);
    }
    float less = (float)log(sum);
    if (!k) {
        for (int c = 0; c < V; c++)
            j->logp[row * (size_t)V + (size_t)c] = z[c] - less;
        return;
    }
    if (j->r->log_sums)
        j->r->log_sums[row] = max / j->temperature + less;
    int32_t *ids = j->ids + row * k;
    largest(z, V, j->k, ids);
    for (size_t a = 0; a < k; a++) {
        float p = z[ids[a]] - less;
        j->logp[row * k + a] = p;
        named += exp((double)p);
    }
    j->tail[row] = named < 1 ? (float)(1 - named) : 0;
}

void cpu_label_rows(struct kern *K, enum kern_type t, const struct kern_rows *r, int k,
                    float temperature, int32_t *ids, float *logp, float *tail) {
    struct picks_job j = {
        .r = r, .k = k, .temperature = temperature, .ids = ids, .logp = logp, .tail = tail};
    NEB_ASSERT(t == KERN_F32);
    picks_run(K, &j, LABEL_ROWS, label_row);
}
