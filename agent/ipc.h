// Messages inside one machine: between an agent, its workers and the command line, over a ZeroMQ ipc socket.
//
//     client (DEALER)  ── [ head: JSON object ][ part 0 ] … [ part n-1 ] ──►  agent (ROUTER)
//                      ◄──────────────── the same ─────────────────────────
//
// The head says what the message is ("op" in requests, "ev" in events); parts are raw bytes (encoded updates).
// The socket file lies in a folder of mode 0700: whoever can open it is the agent's own user. Bytes on it are still
// checked for shape, since a worker of another build may speak.
#ifndef AGENT_IPC_H
#define AGENT_IPC_H
#include "agent/base/clock.h"
#include "agent/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

enum {
    AGENT_IPC_PARTS_MAX = 16,     // one part a member
    AGENT_IPC_HEAD_MAX = 4 << 20, // bytes of JSON
    AGENT_IPC_CLIENT_MAX = 32,    // bytes of a client's routing id
};

// who sent a message to an agent; plain data, comparable with agent_ipc_same
struct agent_ipc_client {
    uint8_t id[AGENT_IPC_CLIENT_MAX];
    uint8_t len; // 0: nobody
};

struct agent_ipc_part {
    const void *p;
    size_t len;
};

struct agent_ipc_msg {
    json_t *head; // owned; always an object
    size_t n_parts;
    struct agent_ipc_part parts[AGENT_IPC_PARTS_MAX]; // views into frames
    zmq_msg_t frames[AGENT_IPC_PARTS_MAX];
};
// Frees head and frames; on an empty one too.
void agent_ipc_msg_clear(struct agent_ipc_msg *m);
// Text or integer field of the head; the default when missing or of another type.
const char *agent_ipc_str(const struct agent_ipc_msg *m, const char *key, const char *def);
int64_t agent_ipc_int(const struct agent_ipc_msg *m, const char *key, int64_t def);

// one socket, server or client; one thread. NEB_ERR_IO: the path cannot be bound, or is no socket's
struct agent_ipc;
NEB_MUST_CHECK enum neb_status agent_ipc_listen(void *zctx, const char *path,
                                                struct agent_ipc **out);
NEB_MUST_CHECK enum neb_status agent_ipc_connect(void *zctx, const char *path,
                                                 struct agent_ipc **out);
void agent_ipc_destroy(struct agent_ipc **s);
void *agent_ipc_socket(const struct agent_ipc *s); // for zmq_poll

// Sends a copy of head (a new reference is taken from the caller: "stolen") and of the parts. `to` only for a server.
// NEB_ERR_AGAIN when the other side is gone or its queue is full.
NEB_MUST_CHECK enum neb_status agent_ipc_send(struct agent_ipc *s,
                                              const struct agent_ipc_client *to, json_t *head,
                                              const struct agent_ipc_part *parts, size_t n_parts);
// Takes the next message if there is one: NEB_ERR_AGAIN when none, NEB_ERR_FORMAT when it was malformed (dropped).
NEB_MUST_CHECK enum neb_status agent_ipc_recv(struct agent_ipc *s, struct agent_ipc_client *from,
                                              struct agent_ipc_msg *m);
// Waits at most `timeout` for a message, then as agent_ipc_recv; NEB_ERR_TIMEOUT when none came.
NEB_MUST_CHECK enum neb_status agent_ipc_wait(struct agent_ipc *s, neb_ns timeout,
                                              struct agent_ipc_msg *m);

static inline bool agent_ipc_same(const struct agent_ipc_client *a,
                                  const struct agent_ipc_client *b) {
    return a->len == b->len && a->len && !__builtin_memcmp(a->id, b->id, a->len);
}

#endif
