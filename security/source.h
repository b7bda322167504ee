// SPDX-License-Identifier: Apache-2.0
// The source of a connection. Limits on strangers count by source. A host with one address of a
// network can use all of them.
//
//     IPv6                                the network of 64 bits, which one host is given
//     IPv4, ::ffff:a.b.c.d                the address
//     64:ff9b::a.b.c.d (RFC 6052)         the IPv4 address that a translator shows like this
//
// A larger IPv6 network is several sources: a site has 2^8 to 2^16 networks of 64 bits.
#ifndef SEC_SOURCE_H
#define SEC_SOURCE_H
#include "agent/base/clock.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

// A value to compare, not to print. IPv4 is at 0:ffff:a:b::/64, which no IPv6 network uses. 0:
// neither family, or the host itself (::1).
uint64_t sec_source_of(const struct sockaddr_storage *a);
// The source of a numeric address; 0: the text is not one.
uint64_t sec_source_of_text(const char *address);
// The source of an endpoint, "1.2.3.4:5" or "[1::2]:3"; 0: its host is a name, or the text is not
// an endpoint.
uint64_t sec_source_of_endpoint(const char *endpoint);
// The address of the other end of a connection, also after a reset. False: fd is not a connection.
bool sec_address_of_peer(int fd, struct sockaddr_storage *out);
// The source of the other end; 0: there is none.
uint64_t sec_source_of_peer(int fd);

// ---- how often a source may come ----------------------------------------------------------------
//
// Limits how often each source may come: a burst at once, then a fixed number per second. A
// flood takes no share of other sources. Pure.
//
// Each source has a virtual clock (GCRA, ITU-T I.371). Each visit moves it on by a gap, and it may
// run ahead of the real clock by the burst. A secret hash puts sources into buckets: the memory is
// fixed, and strangers cannot choose whose bucket they share.

enum { SEC_SOURCE_BUCKETS = 4096, SEC_SOURCE_KEY_BYTES = 16 };

struct sec_source_rate {
    uint8_t key[SEC_SOURCE_KEY_BYTES];
    neb_ns gap, ahead;
    neb_ns next[SEC_SOURCE_BUCKETS]; // virtual clocks
};

// Call after sec_init. per_second and burst of one source, each at least 1.
void sec_source_rate_init(struct sec_source_rate *r, uint32_t per_second, uint32_t burst);
// True if this source may come now. It is then counted.
bool sec_source_rate_take(struct sec_source_rate *r, uint64_t source, neb_ns now);
// Takes back one visit of a source that turned out to be known.
void sec_source_rate_give_back(struct sec_source_rate *r, uint64_t source);

// ---- handshakes of strangers --------------------------------------------------------------------
//
// Limits the TLS handshakes of strangers. Pure.
//
//     each source              SEC_RATE_BURST at once, then SEC_RATE_SECOND per second
//     all together             processor time: SEC_RATE_PERCENT of a core, and after a rest
//                              SEC_RATE_SAVED_MS more
//
// The second limit counts the thread's processor time for handshakes, requests and proofs, so it
// means the same on every machine. It does not interrupt a handshake that has begun.

enum {
    SEC_RATE_SECOND = 4, // from one source
    SEC_RATE_BURST = 64,
    SEC_RATE_PERCENT = 5, // of a core, for all sources
    SEC_RATE_SAVED_MS = 200,
};

struct sec_enrol_rate {
    struct sec_source_rate sources;
    neb_ns paid; // when the cost of all is paid for
};

void sec_enrol_rate_init(struct sec_enrol_rate *r);
// True if this source may begin a handshake now. It is then counted.
bool sec_enrol_rate_take(struct sec_enrol_rate *r, uint64_t source, neb_ns now);
// Charges what strangers have cost, in processor time.
void sec_enrol_rate_spent(struct sec_enrol_rate *r, neb_ns cost, neb_ns now);

#endif
