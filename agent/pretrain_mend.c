// job.json of a local run that is damaged or missing, written again from what a ledger of its clusters has: id and specification.
#include "agent/base/log.h"
#include "agent/jobs.h"
#include "agent/pretrain_state.h"
#include "inter/ledger.h"

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

// A run has one job.
static bool find_job(const char *home, struct agent_job_record *out) {
    struct inter_ledger *l = NULL;
    if (inter_ledger_open_readonly(home, &l) != NEB_OK)
        return false;
    bool found = agent_jobs_find(l, "", out) == NEB_OK;
    if (found && !out->spec) {
        agent_job_record_clear(out);
        found = false;
    }
    inter_ledger_close(&l);
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
        if (e->d_name[0] == '.' ||
            neb_path(home, sizeof home, clusters, e->d_name) != NEB_OK || !find_job(home, &job))
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
