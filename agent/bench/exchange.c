// SPDX-License-Identifier: Apache-2.0
// The exchange of agent/bench/security.h, run by threads. A socket is the link; it carries a chunk
// no sooner than the emulated rate allows.
#include "agent/base/sha256.h"
#include "agent/bench/bench.h"
#include "agent/bench/security.h"
#include "compress/check.h"
#include "security/sign.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { REPEATS = 6, SIGNATURES = 4, MEMBERS = 2 };

struct way { // from one member to the other
    const struct bench_security *b;
    bool secured, good_out, good_in;
    int fd[2];
    uint8_t key[crypto_box_BEFORENMBYTES], secret[crypto_sign_SECRETKEYBYTES],
        public[crypto_sign_PUBLICKEYBYTES];
    uint8_t *out[2], *in, *here; // (chunk + box) each, (chunk)
    struct neb_sha256 *sha;
    struct cmp_check *check;
};

static void wait_until(neb_ns when) {
    for (neb_ns now; (now = neb_now()) < when;) {
        struct timespec t = {.tv_sec = (when - now) / NEB_S,
                             .tv_nsec = (long)((when - now) % NEB_S)};
        nanosleep(&t, NULL);
    }
}

static bool write_all(int fd, const uint8_t *p, size_t n) {
    for (ssize_t k; n > 0; p += k, n -= (size_t)k)
        if ((k = send(fd, p, n, MSG_NOSIGNAL)) <= 0)
            return false;
    return true;
}

static bool read_all(int fd, uint8_t *p, size_t n) {
    for (ssize_t k; n > 0; p += k, n -= (size_t)k)
        if ((k = read(fd, p, n)) <= 0)
            return false;
    return true;
}

static size_t chunk_at(const struct way *w, size_t at) {
    size_t left = w->b->update->len - at;
    return left < w->b->chunk_bytes ? left : w->b->chunk_bytes;
}

// The chunk at `at` as it goes onto the wire; NULL: it cannot be encrypted.
static const uint8_t *prepare(const struct way *w, size_t at, uint8_t *room) {
    uint8_t nonce[crypto_box_NONCEBYTES] = {0}, digest[NEB_SHA256_BYTES];
    const uint8_t *p = w->b->update->p + at;
    size_t n = chunk_at(w, at);
    if (!w->secured)
        return p;
    neb_put_u64(nonce, at);
    neb_sha256(p, n, digest);
    return crypto_box_easy_afternm(room, p, n, nonce, w->key) == 0 ? room : NULL;
}

// Prepares the next chunk while one is on the wire, as an I/O thread does behind a socket's buffer.
static void *send_all(void *arg) {
    struct way *w = arg;
    size_t step = w->b->chunk_bytes, len = w->b->update->len,
           extra = w->secured ? crypto_box_MACBYTES : 0;
    const uint8_t *ready = prepare(w, 0, w->out[0]), *next = NULL;
    neb_ns sent = 0; // when the last byte of the previous chunk has left
    w->good_out = ready != NULL;
    for (size_t at = 0, i = 0; at < len && w->good_out; at += step, i++, ready = next) {
        neb_ns now = neb_now();
        sent = (now > sent ? now : sent) +
               (neb_ns)(8e9 * (double)(chunk_at(w, at) + extra) / w->b->rate_bps);
        if (at + step < len)
            next = prepare(w, at + step, w->out[(i + 1) % 2]);
        wait_until(sent);
        w->good_out =
            (next || at + step >= len) && write_all(w->fd[0], ready, chunk_at(w, at) + extra);
    }
    if (!w->good_out)
        shutdown(w->fd[0], SHUT_RDWR);
    return NULL;
}

static bool take_chunk(struct way *w, size_t at, size_t n) {
    uint8_t nonce[crypto_box_NONCEBYTES] = {0}, digest[NEB_SHA256_BYTES];
    if (!w->secured)
        return read_all(w->fd[1], w->here, n);
    neb_put_u64(nonce, at);
    if (!read_all(w->fd[1], w->in, n + crypto_box_MACBYTES) ||
        crypto_box_open_easy_afternm(w->here, w->in, n + crypto_box_MACBYTES, nonce, w->key) != 0)
        return false;
    neb_sha256(w->here, n, digest);
    neb_sha256_add(w->sha, w->here, n);
    return cmp_check_feed(w->check, w->here, n) == NEB_OK;
}

