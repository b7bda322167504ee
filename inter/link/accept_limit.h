// SPDX-License-Identifier: Apache-2.0
// How often who has not said who it is may come to a port, before a handshake is paid for: each source (security/source.h) by itself, and all
// of them together, since who floods may have many addresses. What is beyond is to be cut by the caller, and its kernel drops what comes
// next (syn_filter.h), for a second, since a library has begun with a connection by the time that it tells of it.
//
//     a source ── its burst is used up ──► its requests are dropped
//     all that nobody known has come from ── their burst is used up ──► all requests are dropped but those whose source is known
//        └── it says who it is: not counted, and from now on its source is known
//
// One thread at a time.
#ifndef INTER_ACCEPT_LIMIT_H
#define INTER_ACCEPT_LIMIT_H
#include "inter/link/syn_filter.h"
#include "security/source_rate.h"

struct sockaddr_storage;

enum { INTER_ACCEPT_LIMIT_KNOWN_MAX = INTER_SYN_FILTER_MAX };

struct inter_accept_limit_rate { // so many connections at once, then so many a second
    uint32_t burst, second, all_burst, all_second;
    uint32_t known; // sources of one owner that are remembered, the newest; at least 1
};

struct inter_accept_limit {
    struct sec_source_rate sources;
    neb_ns all_gap, all_ahead, all_next; // GCRA, as source_rate.h
    struct {
        uint64_t from;
        neb_ns at; // newest proof
        uint32_t owner;
    } known[INTER_ACCEPT_LIMIT_KNOWN_MAX];
    struct {
        uint64_t from;
        neb_ns until;
    } out[INTER_SYN_FILTER_MAX];
    uint32_t n_known, n_out, known_each;
    neb_ns closed; // until then, to all that are not known; 0: open
    int listener;  // owned, with a filter; -1: none
    uint16_t port; // of it, in network byte order
    uint64_t refused,
        refused_all; // connections; refused_all: of these, by the bound of all together
    neb_ns said;
    const char *what; // in the log: "link"
};

struct inter_incoming { // of one connection
    uint64_t from;      // 0: the host itself, or gone
    bool counted;       // among all together
};

// After sec_init. what: borrowed.
void inter_accept_limit_init(struct inter_accept_limit *d, const char *what,
                             const struct inter_accept_limit_rate *rate);
// The descriptor that listens is duplicated; later ones are not taken.
void inter_accept_limit_listens(struct inter_accept_limit *d, int fd);
// Whether this connection may go on; if not, the caller cuts it. who: to be named in the log; NULL: not known. out: may be NULL.
bool inter_accept_limit_take(struct inter_accept_limit *d, uint64_t from,
                             const struct sockaddr_storage *who, neb_ns now,
                             struct inter_incoming *out);
// Both of a descriptor that ZeroMQ says it has accepted, cut where it may not go on. False too, and left alone, where it is no connection
// of the listener: the number is another's by the time that it is heard of.
bool inter_accept_limit_accepted(struct inter_accept_limit *d, int fd, neb_ns now,
                                 struct inter_incoming *out);
// Whoever comes from there is not counted among all together. owner: who has proved it, or is said to be there.
void inter_accept_limit_know(struct inter_accept_limit *d, uint64_t from, uint32_t owner,
                             neb_ns now);
// Nothing is known of an owner any more.
void inter_accept_limit_forget(struct inter_accept_limit *d, uint32_t owner);
// It has said that it is this owner: it is counted no more, and its source is known. Once a connection.
void inter_accept_limit_welcome(struct inter_accept_limit *d, const struct inter_incoming *v,
                                uint32_t owner, neb_ns now);
// Now and then: who may come again.
void inter_accept_limit_tick(struct inter_accept_limit *d, neb_ns now);
void inter_accept_limit_end(struct inter_accept_limit *d);

#endif
