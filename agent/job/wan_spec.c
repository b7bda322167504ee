// SPDX-License-Identifier: Apache-2.0
#include "agent/job/wan_spec.h"
#include "agent/base/number.h"

#include <math.h>
#include <string.h>

struct unit {
    const char *name;
    double factor;
};

// Parses a number and its unit, up to ':' or the end. NULL: malformed.
static const char *quantity(const char *p, const struct unit *units, double *out) {
    double v;
    const char *end = neb_number_prefix(p, &v);
    if (!end)
        return NULL;
    for (; units->name; units++) {
        size_t n = strlen(units->name);
        if (!strncmp(end, units->name, n) && (end[n] == ':' || !end[n])) {
            *out = v * units->factor;
            return isfinite(*out) ? end + n : NULL;
        }
    }
    return NULL;
}

enum neb_status agent_wan_parse(const char *text, const char *where, struct agent_wan *out) {
    static const struct unit rates[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {NULL, 0}},
                             delays[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {NULL, 0}},
                             losses[] = {{"%", 0.01}, {NULL, 0}};
    struct agent_wan w = {0};
    const char *p = quantity(text, rates, &w.bits_s);
    p = p && *p == ':' ? quantity(p + 1, delays, &w.rtt_s) : NULL;
    if (p && *p == ':')
        p = quantity(p + 1, losses, &w.loss);
    if (!p || *p || !(w.bits_s >= 1e3) || w.bits_s > 1e13 || w.rtt_s > 60 || !(w.loss <= 0.5))
        return neb_fail(
            NEB_ERR_INVALID,
            "%s: \"%s\" is not RATE:DELAY[:LOSS], such as 100mbit:80ms:0.1%% (kbit, "
            "mbit or gbit, at least 1kbit; us, ms or s for the round trip, at most 60s; "
            "loss at most 50%%)",
            where, text);
    *out = w;
    return NEB_OK;
}
