// SPDX-License-Identifier: Apache-2.0
// One listening socket and at most SEC_ENROL_CONNECTIONS connections, in one epoll descriptor that
// the caller waits on:
//
//     accepted ─ first byte ─► handshake ─► request ─► answer ─► closed
//        └─ too many handshakes (enrol_rate.h), deadline, error, eviction ─┘
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/base/throttle.h"
#include "security/enrol.h"
#include "security/enrol_wire.h"
#include "security/source.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 32, ACCEPTS = 128, BACKLOG = 128, TICK_MS = 250 };
static const neb_ns context_age = 24 * 3600 * NEB_S, retry_after = 600 * NEB_S,
                    clock_step = 60 * NEB_S;

enum phase { FREE, ACCEPTED, HANDSHAKE, REQUEST, ANSWER };

// Why a connection is refused. Each kind has its own log throttle, so a flood of one hides no
// other.
enum refusal {
    FOR_RATE,
    FOR_PIECES,
    FOR_HANDSHAKE,
    FOR_REQUEST,
    FOR_UNKNOWN,
    FOR_PROOF,
    FOR_INVITATION,
    REFUSALS
};
enum { LINES_OF_EACH = 3 }; // then one line a minute

struct conn {
    enum phase phase;
    int fd;
    SSL *ssl;
    struct in6_addr from; // for the log
    uint64_t source;      // for the limits
    unsigned pieces;      // arrivals of its handshake and its request
    neb_ns opened;
    uint8_t *in; // 4 + SEC_ENROL_REQUEST_MAX bytes, from phase REQUEST on
    size_t have;
    struct neb_buf out;
    size_t sent;
};

struct sec_enrol_server {
    struct sec_hub *hub;
    const struct sec_identity *self;
    SSL_CTX *ctx;
    neb_ns ctx_made, ctx_again; // when it was made; no retry before
    neb_ns ctx_clock;           // wall clock minus monotonic clock when it was made
    struct neb_throttle said[REFUSALS], no_accept;
    bool deaf; // accept failed: the listening socket is not watched until the next tick
    int listen_fd, epoll_fd, timer_fd;
    uint64_t refused; // requests, and connections that were cut
    struct sec_enrol_rate rate;
    struct conn conns[SEC_ENROL_CONNECTIONS];
};

// ---- TLS ---------------------------------------------------------------------------------------

static enum neb_status make_cert(struct sec_enrol_server *s, EVP_PKEY **key, X509 **cert) {
    uint8_t seed[SEC_KEY_BYTES];
    randombytes_buf(seed, sizeof seed);
    enum neb_status st = sec_ed25519_key(seed, key);
    sodium_memzero(seed, sizeof seed);
    if (st == NEB_OK)
        st = sec_ca_issue_server(s->hub->ca, sec_identity_public(s->self), *key, cert);
    return st;
}

static bool fill_context(SSL_CTX *ctx, EVP_PKEY *key, X509 *cert, X509 *ca) {
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                              SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) && SSL_CTX_set_num_tickets(ctx, 0) &&
           SSL_CTX_set_max_early_data(ctx, 0) && SSL_CTX_use_certificate(ctx, cert) == 1 &&
           SSL_CTX_use_PrivateKey(ctx, key) == 1 && SSL_CTX_add1_chain_cert(ctx, ca) == 1;
}

// Makes a new key and certificate. Connections that exist keep the previous ones.
static enum neb_status renew_context(struct sec_enrol_server *s) {
    EVP_PKEY *key = NULL;
    X509 *cert = NULL;
    const uint8_t *at = s->hub->fed->ca.p;
    X509 *ca = d2i_X509(NULL, &at, (long)s->hub->fed->ca.len);
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    enum neb_status st = make_cert(s, &key, &cert);
    if (st == NEB_OK && (!ctx || !ca || !fill_context(ctx, key, cert, ca)))
        st = neb_fail(NEB_ERR_IO, "enrolment: cannot set up TLS: %s", sec_openssl_error());
    if (st == NEB_OK) {
        SSL_CTX_free(s->ctx);
        s->ctx = ctx;
        ctx = NULL;
        s->ctx_made = neb_now();
        s->ctx_clock = neb_wall_now() - neb_now();
    }
    SSL_CTX_free(ctx);
    X509_free(ca);
    X509_free(cert);
    EVP_PKEY_free(key);
    return st;
}

