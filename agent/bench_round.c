#include "agent/bench_round.h"
#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "agent/bench.h"
#include "agent/bench_security.h"
#include "compress/update.h"
#include "kernels/pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT = 1 << 20, MEMBERS = 2, REPEATS = 3 };

struct unit {
    struct cmp_work *work;
    struct neb_buf update; // of this unit alone, as an agent would store it
    struct cmp_unit_shape shape;
    size_t at, n;
    struct kern_digest digest;
    enum neb_status st;
};

struct round {
    struct kern_pool *pool;
    struct cmp_codec codec;
    float *theta, *theta_m, *u, *v, *acc, *part; // (params) each
    size_t params, n_units;
    struct unit *units;
};

static enum neb_status open_unit(const struct unit *u, struct cmp_update_unit *view) {
    return cmp_update_open(u->update.p, u->update.len, &u->shape, 1, view);
}

// ---- stages: each over one unit -------------------------------------------------------------------------------

static void fill(void *arg, size_t i) {
    struct round *r = arg;
    const struct unit *u = &r->units[i];
    struct neb_rng rng = neb_rng_make(1, i);
    for (size_t k = u->at; k < u->at + u->n; k++) {
        float z = neb_rng_normal(&rng);
        r->theta[k] = neb_rng_normal(&rng);
        r->theta_m[k] = r->theta[k] - 1e-3f * z * fabsf(z);
        r->u[k] = r->v[k] = r->acc[k] = r->part[k] = 0;
    }
}

static void copy(void *arg, size_t i) {
    struct round *r = arg;
    memcpy(r->part + r->units[i].at, r->theta + r->units[i].at, r->units[i].n * sizeof(float));
}

static void gradient(void *arg, size_t i) {
    struct round *r = arg;
    const struct unit *u = &r->units[i];
    kern_exact_pseudo_gradient(r->u + u->at, r->theta + u->at, r->theta_m + u->at, 1, u->n);
}

static void encode(void *arg, size_t i) {
    struct round *r = arg;
    struct unit *u = &r->units[i];
    neb_buf_clear(&u->update);
    cmp_update_begin(&u->update, 1);
    u->st = cmp_update_add(u->work, &u->update, &u->shape, &r->codec, r->u + u->at, NULL);
}

static void gate(void *arg, size_t i) {
    struct round *r = arg;
    struct unit *u = &r->units[i];
    struct cmp_update_stats stats;
    u->st = cmp_update_check_max(u->work, u->update.p, u->update.len, u->n, &stats);
}

static void decode(void *arg, size_t i) {
    struct round *r = arg;
    struct unit *u = &r->units[i];
    struct cmp_update_unit view;
    u->st = open_unit(u, &view);
    if (u->st == NEB_OK)
        u->st = cmp_decode(u->work, view.frame, view.frame_len, r->part + u->at, u->n);
}

static void clear(void *arg, size_t i) {
    struct round *r = arg;
    memset(r->acc + r->units[i].at, 0, r->units[i].n * sizeof(float));
}

static void sum(void *arg, size_t i) {
    struct round *r = arg;
    const struct unit *u = &r->units[i];
    kern_exact_add_scaled(r->acc + u->at, r->part + u->at, 1.0f / MEMBERS, u->n);
}

static void step(void *arg, size_t i) {
    struct round *r = arg;
    const struct unit *u = &r->units[i];
    kern_exact_outer_step(r->theta + u->at, r->v + u->at, r->acc + u->at, 0.9f, 0.6f, u->n);
}

static void residual(void *arg, size_t i) {
    struct round *r = arg;
    const struct unit *u = &r->units[i];
    kern_exact_residual(r->u + u->at, r->part + u->at, u->n);
}

// The decoded update stands in for what θ_m was at the send: the cost is the same, and θ_m is not used again.
static void rebase(void *arg, size_t i) {
    struct round *r = arg;
    const struct unit *u = &r->units[i];
    kern_exact_rebase(r->theta_m + u->at, r->theta + u->at, r->part + u->at, u->n);
}

static void digest(void *arg, size_t i) {
    struct round *r = arg;
    struct unit *u = &r->units[i];
    u->digest = kern_digest_part(r->theta + u->at, r->v + u->at, u->at, u->n);
}

static const struct stage {
    const char *name;
    void (*task)(void *arg, size_t i);
    double bytes_per_param, frames; // that it must read and write; how often all frames pass
    int times;                      // in one round
} stages[] = {
    {"gradient + feedback", gradient, 16, 0, 1},
    {"encode", encode, 4, 1, 1},
    {"gate", gate, 0, 1, MEMBERS},
    {"zero", clear, 4, 0, 1},
    {"decode", decode, 4, 1, MEMBERS},
    {"weighted sum", sum, 12, 0, MEMBERS},
    {"outer step", step, 20, 0, 1},
    {"residual", residual, 12, 0, 1},
    {"rebase", rebase, 16, 0, 1},
    {"digest", digest, 8, 0, 1},
};
enum { STAGES = sizeof stages / sizeof stages[0] };

// ---- one call -------------------------------------------------------------------------------------------------

static double seconds_of(struct round *r, void (*task)(void *arg, size_t i)) {
    neb_ns start = neb_now();
    kern_pool_run(r->pool, r->n_units, task, r);
    return neb_seconds(neb_now() - start);
}

