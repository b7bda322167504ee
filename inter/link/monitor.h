// SPDX-License-Identifier: Apache-2.0
// What a ZeroMQ socket tells of its connections (zmq_socket_monitor).
#ifndef INTER_MONITOR_H
#define INTER_MONITOR_H
#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

// Of one socket, before it binds or connects: the socket that its events are read from, the caller's; NULL: ZeroMQ has no room. events:
// ZMQ_EVENT_*. There is room for all events that come, some 400 bytes a connection until they are read: ZeroMQ's I/O thread waits where there is none for one, all connections of its context with
// it, and for ever where the reader is about to end.
void *inter_monitor_open(void *zmq_context, void *socket, int events);
// One event: its number (one of ZMQ_EVENT_*) and its value, for most the descriptor. false: none.
bool inter_monitor_read(void *monitor, uint16_t *event, int *value);
// Both: no events of the socket any more, and the reader closed. Either may be NULL; the socket itself is then closed by the caller.
void inter_monitor_close(void *monitor, void *socket);

#endif
