// SPDX-License-Identifier: Apache-2.0
// agent/job/config: messages for wrong job files, and agreement of YAML, --set and JSON.
#include "agent/base/log.h"
#include "agent/job/config_options.h"
#include "agent/job/private.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char message[1024];
static void capture(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    snprintf(message, sizeof message, "%s", text);
}

static const char good[] =
    "job: first-light\n"
    "steps: 300\n"
    "model: {n_layers: 4, d_model: 128, n_heads: 4, n_kv_heads: 2, d_ff: 384}\n"
    "data: {corpus: /tmp/corpus, seq_len: 128, batch: 4}\n"
    "optim: {lr: 2e-3, warmup: 20}\n"
    "clusters:\n"
    "  - {name: paris, sources: {fr: 1, es: 0.5}, threads: 2}\n"
    "  - {name: berlin, sources: {en: 1, de: 1}}\n";

static enum neb_status parse(const char *text, struct agent_job *j) {
    return agent_job_parse(text, strlen(text), "dir/job.yaml", j);
}

static void test_good(void **state) {
    (void)state;
    struct agent_job j;
    assert_int_equal(parse(good, &j), NEB_OK);
    assert_int_equal(j.steps, 300);
    assert_int_equal(j.model.n_kv_heads, 2);
    assert_true(j.model.tied && j.optim.schedule.lr == 2e-3f && j.sync.eta == 1 && j.sync.mu == 0 &&
                j.optim.clip.kind == INTRA_CLIP_GLOBAL_NORM);
    assert_int_equal(j.n_clusters, 2);
    assert_string_equal(j.clusters[0].sources[1].name, "es");
    assert_true(j.clusters[0].sources[1].weight == 0.5f);
    assert_int_equal(j.trainable.lora_targets, INTRA_LORA_Q | INTRA_LORA_V);
    char ended[sizeof good + 8];
    snprintf(ended, sizeof ended, "%s---\n", good);
    assert_int_equal(parse(ended, &j), NEB_OK);
}

