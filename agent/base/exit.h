// SPDX-License-Identifier: Apache-2.0
// The exit statuses that all commands share.
#ifndef NEB_EXIT_H
#define NEB_EXIT_H
#include "agent/base/status.h"

enum agent_exit {
    AGENT_EXIT_OK = 0, // the command did what was asked
    // the command failed, or its output was lost (full disk); it has printed the error
    AGENT_EXIT_FAILED = 1,
    AGENT_EXIT_USAGE = 2, // bad command line or configuration
    // stopped on request after a checkpoint, or detached while the agents continue; --resume
    // continues
    AGENT_EXIT_INTERRUPTED = 3,
    // pretrain, distill: the run is done, but the agents of some clusters could not be reached, so
    // their reports are missing
    AGENT_EXIT_MISSING = 4,
};

static inline int agent_exit_of(enum neb_status st) {
    return st == NEB_OK ? AGENT_EXIT_OK : AGENT_EXIT_FAILED;
}

// For a command whose NEB_ERR_INVALID means that the user typed something wrong.
static inline int agent_exit_of_input(enum neb_status st) {
    return st == NEB_ERR_INVALID ? AGENT_EXIT_USAGE : agent_exit_of(st);
}

#endif
