// SPDX-License-Identifier: Apache-2.0
// Compares the exact path and the codecs' arithmetic on a device with the CPU, bit by bit, on
// ordinary and on hard values (denormals, signed zeros, extremes, ties). Sums of extremes overflow,
// and inf - inf follows: NaNs must be in the same places, but may have other bits
// (kernels/exact.h).
#include "agent/base/rng.h"
#include "kernels/half.h"
#include "kernels/quant.h"
#include "tests/cuda/device_case.h"
#include "tests/quant_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct bits {
    struct device_case k;
    struct kern *D;
    FILE *report;
    struct neb_rng rng;
    const struct exact_case *c;
    int n, failed;
};

static void *host(struct bits *b, size_t bytes) { return device_case_host(&b->k, bytes); }
static void *device(struct bits *b, const void *from, size_t bytes) {
    void *p = device_case_room(&b->k, bytes + 64);
    if (from)
        b->D->ops->upload(b->D, p, from, bytes);
    return p;
}
static void fetch(struct bits *b, void *to, const void *from, size_t bytes) {
    b->D->ops->download(b->D, to, from, bytes);
    device_case_wait(&b->k);
}

static bool both_nan(const unsigned char *a, const unsigned char *b) {
    float x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x != x && y != y;
}

// Compares `want` with device memory `on`. item: 4 for floats, where all NaNs are equal; else 1.
static void compare(struct bits *b, const char *what, size_t n, const void *want, const void *on,
                    size_t bytes, size_t item) {
    const unsigned char *x = want;
    unsigned char *got = host(b, bytes);
    size_t at = 0;
    fetch(b, got, on, bytes);
    while (at < bytes &&
           (!memcmp(got + at, x + at, item) || (item == 4 && both_nan(got + at, x + at))))
        at += item;
    bool good = at >= bytes;
    b->n++;
    b->failed += !good;
    if (!good)
        printf("%s of %zu elements: other bits than the CPU's, first at byte %zu of %zu\n", what, n,
               at, bytes);
    if (b->report)
        fprintf(b->report, "| %s | %zu | %s |\n", what, n, good ? "equal" : "**differs**");
}
static void same(struct bits *b, const char *what, size_t n, const void *want, const void *on,
                 size_t bytes) {
    compare(b, what, n, want, on, bytes, 1);
}
static void same_floats(struct bits *b, const char *what, size_t n, const float *want,
                        const void *on, size_t floats) {
    compare(b, what, n, want, on, floats * sizeof *want, sizeof *want);
}

// hard: every kind of finite float. Otherwise typical values of an update.
static float *values(struct bits *b, size_t n, bool hard) {
    static const uint32_t special[] = {0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff,
                                       0x00800000, 0x80800000, 0x7f7fffff, 0xff7fffff, 0x3f800000,
                                       0x33800000, 0x00400000, 0x4b400000, 0xcb400001};
    float *x = host(b, n * sizeof *x);
    if (!hard)
        neb_rng_normals(&b->rng, x, n);
    for (size_t i = 0; i < n; i++) {
        if (!hard) {
            x[i] *= 0.01f;
            continue;
        }
        uint32_t u = (uint32_t)neb_rng_below(&b->rng, 1ull << 32);
        if (neb_rng_below(&b->rng, 4) == 0)
            u = special[neb_rng_below(&b->rng, sizeof special / sizeof *special)];
        if ((u & 0x7f800000u) == 0x7f800000u)
            u &= ~0x40000000u;
        memcpy(&x[i], &u, 4);
    }
    return x;
}

