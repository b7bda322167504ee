// SPDX-License-Identifier: Apache-2.0
// Groups of tensors in the exchange: fragments of a group, its codec, tensors that stay at home,
// tensors that one cluster owns, and what a checkpoint holds of them. Two clusters in one process
// commit what both have sent; nobody listens to their messages.
#include "agent/base/log.h"
#include "agent/exchange/exchange.h"
#include "agent/exchange/manifest.h"
#include "tests/ipc_part.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CLUSTERS = 2, FRAGMENTS = 5, TRUNK = 0, NORM = 2, HEAD = 3, REST = 4, LONG = 1500000 };
static const char yaml[] =
    "job: t\nsteps: 40\nmodel: {n_layers: 2, vocab: 32, d_model: 8, n_heads: 2, d_ff: 16}\n"
    "data: {corpus: /nowhere, seq_len: 8, batch: 1}\noptim: {lr: 0.1}\n"
    "sync: {scheme: federated, interval: 10, codec: fp32}\nclusters:\n  - {name: a}\n"
    "  - {name: b}\n";
static char dir[] = "/tmp/nebula-groups-XXXXXX";
static struct kern *kern;

struct cluster {
    struct agent_exchange x;
    struct exchange_manifest *manifest;
    struct agent_unit *units;
    float **arrays; // (units)
};

static enum neb_status read_arrays(void *user, const struct agent_move *moves, int32_t n) {
    const struct cluster *c = user;
    for (int32_t i = 0; i < n; i++)
        memcpy(moves[i].at, c->arrays[moves[i].unit],
               agent_unit_size(&c->units[moves[i].unit]) * sizeof(float));
    return NEB_OK;
}

static enum neb_status write_arrays(void *user, const struct agent_move *moves, int32_t n,
                                    bool there) {
    const struct cluster *c = user;
    assert_false(there);
    for (int32_t i = 0; i < n; i++)
        memcpy(c->arrays[moves[i].unit], moves[i].at,
               agent_unit_size(&c->units[moves[i].unit]) * sizeof(float));
    return NEB_OK;
}

static enum neb_status nothing_saved(void *user, struct intra_ckpt_writer *out) {
    (void)user, (void)out;
    return NEB_OK;
}
static enum neb_status nothing_restored(void *user, const struct intra_ckpt *c) {
    (void)user, (void)c;
    return NEB_OK;
}
static const struct agent_trainer_ops ops = {
    .read = read_arrays, .write = write_arrays, .save = nothing_saved, .restore = nothing_restored};

static struct agent_group group(const char *match, enum agent_group_exchange exchange) {
    struct agent_group g = {
        .exchange = exchange, .every = 1, .owner = -1, .eta = NAN, .mu = NAN, .fragments = 1};
    snprintf(g.match, sizeof g.match, "%s", match);
    return g;
}

// trunk.*: 2 fragments; *.expert.*: never; *norm*: every 2, int8; head: of cluster b; and the rest.
static void set_groups(struct agent_job *j) {
    j->groups[0] = group("*.expert.*", AGENT_GROUP_NEVER);
    j->groups[1] = group("trunk.*", AGENT_GROUP_EVERY);
    j->groups[1].fragments = 2;
    j->groups[2] = group("*norm*", AGENT_GROUP_EVERY);
    j->groups[2].every = 2;
    snprintf(j->groups[2].codec, sizeof j->groups[2].codec, "int8");
    j->groups[3] = group("head", AGENT_GROUP_OWNER);
    j->groups[3].owner = 1;
    j->n_groups = 4;
}

static const struct exchange_tensor tensors[] = {
    {.name = "trunk.0", .dims = 2, .shape = {40, 30}},
    {.name = "trunk.1", .dims = 1, .shape = {LONG}}, // its row is cut
    {.name = "trunk.2", .dims = 4, .shape = {3, 5, 7, 2}},
    {.name = "trunk.expert.0", .dims = 2, .shape = {20, 20}},
    {.name = "norm", .dims = 1, .shape = {100}},
    {.name = "head", .dims = 2, .shape = {16, 20}},
    {.name = "scale", .dims = 0}};
enum { TENSORS = sizeof tensors / sizeof *tensors };

static void connect(struct agent_exchange *x) {
    char path[NEB_PATH_MAX];
    assert_int_equal(neb_path(path, sizeof path, x->dir, "agent.sock"), NEB_OK);
    assert_non_null(x->link.zctx = zmq_ctx_new());
    assert_int_equal(agent_ipc_connect(x->link.zctx, path, &x->link.ipc), NEB_OK);
    assert_int_equal(neb_path(path, sizeof path, x->dir, "merges.log"), NEB_OK);
    assert_non_null(x->merges.file = fopen(path, "w"));
}

