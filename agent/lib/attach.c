// SPDX-License-Identifier: Apache-2.0
// Attaching: rank 0 finds the agent, and waits for a job that needs a trainer. The other ranks get
// the job from it.
#include "agent/base/log.h"
#include "agent/lib/ranks.h"
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

static enum neb_status attach_first(struct nebula *n, const struct nebula_attach_options *o) {
    const char *job = o->job ? o->job : getenv("NEBULA_JOB");
    struct agent_exchange *x = &n->x;
    if (getentropy(&x->link.session, sizeof x->link.session) != 0)
        return neb_fail_errno("cannot read random numbers from the system");
    x->link.session &= INT64_MAX;
    x->link.ranks = n->ranks;
    NEB_TRY(find_agent(o->agent, n->socket, sizeof n->socket));
    NEB_TRY(wait_for_job(n, job ? job : "", o->timeout_s > 0 ? o->timeout_s : 60));
    NEB_TRY(agent_credential_find(n->socket, n->job, &x->link.credential));
    return exchange_attach(x, n->socket, n->job);
}

// ---- to the other ranks -------------------------------------------------------------------------

enum { TAG_HAND = 32024 };

struct hello {
    int32_t cluster;
    bool had_checkpoint;
    uint64_t text; // bytes of the job
    int64_t session;
    char dir[NEB_PATH_MAX], socket[NEB_PATH_MAX], job[NEB_PATH_MAX];
};

// The credentials of the job go sealed to each rank (agent/proc/credential.h).
static enum neb_status give_credentials(struct nebula *n) {
    struct intra_comm *w = n->world;
    for (int r = 1; r < n->ranks; r++) {
        uint8_t public[AGENT_CREDENTIAL_PUBLIC], box[AGENT_CREDENTIAL_BOX];
        struct intra_comm_send send = {0};
        NEB_TRY(w->ops->recv(w, public, sizeof public, r, TAG_HAND));
        NEB_TRY(agent_credential_give(n->x.link.credential, public, box));
        NEB_TRY(w->ops->send(w, box, sizeof box, r, TAG_HAND, &send));
    }
    return NEB_OK;
}

static enum neb_status take_credentials(struct nebula *n, struct agent_credential **out) {
    struct intra_comm *w = n->world;
    uint8_t public[AGENT_CREDENTIAL_PUBLIC], box[AGENT_CREDENTIAL_BOX] = {0};
    struct intra_comm_send send = {0};
    struct agent_credential_asker *asker = NULL;
    NEB_TRY(agent_credential_ask(&asker, public));
    enum neb_status st = w->ops->send(w, public, sizeof public, 0, TAG_HAND, &send);
    if (st == NEB_OK)
        st = w->ops->recv(w, box, sizeof box, 0, TAG_HAND);
    enum neb_status taken = agent_credential_given(&asker, box, out);
    NEB_TRY(st);
    return taken;
}

static enum neb_status take_first_credentials(struct nebula *n) {
    NEB_TRY(take_credentials(n, &n->x.link.credential));
    return agent_credential_vault(n->x.link.credential, true, &n->x.vault);
}

// The carrier borrows the credential, so that stays in place.
static enum neb_status take_new_credentials(struct nebula *n) {
    struct agent_credential *new = NULL;
    size_t len = 0;
    enum neb_status st = take_credentials(n, &new);
    const void *p = st == NEB_OK ? agent_credential_bytes(new, &len) : NULL;
    if (p)
        st = agent_credential_take(n->x.link.credential, p, len);
    agent_credential_destroy(&new);
    return st == NEB_OK && n->carrier ? agent_carrier_again(n->carrier) : st;
}

enum neb_status lib_hand_keys(struct nebula *n) {
    if (n->ranks == 1)
        return NEB_OK;
    if (n->rank == 0)
        NEB_TRY(lib_call(n, LIB_KEYS));
    return intra_comm_agree(n->world, n->rank ? take_new_credentials(n) : give_credentials(n));
}

static enum neb_status take_job(struct nebula *n, const struct hello *h, const char *text) {
    json_t *spec = json_loadb(text, h->text, 0, NULL);
    enum neb_status st = spec ? agent_job_from_json(spec, &n->x.job)
                              : neb_fail(NEB_ERR_FORMAT, "rank 0 sent a malformed job");
    json_decref(spec);
    n->x.cluster = h->cluster;
    n->x.had_checkpoint = h->had_checkpoint;
    n->x.link.session = h->session;
    memcpy(n->x.dir, h->dir, sizeof n->x.dir);
    memcpy(n->socket, h->socket, sizeof n->socket);
    memcpy(n->job, h->job, sizeof n->job);
    return st;
}

static enum neb_status share_job(struct nebula *n) {
    struct intra_comm *w = n->world;
    struct hello h = {.cluster = n->x.cluster,
                      .had_checkpoint = n->x.had_checkpoint,
                      .session = n->x.link.session};
    char *text = NULL;
    json_t *spec = n->rank == 0 ? agent_job_to_json(&n->x.job) : NULL;
    if (n->rank == 0)
        text = json_dumps(spec, JSON_COMPACT);
    json_decref(spec);
    enum neb_status st =
        n->rank || text ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory while attaching");
    h.text = text ? strlen(text) : 0;
    memcpy(h.dir, n->x.dir, sizeof h.dir);
    memcpy(h.socket, n->socket, sizeof h.socket);
    memcpy(h.job, n->job, sizeof h.job);
    NEB_TRY_GOTO(intra_comm_agree(n->world, st), out);
    NEB_TRY_GOTO(w->ops->broadcast(w, &h, sizeof h, 0), out);
    if (n->rank && !(text = malloc(h.text)))
        st = neb_fail(NEB_ERR_NOMEM, "out of memory while attaching");
    NEB_TRY_GOTO(intra_comm_agree(n->world, st), out);
    NEB_TRY_GOTO(w->ops->broadcast(w, text, h.text, 0), out);
    NEB_TRY_GOTO(intra_comm_agree(n->world, n->rank ? take_job(n, &h, text) : NEB_OK), out);
    st = intra_comm_agree(n->world, n->rank ? take_first_credentials(n) : give_credentials(n));
out:
    free(text);
    return st;
}

