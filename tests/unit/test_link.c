// SPDX-License-Identifier: Apache-2.0
// inter/link: connections of two members come up, stay, are restored, and follow the member list.
#include "tests/unit/link_fixture.h"

#include <dlfcn.h>
#include <netdb.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>

static uint32_t waiting; // result of a reload

// An idle link hears both sides and costs little.
static void test_idle(void **state) {
    (void)state;
    struct site a, b;
    pair_up(&a, &b);
    // traffic of the handshakes, of the second bulk connection and of the first round trips
    neb_ns end = neb_now() + 2 * NEB_S;
    while (neb_now() < end)
        step(&a, &b);
    struct inter_link_stats a0, b0, a1, b1;
    assert_int_equal(inter_link_stats(a.l, a.peer, &a0), NEB_OK);
    assert_int_equal(inter_link_stats(b.l, b.peer, &b0), NEB_OK);
    neb_ns from = neb_now();
    for (end = from + 8 * NEB_S; neb_now() < end;)
        step(&a, &b);
    double seconds = neb_seconds(neb_now() - from);
    assert_int_equal(inter_link_stats(a.l, a.peer, &a1), NEB_OK);
    assert_int_equal(inter_link_stats(b.l, b.peer, &b1), NEB_OK);
    uint64_t sent = a1.sent_bytes - a0.sent_bytes, back = b1.sent_bytes - b0.sent_bytes;
    assert_true(a.down == 0 && b.down == 0);
    assert_true(sent > 0 && back > 0);
    // a heartbeat of 36 bytes every 1.5 s, and two PINGs and PONGs of about 50 bytes each way
    assert_true((double)sent < 30 * seconds + 250 && (double)back < 30 * seconds + 250);
    assert_int_equal(a1.message_bytes, 0); // no messages
    close_pair(&a, &b);
}

static void test_limits(void **state) {
    (void)state;
    struct site a, b;
    pair_up(&a, &b);
    uint8_t *big = calloc(1, 2u << 20);
    assert_int_equal(inter_link_send(a.l, a.peer, INTER_BULK, big, 2u << 20), NEB_ERR_LIMIT);
    assert_int_equal(inter_link_send(a.l, a.peer, INTER_CONTROL, big, 100 * 1024), NEB_ERR_LIMIT);
    assert_int_equal(inter_link_send(a.l, 7, INTER_CONTROL, big, 1), NEB_ERR_INVALID);
    free(big);
    close_pair(&a, &b);
}

static void test_restart(void **state) {
    (void)state;
    struct site a, b;
    pair_up(&a, &b);
    char where[32];
    snprintf(where, sizeof where, "127.0.0.1:%u", inter_link_port(b.l));
    inter_link_destroy(&b.l);
    UNTIL(&a, &b, a.down == 1, 20);
    assert_int_equal(inter_link_send(a.l, a.peer, INTER_CONTROL, "x", 1), NEB_ERR_AGAIN);
    b = open_site(1, &list, 0, where);
    UNTIL(&a, &b, a.up == 2 && b.up == 1, 20);
    assert_int_equal(inter_link_send(a.l, a.peer, INTER_CONTROL, "again", 5), NEB_OK);
    UNTIL(&a, &b, !strcmp(b.last, "again"), 20);
    uint32_t port = inter_link_port(b.l); // the listener also sees the dialler's restart
    inter_link_destroy(&a.l);
    UNTIL(&b, NULL, b.down == 1, 20);
    struct sec_members m = list;
    endpoint(&m, 1, port);
    a = open_site(0, &m, 1, NULL);
    UNTIL(&a, &b, b.up == 2, 20);
    close_pair(&a, &b);
}

static size_t polled(const struct site *a, const struct site *b) {
    zmq_pollitem_t items[64];
    return inter_link_poll_items(a->l, items, 64) + inter_link_poll_items(b->l, items, 64);
}

