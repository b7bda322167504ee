// SPDX-License-Identifier: Apache-2.0
// Blobs that arrive: which member has what, what arrives, what is asked for (node_serve.c sends).
//
// The owner of an update pushes it to every data member. A member that the owner does not reach, or
// that is behind, asks another one that has it (WANT). To the receiver both look the same: a
// MANIFEST, answered by a STATE, then CHUNKs.
#include "agent/base/sha256.h"
#include "inter/round/node_state.h"

#include <stdlib.h>
#include <string.h>

void node_clear_slot(struct slot *t) {
    inter_bitmap_free(&t->got);
    free(t->sketch);
    *t = (struct slot){0};
}

static bool is_data(const struct job *j, uint8_t m) { return mset_has(node_data(j), m); }

static bool has_entry(const struct inter_record *r, uint8_t m) {
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].member == m)
            return true;
    return false;
}

static bool is_sought(const struct fragment *g, const struct inter_manifest *m) {
    const struct inter_record *r = node_sought(g);
    return r && node_lists(r, m);
}

// True if the sought record lists another digest under this key: the owner signed both.
static bool is_second(const struct fragment *g, const struct inter_manifest *m) {
    const struct inter_record *r = node_sought(g);
    for (uint8_t i = 0; r && i < r->n; i++) {
        struct inter_key k = inter_entry_key(r, i);
        if (inter_key_equal(&k, &m->key))
            return !node_lists(r, m);
    }
    return false;
}

// True if m replaces the known manifest: a listed one replaces an unlisted one; a newer attempt
// replaces an older one, because a new disk cannot serve what the old disk announced; an older
// attempt replaces one that nobody holds any more, because its owner may have voted for the older
// one again.
static bool replaces(const struct job *j, const struct fragment *g, const struct slot *t,
                     const struct inter_manifest *m) {
    const struct inter_record *r = node_sought(g);
    if (g->decided || (r && has_entry(r, m->key.member)))
        return node_lists(r, m) && !node_lists(r, &t->m);
    bool lost = !mset_meets(t->holders, node_data(j)) && !t->checking && !t->refused;
    return m->key.attempt > t->m.key.attempt || (lost && m->key.attempt < t->m.key.attempt);
}

static bool same_digest(const struct inter_manifest *a, const struct inter_manifest *b) {
    return !memcmp(a->sha256, b->sha256, sizeof a->sha256);
}

// The member signed both, which proves equivocation to every node that has both.
void node_second_update(struct step *s, struct job *j, const struct inter_manifest *former,
                        const struct inter_manifest *m) {
    struct inter_evidence e = {inter_statement_of_update(former), inter_statement_of_update(m)};
    if (!inter_statements_conflict(&e.a, &e.b))
        return;
    (void)node_take_evidence(s, j, &e);
    node_blame_author(s, j, m->key.member, INTER_FAULT_SECOND);
}

static bool same_parameters(const struct slot *a, const struct slot *b) {
    return a->m.digest[0] == b->m.digest[0] && a->m.digest[1] == b->m.digest[1];
}

// Finds the slot whose parameters are right: this node's own; at a witness, which has none, one
// that agrees with most. NULL: all updates are here and no more than half agree, so no node can
// tell. False: not all updates are here.
static bool compared_with(const struct job *j, const struct fragment *g, const struct slot **out) {
    const struct slot *own = &g->slots[j->c.self];
    *out = own;
    if (own->known || !node_is_witness(j))
        return own->known;
    *out = NULL;
    struct member_set missing = node_data_left(j);
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        if (g->slots[m].known)
            mset_remove(&missing, m);
        int known = 0, same = 0;
        for (uint8_t k = 0; k < j->c.n_members; k++) {
            known += g->slots[k].known;
            same += g->slots[k].known && same_parameters(&g->slots[m], &g->slots[k]);
        }
        if (g->slots[m].known && 2 * same > known)
            *out = &g->slots[m];
    }
    return *out || mset_empty(missing);
}

// Reports members that computed other parameters from the same commits. A member that only passed a
// manifest on is not to blame.
static void check_digests(struct step *s, const struct job *j, struct fragment *g) {
    const struct slot *right;
    if (!compared_with(j, g, &right))
        return;
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        const struct slot *t = &g->slots[m];
        if (!t->known || m == j->c.self || mset_has(g->diverged, m) ||
            (right && same_parameters(right, t)))
            continue;
        mset_add(&g->diverged, m);
        node_blame_author(s, j, m, INTER_FAULT_DIVERGED);
    }
}

