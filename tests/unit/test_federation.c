// security/federation: which signed lists a member takes, and which it knows for a fork. agent/spread: how often it does.
#include "agent/base/fault.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/daemon.h"
#include "agent/renew.h"
#include "agent/spread.h"
#include "security/hub.h"
#include "security/rotated.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/nebula-federation-XXXXXX";
static struct sec_hub *hub; // signs what it never would
static struct sec_identity *hub_id;
static struct neb_buf logged;

static void collect(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    neb_buf_add(&logged, text, strlen(text));
}

static bool was_logged(const char *text) {
    return logged.len && memmem(logged.p, logged.len, text, strlen(text));
}

static const char *home(const char *name) {
    static char path[NEB_PATH_MAX];
    assert_int_equal(neb_path(path, sizeof path, dir, name), NEB_OK);
    return path;
}

static void sign_list(const struct sec_memberlist *l, struct neb_buf *b) {
    assert_int_equal(sec_memberlist_format(l, b), NEB_OK);
    size_t n = b->len - SEC_SIGN_BYTES;
    assert_int_equal(sec_ca_sign(hub->ca, SEC_CONTEXT_MEMBERLIST, b->p, n, b->p + n), NEB_OK);
}

// A list with its bytes and digest, and versions after it; by a second line of them, forks.
struct version {
    struct sec_memberlist l;
    struct neb_buf b;
    uint8_t digest[NEB_SHA256_BYTES];
};

static void sign_version(struct version *v) {
    sign_list(&v->l, &v->b);
    sec_memberlist_digest(v->b.p, v->b.len, v->digest);
}

static void go_on(struct version *v, unsigned versions, int64_t later) {
    for (unsigned i = 0; i < versions; i++) {
        sec_memberlist_succeed(&v->l, v->digest);
        v->l.issued += later;
        sign_version(v);
    }
}

static enum neb_status offer(struct sec_federation *f, const struct version *v) {
    return sec_federation_apply(f, v->b.p, v->b.len, NULL);
}

// A home in the hub's federation that has this list. A list is taken as it is where there is none.
static struct sec_federation *home_with(const char *name, const struct version *v) {
    struct sec_federation *f = NULL;
    assert_int_equal(sec_federation_create(home(name), hub->fed->ca.p, hub->fed->ca.len, &f),
                     NEB_OK);
    assert_int_equal(offer(f, v), NEB_OK);
    return f;
}

static struct version first_version(bool old) {
    struct version v = {.l = hub->fed->list};
    v.l.version = 1;
    v.l.n_history = 0;
    v.l.old = old;
    sign_version(&v);
    return v;
}

static void test_rules(void **state) {
    (void)state;
    struct sec_federation *f = NULL;
    struct neb_buf old = {0}, b = {0};
    char a[65], z[65], path[NEB_PATH_MAX];
    uint8_t digest[NEB_SHA256_BYTES];
    bool changed;
    struct version first = first_version(false);
    f = home_with("list", &first);
    neb_buf_add(&old, f->signed_list.p, f->signed_list.len);
    struct sec_memberlist l = f->list;

    // a fork of this version: both digests are named
    l.issued++;
    sign_list(&l, &b);
    sec_memberlist_digest(b.p, b.len, digest);
    neb_hex(digest, sizeof digest, a);
    neb_hex(f->digest, sizeof f->digest, z);
    assert_int_equal(sec_federation_apply(f, b.p, b.len, &changed), NEB_ERR_CORRUPT);
    assert_true(was_logged(a) && was_logged(z));
    // a successor of another predecessor
    sec_memberlist_succeed(&l, digest);
    sign_list(&l, &b);
    assert_int_equal(sec_federation_apply(f, b.p, b.len, &changed), NEB_ERR_CORRUPT);
    // the right successor: altered, then as it is
    memcpy(l.history[0], f->digest, sizeof l.history[0]);
    sign_list(&l, &b);
    for (size_t i = 0; i < b.len; i += 7) {
        b.p[i] ^= 1;
        assert_int_not_equal(sec_federation_apply(f, b.p, b.len, &changed), NEB_OK);
        b.p[i] ^= 1;
    }
    assert_int_equal(sec_federation_apply(f, b.p, b.len, &changed), NEB_OK);
    assert_true(changed);
    assert_int_equal(sec_federation_apply(f, b.p, b.len, &changed), NEB_OK);
    assert_false(changed);
    // roll-back: by message, and by putting the old file back
    assert_int_equal(sec_federation_apply(f, old.p, old.len, &changed), NEB_ERR_DENIED);
    sec_federation_destroy(&f);
    assert_int_equal(neb_path(path, sizeof path, home("list"), "federation/members.neb"), NEB_OK);
    assert_int_equal(neb_fs_write(path, old.p, old.len, 0600), NEB_OK);
    assert_int_equal(sec_federation_open(home("list"), &f), NEB_ERR_DENIED);
    assert_int_equal(neb_fs_remove(path), NEB_OK);
    assert_int_equal(sec_federation_open(home("list"), &f), NEB_ERR_DENIED);
    // a power cut between the two files: the newer list on disk is taken
    assert_int_equal(neb_fs_write(path, b.p, b.len, 0600), NEB_OK);
    assert_int_equal(sec_federation_open(home("list"), &f), NEB_OK);
    l = f->list;
    sec_memberlist_succeed(&l, f->digest);
    sign_list(&l, &b);
    neb_fault_arm("fs.write:2");
    assert_int_not_equal(sec_federation_apply(f, b.p, b.len, &changed), NEB_OK);
    neb_fault_arm(NULL);
    sec_federation_destroy(&f);
    assert_int_equal(sec_federation_open(home("list"), &f), NEB_OK);
    assert_int_equal(f->list.version, l.version);
    sec_federation_destroy(&f);
    neb_buf_free(&old);
    neb_buf_free(&b);
    neb_buf_free(&first.b);
}

