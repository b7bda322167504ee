// SPDX-License-Identifier: Apache-2.0
// intra/cost on devices: seconds follow from a device's rates by arithmetic, traffic that can be
// hidden is hidden, and a choice that does not fit is not made. tests/cuda/test_cost_device.c
// compares memory with a device.
#include "agent/plan/planner.h"
#include "inter/outer/outer.h"
#include "tests/unit/cost_fixture.h"

#include <stdlib.h>
#include <string.h>

static struct intra_rates even_rates(void) {
    struct intra_rates r = even_host(1e9);
    r.device = even_device(1e9);
    return r;
}

static struct intra_cost_job device_job(int dp, int pp, int tp, int batch, int micros) {
    struct intra_cost_job j = mesh_job(dp, pp, tp, batch, micros);
    j.device = true;
    return j;
}

static struct intra_cost cost_of(const struct intra_cost_job *j, const struct intra_rates *r) {
    struct intra_cost c;
    intra_cost_step(j, NULL, r, &c);
    return c;
}

static void test_rows_of_logits(void **state) {
    (void)state;
    static const struct {
        double memory;
        int V, n, rows;
        enum kern_type t;
    } cases[] = {
        {80e9, 50304, 1 << 20, 8192, KERN_BF16}, // as many rows as pay
        {80e9, 256000, 1 << 20, 4864, KERN_BF16},
        {24e9, 256000, 1 << 19, 1408, KERN_BF16}, // its share of memory
        {80e9, 50304, 100, 100, KERN_F32},        // all rows
        {80e9, 50304, 8256, 4160, KERN_BF16},     // two equal blocks, not 8,192 and a rest
        {1e6, 256000, 1000, 64, KERN_F32},        // the minimum
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(kern_logits_rows(cases[i].memory, cases[i].V, cases[i].t, cases[i].n),
                         cases[i].rows);
    for (int n = 1; n < 20000; n += 37) { // never more than the share, and no extra block
        int rows = kern_logits_rows(24e9, 256000, KERN_BF16, n), most = 1408;
        assert_true(rows <= most && (n + rows - 1) / rows == (n + most - 1) / most);
    }
}

static void test_seconds(void **state) {
    (void)state;
    struct intra_rates r = even_rates();
    struct intra_cost_job j = device_job(1, 1, 1, 4, 8);
    struct intra_cost one = cost_of(&j, &r), c;
    near(one.compute_s, one.flops / 1e9, 1e-3, "only products");
    j.type = KERN_BF16;
    c = cost_of(&j, &r);
    near(c.compute_s, one.compute_s / 4, 1e-3, "in bf16");
    assert_true(c.acts_bytes < 0.7 * one.acts_bytes && c.params_bytes > 1.2 * one.params_bytes);
    j.share = 0.5;
    near(cost_of(&j, &r).compute_s, one.compute_s / 2, 1e-3, "half of a device");
    // rates between measured points, by tokens: twice as fast at four times the size
    r = even_rates();
    for (int i = 0; i < INTRA_COST_STEPS; i++)
        r.device.step[0][i] = 1e9 * (1 << i / INTRA_COST_WIDTHS * 2); // at 64, 1024, 16384 tokens
    j = device_job(1, 1, 1, 8, 4);
    double few = cost_of(&j, &r).compute_s;
    j = device_job(1, 1, 1, 32, 1);
    near(cost_of(&j, &r).compute_s, few / 2, 1e-6, "four times the tokens");
}

static void test_meshes(void **state) {
    (void)state;
    struct intra_rates r = even_rates();
    struct intra_cost_job j = device_job(1, 1, 1, 4, 8);
    struct intra_cost one = cost_of(&j, &r), c;
    double params = (double)intra_cost_count(&model, &j.trainable).trainable;
    // each rank has a device: half the work. The backward pass hides the traffic of the gradients
    // except one piece. The gather of parameters is not hidden
    j = device_job(2, 1, 1, 4, 8);
    c = cost_of(&j, &r);
    near(c.compute_s, one.compute_s / 2, 1e-6, "dp 2");
    near(c.dp_bytes, 4 * params, 1e-3, "dp bytes");
    near(c.dp_s, (1 + 1.0 / 8) * 2 * params / 1e9, 1e-3, "exposed dp time");
    r.device.link = 1e6; // too slow for the backward pass
    c = cost_of(&j, &r);
    near(c.dp_s, 4 * params / 1e6 - 2.0 / 3 * one.compute_s / 8, 1e-3, "dp over a slow link");
    r = even_rates();
    // gathers have the compute type, sums are fp32
    j = device_job(1, 1, 2, 4, 8);
    c = cost_of(&j, &r);
    near(c.tp_bytes, 8 * (4 * 10 + 4) * 4.0 * 4 * 32 * 64 / 2, 0.02, "tp bytes in fp32");
    j.type = KERN_BF16;
    c = cost_of(&j, &r);
    near(c.tp_bytes, 8 * ((4 * 6 + 2) * 2 + (4 * 4 + 2) * 4) * 4.0 * 32 * 64 / 2, 0.05,
         "tp bytes in bf16");
    j = device_job(1, 2, 1, 4, 8);
    c = cost_of(&j, &r);
    assert_true(c.pp_s > c.compute_s / 8 && c.pp_s < c.compute_s / 4); // one bubble
    // more ranks than devices, or an unknown link between them
    r.device.count = 1;
    assert_true(isinf(cost_of(&j, &r).step_s));
    j.ranks_a_host = 1;
    assert_true(isfinite(cost_of(&j, &r).step_s));
    r.device.link = 0;
    assert_true(isinf(cost_of(&j, &r).step_s));
}

static void test_exchange(void **state) {
    (void)state;
    struct intra_rates r = even_rates();
    struct intra_cost_job j = device_job(1, 1, 1, 4, 8);
    double largest, params = (double)intra_cost_count(&model, &j.trainable).trainable;
    (void)fullest_owner(&j, 1, &largest);
    struct intra_cost none = cost_of(&j, &r), c;
    assert_true(none.gather_s == 0 && none.scatter_s == 0 && none.outer_bytes == 0);
    j.outer = true;
    r.device.down = 1e6;
    r.device.up = 2e6;
    c = cost_of(&j, &r);
    near(c.gather_s, 4 * params / 1e6, 1e-3, "to the host");
    near(c.scatter_s, 4 * params / 2e6, 1e-3, "back to the device");
    near(c.owner_params, params, 1e-9, "a rank owns all");
    assert_true(c.outer_bytes == 0 && c.device_bytes == none.device_bytes);
    near(c.exchange_bytes, 16 * params, 1e-9, "on the host");
    j.outer_device = true;
    c = cost_of(&j, &r);
    assert_true(c.gather_s == 0 && c.scatter_s == 0);
    assert_true(c.outer_bytes > 16 * params && c.outer_bytes < 22 * params);
    near(c.device_bytes, none.device_bytes + c.outer_bytes, 1e-9, "with the exchange's state");
    near(c.exchange_bytes, 16 * params + 4 * largest, 1e-9, "the host's copy, and room of a unit");
}

// The exchange's state of a mesh on devices: the busiest owner's shard is in its device's memory,
// and units that it does not train itself come through the host.
static void test_exchange_of_a_mesh(void **state) {
    (void)state;
    struct intra_rates r = even_rates();
    double largest, link = r.link = 1e9;
    r.link_s = 0;
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        struct intra_cost_job j = device_job(ranks, 1, 1, 1, 32);
        double params = (double)intra_cost_count(&model, &j.trainable).trainable,
               own = fullest_owner(&j, ranks, &largest),
               spread = ranks == 2 ? 1 : 2.0 * (ranks - 1) / ranks;
        struct intra_cost none = cost_of(&j, &r), host, c;
        j.outer = true;
        host = cost_of(&j, &r);
        j.outer_device = true;
        c = cost_of(&j, &r);
        near(c.owner_params, own, 1e-9, "the fullest owner");
        near(c.outer_bytes, 16 * own + 9.25 * largest, 0.02, "in its device's memory");
        near(c.device_bytes, none.device_bytes + c.outer_bytes, 1e-9, "beside the training");
        near(c.exchange_bytes, 20 * own + 4 * largest, 0.02, "the host's copy, and room");
        near(host.exchange_bytes, 20 * own, 0.02, "all of it on the host");
        assert_true(host.outer_bytes == 0 && host.device_bytes == none.device_bytes);
        // replicas train what they own: nothing is fetched, and the merged units go to all
        assert_true(c.gather_s == 0);
        near(c.scatter_s, spread * 4 * params / link, 0.02, "to the other replicas");
        r.device.down = 1e6;
        near(cost_of(&j, &r).scatter_s - c.scatter_s, 4 * own / 1e6, 0.02, "from the device");
        assert_true(cost_of(&j, &r).gather_s == 0);
        // a rank fetches what the owners of its replica need: only its own units
        j.outer_device = false;
        near(cost_of(&j, &r).gather_s, 4 * own / 1e6, 0.02, "to the host");
        r.device.down = 1e12;
        r.device.up = 1e6;
        near(cost_of(&j, &r).scatter_s, 4 * params / 1e6, 0.02, "everything back to the device");
        r.device.up = 1e12;
    }
    // tensor parallel: the other rank sends half of what a rank owns, and all of it takes device
    // memory
    struct intra_cost_job j = device_job(1, 1, 2, 4, 8);
    double own = fullest_owner(&j, 2, &largest);
    j.outer = j.outer_device = true;
    struct intra_cost c = cost_of(&j, &r);
    near(c.outer_bytes, 20 * own + 9.25 * largest, 0.02, "with room for a gathered fragment");
    near(c.gather_s, 2 * own / link, 0.02, "from the other rank");
    near(c.scatter_s, 2 * own / link, 0.02, "to the other rank");
    // two fragments: one is gathered at a time; masked sums are on the host of the first rank
    j.fragments = 2;
    struct intra_cost two = cost_of(&j, &r);
    assert_true(two.outer_bytes < c.outer_bytes - own && two.owner_params < 1.2 * own);
    j.fragments = 1;
    j.outer_single = true;
    j.outer_device = false;
    c = cost_of(&j, &r);
    near(c.owner_params, fullest_owner(&j, 1, &largest), 1e-9, "a single owner");
    assert_true(c.owner_bytes > 16 * c.owner_params && c.outer_bytes == 0 && c.exchange_bytes == 0);
    // stages: units are shared out by size, so another rank trains most of the units that a rank
    // owns
    j = device_job(1, 2, 1, 4, 8);
    j.outer = j.outer_device = true;
    c = cost_of(&j, &r);
    assert_true(c.gather_s > 0.2 * 4 * own / link && c.gather_s < 4 * own / link);
    assert_true(c.outer_bytes > 16 * own + 9.25 * largest &&
                c.outer_bytes < 24.1 * own + 5.25 * largest);
}

