// SPDX-License-Identifier: Apache-2.0
// Attaching: finds the agent, waits for a job that needs a trainer, and creates the exchange.
#include "agent/base/log.h"
#include "agent/job/init_digest.h"
#include "agent/lib/state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum neb_status find_agent(const char *agent, char *out, size_t cap) {
    char home[NEB_PATH_MAX];
    agent = agent ? agent : getenv("NEBULA_AGENT");
    if (!agent || !*agent)
        agent = getenv("NEBULA_HOME");
    if (!agent || !*agent) {
        const char *user = getenv("HOME");
        if (!user || !*user)
            return neb_fail(
                NEB_ERR_INVALID,
                "no agent is named and $HOME is not set: set NEBULA_AGENT to the agent's home");
        NEB_TRY(neb_path(home, sizeof home, user, ".nebula"));
        agent = home;
    }
    size_t len = strlen(agent);
    if (len > 5 && !strcmp(agent + len - 5, ".sock"))
        return len < cap ? (memcpy(out, agent, len + 1), NEB_OK)
                         : neb_fail(NEB_ERR_LIMIT, "the agent's path is too long");
    return neb_path(out, cap, agent, "agent.sock");
}

// Asks repeatedly until the agent is there and has a job that waits for a trainer.
static enum neb_status wait_for_job(struct nebula *n, const char *job, double timeout_s) {
    const char *from = getenv("NEBULA_JOB_FROM");
    neb_ns end = neb_now() + (neb_ns)(timeout_s * 1e9);
    neb_ns taken_end = neb_now() + 2 * NEB_S;
    char why[512] = "";
    void *ctx = zmq_ctx_new();
    struct agent_ipc *ipc = NULL;
    enum neb_status st =
        ctx ? agent_ipc_connect(ctx, n->socket, &ipc)
            : neb_fail(NEB_ERR_IO, "cannot create a ZeroMQ context: %s", zmq_strerror(zmq_errno()));
    for (bool found = false; st == NEB_OK && !found;) {
        struct agent_ipc_msg m;
        st = agent_ipc_send(ipc, NULL,
                            json_pack("{s:s,s:s,s:s,s:i,s:I,s:i,s:s}", "op", "attachable", "job",
                                      job, "from", from ? from : "", "api", NEBULA_API, "pid",
                                      (json_int_t)getpid(), "protocol", agent_ipc_protocol(),
                                      "build", neb_build()),
                            NULL, 0);
        if (st == NEB_OK && agent_ipc_wait(ipc, NEB_S, &m) == NEB_OK) {
            const char *code = agent_ipc_str(&m, "code", "");
            snprintf(why, sizeof why, "%s", agent_ipc_str(&m, "text", "no reason given"));
            found = json_is_true(json_object_get(m.head, "ok"));
            if (found)
                snprintf(n->job, sizeof n->job, "%.64s", why);
            else if (!strcmp(code, "taken") && neb_now() < taken_end)
                neb_debug("%s", why); // a trainer that has just detached may not have exited yet
            else if (strcmp(code, "wait"))
                st = neb_fail(!strcmp(code, "version") ? NEB_ERR_UNSUPPORTED : NEB_ERR_STATE, "%s",
                              why);
            agent_ipc_msg_clear(&m);
        }
        if (st == NEB_OK && !found && neb_now() >= end)
            st = why[0]
                     ? neb_fail(NEB_ERR_NOT_FOUND, "%s", why)
                     : neb_fail(NEB_ERR_NOT_FOUND,
                                "no agent answers at %s; start it, or set NEBULA_AGENT to its home",
                                n->socket);
        if (st == NEB_OK && !found && (st = lib_idle(n)) == NEB_OK)
            neb_sleep(200 * NEB_MS);
    }
    agent_ipc_destroy(&ipc);
    if (ctx)
        zmq_ctx_term(ctx);
    return st;
}

