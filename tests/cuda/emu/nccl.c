// SPDX-License-Identifier: Apache-2.0
// NCCL's calls between processes of one machine, for tests without a GPU. Every communicator is
// memory that its ranks share; they find it by the name in the unique identifier. It is as strict
// as NCCL's manual, even where NCCL is not: a send ends when it is received, a communicator in
// progress takes no calls, two ranks of a host cannot share a device (NCCL_HOSTID names a rank's
// host), and a rank cannot send to itself. The first message from one rank to another connects
// them: the call is in progress until the other rank calls, too.
//
//    all ranks have read ──► each writes its ──► all ranks have ──► each reads all areas, in the
//    the previous areas      own area            written            order of the ranks: same bits
#include "tests/cuda/emu/nccl_emu.h"

#include <fcntl.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 64 << 10, RANKS_MOST = 64, NAME_MOST = NCCL_UNIQUE_ID_BYTES };

struct seat { // written by one rank
    char host[32];
    int device;
    struct {
        int color, key;
    } split[2]; // two by turns: the previous one may still be read
    atomic_ulong splits, wrote, read;
    uint64_t call; // the call of this round: detects ranks that disagree
};
struct mail { // from one rank to another
    atomic_ulong sent, taken;
    atomic_bool called[2]; // set by the receiver, and by the sender
    size_t bytes;
    char piece[PIECE];
};
struct shared {
    atomic_int joined, left;
    struct seat seats[RANKS_MOST];
    char areas[]; // (size, PIECE), then (size, size) of struct mail
};

enum phase { READY, STARTS, SPLITS, CONNECTS, ENDS };
struct ncclComm {
    struct shared *s;
    size_t bytes;
    char name[NAME_MOST];
    int rank, size;
    enum phase phase;
    const char *call; // the last call
    int looks;        // looks at the state until the call has ended
    ncclResult_t state;
    const atomic_bool *other; // while it connects
    unsigned long round, splits;
    struct ncclComm *child, **child_out; // while it splits
};

static int device_now;
static const char *last_error = "";

static ncclResult_t wrong(ncclResult_t r, const char *why) {
    last_error = why;
    return r;
}
static void stop(const char *why) {
    fprintf(stderr, "emulated NCCL: %s\n", why);
    abort();
}

// ---- communicators ----

