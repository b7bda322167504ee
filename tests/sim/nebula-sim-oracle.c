// SPDX-License-Identifier: Apache-2.0
// The invariants, checked after every event under all faults.
//
// A (round, fragment) has at most one commit, the same value everywhere, in order, with the votes
// of a majority on disk and two copies of every update. θ of every worker that merged round r
// equals the θ recomputed from the commits. Everything that a worker learned is in exactly one
// place. Queues are bounded. When the faults stop, every worker finishes.
#include "inter/round/node_state.h"
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

// The oracle has megabytes, but a run uses only kilobytes of it. The next run of this process
// clears only those.
struct sim_oracle *sim_oracle(void) {
    static struct sim_oracle *o;
    if (!o && !(o = calloc(1, sizeof *o)))
        abort();
    for (int f = 0; f < SIM_FRAGMENTS; f++) {
        memset(o->commits[f], 0, o->used * sizeof *o->commits[f]);
        memset(o->theta[f], 0, (o->used + 1) * sizeof *o->theta[f]);
        memset(o->votes[f], 0, o->used * sizeof *o->votes[f]);
        memset(o->copies[f], 0, o->used * sizeof *o->copies[f]);
        memset(o->attempts[f], 0, o->used * sizeof *o->attempts[f]);
        o->top[f] = 0;
    }
    o->used = 0;
    return o;
}
static void use(struct sim *s, uint32_t round) {
    s->oracle->used = round < s->oracle->used ? s->oracle->used : round + 1;
}

void sim_check_vote(struct sim *s, uint8_t i, const struct inter_record *r) {
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_hash(r, hash);
    use(s, r->round);
    for (int k = 0; k < 8; k++) {
        struct member_set *voters = &s->oracle->votes[r->fragment][r->round][k].voters;
        uint8_t *known = s->oracle->votes[r->fragment][r->round][k].hash;
        if (!mset_empty(*voters) && memcmp(known, hash, sizeof hash))
            continue;
        memcpy(known, hash, sizeof hash);
        mset_add(voters, i);
        return;
    }
    sim_fail(s, "more than 8 different proposals for round %u", r->round);
}

// Terms only rise, and a Byzantine claim cannot raise one above the limit of the time of day (a
// node's clock drifts).
void sim_check_standing(struct sim *s, uint8_t i, const struct inter_standing *st) {
    const struct sim_disk *d = &s->h[i].disk;
    if (sim_lies(s, i))
        return;
    if (d->has_standing && st->term < d->standing.term)
        sim_fail(s, "host %u falls from term %u to %u", i, d->standing.term, st->term);
    if (st->term > inter_term_last(sim_day(s) + (uint64_t)s->now / 8))
        sim_fail(s, "host %u is at term %u", i, st->term);
}

void sim_check_blob(struct sim *s, uint8_t i, const struct inter_manifest *m) {
    const struct inter_key *k = &m->key;
    uint32_t *attempts = s->oracle->attempts[k->fragment][k->round][k->member];
    use(s, k->round);
    for (int x = 0; x < SIM_ATTEMPTS; x++) {
        struct member_set *copies = &s->oracle->copies[k->fragment][k->round][k->member][x];
        if (!mset_empty(*copies) && attempts[x] != k->attempt)
            continue;
        attempts[x] = k->attempt;
        mset_add(copies, i);
        return;
    }
    sim_fail(s, "more than %d attempts of one update", SIM_ATTEMPTS);
}

static void check_copies(struct sim *s, const struct inter_record *r, const struct inter_entry *e) {
    int data = 0, copies = 0;
    for (uint8_t m = 0; m < s->o.members; m++)
        data += !s->h[m].witness;
    for (int x = 0; x < SIM_ATTEMPTS; x++)
        if (s->oracle->attempts[r->fragment][r->round][e->member][x] == e->attempt)
            copies = mset_count(s->oracle->copies[r->fragment][r->round][e->member][x]);
    int lies = s->byzantine != NULL; // it may claim an update that it does not have
    if (copies + lies + (lies && sim_lies(s, e->member)) < (data < 2 ? data : 2))
        sim_fail(s, "round %u lists an update of %u that only %d disks hold", r->round, e->member,
                 copies);
}

