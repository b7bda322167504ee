// SPDX-License-Identifier: Apache-2.0
// agent/view and agent/metrics: the figures of a job that people see.
#include "agent/daemon/status.h"
#include "agent/web/metrics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void feed_at(struct agent_view *v, const char *json, double t, double steady) {
    json_t *line = json_loads(json, 0, NULL);
    assert_non_null(line);
    agent_view_line(v, "ab", 20, line, t, steady);
    json_decref(line);
}

static void feed(struct agent_view *v, const char *json, double t) { feed_at(v, json, t, t); }

static void test_latest_figures(void **state) {
    (void)state;
    struct agent_view *v = NULL;
    assert_int_equal(agent_view_create(&v), NEB_OK);
    feed(v,
         "{\"kind\":\"step\",\"cluster\":\"paris\",\"step\":7,\"loss\":2.5,\"stall_s\":1,\"train_"
         "s\":3}",
         10);
    feed(v,
         "{\"kind\":\"round\",\"cluster\":\"paris\",\"round\":4,\"codec\":\"int4\",\"stall_s\":0."
         "25}",
         11);
    feed(v,
         "{\"kind\":\"link\",\"cluster\":\"paris\",\"sent_bytes\":100,\"recv_bytes\":50,\"goodput_"
         "bps\":8000}",
         12);
    feed(v,
         "{\"kind\":\"eval\",\"cluster\":\"paris\",\"step\":7,\"loss\":3.25,\"sources\":{\"de\":3."
         "25}}",
         12);
    json_t *early = agent_view_clusters(v, "ab", 13);
    // The interval is that of the job.
    assert_int_equal(json_integer_value(json_object_get(json_array_get(early, 0), "interval")), 20);
    json_decref(early);
    feed(
        v,
        "{\"kind\":\"round\",\"cluster\":\"paris\",\"round\":4,\"codec\":\"int4\",\"interval\":40}",
        13);
    // The interval is still that of the round.
    feed(v, "{\"kind\":\"step\",\"cluster\":\"paris\",\"step\":8}", 14);
    // Values that cannot be counts change nothing.
    feed(v,
         "{\"kind\":\"link\",\"cluster\":\"paris\",\"step\":7e19,\"round\":-1e30,\"sent_bytes\":"
         "1e300,"
         "\"recv_bytes\":-1e15,\"interval\":1e12}",
         14);
    // The worker restarts at its checkpoint. The sums that were counted stay, and grow from there.
    feed(v, "{\"kind\":\"step\",\"cluster\":\"paris\",\"stall_s\":0.5,\"train_s\":1}", 14);
    feed(v, "{\"kind\":\"step\",\"cluster\":\"paris\",\"stall_s\":1,\"train_s\":5}", 14);
    json_t *list = agent_view_clusters(v, "ab", 15), *c = json_array_get(list, 0),
           *counted = json_object_get(c, "counted");
    assert_true(fabs(json_number_value(json_object_get(counted, "stall_s")) - 0.5) < 1e-12);
    assert_true(fabs(json_number_value(json_object_get(counted, "train_s")) - 4) < 1e-12);
    assert_true(fabs(json_number_value(json_object_get(counted, "sent_bytes"))) < 1e-12);
    assert_true(fabs(json_real_value(json_object_get(c, "eval_loss")) - 3.25) < 1e-12);
    assert_int_equal(json_array_size(list), 1);
    assert_string_equal(json_string_value(json_object_get(c, "codec")), "int4");
    assert_int_equal(json_integer_value(json_object_get(c, "round")), 4);
    assert_int_equal(json_integer_value(json_object_get(c, "interval")), 40);
    assert_int_equal(json_integer_value(json_object_get(c, "sent_bytes")), 100);
    assert_int_equal(json_integer_value(json_object_get(c, "recv_bytes")), 50);
    assert_int_equal(json_integer_value(json_object_get(c, "step")), 8);
    assert_true(fabs(json_real_value(json_object_get(c, "loss")) - 2.5) < 1e-12);
    assert_true(fabs(json_real_value(json_object_get(c, "age_s")) - 1) < 1e-12);
    // The metric is the sum, not the value of the round.
    assert_true(fabs(json_real_value(json_object_get(c, "stall_s")) - 1) < 1e-12);
    json_decref(list);
    agent_view_destroy(&v);
    assert_null(v);
}

static double age(const struct agent_view *v, double at) {
    json_t *list = agent_view_clusters(v, "ab", at);
    double s = json_number_value(json_object_get(json_array_get(list, 0), "age_s"));
    json_decref(list);
    return s;
}

