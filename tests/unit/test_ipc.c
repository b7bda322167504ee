// SPDX-License-Identifier: Apache-2.0
// agent/proc/ipc, child and port: messages inside one machine, the life of child processes, and
// ports for them.
#include "agent/proc/child.h"
#include "agent/proc/ipc_state.h"
#include "agent/proc/port.h"
#include "inter/link/accept_limit.h"
#include "tests/testing.h"
#include "tests/unit/scratch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[256];

static enum neb_status server_wait(struct agent_ipc *s, struct agent_ipc_client *from,
                                   struct agent_ipc_msg *m) {
    enum neb_status st = NEB_ERR_AGAIN;
    for (neb_ns end = neb_now() + 20 * NEB_S; st == NEB_ERR_AGAIN && neb_now() < end;) {
        zmq_pollitem_t items[2] = {{.socket = agent_ipc_socket(s), .events = ZMQ_POLLIN},
                                   {.socket = agent_ipc_remote_socket(s), .events = ZMQ_POLLIN}};
        zmq_poll(items, items[1].socket ? 2 : 1, 2); // ZeroMQ reads ahead here, as in an agent
        st = agent_ipc_recv(s, from, m);
    }
    return st;
}

static void test_request_and_event(void **state) {
    (void)state;
    void *zctx = zmq_ctx_new();
    struct agent_ipc *server = NULL, *client = NULL;
    struct agent_ipc_client from = {0};
    struct agent_ipc_msg m;
    struct stat info;
    assert_int_equal(agent_ipc_listen(zctx, path, &server), NEB_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(agent_ipc_connect(zctx, path, &client), NEB_OK);
    struct agent_ipc_part parts[2] = {{"abc", 3}, {"", 0}};
    assert_int_equal(
        agent_ipc_send(client, NULL, json_pack("{s:s,s:i}", "op", "submit", "round", 7), parts, 2),
        NEB_OK);
    assert_int_equal(server_wait(server, &from, &m), NEB_OK);
    assert_string_equal(agent_ipc_str(&m, "op", ""), "submit");
    assert_int_equal(agent_ipc_int(&m, "round", -1), 7);
    assert_int_equal(agent_ipc_int(&m, "op", -1), -1); // another type: the default
    assert_int_equal(m.n_parts, 2);
    assert_int_equal(m.parts[0].len, 3);
    assert_memory_equal(m.parts[0].p, "abc", 3);
    assert_int_equal(m.parts[1].len, 0);
    agent_ipc_msg_clear(&m);
    assert_int_equal(agent_ipc_send(server, &from, json_pack("{s:s}", "ev", "commit"), NULL, 0),
                     NEB_OK);
    assert_int_equal(agent_ipc_wait(client, 20 * NEB_S, &m), NEB_OK);
    assert_string_equal(agent_ipc_str(&m, "ev", ""), "commit");
    agent_ipc_msg_clear(&m);
    assert_int_equal(agent_ipc_wait(client, 20 * NEB_MS, &m), NEB_ERR_TIMEOUT);
    // if a client is gone, the send is an error and does not hang
    agent_ipc_destroy(&client);
    enum neb_status st = NEB_OK;
    for (int i = 0; i < 5000 && st == NEB_OK; i++, neb_sleep(2 * NEB_MS))
        st = agent_ipc_send(server, &from, json_pack("{s:s}", "ev", "x"), NULL, 0);
    assert_int_equal(st, NEB_ERR_AGAIN);
    agent_ipc_destroy(&server);
    zmq_ctx_term(zctx);
}

// Replaces libc's poll, also for libzmq: while `interrupted`, half of the calls fail with EINTR.
static __thread bool interrupted;
int poll(struct pollfd *fds, nfds_t n, int timeout_ms) {
    static __thread uint32_t x = 1; // xorshift (Marsaglia)
    struct timespec t = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    if (interrupted && x % 2) {
        errno = EINTR;
        return -1;
    }
    return ppoll(fds, n, timeout_ms < 0 ? NULL : &t, NULL);
}

// Takes n queued messages. ZeroMQ polls once in about a hundred frames, and so in the middle of a
// message.
static void take_interrupted(struct agent_ipc *s, struct agent_ipc_client *from, int n,
                             size_t parts) {
    struct agent_ipc_msg m;
    for (int i = 0, in_vain = 0; i < n; i++) {
        interrupted = true;
        enum neb_status st = agent_ipc_recv(s, from, &m);
        interrupted = false;
        if (st == NEB_ERR_AGAIN) {
            assert_true(++in_vain < 5000);
            neb_sleep(NEB_MS);
            i--;
            continue;
        }
        assert_int_equal(st, NEB_OK);
        assert_int_equal(agent_ipc_int(&m, "i", -1), i);
        assert_int_equal(m.n_parts, parts);
        // the parts outlive the message; a short one lies inside of its frame
        struct agent_ipc_msg kept = {0};
        agent_ipc_msg_take_parts(&kept, &m);
        assert_int_equal(m.n_parts, 0);
        assert_int_equal(agent_ipc_int(&m, "i", -1), i);
        agent_ipc_msg_clear(&m);
        memset(&m, 0xff, sizeof m);
        assert_int_equal(kept.n_parts, parts);
        for (size_t k = 0; k < parts; k++)
            assert_true(kept.parts[k].len == 1 && *(const char *)kept.parts[k].p == 'a' + (int)k);
        agent_ipc_msg_clear(&kept);
    }
}

// Signals do not split a message (a profiler may send a thousand signals a second).
static void test_interrupted(void **state) {
    (void)state;
    enum { MESSAGES = 300, PARTS = 5 };
    void *zctx = zmq_ctx_new();
    struct agent_ipc *server = NULL, *client = NULL;
    struct agent_ipc_client from = {0};
    struct agent_ipc_part parts[PARTS] = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}};
    assert_int_equal(agent_ipc_listen(zctx, path, &server), NEB_OK);
    assert_int_equal(agent_ipc_connect(zctx, path, &client), NEB_OK);
    for (int i = 0; i < MESSAGES; i++)
        assert_int_equal(
            agent_ipc_send(client, NULL, json_pack("{s:s,s:i}", "op", "x", "i", i), parts, PARTS),
            NEB_OK);
    neb_sleep(50 * NEB_MS);
    take_interrupted(server, &from, MESSAGES, PARTS);
    for (int i = 0; i < MESSAGES; i++)
        assert_int_equal(
            agent_ipc_send(server, &from, json_pack("{s:s,s:i}", "ev", "y", "i", i), parts, PARTS),
            NEB_OK);
    neb_sleep(50 * NEB_MS);
    take_interrupted(client, &from, MESSAGES, PARTS);
    agent_ipc_destroy(&client);
    agent_ipc_destroy(&server);
    zmq_ctx_term(zctx);
}

