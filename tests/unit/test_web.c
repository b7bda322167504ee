// SPDX-License-Identifier: Apache-2.0
// The status page's rules, its certificate, and the server through a socket. It answers with the
// text that was published.
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/web/guard.h"
#include "agent/web/tls.h"
#include "agent/web/user.h"
#include "agent/web/web.h"
#include "security/locked.h"
#include "security/seal.h"
#include "tests/testing.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

static const char token[] = "0123456789abcdef0123456789abcdef";

struct folder {
    char path[64];
};

static int make_folder(void **state) {
    struct folder *f = calloc(1, sizeof *f);
    snprintf(f->path, sizeof f->path, "/tmp/nebula-web-XXXXXX");
    *state = f;
    return f && mkdtemp(f->path) ? 0 : -1;
}

static int remove_folder(void **state) {
    struct folder *f = *state;
    enum neb_status st = neb_fs_remove_tree(f->path);
    free(f);
    return st == NEB_OK ? 0 : -1;
}

static void in_folder(const struct folder *f, const char *name, const char *text,
                      char out[NEB_PATH_MAX]) {
    assert_int_equal(neb_path(out, NEB_PATH_MAX, f->path, name), NEB_OK);
    if (text)
        assert_int_equal(neb_fs_write(out, text, strlen(text), 0600), NEB_OK);
}

// ---- the rules ----

static enum agent_web_verdict judge(const struct agent_web_guard *g, const char *path,
                                    const char *host, const char *auth, const char *cookies,
                                    const char *query) {
    const struct agent_web_ask a = {"GET", path, host, auth, cookies, query, false};
    return agent_web_judge(g, &a);
}

