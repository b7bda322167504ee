// Enrolment, as an honest site and as those who are not: each refusal of security/README.md's table.
#include "agent/base/clock.h"
#include "agent/base/fault.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "security/enrol.h"
#include "security/enrol_rate.h"
#include "security/invite.h"
#include "security/rotate.h"
#include "security/source.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { IDLE = 200, ROUNDS = 5 };

static char dir[] = "/tmp/nebula-enrol-XXXXXX";
static char hub_home[NEB_PATH_MAX], endpoint[SEC_ENDPOINT_MAX], code[SEC_CODE_TEXT];
static struct sec_hub *hub; // the operator's; the server has its own
static struct sec_enrol_server *server;
static struct sec_identity *hub_id;
static pthread_t thread;
static atomic_bool stop;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static struct neb_buf logged; // all lines of all threads

// ---- the time of day ---------------------------------------------------------------------------
// Ours in place of libc's, for all of this process and its libraries: a test sets the clock.

static _Atomic int64_t clock_set_s;

int clock_gettime(clockid_t id, struct timespec *t) {
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && id == CLOCK_REALTIME)
        t->tv_sec += atomic_load(&clock_set_s);
    return rc;
}

time_t time(time_t *out) {
    struct timespec t = {0};
    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}

// ---- the hub ----------------------------------------------------------------------------------

static void collect(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    pthread_mutex_lock(&log_lock);
    neb_buf_add(&logged, text, strlen(text));
    neb_buf_add(&logged, "\n", 1);
    pthread_mutex_unlock(&log_lock);
}

static bool was_logged(const char *text) {
    pthread_mutex_lock(&log_lock);
    bool hit = logged.len && memmem(logged.p, logged.len, text, strlen(text));
    pthread_mutex_unlock(&log_lock);
    return hit;
}

static void *serve(void *arg) {
    struct pollfd p = {.fd = sec_enrol_server_fd(server), .events = POLLIN};
    (void)arg;
    while (!atomic_load(&stop)) {
        poll(&p, 1, 20);
        if (sec_enrol_server_step(server) != NEB_OK)
            abort();
    }
    return NULL;
}

static const char *home(const char *name) {
    static char path[4][NEB_PATH_MAX];
    static unsigned k;
    char *p = path[k++ % 4];
    assert_int_equal(neb_path(p, NEB_PATH_MAX, dir, name), NEB_OK);
    return p;
}

static struct sec_token invite(const char *name, int64_t ttl_s) {
    struct sec_token t;
    assert_int_equal(sec_hub_invite(hub, name, SEC_ROLE_DATA, ttl_s, &t), NEB_OK);
    snprintf(t.endpoint, sizeof t.endpoint, "%s", endpoint);
    return t;
}

static enum neb_status revoke_now(const char *name) {
    bool member;
    return sec_hub_revoke(hub, name, &member);
}

static bool is_member(const char *name) {
    assert_int_equal(sec_federation_reload(hub->fed, NULL), NEB_OK);
    return sec_memberlist_find(&hub->fed->list, name) >= 0;
}

// ---- a client that can be made to lie -----------------------------------------------------------

struct lie {
    const char *name;        // in the request; NULL: the token's
    const uint8_t *exporter; // of the proof; NULL: the connection's own
    const struct neb_buf *csr;
};

// What the hub says to a join by these keys; NEB_ERR_IO: it ended the connection.
static enum neb_status try_join(const struct sec_token *t, const struct sec_identity *id,
                                const struct lie *lie) {
    enum neb_status st;
    struct sec_enrol_client *c = NULL;
    struct neb_buf csr = {0}, body = {0}, proven = {0}, out = {0}, in = {0};
    struct sec_enrol_request q = {.kind = SEC_ENROL_JOIN};
    struct sec_enrol_answer a;
    uint8_t verifier[SEC_VERIFIER_BYTES];
    const uint8_t *x;
    assert_int_equal(sec_csr_make(id, lie->name, &csr), NEB_OK);
    NEB_TRY_GOTO(sec_enrol_connect(t->endpoint, t->pin, &c), out);
    x = lie->exporter ? lie->exporter : sec_enrol_client_exporter(c);
    memcpy(q.id, t->id, sizeof q.id);
    snprintf(q.name, sizeof q.name, "%s", lie->name ? lie->name : t->name);
    q.csr = lie->csr ? lie->csr->p : csr.p;
    q.csr_len = lie->csr ? lie->csr->len : csr.len;
    assert_int_equal(sec_enrol_body(&q, &body), NEB_OK);
    assert_int_equal(sec_enrol_pop(sec_identity_curve_secret(id), sec_enrol_client_hub_curve(c),
                                   sec_enrol_client_exporter(c), body.p, body.len, q.pop),
                     NEB_OK);
    assert_int_equal(sec_enrol_proven(x, body.p, body.len, q.pop, &proven), NEB_OK);
    sec_invite_verifier(t, verifier);
    sec_enrol_hmac(verifier, &proven, q.proof);
    neb_buf_u32(&out, (uint32_t)(body.len + sizeof q.pop + sizeof q.proof));
    neb_buf_add(&out, body.p, body.len);
    neb_buf_add(&out, q.pop, sizeof q.pop);
    neb_buf_add(&out, q.proof, sizeof q.proof);
    NEB_TRY_GOTO(sec_enrol_client_send(c, out.p, out.len), out);
    NEB_TRY_GOTO(sec_enrol_client_recv(c, &in), out);
    NEB_TRY_GOTO(sec_enrol_answer_parse(in.p, in.len, &a), out);
    st = a.code == SEC_ENROL_OK ? NEB_OK : NEB_ERR_DENIED;
out:
    sec_enrol_client_destroy(&c);
    neb_buf_free(&csr);
    neb_buf_free(&body);
    neb_buf_free(&proven);
    neb_buf_free(&out);
    neb_buf_free(&in);
    return st;
}