static void test_malformed_is_dropped(void **state) {
    (void)state;
    void *zctx = zmq_ctx_new(), *raw = zmq_socket(zctx, ZMQ_DEALER);
    struct agent_ipc *server = NULL;
    struct agent_ipc_client from;
    struct agent_ipc_msg m;
    char endpoint[300];
    int linger = 0;
    snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(agent_ipc_listen(zctx, path, &server), NEB_OK);
    zmq_setsockopt(raw, ZMQ_LINGER, &linger, sizeof linger);
    assert_int_equal(zmq_connect(raw, endpoint), 0);
    static const char *const bad[] = {"", "{", "[1]", "{\"a\":1,\"a\":2}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        zmq_send(raw, bad[i], strlen(bad[i]), ZMQ_SNDMORE);
        zmq_send(raw, "tail", 4, 0);
        assert_int_equal(server_wait(server, &from, &m), NEB_ERR_FORMAT);
    }
    for (int i = 0; i <= AGENT_IPC_PARTS_MAX + 1; i++) // one part too many
        zmq_send(raw, "{}", 2, i <= AGENT_IPC_PARTS_MAX ? ZMQ_SNDMORE : 0);
    assert_int_equal(server_wait(server, &from, &m), NEB_ERR_FORMAT);
    zmq_send(raw, "{}", 2, 0); // the next good message arrives complete
    assert_int_equal(server_wait(server, &from, &m), NEB_OK);
    assert_int_equal(m.n_parts, 0);
    agent_ipc_msg_clear(&m);
    neb_log_set_sink(NULL, NULL);
    zmq_close(raw);
    agent_ipc_destroy(&server);
    zmq_ctx_term(zctx);
}

