// SPDX-License-Identifier: Apache-2.0
// Limits the TLS handshakes of strangers. Pure.
//
//     each source (source.h)   SEC_RATE_BURST at once, then SEC_RATE_SECOND per second
//     all together             processor time: SEC_RATE_PERCENT of a core, and after a rest
//                              SEC_RATE_SAVED_MS more
//
// The second limit counts the thread's processor time for handshakes, requests and proofs, so it
// means the same on every machine. It does not cut short what has begun.
#ifndef SEC_ENROL_RATE_H
#define SEC_ENROL_RATE_H
#include "security/source_rate.h"

enum {
    SEC_RATE_SECOND = 4, // from one source
    SEC_RATE_BURST = 64,
    SEC_RATE_PERCENT = 5, // of a core, for all sources
    SEC_RATE_SAVED_MS = 200,
};

struct sec_enrol_rate {
    struct sec_source_rate sources;
    neb_ns paid; // when the cost of all is paid for
};

void sec_enrol_rate_init(struct sec_enrol_rate *r);
// True if this source may begin a handshake now. It is then counted.
bool sec_enrol_rate_take(struct sec_enrol_rate *r, uint64_t source, neb_ns now);
// Charges what strangers have cost, in processor time.
void sec_enrol_rate_spent(struct sec_enrol_rate *r, neb_ns cost, neb_ns now);

#endif