// Versions that this member missed do not hide that a list is of another history: nor does a history that is cut short, or left out.
static void test_history(void **state) {
    (void)state;
    struct version a = first_version(false), b = first_version(false);
    go_on(&a, 4, 1);
    struct sec_federation *f = home_with("history-a", &a);
    go_on(&b, 3, 1);
    go_on(&b, 1, 2);
    go_on(&b, 2, 1); // version 7, of another version 5
    struct sec_federation *g = home_with("history-b", &b);
    assert_int_equal(f->list.version, 5);
    assert_int_equal(offer(f, &b), NEB_ERR_CORRUPT);
    assert_true(was_logged("two lists of version 5"));
    assert_int_equal(f->list.version, 5);
    assert_int_equal(offer(g, &a), NEB_ERR_CORRUPT); // and the other way round, by the older one
    sec_federation_destroy(&g);
    struct version old = a;
    old.b = (struct neb_buf){0};
    go_on(&a, 2, 1);
    struct version cut = {.l = a.l};
    cut.l.n_history = 1;
    sign_version(&cut);
    assert_int_equal(offer(f, &cut), NEB_ERR_CORRUPT);
    cut.l.old = true;
    sign_version(&cut);
    assert_int_equal(offer(f, &cut), NEB_ERR_CORRUPT);
    assert_int_equal(offer(f, &a), NEB_OK); // 7, after 5
    sign_version(&old);
    assert_int_equal(offer(f, &old), NEB_ERR_DENIED); // its own past is a roll-back, no fork
    sec_federation_destroy(&f);
    assert_int_equal(sec_federation_open(home("history-a"), &f), NEB_OK);
    go_on(&a, SEC_MEMBERLIST_HISTORY, 1);
    assert_int_equal(offer(f, &a), NEB_OK); // as far back as a history reaches
    assert_int_equal(f->list.n_history, SEC_MEMBERLIST_HISTORY);
    go_on(&a, SEC_MEMBERLIST_HISTORY + 1, 1);
    assert_int_equal(offer(f, &a), NEB_ERR_CORRUPT);
    assert_true(was_logged("so far ahead of 262"));
    sec_federation_destroy(&f);
    neb_buf_free(&a.b), neb_buf_free(&b.b), neb_buf_free(&cut.b), neb_buf_free(&old.b);
}

static void go_on_without(struct version *v, unsigned versions) { // as hubs did
    for (unsigned i = 0; i < versions; i++) {
        sec_memberlist_succeed(&v->l, v->digest);
        v->l.n_history = 1;
        v->l.old = true;
        sign_version(v);
    }
}