// Addresses that workers on other hosts cannot use are refused.
static void refuse_addresses(struct agent_ipc *server) {
    struct agent_ipc_remote told = {0};
    assert_int_equal(agent_ipc_remote_listen(server, "no.such.interface"), NEB_ERR_IO);
    // workers are told the address, and these addresses do not name one interface
    static const char *const all[] = {"*", "0.0.0.0", "0.0.0.0:0", "[::]"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_int_not_equal(agent_ipc_remote_listen(server, all[i]), NEB_OK);
        agent_ipc_remote_tell(server, &told);
        assert_string_equal(told.endpoint, "");
    }
}

// Messages of zero to five parts, in both directions.
static void exchange_parts(struct agent_ipc *server, struct agent_ipc *client,
                           const uint8_t key[AGENT_IPC_KEY], struct agent_ipc_client *from) {
    enum { BIG = 21 * AGENT_IPC_FRAME + 17 }; // the buffer grows twice
    struct agent_ipc_msg m;
    uint8_t *big = malloc(BIG), exact[AGENT_IPC_FRAME];
    assert_non_null(big);
    randombytes_buf(big, BIG);
    memset(exact, 7, sizeof exact);
    struct agent_ipc_part parts[] = {{big, BIG}, {"", 0}, {exact, sizeof exact}, {"x", 1}, {"", 0}};
    for (size_t n = 0; n <= 5; n++) {
        assert_int_equal(agent_ipc_send(client, NULL,
                                        json_pack("{s:s,s:I}", "op", "update", "n", (json_int_t)n),
                                        parts, n),
                         NEB_OK);
        assert_int_equal(server_wait(server, from, &m), NEB_OK);
        assert_true(from->remote);
        assert_memory_equal(from->key, key, sizeof from->key);
        assert_string_equal(from->address, "127.0.0.1");
        assert_int_equal(agent_ipc_int(&m, "n", -1), n);
        assert_int_equal(m.n_parts, n);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(m.parts[i].len, parts[i].len);
            assert_memory_equal(m.parts[i].p, parts[i].p, parts[i].len);
        }
        agent_ipc_msg_clear(&m);
        assert_int_equal(agent_ipc_send(server, from, json_pack("{s:s}", "ev", "commit"), parts, n),
                         NEB_OK);
        assert_int_equal(agent_ipc_wait(client, 20 * NEB_S, &m), NEB_OK);
        assert_int_equal(m.n_parts, n);
        if (n)
            assert_memory_equal(m.parts[0].p, big, BIG);
        agent_ipc_msg_clear(&m);
    }
    free(big);
}

// Malformed messages, as a worker of another build might send them.
static void refuse_malformed(struct agent_ipc *server, struct agent_ipc *client,
                             struct agent_ipc_client *from) {
    struct agent_ipc_msg m;
    static const struct {
        const char *start;
        size_t len;
    } bad[] = {{"", 0},
               {"nebr\0\0\0\0", 8},
               {"nebr\1\0\0\0", 8},
               {"nebr\1\0\0\0\2\0\0\0\0\0\0\0", 16}, // a header of two bytes that does not come
               {"nebx\1\0\0\0\2\0\0\0\0\0\0\0", 16},
               {"nebr\1\0\0\0\2\0\0\0\0\0\0\x80", 16}, // a length beyond the message
               {"nebr\xff\0\0\0\2\0\0\0\0\0\0\0", 16}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        zmq_send(agent_ipc_socket(client), bad[i].start, bad[i].len, i == 3 ? 0 : ZMQ_SNDMORE);
        if (i != 3)
            zmq_send(agent_ipc_socket(client), "{}x", 3, 0);
        assert_int_equal(server_wait(server, from, &m), NEB_ERR_FORMAT);
    }
}

