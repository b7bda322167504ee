// SPDX-License-Identifier: Apache-2.0
// Between the steps of an attached trainer: does what is due, and tends the agent.
#include "agent/base/log.h"
#include "agent/lib/state.h"

#include <string.h>

enum neb_status lib_save_now(struct nebula *n) {
    NEB_TRY(lib_late_figures(n, true));
    NEB_TRY(exchange_save(&n->x));
    return lib_hook(n);
}

static enum neb_status on_return(struct nebula *n) {
    struct agent_exchange *x = &n->x;
    x->link.returned = false;
    neb_info("attached again to the agent");
    NEB_TRY(lib_hand_keys(n));
    NEB_TRY(lib_manifest_send(n));
    if (!x->federated || !x->shards)
        return NEB_OK;
    NEB_TRY(exchange_complete(x, true));
    NEB_TRY(exchange_send_shape(x));
    NEB_TRY(agent_shards_renew(x->shards));
    for (int32_t f = 0; f < exchange_fragments(x); f++)
        NEB_TRY(x->frags[f].in_flight && !x->frags[f].arrived ? exchange_resubmit(x, f)
                                                              : exchange_request_commit(x, f));
    return NEB_OK;
}

// Queries a silent agent from time to time. While it does not answer, no commit is expected, so
// that training continues.
static enum neb_status tend_agent(struct nebula *n) {
    struct agent_exchange *x = &n->x;
    neb_ns now = neb_now();
    if (x->link.returned)
        NEB_TRY(on_return(n));
    if (x->link.orphan || now - x->link.asked > n->ask_after) {
        x->link.asked = now;
        x->link.unanswered = x->link.unanswered ? x->link.unanswered : now;
        enum neb_status st =
            x->link.orphan // the agent was restarted
                ? exchange_hello(x, n->job)
                : agent_ipc_send(x->link.ipc, NULL, json_pack("{s:s}", "op", "hello"), NULL, 0);
        x->link.orphan = false;
        if (st != NEB_OK && st != NEB_ERR_AGAIN)
            return st;
    }
    // the time since the query: a busy trainer has sent none
    if (x->link.expected && x->link.unanswered && now - x->link.unanswered > n->silent_after) {
        neb_warn("the agent at %s has not answered for %d s; training continues without exchanges "
                 "until it does",
                 n->socket, (int)((now - x->link.unanswered) / NEB_S));
        x->link.expected = false;
        x->link.alive = 0;
    }
    return NEB_OK;
}

enum neb_status lib_settle(struct nebula *n) {
    struct agent_exchange *x = &n->x;
    for (bool ready = false;;) {
        NEB_TRY(exchange_drain(x));
        NEB_TRY(tend_agent(n));
        NEB_TRY(exchange_step(x, &ready));
        if (x->reattach)
            return neb_fail(
                NEB_ERR_STATE,
                "the state of the other clusters replaces that of this cluster: close the handle, "
                "attach again, and continue from the step that nebula_begin gives");
        if (exchange_finished(x)) {
            n->state = NEBULA_DONE;
            return NEB_OK;
        }
        if (x->stop) {
            n->state = NEBULA_STOP;
            return NEB_OK;
        }
        if (ready && x->step < x->job.steps)
            return NEB_OK;
        NEB_TRY(exchange_wait(x));
    }
}

// The agent's answer to the list of tensors. snapshot: the state of the cluster that the job begins
// from lies in the job's folder.
static enum neb_status on_event(void *user, const struct agent_ipc_msg *m, bool *taken) {
    struct nebula *n = user;
    if (strcmp(agent_ipc_str(m, "ev", ""), "manifest") != 0)
        return NEB_OK;
    *taken = true;
    if (!json_is_true(json_object_get(m->head, "ok")))
        return neb_fail(NEB_ERR_INVALID, "%s", agent_ipc_str(m, "text", "the agent refuses"));
    n->compared = true;
    // A state that the loop loads is newer than the first parameters of the job.
    if (!n->loading && json_is_true(json_object_get(m->head, "snapshot")))
        n->x.taken = UINT64_MAX;
    return NEB_OK;
}

// No step is made before all clusters are known to have the same tensors.
static enum neb_status compare_clusters(struct nebula *n) {
    struct agent_exchange *x = &n->x;
    x->link.on_event = on_event;
    x->link.on_event_user = n;
    NEB_TRY(lib_manifest_send(n));
    x->link.asked = neb_now();
    // a stopped job whose clusters have agreed before is answered at once, and is saved
    for (neb_ns end = neb_now() + 2 * NEB_S; !n->compared;) {
        if (x->stop && neb_now() > end)
            return neb_fail(NEB_ERR_STATE, "the job was stopped before all clusters had attached");
        NEB_TRY(exchange_wait(x));
        NEB_TRY(exchange_drain(x));
        NEB_TRY(tend_agent(n));
    }
    return NEB_OK;
}

// With `init: {from: CLUSTER}` the state of round 0 must be on disk with its digests: the agent of
// that cluster passes it on, and no other agent fetches it later for a loop that has begun.
static enum neb_status show_first(struct nebula *n) {
    struct agent_exchange *x = &n->x;
    if (!x->job.attached || !x->federated || x->restored)
        return NEB_OK;
    for (int32_t f = 0; f < exchange_fragments(x); f++)
        NEB_TRY(agent_shards_digest(x->shards, f, &x->kept[f].last_digest));
    return x->job.init == AGENT_INIT_FROM ? lib_save_now(n) : NEB_OK;
}

// The first read draws the initial values of exchanged tensors. This draws the values of all other
// tensors. A loop that loads a state already has its parameters.
static enum neb_status draw_alone(struct nebula *n) {
    for (int32_t i = 0; n->model && !n->loading && i < n->x.trainer.n_units; i++) {
        struct agent_move m = lib_move(n, i);
        if (!n->x.federated || n->fragment[i] < 0)
            NEB_TRY(lib_draw(n, &m, 1));
    }
    return NEB_OK;
}

enum neb_status lib_prepare(struct nebula *n) {
    NEB_TRY(lib_tensors_settle(n));
    NEB_TRY(lib_trainer_create(n));
    NEB_TRY(lib_digest_frozen(n));
    NEB_TRY(lib_digest_values(n));
    n->initial = n->x.federated && !n->loading;
    return draw_alone(n);
}

enum neb_status lib_create(struct nebula *n) {
    NEB_TRY(compare_clusters(n));
    if (n->x.federated)
        NEB_TRY(exchange_join(&n->x));
    if (n->x.sum && n->ranks > 1)
        neb_warn("gate private: rank 0 of %d keeps the whole state of the exchange, %.0f MB",
                 n->ranks, 16e-6 * (double)n->x.elements);
    n->initial = false;
    return NEB_OK;
}

enum neb_status lib_begin(struct nebula *n) {
    struct agent_exchange *x = &n->x;
    NEB_TRY(n->loading ? lib_rest_load(n) : lib_create(n));
    enum neb_status st = exchange_resume(x);
    if (x->saves.rest[0] && neb_fs_remove(x->saves.rest) != NEB_OK)
        neb_warn("%s could not be removed", x->saves.rest);
    x->saves.rest[0] = 0;
    NEB_TRY(st);
    memset(n->digests, 0, sizeof n->digests);
    NEB_TRY(show_first(n));
    // with the hook, the caller waits for the disk: it saves its own state after the checkpoint
    if (!n->hooks.checkpoint)
        NEB_TRY(exchange_save_start(x));
    NEB_TRY(exchange_announce(x));
    x->link.asked = neb_now();
    return lib_settle(n);
}
