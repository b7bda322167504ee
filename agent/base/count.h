// SPDX-License-Identifier: Apache-2.0
// Counts the memory that code would allocate, without using it. Between begin and end, large blocks
// of this thread get address space only: a page costs memory when it is written. So `nebula plan`
// runs the real constructors of a model that no machine at hand could hold.
//
// The linker sends malloc, calloc, realloc, aligned_alloc and free of the whole program through
// count.c (agent/base/room.cmake), so no allocation is left out but those inside libraries.
//
// A constructor that fills what it allocates asks neb_counting() and leaves that out.
#ifndef AGENT_BASE_COUNT_H
#define AGENT_BASE_COUNT_H
#include "agent/base/status.h"

#include <stdbool.h>
#include <stddef.h>

// One thread of the process may count at a time. NEB_ERR_NOMEM: no address space.
NEB_MUST_CHECK enum neb_status neb_count_begin(void);
bool neb_counting(void); // this thread counts
// Returns the most bytes that this thread had in use since begin. All large blocks of the count
// must be freed before.
size_t neb_count_end(void);

#endif
