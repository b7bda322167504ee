// SPDX-License-Identifier: Apache-2.0
// agent/planner: the values that the plan chose are written into the job, and no others.
#include "agent/base/log.h"
#include "agent/job/tune.h"
#include "agent/plan/planner.h"
#include "tests/unit/cost_fixture.h"

#include <stdlib.h>
#include <string.h>

static const struct intra_mesh_config first = {.dp = 2, .pp = 1, .tp = 1},
                                      second = {.dp = 1, .pp = 2, .tp = 4};

static void chosen(struct agent_planner *p) {
    memset(p, 0, sizeof *p);
    p->n = p->n_codecs = 2;
    snprintf(p->codecs[0].name, sizeof p->codecs[0].name, "int8");
    snprintf(p->codecs[1].name, sizeof p->codecs[1].name, "topk:512/4096");
    p->wan.interval = 37;
    p->wan.overlap = 5;
    p->wan.codec = 1;
    p->clusters[0].job =
        (struct intra_cost_job){.mesh = first, .batch = 6, .micros = 4, .recompute = true};
    p->clusters[1].job = p->clusters[0].job;
    p->clusters[1].job.mesh = second;
}

static void written(struct agent_job *j) {
    memset(j, 0, sizeof *j);
    j->n_clusters = 2;
    j->batch = 8;
    j->accumulate = 3;
    j->sync.interval = 10;
    j->sync.overlap = 1;
    snprintf(j->sync.codec, sizeof j->sync.codec, "int4");
    j->clusters[0].mesh = j->clusters[1].mesh = (struct intra_mesh_config){1, 1, 1};
}

static void check_job(const struct agent_job *j, int batch, int accumulate, bool recompute,
                      int interval, int overlap, const char *codec) {
    assert_int_equal(j->batch, batch);
    assert_int_equal(j->accumulate, accumulate);
    assert_int_equal(j->recompute, recompute);
    assert_int_equal(j->sync.interval, interval);
    assert_int_equal(j->sync.overlap, overlap);
    assert_string_equal(j->sync.codec, codec);
}

static void same_mesh(const struct intra_mesh_config *a, const struct intra_mesh_config *b) {
    assert_true(a->dp == b->dp && a->pp == b->pp && a->tp == b->tp);
}

static void test_all_is_taken_over(void **state) {
    (void)state;
    static struct agent_planner p; // large
    static struct agent_job j;
    const uint32_t all = AGENT_AUTO_BATCH | AGENT_AUTO_RECOMPUTE | AGENT_AUTO_INTERVAL |
                         AGENT_AUTO_OVERLAP | AGENT_AUTO_CODEC | AGENT_AUTO_MESH;
    chosen(&p);
    written(&j);
    j.autos = all;
    agent_planner_apply(&p, all, &j);
    check_job(&j, 6, 4, true, 37, 5, "topk:512/4096");
    same_mesh(&j.clusters[0].mesh, &first);
    same_mesh(&j.clusters[1].mesh, &second);
    assert_int_equal(j.autos, 0);
}

// The first cluster's choice becomes the choice of the job. The other cluster gets a key only where
// its choice differs.
static void test_clusters_differ(void **state) {
    (void)state;
    static struct agent_planner p;
    static struct agent_job j;
    chosen(&p);
    p.clusters[1].job.batch = 3;
    p.clusters[1].job.micros = 8;
    p.clusters[1].job.recompute = false;
    written(&j);
    j.autos = AGENT_AUTO_BATCH | AGENT_AUTO_RECOMPUTE;
    agent_planner_apply(&p, j.autos, &j);
    assert_true(j.batch == 6 && j.accumulate == 4 && j.recompute);
    assert_int_equal(j.clusters[0].batch, 0);
    assert_int_equal(j.clusters[0].recompute, AGENT_RECOMPUTE_AS_JOB);
    assert_int_equal(j.clusters[1].batch, 3);
    assert_int_equal(j.clusters[1].recompute, AGENT_RECOMPUTE_OFF);
    // not for an attached trainer, which cuts its own steps, and not for keys with a fixed value
    written(&j);
    j.clusters[1].launcher = AGENT_LAUNCHER_ATTACH;
    agent_planner_apply(&p, AGENT_AUTO_BATCH, &j);
    assert_int_equal(j.clusters[1].batch, 0);
    written(&j);
    agent_planner_apply(&p, 0, &j);
    assert_true(j.batch == 8 && j.accumulate == 3 && !j.clusters[1].batch);
}

