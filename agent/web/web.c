// SPDX-License-Identifier: Apache-2.0
#include "agent/web/web.h"
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/web/guard.h"
#include "agent/web/tls.h"
#include "agent/web/user.h"
#include "inter/link/accept_limit.h"
#include "security/locked.h"
#include "security/source.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern const unsigned char agent_page_html[]; // the build makes it from agent/web/page/
extern const unsigned long agent_page_html_len;

// STACK: thread-local memory of libraries lies on a thread's stack.
enum {
    CONNECTIONS = 64,
    OF_ONE_ADDRESS = 24,
    OF_OTHER_USERS = 16, // other users of this host together, over loopback
    MEMORY = 8192,
    IDLE_S = 10,
    STACK = 1 << 20,
    BACKLOG = 32
};
// New connections without a token; each costs a TLS handshake.
static const struct inter_accept_limit_rate rate = {.burst = 64,
                                                    .second = 8,
                                                    .all_burst = 256,
                                                    .all_second = 64,
                                                    .known = INTER_ACCEPT_LIMIT_KNOWN_MAX};
static const neb_ns watched_for = 10 * NEB_S, exchange_within = 20 * NEB_S;
static const char priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:%SERVER_PRECEDENCE";

enum text { STATUS, HISTORY, METRICS, TEXTS };
static const struct {
    const char *path, *type;
} texts[TEXTS] = {{"/api/v1/status", "application/json"},
                  {"/api/v1/history", "application/json"},
                  {"/metrics", "text/plain; version=0.0.4; charset=utf-8"}};

struct connection {
    int fd;       // -1: free
    neb_ns since; // start, or end of its last answer
    struct inter_incoming visitor;
    bool known, other_user;
};

struct server { // with one certificate, until it is renewed
    struct agent_web *web;
    struct MHD_Daemon *daemon;
    struct agent_web_guard *guard; // from sec_locked_alloc
    struct agent_web_tls tls;
    struct inter_incoming
        arrived; // the connection admitted last; only the library's thread uses it
    // the socket after it stopped accepting, which end_server closes; -1: it still accepts
    int listening;
};

struct agent_web {
    struct server *now, *before; // before: finishes its connections; mostly NULL
    neb_ns before_until;
    struct agent_web_tls_files files;
    char listen[128];
    bool secure, asks_token;
    struct MHD_Response *page;
    pthread_mutex_t lock;
    struct MHD_Response *answers[TEXTS];        // under lock; NULL: not yet
    struct connection connections[CONNECTIONS]; // under lock
    struct inter_accept_limit accept_limit;     // under lock; for TLS with a token
    _Atomic uint64_t seen;                      // time of the last request for the history
};

// ---- the address --------------------------------------------------------------------------------

struct address {
    char host[64]; // numeric, without brackets
    uint16_t port;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at;
    bool v6;
};

// Splits "HOST:PORT"; a port alone means loopback.
static enum neb_status parse_address(const char *listen, struct address *a) {
    const char *colon = strrchr(listen, ':'), *digits = colon ? colon + 1 : listen, *host = listen;
    char *end = NULL;
    size_t n = colon ? (size_t)(colon - listen) : 0;
    long port = isdigit((unsigned char)*digits) ? strtol(digits, &end, 10) : 0;
    memset(a, 0, sizeof *a);
    a->v6 = n > 2 && host[0] == '[' && host[n - 1] == ']';
    if (a->v6)
        host++, n -= 2;
    if (port < 1 || port > 65535 || *end || n >= sizeof a->host || (colon && !n))
        return neb_fail(NEB_ERR_INVALID, "--page \"%s\": give PORT, HOST:PORT or [ADDRESS]:PORT",
                        listen);
    snprintf(a->host, sizeof a->host, "%.*s", colon ? (int)n : 9, colon ? host : "127.0.0.1");
    if (!strcmp(a->host, "localhost"))
        snprintf(a->host, sizeof a->host, "127.0.0.1");
    a->port = (uint16_t)port;
    int family = a->v6 ? AF_INET6 : AF_INET;
    void *where = a->v6 ? (void *)&a->at.v6.sin6_addr : &a->at.v4.sin_addr;
    if (inet_pton(family, a->host, where) != 1)
        return neb_fail(NEB_ERR_INVALID,
                        "--page \"%s\": the host must be a numeric address (0.0.0.0 for all IPv4 "
                        "addresses, [::] with IPv6 too)",
                        listen);
    if (a->v6)
        a->at.v6.sin6_family = AF_INET6, a->at.v6.sin6_port = htons(a->port);
    else
        a->at.v4.sin_family = AF_INET, a->at.v4.sin_port = htons(a->port);
    return NEB_OK;
}

