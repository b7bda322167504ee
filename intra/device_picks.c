// What modes rtd and distill take from a pass on an accelerator, beside its loss: scores, draws and labels at some of its rows. Logits are
// formed anew for these rows, in fp32, block by block where a loss has its own.
#include "intra/device_state.h"
#include "kernels/device_stage.h"

enum neb_status intra_device_scores(struct intra_device *d, int32_t n, float *out) {
    NEB_ASSERT(d->m->rtd_weight && (size_t)n <= device_tokens(d));
    kern_stage_down(d->c.D, out, d->scores, (size_t)n * sizeof *out);
    return kern_stage_end(d->c.D);
}

// The rows `at` (n), which go to the device, of the first V columns.
static struct kern_device_rows rows_of(struct intra_device *d, const int32_t *at, int32_t n,
                                       int32_t V) {
    size_t row = (size_t)kern_logits_ld(V) * sizeof(float),
           block = device_logits_bytes(d) / row; // below what the last pass has left behind
    NEB_ASSERT(d->c.soft_k && (size_t)n <= device_tokens(d));
    kern_stage_up(d->c.D, d->picked, at, (size_t)n * sizeof *at);
    return (struct kern_device_rows){
        .n = n,
        .d = d->m->c.d_model,
        .V = V,
        .x = d->yf,
        .at = d->picked,
        .w = device_weight(d, d->m->head),
        .gathered = d->r, // free behind the final norm
        .logits = d->logits,
        .block = (int)(block < device_tokens(d) ? block : device_tokens(d))};
}

enum neb_status intra_device_sample(struct intra_device *d, int32_t n_ids, const int32_t *positions,
                                    int32_t n, const float *u, int32_t *ids) {
    if (!n)
        return NEB_OK;
    struct kern_device_rows rows = rows_of(d, positions, n, n_ids);
    kern_stage_up(d->c.D, d->pick_logp, u, (size_t)n * sizeof *u);
    device_ops(d)->sample_rows(d->c.D, d->c.type, &rows, d->pick_logp, d->pick_id);
    kern_stage_down(d->c.D, ids, d->pick_id, (size_t)n * sizeof *ids);
    return kern_stage_end(d->c.D);
}

enum neb_status intra_device_labels(struct intra_device *d, const int32_t *at, int32_t n, int32_t k,
                                    float temperature, int32_t *ids, float *logp, float *tail) {
    NEB_ASSERT(k >= 1 && k <= d->c.soft_k);
    if (!n)
        return NEB_OK;
    struct kern_device_rows rows = rows_of(d, at, n, d->m->c.vocab);
    size_t named = (size_t)n * (size_t)k;
    device_ops(d)->label_rows(d->c.D, d->c.type, &rows, k, temperature, d->pick_id, d->pick_logp,
                              d->pick_tail);
    kern_stage_down(d->c.D, ids, d->pick_id, named * sizeof *ids);
    kern_stage_down(d->c.D, logp, d->pick_logp, named * sizeof *logp);
    kern_stage_down(d->c.D, tail, d->pick_tail, (size_t)n * sizeof *tail);
    return kern_stage_end(d->c.D);
}
