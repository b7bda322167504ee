// SPDX-License-Identifier: Apache-2.0
// The suite for every communicator: alone (self, one rank), under mpirun with "mpi" or "nccl
// DEVICE" (test_comm_mpi.sh, test_comm_nccl.sh: 1, 2 and 4 ranks), or under `nebula ranks` with
// "socket" (test_comm_socket.sh), or with "loop RANKS" over the send and receive of an attached
// loop between processes that this program starts (test_comm_loop.sh). Every rank checks every
// result. "mpi pieces": an object that cuts messages after 4000 bytes and collectives after 4000
// elements of all ranks; the installed object cuts after a gibibyte.
#include "agent/base/log.h"
#include "agent/lib/ranks.h"
#include "intra/ranks/comm.h"
#include "tests/e2e/loop_ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static struct intra_comm *C;
static bool pieces;

// Short, odd, long enough for other algorithms, and near the limits of "mpi pieces".
static const size_t sizes[] = {0, 1, 3, 64, 999, 1000, 1001, 2000, 4001, 100003};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

// A value that depends on rank and index, with bits to round.
static float value(int rank, size_t i) {
    return (float)(rank + 1) * 0.37f + (float)(i % 97) * 1.003f;
}

static bool nccl(void) { return !strcmp(C->ops->name, "nccl"); }
// Matches messages by their order, and a send may wait for its receiver.
static bool ordered(void) { return nccl() || !strcmp(C->ops->name, "loop"); }

static void *need(size_t bytes) {
    void *p = calloc(1, bytes + 1);
    assert_non_null(p);
    return p;
}

static void test_all_reduce_sum(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        size_t n = sizes[s];
        float *x = need(n * sizeof *x);
        for (size_t i = 0; i < n; i++)
            x[i] = value(C->rank, i);
        assert_int_equal(C->ops->all_reduce(C, x, n, INTRA_COMM_F32, INTRA_COMM_SUM), NEB_OK);
        for (size_t i = 0; i < n; i++) {
            double want = 0;
            for (int r = 0; r < C->size; r++)
                want += (double)value(r, i);
            assert_true(fabs((double)x[i] - want) <= want * 1e-6);
        }
        free(x);
    }
}

static void test_all_reduce_types(void **state) {
    (void)state;
    double d[3] = {1.0 / 3, C->rank, -1e300};
    uint64_t u[2] = {(uint64_t)1 << 60, (uint64_t)C->rank};
    float f[3] = {-1.5f, (float)C->rank, (float)-C->rank};
    int n = C->size;
    assert_int_equal(C->ops->all_reduce(C, d, 2, INTRA_COMM_F64, INTRA_COMM_SUM), NEB_OK);
    assert_true(fabs(d[0] - n / 3.0) <= 1e-15 * n);
    assert_true(d[1] == n * (n - 1) / 2.0);
    assert_true(d[2] == -1e300); // the element after the end is untouched
    assert_int_equal(C->ops->all_reduce(C, u, 2, INTRA_COMM_U64, INTRA_COMM_SUM), NEB_OK);
    assert_true(u[0] == (uint64_t)n << 60 && u[1] == (uint64_t)(n * (n - 1) / 2));
    assert_int_equal(C->ops->all_reduce(C, f, 3, INTRA_COMM_F32, INTRA_COMM_MAX), NEB_OK);
    assert_true(f[0] == -1.5f && f[1] == (float)(n - 1) && f[2] == 0);
}

static void test_reduce(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++)
        for (int root = 0; root < C->size; root++) {
            size_t n = sizes[s];
            float *x = need((n + 1) * sizeof *x);
            for (size_t i = 0; i <= n; i++)
                x[i] = value(C->rank, i);
            assert_int_equal(C->ops->reduce(C, x, n, root), NEB_OK);
            for (size_t i = 0; C->rank == root && i < n; i++) {
                double want = 0;
                for (int r = 0; r < C->size; r++)
                    want += (double)value(r, i);
                assert_true(fabs((double)x[i] - want) <= want * 1e-6);
            }
            assert_true(x[n] == value(C->rank, n)); // the element after the end is untouched
            free(x);
        }
}

