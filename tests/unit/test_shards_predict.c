// SPDX-License-Identifier: Apache-2.0
// What `nebula plan` says of the memory of an attached loop's ranks: for an 8B-shaped model at 1/50
// scale on 8 ranks, the prediction from the shapes is what the exchange really allocates. The ranks
// are simulated one after the other: their messages are answered here.
#include "agent/exchange/manifest.h"
#include "agent/exchange/shards.h"
#include "agent/exchange/shards_plan.h"
#include "tests/testing.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 32, D = 580, FF = 2028, KV = 145, VOCAB = 18000, RANKS = 8, THREADS = 2 };
enum { TENSORS = 3 + 9 * LAYERS };

static size_t allocated(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

// ---- a group of ranks, of which one is here -----------------------------------------------------

static struct neb_buf told; // what rank 0 has broadcast: the others hear the same
static size_t heard;

static enum neb_status all_reduce(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op) {
    (void)c, (void)x, (void)n, (void)t, (void)op;
    return NEB_OK;
}
static enum neb_status broadcast(struct intra_comm *c, void *x, size_t bytes, int root) {
    (void)root;
    if (c->rank == 0) {
        neb_buf_add(&told, x, bytes);
        return neb_buf_check(&told);
    }
    assert_true(heard + bytes <= told.len);
    memcpy(x, told.p + heard, bytes);
    heard += bytes;
    return NEB_OK;
}
static enum neb_status read_nothing(void *user, const struct agent_move *moves, int32_t n) {
    (void)user, (void)moves, (void)n;
    return NEB_OK;
}
static enum neb_status call(void *user, int32_t n) {
    (void)user, (void)n;
    return NEB_OK;
}

// ---- the model ----------------------------------------------------------------------------------

static char names[TENSORS][64];
static struct exchange_tensor list[TENSORS];

static void add(int *n, const char *name, int layer, int64_t rows, int64_t cols) {
    snprintf(names[*n], sizeof names[*n], "model.layers.%d.%s", layer, name);
    list[*n] =
        (struct exchange_tensor){.name = names[*n], .dims = cols ? 2 : 1, .shape = {rows, cols}};
    ++*n;
}

static void make_model(struct exchange_manifest **m, struct agent_unit **units, int32_t *n_units) {
    int n = 0;
    add(&n, "embed", 99, VOCAB, D);
    add(&n, "output", 99, VOCAB, D);
    add(&n, "norm", 99, D, 0);
    for (int l = 0; l < LAYERS; l++) {
        add(&n, "q", l, D, D);
        add(&n, "k", l, KV, D);
        add(&n, "v", l, KV, D);
        add(&n, "o", l, D, D);
        add(&n, "gate", l, FF, D);
        add(&n, "up", l, FF, D);
        add(&n, "down", l, D, FF);
        add(&n, "norm1", l, D, 0);
        add(&n, "norm2", l, D, 0);
    }
    assert_int_equal(n, TENSORS);
    assert_int_equal(exchange_manifest_create(list, n, m), NEB_OK);
    assert_int_equal(exchange_manifest_units(*m, 0, units, n_units), NEB_OK);
}

// Each rank holds an eighth of every unit, as with FSDP.
static uint64_t held(void *user, int32_t unit, int rank) {
    (void)rank;
    return agent_unit_size(&((const struct agent_unit *)user)[unit]) / RANKS;
}

// Bytes that rank r allocates; *said: what it says itself.
static size_t take(const struct agent_unit *units, int32_t n, const int32_t *fragment,
                   int32_t fragments, struct kern_pool *pool, int r, uint64_t *said) {
    static const struct intra_comm_ops comm_ops = {.all_reduce = all_reduce,
                                                   .broadcast = broadcast};
    static const struct agent_trainer_ops ops = {.read = read_nothing, .call = call};
    struct intra_comm world = {&comm_ops, NULL, r, RANKS};
    const struct agent_trainer t = {.ops = &ops,
                                    .user = (void *)(uintptr_t)units,
                                    .units = units,
                                    .n_units = n,
                                    .held = held,
                                    .pool = pool,
                                    .world = &world};
    const struct inter_outer_config c = {.beta = 1, .fragments = fragments};
    struct agent_shards *o = NULL;
    if (r == 0)
        neb_buf_clear(&told);
    heard = 0;
    size_t before = allocated();
    if (r == 0)
        assert_int_equal(agent_shards_create(&t, &c, fragment, false, &o), NEB_OK);
    else
        assert_int_equal(agent_shards_follow(&t, 0, &o), NEB_OK); // 0: SHARDS_CREATE
    size_t bytes = allocated() - before;
    *said = agent_shards_bytes(o);
    agent_shards_destroy(&o);
    return bytes;
}

static void test_predict(void **state) {
    (void)state;
    struct exchange_manifest *m;
    struct agent_unit *units;
    struct kern_pool *pool;
    int32_t n;
    mallopt(M_MMAP_THRESHOLD, 1 << 16);
    make_model(&m, &units, &n);
    assert_int_equal(kern_pool_create(THREADS, &pool), NEB_OK);
    assert_int_equal(neb_buf_reserve(&told, 1 << 16), NEB_OK);
    int32_t *fragment = calloc((size_t)n, sizeof *fragment);
    assert_non_null(fragment);
    for (int32_t fragments = 1; fragments <= 4; fragments += 3) {
        uint64_t predicted, all = 0, most = 0, said;
        for (int32_t i = 0; i < n; i++) {
            fragment[i] = units[i].group * fragments / TENSORS;
            all += agent_unit_size(&units[i]);
        }
        assert_int_equal(
            agent_shards_predict(units, n, fragment, fragments, RANKS, THREADS, &predicted),
            NEB_OK);
        for (int r = 0; r < RANKS; r++) {
            size_t bytes = take(units, n, fragment, fragments, pool, r, &said);
            most = bytes > most ? bytes : most;
            assert_true(said > bytes - bytes / 30 && said < bytes + bytes / 30);
        }
        printf("%d fragments, %.1f M parameters on %d ranks: predicted %.2f MB, allocated %.2f\n",
               fragments, (double)all * 1e-6, RANKS, (double)predicted * 1e-6, (double)most * 1e-6);
        assert_true((double)predicted > 0.97 * (double)most);
        assert_true((double)predicted < 1.03 * (double)most);
        assert_true((double)predicted < 5.0 * 4 * 1.06 * (double)all / RANKS); // floats, bytes
    }
    free(fragment);
    free(units);
    neb_buf_free(&told);
    exchange_manifest_destroy(&m);
    kern_pool_destroy(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_predict)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
