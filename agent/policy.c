#include "agent/policy.h"

#include "agent/base/fs.h"
#include "security/seal.h"

#include <stdlib.h>
#include <string.h>

enum { POLICY_BYTES_MAX = 16 * 1024 };

static const struct {
    const char *name;
    enum intra_trainable_mode mode;
} modes[] = {{"full", INTRA_TRAIN_FULL},
             {"lora", INTRA_TRAIN_LORA},
             {"bitfit", INTRA_TRAIN_BITFIT},
             {"last_layers", INTRA_TRAIN_LAST_LAYERS}};
enum { MODES = sizeof modes / sizeof modes[0] };

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

static bool trainable(const json_t *a, unsigned *bits) {
    char names[AGENT_POLICY_LIST][32];
    int n;
    if (!strings(a, names[0], sizeof names[0], &n))
        return false;
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < MODES && strcmp(names[i], modes[k].name) != 0)
            k++;
        if (k == MODES)
            return false;
        *bits |= 1u << modes[k].mode;
    }
    return true;
}

static bool count(const json_t *v, int64_t *out) {
    *out = json_integer_value(v);
    return !v || (json_is_integer(v) && *out > 0);
}

enum neb_status agent_policy_parse(const char *text, size_t len, const char *what,
                                   struct agent_policy *out) {
    static const char *const known[] = {"format",    "members", "data",
                                        "trainable", "threads", "ranks"};
    const char *key, *bad = NULL;
    json_error_t e;
    json_t *v, *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    *out = (struct agent_policy){.present = true};
    if (!json_is_object(root)) {
        json_decref(root);
        return neb_fail(NEB_ERR_FORMAT, "%s:%d: %s", what, root ? 1 : e.line,
                        root ? "an object is expected" : e.text);
    }
    json_object_foreach(root, key, v) {
        size_t i = 0;
        while (i < sizeof known / sizeof known[0] && strcmp(key, known[i]) != 0)
            i++;
        bad = i == sizeof known / sizeof known[0] ? "has an unknown key" : bad;
    }
    if (json_integer_value(json_object_get(root, "format")) != 1)
        bad = "\"format\": 1 is expected";
    else if (!strings(json_object_get(root, "members"), out->members[0], SEC_NAME_MAX,
                      &out->n_members))
        bad = "\"members\" is a list of 1 to 16 names";
    else if (!strings(json_object_get(root, "data"), out->data[0], NEB_PATH_MAX, &out->n_data))
        bad = "\"data\" is a list of 1 to 16 folders";
    else if (!trainable(json_object_get(root, "trainable"), &out->trainable))
        bad = "\"trainable\" is a list out of full, lora, bitfit, last_layers";
    else if (!count(json_object_get(root, "threads"), &out->threads) ||
             !count(json_object_get(root, "ranks"), &out->ranks))
        bad = "\"threads\" and \"ranks\" are numbers above 0";
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
        return neb_fail(NEB_ERR_NOMEM, "%s", path);
    enum neb_status st = sec_secret_read(path, text, POLICY_BYTES_MAX, &len);
    if (st == NEB_OK)
        st = agent_policy_parse(text, len, path, out);
    free(text);
    return st == NEB_ERR_NOT_FOUND ? NEB_OK : st;
}

// ---- judging --------------------------------------------------------------------------------------------------

// Whether path, with every link followed, is one of the policy's folders or lies in one.
static bool below(const struct agent_policy *p, const char *path) {
    char *real = realpath(path, NULL);
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
    const struct agent_cluster *c = &job->clusters[self];
    const char *const paths[] = {c->corpus[0] ? c->corpus : job->corpus, job->model_init,
                                 job->init_from};
    for (size_t i = 0; i < 3 && p->n_data >= 0; i++)
        if (paths[i][0] && !below(p, paths[i])) {
            snprintf(why, cap, "\"%s\" is not there, or not below a folder of its \"data\"",
                     paths[i]);
            return false;
        }
    return true;
}

bool agent_policy_admits(const struct agent_policy *p, const struct agent_job *job, int self,
                         const char *from, char *why, size_t cap) {
    const struct agent_cluster *c = &job->clusters[self];
    bool member = p->n_members < 0;
    char reason[NEB_PATH_MAX + 128] = "";
    if (!p->present)
        return true;
    for (int i = 0; i < p->n_members && !member; i++)
        member = !strcmp(p->members[i], from);
    if (!member)
        snprintf(reason, sizeof reason, "\"%s\" is not among the \"members\" that may submit",
                 from);
    else if (p->trainable && !(p->trainable >> job->trainable.mode & 1))
        snprintf(reason, sizeof reason, "\"trainable\" does not list what the job trains");
    else if (p->threads && (!c->threads || c->threads > p->threads))
        snprintf(reason, sizeof reason,
                 "the job asks for %d threads (0: all), at most %lld are given", c->threads,
                 (long long)p->threads);
    else if (p->ranks && agent_cluster_ranks(c) > p->ranks)
        snprintf(reason, sizeof reason, "the job asks for %d ranks, at most %lld are given",
                 agent_cluster_ranks(c), (long long)p->ranks);
    else if (data_ok(p, job, self, reason, sizeof reason))
        return true;
    snprintf(why, cap, "the policy of site \"%s\" does not admit the job: %s (policy.json)",
             c->name, reason);
    return false;
}

enum neb_status agent_job_signed_bytes(const uint8_t federation[SEC_FEDERATION_BYTES],
                                       const uint8_t id[AGENT_JOB_ID_BYTES], const json_t *spec,
                                       struct neb_buf *out) {
    char *text = json_dumps(spec, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text)
        return neb_fail(NEB_ERR_NOMEM, "job specification");
    neb_buf_clear(out);
    neb_buf_add(out, federation, SEC_FEDERATION_BYTES);
    neb_buf_add(out, id, AGENT_JOB_ID_BYTES);
    neb_buf_add(out, text, strlen(text));
    free(text);
    return neb_buf_check(out);
}
