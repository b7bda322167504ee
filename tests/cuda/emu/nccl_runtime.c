// SPDX-License-Identifier: Apache-2.0
// The runtime calls of intra/ranks/comm_nccl.c over host memory: asynchronous streams, and device
// memory that differs from host memory. A copy between device and pageable host memory waits for
// its stream, as CUDA may ("API synchronization behavior" in its manual). After a collective that
// never ends, such a copy would never return, so it ends the test.
#include "tests/cuda/emu/emu_stream.h"
#include "tests/cuda/emu/nccl_emu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEVICES = 8, STUCK_S = 20, GOES_ON = 16 };

struct emu_nccl emu_nccl = {.in_progress = 2};

struct stream {
    struct emu_stream_head head;
    struct stream *next;
    struct emu_op *first, *last;
    bool destroyed; // freed when it is empty
};
struct event {
    long recorded, done; // how often it was recorded, and how often it was done
    // the kernels' stream of its last record; NULL: a stream of this file
    struct emu_stream_head *on;
    size_t position; // in that stream
    bool destroyed;  // freed when its last record is done
};
struct buffer {
    struct buffer *next;
    size_t bytes;
    char *at;
};
struct foreign { // an op in the kernels' stream
    struct foreign *next;
    struct emu_op *op;
};
static struct stream *streams;
static struct foreign *foreign;
static struct emu_stream_head *kernels; // the kernels' stream after its first use
static struct buffer *buffers;

// EMU_COUNT=1: prints how often a stream of this file got an op while the kernels' stream was busy.
static long beside;
__attribute__((destructor)) static void say(void) {
    const char *counts = getenv("EMU_COUNT"), *mpi = getenv("OMPI_COMM_WORLD_RANK");
    if (counts && *counts == '1')
        fprintf(stderr, "emulated NCCL of rank %s: %ld operations began beside kernels\n",
                mpi              ? mpi
                : getenv("RANK") ? getenv("RANK")
                                 : "0",
                beside);
}

static pthread_mutex_t alone = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
void emu_enter(void) { pthread_mutex_lock(&alone); }
void emu_leave(void) { pthread_mutex_unlock(&alone); }

static unsigned polled, looked; // since the last other call

static bool count(const char *call) {
    if (++emu_nccl.calls != emu_nccl.fail_at)
        return false;
    emu_nccl.failed = call;
    return true;
}
bool emu_fails(const char *call) {
    polled = looked = 0;
    return count(call);
}
bool emu_poll_fails(const char *call, unsigned kind) {
    bool first = !(polled & kind);
    polled |= kind;
    return first && count(call);
}
bool emu_look_fails(void) { return looked++ < 2 && ++emu_nccl.looks == emu_nccl.error_at; }

// ---- streams ----

static struct stream *stream_of(cudaStream_t s) { return (struct stream *)(void *)s; }

static void own_run(void) {
    for (struct stream **at = &streams, *s; (s = *at);) {
        while (s->first && s->first->run(s->first)) {
            struct emu_op *op = s->first;
            s->first = op->next;
            free(op);
        }
        if (s->destroyed && !s->first) {
            *at = s->next;
            free(s);
        } else {
            at = &s->next;
        }
    }
}
void emu_streams_run(void) {
    static unsigned turn;
    own_run();
    if (kernels && ++turn % GOES_ON == 0)
        kernels->goes_on(kernels);
}
static int run_foreign(void *of) {
    struct foreign *f = of, **at = &foreign;
    own_run();
    if (!f->op->run(f->op))
        return 0;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    free(f->op);
    free(f);
    return 1;
}
static void push_foreign(struct emu_stream_head *to, struct emu_op *op, size_t *position) {
    struct foreign *f = malloc(sizeof *f);
    if (!f)
        abort();
    *f = (struct foreign){foreign, op};
    foreign = f;
    kernels = to;
    size_t at = to->push(to, run_foreign, f);
    if (position)
        *position = at;
}
void emu_stream_push(cudaStream_t to, struct emu_op *op) {
    struct stream *s = stream_of(to);
    op->next = NULL;
    if (s->head.push) {
        push_foreign(&s->head, op, NULL);
        return;
    }
    beside += op->of && kernels && kernels->busy(kernels);
    if (s->first)
        s->last->next = op;
    else
        s->first = op;
    s->last = op;
    emu_streams_run();
}
static bool at_once(struct emu_op *op) {
    (void)op;
    return true;
}
void emu_streams_give_up(const void *of) {
    for (struct stream *s = streams; s; s = s->next)
        for (struct emu_op *op = s->first; op; op = op->next)
            if (op->of == of)
                op->run = at_once;
    for (struct foreign *f = foreign; f; f = f->next)
        if (f->op->of == of)
            f->op->run = at_once;
    emu_streams_run();
}
bool emu_streams_have(const void *of) {
    for (struct stream *s = streams; s; s = s->next)
        for (struct emu_op *op = s->first; op; op = op->next)
            if (op->of == of)
                return true;
    for (struct foreign *f = foreign; f; f = f->next)
        if (f->op->of == of)
            return true;
    return false;
}
// Polling yields the processor to the other ranks: they are processes of this machine, and it has
// fewer cores.
static void leave_to_others(void) { (void)nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL); }

// Sleeps like a thread that CUDA blocks.
static void wait_for(const struct stream *s) {
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (emu_streams_run(); s->first; emu_streams_run()) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - from.tv_sec > STUCK_S) {
            fprintf(stderr, "emulated CUDA: a copy of pageable memory waits behind a collective, "
                            "and no time limit reaches it\n");
            abort();
        }
        leave_to_others();
    }
}