// A worker on another host is admitted and identified by its keys, and exchanges messages of any
// size.
static void test_remote(void **state) {
    (void)state;
    void *zctx = zmq_ctx_new();
    struct agent_ipc *server = NULL, *client = NULL, *stranger = NULL;
    struct agent_ipc_client from = {0};
    struct agent_ipc_msg m;
    struct agent_ipc_remote own = {0}, strange = {0};
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(agent_ipc_listen(zctx, path, &server), NEB_OK);
    assert_null(agent_ipc_remote_socket(server));
    agent_ipc_remote_tell(server, &own);
    assert_string_equal(own.endpoint, "");
    refuse_addresses(server);
    assert_int_equal(agent_ipc_remote_listen(server, "127.0.0.1"), NEB_OK);
    assert_int_equal(crypto_box_keypair(own.public, own.secret), 0);
    assert_int_equal(crypto_box_keypair(strange.public, strange.secret), 0);
    agent_ipc_remote_tell(server, &own);
    agent_ipc_remote_tell(server, &strange);
    assert_memory_equal(own.endpoint, "tcp://127.0.0.1:", 16);
    agent_ipc_remote_admit(server, (const uint8_t(*)[AGENT_IPC_KEY]) & own.public, 1);
    assert_int_equal(agent_ipc_remote_connect(zctx, &strange, &stranger), NEB_OK);
    assert_int_equal(agent_ipc_send(stranger, NULL, json_object(), NULL, 0), NEB_OK);
    assert_int_equal(agent_ipc_remote_connect(zctx, &own, &client), NEB_OK);
    exchange_parts(server, client, own.public, &from);
    assert_true(agent_ipc_remote_refused(server) >= 1);
    assert_int_equal(agent_ipc_wait(stranger, 20 * NEB_MS, &m), NEB_ERR_TIMEOUT);
    // a local client of the same name is not a remote one
    struct agent_ipc_client here = from;
    here.remote = false;
    assert_false(agent_ipc_same(&here, &from));
    assert_int_equal(agent_ipc_send(server, &here, json_object(), NULL, 0), NEB_ERR_AGAIN);
    refuse_malformed(server, client, &from);
    assert_int_equal(agent_ipc_send(client, NULL, json_object(), NULL, 0), NEB_OK);
    assert_int_equal(server_wait(server, &from, &m), NEB_OK);
    agent_ipc_msg_clear(&m);
    // after keys are removed, open connections stay, and new ones are refused
    agent_ipc_remote_admit(server, NULL, 0);
    agent_ipc_destroy(&client);
    assert_int_equal(agent_ipc_remote_connect(zctx, &own, &client), NEB_OK);
    assert_int_equal(agent_ipc_send(client, NULL, json_object(), NULL, 0), NEB_OK);
    neb_sleep(100 * NEB_MS);
    assert_int_equal(agent_ipc_recv(server, &from, &m), NEB_ERR_AGAIN);
    neb_log_set_sink(NULL, NULL);
    int zero = 0;
    zmq_setsockopt(agent_ipc_socket(client), ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(agent_ipc_socket(stranger), ZMQ_LINGER, &zero, sizeof zero);
    agent_ipc_destroy(&client);
    agent_ipc_destroy(&stranger);
    agent_ipc_destroy(&server);
    zmq_ctx_term(zctx);
}

// Opens connections to the workers' port that never complete a handshake, from addresses in
// 127.0.0.0/8. Returns how many are still open in the end.
static int come(struct agent_ipc *server, const char *endpoint, uint32_t from, uint32_t step,
                int n) {
    enum { MOST = 400 };
    int fds[MOST], open = 0;
    struct sockaddr_in to = {.sin_family = AF_INET}, at = {.sin_family = AF_INET};
    struct agent_ipc_client who;
    struct agent_ipc_msg m;
    unsigned port = 0;
    assert_true(n <= MOST && sscanf(endpoint, "tcp://127.0.0.1:%u", &port) == 1);
    to.sin_port = htons((uint16_t)port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < n; i++) {
        at.sin_addr.s_addr = htonl(from + step * (uint32_t)i);
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_true(fds[i] >= 0 && bind(fds[i], (struct sockaddr *)&at, sizeof at) == 0);
        (void)!connect(fds[i], (struct sockaddr *)&to, sizeof to);
        assert_int_equal(agent_ipc_recv(server, &who, &m), NEB_ERR_AGAIN);
    }
    // until no connection is refused for a while
    uint64_t refused = agent_ipc_remote_refused(server);
    for (int i = 0, calm = 0; i < 5000 && calm < 100; i++) {
        assert_int_equal(agent_ipc_recv(server, &who, &m), NEB_ERR_AGAIN);
        neb_sleep(2 * NEB_MS);
        calm = agent_ipc_remote_refused(server) == refused ? calm + 1 : 0;
        refused = agent_ipc_remote_refused(server);
    }
    for (int i = 0; i < n; i++) {
        char b[256];
        ssize_t k;
        while ((k = recv(fds[i], b, sizeof b, 0)) > 0) // the server's greeting
            ;
        struct sockaddr_in peer;
        socklen_t size = sizeof peer; // a connection that the kernel dropped has no peer
        open += k < 0 && errno == EAGAIN && getpeername(fds[i], (void *)&peer, &size) == 0;
        close(fds[i]);
    }
    return open;
}

// The number of connections is limited for each host, and for all hosts without a known worker
// together. The agent still hears a known host.
static void test_accept_limit(void **state) {
    (void)state;
    void *zctx = zmq_ctx_new();
    struct agent_ipc *server = NULL, *client = NULL;
    struct agent_ipc_client from = {0};
    struct agent_ipc_remote own = {0};
    struct agent_ipc_msg m;
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(agent_ipc_listen(zctx, path, &server), NEB_OK);
    assert_int_equal(agent_ipc_remote_listen(server, "127.0.0.1"), NEB_OK);
    assert_int_equal(crypto_box_keypair(own.public, own.secret), 0);
    agent_ipc_remote_tell(server, &own);
    agent_ipc_remote_admit(server, (const uint8_t(*)[AGENT_IPC_KEY]) & own.public, 1);
    assert_int_equal(agent_ipc_remote_connect(zctx, &own, &client), NEB_OK);
    exchange_parts(server, client, own.public, &from);
    agent_ipc_remote_welcome(server, &from);
    agent_ipc_destroy(&client);
    int one = come(server, own.endpoint, 0x7f000009, 0, 200);
    assert_in_range(one, 32, 32 + 32); // and the connections accepted meanwhile
    uint64_t refused = agent_ipc_remote_refused(server);
    assert_true(refused > 0);
    bool beside = false;
    for (int i = 0; i < 10 && !beside;
         i++) { // until the limiter is still closed to all others when the message arrives
        come(server, own.endpoint, 0x7f000100, 1, 400);
        assert_true(agent_ipc_remote_refused(server) > refused);
        assert_int_equal(agent_ipc_remote_connect(zctx, &own, &client), NEB_OK);
        assert_int_equal(agent_ipc_send(client, NULL, json_object(), NULL, 0), NEB_OK);
        assert_int_equal(server_wait(server, &from, &m), NEB_OK);
        agent_ipc_msg_clear(&m);
        // true if this was before megabytes were exchanged
        beside = server->accept_limit->closed != 0;
        exchange_parts(server, client, own.public, &from);
        agent_ipc_destroy(&client);
    }
    assert_true(beside);
    neb_log_set_sink(NULL, NULL);
    agent_ipc_destroy(&server);
    zmq_ctx_term(zctx);
}

// A worker of another build may attach, but not one of another protocol. The reason names both
// builds, with control characters replaced.
static void test_versions(void **state) {
    (void)state;
    char why[512] = "", theirs[128];
    struct agent_ipc_msg m = {
        .head = json_pack("{s:i,s:s}", "protocol", NEB_PROTOCOL, "build", "0.0.9 (another)")};
    assert_true(agent_ipc_speaks_ours(&m, "worker", why, sizeof why));
    json_object_set_new(m.head, "protocol", json_integer(NEB_PROTOCOL + 1));
    assert_false(agent_ipc_speaks_ours(&m, "worker", why, sizeof why));
    snprintf(theirs, sizeof theirs, "the worker is nebula 0.0.9 (another) and speaks protocol %d",
             NEB_PROTOCOL + 1);
    assert_non_null(strstr(why, theirs));
    assert_non_null(strstr(why, neb_build()));
    json_object_set_new(m.head, "build", json_string("\033[2J"));
    json_object_del(m.head, "protocol"); // a build without a protocol number
    assert_false(agent_ipc_speaks_ours(&m, "trainer's libnebula", why, sizeof why));
    assert_non_null(strstr(why, "the trainer's libnebula is nebula ?[2J and speaks protocol 0"));
    agent_ipc_msg_clear(&m);
}

static void test_is_here(void **state) {
    (void)state;
    void *zctx = zmq_ctx_new();
    struct agent_ipc *server = NULL;
    assert_false(agent_ipc_is_here("/nonexistent/agent.sock"));
    assert_int_equal(agent_ipc_listen(zctx, path, &server), NEB_OK);
    assert_true(agent_ipc_is_here(path));
    agent_ipc_destroy(&server);
    zmq_ctx_term(zctx);
    assert_int_equal(neb_fs_write(path, "", 0, 0600), NEB_OK); // a name without a listener
    assert_false(agent_ipc_is_here(path));
    assert_int_equal(unlink(path), 0);
}

// A stopped agent, which accepts no connection, counts as present, and the check does not block.
static void test_is_busy(void **state) {
    (void)state;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fds[8], fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), n = 0;
    assert_true(strlen(path) < sizeof a.sun_path);
    memcpy(a.sun_path, path, strlen(path) + 1);
    assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 0), 0);
    for (; n < 8; n++) {
        fds[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(fds[n], (const struct sockaddr *)&a, sizeof a) != 0)
            break;
    }
    assert_in_range(n, 1, 7);
    assert_int_equal(errno, EAGAIN);
    alarm(20); // a call that blocks would block forever
    assert_true(agent_ipc_is_here(path));
    assert_false(agent_ipc_is_nobody(path));
    alarm(0);
    for (; n >= 0; n--)
        close(fds[n]);
    close(fd);
    assert_int_equal(unlink(path), 0);
}

