// SPDX-License-Identifier: Apache-2.0
// The control socket: see ctl.h.
#include "agent/wan/ctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

struct client {
    int fd; // -1 = free
    size_t len;
    char line[256];
};

struct wan_ctl {
    struct wan_mesh *mesh; // borrowed
    int epoll_fd, listen_fd;
    uint64_t tag;
    char path[108];
    struct client client[WAN_CTL_SLOTS - 1];
    struct neb_buf answer;
};

static enum neb_status address(const char *path, struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof out->sun_path)
        return neb_fail(NEB_ERR_LIMIT,
                        "wanlink: control socket '%s': the path is longer than %zu bytes", path,
                        sizeof out->sun_path - 1);
    snprintf(out->sun_path, sizeof out->sun_path, "%s", path);
    return NEB_OK;
}

enum neb_status wan_ctl_create(const char *path, struct wan_mesh *mesh, int epoll_fd, uint64_t tag,
                               struct wan_ctl **out) {
    *out = NULL;
    if (path == NULL)
        return NEB_OK;
    struct sockaddr_un addr;
    NEB_TRY(address(path, &addr));
    struct wan_ctl *c = calloc(1, sizeof *c);
    if (c == NULL)
        return neb_fail(NEB_ERR_NOMEM, "wanlink: no memory for the control socket");
    *c = (struct wan_ctl){.mesh = mesh, .epoll_fd = epoll_fd, .tag = tag};
    snprintf(c->path, sizeof c->path, "%s", path);
    for (unsigned i = 0; i < WAN_CTL_SLOTS - 1; i++)
        c->client[i].fd = -1;
    enum neb_status st = NEB_OK;
    c->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    // A killed emulator leaves its socket behind, and connecting to it is refused. Only such a
    // socket is replaced.
    if (c->listen_fd >= 0 && connect(c->listen_fd, (struct sockaddr *)&addr, sizeof addr) == 0) {
        st =
            neb_fail(NEB_ERR_EXISTS, "wanlink: control socket '%s': another process uses it", path);
        c->path[0] = 0; // the other process owns it: do not remove it
    } else if (c->listen_fd >= 0 && errno == ECONNREFUSED) {
        unlink(path);
    }
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = tag};
    if (st == NEB_OK &&
        (c->listen_fd < 0 || bind(c->listen_fd, (struct sockaddr *)&addr, sizeof addr) != 0 ||
         listen(c->listen_fd, 8) != 0 ||
         epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->listen_fd, &ev) != 0))
        st = neb_fail_errno("wanlink: control socket '%s'", path);
    if (st != NEB_OK)
        wan_ctl_destroy(&c);
    *out = c;
    return st;
}

static void drop(struct client *k) {
    if (k->fd >= 0)
        close(k->fd); // close also removes it from the epoll set
    k->fd = -1;
}

void wan_ctl_destroy(struct wan_ctl **pc) {
    struct wan_ctl *c = *pc;
    if (c == NULL)
        return;
    for (unsigned i = 0; i < WAN_CTL_SLOTS - 1; i++)
        drop(&c->client[i]);
    if (c->listen_fd >= 0)
        close(c->listen_fd);
    if (c->path[0] != 0)
        unlink(c->path);
    neb_buf_free(&c->answer);
    free(c);
    *pc = NULL;
}

static void accept_one(struct wan_ctl *c) {
    int fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    for (unsigned i = 0; i < WAN_CTL_SLOTS - 1; i++) {
        struct epoll_event ev = {.events = EPOLLIN, .data.u64 = c->tag + 1 + i};
        if (c->client[i].fd >= 0)
            continue;
        if (epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
            break;
        // An answer that does not fit at once drops the client: a client must not stall the links.
        int room = 1 << 18;
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        c->client[i] = (struct client){.fd = fd};
        return;
    }
    close(fd);
}

static bool run_line(struct wan_ctl *c, struct client *k, const char *line) {
    neb_buf_clear(&c->answer);
    wan_mesh_command(c->mesh, line, neb_now(), &c->answer);
    return !c->answer.oom && send(k->fd, c->answer.p, c->answer.len, MSG_NOSIGNAL | MSG_DONTWAIT) ==
                                 (ssize_t)c->answer.len;
}

void wan_ctl_handle(struct wan_ctl *c, unsigned slot) {
    if (c == NULL)
        return;
    if (slot == 0) {
        accept_one(c);
        return;
    }
    struct client *k = &c->client[slot - 1];
    if (k->fd < 0)
        return;
    ssize_t n = recv(k->fd, k->line + k->len, sizeof k->line - 1 - k->len, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    bool keep = n > 0;
    if (keep)
        k->len += (size_t)n;
    char *end;
    while (keep && (end = memchr(k->line, '\n', k->len)) != NULL) {
        *end = 0;
        keep = run_line(c, k, k->line);
        k->len -= (size_t)(end + 1 - k->line);
        memmove(k->line, end + 1, k->len);
    }
    if (k->len == sizeof k->line - 1) // no command is so long
        keep = false;
    if (!keep)
        drop(k);
}

enum neb_status wan_ctl_client(const char *path, const char *command) {
    struct sockaddr_un addr;
    NEB_TRY(address(path, &addr));
    enum neb_status st = NEB_OK;
    struct neb_buf text = {0};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval patience = {.tv_sec = 5};
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        connect(fd, (struct sockaddr *)&addr, sizeof addr) != 0) {
        st = neb_fail_errno("wanlink: control socket '%s' (does the emulator run?)", path);
        goto out;
    }
    wan_buf_printf(&text, "%s\n", command);
    if (text.oom || send(fd, text.p, text.len, MSG_NOSIGNAL) != (ssize_t)text.len) {
        st = neb_fail_errno("wanlink: control socket '%s': cannot send", path);
        goto out;
    }
    neb_buf_clear(&text);
    while (text.len == 0 || text.p[text.len - 1] != '\n') {
        uint8_t piece[4096];
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n <= 0) {
            st = neb_fail(NEB_ERR_IO, "wanlink: control socket '%s': no answer", path);
            goto out;
        }
        neb_buf_add(&text, piece, (size_t)n);
        NEB_TRY_GOTO(neb_buf_check(&text), out);
    }
    fwrite(text.p, 1, text.len, stdout);
    if (text.len >= 6 && memcmp(text.p, "error:", 6) == 0)
        st = NEB_ERR_INVALID;
out:
    if (fd >= 0)
        close(fd);
    neb_buf_free(&text);
    return st;
}
