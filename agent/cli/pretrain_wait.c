// SPDX-License-Identifier: Apache-2.0
// Reports that may never come: some clusters have ended, and the agent of another is dead or cut
// off for good.
//
//     a cluster ends ──► is the asked agent linked to those without a report? (every 5 s)
//         to one of them, or was within --report-within    that one may be slow: wait
//         to none, and was not     end with the reports at hand, and name the missing clusters
//
// A line of a cluster, or a link to its agent, is a sign of it. For the cluster of the asked agent,
// any message of that agent is.
#include "agent/cli/pretrain_state.h"
#include "agent/show/progress.h"

#include <string.h>

static const neb_ns ask_every = 5 * NEB_S, tell_after = 15 * NEB_S;

static bool is_missing(const struct run *r, int i) {
    return !r->reports[i] && !mset_has(r->gone, i);
}

static neb_ns last_sign(const struct run *r, int i) {
    neb_ns sign = i == r->self ? r->heard : r->reached[i];
    return sign > r->waits_since ? sign : r->waits_since;
}

static void tell(struct run *r, int i, neb_ns now) {
    char text[320], age[32], most[32];
    neb_ns ago = now - last_sign(r, i);
    if (ago < tell_after || mset_has(r->told_missing, i))
        return;
    mset_add(&r->told_missing, i);
    agent_human_time(neb_seconds(ago), age, sizeof age);
    agent_human_time((double)r->o.report_within_s, most, sizeof most);
    snprintf(text, sizeof text,
             "%s has not reported, and its agent has not been reached for %s; the command waits "
             "until that is %s (--report-within)",
             r->job.clusters[i].name, age, most);
    if (r->progress)
        agent_progress_note(r->progress, text);
}

void pretrain_reached(struct run *r, int i, neb_ns now) {
    r->reached[i] = now;
    mset_remove(&r->told_missing, i);
}

enum neb_status pretrain_wait_step(struct run *r, neb_ns now, bool *enough) {
    int in = 0, missing = 0, there = 0;
    for (int i = 0; i < r->expected; i++) {
        in += r->reports[i] != NULL;
        missing += is_missing(r, i);
    }
    if (!in || !missing || r->stop_sent) {
        r->waits_since = 0;
        return NEB_OK;
    }
    r->waits_since = r->waits_since ? r->waits_since : now;
    for (int i = 0; i < r->expected; i++)
        if (is_missing(r, i)) {
            there += now - last_sign(r, i) < (neb_ns)r->o.report_within_s * NEB_S;
            tell(r, i, now);
        }
    for (int i = 0; !there && i < r->expected; i++)
        if (is_missing(r, i))
            mset_add(&r->missing, i);
    *enough = *enough || !there;
    if (!there || !r->ipc || now < r->next_ask)
        return NEB_OK;
    r->next_ask = now + ask_every;
    enum neb_status st = agent_ipc_send(r->ipc, NULL, json_pack("{s:s}", "op", "status"), NULL, 0);
    return st == NEB_ERR_AGAIN ? NEB_OK : st;
}