bool agent_web_address_valid(const char *listen) {
    struct address a;
    return parse_address(listen, &a) == NEB_OK;
}

enum neb_status agent_web_check(const struct agent_web_config *c) {
    struct address a;
    if (!c->cert != !c->key)
        return neb_fail(NEB_ERR_INVALID, "--page-cert and --page-key go together");
    if (!c->listen)
        return NEB_OK;
    NEB_TRY(parse_address(c->listen, &a));
    if (!agent_web_is_loopback(a.host) && !c->token)
        return neb_fail(NEB_ERR_INVALID,
                        "--page %s: beyond this machine the page needs --page-token FILE (make one "
                        "with (umask 077; openssl rand -hex 32 >FILE))",
                        c->listen);
    return NEB_OK;
}

// ---- answers: in the server's thread ------------------------------------------------------------

static void add_headers(struct MHD_Response *r, const char *type) {
    static const char *const always[][2] = {
        {"Cache-Control", "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src "
                                    "'unsafe-inline'; connect-src 'self'; "
                                    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}};
    MHD_add_response_header(r, "Content-Type", type);
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        MHD_add_response_header(r, always[i][0], always[i][1]);
}

// Takes over the text (malloc), on failure too.
static struct MHD_Response *make_answer(char *text, const char *type) {
    struct MHD_Response *r =
        text ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE) : NULL;
    if (r)
        add_headers(r, type);
    else
        free(text);
    return r;
}

static enum MHD_Result answer(struct MHD_Connection *c, unsigned code, const char *reason,
                              const char *header, const char *value) {
    char body[160];
    int n = snprintf(body, sizeof body, "{\"error\":\"%s\"}\n", reason);
    struct MHD_Response *r =
        MHD_create_response_from_buffer((size_t)n, body, MHD_RESPMEM_MUST_COPY);
    if (!r)
        return MHD_NO; // closes the connection
    add_headers(r, "application/json");
    if (header)
        MHD_add_response_header(r, header, value);
    enum MHD_Result done = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return done;
}

static enum MHD_Result log_in(const struct server *s, struct MHD_Connection *c) {
    char cookie[192];
    snprintf(cookie, sizeof cookie, AGENT_WEB_COOKIE "=%s; Path=/; HttpOnly; SameSite=Strict%s",
             s->guard->cookie, s->web->secure ? "; Secure" : "");
    struct MHD_Response *r = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!r)
        return MHD_NO;
    add_headers(r, "text/plain");
    MHD_add_response_header(r, "Set-Cookie", cookie);
    MHD_add_response_header(r, "Location", "/");
    enum MHD_Result done = MHD_queue_response(c, MHD_HTTP_SEE_OTHER, r);
    MHD_destroy_response(r);
    return done;
}

