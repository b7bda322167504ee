// SPDX-License-Identifier: Apache-2.0
#include "agent/show/export.h"
#include "agent/base/log.h"
#include "agent/show/corpus_note.h"
#include "intra/data/tokenizer_files.h"

#include <string.h>

static enum neb_status copy(const char *from_dir, const char *from, const char *to_dir,
                            const char *to) {
    char a[NEB_PATH_MAX], b[NEB_PATH_MAX];
    NEB_TRY(neb_path(a, sizeof a, from_dir, from));
    NEB_TRY(neb_path(b, sizeof b, to_dir, to));
    return neb_fs_copy(a, b, 0644);
}

// The cluster on this machine whose corpus goes with the models, preferably without an attached
// trainer. -1: none.
static int vocabulary_of(const struct agent_job *job, char (*dirs)[NEB_PATH_MAX]) {
    int found = -1;
    for (int i = 0; i < job->n_clusters; i++)
        if (dirs[i][0] && !job->clusters[i].witness &&
            (found < 0 || (job->clusters[found].launcher == AGENT_LAUNCHER_ATTACH &&
                           job->clusters[i].launcher != AGENT_LAUNCHER_ATTACH)))
            found = i;
    return found;
}

// Copies the vocabulary and the note of its corpus. Failures only warn: the models are complete
// without it, and the user can copy it later.
static void copy_vocabulary(const struct agent_job *job, int cluster, const char *dir) {
    const char *corpus = agent_job_corpus(job, cluster);
    char path[NEB_PATH_MAX];
    // an attached trainer may have its own vocabulary
    bool ours = job->clusters[cluster].launcher != AGENT_LAUNCHER_ATTACH;
    if (agent_corpus_note_write(corpus, dir) != NEB_OK)
        neb_warn(
            "cannot note in %s which corpus its models learned from: give nebula eval --corpus DIR",
            dir);
    if (intra_tokenizer_in(corpus, path, sizeof path) != NEB_OK || (!ours && !neb_fs_exists(path)))
        return;
    if (intra_tokenizer_copy(path, dir) != NEB_OK)
        neb_warn("the models in %s are complete, but their vocabulary is missing: copy it from "
                 "their corpus to %s/%s",
                 dir, dir, strrchr(path, '/') + 1);
}

// Warns that the main model is at another site, where the user must fetch it.
static void say_no_model(const struct agent_job *job, int cluster, const char *id,
                         const char *dir) {
    neb_warn("%s gets no model.ckpt, which is at another site: cluster %s has it as "
             "HOME/jobs/%s/model.ckpt in its agent's home",
             dir, job->clusters[cluster].name, id);
}

static void say_elsewhere(const struct agent_job *job, int cluster, const char *id,
                          const char *what) {
    neb_info("the %s is at cluster %s: HOME/jobs/%s/model.ckpt in its agent's home", what,
             job->clusters[cluster].name, id);
}

static enum neb_status export_replicas(const struct agent_job *job, const char *id,
                                       char (*dirs)[NEB_PATH_MAX], const char *dir) {
    int trains = -1;
    for (int i = 0; i < job->n_clusters; i++) {
        if (job->clusters[i].witness)
            continue;
        if (dirs[i][0])
            return copy(dirs[i], "model.ckpt", dir, "model.ckpt");
        trains = trains < 0 ? i : trains;
    }
    if (trains >= 0)
        say_no_model(job, trains, id, dir);
    return NEB_OK;
}

static enum neb_status export_rtd(const struct agent_job *job, const char *id,
                                  char (*dirs)[NEB_PATH_MAX], const char *dir) {
    bool both = job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    int g = both ? 0 : agent_job_role(job, AGENT_ROLE_GENERATOR),
        d = both ? 0 : agent_job_role(job, AGENT_ROLE_DISCRIMINATOR);
    if (dirs[g][0])
        NEB_TRY(copy(dirs[g], "model.ckpt", dir, "generator.ckpt"));
    else
        say_elsewhere(job, g, id, "generator");
    if (dirs[d][0])
        return copy(dirs[d], both ? "discriminator.ckpt" : "model.ckpt", dir, "model.ckpt");
    say_no_model(job, d, id, dir);
    return NEB_OK;
}

static enum neb_status export_distill(const struct agent_job *job, const char *id,
                                      char (*dirs)[NEB_PATH_MAX], const char *dir) {
    bool both = job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS; // one process with one student
    char name[AGENT_NAME_MAX + 8];
    int student = agent_job_role(job, AGENT_ROLE_STUDENT);
    bool first = true;
    for (int i = 0; i < job->n_clusters; i++) {
        const char *from = dirs[both ? 0 : i];
        bool teacher = job->clusters[i].role == AGENT_ROLE_TEACHER;
        if (job->clusters[i].witness || (teacher && !job->distill.learn))
            continue;
        if (job->clusters[i].launcher == AGENT_LAUNCHER_ATTACH) {
            neb_info("the program that is attached to cluster %s saves its own model",
                     job->clusters[i].name);
            first = first && i != student;
            continue;
        }
        snprintf(name, sizeof name, "%s.ckpt", job->clusters[i].name);
        if (!from[0]) {
            if (teacher || i != student) // the first student is handled below
                say_elsewhere(job, i, id, teacher ? "teacher" : "student");
        } else if (teacher) {
            if (i == agent_job_role(job, AGENT_ROLE_TEACHER))
                snprintf(name, sizeof name, "teacher.ckpt");
            NEB_TRY(copy(from, both ? "teacher.ckpt" : "model.ckpt", dir, name));
        } else {
            NEB_TRY(copy(from, "model.ckpt", dir, first ? "model.ckpt" : name));
            first = false;
        }
    }
    if (student >= 0 && first)
        say_no_model(job, student, id, dir);
    else if (student >= 0 && !dirs[both ? 0 : student][0] &&
             job->clusters[student].launcher != AGENT_LAUNCHER_ATTACH)
        say_elsewhere(job, student, id, "student");
    return NEB_OK;
}

enum neb_status agent_export_models(const struct agent_job *job, const char *id,
                                    char (*dirs)[NEB_PATH_MAX], const char *out) {
    char dir[NEB_PATH_MAX];
    if (job->attached) {
        neb_info("the result is in the attached loops: each saves its own model");
        return NEB_OK;
    }
    int cluster = vocabulary_of(job, dirs);
    NEB_TRY(neb_path(dir, sizeof dir, out, "checkpoint"));
    NEB_TRY(neb_fs_mkdirs(dir, 0755));
    switch (job->mode) {
    case AGENT_MODE_RTD: NEB_TRY(export_rtd(job, id, dirs, dir)); break;
    case AGENT_MODE_DISTILL: NEB_TRY(export_distill(job, id, dirs, dir)); break;
    case AGENT_MODE_REPLICAS: NEB_TRY(export_replicas(job, id, dirs, dir)); break;
    }
    if (cluster >= 0)
        copy_vocabulary(job, cluster, dir);
    return NEB_OK;
}
