// SPDX-License-Identifier: Apache-2.0
// Updates that were complete here and are lost: the disk has lost their bytes, or returns other
// bytes. Most often the other members still have the same bytes. So this node asks them by key and
// digest, as a member that is behind does (WANT, answered by MANIFEST and CHUNK, or GONE), although
// the record is committed here.
//
//     open round        its slot waits for it again; the worker submits its own update again
//     earlier rounds    a slot of their own (job.missing) until the bytes are here: FOUND; or until
//                       every member that can be reached has answered GONE: BEHIND
#include "agent/base/array.h"
#include "inter/round/node_state.h"

#include <stdlib.h>
#include <string.h>

struct slot *node_lost_slot(struct job *j, const struct inter_key *k) {
    for (size_t i = 0; i < j->n_missing; i++)
        if (inter_key_equal(&j->missing[i].m.key, k))
            return &j->missing[i];
    return NULL;
}

static void remove_lost(struct job *j, size_t i) {
    node_clear_slot(&j->missing[i]);
    j->missing[i] = j->missing[--j->n_missing];
}

void node_lost_free(struct job *j) {
    while (j->n_missing)
        remove_lost(j, j->n_missing - 1);
    free(j->missing);
}

static void of_open_round(struct step *s, struct job *j, struct fragment *g,
                          const struct inter_manifest *m) {
    struct slot *t = &g->slots[m->key.member];
    if (!t->known || !t->whole || !inter_key_equal(&t->m.key, &m->key))
        return;
    for (size_t i = j->n_serves; i-- > 0;)
        if (inter_key_equal(&j->serves[i].m.key, &m->key))
            node_serve_remove(j, i);
    inter_bitmap_free(&t->got);
    if ((s->st = inter_bitmap_init(&t->got, inter_chunks(m->bytes, m->chunk_bytes))) != NEB_OK)
        return;
    t->whole = t->checking = false;
    t->senders = mset_none();
    mset_remove(&t->holders, j->c.self);
    t->moved = s->now - want_late; // asked for at once
    node_act(s, INTER_ACT_BLOB_OPEN)->manifest = t->m;
    node_send_state_all(s, j, t); // it no longer counts as a copy
}

static enum neb_status add(struct job *j, const struct inter_manifest *m) {
    struct slot *p = neb_array_more(j->missing, j->n_missing, &j->cap_missing, 8, sizeof *p);
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu lost updates", j->n_missing + 1);
    j->missing = p;
    struct slot *t = &j->missing[j->n_missing];
    *t = (struct slot){.known = true, .m = *m, .asked = m->key.member};
    NEB_TRY(inter_bitmap_init(&t->got, inter_chunks(m->bytes, m->chunk_bytes)));
    j->n_missing++;
    return NEB_OK;
}

void node_on_blob_lost(struct step *s) {
    const struct inter_manifest *m = s->e->manifest;
    struct job *j = node_find_job(s->n, m->key.job);
    struct fragment *g = node_find_fragment(j, m->key.fragment);
    if (!g || node_is_witness(j) || m->key.member >= j->c.n_members || m->key.round > g->round)
        return;
    if (m->key.round == g->round) {
        of_open_round(s, j, g, m);
        return;
    }
    if (node_lost_slot(j, &m->key))
        return;
    // A worker asks for one round of a fragment at a time. It has what it asked for before, or does
    // not need it any more.
    for (size_t i = j->n_missing; i-- > 0;)
        if (j->missing[i].m.key.fragment == m->key.fragment &&
            j->missing[i].m.key.round != m->key.round)
            remove_lost(j, i);
    if ((s->st = add(j, m)) == NEB_OK)
        node_act(s, INTER_ACT_BLOB_OPEN)->manifest = *m;
}

bool node_lost_on_manifest(struct step *s, struct job *j, const struct inter_manifest *m,
                           uint8_t from) {
    struct slot *t = node_lost_slot(j, &m->key);
    if (!t || memcmp(t->m.sha256, m->sha256, sizeof m->sha256) || t->no_room)
        return t != NULL;
    node_send_state(s, j, t, from);
    return true;
}

void node_lost_on_gone(struct job *j, const struct inter_key *k, uint8_t from) {
    struct slot *t = node_lost_slot(j, k);
    if (!t)
        return;
    mset_add(&t->gone, from);
    t->sought = false; // the next member is asked at once
}

void node_lost_found(struct step *s, struct job *j, struct slot *t) {
    const struct inter_key k = t->m.key;
    remove_lost(j, (size_t)(t - j->missing));
    for (size_t i = 0; i < j->n_missing; i++) // the worker needs all updates of the round
        if (j->missing[i].m.key.fragment == k.fragment && j->missing[i].m.key.round == k.round)
            return;
    node_act(s, INTER_ACT_FOUND)->key = k;
}

// A member that was asked and sends nothing may just be slow: another one is asked besides.
static void ask(struct step *s, struct job *j, struct slot *t) {
    struct member_set from = mset_none();
    for (uint8_t m = 0; m < j->c.n_members; m++)
        if (m != j->c.self && mset_has(node_data(j), m) && node_direct(s, j, m))
            mset_add(&from, m);
    struct member_set left = mset_minus(from, t->gone);
    if (mset_empty(left) && !mset_empty(from) && s->now - t->moved > want_late) {
        t->gone = mset_none();
        t->sought = false;
        t->moved = s->now;
        node_behind(s, j, &t->m.key);
    }
    if (mset_empty(left) || (t->sought && s->now - t->moved < repeat_after))
        return;
    do
        t->asked = (uint8_t)((t->asked + 1) % j->c.n_members);
    while (!mset_has(left, t->asked));
    t->moved = s->now;
    t->sought = true;
    mset_add(&t->may_send, t->asked);
    node_send_key(s, j, MSG_WANT, &t->m.key, t->asked);
}

void node_lost_tick(struct step *s, struct job *j) {
    for (size_t i = 0; i < j->n_missing; i++) {
        struct slot *t = &j->missing[i];
        if (t->no_room && s->now >= t->room_at) {
            t->room_at = s->now + room_last; // or earlier: an answer sets the next time
            node_act(s, INTER_ACT_BLOB_OPEN)->manifest = t->m;
        }
        if (!t->no_room && !t->checking)
            ask(s, j, t);
    }
}
