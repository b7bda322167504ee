// SPDX-License-Identifier: Apache-2.0
// security/federation: which signed lists a member accepts, and which it recognises as a fork.
// security/rotated: when a member may get new keys again.
#include "agent/base/fault.h"
#include "security/invite.h"
#include "tests/unit/federation_fixture.h"

static void test_rules(void **state) {
    (void)state;
    struct sec_federation *f = NULL;
    struct neb_buf old = {0}, b = {0};
    char a[65], z[65], path[NEB_PATH_MAX];
    uint8_t digest[NEB_SHA256_BYTES];
    bool changed;
    struct version first = first_version();
    f = home_with("list", &first);
    neb_buf_add(&old, f->signed_list.p, f->signed_list.len);
    struct sec_list l = f->list;

    // a fork of this version: the message has both digests
    l.issued++;
    sign_list(&l, &b);
    neb_sha256(b.p, b.len, digest);
    neb_hex(digest, sizeof digest, a);
    neb_hex(f->digest, sizeof f->digest, z);
    assert_int_equal(sec_federation_apply(f, b.p, b.len, &changed), NEB_ERR_CORRUPT);
    assert_true(was_logged(a) && was_logged(z));
    // a successor of a different predecessor
    sec_list_succeed(&l, digest);
    sign_list(&l, &b);
    assert_int_equal(sec_federation_apply(f, b.p, b.len, &changed), NEB_ERR_CORRUPT);
    // the right successor: altered, then unchanged
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
    // rollback: by message, and by restoring the old file
    assert_int_equal(sec_federation_apply(f, old.p, old.len, &changed), NEB_ERR_DENIED);
    sec_federation_destroy(&f);
    assert_int_equal(neb_path(path, sizeof path, home("list"), "federation/members.neb"), NEB_OK);
    assert_int_equal(neb_fs_write(path, old.p, old.len, 0600), NEB_OK);
    assert_int_equal(sec_federation_open(home("list"), &f), NEB_ERR_DENIED);
    assert_int_equal(neb_fs_remove(path), NEB_OK);
    assert_int_equal(sec_federation_open(home("list"), &f), NEB_ERR_DENIED);
    // a power cut between the two files: the newer list on disk is the valid one
    assert_int_equal(neb_fs_write(path, b.p, b.len, 0600), NEB_OK);
    assert_int_equal(sec_federation_open(home("list"), &f), NEB_OK);
    l = f->list;
    sec_list_succeed(&l, f->digest);
    sign_list(&l, &b);
    neb_fault_arm("fs.write:2");
    assert_int_not_equal(sec_federation_apply(f, b.p, b.len, &changed), NEB_OK);
    neb_fault_arm(NULL);
    sec_federation_destroy(&f);
    assert_int_equal(sec_federation_open(home("list"), &f), NEB_OK);
    assert_int_equal(f->list.members.version, l.members.version);
    sec_federation_destroy(&f);
    neb_buf_free(&old);
    neb_buf_free(&b);
    neb_buf_free(&first.b);
}

// A fork is found even if this member missed versions, or if the list's history is cut.
static void test_history(void **state) {
    (void)state;
    struct version a = first_version(), b = first_version();
    go_on(&a, 4, 1);
    struct sec_federation *f = home_with("history-a", &a);
    go_on(&b, 3, 1);
    go_on(&b, 1, 2);
    go_on(&b, 2, 1); // version 7, on another version 5
    struct sec_federation *g = home_with("history-b", &b);
    assert_int_equal(f->list.members.version, 5);
    assert_int_equal(offer(f, &b), NEB_ERR_CORRUPT);
    assert_true(was_logged("two lists of version 5"));
    assert_int_equal(f->list.members.version, 5);
    // the same the other way round, by the older list
    assert_int_equal(offer(g, &a), NEB_ERR_CORRUPT);
    sec_federation_destroy(&g);
    struct version old = a;
    old.b = (struct neb_buf){0};
    go_on(&a, 2, 1);
    struct version cut = {.l = a.l};
    cut.l.n_history = 1;
    sign_version(&cut);
    assert_int_equal(offer(f, &cut), NEB_ERR_CORRUPT);
    assert_int_equal(offer(f, &a), NEB_OK); // 7, after 5
    sign_version(&old);
    // the member's own past is a rollback, not a fork
    assert_int_equal(offer(f, &old), NEB_ERR_DENIED);
    sec_federation_destroy(&f);
    assert_int_equal(sec_federation_open(home("history-a"), &f), NEB_OK);
    go_on(&a, SEC_LIST_HISTORY, 1);
    assert_int_equal(offer(f, &a), NEB_OK); // as far back as a history reaches
    assert_int_equal(f->list.n_history, SEC_LIST_HISTORY);
    go_on(&a, SEC_LIST_HISTORY + 1, 1);
    assert_int_equal(offer(f, &a), NEB_ERR_CORRUPT);
    assert_true(was_logged("so far ahead of version 262"));
    sec_federation_destroy(&f);
    neb_buf_free(&a.b), neb_buf_free(&b.b), neb_buf_free(&cut.b), neb_buf_free(&old.b);
}

// opens it again, as an agent that restarts does
static void again(struct sec_federation **f, const char *name) {
    sec_federation_destroy(f);
    assert_int_equal(sec_federation_open(home(name), f), NEB_OK);
}

// Copies the list that is in use in one home to another, as an operator does while the agent is
// down.
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

