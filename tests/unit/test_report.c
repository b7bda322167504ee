// SPDX-License-Identifier: Apache-2.0
// agent/report: files that can be read again after any interruption, and plots of them.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/show/plots.h"
#include "agent/show/report.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char dir[] = "/tmp/nebula-rep'ort-XXXXXX"; // a quote: paths reach gnuplot
static char message[1024];
static void capture(void *user, enum neb_log_level level, const char *text) {
    (void)user, (void)level;
    snprintf(message, sizeof message, "%s", text);
}

static int set_up(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}
static int tear_down(void **state) {
    (void)state;
    return neb_fs_remove_tree(dir) == NEB_OK ? 0 : -1;
}

static const char *in_dir(const char *name) {
    static char path[NEB_PATH_MAX];
    assert_int_equal(neb_path(path, sizeof path, dir, name), NEB_OK);
    return path;
}

struct seen {
    int n;
    double t[64];
    int64_t step[64];
};
static void collect(void *user, const json_t *line) {
    struct seen *s = user;
    assert_true(s->n < 64);
    s->t[s->n] = json_number_value(json_object_get(line, "t"));
    s->step[s->n++] = json_integer_value(json_object_get(line, "step"));
}

static void add(struct agent_metrics *m, neb_ns now, int step) {
    assert_int_equal(
        agent_metrics_add(m, now,
                          json_pack("{s:s, s:i, s:f}", "kind", "step", "step", step, "t", 99.0)),
        NEB_OK);
}

static void test_metrics(void **state) {
    (void)state;
    struct agent_metrics *m;
    struct seen s = {0};
    int64_t bad;
    char path[NEB_PATH_MAX];
    snprintf(path, sizeof path, "%s", in_dir("m.jsonl"));
    assert_int_equal(agent_metrics_open(path, false, 5 * NEB_S, &m), NEB_OK);
    add(m, 5 * NEB_S, 1);
    add(m, 7 * NEB_S + 250 * NEB_MS, 2);
    neb_log_set_sink(capture, NULL);
    assert_int_equal(agent_metrics_add(m, 0, json_integer(3)), NEB_ERR_INVALID);
    neb_log_set_sink(NULL, NULL);
    agent_metrics_close(&m);
    assert_null(m);

    // A crash leaves half a line; the next run continues after the last complete one, in file and
    // time.
    FILE *f = fopen(path, "a");
    fputs("{\"t\":9.0,\"kind\":\"st", f);
    fclose(f);
    assert_int_equal(agent_metrics_open(path, true, 100 * NEB_S, &m), NEB_OK);
    assert_true(fabs(agent_metrics_seconds(m, 101 * NEB_S) - 3.25) < 1e-9);
    add(m, 101 * NEB_S, 3);
    agent_metrics_close(&m);
    assert_int_equal(agent_metrics_read(path, collect, &s, &bad), NEB_OK);
    assert_int_equal(s.n, 3);
    assert_int_equal(bad, 0);
    assert_true(s.t[0] == 0 && s.t[1] == 2.25 && s.t[2] == 3.25);
    assert_true(s.step[0] == 1 && s.step[2] == 3);

    // Without resume the file begins empty. Invalid lines are counted, the others are read.
    assert_int_equal(agent_metrics_open(path, false, 0, &m), NEB_OK);
    add(m, NEB_S, 7);
    agent_metrics_close(&m);
    f = fopen(path, "a");
    fputs("nonsense\n[1]\n{\"kind\":\"step\",\"step\":8}\n{\"torn", f);
    fclose(f);
    s.n = 0;
    assert_int_equal(agent_metrics_read(path, collect, &s, &bad), NEB_OK);
    assert_true(s.n == 2 && bad == 2 && s.step[0] == 7 && s.step[1] == 8);
}

