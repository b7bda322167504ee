#include "agent/bench_codec.h"
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "agent/bench.h"
#include "compress/update.h"
#include "kernels/pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT = 1 << 22, REPEATS = 3 };
static const size_t input_max = (size_t)4 << 30;

struct unit {
    struct cmp_work *work;
    struct neb_buf frame;
    size_t at, n;
    double error, norm; // squared
    enum neb_status st;
};

struct bench {
    struct kern_pool *pool;
    struct cmp_codec codec;
    float *x, *y; // (params)
    size_t params, n_units;
    struct unit *units;
};

static void fill_unit(void *arg, size_t i) {
    struct bench *b = arg;
    const struct unit *u = &b->units[i];
    struct neb_rng r = neb_rng_make(1, i);
    for (size_t k = 0; k < u->n; k++) {
        float z = neb_rng_normal(&r);
        b->x[u->at + k] = 1e-3f * z * fabsf(z);
    }
}

static void copy_unit(void *arg, size_t i) {
    struct bench *b = arg;
    memcpy(b->y + b->units[i].at, b->x + b->units[i].at, b->units[i].n * sizeof(float));
}

static void encode_unit(void *arg, size_t i) {
    struct bench *b = arg;
    struct unit *u = &b->units[i];
    neb_buf_clear(&u->frame);
    u->st = cmp_encode(u->work, &b->codec, b->x + u->at, u->n, &u->frame);
}

static void decode_unit(void *arg, size_t i) {
    struct bench *b = arg;
    struct unit *u = &b->units[i];
    u->st = cmp_decode(u->work, u->frame.p, u->frame.len, b->y + u->at, u->n);
}

static void compare_unit(void *arg, size_t i) {
    struct bench *b = arg;
    struct unit *u = &b->units[i];
    u->error = u->norm = 0;
    for (size_t k = u->at; k < u->at + u->n; k++) {
        double d = (double)b->x[k] - (double)b->y[k];
        u->error += d * d;
        u->norm += (double)b->x[k] * (double)b->x[k];
    }
}

// GB/s of fp32, best of a few runs; the first one also makes the buffers as large as they need to be.
static double speed(struct bench *b, void (*task)(void *arg, size_t i)) {
    double best = 0;
    for (int i = 0; i <= REPEATS; i++) {
        neb_ns start = neb_now();
        kern_pool_run(b->pool, b->n_units, task, b);
        double gbps = 4e-9 * (double)b->params / neb_seconds(neb_now() - start);
        if (i > 0 && gbps > best)
            best = gbps;
    }
    return best;
}

static enum neb_status units_status(const struct bench *b) {
    for (size_t i = 0; i < b->n_units; i++)
        NEB_TRY(b->units[i].st);
    return NEB_OK;
}

static enum neb_status bench_one(struct bench *b, bool json, const char *name) {
    int threads = kern_pool_threads(b->pool);
    char text[64];
    NEB_TRY(cmp_codec_parse(name, &b->codec));
    double copy = speed(b, copy_unit);
    double encode = speed(b, encode_unit);
    NEB_TRY(units_status(b));
    double decode = speed(b, decode_unit);
    NEB_TRY(units_status(b));
    kern_pool_run(b->pool, b->n_units, compare_unit, b);
    double bytes = 0, error = 0, norm = 0;
    for (size_t i = 0; i < b->n_units; i++) {
        bytes += (double)b->units[i].frame.len;
        error += b->units[i].error;
        norm += b->units[i].norm;
    }
    const struct bench_field more[] = {{"bits_per_param", 8 * bytes / (double)b->params},
                                       {"rel_error", norm > 0 ? sqrt(error / norm) : 0}};
    snprintf(text, sizeof text, "%s encode t%d", name, threads);
    bench_line_with(json, "codec", text, encode, "GB/s", copy, "memcpy", more, 2);
    snprintf(text, sizeof text, "%s decode t%d", name, threads);
    bench_line_with(json, "codec", text, decode, "GB/s", copy, "memcpy", more, 2);
    return NEB_OK;
}

