// SPDX-License-Identifier: Apache-2.0
// A restarted worker. Its checkpoint holds an update in flight, which it submits again under the
// same number. Its next update counts only uncommitted steps. A snapshot brings the plans of the
// next rounds.
#include "agent/train/worker.h"
#include "inter/service/snapshot.h"
#include "tests/ipc_part.h"
#include "tests/testing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char yaml[] =
    "job: j\nsteps: 40\nmodel: {vocab: 5, n_layers: 1, d_model: 4, n_heads: 2, n_kv_heads: 1, "
    "d_ff: 3, tied: true}\ndata: {corpus: /nowhere, seq_len: 4, batch: 1}\noptim: {lr: 0.1}\n"
    "sync: {scheme: federated, interval: 10, fragments: 2, codec: fp32}\nclusters:\n  - {name: a}\n"
    "  - {name: b}\n";
static char dir[] = "/tmp/nebula-ckpt-XXXXXX";

struct run {
    struct agent_exchange x;
    struct agent_trainer_ops ops;
    struct kern *K;
    struct intra_trainer *trainer;
    struct worker_tensors tensors;
};

static enum neb_status nothing_saved(void *user, struct intra_ckpt_writer *out) {
    (void)user, (void)out;
    return NEB_OK;
}
static enum neb_status nothing_restored(void *user, const struct intra_ckpt *c) {
    (void)user, (void)c;
    return NEB_OK;
}

static enum neb_status nothing_skipped(void *user, int64_t n) {
    (void)user, (void)n;
    return NEB_OK;
}

static struct run *make(void) {
    struct run *w = calloc(1, sizeof *w);
    char socket_path[NEB_PATH_MAX];
    struct intra_trainer_config t =
        testing_small_trainer((struct intra_trainable){.mode = INTRA_TRAIN_FULL});
    assert_non_null(w);
    assert_int_equal(agent_job_parse(yaml, sizeof yaml - 1, "t.yaml", &w->x.job), NEB_OK);
    assert_int_equal(kern_cpu_create(1, &w->K), NEB_OK);
    assert_int_equal(intra_trainer_create(&t, w->K, &w->trainer), NEB_OK);
    snprintf(w->x.dir, sizeof w->x.dir, "%s", dir);
    assert_non_null(w->x.link.zctx = zmq_ctx_new());
    assert_int_equal(neb_path(socket_path, sizeof socket_path, dir, "agent.sock"), NEB_OK);
    assert_int_equal(agent_ipc_connect(w->x.link.zctx, socket_path, &w->x.link.ipc),
                     NEB_OK); // nobody listens
    assert_int_equal(worker_tensors_create(NULL, w->trainer, &w->tensors), NEB_OK);
    w->x.federated = true;
    w->x.isa = "any";
    w->ops = (struct agent_trainer_ops){WORKER_TENSORS_OPS, .save = nothing_saved,
                                        .restore = nothing_restored, .skip = nothing_skipped};
    w->x.trainer = worker_tensors_trainer(&w->tensors, &w->ops);
    assert_int_equal(exchange_create(&w->x), NEB_OK);
    return w;
}

static void destroy(struct run **wp) {
    struct run *w = *wp;
    int linger = 0;
    exchange_destroy(&w->x);
    zmq_setsockopt(agent_ipc_socket(w->x.link.ipc), ZMQ_LINGER, &linger, sizeof linger);
    exchange_leave(&w->x);
    worker_tensors_destroy(&w->tensors);
    intra_trainer_destroy(&w->trainer);
    kern_destroy(&w->K);
    free(w);
    *wp = NULL;
}

// The state of another program version: the version stands in front.
struct versioned {
    struct intra_ckpt_writer *out;
    uint32_t version;
};

