#include "agent/web.h"
#include "agent/base/bytes.h"
#include "agent/base/clock.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"

#include <civetweb.h>
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const unsigned char agent_page_html[]; // made from agent/page/ by the build
extern const unsigned long agent_page_html_len;

enum { TOKEN_MIN = 16, TOKEN_MAX = 512, BEARER = 7, STACK_MIN = 1 << 20 };
static const neb_ns watched_for = 10 * NEB_S;

enum text { STATUS, HISTORY, METRICS, TEXTS };

struct agent_web {
    struct mg_context *ctx;
    char token[TOKEN_MAX + 1]; // empty: none
    pthread_mutex_t lock;
    char *texts[TEXTS];    // owned, under lock
    _Atomic uint64_t seen; // neb_now of the last request for the history
};

static bool is_loopback(const char *host) {
    return !strcmp(host, "localhost") || !strcmp(host, "127.0.0.1") || !strcmp(host, "[::1]");
}

// "HOST:PORT" apart; a port alone is on loopback.
static enum neb_status split_address(const char *listen, char *host, size_t cap, long *port) {
    const char *colon = strrchr(listen, ':'), *digits = colon ? colon + 1 : listen;
    char *end = NULL;
    size_t n = colon ? (size_t)(colon - listen) : 0;
    *port = isdigit((unsigned char)*digits) ? strtol(digits, &end, 10) : 0;
    if (*port < 1 || *port > 65535 || *end || n >= cap || (colon && !n) ||
        (memchr(listen, ':', n) && *listen != '['))
        return neb_fail(NEB_ERR_INVALID, "--page \"%s\": give PORT, HOST:PORT or [ADDRESS]:PORT",
                        listen);
    snprintf(host, cap, "%.*s", colon ? (int)n : 9, colon ? listen : "127.0.0.1");
    if (!strcmp(host, "localhost"))
        snprintf(host, cap, "127.0.0.1");
    if (strspn(host, "0123456789abcdefABCDEF.:[]") != strlen(host))
        return neb_fail(NEB_ERR_INVALID, "--page \"%s\": the host must be a numeric address",
                        listen);
    return NEB_OK;
}

static enum neb_status read_token(const char *path, char out[TOKEN_MAX + 1]) {
    struct neb_buf b = {0};
    enum neb_status st = neb_fs_read(path, TOKEN_MAX, &b);
    if (st == NEB_OK) {
        while (b.len && isspace(b.p[b.len - 1]))
            b.len--;
        if (b.len < TOKEN_MIN || memchr(b.p, 0, b.len))
            st = neb_fail(NEB_ERR_INVALID,
                          "%s: a token has at least %d bytes; make one with openssl rand -hex 32",
                          path, TOKEN_MIN);
        else
            memcpy(out, b.p, b.len);
    }
    if (b.p)
        sodium_memzero(b.p, b.cap);
    neb_buf_free(&b);
    return st;
}

// ---- answers: in CivetWeb's threads ---------------------------------------------------------------------------

static void respond(struct mg_connection *c, int code, const char *reason, const char *type,
                    const char *more, const char *body, size_t n) {
    mg_printf(
        c,
        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\nReferrer-Policy: "
        "no-referrer\r\n"
        "Cross-Origin-Resource-Policy: same-origin\r\n"
        "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src "
        "'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n%s\r\n",
        code, reason, type, n, more);
    mg_write(c, body, n);
}

static int refuse(struct mg_connection *c, int code, const char *reason, const char *more) {
    char body[96];
    int n = snprintf(body, sizeof body, "{\"error\":\"%s\"}\n", reason);
    respond(c, code, reason, "application/json", more, body, (size_t)n);
    return code;
}

// Equal in time that depends on the length alone: both sides are copied into blocks of one size.
static bool token_fits(const struct agent_web *w, const char *given) {
    char a[TOKEN_MAX + 1] = {0}, b[TOKEN_MAX + 1] = {0};
    size_t n = strlen(given);
    memcpy(a, w->token, sizeof a);
    memcpy(b, given, n < TOKEN_MAX ? n : TOKEN_MAX);
    bool same = sodium_memcmp(a, b, sizeof a) == 0 && n <= TOKEN_MAX;
    sodium_memzero(a, sizeof a);
    return same;
}

// 0, or the status of the refusal that was sent.
static int guard(struct agent_web *w, struct mg_connection *c, bool data) {
    const struct mg_request_info *r = mg_get_request_info(c);
    const char *auth = mg_get_header(c, "Authorization"), *host = mg_get_header(c, "Host");
    if (strcmp(r->request_method, "GET"))
        return refuse(c, 405, "Method Not Allowed", "Allow: GET\r\n");
    char name[64] = "";
    const char *colon = host ? strrchr(host, ':') : NULL;
    size_t n = !host ? 0 : colon && !strchr(colon, ']') ? (size_t)(colon - host) : strlen(host);
    if (n < sizeof name)
        snprintf(name, sizeof name, "%.*s", (int)n, host ? host : "");
    if (!is_loopback(name))
        return refuse(c, 403, "Forbidden", "");
    if (data && w->token[0] &&
        (!auth || strncmp(auth, "Bearer ", BEARER) || !token_fits(w, auth + BEARER)))
        return refuse(c, 401, "Unauthorized", "WWW-Authenticate: Bearer\r\n");
    return 0;
}

