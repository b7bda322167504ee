// SPDX-License-Identifier: Apache-2.0
// The node: its events, the dispatch of messages, set-up and restore, status. Other node_*.c files
// hold what is done about each message (see node_state.h).
#include "agent/base/array.h"
#include "compress/sketch.h"
#include "inter/round/node_state.h"

#include <stdlib.h>
#include <string.h>

const char *inter_fault_name(enum inter_fault f) {
    static const char *const names[] = {"malformed", "denied",        "replay",  "flood",
                                        "corrupt",   "second_digest", "refused", "diverged",
                                        "renewed",   "forged",        "outlier", "no_room",
                                        "behind",    "lied",          "split",   "terms"};
    _Static_assert(sizeof names / sizeof *names == INTER_FAULTS, "a name for every fault");
    return f < INTER_FAULTS ? names[f] : "unknown";
}

static void actions_clear(struct inter_actions *a) {
    a->n = 0;
    neb_buf_clear(&a->bytes);
}

void inter_actions_free(struct inter_actions *a) {
    free(a->list);
    neb_buf_free(&a->bytes);
    *a = (struct inter_actions){0};
}

struct inter_action *node_act(struct step *s, enum inter_action_kind kind) {
    struct inter_actions *a = s->out;
    struct inter_action *p = neb_array_more(a->list, a->n, &a->cap, 16, sizeof *p);
    if (!p) {
        s->st = neb_fail(NEB_ERR_NOMEM, "out of memory for the actions of a step");
        return &s->n->sink;
    }
    a->list = p;
    // manifest, record, standing and evidence are set only by kinds that use them
    struct inter_action *x = &a->list[a->n++];
    x->kind = kind;
    x->peer = x->chunk = 0;
    x->offset = 0;
    x->len = x->at = x->size = 0;
    x->view = NULL;
    return x;
}

void node_blame(struct step *s, uint32_t peer, enum inter_fault f) {
    struct inter_action *a = node_act(s, INTER_ACT_FAULT);
    a->peer = peer;
    a->fault = f;
}

void node_fault(struct step *s, enum inter_fault f) {
    node_blame(s, f == INTER_FAULT_REPLAY ? s->e->peer : s->from, f);
}

void node_blame_author(struct step *s, const struct job *j, uint8_t m, enum inter_fault f) {
    node_blame(s, m == j->c.self ? INTER_PEER_NONE : j->c.peers[m], f);
}

struct job *node_find_job(struct inter_node *n, const uint8_t id[INTER_ID_BYTES]) {
    for (int i = 0; i < JOBS_MAX; i++)
        if (n->jobs[i].open && !memcmp(n->jobs[i].c.id, id, INTER_ID_BYTES))
            return &n->jobs[i];
    return NULL;
}

struct fragment *node_find_fragment(struct job *j, uint32_t f) {
    return j && f < j->c.fragments ? &j->fragments[f] : NULL;
}

int node_member(const struct job *j, uint32_t peer) {
    for (uint8_t m = 0; m < j->c.n_members; m++)
        if (m != j->c.self && j->c.peers[m] == peer)
            return m;
    return -1;
}

// ---- events -------------------------------------------------------------------------------------

void node_message(struct step *s, const uint8_t *p, size_t len, bool bulk) {
    static void (*const handlers[])(struct step *, struct neb_rd *) = {NULL,
                                                                       node_on_manifest,
                                                                       node_on_state,
                                                                       node_on_ack,
                                                                       node_on_propose,
                                                                       node_on_accept,
                                                                       node_on_commit,
                                                                       node_on_pull,
                                                                       node_on_chunk,
                                                                       node_on_heartbeat,
                                                                       node_on_elect,
                                                                       node_on_promise,
                                                                       node_on_want,
                                                                       node_on_gone,
                                                                       node_on_forward,
                                                                       node_on_evidence,
                                                                       node_on_short,
                                                                       node_on_update,
                                                                       node_on_agree};
    struct neb_rd r = neb_rd_make(p, len);
    uint8_t type = neb_rd_u8(&r);
    if (type < MSG_MANIFEST || type > MSG_AGREE ||
        (type == MSG_CHUNK || type == MSG_UPDATE) != bulk)
        node_fault(s, INTER_FAULT_MALFORMED);
    else
        handlers[type](s, &r);
}

