// SPDX-License-Identifier: Apache-2.0
// Enrolment under attack: used tokens, keys of others, old protocols, floods. It covers the
// refusals in the table of security/README.md.
#include "security/source.h"
#include "tests/security/enrol_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { IDLE = 200, ROUNDS = 5 };

// ---- tokens -----------------------------------------------------------------------------------

static void test_reused_and_expired(void **state) {
    (void)state;
    struct sec_token t = invite("oslo", 3600), late = invite("late", 1);
    struct sec_identity *one = new_identity("oslo"), *two = NULL;
    assert_int_equal(sec_identity_create(home("id-oslo2"), "oslo", &two), NEB_OK);
    assert_int_equal(try_join(&t, one, &(struct lie){0}), NEB_OK);
    uint64_t version = (is_member("oslo"), hub->fed->list.members.version);
    assert_int_equal(try_join(&t, two, &(struct lie){0}), NEB_ERR_DENIED);
    assert_true(is_member("oslo") && hub->fed->list.members.version == version);
    sleep(3);
    struct sec_identity *id = new_identity("late");
    assert_int_equal(try_join(&late, id, &(struct lie){0}), NEB_ERR_DENIED);
    assert_false(is_member("late"));
    sec_identity_destroy(&one);
    sec_identity_destroy(&two);
    sec_identity_destroy(&id);
}

static void test_wrong_secret_name_pin(void **state) {
    (void)state;
    struct sec_token t = invite("bern", 3600), bad = t;
    struct sec_identity *id = new_identity("bern"), *other = new_identity("mallory");
    bad.secret[31] ^= 1;
    assert_int_equal(try_join(&bad, id, &(struct lie){0}), NEB_ERR_DENIED);
    bad = t, bad.id[0] ^= 1;
    assert_int_equal(try_join(&bad, id, &(struct lie){0}), NEB_ERR_DENIED);
    assert_int_equal(try_join(&t, other, &(struct lie){.name = "mallory"}), NEB_ERR_DENIED);
    // If the pin differs, the client itself stops, and never sends the proof.
    bad = t, bad.pin[5] ^= 1;
    struct sec_enrol_client *c = NULL;
    assert_int_equal(sec_enrol_connect(bad.endpoint, bad.pin, &c), NEB_ERR_DENIED);
    assert_null(c);
    assert_false(is_member("bern") || is_member("mallory"));
    assert_int_equal(try_join(&t, id, &(struct lie){0}), NEB_OK); // nothing above used it up
    sec_identity_destroy(&id);
    sec_identity_destroy(&other);
}

// A proof is bound to one connection, so relaying it to another one is useless.
static void test_no_exporter(void **state) {
    (void)state;
    struct sec_token t = invite("kiel", 3600);
    struct sec_identity *id = new_identity("kiel");
    uint8_t zero[SEC_EXPORTER_BYTES] = {0}, earlier[SEC_EXPORTER_BYTES];
    struct sec_enrol_client *c = NULL;
    assert_int_equal(try_join(&t, id, &(struct lie){.exporter = zero}), NEB_ERR_DENIED);
    assert_int_equal(sec_enrol_connect(t.endpoint, t.pin, &c), NEB_OK);
    memcpy(earlier, sec_enrol_client_exporter(c), sizeof earlier);
    sec_enrol_client_destroy(&c);
    assert_int_equal(try_join(&t, id, &(struct lie){.exporter = earlier}), NEB_ERR_DENIED);
    assert_false(is_member("kiel"));
    assert_int_equal(try_join(&t, id, &(struct lie){0}), NEB_OK);
    sec_identity_destroy(&id);
}

// ---- requests with someone else's keys ----------------------------------------------------------

// own's request with one of its keys replaced. resign: signed again with own's key.
static void stolen(const struct sec_identity *own, const uint8_t *from, const uint8_t *to,
                   bool resign, struct neb_buf *csr) {
    uint8_t *at, *der = NULL;
    assert_int_equal(sec_csr_make(own, NULL, csr), NEB_OK);
    while ((at = memmem(csr->p, csr->len, from, SEC_KEY_BYTES)))
        memcpy(at, to, SEC_KEY_BYTES);
    if (!resign)
        return;
    EVP_PKEY *key = NULL;
    const uint8_t *p = csr->p;
    assert_int_equal(sec_ed25519_key(sec_identity_sign_secret(own), &key), NEB_OK);
    X509_REQ *q = d2i_X509_REQ(NULL, &p, (long)csr->len);
    assert_non_null(q);
    assert_true(X509_REQ_sign(q, key, NULL) > 0);
    int n = i2d_X509_REQ(q, &der);
    assert_true(n > 0);
    neb_buf_clear(csr);
    neb_buf_add(csr, der, (size_t)n);
    OPENSSL_free(der);
    X509_REQ_free(q);
    EVP_PKEY_free(key);
}