static enum MHD_Result serve(struct agent_web *w, struct MHD_Connection *c, const char *path) {
    if (!strcmp(path, "/"))
        return MHD_queue_response(c, MHD_HTTP_OK, w->page);
    for (int i = 0; i < TEXTS; i++) {
        if (strcmp(path, texts[i].path))
            continue;
        if (i == HISTORY)
            atomic_store(&w->seen, (uint64_t)neb_now());
        pthread_mutex_lock(&w->lock); // the connection then holds its own reference
        enum MHD_Result done =
            w->answers[i] ? MHD_queue_response(c, MHD_HTTP_OK, w->answers[i]) : MHD_NO;
        bool ready = w->answers[i] != NULL;
        pthread_mutex_unlock(&w->lock);
        return ready ? done
                     : answer(c, MHD_HTTP_SERVICE_UNAVAILABLE, "Service Unavailable", "Retry-After",
                              "1");
    }
    return answer(c, MHD_HTTP_NOT_FOUND, "Not Found", NULL, NULL);
}

static struct connection *connection_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

// A connection that has shown the token, and its address, are no longer strangers. The page on
// loopback needs no token, so reading it proves nothing.
static void welcome(const struct server *s, struct MHD_Connection *c, const char *path) {
    struct agent_web *w = s->web;
    struct connection *k = connection_of(c);
    if (!w->asks_token || !k || (!s->guard->wide && !strcmp(path, "/")))
        return;
    pthread_mutex_lock(&w->lock);
    if (!k->known)
        inter_accept_limit_welcome(&w->accept_limit, &k->visitor, 0, neb_now());
    k->known = true;
    pthread_mutex_unlock(&w->lock);
}

// Called when the head is complete, and answers at once. A body, which no valid request has, is not
// read: the connection closes.
static enum MHD_Result on_request(void *user, struct MHD_Connection *c, const char *path,
                                  const char *method, const char *version, const char *body,
                                  size_t *body_len, void **state) {
    const struct server *s = user;
    const struct connection *k = connection_of(c);
    (void)version, (void)body, (void)body_len, (void)state;
    const struct agent_web_ask ask = {
        .method = method,
        .path = path,
        .host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host"),
        .authorization = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization"),
        .cookies = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Cookie"),
        .query_token = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "token"),
        .other_user = !k || k->other_user};
    switch (agent_web_judge(s->guard, &ask)) {
    case AGENT_WEB_PASS: welcome(s, c, path); return serve(s->web, c, path);
    case AGENT_WEB_LOGIN: welcome(s, c, ""); return log_in(s, c);
    case AGENT_WEB_METHOD:
        return answer(c, MHD_HTTP_METHOD_NOT_ALLOWED, "Method Not Allowed", "Allow", "GET");
    case AGENT_WEB_FORBIDDEN: return answer(c, MHD_HTTP_FORBIDDEN, "Forbidden", NULL, NULL);
    case AGENT_WEB_OTHER_USER:
        return answer(
            c, MHD_HTTP_FORBIDDEN,
            "without a token only the agent's user may read this: nebula agent --page-token FILE",
            NULL, NULL);
    case AGENT_WEB_NO_TOKEN: break;
    }
    return answer(c, MHD_HTTP_UNAUTHORIZED, "Unauthorized", "WWW-Authenticate", "Bearer");
}

static void on_log(void *user, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_log(void *user, const char *fmt, va_list ap) {
    char line[300];
    (void)user;
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\n")] = 0;
    neb_debug("status page: %s", line);
}

// ---- connections that take too long -------------------------------------------------------------

static int fd_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return i ? (int)i->connect_fd : -1;
}

// Decides before the TLS handshake starts, so strangers cost nothing. on_connection follows if this
// admits the connection.
static enum MHD_Result may_come(void *user, const struct sockaddr *who, socklen_t n) {
    struct server *s = user;
    struct agent_web *w = s->web;
    struct sockaddr_storage a = {0};
    s->arrived = (struct inter_incoming){0};
    if (!w->secure || !w->asks_token || n > (socklen_t)sizeof a)
        return MHD_YES;
    memcpy(&a, who, n);
    pthread_mutex_lock(&w->lock);
    bool may =
        inter_accept_limit_take(&w->accept_limit, sec_source_of(&a), &a, neb_now(), &s->arrived);
    pthread_mutex_unlock(&w->lock);
    return may ? MHD_YES : MHD_NO;
}

