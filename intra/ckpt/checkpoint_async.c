// SPDX-License-Identifier: Apache-2.0
#include "intra/ckpt/checkpoint_async.h"
#include "agent/base/array.h"
#include "agent/base/clock.h"
#include "agent/base/moved.h"
#include "intra/ckpt/checkpoint_parts.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALIGN = 64, PIECE = 4 << 20 }; // bytes; one task copies a piece

struct section {
    char name[INTRA_CKPT_NAME_MAX + 1];
    enum intra_dtype dtype;
    uint64_t rows, cols;
    size_t at;
};

// The owner of the copy: the caller, the thread, the caller with a result.
enum phase { IDLE, SUBMITTED, WRITTEN };

struct intra_ckpt_async {
    const struct neb_vault *vault; // borrowed; NULL: in clear
    struct kern_pool *pool;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started, ends;
    enum phase phase;
    // The copy: the caller changes it while IDLE, the thread reads it while SUBMITTED.
    uint8_t *memory; // (cap); the first len bytes are used
    size_t len, cap;
    struct section *sections;
    uint32_t n;
    size_t cap_sections;
    char dir[NEB_PATH_MAX], path[NEB_PATH_MAX];
    int keep;
    neb_ns begun, submitted;
    enum neb_status st;
    struct intra_ckpt_async_result result;
    _Atomic uint64_t written; // bytes of the copy on disk
};

// ---- the writer ---------------------------------------------------------------------------------

static enum neb_status write_copy(struct intra_ckpt_async *a) {
    struct intra_ckpt_writer *w = NULL;
    NEB_TRY(intra_ckpt_create_in(a->vault, a->path, &w));
    intra_ckpt_watch(w, &a->written);
    enum neb_status st = NEB_OK;
    for (uint32_t i = 0; i < a->n && st == NEB_OK; i++) {
        const struct section *s = &a->sections[i];
        st = intra_ckpt_add(w, s->name, s->dtype, s->rows, s->cols, a->memory + s->at);
    }
    if (st == NEB_OK)
        st = intra_ckpt_commit(w);
    intra_ckpt_writer_destroy(&w);
    if (st != NEB_OK)
        intra_part_give_up(a->path);
    return st == NEB_OK && a->keep ? intra_ckpt_prune(a->vault, a->dir, a->keep) : st;
}

static void *writer(void *arg) {
    struct intra_ckpt_async *a = arg;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (a->phase != SUBMITTED && !a->ends)
            pthread_cond_wait(&a->changed, &a->lock);
        if (a->phase != SUBMITTED)
            break;
        pthread_mutex_unlock(&a->lock);
        enum neb_status st = write_copy(a);
        pthread_mutex_lock(&a->lock);
        a->st = st;
        a->result.write_s = neb_seconds(neb_now() - a->submitted);
        a->phase = WRITTEN;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

// Signals go to the main thread only.
static int start_thread(struct intra_ckpt_async *a) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&a->thread, NULL, writer, a);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

// ---- the copy -----------------------------------------------------------------------------------

struct copy_job {
    uint8_t *dst;
    const uint8_t *src;
    size_t n;
};

static void copy_piece(void *arg, size_t i) {
    const struct copy_job *j = arg;
    size_t at = i * PIECE;
    memcpy(j->dst + at, j->src + at, j->n - at < PIECE ? j->n - at : PIECE);
}

static enum neb_status make_room(struct intra_ckpt_async *a, size_t bytes) {
    struct section *s = neb_array_more(a->sections, a->n, &a->cap_sections, 64, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a checkpoint of %u sections", a->n);
    a->sections = s;
    if (a->len + bytes <= a->cap)
        return NEB_OK;
    size_t cap = a->len + bytes + a->len / 8;
    uint8_t *p = realloc(a->memory, cap);
    if (!p)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the copy of a checkpoint (%zu bytes)",
                        cap);
    a->memory = p;
    a->cap = cap;
    return NEB_OK;
}

static enum neb_status copy_section(void *user, const char *name, enum intra_dtype dtype,
                                    uint64_t rows, uint64_t cols, const void *data,
                                    uint64_t bytes) {
    struct intra_ckpt_async *a = user;
    NEB_TRY(make_room(a, bytes));
    struct section *s = &a->sections[a->n++];
    *s = (struct section){.dtype = dtype, .rows = rows, .cols = cols, .at = a->len};
    snprintf(s->name, sizeof s->name, "%s", name);
    struct copy_job job = {a->memory + a->len, data, bytes};
    if (bytes)
        kern_pool_run(a->pool, (bytes + PIECE - 1) / PIECE, copy_piece, &job);
    a->len += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    a->result.bytes += bytes;
    return NEB_OK;
}

