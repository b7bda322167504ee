// SPDX-License-Identifier: Apache-2.0
// The update of a model: norms, clipping, AdamW; muon.c has the rest of Muon. With replicas each
// rank owns shards of the gradients (optim.h). On processors they are reduced after backward. On
// accelerators gradients are reduced in pieces: as soon as backward has completed a piece, it is
// reduced to the owner of its shard.
//
//     arena        embedding | block 0 | block 1 | … | output        pieces, in arena order
//     backward     ◄─────────────────────────────────────────        completes it from the end
//     the queue    … backward of block 1  ▲mark  of block 0  ▲mark   enqueued at once, runs alone
//     the host         wait(mark), reduce a piece; wait(mark), reduce the next …
//
// So only the reductions after the end of backward cost time. The gradients of partial tensors
// (norms and adapters with tensor parallelism, which are small) are in a separate array. It is
// summed over tp first, and over dp after the pieces. A tied embedding is first summed over the
// ends of the pipeline, so its pieces come last.
#include "agent/base/count.h"
#include "intra/model/state.h"

#include <stdlib.h>
#include <string.h>

// ---- the table ----------------------------------------------------------------------------------

int device_chunks(const struct intra_device *d, const struct intra_tensor *t,
                  struct kern_chunk *out) {
    size_t from, n = intra_optim_part(d->o, t, &from), end = from + n,
                 moments = d->o->moment_at[t - d->m->tensors] - from;
    int count = 0;
    if (!out)
        return n ? (int)((end - 1) / KERN_CHUNK - from / KERN_CHUNK + 1) : 0;
    while (from < end) {
        size_t to = (from / KERN_CHUNK + 1) * KERN_CHUNK;
        to = to < end ? to : end;
        out[count++] = (struct kern_chunk){.param_at = t->at + from,
                                           .grad_at = t->grad_at + from,
                                           .moment_at = moments + from,
                                           .n = (uint32_t)(to - from),
                                           .tensor = t->index,
                                           .decay = t->decay,
                                           .momentum = intra_optim_is_muon(d->o, t)};
        from = to;
    }
    return count;
}

// When backward has come below layer l, the gradients of all layers before l are not complete.
// Returns where they end.
static size_t pending(const struct intra_model *m, int32_t l) {
    size_t most = 0;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        size_t end = t->grad_at + intra_tensor_size(t);
        if (t->trainable && t->layer < l && end > most)
            most = end;
    }
    return most;
}

static void lay_out_partial(struct intra_device *d) {
    enum { ALIGN = 64 }; // floats
    for (int32_t i = 0; i < d->m->n_tensors; i++) {
        const struct intra_tensor *t = &d->m->tensors[i];
        if (!t->trainable || !t->partial)
            continue;
        d->partial_at[i] = d->n_partial;
        d->n_partial += (intra_tensor_size(t) + ALIGN - 1) / ALIGN * ALIGN;
    }
}

// The pieces follow each other. AdamW's shards, one a rank, are cut further, so that there are
// DEVICE_PIECES or more.
static enum neb_status lay_out_pieces(struct intra_device *d) {
    const struct intra_optim *o = d->o;
    int each = o->n_shards < DEVICE_PIECES && o->n_shards
                   ? (DEVICE_PIECES + o->n_shards - 1) / o->n_shards
                   : 1;
    d->pieces = calloc((size_t)(each * o->n_shards) + 1, sizeof *d->pieces);
    if (!d->pieces)
        return neb_fail(NEB_ERR_NOMEM, "out of memory listing tensors");
    for (int i = 0; i < o->n_shards; i++)
        for (int k = 0; k < each; k++) {
            const struct intra_shard *s = &o->shards[i];
            size_t n = s->end - s->at, len = (n + (size_t)each - 1) / (size_t)each,
                   at = (size_t)k * len < n ? (size_t)k * len : n,
                   end = at + len < n ? at + len : n;
            d->pieces[d->n_pieces++] = (struct intra_shard){s->at + at, s->at + end, s->owner};
        }
    return NEB_OK;
}

