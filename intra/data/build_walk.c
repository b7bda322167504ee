// SPDX-License-Identifier: Apache-2.0
// Walks the folders of a source. Links may form a circle, or lead to one file by several names, so
// each file and folder is visited once.
#include "intra/data/build_state.h"

#include "agent/base/rng.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct walk {
    struct build *b;
    build_visit *visit;
    bool quiet;
    struct seen {
        uint64_t device, file; // file 0: free
    } * seen;                  // (cap) hash table, open addressing
    size_t n, cap;
};

static struct seen *place(const struct walk *w, uint64_t device, uint64_t file) {
    size_t at = (size_t)neb_mix64(neb_mix64(device) ^ file) & (w->cap - 1);
    while (w->seen[at].file && (w->seen[at].file != file || w->seen[at].device != device))
        at = (at + 1) & (w->cap - 1);
    return &w->seen[at];
}

static enum neb_status grow(struct walk *w) {
    struct walk more = *w;
    more.cap = w->cap ? 2 * w->cap : 1024;
    more.seen = calloc(more.cap, sizeof *more.seen);
    if (!more.seen)
        return neb_fail(NEB_ERR_NOMEM, "out of memory reading a folder of %zu files", w->n);
    for (size_t i = 0; i < w->cap; i++)
        if (w->seen[i].file)
            *place(&more, w->seen[i].device, w->seen[i].file) = w->seen[i];
    free(w->seen);
    *w = more;
    return NEB_OK;
}

static enum neb_status see(struct walk *w, const struct stat *info, bool *fresh) {
    uint64_t file = (uint64_t)info->st_ino ? (uint64_t)info->st_ino : 1;
    if (2 * (w->n + 1) > w->cap)
        NEB_TRY(grow(w));
    struct seen *s = place(w, (uint64_t)info->st_dev, file);
    *fresh = !s->file;
    w->n += *fresh;
    *s = (struct seen){(uint64_t)info->st_dev, file};
    return NEB_OK;
}

static enum neb_status fail(const struct walk *w, const char *what, const char *path) {
    return w->quiet ? NEB_ERR_IO : neb_fail_errno("cannot %s %s", what, path);
}

static enum neb_status walk(struct walk *w, const char *dir);

static enum neb_status one(struct walk *w, const char *dir, const char *name) {
    char path[NEB_PATH_MAX];
    struct stat info;
    bool fresh;
    if (name[0] == '.')
        return NEB_OK;
    if (w->quiet && strlen(dir) + strlen(name) + 2 > sizeof path)
        return NEB_ERR_LIMIT;
    NEB_TRY(neb_path(path, sizeof path, dir, name));
    if (stat(path, &info) != 0)
        return fail(w, "stat", path);
    NEB_TRY(see(w, &info, &fresh));
    return !fresh                  ? NEB_OK
           : S_ISDIR(info.st_mode) ? walk(w, path)
           : S_ISREG(info.st_mode) ? w->visit(w->b, path, &info)
                                   : NEB_OK;
}

static enum neb_status walk(struct walk *w, const char *dir) {
    struct dirent **names = NULL;
    enum neb_status st = NEB_OK;
    // sorted, so that every machine makes the same corpus
    int n = scandir(dir, &names, NULL, alphasort);
    if (n < 0)
        return fail(w, "read folder", dir);
    for (int i = 0; i < n; i++) {
        if (st == NEB_OK)
            st = one(w, dir, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return st;
}

enum neb_status build_walk(struct build *b, const char *dir, bool quiet, build_visit *visit) {
    struct walk w = {.b = b, .visit = visit, .quiet = quiet};
    struct stat info;
    bool fresh;
    enum neb_status st =
        stat(dir, &info) == 0 ? see(&w, &info, &fresh) : fail(&w, "read folder", dir);
    if (st == NEB_OK)
        st = walk(&w, dir);
    free(w.seen);
    return st;
}
