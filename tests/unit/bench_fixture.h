// SPDX-License-Identifier: Apache-2.0
// For test_bench_*.c: what a benchmark prints, and the numbers in its JSON lines.
#ifndef BENCH_FIXTURE_H
#define BENCH_FIXTURE_H
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

// Sends stdout to f. Returns the descriptor that print_to_end wants.
static inline int print_to(FILE *f) {
    fflush(stdout);
    int was = dup(1);
    assert_true(was >= 0 && dup2(fileno(f), 1) == 1);
    return was;
}

static inline void print_to_end(FILE *f, int was) {
    fflush(stdout);
    assert_true(dup2(was, 1) == 1);
    close(was);
    rewind(f);
}

static inline double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

#endif
