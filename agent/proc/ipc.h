// SPDX-License-Identifier: Apache-2.0
// Messages inside one cluster: between an agent, its workers and the command line, over a ZeroMQ ipc socket, or with workers on
// other hosts over TCP.
//
//     client (DEALER)  ── [ head: JSON object ][ part 0 ] … [ part n-1 ] ──►  agent (ROUTER)
//                      ◄──────────────── the same ─────────────────────────
//
// The head says what the message is ("op" in requests, "ev" in events); parts are raw bytes (encoded updates).
// The socket file lies in a folder of mode 0700: whoever can open it is the agent's own user. Bytes on it are still
// checked for shape, since a worker of another build may speak.
//
// Over TCP (ipc_remote.c) a message is encrypted and authenticated by CURVE, with keys that the agent makes for each worker and
// hands to it (credential.h): only these are admitted, and a message says which key it came by. It
// travels as
//     [ "nebr" | items u32 | bytes of each u64 ][ frame ] … [ frame ]     little-endian; items: the head, then the parts
// in frames of at most AGENT_IPC_FRAME bytes, so that who has not authenticated cannot make the agent hold more a connection.
#ifndef AGENT_IPC_H
#define AGENT_IPC_H
#include "agent/base/build_id.h"
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
    AGENT_IPC_FRAME = 128 << 10,  // bytes of a frame over TCP
    AGENT_IPC_KEY = 32,           // bytes of a CURVE key
    AGENT_IPC_ENDPOINT_MAX = 96,
};

// who sent a message to an agent; plain data, comparable with agent_ipc_same
struct agent_ipc_client {
    uint8_t id[AGENT_IPC_CLIENT_MAX];
    uint8_t len; // 0: nobody
    bool remote; // by TCP, authenticated as key, from address
    uint8_t key[AGENT_IPC_KEY];
    char address[46]; // text of an IPv4 or IPv6 address
};

// What a worker on another host reaches its agent by.
struct agent_ipc_remote {
    char endpoint[AGENT_IPC_ENDPOINT_MAX]; // tcp://…; "": the agent listens for none
    uint8_t server[AGENT_IPC_KEY];         // the agent's public key
    uint8_t public[AGENT_IPC_KEY], secret[AGENT_IPC_KEY]; // the worker's
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
// Whether a socket can have this path. NEB_ERR_LIMIT: the system's bound is some 100 characters; NEB_ERR_INVALID: it is not UTF-8; logged, with what to do.
NEB_MUST_CHECK enum neb_status agent_ipc_path_fits(const char *path);
NEB_MUST_CHECK enum neb_status agent_ipc_listen(void *zctx, const char *path,
                                                struct agent_ipc **out);
NEB_MUST_CHECK enum neb_status agent_ipc_connect(void *zctx, const char *path,
                                                 struct agent_ipc **out);
void agent_ipc_destroy(struct agent_ipc **s);
void *agent_ipc_socket(const struct agent_ipc *s); // for zmq_poll
// Likewise, of a server that listens for other hosts; NULL: it does not.
void *agent_ipc_remote_socket(const struct agent_ipc *s);
// To poll besides: connections that come. agent_ipc_recv looks at them.
void *agent_ipc_remote_monitor(const struct agent_ipc *s);
// Does anybody listen at path, on this host? If not, errno says why: ENOENT, or ECONNREFUSED of what an agent has left that was killed. A socket's file on a shared file system is seen everywhere, and works on one host.
bool agent_ipc_is_here(const char *path);
// For a command: whether there is no agent, nor one that has just begun. Waits a second for that.
bool agent_ipc_is_nobody(const char *path);

// Whether `where` has the form that is wanted next, and is one address: not 0.0.0.0 or [::]. Whether this host has it is not looked at.
bool agent_ipc_remote_valid(const char *where);
// A server that listens for workers on other hosts too: where: ADDRESS[:PORT], of this host or the name of an interface; without a port the
// system chooses one. Nobody is admitted before agent_ipc_remote_admit. Its keys are made anew. NEB_ERR_IO: cannot be bound;
// NEB_ERR_INVALID: no address that workers could be told.
NEB_MUST_CHECK enum neb_status agent_ipc_remote_listen(struct agent_ipc *s, const char *where);
// The endpoint and the agent's key, as workers are told them; the worker's keys stay as they are. Not listening: endpoint "".
void agent_ipc_remote_tell(const struct agent_ipc *s, struct agent_ipc_remote *out);
// From now on these keys and no others, at most SEC_MEMBERS_MAX; connections that exist stay.
void agent_ipc_remote_admit(struct agent_ipc *s, const uint8_t (*keys)[AGENT_IPC_KEY], size_t n);
// Connections turned away, by what their handshake said or before it (inter/link/accept_limit.h).
uint64_t agent_ipc_remote_refused(const struct agent_ipc *s);
// This one is a worker indeed: while strangers come too often, its host is heard.
void agent_ipc_remote_welcome(struct agent_ipc *s, const struct agent_ipc_client *from);
NEB_MUST_CHECK enum neb_status
agent_ipc_remote_connect(void *zctx, const struct agent_ipc_remote *r, struct agent_ipc **out);

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

// What a worker or a trainer says it speaks when it attaches.
int agent_ipc_protocol(void);
// Whether it is what the agent speaks; if not, why says which builds they are. who: "worker", "trainer's libnebula".
bool agent_ipc_speaks_ours(const struct agent_ipc_msg *m, const char *who, char *why, size_t cap);

static inline bool agent_ipc_same(const struct agent_ipc_client *a,
                                  const struct agent_ipc_client *b) {
    return a->len == b->len && a->len && a->remote == b->remote &&
           !__builtin_memcmp(a->id, b->id, a->len);
}

#endif
