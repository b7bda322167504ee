// SPDX-License-Identifier: Apache-2.0
// Foreign Hugging Face folders, through import and export. Import returns a status. No byte of a
// file outside the folder gets into the output. An imported model can be exported, and the export
// is the same model. Input: a byte of options, then files: a byte for the name, one for the type
// (file, link to another name or out of the folder, named pipe, folder), u16 length, bytes.
#include "agent/base/log.h"
#include "intra/data/tokenizer_files.h"
#include "intra/hf/hf.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 16, WITH_ADAPTER = 1, MERGED = 2, BF16 = 4, SHARDS = 8, SNAPSHOT = 16 };

static const char secret[] = "9c1f6a52-of-this-user-alone";
static const char *const names[] = {"config.json",
                                    "model.safetensors",
                                    "model.safetensors.index.json",
                                    "a.safetensors",
                                    "b.safetensors",
                                    "tokenizer.json",
                                    "tokenizer_config.json",
                                    "tokenizer.model",
                                    "adapter_config.json",
                                    "adapter_model.safetensors",
                                    "adapter/adapter_config.json",
                                    "adapter/adapter_model.safetensors",
                                    "chat_template.jinja",
                                    "additional_chat_templates/x.jinja",
                                    "added_tokens.json",
                                    "special_tokens_map.json",
                                    "generation_config.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "../../blobs/1"};
enum { N_NAMES = sizeof names / sizeof *names };

static char root[64];
static struct kern *K;

static void clean(void) {
    if (neb_fs_remove_tree(root) != NEB_OK)
        neb_warn("%s stays", root);
    kern_destroy(&K);
}

static const char *path_of(char out[NEB_PATH_MAX], const char *dir, const char *name) {
    NEB_ASSERT(snprintf(out, NEB_PATH_MAX, "%s/%s%s%s", root, dir, *name ? "/" : "", name) <
               NEB_PATH_MAX);
    return out;
}

// Skips fsync: the folder is in memory.
static void put(const char *path, const void *p, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) {
        NEB_ASSERT(write(fd, p, n) == (ssize_t)n);
        close(fd);
    }
}

static void set_up(void) {
    char path[NEB_PATH_MAX];
    snprintf(root, sizeof root, "%s/nebula-fuzz-hf-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    NEB_ASSERT(mkdtemp(root) && kern_cpu_create(1, &K) == NEB_OK);
    put(path_of(path, "secret", ""), secret, sizeof secret - 1);
    atexit(clean);
}

// ---- the folder ----

static void make_one(const char *dir, const char *name, unsigned kind, const uint8_t *p, size_t n) {
    char path[NEB_PATH_MAX], target[NEB_PATH_MAX];
    static const char *const ways[] = {"../../../secret", "../../secret", "../secret", "."};
    path_of(path, dir, name);
    int failed = 0;
    if (kind < 12) {
        put(path, p, n);
    } else if (kind == 12) {
        bool deep = strchr(name, '/') && name[0] != '.';
        snprintf(target, sizeof target, "%s%s", deep ? "../" : "", names[n ? p[0] % N_NAMES : 0]);
        failed = symlink(target, path);
    } else if (kind == 13) {
        failed = symlink(n && p[0] % 5 < 4 ? ways[p[0] % 5] : path_of(target, "secret", ""), path);
    } else {
        failed = kind == 14 ? mkfifo(path, 0600) : mkdir(path, 0700);
    }
    (void)failed; // a repeated name: the first one stays
}

static void make_folder(const char *dir, const uint8_t *p, size_t n) {
    static const char *const folders[] = {"", "adapter", "additional_chat_templates",
                                          "../../blobs"};
    char path[NEB_PATH_MAX];
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        NEB_ASSERT(neb_fs_mkdirs(path_of(path, dir, folders[i]), 0700) == NEB_OK);
    struct neb_rd r = neb_rd_make(p, n);
    while (neb_rd_left(&r) >= 4) {
        unsigned name = neb_rd_u8(&r) % N_NAMES, kind = neb_rd_u8(&r) % 16;
        size_t len = neb_rd_u16(&r);
        len = len < neb_rd_left(&r) ? len : neb_rd_left(&r);
        make_one(dir, names[name], kind, neb_rd_view(&r, len), len);
    }
}

// ---- the results ----

// Only files and folders, and no file contains the secret.
static void check_clean(const char *dir) {
    DIR *d = opendir(dir);
    NEB_ASSERT(d != NULL);
    for (struct dirent *e; (e = readdir(d));) {
        char path[NEB_PATH_MAX];
        struct stat info;
        struct neb_buf b = {0};
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        NEB_ASSERT(neb_path(path, sizeof path, dir, e->d_name) == NEB_OK && !lstat(path, &info));
        NEB_ASSERT(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode));
        if (S_ISDIR(info.st_mode)) {
            check_clean(path);
            continue;
        }
        NEB_ASSERT(neb_fs_read(path, 1 << 24, &b) == NEB_OK);
        NEB_ASSERT(!b.len || !memmem(b.p, b.len, secret, sizeof secret - 1));
        neb_buf_free(&b);
    }
    closedir(d);
}

