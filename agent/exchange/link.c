// SPDX-License-Identifier: Apache-2.0
// The messages between a worker, or an attached trainer, and its agent.
#include "agent/base/log.h"
#include "agent/base/moved.h"
#include "agent/exchange/exchange.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const neb_ns poll_slice = 200 * NEB_MS;

// moves: bytes have moved since the last heartbeat.
static void say_heartbeat(struct agent_exchange *x, bool moves) {
    json_t *heartbeat = json_pack("{s:s,s:f,s:b}", "op", "heartbeat", "allow_s",
                                  x->link.heartbeat_allow_s, "moves", moves);
    uint64_t left = x->saves.saver ? intra_ckpt_async_left(x->saves.saver) : 0;
    json_object_set_new(heartbeat, "step", json_integer(x->step));
    if (left)
        json_object_set_new(heartbeat, "left", json_integer((json_int_t)left));
    if (agent_ipc_send(x->link.ipc, NULL, heartbeat, NULL, 0) != NEB_OK)
        neb_debug("a heartbeat was dropped");
}

void exchange_heartbeat(struct agent_exchange *x, bool step, double steps) {
    double least_s = (double)x->job.hang_after_s,
           allow_s = EXCHANGE_HANG_STEPS * (step ? 1 : steps) * x->step_s,
           last_s = x->link.heartbeat_allow_s;
    neb_ns now = neb_now();
    if (!step || !x->stepped)
        least_s *= EXCHANGE_HANG_OTHER;
    allow_s = allow_s > least_s ? allow_s : least_s;
    x->link.heartbeat_step = step;
    bool alike = allow_s < 1.5 * last_s && allow_s > last_s / 1.5;
    if (x->link.foreign || !(least_s > 0) || (alike && now - x->link.heartbeat_at < NEB_S))
        return;
    x->link.heartbeat_at = now;
    x->link.heartbeat_allow_s = allow_s;
    say_heartbeat(x, false);
}

static void moved(void *user) {
    struct agent_exchange *x = user;
    neb_ns now = neb_now();
    if (x->link.heartbeat_step)
        return; // the duration of a step is known
    if (x->link.world && x->link.world->ops->alive)
        x->link.world->ops->alive(x->link.world);
    if (now - x->link.heartbeat_at < NEB_S)
        return;
    x->link.heartbeat_at = now;
    say_heartbeat(x, true);
}

void exchange_report_moves(struct agent_exchange *x) {
    if (x)
        exchange_heartbeat(x, false, 0);
    neb_moved_listen(x ? moved : NULL, x);
}

void exchange_set_lost(struct agent_exchange *x, bool lost) {
    x->lost = lost;
    x->adopts |= lost;
    if (lost)
        x->incarnation = x->attempts;
}

// ---- messages from the agent ----

static void set_peers(struct agent_exchange *x, const struct agent_ipc_msg *m) {
    x->link.alive = (int)agent_ipc_int(m, "alive", 0);
    x->link.others = (int)agent_ipc_int(m, "others", x->job.n_clusters - 1);
    x->link.expected = json_is_true(json_object_get(m->head, "expected"));
}

// Wipes the keys that the answer to an attach contains.
static void wipe_parts(struct agent_ipc_msg *m) {
    for (size_t i = 0; i < m->n_parts; i++)
        sodium_memzero((void *)(uintptr_t)m->parts[i].p, m->parts[i].len);
}

// An attached trainer's keys are the first part, unless the message has the keys of masked sums
// only.
static enum neb_status take_keys(struct agent_exchange *x, const struct agent_ipc_msg *m) {
    bool masked = json_is_true(json_object_get(m->head, "sums"));
    return x->link.foreign && m->n_parts > masked
               ? agent_credential_take(x->link.credential, m->parts[0].p, m->parts[0].len)
               : NEB_OK;
}

// The agent lost an update with its disk, and this worker still has it.
static enum neb_status resubmit(struct agent_exchange *x, int64_t f, int64_t round) {
    bool has = f >= 0 && f < exchange_fragments(x) && x->frags[f].in_flight &&
               round == (int64_t)x->frags[f].round && x->flight[f].blob.len;
    if (has && x->pending.is == EXCHANGE_SENDS && x->pending.f == f)
        return NEB_OK; // it is submitted as soon as it is encoded
    return has ? exchange_resubmit(x, (int32_t)f) : NEB_OK;
}

