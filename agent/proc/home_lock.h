// SPDX-License-Identifier: Apache-2.0
// One agent a home: HOME/agent.lock, held as long as the agent runs. It comes before all else that two of them would quarrel about (the
// enrolment port, the ledger, the socket), so that the second one says what is the matter.
//
//     PID HOST\n      who holds it; what is left of one that is gone says nothing
#ifndef AGENT_HOME_LOCK_H
#define AGENT_HOME_LOCK_H
#include "agent/base/status.h"

// Waits up to two seconds for one that is ending. NEB_ERR_STATE: another agent runs with this home, and which; *fd: to close at the end.
NEB_MUST_CHECK enum neb_status agent_home_lock(const char *home, int *fd);

#endif
