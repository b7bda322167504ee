// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_case.h"

#include <stdlib.h>

bool device_case_due(struct device_checks *all) { return !all->gone && all->next++ >= all->from; }

bool device_case_run(struct device_case *k, struct device_checks *all, void (*run)(void *ctx),
                     void *ctx) {
    k->all = all;
    k->D = all->D;
    k->n_host = k->n_room = 0;
    if (setjmp(k->out))
        return false;
    run(ctx);
    return true;
}

void device_case_end(struct device_case *k, bool well) {
    struct device_checks *all = k->all;
    for (int i = 0; i < k->n_room; i++)
        k->D->ops->release(k->D, k->room[i]);
    for (int i = 0; i < k->n_host; i++)
        free(k->host[i]);
    k->n_host = k->n_room = 0;
    if (well)
        return;
    kern_destroy(&all->D);
    all->gone = all->reopen(&all->D) != NEB_OK;
}

// A fault of the test itself, not of the device.
static void stop(const char *why) {
    fprintf(stderr, "device checks: %s\n", why);
    abort();
}

void *device_case_host(struct device_case *k, size_t bytes) {
    void *p = calloc(1, bytes + 64);
    if (!p || k->n_host == CASE_HELD)
        stop(p ? "a case holds too much" : "out of memory");
    return k->host[k->n_host++] = p;
}

void *device_case_room(struct device_case *k, size_t bytes) {
    void *p = NULL;
    if (k->n_room == CASE_HELD)
        stop("a case holds too much");
    if (k->D->ops->alloc(k->D, bytes, &p) != NEB_OK)
        longjmp(k->out, 1);
    return k->room[k->n_room++] = p;
}

void device_case_wait(struct device_case *k) {
    if (k->D->ops->finish(k->D) != NEB_OK)
        longjmp(k->out, 1);
}
