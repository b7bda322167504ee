// SPDX-License-Identifier: Apache-2.0
// nebula plan JOB.yaml: predicts time and memory of a job, and proposes faster settings.
#include "agent/base/log.h"
#include "agent/base/number.h"
#include "agent/cli/cmd_options.h"
#include "agent/cli/plan_print.h"
#include "agent/job/json.h"
#include "agent/job/model_init.h"

#include <stdlib.h>
#include <string.h>

enum {
    RANKS_MAX = 1024, // limit of --ranks
    VOCAB_ASSUMED = 32000
};

static const double STEP_S_MIN = 1e-6, STEP_S_MAX = 1e6;

struct options {
    struct agent_options common; // its argument: a job file
    struct agent_list sets, sites, ranks, wans, steps;
    const char *tensors;
    int local;
    bool profile, measure, link, device, device_link;
};

// Splits NAME=VALUE. *i: the cluster of this name.
static enum neb_status cluster_of(const struct agent_job *job, const char *option, const char *text,
                                  int32_t *i, const char **value) {
    const char *eq = strchr(text, '=');
    if (eq)
        for (*i = 0; *i < job->n_clusters; ++*i) {
            const char *name = job->clusters[*i].name;
            if (strlen(name) == (size_t)(eq - text) && !strncmp(name, text, strlen(name))) {
                *value = eq + 1;
                return NEB_OK;
            }
        }
    return neb_fail(NEB_ERR_INVALID, "%s %s: expected CLUSTER=%s with a cluster of the job", option,
                    text,
                    !strcmp(option, "--site")   ? "FILE"
                    : !strcmp(option, "--step") ? "SECONDS"
                    : !strcmp(option, "--wan")  ? "RATE:DELAY"
                                                : "N");
}

// Finds wrong options before anything is measured.
static enum neb_status check_names(const struct options *a, const struct agent_job *job) {
    const char *value;
    int32_t i;
    for (int k = 0; k < a->sites.n; k++)
        NEB_TRY(cluster_of(job, "--site", a->sites.text[k], &i, &value));
    for (int k = 0; k < a->ranks.n; k++)
        NEB_TRY(cluster_of(job, "--ranks", a->ranks.text[k], &i, &value));
    for (int k = 0; k < a->steps.n; k++) {
        NEB_TRY(cluster_of(job, "--step", a->steps.text[k], &i, &value));
        if (job->clusters[i].launcher != AGENT_LAUNCHER_ATTACH)
            return neb_fail(NEB_ERR_INVALID,
                            "--step %s: the steps of this cluster are predicted; --step is only "
                            "for launcher attach",
                            a->steps.text[k]);
    }
    for (int k = 0; k < a->wans.n; k++)
        if (strchr(a->wans.text[k], '='))
            NEB_TRY(cluster_of(job, "--wan", a->wans.text[k], &i, &value));
    return NEB_OK;
}

static enum neb_status find_sites(const struct options *a, const struct agent_job *job,
                                  struct plan_machines *m) {
    const char *value;
    int32_t i;
    for (int k = 0; k < a->sites.n; k++) {
        NEB_TRY(cluster_of(job, "--site", a->sites.text[k], &i, &value));
        NEB_TRY(agent_profile_load(value, &m->sites[i].profile));
        m->sites[i].other = true;
        m->sites[i].share = m->sites[i].device_share = 1;
    }
    for (int k = 0; k < a->ranks.n; k++) {
        uint64_t n = 0; // parse_option has checked it
        NEB_TRY(cluster_of(job, "--ranks", a->ranks.text[k], &i, &value));
        if (neb_number_whole(value, 1, RANKS_MAX, &n))
            m->sites[i].ranks = (int32_t)n;
    }
    for (int k = 0; k < a->steps.n; k++) {
        NEB_TRY(cluster_of(job, "--step", a->steps.text[k], &i, &value));
        if (!neb_number_real(value, STEP_S_MIN, STEP_S_MAX, &m->sites[i].step_s))
            return neb_fail(NEB_ERR_INVALID, "--step %s: expected seconds", a->steps.text[k]);
    }
    if (job->attached) // the loops' own steps are not predicted
        return NEB_OK;
    return agent_planner_sites(job, a->local, a->measure, m->sites, &m->kept);
}

