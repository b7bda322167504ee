// SPDX-License-Identifier: Apache-2.0
// Moves packets between TUN devices: see tun.h.
#include "agent/wan/tun.h"
#include "agent/wan/gso.h"

#include "agent/base/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    READ_BATCH = 64,     // frames read from one device before the next has its turn
    LATE_BYTES = 1 << 19 // ring for packets that are held back
};
#define RUN_TIME (500 * NEB_US) // segments delivered as one frame span at most this line time
#define EARLY    (30 * NEB_US)  // a frame that is due this soon goes now

struct pipe {
    struct wan_fifo *order, *late; // NULL on the diagonal
    neb_ns last_late;
};

struct wan_tun {
    struct wan_mesh *mesh;
    int fd[WAN_SITES_MAX];
    struct pipe pipe[WAN_SITES_MAX][WAN_SITES_MAX];
    neb_ns due[WAN_SITES_MAX][WAN_SITES_MAX]; // of the first record; INT64_MAX: empty
    uint8_t frame[WAN_FRAME_MAX];
};

static void on_change(void *ctx, unsigned from, unsigned to) {
    struct wan_tun *t = ctx;
    if (wan_fifo_reserve(t->pipe[from][to].order,
                         wan_link_buffer_bytes(&t->mesh->link[from][to].p)) != NEB_OK)
        neb_warn("wanlink: link %u to %u keeps its smaller buffer", from, to);
}

static uint64_t in_flight(void *ctx, unsigned from, unsigned to) {
    struct wan_tun *t = ctx;
    return wan_fifo_bytes(t->pipe[from][to].order) + wan_fifo_bytes(t->pipe[from][to].late);
}

enum neb_status wan_tun_create(struct wan_mesh *mesh, const int *tun_fd, int epoll_fd,
                               struct wan_tun **out) {
    struct wan_tun *t = calloc(1, sizeof *t);
    if (t == NULL)
        return neb_fail(NEB_ERR_NOMEM, "wanlink: no memory for the links");
    enum neb_status st = NEB_OK;
    t->mesh = mesh;
    for (unsigned i = 0; i < mesh->sites; i++)
        t->fd[i] = tun_fd[i];
    for (unsigned i = 0; i < mesh->sites; i++) {
        struct epoll_event ev = {.events = EPOLLIN, .data.u64 = WAN_TAG_ENGINE + i};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, t->fd[i], &ev) != 0) {
            st = neb_fail_errno("wanlink: cannot watch the TUN device of site %u", i);
            goto out;
        }
        for (unsigned j = 0; j < mesh->sites; j++) {
            t->due[i][j] = INT64_MAX;
            if (i == j)
                continue;
            NEB_TRY_GOTO(
                wan_fifo_create(wan_link_buffer_bytes(&mesh->link[i][j].p), &t->pipe[i][j].order),
                out);
            NEB_TRY_GOTO(wan_fifo_create(LATE_BYTES, &t->pipe[i][j].late), out);
        }
    }
    mesh->changed = on_change;
    mesh->in_flight = in_flight;
    mesh->ctx = t;
out:
    if (st != NEB_OK)
        wan_tun_destroy(&t);
    *out = t;
    return st;
}

void wan_tun_destroy(struct wan_tun **pt) {
    struct wan_tun *t = *pt;
    if (t == NULL)
        return;
    for (unsigned i = 0; i < t->mesh->sites; i++) {
        close(t->fd[i]);
        for (unsigned j = 0; j < t->mesh->sites; j++) {
            wan_fifo_destroy(&t->pipe[i][j].order);
            wan_fifo_destroy(&t->pipe[i][j].late);
        }
    }
    t->mesh->changed = NULL;
    t->mesh->in_flight = NULL;
    free(t);
    *pt = NULL;
}

