// What a worker's checkpoint holds of an update that is under way: a worker that goes on from it submits the same one, under the same
// number, and one of a version before is still read.
#include "agent/worker.h"
#include "tests/testing.h"

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

static enum neb_status nothing_saved(struct agent_worker *w, struct intra_ckpt_writer *out) {
    (void)w, (void)out;
    return NEB_OK;
}
static enum neb_status nothing_restored(struct agent_worker *w, const struct intra_ckpt *c) {
    (void)w, (void)c;
    return NEB_OK;
}

static struct agent_worker *make(void) {
    struct agent_worker *w = calloc(1, sizeof *w);
    struct intra_trainer_config t =
        testing_small_trainer((struct intra_trainable){.mode = INTRA_TRAIN_FULL});
    assert_non_null(w);
    assert_int_equal(agent_job_parse(yaml, sizeof yaml - 1, "t.yaml", &w->job), NEB_OK);
    assert_int_equal(kern_cpu_create(1, &w->K), NEB_OK);
    assert_int_equal(intra_trainer_create(&t, w->K, &w->trainer), NEB_OK);
    snprintf(w->dir, sizeof w->dir, "%s", dir);
    w->model = w->trainer->model;
    w->job.model = w->model->c;
    w->federated = true;
    w->isa = "any";
    w->ops = (struct worker_ops){.save = nothing_saved, .restore = nothing_restored};
    assert_int_equal(worker_sync_create(w), NEB_OK);
    return w;
}

static void destroy(struct agent_worker **wp) {
    struct agent_worker *w = *wp;
    worker_sync_destroy(w);
    intra_trainer_destroy(&w->trainer);
    kern_destroy(&w->K);
    if (w->log_file)
        fclose(w->log_file);
    free(w->log);
    free(w);
    *wp = NULL;
}

// As a program of before wrote it: the version lies in front, what it did not know behind.
struct older {
    struct intra_ckpt_writer *out;
    uint32_t version;
};

static enum neb_status as_before(void *user, const char *name, enum intra_dtype dtype,
                                 uint64_t rows, uint64_t cols, const void *data, uint64_t bytes) {
    const struct older *o = user;
    struct neb_buf b = {0};
    if (strcmp(name, "worker.state"))
        return intra_ckpt_add(o->out, name, dtype, rows, cols, data);
    neb_buf_u32(&b, o->version);
    neb_buf_add(&b, (const uint8_t *)data + 4, bytes - 4 - 2 * 4);
    enum neb_status st = intra_ckpt_add(o->out, name, dtype, b.len, 1, b.p);
    neb_buf_free(&b);
    return st;
}

static void write_older(struct agent_worker *w, uint32_t version, const char *path) {
    struct older o = {.version = version};
    struct intra_ckpt_writer *through = NULL;
    assert_int_equal(intra_ckpt_create_in(NULL, path, &o.out), NEB_OK);
    assert_int_equal(intra_ckpt_create_sink(as_before, &o, false, &through), NEB_OK);
    assert_int_equal(worker_write_checkpoint(w, through), NEB_OK);
    intra_ckpt_writer_destroy(&through);
    assert_int_equal(intra_ckpt_commit(o.out), NEB_OK);
    intra_ckpt_writer_destroy(&o.out);
}

static void write_checkpoint(struct agent_worker *w, const char *path) {
    struct intra_ckpt_writer *out = NULL;
    assert_int_equal(intra_ckpt_create_in(NULL, path, &out), NEB_OK);
    assert_int_equal(worker_write_checkpoint(w, out), NEB_OK);
    assert_int_equal(intra_ckpt_commit(out), NEB_OK);
    intra_ckpt_writer_destroy(&out);
}

static struct agent_worker *under_way(char path[NEB_PATH_MAX]) {
    char folder[NEB_PATH_MAX];
    struct agent_worker *w = make();
    assert_int_equal(neb_path(folder, sizeof folder, dir, "checkpoint"), NEB_OK);
    assert_int_equal(neb_fs_mkdirs(folder, 0700), NEB_OK);
    assert_int_equal(intra_ckpt_step_path(folder, 23, path, NEB_PATH_MAX), NEB_OK);
    w->step = 23;
    w->frags[1] =
        (struct agent_fragment){.in_flight = true, .send_step = 20, .merge_step = 25, .missed = 3};
    w->travel[1].again = 2;
    w->travel[1].tokens = 77;
    w->travel[1].missed = 4;
    neb_buf_add(&w->travel[1].blob, "update", 6);
    return w;
}

static void goes_on(uint32_t again) {
    struct agent_worker *w = make();
    assert_int_equal(worker_restore(w), NEB_OK);
    assert_int_equal(w->step, 23);
    assert_true(w->frags[1].in_flight && !w->frags[0].in_flight);
    assert_int_equal(w->travel[1].again, again);
    assert_int_equal(w->travel[1].tokens, 77);
    assert_int_equal(w->travel[1].missed, 4);
    assert_int_equal(w->travel[1].blob.len, 6);
    assert_memory_equal(w->travel[1].blob.p, "update", 6);
    destroy(&w);
}

static void test_under_way(void **state) {
    (void)state;
    char path[NEB_PATH_MAX];
    struct agent_worker *w = under_way(path);
    write_checkpoint(w, path);
    goes_on(2);
    destroy(&w);
}

static void test_of_before(void **state) {
    (void)state;
    char path[NEB_PATH_MAX], text[300];
    struct agent_worker *w = under_way(path), *other = make();
    write_older(w, 5, path);
    goes_on(0);
    write_older(w, 4, path);
    neb_log_set_sink(testing_drop, NULL);
    assert_int_equal(worker_restore(other), NEB_ERR_FORMAT);
    neb_log_set_sink(NULL, NULL);
    neb_last_error(text, sizeof text);
    assert_non_null(strstr(text, "its state is of version 4; this program reads 5 and 6"));
    destroy(&w);
    destroy(&other);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_under_way),
                                       cmocka_unit_test(test_of_before)};
    if (!mkdtemp(dir))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return neb_fs_remove_tree(dir) == NEB_OK ? failed : 1;
}
