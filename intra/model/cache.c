// SPDX-License-Identifier: Apache-2.0
// Keys and values of sequences that are decoded. A sequence begins with a pass over its prompt:
// attention is the ordinary one, and each block puts its keys and values into the sequence's slot.
// Then each pass has one token of each sequence, and attention goes over the slots.
//
// A rank keeps the heads that it has, of its own blocks.
#include "intra/model/state.h"
#include "kernels/device_stage.h"

#include <stdlib.h>

static size_t slot_elements(const struct intra_device *d, int32_t longest) {
    return (size_t)longest * (size_t)d->m->local.n_kv_heads * (size_t)d->m->local.head_dim;
}

size_t intra_device_cache_bytes(const struct intra_device *d, int32_t longest) {
    return 2 * (size_t)d->m->local.n_layers * slot_elements(d, longest) *
           kern_type_bytes(d->c.type);
}

static void carve(struct device_carve *c, const struct intra_device *d, struct device_cache *x) {
    size_t n = (size_t)x->slots,
           bytes = n * slot_elements(d, x->longest) * kern_type_bytes(d->c.type);
    for (int32_t l = 0; l < d->m->local.n_layers; l++) {
        device_take(c, &x->layer[l].k, bytes);
        device_take(c, &x->layer[l].v, bytes);
    }
    device_take(c, &x->slot, n * sizeof *x->slot);
    device_take(c, &x->at, n * sizeof *x->at);
    device_take(c, &x->pairs, 2 * n * sizeof *x->pairs);
    device_take(c, &x->zeros, n * sizeof *x->zeros);
    device_take(c, &x->angles, n * (size_t)d->m->c.head_dim * sizeof *x->angles);
}

static enum neb_status allocate(struct intra_device *d) {
    struct device_cache *x = d->cache;
    const struct intra_model_config *m = &d->m->local;
    struct device_carve c = {0};
    x->layer = calloc((size_t)m->n_layers, sizeof *x->layer);
    if (!x->layer)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a cache of %d sequences", x->slots);
    for (int32_t l = 0; l < m->n_layers; l++)
        x->layer[l] = (struct kern_cache){.n_heads = m->n_heads,
                                          .n_kv_heads = m->n_kv_heads,
                                          .head_dim = m->head_dim,
                                          .longest = x->longest};
    carve(&c, d, x);
    NEB_TRY(device_ops(d)->alloc(d->c.D, c.used, &x->arena));
    c = (struct device_carve){.base = x->arena};
    carve(&c, d, x);
    device_ops(d)->zero(d->c.D, x->zeros, (size_t)x->slots * sizeof *x->zeros);
    return NEB_OK;
}

void device_cache_destroy(struct intra_device *d) {
    if (!d->cache)
        return;
    (void)device_ops(d)->finish(d->c.D); // no op may still use the memory
    device_ops(d)->release(d->c.D, d->cache->arena);
    free(d->cache->layer);
    free(d->cache);
    d->cache = NULL;
}

enum neb_status intra_device_cache(struct intra_device *d, int32_t slots, int32_t longest) {
    device_cache_destroy(d);
    if (!slots)
        return NEB_OK;
    if (longest > d->c.seq_len)
        return neb_fail(NEB_ERR_INVALID, "sequences of %d tokens: the passes take at most %d",
                        longest, d->c.seq_len);
    d->cache = calloc(1, sizeof *d->cache);
    if (!d->cache)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a cache of %d sequences", slots);
    d->cache->slots = slots;
    d->cache->longest = longest;
    enum neb_status st = allocate(d);
    if (st != NEB_OK)
        device_cache_destroy(d);
    return st;
}

void device_cache_send(struct intra_device *d, struct device_acts *a, const struct intra_batch *b) {
    struct device_cache *c = d->cache;
    size_t bytes = (size_t)b->B * sizeof *b->slot;
    a->kept = b->slot;
    a->follows = b->at;
    if (!b->slot)
        return;
    NEB_ASSERT(c && b->B <= c->slots && b->T <= c->longest && (!b->at || b->T == 1));
    NEB_ASSERT(b->n_pairs <= c->slots);
    if (b->n_pairs)
        kern_stage_upload(d->c.D, c->pairs, b->pairs, 2 * (size_t)b->n_pairs * sizeof *b->pairs);
    for (int32_t l = 0; b->n_pairs && l < d->m->local.n_layers; l++)
        device_ops(d)->cache_copy(d->c.D, d->c.type, &c->layer[l], c->pairs, b->n_pairs,
                                  b->n_copied);
    kern_stage_upload(d->c.D, c->slot, b->slot, bytes);
    if (!b->at)
        return;
    kern_stage_upload(d->c.D, c->at, b->at, bytes);
    device_ops(d)->embed_fwd(d->c.D, KERN_F32, c->angles, d->rope, c->at, b->B, d->m->c.head_dim);
}

bool device_cache_attend(struct intra_device *d, const struct device_acts *a, int32_t l,
                         const struct pass_shape *s, void *out, int ldo, const void *q,
                         const void *k, const void *v, int ld) {
    const struct kern_ops *K = device_ops(d);
    const struct device_cache *c = d->cache;
    const struct kern_cache *own = &c->layer[l - d->m->layer0];
    K->cache_put(d->c.D, s->t, own, s->B, s->T, c->slot, a->follows ? c->at : c->zeros, k, v, ld);
    if (a->follows)
        K->cache_attn(d->c.D, s->t, own, s->B, c->slot, c->at, out, ldo, q, ld);
    return a->follows;
}