// ---- this member's own update -------------------------------------------------------------------

// True if the member can take an UPDATE of the round, as far as its last heartbeat tells.
static bool near(const struct step *s, const struct job *j, uint8_t m,
                 const struct inter_manifest *own) {
    return node_live(s, j, m) &&
           j->members[m].rounds[own->key.fragment] + ROUNDS_NEAR >= own->key.round;
}

void node_on_submit(struct step *s) {
    const struct inter_manifest *m = s->e->manifest;
    struct job *j = node_find_job(s->n, m->key.job);
    struct fragment *g = node_find_fragment(j, m->key.fragment);
    NEB_ASSERT(g && m->key.member == j->c.self);
    struct slot *t = &g->slots[j->c.self];
    if (!j->own_first || m->key.attempt < j->own_first)
        j->own_first = m->key.attempt;
    bool again = t->known && !t->whole && inter_key_equal(&t->m.key, &m->key) &&
                 same_digest(&t->m, m); // its bytes were lost
    if (m->key.round != g->round || t->refused || (t->known && !again && !replaces(j, g, t, m)))
        return; // repeated; or others still hold what a lost disk had sent, and that counts
    if (t->whole && g->voted && node_lists(&g->vote, &t->m))
        return; // too late for a newer attempt: the proposed one stands
    if (t->whole && j->c.masked)
        return; // the two would share masks: later progress comes with the next round
    for (size_t i = t->known ? j->n_serves : 0; i-- > 0;) // nobody wants the earlier attempt now
        if (inter_key_equal(&j->serves[i].m.key, &t->m.key))
            node_serve_remove(j, i);
    node_clear_slot(t);
    t->known = t->whole = true;
    t->m = *m;
    t->norm = s->e->norm;
    t->holders = mset_of(j->c.self);
    t->began = g->said = s->now;
    node_act(s, INTER_ACT_STORE_MANIFEST)->manifest = *m;
    for (uint8_t k = 0; k < j->c.n_members; k++)
        if (k != j->c.self && is_data(j, k) && (s->st = node_serve_add(s, j, k, m)) != NEB_OK)
            return;
    for (uint8_t k = 0; k < j->c.n_members; k++)
        if (!node_direct(s, j, k) || !near(s, j, k, m) || !node_serve_push(j, k, m))
            node_send_manifest(s, j, m, k);
    check_digests(s, j, g);
    node_try_propose(s, j, g);
    node_try_commit(s, j, g); // its bytes alone may have been missing
}

// ---- receiving ----------------------------------------------------------------------------------

static const char manifest_context[] = "nebula manifest v1";

bool node_verify_manifest(struct inter_node *n, const struct job *j,
                          const struct inter_manifest *m) {
    neb_buf_clear(&n->scratch);
    inter_manifest_put_body(&n->scratch, m);
    return n->crypto.verify(n->crypto.user, j->c.peers[m->key.member], manifest_context,
                            n->scratch.p, n->scratch.len, m->sig);
}

static void open_blob(struct step *s, const struct fragment *g, const struct inter_manifest *m) {
    node_act(s, is_sought(g, m) ? INTER_ACT_REPLACE_MANIFEST : INTER_ACT_STORE_MANIFEST)->manifest =
        *m;
    node_act(s, INTER_ACT_BLOB_OPEN)->manifest = *m;
}

static enum neb_status take_manifest(struct step *s, struct job *j, struct fragment *g,
                                     const struct inter_manifest *m) {
    struct slot *t = &g->slots[m->key.member];
    struct member_set hints = t->hint_attempt == m->key.attempt ? t->hints : mset_none();
    struct member_set may_send = t->may_send;
    uint8_t attempts = t->attempts;
    for (size_t i = j->n_serves; i-- > 0;) // ends transfers of another digest under this key
        if (inter_key_equal(&j->serves[i].m.key, &m->key) && !same_digest(&j->serves[i].m, m))
            node_serve_remove(j, i);
    if (m->key.member == j->c.self && t->known && t->m.key.attempt > m->key.attempt) {
        g->has_own = true;
        g->own = t->m;
    }
    node_clear_slot(t);
    NEB_TRY(inter_bitmap_init(&t->got, inter_chunks(m->bytes, m->chunk_bytes)));
    t->known = true;
    t->attempts = (uint8_t)(attempts + (attempts < UINT8_MAX));
    t->m = *m;
    t->holders = hints;
    t->may_send = may_send;
    if (m->key.member != j->c.self)
        mset_add(&t->holders, m->key.member);
    t->began = t->moved = g->said = s->now;
    if (!node_is_witness(j)) // a witness stores no updates
        open_blob(s, g, m);
    return NEB_OK;
}