static enum neb_status import(const char *from, const char *adapter, const char *to,
                              struct intra_hf_imported *r) {
    char a[NEB_PATH_MAX], b[NEB_PATH_MAX], c[NEB_PATH_MAX];
    const struct intra_hf_import i = {.dir = path_of(a, from, ""),
                                      .adapter = adapter ? path_of(b, adapter, "") : NULL,
                                      .out = path_of(c, to, "")};
    return intra_hf_import(&i, r);
}

static void export_again(const struct intra_hf_imported *r, const char *base, unsigned options) {
    char from[NEB_PATH_MAX], to[NEB_PATH_MAX], like[NEB_PATH_MAX], out[NEB_PATH_MAX],
        vocabulary[NEB_PATH_MAX];
    bool lora = r->trainable.mode == INTRA_TRAIN_LORA;
    struct intra_hf_exported x;
    struct intra_hf_imported again;
    NEB_ASSERT(intra_tokenizer_in(path_of(out, "out", ""), vocabulary, sizeof vocabulary) ==
               NEB_OK);
    const struct intra_hf_export e = {.checkpoint = path_of(from, "out", "model.ckpt"),
                                      .dir = path_of(to, "back", ""),
                                      .like = path_of(like, "out/hf", ""),
                                      .tokenizer = neb_fs_exists(vocabulary) ? vocabulary : NULL,
                                      .what = !lora              ? INTRA_HF_MODEL
                                              : options & MERGED ? INTRA_HF_MERGED
                                                                 : INTRA_HF_ADAPTER,
                                      .dtype = options & BF16 ? INTRA_ST_BF16 : INTRA_ST_F32,
                                      .shard_bytes = options & SHARDS ? 100 : 0,
                                      .K = K};
    NEB_ASSERT(intra_hf_export(&e, &x) == NEB_OK);
    check_clean(to);
    if (lora) // sums, and 16-bit floats, may be infinite
        NEB_ASSERT(options & MERGED || import(base, "back", "again", &again) == NEB_OK);
    else if (!(options & BF16))
        NEB_ASSERT(import("back", NULL, "again", &again) == NEB_OK && again.params == r->params &&
                   again.tokenizer == r->tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const made[] = {"m", "out", "back", "again"};
    static const char folder[] = "m/folder/r", cache[] = "m/snapshots/r";
    struct intra_hf_imported r;
    char path[NEB_PATH_MAX], adapter[64];
    if (size < 1 || size > INPUT_MAX || memmem(data, size, secret, sizeof secret - 1))
        return 0; // libFuzzer learns the secret when it sees this comparison
    if (!root[0])
        set_up();
    unsigned options = data[0];
    const char *from = options & SNAPSHOT ? cache : folder;
    make_folder(from, data + 1, size - 1);
    snprintf(adapter, sizeof adapter, "%s/adapter", from);
    if (import(from, options & WITH_ADAPTER ? adapter : NULL, "out", &r) == NEB_OK) {
        check_clean(path_of(path, "out", ""));
        export_again(&r, from, options);
    } else {
        NEB_ASSERT(!neb_fs_exists(path_of(path, "out", "")));
    }
    NEB_ASSERT(!neb_fs_exists(path_of(path, "out.nebula-building", "")));
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        NEB_ASSERT(neb_fs_remove_tree(path_of(path, made[i], "")) == NEB_OK);
    return 0;
}
