// SPDX-License-Identifier: Apache-2.0
// Member lists and keys that change while the agent runs.
#include "agent/base/log.h"
#include "agent/daemon/state.h"
#include "agent/daemon/status.h"
#include "agent/daemon/sums.h"
#include "agent/job/private.h"
#include "inter/record/robust.h"

#include <string.h>

static const neb_ns default_overlap = 600 * NEB_S;

void daemon_merge_change(struct agent_members_change *all, const struct agent_members_change *c) {
    bool first = !all->changed;
    all->changed |= c->changed;
    all->revoked |= c->revoked;
    all->forked |= c->forked;
    if (c->changed && first)
        memcpy(all->rotated, c->rotated, sizeof all->rotated);
    else if (c->changed) // two versions at once: no overlap for either
        all->rotated[0] = 0;
}

static bool is_listed(const struct daemon *d) {
    return sec_members_by_name(agent_members_list(d->trust), daemon_name(d)) != NULL;
}

void daemon_warn_unlinked(const struct daemon *d) {
    const struct sec_members *l = agent_members_list(d->trust);
    char names[320] = "";
    for (uint32_t i = 0; i < l->n && !d->c->listen; i++) {
        size_t n = strlen(names);
        const char *name = l->m[i].pub.name;
        if (name[0] && strcmp(name, daemon_name(d)) != 0 && !l->m[i].endpoint[0])
            snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", name);
    }
    if (names[0])
        neb_warn("no link with %s is possible: this agent accepts no connections (no --listen), "
                 "and the list has no address to connect to. Of each two sites, one must start its "
                 "agent with --listen and be listed with its address (nebula join --endpoint, "
                 "nebula init --link, nebula peer add)",
                 names);
}

// True if a job can continue after a change: this site and a majority of the voters are still on
// the list; with streams only, at least one member at each end.
static bool can_go_on(const struct daemon *d, const struct agent_jobrun *j) {
    const struct sec_members *l = agent_members_list(d->trust);
    int here = 0, voters = 0;
    struct member_set gone = daemon_gone_clusters(d, j);
    if (!is_listed(d))
        return false;
    if (j->linked && !j->federated) {
        bool ends[2] = {false, false}; // producers of batches, and consumers
        for (int i = 0; i < j->job.n_clusters; i++) {
            enum agent_role r = j->job.clusters[i].role;
            if (!mset_has(gone, i))
                ends[r == AGENT_ROLE_DISCRIMINATOR || r == AGENT_ROLE_STUDENT] = true;
        }
        return ends[0] && ends[1];
    }
    for (int i = 0; i < j->job.n_clusters; i++) {
        bool votes = !mset_has(j->removed, i);
        voters += votes;
        here += votes && sec_members_by_name(l, j->job.clusters[i].name);
    }
    return !j->federated ||
           (here > voters / 2 && agent_private_has_enough(&j->job, mset_union(gone, j->removed)));
}

void daemon_send_members(struct daemon *d, const struct agent_jobrun *j,
                         const struct agent_ipc_client *to) {
    bool listed = is_listed(d);
    struct member_set gone = daemon_gone_clusters(d, j);
    char names[320] = "", why[480];
    if (!j->linked || !to->len)
        return;
    agent_status_names(&j->job, gone, names, sizeof names);
    json_t *list = json_array();
    for (int i = 0; i < j->job.n_clusters; i++)
        if (listed ? mset_has(gone, i)
                   : i != j->self) // a site off the list gets no reports of any other site
            json_array_append_new(list, json_string(j->job.clusters[i].name));
    json_t *event = json_pack("{s:s,s:s,s:o}", "ev", "members", "job", j->hex, "gone", list);
    if (!listed)
        snprintf(why, sizeof why, "%s, the agent's own site, is no longer a member",
                 daemon_name(d));
    else
        snprintf(why, sizeof why, "too few of its members are left on the list, without %s%s",
                 names,
                 agent_private_has_enough(&j->job, mset_union(gone, j->removed))
                     ? ""
                     : ": with so few, sums of the gate \"private\" cannot be read");
    if (!can_go_on(d, j))
        json_object_set_new(event, "ends", json_string(why));
    daemon_send(d, to, event);
}