static void test_child_output_and_end(void **state) {
    (void)state;
    struct agent_child c;
    char log[300], reason[64], text[16] = "";
    int out_fd = -1, status = 0;
    snprintf(log, sizeof log, "%s/log", dir);
    const char *const argv[] = {"/bin/sh", "-c", "echo ready; echo oops >&2; exit 3", NULL};
    assert_int_equal(agent_child_start(&c, "helper", argv, log, &out_fd), NEB_OK);
    assert_int_equal(read(out_fd, text, sizeof text - 1), 6);
    assert_string_equal(text, "ready\n");
    close(out_fd);
    for (int i = 0; i < 10000 && !agent_child_ended(&c, &status); i++)
        neb_sleep(2 * NEB_MS);
    assert_int_equal(c.pid, 0);
    assert_string_equal(agent_child_reason(status, reason, sizeof reason), "exit status 3");
    struct neb_buf b = {0};
    assert_int_equal(neb_fs_read(log, 100, &b), NEB_OK);
    assert_string_equal((char *)b.p, "oops\n");
    neb_buf_free(&b);
}

static void test_stubborn_child_is_killed(void **state) {
    (void)state;
    struct agent_child c;
    const char *const argv[] = {"/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done",
                                NULL};
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(agent_child_start(&c, "stubborn", argv, NULL, NULL), NEB_OK);
    neb_sleep(50 * NEB_MS);
    pid_t pid = c.pid;
    agent_child_stop(&c, 100 * NEB_MS);
    assert_int_equal(c.pid, 0);
    assert_int_equal(kill(pid, 0), -1);
    const char *const missing[] = {"/nonexistent/program", NULL};
    assert_int_equal(agent_child_start(&c, "missing", missing, NULL, NULL), NEB_ERR_NOT_FOUND);
    neb_log_set_sink(NULL, NULL);
}

