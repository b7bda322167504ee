// SPDX-License-Identifier: Apache-2.0
#include "agent/base/memory.h"
#include "agent/base/count.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    LINE = 64,
    HUGE_PAGE = 1 << 21,
    LEAST = 2 * HUGE_PAGE, // rounding adds at most a third
};

void *neb_large_alloc(size_t bytes) {
    size_t align = bytes < LEAST ? LINE : HUGE_PAGE;
    if (bytes > SIZE_MAX - align)
        return NULL;
    size_t room = (bytes / align + (bytes % align || !bytes)) * align;
    void *p = aligned_alloc(align, room);
    if (p && align == HUGE_PAGE && !neb_counting())
        madvise(p, room, MADV_HUGEPAGE); // only a hint; failure is harmless
    return p;
}

void *neb_large_zeroed(size_t bytes) {
    void *p = neb_large_alloc(bytes);
    return p && !neb_counting() ? memset(p, 0, bytes) : p;
}
