// SPDX-License-Identifier: Apache-2.0
// Scaling of rotary positions (struct kern_rope_scaling, kernels/kern.h): its names in
// transformers, its text, and its bytes. Fields that a type does not use must be zero, so that two
// scalings with the same meaning have equal fields.
#ifndef INTRA_ROPE_H
#define INTRA_ROPE_H
#include "agent/base/bytes.h"
#include "kernels/kern.h"

enum { INTRA_ROPE_TEXT = 192, INTRA_ROPE_ORIGINAL_MAX = 1 << 30 };
#define INTRA_ROPE_FACTOR_MAX 1e6
extern const char *const intra_rope_types[]; // rope_type by enum kern_rope_type, NULL-terminated

// NULL: the scaling is valid. Otherwise the name that transformers gives the wrong value; why: the
// value, and what is needed.
const char *intra_rope_check(const struct kern_rope_scaling *s, char why[INTRA_ROPE_TEXT]);
bool intra_rope_same(const struct kern_rope_scaling *a, const struct kern_rope_scaling *b);
// Writes and returns out: "default", "linear, factor 2".
const char *intra_rope_text(const struct kern_rope_scaling *s, char out[INTRA_ROPE_TEXT]);

void intra_rope_put(struct neb_buf *b, const struct kern_rope_scaling *s);
// False: an unknown type, or default. The values are not checked.
bool intra_rope_get(struct neb_rd *r, struct kern_rope_scaling *out);

#endif
