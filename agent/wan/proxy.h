// SPDX-License-Identifier: Apache-2.0
// The engine of `wanlink proxy`: a TCP relay with rate and delay, for hosts without root or TUN
// devices.
//
// Every connection is two byte pipes. Bytes are read in pieces, pass the line of their direction
// (its rate is shared by all connections of that direction, in turn) and are written `delay` later.
// The ends see back pressure instead of loss; a black hole stops both reading and writing and keeps
// what is under way. What a proxy cannot emulate: loss, reordering, the round trip of connection
// set-up, TCP's own reaction to delay.
#ifndef WANLINK_PROXY_H
#define WANLINK_PROXY_H
#include "agent/wan/loop.h"
#include "agent/wan/opts.h"

struct wan_proxy;
// Listens on all pairs. The mesh is borrowed; its callbacks are set.
NEB_MUST_CHECK enum neb_status wan_proxy_create(struct wan_mesh *mesh,
                                                const struct wan_proxy_pair *pair, unsigned n_pair,
                                                int epoll_fd, struct wan_proxy **out);
void wan_proxy_destroy(struct wan_proxy **p);
struct wan_engine_ops wan_proxy_ops(struct wan_proxy *p);
// The port that pair i listens on (useful with port 0).
unsigned wan_proxy_port(const struct wan_proxy *p, unsigned i);

#endif