static void test_hosts(void **state) {
    (void)state;
    struct agent_web_guard g = {0};
    static const char *const ours[] = {"localhost",   "LOCALHOST:9470", "127.0.0.1",
                                       "127.1.2.3:1", "[::1]:9470",     "[::1]"};
    static const char *const others[] = {"evil.example",
                                         "localhost.evil.example",
                                         "127.0.0.1.evil.example",
                                         "",
                                         ":80",
                                         "[::1",
                                         "192.0.2.7",
                                         "localhost:80x",
                                         "localhost:80:90",
                                         "127.0.0",
                                         "[::1]x"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        assert_int_equal(judge(&g, "/", ours[i], NULL, NULL, NULL), AGENT_WEB_PASS);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(judge(&g, "/", others[i], NULL, NULL, NULL), AGENT_WEB_FORBIDDEN);
    assert_int_equal(judge(&g, "/", NULL, NULL, NULL, NULL), AGENT_WEB_FORBIDDEN);
    g.wide = true; // numeric addresses are ours too; a name is ours only if the certificate has it
    memcpy(g.token, token, sizeof token);
    assert_int_equal(judge(&g, "/", "192.0.2.7:9470", NULL, NULL, token), AGENT_WEB_LOGIN);
    assert_int_equal(judge(&g, "/", "[2001:db8::7]", NULL, NULL, token), AGENT_WEB_LOGIN);
    assert_int_equal(judge(&g, "/", "evil.example", NULL, NULL, token), AGENT_WEB_FORBIDDEN);
}

static void test_tokens(void **state) {
    struct agent_web_guard g = {0}, other = {0};
    char path[NEB_PATH_MAX], auth[128], cookies[256];
    neb_log_set_sink(testing_drop, NULL);
    in_folder(*state, "short", "fifteen letters\n", path);
    assert_int_equal(agent_web_guard_token(&g, path), NEB_ERR_INVALID);
    in_folder(*state, "token", "another token of some length", path);
    assert_int_equal(agent_web_guard_token(&other, path), NEB_OK);
    in_folder(*state, "token", "0123456789abcdef0123456789abcdef \n", path);
    assert_int_equal(agent_web_guard_token(&g, path), NEB_OK);
    // Refused: a file that others can read, a link, and a missing file.
    char link[NEB_PATH_MAX], text[256];
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(agent_web_guard_token(&other, path), NEB_ERR_DENIED);
    neb_last_error(text, sizeof text);
    assert_non_null(strstr(text, "chmod 600"));
    assert_int_equal(chmod(path, 0600), 0);
    in_folder(*state, "token-link", NULL, link);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(agent_web_guard_token(&other, link), NEB_ERR_DENIED);
    in_folder(*state, "no-token", NULL, link);
    assert_int_equal(agent_web_guard_token(&other, link), NEB_ERR_NOT_FOUND);
    neb_log_set_sink(NULL, NULL);
    assert_string_equal(g.token, token);
    assert_int_equal(strlen(g.cookie), AGENT_WEB_COOKIE_HEX);
    assert_string_not_equal(g.cookie, other.cookie);
    for (int wide = 0; wide < 2; wide++) {
        g.wide = wide;
        snprintf(auth, sizeof auth, "Bearer %s", token);
        assert_int_equal(judge(&g, "/metrics", "localhost", auth, NULL, NULL), AGENT_WEB_PASS);
        auth[strlen(auth) - 1]++;
        assert_int_equal(judge(&g, "/metrics", "localhost", auth, NULL, NULL), AGENT_WEB_NO_TOKEN);
        snprintf(auth, sizeof auth, "Bearer %.31s", token);
        assert_int_equal(judge(&g, "/metrics", "localhost", auth, NULL, NULL), AGENT_WEB_NO_TOKEN);
        assert_int_equal(judge(&g, "/metrics", "localhost", "Bearer ", NULL, NULL),
                         AGENT_WEB_NO_TOKEN);
        assert_int_equal(judge(&g, "/metrics", "localhost", token, NULL, NULL), AGENT_WEB_NO_TOKEN);
        // The query of an address may hold the token only as /?token=.
        assert_int_equal(judge(&g, "/metrics", "localhost", NULL, NULL, token), AGENT_WEB_NO_TOKEN);
        assert_int_equal(judge(&g, "/", "localhost", NULL, NULL, token), AGENT_WEB_LOGIN);
        assert_int_equal(judge(&g, "/", "localhost", NULL, NULL, "wrong"), AGENT_WEB_NO_TOKEN);
        assert_int_equal(judge(&g, "/", "localhost", NULL, NULL, NULL),
                         wide ? AGENT_WEB_NO_TOKEN : AGENT_WEB_PASS);
        snprintf(cookies, sizeof cookies,
                 "a=b; " AGENT_WEB_COOKIE "=no; " AGENT_WEB_COOKIE "=%s; c=d", g.cookie);
        assert_int_equal(judge(&g, "/metrics", "localhost", NULL, cookies, NULL), AGENT_WEB_PASS);
        snprintf(cookies, sizeof cookies, "x" AGENT_WEB_COOKIE "=%s", g.cookie);
        assert_int_equal(judge(&g, "/metrics", "localhost", NULL, cookies, NULL),
                         AGENT_WEB_NO_TOKEN);
        snprintf(cookies, sizeof cookies, AGENT_WEB_COOKIE "=%s0", g.cookie);
        assert_int_equal(judge(&g, "/metrics", "localhost", NULL, cookies, NULL),
                         AGENT_WEB_NO_TOKEN);
    }
    struct agent_web_guard none = {.wide = true};
    assert_int_equal(judge(&none, "/", "localhost", NULL, NULL, NULL), AGENT_WEB_NO_TOKEN);
}

// ---- the certificate ----

static void test_certificate(void **state) {
    const struct folder *f = *state;
    struct agent_web_tls a, b;
    struct agent_web_tls_files files;
    char first[AGENT_WEB_FINGERPRINT], then[AGENT_WEB_FINGERPRINT], path[NEB_PATH_MAX],
        key[NEB_PATH_MAX];
    struct stat s;
    assert_int_equal(agent_web_tls_own(f->path, "0.0.0.0", &a, &files), NEB_OK);
    agent_web_tls_fingerprint(&a, first);
    assert_int_equal(strlen(first), AGENT_WEB_FINGERPRINT - 1);
    assert_int_equal(X509_check_ip_asc(a.x509, "127.0.0.1", 0), 1);
    assert_int_equal(X509_check_host(a.x509, "localhost", 0, 0, NULL), 1);
    assert_int_equal(X509_check_host(a.x509, "evil.example", 0, 0, NULL), 0);
    // the certificate is the same
    assert_int_equal(agent_web_tls_own(f->path, "127.0.0.1", &b, &files), NEB_OK);
    agent_web_tls_fingerprint(&b, then);
    assert_string_equal(first, then);
    agent_web_tls_free(&b);
    neb_log_set_sink(testing_drop, NULL);
    // The certificate does not have this address, so a new one is made.
    assert_int_equal(agent_web_tls_own(f->path, "192.0.2.7", &b, &files), NEB_OK);
    agent_web_tls_fingerprint(&b, then);
    assert_string_not_equal(first, then);
    assert_int_equal(X509_check_ip_asc(b.x509, "192.0.2.7", 0), 1);
    agent_web_tls_free(&b);
    in_folder(f, "page/key.pem", NULL, key);
    assert_int_equal(stat(key, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    // A key that others can read is refused. A link to a private one is accepted, as certbot makes
    // such links.
    char cert[NEB_PATH_MAX], link[NEB_PATH_MAX];
    in_folder(f, "page/cert.pem", NULL, cert);
    in_folder(f, "key-link", NULL, link);
    assert_int_equal(symlink(key, link), 0);
    assert_int_equal(agent_web_tls_load(cert, link, &b), NEB_OK);
    agent_web_tls_free(&b);
    for (mode_t mode = 0640; mode >= 0604; mode -= 0640 - 0604) {
        assert_int_equal(chmod(key, mode), 0);
        assert_int_equal(agent_web_tls_load(cert, key, &b), NEB_ERR_DENIED);
        assert_int_equal(agent_web_tls_load(cert, link, &b), NEB_ERR_DENIED);
        assert_int_equal(agent_web_tls_own(f->path, "192.0.2.7", &b, &files), NEB_ERR_DENIED);
    }
    assert_int_equal(chmod(key, 0600), 0);
    // A file without PEM, the key of another certificate, a missing file. The agent replaces its
    // own damaged key.
    in_folder(f, "text", "no PEM", path);
    assert_int_equal(agent_web_tls_load(path, key, &b), NEB_ERR_FORMAT);
    in_folder(f, "old.pem", (const char *)a.cert.p, path);
    assert_int_equal(agent_web_tls_load(path, key, &b), NEB_ERR_FORMAT);
    in_folder(f, "missing", NULL, path);
    assert_int_equal(agent_web_tls_load(path, key, &b), NEB_ERR_NOT_FOUND);
    assert_int_equal(truncate(key, 10), 0);
    assert_int_equal(agent_web_tls_own(f->path, "0.0.0.0", &b, &files), NEB_OK);
    neb_log_set_sink(NULL, NULL);
    agent_web_tls_free(&a);
    agent_web_tls_free(&b);
}

// A renewal is reported once, after both files stopped changing.
static void test_renewal(void **state) {
    const struct folder *f = *state;
    struct agent_web_tls_files files;
    char cert[NEB_PATH_MAX], key[NEB_PATH_MAX], far[NEB_PATH_MAX + 8];
    in_folder(f, "cert", "one", cert);
    in_folder(f, "key", "one", key);
    assert_int_equal(agent_web_tls_files(&files, cert, key), NEB_OK);
    for (int i = 0; i < 3; i++)
        assert_false(agent_web_tls_renewed(&files));
    in_folder(f, "cert", "two", cert);
    assert_false(agent_web_tls_renewed(&files)); // the key may come a moment later
    in_folder(f, "key", "two", key);
    assert_false(agent_web_tls_renewed(&files));
    assert_true(agent_web_tls_renewed(&files));
    assert_false(agent_web_tls_renewed(&files));
    assert_int_equal(unlink(key), 0); // replaced by hand, slowly
    for (int i = 0; i < 3; i++)
        assert_false(agent_web_tls_renewed(&files));
    in_folder(f, "key", "three", key);
    assert_false(agent_web_tls_renewed(&files));
    assert_true(agent_web_tls_renewed(&files));
    // certbot does it this way: the link now points to another file.
    char link[NEB_PATH_MAX], other[NEB_PATH_MAX];
    in_folder(f, "link", NULL, link);
    in_folder(f, "other", "three", other);
    assert_int_equal(symlink(cert, link), 0);
    assert_int_equal(agent_web_tls_files(&files, link, key), NEB_OK);
    assert_int_equal(unlink(link) | symlink(other, link), 0);
    assert_false(agent_web_tls_renewed(&files));
    assert_true(agent_web_tls_renewed(&files));
    memset(far, 'x', sizeof far);
    far[sizeof far - 1] = 0;
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(agent_web_tls_files(&files, far, key), NEB_ERR_LIMIT);
    assert_int_equal(agent_web_tls_files(&files, cert, far), NEB_ERR_LIMIT);
    neb_log_set_sink(NULL, NULL);
}

// ---- the server ----

static struct agent_web *start(const char *token_file, uint16_t *port) {
    struct agent_web *w = NULL;
    char listen[32];
    neb_log_set_sink(testing_drop, NULL);
    for (int i = 0; i < 50 && !w; i++) { // until a port is free
        *port = (uint16_t)(20000 + (getpid() * 7 + i * 131) % 11990);
        snprintf(listen, sizeof listen, "127.0.0.1:%u", *port);
        struct agent_web_config c = {.listen = listen, .token = token_file};
        if (agent_web_start(&c, &w) != NEB_OK)
            w = NULL;
    }
    neb_log_set_sink(NULL, NULL);
    assert_non_null(w);
    return w;
}

#ifndef TESTING_SANITIZED // mlock does nothing in those builds
static long locked_kib(void) {
    char line[128];
    long n = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmLck: %ld", &n) == 1)
            break;
    fclose(f);
    return n;
}

// The page's key, and its token while it is served, are in locked memory, which is released later.
static void test_secrets_in_locked_memory(void **state) {
    const struct folder *f = *state;
    struct agent_web_tls t;
    struct agent_web_tls_files files;
    struct agent_web *w;
    uint16_t port;
    char path[NEB_PATH_MAX];
    in_folder(f, "token", token, path);
    long before = locked_kib();
    assert_int_equal(agent_web_tls_own(f->path, "127.0.0.1", &t, &files), NEB_OK);
    if (!sec_locked_all()) {
        agent_web_tls_free(&t);
        puts("this process may not lock enough memory");
        skip();
    }
    assert_true(locked_kib() > before);
    agent_web_tls_free(&t);
    assert_int_equal(locked_kib(), before);
    w = start(path, &port);
    assert_true(locked_kib() > before);
    agent_web_stop(&w);
    assert_int_equal(locked_kib(), before);
}
#endif

// Sends bytes and reads until the server closes; the whole answer as text.
static void send_and_read(uint16_t port, const char *send_text, char *out, size_t cap) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t n = 0;
    ssize_t k;
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(send(fd, send_text, strlen(send_text), MSG_NOSIGNAL),
                     (ssize_t)strlen(send_text));
    while (n + 1 < cap && (k = recv(fd, out + n, cap - 1 - n, 0)) > 0)
        n += (size_t)k;
    out[n] = 0;
    close(fd);
}

#define CLOSE "Host: localhost\r\nConnection: close\r\n\r\n"
static bool has(const char *text, const char *what) { return strstr(text, what) != NULL; }

static void test_server(void **state) {
    (void)state;
    char out[65536];
    uint16_t port = 0;
    struct agent_web *w = start(NULL, &port);
    send_and_read(port, "GET /metrics HTTP/1.1\r\n" CLOSE, out,
                  sizeof out); // nothing published yet
    assert_true(has(out, " 503 ") && has(out, "Retry-After: 1"));
    assert_false(agent_web_watched(w));
    agent_web_publish(w, strdup("{\"s\":1}"), strdup("{\"h\":1}"), strdup("m 1\n"));
    send_and_read(port, "GET /metrics HTTP/1.1\r\n" CLOSE, out, sizeof out);
    assert_true(has(out, " 200 OK") && has(out, "m 1\n") && has(out, "text/plain; version=0.0.4") &&
                has(out, "Content-Security-Policy: default-src 'none'"));
    agent_web_publish(w, NULL, NULL, strdup("m 2\n"));
    send_and_read(port, "GET /metrics HTTP/1.1\r\n" CLOSE, out, sizeof out);
    assert_true(has(out, "m 2\n"));
    send_and_read(port, "GET /api/v1/status HTTP/1.1\r\n" CLOSE, out, sizeof out);
    assert_true(has(out, "{\"s\":1}") && has(out, "application/json"));
    send_and_read(port, "GET /api/v1/history HTTP/1.1\r\n" CLOSE, out, sizeof out);
    assert_true(has(out, "{\"h\":1}"));
    assert_true(agent_web_watched(w));
    send_and_read(port, "GET / HTTP/1.1\r\n" CLOSE, out, sizeof out);
    assert_true(has(out, " 200 OK") && has(out, "<title>Nebula"));
    send_and_read(port, "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", out,
                  sizeof out);
    assert_true(has(out, " 403 "));
    send_and_read(port, "GET /../etc/passwd HTTP/1.1\r\n" CLOSE, out, sizeof out);
    assert_true(has(out, " 404 "));
    send_and_read(port, "POST / HTTP/1.1\r\nContent-Length: 1000000000\r\n" CLOSE "x", out,
                  sizeof out);
    assert_true(has(out, " 405 ") && has(out, "Allow: GET"));
    // The server does not wait for the body of a GET: the connection ends with the answer.
    send_and_read(port,
                  "GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx",
                  out, sizeof out);
    assert_true(has(out, "HTTP/1.1 "));
    send_and_read(port, "nonsense\r\n\r\n", out, sizeof out);
    assert_false(has(out, " 200 "));
    agent_web_stop(&w);
    assert_null(w);
    agent_web_stop(&w);
}

// ---- strangers ----

static int dial(uint16_t port, uint32_t from) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)},
                       at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(from)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

