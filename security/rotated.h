// SPDX-License-Identifier: Apache-2.0
// When members last had new keys, in the hub's HOME/ca/rotated.json. Each rotation makes a version
// of the list, and a list carries only the last 255. A member that rotated without end would use
// them up, and a site that was away could take no newer list.
//
//     {"format": 1, "rotated": {"rome": 1764144000}}      seconds since 1970; of the last hour
//
// Threads: one user at a time, who holds the hub's lock.
#ifndef SEC_ROTATED_H
#define SEC_ROTATED_H
#include "agent/base/status.h"

#include <stdint.h>

enum { SEC_ROTATE_EVERY = 3600 }; // seconds

// *wait: seconds until the member may have new keys again; 0: now. NEB_ERR_FORMAT: the file is
// damaged.
NEB_MUST_CHECK enum neb_status sec_rotated_wait(const char *dir, const char *name, int64_t now,
                                                uint32_t *wait);
NEB_MUST_CHECK enum neb_status sec_rotated_note(const char *dir, const char *name, int64_t now);

#endif
