// SPDX-License-Identifier: Apache-2.0
// nebula check JOB.yaml: checks a job file and shows what the job will do.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/cli/cmd_options.h"
#include "agent/cli/groups.h"
#include "agent/daemon/job_needs.h"
#include "agent/daemon/policy.h"
#include "agent/exchange/schedule.h"
#include "agent/job/json.h"
#include "agent/job/model.h"
#include "agent/job/model_init.h"
#include "agent/job/private.h"
#include "agent/job/sides.h"
#include "agent/job/update_size.h"
#include "agent/plan/plan.h"
#include "agent/plan/planner.h"
#include "agent/show/progress.h"
#include "agent/train/side_check.h"
#include "intra/data/data.h"
#include "intra/data/pairs.h"
#include "intra/hf/hf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS_LOOKED_AT = 1000 };

struct options {
    struct agent_options common; // its argument: a job file
    const char *policy, *tensors;
    struct agent_list sets;
    bool reference;
};

struct found {       // what this machine has of a corpus
    bool here, read; // read: its cluster trains on it here
    int32_t vocab;
    uint8_t tokenizer[INTRA_SHA_BYTES];
};

// Mode distill trains on pairs, unless its task is text. Refuses here what the run would refuse
// after its start, as far as the first pairs show it.
static enum neb_status look_at_pairs(const struct agent_job *job, int cluster,
                                     const struct intra_corpus *corpus) {
    const struct agent_cluster *k = &job->clusters[cluster];
    struct intra_pairs_config c = agent_distill_pairs(job);
    struct intra_pairs *pairs = NULL;
    c.documents = PAIRS_LOOKED_AT;
    bool sent = job->distill.pushed && (k->role == AGENT_ROLE_TEACHER || k->role_auto);
    if (job->mode != AGENT_MODE_DISTILL || sent) // the teacher reads only what the students send
        return NEB_OK;
    enum neb_status st = intra_pairs_create(corpus, INTRA_TRAIN, &c, &pairs);
    intra_pairs_destroy(&pairs);
    return st == NEB_ERR_INVALID && !c.windows
               ? neb_fail(st,
                          "cluster %s: mode distill trains on pairs, source and target (format: "
                          "tsv with target_column, or po); %s has no pairs (see above). For other "
                          "text set distill.task: text",
                          k->name, intra_corpus_dir(corpus))
               : st;
}

// A corpus that is missing here is no error: the file may be for other sites. A corpus that is here
// must fit.
static enum neb_status look_at_corpus(const struct agent_job *job, int cluster, struct found *f) {
    const struct agent_cluster *k = &job->clusters[cluster];
    char index[NEB_PATH_MAX];
    const char *dir = agent_job_corpus(job, cluster);
    struct intra_corpus *c = NULL;
    enum neb_status st = NEB_OK;
    *f = (struct found){0};
    if (job->attached)
        return NEB_OK;
    NEB_TRY(neb_path(index, sizeof index, dir, "corpus.json"));
    if (!neb_fs_exists(index)) {
        if (!k->witness && k->launcher != AGENT_LAUNCHER_ATTACH)
            neb_warn("cluster %s: there is no corpus in %s on this machine: it must be on the "
                     "cluster's machine (nebula data build SPEC.yaml --out %s)",
                     k->name, dir, dir);
        return NEB_OK;
    }
    NEB_TRY(intra_corpus_open(dir, false, &c));
    f->here = true;
    f->vocab = intra_corpus_vocab(c);
    // false: no worker of ours reads it
    f->read = !k->witness && k->launcher != AGENT_LAUNCHER_ATTACH;
    if (f->read)
        st = intra_corpus_check_tokenizer(c);
    if (st == NEB_OK && f->read)
        st = intra_corpus_tokenizer_digest(c, f->tokenizer);
    if (st == NEB_OK)
        st = agent_job_corpus_fits(job, cluster, c);
    if (st == NEB_OK && f->read)
        st = agent_side_corpus_fits(job, cluster, c);
    if (st == NEB_OK && f->read)
        st = look_at_pairs(job, cluster, c);
    if (st == NEB_OK && f->read)
        st = agent_side_cache_fits(job, cluster, c);
    intra_corpus_close(&c);
    return st;
}