void node_drop_pending(struct step *s, struct job *j, struct fragment *g) {
    bool stale = g->pending.term < j->standing.term || mset_has(j->equivocators, g->pending.leader);
    // to the older update, which this node's vote lists
    bool bound = g->voted && g->vote.term == j->standing.term;
    if (g->decided || (g->waits && !stale) || (!g->waits && (!g->has_own || bound || !g->voted)))
        return;
    g->waits = false;
    if (g->has_own && g->slots[j->c.self].m.key.attempt < g->own.key.attempt && !bound)
        s->st = take_manifest(s, j, g, &g->own);
    g->has_own = false;
}

bool node_possible(const struct job *j, const struct fragment *g, const struct inter_manifest *m) {
    const struct inter_job_config *c = &j->c;
    if (j->blob_max && m->bytes > j->blob_max)
        return false;
    if (g->decided && node_lists(&g->decision, m))
        return true; // a majority has taken it
    if (c->steps && m->step > c->steps)
        return false;
    if (!c->step_tokens)
        return true;
    // An interval counts as missed after its steps were made, and none is shorter than the job's.
    uint64_t from = g->cursors[m->key.member], made = m->step > from ? m->step - from : 0,
             early = from < c->early_steps ? c->early_steps - from : 0;
    early = early < made ? early : made;
    uint64_t most =
        (made - early) / c->tune.start_interval + (early ? early / c->early_interval : 0) + 2;
    return m->steps <= m->step && m->tokens <= c->step_tokens * m->steps && m->missed <= most &&
           node_weight_possible(j, g, m->key.member, m->step, m->tokens);
}

// Takes a manifest from member `from`. NULL: it is not wanted, or refused. *same: it was here.
static struct slot *arrive(struct step *s, struct job *j, const struct inter_manifest *x, int from,
                           bool *same) {
    struct inter_manifest m = *x;
    struct fragment *g = node_find_fragment(j, m.key.fragment);
    if (!g)
        return NULL; // the job is not open here yet: the owner repeats it
    if (from < 0 || !is_data(j, m.key.member)) {
        node_fault(s, INTER_FAULT_DENIED);
        return NULL;
    }
    if (m.key.round != g->round) {
        if (m.key.round > g->round) {
            mset_add(&g->early, from);
            node_send_pull(s, j, g, (uint8_t)from);
        } else if (!node_lost_on_manifest(s, j, &m, (uint8_t)from)) {
            node_answer_old(s, j, m.key.round, m.key.fragment);
        }
        return NULL;
    }
    struct slot *t = &g->slots[m.key.member];
    bool known = t->known && inter_key_equal(&t->m.key, &m.key);
    *same = known && same_digest(&t->m, &m) && !memcmp(t->m.sig, m.sig, sizeof m.sig);
    if (!*same && !node_verify_manifest(s->n, j, &m)) {
        node_fault(s, INTER_FAULT_DENIED);
        return NULL;
    }
    if (!*same && !node_possible(j, g, &m)) {
        node_blame_author(s, j, m.key.member, INTER_FAULT_FORGED);
        return NULL;
    }
    if (known && !*same)
        node_second_update(s, j, &t->m, &m);
    if (is_second(g, &m)) { // the sender has no other blob
        mset_add(&t->gone, from);
        mset_add(&t->other, from);
    }
    if (t->known && !*same && !replaces(j, g, t, &m))
        return NULL;
    if (!*same && t->attempts >= INTER_ATTEMPTS_MAX && !is_sought(g, &m)) {
        node_blame_author(s, j, m.key.member, INTER_FAULT_FORGED);
        return NULL;
    }
    if (!*same && (s->st = take_manifest(s, j, g, &m)) != NEB_OK)
        return NULL;
    return t;
}

