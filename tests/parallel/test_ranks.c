// SPDX-License-Identifier: Apache-2.0
// Ranks over TCP with faults: a rank is missing, dies, hangs, gives up, makes another call or sends
// nonsense, and strangers connect. Every case ends in time with a message that names the rank. Sums
// are in rank order, whichever rank is late.
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "intra/ranks/comm_socket.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS_MAX = 8, N = 5000 };

// Replaces the function of the C library, to count its calls.
static long receives;
ssize_t recv(int fd, void *x, size_t n, int flags) {
    receives++;
    return syscall(SYS_recvfrom, fd, x, n, flags, NULL, NULL);
}

struct outcome { // of one rank
    bool there;
    int st;
    double s; // duration
    char text[1024];
};

struct world {
    int size, port, listener;
    int64_t start_ms, start_max_ms, timeout_ms;
    uint8_t token[SOCKET_TOKEN_BYTES];
};

typedef enum neb_status body(struct world *w, int rank);

static int listen_somewhere(int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 64) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static struct world make_world(int size) {
    struct world w = {.size = size, .start_ms = 20000, .timeout_ms = 20000};
    for (int i = 0; i < SOCKET_TOKEN_BYTES; i++)
        w.token[i] = (uint8_t)(7 * i + 1);
    w.listener = listen_somewhere(&w.port);
    return w;
}

static enum neb_status join(struct world *w, int rank, struct intra_comm **out) {
    const struct intra_comm_socket_config c = {.rank = rank,
                                               .size = w->size,
                                               .host = "127.0.0.1",
                                               .port = w->port,
                                               .one_host = true,
                                               .listener = rank == 0 ? w->listener : -1,
                                               .token = w->token,
                                               .start_ms = w->start_ms,
                                               .start_max_ms = w->start_max_ms,
                                               .timeout_ms = w->timeout_ms};
    if (rank != 0)
        close(w->listener);
    return intra_comm_socket(&c, out);
}

static char told[400]; // the last message about ranks that are waited for
static void silent(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    if (strstr(text, " waits for rank"))
        snprintf(told, sizeof told, "%s", text);
}

// Starts the ranks in the bit set `ranks` and collects their outcomes.
static void run(struct world *w, unsigned ranks, body *f, struct outcome out[RANKS_MAX]) {
    int fds[RANKS_MAX] = {0};
    pid_t pids[RANKS_MAX] = {0};
    memset(out, 0, RANKS_MAX * sizeof *out);
    for (int i = 0; i < w->size; i++) {
        int p[2];
        if (!(ranks >> i & 1))
            continue;
        assert_int_equal(pipe(p), 0);
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            struct outcome o = {.there = true};
            neb_ns from = neb_now();
            close(p[0]);
            alarm(60);
            neb_log_set_sink(silent, NULL);
            o.st = f(w, i);
            o.s = neb_seconds(neb_now() - from);
            neb_last_error(o.text, sizeof o.text);
            _exit(write(p[1], &o, sizeof o) == sizeof o ? 0 : 1);
        }
        close(p[1]);
        fds[i] = p[0];
    }
    close(w->listener);
    for (int i = 0; i < w->size; i++)
        if (ranks >> i & 1) {
            (void)!read(fds[i], &out[i], sizeof out[i]);
            close(fds[i]);
            assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
        }
}

static void says(const struct outcome *o, const char *text) {
    if (!strstr(o->text, text))
        fail_msg("no \"%s\" in \"%s\"", text, o->text);
}

// ---- start -----------------------------------------------------------------------------------

static enum neb_status only_start(struct world *w, int rank) {
    struct intra_comm *c = NULL;
    NEB_TRY(join(w, rank, &c));
    enum neb_status st = c->ops->barrier(c);
    intra_comm_destroy(&c);
    return st;
}

