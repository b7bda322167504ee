// SPDX-License-Identifier: Apache-2.0
// What the updates of a job hold, as this member's worker says when it attaches: its agent's gate compares those of others with it, and judges
// none before (struct inter_job_config: awaits_shape). Kept in DIR/shape.json, so that an agent that was started anew knows it before its
// worker is back.
#ifndef AGENT_SHAPE_H
#define AGENT_SHAPE_H
#include "agent/daemon/jobs.h"
#include "inter/service/service.h"

struct agent_update_shape {
    uint64_t elements; // all parameters that travel
    uint32_t n;        // fragments
    struct {
        uint64_t elements; // 0: none of it travels
        uint8_t sha[INTER_SHA_BYTES];
    } fragments[INTER_FRAGMENTS_MAX];
};

// {"elements": all, "fragments": [{"elements", "sha": hex}]}, of exactly n fragments, together no more than the whole. False: it is something else.
NEB_MUST_CHECK bool agent_shape_read(const json_t *said, uint32_t n,
                                     struct agent_update_shape *out);
// The worker says so. What cannot be read is logged, and changes nothing.
void agent_shape_take(struct inter_service *s, const struct agent_jobrun *j, const char *dir,
                      const json_t *said);
// What was said before, from DIR/shape.json; nothing without one.
void agent_shape_recall(struct inter_service *s, const struct agent_jobrun *j, const char *dir);

#endif
