// SPDX-License-Identifier: Apache-2.0
// A Byzantine member of the simulated federation: two brains behind one key (as in "Twins: BFT
// Systems Made Robust", Bano et al.), and a layer that changes their messages.
//
//     honest members ── side 0 ──► host `who`     an honest node with its own worker and disk
//                   └── side 1 ──► host `twin`    another one: same key and epoch, other updates
//
// Each brain alone follows the protocol. Together they sign two records of one term, vote twice in
// one term, promise without reporting a vote, and sign two updates under one key. The sides change
// during the run; some messages come from both brains. By seed, the member also claims blobs it
// does not have, alters messages it forwards, replays old messages, and forgets promises when it
// leads. It is revoked when the faults are over.
#include "agent/base/sha256.h"
#include "inter/round/node_state.h"
#include "inter/round/sums.h"
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t job_id[INTER_ID_BYTES] = {1};

bool sim_lies(const struct sim *s, uint8_t i) {
    return s->byzantine && (i == s->byzantine->who || i == s->byzantine->twin);
}

static bool says_far(struct sim_byzantine *l) { return neb_rng_unit(&l->on_terms) < l->far; }

static bool happens(struct sim *s, double p) { return p > 0 && neb_rng_unit(&s->rng) < p; }

// Each run has only some of the faults, each with a random rate: honest members must detect
// divergence without the missing ones.
static double degree(struct sim *s, double most) {
    return neb_rng_below(&s->rng, 2) ? neb_rng_unit(&s->rng) * most : 0;
}

bool sim_byzantine_divides(const struct sim *s, uint8_t i, uint8_t j) {
    return s->byzantine && s->now < s->byzantine->divided && !sim_lies(s, i) && !sim_lies(s, j) &&
           mset_has(s->byzantine->side, i) != mset_has(s->byzantine->side, j);
}

static void cut_sides(struct sim *s) {
    for (uint8_t i = 0; i < s->o.members; i++)
        for (uint8_t j = (uint8_t)(i + 1); j < s->o.members; j++)
            if (sim_byzantine_divides(s, i, j))
                sim_cut(s, i, j, false, false);
}

void sim_byzantine_set_up(struct sim *s) {
    if (!(s->byzantine = calloc(1, sizeof *s->byzantine)))
        abort();
    struct sim_byzantine *l = s->byzantine;
    bool witness = s->o.witnesses && (s->o.terms || neb_mix64(s->o.seed + 5) % 2);
    l->who = (uint8_t)(witness ? s->o.members - 1
                               : neb_rng_below(&s->rng, s->o.members - s->o.witnesses));
    if (s->o.masked && neb_rng_below(&s->rng, 2))
        l->who = 0; // it is the first leader
    l->told = s->o.masked && neb_rng_below(&s->rng, 4);
    l->rejects = s->o.witnesses && !witness && neb_mix64(s->o.seed + 6) % 4;
    l->twin = (uint8_t)s->o.members;
    l->one_update = neb_rng_below(&s->rng, 3) > 0;
    l->have = degree(s, 0.5);
    l->alter = degree(s, 0.05);
    l->replay = degree(s, 0.2);
    l->leak = degree(s, 0.2);
    l->forget = degree(s, 0.1);
    l->push = degree(s, 1);
    if (s->o.terms) {
        l->one_update = true;
        l->have = l->alter = l->replay = l->leak = l->forget = l->push = 0;
    }
    struct sim_host *h = &s->h[l->twin];
    *h = s->h[l->who];
    h->id = l->who;
    sim_byzantine_terms_set_up(s);
    if (s->o.terms) // one brain is enough
        return;
    sim_byzantine_shuffle(s);
    if (neb_rng_below(&s->rng, 3) == 0) // starts after all members are connected and vote
        l->siege = (neb_ns)(4 + neb_rng_below(&s->rng, 20)) * NEB_S;
}

void sim_byzantine_shuffle(struct sim *s) {
    if (s->now < s->byzantine->divided)
        return;
    neb_ns siege = s->byzantine->siege && s->now >= s->byzantine->siege ? 20 * NEB_S : 0;
    s->byzantine->side = mset_from_bits(neb_rng_below(&s->rng, 1u << s->o.members));
    s->byzantine->siege = siege ? 0 : s->byzantine->siege;
    if (siege || neb_rng_below(&s->rng, 2)) { // cut the two sides from each other for a while
        s->byzantine->divided = s->now + (neb_ns)(2 + neb_rng_below(&s->rng, 20)) * NEB_S + siege;
        cut_sides(s);
    }
    sim_note(s, "byzantine", s->byzantine->who, (int64_t)mset_bits(s->byzantine->side),
             s->byzantine->divided / NEB_S, 0, 0);
}

