// SPDX-License-Identifier: Apache-2.0
// The 1F1B order, drawn in the header.
#include "intra/model/pipe_schedule.h"
#include "agent/base/status.h"

int32_t intra_pipe_in_flight(int stage, int stages, int32_t micros) {
    int32_t depth = stages - stage;
    return depth < micros ? depth : micros;
}

void intra_pipe_schedule(int stage, int stages, int32_t micros, struct intra_pipe_op *out) {
    NEB_ASSERT(stages >= 1 && stage >= 0 && stage < stages && micros >= 1);
    int32_t ahead = intra_pipe_in_flight(stage, stages, micros) - 1, f = 0, b = 0;
    while (f < ahead) // until the first backward can arrive
        *out++ = (struct intra_pipe_op){false, f++};
    while (b < micros) {
        if (f < micros)
            *out++ = (struct intra_pipe_op){false, f++};
        *out++ = (struct intra_pipe_op){true, b++};
    }
}
