// SPDX-License-Identifier: Apache-2.0
// The socket profile: every option of the links' ZeroMQ sockets, in one table, each with its
// reason. Nothing else sets these options. `nebula doctor --sockets` prints the table.
#ifndef INTER_SOCKET_PROFILE_H
#define INTER_SOCKET_PROFILE_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum inter_socket_role { // bits
    INTER_SOCKET_LISTEN = 1,
    INTER_SOCKET_CONTROL = 2, // dialled
    INTER_SOCKET_BULK = 4,    // dialled
    INTER_SOCKET_ALL = 7,
};

struct inter_socket_option {
    int option;
    const char *name, *unit, *why;
    unsigned roles;
    int64_t value; // for MAXMSGSIZE: bytes above a chunk
    bool wide;     // true: int64_t; false: int
};
extern const struct inter_socket_option inter_socket_profile[];
extern const size_t inter_socket_profile_rows;

// The value of a row for links of this chunk size.
int64_t inter_socket_value(const struct inter_socket_option *o, size_t chunk_bytes);
// Call before bind or connect. NEB_ERR_IO: the log names the option.
NEB_MUST_CHECK enum neb_status inter_socket_apply(void *socket, enum inter_socket_role role,
                                                  size_t chunk_bytes);

// Limits that ZeroMQ has no option for (inter/link/guard.c).
enum {
    // Connections without HELLO. Over the limit, the oldest connection of the source with the most
    // is cut.
    INTER_UNIDENTIFIED_MAX = 1024, // fewer if the limit of open files is low
    INTER_UNIDENTIFIED_LEAST = 64,
    // Open files without peers (128 of them for strangers at the workers' port), and per peer: 33
    // connections, each with socket, duplicate, monitor and wake-ups.
    INTER_DESCRIPTORS_OWN = 384,
    INTER_DESCRIPTORS_PEER = 33 * 4,
    INTER_UNIDENTIFIED_BYTES = 64 << 10, // each may send this much
    INTER_UNIDENTIFIED_MS =
        8000, // each may stay this long: four round trips of 1.5 s, and a retransmission
    // Connections without HELLO from one source (security/source.h): at once, then per second.
    // Fifteen members behind one address have at most 495 connections.
    INTER_UNIDENTIFIED_BURST = 1024,
    INTER_UNIDENTIFIED_SECOND = 64,
    // The same for all unknown sources together.
    INTER_STRANGERS_BURST = 2048,
    INTER_STRANGERS_SECOND = 256,
    INTER_UNACKED_MS = 10000, // limit of unacknowledged time; more on slow paths
    // Unread bytes of one peer above what an honest one leaves unacknowledged. Over the limit, its
    // fullest connection is cut.
    INTER_PEER_SLACK_BYTES = 32 << 20,
};

#endif
