// SPDX-License-Identifier: Apache-2.0
#include "agent/web/user.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

enum { ESTABLISHED = 1 };

struct end { // an address as IPv6, and a port
    uint32_t words[4];
    unsigned port;
};

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

static bool end_of(const struct sockaddr *a, struct end *out) {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (a->sa_family == AF_INET) {
        memcpy(&v4, a, sizeof v4);
        memcpy(out->words, mapped, sizeof mapped);
        out->words[3] = v4.sin_addr.s_addr;
        out->port = ntohs(v4.sin_port);
        return true;
    }
    if (a->sa_family != AF_INET6)
        return false;
    memcpy(&v6, a, sizeof v6);
    memcpy(out->words, &v6.sin6_addr, sizeof out->words);
    out->port = ntohs(v6.sin6_port);
    return true;
}

bool agent_web_user_local(const struct sockaddr *a) {
    static const struct in6_addr one = IN6ADDR_LOOPBACK_INIT;
    struct end e;
    if (!end_of(a, &e))
        return false;
    return !memcmp(e.words, &one, sizeof e.words) ||
           (!memcmp(e.words, mapped, sizeof mapped) && ntohl(e.words[3]) >> 24 == 127);
}

// Parses "0100007F:24FE": words in this machine's byte order, one for IPv4, four for IPv6.
static bool end_read(const char *text, struct end *out) {
    unsigned w[4], port;
    if (strcspn(text, ":") == 8) {
        if (sscanf(text, "%8X:%4X", &w[3], &port) != 2)
            return false;
        memcpy(out->words, mapped, sizeof mapped);
        out->words[3] = w[3];
    } else {
        if (sscanf(text, "%8X%8X%8X%8X:%4X", &w[0], &w[1], &w[2], &w[3], &port) != 5)
            return false;
        for (int i = 0; i < 4; i++)
            out->words[i] = w[i];
    }
    out->port = port;
    return true;
}

static bool same(const struct end *a, const struct end *b) {
    return a->port == b->port && !memcmp(a->words, b->words, sizeof a->words);
}

static bool is_held(unsigned state, unsigned long inode) { return state == ESTABLISHED && inode; }

bool agent_web_user_find(FILE *table, const struct sockaddr *peer, const struct sockaddr *own,
                         unsigned user) {
    char line[512], from[40], to[40];
    struct end want, here, a, b;
    unsigned state, uid;
    unsigned long inode;
    if (!end_of(peer, &want) || !end_of(own, &here))
        return false;
    while (fgets(line, sizeof line, table)) {
        if (sscanf(line, " %*[0-9]: %39s %39s %2X %*s %*s %*s %u %*u %lu", from, to, &state, &uid,
                   &inode) != 5 ||
            !end_read(from, &a) || !end_read(to, &b) || !same(&a, &want))
            continue;
        if (same(&b, &here))
            return is_held(state, inode) && (uid == user || !uid);
    }
    return false;
}

// Asks for the socket whose own end is `from`. False: none, or the kernel does not support the
// query.
static bool ask_kernel(const struct end *from, const struct end *to, struct inet_diag_msg *out) {
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 ask;
    } q = {.head = {.nlmsg_len = sizeof q,
                    .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                    .nlmsg_flags = NLM_F_REQUEST},
           .ask = {.sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0u}};
    bool four = !memcmp(from->words, mapped, sizeof mapped);
    struct timeval limit = {.tv_sec = 1};
    _Alignas(struct nlmsghdr) char answer[1024];
    struct nlmsghdr head;
    q.ask.sdiag_family = four ? AF_INET : AF_INET6;
    memcpy(q.ask.id.idiag_src, four ? &from->words[3] : from->words, four ? 4 : 16);
    memcpy(q.ask.id.idiag_dst, four ? &to->words[3] : to->words, four ? 4 : 16);
    q.ask.id.idiag_sport = htons((uint16_t)from->port);
    q.ask.id.idiag_dport = htons((uint16_t)to->port);
    q.ask.id.idiag_cookie[0] = q.ask.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0)
        return false;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssize_t n =
        send(fd, &q, sizeof q, 0) == (ssize_t)sizeof q ? recv(fd, answer, sizeof answer, 0) : -1;
    close(fd);
    if (n < (ssize_t)(NLMSG_HDRLEN + sizeof(int)))
        return false;
    memcpy(&head, answer, sizeof head);
    if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY || n < (ssize_t)(NLMSG_HDRLEN + sizeof *out))
        return false;
    memcpy(out, answer + NLMSG_HDRLEN, sizeof *out);
    return true;
}

bool agent_web_user_ours(const struct sockaddr *peer, const struct sockaddr *own) {
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    struct inet_diag_msg m;
    struct end from, to;
    bool ours = false;
    if (!end_of(peer, &from) || !end_of(own, &to))
        return false;
    if (ask_kernel(&from, &to, &m))
        return is_held(m.idiag_state, m.idiag_inode) && (m.idiag_uid == geteuid() || !m.idiag_uid);
    for (int i = 0; i < 2 && !ours; i++) {
        FILE *f = fopen(tables[i], "re");
        if (!f)
            continue;
        ours = agent_web_user_find(f, peer, own, (unsigned)geteuid());
        fclose(f);
    }
    return ours;
}
