// SPDX-License-Identifier: Apache-2.0
// Heartbeats, epochs and terms: which members may vote, and which one leads.
#include "inter/round/node_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    HEARTBEAT_LEADS = 1,
    HEARTBEAT_JOINED = 2,
    HEARTBEAT_LEAVES = 4,
    HEARTBEAT_FOLLOWS = 8,
    HEARTBEAT_IDLE = 16
};
enum promise_kind { PROMISE_TERM, PROMISE_RECOVERY };

void node_store_standing(struct step *s, struct job *j) {
    node_act(s, INTER_ACT_STORE_STANDING)->standing = j->standing;
}

void node_step_down(struct job *j) {
    j->leads = j->asks = false;
    j->unled_at = 0;
}

// The last term that this node takes part in.
static uint32_t term_last(const struct step *s, const struct job *j) {
    return inter_term_last(j->c.day + (uint64_t)(j->born ? s->now - j->born : 0));
}

// True if no honest member sends this term, whatever its clock.
static bool term_absurd(const struct step *s, const struct job *j, uint32_t term) {
    uint32_t last = term_last(s, j);
    return term > INTER_TERM_MAX || (term > last && term - last > INTER_TERMS_AHEAD);
}

// True if the leader has no majority of promises: for some time too many members have other terms.
static bool unled(const struct step *s, const struct job *j) {
    return j->unled_at && s->now - j->unled_at >= unfollowed;
}

static bool hears_leader(const struct step *s, const struct job *j) {
    return node_leads(j) || (j->leader >= 0 && j->leader_heard &&
                             s->now - j->leader_heard < leader_sticky && !unled(s, j));
}

bool node_vote_counts(const struct job *j, uint8_t m, uint64_t epoch) {
    return epoch && j->standing.epochs[m] == epoch && !mset_has(j->standing.renewed, m);
}

// ---- heartbeats ---------------------------------------------------------------------------------

void node_heartbeat(struct step *s, struct job *j, uint8_t m) {
    struct neb_buf *b = node_begin(s, MSG_HEARTBEAT);
    struct member_set reaches = mset_none();
    for (uint8_t k = 0; k < j->c.n_members; k++)
        if (node_direct(s, j, k))
            mset_add(&reaches, k);
    neb_buf_add(b, j->c.id, sizeof j->c.id);
    neb_buf_u32(b, j->standing.term);
    neb_buf_u8(b, (uint8_t)((node_leads(j) ? HEARTBEAT_LEADS : 0) |
                            (j->standing.joined ? HEARTBEAT_JOINED : 0) |
                            (j->leaving ? HEARTBEAT_LEAVES : 0) |
                            (hears_leader(s, j) ? HEARTBEAT_FOLLOWS : 0) |
                            (j->idle ? HEARTBEAT_IDLE : 0)));
    neb_buf_u64(b, j->standing.epoch);
    neb_buf_u64(b, j->standing.epochs[m]); // the epoch that we know of it
    mset_write(b, reaches);
    neb_buf_u32(b, j->c.fragments);
    mset_write(b, j->equivocators);
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        neb_buf_u32(b, j->fragments[f].round);
        neb_buf_add(b, j->fragments[f].previous, HEAD_BYTES);
    }
    node_send(s, j, m);
    j->members[m].beat = s->now;
}

// Another hash before the same round: a heartbeat proves nothing, so the record is pulled.
static void compare_heads(struct step *s, struct job *j, struct fragment *g, uint32_t round,
                          const uint8_t head[HEAD_BYTES], uint8_t m) {
    const uint8_t *own = node_head(g, round);
    if (round && own && memcmp(own, head, HEAD_BYTES))
        node_send_pull_of(s, j, g, round - 1, m);
}

// A member with a newer epoch has lost its disk. Its votes do not count until it reports that it
// has recovered. False: an older epoch, of a previous incarnation.
static bool epoch_stands(struct step *s, struct job *j, uint8_t m, uint64_t epoch, bool joined) {
    struct inter_standing *st = &j->standing;
    if (epoch < st->epochs[m])
        return false;
    if (epoch == st->epochs[m])
        return true;
    bool renewed = st->epochs[m] && !joined;
    if (renewed && mset_has(st->renewed, m))
        return true; // known already
    if (renewed) {
        mset_add(&st->renewed, m);
        mset_remove(&j->diverged, m); // its previous history is gone
        node_fault(s, INTER_FAULT_RENEWED);
    } else {
        st->epochs[m] = epoch;
        mset_remove(&st->renewed, m);
    }
    node_store_standing(s, j);
    return true;
}

