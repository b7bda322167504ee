// SPDX-License-Identifier: Apache-2.0
// Internals of the CUDA device: device.c (memory, ops), open.c (set-up), record.c (graphs).
#ifndef KERN_CUDA_STATE_H
#define KERN_CUDA_STATE_H
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/record.h"

struct cuda {
    cudaStream_t s;
    bool hopper; // attention by attn_wgmma.cu: compute capability 9.0
    cudaEvent_t marks[KERN_MARKS], joint; // joint: of after and before
    struct kern_cu_gemm *gemm;
    void *scratch; // for one op at a time; grows
    size_t scratch_bytes;
    void **outgrown; // (n_outgrown) previous scratch, which graphs still write to
    int n_outgrown, graphs;
    struct kern_cu_recorder recorder;
    enum neb_status failed;
};
static inline struct cuda *of(struct kern *D) { return D->ctx; }

extern const struct kern_ops kern_cu_ops;

#endif
