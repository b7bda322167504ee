// SPDX-License-Identifier: Apache-2.0
// ZeroMQ authentication (RFC 27 ZAP) for one context: a thread at inproc://zeromq.zap.01 that
// admits by CURVE exactly the keys of the trust list set for a domain. Closed by default: no list,
// no entry; NULL and PLAIN are refused. The User-Id of an admitted connection is its key in Z85: a name
// may change hands, a key does not.
// What the log says of refused keys is bounded (refusals.h); the peer is told nothing but 400.
//
// Create it before any CURVE server socket of the context binds; destroy it before the context
// ends. Threads: all calls are thread-safe.
#ifndef SEC_ZAP_H
#define SEC_ZAP_H
#include "security/members.h"

struct sec_zap;

// domain: copied; who is refused is told in the log by it. NEB_ERR_IO: the handler cannot be started, as when the context has one already.
NEB_MUST_CHECK enum neb_status sec_zap_create(void *zmq_context, const char *domain,
                                              struct sec_zap **out);
void sec_zap_destroy(struct sec_zap **z);
// Takes effect for the next handshake; connections that exist are the caller's to cut.
void sec_zap_set(struct sec_zap *z, const struct sec_members *m); // copied; NULL: admit nobody
// Handshakes turned away since create.
uint64_t sec_zap_refused(const struct sec_zap *z);

#endif