// Lists of before there was a history: nothing can be told of a gap between them, or of one to the first that has a history.
// After that one, none without is believed.
static void test_without_history(void **state) {
    (void)state;
    struct version v = first_version(true), fork = {.l = v.l};
    struct sec_federation *f = home_with("history-old", &v);
    fork.l.issued++;
    sign_version(&fork);
    go_on_without(&fork, 1);
    assert_int_equal(offer(f, &fork), NEB_ERR_CORRUPT); // 2, of another 1
    go_on_without(&v, 1);
    assert_int_equal(offer(f, &v), NEB_OK);
    go_on_without(&v, 2);
    assert_int_equal(offer(f, &v), NEB_OK); // 4, after 2
    go_on_without(&v, 2);
    fork.l = v.l;
    go_on(&v, 1, 0);
    assert_int_equal(v.l.n_history, 2); // 7 by a newer hub: it knows of 6 and 5
    assert_int_equal(offer(f, &v), NEB_OK);
    sec_federation_destroy(&f);
    assert_int_equal(sec_federation_open(home("history-old"), &f), NEB_OK);
    go_on_without(&fork, 5);
    assert_int_equal(offer(f, &fork), NEB_ERR_CORRUPT);
    fork.l = v.l;
    memcpy(fork.digest, v.digest, sizeof v.digest);
    go_on_without(&fork, 1); // even one that says to follow
    assert_int_equal(offer(f, &fork), NEB_ERR_CORRUPT);
    assert_int_equal(f->list.version, 7);
    go_on(&v, 2, 0);
    assert_int_equal(offer(f, &v), NEB_OK);
    sec_federation_destroy(&f);
    neb_buf_free(&v.b), neb_buf_free(&fork.b);
}

static void again(struct sec_federation **f, const char *name) { // as an agent that starts anew
    sec_federation_destroy(f);
    assert_int_equal(sec_federation_open(home(name), f), NEB_OK);
}

// What of a home is in use, in the place of another's: as an operator does it while the agent is down.
static void repair(struct sec_federation **wrong, const char *name, const char *right) {
    char from[NEB_PATH_MAX], to[NEB_PATH_MAX];
    sec_federation_destroy(wrong);
    const char *files[] = {"federation/members.neb", "federation/seen"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(neb_path(from, sizeof from, home(right), files[i]), NEB_OK);
        assert_int_equal(neb_path(to, sizeof to, home(name), files[i]), NEB_OK);
        assert_int_equal(neb_fs_copy(from, to, 0600), NEB_OK);
    }
    again(wrong, name);
}

// A fork that an operator has repaired proves nothing new, to those who were right and to those who were not: neither by the lists that
// proved it, nor by others of that branch, earlier or later. A fork that was not there yet does.
static void test_settled(void **state) {
    (void)state;
    struct version right = first_version(false), dead = first_version(false), v;
    go_on(&right, 2, 1);
    struct sec_federation *f = home_with("settled-right", &right);
    v = dead; // the branches part after version 1
    v.b = (struct neb_buf){0};
    go_on(&v, 1, 5);
    struct version early = v;
    early.b = (struct neb_buf){0};
    sign_version(&early);
    go_on(&v, 3, 5);
    struct sec_federation *g = home_with("settled-wrong", &v);
    go_on(&right, 3, 1); // 6; the other branch has 5
    assert_int_equal(offer(f, &right), NEB_OK);
    assert_int_equal(offer(f, &v), NEB_ERR_CORRUPT);
    assert_int_equal(offer(f, &v), NEB_ERR_CORRUPT); // nobody has said anything yet
    assert_false(f->settled);
    assert_int_equal(offer(g, &right), NEB_ERR_CORRUPT);
    again(&f, "settled-right");
    repair(&g, "settled-wrong", "settled-right");
    assert_memory_equal(f->digest, g->digest, sizeof f->digest);
    neb_buf_clear(&logged);
    struct sec_federation *both[] = {f, g};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(offer(both[i], &v), NEB_ERR_DENIED);
        assert_true(both[i]->settled);
        assert_true(was_logged("of a fork that was known"));
        neb_buf_clear(&logged);
        assert_int_equal(offer(both[i], &early), NEB_ERR_DENIED); // it had not come yet
        assert_true(both[i]->settled);
    }
    go_on(&v, 3, 5); // 8: newer than ours, and it goes on from there
    for (int i = 0; i < 2; i++) {
        assert_int_equal(offer(both[i], &v), NEB_ERR_DENIED);
        assert_true(both[i]->settled);
        assert_false(was_logged("of a fork that was known")); // once
    }
    // ours goes on beyond it, and with it what is known
    struct version other = {.l = right.l};
    memcpy(other.digest, right.digest, sizeof right.digest);
    go_on(&right, 4, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(offer(both[i], &right), NEB_OK);
        assert_false(both[i]->settled);
        assert_int_equal(offer(both[i], &v), NEB_ERR_DENIED);
    }
    // another fork, of the branch that is right: of its history is what this home's list was when the first was proven
    go_on(&other, 2, 9);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(offer(both[i], &other), NEB_ERR_CORRUPT);
        assert_false(both[i]->settled);
    }
    again(&f, "settled-right");
    assert_int_equal(offer(f, &other), NEB_ERR_DENIED);
    assert_int_equal(offer(f, &v), NEB_ERR_DENIED);
    // one that hides its history is known by itself, and by what says to follow from it
    struct version cut = {.l = v.l};
    cut.l.version = 20;
    cut.l.n_history = 1;
    memset(cut.l.history[0], 7, sizeof cut.l.history[0]);
    sign_version(&cut);
    assert_int_equal(offer(f, &cut), NEB_ERR_CORRUPT);
    again(&f, "settled-right");
    assert_int_equal(offer(f, &cut), NEB_ERR_DENIED);
    go_on(&cut, 1, 1);
    assert_int_equal(offer(f, &cut), NEB_ERR_DENIED);
    go_on(&right, 1, 1);
    assert_int_equal(offer(f, &right), NEB_OK);
    sec_federation_destroy(&f), sec_federation_destroy(&g);
    neb_buf_free(&right.b), neb_buf_free(&dead.b), neb_buf_free(&v.b), neb_buf_free(&early.b);
    neb_buf_free(&other.b), neb_buf_free(&cut.b);
}