static enum neb_status find_link(const struct options *a, const struct agent_job *job,
                                 struct plan_machines *m) {
    const char *all = job->sync.link[0] ? job->sync.link : NULL, *where = "sync.link", *value;
    int32_t i;
    for (int k = 0; k < a->wans.n; k++) {
        if (!strchr(a->wans.text[k], '=')) {
            all = a->wans.text[k], where = "--wan";
            continue;
        }
        NEB_TRY(cluster_of(job, "--wan", a->wans.text[k], &i, &value));
        NEB_TRY(agent_wan_parse(value, "--wan", &m->sites[i].link));
    }
    if (all)
        return agent_wan_parse(all, where, &m->link);
    enum neb_status st =
        a->local ? NEB_ERR_NOT_FOUND : agent_planner_measured(a->common.home, job, &m->link);
    m->measured = st == NEB_OK;
    if (st != NEB_ERR_NOT_FOUND)
        return st;
    m->link = a->local ? (struct agent_wan){10e9, 1e-4, 0} : (struct agent_wan){100e6, 0.08, 0};
    m->assumed = true;
    return NEB_OK;
}

// Each cluster's own link, or the common one. If all have their own, nothing is assumed.
static enum neb_status find_links(const struct options *a, const struct agent_job *job,
                                  struct plan_machines *m) {
    bool open = false;
    NEB_TRY(find_link(a, job, m));
    for (int32_t i = 0; i < job->n_clusters; i++) {
        if (job->clusters[i].witness)
            continue;
        open = open || !(m->sites[i].link.bits_s > 0);
        m->sites[i].link = agent_planner_link(&m->sites[i], &m->link);
    }
    m->assumed = m->assumed && open;
    m->measured = m->measured && open;
    return NEB_OK;
}