enum neb_status device_update_create(struct intra_device *d) {
    const struct intra_model *m = d->m;
    int32_t layers = m->local.n_layers;
    d->pending = calloc((size_t)layers + 2, sizeof *d->pending);
    d->partial_at = calloc((size_t)m->n_tensors + 1, sizeof *d->partial_at);
    if (!d->pending || !d->partial_at)
        return neb_fail(NEB_ERR_NOMEM, "out of memory listing tensors");
    lay_out_partial(d);
    for (int32_t i = 1; i < layers + 2; i++)
        d->pending[i] = pending(m, m->layer0 - 1 + i);
    for (int32_t i = 0; d->o && i < m->n_tensors; i++)
        d->n_chunks += device_chunks(d, &m->tensors[i], NULL);
    if (!d->o)
        return NEB_OK;
    NEB_TRY(lay_out_pieces(d));
    return device_muon_create(d);
}

void device_update_destroy(struct intra_device *d) {
    device_muon_destroy(d);
    free(d->pieces);
    free(d->pending);
    free(d->partial_at);
}

enum neb_status device_update_send(struct intra_device *d) {
    const struct kern_ops *K = device_ops(d);
    const struct intra_model *m = d->m;
    size_t tensors = (size_t)m->n_all_tensors;
    if (!d->o || neb_counting())
        return NEB_OK;
    struct kern_chunk *all = calloc((size_t)d->n_chunks + 1, sizeof *all);
    int32_t *first = calloc(tensors + 1, sizeof *first), n = 0, at = 0;
    enum neb_status st = NEB_OK;
    if (!all || !first) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory listing tensors");
        goto out;
    }
    // Tensors are in the order of their index; other ranks have the missing ones.
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        NEB_ASSERT(t->index >= at);
        while (at <= t->index)
            first[at++] = n;
        n += device_chunks(d, t, all + n);
    }
    while (at <= m->n_all_tensors)
        first[at++] = n;
    NEB_ASSERT(n == d->n_chunks);
    K->upload(d->c.D, d->chunks, all, (size_t)n * sizeof *all);
    K->upload(d->c.D, d->first, first, (tensors + 1) * sizeof *first);
    st = device_muon_send(d);
    if (st == NEB_OK)
        st = K->finish(d->c.D);
out:
    free(all);
    free(first);
    return st;
}

// ---- gradients over the ranks -------------------------------------------------------------------

static int piece_mark(const struct intra_device *d, int i) { // several pieces may share one
    return i * DEVICE_PIECES / d->n_pieces;
}

void device_update_passed(struct intra_device *d, int32_t l) {
    const struct intra_model *m = d->m;
    size_t left = d->pending[l - (m->layer0 - 1)];
    if (!device_dp(d) || device_host(d))
        return;
    if (l == m->layer0 + m->local.n_layers)
        d->pieces_left = d->n_pieces;
    // Each micro-batch sets the marks again; those of the last one count.
    while (d->pieces_left > 0 && d->pieces[d->pieces_left - 1].at >= left) {
        int mark = piece_mark(d, --d->pieces_left);
        if (d->pieces_left == 0 || piece_mark(d, d->pieces_left - 1) != mark)
            device_ops(d)->mark(d->c.D, MARK_PIECE + mark);
    }
}

// Reduces the pieces that begin in [from, to), from the end of the arena on.
static void reduce_pieces(struct intra_device *d, struct intra_comm *dp, size_t from, size_t to) {
    for (int i = d->n_pieces - 1; i >= 0 && d->m->failed == NEB_OK; i--) {
        size_t at = d->pieces[i].at, n = d->pieces[i].end - at;
        if (at < from || at >= to || !n)
            continue;
        device_ops(d)->wait(d->c.D, MARK_PIECE + piece_mark(d, i));
        if (d->m->failed == NEB_OK)
            intra_model_keep_failure(d->m,
                                     dp->ops->reduce(dp, d->grads + at, n, d->pieces[i].owner));
    }
}

// Start of the piece in which t begins.
static size_t first_piece_of(const struct intra_device *d, const struct intra_tensor *t) {
    int i = 0;
    while (i + 1 < d->n_pieces && d->pieces[i + 1].at <= t->grad_at)
        i++;
    return d->pieces[i].at;
}

