// SPDX-License-Identifier: Apache-2.0
// What import and export share: copies of small files, the working folder that becomes the result,
// and the model description of a checkpoint.
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "intra/hf/hf.h"
#include "intra/read/folder.h"
#include "intra/train/trainer.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 256 << 20 };

static const char *const intra_hf_files[] = {"config.json",
                                             "generation_config.json",
                                             "tokenizer.json",
                                             "tokenizer_config.json",
                                             "tokenizer.model",
                                             "special_tokens_map.json",
                                             "added_tokens.json",
                                             "vocab.json",
                                             "chat_template.jinja",
                                             "merges.txt",
                                             NULL};

enum neb_status intra_hf_same_file(const char *a, const char *b, bool *same) {
    struct neb_buf x = {0}, y = {0};
    enum neb_status st = neb_fs_read(a, FILE_BYTES_MAX, &x);
    if (st == NEB_OK)
        st = neb_fs_read(b, FILE_BYTES_MAX, &y);
    *same = st == NEB_OK && x.len == y.len && !memcmp(x.p, y.p, x.len);
    neb_buf_free(&x);
    neb_buf_free(&y);
    return st;
}

// Further chat templates lie in a folder of their own, one for each use (tools, retrieval).
#define TEMPLATES "additional_chat_templates"

static int is_template(const struct dirent *e) {
    static const char end[] = ".jinja";
    size_t n = strlen(e->d_name), k = sizeof end - 1;
    return n > k && e->d_name[0] != '.' && !strcmp(e->d_name + n - k, end);
}

// Copies the file if there is one. Everybody may read the copy, whatever the original's mode,
// because no file that is read here may hold a secret.
static enum neb_status copy_file(const char *from, const char *to, const char *name) {
    char a[NEB_PATH_MAX], b[NEB_PATH_MAX];
    bool there;
    NEB_TRY(intra_folder_file(from, name, a, sizeof a, &there));
    NEB_TRY(neb_path(b, sizeof b, to, name));
    return there ? neb_fs_copy(a, b, 0644) : NEB_OK;
}

static enum neb_status copy_templates(const char *from, const char *to) {
    char a[NEB_PATH_MAX], b[NEB_PATH_MAX], name[NEB_PATH_MAX];
    struct dirent **names = NULL;
    NEB_TRY(neb_path(a, sizeof a, from, TEMPLATES));
    NEB_TRY(neb_path(b, sizeof b, to, TEMPLATES));
    int n = scandir(a, &names, is_template, alphasort); // -1: there are none
    enum neb_status st = n > 0 ? neb_fs_mkdirs(b, 0755) : NEB_OK;
    for (int i = 0; i < n; i++) {
        if (st == NEB_OK)
            st = neb_path(name, sizeof name, TEMPLATES, names[i]->d_name);
        if (st == NEB_OK)
            st = copy_file(from, to, name);
        free(names[i]);
    }
    free(names);
    return st;
}

enum neb_status intra_hf_copy_files(const char *from, const char *to) {
    for (const char *const *name = intra_hf_files; *name; name++)
        NEB_TRY(copy_file(from, to, *name));
    return copy_templates(from, to);
}

enum neb_status intra_hf_write_json(const char *dir, const char *name, json_t *take) {
    char path[NEB_PATH_MAX];
    // Nine digits restore every fp32 value.
    char *text = take ? json_dumps(take, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(take);
    enum neb_status st = neb_path(path, sizeof path, dir, name);
    if (st == NEB_OK)
        st = text ? neb_fs_write(path, text, strlen(text), 0644)
                  : neb_fail(NEB_ERR_NOMEM, "out of memory writing %s", path);
    free(text);
    return st;
}

enum neb_status intra_hf_aside_begin(const char *dir, const char *const sources[3],
                                     struct intra_hf_aside_begin *a) {
    struct stat info;
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') // "out/" means "out"
        n--;
    if (n == 0 || n + sizeof NEB_FS_ASIDE > sizeof a->path)
        return neb_fail(NEB_ERR_LIMIT, "the path is empty or too long: %s", dir);
    snprintf(a->dir, sizeof a->dir, "%.*s", (int)n, dir);
    snprintf(a->path, sizeof a->path, "%.*s" NEB_FS_ASIDE, (int)n, dir);
    for (int i = 0; i < 3; i++) {
        char *aside = realpath(a->path, NULL),
             *from = sources[i] ? realpath(sources[i], NULL) : NULL;
        bool lost = aside && from && neb_path_within(from, aside);
        free(aside);
        free(from);
        if (lost)
            return neb_fail(
                NEB_ERR_EXISTS,
                "%s is removed to make %s, but %s lies in it: move it, or name another folder",
                a->path, a->dir, sources[i]);
    }
    NEB_TRY(neb_fs_hold(a->path, &a->lock));
    if (lstat(a->dir, &info) == 0)
        return neb_fail(NEB_ERR_EXISTS, "%s exists already; name a new folder, or remove this one",
                        a->dir);
    NEB_TRY(neb_fs_remove_tree(a->path)); // left by a process that was killed
    return neb_fs_mkdirs(a->path, 0755);
}

enum neb_status intra_hf_aside_commit(const struct intra_hf_aside_begin *a) {
    char parent[NEB_PATH_MAX];
    NEB_TRY(neb_fs_sync_dir(a->path));
    // rename refuses if a file, or a folder with something in it, appeared there meanwhile.
    if (rename(a->path, a->dir) != 0)
        return neb_fail_errno("cannot rename %s to %s", a->path, a->dir);
    NEB_TRY(neb_path(parent, sizeof parent, a->dir, ".."));
    return neb_fs_sync_dir(parent);
}

void intra_hf_aside_end(struct intra_hf_aside_begin *a, bool failed) {
    if (a->lock < 0)
        return;
    if (failed && neb_fs_remove_tree(a->path) != NEB_OK)
        neb_warn("%s is left over; remove it", a->path);
    neb_fs_release(a->path, &a->lock);
}

// Checks the digest of the description here, because intra_model_load() would read all parameters.
enum neb_status intra_hf_layout(const struct intra_ckpt *k, struct intra_model **out) {
    const struct intra_ckpt_section *s = intra_ckpt_find(k, "model.config");
    struct intra_model_config c;
    struct intra_trainable t;
    uint8_t got[32];
    const void *text = s ? intra_ckpt_data(k, s) : NULL;
    if (s && !text)
        return NEB_ERR_IO;
    if (s)
        neb_sha256(text, s->bytes, got);
    if (s && memcmp(got, s->sha256, sizeof got))
        return neb_fail(
            NEB_ERR_CORRUPT,
            "checkpoint %s: section '%s': the digest does not match; use an older checkpoint",
            intra_ckpt_path(k), s->name);
    NEB_TRY(intra_model_read_config(k, &c, &t));
    if (c.head == INTRA_HEAD_RTD)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "%s is the discriminator of mode rtd, which does not predict the next "
                        "token; nebula eval --task probe measures its hidden states",
                        intra_ckpt_path(k));
    return intra_model_layout(&c, &t, out);
}
