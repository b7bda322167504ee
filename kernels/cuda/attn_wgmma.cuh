// Hopper's product of a warp group (128 threads), as attn_wgmma.cu needs it: rows in registers times a tile in shared memory, in the
// background. PTX manual, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
//
// A tile is 64 rows of 64 bf16, each of 128 bytes, and begins at a multiple of 1,024. Pieces of 16 bytes are swizzled: piece c of row r
// lies in place c ^ r % 8, so that neither rows nor columns of eight pieces meet in one bank. The hardware does the same to the address it
// works out, so a product may begin at a later row or column of the tile. Such a tile is B in two ways:
//
//     as it lies    (rows, 16 columns of the sum)    "K major"     scores: rows are keys, the sum is over head_dim
//     turned        (16 rows of the sum, columns)    "MN major"    sums of values: rows are keys, the sum is over them
//
// Order: wgmma_fence before the first product of a group that reads registers just written; then products; wgmma_commit;
// wgmma_wait, and wgmma_settled on what they were added to, before anybody looks at it.
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
__device__ static inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// Nothing of d is read, or moved to other registers, before this.
__device__ static inline void wgmma_settled(float (&d)[8][4]) {
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(d[n][i])::"memory");
}
// What this thread has copied to shared memory is there for products too, after the next barrier.
__device__ static inline void fence_tiles() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// d (64, 64) += a (64, 16) b, or = where FIRST; a as in mma_bf16_16816, of each warp's 16 rows. b: from this row or column of its tile on.
template <bool TURNED, bool FIRST>
__device__ static inline void wgmma_64_64_16(float (&d)[8][4], const uint32_t (&a)[4], tile_ref b) {
    if constexpr (FIRST)
        asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 1;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                     "{%32,%33,%34,%35}, %36, p, 1, 1, %37; }\n"
                     : "=&f"(d[0][0]), "=&f"(d[0][1]), "=&f"(d[0][2]), "=&f"(d[0][3]),
                       "=&f"(d[1][0]), "=&f"(d[1][1]), "=&f"(d[1][2]), "=&f"(d[1][3]),
                       "=&f"(d[2][0]), "=&f"(d[2][1]), "=&f"(d[2][2]), "=&f"(d[2][3]),
                       "=&f"(d[3][0]), "=&f"(d[3][1]), "=&f"(d[3][2]), "=&f"(d[3][3]),
                       "=&f"(d[4][0]), "=&f"(d[4][1]), "=&f"(d[4][2]), "=&f"(d[4][3]),
                       "=&f"(d[5][0]), "=&f"(d[5][1]), "=&f"(d[5][2]), "=&f"(d[5][3]),
                       "=&f"(d[6][0]), "=&f"(d[6][1]), "=&f"(d[6][2]), "=&f"(d[6][3]),
                       "=&f"(d[7][0]), "=&f"(d[7][1]), "=&f"(d[7][2]), "=&f"(d[7][3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile_desc(b)), "n"(TURNED));
    else
        asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                     "{%32,%33,%34,%35}, %36, p, 1, 1, %37; }\n"
                     : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]),
                       "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]),
                       "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]),
                       "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]),
                       "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]),
                       "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
                       "+f"(d[7][2]), "+f"(d[7][3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile_desc(b)), "n"(TURNED));
}
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
static inline void wgmma_settled(float (&)[8][4]) {}
static inline void fence_tiles() {}
template <bool TURNED, bool FIRST>
static inline void wgmma_64_64_16(float (&d)[8][4], const uint32_t (&a)[4], tile_ref b) {
    emu::wgmma(&d[0][0], a, b, TURNED, FIRST);
}
static inline void wgmma_fence() { emu::wgmma_fence(); }
static inline void wgmma_commit() { emu::wgmma_commit(); }
static inline void wgmma_wait() { emu::wgmma_wait(); }
static inline void cp_async4(void *dst, const void *src, bool valid) {
    emu::copy_later(dst, src, valid ? 4 : 0, valid ? 0 : 4);
}
#endif
#endif
