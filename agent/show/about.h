// SPDX-License-Identifier: Apache-2.0
// What runs here: version, commit, how it was built, and the instruction set that it has chosen.
// --version, doctor, status, the page, the metrics and summary.json show it.
#ifndef AGENT_ABOUT_H
#define AGENT_ABOUT_H
#include <jansson.h>

// {"version", "commit", "protocol", "compiler", "build_type", "sanitizers", "isa", "cuda", "nccl",
// "objects": {"mpi", "nccl", "cuda"}}. cuda and nccl are the versions of the build; "": without.
// NULL: out of memory.
json_t *agent_about(void);
// The same as a line without version and commit, from such an object of any agent:
// "gcc 12.2.0, Release, avx512, CUDA 13.0, NCCL 2.28.9". Returns buf.
const char *agent_about_line(const json_t *about, char *buf, size_t cap);

#endif