// Keeps segments [from, to) of a frame until `deliver`.
static void store(struct wan_link *l, struct wan_fifo *f, const struct wan_gso *g, unsigned from,
                  unsigned to, neb_ns deliver) {
    struct wan_record r = {
        .deliver = deliver, .len = (uint32_t)wan_gso_run_bytes(g, from, to), .segs = to - from};
    for (unsigned i = from; i < to; i++)
        r.wire += wan_gso_seg_bytes(g, i);
    uint8_t *data = wan_fifo_push(f, r);
    if (data != NULL) {
        wan_gso_run_write(g, from, to, data);
        return;
    }
    // The ring fits its link. It is full only after a very large change of parameters.
    l->stats.queue_dropped_packets += r.segs;
    l->stats.dropped_bytes += r.wire;
}

// Decides the fate of each segment. Neighbours with the same fate stay in one frame.
static void forward(struct wan_tun *t, unsigned i, unsigned j, const struct wan_gso *g,
                    neb_ns now) {
    struct wan_link *l = &t->mesh->link[i][j];
    struct pipe *p = &t->pipe[i][j];
    unsigned run = 0; // segments [run, s) wait to be stored
    neb_ns first = 0, last = 0, at = 0;
    for (unsigned s = 0; s < g->segs; s++) {
        enum wan_fate fate = wan_link_offer(l, now, wan_gso_seg_bytes(g, s), &at);
        if (fate == WAN_PASS && run < s && at - first <= RUN_TIME) {
            last = at;
            continue;
        }
        if (run < s)
            store(l, p->order, g, run, s, last);
        run = fate == WAN_PASS ? s : s + 1;
        first = last = at;
        if (fate == WAN_LATE) {
            p->last_late = at > p->last_late ? at : p->last_late;
            store(l, p->late, g, s, s + 1, p->last_late);
        }
    }
    if (run < g->segs)
        store(l, p->order, g, run, g->segs, last);
    if (t->due[i][j] == INT64_MAX)
        t->due[i][j] = 0; // the next advance looks at it
}

static void on_readable(void *ctx, uint64_t tag, uint32_t events) {
    struct wan_tun *t = ctx;
    unsigned i = (unsigned)tag;
    (void)events;
    for (unsigned k = 0; k < READ_BATCH; k++) {
        struct wan_gso g;
        ssize_t n = read(t->fd[i], t->frame, sizeof t->frame);
        if (n <= 0)
            return;
        static const uint8_t net[3] = {10, 77, 0};
        if (!wan_gso_parse(t->frame, (size_t)n, &g) || memcmp(g.dst, net, 3) != 0)
            continue;
        unsigned j = g.dst[3] - 1u;
        if (j < t->mesh->sites && j != i)
            forward(t, i, j, &g, neb_now());
    }
}

static neb_ns drain(struct wan_tun *t, struct wan_fifo *f, unsigned i, unsigned j, neb_ns now) {
    struct wan_link *l = &t->mesh->link[i][j];
    struct wan_record r;
    uint8_t *data;
    while (wan_fifo_head(f, &r, &data)) {
        if (r.deliver > now + EARLY)
            return r.deliver;
        // A link that is down also loses what is in flight. A device that refuses a frame has lost
        // it.
        if (!l->p.down && write(t->fd[j], data, r.len) == (ssize_t)r.len) {
            l->stats.delivered_packets += r.segs;
            l->stats.delivered_bytes += r.wire;
        } else {
            l->stats.down_dropped_packets += r.segs;
            l->stats.dropped_bytes += r.wire;
        }
        wan_fifo_pop(f);
    }
    return INT64_MAX;
}

static neb_ns advance(void *ctx, neb_ns now) {
    struct wan_tun *t = ctx;
    neb_ns next = INT64_MAX;
    for (unsigned i = 0; i < t->mesh->sites; i++) {
        for (unsigned j = 0; j < t->mesh->sites; j++) {
            if (t->due[i][j] <= now + EARLY) {
                neb_ns a = drain(t, t->pipe[i][j].order, i, j, now);
                neb_ns b = drain(t, t->pipe[i][j].late, i, j, now);
                t->due[i][j] = a < b ? a : b;
            }
            if (t->due[i][j] < next)
                next = t->due[i][j];
        }
    }
    return next;
}

struct wan_engine_ops wan_tun_ops(struct wan_tun *t) {
    return (struct wan_engine_ops){.event = on_readable, .advance = advance, .ctx = t};
}
