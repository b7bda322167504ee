// SPDX-License-Identifier: Apache-2.0
// intra/cost and agent/plan (test_wan_cost.c has inter's part): sizes equal those of real models,
// times follow from rates by arithmetic, and no other choice is faster than the chosen one.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/rng.h"
#include "agent/plan/planner.h"
#include "inter/outer/outer.h"
#include "intra/cost/parts.h"
#include "kernels/count.h"
#include "tests/unit/cost_fixture.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_sizes_equal_models(void **state) {
    (void)state;
    static const struct {
        struct intra_trainable t;
        bool tied, bias;
    } cases[] = {
        {{.mode = INTRA_TRAIN_FULL}, true, false},
        {{.mode = INTRA_TRAIN_FULL, .freeze_embeddings = true}, false, true},
        {{.mode = INTRA_TRAIN_BITFIT}, true, true},
        {{.mode = INTRA_TRAIN_LAST_LAYERS, .last_layers = 2}, false, false},
        {{.mode = INTRA_TRAIN_LORA, .lora_rank = 4, .lora_alpha = 8, .lora_targets = 1 | 8 | 64},
         true,
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct intra_model_config c = model;
        struct intra_model *m;
        c.tied = cases[i].tied;
        c.qkv_bias = cases[i].bias;
        assert_int_equal(intra_model_create(&c, &cases[i].t, 1, &m), NEB_OK);
        struct intra_cost_params p = intra_cost_count(&c, &cases[i].t);
        if (p.all != (int64_t)m->n_params || p.trainable != (int64_t)m->n_trainable)
            fail_msg("case %zu: %lld of %zu parameters, %lld of %zu trainable", i, (long long)p.all,
                     m->n_params, (long long)p.trainable, m->n_trainable);
        intra_model_destroy(&m);
    }
}

static size_t allocated(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

// Bytes of memory that the process uses: all pages that it has touched, however it got them.
static double resident(void) {
    unsigned long long all = 0, used = 0;
    malloc_trim(0);
    FILE *f = fopen("/proc/self/statm", "r");
    assert_true(f && fscanf(f, "%llu %llu", &all, &used) == 2);
    fclose(f);
    return (double)used * (double)sysconf(_SC_PAGESIZE);
}

// A model so large that the buffers of products are small beside it, and so small that one thread
// draws its parameters: threads would wait for each other on a busy machine.
static struct intra_model_config wide(void) {
    struct intra_model_config c = model;
    c.vocab = 4096;
    c.d_model = 256;
    c.d_ff = 384;
    c.head_dim = 32;
    return c;
}

// What a real rank allocates until it has made a step. The other ranks of its mesh are missing, so
// the step's numbers are wrong.
static double allocated_by(const struct intra_cost_job *j, int32_t stage) {
    bool ranks = j->mesh.dp * j->mesh.pp * j->mesh.tp > 1;
    const struct intra_comm_ops *ops = &cost_counting_comm;
    struct cost_traffic traffic = {0};
    struct intra_comm world = {ops, &traffic, 0, j->mesh.dp * j->mesh.pp * j->mesh.tp},
                      dp = {ops, &traffic, 0, j->mesh.dp}, tp = {ops, &traffic, 0, j->mesh.tp},
                      pp = {ops, &traffic, stage, j->mesh.pp};
    const struct intra_mesh mesh = {.c = j->mesh,
                                    .pp_rank = stage,
                                    .world = &world,
                                    .dp = j->mesh.dp > 1 ? &dp : NULL,
                                    .tp = j->mesh.tp > 1 ? &tp : NULL,
                                    .down = &pp,
                                    .up = &pp};
    struct intra_trainer_config c = {.model = j->model,
                                     .trainable = j->trainable,
                                     .batch = j->batch,
                                     .seq_len = j->seq_len,
                                     .accumulate = j->micros / j->mesh.dp,
                                     .recompute = j->recompute,
                                     .mesh = ranks ? &mesh : NULL};
    static int32_t ids[1 << 16];
    struct intra_trainer *t = NULL;
    struct intra_step_stats stats;
    struct kern *K = NULL;
    double before = resident();
    assert_int_equal(kern_cpu_create(1, &K), NEB_OK);
    assert_int_equal(intra_trainer_create(&c, K, &t), NEB_OK);
    for (int32_t k = 0; k < c.accumulate; k++)
        intra_trainer_micro(t, ids, ids);
    intra_trainer_update(t, &stats);
    double held = resident() - before;
    intra_trainer_destroy(&t);
    kern_destroy(&K);
    return held;
}

// The counted memory is the memory that real trainers use. The test fails if a constructor gets
// memory in a way that is not counted.
static void test_memory_is_what_is_allocated(void **state) {
    (void)state;
    static const struct intra_trainable sets[] = {
        {.mode = INTRA_TRAIN_FULL},
        {.mode = INTRA_TRAIN_BITFIT},
        {.mode = INTRA_TRAIN_LORA, .lora_rank = 4, .lora_alpha = 8, .lora_targets = 127},
    };
    static const struct intra_mesh_config meshes[] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2},
                                                      {1, 1, 4}, {2, 2, 2}, {1, 4, 1}};
    if (!allocated())
        skip(); // sanitizers have their own allocator
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        // all of it on one rank, in a pipeline and with all three, because a real step takes time
        for (size_t k = 0; k < (i % 3 == 2 || !i ? sizeof sets / sizeof *sets : 1); k++)
            for (int again = 0; again < (k || i % 3 == 1 ? 1 : 2); again++) {
                struct intra_cost_job j = mesh_job(1, 1, 1, 2, 4);
                struct intra_cost cost;
                j.mesh = meshes[i];
                j.model = wide();
                j.model.tied = !(i % 2);
                j.model.max_seq = j.seq_len = 128;
                j.trainable = sets[k];
                j.recompute = again;
                intra_cost_memory(&j, NULL, &cost);
                if (!i && !k && !again)
                    (void)allocated_by(&j, 0); // libraries keep memory for products
                double first = allocated_by(&j, 0),
                       held = j.mesh.pp == 1 ? first : fmax(first, allocated_by(&j, j.mesh.pp - 1));
                near(cost.rank_bytes, held, 0.01, "a trainer's memory");
                near(cost.params_bytes + cost.optim_bytes + cost.acts_bytes, cost.rank_bytes, 1e-9,
                     "the sum of its parts");
            }
}

