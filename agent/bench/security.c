// SPDX-License-Identifier: Apache-2.0
#include "agent/bench/security.h"
#include "agent/base/sha256.h"
#include "agent/bench/bench.h"
#include "compress/check.h"
#include "security/sign.h"

#include <fcntl.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <unistd.h>

enum { REPEATS = 5, SIGNATURES = 4 };

const char *const bench_stage_names[BENCH_STAGES] = {
    "own digest", "chunk digest", "box", "unbox", "running digest", "gate", "sketch", "signatures"};

// ---- stages -------------------------------------------------------------------------------------

struct lab {
    const struct bench_security *b;
    uint8_t *boxed; // (chunks of chunk_bytes + MAC)
    uint8_t *clear; // (chunk_bytes)
    uint8_t key[crypto_box_BEFORENMBYTES], secret[crypto_sign_SECRETKEYBYTES],
        public[crypto_sign_PUBLICKEYBYTES];
    struct neb_sha256 *sha;
    struct cmp_check *check;
};

static bool sign_all(struct lab *l) {
    uint8_t sig[SEC_SIGN_BYTES], body[NEB_SHA256_BYTES] = {1};
    bool good = true;
    for (int k = 0; k < SIGNATURES && good; k++)
        good = sec_sign_with(l->secret, SEC_CONTEXT_RECORD, body, sizeof body, sig) == NEB_OK &&
               sec_verify(l->public, SEC_CONTEXT_RECORD, body, sizeof body, sig) == NEB_OK;
    return good;
}

static bool do_chunk(struct lab *l, enum bench_stage stage, size_t at, size_t n, size_t i) {
    uint8_t nonce[crypto_box_NONCEBYTES] = {0}, digest[NEB_SHA256_BYTES];
    const uint8_t *p = l->b->update->p + at;
    uint8_t *boxed = l->boxed + i * (l->b->chunk_bytes + crypto_box_MACBYTES);
    neb_put_u64(nonce, i);
    switch (stage) {
    case BENCH_CHUNK_DIGEST: neb_sha256(p, n, digest); return true;
    case BENCH_BOX: return crypto_box_easy_afternm(boxed, p, n, nonce, l->key) == 0;
    case BENCH_UNBOX:
        return crypto_box_open_easy_afternm(l->clear, boxed, n + crypto_box_MACBYTES, nonce,
                                            l->key) == 0;
    case BENCH_RUNNING_DIGEST: neb_sha256_add(l->sha, p, n); return true;
    case BENCH_GATE:
    case BENCH_SKETCH: return cmp_check_feed(l->check, p, n) == NEB_OK;
    case BENCH_OWN_DIGEST:
    case BENCH_SIGNATURES:
    case BENCH_STAGES: break;
    }
    return false;
}

static bool do_stage(struct lab *l, enum bench_stage stage) {
    const struct neb_buf *u = l->b->update;
    uint8_t digest[NEB_SHA256_BYTES];
    struct cmp_update_stats stats;
    bool good = true, checks = stage == BENCH_GATE || stage == BENCH_SKETCH;
    if (stage == BENCH_SIGNATURES)
        return sign_all(l);
    if (stage == BENCH_OWN_DIGEST) {
        neb_sha256(u->p, u->len, digest);
        return true;
    }
    if (checks)
        cmp_check_begin(l->check, l->b->elements);
    if (stage == BENCH_SKETCH)
        cmp_check_sketch(l->check);
    for (size_t at = 0, i = 0; at < u->len && good; at += l->b->chunk_bytes, i++) {
        size_t n = u->len - at < l->b->chunk_bytes ? u->len - at : l->b->chunk_bytes;
        good = do_chunk(l, stage, at, n, i);
    }
    if (stage == BENCH_RUNNING_DIGEST)
        neb_sha256_finish(l->sha, digest);
    return good && (!checks || cmp_check_end(l->check, &stats) == NEB_OK);
}

