// SPDX-License-Identifier: Apache-2.0
// Finds the user of this host who holds the other end of a loopback connection: without a token,
// only the agent's own user may read the status page's data. Asks the kernel for that socket
// (sock_diag(7)), else searches /proc/net/tcp and tcp6.
#ifndef AGENT_WEB_USER_H
#define AGENT_WEB_USER_H
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>

// True for a loopback address of IPv4 or IPv6, or IPv4 in IPv6.
bool agent_web_user_local(const struct sockaddr *a);
// True if this user or root holds the socket at `peer` that is connected with `own`. False if
// no process holds it any more; the kernel shows root as the owner of such a socket.
bool agent_web_user_ours(const struct sockaddr *peer, const struct sockaddr *own);
// The same from one of those tables. user: the user whose sockets count; root's count, too.
bool agent_web_user_find(FILE *table, const struct sockaddr *peer, const struct sockaddr *own,
                         unsigned user);

#endif