static struct sec_identity *new_identity(const char *name) {
    struct sec_identity *id = NULL;
    char folder[64];
    snprintf(folder, sizeof folder, "id-%s", name);
    assert_int_equal(sec_identity_create(home(folder), name, &id), NEB_OK);
    return id;
}

// ---- honest -----------------------------------------------------------------------------------

static void test_join(void **state) {
    (void)state;
    struct sec_token t = invite("paris", 3600), back;
    char text[SEC_TOKEN_TEXT];
    struct sec_federation *f = NULL;
    struct sec_cert cert;
    assert_int_equal(sec_token_format(&t, text), NEB_OK);
    assert_int_equal(sec_token_parse(text, &back), NEB_OK);
    assert_memory_equal(back.secret, t.secret, sizeof t.secret);
    assert_int_equal(sec_enrol_join(home("paris"), &back, "paris.example:7400"), NEB_OK);
    assert_int_equal(sec_federation_open(home("paris"), &f), NEB_OK);
    assert_int_equal(sec_federation_cert(f, &cert), NEB_OK);
    assert_string_equal(cert.pub.name, "paris");
    int i = sec_memberlist_find(&f->list, "paris");
    assert_true(i >= 0);
    assert_string_equal(f->list.e[i].m.endpoint, "paris.example:7400");
    assert_memory_equal(f->list.e[i].m.pub.curve, cert.pub.curve, SEC_KEY_BYTES);
    assert_memory_equal(f->pin, t.pin, sizeof t.pin);
    uint64_t version = f->list.version;
    sec_federation_destroy(&f);
    // the same request again gets the same answer, and changes nothing
    assert_int_equal(sec_enrol_join(home("paris"), &back, "paris.example:7400"), NEB_OK);
    assert_true(is_member("paris"));
    assert_int_equal(hub->fed->list.version, version);
    // nothing of the secret is on the hub or in any log line
    char secret[65], sealed[NEB_PATH_MAX];
    neb_hex(t.secret, sizeof t.secret, secret);
    assert_int_equal(neb_path(sealed, sizeof sealed, hub_home, "ca/invites"), NEB_OK);
    char command[2 * NEB_PATH_MAX];
    snprintf(command, sizeof command, "grep -rqE '%s|%s' '%s'", secret, text + 60, hub_home);
    assert_int_not_equal(system(command), 0);
    assert_false(was_logged(text + 60) || was_logged(secret));
}

static void test_renew_and_rotate(void **state) {
    (void)state;
    struct sec_token t = invite("rome", 3600);
    struct sec_identity *before = NULL, *after = NULL;
    assert_int_equal(sec_enrol_join(home("rome"), &t, ""), NEB_OK);
    assert_int_equal(sec_identity_load(home("rome"), &before), NEB_OK);
    assert_true(is_member("rome"));
    uint64_t version = hub->fed->list.version;
    assert_int_equal(sec_enrol_renew(home("rome"), endpoint, NULL), NEB_OK);
    assert_true(is_member("rome"));
    assert_int_equal(hub->fed->list.version, version); // only a certificate
    assert_int_equal(sec_rotate(home("rome"), endpoint), NEB_OK);
    assert_int_equal(sec_identity_load(home("rome"), &after), NEB_OK);
    assert_memory_not_equal(sec_identity_public(before)->curve, sec_identity_public(after)->curve,
                            SEC_KEY_BYTES);
    assert_true(is_member("rome"));
    int i = sec_memberlist_find(&hub->fed->list, "rome");
    assert_memory_equal(hub->fed->list.e[i].m.pub.sign, sec_identity_public(after)->sign,
                        SEC_KEY_BYTES);
    // others only an hour later: each is a version of the list
    version = hub->fed->list.version;
    assert_int_equal(sec_rotate(home("rome"), endpoint), NEB_ERR_AGAIN);
    assert_int_equal(hub->fed->list.version, version);
    assert_true(is_member("rome"));
    // the new keys may renew, the old ones no more
    assert_int_equal(sec_enrol_renew(home("rome"), endpoint, NULL), NEB_OK);
    assert_int_equal(neb_fs_remove_tree(home("rome/keys")), NEB_OK);
    assert_int_equal(rename(home("rome/keys.old"), home("rome/keys")), 0);
    char line[SEC_ID_TEXT];
    assert_int_equal(sec_public_format(sec_identity_public(before), line, sizeof line), NEB_OK);
    assert_int_equal(neb_fs_write(home("rome/identity"), line, strlen(line), 0644), NEB_OK);
    assert_int_equal(sec_enrol_renew(home("rome"), endpoint, NULL), NEB_ERR_DENIED);
    sec_identity_destroy(&before);
    sec_identity_destroy(&after);
}