static void test_memory_of_the_exchange(void **state) {
    (void)state;
    struct intra_rates r = even_host(1e9);
    struct intra_cost alone, cost;
    struct intra_cost_job j = mesh_job(1, 1, 1, 4, 8);
    intra_cost_step(&j, NULL, &r, &cost);
    assert_true(cost.exchange_bytes == 0 && cost.owner_bytes == 0); // takes part in no exchange
    j.outer = true;
    intra_cost_step(&j, NULL, &r, &alone);
    struct intra_cost_params p = intra_cost_count(&j.model, &j.trainable);
    near(alone.exchange_bytes, 16.0 * (double)p.trainable, 1e-9, "one rank");
    near(alone.rank_bytes, cost.rank_bytes + alone.exchange_bytes + alone.frames_bytes, 1e-3,
         "the rank's memory");
    j.copy = true; // of a checkpoint: parameters, moments and the exchange's state
    intra_cost_step(&j, NULL, &r, &cost);
    near(cost.copy_bytes, 4.0 * (double)p.all + 24.0 * (double)p.trainable, 1e-9, "a copy");
    near(cost.rank_bytes, alone.rank_bytes + cost.copy_bytes, 1e-3, "the rank with the copy");
    near(cost.host_bytes, cost.rank_bytes, 1e-9, "the host");
    j = mesh_job(4, 1, 1, 1, 32);
    j.outer = j.outer_single = true;
    intra_cost_step(&j, NULL, &r, &alone);
    j.copy = true;
    intra_cost_step(&j, NULL, &r, &cost);
    near(cost.copy_bytes, (double)p.all + 2.0 * (double)p.trainable, 1e-9, "a quarter of it");
    near(cost.owner_bytes, alone.owner_bytes + 16.0 * (double)p.trainable, 1e-3,
         "the owner's memory");
    near(cost.host_bytes, alone.host_bytes + 4 * cost.copy_bytes + 16.0 * (double)p.trainable, 1e-3,
         "the host of four");
    for (int lora = 0; lora < 2; lora++)
        for (int ranks = 2; ranks <= 16; ranks *= 2) {
            j = mesh_job(ranks, 1, 1, 1, 32);
            if (lora)
                j.trainable = (struct intra_trainable){
                    .mode = INTRA_TRAIN_LORA, .lora_rank = 4, .lora_alpha = 8, .lora_targets = 127};
            j.outer = true;
            intra_cost_step(&j, NULL, &r, &cost);
            // five arrays: θ, v, u, θ_m at the send, and θ_m during encode or merge
            near(cost.exchange_bytes, 20 * fullest_owner(&j, ranks, NULL), 0.25,
                 "the fullest rank");
            assert_true(cost.owner_bytes == 0);
            near(cost.host_bytes, cost.rank_bytes * ranks, 1e-9, "all ranks of a host");
            j.outer_single = true; // masked sums: rank 0 has the whole exchange
            intra_cost_step(&j, NULL, &r, &cost);
            near(cost.owner_bytes - cost.frames_bytes, 20 * fullest_owner(&j, 1, NULL), 0.01,
                 "a single owner");
            assert_true(cost.exchange_bytes == 0);
            near(cost.host_bytes, cost.rank_bytes * ranks + cost.owner_bytes, 1e-9,
                 "the owner's host");
        }
}

