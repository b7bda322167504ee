// SPDX-License-Identifier: Apache-2.0
#include "agent/bench/bench.h"
#include "agent/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds_of(clockid_t id) {
    struct timespec t;
    NEB_ASSERT(clock_gettime(id, &t) == 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_cpu_seconds(void) { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }
double bench_thread_seconds(void) { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

enum neb_status bench_folder(const char *dir, char out[NEB_PATH_MAX]) {
    const char *tmp = getenv("TMPDIR");
    enum neb_status st = NEB_OK;
    out[0] = 0;
    if (dir)
        NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(neb_path(out, NEB_PATH_MAX,
                     dir           ? dir
                     : tmp && *tmp ? tmp
                                   : "/tmp",
                     "nebula-bench-XXXXXX"));
    if (!mkdtemp(out)) {
        st = neb_fail_errno("cannot make the folder %s", out);
        out[0] = 0;
    }
    return st;
}

void bench_folder_remove(const char *path) {
    if (*path && neb_fs_remove_tree(path) != NEB_OK)
        neb_warn("%s cannot be removed and stays", path);
}

static int ascending(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

void bench_sort(double *v, size_t n) { qsort(v, n, sizeof *v, ascending); }

double bench_median(double *v, size_t n) {
    bench_sort(v, n);
    return v[n / 2];
}

// The names are plain ASCII from this program, so nothing is escaped.
static void json_line(const char *bench, const char *case_, double value, const char *unit,
                      double limit, const char *limit_is, const struct bench_field *more,
                      size_t n_more) {
    printf("{\"bench\": \"%s\", \"case\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"", bench, case_,
           value, unit);
    if (limit > 0)
        printf(", \"limit\": %.6g, \"limit_is\": \"%s\", \"ratio\": %.4g", limit, limit_is,
               value / limit);
    for (size_t i = 0; i < n_more; i++)
        printf(", \"%s\": %.6g", more[i].name, more[i].value);
    puts("}");
}

static void table_line(const char *bench, const char *case_, double value, const char *unit,
                       double limit, const char *limit_is, const struct bench_field *more,
                       size_t n_more) {
    printf("%-8s %-28s %10.4g %-9s", bench, case_, value, unit);
    if (limit > 0)
        printf(" %6.1f %% of %s %.4g", 100 * value / limit, limit_is, limit);
    for (size_t i = 0; i < n_more; i++)
        printf("  %s %.4g", more[i].name, more[i].value);
    putchar('\n');
}

void bench_line_with(bool json, const char *bench, const char *case_, double value,
                     const char *unit, double limit, const char *limit_is,
                     const struct bench_field *more, size_t n_more) {
    (json ? json_line : table_line)(bench, case_, value, unit, limit, limit_is, more, n_more);
    fflush(stdout); // an interrupted benchmark has printed what it measured
}

void bench_line(bool json, const char *bench, const char *case_, double value, const char *unit,
                double limit, const char *limit_is) {
    bench_line_with(json, bench, case_, value, unit, limit, limit_is, NULL, 0);
}
