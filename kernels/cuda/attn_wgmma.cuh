// SPDX-License-Identifier: Apache-2.0
// Hopper's product of a warp group (128 threads), as attn_wgmma.cu needs it: rows in registers or in a tile, times a tile in shared memory, in
// the background. PTX manual, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
//
// A tile is 64 rows of 64 bf16, each of 128 bytes, and begins at a multiple of 1,024. Pieces of 16 bytes are swizzled: piece c of row r
// lies in place c ^ r % 8, so that neither rows nor columns of eight pieces meet in one bank. The hardware does the same to the address it
// works out, so a product may begin at a later row or column of the tile. Rows of 128 bf16 are two tiles. Such a tile is A as it lies, and B in
// two ways:
//
//     as it lies    (rows, 16 columns of the sum)    "K major"     scores: rows are keys, the sum is over head_dim
//     turned        (16 rows of the sum, columns)    "MN major"    sums of values: rows are keys, the sum is over them
//
// Order: wgmma_fence before the first product of a group that reads registers just written; then products; wgmma_commit;
// wgmma_wait, and wgmma_pin on what they were added to, before anybody looks at it, or writes to registers that they read.
#ifndef KERN_CUDA_ATTN_WGMMA_CUH
#define KERN_CUDA_ATTN_WGMMA_CUH
#include "kernels/cuda/prim.cuh"

enum { TILE_ROWS = 64, TILE_COLUMNS = 64, TILE = TILE_ROWS * TILE_COLUMNS, TILE_ALIGN = 1024 };

// Of element (row, column) in a tile, for columns that are multiples of 8.
__device__ static inline int tile_at(int row, int column) {
    return row * TILE_COLUMNS + ((column / 8 ^ row % 8) * 8);
}

#ifdef __CUDACC__
__device__ static inline unsigned char *tiles_from(unsigned char *room) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(room);
    return room + (TILE_ALIGN - at % TILE_ALIGN) % TILE_ALIGN;
}
// Where a product begins: start address, 1,024 bytes from eight rows to the next, swizzle of 128 bytes; addresses in units of 16 bytes.
// This is the lower half, the upper one is the same for all.
typedef uint32_t tile_ref;
__device__ static inline tile_ref tile_refer(const bf16 *tile) {
    return (uint32_t)__cvta_generic_to_shared(tile) >> 4 | 1u << 16;
}
__device__ static inline uint64_t tile_desc(tile_ref t) {
    return (uint64_t)(1u << 30 | 1024 >> 4) << 32 | t;
}
// So many elements on: whole tiles, whole eights of rows, or 16 columns.
__device__ static inline tile_ref tile_on(tile_ref t, int elements) {
    return t + (uint32_t)(elements * (int)sizeof(bf16) / 16);
}
__device__ static inline void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ static inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// For all groups but the last LEFT.
template <int LEFT> __device__ static inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// The same, not before `made` has been worked out: else the compiler, for which a wait is the begin of something long, moves it up over all
// arithmetic that was to go on meanwhile. What ties it is a store that never takes place: made is no number below 0.
template <int LEFT> __device__ static inline void wgmma_wait_behind(float made) {
    asm volatile("{ .reg .pred p; .reg .b32 x; mov.b32 x, %0; setp.lt.f32 p, %0, 0f00000000;\n"
                 "@p st.volatile.shared.b32 [x], x; }\n" ::"f"(made)
                 : "memory");
    wgmma_wait<LEFT>();
}
// Nothing of d is read, or moved to other registers, before this.
template <int N> __device__ static inline void wgmma_pin(float (&d)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(d[n][i])::"memory");
}
// What this thread has copied to shared memory is there for products too, after the next barrier.
__device__ static inline void fence_tiles() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// One instruction: the sums, which are written or added to (mark), then the operands as its text has them, %32 on.
#define KERN_WGMMA(zero, mark, d, operands, ...)                                                   \
    asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, " zero ";\n"                                   \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"                          \
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                          \
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, " operands     \
                 "; }\n"                                                                           \
                 : mark(d[0][0]), mark(d[0][1]), mark(d[0][2]), mark(d[0][3]), mark(d[1][0]),      \
                   mark(d[1][1]), mark(d[1][2]), mark(d[1][3]), mark(d[2][0]), mark(d[2][1]),      \
                   mark(d[2][2]), mark(d[2][3]), mark(d[3][0]), mark(d[3][1]), mark(d[3][2]),      \
                   mark(d[3][3]), mark(d[4][0]), mark(d[4][1]), mark(d[4][2]), mark(d[4][3]),      \
                   mark(d[5][0]), mark(d[5][1]), mark(d[5][2]), mark(d[5][3]), mark(d[6][0]),      \
                   mark(d[6][1]), mark(d[6][2]), mark(d[6][3]), mark(d[7][0]), mark(d[7][1]),      \
                   mark(d[7][2]), mark(d[7][3])                                                    \
                 : __VA_ARGS__)