// True if the server keeps a silent connection from this address open.
static bool is_waited_for(uint16_t port, uint32_t from) {
    struct pollfd p = {.fd = dial(port, from), .events = POLLIN};
    bool waited = poll(&p, 1, 3) == 0;
    close(p.fd);
    return waited;
}

// True if the server answers a TLS ClientHello from this address. The answer is the costly part.
static bool is_answered(uint16_t port, uint32_t from) {
    uint8_t hello[4096];
    int n = 0;
    ssize_t got = 0;
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    assert_true(ssl && in && out);
    SSL_set_bio(ssl, in, out);
    assert_true(SSL_connect(ssl) < 0 && (n = BIO_read(out, hello, sizeof hello)) > 0);
    struct pollfd p = {.fd = dial(port, from), .events = POLLIN};
    if (send(p.fd, hello, (size_t)n, MSG_NOSIGNAL) == n && poll(&p, 1, 5000) == 1)
        got = recv(p.fd, hello, sizeof hello, 0);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(p.fd);
    return got > 0;
}

static bool is_served(uint16_t port, uint32_t from, const char *with_token) {
    char text[256], out[4096] = "";
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    int fd = dial(port, from), n;
    assert_true(ssl && SSL_set_fd(ssl, fd));
    if (SSL_connect(ssl) == 1) {
        n = snprintf(text, sizeof text,
                     "GET /metrics HTTP/1.1\r\nAuthorization: Bearer %s\r\n" CLOSE, with_token);
        if (SSL_write(ssl, text, n) != n || SSL_read(ssl, out, sizeof out - 1) <= 0)
            out[0] = 0;
    }
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    return has(out, " 200 OK");
}

