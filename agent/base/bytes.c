// SPDX-License-Identifier: Apache-2.0
#include "agent/base/bytes.h"
#include "agent/base/fault.h"

#include <stdlib.h>
#include <string.h>

const uint8_t *neb_rd_view(struct neb_rd *r, size_t n) {
    if (r->bad || n > r->len - r->off) {
        r->bad = true;
        return NULL;
    }
    const uint8_t *p = r->p + r->off;
    r->off += n;
    return p;
}

static uint64_t rd_le(struct neb_rd *r, size_t n) {
    const uint8_t *p = neb_rd_view(r, n);
    uint64_t v = 0;
    for (size_t i = 0; p && i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint8_t neb_rd_u8(struct neb_rd *r) { return (uint8_t)rd_le(r, 1); }
uint16_t neb_rd_u16(struct neb_rd *r) { return (uint16_t)rd_le(r, 2); }
uint32_t neb_rd_u32(struct neb_rd *r) { return (uint32_t)rd_le(r, 4); }
uint64_t neb_rd_u64(struct neb_rd *r) { return rd_le(r, 8); }
int64_t neb_rd_i64(struct neb_rd *r) { return (int64_t)rd_le(r, 8); }

uint64_t neb_rd_varint(struct neb_rd *r) {
    uint64_t v = 0;
    for (int shift = 0; shift < 63; shift += 7) {
        uint8_t byte = neb_rd_u8(r);
        v |= (uint64_t)(byte & 127) << shift;
        if (!(byte & 128))
            return v;
    }
    r->bad = true;
    return 0;
}

float neb_rd_f32(struct neb_rd *r) {
    uint32_t u = neb_rd_u32(r);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

double neb_rd_f64(struct neb_rd *r) {
    uint64_t u = neb_rd_u64(r);
    double f;
    memcpy(&f, &u, sizeof f);
    return f;
}

void neb_rd_copy(struct neb_rd *r, void *dst, size_t n) {
    const uint8_t *p = neb_rd_view(r, n);
    if (!n)
        return;
    if (p)
        memcpy(dst, p, n);
    else
        memset(dst, 0, n);
}

void neb_rd_str(struct neb_rd *r, char *dst, size_t cap) {
    size_t n = neb_rd_u16(r);
    const uint8_t *p = n < cap ? neb_rd_view(r, n) : NULL;
    dst[0] = 0;
    if (!p || memchr(p, 0, n)) {
        r->bad = true;
        return;
    }
    memcpy(dst, p, n);
    dst[n] = 0;
}

void neb_buf_free(struct neb_buf *b) {
    free(b->p);
    *b = (struct neb_buf){0};
}

enum neb_status neb_buf_check(const struct neb_buf *b) {
    return b->oom ? neb_fail(NEB_ERR_NOMEM, "out of memory growing a buffer past %zu bytes", b->cap)
                  : NEB_OK;
}

enum neb_status neb_buf_reserve(struct neb_buf *b, size_t extra) {
    if (extra <= b->cap - b->len)
        return NEB_OK;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < SIZE_MAX / 2 && cap - b->len < extra)
        cap *= 2;
    bool none = cap - b->len < extra || neb_fault("bytes.reserve");
    uint8_t *p = none ? NULL : realloc(b->p, cap);
    if (!p) {
        b->oom = true;
        return neb_buf_check(b);
    }
    b->p = p;
    b->cap = cap;
    return NEB_OK;
}

uint8_t *neb_buf_grow(struct neb_buf *b, size_t n) {
    if (b->oom || neb_buf_reserve(b, n) != NEB_OK)
        return NULL;
    uint8_t *p = b->p + b->len;
    b->len += n;
    return p;
}

void neb_buf_add(struct neb_buf *b, const void *src, size_t n) {
    uint8_t *p = n ? neb_buf_grow(b, n) : NULL;
    if (p)
        memcpy(p, src, n);
}

static void buf_le(struct neb_buf *b, uint64_t v, size_t n) {
    uint8_t *p = neb_buf_grow(b, n);
    for (size_t i = 0; p && i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

void neb_buf_u8(struct neb_buf *b, uint8_t v) { buf_le(b, v, 1); }
void neb_buf_u16(struct neb_buf *b, uint16_t v) { buf_le(b, v, 2); }
void neb_buf_u32(struct neb_buf *b, uint32_t v) { buf_le(b, v, 4); }
void neb_buf_u64(struct neb_buf *b, uint64_t v) { buf_le(b, v, 8); }
void neb_buf_i64(struct neb_buf *b, int64_t v) { buf_le(b, (uint64_t)v, 8); }

void neb_buf_f32(struct neb_buf *b, float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    neb_buf_u32(b, u);
}

void neb_buf_f64(struct neb_buf *b, double v) {
    uint64_t u;
    memcpy(&u, &v, sizeof u);
    neb_buf_u64(b, u);
}

void neb_buf_str(struct neb_buf *b, const char *s) {
    size_t n = strlen(s);
    NEB_ASSERT(n <= UINT16_MAX);
    neb_buf_u16(b, (uint16_t)n);
    neb_buf_add(b, s, n);
}

void neb_put_u32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

void neb_put_u64(uint8_t *p, uint64_t v) {
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

void neb_hex(const void *src, size_t n, char *out) {
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * n] = 0;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool neb_unhex(const char *text, void *dst, size_t n) {
    uint8_t *p = dst;
    if (strlen(text) != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        int hi = hex_digit(text[2 * i]), lo = hex_digit(text[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return false;
        p[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

void neb_buf_varint(struct neb_buf *b, uint64_t v) {
    for (; v >= 128; v >>= 7)
        neb_buf_u8(b, (uint8_t)(v | 128));
    neb_buf_u8(b, (uint8_t)v);
}
