// Memory of a model on an accelerator, its copies to and from the host, and the update.
#include "intra/device_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- memory ---------------------------------------------------------------------------------------------------

// Two passes over the same list, as in forward.c: sizes first, then pointers.
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

static void carve_block(struct carve *c, struct device_block *b, const struct intra_device *d) {
    const struct intra_model_config *m = &d->m->c;
    size_t n = (size_t)d->c.batch * (size_t)d->c.seq_len, t = n * kern_type_bytes(d->c.type),
           D = (size_t)m->head_dim, H = (size_t)m->n_heads, G = (size_t)m->n_kv_heads,
           f = (size_t)m->d_ff, width = (size_t)m->d_model;
    take(c, &b->y1, t * width);
    take(c, &b->rstd1, n * sizeof(float));
    take(c, &b->qkv, t * (H + 2 * G) * D);
    take(c, &b->att, t * H * D);
    take(c, &b->lse, n * H * sizeof(float));
    take(c, &b->h2, n * width * sizeof(float));
    take(c, &b->y2, t * width);
    take(c, &b->rstd2, n * sizeof(float));
    take(c, &b->gu, t * 2 * f);
    take(c, &b->act, t * f);
}

static void carve_blocks(struct carve *c, struct intra_device *d) {
    size_t stream = (size_t)d->c.batch * (size_t)d->c.seq_len * (size_t)d->m->c.d_model;
    for (int32_t l = 0; l < d->m->c.n_layers; l++) {
        struct device_block *b = &d->blocks[l];
        if (l == 0 || !d->c.recompute)
            carve_block(c, b, d);
        else
            *b = d->blocks[0];
        take(c, &b->h1, stream * sizeof(float));
    }
}

static void carve_scratch(struct carve *c, struct intra_device *d) {
    const struct intra_model_config *m = &d->m->c;
    size_t n = (size_t)d->c.batch * (size_t)d->c.seq_len, t = n * kern_type_bytes(d->c.type),
           D = (size_t)m->head_dim, H = (size_t)m->n_heads, G = (size_t)m->n_kv_heads,
           width = (size_t)m->d_model, rank = (size_t)d->m->trainable.lora_rank;
    take(c, &d->r, t * width);
    take(c, &d->hf, n * width * sizeof(float));
    take(c, &d->yf, t * width);
    take(c, &d->rstdf, n * sizeof(float));
    take(c, &d->lora, t * rank);
    take(c, &d->dlora, t * rank);
    take(c, &d->dy, t * width);
    take(c, &d->dqkv, t * (H + 2 * G) * D);
    take(c, &d->datt, t * H * D);
    take(c, &d->delta, n * H * sizeof(float));
    take(c, &d->dact, t * (size_t)m->d_ff);
    take(c, &d->dh, n * width * sizeof(float));
    if (d->c.type == KERN_F32)
        d->dht = d->dh;
    else
        take(c, &d->dht, t * width);
    take(c, &d->losses, n * sizeof(float));
    take(c, &d->logits,
         (size_t)d->logit_rows * (size_t)kern_logits_ld(m->vocab) * kern_type_bytes(d->c.type));
    take(c, &d->batch.tokens, (5 * n + 1) * sizeof(int32_t));
}

static void carve_state(struct carve *c, struct intra_device *d) {
    const struct intra_model *m = d->m;
    size_t tensors = (size_t)m->n_all_tensors;
    take(c, &d->params, m->n_params * sizeof(float));
    take(c, &d->grads, m->n_grads * sizeof(float));
    take(c, &d->moment1, d->o->n * sizeof(float));
    take(c, &d->moment2, d->o->n * sizeof(float));
    if (d->c.type == KERN_F32)
        d->working = d->params;
    else
        take(c, &d->working, m->n_params * kern_type_bytes(d->c.type));
    take(c, &d->rope, (size_t)d->c.seq_len * (size_t)m->c.head_dim * sizeof(float));
    take(c, &d->chunks, (size_t)d->n_chunks * sizeof *d->chunks);
    take(c, &d->first, (tensors + 1) * sizeof *d->first);
    take(c, &d->factors, tensors * sizeof *d->factors);
    take(c, &d->sums, (tensors + 2) * sizeof *d->sums);
    d->total = d->sums ? d->sums + tensors : NULL;
    d->eval_total = d->sums ? d->total + 1 : NULL;
}

