// SPDX-License-Identifier: Apache-2.0
// A teacher or a student of mode distill that uses only libnebula.h, for test_side_faults.sh. It
// has no model: labels and texts follow from numbers, so the student knows every label that it must
// get.
//
// usage: side_client HOME VOCABULARY teacher [OPTION]...   labels all texts
//        side_client HOME VOCABULARY student FILE [OPTION]...
//            learns from the step in FILE on; FILE has the next step
// options: --pace MS: each step takes MS milliseconds. --bad: first every call with every kind of
// bad value. --model NAME: the teacher says this name. --end TEXT: ends the job with TEXT after two
// steps. --at STEP: the student says this step, whatever FILE has.
//
// Prints "labels of STEP", "learned STEP", "attached again", and "state N" at the end. If the agent
// is restarted, the client opens its side again, as a user's program must.
#include "agent/lib/libnebula.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LABELS_MAX = 64, IDS_MAX = 4096, ROWS_MAX = 4096 };

static struct {
    const char *home, *vocabulary, *file, *model, *end;
    int pace_ms;
    bool teaches, bad;
    long at; // -1: as FILE says
} arguments = {.at = -1};

static struct nebula_side *side;
static struct nebula_side_info info;
static int32_t ids[ROWS_MAX * LABELS_MAX];
static float logp[ROWS_MAX * LABELS_MAX];

static _Noreturn void die(const char *what, int status) {
    fprintf(stderr, "%s: status %d: %s\n", what, status, nebula_last_error());
    exit(10 + status);
}
static void check(int status, const char *what) {
    if (status != NEBULA_OK)
        die(what, status);
}

