// SPDX-License-Identifier: Apache-2.0
// The tables of all commands: names and letters are unique, every listed command explains itself,
// and --help shows each option that is not hidden.
#include "agent/cli/commands.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool is_letter(const struct agent_command *c, int i, int letter) {
    return c->options[i].letter == letter;
}

static void test_options_are_unique(void **state) {
    (void)state;
    for (const struct agent_command *const *c = agent_commands; *c; c++) {
        if ((*c)->run_raw)
            continue;
        for (int i = 0; (*c)->options[i].name; i++) {
            const struct agent_option *o = &(*c)->options[i];
            for (int k = 0; k < i; k++)
                if (!strcmp(o->name, (*c)->options[k].name) ||
                    (o->letter && is_letter(*c, k, o->letter)))
                    fail_msg("nebula %s has two options --%s or -%c", (*c)->name, o->name,
                             o->letter ? o->letter : ' ');
            if (!strcmp(o->name, "help") || !strcmp(o->name, "usage") || is_letter(*c, i, '?'))
                fail_msg("nebula %s: --%s hides an option of all commands", (*c)->name, o->name);
            if ((o->sets == AGENT_FLAG) != !o->arg && o->sets != AGENT_OTHER_NAME)
                fail_msg("nebula %s: --%s is a flag with a value, or has none", (*c)->name,
                         o->name);
            if (o->take && !o->expected)
                fail_msg("nebula %s: the error of --%s says nothing", (*c)->name, o->name);
        }
    }
}

static void test_numbers_have_bounds(void **state) {
    (void)state;
    for (const struct agent_command *const *c = agent_commands; *c; c++)
        for (const struct agent_option *o = (*c)->run_raw ? NULL : (*c)->options; o && o->name; o++)
            if (o->sets == AGENT_INT || o->sets == AGENT_WHOLE || o->sets == AGENT_REAL ||
                o->sets == AGENT_SIZE)
                if (o->min >= o->max)
                    fail_msg("nebula %s: --%s takes no value", (*c)->name, o->name);
}

static void test_help_shows_all(void **state) {
    (void)state;
    for (const struct agent_command *const *c = agent_commands; *c; c++) {
        char *text = NULL, name[80];
        size_t n = 0;
        if ((*c)->run_raw)
            continue;
        assert_non_null((*c)->doc);
        FILE *f = open_memstream(&text, &n);
        assert_non_null(f);
        agent_command_help(*c, f);
        fclose(f);
        for (const struct agent_option *o = (*c)->options; o->name; o++) {
            snprintf(name, sizeof name, "--%s", o->name);
            bool shown = strstr(text, name) != NULL,
                 hidden = !o->help && o->sets != AGENT_OTHER_NAME;
            if (shown == hidden)
                fail_msg("nebula %s --help: %s", (*c)->name, name);
        }
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_are_unique),
        cmocka_unit_test(test_numbers_have_bounds),
        cmocka_unit_test(test_help_shows_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