cudaError_t cudaSetDevice(int device) {
    EMU_ALONE;
    if (emu_fails(__func__))
        return cudaErrorUnknown;
    return device >= 0 && device < DEVICES ? cudaSuccess : cudaErrorInvalidValue;
}
static cudaError_t make_stream(cudaStream_t *out) {
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return cudaErrorMemoryAllocation;
    s->next = streams;
    streams = s;
    emu_nccl.live++;
    *out = (cudaStream_t)(void *)s;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    EMU_ALONE;
    (void)flags;
    return emu_fails(__func__) ? cudaErrorMemoryAllocation : make_stream(out);
}
// A lower number is a higher priority.
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    EMU_ALONE;
    *least = 0;
    *greatest = -5;
    return emu_fails(__func__) ? cudaErrorUnknown : cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    EMU_ALONE;
    (void)flags;
    if (emu_fails(__func__))
        return cudaErrorMemoryAllocation;
    return priority == -5 ? make_stream(out) : cudaErrorInvalidValue;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    EMU_ALONE;
    stream_of(s)->destroyed = true;
    emu_nccl.live--;
    emu_streams_run();
    return emu_fails(__func__) ? cudaErrorUnknown : cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
    EMU_ALONE;
    emu_streams_run();
    if (emu_poll_fails(__func__, 1))
        return cudaErrorUnknown;
    if (!stream_of(s)->first)
        return cudaSuccess;
    leave_to_others();
    return cudaErrorNotReady;
}

// ---- events ----

struct record {
    struct emu_op op;
    struct event *e;
};
static void event_free(struct event *e) {
    if (e->destroyed && e->done == e->recorded)
        free(e);
}
static bool record(struct emu_op *op) {
    struct event *e = ((struct record *)(void *)op)->e;
    e->done++;
    event_free(e);
    return true;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    EMU_ALONE;
    (void)flags;
    if (emu_fails(__func__))
        return cudaErrorMemoryAllocation;
    struct event *e = calloc(1, sizeof *e);
    if (!e)
        return cudaErrorMemoryAllocation;
    emu_nccl.live++;
    *out = (cudaEvent_t)(void *)e;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    EMU_ALONE;
    struct event *e = (struct event *)(void *)event;
    e->destroyed = true;
    emu_nccl.live--;
    event_free(e);
    return emu_fails(__func__) ? cudaErrorUnknown : cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    EMU_ALONE;
    if (emu_fails(__func__))
        return cudaErrorUnknown;
    struct record *r = malloc(sizeof *r);
    if (!r)
        return cudaErrorMemoryAllocation;
    struct event *event = (struct event *)(void *)e;
    struct stream *to = stream_of(s);
    *r = (struct record){{.run = record}, event};
    event->recorded++;
    event->on = to->head.push ? &to->head : NULL;
    if (event->on)
        push_foreign(event->on, &r->op, &event->position);
    else
        emu_stream_push(s, &r->op);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    EMU_ALONE;
    struct event *e = (struct event *)(void *)event;
    emu_streams_run();
    if (e->on)
        (void)e->on->passed(e->on, e->position);
    if (emu_poll_fails(__func__, 2))
        return cudaErrorUnknown;
    if (e->done == e->recorded)
        return cudaSuccess;
    leave_to_others();
    return cudaErrorNotReady;
}

// ---- memory ----

static bool on_device(const void *p) {
    for (const struct buffer *b = buffers; b; b = b->next)
        if ((const char *)p >= b->at && (const char *)p < b->at + b->bytes)
            return true;
    return false;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p) {
    EMU_ALONE;
    if (emu_fails(__func__))
        return cudaErrorInvalidValue;
    memset(out, 0, sizeof *out);
    out->type = on_device(p) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}
// Memory is available at once. With CUDA it is available only when the stream reaches this call.
// Like fresh device memory it is not initialised.
cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t s) {
    EMU_ALONE;
    (void)s;
    if (emu_fails(__func__))
        return cudaErrorMemoryAllocation;
    struct buffer *b = calloc(1, sizeof *b);
    if (!b || !(b->at = malloc(bytes))) {
        free(b);
        return cudaErrorMemoryAllocation;
    }
    memset(b->at, 0xff, bytes);
    b->bytes = bytes;
    b->next = buffers;
    buffers = b;
    emu_nccl.live++;
    *out = b->at;
    return cudaSuccess;
}
struct release {
    struct emu_op op;
    const void *p;
};
static bool release(struct emu_op *op) {
    const void *p = ((struct release *)(void *)op)->p;
    for (struct buffer **at = &buffers, *b; (b = *at); at = &b->next)
        if (b->at == p) {
            *at = b->next;
            free(b->at);
            free(b);
            emu_nccl.live--;
            return true;
        }
    fprintf(stderr, "emulated CUDA: memory is freed that was not allocated\n");
    abort();
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) {
    EMU_ALONE;
    struct release *r = malloc(sizeof *r);
    if (!r)
        return cudaErrorMemoryAllocation;
    *r = (struct release){{.run = release}, p};
    emu_stream_push(s, &r->op);
    return emu_fails(__func__) ? cudaErrorUnknown : cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
    EMU_ALONE;
    bool to_host = kind == cudaMemcpyDeviceToHost;
    if (emu_fails(__func__))
        return cudaErrorUnknown;
    if (on_device(dst) == to_host || on_device(src) != to_host)
        return cudaErrorInvalidValue;
    wait_for(stream_of(s));
    memcpy(dst, src, bytes);
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "out of memory" : "unknown error";
}
