// SPDX-License-Identifier: Apache-2.0
// What signatures prove: records, promises, equivocation. And divergence: two histories are walked
// back to the first record that differs.
#include "inter/round/node_state.h"
#include "security/sign.h"

#include <stdlib.h>
#include <string.h>

// ---- records ------------------------------------------------------------------------------------

uint8_t inter_job_quorum(const struct inter_job_config *c) {
    uint8_t n = (uint8_t)mset_count(mset_minus(mset_first(c->n_members), c->removed));
    if (c->masked) // counts removed members: the same result at nodes that know other removals
        return inter_quorum(c->n_members, c->colluders);
    uint8_t liars = (uint8_t)(c->robust && n > 0 ? (n - 1) / 4 : 0);
    return inter_quorum(n, liars);
}

bool node_verify_record(struct inter_node *n, const struct job *j, const struct inter_record *r) {
    if (r->leader >= j->c.n_members || r->leader != r->term % j->c.n_members ||
        (node_fixed_leader(j) && r->term))
        return false;
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].member >= j->c.n_members)
            return false;
    neb_buf_clear(&n->scratch);
    inter_record_put_body(&n->scratch, r);
    return n->crypto.verify(n->crypto.user, j->c.peers[r->leader], SEC_CONTEXT_RECORD, n->scratch.p,
                            n->scratch.len, r->sig);
}

static bool accept_fits(struct inter_node *n, const struct job *j, const struct inter_record *r,
                        const struct inter_accept *a) {
    uint8_t hash[INTER_SHA_BYTES];
    if (a->member >= j->c.n_members)
        return false;
    inter_record_hash(r, hash);
    neb_buf_clear(&n->scratch);
    inter_accept_put_body(&n->scratch, r, hash, a->epoch);
    return n->crypto.verify(n->crypto.user, j->c.peers[a->member], SEC_CONTEXT_ACCEPT, n->scratch.p,
                            n->scratch.len, a->sig);
}

// An accept that does not fit may be of a key that this node, after an absence, has never heard of.
bool node_proven(struct inter_node *n, const struct job *j, struct inter_record *r) {
    struct member_set votes = mset_none();
    uint8_t kept = 0;
    for (uint8_t i = 0; i < r->n_accepts; i++) {
        if (!accept_fits(n, j, r, &r->accepts[i]))
            continue;
        mset_add(&votes, r->accepts[i].member);
        r->accepts[kept++] = r->accepts[i];
    }
    r->n_accepts = kept;
    return node_majority(j, votes);
}

bool node_proven_without_equivocators(const struct job *j, const struct inter_record *r) {
    struct member_set votes = mset_none();
    for (uint8_t i = 0; i < r->n_accepts; i++)
        mset_add(&votes, r->accepts[i].member);
    return node_majority(j, mset_minus(votes, j->equivocators));
}

bool inter_node_proves(struct inter_node *n, const struct inter_job_config *c,
                       struct inter_record *r) {
    struct job j = {.c = *c}; // of a job that is not open
    return !memcmp(r->job, c->id, sizeof r->job) && node_verify_record(n, &j, r) &&
           node_proven(n, &j, r);
}

// ---- promises -----------------------------------------------------------------------------------

static bool signed_by(struct inter_node *n, const struct job *j, uint8_t m, const char *context,
                      const uint8_t sig[INTER_SIG_BYTES]) { // signature over n->scratch
    return n->crypto.verify(n->crypto.user, j->c.peers[m], context, n->scratch.p, n->scratch.len,
                            sig);
}

bool node_promise(struct step *s, const struct job *j, const struct fragment *g,
                  struct inter_promise *out) {
    struct neb_buf *b = &s->n->scratch;
    *out = (struct inter_promise){.member = j->c.self,
                                  .term = j->standing.term,
                                  .epoch = j->standing.epoch,
                                  .round = g->round,
                                  .voted = g->voted,
                                  .vote_term = g->voted ? g->vote.term : 0};
    if (g->voted)
        memcpy(out->vote_hash, g->vote_hash, sizeof out->vote_hash);
    neb_buf_clear(b);
    inter_promise_put_body(b, j->c.id, node_index(j, g), out);
    return !b->oom &&
           s->n->crypto.sign(s->n->crypto.user, SEC_CONTEXT_PROMISE, b->p, b->len, out->sig);
}

