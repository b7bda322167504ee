#include "agent/ipc.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

enum { OWN_NAME = 5 };

struct agent_ipc {
    void *socket;
    bool server;
};

void agent_ipc_msg_clear(struct agent_ipc_msg *m) {
    json_decref(m->head);
    for (size_t i = 0; i < m->n_parts; i++)
        zmq_msg_close(&m->frames[i]);
    *m = (struct agent_ipc_msg){0};
}

const char *agent_ipc_str(const struct agent_ipc_msg *m, const char *key, const char *def) {
    const char *s = json_string_value(json_object_get(m->head, key));
    return s ? s : def;
}

int64_t agent_ipc_int(const struct agent_ipc_msg *m, const char *key, int64_t def) {
    json_t *v = json_object_get(m->head, key);
    return json_is_integer(v) ? json_integer_value(v) : def;
}

static enum neb_status ipc_open(void *zctx, const char *path, bool server, struct agent_ipc **out) {
    char endpoint[sizeof(((struct sockaddr_un *)0)->sun_path) + 8];
    int linger = 1000, queue = 4096, one = 1;
    if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
        return neb_fail(NEB_ERR_LIMIT,
                        "socket path longer than %zu bytes: %s; choose a shorter --home or --out",
                        sizeof(((struct sockaddr_un *)0)->sun_path) - 1, path);
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

// Others who can write the folder could put a socket of their own in this one's place.
static enum neb_status check_folder(const char *path) {
    char dir[NEB_PATH_MAX];
    struct stat info;
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (stat(dir, &info) != 0)
        return neb_fail_errno("%s", dir);
    if (info.st_mode & 022)
        return neb_fail(NEB_ERR_DENIED, "%s can be written by others (mode %03o): chmod 700 it",
                        dir, (unsigned)(info.st_mode & 0777));
    return NEB_OK;
}

enum neb_status agent_ipc_listen(void *zctx, const char *path, struct agent_ipc **out) {
    NEB_TRY(check_folder(path));
    return ipc_open(zctx, path, true, out);
}

enum neb_status agent_ipc_connect(void *zctx, const char *path, struct agent_ipc **out) {
    return ipc_open(zctx, path, false, out);
}

void agent_ipc_destroy(struct agent_ipc **sp) {
    if (*sp && (*sp)->socket)
        zmq_close((*sp)->socket);
    free(*sp);
    *sp = NULL;
}

void *agent_ipc_socket(const struct agent_ipc *s) { return s->socket; }

static enum neb_status send_frame(void *socket, const void *p, size_t n, bool more) {
    for (;;) {
        if (zmq_send(socket, p, n, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0)
            return NEB_OK;
        int e = zmq_errno();
        if (e == EINTR)
            continue;
        if (e == EAGAIN || e == EHOSTUNREACH)
            return NEB_ERR_AGAIN;
        return neb_fail(NEB_ERR_IO, "local socket: %s", zmq_strerror(e));
    }
}

enum neb_status agent_ipc_send(struct agent_ipc *s, const struct agent_ipc_client *to, json_t *head,
                               const struct agent_ipc_part *parts, size_t n_parts) {
    enum neb_status st = NEB_OK;
    char *text = json_dumps(head, JSON_COMPACT);
    json_decref(head);
    NEB_ASSERT(n_parts <= AGENT_IPC_PARTS_MAX);
    if (!text)
        return neb_fail(NEB_ERR_NOMEM, "out of memory writing a local message");
    if (s->server)
        NEB_TRY_GOTO(send_frame(s->socket, to->id, to->len, true), out);
    NEB_TRY_GOTO(send_frame(s->socket, text, strlen(text), n_parts > 0), out);
    for (size_t i = 0; i < n_parts; i++)
        NEB_TRY_GOTO(send_frame(s->socket, parts[i].p, parts[i].len, i + 1 < n_parts), out);
out:
    free(text);
    return st;
}

static bool more_frames(void *socket) {
    int more = 0;
    size_t n = sizeof more;
    zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &n);
    return more;
}

static void drop_rest(void *socket) {
    while (more_frames(socket)) {
        zmq_msg_t f;
        zmq_msg_init(&f);
        int rc = zmq_msg_recv(&f, socket, ZMQ_DONTWAIT);
        zmq_msg_close(&f);
        if (rc < 0)
            break;
    }
}

enum neb_status agent_ipc_recv(struct agent_ipc *s, struct agent_ipc_client *from,
                               struct agent_ipc_msg *m) {
    *m = (struct agent_ipc_msg){0};
    zmq_msg_t f;
    zmq_msg_init(&f);
    if (s->server) {
        if (zmq_msg_recv(&f, s->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&f);
            return NEB_ERR_AGAIN;
        }
        // Names that a client has chosen are refused: ZeroMQ's own are five bytes and begin with 0.
        if (zmq_msg_size(&f) != OWN_NAME || *(const uint8_t *)zmq_msg_data(&f) != 0 ||
            !more_frames(s->socket))
            goto malformed;
        from->len = (uint8_t)zmq_msg_size(&f);
        memcpy(from->id, zmq_msg_data(&f), from->len);
    }
    if (zmq_msg_recv(&f, s->socket, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&f);
        return NEB_ERR_AGAIN;
    }
    if (zmq_msg_size(&f) > AGENT_IPC_HEAD_MAX)
        goto malformed;
    m->head = json_loadb(zmq_msg_data(&f), zmq_msg_size(&f), JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(m->head))
        goto malformed;
    zmq_msg_close(&f);
    while (more_frames(s->socket)) {
        if (m->n_parts == AGENT_IPC_PARTS_MAX) {
            zmq_msg_init(&f);
            goto malformed;
        }
        zmq_msg_t *part = &m->frames[m->n_parts];
        zmq_msg_init(part);
        if (zmq_msg_recv(part, s->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(part);
            break;
        }
        m->parts[m->n_parts++] = (struct agent_ipc_part){zmq_msg_data(part), zmq_msg_size(part)};
    }
    return NEB_OK;
malformed:
    zmq_msg_close(&f);
    drop_rest(s->socket);
    agent_ipc_msg_clear(m);
    return neb_fail(NEB_ERR_FORMAT, "local socket: malformed message dropped");
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
