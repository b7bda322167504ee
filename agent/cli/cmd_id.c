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

static bool is_name(const char *name, void *options) {
    (void)options;
    return sec_name_valid(name);
}

static int run(void *options) { return agent_exit_of_input(show(options)); }

_Static_assert(SEC_NAME_MAX == 33, "the error says 32");
static const struct agent_option table[] = {
    OPT_HOME("folder of the keys"),
    OPT_CHECKED("name", 'n', "NAME", "name of a new identity (default: the host's name)", AT(name),
                is_name,
                "a name: 1 to 32 characters of a-z 0-9 _ . -, the first a letter or digit"),
    OPT_END};

const struct agent_command cmd_id = {
    .name = "id",
    .summary = "print this node's identity; make its keys",
    .options = table,
    .doc = "Prints the public identity of this node, one line for the other sites. Makes its keys "
           "if there are none.",
    .size = sizeof(struct options),
    .run = run,
    .home = true};
