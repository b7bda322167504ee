// SPDX-License-Identifier: Apache-2.0
// Which updates of a round stand out from the others: by length, or by direction. Pure. For logs and whoever watches (INTER_FAULT_OUTLIER): what
// is flagged has been committed all the same; the profile `robust` is what bounds it.
//
// By length: a norm above four times the median. By direction: the cosine between it and the sum of all others, each taken as long as any
// other, is below −0.2, while those others agree with each other by more than 0.2. Clusters that each read another language agree by 0.3 to 0.5
// at first, and later, when what is left to learn is each one's own, by 0.1 to −0.19 (three clusters, the quickstart's model, 300 steps): of
// updates that have nothing in common nobody can say which one is turned around. Sketches (compress/sketch.h) are off by 0.03.
//
// Two have no peers to compare with: there a member is compared with itself (struct inter_past). Its update stands out above four times what its
// last four let expect. AdamW moves a parameter by about its learning rate a step: by steps that agree with each other a norm grows as
// their reach Σ lr does, by steps that do not as its square root. The larger of both is allowed, for the longest of the four.
//
// What stood out does not become the measure, but each time the next may be twice as long: a job whose learning has changed for good (another
// corpus behind it, an operator's hand) is flagged for some rounds, not for ever. A codec that the tuning has changed begins a new history:
// what a sparse one held back comes with the denser one. So who grows by less than four times an update is not noticed. Nor is a direction: two
// updates of one member in a row have little in common once a model has learned what is easy (in tests/security/test_byzantine.c a flipped one
// is no further from the one before than an honest one may be), and of two members that disagree nobody but a loss can say who is wrong.
#ifndef INTER_OUTLIER_H
#define INTER_OUTLIER_H
#include "inter/record/types.h"

enum { INTER_PAST = 4, INTER_PACE = 65, INTER_PAIR = 4 };

struct inter_past {          // of a member and fragment; all zero: nothing yet
    uint8_t n, codec, flags; // flags: in a row
    float norms[INTER_PAST]; // newest last
    double reaches[INTER_PAST];
};

// Σ lr over the steps from `from` to `to` of a job of `steps`: pace[i] is its learning rate after i/64 of them, on a scale of its own. All
// zero, or steps 0: the number of steps.
double inter_reach(const float pace[INTER_PACE], uint64_t steps, uint64_t from, uint64_t to);
// Whether an accepted update stands out from its member's former ones, and from now on it is one of them, unless it does. norm 0: not known,
// nothing is said.
bool inter_past_stands_out(struct inter_past *p, float norm, double reach, uint8_t codec);

// Two members and the cosines between their updates of the last rounds. All zero: nothing yet.
struct inter_pair {
    uint8_t n;
    float cosines[INTER_PAIR]; // newest last
};
// Whether the two point against each other: their last four cosines are below −0.5 on average. Which of them is turned around this does not say.
// a, b: sketches of two accepted updates of a round; NULL: not known, nothing is said.
bool inter_pair_apart(struct inter_pair *p, const float *a, const float *b);

// A bit per member whose accepted update stands out. norms, sketches: by member; of nobody's two updates can be said which one is odd, so with
// fewer than three nothing is. A norm of 0 or a sketch that is NULL is not known: then by this nothing is.
uint16_t inter_outliers(const struct inter_record *r, const float norms[INTER_MEMBERS_MAX],
                        const float *const sketches[INTER_MEMBERS_MAX]);

#endif
