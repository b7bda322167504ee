// SPDX-License-Identifier: Apache-2.0
// For test_federation*.c: a hub that signs any list, also forks, and home folders of its members.
#ifndef FEDERATION_FIXTURE_H
#define FEDERATION_FIXTURE_H
#include "security/hub.h"
#include "tests/unit/scratch.h"

#include <string.h>

static struct sec_hub *hub; // signs whatever a test gives it
static struct sec_identity *hub_id;
static struct neb_buf logged;

static inline void collect(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    neb_buf_add(&logged, text, strlen(text));
}

static inline bool was_logged(const char *text) {
    return logged.len && memmem(logged.p, logged.len, text, strlen(text));
}

static inline const char *home(const char *name) {
    static char path[NEB_PATH_MAX];
    assert_int_equal(neb_path(path, sizeof path, dir, name), NEB_OK);
    return path;
}

static inline void sign_list(const struct sec_list *l, struct neb_buf *b) {
    assert_int_equal(sec_list_format(l, b), NEB_OK);
    size_t n = b->len - SEC_SIGN_BYTES;
    assert_int_equal(sec_ca_sign(hub->ca, SEC_CONTEXT_LIST, b->p, n, b->p + n), NEB_OK);
}

// A member list with its bytes and digest. go_on appends versions; two calls from one version make
// a fork.
struct version {
    struct sec_list l;
    struct neb_buf b;
    uint8_t digest[NEB_SHA256_BYTES];
};

static inline void sign_version(struct version *v) {
    sign_list(&v->l, &v->b);
    neb_sha256(v->b.p, v->b.len, v->digest);
}

static inline void go_on(struct version *v, unsigned versions, int64_t later) {
    for (unsigned i = 0; i < versions; i++) {
        sec_list_succeed(&v->l, v->digest);
        v->l.issued += later;
        sign_version(v);
    }
}

static inline enum neb_status offer(struct sec_federation *f, const struct version *v) {
    return sec_federation_apply(f, v->b.p, v->b.len, NULL);
}

// A new home in the hub's federation with this list. A home without a list accepts any signed list.
static inline struct sec_federation *home_with(const char *name, const struct version *v) {
    struct sec_federation *f = NULL;
    assert_int_equal(sec_federation_create(home(name), hub->fed->ca.p, hub->fed->ca.len, &f),
                     NEB_OK);
    assert_int_equal(offer(f, v), NEB_OK);
    return f;
}

static inline struct version first_version(void) {
    struct version v = {.l = hub->fed->list};
    v.l.members.version = 1;
    v.l.n_history = 0;
    sign_version(&v);
    return v;
}

static inline int setup(void **state) {
    char hub_home[NEB_PATH_MAX], backup[NEB_PATH_MAX], code[SEC_CODE_TEXT];
    struct sec_hub_settings s = {"127.0.0.1:7443", "127.0.0.1:7443"};
    neb_log_set_sink(collect, NULL);
    assert_int_equal(scratch_make(state), 0);
    assert_int_equal(neb_path(hub_home, sizeof hub_home, dir, "hub"), NEB_OK);
    assert_int_equal(neb_path(backup, sizeof backup, dir, "backup"), NEB_OK);
    assert_int_equal(sec_identity_create(hub_home, "hub", &hub_id), NEB_OK);
    assert_int_equal(sec_ca_create(hub_home, "acme", backup, code), NEB_OK);
    assert_int_equal(sec_hub_create(hub_home, &s, sec_identity_public(hub_id), ""), NEB_OK);
    assert_int_equal(sec_hub_open(hub_home, &hub), NEB_OK);
    return 0;
}

static inline int teardown(void **state) {
    sec_hub_destroy(&hub);
    sec_identity_destroy(&hub_id);
    int rc = scratch_remove(state);
    neb_buf_free(&logged);
    return rc;
}

#endif