// The file of forks: it holds the newest, and a damaged one is not taken for none.
static void test_forks_kept(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct version v = first_version(false), fork[SEC_FORKS_MAX / 2 + 1];
    struct sec_federation *f = home_with("forks", &v);
    for (int i = 0; i <= SEC_FORKS_MAX / 2; i++) {
        fork[i] = (struct version){.l = v.l};
        fork[i].l.issued += i + 1;
        sign_version(&fork[i]);
        assert_int_equal(offer(f, &fork[i]), NEB_ERR_CORRUPT);
    }
    again(&f, "forks");
    assert_int_equal(f->forks.n, SEC_FORKS_MAX / 2 + 2); // ours is the same in each
    for (int i = 0; i <= SEC_FORKS_MAX / 2; i++) {
        assert_int_equal(offer(f, &fork[i]), NEB_ERR_DENIED);
        neb_buf_free(&fork[i].b);
    }
    for (int i = 0; i < SEC_FORKS_MAX; i++) {
        fork[0].l.issued += 100;
        sign_version(&fork[0]);
        assert_int_equal(offer(f, &fork[0]), NEB_ERR_CORRUPT);
    }
    again(&f, "forks");
    assert_int_equal(f->forks.n, SEC_FORKS_MAX);
    assert_int_equal(offer(f, &fork[0]), NEB_ERR_DENIED);
    sign_version(&fork[1]);
    assert_int_equal(offer(f, &fork[1]), NEB_ERR_CORRUPT); // long ago
    assert_int_equal(neb_path(path, sizeof path, home("forks"), "federation/forked"), NEB_OK);
    assert_int_equal(neb_fs_write(path, "nebfork1 and half a digest", 26, 0600), NEB_OK);
    sec_federation_destroy(&f);
    assert_int_equal(sec_federation_open(home("forks"), &f), NEB_ERR_FORMAT);
    assert_int_equal(neb_fs_remove(path), NEB_OK);
    neb_buf_free(&v.b), neb_buf_free(&fork[0].b), neb_buf_free(&fork[1].b);
}

