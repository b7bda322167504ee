// SPDX-License-Identifier: Apache-2.0
// `nebula bench train --mesh`: the cost of the mesh machinery for a mesh of one rank, where it has
// nothing to do.
//
// Two trainers with the same parameters take the same steps in turn: one without a mesh, one in a
// group of one rank over `self` (orders, spread batches, collectives, gathered norms). Their losses
// must be equal bit for bit. The result is the median ratio of their steps in processor time of all
// threads: on a busy machine the clock mostly shows which side was interrupted, and one rank over
// `self` never waits.
#ifndef AGENT_BENCH_MESH_H
#define AGENT_BENCH_MESH_H
#include "agent/bench/train.h"

struct bench_mesh_result {
    double overhead;  // median of the ratios - 1
    double low, high; // its quartiles
    double error;     // standard error of the median
    double wall;      // overhead by the clock
    double step_s;    // median of a bare step, processor time
};
// slices: pairs of steps, above 0. NEB_ERR_STATE: the losses differ.
NEB_MUST_CHECK enum neb_status bench_mesh_measure(int n_threads,
                                                  const struct bench_train_shape *shape, int slices,
                                                  struct bench_mesh_result *out);
// Prints one line: the overhead in per cent of a step. limit: the 1 % that is allowed.
NEB_MUST_CHECK enum neb_status bench_mesh(int n_threads, bool json,
                                          const struct bench_train_shape *shape);

#endif