// If both sides dial, one set of connections stays and works.
static void test_both_dial(void **state) {
    (void)state;
    struct site a = open_site(0, &list, 1, "127.0.0.1:*"),
                b = open_site(1, &list, 0, "127.0.0.1:*");
    struct sec_members m = list;
    m.version++;
    endpoint(&m, 0, inter_link_port(a.l));
    endpoint(&m, 1, inter_link_port(b.l));
    assert_int_equal(inter_link_reload(a.l, &m, NULL, 0, &waiting), NEB_OK);
    assert_int_equal(inter_link_reload(b.l, &m, NULL, 0, &waiting), NEB_OK);
    UNTIL(&a, &b, a.up && b.up, 20);
    neb_ns end = neb_now() + 2 * NEB_S;
    while (neb_now() < end)
        step(&a, &b);
    // two listeners, one dialled set
    UNTIL(&a, &b, a.up == a.down + 1 && b.up == b.down + 1 && polled(&a, &b) == 2 + 2 + 2 * 4, 20);
    // on a loaded machine both sets may come up before one is chosen. Then the test sees one
    // change-over
    assert_true(a.down <= 1 && b.down <= 1);
    assert_int_equal(inter_link_send(a.l, a.peer, INTER_BULK, "\0", 1), NEB_OK);
    assert_int_equal(inter_link_send(b.l, b.peer, INTER_CONTROL, "to a", 4), NEB_OK);
    UNTIL(&a, &b, b.bulk_bytes == 1 && a.control == 1, 20);
    close_pair(&a, &b);
}

// `by` takes a list without the member of `gone`. Messages that `by` sent before still arrive. No
// message of `gone` arrives any more.
static void take_off(struct site *by, struct site *gone, const char *name) {
    struct sec_members m = list;
    assert_int_equal(sec_members_remove(&m, name), NEB_OK);
    assert_int_equal(inter_link_send(gone->l, gone->peer, INTER_CONTROL, "before", 6), NEB_OK);
    UNTIL(gone, by, !strcmp(by->last, "before"), 20);
    assert_int_equal(inter_link_send(by->l, by->peer, INTER_CONTROL, "the list", 8), NEB_OK);
    assert_int_equal(inter_link_reload(by->l, &m, NULL, 0, &waiting), NEB_OK);
    assert_int_equal(inter_link_reload(by->l, &m, NULL, 0, &waiting), NEB_ERR_DENIED); // not newer
    assert_int_equal(inter_link_send(by->l, by->peer, INTER_CONTROL, "more", 4), NEB_ERR_AGAIN);
    assert_int_equal(inter_link_send(gone->l, gone->peer, INTER_CONTROL, "after", 5), NEB_OK);
    step(by, NULL);
    assert_int_equal(by->down, 1); // at once
    UNTIL(by, gone, !strcmp(gone->last, "the list"), 20);
    UNTIL(by, gone, gone->down == 1, 3); // the link was cut; it did not time out
    neb_ns end = neb_now() + 2 * NEB_S;
    while (neb_now() < end)
        step(by, gone);
    assert_string_equal(by->last, "before");
    assert_true(by->up == 1 && gone->up == 1 && by->down == 1);
}

static void test_revoked(void **state) {
    (void)state;
    struct site a, b;
    pair_up(&a, &b);
    take_off(&b, &a, "anna"); // the listener
    close_pair(&a, &b);
    pair_up(&a, &b);
    take_off(&a, &b, "bert"); // the dialler
    close_pair(&a, &b);
}

// A member leaves the list and returns with the same keys, before it was cut. It connects again.
static void test_back_before_cut(void **state) {
    (void)state;
    struct site a, b;
    pair_up(&a, &b);
    struct sec_members m = list;
    assert_int_equal(sec_members_remove(&m, "anna"), NEB_OK);
    assert_int_equal(inter_link_reload(b.l, &m, NULL, 0, &waiting), NEB_OK);
    struct sec_member x = {.pub = *sec_identity_public(ids[0])};
    assert_int_equal(sec_members_add(&m, &x), NEB_OK);
    assert_int_equal(inter_link_reload(b.l, &m, NULL, 0, &waiting), NEB_OK);
    UNTIL(&a, &b, a.up == 2 && b.up == 2, 20);
    assert_true(a.down == 1 && b.down == 1);
    assert_int_equal(inter_link_send(b.l, b.peer, INTER_CONTROL, "again", 5), NEB_OK);
    UNTIL(&a, &b, !strcmp(a.last, "again"), 20);
    close_pair(&a, &b);
}

