// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/judge.h"

#include <stdio.h>
#include <string.h>

struct agent_divergence agent_divergence_of(const struct inter_record *r, int self,
                                            int contributors) {
    struct agent_divergence d = {0};
    int agree = r->n, most = 0; // a record without this member proves nothing about it
    for (uint8_t i = 0; i < r->n; i++) {
        int same = 0;
        for (uint8_t k = 0; k < r->n; k++)
            same +=
                !memcmp(r->entries[i].digest, r->entries[k].digest, sizeof r->entries[i].digest);
        d.others = d.others || 2 * same < r->n;
        agree = r->entries[i].member == self ? same : agree;
        most = same > most ? same : most;
    }
    d.own = 2 * agree < r->n || (2 * agree == r->n && r->n >= contributors);
    d.all = 2 * most <= r->n;
    return d;
}

struct agent_join_verdict agent_join_judge(const struct agent_join *begun, neb_ns now,
                                           uint64_t recv_bytes, uint32_t lag,
                                           uint64_t round_bytes) {
    enum { ROUNDS_MIN = 3 };
    const neb_ns shortest = 5 * NEB_S;
    struct agent_join_verdict v = {0};
    double seconds = neb_seconds(now - begun->since);
    if (!begun->since || now - begun->since < shortest || recv_bytes < begun->recv_bytes)
        return v; // a counter that fell: the links were replaced
    v.rounds = lag > begun->lag ? lag - begun->lag : 0;
    v.brings_bps = 8 * (double)(recv_bytes - begun->recv_bytes) / seconds;
    v.needs_bps = 8 * (double)v.rounds * (double)round_bytes / seconds;
    v.too_slow = begun->lag && v.rounds >= ROUNDS_MIN && v.brings_bps < v.needs_bps;
    return v;
}

void agent_join_explain(const struct agent_join_verdict *v, uint64_t round_bytes, char *out,
                        size_t cap) {
    snprintf(out, cap,
             "the link of this cluster is slower than the others commit: it carries %.3f Mbit/s, "
             "but their rounds need %.3f Mbit/s (%u rounds of %.3f MB while a snapshot was "
             "fetched), so it would never catch up; join over a faster link, or with a coarser "
             "sync.codec or a longer sync.interval",
             v->brings_bps * 1e-6, v->needs_bps * 1e-6, v->rounds, (double)round_bytes * 1e-6);
}

// True after the last round: no update, and so no digest, follows.
static bool is_over(const struct inter_snapshot_part *p) {
    bool over = p->last.n > 0;
    for (uint8_t i = 0; i < p->last.n; i++)
        over = over && p->last.entries[i].flags & INTER_FINAL;
    return over;
}

void agent_proof_begin(struct agent_proof *p, const struct inter_snapshot *s,
                       struct member_set giver, neb_ns now) {
    *p = (struct agent_proof){.giver = giver, .since = now};
    for (uint32_t f = 0; f < s->fragments; f++) {
        p->parts[f].round = s->parts[f].round;
        memcpy(p->parts[f].digest, s->parts[f].digest, sizeof p->parts[f].digest);
        p->open |= s->parts[f].round && !is_over(&s->parts[f]) ? 1ull << f : 0;
    }
}

enum agent_proof_verdict agent_proof_judge(const struct inter_digests *said,
                                           struct member_set others, struct member_set giver) {
    int unknown = mset_empty(giver); // then the giver is one of `others`
    bool all = mset_within(others, mset_union(said->same, said->other));
    int back = mset_count(mset_common(said->same, others)) - unknown,
        against = mset_count(mset_common(said->other, others));
    if (mset_count(others) <= unknown)
        return AGENT_PROOF_CONFIRMED;
    back = back < 0 ? 0 : back;
    bool denies = mset_meets(said->other, giver);
    bool itself = unknown ? mset_meets(said->same, others) || !all : !denies;
    int same = back + itself, other = against + denies;
    if (back > against || (back && same > other))
        return AGENT_PROOF_CONFIRMED;
    if (other > same)
        return AGENT_PROOF_REFUTED;
    return other && all ? AGENT_PROOF_DISPUTED : AGENT_PROOF_WAITS;
}

enum agent_proof_verdict agent_proof_look(struct agent_proof *p, const struct inter_digests *said,
                                          struct member_set others, struct member_set own,
                                          neb_ns now) {
    enum agent_proof_verdict worst = AGENT_PROOF_CONFIRMED;
    bool doubt = false;
    for (int f = 0; f < INTER_FRAGMENTS_MAX; f++) {
        if (!(p->open >> f & 1))
            continue;
        struct member_set with = others;
        if (!mset_empty(others))
            with = mset_union(others, mset_common(said[f].same, own));
        enum agent_proof_verdict v = agent_proof_judge(&said[f], with, p->giver);
        worst = v > worst ? v : worst;
        doubt |= mset_meets(said[f].other, mset_union(others, p->giver));
        if (v == AGENT_PROOF_CONFIRMED)
            p->open &= ~(1ull << f);
    }
    if (worst != AGENT_PROOF_WAITS || p->begun || now - p->since <= agent_proof_patience)
        return worst;
    return doubt ? AGENT_PROOF_DISPUTED : AGENT_PROOF_LATE;
}
