// Products of the fast CPU backend in bf16: both operands are rounded, sums and results are fp32. Everything else stays fp32, so
// that parameters, activations and gradients keep their types, and only what a product reads is converted, into scratch:
//
//     parameters     once while they stay as they are (kern_ops.weights): one copy of all of them
//     activations    before each product that reads them
//     dy             once for dx and dW (kern_ops.linear_bwd)
//
// Two ways to multiply. oneDNN (onednn.h), where the processor has bf16. Or in fp32 that holds bf16 numbers, whose products are exact
// in fp32: the same but for the order of the sums, and slower than fp32; for tests on machines without bf16 (NEBULA_BF16=rounded).
//
// Both are called for tiles of the result (cpu_gemm.c), from our threads, on one thread each.
#include "kernels/bf16.h"
#include "kernels/cpu.h"
#include "kernels/onednn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FLAT_BLOCK = 16384 }; // floats of one task of conversion

struct cpu_bf16 {
    const struct onednn *dnn;  // NULL: rounded fp32
    size_t bytes;              // of an element of an operand
    struct cpu_buf a, b, copy; // operands; all parameters
    const float *params;       // what is in copy; NULL: nothing
    size_t n_params;
    char name[64];
};

// ---- conversion

struct convert {
    const struct cpu_isa *v;
    size_t bytes;
    char *out;
    const float *x;
    size_t rows, cols, ld, per; // per: rows of a task
};

static void convert_task(void *arg, size_t i) {
    const struct convert *c = arg;
    size_t end = (i + 1) * c->per < c->rows ? (i + 1) * c->per : c->rows;
    for (size_t r = i * c->per; r < end; r++) {
        char *out = c->out + r * c->cols * c->bytes;
        const float *x = c->x + r * c->ld;
        if (c->bytes == 2)
            c->v->to_bf16((uint16_t *)(void *)out, x, c->cols);
        else
            c->v->round_bf16((float *)(void *)out, x, c->cols);
    }
}

static void convert(struct kern *K, struct cpu_buf *out, const float *x, size_t rows, size_t cols,
                    size_t ld) {
    struct convert c = {.v = cpu_of(K)->isa,
                        .bytes = cpu_of(K)->bf16->bytes,
                        .x = x,
                        .rows = rows,
                        .cols = cols,
                        .ld = ld};
    c.out = (char *)cpu_buf_need(out, (rows * cols * c.bytes + 3) / 4);
    c.per = FLAT_BLOCK / cols + 1;
    kern_pool_run(K->pool, (rows + c.per - 1) / c.per, convert_task, &c);
}

struct operand {
    const char *p;
    int ld;
};

// x (rows, cols; row stride ld) as bf16: from the copy of the parameters, else in buf.
static struct operand operand(struct kern *K, struct cpu_buf *buf, const float *x, int rows,
                              int cols, int ld) {
    struct cpu_bf16 *h = cpu_of(K)->bf16;
    uintptr_t at = (uintptr_t)x - (uintptr_t)h->params, // far beyond the end for what lies before
        len = ((size_t)(rows - 1) * (size_t)ld + (size_t)cols) * sizeof *x,
              all = h->n_params * sizeof *x;
    if (h->params && at < all && len <= all - at)
        return (struct operand){(const char *)h->copy.p + at / sizeof *x * h->bytes, ld};
    convert(K, buf, x, (size_t)rows, (size_t)cols, (size_t)ld);
    return (struct operand){(const char *)buf->p, cols};
}

void cpu_weights(struct kern *K, const float *params, size_t n) {
    struct cpu_bf16 *h = cpu_of(K)->bf16;
    if (!h)
        return;
    h->params = NULL;
    if (!n)
        return;
    size_t rows = (n + FLAT_BLOCK - 1) / FLAT_BLOCK, whole = n / FLAT_BLOCK;
    cpu_buf_need(&h->copy, (rows * FLAT_BLOCK * h->bytes + 3) / 4);
    convert(K, &h->copy, params, whole, FLAT_BLOCK, FLAT_BLOCK);
    struct convert rest = {.v = cpu_of(K)->isa,
                           .bytes = h->bytes,
                           .out = (char *)h->copy.p + whole * FLAT_BLOCK * h->bytes,
                           .x = params + whole * FLAT_BLOCK,
                           .rows = rows - whole,
                           .cols = n - whole * FLAT_BLOCK,
                           .per = 1};
    if (rest.rows)
        convert_task(&rest, 0);
    h->params = params;
    h->n_params = n;
}

