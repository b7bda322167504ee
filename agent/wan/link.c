// SPDX-License-Identifier: Apache-2.0
// The link model: see link.h.
#include "agent/wan/link.h"

#include "agent/base/rng.h"

#include <stdlib.h>
#include <string.h>

enum {
    WAN_QUEUE_MIN = 64 * 1024, // a queue given in bdp has at least this many bytes
    WAN_BUFFER_SPARE = 2 << 20,
    WAN_FULL_PACKET = 1500,
};

neb_ns wan_line_time(uint64_t rate_bps, uint64_t bytes) {
    if (rate_bps == 0)
        return 0;
    return (neb_ns)((double)bytes * 8e9 / (double)rate_bps + 0.5);
}

uint64_t wan_link_queue_limit(const struct wan_params *p) {
    if (p->rate_bps == 0)
        return UINT64_MAX; // packets never wait
    if (!(p->queue_bdp > 0))
        return p->queue_bytes;
    double bytes = p->queue_bdp * (double)p->rate_bps / 8 * 2 * neb_seconds(p->delay);
    return bytes < WAN_QUEUE_MIN ? WAN_QUEUE_MIN : (uint64_t)bytes;
}

size_t wan_link_buffer_bytes(const struct wan_params *p) {
    double rate = p->rate_bps ? (double)p->rate_bps : 2e9;
    double flight = rate / 8 * neb_seconds(p->delay + p->jitter);
    double queue = p->rate_bps ? (double)wan_link_queue_limit(p) : 0;
    double bytes = 1.25 * (flight + queue) + WAN_BUFFER_SPARE;
    const double most = 1u << 30;
    return (size_t)(bytes < most ? bytes : most);
}

struct wan_link wan_link_make(const struct wan_params *p, uint64_t seed, unsigned from,
                              unsigned to) {
    uint64_t own = neb_mix64(seed + 0x9e3779b97f4a7c15ull * (1 + from * 256ull + to));
    return (struct wan_link){.p = *p, .seed = own};
}

uint64_t wan_link_backlog_bytes(const struct wan_link *l, neb_ns now) {
    if (l->busy_until <= now || l->p.rate_bps == 0)
        return 0;
    return (uint64_t)((double)(l->busy_until - now) * (double)l->p.rate_bps / 8e9 + 0.5);
}

void wan_link_set(struct wan_link *l, const struct wan_params *p, neb_ns now) {
    uint64_t backlog = wan_link_backlog_bytes(l, now);
    l->p = *p;
    if (backlog > 0)
        l->busy_until = now + wan_line_time(p->rate_bps, backlog);
}

// A uniform value in [0, 1), a function of (seed, purpose, k).
static double chance(uint64_t seed, uint64_t purpose, uint64_t k) {
    uint64_t x =
        neb_mix64(neb_mix64(seed ^ purpose * 0xd1342543de82ef95ull) + k * 0x9e3779b97f4a7c15ull);
    return (double)(x >> 11) * 0x1p-53;
}

enum { PURPOSE_LOSS = 1, PURPOSE_REORDER, PURPOSE_JITTER };

static neb_ns wander(const struct wan_link *l, neb_ns t) {
    if (l->p.jitter <= 0)
        return 0;
    neb_ns period = 10 * l->p.jitter > 20 * NEB_MS ? 10 * l->p.jitter : 20 * NEB_MS;
    uint64_t slot = (uint64_t)(t / period);
    double a = chance(l->seed, PURPOSE_JITTER, slot), b = chance(l->seed, PURPOSE_JITTER, slot + 1);
    double x = (double)(t % period) / (double)period;
    return (neb_ns)((2 * (a + (b - a) * x) - 1) * (double)l->p.jitter);
}

enum wan_fate wan_link_offer(struct wan_link *l, neb_ns now, size_t len, neb_ns *deliver) {
    struct wan_stats *s = &l->stats;
    uint64_t k = l->index++;
    s->offered_packets++;
    s->offered_bytes += len;
    if (l->p.down) {
        s->down_dropped_packets++;
        s->dropped_bytes += len;
        return WAN_DOWN;
    }
    if (wan_link_backlog_bytes(l, now) + len > wan_link_queue_limit(&l->p)) {
        s->queue_dropped_packets++;
        s->dropped_bytes += len;
        return WAN_QUEUE_FULL;
    }
    neb_ns start = l->busy_until > now ? l->busy_until : now;
    l->busy_until = start + wan_line_time(l->p.rate_bps, len);
    if (l->p.loss > 0 && chance(l->seed, PURPOSE_LOSS, k) < l->p.loss) {
        s->lost_packets++;
        s->dropped_bytes += len;
        return WAN_LOST;
    }
    neb_ns way = l->p.delay + wander(l, l->busy_until);
    neb_ns at = l->busy_until + (way > 0 ? way : 0);
    if (l->p.reorder > 0 && chance(l->seed, PURPOSE_REORDER, k) < l->p.reorder) {
        s->reordered_packets++;
        *deliver = at + NEB_MS + wan_line_time(l->p.rate_bps, 3 * WAN_FULL_PACKET);
        return WAN_LATE;
    }
    if (at < l->last_deliver)
        at = l->last_deliver;
    l->last_deliver = at;
    *deliver = at;
    return WAN_PASS;
}

