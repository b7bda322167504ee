// SPDX-License-Identifier: Apache-2.0
// A frame that is opened to be read in strips. Opening it unpacks its streams and finds every
// fault, so reading cannot fail and makes no separate pass over memory. A member applies a commit
// with it: it opens all updates first, then settles θ, v and the residual strip by strip, each once
// while it is in the cache.
//
// Memory: the streams (half a byte per element for int4, 4 for fp32), or 8 bytes per entry for
// topk. It grows and stays.
#ifndef CMP_READER_H
#define CMP_READER_H
#include "compress/codec.h"

struct cmp_reader; // for one thread; NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status cmp_reader_create(struct cmp_reader **out);
void cmp_reader_destroy(struct cmp_reader **r); // *r may be NULL
// Opens a frame of exactly n elements. The bytes are not needed afterwards. w: scratch for this
// call. NEB_ERR_FORMAT as in cmp_decode.
NEB_MUST_CHECK enum neb_status cmp_reader_open(struct cmp_reader *r, struct cmp_work *w,
                                               const uint8_t *frame, size_t len, size_t n);
// Reads elements [at, at + n) of the open frame, with the bits of cmp_decode.
void cmp_reader_read(const struct cmp_reader *r, size_t at, float *out, size_t n);

#endif
