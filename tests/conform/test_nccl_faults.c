// SPDX-License-Identifier: Apache-2.0
// Errors of NCCL, CUDA or a peer under intra/ranks/comm_nccl.c, over the emulations
// (tests/cuda/emu). Every call fails once. Every look at a communicator's state returns an
// asynchronous error once. Every operation never ends once. The process is alone, or it has a child
// as its peer, which works until it is killed.
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "intra/ranks/comm.h"
#include "tests/cuda/emu/nccl_emu.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

intra_comm_nccl_opener intra_comm_nccl_open;

enum { N = 5000, PATIENT_MS = 60000, SHORT_MS = 1000, LONG_MS = 3000 };

static struct common { // shared with the peer
    atomic_bool here;
    char id[128];
} * common;
static struct {
    int errors, refusals; // a refusal: a call after an abort
    char text[512];       // of the last error
} logged;

static void sink(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    if (level != NEB_LOG_ERROR)
        return;
    if (strstr(text, "aborted before")) {
        logged.refusals++;
        return;
    }
    logged.errors++;
    snprintf(logged.text, sizeof logged.text, "%s", text);
}

static enum neb_status boot_broadcast(struct intra_comm *c, void *x, size_t bytes, int root) {
    (void)root;
    if (bytes != sizeof common->id) // the failure of one rank
        return NEB_OK;
    if (c->rank == 0)
        memcpy(common->id, x, bytes);
    else
        while (!atomic_load(&common->here))
            sched_yield();
    atomic_store(&common->here, true);
    memcpy(x, common->id, bytes);
    return NEB_OK;
}
static enum neb_status boot_all_reduce(struct intra_comm *c, void *x, size_t n,
                                       enum intra_comm_type t, enum intra_comm_op op) {
    (void)c, (void)x, (void)n, (void)t, (void)op; // the peer is always ready
    return NEB_OK;
}

enum { COLLECTIVES = 1, MESSAGES = 2 };
struct rank {
    struct intra_comm *c, *part;
    float *device; // (N), on the emulated device
    cudaStream_t stream;
};

static enum neb_status open_rank(struct rank *r, int rank, int size, int64_t timeout_ms) {
    static const struct intra_comm_ops ops = {.all_reduce = boot_all_reduce,
                                              .broadcast = boot_broadcast};
    struct intra_comm boot = {.ops = &ops, .rank = rank, .size = size};
    return intra_comm_nccl_open(INTRA_COMM_VERSION, &boot, 0, timeout_ms, &r->c);
}

static void expect(const float *x, size_t n, int want) {
    for (size_t i = 0; i < n; i++)
        assert_true(x[i] == (float)want);
}
static void fill(float *x, size_t n, int v) {
    for (size_t i = 0; i < n; i++)
        x[i] = (float)v;
}

// Looks at the queue without a call of intra/ranks/comm_nccl.c.
static bool queue_is_empty(const struct rank *r) {
    struct emu_nccl kept = emu_nccl;
    emu_nccl.fail_at = 0;
    cudaError_t e = cudaStreamQuery(r->stream);
    emu_nccl.calls = kept.calls;
    emu_nccl.fail_at = kept.fail_at;
    assert_true(e == cudaSuccess || e == cudaErrorNotReady);
    return e == cudaSuccess;
}
// Waits for a device as the host does (kern.watch).
static enum neb_status wait_for_queue(struct rank *r) {
    for (bool first = true; !queue_is_empty(r); first = false)
        NEB_TRY(r->c->ops->look(r->c, first));
    return r->c->ops->look(r->c, true);
}
static enum neb_status enqueue(struct rank *r, enum intra_comm_kind kind, size_t n,
                               enum intra_comm_op op) {
    return r->c->ops->enqueue(r->c, kind, r->device, n, INTRA_COMM_F32, op, r->stream);
}

// Operations one after the other in the caller's queue.
static enum neb_status in_queue(struct rank *r, int times) {
    struct intra_comm *c = r->c;
    size_t n = N / (size_t)c->size;
    fill(r->device, N, c->rank + 1);
    NEB_TRY(enqueue(r, INTRA_COMM_ALL_REDUCE, 0, INTRA_COMM_SUM));
    for (int i = 0; i < times; i++)
        NEB_TRY(enqueue(r, INTRA_COMM_ALL_REDUCE, N, INTRA_COMM_MAX));
    NEB_TRY(enqueue(r, INTRA_COMM_REDUCE_SCATTER, n, INTRA_COMM_SUM));
    NEB_TRY(enqueue(r, INTRA_COMM_ALL_GATHER, n, INTRA_COMM_SUM));
    NEB_TRY(wait_for_queue(r));
    expect(r->device, n * (size_t)c->size, c->size * c->size);
    return NEB_OK;
}

