// SPDX-License-Identifier: Apache-2.0
// Collectives over NCCL (2.28), between GPUs. Built as its own object (libnebula_nccl.so). Buffers
// are in device memory. Host memory is staged through the device, so that the few numbers of a step
// need no second communicator.
//
// Communicators are non-blocking, and every wait has a time limit. A call that hangs because
// another rank died ends in time:
//
//     nccl… ──► ncclInProgress? poll ncclCommGetAsyncError ──► enqueued
//                       │                                         │ poll stream and async error
//                       │ error, or no time left                  ▼
//                       └──► ncclCommAbort, NEB_ERR_IO     done, or abort as on the left
//                            or NEB_ERR_TIMEOUT
//
// Each communicator has one stream, so its operations run in the order of the calls on every rank.
// A receive waits for the earlier sends of its communicator; ranks that send in a circle before
// they receive would wait for each other. So pipelines use two communicators, down and up (mesh.h).
// The first message between two ranks of a communicator connects them, and its send returns only
// when the receiver calls. So first messages on several communicators are received in the order of
// sending.
//
// Operations may also go into a queue of the caller (enqueue): the device orders them between the
// caller's kernels, and no host waits. Two calls find an operation that hangs: enqueue, which waits
// for an earlier operation, and look, which a caller calls while it waits for the queue. enqueue
// must never run far ahead, because a full queue blocks a launch without a time limit.
//
// Copies of host memory have their own stream, so they never wait behind a collective. Before a
// copy of pageable memory, CUDA may block the thread until the stream is empty, without a time
// limit.
#include "agent/base/clock.h"
#include "intra/ranks/comm.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// AHEAD: operations in the caller's queue, about ten blocks of a transformer's backward. With all
// kernels between them they stay below the limit of a CUDA queue (about 1,024 launches), where a
// launch blocks.
enum { AHEAD = 64, ABORT_S = 5 };

struct nccl {
    ncclComm_t comm; // NULL once aborted
    bool aborting;   // an abort still runs in its own thread
    cudaStream_t stream, copies;
    int64_t timeout_ms;
    neb_ns end; // time limit of the current call
    // said: the `lost` to set: this communicator's, or that of the one that it was split from
    bool lost, *said;
    struct {
        cudaEvent_t passed;
        const char *what; // NULL: free
    } ahead[AHEAD];       // ring, `turn` is next
    int turn;
};

static struct nccl *nccl_of(struct intra_comm *c) { return c->ctx; }

static void *abort_comm(void *comm) {
    (void)ncclCommAbort(comm); // frees it, too; an error has no consequence
    return NULL;
}

// An abort first ends the communicator's kernels, then frees memory. CUDA may then wait for all
// that the device runs, including another communicator that hangs and is aborted next. So the abort
// has its own thread, and the wait for it is short.
static void give_up(struct intra_comm *c) {
    struct nccl *n = nccl_of(c);
    struct timespec end;
    pthread_t thread;
    if (n->comm && pthread_create(&thread, NULL, abort_comm, n->comm) == 0) {
        (void)clock_gettime(CLOCK_REALTIME, &end);
        end.tv_sec += ABORT_S;
        n->aborting = pthread_timedjoin_np(thread, NULL, &end) != 0;
        if (n->aborting)
            (void)pthread_detach(thread);
    } else if (n->comm) {
        abort_comm(n->comm);
    }
    n->comm = NULL;
}

static void set_end(struct nccl *n) { n->end = neb_now() + n->timeout_ms * NEB_MS; }

// Starts the time limit of a call.
static enum neb_status begin(struct intra_comm *c, const char *what) {
    set_end(nccl_of(c));
    return nccl_of(c)->comm ? NEB_OK
                            : neb_fail(NEB_ERR_STATE,
                                       "NCCL: %s on a communicator that was aborted before", what);
}

// No rank can tell whether NCCL, a device or another rank caused the failure.
static bool lost(struct intra_comm *c) { return nccl_of(c)->lost; }