static void test_missing_rank(void **state) {
    (void)state;
    struct outcome o[RANKS_MAX];
    struct world w = make_world(4);
    w.start_ms = 2000;
    // ranks 0 and 2 of four: 2 waits longer, until the message of 0 comes
    run(&w, 0x5, only_start, o);
    assert_int_equal(o[0].st, NEB_ERR_TIMEOUT);
    says(&o[0], "waited 2.0 s for ranks 1, 3 to connect");
    assert_true(o[0].s >= 1.9 && o[0].s < 15);
    assert_int_not_equal(o[2].st, NEB_OK);
    says(&o[2], "rank 0");
    w = make_world(2);
    w.start_ms = 300;
    close(w.listener); // there is no rank 0
    w.listener = dup(0);
    run(&w, 0x2, only_start, o);
    assert_int_equal(o[1].st, NEB_ERR_TIMEOUT);
    says(&o[1], "rank 1 of 2 could not reach rank 0");
    assert_true(o[1].s < 10);
}

// Ranks start one after the other, over a time longer than start_ms: rank 0 waits while ranks
// arrive, and reports the missing ones.
enum { APART_MS = 2000 };
static enum neb_status comes_late(struct world *w, int rank) {
    neb_sleep(rank * APART_MS * NEB_MS);
    NEB_TRY(only_start(w, rank));
    if (rank == 0 && (!strstr(told, "rank 0 waits for ranks ") || !strstr(told, "3 to connect (")))
        return neb_fail(NEB_ERR_NOT_FOUND, "it was told: %s", told);
    return NEB_OK;
}

static void test_ranks_that_trickle_in(void **state) {
    (void)state;
    struct outcome o[RANKS_MAX];
    struct world w = make_world(4);
    w.start_ms = 3500;
    run(&w, 0xf, comes_late, o);
    for (int k = 0; k < 4; k++)
        if (!o[k].there || o[k].st != NEB_OK)
            fail_msg("rank %d: %s: %s", k, neb_status_name(o[k].st), o[k].text);
    w = make_world(4);
    w.start_ms = 3500;
    w.start_max_ms = 5000; // by then rank 2 has arrived, but not 3
    run(&w, 0xf, comes_late, o);
    assert_int_equal(o[0].st, NEB_ERR_TIMEOUT);
    says(&o[0], "for ranks 3 to connect");
    assert_true(o[0].s >= 4.9 && o[0].s < 15);
    assert_int_not_equal(o[1].st, NEB_OK);
    says(&o[1], "rank 0");
}

// Many missing ranks are named as ranges. Rank 0 may be late, too.
static enum neb_status late_root(struct world *w, int rank) {
    if (rank == 0)
        neb_sleep(1500 * NEB_MS);
    enum neb_status st = only_start(w, rank);
    if (rank == 1 && st == NEB_OK && !strstr(told, "rank 1 of 2 waits for rank 0"))
        return neb_fail(NEB_ERR_NOT_FOUND, "it was told: %s", told);
    return st;
}

static void test_late_root(void **state) {
    (void)state;
    struct outcome o[RANKS_MAX];
    struct world w = make_world(8);
    w.start_ms = 2000;
    run(&w, 0x9, only_start, o);
    assert_int_equal(o[0].st, NEB_ERR_TIMEOUT);
    says(&o[0], "for ranks 1, 2, 4-7 to connect");
    says(&o[0], "6 of 8 are missing");
    w = make_world(2);
    w.start_ms = 1000;
    close(w.listener); // rank 0 opens it itself, later
    w.listener = -1;
    run(&w, 0x3, late_root, o);
    for (int k = 0; k < 2; k++)
        if (!o[k].there || o[k].st != NEB_OK)
            fail_msg("rank %d: %s: %s", k, neb_status_name(o[k].st), o[k].text);
}

static enum neb_status dies_starting(struct world *w, int rank) {
    if (rank != 1)
        return only_start(w, rank);
    alarm(2); // after it has joined
    return only_start(w, rank);
}

