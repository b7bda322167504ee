// SPDX-License-Identifier: Apache-2.0
// How many soft labels a position (k) the teacher sends, batch by batch: as many as the link to the student carries. Pure.
//
//     batches wait on the link, and the student has few    k falls, to what the measured goodput carries (compress/softlabel.h)
//     nothing waits for long                               k rises one step where the goodput is known to carry it, else as a trial
//
// After a change k stays for a window of batches: those that travel were made before it. A trial that had to be taken back makes
// the next one wait twice as long. k is in each frame, and a batch that was put stands in the spool under its number, so a student
// that is killed, or whose teacher is, learns from the same labels again.
#ifndef AGENT_LABEL_RATE_H
#define AGENT_LABEL_RATE_H
#include "inter/stream/path.h"

#include <stddef.h>

struct agent_label_rate {
    int32_t k, k_min, k_max;
    uint32_t window;                      // batches
    double bytes_per_row, rows_per_batch; // at k; 0: not known yet
    double batches_per_s;                 // as the student takes them
    uint64_t counted;                     // batches it had taken at
    neb_ns counted_at;
    uint64_t hold_until, clear_from; // batches: no change before; nothing has waited since
    uint64_t trial_at, trial_after;  // the last rise (0: none), and how long is waited for a trial
};

struct
    agent_label_view { // what the producer's end of the stream says (agent/train/worker_stream.h)
    uint64_t next, have, applied;
    struct inter_stream_measure path;
};

void agent_label_rate_init(struct agent_label_rate *r, int32_t k, int32_t k_min, int32_t k_max,
                           uint32_t window);
// Batch v->next is due: sets k for it. True: it changed, and reason (cap bytes) says why.
bool agent_label_rate_next(struct agent_label_rate *r, neb_ns now, const struct agent_label_view *v,
                           char *reason, size_t cap);
// A batch was made: its rows took so many bytes at the present k.
void agent_label_rate_made(struct agent_label_rate *r, uint64_t rows, uint64_t bytes);

#endif
