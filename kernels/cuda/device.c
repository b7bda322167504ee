// SPDX-License-Identifier: Apache-2.0
// The CUDA device behind kernels/kern.h: memory, one stream, sticky errors. Each op calls its
// launcher (launch.h) or cuBLASLt (gemm.h).
#include "kernels/cuda/launch.h"
#include "kernels/cuda/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static bool recording(struct kern *D) { return of(D)->recorder.on; }
// True if nothing more may be enqueued: the device has failed, or the recording in progress has.
static bool broken(struct kern *D) {
    return of(D)->failed != NEB_OK || (recording(D) && of(D)->recorder.failed);
}

static void keep(struct kern *D, cudaError_t e, const char *what) {
    if (e == cudaSuccess || broken(D))
        return;
    if (recording(D))
        kern_cu_record_fail(&of(D)->recorder, what, cudaGetErrorString(e));
    else
        of(D)->failed = neb_fail(e == cudaErrorMemoryAllocation ? NEB_ERR_NOMEM : NEB_ERR_IO,
                                 "%s: %s: CUDA error: %s", D->name, what, cudaGetErrorString(e));
}

// Returns false while the queue is recorded, and makes the recording fail: the host would have to
// wait.
static bool may_wait(struct kern *D, const char *what) {
    if (recording(D))
        kern_cu_record_fail(&of(D)->recorder, what, "not allowed while recording");
    return !recording(D);
}

// Spins at first, since most waits are short.
static void pause_a_little(int turn) {
    const struct timespec t = {.tv_nsec = 50000};
    if (turn > 1000)
        nanosleep(&t, NULL);
}

// Waits until the queue has passed `event`, or, if event is NULL, until the queue is empty.
static void await(struct kern *D, cudaEvent_t event, const char *what) {
    cudaStream_t s = of(D)->s;
    for (int turn = 0; D->watch; turn++) {
        cudaError_t e = event ? cudaEventQuery(event) : cudaStreamQuery(s);
        if (e != cudaErrorNotReady)
            break;
        (void)cudaGetLastError(); // otherwise the next launch would report it
        if (!D->watch(D->watch_ctx, turn == 0))
            break;
        pause_a_little(turn);
    }
    keep(D, event ? cudaEventSynchronize(event) : cudaStreamSynchronize(s), what);
}

static void free_outgrown(struct cuda *c) {
    for (int i = 0; i < c->n_outgrown; i++)
        (void)cudaFree(c->outgrown[i]);
    free(c->outgrown);
    c->outgrown = NULL;
    c->n_outgrown = 0;
}

// A graph keeps the address of the scratch that it was recorded with, so that memory must stay.
static void outgrow(struct cuda *c) {
    void **more = NULL;
    if (c->graphs > 0 && c->scratch)
        more = realloc(c->outgrown, ((size_t)c->n_outgrown + 1) * sizeof *more);
    if (more) {
        more[c->n_outgrown++] = c->scratch;
        c->outgrown = more;
        // without host memory to note the old scratch, it is never freed, because graphs may use it
    } else if (c->graphs == 0) {
        (void)cudaFree(c->scratch);
    }
    c->scratch = NULL;
    c->scratch_bytes = 0;
}

// Scratch for one op. All ops are on one stream, so the previous op no longer needs it.
static void *scratch(struct kern *D, size_t bytes) {
    struct cuda *c = of(D);
    if (bytes <= c->scratch_bytes || broken(D) || !may_wait(D, "growing scratch"))
        return c->scratch;
    await(D, NULL, "growing scratch");
    outgrow(c);
    cudaError_t e = cudaMalloc(&c->scratch, bytes);
    keep(D, e, "growing scratch");
    c->scratch_bytes = e == cudaSuccess ? bytes : 0;
    return c->scratch;
}

// ---- memory

