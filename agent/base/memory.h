// SPDX-License-Identifier: Apache-2.0
// Memory for large arrays of numbers.
#ifndef AGENT_BASE_MEMORY_H
#define AGENT_BASE_MEMORY_H
#include <stddef.h>

// Returns uninitialised memory at a multiple of 64; NULL if out of memory. The caller frees it with
// free(). Arrays of some MiB ask for huge pages (transparent_hugepage=madvise, Debian's default):
// otherwise address translation slows down training.
void *neb_large_alloc(size_t bytes);

// The same memory, zeroed. Touches every page, so that a shortage shows now and not in the first
// step.
void *neb_large_zeroed(size_t bytes);

#endif
