// SPDX-License-Identifier: Apache-2.0
// Attention over the pool. A work item is (batch, head, block of queries). There are as many tasks
// as threads, and each needs scratch only once. Tasks take items from a shared counter; an item's
// result does not depend on the task.
//
// In the backward pass the items of a key-value head add to the same dk and dv. As long as there is
// a head for every thread, one thread takes all items of a head in order. All threads share the
// heads that are left, and blocks of queries add in turn.
#include "kernels/cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

int cpu_attn_keys_end(const struct kern_attn *s, int b, int i0, int nq) {
    if (s->mask == KERN_MASK_BIDIRECTIONAL)
        return s->T;
    int end = i0 + nq;
    if (s->mask == KERN_MASK_PREFIX && s->prefix_len[b] > end)
        end = s->prefix_len[b];
    return end < s->T ? end : s->T;
}

void cpu_attn_mask(const struct kern_attn *s, int b, float *st, int i0, int j0, int nk, int lanes) {
    if (s->mask == KERN_MASK_BIDIRECTIONAL)
        return;
    int open = s->mask == KERN_MASK_PREFIX ? s->prefix_len[b] : 0;
    for (int j = 0; j < nk; j++) {
        int hidden = j0 + j < open ? 0 : j0 + j - i0;
        for (int i = 0; i < hidden && i < lanes; i++)
            st[j * CPU_ATTN_BLOCK + i] = -INFINITY;
    }
}

struct attn_job {
    struct cpu_attn a;
    const struct cpu_isa *v;
    float *scratch; // (tasks, per_task)
    size_t per_task, n_items;
    int blocks;
    atomic_size_t next;
};

static size_t fwd_scratch(const struct kern_attn *s) {
    return CPU_ATTN_BLOCK * (2 * (size_t)s->head_dim + CPU_ATTN_BLOCK + 2);
}

