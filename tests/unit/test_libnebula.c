// SPDX-License-Identifier: Apache-2.0
// libnebula against a fake agent: each mistake of a caller gives one clear error, and no memory
// leaks (under ASan).
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/lib/state.h"
#include "tests/unit/lib_fixture.h"

#include <locale.h>
#include <sys/wait.h>
#include <time.h>

static const char yaml[] = "job: t\nsteps: 4\nlog_every: 1\nmodel: {vocab: 16, n_layers: 1, "
                           "d_model: 8, n_heads: 2, n_kv_heads: 1, d_ff: 16, tied: true}\n"
                           "data: {corpus: /nowhere, seq_len: 8, batch: 1}\n"
                           "optim: {lr: 0.1}\nsync: {scheme: none}\ncheckpoint: {every_steps: "
                           "0}\nclusters:\n  - {name: a, "
                           "launcher: attach, threads: 1}\n";

static int start(void **state) { return start_with(state, yaml); }
static int start_large(void **state) {
    char text[sizeof yaml + 64], *at = strstr(strcpy(text, yaml), "d_model: 8, ");
    memmove(at + strlen("d_model: 512, "), at + strlen("d_model: 8, "),
            strlen(at + strlen("d_model: 8, ")) + 1);
    memcpy(at, "d_model: 512, ", strlen("d_model: 512, "));
    return start_with(state, text);
}

// A whole tensor in one piece.
static int register_whole(struct nebula *n, const char *name, int32_t rows, int32_t cols,
                          void *data) {
    struct nebula_piece p = {.size = sizeof p, .name = name, .data = data};
    p.extent[0] = rows > 0 ? rows : cols;
    p.extent[1] = rows > 0 ? cols : 0;
    return nebula_register(n, &p);
}

static int waits;
static int third_wait(void *user) { // the first two waits go on
    (void)user;
    return ++waits == 3;
}

static void test_attach_errors(void **state) {
    struct agent *a = *state;
    struct nebula_attach_options o = options(a);
    struct nebula *n = (void *)&o, *second = NULL;
    SAYS(nebula_attach(NULL, &n), NEBULA_ERR_INVALID, "NULL");
    o.api = NEBULA_API + 1;
    SAYS(nebula_attach(&o, &n), NEBULA_ERR_VERSION, "rebuild");
    assert_null(n);
    o = options(a);
    o.size--;
    SAYS(nebula_attach(&o, &n), NEBULA_ERR_VERSION, "bytes");
    o = options(a);
    o.job = "other";
    o.timeout_s = 2; // enough for an answer
    SAYS(nebula_attach(&o, &n), NEBULA_ERR_NOT_FOUND, "\"other\"");
    o.timeout_s = 60;
    o.hooks.wait = third_wait;
    SAYS(nebula_attach(&o, &n), NEBULA_ERR_IO, "wait hook ended the wait");
    assert_int_equal(waits, 3);
    struct nebula_ranks bad = {.size = sizeof bad, .rank = 2, .ranks = 2};
    o.ranks = &bad;
    SAYS(nebula_attach(&o, &n), NEBULA_ERR_INVALID, "rank 2 of 2, send NULL");
    bad.size--;
    SAYS(nebula_attach(&o, &n), NEBULA_ERR_VERSION, "the ranks have");
    o = options(a);
    o.timeout_s = 0.1;
    o.agent = "/nowhere/agent.sock";
    SAYS(nebula_attach(&o, &n), NEBULA_ERR_NOT_FOUND, "/nowhere/agent.sock");
    n = attached(a);
    o = options(a);
    SAYS(nebula_attach(&o, &second), NEBULA_ERR_STATE, "already has a trainer, process");
    assert_null(second);
    assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
    assert_null(n);
    n = attached(a); // the place is free again
    assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
}

