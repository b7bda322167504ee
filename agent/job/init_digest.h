// SPDX-License-Identifier: Apache-2.0
// Whether all sites begin with the same parameters. Where adapters are trained, nothing else would tell: what is exchanged is of them alone.
#ifndef AGENT_INIT_DIGEST_H
#define AGENT_INIT_DIGEST_H
#include "agent/job/config.h"
#include "intra/ckpt/checkpoint.h"

// Whether a file is a checkpoint, and not sealed.
bool agent_init_is_clear(const char *path);
// Fills in init_sha256 of a job with init_from, a file; not of one that is sealed, whose key is the agent's.
NEB_MUST_CHECK enum neb_status agent_job_init_digest(struct agent_job *job);
// At a cluster, which has opened its init_from. NEB_ERR_INVALID: it is not what the job begins with.
NEB_MUST_CHECK enum neb_status agent_job_init_same(const struct agent_job *job, int cluster,
                                                   const struct intra_ckpt *init);

#endif