// Every collective, on host memory and on the device's. Each rank contributes its number, from 1.
static enum neb_status collectives(struct rank *r) {
    struct intra_comm *c = r->c;
    const struct intra_comm_ops *o = c->ops;
    static float x[2 * N];
    int own = c->rank + 1, sum = c->size * (c->size + 1) / 2;
    uint64_t u = (uint64_t)own;
    fill(x, N, own);
    fill(r->device, N, own);
    NEB_TRY(o->all_reduce(c, x, N, INTRA_COMM_F32, INTRA_COMM_SUM));
    expect(x, N, sum);
    NEB_TRY(o->all_reduce(c, r->device, N, INTRA_COMM_F32, INTRA_COMM_SUM));
    expect(r->device, N, sum);
    NEB_TRY(o->all_reduce(c, &u, 1, INTRA_COMM_U64, INTRA_COMM_MAX));
    assert_int_equal(u, c->size);
    fill(x, N, own);
    NEB_TRY(o->reduce(c, x, N, 0));
    expect(x, c->rank ? 0 : N, sum);
    fill(x, 2 * N, own);
    NEB_TRY(o->reduce_scatter(c, x, N));
    expect(x + (size_t)c->rank * N, N, sum);
    fill(x + (size_t)c->rank * N, N, own);
    NEB_TRY(o->all_gather(c, x, N));
    for (int i = 0; i < c->size; i++)
        expect(x + (size_t)i * N, N, i + 1);
    fill(x, N, own);
    NEB_TRY(o->broadcast(c, x, N * sizeof *x, c->size - 1));
    expect(x, N, c->size);
    NEB_TRY(o->barrier(c));
    NEB_TRY(in_queue(r, 2));
    NEB_TRY(o->split(c, 0, -c->rank, &r->part));
    assert_int_equal(r->part->rank, c->size - 1 - c->rank);
    assert_int_equal(r->part->size, c->size);
    fill(x, N, own);
    NEB_TRY(o->all_reduce(r->part, x, N, INTRA_COMM_F32, INTRA_COMM_SUM));
    expect(x, N, sum);
    return NEB_OK;
}

// Rank 0 sends two messages, one from host and one from device memory. It gets them back, and then
// an empty message.
static enum neb_status messages(struct rank *r) {
    struct intra_comm *c = r->c;
    const struct intra_comm_ops *o = c->ops;
    static float x[N];
    struct intra_comm_send s[2] = {{0}};
    if (c->rank) {
        NEB_TRY(o->recv(c, x, sizeof x, 0, 0));
        NEB_TRY(o->recv(c, r->device, sizeof x, 0, 0));
        NEB_TRY(o->send(c, x, sizeof x, 0, 0, &s[0]));
        NEB_TRY(o->send(c, r->device, sizeof x, 0, 0, &s[1]));
        NEB_TRY(o->wait(c, &s[0]));
        NEB_TRY(o->wait(c, &s[1]));
        NEB_TRY(o->send(c, x, 0, 0, 0, &s[0]));
        return o->wait(c, &s[0]);
    }
    fill(x, N, 5);
    fill(r->device, N, 6);
    enum neb_status st = o->send(c, x, sizeof x, 1, 0, &s[0]);
    if (st == NEB_OK)
        st = o->send(c, r->device, sizeof x, 1, 0, &s[1]);
    for (int i = 0; i < 2; i++) {
        enum neb_status waited = o->wait(c, &s[i]);
        assert_null(s[i].handle);
        st = st == NEB_OK ? waited : st;
    }
    NEB_TRY(st);
    NEB_TRY(o->recv(c, r->device, sizeof x, 1, 0));
    NEB_TRY(o->recv(c, x, sizeof x, 1, 0));
    expect(r->device, N, 5);
    expect(x, N, 6);
    return o->recv(c, x, 0, 1, 0);
}

static enum neb_status work(struct rank *r, int what) {
    if (what & COLLECTIVES)
        NEB_TRY(collectives(r));
    return what & MESSAGES ? messages(r) : NEB_OK;
}

static void device_create(struct rank *r) {
    void *p;
    *r = (struct rank){0};
    assert_int_equal(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaMallocAsync(&p, N * sizeof(float), r->stream), cudaSuccess);
    r->device = p;
}
static void device_destroy(struct rank *r) {
    assert_int_equal(cudaFreeAsync(r->device, r->stream), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(r->stream), cudaSuccess);
}