static void test_error_messages(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *expect; // the text `from` in the good file becomes `to`
    } cases[] = {
        {"n_heads: 4,", "n_heads: eight,",
         "dir/job.yaml:3: model.n_heads: \"eight\" is not an integer"},
        {"n_heads: 4,", "n_heads: 0,", "dir/job.yaml:3: model.n_heads: 0 is not in 1..1024"},
        {"model:", "modle:", "dir/job.yaml:3: modle: unknown key (did you mean 'model'?)"},
        {"warmup:", "warmpu:",
         "dir/job.yaml:5: optim.warmpu: unknown key (did you mean 'optim.warmup'?)"},
        {"steps: 300\n", "", "dir/job.yaml: steps: is missing (inner steps of every cluster)"},
        {"steps: 300\n", "steps: [3]\n", "dir/job.yaml:2: steps: must be a single value"},
        {"steps: 300\n", "steps: 300\nsteps: 301\n", "dir/job.yaml:3: steps: given twice"},
        {"steps: 300\n", "steps: 300\nclusters: [{name: rome}]\n",
         "dir/job.yaml:7: clusters: given twice"},
        {"threads: 2", "threads: 2, threads: 3", "dir/job.yaml:7: clusters: threads given twice"},
        {"threads: 2", "sources: {de: 1}", "dir/job.yaml:7: clusters: sources given twice"},
        {"threads: 2", "mesh: {dp: 2, dp: 1}", "dir/job.yaml:7: clusters.mesh: dp given twice"},
        {"{fr: 1, es: 0.5}", "[{name: fr, weight: 2, weight: 3}]",
         "dir/job.yaml:7: clusters.sources: weight given twice"},
        {"name: berlin", "name: paris",
         "dir/job.yaml:8: clusters.name: two clusters have the name \"paris\""},
        {"threads: 2", "threads: [2]", "dir/job.yaml:7: clusters.threads: must be a single value"},
        {"threads: 2", "threads: two",
         "dir/job.yaml:7: clusters.threads: \"two\" is not an integer"},
        {"threads: 2", "mesh.dp: 2",
         "dir/job.yaml:7: clusters: unknown key 'mesh.dp' (did you mean 'mesh'?); allowed: name, "
         "witness, threads, corpus, sources, role, init, weight, mesh, ranks, launcher, device, "
         "precision, outer_state, cuda_graphs, batch, recompute, profile"},
        {"threads: 2", "batch: 0", "dir/job.yaml:7: clusters.batch: 0 is not in 1..65536"},
        {"threads: 2", "recompute: yes",
         "dir/job.yaml:7: clusters.recompute: \"yes\" is neither true nor false"},
        {"threads: 2", "witness: 1",
         "dir/job.yaml:7: clusters.witness: \"1\" is neither true nor false"},
        {"threads: 2", "launcher: attach, device: cuda",
         "dir/job.yaml:7: clusters.device: cluster paris: an attached trainer chooses its own "
         "devices and types; remove it"},
        {"threads: 2", "launcher: attach, precision: bf16",
         "dir/job.yaml:7: clusters.precision: cluster paris: an attached trainer chooses its own "
         "devices and types; remove it"},
        {"threads: 2", "launcher: attach, cuda_graphs: off",
         "dir/job.yaml:7: clusters.cuda_graphs: cluster paris: an attached trainer chooses its own "
         "devices and types; remove it"},
        {"threads: 2", "thread: 2",
         "dir/job.yaml:7: clusters: unknown key 'thread' (did you mean 'threads'?); allowed: name, "
         "witness, threads, corpus, sources, role, init, weight, mesh, ranks, launcher, device, "
         "precision, outer_state, cuda_graphs, batch, recompute, profile"},
        {"threads: 2", "mesh: {dp: 2, cp: 2}",
         "dir/job.yaml:7: clusters.mesh: unknown key 'cp' (did you mean 'dp'?); allowed: dp, pp, "
         "tp"},
        {"threads: 2", "mesh: {tp: 0}", "dir/job.yaml:7: clusters.mesh.tp: 0 is not in 1..1024"},
        {"threads: 2", "mesh: {dp: 64, tp: 64}",
         "dir/job.yaml:7: clusters.mesh: cluster paris: 4096 ranks; the limit is 1024"},
        {"threads: 2", "mesh: {tp: 3}",
         "dir/job.yaml:7: clusters.mesh: cluster paris cannot run this model"},
        {"threads: 2", "mesh: auto, launcher: slurm",
         "dir/job.yaml:7: clusters.ranks: is missing: with launcher: slurm only you know how many "
         "ranks mesh: auto has; add ranks: N, or write the mesh, such as {dp: 4, tp: 2}"},
        {"threads: 2", "mesh: auto, launcher: mpirun, ranks: 0",
         "dir/job.yaml:7: clusters.ranks: 0 is not in 1..1024"},
        {"threads: 2", "mesh: auto, ranks: 4",
         "dir/job.yaml:7: clusters.ranks: needs mesh: auto and launcher: mpirun or slurm; with "
         "launcher local the planner finds the fastest number: remove it"},
        {"threads: 2", "mesh: {dp: 4}, launcher: mpirun, ranks: 4",
         "dir/job.yaml:7: clusters.ranks: needs mesh: auto and launcher: mpirun or slurm; a "
         "written "
         "mesh has this number: remove it"},
        {"threads: 2", "launcher: srun",
         "dir/job.yaml:7: clusters.launcher: \"srun\" is not one of: local, mpirun, slurm, attach"},
        {"threads: 2", "launcher: torchrun",
         "dir/job.yaml:7: clusters.launcher: \"torchrun\" is not one of: local, mpirun, slurm, "
         "attach; for your own loop that torchrun starts, use attach "
         "(configs/examples/train_ddp.py)"},
        {"threads: 2", "device: gpu",
         "dir/job.yaml:7: clusters.device: \"gpu\" is not one of: auto, cpu, cuda"},
        {"threads: 2", "precision: fp16",
         "dir/job.yaml:7: clusters.precision: \"fp16\" is not one of: auto, fp32, bf16"},
        {"threads: 2", "cuda_graphs: yes",
         "dir/job.yaml:7: clusters.cuda_graphs: \"yes\" is not one of: auto, on, off"},
        {"threads: 2", "cuda_graphs: on, device: cpu",
         "dir/job.yaml:7: clusters.cuda_graphs: cluster paris: \"on\" needs device: cuda; remove "
         "this key, or set it to off"},
        {"threads: 2", "cuda_graphs: on, mesh: {tp: 2}",
         "dir/job.yaml:7: clusters.cuda_graphs: cluster paris: \"on\" needs tp 1: a communicator "
         "inside a CUDA graph cannot be aborted while it hangs; remove this key, or set it to off"},
        {"fr: 1", "fr: -1",
         "dir/job.yaml:7: clusters.sources: weight of fr must be a number above 0"},
        {"name: paris, ", "", "dir/job.yaml:7: clusters.name: is missing"},
        {"name: paris", "name: Paris",
         "dir/job.yaml:7: clusters.name: \"Paris\" is not the name of an agent: 1 to 32 characters "
         "of a-z 0-9 - _ ., the first one a letter or digit"},
        {"name: paris", "name: paris-which-has-one-letter-more-xx",
         "dir/job.yaml:7: clusters.name: \"paris-which-has-one-letter-more-xx\" is not the name of "
         "an agent: 1 to 32 characters of a-z 0-9 - _ ., the first one a letter or digit"},
        {"n_heads: 4,", "n_heads: 4, rope_theta: 1,",
         "dir/job.yaml:3: model.rope_theta: 1 is not in 1.001..1000000000"},
        {"n_heads: 4,", "n_heads: 4, rope_scaling: llama3,",
         "dir/job.yaml:3: model.rope_scaling: must be a mapping of keys to values"},
        {"n_heads: 4,", "n_heads: 4, rope_scaling: {rope_type: yarn},",
         "dir/job.yaml:3: model.rope_scaling.rope_type: \"yarn\" is not one of: default, linear, "
         "llama3"},
        {"n_heads: 4,", "n_heads: 4, rope_scaling: {rope_type: linear},",
         "dir/job.yaml:3: model.rope_scaling.factor: is missing or 0; it must be a number from 1 "
         "to "
         "1000000"},
        {"n_heads: 4,", "n_heads: 4, rope_scaling: {factor: 8},",
         "dir/job.yaml:3: model.rope_scaling.factor: has no effect with rope_type default; remove "
         "it, "
         "or set another type (linear needs factor, llama3 needs all keys)"},
        {"n_heads: 4,",
         "n_heads: 4, rope_scaling: {rope_type: llama3, factor: 8, low_freq_factor: 4, "
         "high_freq_factor: 1, original_max_position_embeddings: 8192},",
         "dir/job.yaml:3: model.rope_scaling.high_freq_factor: 1 is not a number above "
         "low_freq_factor, up to 1000000"},
        {"lr: 2e-3", "lr: nan", "dir/job.yaml:5: optim.lr: \"nan\" is not a number"},
        {"steps: 300\n", "steps: 300\nmode: rdt\n",
         "dir/job.yaml:3: mode: \"rdt\" is not one of: replicas, rtd, distill"},
        {"steps: 300\n", "steps: 300\nmode: rtd\n",
         "dir/job.yaml:8: clusters: mode rtd needs two: one with role generator and one with role "
         "discriminator; either role may be auto"},
        {"threads: 2", "threads: 2, role: generator",
         "dir/job.yaml:7: clusters.role: only modes rtd and distill have roles"},
        {"threads: 2", "threads: 2, role: editor",
         "dir/job.yaml:7: clusters.role: \"editor\" is not one of: generator, discriminator, "
         "teacher, "
         "student, auto"},
        {"steps: 300\n", "steps: 300\nsync: {overlap: 30}\n",
         "dir/job.yaml:3: sync.overlap: 30 must be below sync.interval 30"},
        {"steps: 300\n", "steps: 300\ntrainable: {mode: lora, targets: [q, x]}\n",
         "dir/job.yaml:3: trainable.targets: \"x\" is not one of: q, k, v, o, gate, up, down"},
        {"steps: 300\n", "steps: 300\ntrainable: lora\n",
         "dir/job.yaml:3: trainable.rank: lora needs a rank of 1 or more and at least one target"},
        {"steps: 300\n", "steps: 300\nsync: {codec: int9}\n",
         "dir/job.yaml:3: sync.codec: \"int9\" is not one of: fp32, bf16, int8[:BLOCK], "
         "int4[:BLOCK], int3[:BLOCK], int2[:BLOCK], topk[:K/CHUNK[:2 or :4]]"},
        {"seq_len: 128, batch: 4", "seq_len: 1048576, batch: 17",
         "dir/job.yaml:4: data.batch: 17 x data.seq_len 1048576 is more than 16777216 tokens in a "
         "micro-batch; lower one of them and raise data.accumulate"},
        {"batch: 4", "batch: 65536, accumulate: 32768",
         "dir/job.yaml:4: data.accumulate: 32768 x data.batch 65536 is more than 16777216 "
         "sequences in a step"},
        {"n_kv_heads: 2", "n_kv_heads: 3",
         "dir/job.yaml:3: model.n_kv_heads: 3 does not divide n_heads 4"},
        {"d_model: 128", "d_model: 12",
         "dir/job.yaml:3: model.head_dim: 3 is not an even number in 2..256; choose d_model, "
         "n_heads or "
         "head_dim"},
        {"{fr: 1, es: 0.5}", "[{name: fr}, {name: fr}]",
         "dir/job.yaml:7: clusters.sources: fr given twice"},
        {"{fr: 1, es: 0.5}", "[{name: fr, wight: 2}]",
         "dir/job.yaml:7: clusters.sources: unknown key 'wight' (did you mean 'weight'?); allowed: "
         "name, weight"},
        {"{fr: 1, es: 0.5}", "[{weight: 2}]",
         "dir/job.yaml:7: clusters.sources: \"\" is not a name (letters, digits, '-', '_', '.')"},
        {"{fr: 1, es: 0.5}", "fr",
         "dir/job.yaml:7: clusters.sources: must map source names to weights, such as {en: 1, de: "
         "0.5}"},
        {"steps: 300\n", "steps: 1e3\n", "dir/job.yaml:2: steps: \"1e3\" is not an integer"},
        {"steps: 300\n", "steps: 300\nrecompute: yes\n",
         "dir/job.yaml:3: recompute: \"yes\" is neither true nor false"},
        {"steps: 300\n", "steps: 300\nmodel: 3\n",
         "dir/job.yaml:3: model.mode: \"3\" is not one of: built-in, attached"},
        {"job: first-light", "job: ../evil",
         "dir/job.yaml:1: job: \"../evil\" is not a name (letters, digits, '-', '_', '.')"},
    };
    struct agent_job j;
    neb_log_set_sink(capture, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048];
        const char *at = strstr(good, cases[i].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, cases[i].to,
                 at + strlen(cases[i].from));
        assert_int_equal(parse(text, &j), NEB_ERR_INVALID);
        assert_string_equal(message, cases[i].expect);
    }
    assert_int_equal(parse("job: [a\n", &j), NEB_ERR_FORMAT);
    assert_non_null(strstr(message, "dir/job.yaml:2: not valid YAML"));
    assert_int_equal(parse("", &j), NEB_ERR_INVALID);
    assert_string_equal(message, "dir/job.yaml: job file: is empty");
    neb_log_set_sink(NULL, NULL);
}

