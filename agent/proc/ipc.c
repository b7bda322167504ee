// SPDX-License-Identifier: Apache-2.0
#include "agent/proc/ipc.h"
#include "agent/base/fault.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/moved.h"
#include "agent/base/plain.h"
#include "agent/proc/ipc_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { OWN_NAME = 5 };

void agent_ipc_msg_clear(struct agent_ipc_msg *m) {
    json_decref(m->head);
    for (size_t i = 0; i < m->n_parts; i++)
        zmq_msg_close(&m->frames[i]);
    *m = (struct agent_ipc_msg){0};
}

void agent_ipc_msg_take_parts(struct agent_ipc_msg *to, struct agent_ipc_msg *from) {
    agent_ipc_msg_clear(to);
    for (size_t i = 0; i < from->n_parts; i++) {
        zmq_msg_init(&to->frames[i]);
        zmq_msg_move(&to->frames[i], &from->frames[i]);
        zmq_msg_close(&from->frames[i]);
        // a short part lies inside of its frame, so its address has changed
        to->parts[i] = (struct agent_ipc_part){zmq_msg_data(&to->frames[i]), from->parts[i].len};
    }
    to->n_parts = from->n_parts;
    from->n_parts = 0;
}

const char *agent_ipc_str(const struct agent_ipc_msg *m, const char *key, const char *def) {
    const char *s = json_string_value(json_object_get(m->head, key));
    return s ? s : def;
}

int64_t agent_ipc_int(const struct agent_ipc_msg *m, const char *key, int64_t def) {
    json_t *v = json_object_get(m->head, key);
    return json_is_integer(v) ? json_integer_value(v) : def;
}

enum neb_status agent_ipc_path_fits(const char *path) {
    const size_t cap = sizeof(((struct sockaddr_un *)0)->sun_path);
    json_t *text = json_string(path);
    json_decref(text);
    if (!text)
        return neb_fail(NEB_ERR_INVALID,
                        "%s is not UTF-8 text, which messages between an agent and its workers "
                        "need: choose another --home or --out",
                        path);
    return strlen(path) < cap
               ? NEB_OK
               : neb_fail(NEB_ERR_LIMIT,
                          "socket path longer than %zu bytes: %s; choose a shorter --home or --out",
                          cap - 1, path);
}

int agent_ipc_protocol(void) {
    return NEB_PROTOCOL + neb_fault("ipc.protocol"); // tests make an agent and a worker differ
}

bool agent_ipc_speaks_ours(const struct agent_ipc_msg *m, const char *who, char *why, size_t cap) {
    int64_t theirs = agent_ipc_int(m, "protocol", 0);
    if (theirs == NEB_PROTOCOL)
        return true;
    snprintf(why, cap,
             "the %s is nebula %.63s and speaks protocol %lld, the agent is nebula %s and speaks "
             "protocol %d: install the same version for both, and restart the agent if its program "
             "was replaced while it ran",
             who, agent_ipc_str(m, "build", "of an unknown build"), (long long)theirs, neb_build(),
             NEB_PROTOCOL);
    neb_plain(why, false);
    return false;
}

