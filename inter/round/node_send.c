// SPDX-License-Identifier: Apache-2.0
// How a node's messages are sent: directly, or in an envelope through a third member.
#include "inter/round/node_state.h"

#include <string.h>

static const char forward_context[] = INTER_CONTEXT_FORWARD;

bool node_direct(const struct step *s, const struct job *j, uint8_t m) {
    return m != j->c.self && s->n->paths[j->c.peers[m]].up;
}

// The member through which an unconnected member can be reached; -1: none.
static int via(const struct step *s, const struct job *j, uint8_t m) {
    for (uint8_t k = 0; k < j->c.n_members; k++)
        if (k != m && node_direct(s, j, k) && j->members[k].heard &&
            s->now - j->members[k].heard < fresh_for && mset_has(j->members[k].reaches, m))
            return k;
    return -1;
}

bool node_reaches(const struct step *s, const struct job *j, uint8_t m) {
    return node_direct(s, j, m) || (m != j->c.self && via(s, j, m) >= 0);
}

bool node_live(const struct step *s, const struct job *j, uint8_t m) {
    const struct member *x = &j->members[m];
    return m == j->c.self ||
           (node_reaches(s, j, m) && x->heard && s->now - x->heard < fresh_for && !x->leaves);
}

bool node_idle(const struct job *j, uint8_t m) {
    return m == j->c.self ? j->idle : j->members[m].idle;
}

struct neb_buf *node_begin(struct step *s, enum message type) {
    neb_buf_clear(&s->n->scratch);
    neb_buf_u8(&s->n->scratch, (uint8_t)type);
    return &s->n->scratch;
}

static void put_on_link(struct step *s, uint32_t peer, const struct neb_buf *b) {
    struct inter_action *a = node_act(s, INTER_ACT_SEND);
    a->peer = peer;
    a->at = s->out->bytes.len;
    a->size = b->len;
    neb_buf_add(&s->out->bytes, b->p, b->len);
    if (b->oom || s->out->bytes.oom)
        s->st = NEB_ERR_NOMEM;
}

//     FORWARD: [ signature of the origin over the rest ][ job ][ origin ][ destination ][ message ]
static void put_envelope_body(struct neb_buf *b, const uint8_t job[INTER_ID_BYTES], uint8_t from,
                              uint8_t to, const void *p, size_t len) {
    neb_buf_add(b, job, INTER_ID_BYTES);
    neb_buf_u8(b, from);
    neb_buf_u8(b, to);
    neb_buf_add(b, p, len);
}

static void forward(struct step *s, const struct job *j, uint8_t m, uint8_t third) {
    struct neb_buf *e = &s->n->envelope;
    const struct neb_buf *b = &s->n->scratch;
    uint8_t sig[INTER_SIG_BYTES];
    neb_buf_clear(e);
    put_envelope_body(e, j->c.id, j->c.self, m, b->p, b->len);
    if (e->oom || !s->n->crypto.sign(s->n->crypto.user, forward_context, e->p, e->len, sig))
        return;
    neb_buf_clear(e);
    neb_buf_u8(e, MSG_FORWARD);
    neb_buf_add(e, sig, sizeof sig);
    put_envelope_body(e, j->c.id, j->c.self, m, b->p, b->len);
    put_on_link(s, j->c.peers[third], e);
}

void node_send(struct step *s, struct job *j, uint8_t m) {
    if (m == j->c.self)
        return;
    j->members[m].said = s->now;
    if (s->n->paths[j->c.peers[m]].up) {
        put_on_link(s, j->c.peers[m], &s->n->scratch);
        return;
    }
    int third = via(s, j, m);
    if (third >= 0)
        forward(s, j, m, (uint8_t)third);
}

static void send_all(struct step *s, struct job *j) {
    for (uint8_t m = 0; m < j->c.n_members; m++)
        node_send(s, j, m);
}

void node_on_forward(struct step *s, struct neb_rd *r) {
    uint8_t sig[INTER_SIG_BYTES], id[INTER_ID_BYTES];
    neb_rd_copy(r, sig, sizeof sig);
    size_t body = r->off;
    neb_rd_copy(r, id, sizeof id);
    uint8_t from = neb_rd_u8(r), to = neb_rd_u8(r);
    size_t len = neb_rd_left(r);
    const uint8_t *inner = neb_rd_view(r, len);
    if (r->bad || len < 1 || inner[0] == MSG_FORWARD || inner[0] == MSG_CHUNK ||
        inner[0] == MSG_UPDATE) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, id);
    if (!j)
        return;
    if (node_member(j, s->e->peer) < 0 || from >= j->c.n_members || to >= j->c.n_members ||
        from == j->c.self || s->from != s->e->peer) {
        node_fault(s, INTER_FAULT_DENIED);
        return;
    }
    // One hop: this node takes it only from its origin, and passes it only to its destination.
    bool passes = to != j->c.self;
    if (passes && (node_member(j, s->e->peer) != from || !node_direct(s, j, to)))
        return;
    // Also for an envelope to pass on, because its receiver blames the member that passed it.
    if (!s->n->crypto.verify(s->n->crypto.user, j->c.peers[from], forward_context, r->p + body,
                             r->len - body, sig)) {
        node_fault(s, INTER_FAULT_DENIED);
        return;
    }
    if (passes) {
        struct neb_buf whole = {.p = (uint8_t *)(uintptr_t)r->p, .len = r->len};
        put_on_link(s, j->c.peers[to], &whole);
        return;
    }
    s->from = j->c.peers[from];
    node_message(s, inner, len, false);
}

