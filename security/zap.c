// SPDX-License-Identifier: Apache-2.0
#include "security/zap.h"

#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "security/refusals.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#define ENDPOINT "inproc://zeromq.zap.01" // RFC 27

enum { FIELD_MAX = 256 };

struct sec_zap {
    void *socket; // REP; only the thread uses it once it runs
    char domain[64];
    pthread_t thread;
    int stop; // eventfd
    atomic_ullong refused;
    pthread_mutex_t lock; // for members
    struct sec_members members;
    struct sec_refusals refusals; // thread only
};

struct request {
    char version[8], id[FIELD_MAX], domain[FIELD_MAX], mechanism[16];
    uint8_t key[SEC_KEY_BYTES];
    size_t id_len, key_len;
};

static bool part(void *s, void *dst, size_t cap, size_t *len) {
    int more = 0;
    size_t size = sizeof more;
    if (zmq_getsockopt(s, ZMQ_RCVMORE, &more, &size) != 0 || !more)
        return false;
    int n = zmq_recv(s, dst, cap, 0);
    if (n < 0 || (size_t)n > cap)
        return false;
    *len = (size_t)n;
    return true;
}

// Reads one request completely. False: malformed; the rest was dropped.
static bool request_read(void *s, struct request *q) {
    char skip[FIELD_MAX];
    size_t n;
    memset(q, 0, sizeof *q);
    int got = zmq_recv(s, q->version, sizeof q->version - 1, ZMQ_DONTWAIT);
    bool ok = got > 0 && got < (int)sizeof q->version;
    ok = ok && part(s, q->id, sizeof q->id, &q->id_len) &&
         part(s, q->domain, sizeof q->domain - 1, &n) && part(s, skip, sizeof skip, &n) &&
         part(s, skip, sizeof skip, &n) && part(s, q->mechanism, sizeof q->mechanism - 1, &n) &&
         part(s, q->key, sizeof q->key, &q->key_len);
    int more = 0;
    size_t size = sizeof more;
    // A CURVE request has no more parts.
    while (zmq_getsockopt(s, ZMQ_RCVMORE, &more, &size) == 0 && more) {
        ok = false;
        if (zmq_recv(s, skip, sizeof skip, 0) < 0)
            return false;
    }
    return ok && !strcmp(q->version, "1.0") && !strcmp(q->mechanism, "CURVE") &&
           q->key_len == SEC_KEY_BYTES;
}

static void log_refused(struct sec_zap *z, const struct request *q) {
    char text[41] = "";
    if (!sec_refusals_add(&z->refusals, neb_now(), q->key))
        return;
    zmq_z85_encode(text, q->key, SEC_KEY_BYTES);
    neb_warn("%s refused: key %s is not on the list", z->domain, text);
}

static void log_others(struct sec_zap *z) {
    char text[SEC_REFUSALS_TEXT];
    neb_ns now = neb_now();
    if (now < sec_refusals_due(&z->refusals))
        return;
    sec_refusals_sum(&z->refusals, now, text);
    neb_warn("%s refused: %s that are not on the list", z->domain, text);
}

// Milliseconds until the line about other keys is due; -1: there is none.
static long until_log(const struct sec_zap *z) {
    neb_ns due = sec_refusals_due(&z->refusals), now = neb_now();
    return due == INT64_MAX ? -1 : due > now ? (long)((due - now) / NEB_MS) + 1 : 0;
}

static void answer(struct sec_zap *z) {
    struct request q;
    char name[SEC_KEY_BYTES / 4 * 5 + 1] = "";
    bool ok = request_read(z->socket, &q);
    if (ok && !strcmp(q.domain, z->domain)) {
        pthread_mutex_lock(&z->lock);
        const struct sec_member *m = sec_members_by_curve(&z->members, q.key);
        if (m)
            zmq_z85_encode(name, q.key, SEC_KEY_BYTES);
        pthread_mutex_unlock(&z->lock);
    }
    bool admit = name[0] != 0;
    if (!admit) {
        atomic_fetch_add(&z->refused, 1);
        if (ok)
            log_refused(z, &q);
    }
    zmq_send(z->socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(z->socket, q.id, q.id_len, ZMQ_SNDMORE);
    zmq_send(z->socket, admit ? "200" : "400", 3, ZMQ_SNDMORE);
    zmq_send(z->socket, "", 0, ZMQ_SNDMORE);
    zmq_send(z->socket, name, strlen(name), ZMQ_SNDMORE);
    zmq_send(z->socket, "", 0, 0);
}

static void *zap_main(void *arg) {
    struct sec_zap *z = arg;
    zmq_pollitem_t items[2] = {{.socket = z->socket, .events = ZMQ_POLLIN},
                               {.fd = z->stop, .events = ZMQ_POLLIN}};
    while (!items[1].revents) {
        if (zmq_poll(items, 2, until_log(z)) > 0 && items[0].revents)
            answer(z);
        log_others(z);
    }
    zmq_unbind(z->socket, ENDPOINT); // zmq_close alone would free the name only later
    zmq_close(z->socket);
    return NULL;
}

enum neb_status sec_zap_create(void *zmq_context, const char *domain, struct sec_zap **out) {
    if (!*domain || strlen(domain) >= sizeof((struct sec_zap *)0)->domain)
        return neb_fail(NEB_ERR_INVALID, "zap: bad domain '%s'", domain);
    struct sec_zap *z = calloc(1, sizeof *z);
    if (!z)
        return neb_fail(NEB_ERR_NOMEM, "out of memory: zap");
    snprintf(z->domain, sizeof z->domain, "%s", domain);
    pthread_mutex_init(&z->lock, NULL);
    int linger = 0;
    z->stop = eventfd(0, EFD_CLOEXEC);
    z->socket = zmq_socket(zmq_context, ZMQ_REP);
    if (z->stop < 0 || !z->socket ||
        zmq_setsockopt(z->socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_bind(z->socket, ENDPOINT) != 0 || pthread_create(&z->thread, NULL, zap_main, z) != 0) {
        enum neb_status st =
            neb_fail(NEB_ERR_IO, "zap: cannot start the handler: %s", zmq_strerror(zmq_errno()));
        if (z->socket)
            zmq_close(z->socket);
        if (z->stop >= 0)
            close(z->stop);
        pthread_mutex_destroy(&z->lock);
        free(z);
        return st;
    }
    *out = z;
    return NEB_OK;
}

void sec_zap_destroy(struct sec_zap **z) {
    if (!z || !*z)
        return;
    uint64_t one = 1;
    ssize_t told = write((*z)->stop, &one, sizeof one);
    NEB_ASSERT(told == sizeof one); // a counter at 0 always has room for 1
    pthread_join((*z)->thread, NULL);
    close((*z)->stop);
    pthread_mutex_destroy(&(*z)->lock);
    free(*z);
    *z = NULL;
}

void sec_zap_set(struct sec_zap *z, const struct sec_members *m) {
    pthread_mutex_lock(&z->lock);
    if (m)
        z->members = *m;
    else
        memset(&z->members, 0, sizeof z->members);
    pthread_mutex_unlock(&z->lock);
}

uint64_t sec_zap_refused(const struct sec_zap *z) { return atomic_load(&z->refused); }
