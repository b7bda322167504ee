// SPDX-License-Identifier: Apache-2.0
// KERN_UNROLL goes before a loop of at most 16 turns whose number is known to the compiler. Arrays
// that the loop indexes then live in registers. gcc does not understand clang's pragma, and clang
// applies gcc's too late.
#ifndef KERN_UNROLL_H
#define KERN_UNROLL_H

#ifdef __clang__
#define KERN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KERN_UNROLL _Pragma("GCC unroll 16")
#endif

#endif
