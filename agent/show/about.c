// SPDX-License-Identifier: Apache-2.0
#include "agent/show/about.h"
#include "agent/base/build_id.h"
#include "kernels/kern.h"

#include <stdio.h>
#include <string.h>

json_t *agent_about(void) {
    const struct neb_build_options *b = neb_build_options();
    return json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:{s:b, s:b, s:b}}", "version",
                     b->version, "commit", b->commit, "protocol", NEB_PROTOCOL, "compiler",
                     b->compiler, "build_type", b->build_type, "sanitizers", b->sanitizers, "isa",
                     kern_cpu_isa(), "cuda", b->cuda_version, "nccl", b->nccl_version, "objects",
                     "mpi", b->mpi, "nccl", b->nccl, "cuda", b->cuda);
}

const char *agent_about_line(const json_t *about, char *buf, size_t cap) {
    static const struct {
        const char *key, *before;
    } parts[] = {{"compiler", ""}, {"build_type", ""}, {"sanitizers", "sanitizers: "},
                 {"isa", ""},      {"cuda", "CUDA "},  {"nccl", "NCCL "}};
    buf[0] = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *text = json_string_value(json_object_get(about, parts[i].key));
        size_t at = strlen(buf);
        if (text && *text)
            snprintf(buf + at, cap - at, "%s%s%s", at ? ", " : "", parts[i].before, text);
    }
    return buf;
}
