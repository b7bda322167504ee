// SPDX-License-Identifier: Apache-2.0
#include "agent/base/moved.h"
#include "agent/base/log.h"

#include <stdatomic.h>
#include <stddef.h>

static const neb_ns say_every = 10 * NEB_S;

static _Atomic uint64_t moved;
static _Thread_local struct {
    neb_moved_listener *call;
    void *user;
} listener;

uint64_t neb_moved(void) { return atomic_load_explicit(&moved, memory_order_relaxed); }

void neb_moved_add(uint64_t bytes) {
    atomic_fetch_add_explicit(&moved, bytes, memory_order_relaxed);
    neb_moved_listener *call = listener.call;
    if (!call)
        return;
    listener.call = NULL;
    call(listener.user);
    listener.call = call;
}

void neb_moved_listen(neb_moved_listener *call, void *user) {
    listener.call = call;
    listener.user = user;
}

static void say(const struct neb_moving *m, neb_ns now) {
    double rate = (double)m->done / neb_seconds(now - m->start),
           left = (double)(m->total - m->done);
    neb_info("%s %s: %.0f %%, %.1f of %.1f GB, %.0f MB/s, %.0f s left", m->what, m->path,
             100 * (double)m->done / (double)m->total, (double)m->done * 1e-9,
             (double)m->total * 1e-9, rate * 1e-6, left / rate);
}

void neb_moving_add(struct neb_moving *m, uint64_t bytes) {
    neb_moved_add(bytes);
    neb_ns now = neb_now();
    if (!m->start)
        m->start = m->said = now;
    m->done += bytes;
    if (!m->what || m->done > m->total || now - m->said < say_every)
        return;
    m->said = now;
    say(m, now);
}