// Recomputes the weight of each update from the earlier commits alone (inter/record/weights.h).
static void check_weights(struct sim *s, const struct inter_record *r) {
    const struct sim_oracle *o = s->oracle;
    uint32_t base[NEB_MEMBERS_MAX] = {0}, newest = 0;
    uint64_t others[NEB_MEMBERS_MAX] = {0}, fresh = 0;
    for (uint32_t n = 0; n < r->round; n++) {
        const struct inter_record *c = &o->commits[r->fragment][n].r;
        for (uint8_t m = 0; m < s->o.members; m++)
            for (uint8_t k = 0; k < c->n; k++)
                others[m] += c->entries[k].verdict == INTER_ACCEPTED ? c->entries[k].tokens : 0;
        for (uint8_t k = 0; k < c->n; k++) {
            base[c->entries[k].member] = n + 1;
            others[c->entries[k].member] = 0;
        }
    }
    for (uint8_t k = 0; k < r->n; k++)
        if (r->entries[k].verdict == INTER_ACCEPTED && r->entries[k].tokens &&
            base[r->entries[k].member] > newest)
            newest = base[r->entries[k].member];
    for (uint8_t k = 0; k < r->n; k++)
        if (r->entries[k].verdict == INTER_ACCEPTED && base[r->entries[k].member] == newest)
            fresh += r->entries[k].tokens;
    for (uint8_t k = 0; k < r->n; k++) {
        const struct inter_entry *e = &r->entries[k];
        bool returns = r->flags & INTER_MERGE && e->verdict == INTER_ACCEPTED && e->tokens &&
                       base[e->member] < newest;
        // weight · all may differ from the exact product by at most half of `all`
        uint64_t all = others[e->member] + fresh, exact = e->tokens * fresh;
        s->r.returns += returns;
        if (!returns ? e->weight != e->tokens
                     : 2 * e->weight * all > 2 * exact + all && e->weight > 1)
            sim_fail(s, "round %u: the update of %u has weight %llu, its tokens are %llu of %llu",
                     r->round, e->member, (unsigned long long)e->weight,
                     (unsigned long long)e->tokens, (unsigned long long)all);
        if (returns && 2 * e->weight * all + all < 2 * exact)
            sim_fail(s, "round %u: the weight of the update of %u is too small", r->round,
                     e->member);
    }
}

static void first_commit(struct sim *s, uint8_t i, const struct inter_record *r,
                         const uint8_t hash[INTER_SHA_BYTES]) {
    struct sim_oracle *o = s->oracle;
    uint32_t f = r->fragment, n = r->round;
    int votes = 0, contributors = 0;
    for (int k = 0; k < 8; k++)
        if (!mset_empty(o->votes[f][n][k].voters) &&
            !memcmp(o->votes[f][n][k].hash, hash, INTER_SHA_BYTES))
            votes = mset_count(o->votes[f][n][k].voters);
    if (votes + (s->byzantine != NULL) <= (int)s->o.members / 2)
        sim_fail(s, "round %u of fragment %u committed by %u with %d votes on disk", n, f, i,
                 votes);
    if (n != o->top[f])
        sim_fail(s, "round %u of fragment %u committed, but %u was open", n, f, o->top[f]);
    use(s, n);
    o->top[f] = n + 1;
    o->commits[f][n].known = true;
    o->commits[f][n].r = *r;
    memcpy(o->commits[f][n].hash, hash, INTER_SHA_BYTES);
    memcpy(o->theta[f][n + 1], o->theta[f][n], sizeof o->theta[f][n]);
    check_weights(s, r);
    s->r.committed++;
    s->r.merges += r->flags & INTER_MERGE ? 1 : 0;
    for (uint8_t k = 0; k < r->n; k++) {
        const struct inter_entry *e = &r->entries[k];
        const struct sim_blob *b = NULL;
        contributors++;
        o->commits[f][n].tokens[e->member] = e->tokens;
        if (e->verdict == INTER_REJECTED) {
            s->r.rejected++;
            // with more than three data members, a majority may lack its bytes and believe the
            // Byzantine member
            bool believed =
                s->byzantine && (s->byzantine->gone || s->o.members - s->o.witnesses > 3);
            if (!believed && !sim_lies(s, e->member) && !sim_bad_update(s, e->member, f, n))
                sim_fail(s, "round %u rejects a good update of %u", n, e->member);
            continue;
        }
        check_copies(s, r, e);
        for (uint8_t m = 0; m < s->o.members + (s->byzantine != NULL) && !b; m++) {
            b = sim_disk_blob(s->h[m].disk.rounds[f][n], e->member, e->attempt);
            b = b && b->whole && !memcmp(b->m.sha256, e->sha256, sizeof e->sha256) ? b : NULL;
        }
        if (!b)
            sim_fail(s, "round %u lists an update of %u that no disk holds", n, e->member);
        memcpy(o->commits[f][n].words[e->member], b->words, SIM_WORDS * sizeof *b->words);
        o->commits[f][n].steps[e->member] = (int64_t)b->m.step;
        for (int x = 0; x < SIM_WORDS; x++)
            o->theta[f][n + 1][x] -= b->words[x];
    }
    if (contributors < 2)
        sim_fail(s, "round %u committed with %d contributor", n, contributors);
}