// ---- on every rank ------------------------------------------------------------------------------

// Makes names and shapes of a built-in model. The parameters are the loop's.
static enum neb_status make_model(struct nebula *n) {
    struct agent_job *j = &n->x.job;
    if (j->attached)
        return NEB_OK;
    j->model.n_kv_heads = j->model.n_kv_heads ? j->model.n_kv_heads : j->model.n_heads;
    j->model.head_dim = j->model.head_dim ? j->model.head_dim : j->model.d_model / j->model.n_heads;
    j->model.max_seq = j->seq_len;
    NEB_TRY(intra_model_layout(&j->model, &j->trainable, &n->model));
    size_t counters = 2 * (size_t)n->model->c.vocab;
    n->counters = calloc(counters, sizeof *n->counters);
    n->sum = calloc(counters, sizeof *n->sum);
    return n->counters && n->sum ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for row counts");
}

static enum neb_status prepare(struct nebula *n, int threads) {
    struct agent_exchange *x = &n->x;
    x->federated = x->job.sync.scheme == AGENT_SCHEME_FEDERATED && x->job.n_clusters > 1;
    NEB_TRY(kern_pool_create(threads ? threads : x->job.clusters[x->cluster].threads, &n->pool));
    const struct agent_carrier_config c = {.socket_path = n->socket,
                                           .job = n->job,
                                           .credential = x->link.credential,
                                           .session = x->link.session,
                                           .rank = n->rank};
    if (n->rank && x->federated)
        NEB_TRY(agent_carrier_create(&c, &n->carrier));
    return make_model(n);
}

static int attach(struct nebula *n, const struct nebula_attach_options *o) {
    int s = lib_enter(n, "nebula_attach");
    if (s)
        return s;
    enum neb_status st = n->rank ? NEB_OK : attach_first(n, o);
    s = lib_pass(st);
    s = lib_leave(n, st == NEB_ERR_UNSUPPORTED ? (int)NEBULA_ERR_VERSION : s);
    if (s)
        return s;
    if (n->ranks > 1)
        LIB_TRY(share_job(n));
    LIB_TRY(intra_comm_agree(n->world, prepare(n, o->threads)));
    return NEBULA_OK;
}

void lib_destroy(struct nebula *n) {
    intra_part_saver_destroy(&n->saver);
    lib_device_enter(n);
    exchange_destroy(&n->x);
    agent_shards_destroy(&n->shards);
    agent_carrier_destroy(&n->carrier);
    exchange_leave(&n->x);
    lib_device_destroy(n);
    lib_trainer_destroy(n);
    lib_tensors_destroy(n);
    intra_model_destroy(&n->model);
    kern_pool_destroy(&n->pool);
    if (n->world)
        n->world->ops->destroy(n->world);
    free(n);
}

static int check_ranks(const struct nebula_ranks *r) {
    if (!r)
        return NEBULA_OK;
    if (r->size != sizeof *r)
        return lib_fail(NEBULA_ERR_VERSION,
                        "nebula_attach: the ranks have %zu bytes, but this "
                        "library knows %zu: rebuild with its header",
                        r->size, sizeof *r);
    if (r->ranks < 1 || r->rank < 0 || r->rank >= r->ranks ||
        (r->ranks > 1 && (!r->send || !r->recv)))
        return lib_fail(NEBULA_ERR_INVALID, "nebula_attach: rank %d of %d, send %s, recv %s",
                        r->rank, r->ranks, r->send ? "given" : "NULL", r->recv ? "given" : "NULL");
    return NEBULA_OK;
}

int nebula_attach(const struct nebula_attach_options *o, struct nebula **out) {
    LIB_POINT;
    if (!o || !out)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_attach: options or out is NULL");
    *out = NULL;
    struct nebula_attach_options known = {0};
    const size_t before_figures = offsetof(struct nebula_attach_options, hooks.figures);
    if ((o->size != before_figures && o->size != sizeof *o) || o->api != NEBULA_API)
        return lib_fail(
            NEBULA_ERR_VERSION,
            "nebula_attach: the program was built for API %d (options of %zu bytes), the "
            "library has API %d (%zu bytes): rebuild it with this library's header",
            o->api, o->size, NEBULA_API, sizeof *o);
    memcpy(&known, o, o->size);
    int s = check_ranks(known.ranks);
    if (s)
        return s;
    struct nebula *n = calloc(1, sizeof *n);
    if (!n)
        return lib_fail(NEBULA_ERR_MEMORY, "nebula_attach: out of memory");
    n->process = getpid();
    n->hooks = known.hooks;
    n->ranks = known.ranks ? known.ranks->ranks : 1;
    n->rank = known.ranks ? known.ranks->rank : 0;
    n->ask_after = 2 * NEB_S;
    n->silent_after = 10 * NEB_S;
    n->initial = true;
    exchange_init(&n->x);
    n->x.link.foreign = true;
    n->x.isa = "attached trainer";
    s = n->ranks > 1 ? lib_pass(lib_ranks_create(known.ranks, &n->world)) : (int)NEBULA_OK;
    if (!s)
        s = attach(n, &known);
    if (s) {
        lib_destroy(n);
        return s;
    }
    *out = n;
    return NEBULA_OK;
}
