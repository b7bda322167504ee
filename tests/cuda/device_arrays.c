// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_arrays.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 256, GUARD_BYTE = 0xa5 };

float round_to(enum kern_type t, float x) {
    uint32_t u;
    if (t == KERN_F32)
        return x;
    memcpy(&u, &x, 4);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

void to_device(struct run *r, struct array *a) {
    size_t item = kern_type_bytes(a->t), all = a->bytes + 2 * GUARD_BYTES;
    unsigned char *image = device_case_host(&r->k, all);
    memset(image, GUARD_BYTE, all);
    for (size_t i = 0; i < a->n; i++) {
        uint32_t u;
        memcpy(&u, &a->host[i], 4);
        u = item == 2 ? u >> 16 : u;
        memcpy(image + GUARD_BYTES + (a->shift + i) * item, &u, item);
    }
    r->D->ops->upload(r->D, a->room, image, all);
    device_case_wait(&r->k);
}

struct array *array(struct run *r, enum kern_type t, size_t n, bool out) {
    if (r->n == ARRAYS)
        abort();
    struct array *a = &r->a[r->n++];
    *a = (struct array){.t = t, .n = n, .out = out, .shift = (size_t)r->shift};
    a->bytes = (n + a->shift) * kern_type_bytes(t);
    a->host = device_case_host(&r->k, n * sizeof *a->host);
    a->room = device_case_room(&r->k, a->bytes + 2 * GUARD_BYTES);
    return a;
}
void *dev(const struct array *a) {
    return a ? a->room + GUARD_BYTES + a->shift * kern_type_bytes(a->t) : NULL;
}

struct array *input(struct run *r, enum kern_type t, size_t n, float size) {
    struct array *a = array(r, t, n, false);
    neb_rng_normals(&r->rng, a->host, n);
    for (size_t i = 0; i < n; i++)
        a->host[i] = round_to(t, size * a->host[i]);
    to_device(r, a);
    return a;
}
struct array *written(struct run *r, enum kern_type t, size_t n) {
    struct array *a = array(r, t, n, true);
    for (size_t i = 0; i < n; i++)
        a->host[i] = NAN;
    to_device(r, a);
    return a;
}
struct array *added(struct run *r, enum kern_type t, size_t n) {
    struct array *a = array(r, t, n, true);
    neb_rng_normals(&r->rng, a->host, n);
    for (size_t i = 0; i < n; i++)
        a->host[i] = round_to(t, a->host[i]);
    to_device(r, a);
    return a;
}
struct array *ints(struct run *r, const int32_t *x, size_t n) {
    int shift = r->shift;
    r->shift = 0;
    struct array *a = array(r, KERN_F32, n, false);
    r->shift = shift;
    memcpy(a->host, x, n * 4);
    to_device(r, a);
    return a;
}
struct array *number(struct run *r, float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return ints(r, &bits, 1);
}
int32_t *ids(struct run *r, int n, int V) {
    int32_t *x = device_case_host(&r->k, (size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = (int32_t)neb_rng_below(&r->rng, (uint64_t)V);
    return x;
}

void verdict(struct run *r, float got, float want) {
    struct array *a = array(r, KERN_F32, 1, true);
    a->host[0] = got;
    to_device(r, a);
    a->host[0] = want;
}

void collect(struct run *r) {
    r->whole = true;
    for (int i = 0; i < r->n; i++) {
        struct array *a = &r->a[i];
        size_t item = kern_type_bytes(a->t), all = a->bytes + 2 * GUARD_BYTES;
        unsigned char *image = device_case_host(&r->k, all);
        r->D->ops->download(r->D, image, a->room, all);
        device_case_wait(&r->k);
        for (size_t k = 0; k < GUARD_BYTES + a->shift * item; k++)
            r->whole = r->whole && image[k] == GUARD_BYTE;
        for (size_t k = GUARD_BYTES + a->bytes; k < all; k++)
            r->whole = r->whole && image[k] == GUARD_BYTE;
        a->got = device_case_host(&r->k, a->n * sizeof *a->got);
        for (size_t k = 0; k < a->n; k++) {
            uint32_t u = 0;
            memcpy(&u, image + GUARD_BYTES + (a->shift + k) * item, item);
            u = item == 2 ? u << 16 : u;
            memcpy(&a->got[k], &u, 4);
        }
    }
}