static struct cluster *make(int who) {
    struct cluster *c = calloc(1, sizeof *c);
    struct agent_exchange *x = &c->x;
    int32_t n;
    assert_non_null(c);
    assert_int_equal(agent_job_parse(yaml, sizeof yaml - 1, "t.yaml", &x->job), NEB_OK);
    set_groups(&x->job);
    assert_int_equal(exchange_manifest_create(tensors, TENSORS, &c->manifest), NEB_OK);
    assert_int_equal(exchange_manifest_units(c->manifest, 0, &c->units, &n), NEB_OK);
    assert_non_null(c->arrays = calloc((size_t)n, sizeof *c->arrays));
    for (int32_t i = 0; i < n; i++) {
        size_t size = agent_unit_size(&c->units[i]);
        assert_non_null(c->arrays[i] = calloc(size, sizeof(float)));
        for (size_t k = 0; k < size; k++)
            c->arrays[i][k] = (float)(k % 13) * 0.1f;
    }
    snprintf(x->dir, sizeof x->dir, "%s", dir);
    connect(x);
    x->cluster = who;
    x->federated = true;
    x->isa = "any";
    x->trainer = (struct agent_trainer){
        .ops = &ops, .user = c, .units = c->units, .n_units = n, .pool = kern->pool};
    assert_int_equal(exchange_create(x), NEB_OK);
    return c;
}

static void destroy(struct cluster **cp) {
    struct cluster *c = *cp;
    int linger = 0;
    for (int32_t i = 0; i < c->x.trainer.n_units; i++)
        free(c->arrays[i]);
    exchange_destroy(&c->x);
    zmq_setsockopt(agent_ipc_socket(c->x.link.ipc), ZMQ_LINGER, &linger, sizeof linger);
    exchange_leave(&c->x);
    exchange_manifest_destroy(&c->manifest);
    free(c->units);
    free(c->arrays);
    free(c);
    *cp = NULL;
}

static int32_t unit_of(const struct cluster *c, const char *tensor) {
    for (int32_t i = 0; i < c->x.trainer.n_units; i++)
        if (strcmp(c->units[i].tensor, tensor) == 0)
            return i;
    fail_msg("no tensor %s", tensor);
    return -1;
}

static void train(struct cluster *c) {
    for (int32_t i = 0; i < c->x.trainer.n_units; i++)
        for (size_t k = 0; k < agent_unit_size(&c->units[i]); k++)
            c->arrays[i][k] += 0.01f * (float)((k + (size_t)c->x.cluster) % 7);
    c->x.all_tokens += 1000;
    c->x.step++;
}

static void test_fragments_of_groups(void **state) {
    (void)state;
    struct cluster *c = make(0);
    const struct agent_exchange *x = &c->x;
    const int32_t *f = x->fragment;
    assert_int_equal(exchange_fragments(x), FRAGMENTS);
    int32_t t0 = unit_of(c, "trunk.0"), t1 = unit_of(c, "trunk.1"), t2 = unit_of(c, "trunk.2");
    assert_true(f[t0] == TRUNK && f[t1] == TRUNK + 1 && f[t1 + 1] == f[t1] && f[t2] == f[t1]);
    assert_true(c->units[t1 + 1].col0 == c->units[t1].cols);
    assert_int_equal(f[unit_of(c, "trunk.expert.0")], -1);
    assert_int_equal(f[unit_of(c, "norm")], NORM);
    assert_int_equal(f[unit_of(c, "head")], HEAD);
    assert_int_equal(f[unit_of(c, "scale")], REST);
    assert_int_equal(x->elements, 40 * 30 + LONG + 3 * 5 * 7 * 2 + 100 + 16 * 20 + 1);
    for (int32_t k = 0; k < FRAGMENTS; k++) {
        char name[32];
        cmp_codec_name(&x->kept[k].codec, name, sizeof name);
        assert_string_equal(name, k == NORM ? "int8" : "fp32");
        assert_int_equal(agent_schedule_every(&x->schedule, k), k == NORM ? 2 : 1);
        assert_int_equal(exchange_follows(x, k), k == HEAD);
    }
    destroy(&c);
}

static void refused(struct cluster *c) {
    int32_t *fragment = calloc((size_t)c->x.trainer.n_units, sizeof *fragment);
    assert_non_null(fragment);
    assert_int_equal(exchange_cut(&c->x.job, c->units, c->x.trainer.n_units, fragment),
                     NEB_ERR_INVALID);
    free(fragment);
}

