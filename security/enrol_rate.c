// Both bounds are virtual clocks (GCRA, ITU-T I.371): each handshake moves a clock on by what it is worth; it may run ahead of the
// real one by the burst.
#include "security/enrol_rate.h"

#include <sodium.h>
#include <string.h>

static const neb_ns gap = NEB_S / SEC_RATE_SECOND, saved = SEC_RATE_SAVED_MS * NEB_MS;

void sec_enrol_rate_init(struct sec_enrol_rate *r) {
    memset(r, 0, sizeof *r);
    randombytes_buf(r->key, sizeof r->key);
}

static neb_ns *bucket(struct sec_enrol_rate *r, uint64_t source) {
    uint64_t h;
    uint8_t out[crypto_shorthash_BYTES];
    _Static_assert(crypto_shorthash_KEYBYTES == SEC_RATE_KEY_BYTES, "key");
    _Static_assert(sizeof h == sizeof out, "hash");
    crypto_shorthash(out, (const uint8_t *)&source, sizeof source, r->key);
    memcpy(&h, out, sizeof h);
    return &r->next[h % SEC_RATE_BUCKETS];
}

bool sec_enrol_rate_take(struct sec_enrol_rate *r, uint64_t source, neb_ns now) {
    neb_ns *next = bucket(r, source);
    neb_ns at = *next > now ? *next : now;
    if (at - now > (SEC_RATE_BURST - 1) * gap || r->paid - now > saved * 100 / SEC_RATE_PERCENT)
        return false;
    *next = at + gap;
    return true;
}

void sec_enrol_rate_spent(struct sec_enrol_rate *r, neb_ns cost, neb_ns now) {
    r->paid = (r->paid > now ? r->paid : now) + cost * 100 / SEC_RATE_PERCENT;
}
