// SPDX-License-Identifier: Apache-2.0
// Blobs that leave: to which member each goes, the window of every path, and the answers (ACK,
// STATE, WANT). An owner pushes its update; any other member that has it is asked for it (WANT).
// From here on both are the same.
#include "agent/base/array.h"
#include "inter/round/node_state.h"

#include <stdlib.h>
#include <string.h>

void node_serve_remove(struct job *j, size_t i) {
    inter_sender_free(&j->serves[i].out);
    j->serves[i] = j->serves[--j->n_serves];
}

static struct serve *find_serve(struct job *j, const struct inter_key *k, uint8_t to) {
    for (size_t i = 0; i < j->n_serves; i++)
        if (j->serves[i].to == to && inter_key_equal(&j->serves[i].m.key, k))
            return &j->serves[i];
    return NULL;
}

// Not ready before the STATE that answers the manifest, unless the chunk brings the manifest.
// Chunks use other connections: they would overtake it, be dropped as unknown, and wait for their
// timeout.
enum neb_status node_serve_add(struct step *s, struct job *j, uint8_t to,
                               const struct inter_manifest *m) {
    struct serve *v = find_serve(j, &m->key, to);
    if (v) {
        v->moved = s->now;
        return NEB_OK;
    }
    struct serve *p = neb_array_more(j->serves, j->n_serves, &j->cap_serves, 16, sizeof *p);
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %zu transfers", j->n_serves + 1);
    j->serves = p;
    v = &j->serves[j->n_serves];
    *v = (struct serve){.to = to, .m = *m, .moved = s->now};
    NEB_TRY(inter_sender_init(&v->out, m->bytes, m->chunk_bytes));
    j->n_serves++;
    return NEB_OK;
}

void node_serves_lost(struct step *s, struct job *j, uint8_t member) {
    for (size_t i = 0; i < j->n_serves; i++)
        if (j->serves[i].to == member) {
            inter_sender_link_lost(&j->serves[i].out);
            j->serves[i].pushed = false;
            inter_estimate_lost(&s->n->paths[j->c.peers[member]].estimate);
        }
}

bool node_serve_push(struct job *j, uint8_t to, const struct inter_manifest *m) {
    struct serve *v = find_serve(j, &m->key, to);
    if (!v || inter_chunks(m->bytes, m->chunk_bytes) != 1)
        return false;
    return v->pushed = v->out.ready = true;
}

void node_serve_behind(struct job *j, uint8_t to, uint32_t fragment) {
    for (size_t i = 0; i < j->n_serves; i++) {
        struct serve *v = &j->serves[i];
        if (v->to != to || !v->pushed || v->m.key.fragment != fragment)
            continue;
        inter_sender_way_lost(&v->out, 0);
        v->out.ready = false;
    }
}

bool node_serve_push_again(struct job *j, uint8_t to, const struct inter_manifest *m) {
    struct serve *v = find_serve(j, &m->key, to);
    if (!v || !v->pushed)
        return false;
    inter_sender_way_lost(&v->out, 0);
    return v->out.ready = true;
}

static bool accepts(const struct inter_record *r, const struct inter_manifest *m) {
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].member == m->key.member && r->entries[i].verdict != INTER_ACCEPTED)
            return false;
    return node_lists(r, m);
}

// Drops transfers that the round's record does not accept. Nobody acknowledges their chunks now, so
// they would block the window for the next update, and for other jobs, until they expire.
void node_serves_decided(struct job *j, const struct fragment *g) {
    for (size_t i = j->n_serves; i-- > 0;) {
        const struct inter_manifest *m = &j->serves[i].m;
        if (m->key.fragment == node_index(j, g) && m->key.round == g->round &&
            !accepts(&g->decision, m))
            node_serve_remove(j, i);
    }
}

