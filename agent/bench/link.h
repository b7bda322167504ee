// SPDX-License-Identifier: Apache-2.0
// `nebula bench link`: goodput of encrypted bulk data over an emulated WAN, beside the rate of that
// WAN.
//
//     parent ── wanlink run --wan … ──┬── site 0: nebula bench link --end 0
//                                     │           receives chunks, acknowledges each
//                                     └── site 1: nebula bench link --end 1
//                                                 sends as much as the window allows
//
// Link, window and estimate are those of an agent, without a disk. Only the last two thirds of the
// time count, so the search for the number of stripes is left out.
#ifndef AGENT_BENCH_LINK_H
#define AGENT_BENCH_LINK_H
#include "agent/base/status.h"

#include <stdbool.h>

struct bench_link_options {
    const char *wan;        // RATE:DELAY[:LOSS]; NULL: loopback
    const char *congestion; // NULL: the agent's choice
    unsigned stripes;       // bulk connections; 0: self-tuning
    double seconds;         // of sending; 0: 30
    int end;                // 0, 1: run one end, of `dir`; -1: start both
    const char *dir;
    bool json;
};
// NEB_ERR_STATE: no WAN can be emulated here (namespaces need root), or an end failed.
NEB_MUST_CHECK enum neb_status bench_link(const struct bench_link_options *o);

#endif
