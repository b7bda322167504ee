// SPDX-License-Identifier: Apache-2.0
// Decodes on a mesh, and prints the tokens: one line for each prompt of each way of decoding. The
// lines must not depend on the mesh, nor on a device in fp32.
//
//     mesh_decode DP PP TP [key=value ...]
//
//     device=fp32|bf16   on a device
//     tied=1             the output weight is the embedding
//     prefix=1           a prefix language model
//     lora=1             with adapters
//     few=1              few prompts and tokens, for devices that are emulated
//     shared=1           the batch of a step has fewer sequences than replicas need to share it
#include "agent/base/clock.h"
#include "agent/base/rng.h"
#include "intra/train/decode.h"
#include "tests/parallel/mesh_program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 48, PROMPTS = 7, MOST = 30, EOS = 5, WIDTH = 64 };

struct options {
    struct intra_mesh_config mesh;
    const char *device;
    bool tied, prefix, lora, few, shared;
};

static struct intra_model_config shape(const struct options *o) {
    struct intra_model_config c = mesh_model(WIDTH, o->tied, true);
    c.max_seq = SEQ;
    c.mask = o->prefix ? KERN_MASK_PREFIX : KERN_MASK_CAUSAL;
    return c;
}

static enum neb_status make(const struct options *o, struct intra_comm *world, struct kern *K,
                            struct kern *D, struct intra_group **out) {
    struct intra_trainer_config c = {.model = shape(o),
                                     .trainable = mesh_trainable(o->lora ? "lora" : "full"),
                                     .batch = 4,
                                     .seq_len = SEQ,
                                     .accumulate = o->shared ? 1 : 4,
                                     .varied = true,
                                     .frozen = true,
                                     .device = D,
                                     .device_type = mesh_type(o->device),
                                     .soft_k = 8};
    struct neb_rng r = neb_rng_make(3, 1);
    NEB_TRY(intra_group_create(&c, &o->mesh, world, K, out));
    NEB_TRY(intra_group_pull(*out, NULL));
    struct intra_model *m = intra_group_model(*out);
    for (int32_t i = 0; i < m->n_tensors; i++)
        for (size_t j = 0; j < intra_tensor_size(&m->tensors[i]); j++) // so that tokens differ
            intra_param(m, &m->tensors[i])[j] =
                (m->tensors[i].rows == 1) + 0.3f * neb_rng_normal(&r);
    return intra_group_push(*out, NULL);
}

static enum neb_status say(struct intra_group *g, const char *name, bool few,
                           const struct intra_decode_config *c) {
    int32_t tokens[PROMPTS][SEQ], out[PROMPTS][MOST];
    struct intra_prompt p[PROMPTS];
    int n = few ? 3 : PROMPTS;
    for (int i = 0; i < n; i++) {
        p[i] = (struct intra_prompt){
            .tokens = tokens[i], .n = 1 + i * 5 % 23, .most = few ? 4 : MOST - i, .out = out[i]};
        for (int32_t j = 0; j < p[i].n; j++)
            tokens[i][j] = (i * 31 + j * 17 + 3) % MESH_VOCAB;
    }
    NEB_TRY(intra_decode(g, c, p, n));
    for (int i = 0; i < n; i++) {
        printf("%s %d%s:", name, i, p[i].ended ? " (ended)" : "");
        for (int32_t j = 0; j < p[i].got; j++)
            printf(" %d", p[i].out[j]);
        putchar('\n');
    }
    return NEB_OK;
}

static enum neb_status lead(const struct options *o, struct intra_group *g) {
    const struct {
        const char *name;
        struct intra_decode_config c;
    } ways[] = {
        {"greedy", {.eos = EOS}},
        {"greedy, to the end", {.eos = -1, .prefix = true}},
        {"greedy, uncached", {.eos = -1, .prefix = true, .uncached = true}},
        {"draws", {.eos = EOS, .temperature = 0.9f, .seed = 4}},
        {"draws of 8", {.eos = EOS, .temperature = 1.3f, .top_k = 8, .seed = 4}},
        {"beam", {.eos = EOS, .beam = 4, .alpha = 1, .prefix = true}},
        {"beam, uncached", {.eos = EOS, .beam = 4, .alpha = 1, .prefix = true, .uncached = true}},
        {"longer than the window", {.eos = -1, .longest = 24, .slides = true}},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        NEB_TRY(say(g, ways[i].name, o->few, &ways[i].c));
    return NEB_OK;
}

static enum neb_status run(const void *options, struct intra_comm *world, struct kern *K,
                           struct kern *D) {
    const struct options *o = options;
    struct intra_group *g = NULL;
    if (world && world->rank > 0)
        return intra_group_serve(world, K, NULL);
    enum neb_status st = make(o, world, K, D, &g);
    if (st == NEB_OK)
        st = lead(o, g);
    intra_group_destroy(&g);
    return st;
}

int main(int argc, char **argv) {
    struct options o = {0};
    const struct mesh_option list[] = {
        {.key = "device", .text = &o.device}, {.key = "tied", .on = &o.tied},
        {.key = "prefix", .on = &o.prefix},   {.key = "lora", .on = &o.lora},
        {.key = "few", .on = &o.few},         {.key = "shared", .on = &o.shared}};
    return mesh_options(argc, argv, &o.mesh, list, sizeof list / sizeof *list)
               ? mesh_main(&o.mesh, o.device, true, run, &o)
               : 2;
}
