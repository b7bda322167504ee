// SPDX-License-Identifier: Apache-2.0
// Ended jobs of other members. Their folders, rounds and updates are kept for members that still
// need them, but not without limit: each job that is submitted and stopped leaves data, and a
// member could fill the disk. This site's own jobs stay until its operator removes them (nebula
// forget).
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/daemon/state.h"

#include <stdlib.h>
#include <string.h>

// The keys of masked sums follow from the members' keys and the job id. If an id were used twice,
// the masks would repeat, and the sums of the second job would open those of the first.
static bool id_is_for_ever(struct daemon *d, const char *hex) {
    struct agent_job_record r;
    if (daemon_job_recall(d, hex, &r) != NEB_OK)
        return true; // unreadable: it may be a private job
    const char *gate = json_string_value(json_object_get(r.spec, "sync.gate"));
    bool private = gate && !strcmp(gate, "private");
    agent_job_record_clear(&r);
    return private;
}

// The row of the ledger is removed last: if something remains, the removal is retried.
static enum neb_status drop(struct daemon *d, const uint8_t id[AGENT_JOB_ID_BYTES],
                            const char *hex) {
    struct agent_jobrun *j = daemon_job(d, hex);
    char dir[NEB_PATH_MAX], jobs[NEB_PATH_MAX];
    if (j && j->state != AGENT_JOB_ENDED)
        return NEB_OK; // it has just been resumed
    if (j)
        daemon_job_forget(d, j);
    NEB_TRY(neb_path(jobs, sizeof jobs, d->c->home, "jobs"));
    NEB_TRY(neb_path(dir, sizeof dir, jobs, hex));
    if (neb_fs_exists(dir))
        NEB_TRY(neb_fs_remove_tree(dir));
    NEB_TRY(inter_streams_close(inter_service_streams(d->service), id, true));
    d->aside_due = true;
    return inter_service_job_drop(d->service, id, id_is_for_ever(d, hex));
}

bool daemon_job_forgotten(struct daemon *d, const struct agent_job_record *r, char *why,
                          size_t cap) {
    const struct agent_jobrun *j = daemon_job(d, r->hex);
    uint8_t id[AGENT_JOB_ID_BYTES];
    bool over =
        !strcmp(r->state, "done") || !strcmp(r->state, "stopped") || !strcmp(r->state, "failed");
    bool ends = (j && j->state != AGENT_JOB_ENDED) || !over;
    if (ends)
        snprintf(why, cap, "the job is %s: stop it first (nebula stop %.8s)",
                 j ? agent_job_state_name(j) : r->state, r->hex);
    else if (!neb_unhex(r->hex, id, sizeof id) || drop(d, id, r->hex) != NEB_OK)
        snprintf(why, cap, "not all of it could be removed; the agent's log says why. Try again");
    else
        return true;
    return false;
}

void daemon_drop_ended(struct daemon *d) {
    size_t n = 0, most = d->c->ended_max ? d->c->ended_max : (size_t)DAEMON_ENDED_MAX;
    struct agent_ended_job *list = NULL;
    if (!d->ended_due)
        return;
    d->ended_due = false;
    if (agent_jobs_ended(inter_service_ledger(d->service), most, &list, &n) != NEB_OK)
        neb_warn("the list of ended jobs cannot be read; none is removed");
    for (size_t i = 0; i < n; i++) {
        char hex[2 * AGENT_JOB_ID_BYTES + 1];
        neb_hex(list[i].id, sizeof list[i].id, hex);
        if (drop(d, list[i].id, hex) == NEB_OK)
            neb_info("ended job %.8s of %s is removed: %zu newer ones of that member are kept", hex,
                     list[i].home, most);
        else
            neb_warn("ended job %.8s of %s could not be removed", hex, list[i].home);
    }
    free(list);
}