// ---- connections -------------------------------------------------------------------------------

static void drop(struct conn *c) {
    if (c->phase == FREE)
        return;
    SSL_free(c->ssl);
    close(c->fd); // this also removes it from the epoll set
    if (c->in)
        sodium_memzero(c->in, c->have);
    free(c->in);
    neb_buf_free(&c->out);
    *c = (struct conn){.phase = FREE};
}

// A stranger must not be able to fill the log.
static void log_refused(struct sec_enrol_server *s, const struct conn *c, enum refusal what,
                        const char *why) {
    char text[INET6_ADDRSTRLEN] = "";
    s->refused++;
    if (!neb_throttle_allows(&s->said[what], neb_now(), LINES_OF_EACH))
        return;
    inet_ntop(AF_INET6, &c->from, text, sizeof text);
    neb_warn("enrolment: %s: refused: %s", text, why);
}

// Logs how many refusals log_refused left out.
static void log_more(struct sec_enrol_server *s) {
    static const char *const what[REFUSALS] = {
        [FOR_RATE] = "too many handshakes",
        [FOR_PIECES] = "too many pieces",
        [FOR_HANDSHAKE] = "failed handshakes",
        [FOR_REQUEST] = "bad requests",
        [FOR_UNKNOWN] = "unknown invitations",
        [FOR_PROOF] = "wrong proofs",
        [FOR_INVITATION] = "invitations or renewals that the hub refused",
    };
    for (int i = 0; i < REFUSALS; i++) {
        uint64_t n = neb_throttle_suppressed(&s->said[i], neb_now());
        if (n)
            neb_warn("enrolment: %llu more connections were refused: %s", (unsigned long long)n,
                     what[i]);
    }
}

static struct conn *evict(struct sec_enrol_server *s) {
    struct conn *worst = NULL;
    unsigned most = 0;
    for (int i = 0; i < SEC_ENROL_CONNECTIONS; i++) {
        struct conn *c = &s->conns[i];
        unsigned n = 0;
        if (c->phase == ANSWER)
            continue; // the client's proof was correct
        for (int k = 0; k < SEC_ENROL_CONNECTIONS; k++)
            n += s->conns[k].phase != ANSWER && c->source == s->conns[k].source;
        if (n > most || (n == most && worst && c->opened < worst->opened)) {
            most = n;
            worst = c;
        }
    }
    if (worst) {
        drop(worst);
        s->refused++;
    }
    return worst;
}

static void watch(struct sec_enrol_server *s, struct conn *c, uint32_t events) {
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, c->fd, &e) != 0)
        drop(c);
}

static void take_socket(struct sec_enrol_server *s, int fd, const struct in6_addr *from,
                        uint64_t source) {
    struct conn *c = NULL;
    for (int i = 0; i < SEC_ENROL_CONNECTIONS && !c; i++)
        if (s->conns[i].phase == FREE)
            c = &s->conns[i];
    if (!c)
        c = evict(s);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    if (!c || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0) {
        close(fd);
        return;
    }
    *c = (struct conn){
        .phase = ACCEPTED, .fd = fd, .from = *from, .source = source, .opened = neb_now()};
}

static void listen_to(struct sec_enrol_server *s, bool on) {
    struct epoll_event l = {.events = on ? EPOLLIN : 0, .data.ptr = &s->listen_fd};
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, s->listen_fd, &l) != 0)
        neb_debug("enrolment: epoll: %s", strerror(errno));
    s->deaf = !on;
}

