// SPDX-License-Identifier: Apache-2.0
// The shape of a job's updates, which this member's worker sends when it attaches. The agent's gate
// compares the updates of others with it, and judges none without it (struct inter_job_config:
// awaits_shape). It is kept in DIR/shape.json, so that a restarted agent knows it before its worker
// is back.
#ifndef AGENT_UPDATES_H
#define AGENT_UPDATES_H
#include "inter/round/node.h"

#include <jansson.h>
#include <stdbool.h>

struct agent_update_shape {
    uint64_t elements; // all parameters that are exchanged
    uint32_t n;        // number of fragments
    struct {
        uint64_t elements; // 0: the fragment is not exchanged
        uint8_t sha[INTER_SHA_BYTES];
    } fragments[INTER_FRAGMENTS_MAX];
};

// Reads {"elements": all, "fragments": [{"elements", "sha": hex}]}, with exactly n fragments whose
// elements do not exceed `all`. False: it is something else.
NEB_MUST_CHECK bool agent_shape_read(const json_t *said, uint32_t n,
                                     struct agent_update_shape *out);

#endif