static void test_keys_of_others(void **state) {
    (void)state;
    struct sec_token t = invite("eve", 3600);
    struct sec_identity *eve = new_identity("eve"), *victim = new_identity("victim");
    const struct sec_public *own = sec_identity_public(eve), *theirs = sec_identity_public(victim);
    struct neb_buf csr = {0};
    stolen(eve, own->sign, theirs->sign, false, &csr);
    assert_int_equal(try_join(&t, eve, &(struct lie){.csr = &csr}), NEB_ERR_DENIED);
    stolen(eve, own->curve, theirs->curve, false, &csr); // breaks the signature
    assert_int_equal(try_join(&t, eve, &(struct lie){.csr = &csr}), NEB_ERR_DENIED);
    // the request is signed correctly, but the key is not eve's
    stolen(eve, own->curve, theirs->curve, true, &csr);
    struct sec_public p;
    assert_int_equal(sec_csr_parse(csr.p, csr.len, &p), NEB_OK);
    assert_memory_equal(p.curve, theirs->curve, SEC_KEY_BYTES);
    assert_int_equal(try_join(&t, eve, &(struct lie){.csr = &csr}), NEB_ERR_DENIED);
    assert_true(was_logged("does not hold the CURVE key") || was_logged("refused"));
    assert_false(is_member("eve"));
    // A member's own keys under a second name.
    struct sec_token again = invite("shade", 3600);
    struct sec_identity *member = NULL;
    assert_int_equal(sec_identity_load(home("paris"), &member), NEB_OK);
    assert_int_equal(try_join(&again, member, &(struct lie){.name = "shade"}), NEB_ERR_DENIED);
    assert_false(is_member("shade"));
    assert_int_equal(try_join(&t, eve, &(struct lie){0}), NEB_OK);
    neb_buf_free(&csr);
    sec_identity_destroy(&eve);
    sec_identity_destroy(&victim);
    sec_identity_destroy(&member);
}

// ---- strangers --------------------------------------------------------------------------------

static uint64_t source_of(const char *text) {
    struct sockaddr_storage a = {0};
    struct sockaddr_in *four = (struct sockaddr_in *)&a;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&a;
    a.ss_family = strchr(text, ':') ? AF_INET6 : AF_INET;
    void *to = a.ss_family == AF_INET ? (void *)&four->sin_addr : (void *)&six->sin6_addr;
    assert_int_equal(inet_pton(a.ss_family, text, to), 1);
    return sec_source_of(&a);
}

// One host is one source, whatever addresses of its network it uses. Two IPv4 hosts are two
// sources.
static void test_sources(void **state) {
    (void)state;
    uint64_t v6 = source_of("2001:db8:1:2::1"), v4 = source_of("192.0.2.7");
    assert_true(v6 == source_of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
    assert_true(v6 != source_of("2001:db8:1:3::1"));
    assert_true(v6 != source_of("2001:db9:1:2::1"));
    assert_true(v4 == source_of("::ffff:192.0.2.7") && v4 == source_of("64:ff9b::192.0.2.7"));
    assert_true(v4 != source_of("192.0.2.8") && v4 != source_of("::ffff:192.0.2.8"));
    assert_true(source_of("64:ff9b::192.0.2.8") != v4);
    assert_true(source_of("64:ff9b:1::1") == source_of("64:ff9b:1::2")); // an ordinary network
    assert_true(source_of("::1") != source_of("127.0.0.1"));
    assert_true(sec_source_of(&(struct sockaddr_storage){.ss_family = AF_UNIX}) == 0);
}

// ---- strangers at the socket --------------------------------------------------------------------

// from: a loopback address, which is a source of its own. Honest clients use 127.0.0.1.
static int raw_connect(const char *from) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)sec_enrol_server_port(server))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && inet_pton(AF_INET, from, &own.sin_addr) == 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static bool tls_works(const char *from, int max_version, int version) {
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_verify(ctx, SSL_VERIFY_NONE, NULL);
    assert_true(SSL_CTX_set_max_proto_version(ctx, max_version));
    SSL *ssl = SSL_new(ctx);
    int fd = raw_connect(from);
    assert_true(SSL_set_fd(ssl, fd));
    bool ok = SSL_connect(ssl) == 1 && SSL_version(ssl) == version;
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    return ok;
}

