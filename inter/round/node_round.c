// SPDX-License-Identifier: Apache-2.0
// Proposals, votes and commits of one round of one fragment.
#include "inter/record/outlier.h"
#include "inter/record/robust.h"
#include "inter/record/weights.h"
#include "inter/round/node_state.h"
#include "inter/round/sums.h"
#include "security/sign.h"

#include <string.h>

static const char record_context[] = SEC_CONTEXT_RECORD, accept_context[] = SEC_CONTEXT_ACCEPT;

void node_clear_round(struct job *j, struct fragment *g) {
    for (uint8_t m = 0; m < j->c.n_members; m++)
        node_clear_slot(&g->slots[m]);
    g->voted = g->decided = g->waits = g->has_own = false;
    g->diverged = mset_none();
    // of a round that this node has yet to reach
    g->has_best = g->has_best && g->best.round > g->round;
    if (!g->has_best)
        node_forget_rivals(g);
    g->accepted = mset_none();
    g->pulled = g->bare = mset_none();
    g->ready_since = g->bare_at = g->doubted = 0;
}

bool node_lists(const struct inter_record *r, const struct inter_manifest *m) {
    for (uint8_t i = 0; i < r->n; i++) {
        const struct inter_entry *e = &r->entries[i];
        if (e->member == m->key.member)
            return e->attempt == m->key.attempt && e->bytes == m->bytes && e->tokens == m->tokens &&
                   e->flags == m->flags && e->digest[0] == m->digest[0] &&
                   e->digest[1] == m->digest[1] && !memcmp(e->sha256, m->sha256, sizeof e->sha256);
    }
    return false;
}

// Two intervals of slack: after a disk loss a member takes over what it had sent before, and counts
// its steps from there.
bool node_weight_possible(const struct job *j, const struct fragment *g, uint8_t m, uint64_t step,
                          uint64_t tokens) {
    const struct inter_fragment_rule *rule = &j->c.rules[node_index(j, g)];
    if (rule->owned && m != rule->owner && tokens)
        return false;
    uint64_t from = g->cursors[m], slack = 2 * (uint64_t)j->c.tune.start_interval;
    return step >= from && tokens <= j->c.step_tokens * (step - from + slack);
}

// ---- outliers -----------------------------------------------------------------------------------

// Compares each member with its own earlier updates. The result counts only if there are too few
// peers to compare with.
static struct member_set flag_by_past(const struct job *j, struct fragment *g,
                                      const struct inter_record *r, const float *norms) {
    struct member_set odd = mset_none();
    int accepted = 0;
    for (uint8_t i = 0; i < r->n; i++)
        accepted += r->entries[i].verdict == INTER_ACCEPTED;
    for (uint8_t i = 0; i < r->n; i++) {
        uint8_t m = r->entries[i].member;
        const struct slot *t = &g->slots[m];
        if (m == j->c.self || r->entries[i].verdict != INTER_ACCEPTED || !t->known)
            continue;
        uint64_t from = t->m.step > t->m.steps ? t->m.step - t->m.steps : 0;
        if (inter_past_stands_out(&g->past[m], norms[m],
                                  inter_reach(j->c.pace, j->c.steps, from, t->m.step),
                                  j->c.tune.on ? t->m.measure.codec : 0))
            mset_add(&odd, m);
    }
    return accepted < 3 && !j->c.robust ? odd : mset_none();
}

// Flags both of two members if their updates point against each other for some rounds.
static struct member_set flag_pair(const struct job *j, struct fragment *g,
                                   const struct inter_record *r,
                                   const float *const sketches[NEB_MEMBERS_MAX]) {
    if (mset_count(node_data(j)) != 2 || r->n != 2 || r->entries[0].verdict != INTER_ACCEPTED ||
        r->entries[1].verdict != INTER_ACCEPTED)
        return mset_none();
    uint8_t a = r->entries[0].member, b = r->entries[1].member;
    if (!inter_pair_apart(&g->pair, sketches[a], sketches[b]))
        return mset_none();
    return mset_with(mset_of(a), b);
}