static enum neb_status alloc(struct kern *D, size_t bytes, void **out) {
    cudaError_t e = cudaMalloc(out, bytes ? bytes : 1);
    if (e == cudaSuccess)
        return NEB_OK;
    size_t left = 0, all = 0;
    (void)cudaGetLastError(); // otherwise the next launch would report it
    (void)cudaMemGetInfo(&left, &all);
    *out = NULL;
    return neb_fail(
        NEB_ERR_NOMEM,
        "%s: cannot allocate %.1f GB of device memory: %.1f of %.1f GB are free (%s); lower "
        "data.batch, set recompute: true, or see with nvidia-smi who else uses this GPU",
        D->name, (double)bytes * 1e-9, (double)left * 1e-9, (double)all * 1e-9,
        cudaGetErrorString(e));
}
static void release(struct kern *D, void *p) {
    (void)D;
    (void)cudaFree(p);
}
static enum neb_status alloc_pinned(struct kern *D, size_t bytes, void **out) {
    cudaError_t e = cudaHostAlloc(out, bytes ? bytes : 1, cudaHostAllocDefault);
    if (e == cudaSuccess)
        return NEB_OK;
    (void)cudaGetLastError();
    *out = NULL;
    return neb_fail(NEB_ERR_NOMEM, "%s: cannot allocate %zu bytes of pinned host memory: %s",
                    D->name, bytes, cudaGetErrorString(e));
}
static void release_pinned(struct kern *D, void *p) {
    (void)D;
    if (p)
        (void)cudaFreeHost(p);
}
static size_t free_bytes(struct kern *D) {
    size_t left = 0, all = 0;
    keep(D, cudaMemGetInfo(&left, &all), "asking for free memory");
    return left;
}
static void transfer(struct kern *D, void *dst, const void *src, size_t bytes,
                     enum cudaMemcpyKind kind, const char *what) {
    if (bytes && !broken(D))
        keep(D, cudaMemcpyAsync(dst, src, bytes, kind, of(D)->s), what);
}
static void upload(struct kern *D, void *dst, const void *src, size_t bytes) {
    transfer(D, dst, src, bytes, cudaMemcpyHostToDevice, "copy to the device");
}
static void download(struct kern *D, void *dst, const void *src, size_t bytes) {
    transfer(D, dst, src, bytes, cudaMemcpyDeviceToHost, "copy from the device");
}
static void copy(struct kern *D, void *dst, const void *src, size_t bytes) {
    transfer(D, dst, src, bytes, cudaMemcpyDeviceToDevice, "copy on the device");
}
static void zero(struct kern *D, void *p, size_t bytes) {
    if (bytes && !broken(D))
        keep(D, cudaMemsetAsync(p, 0, bytes, of(D)->s), "zeroing");
}
static void mark(struct kern *D, int slot) {
    NEB_ASSERT(slot >= 0 && slot < KERN_MARKS);
    if (recording(D))
        kern_cu_record_mark(&of(D)->recorder, slot);
    else if (!broken(D))
        keep(D, cudaEventRecord(of(D)->marks[slot], of(D)->s), "marking a place in the queue");
}
static void wait(struct kern *D, int slot) {
    NEB_ASSERT(slot >= 0 && slot < KERN_MARKS);
    if (may_wait(D, "waiting for the device") && !broken(D))
        await(D, of(D)->marks[slot], "waiting for the device");
}
static double elapsed_ms(struct kern *D, int from, int to) {
    float ms = 0;
    if (may_wait(D, "timing") && !broken(D))
        keep(D, cudaEventElapsedTime(&ms, of(D)->marks[from], of(D)->marks[to]), "timing");
    return (double)ms;
}
static enum neb_status finish(struct kern *D) {
    if (!may_wait(D, "waiting for the device"))
        return NEB_ERR_STATE;
    if (!broken(D))
        await(D, NULL, "waiting for the device");
    return of(D)->failed;
}
static void *queue(struct kern *D) { return of(D)->s; }

// ---- a device that is shared with another program's code

static void join(struct kern *D, cudaStream_t waits, cudaStream_t other) {
    NEB_ASSERT(!recording(D));
    if (broken(D))
        return;
    keep(D, cudaEventRecord(of(D)->joint, other), "marking a place in a stream");
    if (!broken(D))
        keep(D, cudaStreamWaitEvent(waits, of(D)->joint, 0), "letting a stream wait");
}
static void after(struct kern *D, void *theirs) { join(D, of(D)->s, theirs); }
static void before(struct kern *D, void *theirs) { join(D, theirs, of(D)->s); }
static int enter(struct kern *D) {
    int was = D->index;
    keep(D, cudaGetDevice(&was), "asking for the current device");
    if (was != D->index)
        keep(D, cudaSetDevice(D->index), "changing the current device");
    return was;
}
static void leave(struct kern *D, int was) {
    if (was != D->index)
        keep(D, cudaSetDevice(was), "changing the current device");
}

