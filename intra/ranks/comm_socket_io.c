// SPDX-License-Identifier: Apache-2.0
// Frames over the connections. Every wait looks at all connections, because two ranks that only
// write would wait for each other.
#include "agent/base/bytes.h"
#include "agent/base/moved.h"
#include "intra/ranks/comm_socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    RX_BYTES = 64 << 10,
    // if more than this is left of a payload, it is read directly into its buffer
    DIRECT = 16 << 10,
    FRAMES = 8, // frames written by one call
    GOODBYE_MS = 10000,
    // time after which a wait for any rank fails because another rank is gone
    GONE_MS = 2000,
    // while one rank keeps this one busy, the others are looked at this often; their data waits in
    // TCP
    OTHERS_US = 100,
    ALIVE_PARTS = 100, // SOCKET_ALIVE is sent at most this often per time limit
};

// ---- failing ------------------------------------------------------------------------------------

enum neb_status socket_usable(const struct socket_hub *hub) {
    if (hub->gave_up)
        return neb_fail(NEB_ERR_STATE, "ranks: a call on a communicator that was aborted before");
    return hub->failed;
}

// Fails the hub. why: what happened to rank `peer`.
static enum neb_status lose(struct socket_hub *hub, int peer, enum neb_status st, const char *why) {
    char during[160] = "";
    if (hub->failed != NEB_OK)
        return hub->failed;
    if (hub->what)
        snprintf(during, sizeof during, "; rank %d waited for rank %d: %s", hub->rank,
                 hub->waits_for, hub->what);
    hub->lost = true;
    hub->failed = neb_fail(st, "ranks: rank %d of %d %s%s", peer, hub->size, why, during);
    return hub->failed;
}

enum neb_status socket_disagree(struct socket_hub *hub, int peer, const char *what) {
    hub->what = what;
    hub->waits_for = peer;
    return lose(hub, peer, NEB_ERR_IO, "is at another collective: the ranks made different calls");
}

static void close_peer(struct socket_peer *p) {
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
}

// Closes the connection to a rank that is gone. Earlier data still counts: a call fails only if it
// waits for more. why NULL: described by `error` (errno).
static void gone(struct socket_hub *hub, int peer, int error, const char *why) {
    struct socket_peer *p = &hub->peers[peer];
    close_peer(p);
    if (hub->gone_at || hub->closing || p->bye)
        return;
    hub->gone_at = neb_now();
    hub->gone = peer;
    if (why)
        snprintf(hub->why, sizeof hub->why, "%s", why);
    else
        snprintf(hub->why, sizeof hub->why, "is gone (%s)",
                 error ? strerror(error)
                       : "it closed its connection: it died, was killed, or gave up");
}

// True if `peer` cannot answer, or will not, because another rank has been gone for a while.
static bool hopeless(const struct socket_hub *hub, int peer, bool incoming) {
    const struct socket_peer *p = &hub->peers[peer];
    return p->fd < 0 || (p->bye && incoming) ||
           (hub->gone_at && neb_now() - hub->gone_at > GONE_MS * NEB_MS);
}

// Reports the first rank that was gone, even if the call waited for another one.
static enum neb_status lose_gone(struct socket_hub *hub, int peer) {
    return hub->gone_at ? lose(hub, hub->gone, NEB_ERR_IO, hub->why)
                        : lose(hub, peer, NEB_ERR_IO, "has ended before this rank");
}

// ---- reading ------------------------------------------------------------------------------------

static void finish_recv(struct socket_peer *p, struct socket_recv *r) {
    struct socket_recv **at = &p->posted;
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at) {
        *at = r->next;
        if (!*at)
            p->posted_end = at;
    }
    r->pending = false;
}

static void free_early(struct socket_early *e) {
    free(e->data);
    free(e);
}

static struct socket_early *keep_early(struct socket_peer *p, const struct socket_early *as,
                                       size_t room) {
    struct socket_early *e = malloc(sizeof *e);
    if (!e)
        return NULL;
    *e = *as;
    e->room = room;
    e->data = room ? malloc(room) : NULL;
    if (room && !e->data) {
        free(e);
        return NULL;
    }
    *p->early_end = e;
    p->early_end = &e->next;
    p->early_bytes += e->bytes;
    return e;
}

static void drop_early(struct socket_peer *p, struct socket_early *e) {
    struct socket_early **at = &p->early;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    if (!*at)
        p->early_end = at;
    p->early_bytes -= e->bytes;
    free_early(e);
}

