// SPDX-License-Identifier: Apache-2.0
// Panels and their products in plain C: the definition for the other instruction sets, and what
// tests run where the processor has none of them.
#include "kernels/bf16.h"
#include "kernels/clones.h"
#include "kernels/panel.h"

static size_t at(enum panel_form form, int side, int depth) {
    return form == PANEL_A ? (size_t)(side * PANEL_DEPTH + depth)
                           : (size_t)((depth / 2 * PANEL_SIDE + side) * 2 + depth % 2);
}

static void pack(uint16_t *block, enum panel_form form, const float *x, size_t ld, bool across,
                 int side, int depth) {
    for (int s = 0; s < PANEL_SIDE; s++)
        for (int d = 0; d < PANEL_DEPTH; d++) {
            size_t from = across ? (size_t)d * ld + (size_t)s : (size_t)s * ld + (size_t)d;
            block[at(form, s, d)] = s < side && d < depth ? kern_bf16_of(x[from]) : 0;
        }
}

static float widened(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

// One panel of a times one of b: 16 x 16 sums. The compiler can vectorise a row of sums.
KERN_CLONES static void tile(const struct panel_mul *m, const uint16_t *a, const uint16_t *b,
                             float sum[PANEL_SIDE][PANEL_SIDE]) {
    memset(sum, 0, sizeof(float) * PANEL_SIDE * PANEL_SIDE);
    for (int d = 0; d < m->depth * PANEL_DEPTH; d++) {
        const uint16_t *rows = a + d / PANEL_DEPTH * PANEL_BLOCK + d % PANEL_DEPTH,
                       *pairs = b + d / 2 * PANEL_SIDE * 2 + d % 2;
        float col[PANEL_SIDE];
        for (int j = 0; j < PANEL_SIDE; j++)
            col[j] = widened(pairs[2 * j]);
        for (int i = 0; i < PANEL_SIDE; i++) {
            float row = widened(rows[i * PANEL_DEPTH]);
            for (int j = 0; j < PANEL_SIDE; j++)
                sum[i][j] += row * col[j];
        }
    }
}

static void mul(const struct panel_mul *m) {
    float sum[PANEL_SIDE][PANEL_SIDE];
    for (int row = 0; row < m->rows; row += PANEL_SIDE)
        for (int col = 0; col < m->cols; col += PANEL_SIDE) {
            tile(m, m->a + (size_t)(row / PANEL_SIDE) * m->a_next,
                 m->b + (size_t)(col / PANEL_SIDE) * m->b_next, sum);
            for (int i = 0; i < PANEL_SIDE && row + i < m->rows; i++)
                for (int j = 0; j < PANEL_SIDE && col + j < m->cols; j++) {
                    float *c = m->c + (size_t)(row + i) * m->ldc + col + j;
                    *c = (m->how == PANEL_ADD ? *c : 0) + m->alpha * sum[i][j];
                }
        }
}

const struct panel_isa panel_plain = {"plain C", pack, mul};