// A job of mode rtd or distill whose last cluster has `keys`; more: further sections.
static void role_job(char *text, size_t cap, const char *mode, const char *more, const char *keys) {
    bool rtd = !strcmp(mode, "rtd");
    snprintf(text, cap,
             "job: roles\nsteps: 300\nmode: %s\n"
             "model: {vocab: 512, n_layers: 4, d_model: 128, n_heads: 4, d_ff: 384}\n"
             "data: {corpus: /tmp/corpus, seq_len: 128, batch: 4}\noptim: {lr: 2e-3}\n%s"
             "clusters:\n  - {name: paris, role: %s}\n  - {name: rome, role: %s,\n     %s}\n",
             mode, more, rtd ? "generator" : "student", rtd ? "discriminator" : "teacher", keys);
}

static const char teacher_learns[] = "distill: {teacher: {learn: true}}\n",
                  one_process[] = "sync: {scheme: synchronous}\n",
                  taught_at_once[] =
                      "distill: {teacher: {learn: true}}\nsync: {scheme: synchronous}\n";

// The sides of rtd and distill train on every device and mesh on which a replica trains.
static void test_side_devices(void **state) {
    (void)state;
    static const char *const modes[] = {"rtd", "distill"},
                             *const keys[] = {"device: cuda",
                                              "device: auto, profile: /tmp/rome.json",
                                              "device: cpu, precision: bf16",
                                              "device: cuda, precision: bf16, cuda_graphs: auto",
                                              "precision: fp32, cuda_graphs: off",
                                              "device: cuda, outer_state: host",
                                              "device: cuda, mesh: {dp: 1, pp: 1, tp: 1}",
                                              "mesh: {dp: 2, pp: 2, tp: 2}, launcher: mpirun"};
    struct agent_job j;
    char text[2048];
    neb_log_set_sink(capture, NULL);
    for (size_t m = 0; m < 2; m++)
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            const char *more = m ? teacher_learns : "";
            message[0] = '\0';
            role_job(text, sizeof text, modes[m], more, keys[k]);
            if (parse(text, &j) != NEB_OK)
                fail_msg("%s, %s: %s", modes[m], keys[k], message);
            assert_true(agent_job_takes_devices(&j));
            json_t *spec = agent_job_to_json(&j);
            assert_int_equal(agent_job_from_json(spec, &j), NEB_OK);
            json_decref(spec);
        }
    // with both sides in one process, device auto means processors
    for (size_t m = 0; m < 2; m++) {
        role_job(text, sizeof text, modes[m], m ? taught_at_once : one_process,
                 "device: auto, precision: bf16, cuda_graphs: auto");
        assert_int_equal(parse(text, &j), NEB_OK);
        assert_false(agent_job_takes_devices(&j));
    }
    // federated students may keep the exchange's state on the device
    role_job(text, sizeof text, "distill", "distill: {federate: true}\n",
             "device: cuda, outer_state: device");
    memcpy(strstr(text, "role: teacher"), "role: student", strlen("role: student"));
    assert_int_equal(parse(text, &j), NEB_OK);
    neb_log_set_sink(NULL, NULL);
}

