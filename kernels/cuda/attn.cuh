// SPDX-License-Identifier: Apache-2.0
// Shared by the attention kernels: which keys a query sees, and which tiles a block has to walk
// through. Plain functions, so that the host can test them against a loop over all pairs
// (tests/cuda/test_schedule.cc).
#ifndef KERN_CUDA_ATTN_CUH
#define KERN_CUDA_ATTN_CUH
#include "kernels/cuda/prim.cuh"
#include "kernels/kern.h"

// The mask of one sequence: query i sees key j if j <= i or j < prefix. prefix is 0 for a causal
// mask, and T for a bidirectional one.
struct attn_mask {
    int T, prefix;
};

// A prefix mask must have its lengths.
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
// attn_sees as one comparison, for the keys of query i: it sees key j if j is below this.
__host__ __device__ static inline int attn_row_end(struct attn_mask m, int i) {
    int end = i + 1 > m.prefix ? i + 1 : m.prefix;
    return i < m.T ? end : 0;
}
// The same for the queries of key j: query i (below T) sees it if i is at least this.
__host__ __device__ static inline int attn_row_start(struct attn_mask m, int j) {
    return j >= m.T ? m.T : j < m.prefix ? 0 : j;
}
// Queries i0 .. i0 + n - 1 see no key at or beyond this.
__host__ __device__ static inline int attn_keys_end(struct attn_mask m, int i0, int n) {
    int end = i0 + n < m.T ? i0 + n : m.T;
    return end > m.prefix ? end : m.prefix;
}
// No query before this sees any of the keys j0, j0 + 1, …
__host__ __device__ static inline int attn_queries_start(struct attn_mask m, int j0) {
    return j0 < m.prefix ? 0 : j0;
}
// True if all queries i0 .. i0 + ni - 1 see all keys j0 .. j0 + nj - 1: no element needs a mask.
__host__ __device__ static inline bool attn_all_seen(struct attn_mask m, int i0, int ni, int j0,
                                                     int nj) {
    if (i0 + ni > m.T || j0 + nj > m.T)
        return false;
    return j0 + nj - 1 <= i0 || j0 + nj <= m.prefix;
}
// True if none of the queries i0 .. i0 + ni - 1 sees a key at or beyond j0.
__host__ __device__ static inline bool attn_none_seen(struct attn_mask m, int i0, int ni, int j0) {
    return i0 >= m.T || j0 >= attn_keys_end(m, i0, ni);
}

#endif
