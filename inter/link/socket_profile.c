// SPDX-License-Identifier: Apache-2.0
#include "inter/link/socket_profile.h"

#include "inter/link/link.h"

#define ROW(option, unit, roles, value, why)                                                       \
    { option, #option, unit, why, roles, value, false }

const struct inter_socket_option inter_socket_profile[] = {
    {ZMQ_MAXMSGSIZE, "ZMQ_MAXMSGSIZE", "bytes beyond a chunk",
     "by default a peer may claim any size", INTER_SOCKET_ALL, INTER_LINK_SLACK, true},
    ROW(ZMQ_HANDSHAKE_IVL, "ms", INTER_SOCKET_LISTEN, INTER_UNIDENTIFIED_MS,
        "a connection that has not authenticated by then is closed (three round trips)"),
    ROW(ZMQ_HANDSHAKE_IVL, "ms", INTER_SOCKET_CONTROL | INTER_SOCKET_BULK, 8000,
        "four round trips of up to 1.5 s"),
    ROW(ZMQ_RCVHWM, "messages", INTER_SOCKET_ALL, 64,
        "receive queue of a connection; guard.c limits its bytes"),
    ROW(ZMQ_SNDHWM, "messages", INTER_SOCKET_ALL, 1000,
        "many small messages may come at once; send.c limits their bytes"),
    ROW(ZMQ_LINGER, "ms", INTER_SOCKET_ALL, 0, "unacknowledged messages are sent again anyway"),
    ROW(ZMQ_IMMEDIATE, "", INTER_SOCKET_ALL, 1,
        "nothing is queued for a connection that does not exist"),
    ROW(ZMQ_RECONNECT_IVL, "ms", INTER_SOCKET_ALL, 200, "plus as much random jitter"),
    ROW(ZMQ_RECONNECT_IVL_MAX, "ms", INTER_SOCKET_ALL, 500,
        "traffic within 2 s of a link's return: TCP repeats a lost SYN after 1 s"),
    ROW(ZMQ_CONNECT_TIMEOUT, "ms", INTER_SOCKET_ALL, 2000, "the kernel's default is minutes"),
    ROW(ZMQ_TCP_MAXRT, "ms", INTER_SOCKET_ALL, INTER_UNACKED_MS,
        "bulk has no heartbeat: unacknowledged bytes end a dead connection (20 round trips)"),
    ROW(ZMQ_TCP_KEEPALIVE, "", INTER_SOCKET_ALL, 1,
        "bulk may be silent, and a firewall forgets a silent connection"),
    ROW(ZMQ_TCP_KEEPALIVE_IDLE, "s", INTER_SOCKET_ALL, 180,
        "the shortest memory of firewalls and address translators is four minutes"),
    ROW(ZMQ_TCP_KEEPALIVE_INTVL, "s", INTER_SOCKET_ALL, 15,
        "three unanswered probes end the connection"),
    ROW(ZMQ_TCP_KEEPALIVE_CNT, "", INTER_SOCKET_ALL, 3, ""),
    ROW(ZMQ_IPV6, "", INTER_SOCKET_ALL, 1, "both kinds of address"),
    ROW(ZMQ_BACKLOG, "connections", INTER_SOCKET_LISTEN, 1024,
        "accepted by the kernel, not yet by this process; a flood fills the default of 100 at "
        "once"),
    ROW(ZMQ_ROUTER_MANDATORY, "", INTER_SOCKET_LISTEN, 1, "the default drops messages silently"),
    ROW(ZMQ_CURVE_SERVER, "", INTER_SOCKET_LISTEN, 1, "only keys on the member list connect (ZAP)"),
    ROW(ZMQ_HEARTBEAT_IVL, "ms", INTER_SOCKET_ALL, 0,
        "the link sends its own heartbeats, only when it is silent (state.h)"),
};
const size_t inter_socket_profile_rows =
    sizeof inter_socket_profile / sizeof inter_socket_profile[0];

int64_t inter_socket_value(const struct inter_socket_option *o, size_t chunk_bytes) {
    return o->option == ZMQ_MAXMSGSIZE ? o->value + (int64_t)chunk_bytes : o->value;
}

enum neb_status inter_socket_apply(void *socket, enum inter_socket_role role, size_t chunk_bytes) {
    for (size_t i = 0; i < inter_socket_profile_rows; i++) {
        const struct inter_socket_option *o = &inter_socket_profile[i];
        int64_t wide = inter_socket_value(o, chunk_bytes);
        int narrow = (int)wide;
        if ((o->roles & (unsigned)role) &&
            zmq_setsockopt(socket, o->option, o->wide ? (void *)&wide : (void *)&narrow,
                           o->wide ? sizeof wide : sizeof narrow) != 0)
            return neb_fail(NEB_ERR_IO, "socket option %s: %s", o->name, zmq_strerror(zmq_errno()));
    }
    return NEB_OK;
}
