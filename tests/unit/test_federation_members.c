// SPDX-License-Identifier: Apache-2.0
// agent/daemon/spread: how often lists of other members are checked and sent. agent/daemon/members:
// files that change while an agent runs, renewal of the certificate, and signatures of previous
// keys or removed members.
#include "agent/daemon/daemon.h"
#include "agent/daemon/renew.h"
#include "agent/daemon/spread.h"
#include "tests/unit/federation_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

// ---- lists of other members

// Replaces the calls of inter/service/service.c, which this program does not link.
static unsigned told[NEB_MEMBERS_MAX][2]; // by peer: LIST_STAND, LIST

enum neb_status inter_service_send_telemetry(struct inter_service *s, uint32_t peer, uint32_t kind,
                                             const void *p, size_t n) {
    (void)s, (void)p, (void)n;
    told[peer][kind == AGENT_MSG_LIST]++;
    return NEB_OK;
}

const struct sec_members *inter_service_members(const struct inter_service *s) {
    static struct sec_members them;
    (void)s;
    for (int i = 0; i < NEB_MEMBERS_MAX; i++)
        snprintf(them.m[i].pub.name, sizeof them.m[i].pub.name, "peer-%d", i);
    return &them;
}

static unsigned times_logged(const char *text) {
    unsigned n = 0;
    const uint8_t *at = logged.p, *end = logged.p + logged.len;
    for (; at && (at = memmem(at, (size_t)(end - at), text, strlen(text))); at++)
        n++;
    return n;
}

static struct agent_members *members_with(const char *name, const struct version *v) {
    struct agent_members *m = NULL;
    struct sec_federation *f = home_with(name, v);
    sec_federation_destroy(&f);
    assert_int_equal(agent_members_open(home(name), hub_id, &m), NEB_OK);
    return m;
}

static neb_ns heard_at;

static struct agent_members_change hear_list(struct agent_spread *s, uint32_t peer,
                                             const struct version *v) {
    struct agent_members_change c;
    heard_at = neb_now();
    assert_true(agent_spread_message(s, peer, AGENT_MSG_LIST, v->b.p, v->b.len, &c));
    return c;
}

static void hear_stand(struct agent_spread *s, uint32_t peer, const struct version *v, size_t cut) {
    struct agent_members_change c;
    uint8_t b[8 + NEB_SHA256_BYTES];
    neb_put_u64(b, v->l.members.version);
    memcpy(b + 8, v->digest, sizeof v->digest);
    assert_true(agent_spread_message(s, peer, AGENT_MSG_LIST_STAND, b, sizeof b - cut, &c));
    assert_false(c.changed || c.refused);
}

// The last list has just arrived. The peer's next list is checked after the time `after`, and not
// earlier.
static void expect_next_look(struct agent_spread *s, uint32_t peer, neb_ns after,
                             const struct version *next) {
    neb_ns left = s->looks[peer] - heard_at;
    if (left < after || left > after + NEB_S / 4)
        fail_msg("the next list is checked after %.3f s, want %.3f", (double)left / NEB_S,
                 (double)after / NEB_S);
    s->looks[peer] = neb_now() + after; // a list that was accepted took time for its fsync
    struct agent_members_change c = hear_list(s, peer, next);
    assert_false(c.changed || c.refused);
    s->looks[peer] = 0;
}

// a follows old, b follows a, and fork is another list of a's version.
static void make_branches(struct version *old, struct version *a, struct version *b,
                          struct version *fork) {
    *old = *a = first_version();
    a->b = (struct neb_buf){0};
    go_on(a, 1, 1);
    *b = *fork = (struct version){.l = a->l};
    memcpy(b->digest, a->digest, sizeof b->digest);
    go_on(b, 1, 1);
    fork->l.issued++;
    sign_version(fork);
}

// The advice on adding a cluster depends on whether there is a hub. If a name is nearly that of a
// member, the advice gives that member's name.
static void test_advice(void **state) {
    (void)state;
    struct version v = first_version();
    struct agent_members *m = members_with("advice", &v);
    const char *name = m ? agent_members_list(m)->m[0].pub.name : "";
    char out[256], wrong[SEC_NAME_MAX + 1];
    assert_string_equal(agent_members_advice(m, "lisbon", out, sizeof out),
                        "nebula invite lisbon, on the hub, makes a token for it");
    snprintf(wrong, sizeof wrong, "%ss", name);
    assert_non_null(strstr(agent_members_advice(m, wrong, out, sizeof out), "; did you mean '"));
    assert_null(strstr(out, "peer add"));
    agent_members_destroy(&m);
    neb_buf_free(&v.b);
}

