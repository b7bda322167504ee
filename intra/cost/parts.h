// SPDX-License-Identifier: Apache-2.0
// Shared by the files of this room: cost.c (seconds), count.c (FLOPs and memory) and exchange.c.
#ifndef INTRA_COST_PARTS_H
#define INTRA_COST_PARTS_H
#include "intra/cost/cost.h"

// State of the exchange for each element: θ, v, u and θ_m at the send.
enum { COST_EXCHANGE_FLOATS = 4, COST_EXCHANGE_BYTES = 4 * COST_EXCHANGE_FLOATS };

// Writes the memory into *c. device_bytes: of the device; INFINITY: not known.
void cost_memory(const struct intra_cost_job *j, const struct intra_cost_side *side,
                 double device_bytes, struct intra_cost *c);
// Fills in the exchange: shards, memory, transfers of parameters. Call it before cost_memory, which
// adds up the memory.
void cost_exchange(const struct intra_cost_job *j, const struct intra_rates *r,
                   struct intra_cost *c);

#endif