// ---- products

struct product {
    const struct cpu_bf16 *h;
    struct cpu_tiles cut;
    enum kern_trans ta, tb;
    int k, ldc;
    float alpha, beta;
    struct operand a, b;
    float *c;
};

static void product_task(void *arg, size_t i) {
    const struct product *p = arg;
    const struct cpu_bf16 *h = p->h;
    struct cpu_tile t = cpu_tile(&p->cut, i);
    const char *a = p->a.p + h->bytes * (size_t)t.row * (p->ta ? 1 : (size_t)p->a.ld);
    const char *b = p->b.p + h->bytes * (size_t)t.col * (p->tb ? (size_t)p->b.ld : 1);
    float *c = p->c + (size_t)t.row * (size_t)p->ldc + (size_t)t.col;
    if (!h->dnn) {
        cpu_sgemm(p->ta, p->tb, t.rows, t.cols, p->k, p->alpha, (const float *)(const void *)a,
                  p->a.ld, (const float *)(const void *)b, p->b.ld, p->beta, c, p->ldc);
        return;
    }
    onednn_alone(h->dnn);
    int bad = h->dnn->bf16(p->ta ? 'T' : 'N', p->tb ? 'T' : 'N', t.rows, t.cols, p->k, p->alpha,
                           (const uint16_t *)(const void *)a, p->a.ld,
                           (const uint16_t *)(const void *)b, p->b.ld, p->beta, c, p->ldc);
    NEB_ASSERT(!bad); // shapes are ours; out of memory, which ops cannot report either
}

static void multiply(struct kern *K, enum kern_trans ta, enum kern_trans tb, int m, int n, int k,
                     float alpha, struct operand a, struct operand b, float beta, float *c,
                     int ldc) {
    struct product p = {.h = cpu_of(K)->bf16,
                        .cut = cpu_tiles(m, n, k),
                        .ta = ta,
                        .tb = tb,
                        .k = k,
                        .alpha = alpha,
                        .beta = beta,
                        .a = a,
                        .b = b,
                        .c = c,
                        .ldc = ldc};
    kern_pool_run(K->pool, cpu_tiles_count(&p.cut), product_task, &p);
}

bool cpu_bf16_takes(const struct kern *K, int m, int n, int k) {
    int least = m < n ? m : n;
    return ((const struct cpu_ctx *)K->ctx)->bf16 && (least < k ? least : k) >= KERN_BF16_LEAST;
}

void cpu_bf16_gemm(struct kern *K, enum kern_trans ta, enum kern_trans tb, int m, int n, int k,
                   float alpha, const float *a, int lda, const float *b, int ldb, float beta,
                   float *c, int ldc) {
    struct cpu_bf16 *h = cpu_of(K)->bf16;
    struct operand x = operand(K, &h->a, a, ta ? k : m, ta ? m : k, lda),
                   y = operand(K, &h->b, b, tb ? n : k, tb ? k : n, ldb);
    multiply(K, ta, tb, m, n, k, alpha, x, y, beta, c, ldc);
}

void cpu_bf16_linear_bwd(struct kern *K, float *dx, float *dw, const float *dy, int ld,
                         const float *x, const float *w, int n, int out, int in) {
    struct cpu_bf16 *h = cpu_of(K)->bf16;
    struct operand g = operand(K, &h->a, dy, n, out, ld);
    if (dw)
        multiply(K, KERN_T, KERN_N, out, in, n, 1, g, operand(K, &h->b, x, n, in, in), 1, dw, in);
    if (dx)
        multiply(K, KERN_N, KERN_N, n, in, out, 1, g, operand(K, &h->b, w, out, in, in), 0, dx, in);
}

// ---- set-up

void cpu_bf16_destroy(struct cpu_bf16 *h) {
    if (h) {
        free(h->a.p);
        free(h->b.p);
        free(h->copy.p);
    }
    free(h);
}