// Sums that depend on the order of additions: the same bits on all ranks, and in a repetition.
static void test_same_bits(void **state) {
    (void)state;
    enum { N = 5000 };
    float *x = need(N * sizeof *x), *again = need(N * sizeof *x), *root = need(N * sizeof *x);
    for (int pass = 0; pass < 2; pass++) {
        float *y = pass ? again : x;
        for (size_t i = 0; i < N; i++)
            y[i] = (C->rank % 2 ? -1.0f : 1.0f) * (1e7f / (float)(i + 1)) + 0.1f * (float)C->rank;
        assert_int_equal(C->ops->all_reduce(C, y, N, INTRA_COMM_F32, INTRA_COMM_SUM), NEB_OK);
    }
    assert_memory_equal(x, again, N * sizeof *x);
    memcpy(root, x, N * sizeof *x);
    assert_int_equal(C->ops->broadcast(C, root, N * sizeof *root, C->size - 1), NEB_OK);
    assert_memory_equal(x, root, N * sizeof *x);
    free(x);
    free(again);
    free(root);
}

static void test_scatter_gather(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        size_t n = sizes[s], all = n * (size_t)C->size, own = n * (size_t)C->rank;
        float *x = need(all * sizeof *x);
        for (size_t i = 0; i < all; i++)
            x[i] = value(C->rank, i);
        assert_int_equal(C->ops->reduce_scatter(C, x, n), NEB_OK);
        for (size_t i = own; i < own + n; i++) {
            double want = 0;
            for (int r = 0; r < C->size; r++)
                want += (double)value(r, i);
            assert_true(fabs((double)x[i] - want) <= want * 1e-6);
        }
        for (size_t i = 0; i < all; i++)
            x[i] = i >= own && i < own + n ? value(C->rank, i) : -1;
        assert_int_equal(C->ops->all_gather(C, x, n), NEB_OK);
        for (size_t i = 0; i < all; i++)
            assert_true(x[i] == value((int)(i / (n ? n : 1)), i));
        free(x);
    }
}

// Sums that are exact in any order: cutting into pieces changes no bit.
static float whole_number(int rank, size_t i) {
    return (float)((i * 7 + (size_t)rank * 31) % 1021) - 510;
}

static float sum_of(size_t i) {
    float sum = 0;
    for (int r = 0; r < C->size; r++)
        sum += whole_number(r, i);
    return sum;
}

static void test_exact(void **state) {
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        size_t n = sizes[s], all = n * (size_t)C->size, own = n * (size_t)C->rank;
        float *x = need(all * sizeof *x), *y = need(all * sizeof *y), *sums = need(all * sizeof *x);
        for (size_t i = 0; i < all; i++) {
            x[i] = y[i] = whole_number(C->rank, i);
            sums[i] = sum_of(i);
        }
        assert_int_equal(C->ops->all_reduce(C, x, all, INTRA_COMM_F32, INTRA_COMM_SUM), NEB_OK);
        assert_memory_equal(x, sums, all * sizeof *x);
        assert_int_equal(C->ops->reduce_scatter(C, y, n), NEB_OK);
        assert_memory_equal(y + own, sums + own, n * sizeof *y);
        for (size_t i = 0; i < all; i++)
            y[i] = i >= own && i < own + n ? sums[i] : -1;
        assert_int_equal(C->ops->all_gather(C, y, n), NEB_OK);
        assert_memory_equal(y, sums, all * sizeof *y);
        for (size_t i = 0; i < all; i++)
            y[i] = C->rank == C->size - 1 ? sums[i] : -1;
        assert_int_equal(C->ops->broadcast(C, y, all * sizeof *y, C->size - 1), NEB_OK);
        assert_memory_equal(y, sums, all * sizeof *y);
        free(x);
        free(y);
        free(sums);
    }
}

static void test_broadcast(void **state) {
    (void)state;
    for (int root = 0; root < C->size; root++) {
        char text[100] = "";
        if (C->rank == root)
            snprintf(text, sizeof text, "from %d", root);
        assert_int_equal(C->ops->broadcast(C, text, sizeof text, root), NEB_OK);
        char want[100] = "";
        snprintf(want, sizeof want, "from %d", root);
        assert_memory_equal(text, want, sizeof want);
    }
}