// After a disk loss, nothing that the old disk held is here.
static void forget_holdings(struct job *j, uint8_t m) {
    for (uint32_t f = 0; f < j->c.fragments; f++)
        for (uint8_t k = 0; k < j->c.n_members; k++) {
            struct slot *t = &j->fragments[f].slots[k];
            mset_remove(&t->holders, m);
            mset_remove(&t->hints, m);
            mset_remove(&t->refusers, m);
        }
}

static void say_elect_to(struct step *s, struct job *j, enum promise_kind kind, uint8_t m) {
    struct neb_buf *b = node_begin(s, MSG_ELECT);
    neb_buf_add(b, j->c.id, sizeof j->c.id);
    neb_buf_u8(b, (uint8_t)kind);
    neb_buf_u32(b, j->standing.term);
    neb_buf_u64(b, j->standing.epoch);
    node_send(s, j, m);
}

// If all others know this node under a later epoch, its ledger was created while its clock was
// behind. It takes the epoch after that one, so that its attempts are later too
// (inter_attempt_first). All others must report this, so that one Byzantine member cannot cause it.
static void take_later_epoch(struct step *s, struct job *j) {
    uint64_t latest = 0;
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        uint64_t known = j->members[m].knows_me_by;
        if (m == j->c.self || node_left(j, m) || mset_has(j->equivocators, m))
            continue;
        if (known <= j->standing.epoch || known > INTER_EPOCH_MAX - NEB_S)
            return;
        latest = known > latest ? known : latest;
    }
    if (!latest)
        return;
    j->standing.epoch = latest + NEB_S;
    node_store_standing(s, j);
}

struct heartbeat {
    uint8_t job[INTER_ID_BYTES];
    uint32_t term, fragments;
    uint8_t flags;
    uint64_t epoch, known; // known: epoch of this node that the sender knows
    struct member_set reaches, equivocators;
};

static bool heartbeat_get(struct neb_rd *r, struct heartbeat *b) {
    neb_rd_copy(r, b->job, sizeof b->job);
    b->term = neb_rd_u32(r);
    b->flags = neb_rd_u8(r);
    b->epoch = neb_rd_u64(r);
    b->known = neb_rd_u64(r);
    b->reaches = mset_read(r);
    b->fragments = neb_rd_u32(r);
    b->equivocators = mset_read(r);
    return !r->bad && b->epoch && b->fragments <= INTER_FRAGMENTS_MAX &&
           b->term <= INTER_TERM_MAX && neb_rd_left(r) == (4 + HEAD_BYTES) * (size_t)b->fragments;
}

// A heartbeat is not signed. It changes no term here, and the only member that it can make the
// leader is the one to which this node has promised the term. `replaced` and known_term show its
// other effects.
static void take_term(struct step *s, struct job *j, uint8_t m, const struct heartbeat *b) {
    uint32_t term = j->standing.term;
    bool lies = mset_has(j->equivocators, m);
    j->members[m].term = b->term;
    j->members[m].follows = b->flags & HEARTBEAT_FOLLOWS;
    if (b->flags & HEARTBEAT_LEADS && !lies && b->term == term && term % j->c.n_members == m) {
        j->leader = m;
        j->leader_heard = s->now;
        j->leader_excused = 0;
    }
    // Member m was away when the others promised. Without a promise it neither follows nor votes.
    if (j->leads && b->term < term && b->flags & HEARTBEAT_JOINED && !lies &&
        !mset_has(j->standing.renewed, m))
        say_elect_to(s, j, PROMISE_TERM, m);
}

static void take_rounds(struct step *s, struct job *j, uint8_t m, struct neb_rd *r) {
    enum { BEHIND = 3 }; // rounds: a record takes time to arrive
    j->members[m].behind = false;
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        struct fragment *g = &j->fragments[f];
        uint32_t round = j->members[m].rounds[f] = neb_rd_u32(r);
        uint8_t head[HEAD_BYTES];
        neb_rd_copy(r, head, sizeof head);
        compare_heads(s, j, g, round, head, m);
        if (round > g->round && !g->decided)
            node_send_pull(s, j, g, m);
        if (round > g->round + 1 && round > node_proven_round(g)) // not proven so far
            node_send_pull_of(s, j, g, round - 1, m);
        // a reported round may be any number
        j->members[m].behind |= g->round >= BEHIND && round <= g->round - BEHIND;
    }
}

