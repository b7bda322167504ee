// SPDX-License-Identifier: Apache-2.0
#include "intra/ckpt/checkpoint_parts.h"
#include "agent/base/log.h"
#include "agent/base/moved.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TOKEN_DIGITS = 16 };

enum neb_status intra_part_path(const char *file, uint64_t token, uint32_t number, char *out,
                                size_t cap) {
    int n =
        snprintf(out, cap, "%s.%0*" PRIx64 "-%" PRIu32 ".part", file, TOKEN_DIGITS, token, number);
    return n > 0 && (size_t)n < cap ? NEB_OK
                                    : neb_fail(NEB_ERR_LIMIT, "%s: the path is too long", file);
}

enum neb_status intra_part_sign(struct intra_ckpt_writer *w, const struct intra_part *part) {
    const uint64_t words[3] = {part->token, part->number, part->n};
    return intra_ckpt_add(w, INTRA_PARTS_SECTION, INTRA_U64, 3, 1, words);
}

enum neb_status intra_parts_note(struct intra_ckpt_writer *w, const struct intra_part *part,
                                 const uint64_t *ranks) {
    const uint64_t words[2] = {part->token, part->n};
    NEB_TRY(intra_ckpt_add(w, INTRA_PARTS_SECTION, INTRA_U64, 2, 1, words));
    return intra_ckpt_add(w, INTRA_PARTS_RANKS, INTRA_U64, part->n, 1, ranks);
}

enum neb_status intra_part_create(const struct neb_vault *vault, const char *file,
                                  const struct intra_part *part, struct intra_ckpt_writer **out) {
    char path[NEB_PATH_MAX];
    NEB_TRY(intra_part_path(file, part->token, part->number, path, sizeof path));
    NEB_TRY(intra_ckpt_create_in(vault, path, out));
    enum neb_status st = intra_part_sign(*out, part);
    if (st != NEB_OK)
        intra_ckpt_writer_destroy(out);
    return st;
}

static enum neb_status failed_path(const char *part, char *out, size_t cap) {
    int n = snprintf(out, cap, "%s.failed", part);
    return n > 0 && (size_t)n < cap ? NEB_OK : NEB_ERR_LIMIT;
}

void intra_part_give_up(const char *path) {
    char mark[NEB_PATH_MAX];
    size_t n = strlen(path), tail = strlen(".part");
    if (n < tail || strcmp(path + n - tail, ".part") ||
        failed_path(path, mark, sizeof mark) != NEB_OK)
        return;
    if (neb_fs_write(mark, "", 0, 0600) != NEB_OK)
        neb_warn("%s: cannot tell rank 0 that this part failed; it waits until its time limit",
                 path);
}

static bool given_up(const char *path) {
    char mark[NEB_PATH_MAX];
    return failed_path(path, mark, sizeof mark) == NEB_OK && neb_fs_exists(mark);
}

// Bytes of parts k … n, complete or not.
static uint64_t bytes_of(const char *file, uint64_t token, uint32_t k, uint32_t n) {
    uint64_t sum = 0;
    for (; k <= n; k++) {
        char path[NEB_PATH_MAX];
        struct stat info;
        size_t len;
        if (intra_part_path(file, token, k, path, sizeof path - sizeof ".tmp") != NEB_OK)
            continue;
        if (stat(path, &info) != 0) {
            len = strlen(path);
            memcpy(path + len, ".tmp", sizeof ".tmp");
            if (stat(path, &info) != 0)
                continue;
        }
        sum += (uint64_t)info.st_size;
    }
    return sum;
}

struct growth { // of the parts that are waited for
    uint64_t bytes;
    neb_ns at, looked, said; // times of the last growth, the last look and the last log line
};

// True if the missing parts have not grown for `idle`.
static bool stands_still(struct growth *g, const char *file, uint64_t token, uint32_t k, uint32_t n,
                         neb_ns idle) {
    neb_ns now = neb_now();
    if (now - g->looked < (idle < 4 * NEB_S ? idle / 4 : NEB_S))
        return false;
    uint64_t bytes = bytes_of(file, token, k, n);
    if (bytes > g->bytes) {
        neb_moved_add(bytes - g->bytes);
        g->at = now;
    }
    g->bytes = bytes;
    g->looked = now;
    if (now - g->said > 10 * NEB_S) {
        neb_info("%s: waiting for the parts of other ranks: %" PRIu32 " of %" PRIu32
                 " are complete, %.1f GB of the others are written",
                 file, k - 1, n, (double)bytes * 1e-9);
        g->said = now;
    }
    return now - g->at > idle;
}

enum neb_status intra_parts_wait(const char *file, uint64_t token, uint32_t n, neb_ns idle) {
    neb_ns now = neb_now();
    struct growth g = {.at = now, .looked = now, .said = now};
    for (uint32_t k = 1; k <= n;) {
        char path[NEB_PATH_MAX];
        NEB_TRY(intra_part_path(file, token, k, path, sizeof path));
        if (neb_fs_exists(path)) {
            k++;
            g = (struct growth){.at = neb_now(), .looked = g.looked, .said = g.said};
            continue;
        }
        if (given_up(path))
            return neb_fail(NEB_ERR_IO,
                            "%s could not be written: its rank's log says why. The previous "
                            "checkpoint is untouched",
                            path);
        if (stands_still(&g, file, token, k, n, idle))
            return neb_fail(NEB_ERR_TIMEOUT,
                            "%s is missing, and no missing part has grown for %.0f s: check its "
                            "rank's log and disk. The previous checkpoint is untouched",
                            path, neb_seconds(idle));
        neb_sleep(10 * NEB_MS);
    }
    return NEB_OK;
}

