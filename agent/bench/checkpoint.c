// SPDX-License-Identifier: Apache-2.0
#include "agent/base/clock.h"
#include "agent/bench/bench.h"
#include "intra/ckpt/checkpoint_async.h"

#include <stdlib.h>
#include <string.h>

enum { ARRAYS = 7, TIMES = 5 }; // parameters, two moments, θ, v, u, θ_m at the send

struct bench {
    float *state; // (ARRAYS, params)
    size_t params;
    struct kern_pool *pool;
    struct intra_ckpt_async *a;
    char dir[NEB_PATH_MAX];
    double now_s[TIMES], copy_s[TIMES], write_s[TIMES], memcpy_s[TIMES];
};

static enum neb_status fill(const struct bench *b, struct intra_ckpt_writer *w) {
    char name[16];
    for (int i = 0; i < ARRAYS; i++) {
        snprintf(name, sizeof name, "state.%d", i);
        NEB_TRY(intra_ckpt_add(w, name, INTRA_F32, b->params, 1, b->state + (size_t)i * b->params));
    }
    return NEB_OK;
}

static enum neb_status write_now(struct bench *b, int64_t step, double *seconds) {
    struct intra_ckpt_writer *w = NULL;
    char path[NEB_PATH_MAX];
    neb_ns start = neb_now();
    NEB_TRY(intra_ckpt_step_path(b->dir, step, path, sizeof path));
    NEB_TRY(intra_ckpt_create(path, &w));
    enum neb_status st = fill(b, w);
    if (st == NEB_OK)
        st = intra_ckpt_commit(w);
    intra_ckpt_writer_destroy(&w);
    NEB_TRY(st);
    NEB_TRY(intra_ckpt_prune(NULL, b->dir, 2));
    *seconds = neb_seconds(neb_now() - start);
    return NEB_OK;
}

static enum neb_status write_aside(struct bench *b, int64_t step, double *copy_s, double *write_s) {
    struct intra_ckpt_writer *w = NULL;
    struct intra_ckpt_async_result r;
    char path[NEB_PATH_MAX];
    NEB_TRY(intra_ckpt_step_path(b->dir, step, path, sizeof path));
    NEB_TRY(intra_ckpt_async_begin(b->a, &w));
    enum neb_status st = fill(b, w);
    if (st == NEB_OK)
        st = intra_ckpt_async_submit(b->a, &w, b->dir, path, 2);
    intra_ckpt_writer_destroy(&w);
    NEB_TRY(st);
    intra_ckpt_async_wait(b->a);
    NEB_TRY(intra_ckpt_async_result(b->a, &r));
    *copy_s = r.copy_s;
    *write_s = r.write_s;
    return NEB_OK;
}

static enum neb_status set_up(struct bench *b, int threads, const char *dir) {
    const size_t bytes = ARRAYS * b->params * sizeof(float);
    NEB_TRY(bench_folder(dir, b->dir));
    NEB_TRY(kern_pool_create(threads, &b->pool));
    if (b->params > SIZE_MAX / (ARRAYS * sizeof(float)) || !(b->state = malloc(bytes)) ||
        intra_ckpt_async_create(NULL, b->pool, bytes + 4096, 0, &b->a) != NEB_OK)
        return neb_fail(NEB_ERR_NOMEM,
                        "bench checkpoint: out of memory for %zu parameters (56 bytes each)",
                        b->params);
    for (size_t i = 0; i < ARRAYS * b->params; i++)
        b->state[i] = (float)i;
    return NEB_OK;
}

static enum neb_status measure(struct bench *b) {
    const size_t bytes = ARRAYS * b->params * sizeof(float);
    uint8_t *to = malloc(bytes);
    if (!to)
        return neb_fail(NEB_ERR_NOMEM, "bench checkpoint: out of memory for %zu bytes", bytes);
    memset(to, 1, bytes);
    enum neb_status st = NEB_OK;
    // in turn, so that a busy machine slows all of them
    for (int i = 0; i < TIMES && st == NEB_OK; i++) {
        st = write_now(b, 2 * i, &b->now_s[i]);
        if (st == NEB_OK)
            st = write_aside(b, 2 * i + 1, &b->copy_s[i], &b->write_s[i]);
        neb_ns start = neb_now();
        memcpy(to, b->state, bytes);
        // the compiler must not drop a copy that nobody reads
        __asm__ volatile("" : : "r"(to) : "memory");
        b->memcpy_s[i] = neb_seconds(neb_now() - start);
    }
    free(to);
    return st;
}

enum neb_status bench_checkpoint(bool json, size_t params, int threads, const char *dir) {
    struct bench b = {.params = params ? params : BENCH_CHECKPOINT_PARAMS};
    enum neb_status st = set_up(&b, threads, dir);
    if (st == NEB_OK)
        st = measure(&b);
    if (st == NEB_OK) {
        double mb = 28e-6 * (double)b.params;
        struct bench_field size = {"mb", mb};
        double now = 1e3 * bench_median(b.now_s, TIMES), copy = 1e3 * bench_median(b.copy_s, TIMES),
               one = 1e3 * bench_median(b.memcpy_s, TIMES);
        bench_line_with(json, "checkpoint", "stall, training waits for the disk", now, "ms", 0, "",
                        &size, 1);
        bench_line_with(json, "checkpoint", "stall, copied aside", copy, "ms", one, "memcpy t1",
                        &size, 1);
        bench_line_with(json, "checkpoint", "copied aside, until durable",
                        1e3 * bench_median(b.write_s, TIMES), "ms", 0, "", &size, 1);
    }
    intra_ckpt_async_destroy(&b.a);
    kern_pool_destroy(&b.pool);
    free(b.state);
    bench_folder_remove(b.dir);
    return st;
}