static void pause_ms(int ms) {
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static long kept_step(void) {
    long step = 0;
    FILE *f = arguments.at < 0 ? fopen(arguments.file, "r") : NULL;
    if (f && fscanf(f, "%ld", &step) != 1)
        step = 0;
    if (f)
        fclose(f);
    return arguments.at < 0 ? step : arguments.at;
}

static void keep_step(long step) {
    char new[4096];
    snprintf(new, sizeof new, "%s.new", arguments.file);
    FILE *f = fopen(new, "w");
    if (!f || fprintf(f, "%ld", step) < 0 || fclose(f) || rename(new, arguments.file))
        exit(3);
}

static void open_side(void) {
    struct nebula_attach_options a = {
        .size = sizeof a, .api = NEBULA_API, .agent = arguments.home, .timeout_s = 120};
    const struct nebula_side_options o = {.size = sizeof o,
                                          .vocabulary = arguments.vocabulary,
                                          .step = arguments.teaches ? 0 : kept_step()};
    struct nebula *n;
    check(nebula_attach(&a, &n), "attach");
    check(nebula_side_open(&n, &o, &side), "open");
    info.size = sizeof info;
    check(nebula_side_info_get(side, &info), "info");
}

// True: the call was made. False: the agent was restarted, and the side is open again.
static bool made(int status, const char *what) {
    if (status == NEBULA_ERR_AGAIN) {
        if (nebula_side_close(&side, NAN) != NEBULA_OK)
            fprintf(stderr, "close: %s\n", nebula_last_error());
        open_side();
        puts("attached again");
        return false;
    }
    check(status, what);
    return true;
}

static void refuses(const char *what, int expected, int status) {
    if (status != expected)
        die(what, status);
    printf("%s: %s\n", what, nebula_last_error());
}

// ---- teacher ------------------------------------------------------------------------------------

static int32_t label_id(int64_t step, int32_t target, int32_t i) {
    return (int32_t)((target + i + step) % info.vocab);
}

static void make_labels(const struct nebula_text *t) {
    int32_t row = 0;
    const int32_t *at = t->ids;
    for (int32_t s = 0; s < t->sequences; at += t->lengths[s++])
        for (int32_t p = t->prefixes[s]; p < t->lengths[s]; p++, row++)
            for (int32_t i = 0; i < info.k; i++) {
                ids[row * info.k + i] = label_id(t->step, at[p], i);
                logp[row * info.k + i] = (float)(log(0.6) + i * log(0.3));
            }
}

static int put(int64_t step, int32_t student, int32_t rows, int32_t k) {
    return nebula_side_put(side, step, student, rows, k, ids, logp);
}

static void put_one(const char *what, const struct nebula_text *t, int i, int32_t id, float value) {
    const int32_t id_was = ids[i];
    const float was = logp[i];
    ids[i] = id;
    logp[i] = value;
    refuses(what, NEBULA_ERR_INVALID, put(t->step, t->student, t->rows, info.k));
    ids[i] = id_was;
    logp[i] = was;
}

static void put_bad(const struct nebula_text *t) {
    put_one("positive", t, 0, ids[0], 0.5f);
    put_one("nan", t, 1, ids[1], NAN);
    put_one("infinite", t, 0, ids[0], INFINITY);
    put_one("unsorted", t, 2, ids[2], -0.1f);
    put_one("outside", t, 0, info.vocab, logp[0]);
    put_one("negative", t, 0, -1, logp[0]);
    put_one("twice", t, 0, ids[1], logp[0]);
    refuses("fewer rows", NEBULA_ERR_INVALID, put(t->step, t->student, t->rows - 1, info.k));
    refuses("no rows", NEBULA_ERR_INVALID, put(t->step, t->student, 0, info.k));
    refuses("no k", NEBULA_ERR_INVALID, put(t->step, t->student, t->rows, 0));
    refuses("wide", NEBULA_ERR_INVALID, put(t->step, t->student, t->rows, info.k_max + 1));
    refuses("another step", NEBULA_ERR_INVALID, put(t->step + 1, t->student, t->rows, info.k));
    refuses("another student", NEBULA_ERR_INVALID, put(t->step, t->student + 1, t->rows, info.k));
}

static void teach(void) {
    int state = NEBULA_TRAIN;
    for (int n = 0;; n++) {
        struct nebula_text t = {.size = sizeof t};
        if (arguments.end && n == 2) {
            check(nebula_side_fail(&side, arguments.end), "fail");
            return;
        }
        if (!made(nebula_side_next(side, 0, &t, &state), "next"))
            continue;
        if (state != NEBULA_TRAIN)
            break;
        int64_t step = t.step;
        if (t.rows * (info.k_max + 1) > ROWS_MAX * LABELS_MAX)
            exit(4);
        make_labels(&t);
        if (arguments.bad)
            put_bad(&t);
        pause_ms(arguments.pace_ms);
        if (made(put(step, t.student, t.rows, info.k), "put"))
            printf("labels of %lld\n", (long long)step);
    }
    printf("state %d\n", state);
    check(nebula_side_close(&side, NAN), "close");
}

// ---- student ------------------------------------------------------------------------------------

enum { SEQUENCES = 8 };
struct text {
    int32_t lengths[SEQUENCES], prefixes[SEQUENCES], ids[SEQUENCES * 16];
};

static void make_text(int64_t step, struct text *t) {
    int32_t *at = t->ids;
    for (int32_t i = 0; i < SEQUENCES; i++) {
        t->prefixes[i] = 1 + (int32_t)((step + i) % 3);
        t->lengths[i] = t->prefixes[i] + 2 + (int32_t)((step * 3 + i) % 7);
        for (int32_t p = 0; p < t->lengths[i]; p++)
            *at++ = 3 + (int32_t)((step * 31 + i * 7 + p * 5) % (info.vocab - 3));
    }
}

static int ask(int64_t step) {
    struct text t;
    make_text(step, &t);
    return nebula_side_ask(side, SEQUENCES, t.lengths, t.prefixes, t.ids);
}

// The labels must be those of this step, with the teacher's probabilities to the codec's accuracy.
static void check_labels(const struct nebula_text *t) {
    int32_t row = 0;
    struct text own;
    make_text(t->step, &own);
    const int32_t *at = own.ids;
    for (int32_t s = 0; s < SEQUENCES; at += own.lengths[s++])
        for (int32_t p = own.prefixes[s]; p < own.lengths[s]; p++, row++)
            for (int32_t i = 0; i < t->k; i++) {
                const int32_t got = t->label_ids[row * t->k + i];
                const double value = t->label_logprobs[row * t->k + i];
                if (got == label_id(t->step, at[p], i) &&
                    fabs(value - (log(0.6) + i * log(0.3))) < 0.2)
                    continue;
                fprintf(stderr, "step %lld, row %d, label %d: id %d, log-probability %g\n",
                        (long long)t->step, row, i, got, value);
                exit(5);
            }
    if (row != t->rows)
        exit(6);
}

static void ask_bad(void) {
    static const int32_t few[] = {2, 3, 1}, two[] = {2, 2}, one[] = {1, 1};
    static int32_t many[IDS_MAX], lengths[IDS_MAX / 8], prefixes[IDS_MAX / 8];
    refuses("few", NEBULA_ERR_INVALID, nebula_side_ask(side, 1, two, one, few));
    refuses("no target", NEBULA_ERR_INVALID, nebula_side_ask(side, 2, two, two, few));
    for (int32_t i = 0; i < IDS_MAX; i++)
        many[i] = 3;
    for (int32_t i = 0; i < IDS_MAX / 8; i++)
        lengths[i] = info.seq_len + 2, prefixes[i] = 1;
    refuses("long", NEBULA_ERR_INVALID, nebula_side_ask(side, 2, lengths, prefixes, many));
    for (int32_t i = 0; i < IDS_MAX / 8; i++)
        lengths[i] = 3;
    refuses("many", NEBULA_ERR_INVALID,
            nebula_side_ask(side, IDS_MAX / 8, lengths, prefixes, many));
    many[1] = info.vocab;
    refuses("id outside", NEBULA_ERR_INVALID, nebula_side_ask(side, 2, lengths, prefixes, many));
}

// Learns one step; false: the job is over, or the side was opened again.
static bool learn(int64_t *step, int64_t *asked, int *state) {
    struct nebula_text t = {.size = sizeof t};
    while (*asked < info.steps && *asked < *step + info.ahead) {
        if (!made(ask(*asked), "ask"))
            return false;
        ++*asked;
    }
    if (arguments.bad)
        refuses("credit", *asked < info.steps ? NEBULA_ERR_STATE : NEBULA_ERR_INVALID, ask(*asked));
    if (!made(nebula_side_next(side, 0, &t, state), "next") || *state != NEBULA_TRAIN)
        return false;
    if (t.step != *step)
        exit(7);
    check_labels(&t);
    pause_ms(arguments.pace_ms);
    const uint64_t rows = (uint64_t)t.rows;
    if (!made(nebula_side_learned(side, 3.0 - (double)*step / 100, rows, state), "learned"))
        return false;
    keep_step((long)++*step);
    printf("learned %lld\n", (long long)*step - 1);
    return made(nebula_side_saved(side), "saved");
}

static void study(void) {
    int state = NEBULA_TRAIN;
    if (arguments.bad)
        ask_bad();
    while (state == NEBULA_TRAIN) {
        int64_t step = info.step, asked = step;
        while (state == NEBULA_TRAIN && step < info.steps && learn(&step, &asked, &state))
            ;
        if (step >= info.steps)
            state = NEBULA_DONE;
    }
    printf("state %d\n", state);
    check(nebula_side_close(&side, 1.25), "close");
}

int main(int argc, char **argv) {
    int i = 4;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 4)
        return 2;
    arguments.home = argv[1];
    arguments.vocabulary = argv[2];
    arguments.teaches = !strcmp(argv[3], "teacher");
    if (!arguments.teaches)
        arguments.file = argv[i++];
    for (; i < argc && argv[i]; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--bad")) {
            arguments.bad = true;
            continue;
        }
        if (!strcmp(argv[i], "--pace"))
            arguments.pace_ms = (int)strtol(value, NULL, 10);
        else if (!strcmp(argv[i], "--model"))
            arguments.model = value;
        else if (!strcmp(argv[i], "--end"))
            arguments.end = value;
        else if (!strcmp(argv[i], "--at"))
            arguments.at = strtol(value, NULL, 10);
        else
            return 2;
        i++;
    }
    open_side();
    if (arguments.model)
        check(nebula_side_model(side, arguments.model), "model");
    arguments.teaches ? teach() : study();
    return 0;
}
