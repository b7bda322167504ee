// SPDX-License-Identifier: Apache-2.0
// Which of how many ranks a process is and where rank 0 listens, as launchers say it. Of three conventions the first counts whose
// rank is set:
//
//                        torchrun            Open MPI's mpirun            Slurm's srun
//     rank               RANK                OMPI_COMM_WORLD_RANK         SLURM_PROCID
//     ranks              WORLD_SIZE          OMPI_COMM_WORLD_SIZE         SLURM_NTASKS
//     rank on its host   LOCAL_RANK          OMPI_COMM_WORLD_LOCAL_RANK   SLURM_LOCALID
//     ranks on its host  LOCAL_WORLD_SIZE    OMPI_COMM_WORLD_LOCAL_SIZE
//     rank 0's host      MASTER_ADDR         MASTER_ADDR                  MASTER_ADDR, else the first of SLURM_STEP_NODELIST
//                                                                         or SLURM_JOB_NODELIST
//     its port           MASTER_PORT, in all of them; 29500 without
//
// Where all ranks are on one host, rank 0 is at 127.0.0.1 without MASTER_ADDR.
#ifndef INTRA_RANK_ENV_H
#define INTRA_RANK_ENV_H
#include "agent/base/status.h"

#include <stddef.h>

enum { INTRA_RANKS_MAX = 65536, INTRA_MASTER_PORT = 29500, INTRA_HOST_MAX = 256 };

struct intra_rank_env {
    int rank, size;
    int local_rank, local_size; // local_size 0: the launcher does not say
    char host[INTRA_HOST_MAX];  // name or address of rank 0's host
    int port;
};

// env: "NAME=value" strings, NULL at the end, as environ(7). NEB_ERR_NOT_FOUND: no convention's rank is set; NEB_ERR_INVALID: a
// variable that belongs to the one that is set is missing or is no such number. Both are logged with the variable's name.
NEB_MUST_CHECK enum neb_status intra_rank_env_parse(char *const *env, struct intra_rank_env *out);

// How many ranks share this process's host and are not bound to processors of their own; 1 where the launcher does not say.
int intra_rank_env_local(char *const *env);

// The first host of Slurm's notation for many: "gpu[03-07,12],login" is gpu03. NEB_ERR_INVALID, logged: not that notation.
NEB_MUST_CHECK enum neb_status intra_rank_first_host(const char *list, char *out, size_t cap);

#endif
