// SPDX-License-Identifier: Apache-2.0
// A run's metrics as TensorBoard event files: OUT/tensorboard/CLUSTER/events.out.tfevents.*, a TensorBoard run a cluster.
//
//     loss/train  loss/held_out (at the end)  optim/lr  optim/grad_norm  throughput/tokens_per_s  time/stall_s  time/train_s
//     wan/sent_bytes  wan/received_bytes  wan/goodput_bits_per_s  wan/round_trip_ms  round/number  round/payload_bytes
//
// The x axis is the cluster's inner step. A run that is resumed writes new files, and says at which step it goes on, so that TensorBoard
// drops what the former files have beyond. Pictures are no reason to end a job: when a file cannot be written, that is said once and
// no more is written.
#ifndef AGENT_TENSORBOARD_H
#define AGENT_TENSORBOARD_H
#include "agent/base/clock.h"
#include "agent/base/status.h"
#include "agent/job/config.h"

#include <jansson.h>

struct agent_tensorboard;
// The first n clusters of the job. Fails only where nothing can be written under `out`.
NEB_MUST_CHECK enum neb_status agent_tensorboard_create(const char *out,
                                                        const struct agent_job *job, int n,
                                                        bool resume, struct agent_tensorboard **tb);
// A metrics line of cluster i (agent/show/report.h), and its final report. tb NULL: nothing happens.
void agent_tensorboard_line(struct agent_tensorboard *tb, int i, const json_t *line, neb_ns wall);
void agent_tensorboard_report(struct agent_tensorboard *tb, int i, const json_t *report,
                              neb_ns wall);
void agent_tensorboard_destroy(struct agent_tensorboard **tb);

#endif