// A key that a side cannot have is refused, with its line in the file. An agent that receives such
// a job refuses it too.
static void test_side_devices_refused(void **state) {
    (void)state;
    static const struct {
        const char *mode, *more, *keys, *key, *expect;
    } cases[] = {
        {"rtd", "", "device: cuda, mesh: {dp: 3}", "mesh",
         "cluster rome: dp 3 does not divide the sequences of a step"},
        {"rtd", "", "mesh: {tp: 8}", "mesh", "cluster rome cannot run this model"},
        {"rtd", "", "mesh: auto", "mesh",
         "cluster rome: \"auto\" needs mode: replicas; in mode rtd give the numbers of ranks"},
        {"rtd", one_process, "mesh: {dp: 2}", "mesh",
         "cluster rome: mode rtd with sync.scheme: synchronous is one process; remove it"},
        {"distill", "distill: {teacher: {learn: true, n_heads: 1, d_model: 64}}\n", "mesh: {tp: 2}",
         "mesh", "cluster rome cannot run this model"},
        {"distill", teacher_learns, "mesh: auto, launcher: mpirun, ranks: 4", "mesh",
         "cluster rome: \"auto\" needs mode: replicas; in mode distill give the numbers of ranks"},
        {"rtd", "", "outer_state: device", "outer_state",
         "cluster rome: \"device\", but mode rtd merges no updates; allowed: auto, host"},
        {"distill", teacher_learns, "outer_state: device", "outer_state",
         "cluster rome: \"device\", but only students with distill.federate merge updates; "
         "allowed: auto, host"},
        {"distill", "distill: {federate: true, teacher: {learn: true}}\n", "outer_state: device",
         "outer_state",
         "cluster rome: \"device\", but only students with distill.federate merge updates; "
         "allowed: auto, host"},
        {"rtd", one_process, "device: cuda", "device",
         "cluster rome: \"cuda\", but mode rtd with sync.scheme: synchronous trains on "
         "processors; allowed: auto, cpu"},
        {"rtd", one_process, "cuda_graphs: on", "cuda_graphs",
         "cluster rome: \"on\", but mode rtd with sync.scheme: synchronous trains on "
         "processors; allowed: auto, off"},
        {"distill", taught_at_once, "device: cuda", "device",
         "cluster rome: \"cuda\", but mode distill with sync.scheme: synchronous trains on "
         "processors; allowed: auto, cpu"},
        {"distill", taught_at_once, "outer_state: device", "outer_state",
         "cluster rome: \"device\", but mode distill with sync.scheme: synchronous trains on "
         "processors; allowed: auto, host"},
        // only the synchronous reference takes all logits
        {"distill", "distill: {k: 0, teacher: {learn: true}}\n", "device: cuda", NULL,
         "dir/job.yaml:7: distill.k: 0 (all logits) needs sync.scheme: synchronous; otherwise give "
         "1..64"},
        {"rtd", "", "device: cpu, cuda_graphs: on", NULL,
         "clusters.cuda_graphs: cluster rome: \"on\" needs device: cuda; remove this key, or set "
         "it to off"},
        {"distill", "distill: {teacher: {learn: true}}\n", "cuda_graphs: on", "cuda_graphs",
         "cluster rome: \"on\", but only a discriminator's passes always have the same shape; "
         "allowed: auto, off"},
    };
    struct agent_job j;
    neb_log_set_sink(capture, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048], key[64] = "";
        role_job(text, sizeof text, cases[i].mode, cases[i].more, cases[i].keys);
        if (cases[i].key)
            snprintf(key, sizeof key, ": clusters.%s: ", cases[i].key);
        message[0] = '\0';
        assert_int_equal(parse(text, &j), NEB_ERR_INVALID);
        if (!strstr(message, key) || !strstr(message, cases[i].expect))
            fail_msg("%s, %s: \"%s\", not \"%s\"", cases[i].mode, cases[i].keys, message,
                     cases[i].expect);
        if (!cases[i].key || !strcmp(cases[i].key, "mesh") || strstr(cases[i].more, "federate"))
            continue; // also wrong without this key
        // the message names the line of the key; a job received from another agent has no lines
        assert_true(!strncmp(message, "dir/job.yaml:", 13));
        json_t *spec = NULL;
        role_job(text, sizeof text, cases[i].mode, cases[i].more, "threads: 1");
        assert_int_equal(parse(text, &j), NEB_OK);
        spec = agent_job_to_json(&j);
        const char *value = strstr(cases[i].keys, ": ") + 2;
        json_object_set_new(json_array_get(json_object_get(spec, "clusters"), 1), cases[i].key,
                            json_string(value));
        assert_int_equal(agent_job_from_json(spec, &j), NEB_ERR_INVALID);
        assert_non_null(strstr(message, cases[i].expect));
        json_decref(spec);
    }
    neb_log_set_sink(NULL, NULL);
}

