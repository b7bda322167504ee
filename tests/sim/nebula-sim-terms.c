// SPDX-License-Identifier: Apache-2.0
// Byzantine messages about terms: huge terms, the last term, the last term that this time of day
// allows, a term that rises by one each time, old terms. They are in heartbeats, which are
// unsigned, and in correctly signed election requests, promises, votes and proposals. A member that
// has heard no leader for a while is asked at once to promise a term, which the Byzantine member
// then does not use.
//
// Or it captures votes: some members (captives) hear only the Byzantine member for some seconds,
// and promise it a term. From then on it tells the leader that it follows, and tells the captives
// that it leads, or that it follows too. It sends no votes and no promises any more.
#include "inter/round/node_state.h"
#include "security/sign.h"
#include "tests/sim/sim.h"

#include <string.h>

enum {
    LEADS = 1,
    JOINED = 2,
    FOLLOWS = 8,
    KIND_AT = 1 + INTER_ID_BYTES,
    TERM_AT_HEARTBEAT = KIND_AT,
    TERM_AT_ELECT = KIND_AT + 1
};
enum { TERM_PROMISE, RECOVERY_PROMISE };

// False terms begin only then: at the start all members wait for the first leader, and none would
// notice.
static const neb_ns lies_from = 4 * NEB_S;

static uint64_t below(struct sim_byzantine *l, uint64_t n) {
    return neb_rng_below(&l->on_terms, n);
}

// The highest term of an honest member.
static uint32_t honest_term(const struct sim *s) {
    uint32_t top = 0;
    for (uint8_t i = 0; i < s->o.members; i++)
        if (!sim_lies(s, i) && s->h[i].alive && s->h[i].node->jobs[0].standing.term > top)
            top = s->h[i].node->jobs[0].standing.term;
    return top;
}

static uint32_t some_term(struct sim *s) {
    struct sim_byzantine *l = s->byzantine;
    uint32_t last = inter_term_last(sim_day(s)), n = s->o.members, top = honest_term(s);
    switch (l->one_kind ? l->one_kind - 1 : below(l, 6)) {
    case 0: return UINT32_MAX - (uint32_t)below(l, 300);
    case 1: return INTER_TERM_MAX - (uint32_t)below(l, 2 * n);
    case 2: return last - n + (uint32_t)below(l, 2 * n);
    case 3: return last + INTER_TERMS_AHEAD - n + (uint32_t)below(l, 2 * n);
    case 4: return (uint32_t)below(l, top + 1);
    default: return top + 1 + (uint32_t)below(l, 2 * n);
    }
}

static uint32_t own_term(struct sim *s) { // a term that this member may lead
    uint32_t t = some_term(s), n = s->o.members;
    t -= t % n;
    return t <= UINT32_MAX - n ? t + s->byzantine->who : t - n + s->byzantine->who;
}

static void put(uint8_t *p, size_t *len, const struct neb_buf *b) {
    if (b->len <= SIM_BLOB)
        memcpy(p, b->p, *len = b->len);
}

static const struct job *brain(const struct sim *s, uint8_t from) {
    return &s->h[from].node->jobs[0];
}

static void say_elect(struct sim *s, uint8_t from, struct neb_buf *b) {
    const struct job *j = brain(s, from);
    neb_buf_u8(b, MSG_ELECT);
    neb_buf_add(b, j->c.id, sizeof j->c.id);
    neb_buf_u8(b, below(s->byzantine, 8) ? TERM_PROMISE : RECOVERY_PROMISE);
    neb_buf_u32(b, own_term(s));
    neb_buf_u64(b, j->standing.epoch);
}

