// SPDX-License-Identifier: Apache-2.0
// Reads the variables of torchrun, Open MPI and Slurm.
#include "intra/ranks/rank_env.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct convention {
    const char *rank, *size, *local_rank, *local_size; // local_size may be NULL
    bool slurm;
};

static const struct convention conventions[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", false},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, true},
};

static const char *look_up(char *const *env, const char *name) {
    size_t n = strlen(name);
    for (; *env; env++)
        if (!strncmp(*env, name, n) && (*env)[n] == '=')
            return *env + n + 1;
    return NULL;
}

static enum neb_status number(char *const *env, const char *name, const char *with, long min,
                              long max, int *out) {
    const char *text = look_up(env, name);
    char *end = NULL;
    if (!text)
        return neb_fail(NEB_ERR_INVALID, "%s is set, but %s is not: a rank needs both", with, name);
    long n = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || n < min || n > max)
        return neb_fail(NEB_ERR_INVALID, "%s is \"%s\", not a number in %ld..%ld", name, text, min,
                        max);
    *out = (int)n;
    return NEB_OK;
}

enum neb_status intra_rank_first_host(const char *list, char *out, size_t cap) {
    size_t n = 0;
    const char *at = list;
    while (*at && *at != ',') {
        size_t take = 1;
        if (*at == '[') { // takes the first number in the brackets
            const char *close = strchr(at, ']');
            take = close ? strcspn(at + 1, "-,]") : 0;
            if (!take || n + take >= cap)
                break;
            memcpy(out + n, at + 1, take);
            at = close + 1;
        } else {
            if (*at == ']' || n + 1 >= cap)
                break;
            out[n] = *at++;
        }
        n += take;
    }
    if (n == 0 || (*at && *at != ','))
        return neb_fail(NEB_ERR_INVALID, "\"%s\" is not a list of hosts in Slurm's notation", list);
    out[n] = 0;
    return NEB_OK;
}

static enum neb_status find_host(char *const *env, const struct convention *c,
                                 struct intra_rank_env *e) {
    const char *host = look_up(env, "MASTER_ADDR"), *nodes = NULL;
    if (!host && c->slurm && !(nodes = look_up(env, "SLURM_STEP_NODELIST")))
        nodes = look_up(env, "SLURM_JOB_NODELIST");
    if (nodes)
        return intra_rank_first_host(nodes, e->host, sizeof e->host);
    if (!host && e->local_size == e->size)
        host = "127.0.0.1";
    if (!host)
        return neb_fail(NEB_ERR_INVALID,
                        "%s is set, but MASTER_ADDR is not; set it to the host of rank 0", c->rank);
    if (!*host || strlen(host) >= sizeof e->host)
        return neb_fail(NEB_ERR_INVALID, "MASTER_ADDR is \"%.80s\", which is not a host name",
                        host);
    memcpy(e->host, host, strlen(host) + 1);
    return NEB_OK;
}

enum neb_status intra_rank_env_parse(char *const *env, struct intra_rank_env *out) {
    const struct convention *c = NULL;
    struct intra_rank_env e = {.port = INTRA_MASTER_PORT};
    for (size_t i = 0; !c && i < sizeof conventions / sizeof conventions[0]; i++)
        if (look_up(env, conventions[i].rank))
            c = &conventions[i];
    if (!c)
        return neb_fail(NEB_ERR_NOT_FOUND, "none of RANK, OMPI_COMM_WORLD_RANK and SLURM_PROCID is "
                                           "set: no launcher started this process as a rank");
    NEB_TRY(number(env, c->size, c->rank, 1, INTRA_RANKS_MAX, &e.size));
    NEB_TRY(number(env, c->rank, c->size, 0, e.size - 1, &e.rank));
    // If neither is set, all ranks are on one host.
    if (!look_up(env, c->local_rank) && !(c->local_size && look_up(env, c->local_size))) {
        e.local_rank = e.rank;
        e.local_size = e.size;
    } else {
        if (c->local_size)
            NEB_TRY(number(env, c->local_size, c->local_rank, 1, e.size, &e.local_size));
        NEB_TRY(number(env, c->local_rank, c->local_size ? c->local_size : c->rank, 0,
                       (e.local_size ? e.local_size : e.size) - 1, &e.local_rank));
    }
    if (look_up(env, "MASTER_PORT"))
        NEB_TRY(number(env, "MASTER_PORT", c->rank, 1, 65535, &e.port));
    NEB_TRY(find_host(env, c, &e));
    *out = e;
    return NEB_OK;
}

int intra_rank_env_local(char *const *env) {
    int n = 1;
    for (size_t i = 0; i < sizeof conventions / sizeof conventions[0]; i++) {
        const struct convention *c = &conventions[i];
        if (!look_up(env, c->rank))
            continue;
        if (c->local_size && look_up(env, c->local_size) &&
            number(env, c->local_size, c->rank, 1, INTRA_RANKS_MAX, &n) != NEB_OK)
            return 1;
        return n;
    }
    return n;
}
