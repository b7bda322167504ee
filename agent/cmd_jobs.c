// nebula jobs, resume and logs.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/commands.h"
#include "agent/progress.h"
#include "agent/watch.h"
#include "security/identity.h"

#include <argp.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *home, *job;
    bool json, follow;
    long lines;
};

enum { OPT_LINES = 'n' };

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct options *o = state->input;
    char *end = NULL;
    switch (key) {
    case 'H': o->home = arg; return 0;
    case 'j': o->json = true; return 0;
    case 'f': o->follow = true; return 0;
    case OPT_LINES:
        o->lines = strtol(arg, &end, 10);
        if (!*arg || *end || o->lines < 0 || o->lines > 1000000)
            argp_error(state, "--lines is 0 to 1000000");
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num)
            argp_usage(state);
        o->job = arg;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cmd_jobs(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"home", 'H', "DIR", 0, "of the agent (default ~/.nebula)", 0},
        {"json", 'j', NULL, 0, "machine-readable output", 0},
        {0}};
    static const struct argp argp = {
        table, parse_option, NULL, "Lists the jobs that this agent's ledger knows, ended ones too.",
        NULL,  NULL,         NULL};
    struct options o = {0};
    struct agent_ipc_msg m = {0};
    json_t *j;
    size_t i;
    argp_err_exit_status = AGENT_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0 || o.job)
        return AGENT_EXIT_USAGE;
    if (agent_ask(o.home, json_pack("{s:s}", "op", "jobs"), &m) != NEB_OK)
        return AGENT_EXIT_FAILED;
    if (!json_is_array(json_object_get(m.head, "jobs"))) {
        neb_log(NEB_LOG_ERROR, "%s",
                agent_ipc_str(&m, "text", "the agent answers with something else"));
        agent_ipc_msg_clear(&m);
        return AGENT_EXIT_FAILED;
    }
    if (o.json) {
        json_dumpf(json_object_get(m.head, "jobs"), stdout, JSON_COMPACT);
        putchar('\n');
    } else {
        printf("%-34s %-20s %-9s %-12s %10s %10s\n", "ID", "JOB", "STATE", "SUBMITTED", "SENT",
               "RECEIVED");
        json_array_foreach(json_object_get(m.head, "jobs"), i, j) {
            char sent[32], recv[32];
            const char *home = json_string_value(json_object_get(j, "home"));
            printf("%-34s %-20s %-9s %-12s %10s %10s\n",
                   json_string_value(json_object_get(j, "id")),
                   json_string_value(json_object_get(j, "job")),
                   json_string_value(json_object_get(j, "state")), home && *home ? home : "here",
                   agent_human_bytes(json_number_value(json_object_get(j, "sent_bytes")), sent,
                                     sizeof sent),
                   agent_human_bytes(json_number_value(json_object_get(j, "recv_bytes")), recv,
                                     sizeof recv));
        }
    }
    agent_ipc_msg_clear(&m);
    return AGENT_EXIT_OK;
}

int cmd_resume(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"home", 'H', "DIR", 0, "of the agent (default ~/.nebula)", 0}, {0}};
    static const struct argp argp = {
        table,
        parse_option,
        "JOB-ID",
        "Goes on with a stopped or failed job from its last checkpoint, on all its clusters. The "
        "first characters of the "
        "id will do. To write the run's files again, use nebula pretrain --resume instead.",
        NULL,
        NULL,
        NULL};
    struct options o = {0};
    struct agent_ipc_msg m = {0};
    argp_err_exit_status = AGENT_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0 || !o.job) {
        fputs("nebula resume: give the id that nebula jobs shows\n", stderr);
        return AGENT_EXIT_USAGE;
    }
    if (agent_ask(o.home, json_pack("{s:s,s:s}", "op", "resume", "job", o.job), &m) != NEB_OK)
        return AGENT_EXIT_FAILED;
    bool ok = json_is_true(json_object_get(m.head, "ok"));
    fprintf(ok ? stdout : stderr, "%s%s\n",
            ok ? "" : "nebula resume: ", agent_ipc_str(&m, "text", ""));
    agent_ipc_msg_clear(&m);
    return ok ? AGENT_EXIT_OK : AGENT_EXIT_FAILED;
}

// The folder under jobs/ whose name begins with the id given; jobs are hexadecimal, so nothing else can be named.
static enum neb_status find_log(const struct options *o, char *out, size_t cap) {
    char home[NEB_PATH_MAX], jobs[NEB_PATH_MAX], dir[NEB_PATH_MAX], name[NEB_PATH_MAX] = "";
    int hits = 0;
    if (!*o->job || strspn(o->job, "0123456789abcdef") != strlen(o->job))
        return neb_fail(NEB_ERR_INVALID, "\"%s\" is no job id; nebula jobs lists them", o->job);
    NEB_TRY(sec_home(o->home, home, sizeof home));
    NEB_TRY(neb_path(jobs, sizeof jobs, home, "jobs"));
    DIR *d = opendir(jobs);
    if (!d)
        return neb_fail_errno("cannot read %s", jobs);
    for (struct dirent *e; (e = readdir(d));)
        if (!strncmp(e->d_name, o->job, strlen(o->job))) {
            hits++;
            snprintf(name, sizeof name, "%s", e->d_name);
        }
    closedir(d);
    if (hits != 1)
        return neb_fail(NEB_ERR_NOT_FOUND, "%s has %s job whose id begins with %s", jobs,
                        hits ? "more than one" : "no", o->job);
    NEB_TRY(neb_path(dir, sizeof dir, jobs, name));
    return neb_path(out, cap, dir, "worker.log");
}

// To where the last `lines` lines begin.
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

int cmd_logs(int argc, char **argv) {
    static const struct argp_option table[] = {
        {"home", 'H', "DIR", 0, "of the agent (default ~/.nebula)", 0},
        {"follow", 'f', NULL, 0, "go on as the log grows, until interrupted", 0},
        {"lines", OPT_LINES, "N", 0, "only the last N lines (default 50)", 0},
        {0}};
    static const struct argp argp = {table,
                                     parse_option,
                                     "JOB-ID",
                                     "Shows the log of a job's worker on this machine; the agent "
                                     "need not run. The first characters of the id will do.",
                                     NULL,
                                     NULL,
                                     NULL};
    struct options o = {.lines = 50};
    char path[NEB_PATH_MAX], block[8192];
    argp_err_exit_status = AGENT_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0 || !o.job) {
        fputs("nebula logs: give the id that nebula jobs shows\n", stderr);
        return AGENT_EXIT_USAGE;
    }
    if (find_log(&o, path, sizeof path) != NEB_OK)
        return AGENT_EXIT_FAILED;
    FILE *f = fopen(path, "r");
    if (!f)
        return neb_fail_errno("cannot open %s", path) == NEB_OK ? AGENT_EXIT_OK : AGENT_EXIT_FAILED;
    seek_tail(f, o.lines);
    for (;;) {
        size_t n = fread(block, 1, sizeof block, f);
        if (fwrite(block, 1, n, stdout) < n || fflush(stdout) != 0)
            break; // nobody reads any more
        if (n < sizeof block && !o.follow)
            break;
        if (!n) {
            clearerr(f);
            neb_sleep(200 * NEB_MS);
        }
    }
    fclose(f);
    return AGENT_EXIT_OK;
}
