// SPDX-License-Identifier: Apache-2.0
// Speed of the codecs' arithmetic on the device, relative to a device copy of the same array.
//
// The measured time is the device's time for one cmp_device_encode or cmp_device_decode
// (compress/device.c): every encoder starts with a pass for the largest magnitude (for scales, and
// to check that all values are finite), and bf16's decoder ends with one. The counted bytes are
// those that must move (array and codes, once per pass), but at most 8 per element, as in a copy.
// So a second pass is a loss, never a gain. "of a copy" is the time of a copy / the time of
// encoding, as in nebula bench codec. Single passes have lines of their own, which tests/gpu/judge
// does not judge. Values are like an update's: normal, with rows of different size, some of zeros.
#include "agent/base/rng.h"
#include "tests/gpu/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 15, CHUNK = 4096, TOP = 64, DENSE = 512, BLOCK = 128 };

struct bench {
    struct kern *D;
    size_t n, entries; // of the array; entries that top-k sends
    float *x, *out;
    uint8_t *scales, *codes; // codes: two bytes an element
    uint32_t *bad, *at;      // at: positions of the entries of top-k
    double copy;             // GB/s
    // runs the pass for the largest magnitude: of x before an op, of out after it
    bool search, verify;
};

static void op_copy(struct bench *b) { b->D->ops->copy(b->D, b->out, b->x, b->n * 4); }
static void op_largest(struct bench *b) { b->D->ops->absmax(b->D, b->bad, b->x, b->n); }
static void op_largest_out(struct bench *b) { b->D->ops->absmax(b->D, b->bad, b->out, b->n); }
static void encode(struct bench *b, int levels, int top) {
    b->D->ops->encode_blocks(b->D, b->scales, b->codes, b->x, b->n, BLOCK, levels, levels < 8, top);
}
static void op_encode8(struct bench *b) { encode(b, 127, -6); }
static void op_encode4(struct bench *b) { encode(b, 6, -2); }
static void op_encode3(struct bench *b) { encode(b, 3, -2); }
static void op_encode2(struct bench *b) { encode(b, 1, -2); }
static void op_decode8(struct bench *b) {
    b->D->ops->decode_blocks(b->D, b->out, b->scales, b->codes, b->n, BLOCK, false, -6, b->bad);
}
static void op_decode4(struct bench *b) { // frames of three bits and of two bits have the same form
    b->D->ops->decode_blocks(b->D, b->out, b->scales, b->codes, b->n, BLOCK, true, -2, b->bad);
}
static void op_split(struct bench *b) {
    b->D->ops->bf16_split(b->D, b->codes, b->codes + b->n, b->x, b->n);
}
static void op_join(struct bench *b) {
    b->D->ops->bf16_join(b->D, b->out, b->codes, b->codes + b->n, b->n);
}
static void op_topk(struct bench *b) {
    b->D->ops->topk(b->D, (uint16_t *)(void *)b->codes, b->out, b->x, b->n, CHUNK, TOP, TOP);
}
static void op_topk_dense(struct bench *b) { // the densest top-k that the tuner chooses
    b->D->ops->topk(b->D, (uint16_t *)(void *)b->codes, b->out, b->x, b->n, CHUNK, DENSE, DENSE);
}
static void op_scatter(struct bench *b) {
    b->D->ops->scatter(b->D, b->out, b->n, b->at, b->x, b->entries);
}
static void op_outer(struct bench *b) {
    b->D->ops->exact_outer_step(b->D, b->out, b->x, b->x + b->n / 2, 0.9f, 0.6f, b->n / 2);
}
static void op_digest(struct bench *b) {
    b->D->ops->exact_digest(b->D, (struct kern_digest *)(void *)b->scales, b->x, b->out, 0,
                            b->n / 2);
}

static void measure(struct bench *b, const char *what, void (*op)(struct bench *b), double bytes) {
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        b->D->ops->mark(b->D, 4);
        if (b->search)
            op_largest(b);
        op(b);
        if (b->verify)
            op_largest_out(b);
        b->D->ops->mark(b->D, 5);
        b->D->ops->wait(b->D, 5);
        double rate = bytes / (b->D->ops->elapsed_ms(b->D, 4, 5) * 1e6);
        best = i > 1 && rate > best ? rate : best;
    }
    b->copy = b->copy > 0 ? b->copy : best;
    printf("| %s | %.0f | %.2f |\n", what, best, best / b->copy);
}