// A member that is receiving an update of this round gets the rest. A member that is away will ask.
void node_serves_round_over(struct step *s, struct job *j, const struct fragment *g) {
    node_serves_decided(j, g); // one may have been asked for since
    for (size_t i = 0; i < j->n_serves;) {
        const struct serve *v = &j->serves[i];
        if (v->m.key.fragment == node_index(j, g) && v->m.key.round <= g->round &&
            (!node_direct(s, j, v->to) || inter_sender_done(&v->out)))
            node_serve_remove(j, i);
        else
            i++;
    }
}

static uint64_t flying_to(const struct job *j, uint32_t peer) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < j->n_serves; i++)
        if (j->c.peers[j->serves[i].to] == peer)
            bytes += j->serves[i].out.flying_bytes;
    return bytes;
}

// The header's last field is the first 8 bytes of the chunk's SHA-256. It is zero here: the caller,
// which reads the bytes, fills it in.
static void send_chunk(struct step *s, const struct serve *v, uint32_t peer, uint32_t chunk) {
    struct path *p = &s->n->paths[peer];
    struct neb_buf *b = node_begin(s, v->pushed ? MSG_UPDATE : MSG_CHUNK);
    if (v->pushed) {
        node_put_pushed(b, &v->m);
    } else {
        inter_key_put(b, &v->m.key);
        neb_buf_u32(b, chunk);
    }
    neb_buf_u64(b, 0);
    struct inter_action *a = node_act(s, INTER_ACT_SEND_CHUNK);
    a->peer = peer;
    a->key = v->m.key;
    a->chunk = chunk;
    a->offset = (uint64_t)chunk * v->m.chunk_bytes;
    a->len = inter_chunk_length(v->m.bytes, v->m.chunk_bytes, chunk);
    a->at = s->out->bytes.len;
    a->size = b->len;
    neb_buf_add(&s->out->bytes, b->p, b->len);
    p->stats.payload_sent += a->len;
    p->stats.payload_resent += inter_sender_repeats(&v->out, chunk) ? a->len : 0;
}

// Of the job's transfers to the peer, takes the first one that has a chunk to send, and sends the
// chunk. flying: bytes in flight to the peer, of all jobs.
static int64_t send_next(struct step *s, struct job *j, uint32_t peer, uint64_t flying) {
    struct path *p = &s->n->paths[peer];
    for (size_t i = 0; i < j->n_serves; i++) {
        struct serve *v = &j->serves[i];
        if (j->c.peers[v->to] != peer || !v->out.ready)
            continue;
        if (!flying && !inter_sender_done(&v->out) && inter_estimate_restart(&p->estimate, s->now))
            node_act(s, INTER_ACT_RESTART_LINK)->peer = peer;
        int64_t c = inter_sender_next(&v->out, inter_estimate_window(&p->estimate),
                                      flying - v->out.flying_bytes, &p->estimate, s->now);
        if (c >= 0)
            send_chunk(s, v, peer, (uint32_t)c);
        if (c != INTER_SENDER_NONE)
            return c;
    }
    return INTER_SENDER_NONE;
}

// The job with the fewest bytes in flight is next. If the window does not take its chunk, no chunk
// leaves, because smaller chunks of another job would keep the window full. So each job gets its
// share of a path, whichever began first.
static void fill_window(struct step *s, uint32_t peer, const bool has[JOBS_MAX],
                        uint64_t flying[JOBS_MAX]) {
    bool may[JOBS_MAX];
    memcpy(may, has, sizeof may);
    while (s->st == NEB_OK) {
        uint64_t all = 0;
        int least = -1;
        for (int i = 0; i < JOBS_MAX; i++) {
            all += flying[i];
            if (may[i] && (least < 0 || flying[i] < flying[least]))
                least = i;
        }
        int64_t c = least < 0 ? INTER_SENDER_FULL : send_next(s, &s->n->jobs[least], peer, all);
        if (c == INTER_SENDER_FULL)
            return;
        may[least] = c >= 0;
        flying[least] = c < 0 ? flying[least] : flying_to(&s->n->jobs[least], peer);
    }
}

