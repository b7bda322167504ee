// SPDX-License-Identifier: Apache-2.0
// Pictures of a run: DIR/plots/*.svg from DIR/metrics.jsonl, drawn by gnuplot.
#ifndef AGENT_PLOTS_H
#define AGENT_PLOTS_H
#include "agent/base/status.h"

// loss_tokens.svg, loss_seconds.svg, loss_wan.svg, goodput.svg (with a mark wherever a cluster's codec changed): a curve a
// cluster, from lines of kind step and link. A plot that there is no data for is left out (nothing sent: no loss_wan). A missing gnuplot is a warning that names the package,
// not a failure: the numbers are in metrics.jsonl.
NEB_MUST_CHECK enum neb_status agent_plots_make(const char *dir);

#endif
