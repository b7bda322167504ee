// SPDX-License-Identifier: Apache-2.0
#include "agent/base/count.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// Smaller blocks are real memory and do not count: their sizes depend on the state of the heap.
enum { LEAST = 4096, ALIGN = 64 };
static const size_t ROOM = (size_t)1 << 44;

struct block { // in front of each large block
    size_t bytes;
};

// Address space of large blocks; NULL: nobody counts. Atomic: other threads free their memory.
static _Atomic(char *) room;
static size_t used; // bytes of it that were given out
static int blocks;  // that are not freed
static _Thread_local bool counts;
static _Thread_local size_t now, peak;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void __real_free(void *p);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void __wrap_free(void *p);

enum neb_status neb_count_begin(void) {
    NEB_ASSERT(!room);
    void *p = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return neb_fail_errno("no address space to count memory (ulimit -v, vm.overcommit_memory)");
    room = p;
    used = now = peak = 0;
    counts = true;
    return NEB_OK;
}

bool neb_counting(void) { return counts; }

size_t neb_count_end(void) {
    NEB_ASSERT(counts && !blocks);
    (void)munmap(room, ROOM);
    room = NULL;
    counts = false;
    return peak;
}

static bool is_counted(const void *p) {
    const char *from = room;
    return from && (const char *)p >= from && (const char *)p < from + ROOM;
}

static size_t *size_of(void *p) { return &((struct block *)p - 1)->bytes; }

static void *take(size_t align, size_t bytes) {
    size_t at = (used + sizeof(struct block) + align - 1) / align * align;
    if (bytes > ROOM || at > ROOM - bytes)
        return NULL;
    void *p = room + at;
    used = at + bytes;
    blocks++;
    *size_of(p) = bytes;
    now += bytes;
    peak = now > peak ? now : peak;
    return p;
}

void *__wrap_malloc(size_t bytes) {
    return counts && bytes >= LEAST ? take(ALIGN, bytes) : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes) {
    if (!counts || (bytes && n > SIZE_MAX / bytes) || n * bytes < LEAST)
        return __real_calloc(n, bytes);
    return take(ALIGN, n * bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes) {
    return counts && bytes >= LEAST ? take(align > ALIGN ? align : ALIGN, bytes)
                                    : __real_aligned_alloc(align, bytes);
}

void __wrap_free(void *p) {
    if (!is_counted(p)) {
        __real_free(p);
        return;
    }
    now -= *size_of(p);
    blocks--;
}

void *__wrap_realloc(void *p, size_t bytes) {
    if (!is_counted(p) && (p || !counts || bytes < LEAST))
        return __real_realloc(p, bytes);
    void *to = __wrap_malloc(bytes);
    size_t was = p ? *size_of(p) : 0;
    if (!to)
        return NULL;
    if (p)
        memcpy(to, p, was < bytes ? was : bytes);
    __wrap_free(p);
    return to;
}
