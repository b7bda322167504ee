// SPDX-License-Identifier: Apache-2.0
// Attention tiles for one instruction set, after FlashAttention (Dao et al. 2022, 2023): a block of
// queries meets one block of keys at a time, with a running maximum and sum. Nothing of size (T, T)
// exists.
//
// Everything is transposed, with queries in the lanes:
//
//     S^T (keys, queries) = K Q^T        O^T (D, queries) += V^T P^T
//
// So the maximum and the sum over keys need no step across lanes. One small product, tile_mm, does
// all the arithmetic: it multiplies scalars of A by vectors of B. It reads K and V in place; only
// Q^T is packed, once for each block of queries.
enum { QB = CPU_ATTN_BLOCK, KB = CPU_ATTN_BLOCK };

#if V_LANES == 16
enum { MM_ROWS = 6, MM_VECS = 4 }; // registers: 24 sums + 4 of B + 1 of A, of 32
#elif V_LANES == 8
enum { MM_ROWS = 6, MM_VECS = 2 }; // 12 + 2 + 1, of 16
#else
enum { MM_ROWS = 4, MM_VECS = 2 };
#endif

struct mm {
    const float *a; // element (i, l) is a[i * a_row + l * a_col]
    size_t a_row, a_col;
    const float *b; // (k, n), row stride ldb
    size_t ldb;
    float *c; // (m, n), row stride ldc
    size_t ldc;
    int k;
    bool add;
};

V_INLINE void mm_kernel(const struct mm *t, size_t i0, size_t j0, const int rows, const int vecs) {
    vf sum[MM_ROWS][MM_VECS];
    const float *a = t->a + i0 * t->a_row, *b = t->b + j0;
    KERN_UNROLL
    for (int i = 0; i < rows; i++) {
        KERN_UNROLL
        for (int j = 0; j < vecs; j++)
            sum[i][j] = t->add ? v_load(t->c + (i0 + (size_t)i) * t->ldc + j0 + (size_t)j * V_LANES)
                               : (vf){0};
    }
    for (int l = 0; l < t->k; l++, a += t->a_col, b += t->ldb) {
        vf bl[MM_VECS];
        KERN_UNROLL
        for (int j = 0; j < vecs; j++)
            bl[j] = v_load(b + (size_t)j * V_LANES);
        KERN_UNROLL
        for (int i = 0; i < rows; i++) {
            vf ai = v_set(a[(size_t)i * t->a_row]);
            KERN_UNROLL
            for (int j = 0; j < vecs; j++)
                sum[i][j] = v_fma(ai, bl[j], sum[i][j]);
        }
    }
    KERN_UNROLL
    for (int i = 0; i < rows; i++) {
        KERN_UNROLL
        for (int j = 0; j < vecs; j++)
            v_store(t->c + (i0 + (size_t)i) * t->ldc + j0 + (size_t)j * V_LANES, sum[i][j]);
    }
}

V_INLINE void mm_columns(const struct mm *t, int m, size_t j0, const int vecs) {
    int i = 0;
    for (; i + MM_ROWS <= m; i += MM_ROWS)
        mm_kernel(t, (size_t)i, j0, MM_ROWS, vecs);
    switch (m - i) {
    case 1: mm_kernel(t, (size_t)i, j0, 1, vecs); break;
    case 2: mm_kernel(t, (size_t)i, j0, 2, vecs); break;
    case 3: mm_kernel(t, (size_t)i, j0, 3, vecs); break;
#if V_LANES > 4
    case 4: mm_kernel(t, (size_t)i, j0, 4, vecs); break;
    case 5: mm_kernel(t, (size_t)i, j0, 5, vecs); break;
#endif
    default: break;
    }
}

// C (m, n) = A (m, k) B (k, n), or C += A B if add. n is a multiple of CPU_LANES_MAX.
static void tile_mm(const struct mm *t, int m, int n) {
    size_t j = 0, N = (size_t)n;
    for (; j + MM_VECS * V_LANES <= N; j += MM_VECS * V_LANES)
        mm_columns(t, m, j, MM_VECS);
    for (; j < N; j += V_LANES)
        mm_columns(t, m, j, 1);
}

