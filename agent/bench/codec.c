// SPDX-License-Identifier: Apache-2.0
#include "agent/base/fs.h"
#include "agent/base/rng.h"
#include "agent/bench/bench.h"
#include "compress/reader.h"
#include "compress/update.h"
#include "kernels/exact.h"
#include "kernels/pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT = 1 << 21, REPEATS = 3, SAMPLES_MAX = 4096, STRIP = 4096, SOCKET_CHUNK = 256 << 10 };
static const size_t input_max = (size_t)4 << 30;

struct unit {
    struct cmp_work *work;
    struct cmp_reader *reader;
    struct neb_buf frame;
    size_t at, n;
    double error, norm; // squared
    double took;        // seconds of the last task
    enum neb_status st;
};

struct bench {
    struct kern_pool *pool;
    struct cmp_codec codec;
    float *x, *y, *z; // (params) z: zeros, except while "decode + outer step" runs
    size_t params, n_units;
    struct unit *units;
};

static void fill_unit(void *arg, size_t i) {
    struct bench *b = arg;
    const struct unit *u = &b->units[i];
    struct neb_rng r = neb_rng_make(1, i);
    float *x = b->x + u->at;
    neb_rng_normals(&r, x, u->n);
    for (size_t k = 0; k < u->n; k++)
        x[k] = 1e-3f * x[k] * fabsf(x[k]);
}

// ---- timed tasks, each over one unit ------------------------------------------------------------

static void copy_unit(void *arg, size_t i) {
    struct bench *b = arg;
    memcpy(b->y + b->units[i].at, b->x + b->units[i].at, b->units[i].n * sizeof(float));
}

static void zero_unit(void *arg, size_t i) {
    struct bench *b = arg;
    memset(b->y + b->units[i].at, 0, b->units[i].n * sizeof(float));
}

static void encode_unit(void *arg, size_t i) {
    struct bench *b = arg;
    struct unit *u = &b->units[i];
    neb_buf_clear(&u->frame);
    u->st = cmp_encode(u->work, &b->codec, b->x + u->at, u->n, &u->frame);
}

// θ is x, θ_m is zeros, and e is the content of y, which β = 0 drops. So exactly x is sent.
static void learn(struct bench *b, struct unit *u, int zstd_level) {
    struct cmp_codec codec = b->codec;
    struct cmp_feedback f = {
        .u = b->y + u->at, .theta = b->x + u->at, .theta_m = b->z + u->at, .beta = 0};
    codec.zstd_level = zstd_level;
    neb_buf_clear(&u->frame);
    u->st = cmp_encode_feedback(u->work, &codec, &f, u->n, &u->frame);
}

static void quantise_unit(void *arg, size_t i) {
    struct bench *b = arg;
    learn(b, &b->units[i], 0);
}

static void feedback_unit(void *arg, size_t i) {
    struct bench *b = arg;
    learn(b, &b->units[i], b->codec.zstd_level);
}

static void decode_unit(void *arg, size_t i) {
    struct bench *b = arg;
    struct unit *u = &b->units[i];
    u->st = cmp_decode(u->work, u->frame.p, u->frame.len, b->y + u->at, u->n);
}

// Applies one update of a commit to θ (y) and v (z), as inter/outer/outer.c does.
static void settle(struct bench *b, struct unit *u) {
    _Alignas(64) float part[STRIP], sum[STRIP];
    for (size_t at = 0; at < u->n; at += STRIP) {
        size_t n = u->n - at < STRIP ? u->n - at : STRIP;
        memset(sum, 0, n * sizeof *sum);
        cmp_reader_read(u->reader, at, part, n);
        kern_exact_add_scaled(sum, part, 1, n);
        kern_exact_outer_step(b->y + u->at + at, b->z + u->at + at, sum, 0.9f, 0.6f, n);
    }
}

static void step_unit(void *arg, size_t i) {
    struct bench *b = arg;
    settle(b, &b->units[i]);
}

