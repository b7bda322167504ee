// intra/cost_device.c: seconds follow from a device's rates by arithmetic that can be checked by hand, what may be hidden is, and what
// does not fit is not chosen. Memory is compared with a device's in tests/cuda/test_cost_device.c.
#include "agent/planner.h"
#include "tests/unit/cost_fixture.h"

#include <stdlib.h>
#include <string.h>

// Everything but products costs next to nothing; bf16 is four times as fast as fp32.
static struct intra_rates even_rates(void) {
    struct intra_rates r = even_host(1e9);
    r.device = (struct intra_device_rates){.count = 8,
                                           .memory = 1e9,
                                           .op_s = 1e-15,
                                           .wait_s = 1e-15,
                                           .up = 1e12,
                                           .down = 1e12,
                                           .link = 1e9,
                                           .link_s = 1e-9};
    for (int t = 0; t < 2; t++) {
        struct intra_type_rates *of = &r.device.of[t];
        of->rows = of->logits = of->update = 1e15;
        for (int i = 0; i < INTRA_COST_TOKENS; i++) {
            for (int k = 0; k < INTRA_COST_SIDES; k++)
                of->gemm[i][k] = t ? 4e9 : 1e9;
            for (int k = 0; k < INTRA_COST_HEADS; k++)
                of->attn_fwd[i][k] = of->attn_bwd[i][k] = t ? 4e9 : 1e9;
        }
    }
    return r;
}

static struct intra_cost_job device_job(int dp, int pp, int tp, int batch, int micros) {
    struct intra_cost_job j = mesh_job(dp, pp, tp, batch, micros);
    j.device = true;
    return j;
}

static struct intra_cost cost_of(const struct intra_cost_job *j, const struct intra_rates *r) {
    struct intra_cost c;
    intra_cost_step(j, r, &c);
    return c;
}

static void test_seconds(void **state) {
    (void)state;
    struct intra_rates r = even_rates();
    struct intra_cost_job j = device_job(1, 1, 1, 4, 8);
    struct intra_cost one = cost_of(&j, &r), c;
    near(one.compute_s, one.flops / 1e9, 1e-3, "all is products");
    j.type = KERN_BF16;
    c = cost_of(&j, &r);
    near(c.compute_s, one.compute_s / 4, 1e-3, "in bf16");
    assert_true(c.acts_bytes < 0.7 * one.acts_bytes && c.params_bytes > 1.2 * one.params_bytes);
    j.share = 0.5;
    near(cost_of(&j, &r).compute_s, one.compute_s / 2, 1e-3, "half of a device");
    // Launches: nothing is faster than they are.
    j = device_job(1, 1, 1, 4, 8);
    r.device.op_s = 1;
    c = cost_of(&j, &r);
    assert_true(c.compute_s > 8 * 4 * (9 + 13) && c.compute_s < 8 * 4 * 2 * (9 + 13));
    // Rates between what was measured, by side and by tokens: twice as fast at four times as much.
    r = even_rates();
    for (int i = 0; i < INTRA_COST_TOKENS; i++)
        for (int k = 0; k < INTRA_COST_SIDES; k++)
            r.device.of[0].gemm[i][k] = 1e9 * (1 << i);
    j = device_job(1, 1, 1, 8, 4);
    j.trainable.mode = INTRA_TRAIN_BITFIT;
    double few = cost_of(&j, &r).compute_s;
    j = device_job(1, 1, 1, 32, 1);
    j.trainable.mode = INTRA_TRAIN_BITFIT;
    c = cost_of(&j, &r);
    assert_true(c.compute_s < 0.7 * few && c.compute_s > 0.5 * few);
}