static bool hangs(const struct ncclComm *c) {
    return emu_nccl.hang && !strcmp(emu_nccl.hang, c->call);
}
static void free_comm(struct ncclComm *c) {
    if (c->s)
        munmap(c->s, c->bytes);
    free(c);
    emu_nccl.live--;
}
static struct ncclComm *join(const char *name, int rank, int size, const char *call) {
    struct ncclComm *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    emu_nccl.live++;
    *c = (struct ncclComm){.rank = rank,
                           .size = size,
                           .phase = STARTS,
                           .call = call,
                           .looks = emu_nccl.in_progress,
                           .bytes = sizeof *c->s + (size_t)size * PIECE +
                                    (size_t)size * (size_t)size * sizeof(struct mail)};
    snprintf(c->name, sizeof c->name, "%s", name);
    int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    void *at = fd >= 0 && ftruncate(fd, (off_t)c->bytes) == 0
                   ? mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                   : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (at == MAP_FAILED) {
        free_comm(c);
        return NULL;
    }
    c->s = at;
    struct seat *mine = &c->s->seats[rank];
    const char *host = getenv("NCCL_HOSTID");
    snprintf(mine->host, sizeof mine->host, "%s", host ? host : "");
    mine->device = device_now;
    atomic_fetch_add(&c->s->joined, 1);
    return c;
}
static bool joined(struct ncclComm *c) {
    if (atomic_load(&c->s->joined) < c->size)
        return false;
    (void)shm_unlink(c->name); // the first of them succeeds
    return true;
}
static bool shares_a_device(const struct ncclComm *c) {
    for (int a = 0; a < c->size; a++)
        for (int b = 0; b < a; b++)
            if (c->s->seats[a].device == c->s->seats[b].device &&
                !strcmp(c->s->seats[a].host, c->s->seats[b].host))
                return !getenv("EMU_NCCL_SHARED_DEVICE");
    return false;
}
// Makes the new communicator of a split once all ranks have given their color.
static struct ncclComm *child_of(struct ncclComm *c) {
    int turn = (int)(c->splits % 2), rank = 0, size = 0;
    const struct seat *mine = &c->s->seats[c->rank];
    for (int r = 0; r < c->size; r++) {
        const struct seat *other = &c->s->seats[r];
        if (atomic_load(&other->splits) < c->splits)
            return NULL;
        if (other->split[turn].color != mine->split[turn].color)
            continue;
        size++;
        rank += other->split[turn].key < mine->split[turn].key ||
                (other->split[turn].key == mine->split[turn].key && r < c->rank);
    }
    char name[NAME_MOST];
    int n = snprintf(name, sizeof name, "%s.%lu.%d", c->name, c->splits, mine->split[turn].color);
    if (n >= (int)sizeof name)
        stop("communicators of communicators too deep");
    return join(name, rank, size, c->call);
}
static void advance(struct ncclComm *c) {
    if (hangs(c))
        return;
    if (c->phase == STARTS && joined(c)) {
        c->phase = READY;
        if (shares_a_device(c))
            c->state = wrong(ncclInvalidUsage, "Duplicate GPU detected");
    } else if (c->phase == SPLITS) {
        if (!c->child)
            c->child = child_of(c);
        if (c->child && joined(c->child)) {
            c->child->phase = READY;
            *c->child_out = c->child; // NULL until then, as in the manual
            c->child = NULL;
            c->phase = READY;
        }
    } else if (c->phase == CONNECTS && atomic_load(c->other)) {
        c->phase = READY;
    } else if (c->phase == ENDS && !emu_streams_have(c) && atomic_load(&c->s->left) >= c->size) {
        c->phase = READY;
    }
}
// For programs: EMU_NCCL_ERROR=FILE gives rank 0 one asynchronous error when FILE exists, and
// removes FILE.
static bool network_fails(const struct ncclComm *c) {
    const char *file = getenv("EMU_NCCL_ERROR");
    return file && c->rank == 0 && c->size > 1 && unlink(file) == 0;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *out) {
    EMU_ALONE;
    emu_streams_run();
    if (emu_poll_fails(__func__, 4))
        return ncclSystemError;
    if (!c)
        return ncclInvalidArgument;
    if (c->looks > 0)
        c->looks--;
    else if (c->state == ncclSuccess)
        advance(c);
    if (emu_look_fails() || network_fails(c))
        c->state = wrong(ncclRemoteError, "the other end has closed its connection");
    *out = c->state != ncclSuccess             ? c->state
           : c->looks > 0 || c->phase != READY ? ncclInProgress
                                               : ncclSuccess;
    return ncclSuccess;
}
// The start of every call on a communicator.
static ncclResult_t begin(struct ncclComm *c, const char *call) {
    if (emu_fails(call))
        return wrong(ncclSystemError, "the emulator was told so");
    if (!c || c->state != ncclSuccess)
        return wrong(ncclInvalidArgument, "no usable communicator");
    if (c->phase != READY || c->looks > 0)
        return wrong(ncclInvalidUsage, "a call while the one before is in progress");
    c->call = call;
    c->looks = emu_nccl.in_progress;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out) {
    EMU_ALONE;
    static int made;
    if (emu_fails(__func__))
        return wrong(ncclSystemError, "the emulator was told so");
    memset(out, 0, sizeof *out);
    snprintf(out->internal, sizeof out->internal, "/emu-nccl-%ld-%d", (long)getpid(), made++);
    return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    EMU_ALONE;
    *out = NULL;
    if (emu_fails(__func__))
        return wrong(ncclSystemError, "the emulator was told so");
    if (size < 1 || size > RANKS_MOST || rank < 0 || rank >= size || config->blocking)
        return wrong(ncclInvalidArgument, "a size or rank, or a blocking communicator");
    *out = join(id.internal, rank, size, __func__);
    return *out ? ncclInProgress : wrong(ncclSystemError, "no shared memory");
}
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config) {
    EMU_ALONE;
    ncclResult_t r = begin(c, __func__);
    *out = NULL;
    if (r != ncclSuccess)
        return r;
    if (config->blocking)
        return wrong(ncclInvalidArgument, "a blocking communicator");
    struct seat *mine = &c->s->seats[c->rank];
    c->splits++;
    mine->split[c->splits % 2].color = color;
    mine->split[c->splits % 2].key = key;
    atomic_store(&mine->splits, c->splits);
    c->phase = SPLITS;
    c->child_out = out;
    // as NCCL 2.28; by its manual ncclInProgress, which only ncclCommGetAsyncError returns
    return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t c) {
    EMU_ALONE;
    ncclResult_t r = begin(c, __func__);
    if (r != ncclSuccess)
        return r;
    c->phase = ENDS;
    atomic_fetch_add(&c->s->left, 1);
    return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) {
    EMU_ALONE;
    bool fails = emu_fails(__func__);
    if (c->phase != READY || c->looks > 0)
        stop("a communicator is destroyed before ncclCommFinalize is through");
    free_comm(c);
    return fails ? ncclSystemError : ncclSuccess;
}
// A communicator of an unfinished split is handed over as it is; the caller aborts it, too.
ncclResult_t ncclCommAbort(ncclComm_t c) {
    EMU_ALONE;
    bool fails = emu_fails(__func__);
    if (c->phase == SPLITS) {
        char name[NAME_MOST];
        snprintf(name, sizeof name, "/emu-nccl-aborted-%ld", (long)getpid());
        *c->child_out = c->child ? c->child : join(name, 0, 1, c->call);
        (void)shm_unlink(name);
    }
    emu_streams_give_up(c);
    while (emu_nccl.hang && !strcmp(emu_nccl.hang, __func__)) {
        emu_leave();
        sleep(1); // its kernels have ended, and it waits for other ranks on the device
        emu_enter();
    }
    (void)shm_unlink(c->name);
    free_comm(c);
    return fails ? ncclSystemError : ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t c, int *out) {
    EMU_ALONE;
    *out = c->size;
    return emu_fails(__func__) ? ncclSystemError : ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t c, int *out) {
    EMU_ALONE;
    *out = c->rank;
    return emu_fails(__func__) ? ncclSystemError : ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t r) {
    return r == ncclRemoteError    ? "remote process exited or there was a network error"
           : r == ncclInvalidUsage ? "invalid usage"
           : r == ncclSystemError  ? "unhandled system error"
                                   : "invalid argument";
}
const char *ncclGetLastError(ncclComm_t c) {
    (void)c;
    return last_error;
}