static void test_groups_that_do_not_fit(void **state) {
    (void)state;
    struct cluster *c = make(0);
    struct agent_job *j = &c->x.job;
    neb_log_set_sink(testing_drop, NULL);
    j->groups[4] = group("hed", AGENT_GROUP_EVERY); // a typing error
    j->n_groups = 5;
    refused(c);
    j->groups[4] = group("scale", AGENT_GROUP_EVERY); // now the rest has no tensor
    int32_t *fragment = calloc((size_t)c->x.trainer.n_units, sizeof *fragment);
    assert_int_equal(exchange_cut(j, c->units, c->x.trainer.n_units, fragment), NEB_OK);
    free(fragment);
    j->groups[2].fragments = 2; // for one tensor
    refused(c);
    neb_log_set_sink(NULL, NULL);
    destroy(&c);
}

// Gives the commit of fragment f with the updates of both clusters to each.
static void commit(struct cluster *const c[CLUSTERS], int32_t f) {
    for (int to = 0; to < CLUSTERS; to++) {
        struct agent_ipc_msg m = {
            .head =
                json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:b,s:[{s:i,s:i,s:f},{s:i,s:i,s:f}]}", "ev",
                          "commit", "fragment", f, "round", (int)c[to]->x.frags[f].round, "cursor",
                          (int)c[to]->x.step, "eta", 0.7, "mu", 0.9, "rejected", 0, "entries",
                          "member", 0, "tokens", (int)c[0]->x.flight[f].tokens, "clip", 1.0,
                          "member", 1, "tokens", (int)c[1]->x.flight[f].tokens, "clip", 1.0)};
        assert_non_null(m.head);
        for (int k = 0; k < CLUSTERS; k++)
            testing_add_part(&m, c[k]->x.flight[f].blob.p, c[k]->x.flight[f].blob.len);
        assert_int_equal(exchange_take_commit(&c[to]->x, &m), NEB_OK);
        agent_ipc_msg_clear(&m);
    }
}

static void round_of(struct cluster *const c[CLUSTERS], int32_t f) {
    for (int k = 0; k < CLUSTERS; k++) {
        train(c[k]);
        assert_int_equal(exchange_send(&c[k]->x, f), NEB_OK);
        train(c[k]); // while it is in flight
    }
    commit(c, f);
    for (int k = 0; k < CLUSTERS; k++)
        assert_int_equal(exchange_merge(&c[k]->x, f), NEB_OK);
    const struct kern_digest *a = &c[0]->x.kept[f].last_digest, *b = &c[1]->x.kept[f].last_digest;
    assert_true(a->lo == b->lo && a->hi == b->hi);
}

// The owner alone decides about its tensors; the others send nothing and take them.
static void test_one_cluster_owns_a_tensor(void **state) {
    (void)state;
    struct cluster *c[CLUSTERS] = {make(0), make(1)};
    int32_t head = unit_of(c[0], "head");
    size_t bytes = agent_unit_size(&c[0]->units[head]) * sizeof(float);
    for (int round = 0; round < 3; round++) {
        round_of(c, HEAD);
        assert_int_equal(c[0]->x.flight[HEAD].payload, 8);
        assert_true(c[0]->x.flight[HEAD].tokens == 0 && c[1]->x.flight[HEAD].tokens > 0);
        struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
        inter_outer_arrays(c[0]->x.outer, arrays);
        const float *theta = arrays[0].p;
        for (int32_t i = 0; i < head; i++)
            theta += c[0]->x.fragment[i] < 0 ? 0 : agent_unit_size(&c[0]->units[i]);
        assert_memory_equal(c[0]->arrays[head], theta, bytes);
        assert_memory_not_equal(c[1]->arrays[head], theta, bytes); // trained on since
    }
    // With fp32 and nothing else, θ of the owner moves by its own progress alone.
    destroy(&c[0]);
    destroy(&c[1]);
}