// Sends a well-formed but wrong last chunk of another member's update before the owner sends its
// own.
static void push_false(struct sim *s, const struct sim_message *m) {
    struct inter_manifest x;
    struct neb_rd r = neb_rd_make(m->bytes + 1, m->len - 1);
    if (!inter_manifest_get(&r, &x) || !happens(s, s->byzantine->push))
        return;
    uint8_t chunk[SIM_BLOB] = {1}, sha[INTER_SHA_BYTES];
    uint32_t last = inter_chunks(x.bytes, x.chunk_bytes) - 1,
             n = inter_chunk_length(x.bytes, x.chunk_bytes, last);
    struct neb_buf b = {0};
    neb_sha256(chunk, n, sha);
    neb_buf_u8(&b, MSG_CHUNK);
    inter_key_put(&b, &x.key);
    neb_buf_u32(&b, last);
    neb_buf_add(&b, sha, 8);
    for (uint8_t to = 0; to < s->o.members; to++)
        if (!sim_lies(s, to) && to != x.key.member)
            sim_transmit(s,
                         mset_has(s->byzantine->side, to) ? s->byzantine->twin : s->byzantine->who,
                         to, true, b.p, b.len, chunk, n);
    neb_buf_free(&b);
}

// Both brains get every heartbeat, so that each knows which members are up.
void sim_byzantine_hears(struct sim *s, const struct sim_message *m) {
    struct inter_event e = {.kind = INTER_EV_MESSAGE,
                            .peer = m->from,
                            .bulk = m->bulk,
                            .data = m->bytes,
                            .len = m->len};
    bool twin = mset_has(s->byzantine->side, m->from) != happens(s, s->byzantine->leak);
    bool both = m->bytes[0] == MSG_HEARTBEAT || s->byzantine->told;
    if (m->bytes[0] == SIM_SUMS) {
        sim_masks_message(s, s->byzantine->who, m->from, m->bytes + 1, m->len - 1);
        sim_masks_message(s, s->byzantine->twin, m->from, m->bytes + 1, m->len - 1);
        return;
    }
    if (!twin || both)
        sim_host_step(s, s->byzantine->who, &e);
    if (twin || both)
        sim_host_step(s, s->byzantine->twin, &e);
    if (m->bytes[0] == MSG_MANIFEST)
        push_false(s, m);
}

// Claims the full blob. STATE: | type | key | digest | epoch | holding | u32 length | bits | path |
static void say_have(uint8_t *p, size_t *len) {
    enum { HOLDING = 1 + INTER_ID_BYTES + 13 + STATE_DIGEST + 8, BEHIND = 5 };
    if (*len < HOLDING + 1 + 4 + BEHIND)
        return;
    p[HOLDING] = INTER_HOLD_COMPLETE;
    memset(p + HOLDING + 1, 0, 4);
    memmove(p + HOLDING + 5, p + *len - BEHIND, BEHIND);
    *len = HOLDING + 5 + BEHIND;
}

// Claims to be rounds ahead. HEARTBEAT: | type | job | term | flags | two epochs | reaches |
// fragments | equivocators | per fragment: round, head |
static void say_far(struct sim *s, uint8_t *p, size_t len) {
    enum { FRAGMENTS = 1 + INTER_ID_BYTES + 4 + 1 + 8 + 8 + 2, ROUNDS = FRAGMENTS + 4 + 2 };
    uint64_t ahead = neb_rng_below(&s->byzantine->on_terms, 2) ? 1 : 1000000;
    for (size_t at = ROUNDS; at + 4 <= len; at += 4 + HEAD_BYTES) {
        struct neb_rd r = neb_rd_make(p + at, 4);
        neb_put_u32(p + at,
                    neb_rd_u32(&r) + (uint32_t)(1 + neb_rng_below(&s->byzantine->on_terms, ahead)));
    }
}