static enum neb_status broken(struct intra_comm *c, ncclResult_t r, const char *what) {
    const char *more = ncclGetLastError(nccl_of(c)->comm);
    bool has = more && *more;
    enum neb_status st =
        neb_fail(NEB_ERR_IO, "NCCL: %s failed on rank %d of %d: %s%s%s%s", what, c->rank, c->size,
                 ncclGetErrorString(r), has ? " (" : "", has ? more : "", has ? ")" : "");
    *nccl_of(c)->said = true;
    give_up(c);
    return st;
}

static enum neb_status late(struct intra_comm *c, const char *what) {
    enum neb_status st = neb_fail(NEB_ERR_TIMEOUT,
                                  "NCCL: %s on rank %d of %d has not ended after %lld ms: a rank "
                                  "or its network is gone, or the ranks made different calls",
                                  what, c->rank, c->size, (long long)nccl_of(c)->timeout_ms);
    *nccl_of(c)->said = true;
    give_up(c);
    return st;
}

static enum neb_status cuda_failed(struct intra_comm *c, cudaError_t e, const char *what) {
    enum neb_status st =
        neb_fail(e == cudaErrorMemoryAllocation ? NEB_ERR_NOMEM : NEB_ERR_IO,
                 "NCCL: %s on rank %d: CUDA error: %s", what, c->rank, cudaGetErrorString(e));
    *nccl_of(c)->said |= st == NEB_ERR_IO;
    give_up(c);
    return st;
}

// Spins first, because the collectives of a step end within microseconds.
static void pause_a_little(int turn) {
    const struct timespec t = {.tv_nsec = 50000};
    if (turn > 1000)
        nanosleep(&t, NULL);
}

// Waits until a call that returned r is enqueued.
static enum neb_status settle(struct intra_comm *c, ncclResult_t r, const char *what) {
    for (int turn = 0; r == ncclInProgress; turn++) {
        ncclResult_t asked = ncclCommGetAsyncError(nccl_of(c)->comm, &r);
        if (asked != ncclSuccess)
            return broken(c, asked, what);
        if (r == ncclInProgress && neb_now() > nccl_of(c)->end)
            return late(c, what);
        pause_a_little(turn);
    }
    return r == ncclSuccess ? NEB_OK : broken(c, r, what);
}

// Waits until the stream has run, or up to `event` unless it is NULL.
static enum neb_status finish(struct intra_comm *c, cudaStream_t s, cudaEvent_t event,
                              const char *what) {
    struct nccl *n = nccl_of(c);
    for (int turn = 0;; turn++) {
        ncclResult_t r = ncclSuccess;
        cudaError_t e = event ? cudaEventQuery(event) : cudaStreamQuery(s);
        if (e == cudaSuccess)
            return NEB_OK;
        if (e != cudaErrorNotReady)
            return cuda_failed(c, e, what);
        ncclResult_t asked = ncclCommGetAsyncError(n->comm, &r);
        if (asked != ncclSuccess || (r != ncclSuccess && r != ncclInProgress))
            return broken(c, asked != ncclSuccess ? asked : r, what);
        if (neb_now() > n->end)
            return late(c, what);
        pause_a_little(turn);
    }
}

// ---- host memory --------------------------------------------------------------------------------

// A buffer on the device: the caller's own, or a copy of a host buffer.
struct staged {
    void *host; // NULL: the buffer is device memory
    void *device;
    size_t bytes;
};

static enum neb_status copy(struct intra_comm *c, void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind kind) {
    struct nccl *n = nccl_of(c);
    // Memory from the pool may still wait for work of another stream.
    NEB_TRY(finish(c, n->copies, NULL, "staging a buffer"));
    cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, n->copies);
    return e == cudaSuccess ? finish(c, n->copies, NULL, "staging a buffer")
                            : cuda_failed(c, e, "staging a buffer");
}

// Frees the copy after the stream's use of it. Also needed after an error.
static void release(struct intra_comm *c, struct staged *s) {
    if (s->host)
        (void)cudaFreeAsync(s->device, nccl_of(c)->stream);
    s->host = NULL;
}

