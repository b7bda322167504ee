// SPDX-License-Identifier: Apache-2.0
// Graphs (kern_ops.record) on the emulated device, whose captures are as strict as CUDA's
// manual: a recorded op does not run. A replay reads the present memory, and the scalars of the
// recording. An op that must not be recorded spoils the graph and nothing else. EMU_LATE=1: the
// same with a queue that runs late.
#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

kern_device_opener kern_cuda_open;
extern int emu_graph_fails, emu_graph_launches;

enum { N = 96 };

static struct kern *D;
static const struct kern_ops *K;
static float *x, *y, *pinned; // (N) device, device, host

static int open_all(void **state) {
    char text[256];
    void *p;
    (void)state;
    assert_int_equal(kern_cuda_open(KERN_DEVICE_VERSION, 0, &D, text, sizeof text), NEB_OK);
    K = D->ops;
    assert_int_equal(K->alloc(D, N * sizeof(float), &p), NEB_OK);
    x = p;
    assert_int_equal(K->alloc(D, N * sizeof(float), &p), NEB_OK);
    y = p;
    assert_int_equal(K->alloc_pinned(D, N * sizeof(float), &p), NEB_OK);
    pinned = p;
    return 0;
}
static int close_all(void **state) {
    (void)state;
    assert_int_equal(K->finish(D), NEB_OK); // no error of the device so far
    K->release_pinned(D, pinned);
    K->release(D, y);
    K->release(D, x);
    kern_destroy(&D);
    return 0;
}

static void put(float *at, float value) {
    float host[N];
    for (int i = 0; i < N; i++)
        host[i] = value;
    K->upload(D, at, host, sizeof host);
}
static float get(const float *at) {
    float host[N];
    K->download(D, host, at, sizeof host);
    assert_int_equal(K->finish(D), NEB_OK);
    for (int i = 1; i < N; i++)
        assert_true(host[i] == host[0]);
    return host[0];
}

static struct kern_graph *end(void) {
    char why[KERN_WHY_MAX];
    struct kern_graph *g = NULL;
    if (K->record_end(D, &g, why) != NEB_OK)
        fail_msg("%s", why);
    assert_non_null(g);
    return g;
}
static void refused(const char *reason) {
    char why[KERN_WHY_MAX];
    struct kern_graph *g = (void *)1;
    assert_int_equal(K->record_end(D, &g, why), NEB_ERR_UNSUPPORTED);
    assert_null(g);
    if (!strstr(why, reason))
        fail_msg("%s, and not: %s", why, reason);
    assert_int_equal(K->finish(D), NEB_OK);
}

// Nothing runs during the recording; every replay uses the current contents of memory.
static void test_replay(void **state) {
    (void)state;
    put(x, 1);
    put(y, 2);
    K->record(D);
    K->add(D, y, x, N);
    K->scale(D, x, 3, N);
    struct kern_graph *g = end();
    assert_int_equal(g->ops, 2);
    assert_int_equal(g->parts, 1);
    assert_true(get(x) == 1 && get(y) == 2);
    K->replay(D, g);
    assert_true(get(y) == 3 && get(x) == 3);
    put(x, 10);
    K->replay(D, g);
    K->replay(D, g);
    assert_true(get(y) == 3 + 10 + 30 && get(x) == 90);
    K->forget(D, &g);
    assert_null(g);
    K->forget(D, &g); // NULL-safe
}

// Scalars keep their recorded values: the emulator detects a scalar that changes between replays.
static void test_stale(void **state) {
    (void)state;
    float by = 2;
    put(x, 1);
    K->record(D);
    K->scale(D, x, by, N);
    struct kern_graph *g = end();
    K->replay(D, g);
    by = 5;
    K->replay(D, g);
    assert_true(get(x) == 4);
    // The graph reads pinned memory when it runs.
    K->record(D);
    K->upload(D, y, pinned, N * sizeof *pinned);
    K->add(D, x, y, N);
    struct kern_graph *h = end();
    for (int turn = 1; turn < 3; turn++) {
        for (int i = 0; i < N; i++)
            pinned[i] = (float)turn;
        K->replay(D, h);
        K->mark(D, 0);
        K->wait(D, 0);
    }
    assert_true(get(x) == 4 + 1 + 2);
    K->forget(D, &h);
    K->forget(D, &g);
}