static void on_peer(struct step *s, bool up) {
    s->n->paths[s->e->peer].up = up;
    for (int i = 0; i < JOBS_MAX; i++) {
        struct job *j = &s->n->jobs[i];
        int m = j->open ? node_member(j, s->e->peer) : -1;
        if (m < 0)
            continue;
        node_serves_lost(s, j, (uint8_t)m);
        if (!up)
            continue;
        node_heartbeat(s, j, (uint8_t)m);
        for (uint8_t k = 0; k < j->c.n_members; k++)
            if (mset_has(j->equivocators, k))
                node_send_evidence(s, j, k, (uint8_t)m);
        const struct inter_manifest *own;
        for (uint32_t f = 0; f < j->c.fragments; f++) {
            struct fragment *g = &j->fragments[f];
            own = &g->slots[j->c.self].m;
            if (g->slots[j->c.self].whole && mset_has(node_data(j), m) &&
                !mset_has(g->slots[j->c.self].holders, m) &&
                (s->st = node_serve_add(s, j, (uint8_t)m, own)) != NEB_OK)
                return;
            node_repeat(s, j, g, (uint8_t)m, false);
            node_send_pull(s, j, g, (uint8_t)m);
        }
    }
}

static void on_tick(struct step *s) {
    for (int i = 0; i < JOBS_MAX; i++) {
        struct job *j = &s->n->jobs[i];
        if (!j->open)
            continue;
        j->held = false;
        node_elect_tick(s, j);
        node_diverged_tick(s, j);
        node_serves_tick(s, j);
        node_transfer_tick(s, j);
        node_lost_tick(s, j);
        for (uint32_t f = 0; f < j->c.fragments; f++) {
            struct fragment *g = &j->fragments[f];
            node_drop_pending(s, j, g);
            bool busy = g->voted || g->decided;
            for (uint8_t m = 0; m < j->c.n_members; m++)
                busy |= g->slots[m].known;
            if (!busy)
                continue;
            node_try_propose(s, j, g); // a grace may be over, or a member gone
            if (s->now - g->said < repeat_after)
                continue;
            g->said = s->now;
            for (uint8_t m = 0; m < j->c.n_members; m++)
                if (m != j->c.self && node_reaches(s, j, m))
                    node_repeat(s, j, g, m, false);
        }
    }
}

static void on_leave(struct step *s) {
    struct job *j = node_find_job(s->n, s->e->key.job);
    if (!j)
        return;
    j->leaving = true;
    for (uint8_t m = 0; m < j->c.n_members; m++)
        node_heartbeat(s, j, m);
}

static void shift(neb_ns *since, neb_ns by) { *since += *since ? by : 0; }

static void excuse(neb_ns *heard, uint8_t *times, neb_ns by) {
    if (*times == EXCUSED_MAX)
        return;
    ++*times;
    shift(heard, by);
}

// Silence and patience count only the time in which this node could hear. Messages that arrived
// meanwhile are still to be read. So no member is taken for dead, left out of a round or asked
// again for that reason.
static void was_away(struct job *j, neb_ns now, neb_ns by) {
    neb_ns *const all[] = {&j->asked_at, &j->unfollowed_at, &j->unled_at, &j->no_term_at};
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        shift(all[k], by);
    excuse(&j->leader_heard, &j->leader_excused, by);
    for (uint8_t m = 0; m < j->c.n_members; m++)
        excuse(&j->members[m].heard, &j->members[m].excused, by);
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        struct fragment *g = &j->fragments[f];
        shift(&g->ready_since, by);
        shift(&g->proposed, by);
        shift(&g->bare_at, by);
        for (uint8_t m = 0; m < j->c.n_members; m++)
            shift(&g->slots[m].moved, by);
    }
    for (size_t i = 0; i < j->n_missing; i++)
        shift(&j->missing[i].moved, by);
    for (size_t i = 0; i < j->n_serves; i++)
        j->serves[i].out.patient_until = now + away;
}

