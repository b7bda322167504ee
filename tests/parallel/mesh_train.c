// SPDX-License-Identifier: Apache-2.0
// Trains a tiny model on a mesh and prints the result of every step; the data are the same for
// every mesh. For test_mesh.sh.
//
//     mesh_train DP PP TP [key=value ...]   see mesh_program.h
//
//     steps=N            50
//     seq=N              16: tokens of a sequence, at most 16
//     clip=global|adagc
//     optim=adamw|muon
//     trainable=full|lora|bitfit|last
//     tied=0|1 bias=0|1 recompute=0|1
//     eval=0|1           the held-out loss at the end
//     ignore=0|1         some targets do not count
//     save=PATH          a checkpoint after the last step
//     load=PATH          start from a checkpoint; steps count on
//     shards=0|1         all ranks write parts of the checkpoint
//     aside=0|1          parts are written twice while all parameters change: PATH has the values
//                        before the change, PATH.2 those after it
//     nudge=0|1          after half of the steps, all parameters are pulled, changed and pushed
//     pause=MS           rank 0 of a group sleeps before its last step, as in an exchange
//     stay=N             the last rank stops at step N, before its micro-batches
//     patience=MS        60000: time limit of NCCL's collectives
//     group=0|1          rank 0 drives the others (group.h); otherwise all ranks run this program
//     graphs=auto|on|off parts of a step on devices are recorded (intra/model/device.h)
//     device=fp32|bf16   each rank uses its CUDA device, with collectives over NCCL
//     products=fp32|bf16 the precision without a device
//
// Rank 0 prints a line a step: step, loss, gradient norm, clipped tensors; with 9 digits.
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "intra/ckpt/checkpoint_async.h"
#include "intra/train/full.h"
#include "intra/train/group.h"
#include "tests/parallel/mesh_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Replicas take the micro-batches of a step in turn, so all meshes train on the same step.
enum { VOCAB = MESH_VOCAB, T = MESH_T, WIDTH = 64, BATCH = 2, MICROS = 8, EVAL = 10 };

struct options {
    struct intra_mesh_config mesh;
    int steps, pause_ms, seq, stay, patience_ms;
    bool shards, aside, tied, bias, recompute, eval, ignore, nudge, group;
    const char *clip, *optim, *trainable, *products, *save, *load, *device, *graphs;
};

static bool parse(int argc, char **argv, struct options *o) {
    *o = (struct options){.steps = 50,
                          .seq = T,
                          .stay = -1,
                          .patience_ms = 60000,
                          .trainable = "full",
                          .clip = "global",
                          .optim = "adamw",
                          .products = "fp32",
                          .graphs = "auto"};
    const struct mesh_option all[] = {
        {.key = "steps", .number = &o->steps},
        {.key = "seq", .number = &o->seq},
        {.key = "shards", .on = &o->shards},
        {.key = "aside", .on = &o->aside},
        {.key = "pause", .number = &o->pause_ms},
        {.key = "stay", .number = &o->stay},
        {.key = "patience", .number = &o->patience_ms},
        {.key = "clip", .text = &o->clip},
        {.key = "optim", .text = &o->optim},
        {.key = "trainable", .text = &o->trainable},
        {.key = "tied", .on = &o->tied},
        {.key = "bias", .on = &o->bias},
        {.key = "recompute", .on = &o->recompute},
        {.key = "eval", .on = &o->eval},
        {.key = "ignore", .on = &o->ignore},
        {.key = "nudge", .on = &o->nudge},
        {.key = "group", .on = &o->group},
        {.key = "device", .text = &o->device},
        {.key = "graphs", .text = &o->graphs},
        {.key = "products", .text = &o->products},
        {.key = "save", .text = &o->save},
        {.key = "load", .text = &o->load},
    };
    return mesh_options(argc, argv, &o->mesh, all, sizeof all / sizeof *all) && o->seq >= 1 &&
           o->seq <= T;
}

