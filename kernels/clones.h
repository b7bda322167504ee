// SPDX-License-Identifier: Apache-2.0
// KERN_CLONES compiles a function for several instruction sets. The program picks one when it is
// loaded. Use it for loops whose result does not depend on the vector width (exact path, block
// quantisers): the bits are the same everywhere.
#ifndef KERN_CLONES_H
#define KERN_CLONES_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KERN_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
// sanitizers start before the program can pick a clone; clang 14 does not know the arch names
#define KERN_CLONES
#endif

#endif
