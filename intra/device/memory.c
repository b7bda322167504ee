// SPDX-License-Identifier: Apache-2.0
// Memory of a model on an accelerator: one piece of device memory, and pinned buffers on the host.
#include "intra/device/state.h"
#include "kernels/device_stage.h"

#include <stdlib.h>
#include <string.h>

// As in forward.c, carve_all runs twice: it adds up sizes, then it sets pointers.
struct carve {
    char *base;
    size_t used;
};
enum { CARVE_ALIGN = 256 };

static void take(struct carve *c, void *pointer_at, size_t bytes) {
    void *p = c->base ? c->base + c->used : NULL;
    memcpy(pointer_at, &p, sizeof p);
    c->used += (bytes + CARVE_ALIGN - 1) / CARVE_ALIGN * CARVE_ALIGN;
}

// n: rows of a pass; each: rows per rank; room: rows of a buffer that is gathered
struct sizes {
    size_t n, each, room, t, width, q, qkv, f;
};

static struct sizes sizes_of(const struct intra_device *d) {
    const struct intra_model_config *c = &d->m->local;
    size_t n = device_tokens(d), head = (size_t)c->head_dim, q = (size_t)c->n_heads * head;
    return (struct sizes){.n = n,
                          .each = (size_t)intra_rows_of(d->m, (int)n).each,
                          .room = intra_rows_room(d->m, n),
                          .t = kern_type_bytes(d->c.type),
                          .width = (size_t)c->d_model,
                          .q = q,
                          .qkv = q + 2 * (size_t)c->n_kv_heads * head,
                          .f = (size_t)c->d_ff};
}

static size_t batch_bytes(const struct intra_device *d) {
    return device_batch_bytes(device_tokens(d), d->m->c.mask == KERN_MASK_PREFIX);
}

static void carve_block(struct carve *c, struct device_block *b, const struct intra_device *d) {
    struct sizes s = sizes_of(d);
    bool cut = device_cut(d);
    take(c, &b->y1, cut ? 0 : s.t * s.n * s.width);
    take(c, &b->rstd1, s.each * sizeof(float));
    take(c, &b->qkv, s.t * s.n * s.qkv);
    take(c, &b->att, s.t * s.n * s.q);
    take(c, &b->lse, s.n * (size_t)d->m->local.n_heads * sizeof(float));
    take(c, &b->h2, s.each * s.width * sizeof(float));
    take(c, &b->y2, cut ? 0 : s.t * s.n * s.width);
    take(c, &b->rstd2, s.each * sizeof(float));
    take(c, &b->gu, s.t * s.n * 2 * s.f);
    take(c, &b->act, s.t * s.n * s.f);
    if (cut) // gathered rows are not kept
        b->y1 = b->y2 = d->y;
}

// With recompute all blocks of all micro-batches in flight share one block's memory, except for
// their input.
static void carve_acts(struct carve *c, struct intra_device *d, struct device_acts *a) {
    struct sizes s = sizes_of(d);
    for (int32_t l = 0; l < d->m->local.n_layers; l++) {
        struct device_block *b = &a->blocks[l];
        if (!d->c.recompute || (a == d->acts && l == 0))
            carve_block(c, b, d);
        else
            *b = d->acts[0].blocks[0];
        if (device_learns(d) || l == 0) // otherwise no backward needs it
            take(c, &b->h1, s.each * s.width * sizeof(float));
    }
    take(c, &a->batch.tokens, batch_bytes(d));
}

static void carve_backward(struct carve *c, struct intra_device *d) {
    struct sizes s = sizes_of(d);
    take(c, &d->dlora, s.t * s.n * (size_t)d->m->trainable.lora_rank);
    take(c, &d->dy, s.t * s.each * s.width);
    take(c, &d->dqkv, s.t * s.n * s.qkv);
    take(c, &d->datt, s.t * s.n * s.q);
    take(c, &d->delta, s.n * (size_t)d->m->local.n_heads * sizeof(float));
    take(c, &d->dact, s.t * s.n * s.f);
    take(c, &d->dh, s.each * s.width * sizeof(float));
    if (d->c.type == KERN_F32 && !device_cut(d))
        d->dht = d->dh;
    else
        take(c, &d->dht, s.t * s.room * s.width);
}

static void carve_picks(struct carve *c, struct intra_device *d) {
    size_t n = device_tokens(d), k = (size_t)d->c.soft_k;
    take(c, &d->scores, d->m->rtd_weight ? n * sizeof *d->scores : 0);
    take(c, &d->picked, k ? n * sizeof *d->picked : 0);
    take(c, &d->pick_id, n * k * sizeof *d->pick_id);
    take(c, &d->pick_logp, n * k * sizeof *d->pick_logp);
    take(c, &d->pick_tail, k ? n * sizeof *d->pick_tail : 0);
    take(c, &d->row_at, k ? n * sizeof *d->row_at : 0);
    take(c, &d->row_target, k ? n * sizeof *d->row_target : 0);
    take(c, &d->row_of, k ? n * sizeof *d->row_of : 0);
    take(c, &d->row_dx,
         k && device_learns(d) ? n * (size_t)d->m->c.d_model * kern_type_bytes(d->c.type) : 0);
}