bool inter_node_is_heartbeat(const uint8_t *message, size_t len, struct inter_node_heartbeat *out) {
    struct neb_rd r = neb_rd_make(message, len);
    uint8_t type = neb_rd_u8(&r);
    *out = (struct inter_node_heartbeat){.to = INTER_NO_MEMBER};
    if (type == MSG_FORWARD) {
        (void)neb_rd_view(&r, INTER_SIG_BYTES + INTER_ID_BYTES + 1); // signature, job, origin
        out->to = neb_rd_u8(&r);
        type = neb_rd_u8(&r);
    }
    neb_rd_copy(&r, out->job, sizeof out->job);
    out->term = neb_rd_u32(&r);
    return !r.bad && type == MSG_HEARTBEAT;
}

enum neb_status inter_node_step(struct inter_node *n, neb_ns now, const struct inter_event *e,
                                struct inter_actions *out) {
    struct step s = {.n = n, .now = now, .e = e, .from = e->peer, .out = out};
    actions_clear(out);
    NEB_ASSERT(e->peer < PEERS_MAX);
    for (int i = 0; i < JOBS_MAX && n->stepped && now - n->stepped > away; i++)
        if (n->jobs[i].open)
            was_away(&n->jobs[i], now, now - n->stepped);
    n->stepped = now;
    switch (e->kind) {
    case INTER_EV_TICK: on_tick(&s); break;
    case INTER_EV_PEER_UP: on_peer(&s, true); break;
    case INTER_EV_PEER_DOWN: on_peer(&s, false); break;
    case INTER_EV_MESSAGE: node_message(&s, e->data, e->len, e->bulk); break;
    case INTER_EV_SUBMIT: node_on_submit(&s); break;
    case INTER_EV_BLOB_DONE: node_on_blob_done(&s); break;
    case INTER_EV_BLOB_ROOM: node_on_blob_room(&s); break;
    case INTER_EV_SERVE: node_on_serve(&s); break;
    case INTER_EV_BLOB_LOST: node_on_blob_lost(&s); break;
    case INTER_EV_COMMIT_READ: node_on_commit_read(&s); break;
    case INTER_EV_LEAVE: on_leave(&s); break;
    case INTER_EV_CONN_LOST: node_on_way_lost(&s); break;
    case INTER_EV_SEND_FAILED:
        node_on_send_failed(&s);
        if (!e->ok)
            return s.st; // sends no chunks: the queue is full
        break;
    }
    if (s.st == NEB_OK)
        node_pump(&s);
    return s.st;
}

// ---- set-up and restore -------------------------------------------------------------------------

enum neb_status inter_node_create(const struct inter_node_crypto *crypto, struct inter_node **out) {
    struct inter_node *n = calloc(1, sizeof *n);
    if (!n)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a node");
    n->crypto = *crypto;
    *out = n;
    return NEB_OK;
}

static void close_fragment(struct job *j, struct fragment *g) {
    node_clear_round(j, g);
    node_forget_rivals(g);
}

static void close_job(struct job *j) {
    for (uint32_t f = 0; j->open && f < j->c.fragments; f++)
        close_fragment(j, &j->fragments[f]);
    while (j->n_serves)
        node_serve_remove(j, 0);
    free(j->serves);
    node_lost_free(j);
    free(j->fragments);
    *j = (struct job){0};
}

void inter_node_destroy(struct inter_node **np) {
    if (!*np)
        return;
    for (int i = 0; i < JOBS_MAX; i++)
        close_job(&(*np)->jobs[i]);
    neb_buf_free(&(*np)->scratch);
    neb_buf_free(&(*np)->envelope);
    free(*np);
    *np = NULL;
}

