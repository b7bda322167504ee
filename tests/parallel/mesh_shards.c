// SPDX-License-Identifier: Apache-2.0
// The exchange of a cluster on one rank or distributed over a mesh (agent/exchange/shards.h),
// without agents. Parameters change in a known way. Their update is encoded, comes back and is
// merged. The output is what another cluster would see, and it must not depend on the mesh. For
// test_mesh_shards.sh.
//
//     mesh_shards DP PP TP [key=value ...]   see mesh_program.h
//
//     first=N rounds=N    0, 10: the rounds to make
//     codec=NAME          int4
//     fragments=N         2
//     trainable=full|lora full
//     tied=0|1            0
//     robust=0|1          0: trimmed mean
//     save=PATH           a checkpoint by all ranks, with updates of all fragments in flight
//     load=PATH           start from a checkpoint
//     dump=PATH           one rank: θ and v at the end, as a snapshot has them
//     adopt=PATH          start from such a dump
//     single=0|1          0: rank 0 owns all shards
//     seal=KEYFILE        checkpoints are sealed, each part by its rank
//     one=0|1             0: rank 0 writes everything
//     width=N             64: of the model
//     device=fp32|bf16    each rank trains on its CUDA device
//     outer=host|device|auto   with device: where the state of the exchange is (host)
//
// Rank 0 prints a line a round: fragment, digest of the update, error, digest of (version, θ, v);
// at the end, the digest of all parameters. Every rank prints to stderr: its number, its parameters
// and bytes of the exchange, the bytes by the allocator, and the processor time in calls of the
// exchange.
#include "agent/base/file.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "agent/train/follow.h"
#include "inter/record/types.h"
#include "tests/parallel/mesh_program.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
    struct intra_mesh_config mesh;
    int first, rounds, fragments, width;
    bool tied, robust, one, single;
    const char *codec, *trainable, *device, *outer, *save, *load, *dump, *adopt, *seal;
};

static bool parse(int argc, char **argv, struct options *o) {
    *o = (struct options){.rounds = 10,
                          .fragments = 2,
                          .width = 64,
                          .codec = "int4",
                          .trainable = "full",
                          .outer = "host"};
    const struct mesh_option all[] = {
        {.key = "first", .number = &o->first},
        {.key = "rounds", .number = &o->rounds},
        {.key = "fragments", .number = &o->fragments},
        {.key = "width", .number = &o->width},
        {.key = "codec", .text = &o->codec},
        {.key = "trainable", .text = &o->trainable},
        {.key = "tied", .on = &o->tied},
        {.key = "robust", .on = &o->robust},
        {.key = "single", .on = &o->single},
        {.key = "one", .on = &o->one},
        {.key = "device", .text = &o->device},
        {.key = "outer", .text = &o->outer},
        {.key = "save", .text = &o->save},
        {.key = "load", .text = &o->load},
        {.key = "dump", .text = &o->dump},
        {.key = "adopt", .text = &o->adopt},
        {.key = "seal", .text = &o->seal},
    };
    return mesh_options(argc, argv, &o->mesh, all, sizeof all / sizeof *all) && o->fragments >= 1 &&
           o->fragments <= 4;
}

static struct intra_trainer_config config(const struct options *o) {
    return (struct intra_trainer_config){
        .model = mesh_model(o->width, o->tied, false),
        .trainable = mesh_trainable(o->trainable),
        .batch = 1,
        .seq_len = MESH_T,
        .accumulate = 12,
        .seed = 7,
        .optim = {.schedule = {.kind = INTRA_SCHEDULE_COSINE, .lr = 1e-3f, .steps = 100},
                  .clip = {.kind = INTRA_CLIP_GLOBAL_NORM, .max_norm = 1},
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f}};
}

// ---- memory ----------------------------------------------------------------------------------