// Checks that all corpora have one vocabulary. *vocab 0: no corpus is here.
static enum neb_status look_at_corpora(const struct agent_job *job, struct found *each,
                                       int32_t *vocab) {
    const struct found *first = NULL;
    *vocab = 0;
    for (int32_t i = 0; i < job->n_clusters; i++) {
        NEB_TRY(look_at_corpus(job, i, &each[i]));
        if (!each[i].here)
            continue;
        if (*vocab && *vocab != each[i].vocab)
            return neb_fail(NEB_ERR_INVALID,
                            "clusters.corpus: the corpora differ in their vocabularies (%d and %d "
                            "pieces): build them with the same tokenizer",
                            *vocab, each[i].vocab);
        *vocab = each[i].vocab;
        if (!each[i].read || job->sync.scheme == AGENT_SCHEME_NONE)
            continue;
        if (first && memcmp(first->tokenizer, each[i].tokenizer, sizeof first->tokenizer) != 0)
            return neb_fail(
                NEB_ERR_INVALID,
                "clusters.corpus: the vocabulary of cluster %s differs from the others (all have "
                "%d pieces): build the corpora with the same tokenizer (tokenizer: FILE)",
                job->clusters[i].name, each[i].vocab);
        first = first ? first : &each[i];
    }
    return NEB_OK;
}

// Files that clusters start from belong on their machines, like corpora, so a missing one is only a
// warning. role: of the clusters that need it; none: all that train.
static void look_for_file(const struct agent_job *job, const char *key, const char *path,
                          enum agent_role role) {
    char names[AGENT_CLUSTERS_MAX * (AGENT_NAME_MAX + 2)] = "";
    size_t at = 0;
    int n = 0;
    if (!path[0] || neb_fs_exists(path))
        return;
    for (int32_t i = 0; i < job->n_clusters; i++) {
        const struct agent_cluster *k = &job->clusters[i];
        if (k->witness || (role && k->role != role))
            continue;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", n++ ? ", " : "", k->name);
    }
    if (n)
        neb_warn("cluster%s %s: %s: there is no %s on this machine: it must be on the machine%s of "
                 "the cluster%s",
                 n > 1 ? "s" : "", names, key, path, n > 1 ? "s" : "", n > 1 ? "s" : "");
}

// A teacher's checkpoint must fit the corpus and the cluster's mesh.
static enum neb_status look_at_teacher(const struct agent_job *job, int cluster, int32_t vocab) {
    struct intra_ckpt *c = NULL;
    struct intra_model *m = NULL;
    NEB_TRY(intra_ckpt_open(agent_distill_init(job, cluster), false, &c));
    enum neb_status st = intra_hf_layout(c, &m);
    if (st == NEB_OK)
        st = agent_distill_teacher_fits(job, cluster, vocab, &m->c);
    intra_model_destroy(&m);
    intra_ckpt_close(&c);
    return st;
}

// vocab 0: no corpus is here.
static enum neb_status look_at_teachers(const struct agent_job *job, int32_t vocab) {
    for (int i = 0; job->mode == AGENT_MODE_DISTILL && i < job->n_clusters; i++) {
        const char *path = agent_distill_init(job, i);
        if (job->clusters[i].role != AGENT_ROLE_TEACHER || !path[0])
            continue;
        if (vocab && neb_fs_exists(path))
            NEB_TRY(look_at_teacher(job, i, vocab));
        else if (!neb_fs_exists(path))
            neb_warn("cluster %s: %s: there is no %s on this machine: it must be on the machine of "
                     "the cluster",
                     job->clusters[i].name,
                     job->clusters[i].init[0] ? "clusters.init" : "distill.teacher.init", path);
    }
    return NEB_OK;
}

