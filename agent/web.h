// The status page of an agent: HTTP by CivetWeb, in threads of its own that only read what the daemon last published.
//
//     daemon loop ── agent_web_publish (1 a second) ──► strings under a mutex ──► GET /api/v1/status, /api/v1/history, /metrics
//                                                       page (in the program)  ──► GET /
//
// Loopback only, and only requests whose Host is loopback are answered (against DNS rebinding). There is no TLS here: Debian 12's
// CivetWeb 1.15 looks up SSL_get_peer_certificate in libssl, which OpenSSL 3 does not have, and calls NULL after the first
// handshake. So any other address is refused; readers elsewhere come by ssh -L or a reverse proxy (which passes Host 127.0.0.1).
// Token, where other users of the machine shall not read: `Authorization: Bearer …`, compared in constant time; the page takes it
// from the fragment of its address (#token=…), which browsers do not send. The page itself holds no data.
// GET only; 4 threads and 16 waiting connections; a request of more than 4 KiB, or not complete within 5 s, is dropped.
#ifndef AGENT_WEB_H
#define AGENT_WEB_H
#include "agent/base/status.h"

#include <stdbool.h>

struct agent_web_config {
    const char *listen; // "HOST:PORT", "[V6]:PORT" or "PORT" (on 127.0.0.1)
    const char *token;  // file with the token, at least 16 bytes; NULL: none
};

struct agent_web;
// NEB_ERR_INVALID: the address, or one that is not loopback; NEB_ERR_IO: port; else: the token file.
NEB_MUST_CHECK enum neb_status agent_web_start(const struct agent_web_config *c,
                                               struct agent_web **out);
void agent_web_stop(struct agent_web **w);
// Has somebody looked at the page within the last 10 s? Otherwise nothing needs to be published but what is scraped.
bool agent_web_watched(struct agent_web *w);
// Takes over the texts (malloc); NULL leaves the one before. Called from the daemon's thread.
void agent_web_publish(struct agent_web *w, char *status_take, char *history_take,
                       char *metrics_take);

#endif