bool node_promise_fits(struct inter_node *n, const struct job *j, const struct inter_record *r,
                       const struct inter_promise *p) {
    if (p->member >= j->c.n_members)
        return false;
    neb_buf_clear(&n->scratch);
    inter_promise_put_body(&n->scratch, r->job, r->fragment, p);
    return signed_by(n, j, p->member, SEC_CONTEXT_PROMISE, p->sig);
}

static bool tells_of(const struct inter_promise *p, uint32_t round, uint32_t term) {
    return p->voted && p->round == round && p->vote_term == term;
}

// Members whose promise reports a vote at `top`: for `hash`, or, if NULL, for any value.
static struct member_set tellers(const struct inter_promise *p, uint8_t k, uint32_t round,
                                 uint32_t top, const uint8_t *hash) {
    struct member_set out = mset_none();
    for (uint8_t i = 0; i < k; i++)
        if (tells_of(&p[i], round, top) &&
            (!hash || !memcmp(p[i].vote_hash, hash, INTER_SHA_BYTES)))
            mset_add(&out, p[i].member);
    return out;
}

// Members that must be Byzantine: those with evidence against them; and the leader of term `top`,
// if more members than can be Byzantine report another value than the most reported one. An honest
// leader proposes one value per term.
static struct member_set equivocators_by(const struct job *j, const struct inter_promise *p,
                                         uint8_t k, uint32_t round, uint32_t top) {
    struct member_set left = mset_union(j->c.removed, j->c.gone);
    int all = mset_count(mset_minus(tellers(p, k, round, top, NULL), left));
    int most = 0;
    for (uint8_t a = 0; a < k; a++) {
        int same = tells_of(&p[a], round, top)
                       ? mset_count(mset_minus(tellers(p, k, round, top, p[a].vote_hash), left))
                       : 0;
        most = same > most ? same : most;
    }
    bool two = all - most > j->c.colluders;
    return two ? mset_with(j->equivocators, (int)(top % j->c.n_members)) : j->equivocators;
}

// Masked: true if, by the promises p (k) of the members `told`, a majority may have accepted
// another value than `hash` at `top`. It may have the votes of the members outside `told`, of those
// that report it, and of more Byzantine ones: `colluders` less the equivocators counted.
static bool rivalled(const struct job *j, const struct inter_promise *p, uint8_t k,
                     struct member_set told, uint32_t round, uint32_t top,
                     const uint8_t hash[INTER_SHA_BYTES]) {
    struct member_set equivocators = equivocators_by(j, p, k, round, top),
                      others = mset_minus(node_everyone(j), told);
    for (uint8_t a = 0; a < k; a++) {
        if (!tells_of(&p[a], round, top) || !memcmp(p[a].vote_hash, hash, INTER_SHA_BYTES))
            continue;
        struct member_set votes = mset_union(others, tellers(p, k, round, top, p[a].vote_hash));
        int lying = j->c.colluders - mset_count(mset_common(equivocators, votes));
        if (mset_count(votes) + (lying > 0 ? lying : 0) >= inter_job_quorum(&j->c))
            return true;
    }
    return false;
}

static bool rivalled_by(const struct job *j, const struct fragment *g, struct member_set told,
                        const struct inter_record *r) {
    struct inter_promise p[NEB_MEMBERS_MAX];
    uint8_t hash[INTER_SHA_BYTES], k = 0;
    inter_record_hash(r, hash);
    for (uint8_t m = 0; mset_next(told, &m); m++)
        p[k++] = g->promises[m];
    return rivalled(j, p, k, told, r->round, r->term, hash);
}

// Members whose promises go with a proposal. If several values of one term were reported, known
// equivocators are left out, provided that the rest is enough.
static struct member_set told_by(const struct job *j, const struct fragment *g) {
    struct member_set honest = mset_minus(g->promised, j->equivocators);
    return g->n_rivals && node_majority(j, honest) ? honest : g->promised;
}

// True if, by the promises that are here, another value of its term may have been committed.
static bool has_rivals(const struct job *j, const struct fragment *g,
                       const struct inter_record *r) {
    return rivalled_by(j, g, told_by(j, g), r);
}

bool node_settle_rivals(const struct job *j, struct fragment *g) {
    bool rivalled = has_rivals(j, g, &g->best);
    for (uint8_t i = 0; i < g->n_rivals && rivalled; i++)
        if (!(rivalled = has_rivals(j, g, &g->rivals[i]))) {
            struct inter_record former = g->best;
            g->best = g->rivals[i];
            g->rivals[i] = former;
            g->doubted = 0;
        }
    return !rivalled;
}

