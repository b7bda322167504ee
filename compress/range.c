// SPDX-License-Identifier: Apache-2.0
#include "compress/range.h"

#include <string.h>

static uint32_t share_of(uint32_t range, uint32_t part, uint32_t total) {
    return (uint32_t)((uint64_t)range * part / total);
}

// ---- encoding -----------------------------------------------------------------------------------

struct cmp_range_writer cmp_range_writer_make(struct neb_buf *out) {
    return (struct cmp_range_writer){
        .range = UINT32_MAX, .waiting = 1, .start = out->len, .out = out};
}

static void shift(struct cmp_range_writer *w) {
    if (w->low < 0xff000000u || w->low >> 32) {
        uint8_t carry = (uint8_t)(w->low >> 32);
        for (uint8_t byte = w->first; w->waiting > 0; w->waiting--, byte = 255)
            neb_buf_u8(w->out, (uint8_t)(byte + carry));
        w->first = (uint8_t)(w->low >> 24);
    }
    w->waiting++;
    w->low = (w->low & 0x00ffffff) << 8;
}

void cmp_range_widen(struct cmp_range_writer *w) {
    for (; w->range < CMP_RANGE_LEAST; w->range <<= 8)
        shift(w);
}

void cmp_range_put_part(struct cmp_range_writer *w, uint32_t start, uint32_t size, uint32_t total) {
    uint32_t from = share_of(w->range, start, total);
    w->low += from;
    w->range = share_of(w->range, start + size, total) - from;
    cmp_range_widen(w);
}

// Ends with the number of the range that has the most zero bytes at its end.
void cmp_range_finish(struct cmp_range_writer *w) {
    uint64_t last = w->low + w->range - 1;
    for (int zeros = 24; zeros >= 0; zeros -= 8) {
        uint64_t mask = (UINT64_C(1) << zeros) - 1, at = (w->low + mask) & ~mask;
        if (at <= last) {
            w->low = at;
            break;
        }
    }
    for (int i = 0; i < 5; i++)
        shift(w);
    if (w->out->oom)
        return;
    memmove(w->out->p + w->start, w->out->p + w->start + 1, w->out->len - w->start - 1);
    w->out->len--;
    while (w->out->len > w->start && !w->out->p[w->out->len - 1])
        w->out->len--;
}

// ---- decoding -----------------------------------------------------------------------------------

static void next(struct cmp_range_reader *r) {
    r->code = r->code << 8 | (r->at < r->len ? r->p[r->at] : 0);
    r->at++;
}

struct cmp_range_reader cmp_range_reader_make(const uint8_t *p, size_t len) {
    struct cmp_range_reader r = {.range = UINT32_MAX, .p = p, .len = len};
    for (int i = 0; i < 4; i++)
        next(&r);
    return r;
}

void cmp_range_refill(struct cmp_range_reader *r) {
    for (; r->range < CMP_RANGE_LEAST; r->range <<= 8)
        next(r);
}

uint32_t cmp_range_peek_part(const struct cmp_range_reader *r, uint32_t total) {
    uint64_t at = (((uint64_t)r->code + 1) * total - 1) / r->range;
    return at < total ? (uint32_t)at : total - 1;
}

void cmp_range_take_part(struct cmp_range_reader *r, uint32_t start, uint32_t size,
                         uint32_t total) {
    uint32_t from = share_of(r->range, start, total);
    r->code -= from;
    r->range = share_of(r->range, start + size, total) - from;
    cmp_range_refill(r);
}
