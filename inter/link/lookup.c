// SPDX-License-Identifier: Apache-2.0
#include "inter/link/lookup.h"

#include "agent/base/log.h"
#include "security/source.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct inter_lookup {
    char host[SEC_ENDPOINT_MAX], port[8];
    struct addrinfo *list;
    int error;
    atomic_bool ended;
    atomic_int holders; // the caller and the thread
};

// Tests give ZeroMQ endpoints that are no HOST:PORT, to choose the local address of a dial.
bool inter_lookup_needed(const char *endpoint) {
    return sec_endpoint_valid(endpoint) && !sec_source_of_endpoint(endpoint);
}

static void let_go(struct inter_lookup *k) {
    if (atomic_fetch_sub(&k->holders, 1) != 1)
        return;
    if (k->list)
        freeaddrinfo(k->list);
    free(k);
}

static void *look_up(void *arg) {
    struct inter_lookup *k = arg;
    // AI_ADDRCONFIG: only kinds of address that this host has too.
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    k->error = getaddrinfo(k->host, k->port, &hints, &k->list);
    atomic_store(&k->ended, true);
    let_go(k);
    return NULL;
}

// The thread blocks all signals, because other threads wait for them. It is detached, because the
// resolver may take very long.
static int start_thread(struct inter_lookup *k) {
    pthread_attr_t attr;
    pthread_t t;
    sigset_t all, before;
    sigfillset(&all);
    if (pthread_attr_init(&attr) != 0)
        return -1;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&t, &attr, look_up, k);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

enum neb_status inter_lookup_start(const char *endpoint, struct inter_lookup **out) {
    const char *colon = strrchr(endpoint, ':');
    struct inter_lookup *k = calloc(1, sizeof *k);
    if (!k)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: look-up of %s", endpoint);
    bool six = endpoint[0] == '[';
    snprintf(k->host, sizeof k->host, "%.*s", (int)(colon - endpoint) - 2 * six, endpoint + six);
    snprintf(k->port, sizeof k->port, "%s", colon + 1);
    atomic_init(&k->ended, false);
    atomic_init(&k->holders, 2);
    if (start_thread(k) != 0) {
        free(k);
        return neb_fail(NEB_ERR_NOMEM, "cannot start a thread to look up %s", endpoint);
    }
    *out = k;
    return NEB_OK;
}

static void add(const struct addrinfo *a, struct inter_addresses *out) {
    char host[48], port[8], all[64];
    if (getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    snprintf(all, sizeof all, a->ai_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    for (uint32_t i = 0; i < out->n; i++)
        if (!strcmp(out->a[i], all))
            return;
    snprintf(out->a[out->n++], sizeof out->a[0], "%s", all);
}

bool inter_lookup_ended(const struct inter_lookup *k, struct inter_addresses *out,
                        const char **why) {
    *out = (struct inter_addresses){0};
    if (!atomic_load(&k->ended))
        return false;
    *why = k->error ? gai_strerror(k->error) : "it has no address";
    for (const struct addrinfo *a = k->list; a && out->n < INTER_LOOKUP_MAX; a = a->ai_next)
        add(a, out);
    return true;
}

void inter_lookup_destroy(struct inter_lookup **k) {
    if (!k || !*k)
        return;
    let_go(*k);
    *k = NULL;
}
