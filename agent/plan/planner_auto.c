// SPDX-License-Identifier: Apache-2.0
// Sets the keys that say auto before a job goes to the agents, and finds what is known of machines
// and links.
#include "agent/base/log.h"
#include "agent/plan/planner_streams.h"
#include "agent/proc/gpus.h"
#include "agent/show/watch.h"
#include "intra/data/data.h"
#include "security/identity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum neb_status agent_planner_vocab(const struct agent_job *job, int32_t *vocab) {
    *vocab = 0;
    for (int32_t i = 0; i < job->n_clusters && !*vocab; i++) {
        char index[NEB_PATH_MAX];
        const char *dir = agent_job_corpus(job, i);
        struct intra_corpus *c = NULL;
        NEB_TRY(neb_path(index, sizeof index, dir, "corpus.json"));
        if (!neb_fs_exists(index))
            continue;
        NEB_TRY(intra_corpus_open(dir, false, &c));
        *vocab = intra_corpus_vocab(c);
        intra_corpus_close(&c);
    }
    return NEB_OK;
}

static bool any_role(const struct agent_job *job) {
    for (int32_t i = 0; i < job->n_clusters; i++)
        if (job->clusters[i].role_auto)
            return true;
    return false;
}

static bool any_auto(const struct agent_job *job) {
    bool any = job->autos != 0;
    for (int32_t i = 0; i < job->n_clusters; i++)
        any = any || job->clusters[i].mesh_auto;
    return any;
}

bool agent_planner_is_open(const struct agent_job *job) { return any_role(job) || any_auto(job); }

// ---- devices of --local -------------------------------------------------------------------------

static bool takes_device(const struct agent_cluster *c, const struct agent_site *s) {
    return !s->other && !c->witness && c->device != AGENT_DEVICE_CPU &&
           c->launcher != AGENT_LAUNCHER_ATTACH;
}

// Sets the ranks of each cluster. Returns the number for clusters whose number is open: an equal
// part of the devices that are left.
static int32_t ranks_of(const struct agent_job *job, uint32_t free, int32_t count,
                        const struct agent_site *sites, int32_t *ranks) {
    int32_t left = count, open = 0;
    for (int32_t i = 0; i < job->n_clusters; i++) {
        const struct agent_cluster *c = &job->clusters[i];
        bool choose = free & AGENT_AUTO_MESH || c->mesh_auto;
        ranks[i] = !takes_device(c, &sites[i]) ? 0
                   : !choose                   ? agent_cluster_ranks(c)
                                               : sites[i].ranks;
        open += takes_device(c, &sites[i]) && choose && !sites[i].ranks;
        // with more ranks than devices, auto uses processors
        left -= ranks[i] <= count ? ranks[i] : 0;
    }
    return open && left > open ? left / open : 1;
}

void agent_planner_deal(const struct agent_job *job, uint32_t free, struct agent_site *sites) {
    struct agent_gpus gpus;
    uint64_t taken[AGENT_CLUSTERS_MAX] = {0};
    int32_t ranks[AGENT_CLUSTERS_MAX], users[AGENT_GPUS_MAX] = {0}, count = 0;
    for (int32_t i = 0; i < job->n_clusters; i++)
        if (takes_device(&job->clusters[i], &sites[i]))
            count = sites[i].profile.rates.device.count;
    int32_t part = ranks_of(job, free, count, sites, ranks);
    agent_gpus_find(getenv("CUDA_VISIBLE_DEVICES"), AGENT_GPUS_DRIVER, &gpus);
    for (int32_t i = 0; i < job->n_clusters; i++) {
        const struct agent_cluster *c = &job->clusters[i];
        sites[i].devices = 0;
        if (!takes_device(c, &sites[i]))
            continue;
        if (!ranks[i])
            ranks[i] = sites[i].devices = part;
        if (agent_local_deals(c))
            taken[i] = agent_gpus_take(&gpus, ranks[i]);
        bool first = !taken[i]; // no devices are dealt out: ranks begin at the first one
        for (int32_t k = 0; k < AGENT_GPUS_MAX && ranks[i] <= count; k++) {
            taken[i] |= (uint64_t)(first && k < ranks[i]) << k;
            users[k] += (int32_t)(taken[i] >> k & 1);
        }
    }
    for (int32_t i = 0; i < job->n_clusters; i++) {
        int32_t most = 1;
        for (int32_t k = 0; k < AGENT_GPUS_MAX; k++)
            most = taken[i] >> k & 1 && users[k] > most ? users[k] : most;
        sites[i].device_share = sites[i].other ? sites[i].device_share : 1.0 / most;
    }
}

// ---- machines and links -------------------------------------------------------------------------