static void rotated_to(const char *name, const struct sec_identity *next) {
    struct sec_identity *now = NULL;
    assert_int_equal(sec_identity_load(home(name), &now), NEB_OK);
    assert_memory_equal(sec_identity_public(now), sec_identity_public(next),
                        sizeof(struct sec_public));
    assert_true(is_member(name));
    int i = sec_memberlist_find(&hub->fed->list, name);
    assert_memory_equal(hub->fed->list.e[i].m.pub.sign, sec_identity_public(next)->sign,
                        SEC_KEY_BYTES);
    sec_identity_destroy(&now);
}

// The hub lists the new keys, and its answer never comes: the same command again has them.
static void test_rotation_answer_lost(void **state) {
    (void)state;
    struct sec_token t = invite("lima", 3600);
    struct sec_identity *next = NULL;
    struct neb_buf csr = {0}, cert = {0};
    uint32_t wait;
    assert_int_equal(sec_enrol_join(home("lima"), &t, ""), NEB_OK);
    assert_int_equal(sec_identity_create(home("lima/rotate"), "lima", &next), NEB_OK);
    assert_int_equal(sec_csr_make(next, NULL, &csr), NEB_OK);
    assert_int_equal(sec_hub_renew(hub, "lima", csr.p, csr.len, &cert, &wait), NEB_OK);
    assert_true(is_member("lima"));
    uint64_t version = hub->fed->list.version;
    assert_int_equal(sec_rotate(home("lima"), endpoint), NEB_OK);
    rotated_to("lima", next);
    assert_int_equal(hub->fed->list.version, version); // a renewal
    assert_false(neb_fs_exists(home("lima/rotate")));
    // keys that are not listed get nothing so: who was revoked stays so
    sec_identity_destroy(&next);
    assert_int_equal(sec_identity_create(home("lima/rotate"), "lima", &next), NEB_OK);
    assert_int_equal(revoke_now("lima"), NEB_OK);
    assert_int_equal(sec_rotate(home("lima"), endpoint), NEB_ERR_DENIED);
    assert_false(is_member("lima"));
    neb_buf_free(&csr);
    neb_buf_free(&cert);
    sec_identity_destroy(&next);
}

// A power cut behind each of the three renames: the same command again does the others, and asks nobody.
static void test_rotation_cut_short(void **state) {
    (void)state;
    struct sec_identity *next = NULL, *id = NULL;
    for (int renames = 1; renames <= 2; renames++) {
        assert_int_equal(neb_fs_remove_tree(home("cut")), NEB_OK);
        id = NULL;
        assert_int_equal(sec_identity_create(home("cut"), "cut", &id), NEB_OK);
        sec_identity_destroy(&id);
        assert_int_equal(sec_identity_create(home("cut/rotate"), "cut", &next), NEB_OK);
        assert_int_equal(rename(home("cut/keys"), home("cut/keys.old")), 0);
        if (renames == 2)
            assert_int_equal(rename(home("cut/rotate/keys"), home("cut/keys")), 0);
        assert_int_equal(sec_identity_load(home("cut"), &id), NEB_ERR_CORRUPT);
        assert_true(was_logged("nebula rotate was interrupted: run it again"));
        assert_int_equal(sec_rotate(home("cut"), "nowhere.invalid:1"), NEB_OK);
        assert_int_equal(sec_identity_load(home("cut"), &id), NEB_OK);
        assert_memory_equal(sec_identity_public(id), sec_identity_public(next),
                            sizeof(struct sec_public));
        assert_true(neb_fs_exists(home("cut/keys.old")) && !neb_fs_exists(home("cut/rotate")));
        sec_identity_destroy(&id);
        sec_identity_destroy(&next);
    }
}

// The hub's clock is set: the certificate that it shows is of the new time at once.
static void test_clock_set(void **state) {
    (void)state;
    struct sec_token t = invite("bonn", 3600);
    assert_int_equal(sec_enrol_join(home("bonn"), &t, ""), NEB_OK);
    for (int days = 10; days >= 0; days -= 10) { // longer than a server's certificate, and back
        atomic_store(&clock_set_s, days * 24 * 3600);
        assert_int_equal(sec_enrol_renew(home("bonn"), endpoint, NULL), NEB_OK);
    }
}

// ---- tokens -----------------------------------------------------------------------------------