void node_on_manifest(struct step *s, struct neb_rd *r) {
    struct inter_manifest m;
    bool same;
    if (!inter_manifest_get(r, &m) || !neb_rd_done(r)) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, m.key.job);
    int from = j ? node_member(j, s->from) : -1;
    struct slot *t = arrive(s, j, &m, from, &same);
    if (!t)
        return;
    struct fragment *g = node_find_fragment(j, m.key.fragment);
    if (!node_is_witness(j) && !t->no_room) // otherwise all of it would be sent again
        node_send_state(s, j, t, (uint8_t)from);
    check_digests(s, j, g);
    node_try_propose(s, j, g);
}

static void say_ack(struct step *s, struct job *j, const struct inter_key *k, uint32_t chunk,
                    uint8_t to) {
    struct neb_buf *b = node_begin(s, MSG_ACK);
    inter_key_put(b, k);
    neb_buf_u32(b, chunk);
    node_send(s, j, to);
}

// Slot of a chunk; NULL: it is not wanted (any more), and its sender gets an answer that may keep
// it from repeating the chunk.
static struct slot *chunk_slot(struct step *s, struct job *j, const struct inter_key *k,
                               uint32_t chunk, uint8_t from) {
    struct fragment *g = node_find_fragment(j, k->fragment);
    struct slot *t = k->round < g->round ? node_lost_slot(j, k) : NULL;
    if (t)
        return t;
    t = &g->slots[k->member];
    bool now = k->round == g->round && t->known, same = now && t->m.key.attempt == k->attempt;
    if (same && !t->whole && t->got.bits && !node_is_witness(j)) // a witness has opened nothing
        return t;
    node_fault(s, INTER_FAULT_REPLAY);
    // Not wanted: it need not come again and take the room of the newer one.
    if (now && !same)
        say_ack(s, j, k, chunk, from);
    if (same && t->whole)
        node_send_state(s, j, t, from); // the sender has missed that all is here
    return NULL;
}

// Before this member's worker has reported what updates hold, none is judged. A committed one is
// taken: most members that could judge have voted for it.
static bool may_judge(const struct job *j, const struct fragment *g, const struct slot *t) {
    return j->judges || (g->decided && node_lists(&g->decision, &t->m));
}

// A member that was not asked could mix its own bytes with those of others and spoil the blob.
static bool may_send(const struct slot *t, uint8_t from) {
    bool ever = from == t->m.key.member || mset_has(t->may_send, from);
    return ever && (!t->single || from == t->asked);
}

static bool chunk_is_whole(const uint8_t *data, size_t len, uint64_t check) {
    uint8_t sha[INTER_SHA_BYTES];
    neb_sha256(data, len, sha);
    struct neb_rd head = neb_rd_make(sha, sizeof sha);
    return neb_rd_u64(&head) == check;
}

// False: it was here.
static bool store_chunk(struct step *s, struct slot *t, const struct inter_key *k, uint32_t chunk,
                        const uint8_t *data, size_t len) {
    if (!inter_bitmap_set(&t->got, chunk))
        return false;
    struct inter_action *a = node_act(s, INTER_ACT_BLOB_WRITE);
    a->key = *k;
    a->chunk = chunk;
    a->offset = (uint64_t)chunk * t->m.chunk_bytes;
    a->view = data;
    a->len = len;
    mset_add(&t->senders, node_member(node_find_job(s->n, k->job), s->from));
    s->n->paths[s->from].stats.payload_received += len;
    t->moved = s->now;
    return true;
}

static void finish_if_whole(struct step *s, const struct job *j, struct slot *t,
                            const struct inter_key *k) {
    const struct fragment *g = &j->fragments[k->fragment];
    if (t->got.bits && t->got.set == t->got.n && !t->checking && !t->whole && !t->refused &&
        (k->round < g->round || may_judge(j, g, t))) {
        t->checking = true;
        node_act(s, INTER_ACT_BLOB_FINISH)->manifest = t->m;
    }
}

