// SPDX-License-Identifier: Apache-2.0
// Collectives between the ranks of one cluster, behind one table: `self` (one rank, no library), `mpi` and `socket` (host
// memory; over MPI, over TCP without any library), `nccl` (device memory). Every implementation passes tests/conform/test_comm.c.
//
// What holds for all of them:
//
// - A communicator is a group of ranks 0..size-1. Each collective is called by all ranks of it, in the same order, with
//   the same sizes; what happens otherwise is undefined (a hang, a wrong sum, an error).
// - Buffers are the caller's: in host memory for self, mpi and socket; in device memory for nccl, which also takes host memory and
//   stages it.
// - A call blocks until its result is in the buffer, unless the slot says otherwise, and may wait for the slowest rank.
// - A reduction leaves the same bits on every rank, and the same bits again for the same inputs, ranks and library.
//   Replicated parameters stay equal because of it. Between different group sizes results differ by rounding.
// - One thread uses a communicator and those split from it.
// - Errors: NEB_ERR_IO (the library or a peer failed; logged here), NEB_ERR_TIMEOUT (nccl, socket: a peer did not come in
//   time), NEB_ERR_NOMEM, NEB_ERR_STATE (after abort). After any error the group is lost: abort it, and start again from a checkpoint.
// - Arrays and messages may be as long as memory: what a library cannot take at once goes in pieces, with the same result.
#ifndef INTRA_COMM_H
#define INTRA_COMM_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum intra_comm_type { INTRA_COMM_F32, INTRA_COMM_F64, INTRA_COMM_U64 };
enum intra_comm_op { INTRA_COMM_SUM, INTRA_COMM_MAX };

enum intra_comm_kind { INTRA_COMM_ALL_REDUCE, INTRA_COMM_REDUCE_SCATTER, INTRA_COMM_ALL_GATHER };

struct intra_comm;

// A send in progress. Zeroed: none.
struct intra_comm_send {
    void *handle; // the implementation's
};

struct intra_comm_ops {
    const char *name;

    // x (n) = sum or maximum over all ranks, in place. n 0 is allowed.
    enum neb_status (*all_reduce)(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op);
    // x (n) fp32: afterwards rank root holds the sum over all ranks; on the others x is undefined.
    enum neb_status (*reduce)(struct intra_comm *c, float *x, size_t n, int root);
    // x (size, n) fp32: afterwards row `rank` holds the sum of that row over all ranks; the other rows are undefined.
    enum neb_status (*reduce_scatter)(struct intra_comm *c, float *x, size_t n);
    // x (size, n) fp32: every rank has filled row `rank`; afterwards all rows are filled on every rank.
    enum neb_status (*all_gather)(struct intra_comm *c, float *x, size_t n);
    // x (bytes) of rank root reaches all.
    enum neb_status (*broadcast)(struct intra_comm *c, void *x, size_t bytes, int root);

    // Optional, both or none (NULL: who has x in a device's queue waits for that, then calls the above). One of the above in `queue`, a
    // cudaStream_t of the calling process's device: behind all that is in it and before what comes next. x is device memory; n, type
    // and op as there, the last two of an all-reduce. Returns when it is enqueued; where several are under way, when an earlier one
    // has ended, which is waited for as long as for any call. All ranks give their calls in one order, whichever way.
    enum neb_status (*enqueue)(struct intra_comm *c, enum intra_comm_kind kind, void *x, size_t n,
                               enum intra_comm_type t, enum intra_comm_op op, void *queue);
    // Who waits for such a queue has no time limit from it: he asks again and again, beginning with `first`, and waits on while this is
    // NEB_OK. After an error c is given up: what was enqueued ends without a result, and the queue runs on.
    enum neb_status (*look)(struct intra_comm *c, bool first);

    // Point to point. Messages from one rank to another with one tag arrive in the order of sending; a message is
    // received with exactly its size and tag. nccl ignores tags and sizes that differ: there the order alone pairs
    // messages, and a receive waits for this rank's earlier sends of the same communicator; so ranks must not send in a
    // circle before they receive, and none sends to itself.
    // send does not wait for the receiver; the buffer is the library's until wait() returns, which for a long message
    // may be when its receiver takes it. wait on a zeroed or finished send returns at once; it clears *s also on failure.
    // socket: messages that nobody waits for, while their rank is waited for with something else, are kept, 4 GiB of them.
    enum neb_status (*send)(struct intra_comm *c, const void *x, size_t bytes, int to, int tag,
                            struct intra_comm_send *s);
    enum neb_status (*wait)(struct intra_comm *c, struct intra_comm_send *s);
    enum neb_status (*recv)(struct intra_comm *c, void *x, size_t bytes, int from, int tag);

    // Optional (NULL: receive at once). Is there a message from this rank with this tag? Never blocks: who waits long can
    // sleep in between, where recv may keep a processor busy.
    enum neb_status (*poll)(struct intra_comm *c, int from, int tag, bool *ready);

    enum neb_status (*barrier)(struct intra_comm *c);
    // Collective over c: ranks with the same color (>= 0) form a new communicator, ordered by key, then by old rank.
    // The new one is the caller's, may outlive no abort of c, and is destroyed before c.
    enum neb_status (*split)(struct intra_comm *c, int color, int key, struct intra_comm **out);

