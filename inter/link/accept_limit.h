// SPDX-License-Identifier: Apache-2.0
// The accept limiter: how many connections strangers may open to a port, because each handshake
// costs work. It limits each source (security/source.h), and all unknown sources together, since an
// attacker may have many addresses. The caller closes connections over the limit. The kernel then
// drops further requests for one second (syn_filter.h), because a library has already worked for a
// connection when it reports it.
//
//     a source ── its burst is used up ──► its requests are dropped
//     all unknown sources ── their common burst is used up ──► all requests are dropped,
//        │                                                     except those of known sources
//        └── a connection introduces itself ──► its charge is returned, its source is known
//
// Threads: one at a time.
#ifndef INTER_ACCEPT_LIMIT_H
#define INTER_ACCEPT_LIMIT_H
#include "inter/link/syn_filter.h"
#include "security/source.h"

struct sockaddr_storage;

enum { INTER_ACCEPT_LIMIT_KNOWN_MAX = INTER_SYN_FILTER_MAX };

struct inter_accept_limit_rate { // connections at once (burst), then per second
    uint32_t burst, second, all_burst, all_second;
    uint32_t known; // the newest sources remembered per owner; at least 1
};

struct inter_accept_limit {
    struct sec_source_rate sources;
    neb_ns all_gap, all_ahead, all_next; // GCRA, as in security/source_rate.h
    struct {
        uint64_t from;
        neb_ns at; // when the owner last proved its identity
        uint32_t owner;
    } known[INTER_ACCEPT_LIMIT_KNOWN_MAX];
    struct {
        uint64_t from;
        neb_ns until;
    } out[INTER_SYN_FILTER_MAX];
    uint32_t n_known, n_out, known_each;
    neb_ns closed; // unknown sources are dropped until then; 0: open
    int listener;  // owned, with a filter; -1: none
    uint16_t port; // of the listener, in network byte order
    uint64_t refused,
        refused_all; // refused connections: all, and those over the common limit
    neb_ns said;
    const char *what; // name in the log: "link"
};

struct inter_incoming { // one connection
    uint64_t from;      // 0: this host itself, or the connection is gone
    bool counted;       // charged to the common limit
};

// Call after sec_init. what: borrowed.
void inter_accept_limit_init(struct inter_accept_limit *d, const char *what,
                             const struct inter_accept_limit_rate *rate);
// Duplicates the listening descriptor. Only the first call counts.
void inter_accept_limit_listens(struct inter_accept_limit *d, int fd);
// True if a connection may go on. If not, the caller closes it. who: the address for the log; NULL:
// not known. out: may be NULL.
bool inter_accept_limit_take(struct inter_accept_limit *d, uint64_t from,
                             const struct sockaddr_storage *who, neb_ns now,
                             struct inter_incoming *out);
// The same for a descriptor that ZeroMQ has accepted. Shuts it down if it may not go on. Returns
// false and leaves the descriptor alone if it is no connection of the listener: its number may
// belong to another connection by now.
bool inter_accept_limit_accepted(struct inter_accept_limit *d, int fd, neb_ns now,
                                 struct inter_incoming *out);
// Makes a source known: the common limit does not count it. owner: the member that has proved
// itself from this source, or that is listed with it.
void inter_accept_limit_know(struct inter_accept_limit *d, uint64_t from, uint32_t owner,
                             neb_ns now);
// Forgets all sources of an owner.
void inter_accept_limit_forget(struct inter_accept_limit *d, uint32_t owner);
// The connection has proved that it belongs to this owner. Returns its charge and makes its source
// known. Call it once per connection.
void inter_accept_limit_welcome(struct inter_accept_limit *d, const struct inter_incoming *v,
                                uint32_t owner, neb_ns now);
// From time to time: ends blocks that have expired.
void inter_accept_limit_tick(struct inter_accept_limit *d, neb_ns now);
void inter_accept_limit_end(struct inter_accept_limit *d);

#endif
