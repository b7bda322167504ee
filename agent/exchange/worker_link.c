// SPDX-License-Identifier: Apache-2.0
// A worker and its agent: messages, and what is sent and merged between two steps. The built-in
// worker (agent/train/worker.c) and libnebula (agent/lib/libnebula.c) both run this code; they
// differ in who makes the steps.
#include "agent/base/log.h"
#include "agent/base/moved.h"
#include "agent/exchange/worker.h"
#include "agent/job/json.h"

#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

static const neb_ns poll_slice = 200 * NEB_MS;

void worker_metrics(struct agent_worker *w, json_t *line) {
    json_t *head = json_pack("{s:s,s:o}", "op", "metrics", "line", line);
    if (head && agent_ipc_send(w->ipc, NULL, head, NULL, 0) != NEB_OK)
        neb_debug("a metrics line was dropped");
}

void worker_send_step(struct agent_worker *w, const struct intra_step_stats *s,
                      double tokens_per_s) {
    const struct worker_sums *x =
        &w->sums; // for the report to other sites: agent/daemon/disclose.h
    worker_metrics(
        w, json_pack("{s:s,s:I,s:I,s:o,s:o,s:o,s:f,s:f,s:f,s:f,s:[f,I,f,I,I]}", "kind", "step",
                     "step", (json_int_t)w->step, "tokens", (json_int_t)w->all_tokens, "loss",
                     agent_json_number(s->loss), "lr", agent_json_number((double)s->update.lr),
                     "grad_norm", agent_json_number(s->update.grad_norm), "tokens_per_s",
                     tokens_per_s, "stall_s", w->stall_s, "train_s", w->train_s, "stalled_s",
                     w->stall_s - w->stall_told, // since the previous line
                     "sums", x->loss, (json_int_t)x->losses, x->grad_norm, (json_int_t)x->norms,
                     (json_int_t)x->steps));
    w->stall_told = w->stall_s;
}

void worker_add_sums(struct agent_worker *w, double loss, double grad_norm) {
    struct worker_sums *x = &w->sums;
    bool is_loss = isfinite(loss), is_norm = isfinite(grad_norm);
    x->loss += is_loss ? loss : 0;
    x->losses += is_loss;
    x->grad_norm += is_norm ? grad_norm : 0;
    x->norms += is_norm;
    x->steps++;
}

void worker_check_step(struct agent_worker *w, const struct intra_step_stats *s) {
    w->stepped = true;
    worker_add_sums(w, s->loss, s->update.grad_norm);
    enum { FIRST = 8 }; // then at each doubling; a single one may be an overflow in bf16
    char text[256];
    w->idle_steps = isfinite(s->update.grad_norm) ? 0 : w->idle_steps + 1;
    if (w->idle_steps < FIRST || w->idle_steps & (w->idle_steps - 1))
        return;
    snprintf(text, sizeof text,
             "%u steps in a row have learned nothing: their gradients are not finite. Training has "
             "diverged: restart it with a lower optim.lr or weight_decay, or with optim.clip",
             w->idle_steps);
    neb_warn("%s", text);
    worker_metrics(w, json_pack("{s:s,s:s}", "kind", "fault", "text", text));
}

void worker_send_eval(struct agent_worker *w, double loss, json_t *by_source) {
    worker_metrics(w, json_pack("{s:s,s:I,s:o,s:O}", "kind", "eval", "step", (json_int_t)w->step,
                                "loss", agent_json_number(loss), "sources", by_source));
}

// moves: bytes have moved since the last heartbeat.
static void say_heartbeat(struct agent_worker *w, bool moves) {
    json_t *heartbeat = json_pack("{s:s,s:f,s:b}", "op", "heartbeat", "allow_s",
                                  w->heartbeat_allow_s, "moves", moves);
    uint64_t left = w->saver ? intra_ckpt_async_left(w->saver) : 0;
    json_object_set_new(heartbeat, "step", json_integer(w->step));
    if (left)
        json_object_set_new(heartbeat, "left", json_integer((json_int_t)left));
    if (agent_ipc_send(w->ipc, NULL, heartbeat, NULL, 0) != NEB_OK)
        neb_debug("a heartbeat was dropped");
}

