// nebula plan JOB.yaml: how long will it take, will it fit, what would be faster?
#include "agent/base/log.h"
#include "agent/commands.h"
#include "agent/json.h"
#include "agent/model_init.h"
#include "agent/plan_print.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

enum {
    SETS_MAX = 64,
    KEY_WAN = 256,
    KEY_LOCAL,
    KEY_SITE,
    KEY_RANKS,
    KEY_PROFILE,
    KEY_MEASURE,
    KEY_LINK,
    KEY_TEACHER,
    KEY_GENERATOR
};

struct named { // NAME=VALUE
    const char *sets[SETS_MAX];
    int n;
};

struct arguments {
    const char *file, *wan, *stream; // stream: the job file of a teacher or generator
    struct named sets, sites, ranks;
    int local;
    bool json, profile, measure, link, serves;
};

// Splits NAME=VALUE; index of the cluster of this name.
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
    return neb_fail(NEB_ERR_INVALID, "%s %s: write it as CLUSTER=%s, with a cluster of the job",
                    option, text, !strcmp(option, "--site") ? "FILE" : "N");
}

static enum neb_status find_sites(const struct arguments *a, const struct agent_job *job,
                                  struct plan_machines *m) {
    const char *value;
    int32_t i;
    bool all = a->sites.n >= job->n_clusters && !a->local;
    if (!all)
        NEB_TRY(agent_profile_get(a->measure, &m->here, &m->kept));
    for (i = 0; i < job->n_clusters; i++)
        m->sites[i] =
            (struct agent_site){.profile = m->here, .share = a->local ? 1.0 / a->local : 1};
    for (int k = 0; k < a->sites.n; k++) {
        NEB_TRY(cluster_of(job, "--site", a->sites.sets[k], &i, &value));
        NEB_TRY(agent_profile_load(value, &m->sites[i].profile));
        m->sites[i].other = true;
    }
    for (i = 0; i < job->n_clusters; i++)
        if (!m->sites[i].profile.host[0])
            return neb_fail(NEB_ERR_INVALID, "--site: none is given for cluster %s",
                            job->clusters[i].name);
    for (int k = 0; k < a->ranks.n; k++) {
        char *end = NULL;
        NEB_TRY(cluster_of(job, "--ranks", a->ranks.sets[k], &i, &value));
        long n = strtol(value, &end, 10);
        if (!*value || *end || n < 1 || n > 1024)
            return neb_fail(NEB_ERR_INVALID, "--ranks %s: not in 1..1024", a->ranks.sets[k]);
        m->sites[i].ranks = (int32_t)n;
    }
    return NEB_OK;
}

static enum neb_status find_link(const struct arguments *a, const struct agent_job *job,
                                 struct plan_machines *m) {
    if (a->wan || job->sync.link[0])
        return agent_wan_parse(a->wan ? a->wan : job->sync.link, a->wan ? "--wan" : "sync.link",
                               &m->link);
    m->link = a->local ? (struct agent_wan){10e9, 1e-4, 0} : (struct agent_wan){100e6, 0.08, 0};
    m->assumed = true;
    return NEB_OK;
}

static enum neb_status load(const struct arguments *a, const char *file, struct agent_job *job) {
    NEB_TRY(agent_job_load(file, job));
    for (int i = 0; i < a->sets.n; i++)
        NEB_TRY(agent_job_set(job, a->sets.sets[i]));
    NEB_TRY(agent_job_model_init(job, file));
    NEB_TRY(agent_job_validate(job, file));
    if (job->mode != AGENT_MODE_REPLICAS)
        return neb_fail(NEB_ERR_INVALID,
                        "%s: mode: %s, but plan reckons with replicas only; give it the model that "
                        "learns as a job of mode replicas, and the other one's job with %s",
                        file, job->mode == AGENT_MODE_RTD ? "rtd" : "distill",
                        job->mode == AGENT_MODE_RTD ? "--generator" : "--teacher");
    if (a->local && a->local != job->n_clusters)
        return neb_fail(NEB_ERR_INVALID, "--local %d, but the job has %d clusters", a->local,
                        job->n_clusters);
    return NEB_OK;
}