static void diverged(struct sim *s, uint8_t i, const struct inter_record *r,
                     const struct inter_record *other) {
    if (s->o.robust && r->term == other->term)
        sim_fail(s, "robust: two records of round %u, both of term %u", r->round, r->term);
    s->split.on = true;
    s->split.at = s->now;
    s->split.fragment = r->fragment;
    s->split.round = r->round;
    sim_note(s, "diverged", i, r->fragment, r->round, r->term, other->term);
}

void sim_check_commit(struct sim *s, uint8_t i, const struct inter_record *r) {
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_hash(r, hash);
    const struct sim_round *before =
        r->round ? s->h[i].disk.rounds[r->fragment][r->round - 1] : NULL;
    if (r->round && !(before && before->committed))
        sim_fail(s, "host %u commits round %u before %u", i, r->round, r->round - 1);
    if (s->o.terms && s->byzantine->who && !s->byzantine->term && r->term)
        sim_fail(s, "host %u commits round %u of term %u: the first leader was deposed", i,
                 r->round, r->term);
    if (s->split.on)
        return; // from here on only the detection of the divergence is checked
    if (!s->oracle->commits[r->fragment][r->round].known)
        first_commit(s, i, r, hash);
    else if (memcmp(s->oracle->commits[r->fragment][r->round].hash, hash, sizeof hash) &&
             s->byzantine)
        diverged(s, i, r, &s->oracle->commits[r->fragment][r->round].r);
    else if (memcmp(s->oracle->commits[r->fragment][r->round].hash, hash, sizeof hash))
        sim_fail(s, "fork: host %u commits another value for round %u of fragment %u", i, r->round,
                 r->fragment);
    sim_note(s, "commit", i, r->fragment, r->round, r->term, r->n);
}

void sim_check_worker(struct sim *s, uint8_t i, uint32_t f) {
    const struct sim_worker_state *w = &s->h[i].w;
    const struct sim_oracle *o = s->oracle;
    uint32_t round = w->frags[f].round;
    int64_t all[SIM_WORDS];
    if (s->split.on)
        return;
    sim_produced(s->o.seed, i, f, w->step, all);
    int64_t tokens = (int64_t)(w->tokens - w->tokens_base[f]) + w->tokens_lost[f];
    for (uint32_t n = 0; n < round; n++)
        tokens += (int64_t)o->commits[f][n].tokens[i];
    if (tokens != w->step * (int64_t)sim_tokens_of_step(i))
        sim_fail(s, "worker %u, fragment %u, round %u: %lld tokens are accounted for in %lld steps",
                 i, f, round, (long long)tokens, (long long)w->step);
    for (int x = 0; x < SIM_WORDS; x++) {
        int64_t committed = 0;
        if (w->theta[f][x] != o->theta[f][round][x])
            sim_fail(s, "worker %u has parameters that differ from the commits up to round %u", i,
                     round);
        for (uint32_t n = 0; n < round; n++)
            committed += o->commits[f][n].words[i][x];
        int64_t here = committed + w->e[f][x] + w->p[f][x] + w->dropped[f][x];
        if (here != all[x])
            sim_fail(s, "worker %u, fragment %u, round %u: learned %lld, accounted for %lld", i, f,
                     round, (long long)all[x], (long long)here);
    }
}

void sim_check_bounds(struct sim *s, uint8_t i, const struct inter_actions *a) {
    const struct inter_node *n = s->h[i].node;
    size_t members = s->o.members, fragments = s->o.fragments;
    if (n->jobs[0].n_serves > 4 * members * members * fragments)
        sim_fail(s, "host %u serves %zu transfers", i, n->jobs[0].n_serves);
    if (a->n > 64 + 40 * members * members * fragments)
        sim_fail(s, "host %u: %zu actions in one step", i, a->n);
}

static const struct inter_record *record_at(const struct sim *s, uint8_t i, uint32_t f,
                                            uint32_t n) {
    const struct sim_round *r = s->h[i].disk.rounds[f][n];
    // otherwise the round is older than a snapshot
    if (r && r->committed && n >= s->h[i].disk.base[f])
        return &r->commit;
    const struct fragment *g = s->h[i].alive ? &s->h[i].node->jobs[0].fragments[f] : NULL;
    return g && g->decided && g->round == n ? &g->decision : NULL;
}

