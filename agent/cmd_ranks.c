// nebula ranks (internal): started by an agent.
#include "agent/base/log.h"
#include "agent/commands.h"
#include "agent/ranks.h"

#include <stdlib.h>
#include <string.h>

int cmd_ranks(int argc, char **argv) {
    int status = 0;
    char *end = NULL;
    neb_log_set_name("ranks");
    if (argc >= 3 && !strcmp(argv[1], "--step"))
        return agent_exit_of(agent_ranks_become(argv + 2));
    long n = argc >= 3 ? strtol(argv[1], &end, 10) : 0;
    if (n < 1 || n > AGENT_RANKS_MAX || *end) {
        neb_log(NEB_LOG_ERROR, "nebula ranks N PROGRAM ARGUMENTS…: is started by an agent");
        return AGENT_EXIT_USAGE;
    }
    enum neb_status st = agent_ranks_run((int)n, argv + 2, &status);
    return status ? status : agent_exit_of(st);
}
