// SPDX-License-Identifier: Apache-2.0
// Asks the agent of this machine for its status, once or repeatedly on a full screen.
#ifndef AGENT_WATCH_H
#define AGENT_WATCH_H
#include "agent/proc/ipc.h"

#include <stdio.h>

// Sends one request (takes over the caller's reference) and waits up to 5 s for the answer. home
// NULL: the default.
NEB_MUST_CHECK enum neb_status agent_ask(const char *home, json_t *request,
                                         struct agent_ipc_msg *answer);

typedef void agent_status_print(FILE *f, const json_t *status);
// The text that `print` writes, with '?' for control characters, since some of it comes from peers.
// The caller frees it; NULL: out of memory.
char *agent_status_text(agent_status_print *print, const json_t *status);
// Shows the status every second on the terminal's alternate screen, cut to its size, until q or a
// signal; Ctrl-Z pauses. Restores the terminal. Shows an agent that does not answer as an error.
// Returns an exit status.
int agent_watch(const char *home, agent_status_print *print);

#endif
