// SPDX-License-Identifier: Apache-2.0
// agent/policy: which jobs a site's operator admits, and which policy files are refused.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/daemon/job_needs.h"
#include "agent/daemon/policy.h"
#include "agent/plan/plan.h"
#include "agent/plan/planner.h"
#include "agent/train/distill.h"
#include "intra/ckpt/checkpoint.h"
#include "intra/train/trainer.h"
#include "tests/testing.h"
#include "tests/unit/cost_fixture.h"
#include "tests/unit/policy_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[] = "/tmp/nebula-policy-XXXXXX";
static const struct agent_found unknown; // a site whose own files say nothing

static void test_admits(void **state) {
    (void)state;
    char inside[NEB_PATH_MAX], outside[NEB_PATH_MAX], link[NEB_PATH_MAX], sly[NEB_PATH_MAX],
        text[4 * NEB_PATH_MAX];
    snprintf(inside, sizeof inside, "%s/data/corpus", dir);
    snprintf(outside, sizeof outside, "%s/data2", dir);
    snprintf(link, sizeof link, "%s/data/link", dir);
    snprintf(sly, sizeof sly, "%s/data/../data2", dir);
    assert_int_equal(neb_fs_mkdirs(inside, 0700), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(outside, 0700), NEB_OK);
    assert_int_equal(symlink(outside, link), 0);
    snprintf(text, sizeof text,
             "{\"format\": 1, \"members\": [\"hub\"], \"data\": [\"%s/data\"], \"trainable\": "
             "[\"lora\"], \"threads\": 2, \"ranks\": 1}",
             dir);
    struct agent_policy p = parse(text), none = {.present = false};
    struct agent_job j = job_of(inside);
    j.trainable.mode = INTRA_TRAIN_LORA;
    assert_true(admits(&p, &j, "hub", ""));
    assert_true(admits(&none, &j, "rome", ""));
    assert_false(admits(&p, &j, "rome", "\"rome\" is not among"));
    const char *const bad[] = {outside, link, sly, "/nowhere", "/"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct agent_job other = j;
        snprintf(other.corpus, sizeof other.corpus, "%s", bad[i]);
        assert_false(admits(&p, &other, "hub", "not below a folder"));
        other = j;
        snprintf(other.init_from, sizeof other.init_from, "%s", bad[i]);
        assert_false(admits(&p, &other, "hub", "not below a folder"));
        other = j;
        snprintf(other.clusters[0].corpus, sizeof other.corpus, "%s", bad[i]);
        assert_false(admits(&p, &other, "hub", "not below a folder"));
    }
    struct agent_job full = j, wide = j, all = j, ranks = j;
    full.trainable.mode = INTRA_TRAIN_FULL;
    wide.clusters[0].threads = 3;
    all.clusters[0].threads = 0;
    ranks.clusters[0].mesh.dp = 2;
    assert_false(admits(&p, &full, "hub", "trainable"));
    assert_false(admits(&p, &wide, "hub", "threads"));
    assert_false(admits(&p, &all, "hub", "threads"));
    assert_false(admits(&p, &ranks, "hub", "ranks"));
}

// Text may be used for training here. It may leave the site only if the policy says so.
static void test_text_may_leave(void **state) {
    (void)state;
    struct agent_policy p = parse("{\"format\": 1}"),
                        open = parse("{\"format\": 1, \"push_text\": true}");
    for (int mode = AGENT_MODE_RTD; mode <= AGENT_MODE_DISTILL; mode++)
        for (int mine = 0; mine < 2; mine++) {
            struct agent_job j = job_of(dir);
            bool rtd = mode == AGENT_MODE_RTD;
            j.mode = (enum agent_mode)mode;
            j.sync.scheme = AGENT_SCHEME_FEDERATED;
            j.clusters[0].role = mine ? (rtd ? AGENT_ROLE_GENERATOR : AGENT_ROLE_STUDENT)
                                      : (rtd ? AGENT_ROLE_DISCRIMINATOR : AGENT_ROLE_TEACHER);
            assert_true(admits(&p, &j, "hub", ""));
            j.rtd.push_text = rtd;
            j.distill.pushed = !rtd;
            assert_int_equal(admits(&p, &j, "hub", "sends the text of this site"), !mine);
            assert_true(admits(&open, &j, "hub", ""));
            j.sync.scheme = AGENT_SCHEME_SYNCHRONOUS;
            assert_true(admits(&p, &j, "hub", ""));
        }
}

