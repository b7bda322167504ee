// SPDX-License-Identifier: Apache-2.0
// Products by AMX: two by two tiles of 16 x 16 sums, from two panels of a and two of b (Intel 64
// SDM 1, chapter 18).
#if defined(__x86_64__)
#include "kernels/panel_avx512.h"

// The operand of ldtilecfg: each of the eight tiles has 16 rows of 64 bytes.
struct config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static const struct config config = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

// True if a tile of sums can be loaded from and stored to c directly. An instruction takes its
// tile's number as a constant: hence the macros.
static inline bool whole(const struct panel_mul *m, int row, int col) {
    return m->how != PANEL_STREAM && m->alpha == 1 && row + PANEL_SIDE <= m->rows &&
           col + PANEL_SIDE <= m->cols;
}

#define BEGIN(tile, row, col)                                                                      \
    do {                                                                                           \
        if (m->how == PANEL_ADD && whole(m, row, col))                                             \
            _tile_loadd(tile, m->c + (size_t)(row)*m->ldc + (col), (int)m->ldc * 4);               \
        else                                                                                       \
            _tile_zero(tile);                                                                      \
    } while (0)

#define END(tile, row, col)                                                                        \
    do {                                                                                           \
        if (whole(m, row, col)) {                                                                  \
            _tile_stored(tile, m->c + (size_t)(row)*m->ldc + (col), (int)m->ldc * 4);              \
        } else {                                                                                   \
            _tile_stored(tile, sums, PANEL_SIDE * 4);                                              \
            put(m, row, col, sums);                                                                \
        }                                                                                          \
    } while (0)

static void put(const struct panel_mul *m, int row, int col, const float *sums) {
    for (int i = 0; i < PANEL_SIDE && row + i < m->rows; i++)
        panel_put(m, row + i, col, _mm512_load_ps(sums + i * PANEL_SIDE));
}

// high: 1 or 2 panels of a; wide: 1 or 2 panels of b
static inline __attribute__((always_inline)) void tiles(const struct panel_mul *m, int row, int col,
                                                        const int high, const int wide) {
    enum { BYTES = PANEL_DEPTH * 2 };
    _Alignas(64) float sums[PANEL_SIDE * PANEL_SIDE];
    int row2 = row + PANEL_SIDE, col2 = col + PANEL_SIDE;
    const uint16_t *a = m->a + (size_t)(row / PANEL_SIDE) * m->a_next,
                   *b = m->b + (size_t)(col / PANEL_SIDE) * m->b_next;
    BEGIN(0, row, col);
    if (wide == 2)
        BEGIN(1, row, col2);
    if (high == 2)
        BEGIN(2, row2, col);
    if (high == 2 && wide == 2)
        BEGIN(3, row2, col2);
    for (int t = 0; t < m->depth; t++, a += PANEL_BLOCK, b += PANEL_BLOCK) {
        _tile_loadd(6, b, BYTES);
        _tile_loadd(4, a, BYTES);
        _tile_dpbf16ps(0, 4, 6);
        if (high == 2) {
            _tile_loadd(5, a + m->a_next, BYTES);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (wide == 2) {
            _tile_loadd(7, b + m->b_next, BYTES);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (high == 2 && wide == 2)
            _tile_dpbf16ps(3, 5, 7);
    }
    END(0, row, col);
    if (wide == 2)
        END(1, row, col2);
    if (high == 2)
        END(2, row2, col);
    if (high == 2 && wide == 2)
        END(3, row2, col2);
}

static void mul(const struct panel_mul *m) {
    _tile_loadconfig(&config);
    for (int j = 0; j < m->cols; j += 2 * PANEL_SIDE)
        for (int i = 0; i < m->rows; i += 2 * PANEL_SIDE) {
            bool high = i + PANEL_SIDE < m->rows, wide = j + PANEL_SIDE < m->cols;
            if (high && wide)
                tiles(m, i, j, 2, 2);
            else if (high)
                tiles(m, i, j, 2, 1);
            else if (wide)
                tiles(m, i, j, 1, 2);
            else
                tiles(m, i, j, 1, 1);
        }
    if (m->how == PANEL_STREAM)
        _mm_sfence(); // another thread may read c next
    _tile_release();  // otherwise each switch of this thread saves 8 KiB of tiles
}

const struct panel_isa panel_amx = {"AMX", panel_pack_avx512, mul};
#else
typedef int panel_nothing_here; // ISO C requires a declaration in every file
#endif