// An agent goes on to report links and faults while its worker hangs.
static void test_age_is_of_the_worker(void **state) {
    (void)state;
    struct agent_view *v = NULL;
    assert_int_equal(agent_view_create(&v), NEB_OK);
    feed(v, "{\"kind\":\"link\",\"cluster\":\"paris\",\"sent_bytes\":1}", 10);
    feed(v, "{\"kind\":\"link\",\"cluster\":\"paris\",\"sent_bytes\":2}", 40);
    assert_true(fabs(age(v, 50) - 40) < 1e-12); // nothing came from the worker since the first line
    static const char *const own[] = {"step", "round", "eval", "checkpoint", "tune", "labels"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        char line[80];
        double t = 100 * (double)(i + 1);
        snprintf(line, sizeof line, "{\"kind\":\"%s\",\"cluster\":\"paris\"}", own[i]);
        feed(v, line, t);
        assert_true(fabs(age(v, t + 5) - 5) < 1e-12);
        feed(v, "{\"kind\":\"link\",\"cluster\":\"paris\",\"sent_bytes\":3}", t + 30);
        feed(v, "{\"kind\":\"fault\",\"cluster\":\"paris\",\"text\":\"it hangs\"}", t + 40);
        feed(v, "{\"kind\":\"note\",\"cluster\":\"paris\",\"text\":\"queued\"}", t + 40);
        assert_true(fabs(age(v, t + 50) - 50) < 1e-12);
    }
    agent_view_destroy(&v);
}

// A clock was hours ahead, or started in 1970, and is corrected. Ages are right, and curves
// continue.
static void test_clock_is_set(void **state) {
    (void)state;
    static const double by[] = {-7200, 1.8e9};
    enum { STEPS = 2 * AGENT_VIEW_POINTS };
    for (int k = 0; k < 2; k++) {
        struct agent_view *v = NULL;
        size_t n = 0;
        char line[80];
        assert_int_equal(agent_view_create(&v), NEB_OK);
        for (int i = 0; i < STEPS; i++) {
            snprintf(line, sizeof line, "{\"kind\":\"step\",\"cluster\":\"paris\",\"step\":%d}", i);
            feed_at(v, line, i < 20 ? i : i + by[k], i);
        }
        assert_true(fabs(age(v, STEPS + 9) - 10) < 1e-9);
        char *text = agent_view_history(v);
        json_t *root = json_loads(text, 0, NULL), *t;
        json_t *jobs = json_object_get(root, "jobs");
        t = json_object_get(json_array_get(json_object_get(json_array_get(jobs, 0), "clusters"), 0),
                            "step");
        n = json_array_size(t);
        assert_in_range(n, AGENT_VIEW_POINTS / 2, AGENT_VIEW_POINTS);
        assert_in_range(json_integer_value(json_array_get(t, n - 1)), STEPS - 8, STEPS);
        json_decref(root);
        free(text);
        agent_view_destroy(&v);
    }
}

// The page shows the last merges, with times of day.
static void test_rounds(void **state) {
    (void)state;
    struct agent_view *v = NULL;
    char line[256];
    assert_int_equal(agent_view_create(&v), NEB_OK);
    for (int i = 0; i < 100; i++) {
        snprintf(line, sizeof line,
                 "{\"kind\":\"round\",\"cluster\":\"paris\",\"round\":%d,\"fragment\":1,"
                 "\"encode_s\":0.5,\"travel_s\":2,\"held_s\":1,\"apply_s\":0.25,\"stall_s\":3}",
                 i);
        feed(v, line, 1000 + i);
    }
    char *text = agent_view_history(v);
    json_t *root = json_loads(text, 0, NULL), *job, *list;
    assert_non_null(root);
    job = json_array_get(json_object_get(root, "jobs"), 0);
    list = json_object_get(json_array_get(json_object_get(job, "clusters"), 0), "rounds");
    static const double want[] = {99, 1, 1095.25, 1095.75, 1097.75, 1098.75, 1099, 3};
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    assert_int_equal(json_array_size(list), 24);
    assert_int_equal(json_array_size(last), 8);
    for (size_t i = 0; i < 8; i++)
        assert_true(fabs(json_number_value(json_array_get(last, i)) - want[i]) < 1e-6);
    assert_int_equal(json_integer_value(json_array_get(json_array_get(list, 0), 0)), 76);
    json_decref(root);
    free(text);
    // a hostile site does not stretch the timeline beyond two days for each of its spans
    feed(v,
         "{\"kind\":\"round\",\"cluster\":\"paris\",\"round\":1,\"encode_s\":1e300,"
         "\"travel_s\":1e300,\"held_s\":-1e300,\"apply_s\":-5,\"stall_s\":1e300}",
         2000);
    text = agent_view_history(v);
    root = json_loads(text, 0, NULL);
    job = json_array_get(json_object_get(root, "jobs"), 0);
    list = json_object_get(json_array_get(json_object_get(job, "clusters"), 0), "rounds");
    last = json_array_get(list, json_array_size(list) - 1);
    for (size_t i = 2; i < 7; i++)
        assert_in_range(2000 - json_number_value(json_array_get(last, i)) + 0.5, 0, 4 * 86400);
    assert_true(json_number_value(json_array_get(last, 7)) <= 2 * 86400);
    json_decref(root);
    free(text);
    agent_view_destroy(&v);
}