void node_pump(struct step *s) {
    struct inter_node *n = s->n;
    for (uint32_t peer = 0; peer < PEERS_MAX; peer++) {
        bool has[JOBS_MAX] = {0}, any = false;
        uint64_t flying[JOBS_MAX] = {0};
        for (int i = 0; i < JOBS_MAX && n->paths[peer].up; i++) {
            const struct job *j = &n->jobs[i];
            if (!j->open || !j->n_serves)
                continue;
            flying[i] = flying_to(j, peer);
            any |= has[i] = !j->held;
        }
        if (any)
            fill_window(s, peer, has, flying);
    }
}

static void acknowledged(struct step *s, struct serve *v, uint32_t chunk) {
    uint64_t flying = 0;
    for (int i = 0; i < JOBS_MAX; i++)
        flying += s->n->jobs[i].open ? flying_to(&s->n->jobs[i], s->from) : 0;
    (void)inter_sender_ack(&v->out, chunk, flying - v->out.flying_bytes,
                           &s->n->paths[s->from].estimate, s->now);
}

void node_serve_on_state(struct step *s, struct job *j, const struct inter_key *k,
                         const uint8_t digest[STATE_DIGEST], uint8_t from, enum inter_holding h,
                         const uint8_t *bits, uint32_t len) {
    struct serve *v = find_serve(j, k, from);
    if (!v || memcmp(v->m.sha256, digest, STATE_DIGEST))
        return;
    v->moved = s->now;
    if (v->pushed && h != INTER_HOLD_PART) // it has no ACK
        acknowledged(s, v, 0);
    bool in_vain = inter_sender_done(&v->out) && h == INTER_HOLD_PART;
    if (v->pushed) // it has dropped the UPDATE, and takes CHUNKs now: it has the manifest
        inter_sender_way_lost(&v->out, 0);
    v->pushed = false;
    if (h != INTER_HOLD_PART) {
        node_serve_remove(j, (size_t)(v - j->serves));
    } else if (inter_sender_state(&v->out, bits, len)) {
        v->out.ready = true;
        if (in_vain && !inter_sender_done(&v->out)) { // the bytes on this disk may have changed
            struct inter_action *a = node_act(s, INTER_ACT_VERIFY);
            a->peer = s->from;
            a->key = *k;
        }
    } else {
        node_fault(s, INTER_FAULT_MALFORMED);
    }
}

void node_on_ack(struct step *s, struct neb_rd *r) {
    struct inter_key k;
    inter_key_get(r, &k);
    uint32_t chunk = neb_rd_u32(r);
    if (!neb_rd_done(r)) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, k.job);
    int m = j ? node_member(j, s->from) : -1;
    struct serve *v = m < 0 ? NULL : find_serve(j, &k, (uint8_t)m);
    if (!v)
        return; // of a transfer that is over
    acknowledged(s, v, chunk);
    v->moved = s->now;
}

void node_on_want(struct step *s, struct neb_rd *r) {
    struct inter_key k;
    inter_key_get(r, &k);
    if (!neb_rd_done(r) || k.member >= NEB_MEMBERS_MAX) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, k.job);
    struct fragment *g = node_find_fragment(j, k.fragment);
    int m = j ? node_member(j, s->from) : -1;
    if (!g || m < 0 || s->from != s->e->peer)
        return;
    const struct slot *t = &g->slots[k.member];
    bool any = k.attempt == ANY_ATTEMPT, open = k.round == g->round && t->known && t->whole;
    if (open && (any || inter_key_equal(&k, &t->m.key))) {
        if ((s->st = node_serve_add(s, j, (uint8_t)m, &t->m)) == NEB_OK)
            node_send_manifest(s, j, &t->m, (uint8_t)m);
        return;
    }
    struct inter_action *a = node_act(s, INTER_ACT_SERVE);
    a->peer = s->from;
    a->key = k;
}

