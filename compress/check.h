// SPDX-License-Identifier: Apache-2.0
// The numeric check of an update, fed with its bytes as they arrive. It is what an agent knows
// before a commit, without the parameters.
//
//    | head | unit | row counts | frame length | frame head | stream head | stream | … | unit | …
//    feed ────────────────────────────────────────────────────────────────►│
//    All before this point is counted, and of the current stream all that zstd has unpacked.
//
// Verdict and statistics do not depend on how the bytes are cut, to the bit: sums run over elements
// in order, and nothing is added twice. Codes never become floats: a block's sum of squares is an
// exact integer, times the square of the block's scale. The bits are the same on every processor
// (doubles, fixed order, kernels/exact.h).
//
// What is checked, and when:
//    unit head       rows, columns, and the sum of all elements against elements_max,
//                    before a byte of the unit is unpacked
//    frame head      codec and parameters are in range; elements = rows x columns
//    stream head     raw size against what codec and elements need, before memory for it is taken
//    stream          zstd gives exactly that many bytes; each code is in range,
//                    each number is finite, each index lies in its chunk
//    cmp_check_end   nothing is missing, nothing follows
//
// The check does not know who sent the bytes. The caller feeds bytes that came over an
// authenticated link for a signed manifest. It uses the verdict only if the manifest's digest is
// the digest of the bytes that it fed (inter/service/arrive.c).
#ifndef CMP_CHECK_H
#define CMP_CHECK_H
#include "compress/sketch.h"
#include "compress/update.h"

struct cmp_check; // for one thread; grows to the largest unit and stays
// NEB_ERR_NOMEM; NEB_ERR_UNSUPPORTED: libzstd is older than 1.5.
NEB_MUST_CHECK enum neb_status cmp_check_create(struct cmp_check **out);
void cmp_check_destroy(struct cmp_check **c);
// Starts an update. elements_max: limit for all units together.
void cmp_check_begin(struct cmp_check *c, uint64_t elements_max);
// Asks for a sketch of the update that has just begun (stats.sketch, compress/sketch.h). It is
// valid until the next begin.
void cmp_check_sketch(struct cmp_check *c);
// NEB_ERR_FORMAT: not a valid update. It is logged once, and every further call returns it.
// NEB_ERR_NOMEM likewise.
NEB_MUST_CHECK enum neb_status cmp_check_feed(struct cmp_check *c, const uint8_t *p, size_t n);
// NEB_ERR_FORMAT: something was wrong, or is missing. *out is set in any case, for the bytes that
// were fed.
NEB_MUST_CHECK enum neb_status cmp_check_end(struct cmp_check *c, struct cmp_update_stats *out);
// True if the bytes begin as an update does. 4 bytes are enough.
bool cmp_check_is_update(const uint8_t *p, size_t n);

#endif
