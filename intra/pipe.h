// Micro-batches through the stages of a pipeline: activations of as many as are in flight, and the exchange with the
// neighbours. A step's micro-batches are collected first, then run in the order of pipe_schedule.h.
#ifndef INTRA_PIPE_H
#define INTRA_PIPE_H
#include "intra/model.h"

struct intra_pipe;
// For at most `micros` micro-batches of (B, T) tokens a step. m and first (activations of the same B and T, used for one
// of those in flight) are borrowed.
NEB_MUST_CHECK enum neb_status intra_pipe_create(struct intra_model *m, struct intra_acts *first,
                                                 int B, int T, int32_t micros,
                                                 struct intra_pipe **out);
void intra_pipe_destroy(struct intra_pipe **p);
// Keeps a copy of tokens and targets (B, T) for the run. All stages add the same.
void intra_pipe_add(struct intra_pipe *p, const int32_t *tokens, const int32_t *targets);
// Forward and backward of all that was added. The last stage adds to loss and count, the others do not. Collective over
// the stages; failures are kept in m->failed and end the run.
void intra_pipe_run(struct intra_pipe *p, struct kern *K, float grad_scale, double *loss,
                    int64_t *count);
// Forward only, of one batch of b <= B sequences.
void intra_pipe_eval(struct intra_pipe *p, struct kern *K, const int32_t *tokens,
                     const int32_t *targets, int b, double *loss, int64_t *count);

#endif
