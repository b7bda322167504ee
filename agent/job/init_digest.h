// SPDX-License-Identifier: Apache-2.0
// Checks that all sites start from the same parameters. When only adapters train, nothing else
// would show a difference, since only adapters are exchanged.
#ifndef AGENT_INIT_DIGEST_H
#define AGENT_INIT_DIGEST_H
#include "agent/job/config.h"
#include "intra/ckpt/checkpoint.h"

// True if the file is a checkpoint that is not sealed.
bool agent_init_is_clear(const char *path);
// Sets init_sha256 from init_from, which is a file. Does nothing for a sealed file: only the agent
// has its key.
NEB_MUST_CHECK enum neb_status agent_job_init_digest(struct agent_job *job);
// Checks the opened init_from of a cluster. NEB_ERR_INVALID: it does not have the parameters that
// the job starts from.
NEB_MUST_CHECK enum neb_status agent_job_init_same(const struct agent_job *job, int cluster,
                                                   const struct intra_ckpt *init);

#endif