// Nobody waits for a revoked member. With the profile `robust`, too few members may be left to
// leave out a bad update.
static void update_gone(struct daemon *d, struct agent_jobrun *j) {
    struct member_set gone = daemon_gone_clusters(d, j);
    int left = j->job.n_clusters - mset_count(gone);
    inter_service_job_gone(d->service, j->id, gone);
    if (j->job.sync.gate != AGENT_GATE_ROBUST || left >= INTER_ROBUST_MEMBERS ||
        mset_equal(gone, j->gone))
        return;
    char text[200];
    snprintf(text, sizeof text,
             "%d clusters are left, but the gate \"robust\" needs five against a bad one: norms "
             "are still clipped, but no update is left out any more",
             left);
    j->gone = gone;
    daemon_report_fault(d, j, text);
}

// Applies a change of the list to one job.
static void update_job(struct daemon *d, struct agent_jobrun *j) {
    struct member_set removed = daemon_removed_clusters(d, j);
    if (j->federated)
        update_gone(d, j);
    if (j->federated && !mset_equal(removed, j->removed)) {
        j->removed = removed;
        inter_service_job_removed(d->service, j->id, removed);
        neb_warn("job %s continues without a member that was given up by nebula promote",
                 j->job.name);
    }
    if (!j->adopted && !j->orphaned && j->owner[0] &&
        !sec_members_by_name(agent_members_list(d->trust), j->owner)) {
        char text[320];
        j->orphaned = true;
        snprintf(text, sizeof text,
                 "%s, which submitted it, is no longer a member. The running job continues, nebula "
                 "stop ends it, and after a restart of this agent it is held",
                 j->owner);
        daemon_report_fault(d, j, text);
    }
    if (j->state == AGENT_JOB_RUNNING && !can_go_on(d, j)) {
        neb_warn("job %s stops: too few of its members are left on the list", j->job.name);
        daemon_job_stop(d, j);
    }
}

// A newer member list takes effect at once, while jobs run: links of revoked members are cut, new
// members are let in (if the link has no room for more names, only once no job runs). Contradicting
// lists stop everything.
enum neb_status daemon_take_members(struct daemon *d) {
    // Send the list before links are cut, so that a revoked member learns of it. An even newer list
    // may arrive meanwhile; it is passed on too.
    for (uint64_t told = 0; d->change.changed && told < agent_members_list(d->trust)->version;) {
        told = agent_members_list(d->trust)->version;
        agent_spread_list(&d->spread, d->up);
        NEB_TRY(inter_service_process(d->service));
    }
    struct agent_members_change c = d->change;
    d->changes = false;
    d->change = (struct agent_members_change){.changed = false};
    if (c.forked) {
        if (daemon_throttle_allows(d, THROTTLE_FORKED))
            neb_log(NEB_LOG_ERROR,
                    "jobs stop: the CA has signed member lists that do not follow from each other");
        for (int i = 0; i < AGENT_JOBS_MAX; i++)
            if (d->jobs[i].state)
                daemon_job_stop(d, &d->jobs[i]);
    }
    if (!c.changed)
        return NEB_OK;
    daemon_warn_unlinked(d);
    bool listed = sec_members_by_name(agent_members_list(d->trust), daemon_name(d));
    uint32_t waiting;
    NEB_TRY(inter_service_reload(d->service, agent_members_list(d->trust),
                                 c.rotated[0] ? c.rotated : NULL,
                                 d->c->overlap ? d->c->overlap : default_overlap, &waiting));
    d->members = *inter_service_members(d->service);
    d->members_due = !listed || waiting; // done when no job runs
    if (waiting)
        neb_warn("member list version %llu is in use, except for %u new members, which are let in "
                 "once no job runs here (a running agent has room for %d names)",
                 (unsigned long long)d->members.version, waiting, NEB_MEMBERS_MAX);
    for (int i = 0; i < AGENT_JOBS_MAX; i++) {
        struct agent_jobrun *j = &d->jobs[i];
        for (int w = 0; j->state && w < AGENT_WATCHERS_MAX; w++)
            daemon_send_members(d, j, &j->watchers[w]);
        if (agent_job_active(j->state))
            update_job(d, j);
    }
    if (!agent_members_holds(d->trust, sec_identity_public(d->identity)))
        d->rekey_at = listed ? neb_now() + NEB_S : 0; // the others get the list first
    return NEB_OK;
}

