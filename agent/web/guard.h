// SPDX-License-Identifier: Apache-2.0
// The rules for who may read the status page, without a server. Their input is hostile.
//
//     Host      loopback; beyond loopback also a numeric address, or a name in the certificate
//               (against DNS rebinding)
//     method    GET
//     token     `Authorization: Bearer TOKEN`, or the cookie that /?token=TOKEN sets; compared in
//               constant time
//
// On loopback everybody may read the page itself, since it contains no data. The data that it
// fetches need the token if there is one; otherwise only the agent's own user and root may read
// them (user.h). Beyond loopback everything needs the token. The cookie is not the token but
// BLAKE2b keyed with it, so it outlives a restart and does not reveal the token.
#ifndef AGENT_WEB_GUARD_H
#define AGENT_WEB_GUARD_H
#include "agent/base/status.h"

#include <openssl/x509.h>
#include <stdbool.h>

enum { AGENT_WEB_TOKEN_MIN = 16, AGENT_WEB_TOKEN_MAX = 512, AGENT_WEB_COOKIE_HEX = 64 };
#define AGENT_WEB_COOKIE "nebula_page"

struct agent_web_guard {
    char token[AGENT_WEB_TOKEN_MAX + 1];   // "": no token needed
    char cookie[AGENT_WEB_COOKIE_HEX + 1]; // the cookie that belongs to the token
    bool wide;                             // the page is served beyond loopback
    X509 *cert;                            // borrowed; NULL: only loopback names
};

struct agent_web_ask { // one request; NULL: header absent
    const char *method, *path, *host, *authorization, *cookies, *query_token;
    bool other_user; // sent by another user of this host, over loopback
};

enum agent_web_verdict {
    AGENT_WEB_PASS,
    AGENT_WEB_LOGIN,      // right token in the query: set cookie, redirect
    AGENT_WEB_NO_TOKEN,   // 401
    AGENT_WEB_FORBIDDEN,  // 403: Host is not ours
    AGENT_WEB_OTHER_USER, // 403: no token, and not the agent's user
    AGENT_WEB_METHOD,     // 405
};

bool agent_web_is_loopback(const char *host); // localhost, 127.…, [::1], ::1
// Reads a token of at least 16 bytes from a file, without white space at its end. NEB_ERR_INVALID:
// too short. Other errors: the file.
NEB_MUST_CHECK enum neb_status agent_web_guard_token(struct agent_web_guard *g, const char *path);
enum agent_web_verdict agent_web_judge(const struct agent_web_guard *g,
                                       const struct agent_web_ask *ask);

#endif
