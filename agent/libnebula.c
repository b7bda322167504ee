// The calls of libnebula.h: a foreign trainer in the place of the built-in one, over the worker's own exchange.
#include "agent/libnebula.h"
#include "agent/base/log.h"
#include "agent/lib_copy.h"
#include "agent/worker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct shard { // a registered range
    int32_t tensor, row0, rows;
    int dtype, place;
    void *data;
};

struct nebula {
    struct agent_worker w;
    struct intra_trainer counts; // only what worker_sync.c reads of a trainer: vocabulary and token counts
    struct kern kern;            // only its pool
    struct nebula_hooks hooks;
    struct lib_copy *copy;
    struct shard *shards;
    size_t n_shards;
    const struct intra_tensor **tensors; // (n_tensors) that are exchanged, canonical order
    int32_t n_tensors;
    char socket[NEB_PATH_MAX], job[NEB_PATH_MAX];
    pid_t owner;
    bool begun, failed;
    int state;
    neb_ns step_end; // when the last call returned: what follows is the trainer's time
};

// ---- errors ---------------------------------------------------------------------------------------------------

static _Thread_local char last_error[1024];

const char *nebula_last_error(void) { return last_error; }

static int fail(enum nebula_status s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int fail(enum nebula_status s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(last_error, sizeof last_error, fmt, ap);
    va_end(ap);
    return (int)s;
}

// The code of a failure beneath; its text is the log's newest line.
static int pass(enum neb_status st) {
    static const enum nebula_status of[] = {
        [NEB_ERR_INVALID] = NEBULA_ERR_INVALID,   [NEB_ERR_NOMEM] = NEBULA_ERR_MEMORY,
        [NEB_ERR_NOT_FOUND] = NEBULA_ERR_NOT_FOUND, [NEB_ERR_TIMEOUT] = NEBULA_ERR_NOT_FOUND,
        [NEB_ERR_STATE] = NEBULA_ERR_STATE,       [NEB_ERR_FORMAT] = NEBULA_ERR_AGENT,
        [NEB_ERR_DENIED] = NEBULA_ERR_AGENT};
    if (st == NEB_OK)
        return NEBULA_OK;
    neb_last_error(last_error, sizeof last_error);
    int s = (size_t)st < sizeof of / sizeof of[0] ? (int)of[st] : 0;
    return s ? s : (int)NEBULA_ERR_IO;
}

static int usable(const struct nebula *n, const char *call) {
    if (!n)
        return fail(NEBULA_ERR_INVALID, "%s: the handle is NULL or closed", call);
    if (n->owner != getpid())
        return fail(NEBULA_ERR_STATE,
                    "%s: process %ld is a fork of %ld, which attached; attach after the fork", call,
                    (long)getpid(), (long)n->owner);
    if (n->failed)
        return fail(NEBULA_ERR_STATE, "%s: an earlier call failed; close the handle", call);
    return NEBULA_OK;
}

const char *nebula_version(int *api) {
    if (api)
        *api = NEBULA_API;
    return NEBULA_VERSION;
}

// ---- the trainer beneath the exchange ---------------------------------------------------------------------------

static enum neb_status copy_shards(struct nebula *n, bool write, const bool *wanted) {
    for (size_t i = 0; i < n->n_shards; i++) {
        const struct shard *s = &n->shards[i];
        const struct intra_tensor *t = n->tensors[s->tensor];
        float *here = intra_param(n->w.model, t) + (size_t)s->row0 * (size_t)t->cols;
        size_t count = (size_t)s->rows * (size_t)t->cols;
        if (wanted && !wanted[t->index])
            continue;
        NEB_TRY(write ? lib_copy_write(n->copy, s->data, here, count, s->dtype, s->place)
                      : lib_copy_read(n->copy, here, s->data, count, s->dtype, s->place));
    }
    return NEB_OK;
}

// Runs of tensors that move, one call of the hook each.
static enum neb_status call_move(struct nebula *n, bool write, const bool *wanted) {
    for (int32_t i = 0, first; n->hooks.move && i < n->n_tensors; i++) {
        if (wanted && !wanted[n->tensors[i]->index])
            continue;
        for (first = i; i + 1 < n->n_tensors && (!wanted || wanted[n->tensors[i + 1]->index]);)
            i++;
        if (n->hooks.move(n->hooks.user, write, first, i + 1 - first) != 0)
            return neb_fail(NEB_ERR_IO, "the trainer's move hook failed at %s",
                            n->tensors[first]->name);
    }
    return NEB_OK;
}

static enum neb_status pull(struct agent_worker *w, const bool *wanted) {
    NEB_TRY(call_move(w->foreign, false, wanted));
    return copy_shards(w->foreign, false, wanted);
}

static enum neb_status push(struct agent_worker *w, const bool *wanted) {
    NEB_TRY(copy_shards(w->foreign, true, wanted));
    return call_move(w->foreign, true, wanted);
}

static enum neb_status save(struct agent_worker *w, struct intra_ckpt_writer *out) {
    uint64_t V = (uint64_t)w->trainer->c.model.vocab;
    NEB_TRY(pull(w, NULL));
    NEB_TRY(intra_ckpt_add(out, "attached.params", INTRA_F32, w->model->n_params, 1, w->model->params));
    NEB_TRY(intra_ckpt_add(out, "attached.inputs", INTRA_U64, V, 1, w->trainer->input_counts));
    return intra_ckpt_add(out, "attached.targets", INTRA_U64, V, 1, w->trainer->target_counts);
}

static enum neb_status restore(struct agent_worker *w, const struct intra_ckpt *c) {
    uint64_t V = (uint64_t)w->trainer->c.model.vocab;
    NEB_TRY(intra_ckpt_read(c, "attached.params", INTRA_F32, w->model->n_params, 1, w->model->params));
    NEB_TRY(intra_ckpt_read(c, "attached.inputs", INTRA_U64, V, 1, w->trainer->input_counts));
    return intra_ckpt_read(c, "attached.targets", INTRA_U64, V, 1, w->trainer->target_counts);
}

// What the trainer reads next is its own affair; nebula_info says at which step it is.
static enum neb_status skip(struct agent_worker *w, int64_t n) {
    neb_warn("%lld steps of this cluster are lost; the trainer goes on from step %lld", (long long)n,
             (long long)(w->step + n));
    return NEB_OK;
}

static enum neb_status save_now(struct nebula *n) {
    NEB_TRY(worker_save(&n->w));
    if (n->hooks.checkpoint && n->hooks.checkpoint(n->hooks.user, n->w.dir, n->w.step) != 0)
        return neb_fail(NEB_ERR_IO, "the trainer's checkpoint hook failed at step %lld",
                        (long long)n->w.step);
    return NEB_OK;
}

// ---- attach ---------------------------------------------------------------------------------------------------

static enum neb_status find_agent(const char *agent, char *out, size_t cap) {
    char home[NEB_PATH_MAX];
    agent = agent ? agent : getenv("NEBULA_AGENT");
    if (!agent || !*agent) {
        const char *user = getenv("HOME");
        if (!user || !*user)
            return neb_fail(NEB_ERR_INVALID, "no agent named and no $HOME: set NEBULA_AGENT to the agent's home");
        NEB_TRY(neb_path(home, sizeof home, user, ".nebula"));
        agent = home;
    }
    size_t len = strlen(agent);
    if (len > 5 && !strcmp(agent + len - 5, ".sock"))
        return len < cap ? (memcpy(out, agent, len + 1), NEB_OK)
                         : neb_fail(NEB_ERR_LIMIT, "the agent's path is too long");
    return neb_path(out, cap, agent, "agent.sock");
}

// Asks until the agent is there and has a job that waits for a trainer. why: what the agent said last.
static enum neb_status wait_for_job(struct nebula *n, const char *job, double timeout_s) {
    neb_ns end = neb_now() + (neb_ns)(timeout_s * 1e9);
    neb_ns taken_end = neb_now() + 2 * NEB_S;
    char why[512] = "";
    void *ctx = zmq_ctx_new();
    struct agent_ipc *ipc = NULL;
    enum neb_status st = ctx ? agent_ipc_connect(ctx, n->socket, &ipc)
                             : neb_fail(NEB_ERR_NOMEM, "cannot create a ZeroMQ context");
    for (bool found = false; st == NEB_OK && !found;) {
        struct agent_ipc_msg m;
        st = agent_ipc_send(ipc, NULL,
                            json_pack("{s:s,s:s,s:i,s:I}", "op", "attachable", "job", job, "api",
                                      NEBULA_API, "pid", (json_int_t)getpid()),
                            NULL, 0);
        if (st == NEB_OK && agent_ipc_wait(ipc, NEB_S, &m) == NEB_OK) {
            const char *code = agent_ipc_str(&m, "code", "");
            snprintf(why, sizeof why, "%s", agent_ipc_str(&m, "text", "no reason given"));
            found = json_is_true(json_object_get(m.head, "ok"));
            if (found)
                snprintf(n->job, sizeof n->job, "%.64s", why);
            else if (!strcmp(code, "taken") && neb_now() < taken_end)
                neb_debug("%s", why); // one that has just detached may still be on its way out
            else if (strcmp(code, "wait"))
                st = neb_fail(!strcmp(code, "version") ? NEB_ERR_UNSUPPORTED : NEB_ERR_STATE, "%s", why);
            agent_ipc_msg_clear(&m);
        }
        if (st == NEB_OK && !found && neb_now() >= end)
            st = why[0] ? neb_fail(NEB_ERR_NOT_FOUND, "%s", why)
                        : neb_fail(NEB_ERR_NOT_FOUND,
                                   "no agent answers at %s; start it, or set NEBULA_AGENT to its home",
                                   n->socket);
        if (st == NEB_OK && !found)
            neb_sleep(200 * NEB_MS);
    }
    agent_ipc_destroy(&ipc);
    if (ctx)
        zmq_ctx_term(ctx);
    return st;
}

static enum neb_status list_tensors(struct nebula *n) {
    struct intra_model *m = n->w.model;
    if (!(n->tensors = calloc((size_t)m->n_tensors, sizeof *n->tensors)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory listing tensors");
    for (int32_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].trainable)
            n->tensors[n->n_tensors++] = &m->tensors[i];
    return NEB_OK;
}

static enum neb_status make_model(struct nebula *n) {
    struct agent_job *j = &n->w.job;
    struct intra_model *m;
    j->model.n_kv_heads = j->model.n_kv_heads ? j->model.n_kv_heads : j->model.n_heads;
    j->model.head_dim = j->model.head_dim ? j->model.head_dim : j->model.d_model / j->model.n_heads;
    j->model.max_seq = j->seq_len;
    NEB_TRY(intra_model_create(&j->model, &j->trainable, (uint64_t)j->seed, &n->w.model));
    m = n->w.model;
    free(m->grads); // the trainer's own
    m->grads = NULL;
    if (j->init_from[0]) {
        struct intra_ckpt *init = NULL;
        NEB_TRY(intra_ckpt_open_in(worker_vault(&n->w), j->init_from, true, &init));
        enum neb_status st = intra_model_load_params(init, m);
        intra_ckpt_close(&init);
        NEB_TRY(st);
    }
    size_t V = (size_t)j->model.vocab;
    n->counts.c.model = j->model;
    n->counts.input_counts = calloc(V, sizeof(uint64_t));
    n->counts.target_counts = calloc(V, sizeof(uint64_t));
    if (!n->counts.input_counts || !n->counts.target_counts)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for token counts");
    return list_tensors(n);
}

static enum neb_status attach(struct nebula *n, const struct nebula_attach_options *o) {
    const char *job = o->job ? o->job : getenv("NEBULA_JOB");
    struct agent_worker *w = &n->w;
    NEB_TRY(find_agent(o->agent, n->socket, sizeof n->socket));
    NEB_TRY(wait_for_job(n, job ? job : "", o->timeout_s > 0 ? o->timeout_s : 60));
    NEB_TRY(agent_credential_find(n->socket, n->job, &w->credential));
    NEB_TRY(worker_attach(w, n->socket, n->job));
    w->federated = w->job.sync.scheme == AGENT_SCHEME_FEDERATED && w->job.n_clusters > 1;
    int threads = o->threads ? o->threads : w->job.clusters[w->cluster].threads;
    NEB_TRY(kern_pool_create(threads, &n->kern.pool));
    w->K = &n->kern;
    w->trainer = &n->counts;
    NEB_TRY(lib_copy_create(&n->copy));
    NEB_TRY(make_model(n));
    if (!w->federated)
        return NEB_OK;
    NEB_TRY(worker_sync_create(w));
    return worker_tell_shape(w);
}

static void destroy(struct nebula *n) {
    intra_ckpt_async_destroy(&n->w.saver); // a checkpoint that is being written becomes whole
    worker_sync_destroy(&n->w);
    agent_ipc_destroy(&n->w.ipc);
    if (n->w.zctx)
        zmq_ctx_term(n->w.zctx);
    if (n->w.log_file)
        fclose(n->w.log_file);
    free(n->w.log);
    sec_vault_destroy(&n->w.vault);
    agent_credential_destroy(&n->w.credential);
    intra_model_destroy(&n->w.model);
    free(n->counts.input_counts);
    free(n->counts.target_counts);
    kern_pool_destroy(&n->kern.pool);
    lib_copy_destroy(&n->copy);
    free(n->tensors);
    free(n->shards);
    free(n);
}

int nebula_attach(const struct nebula_attach_options *o, struct nebula **out) {
    if (!o || !out)
        return fail(NEBULA_ERR_INVALID, "nebula_attach: options or out is NULL");
    *out = NULL;
    if (o->size != sizeof *o || o->api != NEBULA_API)
        return fail(NEBULA_ERR_VERSION,
                    "nebula_attach: the program was built for API %d (options of %zu bytes), the "
                    "library has API %d (%zu bytes): rebuild it with this library's header",
                    o->api, o->size, NEBULA_API, sizeof *o);
    struct nebula *n = calloc(1, sizeof *n);
    if (!n)
        return fail(NEBULA_ERR_MEMORY, "nebula_attach: out of memory");
    n->owner = getpid();
    n->hooks = o->hooks;
    n->w.saved_step = -1;
    n->w.loss_first = n->w.loss_last = NAN; // no step yet
    n->w.foreign = n;
    n->w.isa = "attached trainer";
    n->w.ops = (struct worker_ops){
        .pull = pull, .push = push, .save = save, .restore = restore, .skip = skip};
    enum neb_status st = attach(n, o);
    if (st != NEB_OK) {
        int s = st == NEB_ERR_UNSUPPORTED ? (int)NEBULA_ERR_VERSION : 0;
        int e = pass(st);
        destroy(n);
        return s ? s : e;
    }
    *out = n;
    return NEBULA_OK;
}

// ---- tensors --------------------------------------------------------------------------------------------------

int nebula_tensor_at(struct nebula *n, int32_t i, struct nebula_tensor *out) {
    int s = usable(n, "nebula_tensor_at");
    if (s)
        return s;
    if (!out || out->size != sizeof *out)
        return fail(NEBULA_ERR_INVALID, "nebula_tensor_at: out is NULL or its size is not set");
    if (i < 0 || i >= n->n_tensors)
        return fail(NEBULA_ERR_INVALID, "nebula_tensor_at: %d is not in 0..%d", i, n->n_tensors - 1);
    const struct intra_tensor *t = n->tensors[i];
    *out = (struct nebula_tensor){.size = sizeof *out, .rows = t->rows, .cols = t->cols};
    memcpy(out->name, t->name, sizeof out->name);
    for (int32_t u = 0; n->w.federated && u < n->w.n_units; u++)
        if (n->w.units[u].tensor == t)
            out->fragment = n->w.fragment[u];
    return NEBULA_OK;
}

int nebula_register(struct nebula *n, const char *name, int32_t row0, int32_t rows, int32_t cols,
                    int dtype, int place, void *data) {
    int s = usable(n, "nebula_register");
    if (s)
        return s;
    if (!name || !data)
        return fail(NEBULA_ERR_INVALID, "nebula_register: %s is NULL", name ? "data" : "the name");
    if (n->begun)
        return fail(NEBULA_ERR_STATE, "nebula_register(%s): after nebula_begin", name);
    int32_t i = 0;
    while (i < n->n_tensors && strcmp(n->tensors[i]->name, name) != 0)
        i++;
    if (i == n->n_tensors)
        return fail(NEBULA_ERR_INVALID,
                    "nebula_register: the job exchanges no tensor \"%s\"; it has %d, from %s to %s", name,
                    n->n_tensors, n->tensors[0]->name, n->tensors[n->n_tensors - 1]->name);
    const struct intra_tensor *t = n->tensors[i];
    if (cols != t->cols || rows < 1 || row0 < 0 || rows > t->rows - row0)
        return fail(NEBULA_ERR_INVALID,
                    "nebula_register(%s): rows %d to %lld of %d columns, but the job's tensor is (%d, %d)",
                    name, row0, (long long)row0 + rows - 1, cols, t->rows, t->cols);
    if (!lib_copy_known(dtype, place))
        return fail(NEBULA_ERR_INVALID,
                    "nebula_register(%s): dtype %d, place %d: float32 or bfloat16, host or CUDA are possible",
                    name, dtype, place);
    for (size_t k = 0; k < n->n_shards; k++)
        if (n->shards[k].tensor == i && row0 < n->shards[k].row0 + n->shards[k].rows &&
            n->shards[k].row0 < row0 + rows)
            return fail(NEBULA_ERR_INVALID, "nebula_register(%s): row %d is registered already", name,
                        row0 > n->shards[k].row0 ? row0 : n->shards[k].row0);
    if (place == NEBULA_CUDA && (s = pass(lib_copy_need_cuda(n->copy))) != NEBULA_OK)
        return s;
    struct shard *more = realloc(n->shards, (n->n_shards + 1) * sizeof *more);
    if (!more)
        return fail(NEBULA_ERR_MEMORY, "nebula_register(%s): out of memory", name);
    n->shards = more;
    n->shards[n->n_shards++] = (struct shard){i, row0, rows, dtype, place, data};
    return NEBULA_OK;
}

static int all_registered(const struct nebula *n) {
    for (int32_t i = 0; i < n->n_tensors; i++) {
        int64_t rows = 0; // ranges do not overlap
        for (size_t k = 0; k < n->n_shards; k++)
            rows += n->shards[k].tensor == i ? n->shards[k].rows : 0;
        if (rows != n->tensors[i]->rows)
            return fail(NEBULA_ERR_INVALID, "nebula_begin: %s: %lld of its %d rows are registered",
                        n->tensors[i]->name, (long long)rows, n->tensors[i]->rows);
    }
    return NEBULA_OK;
}

// ---- steps ----------------------------------------------------------------------------------------------------

// Attaches again to an agent that was started anew: what travels is submitted again, what is missed is asked for.
static enum neb_status attach_again(struct nebula *n) {
    struct agent_worker *w = &n->w;
    w->orphan = false;
    return worker_hello(w, n->job);
}

static enum neb_status on_return(struct nebula *n) {
    struct agent_worker *w = &n->w;
    w->returned = false;
    neb_info("attached again to the agent");
    if (!w->federated)
        return NEB_OK;
    NEB_TRY(worker_tell_shape(w));
    for (int32_t f = 0; f < w->job.sync.fragments; f++)
        NEB_TRY(w->frags[f].in_flight && !w->frags[f].arrived ? worker_resubmit(w, f)
                                                              : worker_ask(w, f));
    return NEB_OK;
}

// An agent that is silent is asked now and then; without it nothing is expected, so that training goes on.
static enum neb_status tend_agent(struct nebula *n) {
    static const neb_ns ask = 2 * NEB_S, silent = 10 * NEB_S;
    struct agent_worker *w = &n->w;
    neb_ns now = neb_now();
    if (w->returned)
        NEB_TRY(on_return(n));
    if (w->orphan || now - w->asked > ask) {
        w->asked = now;
        enum neb_status st = w->orphan ? attach_again(n)
                                       : agent_ipc_send(w->ipc, NULL, json_pack("{s:s}", "op", "hello"), NULL, 0);
        if (st != NEB_OK && st != NEB_ERR_AGAIN)
            return st;
    }
    if (w->expected && now - w->heard > silent && now - w->asked < ask) {
        neb_warn("the agent at %s has not answered for %d s; training goes on without exchanges",
                 n->socket, (int)(silent / NEB_S));
        w->expected = false;
        w->alive = 0;
    }
    return NEB_OK;
}

// All that is due before the next step.
static enum neb_status settle(struct nebula *n) {
    struct agent_worker *w = &n->w;
    for (bool ready = false;;) {
        NEB_TRY(worker_drain(w));
        NEB_TRY(tend_agent(n));
        NEB_TRY(worker_exchange(w, &ready));
        if (worker_finished(w)) {
            n->state = NEBULA_DONE;
            return NEB_OK;
        }
        if (w->stop) {
            n->state = NEBULA_STOP;
            return NEB_OK;
        }
        if (ready && w->step < w->job.steps)
            return NEB_OK;
        NEB_TRY(worker_wait(w));
    }
}

static enum neb_status begin(struct nebula *n) {
    struct agent_worker *w = &n->w;
    enum neb_status st = worker_restore(w);
    if (st == NEB_OK)
        neb_info("going on from step %lld", (long long)w->step);
    else if (st != NEB_ERR_NOT_FOUND)
        return st;
    w->restored = st == NEB_OK;
    worker_set_lost(w, w->lost && !w->restored);
    NEB_TRY(push(w, NULL));
    if (!n->hooks.checkpoint) // else what the trainer saves beside it must find it on disk
        NEB_TRY(worker_save_start(w));
    for (int32_t f = 0; w->federated && f < w->job.sync.fragments; f++)
        NEB_TRY(w->frags[f].in_flight ? worker_resubmit(w, f) : worker_ask(w, f));
    if (w->federated)
        NEB_TRY(worker_wait_for_peers(w));
    w->heard = w->asked = neb_now();
    return settle(n);
}

static int end_call(struct nebula *n, enum neb_status st) {
    n->step_end = neb_now();
    n->failed = st != NEB_OK;
    return pass(st);
}

int nebula_begin(struct nebula *n) {
    int s = usable(n, "nebula_begin");
    if (s)
        return s;
    if (n->begun)
        return fail(NEBULA_ERR_STATE, "nebula_begin: called twice");
    if ((s = all_registered(n)) != NEBULA_OK)
        return s;
    n->begun = true;
    return end_call(n, begin(n));
}

int nebula_count(struct nebula *n, const int32_t *inputs, const int32_t *targets, size_t count) {
    int s = usable(n, "nebula_count");
    if (s)
        return s;
    if (!inputs || !targets)
        return fail(NEBULA_ERR_INVALID, "nebula_count: inputs or targets is NULL");
    int32_t V = n->counts.c.model.vocab;
    for (size_t i = 0; i < count; i++)
        if (inputs[i] < 0 || inputs[i] >= V || targets[i] >= V)
            return fail(NEBULA_ERR_INVALID, "nebula_count: token %d at %zu is outside the vocabulary of %d",
                        targets[i] >= V ? targets[i] : inputs[i], i, V);
    for (size_t i = 0; i < count; i++) {
        n->counts.input_counts[inputs[i]]++;
        if (targets[i] >= 0)
            n->counts.target_counts[targets[i]]++;
    }
    return NEBULA_OK;
}

static enum neb_status step(struct nebula *n, uint64_t tokens, double loss) {
    struct agent_worker *w = &n->w;
    double seconds = neb_seconds(neb_now() - n->step_end);
    w->train_s += seconds;
    w->all_tokens += tokens;
    w->step++;
    w->loss_last = isnan(w->loss_first) ? loss : w->loss_last;
    w->loss_first = isnan(w->loss_first) ? loss : w->loss_first;
    w->loss_last = 0.9 * w->loss_last + 0.1 * loss;
    if ((w->step % w->job.log_every == 0 || w->step == w->job.steps || w->step == 1) && isfinite(loss))
        worker_metrics(w, json_pack("{s:s,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f}", "kind", "step", "step",
                                    (json_int_t)w->step, "tokens", (json_int_t)w->all_tokens, "loss",
                                    loss, "lr", 0.0, "grad_norm", 0.0, "tokens_per_s",
                                    seconds > 0 ? (double)tokens / seconds : 0.0, "stall_s", w->stall_s,
                                    "train_s", w->train_s));
    if (w->job.checkpoint_every && w->step % w->job.checkpoint_every == 0)
        NEB_TRY(save_now(n));
    return settle(n);
}

int nebula_step(struct nebula *n, uint64_t tokens, double loss, int *state) {
    int s = usable(n, "nebula_step");
    if (s)
        return s;
    if (!state)
        return fail(NEBULA_ERR_INVALID, "nebula_step: state is NULL");
    if (!n->begun)
        return fail(NEBULA_ERR_STATE, "nebula_step: call nebula_begin first");
    if (n->state != NEBULA_TRAIN)
        return fail(NEBULA_ERR_STATE, "nebula_step: the job is %s; close the handle",
                    n->state == NEBULA_DONE ? "done" : "stopped");
    s = end_call(n, step(n, tokens, loss));
    *state = n->state;
    return s;
}

int nebula_checkpoint(struct nebula *n) {
    int s = usable(n, "nebula_checkpoint");
    if (s)
        return s;
    if (!n->begun)
        return fail(NEBULA_ERR_STATE, "nebula_checkpoint: call nebula_begin first");
    enum neb_status st = save_now(n);
    return end_call(n, st == NEB_OK ? worker_save_wait(&n->w) : st);
}

int nebula_info_get(struct nebula *n, struct nebula_info *out) {
    int s = usable(n, "nebula_info_get");
    if (s)
        return s;
    if (!out || out->size != sizeof *out)
        return fail(NEBULA_ERR_INVALID, "nebula_info_get: out is NULL or its size is not set");
    const struct agent_worker *w = &n->w;
    const struct agent_job *j = &w->job;
    const char *corpus = j->clusters[w->cluster].corpus;
    *out = (struct nebula_info){.size = sizeof *out,
                                .tensors = n->n_tensors,
                                .fragments = j->sync.fragments,
                                .cluster = w->cluster,
                                .clusters = j->n_clusters,
                                .vocab = j->model.vocab,
                                .seq_len = j->seq_len,
                                .batch = j->batch,
                                .accumulate = j->accumulate,
                                .step = w->step,
                                .steps = j->steps,
                                .rounds = w->rounds,
                                .payload_bytes = w->payload_bytes,
                                .stall_s = w->stall_s,
                                .sync_s = w->sync_s,
                                .others = w->alive};
    snprintf(out->dir, sizeof out->dir, "%.1023s", w->dir);
    snprintf(out->corpus, sizeof out->corpus, "%.1023s", corpus[0] ? corpus : j->corpus);
    worker_params_digest(w, out->digest);
    return NEBULA_OK;
}

// ---- the end --------------------------------------------------------------------------------------------------

static enum neb_status report(struct nebula *n, double eval_loss) {
    struct agent_worker *w = &n->w;
    bool done = n->state == NEBULA_DONE;
    NEB_TRY(save_now(n));
    NEB_TRY(worker_save_wait(w));
    if (done)
        NEB_TRY(worker_save_model(w));
    return worker_report(w, worker_results(w, "attached", done ? eval_loss : NAN, done),
                         json_pack("{s:{}}", "eval_by_source"));
}

int nebula_close(struct nebula **np, double eval_loss) {
    if (!np || !*np)
        return NEBULA_OK;
    struct nebula *n = *np;
    *np = NULL;
    if (n->owner != getpid())
        return fail(NEBULA_ERR_STATE, "nebula_close: process %ld attached, not %ld", (long)n->owner,
                    (long)getpid());
    enum neb_status st = n->failed ? NEB_OK : worker_save_wait(&n->w); // whoever attaches next goes on from it
    if (st == NEB_OK && !n->failed && n->state != NEBULA_TRAIN)
        st = report(n, eval_loss);
    else if (agent_ipc_send(n->w.ipc, NULL, json_pack("{s:s}", "op", "detach"), NULL, 0) != NEB_OK)
        neb_debug("the agent is gone");
    int s = pass(st);
    destroy(n);
    return s;
}