// Turns a STATE | key | … | into a claim that the round's record is gone, even if nobody asked.
static void say_gone(uint8_t *p, size_t *len) {
    enum { MEMBER = 1 + INTER_ID_BYTES + 4 + 4, KEY_END = MEMBER + 1 + 4 };
    p[0] = MSG_GONE;
    p[MEMBER] = INTER_NO_MEMBER;
    *len = KEY_END;
}

// Masked runs: at some proposals the two sides are cut from each other for a while.
static void part_sides(struct sim *s) {
    if (s->now < s->byzantine->divided || s->calm || neb_rng_below(&s->rng, 4))
        return;
    s->byzantine->divided = s->now + (neb_ns)(1 + neb_rng_below(&s->rng, 5)) * NEB_S;
    cut_sides(s);
    sim_note(s, "byzantine parts", s->byzantine->who, (int64_t)mset_bits(s->byzantine->side),
             s->byzantine->divided / NEB_S, 0, 0);
}

static void remember(struct sim_byzantine *l, const uint8_t *p, size_t len) {
    size_t k = l->n_past++ % SIM_PAST;
    l->past[k].len = len <= sizeof l->past[k].bytes ? len : 0;
    memcpy(l->past[k].bytes, p, l->past[k].len);
}

bool sim_byzantine_says(struct sim *s, uint8_t from, uint8_t to, uint8_t *p, size_t *len) {
    struct sim_byzantine *l = s->byzantine;
    uint8_t type = p[0];
    if ((from == l->twin) != mset_has(l->side, to) && !happens(s, l->leak))
        return false;
    if (type == MSG_CHUNK || type == MSG_UPDATE || type == SIM_SUMS)
        return true;
    if ((type == MSG_PROPOSE || type == MSG_SHORT) && s->masks)
        part_sides(s);
    if (!sim_byzantine_on_terms(s, from, to, p, len))
        return false;
    if (happens(s, l->replay) && l->n_past) {
        size_t k = neb_rng_below(&s->rng, l->n_past < SIM_PAST ? l->n_past : SIM_PAST);
        remember(l, p, *len);
        if (l->past[k].len) {
            *len = l->past[k].len;
            memcpy(p, l->past[k].bytes, *len);
        }
        return true;
    }
    remember(l, p, *len);
    if (type == MSG_STATE && happens(s, l->have))
        say_have(p, len);
    // not with --terms: it must send STATE
    else if (type == MSG_STATE && !s->o.terms && says_far(l))
        say_gone(p, len);
    if (type == MSG_HEARTBEAT && says_far(l))
        say_far(s, p, *len);
    if (type != MSG_HEARTBEAT && type != MSG_FORWARD &&
        happens(s, l->alter)) // a forwarder would be blamed
        p[neb_rng_below(&s->rng, *len)] ^= (uint8_t)(1 + neb_rng_below(&s->rng, 255));
    return true;
}

// The node forgets the promises that it got for its term, and sometimes its own vote.
void sim_byzantine_forgets(struct sim *s, uint8_t i) {
    struct inter_node *n = s->h[i].node;
    if (!n->jobs[0].open || !happens(s, s->byzantine->forget))
        return;
    for (uint32_t f = 0; f < s->o.fragments; f++) {
        struct fragment *g = &n->jobs[0].fragments[f];
        g->has_best = false;
        g->floor = 0;
        if (neb_rng_below(&s->rng, 4) == 0)
            g->voted = false;
    }
}

// Makes the two brains propose different sets of members.
void sim_byzantine_leaves_out(struct sim *s, uint8_t i) {
    struct inter_node *n = s->h[i].node;
    for (uint32_t f = 0; s->masks && n->jobs[0].open && f < s->o.fragments; f++) {
        struct fragment *g = &n->jobs[0].fragments[f];
        uint8_t who =
            (uint8_t)(neb_mix64(s->o.seed ^ (uint64_t)i << 32 ^ g->round << 8 ^ f) % s->o.members);
        if (who != s->byzantine->who && s->o.members > 3)
            g->slots[who].holders = mset_none();
    }
}

