// SPDX-License-Identifier: Apache-2.0
#include "inter/link/accept_limit.h"

#include "agent/base/log.h"
#include "security/source.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const neb_ns out_for = NEB_S, say_every = 600 * NEB_S;

void inter_accept_limit_init(struct inter_accept_limit *d, const char *what,
                             const struct inter_accept_limit_rate *rate) {
    memset(d, 0, sizeof *d);
    sec_source_rate_init(&d->sources, rate->second, rate->burst);
    d->all_gap = NEB_S / rate->all_second;
    d->all_ahead = (rate->all_burst - 1) * d->all_gap;
    d->known_each = rate->known;
    d->listener = -1;
    d->what = what;
}

// The local port; 0: none.
static uint16_t port_of(int fd) {
    struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return 0;
    return a.ss_family == AF_INET6  ? ((struct sockaddr_in6 *)(void *)&a)->sin6_port
           : a.ss_family == AF_INET ? ((struct sockaddr_in *)(void *)&a)->sin_port
                                    : 0;
}

void inter_accept_limit_listens(struct inter_accept_limit *d, int fd) {
    if (d->listener >= 0)
        return;
    d->listener = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    d->port = port_of(fd);
}

// ---- the kernel's filter ------------------------------------------------------------------------

static void filter(struct inter_accept_limit *d) {
    uint64_t from[INTER_SYN_FILTER_MAX];
    uint32_t n = 0;
    // closed to strangers: the filter lists the known sources, without those over their own limit
    bool known = d->closed != 0;
    for (uint32_t i = 0; i < (known ? d->n_known : d->n_out); i++) {
        bool out = false;
        from[n] = known ? d->known[i].from : d->out[i].from;
        for (uint32_t k = 0; k < d->n_out && known; k++)
            out |= d->out[k].from == from[n];
        n += !out;
    }
    if (d->listener >= 0 &&
        !inter_syn_filter(d->listener, known ? INTER_SYN_ONLY_FROM : INTER_SYN_NOT_FROM, from, n))
        neb_debug(
            "%s: this kernel does not filter requests: connections are cut after they are accepted",
            d->what);
}

static void keep_out(struct inter_accept_limit *d, uint64_t from, neb_ns now) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < d->n_out; i++) {
        if (d->out[i].from == from)
            return; // this connection came before the filter was set
        at = d->out[i].until < d->out[at].until ? i : at;
    }
    if (d->n_out < INTER_SYN_FILTER_MAX)
        at = d->n_out++;
    d->out[at].from = from;
    d->out[at].until = now + out_for;
    filter(d);
}

static void close_to_strangers(struct inter_accept_limit *d, neb_ns now) {
    if (d->closed)
        return;
    d->closed = now + out_for;
    filter(d);
}

void inter_accept_limit_tick(struct inter_accept_limit *d, neb_ns now) {
    uint32_t n = 0;
    bool opens = d->closed && d->closed <= now;
    for (uint32_t i = 0; i < d->n_out; i++)
        if (d->out[i].until > now)
            d->out[n++] = d->out[i];
    if (n == d->n_out && !opens)
        return;
    d->n_out = n;
    d->closed = opens ? 0 : d->closed;
    filter(d);
}

// ---- connections and sources --------------------------------------------------------------------

static uint32_t known_at(const struct inter_accept_limit *d, uint64_t from) {
    uint32_t i = 0;
    while (i < d->n_known && d->known[i].from != from)
        i++;
    return i;
}

static void say_who(struct inter_accept_limit *d, const struct sockaddr_storage *who, neb_ns now,
                    bool all) {
    char host[64] = "an address";
    d->refused++;
    d->refused_all += all;
    if (d->said && now - d->said < say_every)
        return;
    d->said = now;
    if (who)
        (void)!getnameinfo((const void *)who,
                           who->ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                                     : sizeof(struct sockaddr_in6),
                           host, sizeof host, NULL, 0, NI_NUMERICHOST);
    neb_warn("%s: %s%s: connections that do not introduce themselves are limited to %u a second%s "
             "(%llu cut since the start)",
             d->what, all ? "many addresses, the last is " : "",
             strncmp(host, "::ffff:", 7) ? host : host + 7,
             (unsigned)(NEB_S / (all ? d->all_gap : d->sources.gap)), all ? " together" : "",
             (unsigned long long)d->refused);
}