// TLS handshakes are costly. Without the token each address gets a limited number, and so do all
// addresses together. An address that has shown the token is not limited.
static void test_accept_limit(void **state) {
    enum { KNOWN = 0x7f000001, ONE = 0x7f000009, MANY = 0x7f000100 };
    const struct folder *f = *state;
    struct agent_web_tls own;
    struct agent_web_tls_files files;
    struct agent_web *w = NULL;
    char path[NEB_PATH_MAX], listen[32];
    uint16_t port = 0;
    int n = 0, all = 0;
    in_folder(f, "token", token, path);
    assert_int_equal(agent_web_tls_own(f->path, "127.0.0.1", &own, &files), NEB_OK);
    agent_web_tls_free(&own);
    neb_log_set_sink(testing_drop, NULL);
    for (int i = 0; i < 50 && !w; i++) {
        port = (uint16_t)(20000 + (getpid() * 7 + i * 131) % 11990);
        snprintf(listen, sizeof listen, "127.0.0.1:%u", port);
        const struct agent_web_config c = {
            .listen = listen, .token = path, .cert = files.cert, .key = files.key};
        if (agent_web_start(&c, &w) != NEB_OK)
            w = NULL;
    }
    assert_non_null(w);
    agent_web_publish(w, strdup("{}"), strdup("{}"), strdup("m 1\n"));
    for (int i = 0; i < 100; i++)
        assert_true(is_served(port, KNOWN, token));
    assert_false(is_served(port, KNOWN, "another token of some length"));
    while (n < 200 && is_waited_for(port, ONE))
        n++;
    assert_in_range(n, 64, 110); // 64 at once, then 8 a second
    int answered = 0;
    for (int i = 0; i < 20; i++)
        answered += is_answered(port, ONE);
    assert_true(answered < 10);
    assert_true(is_answered(port, ONE + 1));
    while (all < 2000 && is_waited_for(port, MANY + (uint32_t)all))
        all++;
    assert_in_range(all, 100, 1999);
    for (int i = 0; i < 20; i++)
        assert_true(is_served(port, KNOWN, token));
    neb_log_set_sink(NULL, NULL);
    agent_web_stop(&w);
}

