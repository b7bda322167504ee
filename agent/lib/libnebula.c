// SPDX-License-Identifier: Apache-2.0
// The calls of libnebula.h: an attached trainer replaces the built-in one and uses the worker's own
// exchange.
#include "agent/base/log.h"
#include "agent/lib/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- errors ----

static _Thread_local char last_error[1024];

const char *nebula_last_error(void) { return last_error; }

int lib_fail(enum nebula_status s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(last_error, sizeof last_error, fmt, ap);
    va_end(ap);
    return (int)s;
}

int lib_pass(enum neb_status st) {
    static const enum nebula_status of[] = {
        [NEB_ERR_INVALID] = NEBULA_ERR_INVALID,     [NEB_ERR_NOMEM] = NEBULA_ERR_MEMORY,
        [NEB_ERR_NOT_FOUND] = NEBULA_ERR_NOT_FOUND, [NEB_ERR_TIMEOUT] = NEBULA_ERR_NOT_FOUND,
        [NEB_ERR_STATE] = NEBULA_ERR_STATE,         [NEB_ERR_FORMAT] = NEBULA_ERR_AGENT,
        [NEB_ERR_DENIED] = NEBULA_ERR_AGENT};
    if (st == NEB_OK)
        return NEBULA_OK;
    neb_last_error(last_error, sizeof last_error);
    int s = (size_t)st < sizeof of / sizeof of[0] ? (int)of[st] : 0;
    return s ? s : (int)NEBULA_ERR_IO;
}

locale_t lib_locale_c(void) { return uselocale(newlocale(LC_ALL_MASK, "C", NULL)); }
void lib_locale_back(const locale_t *was) {
    locale_t c = uselocale(*was);
    freelocale(c);
}

int lib_usable(const struct nebula *n, const char *call) {
    if (!n)
        return lib_fail(NEBULA_ERR_INVALID, "%s: the handle is NULL or closed", call);
    if (n->process != getpid())
        return lib_fail(NEBULA_ERR_STATE,
                        "%s: process %ld is a fork of %ld, which attached; attach after the fork",
                        call, (long)getpid(), (long)n->process);
    if (n->failed)
        return lib_fail(NEBULA_ERR_STATE, "%s: an earlier call failed; close the handle", call);
    return NEBULA_OK;
}

const char *nebula_version(int *api) {
    if (api)
        *api = NEBULA_API;
    return NEBULA_VERSION;
}

// ---- tensors ----

static void describe_model(const struct intra_tensor *t, struct nebula_tensor *out) {
    bool vector = t->rows == 1 && !t->decay; // an adapter of rank 1 is a matrix
    *out = (struct nebula_tensor){
        .size = sizeof *out, .dims = vector ? 1 : 2, .trained = true, .group = -1, .fragment = -1};
    out->shape[0] = vector ? t->cols : t->rows;
    out->shape[1] = vector ? 0 : t->cols;
    memcpy(out->name, t->name, sizeof t->name);
}

// Tensor i, by name, of the tensors that a built-in model exchanges. NULL: there is none.
static const struct intra_tensor *model_tensor(const struct nebula *n, int32_t i) {
    for (int32_t k = 0; n->model && k < n->model->n_tensors; k++) {
        const struct intra_tensor *t = &n->model->tensors[k];
        int32_t before = 0;
        for (int32_t o = 0; t->trainable && o < n->model->n_tensors; o++)
            before +=
                n->model->tensors[o].trainable && strcmp(n->model->tensors[o].name, t->name) < 0;
        if (t->trainable && before == i)
            return t;
    }
    return NULL;
}

static int32_t count_tensors(const struct nebula *n) {
    int32_t count = 0;
    for (int32_t k = 0; n->model && !n->tensors && k < n->model->n_tensors; k++)
        count += n->model->tensors[k].trainable;
    return n->tensors ? n->n_tensors : count;
}

