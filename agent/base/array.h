// SPDX-License-Identifier: Apache-2.0
// Arrays that grow by one element at a time.
#ifndef AGENT_BASE_ARRAY_H
#define AGENT_BASE_ARRAY_H
#include <stddef.h>
#include <stdlib.h>

// Makes room for one more element in an array of n, of `bytes` each. A full array doubles; an empty
// one gets room for `first`. Returns the array. NULL: out of memory, the array is as before.
static inline void *neb_array_more(void *p, size_t n, size_t *cap, size_t first, size_t bytes) {
    if (n < *cap)
        return p;
    size_t room = *cap ? 2 * *cap : first;
    void *more = realloc(p, room * bytes);
    *cap = more ? room : *cap;
    return more;
}

#endif