// The predicted memory of a rank's exchange equals the memory that the allocator gave out. The
// exchange encodes one update and merges the updates of all members.
static void frames_of(const char *name, int32_t members) {
    enum { UNITS = 64, MEMBERS = 16 };
    struct intra_model_config c = model;
    struct intra_trainable t = {.mode = INTRA_TRAIN_FULL};
    struct intra_rates r = even_host(1e9);
    struct intra_model *m = NULL;
    struct intra_unit *units = NULL;
    struct inter_outer_unit u[UNITS];
    struct kern_pool *pool = NULL;
    struct inter_outer *o = NULL;
    struct neb_buf blob = {0};
    struct cmp_codec codec;
    struct kern_digest digest;
    struct neb_rng rng = neb_rng_make(1, 1);
    int32_t n;
    c.d_model = 256;
    c.d_ff = 768;
    c.head_dim = 32;
    struct intra_cost_job j = mesh_job(1, 1, 1, 4, 8);
    struct intra_cost cost;
    j.model = c;
    j.outer = true;
    j.members = members;
    assert_int_equal(cmp_codec_parse(name, &codec), NEB_OK);
    assert_int_equal(agent_profile_frames(&codec, members, &j.frames), NEB_OK);
    intra_cost_step(&j, NULL, &r, &cost);
    assert_int_equal(kern_pool_create(1, &pool), NEB_OK);
    assert_int_equal(intra_model_create(&c, &t, 1, &m), NEB_OK);
    assert_int_equal(intra_units(m, &units, &n), NEB_OK);
    assert_in_range(n, 1, UNITS);
    for (int32_t i = 0; i < n; i++)
        u[i] = (struct inter_outer_unit){.rows = (uint32_t)units[i].rows,
                                         .cols = (uint32_t)units[i].cols,
                                         .theta_m = units[i].data};
    size_t before = allocated();
    const struct inter_outer_config config = {.beta = 1, .keep = 0.5f, .fragments = 1};
    assert_int_equal(inter_outer_create(&config, u, n, pool, &o), NEB_OK);
    for (size_t i = 0; i < m->n_params; i++)
        m->params[i] += 1e-3f * neb_rng_normal(&rng);
    assert_int_equal(inter_outer_encode(o, 0, &codec, NULL, NULL, &blob), NEB_OK);
    struct inter_outer_part parts[MEMBERS];
    for (int32_t i = 0; i < members; i++) // each in its own memory, as a worker keeps them
        parts[i] = (struct inter_outer_part){
            memcpy(malloc(blob.len), blob.p, blob.len), blob.len, 1, 1, i == 0, 0};
    const struct inter_outer_round round = {.parts = parts, .n = (size_t)members, .eta = 1};
    assert_int_equal(inter_outer_apply(o, 0, &round, &digest), NEB_OK);
    double held = (double)allocated() - (double)before;
    if (before > 0) // sanitizers have their own allocator
        near(cost.exchange_bytes + cost.frames_bytes, held, 0.1, name);
    for (int32_t i = 0; i < members; i++)
        free((void *)(uintptr_t)parts[i].blob);
    inter_outer_destroy(&o);
    neb_buf_free(&blob);
    free(units);
    intra_model_destroy(&m);
    kern_pool_destroy(&pool);
}

static void test_memory_of_frames(void **state) {
    (void)state;
    frames_of("int4", 2);
    frames_of("int4", 8);
    frames_of("fp32", 2);
    frames_of("int8", 2);
    frames_of("topk:64/4096", 3);
}

