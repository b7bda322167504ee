// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/attach.h"
#include "agent/base/log.h"
#include "agent/daemon/ranks.h"
#include "agent/lib/libnebula.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

static bool alive(pid_t pid) { return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM); }

static json_t *say(bool ok, const char *code, const char *text) {
    return json_pack("{s:s,s:b,s:s,s:s}", "ev", "answer", "ok", ok, "code", code, "text", text);
}

struct wish { // what a trainer asks for; "": anything
    const char *job, *from;
};

static bool is_id(const struct agent_jobrun *j, const char *text, size_t least) {
    return strlen(text) >= least && !strncmp(text, j->hex, strlen(text));
}

static bool is_meant(const struct agent_jobrun *j, const struct wish *w) {
    const char *owner = j->owner[0] ? j->owner : j->job.clusters[j->self].name;
    return (!*w->job || is_id(j, w->job, AGENT_ATTACH_PREFIX) || !strcmp(w->job, j->job.name)) &&
           (!*w->from || !strcmp(w->from, owner));
}

static bool is_given(const struct agent_jobrun *j, const struct wish *w) {
    return !j->owner[0] || j->attach.listed || *w->from || is_id(j, w->job, AGENT_ATTACH_DIGITS);
}

static json_t *say_passed_over(const struct agent_jobrun *j) {
    char text[512];
    snprintf(text, sizeof text,
             "job %.64s of \"%s\" waits for a trainer. It is another member's job, so the trainer "
             "must name it (NEBULA_JOB=%s) or its submitter (NEBULA_JOB_FROM=%s), or policy.json "
             "must list the submitter (\"attach\": [\"%s\"])",
             j->job.name, j->owner, j->hex, j->owner, j->owner);
    json_t *answer = say(false, "wait", text);
    json_object_set_new(answer, "passed_over", json_string(j->hex));
    return answer;
}

static json_t *say_none(const struct wish *w) {
    char text[320], from[96] = "";
    if (*w->from)
        snprintf(from, sizeof from, " of \"%.64s\"", w->from);
    if (*w->job)
        snprintf(text, sizeof text, "no job \"%.64s\"%s with launcher attach runs at this agent",
                 w->job, from);
    else
        snprintf(text, sizeof text, "no job%s with launcher attach runs at this agent", from);
    return say(false, "wait", text);
}

json_t *agent_attach_find(const struct agent_jobrun jobs[AGENT_JOBS_MAX],
                          const struct agent_ipc_msg *m) {
    const struct wish w = {agent_ipc_str(m, "job", ""), agent_ipc_str(m, "from", "")};
    const struct agent_jobrun *found = NULL, *passed = NULL;
    char text[512];
    int64_t api = agent_ipc_int(m, "api", 0);
    if (!agent_ipc_speaks_ours(m, "trainer's libnebula", text, sizeof text))
        return say(false, "version", text);
    if (api != NEBULA_API) {
        snprintf(text, sizeof text,
                 "the trainer's libnebula (nebula %.63s) has API %lld, the agent (nebula %s) has "
                 "%d: install the same version",
                 agent_ipc_str(m, "build", "?"), (long long)api, neb_build(), NEBULA_API);
        return say(false, "version", text);
    }
    for (int i = 0; i < AGENT_JOBS_MAX; i++) {
        const struct agent_jobrun *j = &jobs[i];
        if (!agent_attach_waits(j) || agent_job_ended(j->state) || !is_meant(j, &w))
            continue;
        if (!is_given(j, &w)) {
            passed = j;
            continue;
        }
        if (found)
            return say(false, "many",
                       "several jobs wait for a trainer here: name one (NEBULA_JOB)");
        found = j;
    }
    if (!found)
        return passed ? say_passed_over(passed) : say_none(&w);
    if (found->worker.client.len && alive(found->worker.trainer)) {
        snprintf(text, sizeof text, "job %s already has a trainer, process %ld: end it first",
                 found->job.name, (long)found->worker.trainer);
        return say(false, "taken", text);
    }
    return say(true, "", found->hex);
}

bool agent_attach_admit(struct agent_jobrun *j, const struct agent_ipc_client *from,
                        const struct agent_ipc_msg *m, char *why, size_t cap) {
    bool foreign = json_is_true(json_object_get(m->head, "foreign"));
    pid_t pid = (pid_t)agent_ipc_int(m, "pid", 0);
    if (foreign != agent_attach_waits(j)) {
        snprintf(why, cap,
                 foreign
                     ? "this cluster's launcher is not attach: the agent starts its worker itself"
                     : "this cluster's launcher is attach: no worker is started for it");
        return false;
    }
    if (!foreign)
        return true;
    if (j->worker.client.len && !agent_ipc_same(&j->worker.client, from) &&
        pid != j->worker.trainer && alive(j->worker.trainer)) {
        snprintf(why, cap, "process %ld is attached already", (long)j->worker.trainer);
        return false;
    }
    j->worker.trainer = pid;
    neb_info("job %s: process %ld is its trainer", j->job.name, (long)pid);
    return true;
}

bool agent_attach_left(struct agent_jobrun *j, bool said_so) {
    if (!agent_attach_waits(j) || !j->worker.client.len || (!said_so && alive(j->worker.trainer)))
        return false;
    neb_warn("job %s: its trainer, process %ld, %s; the job waits for the next one", j->job.name,
             (long)j->worker.trainer, said_so ? "has detached" : "is gone");
    j->worker.client = (struct agent_ipc_client){0};
    j->worker.trainer = 0;
    daemon_ranks_end(j);
    return true;
}