// The agent does not know this connection. A trainer attaches again. A worker ends like after a
// crash, so that the agent starts another one.
static enum neb_status refused(struct agent_exchange *x, const char *why) {
    x->link.orphan = x->link.foreign;
    return x->link.foreign
               ? NEB_OK
               : neb_fail(NEB_ERR_AGAIN, "the agent does not take this process for its worker: %s",
                          why);
}

static enum neb_status on_agent(struct agent_exchange *x, struct agent_ipc_msg *m) {
    const char *ev = agent_ipc_str(m, "ev", "");
    bool taken = false;
    x->link.unanswered = 0;
    enum neb_status st =
        x->link.on_event ? x->link.on_event(x->link.on_event_user, m, &taken) : NEB_OK;
    if (st != NEB_OK || taken)
        ; // the mode has handled it
    else if (!strcmp(ev, "commit") && x->federated)
        st = exchange_take_commit(x, m);
    else if (!strcmp(ev, "resubmit") && x->federated)
        st = resubmit(x, agent_ipc_int(m, "fragment", -1), agent_ipc_int(m, "round", -1));
    else if (!strcmp(ev, "peers"))
        set_peers(x, m), x->attempts = (uint32_t)agent_ipc_int(m, "attempts", 0),
                         exchange_set_lost(x, json_is_true(json_object_get(m->head, "lost")) &&
                                                  (x->adopts || !x->restored));
    else if (!strcmp(ev, "renew") && x->shards)
        st = agent_shards_renew(x->shards);
    else if (!strcmp(ev, "ranks")) // one of them does not reach the agent
        st = neb_fail(NEB_ERR_IO, "%s", agent_ipc_str(m, "text", "a rank has lost the agent"));
    else if (!strcmp(ev, "stop"))
        x->stop = true;
    else if (!strcmp(ev, "again"))
        x->reattach = true;
    else if (!strcmp(ev, "answer") && !json_is_true(json_object_get(m->head, "ok")))
        st = refused(x, agent_ipc_str(m, "text", "no reason given"));
    else if (!strcmp(ev, "job") && x->link.foreign) {
        x->link.returned = true;
        st = take_keys(x, m); // those of a restarted agent, for ranks on other hosts
        wipe_parts(m);
        set_peers(x, m);
        x->stop = json_is_true(json_object_get(m->head, "stop"));
    }
    agent_ipc_msg_clear(m);
    return st;
}

enum neb_status exchange_drain(struct agent_exchange *x) {
    struct agent_ipc_client nobody;
    struct agent_ipc_msg m;
    for (;;) {
        enum neb_status st = agent_ipc_recv(x->link.ipc, &nobody, &m);
        if (st == NEB_ERR_AGAIN)
            return exchange_saved(x);
        if (st == NEB_OK)
            NEB_TRY(on_agent(x, &m));
    }
}

static enum neb_status idle(struct agent_exchange *x) {
    const struct agent_trainer *t = &x->trainer;
    return t->ops && t->ops->idle ? t->ops->idle(t->user) : NEB_OK;
}

enum neb_status exchange_wait(struct agent_exchange *x) {
    struct agent_ipc_msg m;
    neb_ns start = neb_now();
    exchange_heartbeat(x, false, 0);
    NEB_TRY(idle(x));
    enum neb_status st = agent_ipc_wait(x->link.ipc, poll_slice, &m);
    double waited_s = neb_seconds(neb_now() - start);
    x->stall_s += waited_s;
    for (int32_t f = 0; x->federated && f < exchange_fragments(x); f++)
        if (x->frags[f].in_flight && !x->frags[f].arrived && x->step >= x->frags[f].merge_step)
            x->flight[f].stall_s += waited_s;
    if (st == NEB_OK)
        return on_agent(x, &m);
    return st == NEB_ERR_TIMEOUT || st == NEB_ERR_INTERRUPTED || st == NEB_ERR_FORMAT ? NEB_OK : st;
}