static void test_reused_and_expired(void **state) {
    (void)state;
    struct sec_token t = invite("oslo", 3600), late = invite("late", 1);
    struct sec_identity *one = new_identity("oslo"), *two = NULL;
    assert_int_equal(sec_identity_create(home("id-oslo2"), "oslo", &two), NEB_OK);
    assert_int_equal(try_join(&t, one, &(struct lie){0}), NEB_OK);
    uint64_t version = (is_member("oslo"), hub->fed->list.version);
    assert_int_equal(try_join(&t, two, &(struct lie){0}), NEB_ERR_DENIED);
    assert_true(is_member("oslo") && hub->fed->list.version == version);
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
    // with another pin the client itself ends it: the proof is never sent
    bad = t, bad.pin[5] ^= 1;
    struct sec_enrol_client *c = NULL;
    assert_int_equal(sec_enrol_connect(bad.endpoint, bad.pin, &c), NEB_ERR_DENIED);
    assert_null(c);
    assert_false(is_member("bern") || is_member("mallory"));
    assert_int_equal(try_join(&t, id, &(struct lie){0}), NEB_OK); // none of that used it up
    sec_identity_destroy(&id);
    sec_identity_destroy(&other);
}

// A proof belongs to one connection: whoever relays it to another one has nothing.
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

// own's request with one key of it replaced; again signed by own's key if `resign`.
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
    stolen(eve, own->curve, theirs->curve, false, &csr); // signature broken
    assert_int_equal(try_join(&t, eve, &(struct lie){.csr = &csr}), NEB_ERR_DENIED);
    stolen(eve, own->curve, theirs->curve, true, &csr); // well signed, but the key is not hers
    struct sec_public p;
    assert_int_equal(sec_csr_parse(csr.p, csr.len, &p), NEB_OK);
    assert_memory_equal(p.curve, theirs->curve, SEC_KEY_BYTES);
    assert_int_equal(try_join(&t, eve, &(struct lie){.csr = &csr}), NEB_ERR_DENIED);
    assert_true(was_logged("does not hold the CURVE key") || was_logged("refused"));
    assert_false(is_member("eve"));
    // a member's own keys under a second name
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

// One host is one source, however many addresses its network has; and no two hosts of IPv4 are.
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

// from: an address of loopback, each of which is a source of its own. The honest come from 127.0.0.1.
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
    assert_false(tls_works("127.0.0.9", TLS1_2_VERSION, TLS1_2_VERSION));
}

