// SPDX-License-Identifier: Apache-2.0
// One agent for each home: HOME/agent.lock, locked as long as the agent runs. The agent takes it
// before everything else that two agents cannot share (enrolment port, ledger, socket), so that a
// second agent reports the real cause.
//
//     PID HOST\n      the holder, for messages; stale content has no effect
#ifndef AGENT_HOME_LOCK_H
#define AGENT_HOME_LOCK_H
#include "agent/base/status.h"

// Waits up to two seconds for an agent that is ending. NEB_ERR_STATE: another agent uses this home
// (logged, with its pid). *fd: the caller closes it at its end.
NEB_MUST_CHECK enum neb_status agent_home_lock(const char *home, int *fd);

#endif