static void test_fixed_keys_stay(void **state) {
    (void)state;
    static struct agent_planner p;
    static struct agent_job j;
    const struct intra_mesh_config one = {1, 1, 1};
    chosen(&p);
    p.wan.interval = 0; // there are no exchanges
    written(&j);
    j.clusters[1].mesh_auto = true;
    agent_planner_apply(&p, 0, &j);
    check_job(&j, 8, 3, false, 10, 1, "int4");
    same_mesh(&j.clusters[0].mesh, &one);
    same_mesh(&j.clusters[1].mesh, &second); // the job says mesh: auto for this cluster
    assert_false(j.clusters[1].mesh_auto);
}

static int ranks(const struct intra_mesh_config *m) { return m->dp * m->pp * m->tp; }

// mesh: auto: a launcher with its own hosts gets as many ranks as the cluster or the caller names.
// One machine gets the fastest number of ranks. Here threads gain nothing.
static void test_ranks(void **state) {
    (void)state;
    static struct agent_job j; // large
    static struct agent_site sites[AGENT_CLUSTERS_MAX];
    static struct agent_planner p;
    static const char text[] =
        "job: j\nsteps: 100\n"
        "model: {vocab: 512, n_layers: 4, d_model: 64, n_heads: 8, n_kv_heads: 4, d_ff: 160}\n"
        "data: {corpus: c, seq_len: 32, batch: 1, accumulate: 8}\noptim: {lr: 1e-3}\n"
        "sync: {scheme: none}\n"
        "clusters: [{name: a, mesh: auto, launcher: mpirun, ranks: 4},\n"
        "  {name: b, mesh: auto, launcher: slurm, ranks: 8}, {name: c, mesh: auto},\n"
        "  {name: d, mesh: auto, launcher: mpirun, ranks: 7}]\n";
    const struct agent_wan link = {1e9, 1e-3, 0};
    assert_int_equal(agent_job_parse(text, strlen(text), "job.yaml", &j), NEB_OK);
    for (int i = 0; i < j.n_clusters; i++) {
        sites[i] = (struct agent_site){.share = 1};
        sites[i].profile.rates = even_host(1e9);
        sites[i].profile.rates.processors = 4;
        for (int k = 0; k < INTRA_COST_WIDTHS; k++) // four threads are no faster than one
            sites[i].profile.rates.one[KERN_F32][k] = 1e9;
    }
    assert_int_equal(agent_planner_run(&j, 0, sites, &link, j.autos, &p), NEB_OK);
    assert_int_equal(ranks(&p.clusters[0].job.mesh), 4);
    assert_int_equal(ranks(&p.clusters[1].job.mesh), 8);
    assert_int_equal(ranks(&p.clusters[2].job.mesh), 4);
    assert_true(p.clusters[0].fits && p.clusters[1].fits && p.clusters[2].fits);
    assert_true(!p.clusters[0].no_mesh && !p.clusters[2].no_mesh);
    // Seven divides neither the sequences nor the model, and less memory would not help.
    assert_true(p.clusters[3].no_mesh == 7 && !p.clusters[3].fits);
    sites[0].ranks = 2;
    sites[2].ranks = 1;
    assert_int_equal(agent_planner_run(&j, 0, sites, &link, j.autos, &p), NEB_OK);
    assert_int_equal(ranks(&p.clusters[0].job.mesh), 2);
    assert_int_equal(ranks(&p.clusters[2].job.mesh), 1);
    // The mesh has the named number of ranks now, and the job that is sent is valid.
    j.n_clusters = p.n = 3;
    agent_planner_apply(&p, j.autos, &j);
    assert_true(ranks(&j.clusters[1].mesh) == 8 && !j.clusters[1].ranks &&
                !j.clusters[1].mesh_auto);
    json_t *spec = agent_job_to_json(&j);
    assert_int_equal(agent_job_from_json(spec, &j), NEB_OK);
    assert_int_equal(agent_cluster_ranks(&j.clusters[1]), 8);
    json_decref(spec);
}

