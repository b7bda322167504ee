// SPDX-License-Identifier: Apache-2.0
// The rank of a process from the variables of torchrun, Open MPI and Slurm; errors name the
// variable.
#include "agent/base/log.h"
#include "intra/ranks/rank_env.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VARIABLES = 12, TEXT = 512 };

static char logged[1024];
static int errors;
static void keep_log(void *user, enum neb_log_level level, const char *text) {
    (void)user;
    errors += level == NEB_LOG_ERROR;
    snprintf(logged, sizeof logged, "%s", text);
}

// Parses text such as "A=1 B=2" as an environment.
static enum neb_status parse(const char *text, struct intra_rank_env *out) {
    char copy[TEXT], *env[VARIABLES] = {0}, *save = NULL;
    int n = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *p = strtok_r(copy, " ", &save); p && n + 1 < VARIABLES;
         p = strtok_r(NULL, " ", &save))
        env[n++] = p;
    errors = 0;
    logged[0] = 0;
    neb_log_set_sink(keep_log, NULL);
    enum neb_status st = intra_rank_env_parse(env, out);
    neb_log_set_sink(NULL, NULL);
    return st;
}

static void test_good(void **state) {
    (void)state;
    static const struct {
        const char *env;
        int rank, size, local_rank, local_size;
        const char *host;
        int port;
    } cases[] = {
        {"RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=10.0.0.7 "
         "MASTER_PORT=1234",
         5, 8, 1, 4, "10.0.0.7", 1234},
        {"RANK=1 WORLD_SIZE=2", 1, 2, 1, 2, "127.0.0.1", 29500},
        {"RANK=0 WORLD_SIZE=1 MASTER_ADDR=node-1.example", 0, 1, 0, 1, "node-1.example", 29500},
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=4",
         3, 4, 3, 4, "127.0.0.1", 29500},
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=a MASTER_PORT=7",
         3, 4, 1, 2, "a", 7},
        {"SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_STEP_NODELIST=gpu[07-09] "
         "SLURM_JOB_NODELIST=gpu[01-09] MASTER_PORT=21000",
         2, 4, 0, 0, "gpu07", 21000},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_JOB_NODELIST=login,gpu1", 0, 2, 0, 0,
         "login", 29500},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_JOB_NODELIST=x MASTER_ADDR=y", 0, 2,
         0, 0, "y", 29500},
        // The order is torchrun, Open MPI, Slurm; a longer name with the same beginning is another
        // variable.
        {"SLURM_PROCID=9 SLURM_NTASKS=1 RANK=1 OMPI_COMM_WORLD_RANK=7 WORLD_SIZE=2 "
         "WORLD_SIZE_OLD=9",
         1, 2, 1, 2, "127.0.0.1", 29500},
        {"SLURM_PROCID=bad OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", 1, 2, 1, 2, "127.0.0.1",
         29500},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct intra_rank_env e = {0};
        if (parse(cases[i].env, &e) != NEB_OK)
            fail_msg("%s: %s", cases[i].env, logged);
        assert_int_equal(e.rank, cases[i].rank);
        assert_int_equal(e.size, cases[i].size);
        assert_int_equal(e.local_rank, cases[i].local_rank);
        assert_int_equal(e.local_size, cases[i].local_size);
        assert_string_equal(e.host, cases[i].host);
        assert_int_equal(e.port, cases[i].port);
    }
}

