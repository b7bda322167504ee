// SPDX-License-Identifier: Apache-2.0
// Link frames of a hostile admitted member: introductions, heartbeats, pings, data. The connections
// have no sockets: replies are dropped. Input: frames, each after a byte for the set, one for the
// connection, and a u16 little-endian length.
#include "inter/link/state.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_event(void *user, const struct inter_link_event *e) {
    uint64_t *sum = user;
    for (size_t i = 0; i < e->len; i++)
        *sum += e->data[i]; // all bytes must be readable
    NEB_ASSERT(e->kind != INTER_LINK_MSG || e->channel == INTER_BULK ||
               e->len < INTER_LINK_CONTROL_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t sum = 0;
    struct inter_link *l = calloc(1, sizeof *l);
    NEB_ASSERT(l);
    struct peer *p = &l->peers[0];
    l->n_peers = 1;
    l->handler = on_event;
    l->user = &sum;
    inter_stripes_init(&p->stripes, 8, INTER_LINK_MAX_BULK, false);
    for (int w = 0; w < SETS; w++)
        for (uint32_t i = 0; i < CONNS; i++)
            p->s[w].c[i].fd = p->s[w].c[i].zmq_fd = -1;
    for (int w = 0; w < SETS; w++) {
        p->s[w].session = 1;
        p->s[w].up = true;
        for (uint32_t i = 0; i < 4; i++)
            p->s[w].c[i].open = true, p->s[w].c[i].sent = 1000 * i;
    }
    struct neb_rd r = neb_rd_make(data, size);
    const uint8_t rid[RID_BYTES] = {0, 1, 2, 3, 4};
    for (int k = 0; k < 256 && neb_rd_left(&r) >= 4; k++) {
        int which = neb_rd_u8(&r) % SETS;
        uint32_t index = neb_rd_u8(&r) % CONNS;
        size_t len = neb_rd_u16(&r);
        len = len < neb_rd_left(&r) ? len : neb_rd_left(&r);
        const uint8_t *b = neb_rd_view(&r, len);
        if (!len)
            continue;
        if (p->s[which].c[index].open)
            (void)link_on_frame(l, p, which, index, b, len);
        else
            (void)link_on_hello(l, p, rid, -1, b, len);
        NEB_ASSERT(p->asked <= p->stripes.max);
        for (uint32_t i = 0; i < CONNS; i++)
            NEB_ASSERT(p->s[which].c[i].acked <= p->s[which].c[i].sent);
    }
    link_peer_close(l, p);
    free(l);
    return 0;
}