static enum neb_status with_version(void *user, const char *name, enum intra_dtype dtype,
                                    uint64_t rows, uint64_t cols, const void *data,
                                    uint64_t bytes) {
    const struct versioned *o = user;
    struct neb_buf b = {0};
    if (strcmp(name, "worker.state"))
        return intra_ckpt_add(o->out, name, dtype, rows, cols, data);
    neb_buf_u32(&b, o->version);
    neb_buf_add(&b, (const uint8_t *)data + 4, bytes - 4);
    enum neb_status st = intra_ckpt_add(o->out, name, dtype, b.len, 1, b.p);
    neb_buf_free(&b);
    return st;
}

static void write_version(struct run *w, uint32_t version, const char *path) {
    struct versioned o = {.version = version};
    struct intra_ckpt_writer *through = NULL;
    assert_int_equal(intra_ckpt_create_in(NULL, path, &o.out), NEB_OK);
    assert_int_equal(intra_ckpt_create_sink(with_version, &o, false, &through), NEB_OK);
    assert_int_equal(exchange_write_checkpoint(&w->x, through), NEB_OK);
    intra_ckpt_writer_destroy(&through);
    assert_int_equal(intra_ckpt_commit(o.out), NEB_OK);
    intra_ckpt_writer_destroy(&o.out);
}

static void write_checkpoint(struct run *w, const char *path) {
    struct intra_ckpt_writer *out = NULL;
    assert_int_equal(intra_ckpt_create_in(NULL, path, &out), NEB_OK);
    assert_int_equal(exchange_write_checkpoint(&w->x, out), NEB_OK);
    assert_int_equal(intra_ckpt_commit(out), NEB_OK);
    intra_ckpt_writer_destroy(&out);
}

static struct run *with_update_in_flight(char path[NEB_PATH_MAX]) {
    char folder[NEB_PATH_MAX];
    struct run *w = make();
    assert_int_equal(neb_path(folder, sizeof folder, dir, "checkpoint"), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(folder, 0700), NEB_OK);
    assert_int_equal(intra_ckpt_step_path(folder, 23, path, NEB_PATH_MAX), NEB_OK);
    w->x.step = 23;
    w->x.frags[1] =
        (struct agent_fragment){.in_flight = true, .send_step = 20, .merge_step = 25, .missed = 3};
    w->x.flight[1].retries = 2;
    w->x.flight[1].tokens = 77;
    w->x.flight[1].missed = 4;
    neb_buf_add(&w->x.flight[1].blob, "update", 6);
    return w;
}

static void check_continued(uint32_t again) {
    struct run *w = make();
    assert_int_equal(exchange_restore(&w->x), NEB_OK);
    assert_int_equal(w->x.step, 23);
    assert_true(w->x.frags[1].in_flight && !w->x.frags[0].in_flight);
    assert_int_equal(w->x.flight[1].retries, again);
    assert_int_equal(w->x.flight[1].tokens, 77);
    assert_int_equal(w->x.flight[1].missed, 4);
    assert_int_equal(w->x.flight[1].blob.len, 6);
    assert_memory_equal(w->x.flight[1].blob.p, "update", 6);
    destroy(&w);
}

static void test_update_in_flight(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct run *w = with_update_in_flight(path);
    write_checkpoint(w, path);
    check_continued(2);
    destroy(&w);
}

static enum neb_status section_missing(void *user, const struct intra_ckpt *c) {
    uint64_t x;
    (void)user;
    return intra_ckpt_read(c, "absent", INTRA_U64, 1, 1, &x);
}

// A missing section is an error. With "no checkpoint" as the result, the worker would start again
// from a half-restored state.
static void test_section_missing(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], text[300];
    struct run *w = with_update_in_flight(path), *other = make();
    write_checkpoint(w, path);
    other->ops.restore = section_missing;
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(exchange_restore(&other->x), NEB_ERR_FORMAT);
    neb_log_set_sink(NULL, NULL);
    neb_last_error(text, sizeof text);
    assert_non_null(strstr(text, "has no section 'absent'"));
    destroy(&w);
    destroy(&other);
}