static void test_bad(void **state) {
    (void)state;
    static const struct {
        const char *env, *text;
    } cases[] = {
        {"HOME=/", "none of RANK, OMPI_COMM_WORLD_RANK and SLURM_PROCID is set"},
        {"RANK=0", "RANK is set, but WORLD_SIZE is not"},
        {"RANK=2 WORLD_SIZE=2", "RANK is \"2\", not a number in 0..1"},
        {"RANK=-1 WORLD_SIZE=2", "RANK is \"-1\""},
        {"RANK= WORLD_SIZE=2", "RANK is \"\""},
        {"RANK=1x WORLD_SIZE=2", "RANK is \"1x\""},
        {"RANK=+1 WORLD_SIZE=2", "RANK is \"+1\""},
        {"RANK=0 WORLD_SIZE=0", "WORLD_SIZE is \"0\", not a number in 1..65536"},
        {"RANK=0 WORLD_SIZE=99999999999999999999", "WORLD_SIZE is \"99999999999999999999\""},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0", "LOCAL_RANK is set, but LOCAL_WORLD_SIZE is not"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1",
         "LOCAL_WORLD_SIZE is set, but LOCAL_RANK is not"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3 LOCAL_RANK=0", "LOCAL_WORLD_SIZE is \"3\""},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=1",
         "LOCAL_RANK is \"1\", not a number in 0..0"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0", "MASTER_ADDR is not"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=", "MASTER_ADDR is \"\""},
        {"RANK=0 WORLD_SIZE=2 MASTER_PORT=65536",
         "MASTER_PORT is \"65536\", not a number in 1..65535"},
        {"RANK=0 WORLD_SIZE=2 MASTER_PORT=0", "MASTER_PORT is \"0\""},
        {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not"},
        {"SLURM_PROCID=0 SLURM_LOCALID=0", "SLURM_PROCID is set, but SLURM_NTASKS is not"},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0", "MASTER_ADDR is not"},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=2 SLURM_JOB_NODELIST=a",
         "SLURM_LOCALID is \"2\""},
        {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_JOB_NODELIST=gpu[1",
         "\"gpu[1\" is not a list"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct intra_rank_env e = {.port = -7};
        enum neb_status st = parse(cases[i].env, &e);
        assert_int_equal(st, i == 0 ? NEB_ERR_NOT_FOUND : NEB_ERR_INVALID);
        if (!strstr(logged, cases[i].text))
            fail_msg("%s: no \"%s\" in \"%s\"", cases[i].env, cases[i].text, logged);
        assert_int_equal(errors, 1);
        assert_int_equal(e.port, -7); // untouched
    }
}

static void test_first_host(void **state) {
    (void)state;
    static const struct {
        const char *list, *host; // NULL: refused
    } cases[] = {
        {"one", "one"},
        {"one,two", "one"},
        {"n[3,5-7]", "n3"},
        {"n[01-16],m2", "n01"},
        {"r[1-2]-n[3-4]x", "r1-n3x"},
        {"a-b.c,d", "a-b.c"},
        {"", NULL},
        {",a", NULL},
        {"n[", NULL},
        {"n[]", NULL},
        {"n]", NULL},
        {"n[-3]", NULL},
        {"abcdefghijklmnop", NULL},
        {"abcdefghij[123456]", NULL},
    };
    neb_log_set_sink(keep_log, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char host[16] = "";
        enum neb_status st = intra_rank_first_host(cases[i].list, host, sizeof host);
        assert_int_equal(st, cases[i].host ? NEB_OK : NEB_ERR_INVALID);
        if (cases[i].host)
            assert_string_equal(host, cases[i].host);
    }
    neb_log_set_sink(NULL, NULL);
}

// How many ranks share this host's processors, as the launcher says.
static void test_local(void **state) {
    (void)state;
    char *const mpi[] = {"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4",
                         "OMPI_COMM_WORLD_LOCAL_SIZE=2", NULL},
                *const slurm[] = {"SLURM_PROCID=1", "SLURM_NTASKS=4", NULL},
                *const torch[] = {"OMPI_COMM_WORLD_LOCAL_SIZE=2", "RANK=0", "LOCAL_WORLD_SIZE=8",
                                  NULL},
                *const bad[] = {"RANK=0", "LOCAL_WORLD_SIZE=0", NULL}, *const none[] = {NULL};
    assert_int_equal(intra_rank_env_local(mpi), 2);
    assert_int_equal(intra_rank_env_local(slurm), 1); // Slurm binds its tasks itself
    assert_int_equal(intra_rank_env_local(torch), 8);
    assert_int_equal(intra_rank_env_local(bad), 1);
    assert_int_equal(intra_rank_env_local(none), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_good), cmocka_unit_test(test_bad),
                                       cmocka_unit_test(test_first_host),
                                       cmocka_unit_test(test_local)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
