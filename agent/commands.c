#include "agent/commands.h"

#include <stddef.h>

const struct agent_command agent_commands[] = {
    {"data", "make a corpus from text", cmd_data},
    {NULL, NULL, NULL},
};
