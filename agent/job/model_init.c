// SPDX-License-Identifier: Apache-2.0
#include "agent/job/model_init.h"
#include "agent/base/log.h"
#include "agent/job/init_digest.h"
#include "agent/job/model.h"
#include "intra/data/tokenizer_files.h"
#include "intra/hf/hf.h"
#include "intra/model/rope.h"
#include "intra/train/trainer.h"

#include <stdlib.h>
#include <string.h>

enum neb_status agent_checkpoint_file(const struct neb_vault *vault, const char *path, char *out,
                                      size_t cap) {
    struct intra_ckpt *c = NULL;
    struct neb_map probe;
    NEB_TRY(neb_path(out, cap, path, "model.ckpt"));
    if (neb_fs_exists(out))
        return NEB_OK;
    NEB_TRY(neb_path(out, cap, path, "."));
    if (!neb_fs_exists(out)) { // not a folder, so it must be a file
        NEB_TRY(neb_map_open(path, &probe));
        neb_map_close(&probe);
        snprintf(out, cap, "%s", path);
        return NEB_OK;
    }
    enum neb_status st = intra_ckpt_open_latest_in(vault, path, &c);
    if (st == NEB_OK)
        snprintf(out, cap, "%s", intra_ckpt_path(c));
    intra_ckpt_close(&c);
    if (st != NEB_ERR_NOT_FOUND)
        return st;
    NEB_TRY(neb_path(out, cap, path, "config.json"));
    return neb_fs_exists(out) ? neb_fail(st,
                                         "%s is a Hugging Face folder; convert it to a checkpoint "
                                         "first: nebula import %s --out CKPT",
                                         path, path)
                              : neb_fail(st, "no checkpoint in %s", path);
}

static enum neb_status same_sizes(const struct agent_job *job, const struct intra_model_config *c,
                                  const char *file) {
    const struct intra_model_config *m = &job->model;
    const struct {
        const char *key;
        int32_t given, has; // given 0: the job does not give it
    } sizes[] = {
        {"vocab", m->vocab, c->vocab},
        {"n_layers", m->n_layers, c->n_layers},
        {"d_model", m->d_model, c->d_model},
        {"n_heads", m->n_heads, c->n_heads},
        {"n_kv_heads", m->n_kv_heads, c->n_kv_heads},
        {"head_dim", m->head_dim, c->head_dim},
        {"d_ff", m->d_ff, c->d_ff},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].given && sizes[i].given != sizes[i].has)
            return neb_fail(NEB_ERR_INVALID,
                            "%s: model.%s is %d, but model.init (%s) has %d; remove the key", file,
                            sizes[i].key, sizes[i].given, job->model_init, sizes[i].has);
    return NEB_OK;
}

static enum neb_status fill(struct agent_job *job, const struct intra_model_config *c,
                            const char *file) {
    struct intra_model_config *m = &job->model;
    NEB_TRY(same_sizes(job, c, file));
    if (c->mask != KERN_MASK_CAUSAL)
        return neb_fail(NEB_ERR_UNSUPPORTED, "%s: model.init: %s is not a causal language model",
                        file, job->model_init);
    *m = *c;
    if (job->seq_len > c->max_seq)
        neb_warn("%s: data.seq_len %d is longer than the sequences of %s (%d)", file, job->seq_len,
                 job->model_init, c->max_seq);
    m->max_seq = 0; // data.seq_len sets it
    return NEB_OK;
}

