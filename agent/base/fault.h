// SPDX-License-Identifier: Apache-2.0
// Fault points: places where a test makes an operation fail. They cost one test of a flag unless
// the environment variable NEBULA_FAULT is set:
//     NEBULA_FAULT=fs.write:7        the 7th fs.write of this process fails
//     NEBULA_FAULT=fs.write:7:kill   the process kills itself there (SIGKILL), as in a power cut
//     NEBULA_FAULT=fs.*:3            the 3rd hit of any point that starts with "fs." fails
//     NEBULA_FAULT=fs.write:*        every hit fails, as on a full disk
//     NEBULA_FAULT=a:1,b:2:kill      both (at most 8)
//     NEBULA_FAULT=fs.sync@b:2       only in processes whose log name is b (agent, worker)
//     NEBULA_FAULT=worker.step:+20   every hit takes 20 ms longer and never fails
#ifndef NEB_FAULT_H
#define NEB_FAULT_H
#include <stdbool.h>

extern bool neb_fault_armed; // read-only for callers; set at program start, and by neb_fault_arm

bool neb_fault_hit(const char *point);
static inline bool neb_fault(const char *point) {
    return __builtin_expect(neb_fault_armed, 0) && neb_fault_hit(point);
}
// For a test that arms faults in its own process. `spec` has the syntax of the variable; NULL
// disarms.
void neb_fault_arm(const char *spec);

#endif
