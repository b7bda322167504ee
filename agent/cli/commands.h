// SPDX-License-Identifier: Apache-2.0
// The subcommands of the program.
#ifndef AGENT_COMMANDS_H
#define AGENT_COMMANDS_H
#include "agent/base/exit.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct agent_command {
    const char *name;
    const char *summary;               // NULL: internal, not listed
    int (*run)(int argc, char **argv); // argv[0] is "nebula NAME"; returns enum agent_exit
    bool home; // writes into HOME: only this user may read its files, whatever the umask
};

int cmd_check(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_pretrain(int argc, char **argv);
int cmd_distill(int argc, char **argv);
int cmd_agent(int argc, char **argv);
int cmd_worker(int argc, char **argv);
int cmd_ranks(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_stop(int argc, char **argv);
int cmd_jobs(int argc, char **argv);
int cmd_resume(int argc, char **argv);
int cmd_rejoin(int argc, char **argv);
int cmd_forget(int argc, char **argv);
int cmd_logs(int argc, char **argv);
int cmd_completion(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_eval_probe(int argc, char **argv); // nebula eval --task probe
int cmd_generate(int argc, char **argv);
int cmd_import(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_id(int argc, char **argv);
int cmd_ledger(int argc, char **argv);
int cmd_peer(int argc, char **argv);
int cmd_init(int argc, char **argv);
int cmd_invite(int argc, char **argv);
int cmd_join(int argc, char **argv);
int cmd_members(int argc, char **argv);
int cmd_revoke(int argc, char **argv);
int cmd_rotate(int argc, char **argv);
int cmd_move(int argc, char **argv);
int cmd_promote(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_seal(int argc, char **argv);

extern const struct agent_command agent_commands[]; // ends with name NULL

#endif
