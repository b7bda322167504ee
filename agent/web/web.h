// SPDX-License-Identifier: Apache-2.0
// The status page of an agent: HTTP or HTTPS by libmicrohttpd (GnuTLS), in a thread of its own that only hands out what the daemon
// last published.
//
//     daemon loop ── agent_web_publish (1 a second) ──► answers under a mutex ──► GET /api/v1/status, /api/v1/history, /metrics
//                                                       page (in the program) ──► GET /
//
// On loopback: plain HTTP, a token where there is one (else the agent's own user and root are
// answered), and only requests whose Host is loopback (against DNS rebinding); the page takes the
// token from the fragment of its address (#token=…), which browsers do not send. Beyond loopback:
// TLS 1.2 or 1.3 and a token, always; browsers open /?token=… once and get a cookie
// (agent/web/guard.h). A renewed certificate is taken within seconds: a second server begins to
// accept from the same listening socket, the first one stops to, and ends once its connections had
// time to. A pair that cannot be used is said, and the former one stays.
//
// One thread that waits for nobody, at most 64 connections, beyond loopback 24 of one address, of
// this host's other users 16 together, 8 KiB of memory (request and answer's head) each. A
// connection is closed after 10 s without a byte, and 20 s after it began or had its last answer,
// whatever trickles in by then (agent_web_publish looks).
#ifndef AGENT_WEB_H
#define AGENT_WEB_H
#include "agent/base/status.h"

#include <stdbool.h>

struct agent_web_config {
    const char *listen; // "HOST:PORT", "[V6]:PORT" or "PORT" (on 127.0.0.1)
    // file with the token, at least 16 bytes; NULL: none, which only loopback may have
    const char *token;
    // PEM files; NULL: beyond loopback the agent's own (agent/web/tls.h), on loopback no TLS
    const char *cert, *key;
    const char *home; // of the agent: its own certificate
};

// Whether `listen` is one that the page can have; else why not is logged.
bool agent_web_address_valid(const char *listen);

// Whether the options can go together, without a look at any file: NEB_ERR_INVALID: one of cert and key alone, or a page beyond loopback
// without a token. listen NULL: only the first counts.
NEB_MUST_CHECK enum neb_status agent_web_check(const struct agent_web_config *c);

struct agent_web;
// NEB_ERR_INVALID: the address, one of cert and key alone, no token beyond loopback; NEB_ERR_IO: port; else: a file.
NEB_MUST_CHECK enum neb_status agent_web_start(const struct agent_web_config *c,
                                               struct agent_web **out);
void agent_web_stop(struct agent_web **w);
// Has somebody looked at the page within the last 10 s? Otherwise nothing needs to be published but what is scraped.
bool agent_web_watched(struct agent_web *w);
// Takes over the texts (malloc); NULL leaves the one before. Called from the daemon's thread, once a second.
void agent_web_publish(struct agent_web *w, char *status_take, char *history_take,
                       char *metrics_take);

#endif
