// SPDX-License-Identifier: Apache-2.0
// Inside the communicator over TCP; for comm_socket*.c alone, and a test.
//
//     comm_socket.c          the interface of comm.h: groups, messages
//     comm_socket_reduce.c   collectives, made of messages
//     comm_socket_io.c       frames over the connections, one thread, nothing but poll(2): of a hundred connections only those are
//                            read that have something
//     comm_socket_start.c    ranks find and prove themselves to each other; all connections
//
// A frame, little-endian:
//
//     group u32 | kind u32 | tag i32 | bytes u64 | payload
//
// Each pair of ranks has one connection. What is sent is written whenever any call waits. A rank reads from all, but from a rank that
// no call waits for only until EARLY_SOFT bytes of it lie here unclaimed, and no message above EARLY_ALONE at all: then TCP makes that
// rank wait.
//
// A message may be as long as memory: it goes from the sender's buffer into the receiver's. Only what comes before anybody waits for it
// takes memory by its sender's word, EARLY_MAX bytes of each rank at most.
#ifndef INTRA_COMM_SOCKET_H
#define INTRA_COMM_SOCKET_H
#include "agent/base/clock.h"
#include "intra/ranks/comm.h"

#include <poll.h>

enum {
    SOCKET_HEADER_BYTES = 20,
    SOCKET_TOKEN_BYTES = 32,
    SOCKET_ENTRY_BYTES = 20,        // of rank 0's table: family u16, port u16, address
    SOCKET_PIECE_BYTES = 128 << 10, // of a collective, that travels and is added at once
    SOCKET_PIECES = 3,              // of them on their way
};
#define SOCKET_MESSAGE_MAX (((size_t)1 << 40) - 1) // bytes: what says more is garbage
#define SOCKET_EARLY_SOFT  ((size_t)4 << 20)
#define SOCKET_EARLY_ALONE ((size_t)64 << 20)
#define SOCKET_EARLY_MAX   ((size_t)4 << 30)
#define SOCKET_EARLY_ROOM                                                                          \
    ((size_t)1 << 20) // for what a message claims; it grows with what has come of it

enum socket_kind {
    SOCKET_MESSAGE = 1,
    SOCKET_COLLECTIVE,
    SOCKET_BYE,
    SOCKET_GIVES_UP,
    SOCKET_ALIVE // its sender is at work outside of any call: who waits for it waits on
};

// A message on its way out. Belongs to whoever waits for it; zeroed: nothing is on its way.
struct socket_send {
    struct socket_send *next;
    const uint8_t *x;
    size_t bytes, sent; // sent counts the header too
    uint8_t header[SOCKET_HEADER_BYTES];
    int to; // of comm_socket.c
    bool pending;
};

// A message that a call waits for.
struct socket_recv {
    struct socket_recv *next;
    uint32_t group;
    enum socket_kind kind;
    int32_t tag;
    uint8_t *x;
    size_t bytes;
    size_t came; // as its sender says; SIZE_MAX: a collective, and the sender is at another one
    bool pending, claims; // claims: an early message, the rest of which is on its way
};

// A message that came before anybody waited for it.
struct socket_early {
    struct socket_early *next;
    uint32_t group;
    enum socket_kind kind;
    int32_t tag;
    size_t bytes, have;
    struct socket_recv *claimed; // whoever waits for the rest of it; NULL: nobody yet
    uint8_t *data;               // (room), owned
    size_t room;
};

struct socket_peer {
    int fd;   // -1: this rank itself, or gone
    bool bye; // it ended in good order
    struct socket_send *out, **out_end;
    struct socket_recv *posted, **posted_end;
    struct socket_early *early, **early_end;
    size_t early_bytes;
    bool asked;  // somebody looks for a message of it: also behind others
    bool full;   // TCP takes nothing more for it, until poll says otherwise
    uint8_t *rx; // read, not looked at: rx_at..rx_len
    size_t rx_at, rx_len;
    // The message whose payload comes now: `left` bytes to `at` (NULL: dropped)
    size_t left;
    uint8_t *at;
    struct socket_recv *into;
    struct socket_early *aside;
    struct socket_send alive;
};

struct socket_hub {
    int rank, size;
    int64_t timeout_ms;
    struct socket_peer *peers; // (size)
    struct pollfd *fds;        // (size)
    neb_ns looked_at;          // when all were looked at last
    uint32_t next_group;
    enum neb_status failed; // of the first failure; every later call returns it
    bool gave_up, divergence;
    bool lost; // another rank is the reason of `failed`
    // the first rank that went without a goodbye, why, and when; 0: none has
    int gone;
    char why[128];
    neb_ns gone_at;
    // while a call waits: for whom, and in what
    const char *what;
    int waits_for;
    neb_ns alive_at; // when this rank last said that it is at work
};

