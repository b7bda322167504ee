// SPDX-License-Identifier: Apache-2.0
// Inside of the communicator over TCP. Only comm_socket*.c and a test include this.
//
//     comm_socket.c          the interface of comm.h: groups, messages
//     comm_socket_reduce.c   collectives, made of messages
//     comm_socket_io.c       frames over the connections: one thread, poll(2)
//     comm_socket_start.c    ranks find each other and authenticate; all connections
//
// A frame, little-endian:
//
//     group u32 | kind u32 | tag i32 | bytes u64 | payload
//
// Each pair of ranks has one connection. Whenever a call waits, outgoing data is written and all
// connections are read. A rank that no call waits for is read only until EARLY_SOFT bytes of it are
// unclaimed, and no message above EARLY_ALONE is read from it; TCP then makes that rank wait.
//
// A message may have any length: it goes from the sender's buffer into the receiver's. Only a
// message that arrives before a call waits for it takes memory here, at most EARLY_MAX bytes per
// rank.
#ifndef INTRA_COMM_SOCKET_H
#define INTRA_COMM_SOCKET_H
#include "agent/base/clock.h"
#include "intra/ranks/comm.h"

#include <poll.h>

enum {
    SOCKET_HEADER_BYTES = 20,
    SOCKET_TOKEN_BYTES = 32,
    SOCKET_ENTRY_BYTES = 20,        // entry of rank 0's table: family u16, port u16, address
    SOCKET_PIECE_BYTES = 128 << 10, // of a collective, sent and added at once
    SOCKET_PIECES = 3,              // pieces in flight
};
#define SOCKET_MESSAGE_MAX (((size_t)1 << 40) - 1) // bytes; more is not a valid frame
#define SOCKET_EARLY_SOFT  ((size_t)4 << 20)
#define SOCKET_EARLY_ALONE ((size_t)64 << 20)
#define SOCKET_EARLY_MAX   ((size_t)4 << 30)
#define SOCKET_EARLY_ROOM                                                                          \
    ((size_t)1 << 20) // first buffer of an early message; it grows with the data that arrives

enum socket_kind {
    SOCKET_MESSAGE = 1,
    SOCKET_COLLECTIVE,
    SOCKET_BYE,
    SOCKET_GIVES_UP,
    SOCKET_ALIVE // the sender is busy outside of any call, so waits for it go on
};

// An outgoing message. The caller that waits for it owns it. Zeroed: none.
struct socket_send {
    struct socket_send *next;
    const uint8_t *x;
    size_t bytes, sent; // sent counts the header, too
    uint8_t header[SOCKET_HEADER_BYTES];
    int to; // used by comm_socket.c
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
    size_t came;          // size of the message; SIZE_MAX: the sender is at another collective
    bool pending, claims; // claims: it has a socket_early whose rest is in flight
};

// A message that arrived before a call waited for it.
struct socket_early {
    struct socket_early *next;
    uint32_t group;
    enum socket_kind kind;
    int32_t tag;
    size_t bytes, have;
    struct socket_recv *claimed; // the call that waits for the rest; NULL: none yet
    uint8_t *data;               // (room), owned
    size_t room;
};

struct socket_peer {
    int fd;   // -1: this rank itself, or closed
    bool bye; // it has sent its goodbye
    struct socket_send *out, **out_end;
    struct socket_recv *posted, **posted_end;
    struct socket_early *early, **early_end;
    size_t early_bytes;
    // a caller polls for its messages: they are read although earlier ones are unclaimed
    bool asked;
    bool full;   // TCP takes no more data until poll reports it
    uint8_t *rx; // read, but not parsed: rx_at..rx_len
    size_t rx_at, rx_len;
    // the message that is being read: `left` bytes go to `at` (NULL: they are dropped)
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
    neb_ns looked_at;          // time of the last look at all connections
    uint32_t next_group;
    enum neb_status failed; // the first failure; every later call returns it
    bool gave_up, closing;
    bool lost; // another rank caused `failed`
    // the first rank that left without a goodbye, why, and when; gone_at 0: none
    int gone;
    char why[128];
    neb_ns gone_at;
    // while a call waits: its name, and the rank that it waits for
    const char *what;
    int waits_for;
    neb_ns alive_at; // when SOCKET_ALIVE was last sent
};

