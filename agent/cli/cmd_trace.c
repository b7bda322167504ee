// SPDX-License-Identifier: Apache-2.0
// nebula trace OUT: a run as a trace of Perfetto.
#include "agent/base/fs.h"
#include "agent/cli/cmd_options.h"
#include "agent/job/json.h"
#include "agent/show/trace.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

struct options {
    struct agent_options common; // its argument: the folder of a run
    const char *out;
};

static enum neb_status write_trace(const char *dir, FILE *f, int64_t *events) {
    char metrics[NEB_PATH_MAX], job[NEB_PATH_MAX];
    NEB_TRY(neb_path(metrics, sizeof metrics, dir, "metrics.jsonl"));
    NEB_TRY(neb_path(job, sizeof job, dir, "job.json"));
    json_t *o = json_load_file(job, 0, NULL);
    enum neb_status st = agent_trace_write(metrics, agent_json_text(o, "name", dir), f, events);
    json_decref(o);
    return st;
}

static int run(void *options) {
    const struct options *o = options;
    const char *dir = o->common.args[0];
    char path[NEB_PATH_MAX], tmp[NEB_PATH_MAX + 8];
    int64_t events = 0;
    enum neb_status st = NEB_OK;
    bool print = o->out && !strcmp(o->out, "-");
    if (print)
        return write_trace(dir, stdout, &events) == NEB_OK ? AGENT_EXIT_OK : AGENT_EXIT_FAILED;
    if (o->out)
        snprintf(path, sizeof path, "%s", o->out);
    else if (neb_path(path, sizeof path, dir, "trace.json") != NEB_OK)
        return AGENT_EXIT_FAILED;
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    FILE *f = fopen(tmp, "w");
    if (!f)
        return neb_fail_errno("cannot write %s", tmp), AGENT_EXIT_FAILED;
    st = write_trace(dir, f, &events);
    enum neb_status closed = neb_fs_close(f, path);
    st = st == NEB_OK ? closed : st;
    if (st == NEB_OK && rename(tmp, path) != 0)
        st = neb_fail_errno("cannot write %s", path);
    if (st != NEB_OK) {
        (void)unlink(tmp);
        return AGENT_EXIT_FAILED;
    }
    printf("%s: %lld events; open it at https://ui.perfetto.dev\n", path, (long long)events);
    return AGENT_EXIT_OK;
}

static const struct agent_option table[] = {
    OPT_TEXT("out", 'o', "FILE", "file of the trace, or - (default: OUT/trace.json)", AT(out)),
    OPT_END};

const struct agent_command cmd_trace = {
    .name = "trace",
    .summary = "show where the time of a run went",
    .options = table,
    .arguments = "OUT",
    .doc = "Writes a trace of a run, for Perfetto: what each cluster trained, encoded, "
           "sent, merged and waited for, and the rates of its links.\vOUT is the folder of `nebula "
           "pretrain --out`; the run may still go on. A row `wait` names the cluster or the line "
           "that training waited for; arrows lead from the send of an update to its merges.",
    .least = 1,
    .missing = "give the folder of a run",
    .size = sizeof(struct options),
    .run = run};
