// SPDX-License-Identifier: Apache-2.0
#include "intra/ckpt/checkpoint_array.h"
#include "agent/base/array.h"
#include "agent/base/log.h"

#include <stdio.h>
#include <stdlib.h>

struct piece {
    const struct intra_ckpt_section *section;
    uint64_t at; // bytes before it
};

struct intra_ckpt_array {
    const struct intra_ckpt *ckpt; // borrowed
    struct piece *pieces;          // (n)
    size_t n, cap;
    uint64_t bytes;
};

static enum neb_status append(struct intra_ckpt_array *a, const struct intra_ckpt_section *s) {
    if (s->dtype != INTRA_F32)
        return neb_fail(NEB_ERR_FORMAT, "%s: %s does not hold floats", intra_ckpt_path(a->ckpt),
                        s->name);
    struct piece *p = neb_array_more(a->pieces, a->n, &a->cap, 64, sizeof *p);
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the pieces of an array");
    a->pieces = p;
    a->pieces[a->n++] = (struct piece){s, a->bytes};
    a->bytes += s->bytes;
    return NEB_OK;
}

static enum neb_status find_sections(struct intra_ckpt_array *a, const char *name) {
    const struct intra_ckpt_section *s = intra_ckpt_find(a->ckpt, name);
    char text[INTRA_CKPT_NAME_MAX + 1];
    if (s)
        return append(a, s);
    for (uint32_t i = 0;; i++) { // over all files
        snprintf(text, sizeof text, "%s/%u", name, i);
        if (!(s = intra_ckpt_find(a->ckpt, text)))
            break;
        NEB_TRY(append(a, s));
    }
    return a->n ? NEB_OK
                : neb_fail(NEB_ERR_NOT_FOUND, "%s has no section %s", intra_ckpt_path(a->ckpt),
                           name);
}

enum neb_status intra_ckpt_array_open(const struct intra_ckpt *c, const char *name, uint64_t n,
                                      struct intra_ckpt_array **out) {
    struct intra_ckpt_array *a = calloc(1, sizeof *a);
    if (!a)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for an array of a checkpoint");
    a->ckpt = c;
    enum neb_status st = find_sections(a, name);
    if (st == NEB_OK && n && a->bytes != n * sizeof(float))
        st = neb_fail(NEB_ERR_FORMAT, "%s: %s has %llu elements; it must have %llu",
                      intra_ckpt_path(c), name, (unsigned long long)(a->bytes / sizeof(float)),
                      (unsigned long long)n);
    if (st == NEB_OK)
        *out = a;
    else
        intra_ckpt_array_close(&a);
    return st;
}

void intra_ckpt_array_close(struct intra_ckpt_array **ap) {
    if (*ap)
        free((*ap)->pieces);
    free(*ap);
    *ap = NULL;
}

uint64_t intra_ckpt_array_len(const struct intra_ckpt_array *a) { return a->bytes / sizeof(float); }

// The last piece that begins at or before this byte.
static size_t piece_of(const struct intra_ckpt_array *a, uint64_t at) {
    size_t low = 0, high = a->n;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (a->pieces[mid].at <= at)
            low = mid;
        else
            high = mid;
    }
    return low;
}

enum neb_status intra_ckpt_array_bytes(const struct intra_ckpt_array *a, uint64_t at, void *dst,
                                       size_t n) {
    uint8_t *to = dst;
    NEB_ASSERT(at <= a->bytes && n <= a->bytes - at);
    for (size_t i = n ? piece_of(a, at) : a->n; i < a->n && n > 0; i++) {
        const struct piece *p = &a->pieces[i];
        uint64_t from = at - p->at, left = p->section->bytes - from;
        size_t take = left < n ? (size_t)left : n;
        NEB_TRY(intra_ckpt_range(a->ckpt, p->section, from, to, take));
        to += take;
        at += take;
        n -= take;
    }
    return NEB_OK;
}

enum neb_status intra_ckpt_array_read(const struct intra_ckpt_array *a, uint64_t at, float *dst,
                                      size_t n) {
    return intra_ckpt_array_bytes(a, at * sizeof *dst, dst, n * sizeof *dst);
}
