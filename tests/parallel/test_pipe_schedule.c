// SPDX-License-Identifier: Apache-2.0
// The pipeline schedule for every number of stages and micro-batches up to 8 x 16. Every stage has
// each micro-batch once forward and once backward. Activations are bounded, there is no deadlock,
// and idle time is at most that of 1F1B.
#include "intra/model/pipe_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { STAGES = 8, MICROS = 16 };

struct stage {
    struct intra_pipe_op ops[2 * MICROS];
    int at;          // next operation
    int32_t done[2]; // micro-batches forward, backward
    // by direction (down, up): sent by this stage, received by its neighbour
    int32_t sent[2], got[2];
};

static void make(struct stage *s, int stages, int32_t micros) {
    memset(s, 0, sizeof *s * STAGES);
    for (int i = 0; i < stages; i++)
        intra_pipe_schedule(i, stages, micros, s[i].ops);
}

static void test_order_and_memory(void **state) {
    (void)state;
    for (int stages = 1; stages <= STAGES; stages++)
        for (int32_t micros = 1; micros <= MICROS; micros++) {
            struct stage s[STAGES];
            make(s, stages, micros);
            for (int i = 0; i < stages; i++) {
                int32_t next[2] = {0, 0}, bound = intra_pipe_in_flight(i, stages, micros), most = 0;
                for (int k = 0; k < 2 * micros; k++) {
                    struct intra_pipe_op op = s[i].ops[k];
                    assert_int_equal(op.micro, next[op.backward]++); // in order, each once
                    assert_true(!op.backward || op.micro < next[0]);
                    if (next[0] - next[1] > most)
                        most = next[0] - next[1];
                }
                assert_true(next[0] == micros && next[1] == micros);
                assert_int_equal(most, bound);
                assert_true(bound <= stages - i && bound <= micros);
            }
            assert_int_equal(intra_pipe_in_flight(stages - 1, stages, micros), 1);
        }
}

// Runs one operation of stage i if its inputs are there. A send waits until the previous one in the
// same direction is received (one buffer a direction), so buffers cannot hide a deadlock. in_order:
// a receive also waits for this stage's earlier sends in the same direction, as with NCCL, where a
// communicator has one stream.
static bool step(struct stage *s, int i, int stages, int32_t micros, bool in_order, bool *moved) {
    struct stage *me = &s[i];
    if (me->at == 2 * micros)
        return false;
    struct intra_pipe_op op = me->ops[me->at];
    int dir = op.backward, from = dir ? i + 1 : i - 1;
    bool has_from = from >= 0 && from < stages, has_to = dir ? i > 0 : i < stages - 1;
    if (has_from && s[from].got[dir] <= op.micro) { // receive
        if (s[from].sent[dir] <= op.micro || (in_order && has_to && me->got[dir] < me->sent[dir]))
            return false;
        s[from].got[dir]++;
        *moved = true;
    }
    if (has_to && me->got[dir] < me->sent[dir])
        return false; // the buffer is still in flight
    me->sent[dir] += has_to;
    me->done[dir]++;
    me->at++;
    *moved = true;
    return true;
}

static void test_no_deadlock(void **state) {
    (void)state;
    for (int stages = 1; stages <= STAGES; stages++)
        for (int32_t micros = 1; micros <= MICROS; micros++)
            for (int v = 0; v < 4; v++) { // greedy from either end: two extreme interleavings
                bool reverse = v & 1, in_order = v & 2;
                struct stage s[STAGES];
                make(s, stages, micros);
                for (bool moved = true; moved;) {
                    moved = false;
                    for (int k = 0; k < stages; k++)
                        while (
                            step(s, reverse ? stages - 1 - k : k, stages, micros, in_order, &moved))
                            ;
                }
                for (int i = 0; i < stages; i++)
                    assert_int_equal(s[i].at, 2 * micros);
            }
}

// All stages in lock step, with one slot for a forward or backward pass: the length of 1F1B is 2
// (micros + stages - 1).
static void test_length(void **state) {
    (void)state;
    for (int stages = 1; stages <= STAGES; stages++)
        for (int32_t micros = 1; micros <= MICROS; micros++) {
            struct stage s[STAGES];
            make(s, stages, micros);
            int slots = 0;
            for (bool left = true; left; slots++) {
                int32_t forward[STAGES], backward[STAGES];
                left = false;
                for (int i = 0; i < stages; i++)
                    forward[i] = s[i].done[0], backward[i] = s[i].done[1];
                for (int i = 0; i < stages; i++) {
                    if (s[i].at == 2 * micros)
                        continue;
                    left = true;
                    struct intra_pipe_op op = s[i].ops[s[i].at];
                    bool ready = op.backward ? i == stages - 1 || backward[i + 1] > op.micro
                                             : i == 0 || forward[i - 1] > op.micro;
                    s[i].done[op.backward] += ready;
                    s[i].at += ready;
                }
                assert_true(slots < 1000);
            }
            assert_int_equal(slots - 1, 2 * (micros + stages - 1));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_memory),
        cmocka_unit_test(test_no_deadlock),
        cmocka_unit_test(test_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