static void carve_all(struct carve *c, struct intra_device *d) {
    carve_state(c, d);
    carve_blocks(c, d);
    carve_scratch(c, d);
}

// The integers of a batch, one after the other in `room`.
static struct device_batch batch_in(int32_t *room, size_t n) {
    return (struct device_batch){
        .tokens = room,
        .targets = room + n,
        .rows = {.ids = room + 2 * n, .start = room + 3 * n, .rows = room + 4 * n + 1}};
}
static size_t tokens_of(const struct intra_device *d) {
    return (size_t)d->c.batch * (size_t)d->c.seq_len;
}

static enum neb_status allocate(struct intra_device *d) {
    const struct kern_device_ops *K = device_ops(d);
    struct carve c = {0};
    carve_all(&c, d);
    d->bytes = c.used;
    void *arena = NULL;
    NEB_TRY(K->alloc(d->c.D, d->bytes, &arena));
    d->arena = arena;
    c = (struct carve){.base = arena};
    carve_all(&c, d);
    d->batch = batch_in(d->batch.tokens, tokens_of(d));
    size_t tensors = (size_t)d->m->n_all_tensors;
    for (int i = 0; i < DEVICE_SLOTS; i++) {
        void *p = NULL;
        NEB_TRY(K->alloc_pinned(d->c.D, (5 * tokens_of(d) + 1) * sizeof(int32_t), &p));
        d->batch_pinned[i] = p;
        NEB_TRY(K->alloc_pinned(d->c.D, DEVICE_STAGE_BYTES, &d->stage[i]));
    }
    void *factors = NULL, *sums = NULL;
    NEB_TRY(K->alloc_pinned(d->c.D, tensors * sizeof(float), &factors));
    d->factors_pinned = factors;
    NEB_TRY(K->alloc_pinned(d->c.D, (tensors + 2) * sizeof(double), &sums));
    d->sums_pinned = sums;
    d->next = calloc((size_t)d->m->c.vocab, sizeof *d->next);
    return d->next ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for a batch's tokens");
}

// ---- the update's table ---------------------------------------------------------------------------------------

static int count_chunks(const struct intra_model *m) {
    size_t n = 0;
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].trainable)
            n += (intra_tensor_size(&m->tensors[i]) + KERN_CHUNK - 1) / KERN_CHUNK;
    return (int)n;
}

// One rank: tensors lie in the order of their index.
static enum neb_status send_chunks(struct intra_device *d) {
    const struct intra_model *m = d->m;
    struct kern_chunk *all = calloc((size_t)d->n_chunks + 1, sizeof *all);
    int32_t *first = calloc((size_t)m->n_all_tensors + 1, sizeof *first), n = 0;
    enum neb_status st = NEB_OK;
    if (!all || !first) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory listing tensors");
        goto out;
    }
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        size_t size = t->trainable ? intra_tensor_size(t) : 0;
        NEB_ASSERT(t->index == i);
        first[i] = n;
        for (size_t at = 0; at < size; at += KERN_CHUNK)
            all[n++] = (struct kern_chunk){
                .param_at = t->at + at,
                .grad_at = t->grad_at + at,
                .n = (uint32_t)(size - at < KERN_CHUNK ? size - at : KERN_CHUNK),
                .tensor = i,
                .decay = t->decay};
    }
    NEB_ASSERT(n == d->n_chunks);
    first[m->n_all_tensors] = n;
    device_ops(d)->upload(d->c.D, d->chunks, all, (size_t)n * sizeof *all);
    device_ops(d)->upload(d->c.D, d->first, first, ((size_t)m->n_all_tensors + 1) * sizeof *first);
    st = device_ops(d)->finish(d->c.D);
out:
    free(all);
    free(first);
    return st;
}