enum neb_status intra_part_digest(const char *path, uint8_t digest[INTRA_PART_DIGEST]) {
    uint8_t head[NEB_SEALED_MAGIC_BYTES];
    FILE *f = fopen(path, "rb");
    memset(digest, 0, INTRA_PART_DIGEST);
    size_t n = f ? fread(head, 1, sizeof head, f) : 0;
    bool good = n == sizeof head;
    if (good && !neb_is_sealed(head, n))
        good = fseek(f, -(long)INTRA_PART_DIGEST, SEEK_END) == 0 &&
               fread(digest, 1, INTRA_PART_DIGEST, f) == INTRA_PART_DIGEST;
    if (f)
        fclose(f);
    return good ? NEB_OK : neb_fail(NEB_ERR_IO, "cannot read the digest of %s", path);
}

// The position of the token in "FILE.TOKEN-NUMBER.part"; 0: not such a name.
static size_t token_at(const char *name) {
    size_t n = strlen(name), tail = strlen(".part");
    if (n < tail || strcmp(name + n - tail, ".part"))
        return 0;
    const char *dash = strrchr(name, '-');
    if (!dash || dash - name < TOKEN_DIGITS + 2 || dash[-TOKEN_DIGITS - 1] != '.' ||
        strspn(dash - TOKEN_DIGITS, "0123456789abcdef") != TOKEN_DIGITS ||
        strspn(dash + 1, "0123456789") != strlen(dash) - 1 - tail)
        return 0;
    return (size_t)(dash - name) - TOKEN_DIGITS;
}

// ---- pruning ------------------------------------------------------------------------------------

static uint64_t token_of(const char *name) { return strtoull(name + token_at(name), NULL, 16); }

static bool of_one_file(const char *a, const char *b) {
    size_t at = token_at(a);
    return at == token_at(b) && !strncmp(a, b, at);
}

static bool is_sealed(const char *path) {
    uint8_t head[NEB_SEALED_MAGIC_BYTES];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(head, 1, sizeof head, f) : 0;
    if (f)
        fclose(f);
    return neb_is_sealed(head, n);
}

struct owner { // the file that some parts belong to
    bool exists, known;
    uint64_t token; // of its parts; 0: it has none
};

// several: parts of more than one token lie beside the file. A file that cannot be read now may be
// readable later, so the parts that it may need are kept.
static struct owner look_at(const struct neb_vault *vault, const char *dir, const char *part,
                            bool several) {
    char file[NEB_PATH_MAX], base[NAME_MAX + 1];
    struct owner o = {0};
    struct intra_ckpt *c = NULL;
    uint64_t words[2] = {0, 0};
    snprintf(base, sizeof base, "%.*s", (int)token_at(part) - 1, part);
    o.exists = neb_path(file, sizeof file, dir, base) == NEB_OK && neb_fs_exists(file);
    if (!o.exists || (is_sealed(file) && !(several && vault)))
        return o;
    o.known = intra_ckpt_open_index(vault, file, &c) == NEB_OK;
    if (!o.known)
        return o;
    const struct intra_ckpt_section *s = intra_ckpt_find(c, INTRA_PARTS_SECTION);
    if (s && s->bytes == sizeof words && intra_ckpt_range(c, s, 0, words, sizeof words) == NEB_OK)
        o.token = words[1] ? words[0] : 0;
    intra_ckpt_close(&c);
    return o;
}

static int is_part(const struct dirent *e) { return token_at(e->d_name) > 0; }
static int is_half(const struct dirent *e) { // or a mark that a part was given up
    static const char *const tails[] = {".part.tmp", ".part.failed", ".part.failed.tmp"};
    size_t n = strlen(e->d_name);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        size_t tail = strlen(tails[i]);
        if (n > tail && !strcmp(e->d_name + n - tail, tails[i]))
            return 1;
    }
    return 0;
}

static enum neb_status remove_in(const char *dir, const char *name) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, dir, name));
    return neb_fs_remove(path);
}

// Prunes the parts of one file, names[0] … names[n - 1].
static enum neb_status prune_parts(const struct neb_vault *vault, const char *dir,
                                   struct dirent **names, int n) {
    bool several = false;
    for (int i = 1; i < n; i++)
        several |= token_of(names[i]->d_name) != token_of(names[0]->d_name);
    struct owner o = look_at(vault, dir, names[0]->d_name, several);
    for (int i = 0; i < n; i++)
        if (!o.exists || (o.known && (!o.token || token_of(names[i]->d_name) != o.token)))
            NEB_TRY(remove_in(dir, names[i]->d_name));
    return NEB_OK;
}

enum neb_status intra_names_list(const char *dir, int (*which)(const struct dirent *e),
                                 struct dirent ***names, int *n) {
    *names = NULL;
    *n = scandir(dir, names, which, alphasort);
    if (*n >= 0)
        return NEB_OK;
    *n = 0;
    return errno == ENOENT ? NEB_OK : neb_fail_errno("cannot read folder %s", dir);
}

void intra_names_free(struct dirent **names, int n) {
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

enum neb_status intra_parts_prune(const struct neb_vault *vault, const char *dir) {
    struct dirent **names;
    int n;
    NEB_TRY(intra_names_list(dir, is_half, &names, &n));
    enum neb_status st = NEB_OK;
    for (int i = 0; i < n && st == NEB_OK; i++)
        st = remove_in(dir, names[i]->d_name);
    intra_names_free(names, n);
    NEB_TRY(st);
    NEB_TRY(intra_names_list(dir, is_part, &names, &n));
    for (int i = 0, end; i < n && st == NEB_OK; i = end) {
        for (end = i + 1; end < n && of_one_file(names[i]->d_name, names[end]->d_name); end++)
            ;
        st = prune_parts(vault, dir, names + i, end - i);
    }
    intra_names_free(names, n);
    return st;
}