// Reports outliers under every profile, so that a reader of the log knows where to look.
static void flag_outliers(struct step *s, const struct job *j, struct fragment *g,
                          const struct inter_record *r) {
    float norms[NEB_MEMBERS_MAX];
    const float *sketches[NEB_MEMBERS_MAX];
    if (j->c.rules[r->fragment].owned) // the owner's update is the only one
        return;
    (void)node_norms_of(g, r, norms);
    for (uint8_t m = 0; m < NEB_MEMBERS_MAX; m++)
        sketches[m] = g->slots[m].sketch;
    struct member_set odd = inter_outliers(r, norms, sketches);
    odd = mset_union(odd, flag_by_past(j, g, r, norms));
    odd = mset_union(odd, flag_pair(j, g, r, sketches));
    for (uint8_t m = 0; mset_next(odd, &m); m++)
        if (m != j->c.self)
            node_blame_author(s, j, m, INTER_FAULT_OUTLIER);
}

// ---- committing ---------------------------------------------------------------------------------

// True if every update that a record accepts is complete on this disk.
static bool holds_all(const struct job *j, const struct fragment *g, const struct inter_record *r) {
    for (uint8_t i = 0; i < r->n && !node_is_witness(j); i++) {
        const struct inter_entry *e = &r->entries[i];
        const struct slot *t = &g->slots[e->member];
        if (e->verdict == INTER_ACCEPTED && !(t->known && t->whole && node_lists(r, &t->m)))
            return false;
    }
    return true;
}

static void decide(struct step *s, struct job *j, struct fragment *g,
                   const struct inter_record *r) {
    g->decided = true;
    g->decision = *r;
    node_serves_decided(j, g);
    for (uint8_t m = 0; m < NEB_MEMBERS_MAX; m++) {
        g->slots[m].gone = mset_none();
        if (!g->slots[m].known)
            g->slots[m].moved = 0;
    }
    g->said = s->now;
}

void node_try_commit(struct step *s, struct job *j, struct fragment *g) {
    if (!g->decided || node_diverged(j) || !holds_all(j, g, &g->decision))
        return;
    flag_outliers(s, j, g, &g->decision);
    node_act(s, INTER_ACT_STORE_COMMIT)->record = g->decision;
    node_act(s, INTER_ACT_DELIVER)->record = g->decision;
    node_serves_round_over(s, j, g);
    inter_record_hash(&g->decision, g->previous);
    memcpy(g->cursors, g->decision.cursors, sizeof g->cursors);
    memcpy(g->absences, g->decision.absences, sizeof g->absences);
    for (uint8_t m = 0; m < g->decision.n_plans; m++)
        inter_tune_adopt(&g->tuners[m], &g->decision.plans[m]);
    node_clear_round(j, g);
    g->round++;
    node_new_head(g);
    g->said = s->now;
    // A faster member has already reported what it has of the new round. Unasked, it would repeat
    // this only after some seconds, and this node would be late again, round after round.
    struct member_set early = g->early;
    g->early = mset_none();
    for (uint8_t m = 0; mset_next(early, &m); m++)
        if (m != j->c.self)
            node_send_pull(s, j, g, m);
}

// For a round that is over here: true if it ended with this record, as far as this node remembers.
static bool known_as(const struct fragment *g, const struct inter_record *c) {
    uint8_t hash[INTER_SHA_BYTES], own[INTER_SHA_BYTES];
    inter_record_hash(c, hash);
    if (c->round == g->round) {
        inter_record_hash(&g->decision, own);
        return !memcmp(hash, own, sizeof own);
    }
    const uint8_t *head = node_head(g, c->round + 1);
    return !head || !memcmp(head, hash, HEAD_BYTES);
}

// A record of a later round than the open one proves how far others are.
static void take_later(struct step *s, struct job *j, struct fragment *g, struct inter_record *c,
                       uint8_t from) {
    if (c->round >= g->proven) {
        if (!node_verify_record(s->n, j, c) || !node_proven(s->n, j, c)) {
            node_fault(s, INTER_FAULT_DENIED);
            return;
        }
        g->proven = c->round + 1;
    }
    if (!node_diverged(j))
        node_send_pull(s, j, g, from);
}