static void test_agent_of_another_version(void **state) {
    struct agent *a = *state;
    // both sides' protocol and build are named
    struct nebula_attach_options o = options(a);
    struct nebula *n = NULL;
    char both[256];
    neb_fault_arm("ipc.protocol:*");
    snprintf(both, sizeof both,
             "the trainer's libnebula is nebula %s and speaks protocol %d, the agent is nebula %s "
             "and speaks protocol %d",
             neb_build(), NEB_PROTOCOL + 1, neb_build(), NEB_PROTOCOL);
    SAYS(nebula_attach(&o, &n), NEBULA_ERR_VERSION, both);
    neb_fault_arm(NULL);
    assert_null(n);
    struct agent_ipc_msg m = {.head = json_pack("{s:s,s:i,s:i}", "job", "t", "api", NEBULA_API + 1,
                                                "protocol", NEB_PROTOCOL)};
    json_t *answer = agent_attach_find(a->jobs, &m);
    assert_string_equal(json_string_value(json_object_get(answer, "code")), "version");
    assert_non_null(
        strstr(json_string_value(json_object_get(answer, "text")), "install the same version"));
    json_decref(answer);
    agent_ipc_msg_clear(&m);
}

static int declare(struct nebula *n, const char *name, int32_t dims, int64_t d0, int64_t d1) {
    struct nebula_tensor t = {.size = sizeof t, .dims = dims, .shape = {d0, d1}, .trained = 1};
    snprintf(t.name, sizeof t.name, "%s", name);
    return nebula_declare(n, &t);
}

static void test_declare_errors(void **state) {
    struct nebula *n = attached(*state);
    struct nebula_tensor t = {0};
    const char *embed = "model.embed_tokens.weight"; // (16, 8)
    SAYS(nebula_tensor_at(n, 0, &t), NEBULA_ERR_INVALID, "size");
    SAYS(nebula_declare(n, &t), NEBULA_ERR_INVALID, "size");
    SAYS(nebula_declare(n, NULL), NEBULA_ERR_INVALID, "NULL");
    t.size = sizeof t;
    SAYS(nebula_tensor_at(n, -1, &t), NEBULA_ERR_INVALID, "-1");
    SAYS(nebula_tensor_at(n, 11, &t), NEBULA_ERR_INVALID, "no tensor 11, but 11");
    SAYS(nebula_declare(n, &t), NEBULA_ERR_INVALID, "1 to 255 bytes");
    memset(t.name, 'x', sizeof t.name);
    SAYS(nebula_declare(n, &t), NEBULA_ERR_INVALID, "1 to 255 bytes");
    SAYS(declare(n, "\xc3", 2, 1, 1), NEBULA_ERR_INVALID, "UTF-8");
    SAYS(declare(n, embed, 9, 16, 8), NEBULA_ERR_INVALID, "9 dimensions");
    SAYS(declare(n, embed, 2, 16, 0), NEBULA_ERR_INVALID, "dimension 1 has the size 0");
    SAYS(declare(n, embed, 2, INT64_MAX, 2), NEBULA_ERR_INVALID, "dimension 0 has the size");
    assert_int_equal(declare(n, embed, 2, 16, 8), NEBULA_OK);
    SAYS(declare(n, embed, 2, 16, 8), NEBULA_ERR_INVALID, "declared before");
    assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
}

static void test_register_errors(void **state) {
    struct nebula *n = attached(*state);
    float x[256] = {0};
    const char *embed = "model.embed_tokens.weight"; // (16, 8)
    struct nebula_piece p = {.size = sizeof p, .name = embed, .extent = {16, 8}, .data = x};
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "no tensor \"model.embed_tokens.weight\"");
    assert_int_equal(declare(n, embed, 2, 16, 8), NEBULA_OK);
    SAYS(nebula_register(n, NULL), NEBULA_ERR_INVALID, "NULL");
    p.size--;
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "no size");
    p.size++, p.name = NULL;
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "no name");
    p.name = embed, p.extent[1] = 9;
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "but the shape is (16, 8)");
    p.extent[1] = 8, p.offset[0] = 8, p.extent[0] = 9;
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "9 elements from 8 on");
    p.offset[0] = -1, p.extent[0] = 2;
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "from -1 on");
    p.offset[0] = INT64_MAX, p.extent[0] = INT64_MAX;
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "elements from");
    p.offset[0] = 0, p.extent[0] = 16, p.stride[0] = -8, p.stride[1] = 1;
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "stride -8");
    p.stride[0] = p.stride[1] = 0, p.dtype = 7;
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "dtype 7, but the tensor is declared with");
    p.dtype = NEBULA_F32, p.place = 7;
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "place 7");
    p.place = NEBULA_HOST, p.data = NULL;
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "data is NULL");
    p.extent[0] = 0; // an empty piece has no memory
    assert_int_equal(nebula_register(n, &p), NEBULA_OK);
    p.extent[0] = 10, p.data = x;
    assert_int_equal(nebula_register(n, &p), NEBULA_OK);
    p.offset[0] = 9, p.extent[0] = 7;
    SAYS(nebula_register(n, &p), NEBULA_ERR_INVALID, "element (9, 0) is already registered");
    SAYS(nebula_begin(n), NEBULA_ERR_INVALID, "the job exchanges tensor ");
    SAYS(nebula_begin(n), NEBULA_ERR_STATE, "an earlier call failed");
    assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
}

