#include "agent/commands.h"

#include <stddef.h>

const struct agent_command agent_commands[] = {
    {"check", "is a job file right, and what will it do", cmd_check},
    {"plan", "how long will a job take, will it fit, what would be faster", cmd_plan},
    {"pretrain", "train one model on several clusters", cmd_pretrain},
    {"agent", "run the agent of this cluster", cmd_agent},
    {"status", "show peers, links and jobs of the agent", cmd_status},
    {"stop", "stop a job after a checkpoint", cmd_stop},
    {"jobs", "list the jobs that this agent knows", cmd_jobs},
    {"resume", "go on with a stopped job", cmd_resume},
    {"logs", "show the log of a job's worker", cmd_logs},
    {"completion", "print the completion of a shell, or the manual pages", cmd_completion},
    {"eval", "held-out loss of a checkpoint", cmd_eval},
    {"generate", "continue a text with a checkpoint", cmd_generate},
    {"import", "make a checkpoint from a Hugging Face folder", cmd_import},
    {"export", "make a Hugging Face folder from a checkpoint", cmd_export},
    {"worker", NULL, cmd_worker},
    {"bench", "measure this machine", cmd_bench},
    {"data", "make a corpus from text", cmd_data},
    {"id", "print this node's identity; make its keys", cmd_id},
    {"ledger", "show or check what an agent promised and saw committed", cmd_ledger},
    {"peer", "add, list or remove the sites this node works with", cmd_peer},
    {"init", "make a federation with this node as its hub", cmd_init},
    {"invite", "print a token with which a site may join", cmd_invite},
    {"join", "join a federation with a token", cmd_join},
    {"members", "show the signed member list", cmd_members},
    {"revoke", "take a member off the list", cmd_revoke},
    {"rotate", "give this member new keys", cmd_rotate},
    {"promote", "go on without the lost one of two voters", cmd_promote},
    {NULL, NULL, NULL},
};