static size_t allocated(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void say_memory(int rank, uint64_t elements, uint64_t bytes, size_t before) {
    fprintf(stderr, "rank %d holds %llu parameters, %llu bytes, allocated %lld\n", rank,
            (unsigned long long)elements, (unsigned long long)bytes,
            (long long)allocated() - (long long)before);
}

// The time of all threads of this process. The wall clock says little, because ranks share
// processors.
static double processor_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void say_time(int rank, double seconds) {
    fprintf(stderr, "rank %d took %.4f s of a processor\n", rank, seconds);
}

struct followed {
    struct agent_follower own;
    double busy_s; // in calls
};

static enum neb_status follow(void *user, struct intra_group *group, int32_t n) {
    struct followed *x = user;
    struct agent_follower *f = &x->own;
    bool had = f->shards != NULL;
    size_t before = allocated();
    double start = processor_s();
    NEB_TRY(agent_follow(&x->own, group, n));
    x->busy_s += had ? processor_s() - start : 0;
    if (!had && f->shards)
        say_memory(intra_group_world(group)->rank, agent_shards_elements(f->shards),
                   agent_shards_bytes(f->shards), before);
    return NEB_OK;
}

static void follow_end(void *user) {
    struct followed *x = user;
    agent_follow_end(&x->own);
}

// ---- rank 0 ----------------------------------------------------------------------------------

struct leader {
    struct kern *K;
    struct intra_comm *world; // NULL: one rank
    struct kern *device;
    struct intra_group *group;
    struct intra_model *model;
    struct worker_tensors tensors;
    struct agent_shards *shards;
    struct inter_outer *outer;
    struct sec_vault *vault;
    int64_t step;
    double busy_s; // in calls
    struct neb_buf blob[INTER_FRAGMENTS_MAX];
};

static void counts_of(void *user, int32_t unit, uint64_t *out) {
    const struct leader *w = user;
    for (int32_t r = 0; r < w->tensors.rows[unit].rows; r++)
        out[r] = (uint64_t)((w->tensors.rows[unit].row0 + r) * 7 % 23) + (uint64_t)w->step;
}

// Replaces training: every trainable parameter changes by an amount that follows from its place in
// its tensor and from the time.
static enum neb_status move(struct leader *w, int64_t time, float size) {
    NEB_TRY(intra_group_pull(w->group, NULL));
    for (int32_t i = 0; i < w->model->n_tensors; i++) {
        const struct intra_tensor *t = &w->model->tensors[i];
        float *x = intra_param(w->model, t);
        for (size_t k = 0; t->trainable && k < intra_tensor_size(t); k++) {
            uint64_t h = neb_mix64(k * 1000003 + (uint64_t)t->index * 7919 + (uint64_t)time);
            float z = (float)((int)(h % 2001) - 1000) * 1e-3f;
            x[k] += size * z * (z < 0 ? -z : z);
        }
    }
    NEB_TRY(intra_group_push(w->group, NULL));
    intra_group_release(w->group);
    return NEB_OK;
}

static enum neb_status set_up(struct leader *w, const struct options *o) {
    static const struct agent_trainer_ops ops = {WORKER_TENSORS_OPS};
    w->model = intra_group_model(w->group);
    NEB_TRY(worker_tensors_create(w->group, intra_group_trainer(w->group), &w->tensors));
    const struct agent_trainer t = worker_tensors_trainer(&w->tensors, &ops);
    int32_t *fragment = calloc((size_t)t.n_units, sizeof *fragment);
    if (!fragment)
        return NEB_ERR_NOMEM;
    for (int32_t i = 0; i < t.n_units; i++)
        fragment[i] = i * o->fragments / t.n_units;
    struct inter_outer_config c = {.beta = 0.9f,
                                   .keep = 0.4f,
                                   .kappa = 0.1f,
                                   .row_weights = true,
                                   .fragments = o->fragments,
                                   .robust = o->robust};
    size_t before = allocated();
    enum neb_status st = agent_shards_create(&t, &c, fragment, o->single, &w->shards);
    free(fragment);
    NEB_TRY(st);
    say_memory(0, agent_shards_elements(w->shards), agent_shards_bytes(w->shards), before);
    w->outer = agent_shards_outer(w->shards);
    worker_tensors_add_shards(&w->tensors, w->shards);
    return NEB_OK;
}

static enum neb_status encode(struct leader *w, int32_t f, const struct cmp_codec *codec) {
    uint8_t sha[NEB_SHA256_BYTES];
    char hex[2 * NEB_SHA256_BYTES + 1];
    struct neb_buf *b = &w->blob[f];
    float error = 0;
    double start = processor_s();
    NEB_TRY(agent_shards_encode(w->shards, f, 0, codec, counts_of, w, &error, b));
    w->busy_s += processor_s() - start;
    neb_sha256(b->p, b->len, sha);
    neb_hex(sha, sizeof sha, hex);
    printf("%d %s %zu %.7g\n", f, hex, b->len, (double)error);
    return NEB_OK;
}

// Rounds repeat after 7: one has no update, one lacks ours, one is refused, one is a merge round.
static enum neb_status merge(struct leader *w, int32_t f, int round) {
    const struct neb_buf *b = &w->blob[f];
    struct kern_digest d;
    const struct inter_outer_part parts[3] = {
        {b->p, b->len, 3000, 0.75f, true, 0},
        {b->p, b->len, 1000, 1, false, 500},
        {b->p, b->len, 70, 1, false, 0},
    };
    bool late = round % 7 == 4;
    struct inter_outer_round r = {
        parts + late, round % 7 == 3 ? 0 : 3u - late, 0.8f, 0.6f, round % 7 == 6, round % 7 == 2,
        NULL};
    double start = processor_s();
    NEB_TRY(agent_shards_merge(w->shards, f, round % 7 == 5, &r, &d));
    w->busy_s += processor_s() - start;
    printf("%d %d: %016llx%016llx version %u\n", round, f, (unsigned long long)d.lo,
           (unsigned long long)d.hi, inter_outer_version(w->outer, f));
    return NEB_OK;
}

static enum neb_status rounds(struct leader *w, const struct options *o) {
    struct cmp_codec codec;
    NEB_TRY(cmp_codec_parse(o->codec, &codec));
    for (int i = o->first; i < o->first + o->rounds; i++) {
        int32_t f = i % o->fragments;
        w->step = i;
        NEB_TRY(move(w, 3 * i, 0.01f));
        NEB_TRY(encode(w, f, &codec));
        if (i % 4 == 2) { // a newer update replaces this one
            NEB_TRY(move(w, 3 * i + 1, 0.01f));
            NEB_TRY(encode(w, f, &codec));
        }
        NEB_TRY(move(w, 3 * i + 2, 0.001f)); // steps while the update is in flight
        NEB_TRY(merge(w, f, i));
    }
    return NEB_OK;
}

static enum neb_status save(struct leader *w, const struct options *o) {
    struct intra_ckpt_writer *out = NULL;
    uint64_t state[4];
    for (int32_t f = 0; f < o->fragments; f++)
        state[f] = inter_outer_version(w->outer, f);
    size_t before = allocated();
    NEB_TRY(intra_ckpt_create_in(sec_vault_of(w->vault), o->save, &out));
    if (!o->one)
        intra_ckpt_split(out, o->save);
    enum neb_status st =
        intra_ckpt_add(out, "versions", INTRA_U64, (uint64_t)o->fragments, 1, state);
    if (st == NEB_OK)
        st = intra_group_save(w->group, out);
    if (st == NEB_OK)
        st = agent_shards_save(w->shards, out);
    if (st == NEB_OK)
        st = intra_ckpt_commit(out);
    intra_ckpt_writer_destroy(&out);
    fprintf(stderr, "rank 0 has allocated %lld bytes to save\n",
            (long long)allocated() - (long long)before);
    return st;
}

static enum neb_status load(struct leader *w, const struct options *o) {
    struct intra_ckpt *c = NULL;
    uint64_t state[4];
    NEB_TRY(intra_ckpt_open_in(sec_vault_of(w->vault), o->load, true, &c));
    enum neb_status st =
        intra_ckpt_read(c, "versions", INTRA_U64, (uint64_t)o->fragments, 1, state);
    for (int32_t f = 0; f < o->fragments && st == NEB_OK; f++)
        inter_outer_set_fragment(w->outer, f, (uint32_t)state[f], true);
    if (st == NEB_OK)
        st = intra_group_restore(w->group, c);
    if (st == NEB_OK)
        st = agent_shards_restore(w->shards, c);
    intra_ckpt_close(&c);
    return st;
}

static enum neb_status dump(const struct leader *w, const char *path) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    struct neb_buf b = {0};
    inter_outer_arrays(w->outer, arrays);
    for (int i = 0; i < 2; i++)
        neb_buf_add(&b, arrays[i].p, arrays[i].n * sizeof *arrays[i].p);
    enum neb_status st = neb_buf_check(&b);
    if (st == NEB_OK)
        st = neb_fs_write(path, b.p, b.len, 0600);
    neb_buf_free(&b);
    return st;
}