void node_on_commit(struct step *s, struct neb_rd *r) {
    struct inter_record c;
    if (!inter_record_get(r, &c) || !neb_rd_done(r)) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, c.job);
    struct fragment *g = node_find_fragment(j, c.fragment);
    int from = j ? node_member(j, s->from) : -1;
    if (!g || from < 0)
        return;
    if (c.round > g->round) {
        take_later(s, j, g, &c, (uint8_t)from);
        return;
    }
    bool over = c.round < g->round || g->decided;
    if (over && known_as(g, &c))
        return; // repeated
    if (!node_verify_record(s->n, j, &c) || !node_proven(s->n, j, &c)) {
        node_fault(s, INTER_FAULT_DENIED);
        return;
    }
    if (over || memcmp(c.previous, g->previous, sizeof c.previous)) {
        node_diverge(s, j, g, &c);
        return;
    }
    node_compare_vote(s, j, g, &c);
    if (mset_has(j->equivocators, from) && !node_proven_without_equivocators(j, &c))
        return; // others may have another record of this round: wait for an honest member's
    if (!node_follows(j, g, &c)) { // most voters have another job, or are Byzantine
        node_fault(s, INTER_FAULT_DENIED);
        return;
    }
    decide(s, j, g, &c);
    node_try_commit(s, j, g);
    // asks for one record after the other
    if (!g->decided && j->members[from].rounds[c.fragment] > g->round)
        node_send_pull(s, j, g, (uint8_t)from);
}

void node_on_pull(struct step *s, struct neb_rd *r) {
    uint8_t id[INTER_ID_BYTES];
    neb_rd_copy(r, id, sizeof id);
    uint32_t f = neb_rd_u32(r), round = neb_rd_u32(r);
    if (!neb_rd_done(r)) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, id);
    struct fragment *g = node_find_fragment(j, f);
    int m = j ? node_member(j, s->from) : -1;
    if (!g || m < 0)
        return;
    if (round < g->round) {
        node_serve_behind(j, (uint8_t)m, f);
        node_answer_old(s, j, round, f);
    } else if (round == g->round)
        // The member has just opened the job or come back, and lacks what was sent before.
        node_repeat(s, j, g, (uint8_t)m, true);
}

// ---- voting -------------------------------------------------------------------------------------

static bool sign_accept(struct step *s, const struct job *j, const struct inter_record *r,
                        struct inter_accept *out) {
    struct neb_buf *b = &s->n->scratch;
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_hash(r, hash);
    neb_buf_clear(b);
    inter_accept_put_body(b, r, hash, j->standing.epoch);
    *out = (struct inter_accept){.member = j->c.self, .epoch = j->standing.epoch};
    return s->n->crypto.sign(s->n->crypto.user, accept_context, b->p, b->len, out->sig);
}

void node_send_accept(struct step *s, struct job *j, struct fragment *g) {
    struct inter_accept a;
    if (!j->standing.joined || mset_has(j->equivocators, g->vote.leader) ||
        !sign_accept(s, j, &g->vote, &a))
        return;
    if (node_fixed_leader(j)) {
        node_send_agree(s, j, g, &a);
        return;
    }
    struct neb_buf *b = node_begin(s, MSG_ACCEPT);
    inter_accept_put_body(b, &g->vote, g->vote_hash, a.epoch);
    neb_buf_add(b, a.sig, sizeof a.sig);
    node_send(s, j, g->vote.leader);
}

void node_vote(struct step *s, struct job *j, struct fragment *g, const struct inter_record *r) {
    g->voted = true;
    g->waits = false;
    g->vote = *r;
    g->accepted = mset_none();
    inter_record_hash(r, g->vote_hash);
    j->members[r->leader].promised = 0;
    if (r->term > j->standing.term) {
        j->standing.term = r->term;
        node_step_down(j);
        node_store_standing(s, j);
    }
    node_act(s, INTER_ACT_STORE_VOTE)->record = *r;
}

// Asks for the updates that a record lists, because this node cannot judge it without them.
static void ask_for(struct fragment *g, const struct inter_record *c) {
    if (g->waits && c->term <= g->pending.term)
        return;
    g->waits = true;
    g->pending = *c;
    for (uint8_t m = 0; m < NEB_MEMBERS_MAX; m++)
        g->slots[m].gone = mset_none();
}

// True if this node votes for a proposal. If it cannot judge it yet, it asks for the listed
// updates; in one term only for those of the first such proposal.
static bool judge(struct step *s, struct job *j, struct fragment *g, const struct inter_record *c,
                  const struct inter_manifest *given, uint8_t n_given) {
    bool fit = node_manifests_fit(s->n, j, g, c, given, n_given);
    for (uint8_t i = 0; i < n_given && fit; i++) {
        const struct slot *t = &g->slots[given[i].key.member];
        if (t->known && inter_key_equal(&t->m.key, &given[i].key))
            node_second_update(s, j, &t->m, &given[i]);
    }
    enum node_judgement v = fit ? node_judge(j, g, c, given, n_given) : NODE_UNFAIR;
    if (v == NODE_UNFAIR)
        node_fault(s, INTER_FAULT_DENIED);
    if (v == NODE_UNKNOWN && !node_is_witness(j))
        ask_for(g, c);
    return v == NODE_FAIR;
}

