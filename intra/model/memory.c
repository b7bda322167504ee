// SPDX-License-Identifier: Apache-2.0
// Memory of a model on a device: one piece of device memory, and pinned buffers on the host.
#include "intra/model/state.h"
#include "kernels/device_stage.h"

#include <stdlib.h>
#include <string.h>

enum { CARVE_ALIGN = 256 };

void device_take(struct device_carve *c, void *pointer_at, size_t bytes) {
    void *p = c->base ? c->base + c->used : NULL;
    memcpy(pointer_at, &p, sizeof p);
    c->used += (bytes + CARVE_ALIGN - 1) / CARVE_ALIGN * CARVE_ALIGN;
}

// n: rows of a pass; each: rows per rank; room: rows of a buffer that is gathered
struct sizes {
    size_t n, each, room, t, width;
};

static struct sizes sizes_of(const struct intra_device *d) {
    size_t n = device_tokens(d);
    return (struct sizes){.n = n,
                          .each = (size_t)intra_rows_of(d->m, (int)n).each,
                          .room = intra_rows_room(d->m, n),
                          .t = kern_type_bytes(d->c.type),
                          .width = (size_t)d->m->c.d_model};
}

static size_t batch_bytes(const struct intra_device *d) {
    return device_batch_bytes(device_tokens(d), d->m->c.mask == KERN_MASK_PREFIX);
}

static const struct intra_block_kind *kind_of(const struct intra_device *d, int32_t i) {
    return intra_block_kinds[d->m->layers[d->m->layer0 + i].kind];
}
// The first block of the same kind.
static int32_t first_like(const struct intra_device *d, int32_t i) {
    int32_t first = 0;
    while (kind_of(d, first) != kind_of(d, i))
        first++;
    return first;
}

// Without backward, and with recompute, all blocks of a kind of all micro-batches in flight share
// one block's memory. With backward each has its input.
static void carve_acts(struct device_carve *c, struct intra_device *d, struct device_acts *a) {
    struct sizes s = sizes_of(d);
    bool kept = device_learns(d) && !d->c.recompute;
    for (int32_t l = 0; l < d->m->local.n_layers; l++) {
        struct device_block *b = &a->blocks[l];
        const struct intra_block_kind *kind = kind_of(d, l);
        int32_t first = first_like(d, l);
        if (kept || (a == d->acts && l == first))
            kind->take_acts(c, d, b->acts);
        else
            memcpy(b->acts, d->acts[0].blocks[first].acts, kind->acts_bytes);
        if (device_learns(d) || l == 0)
            device_take(c, &b->h1, s.each * s.width * sizeof(float));
        else
            b->h1 = a->blocks[0].h1;
    }
    device_take(c, &a->batch.tokens, batch_bytes(d));
}

static void carve_backward(struct device_carve *c, struct intra_device *d) {
    struct sizes s = sizes_of(d);
    device_take(c, &d->dlora, s.t * s.n * (size_t)d->m->trainable.lora_rank);
    device_take(c, &d->dy, s.t * s.each * s.width);
    for (int i = 0; i < INTRA_BLOCK_KINDS; i++)
        intra_block_kinds[i]->take_scratch(c, d, d->scratch[i]);
    device_take(c, &d->dh, s.each * s.width * sizeof(float));
    if (d->c.type == KERN_F32 && !device_cut(d))
        d->dht = d->dh;
    else
        device_take(c, &d->dht, s.t * s.room * s.width);
}

static void carve_picks(struct device_carve *c, struct intra_device *d) {
    size_t n = device_tokens(d), width = n * (size_t)d->m->c.d_model,
           k = intra_model_last(d->m) ? (size_t)d->c.soft_k : 0, there = device_host(d) ? 0 : k,
           rows = device_cut(d) ? k : there; // whether rows are gathered
    device_take(c, &d->scores, d->m->rtd_weight ? n * sizeof *d->scores : 0);
    device_take(c, &d->draws, there ? n * sizeof *d->draws : 0);
    device_take(c, &d->picked, there ? n * sizeof *d->picked : 0);
    device_take(c, &d->pick_sum, there && device_cut(d) ? n * sizeof *d->pick_sum : 0);
    device_take(c, &d->pick_id, n * rows * sizeof *d->pick_id);
    device_take(c, &d->pick_logp, n * rows * sizeof *d->pick_logp);
    device_take(c, &d->pick_tail, rows ? n * sizeof *d->pick_tail : 0);
    device_take(c, &d->row_at, rows ? n * sizeof *d->row_at : 0);
    device_take(c, &d->row_target, rows ? n * sizeof *d->row_target : 0);
    device_take(c, &d->row_of, rows ? n * sizeof *d->row_of : 0);
    device_take(c, &d->row_dx,
                rows && device_learns(d)
                    ? width * (device_cut(d) ? sizeof(float) : kern_type_bytes(d->c.type))
                    : 0);
}

