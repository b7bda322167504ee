// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/mesh_program.h"
#include "kernels/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool set(const struct mesh_option *o, const char *value) {
    if (o->number)
        *o->number = (int)strtol(value, NULL, 10);
    if (o->on)
        *o->on = !strcmp(value, "1");
    if (o->text)
        *o->text = value;
    return true;
}

static bool take(char *argument, const struct mesh_option *options, size_t n) {
    char *value = strchr(argument, '=');
    if (!value)
        return false;
    *value++ = 0;
    for (size_t k = 0; k < n; k++)
        if (!strcmp(argument, options[k].key))
            return set(&options[k], value);
    return false;
}

bool mesh_options(int argc, char **argv, struct intra_mesh_config *mesh,
                  const struct mesh_option *options, size_t n) {
    bool good = argc >= 4;
    for (int i = 4; i < argc && good; i++)
        good = take(argv[i], options, n);
    if (!good) {
        fprintf(stderr, "usage: %s DP PP TP [key=value ...] (see its source)\n", argv[0]);
        return false;
    }
    *mesh = (struct intra_mesh_config){(int32_t)strtol(argv[1], NULL, 10),
                                       (int32_t)strtol(argv[2], NULL, 10),
                                       (int32_t)strtol(argv[3], NULL, 10)};
    return true;
}

struct intra_model_config mesh_model(int width, bool tied, bool bias) {
    return (struct intra_model_config){.vocab = MESH_VOCAB,
                                       .d_model = width,
                                       .n_layers = MESH_LAYERS,
                                       .n_heads = 8,
                                       .n_kv_heads = 4,
                                       .head_dim = width / 8,
                                       .d_ff = width * 3 / 2,
                                       .max_seq = MESH_T,
                                       .rope_theta = 1000,
                                       .norm_eps = 1e-5f,
                                       .tied = tied,
                                       .qkv_bias = bias,
                                       .mask = KERN_MASK_CAUSAL};
}

struct intra_trainable mesh_trainable(const char *name) {
    if (!strcmp(name, "lora"))
        return (struct intra_trainable){
            .mode = INTRA_TRAIN_LORA, .lora_rank = 4, .lora_alpha = 8, .lora_targets = 127};
    if (!strcmp(name, "bitfit"))
        return (struct intra_trainable){.mode = INTRA_TRAIN_BITFIT};
    if (!strcmp(name, "last"))
        return (struct intra_trainable){.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 1};
    return (struct intra_trainable){.mode = INTRA_TRAIN_FULL};
}

int mesh_main(const struct intra_mesh_config *mesh, const char *device, bool alone, mesh_run *run,
              const void *options) {
    struct intra_comm *world = NULL;
    struct kern *K = NULL;
    struct kern *D = NULL;
    enum neb_status st = NEB_OK;
    int ranks = mesh->dp * mesh->pp * mesh->tp, index = 0;
    NEB_TRY_GOTO(kern_cpu_create(1, &K), out);
    if (ranks > 0)
        NEB_TRY_GOTO(ranks > 1 ? intra_comm_launched(&world) : intra_comm_self(&world), out);
    if (device && !(alone && world && world->rank > 0)) {
        NEB_TRY_GOTO(kern_device_index(world, &index), out);
        NEB_TRY_GOTO(kern_device_open(index, NULL, &D), out);
    }
    st = run(options, world, K, D);
out:
    if (st != NEB_OK && world && world->size > 1 && world->ops->abort)
        world->ops->abort(world); // the others may wait for this rank
    kern_destroy(&D);
    intra_comm_destroy(&world);
    kern_destroy(&K);
    return st == NEB_OK ? 0 : 1;
}