static struct intra_trainer_config config(const struct options *o, const struct intra_mesh *mesh) {
    return (struct intra_trainer_config){
        .model = mesh_model(WIDTH, o->tied, o->bias),
        .trainable = mesh_trainable(o->trainable),
        .batch = BATCH,
        .seq_len = o->seq,
        .accumulate = MICROS / intra_mesh_dp(mesh),
        .recompute = o->recompute,
        .seed = 7,
        .mesh = mesh,
        .optim = {
            .kind = !strcmp(o->optim, "muon") ? INTRA_OPTIM_MUON : INTRA_OPTIM_ADAMW,
            .momentum = 0.95f,
            .schedule = {.kind = INTRA_SCHEDULE_COSINE,
                         .lr = 3e-3f,
                         .min_ratio = 0.1f,
                         .warmup = 5,
                         .steps = 100},
            .clip = {.kind = !strcmp(o->clip, "adagc") ? INTRA_CLIP_ADAGC : INTRA_CLIP_GLOBAL_NORM,
                     .max_norm = 0.5f,
                     .ratio = 1.04f,
                     .beta = 0.9f,
                     .warmup = 4},
            .beta1 = 0.9f,
            .beta2 = 0.95f,
            .eps = 1e-8f,
            .weight_decay = 0.1f}};
}

static void set_device(struct intra_trainer_config *c, const struct options *o, struct kern *D) {
    c->device = D;
    c->device_graphs = !strcmp(o->graphs, "on")    ? INTRA_GRAPHS_ON
                       : !strcmp(o->graphs, "off") ? INTRA_GRAPHS_OFF
                                                   : INTRA_GRAPHS_AUTO;
    c->device_type = mesh_type(D ? o->device : o->products);
}

// Window `number` of a noisy cycle through the vocabulary. The text is always the same, and a model
// can learn it.
static void window(uint64_t number, const struct options *o, int32_t *tokens, int32_t *targets) {
    struct neb_rng r = neb_rng_make(11, number);
    int32_t at = (int32_t)neb_rng_below(&r, VOCAB), stride = 1 + (int32_t)neb_rng_below(&r, 3);
    for (int i = 0; i < o->seq; i++) {
        int32_t next =
            neb_rng_below(&r, 8) ? (at + stride) % VOCAB : (int32_t)neb_rng_below(&r, VOCAB);
        tokens[i] = at;
        targets[i] = o->ignore && neb_rng_below(&r, 4) == 0 ? KERN_IGNORE : next;
        at = next;
    }
}

static void batch(uint64_t number, const struct options *o, int n, int32_t *tokens,
                  int32_t *targets) {
    for (int b = 0; b < n; b++)
        window(number * BATCH + (uint64_t)b, o, tokens + b * o->seq, targets + b * o->seq);
}

static void speak(int64_t step, const struct intra_step_stats *s) {
    printf("%lld %.9g %.9g %d\n", (long long)step, s->loss, s->update.grad_norm, s->update.clipped);
}

static void nudge(struct intra_model *whole) { // as if another cluster had sent an update
    for (size_t i = 0; i < whole->n_params; i++)
        whole->params[i] += 1e-3f * (float)((int)(i % 7) - 3);
}

// ---- all ranks run the program ---------------------------------------------------------------

static enum neb_status scatter_params(struct intra_model *m, const struct intra_model *whole) {
    for (int32_t i = 0; i < whole->n_tensors; i++) {
        const struct intra_tensor *t = &whole->tensors[i];
        NEB_TRY(intra_full_scatter(m, t, INTRA_ARENA_PARAMS,
                                   whole->params ? intra_param(whole, t) : NULL, m->params));
    }
    return NEB_OK;
}

static enum neb_status nudge_all(struct intra_trainer *t) {
    struct intra_model *m = t->model, *whole = t->whole;
    NEB_TRY(intra_trainer_pull(t, NULL));
    if (!t->c.mesh) {
        nudge(m);
        return intra_trainer_push(t, NULL);
    }
    if (intra_mesh_is_root(t->c.mesh) && !whole->params)
        NEB_TRY(intra_model_allocate(whole, false));
    NEB_TRY(intra_full_params(m, whole));
    if (whole->params)
        nudge(whole);
    NEB_TRY(scatter_params(m, whole));
    return intra_trainer_push(t, NULL);
}

static enum neb_status begin_aside(struct intra_ckpt_async *a, const char *path,
                                   struct intra_ckpt_writer **w) {
    NEB_TRY(intra_ckpt_async_begin(a, w));
    intra_ckpt_split(*w, path);
    return NEB_OK;
}