// Who counts what is refused has it not logged; a fork is another matter.
static void test_hushed(void **state) {
    (void)state;
    struct version v = first_version(false), old, fork;
    go_on(&v, 1, 1);
    struct sec_federation *f = home_with("hushed", &v);
    old = first_version(false);
    fork = (struct version){.l = v.l};
    fork.l.issued++;
    sign_version(&fork);
    for (int quiet = 0; quiet < 2; quiet++) {
        f->hush = quiet;
        neb_buf_clear(&logged);
        assert_int_equal(offer(f, &old), NEB_ERR_DENIED);
        assert_true(was_logged("is older than") == !quiet);
        neb_buf_clear(&logged);
        assert_int_equal(sec_federation_apply(f, v.b.p, v.b.len - 1, NULL), NEB_ERR_FORMAT);
        assert_true((logged.len == 0) == quiet);
        assert_int_equal(offer(f, &fork), NEB_ERR_CORRUPT);
        assert_true(was_logged("two lists of version 2"));
    }
    f->hush_forks = true;
    neb_buf_clear(&logged);
    assert_int_equal(offer(f, &fork), NEB_ERR_CORRUPT);
    assert_int_equal(logged.len, 0);
    f->hush = f->hush_forks = false;
    assert_int_equal(offer(f, &old), NEB_ERR_DENIED);
    assert_true(was_logged("is older than"));
    sec_federation_destroy(&f);
    neb_buf_free(&v.b), neb_buf_free(&old.b), neb_buf_free(&fork.b);
}

// ---- from member to member --------------------------------------------------------------------------------------

// What agent/spread.c has of inter/service.c, which this program has no other part of.
static unsigned told[SEC_MEMBERS_MAX][2]; // by peer: LIST_STAND, LIST

enum neb_status inter_service_tell(struct inter_service *s, uint32_t peer, uint32_t kind,
                                   const void *p, size_t n) {
    (void)s, (void)p, (void)n;
    told[peer][kind == AGENT_MSG_LIST]++;
    return NEB_OK;
}

const struct sec_members *inter_service_members(const struct inter_service *s) {
    static struct sec_members them;
    (void)s;
    for (int i = 0; i < SEC_MEMBERS_MAX; i++)
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
    neb_put_u64(b, v->l.version);
    memcpy(b + 8, v->digest, sizeof v->digest);
    assert_true(agent_spread_message(s, peer, AGENT_MSG_LIST_STAND, b, sizeof b - cut, &c));
    assert_false(c.changed || c.refused);
}

// The next list of the peer is looked at so long after the last one, which has just been heard, and not before.
static void expect_next_look(struct agent_spread *s, uint32_t peer, neb_ns after,
                             const struct version *next) {
    neb_ns left = s->looks[peer] - heard_at;
    if (left < after || left > after + NEB_S / 4)
        fail_msg("the next list is looked at after %.3f s, not %.3f", (double)left / NEB_S,
                 (double)after / NEB_S);
    s->looks[peer] = neb_now() + after; // a list that was taken was synced meanwhile
    struct agent_members_change c = hear_list(s, peer, next);
    assert_false(c.changed || c.refused);
    s->looks[peer] = 0;
}

// a follows old, b follows a, and fork is another list of a's version.
static void make_branches(struct version *old, struct version *a, struct version *b,
                          struct version *fork) {
    *old = *a = first_version(false);
    a->b = (struct neb_buf){0};
    go_on(a, 1, 1);
    *b = *fork = (struct version){.l = a->l};
    memcpy(b->digest, a->digest, sizeof b->digest);
    go_on(b, 1, 1);
    fork->l.issued++;
    sign_version(fork);
}

// Each list that is looked at costs a signature: two a second of each peer, fewer of one whose lists are refused.
static void test_lists_looked_at(void **state) {
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
    assert_true(hear_list(&s, 3, &old).refused); // nothing that is refused makes it sooner
    expect_next_look(&s, 3, 10 * NEB_S, &b);
    s.looks[3] = neb_now() + NEB_S;
    assert_true(hear_list(&s, 4, &b).changed);                  // each peer has its own time
    assert_false(hear_list(&s, SEC_MEMBERS_MAX, &old).refused); // no such peer
    agent_members_destroy(&m);
    neb_buf_free(&old.b), neb_buf_free(&a.b), neb_buf_free(&b.b), neb_buf_free(&fork.b);
}

