// SPDX-License-Identifier: Apache-2.0
// Shared by the files of this room: cost.c (seconds), count.c (FLOPs and memory) and exchange.c.
#ifndef INTRA_COST_PARTS_H
#define INTRA_COST_PARTS_H
#include "intra/cost/cost.h"

// State of the exchange for each element: θ, v, u and θ_m at the send.
enum { COST_EXCHANGE_FLOATS = 4, COST_EXCHANGE_BYTES = 4 * COST_EXCHANGE_FLOATS };

// What was found for earlier jobs, because a search asks for the same again and again. A process
// counts in one thread at a time (agent/base/count.h), so a memo is static and has no lock.
struct cost_memo {
    struct {
        struct intra_cost_job key; // zeroed, also between the fields, then set; share is above 0
        double value[12];
    } at[1024];
};
// The place of the value for this key; *known: it is there, else the caller writes it.
void *cost_memo(struct cost_memo *m, const struct intra_cost_job *key, bool *known);

struct cost_traffic {
    double bytes, calls; // bytes that a rank sends
};
// Sends nothing and counts into its ctx, a cost_traffic. Other ranks are not needed.
extern const struct intra_comm_ops cost_counting_comm;
// What the busiest rank does, counted. flops, tp and pp: of a micro-batch of one sequence, or of a
// side's micro-batch. The rest: of an update.
struct cost_work {
    double flops;           // of products and attention
    struct cost_traffic tp; // gathers and sums of rows
    double pp_bytes;        // to one neighbour
    double dp_bytes;        // gradients and parameters
    double updated;         // parameters that the rank updates
    double update_flops;    // of Muon's products
};
struct cost_work cost_work(const struct intra_cost_job *j, const struct intra_cost_side *side);

// Writes the memory into *c. device_bytes: of the device; INFINITY: not known.
void cost_memory(const struct intra_cost_job *j, const struct intra_cost_side *side,
                 double device_bytes, struct intra_cost *c);
// Fills in the exchange: shards, memory, transfers of parameters. Call it before cost_memory, which
// adds up the memory.
void cost_exchange(const struct intra_cost_job *j, const struct intra_rates *r,
                   struct intra_cost *c);

#endif
