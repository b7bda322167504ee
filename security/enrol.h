// SPDX-License-Identifier: Apache-2.0
// Enrolment: the hub's TLS endpoint and its client. enrol_wire.h draws the conversation.
//
// Server: non-blocking, inside the caller's poll loop. It has one descriptor, which is readable
// when there is work. Strangers can make it hold only SEC_ENROL_CONNECTIONS sockets, TLS state
// after a first byte, and a request buffer after a complete handshake. A connection has
// SEC_ENROL_HANDSHAKE_MS for its handshake, SEC_ENROL_TOTAL_MS in all, and may arrive in
// SEC_ENROL_PIECES pieces. When all places are taken, the server closes the oldest connection of
// the source (source.h) that holds the most.
//
// Processor time is limited too (enrol_rate.h). A connection over that limit is closed before its
// handshake. A client then tries again, SEC_ENROL_TRIES times in all. It waits about
// SEC_ENROL_RETRY_MS first, then twice as long each time (7.75 s in sum).
//
// TLS 1.3 only, without tickets, resumption or early data. A step writes (and fsyncs) files only
// for a request with a correct proof.
//
// Callers ignore SIGPIPE, because OpenSSL writes with write(2).
//
// Threads: a server belongs to one thread. The client blocks.
#ifndef SEC_ENROL_H
#define SEC_ENROL_H
#include "security/enrol_wire.h"
#include "security/hub.h"

enum {
    SEC_ENROL_CONNECTIONS = 64,
    SEC_ENROL_HANDSHAKE_MS = 5000,
    SEC_ENROL_TOTAL_MS = 10000,
    SEC_ENROL_PIECES = 64, // arrivals before the answer; an honest client needs a few
    SEC_ENROL_TRIES = 6,
    SEC_ENROL_RETRY_MS = 250,
    SEC_ENROL_CLIENT_MS = 10000, // how long the client waits for each step of the hub
};

// ---- hub ----------------------------------------------------------------------------------------

struct sec_enrol_server;

// listen: "HOST:PORT"; "HOST:*" picks a free port. hub and self (the hub's identity) are borrowed.
// NEB_ERR_INVALID: listen is not HOST:PORT, or the host is not known. NEB_ERR_IO, NEB_ERR_DENIED:
// the server cannot listen there.
NEB_MUST_CHECK enum neb_status sec_enrol_server_create(struct sec_hub *hub,
                                                       const struct sec_identity *self,
                                                       const char *listen,
                                                       struct sec_enrol_server **out);
void sec_enrol_server_destroy(struct sec_enrol_server **s);
int sec_enrol_server_fd(const struct sec_enrol_server *s);        // poll it for reading; owned
unsigned sec_enrol_server_port(const struct sec_enrol_server *s); // TCP
// Does all work that needs no waiting. An error of one connection ends only that connection.
NEB_MUST_CHECK enum neb_status sec_enrol_server_step(struct sec_enrol_server *s);

// Number of refused requests, and of connections cut because they were slow or too many.
uint64_t sec_enrol_server_refused(const struct sec_enrol_server *s);

// ---- client -------------------------------------------------------------------------------------

// A connection to an endpoint whose CA has the pin. The client sends nothing to any other endpoint.
struct sec_enrol_client;
// NEB_ERR_DENIED: another CA, or the server is not a Nebula hub. NEB_ERR_TIMEOUT, NEB_ERR_IO: not
// reachable. NEB_ERR_AGAIN: the endpoint closed each connection before the handshake.
NEB_MUST_CHECK enum neb_status sec_enrol_connect(const char *endpoint,
                                                 const uint8_t pin[SEC_PIN_BYTES],
                                                 struct sec_enrol_client **out);
void sec_enrol_client_destroy(struct sec_enrol_client **c);
// (SEC_EXPORTER_BYTES) The TLS exporter (RFC 9266) of this connection. Proofs are bound to it. For
// tests that build requests by hand.
const uint8_t *sec_enrol_client_exporter(const struct sec_enrol_client *c);
// (SEC_KEY_BYTES) The hub's CURVE key, from its certificate.
const uint8_t *sec_enrol_client_hub_curve(const struct sec_enrol_client *c);
// Sends bytes of a request; the caller puts its length in front. NEB_ERR_IO: the hub ended the
// connection.
NEB_MUST_CHECK enum neb_status sec_enrol_client_send(struct sec_enrol_client *c, const void *p,
                                                     size_t n);
// Receives the answer and removes the length before it. Replaces out. NEB_ERR_IO: the hub ended the
// connection.
NEB_MUST_CHECK enum neb_status sec_enrol_client_recv(struct sec_enrol_client *c,
                                                     struct neb_buf *out);

// Joins with a token. Makes keys if home has none; keys that exist must have the token's name.
// Verifies the answer against the pin and stores it. After a failure the same token can be used
// again. endpoint: where other members reach this agent, or "". NEB_ERR_DENIED: the hub refused.
NEB_MUST_CHECK enum neb_status sec_enrol_join(const char *home, const struct sec_token *t,
                                              const char *endpoint);
// Fetches a new certificate and the newest list. hub: "HOST:PORT". next: the identity that the new
// certificate is for; NULL: the present one. NEB_ERR_DENIED: the hub refused. NEB_ERR_AGAIN: the
// hub gives this member new keys only later.
NEB_MUST_CHECK enum neb_status sec_enrol_renew(const char *home, const char *hub,
                                               const struct sec_identity *next);
// The same for an identity that home does not use yet. That identity signs the request, because the
// hub may list it already.
NEB_MUST_CHECK enum neb_status sec_enrol_renew_by(const char *home, const char *hub,
                                                  const struct sec_identity *listed);

#endif
