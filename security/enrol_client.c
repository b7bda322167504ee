// SPDX-License-Identifier: Apache-2.0
// The enrolling side. A joiner knows no CA yet, only the pin of one. It trusts the CA in the hub's
// chain that has this pin.
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "security/enrol.h"
#include "security/enrol_wire.h"

#include <errno.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct sec_enrol_client {
    int fd;
    SSL_CTX *ctx;
    SSL *ssl;
    const char *endpoint; // for messages; the caller's, valid during sec_enrol_connect only
    uint8_t pin[SEC_PIN_BYTES];
    uint8_t exporter[SEC_EXPORTER_BYTES], hub_curve[SEC_KEY_BYTES];
};

// ---- connect -----------------------------------------------------------------------------------

static bool split(const char *endpoint, char host[SEC_ENDPOINT_MAX], const char **port) {
    const char *colon = strrchr(endpoint, ':');
    size_t n = colon ? (size_t)(colon - endpoint) : 0;
    if (!sec_endpoint_valid(endpoint))
        return false;
    bool bracket = endpoint[0] == '[';
    snprintf(host, SEC_ENDPOINT_MAX, "%.*s", (int)(bracket ? n - 2 : n), endpoint + bracket);
    *port = colon + 1;
    return true;
}

static enum neb_status dial(const char *endpoint, int *out) {
    char host[SEC_ENDPOINT_MAX];
    const char *port;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    struct timeval limit = {.tv_sec = SEC_ENROL_CLIENT_MS / 1000};
    if (!split(endpoint, host, &port))
        return neb_fail(NEB_ERR_INVALID, "'%s': expected HOST:PORT", endpoint);
    int e = getaddrinfo(host, port, &hints, &list);
    if (e)
        return neb_fail(NEB_ERR_IO, "%s: %s", endpoint, gai_strerror(e));
    int fd = -1, why = ECONNREFUSED;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            why = errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            why = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        return neb_fail(why == EINPROGRESS || why == ETIMEDOUT ? NEB_ERR_TIMEOUT : NEB_ERR_IO,
                        "%s: no connection: %s%s", endpoint,
                        strerror(why == EINPROGRESS ? ETIMEDOUT : why),
                        why == ECONNREFUSED
                            ? ": nothing listens there. The hub listens while its nebula agent runs"
                            : "");
    *out = fd;
    return NEB_OK;
}

// ---- who the other end is -----------------------------------------------------------------------

static X509 *find_pinned(STACK_OF(X509) * chain, const uint8_t pin[SEC_PIN_BYTES]) {
    for (int i = 0; i < sk_X509_num(chain); i++) {
        uint8_t got[NEB_SHA256_BYTES], *spki = NULL;
        int n = i2d_PUBKEY(X509_get0_pubkey(sk_X509_value(chain, i)), &spki);
        if (n <= 0)
            continue;
        neb_sha256(spki, (size_t)n, got);
        OPENSSL_free(spki);
        if (sodium_memcmp(got, pin, sizeof got) == 0)
            return sk_X509_value(chain, i);
    }
    return NULL;
}

// Replaces OpenSSL's verification. It trusts only the CA in the chain that has the pin.
static int verify_chain(X509_STORE_CTX *s, void *user) {
    struct sec_enrol_client *c = user;
    uint8_t sign[SEC_KEY_BYTES];
    X509 *leaf = X509_STORE_CTX_get0_cert(s);
    STACK_OF(X509) *chain = X509_STORE_CTX_get0_untrusted(s);
    X509 *ca = find_pinned(chain, c->pin);
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *own = X509_STORE_CTX_new();
    bool ok = leaf && ca && leaf != ca && store && own && X509_STORE_add_cert(store, ca) &&
              X509_STORE_CTX_init(own, store, leaf, NULL) &&
              X509_STORE_CTX_set_purpose(own, X509_PURPOSE_SSL_SERVER) &&
              X509_verify_cert(own) == 1;
    int why = ca ? (own ? X509_STORE_CTX_get_error(own) : X509_V_ERR_OUT_OF_MEM)
                 : X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN;
    X509_STORE_CTX_free(own);
    X509_STORE_free(store);
    ok = ok && sec_cert_keys(leaf, c->hub_curve, sign) == NEB_OK;
    X509_STORE_CTX_set_error(s, ok ? X509_V_OK : why != X509_V_OK ? why : X509_V_ERR_CERT_REJECTED);
    return ok;
}

