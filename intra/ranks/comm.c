// SPDX-License-Identifier: Apache-2.0
#include "intra/ranks/comm.h"
#include "agent/base/log.h"

#include <stdlib.h>

enum neb_status intra_comm_make(const struct intra_comm_ops *ops, size_t bytes, int rank, int size,
                                struct intra_comm **out) {
    struct intra_comm *c = calloc(1, sizeof *c);
    void *ctx = calloc(1, bytes);
    if (!c || !ctx) {
        free(c);
        free(ctx);
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a communicator");
    }
    *c = (struct intra_comm){ops, ctx, rank, size};
    *out = c;
    return NEB_OK;
}

void intra_comm_free(struct intra_comm *c) {
    free(c->ctx);
    free(c);
}

#define FOLD(name, type)                                                                           \
    static void fold_##name(type *restrict x, const type *restrict y, size_t n, bool max) {        \
        if (max)                                                                                   \
            for (size_t i = 0; i < n; i++)                                                         \
                x[i] = x[i] < y[i] ? y[i] : x[i];                                                  \
        else                                                                                       \
            for (size_t i = 0; i < n; i++)                                                         \
                x[i] += y[i];                                                                      \
    }
FOLD(f32, float)
FOLD(f64, double)
FOLD(u64, uint64_t)

void intra_comm_fold(void *x, const void *y, size_t n, enum intra_comm_type t,
                     enum intra_comm_op op) {
    bool max = op == INTRA_COMM_MAX;
    switch (t) {
    case INTRA_COMM_F32: fold_f32(x, y, n, max); return;
    case INTRA_COMM_F64: fold_f64(x, y, n, max); return;
    case INTRA_COMM_U64: fold_u64(x, y, n, max); return;
    }
}

struct failure { // of the first rank that fails
    int32_t status;
    char why[1000];
};

enum neb_status intra_comm_agree(struct intra_comm *world, enum neb_status st) {
    uint64_t first = world && st != NEB_OK ? (uint64_t)(world->size - world->rank) : 0;
    if (!world)
        return st;
    NEB_TRY(world->ops->all_reduce(world, &first, 1, INTRA_COMM_U64, INTRA_COMM_MAX));
    if (!first)
        return NEB_OK;
    struct failure x = {.status = (int32_t)st};
    int from = world->size - (int)first;
    neb_last_error(x.why, sizeof x.why);
    NEB_TRY(world->ops->broadcast(world, &x, sizeof x, from));
    enum neb_status first_st = (enum neb_status)x.status;
    return st == NEB_OK ? neb_fail(first_st, "rank %d: %s", from,
                                   x.why[0] ? x.why : neb_status_name(first_st))
                        : first_st;
}