// Who says that it has an older list, again and again, gets two a second; who has ours or a newer one, none.
static void test_lists_sent(void **state) {
    (void)state;
    static const bool up[SEC_MEMBERS_MAX] = {[1] = true, [3] = true};
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
    hear_stand(&s, 1, &b, 0); // whose lists are of another history shall hear ours, whatever it has
    hear_stand(&s, 3, &b, 0);
    assert_int_equal(told[1][1], 2);
    assert_int_equal(told[3][1], 1);
    // every second to all that are up, and at once after a change
    agent_spread_stand(&s, up);
    agent_spread_list(&s, up);
    for (uint32_t i = 0; i < SEC_MEMBERS_MAX; i++) {
        assert_int_equal(told[i][0], up[i]);
        assert_int_equal(told[i][1], i == 1 ? 3 : i == 3 ? 2 : 0);
    }
    hear_stand(&s, 3, &old, 0); // it has just been sent
    assert_int_equal(told[3][1], 2);
    agent_members_destroy(&m);
    neb_buf_free(&old.b), neb_buf_free(&a.b), neb_buf_free(&b.b), neb_buf_free(&fork.b);
}

// Messages and lists that are refused without end are a few lines of the log, and a number a minute later. A flood of old ones hides no fork.
static void test_refused_quietly(void **state) {
    (void)state;
    static const bool none[SEC_MEMBERS_MAX];
    enum { MANY = 30, FEW = 4 };
    struct version old = first_version(false), a = old, fork;
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
    s.malformed.said -= agent_quiet_for;
    agent_spread_stand(&s, none);
    assert_int_equal(times_logged("29 more malformed messages"), 1);
    assert_int_equal(agent_members_step(m, &c), NEB_OK);
    agent_members_destroy(&m);
    neb_buf_free(&old.b), neb_buf_free(&a.b), neb_buf_free(&fork.b);
}

