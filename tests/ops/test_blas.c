// SPDX-License-Identifier: Apache-2.0
// kernels/blas.c chooses the library for products. It corrects an OpenBLAS that detects a lesser
// processor, but keeps a user's choice. oneDNN computes the same, and OpenBLAS replaces a missing
// oneDNN. The choice is made once a process, so each case is a process. The test provokes
// OpenBLAS's mistake on every machine.
#include "kernels/cpu.h"
#include "kernels/onednn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cblas.h>
#include <cmocka.h>

#ifndef PR_SET_MDWE // Linux 6.3
#define PR_SET_MDWE              65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

enum { AS_WANTED = 0, WRONG_CORE, WRONG_PRODUCT, WRONG_LIBRARY, NO_BACKEND, NO_REASON, CANNOT };

static int product_is_right(struct kern *K) {
    enum { M = 37, N = 41, D = 29 };
    static float a[M * D], b[N * D], c[M * N];
    for (int i = 0; i < M * D; i++)
        a[i] = (float)(i % 7) - 3;
    for (int i = 0; i < N * D; i++)
        b[i] = (float)(i % 5) - 2;
    K->ops->gemm(K, &(struct kern_gemm){.tb = KERN_T,
                                        .m = M,
                                        .n = N,
                                        .k = D,
                                        .alpha = 1,
                                        .a = a,
                                        .lda = D,
                                        .b = b,
                                        .ldb = D,
                                        .c = c,
                                        .ldc = N});
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0; // of small integers: exact in any order
            for (int k = 0; k < D; k++)
                sum += a[i * D + k] * b[j * D + k];
            if (c[i * N + j] != sum)
                return 0;
        }
    return 1;
}

// The processors that OpenBLAS may detect, the least first. Only those that this machine can run.
static const char *const cores[] = {"Prescott", "Haswell", "SkylakeX", "Cooperlake",
                                    "Sapphirerapids"};
enum { AS_IT_IS = -1, PRESCOTT, HASWELL, SKYLAKEX, KNOWN = 5 };

static int core_named(const char *name) {
    for (int i = 0; i < KNOWN; i++)
        if (strcmp(cores[i], name) == 0)
            return i;
    return HASWELL; // Zen and similar
}

// mistaken: OpenBLAS is made to detect this processor. asked: the user asked for this one.
static int child(int mistaken, int asked) {
    int best = cpu_isa_find("avx512") ? SKYLAKEX : cpu_isa_find("avx2") ? HASWELL : PRESCOTT;
    char before[64];
    struct kern *K = NULL;
    unsetenv("OPENBLAS_CORETYPE");
    if (mistaken > best)
        return CANNOT;
    if (mistaken != AS_IT_IS) {
        setenv("OPENBLAS_CORETYPE", cores[mistaken], 1);
        gotoblas_dynamic_quit();
        gotoblas_dynamic_init();
        if (!asked)
            unsetenv("OPENBLAS_CORETYPE");
        if (strcmp(openblas_get_corename(), cores[mistaken]) != 0)
            return CANNOT;
    }
    snprintf(before, sizeof before, "%s", openblas_get_corename());
    if (kern_cpu_create(1, &K) != NEB_OK)
        return NO_BACKEND;
    const char *now = openblas_get_corename(),
               *expected = !asked && core_named(before) < best ? cores[best] : before;
    int bad = strcmp(now, expected) != 0              ? WRONG_CORE
              : !product_is_right(K)                  ? WRONG_PRODUCT
              : !asked && getenv("OPENBLAS_CORETYPE") ? WRONG_CORE
                                                      : AS_WANTED;
    kern_destroy(&K);
    return bad;
}

// library: the start of its name
static int chosen(int asked, int library) {
    static const char *const names[] = {"openblas", "onednn", "mkl"}, *const shown[] = {"OpenBLAS ",
                                                                                        "oneDNN "};
    struct kern *K = NULL;
    unsetenv("NEBULA_SGEMM");
    if (asked >= 0)
        setenv("NEBULA_SGEMM", names[asked], 1);
    if (kern_cpu_create(2, &K) != NEB_OK)
        return NO_BACKEND;
    int bad = strncmp(kern_cpu_library(), shown[library], strlen(shown[library])) != 0
                  ? WRONG_LIBRARY
              : product_is_right(K) ? AS_WANTED
                                    : WRONG_PRODUCT;
    kern_destroy(&K);
    return bad;
}