// A commit without the owner's update changes nothing.
static void test_the_owner_is_away(void **state) {
    (void)state;
    struct cluster *c[CLUSTERS] = {make(0), make(1)};
    struct kern_digest before, after;
    assert_int_equal(agent_shards_digest(c[0]->x.shards, HEAD, &before), NEB_OK);
    train(c[0]);
    assert_int_equal(exchange_send(&c[0]->x, HEAD), NEB_OK);
    uint8_t empty[8]; // the update of a cluster that is not the owner
    assert_int_equal(c[0]->x.flight[HEAD].blob.len, sizeof empty);
    memcpy(empty, c[0]->x.flight[HEAD].blob.p, sizeof empty);
    for (int k = 0; k < CLUSTERS; k++) {
        struct agent_ipc_msg m = {.head = json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:[{s:i,s:i,s:f}]}",
                                                    "ev", "commit", "fragment", HEAD, "round", 0,
                                                    "cursor", 1, "eta", 0.7, "mu", 0.9, "entries",
                                                    "member", 0, "tokens", 0, "clip", 1.0)};
        testing_add_part(&m, empty, sizeof empty);
        assert_int_equal(exchange_take_commit(&c[k]->x, &m), NEB_OK);
        assert_int_equal(exchange_merge(&c[k]->x, HEAD), NEB_OK);
        assert_int_equal(agent_shards_digest(c[k]->x.shards, HEAD, &after), NEB_OK);
        assert_true(before.lo != after.lo || before.hi != after.hi); // the version counts
        agent_ipc_msg_clear(&m);
    }
    assert_memory_equal(&c[0]->x.kept[HEAD].last_digest, &c[1]->x.kept[HEAD].last_digest,
                        sizeof after);
    destroy(&c[0]);
    destroy(&c[1]);
}

// Exchanged tensors become equal (after the last merge), the experts of each cluster stay its own.
static void test_experts_stay_at_home(void **state) {
    (void)state;
    struct cluster *c[CLUSTERS] = {make(0), make(1)};
    int32_t expert = unit_of(c[0], "trunk.expert.0");
    size_t n = agent_unit_size(&c[0]->units[expert]);
    struct kern_digest d[CLUSTERS];
    for (int32_t f = 0; f < FRAGMENTS; f++)
        round_of(c, f);
    for (int k = 0; k < CLUSTERS; k++) {
        assert_int_equal(agent_shards_digest(c[k]->x.shards, -1, &d[k]), NEB_OK);
        for (size_t i = 0; i < n; i++) {
            float want = (float)(i % 13) * 0.1f;
            for (int s = 0; s < 2 * FRAGMENTS; s++)
                want += 0.01f * (float)((i + (size_t)k) % 7);
            assert_true(c[k]->arrays[expert][i] == want);
        }
    }
    assert_memory_equal(&d[0], &d[1], sizeof d[0]);
    destroy(&c[0]);
    destroy(&c[1]);
}

static void test_checkpoint(void **state) {
    (void)state;
    struct cluster *c[CLUSTERS] = {make(0), make(1)}, *again;
    char path[NEB_PATH_MAX], folder[NEB_PATH_MAX];
    struct intra_ckpt_writer *out = NULL;
    struct kern_digest a, b;
    round_of(c, HEAD);
    round_of(c, TRUNK);
    train(c[0]);
    assert_int_equal(exchange_send(&c[0]->x, HEAD), NEB_OK); // an empty one is in flight
    c[0]->x.schedule.base_cycles = 7;
    assert_int_equal(neb_path(folder, sizeof folder, dir, "checkpoint"), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(folder, 0700), NEB_OK);
    assert_int_equal(intra_ckpt_step_path(folder, c[0]->x.step, path, sizeof path), NEB_OK);
    assert_int_equal(intra_ckpt_create_in(NULL, path, &out), NEB_OK);
    assert_int_equal(exchange_write_checkpoint(&c[0]->x, out), NEB_OK);
    assert_int_equal(intra_ckpt_commit(out), NEB_OK);
    intra_ckpt_writer_destroy(&out);
    again = make(0);
    fclose(again->x.merges.file);
    assert_int_equal(exchange_restore(&again->x), NEB_OK);
    assert_int_equal(again->x.schedule.base_cycles, 7);
    assert_true(again->x.frags[HEAD].in_flight && again->x.flight[HEAD].blob.len == 8);
    assert_false(inter_outer_in_flight(again->x.outer, HEAD));
    assert_int_equal(agent_shards_digest(c[0]->x.shards, -1, &a), NEB_OK);
    assert_int_equal(agent_shards_digest(again->x.shards, -1, &b), NEB_OK);
    assert_memory_equal(&a, &b, sizeof a);
    destroy(&again);
    destroy(&c[0]);
    destroy(&c[1]);
}

static int setup(void **state) {
    (void)state;
    neb_log_set_level(NEB_LOG_ERROR);
    return mkdtemp(dir) && kern_cpu_create(2, &kern) == NEB_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    kern_destroy(&kern);
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fragments_of_groups),
                                       cmocka_unit_test(test_groups_that_do_not_fit),
                                       cmocka_unit_test(test_one_cluster_owns_a_tensor),
                                       cmocka_unit_test(test_the_owner_is_away),
                                       cmocka_unit_test(test_experts_stay_at_home),
                                       cmocka_unit_test(test_checkpoint)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