// A bulk connection breaks just before its set is replaced. It is not redialled for the old set.
// Otherwise each pass would open another connection.
static void test_recycle_while_broken(void **state) {
    (void)state;
    struct site a, b = open_site(1, &list, 0, "127.0.0.1:*");
    struct sec_members m = list;
    endpoint(&m, 1, inter_link_port(b.l));
    a = (struct site){.id = ids[0], .peer = index_of(&m, 1)};
    struct inter_link_config cfg = {
        .identity = ids[0], .members = &m, .n_bulk = 3, .recycle = NEB_S};
    assert_int_equal(inter_link_create(&cfg, &a.l), NEB_OK);
    UNTIL(&a, &b, a.up == 1 && b.up == 1, 20);
    struct inter_link_stats st = {.recycled = 0};
    const struct set *dialed = &a.l->peers[a.peer].s[DIALED];
    UNTIL(&a, &b, neb_now() - dialed->since > cfg.recycle - 100 * NEB_MS, 20);
    a.l->peers[a.peer].s[DIALED].c[1].lost = true;
    uint64_t dialled = a.l->last_way;
    for (neb_ns end = neb_now() + 1500 * NEB_MS; neb_now() < end;)
        step(&a, &b);
    assert_int_equal(inter_link_stats(a.l, a.peer, &st), NEB_OK);
    assert_true(st.recycled >= 1);
    assert_in_range(a.l->last_way - dialled, 1, 2 * (cfg.n_bulk + 1));
    close_pair(&a, &b);
}

static struct sec_members with_new_keys(const struct sec_members *m, int was, int now) {
    struct sec_members out = {.n = 0};
    for (int i = 0; i < 2; i++) {
        struct sec_member x = *sec_members_by_curve(m, sec_identity_public(ids[i])->curve);
        if (i == was) {
            x.pub = *sec_identity_public(ids[now]);
            memcpy(x.pub.name, sec_identity_public(ids[was])->name, sizeof x.pub.name);
        }
        assert_int_equal(sec_members_add(&out, &x), NEB_OK);
    }
    out.version = m->version + 1;
    return out;
}

// A link uses only as many connections as it should. The others stay empty, even if the used ones
// are full.
static void test_uses_few(void **state) {
    (void)state;
    struct site a, b;
    static uint8_t chunk[40 * 1024];
    pair_up(&a, &b);
    struct set *s = link_active(a.l, &a.l->peers[a.peer]);
    UNTIL(&a, &b, s->c[1].open && s->c[2].open && s->c[3].open, 20);
    for (uint32_t use = 1; use <= 3; use++) {
        uint64_t before[4] = {0, s->c[1].sent, s->c[2].sent, s->c[3].sent};
        a.l->peers[a.peer].stripes.use = use;
        // until the same amount waits on all connections in use
        for (uint32_t i = 0; i < 10 * use; i++)
            assert_int_equal(inter_link_send(a.l, a.peer, INTER_BULK, chunk, sizeof chunk), NEB_OK);
        assert_true(s->c[use].sent > before[use]); // its queue was empty
        for (uint32_t i = use + 1; i <= 3; i++)
            assert_int_equal(s->c[i].sent, before[i]);
    }
    close_pair(&a, &b);
}

