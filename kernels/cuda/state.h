// SPDX-License-Identifier: Apache-2.0
// Inside of the CUDA device: device.c (memory, ops), open.c (set-up), record.c (graphs).
#ifndef KERN_CUDA_STATE_H
#define KERN_CUDA_STATE_H
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/record.h"

struct cuda {
    cudaStream_t s;
    bool hopper; // compute capability 9.0, whose own instructions attn_wgmma.cu has
    cudaEvent_t marks[KERN_MARKS];
    struct kern_cu_gemm *gemm;
    void *scratch; // of one op at a time; grows
    size_t scratch_bytes;
    void **outgrown; // (n_outgrown) scratch of before, which graphs still write to
    int n_outgrown, graphs;
    struct kern_cu_recorder recorder;
    enum neb_status failed;
};
static inline struct cuda *of(struct kern_device *D) { return D->ctx; }

extern const struct kern_device_ops kern_cu_ops;

#endif
