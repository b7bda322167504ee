// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/policy.h"
#include "agent/base/fs.h"
#include "agent/daemon/job_needs.h"
#include "agent/job/model.h"
#include "agent/job/sides.h"
#include "intra/ckpt/checkpoint.h"
#include "intra/hf/hf.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// ---- decide ----

// Resolves all links of a path. If the file or folder does not exist yet, resolves the part that
// exists. NULL: unknown, because the rest contains "..", or a link leads nowhere.
static char *resolve(const char *path) {
    char head[NEB_PATH_MAX], *real = NULL, *out = NULL;
    struct stat sb;
    size_t n = strlen(path);
    if (n >= sizeof head || path[0] != '/')
        return NULL;
    memcpy(head, path, n + 1);
    while (!(real = realpath(head[0] ? head : "/", NULL))) {
        if (errno != ENOENT || lstat(head, &sb) == 0)
            return NULL;
        *strrchr(head, '/') = 0;
    }
    const char *rest = path + strlen(head);
    bool up = strstr(rest, "/../") || (strlen(rest) > 2 && !strcmp(rest + strlen(rest) - 3, "/.."));
    if (!up && asprintf(&out, "%s%s", strcmp(real, "/") != 0 ? real : "", rest) < 0)
        out = NULL;
    free(real);
    return out;
}

// True if path is one of the policy's folders, or lies in one (or would).
static bool below(const struct agent_policy *p, const char *path) {
    char *real = resolve(path);
    bool ok = false;
    for (int i = 0; real && i < p->n_data && !ok; i++) {
        char *root = realpath(p->data[i], NULL);
        size_t n = root ? strlen(root) : 0;
        ok = root && !strncmp(real, root, n) &&
             (!real[n] || real[n] == '/' || (n && root[n - 1] == '/'));
        free(root);
    }
    free(real);
    return ok;
}

static bool data_ok(const struct agent_policy *p, const struct agent_job *job, int self, char *why,
                    size_t cap) {
    const char *paths[AGENT_JOB_PATHS_MAX];
    int n = agent_job_paths(job, self, paths);
    for (int i = 0; i < n && p->n_data >= 0; i++)
        if (!below(p, paths[i])) {
            snprintf(why, cap, "\"%s\" is not below a folder of its \"data\"", paths[i]);
            return false;
        }
    return true;
}

// True if everything that the worker trains is listed. A teacher that learns trains all of its
// model, whatever the job sets for the students; one that does not learn trains nothing.
static bool trainable_ok(const struct agent_policy *p, const struct agent_job *job, int self) {
    bool ok = true;
    for (int i = 0; i < job->n_clusters && p->trainable; i++) {
        bool teacher = job->clusters[i].role == AGENT_ROLE_TEACHER;
        enum intra_trainable_mode mode = teacher ? INTRA_TRAIN_FULL : job->trainable.mode;
        if (agent_job_runs(job, self, i) && (!teacher || job->distill.learn))
            ok = ok && p->trainable >> mode & 1;
    }
    return ok;
}

// Compares counts with their limits. True: all are within.
static bool limits_ok(const struct agent_policy *p, const struct agent_job *job, int self,
                      const struct agent_policy_load *running, char *why, size_t cap) {
    const struct agent_cluster *c = &job->clusters[self];
    // each rank of mpirun or Slurm has so many threads; ranks of launcher: local share them
    int64_t each = c->launcher == AGENT_LAUNCHER_MPIRUN || c->launcher == AGENT_LAUNCHER_SLURM
                       ? agent_cluster_ranks(c)
                       : 1,
            threads = each * c->threads;
    if (p->threads && (!threads || threads > p->threads))
        snprintf(why, cap, "the job asks for %lld threads (0: all), but at most %lld are allowed",
                 (long long)threads, (long long)p->threads);
    else if (p->ranks && agent_cluster_ranks(c) > p->ranks)
        snprintf(why, cap, "the job asks for %d ranks, but at most %lld are allowed",
                 agent_cluster_ranks(c), (long long)p->ranks);
    else if (p->steps && job->steps > p->steps)
        snprintf(why, cap, "the job makes %lld steps, but at most %lld are allowed",
                 (long long)job->steps, (long long)p->steps);
    else if (p->jobs && running->jobs >= p->jobs)
        snprintf(why, cap, "%d jobs of other members run, and at most %lld may run at a time",
                 running->jobs, (long long)p->jobs);
    else if (p->jobs_per_member && running->of_member >= p->jobs_per_member)
        snprintf(why, cap, "%d jobs of this member run, and at most %lld may run at a time",
                 running->of_member, (long long)p->jobs_per_member);
    else
        return true;
    return false;
}

// Vocabulary of the corpus on which the cluster trains here; 0: there is no corpus, or the job sets
// model.vocab.
static int32_t vocab_of(const struct agent_job *job, int self) {
    char index[NEB_PATH_MAX];
    const char *own = job->clusters[self].corpus, *dir = own[0] ? own : job->corpus;
    struct intra_corpus *c = NULL;
    if (job->attached || job->model.vocab ||
        neb_path(index, sizeof index, dir, "corpus.json") != NEB_OK || !neb_fs_exists(index) ||
        intra_corpus_open(dir, false, &c) != NEB_OK)
        return 0;
    int32_t vocab = intra_corpus_vocab(c);
    intra_corpus_close(&c);
    return vocab;
}

