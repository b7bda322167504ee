// SPDX-License-Identifier: Apache-2.0
// nebula quickstart: starts agent/lib/python/nebula/quickstart.py, which runs this program. The
// text comes from a Python package, so Python has to find it.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/cli/cmd_options.h"
#include "agent/proc/child.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options {
    struct agent_options common;
    const char *out, *cache;
    uint64_t steps, seed;
};

static const struct options preset = {.out = "out/quickstart", .steps = 200, .seed = 1};

// The script in the build folder's tree, in an installation, or in a wheel.
static enum neb_status find_script(char *program, char *out, size_t cap) {
    static const char *const places[] = {"../agent/lib/python", "../lib/nebula/python", "../.."};
    char folder[NEB_PATH_MAX];
    NEB_TRY(agent_self_path(program, NEB_PATH_MAX));
    neb_path_folder(folder, sizeof folder, program);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(out, cap, "%s/%s/nebula/quickstart.py", folder, places[i]) < (int)cap &&
            access(out, R_OK) == 0)
            return NEB_OK;
    return neb_fail(NEB_ERR_NOT_FOUND, "nebula/quickstart.py is not where %s is installed", folder);
}

static enum neb_status start(const struct options *o) {
    char program[NEB_PATH_MAX], script[NEB_PATH_MAX], steps[24], seed[24];
    const char *python = getenv("NEBULA_PYTHON");
    python = python && *python ? python : "python3";
    NEB_TRY(find_script(program, script, sizeof script));
    snprintf(steps, sizeof steps, "%llu", (unsigned long long)o->steps);
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)o->seed);
    const char *argv[] = {python, script, program, o->out, steps, seed, o->cache, NULL};
    execvp(python, (char *const *)(uintptr_t)argv);
    return neb_fail_errno("cannot start %s (NEBULA_PYTHON names another Python)", python);
}

static int run(void *options) { return agent_exit_of(start(options)); }

const struct agent_command cmd_quickstart = {
    .name = "quickstart",
    .summary = "train a small model on two clusters of this machine",
    .options =
        (const struct agent_option[]){
            OPT_TEXT("out", 'o', "DIR", "for the results (default out/quickstart)", AT(out)),
            OPT_WHOLE("steps", 0, "N", "inner steps of each cluster (default 200)", AT(steps), 1,
                      1000000),
            OPT_WHOLE("seed", 0, "N", "seed of the parameters and the data order (default 1)",
                      AT(seed), 0, 1000000),
            OPT_TEXT("cache", 0, "DIR", "for the text (default ~/.cache/nebula)", AT(cache)),
            OPT_END},
    .doc = "Trains one model on two clusters with text in four languages, three times: each\n"
           "cluster alone, both federated over 100 Mbit/s and 80 ms, and synchronous. Prints the\n"
           "held-out losses.\vThe text is the messages of Django: pip install "
           "'nebula-federation[quickstart]', or the Debian package python3-django.",
    .size = sizeof(struct options),
    .preset = &preset,
    .run = run};