// ---- other users of this host ----

// The HTTP status that another user gets. With `holds`: opens this many silent connections as that
// user and returns the pid of the process that keeps them.
static int answered_as(unsigned uid, uint16_t port, const char *path, int holds) {
    int ends[2], status = 0, code = 0;
    char text[128], out[4096];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (!child) {
        if (setgid(uid) != 0 || setuid(uid) != 0)
            _exit(1);
        for (int i = 0; i < holds; i++) {
            int fd = dial(port, 0x7f000001 + (uint32_t)i % 8);
            (void)!send(fd, "GET /metrics HTTP/1.1\r\n", 23, MSG_NOSIGNAL);
        }
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n" CLOSE, path);
        out[0] = 0;
        if (!holds)
            send_and_read(port, text, out, sizeof out);
        (void)sscanf(out, "HTTP/1.1 %d", &code);
        (void)!write(ends[1], &code, sizeof code);
        if (holds)
            pause();
        _exit(0);
    }
    assert_int_equal(read(ends[0], &code, sizeof code), sizeof code);
    close(ends[0]);
    close(ends[1]);
    if (holds)
        return (int)child;
    waitpid(child, &status, 0);
    return code;
}

// Without a token only the agent's user gets the data, and no other user of the host can take all
// connections.
static void test_other_user(void **state) {
    enum { NOBODY = 65534, SLOW = 96 };
    char out[65536];
    uint16_t port = 0;
    (void)state;
    if (geteuid() != 0)
        skip();
    struct agent_web *w = start(NULL, &port);
    agent_web_publish(w, strdup("{\"s\":1}"), strdup("{\"h\":1}"), strdup("m 1\n"));
    neb_ns began = neb_now();
    for (int i = 0; i < 50; i++)
        assert_int_equal(answered_as(0, port, "/metrics", 0), 200);
    assert_true(neb_now() - began < 5 * NEB_S); // a list of all sockets would take longer
    assert_int_equal(answered_as(NOBODY, port, "/", 0), 200); // the page itself holds no data
    static const char *const data[] = {"/metrics", "/api/v1/status", "/api/v1/history"};
    for (size_t i = 0; i < sizeof data / sizeof *data; i++)
        assert_int_equal(answered_as(NOBODY, port, data[i], 0), 403);
    pid_t slow = answered_as(NOBODY, port, "", SLOW);
    for (int i = 0; i < 20; i++) {
        send_and_read(port, "GET /metrics HTTP/1.1\r\n" CLOSE, out, sizeof out);
        assert_true(has(out, " 200 OK") && has(out, "m 1\n"));
    }
    kill(slow, SIGKILL);
    waitpid(slow, NULL, 0);
    agent_web_stop(&w);
}