// All ranks send to the next rank at once, before any rank receives. A send must not wait for its
// receiver.
static void test_ring(void **state) {
    (void)state;
    int to = (C->rank + 1) % C->size, from = (C->rank + C->size - 1) % C->size;
    if (ordered())
        skip(); // a cycle, or a message to itself: see comm.h
    for (int s = 0; s < SIZES; s++) {
        size_t n = sizes[s];
        float *out = need(n * sizeof *out), *in = need(n * sizeof *in);
        struct intra_comm_send send = {0};
        for (size_t i = 0; i < n; i++)
            out[i] = value(C->rank, i);
        assert_int_equal(C->ops->send(C, out, n * sizeof *out, to, 7, &send), NEB_OK);
        assert_int_equal(C->ops->recv(C, in, n * sizeof *in, from, 7), NEB_OK);
        assert_int_equal(C->ops->wait(C, &send), NEB_OK);
        assert_int_equal(C->ops->wait(C, &send), NEB_OK); // already finished
        for (size_t i = 0; i < n; i++)
            assert_true(in[i] == value(from, i));
        free(out);
        free(in);
    }
}

// Messages with one tag keep their order; tags are independent.
static void test_tags(void **state) {
    (void)state;
    int to = (C->rank + 1) % C->size, from = (C->rank + C->size - 1) % C->size;
    if (ordered())
        skip(); // it has no tags
    int out[4] = {10, 11, 20, 12}, tags[4] = {1, 1, 2, 1}, in = 0;
    struct intra_comm_send send[4] = {{0}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(C->ops->send(C, &out[i], sizeof out[i], to, tags[i], &send[i]), NEB_OK);
    const int want[4] = {20, 10, 11, 12}, order[4] = {2, 1, 1, 1};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(C->ops->recv(C, &in, sizeof in, from, order[i]), NEB_OK);
        assert_int_equal(in, want[i]);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(C->ops->wait(C, &send[i]), NEB_OK);
}

// A probe finds a message without receiving it, and only with its tag.
static void test_poll(void **state) {
    (void)state;
    int to = (C->rank + 1) % C->size, from = (C->rank + C->size - 1) % C->size, x = 4, y = 0;
    struct intra_comm_send send = {0};
    bool ready = true;
    if (!C->ops->poll)
        skip();
    assert_int_equal(C->ops->poll(C, from, 9, &ready), NEB_OK);
    assert_false(ready);
    assert_int_equal(C->ops->barrier(C), NEB_OK); // nobody sends before all have probed
    assert_int_equal(C->ops->send(C, &x, sizeof x, to, 9, &send), NEB_OK);
    while (!ready)
        assert_int_equal(C->ops->poll(C, from, 9, &ready), NEB_OK);
    assert_int_equal(C->ops->poll(C, from, 8, &ready), NEB_OK);
    assert_false(ready);
    assert_int_equal(C->ops->recv(C, &y, sizeof y, from, 9), NEB_OK);
    assert_int_equal(y, 4);
    assert_int_equal(C->ops->wait(C, &send), NEB_OK);
    assert_int_equal(C->ops->poll(C, from, 9, &ready), NEB_OK);
    assert_false(ready);
}

static void test_wrong_size(void **state) {
    (void)state;
    int to = (C->rank + 1) % C->size, from = (C->rank + C->size - 1) % C->size;
    int64_t out = 5, in = 0;
    if (ordered())
        skip(); // a cycle
    struct intra_comm_send send = {0};
    assert_int_equal(C->ops->send(C, &out, 4, to, 3, &send), NEB_OK);
    assert_int_equal(C->ops->recv(C, &in, 8, from, 3), NEB_ERR_IO);
    assert_int_equal(C->ops->wait(C, &send), NEB_OK);
}

// Messages of about one piece and of several, all with one tag and in flight at once. No bytes may
// be mixed up. Then sizes that differ between sender and receiver.
static void test_pieces(void **state) {
    (void)state;
    static const size_t bytes[] = {0, 3999, 4000, 4001, 1, 8000, 7999, 12001, 4000};
    static const size_t differ[][2] = {{3999, 4000}, {4000, 4001}, {4000, 3999}, {4000, 8000},
                                       {8000, 4000}, {4001, 3},    {0, 4000}};
    enum {
        N = sizeof bytes / sizeof bytes[0],
        DIFFER = sizeof differ / sizeof differ[0],
        MOST = 12001
    };
    int to = (C->rank + 1) % C->size, from = (C->rank + C->size - 1) % C->size;
    unsigned char *out = need((size_t)N * MOST), *in = need(MOST);
    struct intra_comm_send send[N] = {{0}};
    if (ordered())
        goto out; // a cycle
    for (size_t i = 0; i < N; i++) {
        for (size_t k = 0; k < bytes[i]; k++)
            out[i * MOST + k] = (unsigned char)(i * 50 + k * 3 + (size_t)C->rank);
        assert_int_equal(C->ops->send(C, out + i * MOST, bytes[i], to, 11, &send[i]), NEB_OK);
    }
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(C->ops->recv(C, in, bytes[i], from, 11), NEB_OK);
        for (size_t k = 0; k < bytes[i]; k++)
            assert_true(in[k] == (unsigned char)(i * 50 + k * 3 + (size_t)from));
    }
    for (size_t i = 0; i < N; i++)
        assert_int_equal(C->ops->wait(C, &send[i]), NEB_OK);
    for (size_t i = 0; i < DIFFER; i++) {
        int tag = 100 + (int)i; // no rank receives the rest of a message that did not fit
        assert_int_equal(C->ops->send(C, out, differ[i][0], to, tag, &send[0]), NEB_OK);
        assert_int_equal(C->ops->recv(C, in, differ[i][1], from, tag), NEB_ERR_IO);
        assert_int_equal(C->ops->wait(C, &send[0]), NEB_OK);
    }
out:
    free(out);
    free(in);
}