void node_forget_rivals(struct fragment *g) {
    free(g->rivals);
    g->rivals = NULL;
    g->n_rivals = 0;
}

// Checks the promises of one term, from *at on: they must be a majority's and leave its leader free
// to propose the value `hash` in `term`. *top: the highest term of a vote that they report; 0: they
// report no vote, or one of term 0, which needs no promises.
static bool free_in(struct inter_node *n, const struct job *j, const struct inter_record *r,
                    const uint8_t hash[INTER_SHA_BYTES], uint32_t term, uint8_t *at,
                    uint32_t *top) {
    const struct inter_promise *first = &r->promises[*at];
    struct member_set votes = mset_none();
    bool bound = false, fits = false;
    *top = 0;
    for (; *at < r->n_promises && r->promises[*at].term == term; ++*at) {
        const struct inter_promise *p = &r->promises[*at];
        if (p->round > r->round || (p->voted && p->vote_term >= term) ||
            !node_promise_fits(n, j, r, p))
            return false;
        mset_add(&votes, p->member);
        if (p->round < r->round || !p->voted)
            continue;
        bool higher = !bound || p->vote_term > *top,
             same = !memcmp(p->vote_hash, hash, INTER_SHA_BYTES);
        fits = higher ? same : fits || (p->vote_term == *top && same);
        *top = higher ? p->vote_term : *top;
        bound = true;
    }
    return node_majority(j, votes) && (fits || !bound) &&
           !(j->c.masked && bound &&
             rivalled(j, first, (uint8_t)(&r->promises[*at] - first), votes, r->round, *top, hash));
}

// True if older promises are missing for lack of room. With masked sums that is not enough: this
// node must have voted for the value since, so that it knows that the leader was free.
static bool cut_fairly(const struct job *j, const struct inter_record *r,
                       const uint8_t hash[INTER_SHA_BYTES], uint32_t term) {
    const struct fragment *g = &j->fragments[r->fragment];
    bool voted = g->voted && g->round == r->round && g->vote.term >= term &&
                 !memcmp(g->vote_hash, hash, INTER_SHA_BYTES);
    return r->n_promises + j->c.n_members > INTER_PROMISES_MAX && (voted || !j->c.masked);
}

bool node_justified(struct inter_node *n, const struct job *j, const struct inter_record *r) {
    uint8_t hash[INTER_SHA_BYTES], at = 0;
    inter_record_hash(r, hash);
    for (uint32_t term = r->term, top; term; term = top) {
        if (at && at == r->n_promises)
            return cut_fairly(j, r, hash, term);
        if (!free_in(n, j, r, hash, term, &at, &top))
            return false;
    }
    return at == r->n_promises;
}

// The record that was voted for as the value `hash` in this term: `best`, or this node's own vote
// if the report is about that vote.
static const struct inter_record *voted_in(const struct fragment *g, uint32_t term,
                                           const uint8_t hash[INTER_SHA_BYTES]) {
    if (g->voted && g->vote.term == term && !memcmp(g->vote_hash, hash, INTER_SHA_BYTES) &&
        !(g->has_best && g->best.term == term))
        return &g->vote;
    return g->has_best ? &g->best : NULL;
}

// Adds a majority of the received promises, among them the one that reports the vote to be
// repeated. If two values of one term were reported, it adds all but those of known equivocators.
// The promises behind the repeated vote follow.
void node_add_promises(const struct job *j, const struct fragment *g, struct inter_record *r) {
    const struct inter_promise *first = NULL;
    uint8_t hash[INTER_SHA_BYTES];
    struct member_set chosen = mset_none(), told = told_by(j, g);
    inter_record_hash(r, hash);
    r->n_promises = 0;
    if (!r->term)
        return;
    for (uint8_t m = 0; mset_next(told, &m); m++) {
        const struct inter_promise *p = &g->promises[m];
        if (p->voted && p->round == r->round && !memcmp(p->vote_hash, hash, sizeof hash) &&
            (!first || p->vote_term > first->vote_term))
            first = p;
    }
    if (first)
        mset_add(&chosen, first->member);
    for (uint8_t m = 0; mset_next(told, &m) && (g->n_rivals || !node_majority(j, chosen)); m++)
        mset_add(&chosen, m);
    for (uint8_t m = 0; mset_next(chosen, &m); m++)
        r->promises[r->n_promises++] = g->promises[m];
    const struct inter_record *behind = first ? voted_in(g, first->vote_term, hash) : NULL;
    for (uint8_t i = 0; behind && i < behind->n_promises; i++)
        if (r->n_promises < INTER_PROMISES_MAX)
            r->promises[r->n_promises++] = behind->promises[i];
}