void node_on_heartbeat(struct step *s, struct neb_rd *r) {
    struct heartbeat b;
    if (!heartbeat_get(r, &b)) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, b.job);
    int m = j ? node_member(j, s->from) : -1;
    if (m < 0 || b.fragments != j->c.fragments)
        return;
    if (term_absurd(s, j, b.term)) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct member *x = &j->members[m];
    bool newer = x->epoch && b.epoch > x->epoch;
    if ((newer && x->restart_at && s->now - x->restart_at < restart_pause) ||
        !epoch_stands(s, j, (uint8_t)m, b.epoch, b.flags & HEARTBEAT_JOINED)) {
        node_fault(s, INTER_FAULT_REPLAY);
        return;
    }
    if (newer) {
        x->restart_at = s->now;
        forget_holdings(j, (uint8_t)m);
    }
    x->epoch = b.epoch;
    x->heard = s->now;
    x->excused = 0;
    x->reaches = b.reaches;
    x->leaves = b.flags & HEARTBEAT_LEAVES;
    x->idle = b.flags & HEARTBEAT_IDLE;
    x->knows_me_by = b.known;
    if (!j->standing.joined)
        take_later_epoch(s, j);
    x->knows_me |= b.known == j->standing.epoch;
    if (b.known && b.known < j->standing.epoch && !j->standing.joined) {
        j->recovers = j->lost = true;
        mset_add(&j->knew_older, m);
    }
    take_term(s, j, (uint8_t)m, &b);
    struct member_set untold = mset_minus(j->equivocators, b.equivocators);
    for (uint8_t k = 0; mset_next(untold, &k); k++)
        node_send_evidence(s, j, k, (uint8_t)m);
    take_rounds(s, j, (uint8_t)m, r);
}

// ---- promises -----------------------------------------------------------------------------------

// Masked: adds another value of best's term. If all places are taken, it replaces one that no
// promise reports any more. The newest promise of each member is in g->promises already.
static void add_rival(struct step *s, struct job *j, struct fragment *g,
                      const struct inter_record *vote) {
    uint8_t a[INTER_SHA_BYTES], b[INTER_SHA_BYTES], at = g->n_rivals;
    inter_record_hash(vote, a);
    inter_record_hash(&g->best, b);
    if (!memcmp(a, b, sizeof a))
        return;
    node_compare(s, j, vote, &g->best); // the leader of that term has signed both
    if (!g->rivals && !(g->rivals = calloc(j->c.n_members, sizeof *g->rivals))) {
        s->st = neb_fail(NEB_ERR_NOMEM, "out of memory for the values proposed in one term");
        return;
    }
    for (uint8_t i = 0; i < g->n_rivals; i++) {
        bool told = false;
        inter_record_hash(&g->rivals[i], b);
        if (!memcmp(a, b, sizeof a))
            return;
        node_compare(s, j, vote, &g->rivals[i]);
        for (uint8_t m = 0; m < j->c.n_members; m++)
            told |= mset_has(g->promised, m) && g->promises[m].voted &&
                    !memcmp(b, g->promises[m].vote_hash, sizeof b);
        at = told ? at : i;
    }
    if (at == j->c.n_members)
        return;
    g->rivals[at] = *vote;
    g->n_rivals = (uint8_t)(g->n_rivals + (at == g->n_rivals));
}

// Adds what a promise or a recovery reports of a fragment: the highest open round, if records have
// shown that it is possible, and in it the value accepted at the highest term.
static void merge(struct step *s, struct job *j, struct fragment *g, uint32_t round,
                  const struct inter_record *vote) {
    if (round > g->floor) {
        g->floor = round;
        g->has_best = false;
        g->n_rivals = 0;
    }
    if (round != g->floor || !vote || vote->round != round)
        return;
    if (!g->has_best || vote->term > g->best.term) {
        g->has_best = true;
        g->n_rivals = 0;
        g->best = *vote;
    } else if (j->c.masked && vote->term == g->best.term) {
        add_rival(s, j, g, vote);
    }
}

static void begin_collecting(struct job *j) {
    for (uint8_t m = 0; m < j->c.n_members; m++)
        j->members[m].told = 0;
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        struct fragment *g = &j->fragments[f];
        g->promised = mset_none();
        g->doubted = 0;
        g->floor = g->round;
        g->has_best = g->voted;
        g->n_rivals = 0;
        if (g->voted)
            g->best = g->vote;
    }
}

static void say_elect(struct step *s, struct job *j, enum promise_kind kind) {
    uint64_t all = j->c.fragments == 64 ? UINT64_MAX : (1ull << j->c.fragments) - 1;
    for (uint8_t m = 0; m < j->c.n_members; m++)
        if (m != j->c.self && j->members[m].told != all)
            say_elect_to(s, j, kind, m);
}