// Maps `bytes` of addresses to one window of memory many times, to save memory.
enum { WINDOW = 16 << 20 };
static unsigned char *mirrors(size_t bytes) {
    int fd = memfd_create("window", 0);
    unsigned char *p = mmap(NULL, bytes + WINDOW, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(fd >= 0 && p != MAP_FAILED && ftruncate(fd, WINDOW) == 0);
    for (size_t at = 0; at < bytes; at += WINDOW)
        assert_true(mmap(p + at, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
                    p + at);
    close(fd);
    return p;
}

// More than a gibibyte in one message while the receiver is busy, and another message after it.
static void test_gibibyte(void **state) {
    (void)state;
    const size_t bytes = ((size_t)1 << 30) + 3 * (size_t)WINDOW + 12345;
    if (C->size != 2 || nccl() || pieces)
        skip(); // one communicator is enough, and small pieces would be too many
    struct intra_comm_send s[2] = {{0}};
    unsigned char *p = mirrors(bytes), last = 5;
    double sum = 1;
    if (C->rank == 0) {
        for (size_t i = 0; i < WINDOW; i++)
            p[i] = (unsigned char)(i * 7 + i / 4099);
        assert_int_equal(C->ops->send(C, p, bytes, 1, 4, &s[0]), NEB_OK);
        assert_int_equal(C->ops->send(C, &last, 1, 1, 4, &s[1]), NEB_OK);
    } else {
        usleep(300000);
        assert_int_equal(C->ops->recv(C, p, bytes, 0, 4), NEB_OK);
        for (size_t i = 0; i < WINDOW; i++)
            assert_true(p[i] == (unsigned char)(i * 7 + i / 4099));
        last = 0;
        assert_int_equal(C->ops->recv(C, &last, 1, 0, 4), NEB_OK);
        assert_int_equal(last, 5);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(C->ops->wait(C, &s[i]), NEB_OK);
    assert_int_equal(C->ops->all_reduce(C, &sum, 1, INTRA_COMM_F64, INTRA_COMM_SUM), NEB_OK);
    assert_true(sum == 2);
    munmap(p, bytes + WINDOW);
}

// A message is found behind others that are not received yet, however long they are.
static void test_poll_behind(void **state) {
    (void)state;
    enum { LONG = 5 << 20, N = 3 };
    int to = (C->rank + 1) % C->size, from = (C->rank + C->size - 1) % C->size;
    unsigned char *out = need(LONG), *in = need(LONG), x = 1;
    struct intra_comm_send s[N] = {{0}};
    bool ready = false;
    if (!C->ops->poll)
        goto out;
    memset(out, 1 + C->rank, LONG);
    for (int i = 0; i < N; i++)
        assert_int_equal(
            C->ops->send(C, i < N - 1 ? out : &x, i < N - 1 ? LONG : 1, to, 20 + i, &s[i]), NEB_OK);
    for (int i = 0; !ready && i < 5000; i++) {
        assert_int_equal(C->ops->poll(C, from, 20 + N - 1, &ready), NEB_OK);
        usleep(1000);
    }
    assert_true(ready);
    assert_int_equal(C->ops->recv(C, &x, 1, from, 20 + N - 1), NEB_OK);
    for (int i = 0; i < N - 1; i++) {
        assert_int_equal(C->ops->recv(C, in, LONG, from, 20 + i), NEB_OK);
        assert_true(in[0] == 1 + from && in[LONG - 1] == 1 + from);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(C->ops->wait(C, &s[i]), NEB_OK);
out:
    free(out);
    free(in);
}

static void test_split(void **state) {
    (void)state;
    struct intra_comm *part = NULL, *pair = NULL;
    if (!C->ops->split)
        skip();
    // Odd and even ranks, in reverse order.
    assert_int_equal(C->ops->split(C, C->rank % 2, -C->rank, &part), NEB_OK);
    int same = (C->size + (C->rank % 2 ? 0 : 1)) / 2;
    assert_int_equal(part->size, same);
    assert_int_equal(part->rank, same - 1 - C->rank / 2);
    double sum = C->rank, want = 0;
    for (int r = C->rank % 2; r < C->size; r += 2)
        want += r;
    assert_int_equal(part->ops->all_reduce(part, &sum, 1, INTRA_COMM_F64, INTRA_COMM_SUM), NEB_OK);
    assert_true(sum == want);
    // A group of a group; messages stay in their group. Rank 0 sends to the next rank, or to itself
    // if it can.
    assert_int_equal(part->ops->split(part, 0, part->rank, &pair), NEB_OK);
    assert_true(pair->size == part->size && pair->rank == part->rank);
    int a = 1, b = 2, got = 0, to = pair->size > 1;
    bool can = to || !nccl();
    struct intra_comm_send sa = {0}, sb = {0};
    if (can && pair->rank == 0) {
        assert_int_equal(part->ops->send(part, &a, sizeof a, to, 1, &sa), NEB_OK);
        assert_int_equal(pair->ops->send(pair, &b, sizeof b, to, 1, &sb), NEB_OK);
    }
    // The order of the receives differs from that of the sends, so that a mix-up shows. NCCL needs
    // the same order: the first message connects two ranks, and each rank's call waits for the
    // other's.
    struct intra_comm *first = nccl() ? part : pair, *second = nccl() ? pair : part;
    if (can && pair->rank == to) {
        assert_int_equal(first->ops->recv(first, &got, sizeof got, 0, 1), NEB_OK);
        assert_int_equal(got, first == part ? a : b);
        assert_int_equal(second->ops->recv(second, &got, sizeof got, 0, 1), NEB_OK);
        assert_int_equal(got, second == part ? a : b);
    }
    assert_int_equal(part->ops->wait(part, &sa), NEB_OK);
    assert_int_equal(pair->ops->wait(pair, &sb), NEB_OK);
    intra_comm_destroy(&pair);
    assert_null(pair);
    intra_comm_destroy(&pair); // NULL-safe
    intra_comm_destroy(&part);
}

// Messages go down the ranks and up again, several in flight. This is the pattern of a pipeline,
// without a cycle.
static void test_chain(void **state) {
    (void)state;
    enum { N = 3000, MESSAGES = 5 };
    float *x = need(MESSAGES * N * sizeof *x), in[N];
    for (int up = 0; up < 2; up++) {
        int to = C->rank + (up ? -1 : 1), from = C->rank + (up ? 1 : -1);
        struct intra_comm_send send[MESSAGES] = {{0}};
        for (int i = 0; i < MESSAGES; i++) {
            if (from >= 0 && from < C->size) {
                assert_int_equal(C->ops->recv(C, in, sizeof in, from, i), NEB_OK);
                for (size_t k = 0; k < N; k++)
                    assert_true(in[k] == value(from, k + (size_t)i));
            }
            for (size_t k = 0; k < N; k++)
                x[(size_t)i * N + k] = value(C->rank, k + (size_t)i);
            if (to >= 0 && to < C->size)
                assert_int_equal(C->ops->send(C, x + (size_t)i * N, N * sizeof *x, to, i, &send[i]),
                                 NEB_OK);
        }
        for (int i = 0; i < MESSAGES; i++)
            assert_int_equal(C->ops->wait(C, &send[i]), NEB_OK);
    }
    free(x);
}

static void test_barrier(void **state) {
    (void)state;
    for (int i = 0; i < 100; i++)
        assert_int_equal(C->ops->barrier(C), NEB_OK);
}

// ---- ranks of an attached loop ------------------------------------------------------------------

static struct loop_ranks loop_of_ranks;

// The ranks make different calls: the receiver says so, and its group is lost.
static void test_different_calls(void **state) {
    (void)state;
    if (strcmp(C->ops->name, "loop") || C->size < 2)
        skip();
    float x[3] = {0};
    char text[512];
    if (C->rank == 0) {
        assert_int_equal(C->ops->recv(C, x, sizeof x, 1, 5), NEB_ERR_IO);
        neb_last_error(text, sizeof text);
        assert_non_null(
            strstr(text, "rank 1 sent message 4 of 8 bytes, but rank 0 expects 5 of 12"));
        assert_true(C->ops->lost(C));
        assert_int_equal(C->ops->barrier(C), NEB_ERR_STATE);
    } else if (C->rank == 1) {
        struct intra_comm_send s;
        assert_int_equal(C->ops->send(C, x, 8, 0, 4, &s), NEB_OK);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce_sum), cmocka_unit_test(test_all_reduce_types),
        cmocka_unit_test(test_reduce),         cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_scatter_gather), cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_ring),           cmocka_unit_test(test_tags),
        cmocka_unit_test(test_wrong_size),     cmocka_unit_test(test_poll),
        cmocka_unit_test(test_chain),          cmocka_unit_test(test_split),
        cmocka_unit_test(test_barrier),        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_pieces),         cmocka_unit_test(test_poll_behind),
        cmocka_unit_test(test_gibibyte),       cmocka_unit_test(test_different_calls),
    };
    int failed = 77;
    const char *which = argc > 1 ? argv[1] : "self";
    struct intra_comm *boot = NULL;
    bool loop = !strcmp(which, "loop") && argc > 2;
    bool gpu = !strcmp(which, "nccl");
    pieces = argc > 2 && !strcmp(argv[2], "pieces");
    if (loop)
        loop_start(&loop_of_ranks, (int)strtol(argv[2], NULL, 10));
    enum neb_status st = loop                       ? lib_ranks_create(&loop_of_ranks.hooks, &boot)
                         : !strcmp(which, "self")   ? intra_comm_self(&boot)
                         : !strcmp(which, "socket") ? intra_comm_socket_env(&boot)
                                                    : intra_comm_launched(&boot);
    if (st == NEB_OK && gpu)
        st = intra_comm_nccl(boot, argc > 2 ? (int)strtol(argv[2], NULL, 10) : boot->rank, 30000,
                             &C);
    else
        C = boot;
    if (st != NEB_OK) {
        failed = st == NEB_ERR_UNSUPPORTED ? 77 : 1;
        goto out;
    }
    printf("%s: rank %d of %d\n", C->ops->name, C->rank, C->size);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed && C->ops->abort)
        C->ops->abort(C); // the others may wait for this rank
out:
    if (gpu)
        intra_comm_destroy(&C);
    intra_comm_destroy(&boot);
    return loop ? loop_end(&loop_of_ranks, failed) : failed;
}
