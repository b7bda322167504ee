// SPDX-License-Identifier: Apache-2.0
// Writes a damaged or missing job.json of a local run again, from a ledger of its clusters: id and
// specification.
#include "agent/base/log.h"
#include "agent/cli/pretrain_state.h"
#include "agent/daemon/jobs.h"
#include "inter/ledger/ledger.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static bool is_whole(const char *path) {
    uint8_t id[AGENT_JOB_ID_BYTES];
    json_t *root = json_load_file(path, 0, NULL);
    const char *hex = json_string_value(json_object_get(root, "id"));
    bool whole =
        hex && neb_unhex(hex, id, sizeof id) && json_is_object(json_object_get(root, "spec"));
    json_decref(root);
    return whole;
}

struct found {
    int n;
    struct agent_job_record job;
};

static void take(void *user, const uint8_t id[INTER_ID_BYTES], const char *spec,
                 const char *state) {
    struct found *x = user;
    if (x->n++ == 0)
        agent_job_record_read(id, spec, state, &x->job);
}

// Finds the one job of a run.
static bool find_job(const char *home, struct agent_job_record *out) {
    struct inter_ledger *l = NULL;
    struct found x = {.n = 0};
    bool found = inter_ledger_open_readonly(home, &l) == NEB_OK &&
                 inter_ledger_jobs(l, take, &x) == NEB_OK && x.n == 1 && x.job.spec;
    inter_ledger_close(&l);
    if (!found && x.n)
        agent_job_record_clear(&x.job);
    *out = x.job;
    return found;
}

enum neb_status pretrain_write_job(const char *path, const char *hex, json_t *spec) {
    json_t *root = json_pack("{s:s,s:O}", "id", hex, "spec", spec);
    char *text = json_dumps(root, JSON_INDENT(1));
    enum neb_status st = text ? neb_fs_write(path, text, strlen(text), 0644)
                              : neb_fail(NEB_ERR_NOMEM, "out of memory");
    free(text);
    json_decref(root);
    return st;
}

enum neb_status pretrain_mend_job(const struct run *r) {
    char path[NEB_PATH_MAX], clusters[NEB_PATH_MAX], home[NEB_PATH_MAX];
    struct agent_job_record job;
    enum neb_status st = NEB_OK;
    if (!r->o.resume || !r->o.local)
        return NEB_OK;
    NEB_TRY(neb_path(path, sizeof path, r->o.out, "job.json"));
    NEB_TRY(neb_path(clusters, sizeof clusters, r->o.out, "clusters"));
    DIR *d = is_whole(path) ? NULL : opendir(clusters);
    if (!d)
        return NEB_OK;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' || neb_path(home, sizeof home, clusters, e->d_name) != NEB_OK ||
            !find_job(home, &job))
            continue;
        neb_warn("%s is %s: it is written again from %s/ledger.db", path,
                 neb_fs_exists(path) ? "damaged" : "missing", home);
        st = pretrain_write_job(path, job.hex, job.spec);
        agent_job_record_clear(&job);
        break;
    }
    closedir(d);
    return st;
}