// The caller holds the lock. Counts connections of other users of this host.
static int others(const struct agent_web *w) {
    int n = 0;
    for (int i = 0; i < CONNECTIONS; i++)
        n += w->connections[i].fd >= 0 && w->connections[i].other_user;
    return n;
}

// For a descriptor that the library has accepted.
static bool is_other_user(int fd) {
    struct sockaddr_storage peer, own;
    socklen_t n = sizeof peer, m = sizeof own;
    if (getpeername(fd, (struct sockaddr *)&peer, &n) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &m) != 0)
        return true; // already closed
    return agent_web_user_local((struct sockaddr *)&peer) &&
           !agent_web_user_ours((struct sockaddr *)&peer, (struct sockaddr *)&own);
}

// The library closes the socket only after the CLOSED notice, so a descriptor in the table always
// belongs to its connection.
static void on_connection(void *user, struct MHD_Connection *c, void **place,
                          enum MHD_ConnectionNotificationCode what) {
    struct server *s = user;
    struct agent_web *w = s->web;
    struct connection *free_place = NULL;
    int fd = fd_of(c);
    bool other = what == MHD_CONNECTION_NOTIFY_STARTED && is_other_user(fd);
    pthread_mutex_lock(&w->lock);
    if (what == MHD_CONNECTION_NOTIFY_CLOSED && *place) {
        ((struct connection *)*place)->fd = -1;
    } else if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        for (int i = 0; i < CONNECTIONS && !free_place; i++)
            if (w->connections[i].fd < 0)
                free_place = &w->connections[i];
        if (other && others(w) >= OF_OTHER_USERS)
            free_place = NULL;
        if (free_place)
            *free_place = (struct connection){
                .fd = fd, .since = neb_now(), .visitor = s->arrived, .other_user = other};
        else if (fd >= 0)
            shutdown(fd, SHUT_RDWR);
        *place = free_place;
    }
    pthread_mutex_unlock(&w->lock);
}

static void on_answered(void *user, struct MHD_Connection *c, void **state,
                        enum MHD_RequestTerminationCode why) {
    struct agent_web *w = user;
    (void)state, (void)why;
    struct connection *k = connection_of(c);
    if (!k)
        return;
    pthread_mutex_lock(&w->lock);
    k->since = neb_now();
    pthread_mutex_unlock(&w->lock);
}

// The caller holds the lock. The library's own limit restarts with each byte, so a client could
// keep a connection for ever.
static void end_slow(struct agent_web *w, neb_ns now) {
    for (int i = 0; i < CONNECTIONS; i++)
        if (w->connections[i].fd >= 0 && now - w->connections[i].since > exchange_within)
            shutdown(w->connections[i].fd, SHUT_RDWR);
}

// ---- start, renewal, stop -----------------------------------------------------------------------

// The library's own reason is only for programmers, so this tries again and asks the system.
static const char *why_not(const struct address *a, char *out, size_t cap) {
    int one = 1, fd = socket(a->at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), why = errno;
    socklen_t n = a->v6 ? sizeof a->at.v6 : sizeof a->at.v4;
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        why = bind(fd, &a->at.any, n) == 0 && listen(fd, 1) == 0 ? 0 : errno;
        close(fd);
    }
    snprintf(out, cap, "%s", why ? strerror(why) : "for a reason that --verbose shows");
    return out;
}

