// SPDX-License-Identifier: Apache-2.0
// Fault points: places where a test makes an operation fail. Off (one relaxed load) unless the environment
// variable NEBULA_FAULT is set:
//     NEBULA_FAULT=fs.write:7        the 7th fs.write of this process fails
//     NEBULA_FAULT=fs.write:7:kill   the process kills itself there (SIGKILL), as a power cut would
//     NEBULA_FAULT=fs.*:3            the 3rd of any point that starts with "fs."
//     NEBULA_FAULT=fs.write:*        each fails, as on a disk that is full
//     NEBULA_FAULT=a:1,b:2:kill      both (at most 4)
//     NEBULA_FAULT=fs.sync@b:2       only where the log says b: in that cluster's agent and worker
//     NEBULA_FAULT=worker.step:+20   each takes 20 ms longer and does not fail: what a test wants to last need not be computed
#ifndef NEB_FAULT_H
#define NEB_FAULT_H
#include <stdbool.h>

extern bool neb_fault_armed; // read-only for users; set once at start from the environment

bool neb_fault_hit(const char *point);
static inline bool neb_fault(const char *point) {
    return __builtin_expect(neb_fault_armed, 0) && neb_fault_hit(point);
}
// Tests arm a fault in their own process: same syntax as the variable; NULL disarms.
void neb_fault_arm(const char *spec);

#endif