// If one of several connections breaks, the sender learns which one, and another takes its place.
static void test_connection_lost(void **state) {
    (void)state;
    enum { BULK = 3 };
    struct site a, b;
    static uint8_t chunk[40 * 1024];
    uint64_t way[BULK], next;
    for (size_t i = 0; i < sizeof chunk; i++)
        chunk[i] = (uint8_t)(i * 7);
    pair_up(&a, &b);
    struct set *s = link_active(a.l, &a.l->peers[a.peer]);
    UNTIL(&a, &b, s->c[1].open && s->c[2].open && s->c[3].open, 20);
    for (int i = 0; i < BULK; i++)
        assert_int_equal(
            inter_link_send_on(a.l, a.peer, INTER_BULK, NULL, 0, chunk, sizeof chunk, &way[i]),
            NEB_OK);
    assert_true(way[0] && way[0] != way[1] && way[1] != way[2] && way[0] != way[2]);
    shutdown(s->c[2].fd, SHUT_RDWR);
    UNTIL(&a, NULL, a.lost == 1, 20); // before the other side has acknowledged anything
    assert_int_equal(a.lost_way, way[1]);
    UNTIL(&a, &b, b.bulk_bytes >= 2 * sizeof chunk && s->c[2].open, 20);
    for (int i = 0; i < BULK; i++) {
        assert_int_equal(
            inter_link_send_on(a.l, a.peer, INTER_BULK, NULL, 0, chunk, sizeof chunk, &next),
            NEB_OK);
        assert_int_not_equal(next, way[1]);
    }
    UNTIL(&a, &b, b.bulk_bytes >= (2 + BULK) * sizeof chunk, 20);
    assert_true(a.lost == 1 && b.lost == 0 && !a.down && !b.down && !b.bad);
    close_pair(&a, &b);
    assert_int_equal(a.lost, 1);
}

// If keys change by rotation, the connection stays, and the previous keys are valid until the
// overlap ends. If keys change in another way, the connection is cut.
static void test_rotated(void **state) {
    (void)state;
    struct site a, b;
    pair_up(&a, &b);
    struct sec_members m = with_new_keys(&list, 0, 2);
    assert_int_equal(inter_link_reload(b.l, &m, "anna", 3 * NEB_S, &waiting), NEB_OK);
    assert_non_null(inter_link_previous_keys(b.l, b.peer, NULL));
    assert_memory_equal(inter_link_members(b.l)->m[b.peer].pub.sign,
                        sec_identity_public(ids[2])->sign, SEC_KEY_BYTES);
    assert_int_equal(inter_link_send(a.l, a.peer, INTER_CONTROL, "kept", 4), NEB_OK);
    UNTIL(&a, &b, !strcmp(b.last, "kept"), 20);
    assert_int_equal(b.down, 0);
    UNTIL(&a, &b, b.down == 1 && a.down == 1, 10); // the overlap is over
    assert_null(inter_link_previous_keys(b.l, b.peer, NULL));
    UNTIL(&a, &b, inter_link_refused(b.l) > 0, 10);
    assert_int_equal(b.up, 1);
    close_pair(&a, &b);
    pair_up(&a, &b);
    m = with_new_keys(&list, 0, 2);
    assert_int_equal(inter_link_reload(b.l, &m, NULL, 0, &waiting), NEB_OK);
    UNTIL(&a, &b, b.down == 1 && a.down == 1, 20);
    UNTIL(&a, &b, inter_link_refused(b.l) > 0, 10);
    assert_int_equal(b.up, 1);
    close_pair(&a, &b);
}

