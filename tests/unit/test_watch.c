// agent/watch: what a peer names itself or says of a fault does not command the terminal that shows it.
#include "agent/watch.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <setjmp.h>

#include <cmocka.h>

static void print_text(FILE *f, const json_t *status) {
    fprintf(f, "%s\nend\n", json_string_value(status));
}

static void test_plain(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"paris, up", "paris, up\nend\n"},
        {"a\033[2Jb\r\tc\177", "a?[2Jb??c?\nend\n"},
        {"caf\xc3\xa9 \xe2\x82\xac", "caf\xc3\xa9 \xe2\x82\xac\nend\n"},
        {"x\xc2\x9b"
         "31m\xc2\xa0y",
         "x??31m\xc2\xa0y\nend\n"}, // CSI as one character
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *s = json_string(cases[i][0]);
        char *text = agent_status_text(print_text, s);
        assert_non_null(text);
        assert_string_equal(text, cases[i][1]);
        free(text);
        json_decref(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
