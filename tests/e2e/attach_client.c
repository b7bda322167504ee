// SPDX-License-Identifier: Apache-2.0
// A trainer that uses only libnebula.h, for test_attach.sh. It pulls its parameters towards TARGET,
// so two of them have different values to average.
//
// usage: attach_client AGENT JOB TARGET [--die-at STEP | --detach-at STEP | --boast-at STEP]
//
// With --pace MS instead, every step takes MS milliseconds on any machine. Each step changes a 64th
// of the parameters by heavy-tailed random amounts with the seed TARGET (configs/stall-compare).
#include "agent/lib/libnebula.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void check(int status, const char *what) {
    if (status == NEBULA_OK)
        return;
    fprintf(stderr, "%s: status %d: %s\n", what, status, nebula_last_error());
    exit(10 + status);
}

static float *memory[4096];
static size_t sizes[4096];

// Every tensor as two ranges, because rows need not be contiguous. The second range is bfloat16 if
// the trainer asks for it.
static void register_all(struct nebula *n, int tensors) {
    for (int i = 0; i < tensors; i++) {
        struct nebula_tensor t = {.size = sizeof t};
        check(nebula_tensor_at(n, i, &t), "nebula_tensor_at");
        sizes[i] = (size_t)t.rows * (size_t)t.cols;
        memory[i] = calloc(sizes[i] + 1, sizeof(float));
        if (!memory[i])
            exit(2);
        int32_t first = t.rows > 1 ? t.rows / 2 : t.rows;
        check(nebula_register(n, t.name, 0, first, t.cols, NEBULA_F32, NEBULA_HOST, memory[i]),
              t.name);
        if (first < t.rows)
            check(nebula_register(n, t.name, first, t.rows - first, t.cols, NEBULA_F32, NEBULA_HOST,
                                  memory[i] + (size_t)first * (size_t)t.cols),
                  t.name);
    }
}

static double train(int tensors, float target) {
    double loss = 0, count = 0;
    for (int i = 0; i < tensors; i++)
        for (size_t k = 0; k < sizes[i]; k++) {
            float d = memory[i][k] - target;
            memory[i][k] -= 0.02f * d;
            loss += (double)d * d;
            count++;
        }
    return loss / count;
}

static double uniform(uint64_t *state) { // xorshift64, Marsaglia (2003); in [-0.5, 0.5)
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (double)(*state >> 11) * 0x1p-53 - 0.5;
}

static void wander(int tensors, int64_t step, uint64_t *state) {
    for (int i = 0; i < tensors; i++)
        for (size_t k = (size_t)(step % 64); k < sizes[i]; k += 64) {
            double u = uniform(state);
            memory[i][k] += (float)(u * u * u * (*state % 16 ? 0.01 : 0.08));
        }
}

static void sleep_until(struct timespec *at, double ms) { // until ms after *at; moves *at
    int64_t ns = at->tv_nsec + (int64_t)(ms * 1e6);
    at->tv_sec += ns / 1000000000;
    at->tv_nsec = ns % 1000000000;
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, at, NULL);
}

int main(int argc, char **argv) {
    struct nebula_attach_options o = {
        .size = sizeof o, .api = NEBULA_API, .threads = 1, .timeout_s = 30};
    struct nebula_info info = {.size = sizeof info};
    struct nebula *n;
    int state = NEBULA_TRAIN;
    if (argc < 4)
        return 2;
    o.agent = argv[1];
    o.job = argv[2];
    float target = strtof(argv[3], NULL);
    const char *how = argc > 5 ? argv[4] : "";
    long at = argc > 5 ? strtol(argv[5], NULL, 10) : -1;
    double pace_ms = strcmp(how, "--pace") ? 0 : strtod(argv[5], NULL);
    uint64_t state_random = 0x9e3779b97f4a7c15u * (uint64_t)(target + 1);
    check(nebula_attach(&o, &n), "nebula_attach");
    check(nebula_info_get(n, &info), "nebula_info_get");
    int tensors = info.tensors;
    register_all(n, tensors);
    check(nebula_begin(n), "nebula_begin");
    check(nebula_info_get(n, &info), "nebula_info_get");
    printf("begins at %lld\n", (long long)info.step);
    fflush(stdout);
    for (int64_t step = info.step; state == NEBULA_TRAIN && step < info.steps; step++) {
        if (step == at && !strcmp(how, "--die-at"))
            raise(SIGKILL);
        if (step == at && !strcmp(how, "--detach-at")) {
            check(nebula_close(&n, (double)NAN), "nebula_close");
            return 0;
        }
        if (step == at && !strcmp(how, "--boast-at")) {
            int status = nebula_step(n, 1ull << 40, 1.0, &state);
            fprintf(stderr, "status %d: %s\n", status, nebula_last_error());
            if (status != NEBULA_ERR_INVALID)
                return 4;
        }
        int32_t ids[4] = {(int32_t)step % info.vocab, 1, 2, 3};
        check(nebula_count(n, ids, ids, 4), "nebula_count");
        struct timespec began;
        clock_gettime(CLOCK_MONOTONIC, &began);
        double loss = 1;
        if (pace_ms > 0)
            wander(tensors, step, &state_random);
        else
            loss = train(tensors, target);
        sleep_until(&began, pace_ms > 0 ? pace_ms : 5);
        struct nebula_step_stats s = NEBULA_STEP_STATS_INIT;
        s.tokens = 256, s.loss = loss, s.lr = 0.02;
        s.eval_loss = (step + 1) % 40 ? NEBULA_UNKNOWN : loss; // two such steps in a run
        check(step % 2 ? nebula_step_with(n, &s, &state) : nebula_step(n, 256, loss, &state),
              "nebula_step");
        if (nebula_step_count(n) <= step)
            return 5;
    }
    check(nebula_info_get(n, &info), "nebula_info_get");
    if (nebula_step_count(n) != info.step || nebula_step_count(NULL) != 0)
        return 5;
    double mean = 0, count = 0;
    for (int i = 0; i < tensors; i++)
        for (size_t k = 0; k < sizes[i]; k++)
            mean += (double)memory[i][k], count++;
    printf("state %d, %llu rounds, digest %s, mean %.3f\n", state, (unsigned long long)info.rounds,
           info.digest, mean / count);
    check(nebula_close(&n, 1.5), "nebula_close");
    return state == NEBULA_DONE ? 0 : 3;
}
