// SPDX-License-Identifier: Apache-2.0
// Messages of ipc.h over TCP with CURVE, and the worker's end. ipc_remote_listen.c is the agent's
// end.
#include "agent/base/bytes.h"
#include "agent/base/log.h"
#include "agent/base/moved.h"
#include "agent/proc/ipc_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char magic[4] = {'n', 'e', 'b', 'r'};
enum {
    ITEMS_MAX = 1 + AGENT_IPC_PARTS_MAX,
    START_MAX = 8 + 8 * ITEMS_MAX,
    LINGER_MS = 10 * 1000, // time for a worker to deliver its report
};

// ---- one message --------------------------------------------------------------------------------

static enum neb_status send_item(void *socket, const void *p, size_t len, bool last, bool counts) {
    for (size_t at = 0, n; at < len; at += n) {
        n = len - at < AGENT_IPC_FRAME ? len - at : AGENT_IPC_FRAME;
        NEB_TRY(ipc_send_frame(socket, (const uint8_t *)p + at, n, !last || at + n < len));
        if (counts)
            neb_moved_add(n);
    }
    return NEB_OK;
}

enum neb_status ipc_remote_send(void *socket, const void *head, size_t head_len,
                                const struct agent_ipc_part *parts, size_t n_parts, bool counts) {
    uint8_t start[START_MAX];
    size_t last = n_parts; // the item with the last byte; an empty item has no frame
    while (last > 0 && parts[last - 1].len == 0)
        last--;
    memcpy(start, magic, sizeof magic);
    neb_put_u32(start + 4, (uint32_t)(1 + n_parts));
    neb_put_u64(start + 8, head_len);
    for (size_t i = 0; i < n_parts; i++)
        neb_put_u64(start + 16 + 8 * i, parts[i].len);
    NEB_TRY(ipc_send_frame(socket, start, 16 + 8 * n_parts, true));
    NEB_TRY(send_item(socket, head, head_len, last == 0, counts));
    for (size_t i = 0; i < last; i++)
        NEB_TRY(send_item(socket, parts[i].p, parts[i].len, i + 1 == last, counts));
    return NEB_OK;
}

static void free_item(void *p, void *hint) {
    (void)hint;
    free(p);
}

// Makes room for `need` bytes of an item with a claimed length `len`. Never allocates more than
// twice the bytes received, since `len` is only a claim.
static bool item_grow(uint8_t **whole, size_t *room, uint64_t need, uint64_t len) {
    enum { FIRST = 1 << 20 };
    if (need <= *room)
        return true;
    uint64_t more = *room ? 2 * (uint64_t)*room : FIRST;
    *room = (size_t)(more < len ? more : len);
    uint8_t *p = realloc(*whole, *room);
    if (p)
        *whole = p;
    return p;
}

// Receives the next item of `len` bytes into *out, which the caller closes after NEB_OK.
static enum neb_status recv_item(void *socket, uint64_t len, zmq_msg_t *out) {
    uint8_t *whole = NULL; // for an item of several frames
    size_t room = 0;
    if (len > SIZE_MAX / 4)
        return NEB_ERR_FORMAT;
    zmq_msg_init(out);
    for (uint64_t at = 0; at < len;) {
        zmq_msg_close(out);
        zmq_msg_init(out);
        if (!ipc_more_frames(socket) || ipc_recv_frame(socket, out) < 0 ||
            zmq_msg_size(out) != (len - at < AGENT_IPC_FRAME ? len - at : AGENT_IPC_FRAME) ||
            (len > AGENT_IPC_FRAME && !item_grow(&whole, &room, at + zmq_msg_size(out), len))) {
            zmq_msg_close(out);
            free(whole);
            return NEB_ERR_FORMAT;
        }
        if (whole)
            memcpy(whole + at, zmq_msg_data(out), zmq_msg_size(out));
        at += zmq_msg_size(out);
    }
    if (whole) {
        zmq_msg_close(out);
        if (zmq_msg_init_data(out, whole, (size_t)len, free_item, NULL) != 0) {
            zmq_msg_init(out);
            zmq_msg_close(out);
            free(whole);
            return NEB_ERR_FORMAT;
        }
    }
    return NEB_OK;
}

// Sets the sender from what the handshake proved. f: a frame that came over the network (the name
// frame did not).
static bool take_key(zmq_msg_t *f, struct agent_ipc_client *from) {
    const char *key = zmq_msg_gets(f, "User-Id"), *address = zmq_msg_gets(f, "Peer-Address");
    from->remote = true;
    snprintf(from->address, sizeof from->address, "%s", address ? address : "?");
    return key && strlen(key) == AGENT_IPC_KEY / 4 * 5 && zmq_z85_decode(from->key, key) != NULL;
}

