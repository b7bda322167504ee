// SPDX-License-Identifier: Apache-2.0
// A model on a device: set-up, micro-batches, passes and evaluation.
#include "agent/base/log.h"
#include "intra/data/pairs.h"
#include "intra/model/pipe_schedule.h"
#include "intra/model/state.h"

#include <stdlib.h>
#include <string.h>

static enum neb_status takes(const struct intra_device_config *c, const struct intra_model *m) {
    NEB_ASSERT(!m->mesh == !c->mesh);
    if (c->seq_len > m->c.max_seq)
        return neb_fail(NEB_ERR_INVALID,
                        "sequence of %d tokens is longer than the model's max_seq %d", c->seq_len,
                        m->c.max_seq);
    if (kern_on_host(c->D))
        return NEB_OK;
    if (m->c.d_model > c->D->norm_most)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "%s: model.d_model %d is above %d, the longest row of a norm that fits "
                        "into its shared memory; set device: cpu, or use another card",
                        c->D->name, m->c.d_model, c->D->norm_most);
    // a batch of pairs holds as many sequences as fit
    bool pairs = c->soft_k && m->c.mask != KERN_MASK_BIDIRECTIONAL;
    int64_t most = pairs ? (int64_t)c->batch * c->seq_len / INTRA_PAIRS_SEQ_MIN : c->batch;
    if (most > KERN_SEQUENCES_MAX)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "%s: a micro-batch may have %lld sequences, but the kernels take at most "
                        "%d; lower data.batch and raise data.accumulate, or set device: cpu",
                        c->D->name, (long long)most, KERN_SEQUENCES_MAX);
    if (c->type == KERN_BF16 && !c->D->tensor_cores_bf16)
        return neb_fail(NEB_ERR_UNSUPPORTED, "%s has no bf16; set precision: fp32", c->D->name);
    if (c->type == KERN_BF16 && m->c.d_model % 2 && intra_mesh_tp(c->mesh) > 1)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "mesh.tp: %d: a row of %d bf16 values cannot be gathered as floats; use an "
                        "even model.d_model, or set precision: fp32",
                        c->mesh->c.tp, m->c.d_model);
    return NEB_OK;
}

static enum neb_status set_up(struct intra_device *d) {
    const struct kern_ops *K = device_ops(d);
    struct kern *D = d->c.D;
    const struct intra_model *m = d->m;
    if (d->c.type == KERN_BF16 && (m->c.head_dim % 32 || m->c.head_dim > 128))
        neb_warn("head_dim %d: attention runs without tensor cores, several times slower; head_dim "
                 "32, 64, 96 and 128 use them",
                 m->c.head_dim);
    device_tp_create(d);
    d->n_acts = d->c.micros ? intra_pipe_in_flight(intra_mesh_pp_rank(d->c.mesh),
                                                   intra_mesh_pp(d->c.mesh), d->c.micros)
                            : 1;
    NEB_TRY(device_update_create(d));
    NEB_TRY(device_picks_create(d));
    NEB_TRY(device_allocate(d));
    NEB_TRY(device_graphs_create(d));
    K->zero(D, d->arena, d->bytes); // gaps between tensors stay zero
    if (d->rope != m->rope)
        K->upload(D, d->rope, m->rope,
                  (size_t)d->c.seq_len * (size_t)m->c.head_dim * sizeof(float));
    NEB_TRY(K->finish(D));
    NEB_TRY(device_update_send(d));
    NEB_TRY(intra_device_push(d, NULL));
    return d->o ? intra_device_push_moments(d) : NEB_OK;
}

enum neb_status intra_device_create(const struct intra_device_config *c, struct intra_model *m,
                                    struct intra_optim *o, struct intra_device **out) {
    NEB_TRY(takes(c, m));
    struct intra_device *d = calloc(1, sizeof *d);
    if (!d)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a trainer");
    d->c = *c;
    d->c.learn = c->learn || o;
    d->m = m;
    d->o = o;
    enum neb_status st = set_up(d);
    if (st != NEB_OK)
        intra_device_destroy(&d);
    *out = d;
    return st;
}

enum neb_status intra_device_on_host(struct kern *K, struct intra_model *m, int B, int T,
                                     bool learn, bool recompute, struct intra_device **out) {
    NEB_ASSERT(B > 0 && T > 0 && !(learn && !m->grads));
    return intra_device_create(&(struct intra_device_config){.D = K,
                                                             .batch = B,
                                                             .seq_len = T,
                                                             .learn = learn,
                                                             .recompute = recompute,
                                                             .mesh = m->mesh},
                               m, NULL, out);
}

void intra_device_destroy(struct intra_device **dp) {
    if (*dp) {
        device_graphs_destroy(*dp);
        device_cache_destroy(*dp);
        device_release(*dp);
        device_update_destroy(*dp);
        device_picks_destroy(*dp);
        device_tp_destroy(*dp);
    }
    free(*dp);
    *dp = NULL;
}

size_t intra_device_bytes(const struct intra_device *d) { return d->bytes; }

