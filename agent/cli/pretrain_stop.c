// SPDX-License-Identifier: Apache-2.0
// Ends a run before its last step: Ctrl-C, with --local SIGTERM and SIGHUP too, or a failed cluster
// for which the others would wait.
//
// Every cluster is asked to stop after a checkpoint, and reports. One within reach gets a minute,
// and more as long as its agent reports that the checkpoint is being written (agent/daemon/stop.c).
// One whose link is down gets some seconds: its agent hears of the stop later, or ends with this
// process (--local).
#include "agent/base/log.h"
#include "agent/cli/pretrain_state.h"

#include <string.h>

static const neb_ns patience = 60 * NEB_S, patience_away = 5 * NEB_S, ask_every = NEB_S;

// True for an error that the others cannot survive. A cluster that was refused when it joined
// leaves them as they were.
bool pretrain_must_stop(const struct run *r) {
    for (int i = 0; i < r->expected; i++)
        if (json_is_string(json_object_get(r->reports[i], "error")) &&
            !json_is_true(json_object_get(r->reports[i], "refused")))
            return true;
    return false;
}

enum neb_status pretrain_say_stop(struct run *r) {
    return agent_ipc_send(r->ipc, NULL, json_pack("{s:s,s:s}", "op", "stop", "job", r->id), NULL,
                          0);
}

enum neb_status pretrain_stop(struct run *r, const char *why) {
    if (r->stop_sent)
        return NEB_OK;
    r->stop_sent = neb_now();
    agent_progress_note(r->progress, why);
    return pretrain_say_stop(r);
}

void pretrain_all_end(struct run *r) {
    r->stop_sent = r->stop_sent ? r->stop_sent : neb_now();
    r->no_more = true;
    agent_progress_note(
        r->progress,
        "the agents were asked to end too, each after a checkpoint; --resume continues");
}

void pretrain_on_status(struct run *r, const json_t *status) {
    const json_t *peer;
    size_t k;
    r->away = mset_none();
    json_array_foreach(json_object_get(status, "peers"), k, peer) {
        const char *name = json_string_value(json_object_get(peer, "name"));
        for (int i = 0; name && i < r->expected; i++) {
            if (strcmp(r->job.clusters[i].name, name) != 0)
                continue;
            if (json_is_false(json_object_get(peer, "up")))
                mset_add(&r->away, i);
            else
                pretrain_reached(r, i, neb_now());
        }
    }
}

// True if all clusters without a report are out of reach.
static bool only_away(const struct run *r) {
    for (int i = 0; i < r->expected; i++)
        if (!r->reports[i] && !mset_has(mset_union(r->away, r->gone), i))
            return false;
    return true;
}

static void say_missing(struct run *r) {
    char text[256];
    for (int i = 0; i < r->expected; i++) {
        if (r->reports[i] || mset_has(r->gone, i))
            continue;
        snprintf(text, sizeof text, "%s cannot be reached and has not reported; %s",
                 r->job.clusters[i].name,
                 r->o.local ? "its agent ends after a checkpoint"
                            : "it continues, and stops when the link is back");
        agent_progress_note(r->progress, text);
    }
}

enum neb_status pretrain_stop_step(struct run *r, bool *enough) {
    neb_ns now = neb_now();
    *enough = false;
    if (!r->stop_sent)
        return NEB_OK;
    if (now > (r->stop_heard > r->stop_sent ? r->stop_heard : r->stop_sent) + patience)
        return neb_fail(NEB_ERR_TIMEOUT,
                        "not all clusters have reported 60 s after the stop, or after the last "
                        "sign of their checkpoints (see the logs of their agents)");
    if (!only_away(r)) {
        r->away_since = now;
    } else if (now - r->away_since > patience_away) {
        say_missing(r);
        *enough = true;
        return NEB_OK;
    }
    if (now < r->next_ask)
        return NEB_OK;
    r->next_ask = now + ask_every;
    return agent_ipc_send(r->ipc, NULL, json_pack("{s:s}", "op", "status"), NULL, 0);
}