// The work of owners. A device works on one unit after the other. Processors work on as many units
// at once as there are threads.
static void test_work_of_owners(void **state) {
    (void)state;
    struct agent_site site = {.share = 1};
    const struct agent_cluster cluster = {.launcher = AGENT_LAUNCHER_LOCAL};
    const struct inter_wan_codec codec = {"int4", 4,     0.1,
                                          1,      false, {{8e6, 4e6, 2e6}, {4e6, 2e6, 1e6}}};
    site.profile.rates = even_rates();
    site.profile.rates.link = 1e12;
    site.profile.rates.link_s = 0;
    struct agent_planned x = {.job = device_job(1, 1, 1, 1, 32)};
    x.job.outer = x.job.outer_device = true;
    x.cost = cost_of(&x.job, &site.profile.rates);
    double params = x.cost.owner_params;
    struct inter_wan_work one = agent_planner_work(&x, &site, &cluster, &codec, params / 2, 3), w;
    near(one.encode_s, params / 4e6, 1e-3, "encoding on a device");
    near(one.merge_s, 3 * params / 2e6 + params / 1e6, 1e-3, "merging three there");
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        double largest, own;
        x.job = device_job(ranks, 1, 1, 1, 32);
        x.job.outer = x.job.outer_device = true;
        x.cost = cost_of(&x.job, &site.profile.rates);
        own = fullest_owner(&x.job, ranks, &largest);
        w = agent_planner_work(&x, &site, &cluster, &codec, params / 2, 3);
        near(w.encode_s, own / 4e6, 2e-3, "the busiest owner encodes");
        near(w.merge_s, 3 * own / 2e6 + own / 1e6, 2e-3, "the busiest owner merges");
        x.job.outer_device = false; // the ranks share all processors of the machine
        x.cost = cost_of(&x.job, &site.profile.rates);
        w = agent_planner_work(&x, &site, &cluster, &codec, params / 2, 3);
        near(w.encode_s, fmax(own * ranks, 8 * largest) / 8e6, 2e-3, "on processors");
    }
    site.profile.rates.link = 1e3; // frames pass through the first rank
    w = agent_planner_work(&x, &site, &cluster, &codec, 8000, 3);
    assert_true(w.encode_s > 7 && w.merge_s > 21 + x.cost.scatter_s);
}