// The choice keeps codec and interval within the job's limits, or at its fixed values. If no choice
// is possible, the job is refused.
static void test_within_limits_of_job(void **state) {
    (void)state;
    static struct agent_job j; // large
    static struct agent_site sites[AGENT_CLUSTERS_MAX];
    static struct agent_planner p;
    static const char text[] =
        "job: j\nsteps: 1000\n"
        "model: {vocab: 512, n_layers: 4, d_model: 64, n_heads: 8, n_kv_heads: 4, d_ff: 160}\n"
        "data: {corpus: c, seq_len: 32, batch: 1, accumulate: 8}\noptim: {lr: 1e-3}\n"
        "sync: {codec: auto, interval: auto, overlap: auto,\n"
        "       tune: {mode: auto, finest: int4, coarsest: int2}}\n"
        "clusters: [{name: a}, {name: b}]\n";
    const uint32_t all = AGENT_AUTO_INTERVAL | AGENT_AUTO_OVERLAP | AGENT_AUTO_CODEC;
    const struct agent_wan fast = {10e9, 1e-4, 0}, far = {1e9, 2, 0};
    assert_int_equal(agent_job_parse(text, strlen(text), "job.yaml", &j), NEB_OK);
    for (int i = 0; i < 2; i++) {
        sites[i] = (struct agent_site){.share = 1};
        sites[i].profile.rates = even_host(1e9);
        for (int k = 0; cmp_variant(k, CMP_PLANNED); k++) {
            const struct cmp_variant *v = cmp_variant(k, CMP_PLANNED);
            struct inter_wan_codec *c = &sites[i].profile.codecs[k];
            snprintf(c->name, sizeof c->name, "%s", v->name);
            c->density = v->density;
            c->rel_error = v->error;
            c->at[INTER_WAN_HOST] = (struct inter_wan_rates){1e9, 1e9, 1e9};
        }
    }
    assert_int_equal(agent_planner_run(&j, 0, sites, &fast, all, &p), NEB_OK);
    assert_true(agent_tune_admits(&j.sync.tune, p.codecs[p.wan.codec].name));
    agent_planner_apply(&p, all, &j);
    assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_OK);
    j.sync.tune.mode = AGENT_TUNE_FIXED;
    assert_int_equal(agent_planner_run(&j, 0, sites, &fast, all, &p), NEB_OK);
    // sync.tune: auto could not begin with this codec
    assert_true(p.codecs[p.wan.codec].density < 1 && !p.tuning.possible);
    assert_int_equal(agent_planner_run(&j, 0, sites, &far, all, &p), NEB_OK);
    assert_true(p.wan.overlap >= 10);
    j.sync.early_steps = 100;
    j.sync.early_interval = 10;
    assert_int_equal(agent_planner_run(&j, 0, sites, &far, all, &p), NEB_OK);
    assert_true(p.wan.overlap < 10);
    // Dense updates are too large and the run is too short for sparse ones: the value that the job
    // sets stays, if it sets one.
    j.steps = 20;
    j.model.d_model = j.model.d_ff = 32768;
    j.model.n_heads = 128;
    j.sync.interval = 20;
    j.sync.overlap = 0;
    snprintf(j.sync.codec, sizeof j.sync.codec, "topk:64/4096");
    for (int i = 0; i < 2; i++)
        sites[i].profile.rates.memory = 1e15;
    assert_int_equal(agent_planner_run(&j, 0, sites, &fast, all, &p), NEB_OK);
    assert_true(p.wan.interval == 20);
    assert_string_equal(p.codecs[p.wan.codec].name, "topk:64/4096");
    j.autos = AGENT_AUTO_CODEC;
    assert_int_equal(agent_planner_run(&j, 0, sites, &fast, all, &p), NEB_ERR_LIMIT);
}

// ---- choices that must not be made ----

static struct agent_job judged; // large
static struct agent_site judged_sites[AGENT_CLUSTERS_MAX];
static const struct agent_wan judged_link = {1e9, 1e-3, 0};
static char said[2048]; // all lines of warnings and errors

static void hear(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    if (level <= NEB_LOG_WARN)
        snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", text);
}

