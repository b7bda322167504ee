// SPDX-License-Identifier: Apache-2.0
// agent/cli/doctor: the judgement of each figure. Every problem comes with advice.
#include "agent/cli/doctor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct doctor d;

static void expect(const char *state, const char *advice) { // checks the newest entry
    const json_t *c = json_array_get(d.checks, json_array_size(d.checks) - 1);
    assert_string_equal(json_string_value(json_object_get(c, "state")), state);
    const char *got = json_string_value(json_object_get(c, "advice"));
    if (!*advice ? *got != 0 : !strstr(got, advice))
        fail_msg("%s: \"%s\", not \"%s\"", json_string_value(json_object_get(c, "name")), got,
                 advice);
}

static void test_judgements(void **state) {
    (void)state;
    assert_int_equal(doctor_init(&d), NEB_OK);
    doctor_congestion(&d, "cubic", true);
    expect("ok", "");
    doctor_congestion(&d, "cubic", false);
    expect("warn", "modprobe tcp_bbr");
    struct doctor_path path = {0}; // not measured
    doctor_buffers(&d, 32 << 20, 4 << 20, &path);
    expect("ok", "");
    doctor_buffers(&d, 32 << 20, 3 << 20, &path);
    expect("warn", "tcp_wmem=\"4096 16384 6250000\"");
    // 25 MB in flight: 1.9 MB on each of 13 connections is too much for buffers of 4 MiB, 1.6 MB on
    // each of 16 is not
    path = (struct doctor_path){1e9, 0.2, 13};
    doctor_buffers(&d, 32 << 20, 4 << 20, &path);
    expect("warn", "tcp_wmem=\"4096 16384 7692307\"");
    path.connections = 16;
    doctor_buffers(&d, 32 << 20, 4 << 20, &path);
    expect("ok", "");
    path.connections = 1;
    doctor_buffers(&d, 32 << 20, 256 << 20, &path);
    expect("warn", "tcp_rmem=\"4096 131072 100000000\"");
    doctor_buffers(&d, -1, 4 << 20, &path);
    expect("warn", "");
    doctor_mtu(&d, "1");
    expect("ok", "");
    doctor_mtu(&d, "0");
    expect("warn", "sysctl -w net.ipv4.tcp_mtu_probing=1");
    doctor_mtu(&d, "");
    expect("ok", "");
    doctor_files(&d, 1024, 2);
    expect("ok", "");
    doctor_files(&d, 1024, 15);
    expect("warn", "ulimit -n");
    doctor_pages(&d, "always [madvise] never", true);
    expect("ok", "");
    doctor_pages(&d, "[always] madvise never", true);
    expect("ok", "");
    doctor_pages(&d, "always madvise [never]", true);
    expect("warn", "echo madvise");
    doctor_pages(&d, "always madvise [never]", false);
    expect("ok", "");
    doctor_pages(&d, "", true);
    expect("ok", "");
    assert_int_equal(d.worst, DOCTOR_WARN);
    doctor_disk(&d, "/home", (int64_t)100 << 30, 0);
    expect("ok", "");
    doctor_disk(&d, "/home", (int64_t)100 << 30, (int64_t)95 << 30);
    expect("warn", "full disk");
    assert_int_equal(d.worst, DOCTOR_WARN);
    doctor_disk(&d, "/home", (int64_t)100 << 30, (int64_t)101 << 30);
    expect("fail", "full disk");
    assert_int_equal(d.worst, DOCTOR_FAIL);
    doctor_user(&d, false);
    expect("ok", "");
    doctor_user(&d, true);
    expect("warn", "its own user");
    doctor_keys(&d, true, 8 << 20);
    expect("ok", "");
    doctor_keys(&d, false, 64 << 10);
    expect("warn", "LimitMEMLOCK");
    doctor_clock(&d, 1);
    expect("ok", "");
    doctor_clock(&d, 0);
    expect("warn", "NTP");
    assert_int_equal(d.worst, DOCTOR_FAIL); // a later success does not change a failure
    doctor_free(&d);
}

static void peer(bool up, const char *endpoint, double offset) {
    json_t *p = json_pack("{s:s,s:s,s:b,s:f,s:f,s:f,s:s,s:i,s:i}", "name", "paris", "endpoint",
                          endpoint, "up", up, "rtt_ms", 80.0, "goodput_bps", 9e7, "clock_offset_s",
                          offset, "congestion", "bbr", "bulk_used", 2, "bulk_open", 4);
    doctor_peer(&d, p);
    json_decref(p);
}

