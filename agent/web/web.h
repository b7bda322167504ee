// SPDX-License-Identifier: Apache-2.0
// The status page of an agent, HTTP or HTTPS by libmicrohttpd (GnuTLS). Its thread only hands out
// what the daemon published last.
//
//     daemon loop ── agent_web_publish (once a second) ──► answers, under a mutex
//                  answers ──► GET /api/v1/status, /api/v1/history, /metrics
//                  page (in the program) ──► GET /
//
// On loopback: plain HTTP and an optional token; without one, only the agent's own user and root
// get data. Only requests with a loopback Host pass (against DNS rebinding). The page takes the
// token from the fragment of its address (#token=…), which browsers do not send.
//
// Beyond loopback: TLS 1.2 or 1.3 and a token, always. Browsers open /?token=… once and get a
// cookie (guard.h). A renewed certificate is used within seconds: a second server starts to accept
// from the same socket, and the first one ends after its connections. An unusable pair causes a
// warning, and the previous one stays.
//
// Limits: one thread that never blocks on a client; at most 64 connections, of these 24 from one
// address beyond loopback and 16 from other users of this host; 8 KiB of memory each (request and
// head of the answer). A connection closes after 10 s without a byte, and 20 s after its start or
// last answer, even if bytes trickle in (agent_web_publish checks).
#ifndef AGENT_WEB_H
#define AGENT_WEB_H
#include "agent/base/status.h"

#include <stdbool.h>

struct agent_web_config {
    const char *listen; // "HOST:PORT", "[V6]:PORT" or "PORT" (on 127.0.0.1)
    // file with the token, at least 16 bytes; NULL: none, allowed only on loopback
    const char *token;
    // PEM files; NULL: the agent's own pair beyond loopback (tls.h), no TLS on loopback
    const char *cert, *key;
    const char *home; // the agent's home, for its own certificate
};

// True if the page can have the address `listen`; otherwise logs the reason.
bool agent_web_address_valid(const char *listen);

// Checks the options without reading a file. NEB_ERR_INVALID: only one of cert and key, or a page
// beyond loopback without a token. With listen NULL only the first rule applies.
NEB_MUST_CHECK enum neb_status agent_web_check(const struct agent_web_config *c);

struct agent_web;
// NEB_ERR_INVALID: bad address or options (agent_web_check); NEB_ERR_IO: the port. Other errors: a
// file.
NEB_MUST_CHECK enum neb_status agent_web_start(const struct agent_web_config *c,
                                               struct agent_web **out);
void agent_web_stop(struct agent_web **w);
// True if somebody requested the history within the last 10 s. Otherwise the daemon need not
// publish it.
bool agent_web_watched(struct agent_web *w);
// Takes over the texts (malloc); NULL keeps the previous one. The daemon's thread calls it once a
// second.
void agent_web_publish(struct agent_web *w, char *status_take, char *history_take,
                       char *metrics_take);

#endif