static void say_promises(struct step *s, struct job *j, enum promise_kind kind, uint8_t to) {
    neb_ns *answered = &j->members[to].answered[kind];
    if (*answered && s->now - *answered < answer_pause)
        return;
    *answered = s->now;
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        const struct fragment *g = &j->fragments[f];
        struct inter_promise p;
        if (!node_promise(s, j, g, &p))
            return;
        struct neb_buf *b = node_begin(s, MSG_PROMISE);
        neb_buf_add(b, j->c.id, sizeof j->c.id);
        neb_buf_u8(b, (uint8_t)kind);
        neb_buf_u32(b, j->standing.term);
        neb_buf_u64(b, j->standing.epoch);
        neb_buf_u32(b, f);
        neb_buf_u32(b, g->round);
        neb_buf_u8(b, g->voted);
        if (g->voted)
            inter_record_put(b, &g->vote);
        neb_buf_add(b, p.sig, sizeof p.sig);
        node_send(s, j, to);
    }
}

// True if this node may promise `term`, higher than any before, to its owner m. A term beyond
// term_last comes from a faster clock, and can be promised a moment later; or m is Byzantine.
static bool may_promise(const struct step *s, const struct job *j, uint8_t m, uint32_t term) {
    neb_ns before = j->members[m].promised;
    return !(hears_leader(s, j) && (j->leads || j->leader != m)) && term <= term_last(s, j) &&
           !(before && s->now - before < promise_pause);
}

void node_on_elect(struct step *s, struct neb_rd *r) {
    uint8_t id[INTER_ID_BYTES];
    neb_rd_copy(r, id, sizeof id);
    uint8_t kind = neb_rd_u8(r);
    uint32_t term = neb_rd_u32(r);
    uint64_t epoch = neb_rd_u64(r);
    struct job *j = node_find_job(s->n, id);
    int m = j ? node_member(j, s->from) : -1;
    if (!neb_rd_done(r) || kind > PROMISE_RECOVERY || term > INTER_TERM_MAX ||
        (m >= 0 && term_absurd(s, j, term))) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    if (m < 0 || !j->standing.joined)
        return;
    if (kind == PROMISE_RECOVERY) {
        // From now on votes of its previous incarnation do not count, if this node knew of one.
        if (mset_has(j->standing.renewed, m) || j->standing.epochs[m] == epoch)
            say_promises(s, j, PROMISE_RECOVERY, (uint8_t)m);
        return;
    }
    if (node_diverged(j) || mset_has(j->equivocators, m))
        return;
    if (j->c.n_members < 3 || term % j->c.n_members != (uint32_t)m) {
        node_fault(s, INTER_FAULT_DENIED);
        return;
    }
    if (!node_vote_counts(j, (uint8_t)m, epoch))
        return; // its heartbeat has not arrived yet
    if (term < j->standing.term ||
        (term > j->standing.term && !may_promise(s, j, (uint8_t)m, term)))
        return;
    if (term > j->standing.term) {
        struct member *x = &j->members[m];
        bool vain = x->promised && s->now - x->promised < 2 * leader_silent;
        j->asked_at = vain ? j->asked_at : s->now; // other members have their turn
        x->promised = s->now;
        j->standing.term = term;
        node_step_down(j);
        node_store_standing(s, j);
    }
    say_promises(s, j, PROMISE_TERM, (uint8_t)m);
}

static bool told_all(const struct job *j, uint8_t m) {
    uint64_t all = j->c.fragments == 64 ? UINT64_MAX : (1ull << j->c.fragments) - 1;
    return m == j->c.self || j->members[m].told == all;
}

static void lead(struct step *s, struct job *j) {
    j->leads = true;
    j->asks = false;
    j->leader = j->c.self;
    for (uint8_t m = 0; m < j->c.n_members; m++)
        node_heartbeat(s, j, m);
    for (uint32_t f = 0; f < j->c.fragments; f++)
        node_try_propose(s, j, &j->fragments[f]);
}

// A PROMISE: what a member has accepted in one fragment. It accepts nothing below `term` any more.
struct promised {
    uint8_t job[INTER_ID_BYTES];
    uint8_t kind; // enum promise_kind
    uint32_t f;
    struct inter_promise p;   // some fields follow from the vote and the sender
    struct inter_record vote; // if p.voted
};

static bool promise_get(struct neb_rd *r, struct promised *x) {
    struct inter_promise *p = &x->p;
    neb_rd_copy(r, x->job, sizeof x->job);
    x->kind = neb_rd_u8(r);
    *p = (struct inter_promise){.term = neb_rd_u32(r)};
    p->epoch = neb_rd_u64(r);
    x->f = neb_rd_u32(r);
    p->round = neb_rd_u32(r);
    uint8_t voted = neb_rd_u8(r);
    p->voted = voted;
    if (voted > 1 || x->kind > PROMISE_RECOVERY || p->term > INTER_TERM_MAX ||
        (voted && !inter_record_get(r, &x->vote)))
        r->bad = true;
    neb_rd_copy(r, p->sig, sizeof p->sig);
    return neb_rd_done(r);
}

