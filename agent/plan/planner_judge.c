// SPDX-License-Identifier: Apache-2.0
// Checks that a job may use what the planner chose. It may not if the choice rests on figures of
// another machine, or on no figures. Then the run would be slow or run out of memory, and nothing
// would point to the reason.
#include "agent/base/log.h"
#include "agent/plan/planner.h"

#include <math.h>

#define TELL_MACHINE                                                                               \
    "run 'nebula plan --profile' there, put its output into a file and name the file in "          \
    "clusters.profile"

// The `auto` key of cluster i that its machine decides; NULL: none.
static const char *decided_here(const struct agent_job *job, int32_t i) {
    const struct agent_cluster *c = &job->clusters[i];
    if (c->launcher == AGENT_LAUNCHER_ATTACH) // its trainer chooses its own micro-batches
        return NULL;
    return c->mesh_auto                                         ? "clusters.mesh"
           : job->autos & AGENT_AUTO_BATCH && !c->batch         ? "data.batch"
           : job->autos & AGENT_AUTO_RECOMPUTE && !c->recompute ? "recompute"
                                                                : NULL;
}

// The `auto` key that depends on the seconds per step of the slowest cluster; NULL: none.
static const char *decided_by_all(const struct agent_job *job, const struct agent_planner *p) {
    if (job->sync.scheme != AGENT_SCHEME_FEDERATED || p->n < 2)
        return NULL;
    return job->autos & AGENT_AUTO_INTERVAL  ? "sync.interval"
           : job->autos & AGENT_AUTO_OVERLAP ? "sync.overlap"
           : job->autos & AGENT_AUTO_CODEC   ? "sync.codec"
                                             : NULL;
}

bool agent_planner_wants_devices(const struct agent_planned *x, const struct agent_site *s) {
    return x->job.device && x->job.ranks_a_host > s->profile.rates.device.count;
}

// Why the seconds per step of a cluster cannot be predicted: one of these reasons.
static void why_unknown(const struct agent_planned *x, const struct agent_site *s, char *out,
                        size_t cap) {
    if (agent_planner_wants_devices(x, s))
        snprintf(out, cap, "each of its %d ranks needs a device, and the known machine has %d",
                 x->job.ranks_a_host, s->profile.rates.device.count);
    else
        snprintf(out, cap, "the link between two %s has not been measured",
                 x->job.device ? "devices" : "ranks");
}

enum neb_status agent_planner_known(const struct agent_job *job, const struct agent_site *sites,
                                    const struct agent_planner *p) {
    const char *all = decided_by_all(job, p);
    char why[128];
    for (int32_t i = 0; i < p->n; i++) {
        const struct agent_planned *x = &p->clusters[i];
        const char *name = job->clusters[i].name, *own = decided_here(job, i);
        if (own && x->no_device)
            return neb_fail(NEB_ERR_LIMIT,
                            "%s: auto cannot be decided, because the devices of cluster %s are not "
                            "known: " TELL_MACHINE "; or set the key",
                            own, name);
        if (!(own || all) || isfinite(x->cost.step_s))
            continue;
        if (x->attached)
            return neb_fail(NEB_ERR_LIMIT,
                            "%s: auto cannot be decided, because a trainer attaches to cluster %s "
                            "and the time of its steps is not known: set the key (nebula plan "
                            "--step %s=SECONDS shows a good value)",
                            all, name, name);
        why_unknown(x, &sites[i], why, sizeof why);
        return neb_fail(NEB_ERR_LIMIT,
                        "%s: auto cannot be decided, because the time of cluster %s's steps is not "
                        "known: %s; " TELL_MACHINE " (nebula plan --measure measures this machine "
                        "again), or set the key",
                        own ? own : all, name, why);
    }
    return NEB_OK;
}

enum neb_status agent_planner_roles_known(const struct agent_job *job,
                                          const struct agent_site *sites) {
    for (int32_t i = 0; i < job->n_clusters; i++)
        if (job->clusters[i].device == AGENT_DEVICE_CUDA && !sites[i].profile.rates.device.count)
            return neb_fail(NEB_ERR_LIMIT,
                            "clusters.role: auto cannot be decided, because the devices of cluster "
                            "%s are not known: " TELL_MACHINE "; or set the roles",
                            job->clusters[i].name);
    return NEB_OK;
}

// The memory in the plan is this machine's, not that of the cluster's machine.
static void warn_of_memory(const struct agent_cluster *c) {
    neb_warn("plan: cluster %s: this machine has too little memory for its part, and the machine "
             "of the cluster is not known: " TELL_MACHINE,
             c->name);
}

static enum neb_status too_large(const struct agent_job *job, int32_t i) {
    const struct agent_cluster *c = &job->clusters[i];
    bool all = c->mesh_auto && job->autos & AGENT_AUTO_BATCH && job->autos & AGENT_AUTO_RECOMPUTE &&
               !c->batch && !c->recompute;
    return neb_fail(NEB_ERR_LIMIT,
                    "plan: cluster %s has too little memory for this model%s (nebula plan shows "
                    "what is needed)",
                    c->name,
                    all ? " with any choice"
                        : " with the job's settings (mesh, data.batch and recompute can be auto)");
}

enum neb_status agent_planner_judge(const struct agent_job *job, const struct agent_site *sites,
                                    const struct agent_planner *p) {
    for (int32_t i = 0; i < p->n; i++) {
        const struct agent_planned *x = &p->clusters[i];
        const struct agent_cluster *c = &job->clusters[i];
        if (x->guessed && decided_by_all(job, p))
            neb_warn(
                "plan: cluster %s: a trainer attaches, and the time of its steps is not known: "
                "the plan uses that of the slowest other cluster",
                c->name);
        if (x->attached)
            continue;
        if (x->no_mesh)
            return neb_fail(NEB_ERR_INVALID,
                            "clusters.ranks: cluster %s: no mesh of %d ranks divides the model and "
                            "the %d sequences of a step: set another number, or the mesh",
                            c->name, x->no_mesh, job->batch * job->accumulate);
        if (x->no_device && decided_by_all(job, p))
            neb_warn("plan: cluster %s: its devices are not known, so the plan uses the time of "
                     "steps on processors: " TELL_MACHINE,
                     c->name);
        if (x->fits || x->no_device)
            continue;
        if (!sites[i].assumed)
            return too_large(job, i);
        warn_of_memory(c);
    }
    return agent_planner_known(job, sites, p);
}
