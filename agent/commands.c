#include "agent/commands.h"

#include <stddef.h>

const struct agent_command agent_commands[] = {
    {"check", "is a job file right, and what will it do", cmd_check},
    {"data", "make a corpus from text", cmd_data},
    {NULL, NULL, NULL},
};
