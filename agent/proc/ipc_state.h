// SPDX-License-Identifier: Apache-2.0
// What ipc.c and ipc_remote.c share.
#ifndef AGENT_IPC_STATE_H
#define AGENT_IPC_STATE_H
#include "agent/proc/ipc.h"

struct inter_accept_limit;
struct sec_zap;

// Between hosts of one cluster a worker need not be given up within seconds, as a dead link is.
enum { IPC_REMOTE_DEAD_MS = 120 * 1000 };

struct agent_ipc {
    void *socket; // of a client: the only one, by either way
    bool server;
    bool framed; // of a client: its socket is TCP
    // of a server that listens for other hosts
    void *remote_ctx, *remote, *monitor; // monitor: tells of connections
    struct inter_accept_limit *accept_limit;
    void (*close_remote)(struct agent_ipc *s);
    void (*look)(struct agent_ipc *s); // who has come
    struct sec_zap *zap;
    char endpoint[AGENT_IPC_ENDPOINT_MAX];
    uint8_t public[AGENT_IPC_KEY];
};

// One frame, without waiting. NEB_ERR_AGAIN: the other side is gone, or its queue is full.
NEB_MUST_CHECK enum neb_status ipc_send_frame(void *socket, const void *p, size_t n, bool more);
// Likewise; its size, or -1: there is none. A signal is no reason to leave the rest of a message behind (a trainer that attaches may have a
// profiler's a thousand times a second).
int ipc_recv_frame(void *socket, zmq_msg_t *out);
bool ipc_more_frames(void *socket);
// The sender's name, which comes before a message to a server, in the caller's frame. NEB_ERR_AGAIN: there is none; NEB_ERR_FORMAT: not one
// of ZeroMQ's own.
NEB_MUST_CHECK enum neb_status ipc_recv_name(void *socket, struct agent_ipc_client *from,
                                             zmq_msg_t *first);
// The rest of a message that is not wanted.
void ipc_drop_rest(void *socket);
NEB_MUST_CHECK enum neb_status ipc_malformed(void *socket, struct agent_ipc_msg *m);
NEB_MUST_CHECK enum neb_status ipc_parse_head(const void *p, size_t n, struct agent_ipc_msg *m);

// counts: what is sent, as moved (agent/base/moved.h)
NEB_MUST_CHECK enum neb_status ipc_remote_send(void *socket, const void *head, size_t head_len,
                                               const struct agent_ipc_part *parts, size_t n_parts,
                                               bool counts);
NEB_MUST_CHECK enum neb_status ipc_remote_recv(struct agent_ipc *s, struct agent_ipc_client *from,
                                               struct agent_ipc_msg *m);
#endif