static enum neb_status adopt(struct leader *w, const struct options *o) {
    struct neb_file *file = NULL;
    NEB_TRY(neb_file_open(o->adopt, NULL, &file));
    enum neb_status st = NEB_OK;
    for (int32_t f = 0; f < o->fragments && st == NEB_OK; f++) {
        struct kern_digest d;
        st = agent_shards_adopt(w->shards, f, 40, file, 0);
        if (st == NEB_OK)
            st = agent_shards_digest(w->shards, f, &d);
        if (st == NEB_OK)
            printf("adopted %016llx%016llx\n", (unsigned long long)d.lo, (unsigned long long)d.hi);
    }
    neb_file_close(&file);
    return st;
}

static enum neb_status finish(struct leader *w, const struct options *o) {
    struct kern_digest d;
    struct cmp_codec codec;
    NEB_TRY(cmp_codec_parse(o->codec, &codec));
    NEB_TRY(agent_shards_digest(w->shards, -1, &d));
    say_time(0, w->busy_s);
    printf("exchange %016llx%016llx\n", (unsigned long long)d.lo, (unsigned long long)d.hi);
    if (o->dump)
        NEB_TRY(dump(w, o->dump));
    if (o->save) {
        for (int32_t f = 0; f < o->fragments; f++)
            NEB_TRY(encode(w, f, &codec));
        NEB_TRY(save(w, o));
    }
    NEB_TRY(intra_group_pull(w->group, NULL));
    d = kern_digest_part(w->model->params, w->model->params, 0, w->model->n_params);
    printf("parameters %016llx%016llx\n", (unsigned long long)d.lo, (unsigned long long)d.hi);
    return NEB_OK;
}