// The device or the host has too little memory.
static void test_choice(void **state) {
    (void)state;
    struct intra_rates r = even_rates();
    struct intra_cost_job j = device_job(1, 1, 1, 1, 16);
    struct intra_cost_choice c = {.ranks = 1, .memory = 1e9, .device_memory = 1e9};
    struct intra_cost cost;
    assert_true(intra_cost_choose(&c, &r, &j, &cost));
    c.device_memory = 0.99 * cost.device_bytes;
    assert_false(intra_cost_choose(&c, &r, &j, &cost));
    c.device_memory = 1e9;
    c.memory = 1e6;
    assert_false(intra_cost_choose(&c, &r, &j, &cost));
}

// The planner decides which cluster is on a device, in which type, and with the exchange's state
// there or not.
static void test_device_placement(void **state) {
    (void)state;
    static struct agent_job job;
    static struct agent_site sites[AGENT_CLUSTERS_MAX];
    static const char text[] =
        "job: j\nsteps: 100\n"
        "model: {vocab: 512, n_layers: 4, d_model: 64, n_heads: 8, n_kv_heads: 4, d_ff: 160}\n"
        "data: {corpus: c, seq_len: 32, batch: 4, accumulate: 2}\noptim: {lr: 1e-3}\n"
        "clusters: [{name: a, device: cuda}, {name: b}, {name: c, device: cpu},\n"
        "  {name: d, precision: fp32, outer_state: host}, {name: e, device: cuda}]\n";
    const struct agent_wan link = {1e9, 1e-3, 0};
    struct agent_planner p;
    assert_int_equal(agent_job_parse(text, strlen(text), "job.yaml", &job), NEB_OK);
    assert_int_equal(agent_job_validate(&job, "job.yaml"), NEB_OK);
    for (int i = 0; i < 5; i++) {
        sites[i] = (struct agent_site){.share = 1};
        sites[i].profile.rates = even_rates();
        for (int k = 0; cmp_variant(k, CMP_PLANNED); k++)
            sites[i].profile.codecs[k] = (struct inter_wan_codec){
                "int4", 4, 0.1, 1, false, {{1e9, 1e9, 1e9}, {2e9, 2e9, 2e9}}};
    }
    sites[4].profile.rates.device.count = 0;
    assert_int_equal(agent_planner_run(&job, 0, sites, &link, 0, &p), NEB_OK);
    assert_true(p.clusters[0].job.device && p.clusters[0].job.type == KERN_BF16 &&
                p.clusters[0].job.outer_device);
    assert_true(p.clusters[1].job.device); // auto uses the device
    assert_false(p.clusters[2].job.device);
    assert_true(p.clusters[3].job.device && p.clusters[3].job.type == KERN_F32 &&
                !p.clusters[3].job.outer_device && p.clusters[3].cost.gather_s > 0);
    assert_true(p.clusters[4].no_device && !p.clusters[4].job.device && !p.clusters[0].no_device);
    struct intra_cost c = p.clusters[1].cost;
    // early exchanges count
    double rounds = p.sent_bytes / p.wan.bytes;
    near(rounds, ceil(100.0 / p.wan.interval), 1e-9, "exchanges");
    job.sync.early_steps = 40;
    job.sync.early_interval = 4;
    assert_int_equal(agent_planner_run(&job, 0, sites, &link, 0, &p), NEB_OK);
    near(p.sent_bytes / p.wan.bytes, 10 + ceil(60.0 / p.wan.interval), 1e-9, "early exchanges");
    job.sync.early_steps = 0;
    // there are as many ranks as devices, if the job leaves the mesh open and this pays
    sites[0].profile.rates.device.count = 2;
    sites[0].profile.rates.device.link = 1e12;
    assert_int_equal(agent_planner_run(&job, 0, sites, &link, AGENT_AUTO_MESH, &p), NEB_OK);
    struct intra_mesh_config m = p.clusters[0].job.mesh;
    assert_int_equal(m.dp * m.pp * m.tp, 2);
    assert_true(p.clusters[0].job.outer_device &&
                p.clusters[0].cost.outer_bytes > 0); // a shard on each
    // without room on the device the exchange's state goes to the host; auto also needs spare room
    sites[1].profile.rates.device.memory = (c.device_bytes + INTER_OUTER_SPARE_BYTES / 2) / 0.94;
    assert_int_equal(agent_planner_run(&job, 0, sites, &link, 0, &p), NEB_OK);
    assert_true(p.clusters[1].fits && p.clusters[1].job.device && !p.clusters[1].job.outer_device);
    job.clusters[1].outer_state = AGENT_OUTER_DEVICE;
    assert_int_equal(agent_planner_run(&job, 0, sites, &link, 0, &p), NEB_OK);
    assert_true(p.clusters[1].fits && p.clusters[1].job.outer_device);
    job.clusters[1].outer_state = AGENT_OUTER_AUTO;
    sites[1].profile.rates.device.memory = (c.device_bytes - c.outer_bytes / 2) / 0.94;
    assert_int_equal(agent_planner_run(&job, 0, sites, &link, 0, &p), NEB_OK);
    assert_true(p.clusters[1].fits && p.clusters[1].job.device && !p.clusters[1].job.outer_device);
}

