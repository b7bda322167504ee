// SPDX-License-Identifier: Apache-2.0
// The start of a run: the job from its file, options and --set, and the folder --out.
#include "agent/base/bytes.h"
#include "agent/base/log.h"
#include "agent/cli/pretrain_state.h"
#include "agent/job/id.h"
#include "agent/job/model.h"
#include "agent/job/model_init.h"
#include "agent/plan/planner.h"
#include "agent/show/report.h"
#include "intra/data/data.h"
#include "kernels/pool.h"
#include "security/identity.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

// Attached trainers read their own data, and clusters may have their own corpora.
static bool needs_corpus(const struct agent_job *job) {
    for (int i = 0; i < job->n_clusters; i++)
        if (!job->clusters[i].witness && job->clusters[i].launcher != AGENT_LAUNCHER_ATTACH &&
            !job->clusters[i].corpus[0])
            return true;
    return neb_fs_exists(job->corpus);
}

// Names what makes a missing corpus: the scripts for the jobs in configs/, or a spec of the user.
static enum neb_status no_corpus(const char *corpus) {
    static const char *const known[][2] = {{"manpages-small", "configs/corpus-manpages --small"},
                                           {"manpages", "configs/corpus-manpages"},
                                           {"parallel-small", "configs/corpus-parallel"},
                                           {"parallel", "configs/corpus-parallel"}};
    const char *slash = strrchr(corpus, '/'), *name = slash ? slash + 1 : corpus;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i][0]))
            return neb_fail(NEB_ERR_NOT_FOUND,
                            "data.corpus: cannot find %s; make it: %s && nebula data build "
                            "configs/%s.yaml --out %s",
                            corpus, known[i][1], name, corpus);
    return neb_fail(NEB_ERR_NOT_FOUND,
                    "data.corpus: cannot find %s; make it: nebula data build SPEC.yaml --out %s, "
                    "or name another one: --set data.corpus=DIR",
                    corpus, corpus);
}

// The first corpus sets the job's vocabulary. Workers at other sites compare theirs with it.
static enum neb_status take_vocabulary(struct agent_job *job, int cluster,
                                       const struct intra_corpus *c, bool anew) {
    uint8_t sha[INTRA_SHA_BYTES];
    if (job->tokenizer_sha256[0] || !anew)
        return agent_job_vocabulary(job, cluster, c);
    NEB_TRY(intra_corpus_tokenizer_digest(c, sha));
    neb_hex(sha, sizeof sha, job->tokenizer_sha256);
    return NEB_OK;
}

// Checks corpora before anything starts: that of the first cluster, and in a local run those of all
// clusters. A corpus that is not on this machine belongs to another site.
static enum neb_status check_corpus(struct agent_job *job, int cluster, bool local, bool anew) {
    const struct agent_cluster *k = &job->clusters[cluster];
    const char *dir = agent_job_corpus(job, cluster);
    struct intra_corpus *c = NULL;
    char index[NEB_PATH_MAX];
    if (k->launcher == AGENT_LAUNCHER_ATTACH || k->witness)
        return NEB_OK;
    NEB_TRY(neb_path(index, sizeof index, dir, "corpus.json"));
    if (k->corpus[0] && !neb_fs_exists(index))
        return local ? neb_fail(NEB_ERR_NOT_FOUND,
                                "clusters.corpus: cluster %s: there is no corpus in %s; make it: "
                                "nebula data build SPEC.yaml --out %s",
                                k->name, dir, dir)
                     : NEB_OK;
    NEB_TRY(intra_corpus_open(dir, false, &c));
    enum neb_status st = intra_corpus_check_tokenizer(c);
    if (st == NEB_OK && local) // the corpus of another site may have other sources
        st = agent_job_corpus_fits(job, cluster, c);
    if (st == NEB_OK && job->mode == AGENT_MODE_REPLICAS && job->sync.scheme != AGENT_SCHEME_NONE)
        st = take_vocabulary(job, cluster, c, anew);
    intra_corpus_close(&c);
    return st;
}

