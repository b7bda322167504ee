// SPDX-License-Identifier: Apache-2.0
// Log lines to stderr (or a sink): "2026-11-21T05:36:19Z info  agent: paris: link up". Thread-safe.
#ifndef NEB_LOG_H
#define NEB_LOG_H
#include <stdbool.h>
#include <stddef.h>

enum neb_log_level { NEB_LOG_ERROR, NEB_LOG_WARN, NEB_LOG_INFO, NEB_LOG_DEBUG };

// Drops lines above this level. Default: NEB_LOG_INFO.
void neb_log_set_level(enum neb_log_level level);
// The prefix of every line, such as "agent paris". Copied, and cut at 47 bytes. Default: none.
void neb_log_set_name(const char *name);
bool neb_log_is_named(const char *name);
// Sends lines to sink(user, level, text without newline) instead of stderr. NULL restores stderr.
// Tests use it to capture errors.
typedef void neb_log_sink(void *user, enum neb_log_level level, const char *text);
void neb_log_set_sink(neb_log_sink *sink, void *user);

// For long-running processes: logs a repeated error or warning once, then once a minute with a
// count (repeats.h). Call neb_log_tick regularly: it logs pending counts when nothing else is
// logged.
void neb_log_throttle(bool on);
void neb_log_tick(void);

// Drops (true) or logs (false) the lines of the calling thread. For code that is known to repeat
// the same lines without end.
void neb_log_hush(bool on);

// The latest error line of this process, for a report that names the cause. "" if there was none.
void neb_last_error(char *out, size_t cap);

void neb_log(enum neb_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define neb_warn(...)  neb_log(NEB_LOG_WARN, __VA_ARGS__)
#define neb_info(...)  neb_log(NEB_LOG_INFO, __VA_ARGS__)
#define neb_debug(...) neb_log(NEB_LOG_DEBUG, __VA_ARGS__)

#endif