// If descriptors or memory run out, the connection stays in the queue and would wake this thread
// again and again.
static void cannot_accept(struct sec_enrol_server *s, int why) {
    uint64_t more;
    if (why != EMFILE && why != ENFILE && why != ENOBUFS && why != ENOMEM)
        return; // the queue is empty, or the connection has gone
    listen_to(s, false);
    if (neb_throttle_line(&s->no_accept, neb_now(), &more))
        neb_warn("enrolment: cannot accept connections: %s%s; trying again", strerror(why),
                 why == EMFILE ? " (raise the limit of open files, ulimit -n)" : "");
}

static void accept_all(struct sec_enrol_server *s) {
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage a = {0};
        struct in6_addr from = {0};
        socklen_t len = sizeof a;
        int fd = accept4(s->listen_fd, (struct sockaddr *)&a, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            cannot_accept(s, errno);
            return;
        }
        if (a.ss_family == AF_INET6) {
            from = ((struct sockaddr_in6 *)&a)->sin6_addr;
        } else {
            from.s6_addr[10] = from.s6_addr[11] = 0xff; // IPv4 in IPv6 notation
            memcpy(from.s6_addr + 12, &((struct sockaddr_in *)&a)->sin_addr, 4);
        }
        take_socket(s, fd, &from, sec_source_of(&a));
    }
}

// ---- one request -------------------------------------------------------------------------------

// Checks the proof before anything else in the request is trusted. NULL: it is correct.
static const char *check_proof(struct sec_enrol_server *s, const struct sec_enrol_request *q,
                               const uint8_t *exporter, enum refusal *what) {
    uint8_t verifier[SEC_VERIFIER_BYTES], want[SEC_PROOF_BYTES];
    struct neb_buf proven = {0};
    const char *why = NULL;
    if (sec_enrol_proven(exporter, q->body, q->body_len, q->pop, &proven) != NEB_OK)
        return "out of memory";
    if (q->kind == SEC_ENROL_JOIN) {
        if (sec_hub_verifier(s->hub, q->id, verifier) == NEB_OK) {
            sec_enrol_hmac(verifier, &proven, want);
            if (sodium_memcmp(want, q->proof, sizeof want) != 0)
                why = "its proof does not match the invitation and this connection";
        } else {
            *what = FOR_UNKNOWN;
            why = "there is no such invitation";
        }
    } else {
        const struct sec_member *m = sec_members_by_name(&s->hub->fed->list.members, q->name);
        if (!m ||
            sec_verify(m->pub.sign, SEC_CONTEXT_ENROL, proven.p, proven.len, q->proof) != NEB_OK)
            why = "not signed by a member with that name";
    }
    sodium_memzero(verifier, sizeof verifier);
    sodium_memzero(want, sizeof want);
    neb_buf_free(&proven);
    return why;
}

// Checks that the sender holds the CURVE key in its request.
static const char *check_pop(struct sec_enrol_server *s, const struct sec_enrol_request *q,
                             const uint8_t *exporter) {
    struct sec_public p;
    uint8_t want[SEC_POP_BYTES];
    if (sec_csr_parse(q->csr, q->csr_len, &p) != NEB_OK)
        return "its certificate request is not valid";
    if (sec_enrol_pop(sec_identity_curve_secret(s->self), p.curve, exporter, q->body, q->body_len,
                      want) != NEB_OK ||
        sodium_memcmp(want, q->pop, sizeof want) != 0)
        return "it does not hold the CURVE key that it names";
    return NULL;
}