void worker_heartbeat(struct agent_worker *w, bool step, double steps) {
    double least_s = (double)w->job.hang_after_s,
           allow_s = WORKER_HANG_STEPS * (step ? 1 : steps) * w->step_s,
           last_s = w->heartbeat_allow_s;
    neb_ns now = neb_now();
    if (!step || !w->stepped)
        least_s *= WORKER_HANG_OTHER;
    allow_s = allow_s > least_s ? allow_s : least_s;
    w->heartbeat_step = step;
    bool alike = allow_s < 1.5 * last_s && allow_s > last_s / 1.5;
    if (w->foreign || !(least_s > 0) || (alike && now - w->heartbeat_at < NEB_S))
        return;
    w->heartbeat_at = now;
    w->heartbeat_allow_s = allow_s;
    say_heartbeat(w, false);
}

static void moved(void *user) {
    struct agent_worker *w = user;
    neb_ns now = neb_now();
    if (w->heartbeat_step)
        return; // the duration of a step is known
    if (w->world && w->world->ops->alive)
        w->world->ops->alive(w->world);
    if (now - w->heartbeat_at < NEB_S)
        return;
    w->heartbeat_at = now;
    say_heartbeat(w, true);
}

void worker_report_moves(struct agent_worker *w) {
    if (w)
        worker_heartbeat(w, false, 0);
    neb_moved_listen(w ? moved : NULL, w);
}

void worker_set_lost(struct agent_worker *w, bool lost) {
    w->lost = lost;
    w->adopts |= lost;
    if (lost)
        w->incarnation = w->attempts;
}

// ---- messages from the agent ----

static void set_peers(struct agent_worker *w, const struct agent_ipc_msg *m) {
    w->alive = (int)agent_ipc_int(m, "alive", 0);
    w->others = (int)agent_ipc_int(m, "others", w->job.n_clusters - 1);
    w->expected = json_is_true(json_object_get(m->head, "expected"));
}

// Wipes the keys that the answer to an attach contains.
static void wipe_parts(struct agent_ipc_msg *m) {
    for (size_t i = 0; i < m->n_parts; i++)
        sodium_memzero((void *)(uintptr_t)m->parts[i].p, m->parts[i].len);
}

// The agent lost an update with its disk, and this worker still has it.
static enum neb_status resubmit(struct agent_worker *w, int64_t f, int64_t round) {
    bool has = f >= 0 && f < w->job.sync.fragments && w->frags[f].in_flight &&
               round == (int64_t)w->frags[f].round && w->flight[f].blob.len;
    return has ? worker_resubmit(w, (int32_t)f) : NEB_OK;
}

static enum neb_status on_agent(struct agent_worker *w, struct agent_ipc_msg *m) {
    const char *ev = agent_ipc_str(m, "ev", "");
    bool taken = false;
    w->unanswered = 0;
    enum neb_status st = w->on_event ? w->on_event(w, m, &taken) : NEB_OK;
    if (st != NEB_OK || taken)
        ; // the mode has handled it
    else if (!strcmp(ev, "commit") && w->federated)
        st = worker_take_commit(w, m);
    else if (!strcmp(ev, "resubmit") && w->federated)
        st = resubmit(w, agent_ipc_int(m, "fragment", -1), agent_ipc_int(m, "round", -1));
    else if (!strcmp(ev, "peers"))
        set_peers(w, m), w->attempts = (uint32_t)agent_ipc_int(m, "attempts", 0),
                         worker_set_lost(w, json_is_true(json_object_get(m->head, "lost")) &&
                                                (w->adopts || !w->restored));
    else if (!strcmp(ev, "stop"))
        w->stop = true;
    else if (!strcmp(ev, "again"))
        w->reattach = true;
    else if (!strcmp(ev, "answer") && w->foreign && !json_is_true(json_object_get(m->head, "ok")))
        w->orphan = true;
    else if (!strcmp(ev, "job") && w->foreign) {
        w->returned = true;
        wipe_parts(m); // this process already has the keys
        set_peers(w, m);
        w->stop = json_is_true(json_object_get(m->head, "stop"));
    }
    agent_ipc_msg_clear(m);
    return st;
}