// nebula rotate has made new keys of this member: links change to them, and jobs continue.
enum neb_status daemon_rekey(struct daemon *d) {
    struct sec_identity *next = NULL, *former = d->identity;
    if (!d->rekey_at || neb_now() < d->rekey_at)
        return NEB_OK;
    d->rekey_at = neb_now() + NEB_S;
    if (sec_identity_load(d->c->home, &next) != NEB_OK)
        return NEB_OK; // the command is still writing them
    if (!agent_members_holds(d->trust, sec_identity_public(next))) {
        sec_identity_destroy(&next);
        return NEB_OK;
    }
    d->rekey_at = 0;
    d->identity = next;
    // new links count from zero
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        if (d->jobs[i].state)
            d->jobs[i].wan_before = daemon_wan_bytes(d, &d->jobs[i]);
    enum neb_status st = inter_service_rekey(d->service, next);
    for (int i = 0; i < AGENT_JOBS_MAX; i++) {
        struct agent_jobrun *j = &d->jobs[i];
        if (j->state && j->linked)
            j->wan_base = daemon_link_totals(d, j);
        if (j->state && j->sums)
            agent_sums_rekey(j->sums, next);
    }
    agent_members_rekey(d->trust, next);
    sec_identity_destroy(&former);
    neb_info("this member's new keys are in use");
    return st;
}

static void find_owner(const struct daemon *d, struct agent_jobrun *j) {
    const struct sec_member *m = j->owner[0] ? sec_members_by_name(&d->members, j->owner) : NULL;
    if (j->owner[0])
        j->home = m ? (uint32_t)(m - d->members.m) : AGENT_PEER_NONE;
}

// An ended job refers to members by index, and its rounds were closed with the previous service.
// Others may still need the last of them.
static bool open_again(struct daemon *d, struct agent_jobrun *j) {
    char why[512];
    if (daemon_map_clusters(d, j, false, why, sizeof why) != NEB_OK)
        return false;
    find_owner(d, j);
    if (!j->federated)
        return true;
    if (daemon_open_rounds(d, j) != NEB_OK) {
        neb_warn("the rounds of job %s, which has ended here, cannot be reopened", j->job.name);
        return false;
    }
    if (j->state == AGENT_JOB_FAILED)
        inter_service_job_idle(d->service, j->id);
    return true;
}

enum neb_status daemon_renew_service(struct daemon *d) {
    if (!d->members_due || daemon_busy(d) || d->rekey_at)
        return NEB_OK;
    d->members_due = false;
    if (!sec_members_by_name(agent_members_list(d->trust), daemon_name(d)))
        return neb_fail(NEB_ERR_DENIED, "this member is no longer on the list: the agent ends");
    inter_service_destroy(&d->service);
    memset(d->up, 0, sizeof d->up);
    // ZeroMQ closes a listener asynchronously; until then its port is taken
    enum neb_status st = daemon_start_service(d);
    for (int i = 0; st != NEB_OK && i < 20; i++) {
        neb_sleep(100 * NEB_MS);
        st = daemon_start_service(d);
    }
    NEB_TRY(st);
    for (int i = 0; i < AGENT_JOBS_MAX; i++)
        if (d->jobs[i].state && !open_again(d, &d->jobs[i]))
            daemon_job_forget(d, &d->jobs[i]); // a member that was away asks for it by its id
    neb_info("links use member list version %llu", (unsigned long long)d->members.version);
    return NEB_OK;
}
