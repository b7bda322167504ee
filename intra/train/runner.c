// SPDX-License-Identifier: Apache-2.0
#include "intra/train/runner.h"

#include <string.h>

struct intra_runner intra_trainer_runner(const struct intra_trainer *t) {
    return (struct intra_runner){
        .K = t->K, .model = t->model, .acts = t->acts, .device = t->device};
}

static enum neb_status run_on_device(struct intra_device *d, const struct intra_batch *b,
                                     double *loss, int64_t *count) {
    intra_device_eval_begin(d);
    int64_t counted = intra_device_eval_micro(d, b);
    if (!b->targets)
        return NEB_OK; // the call that fetches a result waits for the pass
    *count = counted;
    return intra_device_eval_end(d, loss);
}

enum neb_status intra_run(const struct intra_runner *r, const struct intra_batch *b, double *loss,
                          int64_t *count) {
    if (r->device)
        return run_on_device(r->device, b, loss, count);
    intra_acts_prefix(r->acts, b->prefix);
    intra_acts_teacher(r->acts, b->teacher);
    intra_model_pass(r->K, r->model, r->acts, b->tokens, b->targets, b->B, b->T, 0, loss, count);
    intra_acts_teacher(r->acts, NULL);
    return NEB_OK;
}

enum neb_status intra_run_scores(const struct intra_runner *r, int32_t n, float *out) {
    if (r->device)
        return intra_device_scores(r->device, n, out);
    memcpy(out, intra_acts_scores(r->acts), (size_t)n * sizeof *out);
    return NEB_OK;
}