struct wan_fifo {
    uint8_t *p; // owned, cap bytes
    size_t cap, head, tail, used;
    uint64_t data_bytes;
};

enum { HEAD = sizeof(struct wan_record) };
// value of `len`: the rest of the ring is unused, the next record is at its start
#define SKIP UINT32_MAX

enum neb_status wan_fifo_create(size_t cap_bytes, struct wan_fifo **out) {
    struct wan_fifo *f = calloc(1, sizeof *f);
    if (f != NULL)
        f->cap = (cap_bytes + 7) & ~(size_t)7, f->p = malloc(f->cap);
    if (f == NULL || f->p == NULL) {
        free(f);
        return neb_fail(NEB_ERR_NOMEM, "wanlink: no memory for a buffer of %zu bytes", cap_bytes);
    }
    *out = f;
    return NEB_OK;
}

void wan_fifo_destroy(struct wan_fifo **f) {
    if (*f != NULL)
        free((*f)->p), free(*f);
    *f = NULL;
}

static size_t record_bytes(size_t len) { return HEAD + ((len + 7) & ~(size_t)7); }

// True if the free bytes are in two parts: from tail to the end, and from the start to head.
static bool split(const struct wan_fifo *f) { return f->tail >= f->head && f->used < f->cap; }

bool wan_fifo_fits(const struct wan_fifo *f, size_t len) {
    size_t need = record_bytes(len);
    if (f->used == 0)
        return need <= f->cap;
    return split(f) ? need <= f->cap - f->tail || need <= f->head : need <= f->cap - f->used;
}

uint8_t *wan_fifo_push(struct wan_fifo *f, struct wan_record r) {
    size_t need = record_bytes(r.len);
    if (!wan_fifo_fits(f, r.len))
        return NULL;
    if (f->used == 0)
        f->head = f->tail = 0; // an empty ring starts over, so that it touches few pages
    size_t rest = f->cap - f->tail;
    if (split(f) && need > rest) { // wrap: the rest stays unused
        if (rest >= HEAD) {
            struct wan_record skip = {.len = SKIP};
            memcpy(f->p + f->tail, &skip, HEAD);
        }
        f->used += rest;
        f->tail = 0;
    }
    memcpy(f->p + f->tail, &r, HEAD);
    uint8_t *data = f->p + f->tail + HEAD;
    f->tail += need;
    if (f->tail == f->cap)
        f->tail = 0;
    f->used += need;
    f->data_bytes += r.len;
    return data;
}

// Where the oldest record starts. Skips the unused end of the ring.
static size_t first(const struct wan_fifo *f, struct wan_record *r) {
    size_t at = f->head;
    if (f->cap - at >= HEAD)
        memcpy(r, f->p + at, HEAD);
    if (f->cap - at < HEAD || r->len == SKIP) {
        at = 0;
        memcpy(r, f->p, HEAD);
    }
    return at;
}

bool wan_fifo_head(const struct wan_fifo *f, struct wan_record *r, uint8_t **data) {
    if (f->used == 0)
        return false;
    *data = f->p + first(f, r) + HEAD;
    return true;
}

void wan_fifo_pop(struct wan_fifo *f) {
    struct wan_record r;
    size_t at = first(f, &r), need = record_bytes(r.len);
    NEB_ASSERT(f->used >= need);
    if (at != f->head)
        f->used -= f->cap - f->head;
    f->used -= need;
    f->data_bytes -= r.len;
    f->head = at + need == f->cap ? 0 : at + need;
}

uint64_t wan_fifo_bytes(const struct wan_fifo *f) { return f->data_bytes; }

enum neb_status wan_fifo_reserve(struct wan_fifo *f, size_t cap_bytes) {
    if (cap_bytes <= f->cap)
        return NEB_OK;
    struct wan_fifo *wide = NULL;
    NEB_TRY(wan_fifo_create(cap_bytes, &wide));
    struct wan_record r;
    uint8_t *data;
    while (wan_fifo_head(f, &r, &data)) {
        uint8_t *to = wan_fifo_push(wide, r);
        NEB_ASSERT(to != NULL);
        memcpy(to, data, r.len);
        wan_fifo_pop(f);
    }
    free(f->p);
    *f = *wide;
    free(wide);
    return NEB_OK;
}