// Bytes that can be written to p->at now.
static size_t space(const struct socket_peer *p) {
    size_t have = p->aside ? p->aside->bytes - p->left : 0;
    return p->aside && p->aside->room < p->aside->bytes ? p->aside->room - have : p->left;
}

// Grows the buffer of an early message with its data, so that a claimed size alone costs no memory.
static enum neb_status grow(struct socket_peer *p) {
    struct socket_early *e = p->aside;
    if (!e || !p->left || space(p))
        return NEB_OK;
    size_t room = e->bytes / 2 < e->room ? e->bytes : 2 * e->room, have = e->room;
    uint8_t *data = realloc(e->data, room);
    if (!data)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a message of %zu bytes from another rank",
                        e->bytes);
    e->data = data;
    e->room = room;
    p->at = data + have;
    return NEB_OK;
}

// Gives a complete early message to the call that waits for it.
static void hand_over(struct socket_peer *p, struct socket_early *e, struct socket_recv *r) {
    if (e->bytes && e->bytes == r->bytes)
        memcpy(r->x, e->data, e->bytes);
    r->came = e->bytes;
    drop_early(p, e);
    finish_recv(p, r);
}

static void payload_done(struct socket_peer *p) {
    if (p->into)
        finish_recv(p, p->into);
    if (p->aside) {
        struct socket_early *e = p->aside;
        e->have = e->bytes;
        if (e->claimed)
            hand_over(p, e, e->claimed);
    }
    p->into = NULL;
    p->aside = NULL;
    p->at = NULL;
}

static struct socket_recv *waiting_for(const struct socket_peer *p, uint32_t group,
                                       enum socket_kind kind, int32_t tag) {
    for (struct socket_recv *r = p->posted; r; r = r->next)
        if (!r->claims && r->group == group && r->kind == kind &&
            (kind == SOCKET_COLLECTIVE || r->tag == tag))
            return r;
    return NULL;
}

// Parses a header. *waits: the message must stay in TCP for now.
static enum neb_status begin_frame(struct socket_hub *hub, int peer, bool *waits) {
    struct socket_peer *p = &hub->peers[peer];
    struct neb_rd rd = neb_rd_make(p->rx + p->rx_at, SOCKET_HEADER_BYTES);
    uint32_t group = neb_rd_u32(&rd), kind = neb_rd_u32(&rd);
    int32_t tag = (int32_t)neb_rd_u32(&rd);
    uint64_t bytes = neb_rd_u64(&rd);
    *waits = false;
    if (kind < SOCKET_MESSAGE || kind > SOCKET_ALIVE || bytes > SOCKET_MESSAGE_MAX ||
        (kind >= SOCKET_BYE && bytes))
        return lose(hub, peer, NEB_ERR_IO, "sent an invalid frame; it may be of another build");
    if (kind == SOCKET_GIVES_UP) {
        gone(hub, peer, 0, "gave up; its log says why");
        return NEB_OK;
    }
    struct socket_recv *r = waiting_for(p, group, kind, tag);
    if (kind == SOCKET_ALIVE) {
        ; // nothing to do: its arrival alone shows that the rank works
    } else if (kind == SOCKET_BYE) {
        p->bye = true;
    } else if (r) {
        if (kind == SOCKET_COLLECTIVE && (r->tag != tag || r->bytes != bytes))
            return socket_disagree(hub, peer, hub->what);
        r->came = bytes;
        p->into = r;
        p->at = r->bytes == bytes ? r->x : NULL;
    } else {
        bool much = p->early_bytes + bytes > SOCKET_EARLY_SOFT;
        if (!p->posted && !p->asked && much && (p->early || bytes > SOCKET_EARLY_ALONE)) {
            *waits = true;
            return NEB_OK;
        }
        if (p->early_bytes + bytes > SOCKET_EARLY_MAX)
            return lose(hub, peer, NEB_ERR_IO,
                        "sends more than this rank can keep, but not what this rank waits for");
        const struct socket_early as = {.group = group, .kind = kind, .tag = tag, .bytes = bytes};
        struct socket_early *e =
            keep_early(p, &as, bytes < SOCKET_EARLY_ROOM ? bytes : SOCKET_EARLY_ROOM);
        if (!e)
            return neb_fail(NEB_ERR_NOMEM, "out of memory for a message of %llu bytes from rank %d",
                            (unsigned long long)bytes, peer);
        p->aside = e;
        p->at = e->data;
    }
    p->rx_at += SOCKET_HEADER_BYTES;
    p->left = bytes;
    if (!p->left)
        payload_done(p);
    return NEB_OK;
}