static void test_tls_1_2(void **state) {
    (void)state;
    assert_true(tls_works("127.0.0.9", TLS1_3_VERSION, TLS1_3_VERSION));
    assert_false(was_logged("TLS 1.3"));
    assert_false(tls_works("127.0.0.9", TLS1_2_VERSION, TLS1_2_VERSION));
    for (int i = 0; i < 1000 && !was_logged("the other end offers no TLS 1.3"); i++)
        neb_sleep(20 * NEB_MS);
    assert_true(was_logged("TLS handshake: the other end offers no TLS 1.3"));
    // The log also recognises a client that does not speak TLS.
    int fd = raw_connect("127.0.0.9");
    assert_true(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) > 0);
    for (int i = 0; i < 1000 && !was_logged("does not speak TLS"); i++)
        neb_sleep(20 * NEB_MS);
    assert_true(was_logged("TLS handshake: the other end does not speak TLS"));
    close(fd);
}

static void test_oversized(void **state) {
    (void)state;
    static uint8_t big[4 + SEC_ENROL_REQUEST_MAX + 1];
    struct sec_enrol_client *c = NULL;
    struct neb_buf in = {0};
    assert_int_equal(sec_enrol_connect(endpoint, hub->fed->pin, &c), NEB_OK);
    neb_put_u32(big, SEC_ENROL_REQUEST_MAX + 1);
    // the claimed length alone ends the connection
    assert_int_equal(sec_enrol_client_send(c, big, 4), NEB_OK);
    assert_int_equal(sec_enrol_client_recv(c, &in), NEB_ERR_IO);
    sec_enrol_client_destroy(&c);
    // The largest allowed request, filled with nonsense, gets only a code.
    assert_int_equal(sec_enrol_connect(endpoint, hub->fed->pin, &c), NEB_OK);
    neb_put_u32(big, SEC_ENROL_REQUEST_MAX);
    assert_int_equal(sec_enrol_client_send(c, big, 4 + SEC_ENROL_REQUEST_MAX), NEB_OK);
    assert_int_equal(sec_enrol_client_recv(c, &in), NEB_OK);
    assert_true(in.len == 1 && in.p[0] == SEC_ENROL_REFUSED);
    sec_enrol_client_destroy(&c);
    neb_buf_free(&in);
}

static int by_value(const void *a, const void *b) {
    neb_ns x = *(const neb_ns *)a, y = *(const neb_ns *)b;
    return (x > y) - (x < y);
}

// Median time of an exchange with the hub: a renewal, which can be repeated and needs one fsync
// less than a join.
static neb_ns exchange_time(void) {
    neb_ns t[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        t[i] = neb_now();
        assert_int_equal(sec_enrol_renew(home("paris"), endpoint, NULL), NEB_OK);
        t[i] = neb_now() - t[i];
    }
    qsort(t, ROUNDS, sizeof t[0], by_value);
    return t[ROUNDS / 2];
}

