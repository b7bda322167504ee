// SPDX-License-Identifier: Apache-2.0
// nebula id: the public identity of this node, made on first use.
#include "agent/base/fs.h"
#include "agent/cli/cmd_options.h"
#include "security/identity.h"

#include <string.h>

struct options {
    struct agent_options common;
    const char *name;
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    switch (key) {
    case 'n':
        if (!sec_name_valid(arg))
            argp_error(state,
                       "name '%s': expected 1 to %d characters of a-z 0-9 _ . -, the first a "
                       "letter or digit",
                       arg, SEC_NAME_MAX - 1);
        o->name = arg;
        return 0;
    default: return agent_parse_option(key, arg, state);
    }
}

// Only the identity line goes to stdout, so that it can be piped.
static enum neb_status show(const struct options *o) {
    char home[NEB_PATH_MAX], line[SEC_ID_TEXT];
    struct sec_identity *id = NULL;
    bool made, mended = false;
    enum neb_status st;
    NEB_TRY(sec_init());
    NEB_TRY(sec_home(o->common.home, home, sizeof home));
    if (o->name)
        NEB_TRY(sec_identity_mend(home, o->name, &mended));
    if (mended)
        fprintf(stderr, "wrote %s/identity again, from the keys in %s/keys\n", home, home);
    NEB_TRY(sec_identity_first(home, o->name, &id, &made));
    if (made)
        fprintf(stderr, "made new keys in %s/keys\n", home);
    if (o->name && strcmp(o->name, sec_identity_public(id)->name) != 0) {
        st = neb_fail(NEB_ERR_EXISTS,
                      "the identity in %s already has the name '%s', which peers know", home,
                      sec_identity_public(id)->name);
        goto out;
    }
    NEB_TRY_GOTO(sec_public_format(sec_identity_public(id), line, sizeof line), out);
    if (puts(line) < 0 || fflush(stdout) != 0)
        st = neb_fail_errno("stdout");
out:
    sec_identity_destroy(&id);
    return st;
}

int cmd_id(int argc, char **argv) {
    static const struct argp_option table[] = {
        AGENT_OPTION_HOME("folder of the keys"),
        {"name", 'n', "NAME", 0, "name of a new identity (default: the host's name)", 0},
        {0}};
    static const struct argp argp = {.options = table,
                                     .parser = parse_option,
                                     .doc = "Prints the public identity of this node, one line for "
                                            "the other sites. Makes its keys if there are none."};
    struct options o = {0};
    if (agent_options_parse(&argp, argc, argv, &o) != 0)
        return AGENT_EXIT_USAGE;
    return agent_exit_of_input(show(&o));
}
