#include "agent/commands.h"

#include <stddef.h>

const struct agent_command agent_commands[] = {
    {NULL, NULL, NULL},
};
