// SPDX-License-Identifier: Apache-2.0
// Which updates of a round stand out, by length or by direction. Pure. The result is only reported
// (INTER_FAULT_OUTLIER): a flagged update is committed all the same. The profile `robust` is what
// limits such an update.
//
// By length: the norm is above four times the median. By direction: the cosine between the update
// and the sum of all others, each scaled to length 1, is below −0.2, while those others agree with
// each other by more than 0.2. Updates that have nothing in common do not tell which of them is
// reversed. That is the case late in training, when each cluster learns only what is special to its
// own data. The cosines come from sketches (compress/sketch.h) and are approximate.
//
// Two members have no peers to compare with. There a member is compared with itself (struct
// inter_past): its update stands out if its norm is above four times the expected norm. AdamW moves
// a parameter by about its learning rate in a step. If steps agree with each other, a norm grows
// like their reach Σ lr; if not, like the square root of the reach. Each of the last four updates
// predicts a norm, by the larger of these two growths. The largest prediction is the expected norm.
//
// An outlier is not added to this history, but each one doubles the limit for the next. So a job
// whose learning has changed for good, for example by another corpus, is flagged for some rounds
// only. A new codec level starts a new history, because a dense codec sends what a sparse one held
// back.
//
// Limits: a norm that grows by less than four times from update to update is not noticed, and
// neither is a single reversed direction. Successive updates of one member have little in common
// once a model has learned what is easy (tests/security/test_byzantine.c). Of two members that
// disagree, only a loss can tell which one is wrong.
#ifndef INTER_OUTLIER_H
#define INTER_OUTLIER_H
#include "inter/record/types.h"

enum { INTER_PAST = 4, INTER_PACE = 65, INTER_PAIR = 4 };

struct inter_past {          // of one member and fragment; all zero: nothing yet
    uint8_t n, codec, flags; // flags: outliers in a row
    float norms[INTER_PAST]; // newest last
    double reaches[INTER_PAST];
};

// Σ lr over the steps `from` to `to` of a job of `steps`. pace[i]: learning rate after i/64 of the
// job, on any scale. If pace is all zero or steps is 0, the result is the number of steps.
double inter_reach(const float pace[INTER_PACE], uint64_t steps, uint64_t from, uint64_t to);
// True if an accepted update stands out from its member's earlier ones. If not, it joins them. norm
// 0 or reach 0 means not known: the result is false and the history stays. codec: codec level.
bool inter_past_stands_out(struct inter_past *p, float norm, double reach, uint8_t codec);

// Two members: the cosines between their updates of the last rounds. All zero: nothing yet.
struct inter_pair {
    uint8_t n;
    float cosines[INTER_PAIR]; // newest last
};
// True if the two point against each other: their last four cosines are below −0.5 on average. It
// does not tell which one is reversed. a, b: sketches of two accepted updates of a round; NULL: not
// known, and the result is false.
bool inter_pair_apart(struct inter_pair *p, const float *a, const float *b);

// Bit per member whose accepted update stands out; 0 with fewer than three accepted updates. norms,
// sketches: by member. If the norm of an accepted update is 0 (not known), lengths are not
// compared. If one of the sketches is NULL, directions are not compared.
struct member_set inter_outliers(const struct inter_record *r, const float norms[NEB_MEMBERS_MAX],
                                 const float *const sketches[NEB_MEMBERS_MAX]);

#endif
