// SPDX-License-Identifier: Apache-2.0
#include "inter/link/monitor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static bool set_int(void *s, int option, int value) {
    return zmq_setsockopt(s, option, &value, sizeof value) == 0;
}

void *inter_monitor_open(void *zmq_context, void *socket, int events) {
    static _Atomic uint32_t serial;
    char name[64];
    snprintf(name, sizeof name, "inproc://nebula.mon.%u", (unsigned)atomic_fetch_add(&serial, 1));
    if (zmq_socket_monitor(socket, name, events) != 0)
        return NULL;
    void *m = zmq_socket(zmq_context, ZMQ_PAIR);
    if (m &&
        (!set_int(m, ZMQ_LINGER, 0) || !set_int(m, ZMQ_RCVHWM, 0) || zmq_connect(m, name) != 0)) {
        zmq_close(m);
        m = NULL;
    }
    return m;
}

bool inter_monitor_read(void *monitor, uint16_t *event, int *value) {
    uint8_t b[6], address[256];
    if (zmq_recv(monitor, b, sizeof b, ZMQ_DONTWAIT) != (int)sizeof b)
        return false;
    zmq_recv(monitor, address, sizeof address, ZMQ_DONTWAIT);
    memcpy(event, b, 2); // host byte order: this host wrote it
    memcpy(value, b + 2, 4);
    return true;
}

void inter_monitor_close(void *monitor, void *socket) {
    if (socket)
        zmq_socket_monitor(socket, NULL, 0);
    if (monitor)
        zmq_close(monitor);
}