// ---- graphs (record.h)

static void record(struct kern *D) {
    NEB_ASSERT(!recording(D));
    kern_cu_record_begin(&of(D)->recorder, of(D)->s);
}
static enum neb_status record_end(struct kern *D, struct kern_graph **out, char why[KERN_WHY_MAX]) {
    NEB_ASSERT(recording(D));
    *out = kern_cu_record_end(&of(D)->recorder);
    of(D)->graphs += *out != NULL;
    snprintf(why, KERN_WHY_MAX, "%s", of(D)->recorder.why);
    return *out ? NEB_OK : NEB_ERR_UNSUPPORTED;
}
static void replay(struct kern *D, const struct kern_graph *g) {
    NEB_ASSERT(!recording(D));
    if (!broken(D))
        keep(D, kern_cu_replay(g, of(D)->s, of(D)->marks), "replaying a graph");
}
static void forget(struct kern *D, struct kern_graph **g) {
    if (!*g)
        return;
    NEB_ASSERT(!recording(D));
    await(D, NULL, "forgetting a graph");
    kern_cu_graph_destroy(*g);
    *g = NULL;
    if (--of(D)->graphs == 0)
        free_outgrown(of(D));
}

// ---- ops

#define RUN(D, what, call)                                                                         \
    do {                                                                                           \
        if (!broken(D))                                                                            \
            keep(D, call, what);                                                                   \
    } while (0)

// A recorded product must use the kernel that was chosen when it ran without recording.
static bool known(struct kern *D, const struct kern_cu_product *p) {
    if (recording(D) && !kern_cu_gemm_knows(of(D)->gemm, p))
        kern_cu_record_fail(&of(D)->recorder, "a product", "it has not run before");
    return !broken(D);
}
// Returns false if there is no kernel with sums: nothing was enqueued, and nothing has failed.
static bool product(struct kern *D, const struct kern_cu_product *p) {
    const char *wrong =
        known(D, p) ? kern_cu_gemm_run(of(D)->gemm, p, of(D)->s, recording(D)) : NULL;
    if (wrong == kern_cu_gemm_no_sums)
        return false;
    if (wrong && recording(D))
        kern_cu_record_fail(&of(D)->recorder, "a product", wrong);
    else if (wrong)
        of(D)->failed = neb_fail(NEB_ERR_IO, "%s: %s: %d x %d x %d, %s", D->name, wrong, p->g.m,
                                 p->g.n, p->g.k, p->g.t == KERN_BF16 ? "bf16" : "fp32");
    return true;
}
static void gemm(struct kern *D, const struct kern_gemm *g) {
    struct kern_cu_product p = {.g = *g};
    (void)product(D, &p); // returns false only if the product has sums
}