static enum neb_status ipc_open(void *zctx, const char *path, bool server, struct agent_ipc **out) {
    char endpoint[sizeof(((struct sockaddr_un *)0)->sun_path) + 8];
    int linger = 1000, queue = 4096, one = 1;
    NEB_TRY(agent_ipc_path_fits(path));
    snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
    struct agent_ipc *s = calloc(1, sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "out of memory opening %s", path);
    s->server = server;
    s->socket = zmq_socket(zctx, server ? ZMQ_ROUTER : ZMQ_DEALER);
    if (!s->socket)
        goto fail;
    zmq_setsockopt(s->socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(s->socket, ZMQ_SNDHWM, &queue, sizeof queue);
    zmq_setsockopt(s->socket, ZMQ_RCVHWM, &queue, sizeof queue);
    if (server)
        zmq_setsockopt(s->socket, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    mode_t mask = umask(0177);
    int rc = server ? zmq_bind(s->socket, endpoint) : zmq_connect(s->socket, endpoint);
    umask(mask);
    if (rc != 0)
        goto fail;
    *out = s;
    return NEB_OK;
fail:
    neb_log(NEB_LOG_ERROR, "cannot open %s: %s", endpoint, zmq_strerror(zmq_errno()));
    agent_ipc_destroy(&s);
    return NEB_ERR_IO;
}

// Other users with write permission for the folder could replace the socket by their own.
static enum neb_status check_folder(const char *path) {
    char dir[NEB_PATH_MAX];
    struct stat info;
    neb_path_folder(dir, sizeof dir, path);
    if (stat(dir, &info) != 0)
        return neb_fail_errno("cannot look at folder %s", dir);
    if (info.st_mode & 022)
        return neb_fail(NEB_ERR_DENIED, "other users can write to %s (mode %03o): chmod 700 it",
                        dir, (unsigned)(info.st_mode & 0777));
    return NEB_OK;
}

enum neb_status agent_ipc_listen(void *zctx, const char *path, struct agent_ipc **out) {
    NEB_TRY(check_folder(path));
    return ipc_open(zctx, path, true, out);
}

enum neb_status agent_ipc_connect(void *zctx, const char *path, struct agent_ipc **out) {
    if (access(path, R_OK | W_OK) != 0 && errno != ENOENT) // ZeroMQ would retry for ever
        return neb_fail_errno("cannot reach the agent at %s", path);
    return ipc_open(zctx, path, false, out);
}

bool agent_ipc_is_here(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return false;
    memcpy(a.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool here = fd >= 0 && (connect(fd, (const struct sockaddr *)&a, sizeof a) == 0 ||
                            errno == EAGAIN); // its queue is full: it is busy, but there
    int why = errno;
    if (fd >= 0)
        close(fd);
    errno = why;
    return here;
}

bool agent_ipc_is_nobody(const char *path) {
    const neb_ns starts = NEB_S; // time from creating the file to listen(2)
    for (neb_ns end = neb_now() + starts;; neb_sleep(20 * NEB_MS)) {
        if (agent_ipc_is_here(path) || (errno != ENOENT && errno != ECONNREFUSED))
            return false;
        if (errno == ENOENT || neb_now() >= end)
            return true;
    }
}

void agent_ipc_destroy(struct agent_ipc **sp) {
    if (*sp && (*sp)->socket)
        zmq_close((*sp)->socket);
    if (*sp && (*sp)->close_remote)
        (*sp)->close_remote(*sp);
    free(*sp);
    *sp = NULL;
}

void *agent_ipc_socket(const struct agent_ipc *s) { return s->socket; }

void *agent_ipc_remote_socket(const struct agent_ipc *s) { return s->remote; }

void *agent_ipc_remote_monitor(const struct agent_ipc *s) { return s->monitor; }

static enum neb_status failed(int e) {
    return e == EAGAIN || e == EHOSTUNREACH
               ? NEB_ERR_AGAIN
               : neb_fail(NEB_ERR_IO, "local socket: %s", zmq_strerror(e));
}

enum neb_status ipc_send_frame(void *socket, const void *p, size_t n, bool more) {
    while (zmq_send(socket, p, n, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) < 0)
        if (zmq_errno() != EINTR)
            return failed(zmq_errno());
    return NEB_OK;
}

// Copies a part. The agent's copies of large updates count as progress (moved.h), piece by piece; a
// worker's do not.
static enum neb_status copy_part(const struct agent_ipc *s, const struct agent_ipc_part *part,
                                 zmq_msg_t *out) {
    if (zmq_msg_init_size(out, part->len) != 0)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for a local message of %zu bytes", part->len);
    uint8_t *to = zmq_msg_data(out);
    const uint8_t *from = part->p;
    for (size_t at = 0, n; at < part->len; at += n) {
        n = part->len - at < NEB_MOVED_PIECE ? part->len - at : NEB_MOVED_PIECE;
        memcpy(to + at, from + at, n);
        if (!s->server || part->len <= NEB_MOVED_PIECE)
            continue;
        (void)neb_fault("ipc.copy"); // tests delay copies here
        neb_moved_add(n);
    }
    return NEB_OK;
}

// Copies all parts before it sends the first frame: the next message would be appended to half a
// message.
static enum neb_status send_local(struct agent_ipc *s, const struct agent_ipc_client *to,
                                  const char *text, const struct agent_ipc_part *parts,
                                  size_t n_parts) {
    zmq_msg_t copies[AGENT_IPC_PARTS_MAX];
    size_t n = 0, sent = 0;
    enum neb_status st = NEB_OK;
    for (; n < n_parts && st == NEB_OK; n += st == NEB_OK)
        st = copy_part(s, &parts[n], &copies[n]);
    if (st == NEB_OK && s->server)
        st = ipc_send_frame(s->socket, to->id, to->len, true);
    if (st == NEB_OK)
        st = ipc_send_frame(s->socket, text, strlen(text), n > 0);
    while (sent < n && st == NEB_OK)
        if (zmq_msg_send(&copies[sent], s->socket,
                         ZMQ_DONTWAIT | (sent + 1 < n ? ZMQ_SNDMORE : 0)) >= 0)
            sent++;
        else if (zmq_errno() != EINTR)
            st = failed(zmq_errno());
    for (; sent < n; sent++)
        zmq_msg_close(&copies[sent]);
    return st;
}

enum neb_status agent_ipc_send(struct agent_ipc *s, const struct agent_ipc_client *to, json_t *head,
                               const struct agent_ipc_part *parts, size_t n_parts) {
    enum neb_status st = NEB_OK;
    char *text = head ? json_dumps(head, JSON_COMPACT) : NULL;
    bool made = head != NULL;
    json_decref(head);
    NEB_ASSERT(n_parts <= AGENT_IPC_PARTS_MAX);
    if (!made)
        return neb_fail(NEB_ERR_INVALID,
                        "a local message contains text that is not UTF-8, or memory is exhausted");
    if (!text)
        return neb_fail(NEB_ERR_NOMEM, "out of memory writing a local message");
    bool framed = s->server ? to->remote : s->framed;
    void *socket = s->server && framed ? s->remote : s->socket;
    if (!framed)
        st = send_local(s, to, text, parts, n_parts);
    else if (!socket)
        st = NEB_ERR_AGAIN; // this server never listened for other hosts
    else {
        if (s->server)
            st = ipc_send_frame(socket, to->id, to->len, true);
        if (st == NEB_OK)
            st = ipc_remote_send(socket, text, strlen(text), parts, n_parts, s->server);
    }
    free(text);
    return st;
}

int ipc_recv_frame(void *socket, zmq_msg_t *out) {
    int n;
    do
        n = zmq_msg_recv(out, socket, ZMQ_DONTWAIT);
    while (n < 0 && zmq_errno() == EINTR);
    return n;
}

bool ipc_more_frames(void *socket) {
    int more = 0;
    size_t n = sizeof more;
    zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &n);
    return more;
}

static void drop_rest(void *socket) {
    while (ipc_more_frames(socket)) {
        zmq_msg_t f;
        zmq_msg_init(&f);
        int rc = ipc_recv_frame(socket, &f);
        zmq_msg_close(&f);
        if (rc < 0)
            break;
    }
}

enum neb_status ipc_malformed(void *socket, struct agent_ipc_msg *m) {
    drop_rest(socket);
    agent_ipc_msg_clear(m);
    return neb_fail(NEB_ERR_FORMAT, "local socket: malformed message dropped");
}

enum neb_status ipc_recv_name(void *socket, struct agent_ipc_client *from, zmq_msg_t *first) {
    if (ipc_recv_frame(socket, first) < 0)
        return NEB_ERR_AGAIN;
    // Refuses names that a client chose itself: ZeroMQ's own names have five bytes and begin with
    // 0.
    if (zmq_msg_size(first) != OWN_NAME || *(const uint8_t *)zmq_msg_data(first) != 0 ||
        !ipc_more_frames(socket))
        return NEB_ERR_FORMAT;
    *from = (struct agent_ipc_client){.len = OWN_NAME};
    memcpy(from->id, zmq_msg_data(first), OWN_NAME);
    return NEB_OK;
}

enum neb_status ipc_parse_head(const void *p, size_t n, struct agent_ipc_msg *m) {
    if (n > AGENT_IPC_HEAD_MAX)
        return NEB_ERR_FORMAT;
    m->head = json_loadb(p, n, JSON_REJECT_DUPLICATES, NULL);
    return json_is_object(m->head) ? NEB_OK : NEB_ERR_FORMAT;
}

static enum neb_status recv_local(struct agent_ipc *s, struct agent_ipc_client *from,
                                  struct agent_ipc_msg *m) {
    zmq_msg_t f;
    zmq_msg_init(&f);
    enum neb_status st = s->server ? ipc_recv_name(s->socket, from, &f) : NEB_OK;
    if (st == NEB_OK && ipc_recv_frame(s->socket, &f) < 0)
        st = NEB_ERR_AGAIN;
    if (st == NEB_OK)
        st = ipc_parse_head(zmq_msg_data(&f), zmq_msg_size(&f), m);
    zmq_msg_close(&f);
    if (st != NEB_OK)
        return st == NEB_ERR_AGAIN ? st : ipc_malformed(s->socket, m);
    while (ipc_more_frames(s->socket)) {
        if (m->n_parts == AGENT_IPC_PARTS_MAX)
            return ipc_malformed(s->socket, m);
        zmq_msg_t *part = &m->frames[m->n_parts];
        zmq_msg_init(part);
        if (ipc_recv_frame(s->socket, part) < 0) {
            zmq_msg_close(part);
            break;
        }
        m->parts[m->n_parts++] = (struct agent_ipc_part){zmq_msg_data(part), zmq_msg_size(part)};
    }
    return NEB_OK;
}

enum neb_status agent_ipc_recv(struct agent_ipc *s, struct agent_ipc_client *from,
                               struct agent_ipc_msg *m) {
    *m = (struct agent_ipc_msg){0};
    if (s->framed)
        return ipc_remote_recv(s, from, m);
    enum neb_status st = recv_local(s, from, m);
    return st == NEB_ERR_AGAIN && s->remote ? ipc_remote_recv(s, from, m) : st;
}

enum neb_status agent_ipc_wait(struct agent_ipc *s, neb_ns timeout, struct agent_ipc_msg *m) {
    struct agent_ipc_client nobody;
    neb_ns deadline = neb_now() + timeout;
    for (;;) {
        enum neb_status st = agent_ipc_recv(s, &nobody, m);
        if (st != NEB_ERR_AGAIN)
            return st;
        neb_ns left = deadline - neb_now();
        if (left <= 0)
            return NEB_ERR_TIMEOUT;
        zmq_pollitem_t item = {.socket = s->socket, .events = ZMQ_POLLIN};
        if (zmq_poll(&item, 1, (long)((left + NEB_MS - 1) / NEB_MS)) < 0 && zmq_errno() == EINTR)
            return NEB_ERR_INTERRUPTED;
    }
}
