// SPDX-License-Identifier: Apache-2.0
// A process that a launcher has started as a rank (agent/proc/launch.h): the worker, as rank 0, or
// a rank that follows it.
#ifndef AGENT_RANK_H
#define AGENT_RANK_H
#include "agent/base/status.h"

// Runs a rank: `nebula worker SOCKET JOB --rank THREADS [LOG_DIR]`. Its output goes to
// LOG_DIR/rank-N.log once it knows its number. Without LOG_DIR (NULL), or on a machine without that
// folder, it goes to the launcher. Returns when the job is done.
NEB_MUST_CHECK enum neb_status agent_rank_run(const char *socket_path, const char *job, int threads,
                                              const char *log_dir);

#endif