// An absolute path stays as written, with its links: at another site they may lead elsewhere.
static enum neb_status whole_path(char *path, size_t cap, const char *what) {
    return path[0] == '/' && neb_fs_exists(path) ? NEB_OK : neb_path_absolute(path, cap, what);
}

// Agents that read the job work in other folders. init: also resolve the checkpoint it starts from.
static enum neb_status make_absolute(struct agent_job *j, bool init, bool local) {
    if (needs_corpus(j) && !neb_fs_exists(j->corpus))
        return no_corpus(j->corpus);
    if (needs_corpus(j))
        NEB_TRY(whole_path(j->corpus, sizeof j->corpus, "data.corpus"));
    for (int i = 0; i < j->n_clusters; i++)
        // else it is at another site
        if (j->clusters[i].corpus[0] && neb_fs_exists(j->clusters[i].corpus))
            NEB_TRY(
                whole_path(j->clusters[i].corpus, sizeof j->clusters[i].corpus, "clusters.corpus"));
    if (init)
        NEB_TRY(agent_job_init_from(j));
    if (j->mode != AGENT_MODE_DISTILL)
        return NEB_OK;
    bool elsewhere = !local && j->distill.teacher[0] == '/'; // the teacher's site checks it
    if (j->distill.teacher[0] && !elsewhere)
        NEB_TRY(whole_path(j->distill.teacher, sizeof j->distill.teacher, "distill.teacher.init"));
    for (int i = 0; i < j->n_clusters; i++) {
        char *own = j->clusters[i].init;
        if (own[0] && (local || own[0] != '/'))
            NEB_TRY(whole_path(own, sizeof j->clusters[i].init, "clusters.init"));
    }
    if (!j->distill.cache[0])
        return NEB_OK;
    NEB_TRY(neb_fs_mkdirs(j->distill.cache, 0700));
    return whole_path(j->distill.cache, sizeof j->distill.cache, "distill.cache");
}

// What another job can start from in the run in --out: its model or its newest checkpoint, if they
// are here.
static void checkpoint_of(const struct run *r, const char *id, char *out, size_t cap) {
    char home[NEB_PATH_MAX];
    snprintf(out, cap, "%s/checkpoint/model.ckpt", r->o.out);
    for (int i = 0; i < r->job.n_clusters && !neb_fs_exists(out); i++)
        snprintf(out, cap, "%s/clusters/%s/jobs/%s/checkpoint", r->o.out, r->job.clusters[i].name,
                 id);
    if (neb_fs_exists(out))
        return;
    if (r->o.local || sec_home(r->o.common.home, home, sizeof home) != NEB_OK)
        snprintf(home, sizeof home, "HOME");
    snprintf(out, cap, "%s/jobs/%s/checkpoint", home, id);
}

// With --resume: the job in job.json of --out. *begun: there is such a run; if not,
// pretrain_open_out gives the error.
static enum neb_status load_begun(const struct run *r, struct agent_job *was, bool *begun) {
    char path[NEB_PATH_MAX], from[2 * NEB_PATH_MAX];
    *begun = false;
    if (!r->o.resume)
        return NEB_OK;
    NEB_TRY(neb_path(path, sizeof path, r->o.out, "job.json"));
    json_t *root = json_load_file(path, 0, NULL), *spec = json_object_get(root, "spec");
    enum neb_status st = spec ? agent_job_from_json(spec, was) : NEB_OK;
    const char *id = json_string_value(json_object_get(root, "id"));
    if (st != NEB_OK && id) {
        checkpoint_of(r, id, from, sizeof from);
        st = neb_fail(
            st,
            "%s was not written by this build of nebula (see above): finish the run with the build "
            "that began it, or begin a new one in another --out with init_from: %s",
            path, from);
    }
    *begun = spec && st == NEB_OK;
    json_decref(root);
    return st;
}

