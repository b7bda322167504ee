// SPDX-License-Identifier: Apache-2.0
// The engine of `wanlink proxy`: a TCP relay with rate and delay, for hosts without root or TUN
// devices.
//
// A connection is two byte pipes. The relay reads bytes in pieces, passes them over the line of
// their direction, and writes them `delay` later. All connections of a direction take turns on its
// line. The ends see back pressure instead of loss. A black hole stops reading and writing, and
// keeps the bytes in flight. A relay cannot emulate loss, reordering, the round trip of connection
// set-up, or TCP's reaction to delay.
#ifndef WANLINK_PROXY_H
#define WANLINK_PROXY_H
#include "agent/wan/loop.h"
#include "agent/wan/opts.h"

struct wan_proxy;
// Listens on all pairs. Borrows the mesh and sets its callbacks. NEB_ERR_INVALID: an address is
// wrong, or the mesh has loss or reordering.
NEB_MUST_CHECK enum neb_status wan_proxy_create(struct wan_mesh *mesh,
                                                const struct wan_proxy_pair *pair, unsigned n_pair,
                                                int epoll_fd, struct wan_proxy **out);
void wan_proxy_destroy(struct wan_proxy **p);
struct wan_engine_ops wan_proxy_ops(struct wan_proxy *p);
// The port that pair i listens on; the kernel has chosen it if the option says 0.
unsigned wan_proxy_port(const struct wan_proxy *p, unsigned i);

#endif
