// SPDX-License-Identifier: Apache-2.0
#include "agent/train/decoder.h"
#include "intra/ranks/rank_env.h"
#include "intra/train/decode.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int ranks_of(const struct intra_mesh_config *m) { return m->dp * m->pp * m->tp; }

bool agent_decoder_needs_ranks(const struct intra_mesh_config *m) {
    return ranks_of(m) > 1 && !getenv("RANK") && !getenv("OMPI_COMM_WORLD_RANK") &&
           !getenv("SLURM_PROCID");
}

static enum neb_status read_shape(struct agent_decoder *d) {
    NEB_TRY(intra_ckpt_open_in(d->o.vault, d->o.checkpoint, true, &d->ckpt));
    NEB_TRY(intra_model_read_config(d->ckpt, &d->model, &d->trainable));
    if (d->model.head == INTRA_HEAD_LM && d->model.mask != KERN_MASK_BIDIRECTIONAL)
        return NEB_OK;
    return neb_fail(NEB_ERR_UNSUPPORTED,
                    "%s is the %s of mode rtd, which predicts no next token (nebula eval --task "
                    "probe measures its hidden states)",
                    d->o.checkpoint,
                    d->model.head == INTRA_HEAD_LM ? "generator" : "discriminator");
}

static enum neb_status open_device(struct agent_decoder *d) {
    const char *name = d->o.device ? d->o.device : "auto";
    bool must = !strcmp(name, "cuda");
    char why[KERN_WHY_MAX];
    int index;
    if (!strcmp(name, "cpu"))
        return NEB_OK;
    NEB_TRY(kern_device_index(d->at.world, &index));
    enum neb_status st = kern_device_open(index, must ? NULL : why, &d->at.device);
    return must || st == NEB_ERR_NOMEM ? st : NEB_OK;
}

enum neb_status agent_decoder_open(struct agent_decoder *d, const struct agent_decoder_options *o) {
    int threads = o->threads;
    d->o = *o;
    d->at.mesh = o->mesh;
    d->at.type = o->precision;
    d->at.device_optional = !o->device || !strcmp(o->device, "auto");
    if (ranks_of(&o->mesh) > 1)
        NEB_TRY(intra_comm_launched(&d->at.world));
    if (d->at.world && threads == 0)
        threads = kern_pool_share(intra_rank_env_local(environ));
    NEB_TRY(kern_cpu_create(threads, &d->K));
    d->at.K = d->K;
    d->follows = d->at.world && d->at.world->rank > 0;
    if (d->follows)
        return intra_group_serve(d->at.world, d->K, NULL);
    NEB_TRY(read_shape(d));
    return open_device(d);
}

enum neb_status agent_decoder_make(struct agent_decoder *d, int32_t seq_len, int32_t rows,
                                   int32_t soft_k) {
    NEB_TRY(intra_decode_group(&d->model, &d->trainable, &d->at, seq_len, rows, soft_k, &d->group));
    NEB_TRY(intra_group_pull(d->group, NULL));
    NEB_TRY(intra_model_load_params(d->ckpt, intra_group_model(d->group)));
    if (d->o.merge)
        intra_lora_merge(d->K, intra_group_model(d->group));
    NEB_TRY(intra_group_push(d->group, NULL));
    intra_group_release(d->group); // no rank holds the whole model while it decodes
    return NEB_OK;
}

void agent_decoder_close(struct agent_decoder *d) {
    bool failed = d->at.world && !d->group && !d->follows;
    if (failed) // the other ranks wait for a group
        d->at.world->ops->abort(d->at.world);
    intra_group_destroy(&d->group);
    kern_destroy(&d->at.device);
    intra_comm_destroy(&d->at.world);
    kern_destroy(&d->K);
    intra_ckpt_close(&d->ckpt);
}