static void say_promise(struct sim *s, uint8_t from, struct neb_buf *b) {
    const struct job *j = brain(s, from);
    uint32_t f = (uint32_t)below(s->byzantine, s->o.fragments);
    const struct fragment *g = &j->fragments[f];
    // the requested term, with a round that nobody has reached
    uint32_t far = neb_rng_unit(&s->byzantine->on_terms) < s->byzantine->far
                       ? 1 + (uint32_t)below(s->byzantine, 1000000)
                       : 0;
    bool voted = g->voted && !far;
    struct inter_promise p = {.member = s->byzantine->who,
                              .term = far ? j->standing.term : some_term(s),
                              .epoch = j->standing.epoch,
                              .round = g->round + far,
                              .voted = voted,
                              .vote_term = voted ? g->vote.term : 0};
    struct neb_buf body = {0};
    if (voted)
        memcpy(p.vote_hash, g->vote_hash, sizeof p.vote_hash);
    inter_promise_put_body(&body, j->c.id, f, &p);
    sim_sign(p.member, SEC_CONTEXT_PROMISE, body.p, body.len, p.sig);
    neb_buf_free(&body);
    neb_buf_u8(b, MSG_PROMISE);
    neb_buf_add(b, j->c.id, sizeof j->c.id);
    neb_buf_u8(b, below(s->byzantine, 2) ? TERM_PROMISE : RECOVERY_PROMISE);
    neb_buf_u32(b, p.term);
    neb_buf_u64(b, p.epoch);
    neb_buf_u32(b, f);
    neb_buf_u32(b, p.round);
    neb_buf_u8(b, p.voted);
    if (p.voted)
        inter_record_put(b, &g->vote);
    neb_buf_add(b, p.sig, sizeof p.sig);
}

// ACCEPT: | type | job | round | fragment | term | hash | epoch | signature |
static void say_accept(struct sim *s, const uint8_t *p, size_t len, struct neb_buf *b) {
    enum { TERM_AT = 1 + INTER_ID_BYTES + 8, SIG_AT = TERM_AT + 4 + INTER_SHA_BYTES + 8 };
    uint8_t sig[INTER_SIG_BYTES];
    if (len != SIG_AT + INTER_SIG_BYTES)
        return;
    neb_buf_add(b, p, SIG_AT);
    neb_put_u32(b->p + TERM_AT, some_term(s));
    sim_sign(s->byzantine->who, SEC_CONTEXT_ACCEPT, b->p + 1, SIG_AT - 1, sig);
    neb_buf_add(b, sig, sizeof sig);
}

// Changes the term of its own proposal and of its own vote. In a commit the other votes keep the
// signature over the old term.
static void say_record(struct sim *s, const uint8_t *p, size_t len, struct neb_buf *b) {
    struct neb_rd r = neb_rd_make(p, len);
    struct inter_record c;
    struct neb_buf body = {0};
    uint8_t hash[INTER_SHA_BYTES], type = neb_rd_u8(&r);
    if (!inter_record_get(&r, &c))
        return;
    c.term = own_term(s);
    c.leader = s->byzantine->who;
    inter_record_put_body(&body, &c);
    sim_sign(c.leader, SEC_CONTEXT_RECORD, body.p, body.len, c.sig);
    inter_record_hash(&c, hash);
    for (uint8_t i = 0; i < c.n_accepts; i++) {
        if (c.accepts[i].member != c.leader)
            continue;
        neb_buf_clear(&body);
        inter_accept_put_body(&body, &c, hash, c.accepts[i].epoch);
        sim_sign(c.leader, SEC_CONTEXT_ACCEPT, body.p, body.len, c.accepts[i].sig);
    }
    neb_buf_free(&body);
    neb_buf_u8(b, type);
    inter_record_put(b, &c);
    neb_buf_add(b, p + r.off, len - r.off);
}

// Takes so many captives that the other honest members need them for a majority. If the Byzantine
// member claims to lead the captives, they are too few for it to be elected.
static void choose_captives(struct sim *s) {
    struct sim_byzantine *l = s->byzantine;
    uint8_t n = (uint8_t)s->o.members, most = n / 2;
    l->poses = below(l, 2);
    most = (uint8_t)(most - l->poses);
    for (uint8_t i = 1; i < n && mset_count(l->captives) < most; i++)
        if (i != l->who)
            mset_add(&l->captives, i);
    l->silence = 3 * NEB_S + (neb_ns)below(l, 4000) * NEB_MS;
    l->silence_end = l->silence + 5 * NEB_S;
}

