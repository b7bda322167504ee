// SPDX-License-Identifier: Apache-2.0
// The part of NCCL's interface that intra/ranks/comm_nccl.c uses, for machines without NCCL: names,
// values and argument lists are NCCL's (2.28). nccl.c implements it. Where NCCL's own header is
// found, nccl.c is also compiled against that header (tests/cuda/room.cmake), so a difference is
// noticed.
#ifndef EMU_NCCL_H
#define EMU_NCCL_H
#include <cuda_runtime_api.h>
#include <limits.h>

typedef struct ncclComm *ncclComm_t;
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;
typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;
typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2 } ncclRedOp_t;
typedef enum {
    ncclUint8 = 1,
    ncclUint64 = 5,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
} ncclDataType_t;
typedef struct {
    size_t size;
    unsigned magic;
    int blocking; // 0: calls return ncclInProgress
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER                                                                    \
    { sizeof(ncclConfig_t), 0xcafebeef, INT_MIN }

ncclResult_t ncclGetUniqueId(ncclUniqueId *out);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *out, ncclConfig_t *config);
ncclResult_t ncclCommFinalize(ncclComm_t c);
ncclResult_t ncclCommDestroy(ncclComm_t c);
ncclResult_t ncclCommAbort(ncclComm_t c);
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *out);
ncclResult_t ncclCommCount(const ncclComm_t c, int *out);
ncclResult_t ncclCommUserRank(const ncclComm_t c, int *out);
const char *ncclGetErrorString(ncclResult_t r);
const char *ncclGetLastError(ncclComm_t c);

ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s);
ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                        int root, ncclComm_t c, cudaStream_t s);
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t t,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t s);
ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s);
ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t t, int root,
                           ncclComm_t c, cudaStream_t s);
ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t t, int to, ncclComm_t c,
                      cudaStream_t s);
ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t t, int from, ncclComm_t c,
                      cudaStream_t s);
#endif