enum neb_status inter_node_job_open(struct inter_node *n, const struct inter_job_config *c) {
    if (c->n_members < 1 || c->n_members > NEB_MEMBERS_MAX || c->self >= c->n_members ||
        c->fragments < 1 || c->fragments > INTER_FRAGMENTS_MAX || !c->epoch ||
        !c->tune.start_interval || (c->early_steps && !c->early_interval) ||
        (c->masked && c->colluders + 2 > c->n_members))
        return neb_fail(NEB_ERR_INVALID, "job: a number is out of range (%u members, %u fragments)",
                        c->n_members, c->fragments);
    for (uint8_t m = 0; m < c->n_members; m++)
        if (m != c->self && c->peers[m] >= PEERS_MAX)
            return neb_fail(NEB_ERR_INVALID, "job: peer %u of member %u is out of range",
                            c->peers[m], m);
    if (node_find_job(n, c->id))
        return neb_fail(NEB_ERR_EXISTS, "the job is open already");
    for (int i = 0; i < JOBS_MAX; i++) {
        struct job *j = &n->jobs[i];
        if (j->open)
            continue;
        *j = (struct job){.open = true,
                          .judges = !c->awaits_shape || mset_has(c->witnesses, c->self),
                          .c = *c,
                          .leader = c->n_members < 3 ? 0 : -1};
        memcpy(j->standing.job, c->id, sizeof c->id);
        j->standing.epoch = c->epoch;
        if ((j->fragments = calloc(c->fragments, sizeof *j->fragments)))
            return NEB_OK;
        j->open = false;
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening a job");
    }
    return neb_fail(NEB_ERR_LIMIT, "%d jobs are open, the most at a time; stop one first",
                    JOBS_MAX);
}

void inter_node_job_bound(struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                          uint64_t blob_bytes) {
    struct job *j = node_find_job(n, job);
    if (j)
        j->blob_max = blob_bytes;
}

void inter_node_job_revoked(struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                            struct member_set gone) {
    struct job *j = node_find_job(n, job);
    if (j)
        j->c.gone = gone;
}

void inter_node_job_idle(struct inter_node *n, const uint8_t job[INTER_ID_BYTES]) {
    struct job *j = node_find_job(n, job);
    if (j)
        j->idle = true;
}

void inter_node_job_judges(struct inter_node *n, const uint8_t job[INTER_ID_BYTES]) {
    struct job *j = node_find_job(n, job);
    if (j)
        j->judges = true; // the next tick looks at what waits
}

bool inter_node_job_removed(struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                            struct member_set removed) {
    struct job *j = node_find_job(n, job);
    if (j && !mset_equal(removed, j->c.removed)) {
        j->c.removed = removed;
        node_step_down(j); // the next tick asks for a term if it can
    }
    return j != NULL;
}

void inter_node_job_close(struct inter_node *n, const uint8_t job[INTER_ID_BYTES]) {
    struct job *j = node_find_job(n, job);
    if (j)
        close_job(j);
}

void inter_node_restore_standing(struct inter_node *n, const struct inter_standing *st) {
    struct job *j = node_find_job(n, st->job);
    if (!j)
        return;
    j->standing = *st;
    // A leader of a later term has forgotten what its promises reported: it asks for a term again.
    j->leads = st->joined && st->term == 0 && j->c.self == 0 && mset_empty(j->c.removed);
}

void inter_node_restore_commit(struct inter_node *n, const struct inter_record *last) {
    struct fragment *g = node_find_fragment(node_find_job(n, last->job), last->fragment);
    if (!g)
        return;
    inter_record_hash(last, g->previous);
    memcpy(g->cursors, last->cursors, sizeof g->cursors);
    memcpy(g->absences, last->absences, sizeof g->absences);
    g->round = last->round + 1;
    node_new_head(g);
    for (uint8_t m = 0; m < last->n_plans; m++)
        inter_tune_adopt(&g->tuners[m], &last->plans[m]);
}

enum neb_status inter_node_restore_manifest(struct inter_node *n, const struct inter_manifest *m,
                                            enum inter_holding h, const struct inter_bitmap *got) {
    struct job *j = node_find_job(n, m->key.job);
    struct fragment *g = node_find_fragment(j, m->key.fragment);
    if (!g || m->key.round != g->round || m->key.member >= j->c.n_members)
        return NEB_OK; // of an earlier round
    struct slot *t = &g->slots[m->key.member];
    node_clear_slot(t);
    t->known = true;
    t->m = *m;
    t->whole = h == INTER_HOLD_COMPLETE;
    t->refused = h == INTER_HOLD_REFUSED;
    t->holders = mset_of(m->key.member);
    mset_assign(&t->holders, j->c.self, t->whole);
    mset_assign(&t->refusers, j->c.self, t->refused);
    NEB_TRY(inter_bitmap_init(&t->got, inter_chunks(m->bytes, m->chunk_bytes)));
    if (got && inter_bitmap_merge(&t->got, got->bits, (got->n + 7) / 8) && t->got.set)
        t->senders = node_everyone(j);
    return NEB_OK; // it is served when a member connects
}

