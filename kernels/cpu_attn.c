// Attention over the pool: work items (batch, head, block of queries) forward, (batch, key-value
// head) backward. As many tasks as threads take items from a common counter, so that each needs
// scratch only once; no item's result depends on which task takes it.
#include "kernels/cpu.h"

#include <math.h>
#include <stdatomic.h>

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

static size_t padded(int D) {
    return (size_t)(D + CPU_LANES_MAX - 1) / CPU_LANES_MAX * CPU_LANES_MAX;
}

size_t cpu_attn_fwd_scratch(const struct kern_attn *s) {
    return CPU_ATTN_BLOCK * (2 * (size_t)s->head_dim + CPU_ATTN_BLOCK + 2);
}

size_t cpu_attn_bwd_scratch(const struct kern_attn *s) {
    size_t Dp = padded(s->head_dim);
    return 2 * (size_t)s->T * Dp + CPU_ATTN_BLOCK * (5 * Dp + 2 * CPU_ATTN_BLOCK + 2);
}

static void fwd_task(void *arg, size_t task) {
    struct attn_job *j = arg;
    size_t heads = (size_t)j->a.s.n_heads, rows = heads * (size_t)j->a.s.B;
    for (size_t i;
         (i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->n_items;) {
        // late blocks see most keys: first, so that no long one is left over
        int block = j->blocks - 1 - (int)(i / rows);
        j->v->attn_fwd(&j->a, (int)(i % rows / heads), (int)(i % heads), block,
                       j->scratch + task * j->per_task);
    }
}

static void bwd_task(void *arg, size_t task) {
    struct attn_job *j = arg;
    size_t heads = (size_t)j->a.s.n_kv_heads;
    for (size_t i; (i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->n_items;)
        j->v->attn_bwd(&j->a, (int)(i / heads), (int)(i % heads), j->scratch + task * j->per_task);
}

static void attn_run(struct kern *K, struct attn_job *j, size_t scratch,
                     void (*task)(void *arg, size_t i)) {
    size_t tasks = (size_t)kern_pool_threads(K->pool);
    if (tasks > j->n_items)
        tasks = j->n_items;
    j->v = cpu_of(K)->isa;
    j->per_task = (scratch + 15) / 16 * 16;
    j->scratch = cpu_buf_need(&cpu_of(K)->attn, tasks * j->per_task);
    atomic_init(&j->next, 0);
    kern_pool_run(K->pool, tasks, task, j);
}

static void check_shape(const struct kern_attn *s) {
    NEB_ASSERT(s->head_dim > 0 && s->head_dim % 2 == 0 && s->head_dim <= CPU_HEAD_DIM_MAX);
    NEB_ASSERT(s->n_kv_heads > 0 && s->n_heads % s->n_kv_heads == 0 && s->B > 0 && s->T > 0);
    NEB_ASSERT(s->mask != KERN_MASK_PREFIX || s->prefix_len);
}

void cpu_attn_fwd(struct kern *K, const struct kern_attn *s, float *out, int ldo, float *lse,
                  const float *q, int ldq, const float *k, int ldk, const float *v, int ldv) {
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
    attn_run(K, &j, cpu_attn_fwd_scratch(s), fwd_task);
}

void cpu_attn_bwd(struct kern *K, const struct kern_attn *s, float *dq, float *dk, float *dv,
                  const float *dout, const float *out, int ldo, const float *lse, const float *q,
                  int ldq, const float *k, int ldk, const float *v, int ldv, float *delta) {
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
                         .n_items = (size_t)s->B * (size_t)s->n_kv_heads};
    if (!cpu_bf16_attn_bwd(K, &j.a))
        attn_run(K, &j, cpu_attn_bwd_scratch(s), bwd_task);
}