// ---- set-up ---------------------------------------------------------------------------------------------------

static enum neb_status takes(const struct intra_device_config *c, const struct intra_model *m) {
    enum { WIDTH_MOST = 49152 }; // a row of fp32 in shared memory (kernels/cuda/rows.cu)
    if (m->mesh)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "%s: a mesh of several ranks trains on CPUs only; "
                        "remove `mesh` or set device: cpu",
                        c->D->name);
    if (c->seq_len > m->c.max_seq)
        return neb_fail(NEB_ERR_INVALID,
                        "sequence of %d tokens is longer than the model's max_seq %d", c->seq_len,
                        m->c.max_seq);
    if (m->c.d_model > WIDTH_MOST)
        return neb_fail(NEB_ERR_UNSUPPORTED, "%s: model.d_model %d is above %d", c->D->name,
                        m->c.d_model, WIDTH_MOST);
    if (c->type == KERN_BF16 && !c->D->tensor_cores_bf16)
        return neb_fail(NEB_ERR_UNSUPPORTED, "%s has no bf16; set precision: fp32", c->D->name);
    return NEB_OK;
}

static int logit_rows(const struct intra_device *d) {
    size_t row = (size_t)kern_logits_ld(d->m->c.vocab) * kern_type_bytes(d->c.type),
           rows = DEVICE_LOGITS_BYTES / row / 64 * 64, n = tokens_of(d);
    rows = rows < 64 ? 64 : rows;
    return (int)(rows < n ? rows : n);
}

static enum neb_status set_up(struct intra_device *d) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    const struct intra_model *m = d->m;
    d->n_chunks = count_chunks(m);
    d->logit_rows = logit_rows(d);
    d->blocks = calloc((size_t)m->c.n_layers, sizeof *d->blocks);
    if (!d->blocks)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a model of %d layers",
                        m->c.n_layers);
    NEB_TRY(allocate(d));
    K->zero(D, d->arena, d->bytes); // gaps between tensors stay zero
    K->upload(D, d->rope, m->rope, (size_t)d->c.seq_len * (size_t)m->c.head_dim * sizeof(float));
    NEB_TRY(K->finish(D));
    NEB_TRY(send_chunks(d));
    NEB_TRY(intra_device_push(d, NULL));
    return intra_device_push_moments(d);
}

enum neb_status intra_device_create(const struct intra_device_config *c, struct intra_model *m,
                                    struct intra_optim *o, struct intra_device **out) {
    NEB_TRY(takes(c, m));
    struct intra_device *d = calloc(1, sizeof *d);
    if (!d)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a trainer");
    d->c = *c;
    d->m = m;
    d->o = o;
    enum neb_status st = set_up(d);
    if (st != NEB_OK)
        intra_device_destroy(&d);
    *out = d;
    return st;
}

void intra_device_destroy(struct intra_device **dp) {
    struct intra_device *d = *dp;
    if (!d)
        return;
    const struct kern_device_ops *K = device_ops(d);
    (void)K->finish(d->c.D); // nothing may still be running on what is freed
    free(d->next);
    K->release_pinned(d->c.D, d->sums_pinned);
    K->release_pinned(d->c.D, d->factors_pinned);
    for (int i = 0; i < DEVICE_SLOTS; i++) {
        K->release_pinned(d->c.D, d->stage[i]);
        K->release_pinned(d->c.D, d->batch_pinned[i]);
    }
    K->release(d->c.D, d->arena);
    free(d->blocks);
    free(d);
    *dp = NULL;
}

size_t intra_device_bytes(const struct intra_device *d) { return d->bytes; }

// ---- steps ----------------------------------------------------------------------------------------------------

