// SPDX-License-Identifier: Apache-2.0
// How often each source (source.h) may come: so many at once, then so many a second, and a flood takes nobody else's share. Pure.
//
// A virtual clock for each (GCRA, ITU-T I.371): whoever comes moves it on by a gap; it may run ahead of the real one by the burst.
// Sources are counted in buckets by a hash that no stranger knows: the memory is fixed, and whose bucket a flood shares is chance.
#ifndef SEC_SOURCE_RATE_H
#define SEC_SOURCE_RATE_H
#include "agent/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

enum { SEC_SOURCE_BUCKETS = 4096, SEC_SOURCE_KEY_BYTES = 16 };

struct sec_source_rate {
    uint8_t key[SEC_SOURCE_KEY_BYTES];
    neb_ns gap, ahead;
    neb_ns next[SEC_SOURCE_BUCKETS]; // when all that its sources took is paid for
};

// After sec_init. per_second and burst of one source, at least 1 each.
void sec_source_rate_init(struct sec_source_rate *r, uint32_t per_second, uint32_t burst);
// Whether this source may come now; it is counted if so.
bool sec_source_rate_take(struct sec_source_rate *r, uint64_t source, neb_ns now);
// One that was counted was no stranger.
void sec_source_rate_give_back(struct sec_source_rate *r, uint64_t source);

#endif