static struct intra_device_rates unlinked_devices(int count) {
    struct intra_device_rates r = even_device(1e12);
    r.count = count;
    r.link = r.link_s = 0;
    return r;
}

// Plans for two clusters; the arguments after paris describe the second one's machine. batch, sync
// and paris are keys of data, of sync and of that cluster.
static enum neb_status judge(const char *batch, const char *sync, const char *paris, int devices,
                             double link, double memory, bool assumed) {
    static struct agent_planner p;
    char text[1024];
    snprintf(text, sizeof text,
             "job: j\nsteps: 1000\n"
             "model: {vocab: 512, n_layers: 4, d_model: 64, n_heads: 8, n_kv_heads: 4, d_ff: 160}\n"
             "data: {corpus: c, seq_len: 32, %s}\noptim: {lr: 1e-3}\n"
             "sync: {%s}\nclusters: [{name: a}, {name: paris%s}]\n",
             batch, sync, paris);
    memset(&judged, 0, sizeof judged);
    assert_int_equal(agent_job_parse(text, strlen(text), "job.yaml", &judged), NEB_OK);
    for (int i = 0; i < 2; i++) {
        struct agent_site *s = &judged_sites[i];
        *s = (struct agent_site){.share = 1};
        s->profile.rates = even_host(1e12);
        for (int k = 0; cmp_variant(k, CMP_PLANNED); k++) {
            snprintf(s->profile.codecs[k].name, sizeof s->profile.codecs[k].name, "int%d",
                     k % 2 ? 8 : 4);
            s->profile.codecs[k].density = 1;
            s->profile.codecs[k].at[0] = s->profile.codecs[k].at[1] =
                (struct inter_wan_rates){1e9, 1e9, 1e9};
        }
    }
    struct agent_site *s = &judged_sites[1];
    s->assumed = assumed;
    s->profile.rates.link = link;
    s->profile.rates.memory = memory;
    s->profile.rates.device = devices ? unlinked_devices(devices) : (struct intra_device_rates){0};
    said[0] = 0;
    neb_log_set_sink(hear, NULL);
    enum neb_status st =
        agent_planner_run(&judged, 0, judged_sites, &judged_link, judged.autos, &p);
    if (st == NEB_OK)
        st = agent_planner_judge(&judged, judged_sites, &p);
    neb_log_set_sink(NULL, NULL);
    return st;
}
static void hears(const char *text) {
    if (!strstr(said, text))
        fail_msg("not '%s' but: %s", text, said);
}

// Without known step times every choice looks equal: the planner refuses to choose.
static void test_unknown_seconds(void **state) {
    (void)state;
    static const char written[] = "batch: 8", mesh[] = ", mesh: {dp: 8}";
    static const char *const keys[] = {"interval: auto", "overlap: auto", "codec: auto"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) { // no link is known between the ranks
        assert_int_equal(judge(written, keys[i], mesh, 0, 0, 1e9, false), NEB_ERR_LIMIT);
        hears("paris's steps is not known: the link between two ranks has not been measured");
        hears("name the file in clusters.profile");
        assert_non_null(strstr(said, "sync."));
        assert_int_equal(judge(written, keys[i], mesh, 0, 1e9, 1e9, false), NEB_OK);
    }
    assert_int_equal(judge("batch: auto, accumulate: 8", "codec: int4", mesh, 0, 0, 1e9, true),
                     NEB_ERR_LIMIT);
    hears("data.batch: auto cannot be decided, because the time of cluster paris's");
    // As many devices as ranks without a link between them; then too few devices.
    assert_int_equal(judge(written, keys[0], ", device: cuda, mesh: {dp: 8}", 8, 1e9, 1e9, false),
                     NEB_ERR_LIMIT);
    hears("the link between two devices has not been measured");
    assert_int_equal(judge(written, keys[0], ", device: cuda, mesh: {dp: 8}", 1, 1e9, 1e9, false),
                     NEB_ERR_LIMIT);
    hears("each of its 8 ranks needs a device, and the known machine has 1");
    // The planner does not refuse where another cluster's machine decides, or where the job leaves
    // nothing open.
    judge(written, "codec: int4", mesh, 0, 0, 1e9, false);
    assert_string_equal(said, "");
}

