// SPDX-License-Identifier: Apache-2.0
// Snapshots in both directions. Members that are too far behind get one. If this member is too far
// behind, it fetches and adopts one.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/daemon/snapshot.h"
#include "agent/daemon/state.h"
#include "agent/job/sides.h"

// A giver keeps a source open for 3 s after somebody took an older state
// (inter/service/snapshot_give.c). A request within that time would get the same old state again.
static const neb_ns newer_after = 4 * NEB_S;

// Connected members that train, the nearest first.
static uint32_t holders(const struct daemon *d, const struct agent_jobrun *j,
                        uint32_t out[AGENT_CLUSTERS_MAX]) {
    double rtts[AGENT_CLUSTERS_MAX];
    uint32_t n = 0;
    struct member_set false_givers = daemon_false_givers(d, j);
    for (int i = 0; i < j->job.n_clusters; i++) {
        struct inter_peer_stats s;
        if (i == j->self || agent_job_only_votes(&j->job, i) || !d->up[j->peers[i]] ||
            mset_has(false_givers, i) || inter_service_stats(d->service, j->peers[i], &s) != NEB_OK)
            continue;
        double rtt = neb_seconds(s.link.rtt);
        uint32_t at = n++;
        for (; at > 0 && rtts[at - 1] > rtt; at--) {
            rtts[at] = rtts[at - 1];
            out[at] = out[at - 1];
        }
        rtts[at] = rtt;
        out[at] = j->peers[i];
    }
    return n;
}

// Some events repeat every few seconds while no member has a state to give: the first ones are
// logged, then one per minute.
static bool says(struct neb_throttle *q) {
    neb_ns now = neb_now();
    return neb_throttle_allows(q, now, 4) || neb_throttle_suppressed(q, now);
}

static void begin_join(struct daemon *d, struct agent_jobrun *j) {
    j->fetch.join = (struct agent_join){.since = neb_now(), .lag = daemon_rounds(d, j).lag};
    j->fetch.join.recv_bytes = daemon_link_totals(d, j).recv;
}

// Ends this cluster's part of the job, with both figures, if its link cannot keep up with the
// commits of the others.
static bool refused(struct daemon *d, struct agent_jobrun *j) {
    uint64_t recv = daemon_link_totals(d, j).recv,
             round_bytes = agent_snapshot_round_bytes(sec_vault_of(d->vault), j->dir, j->self);
    char text[512];
    struct agent_join_verdict v =
        agent_join_judge(&j->fetch.join, neb_now(), recv, daemon_rounds(d, j).lag, round_bytes);
    j->fetch.join.since = 0;
    if (!v.too_slow)
        return false;
    agent_join_explain(&v, round_bytes, text, sizeof text);
    daemon_job_leave(d, j, text);
    return true;
}

static bool waits_for_state(const struct agent_jobrun *j) {
    return agent_timer_at(&j->timers, AGENT_TIMER_BEHIND) != 0;
}

// True if this cluster has nothing to give: it had to start again, and waits for a state itself.
static bool stuck(const struct agent_jobrun *j) { return j->doubt.all && waits_for_state(j); }

static bool all_connected(const struct daemon *d, const struct agent_jobrun *j) {
    for (int i = 0; i < j->job.n_clusters; i++)
        if (i != j->self && !agent_job_only_votes(&j->job, i) && !mset_has(j->removed, i) &&
            !d->up[j->peers[i]])
            return false;
    return true;
}

// True if *since was set that long ago and has not been reset.
static bool lasts(neb_ns *since, neb_ns patience) {
    *since = *since ? *since : neb_now();
    return neb_now() - *since >= patience;
}

// Ends the job with an error if members diverged without a majority on either side, no member has
// an older checkpoint, and the updates since the start are gone: waiting helps nobody. All members
// must have been connected for a while. True: ended.
static bool hopeless(struct daemon *d, struct agent_jobrun *j) {
    // a member that restarts from an older checkpoint reports it within this time
    const neb_ns patience = 15 * NEB_S;
    if (!stuck(j) || !all_connected(d, j)) {
        j->fetch.hopeless_since = 0;
        return false;
    }
    if (!lasts(&j->fetch.hopeless_since, patience))
        return false;
    daemon_job_fail(d, j,
                    "after members computed different parameters from the same commits, no member "
                    "has an earlier state to return to: all checkpoints are later, and older "
                    "updates are gone; start a new job from an exported model, with "
                    "checkpoint.keep 3 or more, and check the machines' memory");
    return true;
}