// d (8 x 4 of this lane): (64, 64) += a (64, 16) b, or = where FIRST; a as in mma_bf16_16816, of each warp's 16 rows. b: from this row or
// column of its tile on.
template <bool TURNED, bool FIRST>
__device__ static inline void wgmma_64_64_16(float (*d)[4], const uint32_t (&a)[4], tile_ref b) {
    if constexpr (FIRST)
        KERN_WGMMA("1", "=&f", d, "{%32,%33,%34,%35}, %36, p, 1, 1, %37", "r"(a[0]), "r"(a[1]),
                   "r"(a[2]), "r"(a[3]), "l"(tile_desc(b)), "n"(TURNED));
    else
        KERN_WGMMA("0", "+f", d, "{%32,%33,%34,%35}, %36, p, 1, 1, %37", "r"(a[0]), "r"(a[1]),
                   "r"(a[2]), "r"(a[3]), "l"(tile_desc(b)), "n"(TURNED));
}
// The same with a in shared memory: 64 rows of a tile as it lies, from this column on.
template <bool TURNED, bool FIRST>
__device__ static inline void wgmma_64_64_16(float (*d)[4], tile_ref a, tile_ref b) {
    if constexpr (FIRST)
        KERN_WGMMA("1", "=&f", d, "%32, %33, p, 1, 1, 0, %34", "l"(tile_desc(a)), "l"(tile_desc(b)),
                   "n"(TURNED));
    else
        KERN_WGMMA("0", "+f", d, "%32, %33, p, 1, 1, 0, %34", "l"(tile_desc(a)), "l"(tile_desc(b)),
                   "n"(TURNED));
}
#undef KERN_WGMMA
// Four bytes of shared memory, as cp_async16 does sixteen.
__device__ static inline void cp_async4(void *dst, const void *src, bool valid) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(dst);
    int bytes = valid ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(src), "r"(bytes)
                 : "memory");
}
#else
static inline unsigned char *tiles_from(unsigned char *room) {
    return room + (TILE_ALIGN - (uintptr_t)room % TILE_ALIGN) % TILE_ALIGN;
}
typedef const bf16 *tile_ref;
static inline tile_ref tile_refer(const bf16 *tile) { return tile; }
static inline tile_ref tile_on(tile_ref t, int elements) { return t + elements; }
template <int N> static inline void wgmma_pin(float (&)[N][4]) {}
static inline void fence_tiles() {}
template <bool TURNED, bool FIRST>
static inline void wgmma_64_64_16(float (*d)[4], const uint32_t (&a)[4], tile_ref b) {
    emu::wgmma(*d, a, b, TURNED, FIRST);
}
template <bool TURNED, bool FIRST>
static inline void wgmma_64_64_16(float (*d)[4], tile_ref a, tile_ref b) {
    emu::wgmma_shared(*d, a, b, TURNED, FIRST);
}
static inline void wgmma_fence() { emu::wgmma_fence(); }
static inline void wgmma_commit() { emu::wgmma_commit(); }
template <int LEFT> static inline void wgmma_wait() { emu::wgmma_wait(LEFT); }
template <int LEFT> static inline void wgmma_wait_behind(float) { wgmma_wait<LEFT>(); }
static inline void cp_async4(void *dst, const void *src, bool valid) {
    emu::copy_later(dst, src, valid ? 4 : 0, valid ? 0 : 4);
}
#endif
#endif