// A mark splits the recording into two graphs; the host waits for it after a replay as after a
// plain run.
static void test_marks(void **state) {
    (void)state;
    K->record(D);
    K->mark(D, 3); // nothing before it
    K->zero(D, x, N * sizeof *x);
    K->copy(D, y, x, N * sizeof *x);
    K->mark(D, 4);
    K->mark(D, 5);
    K->download(D, pinned, y, N * sizeof *x);
    struct kern_graph *g = end();
    assert_int_equal(g->ops, 3);
    assert_int_equal(g->parts, 4);
    put(y, 7);
    pinned[N - 1] = 1;
    int before = emu_graph_launches;
    K->replay(D, g);
    assert_int_equal(emu_graph_launches - before, 2); // empty parts launch none
    K->mark(D, 6);
    K->wait(D, 6);
    assert_true(pinned[N - 1] == 0);
    K->wait(D, 4);
    assert_true(K->elapsed_ms(D, 3, 5) >= 0);
    K->forget(D, &g);
    K->record(D);
    for (int i = 0; i < 2 * KERN_MARKS; i++)
        K->mark(D, 3);
    refused("too many marks");
}

static void nothing(void) { // y += 0, by a product
    K->gemm(D, &(struct kern_gemm){.m = 1,
                                   .n = 1,
                                   .k = 1,
                                   .alpha = 0,
                                   .a = x,
                                   .lda = 1,
                                   .b = x,
                                   .ldb = 1,
                                   .beta = 1,
                                   .c = y,
                                   .ldc = 1});
}
static void spoilt(int how) {
    float host[N];
    struct kern_update none = {.params = (float *)4, .n_chunks = 1}; // not aligned
    K->record(D);
    K->add(D, y, x, N);
    switch (how) {
    case 0: K->wait(D, 0); break;
    case 1: (void)K->finish(D); break;
    case 2: (void)K->elapsed_ms(D, 0, 1); break;
    case 3: K->download(D, host, x, sizeof host); break;
    case 4: K->upload(D, x, memset(host, 0, sizeof host), sizeof host); break;
    case 5: K->adamw(D, KERN_F32, &none); break;
    case 6:
        K->gemm(D, &(struct kern_gemm){.m = 3,
                                       .n = 5,
                                       .k = 7,
                                       .alpha = 1,
                                       .a = x,
                                       .lda = 7,
                                       .b = x,
                                       .ldb = 5,
                                       .c = y,
                                       .ldc = 5});
        break;
    case 7:
        K->bias_bwd(D, KERN_F32, y, x, 1, 32 * N); // more scratch than before
        break;
    case 8: // the library refuses a kernel that it has launched before
        setenv("EMU_LAUNCH", "15", 1);
        nothing();
        unsetenv("EMU_LAUNCH");
        break;
    }
    K->scale(D, x, 100, N); // neither recorded nor run
}

static void test_refusals(void **state) {
    static const char *const reasons[] = {"not allowed while recording",
                                          "not allowed while recording",
                                          "not allowed while recording",
                                          "when stream is capturing",
                                          "when stream is capturing",
                                          "AdamW",
                                          "not run before",
                                          "growing scratch",
                                          "status 15"};
    (void)state;
    put(x, 1);
    put(y, 1);
    K->mark(D, 0);
    K->mark(D, 1);
    nothing();
    for (int how = 0; how < 9; how++) {
        spoilt(how);
        refused(reasons[how]);
        assert_true(get(x) == 1 && get(y) == 1);
    }
    // the next recording works
    K->record(D);
    K->add(D, y, x, N);
    struct kern_graph *g = end();
    K->replay(D, g);
    assert_true(get(y) == 2);
    K->forget(D, &g);
}

// Each call that makes a graph fails once.
static void test_failures(void **state) {
    (void)state;
    int calls = 0;
    put(y, 0);
    put(x, 1);
    for (int k = 1;; k++, calls++) {
        char why[KERN_WHY_MAX];
        struct kern_graph *g = NULL;
        emu_graph_fails = k;
        K->record(D);
        K->add(D, y, x, N);
        K->mark(D, 2);
        K->add(D, y, x, N);
        enum neb_status st = K->record_end(D, &g, why);
        if (st == NEB_OK) {
            assert_true(emu_graph_fails > 0);
            emu_graph_fails = 0;
            K->forget(D, &g);
            break;
        }
        assert_int_equal(st, NEB_ERR_UNSUPPORTED);
        assert_int_equal(emu_graph_fails, 0);
        assert_true(get(y) == 0);
    }
    assert_int_equal(calls, 10); // two parts: begin, end, count, instantiate, upload
}

