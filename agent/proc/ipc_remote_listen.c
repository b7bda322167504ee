// SPDX-License-Identifier: Apache-2.0
// The agent's end of ipc_remote.c. It needs its own ZeroMQ context: a context has one authenticator
// (RFC 27), and the authenticator of the links admits members, not workers. Socket profile and rate
// limiter are those of the links, so strangers cannot cost more here than there.
#include "agent/base/log.h"
#include "agent/proc/ipc_state.h"
#include "inter/link/accept_limit.h"
#include "inter/link/monitor.h"
#include "inter/link/socket_profile.h"
#include "security/members.h"
#include "security/source.h"
#include "security/zap.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DOMAIN "worker of another host"

// A worker connects once, and again after a broken connection. At most 128 connections of strangers
// hold a descriptor at once (all_burst, plus all_second for 8 s: INTER_UNIDENTIFIED_MS);
// INTER_DESCRIPTORS_OWN counts them.
static const struct inter_accept_limit_rate rate = {.burst = 32,
                                                    .second = 8,
                                                    .all_burst = 64,
                                                    .all_second = 8,
                                                    .known = INTER_ACCEPT_LIMIT_KNOWN_MAX};

static void close_remote(struct agent_ipc *s) {
    inter_monitor_close(s->monitor, s->remote);
    if (s->accept_limit)
        inter_accept_limit_end(s->accept_limit);
    free(s->accept_limit);
    if (s->remote)
        zmq_close(s->remote);
    if (s->zap)
        sec_zap_destroy(&s->zap);
    if (s->remote_ctx)
        zmq_ctx_term(s->remote_ctx);
    s->remote = s->remote_ctx = s->monitor = NULL;
    s->accept_limit = NULL;
    s->endpoint[0] = 0;
}

static void look(struct agent_ipc *s) {
    const neb_ns now = neb_now();
    uint16_t event;
    int value;
    while (inter_monitor_read(s->monitor, &event, &value)) {
        if (event == ZMQ_EVENT_LISTENING)
            inter_accept_limit_listens(s->accept_limit, value);
        int fd = event == ZMQ_EVENT_ACCEPTED ? fcntl(value, F_DUPFD_CLOEXEC, 3) : -1;
        if (fd < 0)
            continue; // not an accept event, or already closed
        inter_accept_limit_accepted(s->accept_limit, fd, now, NULL);
        close(fd);
    }
    inter_accept_limit_tick(s->accept_limit, now);
}

static bool has_port(const char *where) {
    const char *colon = strrchr(where, ':'), *bracket = strrchr(where, ']');
    return colon && (!bracket || colon > bracket);
}

bool agent_ipc_remote_valid(const char *where) {
    static const char *const all[] = {"0.0.0.0:", "[::]:"};
    char endpoint[SEC_ENDPOINT_MAX];
    if (snprintf(endpoint, sizeof endpoint, has_port(where) ? "%s" : "%s:1", where) >=
        (int)sizeof endpoint)
        return false;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strncmp(endpoint, all[i], strlen(all[i])))
            return false;
    return sec_endpoint_valid(endpoint);
}

static enum neb_status bind_at(struct agent_ipc *s, const char *where, const uint8_t *secret) {
    char endpoint[AGENT_IPC_ENDPOINT_MAX];
    int dead = IPC_REMOTE_DEAD_MS, six = where[0] == '[';
    size_t n = sizeof s->endpoint;
    if (snprintf(endpoint, sizeof endpoint, has_port(where) ? "tcp://%s" : "tcp://%s:*", where) >=
        (int)sizeof endpoint)
        return neb_fail(NEB_ERR_INVALID, "--workers %s: too long", where);
    NEB_TRY(inter_socket_apply(s->remote, INTER_SOCKET_LISTEN, AGENT_IPC_FRAME));
    if (zmq_setsockopt(s->remote, ZMQ_IPV6, &six, sizeof six) != 0 ||
        zmq_setsockopt(s->remote, ZMQ_TCP_MAXRT, &dead, sizeof dead) != 0 ||
        zmq_setsockopt(s->remote, ZMQ_CURVE_SECRETKEY, secret, AGENT_IPC_KEY) != 0 ||
        zmq_setsockopt(s->remote, ZMQ_ZAP_DOMAIN, DOMAIN, strlen(DOMAIN)) != 0 ||
        !(s->monitor = inter_monitor_open(s->remote_ctx, s->remote,
                                          ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED)) ||
        zmq_bind(s->remote, endpoint) != 0 ||
        zmq_getsockopt(s->remote, ZMQ_LAST_ENDPOINT, s->endpoint, &n) != 0)
        return neb_fail(NEB_ERR_IO,
                        "--workers %s: %s (give an address or an interface of this host, with or "
                        "without a port)",
                        where, zmq_strerror(zmq_errno()));
    if (!strncmp(s->endpoint, "tcp://0.0.0.0:", 14) || !strncmp(s->endpoint, "tcp://[::]:", 11))
        return neb_fail(NEB_ERR_INVALID,
                        "--workers %s: give the one address of this host that workers can reach, "
                        "or its interface",
                        where);
    return NEB_OK;
}

enum neb_status agent_ipc_remote_listen(struct agent_ipc *s, const char *where) {
    uint8_t secret[AGENT_IPC_KEY];
    if (crypto_box_keypair(s->public, secret) != 0 || !(s->remote_ctx = zmq_ctx_new()) ||
        !(s->remote = zmq_socket(s->remote_ctx, ZMQ_ROUTER)) ||
        !(s->accept_limit = malloc(sizeof *s->accept_limit))) {
        close_remote(s);
        return neb_fail(NEB_ERR_NOMEM, "out of memory listening for workers");
    }
    inter_accept_limit_init(s->accept_limit, "port of workers", &rate);
    s->look = look;
    enum neb_status st = sec_zap_create(s->remote_ctx, DOMAIN, &s->zap);
    if (st == NEB_OK)
        st = bind_at(s, where, secret);
    sodium_memzero(secret, sizeof secret);
    s->close_remote = close_remote;
    if (st != NEB_OK)
        close_remote(s);
    return st;
}

void agent_ipc_remote_tell(const struct agent_ipc *s, struct agent_ipc_remote *out) {
    memcpy(out->endpoint, s->endpoint, sizeof out->endpoint);
    memcpy(out->server, s->public, sizeof out->server);
}

void agent_ipc_remote_admit(struct agent_ipc *s, const uint8_t (*keys)[AGENT_IPC_KEY], size_t n) {
    if (!s->zap)
        return;
    struct sec_members *m = calloc(1, sizeof *m);
    NEB_ASSERT(n <= NEB_MEMBERS_MAX);
    for (size_t i = 0; m && i < n; i++)
        memcpy(m->m[i].pub.curve, keys[i], AGENT_IPC_KEY);
    if (m)
        m->n = (uint32_t)n;
    sec_zap_set(s->zap, m); // out of memory: admits nobody
    free(m);
    if (!n && s->accept_limit) // no worker is on another host, so forget their hosts
        inter_accept_limit_forget(s->accept_limit, 0);
}

void agent_ipc_remote_welcome(struct agent_ipc *s, const struct agent_ipc_client *from) {
    if (s->accept_limit)
        inter_accept_limit_know(s->accept_limit, sec_source_of_text(from->address), 0, neb_now());
}

uint64_t agent_ipc_remote_refused(const struct agent_ipc *s) {
    return (s->zap ? sec_zap_refused(s->zap) : 0) +
           (s->accept_limit ? s->accept_limit->refused : 0);
}
