// SPDX-License-Identifier: Apache-2.0
// Log lines to stderr (or a sink): "2026-11-21T05:36:19Z info  agent: paris: link up". Thread-safe.
#ifndef NEB_LOG_H
#define NEB_LOG_H
#include <stdbool.h>
#include <stddef.h>

enum neb_log_level { NEB_LOG_ERROR, NEB_LOG_WARN, NEB_LOG_INFO, NEB_LOG_DEBUG };

// Lines above this level are dropped. Default NEB_LOG_INFO.
void neb_log_set_level(enum neb_log_level level);
// Prefix of every line, such as "agent paris"; copied, cut at 47 bytes. Default none.
void neb_log_set_name(const char *name);
bool neb_log_is_named(const char *name);
// Replaces stderr: sink(user, level, text without newline). NULL restores stderr. Tests capture errors so.
typedef void neb_log_sink(void *user, enum neb_log_level level, const char *text);
void neb_log_set_sink(neb_log_sink *sink, void *user);

// Errors and warnings that come again and again are said once, and once a minute from then on (repeats.h): for a process that runs for
// days. neb_log_tick, now and then, says how often it was, where nothing else is logged.
void neb_log_throttle(bool on);
void neb_log_tick(void);

// This thread's lines are dropped from now on, or no more: around what is known to be said without end.
void neb_log_hush(bool on);

// The newest line of error level of this process, for a report that must name the cause; "" when there was none.
void neb_last_error(char *out, size_t cap);

void neb_log(enum neb_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define neb_warn(...)  neb_log(NEB_LOG_WARN, __VA_ARGS__)
#define neb_info(...)  neb_log(NEB_LOG_INFO, __VA_ARGS__)
#define neb_debug(...) neb_log(NEB_LOG_DEBUG, __VA_ARGS__)

#endif