enum neb_status agent_planner_sites(const struct agent_job *job, int local, bool measure,
                                    struct agent_site *sites, bool *kept) {
    static struct agent_profile here; // large
    bool have = false;
    *kept = false;
    for (int32_t i = 0; i < job->n_clusters; i++) {
        if (sites[i].other) // an option names its file
            continue;
        sites[i].share = local ? 1.0 / local : 1;
        sites[i].assumed = !local && !job->clusters[i].profile[0];
        if (job->clusters[i].profile[0]) {
            NEB_TRY(agent_profile_load(job->clusters[i].profile, &sites[i].profile));
            sites[i].other = true;
            sites[i].share = 1;
            continue;
        }
        if (!have)
            NEB_TRY(agent_profile_get(measure, &here, kept));
        have = true;
        sites[i].profile = here;
    }
    if (local > 1) // 1: one cluster, or one process for all
        agent_planner_deal(job, job->autos, sites);
    return NEB_OK;
}

static bool is_cluster(const struct agent_job *job, const char *name) {
    for (int32_t i = 0; name && i < job->n_clusters; i++)
        if (!job->clusters[i].witness && !strcmp(job->clusters[i].name, name))
            return true;
    return false;
}

static enum neb_status ask_links(const char *home, const struct agent_job *job,
                                 struct agent_wan *out) {
    struct agent_ipc_msg m = {0};
    const json_t *peer;
    size_t k;
    bool known = false, all = true;
    NEB_TRY(agent_ask(home, json_pack("{s:s}", "op", "status"), &m));
    *out = (struct agent_wan){.bits_s = INFINITY};
    json_array_foreach(json_object_get(m.head, "peers"), k, peer) {
        double bps = json_number_value(json_object_get(peer, "goodput_bps")),
               rtt = json_number_value(json_object_get(peer, "rtt_ms")) * 1e-3;
        if (!is_cluster(job, json_string_value(json_object_get(peer, "name"))))
            continue;
        known = true;
        all = all && bps > 0 && rtt > 0;
        out->bits_s = fmin(out->bits_s, bps);
        out->rtt_s = fmax(out->rtt_s, rtt);
    }
    agent_ipc_msg_clear(&m);
    return known && all ? NEB_OK : NEB_ERR_NOT_FOUND;
}

enum neb_status agent_planner_measured(const char *home_given, const struct agent_job *job,
                                       struct agent_wan *out) {
    char home[NEB_PATH_MAX], socket[NEB_PATH_MAX];
    NEB_TRY(sec_home(home_given, home, sizeof home));
    NEB_TRY(neb_path(socket, sizeof socket, home, "agent.sock"));
    return agent_ipc_is_here(socket) ? ask_links(home, job, out) : NEB_ERR_NOT_FOUND;
}

static enum neb_status link_of(const struct agent_job *job, int local, const char *link,
                               const char *home, struct agent_wan *out) {
    *out = (struct agent_wan){10e9, 1e-4, 0}; // loopback
    if (link && *link)
        return agent_wan_parse(link, "--wan", out);
    if (job->sync.link[0])
        return agent_wan_parse(job->sync.link, "sync.link", out);
    if (local || !(job->autos & (AGENT_AUTO_INTERVAL | AGENT_AUTO_OVERLAP | AGENT_AUTO_CODEC)))
        return NEB_OK;
    enum neb_status st = agent_planner_measured(home, job, out);
    if (st == NEB_ERR_NOT_FOUND)
        return neb_fail(NEB_ERR_INVALID,
                        "sync: auto needs the rates of the links between the clusters, and this "
                        "site's agent has not measured all of them yet: set sync.link (for example "
                        "100mbit:80ms)");
    if (st == NEB_OK)
        neb_info("plan: the agent has measured the links: %.3g Mbit/s, %.3g ms", out->bits_s * 1e-6,
                 out->rtt_s * 1e3);
    return st;
}

// Chosen values have no line in the job file, so errors must not name one.
static enum neb_status validate_chosen(struct agent_job *job, const char *where) {
    memset(job->lines, 0, sizeof job->lines);
    job->clusters_line = 0;
    return agent_job_validate(job, where);
}

// ---- roles --------------------------------------------------------------------------------------

enum neb_status agent_planner_roles_resolve(struct agent_job *job, int local) {
    static struct agent_site sites[AGENT_CLUSTERS_MAX]; // large
    struct agent_planner_text text;
    enum agent_role roles[AGENT_CLUSTERS_MAX];
    bool free[AGENT_CLUSTERS_MAX], kept;
    if (!any_role(job))
        return NEB_OK;
    memset(sites, 0, sizeof sites);
    for (int32_t i = 0; i < job->n_clusters; i++)
        if (!local && !job->clusters[i].profile[0])
            return neb_fail(NEB_ERR_INVALID,
                            "clusters.role: auto cannot be decided, because the machine of cluster "
                            "%s is not known: run 'nebula plan --profile' there, put its output "
                            "into a file and name the file in clusters.profile; or set the role "
                            "(nebula pretrain --local knows this machine)",
                            job->clusters[i].name);
    NEB_TRY(agent_planner_text(job, &text));
    NEB_TRY(agent_planner_sites(job, local, false, sites, &kept));
    NEB_TRY(agent_planner_roles_known(job, sites));
    for (int32_t i = 0; i < job->n_clusters; i++)
        free[i] = job->clusters[i].role_auto;
    if (!agent_planner_cast(job, &text, sites, free, roles))
        return neb_fail(NEB_ERR_LIMIT,
                        "clusters.role: auto: the models do not fit into the clusters' memory with "
                        "any choice of roles (nebula plan shows what is needed)");
    for (int32_t i = 0; i < job->n_clusters; i++) {
        if (job->clusters[i].role_auto)
            neb_info("plan: cluster %s is the %s", job->clusters[i].name,
                     agent_role_name(roles[i]));
        job->clusters[i].role = roles[i];
        job->clusters[i].role_auto = false;
    }
    return validate_chosen(job, "role: auto");
}

