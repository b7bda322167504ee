// SPDX-License-Identifier: Apache-2.0
#include "agent/base/log.h"
#include "agent/base/clock.h"
#include "agent/base/plain.h"
#include "agent/base/repeats.h"
#include "agent/base/status.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const status_names[] = {
    "ok",           "invalid value", "input/output error", "out of memory", "malformed data",
    "corrupt data", "not found",     "already exists",     "denied",        "timed out",
    "try again",    "wrong state",   "unsupported",        "interrupted",   "limit exceeded",
    "disk full",
};
static const char *const level_names[] = {"error", "warn ", "info ", "debug"};

// Mutable state of the whole process, which is rare here: every layer logs, and no layer should
// carry a handle for it.
static struct {
    pthread_mutex_t lock;
    enum neb_log_level level;
    char name[48];
    neb_log_sink *sink;
    void *user;
    char last_error[1024];
    bool throttled;
    struct neb_repeats repeats;
} log_state = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = NEB_LOG_INFO};

const char *neb_status_name(enum neb_status s) {
    size_t n = sizeof status_names / sizeof status_names[0];
    return (size_t)s < n ? status_names[s] : "unknown status";
}

void neb_log_set_level(enum neb_log_level level) {
    pthread_mutex_lock(&log_state.lock);
    log_state.level = level;
    pthread_mutex_unlock(&log_state.lock);
}

void neb_log_set_name(const char *name) {
    pthread_mutex_lock(&log_state.lock);
    snprintf(log_state.name, sizeof log_state.name, "%s", name ? name : "");
    pthread_mutex_unlock(&log_state.lock);
}

bool neb_log_is_named(const char *name) {
    pthread_mutex_lock(&log_state.lock);
    bool is = !strcmp(log_state.name, name);
    pthread_mutex_unlock(&log_state.lock);
    return is;
}

void neb_log_set_sink(neb_log_sink *sink, void *user) {
    pthread_mutex_lock(&log_state.lock);
    log_state.sink = sink;
    log_state.user = user;
    pthread_mutex_unlock(&log_state.lock);
}

static _Thread_local bool hushed;

void neb_log_hush(bool on) { hushed = on; }

// The caller holds the lock.
static void put_line(enum neb_log_level level, const char *text) {
    struct timespec ts;
    struct tm tm;
    char when[32] = "";
    if (log_state.sink) {
        log_state.sink(log_state.user, level, text);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &ts);
    if (gmtime_r(&ts.tv_sec, &tm))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    fprintf(stderr, "%s %s %s%s%s\n", when, level_names[level], log_state.name,
            log_state.name[0] ? ": " : "", text);
}

static void put_due(neb_ns now) {
    char text[NEB_REPEATS_TEXT + 80];
    int level;
    while (log_state.throttled &&
           neb_repeats_due(&log_state.repeats, now, &level, text, sizeof text))
        if (level <= (int)log_state.level)
            put_line((enum neb_log_level)level, text);
}

void neb_log_throttle(bool on) {
    pthread_mutex_lock(&log_state.lock);
    log_state.throttled = on;
    log_state.repeats = (struct neb_repeats){0};
    pthread_mutex_unlock(&log_state.lock);
}

void neb_log_tick(void) {
    pthread_mutex_lock(&log_state.lock);
    put_due(neb_now());
    pthread_mutex_unlock(&log_state.lock);
}

static void log_v(enum neb_log_level level, const char *suffix, const char *fmt, va_list ap) {
    char text[2048];
    if (hushed)
        return;
    int n = vsnprintf(text, sizeof text, fmt, ap);
    if (n < 0)
        return;
    if (suffix && (size_t)n < sizeof text)
        snprintf(text + n, sizeof text - (size_t)n, ": %s", suffix);
    neb_plain(text, false); // the text may contain peer data or file names
    pthread_mutex_lock(&log_state.lock);
    if (level == NEB_LOG_ERROR)
        snprintf(log_state.last_error, sizeof log_state.last_error, "%.1000s", text);
    bool often = log_state.throttled && level <= NEB_LOG_WARN;
    neb_ns now = often ? neb_now() : 0;
    if (often)
        put_due(now);
    if (level <= log_state.level &&
        (!often || neb_repeats_says(&log_state.repeats, now, (int)level, text)))
        put_line(level, text);
    pthread_mutex_unlock(&log_state.lock);
}

void neb_last_error(char *out, size_t cap) {
    pthread_mutex_lock(&log_state.lock);
    snprintf(out, cap, "%s", log_state.last_error);
    pthread_mutex_unlock(&log_state.lock);
}

void neb_log(enum neb_log_level level, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    log_v(level, NULL, fmt, ap);
    va_end(ap);
}

enum neb_status neb_fail(enum neb_status s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    log_v(NEB_LOG_ERROR, NULL, fmt, ap);
    va_end(ap);
    return s;
}

enum neb_status neb_fail_errno(const char *fmt, ...) {
    int err = errno;
    va_list ap;
    va_start(ap, fmt);
    log_v(NEB_LOG_ERROR, strerror(err), fmt, ap);
    va_end(ap);
    switch (err) {
    case ENOSPC:
    case EDQUOT: return NEB_ERR_NOSPC;
    case ENOMEM: return NEB_ERR_NOMEM;
    case ENOENT: return NEB_ERR_NOT_FOUND;
    case EEXIST: return NEB_ERR_EXISTS;
    case EACCES:
    case EPERM: return NEB_ERR_DENIED;
    default: return NEB_ERR_IO;
    }
}

void neb_assert_failed(const char *cond, const char *file, int line, const char *func) {
    fprintf(stderr, "nebula: invariant broken: %s (%s, %s:%d); please report this\n", cond, func,
            file, line);
    abort();
}