static void test_oversized(void **state) {
    (void)state;
    static uint8_t big[4 + SEC_ENROL_REQUEST_MAX + 1];
    struct sec_enrol_client *c = NULL;
    struct neb_buf in = {0};
    assert_int_equal(sec_enrol_connect(endpoint, hub->fed->pin, &c), NEB_OK);
    neb_put_u32(big, SEC_ENROL_REQUEST_MAX + 1);
    assert_int_equal(sec_enrol_client_send(c, big, 4), NEB_OK); // the claim alone ends it
    assert_int_equal(sec_enrol_client_recv(c, &in), NEB_ERR_IO);
    sec_enrol_client_destroy(&c);
    // largest that is allowed, nonsense: one code
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

// Median time of an exchange with the hub (a renewal: one fsync less than a join, and repeatable).
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

static void test_slow_loris(void **state) {
    (void)state;
    static const uint8_t hello[] = {22, 3, 1, 2, 0, 1, 0}; // the front of a ClientHello
    int fds[IDLE], open_ones = 0;
    neb_ns alone = exchange_time();
    for (int i = 0; i < IDLE; i++) {
        fds[i] = raw_connect("127.0.0.2");
        if (i % 2)
            assert_true(send(fds[i], hello, sizeof hello, MSG_NOSIGNAL) > 0);
    }
    neb_ns crowded = exchange_time();
    struct sec_token t = invite("calm", 3600);
    assert_int_equal(sec_enrol_join(home("calm"), &t, ""), NEB_OK);
    for (int i = 0; i < IDLE; i++)
        open_ones += !ended(fds[i]);
    print_message("exchange: %.1f ms alone, %.1f ms beside %d idle connections (%d held)\n",
                  neb_seconds(alone) * 1e3, neb_seconds(crowded) * 1e3, IDLE, open_ones);
    assert_true(open_ones > 0 && open_ones <= SEC_ENROL_CONNECTIONS);
    assert_true(crowded < 2 * alone + 5 * NEB_MS);
    neb_ns end = neb_now() + (SEC_ENROL_HANDSHAKE_MS + 3000) * NEB_MS;
    for (int i = 0; i < IDLE && neb_now() < end;)
        ended(fds[i]) ? (void)i++ : neb_sleep(20 * NEB_MS);
    for (int i = 0; i < IDLE; i++) {
        assert_true(ended(fds[i]));
        close(fds[i]);
    }
}

// Pure: each source has its share, all together a share of a core, and what was refused costs nobody anything.
static void test_rate(void **state) {
    (void)state;
    static struct sec_enrol_rate r;
    neb_ns now = 1000 * NEB_S, spent = 0, cost = 300 * NEB_US;
    int n = 0;
    sec_enrol_rate_init(&r);
    for (int i = 0; i < 1000; i++)
        n += sec_enrol_rate_take(&r, 7, now);
    assert_int_equal(n, SEC_RATE_BURST);
    assert_true(sec_enrol_rate_take(&r, 8, now)); // another one
    for (int ms = 0; ms < 10000; ms++)
        n += sec_enrol_rate_take(&r, 7, now + ms * NEB_MS);
    assert_int_equal(n, SEC_RATE_BURST + 10 * SEC_RATE_SECOND - 1);
    // from ever new addresses, ten a millisecond: three times a whole core, if they got it
    now += 100 * NEB_S;
    for (int i = 0; i < 100000; i++, now += NEB_MS / 10)
        if (sec_enrol_rate_take(&r, 1000 + (uint64_t)i, now)) {
            sec_enrol_rate_spent(&r, cost, now);
            spent += cost;
        }
    assert_true(spent <= 10 * NEB_S * SEC_RATE_PERCENT / 100 + SEC_RATE_SAVED_MS * NEB_MS + cost);
    assert_true(spent >= 10 * NEB_S * SEC_RATE_PERCENT / 100);
    assert_true(sec_enrol_rate_take(&r, 7, now + NEB_S)); // it is over
}

static neb_ns hub_time(void) { // of the processor
    clockid_t id;
    struct timespec t;
    assert_int_equal(pthread_getcpuclockid(thread, &id), 0);
    assert_int_equal(clock_gettime(id, &t), 0);
    return t.tv_sec * NEB_S + t.tv_nsec;
}

// Handshakes without end from one address: it gets its share of them, what is beyond costs little, and others join as ever.
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
    // a ClientHello that comes byte by byte
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

// Who shares the address of a flood is turned away, says so, and comes back.
static void test_turned_away(void **state) {
    (void)state;
    int n = 0;
    while (n < 300 && tls_works("127.0.0.1", TLS1_3_VERSION, TLS1_3_VERSION))
        n++;
    assert_true(n < 300);
    assert_int_equal(sec_enrol_renew(home("paris"), endpoint, NULL), NEB_OK);
    assert_true(was_logged("trying again"));
}

static void test_revoke_and_promote(void **state) {
    (void)state;
    struct sec_token t = invite("gone", 3600), used;
    struct sec_identity *id = new_identity("gone");
    used = t;
    assert_int_equal(try_join(&t, id, &(struct lie){0}), NEB_OK);
    assert_int_equal(revoke_now("gone"), NEB_OK);
    assert_false(is_member("gone"));
    assert_int_equal(try_join(&used, id, &(struct lie){0}), NEB_ERR_DENIED); // the answer of before
    assert_false(is_member("gone"));
    assert_int_equal(revoke_now("gone"), NEB_ERR_NOT_FOUND);
    uint64_t version = hub->fed->list.version;
    assert_int_equal(revoke_now("hub"), NEB_ERR_STATE); // itself
    char own[NEB_PATH_MAX];
    assert_int_equal(neb_path(own, sizeof own, hub_home, "federation/member.pem"), NEB_OK);
    for (int damaged = 0; damaged < 2;
         damaged++) { // and does not depend on its certificate for that
        assert_int_equal(damaged ? neb_fs_write(own, "x", 1, 0600) : neb_fs_remove(own), NEB_OK);
        assert_int_equal(revoke_now("hub"), NEB_ERR_STATE);
    }
    assert_true(sec_memberlist_voters(&hub->fed->list) > 2);
    assert_int_equal(sec_hub_promote(hub, "paris"), NEB_ERR_STATE);
    assert_true(is_member("hub") && hub->fed->list.version == version);
    for (uint32_t i = 0; i < hub->fed->list.n;) {
        char name[SEC_NAME_MAX];
        memcpy(name, hub->fed->list.e[i].m.pub.name, sizeof name);
        if (!strcmp(name, "hub") || !strcmp(name, "paris"))
            i++;
        else
            assert_int_equal(revoke_now(name), NEB_OK);
    }
    assert_int_equal(sec_hub_promote(hub, "nobody"), NEB_ERR_NOT_FOUND);
    version = hub->fed->list.version;
    assert_int_equal(sec_hub_promote(hub, "hub"), NEB_ERR_STATE); // itself, which is not lost
    assert_int_equal(hub->fed->list.version, version);
    assert_int_equal(sec_hub_promote(hub, "paris"), NEB_OK);
    assert_true(is_member("paris") && sec_memberlist_voters(&hub->fed->list) == 1);
    assert_int_equal(hub->fed->list.why, SEC_LIST_PROMOTE);
    assert_int_equal(sec_hub_promote(hub, "hub"), NEB_ERR_STATE); // the last vote stays
    assert_int_equal(sec_hub_promote(hub, "paris"), NEB_ERR_STATE);
    // joins, rotations, revocations, promotion: each version knows all before it, and so what a member had
    struct sec_federation *f = NULL;
    assert_int_equal(hub->fed->list.n_history, hub->fed->list.version - 1);
    assert_int_equal(sec_federation_open(home("paris"), &f), NEB_OK);
    assert_true(f->list.version + 1 < hub->fed->list.version);
    assert_memory_equal(sec_memberlist_former(&hub->fed->list, f->list.version), f->digest,
                        sizeof f->digest);
    assert_int_equal(
        sec_federation_apply(f, hub->fed->signed_list.p, hub->fed->signed_list.len, NULL), NEB_OK);
    sec_federation_destroy(&f);
    sec_identity_destroy(&id);
}

// An invitation that nobody has used is withdrawn by the name.
static void test_withdrawn(void **state) {
    (void)state;
    struct sec_token t = invite("never", 3600);
    struct sec_identity *id = new_identity("never");
    bool member = true;
    uint64_t version = (is_member("never"), hub->fed->list.version);
    assert_int_equal(sec_hub_revoke(hub, "never", &member), NEB_OK);
    assert_false(member);
    assert_int_equal(hub->fed->list.version, version);
    assert_int_equal(try_join(&t, id, &(struct lie){0}), NEB_ERR_DENIED);
    assert_int_equal(revoke_now("never"), NEB_ERR_NOT_FOUND); // nor was anything of it left
    sec_identity_destroy(&id);
}

// ---- crash and damage -----------------------------------------------------------------------------

// The hub fails at each of its writes in turn. Afterwards the same request is answered; once the
// invitation was used, another one is not.
static void test_crash_while_admitting(void **state) {
    (void)state;
    for (int k = 1; k <= 4; k++) {
        char name[16], spec[32];
        struct neb_buf csr = {0}, other = {0}, cert = {0};
        struct sec_identity *one = NULL, *two = NULL;
        snprintf(name, sizeof name, "crash%d", k);
        snprintf(spec, sizeof spec, "fs.write:%d", k);
        one = new_identity(name);
        assert_int_equal(sec_identity_create(home(spec), name, &two), NEB_OK);
        assert_int_equal(sec_csr_make(one, NULL, &csr), NEB_OK);
        assert_int_equal(sec_csr_make(two, NULL, &other), NEB_OK);
        struct sec_token t = invite(name, 3600);
        neb_fault_arm(spec);
        enum neb_status st = sec_hub_admit(hub, t.id, csr.p, csr.len, "", &cert);
        neb_fault_arm(NULL);
        assert_int_not_equal(st, NEB_OK);
        if (k > 1)
            assert_int_equal(sec_hub_admit(hub, t.id, other.p, other.len, "", &cert),
                             NEB_ERR_DENIED);
        assert_int_equal(sec_hub_admit(hub, t.id, csr.p, csr.len, "", &cert), NEB_OK);
        assert_int_equal(sec_hub_admit(hub, t.id, other.p, other.len, "", &cert), NEB_ERR_DENIED);
        assert_true(is_member(name));
        neb_buf_free(&csr);
        neb_buf_free(&other);
        neb_buf_free(&cert);
        sec_identity_destroy(&one);
        sec_identity_destroy(&two);
    }
}

// An invitation that cannot be read for now (no descriptor is left) is not gone for that; one that is damaged is.
static void test_unreadable_invitation(void **state) {
    (void)state;
    struct sec_token t = invite("later", 3600);
    struct sec_invites_swept swept;
    struct sec_invite v;
    struct rlimit was, few;
    char path[NEB_PATH_MAX];
    int fd = dup(0);
    assert_true(fd > 0 && getrlimit(RLIMIT_NOFILE, &was) == 0);
    close(fd);
    few = (struct rlimit){.rlim_cur = (rlim_t)fd + 1, .rlim_max = was.rlim_max}; // the folder's
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    enum neb_status st = sec_invites_sweep(hub->dir, 0, NULL, &swept);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_not_equal(st, NEB_OK);
    assert_int_equal(sec_invite_load(hub->dir, t.id, &v), NEB_OK);
    assert_int_equal(neb_path(path, sizeof path, hub->dir, "invites/00.json"), NEB_OK);
    assert_int_equal(neb_fs_write(path, "{", 1, 0600), NEB_OK);
    assert_int_equal(sec_invites_sweep(hub->dir, 0, "later", &swept), NEB_OK);
    assert_false(neb_fs_exists(path));
    assert_int_equal(swept.ended, 1);
}

static void test_key_files(void **state) {
    (void)state;
    static const char *const files[] = {"ca/ca.key", "ca/seal.key", "keys/curve.key"};
    for (size_t i = 0; i < 3; i++) {
        char path[NEB_PATH_MAX], aside[NEB_PATH_MAX + 8];
        struct sec_hub *h = NULL;
        struct sec_identity *id = NULL;
        assert_int_equal(neb_path(path, sizeof path, hub_home, files[i]), NEB_OK);
        snprintf(aside, sizeof aside, "%s.aside", path);
        for (int attack = 0; attack < 2; attack++) {
            if (attack == 0) {
                assert_int_equal(chmod(path, 0640), 0);
            } else {
                assert_int_equal(rename(path, aside), 0);
                assert_int_equal(symlink(aside, path), 0);
            }
            if (i < 2)
                assert_int_equal(sec_hub_open(hub_home, &h), NEB_ERR_DENIED);
            else
                assert_int_equal(sec_identity_load(hub_home, &id), NEB_ERR_DENIED);
            if (attack == 0)
                assert_int_equal(chmod(path, 0600), 0);
            else
                assert_int_equal(rename(aside, path), 0);
        }
        assert_int_equal(sec_hub_open(hub_home, &h), NEB_OK);
        sec_hub_destroy(&h);
    }
}

// What a member would bring to a new hub: the newest list, and with it what was seen.
static void copy_list(const char *to) {
    static const char *const files[] = {"federation/members.neb", "federation/seen"};
    char from[NEB_PATH_MAX], path[NEB_PATH_MAX];
    assert_int_equal(neb_path(path, sizeof path, to, "federation"), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(path, 0700), NEB_OK);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(neb_path(from, sizeof from, hub_home, files[i]), NEB_OK);
        assert_int_equal(neb_path(path, sizeof path, to, files[i]), NEB_OK);
        assert_int_equal(neb_fs_copy(from, path, 0600), NEB_OK);
    }
}

