// SPDX-License-Identifier: Apache-2.0
// The communicator over TCP: groups and messages, and its set-up from the environment.
#include "intra/ranks/comm_socket.h"
#include "agent/base/bytes.h"
#include "intra/ranks/rank_env.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { START_MS = 120000, START_MAX_MS = 1800000, TIMEOUT_MS = 600000, LOST_MS = 500 };

// ---- messages -----------------------------------------------------------------------------------

static enum neb_status send(struct intra_comm *c, const void *x, size_t bytes, int to, int tag,
                            struct intra_comm_send *out) {
    struct socket_group *g = socket_group_of(c);
    out->handle = NULL;
    NEB_ASSERT(to >= 0 && to < c->size);
    NEB_TRY(socket_usable(g->hub));
    NEB_ASSERT(bytes <= SOCKET_MESSAGE_MAX); // no buffer is that large
    if (to == c->rank)
        return socket_send_self(g->hub, g->id, tag, x, bytes);
    struct socket_send *s = malloc(sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a send of %zu bytes", bytes);
    out->handle = s;
    socket_post_send(g->hub, g->ranks[to], g->id, SOCKET_MESSAGE, tag, x, bytes, s);
    s->to = g->ranks[to];
    enum neb_status st = socket_push(g->hub, s->to);
    if (st != NEB_OK) {
        free(s);
        out->handle = NULL;
    }
    return st;
}

static enum neb_status wait_send(struct intra_comm *c, struct intra_comm_send *out) {
    struct socket_hub *hub = socket_group_of(c)->hub;
    struct socket_send *s = out->handle;
    out->handle = NULL;
    if (!s)
        return NEB_OK;
    enum neb_status st = s->pending ? socket_usable(hub) : NEB_OK;
    if (st == NEB_OK)
        st = socket_wait_send(hub, s->to, s, "send");
    free(s);
    return st;
}

static enum neb_status recv(struct intra_comm *c, void *x, size_t bytes, int from, int tag) {
    struct socket_group *g = socket_group_of(c);
    struct socket_recv r;
    NEB_ASSERT(from >= 0 && from < c->size);
    NEB_TRY(socket_usable(g->hub));
    socket_post_recv(g->hub, g->ranks[from], g->id, SOCKET_MESSAGE, tag, x, bytes, &r);
    if (from == c->rank && r.pending) {
        socket_unpost(g->hub, g->ranks[from], &r);
        return neb_fail(NEB_ERR_IO,
                        "no message with tag %d was sent to this rank, so it would wait forever",
                        tag);
    }
    NEB_TRY(socket_wait_recv(g->hub, g->ranks[from], &r, "receive"));
    if (r.came != bytes)
        return neb_fail(NEB_ERR_IO,
                        "message from rank %d with tag %d has %zu bytes, %zu were expected", from,
                        tag, r.came, bytes);
    return NEB_OK;
}

static enum neb_status poll_message(struct intra_comm *c, int from, int tag, bool *ready) {
    struct socket_group *g = socket_group_of(c);
    NEB_ASSERT(from >= 0 && from < c->size);
    *ready = false;
    NEB_TRY(socket_usable(g->hub));
    return socket_poll_message(g->hub, g->ranks[from], g->id, tag, ready);
}

// ---- groups -------------------------------------------------------------------------------------

static const struct intra_comm_ops socket_ops;

static enum neb_status make(struct socket_hub *hub, uint32_t id, int rank, int size,
                            struct intra_comm **out) {
    struct intra_comm *c;
    NEB_TRY(intra_comm_make(&socket_ops, sizeof(struct socket_group), rank, size, &c));
    struct socket_group *g = socket_group_of(c);
    g->ranks = calloc((size_t)size, sizeof *g->ranks);
    if (!g->ranks) {
        intra_comm_free(c);
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a communicator");
    }
    g->hub = hub;
    g->id = id;
    for (int i = 0; i < size; i++)
        g->ranks[i] = i;
    *out = c;
    return NEB_OK;
}

// Every rank sends its color, its key and its first free group number to all. The largest of these
// numbers is free on all ranks. Groups of one split may share it, because they share no rank.
static enum neb_status split(struct intra_comm *c, int color, int key, struct intra_comm **out) {
    enum { WORDS = 3 };
    struct socket_group *g = socket_group_of(c);
    size_t words = (size_t)WORDS * (size_t)c->size;
    uint64_t *all = calloc(words, sizeof *all), *mine = all + (size_t)WORDS * (size_t)c->rank;
    int *order = calloc((size_t)c->size, sizeof *order), n = 0, rank = 0;
    enum neb_status st = NEB_OK;
    NEB_ASSERT(color >= 0);
    if (!all || !order) {
        st = neb_fail(NEB_ERR_NOMEM, "out of memory splitting %d ranks", c->size);
        goto out;
    }
    mine[0] = (uint64_t)color;
    mine[1] = (uint64_t)((int64_t)key - INT32_MIN);
    mine[2] = g->hub->next_group;
    NEB_TRY_GOTO(socket_all_reduce(c, all, words, INTRA_COMM_U64, INTRA_COMM_SUM), out);
    uint64_t id = 0;
    for (int i = 0; i < c->size; i++) {
        const uint64_t *x = all + (size_t)WORDS * (size_t)i;
        id = x[2] > id ? x[2] : id;
        if (x[0] != (uint64_t)color)
            continue;
        int at = n++;
        for (; at > 0 && all[(size_t)WORDS * (size_t)order[at - 1] + 1] > x[1]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    g->hub->next_group = (uint32_t)id + 1;
    while (order[rank] != c->rank)
        rank++;
    NEB_TRY_GOTO(make(g->hub, (uint32_t)id, rank, n, out), out);
    for (int i = 0; i < n; i++)
        socket_group_of(*out)->ranks[i] = g->ranks[order[i]];
out:
    free(all);
    free(order);
    return st;
}

static void give_up(struct intra_comm *c) { socket_hub_give_up(socket_group_of(c)->hub); }

static void alive(struct intra_comm *c) { socket_alive(socket_group_of(c)->hub); }

// The failure may have been on another communicator of the same ranks; if a rank died, this hub
// notices it soon.
static bool lost(struct intra_comm *c) {
    struct socket_hub *hub = socket_group_of(c)->hub;
    neb_ns end = neb_now() + LOST_MS * NEB_MS;
    while (hub->failed == NEB_OK && !hub->gone_at && neb_now() < end)
        if (socket_poll_all(hub) == NEB_OK)
            neb_sleep(10 * NEB_MS);
    return hub->lost || hub->gone_at;
}

static void destroy(struct intra_comm *c) {
    struct socket_group *g = socket_group_of(c);
    if (g->id == 0)
        socket_hub_destroy(&g->hub, true);
    else
        socket_forget(g->hub, g->id);
    socket_group_free_room(g);
    free(g->ranks);
    intra_comm_free(c);
}

static const struct intra_comm_ops socket_ops = {
    .name = "socket",
    .all_reduce = socket_all_reduce,
    .reduce = socket_reduce,
    .reduce_scatter = socket_reduce_scatter,
    .all_gather = socket_all_gather,
    .broadcast = socket_broadcast,
    .send = send,
    .wait = wait_send,
    .recv = recv,
    .poll = poll_message,
    .barrier = socket_barrier,
    .split = split,
    .abort = give_up,
    .lost = lost,
    .alive = alive,
    .destroy = destroy,
};

// ---- start --------------------------------------------------------------------------------------

enum neb_status intra_comm_socket(const struct intra_comm_socket_config *config,
                                  struct intra_comm **out) {
    struct intra_comm_socket_config c = *config;
    struct socket_hub *hub = NULL;
    c.start_ms = c.start_ms ? c.start_ms : START_MS;
    c.start_max_ms = c.start_max_ms ? c.start_max_ms : START_MAX_MS;
    c.start_max_ms = c.start_max_ms > c.start_ms ? c.start_max_ms : c.start_ms;
    c.timeout_ms = c.timeout_ms ? c.timeout_ms : TIMEOUT_MS;
    NEB_ASSERT(c.size >= 1 && c.size <= INTRA_RANKS_MAX && c.rank >= 0 && c.rank < c.size);
    NEB_TRY(socket_hub_create(c.rank, c.size, c.timeout_ms, &hub));
    enum neb_status st = socket_start(hub, &c);
    if (st == NEB_OK)
        st = make(hub, 0, c.rank, c.size, out);
    if (st != NEB_OK)
        socket_hub_destroy(&hub, false);
    return st;
}

enum neb_status intra_comm_socket_env(struct intra_comm **out) {
    struct intra_rank_env e;
    uint8_t token[SOCKET_TOKEN_BYTES];
    const char *text = getenv(INTRA_TOKEN_VARIABLE), *fd = getenv(INTRA_LISTENER_VARIABLE);
    NEB_TRY(intra_rank_env_parse(environ, &e));
    if (!text || strlen(text) != 2 * sizeof token || !neb_unhex(text, token, sizeof token))
        return neb_fail(NEB_ERR_DENIED,
                        "%s is not 64 hexadecimal digits; the ranks need a common secret, which "
                        "their launcher makes (nebula ranks)",
                        INTRA_TOKEN_VARIABLE);
    const struct intra_comm_socket_config c = {
        .rank = e.rank,
        .size = e.size,
        .host = e.host,
        .port = e.port,
        .one_host = e.local_size == e.size,
        .listener = fd && e.rank == 0 ? (int)strtol(fd, NULL, 10) : -1,
        .token = token,
    };
    // child processes must not inherit them
    unsetenv(INTRA_TOKEN_VARIABLE);
    unsetenv(INTRA_LISTENER_VARIABLE);
    enum neb_status st = intra_comm_socket(&c, out);
    explicit_bzero(token, sizeof token);
    return st;
}