// Completes and checks a promise of member m. False: its vote is for something else or is not
// justified, or a signature does not fit.
static bool promise_check(struct step *s, const struct job *j, const struct fragment *g, uint8_t m,
                          struct promised *x, struct inter_record *asked) {
    const struct inter_record *vote = &x->vote;
    struct inter_promise *p = &x->p;
    *asked = (struct inter_record){.fragment = x->f, .term = p->term};
    memcpy(asked->job, x->job, sizeof asked->job);
    p->member = m;
    if (p->voted) {
        p->vote_term = vote->term;
        inter_record_hash(vote, p->vote_hash);
    }
    if (p->voted && (vote->fragment != x->f || vote->round != p->round ||
                     memcmp(vote->job, x->job, sizeof x->job) || vote->term > p->term ||
                     !node_verify_record(s->n, j, vote) || !node_justified(s->n, j, vote) ||
                     (p->round == g->round && !node_follows(j, g, vote))))
        return false;
    if (!node_promise_fits(s->n, j, asked, p))
        return false;
    asked->n_promises = 1;
    asked->promises[0] = *p;
    return true;
}

// Once a majority has promised for all fragments, this member leads. join_tick ends a recovery.
static void promise_count(struct step *s, struct job *j, struct fragment *g, uint8_t m,
                          const struct promised *x) {
    const struct inter_promise *p = &x->p;
    j->members[m].told |= 1ull << x->f;
    g->promises[m] = *p;
    mset_add(&g->promised, m);
    merge(s, j, g, p->round, p->voted ? &x->vote : NULL);
    if (x->kind == PROMISE_RECOVERY) {
        j->recovered_term = p->term > j->recovered_term ? p->term : j->recovered_term;
        return;
    }
    struct member_set votes = mset_none();
    for (uint8_t k = 0; k < j->c.n_members; k++)
        mset_assign(&votes, k, told_all(j, k));
    if (j->asks && node_majority(j, votes))
        lead(s, j);
}

void node_on_promise(struct step *s, struct neb_rd *r) {
    struct promised x;
    struct inter_record asked;
    if (!promise_get(r, &x)) {
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    struct job *j = node_find_job(s->n, x.job);
    struct fragment *g = node_find_fragment(j, x.f);
    int m = j ? node_member(j, s->from) : -1;
    if (!g || m < 0 || mset_has(j->equivocators, m))
        return;
    if (term_absurd(s, j,
                    x.p.term)) { // for a recovery too, because this node would adopt it
        node_fault(s, INTER_FAULT_MALFORMED);
        return;
    }
    if (!promise_check(s, j, g, (uint8_t)m, &x, &asked)) {
        node_fault(s, INTER_FAULT_DENIED);
        return;
    }
    if (x.p.voted)
        node_compare_vote(s, j, g, &x.vote);
    node_compare_vote(s, j, g, &asked);
    if (mset_has(j->equivocators, m))
        return;
    // Masked: the more members report, the more values can be ruled out. What they have accepted
    // from this leader since does not help.
    bool more = j->leads && j->c.masked && !mset_has(g->promised, m) &&
                !(x.p.voted && x.p.vote_term == x.p.term);
    bool wanted = x.kind == PROMISE_RECOVERY
                      ? j->recovers && !j->standing.joined && x.p.term <= term_last(s, j)
                      : (j->asks || more) && x.p.term == j->standing.term &&
                            node_vote_counts(j, (uint8_t)m, x.p.epoch);
    // not proven before the record of the previous round is here
    if (wanted && x.p.round > node_proven_round(g))
        node_send_pull_of(s, j, g, x.p.round - 1, (uint8_t)m);
    else if (wanted)
        promise_count(s, j, g, (uint8_t)m, &x);
}

// ---- joining, and asking for a term -------------------------------------------------------------

static void join(struct step *s, struct job *j) {
    j->standing.joined = true;
    j->recovers = false;
    if (j->recovered_term > j->standing.term)
        j->standing.term = j->recovered_term;
    // Masked: with a new disk it does not lead again in term 0. So a member with two proposals in
    // one term is Byzantine (equivocators_by).
    if (j->c.masked && !mset_empty(j->knew_older) && !j->c.self && !j->standing.term)
        j->standing.term = 1;
    node_store_standing(s, j);
    j->leads = j->standing.term == 0 && j->c.self == 0 && mset_empty(j->c.removed);
    j->asked_at = s->now;
}

// True if r lists an update that this incarnation has sent. The lost disk cannot have accepted such
// a record, so it is judged like any proposal.
static bool of_this_incarnation(const struct job *j, const struct inter_record *r) {
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].member == j->c.self)
            return j->own_first && r->entries[i].attempt >= j->own_first;
    return false;
}

