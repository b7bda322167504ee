// SPDX-License-Identifier: Apache-2.0
// How a model's rotary positions are scaled (struct kern_rope_scaling, kernels/kern.h): by transformers' names, in words, and in
// bytes. What is of another type is zero, so that two of the same meaning are the same.
#ifndef INTRA_ROPE_H
#define INTRA_ROPE_H
#include "agent/base/bytes.h"
#include "kernels/kern.h"

enum { INTRA_ROPE_TEXT = 192, INTRA_ROPE_ORIGINAL_MAX = 1 << 30 };
#define INTRA_ROPE_FACTOR_MAX 1e6
extern const char *const intra_rope_types[]; // rope_type by enum kern_rope_type, NULL-terminated

// NULL: it can be computed. Else which of transformers' keys is wrong, and in why[] its value and what is needed.
const char *intra_rope_check(const struct kern_rope_scaling *s, char why[INTRA_ROPE_TEXT]);
bool intra_rope_same(const struct kern_rope_scaling *a, const struct kern_rope_scaling *b);
// "default", "linear, factor 2"; out.
const char *intra_rope_text(const struct kern_rope_scaling *s, char out[INTRA_ROPE_TEXT]);

void intra_rope_put(struct neb_buf *b, const struct kern_rope_scaling *s);
// False: a type that is not known here, or none. The values are not checked.
bool intra_rope_get(struct neb_rd *r, struct kern_rope_scaling *out);

#endif