static void exact_ops(struct bits *b, size_t n, bool hard) {
    const struct kern_ops *K = b->D->ops;
    float *theta = values(b, n, hard), *v = values(b, n, hard), *delta = values(b, n, hard),
          *u = values(b, n, hard), *w = values(b, n, false);
    size_t bytes = n * sizeof(float);
    void *dt = device(b, theta, bytes), *dv = device(b, v, bytes), *dd = device(b, delta, bytes),
         *du = device(b, u, bytes), *dw = device(b, w, bytes), *keep = device(b, theta, bytes),
         *sum = device(b, NULL, 16);
    struct kern_digest want = {0, 0}, part;
    K->zero(b->D, sum, 16);
    K->exact_digest(b->D, sum, dt, dv, 77, n);
    part = kern_digest_part(theta, v, 77, n);
    K->exact_digest(b->D, sum, dd, du, 1ull << 33, n);
    want = kern_digest_add(part, kern_digest_part(delta, u, 1ull << 33, n));
    same(b, "digest", n, &want, sum, sizeof want);

    kern_exact_pseudo_gradient(u, theta, v, 0.9f, n);
    K->exact_pseudo_gradient(b->D, du, dt, dv, 0.9f, n);
    kern_exact_add_scaled(delta, u, 0.37f, n);
    K->exact_add_scaled(b->D, dd, du, 0.37f, n);
    size_t cols = n % 3 ? 1 : 3;
    kern_exact_add_rows(delta, u, w, n / cols, cols);
    K->exact_add_rows(b->D, dd, du, dw, n / cols, cols);
    kern_exact_outer_step(theta, v, delta, 0.9f, 0.6f, n);
    K->exact_outer_step(b->D, dt, dv, dd, 0.9f, 0.6f, n);
    kern_exact_residual(u, w, n);
    K->exact_residual(b->D, du, dw, n);
    float *was = host(b, bytes);
    fetch(b, was, keep, bytes);
    kern_exact_rebase(was, theta, delta, n);
    K->exact_rebase(b->D, keep, dt, dd, n);
    same_floats(b, "outer step, θ", n, theta, dt, n);
    same_floats(b, "outer step, v", n, v, dv, n);
    same_floats(b, "weighted sum", n, delta, dd, n);
    same_floats(b, "pseudo-gradient and residual", n, u, du, n);
    same_floats(b, "rebase", n, was, keep, n);
    // The figures of a round's record, also for values that are not finite.
    K->zero(b->D, sum, 16);
    K->exact_digest(b->D, sum, dt, dv, 5, n);
    want = kern_digest_part(theta, v, 5, n);
    same(b, "digest after the outer step", n, &want, sum, sizeof want);
}

// The op works on a part of larger arrays, at any offset. apart: one of the arrays has another
// offset. The bytes around it must not change.
static void exact_part(struct bits *b, size_t n, size_t at, size_t apart) {
    const struct kern_ops *K = b->D->ops;
    size_t all = n + 16, bytes = all * sizeof(float);
    float *theta = values(b, all, true), *v = values(b, all, true), *delta = values(b, all, true);
    float *dt = device(b, theta, bytes), *dv = device(b, v, bytes), *dd = device(b, delta, bytes);
    void *sum = device(b, NULL, sizeof(struct kern_digest));
    struct kern_digest want = kern_digest_part(theta + at, v + at + apart, 5, n);
    K->zero(b->D, sum, sizeof want);
    K->exact_digest(b->D, sum, dt + at, dv + at + apart, 5, n);
    same(b, "digest of a part", n, &want, sum, sizeof want);
    kern_exact_outer_step(theta + at, v + at, delta + at + apart, 0.7f, 0.9f, n);
    K->exact_outer_step(b->D, dt + at, dv + at, dd + at + apart, 0.7f, 0.9f, n);
    same_floats(b, "outer step of a part, θ", n, theta, dt, all);
    same_floats(b, "outer step of a part, v", n, v, dv, all);
}

static float step_of(const float *x, size_t n, int levels) { // the same formula as in compress/
    bool finite;
    float max = kern_absmax(x, n, &finite), rms = levels == 1 ? kern_rms(x, n) : 0;
    return rms > 0 && rms < max ? rms : max / (levels == 6 ? 5.5f : (float)levels);
}

