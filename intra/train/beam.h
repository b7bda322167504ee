// SPDX-License-Identifier: Apache-2.0
// Sequences that are decoded, and the beam search among their hypotheses (decode.c drives it).
#ifndef INTRA_BEAM_H
#define INTRA_BEAM_H
#include "agent/base/rng.h"
#include "intra/train/decode.h"

struct intra_hypothesis {
    int32_t *tokens; // after the prompt
    int32_t n;
    double score; // log-probability
    int32_t slot; // of the cache
    double u;     // of the next draw
    bool due;     // what may follow is not known yet
};

// What may follow a hypothesis: k tokens with their log-probabilities, most likely first.
struct intra_next {
    const int32_t *ids;
    const float *logp;
    int32_t k;
};

struct intra_sequence {
    struct intra_prompt *p; // NULL: unused
    struct neb_rng rng;
    int32_t limit;                                 // tokens that it may have
    int32_t cached;                                // positions that the slots hold; 0: none
    int32_t slot0, width;                          // its slots
    int32_t live;                                  // beams
    struct intra_hypothesis beams[INTRA_BEAM_MAX]; // (width) with room for limit + 1 tokens
    struct intra_hypothesis spare[INTRA_BEAM_MAX]; // as beams; scratch
    struct intra_hypothesis best;                  // the best that has ended
    bool finished;                                 // there is one
    double bar;                                    // its score / length^alpha
    int32_t pairs[2 * INTRA_BEAM_MAX], n_pairs;    // slots to copy before the next pass
};

// Goes on with the best continuations of the beams; next: (live). True: the search is over, and
// s->best is its result.
bool intra_beam_step(struct intra_sequence *s, const struct intra_decode_config *c,
                     const struct intra_next *next);

#endif
