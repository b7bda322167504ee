// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/join_rate.h"

#include <stdio.h>

struct agent_join_verdict agent_join_judge(const struct agent_join *begun, neb_ns now,
                                           uint64_t recv_bytes, uint32_t lag,
                                           uint64_t round_bytes) {
    enum { ROUNDS_MIN = 3 };
    const neb_ns shortest = 5 * NEB_S;
    struct agent_join_verdict v = {0};
    double seconds = neb_seconds(now - begun->since);
    if (!begun->since || now - begun->since < shortest || recv_bytes < begun->recv_bytes)
        return v; // a counter that fell: the links were replaced
    v.rounds = lag > begun->lag ? lag - begun->lag : 0;
    v.brings_bps = 8 * (double)(recv_bytes - begun->recv_bytes) / seconds;
    v.needs_bps = 8 * (double)v.rounds * (double)round_bytes / seconds;
    v.too_slow = begun->lag && v.rounds >= ROUNDS_MIN && v.brings_bps < v.needs_bps;
    return v;
}

void agent_join_explain(const struct agent_join_verdict *v, uint64_t round_bytes, char *out,
                        size_t cap) {
    snprintf(out, cap,
             "the link of this cluster is slower than the others commit: it carries %.3f Mbit/s, "
             "but their rounds need %.3f Mbit/s (%u rounds of %.3f MB while a snapshot was "
             "fetched), so it would never catch up; join over a faster link, or with a coarser "
             "sync.codec or a longer sync.interval",
             v->brings_bps * 1e-6, v->needs_bps * 1e-6, v->rounds, (double)round_bytes * 1e-6);
}