static void blocks(struct bits *b, size_t n, uint32_t block, int levels, bool hard) {
    const struct kern_ops *K = b->D->ops;
    bool four = levels < 8, finite;
    size_t n_blocks = (n + block - 1) / block, code_bytes = four ? (n + 1) / 2 : n;
    float *x = values(b, n, hard), *back = host(b, n * sizeof *back);
    uint8_t *scales = host(b, n_blocks), *packed = host(b, code_bytes);
    int8_t *codes = host(b, n);
    for (size_t i = 0; n > 300 && i < 150; i++)
        x[i] = 0; // a block of zeros
    unsigned csr = kern_exact_enter();
    float max = kern_absmax(x, n, &finite);
    int top = max > 0 ? kern_scale_top(max, levels) : 0;
    for (size_t at = 0, k = 0; at < n; at += block, k++) {
        size_t len = n - at < block ? n - at : block;
        scales[k] = kern_scale_code(step_of(x + at, len, levels), top);
        reference_quantise(codes + at, x + at, kern_scale_value(scales[k], top), levels, len);
        kern_dequantise(back + at, codes + at, kern_scale_value(scales[k], top), len);
    }
    kern_exact_leave(csr);
    if (four)
        reference_pack4(packed, codes, n);
    else
        memcpy(packed, codes, n);
    uint32_t max_bits;
    memcpy(&max_bits, &max, 4);
    void *dx = device(b, x, n * 4), *ds = device(b, NULL, n_blocks),
         *dc = device(b, NULL, code_bytes), *dm = device(b, NULL, 4),
         *dout = device(b, NULL, n * 4), *bad = device(b, NULL, 4), *worse = device(b, NULL, 4);
    char name[64];
    snprintf(name, sizeof name, "%s:%u, %d levels%s", four ? "int4" : "int8", block, levels,
             hard ? ", extremes" : "");
    K->absmax(b->D, dm, dx, n);
    K->encode_blocks(b->D, ds, dc, dx, n, block, levels, four, top);
    K->decode_blocks(b->D, dout, ds, dc, n, block, four, top, bad);
    same(b, name, n, packed, dc, code_bytes);
    const uint32_t none = 0, some = 1;
    same(b, "its largest", n, &max_bits, dm, 4);
    same_floats(b, "its decoding", n, back, dout, n);
    same(b, "its check", n, &none, bad, 4);
    // A code out of range must be detected at every position.
    packed[neb_rng_below(&b->rng, code_bytes)] = four ? 0x07 : 0x80;
    dc = device(b, packed, code_bytes);
    dout = device(b, NULL, n * 4);
    K->decode_blocks(b->D, dout, ds, dc, n, block, four, top, worse);
    same(b, "a code out of range", n, &some, worse, 4);
    same(b, "its scales", n, scales, ds, n_blocks);
}

static void bf16_planes(struct bits *b, size_t n) {
    float *x = values(b, n, true), *back = host(b, n * 4);
    uint8_t *planes = host(b, 2 * n);
    kern_bf16_split(planes, planes + n, x, n);
    kern_bf16_join(back, planes, planes + n, n);
    void *dx = device(b, x, n * 4), *dp = device(b, NULL, 2 * n), *dout = device(b, NULL, n * 4);
    b->D->ops->bf16_split(b->D, dp, (uint8_t *)dp + n, dx, n);
    b->D->ops->bf16_join(b->D, dout, dp, (uint8_t *)dp + n, n);
    same(b, "bf16 planes", n, planes, dp, 2 * n);
    same_floats(b, "bf16 decoding", n, back, dout, n);
}

static void topk(struct bits *b, size_t n, uint32_t chunk, uint32_t k, int kind) {
    size_t chunks = (n + chunk - 1) / chunk, last = n - (chunks - 1) * chunk;
    uint32_t k_last = (uint32_t)((k * last + chunk - 1) / chunk);
    float *x = values(b, n, kind == 1), *want_v = host(b, chunks * k * 4);
    uint16_t *want = host(b, chunks * k * 2);
    uint32_t *scratch = host(b, 8 * 65536), *at = host(b, chunks * k * 4);
    size_t m = 0;
    for (size_t i = 0; kind == 2 && i < n; i++)
        x[i] = (float)neb_rng_below(&b->rng, 3) - 1; // equal magnitudes everywhere
    for (size_t i = 0; kind == 3 && i < n; i++)      // rows of zeros and one large element
        x[i] = i % 1024 > 90 ? 0 : i % 4096 == 7 ? 1e9f : x[i];
    for (size_t i = 0; kind == 4 && i < n; i++) // chunks of zeros
        x[i] = i / 4096 % 3 == 1 ? x[i] : i % 3 ? 0.0f : -0.0f;
    float *sparse = host(b, n * 4), *list = host(b, chunks * k * 4);
    for (size_t c = 0; c < chunks; c++) {
        size_t take = c + 1 == chunks ? k_last : k;
        kern_topk(want + c * k, x + c * chunk, c + 1 == chunks ? last : chunk, take, scratch);
        for (size_t i = 0; i < take; i++) {
            at[m] = (uint32_t)(c * chunk + want[c * k + i]);
            list[m] = want_v[c * k + i] = x[at[m]];
            sparse[at[m]] = list[m];
            m++;
        }
    }
    void *dx = device(b, x, n * 4), *di = device(b, NULL, chunks * k * 2),
         *dv = device(b, NULL, chunks * k * 4), *da = device(b, at, m * 4),
         *dl = device(b, list, m * 4), *dout = device(b, NULL, n * 4);
    b->D->ops->zero(b->D, di, chunks * k * 2);
    b->D->ops->zero(b->D, dv, chunks * k * 4);
    b->D->ops->topk(b->D, di, dv, dx, n, chunk, k, k_last);
    b->D->ops->scatter(b->D, dout, n, da, dl, m);
    char name[64];
    snprintf(name, sizeof name, "topk:%u/%u%s", k, chunk,
             kind == 4   ? ", zeros"
             : kind == 3 ? ", rows of zeros"
             : kind == 2 ? ", ties"
             : kind      ? ", extremes"
                         : "");
    same(b, name, n, want, di, chunks * k * 2);
    same_floats(b, "its values", n, want_v, dv, chunks * k);
    same_floats(b, "its decoding", n, sparse, dout, n);
}

