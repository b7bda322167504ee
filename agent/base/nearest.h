// SPDX-License-Identifier: Apache-2.0
// "Did you mean": finds the known word that is closest to an unknown one.
#ifndef NEB_NEAREST_H
#define NEB_NEAREST_H
#include <stddef.h>

enum { NEB_EDITS_MAX = 64 };

// The edit distance of two short words (insert, delete, change, swap neighbours). NEB_EDITS_MAX if
// one of them has that many bytes or more.
int neb_edits(const char *a, const char *b);
// The word of known[0..n-1] closest to `word`; NULL entries are skipped. NULL: none is close. A
// word is also close to one that it begins or ends ("stat", "train").
const char *neb_nearest(const char *word, const char *const *known, size_t n);
// The same for a list such as "name, role, threads". Writes the answer to out and returns it; "":
// none is close.
const char *neb_nearest_of(const char *word, const char *list, char *out, size_t cap);

#endif
