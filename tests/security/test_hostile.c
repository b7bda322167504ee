// SPDX-License-Identifier: Apache-2.0
// Anna and bert are services of honest agents. Mallory is a listed member that sends updates that
// no worker makes, and replays what she received: late, twice, to others, altered, after restarts.
// Anna and bert refuse it, commit the same records, and their ledgers stay sound.
#include "tests/security/hostile_fixture.h"

// ---- updates that no worker makes ---------------------------------------------------------------

static void test_bad_updates(void **state) {
    (void)state;
    all_three();
    for (int kind = GOOD + 1; kind < KINDS; kind++) {
        uint64_t a = sites[ANNA].faults[INTER_FAULT_REFUSED],
                 b = sites[BERT].faults[INTER_FAULT_REFUSED];
        struct rusage before, after;
        UNTIL(sites[MALLORY].commits == sites[ANNA].commits);
        submit(&sites[MALLORY], (enum kind)kind);
        // Mallory's own gate has unpacked it. The others look only at its header.
        getrusage(RUSAGE_SELF, &before);
        UNTIL(sites[ANNA].faults[INTER_FAULT_REFUSED] > a &&
              sites[BERT].faults[INTER_FAULT_REFUSED] > b);
        getrusage(RUSAGE_SELF, &after);
        if (kind == BOMB)
            assert_true(after.ru_maxrss - before.ru_maxrss < 8 * 1024);
        honest_round();
        const struct inter_entry *e = entry_of(&sites[ANNA].last, MALLORY);
        assert_true(!e || e->verdict == INTER_REJECTED);
    }
    assert_true(only_hers(&sites[ANNA], INTER_FAULT_REFUSED));
    assert_true(only_hers(&sites[BERT], INTER_FAULT_REFUSED));
    UNTIL(sites[MALLORY].commits == sites[ANNA].commits);
    all_three(); // an honest update of hers counts as before
    assert_true(entry_of(&sites[ANNA].last, MALLORY)->verdict == INTER_ACCEPTED);
    expect_sound(&sites[ANNA]);
    expect_sound(&sites[BERT]);
}

// Well formed and finite, but a thousand times as large as the others. `trusted` commits it, and
// flags its sender.
static void test_huge_norm(void **state) {
    (void)state;
    struct neb_buf b = {0};
    struct cmp_work *w = NULL;
    struct cmp_codec codec;
    struct cmp_unit_shape shape = {.unit = 0, .rows = ROWS, .cols = COLS, .counts = true};
    static float data[ELEMENTS];
    static uint64_t counts[ROWS];
    for (int i = 0; i < ELEMENTS; i++)
        data[i] = 1e3f * (float)(i % 7 - 3);
    OK(cmp_work_create(&w));
    OK(cmp_codec_parse("fp32", &codec));
    cmp_update_begin(&b, 1);
    OK(cmp_update_add(w, &b, &shape, &codec, &(struct cmp_source){.x = data}, counts));
    cmp_work_destroy(&w);
    submit_as(&sites[MALLORY], &b, STEPS * STEP_TOKENS, STEPS, STEPS);
    neb_buf_free(&b);
    go_for(NEB_S);
    honest_round();
    const struct inter_entry *e = entry_of(&sites[ANNA].last, MALLORY);
    assert_true(e && e->verdict == INTER_ACCEPTED && e->clip == 1);
    assert_true(sites[ANNA].faults[INTER_FAULT_OUTLIER] == 1 &&
                sites[BERT].faults[INTER_FAULT_OUTLIER] == 1);
    assert_true(only_hers(&sites[ANNA], INTER_FAULT_OUTLIER));
}