// A part of a tensor of 5 x 7 x 6 with gaps between its elements, and a unit that begins in a row.
// n: of the unit. how: enum kern_stored.
static void pieces(struct bits *b, size_t n, enum kern_stored stored, bool shadowed) {
    enum { GAP = 3, ROW = 20, PLANE = 97, ROOM = 3 * PLANE };
    struct kern_piece p = {.dims = 3,
                           .shape = {5, 7, 6},
                           .at = {1, 2, 0},
                           .extent = {3, 4, 5},
                           .stride = {PLANE, ROW, GAP},
                           .stored = stored,
                           .first = 40,
                           .n = n};
    size_t each = stored == KERN_STORED_F32 ? 4 : 2, bytes = n * sizeof(float);
    float *x = values(b, ROOM, false), *unit = values(b, n, false), *shadow = values(b, n, false);
    uint16_t *half = host(b, ROOM * sizeof *half);
    for (size_t i = 0; i < ROOM; i++)
        half[i] = stored == KERN_STORED_BF16 ? kern_bf16_of_f32(x[i]) : kern_f16_of_f32(x[i]);
    void *memory = stored == KERN_STORED_F32 ? (void *)x : (void *)half;
    p.data = device(b, memory, ROOM * each);
    void *du = device(b, unit, bytes), *ds = device(b, shadow, bytes);
    for (int write = 0; write < 2; write++) {
        for (size_t i = 0; i < n; i++) {
            int64_t e = p.first + (int64_t)i, c[] = {e / 42 - 1, e / 6 % 7 - 2, e % 6};
            size_t at = (size_t)(c[0] * PLANE + c[1] * ROW + c[2] * GAP);
            bool bf16 = stored == KERN_STORED_BF16;
            if (c[0] < 0 || c[0] >= 3 || c[1] < 0 || c[1] >= 4 || c[2] >= 5)
                continue;
            if (write && stored == KERN_STORED_F32)
                x[at] = unit[i];
            else if (write)
                half[at] = bf16 ? kern_bf16_of_f32(unit[i]) : kern_f16_of_f32(unit[i]);
            if (write && stored != KERN_STORED_F32 && shadowed)
                shadow[i] = unit[i];
            if (write)
                continue;
            if (stored == KERN_STORED_F32) {
                unit[i] = x[at];
                continue;
            }
            float s = shadow[i], v = bf16 ? kern_f32_of_bf16(half[at]) : kern_f32_of_f16(half[at]),
                  was = bf16 ? kern_f32_of_bf16(kern_bf16_of_f32(s))
                             : kern_f32_of_f16(kern_f16_of_f32(s));
            unit[i] = !shadowed ? v : v == was ? s : s + (v - was);
        }
        if (write)
            b->D->ops->piece_write(b->D, &p, du, shadowed ? ds : NULL);
        else
            b->D->ops->piece_read(b->D, du, shadowed ? ds : NULL, &p);
        same_floats(b, write ? "a written unit" : "a read unit", n, unit, du, n);
        same(b, "the part", n, memory, p.data, ROOM * each);
        same_floats(b, "the shadow", n, shadow, ds, n);
        for (size_t i = 0; i < n; i++)
            unit[i] = unit[i] * 1.5f;
        b->D->ops->upload(b->D, du, unit, bytes);
    }
}

