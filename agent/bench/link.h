// SPDX-License-Identifier: Apache-2.0
// nebula bench link: goodput of encrypted bulk over an emulated WAN, beside the rate of that WAN.
//
//     parent ── wanlink run --wan … ──┬── site 0: nebula bench link --end 0   takes chunks, acknowledges each
//                                     └── site 1: nebula bench link --end 1   sends as much as the window takes
//
// The same link, window and estimate as an agent's, without a disk. What the stripes cost to find is left out: measured are the last
// two thirds of the time.
#ifndef AGENT_BENCH_LINK_H
#define AGENT_BENCH_LINK_H
#include "agent/base/status.h"

#include <stdbool.h>

struct bench_link_options {
    const char *wan;        // RATE:DELAY[:LOSS]; NULL: loopback
    const char *congestion; // NULL: as an agent chooses
    unsigned stripes;       // bulk connections; 0: self-tuning
    double seconds;         // of sending; 0: 30
    int end;                // 0, 1: one end, of `dir`; -1: start both
    const char *dir;
    bool json;
};
// NEB_ERR_STATE: no emulated WAN can be made here (namespaces need root).
NEB_MUST_CHECK enum neb_status bench_link(const struct bench_link_options *o);

#endif