// Who writes the text (distill.source), and several teachers: what makes no sense is refused.
static void test_distill_sources(void **state) {
    (void)state;
    static const struct {
        const char *keys, *clusters, *expect; // expect NULL: the job is fine
    } cases[] = {
        {"source: student, push_text: true, mix: 0.5", "S, T", NULL},
        {"source: teacher, mix: 0.25, relay: true", "S, T, {name: c, role: student}", NULL},
        {"source: teacher, cache: /tmp/cache", "S", NULL},
        {"push_text: true", "S, T, {name: c, role: teacher, init: /c.ckpt, weight: 0.5}", NULL},
        {"federate: true", "S, {name: c, role: student}, T, {name: d, role: teacher}", NULL},
        {"source: student, mix: 1.5, push_text: true", "S, T", "distill.mix: 1.5 is not in"},
        {"source: student", "S, T", "distill.push_text: distill.source: student: needs true"},
        {"source: student, push_text: true, cache: /tmp/cache", "S, T", "distill.cache: "},
        {"source: student, push_text: true", "S", "distill.source: student: needs a teacher"},
        {"source: teacher", "S", "distill.source: teacher: needs a teacher"},
        {"source: teacher, teacher: {learn: true}", "S, T", "distill.teacher.learn: "},
        {"source: teacher", "S, T, {name: c, role: teacher}", "needs one teacher: the answers"},
        {"source: teacher, align: text, push_text: true",
         "S, {name: c, role: teacher, launcher: attach}", "distill.align: distill.source: teacher"},
        {"relay: true", "S, T, {name: c, role: teacher}", "several teachers need distill.relay"},
        {"cache: /tmp/cache", "S, T, {name: c, role: teacher}", "need no distill.cache"},
        {"k: 8", "S, T, {name: c, role: teacher}, {name: d, role: auto}", "give all roles"},
        {"k: 8", "T", "clusters.role: mode distill needs a student"},
        {"k: 8", "{name: a, role: student, weight: 2}, T", "clusters.weight: cluster a: only a"},
        {"k: 8", "{name: a, role: student, init: /c.ckpt}, T", "clusters.init: cluster a: only a"},
        {"federate: true", "S, T, {name: c, role: student}, {name: d, role: teacher}",
         "the teachers as the last of the clusters"},
        {"push_text: true", "S, {name: c, role: teacher, launcher: attach, init: /c.ckpt}",
         "clusters.init: cluster c has launcher attach: its program has its own model"},
    };
    struct agent_job j, back;
    neb_log_set_sink(capture, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *teacher =
            strstr(cases[i].keys, "teacher: {") ? "" : ", teacher: {init: /t.ckpt}";
        char text[2048], clusters[512] = "";
        for (const char *p = cases[i].clusters; *p; p++) {
            bool alone = p[1] == ',' || !p[1];
            size_t n = strlen(clusters);
            snprintf(clusters + n, sizeof clusters - n, "%.*s",
                     alone && (*p == 'S' || *p == 'T') ? 32 : 1,
                     alone && *p == 'S'   ? "{name: a, role: student}"
                     : alone && *p == 'T' ? "{name: b, role: teacher}"
                                          : p);
        }
        snprintf(text, sizeof text,
                 "job: t\nsteps: 3\nmode: distill\n"
                 "model: {vocab: 512, n_layers: 1, d_model: 8, n_heads: 2, d_ff: 16}\n"
                 "data: {corpus: /tmp/corpus, seq_len: 16, batch: 4}\noptim: {lr: 2e-3}\n"
                 "distill: {%s%s}\nclusters: [%s]\n",
                 cases[i].keys, teacher, clusters);
        message[0] = '\0';
        enum neb_status st = parse(text, &j);
        if ((st == NEB_OK) != !cases[i].expect ||
            (cases[i].expect && !strstr(message, cases[i].expect)))
            fail_msg("%s: \"%s\"", text, message);
        json_t *spec = st == NEB_OK ? agent_job_to_json(&j) : NULL;
        if (!spec)
            continue;
        assert_int_equal(agent_job_from_json(spec, &back), NEB_OK);
        for (int32_t c = 0; c < j.n_clusters; c++) {
            assert_string_equal(back.clusters[c].init, j.clusters[c].init);
            assert_true(back.clusters[c].weight == j.clusters[c].weight);
        }
        json_decref(spec);
    }
    neb_log_set_sink(NULL, NULL);
}

// Which keys a resumed run may change, and the error that names a key that it may not change.
static void test_resume_differences(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *key;
    } cases[] = {
        {"threads: 2", "threads: 1, mesh: {pp: 2}, launcher: mpirun, device: cpu", NULL},
        {"threads: 2", "threads: 2, launcher: attach", "clusters.launcher"},
        {"threads: 2", "threads: 2, precision: bf16", NULL},
        {"threads: 2", "threads: 2, cuda_graphs: off", NULL},
        {"threads: 2", "threads: 2, batch: 2, recompute: true", NULL},
        {"threads: 2", "threads: 2, outer_state: host", "clusters.outer_state"},
        {"threads: 2", "threads: 2, corpus: /tmp/other", "clusters.corpus"},
        {"es: 0.5", "es: 0.6", "clusters.sources"},
        {"{en: 1, de: 1}", "{de: 1, en: 1}", "the order of clusters.sources"},
        {"name: paris", "name: rome", "clusters.name"},
        {"batch: 4", "batch: 8", "data.batch"},
        {"steps: 300", "steps: 301", "steps"},
        {"  - {name: berlin, sources: {en: 1, de: 1}}\n", "", "clusters"},
    };
    struct agent_job j;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048];
        const char *at = strstr(good, cases[i].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, cases[i].to,
                 at + strlen(cases[i].from));
        assert_int_equal(parse(good, &j), NEB_OK);
        json_t *was = agent_job_to_json(&j);
        if (cases[i].key &&
            !strcmp(cases[i].key, "clusters.launcher")) { // of a job with a vocabulary
            json_decref(was);
            j.model.vocab = 512;
            was = agent_job_to_json(&j);
            j.clusters[0].launcher = AGENT_LAUNCHER_ATTACH;
        } else {
            assert_int_equal(parse(text, &j), NEB_OK);
        }
        json_t *now = agent_job_to_json(&j);
        for (int k = 0; k < 2; k++) {
            const char *key = k ? agent_job_differs(now, was) : agent_job_differs(was, now);
            if (cases[i].key)
                assert_string_equal(key, cases[i].key);
            else
                assert_null(key);
        }
        json_decref(was);
        json_decref(now);
    }
}

// "~" means the home of the file's owner, wherever a path stands in the file.
static void test_home(void **state) {
    (void)state;
    char text[1024];
    struct agent_job j;
    setenv("HOME", "/home/anna", 1);
    unsetenv("XDG_CACHE_HOME");
    snprintf(text, sizeof text, "%s  - {name: rome, corpus: ~/.cache/it, profile: ~/rome.json}\n",
             good);
    assert_int_equal(parse(text, &j), NEB_OK);
    assert_string_equal(j.clusters[2].corpus, "/home/anna/.cache/it");
    assert_string_equal(j.clusters[2].profile, "/home/anna/rome.json");
}

// A cluster has the name of its agent. In the synchronous reference the other names are free.
static void test_names(void **state) {
    (void)state;
    static struct agent_job j;
    char text[sizeof good + 64];
    neb_log_set_sink(capture, NULL);
    const char *at = strstr(good, "berlin");
    snprintf(text, sizeof text, "%.*sBerlin%s", (int)(at - good), good, at + strlen("berlin"));
    assert_int_equal(parse(text, &j), NEB_ERR_INVALID);
    assert_non_null(strstr(message, "\"Berlin\" is not the name of an agent"));
    snprintf(text, sizeof text, "%.*sBerlin%ssync: {scheme: synchronous}\n", (int)(at - good), good,
             at + strlen("berlin"));
    assert_int_equal(parse(text, &j), NEB_OK);
    neb_log_set_sink(NULL, NULL);
}

