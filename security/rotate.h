// SPDX-License-Identifier: Apache-2.0
// New keys for a member that is in a federation.
//
//     1  HOME/rotate/ gets new keys (kept, if an earlier attempt made them)
//     2  the hub lists them, asked with the old signing key; answer stored
//     3  HOME/keys -> HOME/keys.old, HOME/rotate/keys -> HOME/keys, then the public line
//
// A crash or a broken connection is mended by running it again. Where the hub has listed the new keys
// and its answer was lost, it refuses the old one: it is asked again, signed by the new one, which it
// takes for a renewal. Where the answer is stored, only 3 is left. The old keys stay in keys.old, for
// the operator to remove.
#ifndef SEC_ROTATE_H
#define SEC_ROTATE_H
#include "agent/base/status.h"

// hub: "HOST:PORT" of the enrolment endpoint. An agent of this home that runs changes over by itself.
NEB_MUST_CHECK enum neb_status sec_rotate(const char *home, const char *hub);

#endif