// A member asks for one earlier round of an update at a time: it no longer wants the transfers of
// other earlier rounds.
static void serves_of_before(struct job *j, const struct inter_key *k, uint8_t to) {
    for (size_t i = j->n_serves; i-- > 0;) {
        const struct inter_key *x = &j->serves[i].m.key;
        if (j->serves[i].to == to && x->fragment == k->fragment && x->member == k->member &&
            !inter_key_equal(x, k) && x->round < j->fragments[k->fragment].round)
            node_serve_remove(j, i);
    }
}

void node_on_serve(struct step *s) {
    const struct inter_key *k = &s->e->key;
    struct job *j = node_find_job(s->n, k->job);
    if (j && s->e->peer == j->c.peers[j->c.self]) {
        node_own_kept(s, j, k, s->e->manifest);
        return;
    }
    int m = j ? node_member(j, s->from) : -1;
    if (m < 0)
        return;
    struct serve *v = find_serve(j, k, (uint8_t)m);
    if (!s->e->manifest) {
        if (v)
            node_serve_remove(j, (size_t)(v - j->serves));
        node_send_key(s, j, MSG_GONE, k, (uint8_t)m);
        return;
    }
    serves_of_before(j, k, (uint8_t)m);
    if ((s->st = node_serve_add(s, j, (uint8_t)m, s->e->manifest)) == NEB_OK)
        node_send_manifest(s, j, s->e->manifest, (uint8_t)m);
}

void node_on_send_failed(struct step *s) {
    struct job *j = node_find_job(s->n, s->e->key.job);
    int m = j ? node_member(j, s->e->peer) : -1;
    struct serve *v = m < 0 ? NULL : find_serve(j, &s->e->key, (uint8_t)m);
    // Otherwise its chunks would take the window again and again, and other jobs could not send.
    if (j && s->e->ok)
        j->held = true;
    if (!v)
        return;
    struct inter_path_stats *t = &s->n->paths[s->e->peer].stats;
    uint32_t len = inter_chunk_length(v->m.bytes, v->m.chunk_bytes, s->e->chunk);
    t->payload_sent -= len;
    t->payload_resent -= inter_sender_repeats(&v->out, s->e->chunk) ? len : 0;
    inter_sender_unsend(&v->out, s->e->chunk);
    // A chunk that is held back tells nothing about the path, nor does a window full of them.
    inter_estimate_full(&s->n->paths[s->e->peer].estimate, s->e->ok ? 0 : s->now);
}

void inter_node_sent_on(struct inter_node *n, uint32_t peer, const struct inter_key *k,
                        uint32_t chunk, uint64_t way) {
    struct job *j = node_find_job(n, k->job);
    int m = j ? node_member(j, peer) : -1;
    struct serve *v = m < 0 ? NULL : find_serve(j, k, (uint8_t)m);
    if (v)
        inter_sender_sent_on(&v->out, chunk, way);
}

void node_on_way_lost(struct step *s) {
    for (int i = 0; i < JOBS_MAX; i++) {
        struct job *j = &s->n->jobs[i];
        for (size_t k = 0; j->open && k < j->n_serves; k++)
            if (j->c.peers[j->serves[k].to] == s->e->peer)
                inter_sender_way_lost(&j->serves[k].out, s->e->way);
    }
}

void node_serves_tick(struct step *s, struct job *j) {
    for (size_t i = 0; i < j->n_serves;) {
        struct serve *v = &j->serves[i];
        inter_sender_expire(&v->out, s->now,
                            inter_estimate_patience(&s->n->paths[j->c.peers[v->to]].estimate));
        const struct fragment *g = &j->fragments[v->m.key.fragment];
        if (s->now - v->moved > serve_idle && v->m.key.round < g->round)
            node_serve_remove(j, i);
        else
            i++;
    }
}