void node_on_chunk(struct step *s, struct neb_rd *r) {
    struct inter_key k;
    inter_key_get(r, &k);
    uint32_t chunk = neb_rd_u32(r);
    uint64_t check = neb_rd_u64(r);
    size_t len = neb_rd_left(r);
    const uint8_t *data = neb_rd_view(r, len);
    if (r->bad || k.member >= NEB_MEMBERS_MAX) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, k.job);
    int from = j ? node_member(j, s->from) : -1;
    if (!node_find_fragment(j, k.fragment) || from < 0) {
        // or the job is closed here while its sender still has a window in flight
        node_fault(s, INTER_FAULT_REPLAY);
        return;
    }
    struct slot *t = chunk_slot(s, j, &k, chunk, (uint8_t)from);
    if (!t)
        return;
    if (!may_send(t, (uint8_t)from)) {
        // or it was asked before a snapshot replaced all this
        node_fault(s, INTER_FAULT_REPLAY);
        say_ack(s, j, &k, chunk, (uint8_t)from);
        return;
    }
    if (chunk >= t->got.n || len != inter_chunk_length(t->m.bytes, t->m.chunk_bytes, chunk)) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    if (!chunk_is_whole(data, len, check)) {
        node_fault(s, INTER_FAULT_CORRUPT); // not acknowledged, so it comes again
        return;
    }
    if (t->no_room) { // acknowledged now, asked for again when there is room
        say_ack(s, j, &k, chunk, (uint8_t)from);
        return;
    }
    if (!store_chunk(s, t, &k, chunk, data, len))
        node_fault(s, INTER_FAULT_REPLAY);
    say_ack(s, j, &k, chunk, (uint8_t)from);
    finish_if_whole(s, j, t, &k);
}

void node_on_update(struct step *s, struct neb_rd *r) {
    struct inter_manifest m;
    struct job *j;
    const uint8_t *data;
    bool same = false;
    if (!node_get_pushed(s, r, &j, &m, &data)) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    int from = j ? node_member(j, s->from) : -1;
    struct slot *t = j ? arrive(s, j, &m, from, &same) : NULL;
    if (!t)
        return;
    struct fragment *g = node_find_fragment(j, m.key.fragment);
    bool takes = !node_is_witness(j) && !t->no_room && !t->whole && !t->checking && !t->refused &&
                 may_send(t, (uint8_t)from);
    if (takes)
        (void)store_chunk(s, t, &m.key, 0, data, m.bytes);
    finish_if_whole(s, j, t, &m.key);
    if (t->no_room) // acknowledged now, asked for again when there is room
        say_ack(s, j, &m.key, 0, (uint8_t)from);
    else if (!node_is_witness(j) && !t->checking)
        node_send_state(s, j, t, (uint8_t)from); // the gate is not ready, or it was here
    check_digests(s, j, g);
    node_try_propose(s, j, g);
}

// One more member has the update.
static void held_by(const struct step *s, const struct job *j, struct slot *t, uint8_t m) {
    mset_add(&t->holders, m);
    for (uint8_t k = 0; k < j->c.n_members; k++)
        if (!mset_has(t->holders, k) && node_live(s, j, k) && is_data(j, k))
            return;
    if (!t->spread)
        t->spread = s->now;
}

static void nothing_here(struct slot *t) {
    if (t->got.bits)
        memset(t->got.bits, 0, (t->got.n + 7) / 8);
    t->got.set = 0;
    t->senders = mset_none();
    t->checking = false;
}

// The bytes are not those that their author signed. A single sender is to blame for them. With
// several senders nobody knows which one it is, so the next bytes come from one only: the owner, if
// connected.
static void start_over(struct step *s, struct job *j, struct slot *t) {
    bool one = mset_count(t->senders) == 1;
    uint8_t owner = t->m.key.member;
    node_blame(s, one ? j->c.peers[mset_lowest(t->senders)] : INTER_PEER_NONE, INTER_FAULT_CORRUPT);
    nothing_here(t);
    if (one && !t->single) {
        node_send_state_all(s, j, t);
    } else if (!one && node_direct(s, j, owner)) {
        t->asked = owner;
        node_send_state(s, j, t, owner);
    } else {
        t->moved = 0; // the next member is asked at once
    }
    t->single = t->single || !one;
}

static void lose_room(struct step *s, struct slot *t) {
    nothing_here(t);
    if (!t->no_room)
        node_blame(s, INTER_PEER_NONE, INTER_FAULT_NO_ROOM);
    t->no_room = true;
    t->room_wait = t->room_wait ? 2 * t->room_wait : room_first;
    t->room_wait = t->room_wait < room_last ? t->room_wait : room_last;
    t->room_at = s->now + t->room_wait;
}

