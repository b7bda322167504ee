// SPDX-License-Identifier: Apache-2.0
// Building blocks of attn_mma.cu: rows from global memory, fragments, the two products, the online
// softmax. attn_wgmma.cu uses those that work on accumulators.
#ifndef KERN_CUDA_ATTN_TILES_CUH
#define KERN_CUDA_ATTN_TILES_CUH
#include "kernels/cuda/attn.cuh"

enum { WARPS = 4, THREADS = WARPS * WARP, PAD = 8 };

// Copies ROWS rows of x (row stride ld), from `first` on, to room (ROWS, HD + PAD). Rows at and
// beyond T become zeros.
template <int HD, int ROWS>
__device__ static inline void fetch(bf16 *room, const bf16 *x, int ld, int first, int T) {
    // per: pieces of 16 bytes in a row. side: threads that share a row, the largest power of two
    // that divides per, so that a thread keeps its column.
    const int per = HD / 8, side = per & -per, at_once = THREADS / side;
    static_assert(ROWS % at_once == 0, "every thread copies the same number of pieces");
    int row = (int)threadIdx.x / side, c = (int)threadIdx.x % side * 8;
#pragma unroll
    for (int r = 0; r < ROWS; r += at_once) {
        bool valid = first + row + r < T;
        const bf16 *from = x + (size_t)(valid ? first + row + r : 0) * ld + c;
#pragma unroll
        for (int k = 0; k < HD; k += side * 8)
            cp_async16(room + (row + r) * (HD + PAD) + c + k, from + k, valid);
    }
}

// Loads a fragment A: rows row0 .. row0 + 15, columns k0 .. k0 + 15 of room.
template <int HD>
__device__ static inline void a_fragment(uint32_t a[4], const bf16 *room, int row0, int k0) {
    int lane = (int)threadIdx.x % WARP, m = lane / 8, r = lane % 8;
    ldmatrix_x4(a, room + (row0 + m % 2 * 8 + r) * (HD + PAD) + k0 + m / 2 * 8);
}

// The 16 own rows (16, HD) of an atom, as fragments. KEEP: they stay in registers for all tiles.
// Otherwise there are too few registers, and each use reads them from the own tile.
template <int HD, bool KEEP> struct Own {
    uint32_t kept[KEEP ? HD / 16 : 1][4];
    const bf16 *room;
    int row0;
    // call this once the tile has arrived
    __device__ inline void take(const bf16 *tile, int first) {
        room = tile;
        row0 = first;
        if (KEEP)
#pragma unroll
            for (int k = 0; k < HD; k += 16)
                a_fragment<HD>(kept[KEEP ? k / 16 : 0], tile, first, k);
    }
    __device__ inline void fragment(uint32_t (&a)[4], int k) const {
        if (!KEEP)
            a_fragment<HD>(a, room, row0, k);
        else
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[i] = kept[KEEP ? k / 16 : 0][i];
    }
};
// How the kernels divide their work: atoms of a warp, own rows of a block, rows of a tile, and
// which own rows stay in registers. At head_dim 64 two atoms share each fragment that is loaded:
// with one atom, shared memory limits the speed of a tile; with two, the tensor cores limit it.
template <int HD> struct Cut {
    static const int atoms = HD == 64 ? 2 : 1, block = WARPS * 16 * atoms, keys = 64,
                     keys_bwd = HD <= 64 ? 64 : 32, queries = HD <= 32 ? 64 : 32;
    static const bool keep_fwd = true, keep_q = HD == 32, keep_kv = false;
};