static void cast(struct kern *D, enum kern_type t, void *out, const float *x, size_t n) {
    RUN(D, "cast", kern_cu_cast(t, out, x, n, of(D)->s));
}
static void embed_fwd(struct kern *D, enum kern_type t, void *out, const void *table,
                      const int32_t *ids, int n, int d) {
    RUN(D, "embedding", kern_cu_embed_fwd(t, out, table, ids, n, d, of(D)->s));
}
static void embed_bwd(struct kern *D, float *dtable, const float *dout,
                      const struct kern_buckets *b, int n, int d) {
    RUN(D, "embedding gradient", kern_cu_embed_bwd(dtable, dout, b, n, d, of(D)->s));
}
static void rmsnorm_fwd(struct kern *D, enum kern_type t, enum kern_type tr, void *y, float *rstd,
                        float *h, const float *x, const void *r, const float *w, int n, int d,
                        float eps) {
    NEB_ASSERT(tr == t || tr == KERN_F32);
    RUN(D, "RMSNorm", kern_cu_rmsnorm_fwd(t, tr, y, rstd, h, x, r, w, n, d, eps, of(D)->s));
}
static void rmsnorm_bwd(struct kern *D, enum kern_type t, float *dh, void *dh_t, float *dw,
                        const void *dy, const float *h, const float *w, const float *rstd, int n,
                        int d) {
    float *room = dw ? scratch(D, kern_cu_rmsnorm_bwd_scratch(n, d) * sizeof(float)) : NULL;
    RUN(D, "RMSNorm gradient",
        kern_cu_rmsnorm_bwd(t, dh, dh_t, dw, dy, h, w, rstd, n, d, room, of(D)->s));
}
static void rope(struct kern *D, enum kern_type t, void *x, int ld, const float *cos_sin, int n,
                 int T, int heads, int head_dim, bool inverse) {
    RUN(D, "rotary positions",
        kern_cu_rope(t, x, ld, cos_sin, n, T, heads, head_dim, inverse, of(D)->s));
}

static bool by_tensor_cores(enum kern_type t, const struct kern_attn *s, const void *const p[],
                            int n_p, const int ld[4]) {
    return t == KERN_BF16 && kern_cu_attn_mma_takes(s, p, n_p, ld, 4);
}
static bool by_warp_groups(struct kern *D, enum kern_type t, const struct kern_attn *s,
                           const void *const p[], int n_p, const int ld[4]) {
    return of(D)->hopper && t == KERN_BF16 && kern_cu_attn_wgmma_takes(s, p, n_p, ld, 4);
}
static void attn_fwd(struct kern *D, enum kern_type t, const struct kern_attn *s, void *out,
                     int ldo, float *lse, const void *q, int ldq, const void *k, int ldk,
                     const void *v, int ldv) {
    const void *const p[] = {out, q, k, v};
    const int ld[] = {ldo, ldq, ldk, ldv};
    if (by_warp_groups(D, t, s, p, 4, ld))
        RUN(D, "attention",
            kern_cu_attn_fwd_wgmma(s, out, ldo, lse, q, ldq, k, ldk, v, ldv, of(D)->s));
    else if (by_tensor_cores(t, s, p, 4, ld))
        RUN(D, "attention",
            kern_cu_attn_fwd_mma(s, out, ldo, lse, q, ldq, k, ldk, v, ldv, of(D)->s));
    else
        RUN(D, "attention",
            kern_cu_attn_fwd_simple(t, s, out, ldo, lse, q, ldq, k, ldk, v, ldv, of(D)->s));
}
static void attn_bwd(struct kern *D, enum kern_type t, const struct kern_attn *s, void *dq,
                     void *dk, void *dv, const void *dout, const void *out, int ldo,
                     const float *lse, const void *q, int ldq, const void *k, int ldk,
                     const void *v, int ldv, float *delta, const float *cos_sin) {
    const void *const p[] = {dout, q, k, v, dq, dk, dv, cos_sin, out};
    const int rows = s->B * s->T;
    const int ld[] = {ldo, ldq, ldk, ldv};
    if (by_warp_groups(D, t, s, p, 9, ld)) {
        RUN(D, "attention gradient",
            kern_cu_attn_bwd_wgmma(s, dq, dk, dv, dout, out, ldo, lse, q, ldq, k, ldk, v, ldv,
                                   delta, cos_sin, of(D)->s));
        return;
    }
    RUN(D, "attention gradient", kern_cu_attn_delta(t, s, delta, dout, out, ldo, of(D)->s));
    if (by_tensor_cores(t, s, p, 8, ld)) {
        RUN(D, "attention gradient",
            kern_cu_attn_bwd_mma(s, dq, dk, dv, dout, ldo, lse, q, ldq, k, ldk, v, ldv, delta,
                                 cos_sin, of(D)->s));
        return;
    }
    RUN(D, "attention gradient",
        kern_cu_attn_bwd_simple(t, s, dq, dk, dv, dout, ldo, lse, q, ldq, k, ldk, v, ldv, delta,
                                of(D)->s));
    if (cos_sin) {
        rope(D, t, dq, ldq, cos_sin, rows, s->T, s->n_heads, s->head_dim, true);
        rope(D, t, dk, ldk, cos_sin, rows, s->T, s->n_kv_heads, s->head_dim, true);
    }
}
static void cache_put(struct kern *D, enum kern_type t, const struct kern_cache *c, int B, int T,
                      const int32_t *slot, const int32_t *at, const void *k, const void *v,
                      int ld) {
    RUN(D, "cache", kern_cu_cache_put(t, c, B, T, slot, at, k, v, ld, of(D)->s));
}
static void cache_copy(struct kern *D, enum kern_type t, const struct kern_cache *c,
                       const int32_t *pairs, int m, int n) {
    RUN(D, "cache", kern_cu_cache_copy(t, c, pairs, m, n, of(D)->s));
}
static void cache_attn(struct kern *D, enum kern_type t, const struct kern_cache *c, int B,
                       const int32_t *slot, const int32_t *at, void *out, int ldo, const void *q,
                       int ldq) {
    RUN(D, "attention over a cache",
        kern_cu_cache_attn(t, c, B, slot, at, out, ldo, q, ldq, of(D)->s));
}
static void swiglu_fwd(struct kern *D, enum kern_type t, void *y, const void *gu, int n, int f) {
    RUN(D, "SwiGLU", kern_cu_swiglu_fwd(t, y, gu, n, f, of(D)->s));
}
static void swiglu_bwd(struct kern *D, enum kern_type t, void *dgu, const void *dy, const void *gu,
                       int n, int f) {
    RUN(D, "SwiGLU gradient", kern_cu_swiglu_bwd(t, dgu, dy, gu, n, f, of(D)->s));
}
static void bias_fwd(struct kern *D, enum kern_type t, void *x, const float *b, int n, int d) {
    RUN(D, "bias", kern_cu_bias_fwd(t, x, b, n, d, of(D)->s));
}
static void bias_bwd(struct kern *D, enum kern_type t, float *db, const void *dy, int n, int d) {
    float *room = scratch(D, kern_cu_bias_bwd_scratch(n, d) * sizeof(float));
    RUN(D, "bias gradient", kern_cu_bias_bwd(t, db, dy, NULL, n, d, room, of(D)->s));
}

