// SPDX-License-Identifier: Apache-2.0
// Limits how often each source (source.h) may come: a burst at once, then so many per second. A
// flood takes no share of other sources. Pure.
//
// Each source has a virtual clock (GCRA, ITU-T I.371). Each visit moves it on by a gap, and it may
// run ahead of the real clock by the burst. A secret hash puts sources into buckets: the memory is
// fixed, and strangers cannot choose whose bucket they share.
#ifndef SEC_SOURCE_RATE_H
#define SEC_SOURCE_RATE_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

enum { SEC_SOURCE_BUCKETS = 4096, SEC_SOURCE_KEY_BYTES = 16 };

struct sec_source_rate {
    uint8_t key[SEC_SOURCE_KEY_BYTES];
    neb_ns gap, ahead;
    neb_ns next[SEC_SOURCE_BUCKETS]; // virtual clocks
};

// Call after sec_init. per_second and burst of one source, each at least 1.
void sec_source_rate_init(struct sec_source_rate *r, uint32_t per_second, uint32_t burst);
// True if this source may come now. It is then counted.
bool sec_source_rate_take(struct sec_source_rate *r, uint64_t source, neb_ns now);
// Takes back one visit of a source that turned out to be no stranger.
void sec_source_rate_give_back(struct sec_source_rate *r, uint64_t source);

#endif