static void test_other_version(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], text[300];
    struct run *w = with_update_in_flight(path), *other = make();
    write_version(w, 6, path);
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(exchange_restore(&other->x), NEB_ERR_FORMAT);
    neb_log_set_sink(NULL, NULL);
    neb_last_error(text, sizeof text);
    assert_non_null(strstr(text, "has state version 6; this program reads version 7"));
    destroy(&w);
    destroy(&other);
}

// ---- a repeated run that had sent more before ----

enum { F = 1, SENT = 5, COMMITTED = 12, NEXT = 15 }; // steps of one token each

static void train_to(struct run *w, int64_t step) {
    bool ready;
    while (w->x.step < step) {
        int32_t row = (int32_t)(w->x.step % w->trainer->c.model.vocab);
        w->trainer->input_counts[row]++;
        w->trainer->target_counts[row]++;
        w->x.all_tokens++;
        w->x.step++;
        assert_int_equal(exchange_step(&w->x, &ready), NEB_OK);
    }
}

// Delivers the commit of the fragment's first round. It holds what was sent at step COMMITTED after
// the update of step SENT was taken back.
static void bring_commit(struct run *w, bool rejected) {
    const struct neb_buf *b = &w->x.flight[F].blob; // any well-formed blob
    struct agent_ipc_msg m = {.head =
                                  json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:b,s:[]}", "ev", "commit",
                                            "fragment", F, "round", 0, "cursor", COMMITTED, "eta",
                                            1.0, "mu", 0.0, "rejected", rejected, "entries")};
    if (!rejected) {
        testing_add_part(&m, b->p, b->len);
        json_array_append_new(json_object_get(m.head, "entries"),
                              json_pack("{s:i,s:i,s:i,s:f}", "member", w->x.cluster, "attempt", 1,
                                        "tokens", COMMITTED, "clip", 1.0));
    }
    assert_int_equal(exchange_take_commit(&w->x, &m), NEB_OK);
    agent_ipc_msg_clear(&m);
    assert_true(w->x.flight[F].here);
}

static uint64_t rows_since_base(const struct run *w) {
    const struct exchange_fragment *k = &w->x.kept[F];
    uint64_t rows = 0;
    for (size_t i = 0; i < w->x.trainer.n_counters; i++)
        rows += k->counts_sent[i] - k->counts_base[i];
    return rows;
}

static struct run *through_checkpoint(struct run *w) {
    char folder[NEB_PATH_MAX], path[NEB_PATH_MAX];
    struct run *next = make();
    size_t bytes = (size_t)w->trainer->c.model.vocab * sizeof *w->trainer->input_counts;
    assert_int_equal(neb_path(folder, sizeof folder, dir, "checkpoint"), NEB_OK);
    assert_int_equal(neb_fs_remove_tree(folder), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(folder, 0700), NEB_OK);
    assert_int_equal(intra_ckpt_step_path(folder, w->x.step, path, sizeof path), NEB_OK);
    write_checkpoint(w, path);
    assert_int_equal(exchange_restore(&next->x), NEB_OK);
    assert_int_equal(next->x.step, w->x.step);
    memcpy(next->trainer->input_counts, w->trainer->input_counts, bytes);
    memcpy(next->trainer->target_counts, w->trainer->target_counts, bytes);
    destroy(&w);
    return next;
}

// The next update holds only the tokens and rows of the uncommitted steps, because the others
// refuse more. merged: the step of the merge in the previous run's log; 0: there was none.
static void check_repeated_run(int64_t here, int64_t merged, bool rejected, bool restarts) {
    struct run *w = make();
    char path[NEB_PATH_MAX];
    struct exchange_merge log = {F, 0, merged, false};
    assert_int_equal(neb_path(path, sizeof path, dir, "merges.log"), NEB_OK);
    assert_non_null(w->x.merges.file = fopen(path, "w"));
    assert_non_null(w->x.merges.log = malloc(sizeof log));
    w->x.merges.log[0] = log;
    w->x.merges.n = merged > 0;
    train_to(w, here);
    assert_true(w->x.frags[F].in_flight && w->x.frags[F].send_step == SENT);
    bring_commit(w, rejected);
    if (restarts) {
        train_to(w, here + 1);
        assert_int_equal(w->x.frags[F].round, 1);
        w = through_checkpoint(w);
    }
    train_to(w, NEXT);
    const struct agent_fragment *g = &w->x.frags[F];
    assert_true(g->in_flight && g->round == 1 && g->send_step == NEXT);
    assert_int_equal(w->x.flight[F].steps, NEXT - COMMITTED);
    assert_in_range(w->x.flight[F].tokens, 1, NEXT - COMMITTED);
    assert_in_range(rows_since_base(w), 1, 2 * w->x.flight[F].tokens);
    if (here < COMMITTED) {
        assert_int_equal(w->x.flight[F].tokens, NEXT - COMMITTED);
        assert_int_equal(rows_since_base(w), 2 * (NEXT - COMMITTED));
    }
    destroy(&w);
}