// fd: a listening socket; -1: makes one for the address.
static enum neb_status start_server(struct server *s, const struct address *a, int fd) {
    struct agent_web *w = s->web;
    char why[128];
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG | MHD_USE_ITC |
                     (w->secure ? MHD_USE_TLS : 0u) | (a->v6 ? MHD_USE_DUAL_STACK : 0u);
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, s->tls.cert.p},
                                   {MHD_OPTION_HTTPS_MEM_KEY, 0, s->tls.key},
                                   {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)priorities},
                                   {MHD_OPTION_END, 0, NULL}};
    static struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem socket[] = {{MHD_OPTION_LISTEN_SOCKET, fd, NULL},
                                      {MHD_OPTION_END, 0, NULL}};
    if (w->secure && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return neb_fail(NEB_ERR_UNSUPPORTED, "--page %s: this libmicrohttpd was built without TLS",
                        w->listen);
    s->daemon = MHD_start_daemon(
        flags, a->port, may_come, s, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
        MHD_OPTION_SOCK_ADDR, &a->at.any, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        s->guard->wide ? (unsigned)OF_ONE_ADDRESS : (unsigned)CONNECTIONS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_S, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK,
        MHD_OPTION_LISTEN_BACKLOG_SIZE, (unsigned)BACKLOG, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, s, MHD_OPTION_NOTIFY_COMPLETED, on_answered, w, MHD_OPTION_STRICT_FOR_CLIENT,
        1, MHD_OPTION_ARRAY, w->secure ? tls : none, MHD_OPTION_ARRAY, fd < 0 ? none : socket,
        MHD_OPTION_END);
    return s->daemon ? NEB_OK
                     : neb_fail(NEB_ERR_IO, "the status page cannot listen on %s: %s", w->listen,
                                why_not(a, why, sizeof why));
}

static enum neb_status load_secrets(struct server *s, const struct agent_web_config *c,
                                    const struct address *a) {
    struct agent_web *w = s->web;
    s->guard->wide = !agent_web_is_loopback(a->host);
    if (c->token)
        NEB_TRY(agent_web_guard_token(s->guard, c->token));
    if (c->cert) {
        NEB_TRY(agent_web_tls_files(&w->files, c->cert, c->key));
        NEB_TRY(agent_web_tls_load(c->cert, c->key, &s->tls));
    } else if (s->guard->wide)
        NEB_TRY(agent_web_tls_own(c->home, a->host, &s->tls, &w->files));
    w->secure = s->tls.x509 != NULL;
    s->guard->cert = s->tls.x509;
    return NEB_OK;
}

static void say_fingerprint(const struct server *s, const char *what) {
    char print[AGENT_WEB_FINGERPRINT];
    agent_web_tls_fingerprint(&s->tls, print);
    neb_info("the status page's %scertificate has the SHA-256 fingerprint %s", what, print);
}

static void say_where(const struct agent_web *w, const struct address *a) {
    neb_info("status page at http%s://%s%s%s:%u/", w->secure ? "s" : "", a->v6 ? "[" : "", a->host,
             a->v6 ? "]" : "", a->port);
    if (w->secure)
        say_fingerprint(w->now, "");
}

static struct server *make_server(struct agent_web *w) {
    struct server *s = calloc(1, sizeof *s);
    if (!s || !(s->guard = sec_locked_alloc(sizeof *s->guard))) {
        free(s);
        return NULL;
    }
    memset(s->guard, 0, sizeof *s->guard);
    s->web = w;
    s->listening = -1;
    return s;
}

static void end_server(struct server **sp) {
    struct server *s = *sp;
    if (!s)
        return;
    if (s->daemon)
        MHD_stop_daemon(s->daemon);
    if (s->listening >= 0)
        close(s->listening);
    agent_web_tls_free(&s->tls);
    sodium_free(s->guard);
    free(s);
    *sp = NULL;
}