// A link has a line a second for 60 days. Few lines are kept: all of the first minutes, and each
// change of the link. The end of such a file is found without reading all of it.
static void test_metrics_long(void **state) {
    (void)state;
    struct agent_metrics *m = NULL;
    enum { DAY_S = 86400 };
    int64_t kept = 0, early = 0;
    json_t *up = json_pack("{s:s,s:b}", "kind", "link", "up", 1),
           *down = json_pack("{s:s,s:b}", "kind", "link", "up", 0),
           *step = json_pack("{s:s}", "kind", "step");
    assert_int_equal(agent_metrics_open(in_dir("long.jsonl"), false, 0, &m), NEB_OK);
    for (int64_t s = 1; s <= 60 * DAY_S; s++) {
        bool wants = agent_metrics_wants(m, 1, s * NEB_S, up);
        kept += wants;
        early += wants && s <= 600;
    }
    assert_int_equal(early, 600);
    assert_true(kept > 60 * DAY_S / 31 && kept < 60 * DAY_S / 29 + 4000);
    assert_true(agent_metrics_wants(m, 1, (60 * DAY_S + 1) * NEB_S, down));
    assert_true(agent_metrics_wants(m, 1, (60 * DAY_S + 2) * NEB_S, up));
    assert_false(agent_metrics_wants(m, 1, (60 * DAY_S + 3) * NEB_S, up));
    assert_true(agent_metrics_wants(m, 0, (60 * DAY_S + 3) * NEB_S, up)); // of another cluster
    assert_true(agent_metrics_wants(m, 1, (60 * DAY_S + 3) * NEB_S, step));
    json_decref(up), json_decref(down), json_decref(step);
    agent_metrics_close(&m);

    // Half a million lines. A crash has cut the last one, and the one before it has an old time.
    FILE *f = fopen(in_dir("long.jsonl"), "w");
    for (int i = 0; i < 500000; i++)
        fprintf(f, "{\"t\":%d.5,\"kind\":\"link\",\"cluster\":\"paris\",\"up\":true}\n", i);
    fprintf(f, "{\"t\":17,\"kind\":\"link\"}\n");
    long whole = ftell(f);
    fprintf(f, "{\"t\":500001");
    fclose(f);
    clock_t before = clock();
    assert_int_equal(agent_metrics_open(in_dir("long.jsonl"), true, 100 * NEB_S, &m), NEB_OK);
    double took = (double)(clock() - before) / CLOCKS_PER_SEC;
    assert_true(took < 0.3); // reading the whole file would take longer
    assert_true(fabs(agent_metrics_seconds(m, 101 * NEB_S) - 500000.5) < 1e-6);
    agent_metrics_close(&m);
    struct stat info;
    assert_int_equal(stat(in_dir("long.jsonl"), &info), 0);
    assert_int_equal(info.st_size, whole);
}

