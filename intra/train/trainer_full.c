// SPDX-License-Identifier: Apache-2.0
#include "intra/train/trainer_full.h"
#include "agent/base/log.h"
#include "intra/train/full.h"

#include <stdlib.h>
#include <string.h>

// Passes one tensor of the whole model at a time. A read or write that fails on rank 0 must not
// stop rank 0, because the other ranks wait for tensors. The ranks agree on a status at the end.
struct passing {
    struct intra_trainer *t;
    const struct intra_ckpt *from; // on rank 0; NULL elsewhere
    struct intra_ckpt_writer *to;
    bool owner;
    float *room;              // (largest tensor) on rank 0
    uint64_t *input, *target; // (V)
    enum neb_status st;       // of reads and writes on rank 0
};

static enum neb_status begin(struct passing *p) {
    const struct intra_model *whole = p->t->whole;
    size_t most = 1, V = (size_t)p->t->c.model.vocab;
    for (int32_t i = 0; i < whole->n_tensors; i++) {
        size_t n = intra_tensor_size(&whole->tensors[i]);
        most = n > most ? n : most;
    }
    p->owner = intra_mesh_is_root(p->t->c.mesh);
    p->input = malloc(V * sizeof *p->input);
    p->target = malloc(V * sizeof *p->target);
    p->room = p->owner ? malloc(most * sizeof *p->room) : NULL;
    return p->input && p->target && (p->room || !p->owner)
               ? NEB_OK
               : neb_fail(NEB_ERR_NOMEM, "out of memory for a tensor of %zu elements", most);
}

static void end(struct passing *p) {
    free(p->room);
    free(p->input);
    free(p->target);
}

static enum neb_status spread_params(struct passing *p) {
    struct intra_model *m = p->t->model;
    for (int32_t i = 0; i < p->t->whole->n_tensors; i++) {
        const struct intra_tensor *x = &p->t->whole->tensors[i];
        if (p->owner && p->st == NEB_OK)
            p->st = intra_ckpt_read(p->from, x->name, INTRA_F32, (uint64_t)x->rows,
                                    (uint64_t)x->cols, p->room);
        NEB_TRY(intra_full_scatter(m, x, INTRA_ARENA_PARAMS, p->room, m->params));
    }
    return NEB_OK;
}

// From one section with all moments, or from the tensor's own section.
static enum neb_status read_moment(const struct passing *p, const char *which,
                                   const struct intra_tensor *x) {
    const struct intra_ckpt_section *all = intra_ckpt_find(p->from, which);
    char name[INTRA_CKPT_NAME_MAX + 1];
    if (all && (all->dtype != INTRA_F32 || all->cols != 1 ||
                all->rows != (uint64_t)p->t->model->n_all_trainable))
        return neb_fail(NEB_ERR_FORMAT, "%s: %s has %llu elements, the model has %zu",
                        intra_ckpt_path(p->from), which,
                        (unsigned long long)(all->rows * all->cols), p->t->model->n_all_trainable);
    if (all)
        return intra_ckpt_range(p->from, all, x->grad_at * sizeof(float), p->room,
                                intra_tensor_size(x) * sizeof(float));
    snprintf(name, sizeof name, "%s/%s", which, x->name);
    return intra_ckpt_read(p->from, name, INTRA_F32, (uint64_t)x->rows, (uint64_t)x->cols, p->room);
}

// Each replica's ranks hold parts of the moments (optim.h). The gradient arena is free between
// steps.
static enum neb_status spread_moments(struct passing *p, const char *which, bool second) {
    struct intra_trainer *t = p->t;
    struct intra_model *m = t->model;
    for (int32_t i = 0; i < t->whole->n_tensors; i++) {
        const struct intra_tensor *x = &t->whole->tensors[i];
        if (!trainer_has_moment(t, x, second))
            continue;
        if (p->owner && p->st == NEB_OK)
            p->st = read_moment(p, which, x);
        NEB_TRY(intra_full_scatter(m, x, INTRA_ARENA_GRADS, p->room, m->grads));
    }
    intra_optim_collect(t->optim, m, second, m->grads);
    t->K->ops->zero(t->K, m->grads, m->n_grads * sizeof *m->grads);
    return NEB_OK;
}

