// SPDX-License-Identifier: Apache-2.0
// The numeric check of an update, fed byte by byte as it arrives: what an agent knows before a commit, without parameters.
//
//     update = | head | unit | row counts | frame length | frame head | stream head | stream | stream head | stream | unit | …
//     feed ─────────────────────────────►│ here: all before is counted, and of the stream all that zstd gave so far
//
// Wherever the bytes are cut, verdict and statistics are those of one call with all of them, to the bit: sums run over
// elements in their order and nothing is added twice. Codes are never made floats: an integer sum of squares a block, exact, times
// the square of its scale. On every processor the same (doubles, fixed order, kernels/exact.h).
//
// What is checked when:
//     a unit's head     rows, columns and the sum of all elements against elements_max, before a byte of it is unpacked
//     a frame's head    codec and parameters in range, elements = rows x columns
//     a stream's head   raw size against what codec and elements need, before memory for it is taken
//     its bytes         zstd into exactly that much; each code in range, each number finite, each index in its chunk
//     cmp_check_end     nothing missing, nothing behind
//
// It says nothing of who sent the bytes: the caller feeds what came over an authenticated link for a signed manifest, and uses the
// verdict only once the digest in that manifest is that of the bytes it fed (inter/service/arrive.c).
#ifndef CMP_CHECK_H
#define CMP_CHECK_H
#include "compress/sketch.h"
#include "compress/update.h"

struct cmp_check; // one thread; grows to the largest unit seen and stays. NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status cmp_check_create(struct cmp_check **out);
void cmp_check_destroy(struct cmp_check **c);
// Starts an update. elements_max: of all units together.
void cmp_check_begin(struct cmp_check *c, uint64_t elements_max);
// Wanted besides, of the update that has just begun: its sketch (stats.sketch, compress/sketch.h), valid until the next begin.
void cmp_check_sketch(struct cmp_check *c);
// NEB_ERR_FORMAT: no valid update, logged once; every further call says it again. NEB_ERR_NOMEM likewise.
NEB_MUST_CHECK enum neb_status cmp_check_feed(struct cmp_check *c, const uint8_t *p, size_t n);
// NEB_ERR_FORMAT when anything was wrong or is missing. *out is set in every case: of what was fed.
NEB_MUST_CHECK enum neb_status cmp_check_end(struct cmp_check *c, struct cmp_update_stats *out);
// Whether bytes (4 are enough) begin as an update does.
bool cmp_check_is_update(const uint8_t *p, size_t n);

#endif