// A job with `path` as the value of one option, in the JSON form that an agent receives.
static json_t *with_path(const char *key, const char *path) {
    static const char yaml[] =
        "job: j\nsteps: 4\nmodel: {vocab: 16, n_layers: 1, d_model: 8, n_heads: 2, n_kv_heads: 1, "
        "d_ff: 16, tied: true}\ndata: {corpus: %s/data/corpus, seq_len: 8, batch: 1}\n"
        "optim: {lr: 0.1}\nsync: {scheme: none}\nclusters:\n  - {name: paris, threads: 1}\n"
        "  - {name: rome, threads: 1, corpus: %s/data2}\n";
    char text[4 * NEB_PATH_MAX];
    struct agent_job *job = calloc(1, sizeof *job);
    int n = snprintf(text, sizeof text, yaml, dir, dir);
    assert_int_equal(agent_job_parse(text, (size_t)n, "t.yaml", job), NEB_OK);
    json_t *o = agent_job_to_json(job);
    if (key)
        json_object_set_new(o, key, json_string(path));
    free(job);
    return o;
}

// Every option that holds a path is checked by the policy, whether or not its row in the table has
// the flag.
static void test_every_path(void **state) {
    (void)state;
    char outside[NEB_PATH_MAX], inside[NEB_PATH_MAX], text[2 * NEB_PATH_MAX];
    struct agent_job *job = calloc(1, sizeof *job);
    const char *key;
    json_t *v, *plain = with_path(NULL, NULL);
    int paths = 0;
    snprintf(outside, sizeof outside, "%s/data2", dir);
    snprintf(inside, sizeof inside, "%s/data", dir);
    snprintf(text, sizeof text, "{\"format\": 1, \"data\": [\"%s/data\"]}", dir);
    struct agent_policy p = parse(text);
    json_object_foreach(plain, key, v) {
        json_t *good = with_path(key, inside), *bad = with_path(key, outside);
        // These options with free text do not hold a path.
        bool free_text = json_is_string(v) && strcmp(key, "job") != 0 &&
                         strcmp(key, "sync.link") != 0 && strcmp(key, "wan.rate_limit") != 0 &&
                         agent_job_from_json(bad, job) == NEB_OK;
        if (free_text) {
            paths++;
            assert_false(admits(&p, job, "hub", "not below a folder"));
            assert_int_equal(agent_job_from_json(good, job), NEB_OK);
            assert_true(admits(&p, job, "hub", ""));
        }
        json_decref(good);
        json_decref(bad);
    }
    // the options model.init, data.corpus, init_from, distill.teacher.init, distill.cache
    assert_int_equal(paths, 5);
    json_decref(plain);
    free(job);
}

// If only other clusters read a path, they judge it. A single process for all clusters reads every
// path.
static void test_paths_of_other_clusters(void **state) {
    (void)state;
    char outside[NEB_PATH_MAX], text[2 * NEB_PATH_MAX];
    snprintf(outside, sizeof outside, "%s/data2", dir);
    snprintf(text, sizeof text, "{\"format\": 1, \"labels\": true, \"data\": [\"%s/data\"]}", dir);
    struct agent_policy p = parse(text);
    struct agent_job j = job_of(dir);
    j.mode = AGENT_MODE_DISTILL;
    j.n_clusters = 2;
    snprintf(j.corpus, sizeof j.corpus, "%s", outside);
    snprintf(j.clusters[0].corpus, sizeof j.clusters[0].corpus, "%s/data/corpus", dir);
    assert_true(admits(&p, &j, "hub", ""));
    snprintf(j.distill.teacher, sizeof j.distill.teacher, "%s/data2/teacher", dir);
    j.clusters[0].role = AGENT_ROLE_STUDENT;
    assert_true(admits(&p, &j, "hub", ""));
    j.clusters[0].role = AGENT_ROLE_TEACHER;
    assert_false(admits(&p, &j, "hub", "/teacher\" is not below"));
    j.distill.teacher[0] = 0;
    snprintf(j.distill.cache, sizeof j.distill.cache, "%s/data2/cache", dir);
    assert_true(admits(&p, &j, "hub", ""));
    j.clusters[0].role = AGENT_ROLE_STUDENT;
    assert_false(admits(&p, &j, "hub", "/cache\" is not below"));
    j.distill.cache[0] = 0;
    snprintf(j.clusters[1].corpus, sizeof j.clusters[1].corpus, "%s", outside);
    assert_true(admits(&p, &j, "hub", ""));
    j.sync.scheme = AGENT_SCHEME_SYNCHRONOUS;
    assert_false(admits(&p, &j, "hub", "not below"));
}

