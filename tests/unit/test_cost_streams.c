// SPDX-License-Identifier: Apache-2.0
// Plans of modes rtd and distill: the cost of a side's step, compared with a real model and with an
// ordinary step, on processors and on a device; how much a stream carries; which cluster gets which
// role; bytes of labels.
#include "agent/plan/planner_streams.h"
#include "agent/train/label_bytes.h"
#include "inter/outer/outer.h"
#include "tests/unit/cost_fixture.h"

#include <malloc.h>
#include <string.h>

static struct intra_rates even_rates(double speed) { return even_host(1e9 * speed); }

// FLOPs and memory of sides, on processors or on a device.
static void sides(bool device) {
    struct intra_rates r = even_rates(1);
    struct intra_cost_job j = mesh_job(1, 1, 1, 4, 3);
    struct intra_cost_side all = {.tokens = 128, .length = 32, .targets = 128, .learns = true};
    struct intra_cost whole, side, less;
    double logits = 512 * 64; // of one position
    r.device = even_device(2e9);
    j.device = device;
    intra_cost_step(&j, NULL, &r, &whole);
    intra_cost_step(&j, &all, &r, &side);
    near(side.flops, whole.flops, 1e-9, "all positions count: an ordinary step");
    near(side.step_s, whole.step_s, 1e-6, "as long as an ordinary step");
    near(side.host_bytes, whole.host_bytes, 1e-3, "memory of an ordinary step");
    assert_true(side.device_bytes == whole.device_bytes);
    // few positions meet the output layer: each of the others saves 6 V d
    struct intra_cost_side few = all;
    few.soft_k = 1;
    few.targets = 100; // the gather of so many positions does not pay
    intra_cost_step(&j, &few, &r, &less);
    near(less.flops, side.flops, 1e-9, "all positions, without a gather");
    few.targets = 20;
    intra_cost_step(&j, &few, &r, &less);
    near(side.flops - less.flops, 3 * 101 * 6.0 * logits, 0.1, "positions without a target");
    // each position whose token is drawn needs one product more
    few.again = 20;
    intra_cost_step(&j, &few, &r, &side);
    near(side.flops - less.flops, 3 * 20 * 2.0 * logits, 1e-9, "draws");
    // a discriminator has one score per position, and no product with the vocabulary
    struct intra_cost_job scores = j;
    scores.model.head = INTRA_HEAD_RTD;
    intra_cost_step(&scores, &all, &r, &side);
    near(whole.flops - side.flops, 3 * 128 * 6.0 * logits, 1e-9, "no logits");
    // a frozen teacher: a third of the products; no gradients, no moments, and one block's memory
    struct intra_cost_side looks = {
        .tokens = 128, .length = 32, .again = 60, .labels = true, .soft_k = 64};
    intra_cost_step(&j, &looks, &r, &side);
    assert_true(side.update_s == 0 && side.optim_bytes == 0 && side.copy_bytes == 0);
    near(side.flops, whole.flops / 3 - 3 * (128 - 60) * 2.0 * logits, 0.03, "forward, and labels");
    near(side.params_bytes, 4.0 * (double)intra_cost_count(&model, &j.trainable).all, 0.05,
         "parameters");
    j.model.n_layers *= 2; // no block is kept after a forward pass
    intra_cost_step(&j, &looks, &r, &less);
    near(less.acts_bytes, side.acts_bytes, 0.1, "twice as deep");
}

static void test_sides(void **state) {
    (void)state;
    sides(false);
    sides(true);
}

