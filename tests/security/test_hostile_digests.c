// SPDX-License-Identifier: Apache-2.0
// What honest members compute does not depend on a hostile one. Anna and bert train while mallory
// is silent, while she sends updates that no worker makes, and while she replays altered messages.
// The parameters after every round are identical in all three runs.
#include "tests/security/hostile_fixture.h"

#include "inter/outer/outer.h"

enum { ROUNDS = KINDS - 1 + 2 }; // one kind of bad update per round, and two forged ones

static struct kern_pool *pool;
static struct trainee {
    struct inter_outer *o;
    float theta[ELEMENTS];
    struct kern_digest after[ROUNDS + 1]; // each round
} trainees[2];
static struct kern_digest in_peace[ROUNDS + 1];

static const uint64_t *ones(void *user, int32_t unit) {
    static uint64_t counts[ROWS];
    (void)user, (void)unit;
    for (int i = 0; i < ROWS; i++)
        counts[i] = 1;
    return counts;
}

static void apply(struct site *x, const struct inter_record *r, const struct neb_map *blobs) {
    struct inter_outer_part parts[SITES];
    struct inter_outer_round round = {
        .parts = parts, .eta = r->eta, .mu = r->mu, .merge = r->flags & INTER_MERGE};
    if (x->who == MALLORY)
        return;
    struct trainee *t = &trainees[x->who];
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].verdict == INTER_ACCEPTED) {
            const struct inter_entry *e = &r->entries[i];
            assert_true(blobs[i].len == e->bytes);
            parts[round.n++] = (struct inter_outer_part){
                blobs[i].p, blobs[i].len, e->tokens, e->clip, e->member == x->who, e->weight};
        }
    assert_true(r->round <= ROUNDS && round.n >= 2);
    OK(inter_outer_apply(t->o, 0, &round, &t->after[r->round]));
}

// The result of a step depends on where it begins, so a difference would stay and grow.
static void train(int who, uint32_t round) {
    struct trainee *t = &trainees[who];
    for (uint32_t i = 0; i < ELEMENTS; i++)
        t->theta[i] +=
            0.1f * sinf(3 * t->theta[i] + (float)who) +
            (float)(int32_t)(neb_mix64(i + (round * 2 + (uint32_t)who) * 7919ull) >> 33) * 1e-11f;
}

static void trained_round(void) {
    const uint32_t round = sites[ANNA].commits;
    struct cmp_codec codec;
    OK(cmp_codec_parse("int8", &codec));
    UNTIL(sites[BERT].commits == round);
    for (int who = ANNA; who <= BERT; who++) {
        struct neb_buf b = {0};
        train(who, round);
        OK(inter_outer_encode(trainees[who].o, 0, &codec, ones, NULL, &b));
        submit_as(&sites[who], &b, STEPS * STEP_TOKENS, (round + 1) * STEPS, STEPS);
        neb_buf_free(&b);
    }
    UNTIL(sites[ANNA].commits == round + 1 && sites[BERT].commits == round + 1);
}

static int open_trainees(void **state) {
    const struct inter_outer_config c = {
        .beta = 1, .kappa = 1, .row_weights = true, .fragments = 1};
    on_blobs = apply;
    for (int who = ANNA; who <= BERT; who++) {
        struct trainee *t = &trainees[who];
        memset(t, 0, sizeof *t);
        for (int i = 0; i < ELEMENTS; i++)
            t->theta[i] = 0.01f * (float)(i % 17 - 8);
        const struct inter_outer_unit unit = {ROWS, COLS, true, 0, t->theta};
        OK(inter_outer_create(&c, &unit, 1, pool, &t->o));
    }
    open_sites(state);
    // The first round is one of all three, and is the same in all runs.
    submit(&sites[MALLORY], GOOD);
    trained_round();
    UNTIL(sites[MALLORY].commits == 1);
    assert_int_equal(sites[ANNA].last.n, SITES);
    return 0;
}

static int close_trainees(void **state) {
    close_sites(state);
    on_blobs = NULL;
    for (int who = ANNA; who <= BERT; who++)
        inter_outer_destroy(&trainees[who].o);
    return 0;
}

static void expect_as_in_peace(void) {
    assert_int_equal(sites[ANNA].commits, ROUNDS + 1);
    for (int who = ANNA; who <= BERT; who++) {
        assert_memory_equal(trainees[who].after, in_peace, sizeof in_peace);
        expect_sound(&sites[who]);
    }
}

static void test_silent(void **state) {
    (void)state;
    inter_service_destroy(&sites[MALLORY].s);
    for (int i = 0; i < ROUNDS; i++)
        trained_round();
    memcpy(in_peace, trainees[ANNA].after, sizeof in_peace);
    for (int i = 0; i < ROUNDS; i++) // each round moves the parameters
        assert_memory_not_equal(&in_peace[i], &in_peace[i + 1], sizeof in_peace[i]);
    expect_as_in_peace();
}

static void test_bad_updates(void **state) {
    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        const bool forged = i >= KINDS - 1;
        const enum inter_fault fault = forged ? INTER_FAULT_FORGED : INTER_FAULT_REFUSED;
        const uint64_t was[2] = {sites[ANNA].faults[fault], sites[BERT].faults[fault]};
        UNTIL(sites[MALLORY].commits == sites[ANNA].commits);
        if (forged) { // impossible tokens, or steps from before the job
            struct neb_buf b = {0};
            make_update(GOOD, 77, &b);
            submit_as(&sites[MALLORY], &b, i % 2 ? 1000000000 : STEPS * STEP_TOKENS,
                      i % 2 ? (uint64_t)(i + 2) * STEPS : 0, STEPS);
            neb_buf_free(&b);
        } else
            submit(&sites[MALLORY], (enum kind)(GOOD + 1 + i));
        UNTIL(sites[ANNA].faults[fault] > was[0] && sites[BERT].faults[fault] > was[1]);
        trained_round();
    }
    expect_as_in_peace();
}

static void test_again_and_altered(void **state) {
    (void)state;
    OK(inter_ledger_get_standing(inter_service_ledger(sites[MALLORY].s), job, &standing));
    inter_service_destroy(&sites[MALLORY].s);
    connect_bare();
    for (int i = 0; i < ROUNDS; i++) {
        trained_round();
        ask_for_chunks();
        go_for(100 * NEB_MS);
        resend_all();
        say_altered(150);
    }
    assert_true(only_hers(&sites[ANNA], INTER_FAULT_MALFORMED) &&
                only_hers(&sites[BERT], INTER_FAULT_MALFORMED));
    assert_true(only_hers(&sites[ANNA], INTER_FAULT_REPLAY));
    expect_as_in_peace();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_silent, open_trainees, close_trainees),
        cmocka_unit_test_setup_teardown(test_bad_updates, open_trainees, close_trainees),
        cmocka_unit_test_setup_teardown(test_again_and_altered, open_trainees, close_trainees)};
    if (kern_pool_create(1, &pool) != NEB_OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, setup, teardown);
    kern_pool_destroy(&pool);
    return failed;
}
