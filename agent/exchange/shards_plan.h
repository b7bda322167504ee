// SPDX-License-Identifier: Apache-2.0
// What a rank of an attached loop will need for the exchange, from the shapes alone.
#ifndef AGENT_SHARDS_PLAN_H
#define AGENT_SHARDS_PLAN_H
#include "agent/exchange/trainer.h"

// The bytes that agent_shards_bytes will give on the fullest of `ranks` ranks, if all of them hold
// like parts of each tensor. fragment: (n), of each unit; -1: not exchanged. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status agent_shards_predict(const struct agent_unit *units, int32_t n,
                                                    const int32_t *fragment, int32_t fragments,
                                                    int ranks, int threads, uint64_t *bytes);
// The bytes of memory that such a rank takes on its device, without frames and codecs: with the
// state there; with the state in pinned memory of the host (pinned); and in both cases for gathered
// parameters, if a unit is not fp32 without gaps on one rank.
struct agent_shards_device {
    uint64_t there, pinned, gathered;
};
NEB_MUST_CHECK enum neb_status agent_shards_predict_device(const struct agent_unit *units,
                                                           int32_t n, const int32_t *fragment,
                                                           int32_t fragments, int ranks,
                                                           int threads,
                                                           struct agent_shards_device *out);

#endif
