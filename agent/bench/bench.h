// SPDX-License-Identifier: Apache-2.0
// `nebula bench`: one measurement per line, beside a ceiling measured in the same call, so that a
// figure from a busy or slow machine can still be judged. As JSON or as a table row:
//
//     {"bench": "codec", "case": "int4 encode t1", "value": 1.9, "unit": "GB/s", "limit": 11.2,
//      "limit_is": "memcpy", "ratio": 0.17}
#ifndef AGENT_BENCH_H
#define AGENT_BENCH_H
#include "agent/base/fs.h"

#include <stdbool.h>
#include <stddef.h>

// limit_is: what the ceiling is ("memcpy", "sgemm"). limit 0: no ceiling is known, and limit,
// limit_is and ratio are left out.
void bench_line(bool json, const char *bench, const char *case_, double value, const char *unit,
                double limit, const char *limit_is);

struct bench_field { // a further number in a line
    const char *name;
    double value;
};
// Processor time of all threads of this process: it leaves out what other programs use.
double bench_cpu_seconds(void);
void bench_sort(double *v, size_t n);     // ascending, in place
double bench_median(double *v, size_t n); // sorts v; n is at least 1
// Makes a new folder for files: in dir, which is made if needed, or (dir NULL) in $TMPDIR or /tmp.
// On failure out is "".
NEB_MUST_CHECK enum neb_status bench_folder(const char *dir, char out[NEB_PATH_MAX]);
void bench_folder_remove(const char *path); // "": does nothing; a failure is a warning

void bench_line_with(bool json, const char *bench, const char *case_, double value,
                     const char *unit, double limit, const char *limit_is,
                     const struct bench_field *more, size_t n_more);

#endif