// dW and db: if the library can sum dy along with the product, dy is read once for both. It
// overwrites p.sums, which are then added to db.
static void grads(struct kern *D, const struct kern_linear_bwd *l) {
    struct kern_cu_product p = {.g = kern_linear_dw(l)};
    if (l->db) {
        p.sums = scratch(D, (size_t)l->out * sizeof(float));
        if (!known(D, &p))
            return;
        if (product(D, &p)) {
            RUN(D, "bias gradient", kern_cu_add(l->db, p.sums, (size_t)l->out, of(D)->s));
            return;
        }
        p.sums = NULL;
        bias_bwd(D, l->t, l->db, l->dy, l->n, l->out);
    }
    (void)product(D, &p); // never false without sums
}
static void linear_bwd(struct kern *D, const struct kern_linear_bwd *l) {
    NEB_ASSERT(!l->db || l->ld == l->out);
    if (l->dw)
        grads(D, l);
    else if (l->db)
        bias_bwd(D, l->t, l->db, l->dy, l->n, l->out);
    const struct kern_gemm dx = kern_linear_dx(l);
    if (l->dx)
        gemm(D, &dx);
}

static void loss_total(struct kern *D, double *total, const float *losses, int n) {
    RUN(D, "sum of losses", kern_cu_loss_total(total, losses, n, of(D)->s));
}

// z (n, V; stride ld) of type tz = alpha times rows x times w.
static void form_logits(struct kern *D, enum kern_type t, enum kern_type tz, void *z, const void *x,
                        int n, const void *w, int V, int d, float alpha) {
    struct kern_gemm g = kern_linear(t, tz, n, V, d, x, w, z);
    g.alpha = alpha;
    g.ldc = kern_logits_ld(V);
    gemm(D, &g);
}