// Takes what was chosen at the start of the run: nonce, vocabulary, first model, and values for
// auto, whatever is on this machine now.
static enum neb_status take_chosen(struct run *r, const struct agent_job *was) {
    memcpy(r->job.nonce, was->nonce, sizeof was->nonce);
    if (!r->job.tokenizer_sha256[0])
        memcpy(r->job.tokenizer_sha256, was->tokenizer_sha256, sizeof was->tokenizer_sha256);
    if (was->init_sha256[0])
        memcpy(r->job.init_sha256, was->init_sha256, sizeof was->init_sha256);
    if (!agent_planner_is_open(&r->job))
        return NEB_OK;
    agent_planner_take(was, &r->job);
    return agent_job_validate(&r->job, r->o.common.args[0]);
}

enum neb_status pretrain_load_job(struct run *r) {
    static struct agent_job was; // large
    char assignment[128];
    bool begun, kept = false;
    enum neb_status st = agent_job_load(r->o.common.args[0], &r->job);
    if (st != NEB_OK) // also for a missing file: as nebula check
        return st == NEB_ERR_NOMEM ? st : NEB_ERR_INVALID;
    for (int i = 0; i < r->o.sets.n; i++)
        NEB_TRY(agent_job_set(&r->job, r->o.sets.text[i]));
    if (r->o.steps) {
        snprintf(assignment, sizeof assignment, "steps=%.100s", r->o.steps);
        NEB_TRY(agent_job_set(&r->job, assignment));
    }
    if (r->o.seed) {
        snprintf(assignment, sizeof assignment, "seed=%.100s", r->o.seed);
        NEB_TRY(agent_job_set(&r->job, assignment));
    }
    if (!r->o.out) {
        snprintf(r->default_out, sizeof r->default_out, "out/%s", r->job.name);
        r->o.out = r->default_out;
    }
    NEB_TRY(pretrain_mend_job(r));
    NEB_TRY(load_begun(r, &was, &begun));
    if (begun)
        NEB_TRY(agent_job_model_kept(&r->job, &was, r->o.common.args[0], &kept));
    if (!kept)
        NEB_TRY(agent_job_model_init(&r->job, r->o.common.args[0]));
    NEB_TRY(agent_job_validate(&r->job, r->o.common.args[0]));
    agent_job_warn_idle(&r->job, r->o.common.args[0]);
    NEB_TRY(make_absolute(&r->job, !kept, r->o.local));
    bool reference = r->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    if (r->o.local && r->o.local != r->job.n_clusters)
        return neb_fail(NEB_ERR_INVALID, "--local %d, but the job has %d clusters", r->o.local,
                        r->job.n_clusters);
    NEB_TRY(begun ? take_chosen(r, &was) : agent_job_draw_nonce(&r->job));
    for (int i = 0; i < r->job.n_clusters; i++)
        if (i == 0 || r->o.local || !r->job.tokenizer_sha256[0])
            NEB_TRY(check_corpus(&r->job, i, r->o.local, !begun));
    if (reference)
        r->o.local = r->o.local ? 1 : 0;
    for (int i = 0; r->o.local && i < r->job.n_clusters; i++)
        if (!r->job.clusters[i].threads)
            r->job.clusters[i].threads = kern_pool_share(r->o.local);
    if (reference && r->o.local) // it has the machine to itself
        r->job.clusters[0].threads = kern_pool_share(1);
    NEB_TRY(agent_planner_resolve(&r->job, r->o.local, r->o.wan, r->o.common.home));
    r->expected = 0; // clusters that train come first; each sends a report
    for (int i = 0; i < r->job.n_clusters; i++)
        r->expected += !r->job.clusters[i].witness;
    r->expected = reference ? 1 : r->expected;
    r->spec = agent_job_to_json(&r->job);
    return r->spec ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory");
}

static enum neb_status write_job(const struct run *r) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, r->out, "job.json"));
    return pretrain_write_job(path, r->id, r->spec);
}