// ---- collectives ----

enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };
struct collective {
    struct emu_op op;
    struct ncclComm *c;
    enum kind kind;
    const char *in;
    char *out;
    size_t bytes, own, at; // bytes in all through the areas, one rank's part, and done so far
    ncclDataType_t type;
    ncclRedOp_t how;
    int root;
    bool wrote;
};

static size_t size_of(ncclDataType_t t) { return t == ncclUint8 ? 1 : t == ncclFloat32 ? 4 : 8; }
static char *area(const struct ncclComm *c, int rank) { return c->s->areas + (size_t)rank * PIECE; }
#define COMBINE(T)                                                                                 \
    do {                                                                                           \
        T a, b;                                                                                    \
        memcpy(&a, x + i, sizeof a);                                                               \
        memcpy(&b, y + i, sizeof b);                                                               \
        a = how == ncclSum ? (T)(a + b) : a > b ? a : b;                                           \
        memcpy(x + i, &a, sizeof a);                                                               \
    } while (0)
static void combine(char *x, const char *y, size_t bytes, ncclDataType_t t, ncclRedOp_t how) {
    for (size_t i = 0; i < bytes; i += size_of(t))
        if (t == ncclFloat32)
            COMBINE(float);
        else if (t == ncclFloat64)
            COMBINE(double);
        else
            COMBINE(uint64_t);
}
// Reads n bytes at k->at from all areas.
static void take(struct collective *k, size_t n) {
    struct ncclComm *c = k->c;
    if (k->kind == BROADCAST) {
        memcpy(k->out + k->at, area(c, k->root), n);
        return;
    }
    if (k->kind == ALL_GATHER) {
        for (int r = 0; r < c->size; r++)
            memcpy(k->out + (size_t)r * k->own + k->at, area(c, r), n);
        return;
    }
    static char sum[PIECE];
    memcpy(sum, area(c, 0), n);
    for (int r = 1; r < c->size; r++)
        combine(sum, area(c, r), n, k->type, k->how);
    if (k->kind == ALL_REDUCE || (k->kind == REDUCE && c->rank == k->root))
        memcpy(k->out + k->at, sum, n);
    size_t first = (size_t)c->rank * k->own;
    for (size_t i = 0; k->kind == REDUCE_SCATTER && i < n; i++)
        if (k->at + i >= first && k->at + i < first + k->own)
            k->out[k->at + i - first] = sum[i];
}
static bool all(const struct ncclComm *c, bool wrote, unsigned long rounds) {
    for (int r = 0; r < c->size; r++)
        if (atomic_load(wrote ? &c->s->seats[r].wrote : &c->s->seats[r].read) < rounds)
            return false;
    return true;
}
static bool run_collective(struct emu_op *op) {
    struct collective *k = (struct collective *)(void *)op;
    struct ncclComm *c = k->c;
    struct seat *mine = &c->s->seats[c->rank];
    while (k->at < k->bytes) {
        size_t n = k->bytes - k->at < PIECE ? k->bytes - k->at : PIECE;
        if (!k->wrote) {
            if (!all(c, false, c->round))
                return false;
            if (k->kind != BROADCAST || c->rank == k->root)
                memcpy(area(c, c->rank), k->in + k->at, n);
            mine->call = k->bytes * 1024 + (uint64_t)k->kind * 128 + (uint64_t)k->type * 8 +
                         (uint64_t)k->how + (uint64_t)k->root * 7919;
            k->wrote = true;
            atomic_store(&mine->wrote, c->round + 1);
        }
        if (!all(c, true, c->round + 1))
            return false;
        for (int r = 0; r < c->size; r++)
            if (c->s->seats[r].call != mine->call)
                stop("the ranks' collectives differ");
        take(k, n);
        c->round++;
        k->wrote = false;
        k->at += n;
        atomic_store(&mine->read, c->round);
    }
    return true;
}
static bool never(struct emu_op *op) {
    (void)op;
    return false;
}
static ncclResult_t enqueue(const struct collective *what, size_t n, const char *call,
                            cudaStream_t s) {
    struct ncclComm *c = what->c;
    ncclResult_t r = begin(c, call);
    if (r != ncclSuccess)
        return r;
    if (what->root < 0 || what->root >= c->size)
        return wrong(ncclInvalidArgument, "no such root");
    struct collective *k = malloc(sizeof *k);
    if (!k)
        return ncclSystemError;
    *k = *what;
    k->op = (struct emu_op){.run = hangs(c) ? never : run_collective, .of = c};
    k->own = n * size_of(k->type);
    k->bytes = k->kind == REDUCE_SCATTER ? k->own * (size_t)c->size : k->own;
    emu_stream_push(s, &k->op);
    return c->looks ? ncclInProgress : ncclSuccess;
}
ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s) {
    EMU_ALONE;
    return enqueue(
        &(struct collective){
            .c = c, .kind = ALL_REDUCE, .in = in, .out = out, .type = t, .how = op},
        n, __func__, s);
}
ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                        int root, ncclComm_t c, cudaStream_t s) {
    EMU_ALONE;
    return enqueue(
        &(struct collective){
            .c = c, .kind = REDUCE, .in = in, .out = out, .type = t, .how = op, .root = root},
        n, __func__, s);
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t t,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
    EMU_ALONE;
    return enqueue(
        &(struct collective){
            .c = c, .kind = REDUCE_SCATTER, .in = in, .out = out, .type = t, .how = op},
        n, __func__, s);
}
ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s) {
    EMU_ALONE;
    return enqueue(
        &(struct collective){.c = c, .kind = ALL_GATHER, .in = in, .out = out, .type = t}, n,
        __func__, s);
}
ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t t, int root,
                           ncclComm_t c, cudaStream_t s) {
    EMU_ALONE;
    return enqueue(
        &(struct collective){
            .c = c, .kind = BROADCAST, .in = in, .out = out, .type = t, .root = root},
        n, __func__, s);
}