// Each checked list costs a signature check: two a second from each peer, fewer if its lists are
// refused.
static void test_list_checks_are_limited(void **state) {
    (void)state;
    struct version old, a, b, fork;
    make_branches(&old, &a, &b, &fork);
    struct agent_members *m = members_with("looks", &old);
    struct agent_spread s = {.members = m};
    assert_true(hear_list(&s, 3, &a).changed);
    expect_next_look(&s, 3, NEB_S / 2, &b);
    assert_true(hear_list(&s, 3, &old).refused);
    expect_next_look(&s, 3, 2 * NEB_S, &b);
    assert_true(hear_list(&s, 3, &fork).forked);
    expect_next_look(&s, 3, 10 * NEB_S, &b);
    assert_true(hear_list(&s, 3, &old).refused); // a refusal does not bring the next check forward
    expect_next_look(&s, 3, 10 * NEB_S, &b);
    s.looks[3] = neb_now() + NEB_S;
    assert_true(hear_list(&s, 4, &b).changed);                  // each peer has its own time
    assert_false(hear_list(&s, NEB_MEMBERS_MAX, &old).refused); // no such peer
    agent_members_destroy(&m);
    neb_buf_free(&old.b), neb_buf_free(&a.b), neb_buf_free(&b.b), neb_buf_free(&fork.b);
}

// A peer that keeps reporting an older list gets ours twice a second. A peer that has ours or a
// newer one gets none.
static void test_list_sends_are_limited(void **state) {
    (void)state;
    static const bool up[NEB_MEMBERS_MAX] = {[1] = true, [3] = true};
    struct version old, a, b, fork;
    make_branches(&old, &a, &b, &fork);
    struct agent_members *m = members_with("sends", &a);
    struct agent_spread s = {.members = m};
    memset(told, 0, sizeof told);
    hear_stand(&s, 3, &a, 0);
    hear_stand(&s, 3, &b, 0);
    assert_int_equal(told[3][1], 0);
    for (int i = 0; i < 5; i++)
        hear_stand(&s, 3, &old, 0);
    assert_int_equal(told[3][1], 1);
    assert_in_range(s.sends[3] - neb_now(), NEB_S / 4, NEB_S / 2);
    hear_stand(&s, 1, &fork, 0); // another list of our version
    assert_int_equal(told[1][1], 1);
    s.sends[3] = s.sends[1] = 0;
    assert_true(hear_list(&s, 1, &fork).forked);
    // if the lists of a peer had another history, the peer gets ours, whatever it reports
    hear_stand(&s, 1, &b, 0);
    hear_stand(&s, 3, &b, 0);
    assert_int_equal(told[1][1], 2);
    assert_int_equal(told[3][1], 1);
    // our version goes every second to all peers that are up, and at once after a change
    agent_spread_stand(&s, up);
    agent_spread_list(&s, up);
    for (uint32_t i = 0; i < NEB_MEMBERS_MAX; i++) {
        assert_int_equal(told[i][0], up[i]);
        assert_int_equal(told[i][1], i == 1 ? 3 : i == 3 ? 2 : 0);
    }
    hear_stand(&s, 3, &old, 0); // it was just sent
    assert_int_equal(told[3][1], 2);
    agent_members_destroy(&m);
    neb_buf_free(&old.b), neb_buf_free(&a.b), neb_buf_free(&b.b), neb_buf_free(&fork.b);
}

// Endless refused messages and lists give a few log lines, and later a count. A flood of old lists
// does not hide a fork.
static void test_refusals_are_throttled(void **state) {
    (void)state;
    static const bool none[NEB_MEMBERS_MAX];
    enum { MANY = 30, FEW = 4 };
    struct version old = first_version(), a = old, fork;
    struct agent_members_change c;
    a.b = (struct neb_buf){0};
    go_on(&a, 1, 1);
    fork = (struct version){.l = a.l};
    fork.l.issued++;
    sign_version(&fork);
    struct agent_members *m = members_with("quiet", &a);
    struct agent_spread s = {.members = m};
    neb_buf_clear(&logged);
    for (int i = 0; i < MANY; i++) {
        hear_stand(&s, 1 + (uint32_t)i % 3, &a, 1 + (size_t)i);
        s.looks[1] = 0;
        assert_true(hear_list(&s, 1, &old).refused);
    }
    assert_int_equal(times_logged("a malformed message of peer-1 about member lists"), 1);
    assert_int_equal(times_logged("malformed"), 1);
    assert_int_equal(times_logged("is older than"), FEW);
    assert_int_equal(times_logged("stays in use"), FEW);
    for (int i = 0; i < MANY; i++) {
        s.looks[1] = 0;
        assert_true(hear_list(&s, 1, &fork).forked);
    }
    assert_int_equal(times_logged("two lists of version 2"), FEW);
    neb_buf_clear(&logged);
    agent_spread_stand(&s, none);
    assert_int_equal(logged.len, 0);
    s.malformed.said -= neb_throttle_window;
    agent_spread_stand(&s, none);
    assert_int_equal(times_logged("29 more malformed messages"), 1);
    assert_int_equal(agent_members_step(m, &c), NEB_OK);
    agent_members_destroy(&m);
    neb_buf_free(&old.b), neb_buf_free(&a.b), neb_buf_free(&fork.b);
}