// ---- steps --------------------------------------------------------------------------------------

// This rank's row of a token's embedding; -1: none.
static int32_t row_of(const struct intra_model *m, int32_t id) {
    const struct intra_tensor *t = m->embed;
    return t && id >= t->row0 && id < t->row0 + t->rows ? id - t->row0 : -1;
}

int64_t device_send_batch(struct intra_device *d, struct device_acts *a,
                          const struct intra_batch *batch, float grad_scale) {
    const struct kern_ops *K = device_ops(d);
    const int32_t *tokens = batch->tokens, *targets = batch->targets;
    int B = batch->B;
    size_t n = (size_t)B * (size_t)batch->T, room = device_tokens(d);
    bool prefixed = batch->prefix && d->m->c.mask == KERN_MASK_PREFIX;
    int32_t classes = d->m->c.head == INTRA_HEAD_RTD ? 2 : d->m->c.vocab;
    int slot = d->turn;
    int64_t count = 0;
    NEB_ASSERT(n <= room && batch->T <= d->c.seq_len);
    a->T = batch->T;
    a->prefixed = prefixed;
    a->targets = targets;
    d->turn = (d->turn + 1) % DEVICE_SLOTS;
    if (d->batch_used[slot])
        K->wait(d->c.D, MARK_BATCH + slot);
    d->batch_used[slot] = true;
    struct device_batch b = device_batch_in(d->batch_pinned[slot], room);
    for (size_t i = 0; i < n; i++) {
        NEB_ASSERT(tokens[i] >= 0 && tokens[i] < d->m->c.vocab);
        b.tokens[i] = row_of(d->m, tokens[i]);
    }
    for (size_t i = 0; targets && i < n; i++) {
        NEB_ASSERT(targets[i] == KERN_IGNORE || (targets[i] >= 0 && targets[i] < classes));
        b.targets[i] = targets[i];
        count += targets[i] != KERN_IGNORE;
    }
    if (prefixed)
        memcpy(b.prefix, batch->prefix, (size_t)B * sizeof *b.prefix);
    if (device_learns(d))
        kern_buckets_fill(&b.rows, b.tokens, (int)n, d->next);
    *b.grad_scale = grad_scale;
    K->upload(d->c.D, a->batch.tokens, d->batch_pinned[slot], device_batch_bytes(room, prefixed));
    K->mark(d->c.D, MARK_BATCH + slot);
    device_cache_send(d, a, batch);
    device_send_rows(d, a, batch, count);
    return count;
}

int64_t intra_device_micro(struct intra_device *d, const struct intra_batch *b, float grad_scale) {
    int64_t count = device_send_batch(d, d->acts, b, grad_scale);
    device_run(d, DEVICE_TRAIN, d->acts, b->B);
    return count;
}

void intra_device_eval_begin(struct intra_device *d) {
    device_ops(d)->zero(d->c.D, d->eval_total, sizeof *d->eval_total);
}

int64_t intra_device_eval_micro(struct intra_device *d, const struct intra_batch *b) {
    int64_t count = device_send_batch(d, d->acts, b, 0);
    device_run(d, DEVICE_EVAL, d->acts, b->B);
    return count;
}

enum neb_status intra_device_eval_end(struct intra_device *d, double *loss) {
    const struct kern_ops *K = device_ops(d);
    K->download(d->c.D, d->sums_pinned, d->eval_total, sizeof *loss);
    NEB_TRY(device_finish(d));
    *loss = d->sums_pinned[0];
    return NEB_OK;
}

// ---- single passes ------------------------------------------------------------------------------

enum neb_status intra_device_pass(struct intra_device *d, const struct intra_batch *b,
                                  float grad_scale, double *loss, int64_t *count) {
    NEB_ASSERT(intra_mesh_pp(d->c.mesh) == 1 && (grad_scale == 0 || device_learns(d)));
    struct device_acts *a = d->acts;
    intra_device_eval_begin(d);
    int64_t counted = device_send_batch(d, a, b, grad_scale);
    if (grad_scale > 0 && b->targets) {
        device_forward(d, a, b->B, true, d->eval_total);
        device_backward(d, a, b->B);
    } else {
        device_run(d, DEVICE_EVAL, a, b->B);
    }
    if (!b->targets)
        return NEB_OK; // the call that fetches a result waits for the pass
    *count = counted;
    return intra_device_eval_end(d, loss);
}

const float *intra_device_hidden(const struct intra_device *d) {
    NEB_ASSERT(device_host(d) && !d->m->mesh);
    return d->yf;
}

void intra_device_logits(struct intra_device *d, int row, int n, float *out) {
    int V = d->m->c.vocab, width = d->m->c.d_model;
    const struct kern_gemm g = kern_linear(KERN_F32, KERN_F32, n, V, width,
                                           intra_device_hidden(d) + (size_t)row * (size_t)width,
                                           intra_param(d->m, d->m->head), out);
    device_ops(d)->gemm(d->c.D, &g);
}