static bool all_attach(const struct agent_job *job) {
    bool all = true;
    for (int32_t i = 0; i < job->n_clusters; i++)
        all =
            all && (job->clusters[i].witness || job->clusters[i].launcher == AGENT_LAUNCHER_ATTACH);
    return all;
}

static void print_rounds(const struct agent_job *job, const struct agent_plan *p, bool sized) {
    char a[32], b[32], to[48] = "", bits[80];
    (void)agent_bits_text(p->bits_per_param, p->bits_most, bits, sizeof bits);
    if (!sized) {
        printf("  exchange  %lld times with %s, %s\n", (long long)p->exchanges, job->sync.codec,
               bits);
        return;
    }
    if (p->others > 1)
        snprintf(to, sizeof to, " to each of %d others", p->others);
    printf("  exchange  %lld times %s per cluster%s (%s, %s): %s in "
           "total, %.0f times less than synchronous fp32\n",
           (long long)p->exchanges, agent_human_bytes(p->bytes_per_exchange, a, sizeof a), to,
           job->sync.codec, bits, agent_human_bytes(p->bytes, b, sizeof b), p->reduction);
}

// Prints what crosses between clusters.
static void print_flights(const struct agent_job *job, const struct agent_plan *p, bool sized) {
    char a[32], b[32];
    if (job->sync.scheme != AGENT_SCHEME_FEDERATED) {
        printf("  exchange  none: %s\n", job->sync.scheme == AGENT_SCHEME_NONE
                                             ? "every cluster trains alone"
                                             : "the synchronous reference runs in one process");
        return;
    }
    if (job->mode == AGENT_MODE_RTD) {
        printf("  stream    %lld batches of about %s: %s in total, in one direction\n",
               (long long)p->exchanges, agent_human_bytes(p->bytes_per_exchange, a, sizeof a),
               agent_human_bytes(p->bytes, b, sizeof b));
        return;
    }
    if (p->label_bytes > 0)
        printf("  labels    for %lld batches per student, about %.1f B per target token (nebula "
               "plan predicts the batches)\n",
               (long long)job->steps, p->label_bytes);
    if (p->others)
        print_rounds(job, p, sized);
    else if (!(p->label_bytes > 0))
        printf("  exchange  none: %s\n",
               job->mode == AGENT_MODE_DISTILL
                   ? "there is no teacher, and each student is its own model (see distill.federate)"
                   : "there is one cluster");
}

// Sums in the whole run, one per fragment and exchange.
static int64_t releases_of(const struct agent_job *job) {
    const struct agent_schedule s = agent_schedule_of(job);
    return agent_schedule_sends(&s);
}

// Of the cluster that needs most, as far as the job says where it trains.
static struct agent_needs most_needed(const struct agent_job *job, int32_t vocab) {
    const struct agent_found found = {.vocab = vocab};
    struct agent_needs most = {0}, n;
    for (int32_t i = 0; i < job->n_clusters; i++) {
        agent_job_needs(job, i, &found, &n);
        most.memory = fmax(most.memory, n.memory);
        most.device_memory = fmax(most.device_memory, n.device_memory);
    }
    return most;
}

static void print_model(const struct agent_job *job, const struct agent_plan *p,
                        const struct agent_needs *n) {
    char a[32], b[32];
    printf("  model     %lld parameters, %lld trained; ", (long long)p->params,
           (long long)p->trainable);
    if (all_attach(job)) {
        printf("the attached trainers decide their memory");
        if (p->attached_bytes > 0)
            printf(", libnebula takes %s in each",
                   agent_human_bytes(p->attached_bytes, a, sizeof a));
    } else {
        printf("up to %s of memory for a worker", agent_human_bytes(n->memory, a, sizeof a));
        if (n->device_memory > 0)
            printf(", %s on each device", agent_human_bytes(n->device_memory, b, sizeof b));
    }
    printf("\n");
}

