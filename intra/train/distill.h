// SPDX-License-Identifier: Apache-2.0
// Soft labels of a teacher: the k most likely tokens at some positions of a pass, or the
// log-probabilities of all tokens. Source: Hinton et al. 2015 (arXiv 1503.02531). The tail counts
// as one more class: struct kern_soft in kernels/kern.h.
#ifndef INTRA_DISTILL_H
#define INTRA_DISTILL_H
#include "intra/train/runner.h"

enum { INTRA_SOFT_K_MAX = KERN_SOFT_K_MAX };

struct intra_labeller; // scratch for one vocabulary; create: NEB_ERR_NOMEM
NEB_MUST_CHECK enum neb_status intra_labeller_create(const struct intra_runner *r,
                                                     struct intra_labeller **out);
void intra_labeller_destroy(struct intra_labeller **l);
// Labels of the last pass, at rows (n, ascending): softmax of logits / temperature. ids, logp (n,
// k): most likely first, ties by id. tail (n): the probability of all other tokens. k 0, CPU only:
// logp (n, V) of all tokens; ids and tail are not touched. One rank only. Errors: those of the
// device; on the CPU it cannot fail.
NEB_MUST_CHECK enum neb_status intra_labels(struct intra_labeller *l, const struct intra_runner *r,
                                            const int32_t *rows, int32_t n, int32_t k,
                                            float temperature, int32_t *ids, float *logp,
                                            float *tail);

#endif