enum neb_status worker_drain(struct agent_worker *w) {
    struct agent_ipc_client nobody;
    struct agent_ipc_msg m;
    for (;;) {
        enum neb_status st = agent_ipc_recv(w->ipc, &nobody, &m);
        if (st == NEB_ERR_AGAIN)
            return worker_saved(w);
        if (st == NEB_OK)
            NEB_TRY(on_agent(w, &m));
    }
}

enum neb_status worker_wait(struct agent_worker *w) {
    struct agent_ipc_msg m;
    neb_ns start = neb_now();
    worker_heartbeat(w, false, 0);
    if (w->ops.idle)
        NEB_TRY(w->ops.idle(w));
    enum neb_status st = agent_ipc_wait(w->ipc, poll_slice, &m);
    double waited_s = neb_seconds(neb_now() - start);
    w->stall_s += waited_s;
    for (int32_t f = 0; w->federated && f < w->job.sync.fragments; f++)
        if (w->frags[f].in_flight && !w->frags[f].arrived && w->step >= w->frags[f].merge_step)
            w->flight[f].stall_s += waited_s;
    if (st == NEB_OK)
        return on_agent(w, &m);
    return st == NEB_ERR_TIMEOUT || st == NEB_ERR_INTERRUPTED || st == NEB_ERR_FORMAT ? NEB_OK : st;
}

enum neb_status worker_hello(struct agent_worker *w, const char *job) {
    const struct agent_ipc_part secret = {agent_credential_secret(w->credential),
                                          AGENT_SECRET_BYTES};
    return agent_ipc_send(w->ipc, NULL,
                          json_pack("{s:s,s:s,s:b,s:I,s:i,s:s}", "op", "attach", "job", job,
                                    "foreign", w->foreign != NULL, "pid", (json_int_t)getpid(),
                                    "protocol", agent_ipc_protocol(), "build", neb_build()),
                          &secret, 1);
}

// Connects over the agent's socket on its own host, else over TCP to the agent's address for
// workers.
static enum neb_status reach_agent(struct agent_worker *w, const char *socket_path,
                                   const char **at) {
    const struct agent_ipc_remote *r = agent_credential_remote(w->credential);
    char host[128] = "?";
    *at = socket_path;
    if (w->foreign || agent_ipc_is_here(socket_path))
        return agent_ipc_connect(w->zctx, socket_path, &w->ipc);
    gethostname(host, sizeof host - 1);
    *at = r->endpoint;
    if (!*r->endpoint)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "rank 0 runs on host %s, where no agent listens at %s: start the agent "
                        "with --workers ADDRESS (an address of its host that %s can reach), or "
                        "start rank 0 on the agent's host",
                        host, socket_path, host);
    neb_info("the agent is not on host %s: connecting over TCP to %s", host, r->endpoint);
    return agent_ipc_remote_connect(w->zctx, r, &w->ipc);
}

// The agent may be busy with gigabytes of an open round. On the same host the worker waits as long
// as the agent waits for a worker's first message. NEB_ERR_AGAIN ends the process like a crash: the
// agent would read a report after the attach, and take it for an error of the job.
static enum neb_status await_job(struct agent_worker *w, const char *socket_path, const char *at,
                                 struct agent_ipc_msg *m) {
    const neb_ns slice = 10 * NEB_S, end = neb_now() + 30 * 60 * NEB_S;
    bool beside = !w->foreign && at == socket_path;
    enum neb_status st = agent_ipc_wait(w->ipc, slice, m);
    while (beside && (st == NEB_ERR_TIMEOUT || st == NEB_ERR_INTERRUPTED) && neb_now() < end &&
           agent_ipc_is_here(socket_path)) {
        if (w->world && w->world->ops->alive)
            w->world->ops->alive(w->world);
        st = agent_ipc_wait(w->ipc, slice, m);
    }
    if (st == NEB_OK)
        return NEB_OK;
    return neb_fail(st == NEB_ERR_TIMEOUT && !w->foreign ? NEB_ERR_AGAIN : st,
                    "no answer from the agent at %s%s", at,
                    at == socket_path ? ""
                                      : "; is that address reachable, also through firewalls?");
}