typedef float v4 __attribute__((vector_size(16)));
typedef float v4_mem __attribute__((vector_size(16), aligned(4), may_alias));

// As cpu_isa.transpose in cpu.h.
static void transpose(float *to, size_t ldt, const float *from, size_t ldf, size_t rows,
                      size_t cols, size_t pad, float by) {
    size_t i = 0;
    for (; i + 4 <= rows; i += 4) {
        const float *p = from + i * ldf;
        size_t j = 0;
        for (; j + 4 <= cols; j += 4) {
            v4 a = *(const v4_mem *)(p + j), b = *(const v4_mem *)(p + ldf + j);
            v4 c = *(const v4_mem *)(p + 2 * ldf + j), d = *(const v4_mem *)(p + 3 * ldf + j);
            v4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5),
               cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
            v4 ef = __builtin_shufflevector(a, b, 2, 6, 3, 7),
               gh = __builtin_shufflevector(c, d, 2, 6, 3, 7);
            *(v4_mem *)(to + j * ldt + i) = __builtin_shufflevector(ab, cd, 0, 1, 4, 5) * by;
            *(v4_mem *)(to + (j + 1) * ldt + i) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7) * by;
            *(v4_mem *)(to + (j + 2) * ldt + i) = __builtin_shufflevector(ef, gh, 0, 1, 4, 5) * by;
            *(v4_mem *)(to + (j + 3) * ldt + i) = __builtin_shufflevector(ef, gh, 2, 3, 6, 7) * by;
        }
        for (; j < cols; j++)
            for (size_t r = 0; r < 4; r++)
                to[j * ldt + i + r] = p[r * ldf + j] * by;
    }
    for (; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            to[j * ldt + i] = from[i * ldf + j] * by;
    for (size_t j = 0; pad > rows && j < cols; j++)
        memset(to + j * ldt + rows, 0, (pad - rows) * sizeof *to);
}

// The running softmax over one more tile. st becomes P^T; sum and O^T are rescaled to the new
// maximum.
static void tile_softmax(float *st, int nk, int lanes, float *max, float *sum, float *ot, int D,
                         bool first) {
    for (int i = 0; i < lanes; i += V_LANES) {
        vf m = v_load(st + i), old = first ? (vf){0} : v_load(max + i), total = {0};
        for (int j = 1; j < nk; j++)
            m = v_max(m, v_load(st + j * QB + i));
        if (!first)
            m = v_max(m, old);
        for (int j = 0; j < nk; j++) {
            vf p = v_exp(v_load(st + j * QB + i) - m);
            v_store(st + j * QB + i, p);
            total += p;
        }
        v_store(max + i, m);
        if (first) {
            v_store(sum + i, total);
            continue;
        }
        vf shrink = v_exp(old - m);
        v_store(sum + i, v_fma(v_load(sum + i), shrink, total));
        for (int e = 0; e < D; e++)
            v_store(ot + e * QB + i, v_load(ot + e * QB + i) * shrink);
    }
}

static int lanes_of(int n) { return (n + CPU_LANES_MAX - 1) / CPU_LANES_MAX * CPU_LANES_MAX; }

