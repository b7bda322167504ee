// SPDX-License-Identifier: Apache-2.0
// A teacher's soft labels: the k most likely tokens at some positions of a pass, or all of them.
// Source: Hinton et al. 2015 (arXiv 1503.02531); the tail as one class more: kernels/kern.h, struct kern_soft.
#ifndef INTRA_DISTILL_H
#define INTRA_DISTILL_H
#include "intra/train/runner.h"

enum { INTRA_SOFT_K_MAX = KERN_SOFT_K_MAX };

struct intra_labeller; // scratch for one vocabulary; NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status intra_labeller_create(const struct intra_runner *r,
                                                     struct intra_labeller **out);
void intra_labeller_destroy(struct intra_labeller **l);
// Of the last pass, at rows (n, ascending): softmax of logits / temperature. ids, logp (n, k) most likely first, ties
// by id; tail (n) what is left. k 0: logp (n, V) of all, ids and tail are not touched; not with a device. One rank
// only. Fails with a device only.
NEB_MUST_CHECK enum neb_status intra_labels(struct intra_labeller *l, const struct intra_runner *r,
                                            const int32_t *rows, int32_t n, int32_t k,
                                            float temperature, int32_t *ids, float *logp,
                                            float *tail);

#endif
