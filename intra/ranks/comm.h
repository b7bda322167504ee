// SPDX-License-Identifier: Apache-2.0
// Collectives between the ranks of one cluster, behind one table of functions: `self` (one rank, no
// library), `mpi` (host memory, over MPI), `socket` (host memory, over TCP without a library),
// `nccl` (device memory). Every implementation passes tests/conform/test_comm.c. So does `loop`
// (agent/lib/ranks.h): messages like those of nccl, but sizes are checked, and it has no split.
//
// Rules for all implementations:
//
// - A communicator is a group of ranks 0..size-1. All its ranks call each collective, in the same
//   order and with the same sizes. Otherwise the behaviour is undefined (a hang, a wrong sum, an
//   error).
// - Buffers belong to the caller: host memory for self, mpi and socket; device memory for nccl,
//   which also takes host memory and stages it.
// - A call blocks until its result is in the buffer, unless the slot says otherwise. It may wait
//   for the slowest rank.
// - A reduction leaves the same bits on every rank. The same inputs, ranks and library give the
//   same bits again, so replicated parameters stay equal. Groups of different size may round
//   differently.
// - One thread uses a communicator and those split from it.
// - Errors: NEB_ERR_IO (the library or another rank failed; logged here), NEB_ERR_TIMEOUT (nccl,
//   socket: another rank did not answer in time), NEB_ERR_NOMEM, NEB_ERR_STATE (after abort). After
//   any error the group is lost: abort it, and restart from a checkpoint.
// - Arrays and messages may have any length. What a library cannot take at once is sent in pieces,
//   with the same result.
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

// A send in flight. Zeroed: none.
struct intra_comm_send {
    void *handle; // of the implementation
};

struct intra_comm_ops {
    const char *name;

    // x (n) becomes the sum or maximum over all ranks. n may be 0.
    enum neb_status (*all_reduce)(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op);
    // x (n) fp32: on rank root it becomes the sum over all ranks; on the others it is undefined.
    enum neb_status (*reduce)(struct intra_comm *c, float *x, size_t n, int root);
    // x (size, n) fp32: row `rank` becomes the sum of that row over all ranks; the other rows are
    // undefined.
    enum neb_status (*reduce_scatter)(struct intra_comm *c, float *x, size_t n);
    // x (size, n) fp32: each rank has filled its row `rank`; afterwards every rank has all rows.
    enum neb_status (*all_gather)(struct intra_comm *c, float *x, size_t n);
    // x (bytes) of rank root is copied to all ranks.
    enum neb_status (*broadcast)(struct intra_comm *c, void *x, size_t bytes, int root);

    // Optional, both or none. NULL: a caller with data in a device's queue waits for the queue,
    // then calls the slots above. Puts a collective into `queue`, a cudaStream_t of this process's
    // device. x is device memory; n as above; t and op for an all-reduce. Returns when the
    // collective is enqueued. If many are in flight, it first waits for an earlier one, with the
    // time limit of any call. All ranks make their calls in the same order, enqueued or not.
    enum neb_status (*enqueue)(struct intra_comm *c, enum intra_comm_kind kind, void *x, size_t n,
                               enum intra_comm_type t, enum intra_comm_op op, void *queue);
    // Gives a wait for such a queue its time limit. The caller calls it repeatedly while it waits,
    // the first time with `first` true. NEB_OK: wait on. After an error c is aborted: the queue
    // runs to its end, without the results of what was enqueued.
    enum neb_status (*look)(struct intra_comm *c, bool first);

    // Point to point. Messages between two ranks with the same tag arrive in the order of sending.
    // A message is received with exactly its size and tag. nccl ignores tags and does not check
    // sizes: it matches messages by their order alone, and a receive waits for this rank's earlier
    // sends on the communicator. So ranks must not send in a circle before they receive, and no
    // rank sends to itself. socket keeps early messages, up to 4 GiB per sender, while calls wait
    // for other messages of that sender.
    //
    // send does not wait for the receiver. The library owns the buffer until wait returns; for a
    // long message that may be when the receiver takes it. wait on a zeroed or finished send
    // returns at once. It clears *s, also after an error.
    enum neb_status (*send)(struct intra_comm *c, const void *x, size_t bytes, int to, int tag,
                            struct intra_comm_send *s);
    enum neb_status (*wait)(struct intra_comm *c, struct intra_comm_send *s);
    enum neb_status (*recv)(struct intra_comm *c, void *x, size_t bytes, int from, int tag);

    // Optional (NULL: receive at once). *ready: a message from this rank with this tag is there.
    // Never blocks, so a caller can sleep between calls; recv may keep a processor busy.
    enum neb_status (*poll)(struct intra_comm *c, int from, int tag, bool *ready);

    enum neb_status (*barrier)(struct intra_comm *c);
    // Collective over c. Ranks with the same color (>= 0) form a new communicator, ordered by key,
    // then by old rank. The caller owns it, destroys it before c, and must not use it after an
    // abort of c.
    enum neb_status (*split)(struct intra_comm *c, int color, int key, struct intra_comm **out);

    // Optional (NULL: nothing to do). Not collective. Ends what other ranks wait for. mpi ends all
    // processes of the job and does not return. nccl aborts outstanding calls, and later calls on
    // this communicator fail with NEB_ERR_STATE. socket closes the connections of all its groups,
    // so the calls of the other ranks fail.
    void (*abort)(struct intra_comm *c);
    // Optional (NULL: false). True if a call failed because another rank died, gave up or hangs.
    // Then this rank's own error is not the cause, and restarting all ranks may help.
    bool (*lost)(struct intra_comm *c);
    // Optional (NULL: waits have no time limit that a busy rank could exceed). Tells the ranks that
    // wait for this one that it is busy with something long, such as a file, so their waits go on.
    // Usually costs one look at the clock. Not collective; does nothing inside a call.
    void (*alive)(struct intra_comm *c);
    // Frees c. Collective over its ranks; after an error or abort any rank may call it alone.
    void (*destroy)(struct intra_comm *c);
};

