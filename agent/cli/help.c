// SPDX-License-Identifier: Apache-2.0
// The list of `nebula help`, and the answer to an unknown command or topic.
#include "agent/cli/help.h"
#include "agent/base/nearest.h"
#include "agent/cli/commands.h"

#include <string.h>

const struct agent_topic *agent_topic(const char *name) {
    for (const struct agent_topic *t = agent_topics; t->name; t++)
        if (!strcmp(t->name, name))
            return t;
    return NULL;
}

void agent_help_list(FILE *f) {
    fputs("usage: nebula COMMAND [ARGUMENTS]\n\n", f);
    for (const struct agent_command *const *c = agent_commands; *c; c++)
        if ((*c)->summary)
            fprintf(f, "  %-10s %s\n", (*c)->name, (*c)->summary);
    fputs("\n'nebula help COMMAND' or 'nebula COMMAND --help' explains a command, and\n"
          "'nebula help TOPIC' a topic:\n\n",
          f);
    for (const struct agent_topic *t = agent_topics; t->name; t++)
        fprintf(f, "    %-10s %s\n", t->name, t->summary);
    fputs("\n'nebula --version [--json]' prints the version and how it was built.\n", f);
}

// What other programs call a command of ours.
static const char *other_name(const char *word) {
    static const char *const names[][2] = {
        {"train", "pretrain"}, {"run", "pretrain"}, {"start", "pretrain"}, {"submit", "pretrain"},
        {"cancel", "stop"},    {"kill", "stop"},    {"list", "jobs"},      {"ps", "jobs"},
        {"validate", "check"}, {"serve", "agent"},  {"tail", "logs"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(word, names[i][0]))
            return names[i][1];
    return NULL;
}

int agent_help_unknown(const char *word, bool topics) {
    enum { MOST = 64 };
    const char *known[MOST] = {"help", "version"};
    size_t n = 2;
    if (!topics && agent_topic(word)) {
        fprintf(stderr, "nebula: '%s' is a topic, not a command: nebula help %s\n", word, word);
        return AGENT_EXIT_USAGE;
    }
    for (const struct agent_command *const *c = agent_commands; *c && n < MOST; c++)
        if ((*c)->summary)
            known[n++] = (*c)->name;
    for (const struct agent_topic *t = agent_topics; topics && t->name && n < MOST; t++)
        known[n++] = t->name;
    const char *bare = word + strspn(word, "-"), *other = other_name(bare),
               *meant = other ? other : neb_nearest(bare, known, n);
    fprintf(stderr, "nebula: unknown command %s'%s'%s%s%s\n'nebula help' lists all commands%s.\n",
            topics ? "or topic " : "", word, meant ? "; did you mean '" : "", meant ? meant : "",
            meant ? "'?" : "", topics ? " and topics" : "");
    return AGENT_EXIT_USAGE;
}
