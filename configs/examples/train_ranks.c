// SPDX-License-Identifier: Apache-2.0
// A training loop in C with several ranks, each of which holds some columns of a matrix, for a job
// with `model: attached`. The ranks are processes with a socket for each pair; MPI_Send and
// MPI_Recv would work too.
//
//     cc train_ranks.c -lnebula -o train_ranks
//     ./train_ranks AGENT_HOME RANKS
#include <nebula/libnebula.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 64, COLS = 96, RANKS_MAX = 8 };
static int rank, ranks, sockets[RANKS_MAX]; // to each other rank

static int send_to(void *user, const void *data, uint64_t bytes, int to) {
    (void)user;
    for (const char *p = data; bytes;) {
        ssize_t n = send(sockets[to], p, bytes, MSG_NOSIGNAL);
        if (n <= 0)
            return 1;
        p += n, bytes -= (uint64_t)n;
    }
    return 0;
}

static int receive_from(void *user, void *data, uint64_t bytes, int from) {
    (void)user;
    for (char *p = data; bytes;) {
        ssize_t n = recv(sockets[from], p, bytes, 0);
        if (n <= 0)
            return 1;
        p += n, bytes -= (uint64_t)n;
    }
    return 0;
}

static void start_ranks(void) {
    int pair[RANKS_MAX][RANKS_MAX] = {{0}};
    for (int a = 0; a < ranks; a++)
        for (int b = 0; b < a; b++) {
            int two[2];
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, two) != 0)
                exit(1);
            pair[a][b] = two[0];
            pair[b][a] = two[1];
        }
    for (int r = 1; r < ranks && rank == 0; r++)
        rank = fork() == 0 ? r : 0;
    for (int a = 0; a < ranks; a++)
        for (int b = 0; b < ranks; b++)
            if (a == rank)
                sockets[b] = pair[a][b];
            else if (a != b) // so that this rank hears when another one ends
                close(pair[a][b]);
}

static void check(int status) {
    if (status == NEBULA_OK)
        return;
    fprintf(stderr, "rank %d: %s\n", rank, nebula_last_error());
    exit(1);
}

int main(int argc, char **argv) {
    ranks = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 0;
    if (ranks < 1 || ranks > RANKS_MAX)
        return fprintf(stderr, "usage: train_ranks AGENT_HOME RANKS (at most %d)\n", RANKS_MAX), 2;
    start_ranks();

    // this rank's columns
    int64_t each = (COLS + ranks - 1) / ranks, first = each * rank;
    int64_t mine = first >= COLS ? 0 : COLS - first < each ? COLS - first : each;
    float *w = calloc((size_t)(ROWS * each), sizeof *w);

    struct nebula_ranks group = {sizeof group, rank, ranks, NULL, send_to, receive_from};
    struct nebula_attach_options o = {
        .size = sizeof o, .api = NEBULA_API, .agent = argv[1], .ranks = &group};
    struct nebula_tensor t = {
        .size = sizeof t, .name = "w", .dims = 2, .shape = {ROWS, COLS}, .trained = 1};
    struct nebula_piece p = {.size = sizeof p,
                             .name = "w",
                             .offset = {0, mine ? first : 0},
                             .extent = {ROWS, mine},
                             .data = w};
    struct nebula_info info = {.size = sizeof info};
    struct nebula *n;
    int state = NEBULA_TRAIN;
    check(w ? NEBULA_OK : NEBULA_ERR_MEMORY);
    check(nebula_attach(&o, &n));
    check(nebula_declare(n, &t));
    check(nebula_register(n, &p));
    check(nebula_begin(n));
    while (state == NEBULA_TRAIN) {
        for (int64_t i = 0; i < ROWS * mine; i++) // the optimiser's step
            w[i] += 0.1f * (1 - w[i]);
        check(nebula_step(n, 256, 1.0, &state));
    }
    check(nebula_info_get(n, &info));
    if (rank == 0)
        printf("%lld steps, %llu rounds, digest %s\n", (long long)info.step,
               (unsigned long long)info.rounds, info.digest);
    check(nebula_close(&n, (double)NAN));
    free(w);
    int failed = 0, status;
    while (rank == 0 && wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