// ---- keys ---------------------------------------------------------------------------------------

static void tell(const struct agent_planner *p, const struct agent_site *sites,
                 const struct agent_job *job) {
    for (int32_t i = 0; i < p->n; i++) {
        if (p->clusters[i].attached)
            continue;
        neb_info("plan: cluster %s%s%s: mesh {dp: %d, pp: %d, tp: %d}, %d x %d sequences a step%s, "
                 "%.3g s a step",
                 job->clusters[i].name, p->clusters[i].job.device ? " on " : "",
                 p->clusters[i].job.device ? sites[i].profile.device : "",
                 p->clusters[i].job.mesh.dp, p->clusters[i].job.mesh.pp, p->clusters[i].job.mesh.tp,
                 p->clusters[i].job.micros, p->clusters[i].job.batch,
                 p->clusters[i].job.recompute ? ", recomputing" : "", p->clusters[i].cost.step_s);
    }
    if (p->wan.interval)
        neb_info(
            "plan: interval %d, overlap %d, codec %s: workers wait %.3g s of %.3g s per interval",
            p->wan.interval, p->wan.overlap, job->sync.codec, p->wan.stall_s,
            p->wan.step_s * p->wan.interval);
}

enum neb_status agent_planner_resolve(struct agent_job *job, int local, const char *link_text,
                                      const char *home) {
    int32_t vocab;
    static struct agent_site sites[AGENT_CLUSTERS_MAX]; // large
    struct agent_planner plan;
    struct agent_wan link;
    bool kept;
    NEB_TRY(agent_planner_roles_resolve(job, local));
    if (!any_auto(job))
        return NEB_OK;
    memset(sites, 0, sizeof sites);
    NEB_TRY(agent_planner_vocab(job, &vocab));
    NEB_TRY(link_of(job, local, link_text, home, &link));
    NEB_TRY(agent_planner_sites(job, local, false, sites, &kept));
    NEB_TRY(agent_planner_run(job, vocab, sites, &link, job->autos, &plan));
    NEB_TRY(agent_planner_judge(job, sites, &plan));
    agent_planner_apply(&plan, job->autos, job);
    tell(&plan, sites, job);
    return validate_chosen(job, "auto");
}

// ---- a run that continues -----------------------------------------------------------------------

static void take_cluster(const struct agent_cluster *was, uint32_t autos, struct agent_cluster *c) {
    if (c->role_auto && was->role) {
        c->role = was->role;
        c->role_auto = false;
    }
    if (c->mesh_auto && (!c->ranks || c->ranks == agent_cluster_ranks(was))) {
        c->mesh = was->mesh;
        c->mesh_auto = false;
        c->ranks = 0;
    }
    if (autos & AGENT_AUTO_BATCH && !c->batch)
        c->batch = was->batch;
    if (autos & AGENT_AUTO_RECOMPUTE && !c->recompute)
        c->recompute = was->recompute;
}

void agent_planner_take(const struct agent_job *chosen, struct agent_job *job) {
    uint32_t autos = job->autos;
    if (chosen->batch * chosen->accumulate != job->batch * job->accumulate)
        autos &= ~(uint32_t)AGENT_AUTO_BATCH;
    if (autos & AGENT_AUTO_BATCH) {
        job->batch = chosen->batch;
        job->accumulate = chosen->accumulate;
    }
    if (autos & AGENT_AUTO_RECOMPUTE)
        job->recompute = chosen->recompute;
    if (autos & AGENT_AUTO_INTERVAL)
        job->sync.interval = chosen->sync.interval;
    if (autos & AGENT_AUTO_OVERLAP)
        job->sync.overlap = chosen->sync.overlap;
    if (autos & AGENT_AUTO_CODEC)
        memcpy(job->sync.codec, chosen->sync.codec, sizeof job->sync.codec);
    job->autos &= ~autos;
    for (int32_t i = 0; i < job->n_clusters && i < chosen->n_clusters; i++)
        if (!strcmp(job->clusters[i].name, chosen->clusters[i].name))
            take_cluster(&chosen->clusters[i], autos, &job->clusters[i]);
}