static void test_backup(void **state) {
    (void)state;
    struct sec_federation *f = NULL;
    char wrong[SEC_CODE_TEXT];
    sec_code_make(wrong);
    assert_int_equal(sec_ca_restore(home("restored"), home("backup"), wrong), NEB_ERR_DENIED);
    assert_int_equal(sec_ca_restore(home("restored"), home("backup"), "short"), NEB_ERR_INVALID);
    // without a list it would sign a second version 1
    assert_int_equal(sec_ca_restore(home("restored"), home("backup"), code), NEB_ERR_STATE);
    assert_false(neb_fs_exists(home("restored")));
    copy_list(home("restored"));
    assert_int_equal(sec_ca_restore(home("restored"), home("backup"), code), NEB_OK);
    assert_int_equal(sec_federation_open(home("restored"), &f), NEB_OK);
    assert_memory_equal(f->pin, hub->fed->pin, sizeof f->pin);
    struct sec_ca *ca = NULL;
    assert_int_equal(sec_ca_open(home("restored"), &ca), NEB_OK);
    sec_ca_destroy(&ca);
    sec_federation_destroy(&f);
    // again, as where the seal key was lost
    assert_int_equal(sec_ca_restore(home("restored"), home("backup"), code), NEB_OK);
    assert_int_equal(sec_ca_open(home("restored"), &ca), NEB_OK);
    sec_ca_destroy(&ca);
}

