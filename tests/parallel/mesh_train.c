// Trains a tiny model on a mesh and prints what every step did; the same data for every mesh. For test_mesh.sh.
//
//     mesh_train DP PP TP [key=value ...]      under mpirun when the product is above 1; "0 0 0": no mesh at all
//
//     steps=N       50          clip=global|adagc        trainable=full|lora|bitfit|last
//     tied=0|1      0           bias=0|1                 recompute=0|1
//     save=PATH     checkpoint after the last step       load=PATH      begin from it (steps counts on)
//     seq=N         16: tokens of a sequence, at most    shards=0|1   all ranks write parts of the checkpoint
//     eval=0|1      held-out loss at the end             ignore=0|1     some targets do not count
//     aside=0|1     parts are written while all parameters change, twice: PATH has those of before, PATH.2 those of after
//     nudge=0|1     between two steps, halfway, all parameters are pulled, changed and pushed
//     pause=MS      the owner of a team sleeps before its last step, as in an exchange
//     team=0|1      rank 0 drives the others (team.h), instead of all running this program side by side
//     graphs=auto|on|off parts of a step on devices are recorded (intra/device.h)
//     device=fp32|bf16   each rank on its CUDA device, collectives over NCCL
//     products=fp32|bf16 without a device
//
// Output of rank 0, a line a step: step, loss, gradient norm, clipped tensors; with 9 digits.
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "intra/checkpoint_async.h"
#include "intra/team.h"
#include "intra/whole.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Micro-batches of a step are dealt to the replicas in turn, so all meshes see the same step.
enum { VOCAB = 131, WIDTH = 64, LAYERS = 4, T = 16, BATCH = 2, MICROS = 8, EVAL = 10 };

struct options {
    struct intra_mesh_config mesh;
    int steps, pause_ms, seq;
    bool shards, aside, adagc, tied, bias, recompute, eval, ignore, nudge, team, bf16;
    const char *trainable, *save, *load, *device;
    enum intra_graphs graphs;
};

static bool parse(int argc, char **argv, struct options *o) {
    *o = (struct options){.steps = 50, .seq = T, .trainable = "full"};
    if (argc < 4)
        return false;
    o->mesh = (struct intra_mesh_config){(int32_t)strtol(argv[1], NULL, 10),
                                         (int32_t)strtol(argv[2], NULL, 10),
                                         (int32_t)strtol(argv[3], NULL, 10)};
    for (int i = 4; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value)
            return false;
        *value++ = 0;
        bool on = !strcmp(value, "1");
        if (!strcmp(argv[i], "steps"))
            o->steps = (int)strtol(value, NULL, 10);
        else if (!strcmp(argv[i], "seq"))
            o->seq = (int)strtol(value, NULL, 10);
        else if (!strcmp(argv[i], "shards"))
            o->shards = on;
        else if (!strcmp(argv[i], "aside"))
            o->aside = on;
        else if (!strcmp(argv[i], "pause"))
            o->pause_ms = (int)strtol(value, NULL, 10);
        else if (!strcmp(argv[i], "clip"))
            o->adagc = !strcmp(value, "adagc");
        else if (!strcmp(argv[i], "trainable"))
            o->trainable = value;
        else if (!strcmp(argv[i], "tied"))
            o->tied = on;
        else if (!strcmp(argv[i], "bias"))
            o->bias = on;
        else if (!strcmp(argv[i], "recompute"))
            o->recompute = on;
        else if (!strcmp(argv[i], "eval"))
            o->eval = on;
        else if (!strcmp(argv[i], "ignore"))
            o->ignore = on;
        else if (!strcmp(argv[i], "nudge"))
            o->nudge = on;
        else if (!strcmp(argv[i], "team"))
            o->team = on;
        else if (!strcmp(argv[i], "device"))
            o->device = value;
        else if (!strcmp(argv[i], "graphs"))
            o->graphs = !strcmp(value, "on")    ? INTRA_GRAPHS_ON
                        : !strcmp(value, "off") ? INTRA_GRAPHS_OFF
                                                : INTRA_GRAPHS_AUTO;
        else if (!strcmp(argv[i], "products"))
            o->bf16 = !strcmp(value, "bf16");
        else if (!strcmp(argv[i], "save"))
            o->save = value;
        else if (!strcmp(argv[i], "load"))
            o->load = value;
        else
            return false;
    }
    return o->seq >= 1 && o->seq <= T;
}

static struct intra_trainable trainable(const char *name) {
    if (!strcmp(name, "lora"))
        return (struct intra_trainable){
            .mode = INTRA_TRAIN_LORA, .lora_rank = 4, .lora_alpha = 8, .lora_targets = 127};
    if (!strcmp(name, "bitfit"))
        return (struct intra_trainable){.mode = INTRA_TRAIN_BITFIT};
    if (!strcmp(name, "last"))
        return (struct intra_trainable){.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1};
    return (struct intra_trainable){.mode = INTRA_TRAIN_FULL};
}