static void attn_fwd(const struct cpu_attn *a, int b, int h, int block, float *scratch) {
    const struct kern_attn *s = &a->s;
    int D = s->head_dim, i0 = block * QB, nq = s->T - i0 < QB ? s->T - i0 : QB,
        lanes = lanes_of(nq);
    int g = h / (s->n_heads / s->n_kv_heads), end = cpu_attn_keys_end(s, b, i0, nq);
    float *qt = scratch, *ot = qt + D * QB, *st = ot + D * QB, *max = st + KB * QB, *sum = max + QB;
    size_t row = (size_t)b * (size_t)s->T, ldk = (size_t)a->ldk, ldv = (size_t)a->ldv;
    const float *q = a->q + (row + (size_t)i0) * (size_t)a->ldq + (size_t)h * (size_t)D;
    transpose(qt, QB, q, (size_t)a->ldq, (size_t)nq, (size_t)D, (size_t)lanes,
              1.0f / __builtin_sqrtf((float)D));
    for (int j0 = 0; j0 < end; j0 += KB) {
        int nk = end - j0 < KB ? end - j0 : KB;
        const float *k = a->k + (row + (size_t)j0) * ldk + (size_t)g * (size_t)D;
        const float *v = a->v + (row + (size_t)j0) * ldv + (size_t)g * (size_t)D;
        tile_mm(&(struct mm){k, ldk, 1, qt, QB, st, QB, D, false}, nk, lanes);
        if (j0 + nk > i0 + 1) // a query precedes the tile's last key
            cpu_attn_mask(s, b, st, i0, j0, nk, lanes);
        tile_softmax(st, nk, lanes, max, sum, ot, D, j0 == 0);
        tile_mm(&(struct mm){v, 1, ldv, st, QB, ot, QB, nk, j0 != 0}, D, lanes);
    }
    float *lse = a->lse + ((size_t)b * (size_t)s->n_heads + (size_t)h) * (size_t)s->T + (size_t)i0;
    for (int i = 0; i < nq; i++) {
        lse[i] = max[i] + logf(sum[i]);
        sum[i] = 1.0f / sum[i];
    }
    for (int i = nq; i < lanes; i++)
        sum[i] = 0;
    for (int e = 0; e < D; e++)
        for (int i = 0; i < lanes; i += V_LANES)
            v_store(ot + e * QB + i, v_load(ot + e * QB + i) * v_load(sum + i));
    transpose(a->o + (row + (size_t)i0) * (size_t)a->ldo + (size_t)h * (size_t)D, (size_t)a->ldo,
              ot, QB, (size_t)D, (size_t)nq, 0, 1.0f);
}

// Scratch of the backward pass for one block of queries.
struct bwd {
    float *qt, *dot;    // (D, QB) packed and transposed
    float *qp, *dop;    // (QB, Dp) packed
    float *dqt;         // (D, QB)
    float *st, *dst;    // (KB, QB)
    float *lse, *delta; // (QB)
    int Dp;
};

static void copy_rows(float *to, int Dp, const float *from, size_t ldf, int rows, int D) {
    for (int i = 0; i < rows; i++) {
        memcpy(to + i * Dp, from + (size_t)i * ldf, sizeof(float) * (size_t)D);
        for (int e = D; e < Dp; e++)
            to[i * Dp + e] = 0;
    }
}

