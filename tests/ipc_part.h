// SPDX-License-Identifier: Apache-2.0
// Messages as they come from a socket.
#ifndef TESTS_IPC_PART_H
#define TESTS_IPC_PART_H
#include "agent/proc/ipc.h"

#include <string.h>
#include <zmq.h>

// Adds a copy of n bytes as the next part.
static inline void testing_add_part(struct agent_ipc_msg *m, const void *p, size_t n) {
    zmq_msg_t *frame = &m->frames[m->n_parts];
    NEB_ASSERT(zmq_msg_init_size(frame, n) == 0);
    if (n)
        memcpy(zmq_msg_data(frame), p, n);
    m->parts[m->n_parts++] = (struct agent_ipc_part){zmq_msg_data(frame), n};
}

#endif
