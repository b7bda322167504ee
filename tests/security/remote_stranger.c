// SPDX-License-Identifier: Apache-2.0
// For test_remote_worker.sh: attacks on an agent that listens for workers on other hosts.
//
//     open ENDPOINT PID           no keys: huge claims and silence; PID is the agent
//     take TICKET FOLDER OUT      comes before rank 0, as the agent's user; writes the credentials
//                                 to OUT
//     keys CREDENTIALS JOB OTHER  unknown keys, then the keys of JOB's worker, before that worker
//                                 has attached
//     former CREDENTIALS JOB      the keys of a worker that has ended
//     endpoint CREDENTIALS        prints the endpoint in them
//
// Exit status 0: everything was refused within the allowed cost.
#include "agent/base/log.h"
#include "agent/proc/credential.h"
#include "inter/link/socket_profile.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int bad;
#define EXPECT(what, x)                                                                            \
    do {                                                                                           \
        printf("%s  %s\n", (x) ? "ok  " : "FAIL", what);                                           \
        bad |= !(x);                                                                               \
    } while (0)

// ---- without keys -------------------------------------------------------------------------------

static double memory_mib(const char *pid) { // anonymous memory, without socket buffers
    char path[64], line[256];
    long kib = -1;
    snprintf(path, sizeof path, "/proc/%s/status", pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (double)kib / 1024;
}

static int dial(const char *endpoint) {
    struct sockaddr_in a = {.sin_family = AF_INET};
    char host[64] = "";
    unsigned port = 0;
    if (sscanf(endpoint, "tcp://%63[0-9.]:%u", host, &port) != 2 ||
        inet_pton(AF_INET, host, &a.sin_addr) != 1)
        exit(2);
    a.sin_port = htons((uint16_t)port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&a, sizeof a) != 0)
        exit(3);
    return fd;
}

// RFC 23, as a client: signature, version 3.1, mechanism.
static void greet(int fd) {
    uint8_t g[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1, 'C', 'U', 'R', 'V', 'E'};
    if (write(fd, g, sizeof g) != (ssize_t)sizeof g)
        exit(4);
}

static bool closed_within(int fd, neb_ns limit) {
    char b[512];
    for (neb_ns end = neb_now() + limit; neb_now() < end; neb_sleep(10 * NEB_MS)) {
        ssize_t n = recv(fd, b, sizeof b, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN))
            return true;
    }
    return false;
}

