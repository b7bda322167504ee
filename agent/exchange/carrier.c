// SPDX-License-Identifier: Apache-2.0
#include "agent/exchange/carrier.h"
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "inter/record/types.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const neb_ns slice = 200 * NEB_MS, again_after = NEB_S;

struct agent_carrier {
    void *zctx;
    struct agent_ipc *ipc;
    const struct agent_credential *credential;
    char socket_path[NEB_PATH_MAX], job[65];
    bool far; // connected over TCP
    int64_t session;
    int rank;
    neb_ns told_at; // when it last said who it is
    char why[256];  // why the agent refused the last request
    struct {        // the parts of a commit that have arrived
        bool here;
        uint32_t round;
        struct agent_ipc_msg message;
    } frames[INTER_FRAGMENTS_MAX];
};

// Says who this rank is.
static enum neb_status tell(struct agent_carrier *c) {
    const struct agent_ipc_part secret = {agent_credential_secret(c->credential),
                                          AGENT_SECRET_BYTES};
    c->told_at = neb_now();
    return agent_ipc_send(c->ipc, NULL,
                          json_pack("{s:s,s:s,s:i,s:I,s:i,s:s}", "op", "rank", "job", c->job,
                                    "rank", c->rank, "session", (json_int_t)c->session, "protocol",
                                    agent_ipc_protocol(), "build", neb_build()),
                          &secret, 1);
}

static enum neb_status reach(struct agent_carrier *c) {
    const struct agent_ipc_remote *r = agent_credential_remote(c->credential);
    char host[128] = "?";
    // tests have one host only
    c->far = neb_fault("carrier.far") || !agent_ipc_is_here(c->socket_path);
    if (!c->far)
        return agent_ipc_connect(c->zctx, c->socket_path, &c->ipc);
    gethostname(host, sizeof host - 1);
    if (!*r->endpoint)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "rank %d runs on host %s, where no agent listens at %s: start the agent "
                        "with --workers ADDRESS (an address of its host that %s can reach)",
                        c->rank, host, c->socket_path, host);
    neb_info("the agent is not on host %s: rank %d connects over TCP to %s", host, c->rank,
             r->endpoint);
    return agent_ipc_remote_connect(c->zctx, r, &c->ipc);
}

enum neb_status agent_carrier_create(const struct agent_carrier_config *config,
                                     struct agent_carrier **out) {
    struct agent_carrier *c = calloc(1, sizeof *c);
    if (!c)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a connection with the agent");
    c->credential = config->credential;
    c->session = config->session;
    c->rank = config->rank;
    snprintf(c->job, sizeof c->job, "%s", config->job);
    snprintf(c->socket_path, sizeof c->socket_path, "%s", config->socket_path);
    enum neb_status st =
        (c->zctx = zmq_ctx_new()) != NULL
            ? reach(c)
            : neb_fail(NEB_ERR_IO, "cannot create a ZeroMQ context: %s", zmq_strerror(zmq_errno()));
    if (st == NEB_OK)
        st = tell(c);
    if (st == NEB_OK)
        *out = c;
    else
        agent_carrier_destroy(&c);
    return st;
}

void agent_carrier_destroy(struct agent_carrier **cp) {
    struct agent_carrier *c = *cp;
    if (!c)
        return;
    for (int f = 0; f < INTER_FRAGMENTS_MAX; f++)
        agent_ipc_msg_clear(&c->frames[f].message);
    agent_ipc_destroy(&c->ipc);
    if (c->zctx)
        zmq_ctx_term(c->zctx);
    free(c);
    *cp = NULL;
}

static void on_message(struct agent_carrier *c, struct agent_ipc_msg *m) {
    const char *ev = agent_ipc_str(m, "ev", "");
    int64_t f = agent_ipc_int(m, "fragment", -1);
    if (!strcmp(ev, "frames") && f >= 0 && f < INTER_FRAGMENTS_MAX) {
        c->frames[f].here = true;
        c->frames[f].round = (uint32_t)agent_ipc_int(m, "round", 0);
        agent_ipc_msg_take_parts(&c->frames[f].message, m);
    } else if (!strcmp(ev, "answer")) {
        bool ok = json_is_true(json_object_get(m->head, "ok"));
        snprintf(c->why, sizeof c->why, "%s", ok ? "" : agent_ipc_str(m, "text", "refused"));
        // The agent, or the TCP connection, is a new one: it does not know this rank.
        if (!ok && neb_now() - c->told_at > again_after && tell(c) != NEB_OK)
            neb_debug("the agent cannot be told who this rank is");
    }
    agent_ipc_msg_clear(m);
}