// Two processes write the certificate and hub of one home at the same time. The files are complete.
static void test_written_at_once(void **state) {
    (void)state;
    struct version v = first_version();
    struct sec_federation *f = home_with("at-once", &v);
    struct neb_buf cert = {0};
    char at[SEC_ENDPOINT_MAX];
    int status = 0, bad = 0;
    assert_int_equal(sec_ca_issue(hub->ca, sec_identity_public(hub_id), &cert), NEB_OK);
    pid_t other = fork();
    for (int i = 0; i < 40; i++)
        bad += sec_federation_set_cert(f, cert.p, cert.len) != NEB_OK ||
               sec_federation_set_hub(f, other ? "a.example:1" : "another.example:2") != NEB_OK;
    if (!other)
        _exit(bad != 0);
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_int_equal(status, 0);
    assert_int_equal(bad, 0);
    assert_int_equal(sec_federation_hub(f, at), NEB_OK);
    sec_federation_destroy(&f);
    neb_buf_free(&cert), neb_buf_free(&v.b);
}

static bool renews(const struct agent_members *m) {
    struct agent_renew r = {.exe = "/bin/true", .home = dir};
    agent_renew_step(&r, m);
    bool yes = r.child.pid != 0;
    assert_true(agent_child_wait(&r.child, neb_now() + 20 * NEB_S));
    return yes;
}

// A certificate with enough time left stays. A damaged or missing one is renewed.
static void test_certificate_due(void **state) {
    (void)state;
    struct version v = first_version();
    struct agent_members *m = members_with("due", &v);
    struct sec_federation *f = NULL;
    struct neb_buf cert = {0};
    assert_int_equal(sec_ca_issue(hub->ca, sec_identity_public(hub_id), &cert), NEB_OK);
    assert_int_equal(sec_federation_open(home("due"), &f), NEB_OK);
    assert_false(renews(m)); // there is no hub to ask
    assert_int_equal(sec_federation_set_hub(f, "hub.example:7443"), NEB_OK);
    assert_true(renews(m));
    assert_int_equal(sec_federation_set_cert(f, cert.p, cert.len), NEB_OK);
    assert_false(renews(m));
    assert_int_equal(neb_fs_write(home("due/federation/member.pem"), "-----BEGIN", 10, 0600),
                     NEB_OK);
    assert_true(renews(m));
    sec_federation_destroy(&f);
    agent_members_destroy(&m);
    neb_buf_free(&cert), neb_buf_free(&v.b);
}

// ---- signatures of previous keys

static const char some_context[] = "nebula test";

static void take(struct agent_members *m, struct version *v, enum sec_list_why why) {
    struct agent_members_change c;
    sec_list_succeed(&v->l, v->digest);
    v->l.why = why;
    snprintf(v->l.subject, sizeof v->l.subject, "rome");
    sign_version(v);
    if (!m)
        return; // this member misses it
    agent_members_apply(m, v->b.p, v->b.len, &c);
    assert_true(c.changed);
}

static void list_rome(struct version *v, const struct sec_identity *id) {
    int i = sec_members_find(&v->l.members, "rome");
    struct sec_member e = {.caps = SEC_CAP_ALL};
    if (i >= 0)
        sec_members_drop(&v->l.members, (uint32_t)i);
    if (!id)
        return;
    e.pub = *sec_identity_public(id);
    assert_int_equal(sec_members_insert(&v->l.members, &e), NEB_OK);
}