// a: the answer to a sender that has proved who it is. what: the kind of refusal.
static const char *decide(struct sec_enrol_server *s, struct conn *c, struct neb_buf *cert,
                          struct sec_enrol_answer *a, enum refusal *what) {
    static const char label[] = "EXPORTER-Channel-Binding";
    uint8_t exporter[SEC_EXPORTER_BYTES];
    struct sec_enrol_request q;
    if (SSL_export_keying_material(c->ssl, exporter, sizeof exporter, label, sizeof label - 1, NULL,
                                   0, 0) != 1)
        return "its TLS connection gives no exporter";
    *what = FOR_REQUEST;
    if (sec_enrol_parse(c->in + 4, c->have - 4, &q) != NEB_OK)
        return "its request is malformed";
    if (sec_federation_reload(s->hub->fed, NULL) != NEB_OK)
        return "the hub cannot use its own member list";
    *what = FOR_PROOF;
    const char *why = check_proof(s, &q, exporter, what);
    if (!why)
        why = check_pop(s, &q, exporter);
    if (why)
        return why;
    *what = FOR_INVITATION;
    enum neb_status st = q.kind == SEC_ENROL_JOIN
                             ? sec_hub_admit(s->hub, q.id, q.csr, q.csr_len, q.endpoint, cert, a)
                             : sec_hub_renew(s->hub, q.name, q.csr, q.csr_len, cert, &a->seconds);
    if (q.kind == SEC_ENROL_RENEW && a->seconds)
        a->code = SEC_ENROL_LATER;
    return st == NEB_OK ? NULL : "see the line above";
}

static void answer(struct sec_enrol_server *s, struct conn *c) {
    struct neb_buf cert = {0};
    const struct sec_federation *f = s->hub->fed;
    struct sec_enrol_answer a = {.code = SEC_ENROL_REFUSED};
    enum refusal what = FOR_HANDSHAKE;
    const char *why = decide(s, c, &cert, &a, &what);
    if (why) {
        log_refused(s, c, what, why);
    } else {
        a = (struct sec_enrol_answer){.code = SEC_ENROL_OK,
                                      .cert = cert.p,
                                      .cert_len = cert.len,
                                      .ca = f->ca.p,
                                      .ca_len = f->ca.len,
                                      .list = f->signed_list.p,
                                      .list_len = f->signed_list.len};
    }
    if (sec_enrol_answer_make(&a, &c->out) != NEB_OK)
        drop(c);
    else
        c->phase = ANSWER;
    neb_buf_free(&cert);
}

// ---- moving on ---------------------------------------------------------------------------------

// After an SSL call that did not succeed: waits for what it needs, or ends the connection.
static void stalled(struct sec_enrol_server *s, struct conn *c, int r) {
    char reason[SEC_TLS_REASON], text[SEC_TLS_REASON + 32];
    sec_tls_reason(c->ssl, r, reason);
    int why = SSL_get_error(c->ssl, r);
    if (why == SSL_ERROR_WANT_READ)
        watch(s, c, EPOLLIN);
    else if (why == SSL_ERROR_WANT_WRITE)
        watch(s, c, EPOLLOUT);
    else {
        snprintf(text, sizeof text, "TLS handshake: %s", reason);
        if (c->phase == HANDSHAKE)
            log_refused(s, c, FOR_HANDSHAKE, text);
        drop(c);
    }
    ERR_clear_error();
}

static void go_handshake(struct sec_enrol_server *s, struct conn *c) {
    if (c->phase == ACCEPTED) {
        c->ssl = SSL_new(s->ctx);
        if (!c->ssl || !SSL_set_fd(c->ssl, c->fd)) {
            drop(c);
            return;
        }
        c->phase = HANDSHAKE;
    }
    int r = SSL_accept(c->ssl);
    if (r != 1) {
        stalled(s, c, r);
        return;
    }
    c->in = malloc(4 + SEC_ENROL_REQUEST_MAX);
    if (c->in)
        c->phase = REQUEST;
    else
        drop(c);
}

