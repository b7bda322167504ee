// SPDX-License-Identifier: Apache-2.0
// Finds, copies and hashes the files of a vocabulary.
#include "intra/data/tokenizer_files.h"
#include "agent/base/fs.h"
#include "intra/data/bpe.h"
#include "intra/read/folder.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum neb_status intra_tokenizer_in(const char *dir, char *out, size_t cap) {
    bool model, json;
    NEB_TRY(intra_folder_file(dir, INTRA_TOKENIZER_MODEL, out, cap, &model));
    if (model)
        return NEB_OK;
    NEB_TRY(intra_folder_file(dir, INTRA_TOKENIZER_JSON, out, cap, &json));
    return json ? NEB_OK : neb_path(out, cap, dir, INTRA_TOKENIZER_MODEL);
}

enum neb_status intra_tokenizer_resolve(const char *path, char *out, size_t cap) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return intra_tokenizer_in(path, out, cap);
    return snprintf(out, cap, "%s", path) < (int)cap
               ? NEB_OK
               : neb_fail(NEB_ERR_LIMIT, "path too long: %s", path);
}

bool intra_tokenizer_is_json(const char *file) {
    static const char end[] = ".json";
    size_t n = strlen(file), k = sizeof end - 1;
    struct stat info;
    char first = 0;
    if (n > k && !strcmp(file + n - k, end))
        return true;
    int fd =
        stat(file, &info) == 0 && S_ISREG(info.st_mode) ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    bool brace = read(fd, &first, 1) == 1 && first == '{';
    close(fd);
    return brace;
}

enum neb_status intra_tokenizer_config(const char *file, char *out, size_t cap) {
    char dir[NEB_PATH_MAX];
    const char *slash = strrchr(file, '/');
    int n =
        snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash + 1 - file) : 1, slash ? file : ".");
    if (n < 0 || (size_t)n >= sizeof dir)
        return neb_fail(NEB_ERR_LIMIT, "path too long: %s", file);
    if (n > 1 && dir[n - 1] == '/')
        dir[n - 1] = 0;
    return intra_folder_file(dir, INTRA_TOKENIZER_CONFIG, out, cap, NULL);
}

enum neb_status intra_tokenizer_copy(const char *file, const char *dir) {
    char from[NEB_PATH_MAX], to[NEB_PATH_MAX];
    bool json = intra_tokenizer_is_json(file);
    NEB_TRY(neb_path(to, sizeof to, dir, json ? INTRA_TOKENIZER_JSON : INTRA_TOKENIZER_MODEL));
    NEB_TRY(neb_fs_copy(file, to, 0644));
    if (!json)
        return NEB_OK;
    NEB_TRY(intra_tokenizer_config(file, from, sizeof from));
    NEB_TRY(neb_path(to, sizeof to, dir, INTRA_TOKENIZER_CONFIG));
    return neb_fs_exists(from) ? neb_fs_copy(from, to, 0644) : NEB_OK;
}

enum neb_status intra_tokenizer_digest(const char *file, uint8_t out[NEB_SHA256_BYTES]) {
    char special[64];
    struct neb_map map;
    struct intra_bpe *b = NULL;
    struct neb_sha256 *sha = NULL;
    int n = 0;
    if (intra_tokenizer_is_json(file)) {
        NEB_TRY(intra_bpe_open(file, &b));
        n = snprintf(special, sizeof special, "%d %d", intra_bpe_bos(b), intra_bpe_eos(b));
        intra_bpe_close(&b);
    }
    NEB_TRY(neb_map_open(file, &map));
    enum neb_status st = neb_sha256_create(&sha);
    if (st == NEB_OK) {
        neb_sha256_add(sha, map.p, map.len);
        neb_sha256_add(sha, special, (size_t)n);
        neb_sha256_finish(sha, out);
    }
    neb_sha256_destroy(&sha);
    neb_map_close(&map);
    return st;
}
