// SPDX-License-Identifier: Apache-2.0
// A step of a radix selection: finds the one of 256 bins that holds the wanted element (topk.cu,
// choose.cu).
#ifndef KERN_CUDA_RADIX_CUH
#define KERN_CUDA_RADIX_CUH
#include "kernels/cuda/prim.cuh"

enum { RADIX = 256, RADIX_BITS = 8 };

// Warp 0 calls this once the counts are complete. R has `count`, aligned to 16 bytes, and takes the
// answer: the bin that holds the need-th element, how many elements of that bin are needed (left),
// and whether these are all of its elements (whole).
template <class R> __device__ static void find_bin(R *r, uint32_t need) {
    const int per = RADIX / WARP;
    int lane = (int)threadIdx.x, bin = -1;
    uint32_t mine = 0, left = 0, whole = 0;
    Vec<uint32_t, 4> c[per / 4];
#pragma unroll
    for (int q = 0; q < per / 4; q++) {
        c[q] = reinterpret_cast<const Vec<uint32_t, 4> *>(r->count)[lane * (per / 4) + q];
        mine += c[q].x[0] + c[q].x[1] + c[q].x[2] + c[q].x[3];
    }
    uint32_t before = warp_sum_upto(mine) - mine;
#pragma unroll
    for (int i = 0; i < per; i++) {
        uint32_t upto = before + c[i / 4].x[i % 4];
        if (before < need && need <= upto) {
            bin = lane * per + i;
            left = need - before;
            whole = need == upto;
        }
        before = upto;
    }
    if (bin >= 0) { // in one lane
        r->bin = (uint32_t)bin;
        r->left = left;
        r->whole = whole;
    }
}

#endif
