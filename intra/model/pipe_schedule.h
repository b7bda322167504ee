// SPDX-License-Identifier: Apache-2.0
// The order in which a pipeline stage runs its micro-batches: 1F1B (one forward, one backward;
// Narayanan et al., SC 2021, non-interleaved). Pure data: no buffers, no communication.
//
// 4 stages, 6 micro-batches. Time goes right, digits are forward passes, [n] is a backward pass:
//
//     stage 0   0 1 2 3 . . . [0] 4 [1] 5 [2] . [3] . [4] . [5]
//     stage 1     0 1 2 . . [0] 3 [1] 4 [2] 5 [3] . [4] . [5]
//     stage 2       0 1 . [0] 2 [1] 3 [2] 4 [3] 5 [4] . [5]
//     stage 3         0 [0] 1 [1] 2 [2] 3 [3] 4 [4] 5 [5]
//
// A stage holds the activations of at most stages - stage micro-batches, for any number of them.
#ifndef INTRA_PIPE_SCHEDULE_H
#define INTRA_PIPE_SCHEDULE_H
#include <stdbool.h>
#include <stdint.h>

struct intra_pipe_op {
    bool backward;
    int32_t micro; // 0..micros-1
};
// out: the 2 * micros operations of a stage, in order. stages >= 1, 0 <= stage < stages, micros >=
// 1.
void intra_pipe_schedule(int stage, int stages, int32_t micros, struct intra_pipe_op *out);
// The most micro-batches between their forward and their backward. Micro-batch m may use slot m %
// this.
int32_t intra_pipe_in_flight(int stage, int stages, int32_t micros);

#endif
