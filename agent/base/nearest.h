// SPDX-License-Identifier: Apache-2.0
// "Did you mean": which of the words that are known is closest to one that is not.
#ifndef NEB_NEAREST_H
#define NEB_NEAREST_H
#include <stddef.h>

enum { NEB_EDITS_MAX = 64 };

// Edits (insert, delete, change, swap neighbours) between two short words; NEB_EDITS_MAX: one of them is as long as that.
int neb_edits(const char *a, const char *b);
// At most so many edits make one word of this length a misspelling of another.
int neb_edits_near(const char *word);
// What a word is not: known[0..n-1], NULL where one is to be left out. NULL: none of them is near. A word that another one begins or ends with
// is near it ("stat", "train").
const char *neb_nearest(const char *word, const char *const *known, size_t n);
// The same of a list such as "name, role, threads"; the answer is in out. "": none is near.
const char *neb_nearest_of(const char *word, const char *list, char *out, size_t cap);

#endif
