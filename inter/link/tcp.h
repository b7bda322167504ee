// SPDX-License-Identifier: Apache-2.0
// What the kernel knows about a TCP connection, and its congestion control (Linux).
//
// ZeroMQ has no option for congestion control. But both ends learn the descriptor of a connection
// before the first data: the listener from ZMQ_SRCFD, the dialler from its monitor. A duplicate of
// the descriptor takes every socket option. Figures are in inter/README.md.
#ifndef INTER_TCP_H
#define INTER_TCP_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    INTER_TCP_NAME_MAX = 16, // TCP_CA_NAME_MAX
    INTER_TCP_HEADERS = 52,  // per segment: IPv4, and TCP with timestamps
};

struct inter_tcp_counts { // since the connection was made
    uint64_t sent, recv;  // bytes with retransmissions, without headers
    uint64_t sent_segs, recv_segs;
};
struct inter_tcp_counts inter_tcp_counts(int fd); // zeros if fd is no connection

uint64_t inter_tcp_acked(int fd); // bytes that the peer's kernel acknowledged; 0: not known

// Segments with data that arrived, retransmitted ones included. A growing number shows that the
// peer's process sends. Keepalives and acknowledgements, which its kernel sends alone, do not
// count. 0: not known.
uint32_t inter_tcp_data_segs(int fd);

// The least round trip that the kernel saw in the last minutes, if data queues on the path. Round
// trips much longer than that show a queue. A process that sends or reads slowly is no queue. 0: no
// queue, or not known.
neb_ns inter_tcp_least_rtt_of_queue(int fd);

// The connection ends when the peer's kernel does not acknowledge bytes for this long.
void inter_tcp_set_patience(int fd, neb_ns patience);

// Sets the algorithm. name NULL: bbr; if the system does not permit it, its own algorithm stays.
// True: the algorithm is set.
bool inter_tcp_set_congestion(int fd, const char *name);
// The algorithm forgets what it learned and begins as on a new connection.
void inter_tcp_restart(int fd);
// The algorithm of a socket; "": not known.
void inter_tcp_congestion(int fd, char out[INTER_TCP_NAME_MAX]);
// True if this process may use the algorithm. Tries it on a new socket.
bool inter_tcp_may_use(const char *name);
// The algorithm that a connection has after inter_tcp_set_congestion(name). Tries it on a new
// socket. "": not known.
void inter_tcp_would_use(const char *name, char out[INTER_TCP_NAME_MAX]);
// Bytes of a message of n bytes on the wire, with the headers of ZMTP, CURVE, TCP and IP.
uint64_t inter_tcp_wire_bytes(uint64_t n);
// The same without TCP and IP headers, exact to the byte.
uint64_t inter_tcp_frame_bytes(uint64_t n);

#endif