// For each block of rows: the logits, the loss, the logits' gradient in place, then the gradients
// of x and w.
static void head_loss(struct kern *D, enum kern_type t, const struct kern_head *h,
                      const struct kern_soft *soft) {
    bool learn = h->dx || h->dw;
    for (int from = 0; from < h->n; from += h->rows) {
        int n = h->n - from < h->rows ? h->n - from : h->rows;
        const void *x = kern_at(t, h->x, (size_t)from * (size_t)h->d);
        form_logits(D, t, t, h->logits, x, n, h->w, h->V, h->d, 1);
        struct kern_soft here;
        if (soft) {
            here = *soft;
            here.ids += (size_t)from * (size_t)soft->k;
            here.logp += (size_t)from * (size_t)soft->k;
            here.tail += from;
        }
        RUN(D, soft ? "distillation" : "cross-entropy",
            kern_cu_loss_rows(t, h->logits, n, h->V, kern_logits_ld(h->V), h->targets + from,
                              h->grad_scale, learn, h->losses + from, soft ? &here : NULL,
                              of(D)->s));
        if (!learn)
            continue;
        linear_bwd(D, &(struct kern_linear_bwd){
                          .t = t,
                          .tx = t,
                          .n = n,
                          .out = h->V,
                          .in = h->d,
                          .dy = h->logits,
                          .ld = kern_logits_ld(h->V),
                          .x = x,
                          .w = h->w,
                          .dx = h->dx ? kern_at(t, h->dx, (size_t)from * (size_t)h->d) : NULL,
                          .dw = h->dw});
    }
    loss_total(D, h->total, h->losses, h->n);
}

static void vocab_max(struct kern *D, enum kern_type t, const struct kern_vocab *v) {
    RUN(D, "largest logits", kern_cu_vocab_max(t, v, of(D)->s));
}
static void vocab_sum(struct kern *D, enum kern_type t, const struct kern_vocab *v) {
    RUN(D, "sums of exponentials", kern_cu_vocab_sum(t, v, of(D)->s));
}
static void vocab_loss(struct kern *D, enum kern_type t, const struct kern_vocab *v) {
    RUN(D, "cross-entropy", kern_cu_vocab_loss(t, v, of(D)->s));
    loss_total(D, v->total, v->losses, v->n);
}

static void rtd_loss(struct kern *D, enum kern_type t, const struct kern_rtd *h) {
    float *room = h->dx ? scratch(D, kern_cu_rtd_scratch(h->n, h->d) * sizeof(float)) : NULL;
    RUN(D, "detection", kern_cu_rtd(t, h, room, of(D)->s));
}

// Forms the logits, times alpha, of the rows from `from` on, as many as fit into the scratch.
// Returns how many.
static int logits_of(struct kern *D, enum kern_type t, const struct kern_rows *r, int from,
                     float alpha) {
    int n = r->n - from < r->block ? r->n - from : r->block;
    embed_fwd(D, t, r->gathered, r->x, r->at + from, n, r->d);
    form_logits(D, t, KERN_F32, r->logits, r->gathered, n, r->w, r->V, r->d, alpha);
    return n;
}
static void sample_rows(struct kern *D, enum kern_type t, const struct kern_rows *r,
                        float temperature, const double *u, int32_t *ids) {
    for (int from = 0; from < r->n; from += r->block) {
        int n = logits_of(D, t, r, from, 1 / temperature);
        RUN(D, "drawing tokens",
            kern_cu_sample_rows(r->logits, n, r->V, kern_logits_ld(r->V), u + from, ids + from,
                                of(D)->s));
    }
}
static void label_rows(struct kern *D, enum kern_type t, const struct kern_rows *r, int k,
                       float temperature, int32_t *ids, float *logp, float *tail) {
    for (int from = 0; from < r->n; from += r->block) {
        int n = logits_of(D, t, r, from, 1);
        size_t at = (size_t)from * (size_t)k;
        RUN(D, "soft labels",
            kern_cu_label_rows(r->logits, n, r->V, kern_logits_ld(r->V), k, temperature, ids + at,
                               logp + at, tail + from, r->log_sums ? r->log_sums + from : NULL,
                               of(D)->s));
    }
}