struct exact_case {
    enum { OPS, PART, BLOCKS, PLANES, TOPK, PIECES } what;
    size_t n;
    bool hard;
    uint32_t block, k; // of topk: chunk, entries of one chunk
    int how;           // levels or kind of values
    size_t at, apart;
};
static void run(void *ctx) {
    struct bits *b = ctx;
    const struct exact_case *c = b->c;
    b->D = b->k.D;
    switch (c->what) {
    case OPS: exact_ops(b, c->n, c->hard); break;
    case PART: exact_part(b, c->n, c->at, c->apart); break;
    case BLOCKS: blocks(b, c->n, c->block, c->how, c->hard); break;
    case PLANES: bf16_planes(b, c->n); break;
    case TOPK: topk(b, c->n, c->block, c->k, c->how); break;
    case PIECES: pieces(b, c->n, (enum kern_stored)c->how, c->hard); break;
    }
}
static void one(struct bits *b, struct device_checks *all, struct exact_case c) {
    static const char *const names[] = {
        "the exact path", "a part of arrays", "blocks", "bf16 planes", "topk", "pieces"};
    if (!device_case_due(all))
        return;
    // the same values for every first case
    b->rng = neb_rng_make(21, 9 + (uint64_t)all->next);
    b->c = &c;
    bool ran = device_case_run(&b->k, all, run, b);
    device_case_end(&b->k, ran);
    if (ran)
        return;
    b->n++;
    b->failed++;
    printf("%s of %zu elements: the device failed\n", names[c.what], c.n);
    if (b->report)
        fprintf(b->report, "| %s | %zu | **failed** |\n", names[c.what], c.n);
}

#define ONE(...) one(&b, c, (struct exact_case){__VA_ARGS__})
#define BLOCKS_OF(size, block_, levels, hard_)                                                     \
    ONE(.what = BLOCKS, .n = size, .block = block_, .how = levels, .hard = hard_)
#define TOPK_OF(size, chunk, k_, kind)                                                             \
    ONE(.what = TOPK, .n = size, .block = chunk, .k = k_, .how = kind)
int device_exact_run(struct device_checks *c, int *n) {
    struct bits b = {.report = c->report};
    static const size_t sizes[] = {1, 127, 1000, 4099};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ONE(.what = OPS, .n = sizes[i]);
        ONE(.what = OPS, .n = sizes[i], .hard = true);
        ONE(.what = PLANES, .n = sizes[i]);
        static const int levels[] = {127, 6, 3, 1};
        for (size_t k = 0; k < 4; k++) {
            BLOCKS_OF(sizes[i], 128, levels[k], false);
            BLOCKS_OF(sizes[i], 128, levels[k], true);
            BLOCKS_OF(sizes[i], 64, levels[k], false);
            BLOCKS_OF(sizes[i], k ? 10 : 9, levels[k], true);
            BLOCKS_OF(sizes[i], 65535, levels[k], true);
        }
    }
    for (int kind = 0; kind < 5; kind++) {
        TOPK_OF(20000, 4096, 64, kind);
        TOPK_OF(8192, 4096, 256, kind);
        TOPK_OF(8200, 4096, 512, kind);
        TOPK_OF(4096, 4096, 65, kind);
        TOPK_OF(8192, 4096, 1500, kind);
        TOPK_OF(12288, 4096, 1, kind);
        TOPK_OF(4096, 4096, 4096, kind);
        TOPK_OF(1000, 64, 1, kind);
        TOPK_OF(777, 1024, 33, kind);
    }
    for (size_t size = 1; size < 14;
         size += 1 + size / 6) // heads, vectors and tails of every length
        for (size_t at = 0; at < 5; at++) {
            ONE(.what = PART, .n = size, .at = at);
            ONE(.what = PART, .n = size, .at = at, .apart = 3);
        }
    ONE(.what = PART, .n = 2077, .at = 3);
    for (int kind = 0; kind < 6; kind++)
        ONE(.what = PIECES, .n = 150, .how = kind % 3, .hard = kind > 2);
    if (c->large) {
        ONE(.what = OPS, .n = (3 << 20) + 5, .hard = true);
        BLOCKS_OF((3 << 20) + 5, 128, 6, true);
        BLOCKS_OF(3 << 20, 128, 127, false);
        TOPK_OF(3 << 20, 4096, 64, 0);
        TOPK_OF(200000, 65536, 1000, 1);
    }
    *n = b.n;
    return b.failed;
}