enum neb_status worker_newest(struct agent_worker *w, const char *dir, struct intra_ckpt **out) {
    char text[NEB_PATH_MAX + 128];
    enum neb_status st = intra_ckpt_take_latest_in(worker_vault(w), dir, out);
    if (st != NEB_ERR_NOT_FOUND || !w->had_checkpoint)
        return st;
    w->had_checkpoint = false; // report it once
    snprintf(text, sizeof text,
             "every checkpoint in %s is damaged: this cluster starts without one, and takes the "
             "state of the other clusters if there are any",
             dir);
    neb_log(NEB_LOG_ERROR, "%s", text);
    worker_metrics(w, json_pack("{s:s,s:s}", "kind", "fault", "text", text));
    return w->skips_init ? NEB_ERR_AGAIN : st;
}

// init_from is read at the first start only: a checkpoint holds the full model, and the file of
// init_from may be gone later.
static enum neb_status choose_start(struct agent_worker *w) {
    char dir[NEB_PATH_MAX];
    bool any = false;
    NEB_TRY(neb_path(dir, sizeof dir, w->dir, "checkpoint"));
    NEB_TRY(intra_ckpt_any(dir, &any));
    w->had_checkpoint = any;
    w->skips_init = any && w->job.init_from[0];
    if (any)
        w->job.init_from[0] = 0;
    return NEB_OK;
}

enum neb_status worker_attach(struct agent_worker *w, const char *socket_path, const char *job) {
    struct agent_ipc_msg m;
    const char *at;
    if (!(w->zctx = zmq_ctx_new()))
        return neb_fail(NEB_ERR_IO, "cannot create a ZeroMQ context: %s",
                        zmq_strerror(zmq_errno()));
    NEB_TRY(reach_agent(w, socket_path, &at));
    NEB_TRY(worker_hello(w, job));
    NEB_TRY(await_job(w, socket_path, at, &m));
    enum neb_status st = NEB_OK;
    const char *dir = agent_ipc_str(&m, "dir", "");
    w->cluster = (int)agent_ipc_int(&m, "cluster", -1);
    set_peers(w, &m);
    w->lost = json_is_true(json_object_get(m.head, "lost"));
    w->attempts = (uint32_t)agent_ipc_int(&m, "attempts", 0);
    json_t *taken = json_object_get(m.head, "taken"), *suspect = json_object_get(m.head, "suspect"),
           *t;
    size_t i;
    json_array_foreach(suspect, i, t) {
        if (i < INTER_FRAGMENTS_MAX)
            w->kept[i].suspect = (uint32_t)json_integer_value(t);
    }
    json_array_foreach(taken, i, t) {
        if (i < INTER_FRAGMENTS_MAX && json_is_true(t))
            w->taken |= 1ull << i;
    }
    w->stop = json_is_true(json_object_get(m.head, "stop"));
    bool masked = json_is_true(json_object_get(m.head, "sums"));
    const struct agent_ipc_part *sums = masked && m.n_parts ? &m.parts[m.n_parts - 1] : NULL;
    if (strcmp(agent_ipc_str(&m, "ev", ""), "job") || w->cluster < 0 || !*dir ||
        strlen(dir) >= sizeof w->dir)
        st = neb_fail(NEB_ERR_STATE, "the agent refuses a trainer for job %s: %s", job,
                      agent_ipc_str(&m, "text", "no reason given"));
    else
        st = agent_job_from_json(json_object_get(m.head, "spec"), &w->job);
    if (st == NEB_OK && w->cluster >= w->job.n_clusters)
        st = neb_fail(NEB_ERR_FORMAT,
                      "the agent assigns cluster %d, but the job has %d clusters: do both run the "
                      "same version?",
                      w->cluster, w->job.n_clusters);
    if (st == NEB_OK && access(dir, W_OK) != 0)
        st = neb_fail(NEB_ERR_IO,
                      "rank 0 cannot write to the job's folder %s: %s. If it runs on another host "
                      "than the agent, both hosts need a shared file system with this folder",
                      dir, strerror(errno));
    if (st == NEB_OK)
        st = worker_masked_keys(w, sums ? sums->p : NULL, sums ? sums->len : 0);
    if (st == NEB_OK)
        memcpy(w->dir, dir, strlen(dir) + 1);
    if (st == NEB_OK)
        st = choose_start(w);
    if (st == NEB_OK && w->foreign && m.n_parts > (sums != NULL))
        st = agent_credential_take_seal(w->credential, m.parts[0].p, m.parts[0].len);
    if (st == NEB_OK)
        st = agent_credential_vault(w->credential,
                                    (w->world && !strcmp(w->world->ops->name, "mpi")) || w->foreign,
                                    &w->vault);
    wipe_parts(&m);
    agent_ipc_msg_clear(&m);
    return st;
}
// ---- sends and merges ----

