// SPDX-License-Identifier: Apache-2.0
// Follows the agent to which a job was submitted. That agent may restart at any time (upgrade,
// reboot, crash). It then knows the job from its ledger, but not its followers.
//
//     nothing heard of the job for 3 s ──► follow ──► follows, state
//         running, ended   known reports come with it; an unheard stop is sent again
//         done, unknown    submit: it ends again from its last checkpoint, and reports
//         stopped          no report will come: the command ends as after a stop
//         failed, held     the command ends with an error
//
// A cluster whose member is revoked reports no more, and the command does not wait for it. If too
// few members are left, the agents end the job, and the command ends with it.
#include "agent/base/log.h"
#include "agent/cli/pretrain_state.h"

#include <string.h>

static const neb_ns follow_after = 3 * NEB_S, follow_most = 64 * NEB_S, note_after = 10 * NEB_S;

enum neb_status pretrain_say_submit(struct run *r) {
    return agent_ipc_send(r->ipc, NULL,
                          json_pack("{s:s,s:s,s:O}", "op", "submit", "id", r->id, "spec", r->spec),
                          NULL, 0); // id "": the agent chooses it
}

static enum neb_status on_follows(struct run *r, const char *state) {
    bool done = !strcmp(state, "done") || !strcmp(state, "unknown");
    if (!strcmp(state, "ended") || !strcmp(state, "stopping"))
        return NEB_OK;
    if (!strcmp(state, "running"))
        return r->stop_sent ? pretrain_say_stop(r) : NEB_OK;
    if (done && !r->stop_sent)
        return pretrain_say_submit(r);
    if (done || !strcmp(state, "stopped")) {
        agent_progress_note(r->progress, "the agent was restarted after the job had ended there");
        r->no_more = true;
        return NEB_OK;
    }
    return neb_fail(NEB_ERR_STATE,
                    "the job is %s at the agent of %s, which was restarted meanwhile (its log has "
                    "more; --resume continues the job)",
                    state, r->socket);
}

void pretrain_on_members(struct run *r, const json_t *event) {
    const char *ends = json_string_value(json_object_get(event, "ends"));
    const json_t *list = json_object_get(event, "gone"), *name;
    struct member_set was = r->gone;
    char text[512];
    size_t k;
    r->gone = mset_none();
    for (int i = 0; i < r->expected; i++) {
        json_array_foreach(list, k,
                           name) if (json_is_string(name) &&
                                     !strcmp(json_string_value(name), r->job.clusters[i].name))
            mset_add(&r->gone, i);
        if (mset_has(r->gone, i))
            agent_progress_sample(r->progress, i)->out = true;
        if (!mset_has(r->gone, i) || mset_has(was, i) || ends)
            continue;
        snprintf(text, sizeof text, "%s is no longer a member; its report is not expected",
                 r->job.clusters[i].name);
        agent_progress_note(r->progress, text);
    }
    if (!ends || r->ends[0])
        return;
    snprintf(r->ends, sizeof r->ends, "%s", ends);
    snprintf(text, sizeof text, "the agent ends the job after a checkpoint: %.400s", ends);
    agent_progress_note(r->progress, text);
    if (!r->stop_sent)
        r->stop_sent = neb_now(); // the agent of each site does it by itself
}

enum neb_status pretrain_heard(struct run *r, const struct agent_ipc_msg *m) {
    const char *ev = agent_ipc_str(m, "ev", "");
    bool answer = !strcmp(ev, "answer"), ok = json_is_true(json_object_get(m->head, "ok"));
    if (!strcmp(ev, "status"))
        return NEB_OK; // about the agent, not about the job
    if (r->silent)
        agent_progress_note(r->progress, "the agent answers again");
    r->silent = false;
    r->heard = neb_now();
    if (answer && !ok && !r->stop_sent)
        return neb_fail(NEB_ERR_STATE, "the agent refuses: %s", agent_ipc_str(m, "text", "?"));
    return !strcmp(ev, "follows") ? on_follows(r, agent_ipc_str(m, "state", "")) : NEB_OK;
}

void pretrain_ask_now(struct run *r) {
    r->heard = neb_now() - follow_after;
    r->next_follow = 0;
}

enum neb_status pretrain_stay_in_touch(struct run *r) {
    neb_ns now = neb_now();
    if (now - r->heard > note_after && !r->silent) {
        r->silent = true;
        agent_progress_note(r->progress,
                            "the agent does not answer; the job continues when it does");
    }
    if (now - r->heard < follow_after || now < r->next_follow)
        return NEB_OK;
    // Asks less and less often: a request to an agent that is away arrives when it returns.
    neb_ns wait = now - r->heard;
    r->next_follow = now + (wait < follow_most ? wait : follow_most);
    enum neb_status st =
        agent_ipc_send(r->ipc, NULL, json_pack("{s:s,s:s}", "op", "follow", "job", r->id), NULL, 0);
    return st == NEB_ERR_AGAIN ? NEB_OK : st;
}
