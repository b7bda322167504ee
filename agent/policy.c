#include "agent/policy.h"

#include "agent/base/fs.h"
#include "agent/base/nearest.h"
#include "agent/base/number.h"
#include "agent/job_model.h"
#include "agent/job_needs.h"
#include "intra/checkpoint.h"
#include "intra/hf.h"
#include "security/seal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { POLICY_BYTES_MAX = 16 * 1024 };

static const struct choice {
    const char *name;
    int value;
} modes[] = {{"full", INTRA_TRAIN_FULL},
             {"lora", INTRA_TRAIN_LORA},
             {"bitfit", INTRA_TRAIN_BITFIT},
             {"last_layers", INTRA_TRAIN_LAST_LAYERS}},
  devices[] = {{"cpu", AGENT_DEVICE_CPU}, {"cuda", AGENT_DEVICE_CUDA}};
enum { MODES = sizeof modes / sizeof *modes, DEVICES = sizeof devices / sizeof *devices };

// ---- reading --------------------------------------------------------------------------------------------------

// A list of at most AGENT_POLICY_LIST strings, each in a row of `cap` bytes. *n -1: absent.
static bool strings(const json_t *a, char *rows, size_t cap, int *n) {
    *n = a ? (int)json_array_size(a) : -1;
    if (!a)
        return true;
    if (!json_is_array(a) || *n < 1 || *n > AGENT_POLICY_LIST)
        return false;
    for (int i = 0; i < *n; i++) {
        const char *s = json_string_value(json_array_get(a, (size_t)i));
        if (!s || !*s || strlen(s) >= cap)
            return false;
        memcpy(rows + (size_t)i * cap, s, strlen(s) + 1);
    }
    return true;
}

// Some of `known`, as bits of their values.
static bool choices(const json_t *a, const struct choice *known, int n_known, unsigned *bits) {
    char names[AGENT_POLICY_LIST][32];
    int n;
    if (!strings(a, names[0], sizeof names[0], &n))
        return false;
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < n_known && strcmp(names[i], known[k].name) != 0)
            k++;
        if (k == n_known)
            return false;
        *bits |= 1u << known[k].value;
    }
    return true;
}

static bool count(const json_t *v, int64_t *out) {
    *out = json_integer_value(v);
    return !v || (json_is_integer(v) && *out > 0);
}

// Bytes: a number, or "20G".
static bool size(const json_t *v, int64_t *out) {
    uint64_t bytes = 0;
    if (!json_is_string(v))
        return count(v, out);
    bool ok = neb_number_size(json_string_value(v), 1, INT64_MAX, &bytes);
    *out = (int64_t)bytes;
    return ok;
}

// The keys that are one number. NULL: all are right.
static const char *read_limits(const json_t *root, struct agent_policy *out, char *why,
                               size_t cap) {
    const struct {
        const char *key;
        int64_t *at;
        bool size;
    } limits[] = {{"threads", &out->threads, false},
                  {"ranks", &out->ranks, false},
                  {"steps", &out->steps, false},
                  {"parameters", &out->parameters, false},
                  {"tokens_per_step", &out->tokens_per_step, false},
                  {"memory", &out->memory, true},
                  {"device_memory", &out->device_memory, true},
                  {"disk", &out->disk, true},
                  {"jobs", &out->jobs, false},
                  {"jobs_per_member", &out->jobs_per_member, false}};
    static const char *const others[] = {"format",    "members", "data",
                                         "trainable", "devices", "push_text"};
    enum { LIMITS = sizeof limits / sizeof *limits, OTHERS = sizeof others / sizeof *others };
    const char *known[LIMITS + OTHERS], *key;
    json_t *any;
    for (size_t i = 0; i < LIMITS + OTHERS; i++)
        known[i] = i < LIMITS ? limits[i].key : others[i - LIMITS];
    json_object_foreach((json_t *)(uintptr_t)root, key, any) {
        bool is = false;
        for (size_t i = 0; i < LIMITS + OTHERS; i++)
            is = is || !strcmp(key, known[i]);
        if (is)
            continue;
        const char *meant = neb_nearest(key, known, LIMITS + OTHERS);
        snprintf(why, cap, "\"%.64s\" is no key of it%s%s%s (security/README.md has them)", key,
                 meant ? "; did you mean \"" : "", meant ? meant : "", meant ? "\"?" : "");
        return why;
    }
    for (size_t i = 0; i < LIMITS; i++) {
        const json_t *v = json_object_get(root, limits[i].key);
        if (limits[i].size && !size(v, limits[i].at))
            return "\"memory\", \"device_memory\" and \"disk\" are numbers of bytes above 0, or "
                   "such as \"20G\"";
        if (!limits[i].size && !count(v, limits[i].at))
            return "\"threads\", \"ranks\", \"steps\", \"parameters\", \"tokens_per_step\", "
                   "\"jobs\" and \"jobs_per_member\" are numbers above 0";
    }
    return NULL;
}

