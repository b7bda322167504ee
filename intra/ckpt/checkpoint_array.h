// SPDX-License-Identifier: Apache-2.0
// An array of floats in a checkpoint, in one section NAME or, where ranks of a mesh wrote it, in pieces NAME/0, NAME/1, … one after the other,
// in whichever of its files.
#ifndef INTRA_CHECKPOINT_ARRAY_H
#define INTRA_CHECKPOINT_ARRAY_H
#include "intra/ckpt/checkpoint.h"

struct intra_ckpt_array;
// c is borrowed. n: elements that it must have; 0: as many as there are. NEB_ERR_NOT_FOUND: there is none; NEB_ERR_FORMAT: not as many, or
// no floats.
NEB_MUST_CHECK enum neb_status intra_ckpt_array_open(const struct intra_ckpt *c, const char *name,
                                                     uint64_t n, struct intra_ckpt_array **out);
void intra_ckpt_array_close(struct intra_ckpt_array **a); // NULL-safe
uint64_t intra_ckpt_array_len(const struct intra_ckpt_array *a);
// Elements [at, at + n), or bytes.
NEB_MUST_CHECK enum neb_status intra_ckpt_array_read(const struct intra_ckpt_array *a, uint64_t at,
                                                     float *dst, size_t n);
NEB_MUST_CHECK enum neb_status intra_ckpt_array_bytes(const struct intra_ckpt_array *a, uint64_t at,
                                                      void *dst, size_t n);

#endif
