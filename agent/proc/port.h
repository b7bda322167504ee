// SPDX-License-Identifier: Apache-2.0
// A port that another process will listen on soon.
#ifndef AGENT_PROC_PORT_H
#define AGENT_PROC_PORT_H
#include "agent/base/status.h"

#include <stdbool.h>

// Binds a free TCP port: on loopback, or everywhere on all addresses. While *fd is open, this
// function gives the port to nobody else, and one socket with SO_REUSEADDR can listen on it, as
// ZeroMQ's do. The port is one of 10000 to 19999, below the range that the kernel gives to clients,
// so no connection takes it after *fd is closed. If no port there is free, it is any free port.
// fd: the caller closes it. Errors: NEB_ERR_IO.
enum neb_status agent_port_bind(bool everywhere, int *fd, int *port);
#endif
