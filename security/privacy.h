// SPDX-License-Identifier: Apache-2.0
// Differential privacy of masked sums: how large integers may be, how much noise each member adds, and what that is worth.
//
//     q_i  integers of one update, of length ‖q_i‖ ≤ B                  x_i ~ discrete Gaussian of variance V (noise.h)
//     Σ_S (q_i + x_i)  is all that is read; of S, at least `least` members, at most `colluders` tell their x_i or add none
//     V ≥ (z·B)² / (least − colluders): what hides a member is still the noise of deviation z·B that the job names
//
// Unit: one member's update of one round, or zeros in its place. What an update held may come back in later ones, as a residual; each
// of them is as short as any other, so the sum over all rounds covers that too, and all that one member ever sends.
//
// B is chosen so that a sum leaves its range with a chance of 1e-19 an element. Whatever happens, a sum modulo 2^16 follows
// from the sum: leaving it costs that round, and no privacy.
//
// Accounting: zero-concentrated differential privacy, ρ a release, which adds up over rounds that depend on each other. The sum of
// several discrete Gaussians is not one: the bound of Kairouz, Liu, Steinke 2021 (arXiv 2102.06387, proposition 14) counts the difference. ε at δ
// by Canonne, Kamath, Steinke (arXiv 2004.00010, proposition 12). Nobody is left out at random, so nothing is gained by that.
#ifndef SEC_PRIVACY_H
#define SEC_PRIVACY_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sec_privacy_config {
    uint8_t members;   // of the job
    uint8_t least;     // in a sum
    uint8_t colluders; // below least
    double noise;      // z: deviation of the noise over the length of an update
    int32_t fragments; // a fragment is a part of an update: its share of B² is one in so many
};
struct sec_privacy {
    uint32_t bound;    // B
    uint64_t squared;  // of one fragment: Σ q² is not above it
    uint32_t variance; // V
    double rho;        // of one fragment's release
};
// The same on every machine: rho apart, no more than + − * / and square roots. False: fewer than two members add noise that hides one,
// or so much noise leaves no room for the part of an update that a fragment is.
NEB_MUST_CHECK bool sec_privacy_plan(const struct sec_privacy_config *c, struct sec_privacy *out);
// ε at δ in (0, 1) of ρ in all. Infinity where rho is.
double sec_privacy_epsilon(double rho, double delta);
// Above it, the text beside an ε says that it protects little.
#define SEC_PRIVACY_EPSILON_WEAK 10.0

#endif
