// SPDX-License-Identifier: Apache-2.0
// Topics of `nebula help` that are not commands. The manual page has them too.
#ifndef AGENT_HELP_H
#define AGENT_HELP_H
#include <stdbool.h>
#include <stdio.h>

struct agent_topic {
    const char *name;
    const char *summary; // one line
    const char *text;    // ends with a newline
};

extern const struct agent_topic agent_topics[]; // ends with name NULL

const struct agent_topic *agent_topic(const char *name); // NULL: there is none
// Prints all commands and topics, each with its summary.
void agent_help_list(FILE *f);
// Answers `nebula WORD`, or with `topics` `nebula help WORD`, for an unknown word: names the
// nearest one. Returns AGENT_EXIT_USAGE.
int agent_help_unknown(const char *word, bool topics);

#endif
