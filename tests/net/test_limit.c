// SPDX-License-Identifier: Apache-2.0
// wan.rate_limit on real sockets over paths that stall. One stall is too short to be noticed, and
// the data comes all at once after it. One is so long that connections break. In any t seconds no
// more arrives than the limit carries in t + 1 s (inter/link/rate_limit.h), and nearly all of it
// before and after.
//
//     anna ── TCP ──► relay, which stops reading ── TCP ──► bert
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "inter/link/link.h"
#include "tests/testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(x) assert_int_equal((x), NEB_OK)

enum { BUFFER = 16 << 10, CHUNK = 32 << 10, SAMPLES = 4000, CONNECTIONS = 64 };
static const double rate = 2e6; // bytes a second

// ---- the relay ----

static atomic_bool stands, over;
static atomic_ullong arrived; // bytes from anna
static uint16_t bert_port;
static int listener;

struct half {
    int from, to;
    bool counted;
};

static void *carry(void *arg) {
    struct half h = *(struct half *)arg;
    char buf[BUFFER];
    free(arg);
    while (!over) {
        while (stands && !over)
            neb_sleep(NEB_MS);
        ssize_t n = recv(h.from, buf, sizeof buf, 0);
        if (n <= 0)
            break;
        if (h.counted)
            arrived += (unsigned long long)n;
        if (send(h.to, buf, (size_t)n, MSG_NOSIGNAL) != n)
            break;
    }
    shutdown(h.from, SHUT_RDWR);
    shutdown(h.to, SHUT_RDWR);
    return NULL;
}

static void start_half(int from, int to, bool counted) {
    struct half *h = malloc(sizeof *h);
    pthread_t t;
    if (!h)
        abort();
    *h = (struct half){from, to, counted};
    if (pthread_create(&t, NULL, carry, h) != 0)
        abort();
    pthread_detach(t);
}

static void *accept_all(void *arg) {
    struct sockaddr_in bert = {.sin_family = AF_INET, .sin_port = htons(bert_port)};
    bert.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)arg;
    for (int n = 0; n < CONNECTIONS; n++) {
        int from = accept(listener, NULL, NULL), to = socket(AF_INET, SOCK_STREAM, 0);
        if (from < 0 || connect(to, (struct sockaddr *)&bert, sizeof bert) != 0)
            break;
        start_half(from, to, true);
        start_half(to, from, false);
    }
    return NULL;
}

static uint16_t open_relay(void) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    int small = BUFFER;
    pthread_t t;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, CONNECTIONS), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(pthread_create(&t, NULL, accept_all, NULL), 0);
    pthread_detach(t);
    return ntohs(at.sin_port);
}

// ---- the members ----

static char root[] = "/tmp/nebula-limit-XXXXXX";
static struct sec_identity *ids[2];
static struct inter_link *anna, *bert;
static uint32_t bert_at; // anna's index of bert
static bool up;

static struct sample { double at, bytes; } samples[SAMPLES];
static int n_samples;
static neb_ns began;

static void on_event(void *user, const struct inter_link_event *e) {
    (void)user;
    up = e->kind == INTER_LINK_UP || (up && e->kind != INTER_LINK_DOWN);
}
static void on_bert(void *user, const struct inter_link_event *e) { (void)user, (void)e; }

static void step(void) {
    zmq_pollitem_t items[160];
    size_t n = inter_link_poll_items(anna, items, 80);
    n += inter_link_poll_items(bert, items + n, 160 - n);
    zmq_poll(items, (int)n, 5);
    OK(inter_link_process(anna, on_event, NULL));
    OK(inter_link_process(bert, on_bert, NULL));
}

static void open_links(void) {
    static const char *const names[] = {"anna", "bert"};
    struct sec_members list = {.n = 0};
    char home[64];
    for (int i = 0; i < 2; i++) {
        snprintf(home, sizeof home, "%s/%d", root, i);
        OK(sec_identity_create(home, names[i], &ids[i]));
        struct sec_member m = {.pub = *sec_identity_public(ids[i])};
        OK(sec_members_add(&list, &m));
    }
    struct inter_link_config c = {
        .identity = ids[1], .members = &list, .listen = "127.0.0.1:*", .n_bulk = 3};
    OK(inter_link_create(&c, &bert));
    bert_port = (uint16_t)inter_link_port(bert);
    bert_at = (uint32_t)(sec_members_by_name(&list, "bert") - list.m);
    snprintf(list.m[bert_at].endpoint, SEC_ENDPOINT_MAX, "127.0.0.1:%u", open_relay());
    c.identity = ids[0];
    c.listen = NULL;
    OK(inter_link_create(&c, &anna));
    for (neb_ns end = neb_now() + 10 * NEB_S; !up && neb_now() < end;)
        step();
    assert_true(up);
}

static double seconds(void) { return neb_seconds(neb_now() - began); }

// Sends as much as possible for this time; returns the share of the limit that arrived.
static double send_for(double time) {
    static uint8_t chunk[CHUNK];
    double start = seconds(), before = (double)arrived;
    while (seconds() < start + time) {
        while (inter_link_send(anna, bert_at, INTER_BULK, chunk, sizeof chunk) == NEB_OK)
            ;
        step();
        (void)inter_link_resumes(anna);
        if (n_samples < SAMPLES)
            samples[n_samples++] = (struct sample){seconds(), (double)arrived};
    }
    return ((double)arrived - before) / rate / time;
}

// Bytes in the relay's buffers are seen late, and so are reads between two samples.
static void check_windows(void) {
    const double late = 6 * 4 * BUFFER + CHUNK;
    double worst = 0, from = 0, to = 0;
    for (int i = 0; i < n_samples; i++)
        for (int k = i + 1; k < n_samples; k++) {
            double took = samples[k].at - samples[i].at, n = samples[k].bytes - samples[i].bytes,
                   of = n / (rate * (took + 1 + 0.02) + late);
            if (of <= worst)
                continue;
            worst = of;
            from = samples[i].at;
            to = samples[k].at;
        }
    print_message("%d samples: from %.2f to %.2f s %.2f of what may pass\n", n_samples, from, to,
                  worst);
    assert_true(worst <= 1);
}

static void test_paths_that_stand(void **state) {
    (void)state;
    open_links();
    inter_link_limit(anna, (uint64_t)(8 * rate));
    began = neb_now();
    double share = send_for(2);
    assert_true(share > 0.5);
    stands = true; // the stall is too short to be noticed
    assert_true(send_for(2.5) < 0.2);
    stands = false;
    assert_true(send_for(2) > 0.5);
    assert_true(up);
    stands = true; // connections break and come back
    (void)send_for(6);
    for (neb_ns end = neb_now() + 6 * NEB_S; up && neb_now() < end;)
        (void)send_for(0.1);
    assert_false(up);
    stands = false;
    for (neb_ns end = neb_now() + 10 * NEB_S; !up && neb_now() < end;)
        (void)send_for(0.1);
    assert_true(up);
    assert_true(send_for(2) > 0.5);
    check_windows();
    over = true;
    inter_link_destroy(&anna);
    inter_link_destroy(&bert);
    close(listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_paths_that_stand)};
    if (!mkdtemp(root) || sec_init() != NEB_OK)
        return 1;
    neb_log_set_sink(testing_drop, NULL);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < 2; i++)
        sec_identity_destroy(&ids[i]);
    return neb_fs_remove_tree(root) != NEB_OK || failed;
}