// A joining member gets the next index while the others go on. With one name too many on a list,
// only that name waits. A member that the list revokes is cut off and stays out.
static void test_joined(void **state) {
    (void)state;
    struct site a, b;
    pair_up(&a, &b);
    struct sec_members m = list;
    add(&m, 2);
    assert_int_equal(inter_link_reload(b.l, &m, NULL, 0, &waiting), NEB_OK);
    assert_int_equal(inter_link_members(b.l)->n, 3);
    assert_memory_equal(inter_link_members(b.l)->m[2].pub.sign, sec_identity_public(ids[2])->sign,
                        SEC_KEY_BYTES);
    struct sec_members mc = m;
    endpoint(&mc, 1, inter_link_port(b.l));
    struct site c = open_site(2, &mc, 1, NULL);
    UNTIL(&c, &b, c.up == 1 && b.up == 2, 20);
    assert_int_equal(inter_link_send(b.l, 2, INTER_CONTROL, "to carl", 7), NEB_OK);
    UNTIL(&c, &b, !strcmp(c.last, "to carl"), 20);
    assert_true(b.down == 0 && a.down == 0);
    assert_int_equal(waiting, 0);
    assert_int_equal(sec_members_remove(&m, "carl"), NEB_OK);
    for (uint32_t i = 0; m.n < NEB_MEMBERS_MAX; i++) { // 14: with carl 17 names
        struct sec_member *x = &m.m[m.n++];
        *x = (struct sec_member){.connect = SEC_CONNECT_IN};
        snprintf(x->pub.name, sizeof x->pub.name, "other%u", i);
        memset(x->pub.curve, (int)i + 1, SEC_KEY_BYTES);
        memset(x->pub.sign, (int)i + 1, SEC_KEY_BYTES);
    }
    uint64_t refused = inter_link_refused(b.l);
    assert_int_equal(inter_link_reload(b.l, &m, NULL, 0, &waiting), NEB_OK);
    assert_int_equal(waiting, 1);
    assert_int_equal(inter_link_members(b.l)->n, NEB_MEMBERS_MAX);
    assert_non_null(sec_members_by_name(inter_link_members(b.l), "other12"));
    assert_null(sec_members_by_name(inter_link_members(b.l), "other13"));
    assert_null(sec_members_by_name(inter_link_members(b.l), "carl"));
    UNTIL(&c, &b, c.down == 1 && b.down == 1, 20);
    UNTIL(&c, &b, inter_link_refused(b.l) > refused, 20); // refused by ZAP
    assert_int_equal(inter_link_send(b.l, b.peer, INTER_CONTROL, "still", 6), NEB_OK);
    UNTIL(&a, &b, !strcmp(a.last, "still"), 20);
    assert_true(c.up == 1 && b.up == 2 && a.down == 0);
    m.version++; // a later list has room, so nothing waits
    m.n--;
    assert_int_equal(inter_link_reload(b.l, &m, NULL, 0, &waiting), NEB_OK);
    assert_int_equal(waiting, 0);
    inter_link_destroy(&c.l);
    close_pair(&a, &b);
}

// The name server of this program, also for ZeroMQ: "silent" gets no answer, "bert" the addresses
// of bert_at.
static const char *_Atomic bert_at[2];
static atomic_int silent, bert_asked;

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **res) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = NULL;
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&real, &symbol, sizeof real);
    bool bert = node && !strncmp(node, "bert.", 5);
    bert_asked += bert;
    if ((node && !strncmp(node, "silent.", 7)) || (bert && silent)) {
        sleep(4);
        return EAI_AGAIN;
    }
    if (!bert)
        return real(node, service, hints, res);
    int rc = real(bert_at[0], service, hints, res);
    if (rc == 0 && bert_at[1]) {
        struct addrinfo *last = *res;
        while (last->ai_next)
            last = last->ai_next;
        rc = real(bert_at[1], service, hints, &last->ai_next);
    }
    return rc;
}

static void name(struct sec_members *m, int i, const char *host, uint32_t port) {
    snprintf(m->m[index_of(m, i)].endpoint, SEC_ENDPOINT_MAX, "%s.example.org:%u", host, port);
}

// A peer whose name server does not answer delays no other peer.
static void test_name_server_silent(void **state) {
    (void)state;
    struct sec_members m = list;
    add(&m, 2);
    struct site b = open_site(1, &list, 0, "127.0.0.1:*");
    endpoint(&m, 1, inter_link_port(b.l));
    name(&m, 2, "silent", 7400);
    struct site a = open_site(0, &m, 1, NULL);
    UNTIL(&a, &b, a.up == 1 && b.up == 1, 3);
    for (unsigned i = 1; i <= 5; i++) {
        assert_int_equal(inter_link_send(a.l, a.peer, INTER_CONTROL, "hear", 4), NEB_OK);
        UNTIL(&a, &b, b.control == i, 2);
        for (neb_ns end = neb_now() + 500 * NEB_MS; neb_now() < end;)
            step(&a, &b);
    }
    assert_true(!a.down && !b.down);
    neb_ns before = neb_now();
    close_pair(&a, &b); // it does not delay the end either
    assert_true(neb_now() - before < 2 * NEB_S);
}

