// SPDX-License-Identifier: Apache-2.0
// A fixed pool of threads for data-parallel loops. Each backend instance has one. One thread makes
// all calls.
//
// Tasks must not depend on the thread that runs them. Every reduction in kernels/ is defined by
// fixed blocks and not by threads, so results do not depend on scheduling.
#ifndef KERN_POOL_H
#define KERN_POOL_H
#include "agent/base/status.h"

#include <stddef.h>

struct kern_pool;
enum { KERN_POOL_THREADS_MAX = 1024 }; // kern_pool_processors can count as many
// n_threads includes the calling thread. 0: as many as this process may use processors.
// NEB_ERR_INVALID: out of range. NEB_ERR_NOMEM: out of memory, or a thread cannot be started.
NEB_MUST_CHECK enum neb_status kern_pool_create(int n_threads, struct kern_pool **out);
void kern_pool_destroy(struct kern_pool **p);
int kern_pool_threads(const struct kern_pool *p);
// Processors that this process may use, by its affinity and by the CPU quota of its container.
int kern_pool_processors(void);
// Threads for each of n processes that share these processors: at least 1.
int kern_pool_share(int n);
// Runs task(arg, i) for i in [0, n_tasks) on all threads. Returns when all tasks are done. Not
// reentrant.
void kern_pool_run(struct kern_pool *p, size_t n_tasks, void (*task)(void *arg, size_t i),
                   void *arg);
// For a loop in which a task waits for another running task. round: 0, 1, … After a while it yields
// the processor.
void kern_pool_pause(unsigned round);

#endif