static void carve_scratch(struct device_carve *c, struct intra_device *d) {
    struct sizes s = sizes_of(d);
    size_t rank = (size_t)d->m->trainable.lora_rank, rows = (size_t)d->logit_rows;
    bool cut = device_cut(d), staged = intra_mesh_pp(d->c.mesh) > 1, last = intra_model_last(d->m);
    device_take(c, &d->y, cut ? s.t * s.room * s.width : 0);
    device_take(c, &d->r, cut ? 0 : s.t * s.n * s.width);
    if (d->c.type == KERN_F32 && !cut)
        d->wide = d->r;
    else
        device_take(c, &d->wide, cut || staged ? s.room * s.width * sizeof(float) : 0);
    device_take(c, &d->hf, s.each * s.width * sizeof(float));
    device_take(c, &d->yf, last ? s.t * s.room * s.width : 0);
    device_take(c, &d->rstdf, s.each * sizeof(float));
    device_take(c, &d->lora, s.t * s.n * rank);
    if (device_learns(d))
        carve_backward(c, d);
    carve_picks(c, d);
    device_take(c, &d->losses, s.n * sizeof(float));
    device_take(c, &d->logits, last ? device_logits_bytes(d) : 0);
    device_take(c, &d->vocab_max, cut && last ? rows * sizeof(float) : 0);
    device_take(c, &d->vocab_sums,
                cut && last ? (d->c.soft_k ? KERN_VOCAB_SOFT : 2) * rows * sizeof(double) : 0);
    for (int i = 0; i < 2; i++) {
        device_take(c, &d->came[i], staged ? s.each * s.width * sizeof(float) : 0);
        device_take(c, &d->leaving[i], staged ? s.each * s.width * sizeof(float) : 0);
    }
}

// Parameters, gradients, moments: on processors those of the host.
static void carve_model(struct device_carve *c, struct intra_device *d) {
    const struct intra_model *m = d->m;
    size_t first = d->o ? d->o->n : 0, second = d->o ? d->o->n_second : 0;
    if (device_host(d)) {
        d->params = m->params;
        d->working = m->params;
        d->grads = m->grads;
        d->rope = m->rope;
        d->moment1 = d->o ? d->o->m : NULL;
        d->moment2 = d->o ? d->o->v : NULL;
        return;
    }
    device_take(c, &d->params, m->n_params * sizeof(float));
    device_take(c, &d->grads, device_learns(d) ? m->n_grads * sizeof(float) : 0);
    device_take(c, &d->moment1, first * sizeof(float));
    device_take(c, &d->moment2, second * sizeof(float));
    if (d->c.type == KERN_F32)
        d->working = d->params;
    else
        device_take(c, &d->working, m->n_params * kern_type_bytes(d->c.type));
    device_take(c, &d->rope, (size_t)d->c.seq_len * (size_t)m->c.head_dim * sizeof(float));
}

static void carve_muon(struct device_carve *c, struct intra_device *d) {
    struct device_muon *u = &d->muon;
    size_t n = (size_t)u->n, t = kern_type_bytes(d->c.type), square = u->side * u->side * t;
    bool cut = device_cut(d);
    device_take(c, &u->chunks, (size_t)u->n_chunks * sizeof *u->chunks);
    device_take(c, &u->first, n ? (n + 1) * sizeof *u->first : 0);
    device_take(c, &u->sums, n * sizeof *u->sums);
    device_take(c, &u->rate, n ? 2 * sizeof *u->rate : 0);
    device_take(c, &u->x, u->most * t);
    device_take(c, &u->y, u->most * t);
    device_take(c, &u->a, square);
    device_take(c, &u->b, square);
    device_take(c, &u->parts, cut ? u->parts_floats * sizeof *u->parts : 0);
    device_take(c, &u->results, cut ? (size_t)intra_mesh_tp(d->c.mesh) * u->most * t : 0);
}

static void carve_state(struct device_carve *c, struct intra_device *d) {
    size_t tensors = (size_t)d->m->n_all_tensors;
    carve_model(c, d);
    carve_muon(c, d);
    device_take(c, &d->chunks, (size_t)d->n_chunks * sizeof *d->chunks);
    device_take(c, &d->first, (tensors + 1) * sizeof *d->first);
    device_take(c, &d->factors, tensors * sizeof *d->factors);
    device_take(c, &d->partial, d->n_partial * sizeof(float));
    device_take(c, &d->sums, (tensors + 2) * sizeof *d->sums);
    d->total = d->sums ? d->sums + tensors : NULL;
    d->eval_total = d->sums ? d->total + 1 : NULL;
}

// Room for a block of logits in T, and for at least one row of fp32 logits if rows are picked. A
// discriminator needs none; nor do processors, unless the vocabulary is cut.
size_t device_logits_bytes(const struct intra_device *d) {
    if (d->m->rtd_weight || (device_host(d) && !device_cut(d)))
        return 0;
    size_t ld = (size_t)kern_logits_ld(d->m->local.vocab), one = ld * sizeof(float),
           block = (size_t)d->logit_rows * ld * kern_type_bytes(d->c.type);
    return d->c.soft_k && block < one ? one : block;
}

static void carve_all(struct device_carve *c, struct intra_device *d) {
    carve_state(c, d);
    carve_scratch(c, d); // before the blocks, which point into it
    for (int i = 0; i < d->n_acts; i++)
        carve_acts(c, d, &d->acts[i]);
}

