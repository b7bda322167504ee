// SPDX-License-Identifier: Apache-2.0
// The engine of `wanlink run`: packets between the TUN devices of the sites' namespaces.
//
//     netns a                 wanlink                         netns b
//     wan0 10.77.0.1 ──▶ fd a ─▶ link[0][1] ─▶ ring ─▶ fd b ──▶ wan0 10.77.0.2
//                    ◀── fd a ◀─ ring ◀─ link[1][0] ◀─ fd b ◀──
//
// A packet goes to the site of its destination address 10.77.0.(site + 1). Other packets are
// dropped.
#ifndef WANLINK_TUN_H
#define WANLINK_TUN_H
#include "agent/wan/loop.h"

struct wan_tun;
// Takes over tun_fd[0..mesh->sites). Borrows the mesh and sets its callbacks.
NEB_MUST_CHECK enum neb_status wan_tun_create(struct wan_mesh *mesh, const int *tun_fd,
                                              int epoll_fd, struct wan_tun **out);
void wan_tun_destroy(struct wan_tun **t); // closes the devices
struct wan_engine_ops wan_tun_ops(struct wan_tun *t);

#endif