static void test_rank_ends_while_starting(void **state) {
    (void)state;
    struct outcome o[RANKS_MAX];
    struct world w = make_world(3);
    run(&w, 0x3, dies_starting, o); // rank 2 is missing and 1 dies: 0 must not wait 20 s
    assert_int_equal(o[0].st, NEB_ERR_IO);
    says(&o[0], "rank 1 of 3 ended while rank 0 waited for ranks 2 to connect");
    assert_true(o[0].s < 15);
}

static int dial(int port) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

// Before rank 1, strangers connect: a hundred that send nothing, one that sends nonsense, one that
// starts well and stops, and one with another token.
static enum neb_status behind_strangers(struct world *w, int rank) {
    enum { SILENT = 100, NOISE = 100000 };
    struct intra_comm *c = NULL;
    if (rank == 1) {
        static uint8_t noise[NOISE];
        struct neb_rng r = neb_rng_make(1, 2);
        struct world other = *w;
        for (int i = 0; i < NOISE; i++)
            noise[i] = (uint8_t)neb_rng_below(&r, 256);
        for (int i = 0; i < SILENT; i++)
            if (dial(w->port) < 0)
                return NEB_ERR_NOT_FOUND;
        int fd = dial(w->port);
        (void)!send(fd, noise, sizeof noise, MSG_NOSIGNAL);
        const uint8_t hello[20] = {'N', 'B', 'R', '1', 1, 0, 0, 0, 2};
        (void)!send(dial(w->port), hello, sizeof hello, MSG_NOSIGNAL);
        other.token[31] ^= 1;
        other.listener = dup(w->listener);
        if (join(&other, 1, &c) != NEB_ERR_DENIED)
            return NEB_ERR_CORRUPT;
    }
    NEB_TRY(join(w, rank, &c));
    double x = rank + 1;
    enum neb_status st = c->ops->all_reduce(c, &x, 1, INTRA_COMM_F64, INTRA_COMM_SUM);
    if (st == NEB_OK && x != 3)
        st = NEB_ERR_CORRUPT;
    if (rank == 1 && dial(w->port) >= 0) // the listener must be closed
        st = NEB_ERR_EXISTS;
    intra_comm_destroy(&c);
    return st;
}

static void test_strangers(void **state) {
    (void)state;
    struct outcome o[RANKS_MAX];
    struct world w = make_world(2);
    run(&w, 0x3, behind_strangers, o);
    assert_int_equal(o[0].st, NEB_OK);
    assert_int_equal(o[1].st, NEB_OK);
    assert_true(o[0].s < 30);
}

// ---- one rank fails --------------------------------------------------------------------------

// Rank 2 fails in the way `how` while the others need it.
enum how { DIES, HANGS, GIVES_UP, ENDS, DISAGREES, LIES };
static enum how how;

static enum neb_status misbehave(struct world *w, struct intra_comm *c) {
    float x[2 * N] = {0};
    struct socket_hub *hub = socket_group_of(c)->hub;
    // A header that announces 2^40 bytes.
    static const uint8_t lie[SOCKET_HEADER_BYTES] = {[4] = SOCKET_MESSAGE, [17] = 1};
    switch (how) {
    case DIES: _exit(0);
    case HANGS: neb_sleep(4 * w->timeout_ms * NEB_MS); _exit(0);
    case GIVES_UP:
        c->ops->abort(c);
        return c->ops->barrier(c) == NEB_ERR_STATE ? NEB_OK : NEB_ERR_CORRUPT;
    case ENDS: return NEB_OK;
    case DISAGREES: return c->ops->all_reduce(c, x, 2 * N, INTRA_COMM_F32, INTRA_COMM_SUM);
    case LIES:
        for (int i = 0; i < 2; i++)
            (void)!send(hub->peers[i].fd, lie, sizeof lie, MSG_NOSIGNAL);
        neb_sleep(2 * NEB_S);
        return NEB_OK;
    }
    return NEB_OK;
}

