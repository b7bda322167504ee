// SPDX-License-Identifier: Apache-2.0
// A communicator (intra/ranks/comm.h, name "loop") over the send and receive of a training loop's
// own process group (struct nebula_ranks). It makes no thread, and calls the hooks on the thread
// that calls it.
//
//     message   frame of 128 bytes: tag, length, first bytes ── rest, if it is longer
//
// A short message is one call of a hook. The frame shows when two ranks make different calls: the
// receive fails and names both ranks, instead of taking bytes for something else.
//
// A hook's send may wait for the receiver (gloo's and NCCL's do). So, as with nccl, messages are
// taken in the order of sending, ranks must not send in a circle before they receive, and no rank
// sends to itself. `split` and `poll` are missing.
#ifndef AGENT_LIB_RANKS_H
#define AGENT_LIB_RANKS_H
#include "agent/lib/libnebula.h"
#include "intra/ranks/comm.h"

// hooks is copied. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status lib_ranks_create(const struct nebula_ranks *hooks,
                                                struct intra_comm **out);

#endif
