// SPDX-License-Identifier: Apache-2.0
#include "agent/show/tfevents.h"
#include "agent/base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 }; // protobuf wire types
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7
};
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, LOG_STATUS = 1, STATUS_START = 1 };
enum { NAMES = 100 };

// ---- bytes --------------------------------------------------------------------------------------

uint32_t agent_tf_crc32c(const void *p, size_t n) {
    const uint8_t *s = p;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) { // a few KB a minute: needs no table
        crc ^= s[i];
        // the polynomial 0x1edc6f41, reflected
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1u)));
    }
    return ~crc;
}

uint32_t agent_tf_mask(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

static void key(struct neb_buf *b, int field, int wire) {
    neb_buf_varint(b, (uint64_t)(field << 3 | wire));
}

static void bytes(struct neb_buf *b, int field, const void *p, size_t n) {
    key(b, field, WIRE_BYTES);
    neb_buf_varint(b, n);
    neb_buf_add(b, p, n);
}

static void head(struct neb_buf *event, double wall_s, int64_t step) {
    key(event, EVENT_WALL_TIME, WIRE_64);
    neb_buf_f64(event, wall_s);
    if (step > 0) { // a missing step means 0
        key(event, EVENT_STEP, WIRE_VARINT);
        neb_buf_varint(event, (uint64_t)step);
    }
}

void agent_tf_put_version(struct neb_buf *event, double wall_s) {
    static const char version[] = "brain.Event:2";
    head(event, wall_s, 0);
    bytes(event, EVENT_FILE_VERSION, version, sizeof version - 1);
}

void agent_tf_put_start(struct neb_buf *event, double wall_s, int64_t step) {
    static const uint8_t log[] = {LOG_STATUS << 3 | WIRE_VARINT, STATUS_START};
    head(event, wall_s, step);
    bytes(event, EVENT_SESSION_LOG, log, sizeof log);
}

// Some readers draw a value that is not finite as a gap; others do not draw it at all.
static bool fits(double x) { return isfinite((float)x); }

void agent_tf_put_scalars(struct neb_buf *event, double wall_s, int64_t step,
                          const struct agent_tf_scalar *s, int n) {
    struct neb_buf summary = {0}, value = {0};
    for (int i = 0; i < n; i++) {
        if (!fits(s[i].value))
            continue;
        neb_buf_clear(&value);
        bytes(&value, VALUE_TAG, s[i].tag, strlen(s[i].tag));
        key(&value, VALUE_SIMPLE, WIRE_32);
        neb_buf_f32(&value, (float)s[i].value);
        bytes(&summary, SUMMARY_VALUE, value.p, value.len);
    }
    head(event, wall_s, step);
    bytes(event, EVENT_SUMMARY, summary.p, summary.len);
    event->oom |= summary.oom || value.oom;
    neb_buf_free(&summary);
    neb_buf_free(&value);
}

void agent_tf_put_record(struct neb_buf *file, const struct neb_buf *event) {
    uint8_t length[8];
    neb_put_u64(length, event->len);
    neb_buf_add(file, length, sizeof length);
    neb_buf_u32(file, agent_tf_mask(agent_tf_crc32c(length, sizeof length)));
    neb_buf_add(file, event->p, event->len);
    neb_buf_u32(file, agent_tf_mask(agent_tf_crc32c(event->p, event->len)));
    file->oom |= event->oom;
}

// ---- the file -----------------------------------------------------------------------------------

struct agent_tfevents {
    int fd;
    struct neb_buf event, record;
    char path[NEB_PATH_MAX];
};

// Writes the record with one call. Cuts off a record that a full disk truncated, so that later
// records stay readable.
static enum neb_status flush(struct agent_tfevents *f) {
    neb_buf_clear(&f->record);
    agent_tf_put_record(&f->record, &f->event);
    NEB_TRY(neb_buf_check(&f->record));
    off_t before = lseek(f->fd, 0, SEEK_END);
    ssize_t n;
    do
        n = write(f->fd, f->record.p, f->record.len);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)f->record.len)
        return NEB_OK;
    int why = n < 0 ? errno : ENOSPC;
    if (before >= 0 && ftruncate(f->fd, before) != 0)
        why = errno;
    errno = why;
    return neb_fail_errno("cannot write %s", f->path);
}

static enum neb_status open_new(struct agent_tfevents *f, const char *dir, double wall_s) {
    char host[65] = "", name[256];
    if (gethostname(host, sizeof host - 1) != 0 || !host[0])
        snprintf(host, sizeof host, "host");
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "events.out.tfevents.%010lld.%s.%ld.%d", (long long)wall_s,
                 host, (long)getpid(), i);
        NEB_TRY(neb_path(f->path, sizeof f->path, dir, name));
        f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
        if (f->fd >= 0)
            return NEB_OK;
        if (errno != EEXIST)
            break;
    }
    return neb_fail_errno("cannot create %s", f->path);
}

enum neb_status agent_tfevents_create(const char *dir, double wall_s, struct agent_tfevents **out) {
    enum neb_status st;
    struct agent_tfevents *f = calloc(1, sizeof *f);
    if (!f)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for event files in %s", dir);
    f->fd = -1;
    NEB_TRY_GOTO(neb_fs_mkdirs(dir, 0755), out);
    NEB_TRY_GOTO(open_new(f, dir, wall_s), out);
    agent_tf_put_version(&f->event, wall_s);
    NEB_TRY_GOTO(flush(f), out);
    *out = f;
    return NEB_OK;
out:
    agent_tfevents_close(&f);
    return st;
}

enum neb_status agent_tfevents_start(struct agent_tfevents *f, double wall_s, int64_t step) {
    neb_buf_clear(&f->event);
    agent_tf_put_start(&f->event, wall_s, step);
    return flush(f);
}

enum neb_status agent_tfevents_scalars(struct agent_tfevents *f, double wall_s, int64_t step,
                                       const struct agent_tf_scalar *s, int n) {
    bool any = false;
    for (int i = 0; i < n; i++)
        any |= fits(s[i].value);
    if (!any)
        return NEB_OK;
    neb_buf_clear(&f->event);
    agent_tf_put_scalars(&f->event, wall_s, step, s, n);
    return flush(f);
}

void agent_tfevents_close(struct agent_tfevents **fp) {
    struct agent_tfevents *f = *fp;
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    neb_buf_free(&f->event);
    neb_buf_free(&f->record);
    free(f);
    *fp = NULL;
}
