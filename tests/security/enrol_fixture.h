// SPDX-License-Identifier: Apache-2.0
// For test_enrol*.c: a hub with its enrolment port on loopback, and a client that can forge
// requests.
#ifndef ENROL_FIXTURE_H
#define ENROL_FIXTURE_H
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "security/enrol.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char dir[] = "/tmp/nebula-enrol-XXXXXX";
static char hub_home[NEB_PATH_MAX], endpoint[SEC_ENDPOINT_MAX], code[SEC_CODE_TEXT];
static struct sec_hub *hub, *server_hub; // the operator's hub, and the server's own copy
static struct sec_enrol_server *server;
static struct sec_identity *hub_id;
static pthread_t thread;
static atomic_bool stop;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static struct neb_buf logged; // all lines of all threads

// ---- the hub ----------------------------------------------------------------------------------

static inline void collect(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    pthread_mutex_lock(&log_lock);
    neb_buf_add(&logged, text, strlen(text));
    neb_buf_add(&logged, "\n", 1);
    pthread_mutex_unlock(&log_lock);
}

static inline bool was_logged(const char *text) {
    pthread_mutex_lock(&log_lock);
    bool hit = logged.len && memmem(logged.p, logged.len, text, strlen(text));
    pthread_mutex_unlock(&log_lock);
    return hit;
}

static inline void *serve(void *arg) {
    struct pollfd p = {.fd = sec_enrol_server_fd(server), .events = POLLIN};
    (void)arg;
    while (!atomic_load(&stop)) {
        poll(&p, 1, 20);
        if (sec_enrol_server_step(server) != NEB_OK)
            abort();
    }
    return NULL;
}

static inline const char *home(const char *name) {
    static char path[4][NEB_PATH_MAX];
    static unsigned k;
    char *p = path[k++ % 4];
    assert_int_equal(neb_path(p, NEB_PATH_MAX, dir, name), NEB_OK);
    return p;
}

static inline struct sec_token invite(const char *name, int64_t ttl_s) {
    struct sec_token t;
    assert_int_equal(sec_hub_invite(hub, name, SEC_ROLE_DATA, ttl_s, &t), NEB_OK);
    snprintf(t.endpoint, sizeof t.endpoint, "%s", endpoint);
    return t;
}

static inline bool is_member(const char *name) {
    assert_int_equal(sec_federation_reload(hub->fed, NULL), NEB_OK);
    return sec_members_find(&hub->fed->list.members, name) >= 0;
}

// ---- a client that can forge requests -----------------------------------------------------------

struct lie {
    const char *name;        // name in the request; NULL: the name in the token
    const uint8_t *exporter; // exporter for the proof; NULL: the one of the connection
    const struct neb_buf *csr;
};

static enum sec_enrol_code answered; // the code for the last try_join

// The hub's answer to a join with these keys. NEB_ERR_IO: the hub ended the connection.
static inline enum neb_status try_join(const struct sec_token *t, const struct sec_identity *id,
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
    answered = a.code;
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

static inline struct sec_identity *new_identity(const char *name) {
    struct sec_identity *id = NULL;
    char folder[64];
    snprintf(folder, sizeof folder, "id-%s", name);
    assert_int_equal(sec_identity_create(home(folder), name, &id), NEB_OK);
    return id;
}

// ---- before and after all tests -----------------------------------------------------------------

static inline int setup(void **state) {
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

static inline int teardown(void **state) {
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
#endif