static int outcome_of(int (*run)(int a, int b), int a, int b) {
    int status = -1;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(run(a, b));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

enum { OPENBLAS, ONEDNN, UNKNOWN, NOTHING = -1 };

static int has_onednn(int a, int b) {
    (void)a, (void)b;
    const struct onednn *d = onednn_find();
    return !d->missing && d->sgemm;
}

static void test_library_asked_for(void **state) {
    (void)state;
    int dnn = outcome_of(has_onednn, 0, 0); // in a child: a loaded library stays
    assert_int_equal(outcome_of(chosen, OPENBLAS, OPENBLAS), AS_WANTED);
    assert_int_equal(outcome_of(chosen, ONEDNN, dnn ? ONEDNN : OPENBLAS), AS_WANTED);
}
// Without executable memory, as under systemd's MemoryDenyWriteExecute, oneDNN cannot make its
// kernels.
static int confined(int asked, int library) {
    if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
        return CANNOT;
    int bad = chosen(asked, library);
    const char *why = onednn_find()->missing; // the text for the user
    bool said = why && (strstr(why, "executable") || strstr(why, "not installed"));
    return bad ? bad : said ? AS_WANTED : NO_REASON;
}
static void test_no_executable_memory(void **state) {
    (void)state;
    int outcome = outcome_of(confined, ONEDNN, OPENBLAS);
    if (outcome == CANNOT) {
        print_message("this kernel is older than PR_SET_MDWE\n");
        skip();
    }
    assert_int_equal(outcome, AS_WANTED);
}
static void test_library_of_its_own_choice(void **state) {
    (void)state;
    int better = 0;
#if defined(__x86_64__)
    better = outcome_of(has_onednn, 0, 0) && cpu_isa_find("avx512");
#endif
    assert_int_equal(outcome_of(chosen, NOTHING, better ? ONEDNN : OPENBLAS), AS_WANTED);
    assert_int_equal(outcome_of(chosen, UNKNOWN, better ? ONEDNN : OPENBLAS), AS_WANTED);
}

static void as_taken_for(int core, int asked) {
    int outcome = outcome_of(child, core, asked);
    if (outcome == CANNOT) {
        print_message("this machine's OpenBLAS cannot be made to take it for a %s\n", cores[core]);
        skip();
    }
    assert_int_equal(outcome, AS_WANTED);
}
static void test_taken_for_one_of_2004(void **state) {
    (void)state;
    as_taken_for(PRESCOTT, 0);
}
static void test_taken_for_one_of_avx2(void **state) {
    (void)state;
    as_taken_for(HASWELL, 0);
}
static void test_what_was_asked_for_stays(void **state) {
    (void)state;
    as_taken_for(PRESCOTT, 1);
}
static void test_this_machine(void **state) {
    (void)state;
    assert_int_equal(outcome_of(child, AS_IT_IS, 0), AS_WANTED);
}

int main(void) {
    const struct CMUnitTest libraries[] = {cmocka_unit_test(test_library_asked_for),
                                           cmocka_unit_test(test_library_of_its_own_choice),
                                           cmocka_unit_test(test_no_executable_memory)},
                            kernels[] = {cmocka_unit_test(test_taken_for_one_of_2004),
                                         cmocka_unit_test(test_taken_for_one_of_avx2),
                                         cmocka_unit_test(test_what_was_asked_for_stays),
                                         cmocka_unit_test(test_this_machine)};
    int bad = cmocka_run_group_tests(libraries, NULL, NULL);
    if (gotoblas_dynamic_init && gotoblas_dynamic_quit)
        bad += cmocka_run_group_tests(kernels, NULL, NULL);
    else
        print_message("this OpenBLAS is built for one processor\n");
    return bad;
}