static void test_metrics_full(void **state) {
    (void)state;
    struct agent_metrics *m;
    struct seen s = {0};
    struct rlimit old, limit;
    int64_t bad;
    char path[NEB_PATH_MAX];
    snprintf(path, sizeof path, "%s", in_dir("full.jsonl"));
    assert_int_equal(agent_metrics_open(path, false, 0, &m), NEB_OK);
    add(m, 0, 1);
    struct neb_buf b = {0};
    assert_int_equal(neb_fs_read(path, 1000, &b), NEB_OK);
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = b.len + 10;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    neb_log_set_sink(capture, NULL);
    enum neb_status st =
        agent_metrics_add(m, 0, json_pack("{s:s, s:i}", "kind", "step", "step", 2));
    neb_log_set_sink(NULL, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_not_equal(st, NEB_OK);
    assert_non_null(strstr(message, "full.jsonl"));
    size_t whole = b.len;
    assert_int_equal(neb_fs_read(path, 1000, &b), NEB_OK);
    assert_int_equal(b.len, whole); // no half line is left for readers that follow the file
    add(m, NEB_S, 3);               // there is room again
    agent_metrics_close(&m);
    neb_buf_free(&b);
    assert_int_equal(agent_metrics_read(path, collect, &s, &bad), NEB_OK);
    assert_true(s.n == 2 && bad == 0 && s.step[1] == 3);
}

static struct agent_summary sample(void) {
    struct agent_summary s = {.job = "first-light",
                              .mode = "replicas",
                              .params = 1000000,
                              .trainable_params = 1000000,
                              .rounds = 10,
                              .wall_s = 83.4,
                              .n_clusters = 2,
                              .payload_bytes = 10500000,
                              .payload_params = 20000000};
    struct agent_cluster_summary paris = {.name = "paris",
                                          .device = "cpu",
                                          .steps = 300,
                                          .tokens = 614400,
                                          .loss_first = 8.3178,
                                          .loss_last = 5.1,
                                          .eval_loss = 5.25,
                                          .stall_s = 2,
                                          .train_s = 78,
                                          .wan_sent_bytes = 5400000,
                                          .wan_recv_bytes = 5600000,
                                          .wan_payload_bytes = 5000000,
                                          .wan_protocol_bytes = 300000,
                                          .params_digest = "00112233445566778899aabbccddeeff"};
    struct agent_cluster_summary berlin = paris;
    snprintf(berlin.name, sizeof berlin.name, "berlin");
    berlin.eval_loss = NAN;
    berlin.wan_sent_bytes = 6600000;
    s.clusters[0] = paris;
    s.clusters[1] = berlin;
    return s;
}

static void test_summary_file(void **state) {
    (void)state;
    static const char *const keys[] = {"job",
                                       "mode",
                                       "params",
                                       "trainable_params",
                                       "rounds",
                                       "wall_s",
                                       "clusters",
                                       "wire_bits_per_param",
                                       "reduction_vs_sync_fp32",
                                       "build"};
    static const char *const cluster_keys[] = {"name",
                                               "device",
                                               "steps",
                                               "steps_left_out",
                                               "tokens",
                                               "loss_first",
                                               "loss_last",
                                               "eval_loss",
                                               "stall_s",
                                               "train_s",
                                               "wan_sent_bytes",
                                               "wan_recv_bytes",
                                               "params_digest",
                                               "lost_steps",
                                               "divergences",
                                               "wan_payload_bytes",
                                               "wan_protocol_bytes"};
    struct agent_summary s = sample();
    assert_int_equal(agent_summary_write(&s, dir), NEB_OK);
    json_t *o = json_load_file(in_dir("summary.json"), 0, NULL);
    assert_non_null(o);
    assert_int_equal(json_object_size(o), sizeof keys / sizeof keys[0]);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        assert_non_null(json_object_get(o, keys[i]));
    // 300 steps x 1e6 parameters x 4 bytes = 1.2e9 over a mean of 6e6; 8 x 10.5e6 / 20e6
    assert_true(fabs(json_real_value(json_object_get(o, "reduction_vs_sync_fp32")) - 200) < 1e-6);
    assert_true(fabs(json_real_value(json_object_get(o, "wire_bits_per_param")) - 4.2) < 1e-9);
    json_t *c = json_array_get(json_object_get(o, "clusters"), 1);
    assert_int_equal(json_array_size(json_object_get(o, "clusters")), 2);
    assert_int_equal(json_object_size(c), sizeof cluster_keys / sizeof cluster_keys[0]);
    for (size_t i = 0; i < sizeof cluster_keys / sizeof cluster_keys[0]; i++)
        assert_non_null(json_object_get(c, cluster_keys[i]));
    assert_true(json_is_null(json_object_get(c, "eval_loss"))); // unknown, not 0
    assert_string_equal(json_string_value(json_object_get(c, "name")), "berlin");
    assert_int_equal(json_integer_value(json_object_get(c, "wan_sent_bytes")), 6600000);
    assert_true(json_real_value(json_object_get(c, "loss_first")) == 8.3178);
    json_decref(o);
    s.clusters[0].wan_sent_bytes = s.clusters[1].wan_sent_bytes = s.payload_params = 0;
    assert_true(isnan(agent_summary_reduction(&s)) && isnan(agent_summary_bits_per_param(&s)));
}

static void test_summary_table(void **state) {
    (void)state;
    static const char expect[] =
        "first-light (replicas): 1000000 parameters, 1000000 trained, 10 rounds, 1:23\n"
        "4.20 bits per parameter and exchange, 200 times fewer bytes than synchronous fp32\n"
        "cluster      steps         tokens    first     last held out   stall      sent  received  "
        "digest\n"
        "paris          300         614400   8.3178   5.1000   5.2500    2.5%   5.40 MB   5.60 MB  "
        "001122334455\n"
        "berlin         300         614400   8.3178   5.1000        -    2.5%   6.60 MB   5.60 MB  "
        "001122334455\n";
    struct agent_summary s = sample();
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    agent_summary_print(&s, f);
    fclose(f);
    assert_string_equal(text, expect);
    free(text);
}

// Checks that elements open and close in order, and that curves are there.
static void check_svg(const char *name, bool curves) {
    char path[NEB_PATH_MAX];
    struct neb_buf b = {0};
    int depth = 0, paths = 0;
    snprintf(path, sizeof path, "%s/plots/%s.svg", dir, name);
    assert_int_equal(neb_fs_read(path, 1 << 22, &b), NEB_OK);
    neb_buf_u8(&b, 0);
    for (const char *p = (const char *)b.p; (p = strchr(p, '<')); p++) {
        const char *end = p[1] == '!' && p[2] == '-' ? strstr(p, "-->") : strchr(p, '>');
        assert_non_null(end);
        if (p[1] == '?' || p[1] == '!')
            continue;
        if (!strncmp(p, "<path", 5))
            paths++;
        depth += p[1] == '/' ? -1 : end[-1] == '/' ? 0 : 1;
        assert_true(depth >= 0);
    }
    assert_int_equal(depth, 0);
    assert_non_null(strstr((const char *)b.p, "</svg>"));
    if (curves) {
        assert_true(paths >= 2);
        assert_non_null(strstr((const char *)b.p, "paris"));
        assert_non_null(strstr((const char *)b.p, "berlin"));
    }
    neb_buf_free(&b);
}

static void add_plot_lines(struct agent_metrics *m, int from, int to, bool links) {
    static const char *const clusters[] = {"paris", "berlin"};
    for (int i = from; i <= to; i++)
        for (int c = 0; c < 2; c++) {
            json_t *step =
                json_pack("{s:s, s:s, s:i, s:i, s:f}", "kind", "step", "cluster", clusters[c],
                          "step", 10 * i, "tokens", 20480 * i, "loss", 4 + 4.0 / (i + c));
            if (i == 20)
                json_object_set_new(step, "loss", json_null());
            assert_int_equal(agent_metrics_add(m, i * NEB_S, step), NEB_OK);
            if (!links)
                continue;
            json_t *link = json_pack("{s:s, s:s, s:i, s:i, s:f, s:b, s:s}", "kind", "link",
                                     "cluster", clusters[c], "sent_bytes", 100000 * i, "recv_bytes",
                                     90000 * i, "goodput_bps", 9e7 - 1e6 * (i % 7), "up", 1,
                                     "codec", i < 25 ? "int4" : "topk:64/4096");
            assert_int_equal(agent_metrics_add(m, i * NEB_S, link), NEB_OK);
        }
}

// gnuplot must not complain: its warnings would be captured.
static void make_plots(void) {
    message[0] = 0;
    neb_log_set_sink(capture, NULL);
    enum neb_status st = agent_plots_make(dir);
    neb_log_set_sink(NULL, NULL);
    assert_int_equal(st, NEB_OK);
    assert_string_equal(message, "");
    assert_false(neb_fs_exists(in_dir("plots/.work")));
}

static void test_plots(void **state) {
    (void)state;
    struct agent_metrics *m;
    if (access("/usr/bin/gnuplot", X_OK) != 0)
        skip();
    // A job of one cluster sends nothing, so there are only two plots.
    assert_int_equal(agent_metrics_open(in_dir("metrics.jsonl"), false, 0, &m), NEB_OK);
    add_plot_lines(m, 1, 5, false);
    agent_metrics_close(&m);
    make_plots();
    check_svg("loss_tokens", true);
    check_svg("loss_seconds", true);
    assert_false(neb_fs_exists(in_dir("plots/loss_wan.svg")));
    assert_false(neb_fs_exists(in_dir("plots/goodput.svg")));

    // A federated run, resumed once from a checkpoint ten lines back.
    assert_int_equal(agent_metrics_open(in_dir("metrics.jsonl"), false, 0, &m), NEB_OK);
    add_plot_lines(m, 1, 40, true);
    agent_metrics_close(&m);
    assert_int_equal(agent_metrics_open(in_dir("metrics.jsonl"), true, 0, &m), NEB_OK);
    add_plot_lines(m, 30, 60, true);
    agent_metrics_close(&m);
    make_plots();
    check_svg("loss_tokens", true);
    check_svg("loss_seconds", true);
    check_svg("loss_wan", true);
    check_svg("goodput", true);
    struct neb_buf b = {0};
    assert_int_equal(neb_fs_read(in_dir("plots/goodput.svg"), 1 << 22, &b), NEB_OK);
    neb_buf_u8(&b, 0);
    assert_non_null(strstr((const char *)b.p, "topk:64/4096")); // the new codec is named
    assert_non_null(strstr((const char *)b.p, "Mbit/s"));
    neb_buf_free(&b);
}

// Names and codecs come from workers. They are shown as text, whatever they hold: no part runs as a
// command, and no curve is missing.
static void test_plots_hostile(void **state) {
    (void)state;
    static const char *const words[] = {"int4'\nsystem('touch OWNED')\n#",
                                        "x\"\nsystem(\"touch OWNED\")\n",
                                        "`touch OWNED`",
                                        "a\tb\\n'.system('touch OWNED').'",
                                        "@system",
                                        "\\",
                                        "%s%n$1",
                                        "int4\033[2J"};
    struct agent_metrics *m;
    char owned[NEB_PATH_MAX], was[NEB_PATH_MAX];
    if (access("/usr/bin/gnuplot", X_OK) != 0)
        skip();
    assert_int_equal(agent_metrics_open(in_dir("metrics.jsonl"), false, 0, &m), NEB_OK);
    add_plot_lines(m, 1, 5, true);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        neb_ns at = (neb_ns)(6 + i) * NEB_S;
        assert_int_equal(
            agent_metrics_add(m, at,
                              json_pack("{s:s,s:s,s:i,s:i,s:f,s:s}", "kind", "link", "cluster",
                                        "paris", "sent_bytes", 1 << 20, "recv_bytes", 1,
                                        "goodput_bps", 1e7, "codec", words[i])),
            NEB_OK);
        assert_int_equal(
            agent_metrics_add(m, at,
                              json_pack("{s:s,s:s,s:i,s:i,s:f}", "kind", "step", "cluster",
                                        words[i], "step", 10, "tokens", 1000, "loss", 4.0)),
            NEB_OK);
    }
    agent_metrics_close(&m);
    assert_non_null(getcwd(was, sizeof was));
    assert_int_equal(chdir(dir), 0);
    make_plots();
    assert_int_equal(chdir(was), 0);
    snprintf(owned, sizeof owned, "%s/OWNED", dir);
    assert_false(neb_fs_exists(owned));
    check_svg("loss_tokens", true);
    check_svg("goodput", true);
}

// Without gnuplot: one clear line.
static void test_plots_missing(void **state) {
    (void)state;
    char old[4096];
    const char *path = getenv("PATH");
    snprintf(old, sizeof old, "%s", path ? path : "");
    message[0] = 0;
    neb_log_set_sink(capture, NULL);
    setenv("PATH", dir, 1);
    assert_int_equal(agent_plots_make(dir), NEB_OK);
    setenv("PATH", old, 1);
    neb_log_set_sink(NULL, NULL);
    assert_string_equal(message, "no plots: gnuplot is not installed (Debian package gnuplot-nox)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics),       cmocka_unit_test(test_metrics_full),
        cmocka_unit_test(test_metrics_long),  cmocka_unit_test(test_summary_file),
        cmocka_unit_test(test_summary_table), cmocka_unit_test(test_plots),
        cmocka_unit_test(test_plots_hostile), cmocka_unit_test(test_plots_missing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
