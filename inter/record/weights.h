// SPDX-License-Identifier: Apache-2.0
// By how much each update of a record counts. Pure; integers only, so that all members and all machines agree.
//
// In an ordinary round by the tokens behind it. In a merge round members come with unequal absences: a lone returner has trained
// for many intervals, the others send the last of many that they have committed without it. By tokens alone it would outweigh them
// by the length of its absence; what it learned is one of several answers to the same stretch of training. So it counts
// tokens_m / tokens_all since the common base, the last commit that holds an update of its own:
//
//     base_m     round after m's newest update in a record, 0: none yet
//     others_m   tokens of all others committed since base_m
//     fresh      the entries with the newest base;  F = their tokens
//     weight_m = tokens_m                           fresh
//              = tokens_m · F / (others_m + F)      else, rounded to nearest, at least 1
//
// With one returner: weight_m / Σ = tokens_m / (tokens_m + others_m + F), and the fresh ones share the rest by tokens. Rows of the
// embedding are scaled alike: seen counts · weight/tokens (inter/outer/outer.c).
//
// base and others travel in each record, as the cursors do, so that a member that begins with a snapshot's record knows them. Every
// voter computes them again and accepts nothing else.
#ifndef INTER_WEIGHTS_H
#define INTER_WEIGHTS_H
#include "inter/record/types.h"

// Fills r->entries[].weight and r->absences from entries, flags and n_plans of r, and the absences of the record before.
void inter_weights_fill(struct inter_record *r,
                        const struct inter_absence before[INTER_MEMBERS_MAX]);
// Whether r has what inter_weights_fill would write.
bool inter_weights_agree(const struct inter_record *r,
                         const struct inter_absence before[INTER_MEMBERS_MAX]);

#endif
