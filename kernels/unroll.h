// SPDX-License-Identifier: Apache-2.0
// Before a loop of at most 16 turns, their number known where it is compiled: arrays that it indexes then live in registers. Each
// compiler has its own words for it, and understands the other's too late for that (clang) or not at all.
#ifndef KERN_UNROLL_H
#define KERN_UNROLL_H

#ifdef __clang__
#define KERN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KERN_UNROLL _Pragma("GCC unroll 16")
#endif

#endif
