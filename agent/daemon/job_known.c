// SPDX-License-Identifier: Apache-2.0
// Jobs in the ledger: looked up, resumed, held when the agent comes back, and removed.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/daemon/state.h"

#include <stdlib.h>
#include <string.h>

enum neb_status daemon_job_recall(struct daemon *d, const char *hex, struct agent_job_record *out) {
    uint8_t id[AGENT_JOB_ID_BYTES];
    *out = (struct agent_job_record){.spec = NULL};
    return neb_unhex(hex, id, sizeof id)
               ? agent_jobs_find(inter_service_ledger(d->service), hex, out)
               : NEB_ERR_INVALID;
}

static const char *member_name(const struct daemon *d, uint32_t home) {
    return home == UINT32_MAX ? daemon_name(d) : d->members.m[home].pub.name;
}

bool daemon_job_is_same(const struct daemon *d, const struct agent_job_record *r,
                        const json_t *spec, uint32_t home, char *why, size_t cap) {
    const char *owner = r->home[0] ? r->home : daemon_name(d);
    bool same = !strcmp(owner, member_name(d, home)) && !agent_job_differs(r->spec, spec);
    if (!same)
        snprintf(why, cap,
                 "agent \"%s\" knows another job with the id %.8s, which \"%s\" submitted; nebula "
                 "resume continues that one",
                 daemon_name(d), r->hex, owner);
    return same;
}

void daemon_job_later(struct daemon *d, const struct agent_job_record *known, json_t *spec,
                      const char *sig, int64_t run) {
    struct agent_jobrun *j = daemon_job(d, known->hex);
    struct agent_job_record r = *known;
    char kept[sizeof r.sig];
    snprintf(kept, sizeof kept, "%s", sig ? sig : "");
    r.spec = spec;
    r.run = run > r.run ? run : r.run;
    r.adopted = false;
    snprintf(r.state, sizeof r.state, "running");
    memcpy(r.sig, kept, sizeof r.sig);
    if (!j) {
        if (agent_jobs_put(inter_service_ledger(d->service), &r, NULL) != NEB_OK)
            neb_warn("the resume of job %.8s could not be stored", r.hex);
    } else {
        if (j->linked)
            daemon_withdraw_stop(d, j);
        j->run = r.run;
        j->adopted = false;
        memcpy(j->sig, r.sig, sizeof j->sig);
        json_decref(j->spec);
        j->spec = json_incref(spec); // it keeps the configuration with which it runs
        daemon_job_event(d, j, AGENT_EV_LATER, NULL);
    }
    neb_info("job %.8s is resumed, but this agent is ending: it continues when the agent is back",
             r.hex);
}

// Jobs in one state when this agent last ended (running: also by a crash or a reboot).
struct to_resume {
    const char *state; // the state of the jobs to collect
    int n, more;       // more: jobs for which there is no entry
    struct agent_job_record jobs[AGENT_JOBS_MAX];
};

static void collect_running(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                            const char *state) {
    struct to_resume *t = user;
    struct agent_job_record r;
    agent_job_record_read(id, spec, state, &r);
    bool runs = !strcmp(r.state, t->state) && r.spec;
    t->more += runs && t->n == AGENT_JOBS_MAX;
    if (runs && t->n < AGENT_JOBS_MAX)
        t->jobs[t->n++] = r;
    else
        agent_job_record_clear(&r);
}

// Holds a job that ran and must not start again: its files stay, and each start of the agent, or a
// resume by the operator, checks it again.
static void hold(struct daemon *d, struct agent_job_record *r, const char *why) {
    char text[1024];
    const char *name = json_string_value(json_object_get(r->spec, "job"));
    snprintf(text, sizeof text,
             "job %s (%.8s) ran before and is held: %s. Its data is kept; nebula resume %.8s "
             "continues it, nebula stop %.8s gives it up",
             name ? name : "?", r->hex, why, r->hex, r->hex);
    neb_log(NEB_LOG_ERROR, "%s", text);
    agent_view_event(d->view, NULL, daemon_name(d), text, neb_seconds(neb_wall_now()));
    snprintf(r->state, sizeof r->state, "held");
    d->aside_due = true;
    if (agent_jobs_put(inter_service_ledger(d->service), r, why) != NEB_OK)
        neb_warn("the state \"held\" of job %.8s could not be stored", r->hex);
}

enum neb_status daemon_job_end_known(struct daemon *d, struct agent_job_record *r,
                                     const char *why) {
    snprintf(r->state, sizeof r->state, "stopped");
    NEB_TRY(agent_jobs_put(inter_service_ledger(d->service), r, NULL));
    const struct sec_member *home = r->home[0] ? sec_members_by_name(&d->members, r->home) : NULL;
    if (home) // watchers of the job there wait for this
        daemon_post(d, (uint32_t)(home - d->members.m), AGENT_MSG_REPORT,
                    json_pack("{s:s,s:{s:s,s:b}}", "id", r->hex, "report", "name", daemon_name(d),
                              "stopped", 1),
                    true);
    neb_info("job %.8s %s: it is stopped here, with its last checkpoint", r->hex, why);
    return NEB_OK;
}

// Ends jobs that were stopping when this agent ended: they keep the checkpoint that they have.
static enum neb_status end_stopping(struct daemon *d) {
    struct to_resume t = {.state = "stopping"};
    enum neb_status st = inter_ledger_jobs(inter_service_ledger(d->service), collect_running, &t);
    for (int i = 0; i < t.n; i++) {
        if (st == NEB_OK)
            st = daemon_job_end_known(d, &t.jobs[i], "was stopping when this agent ended");
        agent_job_record_clear(&t.jobs[i]);
    }
    return st;
}

enum neb_status daemon_resume_jobs(struct daemon *d) {
    struct to_resume t = {.state = "running"};
    char why[512];
    NEB_TRY(end_stopping(d));
    enum neb_status st = inter_ledger_jobs(inter_service_ledger(d->service), collect_running, &t);
    t.state = "held"; // they get the entries that are left
    if (st == NEB_OK)
        st = inter_ledger_jobs(inter_service_ledger(d->service), collect_running, &t);
    if (t.more)
        neb_warn("%d more jobs ran before or are held, but an agent runs at most %d at a time: "
                 "nebula jobs lists them, nebula resume JOB-ID continues one",
                 t.more, AGENT_JOBS_MAX);
    for (int i = 0; i < t.n; i++) {
        if (st == NEB_OK && !daemon_job_resume(d, &t.jobs[i], false, why, sizeof why))
            hold(d, &t.jobs[i], why);
        agent_job_record_clear(&t.jobs[i]);
    }
    return st;
}

// ---- removal ----
//
// Data of ended jobs is kept for members that still need it. The jobs of another member have a
// limit: each one that is submitted and stopped leaves data, so a member could fill the disk. This
// site's own jobs stay until its operator removes them (nebula forget).

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
    if (j && agent_job_active(j->state))
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
    bool ends = (j && agent_job_active(j->state)) || !over;
    if (ends)
        snprintf(why, cap, "the job is %s: stop it first (nebula stop %.8s)",
                 j ? agent_job_shown(j->state) : r->state, r->hex);
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