bool node_leader_voted(struct inter_node *n, const struct job *j, const struct inter_record *r) {
    for (uint8_t i = 0; i < r->n_accepts; i++)
        if (r->accepts[i].member == r->leader)
            return accept_fits(n, j, r, &r->accepts[i]);
    return false;
}

// ---- evidence -----------------------------------------------------------------------------------

void node_send_evidence(struct step *s, struct job *j, uint8_t equivocator, uint8_t to) {
    inter_evidence_put(node_begin(s, MSG_EVIDENCE), &j->evidence[equivocator]);
    node_send(s, j, to);
}

static bool statement_fits(struct inter_node *n, const struct job *j,
                           const struct inter_statement *t) {
    neb_buf_clear(&n->scratch);
    inter_statement_put_signed(&n->scratch, t);
    return !n->scratch.oom &&
           signed_by(n, j, t->promise.member, inter_statement_context(t), t->promise.sig);
}

bool node_take_evidence(struct step *s, struct job *j, const struct inter_evidence *e) {
    uint8_t m = inter_evidence_member(e);
    if (m < j->c.n_members && (m == j->c.self || mset_has(j->equivocators, m)))
        return true; // nothing new
    if (m >= j->c.n_members || memcmp(e->a.job, j->c.id, sizeof j->c.id) ||
        !inter_statements_conflict(&e->a, &e->b) || !statement_fits(s->n, j, &e->a) ||
        !statement_fits(s->n, j, &e->b))
        return false;
    mset_add(&j->equivocators, m);
    j->evidence[m] = *e;
    if (j->leader == m) { // another leader is elected
        j->leader = -1;
        j->leader_heard = 0;
    }
    struct inter_action *a = node_act(s, INTER_ACT_STORE_EVIDENCE);
    a->peer = j->c.peers[m];
    a->evidence = *e;
    node_blame_author(s, j, m, INTER_FAULT_EQUIVOCATED);
    for (uint8_t k = 0; k < j->c.n_members; k++)
        if (k != m)
            node_send_evidence(s, j, m, k);
    return true;
}

void node_on_evidence(struct step *s, struct neb_rd *r) {
    struct inter_evidence e;
    if (!inter_evidence_get(r, &e) || !neb_rd_done(r)) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, e.a.job);
    if (j && node_member(j, s->from) >= 0 && !node_take_evidence(s, j, &e))
        node_fault(s, INTER_FAULT_DENIED); // it proves nothing against anybody
}

void node_compare(struct step *s, struct job *j, const struct inter_record *x,
                  const struct inter_record *y) {
    struct inter_evidence found[NEB_MEMBERS_MAX];
    size_t n = inter_evidence_find(x, y, found);
    for (size_t i = 0; i < n; i++)
        (void)node_take_evidence(s, j, &found[i]);
}

void node_compare_vote(struct step *s, struct job *j, const struct fragment *g,
                       const struct inter_record *c) {
    if (!g->voted)
        return;
    struct inter_record own = g->vote;
    for (uint8_t m = 0; m < j->c.n_members; m++)
        if (mset_has(g->accepted, m) && m != own.leader && own.n_accepts < NEB_MEMBERS_MAX)
            own.accepts[own.n_accepts++] = g->accepts[m];
    node_compare(s, j, &own, c);
}

// ---- members that have diverged -----------------------------------------------------------------

const uint8_t *node_head(const struct fragment *g, uint32_t round) {
    if (round > g->round || g->round - round >= g->n_heads)
        return NULL;
    return g->heads[round % HEADS];
}

void node_new_head(struct fragment *g) {
    memcpy(g->heads[g->round % HEADS], g->previous, HEAD_BYTES);
    g->n_heads += g->n_heads < HEADS;
}