// A backup is restored over another federation's hub: that one's key stays what it is.
static void test_backup_of_another(void **state) {
    (void)state;
    struct neb_buf before = {0}, after = {0};
    char other[SEC_CODE_TEXT];
    struct sec_ca *ca = NULL;
    assert_int_equal(sec_ca_create(home("other"), "other", home("other-backup"), other), NEB_OK);
    copy_list(home("other"));
    assert_int_equal(neb_fs_read(home("other/ca/ca.key"), 4096, &before), NEB_OK);
    assert_int_equal(sec_ca_restore(home("other"), home("backup"), code), NEB_ERR_EXISTS);
    assert_int_equal(neb_fs_read(home("other/ca/ca.key"), 4096, &after), NEB_OK);
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.p, after.p, before.len);
    // a list that another CA has signed, where there is no certificate: nothing is written
    assert_int_equal(neb_fs_mkdirs(home("mixed"), 0700), NEB_OK);
    copy_list(home("mixed"));
    assert_int_equal(sec_ca_restore(home("mixed"), home("other-backup"), other), NEB_ERR_EXISTS);
    assert_false(neb_fs_exists(home("mixed/ca/ca.key")));
    assert_false(neb_fs_exists(home("mixed/federation/ca.pem")));
    assert_int_equal(neb_fs_remove_tree(home("other/federation/members.neb")), NEB_OK);
    assert_int_equal(neb_fs_remove_tree(home("other/federation/seen")), NEB_OK);
    assert_int_equal(sec_ca_open(home("other"), &ca), NEB_OK);
    sec_ca_destroy(&ca);
    neb_buf_free(&before);
    neb_buf_free(&after);
}

static enum neb_status init_hub(const char *where, const char *backup,
                                const struct sec_public *self, char text[SEC_CODE_TEXT]) {
    struct sec_hub_settings s = {"127.0.0.1:7443", "127.0.0.1:7443"};
    NEB_TRY(sec_ca_create(where, "cut", backup, text));
    return sec_hub_create(where, &s, self, "");
}

