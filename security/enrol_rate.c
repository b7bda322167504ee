// SPDX-License-Identifier: Apache-2.0
// The limit for all sources is a virtual clock too (source_rate.h). What was spent moves it
// forward.
#include "security/enrol_rate.h"

static const neb_ns saved = SEC_RATE_SAVED_MS * NEB_MS;

void sec_enrol_rate_init(struct sec_enrol_rate *r) {
    sec_source_rate_init(&r->sources, SEC_RATE_SECOND, SEC_RATE_BURST);
    r->paid = 0;
}

bool sec_enrol_rate_take(struct sec_enrol_rate *r, uint64_t source, neb_ns now) {
    return r->paid - now <= saved * 100 / SEC_RATE_PERCENT &&
           sec_source_rate_take(&r->sources, source, now);
}

void sec_enrol_rate_spent(struct sec_enrol_rate *r, neb_ns cost, neb_ns now) {
    r->paid = (r->paid > now ? r->paid : now) + cost * 100 / SEC_RATE_PERCENT;
}