static enum neb_status stage(struct intra_comm *c, const void *x, size_t bytes, bool fill,
                             struct staged *out) {
    struct cudaPointerAttributes a;
    *out = (struct staged){.device = (void *)(uintptr_t)x, .bytes = bytes};
    if (bytes == 0)
        return NEB_OK;
    cudaError_t e = cudaPointerGetAttributes(&a, x);
    if (e != cudaSuccess)
        return cuda_failed(c, e, "examining a buffer");
    if (a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged)
        return NEB_OK;
    if ((e = cudaMallocAsync(&out->device, bytes, nccl_of(c)->copies)) != cudaSuccess)
        return cuda_failed(c, e, "staging a buffer");
    out->host = (void *)(uintptr_t)x;
    enum neb_status st = fill ? copy(c, out->device, x, bytes, cudaMemcpyHostToDevice)
                              : finish(c, nccl_of(c)->copies, NULL, "staging a buffer");
    if (st != NEB_OK)
        release(c, out);
    return st;
}

// Waits for the operation on s and copies its result back. st: status of enqueueing it.
static enum neb_status unstage(struct intra_comm *c, struct staged *s, enum neb_status st,
                               const char *what) {
    if (st == NEB_OK)
        st = finish(c, nccl_of(c)->stream, NULL, what);
    if (st == NEB_OK && s->host)
        st = copy(c, s->host, s->device, s->bytes, cudaMemcpyDeviceToHost);
    release(c, s);
    return st;
}

// ---- operations ---------------------------------------------------------------------------------

static ncclDataType_t type_of(enum intra_comm_type t) {
    return t == INTRA_COMM_F32 ? ncclFloat32 : t == INTRA_COMM_F64 ? ncclFloat64 : ncclUint64;
}

// A collective, in place on x.
enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };
struct call {
    enum kind kind;
    const char *what;
    size_t n; // elements; for scatter and gather those of one rank
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
};

static ncclResult_t start(struct intra_comm *c, const struct call *k, void *x, cudaStream_t s) {
    struct nccl *n = nccl_of(c);
    char *own = (char *)x + (size_t)c->rank * k->n * sizeof(float);
    switch (k->kind) {
    case ALL_REDUCE: return ncclAllReduce(x, x, k->n, k->type, k->op, n->comm, s);
    case REDUCE: return ncclReduce(x, x, k->n, k->type, k->op, k->root, n->comm, s);
    case REDUCE_SCATTER: return ncclReduceScatter(x, own, k->n, k->type, k->op, n->comm, s);
    case ALL_GATHER: return ncclAllGather(own, x, k->n, k->type, n->comm, s);
    case BROADCAST: return ncclBroadcast(x, x, k->n, k->type, k->root, n->comm, s);
    }
    return ncclInvalidArgument;
}

static enum neb_status collective(struct intra_comm *c, const struct call *k, void *x,
                                  size_t bytes) {
    struct staged s;
    NEB_TRY(begin(c, k->what));
    if (!bytes)
        return NEB_OK;
    NEB_TRY(stage(c, x, bytes, true, &s));
    return unstage(c, &s, settle(c, start(c, k, s.device, nccl_of(c)->stream), k->what), k->what);
}

static enum neb_status all_reduce(struct intra_comm *c, void *x, size_t n, enum intra_comm_type t,
                                  enum intra_comm_op op) {
    const struct call k = {.kind = ALL_REDUCE,
                           .what = "all-reduce",
                           .n = n,
                           .type = type_of(t),
                           .op = op == INTRA_COMM_SUM ? ncclSum : ncclMax};
    return collective(c, &k, x, n * intra_comm_type_bytes(t));
}

static enum neb_status reduce(struct intra_comm *c, float *x, size_t n, int root) {
    const struct call k = {
        .kind = REDUCE, .what = "reduce", .n = n, .type = ncclFloat32, .op = ncclSum, .root = root};
    NEB_ASSERT(root >= 0 && root < c->size);
    return collective(c, &k, x, n * sizeof *x);
}

