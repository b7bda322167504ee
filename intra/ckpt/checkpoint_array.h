// SPDX-License-Identifier: Apache-2.0
// An array of floats in a checkpoint: one section NAME or, if ranks of a mesh wrote it, pieces
// NAME/0, NAME/1, … in order, in any of its files.
#ifndef INTRA_CHECKPOINT_ARRAY_H
#define INTRA_CHECKPOINT_ARRAY_H
#include "intra/ckpt/checkpoint.h"

struct intra_ckpt_array;
// c is borrowed. n: the number of elements that the array must have; 0: any. NEB_ERR_NOT_FOUND:
// there is no such array. NEB_ERR_FORMAT: another number of elements, or not floats.
NEB_MUST_CHECK enum neb_status intra_ckpt_array_open(const struct intra_ckpt *c, const char *name,
                                                     uint64_t n, struct intra_ckpt_array **out);
void intra_ckpt_array_close(struct intra_ckpt_array **a); // NULL-safe
uint64_t intra_ckpt_array_len(const struct intra_ckpt_array *a);
// Reads elements, or bytes, [at, at + n).
NEB_MUST_CHECK enum neb_status intra_ckpt_array_read(const struct intra_ckpt_array *a, uint64_t at,
                                                     float *dst, size_t n);
NEB_MUST_CHECK enum neb_status intra_ckpt_array_bytes(const struct intra_ckpt_array *a, uint64_t at,
                                                      void *dst, size_t n);

#endif