// Slot of an event's update, if it is the one that is known here.
static struct slot *slot_of_event(struct step *s, struct job **j, struct fragment **g) {
    const struct inter_key *k = &s->e->key;
    *j = node_find_job(s->n, k->job);
    *g = node_find_fragment(*j, k->fragment);
    if (*g && k->round < (*g)->round)
        return node_lost_slot(*j, k);
    if (!*g || (*g)->round != k->round || k->member >= (*j)->c.n_members)
        return NULL;
    struct slot *t = &(*g)->slots[k->member];
    return t->known && inter_key_equal(&t->m.key, k) ? t : NULL;
}

void node_on_blob_room(struct step *s) {
    struct job *j;
    struct fragment *g;
    struct slot *t = slot_of_event(s, &j, &g);
    if (!t || t->whole || t->refused)
        return;
    if (!s->e->ok) {
        lose_room(s, t);
    } else if (t->no_room) {
        t->no_room = false;
        node_send_state_all(s, j, t);
    }
}

void node_on_blob_done(struct step *s) {
    struct job *j;
    struct fragment *g;
    struct slot *t = slot_of_event(s, &j, &g);
    if (!t)
        return;
    t->checking = false;
    if (!s->e->ok && !s->e->refused && t->no_room)
        return; // its file could not be opened, or its bytes not written
    if (s->e->no_room) {
        lose_room(s, t);
        return;
    }
    if (!s->e->ok && !s->e->refused) { // the blob does not match its digest
        start_over(s, j, t);
        return;
    }
    t->no_room = false;               // it was here already
    if (s->e->key.round < g->round) { // the record has taken it, whatever the gate finds
        node_lost_found(s, j, t);
        return;
    }
    if (s->e->refused && s->e->key.member != j->c.self)
        node_blame_author(s, j, s->e->key.member, INTER_FAULT_REFUSED);
    t->whole = s->e->ok;
    t->norm = s->e->norm;
    t->refused = s->e->refused;
    if (t->whole)
        held_by(s, j, t, j->c.self);
    else
        mset_add(&t->refusers, j->c.self);
    if (node_fixed_leader(j) && t->whole && !g->voted) // a proposal says it, too
        node_try_propose(s, j, g);
    if (!node_fixed_leader(j) || !j->leads || !g->voted || !t->whole)
        node_send_state_all(s, j, t);
    node_try_propose(s, j, g);
    node_try_commit(s, j, g);
}

// ---- what other members report ------------------------------------------------------------------

// Finds the update of a member that is sought: accepted by the decided record, or listed by a
// proposal that must be judged.
static bool listed(const struct fragment *g, uint8_t m, struct inter_key *k) {
    const struct inter_record *r = node_sought(g);
    for (uint8_t i = 0; r && i < r->n; i++)
        if (r->entries[i].member == m) {
            *k = inter_entry_key(r, i);
            return !g->decided || r->entries[i].verdict == INTER_ACCEPTED;
        }
    return false;
}