static void test_repeated_run(void **state) {
    (void)state;
    neb_log_set_sink(testing_drop, NULL);
    for (int rejected = 0; rejected < 2; rejected++) {
        check_repeated_run(7, 0, rejected, false);
        check_repeated_run(7, 0, rejected, true);
        check_repeated_run(7, COMMITTED, rejected, false);
        check_repeated_run(7, COMMITTED + 2, rejected, false);
        check_repeated_run(COMMITTED + 1, 0, rejected, false); // the commit is late
    }
    neb_log_set_sink(NULL, NULL);
}

// The merge of the other fragment at a step makes this fragment due. So the order of checks does
// not matter.
static void test_due_after_other_fragment(void **state) {
    (void)state;
    struct run *w = make();
    struct agent_ipc_msg m = {.head = json_pack("{s:s,s:i,s:i,s:i,s:f,s:f,s:b,s:[]}", "ev",
                                                "commit", "fragment", F, "round", 0, "cursor", 0,
                                                "eta", 1.0, "mu", 0.0, "rejected", 0, "entries")};
    char path[NEB_PATH_MAX];
    assert_int_equal(neb_path(path, sizeof path, dir, "merges.log"), NEB_OK);
    assert_non_null(w->x.merges.file = fopen(path, "w"));
    w->x.frags[F].committed_step = w->x.job.steps; // the fragment has nothing to send before that
    train_to(w, 9);
    assert_false(w->x.frags[0].in_flight || w->x.frags[F].in_flight);
    assert_int_equal(exchange_take_commit(&w->x, &m), NEB_OK); // of others
    json_decref(m.head);
    train_to(w, 10);
    assert_true(w->x.frags[F].round == 1 && w->x.frags[F].merged_step == 10);
    assert_true(w->x.frags[0].in_flight && w->x.frags[0].send_step == 10);
    destroy(&w);
}

// ---- a snapshot ----

// The first fragment after round 2, as w has it at this moment.
static void write_snapshot(struct run *w) {
    char path[NEB_PATH_MAX];
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    struct inter_snapshot *s = calloc(1, sizeof *s);
    struct kern_digest d;
    struct neb_buf b = {0};
    assert_non_null(s);
    assert_int_equal(agent_shards_digest(w->x.shards, 0, &d), NEB_OK);
    s->elements = w->x.elements;
    s->fragments = 2;
    s->parts[0] = (struct inter_snapshot_part){
        .round = 3,
        .digest = {d.lo, d.hi},
        .last = {
            .round = 2,
            .n = 2,
            .eta = 1,
            .entries = {{.clip = 1}, {.member = 1, .clip = 1}},
            .n_plans = 2,
            .cursors = {30, 30},
            .plans = {{.interval = 20,
                       .overlap = 4,
                       .codec = (uint8_t)cmp_level_of("topk:64/4096"),
                       .left_out = 8},
                      {.interval = 40, .overlap = 7, .codec = (uint8_t)cmp_level_of("int8")}}}};
    inter_snapshot_put(&b, s);
    inter_outer_arrays(w->x.outer, arrays);
    for (int i = 0; i < 2; i++) // θ, v
        neb_buf_add(&b, arrays[i].p, arrays[i].n * sizeof *arrays[i].p);
    assert_int_equal(neb_path(path, sizeof path, dir, "snapshot.bin"), NEB_OK);
    assert_int_equal(neb_fs_write(path, b.p, b.len, 0600), NEB_OK);
    neb_buf_free(&b);
    free(s);
}