// A graph keeps its scratch when the device's scratch grows.
static void test_scratch(void **state) {
    enum { WIDE = 1 << 14 };
    void *p, *q;
    (void)state;
    assert_int_equal(K->alloc(D, 200 * WIDE * sizeof(float), &p), NEB_OK);
    assert_int_equal(K->alloc(D, WIDE * sizeof(float), &q), NEB_OK);
    put(x, 1);
    put(y, 0);
    K->bias_bwd(D, KERN_F32, y, x, 1, N);
    assert_true(get(y) == 1);
    K->record(D);
    K->bias_bwd(D, KERN_F32, y, x, 1, N);
    struct kern_graph *g = end();
    K->zero(D, p, 200 * WIDE * sizeof(float));
    K->zero(D, q, WIDE * sizeof(float));
    K->bias_bwd(D, KERN_F32, q, p, 200, WIDE); // grows
    K->replay(D, g);
    assert_true(get(y) == 2);
    K->bias_bwd(D, KERN_F32, q, p, 200, WIDE);
    K->replay(D, g);
    assert_true(get(y) == 3);
    K->forget(D, &g);
    K->bias_bwd(D, KERN_F32, y, x, 1, N);
    assert_true(get(y) == 4);
    K->release(D, p);
    K->release(D, q);
}

// The ops of the modes rtd and distill, plain and recorded, give the same bits from the same start.
// All arrays are in one allocation: operands first, then outputs.
enum { ROWS = 5, WIDTH = 8, WORDS = 40, NAMED = 3, GIVEN = 512, MADE = 768, ROOM = GIVEN + MADE };
static void enqueue_heads(float *room) {
    int32_t *labels = (int32_t *)(void *)room, *at = labels + 8, *names = at + 8;
    double *u = (double *)(void *)(room + 40); // (ROWS)
    float *one = room + 52, *table = one + 8, *given = table + WORDS * WIDTH, *made = room + GIVEN;
    double *totals = (double *)(void *)made; // (2)
    struct kern_rtd rtd = {.n = ROWS,
                           .d = WIDTH,
                           .x = given,
                           .w = table,
                           .b = one,
                           .labels = labels,
                           .grad_scale = one,
                           .dx = made + 8,
                           .dw = made + 48,
                           .db = made + 56,
                           .scores = made + 64,
                           .losses = made + 72,
                           .total = totals};
    struct kern_head head = {.n = ROWS,
                             .d = WIDTH,
                             .V = WORDS,
                             .x = given,
                             .w = table,
                             .targets = labels,
                             .grad_scale = one,
                             .dx = made + 80,
                             .dw = made + 128,
                             .logits = made + 512,
                             .rows = 2,
                             .losses = made + 120,
                             .total = totals + 1};
    struct kern_soft soft = {.k = NAMED,
                             .lambda = 0.5f,
                             .temperature = 2,
                             .ids = names,
                             .logp = made + 720,
                             .tail = made + 744};
    struct kern_rows rows = {.n = ROWS,
                             .d = WIDTH,
                             .V = WORDS,
                             .x = given,
                             .at = at,
                             .w = table,
                             .gathered = made + 600,
                             .logits = made + 624,
                             .block = 2};
    K->label_rows(D, KERN_F32, &rows, NAMED, 2, names, made + 720, made + 744);
    K->sample_rows(D, KERN_F32, &rows, 1, u, (int32_t *)(void *)(made + 752));
    K->head_loss(D, KERN_F32, &head, &soft);
    K->rtd_loss(D, KERN_F32, &rtd);
}
static void test_heads(void **state) {
    static float begin[ROOM], once[ROOM], again[ROOM];
    void *p;
    (void)state;
    assert_int_equal(K->alloc(D, sizeof begin, &p), NEB_OK);
    for (int i = 0; i < GIVEN; i++)
        begin[i] = (float)(i * 37 % 101) / 101;
    for (int i = 0; i < ROWS; i++)
        memcpy(begin + 40 + 2 * i, &(double){(2 * i + 1) / 11.0}, sizeof(double));
    for (int i = 0; i < ROWS; i++) {
        const int32_t label = i % 2, at = ROWS - 1 - i;
        memcpy(&begin[i], &label, sizeof label);
        memcpy(&begin[8 + i], &at, sizeof at);
    }
    K->upload(D, p, begin, sizeof begin);
    enqueue_heads(p);
    K->download(D, once, p, sizeof once);
    assert_int_equal(K->finish(D), NEB_OK);
    assert_memory_not_equal(begin, once, sizeof once);
    K->upload(D, p, begin, sizeof begin);
    K->record(D);
    enqueue_heads(p);
    struct kern_graph *g = end();
    K->download(D, again, p, sizeof again);
    assert_int_equal(K->finish(D), NEB_OK);
    assert_memory_equal(begin, again, sizeof again);
    K->replay(D, g);
    K->download(D, again, p, sizeof again);
    assert_int_equal(K->finish(D), NEB_OK);
    assert_memory_equal(once, again, sizeof once);
    K->forget(D, &g);
    K->release(D, p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay),   cmocka_unit_test(test_stale),
        cmocka_unit_test(test_marks),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_failures), cmocka_unit_test(test_scratch),
        cmocka_unit_test(test_heads),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