static enum neb_status handshake_failed(struct sec_enrol_client *c, int r) {
    char reason[SEC_TLS_REASON], now[32] = "?";
    sec_tls_reason(c->ssl, r, reason);
    long v = SSL_get_verify_result(c->ssl);
    time_t t = (time_t)(neb_wall_now() / NEB_S);
    struct tm tm;
    if (gmtime_r(&t, &tm))
        strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (v == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN)
        return neb_fail(
            NEB_ERR_DENIED,
            "%s: this is not the hub of this token (it has another CA): nothing was sent to it",
            c->endpoint);
    if (v == X509_V_ERR_CERT_NOT_YET_VALID || v == X509_V_ERR_CERT_HAS_EXPIRED)
        return neb_fail(NEB_ERR_DENIED,
                        "%s: the hub's %s: by this machine's clock it is %s: check this machine's "
                        "clock and the hub's",
                        c->endpoint, X509_verify_cert_error_string(v), now);
    if (v != X509_V_OK)
        return neb_fail(NEB_ERR_DENIED, "%s: the hub's certificate: %s", c->endpoint,
                        X509_verify_cert_error_string(v));
    ERR_clear_error();
    return neb_fail(NEB_ERR_IO, "%s: TLS handshake: %s", c->endpoint, reason);
}

