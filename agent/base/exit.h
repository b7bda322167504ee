// SPDX-License-Identifier: Apache-2.0
// Exit statuses, which all commands share.
#ifndef NEB_EXIT_H
#define NEB_EXIT_H
#include "agent/base/status.h"

enum agent_exit {
    AGENT_EXIT_OK = 0, // the command did what was asked
    AGENT_EXIT_FAILED =
        1, // it could not, or what it printed was lost (a full disk); the error was printed
    AGENT_EXIT_USAGE = 2, // bad command line or configuration
    // stopped on request after a checkpoint, or detached from agents that go on; --resume continues
    AGENT_EXIT_INTERRUPTED = 3,
    // pretrain, distill: done, but for clusters whose agents could not be reached: their reports are
    // missing
    AGENT_EXIT_MISSING = 4,
};

static inline int agent_exit_of(enum neb_status st) {
    return st == NEB_OK ? AGENT_EXIT_OK : AGENT_EXIT_FAILED;
}

// Of a command whose NEB_ERR_INVALID is about what was typed.
static inline int agent_exit_of_input(enum neb_status st) {
    return st == NEB_ERR_INVALID ? AGENT_EXIT_USAGE : agent_exit_of(st);
}

#endif