// Tensors that do not fit the job, or of which an element is missing.
static void test_begin_errors(void **state) {
    static const struct {
        const char *says;
        bool more, missing, other;
    } cases[] = {{"tensor model.norm.bias is trained, but the job's model does not exchange it",
                  true, false, false},
                 {"element (15, 0) is registered on none of 1 ranks", false, true, false},
                 {"has the shape (8, 16), but the job's has (16, 8)", false, false, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nebula *n = attached(*state);
        static float memory[4096];
        struct nebula_tensor t = {.size = sizeof t};
        for (int32_t k = 0; nebula_tensor_at(n, k, &t) == NEBULA_OK; k++) {
            bool embed = !strcmp(t.name, "model.embed_tokens.weight");
            int64_t swap = t.shape[0];
            if (embed && cases[i].other)
                t.shape[0] = t.shape[1], t.shape[1] = swap;
            struct nebula_piece p = {.size = sizeof p, .name = t.name, .data = memory};
            memcpy(p.extent, t.shape, sizeof p.extent);
            p.extent[0] -= embed && cases[i].missing;
            assert_int_equal(nebula_declare(n, &t), NEBULA_OK);
            assert_int_equal(nebula_register(n, &p), NEBULA_OK);
        }
        if (cases[i].more)
            assert_int_equal(declare(n, "model.norm.bias", 1, 8, 0), NEBULA_OK);
        SAYS(nebula_begin(n), NEBULA_ERR_INVALID, cases[i].says);
        assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
    }
}

static int saved;
static int on_checkpoint(void *user, const char *dir, int64_t step) {
    (void)user;
    saved += dir[0] == '/' && step >= 2;
    return 0;
}
static int bad_checkpoint(void *user, const char *dir, int64_t step) {
    (void)user, (void)dir, (void)step;
    return 1;
}

// After steps, a detach and a new attach the parameters are the same; a bfloat16 tensor is rounded.
static void test_steps_and_resume(void **state) {
    struct agent *a = *state;
    static float memory[4096], again[4096];
    uint16_t half[128];
    struct nebula_attach_options o = options(a);
    struct nebula_info info = {.size = sizeof info};
    struct nebula *n = NULL;
    int s = -1, good[] = {0, 15}, bad[] = {0, 16}, skip[] = {-1, -1};
    o.hooks = (struct nebula_hooks){.checkpoint = on_checkpoint};
    saved = 0;
    assert_int_equal(nebula_attach(&o, &n), NEBULA_OK);
    register_all(n, memory, half);
    SAYS(nebula_step(n, 8, 1, &s), NEBULA_ERR_STATE, "nebula_begin first");
    SAYS(nebula_checkpoint(n), NEBULA_ERR_STATE, "nebula_begin first");
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    SAYS(nebula_begin(n), NEBULA_ERR_STATE, "twice");
    SAYS(register_whole(n, "model.norm.weight", 0, 8, memory), NEBULA_ERR_STATE,
         "after nebula_begin");
    SAYS(declare(n, "x", 1, 8, 0), NEBULA_ERR_STATE, "after nebula_begin");
    assert_true(memory[128] == 1); // a gain of RMSNorm starts at 1
    assert_int_equal(nebula_count(n, good, skip, 2), NEBULA_OK);
    SAYS(nebula_count(n, bad, good, 2), NEBULA_ERR_INVALID, "token 16 at 1");
    SAYS(nebula_count(n, good, bad, 2), NEBULA_ERR_INVALID, "token 16 at 1");
    SAYS(nebula_count(n, skip, good, 2), NEBULA_ERR_INVALID, "token -1 at 0");
    SAYS(nebula_step(n, 8, 1, NULL), NEBULA_ERR_INVALID, "state is NULL");
    for (int i = 0; i < 2; i++)
        assert_int_equal(nebula_step(n, 8, 1, &s), NEBULA_OK);
    assert_int_equal(s, NEBULA_TRAIN);
    memory[128] = 42;
    assert_int_equal(nebula_checkpoint(n), NEBULA_OK);
    assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
    assert_false(a->reported);
    assert_int_equal(nebula_attach(&o, &n), NEBULA_OK);
    register_all(n, again, half);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    assert_int_equal(nebula_info_get(n, &info), NEBULA_OK);
    assert_int_equal(info.step, 2);
    assert_memory_equal(memory + 128, again + 128, sizeof memory - 512);
    struct nebula_step_stats stats = NEBULA_STEP_STATS_INIT;
    SAYS(nebula_step_with(n, NULL, &s), NEBULA_ERR_INVALID, "stats is NULL");
    stats.size = 8;
    SAYS(nebula_step_with(n, &stats, &s), NEBULA_ERR_VERSION, "the stats have 8 bytes");
    stats.size = sizeof stats + 8;
    SAYS(nebula_step_with(n, &stats, &s), NEBULA_ERR_VERSION, "rebuild");
    // a caller that was built before that field existed
    stats.size = offsetof(struct nebula_step_stats, eval_loss);
    stats.tokens = 8, stats.loss = 1, stats.lr = 0.25, stats.grad_norm = 3, stats.eval_loss = 7;
    assert_int_equal(nebula_step_with(n, &stats, &s), NEBULA_OK);
    assert_int_equal(s, NEBULA_TRAIN);
    stats = (struct nebula_step_stats)NEBULA_STEP_STATS_INIT;
    stats.eval_loss = 2;
    assert_int_equal(nebula_step_with(n, &stats, &s), NEBULA_OK);
    assert_int_equal(s, NEBULA_DONE);
    SAYS(nebula_step(n, 8, 1, &s), NEBULA_ERR_STATE, "done");
    assert_int_equal(nebula_close(&n, 1), NEBULA_OK);
    for (int i = 0; i < 5000 && !a->reported; i++)
        neb_sleep(NEB_MS);
    assert_true(a->reported);
    assert_int_equal(a->with_lr, 1);
    assert_int_equal(a->without_lr, 3); // loss NaN as well
    assert_int_equal(a->evals, 2);      // in between, and at the end
    assert_true(saved >= 2);
}

struct late {
    int asked, known, waited;
};
static int late_figures(void *user, int wait, struct nebula_step_stats *out) {
    struct late *l = user;
    if (l->asked++ % 2 == 0 && !wait)
        return NEBULA_NOT_YET;
    l->waited += wait;
    out->tokens = 8, out->loss = l->known++, out->lr = 0.25, out->grad_norm = 3;
    return 0;
}

// Figures that come later are told in the order of the steps; a checkpoint waits for them, and the
// end too.
static void test_late_figures(void **state) {
    struct agent *a = *state;
    static float memory[4096];
    uint16_t half[128];
    struct nebula_attach_options o = options(a);
    struct nebula *n = NULL;
    struct late l = {0};
    int s = -1;
    o.hooks = (struct nebula_hooks){.user = &l};
    assert_int_equal(nebula_attach(&o, &n), NEBULA_OK);
    register_all(n, memory, half);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    struct nebula_step_stats stats = NEBULA_STEP_STATS_INIT;
    stats.later = NEBULA_LATER;
    SAYS(nebula_step_with(n, &stats, &s), NEBULA_ERR_INVALID, "no hook");
    assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
    o.hooks.figures = late_figures;
    assert_int_equal(nebula_attach(&o, &n), NEBULA_OK);
    register_all(n, memory, half);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    stats.later = NEBULA_LATER | NEBULA_LATER_TOKENS;
    assert_int_equal(nebula_step_with(n, &stats, &s), NEBULA_OK);
    stats.later = NEBULA_LATER, stats.tokens = 8;
    assert_int_equal(nebula_step_with(n, &stats, &s), NEBULA_OK);
    assert_int_equal(l.asked, 1);
    assert_int_equal(nebula_step(n, 8, 1, &s), NEBULA_OK); // known, but behind the others
    assert_int_equal(a->with_lr, 0);
    assert_int_equal(nebula_checkpoint(n), NEBULA_OK);
    assert_int_equal(l.known, 2);
    assert_true(l.waited > 0);
    assert_int_equal(nebula_step_with(n, &stats, &s), NEBULA_OK);
    assert_int_equal(s, NEBULA_DONE);
    assert_int_equal(nebula_close(&n, 1), NEBULA_OK);
    assert_int_equal(l.known, 3);
    for (int i = 0; i < 5000 && !a->reported; i++)
        neb_sleep(NEB_MS);
    assert_true(a->reported);
    assert_int_equal(a->with_lr, 3);
    assert_int_equal(a->without_lr, 1);
}

// The digest of a large model is computed only after parameters changed, not at each question.
static void test_digest_is_cached(void **state) {
    struct agent *a = *state;
    enum { ASKED = 200 };
    struct nebula_info info = {.size = sizeof info}, again = info;
    struct nebula_tensor t = {.size = sizeof t};
    struct nebula *n = attached(a);
    int s;
    size_t all = 0, at = 0;
    for (int32_t i = 0; nebula_tensor_at(n, i, &t) == NEBULA_OK; i++)
        all += size_of(&t);
    float *memory = calloc(all, sizeof *memory);
    assert_non_null(memory);
    register_all(n, memory, NULL);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    clock_t start = clock();
    assert_int_equal(nebula_info_get(n, &info), NEBULA_OK);
    clock_t one = clock() - start;
    start = clock();
    for (int i = 0; i < ASKED; i++)
        assert_int_equal(nebula_info_get(n, &again), NEBULA_OK);
    assert_true(clock() - start < ASKED / 4 * one);
    assert_string_equal(info.digest, again.digest);
    assert_int_equal(nebula_step(n, 8, 1, &s), NEBULA_OK);
    for (at = 0; at < all; at += 1000)
        memory[at] += 1;
    assert_int_equal(nebula_checkpoint(n), NEBULA_OK); // reads the parameters
    assert_int_equal(nebula_info_get(n, &again), NEBULA_OK);
    assert_string_not_equal(info.digest, again.digest);
    assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
    free(memory);
}

static bool hears(struct nebula *n, int others) {
    for (int i = 0; i < 500 && n->x.link.alive != others; i++) {
        neb_sleep(10 * NEB_MS);
        assert_int_equal(lib_settle(n), NEB_OK);
    }
    return n->x.link.alive == others && n->x.link.expected == (others > 0);
}

// After a long step a trainer still expects the agent's exchanges. It stops waiting if the agent
// does not answer for long.
static void test_long_step(void **state) {
    struct agent *a = *state;
    static float memory[4096];
    int s = -1;
    a->others = 1;
    struct nebula *n = attached(a);
    register_all(n, memory, NULL);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    n->ask_after = 20 * NEB_MS;
    n->silent_after = 300 * NEB_MS;
    neb_sleep(2 * n->silent_after);
    assert_int_equal(nebula_step(n, 8, 1, &s), NEBULA_OK);
    assert_int_equal(n->x.link.alive, 1);
    assert_true(n->x.link.expected);
    a->mute = true;
    assert_true(hears(n, 0));
    a->mute = false;
    assert_true(hears(n, 1));
    assert_int_equal(nebula_close(&n, (double)NAN), NEBULA_OK);
}

static enum neb_status attach_worker(const struct agent *a, struct agent_exchange *x) {
    for (int i = 0; i < 5000 && !agent_ipc_is_here(a->path); i++)
        neb_sleep(NEB_MS);
    assert_int_equal(agent_credential_find(a->path, a->jobs[0].hex, &x->link.credential), NEB_OK);
    enum neb_status st = exchange_attach(x, a->path, a->jobs[0].hex);
    agent_ipc_destroy(&x->link.ipc);
    zmq_ctx_term(x->link.zctx);
    sec_vault_destroy(&x->vault);
    agent_credential_destroy(&x->link.credential);
    return st;
}

// A built-in worker waits for a busy agent as long as the agent exists.
static void test_worker_and_busy_agent(void **state) {
    struct agent *a = *state;
    struct agent_exchange x = {0};
    a->busy_ms = 11000;
    assert_int_equal(attach_worker(a, &x), NEB_OK);
    assert_string_equal(x.job.name, "t");
    a->gone = true;
    x = (struct agent_exchange){0};
    assert_int_equal(attach_worker(a, &x), NEB_ERR_AGAIN);
}

// Everything works in a program whose locale has a decimal comma.
static void test_decimal_comma(void **state) {
    struct agent *a = *state;
    char command[256], text[16];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8", a->dir);
    if (system(command) != 0) {
        print_message("skipped: no locale sources (install Debian's package locales)\n");
        skip();
    }
    assert_int_equal(setenv("LOCPATH", a->dir, 1), 0);
    assert_non_null(setlocale(LC_ALL, "de_DE.UTF-8"));
    test_steps_and_resume(state);
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5"); // the locale is as before the calls
    setlocale(LC_ALL, "C");
}

static void test_closed_forked_failed(void **state) {
    struct agent *a = *state;
    static float memory[4096];
    struct nebula *n = NULL;
    int s = 0, api = 0;
    SAYS(nebula_step(NULL, 1, 1, &s), NEBULA_ERR_INVALID, "NULL or closed");
    SAYS(nebula_begin(NULL), NEBULA_ERR_INVALID, "NULL or closed");
    assert_int_equal(nebula_close(NULL, 0), NEBULA_OK);
    assert_int_equal(nebula_close(&n, 0), NEBULA_OK);
    assert_string_equal(nebula_version(&api), NEBULA_VERSION);
    assert_int_equal(api, NEBULA_API);
    struct nebula_attach_options o = options(a);
    o.hooks.checkpoint = bad_checkpoint;
    assert_int_equal(nebula_attach(&o, &n), NEBULA_OK);
    pid_t child = fork();
    if (child == 0)
        _exit(nebula_begin(n) == NEBULA_ERR_STATE && strstr(nebula_last_error(), "is a fork of")
                  ? 0
                  : 1);
    int status = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    register_all(n, memory, NULL);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    SAYS(nebula_checkpoint(n), NEBULA_ERR_IO, "checkpoint hook failed");
    SAYS(nebula_step(n, 1, 1, &s), NEBULA_ERR_STATE, "an earlier call failed");
    assert_int_equal(nebula_close(&n, 0), NEBULA_OK);
}

// If the agent fetched another state, a call says so, and the trainer goes on after attaching
// again.
static void test_another_state(void **state) {
    struct agent *a = *state;
    static float memory[4096];
    struct nebula *n = attached(a);
    int s = 0, status = NEBULA_OK;
    register_all(n, memory, NULL);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    a->other_state = true;
    for (int i = 0; i < 3 && status == NEBULA_OK; i++) {
        status = nebula_step(n, 8, 1, &s);
        for (int k = 0; k < 20000 && a->other_state; k++) // until this is sent
            neb_sleep(NEB_MS);
        neb_sleep(300 * NEB_MS);
    }
    SAYS(status, NEBULA_ERR_AGAIN, "attach again");
    SAYS(nebula_step(n, 8, 1, &s), NEBULA_ERR_STATE, "an earlier call failed");
    assert_int_equal(nebula_close(&n, 0), NEBULA_OK);
    n = attached(a);
    register_all(n, memory, NULL);
    assert_int_equal(nebula_begin(n), NEBULA_OK);
    assert_int_equal(nebula_step(n, 8, 1, &s), NEBULA_OK);
    assert_int_equal(nebula_close(&n, 0), NEBULA_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_attach_errors, start, stop),
        cmocka_unit_test_setup_teardown(test_agent_of_another_version, start, stop),
        cmocka_unit_test_setup_teardown(test_declare_errors, start, stop),
        cmocka_unit_test_setup_teardown(test_register_errors, start, stop),
        cmocka_unit_test_setup_teardown(test_begin_errors, start, stop),
        cmocka_unit_test_setup_teardown(test_steps_and_resume, start, stop),
        cmocka_unit_test_setup_teardown(test_late_figures, start, stop),
        cmocka_unit_test_setup_teardown(test_digest_is_cached, start_large, stop),
        cmocka_unit_test_setup_teardown(test_long_step, start, stop),
        cmocka_unit_test_setup_teardown(test_worker_and_busy_agent, start, stop),
        cmocka_unit_test_setup_teardown(test_decimal_comma, start, stop),
        cmocka_unit_test_setup_teardown(test_closed_forked_failed, start, stop),
        cmocka_unit_test_setup_teardown(test_another_state, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
