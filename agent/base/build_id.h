// SPDX-License-Identifier: Apache-2.0
// Which build this is, and what it speaks.
#ifndef NEB_BUILD_ID_H
#define NEB_BUILD_ID_H

enum {
    // Of all that agents say to each other, and to workers, trainers and libnebula. Two that differ do not work together: raise it with every
    // change of a message, a record or an update's bytes.
    NEB_PROTOCOL = 1,
    NEB_BUILD_MAX = 64, // bytes of a build's name, with the 0 at its end
};

// "0.1.0 (3fd41372abcd)": version and commit; for people, and compared by nobody.
const char *neb_build(void);

#endif