static int open_house(const char *endpoint, const char *pid) {
    enum { IDLE = 300, MIB = 1 << 20 };
    static uint8_t flood[64 * 1024];
    static int idle[IDLE];
    double before = memory_mib(pid);
    char text[128];
    // A command frame of 512 MiB, and as much of it as the agent accepts.
    uint8_t claim[9] = {6, 0, 0, 0, 0, 0x20, 0, 0, 0};
    int fd = dial(endpoint);
    greet(fd);
    if (write(fd, claim, sizeof claim) != (ssize_t)sizeof claim)
        exit(5);
    size_t sent = 0;
    for (neb_ns end = neb_now() + 4 * NEB_S; neb_now() < end && sent < (size_t)512 * MIB;) {
        ssize_t n = send(fd, flood, sizeof flood, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            break;
        sent += n > 0 ? (size_t)n : 0;
        if (n < 0)
            neb_sleep(5 * NEB_MS);
    }
    double most = memory_mib(pid) - before;
    snprintf(text, sizeof text, "a frame that claims 512 MiB costs %.1f MiB, limit 16", most);
    EXPECT(text, most < 16);
    EXPECT("and the connection is closed", closed_within(fd, 5 * NEB_S));
    close(fd);
    for (int i = 0; i < IDLE; i++)
        idle[i] = dial(endpoint);
    neb_sleep(500 * NEB_MS);
    most = memory_mib(pid) - before;
    snprintf(text, sizeof text, "%d silent connections cost %.1f MiB, limit 64", IDLE, most);
    EXPECT(text, most < 64);
    int gone = 0;
    // The last connection may arrive only now, because the kernel drops requests of a frequent
    // source.
    for (neb_ns end = neb_now() + (INTER_UNIDENTIFIED_MS + 2000) * NEB_MS, i = 0; i < IDLE; i++) {
        neb_ns left = end - neb_now();
        gone += closed_within(idle[i], left > 100 * NEB_MS ? left : 100 * NEB_MS);
        close(idle[i]);
    }
    snprintf(text, sizeof text, "%d of %d are closed within seconds", gone, IDLE);
    EXPECT(text, gone == IDLE);
    return bad;
}

// ---- with keys ----------------------------------------------------------------------------------

static const char *ask(struct agent_ipc *s, json_t *head, const void *secret, neb_ns patience,
                       struct agent_ipc_msg *m) {
    const struct agent_ipc_part part = {secret, AGENT_SECRET_BYTES};
    if (agent_ipc_send(s, NULL, head, &part, secret ? 1 : 0) != NEB_OK ||
        agent_ipc_wait(s, patience, m) != NEB_OK)
        return "silence";
    return json_is_true(json_object_get(m->head, "ok")) ? "ok" : agent_ipc_str(m, "text", "?");
}

static bool refused(void *zctx, const struct agent_ipc_remote *r, json_t *head, const void *secret,
                    const char *how) {
    struct agent_ipc *s = NULL;
    struct agent_ipc_msg m = {0};
    int zero = 0;
    if (agent_ipc_remote_connect(zctx, r, &s) != NEB_OK ||
        zmq_setsockopt(agent_ipc_socket(s), ZMQ_LINGER, &zero, sizeof zero) != 0)
        exit(6);
    bool silent = !strcmp(how, "silence"); // a real answer may take longer
    const char *said = ask(s, head, secret, (silent ? 2 : 15) * NEB_S, &m);
    bool as_expected = strstr(said, how) != NULL;
    if (!as_expected)
        printf("      the agent answered '%s', expected '%s'\n", said, how);
    agent_ipc_msg_clear(&m);
    agent_ipc_destroy(&s);
    return as_expected;
}

static json_t *attach_to(const char *job) {
    return json_pack("{s:s,s:s,s:b,s:i,s:i}", "op", "attach", "job", job, "foreign", 0, "pid", 1,
                     "protocol", agent_ipc_protocol());
}

static int with_keys(struct agent_credential *c, const char *job, const char *other) {
    static const char *const commands[] = {"status", "jobs",    "stop",   "submit",    "resume",
                                           "update", "metrics", "report", "attachable"};
    const struct agent_ipc_remote *own = agent_credential_remote(c);
    const uint8_t *secret = agent_credential_secret(c);
    uint8_t guess[AGENT_SECRET_BYTES] = {1};
    struct agent_ipc_remote strange = *own, server = *own;
    void *zctx = zmq_ctx_new();
    if (crypto_box_keypair(strange.public, strange.secret) != 0)
        exit(7);
    server.server[3] ^= 1;
    EXPECT("strange keys", refused(zctx, &strange, attach_to(job), secret, "silence"));
    EXPECT("another agent's key", refused(zctx, &server, attach_to(job), secret, "silence"));
    void *plain = zmq_socket(zctx, ZMQ_DEALER);
    int zero = 0, wait_ms = 2000;
    char b[16];
    zmq_setsockopt(plain, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(plain, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    zmq_setsockopt(plain, ZMQ_SNDTIMEO, &wait_ms, sizeof wait_ms);
    bool dialled = zmq_connect(plain, own->endpoint) == 0;
    // the agent may have closed the connection already
    (void)zmq_send(plain, "{\"op\":\"status\"}", 15, 0);
    EXPECT("no encryption", dialled && zmq_recv(plain, b, sizeof b, 0) < 0);
    zmq_close(plain);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "the job's own keys ask for %s", commands[i]);
        EXPECT(text, refused(zctx, own,
                             json_pack("{s:s,s:s,s:s}", "op", commands[i], "job", job, "id", other),
                             NULL, "not allowed on this connection"));
    }
    EXPECT("the job's own keys, for another job",
           refused(zctx, own, attach_to(other), secret, "not allowed on this connection"));
    EXPECT("the job's own keys, without its secret",
           refused(zctx, own, attach_to(job), guess, "not the credentials"));
    zmq_ctx_term(zctx);
    return bad;
}

static int former(struct agent_credential *c, const char *job) {
    void *zctx = zmq_ctx_new();
    EXPECT("keys of a worker that has ended",
           refused(zctx, agent_credential_remote(c), attach_to(job), agent_credential_secret(c),
                   "silence"));
    zmq_ctx_term(zctx);
    return bad;
}

static int take(struct agent_credential *c, const char *out) {
    uint8_t bytes[1024];
    int from = -1, to = open(out, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (to < 0 || agent_credential_pipe(c, &from) != NEB_OK)
        return 2;
    ssize_t n = read(from, bytes, sizeof bytes);
    return n > 0 && write(to, bytes, (size_t)n) == n ? 0 : 2;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct agent_credential *c = NULL;
    if (argc == 4 && !strcmp(argv[1], "open"))
        return open_house(argv[2], argv[3]);
    int fd = argc >= 3 ? open(argv[2], O_RDONLY | O_CLOEXEC) : -1;
    const struct agent_credential_wait wait = {.limit = 20 * NEB_S};
    bool takes = argc == 5 && !strcmp(argv[1], "take");
    if (fd < 0 || agent_credential_read(fd, takes ? argv[3] : NULL, &wait, &c) != NEB_OK)
        return 2;
    int rc = takes ? take(c, argv[4]) : 2;
    if (!strcmp(argv[1], "endpoint"))
        rc = puts(agent_credential_remote(c)->endpoint) < 0;
    else if (argc == 5 && !strcmp(argv[1], "keys"))
        rc = with_keys(c, argv[3], argv[4]);
    else if (argc == 4 && !strcmp(argv[1], "former"))
        rc = former(c, argv[3]);
    agent_credential_destroy(&c);
    return rc;
}