enum neb_status exchange_hello(struct agent_exchange *x, const char *job) {
    const struct agent_ipc_part secret = {agent_credential_secret(x->link.credential),
                                          AGENT_SECRET_BYTES};
    json_t *head = json_pack("{s:s,s:s,s:b,s:I,s:i,s:s}", "op", "attach", "job", job, "foreign",
                             x->link.foreign, "pid", (json_int_t)getpid(), "protocol",
                             agent_ipc_protocol(), "build", neb_build());
    if (head && x->link.ranks > 1) {
        json_object_set_new(head, "ranks", json_integer(x->link.ranks));
        json_object_set_new(head, "session", json_integer(x->link.session));
    }
    return agent_ipc_send(x->link.ipc, NULL, head, &secret, 1);
}

// Connects over the agent's socket on its own host, else over TCP to the agent's address for
// workers.
static enum neb_status reach_agent(struct agent_exchange *x, const char *socket_path,
                                   const char **at) {
    const struct agent_ipc_remote *r = agent_credential_remote(x->link.credential);
    char host[128] = "?";
    *at = socket_path;
    if (x->link.foreign || agent_ipc_is_here(socket_path))
        return agent_ipc_connect(x->link.zctx, socket_path, &x->link.ipc);
    gethostname(host, sizeof host - 1);
    *at = r->endpoint;
    if (!*r->endpoint)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "rank 0 runs on host %s, where no agent listens at %s: start the agent "
                        "with --workers ADDRESS (an address of its host that %s can reach), or "
                        "start rank 0 on the agent's host",
                        host, socket_path, host);
    neb_info("the agent is not on host %s: connecting over TCP to %s", host, r->endpoint);
    return agent_ipc_remote_connect(x->link.zctx, r, &x->link.ipc);
}

// The agent may be busy with gigabytes of an open round. On the same host the worker waits as long
// as the agent waits for a worker's first message. NEB_ERR_AGAIN ends the process like a crash,
// without a report: the agent would read the report after the attach, and take it for an error of
// the job.
static enum neb_status await_job(struct agent_exchange *x, const char *socket_path, const char *at,
                                 struct agent_ipc_msg *m) {
    const neb_ns slice = 10 * NEB_S, end = neb_now() + 30 * 60 * NEB_S;
    bool beside = !x->link.foreign && at == socket_path;
    enum neb_status st = agent_ipc_wait(x->link.ipc, slice, m);
    while (beside && (st == NEB_ERR_TIMEOUT || st == NEB_ERR_INTERRUPTED) && neb_now() < end &&
           agent_ipc_is_here(socket_path)) {
        if (x->link.world && x->link.world->ops->alive)
            x->link.world->ops->alive(x->link.world);
        st = agent_ipc_wait(x->link.ipc, slice, m);
    }
    if (st == NEB_OK)
        return NEB_OK;
    return neb_fail(st == NEB_ERR_TIMEOUT && !x->link.foreign ? NEB_ERR_AGAIN : st,
                    "no answer from the agent at %s%s", at,
                    at == socket_path ? ""
                                      : "; is that address reachable, also through firewalls?");
}

// init_from is read at the first start only: a checkpoint holds the full model, and the file of
// init_from may be gone later.
static enum neb_status choose_start(struct agent_exchange *x) {
    char dir[NEB_PATH_MAX];
    bool any = false;
    NEB_TRY(neb_path(dir, sizeof dir, x->dir, "checkpoint"));
    NEB_TRY(intra_ckpt_any(dir, &any));
    x->had_checkpoint = any;
    x->skips_init = any && x->job.init_from[0];
    snprintf(x->init_from, sizeof x->init_from, "%s", x->job.init_from);
    if (any)
        x->job.init_from[0] = 0;
    return NEB_OK;
}

static void take_numbers(struct agent_exchange *x, const struct agent_ipc_msg *m) {
    json_t *taken = json_object_get(m->head, "taken"),
           *suspect = json_object_get(m->head, "suspect"), *t;
    size_t i;
    x->cluster = (int)agent_ipc_int(m, "cluster", -1);
    set_peers(x, m);
    x->lost = json_is_true(json_object_get(m->head, "lost"));
    x->attempts = (uint32_t)agent_ipc_int(m, "attempts", 0);
    x->stop = json_is_true(json_object_get(m->head, "stop"));
    json_array_foreach(suspect, i, t) {
        if (i < INTER_FRAGMENTS_MAX)
            x->kept[i].suspect = (uint32_t)json_integer_value(t);
    }
    json_array_foreach(taken, i, t) {
        if (i < INTER_FRAGMENTS_MAX && json_is_true(t))
            x->taken |= 1ull << i;
    }
}

