// SPDX-License-Identifier: Apache-2.0
// Memory for large arrays of numbers.
#ifndef AGENT_BASE_MEMORY_H
#define AGENT_BASE_MEMORY_H
#include <stddef.h>

// bytes at a multiple of 64, whatever they hold; NULL: out of memory. The caller frees them with free().
//
// Arrays of some MiB get huge pages where the kernel gives them to those who ask (transparent_hugepage: madvise, as in Debian): products
// and streams over them lose several per cent of a training step to address translation otherwise (kernels/README.md).
void *neb_large_alloc(size_t bytes);

// The same, all zero and touched: a page that is missing is missing now, not in the first step.
void *neb_large_zeroed(size_t bytes);

#endif
