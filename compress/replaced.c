// SPDX-License-Identifier: Apache-2.0
// Frames of tokens (replaced.h).
#include "compress/replaced.h"
#include "compress/part.h"

#include <stdlib.h>

enum { VERSION = 1, ESCAPE = 255 };

struct cmp_tokens {
    struct cmp_parts parts;
};

enum neb_status cmp_tokens_create(struct cmp_tokens **out) {
    *out = calloc(1, sizeof **out);
    if (*out && cmp_parts_open(&(*out)->parts))
        return NEB_OK;
    cmp_tokens_destroy(out);
    return neb_fail(NEB_ERR_NOMEM, "out of memory for token frames");
}

void cmp_tokens_destroy(struct cmp_tokens **tp) {
    if (!*tp)
        return;
    cmp_parts_close(&(*tp)->parts);
    free(*tp);
    *tp = NULL;
}

static int planes_of(int32_t vocab) { return vocab <= 1 << 8 ? 1 : vocab <= 1 << 16 ? 2 : 3; }

// Reads the next plane. It must have min to max bytes.
static enum neb_status get_plane(struct cmp_tokens *t, struct neb_rd *r, size_t min, size_t max) {
    const struct cmp_part_sizes sizes = {min, max};
    bool zstd;
    return cmp_part_get(&t->parts, r, "token frame: a plane", sizes, sizes, &zstd);
}

static enum neb_status put_ids(struct cmp_tokens *t, const int32_t *ids, uint32_t n, int32_t vocab,
                               struct neb_buf *out) {
    for (int plane = 0; plane < planes_of(vocab); plane++) {
        neb_buf_clear(&t->parts.plane);
        for (uint32_t i = 0; i < n; i++) {
            NEB_ASSERT(ids[i] >= 0 && ids[i] < vocab);
            neb_buf_u8(&t->parts.plane, (uint8_t)(ids[i] >> (8 * plane)));
        }
        NEB_TRY(cmp_part_put(&t->parts, &t->parts.plane, out));
    }
    return NEB_OK;
}

static enum neb_status get_ids(struct cmp_tokens *t, struct neb_rd *r, int32_t vocab, int32_t *ids,
                               uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = 0;
    for (int plane = 0; plane < planes_of(vocab); plane++) {
        NEB_TRY(get_plane(t, r, n, n));
        for (uint32_t i = 0; i < n; i++)
            ids[i] |= (int32_t)t->parts.plane.p[i] << (8 * plane);
    }
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] >= vocab)
            return neb_fail(NEB_ERR_FORMAT, "token frame: token %d is outside the vocabulary of %d",
                            ids[i], vocab);
    return NEB_OK;
}

enum neb_status cmp_replaced_encode(struct cmp_tokens *t, uint32_t n_masked, const int32_t *index,
                                    const int32_t *ids, uint32_t n, int32_t vocab,
                                    struct neb_buf *out) {
    NEB_ASSERT(n <= n_masked && n_masked <= CMP_TOKENS_MAX);
    neb_buf_u8(out, VERSION);
    neb_buf_varint(out, n_masked);
    neb_buf_varint(out, n);
    neb_buf_clear(&t->parts.plane);
    for (uint32_t i = 0; i < n; i++) {
        int32_t gap = i ? index[i] - index[i - 1] - 1 : index[0];
        NEB_ASSERT(gap >= 0 && (uint32_t)index[i] < n_masked);
        for (; gap >= ESCAPE; gap -= ESCAPE)
            neb_buf_u8(&t->parts.plane, ESCAPE);
        neb_buf_u8(&t->parts.plane, (uint8_t)gap);
    }
    NEB_TRY(cmp_part_put(&t->parts, &t->parts.plane, out));
    return put_ids(t, ids, n, vocab, out);
}

enum neb_status cmp_replaced_decode(struct cmp_tokens *t, struct neb_rd *r, uint32_t n_masked,
                                    int32_t vocab, int32_t *index, int32_t *ids, uint32_t *n) {
    uint8_t version = neb_rd_u8(r);
    uint64_t masked = neb_rd_varint(r), replaced = neb_rd_varint(r);
    *n = 0;
    if (r->bad || version != VERSION || masked != n_masked || n_masked > CMP_TOKENS_MAX ||
        replaced > masked)
        return neb_fail(NEB_ERR_FORMAT,
                        "token frame: version %u, %llu of %llu masked positions replaced; expected "
                        "%u masked ones",
                        version, (unsigned long long)replaced, (unsigned long long)masked,
                        n_masked);
    NEB_TRY(get_plane(t, r, (size_t)replaced, (size_t)replaced + n_masked / ESCAPE));
    uint64_t at = 0;
    uint32_t k = 0;
    for (size_t i = 0; i < t->parts.plane.len; i++) {
        at += t->parts.plane.p[i];
        if (t->parts.plane.p[i] == ESCAPE)
            continue;
        if (k == replaced || at >= n_masked)
            return neb_fail(NEB_ERR_FORMAT,
                            "token frame: a replacement beyond the masked positions");
        index[k++] = (int32_t)at++;
    }
    if (k != replaced)
        return neb_fail(NEB_ERR_FORMAT, "token frame: %u positions for %llu replacements", k,
                        (unsigned long long)replaced);
    NEB_TRY(get_ids(t, r, vocab, ids, k));
    *n = k;
    return NEB_OK;
}

enum neb_status cmp_replaced_skip(struct neb_rd *r, int32_t vocab) {
    (void)neb_rd_u8(r);
    (void)neb_rd_varint(r);
    (void)neb_rd_varint(r);
    for (int plane = 0; plane < 1 + planes_of(vocab); plane++) {
        (void)neb_rd_u8(r);
        uint64_t n = neb_rd_varint(r);
        if (n > neb_rd_left(r))
            r->bad = true;
        else
            (void)neb_rd_view(r, (size_t)n);
    }
    return r->bad ? neb_fail(NEB_ERR_FORMAT, "token frame: cut short") : NEB_OK;
}

enum neb_status cmp_text_encode(struct cmp_tokens *t, const int32_t *ids, uint32_t n, int32_t vocab,
                                struct neb_buf *out) {
    NEB_ASSERT(n <= CMP_TOKENS_MAX);
    neb_buf_u8(out, VERSION);
    neb_buf_varint(out, n);
    return put_ids(t, ids, n, vocab, out);
}

enum neb_status cmp_text_decode(struct cmp_tokens *t, struct neb_rd *r, int32_t vocab, int32_t *ids,
                                uint32_t n) {
    uint8_t version = neb_rd_u8(r);
    uint64_t have = neb_rd_varint(r);
    if (r->bad || version != VERSION || have != n)
        return neb_fail(NEB_ERR_FORMAT, "token frame: %llu tokens of text, %u expected",
                        (unsigned long long)have, n);
    return get_ids(t, r, vocab, ids, n);
}
