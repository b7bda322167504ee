// SPDX-License-Identifier: Apache-2.0
#include "security/source_rate.h"

#include <sodium.h>
#include <string.h>

void sec_source_rate_init(struct sec_source_rate *r, uint32_t per_second, uint32_t burst) {
    memset(r, 0, sizeof *r);
    randombytes_buf(r->key, sizeof r->key);
    r->gap = NEB_S / per_second;
    r->ahead = (burst - 1) * r->gap;
}

static neb_ns *bucket(struct sec_source_rate *r, uint64_t source) {
    uint64_t h;
    uint8_t out[crypto_shorthash_BYTES];
    _Static_assert(crypto_shorthash_KEYBYTES == SEC_SOURCE_KEY_BYTES, "key");
    _Static_assert(sizeof h == sizeof out, "hash");
    crypto_shorthash(out, (const uint8_t *)&source, sizeof source, r->key);
    memcpy(&h, out, sizeof h);
    return &r->next[h % SEC_SOURCE_BUCKETS];
}

bool sec_source_rate_take(struct sec_source_rate *r, uint64_t source, neb_ns now) {
    neb_ns *next = bucket(r, source);
    neb_ns at = *next > now ? *next : now;
    if (at - now > r->ahead)
        return false;
    *next = at + r->gap;
    return true;
}

void sec_source_rate_give_back(struct sec_source_rate *r, uint64_t source) {
    *bucket(r, source) -= r->gap;
}
