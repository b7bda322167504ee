// SPDX-License-Identifier: Apache-2.0
// Shared by test_stream*.c: fake signatures, a configuration and batch bodies for both ends.
#ifndef STREAM_FIXTURE_H
#define STREAM_FIXTURE_H
#include "agent/base/rng.h"
#include "agent/base/sha256.h"
#include "inter/stream/streams.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

// ---- signatures: a digest of the message

static inline bool fake_sign(void *user, const char *context, const void *msg, size_t len,
                             uint8_t sig[INTER_SIG_BYTES]) {
    (void)user;
    memset(sig, 0, INTER_SIG_BYTES);
    neb_sha256(msg, len, sig);
    sig[40] = (uint8_t)strlen(context);
    return true;
}
static inline bool fake_verify(void *user, uint32_t peer, const char *context, const void *msg,
                               size_t len, const uint8_t sig[INTER_SIG_BYTES]) {
    uint8_t want[INTER_SIG_BYTES];
    (void)peer;
    return fake_sign(user, context, msg, len, want) && !memcmp(want, sig, sizeof want);
}
static const struct inter_node_crypto crypto = {NULL, fake_sign, fake_verify};

static inline struct inter_stream_config config(enum inter_stream_role role) {
    struct inter_stream_config c = {.key = {.id = 7, .job = {1, 2, 3}},
                                    .type = INTER_STREAM_SOFT_LABELS,
                                    .role = role,
                                    .peer = 1,
                                    .batch_bytes = 200,
                                    .window_batches = 6,
                                    .window_start = 2,
                                    .window_bytes = 700,
                                    .spool_batches = 24,
                                    .spool_bytes = 3000,
                                    .n_terms = 1,
                                    .terms = {{"shards", {9}}}};
    return c;
}

static inline size_t body(uint64_t seq, uint8_t out[200]) {
    struct neb_rng r = neb_rng_make(77, seq);
    size_t n = 1 + neb_rng_below(&r, 200);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)neb_rng_u64(&r);
    return n;
}
#endif