// Two processes of one home write certificate and hub at once, as an agent's renewal and a command do: each does so whole.
static void test_written_at_once(void **state) {
    (void)state;
    struct version v = first_version(false);
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

// A certificate with its life before it stays; one that is damaged, or missing, is fetched anew.
static void test_certificate_due(void **state) {
    (void)state;
    struct version v = first_version(false);
    struct agent_members *m = members_with("due", &v);
    struct sec_federation *f = NULL;
    struct neb_buf cert = {0};
    assert_int_equal(sec_ca_issue(hub->ca, sec_identity_public(hub_id), &cert), NEB_OK);
    assert_int_equal(sec_federation_open(home("due"), &f), NEB_OK);
    assert_false(renews(m)); // from nobody
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

static int setup(void **state) {
    (void)state;
    char hub_home[NEB_PATH_MAX], backup[NEB_PATH_MAX], code[SEC_CODE_TEXT];
    struct sec_hub_settings s = {"127.0.0.1:7443", "127.0.0.1:7443"};
    neb_log_set_sink(collect, NULL);
    assert_non_null(mkdtemp(dir));
    assert_int_equal(neb_path(hub_home, sizeof hub_home, dir, "hub"), NEB_OK);
    assert_int_equal(neb_path(backup, sizeof backup, dir, "backup"), NEB_OK);
    assert_int_equal(sec_identity_create(hub_home, "hub", &hub_id), NEB_OK);
    assert_int_equal(sec_ca_create(hub_home, "acme", backup, code), NEB_OK);
    assert_int_equal(sec_hub_create(hub_home, &s, sec_identity_public(hub_id), ""), NEB_OK);
    assert_int_equal(sec_hub_open(hub_home, &hub), NEB_OK);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    sec_hub_destroy(&hub);
    sec_identity_destroy(&hub_id);
    neb_log_set_sink(NULL, NULL);
    neb_buf_free(&logged);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

// When a member may have new keys again.
// ---- who signed what before --------------------------------------------------------------------------------------

static const char some_context[] = "nebula test";

static void take(struct agent_members *m, struct version *v, enum sec_list_why why) {
    struct agent_members_change c;
    sec_memberlist_succeed(&v->l, v->digest);
    v->l.why = why;
    snprintf(v->l.subject, sizeof v->l.subject, "rome");
    sign_version(v);
    if (!m)
        return; // it misses this one
    agent_members_apply(m, v->b.p, v->b.len, &c);
    assert_true(c.changed);
}

static void list_rome(struct version *v, const struct sec_identity *id) {
    int i = sec_memberlist_find(&v->l, "rome");
    struct sec_listed e = {.caps = SEC_CAP_ALL};
    if (i >= 0)
        sec_memberlist_drop(&v->l, (uint32_t)i);
    if (!id)
        return;
    e.m.pub = *sec_identity_public(id);
    assert_int_equal(sec_memberlist_insert(&v->l, &e), NEB_OK);
}

// What a member signed is its own through rotations, as far as this one saw them; not that of who has its name after it was taken off.
static void test_name_given_anew(void **state) {
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
    struct version v = first_version(false);
    struct agent_members *m = members_with("names", &v);
    for (int now = 0; now < 4; now++) {
        if (now == 2) { // it was revoked, and another one has been invited
            list_rome(&v, NULL);
            take(m, &v, SEC_LIST_REVOKE);
            assert_false(agent_members_signed_as_now(m, "rome", some_context, "job", 3, sig[1]));
        }
        for (int missed = 0; now == 3 && missed < 2; missed++)
            take(NULL, &v, SEC_LIST_JOIN); // in which the name may have been given to somebody else
        list_rome(&v, id[now]);
        take(m, &v, now == 0 || now == 2 ? SEC_LIST_JOIN : SEC_LIST_ROTATE);
        for (int i = 0; i < 4; i++)
            assert_int_equal(agent_members_signed_as_now(m, "rome", some_context, "job", 3, sig[i]),
                             as_now[now][i]);
        if (now == 1) // after a restart too
            agent_members_destroy(&m);
        if (now == 1)
            assert_int_equal(agent_members_open(home("names"), hub_id, &m), NEB_OK);
        assert_int_equal(agent_members_signed_as_now(m, "rome", some_context, "job", 3, sig[0]),
                         as_now[now][0]);
    }
    // what is said of a job's rounds stands all the same
    assert_true(agent_members_signed_before(m, "rome", some_context, "job", 3, sig[0]));
    assert_false(agent_members_signed_as_now(m, "oslo", some_context, "job", 3, sig[0]));
    agent_members_destroy(&m);
    for (int i = 0; i < 4; i++)
        sec_identity_destroy(&id[i]);
    neb_buf_free(&v.b);
}

// ---- without a hub -------------------------------------------------------------------------------------------------

static struct agent_members_change step_pair(struct agent_members *m) {
    struct agent_members_change c;
    assert_int_equal(agent_members_step(m, &c), NEB_OK);
    return c;
}

// What nebula peer writes is taken while the agent runs; what does not hold this node, or is no list, is not.
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

static void test_rotated(void **state) {
    (void)state;
    char place[] = "/tmp/nebula-rotated-XXXXXX";
    const int64_t t0 = 1764144000;
    uint32_t wait;
    assert_non_null(mkdtemp(place));
    assert_int_equal(sec_rotated_wait(place, "rome", t0, &wait), NEB_OK);
    assert_int_equal(wait, 0);
    assert_int_equal(sec_rotated_note(place, "rome", t0), NEB_OK);
    assert_int_equal(sec_rotated_note(place, "paris", t0 + 1800), NEB_OK);
    assert_int_equal(sec_rotated_wait(place, "rome", t0 + 1800, &wait), NEB_OK);
    assert_int_equal(wait, SEC_ROTATE_EVERY - 1800);
    assert_int_equal(sec_rotated_wait(place, "berlin", t0 + 1800, &wait), NEB_OK);
    assert_int_equal(wait, 0);
    assert_int_equal(sec_rotated_wait(place, "rome", t0 + SEC_ROTATE_EVERY, &wait), NEB_OK);
    assert_int_equal(wait, 0);
    assert_int_equal(sec_rotated_wait(place, "rome", t0 - 10, &wait),
                     NEB_OK); // of a clock that was ahead
    assert_int_equal(wait, 0);
    assert_int_equal(sec_rotated_note(place, "rome", t0 + SEC_ROTATE_EVERY), NEB_OK);
    assert_int_equal(sec_rotated_wait(place, "paris", t0 + SEC_ROTATE_EVERY, &wait), NEB_OK);
    assert_int_equal(wait, 1800); // what is of the hour stays
    assert_int_equal(neb_fs_remove_tree(place), NEB_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),           cmocka_unit_test(test_history),
        cmocka_unit_test(test_without_history), cmocka_unit_test(test_settled),
        cmocka_unit_test(test_forks_kept),      cmocka_unit_test(test_hushed),
        cmocka_unit_test(test_lists_looked_at), cmocka_unit_test(test_lists_sent),
        cmocka_unit_test(test_written_at_once), cmocka_unit_test(test_certificate_due),
        cmocka_unit_test(test_refused_quietly), cmocka_unit_test(test_name_given_anew),
        cmocka_unit_test(test_pair_changes),    cmocka_unit_test(test_rotated),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
