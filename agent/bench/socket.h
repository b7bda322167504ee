// SPDX-License-Identifier: Apache-2.0
// Bytes on the socket for a payload sent in chunks over an encrypted link, counted by TCP.
#ifndef AGENT_BENCH_SOCKET_H
#define AGENT_BENCH_SOCKET_H
#include "agent/base/status.h"

#include <stddef.h>
#include <stdint.h>

// Sends `payload` incompressible bytes from one member to another over loopback, in this process:
// in chunks of chunk_bytes with the header of an update's chunk, all acknowledged. *sent: bytes on
// the sender's sockets since the link was up. Takes seconds. NEB_ERR_TIMEOUT: the link did not come
// up or stood still; NEB_ERR_IO: no port or folder.
NEB_MUST_CHECK enum neb_status bench_socket_bytes(size_t payload, uint32_t chunk_bytes,
                                                  uint64_t *sent);

#endif