// Continues the run in --out under its id. The job must be the same, except for where and how its
// clusters train.
static enum neb_status take_up(struct run *r, const char *path) {
    uint8_t id[AGENT_JOB_ID_BYTES];
    json_t *was = json_load_file(path, 0, NULL);
    const json_t *spec = json_object_get(was, "spec");
    const char *hex = json_string_value(json_object_get(was, "id")), *key;
    char from[2 * NEB_PATH_MAX];
    bool rtd = r->job.mode == AGENT_MODE_RTD; // rtd cannot start from a checkpoint
    enum neb_status st = NEB_OK;
    // An empty id: the run was begun, but no agent has taken it yet.
    if (!hex || (*hex && !neb_unhex(hex, id, sizeof id)) || !json_is_object(spec)) {
        st = neb_fail(NEB_ERR_FORMAT,
                      "%s is damaged: restore it from a backup, or begin in another --out, with "
                      "init_from: the newest checkpoint of a cluster",
                      path);
    } else if ((key = agent_job_differs(r->spec, spec))) {
        checkpoint_of(r, hex, from, sizeof from);
        st = neb_fail(NEB_ERR_INVALID,
                      "%s was begun with another job: %s differs; resume with the same file and "
                      "options (of clusters, only mesh, launcher, threads, device, cuda_graphs, "
                      "recompute%s may change). For another job use another --out%s%s",
                      r->o.out, key,
                      r->job.sync.gate == AGENT_GATE_PRIVATE ? "" : ", precision and batch",
                      rtd ? "" : ", perhaps with init_from: ", rtd ? "" : from);
    } else {
        memcpy(r->id, hex, strlen(hex) + 1);
        if (!json_equal(r->spec, (json_t *)(uintptr_t)spec)) {
            neb_info("continuing with other meshes, launchers, threads, devices, precisions, "
                     "graphs, batches or recomputation");
            st = write_job(r);
        }
    }
    json_decref(was);
    return st;
}

enum neb_status pretrain_open_out(struct run *r) {
    char path[NEB_PATH_MAX];
    r->made_out = !neb_fs_exists(r->o.out);
    NEB_TRY(neb_fs_mkdirs(r->o.out, 0755));
    snprintf(r->out, sizeof r->out, "%s", r->o.out);
    NEB_TRY(neb_path_absolute(r->out, sizeof r->out, "--out"));
    NEB_TRY(neb_path(path, sizeof path, r->out, ".lock"));
    r->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (r->lock_fd < 0)
        return neb_fail_errno("cannot create %s", path);
    if (flock(r->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return neb_fail(NEB_ERR_EXISTS,
                        "another nebula works in %s; wait for it, or choose another --out",
                        r->o.out);
    NEB_TRY(neb_path(path, sizeof path, r->out, "job.json"));
    if (neb_fs_exists(path)) {
        if (!r->o.resume)
            return neb_fail(
                NEB_ERR_EXISTS,
                "%s has a run already: use --resume to continue it, or choose another --out",
                r->o.out);
        return take_up(r, path);
    }
    if (r->o.resume)
        return neb_fail(NEB_ERR_NOT_FOUND,
                        "--resume: %s has no run (%s is missing): begin one without --resume",
                        r->o.out, path);
    r->made_job = true;
    return write_job(r);
}

enum neb_status pretrain_took(struct run *r, const char *hex) {
    uint8_t id[AGENT_JOB_ID_BYTES];
    if (!neb_unhex(hex, id, sizeof id))
        return neb_fail(NEB_ERR_FORMAT, "the agent at %s gave the job no valid id", r->socket);
    bool told = !strcmp(r->id, hex);
    memcpy(r->id, hex, sizeof r->id);
    return told ? NEB_OK : write_job(r);
}

void pretrain_undo_out(struct run *r) {
    static const char *const files[] = {"metrics.jsonl", "job.json", ".lock"};
    char path[NEB_PATH_MAX];
    if (!r->made_job || !r->over || r->stepped)
        return;
    agent_metrics_close(&r->metrics);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (neb_path(path, sizeof path, r->out, files[i]) == NEB_OK &&
            neb_fs_remove(path) != NEB_OK)
            return; // the reason is logged
    if (r->made_out)
        rmdir(r->out); // fails if agents have left logs there
}