static enum neb_status drain(struct agent_carrier *c) {
    struct agent_ipc_client nobody;
    struct agent_ipc_msg m;
    for (;;) {
        enum neb_status st = agent_ipc_recv(c->ipc, &nobody, &m);
        if (st == NEB_ERR_AGAIN)
            return NEB_OK;
        if (st == NEB_OK)
            on_message(c, &m);
    }
}

static enum neb_status carrier_put(void *carrier, const struct agent_part_key *k, const void *p,
                                   size_t len) {
    struct agent_carrier *c = carrier;
    const struct agent_ipc_part part = {p, len};
    NEB_TRY(drain(c));
    if (neb_fault("carrier.stray")) // tests ask for what only a user of the agent's host may
        NEB_TRY(agent_ipc_send(c->ipc, NULL, json_pack("{s:s,s:s}", "op", "stop", "job", c->job),
                               NULL, 0));
    if (neb_fault("carrier.put")) // tests lose the message
        return NEB_OK;
    enum neb_status st =
        agent_ipc_send(c->ipc, NULL,
                       json_pack("{s:s,s:i,s:I,s:I}", "op", "part", "fragment", k->fragment,
                                 "round", (json_int_t)k->round, "again", (json_int_t)k->again),
                       &part, 1);
    return st == NEB_ERR_AGAIN ? NEB_OK : st; // the agent asks for it once more
}

static bool has(const struct agent_carrier *c, const struct agent_part_key *k) {
    return c->frames[k->fragment].here && c->frames[k->fragment].round == k->round;
}

static enum neb_status ask(struct agent_carrier *c, const struct agent_part_key *k) {
    enum neb_status st = tell(c);
    if (st == NEB_OK)
        st = agent_ipc_send(c->ipc, NULL,
                            json_pack("{s:s,s:i,s:I}", "op", "take", "fragment", k->fragment,
                                      "round", (json_int_t)k->round),
                            NULL, 0);
    return st == NEB_ERR_AGAIN ? NEB_OK : st;
}

static enum neb_status carrier_take(void *carrier, const struct agent_part_key *k,
                                    struct agent_ipc_part parts[AGENT_IPC_PARTS_MAX], size_t *n) {
    struct agent_carrier *c = carrier;
    neb_ns end = neb_now() + AGENT_CARRIER_PATIENCE * NEB_S, ask_at = neb_now() + again_after;
    struct agent_ipc_msg m;
    NEB_TRY(drain(c));
    while (!has(c, k)) {
        neb_ns now = neb_now();
        if (now > end)
            return neb_fail(NEB_ERR_IO,
                            "rank %d has waited %d s for its part of round %u of fragment %d: its "
                            "connection with the agent is lost%s%s",
                            c->rank, AGENT_CARRIER_PATIENCE, k->round, k->fragment,
                            c->why[0] ? "; the agent's last answer: " : "", c->why);
        if (now > ask_at)
            NEB_TRY(ask(c, k));
        ask_at = now > ask_at ? now + again_after : ask_at;
        enum neb_status st = agent_ipc_wait(c->ipc, slice, &m);
        if (st == NEB_OK)
            on_message(c, &m);
        else if (st != NEB_ERR_TIMEOUT && st != NEB_ERR_INTERRUPTED && st != NEB_ERR_FORMAT)
            return st;
    }
    const struct agent_ipc_msg *got = &c->frames[k->fragment].message;
    *n = got->n_parts;
    memcpy(parts, got->parts, got->n_parts * sizeof *parts);
    return NEB_OK;
}

static void carrier_done(void *carrier, const struct agent_part_key *k) {
    struct agent_carrier *c = carrier;
    c->frames[k->fragment].here = false;
    agent_ipc_msg_clear(&c->frames[k->fragment].message);
}

static enum neb_status carrier_renew(void *carrier) {
    struct agent_carrier *c = carrier;
    NEB_TRY(drain(c));
    enum neb_status st = tell(c);
    return st == NEB_ERR_AGAIN ? NEB_OK : st;
}

enum neb_status agent_carrier_again(struct agent_carrier *c) {
    NEB_TRY(drain(c)); // parts of a commit that have arrived
    if (c->far) {
        agent_ipc_destroy(&c->ipc);
        NEB_TRY(reach(c));
    }
    return carrier_renew(c);
}

const struct agent_carrier_ops agent_carrier_ops = {carrier_put, carrier_take, carrier_done,
                                                    carrier_renew};