static void *receive_all(void *arg) {
    struct way *w = arg;
    struct cmp_update_stats stats;
    uint8_t digest[NEB_SHA256_BYTES], sig[SEC_SIGN_BYTES];
    bool good = true;
    cmp_check_begin(w->check, w->b->elements);
    cmp_check_sketch(w->check); // as in a round of two members
    for (size_t at = 0; at < w->b->update->len && good; at += w->b->chunk_bytes)
        good = take_chunk(w, at, chunk_at(w, at));
    neb_sha256_finish(w->sha, digest);
    if (w->secured)
        good = good && cmp_check_end(w->check, &stats) == NEB_OK;
    for (int k = 0; w->secured && k < SIGNATURES && good; k++)
        good = sec_sign_with(w->secret, SEC_CONTEXT_RECORD, digest, sizeof digest, sig) == NEB_OK &&
               sec_verify(w->public, SEC_CONTEXT_RECORD, digest, sizeof digest, sig) == NEB_OK;
    w->good_in = good;
    return NULL;
}

static enum neb_status once(struct way *w, int ways, struct bench_took *took) {
    pthread_t threads[2 * MEMBERS];
    int started = 0, opened = 0;
    while (opened < ways && socketpair(AF_UNIX, SOCK_STREAM, 0, w[opened].fd) == 0)
        opened++;
    neb_ns start = neb_now();
    double used = bench_cpu_seconds();
    for (int k = 0; opened == ways && k < 2 * ways && started == k; k++)
        started +=
            pthread_create(&threads[k], NULL, k % 2 ? send_all : receive_all, &w[k / 2]) == 0;
    bool all = opened == ways && started == 2 * ways;
    for (int k = 0; !all && k < opened; k++) // ends the threads that wait
        shutdown(w[k].fd[0], SHUT_RDWR);
    for (int k = 0; k < started; k++)
        pthread_join(threads[k], NULL);
    *took = (struct bench_took){neb_seconds(neb_now() - start), bench_cpu_seconds() - used};
    for (int k = 0; k < opened; k++) {
        all = all && w[k].good_in && w[k].good_out;
        close(w[k].fd[0]);
        close(w[k].fd[1]);
    }
    return all ? NEB_OK : neb_fail(NEB_ERR_IO, "bench round: the update does not arrive");
}

static enum neb_status open_way(struct way *w, const struct bench_security *b) {
    w->b = b;
    randombytes_buf(w->key, sizeof w->key);
    crypto_sign_keypair(w->public, w->secret);
    for (int k = 0; k < 2; k++)
        w->out[k] = malloc(b->chunk_bytes + crypto_box_MACBYTES);
    w->in = malloc(b->chunk_bytes + crypto_box_MACBYTES);
    w->here = malloc(b->chunk_bytes);
    if (!w->out[0] || !w->out[1] || !w->in || !w->here)
        return neb_fail(NEB_ERR_NOMEM, "bench round: out of memory for a chunk");
    NEB_TRY(neb_sha256_create(&w->sha));
    return cmp_check_create(&w->check);
}

enum neb_status bench_exchange(const struct bench_security *b, enum bench_way way,
                               struct bench_took *in_the_open, struct bench_took *secured) {
    struct way w[MEMBERS] = {0};
    int ways = way == BENCH_BOTH_WAYS ? MEMBERS : 1;
    struct bench_took best[2] = {{0, 0}, {0, 0}}, took = {0, 0};
    enum neb_status st;
    NEB_TRY_GOTO(sec_init(), out);
    for (int k = 0; k < ways; k++)
        NEB_TRY_GOTO(open_way(&w[k], b), out);
    for (int k = 0; k < 2 * REPEATS; k++) {
        w[0].secured = w[1].secured = k % 2;
        NEB_TRY_GOTO(once(w, ways, &took), out);
        struct bench_took *x = &best[k % 2];
        x->clock_s = k < 2 || took.clock_s < x->clock_s ? took.clock_s : x->clock_s;
        x->processor_s =
            k < 2 || took.processor_s < x->processor_s ? took.processor_s : x->processor_s;
    }
    *in_the_open = best[0];
    *secured = best[1];
out:
    for (int k = 0; k < ways; k++) {
        free(w[k].out[0]);
        free(w[k].out[1]);
        free(w[k].in);
        free(w[k].here);
        neb_sha256_destroy(&w[k].sha);
        cmp_check_destroy(&w[k].check);
    }
    return st;
}