// Both servers accept for a moment, so no client is refused. The previous server finishes its
// connections.
static enum neb_status replace_server(struct agent_web *w, struct server *next, neb_ns now) {
    const union MHD_DaemonInfo *i = MHD_get_daemon_info(w->now->daemon, MHD_DAEMON_INFO_LISTEN_FD);
    static const struct address none;
    int fd = i ? fcntl(i->listen_fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (fd < 0)
        return neb_fail_errno("cannot share the status page's socket");
    NEB_TRY(start_server(next, &none, fd)); // keeps the socket, even on failure
    w->now->listening = MHD_quiesce_daemon(w->now->daemon);
    end_server(&w->before);
    w->before = w->now;
    w->before_until = now + exchange_within;
    w->now = next;
    return NEB_OK;
}

// Loads a renewed certificate; an unusable one changes nothing.
static void take_renewed(struct agent_web *w, neb_ns now) {
    if (w->before && now > w->before_until)
        end_server(&w->before);
    if (!w->secure || !agent_web_tls_renewed(&w->files))
        return;
    struct server *next = make_server(w);
    enum neb_status st =
        next ? agent_web_tls_load(w->files.cert, w->files.key, &next->tls) : NEB_ERR_NOMEM;
    if (st == NEB_OK) {
        *next->guard = *w->now->guard;
        next->guard->cert = next->tls.x509;
        st = replace_server(w, next, now);
    }
    if (st == NEB_OK) {
        say_fingerprint(next, "renewed ");
        return;
    }
    neb_warn("%s was renewed but is unusable: the status page keeps its current certificate",
             w->files.cert);
    end_server(&next);
}

enum neb_status agent_web_start(const struct agent_web_config *c, struct agent_web **out) {
    struct address a;
    enum neb_status st = NEB_OK;
    NEB_TRY(agent_web_check(c));
    NEB_TRY(parse_address(c->listen, &a));
    struct agent_web *w = calloc(1, sizeof *w);
    if (!w)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the status page");
    pthread_mutex_init(&w->lock, NULL);
    inter_accept_limit_init(&w->accept_limit, "status page", &rate);
    w->asks_token = c->token != NULL;
    for (int i = 0; i < CONNECTIONS; i++)
        w->connections[i].fd = -1;
    snprintf(w->listen, sizeof w->listen, "%s", c->listen);
    w->now = make_server(w);
    st = w->now ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for the status page");
    NEB_TRY_GOTO(st, out);
    NEB_TRY_GOTO(load_secrets(w->now, c, &a), out);
    w->page = MHD_create_response_from_buffer(
        agent_page_html_len, (void *)(uintptr_t)agent_page_html, MHD_RESPMEM_PERSISTENT);
    st = w->page ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for the status page");
    NEB_TRY_GOTO(st, out);
    add_headers(w->page, "text/html; charset=utf-8");
    NEB_TRY_GOTO(start_server(w->now, &a, -1), out);
    say_where(w, &a);
    *out = w;
    return NEB_OK;
out:
    agent_web_stop(&w);
    return st;
}

void agent_web_stop(struct agent_web **wp) {
    struct agent_web *w = *wp;
    if (!w)
        return;
    end_server(&w->before);
    end_server(&w->now);
    for (int i = 0; i < TEXTS; i++)
        if (w->answers[i])
            MHD_destroy_response(w->answers[i]);
    if (w->page)
        MHD_destroy_response(w->page);
    inter_accept_limit_end(&w->accept_limit);
    pthread_mutex_destroy(&w->lock);
    free(w);
    *wp = NULL;
}

bool agent_web_watched(struct agent_web *w) {
    uint64_t seen = atomic_load(&w->seen);
    return seen && neb_now() - (neb_ns)seen < watched_for;
}

void agent_web_publish(struct agent_web *w, char *status, char *history, char *metrics) {
    char *fresh[TEXTS] = {status, history, metrics};
    struct MHD_Response *made[TEXTS];
    for (int i = 0; i < TEXTS; i++)
        made[i] = make_answer(fresh[i], texts[i].type);
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < TEXTS; i++)
        if (made[i]) {
            struct MHD_Response *before = w->answers[i];
            w->answers[i] = made[i];
            made[i] = before;
        }
    end_slow(w, neb_now());
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < TEXTS; i++)
        if (made[i])
            MHD_destroy_response(made[i]);
    take_renewed(w, neb_now());
}
