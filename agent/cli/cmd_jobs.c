// SPDX-License-Identifier: Apache-2.0
// nebula jobs, stop, resume, rejoin, forget and logs.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/plain.h"
#include "agent/cli/cmd_options.h"
#include "agent/job/json.h"
#include "agent/show/progress.h"
#include "agent/show/watch.h"
#include "security/identity.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int list_jobs(void *options) {
    const struct agent_options *o = options;
    struct agent_ipc_msg m = {0};
    json_t *j;
    size_t i;
    if (agent_ask(o->home, json_pack("{s:s}", "op", "jobs"), &m) != NEB_OK)
        return agent_json_exit(o->json, AGENT_EXIT_FAILED);
    if (!json_is_array(json_object_get(m.head, "jobs"))) {
        enum neb_status st =
            neb_fail(NEB_ERR_FORMAT, "%s",
                     agent_ipc_str(&m, "text", "the agent's answer is not a list of jobs"));
        agent_ipc_msg_clear(&m);
        return agent_json_exit(o->json, agent_exit_of(st));
    }
    if (o->json) {
        agent_json_print(json_object_get(m.head, "jobs"), JSON_COMPACT);
    } else {
        printf("%-17s %-20s %-9s %-12s %10s %10s\n", "ID", "JOB", "STATE", "SUBMITTED", "SENT",
               "RECEIVED");
        json_array_foreach(json_object_get(m.head, "jobs"), i, j) {
            char sent[32], recv[32];
            const char *home = json_string_value(json_object_get(j, "home")),
                       *why = json_string_value(json_object_get(j, "why"));
            // The beginning of an id is enough for all commands.
            printf("%-17.16s %-20s %-9s %-12s %10s %10s\n",
                   json_string_value(json_object_get(j, "id")),
                   json_string_value(json_object_get(j, "job")),
                   json_string_value(json_object_get(j, "state")), home && *home ? home : "here",
                   agent_human_bytes(json_number_value(json_object_get(j, "sent_bytes")), sent,
                                     sizeof sent),
                   agent_human_bytes(json_number_value(json_object_get(j, "recv_bytes")), recv,
                                     sizeof recv));
            if (why && *why)
                printf("  held: %s\n", why);
        }
    }
    agent_ipc_msg_clear(&m);
    return AGENT_EXIT_OK;
}

const struct agent_command cmd_jobs = {
    .name = "jobs",
    .summary = "list the jobs that this agent knows",
    .options = (const struct agent_option[]){OPT_HOME("home of the agent"),
                                             OPT_JSON("machine-readable output"), OPT_END},
    .doc = "Lists the jobs in the ledger of this agent, ended ones too. For states, and what is "
           "kept: nebula help operating.",
    .run = list_jobs};

// Sends an order for a job to the agent, and prints the answer.
static int order(const char *op, const struct agent_options *o) {
    struct agent_ipc_msg m = {0};
    if (agent_ask(o->home, json_pack("{s:s,s:s}", "op", op, "job", o->args[0]), &m) != NEB_OK)
        return AGENT_EXIT_FAILED;
    bool ok = json_is_true(json_object_get(m.head, "ok"));
    char text[1024];
    snprintf(text, sizeof text, "%s", agent_ipc_str(&m, "text", ""));
    neb_plain(text, false);
    if (ok)
        puts(text);
    else
        fprintf(stderr, "nebula %s: %s\n", op, text);
    agent_ipc_msg_clear(&m);
    return ok ? AGENT_EXIT_OK : AGENT_EXIT_FAILED;
}

static int stop(void *options) { return order("stop", options); }
static int resume(void *options) { return order("resume", options); }
static int rejoin(void *options) { return order("rejoin", options); }
static int forget(void *options) { return order("forget", options); }

static const struct agent_option home_only[] = {OPT_HOME("home of the agent"), OPT_END};
static const char no_id[] = "give the id that nebula jobs shows";

const struct agent_command cmd_stop = {
    .name = "stop",
    .summary = "stop a job after a checkpoint",
    .options = home_only,
    .arguments = "JOB-ID",
    .doc = "Stops a job on all its clusters after a checkpoint. The first characters of the id are "
           "enough.",
    .least = 1,
    .missing = no_id,
    .run = stop};

const struct agent_command cmd_resume = {
    .name = "resume",
    .summary = "continue a stopped job",
    .options = home_only,
    .arguments = "JOB-ID",
    .doc = "Continues a stopped, failed or held job from its last checkpoint, on all its clusters. "
           "A job whose submitter is no longer a member continues only at this site. The first "
           "characters of the id are enough. To write the run's files too, use nebula pretrain "
           "--resume.",
    .least = 1,
    .missing = no_id,
    .run = resume};

const struct agent_command cmd_rejoin = {
    .name = "rejoin",
    .summary = "continue a job from the state of the other clusters",
    .options = home_only,
    .arguments = "JOB-ID",
    .doc =
        "Gives up what this cluster has of a job that does not run, and continues from the state "
        "of the other clusters, as after the loss of a disk. Use it after members have diverged, "
        "when the equivocator is revoked: all other clusters of the job must have one history. "
        "They continue the job too. HOME/jobs/ID/former keeps the old checkpoints.",
    .least = 1,
    .missing = no_id,
    .run = rejoin};

const struct agent_command cmd_forget = {
    .name = "forget",
    .summary = "remove what this site has of an ended job",
    .options = home_only,
    .arguments = "JOB-ID",
    .doc = "Removes what this site has of an ended job: its folder in HOME/jobs with all "
           "checkpoints, its updates, and its rounds in the ledger. The results of nebula pretrain "
           "in --out stay, and so does what other sites have. The job cannot continue here, and a "
           "cluster that was away gets nothing of it from this site.",
    .least = 1,
    .missing = no_id,
    .run = forget};

