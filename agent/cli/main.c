// SPDX-License-Identifier: Apache-2.0
// nebula: one binary with a subcommand for each task. A subcommand is in agent/cli/cmd_*.c.
#include "agent/base/build_id.h"
#include "agent/base/fs.h"
#include "agent/cli/commands.h"
#include "agent/cli/help.h"
#include "agent/show/about.h"

#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// False: out of memory.
static bool version(bool json) {
    const struct neb_build_options *b = neb_build_options();
    json_t *about = agent_about();
    char line[256], *text = about ? json_dumps(about, JSON_COMPACT) : NULL;
    if (text && json)
        puts(text);
    else if (text)
        printf("nebula %s\n%s, objects:%s%s%s%s\n", neb_build(),
               agent_about_line(about, line, sizeof line), b->mpi ? " mpi" : "",
               b->nccl ? " nccl" : "", b->cuda ? " cuda" : "",
               b->mpi || b->nccl || b->cuda ? "" : " none");
    bool printed = text != NULL;
    json_decref(about);
    free(text);
    return printed;
}

// A full disk can lose what is still in a buffer; the command has failed then. This runs at exit,
// because argp ends the program itself after --help.
static void at_exit(int status, void *unused) {
    (void)unused;
    bool lost = ferror(stdout);
    errno = 0;
    if (fflush(stdout) == 0 && !lost)
        return;
    fprintf(stderr, "nebula: standard output is incomplete: %s\n",
            errno ? strerror(errno) : "an earlier write failed");
    if (status == AGENT_EXIT_OK)
        _exit(AGENT_EXIT_FAILED);
}

int main(int argc, char **argv) {
    if (!neb_fs_std_open() || on_exit(at_exit, NULL) != 0)
        return AGENT_EXIT_FAILED;
    neb_map_watch();
    // A write beyond the limit of a file's size must fail with an error that names the file, not
    // end the program.
    if (signal(SIGXFSZ, SIG_IGN) == SIG_ERR)
        return AGENT_EXIT_FAILED;
    argp_err_exit_status = AGENT_EXIT_USAGE; // the default of argp is 64
    if (argc < 2) {
        agent_help_list(stderr);
        return AGENT_EXIT_USAGE;
    }
    bool help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help");
    if (help && argc == 2) {
        agent_help_list(stdout);
        return AGENT_EXIT_OK;
    }
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
        bool json = argc > 2 && !strcmp(argv[2], "--json");
        return version(json) ? AGENT_EXIT_OK : AGENT_EXIT_FAILED;
    }
    const char *which = argv[help ? 2 : 1];
    for (const struct agent_command *const *at = agent_commands; *at; at++) {
        const struct agent_command *c = *at;
        char name[32], option[] = "--help"; // name: how usage and errors begin
        if (strcmp(which, c->name) != 0 || (c->meant && (help || !c->meant(argc, argv))))
            continue;
        snprintf(name, sizeof name, "nebula %s", c->name);
        if (help)
            return agent_command_run(c, 2, (char *[]){name, option, NULL});
        argv[1] = name;
        if (c->home)
            umask(077);
        return agent_command_run(c, argc - 1, argv + 1);
    }
    const struct agent_topic *topic = help ? agent_topic(which) : NULL;
    if (!topic)
        return agent_help_unknown(which, help);
    fputs(topic->text, stdout);
    return AGENT_EXIT_OK;
}