// ---- comm_socket_io.c ----
NEB_MUST_CHECK enum neb_status socket_hub_create(int rank, int size, int64_t timeout_ms,
                                                 struct socket_hub **out);
// Closes everything. polite: first sends a goodbye and waits, for a limited time, until the others
// have read everything and sent theirs.
void socket_hub_destroy(struct socket_hub **hub, bool polite);
void socket_hub_give_up(struct socket_hub *hub);
void socket_alive(struct socket_hub *hub); // intra_comm_ops.alive
// Queues a message to `to`, or a receive from `from`. The caller keeps s, r and the buffers
// unchanged until socket_wait_send or socket_wait_recv returns.
void socket_post_send(struct socket_hub *hub, int to, uint32_t group, enum socket_kind kind,
                      int32_t tag, const void *x, size_t bytes, struct socket_send *s);
void socket_post_recv(struct socket_hub *hub, int from, uint32_t group, enum socket_kind kind,
                      int32_t tag, void *x, size_t bytes, struct socket_recv *r);
// Withdraws a receive from this rank itself. A receive from another rank cannot be withdrawn,
// because a part of it may have arrived. Once the hub has failed nothing is read, and r and its
// buffer may go.
void socket_unpost(struct socket_hub *hub, int from, struct socket_recv *r);
// Wait until s or r is not pending. NEB_ERR_TIMEOUT: no byte moved for timeout_ms; NEB_ERR_IO: a
// rank is gone, or gave up.
NEB_MUST_CHECK enum neb_status socket_wait_send(struct socket_hub *hub, int to,
                                                struct socket_send *s, const char *what);
NEB_MUST_CHECK enum neb_status socket_wait_recv(struct socket_hub *hub, int from,
                                                struct socket_recv *r, const char *what);
// Fails the hub: the data from `peer` belongs to another collective.
NEB_MUST_CHECK enum neb_status socket_disagree(struct socket_hub *hub, int peer, const char *what);
// Looks once at all connections. Never blocks.
NEB_MUST_CHECK enum neb_status socket_poll_all(struct socket_hub *hub);
// Writes what `peer` takes at once. Now and then it also looks at all connections.
NEB_MUST_CHECK enum neb_status socket_push(struct socket_hub *hub, int peer);
// *out: a message has arrived. Looks at `from`, and now and then at all connections.
NEB_MUST_CHECK enum neb_status socket_poll_message(struct socket_hub *hub, int from, uint32_t group,
                                                   int32_t tag, bool *out);
// Stores a message of this rank to itself.
NEB_MUST_CHECK enum neb_status socket_send_self(struct socket_hub *hub, uint32_t group, int32_t tag,
                                                const void *x, size_t bytes);
// Drops the messages to a group that was destroyed.
void socket_forget(struct socket_hub *hub, uint32_t group);
NEB_MUST_CHECK enum neb_status socket_usable(const struct socket_hub *hub);

// ---- comm_socket_start.c ----
// Connects all ranks: fills hub->peers[].fd.
NEB_MUST_CHECK enum neb_status socket_start(struct socket_hub *hub,
                                            const struct intra_comm_socket_config *c);
// Decodes an entry of rank 0's table: where another rank listens, as seen from a rank at `own` that
// reaches rank 0 at `root`. NEB_ERR_FORMAT.
struct sockaddr_storage;
NEB_MUST_CHECK enum neb_status socket_start_entry(const uint8_t e[SOCKET_ENTRY_BYTES],
                                                  const struct sockaddr_storage *own,
                                                  const struct sockaddr_storage *root,
                                                  struct sockaddr_storage *out);

// ---- comm_socket.c, comm_socket_reduce.c ----
struct socket_group {
    struct socket_hub *hub;
    uint32_t id;
    int *ranks;        // (size) ranks in the hub
    uint32_t sequence; // number of the last collective
    // made by the first collective: (SOCKET_PIECES, size) messages of each kind, and as many pieces
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
