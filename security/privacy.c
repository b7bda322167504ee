// SPDX-License-Identifier: Apache-2.0
#include "security/privacy.h"

#include "security/noise.h"
#include "security/secure_sum.h"

#include <math.h>

// Distance from the largest sum to the end of its range, in deviations of the noise in the sum.
static const double apart = 9;

// A member is hidden by the sum of h discrete Gaussians of variance v, over at most
// SEC_SUM_COUNT_MAX elements.
static double release_rho(double squared, double v, int h) {
    double tau = 0, pi = acos(-1), root = sqrt((double)SEC_SUM_COUNT_MAX);
    for (int k = 1; k < h; k++)
        tau += 10 * exp(-2 * pi * pi * v * k / (k + 1));
    double epsilon = sqrt(squared / (h * v)) + tau * root;
    return epsilon * epsilon / 2;
}

bool sec_privacy_plan(const struct sec_privacy_config *c, struct sec_privacy *out) {
    int honest = c->least - c->colluders;
    if (c->members < 3 || c->members > NEB_MEMBERS_MAX || c->least > c->members || honest < 2 ||
        c->fragments < 1 || !(c->noise > 0))
        return false;
    double limit = sec_sum_limit(c->members);
    out->bound = (uint32_t)(limit / (1 + apart * c->noise / sqrt((double)(honest * c->least))));
    double deviation = c->noise * out->bound;
    out->squared = (uint64_t)out->bound * out->bound / (uint64_t)c->fragments;
    out->variance = sec_noise_variance(deviation * deviation / honest);
    out->rho = release_rho((double)out->squared, out->variance, honest);
    return out->squared > 0;
}

// For order α = 1 + exp(a): α·ρ + log((α − 1) / α) − (log δ + log α) / (α − 1).
static double epsilon_of(double rho, double log_delta, double a) {
    double over = exp(a), alpha = 1 + over;
    return alpha * rho + a - log(alpha) - (log_delta + log(alpha)) / over;
}

double sec_privacy_epsilon(double rho, double delta) {
    double from = -20, to = 40, log_delta = log(delta), best = INFINITY;
    if (rho <= 0 || !isfinite(rho))
        return rho <= 0 ? 0 : INFINITY;
    // Every order gives a valid ε, so a search that misses the minimum errs on the safe side.
    for (int turn = 0; turn < 6; turn++) {
        double step = (to - from) / 100, at = from;
        for (int i = 0; i <= 100; i++) {
            double x = epsilon_of(rho, log_delta, from + i * step);
            at = x < best ? from + i * step : at;
            best = x < best ? x : best;
        }
        from = at - step;
        to = at + step;
    }
    return best > 0 ? best : 0;
}