static void sumsq(struct kern *D, const struct kern_chunk *chunks, int n_chunks,
                  const int32_t *first, int tensors, const float *grads, double *sums) {
    double *room = scratch(D, (size_t)n_chunks * sizeof *room);
    RUN(D, "gradient norms",
        kern_cu_sumsq(chunks, n_chunks, first, tensors, grads, sums, room, of(D)->s));
}
static void adamw(struct kern *D, enum kern_type t, const struct kern_update *a) {
    RUN(D, "AdamW", kern_cu_adamw(t, a, of(D)->s));
}
static void normalise(struct kern *D, enum kern_type t, void *x, int ldx, const float *g, int rows,
                      int cols, const double *sumsq) {
    RUN(D, "normalise", kern_cu_normalise(t, x, ldx, g, rows, cols, sumsq, of(D)->s));
}
static void matrix_step(struct kern *D, enum kern_type t, const struct kern_matrix_step *a) {
    RUN(D, "Muon", kern_cu_matrix_step(t, a, of(D)->s));
}
static void scale(struct kern *D, float *y, float a, size_t n) {
    RUN(D, "scale", kern_cu_scale(y, a, n, of(D)->s));
}
static void add(struct kern *D, float *y, const float *x, size_t n) {
    RUN(D, "add", kern_cu_add(y, x, n, of(D)->s));
}

static void exact_add_rows(struct kern *D, float *acc, const float *x, const float *w, size_t rows,
                           size_t cols) {
    RUN(D, "weighted sum", kern_cu_exact_add_rows(acc, x, w, rows, cols, of(D)->s));
}
static void exact_add_scaled(struct kern *D, float *acc, const float *x, float w, size_t n) {
    RUN(D, "weighted sum", kern_cu_exact_add_scaled(acc, x, w, n, of(D)->s));
}
static void exact_outer_step(struct kern *D, float *theta, float *v, const float *delta, float eta,
                             float mu, size_t n) {
    RUN(D, "outer step", kern_cu_exact_outer_step(theta, v, delta, eta, mu, n, of(D)->s));
}
static void exact_pseudo_gradient(struct kern *D, float *u, const float *theta,
                                  const float *theta_m, float beta, size_t n) {
    RUN(D, "pseudo-gradient", kern_cu_exact_pseudo_gradient(u, theta, theta_m, beta, n, of(D)->s));
}
static void exact_residual(struct kern *D, float *u, const float *d, size_t n) {
    RUN(D, "residual", kern_cu_exact_residual(u, d, n, of(D)->s));
}
static void exact_rebase(struct kern *D, float *theta_m, const float *theta, const float *sent,
                         size_t n) {
    RUN(D, "rebase", kern_cu_exact_rebase(theta_m, theta, sent, n, of(D)->s));
}
static void exact_digest(struct kern *D, struct kern_digest *sum, const float *theta,
                         const float *v, uint64_t first_index, size_t n) {
    RUN(D, "digest", kern_cu_exact_digest(sum, theta, v, first_index, n, of(D)->s));
}
static void absmax(struct kern *D, uint32_t *bits, const float *x, size_t n) {
    RUN(D, "largest magnitude", kern_cu_absmax(bits, x, n, of(D)->s));
}
static void encode_blocks(struct kern *D, uint8_t *scales, uint8_t *codes, const float *x, size_t n,
                          uint32_t block, int levels, bool four_bits, int top) {
    RUN(D, "encoding",
        kern_cu_encode_blocks(scales, codes, x, n, block, levels, four_bits, top, of(D)->s));
}
static void decode_blocks(struct kern *D, float *out, const uint8_t *scales, const uint8_t *codes,
                          size_t n, uint32_t block, bool four_bits, int top, uint32_t *bad) {
    zero(D, bad, sizeof *bad);
    RUN(D, "decoding",
        kern_cu_decode_blocks(out, scales, codes, n, block, four_bits, top, bad, of(D)->s));
}
static void bf16_split(struct kern *D, uint8_t *high, uint8_t *low, const float *x, size_t n) {
    RUN(D, "encoding", kern_cu_bf16_split(high, low, x, n, of(D)->s));
}
static void bf16_join(struct kern *D, float *out, const uint8_t *high, const uint8_t *low,
                      size_t n) {
    RUN(D, "decoding", kern_cu_bf16_join(out, high, low, n, of(D)->s));
}
static void topk(struct kern *D, uint16_t *idx, float *values, const float *x, size_t n,
                 uint32_t chunk, uint32_t k, uint32_t k_last) {
    RUN(D, "top-k", kern_cu_topk(idx, values, x, n, chunk, k, k_last, of(D)->s));
}
static void scatter(struct kern *D, float *out, size_t n, const uint32_t *at, const float *x,
                    size_t m) {
    RUN(D, "decoding", kern_cu_scatter(out, n, at, x, m, of(D)->s));
}