static enum neb_status needs_all(struct world *w, int rank) {
    struct intra_comm *c = NULL, *part = NULL;
    float x[N] = {0};
    NEB_TRY(join(w, rank, &c));
    NEB_TRY(c->ops->split(c, 0, rank, &part));
    enum neb_status st = c->ops->barrier(c);
    if (st == NEB_OK && rank == 2)
        st = misbehave(w, c);
    else if (st == NEB_OK)
        st = part->ops->all_reduce(how == DISAGREES ? c : part, x, N, INTRA_COMM_F32,
                                   INTRA_COMM_SUM);
    if (rank != 2 && (st == NEB_OK || !c->ops->lost(c) || c->ops->barrier(c) == NEB_OK))
        st = NEB_ERR_CORRUPT;
    if (st != NEB_OK)
        c->ops->abort(c);
    intra_comm_destroy(&part);
    intra_comm_destroy(&c);
    return st;
}

static void test_one_fails(void **state) {
    (void)state;
    static const struct {
        enum how how;
        enum neb_status st;
        const char *text;
    } cases[] = {{DIES, NEB_ERR_IO, "rank 2 of 3 is gone"},
                 {HANGS, NEB_ERR_TIMEOUT, "rank 2 of 3 has not answered for 3.0 s"},
                 {GIVES_UP, NEB_ERR_IO, "rank 2 of 3 gave up"},
                 {ENDS, NEB_ERR_IO, "rank 2 of 3 has ended"},
                 {DISAGREES, NEB_ERR_IO, "the ranks made different calls"},
                 {LIES, NEB_ERR_IO, "rank 2 of 3 sent an invalid frame"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct outcome o[RANKS_MAX];
        struct world w = make_world(3);
        how = cases[i].how;
        w.timeout_ms = how == HANGS ? 3000 : 20000;
        run(&w, 0x7, needs_all, o);
        int named = 0;
        for (int k = 0; k < 3; k++) // the second rank that notices may see the first one end
            named += strstr(o[k].text, cases[i].text) != NULL;
        for (int k = 0; k < 2; k++) {
            assert_true(o[k].there);
            assert_true(o[k].st == (int)cases[i].st || o[k].st == NEB_ERR_IO);
            assert_true(o[k].s < 20);
            if (how == DIES || how == HANGS)
                assert_true(strstr(o[k].text, "all-reduce") != NULL);
        }
        if (!named)
            fail_msg("no \"%s\" in \"%s\", \"%s\"", cases[i].text, o[0].text, o[1].text);
        if (how == GIVES_UP)
            assert_int_equal(o[2].st, NEB_OK);
    }
}

// Rank 0 works for three times the timeout of the others. If it reports that it is alive, they
// wait. Otherwise they give up.
static bool at_work;

static enum neb_status long_work(struct world *w, int rank) {
    struct intra_comm *c = NULL;
    float x[N] = {1};
    NEB_TRY(join(w, rank, &c));
    enum neb_status st = c->ops->barrier(c);
    if (rank == 0)
        for (neb_ns end = neb_now() + 3 * w->timeout_ms * NEB_MS; neb_now() < end;) {
            if (at_work)
                c->ops->alive(c);
            neb_sleep(5 * NEB_MS);
        }
    if (st == NEB_OK)
        st = c->ops->broadcast(c, x, sizeof x, 0);
    if (st != NEB_OK)
        c->ops->abort(c);
    intra_comm_destroy(&c);
    return st;
}

static void test_long_work(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct outcome o[RANKS_MAX];
        struct world w = make_world(3);
        at_work = i == 0;
        w.timeout_ms = 1500;
        run(&w, 0x7, long_work, o);
        for (int k = 1; k < 3; k++) {
            if (at_work)
                assert_int_equal(o[k].st, NEB_OK);
            else
                assert_true(o[k].st == NEB_ERR_TIMEOUT || o[k].st == NEB_ERR_IO);
        }
    }
}