void node_on_state(struct step *s, struct neb_rd *r) {
    struct inter_key k;
    uint8_t digest[STATE_DIGEST];
    inter_key_get(r, &k);
    neb_rd_copy(r, digest, sizeof digest);
    uint64_t epoch = neb_rd_u64(r);
    uint8_t h = neb_rd_u8(r);
    uint32_t len = neb_rd_u32(r);
    const uint8_t *bits = neb_rd_view(r, len);
    uint32_t goodput_kbps = neb_rd_u32(r);
    uint8_t full = neb_rd_u8(r);
    if (!neb_rd_done(r) || h > INTER_HOLD_REFUSED || k.member >= NEB_MEMBERS_MAX || full > 1) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, k.job);
    struct fragment *g = node_find_fragment(j, k.fragment);
    int m = j ? node_member(j, s->from) : -1;
    if (!g || m < 0 || k.member >= j->c.n_members || epoch < j->members[m].epoch)
        return; // the last condition: sent before m lost its disk
    j->members[m].goodput_kbps = goodput_kbps;
    j->members[m].full = full;
    node_serve_on_state(s, j, &k, digest, (uint8_t)m, (enum inter_holding)h, bits, len);
    if (k.round != g->round) {
        if (k.round > g->round)
            node_send_pull(s, j, g, (uint8_t)m);
        return;
    }
    struct slot *t = &g->slots[k.member];
    if (!t->known) {
        if (k.attempt > t->hint_attempt)
            t->hints = mset_none();
        t->hint_attempt = k.attempt > t->hint_attempt ? k.attempt : t->hint_attempt;
        if (h == INTER_HOLD_COMPLETE && k.attempt == t->hint_attempt) {
            t->moved =
                mset_empty(t->hints) ? s->now : t->moved; // the owner's copy may be on its way
            mset_add(&t->hints, m);
        }
        return; // a member that has it can be asked for it
    }
    if (t->m.key.attempt != k.attempt || memcmp(t->m.sha256, digest, sizeof digest)) {
        // a proposal made m go back to that attempt; m gets the newer one again
        if (k.attempt < t->m.key.attempt) {
            mset_remove(&t->holders, m);
            mset_remove(&t->refusers, m);
        }
        return;
    }
    if (h == INTER_HOLD_COMPLETE) {
        struct inter_key wanted;
        held_by(s, j, t, (uint8_t)m);
        // A holder of another attempt than the sought one does not help.
        if (!listed(g, k.member, &wanted) || is_sought(g, &t->m))
            mset_remove(&t->gone, m);
    } else if (h == INTER_HOLD_REFUSED) {
        mset_add(&t->refusers, m);
    } else { // a disk can be lost
        mset_remove(&t->holders, m);
    }
    node_try_propose(s, j, g);
}

void node_behind(struct step *s, struct job *j, const struct inter_key *k) {
    struct inter_action *a = node_act(s, INTER_ACT_BEHIND);
    a->key = (struct inter_key){.round = k->round, .fragment = k->fragment};
    memcpy(a->key.job, j->c.id, sizeof a->key.job);
    node_blame(s, INTER_PEER_NONE, INTER_FAULT_BEHIND);
}

static void behind(struct step *s, struct job *j, const struct fragment *g) {
    node_behind(s, j, &(struct inter_key){.round = g->round, .fragment = node_index(j, g)});
}

// Member m reports that it has no record of the open round. This node is behind if a later record
// proves that there was one, and if every live member that is ahead reports the same, or gives no
// answer for some time.
static void no_record(struct step *s, struct job *j, struct fragment *g, uint8_t m) {
    if (g->decided || !mset_has(g->pulled, m))
        return;
    mset_add(&g->bare, m);
    g->bare_at = g->bare_at ? g->bare_at : s->now;
    struct member_set others = mset_none();
    for (uint8_t k = 0; k < j->c.n_members; k++)
        if (node_direct(s, j, k) && node_live(s, j, k) &&
            j->members[k].rounds[node_index(j, g)] > g->round)
            mset_add(&others, k);
    others = mset_minus(mset_minus(mset_minus(others, g->bare), j->c.gone), j->equivocators);
    if (g->proven > g->round && (mset_empty(others) || s->now - g->bare_at >= want_late))
        behind(s, j, g);
}

void node_on_gone(struct step *s, struct neb_rd *r) {
    struct inter_key k;
    inter_key_get(r, &k);
    if (!neb_rd_done(r) || (k.member >= NEB_MEMBERS_MAX && k.member != INTER_NO_MEMBER)) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, k.job);
    struct fragment *g = node_find_fragment(j, k.fragment);
    int m = j ? node_member(j, s->from) : -1;
    if (g && m >= 0 && k.round < g->round)
        node_lost_on_gone(j, &k, (uint8_t)m);
    if (!g || m < 0 || k.round != g->round)
        return;
    if (k.member == INTER_NO_MEMBER) { // it does not even have the record
        no_record(s, j, g, (uint8_t)m);
        return;
    }
    struct inter_key wanted = k;
    if (listed(g, k.member, &wanted) && wanted.attempt != k.attempt)
        return; // asked for before the sought attempt was known
    struct slot *t = &g->slots[k.member];
    struct member_set others = mset_without(node_data(j), j->c.self);
    mset_remove(&t->hints, m);
    mset_remove(&t->holders, m);
    mset_add(&t->gone, m);
    if (!mset_within(others, t->gone))
        t->moved = 0; // ask the next one at once
}