enum neb_status agent_policy_parse(const char *text, size_t len, const char *what,
                                   struct agent_policy *out) {
    json_error_t e;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    *out = (struct agent_policy){.present = true};
    if (!json_is_object(root)) {
        json_decref(root);
        return neb_fail(NEB_ERR_FORMAT, "%s:%d: %s", what, root ? 1 : e.line,
                        root ? "an object is expected" : e.text);
    }
    const json_t *push = NULL;
    char why[256];
    const char *bad = read_limits(root, out, why, sizeof why);
    if (json_integer_value(json_object_get(root, "format")) != 1)
        bad = "\"format\": 1 is expected";
    else if (!strings(json_object_get(root, "members"), out->members[0], SEC_NAME_MAX,
                      &out->n_members))
        bad = "\"members\" is a list of 1 to 16 names";
    else if (!strings(json_object_get(root, "data"), out->data[0], NEB_PATH_MAX, &out->n_data))
        bad = "\"data\" is a list of 1 to 16 folders";
    else if (!choices(json_object_get(root, "trainable"), modes, MODES, &out->trainable))
        bad = "\"trainable\" is a list out of full, lora, bitfit, last_layers";
    else if (!choices(json_object_get(root, "devices"), devices, DEVICES, &out->devices))
        bad = "\"devices\" is a list out of cpu, cuda";
    else if ((push = json_object_get(root, "push_text")) && !json_is_boolean(push))
        bad = "\"push_text\" is true or false";
    out->push_text = json_is_true(push);
    json_decref(root);
    return bad ? neb_fail(NEB_ERR_FORMAT, "%s: %s", what, bad) : NEB_OK;
}

