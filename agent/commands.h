// The subcommands of the program. Exit statuses are shared by all of them.
#ifndef AGENT_COMMANDS_H
#define AGENT_COMMANDS_H
#include "agent/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum agent_exit {
    AGENT_EXIT_OK = 0, // the command did what was asked
    AGENT_EXIT_FAILED =
        1, // it could not, or what it printed was lost (a full disk); the error was printed
    AGENT_EXIT_USAGE = 2, // bad command line or configuration
    // stopped on request after a checkpoint, or detached from agents that go on; --resume continues
    AGENT_EXIT_INTERRUPTED = 3,
    // pretrain, distill: done, but for clusters whose agents could not be reached: their reports are missing
    AGENT_EXIT_MISSING = 4,
};

static inline int agent_exit_of(enum neb_status st) {
    return st == NEB_OK ? AGENT_EXIT_OK : AGENT_EXIT_FAILED;
}

// Of a command whose NEB_ERR_INVALID is about what was typed.
static inline int agent_exit_of_input(enum neb_status st) {
    return st == NEB_ERR_INVALID ? AGENT_EXIT_USAGE : agent_exit_of(st);
}

struct agent_command {
    const char *name;
    const char *summary;               // NULL: internal, not listed
    int (*run)(int argc, char **argv); // argv[0] is "nebula NAME"; returns enum agent_exit
    bool home; // it writes into HOME: what it makes is for this user alone, whatever the umask says
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

// The checkpoint file that PATH means: a file, a folder with model.ckpt, or the newest usable one of a folder of generations.
// vault: opens sealed ones; NULL: only those in clear.
struct neb_vault;
NEB_MUST_CHECK enum neb_status agent_checkpoint_file(const struct neb_vault *vault,
                                                     const char *path, char *out, size_t cap);

extern const struct agent_command agent_commands[]; // ends with name NULL

#endif