static void test_set(void **state) {
    (void)state;
    struct agent_job j;
    assert_int_equal(parse(good, &j), NEB_OK);
    assert_int_equal(agent_job_set(&j, "sync.interval=10"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "trainable=lora"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "trainable.rank=4"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "trainable.targets=[q, down]"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "sync.codec=topk:64/4096"), NEB_OK);
    assert_true(j.optim.kind == INTRA_OPTIM_ADAMW && j.optim.momentum == 0.95f);
    assert_int_equal(agent_job_set(&j, "optim.name=muon"), NEB_OK);
    assert_int_equal(j.optim.kind, INTRA_OPTIM_MUON);
    assert_true(agent_job_gives(&j, "sync.codec") && agent_job_gives(&j, "model.d_ff") &&
                !agent_job_gives(&j, "model.tied"));
    assert_true(j.sync.interval == 10 && j.trainable.mode == INTRA_TRAIN_LORA &&
                j.trainable.lora_targets == (INTRA_LORA_Q | INTRA_LORA_DOWN));
    neb_log_set_sink(capture, NULL);
    setenv("HOME", "/home/anna", 1);
    unsetenv("XDG_CACHE_HOME");
    assert_int_equal(agent_job_set(&j, "data.corpus=~/.cache/x"), NEB_OK);
    assert_string_equal(j.corpus, "/home/anna/.cache/x");
    setenv("XDG_CACHE_HOME", "/cache", 1);
    assert_int_equal(agent_job_set(&j, "data.corpus=~/.cache/x"), NEB_OK);
    assert_string_equal(j.corpus, "/cache/x");
    assert_int_equal(agent_job_set(&j, "data.corpus=~x/~/y"), NEB_OK);
    assert_string_equal(j.corpus, "~x/~/y"); // not a home folder
    assert_int_equal(agent_job_set(&j, "sync.interval=x"), NEB_ERR_INVALID);
    assert_string_equal(message, "--set: sync.interval: \"x\" is not an integer");
    assert_int_equal(agent_job_set(&j, "sync.intervall=1"), NEB_ERR_INVALID);
    assert_string_equal(message,
                        "--set: sync.intervall: unknown key (did you mean 'sync.interval'?)");
    assert_int_equal(agent_job_set(&j, "steps"), NEB_ERR_INVALID);
    assert_int_equal(agent_job_set(&j, "data.corpus=/tmp/\xff"), NEB_ERR_INVALID);
    assert_string_equal(message, "--set: data.corpus: is not UTF-8 text");
    neb_log_set_sink(NULL, NULL);
}

// Early exchanges: whole intervals, and an update must arrive before the next one is due.
static void test_early_interval(void **state) {
    (void)state;
    struct agent_job j;
    assert_int_equal(parse(good, &j), NEB_OK);
    j.sync.interval = 64;
    j.sync.fragments = 1;
    j.sync.overlap = 2;
    j.sync.early_interval = 8;
    j.sync.early_steps = 80;
    assert_int_equal(agent_job_validate(&j, "j"), NEB_OK);
    neb_log_set_sink(capture, NULL);
    j.sync.early_steps = 81;
    assert_int_equal(agent_job_validate(&j, "j"), NEB_ERR_INVALID);
    assert_string_equal(message,
                        "j: sync.early_steps: 81 is not a multiple of sync.early_interval 8");
    j.sync.early_steps = 80;
    j.sync.overlap = 8;
    assert_int_equal(agent_job_validate(&j, "j"), NEB_ERR_INVALID);
    j.sync.overlap = 2;
    j.sync.fragments = 9;
    assert_int_equal(agent_job_validate(&j, "j"), NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
}

// Clears what a job sent to another agent does not contain.
static void forget_lines(struct agent_job *j) {
    memset(j->lines, 0, sizeof j->lines);
    j->clusters_line = 0;
    memset(j->cluster_lines, 0, sizeof j->cluster_lines);
    memset(j->given, 0, sizeof j->given);
}

static void test_json_round_trip(void **state) {
    (void)state;
    struct agent_job j, k;
    assert_int_equal(parse(good, &j), NEB_OK);
    assert_int_equal(agent_job_set(&j, "optim.lr=0.0017"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "trainable.freeze=[embeddings]"), NEB_OK);
    j.model.rope_scaling = (struct kern_rope_scaling){KERN_ROPE_LLAMA3, 8.1f, 1.1f, 4, 8192};
    j.clusters[0].mesh = (struct intra_mesh_config){1, 1, 2};
    j.clusters[0].launcher = AGENT_LAUNCHER_MPIRUN;
    j.clusters[0].device = AGENT_DEVICE_CPU;
    j.clusters[1].device = AGENT_DEVICE_CUDA;
    j.clusters[1].precision = AGENT_PRECISION_FP32;
    j.clusters[1].threads = 768; // --local 1 gives this number on two processors with 192 cores
    json_t *json = agent_job_to_json(&j);
    assert_int_equal(agent_job_from_json(json, &k), NEB_OK);
    assert_memory_equal(&j.clusters, &k.clusters, sizeof j.clusters);
    json_t *again = agent_job_to_json(&k);
    assert_true(json_equal(json, again));
    assert_memory_equal(&j.optim, &k.optim, sizeof j.optim); // floats are equal to the bit
    assert_memory_equal(&j.model.rope_scaling, &k.model.rope_scaling, sizeof j.model.rope_scaling);
    json_object_set_new(json, "extra", json_integer(1));
    neb_log_set_sink(capture, NULL);
    assert_int_equal(agent_job_from_json(json, &k), NEB_ERR_FORMAT);
    neb_log_set_sink(NULL, NULL);
    json_decref(json);
    json_decref(again);
}

// Both ways to write sources give the same job; a missing weight is 1.
static void test_sources(void **state) {
    (void)state;
    static const char mapping[] = "{fr: 1, es: 0.5}",
                      list[] = "[{name: fr}, {weight: 0.5, name: es}]";
    struct agent_job a, b;
    char text[2048];
    const char *at = strstr(good, mapping);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, list, at + strlen(mapping));
    assert_int_equal(parse(good, &a), NEB_OK);
    assert_int_equal(parse(text, &b), NEB_OK);
    forget_lines(&a);
    forget_lines(&b);
    assert_memory_equal(&a, &b, sizeof a);
}