static void test_flops_and_bytes(void **state) {
    (void)state;
    struct intra_rates r = even_host(1e9);
    struct intra_cost one, cost;
    struct intra_cost_job j = mesh_job(1, 1, 1, 4, 8);
    intra_cost_step(&j, NULL, &r, &one);
    // 6 N per token, and attention: forward counts once, backward two and a half times
    double n = 8 * 4 * 32, matrices = 4 * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 160) + 512 * 64,
           attention =
               3.5 * 4 *
               kern_attn_flops(&(struct kern_attn){8 * 4, 32, 8, 4, 8, KERN_MASK_CAUSAL, NULL});
    near(one.flops, 6 * n * matrices + attention, 1e-9, "flops");
    assert_true(one.tp_s == 0 && one.pp_s == 0 && one.dp_s == 0);
    near(one.step_s, one.compute_s + one.update_s, 1e-12, "step");
    // each rank has its own machine: half the work, and traffic between them. In an all-reduce a
    // rank sends 2 (k - 1) / k of the bytes
    j = mesh_job(2, 1, 1, 4, 8);
    j.ranks_a_host = 1;
    intra_cost_step(&j, NULL, &r, &cost);
    near(cost.compute_s, one.compute_s / 2, 1e-9, "dp 2");
    near(cost.dp_bytes, 4.0 * (double)intra_cost_count(&model, &j.trainable).trainable, 1e-9,
         "dp bytes");
    near(cost.optim_bytes, one.optim_bytes / 2, 1e-3, "ZeRO");
    // both ranks are on one machine: the step is no faster
    j.ranks_a_host = 2;
    intra_cost_step(&j, NULL, &r, &cost);
    near(cost.compute_s, one.compute_s, 1e-9, "dp 2 on one machine");
    j = mesh_job(1, 1, 2, 4, 8);
    intra_cost_step(&j, NULL, &r, &cost);
    // a gather and a sum count as one all-reduce; the loss over the cut vocabulary adds a little
    near(cost.tp_bytes, 8 * (4 * 5 + 2) * 4.0 * 4 * 32 * 64, 0.02, "tp bytes");
    j = mesh_job(1, 2, 1, 4, 8);
    j.ranks_a_host = 1;
    intra_cost_step(&j, NULL, &r, &cost);
    assert_true(cost.pp_s > cost.compute_s / 8 && cost.pp_s < cost.compute_s / 4); // one bubble
    near(cost.pp_bytes, 8 * 4.0 * 4 * 32 * 64, 1e-9, "pp bytes"); // to one neighbour
    // recomputation: at most a third more products, and less memory
    j = mesh_job(1, 1, 1, 4, 8);
    j.recompute = true;
    intra_cost_step(&j, NULL, &r, &cost);
    assert_true(cost.flops > 1.1 * one.flops && cost.flops < 1.34 * one.flops);
    assert_true(cost.acts_bytes < 0.7 * one.acts_bytes);
    r.link = 0; // the link's rate is unknown
    j = mesh_job(1, 1, 2, 4, 8);
    intra_cost_step(&j, NULL, &r, &cost);
    assert_true(isinf(cost.step_s));
}

// Muon's matrices have one moment, and their products come once a step, however many micro-batches
// it has. With replicas each rank does its part of them, and sends as much as with AdamW.
static void test_muon(void **state) {
    (void)state;
    struct intra_rates r = even_host(1e9);
    struct intra_cost adamw, muon;
    struct intra_cost_job j = mesh_job(1, 1, 1, 4, 8);
    struct intra_cost_params p = intra_cost_count(&model, &j.trainable);
    intra_cost_step(&j, NULL, &r, &adamw);
    j.muon = true;
    intra_cost_step(&j, NULL, &r, &muon);
    double square = 4 * 64 * 64 * 64 + 2 * 64 * 64 * 64, kv = 4 * 32 * 32 * 64 + 2 * 32 * 32 * 32,
           wide = 4 * 64 * 64 * 160 + 2 * 64 * 64 * 64,
           all = 5 * 4 * (2 * square + 2 * kv + 3 * wide);
    near(muon.flops - adamw.flops, all, 1e-9, "flops of Muon");
    near(muon.optim_bytes, 4.0 * (double)(p.trainable + p.second), 1e-2, "moments of Muon");
    near(adamw.optim_bytes, 8.0 * (double)p.trainable, 1e-2, "moments of AdamW");
    assert_true(p.second < p.trainable / 3);
    j = mesh_job(2, 1, 1, 4, 8);
    intra_cost_step(&j, NULL, &r, &adamw);
    j.muon = true;
    intra_cost_step(&j, NULL, &r, &muon);
    near(muon.flops - adamw.flops, all / 2, 0.05, "flops of Muon, dp 2");
    near(muon.dp_bytes, adamw.dp_bytes, 1e-2, "dp bytes of Muon");
}