// NEB_ERR_AGAIN (not logged): the other end closed the connection during the handshake without an
// alert. A hub does so when it has no place or no time for it.
static enum neb_status start_tls(struct sec_enrol_client *c) {
    static const char label[] = "EXPORTER-Channel-Binding";
    c->ctx = SSL_CTX_new(TLS_client_method());
    if (!c->ctx || !SSL_CTX_set_min_proto_version(c->ctx, TLS1_3_VERSION))
        return neb_fail(NEB_ERR_NOMEM, "TLS: %s", sec_openssl_error());
    SSL_CTX_set_verify(c->ctx, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_cert_verify_callback(c->ctx, verify_chain, c);
    SSL_CTX_set_session_cache_mode(c->ctx, SSL_SESS_CACHE_OFF);
    c->ssl = SSL_new(c->ctx);
    if (!c->ssl || !SSL_set_fd(c->ssl, c->fd))
        return neb_fail(NEB_ERR_NOMEM, "TLS: %s", sec_openssl_error());
    ERR_clear_error();
    errno = 0;
    int r = SSL_connect(c->ssl);
    if (r != 1)
        return sec_tls_closed(c->ssl, r) ? NEB_ERR_AGAIN : handshake_failed(c, r);
    if (SSL_export_keying_material(c->ssl, c->exporter, sizeof c->exporter, label, sizeof label - 1,
                                   NULL, 0, 0) != 1)
        return neb_fail(NEB_ERR_IO, "%s: TLS exporter: %s", c->endpoint, sec_openssl_error());
    return NEB_OK;
}

static enum neb_status connect_once(const char *endpoint, const uint8_t pin[SEC_PIN_BYTES],
                                    struct sec_enrol_client **out) {
    struct sec_enrol_client *c = calloc(1, sizeof *c);
    if (!c)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: enrolment");
    c->fd = -1;
    c->endpoint = endpoint;
    memcpy(c->pin, pin, sizeof c->pin);
    enum neb_status st = dial(endpoint, &c->fd);
    if (st == NEB_OK)
        st = start_tls(c);
    if (st != NEB_OK)
        sec_enrol_client_destroy(&c);
    *out = c;
    return st;
}

enum neb_status sec_enrol_connect(const char *endpoint, const uint8_t pin[SEC_PIN_BYTES],
                                  struct sec_enrol_client **out) {
    enum neb_status st;
    NEB_TRY(sec_openssl_init());
    neb_ns wait = SEC_ENROL_RETRY_MS * NEB_MS;
    for (int i = 1; (st = connect_once(endpoint, pin, out)) == NEB_ERR_AGAIN; i++, wait *= 2) {
        if (i == SEC_ENROL_TRIES)
            return neb_fail(
                st,
                "%s closed %d connections before the handshake. A hub does so when too many ask at "
                "once, and its log says so. A server that is not a hub does so too. Try again in a "
                "minute, and check that this is the hub's enrolment address",
                endpoint, i);
        if (i == 1)
            neb_warn("%s closed the connection before the handshake, as a hub does when too many "
                     "ask at once; trying again",
                     endpoint);
        // A random part keeps clients that were refused together from coming back together.
        neb_sleep(wait * 3 / 4 +
                  (neb_ns)randombytes_uniform((uint32_t)(wait / 2 / NEB_US)) * NEB_US);
    }
    return st;
}

void sec_enrol_client_destroy(struct sec_enrol_client **c) {
    if (!c || !*c)
        return;
    if ((*c)->ssl && SSL_is_init_finished((*c)->ssl))
        SSL_shutdown((*c)->ssl);
    SSL_free((*c)->ssl);
    SSL_CTX_free((*c)->ctx);
    if ((*c)->fd >= 0)
        close((*c)->fd);
    ERR_clear_error();
    sodium_memzero(*c, sizeof **c);
    free(*c);
    *c = NULL;
}

const uint8_t *sec_enrol_client_exporter(const struct sec_enrol_client *c) { return c->exporter; }
const uint8_t *sec_enrol_client_hub_curve(const struct sec_enrol_client *c) { return c->hub_curve; }

enum neb_status sec_enrol_client_send(struct sec_enrol_client *c, const void *p, size_t n) {
    size_t done = 0;
    ERR_clear_error();
    char reason[SEC_TLS_REASON];
    int r = SSL_write_ex(c->ssl, p, n, &done);
    if (r == 1 && done == n)
        return NEB_OK;
    sec_tls_reason(c->ssl, r, reason);
    return neb_fail(NEB_ERR_IO, "enrolment: the request did not reach the hub: %s", reason);
}

static enum neb_status recv_exact(struct sec_enrol_client *c, uint8_t *p, size_t n) {
    while (n) {
        size_t got = 0;
        char reason[SEC_TLS_REASON];
        ERR_clear_error();
        errno = 0;
        int r = SSL_read_ex(c->ssl, p, n, &got);
        if (r != 1) {
            sec_tls_reason(c->ssl, r, reason);
            return neb_fail(NEB_ERR_IO, "enrolment: no answer from the hub: %s", reason);
        }
        p += got;
        n -= got;
    }
    return NEB_OK;
}

enum neb_status sec_enrol_client_recv(struct sec_enrol_client *c, struct neb_buf *out) {
    uint8_t raw[4];
    NEB_TRY(recv_exact(c, raw, sizeof raw));
    struct neb_rd r = neb_rd_make(raw, sizeof raw);
    size_t n = neb_rd_u32(&r);
    if (n > SEC_ENROL_ANSWER_MAX)
        return neb_fail(NEB_ERR_LIMIT, "enrolment: the hub's answer is too large");
    neb_buf_clear(out);
    uint8_t *p = neb_buf_grow(out, n);
    return p ? recv_exact(c, p, n) : neb_buf_check(out);
}

// ---- join and renew ----------------------------------------------------------------------------

// Fills in pop and proof, sends the request, and waits for the answer. keys: the identity whose
// CURVE key the CSR names. verifier: for JOIN. signer: for RENEW.
static enum neb_status ask(struct sec_enrol_client *c, struct sec_enrol_request *q,
                           const struct sec_identity *keys, const uint8_t *verifier,
                           const struct sec_identity *signer, struct neb_buf *answer) {
    enum neb_status st;
    struct neb_buf body = {0}, proven = {0}, out = {0};
    NEB_TRY_GOTO(sec_enrol_body(q, &body), out);
    NEB_TRY_GOTO(sec_enrol_pop(sec_identity_curve_secret(keys), c->hub_curve, c->exporter, body.p,
                               body.len, q->pop),
                 out);
    NEB_TRY_GOTO(sec_enrol_proven(c->exporter, body.p, body.len, q->pop, &proven), out);
    if (verifier)
        sec_enrol_hmac(verifier, &proven, q->proof);
    else
        NEB_TRY_GOTO(sec_sign(signer, SEC_CONTEXT_ENROL, proven.p, proven.len, q->proof), out);
    neb_buf_u32(&out, (uint32_t)(body.len + SEC_POP_BYTES + SEC_PROOF_BYTES));
    neb_buf_add(&out, body.p, body.len);
    neb_buf_add(&out, q->pop, sizeof q->pop);
    neb_buf_add(&out, q->proof, sizeof q->proof);
    NEB_TRY_GOTO(neb_buf_check(&out), out);
    NEB_TRY_GOTO(sec_enrol_client_send(c, out.p, out.len), out);
    st = sec_enrol_client_recv(c, answer);
out:
    neb_buf_free(&body);
    neb_buf_free(&proven);
    neb_buf_free(&out);
    return st;
}

// The answer must hold the CA of the pin, and a certificate for exactly this name and these keys.
static enum neb_status check_answer(const struct sec_enrol_answer *a,
                                    const uint8_t pin[SEC_PIN_BYTES], const struct sec_public *me) {
    uint8_t key[SEC_KEY_BYTES], got[SEC_PIN_BYTES];
    struct sec_cert cert;
    NEB_TRY(sec_ca_cert_parse(a->ca, a->ca_len, key, got, NULL));
    if (memcmp(got, pin, sizeof got) != 0)
        return neb_fail(NEB_ERR_DENIED, "enrolment: the hub answered with another CA");
    NEB_TRY(sec_cert_verify(a->cert, a->cert_len, a->ca, a->ca_len, neb_wall_now() / NEB_S, &cert));
    if (strcmp(cert.pub.name, me->name) != 0 ||
        memcmp(cert.pub.curve, me->curve, SEC_KEY_BYTES) != 0 ||
        memcmp(cert.pub.sign, me->sign, SEC_KEY_BYTES) != 0)
        return neb_fail(NEB_ERR_DENIED,
                        "enrolment: the hub's certificate is for another name or other keys");
    return NEB_OK;
}

static enum neb_status store(const char *home, const char *hub, const struct sec_enrol_answer *a) {
    struct sec_federation *f = NULL;
    NEB_TRY(sec_federation_create(home, a->ca, a->ca_len, &f));
    enum neb_status st = sec_federation_set_cert(f, a->cert, a->cert_len);
    if (st == NEB_OK)
        st = sec_federation_apply(f, a->list, a->list_len, NULL);
    if (st == NEB_OK)
        st = sec_federation_set_hub(f, hub);
    sec_federation_destroy(&f);
    return st;
}

static enum neb_status refused(const struct sec_enrol_answer *a, const char *name, bool joins) {
    switch (a->code) {
    case SEC_ENROL_LATER:
        return neb_fail(NEB_ERR_AGAIN,
                        "the hub gives a member new keys at most once an hour, and '%s' has just "
                        "had new keys: try again in %u min",
                        name, (a->seconds + 59) / 60);
    case SEC_ENROL_EXPIRED:
        return neb_fail(NEB_ERR_DENIED,
                        "this invitation for '%s' expired %u min ago by the hub's clock: ask for "
                        "another (nebula invite %s on the hub)",
                        name, (a->seconds + 59) / 60, name);
    case SEC_ENROL_USED:
        return neb_fail(NEB_ERR_DENIED,
                        "this invitation for '%s' was used before, with other keys than those of "
                        "this home: use the home that joined, or ask for another invitation "
                        "(nebula revoke %s and nebula invite %s on the hub)",
                        name, name, name);
    case SEC_ENROL_WITHDRAWN:
        return neb_fail(
            NEB_ERR_DENIED,
            "this invitation for '%s' was withdrawn on the hub (nebula revoke): ask for another",
            name);
    case SEC_ENROL_FORMER:
        return neb_fail(NEB_ERR_DENIED,
                        "the keys of '%s' were removed from the member list before, and the hub "
                        "does not accept them again: use nebula join --new-keys",
                        name);
    case SEC_ENROL_TAKEN:
        return neb_fail(NEB_ERR_DENIED,
                        "the name '%s', or a key of this home, already belongs to a member: see "
                        "nebula members on the hub",
                        name);
    default: break;
    }
    if (joins)
        return neb_fail(NEB_ERR_DENIED,
                        "the hub refused '%s'. Either it has no invitation for this token (the "
                        "token is for another hub, is too old, or its invitation ended long ago), "
                        "or the request was not correct. The log of the hub's agent says which",
                        name);
    return neb_fail(NEB_ERR_DENIED,
                    "the hub refused '%s'. The log of its agent says why. A site that was revoked "
                    "comes back with nebula join --new-keys",
                    name);
}

static enum neb_status take_answer(const char *home, const char *hub, const struct neb_buf *b,
                                   const uint8_t pin[SEC_PIN_BYTES], const struct sec_public *me,
                                   bool joins) {
    struct sec_enrol_answer a;
    NEB_TRY(sec_enrol_answer_parse(b->p, b->len, &a));
    if (a.code != SEC_ENROL_OK)
        return refused(&a, me->name, joins);
    NEB_TRY(check_answer(&a, pin, me));
    return store(home, hub, &a);
}

static enum neb_status own_identity(const char *home, const char *name, struct sec_identity **out) {
    NEB_TRY(sec_identity_first(home, name, out, NULL));
    const char *have = sec_identity_public(*out)->name;
    if (!strcmp(have, name))
        return NEB_OK;
    enum neb_status st =
        neb_fail(NEB_ERR_EXISTS, "%s holds the identity '%s', but the token is for '%s': %s", home,
                 have, name, "use another folder (--home), or ask for a token for that name");
    sec_identity_destroy(out);
    return st;
}

enum neb_status sec_enrol_join(const char *home, const struct sec_token *t, const char *endpoint) {
    enum neb_status st;
    struct sec_identity *id = NULL;
    struct sec_enrol_client *c = NULL;
    struct neb_buf csr = {0}, answer = {0};
    uint8_t verifier[SEC_VERIFIER_BYTES];
    struct sec_enrol_request q = {.kind = SEC_ENROL_JOIN};
    NEB_TRY(own_identity(home, t->name, &id));
    NEB_TRY_GOTO(sec_csr_make(id, NULL, &csr), out);
    NEB_TRY_GOTO(sec_enrol_connect(t->endpoint, t->pin, &c), out);
    memcpy(q.id, t->id, sizeof q.id);
    snprintf(q.name, sizeof q.name, "%s", t->name);
    snprintf(q.endpoint, sizeof q.endpoint, "%s", endpoint);
    q.csr = csr.p, q.csr_len = csr.len;
    sec_invite_verifier(t, verifier);
    NEB_TRY_GOTO(ask(c, &q, id, verifier, NULL, &answer), out);
    st = take_answer(home, t->endpoint, &answer, t->pin, sec_identity_public(id), true);
out:
    sodium_memzero(verifier, sizeof verifier);
    sec_enrol_client_destroy(&c);
    sec_identity_destroy(&id);
    neb_buf_free(&csr);
    neb_buf_free(&answer);
    return st;
}

// keys: the identity that the certificate is for. signer: an identity of the same name on the list.
static enum neb_status renew(const char *home, const char *hub, const struct sec_identity *keys,
                             const struct sec_identity *signer) {
    enum neb_status st;
    struct sec_federation *f = NULL;
    struct sec_enrol_client *c = NULL;
    struct neb_buf csr = {0}, answer = {0};
    struct sec_enrol_request q = {.kind = SEC_ENROL_RENEW};
    NEB_TRY(sec_federation_open(home, &f));
    NEB_TRY_GOTO(sec_csr_make(keys, NULL, &csr), out);
    NEB_TRY_GOTO(sec_enrol_connect(hub, f->pin, &c), out);
    snprintf(q.name, sizeof q.name, "%s", sec_identity_public(signer)->name);
    q.csr = csr.p, q.csr_len = csr.len;
    NEB_TRY_GOTO(ask(c, &q, keys, NULL, signer, &answer), out);
    st = take_answer(home, hub, &answer, f->pin, sec_identity_public(keys), false);
out:
    sec_enrol_client_destroy(&c);
    sec_federation_destroy(&f);
    neb_buf_free(&csr);
    neb_buf_free(&answer);
    return st;
}

enum neb_status sec_enrol_renew(const char *home, const char *hub,
                                const struct sec_identity *next) {
    struct sec_identity *id = NULL;
    NEB_TRY(sec_identity_need(home, &id));
    enum neb_status st = renew(home, hub, next ? next : id, id);
    sec_identity_destroy(&id);
    return st;
}

enum neb_status sec_enrol_renew_by(const char *home, const char *hub,
                                   const struct sec_identity *listed) {
    return renew(home, hub, listed, listed);
}
