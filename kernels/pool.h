// SPDX-License-Identifier: Apache-2.0
// A fixed pool of threads for data-parallel loops. One per backend instance; calls are made by one thread.
//
// Work is split the same way for a given (n_tasks, thread count), and every reduction in kernels/ is defined by
// fixed blocks, not by threads: results do not depend on scheduling.
#ifndef KERN_POOL_H
#define KERN_POOL_H
#include "agent/base/status.h"

#include <stddef.h>

struct kern_pool;
enum { KERN_POOL_THREADS_MAX = 1024 }; // as many as kern_pool_processors counts
// n_threads >= 1, the calling thread included; 0 means the number of processors this process may use.
// NEB_ERR_INVALID: too many; NEB_ERR_NOMEM: also when a thread cannot be started.
NEB_MUST_CHECK enum neb_status kern_pool_create(int n_threads, struct kern_pool **out);
void kern_pool_destroy(struct kern_pool **p);
int kern_pool_threads(const struct kern_pool *p);
int kern_pool_processors(
    void); // that this process may use, by affinity and by the quota of its container
// Threads of each of n processes that divide these between them: at least 1.
int kern_pool_share(int n);
// Runs task(arg, i) for i in [0, n_tasks) on all threads and returns when all are done. Not reentrant.
void kern_pool_run(struct kern_pool *p, size_t n_tasks, void (*task)(void *arg, size_t i),
                   void *arg);
// While a task waits for what another one that runs already does: round 0, 1, ... of a loop. Gives the processor away after a while.
void kern_pool_pause(unsigned round);

#endif