// The model holds the tensors between the trainer's memory and the exchange. It has no gradients:
// the trainer has its own.
static enum neb_status make_model(struct nebula *n) {
    struct agent_job *j = &n->x.job;
    struct intra_ckpt *init = NULL;
    j->model.n_kv_heads = j->model.n_kv_heads ? j->model.n_kv_heads : j->model.n_heads;
    j->model.head_dim = j->model.head_dim ? j->model.head_dim : j->model.d_model / j->model.n_heads;
    j->model.max_seq = j->seq_len;
    NEB_TRY(intra_model_create(&j->model, &j->trainable, (uint64_t)j->seed, &n->model));
    free(n->model->grads);
    n->model->grads = NULL;
    if (!j->init_from[0])
        return NEB_OK;
    NEB_TRY(intra_ckpt_open_in(exchange_vault(&n->x), j->init_from, true, &init));
    enum neb_status st = agent_job_init_same(j, n->x.cluster, init);
    if (st == NEB_OK)
        st = intra_model_load_params(init, n->model);
    intra_ckpt_close(&init);
    return st;
}

static enum neb_status attach(struct nebula *n, const struct nebula_attach_options *o) {
    const char *job = o->job ? o->job : getenv("NEBULA_JOB");
    struct agent_exchange *x = &n->x;
    NEB_TRY(find_agent(o->agent, n->socket, sizeof n->socket));
    NEB_TRY(wait_for_job(n, job ? job : "", o->timeout_s > 0 ? o->timeout_s : 60));
    NEB_TRY(agent_credential_find(n->socket, n->job, &x->link.credential));
    NEB_TRY(exchange_attach(x, n->socket, n->job));
    x->federated = x->job.sync.scheme == AGENT_SCHEME_FEDERATED && x->job.n_clusters > 1;
    int threads = o->threads ? o->threads : x->job.clusters[x->cluster].threads;
    NEB_TRY(kern_pool_create(threads, &n->pool));
    NEB_TRY(lib_copy_create(&n->copy));
    NEB_TRY(make_model(n));
    NEB_TRY(lib_trainer_create(n));
    return x->federated ? exchange_join(x) : NEB_OK;
}

void lib_destroy(struct nebula *n) {
    exchange_destroy(&n->x);
    exchange_leave(&n->x);
    lib_trainer_destroy(n);
    intra_model_destroy(&n->model);
    kern_pool_destroy(&n->pool);
    lib_copy_destroy(&n->copy);
    free(n);
}

int nebula_attach(const struct nebula_attach_options *o, struct nebula **out) {
    LIB_POINT;
    if (!o || !out)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_attach: options or out is NULL");
    *out = NULL;
    // the size of options that end before the wait hook
    const size_t first = offsetof(struct nebula_attach_options, hooks.wait);
    struct nebula_attach_options known = {0};
    if ((o->size != sizeof *o && o->size != first) || o->api != NEBULA_API)
        return lib_fail(
            NEBULA_ERR_VERSION,
            "nebula_attach: the program was built for API %d (options of %zu bytes), the "
            "library has API %d (%zu bytes): rebuild it with this library's header",
            o->api, o->size, NEBULA_API, sizeof *o);
    struct nebula *n = calloc(1, sizeof *n);
    if (!n)
        return lib_fail(NEBULA_ERR_MEMORY, "nebula_attach: out of memory");
    n->owner = getpid();
    memcpy(&known, o, o->size);
    n->hooks = known.hooks;
    n->ask_after = 2 * NEB_S;
    n->silent_after = 10 * NEB_S;
    exchange_init(&n->x);
    n->x.link.foreign = true;
    n->x.isa = "attached trainer";
    enum neb_status st = attach(n, &known);
    if (st != NEB_OK) {
        int s = st == NEB_ERR_UNSUPPORTED ? (int)NEBULA_ERR_VERSION : 0;
        int e = lib_pass(st);
        lib_destroy(n);
        return s ? s : e;
    }
    *out = n;
    return NEBULA_OK;
}
