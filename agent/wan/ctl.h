// SPDX-License-Identifier: Apache-2.0
// The control socket: a unix stream socket, one command a line, one answer a line (mesh.h).
#ifndef WANLINK_CTL_H
#define WANLINK_CTL_H
#include "agent/wan/mesh.h"

struct wan_ctl;
// Listens at path (replacing a stale socket) and adds its descriptors to the epoll instance with
// data.u64 = tag + slot, slot < WAN_CTL_SLOTS. path NULL: *out = NULL, which all calls accept.
enum { WAN_CTL_SLOTS = 9 };
NEB_MUST_CHECK enum neb_status wan_ctl_create(const char *path, struct wan_mesh *mesh, int epoll_fd,
                                              uint64_t tag, struct wan_ctl **out);
void wan_ctl_destroy(struct wan_ctl **c); // also removes the socket
void wan_ctl_handle(struct wan_ctl *c, unsigned slot);
// The client: sends one command, prints the answer to stdout; NEB_ERR_INVALID when it is an error.
NEB_MUST_CHECK enum neb_status wan_ctl_client(const char *path, const char *command);

#endif
