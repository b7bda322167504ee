// SPDX-License-Identifier: Apache-2.0
// Decides what the log says about refused keys: enough to see who it is, and no more than a
// stranger may write there. Pure.
//
//     a new key       a line of its own, at most SEC_REFUSALS_LINES per minute
//     all others      one line per minute with the number of connections and keys; one per hour if
//                     all these keys have had a line of their own
//
// A key is new unless it is among the last SEC_REFUSALS_KEYS that had a line. The memory is fixed.
#ifndef SEC_REFUSALS_H
#define SEC_REFUSALS_H
#include "agent/base/clock.h"
#include "security/identity.h"

enum { SEC_REFUSALS_KEYS = 256, SEC_REFUSALS_LINES = 5, SEC_REFUSALS_TEXT = 128 };

struct sec_refusals_keys {
    uint8_t key[SEC_REFUSALS_KEYS][SEC_KEY_BYTES];
    uint64_t n; // in all; the last SEC_REFUSALS_KEYS are kept
};

struct sec_refusals {                // all zero at the start
    struct sec_refusals_keys named;  // had a line
    struct sec_refusals_keys others; // counted by `more`; at most SEC_REFUSALS_KEYS
    neb_ns minute;                   // when the present minute of lines began
    neb_ns said, since;              // the last line; the first connection in `more`
    uint32_t lines;                  // in this minute
    uint64_t more;                   // connections that no line has reported yet
    bool unnamed;                    // one of the connections in `more` had a key without a line
};

// Counts a refused connection. True: log a line for it.
bool sec_refusals_add(struct sec_refusals *r, neb_ns now, const uint8_t key[SEC_KEY_BYTES]);
// When the line about the others is due; INT64_MAX: there are none.
neb_ns sec_refusals_due(const struct sec_refusals *r);
// Writes that line, as "12 more connections of 3 keys in 60 s", and counts from zero again.
void sec_refusals_sum(struct sec_refusals *r, neb_ns now, char text[SEC_REFUSALS_TEXT]);

#endif
