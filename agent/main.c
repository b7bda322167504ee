// nebula: one binary, a subcommand per task. Each subcommand is agent/cmd_*.c.
#include "agent/commands.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void usage(FILE *f) {
    fputs("usage: nebula COMMAND [ARGUMENTS]\n\n", f);
    for (const struct agent_command *c = agent_commands; c->name; c++)
        if (c->summary)
            fprintf(f, "  %-10s %s\n", c->name, c->summary);
    fputs("\n'nebula COMMAND --help' explains a command.\n", f);
}

int main(int argc, char **argv) {
    argp_err_exit_status = AGENT_EXIT_USAGE; // argp's own is 64
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version")) {
        puts("nebula " NEBULA_VERSION);
        return 0;
    }
    for (const struct agent_command *c = agent_commands; c->name; c++)
        if (!strcmp(argv[1], c->name)) {
            char name[32]; // what usage and errors begin with
            snprintf(name, sizeof name, "nebula %s", c->name);
            argv[1] = name;
            if (c->home)
                umask(077);
            return c->run(argc - 1, argv + 1);
        }
    fprintf(stderr, "nebula: unknown command '%s'\n", argv[1]);
    usage(stderr);
    return 2;
}