// The model that streams, on each cluster: a teacher only looks; a generator learns as well.
static enum neb_status find_roles(const struct arguments *a, const struct plan_machines *m,
                                  int32_t vocab, const struct agent_planner *learn,
                                  struct plan_roles *out) {
    static struct agent_job stream; // large
    struct agent_planner p;
    double seconds[AGENT_CLUSTERS_MAX], learning[AGENT_CLUSTERS_MAX];
    bool fits[AGENT_CLUSTERS_MAX], learns[AGENT_CLUSTERS_MAX];
    struct arguments plain = {.local = a->local};
    NEB_TRY(load(&plain, a->stream, &stream));
    if (stream.n_clusters < learn->n)
        return neb_fail(NEB_ERR_INVALID,
                        "%s: lists %d clusters, the job %d: it has to name all "
                        "that may take the role",
                        a->stream, stream.n_clusters, learn->n);
    stream.sync.scheme = AGENT_SCHEME_NONE;
    NEB_TRY(agent_planner_run(&stream, vocab, m->sites, &m->link,
                              AGENT_AUTO_MESH | AGENT_AUTO_RECOMPUTE | AGENT_AUTO_BATCH, &p));
    for (int32_t i = 0; i < learn->n; i++) {
        const struct agent_planned *x = &p.clusters[i];
        // Per token: the two may make steps of different sizes.
        double stream_tokens = (double)x->job.batch * x->job.micros * x->job.seq_len,
               tokens = (double)learn->clusters[i].job.batch * learn->clusters[i].job.micros *
                        learn->clusters[i].job.seq_len;
        seconds[i] = (a->serves ? intra_cost_forward_s(&x->job, &m->sites[i].profile.rates)
                                : x->cost.step_s) /
                     stream_tokens;
        learning[i] = learn->clusters[i].cost.step_s / tokens;
        fits[i] = x->fits;
        learns[i] = learn->clusters[i].fits;
    }
    out->wanted = true;
    out->serves = a->serves;
    out->possible = agent_planner_roles(learn->n, seconds, fits, learning, learns, a->serves,
                                        &out->stream, &out->token_s);
    return NEB_OK;
}