// If a name has several addresses, one is reached. An address that appears later is dialled too.
// Without a name server, the link dials the address that it knows.
static void test_name_moves(void **state) {
    (void)state;
    struct sec_members m = list;
    struct site b = open_site(1, &list, 0, "127.0.0.1:*");
    uint32_t port = inter_link_port(b.l);
    char where[32];
    name(&m, 1, "bert", port);
    bert_at[0] = "127.0.0.2"; // nobody listens there
    bert_at[1] = "127.0.0.1";
    struct site a = open_site(0, &m, 1, NULL);
    UNTIL(&a, &b, a.up == 1 && b.up == 1, 10);
    inter_link_destroy(&b.l);
    bert_at[0] = "127.0.0.3";
    bert_at[1] = NULL;
    UNTIL(&a, NULL, a.down == 1, 20);
    snprintf(where, sizeof where, "127.0.0.3:%u", port);
    b = open_site(1, &list, 0, where);
    UNTIL(&a, &b, a.up == 2 && b.up == 1, 10);
    int before = bert_asked;
    silent = 1;
    inter_link_destroy(&b.l);
    UNTIL(&a, NULL, a.down == 2, 20);
    UNTIL(&a, NULL, bert_asked > before, 20);
    b = open_site(1, &list, 0, where);
    UNTIL(&a, &b, a.up == 3 && b.up == 1, 10);
    silent = 0;
    close_pair(&a, &b);
}

// A list with a new address of a member redirects the dial, even while the old address is being
// dialled.
static void test_moved(void **state) {
    (void)state;
    struct sec_members m = list;
    struct site b = open_site(1, &list, 0, "127.0.0.1:*");
    snprintf(m.m[index_of(&m, 1)].endpoint, SEC_ENDPOINT_MAX, "127.0.0.2:%u", inter_link_port(b.l));
    struct site a = open_site(0, &m, 1, NULL);
    for (neb_ns end = neb_now() + NEB_S; neb_now() < end;)
        step(&a, &b);
    assert_int_equal(a.up, 0);
    m.version++;
    endpoint(&m, 1, inter_link_port(b.l));
    assert_int_equal(inter_link_reload(a.l, &m, NULL, 0, &waiting), NEB_OK);
    UNTIL(&a, &b, a.up == 1 && b.up == 1, 10);
    m.version++; // a link that is up stays up
    name(&m, 1, "silent", 7400);
    assert_int_equal(inter_link_reload(a.l, &m, NULL, 0, &waiting), NEB_OK);
    assert_int_equal(inter_link_send(a.l, a.peer, INTER_CONTROL, "stays", 5), NEB_OK);
    UNTIL(&a, &b, !strcmp(b.last, "stays"), 10);
    assert_true(!a.down && !b.down);
    close_pair(&a, &b);
}

// Two agents with the same keys (a copied HOME) are reported by a third. An agent that restarts
// often is not.
static void test_copied_home(void **state) {
    (void)state;
    struct inter_link_stats st;
    struct site a, b, copy;
    pair_up(&a, &b);
    struct sec_members m = list;
    endpoint(&m, 1, inter_link_port(b.l));
    for (unsigned i = 0; i < 6; i++) {
        inter_link_destroy(&a.l);
        a = open_site(0, &m, 1, NULL);
        UNTIL(&a, &b, a.up == 1 && b.up == i + 2, 20);
    }
    assert_int_equal(inter_link_stats(b.l, b.peer, &st), NEB_OK);
    assert_int_equal(st.twins, 0);
    copy = open_site(0, &m, 1, NULL);
    for (neb_ns end = neb_now() + 30 * NEB_S; neb_now() < end && !st.twins;) {
        step(&a, &b);
        step(&copy, NULL);
        assert_int_equal(inter_link_stats(b.l, b.peer, &st), NEB_OK);
    }
    assert_int_equal(st.twins, 1);
    inter_link_destroy(&copy.l);
    close_pair(&a, &b);
}

