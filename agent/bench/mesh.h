// SPDX-License-Identifier: Apache-2.0
// nebula bench train --mesh: what the parallel machinery costs where it has nothing to do.
//
// Two trainers with the same parameters take the same steps in turn, slice by slice: one as it is, one through the mesh machinery
// (a group of one rank over `self`: orders, spread batches, collectives, gathered norms). The median of the slices' ratios is
// what the machinery adds, in processor time of all threads: on a busy machine the clock counts mostly who was interrupted, and
// one rank over `self` waits for nobody. Their losses have to be equal bit for bit.
#ifndef AGENT_BENCH_MESH_H
#define AGENT_BENCH_MESH_H
#include "agent/bench/train.h"

struct bench_mesh_result {
    double overhead;  // median of ratios - 1
    double low, high; // quartiles of it
    double error;     // standard error of the median
    double wall;      // overhead by the clock
    double step_s;    // median of a bare step, processor time
};
// NEB_ERR_STATE: the two have come to different losses. slices of `steps` steps each.
NEB_MUST_CHECK enum neb_status bench_mesh_measure(int n_threads,
                                                  const struct bench_train_shape *shape, int slices,
                                                  struct bench_mesh_result *out);
// Prints one line: per cent of a step; limit: the 1 % that is allowed.
NEB_MUST_CHECK enum neb_status bench_mesh(int n_threads, bool json,
                                          const struct bench_train_shape *shape);

#endif
