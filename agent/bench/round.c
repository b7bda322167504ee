// SPDX-License-Identifier: Apache-2.0
#include "agent/base/rng.h"
#include "agent/bench/bench.h"
#include "agent/bench/security.h"
#include "compress/reader.h"
#include "compress/update.h"
#include "inter/round/estimate.h"
#include "kernels/exact.h"
#include "kernels/pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT = 1 << 20, MEMBERS = 2, REPEATS = 3, STRIP = 4096 };
#define SECURITY_TARGET 0.03 // share of a round, for all protection together

struct unit {
    struct cmp_work *work;
    struct cmp_reader *reader;
    struct neb_buf update; // of this unit alone, as an agent would store it
    struct cmp_unit_shape shape;
    size_t at, n;
    struct kern_digest digest;
    enum neb_status st;
};

struct round {
    struct kern_pool *pool;
    struct cmp_codec codec;
    float *theta, *theta_m, *u, *v, *sent; // (params) each
    size_t params, n_units;
    struct unit *units;
};

static enum neb_status open_unit(const struct unit *u, struct cmp_update_unit *view) {
    return cmp_update_open(u->update.p, u->update.len, &u->shape, 1, view);
}

// ---- stages, each over one unit -----------------------------------------------------------------

static void fill(void *arg, size_t i) {
    struct round *r = arg;
    const struct unit *u = &r->units[i];
    struct neb_rng rng = neb_rng_make(1, i);
    for (size_t k = u->at; k < u->at + u->n; k++) {
        float z = neb_rng_normal(&rng);
        r->theta[k] = neb_rng_normal(&rng);
        r->theta_m[k] = r->theta[k] - 1e-3f * z * fabsf(z);
        r->u[k] = r->v[k] = r->sent[k] = 0;
    }
}

static void copy(void *arg, size_t i) {
    struct round *r = arg;
    memcpy(r->sent + r->units[i].at, r->theta + r->units[i].at, r->units[i].n * sizeof(float));
}

// As inter/outer/outer.c: u, codes, entropy stage, a copy of θ_m.
static void encode(void *arg, size_t i) {
    struct round *r = arg;
    struct unit *u = &r->units[i];
    struct cmp_feedback f = {r->u + u->at, r->theta + u->at, r->theta_m + u->at, r->sent + u->at,
                             1};
    neb_buf_clear(&u->update);
    cmp_update_begin(&u->update, 1);
    u->st = cmp_update_add(u->work, &u->update, &u->shape, &r->codec,
                           &(struct cmp_source){.learned = &f}, NULL);
}

static void gate(void *arg, size_t i) {
    struct round *r = arg;
    struct unit *u = &r->units[i];
    struct cmp_update_stats stats;
    u->st = cmp_update_check_max(u->work, u->update.p, u->update.len, u->n, &stats);
}

static void open_update(void *arg, size_t i) {
    struct unit *u = &((struct round *)arg)->units[i];
    struct cmp_update_unit view;
    u->st = open_unit(u, &view);
    if (u->st == NEB_OK)
        u->st = cmp_reader_open(u->reader, u->work, view.frame, view.frame_len, u->n);
}

// Strip by strip: weighted sum over the members, own residual, outer step, rebase, digest. One
// reader serves all members.
static void settle(void *arg, size_t i) {
    struct round *r = arg;
    struct unit *u = &r->units[i];
    float sum[STRIP], part[STRIP];
    u->digest = (struct kern_digest){0, 0};
    for (size_t at = u->at; at < u->at + u->n; at += STRIP) {
        size_t n = u->at + u->n - at < STRIP ? u->at + u->n - at : STRIP;
        memset(sum, 0, n * sizeof *sum);
        for (int m = 0; m < MEMBERS; m++) {
            cmp_reader_read(u->reader, at - u->at, part, n);
            kern_exact_add_scaled(sum, part, 1.0f / MEMBERS, n);
        }
        kern_exact_residual(r->u + at, part, n);
        kern_exact_outer_step(r->theta + at, r->v + at, sum, 0.9f, 0.6f, n);
        kern_exact_rebase(r->theta_m + at, r->theta + at, r->sent + at, n);
        u->digest = kern_digest_add(u->digest, kern_digest_part(r->theta + at, r->v + at, at, n));
    }
}