    // Optional (NULL: nothing to do). Ends what other ranks wait for: mpi ends all processes of the job and does not
    // return; nccl gives up outstanding calls, and later calls of this communicator fail with NEB_ERR_STATE; socket ends its
    // connections, those of all its groups, so that the others' calls fail. Not collective.
    void (*abort)(struct intra_comm *c);
    // Optional (NULL: false). Has a call failed because another rank died, gave up or hangs? Then this rank's own failure says
    // nothing, and starting all of them again may help.
    bool (*lost)(struct intra_comm *c);
    // Optional (NULL: nobody waits with a time limit, or not for what lasts). This rank is at work at something long, such as a file: those
    // that wait for it wait on. Costs a look at the clock, mostly. Not collective; does nothing from within a call.
    void (*alive)(struct intra_comm *c);
    // Frees c. Collective over its ranks in good order; after an error or abort any rank may call it alone.
    void (*destroy)(struct intra_comm *c);
};

struct intra_comm {
    const struct intra_comm_ops *ops;
    void *ctx; // the implementation's
    int rank, size;
};

// One rank alone. Never fails but for memory.
NEB_MUST_CHECK enum neb_status intra_comm_self(struct intra_comm **out);
// The ranks that mpirun started this process with. The object libnebula_mpi.so is looked for beside the program and in
// ../lib/nebula; NEB_ERR_UNSUPPORTED when it or its MPI library cannot be loaded. At most once a process, and to be
// destroyed before it exits.
NEB_MUST_CHECK enum neb_status intra_comm_mpi(struct intra_comm **out);
// Whether the object is there at all, for whoever starts the ranks. NEB_ERR_UNSUPPORTED says where it was looked for.
NEB_MUST_CHECK enum neb_status intra_comm_mpi_find(void);
bool intra_comm_mpi_there(void); // the same, silent
// Ranks over TCP. Rank 0 listens at host:port, the others find each other through it, and each pair has one connection, on which
// both have proved that they know `token` (HMAC-SHA256 of a challenge; what follows is neither encrypted nor signed, as with MPI and
// NCCL: it is for the network inside a cluster). Strangers are dropped. Not a byte is waited for longer than timeout_ms.
struct intra_comm_socket_config {
    int rank, size;
    const char *host; // of rank 0: name or address
    int port;
    bool one_host;        // all ranks share a host: nothing listens beyond it
    int listener;         // rank 0: a socket that listens already, taken over; -1: none
    const uint8_t *token; // (32)
    // Since the last rank has come (for rank 0, which shows nobody else, five times that); until all are there; of any later wait. 0: 2,
    // 30 and 10 minutes
    int64_t start_ms, start_max_ms, timeout_ms;
};
// Who is missing is logged while it is waited for. A rank that has come and ends ends the wait, as does a launcher that ends its ranks.
// NEB_ERR_TIMEOUT: not all ranks came in time, says which; NEB_ERR_DENIED: who answers does not know the token.
NEB_MUST_CHECK enum neb_status intra_comm_socket(const struct intra_comm_socket_config *c,
                                                 struct intra_comm **out);
// As the environment says: intra/ranks/rank_env.h, the token as 64 hexadecimal digits, and for rank 0 perhaps a listener's descriptor; the
// last two are taken out of it. NEB_ERR_DENIED also: no token.
#define INTRA_TOKEN_VARIABLE    "NEBULA_RANKS_TOKEN"
#define INTRA_LISTENER_VARIABLE "NEBULA_RANKS_LISTENER"
NEB_MUST_CHECK enum neb_status intra_comm_socket_env(struct intra_comm **out);
// The ranks of whoever started this process: over TCP where the environment has a token, else over MPI. NEB_ERR_DENIED: torchrun started
// it, and gave no token.
NEB_MUST_CHECK enum neb_status intra_comm_launched(struct intra_comm **out);
// The same ranks as `boot` over NCCL on the CUDA device `device` of this process: boot carries the identifier to all
// ranks and is otherwise not used. A call gives up after timeout_ms. NEB_ERR_UNSUPPORTED on all ranks where one lacks
// libnebula_nccl.so, NCCL or the device. Collective over boot.
NEB_MUST_CHECK enum neb_status intra_comm_nccl(struct intra_comm *boot, int device,
                                               int64_t timeout_ms, struct intra_comm **out);
void intra_comm_destroy(struct intra_comm **c); // NULL-safe

static inline size_t intra_comm_type_bytes(enum intra_comm_type t) {
    return t == INTRA_COMM_F32 ? 4 : 8;
}

// What a loadable object exports: intra_comm_mpi_open and intra_comm_nccl_open. `version` guards against an object of
// another build.
enum { INTRA_COMM_VERSION = 5 };
typedef enum neb_status intra_comm_mpi_opener(int version, struct intra_comm **out);
typedef enum neb_status intra_comm_nccl_opener(int version, struct intra_comm *boot, int device,
                                               int64_t timeout_ms, struct intra_comm **out);

#endif