// Of two members the second completes the majority with its own vote: the leader's vote came with
// the proposal. So it needs no COMMIT.
static void learn(struct step *s, struct job *j, struct fragment *g, const struct inter_record *c) {
    const struct inter_accept *first = &c->accepts[0];
    struct inter_accept own;
    if (!node_fixed_leader(j) || c->n_accepts != 1 ||
        !node_vote_counts(j, first->member, first->epoch) || !sign_accept(s, j, c, &own))
        return;
    struct inter_record done = *c;
    done.accepts[done.n_accepts++] = own;
    const struct slot *t = &g->slots[j->c.self];
    if (t->known && node_lists(c, &t->m)) // the leader has its update, and need not say so
        node_serve_on_state(s, j, &t->m.key, t->m.sha256, c->leader, INTER_HOLD_COMPLETE, NULL, 0);
    decide(s, j, g, &done);
    node_try_commit(s, j, g);
}

void node_on_propose(struct step *s, struct neb_rd *r) {
    struct inter_record c;
    bool good = inter_record_get(r, &c);
    uint64_t epoch = neb_rd_u64(r);
    struct inter_manifest given[NEB_MEMBERS_MAX];
    uint8_t n_given;
    if (!good || !node_get_manifests(r, given, &n_given) || !neb_rd_done(r))
        node_fault(s, INTER_FAULT_MALFORMED);
    else
        node_take_proposal(s, &c, epoch, given, n_given);
}

void node_take_proposal(struct step *s, const struct inter_record *r, uint64_t epoch,
                        const struct inter_manifest *given, uint8_t n_given) {
    const struct inter_record c = *r;
    uint8_t hash[INTER_SHA_BYTES];
    struct job *j = node_find_job(s->n, c.job);
    struct fragment *g = node_find_fragment(j, c.fragment);
    if (!g)
        return;
    // A proposal from a lost disk: since then the leader may have learned that this node had
    // accepted nothing.
    uint64_t newest = j->members[c.leader].epoch;
    bool renewed = mset_has(j->standing.renewed, c.leader);
    if (epoch < j->standing.epochs[c.leader] ||
        (renewed && (!newest || epoch < newest || epoch == j->standing.epochs[c.leader]))) {
        node_fault(s, INTER_FAULT_REPLAY);
        return;
    }
    if (node_member(j, s->from) != c.leader || !node_verify_record(s->n, j, &c)) {
        node_fault(s, INTER_FAULT_DENIED);
        return;
    }
    if (c.round != g->round) {
        if (c.round > g->round)
            node_send_pull(s, j, g, c.leader);
        else
            node_answer_old(s, j, c.round, c.fragment);
        return;
    }
    if (!node_leader_voted(s->n, j, &c) || !node_justified(s->n, j, &c)) {
        node_fault(s, INTER_FAULT_DENIED);
        return;
    }
    node_compare_vote(s, j, g, &c);
    if (!j->standing.joined || c.term < j->standing.term || g->decided || node_diverged(j) ||
        mset_has(j->equivocators, c.leader))
        return; // our next heartbeat shows it the term, or evidence follows
    inter_record_hash(&c, hash);
    if (g->voted && g->vote.term == c.term && memcmp(hash, g->vote_hash, sizeof hash)) {
        node_fault(s, INTER_FAULT_SECOND);
        return;
    }
    if (memcmp(c.previous, g->previous, sizeof c.previous)) {
        node_fault(s, INTER_FAULT_DIVERGED);
        return;
    }
    if (!(g->voted && !memcmp(hash, g->vote_hash, sizeof hash)) &&
        !judge(s, j, g, &c, given, n_given))
        return;
    if (!g->voted || g->vote.term != c.term)
        node_vote(s, j, g, &c);
    node_send_accept(s, j, g);
    learn(s, j, g, &c);
}