// Times the op with its pass for the largest magnitude, and alone. bytes: those of the op alone.
static void measure_both(struct bench *b, const char *what, void (*op)(struct bench *b),
                         double bytes, bool *pass, const char *alone) {
    char name[64];
    double all = bytes + 4 * (double)b->n, copy = 8 * (double)b->n;
    *pass = true;
    measure(b, what, op, all < copy ? all : copy);
    *pass = false;
    snprintf(name, sizeof name, "%s, %s", what, alone);
    measure(b, name, op, bytes);
}
static void measure_encode(struct bench *b, const char *what, void (*op)(struct bench *b),
                           double bytes) {
    measure_both(b, what, op, bytes, &b->search, "second pass");
}

static bool upload(struct bench *b) {
    const struct kern_ops *K = b->D->ops;
    struct neb_rng r = neb_rng_make(5, 5);
    size_t part = b->n < 1 << 22 ? b->n : 1 << 22, row = 768;
    float *host = malloc(part * sizeof *host), size = 0.01f;
    uint32_t *at = malloc(b->entries * sizeof *at);
    for (size_t i = 0; host && i < part; i++) {
        if (i % row == 0) // exp(normal); an eighth of the rows are zeros
            size = neb_rng_below(&r, 8) ? 0.01f * expf(neb_rng_normal(&r)) : 0;
        host[i] = size * neb_rng_normal(&r);
    }
    for (size_t e = 0; at && e < b->entries; e++) // one in every CHUNK / TOP
        at[e] = (uint32_t)(e * (CHUNK / TOP) + neb_rng_below(&r, CHUNK / TOP));
    bool made = host && at;
    for (size_t first = 0; made && first < b->n; first += part)
        K->upload(b->D, b->x + first, host, part * sizeof *host);
    if (made)
        K->upload(b->D, b->at, at, b->entries * sizeof *at);
    made = made && K->finish(b->D) == NEB_OK;
    free(at);
    free(host);
    return made;
}

static void measure_all(struct bench *b) {
    double n = (double)b->n, blocks = n / BLOCK, k = (double)b->entries;
    printf("| %zu elements | GB/s | of a copy |\n| --- | --- | --- |\n", b->n);
    measure(b, "copy on the device", op_copy, 8 * n);
    measure(b, "largest magnitude", op_largest, 4 * n);
    measure_encode(b, "int8 encode", op_encode8, 5 * n + blocks);
    measure(b, "int8 decode", op_decode8, 5 * n + blocks);
    measure_encode(b, "int4 encode", op_encode4, 4.5 * n + blocks);
    measure(b, "int4 decode", op_decode4, 4.5 * n + blocks);
    measure_encode(b, "int3 encode", op_encode3, 4.5 * n + blocks);
    measure(b, "int3 decode", op_decode4, 4.5 * n + blocks);
    measure_encode(b, "int2 encode", op_encode2, 4.5 * n + blocks);
    measure(b, "int2 decode", op_decode4, 4.5 * n + blocks);
    measure_encode(b, "bf16 encode", op_split, 6 * n);
    measure_both(b, "bf16 decode", op_join, 6 * n, &b->verify, "first pass");
    measure_encode(b, "topk 64/4096 encode", op_topk, 4 * n + 6 * k);
    measure_encode(b, "topk 512/4096 encode", op_topk_dense, 4 * n + 6 * n * DENSE / CHUNK);
    measure(b, "topk 64/4096 decode", op_scatter, 4 * n + 8 * k);
    measure(b, "outer step", op_outer, 5 * 4 * n / 2);
    measure(b, "digest", op_digest, 2 * 4 * n / 2);
    printf("\n");
}

int gpu_codec(struct kern *D, size_t n) {
    struct bench b = {.D = D, .n = n, .entries = n / CHUNK * TOP};
    const struct kern_ops *K = D->ops;
    void *x = NULL, *out = NULL, *scales = NULL, *codes = NULL, *bad = NULL, *at = NULL;
    bool made = K->alloc(D, n * 4, &x) == NEB_OK && K->alloc(D, n * 4, &out) == NEB_OK &&
                K->alloc(D, n / BLOCK + 64, &scales) == NEB_OK &&
                K->alloc(D, 2 * n, &codes) == NEB_OK && K->alloc(D, 64, &bad) == NEB_OK &&
                K->alloc(D, b.entries * sizeof(uint32_t), &at) == NEB_OK;
    b.x = x;
    b.out = out;
    b.scales = scales;
    b.codes = codes;
    b.bad = bad;
    b.at = at;
    made = made && upload(&b);
    if (made)
        measure_all(&b);
    K->release(D, at);
    K->release(D, bad);
    K->release(D, codes);
    K->release(D, scales);
    K->release(D, out);
    K->release(D, x);
    return !made || K->finish(D) != NEB_OK;
}