static void go_request(struct sec_enrol_server *s, struct conn *c) {
    for (;;) {
        struct neb_rd r = neb_rd_make(c->in, c->have);
        size_t want = c->have < 4 ? 4 : 4 + (size_t)neb_rd_u32(&r);
        if (want > 4 + SEC_ENROL_REQUEST_MAX) {
            log_refused(s, c, FOR_REQUEST, "its request is too large");
            drop(c);
            return;
        }
        if (c->have >= 4 && c->have == want) {
            answer(s, c);
            return;
        }
        size_t got = 0;
        int ok = SSL_read_ex(c->ssl, c->in + c->have, want - c->have, &got);
        if (ok != 1) {
            stalled(s, c, ok);
            return;
        }
        c->have += got;
    }
}

static void go_answer(struct sec_enrol_server *s, struct conn *c) {
    while (c->sent < c->out.len) {
        size_t n = 0;
        int ok = SSL_write_ex(c->ssl, c->out.p + c->sent, c->out.len - c->sent, &n);
        if (ok != 1) {
            stalled(s, c, ok);
            return;
        }
        c->sent += n;
    }
    SSL_shutdown(c->ssl);
    drop(c);
    ERR_clear_error();
}

static neb_ns thread_time(void) {
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * NEB_S + t.tv_nsec;
}

static void move_on(struct sec_enrol_server *s, struct conn *c) {
    ERR_clear_error();
    if (c->phase == ACCEPTED || c->phase == HANDSHAKE)
        go_handshake(s, c);
    if (c->phase == REQUEST)
        go_request(s, c);
    if (c->phase == ANSWER)
        go_answer(s, c);
}

static void go(struct sec_enrol_server *s, struct conn *c) {
    const char *why = NULL;
    enum refusal what = FOR_RATE;
    if (c->phase == ACCEPTED && !sec_enrol_rate_take(&s->rate, c->source, neb_now()))
        why = "too many handshakes from its address, or from all addresses";
    else if (c->phase < ANSWER && c->pieces++ == SEC_ENROL_PIECES)
        why = "its data comes in too many pieces", what = FOR_PIECES;
    if (why) { // a refusal costs almost nothing, so no source is charged for it
        log_refused(s, c, what, why);
        drop(c);
        return;
    }
    neb_ns before = thread_time();
    move_on(s, c);
    sec_enrol_rate_spent(&s->rate, thread_time() - before, neb_now());
}

static void expire(struct sec_enrol_server *s) {
    uint64_t ticks;
    neb_ns now = neb_now();
    if (read(s->timer_fd, &ticks, sizeof ticks) < 0 && errno != EAGAIN)
        neb_warn("enrolment: timer: %s", strerror(errno));
    if (s->deaf)
        listen_to(s, true);
    log_more(s);
    for (int i = 0; i < SEC_ENROL_CONNECTIONS; i++) {
        struct conn *c = &s->conns[i];
        neb_ns limit = (c->phase < REQUEST ? SEC_ENROL_HANDSHAKE_MS : SEC_ENROL_TOTAL_MS) * NEB_MS;
        if (c->phase != FREE && now - c->opened > limit) {
            drop(c);
            s->refused++;
        }
    }
}

// A certificate is valid from the time of the clock when it is made. If a wrong clock is set right
// later, joiners would see an expired or not yet valid certificate.
static bool is_stale(const struct sec_enrol_server *s) {
    neb_ns now = neb_now(), moved = neb_wall_now() - now - s->ctx_clock;
    return now - s->ctx_made > context_age || moved > clock_step || moved < -clock_step;
}

enum neb_status sec_enrol_server_step(struct sec_enrol_server *s) {
    struct epoll_event events[EVENTS];
    expire(s);
    if (is_stale(s) && neb_now() >= s->ctx_again && renew_context(s) != NEB_OK) {
        neb_warn(
            "enrolment: keeps its previous TLS certificate, and tries to make a new one later");
        s->ctx_again = neb_now() + retry_after;
    }
    int n = epoll_wait(s->epoll_fd, events, EVENTS, 0);
    if (n < 0 && errno != EINTR)
        return neb_fail_errno("enrolment: epoll");
    for (int i = 0; i < n; i++) {
        struct conn *c = events[i].data.ptr;
        if (events[i].data.ptr != &s->listen_fd && events[i].data.ptr != &s->timer_fd)
            go(s, c);
    }
    accept_all(s); // last: an eviction must not reuse a place that an event above still names
    return NEB_OK;
}

