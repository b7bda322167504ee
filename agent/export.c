#include "agent/export.h"
#include "agent/base/log.h"
#include "agent/corpus_note.h"

static enum neb_status copy(const char *from_dir, const char *from, const char *to_dir,
                            const char *to) {
    char a[NEB_PATH_MAX], b[NEB_PATH_MAX];
    NEB_TRY(neb_path(a, sizeof a, from_dir, from));
    NEB_TRY(neb_path(b, sizeof b, to_dir, to));
    return neb_fs_copy(a, b, 0644);
}

// The vocabulary, and which corpus it is of. The models are there already: without it they are as good, and it can be put there later.
static void copy_vocabulary(const struct agent_job *job, const char *dir) {
    const char *corpus = agent_job_corpus(job, 0);
    char path[NEB_PATH_MAX];
    bool ours = false; // or it is the attached trainers' own
    for (int i = 0; i < job->n_clusters; i++)
        ours |= !job->clusters[i].witness && job->clusters[i].launcher != AGENT_LAUNCHER_ATTACH;
    if (agent_corpus_note_write(corpus, dir) != NEB_OK)
        neb_warn("%s does not say which corpus its models learned from: give nebula eval --corpus",
                 dir);
    if (neb_path(path, sizeof path, corpus, "tokenizer.model") != NEB_OK ||
        (!ours && !neb_fs_exists(path)))
        return;
    if (copy(corpus, "tokenizer.model", dir, "tokenizer.model") != NEB_OK)
        neb_warn("the models in %s are whole, but their vocabulary is not there: copy it from a "
                 "corpus of theirs to %s/tokenizer.model",
                 dir, dir);
}

static enum neb_status export_rtd(const struct agent_job *job, char (*dirs)[NEB_PATH_MAX],
                                  const char *dir) {
    bool both = job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    int g = both ? 0 : agent_job_role(job, AGENT_ROLE_GENERATOR),
        d = both ? 0 : agent_job_role(job, AGENT_ROLE_DISCRIMINATOR);
    if (dirs[g][0])
        NEB_TRY(copy(dirs[g], "model.ckpt", dir, "generator.ckpt"));
    if (dirs[d][0])
        return copy(dirs[d], both ? "discriminator.ckpt" : "model.ckpt", dir, "model.ckpt");
    neb_info("the discriminator is on cluster %s: jobs/ID/model.ckpt in its agent's home",
             job->clusters[d].name);
    return NEB_OK;
}

static enum neb_status export_distill(const struct agent_job *job, char (*dirs)[NEB_PATH_MAX],
                                      const char *dir) {
    char name[AGENT_NAME_MAX + 8];
    bool first = true;
    for (int i = 0; i < job->n_clusters; i++) {
        bool teacher = job->clusters[i].role == AGENT_ROLE_TEACHER;
        snprintf(name, sizeof name, "%s.ckpt", job->clusters[i].name);
        if (!dirs[i][0] || (teacher && !job->distill.learn)) {
            if (!teacher)
                neb_info("student %s: jobs/ID/model.ckpt in its agent's home",
                         job->clusters[i].name);
            continue;
        }
        if (teacher && job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
            NEB_TRY(copy(dirs[0], "teacher.ckpt", dir, "teacher.ckpt"));
        else
            NEB_TRY(copy(dirs[i], "model.ckpt", dir,
                         teacher ? "teacher.ckpt"
                         : first ? "model.ckpt"
                                 : name));
        first = first && teacher;
    }
    return NEB_OK;
}

enum neb_status agent_export_models(const struct agent_job *job, char (*dirs)[NEB_PATH_MAX],
                                    const char *out) {
    char dir[NEB_PATH_MAX];
    NEB_TRY(neb_path(dir, sizeof dir, out, "checkpoint"));
    NEB_TRY(neb_fs_mkdirs(dir, 0755));
    switch (job->mode) {
    case AGENT_MODE_RTD: NEB_TRY(export_rtd(job, dirs, dir)); break;
    case AGENT_MODE_DISTILL: NEB_TRY(export_distill(job, dirs, dir)); break;
    case AGENT_MODE_REPLICAS: NEB_TRY(copy(dirs[0], "model.ckpt", dir, "model.ckpt")); break;
    }
    copy_vocabulary(job, dir);
    return NEB_OK;
}
