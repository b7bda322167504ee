// SPDX-License-Identifier: Apache-2.0
// Masked updates and their reveals: both parse to values in range (a reveal is written back to the
// same bytes), or are refused.
#include "security/secure_sum.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sec_sum_reveal r;
    struct sec_sum_head h;
    const uint8_t *body;
    struct neb_buf b = {0};
    if (sec_sum_open(data, size, &h, &body) == NEB_OK && body + 2 * (size_t)h.count != data + size)
        abort();
    struct neb_rd in = neb_rd_make(data, size);
    if (!sec_sum_reveal_get(&in, &r) || !neb_rd_done(&in))
        return 0;
    sec_sum_reveal_put(&b, &r);
    if (b.len != size || memcmp(b.p, data, size))
        abort();
    neb_buf_free(&b);
    return 0;
}