// Copies a batch into the pinned buffer whose turn it is, and from there to the device. Returns the targets that count.
static int64_t send_batch(struct intra_device *d, const int32_t *tokens, const int32_t *targets,
                          int B) {
    const struct kern_device_ops *K = device_ops(d);
    size_t n = (size_t)B * (size_t)d->c.seq_len, room = tokens_of(d);
    int slot = d->turn;
    int64_t count = 0;
    d->turn = (d->turn + 1) % DEVICE_SLOTS;
    if (d->batch_used[slot])
        K->wait(d->c.D, MARK_BATCH + slot);
    d->batch_used[slot] = true;
    struct device_batch b = batch_in(d->batch_pinned[slot], room);
    memcpy(b.tokens, tokens, n * sizeof *tokens);
    memcpy(b.targets, targets, n * sizeof *targets);
    for (size_t i = 0; i < n; i++) {
        NEB_ASSERT(tokens[i] >= 0 && tokens[i] < d->m->c.vocab);
        NEB_ASSERT(targets[i] == KERN_IGNORE || (targets[i] >= 0 && targets[i] < d->m->c.vocab));
        count += targets[i] != KERN_IGNORE;
    }
    kern_buckets_fill(&b.rows, b.tokens, (int)n, d->next);
    d->batch.rows.used = b.rows.used;
    K->upload(d->c.D, d->batch.tokens, d->batch_pinned[slot], (5 * room + 1) * sizeof(int32_t));
    K->mark(d->c.D, MARK_BATCH + slot);
    return count;
}

int64_t intra_device_micro(struct intra_device *d, const int32_t *tokens, const int32_t *targets,
                           float grad_scale) {
    int64_t count = send_batch(d, tokens, targets, d->c.batch);
    device_pass(d, d->c.batch, grad_scale, true, d->total);
    return count;
}

enum neb_status intra_device_update(struct intra_device *d, float scale, double *loss,
                                    struct intra_update *out) {
    const struct kern_device_ops *K = device_ops(d);
    struct kern_device *D = d->c.D;
    struct intra_optim *o = d->o;
    int32_t tensors = d->m->n_all_tensors;
    K->sumsq(D, d->chunks, d->n_chunks, d->first, tensors, d->grads, d->sums);
    K->download(D, d->sums_pinned, d->sums, ((size_t)tensors + 1) * sizeof(double));
    K->zero(D, d->total, sizeof *d->total);
    NEB_TRY(K->finish(D));
    *loss = d->sums_pinned[tensors];
    for (int32_t i = 0; i < tensors; i++)
        o->sums[i] = d->sums_pinned[i] * (double)scale * (double)scale;
    if (intra_optim_decide(o, d->m, out)) {
        for (int32_t i = 0; i < tensors; i++)
            d->factors_pinned[i] = o->factors[i] * scale;
        K->upload(D, d->factors, d->factors_pinned, (size_t)tensors * sizeof(float));
        struct kern_device_adamw a = {.c = intra_optim_adamw(o, out->lr),
                                      .chunks = d->chunks,
                                      .n_chunks = d->n_chunks,
                                      .factors = d->factors,
                                      .params = d->params,
                                      .grads = d->grads,
                                      .m = d->moment1,
                                      .v = d->moment2,
                                      .working = d->c.type == KERN_F32 ? NULL : d->working};
        a.c.weight_decay = o->c.weight_decay; // where the chunk says so
        K->adamw(D, d->c.type, &a);
    } else {
        K->zero(D, d->grads, d->m->n_grads * sizeof(float));
    }
    o->t++;
    return NEB_OK;
}

enum neb_status intra_device_eval(struct intra_device *d, const int32_t *tokens,
                                  const int32_t *targets, int n, double *loss, int64_t *count) {
    const struct kern_device_ops *K = device_ops(d);
    *count = 0;
    K->zero(d->c.D, d->eval_total, sizeof *d->eval_total);
    for (int at = 0; at < n; at += d->c.batch) {
        int b = n - at < d->c.batch ? n - at : d->c.batch;
        size_t off = (size_t)at * (size_t)d->c.seq_len;
        *count += send_batch(d, tokens + off, targets + off, b);
        device_pass(d, b, 0, false, d->eval_total);
    }
    K->download(d->c.D, d->sums_pinned, d->eval_total, sizeof *loss);
    NEB_TRY(K->finish(d->c.D));
    *loss = d->sums_pinned[0];
    return NEB_OK;
}

