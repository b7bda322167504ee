// SPDX-License-Identifier: Apache-2.0
// What a rank does for a round on a thread of its own while the trainer goes on, if the state is on
// a device and the trainer allows it. The thread is the only one that waits for the device; in the
// meantime the rank makes no other call here. Every call of rank 0 joins it first, on all ranks.
#include "agent/exchange/shards_state.h"
#include "kernels/kern.h"

#include <signal.h>

static void *work(void *arg) {
    struct agent_shards *o = arg;
    const struct kern_ops *ops = o->device->ops;
    int was = ops->enter(o->device);
    o->side.st = o->side.run(o);
    ops->leave(o->device, was);
    atomic_store(&o->side.ended, true);
    return NULL;
}

bool agent_shards_deferred(const struct agent_shards *o) { return o->device && o->t.deferred; }

void shards_side_start(struct agent_shards *o, enum neb_status (*run)(struct agent_shards *o)) {
    struct shards_side *s = &o->side;
    sigset_t all, was;
    s->run = run;
    atomic_store(&s->ended, false);
    if (agent_shards_deferred(o)) {
        sigfillset(&all); // signals are for the trainer's threads
        pthread_sigmask(SIG_SETMASK, &all, &was);
        s->started = pthread_create(&s->thread, NULL, work, o) == 0;
        pthread_sigmask(SIG_SETMASK, &was, NULL);
    }
    if (!s->started)
        s->st = run(o);
}

void agent_shards_join(struct agent_shards *o) {
    if (o && o->side.started)
        pthread_join(o->side.thread, NULL);
    if (o)
        o->side.started = false;
}

bool agent_shards_busy(const struct agent_shards *o) {
    return o->side.started && !atomic_load(&o->side.ended);
}
