// SPDX-License-Identifier: Apache-2.0
#include "intra/data/stream.h"
#include "agent/base/array.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "intra/data/build_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { THREADS_MAX = 8 };

struct source {
    struct intra_source_spec spec;
    uint64_t first, docs;
    struct stream_shard *shards; // owned, also their names
    struct build_place *places;  // (n) from stream.json
    size_t n;
};

struct want { // what one sampler needs of one source
    const void *owner;
    int32_t source;
    size_t *shards; // owned
    size_t n;
};

struct stream_feed {
    char dir[NEB_PATH_MAX];
    int32_t width;
    struct source sources[INTRA_SOURCES_MAX];
    // Read from the folder before the first shard is made.
    bool loaded;
    struct neb_map verdicts;
    struct intra_tokenizer *tokenizer;
    pthread_t thread;
    pthread_mutex_t lock; // of what follows
    pthread_mutex_t make; // one shard is made at a time
    pthread_cond_t changed;
    bool started, ends, fresh; // fresh: the thread has not seen the wants yet
    struct want *wants;        // (n_wants)
    int n_wants;
    size_t cap_wants;
};

static const char rebuild[] = "build the corpus again";

enum neb_status stream_feed_create(const char *dir, int32_t width, struct stream_feed **out) {
    struct stream_feed *f = calloc(1, sizeof *f);
    *out = f;
    if (!f)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", dir);
    snprintf(f->dir, sizeof f->dir, "%s", dir);
    f->width = width;
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->make, NULL);
    pthread_cond_init(&f->changed, NULL);
    return NEB_OK;
}

enum neb_status stream_feed_add(struct stream_feed *f, int32_t source,
                                const struct stream_shard *shard) {
    struct source *s = &f->sources[source];
    struct stream_shard *more = realloc(s->shards, (s->n + 1) * sizeof *more);
    char *file = strdup(shard->file);
    if (more)
        s->shards = more;
    if (!more || !file) {
        free(file);
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", f->dir);
    }
    s->shards[s->n] = *shard;
    s->shards[s->n++].file = file;
    return NEB_OK;
}

static void unload(struct stream_feed *f) {
    for (int32_t i = 0; i < INTRA_SOURCES_MAX; i++) {
        free(f->sources[i].places);
        f->sources[i].places = NULL;
    }
    neb_map_close(&f->verdicts);
    if (f->tokenizer)
        intra_tokenizer_close(&f->tokenizer);
}

void stream_feed_destroy(struct stream_feed **p) {
    struct stream_feed *f = *p;
    if (!f)
        return;
    *p = NULL;
    pthread_mutex_lock(&f->lock);
    f->ends = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (f->started)
        pthread_join(f->thread, NULL);
    for (int i = 0; i < f->n_wants; i++)
        free(f->wants[i].shards);
    free(f->wants);
    for (int32_t i = 0; i < INTRA_SOURCES_MAX; i++) {
        for (size_t k = 0; k < f->sources[i].n; k++)
            free((char *)(uintptr_t)f->sources[i].shards[k].file);
        free(f->sources[i].shards);
    }
    unload(f);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->make);
    free(f);
}

// ---- stream.json --------------------------------------------------------------------------------

static void copy(char *out, size_t cap, const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    snprintf(out, cap, "%s", s ? s : "");
}

static uint64_t count(const json_t *v) {
    json_int_t n = json_integer_value(v);
    return n > 0 ? (uint64_t)n : 0;
}