// The work of the other rank, until it has done `what`.
static pid_t peer_start(const char *host, int what) {
    atomic_store(&common->here, false);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    struct rank r;
    emu_nccl = (struct emu_nccl){.in_progress = 2};
    setenv("NCCL_HOSTID", host, 1);
    device_create(&r);
    if (open_rank(&r, 1, 2, PATIENT_MS) != NEB_OK || work(&r, what) != NEB_OK)
        _exit(1);
    intra_comm_destroy(&r.part);
    intra_comm_destroy(&r.c);
    _exit(0);
}
static void peer_end(pid_t pid) {
    (void)kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static bool may_fail_silently(const char *call) { // these calls free something that nobody uses
    static const char *const calls[] = {"ncclCommDestroy", "ncclCommAbort", "cudaStreamDestroy",
                                        "cudaEventDestroy", "cudaFreeAsync"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (!strcmp(call, calls[i]))
            return true;
    return false;
}

// Opens, works, and closes; after an error, checks what holds for every error. With MESSAGES there
// is a peer on host b, which is killed at the end.
struct outcome {
    enum neb_status st;
    bool fault; // an error happened before the end and must be reported
    double seconds;
};
static struct outcome run(struct emu_nccl fault, int what, int64_t timeout_ms) {
    struct rank r;
    bool pair = what & MESSAGES;
    pid_t peer = pair ? peer_start("b", what) : 0;
    neb_ns from = neb_now();
    memset(&logged, 0, sizeof logged);
    emu_nccl = (struct emu_nccl){0};
    device_create(&r);
    int live = emu_nccl.live;
    fault.live = live;
    emu_nccl = fault;
    enum neb_status st = open_rank(&r, 0, pair ? 2 : 1, timeout_ms);
    if (st != NEB_OK)
        assert_null(r.c);
    else
        st = work(&r, what);
    struct outcome out = {st,
                          (emu_nccl.failed && !may_fail_silently(emu_nccl.failed)) ||
                              (fault.error_at && emu_nccl.looks >= fault.error_at),
                          neb_seconds(neb_now() - from)};
    if (st != NEB_OK) {
        assert_int_equal(logged.errors, 1); // the log has the cause once
        assert_true(strstr(logged.text, "NCCL") || strstr(logged.text, "CUDA"));
    }
    if (st != NEB_OK && r.c) {
        struct intra_comm_send s = {0};
        struct intra_comm *none = NULL;
        float x = 0;
        // The error may concern r.part alone, or its streams.
        assert_true(r.part || strstr(logged.text, "cannot create a stream") ||
                    strstr(logged.text, "its ranks") || strstr(logged.text, "split failed") ||
                    r.c->ops->barrier(r.c) == NEB_ERR_STATE);
        r.c->ops->abort(r.c);
        assert_int_equal(r.c->ops->barrier(r.c), NEB_ERR_STATE);
        if (pair) {
            assert_int_equal(r.c->ops->send(r.c, &x, sizeof x, 1, 0, &s), NEB_ERR_STATE);
            assert_null(s.handle);
            assert_int_equal(r.c->ops->recv(r.c, &x, sizeof x, 1, 0), NEB_ERR_STATE);
        }
        assert_int_equal(r.c->ops->split(r.c, 0, 0, &none), NEB_ERR_STATE);
        assert_null(none);
        if (r.part)
            r.part->ops->abort(r.part);
        assert_int_equal(logged.errors, 1);
    }
    intra_comm_destroy(&r.part);
    intra_comm_destroy(&r.c);
    if (peer)
        peer_end(peer);
    assert_int_equal(emu_nccl.live, live); // all resources are freed
    fault = emu_nccl;
    emu_nccl = (struct emu_nccl){.live = live};
    device_destroy(&r);
    assert_int_equal(emu_nccl.live, 0);
    emu_nccl = fault;
    return out;
}

static void test_well(void **state) {
    (void)state;
    static const int in_progress[] = {0, 1, 100};
    for (int i = 0; i < 3; i++) {
        struct emu_nccl how = {.in_progress = in_progress[i]};
        assert_int_equal(run(how, COLLECTIVES, PATIENT_MS).st, NEB_OK);
        assert_int_equal(run(how, COLLECTIVES | MESSAGES, PATIENT_MS).st, NEB_OK);
        assert_int_equal(logged.errors, 0);
    }
}

// Fails one call after the other. Returns how many failures had to be reported.
static int fail_each(int what) {
    int seen = 0;
    for (long k = 1;; k++) {
        struct outcome o = run((struct emu_nccl){.in_progress = 1, .fail_at = k}, what, PATIENT_MS);
        if (!emu_nccl.failed)
            return seen;
        assert_true((o.st != NEB_OK) == o.fault);
        seen += o.fault;
    }
}
static void test_every_call_fails(void **state) {
    (void)state;
    assert_true(fail_each(COLLECTIVES) > 60);
    assert_true(fail_each(MESSAGES) > 15);
}

static int tell_at_each_look(int what) {
    int seen = 0;
    for (long k = 1;; k++) {
        struct outcome o =
            run((struct emu_nccl){.in_progress = 1, .error_at = k}, what, PATIENT_MS);
        if (!o.fault)
            return seen;
        assert_int_equal(o.st, NEB_ERR_IO);
        assert_non_null(strstr(logged.text, "the other end has closed its connection"));
        seen++;
    }
}
static void test_every_look_tells_of_an_error(void **state) {
    (void)state;
    assert_true(tell_at_each_look(COLLECTIVES) > 10);
    assert_true(tell_at_each_look(MESSAGES) > 5);
}

static void test_what_never_ends_is_late(void **state) {
    (void)state;
    static const struct {
        const char *call, *what;
        int work;
    } all[] = {
        {"ncclCommInitRankConfig", "start", COLLECTIVES},
        {"ncclAllReduce", "all-reduce", COLLECTIVES},
        {"ncclReduce", "reduce", COLLECTIVES},
        {"ncclReduceScatter", "reduce-scatter", COLLECTIVES},
        {"ncclAllGather", "all-gather", COLLECTIVES},
        {"ncclBroadcast", "broadcast", COLLECTIVES},
        {"ncclCommSplit", "split", COLLECTIVES},
        {"ncclSend", "send", MESSAGES},
        {"ncclRecv", "receive", MESSAGES},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char want[64];
        // the peer must reach its limit first
        int bound = all[i].work == MESSAGES ? LONG_MS : SHORT_MS;
        struct outcome o =
            run((struct emu_nccl){.in_progress = 2, .hang = all[i].call}, all[i].work, bound);
        assert_int_equal(o.st, NEB_ERR_TIMEOUT);
        assert_true(o.seconds >= 1e-3 * bound && o.seconds < 1e-3 * bound + 10);
        snprintf(want, sizeof want, "NCCL: %s on rank 0 of ", all[i].what);
        assert_non_null(strstr(logged.text, want));
        assert_non_null(strstr(logged.text, "has not ended after"));
    }
}

// An op that hangs in the caller's queue ends where the host waits for it, or for an earlier one.
// Then the queue goes on.
static void test_what_hangs_in_a_queue_is_late(void **state) {
    (void)state;
    for (int ahead = 3; ahead < 200; ahead += 190) {
        struct rank r;
        memset(&logged, 0, sizeof logged);
        emu_nccl = (struct emu_nccl){.in_progress = 2};
        device_create(&r);
        assert_int_equal(open_rank(&r, 0, 1, SHORT_MS), NEB_OK);
        assert_int_equal(in_queue(&r, 200), NEB_OK); // more than may be in flight
        emu_nccl.hang = "ncclAllGather";
        neb_ns from = neb_now();
        enum neb_status st = enqueue(&r, INTRA_COMM_ALL_GATHER, N, INTRA_COMM_SUM);
        for (int i = 0; st == NEB_OK && i < ahead; i++)
            st = enqueue(&r, INTRA_COMM_ALL_REDUCE, N, INTRA_COMM_SUM);
        assert_true((st == NEB_OK) == (ahead < 8)); // it waited for the first one
        if (st == NEB_OK)
            st = wait_for_queue(&r);
        assert_int_equal(st, NEB_ERR_TIMEOUT);
        double s = neb_seconds(neb_now() - from);
        assert_true(s >= 1e-3 * SHORT_MS && s < 1e-3 * SHORT_MS + 10);
        assert_non_null(strstr(logged.text, "NCCL: all-gather on rank 0 of 1 has not ended after"));
        assert_int_equal(logged.errors, 1);
        assert_true(queue_is_empty(&r));
        assert_int_equal(r.c->ops->look(r.c, true), NEB_ERR_STATE);
        assert_int_equal(enqueue(&r, INTRA_COMM_ALL_REDUCE, N, INTRA_COMM_SUM), NEB_ERR_STATE);
        intra_comm_destroy(&r.c);
        device_destroy(&r);
        assert_int_equal(emu_nccl.live, 0);
    }
}

// A thread of the NCCL library may still be inside its call.
static int live_now(void) {
    EMU_ALONE;
    return emu_nccl.live;
}

// An abort does not return. The next communicator is aborted all the same.
static void test_abort_is_not_waited_for(void **state) {
    (void)state;
    struct rank r;
    emu_nccl = (struct emu_nccl){.in_progress = 2};
    device_create(&r);
    assert_int_equal(open_rank(&r, 0, 1, SHORT_MS), NEB_OK);
    neb_ns from = neb_now();
    emu_nccl.hang = "ncclCommAbort";
    r.c->ops->abort(r.c);
    assert_true(neb_seconds(neb_now() - from) < 15);
    assert_int_equal(r.c->ops->barrier(r.c), NEB_ERR_STATE);
    intra_comm_destroy(&r.c);
    device_destroy(&r);
    emu_enter();
    emu_nccl.hang = NULL; // the call returns now, slowly
    emu_leave();
    for (int i = 0; live_now() && i < 100; i++)
        neb_sleep(100 * NEB_MS);
    assert_int_equal(live_now(), 0);
}

// A communicator never finishes its end. There is no error, but destroy returns.
static void test_end_is_late(void **state) {
    (void)state;
    neb_ns from = neb_now();
    struct emu_nccl how = {.in_progress = 2, .hang = "ncclCommFinalize"};
    assert_int_equal(run(how, COLLECTIVES, SHORT_MS).st, NEB_OK);
    assert_true(neb_seconds(neb_now() - from) >= 2e-3 * SHORT_MS); // two waits
    assert_non_null(strstr(logged.text, "finalize on rank 0 of 1 has not ended"));
}

// A peer that exits silently after its first sums.
static void test_peer_is_gone(void **state) {
    (void)state;
    struct rank r;
    float x = 1;
    emu_nccl = (struct emu_nccl){.in_progress = 2};
    pid_t peer = peer_start("b", COLLECTIVES);
    device_create(&r);
    assert_int_equal(open_rank(&r, 0, 2, LONG_MS), NEB_OK);
    assert_int_equal(r.c->ops->all_reduce(r.c, r.device, N, INTRA_COMM_F32, INTRA_COMM_SUM),
                     NEB_OK);
    peer_end(peer);
    neb_ns from = neb_now();
    assert_int_equal(r.c->ops->all_reduce(r.c, &x, 1, INTRA_COMM_F32, INTRA_COMM_SUM),
                     NEB_ERR_TIMEOUT);
    assert_true(neb_seconds(neb_now() - from) < 1e-3 * LONG_MS + 10);
    assert_int_equal(r.c->ops->barrier(r.c), NEB_ERR_STATE);
    intra_comm_destroy(&r.c);
    device_destroy(&r);
    assert_int_equal(emu_nccl.live, 0);
}

// As in NCCL: two ranks of one host cannot share a device.
static void test_one_device_twice(void **state) {
    (void)state;
    setenv("NCCL_HOSTID", "b", 1); // the name that the peer claims
    struct outcome o = run((struct emu_nccl){.in_progress = 2}, MESSAGES, PATIENT_MS);
    setenv("NCCL_HOSTID", "a", 1);
    assert_int_equal(o.st, NEB_ERR_IO);
    assert_non_null(
        strstr(logged.text, "start failed on rank 0 of 2: invalid usage (Duplicate GPU"));
}

static void test_another_build(void **state) {
    (void)state;
    struct intra_comm boot = {.size = 1}, *c = NULL;
    assert_int_equal(intra_comm_nccl_open(INTRA_COMM_VERSION + 1, &boot, 0, 1, &c),
                     NEB_ERR_UNSUPPORTED);
    assert_null(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_well),
        cmocka_unit_test(test_every_call_fails),
        cmocka_unit_test(test_every_look_tells_of_an_error),
        cmocka_unit_test(test_what_never_ends_is_late),
        cmocka_unit_test(test_what_hangs_in_a_queue_is_late),
        cmocka_unit_test(test_abort_is_not_waited_for),
        cmocka_unit_test(test_end_is_late),
        cmocka_unit_test(test_peer_is_gone),
        cmocka_unit_test(test_one_device_twice),
        cmocka_unit_test(test_another_build),
    };
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (common == MAP_FAILED)
        return 1;
    setenv("NCCL_HOSTID", "a", 1);
    unsetenv("EMU_NCCL_SHARED_DEVICE");
    neb_log_set_sink(sink, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
