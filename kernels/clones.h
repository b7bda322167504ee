// SPDX-License-Identifier: Apache-2.0
// KERN_CLONES compiles a function for several instruction sets and picks one when the program is loaded. For loops whose
// result does not depend on vector width (the exact path, block quantisers): same bits everywhere, more speed.
#ifndef KERN_CLONES_H
#define KERN_CLONES_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KERN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KERN_CLONES // sanitizers start before such functions can be resolved; clang 14 lacks the spelling
#endif

#endif
