// SPDX-License-Identifier: Apache-2.0
// Gives a member of a federation new keys.
//
//     1  HOME/rotate/ gets new keys, or keeps those of an earlier attempt
//     2  the hub lists them; the request is signed with the old key; the answer is stored
//     3  HOME/keys -> HOME/keys.old, HOME/rotate/keys -> HOME/keys, then the public line
//
// After a crash or a broken connection, run it again. If the hub listed the new keys but its answer
// was lost, the hub refuses the old key. The new key then signs a second request, which the hub
// treats as a renewal. If the answer is stored, only step 3 is left. The old keys stay in keys.old
// until the operator removes them.
#ifndef SEC_ROTATE_H
#define SEC_ROTATE_H
#include "agent/base/status.h"

// hub: "HOST:PORT" of the enrolment endpoint. A running agent of this home switches to the new keys
// by itself.
NEB_MUST_CHECK enum neb_status sec_rotate(const char *home, const char *hub);

#endif
