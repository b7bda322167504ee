// SPDX-License-Identifier: Apache-2.0
// nebula completion: shell completion and the manual page, both made from the --help of all
// commands and the topics of `nebula help`. Packages run it at build time.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/nearest.h"
#include "agent/cli/commands.h"
#include "agent/cli/help.h"
#include "agent/proc/child.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_MAX = 16 << 10 };

// The output of `nebula COMMAND --help`. False: it cannot be run.
static bool help_of(const char *exe, const char *command, char out[HELP_MAX]) {
    char line[2 * NEB_PATH_MAX];
    snprintf(line, sizeof line, "LC_ALL=C ARGP_HELP_FMT=rmargin=200 '%s' %s --help 2>/dev/null",
             exe, command);
    FILE *f = strchr(exe, '\'') ? NULL : popen(line, "r");
    size_t n = f ? fread(out, 1, HELP_MAX - 1, f) : 0;
    out[n] = 0;
    return f && pclose(f) == 0 && n > 0;
}

// Calls `each` for every long option in a help text, without its dashes.
static void options_of(const char *help, void (*each)(const char *name, size_t n)) {
    for (const char *p = help; (p = strstr(p, "--")); p += 2) {
        size_t n = strspn(p + 2, "abcdefghijklmnopqrstuvwxyz-0123456789");
        bool in_table = p > help && p[-1] == ' ';
        const char *bol = p;
        while (bol > help && bol[-1] != '\n')
            bol--;
        // An option stands at the beginning of its line, or after its letter. Aliases follow:
        // "--home=DIR, --dir=DIR".
        bool alias = p - bol >= 8 && p - bol < 29 && p[-2] == ',' && bol[strspn(bol, " ")] == '-';
        if (n && in_table && (p - bol < 8 || alias))
            each(p + 2, n);
    }
}

static void say_word(const char *name, size_t n) { printf(" --%.*s", (int)n, name); }
static void say_fish(const char *name, size_t n) { printf(" -l %.*s", (int)n, name); }

// The words that `nebula help` accepts.
static void print_topics(void) {
    for (const struct agent_topic *t = agent_topics; t->name; t++)
        printf("%s ", t->name);
    for (const struct agent_command *c = agent_commands; c->name; c++)
        if (c->summary)
            printf("%s ", c->name);
}

static void bash(const char *exe) {
    static char help[HELP_MAX];
    puts("_nebula() {\n    local word=${COMP_WORDS[COMP_CWORD]} words\n    if ((COMP_CWORD == 1)); "
         "then\n        words=\"");
    for (const struct agent_command *c = agent_commands; c->name; c++)
        if (c->summary)
            printf("%s ", c->name);
    printf("help version\"\n    elif [[ ${COMP_WORDS[1]} == help ]]; then\n        words=\"");
    print_topics();
    puts("\"\n    else\n        case ${COMP_WORDS[1]} in");
    for (const struct agent_command *c = agent_commands; c->name; c++)
        if (c->summary && help_of(exe, c->name, help)) {
            printf("        %s) words=\"", c->name);
            options_of(help, say_word);
            puts("\" ;;");
        }
    puts("        esac\n        [[ $word == -* ]] || words=\n    fi\n    COMPREPLY=($(compgen -W "
         "\"$words\" -- \"$word\"))\n}\n"
         "complete -o default -F _nebula nebula");
}

static void fish(const char *exe) {
    static char help[HELP_MAX];
    for (const struct agent_command *c = agent_commands; c->name; c++) {
        if (!c->summary)
            continue;
        printf("complete -c nebula -n __fish_use_subcommand -f -a %s\n", c->name);
        if (help_of(exe, c->name, help)) {
            printf("complete -c nebula -n '__fish_seen_subcommand_from %s'", c->name);
            options_of(help, say_fish);
            putchar('\n');
        }
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

static int man(const char *exe) {
    static char help[HELP_MAX];
    printf(
        ".TH NEBULA 1 \"\" \"nebula %s\" \"User Commands\"\n.SH NAME\nnebula \\- train one model "
        "on several clusters\n.SH SYNOPSIS\n.B nebula\n.I COMMAND\n[\\fIARGUMENTS\\fR]\n.SH EXIT "
        "STATUS\n0: done. 1: failed. 2: wrong command line or file. 3: stopped on request after a "
        "checkpoint. 4: done, but a report is missing (see nebula help files).\n.SH COMMANDS\n",
        NEBULA_VERSION);
    for (const struct agent_command *c = agent_commands; c->name; c++) {
        if (!c->summary)
            continue;
        printf(".SS \"nebula %s\"\n", c->name);
        troff(c->summary);
        puts("\n.PP\n.nf");
        if (!help_of(exe, c->name, help)) {
            neb_log(NEB_LOG_ERROR, "nebula %s --help failed", c->name);
            return AGENT_EXIT_FAILED;
        }
        troff(help);
        puts(".fi");
    }
    puts(".SH TOPICS");
    for (const struct agent_topic *t = agent_topics; t->name; t++) {
        printf(".SS \"nebula help %s\"\n.nf\n", t->name);
        troff(t->text);
        puts(".fi");
    }
    return AGENT_EXIT_OK;
}

int cmd_completion(int argc, char **argv) {
    char exe[NEB_PATH_MAX];
    const char *what = argc == 2 ? argv[1] : "";
    if (!strcmp(what, "--help")) {
        puts("Usage: nebula completion bash|zsh|fish|man\n\n"
             "Prints completion for a shell: source <(nebula completion bash). man: the manual "
             "page.");
        return AGENT_EXIT_OK;
    }
    if (agent_self_path(exe, sizeof exe) != NEB_OK)
        return AGENT_EXIT_FAILED;
    if (!strcmp(what, "zsh"))
        puts("#compdef nebula\nautoload -U +X bashcompinit && bashcompinit");
    if (!strcmp(what, "bash") || !strcmp(what, "zsh"))
        bash(exe);
    else if (!strcmp(what, "fish"))
        fish(exe);
    else if (!strcmp(what, "man"))
        return man(exe);
    else {
        const char *meant = neb_nearest(what, (const char *[]){"bash", "zsh", "fish", "man"}, 4);
        fprintf(stderr, "usage: nebula completion bash|zsh|fish|man%s%s%s\n",
                meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
        return AGENT_EXIT_USAGE;
    }
    return AGENT_EXIT_OK;
}
