// SPDX-License-Identifier: Apache-2.0
// A process's rank, the number of ranks, and where rank 0 listens, from the variables of a
// launcher. The first of three launchers counts whose rank variable is set:
//
//                         torchrun           Open MPI's mpirun            Slurm's srun
//     rank                RANK               OMPI_COMM_WORLD_RANK         SLURM_PROCID
//     ranks               WORLD_SIZE         OMPI_COMM_WORLD_SIZE         SLURM_NTASKS
//     rank on its host    LOCAL_RANK         OMPI_COMM_WORLD_LOCAL_RANK   SLURM_LOCALID
//     ranks on its host   LOCAL_WORLD_SIZE   OMPI_COMM_WORLD_LOCAL_SIZE
//     rank 0's host       MASTER_ADDR        MASTER_ADDR                  MASTER_ADDR (*)
//     its port            MASTER_PORT, for all three; 29500 if it is not set
//
//     (*) or the first host of SLURM_STEP_NODELIST or SLURM_JOB_NODELIST
//
// If all ranks are on one host and MASTER_ADDR is not set, rank 0 is at 127.0.0.1.
#ifndef INTRA_RANK_ENV_H
#define INTRA_RANK_ENV_H
#include "agent/base/status.h"

#include <stddef.h>

enum { INTRA_RANKS_MAX = 65536, INTRA_MASTER_PORT = 29500, INTRA_HOST_MAX = 256 };

struct intra_rank_env {
    int rank, size;
    int local_rank, local_size; // local_size 0: unknown
    char host[INTRA_HOST_MAX];  // name or address of rank 0's host
    int port;
};

// env: "NAME=value" strings, ended by NULL, as environ(7). NEB_ERR_NOT_FOUND: no launcher's rank is
// set; NEB_ERR_INVALID: another variable of that launcher is missing or not a valid number. Both
// log the name of the variable.
NEB_MUST_CHECK enum neb_status intra_rank_env_parse(char *const *env, struct intra_rank_env *out);

// How many ranks share this process's host without their own processors; 1 if the launcher does not
// tell.
int intra_rank_env_local(char *const *env);

// The first host of a list in Slurm's notation: "gpu[03-07,12],login" gives gpu03. NEB_ERR_INVALID
// (logged): not that notation.
NEB_MUST_CHECK enum neb_status intra_rank_first_host(const char *list, char *out, size_t cap);

#endif
