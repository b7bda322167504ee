// SPDX-License-Identifier: Apache-2.0
// Little-endian readers and writers with bounds checks, and a growable buffer.
//
// Errors are sticky. After the first read past the end, every read returns 0 and `bad` stays set,
// so a parser reads all fields and checks once. No struct is ever cast onto a buffer.
#ifndef NEB_BYTES_H
#define NEB_BYTES_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct neb_rd {
    const uint8_t *p; // borrowed
    size_t len, off;
    bool bad; // a read went past the end
};

static inline struct neb_rd neb_rd_make(const void *p, size_t len) {
    return (struct neb_rd){.p = p, .len = len};
}
uint8_t neb_rd_u8(struct neb_rd *r);
uint16_t neb_rd_u16(struct neb_rd *r);
uint32_t neb_rd_u32(struct neb_rd *r);
uint64_t neb_rd_u64(struct neb_rd *r);
uint64_t neb_rd_varint(struct neb_rd *r); // 7 bits a byte, lowest first; at most 63 bits
int64_t neb_rd_i64(struct neb_rd *r);
float neb_rd_f32(struct neb_rd *r);
double neb_rd_f64(struct neb_rd *r);
void neb_rd_copy(struct neb_rd *r, void *dst, size_t n); // zeroes dst if it runs past the end
// pointer into the input; NULL past the end
const uint8_t *neb_rd_view(struct neb_rd *r, size_t n);
// u16 length, then the bytes; bad if the string does not fit or contains a NUL
void neb_rd_str(struct neb_rd *r, char *dst, size_t cap);
static inline size_t neb_rd_left(const struct neb_rd *r) { return r->len - r->off; }
static inline bool neb_rd_done(const struct neb_rd *r) { return !r->bad && r->off == r->len; }

// A growable byte buffer. Append errors are sticky (`oom`), so a writer checks once at its end.
// neb_buf_clear keeps the capacity: a hot path that reuses a buffer allocates only at first.
struct neb_buf {
    uint8_t *p; // owned
    size_t len, cap;
    bool oom;
};

void neb_buf_free(struct neb_buf *b);
static inline void neb_buf_clear(struct neb_buf *b) { b->len = 0, b->oom = false; }
// makes room for `extra` more bytes
NEB_MUST_CHECK enum neb_status neb_buf_reserve(struct neb_buf *b, size_t extra);
NEB_MUST_CHECK enum neb_status neb_buf_check(const struct neb_buf *b); // NEB_ERR_NOMEM if oom
uint8_t *neb_buf_grow(struct neb_buf *b, size_t n); // appends n uninitialised bytes; NULL if oom
void neb_buf_add(struct neb_buf *b, const void *src, size_t n);
void neb_buf_u8(struct neb_buf *b, uint8_t v);
void neb_buf_u16(struct neb_buf *b, uint16_t v);
void neb_buf_u32(struct neb_buf *b, uint32_t v);
void neb_buf_u64(struct neb_buf *b, uint64_t v);
void neb_buf_varint(struct neb_buf *b, uint64_t v);
void neb_buf_i64(struct neb_buf *b, int64_t v);
void neb_buf_f32(struct neb_buf *b, float v);
void neb_buf_f64(struct neb_buf *b, double v);
void neb_buf_str(struct neb_buf *b, const char *s); // u16 length, then the bytes
void neb_put_u32(uint8_t *p, uint32_t v);           // overwrites a field that was written before
void neb_put_u64(uint8_t *p, uint64_t v);

// Writes n bytes as hexadecimal text. `out` needs 2n + 1 bytes.
void neb_hex(const void *src, size_t n, char *out);
// Parses exactly 2n hexadecimal digits. Capital letters are an error: ids are compared as text, so
// each id must have only one spelling.
NEB_MUST_CHECK bool neb_unhex(const char *text, void *dst, size_t n);

#endif