// A worker's first note names its device.
static void test_device(void **state) {
    (void)state;
    struct agent_view *v = NULL;
    char line[400], wide[241];
    assert_int_equal(agent_view_create(&v), NEB_OK);
    feed(v, "{\"kind\":\"note\",\"cluster\":\"paris\",\"text\":\"the link is up\"}", 9);
    feed(v,
         "{\"kind\":\"note\",\"cluster\":\"paris\",\"text\":\"trains on cpu\",\"device\":\"cpu\"}",
         10);
    json_t *list = agent_view_clusters(v, "ab", 12), *c = json_array_get(list, 0);
    assert_int_equal(json_array_size(list), 1);
    assert_string_equal(json_string_value(json_object_get(c, "device")), "cpu");
    assert_true(fabs(json_number_value(json_object_get(c, "age_s")) - 2) < 1e-12);
    assert_true(json_is_null(json_object_get(c, "loss")));
    json_decref(list);
    // too long, from another agent: cut between characters
    for (size_t i = 0; i + 1 < sizeof wide; i += 2)
        memcpy(wide + i, "\xc3\xa9", 2);
    wide[sizeof wide - 1] = 0;
    snprintf(line, sizeof line, "{\"kind\":\"note\",\"cluster\":\"paris\",\"device\":\"x%s\"}",
             wide);
    feed(v, line, 11);
    list = agent_view_clusters(v, "ab", 12);
    assert_in_range(json_string_length(json_object_get(json_array_get(list, 0), "device")), 90, 95);
    json_decref(list);
    json_t *events = agent_view_events(v);
    assert_int_equal(json_array_size(events), 3);
    json_decref(events);
    agent_view_destroy(&v);
}

// Lines come from other agents: none of them may break the page.
static void test_bad_lines(void **state) {
    (void)state;
    struct agent_view *v = NULL;
    assert_int_equal(agent_view_create(&v), NEB_OK);
    static const char *const bad[] = {"{}", "{\"kind\":7,\"cluster\":\"x\"}", "{\"kind\":\"step\"}",
                                      "{\"kind\":\"other\",\"cluster\":\"x\"}",
                                      ("{\"kind\":\"step\",\"cluster\":\"x\",\"loss\":\"high\","
                                       "\"step\":null,\"round\":1e300,\"interval\":-1e300}")};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        feed(v, bad[i], 1);
    json_t *list = agent_view_clusters(v, "ab", 2), *c = json_array_get(list, 0);
    assert_int_equal(json_array_size(list), 1);
    assert_true(json_is_null(json_object_get(c, "loss")));
    assert_int_equal(json_integer_value(json_object_get(c, "round")), -1);
    json_decref(list);
    char line[128];
    for (int i = 0; i < 100; i++) { // more clusters and codecs than there is room for
        snprintf(line, sizeof line, "{\"kind\":\"round\",\"cluster\":\"c%d\",\"round\":1}", i);
        feed(v, line, 3);
        snprintf(line, sizeof line,
                 "{\"kind\":\"round\",\"cluster\":\"c0\",\"round\":1,\"codec\":\"k%d\"}", i);
        feed(v, line, 3);
    }
    list = agent_view_clusters(v, "ab", 4);
    assert_int_equal(json_array_size(list), AGENT_CLUSTERS_MAX);
    json_decref(list);
    agent_view_destroy(&v);
}

