// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/snapshot_proof.h"

#include <string.h>

static int count(uint16_t bits) { return __builtin_popcount(bits); }

// True after the last round: no update, and so no digest, follows.
static bool is_over(const struct inter_snapshot_part *p) {
    bool over = p->last.n > 0;
    for (uint8_t i = 0; i < p->last.n; i++)
        over = over && p->last.entries[i].flags & INTER_FINAL;
    return over;
}

void agent_proof_begin(struct agent_proof *p, const struct inter_snapshot *s, uint16_t giver,
                       neb_ns now) {
    *p = (struct agent_proof){.giver = giver, .since = now};
    for (uint32_t f = 0; f < s->fragments; f++) {
        p->parts[f].round = s->parts[f].round;
        memcpy(p->parts[f].digest, s->parts[f].digest, sizeof p->parts[f].digest);
        p->open |= s->parts[f].round && !is_over(&s->parts[f]) ? 1ull << f : 0;
    }
}

enum agent_proof_verdict agent_proof_judge(const struct inter_digests *said, uint16_t others,
                                           uint16_t giver) {
    int unknown = !giver; // then the giver is one of `others`
    bool all = !(others & ~(said->same | said->other));
    int back = count(said->same & others) - unknown, against = count(said->other & others);
    if (count(others) <= unknown)
        return AGENT_PROOF_CONFIRMED;
    back = back < 0 ? 0 : back;
    bool itself = giver ? !(said->other & giver) : said->same & others || !all;
    int same = back + itself, other = against + (said->other & giver ? 1 : 0);
    if (back > against || (back && same > other))
        return AGENT_PROOF_CONFIRMED;
    if (other > same)
        return AGENT_PROOF_REFUTED;
    return other && all ? AGENT_PROOF_DISPUTED : AGENT_PROOF_WAITS;
}

enum agent_proof_verdict agent_proof_look(struct agent_proof *p, const struct inter_digests *said,
                                          uint16_t others, uint16_t own, neb_ns now) {
    enum agent_proof_verdict worst = AGENT_PROOF_CONFIRMED;
    bool doubt = false;
    for (int f = 0; f < INTER_FRAGMENTS_MAX; f++) {
        if (!(p->open >> f & 1))
            continue;
        uint16_t back = others ? said[f].same & own : 0;
        enum agent_proof_verdict v = agent_proof_judge(&said[f], others | back, p->giver);
        worst = v > worst ? v : worst;
        doubt |= (said[f].other & (others | p->giver)) != 0;
        if (v == AGENT_PROOF_CONFIRMED)
            p->open &= ~(1ull << f);
    }
    if (worst != AGENT_PROOF_WAITS || p->begun || now - p->since <= agent_proof_patience)
        return worst;
    return doubt ? AGENT_PROOF_DISPUTED : AGENT_PROOF_LATE;
}