struct intra_comm {
    const struct intra_comm_ops *ops;
    void *ctx; // of the implementation
    int rank, size;
};

// One rank alone. NEB_ERR_NOMEM only.
NEB_MUST_CHECK enum neb_status intra_comm_self(struct intra_comm **out);
// The ranks that mpirun started. Loads libnebula_mpi.so from the folder of the program, its parent,
// or ../lib/nebula. At most once per process; destroy it before the process exits.
// NEB_ERR_UNSUPPORTED: the object or its MPI library cannot be loaded; NEB_ERR_STATE: MPI was
// started before in this process.
NEB_MUST_CHECK enum neb_status intra_comm_mpi(struct intra_comm **out);
// Checks that libnebula_mpi.so exists, for a program that starts ranks. NEB_ERR_UNSUPPORTED: the
// message names the folders that were searched.
NEB_MUST_CHECK enum neb_status intra_comm_mpi_find(void);
bool intra_comm_mpi_there(void); // the same, without a message
// Ranks over TCP. Rank 0 listens at host:port, and the others find each other through it. Each pair
// has one connection, on which both prove that they know `token` (HMAC-SHA256 of a challenge). The
// data is neither encrypted nor signed, as with MPI and NCCL: this is for the network inside a
// cluster. Other connections are dropped. A wait ends with an error if not a byte moves for
// timeout_ms.
struct intra_comm_socket_config {
    int rank, size;
    const char *host; // of rank 0: name or address
    int port;
    bool one_host;        // all ranks share a host: listen only inside it
    int listener;         // rank 0: a listening socket to take over; -1: none
    const uint8_t *token; // (32)
    // Time limits. start_ms: since the last rank connected (for rank 0 to appear: five times that);
    // start_max_ms: until all are there; timeout_ms: of later waits. 0: 2, 30 and 10 minutes.
    int64_t start_ms, start_max_ms, timeout_ms;
};
// Logs the missing ranks while it waits. The wait ends if a connected rank ends, or if the launcher
// ends this process. NEB_ERR_TIMEOUT: not all ranks came in time, the message names them;
// NEB_ERR_DENIED: the process that answers does not know the token.
NEB_MUST_CHECK enum neb_status intra_comm_socket(const struct intra_comm_socket_config *c,
                                                 struct intra_comm **out);
// The same from the environment: see rank_env.h, the token as 64 hexadecimal digits, and for rank 0
// optionally the descriptor of a listener. The last two are removed from the environment.
// NEB_ERR_DENIED also: no token.
#define INTRA_TOKEN_VARIABLE    "NEBULA_RANKS_TOKEN"
#define INTRA_LISTENER_VARIABLE "NEBULA_RANKS_LISTENER"
NEB_MUST_CHECK enum neb_status intra_comm_socket_env(struct intra_comm **out);
// The ranks of this process's launcher: over TCP if the environment has a token, else over MPI.
// NEB_ERR_DENIED: torchrun started the process and gave no token.
NEB_MUST_CHECK enum neb_status intra_comm_launched(struct intra_comm **out);
// The same ranks as `boot`, over NCCL on CUDA device `device` of this process. Collective over
// boot, which only carries NCCL's identifier to all ranks. A call gives up after timeout_ms.
// NEB_ERR_UNSUPPORTED, on all ranks: one of them lacks libnebula_nccl.so, NCCL or the device.
NEB_MUST_CHECK enum neb_status intra_comm_nccl(struct intra_comm *boot, int device,
                                               int64_t timeout_ms, struct intra_comm **out);
void intra_comm_destroy(struct intra_comm **c); // NULL-safe
// One status for all ranks: NEB_OK if all of them pass it, else that of the first rank that fails.
// A failure that one rank finds alone (a missing file) must not leave the others waiting for it.
// The ranks that have not failed log which rank failed and its last error. NULL: returns st.
NEB_MUST_CHECK enum neb_status intra_comm_agree(struct intra_comm *c, enum neb_status st);

static inline size_t intra_comm_type_bytes(enum intra_comm_type t) {
    return t == INTRA_COMM_F32 ? 4 : 8;
}

// For implementations. make: a communicator whose ctx is `bytes` zeroed bytes. NEB_ERR_NOMEM. free:
// ctx and the communicator. fold: x (n) becomes the sum or maximum of x and y.
NEB_MUST_CHECK enum neb_status intra_comm_make(const struct intra_comm_ops *ops, size_t bytes,
                                               int rank, int size, struct intra_comm **out);
void intra_comm_free(struct intra_comm *c);
void intra_comm_fold(void *x, const void *y, size_t n, enum intra_comm_type t,
                     enum intra_comm_op op);

// Exported by the loadable objects: intra_comm_mpi_open and intra_comm_nccl_open. `version` refuses
// an object of another build.
enum { INTRA_COMM_VERSION = 5 };
typedef enum neb_status intra_comm_mpi_opener(int version, struct intra_comm **out);
typedef enum neb_status intra_comm_nccl_opener(int version, struct intra_comm *boot, int device,
                                               int64_t timeout_ms, struct intra_comm **out);

#endif