static enum neb_status save_aside(struct intra_trainer *t, const char *path) {
    struct intra_ckpt_async *a = NULL;
    struct intra_ckpt_async_result r;
    bool owner = intra_mesh_is_root(t->c.mesh);
    char second[NEB_PATH_MAX];
    snprintf(second, sizeof second, "%s.2", path);
    enum neb_status st = owner ? intra_ckpt_async_create(NULL, t->K->pool, 0, 0, &a) : NEB_OK;
    for (int i = 0; i < 2 && st == NEB_OK; i++) {
        struct intra_ckpt_writer *w = NULL;
        const char *to = i ? second : path;
        st = intra_full_agree(t->c.mesh, owner ? begin_aside(a, to, &w) : NEB_OK);
        if (st == NEB_OK)
            st = intra_trainer_save(t, w);
        if (owner && st == NEB_OK)
            st = intra_ckpt_async_submit(a, &w, "", to, 0);
        if (st == NEB_OK)
            st = nudge_all(t);
        if (owner && st == NEB_OK) {
            intra_ckpt_async_wait(a);
            st = intra_ckpt_async_result(a, &r);
        }
        intra_ckpt_writer_destroy(&w);
    }
    intra_ckpt_async_destroy(&a);
    return st;
}

static enum neb_status train(const struct options *o, struct intra_trainer *t) {
    const struct intra_mesh *mesh = t->c.mesh;
    bool owner = intra_mesh_is_root(mesh);
    int32_t tokens[EVAL * T], targets[EVAL * T];
    int64_t first = t->optim->t;
    // ZeRO-1: every replica has its part of the moments. Muon deals whole matrices.
    size_t slack = t->optim->c.kind == INTRA_OPTIM_MUON ? t->model->n_trainable / 2 + 4096 : 64;
    if (t->optim->n * (size_t)intra_mesh_dp(mesh) >
        t->model->n_trainable + slack * (size_t)intra_mesh_dp(mesh))
        return neb_fail(NEB_ERR_STATE, "%zu moments on each of %d replicas", t->optim->n,
                        intra_mesh_dp(mesh));
    for (int64_t i = first; i < first + o->steps; i++) {
        struct intra_step_stats s;
        if (o->nudge && i == first + o->steps / 2)
            NEB_TRY(nudge_all(t));
        while (i == o->stay && mesh && mesh->world->rank == mesh->world->size - 1)
            neb_sleep(NEB_S);
        for (int k = intra_mesh_dp_rank(mesh); k < MICROS; k += intra_mesh_dp(mesh)) {
            batch((uint64_t)i * MICROS + (uint64_t)k, o, BATCH, tokens, targets);
            intra_trainer_micro(t, tokens, targets);
        }
        intra_trainer_update(t, &s);
        NEB_TRY(s.status);
        if (owner)
            speak(i, &s);
    }
    if (o->eval) {
        batch(1 << 20, o, EVAL, tokens, targets);
        double loss = intra_trainer_eval(t, tokens, targets, EVAL);
        if (owner)
            printf("eval %.9g\n", loss);
    }
    return t->model->failed;
}

static enum neb_status save(struct intra_trainer *t, const char *path, bool shards) {
    struct intra_ckpt_writer *w = NULL;
    bool owner = intra_mesh_is_root(t->c.mesh);
    enum neb_status st = owner ? intra_ckpt_create(path, &w) : NEB_OK;
    st = intra_full_agree(t->c.mesh, st);
    if (st == NEB_OK && w && shards)
        intra_ckpt_split(w, path);
    if (st == NEB_OK)
        st = intra_trainer_save(t, w);
    if (st == NEB_OK && owner)
        st = intra_ckpt_commit(w);
    intra_ckpt_writer_destroy(&w);
    return st;
}

static enum neb_status load(struct intra_trainer *t, const char *path) {
    struct intra_ckpt *c = NULL;
    enum neb_status st = intra_mesh_is_root(t->c.mesh) ? intra_ckpt_open(path, true, &c) : NEB_OK;
    NEB_TRY(intra_full_agree(t->c.mesh, st));
    st = intra_trainer_restore(t, c);
    intra_ckpt_close(&c);
    return st;
}