static struct intra_trainer_config config(const struct options *o, const struct intra_mesh *mesh) {
    return (struct intra_trainer_config){
        .model = {.vocab = VOCAB,
                  .d_model = WIDTH,
                  .n_layers = LAYERS,
                  .n_heads = 8,
                  .n_kv_heads = 4,
                  .head_dim = 8,
                  .d_ff = 96,
                  .max_seq = T,
                  .rope_theta = 1000,
                  .norm_eps = 1e-5f,
                  .tied = o->tied,
                  .qkv_bias = o->bias,
                  .mask = KERN_MASK_CAUSAL},
        .trainable = trainable(o->trainable),
        .batch = BATCH,
        .seq_len = o->seq,
        .accumulate = MICROS / intra_mesh_dp(mesh),
        .recompute = o->recompute,
        .seed = 7,
        .mesh = mesh,
        .optim = {.schedule = {.kind = INTRA_SCHEDULE_COSINE,
                               .lr = 3e-3f,
                               .min_ratio = 0.1f,
                               .warmup = 5,
                               .steps = 100},
                  .clip = {.kind = o->adagc ? INTRA_CLIP_ADAGC : INTRA_CLIP_GLOBAL_NORM,
                           .max_norm = 0.5f,
                           .ratio = 1.04f,
                           .beta = 0.9f,
                           .warmup = 4},
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .weight_decay = 0.1f}};
}

static void set_device(struct intra_trainer_config *c, const struct options *o,
                       struct kern_device *D) {
    c->device = D;
    c->device_graphs = o->graphs;
    c->device_type = (D ? !strcmp(o->device, "bf16") : o->bf16) ? KERN_BF16 : KERN_F32;
}

// Windows of a noisy cycle through the vocabulary: something to learn, the same for a given number.
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

static void nudge(struct intra_model *whole) { // as if another cluster had sent something
    for (size_t i = 0; i < whole->n_params; i++)
        whole->params[i] += 1e-3f * (float)((int)(i % 7) - 3);
}

// ---- side by side ---------------------------------------------------------------------------------------------