// After an operator repaired a fork, lists of the dead branch, earlier or later, are refused as
// settled on both sides. A new fork is reported again.
static void test_settled_fork(void **state) {
    (void)state;
    struct version right = first_version(), dead = first_version(), v;
    go_on(&right, 2, 1);
    struct sec_federation *f = home_with("settled-right", &right);
    v = dead; // the branches split after version 1
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
    assert_int_equal(offer(f, &v), NEB_ERR_CORRUPT); // not settled before a restart
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
        assert_int_equal(offer(both[i], &early), NEB_ERR_DENIED); // not seen before
        assert_true(both[i]->settled);
    }
    go_on(&v, 3, 5); // 8: newer than ours, on the dead branch
    for (int i = 0; i < 2; i++) {
        assert_int_equal(offer(both[i], &v), NEB_ERR_DENIED);
        assert_true(both[i]->settled);
        assert_false(was_logged("of a fork that was known")); // logged once
    }
    // our branch gets a later version than the dead one, and the settled fork stays known
    struct version other = {.l = right.l};
    memcpy(other.digest, right.digest, sizeof right.digest);
    go_on(&right, 4, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(offer(both[i], &right), NEB_OK);
        assert_false(both[i]->settled);
        assert_int_equal(offer(both[i], &v), NEB_ERR_DENIED);
    }
    // another fork, which leaves the right branch. Its history holds the list that this home had at
    // the first proof
    go_on(&other, 2, 9);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(offer(both[i], &other), NEB_ERR_CORRUPT);
        assert_false(both[i]->settled);
    }
    again(&f, "settled-right");
    assert_int_equal(offer(f, &other), NEB_ERR_DENIED);
    assert_int_equal(offer(f, &v), NEB_ERR_DENIED);
    // a list that hides its history is recognised by its own digest, and by a list that claims to
    // follow it
    struct version cut = {.l = v.l};
    cut.l.members.version = 20;
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

// The file of forks keeps the newest, and a damaged file is an error.
static void test_forks_kept(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct version v = first_version(), fork[SEC_FORKS_MAX / 2 + 1];
    struct sec_federation *f = home_with("forks", &v);
    for (int i = 0; i <= SEC_FORKS_MAX / 2; i++) {
        fork[i] = (struct version){.l = v.l};
        fork[i].l.issued += i + 1;
        sign_version(&fork[i]);
        assert_int_equal(offer(f, &fork[i]), NEB_ERR_CORRUPT);
    }
    again(&f, "forks");
    assert_int_equal(f->forks.n, SEC_FORKS_MAX / 2 + 2); // our list is the same in each fork
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
    assert_int_equal(offer(f, &fork[1]), NEB_ERR_CORRUPT); // dropped long ago
    assert_int_equal(neb_path(path, sizeof path, home("forks"), "federation/forked"), NEB_OK);
    assert_int_equal(neb_fs_write(path, "nebfork1 and half a digest", 26, 0600), NEB_OK);
    sec_federation_destroy(&f);
    assert_int_equal(sec_federation_open(home("forks"), &f), NEB_ERR_FORMAT);
    assert_int_equal(neb_fs_remove(path), NEB_OK);
    neb_buf_free(&v.b), neb_buf_free(&fork[0].b), neb_buf_free(&fork[1].b);
}

// hush stops the log of refused lists, but not of forks; hush_forks stops that too.
static void test_hush(void **state) {
    (void)state;
    struct version v = first_version(), old, fork;
    go_on(&v, 1, 1);
    struct sec_federation *f = home_with("hushed", &v);
    old = first_version();
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

// When a member may get new keys again.
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
                     NEB_OK); // the clock was ahead before
    assert_int_equal(wait, 0);
    assert_int_equal(sec_rotated_note(place, "rome", t0 + SEC_ROTATE_EVERY), NEB_OK);
    assert_int_equal(sec_rotated_wait(place, "paris", t0 + SEC_ROTATE_EVERY, &wait), NEB_OK);
    assert_int_equal(wait, 1800); // entries of the last hour stay
    assert_int_equal(neb_fs_remove_tree(place), NEB_OK);
}

// The log names a lost or damaged file of a federation. The home never counts as a home without a
// hub.
static void test_lost_files(void **state) {
    (void)state;
    struct version v = first_version();
    struct sec_federation *f = home_with("lost", &v);
    static const char *const files[] = {"ca.pem", "members.neb", "seen"};
    sec_federation_destroy(&f);
    for (size_t i = 0; i < 3; i++)
        for (int way = 0; way < 3; way++) {
            char path[NEB_PATH_MAX], name[64];
            struct neb_buf was = {0};
            snprintf(name, sizeof name, "federation/%s", files[i]);
            assert_int_equal(neb_path(path, sizeof path, home("lost"), name), NEB_OK);
            assert_int_equal(neb_fs_read(path, 1 << 20, &was), NEB_OK);
            if (way < 2)
                assert_int_equal(neb_fs_write(path, was.p, way * was.len / 2, 0600), NEB_OK);
            else
                assert_int_equal(neb_fs_remove(path), NEB_OK);
            neb_buf_clear(&logged);
            enum neb_status st = sec_federation_open(home("lost"), &f);
            bool made_again = i == 2 && way == 2; // `seen` is made again from the list
            assert_true(made_again ? st == NEB_OK : st != NEB_OK && st != NEB_ERR_NOT_FOUND);
            assert_true(was_logged(name));
            sec_federation_destroy(&f);
            assert_int_equal(neb_fs_write(path, was.p, was.len, 0600), NEB_OK);
            neb_buf_free(&was);
        }
    assert_int_equal(sec_federation_open(home("lost"), &f), NEB_OK);
    sec_federation_destroy(&f);
    neb_buf_free(&v.b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_files), cmocka_unit_test(test_rules),
        cmocka_unit_test(test_history),    cmocka_unit_test(test_settled_fork),
        cmocka_unit_test(test_forks_kept), cmocka_unit_test(test_hush),
        cmocka_unit_test(test_rotated),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