static void ask_before(struct step *s, struct job *j, const struct fragment *g, uint32_t round,
                       uint32_t peer) {
    int m = node_member(j, peer);
    if (m >= 0 && round)
        node_send_pull_of(s, j, g, round - 1, (uint8_t)m);
}

// Reported once, because it needs the operator.
static void say_split(struct step *s, struct job *j, uint32_t peer, uint32_t fragment,
                      uint32_t round) {
    if (j->split)
        return;
    j->split = true;
    struct inter_action *a = node_act(s, INTER_ACT_SPLIT);
    a->peer = peer;
    a->key = (struct inter_key){.round = round, .fragment = fragment};
    memcpy(a->key.job, j->c.id, sizeof a->key.job);
    node_blame(s, peer, INTER_FAULT_SPLIT);
}

// Compares two records of the first round that differs, or of a later one. An equivocator may show
// a record that no honest member has, so its record must not stop the others.
static void compared(struct step *s, struct job *j, const struct fragment *g,
                     const struct inter_record *own, const struct inter_record *c, uint32_t peer) {
    int m = node_member(j, peer);
    node_compare(s, j, own, c);
    if (memcmp(own->previous, c->previous, sizeof own->previous))
        ask_before(s, j, g, c->round, peer);
    else if (m >= 0 && !mset_has(j->equivocators, m))
        say_split(s, j, peer, c->fragment, c->round);
}

void node_diverge(struct step *s, struct job *j, struct fragment *g, const struct inter_record *c) {
    int m = node_member(j, s->from);
    if (m < 0 || mset_has(j->equivocators, m))
        return;
    if (!node_diverged(j))
        j->diverged_at = s->now;
    mset_add(&j->diverged, m);
    j->other = *c;
    j->other_from = s->from;
    node_step_down(j);
    if (c->round == g->round && g->decided) {
        compared(s, j, g, &g->decision, c, s->from);
    } else if (c->round == g->round) { // its history differs
        ask_before(s, j, g, c->round, s->from);
    } else {
        struct inter_action *a = node_act(s, INTER_ACT_READ_COMMIT);
        a->key = (struct inter_key){.round = c->round, .fragment = c->fragment};
        memcpy(a->key.job, j->c.id, sizeof a->key.job);
    }
}

void node_on_commit_read(struct step *s) {
    const struct inter_record *own = s->e->record;
    struct job *j = node_find_job(s->n, s->e->key.job);
    struct fragment *g = node_find_fragment(j, s->e->key.fragment);
    if (g && own && own->round == j->other.round && own->fragment == j->other.fragment)
        compared(s, j, g, own, &j->other, j->other_from);
}

// If the first record that differs cannot be had any more, the split is reported all the same.
void node_diverged_tick(struct step *s, struct job *j) {
    if (node_diverged(j) && s->now - j->diverged_at >= divergence_patience)
        say_split(s, j, j->other_from, j->other.fragment, j->other.round);
}

// ---- digests of parameters that members report --------------------------------------------------

static void said(struct inter_digests *out, uint8_t m, const uint64_t x[2],
                 const uint64_t digest[2]) {
    bool same = x[0] == digest[0] && x[1] == digest[1];
    mset_assign(&out->same, m, same);
    mset_assign(&out->other, m, !same);
}

static void said_in(struct inter_digests *out, const struct inter_record *r,
                    const uint64_t digest[2]) {
    for (uint8_t i = 0; i < r->n; i++)
        said(out, r->entries[i].member, r->entries[i].digest, digest);
}

void inter_record_digests(const struct inter_record *r, const uint64_t digest[2],
                          struct inter_digests *out) {
    *out = (struct inter_digests){0};
    said_in(out, r, digest);
}

bool inter_node_digests(const struct inter_node *n, const uint8_t job[INTER_ID_BYTES],
                        uint32_t fragment, uint32_t round, const uint64_t digest[2],
                        struct inter_digests *out) {
    const struct job *j = node_find_job((struct inter_node *)(uintptr_t)n, job);
    const struct fragment *g = node_find_fragment((struct job *)(uintptr_t)j, fragment);
    *out = (struct inter_digests){0};
    if (!g || g->round != round)
        return false;
    for (uint8_t m = 0; m < j->c.n_members; m++)
        if (g->slots[m].known)
            said(out, m, g->slots[m].m.digest, digest);
    if (g->decided) // of two updates of one member, the one that counts
        said_in(out, &g->decision, digest);
    return true;
}
