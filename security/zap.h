// SPDX-License-Identifier: Apache-2.0
// ZeroMQ authentication (RFC 27 ZAP) for one context. A thread at inproc://zeromq.zap.01 admits, by
// CURVE, exactly the keys of the trust list of its domain. Without a list it admits nobody, and it
// refuses NULL and PLAIN. The User-Id of an admitted connection is its key in Z85, because a name
// may change hands, but a key does not. The log says a limited amount about refused keys
// (refusals.h). The peer gets only status 400.
//
// Create it before any CURVE server socket of the context binds. Destroy it before the context
// ends.
//
// Threads: all calls are thread-safe.
#ifndef SEC_ZAP_H
#define SEC_ZAP_H
#include "security/members.h"

struct sec_zap;

// domain: copied; names refused connections in the log. NEB_ERR_INVALID: empty or too long.
// NEB_ERR_IO: the handler cannot start, for example because the context has one already.
NEB_MUST_CHECK enum neb_status sec_zap_create(void *zmq_context, const char *domain,
                                              struct sec_zap **out);
void sec_zap_destroy(struct sec_zap **z);
// Takes effect with the next handshake. The caller cuts existing connections.
void sec_zap_set(struct sec_zap *z, const struct sec_members *m); // copied; NULL: admit nobody
// Handshakes refused since create.
uint64_t sec_zap_refused(const struct sec_zap *z);

#endif
