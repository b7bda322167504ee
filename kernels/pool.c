// SPDX-License-Identifier: Apache-2.0
// A pool of threads. Between calls a thread spins briefly, then sleeps on a condition: training
// calls the pool thousands of times a second, and a futex round trip for each call would cost time.
#include "kernels/pool.h"
#include "agent/base/count.h"
#include "agent/base/quota.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { SPIN_ROUNDS = 2000 };
_Static_assert(KERN_POOL_THREADS_MAX >= CPU_SETSIZE, "one pool can use all processors");

struct kern_pool {
    int n_threads; // includes the calling thread
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint generation; // rises with every call
    bool stop;
    void (*task)(void *arg, size_t i);
    void *arg;
    size_t n_tasks;
    atomic_size_t next; // next task to take
    atomic_int busy;    // helpers that have not finished this call
};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void kern_pool_pause(unsigned round) {
    if (round < SPIN_ROUNDS)
        relax();
    else
        sched_yield();
}

static void work(struct kern_pool *p) {
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n_tasks)
            return;
        p->task(p->arg, i);
    }
}

static void *helper(void *arg) {
    struct kern_pool *p = arg;
    unsigned seen = 0;
    for (;;) {
        for (int i = 0;
             i < SPIN_ROUNDS && atomic_load_explicit(&p->generation, memory_order_acquire) == seen;
             i++)
            relax();
        pthread_mutex_lock(&p->lock);
        while (atomic_load_explicit(&p->generation, memory_order_acquire) == seen && !p->stop)
            pthread_cond_wait(&p->wake, &p->lock);
        bool stop = p->stop;
        seen = atomic_load_explicit(&p->generation, memory_order_acquire);
        pthread_mutex_unlock(&p->lock);
        if (stop)
            return NULL;
        work(p);
        atomic_fetch_sub_explicit(&p->busy, 1, memory_order_release);
    }
}

int kern_pool_processors(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    double quota = ceil(neb_cpu_quota(""));
    return quota > 0 && quota < n ? (int)quota : n;
}

int kern_pool_share(int n) {
    int share = kern_pool_processors() / n;
    return share > 0 ? share : 1;
}

enum neb_status kern_pool_create(int n_threads, struct kern_pool **out) {
    if (n_threads < 0 || n_threads > KERN_POOL_THREADS_MAX)
        return neb_fail(NEB_ERR_INVALID, "threads: %d is not in 0..%d (0: all processors)",
                        n_threads, KERN_POOL_THREADS_MAX);
    struct kern_pool *p = calloc(1, sizeof *p);
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a thread pool");
    int want = n_threads ? n_threads : kern_pool_processors();
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->n_threads = 1;
    p->threads = calloc((size_t)want, sizeof *p->threads);
    if (!p->threads) {
        kern_pool_destroy(&p);
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a thread pool");
    }
    while (p->n_threads < want) {
        if (pthread_create(&p->threads[p->n_threads - 1], NULL, helper, p) != 0) {
            int started = p->n_threads;
            kern_pool_destroy(&p);
            return neb_fail(NEB_ERR_NOMEM, "cannot start thread %d of %d", started + 1, want);
        }
        p->n_threads++;
    }
    *out = p;
    return NEB_OK;
}

void kern_pool_destroy(struct kern_pool **pp) {
    struct kern_pool *p = *pp;
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i + 1 < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->threads);
    free(p);
    *pp = NULL;
}

int kern_pool_threads(const struct kern_pool *p) { return p->n_threads; }

void kern_pool_run(struct kern_pool *p, size_t n_tasks, void (*task)(void *arg, size_t i),
                   void *arg) {
    if (neb_counting()) // the operands are not there
        return;
    if (p->n_threads == 1 || n_tasks <= 1) {
        for (size_t i = 0; i < n_tasks; i++)
            task(arg, i);
        return;
    }
    p->task = task;
    p->arg = arg;
    p->n_tasks = n_tasks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->busy, p->n_threads - 1, memory_order_relaxed);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    work(p);
    // Yields soon: a helper may have lost its processor to another process.
    for (unsigned i = 0; atomic_load_explicit(&p->busy, memory_order_acquire) > 0; i++)
        kern_pool_pause(i);
}
