// SPDX-License-Identifier: Apache-2.0
#include "intra/train/beam.h"

#include <math.h>
#include <string.h>

struct candidate {
    double score;
    int32_t beam, token;
};

// The best `want` continuations of the beams, best first. Ties: the lower beam, then the lower
// token.
static int32_t best(const struct intra_sequence *s, const struct intra_next *next, int32_t want,
                    struct candidate *out) {
    int32_t n = 0;
    for (int32_t b = 0; b < s->live; b++)
        for (int32_t i = 0; i < next[b].k; i++) {
            double score = s->beams[b].score + (double)next[b].logp[i];
            if (n == want && !(score > out[n - 1].score))
                break; // the others of this beam are less likely
            int32_t at = n < want ? n++ : n - 1;
            for (; at > 0 && score > out[at - 1].score; at--)
                out[at] = out[at - 1];
            out[at] = (struct candidate){score, b, next[b].ids[i]};
        }
    return n;
}

// Replaces the beams by the n chosen ones. The first continuation of a beam keeps its slot. Others
// get free slots, so no slot is overwritten that is still copied from.
static void reorder(struct intra_sequence *s, const struct candidate *chosen, int32_t n) {
    bool used[INTRA_BEAM_MAX] = {false}, kept[INTRA_BEAM_MAX] = {false};
    int32_t vacant = 0;
    s->n_pairs = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct intra_hypothesis *from = &s->beams[chosen[i].beam];
        struct intra_hypothesis *to = &s->spare[i];
        memcpy(to->tokens, from->tokens, (size_t)from->n * sizeof *to->tokens);
        to->tokens[from->n] = chosen[i].token;
        to->n = from->n + 1;
        to->score = chosen[i].score;
        to->due = true;
        to->slot = kept[chosen[i].beam] ? -1 : from->slot;
        kept[chosen[i].beam] = true;
        if (to->slot >= 0)
            used[to->slot - s->slot0] = true;
    }
    for (int32_t i = 0; i < n; i++) {
        if (s->spare[i].slot >= 0)
            continue;
        while (used[vacant])
            vacant++;
        used[vacant] = true;
        s->spare[i].slot = s->slot0 + vacant;
        s->pairs[2 * s->n_pairs] = s->beams[chosen[i].beam].slot;
        s->pairs[2 * s->n_pairs++ + 1] = s->spare[i].slot;
    }
    for (int32_t i = 0; i < n; i++) {
        struct intra_hypothesis swap = s->beams[i];
        s->beams[i] = s->spare[i];
        s->spare[i] = swap;
    }
    s->live = n;
}

static double normalised(double score, int32_t n, float alpha) {
    return score / pow(n > 0 ? n : 1, (double)alpha);
}

static void keep(struct intra_sequence *s, const struct intra_hypothesis *h, double bar) {
    s->bar = bar;
    s->best.n = h->n;
    memcpy(s->best.tokens, h->tokens, (size_t)h->n * sizeof *h->tokens);
}

static void offer(struct intra_sequence *s, const struct intra_hypothesis *h, double score,
                  float alpha) {
    double value = normalised(score, h->n + 1, alpha);
    if (!s->finished || value > s->bar)
        keep(s, h, value);
    s->finished = true;
}

bool intra_beam_step(struct intra_sequence *s, const struct intra_decode_config *c,
                     const struct intra_next *next) {
    struct candidate found[2 * INTRA_BEAM_MAX], chosen[INTRA_BEAM_MAX];
    int32_t n = best(s, next, 2 * c->beam, found), live = 0;
    for (int32_t i = 0; i < n && live < c->beam; i++) {
        if (found[i].token == c->eos && i < c->beam)
            offer(s, &s->beams[found[i].beam], found[i].score, c->alpha);
        else if (found[i].token != c->eos)
            chosen[live++] = found[i];
    }
    // A longer hypothesis can only lose score. At best it keeps its score up to the greatest
    // length.
    if (!live || (s->finished && normalised(chosen[0].score, s->limit + 1, c->alpha) <= s->bar))
        return true;
    reorder(s, chosen, live);
    if (s->beams[0].n < s->limit)
        return false;
    for (int32_t b = 0; !s->finished && b < live; b++) // none has ended: the best one as it is
        if (b == 0 || s->beams[b].score > s->bar)
            keep(s, &s->beams[b], s->beams[b].score);
    return true;
}