// The worker creates the folder of labels, so the policy checks the place where it will be.
static void test_folder_to_be_created(void **state) {
    (void)state;
    static const struct {
        const char *path;
        bool ok;
    } paths[] = {{"data/labels", true},
                 {"data/a/b/c", true},
                 {"data/corpus/../labels", true}, // existing parts are resolved
                 {"data/a/../../data2", false},
                 {"data/a/..", false},
                 {"data/link/labels", false}, // a link to data2
                 {"data/loose", false},       // a link to nothing
                 {"data/loose/labels", false},
                 {"data/self/labels", false}, // a link to itself
                 {"data2/labels", false},
                 {"dat", false},
                 {"database", false},
                 {"../labels", false}};
    char text[2 * NEB_PATH_MAX], link[NEB_PATH_MAX];
    snprintf(link, sizeof link, "%s/data/loose", dir);
    assert_int_equal(symlink("/nowhere/at-all", link), 0);
    snprintf(link, sizeof link, "%s/data/self", dir);
    assert_int_equal(symlink("self", link), 0);
    snprintf(text, sizeof text, "{\"format\": 1, \"data\": [\"%s/data\"]}", dir);
    struct agent_policy p = parse(text);
    snprintf(text, sizeof text, "%s/data/corpus", dir);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct agent_job j = job_of(text);
        snprintf(j.distill.cache, sizeof j.distill.cache, "%s/%s", dir, paths[i].path);
        assert_int_equal(admits(&p, &j, "hub", "not below a folder"), paths[i].ok);
    }
    struct agent_job j = job_of(text);
    snprintf(j.distill.cache, sizeof j.distill.cache,
             "labels"); // relative to the agent's working folder
    assert_false(admits(&p, &j, "hub", "not below a folder"));
}

