// SPDX-License-Identifier: Apache-2.0
// Pictures of a run: gnuplot draws DIR/plots/*.svg from DIR/metrics.jsonl.
#ifndef AGENT_PLOTS_H
#define AGENT_PLOTS_H
#include "agent/base/status.h"

// Draws loss_tokens.svg, loss_seconds.svg, loss_wan.svg and goodput.svg (with a mark at each change
// of a codec), one curve for each cluster, from lines of kind step and link. Leaves out a plot
// without data (nothing sent: no loss_wan). A missing gnuplot is only a warning that names the
// package; metrics.jsonl has all numbers.
NEB_MUST_CHECK enum neb_status agent_plots_make(const char *dir);

#endif