static enum neb_status store(const struct neb_buf *u, double *seconds) {
    char path[] = "/tmp/nebula-bench-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0)
        return neb_fail_errno("cannot create %s", path);
    unlink(path);
    neb_ns start = neb_now();
    bool good = true;
    for (size_t at = 0; at < u->len && good;) {
        ssize_t n = write(fd, u->p + at, u->len - at);
        good = n > 0;
        at += good ? (size_t)n : 0;
    }
    good = good && fsync(fd) == 0;
    *seconds = neb_seconds(neb_now() - start);
    close(fd);
    return good ? NEB_OK : neb_fail_errno("cannot write %s", path);
}

enum neb_status bench_security_measure(const struct bench_security *b, struct bench_costs *out) {
    size_t chunks = (b->update->len + b->chunk_bytes - 1) / b->chunk_bytes;
    struct lab l = {.b = b};
    enum neb_status st;
    NEB_TRY_GOTO(sec_init(), out);
    randombytes_buf(l.key, sizeof l.key);
    crypto_sign_keypair(l.public, l.secret);
    l.boxed = malloc(chunks * (b->chunk_bytes + crypto_box_MACBYTES));
    l.clear = malloc(b->chunk_bytes);
    if (!l.boxed || !l.clear) {
        st = neb_fail(NEB_ERR_NOMEM, "bench round: out of memory for an update of %zu bytes",
                      b->update->len);
        goto out;
    }
    NEB_TRY_GOTO(neb_sha256_create(&l.sha), out);
    NEB_TRY_GOTO(cmp_check_create(&l.check), out);
    for (int repeat = 0; repeat <= REPEATS; repeat++) { // the first one warms buffers and caches
        for (int stage = 0; stage < BENCH_STAGES; stage++) {
            double start = bench_thread_seconds();
            if (!do_stage(&l, (enum bench_stage)stage)) {
                st = neb_fail(NEB_ERR_FORMAT, "bench round: stage %s failed",
                              bench_stage_names[stage]);
                goto out;
            }
            double s = bench_thread_seconds() - start;
            out->s[stage] = repeat <= 1 || s < out->s[stage] ? s : out->s[stage];
        }
        double s = 0;
        NEB_TRY_GOTO(store(b->update, &s), out);
        out->store_s = repeat <= 1 || s < out->store_s ? s : out->store_s;
    }
    // The sketch was measured together with the gate.
    out->s[BENCH_SKETCH] = fmax(0, out->s[BENCH_SKETCH] - out->s[BENCH_GATE]);
out:
    neb_sha256_destroy(&l.sha);
    cmp_check_destroy(&l.check);
    free(l.boxed);
    free(l.clear);
    return st;
}

// ---- the pipeline -------------------------------------------------------------------------------

double bench_pipeline(const struct bench_security *b, const struct bench_costs *c, bool secured) {
    enum { SEND, BOX, WIRE, UNBOX, TAKE, THREADS };
    size_t len = b->update->len, mac = secured ? crypto_box_MACBYTES : 0;
    const double per_byte = 1 / (double)len, *s = c->s;
    double begin = secured && s[BENCH_OWN_DIGEST] > c->store_s ? s[BENCH_OWN_DIGEST] : c->store_s;
    double weighs = secured ? s[BENCH_GATE] + s[BENCH_SKETCH] : 0, free_at[THREADS];
    begin += fmax(0, weighs - b->rtt_s); // checking its own update
    for (int k = 0; k < THREADS; k++)
        free_at[k] = begin;
    for (size_t at = 0; at < len; at += b->chunk_bytes) {
        size_t n = len - at < b->chunk_bytes ? len - at : b->chunk_bytes;
        double share = secured ? (double)n * per_byte : 0, ready = begin;
        // The thread that receives the other's chunks also digests this member's next chunk.
        const double takes[THREADS] = {share * s[BENCH_CHUNK_DIGEST], share * s[BENCH_BOX],
                                       8 * (double)(n + mac) / b->rate_bps, share * s[BENCH_UNBOX],
                                       share *
                                           (2 * s[BENCH_CHUNK_DIGEST] + s[BENCH_RUNNING_DIGEST] +
                                            s[BENCH_GATE] + s[BENCH_SKETCH])};
        for (int k = 0; k < THREADS; k++) {
            ready = (ready > free_at[k] ? ready : free_at[k]) + takes[k];
            free_at[k] = ready;
        }
    }
    return free_at[TAKE] + (secured ? s[BENCH_SIGNATURES] : 0);
}
