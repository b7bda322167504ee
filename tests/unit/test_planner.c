// agent/planner: what a plan chose gets into the job, and nothing else does.
#include "agent/planner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

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

static void is(const struct agent_job *j, int batch, int accumulate, bool recompute, int interval,
               int overlap, const char *codec) {
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
    is(&j, 6, 4, true, 37, 5, "topk:512/4096");
    same_mesh(&j.clusters[0].mesh, &first);
    same_mesh(&j.clusters[1].mesh, &second);
    assert_int_equal(j.autos, 0);
}

// What the first cluster does becomes the job's; the other one says where it does otherwise, and no more than that.
static void test_each_cluster(void **state) {
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
    written(&j); // neither where a trainer of its own cuts its steps, nor where they were said
    j.clusters[1].launcher = AGENT_LAUNCHER_ATTACH;
    agent_planner_apply(&p, AGENT_AUTO_BATCH, &j);
    assert_int_equal(j.clusters[1].batch, 0);
    written(&j);
    agent_planner_apply(&p, 0, &j);
    assert_true(j.batch == 8 && j.accumulate == 3 && !j.clusters[1].batch);
}

static void test_the_rest_stays(void **state) {
    (void)state;
    static struct agent_planner p;
    static struct agent_job j;
    const struct intra_mesh_config one = {1, 1, 1};
    chosen(&p);
    p.wan.interval = 0; // no exchanges
    written(&j);
    j.clusters[1].mesh_auto = true;
    agent_planner_apply(&p, 0, &j);
    is(&j, 8, 3, false, 10, 1, "int4");
    same_mesh(&j.clusters[0].mesh, &one);
    same_mesh(&j.clusters[1].mesh, &second); // it said auto
    assert_false(j.clusters[1].mesh_auto);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_is_taken_over),
        cmocka_unit_test(test_each_cluster),
        cmocka_unit_test(test_the_rest_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