static void add_ends(struct intra_device *d, struct intra_comm *ends) {
    const struct intra_tensor *t = d->m->embed;
    if (device_finish_ok(d))
        intra_model_keep_failure(d->m, ends->ops->all_reduce(ends, device_grad(d, t),
                                                             intra_tensor_size(t), INTRA_COMM_F32,
                                                             INTRA_COMM_SUM));
}

// Sums partial gradients over dp, unless it is NULL, and copies them into the arena.
static void place_partial(struct intra_device *d, struct intra_comm *dp) {
    const struct kern_ops *K = device_ops(d);
    const struct intra_model *m = d->m;
    if (dp && device_finish_ok(d))
        intra_model_keep_failure(d->m, dp->ops->all_reduce(dp, d->partial, d->n_partial,
                                                           INTRA_COMM_F32, INTRA_COMM_SUM));
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (t->trainable && t->partial)
            K->copy(d->c.D, d->grads + t->grad_at, device_grad(d, t),
                    intra_tensor_size(t) * sizeof(float));
    }
    K->zero(d->c.D, d->partial, d->n_partial * sizeof(float));
}

static void reduce_grads(struct intra_device *d) {
    const struct intra_mesh *mesh = d->c.mesh;
    const struct intra_model *m = d->m;
    if (!mesh)
        return;
    struct intra_comm *pieces = device_host(d) ? NULL : mesh->dp;
    bool tied = mesh->ends && m->c.tied && m->embed->trainable;
    size_t all = m->n_grads, from = all, to = all; // [from, to): the pieces of a tied embedding
    if (tied) {
        from = first_piece_of(d, m->embed);
        to = m->embed->grad_at + intra_tensor_size(m->embed);
    }
    if (d->n_partial)
        device_tp_sum(d, d->partial, d->n_partial);
    if (pieces) {
        reduce_pieces(d, pieces, to, all);
        reduce_pieces(d, pieces, 0, from);
    }
    if (tied)
        add_ends(d, mesh->ends);
    if (pieces)
        reduce_pieces(d, pieces, from, to);
    if (d->n_partial)
        place_partial(d, pieces);
    if (mesh->dp && !pieces && m->failed == NEB_OK)
        intra_model_keep_failure(d->m, intra_optim_reduce(d->o, mesh->dp, d->grads));
}

// ---- the update ---------------------------------------------------------------------------------

// Sums x (n) of the world over host memory: m->mesh, not the device's mesh.
static void sum_world(struct intra_model *m, double *x, size_t n) {
    if (m->mesh && m->failed == NEB_OK)
        intra_model_keep_failure(m, m->mesh->world->ops->all_reduce(
                                        m->mesh->world, x, n, INTRA_COMM_F64, INTRA_COMM_SUM));
}

// One rank of each replica contributes its loss and its targets.
static bool contributes(const struct intra_device *d) {
    return intra_model_last(d->m) && intra_mesh_tp_rank(d->c.mesh) == 0;
}

// Gradients were scaled for full micro-batches. If targets were ignored, the mean must be taken
// over the counted ones.
static float rescaling(double full, int64_t count) {
    return count > 0 ? (float)(full / (double)count) : 1;
}

// On processors the gradients are rescaled before their norms are taken. On accelerators the factor
// becomes a part of the clipping factors: no call on the host may wait for other ranks before the
// queue has run, which detects a rank that hangs.
static void rescale_on_host(struct intra_device *d, double full, int64_t *count) {
    double counted = contributes(d) ? (double)*count : 0;
    sum_world(d->m, &counted, 1);
    *count = (int64_t)counted;
    float by = rescaling(full, *count);
    for (int i = 0; i < d->o->n_shards && by != 1; i++) {
        const struct intra_shard *s = &d->o->shards[i];
        if (s->owner == d->o->rank)
            device_ops(d)->scale(d->c.D, d->grads + s->at, by, s->end - s->at);
    }
}