// ---- point to point ----

struct message {
    struct emu_op op;
    struct mail *m;
    char *x;
    size_t bytes, at;
    bool whole; // all pieces are sent
};
static bool run_send(struct emu_op *op) {
    struct message *p = (struct message *)(void *)op;
    for (;;) {
        if (atomic_load(&p->m->sent) != atomic_load(&p->m->taken))
            return false;
        if (p->whole)
            return true;
        size_t n = p->bytes - p->at < PIECE ? p->bytes - p->at : PIECE;
        p->m->bytes = p->bytes;
        memcpy(p->m->piece, p->x + p->at, n);
        p->at += n;
        p->whole = p->at == p->bytes;
        atomic_fetch_add(&p->m->sent, 1);
    }
}
static bool run_receive(struct emu_op *op) {
    struct message *p = (struct message *)(void *)op;
    for (;;) {
        if (atomic_load(&p->m->sent) == atomic_load(&p->m->taken))
            return false;
        if (p->m->bytes != p->bytes)
            stop("a message is received in another size than it was sent");
        size_t n = p->bytes - p->at < PIECE ? p->bytes - p->at : PIECE;
        memcpy(p->x + p->at, p->m->piece, n);
        p->at += n;
        atomic_fetch_add(&p->m->taken, 1);
        if (p->at == p->bytes)
            return true;
    }
}
static ncclResult_t post(struct ncclComm *c, bool sends, void *x, size_t bytes, int peer,
                         const char *call, cudaStream_t s) {
    ncclResult_t r = begin(c, call);
    if (r != ncclSuccess)
        return r;
    if (peer < 0 || peer >= c->size)
        return wrong(ncclInvalidArgument, "no such rank");
    if (peer == c->rank)
        return wrong(ncclInvalidUsage, "Trying to send to self without a matching recv");
    struct message *p = malloc(sizeof *p);
    if (!p)
        return ncclSystemError;
    int from = sends ? c->rank : peer, to = sends ? peer : c->rank;
    char *mails = c->s->areas + (size_t)c->size * PIECE;
    struct mail *m = (struct mail *)(void *)mails + (from * c->size + to);
    *p = (struct message){.op = {.run = hangs(c) ? never
                                        : sends  ? run_send
                                                 : run_receive,
                                 .of = c},
                          .m = m,
                          .x = x,
                          .bytes = bytes};
    emu_stream_push(s, &p->op); // may run the op at once and free it
    atomic_store(&m->called[sends], true);
    c->other = &m->called[!sends];
    if (!hangs(c) && !atomic_load(c->other))
        c->phase = CONNECTS;
    return c->looks || c->phase != READY ? ncclInProgress : ncclSuccess;
}
ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t t, int to, ncclComm_t c,
                      cudaStream_t s) {
    EMU_ALONE;
    return post(c, true, (void *)(uintptr_t)in, n * size_of(t), to, __func__, s);
}
ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t t, int from, ncclComm_t c,
                      cudaStream_t s) {
    EMU_ALONE;
    return post(c, false, out, n * size_of(t), from, __func__, s);
}