// More tokens than its steps have, more steps than the job has, steps that were counted before,
// more bytes than the model has.
static void test_forged_weights(void **state) {
    (void)state;
    const struct {
        uint64_t tokens, step;
        uint32_t steps;
        size_t bytes;
    } lies[] = {
        {1000000000, 2 * STEPS, STEPS, 0},   {STEPS * STEP_TOKENS + 1, 2 * STEPS, STEPS, 0},
        {4000 * STEP_TOKENS, 4000, 4000, 0}, {60 * STEP_TOKENS, 2 * STEPS, 60, 0},
        {STEPS * STEP_TOKENS, 0, STEPS, 0},  {STEPS * STEP_TOKENS, 2 * STEPS, STEPS, 3 << 20}};
    all_three();
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct neb_buf b = {0};
        uint64_t was[2] = {sites[ANNA].faults[INTER_FAULT_FORGED],
                           sites[BERT].faults[INTER_FAULT_FORGED]};
        UNTIL(sites[MALLORY].commits == sites[ANNA].commits);
        make_update(GOOD, 77, &b);
        if (lies[i].bytes)
            (void)neb_buf_grow(&b, lies[i].bytes);
        for (size_t k = 0; k < lies[i].bytes; k++)
            b.p[b.len - 1 - k] = 0;
        submit_as(&sites[MALLORY], &b, lies[i].tokens, lies[i].step, lies[i].steps);
        UNTIL(sites[ANNA].faults[INTER_FAULT_FORGED] > was[0] &&
              sites[BERT].faults[INTER_FAULT_FORGED] > was[1]);
        honest_round(); // after the grace
        assert_null(entry_of(&sites[ANNA].last, MALLORY));
        neb_buf_free(&b);
    }
    expect_sound(&sites[ANNA]);
    expect_sound(&sites[BERT]);
}

// ---- replay ------------------------------------------------------------------------------------

static size_t recorded(uint8_t type) {
    size_t n = 0;
    for (size_t i = 0; i < n_frames; i++)
        n += frames[i].b.len && frames[i].b.p[0] == type;
    return n;
}

static void test_replay(void **state) {
    (void)state;
    become_bare();
    for (int i = 0; i < 2; i++) {
        uint32_t before = sites[ANNA].commits;
        submit(&sites[ANNA], GOOD);
        submit(&sites[BERT], GOOD);
        UNTIL(recorded(MSG_MANIFEST) > (size_t)i);
        ask_for_chunks();
        resend_all(); // while the round is open
        UNTIL(sites[ANNA].commits == before + 1 && sites[BERT].commits == before + 1);
    }
    UNTIL(recorded(MSG_COMMIT) > 0 && recorded(8) > 0); // 8: chunks
    resend_all();
    honest_round();
    connect_bare(); // a new session
    resend_all();
    honest_round();
    for (int k = ANNA; k <= BERT; k++) { // a restarted member knows what it has seen
        inter_service_destroy(&sites[k].s);
        start(&sites[k]);
        open_job(&sites[k]);
        UNTIL(bare_up[k]);
        resend_all();
        honest_round();
    }
    go_for(NEB_S);
    assert_true(sites[ANNA].faults[INTER_FAULT_REPLAY] > 0 &&
                sites[BERT].faults[INTER_FAULT_REPLAY] > 0);
    assert_int_equal(sites[ANNA].faults[INTER_FAULT_DIVERGED], 0);
    for (int k = ANNA; k <= BERT; k++)
        expect_sound(&sites[k]);
}

// The same frames altered, cut, and on the wrong channel. What still parses is refused.
static void test_altered(void **state) {
    (void)state;
    become_bare();
    honest_round();
    ask_for_chunks();
    go_for(NEB_S);
    say_altered(1500);
    go_for(NEB_S);
    honest_round();
    honest_round();
    assert_true(sites[ANNA].faults[INTER_FAULT_MALFORMED] + sites[ANNA].faults[INTER_FAULT_DENIED] >
                0);
    for (int k = ANNA; k <= BERT; k++)
        expect_sound(&sites[k]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bad_updates, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_huge_norm, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_forged_weights, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_replay, open_sites, close_sites),
        cmocka_unit_test_setup_teardown(test_altered, open_sites, close_sites)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