// A sent message arrives, although its sender has ended and left a message unread.
static enum neb_status last_words(struct world *w, int rank) {
    enum { BYTES = 3 << 20 };
    struct intra_comm *c = NULL;
    struct intra_comm_send s = {0}, other = {0};
    uint8_t *x = calloc(1, BYTES);
    int small = 5;
    NEB_TRY(join(w, rank, &c));
    enum neb_status st = NEB_OK;
    if (rank == 0) {
        memset(x, 7, BYTES);
        st = c->ops->send(c, x, BYTES, 1, 1, &s);
        if (st == NEB_OK)
            st = c->ops->wait(c, &s);
    } else {
        st = c->ops->send(c, &small, sizeof small, 0, 1, &other); // never received
        neb_sleep(300 * NEB_MS);
        if (st == NEB_OK)
            st = c->ops->recv(c, x, BYTES, 0, 1);
        if (st == NEB_OK && (x[0] != 7 || x[BYTES - 1] != 7))
            st = NEB_ERR_CORRUPT;
        if (st == NEB_OK)
            st = c->ops->wait(c, &other);
    }
    intra_comm_destroy(&c);
    free(x);
    return st;
}

static void test_last_words(void **state) {
    (void)state;
    struct outcome o[RANKS_MAX];
    struct world w = make_world(2);
    run(&w, 0x3, last_words, o);
    assert_true(o[0].there && o[0].st == NEB_OK);
    assert_true(o[1].there && o[1].st == NEB_OK);
}

// Ranks agree that there is a failure, and give up. A late rank still gets the agreed result.
static enum neb_status agree_late(struct world *w, int rank) {
    struct intra_comm *c = NULL;
    double x = rank;
    NEB_TRY(join(w, rank, &c));
    enum neb_status st = c->ops->barrier(c);
    if (rank != 0 && st == NEB_OK)
        st = c->ops->all_reduce(c, &x, 1, INTRA_COMM_F64, INTRA_COMM_MAX);
    if (rank == 0 && st == NEB_OK) {
        neb_sleep(50 * NEB_MS); // by then the others have sent their messages
        st = c->ops->all_reduce(c, &x, 1, INTRA_COMM_F64, INTRA_COMM_MAX);
        neb_sleep(300 * NEB_MS); // the others have ended
        int last = 0;
        for (int i = 1; i < w->size && st == NEB_OK; i++) {
            st = c->ops->recv(c, &last, sizeof last, i, 5);
            if (st == NEB_OK && last != 10 + i)
                st = NEB_ERR_CORRUPT;
        }
    } else if (st == NEB_OK) {
        struct intra_comm_send s = {0};
        int last = 10 + rank;
        st = c->ops->send(c, &last, sizeof last, 0, 5, &s);
        if (st == NEB_OK)
            st = c->ops->wait(c, &s);
        c->ops->abort(c);
    }
    if (st == NEB_OK && x != w->size - 1)
        st = NEB_ERR_CORRUPT;
    intra_comm_destroy(&c);
    return st;
}

static void test_agreed_failure(void **state) {
    (void)state;
    struct outcome o[RANKS_MAX];
    struct world w = make_world(4);
    run(&w, 0xf, agree_late, o);
    for (int k = 0; k < 4; k++)
        if (!o[k].there || o[k].st != NEB_OK)
            fail_msg("rank %d: %s: %s", k, neb_status_name((enum neb_status)o[k].st), o[k].text);
}

// ---- sums ------------------------------------------------------------------------------------

static float element(int rank, size_t i) {
    struct neb_rng r = neb_rng_make((uint64_t)rank, i);
    return ((float)neb_rng_below(&r, 2000001) - 1e6f) * (rank % 2 ? 1e-6f : 1e3f);
}