size_t device_batch_bytes(size_t n, bool prefixes) {
    return (5 * n + 2) * sizeof(int32_t) + sizeof(float) + (prefixes ? n * sizeof(int32_t) : 0);
}

// The fields lie one after the other, so that one upload sends them all.
struct device_batch device_batch_in(void *room, size_t n) {
    int32_t *tokens = room, *ids = tokens + 2 * n, *used = ids + 3 * n + 1;
    void *end = used + 1;
    return (struct device_batch){
        .tokens = tokens,
        .targets = tokens + n,
        .rows = {.ids = ids, .start = ids + n, .rows = ids + 2 * n + 1, .used = used},
        .grad_scale = end,
        .prefix = used + 2};
}

// Must be equal on all tensor-parallel ranks. Their parts of the vocabulary may differ by one, and
// their devices may have different memory.
static int logit_rows(const struct intra_device *d) {
    if (device_host(d))
        return INTRA_VOCAB_ROWS;
    int tp = intra_mesh_tp(d->c.mesh), vocab = (d->m->c.vocab + tp - 1) / tp;
    size_t memory = d->c.least_bytes ? d->c.least_bytes : d->c.D->total_bytes;
    return kern_logits_rows((double)memory, vocab, d->c.type, (int)device_tokens(d));
}

static enum neb_status pinned(struct intra_device *d) {
    const struct kern_ops *K = device_ops(d);
    size_t tensors = (size_t)d->m->n_all_tensors;
    void *p = NULL;
    for (int i = 0; i < DEVICE_SLOTS; i++)
        NEB_TRY(K->alloc_pinned(d->c.D, batch_bytes(d), &d->batch_pinned[i]));
    NEB_TRY(kern_stage_acquire(d->c.D));
    d->staged = true;
    NEB_TRY(K->alloc_pinned(d->c.D, tensors * sizeof(float), &p));
    d->factors_pinned = p;
    NEB_TRY(K->alloc_pinned(d->c.D, 2 * sizeof(float), &p));
    d->muon.rate_pinned = p;
    NEB_TRY(K->alloc_pinned(d->c.D, (tensors + 2) * sizeof(double), &p));
    d->sums_pinned = p;
    return NEB_OK;
}

enum neb_status device_allocate(struct intra_device *d) {
    d->logit_rows = logit_rows(d);
    d->next = calloc((size_t)d->m->c.vocab, sizeof *d->next);
    d->acts = calloc((size_t)d->n_acts, sizeof *d->acts);
    bool made = d->next && d->acts;
    for (int i = 0; made && i < d->n_acts; i++) {
        d->acts[i].blocks = calloc((size_t)d->m->local.n_layers, sizeof *d->acts[i].blocks);
        made = d->acts[i].blocks;
        for (int32_t l = 0; made && l < d->m->local.n_layers; l++)
            made = (d->acts[i].blocks[l].acts = calloc(1, kind_of(d, l)->acts_bytes));
    }
    for (int i = 0; i < INTRA_BLOCK_KINDS; i++)
        made = (d->scratch[i] = calloc(1, intra_block_kinds[i]->scratch_bytes)) && made;
    if (!made)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a model of %d layers",
                        d->m->c.n_layers);
    struct device_carve c = {0};
    carve_all(&c, d);
    d->bytes = c.used;
    void *arena = NULL;
    enum neb_status st = device_ops(d)->alloc(d->c.D, d->bytes, &arena);
    if (st != NEB_OK && device_host(d))
        return neb_fail(st,
                        "out of memory for activations of %d x %d tokens; lower data.batch or set "
                        "recompute: true",
                        d->c.batch, d->c.seq_len);
    NEB_TRY(st);
    d->arena = arena;
    c = (struct device_carve){.base = arena};
    carve_all(&c, d);
    for (int i = 0; i < d->n_acts; i++)
        d->acts[i].batch = device_batch_in(d->acts[i].batch.tokens, device_tokens(d));
    return pinned(d);
}

void device_release(struct intra_device *d) {
    const struct kern_ops *K = device_ops(d);
    (void)K->finish(d->c.D); // no op may still use the memory
    free(d->next);
    K->release_pinned(d->c.D, d->sums_pinned);
    K->release_pinned(d->c.D, d->factors_pinned);
    K->release_pinned(d->c.D, d->muon.rate_pinned);
    if (d->staged)
        kern_stage_release(d->c.D);
    for (int i = 0; i < DEVICE_SLOTS; i++)
        K->release_pinned(d->c.D, d->batch_pinned[i]);
    K->release(d->c.D, d->arena);
    for (int i = 0; d->acts && i < d->n_acts; i++) {
        for (int32_t l = 0; d->acts[i].blocks && l < d->m->local.n_layers; l++)
            free(d->acts[i].blocks[l].acts);
        free(d->acts[i].blocks);
    }
    for (int i = 0; i < INTRA_BLOCK_KINDS; i++)
        free(d->scratch[i]);
    free(d->acts);
}
