// SPDX-License-Identifier: Apache-2.0
// Takes a job on: one that is submitted, passed on by another agent, or resumed.
#include "agent/base/log.h"
#include "agent/daemon/attach.h"
#include "agent/daemon/lines.h"
#include "agent/daemon/policy.h"
#include "agent/daemon/snapshot.h"
#include "agent/daemon/state.h"
#include "agent/exchange/exchange.h"
#include "agent/job/private.h"
#include "agent/proc/launch.h"
#include "agent/proc/seal.h"
#include "agent/train/distill.h"

#include <stdlib.h>
#include <string.h>

// The peer of a revoked member: what it signed before is still verified.
static enum neb_status former_peer(const struct daemon *d, const char *name, uint32_t *peer) {
    uint8_t sign[SEC_KEY_BYTES];
    *peer = AGENT_PEER_NONE;
    return agent_members_previous_key(d->trust, name, sign)
               ? inter_service_removed_member(d->service, name, sign, peer)
               : NEB_OK;
}

// Finds the member of each cluster. An unknown name is refused, unless the job is known: then its
// members were on the list when it began.
enum neb_status daemon_map_clusters(const struct daemon *d, struct agent_jobrun *j, bool known,
                                    char *why, size_t cap) {
    int gone = 0, voters = 0;
    j->self = -1;
    for (int i = 0; i < j->job.n_clusters; i++) {
        const char *name = j->job.clusters[i].name;
        if (!strcmp(name, daemon_name(d)))
            j->self = i;
        uint32_t peer = UINT32_MAX;
        for (uint32_t k = 0; k < d->members.n; k++)
            if (!strcmp(d->members.m[k].pub.name, name))
                peer = k;
        if (peer == UINT32_MAX && j->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
            continue; // the reference is one process; other clusters are only its data
        voters += !agent_members_without_vote(d->trust, name);
        if (peer == UINT32_MAX && known) {
            gone++;
            NEB_TRY(former_peer(d, name, &peer));
        }
        if (peer == UINT32_MAX) {
            char advice[256];
            snprintf(why, cap, "cluster \"%s\" is not a member known to agent \"%s\": %s", name,
                     daemon_name(d), agent_members_advice(d->trust, name, advice, sizeof advice));
            return NEB_ERR_NOT_FOUND;
        }
        if (!known && !agent_job_only_votes(&j->job, i) &&
            agent_members_only_votes(d->trust, name)) {
            snprintf(why, cap,
                     "cluster \"%s\" was invited as a witness, which trains nothing: give it "
                     "{witness: true} in the job, or invite it again as data",
                     name);
            return NEB_ERR_DENIED;
        }
        j->peers[i] = peer;
    }
    if (j->self < 0) {
        snprintf(why, cap, "agent \"%s\" is not one of the job's clusters", daemon_name(d));
        return NEB_ERR_INVALID;
    }
    bool enough = agent_private_has_enough(&j->job, daemon_gone_clusters(d, j));
    if (gone &&
        (2 * (voters - gone) <= voters || !enough)) { // as for a running job: member_changes.c
        snprintf(why, cap, "too few of the job's members are left on the list: %d of %d%s",
                 voters - gone, voters,
                 enough ? "" : "; with so few, sums of the gate \"private\" cannot be read");
        return NEB_ERR_DENIED;
    }
    return NEB_OK;
}

// Asks the site's policy about a job of another member. It is read again each time, so that a
// change needs no restart.
static bool policy_admits(struct daemon *d, struct agent_jobrun *j, char *why, size_t cap) {
    struct agent_policy p;
    if (!j->owner[0]) {
        j->terms = (struct agent_terms){.told = {.losses = AGENT_LOSSES_EXACT}};
        return true;
    }
    if (agent_policy_load(d->c->home, &p) != NEB_OK) {
        snprintf(why, cap, "the policy of site \"%s\" cannot be read; its agent's log says why",
                 daemon_name(d));
        return false;
    }
    struct agent_policy_load running = {0};
    EACH_JOB (d, other) {
        bool counts = other != j && !other->local && agent_job_active(other->state);
        running.jobs += counts;
        running.of_member += counts && !strcmp(other->owner, j->owner);
    }
    if (!agent_policy_admits(&p, &j->job, j->self, j->owner, &running, why, cap))
        return false;
    agent_policy_terms(&p, &j->job, j->self, &j->terms); // a refused change leaves the old terms
    daemon_job_moved(j);
    return true;
}

// Sets the job's rate limit, the bytes of its earlier runs, the time of the last run, and the lines
// of the other clusters that came here.
static enum neb_status recall_runs(struct daemon *d, struct agent_jobrun *j) {
    struct agent_job_record r;
    struct inter_rate_limit limit;
    NEB_TRY(inter_rate_limit_parse(j->job.rate_limit, &limit));
    // another member's limit must not slow down this site's own jobs
    inter_service_limit(d->service, j->id, &limit, !j->owner[0]);
    enum neb_status st = agent_jobs_find(inter_service_ledger(d->service), j->hex, &r);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    j->wan_before = r.wan;
    j->run = r.run;
    for (int k = 0; k < j->job.n_clusters; k++)
        j->had[k] = json_integer_value(json_object_get(r.had, j->job.clusters[k].name));
    agent_job_record_clear(&r);
    j->wan_base = daemon_link_totals(d, j);
    return NEB_OK;
}

// True if this machine has what the cluster's launcher needs. Checked before a running worker is
// ended for a change.
static bool can_launch(struct daemon *d, struct agent_jobrun *j, char *why, size_t cap) {
    struct agent_launch launch;
    char text[400];
    const struct agent_cluster *c = &j->job.clusters[j->self];
    if (c->witness || agent_attach_waits(j) ||
        agent_launch_worker(c, d->c->workers != NULL, d->exe, d->socket_path, j->hex, j->dir, "",
                            &launch) == NEB_OK)
        return true;
    neb_last_error(text, sizeof text);
    snprintf(why, cap, "agent \"%s\" keeps the present placement of its worker: %s", daemon_name(d),
             text);
    return false;
}

// A running job that is submitted again may place its clusters differently (agent_job_differs). If
// that changes this cluster, its worker is replaced and continues from its checkpoint. Nothing else
// of a job may change. NULL: *why.
static struct agent_jobrun *place_restart(struct daemon *d, struct agent_jobrun *j, json_t *spec,
                                          char *why, size_t cap) {
    size_t self = (size_t)j->self;
    if (json_equal(j->spec, spec) || agent_job_differs(j->spec, spec))
        return j;
    bool moved = !json_equal(json_array_get(json_object_get(j->spec, "clusters"), self),
                             json_array_get(json_object_get(spec, "clusters"), self));
    struct agent_job *was = malloc(sizeof *was);
    snprintf(why, cap, "agent \"%s\" cannot use the job's new meshes; its log says why",
             daemon_name(d));
    if (!was)
        return NULL;
    *was = j->job;
    bool fits = agent_job_from_json(spec, &j->job) == NEB_OK && policy_admits(d, j, why, cap),
         cannot = fits && moved && !can_launch(d, j, why, cap);
    if (!fits || cannot) {
        j->job = *was;
        free(was);
        if (!cannot || j->local)
            return NULL;
        daemon_note_fault(d, j, why); // the other clusters need not stop for this
        return j;
    }
    free(was);
    json_decref(j->spec);
    j->spec = json_incref(spec);
    daemon_job_save(d, j);
    if (moved && j->worker.child.pid) {
        neb_info("job %s: its worker restarts with another mesh, launcher or device", j->job.name);
        daemon_worker_replace(d, j);
    }
    return j;
}

static bool is_known(struct daemon *d, const char *hex) {
    struct agent_job_record r;
    bool known = hex && daemon_job_recall(d, hex, &r) == NEB_OK;
    if (known)
        agent_job_record_clear(&r);
    return known;
}

// True if a job with this id has ended here and was removed (job_known.c).
static bool was_removed(struct daemon *d, const uint8_t id[AGENT_JOB_ID_BYTES], const char *hex,
                        char *why, size_t cap) {
    bool dropped = true;
    if (is_known(d, hex) ||
        (inter_ledger_was_dropped(inter_service_ledger(d->service), id, &dropped) == NEB_OK &&
         !dropped))
        return false;
    snprintf(why, cap,
             "a job with this id has ended at agent \"%s\" and was removed, and an id is never "
             "used twice: submit it as a new job, with another --out",
             daemon_name(d));
    return true;
}

static void set_home(const struct daemon *d, struct agent_jobrun *j, uint32_t home,
                     const char *owner) {
    if (home != j->home)
        agent_lines_destroy(&j->lines); // they were for another member
    j->local = home == UINT32_MAX;
    j->home = home;
    j->adopted = home == AGENT_PEER_NONE;
    snprintf(j->owner, sizeof j->owner, "%s",
             home < d->members.n ? d->members.m[home].pub.name
             : j->adopted        ? owner
                                 : "");
}

// A job that was reopened for a member keeps its entry for this time: otherwise jobs would displace
// each other in turn.
static const neb_ns reopened_for = 60 * NEB_S;

// A free entry, or that of the job that ended first: members that were away may still ask for the
// rounds of a recent job. NULL: all entries run.
static struct agent_jobrun *place_of(struct daemon *d) {
    struct agent_jobrun *best = NULL;
    for (int i = 0; i < AGENT_JOBS_MAX; i++) {
        struct agent_jobrun *j = &d->jobs[i];
        if (j->state == AGENT_JOB_NONE)
            return j;
        if (agent_job_ended(j->state) && (!best || j->over_at < best->over_at))
            best = j;
    }
    return best;
}

// home AGENT_PEER_NONE: the submitter is `owner`, which is not a member any more. over: the job has
// ended here and is not started: only its rounds are opened.
static struct agent_jobrun *accept_job(struct daemon *d, const char *hex, json_t *spec,
                                       uint32_t home, const char *owner, bool over, char *why,
                                       size_t cap) {
    char name[SEC_NAME_MAX];
    uint8_t id[AGENT_JOB_ID_BYTES];
    snprintf(name, sizeof name, "%s", owner); // owner may point into an entry that is cleared below
    if (!hex || !neb_unhex(hex, id, sizeof id)) {
        snprintf(why, cap, "a job id has %d hexadecimal digits, in lower case",
                 2 * AGENT_JOB_ID_BYTES);
        return NULL;
    }
    struct agent_jobrun *j = daemon_job(d, hex);
    if (!j && was_removed(d, id, hex, why, cap))
        return NULL;
    if (j && agent_job_active(j->state))
        return place_restart(d, j, spec, why, cap); // submitted twice
    if (j)
        daemon_job_forget(d, j);
    if (!j && !(j = place_of(d))) {
        snprintf(why, cap, "agent \"%s\" already runs %d jobs", daemon_name(d), AGENT_JOBS_MAX);
        return NULL;
    }
    if (j->state != AGENT_JOB_NONE)
        daemon_job_forget(d, j);
    *j = (struct agent_jobrun){.state = AGENT_JOB_NONE}; // also what a refused job left
    snprintf(why, cap, "agent \"%s\" cannot run the job; its log says why", daemon_name(d));
    if (agent_job_from_json(spec, &j->job) != NEB_OK)
        return NULL;
    memcpy(j->id, id, sizeof id);
    memcpy(j->hex, hex, sizeof j->hex);
    if (snprintf(j->dir, sizeof j->dir, "%s/jobs/%s", d->c->home, hex) >= (int)sizeof j->dir)
        return NULL;
    set_home(d, j, home, name);
    const char *by = j->owner[0] ? j->owner : daemon_name(d);
    if (!daemon_id_fits(d, by, hex, spec)) {
        snprintf(why, cap,
                 "the id %.8s does not belong to this specification, submitted by \"%s\" in the "
                 "federation of agent \"%s\": submit it as a new job, with another --out",
                 hex, by, daemon_name(d));
        return NULL;
    }
    if (!over && daemon_was_misnamed(d, id, by, why, cap))
        return NULL;
    bool known = is_known(d, hex);
    if (daemon_map_clusters(d, j, known, why, cap) != NEB_OK ||
        (!over && !policy_admits(d, j, why, cap)))
        return NULL;
    daemon_job_event(d, j, over ? AGENT_EV_REOPEN : AGENT_EV_START, NULL);
    j->spec = json_incref(spec);
    j->linked = j->job.sync.scheme == AGENT_SCHEME_FEDERATED && j->job.n_clusters > 1;
    j->federated =
        j->linked && (j->job.mode == AGENT_MODE_REPLICAS || agent_distill_federates(&j->job));
    bool witness = j->job.clusters[j->self].witness;
    if (agent_seal_fits(d->vault, d->c->home, j->hex) != NEB_OK ||
        (j->linked && recall_runs(d, j) != NEB_OK) ||
        (j->federated && !known && daemon_job_without_ledger(j) != NEB_OK) ||
        // if it was not confirmed: its giver is unknown now
        (j->federated && agent_snapshot_drop(j->dir, false) != NEB_OK) ||
        (j->federated && daemon_open_rounds(d, j) != NEB_OK) ||
        (!witness && !over && daemon_worker_begin(d, j, known || home != UINT32_MAX) != NEB_OK)) {
        char text[1024];
        neb_last_error(text, sizeof text);
        snprintf(why, cap, "agent \"%s\" cannot run the job: %s", daemon_name(d), text);
        daemon_job_forget(d, j);
        return NULL;
    }
    if (over)
        return j;
    daemon_job_save(d, j);
    neb_info("job %s (%.8s) starts", j->job.name, j->hex);
    return j;
}

struct agent_jobrun *daemon_job_accept(struct daemon *d, const char *hex, json_t *spec,
                                       uint32_t home, char *why, size_t cap) {
    return accept_job(d, hex, spec, home, "", false, why, cap);
}

// The submitter gets the job's reports, even if another member offered the job first. Its signature
// is passed on with the job.
void daemon_job_set_home(struct daemon *d, struct agent_jobrun *j, uint32_t home, const char *sig) {
    char owner[SEC_NAME_MAX];
    memcpy(owner, j->owner, sizeof owner);
    set_home(d, j, home, owner);
    snprintf(j->sig, sizeof j->sig, "%s", sig ? sig : "");
    daemon_job_save(d, j);
}

void daemon_job_resumed(struct daemon *d, struct agent_jobrun *j, int64_t run) {
    if (j->linked)
        daemon_withdraw_stop(d, j);
    j->run = run > j->run ? run : j->run;
    daemon_job_save(d, j);
}

// AGENT_PEER_NONE: the submitter is not a member any more, even if another member has its name.
static uint32_t home_of(const struct daemon *d, const struct agent_job_record *r) {
    const struct sec_member *m = r->home[0] ? sec_members_by_name(&d->members, r->home) : NULL;
    if (!r->home[0])
        return UINT32_MAX;
    return m && daemon_job_is_of_owner(d, r) ? (uint32_t)(m - d->members.m) : AGENT_PEER_NONE;
}

void daemon_job_reopen(struct daemon *d, const struct agent_job_record *r) {
    char why[512];
    const struct agent_jobrun *place = place_of(d);
    if (!place || (place->state && neb_now() - place->over_at < reopened_for))
        return;
    struct agent_jobrun *j =
        accept_job(d, r->hex, r->spec, home_of(d, r), r->home, true, why, sizeof why);
    if (!j) {
        neb_warn("job %.8s has ended here, and its rounds cannot be reopened: %s", r->hex, why);
        return;
    }
    inter_service_limit(d->service, j->id, NULL, false);
    memcpy(j->sig, r->sig, sizeof j->sig);
    j->adopted |= r->adopted;
    j->over_at = neb_now();
    neb_info("job %s (%.8s) has ended here; its rounds are reopened for a cluster that was away",
             j->job.name, j->hex);
}

bool daemon_job_resume(struct daemon *d, const struct agent_job_record *r, bool asked, char *why,
                       size_t cap) {
    uint32_t home = home_of(d, r);
    if (home == AGENT_PEER_NONE && !asked && !r->adopted) {
        snprintf(
            why, cap,
            sec_members_by_name(&d->members, r->home)
                ? "it is not signed with the keys of \"%s\", which submitted it: that name was "
                  "given to another member since, or its keys were changed while this agent "
                  "was away"
                : "\"%s\", which submitted it, is no longer a member",
            r->home);
        return false;
    }
    struct agent_jobrun *j = accept_job(d, r->hex, r->spec, home, r->home, false, why, cap);
    if (j && !j->local)
        daemon_job_set_home(d, j, home, r->sig);
    return j != NULL;
}

void daemon_job_resume_again(struct daemon *d, struct agent_jobrun *j) {
    struct agent_job_record r;
    char hex[sizeof r.hex], why[512];
    memcpy(hex, j->hex, sizeof hex);
    if (daemon_job_recall(d, hex, &r) != NEB_OK)
        return;
    if (!daemon_job_resume(d, &r, false, why, sizeof why))
        neb_log(NEB_LOG_ERROR, "job %.8s cannot continue: %s", hex, why);
    agent_job_record_clear(&r);
}
