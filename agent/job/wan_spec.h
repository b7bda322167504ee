// SPDX-License-Identifier: Apache-2.0
// The description of a link, for --wan and the emulator: "100mbit:80ms:0.1%". DELAY is the round
// trip.
#ifndef AGENT_WAN_SPEC_H
#define AGENT_WAN_SPEC_H
#include "agent/base/status.h"

struct agent_wan {
    double bits_s; // bits per second, above 0
    double rtt_s;  // seconds
    double loss;   // a share in 0..0.5
};
// Parses RATE:DELAY[:LOSS%]. NEB_ERR_INVALID: logged with an example; `where` names the option or
// key.
NEB_MUST_CHECK enum neb_status agent_wan_parse(const char *text, const char *where,
                                               struct agent_wan *out);

#endif