// If a cluster's memory is not known, the planner assumes that of this machine. This is no reason
// to refuse.
static void test_memory_of_another(void **state) {
    (void)state;
    static const char one[] = "interval: auto";
    assert_int_equal(judge("batch: 8", one, "", 0, 1e9, 1e6, false), NEB_ERR_LIMIT);
    hears("cluster paris has too little memory for this model with the job's");
    assert_int_equal(judge("batch: 8", one, "", 0, 1e9, 1e6, true), NEB_OK);
    hears("cluster paris: this machine has too little memory for its part");
    assert_int_equal(judge("batch: auto, accumulate: 8", "interval: auto}\nrecompute: auto\n#",
                           ", mesh: auto", 0, 1e9, 1e6, false),
                     NEB_ERR_LIMIT);
    hears("with any choice");
    assert_int_equal(judge("batch: 8", one, ", launcher: attach, threads: 1", 0, 1e9, 1e6, false),
                     NEB_OK);
    hears("cluster paris: a trainer attaches, and the time of its steps is not known");
}

// Attached programs train an 8B model. The planner does not compute their memory or their steps,
// but it computes the memory of the exchange. This machine's memory is no reason to refuse. It
// computes the bytes that cross the WAN, and with --step the time.
static void test_attached(void **state) {
    (void)state;
    static const char text[] =
        "job: j\nsteps: 1000\n"
        "model: {vocab: 128256, n_layers: 32, d_model: 4096, n_heads: 32, n_kv_heads: 8, d_ff: "
        "14336}\ndata: {corpus: c, seq_len: 4096, batch: 32}\noptim: {lr: 1e-3}\n"
        "sync: {interval: 100, fragments: 8%s}\n"
        "clusters: [{name: a, launcher: attach}, {name: b, launcher: attach}]\n";
    static struct agent_planner p;
    for (int autos = 0; autos < 2; autos++) {
        char yaml[1024];
        snprintf(yaml, sizeof yaml, text, autos ? ", codec: auto" : "");
        // This machine has some GB of memory and no device.
        judge("batch: 8", "codec: int4", "", 0, 1e9, 4e9, false);
        memset(&judged, 0, sizeof judged);
        assert_int_equal(agent_job_parse(yaml, strlen(yaml), "job.yaml", &judged), NEB_OK);
        for (int known = 0; known < 2; known++) {
            judged_sites[0].step_s = known ? 2.5 : 0;
            said[0] = 0;
            neb_log_set_sink(hear, NULL);
            assert_int_equal(
                agent_planner_run(&judged, 0, judged_sites, &judged_link, judged.autos, &p),
                NEB_OK);
            enum neb_status st = agent_planner_judge(&judged, judged_sites, &p);
            neb_log_set_sink(NULL, NULL);
            assert_int_equal(st, autos && !known ? NEB_ERR_LIMIT : NEB_OK);
            if (st != NEB_OK)
                hears("sync.codec: auto cannot be decided, because a trainer attaches to");
            for (int i = 0; i < 2; i++) {
                const struct agent_planned *x = &p.clusters[i];
                assert_true(x->attached && x->fits && !x->no_device && !x->no_mesh);
                assert_true(x->cost.acts_bytes <= 0 && x->cost.flops <= 0);
                // the memory that libnebula holds: parameters, and four arrays for the exchange
                assert_true(x->cost.rank_bytes > 5 * 4 * 7e9 && x->cost.exchange_bytes > 16 * 7e9);
                assert_int_equal(x->guessed, known && i == 1);
                assert_true(known ? fabs(x->cost.step_s - 2.5) < 1e-9 : isnan(x->cost.step_s));
            }
            assert_true(known ? p.wall_s > 2500 : p.wall_s <= 0);
            assert_true(p.sent_bytes > 1e9);
            assert_int_equal(p.wan.interval, known ? 100 : 0);
        }
    }
    // A built-in trainer beside an attached one is planned as usual. The plan assumes that the
    // attached one is as slow.
    assert_int_equal(judge("batch: 8", "interval: 10", ", launcher: attach", 0, 1e9, 1e9, false),
                     NEB_OK);
    assert_int_equal(agent_planner_run(&judged, 0, judged_sites, &judged_link, 0, &p), NEB_OK);
    assert_true(!p.clusters[0].attached && p.clusters[0].cost.rank_bytes > 0);
    assert_true(p.clusters[1].guessed &&
                fabs(p.clusters[1].cost.step_s - p.clusters[0].cost.step_s) < 1e-12);
    assert_true(agent_planner_first(&p) == &p.clusters[0].job);
}

