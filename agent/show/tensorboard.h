// SPDX-License-Identifier: Apache-2.0
// Writes a run's metrics as TensorBoard event files: OUT/tensorboard/CLUSTER/events.out.tfevents.*,
// one TensorBoard run for each cluster.
//
//     loss/train  loss/held_out  optim/lr  optim/grad_norm
//     throughput/tokens_per_s  time/stall_s  time/train_s
//     wan/sent_bytes  wan/received_bytes  wan/goodput_bits_per_s  wan/round_trip_ms
//     round/number  round/payload_bytes
//
// The x axis is the cluster's inner step. A resumed run writes new files and marks its first step,
// so that TensorBoard drops later steps of the previous files. A file that cannot be written never
// ends a job: it causes one warning, and then no more events.
#ifndef AGENT_TENSORBOARD_H
#define AGENT_TENSORBOARD_H
#include "agent/base/clock.h"
#include "agent/base/status.h"
#include "agent/job/config.h"

#include <jansson.h>

struct agent_tensorboard;
// For the first n clusters of the job. Fails only if nothing can be written under `out`.
NEB_MUST_CHECK enum neb_status agent_tensorboard_create(const char *out,
                                                        const struct agent_job *job, int n,
                                                        bool resume, struct agent_tensorboard **tb);
// Takes a metrics line of cluster i (report.h), or its final report. tb NULL: does nothing.
void agent_tensorboard_line(struct agent_tensorboard *tb, int i, const json_t *line, neb_ns wall);
void agent_tensorboard_report(struct agent_tensorboard *tb, int i, const json_t *report,
                              neb_ns wall);
void agent_tensorboard_destroy(struct agent_tensorboard **tb);

#endif
