// SPDX-License-Identifier: Apache-2.0
#include "agent/base/build_id.h"

#ifdef NEBULA_COMMIT
#define BUILD NEBULA_VERSION " (" NEBULA_COMMIT ")"
#else // built outside a git checkout
#define BUILD NEBULA_VERSION
#endif

_Static_assert(sizeof BUILD <= NEB_BUILD_MAX, "the name of the build is too long");

const char *neb_build(void) { return BUILD; }