static const struct agent_merge *logged(const struct agent_worker *w, int32_t f) {
    for (size_t i = 0; i < w->n_log; i++)
        if (w->log[i].fragment == (uint32_t)f && w->log[i].round == w->frags[f].round)
            return &w->log[i];
    return NULL;
}

enum neb_status worker_skip_steps(struct agent_worker *w, int64_t n) {
    NEB_TRY(w->ops.skip(w, n));
    for (int32_t f = 0; w->federated && f < w->job.sync.fragments; f++) {
        int64_t *base = &w->kept[f].steps_base;
        if (*base <= w->step)
            *base += n;
        else if (*base < w->step + n) {
            *base = w->step + n; // these steps are committed and must not be made again
            worker_count_from_here(w, f);
        }
    }
    w->step += n;
    w->lost_steps += n;
    return NEB_OK;
}

// Takes one decision about one fragment. *more: call again at this step. *ready: the next step may
// begin.
static enum neb_status exchange_one(struct agent_worker *w, int32_t f, bool *more, bool *ready) {
    struct agent_fragment *g = &w->frags[f];
    const struct agent_flight *t = &w->flight[f];
    const struct agent_merge *l = logged(w, f); // a repeated run merges where the first one did
    // Others continued without us. If the commit contains our own update, the run is repeated: the
    // commit waits for our send, even if that is due at this step and the merge is logged.
    bool foreign = t->here && !t->mine && !t->rejected;
    *more = true;
    if (w->lost && t->here && !g->in_flight && !g->finished) {
        if (t->cursor > w->step)
            NEB_TRY(worker_skip_steps(w, t->cursor - w->step));
        return worker_merge(w, f);
    }
    if (!w->lost && t->here && t->former && t->cursor > w->step && (!l || l->step <= w->step))
        return worker_take_over(w, f);
    if (w->lost) { // nothing is computed until the state is complete
        *more = *ready = false;
        return NEB_OK;
    }
    if (!g->in_flight && !g->finished && (l ? l->foreign && l->step <= w->step : foreign)) {
        if (t->here)
            return worker_merge(w, f);
        *more = *ready = false; // wait until the agent brings the commit
        return NEB_OK;
    }
    // After an outage the update in flight is outdated: the others' steps of the outage would enter
    // this round, and ours the next, each in full. A newer update replaces it, so that they are
    // averaged. Not with masks: two masked updates of one round reveal their difference.
    if (g->in_flight && !g->arrived && w->expected && !l && !w->sum &&
        t->retries < INTER_RETRIES_MAX && g->missed > (uint32_t)w->job.sync.merge_after) {
        *more = false;
        return worker_send(w, f);
    }
    enum agent_decision d = agent_schedule_decide(&w->schedule, w->frags, f, w->step, w->expected,
                                                  w->kept[f].counted_miss);
    *more = d == AGENT_SEND || d == AGENT_MERGE || d == AGENT_MISS;
    if (d == AGENT_SEND)
        return worker_send(w, f);
    if (d == AGENT_MERGE)
        return worker_merge(w, f);
    if (d == AGENT_WAIT)
        *ready = false;
    if (d == AGENT_MISS) {
        g->missed++;
        w->kept[f].counted_miss = w->step;
    }
    return NEB_OK;
}