void node_on_accept(struct step *s, struct neb_rd *r) {
    uint8_t id[INTER_ID_BYTES], hash[INTER_SHA_BYTES];
    struct inter_accept a = {0};
    neb_rd_copy(r, id, sizeof id);
    uint32_t round = neb_rd_u32(r), f = neb_rd_u32(r), term = neb_rd_u32(r);
    neb_rd_copy(r, hash, sizeof hash);
    a.epoch = neb_rd_u64(r);
    size_t body = r->off - 1; // without the type
    neb_rd_copy(r, a.sig, sizeof a.sig);
    if (!neb_rd_done(r) || term > INTER_TERM_MAX) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, id);
    struct fragment *g = node_find_fragment(j, f);
    int m = j ? node_member(j, s->from) : -1;
    if (!g || m < 0 || round > g->round)
        return;
    if (round < g->round) {
        node_answer_old(s, j, round, f);
        return;
    }
    if (!j->leads || g->decided || node_diverged(j) || mset_has(j->equivocators, m) ||
        !node_vote_counts(j, (uint8_t)m, a.epoch))
        return;
    if (!g->voted || term != g->vote.term || term != j->standing.term ||
        memcmp(hash, g->vote_hash, sizeof hash)) {
        node_fault(s, INTER_FAULT_REPLAY);
        return;
    }
    if (!s->n->crypto.verify(s->n->crypto.user, s->from, accept_context, r->p + 1, body, a.sig)) {
        node_fault(s, INTER_FAULT_DENIED);
        return;
    }
    a.member = (uint8_t)m;
    g->accepts[m] = a;
    mset_add(&g->accepted, m);
    if (!node_majority(j, mset_minus(g->accepted, j->equivocators)))
        return;
    struct inter_record done = g->vote;
    done.n_accepts = 0;
    for (uint8_t k = 0; mset_next(g->accepted, &k); k++)
        done.accepts[done.n_accepts++] = g->accepts[k];
    decide(s, j, g, &done);
    node_try_commit(s, j, g); // if possible, before others learn of it
    for (uint8_t k = 0; k < j->c.n_members; k++)
        if (!node_fixed_leader(j) || k != m) // it has learned it with its own vote
            node_send_record(s, j, MSG_COMMIT, &done, k);
}

// ---- proposing ----------------------------------------------------------------------------------

// True if enough other members refuse an update: more than half of the other remaining data
// members. If there is only one such member, and a witness, then the owner counts too, and both
// must refuse it. The owner and a witness have no other means to judge the update.
static bool told_no_good(const struct job *j, const struct slot *t, uint8_t m) {
    struct member_set others = mset_without(node_data_left(j), m);
    if (mset_count(others) < 2 && j->c.n_members > 2 && !node_left(j, m))
        mset_add(&others, m);
    return t->known && mset_majority(t->refusers, others);
}

bool node_is_refused(const struct job *j, const struct slot *t, uint8_t m) {
    if (m != j->c.self && !node_is_witness(j))
        return t->known && t->refused;
    return told_no_good(j, t, m);
}

bool node_witness_rejects(const struct job *j, const struct slot *t, uint8_t m) {
    // no member any more: its own report never comes
    return node_left(j, m) || (t->known && mset_has(t->refusers, m)) || told_no_good(j, t, m);
}

// True if an update may be part of a record: it survives the loss of one disk, or it is known to be
// refused. Besides, enough voters must see it as this node does.
static bool eligible(const struct job *j, const struct slot *t, uint8_t m) {
    int copies = mset_count(mset_common(t->holders, node_data(j))), want = mset_count(node_data(j));
    bool bad = node_is_refused(j, t, m);
    struct member_set against = t->refusers;
    if (j->c.n_members == 2) // the owner's own report does not block: both are needed
        mset_remove(&against, m);
    if (bad)
        against = mset_without(mset_common(t->holders, node_data(j)), m);
    if (!node_majority(j, mset_minus(node_everyone(j), against)))
        return false;
    if (bad && !mset_empty(j->c.witnesses) && !node_witness_rejects(j, t, m))
        return false; // the record would wait for reports that may never come
    if (j->c.robust && t->known && !bad && !(t->norm > 0))
        return false; // its norm is not known yet
    return t->known && (bad || copies >= (want < 2 ? want : 2));
}

static struct member_set live_data(const struct step *s, const struct job *j) {
    struct member_set live = mset_none();
    for (uint8_t m = 0; m < j->c.n_members; m++)
        if (j->c.commit_all || (node_live(s, j, m) && !node_idle(j, m)))
            mset_add(&live, m);
    return mset_common(live, node_data_left(j));
}

