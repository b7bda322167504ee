// SPDX-License-Identifier: Apache-2.0
// For test_link*.c: links of two or three members in one process over loopback.
#ifndef LINK_FIXTURE_H
#define LINK_FIXTURE_H
#include "inter/link/link.h"
#include "inter/link/state.h"
#include "tests/unit/scratch.h"

#include <string.h>
#include <unistd.h>

struct site {
    struct sec_identity *id;
    struct inter_link *l;
    uint32_t peer; // index of the other member
    unsigned up, down, control, lost;
    uint64_t lost_way; // the newest
    uint64_t bulk_bytes;
    uint64_t bad;
    char last[64];
    neb_ns control_at;
};

static struct sec_identity *ids[3]; // anna and bert know each other; carl is a stranger
static struct sec_members list;     // anna, bert

static inline void add(struct sec_members *m, int i) {
    struct sec_member x = {.pub = *sec_identity_public(ids[i])};
    assert_int_equal(sec_members_add(m, &x), NEB_OK);
}

static inline uint32_t index_of(const struct sec_members *m, int i) {
    return (uint32_t)(sec_members_by_curve(m, sec_identity_public(ids[i])->curve) - m->m);
}

static inline void endpoint(struct sec_members *m, int i, uint32_t port) {
    snprintf(m->m[index_of(m, i)].endpoint, SEC_ENDPOINT_MAX, "127.0.0.1:%u", port);
}

static inline struct site open_site(int i, const struct sec_members *m, int other,
                                    const char *listen) {
    struct site s = {.id = ids[i], .peer = index_of(m, other)};
    struct inter_link_config cfg = {
        .identity = ids[i], .members = m, .listen = listen, .n_bulk = 3};
    assert_int_equal(inter_link_create(&cfg, &s.l), NEB_OK);
    return s;
}

static inline void on_event(void *user, const struct inter_link_event *e) {
    struct site *s = user;
    s->up += e->kind == INTER_LINK_UP;
    s->down += e->kind == INTER_LINK_DOWN;
    s->lost += e->kind == INTER_LINK_LOST;
    s->lost_way = e->kind == INTER_LINK_LOST ? e->way : s->lost_way;
    if (e->kind != INTER_LINK_MSG)
        return;
    if (e->channel == INTER_CONTROL) {
        s->control++;
        s->control_at = neb_now();
        snprintf(s->last, sizeof s->last, "%.*s", (int)e->len, (const char *)e->data);
    } else {
        for (size_t i = 0; i < e->len; i += 4093)
            s->bad += e->data[i] != (uint8_t)(i * 7);
        s->bulk_bytes += e->len;
    }
}

static inline void step(struct site *a, struct site *b) {
    zmq_pollitem_t items[64];
    size_t n = a->l ? inter_link_poll_items(a->l, items, 32) : 0;
    n += b && b->l ? inter_link_poll_items(b->l, items + n, 64 - n) : 0;
    assert_true(n <= 64);
    zmq_poll(items, (int)n, 10);
    if (a->l)
        assert_int_equal(inter_link_process(a->l, on_event, a), NEB_OK);
    if (b && b->l)
        assert_int_equal(inter_link_process(b->l, on_event, b), NEB_OK);
}

#define UNTIL(a, b, cond, seconds)                                                                 \
    do {                                                                                           \
        neb_ns end_ = neb_now() + (neb_ns)((seconds) * (double)NEB_S);                             \
        while (!(cond) && neb_now() < end_)                                                        \
            step(a, b);                                                                            \
        assert_true(cond);                                                                         \
    } while (0)

static inline void pair_up(struct site *a, struct site *b) {
    *b = open_site(1, &list, 0, "127.0.0.1:*");
    struct sec_members m = list;
    endpoint(&m, 1, inter_link_port(b->l));
    *a = open_site(0, &m, 1, NULL);
    UNTIL(a, b, a->up == 1 && b->up == 1, 20);
}

static inline void close_pair(struct site *a, struct site *b) {
    inter_link_destroy(&a->l);
    inter_link_destroy(&b->l);
}

static inline int setup(void **state) {
    static const char *const names[] = {"anna", "bert", "carl"};
    assert_int_equal(scratch_make(state), 0);
    for (int i = 0; i < 3; i++) {
        char home[NEB_PATH_MAX];
        assert_int_equal(neb_path(home, sizeof home, dir, names[i]), NEB_OK);
        assert_int_equal(sec_identity_create(home, names[i], &ids[i]), NEB_OK);
    }
    add(&list, 0);
    add(&list, 1);
    return 0;
}

static inline int teardown(void **state) {
    for (int i = 0; i < 3; i++)
        sec_identity_destroy(&ids[i]);
    return scratch_remove(state);
}

#endif