static bool adopts(const struct job *j, const struct fragment *g) {
    return g->has_best && g->best.round == g->round && !of_this_incarnation(j, &g->best);
}

// One Byzantine member may have claimed that this value was accepted. So the value is in doubt
// while it rejects an update that this node does not reject. A data member that cannot judge the
// value adopts it, because the updates of that value may have been replaced by newer ones since.
static bool adopts_in_doubt(const struct job *j, const struct fragment *g) {
    if (!adopts(j, g))
        return false;
    enum node_judgement v = node_rejudge(j, g, &g->best, g->best.leader);
    return v == NODE_UNFAIR || (v == NODE_UNKNOWN && node_is_witness(j));
}

// Masked sums: nobody knows which of several values of one term the lost disk had accepted. If more
// than one may have been committed with its vote, this node waits until the others end the round.
static bool torn(const struct job *j, struct fragment *g) {
    return g->n_rivals && g->best.round == g->round && !node_settle_rivals(j, g);
}

// Accepts again what the lost disk had accepted, because a leader may have counted on that vote.
static void recover(struct step *s, struct job *j) {
    for (uint8_t m = 0; m < j->c.n_members; m++)
        // a revoked member is not heard
        if (!told_all(j, m) && !node_left(j, m))
            return;
    for (uint32_t f = 0; f < j->c.fragments; f++)
        if (j->fragments[f].round < j->fragments[f].floor)
            return; // its commits are in flight
    for (uint32_t f = 0; f < j->c.fragments; f++)
        if (adopts_in_doubt(j, &j->fragments[f]) || torn(j, &j->fragments[f]))
            return;
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        struct fragment *g = &j->fragments[f];
        // Even if its commit has arrived: a commit is on disk only after its updates, and this node
        // may stop before that.
        if (adopts(j, g))
            node_vote(s, j, g, &g->best);
    }
    join(s, j);
}

static void join_tick(struct step *s, struct job *j) {
    // only an equivocator claimed it
    if (j->recovers && mset_within(j->knew_older, mset_union(j->c.gone, j->equivocators)))
        j->recovers = j->lost = false;
    if (j->recovers) {
        struct member_set without = mset_union(j->c.removed, j->c.gone);
        // collect again after a removal: only the removed member may have reported something
        bool restart = !j->asked_at || !mset_equal(j->told_without, without);
        if (restart || s->now - j->asked_at >= repeat_after) {
            if (restart)
                begin_collecting(j);
            j->told_without = without;
            j->asked_at = s->now;
            say_elect(s, j, PROMISE_RECOVERY);
        }
        recover(s, j);
        return;
    }
    for (uint8_t m = 0; m < j->c.n_members; m++)
        if (m != j->c.self && !j->members[m].knows_me && !node_left(j, m))
            return;
    join(s, j);
}

// The lowest term that a majority of `with`, this node included, has not passed. What the other
// members report does not matter, and a member that reports a false term is as good as absent.
static uint32_t known_term(const struct job *j, struct member_set with) {
    uint32_t lowest = UINT32_MAX;
    for (uint8_t k = 0; k < j->c.n_members; k++) {
        uint32_t term = j->members[k].term;
        struct member_set votes = mset_of(j->c.self);
        if (mset_has(with, k) && k != j->c.self)
            for (uint8_t m = 0; mset_next(with, &m); m++)
                if (j->members[m].term <= term)
                    mset_add(&votes, m);
        if (node_majority(j, votes) && term < lowest)
            lowest = term;
    }
    return lowest > j->standing.term && lowest < UINT32_MAX ? lowest : j->standing.term;
}

// Finds the next own term. False: there is none at this time of day. If that lasts it is reported:
// this clock is far behind the others', or the terms have run out.
static bool next_term(struct step *s, struct job *j, struct member_set with, uint32_t *out) {
    uint32_t n = j->c.n_members, above = known_term(j, with);
    *out = above + 1 + (j->c.self + n - (above + 1) % n) % n;
    if (*out <= term_last(s, j)) {
        j->no_term_at = 0;
        j->no_term = false;
        return true;
    }
    j->no_term_at = j->no_term_at ? j->no_term_at : s->now;
    if (!j->no_term && s->now - j->no_term_at >= no_term_patience) {
        j->no_term = true;
        node_fault(s, INTER_FAULT_TERMS);
    }
    return false;
}

