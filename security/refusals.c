// SPDX-License-Identifier: Apache-2.0
#include "security/refusals.h"

#include <stdio.h>
#include <string.h>

static const neb_ns minute = 60 * NEB_S, hour = 3600 * NEB_S;

static bool has(const struct sec_refusals_keys *k, const uint8_t key[SEC_KEY_BYTES]) {
    for (uint64_t i = 0; i < k->n && i < SEC_REFUSALS_KEYS; i++)
        if (!memcmp(k->key[i], key, SEC_KEY_BYTES))
            return true;
    return false;
}

static void put(struct sec_refusals_keys *k, const uint8_t key[SEC_KEY_BYTES]) {
    memcpy(k->key[k->n++ % SEC_REFUSALS_KEYS], key, SEC_KEY_BYTES);
}

bool sec_refusals_add(struct sec_refusals *r, neb_ns now, const uint8_t key[SEC_KEY_BYTES]) {
    bool named = has(&r->named, key);
    if (!r->lines || now - r->minute >= minute) {
        r->minute = now;
        r->lines = 0;
    }
    if (!named && r->lines < SEC_REFUSALS_LINES) {
        put(&r->named, key);
        r->lines++;
        r->said = now;
        return true;
    }
    if (!r->more++)
        r->since = now;
    r->unnamed = r->unnamed || !named;
    if (r->others.n < SEC_REFUSALS_KEYS && !has(&r->others, key))
        put(&r->others, key);
    return false;
}

neb_ns sec_refusals_due(const struct sec_refusals *r) {
    if (!r->more)
        return INT64_MAX;
    return r->unnamed ? r->since + minute : r->said + hour;
}

void sec_refusals_sum(struct sec_refusals *r, neb_ns now, char text[SEC_REFUSALS_TEXT]) {
    snprintf(text, SEC_REFUSALS_TEXT, "%llu more connection%s of %s%llu key%s in %lld s",
             (unsigned long long)r->more, r->more == 1 ? "" : "s",
             r->others.n == SEC_REFUSALS_KEYS ? "at least " : "", (unsigned long long)r->others.n,
             r->others.n == 1 ? "" : "s", (long long)((now - r->since) / NEB_S));
    r->others.n = 0;
    r->more = 0;
    r->unnamed = false;
    r->said = now;
}
