// SPDX-License-Identifier: Apache-2.0
// Parts of a step's cost that cost.c (meshes), device.c (accelerators), exchange.c and side.c
// (sides of a stream) share. Private to this room.
#ifndef INTRA_COST_PARTS_H
#define INTRA_COST_PARTS_H
#include "intra/cost/cost.h"

// State of the exchange for each element: θ, v, u and θ_m at the send.
enum { COST_EXCHANGE_FLOATS = 4, COST_EXCHANGE_BYTES = 4 * COST_EXCHANGE_FLOATS };

struct cost_sum { // what one rank does with one micro-batch
    const struct intra_rates *r;
    const struct intra_type_rates *device; // NULL: the CPU
    enum kern_type type;                   // of products on the CPU
    double share;                          // of the machine's rates
    double flops, seconds;
};

// Adds a product of n rows. times: 1 for forward, one more for dx and one more for dW.
void cost_product(struct cost_sum *s, double n, double out, double in, double times);
// Adds row operations over this many floats, in `ops` calls.
void cost_rows(struct cost_sum *s, double floats, int ops);
// Adds blocks first … first + count - 1 over n tokens: forward and, if they learn, backward.
void cost_blocks(struct cost_sum *s, const struct intra_cost_job *j, int32_t first, int32_t count,
                 double n, bool learns);
bool cost_head_learns(const struct intra_cost_job *j); // true if the output weight is trainable
// Adds all that a stage does with a micro-batch of n tokens.
void cost_stage(struct cost_sum *s, const struct intra_cost_job *j, int32_t stage, double n);
// Bytes that each of k ranks sends in an all-reduce, or in a reduce-scatter and an all-gather.
double cost_ring_bytes(double bytes, int32_t k);
// y at x, interpolated between measured points on logarithmic axes. Above the last point: its y.
// Below the first: proportional to x, or with the slope of the first two points.
enum cost_below { COST_BELOW_PROPORTIONAL, COST_BELOW_SLOPE };
double cost_between(const int32_t *xs, const double *ys, int n, double x, enum cost_below below);
// Seconds of one operation on a device.
double cost_device_product(const struct cost_sum *s, double n, double out, double in, double times);
double cost_device_attention(const struct cost_sum *s, const struct intra_cost_job *j, double n,
                             double flops, bool backward);
void cost_device_times(const struct intra_cost_job *j, const struct intra_rates *r,
                       struct intra_cost *c);
// memory: bytes of a device; INFINITY: unknown
void cost_device_memory(const struct intra_cost_job *j, double memory, struct intra_cost *c);
// Bytes that a side needs in addition to every pass: scores, draws, labels.
double cost_device_picks(const struct intra_cost_job *j, const struct intra_cost_side *side,
                         double memory);
// Bytes that the host sends to the device before a micro-batch of n tokens.
double cost_device_batch(const struct intra_cost_job *j, double n);
// Rows of n tokens in one block of logits (kern_logits_rows).
double cost_logits_rows(double memory, const struct intra_cost_job *j, double n);
// Fills in the exchange: shards, memory, transfers of parameters. Call it before cost_memory, which
// adds up the memory.
void cost_exchange(const struct intra_cost_job *j, const struct intra_rates *r,
                   struct intra_cost *c);
void cost_memory(const struct intra_cost_job *j, struct intra_cost *c);
void cost_memory_sum(const struct intra_cost_job *j, struct intra_cost *c); // adds up the parts
// Seconds in a step to convert `of` parameters to bf16 on the CPU.
double cost_to_bf16(const struct intra_cost_job *j, const struct intra_rates *r, double of);
// Elements on the rank of the fullest stage. *learn: how many of them are trainable.
double cost_stage_params(const struct intra_cost_job *j, double *learn);

#endif
