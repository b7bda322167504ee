// SPDX-License-Identifier: Apache-2.0
// What a log says of keys that are turned away: enough to see who it is, and no more than a stranger may write there. Pure.
//
//     a key that is new here   a line of its own; SEC_REFUSALS_LINES a minute at most
//     all else                 one line a minute: how many connections, of how many keys; once an hour, where it is only keys that
//                              had a line of their own
//
// A key is new when it is none of the last SEC_REFUSALS_KEYS that had a line. The memory is fixed.
#ifndef SEC_REFUSALS_H
#define SEC_REFUSALS_H
#include "agent/base/clock.h"
#include "security/identity.h"

enum { SEC_REFUSALS_KEYS = 256, SEC_REFUSALS_LINES = 5, SEC_REFUSALS_TEXT = 128 };

struct sec_refusals_keys {
    uint8_t key[SEC_REFUSALS_KEYS][SEC_KEY_BYTES];
    uint64_t n; // in all; the last SEC_REFUSALS_KEYS are there
};

struct sec_refusals {                // all zero to begin with
    struct sec_refusals_keys named;  // had a line
    struct sec_refusals_keys others; // of those that `more` counts; told apart until it is full
    neb_ns minute;                   // when this one of lines began
    neb_ns said, since;              // the last line; the first that `more` counts
    uint32_t lines;                  // in this minute
    uint64_t more;                   // connections that no line speaks of yet
    bool unnamed;                    // one of them had a key without a line
};

// A connection was turned away. true: give it a line of its own.
bool sec_refusals_add(struct sec_refusals *r, neb_ns now, const uint8_t key[SEC_KEY_BYTES]);
// When the line about the others is due; INT64_MAX: there are none.
neb_ns sec_refusals_due(const struct sec_refusals *r);
// That line, as "12 more connections of 3 keys in 60 s"; begins to count anew.
void sec_refusals_sum(struct sec_refusals *r, neb_ns now, char text[SEC_REFUSALS_TEXT]);

#endif