// Shape of the checkpoint from which a teacher of this worker starts; without one d_model stays 0.
// False: it cannot be read. *path: its file; "": none.
static bool find_teacher(const struct agent_job *job, int self, struct agent_found *out,
                         const char **path) {
    struct intra_ckpt *c = NULL;
    struct intra_model *m = NULL;
    struct stat sb;
    *path = "";
    for (int i = 0; i < job->n_clusters; i++)
        if (job->clusters[i].role == AGENT_ROLE_TEACHER && agent_job_runs(job, self, i))
            *path = agent_distill_init(job, i);
    if (!**path)
        return true;
    bool ok = stat(*path, &sb) == 0 && S_ISREG(sb.st_mode) &&
              intra_ckpt_open_index(NULL, *path, &c) == NEB_OK && intra_hf_layout(c, &m) == NEB_OK;
    if (ok) {
        out->teacher = m->c;
        out->teacher.max_seq = job->seq_len;
        out->teacher.mask = KERN_MASK_PREFIX;
    }
    intra_model_destroy(&m);
    intra_ckpt_close(&c);
    return ok;
}

static bool too_much(double need, int64_t given, const char *what, char *why, size_t cap) {
    if (!given || need <= (double)given)
        return false;
    snprintf(why, cap, "the job needs about %.3g GB %s, but at most %.3g GB are allowed",
             need / 1e9, what, (double)given / 1e9);
    return true;
}

// Checks estimates, which read the site's own corpus: only after the paths were checked.
static bool needs_ok(const struct agent_policy *p, const struct agent_job *job, int self, char *why,
                     size_t cap) {
    struct agent_found found = {0};
    struct agent_needs n;
    const char *teacher;
    if (!(p->parameters || p->tokens_per_step || p->memory || p->device_memory || p->disk ||
          p->devices) ||
        job->clusters[self].witness)
        return true;
    bool reckon = p->memory || p->device_memory || p->disk;
    if ((reckon || p->parameters) && !find_teacher(job, self, &found, &teacher)) {
        snprintf(why, cap,
                 "the needs of the job cannot be estimated: \"%s\", its teacher, is not a "
                 "checkpoint that can be read here",
                 teacher);
        return false;
    }
    double parameters = p->parameters ? agent_job_parameters(job, self, &found) : 0;
    found.vocab = reckon ? vocab_of(job, self) : 0;
    agent_job_needs(job, self, &found, &n);
    bool denied = (n.on_processors && !(p->devices >> AGENT_DEVICE_CPU & 1)) ||
                  (n.on_devices && !(p->devices >> AGENT_DEVICE_CUDA & 1));
    if (parameters > (double)p->parameters)
        snprintf(why, cap, "the job's model has %.0f parameters, but at most %lld are allowed",
                 parameters, (long long)p->parameters);
    else if (p->devices && denied)
        snprintf(why, cap, "\"devices\" lists only %s, but the job's cluster has device: %s",
                 p->devices >> AGENT_DEVICE_CPU & 1 ? "cpu" : "cuda",
                 !n.on_processors ? "cuda"
                 : n.on_devices   ? "auto"
                                  : "cpu");
    else if (p->tokens_per_step && n.step_tokens > (double)p->tokens_per_step)
        snprintf(why, cap, "a step of the job has %.0f tokens, but at most %lld are allowed",
                 n.step_tokens, (long long)p->tokens_per_step);
    else if (reckon && !job->attached && !job->model.vocab && !found.vocab)
        snprintf(why, cap,
                 "the needs of the job cannot be estimated: it does not set model.vocab, and its "
                 "corpus is not here");
    else if (!too_much(n.memory, p->memory, "of memory", why, cap) &&
             !too_much(n.device_memory, p->device_memory, "of each device's memory", why, cap) &&
             !too_much(n.disk, p->disk, "on disk", why, cap))
        return true;
    return false;
}

static bool within(unsigned some, int value) { return !some || some >> value & 1; }

// Minimum of tokens behind an update.
static double update_least(const struct agent_policy *p, const struct agent_discloses *t) {
    double wide = 4.0 * t->width;
    if (p->tokens_per_update)
        return (double)p->tokens_per_update;
    return wide > AGENT_UPDATE_TOKENS ? wide : AGENT_UPDATE_TOKENS;
}

static void say_few(const struct agent_policy *p, const struct agent_job *job, double tokens,
                    double least, char *why, size_t cap) {
    bool odd = job->sync.interval && job->steps % job->sync.interval;
    snprintf(why, cap,
             "an update of it would rest on as few as %.0f tokens, but %.0f are required "
             "(\"tokens_per_update\"%s): raise data.batch, data.accumulate, data.seq_len, "
             "sync.interval or sync.early_interval%s%s",
             tokens, least, p->tokens_per_update ? "" : ", which the policy does not set",
             agent_job_fragments(job) > 1 ? ", use fewer sync.fragments" : "",
             odd ? ", make steps a multiple of the interval" : "");
}