// True if rx holds a message that begin_frame made wait; then nothing more is read.
static bool held(const struct socket_peer *p) {
    return p->rx_len >= SOCKET_HEADER_BYTES && !p->left;
}

// Parses rx and moves payload to its buffer.
static enum neb_status look_at(struct socket_hub *hub, int peer, bool *moved) {
    struct socket_peer *p = &hub->peers[peer];
    while (p->rx_len > p->rx_at) {
        size_t n = p->rx_len - p->rx_at;
        bool waits;
        if (!p->left) {
            if (n < SOCKET_HEADER_BYTES)
                break;
            NEB_TRY(begin_frame(hub, peer, &waits));
            if (p->fd < 0)
                p->rx_at = p->rx_len;
            if (waits || p->fd < 0)
                return NEB_OK;
            *moved = true;
            continue;
        }
        NEB_TRY(grow(p));
        n = n < space(p) ? n : space(p);
        if (p->at) {
            memcpy(p->at, p->rx + p->rx_at, n);
            p->at += n;
        }
        p->rx_at += n;
        p->left -= n;
        *moved = true;
        if (!p->left)
            payload_done(p);
    }
    memmove(p->rx, p->rx + p->rx_at, p->rx_len - p->rx_at);
    p->rx_len -= p->rx_at;
    p->rx_at = 0;
    return NEB_OK;
}