static int serve(struct agent_web *w, struct mg_connection *c, enum text which, const char *type) {
    int refused = guard(w, c, true);
    if (refused)
        return refused;
    pthread_mutex_lock(&w->lock);
    char *copy = w->texts[which] ? strdup(w->texts[which]) : NULL;
    pthread_mutex_unlock(&w->lock);
    if (!copy)
        return refuse(c, 503, "Service Unavailable", "Retry-After: 1\r\n");
    respond(c, 200, "OK", type, "", copy, strlen(copy));
    free(copy);
    return 200;
}

static int on_status(struct mg_connection *c, void *user) {
    return serve(user, c, STATUS, "application/json");
}

static int on_history(struct mg_connection *c, void *user) {
    struct agent_web *w = user;
    atomic_store(&w->seen, (uint64_t)neb_now());
    return serve(w, c, HISTORY, "application/json");
}

static int on_metrics(struct mg_connection *c, void *user) {
    return serve(user, c, METRICS, "text/plain; version=0.0.4; charset=utf-8");
}

static int on_other(struct mg_connection *c, void *user) {
    int refused = guard(user, c, false);
    if (refused)
        return refused;
    if (strcmp(mg_get_request_info(c)->local_uri, "/"))
        return refuse(c, 404, "Not Found", "");
    respond(c, 200, "OK", "text/html; charset=utf-8", "", (const char *)agent_page_html,
            agent_page_html_len);
    return 200;
}

static int log_error(const struct mg_connection *c, const char *text) {
    (void)c;
    neb_debug("status page: %s", text);
    return 1;
}

// ---- threads --------------------------------------------------------------------------------------------------

// CivetWeb asks for threads of 100 KiB of stack. Thread-local memory lies on the stack too, and OpenBLAS alone takes 60 KiB of it, so
// that answering a request overflowed. CivetWeb has no option for it; its call is bound to this one instead of the C library's,
// because symbols of the program come first. Every thread of the process that asks for less gets 1 MiB (of address space only).
int pthread_attr_setstacksize(pthread_attr_t *attr, size_t size) {
    union { // ISO C has no conversion from an object pointer to a function's
        void *object;
        int (*call)(pthread_attr_t *, size_t);
    } next = {dlsym(RTLD_NEXT, "pthread_attr_setstacksize")};
    return next.object ? next.call(attr, size < STACK_MIN ? STACK_MIN : size) : ENOSYS;
}

// ---- life -----------------------------------------------------------------------------------------------------

static enum neb_status start_server(struct agent_web *w, const char *host, long port) {
    char where[128], text[256] = "";
    snprintf(where, sizeof where, "%s:%ld", host, port);
    const char *options[] = {"listening_ports",
                             where,
                             "num_threads",
                             "4",
                             "connection_queue",
                             "16",
                             "request_timeout_ms",
                             "5000",
                             "keep_alive_timeout_ms",
                             "3000",
                             "enable_keep_alive",
                             "no",
                             "max_request_size",
                             "4096",
                             "enable_directory_listing",
                             "no",
                             NULL};
    struct mg_callbacks callbacks = {.log_message = log_error};
    struct mg_init_data init = {
        .callbacks = &callbacks, .user_data = w, .configuration_options = options};
    struct mg_error_data error = {.text = text, .text_buffer_size = sizeof text};
    mg_init_library(0);
    if (!(w->ctx = mg_start2(&init, &error))) {
        mg_exit_library();
        return neb_fail(NEB_ERR_IO, "the status page cannot listen on %s: %s; is the port taken?",
                        where, text[0] ? text : "no reason given");
    }
    mg_set_request_handler(w->ctx, "/api/v1/status$", on_status, w);
    mg_set_request_handler(w->ctx, "/api/v1/history$", on_history, w);
    mg_set_request_handler(w->ctx, "/metrics$", on_metrics, w);
    mg_set_request_handler(w->ctx, "/**", on_other, w);
    neb_info("status page at http://%s:%ld/", host, port);
    return NEB_OK;
}

enum neb_status agent_web_start(const struct agent_web_config *c, struct agent_web **out) {
    char host[64];
    long port;
    NEB_TRY(split_address(c->listen, host, sizeof host, &port));
    if (!is_loopback(host))
        return neb_fail(NEB_ERR_INVALID,
                        "--page %s: the page is served to this machine only; from elsewhere use "
                        "ssh -L %ld:127.0.0.1:%ld, or a "
                        "reverse proxy with TLS and --page-token",
                        c->listen, port, port);
    struct agent_web *w = calloc(1, sizeof *w);
    if (!w)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the status page");
    pthread_mutex_init(&w->lock, NULL);
    enum neb_status st = c->token ? read_token(c->token, w->token) : NEB_OK;
    if (st == NEB_OK)
        st = start_server(w, host, port);
    if (st != NEB_OK) {
        agent_web_stop(&w);
        return st;
    }
    *out = w;
    return NEB_OK;
}

void agent_web_stop(struct agent_web **wp) {
    struct agent_web *w = *wp;
    if (!w)
        return;
    if (w->ctx) {
        mg_stop(w->ctx);
        mg_exit_library();
    }
    for (int i = 0; i < TEXTS; i++)
        free(w->texts[i]);
    pthread_mutex_destroy(&w->lock);
    sodium_memzero(w->token, sizeof w->token);
    free(w);
    *wp = NULL;
}

bool agent_web_watched(struct agent_web *w) {
    uint64_t seen = atomic_load(&w->seen);
    return seen && neb_now() - (neb_ns)seen < watched_for;
}

void agent_web_publish(struct agent_web *w, char *status, char *history, char *metrics) {
    char *fresh[TEXTS] = {status, history, metrics};
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < TEXTS; i++)
        if (fresh[i]) {
            free(w->texts[i]);
            w->texts[i] = fresh[i];
        }
    pthread_mutex_unlock(&w->lock);
}
