// SPDX-License-Identifier: Apache-2.0
// The addresses of a peer that is listed by a name ("hub.example.org:7400"), looked up beside the caller, in a thread of its own.
//
// ZeroMQ looks names up in the one thread that carries all links and the sockets of this host. A name server that does not answer, as in an
// outage of the site's own line, holds that up for ten seconds a name and try: links to others go down, workers and commands get no answer.
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

struct inter_lookup; // one that is under way

// Whether an endpoint's host is a name, which has to be looked up.
bool inter_lookup_needed(const char *endpoint);

// Begins; nothing waits. NEB_ERR_NOMEM: no memory, or no thread.
NEB_MUST_CHECK enum neb_status inter_lookup_start(const char *endpoint, struct inter_lookup **out);

// Whether it has ended; what it found is in *out then. n 0: nothing, *why says so (a constant text).
bool inter_lookup_ended(const struct inter_lookup *k, struct inter_addresses *out,
                        const char **why);

// Also of one that is under way, which goes on, unheard of, and frees itself.
void inter_lookup_destroy(struct inter_lookup **k);

#endif
