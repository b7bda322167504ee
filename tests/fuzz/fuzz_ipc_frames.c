// SPDX-License-Identifier: Apache-2.0
// Messages between an agent and a worker on another host, as frames (agent/proc/ipc_remote.c). No
// message has more bytes than arrived, an accepted message is sent on unchanged, and a good message
// after it arrives complete. Input: frames, each after a little-endian u16: 0x8000: the message
// continues; 0x4000: a frame of the largest size, filled with the next byte; else the number of
// bytes.
#include "agent/proc/ipc_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FRAMES_MAX = 64, LONG_MAX = 8, MORE = 0x8000, LONG = 0x4000, LENGTH = 0x3fff };

static void *from, *to;
static struct agent_ipc ipc;

static void set_up(void) {
    void *zctx = zmq_ctx_new();
    NEB_ASSERT(zctx && (from = zmq_socket(zctx, ZMQ_DEALER)) &&
               (to = zmq_socket(zctx, ZMQ_DEALER)));
    NEB_ASSERT(zmq_bind(to, "inproc://frames") == 0 && zmq_connect(from, "inproc://frames") == 0);
    ipc = (struct agent_ipc){.socket = to, .framed = true};
}

// libFuzzer's alarm may interrupt it.
static void put(const void *p, size_t n, int more) {
    int sent;
    do
        sent = zmq_send(from, p, n, more);
    while (sent < 0 && zmq_errno() == EINTR);
    NEB_ASSERT(sent == (int)n);
}

// Receives what is there. Returns the size and the head of the last message, or none.
static bool take(struct agent_ipc_msg *m) {
    struct agent_ipc_client nobody;
    for (enum neb_status st; (st = agent_ipc_recv(&ipc, &nobody, m)) != NEB_ERR_AGAIN;)
        if (st == NEB_OK)
            return true;
    return false;
}

static void expect_same(const struct agent_ipc_msg *a, const struct agent_ipc_msg *b) {
    NEB_ASSERT(json_equal(a->head, b->head) && a->n_parts == b->n_parts);
    for (size_t i = 0; i < a->n_parts; i++)
        NEB_ASSERT(a->parts[i].len == b->parts[i].len &&
                   !memcmp(a->parts[i].p, b->parts[i].p, a->parts[i].len));
}

static void resend(struct agent_ipc_msg *m) {
    struct agent_ipc_msg again;
    while (take(&again)) // skip the rest: one message an input is enough
        agent_ipc_msg_clear(&again);
    char *text = json_dumps(m->head, JSON_COMPACT);
    NEB_ASSERT(text &&
               ipc_remote_send(from, text, strlen(text), m->parts, m->n_parts, false) == NEB_OK);
    NEB_ASSERT(take(&again));
    expect_same(m, &again);
    agent_ipc_msg_clear(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t filled[AGENT_IPC_FRAME];
    struct agent_ipc_msg m;
    size_t sent = 0;
    int longs = 0, more = 0;
    if (!from)
        set_up();
    for (int k = 0; k < FRAMES_MAX && size >= 2; k++) {
        unsigned word = data[0] | (unsigned)data[1] << 8;
        size_t n = word & LENGTH, used;
        const void *p = data + 2;
        size -= 2, data += 2;
        used = n < size ? n : size;
        n = used;
        if (word & LONG) {
            if (++longs > LONG_MAX)
                break;
            memset(filled, size ? data[0] : 0, sizeof filled);
            p = filled, n = sizeof filled, used = size > 0;
        }
        more = word & MORE ? ZMQ_SNDMORE : 0;
        put(p, n, more);
        sent += n;
        data += used, size -= used;
    }
    if (more)
        put("", 0, 0);
    while (take(&m)) {
        size_t held = 0;
        for (size_t i = 0; i < m.n_parts; i++)
            held += m.parts[i].len;
        NEB_ASSERT(held <= sent && m.n_parts <= AGENT_IPC_PARTS_MAX);
        resend(&m);
        agent_ipc_msg_clear(&m);
    }
    NEB_ASSERT(ipc_remote_send(from, "{\"op\":\"heartbeat\"}", 18, NULL, 0, false) == NEB_OK &&
               take(&m));
    NEB_ASSERT(!strcmp(agent_ipc_str(&m, "op", ""), "heartbeat"));
    agent_ipc_msg_clear(&m);
    return 0;
}
