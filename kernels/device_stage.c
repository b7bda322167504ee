// SPDX-License-Identifier: Apache-2.0
// Transfers through two pinned buffers (device_stage.h).
#include "kernels/device_stage.h"
#include "agent/base/count.h"
#include "agent/base/log.h"

#include <stdlib.h>
#include <string.h>

// marks the end of a transfer by buffer 0; buffer 1 has the next mark
enum { MARK = KERN_MARKS - KERN_STAGE_BUFFERS };

struct kern_stage {
    int users, turn;
    struct {
        char *pinned;
        void *host; // where the content goes; NULL: it went to the device
        size_t bytes;
        bool busy;
    } buffer[KERN_STAGE_BUFFERS];
};

static void release(struct kern *D) {
    for (int i = 0; i < KERN_STAGE_BUFFERS; i++)
        D->ops->release_pinned(D, D->stage->buffer[i].pinned);
    free(D->stage);
    D->stage = NULL;
}

enum neb_status kern_stage_acquire(struct kern *D) {
    if (kern_on_host(D))
        return NEB_OK;
    if (D->stage) {
        D->stage->users++;
        return NEB_OK;
    }
    struct kern_stage *s = D->stage = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for transfers to %s", D->name);
    for (int i = 0; i < KERN_STAGE_BUFFERS; i++) {
        void *p = NULL;
        enum neb_status st = D->ops->alloc_pinned(D, KERN_STAGE_BYTES, &p);
        if (st != NEB_OK) {
            release(D);
            return st;
        }
        s->buffer[i].pinned = p;
    }
    s->users = 1;
    return NEB_OK;
}

void kern_stage_release(struct kern *D) {
    if (kern_on_host(D))
        return;
    NEB_ASSERT(D->stage && D->stage->users > 0);
    if (--D->stage->users)
        return;
    (void)D->ops->finish(D);
    release(D);
}

static void settle(struct kern *D, int i) {
    struct kern_stage *s = D->stage;
    if (!s->buffer[i].busy)
        return;
    D->ops->wait(D, MARK + i);
    if (s->buffer[i].host)
        memcpy(s->buffer[i].host, s->buffer[i].pinned, s->buffer[i].bytes);
    s->buffer[i].busy = false;
}

// Returns the buffer whose turn it is, after it has become free.
static int next(struct kern *D) {
    int i = D->stage->turn;
    D->stage->turn = (i + 1) % KERN_STAGE_BUFFERS;
    settle(D, i);
    return i;
}

static void mark_busy(struct kern *D, int i, void *host, size_t bytes) {
    D->ops->mark(D, MARK + i);
    D->stage->buffer[i].host = host;
    D->stage->buffer[i].bytes = bytes;
    D->stage->buffer[i].busy = true;
}

static size_t piece(size_t left) { return left < KERN_STAGE_BYTES ? left : KERN_STAGE_BYTES; }

void kern_stage_upload(struct kern *D, void *device, const void *host, size_t bytes) {
    if (kern_on_host(D)) {
        D->ops->upload(D, device, host, bytes);
        return;
    }
    NEB_ASSERT(D->stage);
    for (size_t at = 0, n; at < bytes && !neb_counting(); at += n) {
        int i = next(D);
        n = piece(bytes - at);
        memcpy(D->stage->buffer[i].pinned, (const char *)host + at, n);
        D->ops->upload(D, (char *)device + at, D->stage->buffer[i].pinned, n);
        mark_busy(D, i, NULL, n);
    }
}

void kern_stage_download(struct kern *D, void *host, const void *device, size_t bytes) {
    if (kern_on_host(D)) {
        D->ops->download(D, host, device, bytes);
        return;
    }
    NEB_ASSERT(D->stage);
    for (size_t at = 0, n; at < bytes && !neb_counting(); at += n) {
        int i = next(D);
        n = piece(bytes - at);
        D->ops->download(D, D->stage->buffer[i].pinned, (const char *)device + at, n);
        mark_busy(D, i, (char *)host + at, n);
    }
}

enum neb_status kern_stage_end(struct kern *D) {
    if (kern_on_host(D))
        return D->ops->finish(D);
    NEB_ASSERT(D->stage);
    for (int i = 0; i < KERN_STAGE_BUFFERS; i++)
        settle(D, (D->stage->turn + i) % KERN_STAGE_BUFFERS);
    return D->ops->finish(D);
}
