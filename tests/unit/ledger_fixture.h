// SPDX-License-Identifier: Apache-2.0
// Rounds for tests of the ledger. Updates, manifests and records follow from (fragment, round,
// member) alone. A signature is the SHA-256 of signer, context and message, so that no keys are
// needed.
#ifndef LEDGER_FIXTURE_H
#define LEDGER_FIXTURE_H
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "inter/ledger/ledger.h"
#include "inter/record/weights.h"
#include "security/sign.h"
#include "tests/testing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(x) assert_int_equal((x), NEB_OK)

enum { FX_OWN_BYTES = 5000, FX_PEER_BYTES = 40000, FX_FRAGMENTS = 2 };
static const uint8_t fx_job[INTER_ID_BYTES] = {0xab, 1, 2, 3};

static inline void fx_sign(uint8_t member, const char *context, const void *msg, size_t len,
                           uint8_t sig[INTER_SIG_BYTES]) {
    struct neb_buf b = {0};
    neb_buf_u8(&b, member);
    neb_buf_str(&b, context);
    neb_buf_add(&b, msg, len);
    neb_sha256(b.p, b.len, sig);
    neb_sha256(sig, 32, sig + 32);
    neb_buf_free(&b);
}

static inline enum neb_status fx_verify(void *user, const uint8_t job[INTER_ID_BYTES],
                                        uint8_t member, const char *context, const void *msg,
                                        size_t len, const uint8_t sig[INTER_SIG_BYTES]) {
    uint8_t want[INTER_SIG_BYTES];
    (void)user;
    if (memcmp(job, fx_job, INTER_ID_BYTES) || member > 1)
        return NEB_ERR_NOT_FOUND;
    fx_sign(member, context, msg, len, want);
    return memcmp(sig, want, sizeof want) ? NEB_ERR_DENIED : NEB_OK;
}

static inline struct inter_key fx_key(uint32_t fragment, uint32_t round, uint8_t member) {
    struct inter_key k = {.round = round, .fragment = fragment, .member = member};
    memcpy(k.job, fx_job, sizeof k.job);
    return k;
}

// Member 0 is this node and its update is small. Member 1's update arrives in three chunks.
static inline size_t fx_blob(const struct inter_key *k, uint8_t out[FX_PEER_BYTES]) {
    size_t n = k->member == 0 ? FX_OWN_BYTES : FX_PEER_BYTES;
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(i * 7 + i / 251 + k->round * 31 + k->fragment * 101 + k->member * 13);
    return n;
}

static inline void fx_sign_manifest(struct inter_manifest *m) {
    struct neb_buf b = {0};
    inter_manifest_put_body(&b, m);
    fx_sign(m->key.member, SEC_CONTEXT_MANIFEST, b.p, b.len, m->sig);
    neb_buf_free(&b);
}

static inline struct inter_manifest fx_manifest(const struct inter_key *k) {
    uint8_t blob[FX_PEER_BYTES];
    struct inter_manifest m = {.key = *k,
                               .chunk_bytes = INTER_CHUNK_MIN,
                               .tokens = 100 + k->round,
                               .steps = 4,
                               .digest = {k->round, 17}};
    m.bytes = (uint32_t)fx_blob(k, blob);
    neb_sha256(blob, m.bytes, m.sha256);
    fx_sign_manifest(&m);
    return m;
}

// Adds the leader's signature and the votes of both members.
static inline void fx_sign_record(struct inter_record *r) {
    struct neb_buf b = {0};
    uint8_t hash[INTER_SHA_BYTES];
    inter_record_put_body(&b, r);
    fx_sign(r->leader, SEC_CONTEXT_RECORD, b.p, b.len, r->sig);
    inter_record_hash(r, hash);
    r->n_accepts = 2;
    for (uint8_t m = 0; m < 2; m++) {
        r->accepts[m] = (struct inter_accept){.member = m, .epoch = 70u + m};
        neb_buf_clear(&b);
        inter_accept_put_body(&b, r, hash, r->accepts[m].epoch);
        fx_sign(m, SEC_CONTEXT_ACCEPT, b.p, b.len, r->accepts[m].sig);
    }
    neb_buf_free(&b);
}

static inline struct inter_record fx_record(uint32_t fragment, uint32_t round,
                                            const uint8_t previous[INTER_SHA_BYTES]) {
    struct inter_record r = {.round = round,
                             .fragment = fragment,
                             .term = 1,
                             .eta = 0.9f,
                             .mu = 0.5f,
                             .n = 2,
                             .n_plans = 2};
    memcpy(r.job, fx_job, sizeof r.job);
    memcpy(r.previous, previous, sizeof r.previous);
    for (uint8_t i = 0; i < 2; i++) {
        struct inter_key k = fx_key(fragment, round, i);
        struct inter_manifest m = fx_manifest(&k);
        r.entries[i] =
            (struct inter_entry){.member = i, .bytes = m.bytes, .tokens = m.tokens, .clip = 1};
        memcpy(r.entries[i].sha256, m.sha256, sizeof m.sha256);
    }
    struct inter_absence before[NEB_MEMBERS_MAX] = {{0}}; // neither member ever misses a round
    before[0].base = before[1].base = round;
    inter_weights_fill(&r, before);
    fx_sign_record(&r);
    return r;
}