// from: set by a server; NULL for a client.
static enum neb_status recv_items(void *socket, struct agent_ipc_client *from,
                                  struct agent_ipc_msg *m) {
    zmq_msg_t start, head;
    uint64_t len[ITEMS_MAX];
    uint32_t n = 0;
    zmq_msg_init(&start);
    bool ok = ipc_recv_frame(socket, &start) >= 16 &&
              !memcmp(zmq_msg_data(&start), magic, sizeof magic) &&
              (!from || take_key(&start, from));
    struct neb_rd r = neb_rd_make(zmq_msg_data(&start), zmq_msg_size(&start));
    if (ok) {
        neb_rd_u32(&r);
        n = neb_rd_u32(&r);
        ok = n >= 1 && n <= ITEMS_MAX && zmq_msg_size(&start) == 8 + 8 * (size_t)n;
    }
    for (uint32_t i = 0; ok && i < n; i++)
        len[i] = neb_rd_u64(&r);
    zmq_msg_close(&start);
    if (!ok || len[0] > AGENT_IPC_HEAD_MAX)
        return NEB_ERR_FORMAT;
    NEB_TRY(recv_item(socket, len[0], &head));
    enum neb_status st = ipc_parse_head(zmq_msg_data(&head), zmq_msg_size(&head), m);
    zmq_msg_close(&head);
    for (uint32_t i = 1; i < n && st == NEB_OK; i++) {
        zmq_msg_t *part = &m->frames[m->n_parts];
        if ((st = recv_item(socket, len[i], part)) == NEB_OK)
            m->parts[m->n_parts++] =
                (struct agent_ipc_part){zmq_msg_data(part), zmq_msg_size(part)};
    }
    return st == NEB_OK && ipc_more_frames(socket) ? NEB_ERR_FORMAT : st;
}

enum neb_status ipc_remote_recv(struct agent_ipc *s, struct agent_ipc_client *from,
                                struct agent_ipc_msg *m) {
    void *socket = s->server ? s->remote : s->socket;
    zmq_msg_t name;
    if (s->server) {
        s->look(s);
        zmq_msg_init(&name);
        enum neb_status st = ipc_recv_name(socket, from, &name);
        zmq_msg_close(&name);
        if (st != NEB_OK)
            return st == NEB_ERR_AGAIN ? st : ipc_malformed(socket, m);
    } else {
        zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
        int n;
        while ((n = zmq_poll(&item, 1, 0)) < 0 && zmq_errno() == EINTR)
            ;
        if (n <= 0)
            return NEB_ERR_AGAIN;
    }
    return recv_items(socket, s->server ? from : NULL, m) == NEB_OK ? NEB_OK
                                                                    : ipc_malformed(socket, m);
}

// ---- the worker's end ---------------------------------------------------------------------------

enum neb_status agent_ipc_remote_connect(void *zctx, const struct agent_ipc_remote *r,
                                         struct agent_ipc **out) {
    struct agent_ipc *s = calloc(1, sizeof *s);
    int linger = LINGER_MS, queue = 4096, dead = IPC_REMOTE_DEAD_MS,
        six = strchr(r->endpoint, '[') != NULL;
    int64_t frame = AGENT_IPC_FRAME + START_MAX;
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory connecting to %s", r->endpoint);
    s->framed = true;
    s->socket = zmq_socket(zctx, ZMQ_DEALER);
    if (!s->socket || zmq_setsockopt(s->socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_setsockopt(s->socket, ZMQ_SNDHWM, &queue, sizeof queue) != 0 ||
        zmq_setsockopt(s->socket, ZMQ_TCP_MAXRT, &dead, sizeof dead) != 0 ||
        zmq_setsockopt(s->socket, ZMQ_IPV6, &six, sizeof six) != 0 ||
        zmq_setsockopt(s->socket, ZMQ_MAXMSGSIZE, &frame, sizeof frame) != 0 ||
        zmq_setsockopt(s->socket, ZMQ_CURVE_SERVERKEY, r->server, AGENT_IPC_KEY) != 0 ||
        zmq_setsockopt(s->socket, ZMQ_CURVE_PUBLICKEY, r->public, AGENT_IPC_KEY) != 0 ||
        zmq_setsockopt(s->socket, ZMQ_CURVE_SECRETKEY, r->secret, AGENT_IPC_KEY) != 0 ||
        zmq_connect(s->socket, r->endpoint) != 0) {
        enum neb_status st = neb_fail(NEB_ERR_IO, "cannot connect to the agent at %s: %s",
                                      r->endpoint, zmq_strerror(zmq_errno()));
        agent_ipc_destroy(&s);
        return st;
    }
    *out = s;
    return NEB_OK;
}
