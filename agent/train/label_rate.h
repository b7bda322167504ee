// SPDX-License-Identifier: Apache-2.0
// Decides for each batch how many soft labels the teacher sends per position (k): as many as the
// link to the student carries. Pure.
//
//     batches wait on the link, and     k falls to what the measured goodput carries
//     the student has few                 (compress/softlabel.h)
//     nothing waits for long            k doubles: at once if the goodput is known to carry it,
//                                         else as a trial
//
// After a change k stays for one window of batches, because those in flight were made before it. A
// trial that fails doubles the wait for the next one. Each frame contains its k, and the spool
// keeps a batch under its number. So a student learns from the same labels again after it, or its
// teacher, was killed.
#ifndef AGENT_LABEL_RATE_H
#define AGENT_LABEL_RATE_H
#include "inter/stream/path.h"

#include <stddef.h>

struct agent_label_rate {
    int32_t k, k_min, k_max;
    uint32_t window;                      // batches
    double bytes_per_row, rows_per_batch; // at k; 0: unknown
    double batches_per_s;                 // the pace of the student
    uint64_t counted;                     // batches that it had taken at counted_at
    neb_ns counted_at;
    uint64_t hold_until, clear_from; // batches: no change before; nothing has waited since
    uint64_t trial_at, trial_after;  // the last rise (0: none); batches to wait for a trial
};

struct agent_label_view { // what the producer's end of the stream knows (worker_stream.h)
    uint64_t next, have, applied;
    struct inter_stream_measure path;
};

void agent_label_rate_init(struct agent_label_rate *r, int32_t k, int32_t k_min, int32_t k_max,
                           uint32_t window);
// Call it when batch v->next is due: sets k for it. True: k changed, and reason (cap bytes) says
// why.
bool agent_label_rate_next(struct agent_label_rate *r, neb_ns now, const struct agent_label_view *v,
                           char *reason, size_t cap);
// Call it when a batch was made: its rows took this many bytes at the current k.
void agent_label_rate_made(struct agent_label_rate *r, uint64_t rows, uint64_t bytes);

#endif