// A worker that continues from a snapshot sends by its plans, not by the job's first values.
static void test_plans_of_snapshot(void **state) {
    (void)state;
    char folder[NEB_PATH_MAX];
    struct run *w = make(), *lost = make();
    assert_int_equal(neb_path(folder, sizeof folder, dir, "checkpoint"), NEB_OK);
    assert_int_equal(neb_fs_remove_tree(folder), NEB_OK);
    write_snapshot(w);
    lost->x.job.sync.tune.mode = AGENT_TUNE_AUTO; // AUTO may leave out steps
    lost->x.job.sync.tune.balance = true;
    assert_int_equal(exchange_restore(&lost->x), NEB_OK);
    assert_true(lost->x.frags[0].round == 3 && lost->x.step == 30);
    assert_int_equal(lost->x.left_out, 8);
    for (int i = 0; i < 2; i++) {
        const struct inter_plan *p = &lost->x.kept[0].plans[i], *first = &lost->x.kept[1].plans[i];
        assert_true(p->codec == (uint8_t)cmp_level_of("topk:64/4096") && p->overlap == 4);
        assert_int_equal(p->interval, 40); // both clusters have this interval
        assert_true(first->codec == CMP_LEVEL_JOB && first->interval == 10);
    }
    destroy(&w);
    destroy(&lost);
}

// A NaN or infinity in θ or v under a matching digest, a wrong digest, or another job: the snapshot
// is removed, the job goes on, and the next process starts without it.
static void test_bad_snapshot(void **state) {
    (void)state;
    char folder[NEB_PATH_MAX], path[NEB_PATH_MAX];
    assert_int_equal(neb_path(folder, sizeof folder, dir, "checkpoint"), NEB_OK);
    assert_int_equal(neb_path(path, sizeof path, dir, "snapshot.bin"), NEB_OK);
    neb_log_set_sink(testing_drop, NULL);
    for (int i = 0; i < 4; i++) {
        struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
        struct run *w = make(), *lost = make();
        struct neb_buf b = {0};
        assert_int_equal(neb_fs_remove_tree(folder), NEB_OK);
        inter_outer_arrays(w->x.outer, arrays);
        if (i < 2)
            arrays[i].p[arrays[i].n - 1] = i ? INFINITY : NAN;
        write_snapshot(w);
        if (i == 2) { // one bit of its first parameter differs
            assert_int_equal(neb_fs_read(path, 1 << 26, &b), NEB_OK);
            b.p[b.len - 2 * arrays[0].n * sizeof(float)] ^= 1;
            assert_int_equal(neb_fs_write(path, b.p, b.len, 0600), NEB_OK);
            neb_buf_free(&b);
        }
        lost->x.job.sync.fragments += i == 3;
        assert_int_equal(exchange_restore(&lost->x), NEB_ERR_AGAIN);
        lost->x.job.sync.fragments -= i == 3;
        assert_false(neb_fs_exists(path));
        destroy(&w);
        destroy(&lost);
        lost = make();
        assert_int_equal(exchange_restore(&lost->x), NEB_ERR_NOT_FOUND);
        destroy(&lost);
    }
    neb_log_set_sink(NULL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_update_in_flight),
                                       cmocka_unit_test(test_section_missing),
                                       cmocka_unit_test(test_other_version),
                                       cmocka_unit_test(test_repeated_run),
                                       cmocka_unit_test(test_due_after_other_fragment),
                                       cmocka_unit_test(test_plans_of_snapshot),
                                       cmocka_unit_test(test_bad_snapshot)};
    if (!mkdtemp(dir))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return neb_fs_remove_tree(dir) == NEB_OK ? failed : 1;
}