static enum neb_status reduce_scatter(struct intra_comm *c, float *x, size_t n) {
    const struct call k = {.kind = REDUCE_SCATTER,
                           .what = "reduce-scatter",
                           .n = n,
                           .type = ncclFloat32,
                           .op = ncclSum};
    return collective(c, &k, x, n * (size_t)c->size * sizeof *x);
}

static enum neb_status all_gather(struct intra_comm *c, float *x, size_t n) {
    const struct call k = {.kind = ALL_GATHER, .what = "all-gather", .n = n, .type = ncclFloat32};
    return collective(c, &k, x, n * (size_t)c->size * sizeof *x);
}

static enum neb_status broadcast(struct intra_comm *c, void *x, size_t bytes, int root) {
    const struct call k = {
        .kind = BROADCAST, .what = "broadcast", .n = bytes, .type = ncclUint8, .root = root};
    NEB_ASSERT(root >= 0 && root < c->size);
    return collective(c, &k, x, bytes);
}

// Waits for the operation in the ring's next slot, so that the slot is free.
static enum neb_status await_turn(struct intra_comm *c) {
    struct nccl *n = nccl_of(c);
    cudaEvent_t *passed = &n->ahead[n->turn].passed;
    const char *what = n->ahead[n->turn].what;
    n->ahead[n->turn].what = NULL;
    if (what)
        return finish(c, NULL, *passed, what);
    cudaError_t e =
        *passed ? cudaSuccess : cudaEventCreateWithFlags(passed, cudaEventDisableTiming);
    return e == cudaSuccess ? NEB_OK : cuda_failed(c, e, "making an event");
}

static enum neb_status enqueue(struct intra_comm *c, enum intra_comm_kind kind, void *x, size_t n,
                               enum intra_comm_type t, enum intra_comm_op op, void *queue) {
    struct nccl *me = nccl_of(c);
    struct call k = {.kind = kind == INTRA_COMM_ALL_REDUCE       ? ALL_REDUCE
                             : kind == INTRA_COMM_REDUCE_SCATTER ? REDUCE_SCATTER
                                                                 : ALL_GATHER,
                     .n = n,
                     .type = type_of(t),
                     .op = op == INTRA_COMM_SUM ? ncclSum : ncclMax};
    static const char *const names[] = {[ALL_REDUCE] = "all-reduce",
                                        [REDUCE_SCATTER] = "reduce-scatter",
                                        [ALL_GATHER] = "all-gather"};
    k.what = names[k.kind];
    NEB_ASSERT(kind == INTRA_COMM_ALL_REDUCE || t == INTRA_COMM_F32);
    NEB_TRY(begin(c, k.what));
    if (n == 0)
        return NEB_OK;
    NEB_TRY(await_turn(c));
    set_end(me);
    NEB_TRY(settle(c, start(c, &k, x, queue), k.what));
    cudaError_t e = cudaEventRecord(me->ahead[me->turn].passed, queue);
    if (e != cudaSuccess)
        return cuda_failed(c, e, k.what);
    me->ahead[me->turn].what = k.what;
    me->turn = (me->turn + 1) % AHEAD;
    return NEB_OK;
}

// Name of the oldest operation in the caller's queue that has not ended.
static const char *under_way(const struct nccl *n) {
    for (int i = 0; i < AHEAD; i++) {
        int at = (n->turn + i) % AHEAD;
        if (n->ahead[at].what && cudaEventQuery(n->ahead[at].passed) == cudaErrorNotReady)
            return n->ahead[at].what;
    }
    return "an enqueued operation";
}

static enum neb_status look(struct intra_comm *c, bool first) {
    struct nccl *n = nccl_of(c);
    ncclResult_t r = ncclSuccess;
    if (!n->comm)
        return NEB_ERR_STATE; // logged before
    if (first)
        set_end(n);
    ncclResult_t asked = ncclCommGetAsyncError(n->comm, &r);
    if (asked != ncclSuccess || (r != ncclSuccess && r != ncclInProgress))
        return broken(c, asked != ncclSuccess ? asked : r, "an enqueued operation");
    return neb_now() > n->end ? late(c, under_way(n)) : NEB_OK;
}

