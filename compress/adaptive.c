// SPDX-License-Identifier: Apache-2.0
#include "compress/adaptive.h"
#include "compress/range.h"

enum {
    FADE = 30,          // older symbols fade
    SEEN_GEOMETRIC = 16 // the first distribution counts as much as so many symbols
};

struct model {
    unsigned width;
    struct cmp_node nodes[256]; // [1] is the first bit; below node i are 2i and 2i + 1
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
        zero = zero < CMP_NODE_LEAST                  ? CMP_NODE_LEAST
               : zero > CMP_NODE_ONE - CMP_NODE_LEAST ? CMP_NODE_ONE - CMP_NODE_LEAST
                                                      : zero;
        m->nodes[i] = (struct cmp_node){(uint16_t)zero, SEEN_GEOMETRIC};
    }
}

static void begin(struct model *m, const struct cmp_adaptive *a) {
    m->width = a->width;
    for (size_t i = 0; i < 256; i++)
        m->nodes[i] = CMP_NODE;
    if (a->mean)
        begin_geometric(m, a->mean);
}

enum neb_status cmp_adaptive_put(const struct cmp_adaptive *a, const uint8_t *p, size_t n,
                                 struct neb_buf *out) {
    struct model m;
    struct cmp_range_writer w = cmp_range_writer_make(out);
    NEB_ASSERT(n <= CMP_ADAPTIVE_MOST);
    begin(&m, a);
    for (size_t i = 0; i < n; i++)
        for (unsigned at = 0; at < 8; at += m.width)
            for (unsigned k = m.width, node = 1; k-- > 0;) {
                unsigned bit = p[i] >> (at + k) & 1;
                cmp_range_put_bit(&w, &m.nodes[node], FADE, bit);
                node = 2 * node + bit;
            }
    cmp_range_finish(&w);
    return neb_buf_check(out);
}

bool cmp_adaptive_get(const struct cmp_adaptive *a, uint8_t *out, size_t n, const uint8_t *p,
                      size_t len) {
    struct model m;
    struct cmp_range_reader r = cmp_range_reader_make(p, len);
    begin(&m, a);
    for (size_t i = 0; i < n; i++) {
        unsigned byte = 0;
        for (unsigned at = 0; at < 8; at += m.width) {
            unsigned node = 1;
            for (unsigned k = 0; k < m.width; k++)
                node = 2 * node + cmp_range_get_bit(&r, &m.nodes[node], FADE);
            byte |= (node - (1u << m.width)) << at;
        }
        out[i] = (uint8_t)byte;
    }
    return cmp_range_all_read(&r);
}