// A product of small integers, exact in bf16 and in fp32.
static bool proves_itself(onednn_bf16_gemm *product) {
    enum { M = 19, N = 35, D = 24 };
    uint16_t a[M * D], b[N * D];
    float c[M * N], want[M * N];
    for (int i = 0; i < M * D; i++)
        a[i] = kern_bf16_of((float)(i % 7) - 3);
    for (int i = 0; i < N * D; i++)
        b[i] = kern_bf16_of((float)(i % 5) - 2);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 1;
            for (int k = 0; k < D; k++) // a is stored transposed, b is not
                sum += (float)((k * M + i) % 7 - 3) * (float)((k * N + j) % 5 - 2);
            want[i * N + j] = sum;
            c[i * N + j] = 1;
        }
    return product('T', 'N', M, N, D, 1, a, M, b, N, 1, c, N) == 0 &&
           memcmp(c, want, sizeof c) == 0;
}

// NULL, or why not.
static const char *find_dnnl(struct cpu_bf16 *h) {
    const struct onednn *d = onednn_find();
    if (d->missing)
        return d->missing;
    if (!d->bf16)
        return "this machine's oneDNN has no dnnl_gemm_bf16bf16f32";
    onednn_alone(d);
    if (!proves_itself(d->bf16))
        return "this machine's oneDNN multiplies bf16 wrongly";
    h->dnn = d;
    snprintf(h->name, sizeof h->name, "bf16 by oneDNN %d.%d", d->major, d->minor);
    return NULL;
}

static const char *find(struct cpu_bf16 *h, const struct cpu_isa *v) {
    const char *asked = getenv("NEBULA_BF16");
    if (asked && !strcmp(asked, "rounded")) {
        h->bytes = sizeof(float);
        snprintf(h->name, sizeof h->name, "bf16, rounded");
        return NULL;
    }
    h->bytes = sizeof(uint16_t);
#if defined(__x86_64__)
    if (!strcmp(v->name, "avx512") && __builtin_cpu_supports("avx512bf16"))
        return find_dnnl(h);
#endif
    (void)v;
    return "this one has no avx512_bf16";
}

static enum neb_status take(struct kern *K, const char **why) {
    struct cpu_ctx *x = cpu_of(K);
    NEB_ASSERT(K->ops == &cpu_ops);
    if (x->bf16)
        return NEB_OK;
    struct cpu_bf16 *h = calloc(1, sizeof *h);
    if (!h)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for bf16 products");
    if ((*why = find(h, x->isa))) {
        cpu_bf16_destroy(h);
        return NEB_ERR_UNSUPPORTED;
    }
    x->bf16 = h;
    return NEB_OK;
}

enum neb_status kern_cpu_bf16(struct kern *K) {
    const char *why = NULL;
    enum neb_status st = take(K, &why);
    return why ? neb_fail(st, "precision bf16 on processors: %s; set precision: fp32", why) : st;
}

bool kern_cpu_bf16_possible(struct kern *K) {
    const char *why = NULL;
    return take(K, &why) == NEB_OK;
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

double kern_cpu_bf16_gain(struct kern *K) {
    enum { SIDE = 384, ROUNDS = 4 };
    const struct cpu_bf16 *h = cpu_of(K)->bf16;
    float *x = aligned_alloc(64, 4 * SIDE * SIDE * sizeof *x);
    if (!h || !x) {
        free(x);
        return 1;
    }
    for (size_t i = 0; i < 2 * SIDE * SIDE; i++)
        x[i] = (float)(i % 17) - 8;
    float *w = x + SIDE * SIDE, *y = w + SIDE * SIDE, *room = y + SIDE * SIDE;
    double best[2] = {INFINITY, INFINITY};
    struct product p = {.h = h,
                        .cut = {SIDE, SIDE, SIDE, SIDE},
                        .tb = KERN_T,
                        .k = SIDE,
                        .ldc = SIDE,
                        .alpha = 1,
                        .a = {(const char *)room, SIDE},
                        .b = {(const char *)w, SIDE},
                        .c = y};
    struct convert c = {cpu_of(K)->isa, h->bytes, (char *)w, x, SIDE, SIDE, SIDE, SIDE};
    convert_task(&c, 0); // weights: not timed, as they are converted once a step
    c.out = (char *)room;
    for (int i = 0; i < ROUNDS; i++) { // the first warms up
        double from = thread_seconds();
        cpu_sgemm(KERN_N, KERN_T, SIDE, SIDE, SIDE, 1, x, SIDE, x, SIDE, 0, y, SIDE);
        double middle = thread_seconds();
        convert_task(&c, 0);
        product_task(&p, 0);
        double end = thread_seconds();
        best[0] = i ? fmin(best[0], middle - from) : best[0];
        best[1] = i ? fmin(best[1], end - middle) : best[1];
    }
    free(x);
    return best[0] / best[1];
}