// Ranks of mpirun or Slurm fill hosts: with devices a host has one rank per device and holds the
// memory of all its ranks. On processors, Slurm's ranks count as one to a host, because their
// number is unknown.
static void test_hosts(void **state) {
    (void)state;
    static struct agent_job job;
    static struct agent_site sites[AGENT_CLUSTERS_MAX];
    static const char text[] =
        "job: j\nsteps: 100\n"
        "model: {vocab: 512, n_layers: 4, d_model: 64, n_heads: 8, n_kv_heads: 4, d_ff: 160}\n"
        "data: {corpus: c, seq_len: 32, batch: 1, accumulate: 8}\noptim: {lr: 1e-3}\n"
        "sync: {scheme: none}\n"
        "clusters: [{name: a, device: cuda, launcher: slurm, mesh: {dp: 8}},\n"
        "  {name: b, launcher: mpirun, mesh: {dp: 2}},\n"
        "  {name: c, device: cpu, launcher: slurm, mesh: {dp: 8}},\n"
        "  {name: d, device: cuda, mesh: {dp: 4}}]\n";
    const struct agent_wan link = {1e9, 1e-3, 0};
    struct agent_planner p;
    assert_int_equal(agent_job_parse(text, strlen(text), "job.yaml", &job), NEB_OK);
    for (int i = 0; i < 4; i++) {
        sites[i] = (struct agent_site){.share = 1};
        sites[i].profile.rates = even_rates();
        sites[i].profile.rates.device.count = 4;
    }
    assert_int_equal(agent_planner_run(&job, 0, sites, &link, 0, &p), NEB_OK);
    assert_int_equal(p.clusters[0].job.ranks_a_host, 4);
    assert_int_equal(p.clusters[1].job.ranks_a_host, 2);
    assert_int_equal(p.clusters[2].job.ranks_a_host, 1);
    assert_int_equal(p.clusters[3].job.ranks_a_host, 4);
    for (int i = 0; i < 4; i++)
        near(p.clusters[i].cost.host_bytes,
             p.clusters[i].job.ranks_a_host * p.clusters[i].cost.rank_bytes, 1e-9,
             "memory of a host's ranks");
    // enough memory for two of the four ranks
    sites[0].profile.rates.memory = 2 * p.clusters[0].cost.rank_bytes;
    assert_true(p.clusters[0].fits && isfinite(p.clusters[0].cost.step_s));
    assert_int_equal(agent_planner_run(&job, 0, sites, &link, 0, &p), NEB_OK);
    assert_true(!p.clusters[0].fits);
    // a rank has the threads that the job gives it, up to its share of the processors
    struct agent_planned x = {.job = {.ranks_a_host = 4, .mesh = {8, 1, 1}},
                              .cost = {.owner_params = 8e3}};
    struct inter_wan_codec codec = {.bits = 8, .at[INTER_WAN_HOST] = {8e3, 8e3, 8e3}};
    double alone = 0;
    for (int threads = 0; threads < 5;
         threads++) { // 8 processors, two per rank; the rate is that of all
        job.clusters[0].threads = threads;
        double s = agent_planner_work(&x, &sites[0], &job.clusters[0], &codec, 0, 1).encode_s;
        alone = threads == 1 ? s : alone;
        if (threads > 1)
            assert_true(s < 0.6 * alone && s > 0.4 * alone);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_logits),
        cmocka_unit_test(test_seconds),
        cmocka_unit_test(test_meshes),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_exchange_of_a_mesh),
        cmocka_unit_test(test_work_of_owners),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_device_placement),
        cmocka_unit_test(test_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