// After an outage both sides send again once they see each other. If the new update of one side met
// the old update of the other, both would count in full, in two rounds, instead of being averaged.
// So the leader waits for a few steps of the other side; in vain if that side was down.
static bool returns_alone(const struct step *s, const struct job *j, const struct fragment *g,
                          struct member_set ready) {
    for (uint8_t a = 0; a < j->c.n_members; a++)
        for (uint8_t b = 0; b < j->c.n_members; b++) {
            const struct inter_manifest *x = &g->slots[a].m, *y = &g->slots[b].m;
            if (!mset_has(ready, a) || !mset_has(ready, b) || x->missed <= j->c.merge_after ||
                y->missed > j->c.merge_after || g->absences[a].base != g->absences[b].base)
                continue;
            neb_ns steps = 4 * (neb_ns)y->measure.step_us * NEB_US,
                   wait = steps > 2 * NEB_S ? steps : 2 * NEB_S;
            if (s->now - g->ready_since < (wait < j->c.grace ? wait : j->c.grace))
                return true;
        }
    return false;
}

int node_least(const struct job *j) {
    int least = mset_count(node_data(j)) < 2 ? 1 : 2;
    if (j->c.robust && least < node_robust_least(j))
        least = node_robust_least(j);
    if (j->c.masked && least < inter_sums_least(j->c.n_members, j->c.colluders))
        least = inter_sums_least(j->c.n_members, j->c.colluders);
    return least;
}

struct member_set node_owing(const struct step *s, const struct job *j) {
    struct member_set owing = mset_none();
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        const struct fragment *g = &j->fragments[f];
        struct member_set ready = mset_none(), absent = mset_none(), idle = mset_none();
        bool last = true;
        neb_ns since = j->born;
        for (uint8_t m = 0; m < j->c.n_members && !g->decided; m++) {
            const struct slot *t = &g->slots[m];
            if (eligible(j, t, m)) {
                mset_add(&ready, m);
                last = last && t->m.flags & INTER_FINAL;
                since = t->began > since ? t->began : since;
            } else if (mset_has(node_data_left(j), m) && m != j->c.self && node_live(s, j, m) &&
                       !(t->known && t->no_room)) { // it has sent one, but this disk is full
                mset_add(&absent, m);
                mset_assign(&idle, m, node_idle(j, m));
            }
        }
        bool needed = mset_count(ready) < node_least(j) || j->c.commit_all;
        if (!needed)
            absent = mset_minus(absent, idle);
        if (!mset_empty(ready) && (needed || last) && s->now - since > j->c.grace)
            owing = mset_union(owing, absent);
    }
    return owing;
}

struct member_set node_no_room(const struct job *j) {
    struct member_set out = mset_none();
    for (uint32_t f = 0; f < j->c.fragments; f++)
        for (uint8_t m = 0; m < j->c.n_members; m++) {
            const struct slot *t = &j->fragments[f].slots[m];
            if (t->known && t->no_room && !t->whole)
                mset_add(&out, m);
        }
    return out;
}

// The members whose update the next record is to hold; none: not yet.
static struct member_set choose(struct step *s, const struct job *j, struct fragment *g) {
    struct member_set ready = mset_none(), live = live_data(s, j);
    bool complete = true;
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        const struct slot *t = &g->slots[m];
        bool here = eligible(j, t, m);
        if (here)
            mset_add(&ready, m);
        if (mset_has(live, m) && (!here || !mset_within(live, mset_union(t->holders, t->refusers))))
            complete = false;
    }
    int least = node_least(j), good = 0;
    for (uint8_t m = 0; mset_next(ready, &m); m++)
        good += !node_is_refused(j, &g->slots[m], m);
    if (mset_count(ready) < least || (j->c.masked && good < least)) {
        g->ready_since = 0;
        return mset_none();
    }
    if (!g->ready_since)
        g->ready_since = s->now;
    // If the others have nothing more to send, a slow member is waited for: its last steps count.
    bool last = true;
    for (uint8_t m = 0; mset_next(ready, &m); m++)
        last = last && g->slots[m].m.flags & INTER_FINAL;
    bool late = !last && !j->c.commit_all && s->now - g->ready_since >= j->c.grace;
    return (complete && !returns_alone(s, j, g, ready)) || late ? ready : mset_none();
}

