// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/snapshot_proof.h"

#include <string.h>

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
