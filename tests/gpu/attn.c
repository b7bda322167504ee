// SPDX-License-Identifier: Apache-2.0
// Attention in bf16, causal, at a large model's shapes: with the device's own kernels, and with
// those for cards without Hopper's instructions (NEBULA_ATTN=mma). Compares time, results, and
// repeatability of the bits.
#include "tests/gpu/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 20, WARM = 3, WIDTH = 2048 }; // WIDTH: of all heads
enum { ROUNDS_MS = 1000 };                    // no further round after this time

struct shape {
    struct kern_attn a;
    size_t rows;
    int ld, ldo; // q, k and v are slices of a row, as in the model
};
struct buffers {
    void *qkv, *dqkv, *out, *dout, *lse, *delta;
};
// Results of the first sequence, copied to the host.
struct results {
    uint16_t *out, *dqkv; // (T, ldo), (T, ld) bf16
    double forward_ms, backward_ms;
};

static bool alloc(struct kern *D, const struct shape *s, struct buffers *b) {
    const struct kern_ops *K = D->ops;
    size_t in = s->rows * (size_t)s->ld * 2, out = s->rows * (size_t)s->ldo * 2,
           stats = s->rows * (size_t)s->a.n_heads * sizeof(float);
    return K->alloc(D, in, &b->qkv) == NEB_OK && K->alloc(D, in, &b->dqkv) == NEB_OK &&
           K->alloc(D, out, &b->out) == NEB_OK && K->alloc(D, out, &b->dout) == NEB_OK &&
           K->alloc(D, stats, &b->lse) == NEB_OK && K->alloc(D, stats, &b->delta) == NEB_OK;
}
static void release(struct kern *D, struct buffers *b) {
    void *all[] = {b->qkv, b->dqkv, b->out, b->dout, b->lse, b->delta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        D->ops->release(D, all[i]);
}

// Normal numbers that repeat every million elements.
static bool fill(struct kern *D, void *x, size_t n) {
    const struct kern_ops *K = D->ops;
    size_t part = n < 1 << 20 ? n : 1 << 20;
    float *host = malloc(part * sizeof *host);
    void *from = NULL;
    struct neb_rng r = neb_rng_make(9, 9);
    bool well = host && K->alloc(D, part * sizeof *host, &from) == NEB_OK;
    if (well) {
        neb_rng_normals(&r, host, part);
        K->upload(D, from, host, part * sizeof *host);
        for (size_t at = 0; at < n; at += part)
            K->cast(D, KERN_BF16, (char *)x + 2 * at, from, n - at < part ? n - at : part);
        well = K->finish(D) == NEB_OK;
    }
    K->release(D, from);
    free(host);
    return well;
}

static void *at(void *x, int elements) { return (char *)x + 2 * (size_t)elements; }

static void forward(struct kern *D, const struct shape *s, const struct buffers *b) {
    D->ops->attn_fwd(D, KERN_BF16, &s->a, b->out, s->ldo, b->lse, b->qkv, s->ld, at(b->qkv, WIDTH),
                     s->ld, at(b->qkv, 2 * WIDTH), s->ld);
}
static void backward(struct kern *D, const struct shape *s, const struct buffers *b) {
    D->ops->attn_bwd(D, KERN_BF16, &s->a, b->dqkv, at(b->dqkv, WIDTH), at(b->dqkv, 2 * WIDTH),
                     b->dout, b->out, s->ldo, b->lse, b->qkv, s->ld, at(b->qkv, WIDTH), s->ld,
                     at(b->qkv, 2 * WIDTH), s->ld, b->delta, NULL);
}

// The time of the fastest round.
static double time_ms(struct kern *D, const struct shape *s, const struct buffers *b,
                      void (*run)(struct kern *, const struct shape *, const struct buffers *)) {
    const struct kern_ops *K = D->ops;
    double best = INFINITY, all = 0;
    for (int i = 0; i < WARM + ROUNDS && all < ROUNDS_MS; i++) {
        K->mark(D, GPU_FROM);
        run(D, s, b);
        K->mark(D, GPU_TO);
        K->wait(D, GPU_TO);
        double ms = K->elapsed_ms(D, GPU_FROM, GPU_TO);
        best = ms < best ? ms : best;
        all += ms;
    }
    return best;
}

static bool fetch(struct kern *D, const struct shape *s, const struct buffers *b,
                  struct results *r) {
    size_t out = (size_t)s->a.T * (size_t)s->ldo * 2, in = (size_t)s->a.T * (size_t)s->ld * 2;
    r->out = malloc(out);
    r->dqkv = malloc(in);
    if (!r->out || !r->dqkv)
        return false;
    D->ops->download(D, r->out, b->out, out);
    D->ops->download(D, r->dqkv, b->dqkv, in);
    return D->ops->finish(D) == NEB_OK;
}
static void drop(struct results *r) {
    free(r->out);
    free(r->dqkv);
}
static bool same_bits(const struct shape *s, const struct results *a, const struct results *b) {
    return !memcmp(a->out, b->out, (size_t)s->a.T * (size_t)s->ldo * 2) &&
           !memcmp(a->dqkv, b->dqkv, (size_t)s->a.T * (size_t)s->ld * 2);
}

// The largest difference / (1 + the largest value).
static double distance(const uint16_t *x, const uint16_t *y, size_t n) {
    double far = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t xb = (uint32_t)x[i] << 16, yb = (uint32_t)y[i] << 16;
        float a, b;
        memcpy(&a, &xb, sizeof a);
        memcpy(&b, &yb, sizeof b);
        if (a != a || b != b)
            return INFINITY;
        far = fmax(far, fabs((double)a - (double)b));
        size = fmax(size, fabs((double)b));
    }
    return far / (1 + size);
}