bool inter_accept_limit_take(struct inter_accept_limit *d, uint64_t from,
                             const struct sockaddr_storage *who, neb_ns now,
                             struct inter_incoming *out) {
    struct inter_incoming none;
    out = out ? out : &none;
    *out = (struct inter_incoming){.from = from};
    if (!from)
        return true;
    if (!sec_source_rate_take(&d->sources, from, now)) {
        say_who(d, who, now, false);
        keep_out(d, from, now);
        return false;
    }
    if (known_at(d, from) < d->n_known)
        return true;
    neb_ns at = d->all_next > now ? d->all_next : now;
    if (at - now > d->all_ahead) {
        sec_source_rate_give_back(&d->sources, from);
        say_who(d, who, now, true);
        close_to_strangers(d, now);
        return false;
    }
    d->all_next = at + d->all_gap;
    out->counted = true;
    return true;
}

bool inter_accept_limit_accepted(struct inter_accept_limit *d, int fd, neb_ns now,
                                 struct inter_incoming *out) {
    struct sockaddr_storage who;
    bool is_there = sec_address_of_peer(fd, &who);
    if (d->port && port_of(fd) != d->port)
        return false;
    if (inter_accept_limit_take(d, is_there ? sec_source_of(&who) : 0, is_there ? &who : NULL, now,
                                out))
        return true;
    shutdown(fd, SHUT_RDWR);
    return false;
}

// The place of a new source. If the owner has its full number, it replaces the owner's oldest
// source; else it takes a free place, or replaces the oldest source of all.
static uint32_t known_place(struct inter_accept_limit *d, uint32_t owner) {
    uint32_t of_owner = 0, oldest = UINT32_MAX;
    for (uint32_t i = 0; i < d->n_known; i++)
        of_owner += d->known[i].owner == owner;
    bool own = of_owner >= d->known_each;
    if (!own && d->n_known < INTER_ACCEPT_LIMIT_KNOWN_MAX)
        return d->n_known++;
    for (uint32_t i = 0; i < d->n_known; i++)
        if ((!own || d->known[i].owner == owner) &&
            (oldest == UINT32_MAX || d->known[i].at < d->known[oldest].at))
            oldest = i;
    return oldest;
}

void inter_accept_limit_know(struct inter_accept_limit *d, uint64_t from, uint32_t owner,
                             neb_ns now) {
    uint32_t i = known_at(d, from);
    if (!from)
        return;
    bool is_new = i == d->n_known;
    if (is_new)
        i = known_place(d, owner);
    d->known[i].from = from;
    d->known[i].owner = owner;
    d->known[i].at = now;
    if (is_new && d->closed)
        filter(d);
}

void inter_accept_limit_forget(struct inter_accept_limit *d, uint32_t owner) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_known; i++)
        if (d->known[i].owner != owner)
            d->known[n++] = d->known[i];
    bool fewer = n < d->n_known;
    d->n_known = n;
    if (fewer && d->closed)
        filter(d);
}

void inter_accept_limit_welcome(struct inter_accept_limit *d, const struct inter_incoming *v,
                                uint32_t owner, neb_ns now) {
    if (!v->from)
        return;
    sec_source_rate_give_back(&d->sources, v->from);
    d->all_next -= v->counted ? d->all_gap : 0;
    inter_accept_limit_know(d, v->from, owner, now);
}

void inter_accept_limit_end(struct inter_accept_limit *d) {
    if (d->listener >= 0)
        close(d->listener);
    d->listener = -1;
}
