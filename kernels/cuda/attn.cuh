// SPDX-License-Identifier: Apache-2.0
// What the attention kernels share: which keys a query sees, and which tiles a block has to walk through. Plain functions,
// so that the host can test them against a loop over all pairs (tests/cuda/test_schedule.cc).
#ifndef KERN_CUDA_ATTN_CUH
#define KERN_CUDA_ATTN_CUH
#include "kernels/cuda/prim.cuh"
#include "kernels/kern.h"

// The mask of one sequence. prefix: 0 causal, T bidirectional, else as given; query i sees key j when j <= i or j < prefix.
struct attn_mask {
    int T, prefix;
};

// A prefix mask has its lengths.
static inline bool attn_mask_given(const struct kern_attn *a) {
    return a->mask != KERN_MASK_PREFIX || a->prefix_len;
}
__host__ __device__ static inline struct attn_mask attn_mask_of(int T, enum kern_mask kind,
                                                                const int32_t *prefix_len, int b) {
    struct attn_mask m = {T, 0};
    if (kind == KERN_MASK_BIDIRECTIONAL)
        m.prefix = T;
    else if (kind == KERN_MASK_PREFIX)
        m.prefix = prefix_len[b] < 0 ? 0 : prefix_len[b] > T ? T : prefix_len[b];
    return m;
}
__host__ __device__ static inline bool attn_sees(struct attn_mask m, int i, int j) {
    return i < m.T && j < m.T && (j <= i || j < m.prefix);
}
// The same as one comparison, for a row of a tile: query i sees key j when j is below this …
__host__ __device__ static inline int attn_row_end(struct attn_mask m, int i) {
    int end = i + 1 > m.prefix ? i + 1 : m.prefix;
    return i < m.T ? end : 0;
}
// … and key j is seen by query i, of those below T, when i is no less than this.
__host__ __device__ static inline int attn_row_start(struct attn_mask m, int j) {
    return j >= m.T ? m.T : j < m.prefix ? 0 : j;
}
// Queries i0 .. i0 + n - 1 see no key at or beyond this.
__host__ __device__ static inline int attn_keys_end(struct attn_mask m, int i0, int n) {
    int end = i0 + n < m.T ? i0 + n : m.T;
    return end > m.prefix ? end : m.prefix;
}
// Keys j0, j0 + 1, … are seen by no query before this.
__host__ __device__ static inline int attn_queries_start(struct attn_mask m, int j0) {
    return j0 < m.prefix ? 0 : j0;
}
// All queries i0 .. i0 + ni - 1 see all keys j0 .. j0 + nj - 1: no element has to be looked at.
__host__ __device__ static inline bool attn_all_seen(struct attn_mask m, int i0, int ni, int j0,
                                                     int nj) {
    if (i0 + ni > m.T || j0 + nj > m.T)
        return false;
    return j0 + nj - 1 <= i0 || j0 + nj <= m.prefix;
}
// None of the queries i0 .. i0 + ni - 1 sees a key at or beyond j0.
__host__ __device__ static inline bool attn_none_seen(struct attn_mask m, int i0, int ni, int j0) {
    return i0 >= m.T || j0 >= attn_keys_end(m, i0, ni);
}

#endif
