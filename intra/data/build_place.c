// SPDX-License-Identifier: Apache-2.0
// Chooses and checks the folder of a corpus. A finished build replaces and removes a folder that
// exists, so that folder must be a corpus and hold nothing else.
#include "agent/base/log.h"
#include "intra/data/build_state.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Like realpath(3), but the last components of `given` need not exist yet.
static enum neb_status resolve(const char *given, char *out, size_t cap) {
    char there[NEB_PATH_MAX], rest[NEB_PATH_MAX] = "";
    if (!*given)
        return neb_fail(NEB_ERR_INVALID, "the folder of a corpus needs a name");
    if (snprintf(there, sizeof there, "%s%s", given[0] == '/' ? "" : "./", given) >=
        (int)sizeof there)
        return neb_fail(NEB_ERR_LIMIT, "path too long: %s", given);
    for (;;) {
        size_t n = strlen(there);
        while (n > 1 && (there[n - 1] == '/' || (there[n - 1] == '.' && there[n - 2] == '/')))
            there[--n] = 0;
        char *real = realpath(there, NULL);
        if (real) {
            int len = snprintf(out, cap, "%s%s", strcmp(real, "/") || !*rest ? real : "", rest);
            free(real);
            return len < (int)cap ? NEB_OK : neb_fail(NEB_ERR_LIMIT, "path too long: %s", given);
        }
        char *slash = strrchr(there, '/'), tail[NEB_PATH_MAX];
        struct stat info;
        if (errno != ENOENT || lstat(there, &info) == 0 || !slash || !strcmp(slash, "/.."))
            return neb_fail_errno("cannot use %s as the folder of a corpus", given);
        snprintf(tail, sizeof tail, "%s", rest);
        if (snprintf(rest, sizeof rest, "%s%s", slash, tail) >= (int)sizeof rest)
            return neb_fail(NEB_ERR_LIMIT, "path too long: %s", given);
        slash[slash == there] = 0;
    }
}

// The sources listed in DIR/corpus.json, a new reference. NULL: not a corpus of this program.
static json_t *sources_of(const char *dir) {
    char path[NEB_PATH_MAX];
    struct neb_buf text = {0};
    json_t *root = NULL, *sources = NULL;
    if (neb_path(path, sizeof path, dir, "corpus.json") == NEB_OK && neb_fs_exists(path) &&
        neb_fs_read(path, 16 << 20, &text) == NEB_OK)
        root = json_loadb((const char *)text.p, text.len, 0, NULL);
    if (json_integer_value(json_object_get(root, "version")) == 1 &&
        json_is_string(json_object_get(root, "inputs")))
        sources = json_incref(json_object_get(root, "sources"));
    json_decref(root);
    neb_buf_free(&text);
    return sources;
}

static bool is_part(const char *name, const json_t *sources) {
    static const char *const files[] = {
        "corpus.json",          INTRA_TOKENIZER_MODEL, "tokenizer.vocab", INTRA_TOKENIZER_JSON,
        INTRA_TOKENIZER_CONFIG, "stream.json",         "verdicts.bin",    "cache"};
    const json_t *s;
    size_t i;
    for (i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(name, files[i]))
            return true;
    json_array_foreach(sources, i, s) {
        const char *of = json_string_value(json_object_get(s, "name"));
        if (of && !strcmp(of, name))
            return true;
    }
    return false;
}

enum neb_status build_place_check(const char *dir) {
    static const char advice[] = "name a new folder, an empty one, or the corpus to rebuild";
    enum neb_status st = NEB_OK;
    struct stat info;
    if (stat(dir, &info) != 0)
        return errno == ENOENT ? NEB_OK : neb_fail_errno("cannot look at %s", dir);
    if (!S_ISDIR(info.st_mode))
        return neb_fail(NEB_ERR_EXISTS, "%s is not a folder; %s", dir, advice);
    DIR *d = opendir(dir);
    if (!d)
        return neb_fail_errno("cannot read folder %s", dir);
    json_t *sources = sources_of(dir);
    for (struct dirent *e; st == NEB_OK && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") &&
            !(sources && is_part(e->d_name, sources)))
            st =
                neb_fail(NEB_ERR_EXISTS,
                         "%s would be replaced, but it holds %s, which is not part of a corpus; %s",
                         dir, e->d_name, advice);
    json_decref(sources);
    closedir(d);
    return st;
}

enum neb_status build_place(struct build *b, const char *given, char dir[NEB_PATH_MAX]) {
    NEB_TRY(resolve(given, dir, NEB_PATH_MAX));
    if (snprintf(b->dir, sizeof b->dir, "%s" NEB_FS_ASIDE, dir) >= (int)sizeof b->dir)
        return neb_fail(NEB_ERR_LIMIT, "path too long: %s", given);
    char *here = realpath(".", NULL);
    bool inside = here && neb_path_within(here, dir);
    free(here);
    if (inside)
        return neb_fail(NEB_ERR_EXISTS,
                        "%s would be replaced, but it is the working folder or contains it; name "
                        "another folder",
                        dir);
    for (int32_t i = 0; i < b->spec->n_sources; i++) {
        const struct intra_source_spec *s = &b->spec->sources[i];
        char *text = realpath(s->path, NULL);
        bool lost = text && (neb_path_within(text, dir) || neb_path_within(text, b->dir)),
             read = text && neb_path_within(dir, text);
        free(text);
        if (lost)
            return neb_fail(NEB_ERR_EXISTS,
                            "%s would be replaced, but it holds the text of source %s (%s)", dir,
                            s->name, s->path);
        if (read)
            return neb_fail(NEB_ERR_EXISTS,
                            "%s lies in source %s (%s), so the next build would read it as text",
                            dir, s->name, s->path);
    }
    NEB_TRY(neb_fs_hold(b->dir, &b->lock));
    NEB_TRY(neb_fs_mend_dir(dir));
    json_t *sources = sources_of(dir);
    // An identical corpus is kept, with everything else in its folder. So the other files are
    // checked only before the folder is replaced.
    bool corpus = sources != NULL;
    json_decref(sources);
    return corpus ? NEB_OK : build_place_check(dir);
}