// bf16 on processors changes the time of steps, and adds two copies of the parameters.
static void test_bf16(void **state) {
    (void)state;
    struct intra_rates r = even_host(1e9);
    struct intra_cost_job j = mesh_job(1, 1, 1, 4, 8);
    struct intra_cost one, cost;
    j.model = wide();
    for (int i = 0; i < INTRA_COST_WIDTHS; i++)
        r.step[KERN_BF16][i] = 8 * (r.one[KERN_BF16][i] = 2e9 / 8);
    intra_cost_step(&j, NULL, &r, &one);
    j.type = KERN_BF16;
    intra_cost_step(&j, NULL, &r, &cost);
    double params = (double)intra_cost_count(&j.model, &j.trainable).all;
    near(cost.compute_s, one.compute_s / 2, 1e-9, "steps in bf16");
    near(cost.flops, one.flops, 1e-12, "flops");
    assert_true(cost.rank_bytes > one.rank_bytes + 4 * params); // and operands
    assert_true(cost.rank_bytes < one.rank_bytes + 5 * params);
}

// Rates between measured widths, and below the smallest width. With more tensor-parallel ranks, a
// rank's part of a block is narrower.
static void test_rates(void **state) {
    (void)state;
    struct intra_rates r = even_host(1e9);
    struct intra_cost_job j = mesh_job(1, 1, 1, 4, 8);
    r.step[KERN_F32][1] = 4e9;
    r.one[KERN_F32][1] = 4e9 / 8;
    near(intra_cost_rate(&j, &r, 128), 1e9, 1e-9, "at a measured width");
    j.mesh.tp = 2;
    near(intra_cost_rate(&j, &r, 128), 0.5e9, 1e-9, "half as wide");
    j.mesh.tp = 1;
    j.model.d_model = j.model.d_ff = 128;
    j.model.head_dim = 16;
    near(intra_cost_rate(&j, &r, 128), 2e9, 1e-9, "between two");
    j.model.d_model = j.model.d_ff = 8192;
    j.model.head_dim = 1024;
    near(intra_cost_rate(&j, &r, 128), 1e9, 1e-9, "above the last");
    // eight threads are twice as fast as one, so two are 2^(1/3) times as fast
    r.one[KERN_F32][2] = 0.5e9;
    j.ranks_a_host = 4;
    near(intra_cost_rate(&j, &r, 128), 0.5e9 * cbrt(2), 1e-9, "two threads of eight");
    j.ranks_a_host = 1;
    j.share = 1.0 / 16;
    near(intra_cost_rate(&j, &r, 128), 0.25e9, 1e-9, "half of a processor");
}

static void test_choice(void **state) {
    (void)state;
    struct intra_rates r = even_host(1e9);
    struct intra_cost cost, at;
    for (int ranks = 1; ranks <= 8; ranks++) {
        struct intra_cost_job best = mesh_job(1, 1, 1, 2, 8), j;
        struct intra_cost_choice c = {.ranks = ranks, .memory = 1e9};
        best.ranks_a_host = 1;
        bool fits = intra_cost_choose(&c, &r, &best, &cost);
        assert_int_equal(fits, isfinite(cost.step_s));
        for (int tp = 1; tp <= ranks; tp++)
            for (int pp = 1; pp * tp <= ranks; pp++) {
                j = mesh_job(ranks / (tp * pp), pp, tp, 2, 8);
                j.ranks_a_host = 1;
                if (ranks % (tp * pp) || !intra_cost_mesh_fits(&j.mesh, &model) || 16 % j.mesh.dp)
                    continue;
                intra_cost_step(&j, NULL, &r, &at);
                assert_true(cost.step_s <= at.step_s * 1.01);
            }
        assert_true(!fits || 16 % best.mesh.dp == 0);
        c.beat_s = 0.99 * cost.step_s; // no choice is so fast
        assert_false(intra_cost_choose(&c, &r, &best, &cost));
    }
    // with less memory nothing fits, and the plan gives the nearest choice
    struct intra_cost_job j = mesh_job(1, 1, 1, 1, 16);
    struct intra_cost_choice c = {.ranks = 1, .memory = 1e9};
    assert_true(intra_cost_choose(&c, &r, &j, &cost));
    double most = cost.host_bytes;
    c.memory = 1e5;
    assert_false(intra_cost_choose(&c, &r, &j, &cost));
    near(cost.host_bytes, most, 1e-9, "what it needs");
}

