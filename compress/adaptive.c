// SPDX-License-Identifier: Apache-2.0
#include "compress/adaptive.h"

#include <string.h>

enum {
    ONE = 1 << 16,      // probability 1
    LEAST = ONE / 2048, // of either bit
    SEEN_MOST = 30,     // older symbols fade
    SEEN_GEOMETRIC = 16 // the first distribution counts as much as so many symbols
};
#define RANGE_LEAST (1u << 24)

struct node {
    uint16_t zero; // probability of 0
    uint16_t seen;
};
struct model {
    unsigned width;
    struct node nodes[256]; // [1] is the first bit; below node i are 2i and 2i + 1
};

// The weights of 0 to 254 fall by the same factor each; 255 has the rest.
static void begin_geometric(struct model *m, uint32_t mean) {
    uint64_t sum[512], factor = ((uint64_t)mean << 16) / (mean + 1), weight = 1 << 24;
    for (size_t i = 0; i < 255; i++, weight = weight * factor >> 16)
        sum[256 + i] = weight + 1;
    sum[511] = weight * (mean + 1) + 1;
    for (size_t i = 255; i > 0; i--) {
        sum[i] = sum[2 * i] + sum[2 * i + 1];
        uint64_t zero = (sum[2 * i] << 16) / sum[i];
        zero = zero < LEAST ? LEAST : zero > ONE - LEAST ? ONE - LEAST : zero;
        m->nodes[i] = (struct node){(uint16_t)zero, SEEN_GEOMETRIC};
    }
}

static void begin(struct model *m, const struct cmp_adaptive *a) {
    m->width = a->width;
    for (size_t i = 0; i < 256; i++)
        m->nodes[i] = (struct node){ONE / 2, 0};
    if (a->mean)
        begin_geometric(m, a->mean);
}

static void learn(struct node *n, unsigned bit) {
    int32_t want = bit ? LEAST : ONE - LEAST, p = n->zero;
    p += (want - p) / (n->seen + 2);
    n->zero = (uint16_t)p;
    n->seen = (uint16_t)(n->seen + (n->seen < SEEN_MOST));
}

static uint32_t part_of(uint32_t range, const struct node *n) { return (range >> 16) * n->zero; }

// ---- encoding -----------------------------------------------------------------------------------

struct writer {
    uint64_t low; // 33 bits: the highest is a carry
    uint32_t range;
    uint8_t first; // the byte before `waiting` - 1 bytes 255, which a carry changes as well
    size_t waiting;
    size_t start; // of the output; the first byte is always 0 and is left out
    struct neb_buf *out;
};

static void shift(struct writer *w) {
    if (w->low < 0xff000000u || w->low >> 32) {
        uint8_t carry = (uint8_t)(w->low >> 32);
        for (uint8_t byte = w->first; w->waiting > 0; w->waiting--, byte = 255)
            neb_buf_u8(w->out, (uint8_t)(byte + carry));
        w->first = (uint8_t)(w->low >> 24);
    }
    w->waiting++;
    w->low = (w->low & 0x00ffffff) << 8;
}

static void put_bit(struct writer *w, struct node *n, unsigned bit) {
    uint32_t part = part_of(w->range, n);
    w->low += bit ? part : 0;
    w->range = bit ? w->range - part : part;
    for (; w->range < RANGE_LEAST; w->range <<= 8)
        shift(w);
    learn(n, bit);
}

// Ends with the number of the range that has the most zero bytes at its end.
static void finish(struct writer *w) {
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

enum neb_status cmp_adaptive_put(const struct cmp_adaptive *a, const uint8_t *p, size_t n,
                                 struct neb_buf *out) {
    struct model m;
    struct writer w = {.range = UINT32_MAX, .waiting = 1, .start = out->len, .out = out};
    NEB_ASSERT(n <= CMP_ADAPTIVE_MOST);
    begin(&m, a);
    for (size_t i = 0; i < n; i++)
        for (unsigned at = 0; at < 8; at += m.width)
            for (unsigned k = m.width, node = 1; k-- > 0;) {
                unsigned bit = p[i] >> (at + k) & 1;
                put_bit(&w, &m.nodes[node], bit);
                node = 2 * node + bit;
            }
    finish(&w);
    return neb_buf_check(out);
}

// ---- decoding -----------------------------------------------------------------------------------

struct reader {
    uint32_t code, range;
    const uint8_t *p;
    size_t len, at; // at: bytes that were read, with the zeros behind the end
};

static void next(struct reader *r) {
    r->code = r->code << 8 | (r->at < r->len ? r->p[r->at] : 0);
    r->at++;
}

static unsigned get_bit(struct reader *r, struct node *n) {
    uint32_t part = part_of(r->range, n);
    unsigned bit = r->code >= part;
    r->code -= bit ? part : 0;
    r->range = bit ? r->range - part : part;
    for (; r->range < RANGE_LEAST; r->range <<= 8)
        next(r);
    learn(n, bit);
    return bit;
}

bool cmp_adaptive_get(const struct cmp_adaptive *a, uint8_t *out, size_t n, const uint8_t *p,
                      size_t len) {
    struct model m;
    struct reader r = {.range = UINT32_MAX, .p = p, .len = len};
    begin(&m, a);
    for (int i = 0; i < 4; i++)
        next(&r);
    for (size_t i = 0; i < n; i++) {
        unsigned byte = 0;
        for (unsigned at = 0; at < 8; at += m.width) {
            unsigned node = 1;
            for (unsigned k = 0; k < m.width; k++)
                node = 2 * node + get_bit(&r, &m.nodes[node]);
            byte |= (node - (1u << m.width)) << at;
        }
        out[i] = (uint8_t)byte;
    }
    return r.at >= len;
}