// An init is cut short behind each of its files in turn. The same one again makes it anew, as long as there is no list; the code that was
// shown last opens the backup.
static void test_init_cut_short(void **state) {
    (void)state;
    char first[SEC_CODE_TEXT], second[SEC_CODE_TEXT], spec[32], cut[NEB_PATH_MAX],
        back[NEB_PATH_MAX];
    struct sec_hub *h = NULL;
    struct sec_federation *f = NULL, *g = NULL;
    enum neb_status st = NEB_ERR_IO;
    int made_anew = 0;
    for (int k = 1; st != NEB_OK; k++) {
        snprintf(spec, sizeof spec, "cut-%d", k);
        snprintf(cut, sizeof cut, "%s", home(spec));
        snprintf(spec, sizeof spec, "cut-backup-%d", k);
        snprintf(back, sizeof back, "%s", home(spec));
        snprintf(spec, sizeof spec, "fs.folder:%d", k);
        neb_fault_arm(spec);
        st = init_hub(cut, back, sec_identity_public(hub_id), first);
        neb_fault_arm(NULL);
        enum neb_status again = init_hub(cut, back, sec_identity_public(hub_id), second);
        assert_true(again == NEB_OK || again == NEB_ERR_EXISTS); // there was a list
        made_anew += again == NEB_OK;
        assert_int_equal(sec_hub_open(cut, &h), NEB_OK);
        assert_int_equal(h->fed->list.version, 1);
        sec_hub_destroy(&h);
        assert_int_equal(sec_ca_restore(cut, back, again == NEB_OK ? second : first), NEB_OK);
        assert_int_equal(init_hub(cut, back, sec_identity_public(hub_id), second), NEB_ERR_EXISTS);
    }
    assert_true(made_anew >= 5); // begun, backup, seal.key, ca.key, ca.pem
    // a hub that has lost its lists is no init that was cut short, and a backup of something else stays
    assert_int_equal(sec_federation_open(cut, &f), NEB_OK);
    assert_int_equal(neb_path(back, sizeof back, cut, "federation/members.neb"), NEB_OK);
    assert_int_equal(neb_fs_remove(back), NEB_OK);
    assert_int_equal(neb_path(back, sizeof back, cut, "federation/seen"), NEB_OK);
    assert_int_equal(neb_fs_remove(back), NEB_OK);
    assert_int_equal(init_hub(cut, home("cut-none"), sec_identity_public(hub_id), second),
                     NEB_ERR_EXISTS);
    assert_int_equal(sec_federation_open(cut, &g), NEB_OK);
    assert_memory_equal(f->pin, g->pin, sizeof f->pin);
    assert_int_equal(neb_path(back, sizeof back, cut, "federation/ca.pem"), NEB_OK);
    assert_int_equal(neb_fs_remove(back), NEB_OK); // its key is still there
    assert_int_equal(init_hub(cut, home("cut-none"), sec_identity_public(hub_id), second),
                     NEB_ERR_EXISTS);
    assert_int_equal(sec_ca_create(home("cut-new"), "cut", home("backup"), second), NEB_ERR_EXISTS);
    assert_false(neb_fs_exists(home("cut-new")));
    sec_federation_destroy(&f);
    sec_federation_destroy(&g);
}

// ---- all ----------------------------------------------------------------------------------------

static struct sec_hub *server_hub;

static int setup(void **state) {
    (void)state;
    neb_log_set_sink(collect, NULL);
    signal(SIGPIPE, SIG_IGN);
    assert_non_null(mkdtemp(dir));
    snprintf(hub_home, sizeof hub_home, "%s", home("hub"));
    struct sec_hub_settings s = {"127.0.0.1:7443", "127.0.0.1:7443"};
    assert_int_equal(sec_identity_create(hub_home, "hub", &hub_id), NEB_OK);
    assert_int_equal(sec_ca_create(hub_home, "acme", home("backup"), code), NEB_OK);
    assert_int_equal(sec_hub_create(hub_home, &s, sec_identity_public(hub_id), ""), NEB_OK);
    assert_int_equal(sec_hub_open(hub_home, &hub), NEB_OK);
    assert_int_equal(sec_hub_open(hub_home, &server_hub), NEB_OK);
    assert_int_equal(sec_enrol_server_create(server_hub, hub_id, "127.0.0.1:*", &server), NEB_OK);
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%u", sec_enrol_server_port(server));
    return pthread_create(&thread, NULL, serve, NULL);
}

static int teardown(void **state) {
    (void)state;
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    sec_enrol_server_destroy(&server);
    sec_hub_destroy(&server_hub);
    sec_hub_destroy(&hub);
    sec_identity_destroy(&hub_id);
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&logged);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_renew_and_rotate),
        cmocka_unit_test(test_rotation_answer_lost),
        cmocka_unit_test(test_rotation_cut_short),
        cmocka_unit_test(test_clock_set),
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
        cmocka_unit_test(test_key_files),
        cmocka_unit_test(test_backup),
        cmocka_unit_test(test_backup_of_another),
        cmocka_unit_test(test_init_cut_short),
        cmocka_unit_test(test_withdrawn),
        cmocka_unit_test(test_unreadable_invitation),
        cmocka_unit_test(test_revoke_and_promote),
        cmocka_unit_test(test_crash_while_admitting),
        cmocka_unit_test(test_turned_away), // last: its address has no handshakes left
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