// The record of a round whose chain holds only records of this fixture.
static inline struct inter_record fx_chain(uint32_t fragment, uint32_t round) {
    uint8_t previous[INTER_SHA_BYTES] = {0};
    struct inter_record r = {0};
    for (uint32_t i = 0; i <= round; i++) {
        r = fx_record(fragment, i, previous);
        inter_record_hash(&r, previous);
    }
    return r;
}

// ---- the steps of a round in the order of an agent; each returns the first failure

static inline enum neb_status fx_put_own(struct inter_ledger *l, uint32_t fragment,
                                         uint32_t round) {
    uint8_t blob[FX_PEER_BYTES];
    struct inter_key k = fx_key(fragment, round, 0);
    return inter_ledger_put_blob(l, &k, blob, fx_blob(&k, blob));
}

static inline enum neb_status fx_put_manifest(struct inter_ledger *l, uint32_t fragment,
                                              uint32_t round, uint8_t member) {
    struct inter_key k = fx_key(fragment, round, member);
    struct inter_manifest m = fx_manifest(&k);
    return inter_ledger_put_manifest(l, &m);
}

static inline enum neb_status fx_part_open(struct inter_ledger *l, uint32_t fragment,
                                           uint32_t round, uint32_t *got) {
    struct inter_key k = fx_key(fragment, round, 1);
    struct inter_manifest m = fx_manifest(&k);
    struct inter_bitmap b;
    NEB_TRY(inter_bitmap_init(&b, inter_chunks(m.bytes, m.chunk_bytes)));
    enum neb_status st = inter_ledger_part_open(l, &m, &b);
    *got = b.set;
    inter_bitmap_free(&b);
    return st;
}

static inline enum neb_status fx_part_write(struct inter_ledger *l, uint32_t fragment,
                                            uint32_t round, uint32_t chunk) {
    uint8_t blob[FX_PEER_BYTES];
    struct inter_key k = fx_key(fragment, round, 1);
    size_t n = fx_blob(&k, blob), at = (size_t)chunk * INTER_CHUNK_MIN;
    return inter_ledger_part_write(l, &k, at, blob + at,
                                   n - at < INTER_CHUNK_MIN ? n - at : INTER_CHUNK_MIN);
}

static inline enum neb_status fx_part_finish(struct inter_ledger *l, uint32_t fragment,
                                             uint32_t round) {
    struct inter_key k = fx_key(fragment, round, 1);
    struct inter_manifest m = fx_manifest(&k);
    return inter_ledger_part_finish(l, &m);
}

static inline enum neb_status fx_put_vote(struct inter_ledger *l, uint32_t fragment,
                                          uint32_t round) {
    struct inter_record r = fx_chain(fragment, round);
    r.n_accepts = 0; // a proposal
    return inter_ledger_put_vote(l, &r);
}

static inline enum neb_status fx_put_commit(struct inter_ledger *l, uint32_t fragment,
                                            uint32_t round) {
    struct inter_record r = fx_chain(fragment, round);
    return inter_ledger_put_commit(l, &r);
}

static inline enum neb_status fx_arrive(struct inter_ledger *l, uint32_t fragment, uint32_t round) {
    uint32_t got;
    NEB_TRY(fx_put_manifest(l, fragment, round, 1));
    NEB_TRY(fx_part_open(l, fragment, round, &got));
    for (uint32_t c = 0; c < 3; c++)
        NEB_TRY(fx_part_write(l, fragment, round, c));
    return fx_part_finish(l, fragment, round);
}

static inline enum neb_status fx_round(struct inter_ledger *l, uint32_t fragment, uint32_t round) {
    NEB_TRY(fx_put_own(l, fragment, round));
    NEB_TRY(fx_put_manifest(l, fragment, round, 0));
    NEB_TRY(fx_arrive(l, fragment, round));
    NEB_TRY(fx_put_vote(l, fragment, round));
    return fx_put_commit(l, fragment, round);
}

// The ledger has this update, with the right bytes.
static inline void fx_check_blob(struct inter_ledger *l, uint32_t fragment, uint32_t round,
                                 uint8_t member) {
    uint8_t want[FX_PEER_BYTES];
    struct inter_key k = fx_key(fragment, round, member);
    struct neb_map m;
    size_t n = fx_blob(&k, want);
    assert_true(inter_ledger_has_blob(l, &k));
    OK(inter_ledger_map_blob(l, &k, &m));
    assert_int_equal(m.len, n);
    assert_memory_equal(m.p, want, n);
    neb_map_close(&m);
}

static inline void fx_file(const char *dir, const struct inter_key *k, const char *suffix,
                           char out[NEB_PATH_MAX]) {
    char job[2 * INTER_ID_BYTES + 1];
    neb_hex(k->job, INTER_ID_BYTES, job);
    snprintf(out, NEB_PATH_MAX, "%s/blobs/%s-f%u-r%08u-m%u-a%u%s", dir, job, k->fragment, k->round,
             k->member, k->attempt, suffix);
}

static inline bool fx_has_file(const char *dir, uint32_t fragment, uint32_t round, uint8_t member,
                               const char *suffix) {
    char path[NEB_PATH_MAX];
    struct inter_key k = fx_key(fragment, round, member);
    fx_file(dir, &k, suffix, path);
    return neb_fs_exists(path);
}

#endif