// with: the members whose promise it hopes for
static bool ask(struct step *s, struct job *j, struct member_set with) {
    uint32_t term;
    if (!next_term(s, j, with, &term))
        return false;
    j->standing.term = term;
    j->asks = true;
    j->leads = false;
    j->leader = -1;
    j->asked_at = s->now;
    begin_collecting(j);
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        struct fragment *g = &j->fragments[f];
        if (node_promise(s, j, g, &g->promises[j->c.self]))
            mset_add(&g->promised, j->c.self);
    }
    node_store_standing(s, j);
    say_elect(s, j, PROMISE_TERM);
    return true;
}

// True if promises reported a round that no member has open any more: since then a member has lost
// its disk or was revoked, or the report was false. The round before may be open again, with its
// votes, so the leader has to ask for promises again.
static bool misled(const struct job *j) {
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        uint32_t top = j->fragments[f].round;
        for (uint8_t m = 0; m < j->c.n_members; m++)
            if (m != j->c.self && !mset_has(j->c.gone, m) && !mset_has(j->equivocators, m) &&
                j->members[m].rounds[f] > top)
                top = j->members[m].rounds[f];
        if (top < j->fragments[f].floor)
            return true;
    }
    return false;
}

// Live members whose votes count.
static struct member_set electors(const struct step *s, const struct job *j) {
    struct member_set live = mset_none();
    for (uint8_t m = 0; m < j->c.n_members; m++)
        mset_assign(&live, m, node_live(s, j, m));
    live = mset_minus(mset_minus(live, j->standing.renewed), j->equivocators);
    return mset_with(live, j->c.self);
}

// True if a leader must step down: members with a later term leave too few votes for it, or for
// some time too few follow it although enough are live. A single report must not stop any round. A
// leader that proposes in vain asks for a new term instead (in_vain).
static bool replaced(const struct step *s, struct job *j) {
    struct member_set here = electors(s, j), beyond = mset_none(), follow = mset_of(j->c.self);
    for (uint8_t m = 0; mset_next(here, &m); m++) {
        const struct member *x = &j->members[m];
        if (m == j->c.self)
            continue;
        mset_assign(&beyond, m, x->term > j->standing.term);
        mset_assign(&follow, m, x->term == j->standing.term && x->follows);
    }
    if (!node_majority(j, mset_minus(node_everyone(j), beyond)))
        return true;
    if (node_majority(j, follow) || !node_majority(j, here))
        j->unfollowed_at = 0;
    else if (!j->unfollowed_at)
        j->unfollowed_at = s->now;
    return j->unfollowed_at && s->now - j->unfollowed_at >= unfollowed;
}

// Masked: several values of one term were reported, and the leader cannot tell which one it may
// propose. A member whose promise could decide it is bound to a later term, so that member promises
// nothing in this one.
static bool untold(const struct step *s, const struct job *j, const struct fragment *g,
                   struct member_set bound) {
    return g->n_rivals && g->best.round == g->round && !g->decided &&
           !(g->voted && g->vote.term == j->standing.term) && !mset_within(bound, g->promised) &&
           s->now - j->asked_at >= unfollowed;
}

// Members to ask for promises if a leader proposes in vain; none: it does not. In vain: for some
// time too few members have accepted. They would be enough with the members that are bound to a
// later term and hear no leader. Some unknown member claims to follow but withholds its vote.
static struct member_set in_vain(const struct step *s, const struct job *j) {
    struct member_set here = electors(s, j), bound = mset_none();
    for (uint8_t m = 0; mset_next(here, &m); m++)
        if (j->members[m].term > j->standing.term && !j->members[m].follows)
            mset_add(&bound, m);
    for (uint32_t f = 0; f < j->c.fragments && !mset_empty(bound); f++) {
        const struct fragment *g = &j->fragments[f];
        neb_ns since = g->proposed > j->born ? g->proposed : j->born;
        struct member_set accept = mset_common(here, mset_union(g->accepted, bound)),
                          promise = mset_common(here, mset_union(g->promised, bound));
        if (!g->decided && g->voted && g->vote.term == j->standing.term &&
            s->now - since >= unfollowed && node_majority(j, accept))
            return accept;
        if (untold(s, j, g, bound) && node_majority(j, promise))
            return promise;
    }
    return mset_none();
}