static bool can_listen(int port, int reuse) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse), 0);
    bool can = bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0;
    close(fd);
    return can;
}

// No client connection, and nobody else who asks for a port, can take a port that an agent will
// listen on soon.
static void test_port(void **state) {
    (void)state;
    int clients = 0, fd[2], port[2];
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    assert_true(f && fscanf(f, "%d", &clients) == 1);
    fclose(f);
    for (int i = 0; i < 2; i++)
        assert_int_equal(agent_port_bind(false, &fd[i], &port[i]), NEB_OK);
    assert_int_not_equal(port[0], port[1]);
    for (int i = 0; i < 2; i++) {
        assert_true(port[i] > 0 && (clients <= 10000 || port[i] < clients));
        assert_true(can_listen(port[i], 1) && !can_listen(port[i], 0));
        assert_int_equal(listen(fd[i], 1), 0);
        close(fd[i]);
    }
}

static int set_up(void **state) {
    if (scratch_make(state) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/agent.sock", dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request_and_event),
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_malformed_is_dropped),
        cmocka_unit_test(test_remote),
        cmocka_unit_test(test_accept_limit),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_is_here),
        cmocka_unit_test(test_is_busy),
        cmocka_unit_test(test_port),
        cmocka_unit_test(test_child_output_and_end),
        cmocka_unit_test(test_stubborn_child_is_killed),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_remove);
}