// Submits an update for each open round; each brain has its own numbers.
void sim_byzantine_works(struct sim *s, uint8_t i) {
    struct sim_host *h = &s->h[i];
    for (uint32_t f = 0; f < s->o.fragments && h->alive; f++) {
        uint32_t round = inter_node_round(h->node, job_id, f);
        if (round >= SIM_ROUNDS - 1 || round < h->submitted[f])
            continue;
        int64_t words[SIM_WORDS + 1] = {0};
        for (int k = 0; k < SIM_WORDS; k++)
            words[k] =
                (int64_t)(neb_mix64(s->o.seed ^ (uint64_t)(s->byzantine->one_update ? 0 : i) << 32 ^
                                    round << 8 ^ f << 4 ^ (uint64_t)k) %
                          100);
        struct inter_manifest m = {
            .key = {.job = {1}, .round = round, .fragment = f, .member = h->id},
            .tokens = sim_tokens_of_step(h->id),
            .step = (uint64_t)s->interval * (round < s->o.rounds ? round + 1 : s->o.rounds),
            .steps = (uint32_t)s->interval,
            .flags = INTER_FINAL};
        h->submitted[f] = round + 1;
        sim_host_submit(s, i, f, &m, words);
    }
    if (s->masks)
        sim_masks_asked(s);
    sim_post(s, 500 * NEB_MS, SIM_WORK, i, 0, h->worker_boot);
}

void sim_byzantine_revoked(struct sim *s) {
    s->byzantine->gone = true;
    s->byzantine->divided = 0;
    sim_crash(s, s->byzantine->who, 0);
    for (uint8_t i = 0; i < s->o.members; i++)
        if (s->h[i].alive && !sim_lies(s, i))
            inter_node_job_revoked(s->h[i].node, job_id, mset_of(s->byzantine->who));
}

bool sim_byzantine_rejects(const struct sim *s, uint8_t i, uint8_t owner) {
    return sim_lies(s, i) && s->byzantine->rejects && owner != s->h[i].id;
}

void sim_byzantine_pretends(struct sim *s, uint8_t i, const struct inter_manifest *m) {
    struct fragment *g = &s->h[i].node->jobs[0].fragments[m->key.fragment];
    struct slot *t = &g->slots[m->key.member];
    if (sim_byzantine_rejects(s, i, m->key.member) && t->known && t->refused &&
        inter_key_equal(&t->m.key, &m->key))
        mset_add(&t->refusers, m->key.member);
}

bool sim_byzantine_needed(const struct sim *s) {
    uint8_t n = (uint8_t)s->o.members, f = (uint8_t)s->o.colluders;
    return s->o.masked && s->byzantine->gone &&
           (n - 1 < inter_quorum(n, f) || n - 1 < inter_sums_least(n, f));
}

// The open round of fragment f on host i; NULL unless host i is honest and has voted in it.
static const struct fragment *voted(const struct sim *s, uint8_t i, uint32_t f) {
    const struct fragment *g =
        s->h[i].node && !sim_lies(s, i) ? &s->h[i].node->jobs[0].fragments[f] : NULL;
    return g && g->voted ? g : NULL;
}

// Honest votes for the value `hash` in the round and term of `top`.
static int votes_for(const struct sim *s, uint32_t f, const struct fragment *top,
                     const uint8_t hash[INTER_SHA_BYTES]) {
    int votes = 0;
    for (uint8_t i = 0; i < s->o.members; i++) {
        const struct fragment *g = voted(s, i, f);
        votes += g && g->round == top->round && g->vote.term == top->vote.term &&
                 !memcmp(g->vote_hash, hash, sizeof g->vote_hash);
    }
    return votes;
}

// True if honest members can prove that the Byzantine member proposed two values in this term. Its
// own votes prove it, if they have the same epoch.
static bool provable(const struct sim *s, uint32_t f, const struct fragment *top) {
    uint64_t epoch = 0;
    bool one = true, named = false;
    for (uint8_t i = 0; i < s->o.members; i++) {
        const struct fragment *g = voted(s, i, f);
        named |= !sim_lies(s, i) && mset_has(s->h[i].disk.equivocators, s->byzantine->who);
        if (!g || g->round != top->round || g->vote.term != top->vote.term)
            continue;
        for (uint8_t k = 0; k < g->vote.n_accepts; k++)
            if (g->vote.accepts[k].member == s->byzantine->who) {
                one = one && (!epoch || epoch == g->vote.accepts[k].epoch);
                epoch = g->vote.accepts[k].epoch;
            }
    }
    return named || one;
}