// The curve of a long job keeps its first point and stays within its memory.
static void test_curve_is_bounded(void **state) {
    (void)state;
    struct agent_view *v = NULL, *once = NULL;
    assert_int_equal(agent_view_create(&v), NEB_OK);
    assert_int_equal(agent_view_create(&once), NEB_OK);
    char line[160];
    for (int i = 0; i < 20000; i++) {
        snprintf(line, sizeof line,
                 "{\"kind\":\"step\",\"cluster\":\"paris\",\"step\":%d,\"loss\":%f,\"codec\":"
                 "\"c\\\"%d\"}",
                 i, 1.0 / (i + 1), i / 5000);
        feed(v, line, 1000 + i);
        feed(once, line, 1000 + i);
        if (i % 777 == 0) // a page that looks now and then
            free(agent_view_history(v));
    }
    char *text = agent_view_history(v), *same = agent_view_history(once);
    assert_non_null(text);
    assert_string_equal(text, same); // reading it changes nothing
    free(same);
    agent_view_destroy(&once);
    json_t *h = json_loads(text, 0, NULL),
           *c = json_array_get(
               json_object_get(json_array_get(json_object_get(h, "jobs"), 0), "clusters"), 0),
           *t = json_object_get(c, "t");
    free(text);
    assert_non_null(h);
    assert_string_equal(json_string_value(json_array_get(json_object_get(c, "codec"), 0)), "c\"0");
    size_t n = json_array_size(t);
    assert_in_range(n, AGENT_VIEW_POINTS / 4, AGENT_VIEW_POINTS);
    assert_true(fabs(json_number_value(json_array_get(t, 0)) - 1000) < 1e-9);
    assert_true(json_number_value(json_array_get(t, n - 1)) > 1000 + 19000);
    for (size_t i = 1; i < n; i++)
        assert_true(json_number_value(json_array_get(t, i)) >
                    json_number_value(json_array_get(t, i - 1)));
    assert_int_equal(json_array_size(json_object_get(c, "loss")), n);
    assert_int_equal(json_array_size(json_object_get(c, "codec")), n);
    json_decref(h);
    agent_view_destroy(&v);
}

static void test_rates(void **state) {
    (void)state;
    struct agent_view *v = NULL;
    assert_int_equal(agent_view_create(&v), NEB_OK);
    assert_true(agent_view_rate(v, 3, 1000, 0, NEB_S).tx_bps < 1);
    struct agent_view_rate r = agent_view_rate(v, 3, 2000, 500, 2 * NEB_S);
    assert_true(fabs(r.tx_bps - 8000) < 1 && fabs(r.rx_bps - 4000) < 1);
    r = agent_view_rate(v, 3, 9000, 500, 2 * NEB_S + 100 * NEB_MS); // too soon for a new rate
    assert_true(fabs(r.tx_bps - 8000) < 1);
    assert_true(agent_view_rate(v, 3, 10, 0, 4 * NEB_S).tx_bps < 1); // the counters restarted
    assert_true(agent_view_rate(v, 1 << 20, 10, 0, 4 * NEB_S).tx_bps < 1);
    agent_view_destroy(&v);
}

// A long event is cut between characters.
static void test_long_event(void **state) {
    (void)state;
    struct agent_view *v = NULL;
    char text[1024];
    assert_int_equal(agent_view_create(&v), NEB_OK);
    for (size_t at = 0; at < 2; at++) {
        memset(text, 'x', sizeof text);
        for (size_t i = at; i + 2 < sizeof text; i += 2)
            memcpy(text + i, "\xc3\xa9", 2);
        text[sizeof text - 1] = 0;
        agent_view_event(v, "ab", "paris", text, 1);
    }
    json_t *list = agent_view_events(v);
    assert_int_equal(json_array_size(list), 2);
    for (size_t i = 0; i < 2; i++)
        assert_in_range(json_string_length(json_object_get(json_array_get(list, i), "text")), 500,
                        511);
    json_decref(list);
    agent_view_destroy(&v);
}

