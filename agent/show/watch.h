// SPDX-License-Identifier: Apache-2.0
// Asking the agent of this machine, once or again and again on a full screen.
#ifndef AGENT_WATCH_H
#define AGENT_WATCH_H
#include "agent/proc/ipc.h"

#include <stdio.h>

// One request (stolen), one answer within 5 s. home NULL: the default.
NEB_MUST_CHECK enum neb_status agent_ask(const char *home, json_t *request,
                                         struct agent_ipc_msg *answer);

typedef void agent_status_print(FILE *f, const json_t *status);
// What print writes, with '?' for control characters (some of it comes from peers); malloc, NULL when out of memory.
char *agent_status_text(agent_status_print *print, const json_t *status);
// The status every second on the terminal's other screen, cut to its size, until q or a signal; Ctrl-Z pauses it. The terminal is left
// as it was. An agent that is away is shown as such. Returns an exit status.
int agent_watch(const char *home, agent_status_print *print);

#endif
