// SPDX-License-Identifier: Apache-2.0
// Messages inside one cluster: between an agent, its workers and the command line. They use a
// ZeroMQ ipc socket, or TCP for workers on other hosts.
//
//     client (DEALER)  ── [ head: JSON object ][ part 0 ] … [ part n-1 ] ──►  agent (ROUTER)
//                      ◄──────────────── the same ─────────────────────────
//
// The head names the message ("op" in requests, "ev" in events). Parts are raw bytes (encoded
// updates). The socket file is in a folder with mode 0700, so only the agent's own user can open
// it. The receiver still checks every message, since the sender may be another build.
//
// TCP messages (ipc_remote.c) are encrypted and authenticated by CURVE. The agent makes a key pair
// for each worker and hands it over (credential.h). It admits only these keys, and each message
// says which key sent it. On the wire, little-endian:
//
//     [ "nebr" | items u32 | bytes of each item u64 ][ frame ] … [ frame ]
//
// The items are the head, then the parts. A frame has at most AGENT_IPC_FRAME bytes, which limits
// what the agent holds for a connection that has not authenticated.
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
    AGENT_IPC_PARTS_MAX = 16,     // one part for each member
    AGENT_IPC_HEAD_MAX = 4 << 20, // bytes of JSON
    AGENT_IPC_CLIENT_MAX = 32,    // bytes of a client's routing id
    AGENT_IPC_FRAME = 128 << 10,  // bytes of a frame over TCP
    AGENT_IPC_KEY = 32,           // bytes of a CURVE key
    AGENT_IPC_ENDPOINT_MAX = 96,
};

// The sender of a message to an agent. Plain data; compare with agent_ipc_same.
struct agent_ipc_client {
    uint8_t id[AGENT_IPC_CLIENT_MAX];
    uint8_t len; // 0: nobody
    bool remote; // came by TCP, from `address`, authenticated as `key`
    uint8_t key[AGENT_IPC_KEY];
    char address[46]; // IPv4 or IPv6 address as text
};

// How a worker on another host reaches its agent.
struct agent_ipc_remote {
    char endpoint[AGENT_IPC_ENDPOINT_MAX]; // tcp://…; "": the agent does not listen for other hosts
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
// Frees head and frames; an empty message is fine.
void agent_ipc_msg_clear(struct agent_ipc_msg *m);
// Moves the parts of a message, without copying them; the head stays. What *to held is freed.
void agent_ipc_msg_take_parts(struct agent_ipc_msg *to, struct agent_ipc_msg *from);
// A text or integer field of the head; the default if it is missing or of another type.
const char *agent_ipc_str(const struct agent_ipc_msg *m, const char *key, const char *def);
int64_t agent_ipc_int(const struct agent_ipc_msg *m, const char *key, int64_t def);

// One socket, server or client; for one thread. NEB_ERR_IO: cannot bind the path, or it is not a
// socket.
struct agent_ipc;
// True if a socket can have this path. NEB_ERR_LIMIT: over the system's limit of about 100 bytes.
// NEB_ERR_INVALID: not UTF-8. Both are logged with the remedy.
NEB_MUST_CHECK enum neb_status agent_ipc_path_fits(const char *path);
NEB_MUST_CHECK enum neb_status agent_ipc_listen(void *zctx, const char *path,
                                                struct agent_ipc **out);
NEB_MUST_CHECK enum neb_status agent_ipc_connect(void *zctx, const char *path,
                                                 struct agent_ipc **out);
void agent_ipc_destroy(struct agent_ipc **s);
void *agent_ipc_socket(const struct agent_ipc *s); // for zmq_poll
// For zmq_poll: the socket of a server that listens for other hosts; NULL: it does not.
void *agent_ipc_remote_socket(const struct agent_ipc *s);
// For zmq_poll: events of incoming connections; agent_ipc_recv reads them.
void *agent_ipc_remote_monitor(const struct agent_ipc *s);
// True if an agent listens at path on this host. Otherwise errno is ENOENT, or ECONNREFUSED for the
// file of a killed agent. On a shared file system the file is visible everywhere but works on one
// host.
bool agent_ipc_is_here(const char *path);
// For a command: true if there is no agent. Waits up to a second for an agent that is starting.
bool agent_ipc_is_nobody(const char *path);

// True if agent_ipc_remote_listen can take `where` and it is one address, not 0.0.0.0 or [::]. Does
// not check that this host has the address.
bool agent_ipc_remote_valid(const char *where);
// Makes a server listen for workers on other hosts too. where: ADDRESS[:PORT], with an address or
// interface of this host; without a port the system chooses one. Makes new keys, and admits no
// worker until agent_ipc_remote_admit. NEB_ERR_IO: cannot bind. NEB_ERR_INVALID: not a single
// address.
NEB_MUST_CHECK enum neb_status agent_ipc_remote_listen(struct agent_ipc *s, const char *where);
// Sets the endpoint and the agent's public key in *out for a worker; leaves the worker's keys.
// endpoint is "" if the server does not listen.
void agent_ipc_remote_tell(const struct agent_ipc *s, struct agent_ipc_remote *out);
// Admits these keys and no others from now on (at most NEB_MEMBERS_MAX). Existing connections stay.
void agent_ipc_remote_admit(struct agent_ipc *s, const uint8_t (*keys)[AGENT_IPC_KEY], size_t n);
// The number of connections refused by their handshake, or by the rate limiter before it
// (inter/link/accept_limit.h).
uint64_t agent_ipc_remote_refused(const struct agent_ipc *s);
// Marks the host of this authenticated worker as known: the rate limiter lets it pass while
// strangers connect too often.
void agent_ipc_remote_welcome(struct agent_ipc *s, const struct agent_ipc_client *from);
NEB_MUST_CHECK enum neb_status
agent_ipc_remote_connect(void *zctx, const struct agent_ipc_remote *r, struct agent_ipc **out);

// Sends `head` and a copy of the parts. Takes over the caller's reference to head, on errors too.
// `to` is only for a server. NEB_ERR_AGAIN: the other side is gone or its queue is full.
NEB_MUST_CHECK enum neb_status agent_ipc_send(struct agent_ipc *s,
                                              const struct agent_ipc_client *to, json_t *head,
                                              const struct agent_ipc_part *parts, size_t n_parts);
// Receives the next message. NEB_ERR_AGAIN: there is none. NEB_ERR_FORMAT: it was malformed, and is
// dropped.
NEB_MUST_CHECK enum neb_status agent_ipc_recv(struct agent_ipc *s, struct agent_ipc_client *from,
                                              struct agent_ipc_msg *m);
// Waits up to `timeout` for a message (NEB_ERR_TIMEOUT), then as agent_ipc_recv.
// NEB_ERR_INTERRUPTED: a signal.
NEB_MUST_CHECK enum neb_status agent_ipc_wait(struct agent_ipc *s, neb_ns timeout,
                                              struct agent_ipc_msg *m);

// The protocol number that a worker or trainer sends when it attaches.
int agent_ipc_protocol(void);
// True if this attach message has the agent's protocol; otherwise `why` names both builds. who:
// "worker", "trainer's libnebula".
bool agent_ipc_speaks_ours(const struct agent_ipc_msg *m, const char *who, char *why, size_t cap);

static inline bool agent_ipc_same(const struct agent_ipc_client *a,
                                  const struct agent_ipc_client *b) {
    return a->len == b->len && a->len && a->remote == b->remote &&
           !__builtin_memcmp(a->id, b->id, a->len);
}

#endif