// The key of one job at one site; every rank gets it.
static enum neb_status seal(struct leader *w, const struct options *o) {
    const uint8_t job[SEC_SEAL_CONTEXT_BYTES] = {7};
    struct sec_seal_key *site = NULL, *k = NULL;
    NEB_TRY(sec_seal_key_load(o->seal, NULL, NULL, &site));
    enum neb_status st = sec_seal_key_derive(site, job, &k);
    sec_seal_key_destroy(&site);
    NEB_TRY(st);
    NEB_TRY(sec_vault_create_take(&k, NULL, &w->vault));
    return w->world ? agent_follow_seal(w->group, w->vault) : NEB_OK;
}

static enum neb_status place(struct leader *w, const struct options *o) {
    if (w->device && strcmp(o->outer, "host"))
        NEB_TRY(agent_shards_place(w->shards, strcmp(o->outer, "device") ? AGENT_SHARDS_AUTO
                                                                         : AGENT_SHARDS_DEVICE));
    if (w->device)
        fprintf(stderr, "the exchange is on the %s\n",
                inter_outer_on_device(w->outer) ? "device" : "host");
    return NEB_OK;
}

static enum neb_status lead(const struct options *o, struct intra_comm *world, struct kern *K,
                            struct kern *D) {
    enum neb_status st = NEB_OK;
    struct intra_trainer_config c = config(o);
    struct leader *w = calloc(1, sizeof *w);
    if (!w)
        return NEB_ERR_NOMEM;
    w->K = K;
    w->world = world;
    w->device = c.device = D;
    c.device_type = mesh_type(o->device);
    NEB_TRY_GOTO(intra_group_create(&c, &o->mesh, world, K, &w->group), out);
    if (o->seal)
        NEB_TRY_GOTO(seal(w, o), out);
    NEB_TRY_GOTO(set_up(w, o), out);
    NEB_TRY_GOTO(place(w, o), out);
    if (o->load)
        NEB_TRY_GOTO(load(w, o), out);
    if (o->adopt)
        NEB_TRY_GOTO(adopt(w, o), out);
    NEB_TRY_GOTO(rounds(w, o), out);
    NEB_TRY_GOTO(finish(w, o), out);
out:
    agent_shards_destroy(&w->shards);
    worker_tensors_destroy(&w->tensors);
    for (int32_t f = 0; f < o->fragments; f++)
        neb_buf_free(&w->blob[f]);
    intra_group_destroy(&w->group);
    sec_vault_destroy(&w->vault);
    free(w);
    return st;
}

static enum neb_status serve(struct intra_comm *world, struct kern *K) {
    struct followed x = {0};
    struct intra_group_follower f = {follow, follow_end, &x};
    enum neb_status st = intra_group_serve(world, K, &f);
    say_time(world->rank, x.busy_s);
    sec_vault_destroy(&x.own.vault);
    return st;
}

static enum neb_status run(const void *options, struct intra_comm *world, struct kern *K,
                           struct kern *D) {
    return !world || world->rank == 0 ? lead(options, world, K, D) : serve(world, K);
}

int main(int argc, char **argv) {
    struct options o;
    return parse(argc, argv, &o) ? mesh_main(&o.mesh, o.device, true, run, &o) : 2;
}
