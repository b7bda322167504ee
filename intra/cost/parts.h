// SPDX-License-Identifier: Apache-2.0
// Parts of a step's cost, between cost.c (meshes), cost_device.c (the same on accelerators), cost_exchange.c and cost_side.c (sides of a stream).
// Nobody else includes this.
#ifndef INTRA_COST_PARTS_H
#define INTRA_COST_PARTS_H
#include "intra/cost/cost.h"

// Of an element of the exchange's state: θ, v, u and θ_m at the send.
enum { COST_EXCHANGE_FLOATS = 4, COST_EXCHANGE_BYTES = 4 * COST_EXCHANGE_FLOATS };

struct cost_sum { // what one rank does with one micro-batch
    const struct intra_rates *r;
    const struct intra_type_rates *device; // NULL: processors
    enum kern_type type;                   // of products on processors
    double share;                          // of the machine's rates
    double flops, seconds;
};

// Of n rows; times: forward 1; dx and dW one more each.
void cost_product(struct cost_sum *s, double n, double out, double in, double times);
// Row operations over so many floats, in so many calls.
void cost_rows(struct cost_sum *s, double floats, int ops);
// Blocks first … first + count - 1 over n tokens, forward and, where they learn, backward.
void cost_blocks(struct cost_sum *s, const struct intra_cost_job *j, int32_t first, int32_t count,
                 double n, bool learns);
bool cost_head_learns(const struct intra_cost_job *j); // the output weight
// All that a stage does with a micro-batch of n tokens.
void cost_stage(struct cost_sum *s, const struct intra_cost_job *j, int32_t stage, double n);
// All-reduce, or reduce-scatter and all-gather over k ranks: what each sends.
double cost_ring_bytes(double bytes, int32_t k);
// y at x between measured points, on logarithmic axes; beyond them the nearest, but for `below`: below the first y goes on as
// steeply as from there to the next, or in proportion to x.
enum cost_below { COST_BELOW_PROPORTIONAL, COST_BELOW_SLOPE };
double cost_between(const int32_t *xs, const double *ys, int n, double x, enum cost_below below);
// On a device: the seconds of one operation each.
double cost_device_product(const struct cost_sum *s, double n, double out, double in, double times);
double cost_device_attention(const struct cost_sum *s, const struct intra_cost_job *j, double n,
                             double flops, bool backward);
void cost_device_times(const struct intra_cost_job *j, const struct intra_rates *r,
                       struct intra_cost *c);
// memory: bytes of a device, INFINITY: not known
void cost_device_memory(const struct intra_cost_job *j, double memory, struct intra_cost *c);
// Bytes beside what every pass takes there: scores, draws, labels.
double cost_device_picks(const struct intra_cost_job *j, const struct intra_cost_side *side,
                         double memory);
// What goes there before a micro-batch of n tokens: as many bytes.
double cost_device_batch(const struct intra_cost_job *j, double n);
// Of n tokens, as many as a block of logits has (kern_logits_rows).
double cost_logits_rows(double memory, const struct intra_cost_job *j, double n);
// Of the exchange: shares, memory, ways of parameters. Before cost_memory, which adds them up.
void cost_exchange(const struct intra_cost_job *j, const struct intra_rates *r,
                   struct intra_cost *c);
void cost_memory(const struct intra_cost_job *j, struct intra_cost *c);
void cost_memory_sum(const struct intra_cost_job *j, struct intra_cost *c); // of its parts
// Seconds a step in which processors make bf16 of their parameters, `of` them.
double cost_to_bf16(const struct intra_cost_job *j, const struct intra_rates *r, double of);
// Elements of the fullest stage's rank; *learn: of those that learn.
double cost_stage_params(const struct intra_cost_job *j, double *learn);

#endif
