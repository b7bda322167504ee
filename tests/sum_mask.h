// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SUM_MASK_H
#define TESTS_SUM_MASK_H
#include "security/secure_sum.h"

// Masks q without noise. Replaces out.
static inline enum neb_status sum_mask(const struct sec_sum *s, uint32_t fragment, uint32_t round,
                                       const int16_t *q, size_t count, struct neb_buf *out) {
    struct sec_sum_head h;
    NEB_TRY(sec_sum_begin(s, fragment, round, q, count, &h));
    return sec_sum_finish(s, &h, q, out);
}

#endif
