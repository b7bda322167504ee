// SPDX-License-Identifier: Apache-2.0
// Heartbeats during long work, while this side neither reads nor steps the node. Without them,
// peers would take its links for dead, and their rounds would stop waiting for it.
//
//    service_run_in_thread:  a thread does the work (updates that are written, completed, checked);
//                            this one waits and sends heartbeats.
//    on this thread:         code that moves many bytes reports them to agent/base/moved.h, whose
//                            listener in the agent calls inter_service_heartbeat.
//
// The node's last heartbeats are repeated unchanged. A heartbeat is only a member's report about
// itself, and service_heartbeats_end withdraws those that later promises make untrue.
#include "agent/base/moved.h"
#include "inter/service/state.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const neb_ns heartbeat_while_waiting = 500 * NEB_MS, retry_every = NEB_S;
// A heartbeat that was not sent for this long before the last step belongs to a closed job or an
// absent peer.
static const neb_ns current = 3 * NEB_S;
// Heartbeats end when no bytes moved for this long: a disk that hangs must not hold up others'
// rounds.
static const neb_ns patience = 30 * NEB_S;
enum { LARGE = 1 << 20, HEARTBEATS_MAX = 1024 };

static struct service_heartbeat *find_heartbeat(const struct inter_service *s,
                                                const struct service_heartbeat *b) {
    for (size_t i = 0; i < s->n_heartbeats; i++)
        if (s->heartbeats[i].peer == b->peer && s->heartbeats[i].about.to == b->about.to &&
            !memcmp(s->heartbeats[i].about.job, b->about.job, INTER_ID_BYTES))
            return &s->heartbeats[i];
    return NULL;
}

// A free place, or that of an outdated heartbeat. NULL: no memory, so the heartbeat is not
// repeated.
static struct service_heartbeat *place_for(struct inter_service *s) {
    for (size_t i = 0; i < s->n_heartbeats; i++)
        if (s->heartbeats[i].peer == INTER_PEER_NONE || s->stepped - s->heartbeats[i].at > current)
            return &s->heartbeats[i];
    struct service_heartbeat *all =
        s->n_heartbeats < HEARTBEATS_MAX
            ? realloc(s->heartbeats, (s->n_heartbeats + 1) * sizeof *all)
            : NULL;
    if (!all)
        return NULL;
    s->heartbeats = all;
    all[s->n_heartbeats] = (struct service_heartbeat){.peer = INTER_PEER_NONE};
    return &all[s->n_heartbeats++];
}

void service_keep_heartbeat(struct inter_service *s, uint32_t peer, const uint8_t *message,
                            size_t len) {
    struct service_heartbeat b = {.peer = peer, .at = neb_now()}, *at;
    if (!inter_node_is_heartbeat(message, len, &b.about) ||
        (!(at = find_heartbeat(s, &b)) && !(at = place_for(s))))
        return;
    b.bytes = at->bytes;
    neb_buf_clear(&b.bytes);
    neb_buf_add(&b.bytes, message, len);
    *at = b;
    if (b.bytes.oom)
        at->peer = INTER_PEER_NONE;
}

void service_heartbeats_end(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                            uint32_t term) {
    for (size_t i = 0; i < s->n_heartbeats; i++)
        if (s->heartbeats[i].about.term != term &&
            !memcmp(s->heartbeats[i].about.job, job, INTER_ID_BYTES))
            s->heartbeats[i].peer = INTER_PEER_NONE;
}

void service_heartbeats_free(struct inter_service *s) {
    for (size_t i = 0; i < s->n_heartbeats; i++)
        neb_buf_free(&s->heartbeats[i].bytes);
    free(s->heartbeats);
}

// True while the work makes progress.
static bool gets_on(struct inter_service *s, neb_ns now) {
    uint64_t moved = neb_moved();
    if (moved != s->moved || s->stepped > s->moved_at) {
        s->moved = moved;
        s->moved_at = now;
    }
    return now - s->moved_at < patience;
}

static void resend(struct inter_service *s, neb_ns now) {
    s->heartbeats_at = now;
    for (size_t i = 0; i < s->n_heartbeats; i++) {
        struct service_heartbeat *b = &s->heartbeats[i];
        if (b->peer < s->members.n && s->up[b->peer] && s->stepped - b->at < current &&
            inter_link_send(s->link, b->peer, INTER_CONTROL, b->bytes.p, b->bytes.len) == NEB_OK)
            b->at = now; // so it may be repeated once more before the node sends its next one
    }
}

void inter_service_heartbeat(struct inter_service *s) {
    neb_ns now = neb_now();
    if (!s->link)
        return;
    inter_link_heartbeat(s->link);
    if (!gets_on(s, now))
        return;
    if (now - s->heartbeats_at >= retry_every)
        resend(s, now);
    if (s->cb.busy)
        s->cb.busy(s->cb.user);
}

struct apart {
    struct inter_service *s;
    service_work *run;
    void *arg;
    enum neb_status st;
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool is_over;
};

static void *start(void *arg) {
    struct apart *a = arg;
    a->st = a->run(a->s, a->arg);
    pthread_mutex_lock(&a->lock);
    a->is_over = true;
    pthread_cond_signal(&a->over);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static bool is_over_by(struct apart *a, neb_ns at) {
    struct timespec until = {.tv_sec = at / NEB_S, .tv_nsec = at % NEB_S};
    pthread_mutex_lock(&a->lock);
    while (!a->is_over && pthread_cond_timedwait(&a->over, &a->lock, &until) != ETIMEDOUT)
        ;
    bool over = a->is_over;
    pthread_mutex_unlock(&a->lock);
    return over;
}

enum neb_status service_run_in_thread(struct inter_service *s, uint64_t bytes, service_work *run,
                                      void *arg) {
    struct apart a = {.s = s, .run = run, .arg = arg};
    pthread_condattr_t monotonic;
    pthread_t thread;
    if (bytes < LARGE)
        return run(s, arg);
    pthread_mutex_init(&a.lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a.over, &monotonic);
    if (pthread_create(&thread, NULL, start, &a) == 0) {
        while (!is_over_by(&a, neb_now() + heartbeat_while_waiting))
            inter_service_heartbeat(s); // touches only the link and the heartbeats
        pthread_join(thread, NULL);
    } else {
        a.st = run(s, arg);
    }
    pthread_cond_destroy(&a.over);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_destroy(&a.lock);
    return a.st;
}
