// SPDX-License-Identifier: Apache-2.0
// A range coder: bits with adaptive probabilities, and parts of a whole.
//
//     a bit       its node has the probability of 0, which follows the bits that were coded
//     a part      [start, start + size) of [0, total): it takes log2(total / size) bits
//     the bytes   those of the coded fraction; zeros at the end are left out
//
// All arithmetic is in integers, so the bits are the same on every machine.
//
// Source: the range coder of LZMA (Igor Pavlov); probabilities as in Krichevsky and Trofimov.
#ifndef CMP_RANGE_H
#define CMP_RANGE_H
#include "agent/base/bytes.h"

enum { CMP_NODE_ONE = 1 << 16, CMP_NODE_LEAST = CMP_NODE_ONE / 2048 }; // 1; of either bit
struct cmp_node {
    uint16_t zero; // probability of 0
    uint16_t seen; // bits, up to a limit: older ones fade
};
#define CMP_NODE ((struct cmp_node){CMP_NODE_ONE / 2, 0})

static inline void cmp_node_learn(struct cmp_node *n, unsigned fade, unsigned bit) {
    int32_t want = bit ? CMP_NODE_LEAST : CMP_NODE_ONE - CMP_NODE_LEAST, p = n->zero;
    p += (want - p) / (n->seen + 2);
    n->zero = (uint16_t)p;
    n->seen = (uint16_t)(n->seen + (n->seen < fade));
}

static inline uint32_t cmp_node_part(uint32_t range, const struct cmp_node *n) {
    return (range >> 16) * n->zero;
}

enum { CMP_RANGE_LEAST = 1 << 24, CMP_RANGE_TOTAL_MOST = 1 << 24 };

struct cmp_range_writer {
    uint64_t low; // 33 bits: the highest is a carry
    uint32_t range;
    uint8_t first; // the byte before `waiting` - 1 bytes 255, which a carry changes as well
    size_t waiting;
    size_t start; // of the output; the first byte is always 0 and is left out
    struct neb_buf *out;
};
// out is borrowed. After an error of memory, neb_buf_check(out) says so.
struct cmp_range_writer cmp_range_writer_make(struct neb_buf *out);
void cmp_range_widen(struct cmp_range_writer *w);
// fade: the limit of n->seen.
static inline void cmp_range_put_bit(struct cmp_range_writer *w, struct cmp_node *n, unsigned fade,
                                     unsigned bit) {
    uint32_t part = cmp_node_part(w->range, n);
    w->low += bit ? part : 0;
    w->range = bit ? w->range - part : part;
    cmp_range_widen(w);
    cmp_node_learn(n, fade, bit);
}
// size > 0; total at most CMP_RANGE_TOTAL_MOST.
void cmp_range_put_part(struct cmp_range_writer *w, uint32_t start, uint32_t size, uint32_t total);
void cmp_range_finish(struct cmp_range_writer *w);

struct cmp_range_reader {
    uint32_t code, range;
    const uint8_t *p; // borrowed
    size_t len, at;   // at: bytes that were read, with the zeros behind the end
};
struct cmp_range_reader cmp_range_reader_make(const uint8_t *p, size_t len);
void cmp_range_refill(struct cmp_range_reader *r);
static inline unsigned cmp_range_get_bit(struct cmp_range_reader *r, struct cmp_node *n,
                                         unsigned fade) {
    uint32_t part = cmp_node_part(r->range, n);
    unsigned bit = r->code >= part;
    r->code -= bit ? part : 0;
    r->range = bit ? r->range - part : part;
    cmp_range_refill(r);
    cmp_node_learn(n, fade, bit);
    return bit;
}
// Returns a number of the part that comes; then _take_part with this part. Hostile bytes give any
// number below total.
uint32_t cmp_range_peek_part(const struct cmp_range_reader *r, uint32_t total);
void cmp_range_take_part(struct cmp_range_reader *r, uint32_t start, uint32_t size, uint32_t total);
static inline bool cmp_range_all_read(const struct cmp_range_reader *r) { return r->at >= r->len; }

#endif
