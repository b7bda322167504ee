// SPDX-License-Identifier: Apache-2.0
// Events of the connections of a ZeroMQ socket (zmq_socket_monitor).
#ifndef INTER_MONITOR_H
#define INTER_MONITOR_H
#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

// Opens a reader of the events of a socket. Call it before the socket binds or connects. events:
// ZMQ_EVENT_*. The caller owns the result; NULL: ZeroMQ has no room.
//
// The queue of events has no limit. With a limit, ZeroMQ's I/O thread would wait for the reader
// when the queue is full, and with it all connections of the context.
void *inter_monitor_open(void *zmq_context, void *socket, int events);
// Reads one event: its number (ZMQ_EVENT_*) and its value, for most events the descriptor. False:
// there is none.
bool inter_monitor_read(void *monitor, uint16_t *event, int *value);
// Stops the events of the socket and closes the reader. Either may be NULL. The caller still closes
// the socket.
void inter_monitor_close(void *monitor, void *socket);

#endif
