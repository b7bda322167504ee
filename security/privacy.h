// SPDX-License-Identifier: Apache-2.0
// Differential privacy of masked sums: how large integers may be, how much noise each member adds,
// and what privacy that gives.
//
//     q_i  integers of one update, of length ‖q_i‖ ≤ B
//     x_i ~ discrete Gaussian of variance V (noise.h)
//     Σ_S (q_i + x_i)  is all that can be read. S has at least `least` members, and at most
//     `colluders` of them reveal their x_i or add none
//     V ≥ (z·B)² / (least − colluders), so that the noise that hides a member still has the
//     deviation z·B that the job asks for
//
// Unit: one member's update of one round, or zeros in its place. A residual may carry a part of an
// update into later rounds. Each update has the same length limit. So the total over all rounds
// covers residuals, and all that one member ever sends.
//
// B is chosen so that an element of a sum leaves its range with a chance of 1e-19. A sum that
// leaves its range spoils that round. It costs no privacy, because a sum modulo 2^16 is computed
// from the sum.
//
// Accounting: zero-concentrated differential privacy, ρ per release, which adds up over rounds that
// depend on each other. A sum of several discrete Gaussians is not exactly one; the bound of
// Kairouz, Liu, Steinke 2021 (arXiv 2102.06387, proposition 14) counts the difference. ε at δ by
// Canonne, Kamath, Steinke (arXiv 2004.00010, proposition 12). There is no gain from sampling,
// because no member is left out at random.
#ifndef SEC_PRIVACY_H
#define SEC_PRIVACY_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sec_privacy_config {
    uint8_t members;   // of the job
    uint8_t least;     // the smallest number of members in a sum
    uint8_t colluders; // less than `least`
    double noise;      // z: deviation of the noise over the length of an update
    int32_t fragments; // parts of an update; each has this fraction of B²
};
struct sec_privacy {
    uint32_t bound;    // B
    uint64_t squared;  // limit of Σ q² in one fragment
    uint32_t variance; // V
    double rho;        // of one fragment's release
};
// Gives the same result on every machine, except rho, because it uses only + − * / and square
// roots. False: fewer than two members add noise that hides a member, or the noise leaves no room
// for a fragment.
NEB_MUST_CHECK bool sec_privacy_plan(const struct sec_privacy_config *c, struct sec_privacy *out);
// ε at δ in (0, 1) for a total of ρ. Infinite if rho is.
double sec_privacy_epsilon(double rho, double delta);
// Above this ε, texts say that it protects little.
#define SEC_PRIVACY_EPSILON_WEAK 10.0

#endif