// Writes ones: with zeros the pages might not be allocated.
static void touch_piece(void *arg, size_t i) {
    const struct copy_job *j = arg;
    size_t at = i * PIECE;
    memset(j->dst + at, 1, j->n - at < PIECE ? j->n - at : PIECE);
}

// ---- the caller's side --------------------------------------------------------------------------

enum neb_status intra_ckpt_async_create(const struct neb_vault *vault, struct kern_pool *pool,
                                        uint64_t touched, uint64_t reserved,
                                        struct intra_ckpt_async **out) {
    struct intra_ckpt_async *a = calloc(1, sizeof *a);
    if (!a)
        return NEB_ERR_NOMEM;
    a->vault = vault;
    a->pool = pool;
    a->cap = reserved > touched ? reserved : touched;
    a->memory = a->cap ? malloc(a->cap) : NULL;
    if (a->cap && !a->memory) {
        free(a);
        return NEB_ERR_NOMEM;
    }
    struct copy_job pages = {.dst = a->memory, .n = touched};
    if (touched) // on all threads: one thread would need minutes to fault in that many pages
        kern_pool_run(pool, (touched + PIECE - 1) / PIECE, touch_piece, &pages);
    pthread_condattr_t by;
    pthread_condattr_init(&by);
    pthread_condattr_setclock(&by, CLOCK_MONOTONIC);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, &by);
    pthread_condattr_destroy(&by);
    a->started = start_thread(a) == 0;
    if (!a->started) {
        intra_ckpt_async_destroy(&a);
        return neb_fail(NEB_ERR_IO, "cannot start the thread that writes checkpoints");
    }
    *out = a;
    return NEB_OK;
}

void intra_ckpt_async_destroy(struct intra_ckpt_async **ap) {
    struct intra_ckpt_async *a = *ap;
    if (!a)
        return;
    if (a->started) {
        pthread_mutex_lock(&a->lock);
        a->ends = true; // a submitted checkpoint is written first
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->lock);
        pthread_join(a->thread, NULL);
    }
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a->memory);
    free(a->sections);
    free(a);
    *ap = NULL;
}

void intra_ckpt_async_wait(struct intra_ckpt_async *a) {
    uint64_t seen = neb_moved();
    pthread_mutex_lock(&a->lock);
    while (a->phase == SUBMITTED) {
        struct timespec end;
        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_sec++;
        if (pthread_cond_timedwait(&a->changed, &a->lock, &end) != ETIMEDOUT || neb_moved() == seen)
            continue;
        pthread_mutex_unlock(&a->lock);
        seen = neb_moved();
        neb_moved_add(0); // the thread is at work
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
}

uint64_t intra_ckpt_async_left(struct intra_ckpt_async *a) {
    uint64_t written = a->written;
    pthread_mutex_lock(&a->lock);
    uint64_t all = a->phase == SUBMITTED ? a->result.bytes : 0;
    pthread_mutex_unlock(&a->lock);
    return all > written ? all - written : 0;
}

enum neb_status intra_ckpt_async_begin(struct intra_ckpt_async *a, struct intra_ckpt_writer **out) {
    NEB_ASSERT(a->phase == IDLE);
    a->n = 0;
    a->len = 0;
    a->result = (struct intra_ckpt_async_result){0};
    a->written = 0;
    a->begun = neb_now();
    return intra_ckpt_create_sink(copy_section, a, a->vault != NULL, out);
}

enum neb_status intra_ckpt_async_submit(struct intra_ckpt_async *a, struct intra_ckpt_writer **w,
                                        const char *dir, const char *path, int keep) {
    enum neb_status st = intra_ckpt_commit(*w);
    intra_ckpt_writer_destroy(w);
    NEB_TRY(st);
    snprintf(a->dir, sizeof a->dir, "%s", dir);
    snprintf(a->path, sizeof a->path, "%s", path);
    a->keep = keep;
    pthread_mutex_lock(&a->lock);
    a->submitted = neb_now();
    a->result.copy_s = neb_seconds(a->submitted - a->begun);
    a->phase = SUBMITTED;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return NEB_OK;
}

enum neb_status intra_ckpt_async_result(struct intra_ckpt_async *a,
                                        struct intra_ckpt_async_result *out) {
    pthread_mutex_lock(&a->lock);
    enum neb_status st = a->phase == IDLE        ? NEB_ERR_NOT_FOUND
                         : a->phase == SUBMITTED ? NEB_ERR_AGAIN
                         : a->st == NEB_ERR_NOT_FOUND || a->st == NEB_ERR_AGAIN
                             // these two mean "none" and "not yet" to the caller; a failed write (a
                             // missing folder) is neither
                             ? NEB_ERR_IO
                             : a->st;
    if (a->phase == WRITTEN) {
        *out = a->result;
        a->phase = IDLE;
    }
    pthread_mutex_unlock(&a->lock);
    return st;
}