static void test_roles(void **state) {
    (void)state;
    const double stream[] = {1, 2, 3}, learn[] = {2, 4, 6};
    bool yes[] = {true, true, true}, not_first[] = {false, true, true};
    int32_t who = -1;
    double s;
    // the slowest cluster would delay learning, so it streams
    assert_true(agent_planner_roles(3, stream, yes, learn, yes, false, &who, &s));
    assert_true(who == 2 && s == 4);
    // a teacher works for each learner, so the slowest cluster would be the bottleneck
    const double heavy[] = {2, 4, 6};
    assert_true(agent_planner_roles(3, heavy, yes, learn, yes, true, &who, &s));
    assert_true(who == 0 && s == 6);
    assert_true(agent_planner_roles(3, heavy, not_first, learn, yes, true, &who, &s) && who == 1);
    // no other cluster can teach the first, which cannot learn either
    assert_false(agent_planner_roles(3, heavy, not_first, learn, not_first, true, &who, &s));
    assert_false(agent_planner_roles(1, heavy, yes, learn, yes, true, &who, &s));
}

static void test_links(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "100",
                                      "100mbit",
                                      "mbit:1ms",
                                      "-1mbit:1ms",
                                      "1mbit:1",
                                      "1mbit:-1ms",
                                      "1mbit:1ms:",
                                      "1mbit:1ms:1",
                                      "1mbit:1ms:100%",
                                      "1mbit:1ms:50.1%",
                                      "nanmbit:1ms",
                                      "infgbit:1ms",
                                      "1bit:1ms",
                                      "1mbit:1ms:1%x",
                                      "0mbit:1ms",
                                      "1mbit:61s"};
    struct agent_wan w;
    assert_int_equal(agent_wan_parse("100mbit:80ms:0.1%", "t", &w), NEB_OK);
    near(w.bits_s, 100e6, 1e-12, "rate");
    near(w.rtt_s, 0.08, 1e-12, "delay");
    near(w.loss, 0.001, 1e-12, "loss");
    assert_int_equal(agent_wan_parse("1.5gbit:200us", "t", &w), NEB_OK);
    assert_true(w.bits_s == 1.5e9 && w.loss == 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (agent_wan_parse(bad[i], "t", &w) != NEB_ERR_INVALID)
            fail_msg("\"%s\" was accepted", bad[i]);
}

static void test_profile(void **state) {
    (void)state;
    struct agent_profile p = {.host = "h", .isa = "i", .rates = even_host(1e9), .sync_s = 1e-3},
                         back;
    for (int i = 0; cmp_variant(i, CMP_PLANNED); i++)
        p.codecs[i] = (struct inter_wan_codec){"int4", 4, 0.15, 1, false, {{1e9, 1e9, 1e9}}};
    json_t *o = agent_profile_to_json(&p);
    char *text = json_dumps(o, 0);
    assert_int_equal(agent_profile_parse(text, strlen(text), "t", &back), NEB_OK);
    assert_true(back.rates.step[KERN_F32][2] == 1e9 && back.sync_s == 1e-3 &&
                back.rates.processors == 8);
    assert_string_equal(back.codecs[5].name, "int4");
    p.rates.step[KERN_BF16][0] = 1; // then the other widths need bf16 rates too
    free(text);
    json_decref(o);
    o = agent_profile_to_json(&p);
    text = json_dumps(o, 0);
    assert_int_equal(agent_profile_parse(text, strlen(text), "t", &back), NEB_ERR_FORMAT);
    p.rates.step[KERN_BF16][0] = 0;
    json_decref(o);
    o = agent_profile_to_json(&p);
    free(text);
    // every key is required, and the value -1 is refused
    const char *key;
    json_t *v;
    void *tmp;
    json_object_foreach_safe(o, tmp, key, v) {
        for (int how = 0; how < 2; how++) {
            json_t *copy = json_deep_copy(o);
            if (how)
                json_object_set_new(copy, key, json_integer(-1));
            else
                json_object_del(copy, key);
            text = json_dumps(copy, 0);
            if (agent_profile_parse(text, strlen(text), "t", &back) != NEB_ERR_FORMAT)
                fail_msg("accepted %s %s", how ? "-1 as" : "without", key);
            free(text);
            json_decref(copy);
        }
    }
    json_decref(o);
}

