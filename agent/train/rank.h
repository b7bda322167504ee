// SPDX-License-Identifier: Apache-2.0
// A process that its launcher has started as a rank (agent/proc/launch.h): the worker, as rank 0, or one that follows it.
#ifndef AGENT_RANK_H
#define AGENT_RANK_H
#include "agent/base/status.h"

// `nebula worker SOCKET JOB --rank THREADS [LOG_DIR]`: a rank. What it says goes to LOG_DIR/rank-N.log from when it knows its
// number; without LOG_DIR (NULL), or on a machine that has no such folder, to its launcher. Returns when the job is done.
NEB_MUST_CHECK enum neb_status agent_rank_run(const char *socket_path, const char *job, int threads,
                                              const char *log_dir);

#endif
