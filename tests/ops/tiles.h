// SPDX-License-Identifier: Apache-2.0
// AMX's tiles in plain C, for kernels/panel_amx.c on processors without AMX. A test includes this
// file before it, and replaces the names of the intrinsics. It follows Intel's description (64 and
// IA-32 SDM 1, chapter 18): it checks a configuration, and refuses what the configuration does not
// cover.
#ifndef OPS_TILES_H
#define OPS_TILES_H
#include <immintrin.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct {
    int configured;
    uint8_t rows[8];
    uint16_t bytes[8];
    uint8_t data[8][16][64];
} tiles_now;

static inline void tiles_config(const void *from) {
    const uint8_t *c = from;
    assert_int_equal(c[0], 1); // palette
    for (int i = 1; i < 16; i++)
        assert_int_equal(c[i], 0); // start_row, reserved
    memset(&tiles_now, 0, sizeof tiles_now);
    for (int t = 0; t < 16; t++) {
        uint16_t bytes;
        memcpy(&bytes, c + 16 + 2 * t, 2);
        assert_true(t < 8 ? bytes <= 64 && c[48 + t] <= 16 : bytes == 0 && c[48 + t] == 0);
        if (t < 8) {
            tiles_now.bytes[t] = bytes;
            tiles_now.rows[t] = c[48 + t];
        }
    }
    tiles_now.configured = 1;
}

static inline void tiles_release(void) { tiles_now.configured = 0; }

static inline void tiles_load(int t, const void *from, long stride) {
    assert_true(tiles_now.configured && tiles_now.rows[t] && tiles_now.bytes[t]);
    memset(tiles_now.data[t], 0, sizeof tiles_now.data[t]);
    for (long i = 0; i < tiles_now.rows[t]; i++)
        memcpy(tiles_now.data[t][i], (const char *)from + i * stride, tiles_now.bytes[t]);
}

static inline void tiles_store(int t, void *to, long stride) {
    assert_true(tiles_now.configured && tiles_now.rows[t]);
    for (long i = 0; i < tiles_now.rows[t]; i++)
        memcpy((char *)to + i * stride, tiles_now.data[t][i], tiles_now.bytes[t]);
}

static inline void tiles_zero(int t) {
    assert_true(tiles_now.configured);
    memset(tiles_now.data[t], 0, sizeof tiles_now.data[t]);
}

static inline float tiles_bf16(const uint8_t *p) {
    uint32_t u = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline void tiles_dp(int c, int a, int b) {
    assert_true(tiles_now.configured && tiles_now.rows[a] == tiles_now.rows[c] &&
                tiles_now.bytes[b] == tiles_now.bytes[c] &&
                tiles_now.bytes[a] / 4 == tiles_now.rows[b]);
    for (int m = 0; m < tiles_now.rows[c]; m++)
        for (int k = 0; k < tiles_now.bytes[a] / 4; k++)
            for (int n = 0; n < tiles_now.bytes[c] / 4; n++) {
                float sum;
                memcpy(&sum, &tiles_now.data[c][m][4 * n], 4);
                for (int pair = 0; pair < 2; pair++)
                    sum += tiles_bf16(&tiles_now.data[a][m][4 * k + 2 * pair]) *
                           tiles_bf16(&tiles_now.data[b][k][4 * n + 2 * pair]);
                memcpy(&tiles_now.data[c][m][4 * n], &sum, 4);
            }
}

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_release
#define _tile_loadd      tiles_load
#define _tile_stored     tiles_store
#define _tile_zero       tiles_zero
#define _tile_dpbf16ps   tiles_dp
#define _tile_loadconfig tiles_config
#define _tile_release    tiles_release

#endif
