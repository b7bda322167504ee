// SPDX-License-Identifier: Apache-2.0
// What an agent does for itself before it reads a key: no core dumps, no debuggers of the same
// user, and keys in locked memory, or a warning.
#include "agent/base/log.h"
#include "agent/proc/harden.h"
#include "security/cert.h"
#include "security/identity.h"
#include "security/locked.h"
#include "tests/testing.h"

#include <linux/capability.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void test_not_dumpable(void **state) {
    (void)state;
    assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0);
    agent_harden();
    assert_int_equal(prctl(PR_GET_DUMPABLE), 0);
    assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0); // commands that hold keys do it too
    assert_int_equal(sec_init(), NEB_OK);
    assert_int_equal(prctl(PR_GET_DUMPABLE), 0);
}

// ---- locked memory, in a process with little of it ----------------------------------------------

enum { PAGE = 4096, PAGES = 16, PIECES = 2 * PAGES };
static unsigned said; // number of correct warnings that keys may be swapped

static void count(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    said += strstr(text, "may be swapped") && strstr(text, "limit 64 KiB") &&
            strstr(text, "LimitMEMLOCK") && strstr(text, "ulimit -l");
}

// Lowers the limit. Root's processes ignore it unless they drop this capability.
static bool few_pages(void) {
    struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct c[2];
    struct rlimit r = {PAGE, PAGES * PAGE};
    if (syscall(SYS_capget, &h, c) != 0)
        return false;
    c[0].effective &= ~(1u << CAP_IPC_LOCK);
    return syscall(SYS_capset, &h, c) == 0 && setrlimit(RLIMIT_MEMLOCK, &r) == 0;
}

// The kernel's flags of the pages at p; "": the kernel does not tell.
static const char *flags_at(const void *p, char line[256]) {
    FILE *f = fopen("/proc/self/smaps", "re");
    unsigned long from, to;
    bool here = false;
    while (f && fgets(line, 256, f))
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = from <= (uintptr_t)p && (uintptr_t)p < to;
        else if (here && !strncmp(line, "VmFlags:", 8)) {
            fclose(f);
            return line;
        }
    if (f)
        fclose(f);
    return "";
}

#define NEED(x)                                                                                    \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "line %d: " #x "\n", __LINE__);                                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void lock_until_no_more(void) {
    char line[256];
    void *p[PIECES];
    NEED(few_pages());
    NEED(sec_init() == NEB_OK);
    NEED(sec_locked_limit() == PAGES * PAGE); // the soft limit was lower
    NEED(sec_locked_room(4 * PAGE) && !sec_locked_room((PAGES + 1) * PAGE));
    for (int i = 0; i < PIECES; i++) {
        NEED((p[i] = sec_locked_alloc(64))); // a page each; also works over the limit
        memset(p[i], i, 64);
        if (i == 4)
            NEED(sec_locked_all() && said == 0);
    }
    NEED(!sec_locked_all() && said == 1); // warned once
    if (*flags_at(p[0], line)) {
        NEED(strstr(flags_at(p[0], line), " lo") && strstr(line, " dd"));
        NEED(!strstr(flags_at(p[PIECES - 1], line), " lo") && strstr(line, " dd"));
    } else {
        puts("not checked: this kernel does not tell which memory is locked or left out of core "
             "dumps");
    }
    for (int i = 0; i < PIECES; i++)
        sodium_free(p[i]);
    NEED(sec_locked_room(4 * PAGE));
    _exit(0);
}

// OpenSSL's heap for keys is as large as the limit, so it does not fit beside a key.
static void openssl_cannot(void) {
    NEED(few_pages());
    NEED(sec_init() == NEB_OK);
    NEED(sec_locked_alloc(64) && sec_locked_all());
    NEED(sec_openssl_init() == NEB_OK && sec_openssl_init() == NEB_OK);
    NEED(!sec_locked_all() && said == 1);
    _exit(0);
}

static void in_child(void (*what)(void)) {
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        neb_log_set_sink(count, NULL);
        what();
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_locked(void **state) {
    (void)state;
    in_child(lock_until_no_more);
    in_child(openssl_cannot);
}

int main(void) {
#ifdef TESTING_SANITIZED
    (void)test_not_dumpable, (void)test_locked;
    puts("not checked in this build: AddressSanitizer's leak check attaches to the process, so "
         "dumps stay on, and mlock does nothing");
    return 77;
#else
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_not_dumpable),
                                       cmocka_unit_test(test_locked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