// The memory of a frozen teacher is what a real one allocates.
static void test_frozen_memory(void **state) {
    (void)state;
    struct intra_cost_job j = mesh_job(1, 1, 1, 16, 1);
    struct intra_cost_side looks = {.tokens = 512, .length = 32};
    struct intra_cost cost;
    struct intra_model *m = NULL;
    struct intra_device *d = NULL;
    struct kern *K = NULL;
    intra_cost_memory(&j, &looks, &cost);
    struct mallinfo2 x = mallinfo2();
    double before = (double)x.uordblks + (double)x.hblkhd;
    assert_int_equal(kern_cpu_create(1, &K), NEB_OK);
    assert_int_equal(intra_model_layout(&model, &j.trainable, &m), NEB_OK);
    assert_int_equal(intra_model_allocate(m, false), NEB_OK);
    assert_int_equal(intra_device_on_host(K, m, 16, 32, false, false, &d), NEB_OK);
    x = mallinfo2();
    if (before > 0) // sanitizers have their own allocator
        near(cost.rank_bytes, (double)x.uordblks + (double)x.hblkhd - before, 0.03, "a teacher");
    intra_device_destroy(&d);
    intra_model_destroy(&m);
    kern_destroy(&K);
}

static void test_flow(void **state) {
    (void)state;
    struct inter_wan_path p = {.bits_s = 8e6, .rtt_s = 0.1, .members = 2, .connections = 2};
    struct inter_stream_load l = {
        .producer_s = 0.2, .consumer_s = 0.05, .bytes = 1000, .window = 16, .streams = 1};
    struct inter_stream_flow f;
    inter_stream_cost(&p, &l, &f);
    assert_int_equal(f.bound, INTER_STREAM_BOUND_PRODUCER);
    near(f.rate, 5, 1e-9, "the producer's rate");
    near(f.consumer_wait, 0.75, 1e-9, "the consumer waits");
    assert_true(f.producer_wait < 1e-9 && f.sent_s > 5000 && f.sent_s < 10000);
    l.producer_s = 0.01;
    inter_stream_cost(&p, &l, &f);
    assert_int_equal(f.bound, INTER_STREAM_BOUND_CONSUMER);
    near(f.producer_wait, 0.8, 1e-9, "the producer waits");
    // larger than the line carries: about 0.1 s each at 1 MB/s
    l.bytes = 1e5;
    inter_stream_cost(&p, &l, &f);
    assert_int_equal(f.bound, INTER_STREAM_BOUND_LINK);
    assert_true(f.rate < 10 && f.rate > 8 && f.busy > 0.85 && f.busy < 1);
    l.streams = 3; // over one uplink
    inter_stream_cost(&p, &l, &f);
    assert_true(f.rate < 10.0 / 3 && f.rate > 8.0 / 3);
    // a long path with a window of one batch; a window that may widen does so as long as this helps
    l = (struct inter_stream_load){
        .producer_s = 0.01, .consumer_s = 0.01, .bytes = 100, .window = 1, .streams = 1};
    p.rtt_s = 1;
    inter_stream_cost(&p, &l, &f);
    assert_int_equal(f.bound, INTER_STREAM_BOUND_WINDOW);
    assert_true(f.rate < 1 && f.rate > 0.9);
    l.window_max = 1024;
    inter_stream_cost(&p, &l, &f);
    assert_true(f.window > 64 && f.window < 1024 && f.bound != INTER_STREAM_BOUND_WINDOW);
}

static void test_label_bytes(void **state) {
    (void)state;
    double few, many, large;
    assert_int_equal(agent_label_bytes(4, 4096, 500, &few), NEB_OK);
    assert_int_equal(agent_label_bytes(8, 4096, 500, &many), NEB_OK);
    assert_int_equal(agent_label_bytes(8, 32768, 500, &large), NEB_OK);
    // bounds from trained teachers at k 8 (compress/softlabel.h)
    assert_true(few < 0.7 * many && many > 12 && many < 20 && large > many && large < 23);
    assert_int_equal(agent_label_bytes(0, 4096, 500, &few), NEB_OK);
    assert_true(few == 0);
}

