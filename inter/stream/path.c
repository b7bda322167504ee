// SPDX-License-Identifier: Apache-2.0
#include "inter/stream/path.h"

#include <stdlib.h>

static const neb_ns held_up = 250 * NEB_MS; // a longer wait shows that the link is full

enum neb_status inter_stream_path_create(uint32_t window, struct inter_stream_path **out) {
    NEB_ASSERT(window > 0);
    struct inter_stream_path *p = calloc(1, sizeof *p);
    if (p)
        p->marks = calloc(window, sizeof *p->marks);
    if (!p || !p->marks) {
        inter_stream_path_destroy(&p);
        return neb_fail(NEB_ERR_NOMEM, "out of memory measuring a stream");
    }
    p->window = window;
    *out = p;
    return NEB_OK;
}

void inter_stream_path_destroy(struct inter_stream_path **pp) {
    struct inter_stream_path *p = *pp;
    if (!p)
        return;
    free(p->marks);
    free(p);
    *pp = NULL;
}

static struct inter_path_mark *mark_of(const struct inter_stream_path *p, uint64_t seq) {
    return &p->marks[seq % p->window];
}

void inter_stream_path_reset(struct inter_stream_path *p, uint64_t next) {
    inter_estimate_lost(&p->estimate);
    p->acked = p->sent = next;
    p->latest = 0;
}

void inter_stream_path_sent(struct inter_stream_path *p, neb_ns now, uint64_t seq, uint32_t bytes) {
    uint64_t flying = 0;
    if (seq < p->acked || seq > p->sent || seq - p->acked >= p->window)
        inter_stream_path_reset(p, seq); // the sequence continues elsewhere
    for (uint64_t i = p->acked; i < seq; i++)
        flying += mark_of(p, i)->bytes;
    struct inter_path_mark *m = mark_of(p, seq);
    *m = (struct inter_path_mark){inter_estimate_sent(&p->estimate, now, flying), bytes, seq + 1,
                                  true, m->next == seq + 1 && m->left};
    p->sent = seq + 1;
}

void inter_stream_path_retry(struct inter_stream_path *p, neb_ns now, uint64_t seq) {
    if (seq < p->acked || seq >= p->sent)
        return;
    mark_of(p, seq)->sent.at = now;
    mark_of(p, seq)->again = true;
}

void inter_stream_path_unsent(struct inter_stream_path *p, uint64_t seq) {
    struct inter_path_mark *m = mark_of(p, seq);
    if (m->next == seq + 1)
        m->left = m->again;
}

void inter_stream_path_acked(struct inter_stream_path *p, neb_ns now, uint64_t have) {
    if (have > p->sent) { // from before a reset
        inter_stream_path_reset(p, have);
        return;
    }
    if (p->acked < have && p->estimate.rtt &&
        now - mark_of(p, p->acked)->sent.at > p->estimate.rtt + held_up)
        inter_estimate_full(&p->estimate, now);
    for (; p->acked < have; p->acked++) {
        const struct inter_path_mark *m = mark_of(p, p->acked);
        p->latest = m->again ? p->latest : now - m->sent.at;
        inter_estimate_ack(&p->estimate, now, m->bytes, p->acked + 1 == p->sent,
                           m->again ? NULL : &m->sent);
    }
}

struct inter_stream_measure inter_stream_path_measure(const struct inter_stream_path *p,
                                                      neb_ns now) {
    const struct inter_estimate *e = &p->estimate;
    neb_ns age = p->acked < p->sent ? now - mark_of(p, p->acked)->sent.at : 0,
           trip = age > p->latest ? age : p->latest;
    return (struct inter_stream_measure){.goodput_bps = e->goodput_bps,
                                         .full = e->full,
                                         .rtt = e->rtt,
                                         .waited = e->rtt && trip > e->rtt ? trip - e->rtt : 0};
}