// Only the owner can read the labels that a student keeps, because labels reveal the text.
static void test_labels_on_disk(void **state) {
    (void)state;
    static const uint8_t corpus[32];
    char folder[NEB_PATH_MAX], path[NEB_PATH_MAX];
    struct agent_job j = job_of(dir);
    struct stat sb;
    snprintf(folder, sizeof folder, "%s/labels", dir);
    assert_int_equal(agent_distill_cache_open(folder, &j, 0, corpus), NEB_OK);
    assert_int_equal(agent_distill_cache_write(folder, 7, "labels", 6), NEB_OK);
    assert_int_equal(stat(folder, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
    static const char *const files[] = {"key", "00000007.soft"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(neb_path(path, sizeof path, folder, files[i]), NEB_OK);
        assert_int_equal(stat(path, &sb), 0);
        assert_int_equal(sb.st_mode & 0777, 0600);
    }
}

// The number of students and the index of this student decide which text a step's labels belong to.
// Labels of another share are refused. With distill.relay all students have the same batches.
static void test_labels_of_another_share(void **state) {
    (void)state;
    static const uint8_t corpus[32];
    char folder[NEB_PATH_MAX];
    struct agent_job j = job_of(dir);
    snprintf(folder, sizeof folder, "%s/share", dir);
    j.n_clusters = 3;
    for (int i = 0; i < 3; i++)
        j.clusters[i].role = i ? AGENT_ROLE_STUDENT : AGENT_ROLE_TEACHER;
    assert_int_equal(agent_distill_cache_open(folder, &j, 1, corpus), NEB_OK);
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(agent_distill_cache_open(folder, &j, 0, corpus), NEB_ERR_INVALID);
    j.n_clusters = 2; // a single student
    assert_int_equal(agent_distill_cache_open(folder, &j, 0, corpus), NEB_ERR_INVALID);
    j.n_clusters = 3;
    j.distill.relay = true;
    assert_int_equal(agent_distill_cache_open(folder, &j, 1, corpus), NEB_ERR_INVALID);
    assert_int_equal(neb_fs_remove_tree(folder), NEB_OK);
    assert_int_equal(agent_distill_cache_open(folder, &j, 1, corpus), NEB_OK);
    assert_int_equal(agent_distill_cache_open(folder, &j, 0, corpus), NEB_OK);
    neb_log_set_sink(NULL, NULL);
}

static void test_limits(void **state) {
    (void)state;
    struct agent_policy p = parse("{\"format\": 1, \"steps\": 100, \"parameters\": 1000, \"jobs\": "
                                  "3, \"jobs_per_member\": 2}");
    struct agent_job j = job_of("/data");
    j.steps = 100;
    // The parameters of a block: q and o 2 x 8 x 8, k and v 2 x 8 x 4, feed-forward 3 x 8 x 16.
    j.model = (struct intra_model_config){
        .n_layers = 1, .d_model = 8, .n_heads = 2, .n_kv_heads = 1, .d_ff = 16, .tied = true};
    running = (struct agent_policy_load){.jobs = 2, .of_member = 1};
    assert_true(admits(&p, &j, "hub", ""));
    j.steps = 101;
    assert_false(admits(&p, &j, "hub", "101 steps, but at most 100"));
    j.steps = 100;
    running.of_member = 2;
    assert_false(admits(&p, &j, "hub", "2 jobs of this member run, and at most 2"));
    running = (struct agent_policy_load){.jobs = 3};
    assert_false(admits(&p, &j, "hub", "3 jobs of other members run, and at most 3"));
    running.jobs = 0;
    j.model.vocab = (1000 - 128 - 64 - 384) / 8;
    assert_true(admits(&p, &j, "hub", ""));
    j.model.vocab++;
    assert_false(admits(&p, &j, "hub", "has 1008 parameters, but at most 1000"));
    j.model.vocab = 0;
    j.model.n_layers = 2;
    assert_false(admits(&p, &j, "hub", "has 1152 parameters"));
    j.model.n_layers = 1;
    j.mode = AGENT_MODE_RTD; // the generator's shape counts only at the site of the generator
    j.rtd.shape.n_layers = 4;
    assert_true(admits(&p, &j, "hub", ""));
    j.clusters[0].role = AGENT_ROLE_GENERATOR;
    assert_false(admits(&p, &j, "hub", "parameters"));
}

static bool limited(const char *key, double bytes, const struct agent_job *j, const char *reason) {
    char text[128];
    snprintf(text, sizeof text, "{\"format\": 1, \"labels\": true, \"%s\": %.0f}", key, bytes);
    struct agent_policy p = parse(text);
    return admits(&p, j, "hub", reason);
}

// A teacher that learns trains its whole model, whatever the job says about the student's model. If
// one process runs both, the whole model counts at this site too.
static void test_teacher_trains(void **state) {
    (void)state;
    struct agent_policy
        lora = parse("{\"format\": 1, \"labels\": true, \"trainable\": [\"lora\"]}"),
        both = parse("{\"format\": 1, \"labels\": true, \"trainable\": [\"lora\", \"full\"]}");
    struct agent_job j = job_of("/data");
    running = (struct agent_policy_load){0};
    j.mode = AGENT_MODE_DISTILL;
    j.n_clusters = 2;
    j.trainable.mode = INTRA_TRAIN_LORA;
    j.clusters[0].role = AGENT_ROLE_TEACHER;
    j.clusters[1].role = AGENT_ROLE_STUDENT;
    assert_true(admits(&lora, &j, "hub", ""));
    j.distill.learn = true;
    assert_false(admits(&lora, &j, "hub", "\"trainable\" does not list"));
    assert_true(admits(&both, &j, "hub", ""));
    j.clusters[0].role = AGENT_ROLE_STUDENT;
    j.clusters[1].role = AGENT_ROLE_TEACHER;
    assert_true(admits(&lora, &j, "hub", ""));
    j.sync.scheme = AGENT_SCHEME_SYNCHRONOUS;
    assert_false(admits(&lora, &j, "hub", "\"trainable\" does not list"));
}

// A checkpoint decides the teacher's shape, not the job's model.
static void test_teacher_shape(void **state) {
    (void)state;
    struct agent_job j = small_job();
    struct intra_model_config wide = agent_planner_model(&j, 0);
    struct intra_trainable full = {.mode = INTRA_TRAIN_FULL};
    struct intra_model *m = NULL;
    struct intra_ckpt_writer *w = NULL;
    wide.vocab = j.model.vocab;
    wide.rope_theta = 10000;
    wide.norm_eps = 1e-5f;
    wide.d_model = 256;
    wide.head_dim = 64;
    running = (struct agent_policy_load){0};
    j.mode = AGENT_MODE_DISTILL;
    j.n_clusters = 2;
    j.clusters[0].role = AGENT_ROLE_TEACHER;
    j.clusters[1].role = AGENT_ROLE_STUDENT;
    double small = agent_job_parameters(&j, 0, &unknown);
    snprintf(j.distill.teacher, sizeof j.distill.teacher, "%s/teacher.ckpt", dir);
    neb_log_set_sink(testing_drop, NULL);
    assert_false(limited("parameters", 1e9, &j, "cannot be estimated"));
    assert_int_equal(mkfifo(j.distill.teacher, 0600), 0); // an open would block
    assert_false(limited("memory", 1e12, &j, "cannot be estimated"));
    neb_log_set_sink(NULL, NULL);
    assert_int_equal(unlink(j.distill.teacher), 0);
    assert_int_equal(intra_model_layout(&wide, &full, &m), NEB_OK);
    assert_int_equal(intra_model_allocate(m, false), NEB_OK);
    assert_int_equal(intra_ckpt_create(j.distill.teacher, &w), NEB_OK);
    assert_int_equal(intra_model_save(m, w), NEB_OK);
    assert_int_equal(intra_ckpt_commit(w), NEB_OK);
    intra_ckpt_writer_destroy(&w);
    intra_model_destroy(&m);
    wide.mask = KERN_MASK_PREFIX; // a teacher always has this mask
    struct agent_found found = {.teacher = wide};
    double large = agent_job_parameters(&j, 0, &found);
    assert_true(large > 4 * small);
    assert_true(limited("parameters", large, &j, ""));
    assert_false(limited("parameters", large - 1, &j, "parameters, but at most"));
    for (int disk = 0; disk < 2; disk++) {
        struct agent_needs n, by_job;
        agent_job_needs(&j, 0, &found, &n);
        agent_job_needs(&j, 0, &unknown, &by_job);
        double need = disk ? n.disk : n.memory;
        assert_true(need > (disk ? by_job.disk : by_job.memory));
        assert_true(limited(disk ? "disk" : "memory", ceil(need), &j, ""));
        assert_false(limited(disk ? "disk" : "memory", floor(0.99 * need), &j, "at most"));
    }
    // The teacher is at another site.
    j.clusters[0].role = AGENT_ROLE_STUDENT;
    j.clusters[1].role = AGENT_ROLE_TEACHER;
    assert_true(limited("parameters", small, &j, ""));
    j.sync.scheme = AGENT_SCHEME_SYNCHRONOUS;
    assert_false(limited("parameters", large, &j, "parameters, but at most"));
    assert_true(limited("parameters", large + small, &j, ""));
}

// Each rank of mpirun or Slurm has `threads`; those of launcher: local share them.
static void test_threads_of_ranks(void **state) {
    (void)state;
    struct agent_job j = job_of("/data");
    running = (struct agent_policy_load){0};
    j.clusters[0].mesh.dp = 4;
    assert_true(limited("threads", 2, &j, ""));
    for (int l = AGENT_LAUNCHER_MPIRUN; l <= AGENT_LAUNCHER_SLURM; l++) {
        j.clusters[0].launcher = (enum agent_launcher)l;
        assert_true(limited("threads", 8, &j, ""));
        assert_false(limited("threads", 7, &j, "asks for 8 threads"));
    }
}

// A batch or sequence that no machine can hold is refused, however few parameters there are.
static void test_needs(void **state) {
    (void)state;
    struct agent_job j = small_job(), huge = j, long_one = j, rounds = j, wide = j, kept = j;
    struct agent_needs n, more;
    running = (struct agent_policy_load){0};
    assert_true(limited("tokens_per_step", 512, &j, ""));
    assert_false(limited("tokens_per_step", 511, &j, "has 512 tokens, but at most 511"));
    huge.batch = huge.accumulate = 65536;
    huge.seq_len = 1 << 20;
    assert_false(limited("tokens_per_step", 1e15, &huge, "has 4503599627370496 tokens"));
    assert_false(limited("memory", 1e12, &huge, "GB of memory, but at most 1e+03 GB"));
    agent_job_needs(&j, 0, &unknown, &n);
    assert_true(limited("memory", ceil(n.memory), &j, ""));
    assert_false(limited("memory", floor(n.memory * 0.99), &j, "of memory, but at most"));
    // The estimate equals that of nebula plan, with the state of the exchange.
    struct intra_rates rates = even_host(1e9);
    struct intra_cost_job cost = {.model = agent_planner_model(&j, 0),
                                  .mesh = {1, 1, 1},
                                  .batch = 4,
                                  .seq_len = 64,
                                  .micros = 2,
                                  .ranks_a_host = 1,
                                  .share = 1,
                                  .fragments = 1};
    struct intra_cost planned;
    intra_cost_step(&cost, NULL, &rates, &planned);
    near(n.memory, planned.host_bytes, 1e-3, "memory");
    assert_true(n.device_memory == 0);
    rounds.n_clusters = 2;
    cost.outer = true;
    intra_cost_step(&cost, NULL, &rates, &planned);
    agent_job_needs(&rounds, 0, &unknown, &more);
    assert_true(more.memory > 0.9 * planned.host_bytes && more.memory < 1.2 * planned.host_bytes);
    // Muon's moments; an outer step without other clusters.
    struct agent_job muon = j, alone = j;
    muon.optim.kind = INTRA_OPTIM_MUON;
    cost.outer = false;
    cost.muon = true;
    intra_cost_step(&cost, NULL, &rates, &planned);
    agent_job_needs(&muon, 0, &unknown, &more);
    near(more.memory, planned.host_bytes, 1e-3, "memory with Muon");
    assert_true(more.disk < n.disk);
    cost.muon = false;
    alone.sync.scheme = AGENT_SCHEME_SYNCHRONOUS;
    alone.sync.mu = 0;
    alone.sync.eta = 1;
    agent_job_needs(&alone, 0, &unknown, &more);
    double plain = more.memory;
    alone.sync.mu = 0.9f;
    agent_job_needs(&alone, 0, &unknown, &more);
    struct intra_cost_job outer = cost;
    outer.outer = true;
    outer.members = 1;
    assert_int_equal(agent_plan_frames(&alone, &outer), NEB_OK);
    intra_cost_step(&outer, NULL, &rates, &planned);
    assert_true(more.memory >= planned.host_bytes && more.memory > plain + planned.frames_bytes);
    double exchange = 16 * (double)intra_cost_count(&cost.model, &j.trainable).trainable;
    assert_true(more.disk >= n.disk + exchange);
    // The ranks of one machine add up, and activations grow with the sequence.
    wide.clusters[0].mesh.dp = 2;
    agent_job_needs(&wide, 0, &unknown, &more);
    assert_true(more.memory > 1.5 * n.memory);
    // mpirun and Slurm may put their ranks on one machine too.
    double together = more.memory;
    for (int l = AGENT_LAUNCHER_MPIRUN; l <= AGENT_LAUNCHER_SLURM; l++) {
        wide.clusters[0].launcher = (enum agent_launcher)l;
        agent_job_needs(&wide, 0, &unknown, &more);
        assert_true(more.memory == together);
    }
    long_one.seq_len *= 4;
    agent_job_needs(&long_one, 0, &unknown, &more);
    assert_true(more.memory - n.memory > 1.5 * planned.acts_bytes);
    // The disk holds two generations, a third one that is being written, and the model: parameters
    // and moments.
    struct intra_cost_params params = intra_cost_count(&cost.model, &j.trainable);
    assert_true(n.disk == 3 * 12.0 * (double)params.all + 4.0 * (double)params.all);
    kept.checkpoint_keep = 16;
    assert_true(limited("disk", n.disk, &j, ""));
    assert_false(limited("disk", n.disk, &kept, "on disk, but at most"));
    // Without model.vocab the corpus decides, and there is none.
    j.model.vocab = 0;
    assert_false(limited("memory", 1e12, &j, "cannot be estimated"));
    assert_true(limited("tokens_per_step", 512, &j, ""));
}

// What an exchange takes beside its state is bounded from above, and not by much.
static void test_frames(void **state) {
    (void)state;
    static const char *const codecs[] = {"fp32", "int8", "int4", "topk:1/64", "topk:256/4096:4"};
    struct intra_rates rates = even_host(1e9);
    for (size_t i = 0; i < 2 * sizeof codecs / sizeof *codecs; i++) {
        struct agent_job j = small_job();
        struct agent_needs n;
        struct intra_cost planned;
        j.n_clusters = i % 2 ? 8 : 2;
        snprintf(j.sync.codec, sizeof j.sync.codec, "%s", codecs[i / 2]);
        struct intra_cost_job cost = {.model = agent_planner_model(&j, 0),
                                      .mesh = {1, 1, 1},
                                      .batch = 4,
                                      .seq_len = 64,
                                      .micros = 2,
                                      .ranks_a_host = 1,
                                      .share = 1,
                                      .fragments = 1,
                                      .outer = true,
                                      .members = j.n_clusters};
        assert_int_equal(agent_plan_frames(&j, &cost), NEB_OK);
        intra_cost_step(&cost, NULL, &rates, &planned);
        agent_job_needs(&j, 0, &unknown, &n);
        if (n.memory < planned.host_bytes || n.memory > planned.host_bytes + planned.frames_bytes)
            fail_msg("%s, %d clusters: %.0f bytes, nebula plan has %.0f, with %.0f of frames",
                     j.sync.codec, j.n_clusters, n.memory, planned.host_bytes,
                     planned.frames_bytes);
    }
}

static void test_devices(void **state) {
    (void)state;
    struct agent_job j = small_job(), any = j, cuda = j, attach = j, watch = j, rtd = j;
    struct agent_policy cpu = parse("{\"format\": 1, \"devices\": [\"cpu\"]}"),
                        gpu = parse("{\"format\": 1, \"devices\": [\"cuda\"]}"),
                        both = parse("{\"format\": 1, \"devices\": [\"cuda\", \"cpu\"]}");
    struct agent_needs n;
    any.clusters[0].device = AGENT_DEVICE_AUTO;
    cuda.clusters[0].device = AGENT_DEVICE_CUDA;
    assert_true(admits(&cpu, &j, "hub", "") && admits(&gpu, &cuda, "hub", "") &&
                admits(&both, &any, "hub", ""));
    assert_false(admits(&cpu, &any, "hub",
                        "\"devices\" lists only cpu, but the job's cluster has "
                        "device: auto"));
    assert_false(admits(&cpu, &cuda, "hub", "has device: cuda"));
    assert_false(admits(&gpu, &j, "hub", "\"devices\" lists only cuda"));
    assert_false(admits(&gpu, &any, "hub", "has device: auto"));
    agent_job_needs(&cuda, 0, &unknown, &n);
    assert_true(n.device_memory > 0 && n.memory > 0);
    assert_false(limited("device_memory", 1000, &cuda, "of each device's memory"));
    assert_true(limited("device_memory", 1000, &j, ""));
    rtd.mode = AGENT_MODE_RTD;
    rtd.clusters[0].device = AGENT_DEVICE_AUTO;
    rtd.clusters[0].role = AGENT_ROLE_GENERATOR;
    assert_false(admits(&cpu, &rtd, "hub", "has device: auto"));
    agent_job_needs(&rtd, 0, &unknown, &n);
    assert_true(n.on_devices && n.on_processors && n.device_memory > 0);
    rtd.sync.scheme = AGENT_SCHEME_SYNCHRONOUS; // the reference opens no device
    assert_true(admits(&cpu, &rtd, "hub", ""));
    agent_job_needs(&rtd, 0, &unknown, &n);
    assert_true(!n.on_devices && n.device_memory == 0);
    // A teacher that does not learn needs no gradients, moments or stored activations, on any
    // device.
    for (int on = AGENT_DEVICE_CPU; on <= AGENT_DEVICE_CUDA; on++) {
        struct agent_job teach = small_job(), learn;
        struct agent_needs looks, learns;
        double params = agent_job_parameters(&teach, 0, &unknown);
        teach.mode = AGENT_MODE_DISTILL;
        teach.n_clusters = 2;
        teach.clusters[0].role = AGENT_ROLE_TEACHER;
        teach.clusters[1].role = AGENT_ROLE_STUDENT;
        teach.clusters[0].device = (enum agent_device)on;
        learn = teach;
        learn.distill.learn = true;
        agent_job_needs(&teach, 0, &unknown, &looks);
        agent_job_needs(&learn, 0, &unknown, &learns);
        assert_true(learns.memory - looks.memory > 12 * params);
        assert_true(on == AGENT_DEVICE_CPU
                        ? looks.device_memory == 0
                        : learns.device_memory - looks.device_memory > 12 * params &&
                              looks.device_memory > 6 * params);
    }
    // An attached trainer and a witness need no resources of this site.
    attach.clusters[0].launcher = AGENT_LAUNCHER_ATTACH;
    watch.clusters[0].witness = true;
    assert_true(limited("memory", 1, &attach, "") && admits(&gpu, &attach, "hub", ""));
    assert_true(limited("disk", 1, &watch, "") && limited("tokens_per_step", 1, &watch, ""));
}

// A model of the site's own loop: its size is not asked for, the tokens of its steps are limited.
static void test_own_model(void **state) {
    (void)state;
    static const char text[] =
        "job: a\nsteps: 9\nmodel: attached\nsync: {interval: 3}\n"
        "clusters: [{name: site, launcher: attach}, {name: hub, launcher: attach}]\n";
    struct agent_job own;
    struct agent_discloses t;
    assert_int_equal(agent_job_parse(text, sizeof text - 1, "job.yaml", &own), NEB_OK);
    static const char *const free[] = {"memory", "disk", "parameters"};
    for (size_t i = 0; i < sizeof free / sizeof *free; i++)
        assert_true(limited(free[i], 1, &own, ""));
    assert_false(limited("tokens_per_step", 1000, &own, "a step of the job has 1048576 tokens"));
    agent_job_discloses(&own, 0, &t);
    assert_true(t.update_tokens > 0 && t.rows == AGENT_ROWS_NEVER); // so the gates are asked
}

static void test_strict(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "[]",
                                      "{}",
                                      "{\"format\": 2}",
                                      "{\"format\": 1, \"member\": [\"hub\"]}",
                                      "{\"format\": 1, \"members\": []}",
                                      "{\"format\": 1, \"members\": \"hub\"}",
                                      "{\"format\": 1, \"members\": [1]}",
                                      "{\"format\": 1, \"data\": [\"\"]}",
                                      "{\"format\": 1, \"trainable\": [\"everything\"]}",
                                      "{\"format\": 1, \"threads\": 0}",
                                      "{\"format\": 1, \"threads\": -1}",
                                      "{\"format\": 1, \"ranks\": \"4\"}",
                                      "{\"format\": 1, \"steps\": 0}",
                                      "{\"format\": 1, \"parameters\": 1.5}",
                                      "{\"format\": 1, \"jobs\": -1}",
                                      "{\"format\": 1, \"tokens_per_step\": \"4K\"}",
                                      "{\"format\": 1, \"memory\": 0}",
                                      "{\"format\": 1, \"memory\": \"64X\"}",
                                      "{\"format\": 1, \"disk\": \"\"}",
                                      "{\"format\": 1, \"disk\": 1.5}",
                                      "{\"format\": 1, \"max_memory\": 1}",
                                      "{\"format\": 1, \"devices\": [\"gpu\"]}",
                                      "{\"format\": 1, \"devices\": []}",
                                      "{\"format\": 1, \"jobs_per_member\": \"1\"}",
                                      "{\"format\": 1, \"format\": 1}",
                                      "{\"format\": 1} x"};
    struct agent_policy p;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(agent_policy_parse(bad[i], strlen(bad[i]), "policy.json", &p),
                         NEB_ERR_FORMAT);
    // The message names the unknown key, and the key that may be meant.
    char last[512];
    static const char misspelt[] = "{\"format\": 1, \"tokens_per_stpe\": 4}";
    assert_int_equal(agent_policy_parse(misspelt, strlen(misspelt), "policy.json", &p),
                     NEB_ERR_FORMAT);
    neb_last_error(last, sizeof last);
    assert_non_null(
        strstr(last, "policy.json: \"tokens_per_stpe\" is not a key of a policy; did you mean "
                     "\"tokens_per_step\"?"));
}

static void test_file(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct agent_policy p;
    const char *text = "{\"format\": 1, \"threads\": 4}";
    assert_int_equal(agent_policy_load(dir, &p), NEB_OK);
    assert_false(p.present);
    snprintf(path, sizeof path, "%s/policy.json", dir);
    assert_int_equal(neb_fs_write(path, text, strlen(text), 0600), NEB_OK);
    assert_int_equal(agent_policy_load(dir, &p), NEB_OK);
    assert_true(p.present && p.threads == 4 && p.n_members == -1);
    assert_int_equal(chmod(path, 0622), 0);
    assert_int_equal(agent_policy_load(dir, &p), NEB_ERR_DENIED);
}

// The signed bytes depend on the federation, the id and every value, not on the order of keys.
static void test_signed_bytes(void **state) {
    (void)state;
    uint8_t fed[SEC_FEDERATION_BYTES] = {1}, id[AGENT_JOB_ID_BYTES] = {2};
    struct neb_buf a = {0}, b = {0};
    json_t *x = json_pack("{s:i,s:i}", "steps", 10, "seed", 1),
           *y = json_pack("{s:i,s:i}", "seed", 1, "steps", 10);
    assert_int_equal(agent_job_signed_bytes(fed, id, x, &a), NEB_OK);
    assert_int_equal(agent_job_signed_bytes(fed, id, y, &b), NEB_OK);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.p, b.p, a.len);
    json_object_set_new(y, "steps", json_integer(11));
    assert_int_equal(agent_job_signed_bytes(fed, id, y, &b), NEB_OK);
    assert_memory_not_equal(a.p, b.p, a.len);
    id[0]++;
    assert_int_equal(agent_job_signed_bytes(fed, id, x, &b), NEB_OK);
    assert_memory_not_equal(a.p, b.p, a.len);
    json_decref(x);
    json_decref(y);
    neb_buf_free(&a);
    neb_buf_free(&b);
}

static int setup(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_admits),
                                       cmocka_unit_test(test_text_may_leave),
                                       cmocka_unit_test(test_every_path),
                                       cmocka_unit_test(test_paths_of_other_clusters),
                                       cmocka_unit_test(test_folder_to_be_created),
                                       cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_labels_on_disk),
                                       cmocka_unit_test(test_labels_of_another_share),
                                       cmocka_unit_test(test_own_model),
                                       cmocka_unit_test(test_strict),
                                       cmocka_unit_test(test_needs),
                                       cmocka_unit_test(test_frames),
                                       cmocka_unit_test(test_teacher_trains),
                                       cmocka_unit_test(test_teacher_shape),
                                       cmocka_unit_test(test_threads_of_ranks),
                                       cmocka_unit_test(test_devices),
                                       cmocka_unit_test(test_file),
                                       cmocka_unit_test(test_signed_bytes)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
