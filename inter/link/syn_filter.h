// SPDX-License-Identifier: Apache-2.0
// A kernel filter that drops connection requests (SYN) to a listening socket by their source. A
// flood then costs this process nothing and gets no answer. Existing connections are not touched.
// It is a classic BPF program (Linux: Documentation/networking/filter.rst), and needs no privilege.
#ifndef INTER_SYN_FILTER_H
#define INTER_SYN_FILTER_H
#include <stdbool.h>
#include <stdint.h>

enum { INTER_SYN_FILTER_MAX = 64 };

enum inter_syn {
    INTER_SYN_NOT_FROM,  // drops requests from these sources
    INTER_SYN_ONLY_FROM, // drops all others, except those of this host (::1)
};
// Sets the filter, with n sources (security/source.h). False: this kernel cannot.
bool inter_syn_filter(int listener, enum inter_syn rule, const uint64_t *from, uint32_t n);

#endif