static void test_peers(void **state) {
    (void)state;
    assert_int_equal(doctor_init(&d), NEB_OK);
    peer(true, "paris.example:7443", 0.001);
    expect("ok", "");
    peer(true, "", -3);
    expect("warn", "NTP");
    peer(true, "", 100);
    expect("fail", "NTP");
    peer(false, "paris.example:7443", 0);
    expect("fail", "paris.example:7443");
    peer(false, "", 0);
    expect("fail", "it should dial this side");
    json_t *p = json_pack("{s:s,s:s,s:b,s:b,s:i,s:s,s:i,s:s}", "name", "paris", "endpoint", "",
                          "up", false, "protocol_differs", true, "protocol", 7, "build",
                          "9.1 (bee)", "own_protocol", 6, "own_build", "8.0 (aaa)");
    doctor_peer(&d, p);
    json_decref(p);
    expect("fail", "install the same version of nebula at both sites");
    const char *text = json_string_value(
        json_object_get(json_array_get(d.checks, json_array_size(d.checks) - 1), "found"));
    assert_non_null(strstr(text, "protocol 7 (nebula 9.1 (bee)), the agent here protocol 6"));
    assert_non_null(strstr(text, "8.0 (aaa)"));
    json_t *empty = json_object(); // the answer comes from another version
    doctor_peer(&d, empty);
    json_decref(empty);
    doctor_free(&d);
}

static void test_this_machine(void **state) {
    (void)state;
    assert_int_equal(doctor_init(&d), NEB_OK);
    const struct doctor_path unknown = {0};
    doctor_machine(&d, "/", 1, 0, &unknown);
    assert_int_equal(json_array_size(d.checks), 11);
    doctor_machine(&d, "/no such folder", 1, 0, &unknown);
    assert_int_equal(d.worst, DOCTOR_FAIL);
    doctor_free(&d);
}

// Buffers are judged by the connection with most bytes in flight: of all peers, or of one peer if
// asked.
static void test_measured_path(void **state) {
    (void)state;
    json_t *peers = json_pack(
        "[{s:s,s:f,s:f,s:i},{s:s,s:f,s:f,s:i},{s:s,s:f,s:f},{s:s,s:f,s:f},{s:s}]", "name", "wide",
        "goodput_bps", 4e9, "rtt_ms", 1e3, "bulk_used", 32, "name", "far", "goodput_bps", 1e9,
        "rtt_ms", 2e3, "bulk_used", 8, "name", "near", "goodput_bps", 4e9, "rtt_ms", 1.0, "name",
        "down", "goodput_bps", 9e9, "rtt_ms", 0.0, "name", "new");
    struct doctor_path x;
    assert_non_null(peers);
    assert_true(doctor_path(peers, NULL, &x)); // fewer bytes in total, but more on each connection
    assert_true(x.goodput_bps == 1e9 && x.rtt_s == 2 && x.connections == 8);
    assert_int_equal(doctor_init(&d), NEB_OK);
    x.rtt_s = 2e3; // 31 GB on each: more than any system allows
    doctor_machine(&d, "/", 4, 0, &x);
    const json_t *c = json_array_get(d.checks, 1);
    assert_string_equal(json_string_value(json_object_get(c, "name")), "socket buffers");
    assert_non_null(strstr(json_string_value(json_object_get(c, "found")), "one of 8"));
    assert_non_null(strstr(json_string_value(json_object_get(c, "found")), "the measured path"));
    assert_non_null(strstr(json_string_value(json_object_get(c, "advice")), "2147483647"));
    doctor_free(&d);
    assert_true(doctor_path(peers, "near", &x));
    assert_true(x.goodput_bps == 4e9 && x.rtt_s == 1e-3 && x.connections == 1);
    assert_false(doctor_path(peers, "down", &x));
    assert_true(x.goodput_bps == 0 && x.rtt_s == 0);
    assert_false(doctor_path(peers, "nobody", &x));
    assert_false(doctor_path(NULL, NULL, &x));
    json_decref(peers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_judgements), cmocka_unit_test(test_peers),
        cmocka_unit_test(test_measured_path), cmocka_unit_test(test_this_machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
