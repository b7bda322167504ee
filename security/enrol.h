// SPDX-License-Identifier: Apache-2.0
// Enrolment: the hub's TLS endpoint, and the client of it. The conversation is in enrol_wire.h.
//
// Server: non-blocking, inside the caller's poll loop; one descriptor to wait on, readable whenever
// there is something to do. What strangers can make it hold is bounded: SEC_ENROL_CONNECTIONS
// sockets; TLS state only for those that sent a first byte; a request buffer only after a complete
// handshake. A connection has SEC_ENROL_HANDSHAKE_MS for its handshake and SEC_ENROL_TOTAL_MS in
// all, and may come in SEC_ENROL_PIECES pieces. When all places are taken, the oldest connection of the source (source.h) that holds the most
// gives way.
// What it costs is bounded too (enrol_rate.h): a connection that asks for a handshake beyond that is closed before it. Clients then
// try again, SEC_ENROL_TRIES times in all, first after SEC_ENROL_RETRY_MS, then twice as long each time (7.75 s in sum).
// TLS 1.3 only; no tickets, no resumption, no early data. Files are written (and fsynced) inside
// step, but only for a request whose proof is right.
//
// Callers ignore SIGPIPE: OpenSSL writes with write(2).
// Threads: a server belongs to one thread. The client blocks.
#ifndef SEC_ENROL_H
#define SEC_ENROL_H
#include "security/enrol_wire.h"
#include "security/hub.h"

enum {
    SEC_ENROL_CONNECTIONS = 64,
    SEC_ENROL_HANDSHAKE_MS = 5000,
    SEC_ENROL_TOTAL_MS = 10000,
    SEC_ENROL_PIECES = 64, // arrivals before the answer; an honest client has a handful
    SEC_ENROL_TRIES = 6,
    SEC_ENROL_RETRY_MS = 250,
    SEC_ENROL_CLIENT_MS = 10000, // the client waits this long for each step of the hub
};

// ---- hub -----------------------------------------------------------------------------------------

struct sec_enrol_server;

// listen: "HOST:PORT"; port 0 as "HOST:*" picks one. hub and self (the hub's identity) are borrowed.
// NEB_ERR_INVALID: not an address of this machine; NEB_ERR_IO and such: the port cannot be had.
NEB_MUST_CHECK enum neb_status sec_enrol_server_create(struct sec_hub *hub,
                                                       const struct sec_identity *self,
                                                       const char *listen,
                                                       struct sec_enrol_server **out);
void sec_enrol_server_destroy(struct sec_enrol_server **s);
int sec_enrol_server_fd(const struct sec_enrol_server *s); // to poll for reading; the server's own
unsigned sec_enrol_server_port(const struct sec_enrol_server *s); // TCP
// Does what can be done without waiting. Errors of single connections end those only.
NEB_MUST_CHECK enum neb_status sec_enrol_server_step(struct sec_enrol_server *s);

// Requests refused, and connections cut because they were slow or too many, since it was created.
uint64_t sec_enrol_server_refused(const struct sec_enrol_server *s);

// ---- client --------------------------------------------------------------------------------------

// A connection to an endpoint whose CA has the pin; nothing is sent to any other.
struct sec_enrol_client;
// NEB_ERR_DENIED: another CA, or not one of nebula; NEB_ERR_TIMEOUT, NEB_ERR_IO: not reachable;
// NEB_ERR_AGAIN: it was reached, and ended each try before the handshake.
NEB_MUST_CHECK enum neb_status sec_enrol_connect(const char *endpoint,
                                                 const uint8_t pin[SEC_PIN_BYTES],
                                                 struct sec_enrol_client **out);
void sec_enrol_client_destroy(struct sec_enrol_client **c);
// (SEC_EXPORTER_BYTES) The TLS exporter (RFC 9266) of this connection, which proofs over it are bound to: for requests made by hand.
const uint8_t *sec_enrol_client_exporter(const struct sec_enrol_client *c);
// (SEC_KEY_BYTES) as its certificate says
const uint8_t *sec_enrol_client_hub_curve(const struct sec_enrol_client *c);
// A request with its length in front. NEB_ERR_IO: the hub ended the connection.
NEB_MUST_CHECK enum neb_status sec_enrol_client_send(struct sec_enrol_client *c, const void *p,
                                                     size_t n);
// The answer without its length; replaces out. NEB_ERR_IO: the hub ended the connection.
NEB_MUST_CHECK enum neb_status sec_enrol_client_recv(struct sec_enrol_client *c,
                                                     struct neb_buf *out);

// Joins with a token: keys in home are made if there are none (their name must be the token's), the
// answer is verified against the pin and stored. Safe to repeat with the same token after a failure.
// endpoint: where other members reach this agent, or "". NEB_ERR_DENIED: refused by the hub.
NEB_MUST_CHECK enum neb_status sec_enrol_join(const char *home, const struct sec_token *t,
                                              const char *endpoint);
// Fetches a new certificate and the newest list. hub: "HOST:PORT"; next: the identity whose keys the
// certificate shall be for, NULL for the present one. NEB_ERR_DENIED: refused by the hub.
NEB_MUST_CHECK enum neb_status sec_enrol_renew(const char *home, const char *hub,
                                               const struct sec_identity *next);
// The same for and by keys that are not yet this home's own, and may be on the list already.
NEB_MUST_CHECK enum neb_status sec_enrol_renew_by(const char *home, const char *hub,
                                                  const struct sec_identity *listed);

#endif