// Runs one device: its results before and after all rounds (they must be equal), and its times.
static bool measure(struct kern *D, const struct shape *s, struct results *out, bool *repeats) {
    struct buffers b = {0};
    struct results before = {0};
    bool well = alloc(D, s, &b) && fill(D, b.qkv, s->rows * (size_t)s->ld) &&
                fill(D, b.dout, s->rows * (size_t)s->ldo);
    if (well) {
        forward(D, s, &b);
        backward(D, s, &b);
        well = fetch(D, s, &b, &before);
    }
    if (well) {
        out->forward_ms = time_ms(D, s, &b, forward);
        out->backward_ms = time_ms(D, s, &b, backward);
        well = fetch(D, s, &b, out);
        *repeats = well && same_bits(s, &before, out);
    }
    drop(&before);
    release(D, &b);
    return well;
}

static void row(const struct shape *s, const char *who, const struct results *r,
                const char *verdict) {
    // Forward has two products. Backward has five, and the kernels compute two of them twice. The
    // mask hides half of the pairs.
    double flop = 2.0 * s->a.B * s->a.n_heads * s->a.head_dim * (double)s->a.T * s->a.T;
    printf("| %s | %d x %d, %d heads of %d | %.3f | %.0f | %.3f | %.0f | %s |\n", who, s->a.B,
           s->a.T, s->a.n_heads, s->a.head_dim, r->forward_ms, flop / r->forward_ms * 1e-9,
           r->backward_ms, 2.5 * flop / r->backward_ms * 1e-9, verdict);
}

static int compare(struct kern *D, struct kern *other, int B, int T, int head_dim) {
    int heads = WIDTH / head_dim;
    struct shape s = {.a = {.B = B,
                            .T = T,
                            .n_heads = heads,
                            .n_kv_heads = heads,
                            .head_dim = head_dim,
                            .mask = KERN_MASK_CAUSAL},
                      .rows = (size_t)B * (size_t)T,
                      .ld = 3 * WIDTH,
                      .ldo = WIDTH};
    struct results a = {0}, b = {0};
    bool again[2] = {false, false};
    int wrong = 1;
    if (measure(D, &s, &a, &again[0]) && measure(other, &s, &b, &again[1])) {
        double far = fmax(distance(a.out, b.out, (size_t)T * (size_t)s.ldo),
                          distance(a.dqkv, b.dqkv, (size_t)T * (size_t)s.ld));
        char text[64];
        wrong = !(far <= 1e-2) + !again[0] + !again[1];
        snprintf(text, sizeof text, far <= 1e-2 ? "differs by %.2g" : "**differs by %.2g**", far);
        row(&s, "as here", &a, again[0] ? text : "**other bits every time**");
        row(&s, "mma", &b, again[1] ? "" : "**other bits every time**");
    }
    drop(&a);
    drop(&b);
    return wrong;
}

int gpu_attn(struct kern *D, int head_dim, int B, int T) {
    struct kern *other = NULL;
    int wrong = 0;
    setenv("NEBULA_ATTN", "mma", 1);
    enum neb_status st = kern_device_open(0, NULL, &other);
    unsetenv("NEBULA_ATTN");
    if (st != NEB_OK)
        return 1;
    printf("| kernels | batch | forward, ms | TFLOP/s | backward, ms | TFLOP/s | |\n"
           "| --- | --- | --- | --- | --- | --- | --- |\n");
    for (int hd = 128; hd >= 64; hd -= 64)
        if (B && hd == head_dim)
            wrong += compare(D, other, B, T, hd);
        else if (!head_dim || hd == head_dim)
            wrong += compare(D, other, 4, 4096, hd) + compare(D, other, 32, 1024, hd);
    printf("\n");
    kern_destroy(&other);
    return wrong;
}
