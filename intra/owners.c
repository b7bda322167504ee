#include "intra/owners.h"

#include <string.h>

enum { NOBODY = -1 };

// The largest unit of the lowest fragment that has one left; of equals the first.
static int32_t next(const uint64_t *elements, const int32_t *fragment, int32_t n,
                    const int32_t *owner) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (owner[i] == NOBODY && (best < 0 || fragment[i] < fragment[best] ||
                                   (fragment[i] == fragment[best] && elements[i] > elements[best])))
            best = i;
    return best;
}

void intra_owners_deal(const uint64_t *elements, const int32_t *fragment, int32_t n, int ranks,
                       uint64_t *load, int32_t *owner) {
    memset(load, 0, (size_t)ranks * sizeof *load);
    for (int32_t i = 0; i < n; i++)
        owner[i] = NOBODY;
    for (int32_t i; (i = next(elements, fragment, n, owner)) >= 0;) {
        int lightest = 0;
        for (int r = 1; r < ranks; r++)
            lightest = load[r] < load[lightest] ? r : lightest;
        owner[i] = lightest;
        load[lightest] += elements[i];
    }
}