// Keys with a default also come from the checkpoint, unless the job gives them. A given value must
// be the checkpoint's.
static enum neb_status same_form(const struct agent_job *job, const struct intra_model_config *c,
                                 const char *file) {
    const struct intra_model_config *m = &job->model;
    const struct {
        const char *key;
        double given, has;
    } values[] = {
        {"model.rope_theta", (double)m->rope_theta, (double)c->rope_theta},
        {"model.norm_eps", (double)m->norm_eps, (double)c->norm_eps},
        {"model.tied", m->tied, c->tied},
        {"model.qkv_bias", m->qkv_bias, c->qkv_bias},
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (agent_job_gives(job, values[i].key) && values[i].given != values[i].has)
            return neb_fail(NEB_ERR_INVALID,
                            "%s: %s is %.9g, but model.init (%s) has %.9g; remove the key, or use "
                            "init_from, which takes only the parameters, and write all model keys",
                            file, values[i].key, values[i].given, job->model_init, values[i].has);
    char given[INTRA_ROPE_TEXT], has[INTRA_ROPE_TEXT];
    if (agent_job_gives(job, "model.rope_scaling") &&
        !intra_rope_same(&m->rope_scaling, &c->rope_scaling))
        return neb_fail(
            NEB_ERR_INVALID,
            "%s: model.rope_scaling is %s, but model.init (%s) has %s; remove the key, or use "
            "init_from, which takes only the parameters, and write all model keys",
            file, intra_rope_text(&m->rope_scaling, given), job->model_init,
            intra_rope_text(&c->rope_scaling, has));
    return NEB_OK;
}

// Token ids of another vocabulary mean nothing to the model; equal vocabulary sizes prove nothing.
static enum neb_status compare_vocabularies(const struct agent_job *job, const char *checkpoint) {
    char dir[NEB_PATH_MAX], beside[NEB_PATH_MAX], corpus[NEB_PATH_MAX];
    uint8_t model[NEB_SHA256_BYTES], text[NEB_SHA256_BYTES];
    neb_path_folder(dir, sizeof dir, checkpoint);
    NEB_TRY(intra_tokenizer_in(dir, beside, sizeof beside));
    NEB_TRY(intra_tokenizer_in(job->corpus, corpus, sizeof corpus));
    if (!neb_fs_exists(corpus)) // the job may be meant for other sites
        return NEB_OK;
    if (!neb_fs_exists(beside)) {
        neb_warn(
            "model.init: the vocabulary of %s is unknown, since there is no %s; nebula assumes "
            "the corpus's vocabulary (%s). If this is wrong, the model misreads every token: put "
            "the model's tokenizer.model or tokenizer.json there, so that nebula can compare them",
            job->model_init, beside, corpus);
        return NEB_OK;
    }
    NEB_TRY(intra_tokenizer_digest(beside, model));
    NEB_TRY(intra_tokenizer_digest(corpus, text));
    if (memcmp(model, text, sizeof text) != 0)
        neb_warn("the corpus %s has another vocabulary than %s; build it with tokenizer: %s",
                 job->corpus, job->model_init, beside);
    return NEB_OK;
}

// init_from takes only parameters. With other positions or norms the model would be another one,
// and the loss would not show it for a long time. So these keys must match, or the job must give
// them.
static enum neb_status same_model(const struct agent_job *job) {
    struct intra_ckpt *c = NULL;
    struct intra_model *m = NULL;
    if (!agent_init_is_clear(job->init_from)) // the code that reads the file reports the error
        return NEB_OK;
    NEB_TRY(intra_ckpt_open(job->init_from, false, &c));
    enum neb_status st = intra_hf_layout(c, &m);
    if (st == NEB_OK) { // the vocabulary size may come from the corpus
        struct intra_model_config is =
            agent_job_model(job, NULL, job->model.vocab ? job->model.vocab : m->c.vocab, m->c.mask);
        st = intra_model_same_shape(c, &is);
    }
    intra_ckpt_close(&c);
    if (st != NEB_OK) {
        intra_model_destroy(&m);
        return st;
    }
    const struct {
        const char *key;
        float is, has;
    } values[] = {{"model.rope_theta", job->model.rope_theta, m->c.rope_theta},
                  {"model.norm_eps", job->model.norm_eps, m->c.norm_eps}};
    for (size_t i = 0; i < sizeof values / sizeof *values && st == NEB_OK; i++)
        if (values[i].is != values[i].has && !agent_job_gives(job, values[i].key))
            st = neb_fail(NEB_ERR_INVALID,
                          "init_from: %s was trained with %s %.9g, but the job has %.9g: write the "
                          "key in the job (or replace init_from by model: {init: CKPT}, which "
                          "takes the whole shape)",
                          job->init_from, values[i].key, (double)values[i].has,
                          (double)values[i].is);
    char is[INTRA_ROPE_TEXT], has[INTRA_ROPE_TEXT];
    if (st == NEB_OK && !intra_rope_same(&job->model.rope_scaling, &m->c.rope_scaling) &&
        !agent_job_gives(job, "model.rope_scaling"))
        st = neb_fail(NEB_ERR_INVALID,
                      "init_from: %s was trained with model.rope_scaling %s, but the job has %s: "
                      "write the key in the job (or replace init_from by model: {init: CKPT}, "
                      "which takes the whole shape)",
                      job->init_from, intra_rope_text(&m->c.rope_scaling, has),
                      intra_rope_text(&job->model.rope_scaling, is));
    intra_model_destroy(&m);
    return st;
}

enum neb_status agent_job_init_from(struct agent_job *job) {
    char path[NEB_PATH_MAX];
    if (!job->init_from[0])
        return NEB_OK;
    if (!neb_fs_exists(job->init_from))
        return neb_fail(NEB_ERR_NOT_FOUND, "init_from: there is no %s", job->init_from);
    // the reason is logged
    if (agent_checkpoint_file(NULL, job->init_from, path, sizeof path) != NEB_OK)
        return neb_fail(NEB_ERR_INVALID,
                        "init_from: %s is not a checkpoint that a job can start from",
                        job->init_from);
    snprintf(job->init_from, sizeof job->init_from, "%s", path);
    NEB_TRY(neb_path_absolute(job->init_from, sizeof job->init_from, "init_from"));
    if (!job->model_init[0])
        NEB_TRY(same_model(job));
    return job->init_sha256[0] ? NEB_OK : agent_job_init_digest(job);
}

enum neb_status agent_job_model_init(struct agent_job *job, const char *file) {
    char path[NEB_PATH_MAX];
    struct intra_ckpt *c = NULL;
    struct intra_model *m = NULL;
    enum neb_status st = NEB_OK;
    if (!job->model_init[0])
        return NEB_OK;
    if (job->init_from[0])
        return neb_fail(NEB_ERR_INVALID,
                        "%s: model.init and init_from are both given; remove one (init_from needs "
                        "all model keys)",
                        file);
    if (!neb_fs_exists(job->model_init))
        return neb_fail(NEB_ERR_NOT_FOUND, "%s: model.init: there is no %s", file, job->model_init);
    // the reason is logged
    if (agent_checkpoint_file(NULL, job->model_init, path, sizeof path) != NEB_OK)
        return neb_fail(NEB_ERR_INVALID,
                        "%s: model.init: %s is not a checkpoint that a job can start from", file,
                        job->model_init);
    NEB_TRY(neb_path_absolute(path, sizeof path, "model.init"));
    NEB_TRY_GOTO(intra_ckpt_open(path, false, &c), out);
    NEB_TRY_GOTO(intra_hf_layout(c, &m), out);
    NEB_TRY_GOTO(same_form(job, &m->c, file), out);
    NEB_TRY_GOTO(fill(job, &m->c, file), out);
    snprintf(job->init_from, sizeof job->init_from, "%s", path);
    // an absolute path, so that every reader finds the same file
    snprintf(job->model_init, sizeof job->model_init, "%s", path);
    st = compare_vocabularies(job, path);
out:
    intra_model_destroy(&m);
    intra_ckpt_close(&c);
    return st;
}

// True if `folder` is a folder that contains `checkpoint`. Its newest checkpoint may differ by now,
// or be gone.
static bool came_from(const char *checkpoint, const char *folder) {
    char path[NEB_PATH_MAX];
    snprintf(path, sizeof path, "%s", folder);
    return neb_path_absolute(path, sizeof path, "init_from") == NEB_OK &&
           strcmp(path, checkpoint) && neb_path_within(checkpoint, path);
}

enum neb_status agent_job_model_kept(struct agent_job *job, const struct agent_job *was,
                                     const char *file, bool *kept) {
    const char *from = job->model_init[0] ? job->model_init : job->init_from;
    bool there = neb_fs_exists(from);
    *kept = from[0] && was->init_from[0] && !job->model_init[0] == !was->model_init[0] &&
            (!there || came_from(was->init_from, from));
    if (!*kept)
        return NEB_OK;
    if (!there)
        neb_info("%s no longer exists: the job continues from its own checkpoints", from);
    if (job->model_init[0]) {
        NEB_TRY(same_form(job, &was->model, file));
        NEB_TRY(same_sizes(job, &was->model, file));
        job->model = was->model;
    }
    memcpy(job->model_init, was->model_init, sizeof job->model_init);
    memcpy(job->init_from, was->init_from, sizeof job->init_from);
    return NEB_OK;
}
