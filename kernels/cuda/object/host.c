// SPDX-License-Identifier: Apache-2.0
// What the kernels need of agent/base, in the object that is loaded at run time: calls go to the
// program or library that has loaded it. Neither has to export anything, so libnebula can load the
// object inside a foreign process.
#include "kernels/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXT_BYTES = 2048 };
static struct kern_device_host host;

kern_device_meet kern_cuda_meet;
void kern_cuda_meet(const struct kern_device_host *h) { host = *h; }

#pragma GCC visibility push(hidden)
#define FORMAT(text, fmt)                                                                          \
    char text[TEXT_BYTES];                                                                         \
    va_list ap;                                                                                    \
    va_start(ap, fmt);                                                                             \
    vsnprintf(text, sizeof text, fmt, ap);                                                         \
    va_end(ap)

enum neb_status neb_fail(enum neb_status s, const char *fmt, ...) {
    FORMAT(text, fmt);
    return host.fail(s, "%s", text);
}
void neb_log(enum neb_log_level level, const char *fmt, ...) {
    FORMAT(text, fmt);
    host.log(level, "%s", text);
}
void neb_assert_failed(const char *cond, const char *file, int line, const char *func) {
    host.assert_failed(cond, file, line, func);
    abort();
}
#pragma GCC visibility pop
