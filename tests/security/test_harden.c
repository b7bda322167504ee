// What an agent does about itself before it reads a key: no core dumps, and nobody of the same user may attach.
#include "agent/harden.h"
#include "security/identity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>

#include <cmocka.h>

static void test_not_dumpable(void **state) {
    (void)state;
    assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0);
    agent_harden();
    assert_int_equal(prctl(PR_GET_DUMPABLE), 0);
    assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0); // commands that hold keys, too
    assert_int_equal(sec_init(), NEB_OK);
    assert_int_equal(prctl(PR_GET_DUMPABLE), 0);
}

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

int main(void) {
#ifdef SANITIZED
    (void)test_not_dumpable;
    puts("the leak check of AddressSanitizer attaches to the process, so dumps stay on in this "
         "build");
    return 77;
#else
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_not_dumpable)};
    return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