static float dot(const float *x, const float *y, int n) {
    vf s = {0};
    int i = 0;
    for (; i + V_LANES <= n; i += V_LANES)
        s = v_fma(v_load(x + i), v_load(y + i), s);
    float sum = v_sum(s);
    for (; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

// P^T = exp(S^T - lse); dS^T = P^T (dP^T - delta)
static void tile_grad(float *st, float *dst, const float *lses, const float *deltas, int nk,
                      int lanes) {
    for (int i = 0; i < lanes; i += V_LANES) {
        vf lse = v_load(lses + i), delta = v_load(deltas + i);
        for (int j = 0; j < nk; j++) {
            vf p = v_exp(v_load(st + j * QB + i) - lse);
            v_store(st + j * QB + i, p);
            v_store(dst + j * QB + i, p * (v_load(dst + j * QB + i) - delta));
        }
    }
}

// Writes dk and dv of the keys from j0 on, once their sums are complete.
static void keys_done(const struct cpu_attn *a, const struct cpu_attn_sums *sums, int b, int g,
                      int j0, int nk) {
    int D = a->s.head_dim;
    size_t Dp = (size_t)lanes_of(D), col = (size_t)g * (size_t)D;
    float by = 1.0f / __builtin_sqrtf((float)D);
    for (int t = j0; t < j0 + nk; t++) {
        size_t r = (size_t)b * (size_t)a->s.T + (size_t)t, from = (size_t)t * Dp;
        float *dk = a->dk + r * (size_t)a->ldk + col;
        for (int e = 0; e < D; e++)
            dk[e] = sums->dk[from + (size_t)e] * by;
        memcpy(a->dv + r * (size_t)a->ldv + col, sums->dv + from, sizeof(float) * (size_t)D);
    }
}

// Takes one block of queries of head h against all keys that it sees: writes dq, adds to dk and dv.
static void bwd_block(const struct cpu_attn *a, const struct bwd *w, int b, int h, int block,
                      const struct cpu_attn_sums *sums) {
    const struct kern_attn *s = &a->s;
    int D = s->head_dim, Dp = w->Dp, i0 = block * QB, nq = s->T - i0 < QB ? s->T - i0 : QB,
        lanes = lanes_of(nq);
    int g = h / (s->n_heads / s->n_kv_heads), end = cpu_attn_keys_end(s, b, i0, nq);
    size_t row = (size_t)b * (size_t)s->T, col = (size_t)h * (size_t)D, ldk = (size_t)a->ldk,
           ldv = (size_t)a->ldv;
    size_t ldq = (size_t)a->ldq, ldo = (size_t)a->ldo, ri = row + (size_t)i0;
    const float *q = a->q + ri * ldq + col, *o = a->out + ri * ldo + col,
                *d_o = a->dout + ri * ldo + col;
    size_t at = ((size_t)b * (size_t)s->n_heads + (size_t)h) * (size_t)s->T + (size_t)i0;
    float by = 1.0f / __builtin_sqrtf((float)D);

    transpose(w->qt, QB, q, ldq, (size_t)nq, (size_t)D, (size_t)lanes, by);
    transpose(w->dot, QB, d_o, ldo, (size_t)nq, (size_t)D, (size_t)lanes, 1.0f);
    copy_rows(w->qp, Dp, q, ldq, nq, D);
    copy_rows(w->dop, Dp, d_o, ldo, nq, D);
    for (int i = 0; i < lanes; i++) {
        w->lse[i] = i < nq ? a->lse_in[at + (size_t)i] : 0;
        w->delta[i] = i < nq ? dot(o + (size_t)i * ldo, d_o + (size_t)i * ldo, D) : 0;
    }
    memcpy(a->delta + at, w->delta, sizeof(float) * (size_t)nq);
    for (int j0 = 0; j0 < end; j0 += KB) {
        int nk = end - j0 < KB ? end - j0 : KB;
        const float *k = a->k + (row + (size_t)j0) * ldk + (size_t)g * (size_t)D;
        const float *v = a->v + (row + (size_t)j0) * ldv + (size_t)g * (size_t)D;
        size_t at_key = (size_t)j0 * (size_t)Dp, P = (size_t)Dp;
        tile_mm(&(struct mm){k, ldk, 1, w->qt, QB, w->st, QB, D, false}, nk, lanes);
        if (j0 + nk > i0 + 1)
            cpu_attn_mask(s, b, w->st, i0, j0, nk, lanes);
        tile_mm(&(struct mm){v, ldv, 1, w->dot, QB, w->dst, QB, D, false}, nk, lanes);
        tile_grad(w->st, w->dst, w->lse, w->delta, nk, lanes);
        cpu_attn_wait_turn(s, sums, b, h, block, j0);
        tile_mm(&(struct mm){w->st, QB, 1, w->dop, P, sums->dv + at_key, P, nq, true}, nk, Dp);
        tile_mm(&(struct mm){w->dst, QB, 1, w->qp, P, sums->dk + at_key, P, nq, true}, nk, Dp);
        if (cpu_attn_end_turn(s, sums, b, j0))
            // the last block of queries sees all keys of the block
            keys_done(a, sums, b, g, j0, nk);
        tile_mm(&(struct mm){k, 1, ldk, w->dst, QB, w->dqt, QB, nk, j0 != 0}, D, lanes);
    }
    transpose(a->dq + ri * ldq + col, ldq, w->dqt, QB, (size_t)D, (size_t)nq, 0, by);
}

static void attn_bwd(const struct cpu_attn *a, int b, int h, int block,
                     const struct cpu_attn_sums *sums, float *scratch) {
    int Dp = lanes_of(a->s.head_dim);
    size_t tile = (size_t)QB * (size_t)Dp;
    struct bwd w = {.Dp = Dp};
    float *p = scratch;
    float **parts[] = {&w.qt, &w.dot, &w.qp, &w.dop, &w.dqt};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++, p += tile)
        *parts[i] = p;
    w.st = p;
    w.dst = w.st + KB * QB;
    w.lse = w.dst + KB * QB;
    w.delta = w.lse + QB;
    bwd_block(a, &w, b, h, block, sums);
}