static const struct stage {
    const char *name;
    void (*task)(void *arg, size_t i);
    double bytes_per_param, frames; // bytes read and written; how often all frames pass
    int times;                      // in one round
} stages[] = {
    {"feedback + encode", encode, 20, 1, 1},
    {"gate", gate, 0, 1, MEMBERS - 1}, // of the others' updates, while they arrive
    {"unpack + check", open_update, 0, 1, MEMBERS},
    {"sum + settle", settle, 36, 0, 1},
};
enum { STAGES = sizeof stages / sizeof stages[0] };

// ---- one call -----------------------------------------------------------------------------------

// Processor time over threads: it leaves out what other programs use.
static double seconds_of(struct round *r, void (*task)(void *arg, size_t i)) {
    double start = bench_cpu_seconds();
    kern_pool_run(r->pool, r->n_units, task, r);
    double took = (bench_cpu_seconds() - start) / kern_pool_threads(r->pool);
    return took > 1e-9 ? took : 1e-9;
}

// The best of a few rounds from the same parameters. The first one lets buffers grow to their size.
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

// The protection of a round, stage by stage and together, beside the same round in the open at 1
// Gbit/s. critical_ms: how much shorter the round would be without the stage.
static void print_stages(bool json, const struct bench_security *b, const struct bench_costs *c,
                         const char *codec, int threads) {
    double open_s = b->compute_s + bench_pipeline(b, c, false),
           secured_s = b->compute_s + bench_pipeline(b, c, true);
    struct bench_costs no_disk = *c;
    no_disk.store_s = 0;
    char text[64];
    for (int k = 0; k < BENCH_STAGES; k++) {
        struct bench_costs without = *c;
        without.s[k] = 0;
        double waits = secured_s - b->compute_s - bench_pipeline(b, &without, true);
        const struct bench_field more[] = {
            {"ms", 1e3 * c->s[k]}, {"critical_ms", 1e3 * waits}, {"added", waits / open_s}};
        snprintf(text, sizeof text, "%s secured %s t%d", codec, bench_stage_names[k], threads);
        bench_line_with(json, "round", text, 1e3 * c->s[k], "ms", 1e3 * open_s,
                        "the round in the open", more, 3);
    }
    const struct bench_field more[] = {
        {"ms", 1e3 * secured_s},
        {"added", secured_s / open_s - 1},
        {"added_ms", 1e3 * (secured_s - open_s)},
        {"target", SECURITY_TARGET},
        {"added_no_disk", (b->compute_s + bench_pipeline(b, &no_disk, true)) /
                                  (b->compute_s + bench_pipeline(b, &no_disk, false)) -
                              1},
        {"store_ms", 1e3 * c->store_s},
        {"chunk_bytes", (double)b->chunk_bytes}};
    snprintf(text, sizeof text, "%s secured 1gbit t%d", codec, threads);
    bench_line_with(json, "round", text, 1e3 * secured_s, "ms", 1e3 * open_s,
                    "the same round in the open", more, sizeof more / sizeof *more);
}