void inter_node_restore_no_room(struct inter_node *n, const struct inter_key *k) {
    struct fragment *g = node_find_fragment(node_find_job(n, k->job), k->fragment);
    if (g && k->member < NEB_MEMBERS_MAX && inter_key_equal(&g->slots[k->member].m.key, k))
        g->slots[k->member].no_room = true;
}

void inter_node_restore_norm(struct inter_node *n, const struct inter_key *k, float norm) {
    struct fragment *g = node_find_fragment(node_find_job(n, k->job), k->fragment);
    if (g && k->member < NEB_MEMBERS_MAX && inter_key_equal(&g->slots[k->member].m.key, k))
        g->slots[k->member].norm = norm;
}

void inter_node_sketch(struct inter_node *n, const struct inter_key *k, const float *sketch) {
    struct fragment *g = node_find_fragment(node_find_job(n, k->job), k->fragment);
    struct slot *t = g && k->member < NEB_MEMBERS_MAX ? &g->slots[k->member] : NULL;
    if (!t || !t->known || !inter_key_equal(&t->m.key, k))
        return;
    if (!t->sketch)
        t->sketch = malloc(CMP_SKETCH * sizeof *t->sketch);
    if (t->sketch) // without memory, directions are not compared
        memcpy(t->sketch, sketch, CMP_SKETCH * sizeof *t->sketch);
}

void inter_node_own_bad(struct inter_node *n, const struct inter_key *k) {
    struct job *j = node_find_job(n, k->job);
    struct fragment *g = node_find_fragment(j, k->fragment);
    if (!g || k->member != j->c.self || !inter_key_equal(&g->slots[k->member].m.key, k))
        return;
    g->slots[k->member].bad = true;
    mset_add(&g->slots[k->member].refusers, k->member);
    g->said = 0; // the next tick reports it
}

void inter_node_restore_vote(struct inter_node *n, const struct inter_record *r) {
    struct job *j = node_find_job(n, r->job);
    struct fragment *g = node_find_fragment(j, r->fragment);
    if (!g || r->round != g->round)
        return;
    g->voted = true;
    g->vote = *r;
    inter_record_hash(r, g->vote_hash);
}

void inter_node_restore_evidence(struct inter_node *n, const struct inter_evidence *e) {
    struct job *j = node_find_job(n, e->a.job);
    uint8_t m = inter_evidence_member(e);
    if (!j || m >= j->c.n_members)
        return;
    mset_add(&j->equivocators, m);
    j->evidence[m] = *e;
}

// ---- status -------------------------------------------------------------------------------------

void inter_node_path(const struct inter_node *n, uint32_t peer, struct inter_path_stats *out) {
    *out = n->paths[peer].stats;
    out->goodput_bps = n->paths[peer].estimate.goodput_bps;
    out->window = inter_estimate_window(&n->paths[peer].estimate);
    out->full = n->paths[peer].estimate.full;
    out->rtt = n->paths[peer].estimate.rtt;
}

static struct job *find_const(const struct inter_node *n, const uint8_t id[INTER_ID_BYTES]) {
    return node_find_job((struct inter_node *)(uintptr_t)n, id);
}

uint32_t inter_node_round(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                          uint32_t fragment) {
    struct fragment *g = node_find_fragment(find_const(n, job), fragment);
    return g ? g->round : UINT32_MAX;
}

bool inter_node_is_member(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                          uint32_t peer) {
    const struct job *j = find_const(n, job);
    return j && node_member(j, peer) >= 0;
}

