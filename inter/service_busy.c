// While this side is busy with something large, and neither reads nor steps the node: the others hear that it is there, or they would take
// its links for dead, and it for one whom no round waits for.
//
//     runs apart:      a thread works, this one waits and beats              all that waits for the disk
//     on this thread:  whoever moves many bytes is asked to beat between     agent/base/moved.h, the agent's listener
//                      them: inter_service_beat
//
// The node's own beats are said again as they were: it has not moved since, and a beat is no more than a member's word about itself.
#include "inter/service_state.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const neb_ns beat_while_waiting = 500 * NEB_MS, again_every = NEB_S;
// before this side became busy: one that has not been said for longer is of a job that is over, or for a peer that is away
static const neb_ns current = 3 * NEB_S;
enum { LARGE = 1 << 20, BEATS_MAX = 1024, JOB_AT = 1 };

static struct service_beat *find_beat(const struct inter_service *s, uint32_t peer,
                                      const uint8_t *beat) {
    for (size_t i = 0; i < s->n_beats; i++)
        if (s->beats[i].peer == peer &&
            !memcmp(s->beats[i].bytes.p + JOB_AT, beat + JOB_AT, INTER_ID_BYTES))
            return &s->beats[i];
    return NULL;
}

// A new place, or one that is of no use any more; NULL: no memory, and it is not said again.
static struct service_beat *place_for(struct inter_service *s, neb_ns now) {
    for (size_t i = 0; i < s->n_beats; i++)
        if (now - s->beats[i].at > current)
            return &s->beats[i];
    struct service_beat *all =
        s->n_beats < BEATS_MAX ? realloc(s->beats, (s->n_beats + 1) * sizeof *all) : NULL;
    if (!all)
        return NULL;
    s->beats = all;
    all[s->n_beats] = (struct service_beat){0};
    return &all[s->n_beats++];
}

void service_beat_said(struct inter_service *s, uint32_t peer, const void *beat, size_t len) {
    NEB_ASSERT(len >= JOB_AT + INTER_ID_BYTES);
    neb_ns now = neb_now();
    struct service_beat *b = find_beat(s, peer, beat);
    if (!b && !(b = place_for(s, now)))
        return;
    neb_buf_clear(&b->bytes);
    neb_buf_add(&b->bytes, beat, len);
    b->peer = b->bytes.oom ? INTER_PEER_NONE : peer;
    b->at = now;
}

void service_beats_end(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]) {
    for (size_t i = 0; i < s->n_beats; i++)
        if (s->beats[i].peer != INTER_PEER_NONE &&
            !memcmp(s->beats[i].bytes.p + JOB_AT, job, INTER_ID_BYTES))
            s->beats[i].peer = INTER_PEER_NONE;
}

void service_beats_free(struct inter_service *s) {
    for (size_t i = 0; i < s->n_beats; i++)
        neb_buf_free(&s->beats[i].bytes);
    free(s->beats);
}

void inter_service_beat(struct inter_service *s) {
    neb_ns now = neb_now();
    if (!s->link)
        return;
    if (now - s->beaten >= again_every)
        for (size_t i = 0; i < s->n_beats; i++) {
            const struct service_beat *b = &s->beats[i];
            if (b->peer < s->members.n && s->up[b->peer] && s->stepped - b->at < current &&
                inter_link_send(s->link, b->peer, INTER_CONTROL, b->bytes.p, b->bytes.len) ==
                    NEB_OK)
                s->beaten = now;
        }
    inter_link_beat(s->link);
}

struct apart {
    struct inter_service *s;
    service_work *run;
    void *arg;
    enum neb_status st;
};

static void *start(void *arg) {
    struct apart *a = arg;
    a->st = a->run(a->s, a->arg);
    return NULL;
}

enum neb_status service_apart(struct inter_service *s, uint64_t bytes, service_work *run,
                              void *arg) {
    struct apart a = {.s = s, .run = run, .arg = arg};
    pthread_t thread;
    if (bytes < LARGE || pthread_create(&thread, NULL, start, &a) != 0)
        return run(s, arg);
    for (;;) {
        neb_ns at = neb_now() + beat_while_waiting;
        struct timespec until = {.tv_sec = at / NEB_S, .tv_nsec = at % NEB_S};
        if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until) == 0)
            return a.st;
        inter_service_beat(s); // nothing but the link is touched
    }
}