static void fwd_task(void *arg, size_t task) {
    struct attn_job *j = arg;
    size_t heads = (size_t)j->a.s.n_heads, rows = heads * (size_t)j->a.s.B;
    for (size_t i;
         (i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->n_items;) {
        // late blocks see most keys: they come first, so that no thread ends with a long one
        int block = j->blocks - 1 - (int)(i / rows);
        j->v->attn_fwd(&j->a, (int)(i % rows / heads), (int)(i % heads), block,
                       j->scratch + task * j->per_task);
    }
}

static size_t min(size_t a, size_t b) { return a < b ? a : b; }
static size_t aligned(size_t floats) { return (floats + 15) / 16 * 16; }

static void check_shape(const struct kern_attn *s) {
    NEB_ASSERT(s->head_dim > 0 && s->head_dim % 2 == 0 && s->head_dim <= CPU_HEAD_DIM_MAX);
    NEB_ASSERT(s->n_kv_heads > 0 && s->n_heads % s->n_kv_heads == 0 && s->B > 0 && s->T > 0);
    NEB_ASSERT(s->mask != KERN_MASK_PREFIX || s->prefix_len);
}

void cpu_attn_fwd(struct kern *K, enum kern_type t, const struct kern_attn *s, void *out, int ldo,
                  float *lse, const void *q, int ldq, const void *k, int ldk, const void *v,
                  int ldv) {
    NEB_ASSERT(t == KERN_F32);
    check_shape(s);
    struct attn_job j = {.a = {.s = *s,
                               .q = q,
                               .k = k,
                               .v = v,
                               .ldq = ldq,
                               .ldk = ldk,
                               .ldv = ldv,
                               .ldo = ldo,
                               .o = out,
                               .lse = lse},
                         .blocks = (s->T + CPU_ATTN_BLOCK - 1) / CPU_ATTN_BLOCK};
    if (cpu_bf16_attn_fwd(K, &j.a))
        return;
    j.n_items = (size_t)s->B * (size_t)s->n_heads * (size_t)j.blocks;
    size_t tasks = min((size_t)kern_pool_threads(K->pool), j.n_items);
    j.v = cpu_of(K)->isa;
    j.per_task = aligned(fwd_scratch(s));
    j.scratch = cpu_buf_need(&cpu_of(K)->attn, tasks * j.per_task);
    atomic_init(&j.next, 0);
    kern_pool_run(K->pool, tasks, fwd_task, &j);
}

// Returns the first block of queries of a head that sees the keys from j0 on. All later ones see
// them too.

static size_t padded(int D) {
    return (size_t)(D + CPU_LANES_MAX - 1) / CPU_LANES_MAX * CPU_LANES_MAX;
}

static int blocks_of(const struct kern_attn *s) {
    return (s->T + CPU_ATTN_BLOCK - 1) / CPU_ATTN_BLOCK;
}

static int first_to_see(const struct kern_attn *s, int b, int j0) {
    bool by_all = s->mask == KERN_MASK_BIDIRECTIONAL ||
                  (s->mask == KERN_MASK_PREFIX && s->prefix_len[b] > j0);
    return by_all ? 0 : j0 / CPU_ATTN_BLOCK;
}

void cpu_attn_wait_turn(const struct kern_attn *s, const struct cpu_attn_sums *sums, int b, int h,
                        int block, int j0) {
    int first = first_to_see(s, b, j0), group = s->n_heads / s->n_kv_heads;
    int before = h % group * (blocks_of(s) - first) + block - first;
    atomic_int *added = &sums->added[j0 / CPU_ATTN_BLOCK];
    for (unsigned i = 0; atomic_load_explicit(added, memory_order_acquire) != before; i++)
        kern_pool_pause(i);
    if (before == 0) {
        int keys = s->T - j0 < CPU_ATTN_BLOCK ? s->T - j0 : CPU_ATTN_BLOCK;
        size_t row = padded(s->head_dim), at = (size_t)j0 * row, n = (size_t)keys * row;
        memset(sums->dk + at, 0, n * sizeof *sums->dk);
        memset(sums->dv + at, 0, n * sizeof *sums->dv);
    }
}

bool cpu_attn_end_turn(const struct kern_attn *s, const struct cpu_attn_sums *sums, int b, int j0) {
    int all = s->n_heads / s->n_kv_heads * (blocks_of(s) - first_to_see(s, b, j0));
    // only the thread whose turn it is changes the counter
    int now = atomic_load_explicit(&sums->added[j0 / CPU_ATTN_BLOCK], memory_order_relaxed) + 1;
    atomic_store_explicit(&sums->added[j0 / CPU_ATTN_BLOCK], now, memory_order_release);
    return now == all;
}

_Static_assert(sizeof(atomic_int) == sizeof(float),
               "the scratch for counters is measured in floats");
struct bwd_job {
    const struct kern_attn *s;
    cpu_attn_bwd_block *block;
    const void *arg;
    struct cpu_attn_sums sums; // of slot 0; the other slots follow
    size_t of_slot;            // floats of dk of one slot
    float *scratch;            // (tasks, per_task)
    size_t per_task;
    size_t heads; // key-value heads of all sequences; all threads share the last `shared` ones
    size_t shared;
    atomic_size_t next;
};

// A slot holds dk and dv of one head. Returns how many heads are computed at once.
static size_t slots(const struct kern *K, const struct kern_attn *s) {
    return min((size_t)kern_pool_threads(K->pool), (size_t)s->B * (size_t)s->n_kv_heads);
}

static struct cpu_attn_sums slot(const struct bwd_job *j, size_t i) {
    return (struct cpu_attn_sums){.dk = j->sums.dk + i * j->of_slot,
                                  .dv = j->sums.dv + i * j->of_slot,
                                  .added = j->sums.added + i * (size_t)blocks_of(j->s)};
}

static void nothing_added(const struct bwd_job *j, size_t i) {
    for (int k = 0; k < blocks_of(j->s); k++)
        atomic_store_explicit(&slot(j, i).added[k], 0, memory_order_relaxed);
}

// Runs item i of a key-value head (one block of queries of one query head), with the sums of slot
// `in`.
static void bwd_item(const struct bwd_job *j, size_t head, size_t i, size_t in, size_t task) {
    int kv = j->s->n_kv_heads, blocks = blocks_of(j->s), group = j->s->n_heads / kv;
    int b = (int)head / kv, h = (int)head % kv * group + (int)i / blocks;
    struct cpu_attn_sums sums = slot(j, in);
    j->block(j->arg, b, h, (int)i % blocks, &sums, j->scratch + task * j->per_task);
}

static size_t items_of(const struct kern_attn *s) { // of one key-value head
    return (size_t)(s->n_heads / s->n_kv_heads) * (size_t)blocks_of(s);
}

static void bwd_whole_heads(void *arg, size_t task) {
    struct bwd_job *j = arg;
    for (size_t head; (head = atomic_fetch_add(&j->next, 1)) < j->heads - j->shared;) {
        nothing_added(j, task);
        for (size_t i = 0; i < items_of(j->s); i++)
            bwd_item(j, head, i, task, task);
    }
}

static void bwd_shared_heads(void *arg, size_t task) {
    struct bwd_job *j = arg;
    for (size_t i; (i = atomic_fetch_add(&j->next, 1)) < j->shared * items_of(j->s);)
        bwd_item(j, j->heads - j->shared + i % j->shared, i / j->shared, i % j->shared, task);
}

size_t cpu_attn_bwd_room(const struct kern *K, const struct kern_attn *s, size_t per_task) {
    size_t sums = aligned(2 * (size_t)s->T * padded(s->head_dim) + (size_t)blocks_of(s));
    return slots(K, s) * sums + (size_t)kern_pool_threads(K->pool) * aligned(per_task);
}

void cpu_attn_bwd_run(struct kern *K, const struct kern_attn *s, size_t per_task, float *room,
                      cpu_attn_bwd_block *block, const void *arg) {
    size_t threads = (size_t)kern_pool_threads(K->pool), n = slots(K, s);
    struct bwd_job j = {.s = s,
                        .block = block,
                        .arg = arg,
                        .of_slot = (size_t)s->T * padded(s->head_dim),
                        .scratch = room,
                        .per_task = aligned(per_task),
                        .heads = (size_t)s->B * (size_t)s->n_kv_heads};
    j.shared = j.heads % threads;
    j.sums.dk = room + threads * j.per_task;
    j.sums.dv = j.sums.dk + n * j.of_slot;
    j.sums.added = (atomic_int *)(void *)(j.sums.dv + n * j.of_slot);
    atomic_init(&j.next, 0);
    kern_pool_run(K->pool, min(threads, j.heads - j.shared), bwd_whole_heads, &j);
    for (size_t i = 0; i < j.shared; i++)
        nothing_added(&j, i);
    atomic_init(&j.next, 0);
    kern_pool_run(K->pool, min(threads, j.shared * items_of(s)), bwd_shared_heads, &j);
}

static size_t bwd_scratch(const struct kern_attn *s) {
    return CPU_ATTN_BLOCK * (5 * padded(s->head_dim) + 2 * CPU_ATTN_BLOCK + 2);
}

static void bwd_block(const void *arg, int b, int h, int block, const struct cpu_attn_sums *sums,
                      float *scratch) {
    const struct attn_job *j = arg;
    j->v->attn_bwd(&j->a, b, h, block, sums, scratch);
}

// The gradients of q and k before their rope.
static void rope_back(struct kern *K, const struct kern_attn *s, float *dq, int ldq, float *dk,
                      int ldk, const float *cos_sin) {
    int n = s->B * s->T, q = s->n_heads * s->head_dim;
    bool together = dk == dq + q && ldk == ldq; // neighbours in one row
    cpu_rope(K, KERN_F32, dq, ldq, cos_sin, n, s->T, s->n_heads + (together ? s->n_kv_heads : 0),
             s->head_dim, true);
    if (!together)
        cpu_rope(K, KERN_F32, dk, ldk, cos_sin, n, s->T, s->n_kv_heads, s->head_dim, true);
}

void cpu_attn_bwd(struct kern *K, enum kern_type t, const struct kern_attn *s, void *dq, void *dk,
                  void *dv, const void *dout, const void *out, int ldo, const float *lse,
                  const void *q, int ldq, const void *k, int ldk, const void *v, int ldv,
                  float *delta, const float *cos_sin) {
    NEB_ASSERT(t == KERN_F32);
    check_shape(s);
    struct attn_job j = {.a = {.s = *s,
                               .q = q,
                               .k = k,
                               .v = v,
                               .out = out,
                               .dout = dout,
                               .ldq = ldq,
                               .ldk = ldk,
                               .ldv = ldv,
                               .ldo = ldo,
                               .lse_in = lse,
                               .dq = dq,
                               .dk = dk,
                               .dv = dv,
                               .delta = delta},
                         .v = cpu_of(K)->isa};
    if (!cpu_bf16_attn_bwd(K, &j.a)) {
        float *room = cpu_buf_need(&cpu_of(K)->attn, cpu_attn_bwd_room(K, s, bwd_scratch(s)));
        cpu_attn_bwd_run(K, s, bwd_scratch(s), room, bwd_block, &j);
    }
    if (cos_sin)
        rope_back(K, s, dq, ldq, dk, ldk, cos_sin);
}