static enum neb_status nudge_all(struct intra_trainer *t) {
    struct intra_model *m = t->model, *whole = t->whole;
    NEB_TRY(intra_trainer_pull(t, NULL));
    if (!t->c.mesh) {
        nudge(m);
        return intra_trainer_push(t, NULL);
    }
    if (intra_mesh_owner(t->c.mesh) && !whole->params)
        NEB_TRY(intra_model_allocate(whole, false));
    NEB_TRY(intra_whole_params(m, whole));
    if (whole->params)
        nudge(whole);
    NEB_TRY(intra_whole_set_params(m, whole));
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
    bool owner = intra_mesh_owner(t->c.mesh);
    char second[NEB_PATH_MAX];
    snprintf(second, sizeof second, "%s.2", path);
    enum neb_status st = owner ? intra_ckpt_async_create(NULL, t->K->pool, 0, 0, &a) : NEB_OK;
    for (int i = 0; i < 2 && st == NEB_OK; i++) {
        struct intra_ckpt_writer *w = NULL;
        const char *to = i ? second : path;
        st = intra_whole_agree(t->c.mesh, owner ? begin_aside(a, to, &w) : NEB_OK);
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
    bool owner = intra_mesh_owner(mesh);
    int32_t tokens[EVAL * T], targets[EVAL * T];
    int64_t first = t->optim->t;
    for (int64_t i = first; i < first + o->steps; i++) {
        struct intra_step_stats s;
        if (o->nudge && i == first + o->steps / 2)
            NEB_TRY(nudge_all(t));
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
    bool owner = intra_mesh_owner(t->c.mesh);
    enum neb_status st = owner ? intra_ckpt_create(path, &w) : NEB_OK;
    st = intra_whole_agree(t->c.mesh, st);
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
    enum neb_status st = intra_mesh_owner(t->c.mesh) ? intra_ckpt_open(path, true, &c) : NEB_OK;
    NEB_TRY(intra_whole_agree(t->c.mesh, st));
    st = intra_trainer_restore(t, c);
    intra_ckpt_close(&c);
    return st;
}

static enum neb_status run(const struct options *o, const struct intra_mesh *mesh, struct kern *K,
                           struct kern_device *D) {
    enum neb_status st = NEB_OK;
    struct intra_trainer *t = NULL;
    struct intra_comm *nccl = NULL;
    struct intra_mesh *device_mesh = NULL;
    struct intra_trainer_config c = config(o, mesh);
    set_device(&c, o, D);
    if (D && mesh) {
        NEB_TRY_GOTO(intra_comm_nccl(mesh->world, D->index, 60000, &nccl), out);
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
    return st;
}

// ---- as a team ------------------------------------------------------------------------------------------------

static enum neb_status train_team(const struct options *o, struct intra_team *team) {
    int32_t tokens[EVAL * T], targets[EVAL * T];
    int64_t first = intra_team_trainer(team)->optim->t;
    for (int64_t i = first; i < first + o->steps; i++) {
        struct intra_step_stats s;
        if (o->nudge && i == first + o->steps / 2) {
            NEB_TRY(intra_team_pull(team, NULL));
            nudge(intra_team_model(team));
            NEB_TRY(intra_team_push(team, NULL));
        }
        if (i == first + o->steps - 1)
            neb_sleep(o->pause_ms * NEB_MS);
        for (int k = 0; k < MICROS; k++) {
            batch((uint64_t)i * MICROS + (uint64_t)k, o, BATCH, tokens, targets);
            intra_team_micro(team, tokens, targets);
        }
        NEB_TRY(intra_team_update(team, &s));
        speak(i, &s);
    }
    if (o->eval) {
        double loss;
        batch(1 << 20, o, EVAL, tokens, targets);
        NEB_TRY(intra_team_eval(team, tokens, targets, EVAL, &loss));
        printf("eval %.9g\n", loss);
    }
    return NEB_OK;
}

static enum neb_status lead(const struct options *o, struct intra_comm *world, struct kern *K,
                            struct kern_device *D) {
    enum neb_status st = NEB_OK;
    struct intra_team *team = NULL;
    struct intra_ckpt *c = NULL;
    struct intra_ckpt_writer *w = NULL;
    struct intra_trainer_config cfg = config(o, NULL);
    set_device(&cfg, o, D);
    NEB_TRY_GOTO(intra_team_create(&cfg, &o->mesh, world, K, &team), out);
    if (o->load) {
        NEB_TRY_GOTO(intra_ckpt_open(o->load, true, &c), out);
        NEB_TRY_GOTO(intra_team_restore(team, c), out);
    }
    NEB_TRY_GOTO(train_team(o, team), out);
    if (o->save) {
        NEB_TRY_GOTO(intra_ckpt_create(o->save, &w), out);
        if (o->shards)
            intra_ckpt_split(w, o->save);
        NEB_TRY_GOTO(intra_team_save(team, w), out);
        NEB_TRY_GOTO(intra_ckpt_commit(w), out);
    }
out:
    intra_ckpt_writer_destroy(&w);
    intra_ckpt_close(&c);
    intra_team_destroy(&team);
    return st;
}

static enum neb_status run_team(const struct options *o, struct intra_comm *world, struct kern *K,
                                struct kern_device *D) {
    return !world || world->rank == 0 ? lead(o, world, K, D) : intra_team_serve(world, K, NULL);
}

// What a follower of a team does itself is not done for it.
static enum neb_status open_device(const struct options *o, const struct intra_comm *world,
                                   struct kern_device **out) {
    int index;
    if (!o->device || (o->team && world && world->rank > 0))
        return NEB_OK;
    NEB_TRY(kern_device_index(world, &index));
    return kern_device_open(index, NULL, out);
}

int main(int argc, char **argv) {
    struct options o;
    struct intra_comm *world = NULL;
    struct intra_mesh *mesh = NULL;
    enum neb_status st = NEB_OK;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: mesh_train DP PP TP [key=value ...] (see mesh_train.c)\n");
        return 2;
    }
    int ranks = o.mesh.dp * o.mesh.pp * o.mesh.tp;
    struct kern *K = NULL;
    struct kern_device *D = NULL;
    NEB_TRY_GOTO(kern_cpu_create(1, &K), out);
    if (ranks > 0)
        NEB_TRY_GOTO(ranks > 1 ? intra_comm_launched(&world) : intra_comm_self(&world), out);
    NEB_TRY_GOTO(open_device(&o, world, &D), out);
    if (o.team) {
        st = run_team(&o, world, K, D);
        goto out;
    }
    if (ranks > 0)
        NEB_TRY_GOTO(intra_mesh_create(&o.mesh, world, &mesh), out);
    st = run(&o, mesh, K, D);
out:
    if (st != NEB_OK && world && world->size > 1 && world->ops->abort)
        world->ops->abort(world); // the others may wait for this rank
    kern_device_close(&D);
    intra_mesh_destroy(&mesh);
    intra_comm_destroy(&world);
    kern_destroy(&K);
    return st == NEB_OK ? 0 : 1;
}