static struct agent_job job_of(enum agent_mode mode, int32_t clusters) {
    struct agent_job j = {.mode = mode,
                          .steps = 100,
                          .model = model,
                          .trainable = {.mode = INTRA_TRAIN_FULL},
                          .seq_len = 32,
                          .batch = 4,
                          .accumulate = 1,
                          .n_clusters = clusters,
                          .sync.fragments = 1};
    j.model.vocab = 0;
    j.rtd = (struct agent_rtd_config){
        .mask_rate = 0.15f, .generator_steps = 1, .discriminator_steps = 1, .ahead = 16};
    j.rtd.shape = (struct agent_shape){1, 16, 2, 32};
    j.distill = (struct agent_distill_config){.k = 8, .ahead = 16, .learn = true};
    j.distill.shape = (struct agent_shape){.n_layers = 40};
    for (int32_t i = 0; i < clusters; i++) {
        j.clusters[i].mesh = (struct intra_mesh_config){1, 1, 1};
        j.clusters[i].role = mode == AGENT_MODE_RTD
                                 ? i ? AGENT_ROLE_DISCRIMINATOR : AGENT_ROLE_GENERATOR
                             : i ? AGENT_ROLE_STUDENT
                                 : AGENT_ROLE_TEACHER;
    }
    return j;
}

static void test_role_assignment(void **state) {
    (void)state;
    static struct agent_job j; // large
    static struct agent_site sites[3];
    const struct agent_planner_text text = {
        .vocab = 512, .tokens = 100, .length = 25, .targets = 50, .id_bytes = 1, .known = true};
    const struct agent_wan link = {100e6, 0.02, 0};
    bool all[3] = {true, true, true}, none[3] = {false};
    enum agent_role roles[3];
    struct agent_planner_streams x;
    for (int i = 0; i < 3; i++)
        sites[i] =
            (struct agent_site){.profile = {.rates = even_rates(i == 1 ? 10 : 1)}, .share = 1};
    // the larger model goes to the fast cluster: the discriminator, the deep teacher
    j = job_of(AGENT_MODE_RTD, 2);
    assert_true(agent_planner_cast(&j, &text, sites, all, roles));
    assert_true(roles[0] == AGENT_ROLE_GENERATOR && roles[1] == AGENT_ROLE_DISCRIMINATOR);
    j.clusters[0].role = AGENT_ROLE_DISCRIMINATOR; // fixed roles stay
    j.clusters[1].role = AGENT_ROLE_GENERATOR;
    assert_true(agent_planner_cast(&j, &text, sites, none, roles));
    assert_true(roles[0] == AGENT_ROLE_DISCRIMINATOR);
    double before, after;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    before = x.flow.rate;
    j = job_of(AGENT_MODE_RTD, 2);
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    after = x.flow.rate;
    assert_true(after > 2 * before && x.producer == 0 && x.sides[0].role == AGENT_ROLE_GENERATOR);
    j = job_of(AGENT_MODE_DISTILL, 3);
    assert_true(agent_planner_cast(&j, &text, sites, all, roles));
    assert_true(roles[1] == AGENT_ROLE_TEACHER && roles[0] == AGENT_ROLE_STUDENT);
    // unless it does not fit there; if it fits nowhere, no role is given
    sites[1].profile.rates.memory = 1e6;
    // the cluster cannot learn there either
    assert_true(!agent_planner_cast(&j, &text, sites, all, roles));
    for (int i = 0; i < 3; i++)
        sites[i].profile.rates.memory = 1e6;
    assert_true(!agent_planner_cast(&j, &text, sites, all, roles));
}

