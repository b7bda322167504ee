// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/late.h"
#include "agent/base/clock.h"
#include "agent/base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum neb_status path_of(const char *dir, char path[NEB_PATH_MAX]) {
    return neb_path(path, NEB_PATH_MAX, dir, "late.jsonl");
}

json_t *agent_late_line(int64_t n, double late_s, json_t *line) {
    int64_t at = neb_wall_now() / NEB_MS - (int64_t)(late_s * 1e3);
    return json_pack("{s:I,s:I,s:O}", "n", (json_int_t)n, "at", (json_int_t)at, "line", line);
}

// The empty line before them ends one that a power cut left incomplete.
static enum neb_status text_of(const json_t *lines, struct neb_buf *b) {
    const json_t *o;
    size_t i;
    json_array_foreach(lines, i, o) {
        char *text = json_dumps(o, JSON_COMPACT);
        if (!text)
            return neb_fail(NEB_ERR_NOMEM, "out of memory for lines of metrics");
        neb_buf_add(b, "\n", 1);
        neb_buf_add(b, text, strlen(text));
        free(text);
    }
    neb_buf_add(b, "\n", 1);
    return neb_buf_check(b);
}

static enum neb_status append(int fd, const char *path, const struct neb_buf *b) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return neb_fail_errno("cannot look at %s", path);
    if ((size_t)info.st_size + b->len > (size_t)AGENT_LATE_BYTES_MAX)
        return NEB_ERR_LIMIT;
    for (size_t done = 0; done < b->len;) {
        ssize_t k = write(fd, b->p + done, b->len - done);
        if (k <= 0 && errno != EINTR)
            return neb_fail_errno("cannot write %s", path);
        done += k > 0 ? (size_t)k : 0;
    }
    return fsync(fd) == 0 ? NEB_OK : neb_fail_errno("cannot write %s", path);
}

enum neb_status agent_late_add(const char *dir, const json_t *lines) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    NEB_TRY(path_of(dir, path));
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    bool is_new = !neb_fs_exists(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return neb_fail_errno("cannot open %s", path);
    enum neb_status st = text_of(lines, &b);
    if (st == NEB_OK)
        st = append(fd, path, &b);
    close(fd);
    neb_buf_free(&b);
    return st == NEB_OK && is_new ? neb_fs_sync_dir(dir) : st;
}

// True if no line of its cluster with this number or a later one came before. It may come twice if
// an agent was killed in between.
static bool is_first(json_t *had, const json_t *o) {
    const char *who = json_string_value(json_object_get(json_object_get(o, "line"), "cluster"));
    json_int_t n = json_integer_value(json_object_get(o, "n"));
    bool first = who && n > json_integer_value(json_object_get(had, who));
    if (first)
        json_object_set_new(had, who, json_integer(n));
    return first;
}

json_t *agent_late_read(const char *dir) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    if (path_of(dir, path) != NEB_OK || !neb_fs_exists(path) ||
        neb_fs_read(path, AGENT_LATE_BYTES_MAX, &b) != NEB_OK)
        return NULL;
    json_t *list = json_array(), *had = json_object();
    double now_ms = (double)(neb_wall_now() / NEB_MS);
    for (size_t from = 0, n; from < b.len; from += n + 1) {
        const uint8_t *end = memchr(b.p + from, '\n', b.len - from);
        n = end ? (size_t)(end - b.p) - from : b.len - from;
        json_t *o = n ? json_loadb((const char *)b.p + from, n, 0, NULL) : NULL;
        if (is_first(had, o)) {
            double late_s = (now_ms - json_number_value(json_object_get(o, "at"))) / 1e3;
            json_object_del(o, "at");
            json_object_set_new(o, "late_s", json_real(late_s > 1e-3 ? late_s : 1e-3));
            json_array_append(list, o);
        }
        json_decref(o);
    }
    json_decref(had);
    neb_buf_free(&b);
    return list;
}

void agent_late_drop(const char *dir) {
    char path[NEB_PATH_MAX];
    if (path_of(dir, path) == NEB_OK)
        (void)!neb_fs_remove(path);
}