// Opens one link. Returns true if the link found its path fast. On a busy machine it may not find
// it fast, and then it has few connections.
static bool first_number(const char *congestion) {
    struct site s[2];
    struct sec_members m = list;
    struct inter_link_stats t;
    for (int k = 1; k >= 0; k--) {
        struct inter_link_config cfg = {.identity = ids[k],
                                        .members = &m,
                                        .listen = k ? "127.0.0.1:*" : NULL,
                                        .congestion = congestion};
        s[k] = (struct site){.id = ids[k], .peer = index_of(&m, !k)};
        assert_int_equal(inter_link_create(&cfg, &s[k].l), NEB_OK);
        if (k)
            endpoint(&m, 1, inter_link_port(s[k].l));
    }
    UNTIL(&s[0], &s[1], s[0].up == 1 && s[1].up == 1, 20);
    UNTIL(&s[0], &s[1],
          (assert_int_equal(inter_link_stats(s[0].l, s[0].peer, &t), NEB_OK),
           t.bulk_open >= 8 && t.bulk_used == 1 && (t.bulk_open == 8 || t.bulk_open == 16) &&
               (t.bulk_open == 8) == !strcmp(t.congestion, "bbr")),
          20);
    // all connections are used after the first 32 KiB, and not before
    static const uint8_t part[12 << 10];
    const struct inter_stripes *stripes = &s[0].l->peers[s[0].peer].stripes;
    for (int look = 0; look < 20 && stripes->first;
         look++) { // too little data in too long a time does not count
        enum neb_status st =
            NEB_OK; // until the link takes no more; data of the previous round may still wait
        for (int k = 0; k < 5 && st == NEB_OK; k++)
            st = inter_link_send(s[0].l, s[0].peer, INTER_BULK, part, sizeof part);
        assert_true(st == NEB_OK || st == NEB_ERR_AGAIN);
        for (neb_ns end = neb_now() + NEB_S; stripes->first && neb_now() < end;)
            step(&s[0], &s[1]);
    }
    assert_int_equal(stripes->first, 0);
    bool fast = !stripes->slow;
    for (int k = 0; k < 20; k++) // without data the number stays there
        step(&s[0], &s[1]);
    assert_int_equal(inter_link_stats(s[0].l, s[0].peer, &t), NEB_OK);
    if (fast) {
        assert_int_equal(t.bulk_open, strcmp(t.congestion, "bbr") ? 16 : 8);
        assert_int_equal(t.bulk_used, t.bulk_open);
    }
    close_pair(&s[0], &s[1]);
    return fast;
}

// The first number of connections follows the algorithm that the sockets really have, not the
// requested one.
static void test_first_number(void **state) {
    (void)state;
    const char *const asked[] = {NULL, "bbr", "reno", "no such algorithm"};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        int tries = 1;
        while (!first_number(asked[i]))
            assert_in_range(++tries, 2, 5);
    }
}

// Strangers get half of the descriptors that members leave free, two descriptors for each stranger,
// and at least a minimum.
static void test_descriptors(void **state) {
    (void)state;
    struct rlimit was, r;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    static const struct {
        rlim_t limit;
        uint32_t peers, most;
    } x[] = {
        {256, 2, INTER_UNIDENTIFIED_LEAST}, {1024, 1, 127}, {1024, 15, INTER_UNIDENTIFIED_LEAST}};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        r = was;
        r.rlim_cur = x[i].limit;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
        assert_int_equal(link_guard_most(x[i].peers), x[i].most);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_in_range(link_guard_most(1), INTER_UNIDENTIFIED_LEAST, INTER_UNIDENTIFIED_MAX);
}

// ---- other builds

static struct neb_buf said; // warnings

static void hear(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    neb_buf_add(&said, text, strlen(text));
    neb_buf_add(&said, "\n", 1);
}

static unsigned times_said(const char *text) {
    unsigned n = 0;
    for (const uint8_t *p = said.p;
         p && (p = memmem(p, said.len - (size_t)(p - said.p), text, strlen(text))); p++)
        n++;
    return n;
}

static struct inter_link_stats of_peer(struct site *s) {
    struct inter_link_stats st;
    assert_int_equal(inter_link_stats(s->l, s->peer, &st), NEB_OK);
    return st;
}

static struct site open_build(int i, const struct sec_members *m, int other, const char *listen,
                              uint32_t protocol, const char *build) {
    struct site s = {.id = ids[i], .peer = index_of(m, other)};
    struct inter_link_config cfg = {.identity = ids[i],
                                    .members = m,
                                    .listen = listen,
                                    .n_bulk = 3,
                                    .protocol = protocol,
                                    .build = build};
    assert_int_equal(inter_link_create(&cfg, &s.l), NEB_OK);
    return s;
}

