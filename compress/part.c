// SPDX-License-Identifier: Apache-2.0
#include "compress/part.h"

#include <zstd.h>

enum { RAW, ZSTD, LEVEL = 3 };

bool cmp_parts_open(struct cmp_parts *s) {
    s->c = ZSTD_createCCtx();
    s->d = ZSTD_createDCtx();
    return s->c && s->d &&
           !ZSTD_isError(ZSTD_CCtx_setParameter(s->c, ZSTD_c_compressionLevel, LEVEL)) &&
           !ZSTD_isError(ZSTD_CCtx_setParameter(s->c, ZSTD_c_contentSizeFlag, 0));
}

void cmp_parts_close(struct cmp_parts *s) {
    ZSTD_freeCCtx(s->c);
    ZSTD_freeDCtx(s->d);
    neb_buf_free(&s->plane);
    neb_buf_free(&s->packed);
    neb_buf_free(&s->scratch);
}

enum neb_status cmp_part_put(struct cmp_parts *s, const struct neb_buf *raw, struct neb_buf *out) {
    size_t most = ZSTD_compressBound(s->plane.len);
    NEB_TRY(neb_buf_check(&s->plane));
    NEB_TRY(neb_buf_check(raw));
    neb_buf_clear(&s->scratch);
    NEB_TRY(neb_buf_reserve(&s->scratch, most));
    size_t n = ZSTD_compress2(s->c, s->scratch.p, most, s->plane.p, s->plane.len);
    bool as_is = ZSTD_isError(n) || n >= raw->len;
    neb_buf_u8(out, as_is ? RAW : ZSTD);
    neb_buf_varint(out, as_is ? raw->len : n);
    neb_buf_add(out, as_is ? raw->p : s->scratch.p, as_is ? raw->len : n);
    return neb_buf_check(out);
}

enum neb_status cmp_part_get(struct cmp_parts *s, struct neb_rd *r, const char *what,
                             struct cmp_part_sizes raw, struct cmp_part_sizes packed, bool *zstd) {
    uint8_t how = neb_rd_u8(r);
    uint64_t n = neb_rd_varint(r);
    if (r->bad || how > ZSTD || n > neb_rd_left(r))
        return neb_fail(NEB_ERR_FORMAT, "%s of %llu bytes is cut short or of unknown kind", what,
                        (unsigned long long)n);
    const uint8_t *p = neb_rd_view(r, (size_t)n);
    *zstd = how == ZSTD;
    struct cmp_part_sizes want = *zstd ? packed : raw;
    neb_buf_clear(&s->plane);
    NEB_TRY(neb_buf_reserve(&s->plane, want.max + 1));
    size_t got = (size_t)n;
    if (*zstd)
        got = ZSTD_decompressDCtx(s->d, s->plane.p, want.max, p, (size_t)n);
    if (ZSTD_isError(got) || got < want.min || got > want.max)
        return neb_fail(NEB_ERR_FORMAT, "%s does not unpack to %zu..%zu bytes", what, want.min,
                        want.max);
    if (*zstd)
        s->plane.len = got;
    else
        neb_buf_add(&s->plane, p, got);
    return NEB_OK;
}
