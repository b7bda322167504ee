// SPDX-License-Identifier: Apache-2.0
// Compares ranks over MPI and over TCP in the same processes, in turn: all-reduces, and steps of
// replicas. Run it by hand:
//
//     mpirun -n N comm_bench [REPEATS]
#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "agent/bench/train.h"
#include "intra/model/mesh.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

enum { MPI, SOCKET, BOTH, REPEATS = 30, FLOATS = 16 << 20 };

static struct intra_comm *comm[BOTH];

static enum neb_status open_both(void) {
    struct {
        uint8_t token[32];
        int32_t port;
    } meet = {0};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = -1;
    NEB_TRY(intra_comm_mpi(&comm[MPI]));
    if (comm[MPI]->rank == 0) {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 64) != 0 ||
            getsockname(fd, (struct sockaddr *)&a, &len) != 0 ||
            getrandom(meet.token, sizeof meet.token, 0) != sizeof meet.token)
            return neb_fail_errno("no place to meet");
        meet.port = ntohs(a.sin_port);
    }
    NEB_TRY(comm[MPI]->ops->broadcast(comm[MPI], &meet, sizeof meet, 0));
    const struct intra_comm_socket_config c = {.rank = comm[MPI]->rank,
                                               .size = comm[MPI]->size,
                                               .host = "127.0.0.1",
                                               .port = meet.port,
                                               .one_host = true,
                                               .listener = fd,
                                               .token = meet.token};
    return intra_comm_socket(&c, &comm[SOCKET]);
}

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

static enum neb_status all_reduces(float *x, size_t n, int repeats) {
    double *s[BOTH], best[BOTH];
    for (int w = 0; w < BOTH; w++)
        s[w] = calloc((size_t)repeats, sizeof *s[w]);
    for (int i = -2; i < repeats; i++)
        for (int turn = 0; turn < BOTH; turn++) {
            int w = (turn + i + 2) % BOTH;
            NEB_TRY(comm[w]->ops->barrier(comm[w]));
            neb_ns from = neb_now();
            NEB_TRY(comm[w]->ops->all_reduce(comm[w], x, n, INTRA_COMM_F32, INTRA_COMM_SUM));
            if (i >= 0)
                s[w][i] = neb_seconds(neb_now() - from);
        }
    for (int w = 0; w < BOTH; w++) {
        double m = median(s[w], repeats);
        best[w] = s[w][0];
        if (comm[w]->rank == 0)
            printf("all-reduce %zu bytes, %d ranks, %s: median %.6f s, %.3f GB/s; best %.6f s, "
                   "%.3f GB/s\n",
                   4 * n, comm[w]->size, comm[w]->ops->name, m, 4e-9 * (double)n / m, best[w],
                   4e-9 * (double)n / best[w]);
        free(s[w]);
    }
    fflush(stdout);
    return NEB_OK;
}

static enum neb_status steps(struct kern *K, int repeats) {
    struct bench_train_shape shape;
    struct intra_mesh *mesh[BOTH];
    struct intra_trainer *t[BOTH];
    double *s[BOTH];
    struct neb_rng r = neb_rng_make(1, (uint64_t)comm[MPI]->rank);
    NEB_TRY(bench_train_shape_parse("small", &shape));
    struct intra_trainer_config c = bench_train_config(&shape);
    size_t n = (size_t)c.batch * (size_t)c.seq_len;
    int32_t *tokens = calloc(n, sizeof *tokens);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)neb_rng_below(&r, (uint64_t)c.model.vocab);
    for (int w = 0; w < BOTH; w++) {
        const struct intra_mesh_config dp = {comm[w]->size, 1, 1};
        NEB_TRY(intra_mesh_create(&dp, comm[w], &mesh[w]));
        c.mesh = mesh[w];
        NEB_TRY(intra_trainer_create(&c, K, &t[w]));
        s[w] = calloc((size_t)repeats, sizeof *s[w]);
    }
    for (int i = -2; i < repeats; i++)
        for (int turn = 0; turn < BOTH; turn++) {
            struct intra_step_stats stats;
            int w = (turn + i + 2) % BOTH;
            NEB_TRY(comm[w]->ops->barrier(comm[w]));
            neb_ns from = neb_now();
            intra_trainer_micro(t[w], tokens, tokens);
            intra_trainer_update(t[w], &stats);
            NEB_TRY(stats.status);
            if (i >= 0)
                s[w][i] = neb_seconds(neb_now() - from);
        }
    for (int w = 0; w < BOTH; w++) {
        double m = median(s[w], repeats);
        if (comm[w]->rank == 0)
            printf("step of dp %d, %zu parameters, %s: median %.3f ms, best %.3f ms\n",
                   comm[w]->size, t[w]->whole->n_params, comm[w]->ops->name, 1e3 * m,
                   1e3 * s[w][0]);
        intra_trainer_destroy(&t[w]);
        intra_mesh_destroy(&mesh[w]);
        free(s[w]);
    }
    free(tokens);
    return NEB_OK;
}

int main(int argc, char **argv) {
    int repeats = argc > 1 ? (int)strtol(argv[1], NULL, 10) : REPEATS;
    struct kern *K = NULL;
    float *x = calloc(FLOATS, sizeof *x);
    if (!x || repeats < 1)
        return 2;
    enum neb_status st = kern_cpu_create(1, &K);
    if (st == NEB_OK)
        st = open_both();
    if (st == NEB_OK)
        st = all_reduces(x, 1, 10 * repeats);
    if (st == NEB_OK)
        st = all_reduces(x, 1 << 18, 4 * repeats);
    if (st == NEB_OK)
        st = all_reduces(x, FLOATS, repeats);
    if (st == NEB_OK)
        st = steps(K, repeats);
    if (st != NEB_OK && comm[MPI])
        comm[MPI]->ops->abort(comm[MPI]);
    intra_comm_destroy(&comm[SOCKET]);
    intra_comm_destroy(&comm[MPI]);
    kern_destroy(&K);
    free(x);
    return st == NEB_OK ? 0 : 1;
}