int nebula_tensor_at(struct nebula *n, int32_t i, struct nebula_tensor *out) {
    int s = lib_usable(n, "nebula_tensor_at");
    if (s)
        return s;
    if (!out || out->size != sizeof *out)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_tensor_at: out is NULL or its size is not set");
    if (i < 0 || i >= count_tensors(n))
        return lib_fail(NEBULA_ERR_INVALID, "nebula_tensor_at: there is no tensor %d, but %d%s", i,
                        count_tensors(n),
                        n->model || n->tensors ? "" : "; the job has none before nebula_begin");
    if (!n->tensors) {
        describe_model(model_tensor(n, i), out);
        return NEBULA_OK;
    }
    const struct lib_tensor *t = n->tensors[i];
    *out = (struct nebula_tensor){.size = sizeof *out,
                                  .dims = t->dims,
                                  .dtype = t->dtype,
                                  .buffer = t->buffer,
                                  .trained = t->trained,
                                  .group = t->group,
                                  .fragment = t->fragment};
    memcpy(out->name, t->name, sizeof out->name);
    memcpy(out->shape, t->shape, sizeof out->shape);
    return NEBULA_OK;
}

// ---- steps ----

// Tells the submitter as well, with the newest error. what: "has ended without its report".
static void say_fault(struct nebula *n, const char *what) {
    char why[512], text[800];
    neb_last_error(why, sizeof why);
    snprintf(text, sizeof text,
             "cluster %s: the attached loop %s: %s. Mend this and attach again: the loop continues "
             "from its newest checkpoint",
             n->x.job.clusters[n->x.cluster].name, what, why);
    exchange_fault(&n->x, text);
}

static int end_call(struct nebula *n, enum neb_status st) {
    int s = lib_pass(st);
    bool again = s && (n->x.reattach || st == NEB_ERR_AGAIN);
    s = lib_leave(n, again ? (int)NEBULA_ERR_AGAIN : s);
    n->step_end = neb_now();
    n->failed = s != NEBULA_OK;
    return s;
}

int nebula_begin(struct nebula *n) {
    LIB_POINT;
    int s = lib_usable(n, "nebula_begin");
    if (s)
        return s;
    if (n->begun)
        return lib_fail(NEBULA_ERR_STATE, "nebula_begin: called twice");
    if (n->x.job.mode != AGENT_MODE_REPLICAS)
        return lib_fail(NEBULA_ERR_STATE, "nebula_begin: the job has teachers and students; open "
                                          "its side with nebula_side_open");
    if ((s = lib_enter(n, "nebula_begin")) != NEBULA_OK)
        return s;
    n->begun = true;
    enum neb_status st = n->loading ? NEB_OK : lib_prepare(n); // one status for all ranks
    if (st != NEB_OK) {
        n->failed = true;
        if (n->rank == 0)
            say_fault(n, "cannot begin");
        return lib_pass(st);
    }
    return end_call(n, n->rank ? NEB_OK : lib_begin(n));
}

int nebula_count(struct nebula *n, const int32_t *inputs, const int32_t *targets, size_t count) {
    int s = lib_usable(n, "nebula_count");
    if (s)
        return s;
    if (!inputs || !targets)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_count: inputs or targets is NULL");
    if (!n->model)
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_count: a job with `model: attached` has no vocabulary");
    int32_t V = n->model->c.vocab;
    for (size_t i = 0; i < count; i++)
        if (inputs[i] < 0 || inputs[i] >= V || targets[i] >= V)
            return lib_fail(NEBULA_ERR_INVALID,
                            "nebula_count: token %d at %zu is outside the vocabulary of %d",
                            targets[i] >= V ? targets[i] : inputs[i], i, V);
    for (size_t i = 0; i < count; i++) {
        n->counters[inputs[i]]++;
        if (targets[i] >= 0)
            n->counters[V + targets[i]]++;
    }
    return NEBULA_OK;
}

static enum neb_status step(struct nebula *n, const struct nebula_step_stats *s) {
    struct agent_exchange *x = &n->x;
    NEB_TRY(lib_count_step(n, s));
    for (;;) {
        if (x->job.checkpoint_every && x->step % x->job.checkpoint_every == 0)
            NEB_TRY(lib_save_now(n));
        NEB_TRY(lib_settle(n));
        if (n->state != NEBULA_TRAIN || x->step >= x->job.steps || !exchange_leaves_out(x))
            return NEB_OK;
        x->step++; // this cluster is slow and leaves out the step
        x->steps_left_out++;
    }
}

int64_t nebula_step_count(const struct nebula *n) { return n ? n->x.step : 0; }

int nebula_set_stream(struct nebula *n, void *stream) {
    int s = lib_usable(n, "nebula_set_stream");
    if (!s && n->device)
        n->device->stream = stream;
    return s;
}

