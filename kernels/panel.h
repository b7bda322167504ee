// SPDX-License-Identifier: Apache-2.0
// Operands of bf16 products as the inner loops read them, and those loops: one table per instruction set.
//
// An operand of c (m, n) = a b is cut into blocks of 16 rows of c (of a) or columns of c (of b), its side, by 32 elements of the sum,
// its depth; each is 1 KiB in one piece, zero beyond the operand's end:
//
//     PANEL_A    [16 of the side][32 of the depth]
//     PANEL_B    [16 pairs of the depth][16 of the side][2]
//
// what AMX's tiles hold (Intel 64 SDM 1, chapter 18) and what vdpbf16ps multiplies, both. The blocks of one 16 of the side, all its
// depth, lie one after another: a panel.
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
    PANEL_STREAM, // as PANEL_STORE, past the caches; c at a multiple of 64 bytes, ldc of 16 floats
};

struct panel_mul {
    const uint16_t *a, *b;
    size_t a_next, b_next; // elements from one panel to the next
    int depth;             // blocks
    int rows, cols;        // of c: any, what a and b hold beyond them is not used
    float alpha, *c;
    size_t ldc;
    enum panel_how how;
};

struct panel_isa {
    const char *name;
    // One block, of x with rows of ld floats: x[side][depth], or x[depth][side] if across. 0 < side <= 16, 0 < depth <= 32.
    // Rounds to nearest even; what is below the least normal number may become 0.
    void (*pack)(uint16_t *block, enum panel_form form, const float *x, size_t ld, bool across,
                 int side, int depth);
    // An element's sum does not depend on rows and cols: parts of c that begin at multiples of 16 may be computed apart.
    void (*mul)(const struct panel_mul *m);
};
extern const struct panel_isa panel_plain; // the definition, on any machine
// vdpbf16ps: avx512_bf16 (and what cpu_isa_avx512 needs)
extern const struct panel_isa panel_avx512;
extern const struct panel_isa panel_amx; // AMX's tiles

// Whether this process may use panel_amx; asks the kernel for it the first time.
bool panel_amx_here(void);

#endif