static void test_meshes(void **state) {
    (void)state;
    struct intra_rates r = even_rates();
    struct intra_cost_job j = device_job(1, 1, 1, 4, 8);
    struct intra_cost one = cost_of(&j, &r), c;
    double params = (double)intra_cost_count(&model, &j.trainable).trainable;
    // A device each: half the work. Gradients hide behind backward but for a piece, parameters are gathered in the open.
    j = device_job(2, 1, 1, 4, 8);
    c = cost_of(&j, &r);
    near(c.compute_s, one.compute_s / 2, 1e-6, "dp 2");
    near(c.dp_bytes, 4 * params, 1e-3, "dp bytes");
    near(c.dp_s, (1 + 1.0 / 8) * 2 * params / 1e9, 1e-3, "what dp costs");
    r.device.link = 1e6; // too slow for backward
    c = cost_of(&j, &r);
    near(c.dp_s, 4 * params / 1e6 - 2.0 / 3 * one.compute_s / 8, 1e-3, "dp over a slow link");
    r = even_rates();
    // Gathers are of T, sums of floats.
    j = device_job(1, 1, 2, 4, 8);
    c = cost_of(&j, &r);
    near(c.tp_bytes, 8 * (4 * 10 + 4) * 4.0 * 4 * 32 * 64 / 2, 1e-9, "tp bytes in fp32");
    j.type = KERN_BF16;
    c = cost_of(&j, &r);
    near(c.tp_bytes, 8 * ((4 * 6 + 2) * 2 + (4 * 4 + 2) * 4) * 4.0 * 32 * 64 / 2, 1e-9,
         "tp bytes in bf16");
    j = device_job(1, 2, 1, 4, 8);
    c = cost_of(&j, &r);
    assert_true(c.pp_s > c.compute_s / 8 && c.pp_s < c.compute_s / 4); // one bubble
    // More ranks than devices, or nothing known of what joins them.
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
    double params = (double)intra_cost_count(&model, &j.trainable).trainable;
    struct intra_cost none = cost_of(&j, &r), c;
    assert_true(none.copy_s == 0 && none.outer_bytes == 0);
    j.outer = true;
    r.device.down = 1e6; // the slower way
    c = cost_of(&j, &r);
    near(c.copy_s, 4 * params / 1e6, 1e-3, "copies");
    assert_true(c.outer_bytes == 0 && c.device_bytes == none.device_bytes);
    j.outer_device = true;
    c = cost_of(&j, &r);
    assert_true(c.copy_s == 0 && c.outer_bytes > 20 * params && c.outer_bytes < 26 * params);
    near(c.device_bytes, none.device_bytes + c.outer_bytes, 1e-9, "with the exchange's state");
}

// Less device memory: recomputation or smaller micro-batches, then nothing; likewise of the host's.
static void test_choice(void **state) {
    (void)state;
    struct intra_rates r = even_rates();
    struct intra_cost_job j = device_job(1, 1, 1, 1, 16);
    struct intra_cost_choice c = {.ranks = 1, .sequences = 16, .memory = 1e9, .device_memory = 1e9};
    struct intra_cost cost;
    assert_true(intra_cost_choose(&c, &r, &j, &cost));
    double most = cost.device_bytes, workspace = cost.workspace_bytes;
    c.device_memory = workspace + 0.7 * (most - workspace);
    assert_true(intra_cost_choose(&c, &r, &j, &cost) && cost.device_bytes <= c.device_memory);
    c.device_memory = workspace;
    assert_false(intra_cost_choose(&c, &r, &j, &cost));
    c.device_memory = 1e9;
    c.memory = 1e6;
    assert_false(intra_cost_choose(&c, &r, &j, &cost));
}

// The planner's part: who is on a device, in which type, with how much of it.
static void test_places(void **state) {
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
        for (int k = 0; k < AGENT_PROFILE_CODECS; k++)
            sites[i].profile.codecs[k] = (struct inter_wan_codec){"int4", 4, 0.1, 1e9, 1e9, 1};
    }
    sites[4].profile.rates.device.count = 0;
    assert_int_equal(agent_planner_run(&job, 0, sites, &link, 0, &p), NEB_OK);
    assert_true(p.clusters[0].job.device && p.clusters[0].job.type == KERN_BF16 &&
                p.clusters[0].job.outer_device);
    assert_true(p.clusters[1].job.device); // auto, and there is one
    assert_false(p.clusters[2].job.device);
    assert_true(p.clusters[3].job.device && p.clusters[3].job.type == KERN_F32 &&
                !p.clusters[3].job.outer_device && p.clusters[3].cost.copy_s > 0);
    assert_true(p.clusters[4].no_device && !p.clusters[4].job.device && !p.clusters[0].no_device);
    struct intra_cost c = p.clusters[1].cost;
    // As many ranks as devices, where that is free and pays.
    sites[0].profile.rates.device.count = 2;
    sites[0].profile.rates.device.link = 1e12;
    assert_int_equal(agent_planner_run(&job, 0, sites, &link, AGENT_AUTO_MESH, &p), NEB_OK);
    struct intra_mesh_config m = p.clusters[0].job.mesh;
    assert_int_equal(m.dp * m.pp * m.tp, 2);
    // The exchange's state goes to the host where the device has no room for it.
    sites[1].profile.rates.device.memory = (c.device_bytes - c.outer_bytes / 2) / 0.94;
    assert_int_equal(agent_planner_run(&job, 0, sites, &link, 0, &p), NEB_OK);
    assert_true(p.clusters[1].fits && p.clusters[1].job.device && !p.clusters[1].job.outer_device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seconds),  cmocka_unit_test(test_meshes),
        cmocka_unit_test(test_exchange), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