// ---- set-up ------------------------------------------------------------------------------------

static enum neb_status listen_on(struct sec_enrol_server *s, const char *endpoint) {
    char host[SEC_ENDPOINT_MAX];
    const char *colon = strrchr(endpoint, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *a = NULL;
    int on = 1;
    if (!colon || strlen(endpoint) >= sizeof host)
        return neb_fail(NEB_ERR_INVALID, "enrolment: listen on '%s': expected HOST:PORT", endpoint);
    bool bracket = endpoint[0] == '[';
    snprintf(host, sizeof host, "%.*s", (int)(colon - endpoint) - 2 * bracket, endpoint + bracket);
    int e = getaddrinfo(host, strcmp(colon + 1, "*") ? colon + 1 : "0", &hints, &a);
    if (e)
        return neb_fail(NEB_ERR_INVALID, "enrolment: %s: %s", endpoint, gai_strerror(e));
    s->listen_fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool ok = s->listen_fd >= 0 &&
              setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
              bind(s->listen_fd, a->ai_addr, a->ai_addrlen) == 0 &&
              listen(s->listen_fd, BACKLOG) == 0;
    freeaddrinfo(a);
    return ok ? NEB_OK : neb_fail_errno("enrolment: cannot listen on %s", endpoint);
}

static enum neb_status watch_own(struct sec_enrol_server *s) {
    struct itimerspec tick = {.it_interval.tv_nsec = TICK_MS * NEB_MS,
                              .it_value.tv_nsec = TICK_MS * NEB_MS};
    struct epoll_event l = {.events = EPOLLIN, .data.ptr = &s->listen_fd},
                       t = {.events = EPOLLIN, .data.ptr = &s->timer_fd};
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (s->epoll_fd < 0 || s->timer_fd < 0 || timerfd_settime(s->timer_fd, 0, &tick, NULL) != 0 ||
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->listen_fd, &l) != 0 ||
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->timer_fd, &t) != 0)
        return neb_fail_errno("enrolment: epoll");
    return NEB_OK;
}

enum neb_status sec_enrol_server_create(struct sec_hub *hub, const struct sec_identity *self,
                                        const char *listen, struct sec_enrol_server **out) {
    enum neb_status st;
    struct sec_enrol_server *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: enrolment");
    s->hub = hub;
    s->self = self;
    s->listen_fd = s->epoll_fd = s->timer_fd = -1;
    sec_enrol_rate_init(&s->rate);
    NEB_TRY_GOTO(sec_openssl_init(), out);
    NEB_TRY_GOTO(renew_context(s), out);
    NEB_TRY_GOTO(listen_on(s, listen), out);
    st = watch_own(s);
out:
    if (st != NEB_OK)
        sec_enrol_server_destroy(&s);
    *out = s;
    return st;
}

void sec_enrol_server_destroy(struct sec_enrol_server **sp) {
    struct sec_enrol_server *s = sp ? *sp : NULL;
    if (!s)
        return;
    for (int i = 0; i < SEC_ENROL_CONNECTIONS; i++)
        drop(&s->conns[i]);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    if (s->timer_fd >= 0)
        close(s->timer_fd);
    SSL_CTX_free(s->ctx);
    free(s);
    *sp = NULL;
}

int sec_enrol_server_fd(const struct sec_enrol_server *s) { return s->epoll_fd; }

unsigned sec_enrol_server_port(const struct sec_enrol_server *s) {
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof a;
    if (getsockname(s->listen_fd, (struct sockaddr *)&a, &len) != 0)
        return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

uint64_t sec_enrol_server_refused(const struct sec_enrol_server *s) { return s->refused; }
