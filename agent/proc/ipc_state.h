// SPDX-License-Identifier: Apache-2.0
// Declarations that ipc.c, ipc_remote.c and ipc_remote_listen.c share.
#ifndef AGENT_IPC_STATE_H
#define AGENT_IPC_STATE_H
#include "agent/proc/ipc.h"

struct inter_accept_limit;
struct sec_zap;

// Minutes, not seconds as for links: hosts of one cluster need not drop a silent worker quickly.
enum { IPC_REMOTE_DEAD_MS = 120 * 1000 };

struct agent_ipc {
    void *socket; // a client's only socket, local or TCP
    bool server;
    bool framed; // a client's socket is TCP
    // For a server that listens for other hosts:
    void *remote_ctx, *remote, *monitor; // monitor: connection events
    struct inter_accept_limit *accept_limit;
    void (*close_remote)(struct agent_ipc *s);
    void (*look)(struct agent_ipc *s); // handles the monitor's events
    struct sec_zap *zap;
    char endpoint[AGENT_IPC_ENDPOINT_MAX];
    uint8_t public[AGENT_IPC_KEY];
};

// Sends one frame without waiting. NEB_ERR_AGAIN: the other side is gone, or its queue is full.
NEB_MUST_CHECK enum neb_status ipc_send_frame(void *socket, const void *p, size_t n, bool more);
// Receives one frame without waiting. Returns its size; -1: there is none. Retries after a signal,
// which must not split a message (a profiler may signal an attached trainer a thousand times a
// second).
int ipc_recv_frame(void *socket, zmq_msg_t *out);
bool ipc_more_frames(void *socket);
// Receives the sender's name, the first frame of a message to a server. NEB_ERR_AGAIN: no message.
// NEB_ERR_FORMAT: not a name that ZeroMQ makes.
NEB_MUST_CHECK enum neb_status ipc_recv_name(void *socket, struct agent_ipc_client *from,
                                             zmq_msg_t *first);
// Drops the remaining frames of a message, clears *m and logs an error. Returns NEB_ERR_FORMAT.
NEB_MUST_CHECK enum neb_status ipc_malformed(void *socket, struct agent_ipc_msg *m);
NEB_MUST_CHECK enum neb_status ipc_parse_head(const void *p, size_t n, struct agent_ipc_msg *m);

// counts: count the sent bytes as progress (moved.h).
NEB_MUST_CHECK enum neb_status ipc_remote_send(void *socket, const void *head, size_t head_len,
                                               const struct agent_ipc_part *parts, size_t n_parts,
                                               bool counts);
NEB_MUST_CHECK enum neb_status ipc_remote_recv(struct agent_ipc *s, struct agent_ipc_client *from,
                                               struct agent_ipc_msg *m);
#endif
