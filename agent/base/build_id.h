// SPDX-License-Identifier: Apache-2.0
// The name of this build and the version of its protocol.
#ifndef NEB_BUILD_ID_H
#define NEB_BUILD_ID_H

enum {
    // The version of every message between agents, workers, trainers and libnebula. Peers with
    // different versions refuse each other: raise it whenever a message, a record or the bytes of
    // an update change.
    NEB_PROTOCOL = 1,
    NEB_BUILD_MAX = 64, // bytes of the build name, with the terminating 0
};

// "0.1.0 (3fd41372abcd)": version and commit. Only people read it; no code compares it.
const char *neb_build(void);

#endif