// ---- comm_socket_io.c ----
NEB_MUST_CHECK enum neb_status socket_hub_create(int rank, int size, int64_t timeout_ms,
                                                 struct socket_hub **out);
// Closes everything. polite: says goodbye and waits, bounded, until the others have read all and done the same.
void socket_hub_destroy(struct socket_hub **hub, bool polite);
void socket_hub_give_up(struct socket_hub *hub);
void socket_alive(struct socket_hub *hub); // intra_comm_ops.alive
// Queue a message to `to`, or the wait for one from `from`. s, r and the buffers stay the caller's and where they are until socket_wait_*.
void socket_post_send(struct socket_hub *hub, int to, uint32_t group, enum socket_kind kind,
                      int32_t tag, const void *x, size_t bytes, struct socket_send *s);
void socket_post_recv(struct socket_hub *hub, int from, uint32_t group, enum socket_kind kind,
                      int32_t tag, void *x, size_t bytes, struct socket_recv *r);
// r, of a message from this rank itself, is no longer waited for. One from another rank, of which a part may be here, is waited for until the
// hub fails, and r and its buffer may go once it has: nothing is read then.
void socket_unpost(struct socket_hub *hub, int from, struct socket_recv *r);
// Until it is no longer pending. NEB_ERR_TIMEOUT: not a byte moved for timeout_ms; NEB_ERR_IO: a rank is gone, or gave up.
NEB_MUST_CHECK enum neb_status socket_wait_send(struct socket_hub *hub, int to,
                                                struct socket_send *s, const char *what);
NEB_MUST_CHECK enum neb_status socket_wait_recv(struct socket_hub *hub, int from,
                                                struct socket_recv *r, const char *what);
// What came from `peer` belongs to another collective.
NEB_MUST_CHECK enum neb_status socket_disagree(struct socket_hub *hub, int peer, const char *what);
// One look at all connections; never blocks.
NEB_MUST_CHECK enum neb_status socket_poll_all(struct socket_hub *hub);
// Writes what `peer` takes at once. And a look at all, but not with every call.
NEB_MUST_CHECK enum neb_status socket_push(struct socket_hub *hub, int peer);
// Has a message come? Looks at `from`, and at all, but not with every call.
NEB_MUST_CHECK enum neb_status socket_poll_message(struct socket_hub *hub, int from, uint32_t group,
                                                   int32_t tag, bool *out);
// A message to oneself.
NEB_MUST_CHECK enum neb_status socket_send_self(struct socket_hub *hub, uint32_t group, int32_t tag,
                                                const void *x, size_t bytes);
// What was sent to a group that is gone.
void socket_forget(struct socket_hub *hub, uint32_t group);
NEB_MUST_CHECK enum neb_status socket_usable(const struct socket_hub *hub);

// ---- comm_socket_start.c ----
// Fills hub->peers[].fd.
NEB_MUST_CHECK enum neb_status socket_start(struct socket_hub *hub,
                                            const struct intra_comm_socket_config *c);
// Where another rank listens, by rank 0's table, for a rank that is at `own` and has rank 0 at `root`. NEB_ERR_FORMAT.
struct sockaddr_storage;
NEB_MUST_CHECK enum neb_status socket_start_entry(const uint8_t e[SOCKET_ENTRY_BYTES],
                                                  const struct sockaddr_storage *own,
                                                  const struct sockaddr_storage *root,
                                                  struct sockaddr_storage *out);

// ---- comm_socket.c, comm_socket_reduce.c ----
struct socket_group {
    struct socket_hub *hub;
    uint32_t id;
    int *ranks;        // (size) of the hub
    uint32_t sequence; // of collectives
    // room for collectives, made by the first: (SOCKET_PIECES, size) messages of each kind and pieces
    struct socket_send *sends, *gives;
    struct socket_recv *recvs, *takes;
    uint8_t *stage;
};
static inline struct socket_group *socket_group_of(struct intra_comm *c) { return c->ctx; }
void socket_group_free_room(struct socket_group *g);

enum neb_status socket_all_reduce(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op);
enum neb_status socket_reduce(struct intra_comm *c, float *x, size_t n, int root);
enum neb_status socket_reduce_scatter(struct intra_comm *c, float *x, size_t n);
enum neb_status socket_all_gather(struct intra_comm *c, float *x, size_t n);
enum neb_status socket_broadcast(struct intra_comm *c, void *x, size_t bytes, int root);
enum neb_status socket_barrier(struct intra_comm *c);

#endif