// Of `model: attached`: how all loops come to the same values, and what the exchange takes.
static void print_attached(const struct agent_job *job, const struct agent_groups_view *groups) {
    char a[32];
    int from = agent_job_init_cluster(job);
    printf("  model     that of the attached loops, which begin with ");
    if (from >= 0)
        printf("the parameters of %s", job->clusters[from].name);
    else
        printf("equal parameters");
    if (groups->sized)
        printf("; libnebula takes %s beside it, divided among the ranks",
               agent_human_bytes(agent_groups_state_bytes(groups), a, sizeof a));
    printf("\n");
}

static void print_people(const char *file, const struct agent_job *job, const struct found *each,
                         const struct agent_plan *p, const struct agent_groups_view *groups,
                         const struct agent_needs *n, bool sized, const char *refused) {
    printf("%s: job %s is fine\n", file, job->name);
    if (job->attached)
        print_attached(job, groups);
    else if (sized)
        print_model(job, p, n);
    else
        printf("  model     the size is not known: it needs the vocabulary of the corpus\n");
    if (job->attached)
        printf("  training  %lld steps of at most %lld tokens\n", (long long)job->steps,
               (long long)p->tokens_per_step);
    else
        printf("  training  %lld steps of %lld tokens: %lld tokens per cluster\n",
               (long long)job->steps, (long long)p->tokens_per_step, (long long)p->tokens);
    print_flights(job, p, sized);
    if (job->attached || job->n_groups)
        agent_groups_print(job, groups);
    if (job->sync.gate == AGENT_GATE_PRIVATE) {
        char text[256];
        agent_private_says(job, text, sizeof text);
        printf("  masked    %s\n", text);
    }
    char privacy[AGENT_PRIVATE_TEXT];
    agent_private_epsilon(job, releases_of(job), privacy);
    if (privacy[0])
        printf("  privacy   %s. It does not cover losses and counts that sites send\n", privacy);
    for (int32_t i = 0; i < job->n_clusters; i++) {
        const struct agent_cluster *k = &job->clusters[i];
        printf("  cluster   %s:", k->name);
        bool own = k->launcher == AGENT_LAUNCHER_ATTACH;
        for (int32_t s = 0; !own && s < k->n_sources; s++)
            printf("%s %s %g", s ? "," : "", k->sources[s].name, (double)k->sources[s].weight);
        if (own)
            printf(" a trainer attaches, with its own program and text\n");
        else
            printf("%s; corpus %s%s\n", k->n_sources ? "" : " all sources",
                   agent_job_corpus(job, i), each[i].here ? "" : " (not on this machine)");
    }
    const char *advice = agent_plan_advice(job);
    if (advice)
        printf("  advice    %s (configs/COMPARE.md)\n", advice);
    if (*refused)
        printf("  policy    if another member submits it, a policy.json without keys for what may "
               "leave refuses it: %s\n",
               refused);
}

static json_t *clusters_json(const struct agent_job *job, const struct found *each) {
    json_t *list = json_array();
    for (int32_t i = 0; i < job->n_clusters; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:b}", "name", job->clusters[i].name,
                                              "corpus", agent_job_corpus(job, i), "corpus_here",
                                              each[i].here, "attached",
                                              job->clusters[i].launcher == AGENT_LAUNCHER_ATTACH));
    return list;
}

