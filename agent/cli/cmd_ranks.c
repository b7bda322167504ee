// SPDX-License-Identifier: Apache-2.0
// nebula ranks (internal): an agent starts it.
#include "agent/base/log.h"
#include "agent/base/number.h"
#include "agent/cli/commands.h"
#include "agent/proc/ranks.h"

#include <string.h>

static int run(int argc, char **argv) {
    int status = 0;
    uint64_t n = 0;
    neb_log_set_name("ranks");
    if (argc >= 3 && !strcmp(argv[1], "--step"))
        return agent_exit_of(agent_ranks_become(argv + 2));
    if (argc < 3 || !neb_number_whole(argv[1], 1, AGENT_RANKS_MAX, &n)) {
        neb_log(NEB_LOG_ERROR, "nebula ranks: only an agent starts it");
        return AGENT_EXIT_USAGE;
    }
    enum neb_status st = agent_ranks_run((int)n, argv + 2, &status);
    return status ? status : agent_exit_of(st);
}

const struct agent_command cmd_ranks = {.name = "ranks", .run_raw = run, .home = true};