void node_own_kept(struct step *s, struct job *j, const struct inter_key *k,
                   const struct inter_manifest *m) {
    struct fragment *g = node_find_fragment(j, k->fragment);
    struct slot *t = g && k->member < j->c.n_members ? &g->slots[k->member] : NULL;
    if (!t || k->round != g->round || (t->known && t->whole && is_sought(g, &t->m)))
        return;
    if (m && is_sought(g, m)) {
        if (t->known && is_sought(g, &t->m))
            open_blob(s, g, m); // it is here
        else
            s->st = take_manifest(s, j, g, m);
        return;
    }
    mset_add(&t->gone, j->c.self);
    t->moved = 0; // the others are asked at once
}

// ---- asking -------------------------------------------------------------------------------------

// Asks the next member that may have m's update, if it is needed and nobody sends it.
static void want(struct step *s, struct job *j, struct fragment *g, uint8_t m) {
    struct slot *t = &g->slots[m];
    struct inter_key k = t->m.key;
    bool sought = listed(g, m, &k), fits = !sought || (t->known && is_sought(g, &t->m));
    struct member_set from = sought ? node_data(j) : mset_union(t->holders, t->hints);
    bool complete = t->known && t->got.bits && t->got.set == t->got.n;
    if (t->checking || (fits && (t->no_room || t->whole || t->refused || complete)) ||
        (g->decided && !sought))
        return;
    // This disk may hold an earlier attempt under its own key, which the others may have lost.
    bool own = sought && (m == j->c.self || (t->known && t->m.key.attempt != k.attempt));
    from = mset_minus(own ? from : mset_without(from, j->c.self), t->gone);
    for (uint8_t x = 0; x < j->c.n_members; x++)
        if (x != j->c.self && !node_direct(s, j, x))
            mset_remove(&from, x);
    bool reached = m != j->c.self && node_direct(s, j, m),
         pushed = (t->known || !mset_empty(t->hints)) && reached && !sought;
    // If the owner is out of reach, another member is asked soon. If that one sends nothing, the
    // next one is asked.
    neb_ns patience = want_soon;
    if (pushed)
        patience = want_late;
    else if (t->known && (reached || t->sought))
        patience = repeat_after;
    if (mset_empty(from) || s->now - t->moved < patience) {
        if (mset_empty(from) && sought && !mset_empty(t->gone) && s->now - t->moved > want_late) {
            // All were asked: begin again. A member with another update under the key may have got
            // the right one since, so all are asked once more before this node is behind.
            bool anew = !mset_empty(t->other) && !t->anew;
            t->gone = t->other = mset_none();
            t->anew = anew;
            t->moved = s->now;
            if (g->decided && !anew)
                behind(s, j, g);
        }
        return;
    }
    do
        t->asked = (uint8_t)((t->asked + 1) % j->c.n_members);
    while (!mset_has(from, t->asked));
    t->moved = s->now;
    t->sought = true;
    if (t->asked == j->c.self) {
        struct inter_action *a = node_act(s, INTER_ACT_SERVE);
        a->peer = j->c.peers[j->c.self];
        a->key = k;
        return;
    }
    mset_add(&t->may_send, t->asked);
    if (!sought) {
        k = (struct inter_key){.round = g->round, .fragment = node_index(j, g), .member = m};
        memcpy(k.job, j->c.id, sizeof k.job);
        k.attempt = t->known ? t->m.key.attempt : ANY_ATTEMPT;
    }
    node_send_key(s, j, MSG_WANT, &k, t->asked);
}

void node_transfer_tick(struct step *s, struct job *j) {
    if (node_is_witness(j))
        return;
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        struct fragment *g = &j->fragments[f];
        for (uint8_t m = 0; m < j->c.n_members; m++) {
            struct slot *t = &g->slots[m];
            if (t->known && !t->whole && !t->checking && !t->refused && t->got.bits &&
                t->got.set == t->got.n &&
                may_judge(j, g, t)) { // all arrived before a restart, or before the gate was ready
                t->checking = true;
                node_act(s, INTER_ACT_BLOB_FINISH)->manifest = t->m;
            }
            if (t->no_room && s->now >= t->room_at) {
                t->room_at = s->now + room_last; // or earlier: an answer sets the next time
                open_blob(s, g, &t->m);
            }
            want(s, j, g, m);
        }
    }
}