uint32_t inter_node_peer(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                         uint8_t member) {
    const struct job *j = find_const(n, job);
    return j && member < j->c.n_members && member != j->c.self ? j->c.peers[member]
                                                               : INTER_PEER_NONE;
}

bool inter_node_weighs(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES]) {
    const struct job *j = find_const(n, job);
    return j && (j->c.robust || j->c.n_members >= 2);
}

bool inter_node_masked(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES]) {
    const struct job *j = find_const(n, job);
    return j && j->c.masked;
}

// A status query long after the last step does not count that time either (was_away).
static struct step looked_at(const struct inter_node *n, neb_ns now) {
    bool absent = n->stepped && now - n->stepped > away;
    return (struct step){.n = (struct inter_node *)(uintptr_t)n, .now = absent ? n->stepped : now};
}

bool inter_node_catching_up(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                            neb_ns now) {
    const struct job *j = find_const(n, job);
    struct step s = looked_at(n, now);
    struct member_set data = j ? node_data_left(j) : mset_none();
    for (uint8_t m = 0; mset_next(data, &m); m++)
        if (m != j->c.self && j->members[m].behind && node_live(&s, j, m))
            return true;
    return false;
}

// The silent or idle members without which no record can be made, so that rounds wait for them.
static struct member_set waits_for(const struct job *j, struct member_set live,
                                   struct member_set idle) {
    struct member_set data = node_data_left(j), here = mset_minus(mset_common(data, live), idle);
    int least = j->c.commit_all ? mset_count(data) : node_least(j);
    if (mset_count(here) >= least && node_majority(j, live))
        return mset_none();
    struct member_set silent = mset_minus(mset_minus(node_voters(j), j->c.gone), live);
    return mset_union(silent, mset_common(data, idle));
}

bool inter_node_job_status(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                           neb_ns now, struct inter_job_status *out) {
    const struct job *j = find_const(n, job);
    if (!j)
        return false;
    struct step s = looked_at(n, now);
    *out = (struct inter_job_status){.term = j->standing.term,
                                     .leader = node_leads(j) ? j->c.self : j->leader,
                                     .leads = node_leads(j),
                                     .removed = j->c.removed,
                                     .lost = j->lost,
                                     .equivocators = j->equivocators,
                                     .renewed = mset_minus(j->standing.renewed, j->c.gone),
                                     .split = node_diverged(j),
                                     .attempts = inter_node_attempt(n, job),
                                     .votes = j->standing.joined};
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        if (node_live(&s, j, m))
            mset_add(&out->live, m);
        if (node_direct(&s, j, m))
            mset_add(&out->direct, m);
        if (node_idle(j, m))
            mset_add(&out->idle, m);
    }
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        const struct fragment *g = &j->fragments[f];
        uint32_t lag = node_proven_round(g) - g->round;
        out->lag = lag > out->lag ? lag : out->lag;
    }
    out->waits = waits_for(j, out->live, out->idle);
    out->owing = node_owing(&s, j);
    out->no_room = node_no_room(j);
    return true;
}

uint32_t inter_node_attempt(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES]) {
    const struct job *j = find_const(n, job);
    return inter_attempt_first(j ? j->standing.epoch : 0);
}

uint32_t inter_node_chunk_bytes(const struct inter_node *n, uint32_t blob_bytes) {
    const struct inter_estimate *best = &n->paths[0].estimate;
    double slowest = 0;
    for (int i = 0; i < PEERS_MAX; i++) {
        const struct inter_estimate *e = &n->paths[i].estimate;
        if (e->goodput_bps > best->goodput_bps)
            best = e;
        if (n->paths[i].up && e->goodput_bps > 0 && (slowest <= 0 || e->goodput_bps < slowest))
            slowest = e->goodput_bps;
    }
    uint32_t chunk = inter_estimate_chunk(best, blob_bytes);
    // Several chunks are in flight at a time. On the slowest path none may take so long that it
    // counts as lost.
    while (slowest > 0 && 8.0 * chunk > slowest && chunk > INTER_CHUNK_MIN &&
           inter_chunks(blob_bytes, chunk / 2) <= INTER_CHUNKS_MAX)
        chunk /= 2;
    return chunk;
}
