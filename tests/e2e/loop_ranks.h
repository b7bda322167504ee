// SPDX-License-Identifier: Apache-2.0
// Ranks of a loop for tests: processes with a socket for each pair.
#ifndef TESTS_LOOP_RANKS_H
#define TESTS_LOOP_RANKS_H
#include "agent/lib/libnebula.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOP_RANKS_MAX = 16 };
struct loop_ranks {
    struct nebula_ranks hooks;
    int sockets[LOOP_RANKS_MAX][LOOP_RANKS_MAX]; // [rank][other]
    pid_t others[LOOP_RANKS_MAX];                // rank 0: the processes of the others
};

static inline int loop_send(void *user, const void *data, uint64_t bytes, int to) {
    struct loop_ranks *l = user;
    for (uint64_t at = 0; at < bytes;) {
        ssize_t n =
            send(l->sockets[l->hooks.rank][to], (const char *)data + at, bytes - at, MSG_NOSIGNAL);
        if (n <= 0)
            return 1;
        at += (uint64_t)n;
    }
    return 0;
}

static inline int loop_recv(void *user, void *data, uint64_t bytes, int from) {
    struct loop_ranks *l = user;
    for (uint64_t at = 0; at < bytes;) {
        ssize_t n = recv(l->sockets[l->hooks.rank][from], (char *)data + at, bytes - at, 0);
        if (n <= 0)
            return 1;
        at += (uint64_t)n;
    }
    return 0;
}

// Forks the other ranks, and becomes one of `ranks` ranks.
static inline void loop_start(struct loop_ranks *l, int ranks) {
    int rank = 0;
    for (int a = 0; a < ranks; a++)
        for (int b = 0; b < a; b++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
                exit(2);
            l->sockets[a][b] = pair[0];
            l->sockets[b][a] = pair[1];
        }
    fflush(stdout);
    for (int r = 1; r < ranks && rank == 0; r++)
        if ((l->others[r] = fork()) == 0)
            rank = r;
    for (int a = 0; a < ranks; a++) // so that a rank hears when another one ends
        for (int b = 0; b < ranks && a != rank; b++)
            if (a != b)
                close(l->sockets[a][b]);
    l->hooks = (struct nebula_ranks){sizeof l->hooks, rank, ranks, l, loop_send, loop_recv};
}

// Ends the connections of this rank.
static inline void loop_leave(const struct loop_ranks *l) {
    for (int r = 0; r < l->hooks.ranks; r++)
        if (r != l->hooks.rank)
            close(l->sockets[l->hooks.rank][r]);
}

// Rank 0: `failed`, or the status of another rank that failed.
static inline int loop_end(const struct loop_ranks *l, int failed) {
    for (int r = 1; r < l->hooks.ranks && l->hooks.rank == 0; r++) {
        int status = 1;
        if (waitpid(l->others[r], &status, 0) != l->others[r])
            return 1;
        failed = failed ? failed : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    return failed;
}

#endif
