// SPDX-License-Identifier: Apache-2.0
// Parts of the frames of soft labels and of tokens: bytes as they are or through zstd, whichever is
// smaller.
//
//     | how u8: 0 raw, 1 zstd | bytes varint | … |
#ifndef CMP_PART_H
#define CMP_PART_H
#include "agent/base/bytes.h"

struct cmp_parts { // for one thread
    void *c, *d;   // zstd's contexts
    struct neb_buf plane, packed, scratch;
};
// False: out of memory. Close it in any case.
bool cmp_parts_open(struct cmp_parts *s);
void cmp_parts_close(struct cmp_parts *s);

// Appends `raw` as it is, or s->plane through zstd. raw may be &s->plane.
NEB_MUST_CHECK enum neb_status cmp_part_put(struct cmp_parts *s, const struct neb_buf *raw,
                                            struct neb_buf *out);
// Reads the next part into s->plane. *zstd: true if it came through zstd. raw, packed: the sizes
// that it may have without zstd and with it. NEB_ERR_FORMAT: it is cut short or has another size;
// `what` names it in the message.
struct cmp_part_sizes {
    size_t min, max;
};
NEB_MUST_CHECK enum neb_status cmp_part_get(struct cmp_parts *s, struct neb_rd *r, const char *what,
                                            struct cmp_part_sizes raw, struct cmp_part_sizes packed,
                                            bool *zstd);

#endif
