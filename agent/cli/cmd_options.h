// SPDX-License-Identifier: Apache-2.0
// Shared by several commands: --home, --json, one argument; numbers.
#ifndef AGENT_CMD_OPTIONS_H
#define AGENT_CMD_OPTIONS_H
#include "agent/cli/commands.h"

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

enum agent_takes { AGENT_TAKES_NOTHING, AGENT_TAKES_ONE, AGENT_MAY_TAKE_ONE };

struct agent_options {
    enum agent_takes takes; // set before parsing; other arguments give the usage
    const char *home;       // NULL: the default
    const char *arg;        // NULL: none
    bool json;
};

// argp_parse, but an unknown option gets a suggestion. Not 0: the error is printed.
NEB_MUST_CHECK error_t agent_options_parse(const struct argp *argp, int argc, char **argv,
                                           void *input);
// For a first argument that is not one of known[0..n-1]: argp_error, with the nearest one and the
// whole list.
void agent_action_refuse(const struct argp_state *state, const char *given,
                         const char *const *known, size_t n);

// An argp parser whose input is a struct agent_options, or a struct that begins with one. A
// command's own parser calls it as its last case.
error_t agent_parse_option(int key, char *arg, struct argp_state *state);

// The number in `arg` (agent/base/number.h). If it is no number or not in [min, max], argp_error
// names option, value and bounds and ends the program with AGENT_EXIT_USAGE. size: "4096", "200M",
// "1.5GiB".
uint64_t agent_option_whole(const struct argp_state *state, int key, const char *arg, uint64_t min,
                            uint64_t max);
double agent_option_real(const struct argp_state *state, int key, const char *arg, double min,
                         double max);
uint64_t agent_option_size(const struct argp_state *state, int key, const char *arg, uint64_t min,
                           uint64_t max);
// argp_error for a value that is not `expected`.
void agent_option_refuse(const struct argp_state *state, int key, const char *arg,
                         const char *expected);

// Rows of an argp table.
#define AGENT_OPTION_HOME(what)                                                                    \
    { "home", 'H', "DIR", 0, what " (default ~/.nebula)", 0 }
#define AGENT_OPTION_DIR                                                                           \
    { "dir", 'H', NULL, OPTION_ALIAS, NULL, 0 } // the first name of --home
#define AGENT_OPTION_JSON                                                                          \
    { "json", 'j', NULL, 0, "machine-readable output", 0 }

#endif