static bool ended(int fd) {
    char skip[64];
    ssize_t n = recv(fd, skip, sizeof skip, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

static int still_open(const int *fds) {
    int n = 0;
    for (int i = 0; i < IDLE; i++)
        n += !ended(fds[i]);
    return n;
}

static void test_slow_loris(void **state) {
    (void)state;
    static const uint8_t hello[] = {22, 3, 1, 2, 0, 1, 0}; // the beginning of a ClientHello
    int fds[IDLE];
    neb_ns alone = exchange_time();
    for (int i = 0; i < IDLE; i++) {
        fds[i] = raw_connect("127.0.0.2");
        if (i % 2)
            assert_true(send(fds[i], hello, sizeof hello, MSG_NOSIGNAL) > 0);
    }
    neb_ns crowded = exchange_time();
    struct sec_token t = invite("calm", 3600);
    assert_int_equal(sec_enrol_join(home("calm"), &t, ""), NEB_OK);
    int open_ones = still_open(fds);
    // The machine may be busy, so take the best of a few samples while idle connections are open.
    for (int look = 0; look < 4 && crowded >= 2 * alone + 5 * NEB_MS; look++) {
        neb_ns again = exchange_time();
        if (!still_open(fds))
            break;
        crowded = again < crowded ? again : crowded;
    }
    print_message("exchange: %.1f ms alone, %.1f ms beside %d idle connections (%d held)\n",
                  neb_seconds(alone) * 1e3, neb_seconds(crowded) * 1e3, IDLE, open_ones);
    assert_true(open_ones > 0 && open_ones <= SEC_ENROL_CONNECTIONS);
    assert_true(crowded < 2 * alone + 5 * NEB_MS);
    neb_ns end = neb_now() + (SEC_ENROL_HANDSHAKE_MS + 30000) * NEB_MS;
    for (int i = 0; i < IDLE && neb_now() < end;)
        ended(fds[i]) ? (void)i++ : neb_sleep(20 * NEB_MS);
    for (int i = 0; i < IDLE; i++) {
        assert_true(ended(fds[i]));
        close(fds[i]);
    }
}

// Tests the limits without a socket. Each source has its share, all sources together have a share
// of a core, and refusals are not charged.
static void test_rate(void **state) {
    (void)state;
    static struct sec_enrol_rate r;
    neb_ns now = 1000 * NEB_S, spent = 0, cost = 300 * NEB_US;
    int n = 0;
    sec_enrol_rate_init(&r);
    for (int i = 0; i < 1000; i++)
        n += sec_enrol_rate_take(&r, 7, now);
    assert_int_equal(n, SEC_RATE_BURST);
    assert_true(sec_enrol_rate_take(&r, 8, now)); // another source
    for (int ms = 0; ms < 10000; ms++)
        n += sec_enrol_rate_take(&r, 7, now + ms * NEB_MS);
    assert_int_equal(n, SEC_RATE_BURST + 10 * SEC_RATE_SECOND - 1);
    // Ten per millisecond, each from a new address: without limits this would cost three cores.
    now += 100 * NEB_S;
    for (int i = 0; i < 100000; i++, now += NEB_MS / 10)
        if (sec_enrol_rate_take(&r, 1000 + (uint64_t)i, now)) {
            sec_enrol_rate_spent(&r, cost, now);
            spent += cost;
        }
    assert_true(spent <= 10 * NEB_S * SEC_RATE_PERCENT / 100 + SEC_RATE_SAVED_MS * NEB_MS + cost);
    assert_true(spent >= 10 * NEB_S * SEC_RATE_PERCENT / 100);
    assert_true(sec_enrol_rate_take(&r, 7, now + NEB_S)); // the flood is over
}

static neb_ns hub_time(void) { // processor time
    clockid_t id;
    struct timespec t;
    assert_int_equal(pthread_getcpuclockid(thread, &id), 0);
    assert_int_equal(clock_gettime(id, &t), 0);
    return t.tv_sec * NEB_S + t.tv_nsec;
}

// Endless handshakes from one address. It gets its share, the rest costs little, and others can
// join.
static void test_handshake_flood(void **state) {
    (void)state;
    neb_ns start = neb_now(), t0 = hub_time();
    int got = 0, closed = 0;
    while (got < 300 && tls_works("127.0.0.4", TLS1_3_VERSION, TLS1_3_VERSION))
        got++;
    assert_true(got > SEC_RATE_BURST / 4 && got < 300);
    neb_ns each = (hub_time() - t0) / got;
    struct sec_token t = invite("amid", 3600);
    assert_int_equal(sec_enrol_join(home("amid"), &t, ""), NEB_OK);
    assert_false(was_logged("trying again"));
    t0 = hub_time();
    for (; closed < 200; closed++)
        got += tls_works("127.0.0.4", TLS1_3_VERSION, TLS1_3_VERSION);
    neb_ns refused = (hub_time() - t0) / closed;
    print_message("a handshake costs the hub %.0f us, one that is refused %.0f us\n",
                  neb_seconds(each) * 1e6, neb_seconds(refused) * 1e6);
    assert_true(got <= SEC_RATE_BURST + SEC_RATE_SECOND * neb_seconds(neb_now() - start) + 1);
    assert_true(2 * refused < each);
    assert_true(was_logged("too many handshakes"));
    // A ClientHello that arrives byte by byte.
    static const uint8_t hello[5] = {22, 3, 1, 2, 0};
    int fd = raw_connect("127.0.0.5"), sent = 0;
    for (bool cut = false; !cut && sent < 500; sent++) {
        cut = send(fd, sent < 5 ? hello + sent : &(uint8_t){sent == 5}, 1, MSG_NOSIGNAL) < 0;
        poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 2);
        cut = cut || ended(fd);
    }
    close(fd);
    assert_true(sent > SEC_ENROL_PIECES && sent < 500);
}

// A client at the address of a flood is refused, says so, and tries again. If it came late, the
// address had its share again.
static void test_turned_away(void **state) {
    (void)state;
    for (int i = 0; i < 20 && !was_logged("trying again"); i++) {
        int n = 0;
        while (n < 300 && tls_works("127.0.0.1", TLS1_3_VERSION, TLS1_3_VERSION))
            n++;
        assert_true(n < 300);
        assert_int_equal(sec_enrol_renew(home("paris"), endpoint, NULL), NEB_OK);
    }
    assert_true(was_logged("trying again"));
}

static int with_a_member(void **state) {
    if (setup(state))
        return -1;
    struct sec_token t = invite("paris", 3600);
    return sec_enrol_join(home("paris"), &t, "paris.example:7400") == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reused_and_expired),
        cmocka_unit_test(test_wrong_secret_name_pin),
        cmocka_unit_test(test_no_exporter),
        cmocka_unit_test(test_keys_of_others),
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_tls_1_2),
        cmocka_unit_test(test_oversized),
        cmocka_unit_test(test_slow_loris),
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_handshake_flood),
        cmocka_unit_test(test_turned_away), // last: its address has no handshakes left
    };
    return cmocka_run_group_tests(tests, with_a_member, teardown);
}