// A member's signatures stay valid through the rotations that this node saw. They do not become
// those of a new member with the name of a removed one.
static void test_reused_name(void **state) {
    (void)state;
    struct sec_identity *id[4];
    uint8_t sig[4][SEC_SIGN_BYTES];
    bool as_now[4][4] = {{true}, {true, true}, {false, false, true}, {false, false, false, true}};
    for (int i = 0; i < 4; i++) {
        char keys[] = "keys-of-rome-0";
        keys[sizeof keys - 2] = (char)('0' + i);
        assert_int_equal(neb_fs_mkdirs(home(keys), 0700), NEB_OK);
        assert_int_equal(sec_identity_create(home(keys), "rome", &id[i]), NEB_OK);
        assert_int_equal(sec_sign(id[i], some_context, "job", 3, sig[i]), NEB_OK);
    }
    struct version v = first_version();
    struct agent_members *m = members_with("names", &v);
    for (int now = 0; now < 4; now++) {
        if (now == 2) { // rome was revoked, and another rome was invited
            list_rome(&v, NULL);
            take(m, &v, SEC_LIST_REVOKE);
            assert_false(agent_members_signed_as_now(m, "rome", some_context, "job", 3, sig[1]));
        }
        for (int missed = 0; now == 3 && missed < 2; missed++)
            take(NULL, &v, SEC_LIST_JOIN); // the name may have changed hands in a missed version
        list_rome(&v, id[now]);
        take(m, &v, now == 0 || now == 2 ? SEC_LIST_JOIN : SEC_LIST_ROTATE);
        for (int i = 0; i < 4; i++)
            assert_int_equal(agent_members_signed_as_now(m, "rome", some_context, "job", 3, sig[i]),
                             as_now[now][i]);
        if (now == 1) // also after a restart
            agent_members_destroy(&m);
        if (now == 1)
            assert_int_equal(agent_members_open(home("names"), hub_id, &m), NEB_OK);
        assert_int_equal(agent_members_signed_as_now(m, "rome", some_context, "job", 3, sig[0]),
                         as_now[now][0]);
    }
    // the signature still counts for the rounds of a job
    assert_true(agent_members_signed_before(m, "rome", some_context, "job", 3, sig[0]));
    assert_false(agent_members_signed_as_now(m, "oslo", some_context, "job", 3, sig[0]));
    agent_members_destroy(&m);
    for (int i = 0; i < 4; i++)
        sec_identity_destroy(&id[i]);
    neb_buf_free(&v.b);
}

// ---- without a hub

static struct agent_members_change step_pair(struct agent_members *m) {
    struct agent_members_change c;
    assert_int_equal(agent_members_step(m, &c), NEB_OK);
    return c;
}

// Changes by `nebula peer` take effect while the agent runs. A list without this node, or no list,
// is refused.
static void test_pair_changes(void **state) {
    (void)state;
    struct agent_members *m = NULL;
    struct agent_members_change c;
    struct sec_identity *other = NULL;
    struct sec_members l = {.n = 0}, without;
    char path[NEB_PATH_MAX];
    assert_int_equal(neb_fs_mkdirs(home("pair"), 0700), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(home("pair-other"), 0700), NEB_OK);
    assert_int_equal(sec_identity_create(home("pair-other"), "oslo", &other), NEB_OK);
    assert_int_equal(neb_path(path, sizeof path, home("pair"), "members.json"), NEB_OK);
    struct sec_member add = {.pub = *sec_identity_public(hub_id)};
    assert_int_equal(sec_members_add(&l, &add), NEB_OK);
    add.pub = *sec_identity_public(other);
    assert_int_equal(sec_members_add(&l, &add), NEB_OK);
    assert_int_equal(sec_members_save(path, &l), NEB_OK);
    assert_int_equal(agent_members_open(home("pair"), hub_id, &m), NEB_OK);
    assert_true(agent_members_fd(m) >= 0);
    assert_false(step_pair(m).changed);
    assert_int_equal(sec_members_remove(&l, "oslo"), NEB_OK);
    assert_int_equal(sec_members_save(path, &l), NEB_OK);
    c = step_pair(m);
    assert_true(c.changed && c.revoked);
    assert_null(sec_members_by_name(agent_members_list(m), "oslo"));
    assert_false(step_pair(m).changed);
    assert_int_equal(sec_members_add(&l, &add), NEB_OK);
    assert_int_equal(sec_members_save(path, &l), NEB_OK);
    c = step_pair(m);
    assert_true(c.changed && !c.revoked);
    without = l;
    assert_int_equal(sec_members_remove(&without, sec_identity_public(hub_id)->name), NEB_OK);
    assert_int_equal(sec_members_save(path, &without), NEB_OK);
    c = step_pair(m);
    assert_true(c.refused && !c.changed);
    assert_int_equal(neb_fs_write(path, "{", 1, 0600), NEB_OK);
    c = step_pair(m);
    assert_true(c.refused && !c.changed);
    assert_int_equal(agent_members_list(m)->n, 2);
    agent_members_destroy(&m);
    sec_identity_destroy(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_advice),
        cmocka_unit_test(test_list_checks_are_limited),
        cmocka_unit_test(test_list_sends_are_limited),
        cmocka_unit_test(test_refusals_are_throttled),
        cmocka_unit_test(test_written_at_once),
        cmocka_unit_test(test_certificate_due),
        cmocka_unit_test(test_reused_name),
        cmocka_unit_test(test_pair_changes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