static void carve_scratch(struct carve *c, struct intra_device *d) {
    struct sizes s = sizes_of(d);
    size_t rank = (size_t)d->m->trainable.lora_rank, rows = (size_t)d->logit_rows;
    bool cut = device_cut(d), staged = intra_mesh_pp(d->c.mesh) > 1, last = intra_model_last(d->m);
    take(c, &d->y, cut ? s.t * s.room * s.width : 0);
    take(c, &d->r, cut ? 0 : s.t * s.n * s.width);
    take(c, &d->wide, cut || staged ? s.room * s.width * sizeof(float) : 0);
    take(c, &d->hf, s.each * s.width * sizeof(float));
    take(c, &d->yf, last ? s.t * s.room * s.width : 0);
    take(c, &d->rstdf, s.each * sizeof(float));
    take(c, &d->lora, s.t * s.n * rank);
    if (device_learns(d))
        carve_backward(c, d);
    carve_picks(c, d);
    take(c, &d->losses, s.n * sizeof(float));
    take(c, &d->logits, last ? device_logits_bytes(d) : 0);
    take(c, &d->vocab_max, cut && last ? rows * sizeof(float) : 0);
    take(c, &d->vocab_sums, cut && last ? 2 * rows * sizeof(float) : 0);
    for (int i = 0; i < 2; i++) {
        take(c, &d->came[i], staged ? s.each * s.width * sizeof(float) : 0);
        take(c, &d->leaving[i], staged ? s.each * s.width * sizeof(float) : 0);
    }
}

static void carve_state(struct carve *c, struct intra_device *d) {
    const struct intra_model *m = d->m;
    size_t tensors = (size_t)m->n_all_tensors, moments = device_learns(d) ? d->o->n : 0;
    take(c, &d->params, m->n_params * sizeof(float));
    take(c, &d->grads, device_learns(d) ? m->n_grads * sizeof(float) : 0);
    take(c, &d->moment1, moments * sizeof(float));
    take(c, &d->moment2, moments * sizeof(float));
    if (d->c.type == KERN_F32)
        d->working = d->params;
    else
        take(c, &d->working, m->n_params * kern_type_bytes(d->c.type));
    take(c, &d->rope, (size_t)d->c.seq_len * (size_t)m->c.head_dim * sizeof(float));
    take(c, &d->chunks, (size_t)d->n_chunks * sizeof *d->chunks);
    take(c, &d->first, (tensors + 1) * sizeof *d->first);
    take(c, &d->factors, tensors * sizeof *d->factors);
    take(c, &d->partial, d->n_partial * sizeof(float));
    take(c, &d->sums, (tensors + 2) * sizeof *d->sums);
    d->total = d->sums ? d->sums + tensors : NULL;
    d->eval_total = d->sums ? d->total + 1 : NULL;
}

// Room for a block of logits in T, and for at least one row of fp32 logits if rows are picked. A
// discriminator needs none.
size_t device_logits_bytes(const struct intra_device *d) {
    if (d->m->rtd_weight)
        return 0;
    size_t ld = (size_t)kern_logits_ld(d->m->local.vocab), one = ld * sizeof(float),
           block = (size_t)d->logit_rows * ld * kern_type_bytes(d->c.type);
    return d->c.soft_k && block < one ? one : block;
}

static void carve_all(struct carve *c, struct intra_device *d) {
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

// Must be equal on all tensor-parallel ranks, although their parts of the vocabulary may differ by
// one and their devices in memory.
static int logit_rows(const struct intra_device *d) {
    int tp = intra_mesh_tp(d->c.mesh), vocab = (d->m->c.vocab + tp - 1) / tp;
    size_t memory = d->c.least_bytes ? d->c.least_bytes : d->c.D->total_bytes;
    return kern_logits_rows((double)memory, vocab, d->c.type, (int)device_tokens(d));
}

static enum neb_status pinned(struct intra_device *d) {
    const struct kern_device_ops *K = device_ops(d);
    size_t tensors = (size_t)d->m->n_all_tensors;
    void *p = NULL;
    for (int i = 0; i < DEVICE_SLOTS; i++)
        NEB_TRY(K->alloc_pinned(d->c.D, batch_bytes(d), &d->batch_pinned[i]));
    NEB_TRY(kern_stage_acquire(d->c.D));
    d->staged = true;
    NEB_TRY(K->alloc_pinned(d->c.D, tensors * sizeof(float), &p));
    d->factors_pinned = p;
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
    }
    if (!made)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a model of %d layers",
                        d->m->c.n_layers);
    struct carve c = {0};
    carve_all(&c, d);
    d->bytes = c.used;
    void *arena = NULL;
    NEB_TRY(device_ops(d)->alloc(d->c.D, d->bytes, &arena));
    d->arena = arena;
    c = (struct carve){.base = arena};
    carve_all(&c, d);
    for (int i = 0; i < d->n_acts; i++)
        d->acts[i].batch = device_batch_in(d->acts[i].batch.tokens, device_tokens(d));
    return pinned(d);
}

void device_release(struct intra_device *d) {
    const struct kern_device_ops *K = device_ops(d);
    (void)K->finish(d->c.D); // no op may still use the memory
    free(d->next);
    K->release_pinned(d->c.D, d->sums_pinned);
    K->release_pinned(d->c.D, d->factors_pinned);
    if (d->staged)
        kern_stage_release(d->c.D);
    for (int i = 0; i < DEVICE_SLOTS; i++)
        K->release_pinned(d->c.D, d->batch_pinned[i]);
    K->release(d->c.D, d->arena);
    for (int i = 0; d->acts && i < d->n_acts; i++)
        free(d->acts[i].blocks);
    free(d->acts);
}
