// SPDX-License-Identifier: Apache-2.0
// Whose connection it is, as limits on strangers count: who has one host has all addresses of its network.
//
//     IPv6                                the network of 64 bits, which one host is given
//     IPv4, ::ffff:a.b.c.d                the address
//     64:ff9b::a.b.c.d (RFC 6052)         the IPv4 address that a translator shows so
//
// Who holds a larger network of IPv6 (a site has 2^8 to 2^16 of 64 bits) is as many sources.
#ifndef SEC_SOURCE_H
#define SEC_SOURCE_H
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

// To compare, not to print. IPv4 lies at 0:ffff:a:b::/64, where no IPv6 is given out. 0: neither of them, or the host itself (::1).
uint64_t sec_source_of(const struct sockaddr_storage *a);
// Of an address in figures; 0: it is none.
uint64_t sec_source_of_text(const char *address);
// Of an endpoint, "1.2.3.4:5" or "[1::2]:3"; 0: its host is a name, or it is none.
uint64_t sec_source_of_endpoint(const char *endpoint);
// The other end of a connection, also after it has reset it. false: this is none.
bool sec_address_of_peer(int fd, struct sockaddr_storage *out);
// Its source; 0: there is none.
uint64_t sec_source_of_peer(int fd);

#endif