// Masked runs: true if two values of one term have so many votes that either may be committed.
// Members whose vote is unknown and the other colluders count for both. Once the Byzantine member
// is exposed, by evidence or by more than `colluders` votes for each value, one colluder fewer
// counts.
static bool torn(const struct sim *s) {
    int others = 0, may_lie = (int)s->o.colluders,
        quorum = inter_quorum((uint8_t)s->o.members, (uint8_t)s->o.colluders);
    for (uint8_t i = 0; i < s->o.members; i++) // Byzantine, or lost its disk
        others += sim_lies(s, i) || !s->h[i].disk.standing.joined;
    for (uint32_t f = 0; f < s->o.fragments; f++) {
        const struct fragment *top = NULL, *most = NULL, *g;
        int all = 0, first = 0, second = 0;
        for (uint8_t i = 0; i < s->o.members; i++)
            if ((g = voted(s, i, f)) && (!top || g->round > top->round ||
                                         (g->round == top->round && g->vote.term > top->vote.term)))
                top = g;
        if (!top || top->vote.term % s->o.members != s->byzantine->who)
            continue;
        for (uint8_t i = 0; i < s->o.members; i++) {
            int votes = (g = voted(s, i, f)) ? votes_for(s, f, top, g->vote_hash) : 0;
            all += votes > 0 && g->round == top->round && g->vote.term == top->vote.term;
            most = votes > first ? g : most;
            first = votes > first ? votes : first;
        }
        for (uint8_t i = 0; i < s->o.members; i++) {
            bool other = (g = voted(s, i, f)) &&
                         memcmp(g->vote_hash, most->vote_hash, sizeof g->vote_hash) != 0;
            int votes = other ? votes_for(s, f, top, g->vote_hash) : 0;
            second = votes > second ? votes : second;
        }
        int lying = may_lie - (all - first > may_lie || provable(s, f, top));
        // if the second value can reach a quorum, the most frequent value can, too
        if (second && second + others + lying >= quorum)
            return true;
    }
    return false;
}

enum sim_stuck sim_byzantine_stuck(const struct sim *s) {
    int data = 0;
    for (uint8_t i = 0; i < s->o.members; i++)
        data += !s->h[i].witness && !sim_lies(s, i);
    if (s->byzantine->gone && data < 2)
        return SIM_STUCK_NEEDED; // a record needs two updates
    if (sim_byzantine_needed(s))
        return SIM_STUCK_NEEDED;
    if (s->o.masked && torn(s))
        return SIM_STUCK_TORN;
    for (uint8_t i = 0; i < s->o.members; i++)
        for (uint32_t f = 0; f < s->o.fragments && s->h[i].node && !sim_lies(s, i); f++) {
            const struct fragment *g = &s->h[i].node->jobs[0].fragments[f];
            for (uint8_t k = 0;
                 (g->decided || g->voted) && k < (g->decided ? g->decision.n : g->vote.n); k++) {
                const struct inter_entry *e =
                    g->decided ? &g->decision.entries[k] : &g->vote.entries[k];
                // Masked runs also lose disks: the only remaining copy may be the Byzantine
                // member's.
                bool here =
                    (!sim_lies(s, e->member) && !s->o.masked) || e->verdict == INTER_REJECTED;
                bool bad = sim_bad_update(s, e->member, f, g->round);
                if (!sim_lies(s, e->member) && bad == (e->verdict == INTER_ACCEPTED))
                    // the leader believed the Byzantine member, and the others refuse the record
                    return SIM_STUCK_UPDATE;
                const struct sim_host *owner = &s->h[e->member];
                const struct slot *now =
                    owner->node ? &owner->node->jobs[0].fragments[f].slots[e->member] : NULL;
                if (s->o.witnesses && e->verdict == INTER_REJECTED && now && now->known &&
                    now->m.key.attempt > e->attempt)
                    return SIM_STUCK_UPDATE; // the witness only knows the newer attempt
                for (uint8_t x = 0; x < s->o.members && !here; x++) {
                    const struct sim_blob *b = sim_lies(s, x)
                                                   ? NULL
                                                   : sim_disk_blob(s->h[x].disk.rounds[f][g->round],
                                                                   e->member, e->attempt);
                    here = b && b->whole && !memcmp(b->m.sha256, e->sha256, sizeof e->sha256);
                }
                if (!here)
                    return SIM_STUCK_UPDATE;
            }
        }
    return SIM_GOES_ON;
}
