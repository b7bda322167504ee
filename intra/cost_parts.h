// Parts of a step's cost, between cost.c (meshes) and cost_side.c (sides of a stream). Nobody else includes this.
#ifndef INTRA_COST_PARTS_H
#define INTRA_COST_PARTS_H
#include "intra/cost.h"

struct cost_sum { // what one rank does with one micro-batch
    const struct intra_rates *r;
    double share; // of the machine's rates
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
void cost_memory(const struct intra_cost_job *j, struct intra_cost *c);
double cost_acts_frozen(const struct intra_cost_job *j); // bytes of passes without backward

#endif