// The same by the clock, without the disk: each member on its own processors, and both on this
// machine's.
static enum neb_status print_exchange(bool json, const struct bench_security *b, const char *codec,
                                      int threads) {
    static const char *const names[] = {
        [BENCH_ONE_WAY] = "one way", [BENCH_BOTH_WAYS] = "both ways"};
    for (int way = BENCH_ONE_WAY; way <= BENCH_BOTH_WAYS; way++) {
        struct bench_took in_the_open, secured;
        char text[64];
        NEB_TRY(bench_exchange(b, (enum bench_way)way, &in_the_open, &secured));
        double open_s = b->compute_s + in_the_open.clock_s,
               secured_s = b->compute_s + secured.clock_s;
        const struct bench_field more[] = {{"ms", 1e3 * secured_s},
                                           {"added", secured_s / open_s - 1},
                                           {"added_ms", 1e3 * (secured_s - open_s)},
                                           {"target", SECURITY_TARGET},
                                           {"processor_ms", 1e3 * secured.processor_s},
                                           {"processor_open_ms", 1e3 * in_the_open.processor_s}};
        snprintf(text, sizeof text, "%s secured 1gbit %s by the clock t%d", codec, names[way],
                 threads);
        bench_line_with(json, "round", text, 1e3 * secured_s, "ms", 1e3 * open_s,
                        "the same round in the open", more, sizeof more / sizeof *more);
    }
    return NEB_OK;
}

static enum neb_status print_security(bool json, const struct round *r, const double s[STAGES],
                                      const char *codec) {
    enum { UPDATE_HEAD = 8 }; // header of an update; the joined one has it once
    struct neb_buf update = {0};
    struct bench_security b = {
        .update = &update, .elements = r->params, .rate_bps = 1e9, .rtt_s = 0.02};
    struct bench_costs costs;
    int threads = kern_pool_threads(r->pool);
    cmp_update_begin(&update, (uint32_t)r->n_units);
    for (size_t i = 0; i < r->n_units; i++)
        neb_buf_add(&update, r->units[i].update.p + UPDATE_HEAD,
                    r->units[i].update.len - UPDATE_HEAD);
    const struct inter_estimate path = {.goodput_bps = b.rate_bps, .rtt = (neb_ns)(1e9 * b.rtt_s)};
    b.chunk_bytes = inter_estimate_chunk(&path, (uint32_t)update.len);
    for (size_t k = 0; k < STAGES; k++)
        b.compute_s += stages[k].task == gate ? 0 : s[k];
    enum neb_status st;
    NEB_TRY_GOTO(neb_buf_check(&update), out);
    NEB_TRY_GOTO(bench_security_measure(&b, &costs), out);
    print_stages(json, &b, &costs, codec, threads);
    st = print_exchange(json, &b, codec, threads);
out:
    neb_buf_free(&update);
    return st;
}

static enum neb_status create(struct round *r, size_t params) {
    float **arrays[] = {&r->theta, &r->theta_m, &r->u, &r->v, &r->sent};
    bool good = true;
    r->params = params;
    r->n_units = (params + UNIT - 1) / UNIT;
    r->units = calloc(r->n_units, sizeof *r->units);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        good &= params <= SIZE_MAX / 4 && (*arrays[i] = malloc(params * sizeof(float))) != NULL;
    if (!r->units || !good)
        return neb_fail(NEB_ERR_NOMEM,
                        "bench round: out of memory for %zu parameters (20 bytes each)", params);
    for (size_t i = 0; i < r->n_units; i++) {
        struct unit *u = &r->units[i];
        u->at = i * UNIT;
        u->n = params - u->at < UNIT ? params - u->at : UNIT;
        u->shape = (struct cmp_unit_shape){(uint32_t)i, 1, (uint32_t)u->n, false};
        NEB_TRY(cmp_work_create(&u->work));
        NEB_TRY(cmp_reader_create(&u->reader));
    }
    return NEB_OK;
}

static void destroy(struct round *r) {
    for (size_t i = 0; r->units && i < r->n_units; i++) {
        cmp_work_destroy(&r->units[i].work);
        cmp_reader_destroy(&r->units[i].reader);
        neb_buf_free(&r->units[i].update);
    }
    kern_pool_destroy(&r->pool);
    free(r->units);
    free(r->theta);
    free(r->theta_m);
    free(r->u);
    free(r->v);
    free(r->sent);
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
