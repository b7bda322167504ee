// SPDX-License-Identifier: Apache-2.0
// What is said of a link: "100mbit:80ms:0.1%", as --wan and the emulator take it. DELAY is the round trip.
#ifndef AGENT_WAN_SPEC_H
#define AGENT_WAN_SPEC_H
#include "agent/base/status.h"

struct agent_wan {
    double bits_s; // kbit, mbit, gbit; above 0
    double rtt_s;  // us, ms, s
    double loss;   // share, from percent
};
// RATE:DELAY[:LOSS%]. NEB_ERR_INVALID, logged with an example; `where` names the option or key.
NEB_MUST_CHECK enum neb_status agent_wan_parse(const char *text, const char *where,
                                               struct agent_wan *out);

#endif