int nebula_step_with(struct nebula *n, const struct nebula_step_stats *stats, int *state) {
    LIB_POINT;
    struct nebula_step_stats known = NEBULA_STEP_STATS_INIT;
    int s = lib_usable(n, "nebula_step");
    if (s)
        return s;
    if (!state || !stats)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_step: %s is NULL", state ? "stats" : "state");
    if (stats->size < offsetof(struct nebula_step_stats, eval_loss) || stats->size > sizeof known)
        return lib_fail(NEBULA_ERR_VERSION,
                        "nebula_step: the stats have %zu bytes, but this library knows %zu: set "
                        "the size, or rebuild with this library's header",
                        stats->size, sizeof known);
    if (!n->begun)
        return lib_fail(NEBULA_ERR_STATE, "nebula_step: call nebula_begin first");
    if (n->state != NEBULA_TRAIN)
        return lib_fail(NEBULA_ERR_STATE, "nebula_step: the job is %s; close the handle",
                        n->state == NEBULA_DONE ? "done" : "stopped");
    memcpy(&known, stats, stats->size);
    if (known.later > (NEBULA_LATER | NEBULA_LATER_TOKENS) ||
        (known.later && !n->hooks.figures && n->rank == 0))
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_step: figures come later, but there is no hook for them");
    known.tokens = known.later & NEBULA_LATER_TOKENS ? 0 : known.tokens;
    if (known.tokens > agent_job_step_tokens(&n->x.job))
        return lib_fail(NEBULA_ERR_INVALID,
                        "nebula_step: %llu tokens in one step, but the job's data.batch x "
                        "data.accumulate x data.seq_len allow at most %llu: raise one of them",
                        (unsigned long long)known.tokens,
                        (unsigned long long)agent_job_step_tokens(&n->x.job));
    if ((s = lib_enter(n, "nebula_step")) != NEBULA_OK)
        return s;
    s = end_call(n, n->rank ? NEB_OK : step(n, &known));
    *state = n->state;
    return s;
}

int nebula_step(struct nebula *n, uint64_t tokens, double loss, int *state) {
    struct nebula_step_stats s = NEBULA_STEP_STATS_INIT;
    s.tokens = tokens;
    s.loss = loss;
    return nebula_step_with(n, &s, state);
}

int nebula_checkpoint(struct nebula *n) {
    LIB_POINT;
    int s = lib_usable(n, "nebula_checkpoint");
    if (s)
        return s;
    if (!n->begun)
        return lib_fail(NEBULA_ERR_STATE, "nebula_checkpoint: call nebula_begin first");
    if ((s = lib_enter(n, "nebula_checkpoint")) != NEBULA_OK)
        return s;
    enum neb_status st = n->rank ? NEB_OK : lib_save_now(n);
    return end_call(n, st == NEB_OK && !n->rank ? exchange_save_wait(&n->x) : st);
}

static enum neb_status own_digest(struct nebula *n, struct kern_digest *out) {
    NEB_TRY(lib_call(n, LIB_DIGEST));
    return lib_own_digest(n, out);
}

// The params_digest of a report. It computes only what has changed since the last call, because
// trainers ask at each step, and the digest of a large model takes seconds.
static enum neb_status params_digest(struct nebula *n, char hex[33]) {
    struct agent_exchange *x = &n->x;
    struct kern_digest sum = {0, 0};
    for (int32_t f = 0; f < (x->federated ? exchange_fragments(x) : 1); f++) {
        const struct agent_fragment *g = &x->frags[f];
        uint32_t version = x->federated ? inter_outer_version(x->outer, f) : 0;
        bool same = n->digests[f].known && n->digests[f].version == version &&
                    n->digests[f].round == g->round && n->digests[f].finished == g->finished &&
                    (x->federated || n->digests[f].reads == n->reads);
        if (!same) {
            n->digests[f].version = version;
            n->digests[f].round = g->round;
            n->digests[f].finished = g->finished;
            if (x->federated)
                NEB_TRY(agent_shards_digest(x->shards, f, &n->digests[f].d));
            else
                NEB_TRY(own_digest(n, &n->digests[f].d));
            n->digests[f].reads = n->reads; // this read counts
            n->digests[f].known = true;
        }
        sum = kern_digest_add(sum, n->digests[f].d);
    }
    exchange_digest_hex(&sum, hex);
    return NEB_OK;
}