// Which side is on a device and in which type; memory and roles follow from it.
static void test_devices(void **state) {
    (void)state;
    static struct agent_job j; // large
    static struct agent_site sites[3];
    const struct agent_planner_text text = {
        .vocab = 512, .tokens = 100, .length = 25, .targets = 50, .id_bytes = 1, .known = true};
    const struct agent_wan link = {100e6, 0.02, 0};
    bool all[3] = {true, true, true};
    enum agent_role roles[3];
    struct agent_planner_streams x;
    for (int i = 0; i < 3; i++) {
        sites[i] = (struct agent_site){.profile = {.rates = even_rates(1)}, .share = 1};
        for (int k = 0; cmp_variant(k, CMP_PLANNED); k++)
            sites[i].profile.codecs[k] = (struct inter_wan_codec){
                "int4", 4, 0.1, 1, false, {{1e9, 1e9, 1e9}, {2e9, 2e9, 2e9}}};
    }
    sites[0].profile.rates.device = sites[2].profile.rates.device = even_device(1e10);
    // auto takes a known device, in bf16; cuda without a known device is costed as processors
    j = job_of(AGENT_MODE_RTD, 2);
    j.clusters[1].device = AGENT_DEVICE_CUDA;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    assert_true(x.sides[0].job.device && x.sides[0].job.type == KERN_BF16 && x.sides[0].fits &&
                !x.sides[0].no_device && x.sides[0].cost.device_bytes > 0);
    assert_true(!x.sides[1].job.device && x.sides[1].no_device &&
                x.sides[1].cost.device_bytes == 0);
    assert_int_equal(agent_planner_roles_known(&j, sites), NEB_ERR_LIMIT);
    j.clusters[1].device = AGENT_DEVICE_AUTO;
    assert_int_equal(agent_planner_roles_known(&j, sites), NEB_OK);
    double quick = x.sides[0].cost.step_s;
    j.clusters[0].precision = AGENT_PRECISION_FP32;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    assert_true(x.sides[0].job.type == KERN_F32 && x.sides[0].cost.step_s > 2 * quick);
    j.clusters[0].device = AGENT_DEVICE_CPU;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    assert_true(!x.sides[0].job.device && x.sides[0].cost.step_s > 20 * quick);
    // both sides in one process: on processors, even with a device
    j.clusters[0].device = AGENT_DEVICE_AUTO;
    j.sync.scheme = AGENT_SCHEME_SYNCHRONOUS;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    assert_true(!x.sides[0].job.device && !x.sides[0].no_device);
    // the larger model goes to the device: this is the discriminator, or the deep teacher
    j = job_of(AGENT_MODE_RTD, 2);
    assert_true(agent_planner_cast(&j, &text, sites, all, roles));
    assert_true(roles[0] == AGENT_ROLE_DISCRIMINATOR && roles[1] == AGENT_ROLE_GENERATOR);
    j.clusters[0].device = AGENT_DEVICE_CPU; // but not to a device that it may not use
    sites[1].profile.rates = even_rates(1.5);
    assert_true(agent_planner_cast(&j, &text, sites, all, roles));
    assert_true(roles[1] == AGENT_ROLE_DISCRIMINATOR);
    sites[1].profile.rates = even_rates(1);
    j = job_of(AGENT_MODE_DISTILL, 3);
    j.distill.k = 8;
    sites[2].device_share = 0.1; // many clusters share this device
    assert_true(agent_planner_cast(&j, &text, sites, all, roles));
    assert_int_equal(roles[0], AGENT_ROLE_TEACHER);
    sites[2].device_share = 1;
    sites[0].profile.rates.device.count = 0;
    assert_true(agent_planner_cast(&j, &text, sites, all, roles));
    assert_int_equal(roles[2], AGENT_ROLE_TEACHER);
    sites[0].profile.rates.device.count = 1;
    // a frozen teacher fits where a learning one does not
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    double learns = x.sides[0].cost.device_bytes, optim = x.sides[0].cost.optim_bytes;
    assert_true(x.sides[0].fits && optim > 0);
    sites[0].profile.rates.device.memory = (learns - optim / 2) / 0.94;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    assert_false(x.sides[0].fits);
    j.distill.learn = false;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    assert_true(x.sides[0].fits && x.sides[0].job.frozen && x.sides[0].cost.optim_bytes == 0);
    j.distill.learn = true;
    sites[0].profile.rates.device.memory = 1e9;
    // federated students keep the exchange's state on the device if that leaves spare room
    for (int i = 0; i < 3; i++)
        j.clusters[i].role = i == 2 ? AGENT_ROLE_TEACHER : AGENT_ROLE_STUDENT;
    j.distill.federate = true;
    j.sync.interval = 10;
    j.sync.fragments = j.sync.early_interval = 1;
    j.sync.overlap = 2;
    snprintf(j.sync.codec, sizeof j.sync.codec, "int4");
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    assert_true(x.rounds.n == 2 && x.sides[0].job.outer_device && x.sides[0].cost.outer_bytes > 0 &&
                x.sides[0].cost.gather_s == 0);
    assert_true(!x.sides[1].job.outer_device && x.sides[1].cost.outer_bytes == 0 &&
                x.sides[1].cost.exchange_bytes > 0);
    assert_true(!x.sides[2].job.outer_device && x.sides[2].cost.outer_bytes == 0); // the teacher
    double both = x.sides[0].cost.device_bytes;
    sites[0].profile.rates.device.memory = (both + INTER_OUTER_SPARE_BYTES / 2) / 0.94;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    assert_true(x.sides[0].fits && !x.sides[0].job.outer_device && x.sides[0].cost.gather_s > 0);
    j.clusters[0].outer_state = AGENT_OUTER_DEVICE;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    assert_true(x.sides[0].fits && x.sides[0].job.outer_device);
    j.clusters[0].outer_state = AGENT_OUTER_HOST;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &x), NEB_OK);
    assert_true(x.sides[0].fits && !x.sides[0].job.outer_device);
}

