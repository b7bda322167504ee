// SPDX-License-Identifier: Apache-2.0
// Who may read the status page: the rules, without a server around them. What they judge is bytes from outside.
//
//     Host      loopback; beyond it also a numeric address, or a name that the certificate is for (against DNS rebinding)
//     method    GET
//     token     `Authorization: Bearer TOKEN`, or the cookie that /?token=TOKEN was answered with, compared in constant time
//
// On loopback the page itself is free (it holds no data). Its data need the token where there is
// one; where there is none they are for the agent's own user and root (agent/web/user.h). Beyond
// loopback everything needs the token. The cookie is not the token: BLAKE2b keyed with the token,
// so that it outlives a restart and says nothing of the token.
#ifndef AGENT_WEB_GUARD_H
#define AGENT_WEB_GUARD_H
#include "agent/base/status.h"

#include <openssl/x509.h>
#include <stdbool.h>

enum { AGENT_WEB_TOKEN_MIN = 16, AGENT_WEB_TOKEN_MAX = 512, AGENT_WEB_COOKIE_HEX = 64 };
#define AGENT_WEB_COOKIE "nebula_page"

struct agent_web_guard {
    char token[AGENT_WEB_TOKEN_MAX + 1];   // empty: none is asked for
    char cookie[AGENT_WEB_COOKIE_HEX + 1]; // what goes with it
    bool wide;                             // served beyond loopback
    X509 *cert;                            // borrowed; NULL: no names but loopback
};

struct agent_web_ask { // of one request; NULL: not there
    const char *method, *path, *host, *authorization, *cookies, *query_token;
    bool other_user; // of this host, over loopback
};

enum agent_web_verdict {
    AGENT_WEB_PASS,
    AGENT_WEB_LOGIN,      // the right token in the query: cookie and redirect
    AGENT_WEB_NO_TOKEN,   // 401
    AGENT_WEB_FORBIDDEN,  // 403: a Host that is not ours
    AGENT_WEB_OTHER_USER, // 403: there is no token, and the data are the agent's user's
    AGENT_WEB_METHOD,     // 405
};

bool agent_web_is_loopback(const char *host); // "localhost", "127.…", "[::1]" or "::1"
// Reads the token of at least 16 bytes from a file, white space at its end left out; NEB_ERR_INVALID: too short; else: the file.
NEB_MUST_CHECK enum neb_status agent_web_guard_token(struct agent_web_guard *g, const char *path);
enum agent_web_verdict agent_web_judge(const struct agent_web_guard *g,
                                       const struct agent_web_ask *ask);

#endif