static void fill_record(const struct step *s, struct inter_record *r, const struct job *j,
                        struct fragment *g, struct member_set chosen) {
    node_expect(j, g, chosen, r);
    for (uint8_t i = 0; i < r->n; i++) {
        struct inter_entry *e = &r->entries[i];
        if (node_is_refused(j, &g->slots[e->member], e->member))
            e->verdict = INTER_REJECTED;
    }
    node_plan(s, j, g, r);
    inter_weights_fill(r, g->absences);
    float norms[NEB_MEMBERS_MAX];
    if (j->c.robust && node_norms_of(g, r, norms))
        inter_robust_clip(r, norms);
}

// A member that cannot judge the value yet asks for the bytes. A witness cannot do so, and the
// bytes may be lost everywhere. After a while such a leader leaves the term to a member that has
// accepted the value, because that one needs no bytes.
static bool may_propose_again(struct step *s, struct job *j, struct fragment *g,
                              const struct inter_record *r) {
    enum node_judgement v = node_rejudge(j, g, r, g->best.leader);
    g->doubted = v != NODE_UNKNOWN ? 0 : g->doubted ? g->doubted : s->now;
    if (v == NODE_UNKNOWN && !node_is_witness(j))
        ask_for(g, r);
    neb_ns patience = node_is_witness(j) ? unfollowed : 4 * unfollowed;
    if (v == NODE_UNKNOWN && s->now - g->doubted >= patience) {
        node_step_down(j);
        j->asked_at = s->now; // other members have their turn
    }
    return v == NODE_FAIR;
}

// The leader proposes what a voter may have accepted in this round, otherwise what is ready.
void node_try_propose(struct step *s, struct job *j, struct fragment *g) {
    struct inter_record r;
    struct inter_accept own;
    if (!j->leads || !j->standing.joined || g->decided || node_diverged(j) || g->round < g->floor)
        return;
    if (g->voted && g->vote.term == j->standing.term) { // it may come from before a restart
        if (!mset_has(g->accepted, j->c.self) && sign_accept(s, j, &g->vote, &own)) {
            g->accepts[j->c.self] = own;
            mset_add(&g->accepted, j->c.self);
            if (!g->vote.n_accepts) // stored by a build that kept it out of the proposal
                g->vote.accepts[g->vote.n_accepts++] = own;
        }
        return;
    }
    // no honest voter has accepted this, whatever a promise reports
    while (g->has_best && g->best.round == g->round && !node_follows(j, g, &g->best)) {
        g->has_best = g->n_rivals > 0;
        if (g->has_best)
            g->best = g->rivals[--g->n_rivals];
    }
    // Masked: if another value may have been committed, wait for more promises or for evidence.
    if (g->n_rivals && g->best.round == g->round && !node_settle_rivals(j, g))
        return;
    if (g->has_best && g->best.round == g->round) {
        r = g->best;
        r.term = j->standing.term;
        if (!may_propose_again(s, j, g, &r))
            return;
    } else {
        struct member_set chosen = j->judges ? choose(s, j, g) : mset_none();
        if (mset_empty(chosen))
            return;
        fill_record(s, &r, j, g, chosen);
    }
    r.term = j->standing.term;
    r.leader = j->c.self;
    r.n_accepts = 0;
    node_add_promises(j, g, &r);
    if (j->c.masked && r.term && !node_justified(s->n, j, &r))
        return;
    neb_buf_clear(&s->n->scratch);
    inter_record_put_body(&s->n->scratch, &r);
    if (!s->n->crypto.sign(s->n->crypto.user, record_context, s->n->scratch.p, s->n->scratch.len,
                           r.sig) ||
        !sign_accept(s, j, &r, &own))
        return;
    r.accepts[r.n_accepts++] = own; // part of the proposal: two in one term are evidence
    node_vote(s, j, g, &r);
    g->said = g->proposed = s->now;
    g->accepts[j->c.self] = own;
    g->accepted = mset_of(j->c.self);
    if (node_majority(j, g->accepted)) { // a job of one voter
        decide(s, j, g, &r);
        node_try_commit(s, j, g);
    } else {
        for (uint8_t m = 0; m < j->c.n_members; m++)
            if (!node_send_short(s, j, &r, m))
                node_send_record(s, j, MSG_PROPOSE, &r, m);
    }
}
