// SPDX-License-Identifier: Apache-2.0
// Requests for a connection (SYN) that the kernel drops for a listening socket, by where they come from: who floods costs this process
// nothing then, and hears nothing. Connections that are there are not touched. A classic BPF program (Linux's
// Documentation/networking/filter.rst), which needs no privilege.
#ifndef INTER_SYN_FILTER_H
#define INTER_SYN_FILTER_H
#include <stdbool.h>
#include <stdint.h>

enum { INTER_SYN_FILTER_MAX = 64 };

enum inter_syn {
    INTER_SYN_NOT_FROM,  // those of the sources are dropped, of no others
    INTER_SYN_ONLY_FROM, // all are but those of the sources, and of the host itself (::1)
};
// From now on, with these n sources (security/source.h). False: this kernel cannot.
bool inter_syn_filter(int listener, enum inter_syn rule, const uint64_t *from, uint32_t n);

#endif
