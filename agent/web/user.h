// SPDX-License-Identifier: Apache-2.0
// Which user of this host holds the other end of a connection over loopback: the status page's data
// are for the agent's own user, where no token is asked for. The kernel is asked for that one
// socket (sock_diag(7)); where it cannot be, /proc/net/tcp and tcp6 list all of them.
#ifndef AGENT_WEB_USER_H
#define AGENT_WEB_USER_H
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>

// Whether an address of IPv4 or IPv6 is loopback, IPv4 in IPv6 included.
bool agent_web_user_local(const struct sockaddr *a);
// Whether this user, or root, holds the socket at `peer` that is connected with `own`. False too
// where nobody is known to hold it: one that its process has closed is shown as root's, and does
// not count.
bool agent_web_user_ours(const struct sockaddr *peer, const struct sockaddr *own);
// The same in one of those lists; user: whose sockets are ours beside root's.
bool agent_web_user_find(FILE *table, const struct sockaddr *peer, const struct sockaddr *own,
                         unsigned user);

#endif
