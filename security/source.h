// SPDX-License-Identifier: Apache-2.0
// The source of a connection, by which limits on strangers count. A host with one address of a
// network can use all of them.
//
//     IPv6                                the network of 64 bits, which one host is given
//     IPv4, ::ffff:a.b.c.d                the address
//     64:ff9b::a.b.c.d (RFC 6052)         the IPv4 address that a translator shows like this
//
// A larger IPv6 network is several sources: a site has 2^8 to 2^16 networks of 64 bits.
#ifndef SEC_SOURCE_H
#define SEC_SOURCE_H
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

// A value to compare, not to print. IPv4 is at 0:ffff:a:b::/64, which no IPv6 network uses. 0:
// neither family, or the host itself (::1).
uint64_t sec_source_of(const struct sockaddr_storage *a);
// The source of a numeric address; 0: not one.
uint64_t sec_source_of_text(const char *address);
// The source of an endpoint, "1.2.3.4:5" or "[1::2]:3"; 0: its host is a name, or it is no
// endpoint.
uint64_t sec_source_of_endpoint(const char *endpoint);
// The address of the other end of a connection, also after a reset. False: not a connection.
bool sec_address_of_peer(int fd, struct sockaddr_storage *out);
// The source of the other end; 0: there is none.
uint64_t sec_source_of_peer(int fd);

#endif
