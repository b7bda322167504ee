// SPDX-License-Identifier: Apache-2.0
// The product of a Hopper warp group (128 threads), as attn_wgmma.cu needs it: rows in registers or
// in a tile, times a tile in shared memory, in the background. See the PTX manual, "Asynchronous
// Warpgroup Level Matrix Multiply-Accumulate Instructions".
//
// A tile is 64 rows of 64 bf16, so a row has 128 bytes. It begins at a multiple of 1,024. Its
// pieces of 16 bytes are swizzled: piece c of row r lies in place c ^ r % 8, so that eight pieces
// of a row, or of a column, lie in different banks. The hardware swizzles the addresses that it
// computes, so a product may begin at a later row or column of the tile. Rows of 128 bf16 take two
// tiles. A tile is A as it lies, and B in two ways:
//
//     as it lies   (rows, 16 columns of the sum)   "K major"    scores: rows are keys,
//                                                               the sum is over head_dim
//     turned       (16 rows of the sum, columns)   "MN major"   sums of values: rows are keys,
//                                                               the sum is over keys
//
// Order of calls: wgmma_fence before the first product that reads registers just written; the
// products; wgmma_commit; wgmma_wait; wgmma_pin on the accumulators. Only then may anyone read
// the accumulators, or write registers that the products read.
#ifndef KERN_CUDA_ATTN_WGMMA_CUH
#define KERN_CUDA_ATTN_WGMMA_CUH
#include "kernels/cuda/prim.cuh"

enum { TILE_ROWS = 64, TILE_COLUMNS = 64, TILE = TILE_ROWS * TILE_COLUMNS, TILE_ALIGN = 1024 };

// Index of element (row, column) of a tile. column is a multiple of 8.
__device__ static inline int tile_at(int row, int column) {
    return row * TILE_COLUMNS + ((column / 8 ^ row % 8) * 8);
}

#ifdef __CUDACC__
__device__ static inline unsigned char *tiles_from(unsigned char *room) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(room);
    return room + (TILE_ALIGN - at % TILE_ALIGN) % TILE_ALIGN;
}
// A tile_ref says where a product begins: the lower half of its descriptor, with the address in
// units of 16 bytes. The upper half is the same for all: 1,024 bytes from eight rows to the next,
// swizzle of 128 bytes.
typedef uint32_t tile_ref;
__device__ static inline tile_ref tile_refer(const bf16 *tile) {
    return (uint32_t)__cvta_generic_to_shared(tile) >> 4 | 1u << 16;
}
__device__ static inline uint64_t tile_desc(tile_ref t) {
    return (uint64_t)(1u << 30 | 1024 >> 4) << 32 | t;
}
// Moves t on by so many elements: full tiles, multiples of eight rows, or 16 columns.
__device__ static inline tile_ref tile_on(tile_ref t, int elements) {
    return t + (uint32_t)(elements * (int)sizeof(bf16) / 16);
}
__device__ static inline void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ static inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all groups of products but the last LEFT.
template <int LEFT> __device__ static inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// wgmma_wait, but not before `made` is computed. Otherwise the compiler would move the wait up,
// before arithmetic that should run meanwhile. The store makes the wait depend on `made`. It never
// happens, because made is never below 0.
template <int LEFT> __device__ static inline void wgmma_wait_behind(float made) {
    asm volatile("{ .reg .pred p; .reg .b32 x; mov.b32 x, %0; setp.lt.f32 p, %0, 0f00000000;\n"
                 "@p st.volatile.shared.b32 [x], x; }\n" ::"f"(made)
                 : "memory");
    wgmma_wait<LEFT>();
}
// The compiler neither reads d nor moves it to other registers before this.
template <int N> __device__ static inline void wgmma_pin(float (&d)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(d[n][i])::"memory");
}
// After this and the next barrier, products see what this thread has copied to shared memory.
__device__ static inline void fence_tiles() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// One instruction. zero "1" with mark "=&f" overwrites the sums d; "0" with "+f" adds to them.
// operands: the rest of the instruction's text, whose arguments count from %32.
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
// d (8 x 4 of this lane): (64, 64) += a (64, 16) b, or = if FIRST. a is as in mma_bf16_16816, for
// each warp's 16 rows. b begins at this row or column of its tile.
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
// As cp_async16, for four bytes.
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