// ---- messages -----------------------------------------------------------------------------------

void node_send_manifest(struct step *s, struct job *j, const struct inter_manifest *m, uint8_t to) {
    inter_manifest_put(node_begin(s, MSG_MANIFEST), m);
    node_send(s, j, to);
}

uint32_t node_goodput(const struct step *s, const struct job *j, bool *full) {
    const struct inter_estimate *slowest = NULL;
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        const struct inter_estimate *e = &s->n->paths[j->c.peers[m]].estimate;
        if (mset_has(node_data(j), m) && node_direct(s, j, m) && e->goodput_bps > 0 &&
            (!slowest || e->goodput_bps < slowest->goodput_bps))
            slowest = e;
    }
    double kbps = slowest ? slowest->goodput_bps / 1e3 : 0;
    *full = slowest && slowest->full;
    return kbps < UINT32_MAX ? (uint32_t)kbps : UINT32_MAX;
}

// What this node holds of a blob; and, for the plans of the round, what its path carries by now.
static void put_state(struct step *s, const struct job *j, const struct slot *t) {
    struct neb_buf *b = node_begin(s, MSG_STATE);
    bool part = !t->whole && !t->refused;
    inter_key_put(b, &t->m.key);
    neb_buf_add(b, t->m.sha256, STATE_DIGEST);
    neb_buf_u64(b, j->standing.epoch);
    neb_buf_u8(b, t->refused || t->bad ? INTER_HOLD_REFUSED
                  : t->whole           ? INTER_HOLD_COMPLETE
                                       : INTER_HOLD_PART);
    neb_buf_u32(b, part ? (t->got.n + 7) / 8 : 0);
    if (part)
        neb_buf_add(b, t->got.bits, (t->got.n + 7) / 8);
    bool full;
    neb_buf_u32(b, node_goodput(s, j, &full));
    neb_buf_u8(b, full);
}

void node_send_state(struct step *s, struct job *j, const struct slot *t, uint8_t to) {
    put_state(s, j, t);
    node_send(s, j, to);
}

void node_send_state_all(struct step *s, struct job *j, const struct slot *t) {
    put_state(s, j, t);
    send_all(s, j);
}

// A proposal names the ledger of its leader. One that the leader made before a disk loss must get
// no vote after the leader has collected what was accepted. The manifests of the listed updates
// follow, so that a voter without them can check the record.
static void begin_record(struct step *s, const struct job *j, enum message type,
                         const struct inter_record *r) {
    struct neb_buf *b = node_begin(s, type);
    inter_record_put(b, r);
    if (type != MSG_PROPOSE)
        return;
    neb_buf_u64(b, j->standing.epoch);
    node_put_manifests(b, j, r);
}

void node_send_record(struct step *s, struct job *j, enum message type,
                      const struct inter_record *r, uint8_t to) {
    begin_record(s, j, type, r);
    node_send(s, j, to);
}

void node_send_key(struct step *s, struct job *j, enum message type, const struct inter_key *k,
                   uint8_t to) {
    inter_key_put(node_begin(s, type), k);
    node_send(s, j, to);
}

void node_send_pull_of(struct step *s, struct job *j, const struct fragment *g, uint32_t round,
                       uint8_t to) {
    struct neb_buf *b = node_begin(s, MSG_PULL);
    neb_buf_add(b, j->c.id, sizeof j->c.id);
    neb_buf_u32(b, node_index(j, g));
    neb_buf_u32(b, round);
    node_send(s, j, to);
}

void node_send_pull(struct step *s, struct job *j, struct fragment *g, uint8_t to) {
    mset_add(&g->pulled, to);
    node_send_pull_of(s, j, g, g->round, to);
}

void node_answer_old(struct step *s, const struct job *j, uint32_t round, uint32_t f) {
    int m = node_member(j, s->from);
    if (m < 0 || !node_direct(s, j, (uint8_t)m))
        // the ledger's bytes go out directly only; a member behind a third one pulls from that one
        return;
    struct inter_action *a = node_act(s, INTER_ACT_SEND_COMMIT);
    a->peer = s->from;
    a->key = (struct inter_key){.round = round, .fragment = f};
    memcpy(a->key.job, j->c.id, sizeof a->key.job);
}

void inter_node_commit_message(struct neb_buf *out, const struct inter_record *r) {
    neb_buf_u8(out, MSG_COMMIT);
    inter_record_put(out, r);
}

void node_repeat(struct step *s, struct job *j, struct fragment *g, uint8_t m, bool pulled) {
    const struct slot *own = &g->slots[j->c.self];
    bool again = pulled && node_serve_push_again(j, m, &own->m);
    if ((own->whole || own->refused) && !mset_has(own->holders, m) && !mset_has(own->refusers, m) &&
        !again)
        node_send_manifest(s, j, &own->m, m);
    for (uint8_t k = 0; k < j->c.n_members; k++) {
        const struct slot *t = &g->slots[k];
        if (t->known && (t->whole || t->refused || (k == m && !t->no_room)) && !node_is_witness(j))
            node_send_state(s, j, t, m);
    }
    if (g->decided)
        node_send_record(s, j, MSG_COMMIT, &g->decision, m);
    else if (g->voted && j->leads && g->vote.term == j->standing.term && !mset_has(g->accepted, m))
        node_send_record(s, j, MSG_PROPOSE, &g->vote, m);
    else if (g->voted && !j->leads && g->vote.leader == m)
        node_send_accept(s, j, g);
}