static void piece_read(struct kern *D, float *unit, const float *shadow,
                       const struct kern_piece *p) {
    RUN(D, "reading a part of a tensor", kern_cu_piece_read(unit, shadow, p, of(D)->s));
}
static void piece_write(struct kern *D, const struct kern_piece *p, const float *unit,
                        float *shadow) {
    RUN(D, "writing a part of a tensor", kern_cu_piece_write(p, unit, shadow, of(D)->s));
}

static void destroy(struct kern *D) {
    struct cuda *c = of(D);
    if (c->s)
        (void)cudaStreamSynchronize(c->s);
    (void)cudaFree(c->scratch);
    free_outgrown(c);
    kern_cu_gemm_destroy(&c->gemm);
    for (int i = 0; i < KERN_MARKS; i++)
        if (c->marks[i])
            (void)cudaEventDestroy(c->marks[i]);
    if (c->joint)
        (void)cudaEventDestroy(c->joint);
    if (c->s)
        (void)cudaStreamDestroy(c->s);
    free(c);
    free(D);
}

const struct kern_ops kern_cu_ops = {
    .name = "cuda",
    .alloc = alloc,
    .release = release,
    .alloc_pinned = alloc_pinned,
    .release_pinned = release_pinned,
    .free_bytes = free_bytes,
    .upload = upload,
    .download = download,
    .copy = copy,
    .zero = zero,
    .mark = mark,
    .wait = wait,
    .elapsed_ms = elapsed_ms,
    .finish = finish,
    .queue = queue,
    .record = record,
    .record_end = record_end,
    .replay = replay,
    .forget = forget,
    .gemm = gemm,
    .linear_bwd = linear_bwd,
    .cast = cast,
    .embed_fwd = embed_fwd,
    .embed_bwd = embed_bwd,
    .rmsnorm_fwd = rmsnorm_fwd,
    .rmsnorm_bwd = rmsnorm_bwd,
    .rope = rope,
    .attn_fwd = attn_fwd,
    .attn_bwd = attn_bwd,
    .cache_put = cache_put,
    .cache_copy = cache_copy,
    .cache_attn = cache_attn,
    .swiglu_fwd = swiglu_fwd,
    .swiglu_bwd = swiglu_bwd,
    .bias_fwd = bias_fwd,
    .bias_bwd = bias_bwd,
    .head_loss = head_loss,
    .vocab_max = vocab_max,
    .vocab_sum = vocab_sum,
    .vocab_loss = vocab_loss,
    .rtd_loss = rtd_loss,
    .sample_rows = sample_rows,
    .label_rows = label_rows,
    .sumsq = sumsq,
    .adamw = adamw,
    .normalise = normalise,
    .matrix_step = matrix_step,
    .scale = scale,
    .add = add,
    .exact_add_rows = exact_add_rows,
    .exact_add_scaled = exact_add_scaled,
    .exact_outer_step = exact_outer_step,
    .exact_pseudo_gradient = exact_pseudo_gradient,
    .exact_residual = exact_residual,
    .exact_rebase = exact_rebase,
    .exact_digest = exact_digest,
    .absmax = absmax,
    .encode_blocks = encode_blocks,
    .decode_blocks = decode_blocks,
    .bf16_split = bf16_split,
    .bf16_join = bf16_join,
    .topk = topk,
    .scatter = scatter,
    .piece_read = piece_read,
    .piece_write = piece_write,
    .after = after,
    .before = before,
    .enter = enter,
    .leave = leave,
    .destroy = destroy,
};
