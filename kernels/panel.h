// SPDX-License-Identifier: Apache-2.0
// The layout of operands of bf16 products, and the inner loops that read it: one table for each
// instruction set.
//
// In c (m, n) = a b, an operand has a side (rows of c for a, columns of c for b) and a depth (the
// dimension that is summed). It is cut into blocks of 16 of the side by 32 of the depth. A block is
// 1 KiB without gaps, and is zero beyond the operand's end:
//
//     PANEL_A    [16 of the side][32 of the depth]
//     PANEL_B    [16 pairs of the depth][16 of the side][2]
//
// AMX's tiles (Intel 64 SDM 1, chapter 18) and vdpbf16ps both take this layout. A panel is all
// blocks of the same 16 of the side, one after another.
#ifndef KERN_PANEL_H
#define KERN_PANEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum panel_form { PANEL_A, PANEL_B };
enum { PANEL_SIDE = 16, PANEL_DEPTH = 32, PANEL_BLOCK = PANEL_SIDE * PANEL_DEPTH };

enum panel_how {
    PANEL_STORE,  // c = alpha a b
    PANEL_ADD,    // c += alpha a b
    PANEL_STREAM, // as PANEL_STORE, past the caches; c at a multiple of 64 bytes, ldc of 16
};

struct panel_mul {
    const uint16_t *a, *b;
    size_t a_next, b_next; // elements from one panel to the next
    int depth;             // in blocks
    int rows, cols;        // of c; what a and b hold beyond them is ignored
    float alpha, *c;
    size_t ldc;
    enum panel_how how;
};

struct panel_isa {
    const char *name;
    // Packs one block of x[side][depth], or of x[depth][side] if across. ld: row stride of x in
    // floats. 0 < side <= 16, 0 < depth <= 32. Rounds to nearest even; a denormal may become 0.
    void (*pack)(uint16_t *block, enum panel_form form, const float *x, size_t ld, bool across,
                 int side, int depth);
    // An element's sum does not depend on rows and cols. So parts of c that begin at multiples of
    // 16 can be computed separately.
    void (*mul)(const struct panel_mul *m);
};
extern const struct panel_isa panel_plain; // the definition, for any machine
// vdpbf16ps: needs avx512_bf16 and all that cpu_isa_avx512 needs
extern const struct panel_isa panel_avx512;
extern const struct panel_isa panel_amx; // AMX tiles

// Returns true if this process may use panel_amx. The first call asks the kernel for permission.
bool panel_amx_here(void);

#endif
