// SPDX-License-Identifier: Apache-2.0
// An adaptive binary coder for short streams (range.h). zstd needs a table for each stream, which
// costs more than a short stream has to gain. Here both sides learn the frequencies as they go.
//
//     a byte      one symbol of 8 bits, two of 4 or four of 2 (the low bits first)
//     a symbol    its bits, the highest first; each has a probability for each value of the
//                 bits before it
#ifndef CMP_ADAPTIVE_H
#define CMP_ADAPTIVE_H
#include "agent/base/bytes.h"

enum { CMP_ADAPTIVE_MOST = 8192 }; // bytes: it takes more time per byte than zstd

// What both sides know about a stream before its first byte.
struct cmp_adaptive {
    unsigned width; // bits of a symbol: 2, 4 or 8
    // Of 8-bit symbols, below 2^16: the mean of geometric numbers, of which 255 stands for 255 and
    // more. 0: the symbols are equally likely.
    uint32_t mean;
};
// Appends the coded bytes of p (n, at most CMP_ADAPTIVE_MOST). *out may be larger than p.
// NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status cmp_adaptive_put(const struct cmp_adaptive *a, const uint8_t *p,
                                                size_t n, struct neb_buf *out);
// The most bytes that n bytes can take: a bit costs at most 11.
static inline size_t cmp_adaptive_bound(size_t n) { return 11 * n + 8; }
// Decodes exactly n bytes to out. False: bytes are left over. Other bytes than an encoder's decode
// to anything.
bool cmp_adaptive_get(const struct cmp_adaptive *a, uint8_t *out, size_t n, const uint8_t *p,
                      size_t len);

#endif