static enum neb_status side_by_side(const struct options *o, struct intra_comm *world,
                                    struct kern *K, struct kern *D) {
    enum neb_status st = NEB_OK;
    struct intra_trainer *t = NULL;
    struct intra_comm *nccl = NULL;
    struct intra_mesh *mesh = NULL, *device_mesh = NULL;
    if (world)
        NEB_TRY(intra_mesh_create(&o->mesh, world, &mesh));
    struct intra_trainer_config c = config(o, mesh);
    set_device(&c, o, D);
    if (D && mesh) {
        NEB_TRY_GOTO(intra_comm_nccl(world, D->index, o->patience_ms, &nccl), out);
        NEB_TRY_GOTO(intra_mesh_create(&o->mesh, nccl, &device_mesh), out);
        c.device_mesh = device_mesh;
    }
    NEB_TRY_GOTO(intra_trainer_create(&c, K, &t), out);
    if (o->load)
        NEB_TRY_GOTO(load(t, o->load), out);
    NEB_TRY_GOTO(train(o, t), out);
    if (o->save)
        NEB_TRY_GOTO(o->aside ? save_aside(t, o->save) : save(t, o->save, o->shards), out);
out:
    intra_trainer_destroy(&t);
    intra_mesh_destroy(&device_mesh);
    intra_comm_destroy(&nccl);
    intra_mesh_destroy(&mesh);
    return st;
}

// ---- as a process group ----------------------------------------------------------------------

static enum neb_status train_group(const struct options *o, struct intra_group *group) {
    int32_t tokens[EVAL * T], targets[EVAL * T];
    int64_t first = intra_group_trainer(group)->optim->t;
    for (int64_t i = first; i < first + o->steps; i++) {
        struct intra_step_stats s;
        if (o->nudge && i == first + o->steps / 2) {
            NEB_TRY(intra_group_pull(group, NULL));
            nudge(intra_group_model(group));
            NEB_TRY(intra_group_push(group, NULL));
        }
        if (i == first + o->steps - 1)
            neb_sleep(o->pause_ms * NEB_MS);
        for (int k = 0; k < MICROS; k++) {
            batch((uint64_t)i * MICROS + (uint64_t)k, o, BATCH, tokens, targets);
            intra_group_micro(group, tokens, targets);
        }
        NEB_TRY(intra_group_update(group, &s));
        speak(i, &s);
    }
    if (o->eval) {
        double loss;
        batch(1 << 20, o, EVAL, tokens, targets);
        NEB_TRY(intra_group_eval(group, tokens, targets, EVAL, &loss));
        printf("eval %.9g\n", loss);
    }
    return NEB_OK;
}

static enum neb_status lead(const struct options *o, struct intra_comm *world, struct kern *K,
                            struct kern *D) {
    enum neb_status st = NEB_OK;
    struct intra_group *group = NULL;
    struct intra_ckpt *c = NULL;
    struct intra_ckpt_writer *w = NULL;
    struct intra_trainer_config cfg = config(o, NULL);
    set_device(&cfg, o, D);
    NEB_TRY_GOTO(intra_group_create(&cfg, &o->mesh, world, K, &group), out);
    if (o->load) {
        NEB_TRY_GOTO(intra_ckpt_open(o->load, true, &c), out);
        NEB_TRY_GOTO(intra_group_restore(group, c), out);
    }
    NEB_TRY_GOTO(train_group(o, group), out);
    if (o->save) {
        NEB_TRY_GOTO(intra_ckpt_create(o->save, &w), out);
        if (o->shards)
            intra_ckpt_split(w, o->save);
        NEB_TRY_GOTO(intra_group_save(group, w), out);
        NEB_TRY_GOTO(intra_ckpt_commit(w), out);
    }
out:
    intra_ckpt_writer_destroy(&w);
    intra_ckpt_close(&c);
    intra_group_destroy(&group);
    return st;
}

static enum neb_status run(const void *options, struct intra_comm *world, struct kern *K,
                           struct kern *D) {
    const struct options *o = options;
    if (!o->group)
        return side_by_side(o, world, K, D);
    return !world || world->rank == 0 ? lead(o, world, K, D) : intra_group_serve(world, K, NULL);
}

int main(int argc, char **argv) {
    struct options o;
    return parse(argc, argv, &o) ? mesh_main(&o.mesh, o.device, o.group, run, &o) : 2;
}