// Sums are ((x0 + x1) + x2) + …, whichever rank is late and however long the array is. This also
// holds if only one rank gets the result.
static enum neb_status in_rank_order(struct world *w, int rank) {
    static const size_t sizes[] = {1, 1000, 1025, 30000, 700000};
    struct intra_comm *c = NULL;
    struct neb_rng r = neb_rng_make(99, (uint64_t)rank);
    enum neb_status st = join(w, rank, &c);
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0] && st == NEB_OK; k++) {
        size_t n = sizes[k], row = n / (size_t)w->size;
        float *x = malloc(n * sizeof *x), *want = malloc(n * sizeof *want);
        for (size_t i = 0; i < n; i++) {
            want[i] = element(0, i);
            for (int q = 1; q < w->size; q++)
                want[i] += element(q, i);
        }
        for (int what = 0; what < 3 && st == NEB_OK; what++) {
            size_t from = what == 1 ? row * (size_t)rank : 0, len = what == 1 ? row : n;
            for (size_t i = 0; i < n; i++)
                x[i] = element(rank, i);
            neb_sleep((neb_ns)neb_rng_below(&r, 20) * NEB_MS);
            st = what == 0   ? c->ops->all_reduce(c, x, n, INTRA_COMM_F32, INTRA_COMM_SUM)
                 : what == 1 ? c->ops->reduce_scatter(c, x, row)
                             : c->ops->reduce(c, x, n, w->size - 1);
            if (st == NEB_OK && (what < 2 || rank == w->size - 1) &&
                memcmp(x + from, want + from, len * sizeof *x))
                st = NEB_ERR_CORRUPT;
        }
        free(x);
        free(want);
    }
    intra_comm_destroy(&c);
    return st;
}

static void test_rank_order(void **state) {
    (void)state;
    static const int ranks[] = {2, 3, 4, 8};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        struct outcome o[RANKS_MAX];
        struct world w = make_world(ranks[i]);
        run(&w, (1u << ranks[i]) - 1, in_rank_order, o);
        for (int k = 0; k < ranks[i]; k++)
            if (!o[k].there || o[k].st != NEB_OK)
                fail_msg("rank %d of %d: %s: %s", k, ranks[i], neb_status_name(o[k].st), o[k].text);
    }
}

// ---- idle connections ------------------------------------------------------------------------

// Two ranks exchange messages, and six others are silent. The silent connections are not read for
// each message.
static enum neb_status two_talk(struct world *w, int rank) {
    enum { ROUNDS = 500, BYTES = 1000 };
    struct intra_comm *c = NULL;
    uint8_t x[BYTES] = {0};
    NEB_TRY(join(w, rank, &c));
    enum neb_status st = c->ops->barrier(c);
    long before = receives;
    for (int i = 0; i < 2 * ROUNDS && rank < 2 && st == NEB_OK; i++) {
        struct intra_comm_send s = {0};
        if (i % 2 == rank)
            st = c->ops->send(c, x, BYTES, 1 - rank, 3, &s);
        else
            st = c->ops->recv(c, x, BYTES, 1 - rank, 3);
        if (st == NEB_OK)
            st = c->ops->wait(c, &s);
    }
    if (st == NEB_OK && receives - before > 4 * ROUNDS)
        st = neb_fail(NEB_ERR_LIMIT, "%ld receives for %d messages", receives - before, ROUNDS);
    if (st == NEB_OK)
        st = c->ops->barrier(c);
    intra_comm_destroy(&c);
    return st;
}

static void test_idle_connections(void **state) {
    (void)state;
    struct outcome o[RANKS_MAX];
    struct world w = make_world(8);
    run(&w, 0xff, two_talk, o);
    for (int k = 0; k < 8; k++)
        if (!o[k].there || o[k].st != NEB_OK)
            fail_msg("rank %d: %s: %s", k, neb_status_name(o[k].st), o[k].text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_rank),
        cmocka_unit_test(test_rank_ends_while_starting),
        cmocka_unit_test(test_ranks_that_trickle_in),
        cmocka_unit_test(test_late_root),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_one_fails),
        cmocka_unit_test(test_long_work),
        cmocka_unit_test(test_last_words),
        cmocka_unit_test(test_agreed_failure),
        cmocka_unit_test(test_rank_order),
        cmocka_unit_test(test_idle_connections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
