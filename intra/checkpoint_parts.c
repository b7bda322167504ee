#include "intra/checkpoint_parts.h"
#include "agent/base/clock.h"
#include "agent/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { TOKEN_DIGITS = 16 };

enum neb_status intra_part_path(const char *file, uint64_t token, uint32_t number, char *out,
                                size_t cap) {
    int n =
        snprintf(out, cap, "%s.%0*" PRIx64 "-%" PRIu32 ".part", file, TOKEN_DIGITS, token, number);
    return n > 0 && (size_t)n < cap ? NEB_OK
                                    : neb_fail(NEB_ERR_LIMIT, "%s: path is too long", file);
}

enum neb_status intra_part_create(const char *file, uint64_t token, uint32_t number,
                                  struct intra_ckpt_writer **out) {
    char path[NEB_PATH_MAX];
    const uint64_t name[2] = {token, number};
    NEB_TRY(intra_part_path(file, token, number, path, sizeof path));
    NEB_TRY(intra_ckpt_create(path, out));
    enum neb_status st = intra_ckpt_add(*out, INTRA_PARTS_SECTION, INTRA_U64, 2, 1, name);
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
        neb_warn("%s: the owner waits for it until its time is up", path);
}

static bool given_up(const char *path) {
    char mark[NEB_PATH_MAX];
    return failed_path(path, mark, sizeof mark) == NEB_OK && neb_fs_exists(mark);
}

enum neb_status intra_parts_wait(const char *file, uint64_t token, uint32_t n) {
    neb_ns start = neb_now();
    for (uint32_t k = 1; k <= n;) {
        char path[NEB_PATH_MAX];
        NEB_TRY(intra_part_path(file, token, k, path, sizeof path));
        if (neb_fs_exists(path)) {
            k++;
            continue;
        }
        if (given_up(path))
            return neb_fail(NEB_ERR_IO,
                            "%s could not be written: that rank's log says why; the checkpoint "
                            "before is untouched",
                            path);
        if (neb_now() - start > INTRA_PARTS_WAIT_S * NEB_S)
            return neb_fail(NEB_ERR_TIMEOUT,
                            "%s was not written within %d s: look at that rank's log and disk; the "
                            "checkpoint before is untouched",
                            path, INTRA_PARTS_WAIT_S);
        neb_sleep(10 * NEB_MS);
    }
    return NEB_OK;
}

// "FILE.TOKEN-NUMBER.part": where the token begins; 0: none.
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

// Does the file that a part belongs to name it?
static bool wanted(const char *dir, const char *name, size_t at) {
    char file[NEB_PATH_MAX], base[NAME_MAX + 1];
    struct intra_ckpt *c = NULL;
    uint64_t parts[2] = {0, 0}, token = strtoull(name + at, NULL, 16);
    snprintf(base, sizeof base, "%.*s", (int)at - 1, name);
    if (neb_path(file, sizeof file, dir, base) != NEB_OK || !neb_fs_exists(file))
        return false;
    // A file that cannot be read now may be readable later: what it may need is left alone.
    if (intra_ckpt_open_index(file, &c) != NEB_OK)
        return true;
    const struct intra_ckpt_section *s = intra_ckpt_find(c, INTRA_PARTS_SECTION);
    if (s && s->bytes == sizeof parts)
        memcpy(parts, intra_ckpt_data(c, s), sizeof parts);
    intra_ckpt_close(&c);
    return parts[1] && parts[0] == token;
}

static int is_part(const struct dirent *e) { return token_at(e->d_name) > 0; }
static int is_half(const struct dirent *e) { // or a mark that one was given up
    static const char *const tails[] = {".part.tmp", ".part.failed", ".part.failed.tmp"};
    size_t n = strlen(e->d_name);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        size_t tail = strlen(tails[i]);
        if (n > tail && !strcmp(e->d_name + n - tail, tails[i]))
            return 1;
    }
    return 0;
}

static enum neb_status prune(const char *dir, int (*which)(const struct dirent *e), bool all) {
    struct dirent **names = NULL;
    int n = scandir(dir, &names, which, alphasort);
    enum neb_status st = NEB_OK;
    if (n < 0)
        return errno == ENOENT ? NEB_OK : neb_fail_errno("cannot read folder %s", dir);
    for (int i = 0; i < n; i++) {
        char path[NEB_PATH_MAX];
        const char *name = names[i]->d_name;
        if (st == NEB_OK && (all || !wanted(dir, name, token_at(name))))
            st = neb_path(path, sizeof path, dir, name) == NEB_OK ? neb_fs_remove(path)
                                                                  : NEB_ERR_LIMIT;
        free(names[i]);
    }
    free(names);
    return st;
}

enum neb_status intra_parts_prune(const char *dir) {
    NEB_TRY(prune(dir, is_half, true));
    return prune(dir, is_part, false);
}