static uint64_t ledger_rounds(const struct daemon *d, const struct agent_jobrun *j) {
    struct inter_chain c;
    uint64_t sum = 0;
    for (uint32_t f = 0; f < (uint32_t)agent_job_fragments(&j->job); f++)
        if (inter_ledger_chain(inter_service_ledger(d->service), j->id, f, &c) == NEB_OK)
            sum += c.next;
    return sum;
}

// Ends the job with an error if the worker waits for updates that are gone, all members that train
// are connected, none has a checkpoint to give, and no round ends (a member could write a
// checkpoint after it). True: ended.
static bool nowhere(struct daemon *d, struct agent_jobrun *j) {
    const neb_ns patience = 180 * NEB_S;
    uint64_t rounds = ledger_rounds(d, j);
    if (!waits_for_state(j) || !all_connected(d, j) || rounds != j->fetch.nowhere_rounds) {
        j->fetch.nowhere_since = 0;
        j->fetch.nowhere_rounds = rounds;
        return false;
    }
    if (!lasts(&j->fetch.nowhere_since, patience))
        return false;
    daemon_job_fail(
        d, j,
        "no member has a state of this job to continue from: their checkpoints are lost or "
        "damaged, and the updates since the start are gone; restore a checkpoint of one of them "
        "from a backup, or start a new job, with init_from if there is an exported model");
    return true;
}

void daemon_on_behind(void *user, const uint8_t job[INTER_ID_BYTES]) {
    struct daemon *d = user;
    struct agent_jobrun *j = daemon_job_by_id(d, job);
    struct inter_snapshot_progress p;
    uint32_t peers[AGENT_CLUSTERS_MAX], n = j ? holders(d, j, peers) : 0;
    char path[NEB_PATH_MAX];
    if (!n || j->state != AGENT_JOB_RUNNING || j->worker.replaced || daemon_proof_waits(j) ||
        neb_now() < j->fetch.ask_at || inter_service_snapshot_progress(d->service, job, &p))
        return;
    if (neb_fs_mkdirs(j->dir, 0700) != NEB_OK ||
        neb_path(path, sizeof path, j->dir, "snapshot") != NEB_OK)
        return;
    if (says(&j->fetch.log))
        daemon_report_fault(d, j, "too far behind for the others' ledgers; fetching a snapshot");
    begin_join(d, j);
    if (inter_service_snapshot_fetch(d->service, job, path, peers, n,
                                     agent_job_only_votes(&j->job, j->self)) != NEB_OK)
        neb_warn("job %s: no snapshot can be fetched now", j->job.name);
}

void daemon_ask_snapshot(struct daemon *d, struct agent_jobrun *j) {
    agent_timer_set(&j->timers, AGENT_TIMER_BEHIND, neb_now() + 5 * NEB_S);
    daemon_on_behind(d, j->id);
}

// The job's search, or a free place for one; NULL: searches of other jobs, not yet ended, take all
// places.
static struct agent_snapshot_search **search_of(struct daemon *d, const uint8_t *job) {
    struct agent_snapshot_search **place = NULL;
    for (int i = 0; i < INTER_SNAPSHOT_JOBS; i++) {
        struct agent_snapshot_search **s = &d->searches[i];
        if (*s && agent_snapshot_search_is(*s, job))
            return s;
        if (!place && (!*s || agent_snapshot_search_ended(*s)))
            place = s;
    }
    if (place)
        agent_snapshot_search_destroy(place); // frees the search of an earlier job
    return place;
}