// ---- copies ---------------------------------------------------------------------------------------------------

// Pieces of host memory and device memory of the same length, through the two pinned buffers: while one is copied by the
// host, the other travels.
struct stream {
    struct intra_device *d;
    int turn;
    struct {
        void *host; // where a buffer's content goes to; NULL: nothing is in it
        size_t bytes;
        bool used;
    } slot[DEVICE_SLOTS];
};

static void settle(struct stream *s, int slot) {
    if (!s->slot[slot].used)
        return;
    device_ops(s->d)->wait(s->d->c.D, MARK_STAGE + slot);
    if (s->slot[slot].host)
        memcpy(s->slot[slot].host, s->d->stage[slot], s->slot[slot].bytes);
    s->slot[slot].used = false;
}

static void piece(struct stream *s, void *host, void *device, size_t bytes, bool down) {
    const struct kern_device_ops *K = device_ops(s->d);
    int slot = s->turn;
    s->turn = (s->turn + 1) % DEVICE_SLOTS;
    settle(s, slot);
    if (down) {
        K->download(s->d->c.D, s->d->stage[slot], device, bytes);
    } else {
        memcpy(s->d->stage[slot], host, bytes);
        K->upload(s->d->c.D, device, s->d->stage[slot], bytes);
    }
    K->mark(s->d->c.D, MARK_STAGE + slot);
    s->slot[slot].host = down ? host : NULL;
    s->slot[slot].bytes = bytes;
    s->slot[slot].used = true;
}

static void move(struct stream *s, float *host, float *device, size_t n, bool down) {
    const size_t most = DEVICE_STAGE_BYTES / sizeof(float);
    for (size_t at = 0; at < n; at += most) {
        size_t len = n - at < most ? n - at : most;
        piece(s, host + at, device + at, len * sizeof(float), down);
    }
}

static enum neb_status stream_end(struct stream *s) {
    for (int i = 0; i < DEVICE_SLOTS; i++)
        settle(s, (s->turn + i) % DEVICE_SLOTS);
    return device_ops(s->d)->finish(s->d->c.D);
}

enum neb_status intra_device_pull(struct intra_device *d, const bool *wanted) {
    struct stream s = {.d = d};
    const struct intra_model *m = d->m;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (t->trainable && (!wanted || wanted[t->index])) // the others are as they were pushed
            move(&s, m->params + t->at, d->params + t->at, intra_tensor_size(t), true);
    }
    return stream_end(&s);
}

enum neb_status intra_device_push(struct intra_device *d, const bool *wanted) {
    struct stream s = {.d = d};
    const struct intra_model *m = d->m;
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (wanted && !wanted[t->index])
            continue;
        move(&s, m->params + t->at, d->params + t->at, intra_tensor_size(t), false);
        if (d->c.type != KERN_F32)
            device_ops(d)->cast(d->c.D, d->c.type, device_weight(d, t), d->params + t->at,
                                intra_tensor_size(t));
    }
    return stream_end(&s);
}

float *intra_device_param(const struct intra_device *d, const struct intra_tensor *t) {
    return d->params + t->at;
}

enum neb_status intra_device_changed(struct intra_device *d, const bool *wanted) {
    const struct intra_model *m = d->m;
    for (int32_t i = 0; i < m->n_tensors && d->c.type != KERN_F32; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        if (!wanted || wanted[t->index])
            device_ops(d)->cast(d->c.D, d->c.type, device_weight(d, t), d->params + t->at,
                                intra_tensor_size(t));
    }
    return device_ops(d)->finish(d->c.D);
}

static enum neb_status moments(struct intra_device *d, bool down) {
    struct stream s = {.d = d};
    move(&s, d->o->m, d->moment1, d->o->n, down);
    move(&s, d->o->v, d->moment2, d->o->n, down);
    return stream_end(&s);
}
enum neb_status intra_device_pull_moments(struct intra_device *d) { return moments(d, true); }
enum neb_status intra_device_push_moments(struct intra_device *d) { return moments(d, false); }
