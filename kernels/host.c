// SPDX-License-Identifier: Apache-2.0
#include "kernels/host.h"
#include "agent/base/memory.h"
#include "kernels/exact.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COPY_BLOCK = 1 << 16 }; // bytes of one task

enum neb_status kern_host_alloc(struct kern *K, size_t bytes, void **out) {
    (void)K;
    *out = neb_large_alloc(bytes);
    return *out ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for %zu bytes", bytes);
}
void kern_host_release(struct kern *K, void *p) {
    (void)K;
    free(p);
}
size_t kern_host_free_bytes(struct kern *K) {
    (void)K;
    return 0; // unknown
}

struct copy {
    char *to;
    const char *from; // NULL: zeros
    size_t bytes;
};
static void copy_task(void *arg, size_t i) {
    const struct copy *c = arg;
    size_t at = i * COPY_BLOCK, n = c->bytes - at < COPY_BLOCK ? c->bytes - at : COPY_BLOCK;
    if (c->from)
        memcpy(c->to + at, c->from + at, n);
    else
        memset(c->to + at, 0, n);
}
static void run(struct kern *K, struct copy c) {
    kern_pool_run(K->pool, (c.bytes + COPY_BLOCK - 1) / COPY_BLOCK, copy_task, &c);
}
void kern_host_copy(struct kern *K, void *dst, const void *src, size_t bytes) {
    run(K, (struct copy){dst, src, bytes});
}
void kern_host_zero(struct kern *K, void *p, size_t bytes) {
    run(K, (struct copy){p, NULL, bytes});
}

void kern_host_mark(struct kern *K, int slot) { (void)K, (void)slot; }
double kern_host_elapsed_ms(struct kern *K, int from, int to) {
    (void)K, (void)from, (void)to;
    return 0;
}
enum neb_status kern_host_finish(struct kern *K) {
    (void)K;
    return NEB_OK;
}
void *kern_host_queue(struct kern *K) {
    (void)K;
    return NULL;
}
void kern_host_record(struct kern *K) { (void)K; }
enum neb_status kern_host_record_end(struct kern *K, struct kern_graph **out,
                                     char why[KERN_WHY_MAX]) {
    (void)K;
    *out = NULL;
    snprintf(why, KERN_WHY_MAX, "processors run each op at once");
    return NEB_ERR_UNSUPPORTED;
}
void kern_host_replay(struct kern *K, const struct kern_graph *g) { (void)K, (void)g; }
void kern_host_forget(struct kern *K, struct kern_graph **g) { (void)K, (void)g; }

void kern_host_init(struct kern *K, const struct kern_ops *ops) {
    K->ops = ops;
    K->count = 1;
    K->norm_most = INT_MAX;
    snprintf(K->name, sizeof K->name, "the processors");
}

void kern_destroy(struct kern **K) {
    if (*K)
        (*K)->ops->destroy(*K);
    *K = NULL;
}

// ---- the exact path alone -----------------------------------------------------------------------

static void add_rows(struct kern *K, float *acc, const float *x, const float *w, size_t rows,
                     size_t cols) {
    (void)K;
    kern_exact_add_rows(acc, x, w, rows, cols);
}
static void add_scaled(struct kern *K, float *acc, const float *x, float w, size_t n) {
    (void)K;
    kern_exact_add_scaled(acc, x, w, n);
}
static void outer_step(struct kern *K, float *theta, float *v, const float *delta, float eta,
                       float mu, size_t n) {
    (void)K;
    kern_exact_outer_step(theta, v, delta, eta, mu, n);
}
static void pseudo_gradient(struct kern *K, float *u, const float *theta, const float *theta_m,
                            float beta, size_t n) {
    (void)K;
    kern_exact_pseudo_gradient(u, theta, theta_m, beta, n);
}
static void residual(struct kern *K, float *u, const float *d, size_t n) {
    (void)K;
    kern_exact_residual(u, d, n);
}
static void rebase(struct kern *K, float *theta_m, const float *theta, const float *sent,
                   size_t n) {
    (void)K;
    kern_exact_rebase(theta_m, theta, sent, n);
}
static void digest(struct kern *K, struct kern_digest *sum, const float *theta, const float *v,
                   uint64_t first_index, size_t n) {
    (void)K;
    *sum = kern_digest_add(*sum, kern_digest_part(theta, v, first_index, n));
}

static void destroy(struct kern *K) {
    kern_pool_destroy(&K->pool);
    free(K);
}

static const struct kern_ops exact_ops = {.name = "exact",
                                          .destroy = destroy,
                                          KERN_HOST_MEMORY,
                                          .exact_add_rows = add_rows,
                                          .exact_add_scaled = add_scaled,
                                          .exact_outer_step = outer_step,
                                          .exact_pseudo_gradient = pseudo_gradient,
                                          .exact_residual = residual,
                                          .exact_rebase = rebase,
                                          .exact_digest = digest};

enum neb_status kern_exact_create(struct kern **out) {
    struct kern *K = calloc(1, sizeof *K);
    if (!K)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the exact path");
    kern_host_init(K, &exact_ops);
    enum neb_status st = kern_pool_create(1, &K->pool);
    if (st == NEB_OK)
        *out = K;
    else
        free(K);
    return st;
}
