// SPDX-License-Identifier: Apache-2.0
// The socket profile: what the links' ZeroMQ sockets are told, in one table, each row with its reason. Nothing else sets these options.
// `nebula doctor --sockets` prints it; tests/security/test_socket_profile.c compares it with what sockets answer.
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
    int64_t value; // of MAXMSGSIZE: beyond a chunk
    bool wide;     // int64_t, else int
};
extern const struct inter_socket_option inter_socket_profile[];
extern const size_t inter_socket_profile_rows;

// What a row says for links of this chunk size.
int64_t inter_socket_value(const struct inter_socket_option *o, size_t chunk_bytes);
// Before bind or connect. NEB_ERR_IO names the option.
NEB_MUST_CHECK enum neb_status inter_socket_apply(void *socket, enum inter_socket_role role,
                                                  size_t chunk_bytes);

// Ceilings that ZeroMQ has no option for (inter/link/guard.c).
enum {
    // connections that have not said HELLO; of the address that has most, the oldest gives way
    INTER_UNIDENTIFIED_MAX = 1024, // fewer where the limit of open files is low
    INTER_UNIDENTIFIED_LEAST = 64,
    // files open without a peer, 128 of them strangers' at the port of workers; of a peer at most: 33 connections, each with socket,
    // duplicate, monitor, wake-ups
    INTER_DESCRIPTORS_OWN = 384,
    INTER_DESCRIPTORS_PEER = 33 * 4,
    INTER_UNIDENTIFIED_BYTES = 64 << 10, // that one of them may send
    INTER_UNIDENTIFIED_MS =
        8000, // that one of them may stay: four round trips, of up to 1.5 s, and a repetition
    // connections from one source (security/source.h) that do not come to HELLO: so many at once, then so many a second. Fifteen members
    // behind one address have 495 at most.
    INTER_UNIDENTIFIED_BURST = 1024,
    INTER_UNIDENTIFIED_SECOND = 64,
    // and from all sources together that no member has come from
    INTER_STRANGERS_BURST = 2048,
    INTER_STRANGERS_SECOND = 256,
    INTER_UNACKED_MS = 10000, // that bytes may be unacknowledged; more where 20 round trips are
    // held of one peer beyond what an honest one has unacknowledged: then its fullest connection is cut
    INTER_PEER_SLACK_BYTES = 32 << 20,
};

#endif
