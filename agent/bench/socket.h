// SPDX-License-Identifier: Apache-2.0
// Bytes on the socket: what a payload becomes when it travels as chunks over an encrypted link, counted by TCP at both ends.
#ifndef AGENT_BENCH_SOCKET_H
#define AGENT_BENCH_SOCKET_H
#include "agent/base/status.h"

#include <stddef.h>
#include <stdint.h>

// Sends `payload` bytes that do not compress from one member to another over loopback, in this process, in chunks of
// chunk_bytes with a header each as updates have, all acknowledged. *sent: what the sender's sockets carried since the link
// was up. Seconds at most; NEB_ERR_TIMEOUT when the link did not come up or stood still, NEB_ERR_IO when no port or folder
// can be had.
NEB_MUST_CHECK enum neb_status bench_socket_bytes(size_t payload, uint32_t chunk_bytes,
                                                  uint64_t *sent);

#endif
