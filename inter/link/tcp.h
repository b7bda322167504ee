// SPDX-License-Identifier: Apache-2.0
// What the kernel knows of a TCP connection, and its congestion control. Linux.
//
// At 100 Mbit/s, 100 ms and 0.1 % loss one connection carried 9 Mbit/s with CUBIC and 85 with BBR: the algorithm decides more
// than the number of connections. ZeroMQ has no option for it; but both ends of a connection learn their descriptor before the
// first data (the listener from ZMQ_SRCFD, the dialler from its monitor), and a duplicate takes every socket option.
#ifndef INTER_TCP_H
#define INTER_TCP_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    INTER_TCP_NAME_MAX = 16, // TCP_CA_NAME_MAX
    INTER_TCP_HEADERS = 52,  // of a segment: IPv4, and TCP with timestamps
};

struct inter_tcp_counts { // since the connection was made
    uint64_t sent, recv;  // bytes with repetitions; without headers
    uint64_t sent_segs, recv_segs;
};
struct inter_tcp_counts inter_tcp_counts(int fd); // zeros when fd is no connection

uint64_t
inter_tcp_acked(int fd); // bytes that the other end's kernel has acknowledged; 0: not known

// Segments with data that have come, repeated ones too: a number that grows says that the other end sends. Not its keepalives and
// acknowledgements, which its kernel sends without it. 0: not known.
uint32_t inter_tcp_data_segs(int fd);

// Where what is sent queues on the way, since round trips are long beside the least that the kernel has seen in the last minutes: that one.
// 0: it does not, or is not known. A process that is slow to send or to read is no queue.
neb_ns inter_tcp_least_rtt_of_queue(int fd);

// Bytes that the other end's kernel does not acknowledge end the connection after so long.
void inter_tcp_set_patience(int fd, neb_ns patience);

// Sets the algorithm; NULL: bbr, and where the system does not permit it, what it has. True: it is set.
bool inter_tcp_set_congestion(int fd, const char *name);
// The connection's algorithm forgets what it has learned, and begins as on a new connection: BBR in its start-up, others in slow start.
void inter_tcp_restart(int fd);
// Algorithm of a socket; "" when unknown.
void inter_tcp_congestion(int fd, char out[INTER_TCP_NAME_MAX]);
// Whether this process may use an algorithm, tried on a socket of its own.
bool inter_tcp_may_use(const char *name);
// What connections get that inter_tcp_set_congestion is asked to give `name`, tried likewise; "" when unknown.
void inter_tcp_would_use(const char *name, char out[INTER_TCP_NAME_MAX]);
// Bytes that a message of n bytes takes on the wire: ZMTP and CURVE frames, TCP and IP headers.
uint64_t inter_tcp_wire_bytes(uint64_t n);
// The same without TCP and IP headers, to the byte.
uint64_t inter_tcp_frame_bytes(uint64_t n);

#endif