static void print_json(const struct agent_job *job, const struct found *each,
                       const struct agent_plan *p, const struct agent_groups_view *groups,
                       const struct agent_needs *n, bool sized, const char *refused,
                       json_t *warnings) {
    json_t *o =
        json_pack("{s:b, s:s, s:I, s:I, s:I, s:f}", "ok", 1, "job", job->name, "tokens_per_step",
                  (json_int_t)p->tokens_per_step, "tokens", (json_int_t)p->tokens, "exchanges",
                  (json_int_t)p->exchanges, "bits_per_param", p->bits_per_param);
    if (p->label_bytes > 0) {
        json_object_set_new(o, "label_batches", json_integer(job->steps));
        json_object_set_new(o, "label_bytes_per_token", json_real(p->label_bytes));
    }
    if (sized) {
        json_object_set_new(o, "params", json_integer(p->params));
        json_object_set_new(o, "trainable_params", json_integer(p->trainable));
        json_object_set_new(o, "memory_bytes",
                            all_attach(job) ? json_null() : agent_json_number(n->memory));
        json_object_set_new(o, "device_memory_bytes", agent_json_number(n->device_memory));
        json_object_set_new(o, "attached_bytes", agent_json_number(p->attached_bytes));
        json_object_set_new(o, "exchange_bytes", json_integer((json_int_t)p->bytes_per_exchange));
    }
    if (sized && !(p->label_bytes > 0)) { // with labels, the number of bytes depends on the text
        json_object_set_new(o, "sent_bytes", json_integer((json_int_t)p->bytes));
        json_object_set_new(o, "reduction_vs_sync_fp32",
                            isfinite(p->reduction) ? json_real(p->reduction) : json_null());
    }
    if (job->sync.gate == AGENT_GATE_PRIVATE)
        json_object_set_new(o, "round_needs_clusters", json_integer(agent_private_needs(job)));
    char privacy[AGENT_PRIVATE_TEXT];
    double epsilon = agent_private_epsilon(job, releases_of(job), privacy);
    if (privacy[0])
        json_object_set_new(o, "privacy",
                            json_pack("{s:o, s:f, s:I, s:s}", "epsilon", agent_json_number(epsilon),
                                      "delta", (double)job->sync.dp.delta, "releases",
                                      (json_int_t)releases_of(job), "text", privacy));
    json_object_set_new(o, "groups", agent_groups_json(job, groups));
    json_object_set_new(o, "clusters", clusters_json(job, each));
    const char *advice = agent_plan_advice(job);
    json_object_set_new(o, "advice", advice ? json_string(advice) : json_null());
    json_object_set_new(o, "refused_by_default", *refused ? json_string(refused) : json_null());
    json_object_set(o, "warnings", warnings);
    json_object_set_new(o, "spec", agent_job_to_json(job));
    agent_json_print(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
}

// With --json, warnings go into the object. An error is its own object at the end.
static void keep_warning(void *user, enum neb_log_level level, const char *text) {
    if (level == NEB_LOG_WARN)
        json_array_append_new(user, json_string(text));
}

static enum neb_status read_policy(const char *path, struct agent_policy *out) {
    enum neb_status st = agent_policy_read(path, out);
    return st == NEB_ERR_NOT_FOUND ? neb_fail(st, "%s: there is no such file", path) : st;
}

// Whether sites let the job begin if another member submits it. With a policy given: NEB_ERR_DENIED
// after a line for each cluster that it refuses. Without one: *why says what an almost empty
// policy.json refuses, or is "" ("data" is left out, since only the site knows its folders).
static enum neb_status ask_policy(const struct options *o, const struct agent_job *job, char *why,
                                  size_t cap) {
    static struct agent_policy p; // large
    static const struct agent_policy_load none;
    bool ok = true;
    why[0] = 0;
    if (o->policy)
        NEB_TRY(read_policy(o->policy, &p));
    else
        NEB_TRY(agent_policy_parse("{\"format\": 1}", 13, "a policy", &p));
    for (int i = 0; i < job->n_clusters && job->sync.scheme != AGENT_SCHEME_SYNCHRONOUS; i++) {
        const char *from = p.n_members > 0 ? p.members[0] : "";
        if (agent_policy_admits(&p, job, i, from, &none, why, cap))
            continue;
        ok = false;
        if (!o->policy)
            return NEB_OK; // most likely the same for the others
        neb_log(NEB_LOG_ERROR, "%s", why);
    }
    return ok ? NEB_OK : NEB_ERR_DENIED;
}

static enum neb_status say_policy(const char *path) {
    static struct agent_policy p;
    char text[1024];
    NEB_TRY(read_policy(path, &p));
    agent_policy_describe(&p, text, sizeof text);
    printf("%s: admits %s\n", path, text);
    return NEB_OK;
}

static enum neb_status check(const struct options *o, json_t *warnings) {
    static struct agent_job job; // large
    struct found each[AGENT_CLUSTERS_MAX];
    static struct agent_groups_view groups; // large
    struct agent_plan plan;
    char why[NEB_PATH_MAX + 256];
    const char *file = o->common.args[0];
    int32_t vocab;
    NEB_TRY(agent_job_load(file, &job));
    for (int i = 0; i < o->sets.n; i++)
        NEB_TRY(agent_job_set(&job, o->sets.text[i]));
    NEB_TRY(agent_job_model_init(&job, file));
    NEB_TRY(agent_job_validate(&job, file));
    agent_job_warn_idle(&job, file);
    NEB_TRY(agent_side_streams_fit(&job));
    NEB_TRY(look_at_corpora(&job, each, &vocab));
    NEB_TRY(agent_planner_roles_resolve(&job, 0));
    look_for_file(&job, "init_from", job.init_from,
                  job.mode == AGENT_MODE_DISTILL ? AGENT_ROLE_STUDENT : AGENT_ROLE_NONE);
    NEB_TRY(look_at_teachers(&job, vocab));
    if (neb_fs_exists(job.init_from))
        NEB_TRY(agent_job_init_from(&job));
    NEB_TRY(agent_job_plan(&job, vocab, &plan));
    bool sized = job.model.vocab || vocab;
    NEB_TRY(agent_groups_view(&job, o->tensors, &groups));
    if (plan.others && !job.attached)
        NEB_TRY(agent_update_fits(&job, (uint64_t)plan.fragment, 1, (uint64_t)plan.tensor));
    NEB_TRY(ask_policy(o, &job, why, sizeof why));
    struct agent_needs n = {0};
    if (sized)
        n = most_needed(&job, vocab);
    if (o->common.json)
        print_json(&job, each, &plan, &groups, &n, sized, why, warnings);
    else
        print_people(file, &job, each, &plan, &groups, &n, sized, why);
    return NEB_OK;
}

static const char *check_line(const void *options) {
    const struct options *o = options;
    return !o->common.n && !o->reference && !o->policy ? "give a job file, or --policy" : NULL;
}

static int run(void *options) {
    const struct options *o = options;
    if (o->reference) {
        agent_job_reference(stdout);
        return AGENT_EXIT_OK;
    }
    if (!o->common.n)
        return say_policy(o->policy) == NEB_OK ? AGENT_EXIT_OK : AGENT_EXIT_USAGE;
    json_t *warnings = json_array();
    if (o->common.json)
        neb_log_set_sink(keep_warning, warnings);
    enum neb_status st = check(o, warnings);
    neb_log_set_sink(NULL, NULL);
    json_decref(warnings);
    return agent_json_exit(o->common.json, st == NEB_OK          ? AGENT_EXIT_OK
                                           : st == NEB_ERR_NOMEM ? AGENT_EXIT_FAILED
                                                                 : AGENT_EXIT_USAGE);
}

static const struct agent_option table[] = {
    OPT_SET("change a key, for example sync.interval=10", AT(sets)),
    OPT_JSON("machine-readable output"),
    OPT_TEXT("policy", 0, "FILE",
             "check that a site with this policy.json lets the job begin; without a job: print "
             "what it admits",
             AT(policy)),
    OPT_TEXT("tensors", 0, "FILE",
             "tensors of a job with model: attached, HOME/jobs/ID/tensors.json of an agent",
             AT(tensors)),
    OPT_FLAG("reference", 0, "print all keys as a table and exit", AT(reference)),
    OPT_END};

const struct agent_command cmd_check = {
    .name = "check",
    .summary = "validate a job file and show what it will do",
    .options = table,
    .arguments = "JOB.yaml",
    .doc = "Validates a job file and shows what the job will do.\vExit status 0: valid; 2: not "
           "valid, with an error FILE:LINE: KEY: what is wrong.",
    .most = 1,
    .check = check_line,
    .size = sizeof(struct options),
    .run = run};
