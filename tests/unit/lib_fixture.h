// SPDX-License-Identifier: Apache-2.0
// A fake agent with one job, for tests of libnebula.
#ifndef TESTS_LIB_FIXTURE_H
#define TESTS_LIB_FIXTURE_H
#include "agent/base/fs.h"
#include "agent/daemon/attach.h"
#include "agent/lib/libnebula.h"
#include "agent/proc/ipc.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct agent { // answers as a daemon does, in a thread
    char dir[64], path[96];
    pthread_t thread;
    atomic_bool end, taken, reported, detached, fault;
    atomic_bool gone;        // it ends without an answer when a worker attaches
    atomic_long busy_ms;     // time that passes before it answers an attach
    atomic_bool mute;        // it does not answer to "hello"
    atomic_int others;       // other clusters whose heartbeat it hears, enough for a commit
    atomic_bool other_state; // it tells the trainer to attach again
    // metrics: steps with lr and grad_norm, steps with null for both; held-out losses
    atomic_int with_lr, without_lr, evals;
    struct agent_jobrun jobs[AGENT_JOBS_MAX];
};

static inline void count_line(struct agent *a, const json_t *line) {
    const json_t *lr = json_object_get(line, "lr"), *norm = json_object_get(line, "grad_norm");
    const char *kind = json_string_value(json_object_get(line, "kind"));
    if (!strcmp(kind, "step")) {
        a->with_lr += json_is_number(lr) && fabs(json_number_value(lr) - 0.25) < 1e-9 &&
                      json_is_number(norm) && fabs(json_number_value(norm) - 3) < 1e-9;
        a->without_lr += json_is_null(lr) && json_is_null(norm);
    }
    if (!strcmp(kind, "fault") &&
        strstr(json_string_value(json_object_get(line, "text")), "has ended without its report"))
        a->fault = true;
    a->evals += !strcmp(kind, "eval") && json_is_number(json_object_get(line, "loss"));
}

static inline void *serve(void *arg) {
    struct agent *a = arg;
    void *ctx = zmq_ctx_new();
    struct agent_ipc *ipc = NULL;
    assert_int_equal(agent_ipc_listen(ctx, a->path, &ipc), NEB_OK);
    struct agent_jobrun *j = &a->jobs[0];
    while (!a->end) {
        struct agent_ipc_client from;
        struct agent_ipc_msg m;
        if (agent_ipc_recv(ipc, &from, &m) != NEB_OK) {
            neb_sleep(NEB_MS);
            continue;
        }
        const char *op = agent_ipc_str(&m, "op", "");
        char why[160];
        json_t *answer = NULL;
        if (!strcmp(op, "attachable"))
            answer = agent_attach_find(a->jobs, &m);
        else if (!strcmp(op, "attach") && a->gone)
            a->end = true;
        else if (!strcmp(op, "attach") && (!json_is_true(json_object_get(m.head, "foreign")) ||
                                           agent_attach_admit(j, &from, &m, why, sizeof why))) {
            j->worker.client = from;
            neb_sleep(a->busy_ms * NEB_MS);
            answer = json_pack("{s:s,s:O,s:i,s:s,s:i,s:b,s:b}", "ev", "job", "spec", j->spec,
                               "cluster", 0, "dir", a->dir, "alive", (int)a->others, "expected",
                               a->others > 0, "stop", 0);
        } else if (!strcmp(op, "metrics"))
            count_line(a, json_object_get(m.head, "line"));
        else if (!strcmp(op, "detach")) {
            assert_true(agent_attach_left(j, true));
            a->detached = true;
        } else if (!strcmp(op, "report"))
            a->reported = true;
        else if (!strcmp(op, "manifest"))
            answer = json_pack("{s:s,s:b}", "ev", "manifest", "ok", 1);
        else if (!strcmp(op, "hello") && !a->mute)
            answer = json_pack("{s:s,s:i,s:b}", "ev", "peers", "alive", (int)a->others, "expected",
                               a->others > 0);
        if (answer)
            assert_int_equal(agent_ipc_send(ipc, &from, answer, NULL, 0), NEB_OK);
        if (a->other_state && j->worker.client.len && !strcmp(op, "metrics")) {
            a->other_state = false;
            answer = json_pack("{s:s}", "ev", "again");
            assert_int_equal(agent_ipc_send(ipc, &j->worker.client, answer, NULL, 0), NEB_OK);
        }
        agent_ipc_msg_clear(&m);
    }
    agent_ipc_destroy(&ipc);
    zmq_ctx_term(ctx);
    return NULL;
}

