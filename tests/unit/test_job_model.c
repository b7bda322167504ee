// SPDX-License-Identifier: Apache-2.0
// agent/job/model: how clusters share the windows of sources.
#include "agent/job/model.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void reads(struct agent_cluster *c, const char *corpus, const char *a, const char *b) {
    const char *const names[] = {a, b};
    snprintf(c->corpus, sizeof c->corpus, "%s", corpus);
    for (int i = 0; i < 2 && names[i]; i++)
        snprintf(c->sources[c->n_sources++].name, sizeof c->sources[0].name, "%s", names[i]);
}

static void is(const struct agent_job *j, int cluster, const char *source, int32_t index,
               int32_t n) {
    struct intra_share s = agent_job_share(j, cluster, source);
    assert_int_equal(s.index, index);
    assert_int_equal(s.n, n);
}

static void begins(const struct agent_job *j, int cluster, const char *source, int32_t part,
                   int32_t parts) {
    struct intra_share s = agent_job_share(j, cluster, source);
    assert_int_equal(s.part, part);
    assert_int_equal(s.parts, parts);
}

static void test_shares(void **state) {
    (void)state;
    static struct agent_job j;
    snprintf(j.corpus, sizeof j.corpus, "/data/c");
    j.n_clusters = 7;
    reads(&j.clusters[0], "", "en", "de");
    reads(&j.clusters[1], "/data/own", NULL,
          NULL); // the corpus is another one, whatever the names of its sources
    reads(&j.clusters[2], "", "fr", NULL);
    reads(&j.clusters[3], "/data/c", "de", "fr"); // the job's corpus by its name
    reads(&j.clusters[4], "", NULL, NULL);        // all sources
    j.clusters[4].launcher = AGENT_LAUNCHER_ATTACH;
    reads(&j.clusters[5], "", NULL, NULL);
    j.clusters[6].witness = true;
    is(&j, 0, "en", 0, 2);
    is(&j, 5, "en", 1, 2);
    is(&j, 0, "de", 0, 3);
    is(&j, 3, "de", 1, 3);
    is(&j, 5, "de", 2, 3);
    is(&j, 2, "fr", 0, 3);
    is(&j, 3, "fr", 1, 3);
    is(&j, 5, "es", 0, 1);
    is(&j, 1, "en", 0, 1);
    // the other corpus may hold the same text, so its cluster begins elsewhere
    begins(&j, 0, "en", 0, 2);
    begins(&j, 5, "en", 0, 2);
    begins(&j, 1, "en", 1, 2);
    begins(&j, 2, "fr", 1, 2);
    begins(&j, 1, "fr", 0, 2);
    j.clusters[1].witness = true;
    begins(&j, 0, "en", 0, 0);
    begins(&j, 2, "fr", 0, 0);
    j.clusters[1].witness = false;
    j.mode = AGENT_MODE_RTD; // both sides draw the same windows
    is(&j, 0, "en", 0, 0);
    is(&j, 5, "en", 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