// Checks what leaves this site of its text. True: no more than the policy allows.
static bool tells_ok(const struct agent_policy *p, const struct agent_job *job, int self, char *why,
                     size_t cap) {
    static const char *const gates[] = {"trusted", "robust", "private"};
    struct agent_discloses t;
    agent_job_discloses(job, self, &t);
    double least = update_least(p, &t);
    if (t.text && !p->push_text)
        snprintf(why, cap,
                 "its push_text sends the text of this site to another site, but \"push_text\" is "
                 "not true");
    else if (t.labels && !p->labels)
        snprintf(why, cap,
                 "it sends %s for the text of this site to another site, which can read much of "
                 "the text from them, but \"labels\" is not true",
                 job->mode == AGENT_MODE_RTD ? "a generator's draws" : "a teacher's labels");
    else if (t.update_tokens > 0 && !within(p->gates, (int)job->sync.gate))
        snprintf(why, cap, "\"gates\" does not list its sync.gate: %s", gates[job->sync.gate]);
    else if (t.update_tokens > 0 && t.update_tokens < least)
        say_few(p, job, t.update_tokens, least, why, cap);
    else if (t.rows > p->row_counts)
        snprintf(why, cap,
                 "it sends counts of the tokens of this site (sync.row_counts: %s), but "
                 "\"row_counts\" is %s",
                 t.rows == AGENT_ROWS_EXACT ? "exact" : "coarse",
                 p->row_counts == AGENT_ROWS_COARSE ? "coarse"
                                                    : "never: sync.row_weights: false sends none");
    else
        return true;
    return false;
}

static bool launcher_ok(const struct agent_policy *p, const struct agent_job *job, int self) {
    return job->clusters[self].witness || within(p->launchers, (int)job->clusters[self].launcher);
}

bool agent_policy_admits(const struct agent_policy *p, const struct agent_job *job, int self,
                         const char *from, const struct agent_policy_load *running, char *why,
                         size_t cap) {
    bool member = p->n_members < 0;
    char reason[NEB_PATH_MAX + 128] = "";
    if (!p->present)
        return true;
    for (int i = 0; i < p->n_members && !member; i++)
        member = !strcmp(p->members[i], from);
    if (!member)
        snprintf(reason, sizeof reason, "\"%s\" is not among the \"members\" that may submit",
                 from);
    else if (!trainable_ok(p, job, self))
        snprintf(reason, sizeof reason, "\"trainable\" does not list what the job trains");
    else if (!launcher_ok(p, job, self))
        snprintf(reason, sizeof reason, "\"launchers\" does not list that of its cluster");
    else if (limits_ok(p, job, self, running, reason, sizeof reason) &&
             data_ok(p, job, self, reason, sizeof reason) &&
             needs_ok(p, job, self, reason, sizeof reason) &&
             tells_ok(p, job, self, reason, sizeof reason))
        return true;
    snprintf(why, cap, "the policy of site \"%s\" does not admit the job: %s (policy.json)",
             job->clusters[self].name, reason);
    return false;
}

void agent_policy_terms(const struct agent_policy *p, const struct agent_job *job, int self,
                        struct agent_terms *out) {
    struct agent_discloses t;
    double step = fmax(1, (double)job->batch * job->accumulate * job->seq_len),
           rests = agent_job_eval_tokens(job);
    int64_t enough = (int64_t)ceil(AGENT_DISCLOSED_TOKENS / step);
    agent_job_discloses(job, self, &t);
    out->update_tokens = p->present && t.update_tokens > 0 ? update_least(p, &t) : 0;
    out->idle_s = p->present ? p->hours_without_progress * 3600 : 0;
    out->told = (struct agent_disclosed_rules){
        .losses = p->losses,
        .every = p->loss_every                    ? p->loss_every
                 : enough < AGENT_DISCLOSED_STEPS ? AGENT_DISCLOSED_STEPS
                                                  : enough,
        .held_out = !(rests > 0 && rests < AGENT_DISCLOSED_TOKENS)};
}

bool agent_policy_attaches(const struct agent_policy *p, const char *from) {
    for (int i = 0; i < p->n_attach; i++)
        if (!strcmp(p->attach[i], from))
            return true;
    return false;
}

enum neb_status agent_job_signed_bytes(const uint8_t federation[SEC_FEDERATION_BYTES],
                                       const uint8_t id[AGENT_JOB_ID_BYTES], const json_t *spec,
                                       struct neb_buf *out) {
    char *text = json_dumps(spec, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: job specification");
    neb_buf_clear(out);
    neb_buf_add(out, federation, SEC_FEDERATION_BYTES);
    neb_buf_add(out, id, AGENT_JOB_ID_BYTES);
    neb_buf_add(out, text, strlen(text));
    free(text);
    return neb_buf_check(out);
}