struct sending {
    struct staged s;
    cudaEvent_t done;
};

static enum neb_status send(struct intra_comm *c, const void *x, size_t bytes, int to, int tag,
                            struct intra_comm_send *out) {
    struct nccl *n = nccl_of(c);
    (void)tag;
    out->handle = NULL;
    NEB_ASSERT(to >= 0 && to < c->size && to != c->rank);
    NEB_TRY(begin(c, "send"));
    struct sending *g = calloc(1, sizeof *g);
    if (!g)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a send of %zu bytes", bytes);
    cudaError_t e = cudaEventCreateWithFlags(&g->done, cudaEventDisableTiming);
    enum neb_status st =
        e == cudaSuccess ? stage(c, x, bytes, true, &g->s) : cuda_failed(c, e, "sending");
    if (st == NEB_OK)
        st = settle(c, ncclSend(g->s.device, bytes, ncclUint8, to, n->comm, n->stream), "send");
    if (st == NEB_OK && (e = cudaEventRecord(g->done, n->stream)) != cudaSuccess)
        st = cuda_failed(c, e, "sending");
    release(c, &g->s);
    if (st == NEB_OK) {
        out->handle = g;
        return NEB_OK;
    }
    if (g->done)
        (void)cudaEventDestroy(g->done);
    free(g);
    return st;
}

static enum neb_status wait_send(struct intra_comm *c, struct intra_comm_send *s) {
    struct sending *g = s->handle;
    s->handle = NULL;
    if (!g)
        return NEB_OK;
    enum neb_status st = begin(c, "send");
    if (st == NEB_OK)
        st = finish(c, NULL, g->done, "send");
    (void)cudaEventDestroy(g->done);
    free(g);
    return st;
}

static enum neb_status recv(struct intra_comm *c, void *x, size_t bytes, int from, int tag) {
    struct nccl *n = nccl_of(c);
    struct staged s;
    (void)tag;
    NEB_ASSERT(from >= 0 && from < c->size && from != c->rank);
    NEB_TRY(begin(c, "receive"));
    NEB_TRY(stage(c, x, bytes, false, &s));
    enum neb_status st =
        settle(c, ncclRecv(s.device, bytes, ncclUint8, from, n->comm, n->stream), "receive");
    return unstage(c, &s, st, "receive");
}

static enum neb_status barrier(struct intra_comm *c) {
    uint64_t nothing = 0;
    return all_reduce(c, &nothing, 1, INTRA_COMM_U64, INTRA_COMM_SUM);
}

// ---- communicators ------------------------------------------------------------------------------

static const struct intra_comm_ops nccl_ops;
static void destroy(struct intra_comm *c);

static enum neb_status make(int64_t timeout_ms, int rank, int size, struct intra_comm **out) {
    struct intra_comm *c;
    NEB_TRY(intra_comm_make(&nccl_ops, sizeof(struct nccl), rank, size, &c));
    struct nccl *n = nccl_of(c);
    n->timeout_ms = timeout_ms;
    n->said = &n->lost;
    set_end(n);
    int least = 0, most = 0; // a reduction must not wait behind kernels of backward
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &most);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, most);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&n->copies, cudaStreamNonBlocking);
    if (e != cudaSuccess) {
        enum neb_status st =
            neb_fail(NEB_ERR_IO, "NCCL: cannot create a stream for a communicator: %s",
                     cudaGetErrorString(e));
        destroy(c);
        return st;
    }
    *out = c;
    return NEB_OK;
}

static void destroy(struct intra_comm *c) {
    struct nccl *n = nccl_of(c);
    if (n->comm && begin(c, "finalize") == NEB_OK &&
        settle(c, ncclCommFinalize(n->comm), "finalize") == NEB_OK)
        (void)ncclCommDestroy(n->comm); // does not wait for other ranks
    for (int i = 0; i < AHEAD; i++)
        if (n->ahead[i].passed)
            (void)cudaEventDestroy(n->ahead[i].passed);
    if (n->copies)
        (void)cudaStreamDestroy(n->copies);
    if (n->stream)
        (void)cudaStreamDestroy(n->stream);
    intra_comm_free(c);
}