// A machine's processors do not decide the ranks and micro-batches for GPUs.
static void test_no_device(void **state) {
    (void)state;
    static const char cuda[] = ", device: cuda", fixed[] = "codec: int4";
    assert_int_equal(judge("batch: 8", fixed, ", device: cuda, mesh: auto", 0, 1e9, 1e9, true),
                     NEB_ERR_LIMIT);
    hears("clusters.mesh: auto cannot be decided, because the devices of cluster paris are not");
    assert_int_equal(judge("batch: auto, accumulate: 8", fixed, cuda, 0, 1e9, 1e9, true),
                     NEB_ERR_LIMIT);
    hears("data.batch: auto cannot be decided, because the devices of cluster paris are not");
    assert_int_equal(
        judge("batch: auto, accumulate: 8", fixed, ", device: cuda, batch: 4", 0, 1e9, 1e9, true),
        NEB_OK);
    assert_int_equal(judge("batch: 8", "interval: auto", cuda, 0, 1e9, 1e6, false), NEB_OK);
    hears("cluster paris: its devices are not known, so the plan uses the time");
    assert_int_equal(judge("batch: auto, accumulate: 8", fixed, cuda, 1, 1e9, 1e9, true), NEB_OK);
    assert_string_equal(said, "");
}

// Clusters of --local on a machine with `cards` devices. keys: of each cluster, up to a NULL.
static void deal(int cards, const char *visible, uint32_t free, const char *const *keys) {
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "job: j\nsteps: 1000\nmodel: {vocab: 512, n_layers: 4, d_model: 64, "
                     "n_heads: 8, n_kv_heads: 4, d_ff: 160}\ndata: {corpus: c, seq_len: 32, "
                     "batch: 8}\noptim: {lr: 1e-3}\nsync: {scheme: none}\nclusters:\n");
    for (int i = 0; keys[i]; i++) {
        n += snprintf(text + n, sizeof text - (size_t)n, "  - {name: c%d%s}\n", i, keys[i]);
        judged_sites[i] = (struct agent_site){.share = 1};
        judged_sites[i].profile.rates = even_host(1e12);
        judged_sites[i].profile.rates.device = unlinked_devices(cards);
        judged_sites[i].profile.rates.device.link = 1e12;
    }
    memset(&judged, 0, sizeof judged);
    assert_int_equal(agent_job_parse(text, strlen(text), "job.yaml", &judged), NEB_OK);
    if (visible)
        setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    else
        unsetenv("CUDA_VISIBLE_DEVICES");
    agent_planner_deal(&judged, free, judged_sites);
    unsetenv("CUDA_VISIBLE_DEVICES");
}
static void shares(double a, double b, double c) {
    const double want[] = {a, b, c};
    for (int i = 0; i < 3; i++)
        if (want[i] > 0 && judged_sites[i].device_share != want[i])
            fail_msg("cluster %d has %g of a device, not %g", i, judged_sites[i].device_share,
                     want[i]);
}