static void lead_tick(struct step *s, struct job *j) {
    struct member_set with;
    if (replaced(s, j)) {
        j->unfollowed_at = 0;
        node_step_down(j);
    } else if (with = in_vain(s, j), !mset_empty(with)) {
        (void)ask(s, j, with);
    } else if (s->now - j->asked_at > leader_silent && misled(j)) {
        (void)ask(s, j, electors(s, j));
    }
}

// A node follows the member to which it has promised a term, but has only that member's claim that
// the others promised too. The terms of the others show it.
static void follow_tick(const struct step *s, struct job *j) {
    struct member_set here = electors(s, j), elsewhere = mset_none();
    for (uint8_t m = 0; mset_next(here, &m); m++)
        if (m != j->c.self && j->members[m].term != j->standing.term)
            mset_add(&elsewhere, m);
    if (j->leader < 0 || node_majority(j, mset_minus(node_everyone(j), elsewhere)))
        j->unled_at = 0;
    else if (!j->unled_at)
        j->unled_at = s->now;
}

// True if there is something to make a record of, or a record that may have been made.
static bool anything_open(const struct job *j) {
    for (uint32_t f = 0; f < j->c.fragments; f++) {
        const struct fragment *g = &j->fragments[f];
        bool open = g->voted || g->decided;
        for (uint8_t m = 0; m < j->c.n_members; m++)
            open |= g->slots[m].known || !mset_empty(g->slots[m].hints);
        if (open)
            return true;
    }
    return false;
}

static void elect_tick(struct step *s, struct job *j) {
    uint32_t n = j->c.n_members, term = j->standing.term;
    if (mset_has(j->c.removed, j->c.self) || mset_has(j->equivocators, j->c.self) ||
        node_diverged(j) || node_fixed_leader(j))
        return;
    if (n < 3) { // the survivor of two: its own promise is the majority
        if (!j->leads && ask(s, j, mset_of(j->c.self)))
            lead(s, j);
        return;
    }
    if (j->leads) {
        if (j->judges)
            lead_tick(s, j);
        return;
    }
    follow_tick(s, j);
    if (!j->judges)
        return;
    // A witness needs no worker, so it would lead before the workers attach. Proposals would then
    // use its link although it has no update in them.
    if (node_is_witness(j) && !anything_open(j))
        j->asked_at = s->now;
    neb_ns heard = unled(s, j) ? 0 : j->leader_heard,
           since = heard > j->asked_at ? heard : j->asked_at;
    since = since > j->born ? since : j->born;
    uint32_t rank = (j->c.self + n - (term + 1) % n) % n + (node_is_witness(j) ? n : 0);
    if (s->now - since < leader_silent + (neb_ns)rank * stagger)
        return;
    // A voter that hears a leader promises nothing. Without enough others, this would use up a term
    // and bind this node to it for nothing.
    struct member_set with = electors(s, j);
    for (uint8_t m = 0; m < n; m++)
        if (m != j->c.self && j->members[m].follows)
            mset_remove(&with, m);
    if (node_majority(j, with))
        (void)ask(s, j, with);
}

// Masked: if several values of one term were reported, the members that have not promised are asked
// again, because their promises may rule out all values but one.
static void ask_the_rest(struct step *s, struct job *j) {
    struct member_set rest = mset_none(), honest = mset_minus(node_everyone(j), j->equivocators);
    for (uint32_t f = 0; f < j->c.fragments; f++)
        if (j->fragments[f].n_rivals && j->fragments[f].best.round == j->fragments[f].round)
            rest = mset_union(rest, mset_minus(honest, j->fragments[f].promised));
    for (uint8_t m = 0; mset_next(rest, &m); m++)
        if (m != j->c.self)
            say_elect_to(s, j, PROMISE_TERM, m);
}

// Two members hold no election. Other messages show that a member is there, so heartbeats may be
// rarer, as long as two of them come within the time in which a member is live.
static bool is_told(const struct step *s, const struct job *j, uint8_t m) {
    const struct member *x = &j->members[m];
    return node_fixed_leader(j) && j->standing.joined && x->knows_me && x->said > x->beat &&
           s->now - x->said < heartbeat_every && s->now - x->beat < heartbeat_rare;
}

void node_elect_tick(struct step *s, struct job *j) {
    if (s->now >= j->next_heartbeat) {
        j->next_heartbeat = s->now + heartbeat_every;
        for (uint8_t m = 0; m < j->c.n_members; m++)
            if (!is_told(s, j, m))
                node_heartbeat(s, j, m);
        if (j->asks)
            say_elect(s, j, PROMISE_TERM); // promises may have been lost
        else if (j->leads)
            ask_the_rest(s, j);
    }
    j->born = j->born ? j->born : s->now;
    if (!j->standing.joined)
        join_tick(s, j);
    else
        elect_tick(s, j);
}