// The kernel's table of sockets: owner, both ends and state.
static void test_user_table(void **state) {
    (void)state;
    static const char table[] = "  sl  local_address rem_address   st tx_queue rx_queue tr "
                                "tm->when retrnsmt   uid  timeout inode\n"
                                "   0: 0100007F:24FE 00000000:0000 0A 00000000:00000000 "
                                "00:00000000 00000000  1000        0 498 1 0\n"
                                "   1: 0100007F:1001 0100007F:24FE 01 00000000:00000000 "
                                "00:00000000 00000000  1000        0 499 1 0\n"
                                "   2: 0100007F:1002 0100007F:24FE 01 00000000:00000000 "
                                "00:00000000 00000000  1001        0 500 1 0\n"
                                "   3: 0100007F:1003 0100007F:24FE 06 00000000:00000000 "
                                "00:00000000 00000000     0        0 0 1 0\n"
                                "   4: 0100007F:1004 0100007F:24FF 01 00000000:00000000 "
                                "00:00000000 00000000  1000        0 501 1 0\n"
                                "   5: 0100007F:1004 0200007F:24FE 01 00000000:00000000 "
                                "00:00000000 00000000  1000        0 502 1 0\n"
                                "   6: 0000000000000000FFFF00000100007F:1006 "
                                "0000000000000000FFFF00000100007F:24FE 01 0:0 00:0 0  1000 0 503\n"
                                "   7: 00000000000000000000000001000000:1007 "
                                "00000000000000000000000001000000:24FE 01 0:0 00:0 0     0 0 504\n"
                                "   8: nonsense\n";
    static const struct {
        const char *peer;
        bool ours;
    } cases[] = {{"127.0.0.1 4097", true},  {"127.0.0.1 4098", false}, {"127.0.0.1 4099", false},
                 {"127.0.0.1 4100", false}, {"127.0.0.1 4102", true},  {"127.0.0.1 4104", false},
                 {"::1 4103", true},        {"::1 4097", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char host[16];
        unsigned port;
        union {
            struct sockaddr any;
            struct sockaddr_in v4;
            struct sockaddr_in6 v6;
        } peer = {0}, own = {0};
        assert_int_equal(sscanf(cases[i].peer, "%15s %u", host, &port), 2);
        if (host[0] == ':') {
            peer.v6 =
                (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
            own.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(9470)};
            inet_pton(AF_INET6, host, &peer.v6.sin6_addr);
            inet_pton(AF_INET6, host, &own.v6.sin6_addr);
        } else {
            peer.v4 =
                (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
            own.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(9470)};
            inet_pton(AF_INET, host, &peer.v4.sin_addr);
            inet_pton(AF_INET, host, &own.v4.sin_addr);
        }
        FILE *f = fmemopen((void *)(uintptr_t)table, sizeof table - 1, "r");
        assert_non_null(f);
        assert_true(agent_web_user_local(&peer.any));
        assert_int_equal(agent_web_user_find(f, &peer.any, &own.any, 1000), cases[i].ours);
        fclose(f);
    }
}

static void test_config(void **state) {
    struct agent_web *w = NULL;
    static const char *const bad[] = {"0",        "65536",    "port",  "host:80", ":80",
                                      "1.2.3.4:", "",         "80,90", "1::2:80", "::1:80",
                                      "[::1:80",  "1.2.3:80", "[x]:80"};
    char short_token[NEB_PATH_MAX];
    in_folder(*state, "short", "short", short_token);
    neb_log_set_sink(testing_drop, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(agent_web_start(&(struct agent_web_config){.listen = bad[i]}, &w),
                         NEB_ERR_INVALID);
    assert_int_equal(agent_web_start(&(struct agent_web_config){.listen = "0.0.0.0:9470"}, &w),
                     NEB_ERR_INVALID);
    assert_int_equal(agent_web_start(&(struct agent_web_config){.listen = "[::]:9470"}, &w),
                     NEB_ERR_INVALID);
    assert_int_equal(
        agent_web_start(&(struct agent_web_config){.listen = "9470", .token = "/nonexistent"}, &w),
        NEB_ERR_NOT_FOUND);
    assert_int_equal(
        agent_web_start(&(struct agent_web_config){.listen = "9470", .token = short_token}, &w),
        NEB_ERR_INVALID);
    assert_int_equal(
        agent_web_start(&(struct agent_web_config){.listen = "9470", .cert = short_token}, &w),
        NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
    assert_null(w);
}

static int init(void **state) {
    (void)state;
    return sec_seal_init() == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts),
        cmocka_unit_test_setup_teardown(test_tokens, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_certificate, make_folder, remove_folder),
#ifndef TESTING_SANITIZED
        cmocka_unit_test_setup_teardown(test_secrets_in_locked_memory, make_folder, remove_folder),
#endif
        cmocka_unit_test_setup_teardown(test_renewal, make_folder, remove_folder),
        cmocka_unit_test(test_server),
        cmocka_unit_test(test_other_user),
        cmocka_unit_test(test_user_table),
        cmocka_unit_test_setup_teardown(test_accept_limit, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_config, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, init, NULL);
}