static void test_metrics_text(void **state) {
    (void)state;
    struct neb_buf b = {0};
    json_t *s = json_loads(
        "{\"name\":\"pa\\\"ris\\n\",\"peers\":[{\"name\":\"b\\\\c\",\"up\":true,\"rtt_ms\":250,"
        "\"goodput_bps\":8e6}],\"jobs\":[{\"id\":\"ab\",\"job\":\"j\",\"step\":3,\"clusters\":"
        "[{\"name\":\"x\",\"loss\":null,\"round\":2,\"interval\":40,\"codec\":\"int\\\"4\","
        "\"tokens_per_s\":5,"
        "\"sent_bytes\":9,\"counted\":{\"sent_bytes\":8}},{"
        "\"name\":\"y\",\"codec\":null}],\"state\":\"running\"},{\"id\":\"cd\",\"job\":\"k\","
        "\"state\":\"ended\","
        "\"outcome\":\"failed\",\"clusters\":[{\"name\":\"x\",\"tokens_per_s\":5}]},"
        "{\"id\":\"ef\",\"job\":\"l\",\"state\":\"held\",\"why\":\"\",\"step\":null,\"steps\":9,"
        "\"clusters\":[]}],\"faults\":{"
        "\"denied\":4},\"refused\":{\"enrolments\":7},"
        "\"about\":{\"version\":\"1.2.3\",\"commit\":\"abc\",\"isa\":\"avx2\",\"nccl\":\"2.28.9\"}"
        "}",
        0, NULL);
    assert_int_equal(agent_metrics_text(s, &b), NEB_OK);
    neb_buf_u8(&b, 0);
    const char *t = (const char *)b.p;
    assert_non_null(
        strstr(t, "nebula_agent_info{agent=\"pa\\\"ris\\n\",version=\"1.2.3\",commit=\"abc\","
                  "build_type=\"\",isa=\"avx2\",cuda=\"\",nccl=\"2.28.9\"} 1\n"));
    assert_non_null(strstr(t, "nebula_peer_up{peer=\"b\\\\c\"} 1\n"));
    assert_non_null(strstr(t, "nebula_peer_round_trip_seconds{peer=\"b\\\\c\"} 0.25\n"));
    assert_non_null(strstr(t, "nebula_peer_goodput_bytes_per_second{peer=\"b\\\\c\"} 1000000\n"));
    assert_non_null(strstr(t, "nebula_cluster_round{job_id=\"ab\",cluster=\"x\"} 2\n"));
    assert_non_null(strstr(t, "nebula_cluster_interval_steps{job_id=\"ab\",cluster=\"x\"} 40\n"));
    assert_non_null(
        strstr(t, "nebula_cluster_codec_info{job_id=\"ab\",cluster=\"x\",codec=\"int\\\"4\"} 1\n"));
    assert_non_null(strstr(t, "nebula_cluster_sent_bytes_total{job_id=\"ab\",cluster=\"x\"} 8\n"));
    assert_non_null(strstr(t, "nebula_cluster_tokens_per_second{job_id=\"ab\",cluster=\"x\"} 5\n"));
    assert_null(strstr(t, "nebula_cluster_tokens_per_second{job_id=\"cd\"")); // the job has ended
    assert_non_null(strstr(t, "nebula_job_state{job_id=\"ab\",name=\"j\",state=\"running\"} 1\n"));
    assert_non_null(strstr(t, "nebula_job_state{job_id=\"ab\",name=\"j\",state=\"failed\"} 0\n"));
    assert_non_null(strstr(t, "nebula_job_state{job_id=\"cd\",name=\"k\",state=\"failed\"} 1\n"));
    assert_non_null(strstr(t, "nebula_job_state{job_id=\"ef\",name=\"l\",state=\"held\"} 1\n"));
    assert_non_null(strstr(t, "nebula_job_state{job_id=\"ab\",name=\"j\",state=\"held\"} 0\n"));
    assert_null(strstr(t, "nebula_job_step{job_id=\"ef\"")); // the step is not known
    assert_null(strstr(t, "cluster=\"y\",codec="));          // it has sent nothing yet
    assert_null(strstr(t, "nebula_cluster_loss_nats{"));     // not known: no sample
    assert_non_null(strstr(t, "nebula_faults_total{kind=\"denied\"} 4\n"));
    assert_non_null(strstr(t, "nebula_refused_total{what=\"enrolments\"} 7\n"));
    json_decref(s);
    neb_buf_free(&b);
}

static void test_notify(void **state) {
    (void)state;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char got[64];
    snprintf(a.sun_path, sizeof a.sun_path, "/tmp/nebula-notify-%d", (int)getpid());
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    setenv("NOTIFY_SOCKET", a.sun_path, 1);
    agent_notify("READY=1");
    ssize_t n = recv(fd, got, sizeof got, MSG_DONTWAIT);
    unlink(a.sun_path);
    close(fd);
    assert_int_equal(n, 7);
    assert_memory_equal(got, "READY=1", 7);
    agent_notify("READY=1"); // the manager is gone: nothing happens
    unsetenv("NOTIFY_SOCKET");
    agent_notify("READY=1");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_latest_figures),
                                       cmocka_unit_test(test_age_is_of_the_worker),
                                       cmocka_unit_test(test_clock_is_set),
                                       cmocka_unit_test(test_device),
                                       cmocka_unit_test(test_rounds),
                                       cmocka_unit_test(test_bad_lines),
                                       cmocka_unit_test(test_curve_is_bounded),
                                       cmocka_unit_test(test_rates),
                                       cmocka_unit_test(test_metrics_text),
                                       cmocka_unit_test(test_long_event),
                                       cmocka_unit_test(test_notify)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
