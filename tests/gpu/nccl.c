// SPDX-License-Identifier: Apache-2.0
// Several NCCL ranks on one card: NCCL refuses two ranks of one host on a device, so each rank
// claims its own host (NCCL_HOSTID). The ranks are forked before anything touches CUDA; a pipe to
// each rank and one back carry NCCL's identifier, and the permission to begin.
#include "intra/ranks/comm.h"
#include "kernels/device.h"
#include "tests/gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MOST = 8, N = 1 << 20 };

struct boot {
    int rank, size;
    int (*pipes)[2], (*back)[2]; // (size) from rank 0 and to it
};

static enum neb_status boot_broadcast(struct intra_comm *c, void *x, size_t bytes, int root) {
    struct boot *b = c->ctx;
    NEB_ASSERT(root == 0);
    for (int i = 1; b->rank == 0 && i < b->size; i++)
        if (write(b->pipes[i][1], x, bytes) != (ssize_t)bytes)
            return neb_fail_errno("cannot pass the identifier on");
    if (b->rank && read(b->pipes[b->rank][0], x, bytes) != (ssize_t)bytes)
        return neb_fail_errno("the identifier did not come");
    return NEB_OK;
}

// The maximum of one number, as intra_comm_nccl needs it.
static enum neb_status boot_all_reduce(struct intra_comm *c, void *x, size_t n,
                                       enum intra_comm_type t, enum intra_comm_op op) {
    struct boot *b = c->ctx;
    uint64_t worst, one;
    NEB_ASSERT(n == 1 && t == INTRA_COMM_U64 && op == INTRA_COMM_MAX);
    memcpy(&worst, x, sizeof worst);
    if (b->rank && write(b->back[b->rank][1], x, sizeof worst) != (ssize_t)sizeof worst)
        return neb_fail_errno("cannot say whether this rank is ready");
    for (int i = 1; b->rank == 0 && i < b->size; i++) {
        if (read(b->back[i][0], &one, sizeof one) != (ssize_t)sizeof one)
            return neb_fail_errno("rank %d does not say whether it is ready", i);
        worst = one > worst ? one : worst;
    }
    NEB_TRY(boot_broadcast(c, &worst, sizeof worst, 0));
    memcpy(x, &worst, sizeof worst);
    return NEB_OK;
}

// The sum over ranks of x[i] = rank + i % 7, on the device.
static enum neb_status sum_over_ranks(struct intra_comm *c) {
    struct kern *D = NULL;
    float *x = malloc(N * sizeof *x);
    void *on = NULL;
    enum neb_status st = x ? kern_device_open(0, NULL, &D) : NEB_ERR_NOMEM;
    if (st != NEB_OK)
        goto out;
    for (int i = 0; i < N; i++)
        x[i] = (float)(c->rank + i % 7);
    NEB_TRY_GOTO(D->ops->alloc(D, N * sizeof *x, &on), out);
    D->ops->upload(D, on, x, N * sizeof *x);
    NEB_TRY_GOTO(D->ops->finish(D), out);
    NEB_TRY_GOTO(c->ops->all_reduce(c, on, N, INTRA_COMM_F32, INTRA_COMM_SUM), out);
    D->ops->download(D, x, on, N * sizeof *x);
    NEB_TRY_GOTO(D->ops->finish(D), out);
    for (int i = 0; i < N; i++)
        if (x[i] != (float)(c->size * (c->size - 1) / 2 + c->size * (i % 7))) {
            st = neb_fail(NEB_ERR_CORRUPT, "element %d of a sum over %d ranks is %g", i, c->size,
                          (double)x[i]);
            break;
        }
    D->ops->release(D, on);
out:
    kern_destroy(&D);
    free(x);
    return st;
}

static int rank_main(struct boot *b) {
    static const struct intra_comm_ops ops = {
        .name = "pipes", .all_reduce = boot_all_reduce, .broadcast = boot_broadcast};
    struct intra_comm boot = {.ops = &ops, .ctx = b, .rank = b->rank, .size = b->size};
    struct intra_comm *c = NULL;
    char host[32];
    snprintf(host, sizeof host, "nebula-test-%d", b->rank);
    setenv("NCCL_HOSTID", host, 1);
    enum neb_status st = intra_comm_nccl(&boot, 0, 60000, &c);
    if (st == NEB_ERR_UNSUPPORTED)
        return 77;
    if (st == NEB_OK)
        st = sum_over_ranks(c);
    intra_comm_destroy(&c);
    return st != NEB_OK;
}

int gpu_nccl(int ranks) {
    int pipes[RANKS_MOST][2], back[RANKS_MOST][2], worst = 0;
    pid_t child[RANKS_MOST];
    if (ranks < 1 || ranks > RANKS_MOST)
        return 1;
    for (int i = 0; i < ranks; i++)
        if (pipe(pipes[i]) || pipe(back[i]))
            return 1;
    fflush(NULL);
    for (int i = 0; i < ranks; i++) {
        struct boot b = {i, ranks, pipes, back};
        child[i] = fork();
        if (child[i] < 0)
            return 1;
        if (child[i] == 0)
            _exit(rank_main(&b));
    }
    for (int i = 0; i < ranks; i++) {
        int status;
        if (waitpid(child[i], &status, 0) < 0)
            return 1;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        worst = code == 1 || worst == 1 ? 1 : code > worst ? code : worst;
    }
    printf("%d NCCL ranks on one card: %s\n\n", ranks,
           worst == 0    ? "sums agree"
           : worst == 77 ? "not possible here"
                         : "**failed**");
    return worst;
}
