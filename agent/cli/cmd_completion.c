// SPDX-License-Identifier: Apache-2.0
// nebula completion: shell completion and the manual page, both made from the tables of all
// commands and the topics of `nebula help`. Packages run it at build time.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/cli/cmd_options.h"
#include "agent/cli/help.h"

#include <stdlib.h>
#include <string.h>

// Prints the names of all commands that `nebula help` lists.
static void print_commands(void) {
    for (const struct agent_command *const *c = agent_commands; *c; c++)
        if ((*c)->summary)
            printf("%s ", (*c)->name);
}

// Prints the words that `nebula help` accepts.
static void print_topics(void) {
    for (const struct agent_topic *t = agent_topics; t->name; t++)
        printf("%s ", t->name);
    print_commands();
}

// Prints each long option after `before`.
static void print_options(const struct agent_command *c, const char *before) {
    for (const struct agent_option *o = c->options; o->name; o++)
        if (o->help || o->sets == AGENT_OTHER_NAME)
            printf("%s%s", before, o->name);
    printf("%shelp%susage", before, before);
}

static void bash(void) {
    puts("_nebula() {\n    local word=${COMP_WORDS[COMP_CWORD]} words\n    if ((COMP_CWORD == 1)); "
         "then\n        words=\"");
    print_commands();
    printf("help version\"\n    elif [[ ${COMP_WORDS[1]} == help ]]; then\n        words=\"");
    print_topics();
    puts("\"\n    else\n        case ${COMP_WORDS[1]} in");
    for (const struct agent_command *const *c = agent_commands; *c; c++)
        if ((*c)->summary) {
            printf("        %s) words=\"", (*c)->name);
            print_options(*c, " --");
            puts("\" ;;");
        }
    puts("        esac\n        [[ $word == -* ]] || words=\n    fi\n    COMPREPLY=($(compgen -W "
         "\"$words\" -- \"$word\"))\n}\n"
         "complete -o default -F _nebula nebula");
}

static void fish(void) {
    for (const struct agent_command *const *c = agent_commands; *c; c++) {
        if (!(*c)->summary)
            continue;
        printf("complete -c nebula -n __fish_use_subcommand -f -a %s\n", (*c)->name);
        printf("complete -c nebula -n '__fish_seen_subcommand_from %s'", (*c)->name);
        print_options(*c, " -l ");
        putchar('\n');
    }
    fputs("complete -c nebula -n __fish_use_subcommand -f -a 'help version'\n"
          "complete -c nebula -n '__fish_seen_subcommand_from help' -f -a '",
          stdout);
    print_topics();
    puts("'");
}

// Escapes text for troff: a backslash, and a dot or quote at the start of a line, would be
// commands.
static void troff(const char *s) {
    bool bol = true;
    for (; *s; s++) {
        if (bol && (*s == '.' || *s == '\''))
            fputs("\\&", stdout);
        if (*s == '\\')
            fputs("\\e", stdout);
        else if (*s == '-')
            fputs("\\-", stdout);
        else
            putchar(*s);
        bol = *s == '\n';
    }
}

// The output of --help, in troff.
static enum neb_status man_command(const struct agent_command *c) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return neb_fail_errno("the help of nebula %s", c->name);
    agent_command_help(c, f);
    bool good = fclose(f) == 0;
    if (good)
        troff(text);
    free(text);
    return good ? NEB_OK : neb_fail_errno("the help of nebula %s", c->name);
}

static enum neb_status man(void) {
    NEB_ASSERT(setenv("ARGP_HELP_FMT", "rmargin=200", 1) == 0); // troff breaks the lines
    printf(
        ".TH NEBULA 1 \"\" \"nebula %s\" \"User Commands\"\n.SH NAME\nnebula \\- train one model "
        "on several clusters\n.SH SYNOPSIS\n.B nebula\n.I COMMAND\n[\\fIARGUMENTS\\fR]\n.SH EXIT "
        "STATUS\n0: done. 1: failed. 2: wrong command line or file. 3: stopped on request after a "
        "checkpoint. 4: done, but a report is missing (see nebula help files).\n.SH COMMANDS\n",
        NEBULA_VERSION);
    for (const struct agent_command *const *c = agent_commands; *c; c++) {
        if (!(*c)->summary)
            continue;
        printf(".SS \"nebula %s\"\n", (*c)->name);
        troff((*c)->summary);
        puts("\n.PP\n.nf");
        NEB_TRY(man_command(*c));
        puts(".fi");
    }
    puts(".SH TOPICS");
    for (const struct agent_topic *t = agent_topics; t->name; t++) {
        printf(".SS \"nebula help %s\"\n.nf\n", t->name);
        troff(t->text);
        puts(".fi");
    }
    return NEB_OK;
}

// Writes DIR/nebula-COMMAND.1 for each command.
static enum neb_status manuals(const char *dir) {
    NEB_ASSERT(setenv("ARGP_HELP_FMT", "rmargin=200", 1) == 0);
    NEB_TRY(neb_fs_mkdirs(dir, 0755));
    for (const struct agent_command *const *at = agent_commands; *at; at++) {
        const struct agent_command *c = *at;
        char path[NEB_PATH_MAX];
        if (!c->summary)
            continue;
        snprintf(path, sizeof path, "%s/nebula-%s.1", dir, c->name);
        if (!freopen(path, "we", stdout))
            return neb_fail_errno("cannot write %s", path);
        printf(".TH NEBULA-%s 1 \"\" \"nebula %s\" \"User Commands\"\n.SH NAME\nnebula-%s \\- ",
               c->name, NEBULA_VERSION, c->name);
        troff(c->summary);
        puts("\n.SH SYNOPSIS AND OPTIONS\n.nf");
        NEB_TRY(man_command(c));
        puts(".fi\n.SH SEE ALSO\n.BR nebula (1)");
        if (fflush(stdout) != 0)
            return neb_fail_errno("cannot write %s", path);
    }
    return NEB_OK;
}

static int run(void *options) {
    const struct agent_options *o = options;
    const char *what = o->args[0];
    if (!strcmp(what, "man"))
        return agent_exit_of(man());
    if (!strcmp(what, "manuals"))
        return agent_exit_of(manuals(o->args[1]));
    if (!strcmp(what, "zsh"))
        puts("#compdef nebula\nautoload -U +X bashcompinit && bashcompinit");
    (strcmp(what, "fish") ? bash : fish)();
    return AGENT_EXIT_OK;
}

const struct agent_command cmd_completion = {
    .name = "completion",
    .summary = "print shell completion or the manual page",
    .options = (const struct agent_option[]){OPT_END},
    .arguments = "bash|zsh|fish|man\nmanuals DIR",
    .doc =
        "Prints completion for a shell: source <(nebula completion bash). man: the manual page.\n"
        "manuals: a manual page for each command, into DIR.",
    .least = 1,
    .most = 2,
    .actions =
        (const struct agent_action[]){
            {"bash", 1}, {"zsh", 1}, {"fish", 1}, {"man", 1}, {"manuals", 2}, {0}},
    .run = run};
