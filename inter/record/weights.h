// SPDX-License-Identifier: Apache-2.0
// How much each update of a record counts. Pure. Integers only, so that all machines agree.
//
// In an ordinary round an update counts by its tokens. In a merge round the members have been
// absent for unequal times. A member that returns alone has trained for many intervals, while the
// others have committed most of their updates without it and send only the last one. By tokens the
// returning member would outweigh them by the length of its absence, although its update is only
// one of several answers to the same stretch of training. So it counts by its share of all tokens
// since the common base, the last commit that holds an update of its own:
//
//     base_m     round after m's newest update in a record; 0: none yet
//     others_m   tokens of all other members committed since base_m
//     fresh      the entries with the newest base;  F = their tokens
//     weight_m = tokens_m                           if fresh
//              = tokens_m · F / (others_m + F)      otherwise, rounded to nearest, at least 1
//
// With one returning member weight_m / Σ = tokens_m / (tokens_m + others_m + F), and the fresh
// entries share the rest by tokens. Row counts of the embedding are scaled by weight / tokens as
// well (inter/outer/apply.c).
//
// Each record holds base and others, as it holds the cursors, so that a member that starts from a
// snapshot's record knows them. Every voter computes them again and accepts nothing else.
#ifndef INTER_WEIGHTS_H
#define INTER_WEIGHTS_H
#include "inter/record/types.h"

// Fills r->entries[].weight and r->absences from r's entries, flags and n_plans and from the
// absences of the previous record.
void inter_weights_fill(struct inter_record *r, const struct inter_absence before[NEB_MEMBERS_MAX]);
// True if r holds what inter_weights_fill would write.
bool inter_weights_agree(const struct inter_record *r,
                         const struct inter_absence before[NEB_MEMBERS_MAX]);

#endif