static enum neb_status info(struct nebula *n, struct nebula_info *out) {
    const struct agent_exchange *x = &n->x;
    const struct agent_job *j = &x->job;
    *out = (struct nebula_info){.size = sizeof *out,
                                .tensors = count_tensors(n),
                                .fragments = exchange_fragments(x),
                                .cluster = x->cluster,
                                .clusters = j->n_clusters,
                                .vocab = j->model.vocab,
                                .seq_len = j->seq_len,
                                .batch = j->batch,
                                .accumulate = j->accumulate,
                                .step = x->step,
                                .steps = j->steps,
                                .rounds = x->rounds,
                                .payload_bytes = x->payload_bytes,
                                .stall_s = x->stall_s,
                                .sync_s = x->sync_s,
                                .others = x->link.alive};
    snprintf(out->dir, sizeof out->dir, "%.1023s", x->dir);
    snprintf(out->corpus, sizeof out->corpus, "%.1023s", agent_job_corpus(j, x->cluster));
    return n->begun ? params_digest(n, out->digest) : NEB_OK;
}

int nebula_info_get(struct nebula *n, struct nebula_info *out) {
    LIB_POINT;
    int s = lib_usable(n, "nebula_info_get");
    if (s)
        return s;
    if (!out || out->size != sizeof *out)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_info_get: out is NULL or its size is not set");
    if ((s = lib_enter(n, "nebula_info_get")) != NEBULA_OK)
        return s;
    neb_ns step_end = n->step_end; // the time of this call counts as the trainer's
    s = end_call(n, n->rank ? NEB_OK : info(n, out));
    n->step_end = step_end;
    if (!s && n->ranks > 1)
        s = lib_pass(n->world->ops->broadcast(n->world, out, sizeof *out, 0));
    return s;
}

// ---- close ----

static void count_params(const struct nebula *n, uint64_t *all, uint64_t *trainable) {
    for (int32_t i = 0; i < n->n_declared; i++)
        *all += (uint64_t)n->declared[i].size;
    for (int32_t i = 0; i < n->n_tensors; i++)
        *trainable += (uint64_t)n->tensors[i]->size;
    if (n->model) {
        *all = n->model->n_params;
        *trainable = n->model->n_trainable;
    }
}

static enum neb_status report(struct nebula *n, double eval_loss) {
    struct agent_exchange *x = &n->x;
    bool done = n->state == NEBULA_DONE;
    NEB_TRY(lib_save_now(n));
    NEB_TRY(exchange_save_wait(x));
    if (done)
        NEB_TRY(lib_trainer_write_model(n));
    if (done && isfinite(eval_loss))
        lib_send_eval(x, x->step, eval_loss);
    json_t *results;
    struct exchange_results r = {
        .device = "attached", .eval_loss = done ? eval_loss : NAN, .done = done};
    count_params(n, &r.params, &r.trainable);
    if (!x->federated)
        NEB_TRY(own_digest(n, &r.digest));
    NEB_TRY(exchange_results(x, &r, &results));
    return exchange_report(x, results, json_pack("{s:{}}", "eval_by_source"));
}

// Waits for the checkpoint that is being written: the next trainer continues from it.
static enum neb_status leave(struct nebula *n, double eval_loss) {
    bool ended = !n->failed && n->state != NEBULA_TRAIN;
    enum neb_status st = n->failed ? NEB_OK : exchange_save_wait(&n->x);
    if (!n->failed && n->begun && lib_late_figures(n, true) != NEB_OK)
        neb_warn("figures of the last steps are lost");
    if (ended && st == NEB_OK && (st = report(n, eval_loss)) == NEB_OK)
        return NEB_OK;
    if (ended)
        say_fault(n, "has ended without its report");
    if (agent_ipc_send(n->x.link.ipc, NULL, json_pack("{s:s}", "op", "detach"), NULL, 0) != NEB_OK)
        neb_debug("the agent is gone");
    return st;
}

int nebula_close(struct nebula **np, double eval_loss) {
    LIB_POINT;
    if (!np || !*np)
        return NEBULA_OK;
    struct nebula *n = *np;
    *np = NULL;
    if (n->process != getpid())
        return lib_fail(NEBULA_ERR_STATE, "nebula_close: process %ld attached, not %ld",
                        (long)n->process, (long)getpid());
    // after a failure the other ranks may be gone: each closes alone
    int s = n->failed ? (int)NEBULA_OK : lib_enter(n, "nebula_close");
    bool alone = n->failed;
    enum neb_status st = n->rank ? NEB_OK : leave(n, eval_loss);
    int left = alone ? lib_pass(st) : lib_leave(n, lib_pass(st));
    s = s ? s : left;
    lib_destroy(n);
    return s;
}