struct options {
    struct agent_options common;
    bool follow;
    int lines, rank; // rank -1: choose_log chooses
};

// In a mesh, the agent talks to rank 0, so its log is shown. worker.log is shown if it is newer (a
// launcher says there why ranks do not start), or if there is no other (a single rank).
static enum neb_status choose_log(const struct options *o, const char *dir, char *out, size_t cap) {
    char name[32], rank0[NEB_PATH_MAX];
    struct stat a, b;
    if (o->rank >= 0) {
        snprintf(name, sizeof name, "rank-%d.log", o->rank);
        return neb_path(out, cap, dir, name);
    }
    NEB_TRY(neb_path(rank0, sizeof rank0, dir, "rank-0.log"));
    NEB_TRY(neb_path(out, cap, dir, "worker.log"));
    if (stat(rank0, &a) == 0 && (stat(out, &b) != 0 || a.st_mtime >= b.st_mtime))
        return neb_path(out, cap, dir, "rank-0.log");
    return NEB_OK;
}

// Finds the folder under jobs/ whose name begins with the id. An id is hexadecimal, so it cannot
// name another file.
static enum neb_status find_log(const struct options *l, char *out, size_t cap) {
    const struct agent_options *o = &l->common;
    char home[NEB_PATH_MAX], jobs[NEB_PATH_MAX], dir[NEB_PATH_MAX], names[400] = "";
    char name[NAME_MAX + 1] = "";
    int hits = 0;
    const char *id = o->args[0];
    if (!*id || strspn(id, "0123456789abcdef") != strlen(id))
        return neb_fail(NEB_ERR_INVALID, "\"%s\" is not a job id (nebula jobs lists them)", id);
    NEB_TRY(sec_home(o->home, home, sizeof home));
    NEB_TRY(neb_path(jobs, sizeof jobs, home, "jobs"));
    DIR *d = opendir(jobs);
    if (!d && errno == ENOENT)
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "there is no %s: no agent has run with this home (give --home DIR)", jobs);
    if (!d)
        return neb_fail_errno("cannot read %s", jobs);
    for (struct dirent *e; (e = readdir(d));)
        if (!strncmp(e->d_name, id, strlen(id))) {
            size_t n = strlen(names);
            snprintf(name, sizeof name, "%s", e->d_name);
            snprintf(names + n, sizeof names - n, "%s%s", hits++ ? ", " : "", name);
        }
    closedir(d);
    if (hits != 1)
        return neb_fail(NEB_ERR_NOT_FOUND, "%s has %s job whose id begins with %s%s%s", jobs,
                        hits ? "more than one" : "no", id, hits ? ": " : "", names);
    NEB_TRY(neb_path(dir, sizeof dir, jobs, name));
    return choose_log(l, dir, out, cap);
}

// Seeks to the beginning of the last `lines` lines.
static void seek_tail(FILE *f, long lines) {
    fseek(f, 0, SEEK_END);
    long at = ftell(f);
    for (long seen = 0; at > 0; at--) {
        fseek(f, at - 1, SEEK_SET);
        if (fgetc(f) == '\n' && ++seen > lines)
            break;
    }
    fseek(f, at, SEEK_SET);
}

// A worker, or a program that it loads, wrote these lines: their control characters must not reach
// the terminal.
static void show_log(FILE *f, bool follow) {
    char block[8192];
    size_t kept = 0; // bytes of a character whose end is not read yet
    for (;;) {
        size_t n = fread(block + kept, 1, sizeof block - kept, f), have = kept + n;
        bool last = !n && !follow;
        size_t done = neb_plain_text(block, have, last);
        if (fwrite(block, 1, done, stdout) < done || fflush(stdout) != 0 || last)
            return; // the end, or nobody reads the output
        kept = have - done;
        memmove(block, block + done, kept);
        if (!n) {
            clearerr(f);
            neb_sleep(200 * NEB_MS);
        }
    }
}

static int show_logs(void *options) {
    const struct options *o = options;
    char path[NEB_PATH_MAX];
    enum neb_status st = find_log(o, path, sizeof path);
    if (st != NEB_OK)
        return agent_exit_of_input(st);
    FILE *f = fopen(path, "r");
    if (!f)
        return agent_exit_of(neb_fail_errno("cannot open %s", path));
    seek_tail(f, o->lines);
    show_log(f, o->follow);
    fclose(f);
    return AGENT_EXIT_OK;
}

static const struct agent_option log_table[] = {
    OPT_HOME("home of the agent"),
    OPT_FLAG("follow", 'f', "show new lines until interrupted", AT(follow)),
    OPT_INT("lines", 'n', "N", "only the last N lines (default 50)", AT(lines), 0, 1000000),
    OPT_INT("rank", 'r', "N", "log of rank N of a mesh (default: rank 0, or the launcher)",
            AT(rank), 0, 1023),
    OPT_END};

const struct agent_command cmd_logs = {
    .name = "logs",
    .summary = "show the log of a job's worker",
    .options = log_table,
    .arguments = "JOB-ID",
    .doc = "Shows the log of a job's worker on this machine. The agent need not run. The first "
           "characters of the id are enough.",
    .least = 1,
    .missing = no_id,
    .size = sizeof(struct options),
    .preset = &(const struct options){.lines = 50, .rank = -1},
    .run = show_logs};
