// SPDX-License-Identifier: Apache-2.0
// The subcommands of the program, and their command lines.
//
// A command is a struct agent_command: its name, its options and arguments, and a function. One
// parser reads all command lines (commands.c). --help, the manual page and shell completion
// come from the same rows.
#ifndef AGENT_COMMANDS_H
#define AGENT_COMMANDS_H
#include "agent/base/exit.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum agent_value {   // what an option sets
    AGENT_NOTHING,   // the function `take` keeps the value
    AGENT_FLAG,      // bool; the option has no argument
    AGENT_TEXT,      // const char *
    AGENT_LIST,      // struct agent_list; the option may be given several times
    AGENT_INT,       // int, a whole number from min to max
    AGENT_WHOLE,     // uint64_t, a whole number from min to max
    AGENT_REAL,      // double, from min to max
    AGENT_SIZE,      // uint64_t, bytes from min to max: "4096", "200M", "1.5GiB"
    AGENT_OTHER_NAME // another name of the option in the row before
};

enum { AGENT_LIST_MAX = 64, AGENT_ARGUMENTS_MAX = 3 };

struct agent_list {
    const char *text[AGENT_LIST_MAX];
    int n;
};

struct agent_option {
    const char *name;
    int letter;       // 0: none
    const char *arg;  // name of its value in --help; NULL: it takes none
    const char *help; // NULL: --help does not show the option
    enum agent_value sets;
    size_t at; // offset in the options of the command
    uint64_t min, max;
    // Checks the value; may also keep it. False: the value is not `expected`.
    bool (*take)(const char *value, void *options);
    const char *expected;
};

// The options of every command begin with these.
struct agent_options {
    const char *home;     // NULL: the default
    const char *seal_key; // NULL: none
    bool json;
    int n; // arguments
    const char *args[AGENT_ARGUMENTS_MAX];
};

struct agent_action { // a word that may be the first argument
    const char *word;
    int n; // arguments that belong to it, the word included
};

struct agent_command {
    const char *name;
    const char *summary;                // NULL: internal, not listed
    const struct agent_option *options; // the last one has no name
    const char *arguments;              // for the usage; NULL: none
    const char *doc;                    // "\v" divides what stands before and after the options
    int least, most;                    // number of arguments; most 0: as least
    const char *missing;                // the error if there are fewer; NULL: the usage
    const struct agent_action *actions; // the last one has no word; NULL: none
    // Called when all options are read. Returns what is wrong with them; NULL: nothing.
    const char *(*check)(const void *options);
    size_t size;               // of the options; 0: those of struct agent_options
    const void *preset;        // the options before the command line is read; NULL: zeros
    int (*run)(void *options); // returns enum agent_exit
    // An internal command reads its arguments itself. argv[0] is "nebula NAME".
    int (*run_raw)(int argc, char **argv);
    bool home; // writes into HOME: only this user may read its files, whatever the umask
    // A command of several forms has a row for each. This one is meant if `meant` says so; NULL:
    // always.
    bool (*meant)(int argc, char **argv);
};

extern const struct agent_command cmd_agent, cmd_bench, cmd_check, cmd_completion, cmd_data,
    cmd_distill, cmd_doctor, cmd_eval, cmd_eval_probe, cmd_export, cmd_forget, cmd_generate, cmd_id,
    cmd_import, cmd_init, cmd_invite, cmd_jobs, cmd_join, cmd_ledger, cmd_logs, cmd_members,
    cmd_move, cmd_peer, cmd_plan, cmd_pretrain, cmd_promote, cmd_ranks, cmd_rejoin, cmd_resume,
    cmd_revoke, cmd_rotate, cmd_seal, cmd_status, cmd_stop, cmd_trace, cmd_worker;

extern const struct agent_command *const agent_commands[]; // ends with NULL

// Reads the command line and runs the command; argv[0] is "nebula NAME". Returns enum agent_exit.
// AGENT_EXIT_USAGE: the error is printed. --help ends the program.
int agent_command_run(const struct agent_command *c, int argc, char **argv);
// Prints what --help prints.
void agent_command_help(const struct agent_command *c, FILE *f);

#endif