static void decode_step_unit(void *arg, size_t i) {
    struct bench *b = arg;
    struct unit *u = &b->units[i];
    u->st = cmp_reader_open(u->reader, u->work, u->frame.p, u->frame.len, u->n);
    if (u->st == NEB_OK)
        settle(b, u);
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

// ---- timing -------------------------------------------------------------------------------------

struct slice { // units timed together, one per thread
    struct bench *b;
    size_t first;
    void (*task)(void *arg, size_t i);
};

static void slice_unit(void *arg, size_t i) {
    const struct slice *s = arg;
    size_t k = (s->first + i) % s->b->n_units;
    double start = bench_thread_seconds();
    s->task(s->b, k);
    s->b->units[k].took = bench_thread_seconds() - start;
}

// The mean over the threads.
static double slice_seconds(struct bench *b, size_t first, size_t units,
                            void (*task)(void *arg, size_t i)) {
    struct slice s = {b, first, task};
    double sum = 0;
    kern_pool_run(b->pool, units, slice_unit, &s);
    for (size_t i = 0; i < units; i++)
        sum += b->units[(first + i) % b->n_units].took;
    return sum > 1e-9 ? sum / (double)units : 1e-9;
}

struct stage {
    const char *name;
    void (*task)(void *arg, size_t i);
    void (*limit)(void *arg, size_t i);
    const char *limit_is;
    double bytes, limit_bytes; // per parameter
};

struct speed {
    // GB/s: the median of the task; and the limit's, from the median of the ratios.
    double value, limit;
};

// Task and limit take turns slice by slice, each on units that the other has not just put into the
// caches. A busy machine slows both, so the median of their ratios stays. The first run lets
// buffers grow to their size.
static struct speed measure(struct bench *b, const struct stage *s) {
    static double ratio[SAMPLES_MAX], took[SAMPLES_MAX];
    size_t at_once = (size_t)kern_pool_threads(b->pool), n = 0;
    at_once = at_once < b->n_units ? at_once : b->n_units;
    kern_pool_run(b->pool, b->n_units, s->task, b);
    for (int i = 0; i < REPEATS; i++)
        for (size_t k = 0; k + at_once <= b->n_units && n < SAMPLES_MAX; k += at_once, n++) {
            double elements = 0, limit = slice_seconds(b, k + b->n_units / 2, at_once, s->limit),
                   task = slice_seconds(b, k, at_once, s->task);
            for (size_t u = k; u < k + at_once; u++)
                elements += (double)b->units[u].n;
            ratio[n] = s->bytes / s->limit_bytes * limit / task;
            took[n] = task / elements;
        }
    double value = 1e-9 * s->bytes / bench_median(took, n);
    return (struct speed){value, value / bench_median(ratio, n)};
}

static enum neb_status units_status(const struct bench *b) {
    for (size_t i = 0; i < b->n_units; i++)
        NEB_TRY(b->units[i].st);
    return NEB_OK;
}

// Prints the line "codec stage tN" and its fields.
static enum neb_status bench_stage(struct bench *b, bool json, const char *codec,
                                   const struct stage *s, const struct bench_field *more,
                                   size_t n_more) {
    char text[80];
    struct speed v = measure(b, s);
    NEB_TRY(units_status(b));
    snprintf(text, sizeof text, "%s %s t%d", codec, s->name, kern_pool_threads(b->pool));
    bench_line_with(json, "codec", text, v.value, "GB/s", v.limit, s->limit_is, more, n_more);
    return NEB_OK;
}

static enum neb_status bench_one(struct bench *b, bool json, const char *name) {
    NEB_TRY(cmp_codec_parse(name, &b->codec));
    double bytes = 0, error = 0, norm = 0, code = cmp_codec_code_bytes(&b->codec);
    bool sparse = cmp_codec_density(&b->codec) < 1, whole = sparse || code > 0;
    kern_pool_run(b->pool, b->n_units, encode_unit, b);
    NEB_TRY(units_status(b));
    kern_pool_run(b->pool, b->n_units, decode_unit, b);
    NEB_TRY(units_status(b));
    kern_pool_run(b->pool, b->n_units, compare_unit, b);
    for (size_t i = 0; i < b->n_units; i++) {
        bytes += (double)b->units[i].frame.len;
        error += b->units[i].error;
        norm += b->units[i].norm;
    }
    struct bench_field more[] = {{"bits_per_param", 8 * bytes / (double)b->params},
                                 {"rel_error", norm > 0 ? sqrt(error / norm) : 0},
                                 {"socket_bits_per_param", 0}};
    size_t n_more = 2;
    uint64_t sent = 0;
    if (sparse && bench_socket_bytes((size_t)bytes, SOCKET_CHUNK, &sent) == NEB_OK)
        more[n_more++].value = 8 * (double)sent / (double)b->params;
    const struct stage encode = {"encode", encode_unit, copy_unit, "memcpy", 4, 4};
    const struct stage quantise = {sparse ? "feedback + select" : "feedback + quantise",
                                   quantise_unit,
                                   copy_unit,
                                   "memcpy",
                                   16 + code,
                                   8};
    const struct stage feedback = {
        "feedback + encode", feedback_unit, copy_unit, "memcpy", 16 + code, 8};
    const struct stage decode = {
        "decode", decode_unit, sparse ? zero_unit : copy_unit, sparse ? "zeroing" : "memcpy", 4, 4};
    const struct stage both = {
        "decode + outer step", decode_step_unit, copy_unit, "memcpy", 16 + code, 8};
    const struct stage step = {"read + outer step", step_unit, copy_unit, "memcpy", 16 + code, 8};
    if (whole) {
        NEB_TRY(bench_stage(b, json, name, &quantise, more, n_more));
        NEB_TRY(bench_stage(b, json, name, &feedback, more, n_more));
    }
    NEB_TRY(bench_stage(b, json, name, &encode, more, n_more));
    NEB_TRY(bench_stage(b, json, name, &decode, more, n_more));
    if (whole) {
        NEB_TRY(bench_stage(b, json, name, &both, more, n_more));
        NEB_TRY(bench_stage(b, json, name, &step, more, n_more));
    }
    memset(b->z, 0, b->params * sizeof *b->z);
    return NEB_OK;
}

static enum neb_status allocate(struct bench *b, size_t params, size_t n_units) {
    b->params = params;
    b->n_units = n_units;
    b->x = malloc(params * sizeof *b->x);
    b->y = malloc(params * sizeof *b->y);
    b->z = calloc(params, sizeof *b->z);
    b->units = calloc(b->n_units, sizeof *b->units);
    if (!b->x || !b->y || !b->z || !b->units)
        return neb_fail(NEB_ERR_NOMEM,
                        "bench codec: out of memory for %zu parameters (12 bytes each)", params);
    memset(b->z, 0, params * sizeof *b->z); // touches the pages
    for (size_t i = 0; i < b->n_units; i++) {
        NEB_TRY(cmp_work_create(&b->units[i].work));
        NEB_TRY(cmp_reader_create(&b->units[i].reader));
    }
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

// The units of a stored update, decoded, with their shapes.
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
        st = neb_fail(NEB_ERR_NOMEM, "bench codec: out of memory for %u units", n);
        goto out;
    }
    NEB_TRY_GOTO(cmp_update_shapes(file.p, file.len, shapes, n, &n), out);
    NEB_TRY_GOTO(cmp_update_open(file.p, file.len, shapes, n, views), out);
    for (uint32_t i = 0; i < n; i++)
        params += (size_t)shapes[i].rows * shapes[i].cols;
    if (params == 0) {
        st = neb_fail(NEB_ERR_INVALID, "bench codec: %s has no elements", path);
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

enum neb_status bench_codec(bool json, size_t params, int threads, const char *input,
                            const char *codec) {
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
    memset(b.y, 0, b.params * sizeof *b.y); // touches the pages before the first measurement
    for (int i = 0; codec ? i < 1 : cmp_variant(i, CMP_BENCHED) != NULL; i++) {
        const char *name = codec ? codec : cmp_variant(i, CMP_BENCHED)->name;
        b.pool = one;
        NEB_TRY_GOTO(bench_one(&b, json, name), out);
        if (kern_pool_threads(all) == 1)
            continue;
        b.pool = all;
        NEB_TRY_GOTO(bench_one(&b, json, name), out);
    }
out:
    for (size_t i = 0; b.units && i < b.n_units; i++) {
        cmp_work_destroy(&b.units[i].work);
        cmp_reader_destroy(&b.units[i].reader);
        neb_buf_free(&b.units[i].frame);
    }
    kern_pool_destroy(&one);
    kern_pool_destroy(&all);
    free(b.units);
    free(b.x);
    free(b.y);
    free(b.z);
    return st;
}
