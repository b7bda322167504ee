// SPDX-License-Identifier: Apache-2.0
// Looks up the addresses of a peer that is listed by name ("hub.example.org:7400"), in a thread of
// its own.
//
// ZeroMQ looks names up in the one I/O thread that carries all links and local sockets. A name
// server that does not answer would stop that thread for many seconds: links to other peers would
// go down, and workers and commands would get no answer.
#ifndef INTER_LOOKUP_H
#define INTER_LOOKUP_H
#include "agent/base/status.h"
#include "security/members.h"

#include <stdbool.h>
#include <stdint.h>

enum { INTER_LOOKUP_MAX = 8 };

struct inter_addresses {
    uint32_t n;
    char a[INTER_LOOKUP_MAX][64]; // "192.0.2.1:7400", "[2001:db8::1]:7400", the best first
};

struct inter_lookup; // a lookup in progress

// True if the host of an endpoint is a name.
bool inter_lookup_needed(const char *endpoint);

// Begins a lookup and returns at once. NEB_ERR_NOMEM: no memory, or no thread.
NEB_MUST_CHECK enum neb_status inter_lookup_start(const char *endpoint, struct inter_lookup **out);

// True if the lookup has ended. *out is then the result. out->n 0: no address; *why is the reason
// (a constant text).
bool inter_lookup_ended(const struct inter_lookup *k, struct inter_addresses *out,
                        const char **why);

// A lookup in progress goes on and frees itself.
void inter_lookup_destroy(struct inter_lookup **k);

#endif