static enum neb_status take_job(struct agent_exchange *x, const struct agent_ipc_msg *m,
                                const char *job) {
    const char *dir = agent_ipc_str(m, "dir", "");
    bool masked = json_is_true(json_object_get(m->head, "sums"));
    const struct agent_ipc_part *sums = masked && m->n_parts ? &m->parts[m->n_parts - 1] : NULL;
    bool shared = x->link.world && !strcmp(x->link.world->ops->name, "mpi");
    take_numbers(x, m);
    if (strcmp(agent_ipc_str(m, "ev", ""), "job") || x->cluster < 0 || !*dir ||
        strlen(dir) >= sizeof x->dir)
        return neb_fail(NEB_ERR_STATE, "the agent refuses a trainer for job %s: %s", job,
                        agent_ipc_str(m, "text", "no reason given"));
    NEB_TRY(agent_job_from_json(json_object_get(m->head, "spec"), &x->job));
    if (x->cluster >= x->job.n_clusters)
        return neb_fail(NEB_ERR_FORMAT,
                        "the agent assigns cluster %d, but the job has %d clusters: do both run "
                        "the same version?",
                        x->cluster, x->job.n_clusters);
    if (access(dir, W_OK) != 0)
        return neb_fail(NEB_ERR_IO,
                        "rank 0 cannot write to the job's folder %s: %s. If it runs on another "
                        "host than the agent, both hosts need a shared file system with this "
                        "folder",
                        dir, strerror(errno));
    NEB_TRY(exchange_masked_keys(x, sums ? sums->p : NULL, sums ? sums->len : 0));
    memcpy(x->dir, dir, strlen(dir) + 1);
    NEB_TRY(choose_start(x));
    NEB_TRY(take_keys(x, m));
    return agent_credential_vault(x->link.credential, shared || x->link.foreign, &x->vault);
}

enum neb_status exchange_attach(struct agent_exchange *x, const char *socket_path,
                                const char *job) {
    struct agent_ipc_msg m;
    const char *at;
    if (!(x->link.zctx = zmq_ctx_new()))
        return neb_fail(NEB_ERR_IO, "cannot create a ZeroMQ context: %s",
                        zmq_strerror(zmq_errno()));
    NEB_TRY(reach_agent(x, socket_path, &at));
    NEB_TRY(exchange_hello(x, job));
    NEB_TRY(await_job(x, socket_path, at, &m));
    enum neb_status st = take_job(x, &m, job);
    wipe_parts(&m);
    agent_ipc_msg_clear(&m);
    return st;
}

void exchange_hang_up(struct agent_exchange *x) {
    agent_ipc_destroy(&x->link.ipc);
    if (x->link.zctx)
        zmq_ctx_term(x->link.zctx); // waits until the report has left
    x->link.zctx = NULL;
}

void exchange_leave(struct agent_exchange *x) {
    exchange_hang_up(x);
    if (x->merges.file)
        fclose(x->merges.file);
    free(x->merges.log);
    sec_vault_destroy(&x->vault);
    agent_credential_destroy(&x->link.credential);
}

// Without this wait a worker would train past its first exchanges while links are set up.
enum neb_status exchange_wait_for_peers(struct agent_exchange *x) {
    const neb_ns patience = 15 * NEB_S;
    struct agent_ipc_msg m;
    for (neb_ns end = neb_now() + patience;
         x->link.alive < x->link.others && !x->stop && neb_now() < end;) {
        NEB_TRY(idle(x));
        enum neb_status st = agent_ipc_wait(x->link.ipc, poll_slice, &m);
        if (st == NEB_OK)
            NEB_TRY(on_agent(x, &m));
    }
    if (x->link.alive < x->link.others)
        neb_warn("%d of %d other clusters are not reachable; training starts without them",
                 x->link.others - x->link.alive, x->link.others);
    return NEB_OK;
}