enum neb_status daemon_on_snapshot_open(void *user, const uint8_t job[INTER_ID_BYTES],
                                        struct inter_snapshot_source *out) {
    struct daemon *d = user;
    struct agent_jobrun *j = daemon_job_by_id(d, job);
    if (!j || agent_job_only_votes(&j->job, j->self) || j->worker.replaced || stuck(j) ||
        neb_fault("snapshot.open"))
        return NEB_ERR_NOT_FOUND; // also if its own state is in doubt
    struct agent_snapshot_search **s = search_of(d, job);
    if (s && *s && agent_snapshot_search_ended(*s)) {
        NEB_TRY(agent_snapshot_open_take(s, inter_service_ledger(d->service), out));
        d->snapshots_given++;
        return NEB_OK;
    }
    if (s && !*s) {
        NEB_TRY(agent_snapshot_search(sec_vault_of(d->vault), job, j->dir, s));
    }
    return NEB_ERR_AGAIN;
}

void daemon_end_searches(struct daemon *d) {
    for (int i = 0; i < INTER_SNAPSHOT_JOBS; i++)
        agent_snapshot_search_destroy(&d->searches[i]);
}

void daemon_on_snapshot_close(void *user, struct inter_snapshot_source *s) {
    struct daemon *d = user;
    agent_snapshot_close(s);
    d->snapshots_given--;
}

// A snapshot that is not ahead of the ledger may still be ahead of the worker: a worker whose job
// folder was lost started again, and waits for a round whose updates are gone.
static bool helps_worker(struct daemon *d, struct agent_jobrun *j) {
    bool helps = false;
    for (uint32_t f = 0; waits_for_state(j) && !j->fetch.any && f < INTER_FRAGMENTS_MAX; f++)
        if (j->fetch.gone >> f & 1 &&
            agent_snapshot_passes(sec_vault_of(d->vault), inter_service_ledger(d->service), j->dir,
                                  f, j->fetch.gone_rounds[f])) {
            j->doubt.taken |= 1ull << f;
            helps = true;
        }
    return helps;
}

// The job is closed and opened again with the snapshot's records. The worker starts with it once
// the others confirm its state.
void daemon_on_snapshot_done(void *user, const uint8_t job[INTER_ID_BYTES], enum neb_status st,
                             const char *part, uint64_t header_bytes, uint32_t giver) {
    struct daemon *d = user;
    struct agent_jobrun *j = daemon_job_by_id(d, job);
    char text[512];
    bool came = st == NEB_OK;
    (void)part;
    if (!j || j->state != AGENT_JOB_RUNNING)
        return;
    if (st == NEB_ERR_NOT_FOUND && daemon_start_missing(d, j))
        return; // that cluster has not written them yet
    if (st == NEB_OK)
        st = agent_snapshot_accept(sec_vault_of(d->vault), j->dir, header_bytes);
    if (st == NEB_OK && daemon_start_arrived(d, j))
        return;
    if (st == NEB_OK && refused(d, j))
        return;
    if (st == NEB_OK) {
        daemon_job_save(d, j); // with the bytes sent and received so far
        inter_service_job_close(d->service, j->id);
        st = daemon_open_rounds(d, j);
        if (st != NEB_OK) { // use the ledger without the snapshot
            inter_service_job_close(d->service, j->id);
            if (daemon_open_rounds(d, j) != NEB_OK) {
                daemon_job_fail(
                    d, j,
                    "its rounds cannot be reopened after a snapshot; the agent's log says why");
                return;
            }
        } else if (!j->doubt.taken && !helps_worker(d, j) && agent_snapshot_useless(j->dir))
            st = NEB_ERR_AGAIN; // it is not ahead: ask for a newer one later
    }
    if (st == NEB_ERR_NOT_FOUND && (hopeless(d, j) || nowhere(d, j)))
        return;
    if (st != NEB_ERR_NOT_FOUND)
        j->fetch.nowhere_since = 0;
    if (st != NEB_OK) {
        neb_ns next = neb_now() + newer_after;
        j->fetch.ask_at = came && j->fetch.ask_at < next ? next : j->fetch.ask_at;
        snprintf(text, sizeof text, "no snapshot could be taken over in %.300s (%s); trying again",
                 j->dir, neb_status_name(st));
        if (says(&j->fetch.failed_log))
            daemon_report_fault(d, j, text);
        return;
    }
    // when all members compute again, their own earlier digests are in doubt too
    if (agent_job_only_votes(&j->job, j->self)) // a witness takes the records only
        daemon_note(d, j, "the records of a snapshot have arrived");
    else
        daemon_proof_begin(d, j, giver, !stuck(j));
}
