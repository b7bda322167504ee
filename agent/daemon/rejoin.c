// SPDX-License-Identifier: Apache-2.0
// nebula rejoin: a cluster gives up its state of a job and continues with that of the others, as
// after the loss of its disk. For diverged members (inter/record/evidence.h), once the equivocator
// is revoked.
#include "agent/base/log.h"
#include "agent/daemon/state.h"
#include "agent/daemon/status.h"
#include "agent/job/sides.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool may(const struct daemon *d, const struct agent_job *job, char *why, size_t cap) {
    int left = 0;
    for (int i = 0; i < job->n_clusters; i++)
        left += !agent_job_only_votes(job, i) && strcmp(job->clusters[i].name, daemon_name(d)) &&
                sec_members_by_name(&d->members, job->clusters[i].name);
    const char *no =
        job->sync.scheme != AGENT_SCHEME_FEDERATED || job->mode != AGENT_MODE_REPLICAS
            ? "only replicas that exchange updates (mode: replicas, sync.scheme: federated) can "
              "take the others' state"
        : job->sync.gate == AGENT_GATE_PRIVATE
            ? "with sync.gate: private, seeds that were revealed for one history must not be "
              "revealed for another; start a new job from one cluster's checkpoint (init_from)"
        : !left ? "no other cluster that trains is left to take the state from"
                : NULL;
    snprintf(why, cap, "%s", no ? no : "");
    return !no;
}

// True if another cluster came back without a state and needs the one of this cluster.
static bool needed(const struct daemon *d, const struct agent_jobrun *j, char *why, size_t cap) {
    struct inter_job_status st;
    char names[320];
    if (!j || !inter_service_job_status(d->service, j->id, &st) || mset_empty(st.renewed))
        return false;
    agent_status_names(&j->job, st.renewed, names, sizeof names);
    snprintf(why, cap,
             "%s has given up its side, or lost its disk, and needs the state of this cluster: "
             "nebula resume continues with it",
             names);
    return true;
}

static enum neb_status put_aside(const char *dir, const char *former, const char *name) {
    char from[NEB_PATH_MAX], to[NEB_PATH_MAX];
    NEB_TRY(neb_path(from, sizeof from, dir, name));
    NEB_TRY(neb_path(to, sizeof to, former, name));
    if (neb_fs_exists(from) && rename(from, to) != 0)
        return neb_fail_errno("cannot rename %s", from);
    return NEB_OK;
}

// Keeps the state that is given up in DIR/former: checkpoints, and the steps of the merges. *any:
// there were checkpoints.
static enum neb_status clear_dir(const char *dir, bool *any) {
    static const char *const names[] = {"snapshot.bin", "snapshot.new", "snapshot.part"};
    char former[NEB_PATH_MAX], path[NEB_PATH_MAX];
    NEB_TRY(neb_path(former, sizeof former, dir, "former"));
    NEB_TRY(neb_path(path, sizeof path, dir, "checkpoint"));
    *any = neb_fs_exists(path);
    if (*any) {
        NEB_TRY(neb_fs_remove_tree(former));
        NEB_TRY(neb_fs_mkdirs(former, 0700));
        NEB_TRY(put_aside(dir, former, "checkpoint"));
    }
    if (neb_fs_exists(former))
        NEB_TRY(put_aside(dir, former, "merges.log"));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        NEB_TRY(neb_path(path, sizeof path, dir, names[i]));
        NEB_TRY(neb_fs_remove(path));
    }
    return neb_fs_exists(dir) ? neb_fs_sync_dir(dir) : NEB_OK;
}

enum neb_status daemon_job_without_ledger(const struct agent_jobrun *j) {
    bool any;
    NEB_TRY(clear_dir(j->dir, &any));
    if (any)
        neb_warn("job %s: this site has checkpoints of it, but its ledger does not know it, so "
                 "they prove nothing: it continues with the state of the others, as after the loss "
                 "of its disk (jobs/%s/former keeps the checkpoints)",
                 j->job.name, j->hex);
    return NEB_OK;
}

bool daemon_job_renew(struct daemon *d, const struct agent_job_record *r, char *why, size_t cap) {
    struct agent_job *job = calloc(1, sizeof *job);
    struct agent_jobrun *j = daemon_job(d, r->hex);
    char dir[NEB_PATH_MAX];
    uint8_t id[AGENT_JOB_ID_BYTES];
    bool any;
    snprintf(why, cap, "the agent's log says why");
    bool ok = job && neb_unhex(r->hex, id, sizeof id) &&
              agent_job_from_json(r->spec, job) == NEB_OK && may(d, job, why, cap) &&
              !needed(d, j, why, cap);
    free(job);
    if (!ok)
        return false;
    if (j)
        daemon_job_forget(d, j);
    if (snprintf(dir, sizeof dir, "%s/jobs/%s", d->c->home, r->hex) >= (int)sizeof dir ||
        clear_dir(dir, &any) != NEB_OK || inter_service_job_renew(d->service, id) != NEB_OK) {
        snprintf(why, cap,
                 "the job's data at this site could not be given up; the agent's log says why");
        return false;
    }
    neb_warn("job %.8s: this cluster's side is given up; it continues with the state of the others "
             "(jobs/%s/former keeps its checkpoints)",
             r->hex, r->hex);
    return true;
}

bool daemon_ledger_behind(struct daemon *d, struct agent_jobrun *j, uint32_t fragment,
                          uint32_t round) {
    struct inter_chain c = {.next = 0};
    char why[512], text[NEB_PATH_MAX + 1024];
    enum neb_status st = inter_ledger_chain(inter_service_ledger(d->service), j->id, fragment, &c);
    if ((st != NEB_OK && st != NEB_ERR_NOT_FOUND) || round <= c.next)
        return false;
    if (j->doubt.short_ledger || j->state != AGENT_JOB_RUNNING)
        return true;
    bool can = may(d, &j->job, why, sizeof why) && !needed(d, j, why, sizeof why);
    snprintf(
        text, sizeof text,
        "%s/ledger.db has lost commits: this cluster's worker has merged up to round %u of "
        "fragment %u, the ledger knows up to %u; %s%s",
        d->c->home, round, fragment, c.next,
        can ? "the cluster continues with the state of the others, as after the loss of its disk"
            : "the job cannot continue here: ",
        can ? "" : why);
    if (!can) {
        daemon_job_fail(d, j, text);
        return true;
    }
    j->doubt.short_ledger = true;
    daemon_report_fault(d, j, text);
    daemon_worker_replace(d, j);
    return true;
}

bool daemon_ledger_behind_done(struct daemon *d, struct agent_jobrun *j) {
    bool any;
    if (!j->doubt.short_ledger)
        return true;
    j->doubt.short_ledger = false;
    inter_service_job_close(d->service, j->id);
    if (clear_dir(j->dir, &any) == NEB_OK && inter_service_job_renew(d->service, j->id) == NEB_OK &&
        daemon_open_rounds(d, j) == NEB_OK)
        return true;
    daemon_job_worn(d, j,
                    "the job's data at this site could not be given up after its ledger had lost "
                    "commits; the agent's log says why");
    return false;
}