enum neb_status agent_policy_load(const char *home, struct agent_policy *out) {
    char path[NEB_PATH_MAX];
    size_t len = 0;
    *out = (struct agent_policy){.present = false};
    NEB_TRY(neb_path(path, sizeof path, home, "policy.json"));
    char *text = malloc(POLICY_BYTES_MAX);
    if (!text)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: %s", path);
    enum neb_status st = sec_secret_read(path, text, POLICY_BYTES_MAX, &len);
    if (st == NEB_OK)
        st = agent_policy_parse(text, len, path, out);
    free(text);
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

// ---- judging --------------------------------------------------------------------------------------------------

// The path with every link followed, of what is there of it: of a file or folder that is yet to be made, where that would be. NULL: that
// cannot be said, for what is missing goes up again, or hangs at a link without an end.
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

// Whether path is one of the policy's folders or lies in one, or will.
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

// Whether all that the worker trains is listed. A teacher that learns trains all of its model, whatever the job says of the others'; one that
// does not trains nothing.
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

// What is counted, against its limit. True: within all.
static bool limits_ok(const struct agent_policy *p, const struct agent_job *job, int self,
                      const struct agent_policy_load *running, char *why, size_t cap) {
    const struct agent_cluster *c = &job->clusters[self];
    // each rank that mpirun or Slurm starts has so many; those of launcher: local divide them
    int64_t each = c->launcher == AGENT_LAUNCHER_MPIRUN || c->launcher == AGENT_LAUNCHER_SLURM
                       ? agent_cluster_ranks(c)
                       : 1,
            threads = each * c->threads;
    if (p->threads && (!threads || threads > p->threads))
        snprintf(why, cap, "the job asks for %lld threads (0: all), at most %lld are given",
                 (long long)threads, (long long)p->threads);
    else if (p->ranks && agent_cluster_ranks(c) > p->ranks)
        snprintf(why, cap, "the job asks for %d ranks, at most %lld are given",
                 agent_cluster_ranks(c), (long long)p->ranks);
    else if (p->steps && job->steps > p->steps)
        snprintf(why, cap, "the job makes %lld steps, at most %lld are given",
                 (long long)job->steps, (long long)p->steps);
    else if (p->jobs && running->jobs >= p->jobs)
        snprintf(why, cap, "%d jobs of other members run, at most %lld do at a time", running->jobs,
                 (long long)p->jobs);
    else if (p->jobs_per_member && running->of_member >= p->jobs_per_member)
        snprintf(why, cap, "%d jobs of this member run, at most %lld do at a time",
                 running->of_member, (long long)p->jobs_per_member);
    else
        return true;
    return false;
}

// Of the corpus that the cluster trains on here; 0: it is not there, or the job says model.vocab itself.
static int32_t vocab_of(const struct agent_job *job, int self) {
    char index[NEB_PATH_MAX];
    const char *own = job->clusters[self].corpus, *dir = own[0] ? own : job->corpus;
    struct intra_corpus *c = NULL;
    if (job->model.vocab || neb_path(index, sizeof index, dir, "corpus.json") != NEB_OK ||
        !neb_fs_exists(index) || intra_corpus_open(dir, false, &c) != NEB_OK)
        return 0;
    int32_t vocab = intra_corpus_vocab(c);
    intra_corpus_close(&c);
    return vocab;
}

// The shape of the checkpoint that a teacher of this worker starts from; none: d_model stays 0. False: it cannot be read.
static bool find_teacher(const struct agent_job *job, int self, struct agent_found *out) {
    struct intra_ckpt *c = NULL;
    struct intra_model *m = NULL;
    struct stat sb;
    bool here = false;
    for (int i = 0; i < job->n_clusters; i++)
        here |= job->clusters[i].role == AGENT_ROLE_TEACHER && agent_job_runs(job, self, i);
    if (!here || !job->distill.teacher[0])
        return true;
    bool ok = stat(job->distill.teacher, &sb) == 0 && S_ISREG(sb.st_mode) &&
              intra_ckpt_open_index(NULL, job->distill.teacher, &c) == NEB_OK &&
              intra_hf_layout(c, &m) == NEB_OK;
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
    snprintf(why, cap, "the job needs about %.3g GB %s, at most %.3g GB are given", need / 1e9,
             what, (double)given / 1e9);
    return true;
}

// What has to be reckoned, of the site's own corpus too: after its paths were found good.
static bool needs_ok(const struct agent_policy *p, const struct agent_job *job, int self, char *why,
                     size_t cap) {
    struct agent_found found = {0};
    struct agent_needs n;
    if (!(p->parameters || p->tokens_per_step || p->memory || p->device_memory || p->disk ||
          p->devices) ||
        job->clusters[self].witness)
        return true;
    bool reckon = p->memory || p->device_memory || p->disk;
    if ((reckon || p->parameters) && !find_teacher(job, self, &found)) {
        snprintf(why, cap,
                 "what the job needs cannot be reckoned: \"%s\", its teacher, is no checkpoint "
                 "that can be read here",
                 job->distill.teacher);
        return false;
    }
    double parameters = p->parameters ? agent_job_parameters(job, self, &found) : 0;
    found.vocab = reckon ? vocab_of(job, self) : 0;
    agent_job_needs(job, self, &found, &n);
    bool denied = (n.on_processors && !(p->devices >> AGENT_DEVICE_CPU & 1)) ||
                  (n.on_devices && !(p->devices >> AGENT_DEVICE_CUDA & 1));
    if (parameters > (double)p->parameters)
        snprintf(why, cap, "the job's model has %.0f parameters, at most %lld are trained",
                 parameters, (long long)p->parameters);
    else if (p->devices && denied)
        snprintf(why, cap, "\"devices\" lists %s alone, the job's cluster says device: %s",
                 p->devices >> AGENT_DEVICE_CPU & 1 ? "cpu" : "cuda",
                 !n.on_processors ? "cuda"
                 : n.on_devices   ? "auto"
                                  : "cpu");
    else if (p->tokens_per_step && n.step_tokens > (double)p->tokens_per_step)
        snprintf(why, cap, "a step of the job has %.0f tokens, at most %lld are given",
                 n.step_tokens, (long long)p->tokens_per_step);
    else if (reckon && !job->model.vocab && !found.vocab)
        snprintf(
            why, cap,
            "what the job needs cannot be reckoned: it does not say model.vocab, and its corpus "
            "is not here");
    else if (!too_much(n.memory, p->memory, "of memory", why, cap) &&
             !too_much(n.device_memory, p->device_memory, "of each device's memory", why, cap) &&
             !too_much(n.disk, p->disk, "on disk", why, cap))
        return true;
    return false;
}

// What is trained on here would be read elsewhere. In one process it stays.
static bool text_goes(const struct agent_job *job, int self) {
    enum agent_role role = job->clusters[self].role;
    return job->sync.scheme != AGENT_SCHEME_SYNCHRONOUS &&
           ((job->mode == AGENT_MODE_RTD && job->rtd.push_text && role == AGENT_ROLE_GENERATOR) ||
            (job->mode == AGENT_MODE_DISTILL && job->distill.pushed && role == AGENT_ROLE_STUDENT));
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
    else if (text_goes(job, self) && !p->push_text)
        snprintf(reason, sizeof reason,
                 "its push_text sends the text of this site to another one, and \"push_text\" is "
                 "not true");
    else if (limits_ok(p, job, self, running, reason, sizeof reason) &&
             data_ok(p, job, self, reason, sizeof reason) &&
             needs_ok(p, job, self, reason, sizeof reason))
        return true;
    snprintf(why, cap, "the policy of site \"%s\" does not admit the job: %s (policy.json)",
             job->clusters[self].name, reason);
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