static enum neb_status spread_rest(struct passing *p) {
    struct intra_trainer *t = p->t;
    struct intra_optim *o = t->optim;
    struct intra_comm *world = t->c.mesh->world;
    size_t bytes = (size_t)t->c.model.vocab * sizeof *p->input;
    uint64_t steps[2] = {0, 0};
    if (p->owner)
        p->st = trainer_read_rest(t, p->from, steps, p->input, p->target);
    NEB_TRY(intra_full_agree(t->c.mesh, p->st));
    NEB_TRY(world->ops->broadcast(world, steps, sizeof steps, 0));
    NEB_TRY(world->ops->broadcast(world, o->gamma, (size_t)o->n_tensors * sizeof *o->gamma, 0));
    o->t = (int64_t)steps[0];
    o->born = (int64_t)steps[1];
    // Replica 0 takes over all counts, so that sums over replicas stay the same.
    NEB_TRY(world->ops->broadcast(world, p->input, bytes, 0));
    NEB_TRY(world->ops->broadcast(world, p->target, bytes, 0));
    memset(t->input_counts, 0, bytes);
    memset(t->target_counts, 0, bytes);
    if (intra_mesh_dp_rank(t->c.mesh) == 0) {
        memcpy(t->input_counts, p->input, bytes);
        memcpy(t->target_counts, p->target, bytes);
    }
    return NEB_OK;
}

enum neb_status trainer_restore_mesh(struct intra_trainer *t, const struct intra_ckpt *c) {
    struct passing p = {.t = t, .from = c};
    const struct intra_mesh *mesh = t->c.mesh;
    enum neb_status st = begin(&p);
    if (p.owner && st == NEB_OK)
        st = trainer_same_run(t, c);
    NEB_TRY_GOTO(intra_full_agree(mesh, st), out);
    NEB_TRY_GOTO(spread_rest(&p), out);
    NEB_TRY_GOTO(spread_params(&p), out);
    NEB_TRY_GOTO(spread_moments(&p, "optim.m", false), out);
    NEB_TRY_GOTO(spread_moments(&p, "optim.v", true), out);
    NEB_TRY_GOTO(intra_full_agree(mesh, p.st), out);
    st = intra_full_agree(mesh, trainer_push_all(t));
out:
    end(&p);
    return st;
}

static enum neb_status collect_params(struct passing *p) {
    const struct intra_model *m = p->t->model;
    if (p->owner)
        p->st = intra_model_save_config(p->t->whole, p->to);
    for (int32_t i = 0; i < p->t->whole->n_tensors; i++) {
        const struct intra_tensor *x = &p->t->whole->tensors[i];
        NEB_TRY(intra_full_gather(m, x, INTRA_ARENA_PARAMS, m->params, p->room));
        if (p->owner && p->st == NEB_OK)
            p->st = intra_ckpt_add(p->to, x->name, INTRA_F32, (uint64_t)x->rows, (uint64_t)x->cols,
                                   p->room);
    }
    return NEB_OK;
}

enum neb_status intra_trainer_save_model(struct intra_trainer *t, struct intra_ckpt_writer *w) {
    struct passing p = {.t = t, .to = w};
    enum neb_status st = intra_trainer_pull(t, NULL);
    if (!t->c.mesh)
        return st == NEB_OK ? intra_model_save(t->model, w) : st;
    if (st == NEB_OK)
        st = begin(&p);
    NEB_TRY_GOTO(intra_full_agree(t->c.mesh, st), out);
    NEB_TRY_GOTO(collect_params(&p), out);
    st = intra_full_agree(t->c.mesh, p.st);
out:
    end(&p);
    return st;
}