// ---- a child process measures the device

static char said[2048];
static void listen(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", text);
}

static struct agent_profile with_device(void) {
    struct agent_profile p = {.device = "a card"};
    struct intra_device_rates *d = &p.rates.device;
    *d = (struct intra_device_rates){.count = 2, .memory = 8e10};
    d->wait_s = 1e-6;
    d->up = d->down = 2e10;
    for (int t = 0; t < 2; t++) {
        for (int k = 0; k < INTRA_COST_STEPS; k++)
            d->step[t][k] = 1e14 / 3 + k;
        d->update[t] = 1e12 / 3;
    }
    for (int i = 0; cmp_variant(i, CMP_PLANNED); i++)
        p.codecs[i].at[INTER_WAN_DEVICE] = (struct inter_wan_rates){1e11 / 3 + i, 2e11, 3e11};
    return p;
}

// Runs the shell script as the child. `why` must be logged; "": nothing is logged.
static void apart(const char *script, neb_ns timeout, const char *why, struct agent_profile *p) {
    char dir[] = "/tmp/nebula-cost-XXXXXX", exe[NEB_PATH_MAX];
    assert_non_null(mkdtemp(dir));
    assert_int_equal(neb_path(exe, sizeof exe, dir, "child"), NEB_OK);
    assert_int_equal(neb_fs_write(exe, script, strlen(script), 0700), NEB_OK);
    *p = with_device();
    said[0] = 0;
    neb_log_set_sink(listen, NULL);
    neb_ns from = neb_now();
    agent_profile_device_apart(exe, timeout, p);
    neb_log_set_sink(NULL, NULL);
    if (*why ? !strstr(said, why) : said[0])
        fail_msg("log: \"%s\", want \"%s\"", said, why);
    assert_true(neb_now() - from < 60 * NEB_S); // the hanging child would take 600 s
    assert_int_equal(remove(exe), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void test_device_by_a_child(void **state) {
    (void)state;
    static const struct {
        const char *script, *why;
    } none[] = {
        {"#!/bin/sh\n[ \"$1 $2\" = 'plan --measure-device' ] && "
         "echo '{\"device\": null, \"codecs\": []}'\n",
         ""},
        {"#!/bin/sh\nexit 3\n", "cannot be measured: exit status 3"},
        {"#!/bin/sh\nkill -SEGV $$\n", "cannot be measured: killed by signal 11"},
        {"#!/bin/sh\necho '{\"device\": {\"count\": 1}, \"codecs\": []}'\n", "name is missing"},
    };
    struct agent_profile p;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        apart(none[i].script, 50 * NEB_S, none[i].why, &p);
        assert_int_equal(p.rates.device.count, 0);
        assert_true(!p.device[0] && p.codecs[2].at[INTER_WAN_DEVICE].encode == 0);
    }
    apart("#!/bin/sh\nexec sleep 600\n", 100 * NEB_MS, "cannot be measured: no answer in", &p);
    assert_int_equal(p.rates.device.count, 0);

    struct agent_profile card = with_device();
    char script[16384];
    json_t *o = agent_profile_device_to_json(&card);
    char *text = json_dumps(o, JSON_COMPACT);
    snprintf(script, sizeof script, "#!/bin/sh\necho '%s'\n", text);
    free(text);
    json_decref(o);
    apart(script, 50 * NEB_S, "", &p);
    assert_string_equal(p.device, "a card");
    assert_memory_equal(&p.rates.device, &card.rates.device, sizeof card.rates.device);
    assert_memory_equal(p.codecs, card.codecs, sizeof card.codecs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_equal_models),
        cmocka_unit_test(test_memory_is_what_is_allocated),
        cmocka_unit_test(test_memory_of_the_exchange),
        cmocka_unit_test(test_memory_of_frames),
        cmocka_unit_test(test_flops_and_bytes),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_profile),
        cmocka_unit_test(test_device_by_a_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