bool sim_byzantine_silences(const struct sim *s, uint8_t from, uint8_t to) {
    const struct sim_byzantine *l = s->byzantine;
    return l && s->now >= l->silence && s->now < l->silence_end && from != l->who && to != l->who &&
           mset_has(l->captives, from) != mset_has(l->captives, to);
}

// Returns false if the message is not sent.
static bool take_votes(struct sim *s, uint8_t from, uint8_t to, uint8_t *p, size_t *len) {
    struct sim_byzantine *l = s->byzantine;
    uint32_t n = s->o.members, above = honest_term(s) + 1;
    bool captive = mset_has(l->captives, to);
    if (!l->term)
        l->term = above + (l->who + n - above % n) % n;
    if (p[0] == MSG_HEARTBEAT && captive && s->now < l->silence_end) {
        struct neb_buf b = {0};
        say_elect(s, from, &b);
        b.p[KIND_AT] = TERM_PROMISE;
        neb_put_u32(b.p + TERM_AT_ELECT, l->term);
        put(p, len, &b);
        neb_buf_free(&b);
    } else if (p[0] == MSG_HEARTBEAT) {
        neb_put_u32(p + TERM_AT_HEARTBEAT, captive ? l->term : s->h[0].node->jobs[0].standing.term);
        p[TERM_AT_HEARTBEAT + 4] = (uint8_t)(JOINED | FOLLOWS | (captive && l->poses ? LEADS : 0));
    }
    return p[0] != MSG_ACCEPT && p[0] != MSG_PROMISE && (p[0] != MSG_ELECT || captive);
}

void sim_byzantine_terms_set_up(struct sim *s) {
    struct sim_byzantine *l = s->byzantine;
    l->on_terms =
        // own generator: other random choices of a seed do not change
        neb_rng_make(s->o.seed, 0x7e);
    l->terms = s->o.terms ? 0.8 : below(l, 2) ? neb_rng_unit(&l->on_terms) * 0.5 : 0;
    l->one_kind = below(l, 2) ? 1 + below(l, 6) : 0;
    if (s->o.terms && l->who && below(l, 2)) // member 0 is the first leader
        choose_captives(s);
    l->far = below(l, 3) ? 0 : neb_rng_unit(&l->on_terms);
}

bool sim_byzantine_on_terms(struct sim *s, uint8_t from, uint8_t to, uint8_t *p, size_t *len) {
    struct sim_byzantine *l = s->byzantine;
    struct neb_buf b = {0};
    if (!mset_empty(l->captives) && s->now >= l->silence)
        return take_votes(s, from, to, p, len);
    if (s->now < lies_from || l->terms <= 0 || neb_rng_unit(&l->on_terms) >= l->terms)
        return true;
    switch (p[0]) {
    case MSG_HEARTBEAT:
        switch (below(l, 4)) {
        case 0: say_elect(s, from, &b); break;
        case 1: say_promise(s, from, &b); break;
        default:
            neb_put_u32(p + TERM_AT_HEARTBEAT, below(l, 2) ? some_term(s) : own_term(s));
            p[TERM_AT_HEARTBEAT + 4] ^= below(l, 2) ? LEADS : 0;
        }
        break;
    case MSG_ELECT: neb_put_u32(p + TERM_AT_ELECT, own_term(s)); break;
    case MSG_PROMISE: say_promise(s, from, &b); break;
    case MSG_ACCEPT: say_accept(s, p, *len, &b); break;
    case MSG_PROPOSE:
    case MSG_COMMIT: say_record(s, p, *len, &b); break;
    default: break;
    }
    if (b.len && !b.oom)
        put(p, len, &b);
    neb_buf_free(&b);
    return true;
}