// With two protocols there is no link. Both ends log both protocols and builds once, however often
// they dial. The member does not count as a stranger. It is admitted once it has the same protocol.
static void test_other_protocol(void **state) {
    (void)state;
    struct site b = open_build(1, &list, 0, "127.0.0.1:*", 7, "9.1 (\033[31mbee)"), a;
    struct sec_members m = list;
    endpoint(&m, 1, inter_link_port(b.l));
    neb_log_set_sink(hear, NULL);
    neb_buf_clear(&said);
    a = open_build(0, &m, 1, NULL, 6, "8.0 (aaa)");
    UNTIL(&a, &b, of_peer(&a).differs && of_peer(&b).differs, 20);
    struct inter_link_stats sa = of_peer(&a), sb = of_peer(&b);
    assert_int_equal(sa.protocol, 7);
    assert_string_equal(sa.build, "9.1 (?[31mbee)");
    assert_int_equal(sb.protocol, 6);
    assert_string_equal(sb.build, "8.0 (aaa)");
    for (int i = 0; i < 40; i++) { // dialled many times
        a.l->peers[a.peer].dial_at = 0;
        for (neb_ns end = neb_now() + 30 * NEB_MS; neb_now() < end;)
            step(&a, &b);
    }
    assert_true(!a.up && !b.up && !sa.up && !sb.up);
    assert_int_equal(inter_link_send(a.l, a.peer, INTER_CONTROL, "x", 1), NEB_ERR_AGAIN);
    assert_int_equal(times_said("link to bert: cut: it speaks protocol 7 (nebula 9.1 (?[31mbee)), "
                                "this agent protocol 6 (nebula 8.0 (aaa))"),
                     1);
    assert_int_equal(times_said("link to anna: cut: it speaks protocol 6 (nebula 8.0 (aaa)), "
                                "this agent protocol 7"),
                     1);
    assert_int_equal(times_said("cut:"), 2);
    // its connections are closed
    UNTIL(&b, NULL, !b.l->n_unidentified && !b.l->peers[b.peer].speaks.at, 20);
    inter_link_destroy(&a.l);
    a = open_build(0, &m, 1, NULL, 7, "8.1");
    UNTIL(&a, &b, a.up == 1 && b.up == 1, 20);
    sa = of_peer(&a), sb = of_peer(&b);
    assert_true(!sa.differs && !sb.differs && sa.protocol == 7 && sb.protocol == 7);
    assert_string_equal(sb.build, "8.1"); // another build of the same protocol
    neb_log_set_sink(NULL, NULL);
    close_pair(&a, &b);
    neb_buf_free(&said);
}

// Bytes after the beginning of another protocol's HELLO are ignored. In this protocol no bytes may
// follow.
static void test_longer_hello(void **state) {
    (void)state;
    struct site b = open_site(1, &list, 0, "127.0.0.1:*");
    struct peer *p = &b.l->peers[b.peer];
    uint8_t frame[HELLO_MAX + 40] = {0}, rid[RID_BYTES] = {0, 1, 2, 3, 4};
    for (uint32_t k = 0; k < 2; k++) {
        size_t n = link_hello_make(NEB_PROTOCOL + k, "x", HELLO, 5, 0, frame);
        p->speaks.differs = false;
        // no sender is there to get an answer
        assert_false(link_on_hello(b.l, p, rid, -1, frame, n + 40));
        assert_int_equal(p->speaks.differs, k);
        for (size_t cut = 1; cut < n; cut++) {
            p->speaks.differs = false;
            assert_false(link_on_hello(b.l, p, rid, -1, frame, cut));
            assert_false(p->speaks.differs);
        }
    }
    inter_link_destroy(&b.l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_protocol),
        cmocka_unit_test(test_longer_hello),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_both_dial),
        cmocka_unit_test(test_uses_few),
        cmocka_unit_test(test_connection_lost),
        cmocka_unit_test(test_rotated),
        cmocka_unit_test(test_joined),
        cmocka_unit_test(test_revoked),
        cmocka_unit_test(test_back_before_cut),
        cmocka_unit_test(test_name_server_silent),
        cmocka_unit_test(test_name_moves),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_copied_home),
        cmocka_unit_test(test_first_number),
        cmocka_unit_test(test_recycle_while_broken),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
