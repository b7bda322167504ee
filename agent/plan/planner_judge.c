// SPDX-License-Identifier: Apache-2.0
// May a job have what the planner chose? Not where the figures behind the choice are of another machine, or where there are none: a choice that
// rests on nothing looks like any other one, and the run is slow or ends for want of memory where nobody looks for the reason.
#include "agent/base/log.h"
#include "agent/plan/planner.h"

#include <math.h>

#define TELL_MACHINE                                                                               \
    "put what 'nebula plan --profile' prints there into a file and name it in clusters.profile"

// The key of cluster i that its machine decides; NULL: none.
static const char *decided_here(const struct agent_job *job, int32_t i) {
    const struct agent_cluster *c = &job->clusters[i];
    if (c->launcher == AGENT_LAUNCHER_ATTACH) // its trainer cuts its steps as it likes
        return NULL;
    return c->mesh_auto                                         ? "clusters.mesh"
           : job->autos & AGENT_AUTO_BATCH && !c->batch         ? "data.batch"
           : job->autos & AGENT_AUTO_RECOMPUTE && !c->recompute ? "recompute"
                                                                : NULL;
}

// The key that the slowest cluster's seconds a step decide, whichever it is.
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

// For one of these no seconds of a step are reckoned.
static void why_unknown(const struct agent_planned *x, const struct agent_site *s, char *out,
                        size_t cap) {
    if (agent_planner_wants_devices(x, s))
        snprintf(out, cap, "its %d ranks want a device each, and what is known of has %d",
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
                            "%s: auto cannot be decided, as nothing is known of cluster %s's "
                            "devices: " TELL_MACHINE ", or write the key down",
                            own, name);
        if (!(own || all) || isfinite(x->cost.step_s))
            continue;
        if (x->attached)
            return neb_fail(NEB_ERR_LIMIT,
                            "%s: auto cannot be decided, as a trainer attaches to cluster %s and "
                            "nobody knows how long its steps take: write the key down (nebula plan "
                            "--step %s=SECONDS says what would do)",
                            all, name, name);
        why_unknown(x, &sites[i], why, sizeof why);
        return neb_fail(NEB_ERR_LIMIT,
                        "%s: auto cannot be decided, as nobody knows how long cluster %s's steps "
                        "take: %s; " TELL_MACHINE " (nebula plan --measure measures this one "
                        "anew), or write the key down",
                        own ? own : all, name, why);
    }
    return NEB_OK;
}

enum neb_status agent_planner_roles_known(const struct agent_job *job,
                                          const struct agent_site *sites) {
    for (int32_t i = 0; i < job->n_clusters; i++)
        if (job->clusters[i].device == AGENT_DEVICE_CUDA && !sites[i].profile.rates.device.count)
            return neb_fail(NEB_ERR_LIMIT,
                            "clusters.role: auto cannot be decided, as nothing is known of cluster "
                            "%s's devices: " TELL_MACHINE ", or say which role each has",
                            job->clusters[i].name);
    return NEB_OK;
}

// What is reckoned with is another machine's memory than the cluster's.
static void warn_of_memory(const struct agent_cluster *c) {
    neb_warn("plan: cluster %s: this machine has not enough memory for its part, and nothing is "
             "known of its own machine: " TELL_MACHINE,
             c->name);
}

static enum neb_status too_large(const struct agent_job *job, int32_t i) {
    const struct agent_cluster *c = &job->clusters[i];
    bool all = c->mesh_auto && job->autos & AGENT_AUTO_BATCH && job->autos & AGENT_AUTO_RECOMPUTE &&
               !c->batch && !c->recompute;
    return neb_fail(NEB_ERR_LIMIT,
                    "plan: cluster %s has not enough memory for this model%s; nebula plan says "
                    "what is needed",
                    c->name,
                    all ? ", whatever is chosen"
                        : " as the job is written (mesh, data.batch and recompute take auto too)");
}

enum neb_status agent_planner_judge(const struct agent_job *job, const struct agent_site *sites,
                                    const struct agent_planner *p) {
    for (int32_t i = 0; i < p->n; i++) {
        const struct agent_planned *x = &p->clusters[i];
        const struct agent_cluster *c = &job->clusters[i];
        if (x->guessed && decided_by_all(job, p))
            neb_warn("plan: cluster %s: a trainer attaches, and its steps are taken to last as "
                     "long as the slowest other cluster's, as nothing is known of them",
                     c->name);
        if (x->attached)
            continue;
        if (x->no_mesh)
            return neb_fail(NEB_ERR_INVALID,
                            "clusters.ranks: cluster %s: no mesh of %d ranks divides the model and "
                            "the %d sequences of a step; say another number, or the mesh",
                            c->name, x->no_mesh, job->batch * job->accumulate);
        if (x->no_device && decided_by_all(job, p))
            neb_warn("plan: cluster %s: its steps are taken to last as long as on processors, as "
                     "nothing is known of its devices: " TELL_MACHINE,
                     c->name);
        if (x->fits || x->no_device)
            continue;
        if (!sites[i].assumed)
            return too_large(job, i);
        warn_of_memory(c);
    }
    return agent_planner_known(job, sites, p);
}
