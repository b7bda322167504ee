// How fast the codecs' arithmetic runs on the device, beside a copy on the device of the same size. Bytes: the fp32 array
// and its codes, each once.
#include "agent/base/rng.h"
#include "tests/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 15, CHUNK = 4096, TOP = 64, BLOCK = 128 };
static const size_t N = (size_t)1 << 28;

struct bench {
    struct kern_device *D;
    float *x, *out;
    uint8_t *scales, *codes, *bad;
    double copy; // GB/s
};

static void op_copy(struct bench *b) { b->D->ops->copy(b->D, b->out, b->x, N * 4); }
static void op_encode8(struct bench *b) {
    b->D->ops->encode_blocks(b->D, b->scales, b->codes, b->x, N, BLOCK, 127, false, -6);
}
static void op_decode8(struct bench *b) {
    b->D->ops->decode_blocks(b->D, b->out, b->scales, b->codes, N, BLOCK, false, -6,
                             (uint32_t *)(void *)b->bad);
}
static void op_encode4(struct bench *b) {
    b->D->ops->encode_blocks(b->D, b->scales, b->codes, b->x, N, BLOCK, 6, true, -2);
}
static void op_decode4(struct bench *b) {
    b->D->ops->decode_blocks(b->D, b->out, b->scales, b->codes, N, BLOCK, true, -2,
                             (uint32_t *)(void *)b->bad);
}
static void op_topk(struct bench *b) {
    b->D->ops->topk(b->D, (uint16_t *)(void *)b->codes, b->out, b->x, N, CHUNK, TOP, TOP);
}
static void op_outer(struct bench *b) {
    b->D->ops->exact_outer_step(b->D, b->out, b->x, b->x + N / 2, 0.9f, 0.6f, N / 2);
}
static void op_digest(struct bench *b) {
    b->D->ops->exact_digest(b->D, (struct kern_digest *)(void *)b->scales, b->x, b->out, 0, N / 2);
}

static void measure(struct bench *b, const char *what, void (*op)(struct bench *b), double bytes) {
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        b->D->ops->mark(b->D, 4);
        op(b);
        b->D->ops->mark(b->D, 5);
        b->D->ops->wait(b->D, 5);
        double rate = bytes / (b->D->ops->elapsed_ms(b->D, 4, 5) * 1e6);
        best = i > 1 && rate > best ? rate : best;
    }
    b->copy = b->copy > 0 ? b->copy : best;
    printf("| %s | %.0f | %.2f |\n", what, best, best / b->copy);
}

int gpu_codec(struct kern_device *D) {
    struct bench b = {.D = D};
    const struct kern_device_ops *K = D->ops;
    struct neb_rng r = neb_rng_make(5, 5);
    size_t part = 1 << 22;
    float *host = malloc(part * sizeof *host);
    void *x, *out, *scales, *codes, *bad;
    if (!host || K->alloc(D, N * 4, &x) || K->alloc(D, N * 4, &out) ||
        K->alloc(D, N / BLOCK + 64, &scales) || K->alloc(D, N, &codes) || K->alloc(D, 64, &bad))
        return 1;
    b.x = x;
    b.out = out;
    b.scales = scales;
    b.codes = codes;
    b.bad = bad;
    for (size_t i = 0; i < part; i++)
        host[i] = 0.01f * neb_rng_normal(&r);
    for (size_t at = 0; at < N; at += part)
        K->upload(D, b.x + at, host, part * sizeof *host);
    double n = (double)N, blocks = n / BLOCK;
    printf("| %zu elements | GB/s | of a copy |\n| --- | --- | --- |\n", N);
    measure(&b, "copy on the device", op_copy, 8 * n);
    measure(&b, "int8 encode", op_encode8, 5 * n + blocks);
    measure(&b, "int8 decode", op_decode8, 5 * n + blocks);
    measure(&b, "int4 encode", op_encode4, 4.5 * n + blocks);
    measure(&b, "int4 decode", op_decode4, 4.5 * n + blocks);
    measure(&b, "topk 64/4096 encode", op_topk, 4 * n + 6 * n * TOP / CHUNK);
    measure(&b, "outer step", op_outer, 5 * 4 * n / 2);
    measure(&b, "digest", op_digest, 2 * 4 * n / 2);
    printf("\n");
    K->release(D, bad);
    K->release(D, codes);
    K->release(D, scales);
    K->release(D, out);
    K->release(D, x);
    free(host);
    return K->finish(D) != NEB_OK;
}