// A merge may give an earlier fragment its turn, so repeat until nothing changes: the result must
// not depend on when a commit arrived, because a repeated run gets the commits in another order.
enum neb_status worker_exchange(struct agent_worker *w, bool *ready) {
    *ready = true;
    for (bool changed = w->federated; changed;) {
        changed = false;
        *ready = true;
        for (int32_t f = 0; f < w->job.sync.fragments; f++) {
            const struct agent_fragment *g = &w->frags[f], before = *g;
            worker_at_cursor(w, f);
            for (bool more = true; more;)
                NEB_TRY(exchange_one(w, f, &more, ready));
            changed = changed || g->round != before.round || g->in_flight != before.in_flight;
            // a round that an earlier run merged at this step must be merged here, connected or not
            if (g->in_flight && !g->arrived && w->step >= g->merge_step && logged(w, f))
                *ready = false;
        }
    }
    return NEB_OK;
}

// Without this wait a worker would train past its first exchanges while links are set up.
enum neb_status worker_wait_for_peers(struct agent_worker *w) {
    const neb_ns patience = 15 * NEB_S;
    struct agent_ipc_msg m;
    for (neb_ns end = neb_now() + patience; w->alive < w->others && !w->stop && neb_now() < end;) {
        if (w->ops.idle)
            NEB_TRY(w->ops.idle(w));
        enum neb_status st = agent_ipc_wait(w->ipc, poll_slice, &m);
        if (st == NEB_OK)
            NEB_TRY(on_agent(w, &m));
    }
    if (w->alive < w->others)
        neb_warn("%d of %d other clusters are not reachable; training starts without them",
                 w->others - w->alive, w->others);
    return NEB_OK;
}

bool worker_finished(const struct agent_worker *w) {
    return w->federated ? agent_schedule_finished(&w->schedule, w->frags) : w->step >= w->job.steps;
}

enum neb_status worker_params_digest(const struct agent_worker *w, char hex[33]) {
    struct kern_digest d;
    uint8_t b[16];
    if (w->federated) {
        NEB_TRY(worker_outer_digest(w, -1, &d));
    } else { // without an exchange: of the parameters only
        const struct intra_model *m = w->model;
        d = kern_digest_part(m->params, m->params, 0, m->n_params);
    }
    neb_put_u64(b, d.lo);
    neb_put_u64(b + 8, d.hi);
    neb_hex(b, sizeof b, hex);
    return NEB_OK;
}

// How many sums may reveal something about this cluster: at most one per round of a fragment, and
// at most as many as updates were masked. After the loss of a disk only the rounds are known.
static uint64_t releases(const struct agent_worker *w) {
    uint64_t rounds = 0;
    for (int32_t f = 0; f < w->job.sync.fragments; f++)
        rounds += w->frags[f].round + w->frags[f].in_flight;
    return rounds > w->masked_sent ? rounds : w->masked_sent;
}

enum neb_status worker_results(const struct agent_worker *w, const char *device, double eval_loss,
                               bool done, json_t **out) {
    char hex[33];
    NEB_TRY(worker_params_digest(w, hex));
    *out = json_pack(
        "{s:s,s:I,s:I,s:I,s:o,s:o,s:o,s:f,s:f,s:f,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:i}", "device",
        device, "steps", (json_int_t)w->step, "steps_left_out", (json_int_t)w->steps_left_out,
        "tokens", (json_int_t)w->all_tokens, "loss_first", agent_json_number(w->loss_first),
        "loss_last", agent_json_number(w->loss_last), "eval_loss", agent_json_number(eval_loss),
        "stall_s", w->stall_s, "train_s", w->train_s, "sync_s", w->sync_s, "params_digest", hex,
        "params", (json_int_t)w->model->n_params, "trainable_params",
        (json_int_t)w->model->n_trainable, "rounds", (json_int_t)w->rounds, "lost_steps",
        (json_int_t)w->lost_steps, "payload_bytes", (json_int_t)w->payload_bytes, "payload_params",
        (json_int_t)w->payload_params, "stopped", !done, "threads", kern_pool_threads(w->K->pool));
    if (w->sum && json_object_set_new(*out, "releases", json_integer((json_int_t)releases(w))) != 0)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the report");
    return NEB_OK;
}

enum neb_status worker_report(struct agent_worker *w, json_t *results, json_t *more) {
    bool whole = results && (!more || json_object_update(results, more) == 0);
    json_decref(more);
    if (!whole) {
        json_decref(results);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the report");
    }
    return agent_ipc_send(w->ipc, NULL, json_pack("{s:s,s:o}", "op", "report", "report", results),
                          NULL, 0);
}