// Best of a few rounds that all start from the same parameters; the first makes the buffers as large as they need to be.
static enum neb_status measure(struct round *r, double best[STAGES], double *copy_s) {
    for (int repeat = 0; repeat <= REPEATS; repeat++) {
        kern_pool_run(r->pool, r->n_units, fill, r);
        double s = seconds_of(r, copy);
        *copy_s = repeat <= 1 || s < *copy_s ? s : *copy_s;
        for (size_t k = 0; k < STAGES; k++) {
            s = 0;
            for (int t = 0; t < stages[k].times; t++)
                s += seconds_of(r, stages[k].task);
            best[k] = repeat <= 1 || s < best[k] ? s : best[k];
            for (size_t i = 0; i < r->n_units; i++)
                NEB_TRY(r->units[i].st);
        }
    }
    return NEB_OK;
}

static void print(bool json, const struct round *r, const double s[STAGES], double copy_s,
                  const char *codec) {
    double frames = 0, total = 0, n = (double)r->params, limit = 8e-9 * n / copy_s, bytes_total = 0;
    char text[64];
    for (size_t i = 0; i < r->n_units; i++)
        frames += (double)r->units[i].update.len;
    for (size_t k = 0; k < STAGES; k++)
        total += s[k];
    for (size_t k = 0; k < STAGES; k++) {
        double bytes =
            stages[k].times * (stages[k].bytes_per_param * n + stages[k].frames * frames);
        const struct bench_field more[] = {{"ms", 1e3 * s[k]}, {"share", s[k] / total}};
        bytes_total += bytes;
        snprintf(text, sizeof text, "%s %s t%d", codec, stages[k].name, kern_pool_threads(r->pool));
        bench_line_with(json, "round", text, 1e-9 * bytes / s[k], "GB/s", limit, "memcpy", more, 2);
    }
    const struct bench_field more[] = {
        {"ms", 1e3 * total}, {"share", 1}, {"bits_per_param", 8 * frames / n}};
    snprintf(text, sizeof text, "%s whole t%d", codec, kern_pool_threads(r->pool));
    bench_line_with(json, "round", text, 1e-9 * bytes_total / total, "GB/s", limit, "memcpy", more,
                    3);
}

// The round with all that protects it, beside the same one without, at 1 Gbit/s.
static enum neb_status print_security(bool json, const struct round *r, const double s[STAGES], const char *codec) {
    struct neb_buf update = {0};
    struct bench_security b = {.update = &update, .rate_bps = 1e9};
    double open_s, secured_s;
    char text[64];
    for (size_t i = 0; i < r->n_units; i++)
        neb_buf_add(&update, r->units[i].update.p, r->units[i].update.len);
    for (size_t k = 0; k < STAGES; k++)
        *(stages[k].task == gate ? &b.gate_s : &b.compute_s) += s[k];
    enum neb_status st = neb_buf_check(&update);
    if (st == NEB_OK)
        st = bench_security(&b, &open_s, &secured_s);
    neb_buf_free(&update);
    NEB_TRY(st);
    const struct bench_field more[] = {{"ms", 1e3 * secured_s},
                                       {"added", secured_s / open_s - 1},
                                       {"added_ms", 1e3 * (secured_s - open_s)}};
    snprintf(text, sizeof text, "%s secured 1gbit t%d", codec, kern_pool_threads(r->pool));
    bench_line_with(json, "round", text, 1e3 * secured_s, "ms", 1e3 * open_s, "the same round in the open", more, 3);
    return NEB_OK;
}

static enum neb_status create(struct round *r, size_t params) {
    float **arrays[] = {&r->theta, &r->theta_m, &r->u, &r->v, &r->acc, &r->part};
    bool good = true;
    r->params = params;
    r->n_units = (params + UNIT - 1) / UNIT;
    r->units = calloc(r->n_units, sizeof *r->units);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        good &= params <= SIZE_MAX / 4 && (*arrays[i] = malloc(params * sizeof(float))) != NULL;
    if (!r->units || !good)
        return neb_fail(NEB_ERR_NOMEM, "bench round: no memory for %zu parameters (24 bytes each)",
                        params);
    for (size_t i = 0; i < r->n_units; i++) {
        struct unit *u = &r->units[i];
        u->at = i * UNIT;
        u->n = params - u->at < UNIT ? params - u->at : UNIT;
        u->shape = (struct cmp_unit_shape){(uint32_t)i, 1, (uint32_t)u->n, false};
        NEB_TRY(cmp_work_create(&u->work));
    }
    return NEB_OK;
}

static void destroy(struct round *r) {
    for (size_t i = 0; r->units && i < r->n_units; i++) {
        cmp_work_destroy(&r->units[i].work);
        neb_buf_free(&r->units[i].update);
    }
    kern_pool_destroy(&r->pool);
    free(r->units);
    free(r->theta);
    free(r->theta_m);
    free(r->u);
    free(r->v);
    free(r->acc);
    free(r->part);
}

enum neb_status bench_round(bool json, size_t params, int threads, const char *codec,
                            struct kern_digest *out) {
    struct round r = {0};
    double s[STAGES], copy_s = 0;
    enum neb_status st;
    NEB_TRY_GOTO(cmp_codec_parse(codec, &r.codec), out);
    NEB_TRY_GOTO(create(&r, params ? params : BENCH_ROUND_PARAMS), out);
    NEB_TRY_GOTO(kern_pool_create(threads, &r.pool), out);
    NEB_TRY_GOTO(measure(&r, s, &copy_s), out);
    print(json, &r, s, copy_s, codec);
    NEB_TRY_GOTO(print_security(json, &r, s, codec), out);
    *out = (struct kern_digest){0, 0};
    for (size_t i = 0; i < r.n_units; i++)
        *out = kern_digest_add(*out, r.units[i].digest);
out:
    destroy(&r);
    return st;
}