// acc (16, ROWS) += own (16, HD) · other (ROWS, HD)^T, for each atom
template <int HD, int ROWS, int ATOMS, bool KEEP>
__device__ static inline void times_transposed(float (&acc)[ATOMS][ROWS / 8][4],
                                               const Own<HD, KEEP> (&own)[ATOMS],
                                               const bf16 *other) {
    int lane = (int)threadIdx.x % WARP, m = lane / 8, r = lane % 8;
#pragma unroll
    for (int k = 0; k < HD; k += 16) {
        uint32_t a[ATOMS][4];
#pragma unroll
        for (int i = 0; i < ATOMS; i++)
            own[i].fragment(a[i], k);
#pragma unroll
        for (int n = 0; n < ROWS; n += 16) {
            uint32_t b[4];
            ldmatrix_x4(b, other + (n + m / 2 * 8 + r) * (HD + PAD) + k + m % 2 * 8);
#pragma unroll
            for (int i = 0; i < ATOMS; i++) {
                mma_bf16_16816(acc[i][n / 8], a[i], b[0], b[1]);
                mma_bf16_16816(acc[i][n / 8 + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// acc (16, HD) += p (16, ROWS) · other (ROWS, HD), for each atom; p: accumulators
template <int HD, int ROWS, int ATOMS>
__device__ static inline void times(float (&acc)[ATOMS][HD / 8][4],
                                    const float (&p)[ATOMS][ROWS / 8][4], const bf16 *other) {
    int lane = (int)threadIdx.x % WARP, m = lane / 8, r = lane % 8;
#pragma unroll
    for (int k = 0; k < ROWS; k += 16) {
        uint32_t a[ATOMS][4];
#pragma unroll
        for (int i = 0; i < ATOMS; i++) {
            const float *lo = p[i][k / 8], *hi = p[i][k / 8 + 1];
            a[i][0] = pack_bf16(lo[0], lo[1]);
            a[i][1] = pack_bf16(lo[2], lo[3]);
            a[i][2] = pack_bf16(hi[0], hi[1]);
            a[i][3] = pack_bf16(hi[2], hi[3]);
        }
#pragma unroll
        for (int n = 0; n < HD; n += 16) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, other + (k + m % 2 * 8 + r) * (HD + PAD) + n + m / 2 * 8);
#pragma unroll
            for (int i = 0; i < ATOMS; i++) {
                mma_bf16_16816(acc[i][n / 8], a[i], b[0], b[1]);
                mma_bf16_16816(acc[i][n / 8 + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// Writes this lane's rows (row and row + 8) of the accumulators to x, times f0 and f1. Rows at and
// beyond T are left out.
template <int HD>
__device__ static inline void write_out(bf16 *x, int ld, int row, int T,
                                        const float (&acc)[HD / 8][4], float f0, float f1) {
    int col = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < HD / 8; n++) {
        if (row < T)
            *reinterpret_cast<uint32_t *>(x + (size_t)row * ld + n * 8 + col) =
                pack_bf16(acc[n][0] * f0, acc[n][1] * f0);
        if (row + 8 < T)
            *reinterpret_cast<uint32_t *>(x + (size_t)(row + 8) * ld + n * 8 + col) =
                pack_bf16(acc[n][2] * f1, acc[n][3] * f1);
    }
}

// Turns a gradient after rope into the gradient before it, for this lane's rows (row and row + 8).
// The halves of a row are HD / 16 tiles apart, in the same lane.
template <int HD>
__device__ static inline void turn_back(float (&acc)[HD / 8][4], const float *cos_sin, int row,
                                        int T) {
    int col = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < HD / 16; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float c[4];
            int at = row + 8 * e < T ? row + 8 * e : 0;
            load<float, 4>(c, cos_sin + ((size_t)at * (HD / 2) + n * 8 + col) * 2);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float a = acc[n][2 * e + i], b = acc[n + HD / 16][2 * e + i];
                acc[n][2 * e + i] = a * c[2 * i] + b * c[2 * i + 1];
                acc[n + HD / 16][2 * e + i] = b * c[2 * i] - a * c[2 * i + 1];
            }
        }
}

// row_max and row_sum work over the four lanes that share a row.
__device__ static inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
__device__ static inline float row_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// Puts `none` in place of keys that a query does not see. row: this lane's first query of the atom;
// at: this lane's first key.
template <int KEYS>
__device__ static inline void hide(float (&s)[KEYS / 8][4], struct attn_mask m, int row, int at,
                                   float none) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int end = attn_row_end(m, row + e / 2 * 8) - at;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            s[n][e] = n * 8 + e % 2 < end ? s[n][e] : none;
    }
}
// The transposed case: in all arrays given, a query that does not see a key gets 0. row: this
// lane's first key; at: this lane's first query. Queries beyond T arrive as zeros and add 0.
template <int QUERIES, class... Of>
__device__ static inline void hide_queries(struct attn_mask m, int row, int at, Of &...of) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int start = attn_row_start(m, row + e / 2 * 8) - at;
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++)
            ((of[n][e] = n * 8 + e % 2 >= start ? of[n][e] : 0.0f), ...);
    }
}

// One step of the online softmax for row e of this lane's two: scores become weights, and max and
// sum are updated. sum covers this lane's columns only; the lanes are added at the end. c turns
// scores into exponents of two. Returns the factor for all that was summed so far.
template <int KEYS>
__device__ static inline float weigh(float (&s)[KEYS / 8][4], int e, float &max, float &sum,
                                     float c) {
    float top = max, more = 0;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        top = fmaxf(top, fmaxf(s[n][2 * e], s[n][2 * e + 1]));
    top = row_max(top);
    // A row beyond T sees nothing and its maximum stays -inf. Base 0 then avoids a NaN.
    float base = top == -INFINITY ? 0.0f : top * c, shrink = fast_exp2(max * c - base);
    max = top;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
        s[n][2 * e] = fast_exp2(s[n][2 * e] * c - base);
        s[n][2 * e + 1] = fast_exp2(s[n][2 * e + 1] * c - base);
        more += s[n][2 * e] + s[n][2 * e + 1];
    }
    sum = sum * shrink + more;
    return shrink;
}
template <int HD>
__device__ static inline void shrink_row(float (&acc)[HD / 8][4], int e, float by) {
#pragma unroll
    for (int n = 0; n < HD / 8; n++) {
        acc[n][2 * e] *= by;
        acc[n][2 * e + 1] *= by;
    }
}
// The step for both rows of this lane.
template <int HD, int KEYS>
__device__ static inline void soften(float (&s)[KEYS / 8][4], float (&acc)[HD / 8][4],
                                     float (&max)[2], float (&sum)[2], float c) {
#pragma unroll
    for (int e = 0; e < 2; e++)
        shrink_row<HD>(acc, e, weigh<KEYS>(s, e, max[e], sum[e], c));
}

#endif