// Each cluster of --local has its own devices if there are enough, as local.c assigns them.
static void test_devices_of_local(void **state) {
    (void)state;
    static struct agent_planner p;
    static const char auto_mesh[] = ", mesh: auto", two[] = ", mesh: {dp: 2}",
                      cpu[] = ", device: cpu", witness[] = ", witness: true";
    deal(2, "0,1", 0, (const char *const[]){"", "", NULL});
    shares(1, 1, 0);
    deal(2, "0,1", 0, (const char *const[]){"", "", "", NULL});
    shares(0.5, 1, 0.5);
    deal(1, "0", 0, (const char *const[]){"", "", cpu, NULL});
    shares(0.5, 0.5, 0);
    deal(1, "0", 0, (const char *const[]){"", cpu, witness, NULL}); // these train on no device
    shares(1, 0, 0);
    deal(4, "0,1,2,3", 0, (const char *const[]){two, two, NULL});
    shares(1, 1, 0);
    deal(3, "0,1,2", 0, (const char *const[]){two, two, NULL});
    shares(0.5, 0.5, 0);
    deal(2, "0,1", 0, (const char *const[]){"", ", mesh: {dp: 4}", NULL}); // on processors
    shares(1, 0, 0);
    // Clusters whose number of ranks is still open get the devices that the others leave.
    deal(4, "0,1,2,3", 0, (const char *const[]){two, auto_mesh, NULL});
    shares(1, 1, 0);
    assert_true(judged_sites[0].devices == 0 && judged_sites[1].devices == 2);
    assert_int_equal(agent_planner_run(&judged, 0, judged_sites, &judged_link, 0, &p), NEB_OK);
    assert_int_equal(ranks(&p.clusters[1].job.mesh), 2);
    deal(4, "0,1,2,3", AGENT_AUTO_MESH, (const char *const[]){"", two, NULL});
    assert_true(judged_sites[0].devices == 2 && judged_sites[1].devices == 2);
    shares(1, 1, 0);
    // If nobody lists the GPUs, they are not assigned: every cluster begins at the first one.
    deal(2, "", 0, (const char *const[]){"", two, NULL});
    shares(0.5, 0.5, 0);
    deal(2, "0,1", 0, (const char *const[]){"", "", ", launcher: mpirun, mesh: {dp: 2}", NULL});
    shares(0.5, 0.5, 0.5);
}

// A continued run keeps the choices of its start where the job says auto and nothing else changed.
static void test_continued_run_keeps_choices(void **state) {
    (void)state;
    static struct agent_job was, j;
    static struct agent_planner p;
    chosen(&p);
    p.clusters[1].job.batch = 3;
    p.clusters[1].job.recompute = false;
    written(&was);
    was.autos = AGENT_AUTO_BATCH | AGENT_AUTO_RECOMPUTE | AGENT_AUTO_INTERVAL | AGENT_AUTO_OVERLAP |
                AGENT_AUTO_CODEC;
    for (int i = 0; i < 2; i++) {
        snprintf(was.clusters[i].name, sizeof was.clusters[i].name, "c%d", i);
        was.clusters[i].mesh_auto = was.clusters[i].role_auto = true;
    }
    j = was;
    agent_planner_apply(&p, was.autos, &was);
    was.clusters[0].role = AGENT_ROLE_STUDENT;
    was.clusters[1].role = AGENT_ROLE_TEACHER;
    assert_true(agent_planner_is_open(&j));
    struct agent_job same = j, more = j, renamed = j, part = j;
    agent_planner_take(&was, &same);
    check_job(&same, 6, 4, true, 37, 5, "topk:512/4096");
    same_mesh(&same.clusters[1].mesh, &second);
    assert_true(same.clusters[0].role == AGENT_ROLE_STUDENT && same.clusters[1].batch == 3 &&
                same.clusters[1].recompute == AGENT_RECOMPUTE_OFF);
    assert_false(agent_planner_is_open(&same));
    more.accumulate = 5; // other steps make another job: nothing is taken over
    agent_planner_take(&was, &more);
    assert_true(more.autos == AGENT_AUTO_BATCH && more.batch == 8 && more.accumulate == 5);
    snprintf(renamed.clusters[1].name, sizeof renamed.clusters[1].name, "other");
    renamed.clusters[0].ranks = 8; // the cluster had two ranks
    agent_planner_take(&was, &renamed);
    assert_true(renamed.clusters[0].mesh_auto && renamed.clusters[1].mesh_auto &&
                renamed.clusters[1].role_auto);
    part.autos = AGENT_AUTO_OVERLAP;
    agent_planner_take(&was, &part);
    check_job(&part, 8, 3, false, 10, 5, "int4");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_is_taken_over),
        cmocka_unit_test(test_clusters_differ),
        cmocka_unit_test(test_fixed_keys_stay),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_continued_run_keeps_choices),
        cmocka_unit_test(test_within_limits_of_job),
        cmocka_unit_test(test_unknown_seconds),
        cmocka_unit_test(test_memory_of_another),
        cmocka_unit_test(test_attached),
        cmocka_unit_test(test_no_device),
        cmocka_unit_test(test_devices_of_local),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