static enum neb_status allocate(struct bench *b, size_t params, size_t n_units) {
    b->params = params;
    b->n_units = n_units;
    b->x = malloc(params * sizeof *b->x);
    b->y = malloc(params * sizeof *b->y);
    b->units = calloc(b->n_units, sizeof *b->units);
    if (!b->x || !b->y || !b->units)
        return neb_fail(NEB_ERR_NOMEM, "bench codec: no memory for %zu parameters (8 bytes each)",
                        params);
    for (size_t i = 0; i < b->n_units; i++)
        NEB_TRY(cmp_work_create(&b->units[i].work));
    return NEB_OK;
}

static enum neb_status make_units(struct bench *b, size_t params) {
    NEB_TRY(allocate(b, params, (params + UNIT - 1) / UNIT));
    for (size_t i = 0; i < b->n_units; i++) {
        b->units[i].at = i * UNIT;
        b->units[i].n = params - i * UNIT < UNIT ? params - i * UNIT : UNIT;
    }
    return NEB_OK;
}

// The decoded units of a stored update, each encoded as the unit it was.
static enum neb_status read_units(struct bench *b, const char *path) {
    struct neb_buf file = {0};
    struct cmp_update_unit *views = NULL;
    struct cmp_unit_shape *shapes = NULL;
    uint32_t n = 0;
    size_t params = 0;
    enum neb_status st;
    NEB_TRY_GOTO(neb_fs_read(path, input_max, &file), out);
    NEB_TRY_GOTO(cmp_update_shapes(file.p, file.len, NULL, 0, &n), out);
    shapes = calloc(n ? n : 1, sizeof *shapes);
    views = calloc(n ? n : 1, sizeof *views);
    if (!shapes || !views) {
        st = neb_fail(NEB_ERR_NOMEM, "bench codec: no memory for %u units", n);
        goto out;
    }
    NEB_TRY_GOTO(cmp_update_shapes(file.p, file.len, shapes, n, &n), out);
    NEB_TRY_GOTO(cmp_update_open(file.p, file.len, shapes, n, views), out);
    for (uint32_t i = 0; i < n; i++)
        params += (size_t)shapes[i].rows * shapes[i].cols;
    if (params == 0) {
        st = neb_fail(NEB_ERR_INVALID, "bench codec: %s holds no elements", path);
        goto out;
    }
    NEB_TRY_GOTO(allocate(b, params, n), out);
    for (size_t i = 0, at = 0; i < n; at += b->units[i].n, i++) {
        struct unit *u = &b->units[i];
        u->at = at;
        u->n = (size_t)shapes[i].rows * shapes[i].cols;
        NEB_TRY_GOTO(cmp_decode(u->work, views[i].frame, views[i].frame_len, b->x + at, u->n), out);
    }
out:
    free(views);
    free(shapes);
    neb_buf_free(&file);
    return st;
}

enum neb_status bench_codec(bool json, size_t params, int threads, const char *input) {
    static const char *const names[] = {"fp32", "bf16", "int8",         "int4",
                                        "int3", "int2", "topk:64/4096", "topk:256/4096"};
    enum neb_status st = NEB_OK;
    struct bench b = {0};
    struct kern_pool *one = NULL, *all = NULL;
    if (input)
        NEB_TRY_GOTO(read_units(&b, input), out);
    else
        NEB_TRY_GOTO(make_units(&b, params ? params : BENCH_CODEC_PARAMS), out);
    NEB_TRY_GOTO(kern_pool_create(1, &one), out);
    NEB_TRY_GOTO(kern_pool_create(threads, &all), out);
    if (!input)
        kern_pool_run(all, b.n_units, fill_unit, &b);
    memset(b.y, 0, b.params * sizeof *b.y); // pages are there before anything is timed
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        b.pool = one;
        NEB_TRY_GOTO(bench_one(&b, json, names[i]), out);
        if (kern_pool_threads(all) == 1)
            continue;
        b.pool = all;
        NEB_TRY_GOTO(bench_one(&b, json, names[i]), out);
    }
out:
    for (size_t i = 0; b.units && i < b.n_units; i++) {
        cmp_work_destroy(&b.units[i].work);
        neb_buf_free(&b.units[i].frame);
    }
    kern_pool_destroy(&one);
    kern_pool_destroy(&all);
    free(b.units);
    free(b.x);
    free(b.y);
    return st;
}
