// SPDX-License-Identifier: Apache-2.0
// The control socket: a unix stream socket. One line is one command, and gets one line as its
// answer (mesh.h).
#ifndef WANLINK_CTL_H
#define WANLINK_CTL_H
#include "agent/wan/mesh.h"

struct wan_ctl;
// Listens at `path` and replaces a stale socket there. Adds its descriptors to the epoll instance
// with data.u64 = tag + slot, slot < WAN_CTL_SLOTS. If path is NULL, *out is NULL, and all calls
// accept it. NEB_ERR_EXISTS: another process listens at `path`.
enum { WAN_CTL_SLOTS = 9 };
NEB_MUST_CHECK enum neb_status wan_ctl_create(const char *path, struct wan_mesh *mesh, int epoll_fd,
                                              uint64_t tag, struct wan_ctl **out);
void wan_ctl_destroy(struct wan_ctl **c); // also removes the socket
void wan_ctl_handle(struct wan_ctl *c, unsigned slot);
// The client: sends one command and prints the answer to stdout. NEB_ERR_INVALID: the answer is an
// error.
NEB_MUST_CHECK enum neb_status wan_ctl_client(const char *path, const char *command);

#endif
