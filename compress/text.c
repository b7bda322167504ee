// SPDX-License-Identifier: Apache-2.0
#include "compress/text.h"

#include <string.h>
#include <zstd.h>

enum { LEVEL = 3 };

enum neb_status cmp_text_pack(const char *text, size_t n, struct neb_buf *out) {
    size_t most = ZSTD_compressBound(n);
    neb_buf_clear(out);
    NEB_TRY(neb_buf_reserve(out, most));
    size_t k = n <= CMP_TEXT_MOST ? ZSTD_compress(out->p, most, text, n, LEVEL) : n;
    if (ZSTD_isError(k) || k >= n)
        memcpy(out->p, text, k = n);
    out->len = k;
    return NEB_OK;
}

enum neb_status cmp_text_unpack(const uint8_t *p, size_t n, struct neb_buf *out, const char **text,
                                size_t *len) {
    struct neb_rd r = neb_rd_make(p, n);
    *text = (const char *)p, *len = n;
    if (neb_rd_u32(&r) != ZSTD_MAGICNUMBER)
        return NEB_OK;
    neb_buf_clear(out);
    NEB_TRY(neb_buf_reserve(out, CMP_TEXT_MOST));
    size_t k = ZSTD_decompress(out->p, CMP_TEXT_MOST, p, n);
    if (ZSTD_isError(k))
        return neb_fail(NEB_ERR_FORMAT, "a packed text is damaged or too long");
    *text = (const char *)out->p, *len = out->len = k;
    return NEB_OK;
}