static enum neb_status load(struct options *a, const char *file, struct agent_job *job) {
    enum neb_status st = agent_job_load(file, job);
    if (st != NEB_OK) // also for a missing or huge file: as nebula check
        return st == NEB_ERR_NOMEM ? st : NEB_ERR_INVALID;
    for (int i = 0; i < a->sets.n; i++)
        NEB_TRY(agent_job_set(job, a->sets.text[i]));
    NEB_TRY(agent_job_model_init(job, file));
    NEB_TRY(agent_job_validate(job, file));
    if (a->local && a->local != job->n_clusters)
        return neb_fail(NEB_ERR_INVALID, "--local %d, but the job has %d clusters", a->local,
                        job->n_clusters);
    if (a->local && job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
        a->local = 1; // one process, which has the machine to itself
    return NEB_OK;
}

// Judges the job as written, because nebula pretrain runs that. What fits instead is in the
// proposal.
static enum neb_status verdict(const struct agent_job *job, const struct plan_machines *m,
                               const struct agent_planner *written,
                               const struct agent_planner *proposed) {
    for (int32_t i = 0; i < written->n; i++) {
        const struct agent_cluster *c = &job->clusters[i];
        const struct agent_planned *x = &written->clusters[i];
        if (c->launcher == AGENT_LAUNCHER_ATTACH) // its trainer has its own model
            continue;
        if (!x->fits)
            return neb_fail(NEB_ERR_LIMIT, "cluster %s: the job does not fit%s", c->name,
                            proposed->clusters[i].fits ? " as written, but the proposal does"
                                                       : " with any choice");
        if (agent_planner_wants_devices(x, &m->sites[i]))
            return neb_fail(NEB_ERR_LIMIT, "cluster %s: %d ranks need a device each: there are %d",
                            c->name, x->job.ranks_a_host, m->sites[i].profile.rates.device.count);
    }
    return agent_planner_known(job, m->sites, written);
}

// *printed: the plan is printed, also if the job does not fit.
static enum neb_status plan_replicas(const struct options *a, const struct agent_job *job,
                                     const struct plan_machines *m, bool *printed) {
    static struct agent_job open; // large
    static struct agent_site sites[AGENT_CLUSTERS_MAX];
    struct agent_planner written, proposed;
    int32_t vocab;
    uint32_t all = AGENT_AUTO_BATCH | AGENT_AUTO_RECOMPUTE | AGENT_AUTO_INTERVAL |
                   AGENT_AUTO_OVERLAP | AGENT_AUTO_CODEC | AGENT_AUTO_MESH;
    if (job->sync.gate == AGENT_GATE_PRIVATE) // it allows one codec
        all &= ~(uint32_t)AGENT_AUTO_CODEC;
    NEB_TRY(agent_planner_vocab(job, &vocab));
    NEB_TRY(agent_planner_run(job, vocab, m->sites, &m->link, job->autos, &written));
    open = *job;
    for (int32_t i = 0; i < open.n_clusters; i++) {
        open.clusters[i].batch = 0;
        open.clusters[i].recompute = AGENT_RECOMPUTE_AS_JOB;
    }
    memcpy(sites, m->sites, sizeof sites);
    if (a->local > 1)
        agent_planner_deal(&open, all, sites);
    NEB_TRY(agent_planner_run(&open, vocab, sites, &m->link, all, &proposed));
    (a->common.json ? plan_print_json : plan_print)(job, m, &written, &proposed);
    *printed = true;
    return verdict(job, m, &written, &proposed);
}

// Gives roles to the clusters that are free. The sources of the generator move with its role.
static bool cast(const struct agent_planner_text *text, const struct plan_machines *m,
                 const bool *free, struct agent_job *job) {
    enum agent_role roles[AGENT_CLUSTERS_MAX];
    int was = agent_job_role(job, AGENT_ROLE_GENERATOR);
    if (!agent_planner_cast(job, text, m->sites, free, roles))
        return false;
    for (int32_t i = 0; i < job->n_clusters; i++) {
        job->clusters[i].role = roles[i];
        job->clusters[i].role_auto = false;
    }
    int now = agent_job_role(job, AGENT_ROLE_GENERATOR);
    if (was < 0 || now == was)
        return true;
    struct agent_cluster *from = &job->clusters[was], *to = &job->clusters[now];
    to->n_sources = from->n_sources;
    memcpy(to->sources, from->sources, sizeof to->sources);
    from->n_sources = 0;
    return true;
}

static bool all_fit(const struct agent_planner_streams *x) {
    bool fit = true;
    for (int32_t i = 0; i < x->n; i++)
        fit = fit && x->sides[i].fits;
    return fit;
}

static enum neb_status plan_streams(const struct options *a, struct agent_job *job,
                                    const struct plan_machines *m, bool *printed) {
    static struct agent_job best; // large
    static struct plan_streams p;
    bool open[AGENT_CLUSTERS_MAX], any[AGENT_CLUSTERS_MAX], autos = false, roles = false;
    NEB_TRY(agent_planner_text(job, &p.text));
    for (int32_t i = 0; i < job->n_clusters; i++) {
        open[i] = job->clusters[i].role_auto;
        autos = autos || open[i];
        // false: only students, who stay so
        roles = roles || job->clusters[i].role != AGENT_ROLE_STUDENT;
    }
    for (int32_t i = 0; i < job->n_clusters; i++)
        any[i] = roles;
    best = *job;
    if (autos)
        NEB_TRY(agent_planner_roles_known(job, m->sites));
    if (autos && !cast(&p.text, m, open, job))
        return neb_fail(NEB_ERR_LIMIT, "clusters.role: auto: the models do not fit into the "
                                       "clusters' memory with any choice of roles");
    if (!cast(&p.text, m, any, &best))
        best = *job;
    NEB_TRY(agent_planner_streams(job, &p.text, m->sites, &m->link, &p.written));
    NEB_TRY(agent_planner_streams_improve(&p.text, m->sites, &m->link, &best));
    NEB_TRY(agent_planner_streams(&best, &p.text, m->sites, &m->link, &p.proposed));
    p.job = job;
    p.best = &best;
    p.machines = m;
    (a->common.json ? plan_streams_print_json : plan_streams_print)(&p);
    *printed = true;
    if (all_fit(&p.written))
        return NEB_OK;
    return neb_fail(NEB_ERR_LIMIT, "the job does not fit%s",
                    all_fit(&p.proposed) ? " as written, but the proposal does"
                                         : " with any choice of roles");
}

// Without a corpus, only the vocabulary is missing from the model's shape.
static enum neb_status find_vocab(struct agent_job *job, struct plan_machines *m) {
    int32_t vocab = job->model.vocab;
    if (!vocab)
        NEB_TRY(agent_planner_vocab(job, &vocab));
    if (vocab)
        return NEB_OK;
    m->vocab_assumed = VOCAB_ASSUMED;
    job->model.vocab = VOCAB_ASSUMED + (job->mode == AGENT_MODE_RTD); // one more for the mask
    return NEB_OK;
}

static enum neb_status plan(struct options *a, bool *printed) {
    static struct agent_job job; // large
    static struct plan_machines m;
    NEB_TRY(load(a, a->common.args[0], &job));
    NEB_TRY(check_names(a, &job));
    NEB_TRY(find_sites(a, &job, &m));
    NEB_TRY(find_links(a, &job, &m));
    if (job.attached) {
        *printed = true;
        return plan_attached(&job, &m, a->tensors, a->common.json);
    }
    NEB_TRY(find_vocab(&job, &m));
    return job.mode == AGENT_MODE_REPLICAS ? plan_replicas(a, &job, &m, printed)
                                           : plan_streams(a, &job, &m, printed);
}

static enum neb_status print_profile(bool measure) {
    struct agent_profile p;
    bool kept;
    NEB_TRY(agent_profile_get(measure, &p, &kept));
    json_t *o = agent_profile_to_json(&p);
    agent_json_print(o, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(o);
    return NEB_OK;
}

static const char *value_of(const char *text) {
    const char *eq = strchr(text, '=');
    return eq ? eq + 1 : text;
}

static bool is_ranks(const char *text, void *options) {
    uint64_t n;
    (void)options;
    return neb_number_whole(value_of(text), 1, RANKS_MAX, &n);
}

static bool is_step(const char *text, void *options) {
    double seconds;
    (void)options;
    return neb_number_real(value_of(text), STEP_S_MIN, STEP_S_MAX, &seconds);
}

static bool is_wan(const char *text, void *options) {
    return agent_option_is_wan(value_of(text), options);
}

static const char *check(const void *options) {
    const struct options *a = options;
    return !a->common.n && !a->profile && !a->link && !a->device && !a->device_link
               ? "give a job file"
               : NULL;
}

static int run(void *options) {
    struct options *a = options;
    bool printed = false, link = a->link || a->device_link;
    enum neb_status st = link         ? agent_profile_link_rank(a->device_link)
                         : a->device  ? agent_profile_device_child()
                         : a->profile ? print_profile(a->measure)
                                      : plan(a, &printed);
    bool failed = st == NEB_ERR_LIMIT || st == NEB_ERR_NOMEM || st == NEB_ERR_NOSPC ||
                  st == NEB_ERR_IO || link || a->device;
    return agent_json_exit(a->common.json && !printed, st == NEB_OK ? AGENT_EXIT_OK
                                                       : failed     ? AGENT_EXIT_FAILED
                                                                    : AGENT_EXIT_USAGE);
}

static const struct agent_option table[] = {
    OPT_LIST("wan", 0, "RATE:DELAY[:LOSS]",
             "links between clusters, for example 100mbit:80ms:0.1% (default: sync.link, or what "
             "the agent has measured); CLUSTER=RATE:DELAY: the link of one cluster",
             AT(wans), is_wan, "[CLUSTER=]RATE:DELAY[:LOSS]"),
    OPT_TEXT("home", 0, "DIR", "home of the agent that has measured the links (default ~/.nebula)",
             AT(common.home)),
    OPT_INT("local", 0, "N", "as nebula pretrain --local N: the clusters share this machine",
            AT(local), 1, AGENT_CLUSTERS_MAX),
    OPT_LIST("site", 0, "CLUSTER=FILE",
             "machine of a cluster: FILE is the output of plan --profile there (default: "
             "clusters.profile, or this machine)",
             AT(sites), NULL, NULL),
    OPT_LIST("ranks", 0, "CLUSTER=N",
             "propose a mesh of N ranks (default: clusters.ranks, or the fastest)", AT(ranks),
             is_ranks, "CLUSTER=N with N from 1 to 1024"),
    OPT_LIST("step", 0, "CLUSTER=SECONDS",
             "time of a step of an attached trainer (default: that of the slowest other cluster)",
             AT(steps), is_step, "CLUSTER=SECONDS with seconds from 1e-6 to 1e6"),
    OPT_TEXT("tensors", 0, "FILE",
             "tensors of a job with model: attached, HOME/jobs/ID/tensors.json of an agent",
             AT(tensors)),
    OPT_SET("change a key, for example sync.interval=10", AT(sets)),
    OPT_FLAG("measure", 0, "measure this machine again", AT(measure)),
    OPT_FLAG("profile", 0, "print this machine's rates as JSON, for --site", AT(profile)),
    OPT_FLAG("measure-link", 0, NULL, AT(link)),
    OPT_FLAG("measure-device", 0, NULL, AT(device)),
    OPT_FLAG("measure-device-link", 0, NULL, AT(device_link)),
    OPT_JSON("machine-readable output"),
    OPT_END};

const struct agent_command cmd_plan = {
    .name = "plan",
    .summary = "predict time and memory of a job, propose faster settings",
    .options = table,
    .arguments = "JOB.yaml",
    .doc =
        "Predicts memory, step time, WAN traffic and stall of a job. Proposes mesh, micro-batch, "
        "recomputation, interval, overlap and codec; for modes rtd and distill roles, window and "
        "labels.\vRates are measured once (about ten seconds) and kept. Exit status 0: the job "
        "fits as written (auto has values); 1: it does not fit (even if the proposal does), or "
        "this is not known; 2: it is not valid.",
    .most = 1,
    .check = check,
    .size = sizeof(struct options),
    .run = run};
