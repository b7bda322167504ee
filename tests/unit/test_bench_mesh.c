// SPDX-License-Identifier: Apache-2.0
// Counts what the parallel machinery does in a step of one rank. A step through it makes a few
// calls over a few bytes, allocates no more than a step without it, and gives the same bits.
// Times are measured by `nebula bench train --mesh`, not here.
#include "agent/base/rng.h"
#include "agent/bench/mesh.h"
#include "intra/train/group.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// ---- allocations: counted in the C library; not under a sanitizer, which has its own allocator
#ifdef TESTING_SANITIZED
enum { COUNTED = 0 };
#else
enum { COUNTED = 1 };
#endif

static _Atomic long allocations;

#if !defined(TESTING_SANITIZED) && defined(__GLIBC__)
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *malloc(size_t n) {
    allocations++;
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
    allocations++;
    return __libc_calloc(n, size);
}
#endif

// ---- collectives: `self`, counted

struct counter {
    struct intra_comm *inner;
    int calls;
    size_t bytes;
};

static void count(struct intra_comm *c, size_t bytes) {
    struct counter *n = c->ctx;
    n->calls++;
    n->bytes += bytes;
}
static enum neb_status all_reduce(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op) {
    struct intra_comm *inner = ((struct counter *)c->ctx)->inner;
    count(c, n * intra_comm_type_bytes(t));
    return inner->ops->all_reduce(inner, x, n, t, op);
}
static enum neb_status in_place(struct intra_comm *c, float *x, size_t n) {
    (void)x;
    count(c, n * sizeof *x);
    return NEB_OK;
}
static enum neb_status broadcast(struct intra_comm *c, void *x, size_t bytes, int root) {
    (void)x;
    assert_int_equal(root, 0);
    count(c, bytes);
    return NEB_OK;
}
static enum neb_status barrier(struct intra_comm *c) {
    count(c, 0);
    return NEB_OK;
}

enum { STEPS = 5, BATCH = 4, SEQ = 16, VOCAB = 40 };

static struct bench_train_shape shape(void) {
    return (struct bench_train_shape){
        .n_layers = 3, .d_model = 64, .seq_len = SEQ, .batch = BATCH, .vocab = VOCAB};
}

static void one_step(struct intra_group *t, uint64_t i, struct intra_step_stats *s) {
    struct neb_rng r = neb_rng_make(1, i);
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    for (int k = 0; k < BATCH * SEQ; k++) {
        tokens[k] = (int32_t)neb_rng_below(&r, VOCAB);
        targets[k] = (int32_t)neb_rng_below(&r, VOCAB);
    }
    intra_group_micro(t, tokens, targets);
    assert_int_equal(intra_group_update(t, s), NEB_OK);
}

static void test_work_is_counted(void **state) {
    (void)state;
    struct counter n = {0};
    const struct intra_comm_ops ops = {.name = "counted",
                                       .all_reduce = all_reduce,
                                       .reduce_scatter = in_place,
                                       .all_gather = in_place,
                                       .broadcast = broadcast,
                                       .barrier = barrier};
    struct intra_comm world = {.ops = &ops, .ctx = &n, .size = 1};
    struct kern *K = NULL;
    struct intra_group *bare = NULL, *mesh = NULL;
    struct bench_train_shape sh = shape();
    struct intra_trainer_config c = bench_train_config(&sh);
    const struct intra_mesh_config one = {1, 1, 1};
    assert_int_equal(kern_cpu_create(1, &K), NEB_OK);
    assert_int_equal(intra_comm_self(&n.inner), NEB_OK);
    assert_int_equal(intra_group_create(&c, &one, NULL, K, &bare), NEB_OK);
    assert_int_equal(intra_group_create(&c, &one, &world, K, &mesh), NEB_OK);
    for (uint64_t i = 0; i < STEPS; i++) {
        struct intra_step_stats a, b;
        long start = allocations;
        one_step(bare, i, &a);
        long without = allocations - start;
        n.calls = 0;
        n.bytes = 0;
        start = allocations;
        one_step(mesh, i, &b);
        long with = allocations - start;
        assert_true(a.loss == b.loss && a.update.grad_norm == b.update.grad_norm);
        // One broadcast of the step, and the number of targets. Then one call for the squares of
        // each tensor, the loss, and the number again, which only accelerators use.
        assert_int_equal(n.calls, 3);
        size_t tensors = (size_t)intra_group_model(mesh)->n_all_tensors,
               known = 2 * sizeof(int32_t) * BATCH * SEQ + (1 + tensors + 2) * sizeof(double);
        assert_in_range(n.bytes, known, known + 64); // and a head of the micro-batch
        if (i > 0)                                   // scratch memory grows in the first step
            assert_true(with <= without);
    }
    const struct intra_model *x = intra_group_trainer(bare)->model,
                             *y = intra_group_trainer(mesh)->model;
    assert_memory_equal(x->params, y->params, x->n_params * sizeof *x->params);
    assert_true(!COUNTED || allocations > 10); // the counter works
    intra_group_destroy(&mesh);
    intra_group_destroy(&bare);
    intra_comm_destroy(&n.inner);
    kern_destroy(&K);
}

static void test_measurement(void **state) {
    (void)state;
    struct bench_mesh_result r = {0};
    struct bench_train_shape sh = shape();
    assert_int_equal(bench_mesh_measure(1, &sh, 9, &r), NEB_OK);
    assert_true(isfinite(r.overhead) && r.overhead > -1 && r.step_s > 0);
    assert_true(r.low <= r.overhead && r.overhead <= r.high);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_work_is_counted),
                                       cmocka_unit_test(test_measurement)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
