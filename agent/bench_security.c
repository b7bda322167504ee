#include "agent/bench_security.h"
#include "agent/base/clock.h"
#include "agent/base/sha256.h"
#include "security/sign.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MESSAGE = 1 << 20,
    REPEATS = 4,
    SIGNATURES = 4
}; // manifest, record, two votes: each made once and checked once

struct travel {
    const struct bench_security *b;
    bool secured;
    int fd[2];
    uint8_t key[crypto_box_BEFORENMBYTES], sign_secret[crypto_sign_SECRETKEYBYTES],
        sign_public[crypto_sign_PUBLICKEYBYTES];
    uint8_t *out, *in; // (MESSAGE + box)
    uint8_t *here;     // the update, as it arrived
    bool good;
};

static void wait_until(neb_ns when) {
    for (neb_ns now; (now = neb_now()) < when;) {
        struct timespec t = {.tv_sec = (when - now) / NEB_S,
                             .tv_nsec = (long)((when - now) % NEB_S)};
        nanosleep(&t, NULL);
    }
}

static size_t message_bytes(const struct travel *t, size_t at) {
    size_t left = t->b->update->len - at;
    return left < MESSAGE ? left : MESSAGE;
}

static bool write_all(int fd, const uint8_t *p, size_t n) {
    for (ssize_t k; n > 0; p += k, n -= (size_t)k)
        if ((k = write(fd, p, n)) <= 0)
            return false;
    return true;
}
static bool read_all(int fd, uint8_t *p, size_t n) {
    for (ssize_t k; n > 0; p += k, n -= (size_t)k)
        if ((k = read(fd, p, n)) <= 0)
            return false;
    return true;
}

static void *send_all(void *arg) {
    struct travel *t = arg;
    uint8_t nonce[crypto_box_NONCEBYTES] = {0}, sha[NEB_SHA256_BYTES];
    const struct neb_buf *u = t->b->update;
    neb_ns due = neb_now();
    t->good = true;
    if (t->secured)
        neb_sha256(u->p, u->len, sha);
    for (size_t at = 0; at < u->len && t->good; at += MESSAGE) {
        size_t n = message_bytes(t, at), extra = t->secured ? crypto_box_MACBYTES : 0;
        const uint8_t *p = u->p + at;
        if (t->secured) {
            neb_put_u64(nonce, at);
            neb_sha256(p, n, sha);
            t->good = crypto_box_easy_afternm(t->out, p, n, nonce, t->key) == 0;
            p = t->out;
        }
        neb_ns free = neb_now() > due ? neb_now() : due; // the link is idle from then on
        due = free + (neb_ns)(8e9 * (double)(n + extra) / t->b->rate_bps);
        wait_until(due); // its last byte has left
        t->good = t->good && write_all(t->fd[0], p, n + extra);
    }
    return NULL;
}

static bool receive_all(struct travel *t) {
    uint8_t nonce[crypto_box_NONCEBYTES] = {0}, sha[NEB_SHA256_BYTES];
    const struct neb_buf *u = t->b->update;
    bool good = true;
    for (size_t at = 0; at < u->len && good; at += MESSAGE) {
        size_t n = message_bytes(t, at);
        if (!t->secured) {
            good = read_all(t->fd[1], t->here + at, n);
            continue;
        }
        neb_put_u64(nonce, at);
        good = read_all(t->fd[1], t->in, n + crypto_box_MACBYTES) &&
               crypto_box_open_easy_afternm(t->here + at, t->in, n + crypto_box_MACBYTES, nonce,
                                            t->key) == 0;
        neb_sha256(t->here + at, n, sha);
    }
    if (t->secured)
        neb_sha256(t->here, u->len, sha);
    for (int k = 0; t->secured && k < SIGNATURES && good; k++) {
        uint8_t sig[SEC_SIGN_BYTES];
        good = sec_sign_with(t->sign_secret, SEC_CONTEXT_RECORD, sha, sizeof sha, sig) == NEB_OK &&
               sec_verify(t->sign_public, SEC_CONTEXT_RECORD, sha, sizeof sha, sig) == NEB_OK;
    }
    return good;
}

static enum neb_status once(struct travel *t, double *seconds) {
    pthread_t sender;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, t->fd) != 0)
        return neb_fail_errno("socketpair");
    neb_ns start = neb_now();
    bool made = pthread_create(&sender, NULL, send_all, t) == 0, good = made && receive_all(t);
    if (made)
        pthread_join(sender, NULL);
    *seconds = neb_seconds(neb_now() - start);
    close(t->fd[0]);
    close(t->fd[1]);
    return good && t->good ? NEB_OK
                           : neb_fail(NEB_ERR_IO, "bench round: the update did not arrive");
}

enum neb_status bench_security(const struct bench_security *b, double *open_s, double *secured_s) {
    struct travel t = {.b = b};
    double best[2] = {0, 0}, s = 0;
    enum neb_status st;
    NEB_TRY_GOTO(sec_init(), out);
    randombytes_buf(t.key, sizeof t.key);
    crypto_sign_keypair(t.sign_public, t.sign_secret);
    t.out = malloc(MESSAGE + crypto_box_MACBYTES);
    t.in = malloc(MESSAGE + crypto_box_MACBYTES);
    t.here = malloc(b->update->len);
    if (!t.out || !t.in || !t.here) {
        st = neb_fail(NEB_ERR_NOMEM, "bench round: no memory for an update of %zu bytes",
                      b->update->len);
        goto out;
    }
    for (int k = 0; k < 2 * REPEATS; k++) {
        t.secured = k % 2;
        NEB_TRY_GOTO(once(&t, &s), out);
        best[t.secured] = k < 2 || s < best[t.secured] ? s : best[t.secured];
    }
    *open_s = b->compute_s + best[0];
    *secured_s = b->compute_s + best[1] + b->gate_s;
out:
    free(t.out);
    free(t.in);
    free(t.here);
    return st;
}