static enum neb_status read_some(struct socket_hub *hub, int peer, bool *moved) {
    struct socket_peer *p = &hub->peers[peer];
    for (int turn = 0; turn < 4; turn++) {
        NEB_TRY(look_at(hub, peer, moved));
        if (p->fd < 0 || held(p))
            return NEB_OK;
        NEB_TRY(grow(p));
        bool direct = p->at && p->left >= DIRECT;
        size_t room = direct ? space(p) : RX_BYTES - p->rx_len;
        ssize_t n = recv(p->fd, direct ? p->at : p->rx + p->rx_len, room, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return NEB_OK;
        if (n <= 0) {
            gone(hub, peer, n ? errno : 0, NULL);
            return NEB_OK;
        }
        *moved = true;
        if (direct) {
            p->at += n;
            p->left -= (size_t)n;
            if (!p->left)
                payload_done(p);
        } else {
            p->rx_len += (size_t)n;
        }
        if ((size_t)n < room)
            return look_at(hub, peer, moved);
    }
    return NEB_OK;
}

// ---- writing ------------------------------------------------------------------------------------

static enum neb_status write_some(struct socket_hub *hub, int peer, bool *moved) {
    struct socket_peer *p = &hub->peers[peer];
    while (p->out) {
        struct iovec v[2 * FRAMES];
        struct msghdr m = {.msg_iov = v};
        for (struct socket_send *s = p->out; s && m.msg_iovlen + 2 <= 2 * FRAMES; s = s->next) {
            size_t head = s->sent < SOCKET_HEADER_BYTES ? s->sent : SOCKET_HEADER_BYTES;
            size_t body = s->sent - head;
            if (head < SOCKET_HEADER_BYTES)
                v[m.msg_iovlen++] =
                    (struct iovec){s->header + head, (size_t)SOCKET_HEADER_BYTES - head};
            if (body < s->bytes)
                v[m.msg_iovlen++] =
                    (struct iovec){(void *)(uintptr_t)(s->x + body), s->bytes - body};
        }
        ssize_t n = sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        p->full = n < 0 && errno == EAGAIN;
        if (p->full || (n < 0 && errno == EINTR))
            return NEB_OK;
        if (n < 0 && (errno == EPIPE || errno == ECONNRESET) && !held(p))
            return NEB_OK; // unread data of that rank may tell more about why it left
        if (n < 0) {
            gone(hub, peer, errno, NULL);
            return NEB_OK;
        }
        *moved = true;
        for (size_t left = (size_t)n; left;) {
            struct socket_send *s = p->out;
            size_t rest = SOCKET_HEADER_BYTES + s->bytes - s->sent, k = rest < left ? rest : left;
            s->sent += k;
            left -= k;
            if (k < rest)
                break;
            p->out = s->next;
            if (!p->out)
                p->out_end = &p->out;
            s->pending = false;
        }
    }
    return NEB_OK;
}

// ---- waiting ------------------------------------------------------------------------------------

static enum neb_status note(struct socket_hub *hub, enum neb_status st) {
    if (hub->failed == NEB_OK)
        hub->failed = st;
    return st;
}

// Reads and writes without poll(2), for the rank that a call waits for.
static enum neb_status look_at_peer(struct socket_hub *hub, int peer, bool *moved) {
    struct socket_peer *p = &hub->peers[peer];
    enum neb_status st = NEB_OK;
    if (p->fd >= 0 && p->out && !p->full)
        st = write_some(hub, peer, moved);
    if (p->fd >= 0 && st == NEB_OK)
        st = read_some(hub, peer, moved);
    return note(hub, st);
}

// Work that needs no poll(2): writes to all that take data, and tries again to read messages that
// had to wait.
static enum neb_status look_within(struct socket_hub *hub, bool *moved) {
    for (int i = 0; i < hub->size; i++) {
        struct socket_peer *p = &hub->peers[i];
        if (p->fd >= 0 && p->out && !p->full)
            NEB_TRY(write_some(hub, i, moved));
        if (p->fd >= 0 && held(p))
            NEB_TRY(look_at(hub, i, moved));
    }
    return NEB_OK;
}

// Looks at all connections. If nothing moves at once, waits until `end`, at most a second; end 0:
// does not wait.
static enum neb_status look_at_peers(struct socket_hub *hub, neb_ns end, bool *moved) {
    enum neb_status st = look_within(hub, moved);
    int64_t ms = *moved || !end ? 0 : (end - neb_now()) / NEB_MS + 1;
    for (int i = 0; i < hub->size; i++) {
        const struct socket_peer *p = &hub->peers[i];
        short events = (short)((held(p) ? 0 : POLLIN) | (p->out ? POLLOUT : 0));
        hub->fds[i] = (struct pollfd){.fd = events ? p->fd : -1, .events = events};
    }
    int n = st == NEB_OK ? poll(hub->fds, (nfds_t)hub->size,
                                (int)(ms < 0      ? 0
                                      : ms < 1000 ? ms
                                                  : 1000))
                         : 0;
    for (int i = 0; n > 0 && i < hub->size && st == NEB_OK; i++) {
        struct socket_peer *p = &hub->peers[i];
        short events = hub->fds[i].fd < 0 ? 0 : hub->fds[i].revents;
        if (events & ~POLLIN && p->fd >= 0 && p->out)
            st = write_some(hub, i, moved);
        if (events & ~POLLOUT && p->fd >= 0 && st == NEB_OK)
            st = read_some(hub, i, moved);
    }
    hub->looked_at = neb_now();
    return note(hub, st);
}

enum neb_status socket_poll_all(struct socket_hub *hub) {
    bool moved = false;
    return look_at_peers(hub, 0, &moved);
}

static enum neb_status look_sometimes(struct socket_hub *hub, bool *moved) {
    return neb_now() - hub->looked_at < OTHERS_US * NEB_US ? NEB_OK : look_at_peers(hub, 0, moved);
}

enum neb_status socket_push(struct socket_hub *hub, int peer) {
    struct socket_peer *p = &hub->peers[peer];
    bool moved = false;
    if (p->fd >= 0 && p->out && !p->full)
        NEB_TRY(note(hub, write_some(hub, peer, &moved)));
    return look_sometimes(hub, &moved);
}

// Waits until *pending, of a message from `peer` (incoming) or to it, is false.
static enum neb_status wait_for(struct socket_hub *hub, const bool *pending, int peer,
                                bool incoming) {
    neb_ns end = 0;
    while (*pending) {
        bool moved = false;
        NEB_TRY(look_at_peer(hub, peer, &moved));
        if (*pending && moved)
            NEB_TRY(look_sometimes(hub, &moved));
        if (!*pending)
            break;
        if (hopeless(hub, peer, incoming))
            return lose_gone(hub, peer);
        neb_ns now = neb_now();
        if (moved || !end)
            end = now + hub->timeout_ms * NEB_MS;
        if (moved) {
            neb_moved_add(0);
            continue;
        }
        if (now >= end) {
            char why[128];
            snprintf(why, sizeof why,
                     "has not answered for %.1f s: it hangs, or the ranks made different calls",
                     (double)hub->timeout_ms / 1e3);
            return lose(hub, peer, NEB_ERR_TIMEOUT, why);
        }
        neb_ns until = hub->gone_at ? hub->gone_at + GONE_MS * NEB_MS : end;
        NEB_TRY(look_at_peers(hub, until, &moved));
        if (moved)
            end = neb_now() + hub->timeout_ms * NEB_MS;
    }
    return NEB_OK;
}

static enum neb_status wait_named(struct socket_hub *hub, const bool *pending, int peer,
                                  bool incoming, const char *what) {
    if (!*pending)
        return NEB_OK;
    hub->what = what;
    hub->waits_for = peer;
    enum neb_status st = wait_for(hub, pending, peer, incoming);
    hub->what = NULL;
    return st;
}

enum neb_status socket_wait_send(struct socket_hub *hub, int to, struct socket_send *s,
                                 const char *what) {
    return wait_named(hub, &s->pending, to, false, what);
}

enum neb_status socket_wait_recv(struct socket_hub *hub, int from, struct socket_recv *r,
                                 const char *what) {
    return wait_named(hub, &r->pending, from, true, what);
}

enum neb_status socket_poll_message(struct socket_hub *hub, int from, uint32_t group, int32_t tag,
                                    bool *out) {
    struct socket_peer *p = &hub->peers[from];
    bool moved = false;
    *out = false;
    p->asked = true;
    enum neb_status st = look_at_peer(hub, from, &moved);
    if (st == NEB_OK)
        st = look_sometimes(hub, &moved);
    p->asked = false;
    NEB_TRY(st);
    for (const struct socket_early *e = p->early; e && !*out; e = e->next)
        *out = e->group == group && e->kind == SOCKET_MESSAGE && e->tag == tag;
    return *out || from == hub->rank || !hopeless(hub, from, true) ? NEB_OK : lose_gone(hub, from);
}

// ---- messages -----------------------------------------------------------------------------------

void socket_post_send(struct socket_hub *hub, int to, uint32_t group, enum socket_kind kind,
                      int32_t tag, const void *x, size_t bytes, struct socket_send *s) {
    struct socket_peer *p = &hub->peers[to];
    *s = (struct socket_send){.x = x, .bytes = bytes, .pending = true};
    neb_put_u32(s->header, group);
    neb_put_u32(s->header + 4, kind);
    neb_put_u32(s->header + 8, (uint32_t)tag);
    neb_put_u64(s->header + 12, bytes);
    *p->out_end = s;
    p->out_end = &s->next;
}

void socket_post_recv(struct socket_hub *hub, int from, uint32_t group, enum socket_kind kind,
                      int32_t tag, void *x, size_t bytes, struct socket_recv *r) {
    struct socket_peer *p = &hub->peers[from];
    *r = (struct socket_recv){
        .group = group, .kind = kind, .tag = tag, .x = x, .bytes = bytes, .pending = true};
    struct socket_early *e = p->early;
    while (e && (e->claimed || e->group != group || e->kind != kind ||
                 (kind == SOCKET_MESSAGE && e->tag != tag)))
        e = e->next;
    if (e && kind == SOCKET_COLLECTIVE && (e->tag != tag || e->bytes != bytes)) {
        r->came = SIZE_MAX; // of another collective
        r->pending = false;
        return;
    }
    if (e && e->have == e->bytes) {
        hand_over(p, e, r);
        return;
    }
    if (e)
        e->claimed = r;
    r->claims = e;
    *p->posted_end = r;
    p->posted_end = &r->next;
}

void socket_unpost(struct socket_hub *hub, int from, struct socket_recv *r) {
    NEB_ASSERT(from == hub->rank);
    finish_recv(&hub->peers[from], r);
}

enum neb_status socket_send_self(struct socket_hub *hub, uint32_t group, int32_t tag, const void *x,
                                 size_t bytes) {
    struct socket_peer *p = &hub->peers[hub->rank];
    const struct socket_early as = {
        .group = group, .kind = SOCKET_MESSAGE, .tag = tag, .bytes = bytes, .have = bytes};
    struct socket_early *e = keep_early(p, &as, bytes);
    if (!e)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a message of %zu bytes", bytes);
    if (bytes)
        memcpy(e->data, x, bytes);
    return NEB_OK;
}

void socket_forget(struct socket_hub *hub, uint32_t group) {
    for (int i = 0; i < hub->size; i++) {
        struct socket_peer *p = &hub->peers[i];
        for (struct socket_early *e = p->early, *next; e; e = next) {
            next = e->next;
            if (e->group == group && e->have == e->bytes)
                drop_early(p, e);
        }
    }
}

// ---- create and destroy -------------------------------------------------------------------------

enum neb_status socket_hub_create(int rank, int size, int64_t timeout_ms, struct socket_hub **out) {
    struct socket_hub *hub = calloc(1, sizeof *hub);
    bool ok = hub && (hub->peers = calloc((size_t)size, sizeof *hub->peers)) &&
              (hub->fds = calloc((size_t)size, sizeof *hub->fds));
    for (int i = 0; ok && i < size; i++) {
        struct socket_peer *p = &hub->peers[i];
        p->fd = -1;
        p->out_end = &p->out;
        p->posted_end = &p->posted;
        p->early_end = &p->early;
        ok = (p->rx = malloc(RX_BYTES));
        hub->size = i + 1;
    }
    if (!ok) {
        socket_hub_destroy(&hub, false);
        return neb_fail(NEB_ERR_NOMEM, "out of memory for connections of %d ranks", size);
    }
    hub->rank = rank;
    hub->timeout_ms = timeout_ms;
    hub->next_group = 1;
    *out = hub;
    return NEB_OK;
}

void socket_hub_give_up(struct socket_hub *hub) {
    for (int i = 0; i < hub->size; i++) {
        struct socket_peer *p = &hub->peers[i];
        struct socket_send s;
        bool moved = false;
        if (p->fd < 0)
            continue;
        // otherwise a frame is half written, and its receiver would take the goodbye for the rest
        // of it
        if (!p->out) {
            socket_post_send(hub, i, 0, SOCKET_GIVES_UP, 0, NULL, 0, &s);
            (void)!write_some(hub, i, &moved);
        }
        p->out = NULL;
        p->out_end = &p->out;
        shutdown(p->fd, SHUT_WR);
    }
    hub->gave_up = true;
}

// Does nothing while a call waits: the rank that this one waits for reports its own progress.
void socket_alive(struct socket_hub *hub) {
    neb_ns now = neb_now();
    if (hub->what || hub->gave_up || hub->failed != NEB_OK ||
        now - hub->alive_at < hub->timeout_ms * NEB_MS / ALIVE_PARTS)
        return;
    hub->alive_at = now;
    for (int i = 0; i < hub->size; i++) {
        struct socket_peer *p = &hub->peers[i];
        bool moved = false;
        if (p->fd < 0)
            continue;
        if (!p->alive.pending) // otherwise the previous one is still queued
            socket_post_send(hub, i, 0, SOCKET_ALIVE, 0, NULL, 0, &p->alive);
        (void)!write_some(hub, i, &moved);
    }
}

// Closing a connection with unread data resets it, and the other side loses what it has not read.
// So both sides send a goodbye and read up to the other's.
static void say_goodbye(struct socket_hub *hub) {
    neb_ns end = neb_now() + GOODBYE_MS * NEB_MS;
    struct socket_send *byes = calloc((size_t)hub->size, sizeof *byes);
    bool some = byes;
    hub->closing = true;
    for (int i = 0; byes && i < hub->size; i++)
        if (hub->peers[i].fd >= 0)
            socket_post_send(hub, i, 0, SOCKET_BYE, 0, NULL, 0, &byes[i]);
    while (some && neb_now() < end) {
        bool moved = false;
        some = false;
        for (int i = 0; i < hub->size; i++)
            some = some || (hub->peers[i].fd >= 0 && (byes[i].pending || !hub->peers[i].bye));
        if (some && look_at_peers(hub, end, &moved) != NEB_OK)
            break;
    }
    for (int i = 0; i < hub->size; i++) // byes is freed next
        hub->peers[i].out = NULL;
    free(byes);
}

void socket_hub_destroy(struct socket_hub **hp, bool polite) {
    struct socket_hub *hub = *hp;
    if (!hub)
        return;
    if (polite && hub->failed == NEB_OK && !hub->gave_up)
        say_goodbye(hub);
    for (int i = 0; hub->peers && i < hub->size; i++) {
        struct socket_peer *p = &hub->peers[i];
        for (struct socket_early *e = p->early, *next; e; e = next) {
            next = e->next;
            free_early(e);
        }
        close_peer(p);
        free(p->rx);
    }
    free(hub->peers);
    free(hub->fds);
    free(hub);
    *hp = NULL;
}
