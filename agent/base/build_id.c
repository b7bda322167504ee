// SPDX-License-Identifier: Apache-2.0
#include "agent/base/build_id.h"

// agent/base/room.cmake defines these for the build's own objects; other builds of this file, such
// as tests/sim/mutants, do without.
#ifndef NEBULA_BUILD_TYPE
#define NEBULA_BUILD_TYPE ""
#define NEBULA_SANITIZERS ""
#define NEBULA_HAS_MPI    0
#define NEBULA_HAS_NCCL   0
#define NEBULA_HAS_CUDA   0
#endif
#ifdef NEBULA_COMMIT
#define BUILD NEBULA_VERSION " (" NEBULA_COMMIT ")"
#else // built outside of a checkout
#define NEBULA_COMMIT ""
#define BUILD         NEBULA_VERSION
#endif
#ifndef NEBULA_CUDA_VERSION
#define NEBULA_CUDA_VERSION ""
#endif
#ifndef NEBULA_NCCL_VERSION
#define NEBULA_NCCL_VERSION ""
#endif
#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#ifdef __clang__
#define COMPILER                                                                                   \
    "clang " TEXT(__clang_major__) "." TEXT(__clang_minor__) "." TEXT(__clang_patchlevel__)
#else
#define COMPILER "gcc " __VERSION__
#endif

_Static_assert(sizeof BUILD <= NEB_BUILD_MAX, "the name of the build is too long");

const char *neb_build(void) { return BUILD; }

const struct neb_build_options *neb_build_options(void) {
    static const struct neb_build_options options = {
        .version = NEBULA_VERSION,
        .commit = NEBULA_COMMIT,
        .compiler = COMPILER,
        .build_type = NEBULA_BUILD_TYPE,
        .sanitizers = NEBULA_SANITIZERS,
        .mpi = NEBULA_HAS_MPI,
        .nccl = NEBULA_HAS_NCCL,
        .cuda = NEBULA_HAS_CUDA,
        .cuda_version = NEBULA_CUDA_VERSION,
        .nccl_version = NEBULA_NCCL_VERSION,
    };
    return &options;
}