static enum neb_status load_source(struct stream_feed *f, struct source *s, const json_t *o) {
    const json_t *list = json_object_get(o, "shards");
    struct intra_source_spec *to = &s->spec;
    json_int_t format = json_integer_value(json_object_get(o, "format"));
    if (format < INTRA_TEXT || format > INTRA_MEGATRON || json_array_size(list) != s->n)
        return neb_fail(NEB_ERR_FORMAT, "%s/stream.json does not fit corpus.json; %s", f->dir,
                        rebuild);
    to->format = (enum intra_format)format;
    copy(to->name, sizeof to->name, o, "name");
    copy(to->path, sizeof to->path, o, "path");
    copy(to->field, sizeof to->field, o, "field");
    copy(to->member, sizeof to->member, o, "member");
    copy(to->encoding, sizeof to->encoding, o, "encoding");
    to->column = (int32_t)(count(json_object_get(o, "column")) % 1001);
    to->max_bad_share = json_number_value(json_object_get(o, "max_bad_share"));
    s->first = count(json_object_get(o, "first"));
    s->docs = count(json_object_get(o, "docs"));
    if (!(s->places = calloc(s->n + 1, sizeof *s->places)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", f->dir);
    for (size_t i = 0; i < s->n; i++) {
        const json_t *p = json_array_get(list, i);
        s->places[i] = (struct build_place){
            count(json_array_get(p, 0)), count(json_array_get(p, 1)), count(json_array_get(p, 2)),
            count(json_array_get(p, 3)), count(json_array_get(p, 4))};
        if (s->places[i].doc > s->docs || s->places[i].file_doc > s->places[i].doc)
            return neb_fail(NEB_ERR_FORMAT, "%s/stream.json: a shard begins nowhere; %s", f->dir,
                            rebuild);
    }
    return s->first < UINT64_MAX / 8 && s->docs < UINT64_MAX / 8 &&
                   (s->first + s->docs + 3) / 4 <= f->verdicts.len
               ? NEB_OK
               : neb_fail(NEB_ERR_CORRUPT, "%s/verdicts.bin is cut short; %s", f->dir, rebuild);
}

static enum neb_status load(struct stream_feed *f) {
    char path[NEB_PATH_MAX];
    struct neb_buf text = {0};
    if (f->loaded)
        return NEB_OK;
    unload(f); // what an attempt that failed has left
    json_object_seed(0);
    NEB_TRY(neb_path(path, sizeof path, f->dir, "verdicts.bin"));
    NEB_TRY(neb_map_open(path, &f->verdicts));
    NEB_TRY(intra_tokenizer_in(f->dir, path, sizeof path));
    NEB_TRY(intra_tokenizer_open(path, &f->tokenizer));
    NEB_TRY(neb_path(path, sizeof path, f->dir, "stream.json"));
    NEB_TRY(neb_fs_read(path, 64 << 20, &text));
    json_t *root = json_loadb((const char *)text.p, text.len, 0, NULL),
           *list = json_object_get(root, "sources");
    enum neb_status st = json_is_array(list) && json_array_size(list) <= INTRA_SOURCES_MAX
                             ? NEB_OK
                             : neb_fail(NEB_ERR_FORMAT, "%s is damaged; %s", path, rebuild);
    for (size_t i = 0; st == NEB_OK && i < json_array_size(list); i++)
        st = load_source(f, &f->sources[i], json_array_get(list, i));
    for (int32_t i = 0; st == NEB_OK && i < INTRA_SOURCES_MAX; i++)
        if (f->sources[i].n && !f->sources[i].places)
            st = neb_fail(NEB_ERR_FORMAT, "%s lacks a source of corpus.json; %s", path, rebuild);
    json_decref(root);
    neb_buf_free(&text);
    f->loaded = st == NEB_OK;
    return st;
}

// ---- making -------------------------------------------------------------------------------------

// DIR/cache/SOURCE/train-00000.bin
static enum neb_status path_of(const struct stream_feed *f, int32_t source, size_t shard, char *out,
                               size_t cap) {
    char cache[NEB_PATH_MAX];
    NEB_TRY(neb_path(cache, sizeof cache, f->dir, "cache"));
    return neb_path(out, cap, cache, f->sources[source].shards[shard].file);
}

static enum neb_status make_file(struct stream_feed *f, int32_t source, size_t shard,
                                 const char *path) {
    const struct source *s = &f->sources[source];
    long processors = sysconf(_SC_NPROCESSORS_ONLN) / 4;
    struct build_piece p = {.from = s->places[shard],
                            .until = shard + 1 < s->n ? s->places[shard + 1].doc : s->docs,
                            .verdicts = f->verdicts.p,
                            .first = s->first,
                            .tokens = s->shards[shard].tokens};
    memcpy(p.sha256, s->shards[shard].sha256, sizeof p.sha256);
    return build_stream_shard(&s->spec, f->tokenizer, &p,
                              processors < 1             ? 1
                              : processors > THREADS_MAX ? THREADS_MAX
                                                         : (int32_t)processors,
                              path);
}

// Other processes of this host may need the same shard, so its folder is locked meanwhile.
static enum neb_status make_locked(struct stream_feed *f, int32_t source, size_t shard,
                                   const char *path) {
    char folder[NEB_PATH_MAX], lock[NEB_PATH_MAX];
    enum neb_status st = load(f);
    neb_path_folder(folder, sizeof folder, path);
    if (st == NEB_OK)
        st = neb_fs_mkdirs(folder, 0755);
    if (st == NEB_OK)
        st = neb_path(lock, sizeof lock, folder, ".lock");
    if (st != NEB_OK)
        return st;
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    while (fd >= 0 && flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }
    if (fd < 0)
        st = neb_fail_errno("cannot write into %s", folder);
    else if (!neb_fs_exists(path))
        st = make_file(f, source, shard, path);
    if (fd >= 0)
        close(fd);
    return st;
}

enum neb_status stream_feed_get(struct stream_feed *f, int32_t source, size_t shard, char *path,
                                size_t cap) {
    NEB_TRY(path_of(f, source, shard, path, cap));
    if (neb_fs_exists(path))
        return NEB_OK;
    pthread_mutex_lock(&f->make);
    enum neb_status st = make_locked(f, source, shard, path);
    pthread_mutex_unlock(&f->make);
    return st;
}

// ---- the thread ---------------------------------------------------------------------------------

// With the lock held.
static bool is_wanted(const struct stream_feed *f, int32_t source, size_t shard) {
    for (int i = 0; i < f->n_wants; i++)
        for (size_t k = 0; f->wants[i].source == source && k < f->wants[i].n; k++)
            if (f->wants[i].shards[k] == shard)
                return true;
    return false;
}

static void tidy(struct stream_feed *f, int32_t source) {
    char path[NEB_PATH_MAX];
    for (size_t k = 0; k < f->sources[source].n; k++)
        if (!is_wanted(f, source, k) && path_of(f, source, k, path, sizeof path) == NEB_OK)
            (void)unlink(path);
}

// The first shard that is wanted and missing. False: none.
static bool next(const struct stream_feed *f, int32_t *source, size_t *shard) {
    char path[NEB_PATH_MAX];
    size_t most = 0;
    for (int i = 0; i < f->n_wants; i++)
        most = f->wants[i].n > most ? f->wants[i].n : most;
    for (size_t k = 0; k < most; k++)
        for (int i = 0; i < f->n_wants; i++) {
            const struct want *w = &f->wants[i];
            if (k >= w->n || path_of(f, w->source, w->shards[k], path, sizeof path) != NEB_OK ||
                neb_fs_exists(path))
                continue;
            *source = w->source;
            *shard = w->shards[k];
            return true;
        }
    return false;
}

static void *work(void *arg) {
    struct stream_feed *f = arg;
    char path[NEB_PATH_MAX];
    pthread_mutex_lock(&f->lock);
    while (!f->ends) {
        int32_t source;
        size_t shard;
        if (f->fresh) {
            f->fresh = false;
            for (int i = 0; i < f->n_wants; i++)
                tidy(f, f->wants[i].source);
        }
        if (!next(f, &source, &shard)) {
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        pthread_mutex_unlock(&f->lock);
        enum neb_status st = stream_feed_get(f, source, shard, path, sizeof path);
        pthread_mutex_lock(&f->lock);
        while (st != NEB_OK && !f->ends && !f->fresh) // whoever needs the shard tries it again
            pthread_cond_wait(&f->changed, &f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

// Signals go to the main thread only. Without the thread, shards are made when they are needed.
static void start(struct stream_feed *f) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    f->started = pthread_create(&f->thread, NULL, work, f) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void stream_feed_want(struct stream_feed *f, const void *owner, int32_t source,
                      const size_t *shards, size_t n) {
    struct want *more;
    pthread_mutex_lock(&f->lock);
    int i = 0;
    while (i < f->n_wants && (f->wants[i].owner != owner || f->wants[i].source != source))
        i++;
    if (i == f->n_wants)
        for (i = 0; i < f->n_wants && f->wants[i].n;) // one of an owner that is gone
            i++;
    if (i < f->n_wants)
        f->wants[i].owner = owner, f->wants[i].source = source;
    else if (n && (more = neb_array_more(f->wants, (size_t)f->n_wants, &f->cap_wants, 8,
                                         sizeof *more))) {
        f->wants = more;
        f->wants[f->n_wants++] = (struct want){.owner = owner, .source = source};
    }
    if (i < f->n_wants) {
        struct want *w = &f->wants[i];
        size_t *all = realloc(w->shards, (n + 1) * sizeof *all);
        w->shards = all ? all : w->shards;
        w->n = all ? n : 0;
        if (w->n)
            memcpy(w->shards, shards, w->n * sizeof *shards);
    }
    f->fresh = true;
    if (!f->started && n)
        start(f);
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}