static enum neb_status plan(const struct arguments *a) {
    static struct agent_job job; // large
    static struct plan_machines m;
    struct agent_planner written, proposed;
    struct plan_roles roles = {0};
    int32_t vocab;
    uint32_t all = AGENT_AUTO_BATCH | AGENT_AUTO_RECOMPUTE | AGENT_AUTO_INTERVAL |
                   AGENT_AUTO_OVERLAP | AGENT_AUTO_CODEC | AGENT_AUTO_MESH;
    NEB_TRY(load(a, a->file, &job));
    NEB_TRY(agent_planner_vocab(&job, &vocab));
    NEB_TRY(find_sites(a, &job, &m));
    NEB_TRY(find_link(a, &job, &m));
    NEB_TRY(agent_planner_run(&job, vocab, m.sites, &m.link, job.autos, &written));
    NEB_TRY(agent_planner_run(&job, vocab, m.sites, &m.link, all, &proposed));
    if (a->stream)
        NEB_TRY(find_roles(a, &m, vocab, &proposed, &roles));
    (a->json ? plan_print_json : plan_print)(&job, &m, &written, &proposed, &roles);
    for (int32_t i = 0; i < written.n; i++)
        if (!written.clusters[i].fits && !proposed.clusters[i].fits)
            return neb_fail(NEB_ERR_LIMIT, "cluster %s: the job does not fit, whatever is chosen",
                            job.clusters[i].name);
    return NEB_OK;
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

static void add(struct named *list, const char *text, struct argp_state *state) {
    if (list->n == SETS_MAX)
        argp_error(state, "an option is given more than %d times", SETS_MAX);
    else
        list->sets[list->n++] = text;
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
    struct arguments *a = state->input;
    char *end = NULL;
    switch (key) {
    case 'j': a->json = true; return 0;
    case 's': add(&a->sets, arg, state); return 0;
    case KEY_WAN: a->wan = arg; return 0;
    case KEY_SITE: add(&a->sites, arg, state); return 0;
    case KEY_RANKS: add(&a->ranks, arg, state); return 0;
    case KEY_PROFILE: a->profile = true; return 0;
    case KEY_MEASURE: a->measure = true; return 0;
    case KEY_LINK: a->link = true; return 0;
    case KEY_TEACHER:
    case KEY_GENERATOR:
        if (a->stream)
            argp_error(state, "give one of --teacher and --generator");
        a->stream = arg;
        a->serves = key == KEY_TEACHER;
        return 0;
    case KEY_LOCAL:
        a->local = (int)strtol(arg, &end, 10);
        if (!*arg || *end || a->local < 1 || a->local > AGENT_CLUSTERS_MAX)
            argp_error(state, "--local takes a number of clusters, 1 to %d", AGENT_CLUSTERS_MAX);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num)
            argp_usage(state);
        a->file = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->file && !a->profile && !a->link)
            argp_error(state, "give a job file");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cmd_plan(int argc, char **argv) {
    static const struct argp_option options[] = {
        {"wan", KEY_WAN, "RATE:DELAY[:LOSS]", 0,
         "the links between clusters: 100mbit:80ms:0.1% (default: the job's sync.link)", 0},
        {"local", KEY_LOCAL, "N", 0,
         "as nebula pretrain --local N: the clusters share this machine", 0},
        {"site", KEY_SITE, "CLUSTER=FILE", 0,
         "a cluster's machine, as plan --profile printed it there (default: this machine)", 0},
        {"ranks", KEY_RANKS, "CLUSTER=N", 0, "propose a mesh of N ranks (default: the fastest)", 0},
        {"teacher", KEY_TEACHER, "JOB.yaml", 0,
         "which cluster should run this job's model as the teacher of distillation?", 0},
        {"generator", KEY_GENERATOR, "JOB.yaml", 0,
         "which cluster should train this job's model as the generator of rtd?", 0},
        {"set", 's', "PATH=VALUE", 0, "change a key, such as sync.interval=10", 0},
        {"measure", KEY_MEASURE, NULL, 0, "measure this machine anew", 0},
        {"profile", KEY_PROFILE, NULL, 0, "print this machine's rates as JSON, for --site", 0},
        {"measure-link", KEY_LINK, NULL, OPTION_HIDDEN, NULL, 0},
        {"json", 'j', NULL, 0, "machine-readable output", 0},
        {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse_option,
        .args_doc = "JOB.yaml",
        .doc =
            "Predicts a job's memory, step time, WAN traffic and stall, and proposes mesh, "
            "micro-batch, "
            "recomputation, interval, overlap and codec. Takes jobs of mode replicas, and reckons "
            "with processors: a cluster with device: cuda is faster than it says.\vRates are "
            "measured once (about ten "
            "seconds) "
            "and kept. Exit status 0: the job fits; 1: it does not; 2: it is not valid."};
    struct arguments a = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0)
        return AGENT_EXIT_USAGE;
    enum neb_status st = a.link      ? agent_profile_link_rank()
                         : a.profile ? print_profile(a.measure)
                                     : plan(&a);
    return st == NEB_OK                                           ? AGENT_EXIT_OK
           : st == NEB_ERR_LIMIT || st == NEB_ERR_NOMEM || a.link ? AGENT_EXIT_FAILED
                                                                  : AGENT_EXIT_USAGE;
}