// Bounds that fp32 cannot hold exactly: every value that YAML accepts is accepted from JSON too.
static void test_bounds_survive_json(void **state) {
    (void)state;
    static const char *const at_bounds[] = {
        "sync.outer.momentum=0.999", "optim.beta2=0.99999", "model.norm_eps=0.1",
        "sync.kappa=1e-6",           "optim.lr=1e-9",       "optim.eps=1e-20",
        "model.norm_eps=1e-12"};
    struct agent_job j, k;
    for (size_t i = 0; i < sizeof at_bounds / sizeof at_bounds[0]; i++) {
        assert_int_equal(parse(good, &j), NEB_OK);
        assert_int_equal(agent_job_set(&j, at_bounds[i]), NEB_OK);
        json_t *json = agent_job_to_json(&j);
        char *text = json_dumps(json, JSON_COMPACT); // as agents send it
        json_t *back = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        assert_int_equal(agent_job_from_json(back, &k), NEB_OK);
        forget_lines(&j);
        assert_memory_equal(&j, &k, sizeof j);
        json_decref(json);
        json_decref(back);
        free(text);
    }
    neb_log_set_sink(capture, NULL);
    assert_int_equal(agent_job_set(&j, "sync.outer.momentum=0.9991"), NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
    assert_string_equal(message, "--set: sync.outer.momentum: 0.9991 is not in 0..0.999");
}

// Whether enough members of a masked sum remain when some are revoked.
static void test_private_has_enough(void **state) {
    (void)state;
    struct agent_job j = {.n_clusters = 3};
    assert_true(agent_private_has_enough(&j, mset_from_bits(1)));
    j.sync.gate = AGENT_GATE_PRIVATE;
    assert_true(agent_private_has_enough(&j, mset_from_bits(0)));
    assert_false(agent_private_has_enough(&j, mset_from_bits(1)));
    j.n_clusters = 5;
    j.sync.private_colluders = 1;
    assert_true(agent_private_has_enough(&j, mset_from_bits(1 << 4)));
    assert_false(agent_private_has_enough(&j, mset_from_bits(1 << 4 | 1)));
}

// Keys of differential privacy need each other and masked sums.
static void test_private_noise(void **state) {
    (void)state;
    static const char text[] =
        "job: j\nsteps: 100\nmodel: {vocab: 96, n_layers: 2, d_model: 32, n_heads: 4, d_ff: 80}\n"
        "data: {corpus: c, seq_len: 16, batch: 1}\noptim: {lr: 1e-3}\n"
        "sync: {interval: 10, codec: bf16, row_weights: false, gate: private,\n"
        "  dp: {clip: 0.1, noise: 2}}\n"
        "clusters: [{name: a}, {name: b}, {name: c}]\n";
    static const struct {
        const char *set, *says;
    } wrong[] = {{"sync.gate=trusted", "sync.dp.clip: needs sync.gate: private"},
                 {"sync.dp.clip=0", "sync.dp.clip: is missing"},
                 {"sync.dp.noise=0", "sync.dp.noise: is missing"},
                 {"sync.dp.clip=1e-9", "sync.dp.clip: must be 1e-6 or more"},
                 {"sync.dp.noise=0.001", "sync.dp.noise: must be 0.05 or more"},
                 {"sync.private_range=2", "sync.private_range: does not work with"},
                 {"sync.codec=auto", "sync.codec: must be bf16"},
                 {"sync.codec=int8", "sync.codec: must be bf16"},
                 {"sync.row_weights=true", "sync.row_weights: must be false"},
                 {"sync.tune.mode=auto", "sync.tune: must be fixed"}};
    static struct agent_job j;
    char says[AGENT_PRIVATE_TEXT];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(agent_job_parse(text, strlen(text), "job.yaml", &j), NEB_OK);
        assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_OK);
        assert_int_equal(agent_job_set(&j, wrong[i].set), NEB_OK);
        neb_log_set_sink(capture, NULL);
        assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_ERR_INVALID);
        neb_log_set_sink(NULL, NULL);
        if (!strstr(message, wrong[i].says))
            fail_msg("%s: %s", wrong[i].set, message);
    }
    assert_int_equal(agent_job_parse(text, strlen(text), "job.yaml", &j), NEB_OK);
    double few = agent_private_epsilon(&j, 10, says);
    assert_true(few > 0 && few < 10 && !strstr(says, "protects little"));
    assert_true(agent_private_epsilon(&j, 1000, says) > 10 && strstr(says, "protects little"));
    j.sync.dp.clip = 0; // no noise is asked for
    assert_true(agent_private_epsilon(&j, 10, says) != few && !says[0]);
}

// With masked sums every member has the same batch.
static void test_private_batch(void **state) {
    (void)state;
    static const struct {
        const char *batch, *cluster, *expect;
    } cases[] = {{"4", "", NULL},
                 {"4", ", recompute: true", NULL},
                 {"4", ", batch: 2", "clusters.batch: must be one number for all clusters"},
                 {"auto", "", "data.batch: must be one number for all clusters"}};
    static struct agent_job j;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        int n = snprintf(
            text, sizeof text,
            "job: j\nsteps: 100\nmodel: {vocab: 96, n_layers: 2, d_model: 32, n_heads: 4, d_ff: "
            "80}\ndata: {corpus: c, seq_len: 16, batch: %s, accumulate: 8}\noptim: {lr: 1e-3}\n"
            "sync: {gate: private, codec: bf16, row_weights: false}\n"
            "clusters: [{name: a%s}, {name: b}, {name: c}]\n",
            cases[i].batch, cases[i].cluster);
        neb_log_set_sink(capture, NULL);
        enum neb_status st = agent_job_parse(text, (size_t)n, "job.yaml", &j);
        neb_log_set_sink(NULL, NULL);
        assert_int_equal(st, cases[i].expect ? NEB_ERR_INVALID : NEB_OK);
        if (cases[i].expect)
            assert_non_null(strstr(message, cases[i].expect));
    }
}