// Another honest member's record of a round for which i has a different one (*own); NULL: none.
static const struct inter_record *conflict(const struct sim *s, uint8_t i,
                                           const struct inter_record **own) {
    uint8_t a[INTER_SHA_BYTES], b[INTER_SHA_BYTES];
    for (uint32_t f = 0; f < s->o.fragments; f++)
        for (uint32_t n = 0; n < SIM_ROUNDS; n++)
            for (uint8_t k = 0; k < s->o.members; k++) {
                const struct inter_record *r = sim_lies(s, k) ? NULL : record_at(s, k, f, n);
                if (!r || !(*own = record_at(s, i, f, n)))
                    continue;
                inter_record_hash(*own, a);
                inter_record_hash(r, b);
                if (memcmp(a, b, sizeof a))
                    return r;
            }
    return NULL;
}

bool sim_check_divergence(struct sim *s) {
    for (uint8_t i = 0; i < s->o.members; i++) {
        const struct inter_record *own, *other = sim_lies(s, i) ? NULL : conflict(s, i, &own);
        if (other) {
            diverged(s, i, own, other);
            return true;
        }
    }
    return false;
}

// Host i has evidence against the equivocator, and it reports the divergence or has taken over the
// other side's state.
static bool knows(const struct sim *s, uint8_t i) {
    const struct inter_record *own;
    return s->h[i].alive && mset_equal(s->h[i].disk.equivocators, mset_of(s->byzantine->who)) &&
           (s->h[i].split || !conflict(s, i, &own));
}

bool sim_check_split(struct sim *s) {
    // all links are healed, and crashed hosts restart within this time
    const neb_ns patience = 25 * NEB_S;
    bool all = true;
    if (!s->split.on || s->now < s->split.look)
        return false;
    s->split.look = s->now + NEB_S / 4;
    for (uint8_t i = 0; i < s->o.members && all; i++)
        all = sim_lies(s, i) || knows(s, i);
    // One side took over the other's state before any comparison: all hold the same records again,
    // and the divergence cannot be proven.
    bool healed = s->calm && s->now - s->split.at > patience;
    for (uint8_t i = 0; i < s->o.members && healed; i++) {
        const struct inter_record *own;
        healed = sim_lies(s, i) || !conflict(s, i, &own);
    }
    if (all || healed) {
        s->r.splits++;
        s->r.detected = all ? neb_seconds(s->now - s->split.at) : s->r.detected;
        return true;
    }
    if (s->calm && s->now - s->split.at > patience)
        for (uint8_t i = 0; i < s->o.members; i++)
            if (!sim_lies(s, i) && !knows(s, i))
                sim_fail(s,
                         "members have diverged in round %u of fragment %u; host %u %s, and has "
                         "evidence against %llx",
                         s->split.round, s->split.fragment, i,
                         s->h[i].split ? "knows" : "trains on",
                         (unsigned long long)mset_bits(s->h[i].disk.equivocators));
    return false;
}

// A run without faults may take the work of the slowest worker and a few trips over the slowest
// link per round. It must not wait for a repeated message or for the grace of a member that is only
// a little late.
static void check_pace(struct sim *s) {
    const neb_ns start = 3 * NEB_S, ways = 6;
    neb_ns step = 0, way = 0;
    for (uint8_t i = 0; i < s->o.members; i++) {
        step = s->h[i].step_time > step ? s->h[i].step_time : step;
        for (uint8_t j = (uint8_t)(i + 1); j < s->o.members; j++)
            way = s->links[i][j].slow > way ? s->links[i][j].slow : way;
    }
    way += 50 * NEB_MS; // the longest delay that sim_transmit adds
    neb_ns most = start + s->o.rounds * s->o.fragments * (s->interval * step + ways * way);
    if (s->now - NEB_S > most)
        sim_fail(s,
                 "%u rounds took %.1f s, but %.1f s are enough: a step takes at most %.3f s, a "
                 "trip %.3f s",
                 s->o.rounds, neb_seconds(s->now - NEB_S), neb_seconds(most), neb_seconds(step),
                 neb_seconds(way));
}

void sim_check_end(struct sim *s) {
    if (s->split.on && s->o.masked)
        sim_fail(s, "masked: two records of round %u of fragment %u", s->split.round,
                 s->split.fragment);
    if (s->split.on)
        return;
    for (uint8_t i = 0; i < s->o.members; i++) {
        const struct sim_host *h = &s->h[i];
        if (sim_lies(s, i) || h->idle)
            continue;
        s->r.caught |= !mset_empty(h->disk.equivocators);
        if (s->byzantine && !h->finished && sim_byzantine_stuck(s)) {
            s->r.stuck[sim_byzantine_stuck(s)] = 1;
            return;
        }
        if (!h->witness && !h->finished)
            sim_fail(s, "no progress: the faults are over, and worker %u is at step %lld, round %u",
                     i, (long long)h->w.step, h->w.frags[0].round);
        for (uint32_t f = 0; f < s->o.fragments && !h->witness; f++)
            sim_check_worker(s, i, f);
    }
    if (s->o.pace)
        check_pace(s);
}