static enum neb_status split(struct intra_comm *c, int color, int key, struct intra_comm **out) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    struct intra_comm *part = NULL;
    NEB_ASSERT(color >= 0);
    NEB_TRY(begin(c, "split"));
    NEB_TRY(make(nccl_of(c)->timeout_ms, 0, 1, &part));
    struct nccl *n = nccl_of(part);
    n->said = nccl_of(c)->said;
    config.blocking = 0;
    // A split may still run on c when the call returns success (2.28). A thread of NCCL writes
    // n->comm when the split ends, or when c is aborted.
    ncclResult_t r = ncclCommSplit(nccl_of(c)->comm, color, key, &n->comm, &config);
    enum neb_status st = settle(c, r == ncclSuccess ? ncclInProgress : r, "split");
    if (nccl_of(c)->aborting)
        return st; // that thread may still write to n->comm, so `part` is leaked
    if (st == NEB_OK)
        st = settle(part, ncclInProgress, "split");
    if (st == NEB_OK && (ncclCommUserRank(n->comm, &part->rank) != ncclSuccess ||
                         ncclCommCount(n->comm, &part->size) != ncclSuccess))
        st = neb_fail(NEB_ERR_IO, "NCCL: a new communicator does not know its ranks");
    if (st != NEB_OK) {
        give_up(part);
        destroy(part);
        return st;
    }
    *out = part;
    return NEB_OK;
}

static const struct intra_comm_ops nccl_ops = {
    .name = "nccl",
    .all_reduce = all_reduce,
    .reduce = reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .broadcast = broadcast,
    .send = send,
    .wait = wait_send,
    .recv = recv,
    .enqueue = enqueue,
    .look = look,
    .barrier = barrier,
    .split = split,
    .abort = give_up,
    .lost = lost,
    .destroy = destroy,
};

static enum neb_status prepare(struct intra_comm *boot, int device, int64_t timeout_ms,
                               ncclUniqueId *id, struct intra_comm **out) {
    cudaError_t e = cudaSetDevice(device);
    if (e != cudaSuccess)
        return neb_fail(NEB_ERR_UNSUPPORTED, "rank %d cannot use CUDA device %d: %s", boot->rank,
                        device, cudaGetErrorString(e));
    if (boot->rank == 0) {
        ncclResult_t r = ncclGetUniqueId(id);
        if (r != ncclSuccess)
            return neb_fail(NEB_ERR_IO, "NCCL does not start: %s (%s)", ncclGetErrorString(r),
                            ncclGetLastError(NULL));
    }
    return make(timeout_ms, boot->rank, boot->size, out);
}

intra_comm_nccl_opener intra_comm_nccl_open;

enum neb_status intra_comm_nccl_open(int version, struct intra_comm *boot, int device,
                                     int64_t timeout_ms, struct intra_comm **out) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    struct intra_comm *c = NULL;
    if (version != INTRA_COMM_VERSION)
        return neb_fail(
            NEB_ERR_UNSUPPORTED,
            "libnebula_nccl.so has interface %d, the program needs %d; install both from one build",
            INTRA_COMM_VERSION, version);
    memset(&id, 0, sizeof id);
    enum neb_status st = intra_comm_agree(boot, prepare(boot, device, timeout_ms, &id, &c));
    if (st == NEB_OK)
        st = boot->ops->broadcast(boot, &id, sizeof id, 0);
    if (st == NEB_OK) {
        config.blocking = 0;
        struct nccl *n = nccl_of(c);
        set_end(n); // other ranks may have been late in agree
        st = settle(c, ncclCommInitRankConfig(&n->comm, boot->size, id, boot->rank, &config),
                    "start");
    }
    if (st != NEB_OK) {
        if (c)
            destroy(c);
        return st;
    }
    *out = c;
    return NEB_OK;
}