static void test_auto(void **state) {
    (void)state;
    static const char text[] =
        "job: j\nsteps: 100\nrecompute: auto\n"
        "model: {vocab: 96, n_layers: 2, d_model: 32, n_heads: 4, d_ff: 80}\n"
        "data: {corpus: c, seq_len: 16, batch: auto, accumulate: 8}\noptim: {lr: 1e-3}\n"
        "sync: {interval: auto, overlap: auto, codec: auto, fragments: 4, link: 10mbit:50ms}\n"
        "clusters: [{name: a, mesh: auto}, {name: b},\n"
        "  {name: c, ranks: 8, mesh: auto, launcher: slurm}]\n";
    static struct agent_job j, back;
    assert_int_equal(agent_job_parse(text, strlen(text), "job.yaml", &j), NEB_OK);
    assert_int_equal(j.autos, AGENT_AUTO_BATCH | AGENT_AUTO_RECOMPUTE | AGENT_AUTO_INTERVAL |
                                  AGENT_AUTO_OVERLAP | AGENT_AUTO_CODEC);
    assert_true(j.clusters[0].mesh_auto && !j.clusters[1].mesh_auto && j.batch == 1);
    assert_true(j.clusters[2].mesh_auto && j.clusters[2].ranks == 8);
    assert_int_equal(agent_job_set(&j, "sync.codec=int8"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "sync.overlap=2"), NEB_OK);
    assert_int_equal(agent_job_set(&j, "sync.interval=50"), NEB_OK);
    assert_int_equal(j.autos, AGENT_AUTO_BATCH | AGENT_AUTO_RECOMPUTE);
    assert_int_equal(agent_job_set(&j, "seed=auto"), NEB_ERR_INVALID);
    assert_int_equal(agent_job_set(&j, "sync.outer.lr=auto"), NEB_ERR_INVALID);
    json_t *o = agent_job_to_json(&j);
    assert_int_equal(agent_job_from_json(o, &back), NEB_OK);
    assert_true(back.autos == 0 && !back.clusters[0].mesh_auto && back.sync.interval == 50);
    json_object_set_new(o, "sync.codec", json_string("auto"));
    assert_int_equal(agent_job_from_json(o, &back), NEB_ERR_FORMAT);
    json_decref(o);
    // a value that the planner will choose is not compared with other values yet; a written one is
    static const struct {
        const char *sync, *expect; // NULL: accepted
    } with_tune[] = {
        {"codec: auto, tune: {mode: auto, finest: int3}", NULL},
        {"interval: auto, tune: {mode: auto, overlap_max: 40}", NULL},
        {"interval: auto, tune: {mode: auto, interval_max: 20}", NULL},
        {"interval: 20, overlap: auto, tune: {mode: auto, overlap_max: 20}", "overlap_max: 20"},
        {"overlap: 5, interval: auto, tune: {mode: auto, overlap_max: 4}", "overlap_max: 4"},
        {"interval: auto, tune: {mode: auto, overlap_max: 40, interval_max: 40}", "interval_max"},
        {"codec: auto, tune: {mode: auto, finest: int2, coarsest: int4}", "finest: int2"},
        {"overlap: auto, interval: 20, fragments: 21", "sync.fragments: 21"},
    };
    neb_log_set_sink(capture, NULL);
    for (size_t i = 0; i < sizeof with_tune / sizeof with_tune[0]; i++) {
        char job[1024];
        snprintf(job, sizeof job, "%ssync: {%s}\n", good, with_tune[i].sync);
        assert_int_equal(parse(job, &back), with_tune[i].expect ? NEB_ERR_INVALID : NEB_OK);
        if (with_tune[i].expect && !strstr(message, with_tune[i].expect))
            fail_msg("%s: %s", with_tune[i].sync, message);
    }
    neb_log_set_sink(NULL, NULL);
    // such a value is a text until all values are known
    assert_int_equal(agent_job_set(&j, "sync.link=fast"), NEB_OK);
    assert_int_equal(agent_job_validate(&j, "job.yaml"), NEB_ERR_INVALID);
}

static int count_rows(const char *text, const char *path) {
    char row[128];
    int n = 0;
    snprintf(row, sizeof row, "\n| `%s` | ", path);
    for (const char *p = text; (p = strstr(p, row)); p++)
        n++;
    return n;
}

// Every key of a job and of a cluster is in the reference once, with one short line.
static void test_reference(void **state) {
    (void)state;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    assert_non_null(f);
    agent_job_reference(f);
    assert_int_equal(fclose(f), 0);
    for (int i = 0; i < config_n_options + config_n_cluster_options; i++) {
        const struct config_option *o = i < config_n_options
                                            ? &config_options[i]
                                            : &config_cluster_options[i - config_n_options].option;
        assert_int_equal(count_rows(text, o->path), 1);
        assert_in_range(strlen(o->help), 3, 100);
        assert_null(strpbrk(o->help, "|\n"));
    }
    for (int i = 0; i < config_n_group_options; i++)
        assert_int_equal(count_rows(text, config_group_options[i].path), 1);
    assert_non_null(strstr(text, "| `clusters.threads` | 0 | 0 to 1024 | threads"));
    assert_non_null(strstr(text, "| `clusters.mesh` | none | {dp, pp, tp}, auto | ranks"));
    assert_non_null(strstr(text, "| `sync.interval` | 30 | 1 to 1e9, auto | H: "));
    free(text);
}

// The default of each row is the value of a cluster that gives only its name.
static void test_cluster_defaults(void **state) {
    (void)state;
    struct agent_cluster c;
    config_cluster_defaults(&c);
    for (int i = 0; i < config_n_cluster_options; i++) {
        const struct config_option *o = &config_cluster_options[i].option;
        struct agent_cluster other = c;
        if (o->preset && *o->preset)
            assert_int_equal(config_set_cluster(&other, o, o->preset, "default"), NEB_OK);
        assert_memory_equal(&c, &other, sizeof c);
    }
    assert_int_equal(agent_cluster_ranks(&c), 1);
    assert_true(c.mesh.dp == 1 && c.mesh.pp == 1 && c.mesh.tp == 1 && !c.threads && !c.witness);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good),
                                       cmocka_unit_test(test_error_messages),
                                       cmocka_unit_test(test_auto),
                                       cmocka_unit_test(test_private_noise),
                                       cmocka_unit_test(test_private_has_enough),
                                       cmocka_unit_test(test_private_batch),
                                       cmocka_unit_test(test_side_devices),
                                       cmocka_unit_test(test_side_devices_refused),
                                       cmocka_unit_test(test_distill_sources),
                                       cmocka_unit_test(test_resume_differences),
                                       cmocka_unit_test(test_set),
                                       cmocka_unit_test(test_json_round_trip),
                                       cmocka_unit_test(test_sources),
                                       cmocka_unit_test(test_bounds_survive_json),
                                       cmocka_unit_test(test_home),
                                       cmocka_unit_test(test_early_interval),
                                       cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_reference),
                                       cmocka_unit_test(test_cluster_defaults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
