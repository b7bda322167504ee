// SPDX-License-Identifier: Apache-2.0
// How many handshakes strangers get. Pure.
//
// A TLS handshake costs the hub 0.36 ms of processor time before it knows who asks; to close the connection instead, 0.02
// (2026-11-25, tests/security/test_enrol.c). Two bounds stand before it:
//
//     a source (source_rate.h)   SEC_RATE_BURST at once, then SEC_RATE_SECOND a second
//     all together               processor time: SEC_RATE_PERCENT of a core, and SEC_RATE_SAVED_MS more after a rest
//
// The second one is charged what handshakes, requests and proofs have cost by the thread's own clock, so it means the same on every
// machine. What has begun is not cut short for it.
#ifndef SEC_ENROL_RATE_H
#define SEC_ENROL_RATE_H
#include "security/source_rate.h"

enum {
    SEC_RATE_SECOND = 4, // of one source
    SEC_RATE_BURST = 64,
    SEC_RATE_PERCENT = 5, // of a core, all sources
    SEC_RATE_SAVED_MS = 200,
};

struct sec_enrol_rate {
    struct sec_source_rate sources;
    neb_ns paid; // when what all have cost is paid for
};

void sec_enrol_rate_init(struct sec_enrol_rate *r);
// Whether a handshake for this source may begin now; it is counted if so.
bool sec_enrol_rate_take(struct sec_enrol_rate *r, uint64_t source, neb_ns now);
// What strangers have cost since, in processor time.
void sec_enrol_rate_spent(struct sec_enrol_rate *r, neb_ns cost, neb_ns now);

#endif