// Sums over all ranks: squares of every tensor, each element once, the losses, and the counted
// targets, which processors have summed before.
static enum neb_status sum_up(struct intra_device *d, double *loss, int64_t *count) {
    const struct kern_ops *K = device_ops(d);
    struct intra_model *m = d->m;
    double *sums = d->o->sums;
    size_t tensors = (size_t)m->n_all_tensors;
    K->sumsq(d->c.D, d->chunks, d->n_chunks, d->first, (int)tensors, d->grads, d->sums);
    K->download(d->c.D, d->sums_pinned, d->sums, (tensors + 1) * sizeof(double));
    K->zero(d->c.D, d->total, sizeof *d->total);
    NEB_TRY(device_finish(d));
    memcpy(sums, d->sums_pinned, (tensors + 1) * sizeof *sums);
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (t->copy || (t->cut == INTRA_CUT_NONE && intra_mesh_tp_rank(d->c.mesh) > 0))
            sums[t->index] = 0;
    }
    sums[tensors] = contributes(d) ? sums[tensors] : 0;
    sums[tensors + 1] = contributes(d) ? (double)*count : 0;
    sum_world(m, sums, tensors + 2);
    *loss = sums[tensors];
    if (!device_host(d))
        *count = (int64_t)sums[tensors + 1];
    return m->failed;
}

static void step(struct intra_device *d, float lr, float by) {
    const struct kern_ops *K = device_ops(d);
    struct intra_optim *o = d->o;
    int32_t tensors = d->m->n_all_tensors;
    for (int32_t i = 0; i < tensors; i++)
        d->factors_pinned[i] = o->factors[i] * by;
    K->upload(d->c.D, d->factors, d->factors_pinned, (size_t)tensors * sizeof(float));
    struct kern_update a = {.c = intra_optim_adamw(o, lr),
                            .chunks = d->chunks,
                            .n_chunks = d->n_chunks,
                            .factors = d->factors,
                            .params = d->params,
                            .grads = d->grads,
                            .m = d->moment1,
                            .v = d->moment2,
                            .working = d->c.type == KERN_F32 ? NULL : d->working};
    a.c.weight_decay = o->c.weight_decay; // applied per chunk
    K->adamw(d->c.D, d->c.type, &a);
    device_muon(d, lr);
}

void device_params_pack(struct intra_device *d) {
    const struct kern_ops *K = device_ops(d);
    const struct intra_model *m = d->m;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        size_t from, n = intra_optim_part(d->o, t, &from);
        K->copy(d->c.D, d->grads + t->grad_at + from, d->params + t->at + from, n * sizeof(float));
    }
}

void device_params_unpack(struct intra_device *d) {
    const struct kern_ops *K = device_ops(d);
    const struct intra_model *m = d->m;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        size_t n = intra_tensor_size(t);
        if (!t->trainable)
            continue;
        K->copy(d->c.D, d->params + t->at, d->grads + t->grad_at, n * sizeof(float));
        if (d->c.type != KERN_F32)
            K->cast(d->c.D, d->c.type, device_weight(d, t), d->params + t->at, n);
    }
}

// All-gathers through the gradient arena, which is free by now.
static void gather_params(struct intra_device *d, struct intra_comm *dp) {
    device_run(d, DEVICE_PACK, NULL, 0);
    if (device_finish_ok(d))
        intra_model_keep_failure(d->m, intra_optim_all_gather(d->o, dp, d->grads));
    if (d->m->failed == NEB_OK)
        device_run(d, DEVICE_UNPACK, NULL, 0);
}

enum neb_status intra_device_update(struct intra_device *d, double full, double *loss,
                                    int64_t *count, struct intra_update *out) {
    const struct kern_ops *K = device_ops(d);
    struct intra_optim *o = d->o;
    struct intra_comm *dp = device_dp(d);
    reduce_grads(d);
    if (device_host(d))
        rescale_on_host(d, full, count);
    NEB_TRY(sum_up(d, loss, count));
    float by = device_host(d) ? 1 : rescaling(full, *count);
    for (int32_t i = 0; i < o->n_tensors; i++)
        o->sums[i] *= (double)by * (double)by;
    bool finite = intra_optim_decide(o, d->m, out);
    if (finite)
        step(d, out->lr, by);
    if (finite && dp)
        gather_params(d, dp);
    // otherwise AdamW has zeroed the gradients that it read
    if (!finite || dp || o->c.kind == INTRA_OPTIM_MUON)
        K->zero(d->c.D, d->grads, d->m->n_grads * sizeof(float));
    o->t++;
    return d->m->failed;
}
