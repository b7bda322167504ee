// SPDX-License-Identifier: Apache-2.0
// The name of this build and the version of its protocol.
#ifndef NEB_BUILD_ID_H
#define NEB_BUILD_ID_H
#include <stdbool.h>

enum {
    // The version of every message between agents, workers, trainers and libnebula. Peers with
    // different versions refuse each other: raise it whenever a message, a record or the bytes of
    // an update change.
    NEB_PROTOCOL = 3,
    NEB_BUILD_MAX = 64, // bytes of the build name, with the terminating 0
};

// The build's name, "0.2.0 (3fd41372abcd)": version and commit. It is for people; no code compares
// it.
const char *neb_build(void);

struct neb_build_options {
    const char *version;
    const char *commit;     // "": built outside of a checkout
    const char *compiler;   // "gcc 12.2.0"
    const char *build_type; // "Release"
    const char *sanitizers; // "address,undefined"; "": none
    bool mpi, nccl, cuda;   // the build has made the object that the program loads for it
    const char *cuda_version, *nccl_version; // built with; "": without
};
const struct neb_build_options *neb_build_options(void);

#endif