static inline int start_with(void **state, const char *text) {
    struct agent *a = calloc(1, sizeof *a);
    strcpy(a->dir, "/tmp/nebula-lib-XXXXXX");
    assert_non_null(mkdtemp(a->dir));
    snprintf(a->path, sizeof a->path, "%s/agent.sock", a->dir);
    struct agent_jobrun *j = &a->jobs[0];
    assert_int_equal(agent_job_parse(text, strlen(text), "t.yaml", &j->job), NEB_OK);
    j->spec = agent_job_to_json(&j->job);
    j->state = AGENT_JOB_RUNNING;
    memset(j->hex, 'a', 32);
    char dir[NEB_PATH_MAX]; // a ticket as an agent leaves it for trainers
    snprintf(dir, sizeof dir, "%s/jobs/%s", a->dir, j->hex);
    assert_int_equal(neb_fs_mkdirs(dir, 0700), NEB_OK);
    assert_int_equal(agent_credential_create(NULL, j->id, &j->worker.credential), NEB_OK);
    assert_int_equal(agent_credential_leave(j->worker.credential, dir), NEB_OK);
    assert_int_equal(pthread_create(&a->thread, NULL, serve, a), 0);
    *state = a;
    return 0;
}

static inline int stop(void **state) {
    struct agent *a = *state;
    a->end = true;
    pthread_join(a->thread, NULL);
    json_decref(a->jobs[0].spec);
    agent_credential_destroy(&a->jobs[0].worker.credential);
    assert_int_equal(neb_fs_remove_tree(a->dir), NEB_OK);
    free(a);
    return 0;
}

static inline struct nebula_attach_options options(const struct agent *a) {
    return (struct nebula_attach_options){.size = sizeof(struct nebula_attach_options),
                                          .api = NEBULA_API,
                                          .agent = a->path,
                                          .job = "t",
                                          .timeout_s = 20,
                                          .threads = 1};
}

static inline struct nebula *attached(const struct agent *a) {
    struct nebula_attach_options o = options(a);
    struct nebula *n = NULL;
    assert_int_equal(nebula_attach(&o, &n), NEBULA_OK);
    return n;
}

#define SAYS(call, status, text)                                                                   \
    do {                                                                                           \
        assert_int_equal(call, status);                                                            \
        if (!strstr(nebula_last_error(), text))                                                    \
            fail_msg("\"%s\" does not say \"%s\"", nebula_last_error(), text);                     \
    } while (0)

static inline size_t size_of(const struct nebula_tensor *t) {
    size_t size = 1;
    for (int32_t k = 0; k < t->dims; k++)
        size *= (size_t)t->shape[k];
    return size;
}

// What the built-in model of the job needs, in `memory`, one after the other. half: the first
// tensor is bfloat16, there.
static inline void register_all(struct nebula *n, float *memory, uint16_t *half) {
    struct nebula_tensor t = {.size = sizeof t};
    size_t at = 0;
    for (int32_t i = 0; nebula_tensor_at(n, i, &t) == NEBULA_OK; i++) {
        bool bf16 = half && i == 0;
        struct nebula_piece p = {.size = sizeof p, .name = t.name, .data = memory + at};
        p.dtype = t.dtype = bf16 ? NEBULA_BF16 : NEBULA_F32;
        p.data = bf16 ? (void *)half : memory + at;
        memcpy(p.extent, t.shape, sizeof p.extent);
        assert_int_equal(nebula_declare(n, &t), NEBULA_OK);
        assert_int_equal(nebula_register(n, &p), NEBULA_OK);
        at += size_of(&t);
    }
}

#endif
