// What a member reveals for a masked sum: parses to something that is written back to the same bytes, or is refused.
#include "security/secure_sum.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sec_sum_reveal r;
    struct neb_buf b = {0};
    if (!sec_sum_reveal_get(data, size, &r))
        return 0;
    sec_sum_reveal_put(&b, &r);
    if (b.len != size || memcmp(b.p, data, size))
        abort();
    neb_buf_free(&b);
    return 0;
}
