// SPDX-License-Identifier: Apache-2.0
#include "agent/web/guard.h"
#include "agent/base/bytes.h"
#include "security/seal.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <openssl/x509v3.h>
#include <sodium.h>
#include <string.h>

enum { HOST_MAX = 256 };
static const char bearer[] = "Bearer ", cookie_text[] = "nebula status page";

static bool starts(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }

bool agent_web_is_loopback(const char *host) {
    struct in_addr a;
    return !strcmp(host, "localhost") || !strcmp(host, "[::1]") || !strcmp(host, "::1") ||
           (inet_pton(AF_INET, host, &a) == 1 && ntohl(a.s_addr) >> 24 == 127);
}

enum neb_status agent_web_guard_token(struct agent_web_guard *g, const char *path) {
    uint8_t raw[AGENT_WEB_COOKIE_HEX / 2], key[crypto_generichash_KEYBYTES], b[AGENT_WEB_TOKEN_MAX];
    size_t n = 0;
    enum neb_status st = sec_secret_read(path, b, sizeof b, &n);
    if (st == NEB_ERR_NOT_FOUND)
        return neb_fail(st,
                        "%s: there is no such file; make one with (umask 077; openssl rand "
                        "-hex 32 >FILE)",
                        path);
    if (st == NEB_OK) {
        while (n && isspace(b[n - 1]))
            n--;
        if (n < AGENT_WEB_TOKEN_MIN || memchr(b, 0, n)) {
            st = neb_fail(NEB_ERR_INVALID,
                          "%s: a token needs at least %d bytes; make one with openssl rand -hex 32",
                          path, AGENT_WEB_TOKEN_MIN);
        } else {
            memset(g->token, 0, sizeof g->token);
            memcpy(g->token, b, n);
            // The token may be longer than a BLAKE2b key, so its hash is the key.
            crypto_generichash(key, sizeof key, b, n, NULL, 0);
            crypto_generichash(raw, sizeof raw, (const uint8_t *)cookie_text,
                               sizeof cookie_text - 1, key, sizeof key);
            sodium_bin2hex(g->cookie, sizeof g->cookie, raw, sizeof raw);
            sodium_memzero(key, sizeof key);
        }
    }
    sodium_memzero(b, sizeof b);
    return st;
}

// Compares in a time that depends only on the length of `given`: both are copied into blocks of one
// size.
static bool same_secret(const char *secret, const char *given, size_t n) {
    char a[AGENT_WEB_TOKEN_MAX + 1] = {0}, b[AGENT_WEB_TOKEN_MAX + 1] = {0};
    memcpy(a, secret, strnlen(secret, AGENT_WEB_TOKEN_MAX));
    memcpy(b, given, n < AGENT_WEB_TOKEN_MAX ? n : AGENT_WEB_TOKEN_MAX);
    bool same = sodium_memcmp(a, b, sizeof a) == 0 && n <= AGENT_WEB_TOKEN_MAX;
    sodium_memzero(a, sizeof a);
    sodium_memzero(b, sizeof b);
    return same;
}

// RFC 6265, 4.2.1: name=value pairs, separated by "; ". Any cookie of our name may be the right
// one.
static bool cookie_fits(const struct agent_web_guard *g, const char *s) {
    static const char name[] = AGENT_WEB_COOKIE "=";
    bool fits = false;
    while (s && *s) {
        s += strspn(s, "; ");
        size_t n = strcspn(s, ";");
        if (starts(s, name))
            fits |= same_secret(g->cookie, s + sizeof name - 1, n - (sizeof name - 1));
        s += n;
    }
    return fits;
}

// Writes the header's host in lower case, without port and brackets. False: absent or malformed.
static bool host_of(const char *header, char out[HOST_MAX]) {
    if (!header)
        return false;
    bool v6 = *header == '[';
    const char *end = v6 ? strchr(header, ']') : header + strcspn(header, ":");
    if (!end)
        return false;
    size_t n = (size_t)(end - header) - v6;
    const char *port = end + v6;
    if (!n || n >= HOST_MAX ||
        (*port && (*port != ':' || strspn(port + 1, "0123456789") != strlen(port + 1))))
        return false;
    for (size_t i = 0; i < n; i++)
        out[i] = (char)tolower((unsigned char)header[i + v6]);
    out[n] = 0;
    return true;
}

static bool host_fits(const struct agent_web_guard *g, const char *header) {
    char host[HOST_MAX];
    struct in6_addr a;
    if (!host_of(header, host))
        return false;
    if (agent_web_is_loopback(host))
        return true;
    if (!g->wide)
        return false;
    if (inet_pton(AF_INET, host, &a) == 1 || inet_pton(AF_INET6, host, &a) == 1)
        return true; // DNS rebinding needs a name, not an address
    return g->cert && X509_check_host(g->cert, host, 0, 0, NULL) == 1;
}

enum agent_web_verdict agent_web_judge(const struct agent_web_guard *g,
                                       const struct agent_web_ask *ask) {
    bool page = !strcmp(ask->path, "/");
    if (strcmp(ask->method, "GET"))
        return AGENT_WEB_METHOD;
    if (!host_fits(g, ask->host))
        return AGENT_WEB_FORBIDDEN;
    if (!g->token[0] && g->wide)
        return AGENT_WEB_NO_TOKEN;
    if (!g->token[0])
        return ask->other_user && !page ? AGENT_WEB_OTHER_USER : AGENT_WEB_PASS;
    if (page && ask->query_token)
        return same_secret(g->token, ask->query_token, strlen(ask->query_token))
                   ? AGENT_WEB_LOGIN
                   : AGENT_WEB_NO_TOKEN;
    if (page && !g->wide)
        return AGENT_WEB_PASS;
    const char *auth = ask->authorization;
    if (auth && starts(auth, bearer) &&
        same_secret(g->token, auth + sizeof bearer - 1, strlen(auth) - (sizeof bearer - 1)))
        return AGENT_WEB_PASS;
    return cookie_fits(g, ask->cookies) ? AGENT_WEB_PASS : AGENT_WEB_NO_TOKEN;
}