// Students share their teacher's time. Students that need not keep step have their own pace.
static void test_students(void **state) {
    (void)state;
    static struct agent_job j; // large
    static struct agent_site sites[3];
    const struct agent_planner_text text = {
        .vocab = 512, .tokens = 100, .length = 25, .targets = 50, .id_bytes = 1, .known = true};
    const struct agent_wan link = {100e6, 0.02, 0};
    struct agent_planner_streams one, two;
    for (int i = 0; i < 3; i++)
        sites[i] = (struct agent_site){.profile = {.rates = even_rates(i + 1)}, .share = 1};
    j = job_of(AGENT_MODE_DISTILL, 2);
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &one), NEB_OK);
    j = job_of(AGENT_MODE_DISTILL, 3);
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &two), NEB_OK);
    assert_int_equal(one.flow.bound, INTER_STREAM_BOUND_PRODUCER);
    near(two.flow.rate, one.flow.rate / 2, 1e-9, "a teacher with two students");
    assert_true(two.sides[2].rate == two.sides[1].rate && two.sides[2].wait > two.sides[1].wait);
    near(two.sides[0].rate, 2 * two.flow.rate, 1e-9, "batches for both students");
    j.distill.relay = true; // the first student passes the labels on
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &two), NEB_OK);
    near(two.flow.rate, one.flow.rate, 1e-9, "a relay");
    j.distill.relay = j.distill.learn = false;
    j.distill.shape.n_layers = 1;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &two), NEB_OK);
    assert_int_equal(two.flow.bound, INTER_STREAM_BOUND_CONSUMER);
    assert_true(two.sides[2].rate > two.sides[1].rate); // its machine is three times as fast
    // two batches per step of the generator: half of its training
    j = job_of(AGENT_MODE_RTD, 2);
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &one), NEB_OK);
    j.rtd.discriminator_steps = 2;
    assert_int_equal(agent_planner_streams(&j, &text, sites, &link, &two), NEB_OK);
    assert_true(two.sides[0].batch_s < one.sides[0].batch_s &&
                two.sides[0].batch_s > 0.4 * one.sides[0].batch_s && two.batches == 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sides),       cmocka_unit_test(test_flow),
        cmocka_unit_test(test_label_bytes), cmocka_unit_test(test_frozen_memory),
        cmocka_unit_test(test_devices),     cmocka_unit_test(test_role_assignment),
        cmocka_unit_test(test_students)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
