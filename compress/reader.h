// SPDX-License-Identifier: Apache-2.0
// A frame opened to be read in strips: its streams are unpacked and everything that can be wrong with it is found when it is
// opened, so that reading cannot fail and costs no pass over memory of its own. What a member needs to apply a commit: all
// updates are opened first, then θ, v and the residual are settled strip by strip, each in the cache once.
//
// Memory: the streams (half a byte an element for int4, 4 for fp32), for topk 8 bytes an entry. Grows and stays.
#ifndef CMP_READER_H
#define CMP_READER_H
#include "compress/codec.h"

struct cmp_reader; // one thread; NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status cmp_reader_create(struct cmp_reader **out);
void cmp_reader_destroy(struct cmp_reader **r); // NULL-safe
// A frame of exactly n elements; the bytes are not needed afterwards. NEB_ERR_FORMAT as cmp_decode. w: scratch of this call.
NEB_MUST_CHECK enum neb_status cmp_reader_open(struct cmp_reader *r, struct cmp_work *w,
                                               const uint8_t *frame, size_t len, size_t n);
// Elements [at, at + n) of an opened frame: cmp_decode's bits.
void cmp_reader_read(const struct cmp_reader *r, size_t at, float *out, size_t n);

#endif
