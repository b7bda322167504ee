// SPDX-License-Identifier: Apache-2.0
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "agent/train/distill.h"
#include "inter/stream/stream.h"

#include <string.h>

static enum neb_status key_of(const struct agent_job *j, int32_t student, const uint8_t corpus[32],
                              char hex[65]) {
    struct neb_buf b = {0};
    int32_t n;
    agent_distill_batches_of(j, &student, &n);
    uint8_t sha[32];
    neb_buf_add(&b, corpus, 32);
    neb_buf_u32(&b, CMP_SOFT_VERSION);
    neb_buf_i64(&b, j->seed);
    neb_buf_u32(&b, (uint32_t)j->batch);
    neb_buf_u32(&b, (uint32_t)j->seq_len);
    neb_buf_u32(&b, (uint32_t)j->accumulate);
    neb_buf_u32(&b, (uint32_t)n);
    neb_buf_u32(&b, (uint32_t)student);
    neb_buf_f32(&b, j->distill.temperature);
    if (j->distill.task != AGENT_TASK_TRANSLATE)
        neb_buf_u32(&b, (uint32_t)j->distill.task);
    if (j->distill.source != AGENT_TEXT_CORPUS) {
        neb_buf_u32(&b, (uint32_t)j->distill.source);
        neb_buf_f32(&b, j->distill.mix);
    }
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        neb_sha256(b.p, b.len, sha);
    neb_buf_free(&b);
    NEB_TRY(st);
    neb_hex(sha, sizeof sha, hex);
    return NEB_OK;
}

enum neb_status agent_distill_cache_open(const char *dir, const struct agent_job *j,
                                         int32_t student, const uint8_t corpus[32]) {
    char path[NEB_PATH_MAX], hex[65];
    struct neb_buf was = {0};
    NEB_TRY(key_of(j, student, corpus, hex));
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(neb_path(path, sizeof path, dir, "key"));
    if (!neb_fs_exists(path))
        return neb_fs_write(path, hex, 64, 0600);
    NEB_TRY(neb_fs_read(path, 64, &was));
    bool same = was.len == 64 && !memcmp(was.p, hex, 64);
    enum neb_status st =
        same ? NEB_OK
             : neb_fail(NEB_ERR_INVALID,
                        "distill.cache: %s holds labels for another text, seed, batch, share of "
                        "the batches, or temperature, or of another version (there %.*s, here "
                        "%s): name another folder, or move this one away",
                        dir, (int)was.len, (const char *)was.p, hex);
    neb_buf_free(&was);
    return st;
}

static enum neb_status file_of(const char *dir, int64_t step, char *path, size_t cap) {
    char name[32];
    snprintf(name, sizeof name, "%08lld.soft", (long long)step);
    return neb_path(path, cap, dir, name);
}

bool agent_distill_cache_has(const char *dir, int64_t step) {
    char path[NEB_PATH_MAX];
    return file_of(dir, step, path, sizeof path) == NEB_OK && neb_fs_exists(path);
}

enum neb_status agent_distill_cache_read(const char *dir, int64_t step, struct neb_buf *out) {
    char path[NEB_PATH_MAX];
    NEB_TRY(file_of(dir, step, path, sizeof path));
    neb_buf_clear(out);
    return neb_fs_exists(path) ? neb_fs_read(path, INTER_STREAM_BATCH_MAX, out) : NEB_ERR_NOT_FOUND;
}

// A job without a teacher needs labels of one teacher only, so those of another teacher after this
// step are removed.
static enum neb_status forget_behind(const char *dir, int64_t step) {
    char path[NEB_PATH_MAX];
    neb_warn("distill.cache: %s holds labels of another teacher or k; they are replaced from step "
             "%lld on",
             dir, (long long)step);
    for (;;) {
        NEB_TRY(file_of(dir, ++step, path, sizeof path));
        if (!neb_fs_exists(path))
            return NEB_OK;
        NEB_TRY(neb_fs_remove(path));
    }
}

enum neb_status agent_distill_cache_write(const char *dir, int64_t step, const void *p, size_t n) {
    char path[NEB_PATH_MAX];
    struct neb_buf was = {0};
    NEB_TRY(file_of(dir, step, path, sizeof path));
    enum neb_status st = agent_distill_cache_read(dir, step, &was);
    bool none = st == NEB_ERR_NOT_FOUND,
         same = st == NEB_OK && was.len == n && !memcmp(was.p, p, n);
    neb_buf_free(&was);
    if (same)
        return NEB_OK;
    NEB_TRY(neb_fs_write(path, p, n, 0600));
    return none ? NEB_OK : forget_behind(dir, step);
}
