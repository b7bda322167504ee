// SPDX-License-Identifier: Apache-2.0
#include "security/secure_sum.h"

#include "security/locked.h"
#include "security/noise.h"

#include <math.h>
#include <sodium.h>
#include <string.h>

enum {
    MAGIC = 0x3153424e /* "NBS1" */,
    BLOCK = 2048, // integers of a mask made at a time
    STREAM_BLOCK = 64,
    HEAD_FIXED = 4 + 1 + 1 + 2 + 4 + 4 + 4 + 2 * SEC_SUM_SEED_BYTES,
};

struct sec_sum { // in locked memory
    uint8_t n, self;
    uint8_t keys[NEB_MEMBERS_MAX][SEC_SUM_KEY_BYTES];
};

static const char key_context[] = "nebula sum key v1", pair_context[] = "nebula sum pair v1",
                  share_context[] = "nebula sum share v1", nonce_context[] = "nebula sum nonce v1",
                  hash_context[] = "nebula sum hash v1", own_context[] = "nebula sum own v1",
                  noise_context[] = "nebula sum noise v1";

// ---- seeds --------------------------------------------------------------------------------------

enum neb_status sec_sum_pair_key(const uint8_t secret[SEC_KEY_BYTES],
                                 const uint8_t own[SEC_KEY_BYTES],
                                 const uint8_t other[SEC_KEY_BYTES],
                                 const uint8_t job[SEC_SUM_JOB_BYTES],
                                 uint8_t out[SEC_SUM_KEY_BYTES]) {
    uint8_t shared[crypto_scalarmult_BYTES];
    bool first = memcmp(own, other, SEC_KEY_BYTES) < 0;
    if (crypto_scalarmult(shared, secret, other))
        return neb_fail(NEB_ERR_INVALID, "secure sum: the other member's key is not valid");
    crypto_generichash_state h;
    crypto_generichash_init(&h, shared, sizeof shared, SEC_SUM_KEY_BYTES);
    crypto_generichash_update(&h, (const uint8_t *)key_context, sizeof key_context);
    crypto_generichash_update(&h, job, SEC_SUM_JOB_BYTES);
    crypto_generichash_update(&h, first ? own : other, SEC_KEY_BYTES);
    crypto_generichash_update(&h, first ? other : own, SEC_KEY_BYTES);
    crypto_generichash_final(&h, out, SEC_SUM_KEY_BYTES);
    sodium_memzero(&h, sizeof h);
    sodium_memzero(shared, sizeof shared);
    return NEB_OK;
}

void sec_sum_own_key(const uint8_t secret[SEC_KEY_BYTES], const uint8_t job[SEC_SUM_JOB_BYTES],
                     uint8_t out[SEC_SUM_KEY_BYTES]) {
    crypto_generichash_state h;
    crypto_generichash_init(&h, secret, SEC_KEY_BYTES, SEC_SUM_KEY_BYTES);
    crypto_generichash_update(&h, (const uint8_t *)own_context, sizeof own_context);
    crypto_generichash_update(&h, job, SEC_SUM_JOB_BYTES);
    crypto_generichash_final(&h, out, SEC_SUM_KEY_BYTES);
    sodium_memzero(&h, sizeof h);
}

enum neb_status sec_sum_create(uint8_t n, uint8_t self, const uint8_t keys[][SEC_SUM_KEY_BYTES],
                               struct sec_sum **out) {
    NEB_TRY(sec_init());
    if (n < 3 || n > NEB_MEMBERS_MAX || self >= n)
        return neb_fail(NEB_ERR_INVALID, "secure sum: %u members, but it takes 3 to %d to hide one",
                        n, NEB_MEMBERS_MAX);
    struct sec_sum *s = sec_locked_alloc(sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "secure sum: out of memory for keys");
    sodium_memzero(s, sizeof *s);
    s->n = n;
    s->self = self;
    memcpy(s->keys, keys, (size_t)n * SEC_SUM_KEY_BYTES);
    *out = s;
    return NEB_OK;
}

void sec_sum_destroy(struct sec_sum **s) {
    if (!s || !*s)
        return;
    sodium_free(*s); // wipes
    *s = NULL;
}

uint8_t sec_sum_self(const struct sec_sum *s) { return s->self; }
bool sec_sum_has_own_key(const struct sec_sum *s) {
    return !sodium_is_zero(s->keys[s->self], SEC_SUM_KEY_BYTES);
}

// H(K_k, context, fragment, round, extra).
static void derive(const struct sec_sum *s, uint8_t k, const char *context, size_t context_len,
                   uint32_t fragment, uint32_t round, const void *extra, size_t len,
                   uint8_t out[SEC_SUM_SEED_BYTES]) {
    uint8_t where[8];
    crypto_generichash_state h;
    neb_put_u32(where, fragment);
    neb_put_u32(where + 4, round);
    crypto_generichash_init(&h, s->keys[k], SEC_SUM_KEY_BYTES, SEC_SUM_SEED_BYTES);
    crypto_generichash_update(&h, (const uint8_t *)context, context_len);
    crypto_generichash_update(&h, where, sizeof where);
    crypto_generichash_update(&h, extra, len);
    crypto_generichash_final(&h, out, SEC_SUM_SEED_BYTES);
    sodium_memzero(&h, sizeof h);
}

static void pair_seed(const struct sec_sum *s, uint8_t k, uint32_t fragment, uint32_t round,
                      uint8_t out[SEC_SUM_SEED_BYTES]) {
    derive(s, k, pair_context, sizeof pair_context, fragment, round, NULL, 0, out);
}

// The share of the owner's b that this member and k know. One of the two is the owner.
static void share_of(const struct sec_sum *s, uint8_t k, uint8_t owner,
                     const struct sec_sum_head *h, uint8_t out[SEC_SUM_SEED_BYTES]) {
    uint8_t extra[1 + SEC_SUM_SEED_BYTES] = {owner};
    memcpy(extra + 1, h->nonce, sizeof h->nonce);
    derive(s, k, share_context, sizeof share_context, h->fragment, h->round, extra, sizeof extra,
           out);
}

static void add_seed(uint8_t acc[SEC_SUM_SEED_BYTES], const uint8_t x[SEC_SUM_SEED_BYTES]) {
    for (int i = 0; i < SEC_SUM_SEED_BYTES; i++)
        acc[i] ^= x[i];
}

static void own_seed(const struct sec_sum *s, const struct sec_sum_head *h,
                     uint8_t out[SEC_SUM_SEED_BYTES]) {
    uint8_t share[SEC_SUM_SEED_BYTES];
    memset(out, 0, SEC_SUM_SEED_BYTES);
    for (uint8_t k = 0; k < s->n; k++)
        if (k != s->self) {
            share_of(s, k, s->self, h, share);
            add_seed(out, share);
        }
    sodium_memzero(share, sizeof share);
}

static void announce(const uint8_t seed[SEC_SUM_SEED_BYTES], uint8_t out[SEC_SUM_SEED_BYTES]) {
    crypto_generichash(out, SEC_SUM_SEED_BYTES, seed, SEC_SUM_SEED_BYTES,
                       (const uint8_t *)hash_context, sizeof hash_context);
}

static bool announced(const uint8_t seed[SEC_SUM_SEED_BYTES],
                      const uint8_t hash[SEC_SUM_SEED_BYTES]) {
    uint8_t is[SEC_SUM_SEED_BYTES];
    announce(seed, is);
    return sodium_memcmp(is, hash, sizeof is) == 0;
}

// A hash of the integers and all keys, so nobody else can tell whether two updates are the same.
static void make_nonce(const struct sec_sum *s, const struct sec_sum_head *h, const int16_t *q,
                       uint8_t out[SEC_SUM_SEED_BYTES]) {
    uint8_t bytes[2 * BLOCK];
    crypto_generichash_state st;
    uint8_t key[SEC_SUM_KEY_BYTES];
    crypto_generichash(key, sizeof key, s->keys[0], sizeof s->keys, (const uint8_t *)nonce_context,
                       sizeof nonce_context);
    crypto_generichash_init(&st, key, sizeof key, SEC_SUM_SEED_BYTES);
    neb_put_u32(bytes, h->fragment);
    neb_put_u32(bytes + 4, h->round);
    crypto_generichash_update(&st, bytes, 8);
    for (size_t at = 0; at < h->count; at += BLOCK) {
        size_t n = h->count - at < BLOCK ? h->count - at : BLOCK;
        for (size_t i = 0; i < n; i++) {
            bytes[2 * i] = (uint8_t)((uint16_t)q[at + i] & 255);
            bytes[2 * i + 1] = (uint8_t)((uint16_t)q[at + i] >> 8);
        }
        crypto_generichash_update(&st, bytes, 2 * n);
    }
    crypto_generichash_final(&st, out, SEC_SUM_SEED_BYTES);
    sodium_memzero(&st, sizeof st);
    sodium_memzero(key, sizeof key);
    sodium_memzero(bytes, sizeof bytes);
}

// ---- masks --------------------------------------------------------------------------------------

// acc ± PRG(seed)[at, at + count), modulo 2^16. The mask is the ChaCha20 key stream, two
// little-endian bytes per integer. A seed is used for one vector only, so the nonce is constant.
static void add_mask(uint16_t *acc, size_t at, size_t count, const uint8_t seed[SEC_SUM_SEED_BYTES],
                     bool minus) {
    static const uint8_t nonce[crypto_stream_chacha20_NONCEBYTES], zeros[2 * BLOCK];
    enum { PER = STREAM_BLOCK / 2 };
    uint8_t stream[2 * BLOCK];
    for (size_t done = 0; done < count;) {
        size_t from = (at + done) / PER * PER, skip = at + done - from;
        size_t n = count - done < BLOCK - skip ? count - done : BLOCK - skip;
        crypto_stream_chacha20_xor_ic(stream, zeros, 2 * (skip + n), nonce, from / PER, seed);
        for (size_t i = 0; i < n; i++) {
            const uint8_t *p = stream + 2 * (skip + i);
            uint16_t m = (uint16_t)(p[0] | p[1] << 8);
            acc[done + i] = (uint16_t)(minus ? acc[done + i] - m : acc[done + i] + m);
        }
        done += n;
    }
    sodium_memzero(stream, sizeof stream);
}

// Adds all masks of this member, or removes them.
static void own_masks(const struct sec_sum *s, const struct sec_sum_head *h, uint16_t *acc,
                      size_t at, size_t count, bool off) {
    uint8_t seed[SEC_SUM_SEED_BYTES];
    own_seed(s, h, seed);
    add_mask(acc, at, count, seed, off);
    for (uint8_t k = 0; k < s->n; k++)
        if (k != s->self) {
            pair_seed(s, k, h->fragment, h->round, seed);
            add_mask(acc, at, count, seed, (k < s->self) != off);
        }
    sodium_memzero(seed, sizeof seed);
}

int32_t sec_sum_limit(uint8_t n) { return INT16_MAX / n / 2; }

void sec_sum_quantise(const float *x, size_t count, float scale, uint8_t n, int16_t *out) {
    const double limit = (double)sec_sum_limit(n);
    for (size_t i = 0; i < count; i++) {
        double q = (double)x[i] / (double)scale;
        q = q != q ? 0 : q > limit ? limit : q < -limit ? -limit : q;
        out[i] = (int16_t)nearbyint(q);
    }
}

static void head_put(struct neb_buf *b, const struct sec_sum_head *h) {
    neb_buf_u32(b, MAGIC);
    neb_buf_u8(b, h->n);
    neb_buf_u8(b, h->member);
    neb_buf_u16(b, 0);
    neb_buf_u32(b, h->fragment);
    neb_buf_u32(b, h->round);
    neb_buf_u32(b, h->count);
    neb_buf_add(b, h->nonce, sizeof h->nonce);
    neb_buf_add(b, h->own, sizeof h->own);
    for (uint8_t k = 0; k < h->n; k++)
        neb_buf_add(b, h->pair[k], sizeof h->pair[k]);
}

size_t sec_sum_bytes(uint8_t n, size_t count) {
    return HEAD_FIXED + (size_t)n * SEC_SUM_SEED_BYTES + 2 * count;
}

enum neb_status sec_sum_open(const uint8_t *p, size_t len, struct sec_sum_head *h,
                             const uint8_t **body) {
    struct neb_rd r = neb_rd_make(p, len);
    *h = (struct sec_sum_head){0};
    uint32_t magic = neb_rd_u32(&r);
    h->n = neb_rd_u8(&r);
    h->member = neb_rd_u8(&r);
    uint16_t zero = neb_rd_u16(&r);
    h->fragment = neb_rd_u32(&r);
    h->round = neb_rd_u32(&r);
    h->count = neb_rd_u32(&r);
    neb_rd_copy(&r, h->nonce, sizeof h->nonce);
    neb_rd_copy(&r, h->own, sizeof h->own);
    if (r.bad || magic != MAGIC || zero || h->n < 3 || h->n > NEB_MEMBERS_MAX ||
        h->member >= h->n || !h->count || h->count > SEC_SUM_COUNT_MAX)
        return neb_fail(NEB_ERR_FORMAT, "masked update: its header is not valid");
    for (uint8_t k = 0; k < h->n; k++)
        neb_rd_copy(&r, h->pair[k], sizeof h->pair[k]);
    *body = neb_rd_view(&r, 2 * (size_t)h->count);
    if (!neb_rd_done(&r) || !sodium_is_zero(h->pair[h->member], sizeof h->pair[0]))
        return neb_fail(NEB_ERR_FORMAT, "masked update: %u integers do not fit %zu bytes", h->count,
                        len);
    return NEB_OK;
}

enum neb_status sec_sum_begin(const struct sec_sum *s, uint32_t fragment, uint32_t round,
                              const int16_t *q, size_t count, struct sec_sum_head *h) {
    uint8_t seed[SEC_SUM_SEED_BYTES];
    int32_t limit = sec_sum_limit(s->n);
    if (!count || count > SEC_SUM_COUNT_MAX)
        return neb_fail(NEB_ERR_INVALID, "secure sum: an update cannot have %zu integers", count);
    for (size_t i = 0; i < count; i++)
        if (q[i] > limit || q[i] < -limit)
            return neb_fail(NEB_ERR_INVALID, "secure sum: integer %zu is beyond the limit %d", i,
                            limit);
    *h = (struct sec_sum_head){.n = s->n,
                               .member = s->self,
                               .fragment = fragment,
                               .round = round,
                               .count = (uint32_t)count};
    make_nonce(s, h, q, h->nonce);
    own_seed(s, h, seed);
    announce(seed, h->own);
    for (uint8_t k = 0; k < s->n; k++)
        if (k != s->self) {
            pair_seed(s, k, fragment, round, seed);
            announce(seed, h->pair[k]);
        }
    sodium_memzero(seed, sizeof seed);
    return NEB_OK;
}

enum neb_status sec_sum_finish(const struct sec_sum *s, const struct sec_sum_head *h,
                               const int16_t *q, struct neb_buf *out) {
    neb_buf_clear(out);
    NEB_TRY(neb_buf_reserve(out, sec_sum_bytes(h->n, h->count)));
    head_put(out, h);
    uint8_t *p = neb_buf_grow(out, 2 * (size_t)h->count);
    NEB_TRY(neb_buf_check(out));
    uint16_t part[BLOCK];
    for (size_t at = 0; at < h->count; at += BLOCK) {
        size_t n = h->count - at < BLOCK ? h->count - at : BLOCK;
        for (size_t i = 0; i < n; i++)
            part[i] = (uint16_t)q[at + i];
        own_masks(s, h, part, at, n, false);
        for (size_t i = 0; i < n; i++) {
            p[2 * (at + i)] = (uint8_t)(part[i] & 255);
            p[2 * (at + i) + 1] = (uint8_t)(part[i] >> 8);
        }
    }
    return NEB_OK;
}

// The seed does not use the keys of the pairs, because all other members together know those.
void sec_sum_noise(const struct sec_sum *s, const struct sec_sum_head *h, uint32_t variance,
                   size_t at, size_t count, bool minus, int16_t *q) {
    uint8_t seed[SEC_SUM_SEED_BYTES];
    NEB_ASSERT(sec_sum_has_own_key(s) && h->member == s->self);
    derive(s, s->self, noise_context, sizeof noise_context, h->fragment, h->round, h->nonce,
           sizeof h->nonce, seed);
    sec_noise_add(seed, variance, at, count, minus, q);
    sodium_memzero(seed, sizeof seed);
}

enum neb_status sec_sum_agrees(const struct sec_sum *s, const struct sec_sum_head *h) {
    uint8_t seed[SEC_SUM_SEED_BYTES];
    if (h->n != s->n || h->member >= s->n)
        return neb_fail(NEB_ERR_DENIED, "masked update: it is for %u members, but the job has %u",
                        h->n, s->n);
    if (h->member == s->self)
        return NEB_OK;
    pair_seed(s, h->member, h->fragment, h->round, seed);
    bool same = announced(seed, h->pair[s->self]);
    sodium_memzero(seed, sizeof seed);
    return same ? NEB_OK
                : neb_fail(NEB_ERR_DENIED,
                           "masked update of member %u: its mask with this member is another one. "
                           "If keys were rotated while the job was submitted, submit it again",
                           h->member);
}

void sec_sum_take_off(const struct sec_sum *s, const struct sec_sum_head *h, const uint8_t *body,
                      size_t at, size_t count, int16_t *out) {
    uint16_t part[BLOCK];
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t n = count - done < BLOCK ? count - done : BLOCK;
        const uint8_t *p = body + 2 * (at + done);
        for (size_t i = 0; i < n; i++)
            part[i] = (uint16_t)(p[2 * i] | p[2 * i + 1] << 8);
        own_masks(s, h, part, at + done, n, true);
        for (size_t i = 0; i < n; i++)
            out[done + i] = (int16_t)part[i];
    }
}

// ---- reveals ------------------------------------------------------------------------------------

// *missing: the member of n that is not in the set. False: too many are missing, or the set has
// bits beyond n.
static bool missing_of(uint8_t n, struct member_set set, uint8_t *missing) {
    struct member_set lost = mset_minus(mset_first(n), set);
    *missing = mset_empty(lost) ? SEC_SUM_NOBODY : mset_lowest(lost);
    if (n < 3 || n > NEB_MEMBERS_MAX || !mset_within(set, mset_first(n)))
        return false;
    return n - mset_count(lost) >= sec_sum_least(n);
}

enum neb_status sec_sum_reveal(const struct sec_sum *s, struct member_set set,
                               const struct sec_sum_head *heads, struct sec_sum_reveal *out) {
    uint8_t missing;
    if (!missing_of(s->n, set, &missing))
        return neb_fail(NEB_ERR_DENIED,
                        "secure sum: reveals nothing for the set %#llx of %u members, which is too "
                        "small to hide one",
                        (unsigned long long)mset_bits(set), s->n);
    *out = (struct sec_sum_reveal){.set = set, .member = s->self, .n = s->n};
    bool in = mset_has(set, s->self);
    for (uint8_t k = 0; mset_next(set, &k); k++) // heads of this job's members only
        if (heads[k].n != s->n || heads[k].member != k)
            return neb_fail(NEB_ERR_DENIED,
                            "secure sum: the update of member %u is from another member or job", k);
    const struct sec_sum_head *any = &heads[mset_lowest(set)];
    if (in)
        own_seed(s, &heads[s->self], out->own);
    if (in && missing != SEC_SUM_NOBODY)
        pair_seed(s, missing, any->fragment, any->round, out->pair);
    for (uint8_t k = 0; mset_next(set, &k); k++)
        if (k != s->self)
            share_of(s, k, k, &heads[k], out->shares[k]);
    return NEB_OK;
}

void sec_sum_reveal_put(struct neb_buf *out, const struct sec_sum_reveal *r) {
    mset_write(out, r->set);
    neb_buf_u8(out, r->member);
    neb_buf_u8(out, r->n);
    neb_buf_add(out, r->own, sizeof r->own);
    neb_buf_add(out, r->pair, sizeof r->pair);
    for (uint8_t k = 0; k < r->n; k++)
        neb_buf_add(out, r->shares[k], sizeof r->shares[k]);
}

bool sec_sum_reveal_get(struct neb_rd *in, struct sec_sum_reveal *r) {
    uint8_t missing;
    *r = (struct sec_sum_reveal){0};
    r->set = mset_read(in);
    r->member = neb_rd_u8(in);
    r->n = neb_rd_u8(in);
    neb_rd_copy(in, r->own, sizeof r->own);
    neb_rd_copy(in, r->pair, sizeof r->pair);
    if (in->bad || !missing_of(r->n, r->set, &missing) || r->member >= r->n)
        return false;
    bool member_of = mset_has(r->set, r->member);
    bool good =
        // zeros: each meaning has one encoding
        (member_of || sodium_is_zero(r->own, sizeof r->own)) &&
        ((member_of && missing != SEC_SUM_NOBODY) || sodium_is_zero(r->pair, sizeof r->pair));
    for (uint8_t k = 0; k < r->n; k++) {
        neb_rd_copy(in, r->shares[k], sizeof r->shares[k]);
        good = good && ((k != r->member && mset_has(r->set, k)) ||
                        sodium_is_zero(r->shares[k], sizeof r->shares[k]));
    }
    return good && !in->bad;
}

bool sec_sum_reveal_fits(const struct sec_sum_reveal *r, const struct sec_sum_head *heads) {
    uint8_t missing;
    if (!missing_of(r->n, r->set, &missing))
        return false;
    if (!mset_has(r->set, r->member))
        return true; // the rest is shares, which are checked when they are combined
    const struct sec_sum_head *h = &heads[r->member];
    return announced(r->own, h->own) &&
           (missing == SEC_SUM_NOBODY || announced(r->pair, h->pair[missing]));
}

void sec_sum_seeds_put(struct neb_buf *out, const struct sec_sum_seeds *x) {
    neb_buf_u8(out, x->n);
    mset_write(out, x->set);
    for (uint8_t k = 0; k < x->n; k++)
        neb_buf_add(out, x->own[k], SEC_SUM_SEED_BYTES);
    for (uint8_t k = 0; k < x->n; k++)
        neb_buf_add(out, x->pair[k], SEC_SUM_SEED_BYTES);
}

bool sec_sum_seeds_get(const uint8_t *p, size_t len, struct sec_sum_seeds *out) {
    struct neb_rd r = neb_rd_make(p, len);
    uint8_t missing;
    *out = (struct sec_sum_seeds){0};
    out->n = neb_rd_u8(&r);
    out->set = mset_read(&r);
    if (r.bad || !missing_of(out->n, out->set, &missing))
        return false;
    for (uint8_t k = 0; k < out->n; k++)
        neb_rd_copy(&r, out->own[k], SEC_SUM_SEED_BYTES);
    for (uint8_t k = 0; k < out->n; k++)
        neb_rd_copy(&r, out->pair[k], SEC_SUM_SEED_BYTES);
    return neb_rd_done(&r);
}

enum neb_status sec_sum_gather(uint8_t n, struct member_set set, const struct sec_sum_head *heads,
                               const struct sec_sum_reveal *reveals, struct member_set have,
                               struct sec_sum_seeds *out) {
    uint8_t missing;
    if (!missing_of(n, set, &missing))
        return neb_fail(NEB_ERR_FORMAT, "secure sum: members %#llx of %u",
                        (unsigned long long)mset_bits(set), n);
    *out = (struct sec_sum_seeds){.n = n, .set = set};
    for (uint8_t k = 0; mset_next(set, &k); k++) {
        if (mset_has(have, k)) {
            memcpy(out->own[k], reveals[k].own, SEC_SUM_SEED_BYTES);
            memcpy(out->pair[k], reveals[k].pair, SEC_SUM_SEED_BYTES);
        } else if (missing == SEC_SUM_NOBODY && mset_within(mset_without(mset_first(n), k), have)) {
            for (uint8_t j = 0; j < n; j++)
                if (j != k)
                    add_seed(out->own[k], reveals[j].shares[k]);
            if (!announced(out->own[k], heads[k].own))
                return neb_fail(
                    NEB_ERR_DENIED,
                    "secure sum: the shares of member %u's seed do not make up the announced seed",
                    k);
        } else {
            return NEB_ERR_AGAIN;
        }
    }
    return NEB_OK;
}

enum neb_status sec_sum_unmask(const struct sec_sum_seeds *seeds, const uint8_t *const *bodies,
                               size_t at, size_t count, int16_t *sum) {
    uint8_t missing, n = seeds->n;
    bool possible = true;
    if (!missing_of(n, seeds->set, &missing))
        return neb_fail(NEB_ERR_FORMAT, "secure sum: members %#llx of %u",
                        (unsigned long long)mset_bits(seeds->set), n);
    int32_t most = sec_sum_limit(n) * mset_count(seeds->set);
    for (size_t done = 0; done < count; done += BLOCK) {
        uint16_t acc[BLOCK] = {0};
        size_t m = count - done < BLOCK ? count - done : BLOCK;
        for (uint8_t k = 0; mset_next(seeds->set, &k); k++) {
            const uint8_t *p = bodies[k] + 2 * (at + done);
            for (size_t i = 0; i < m; i++)
                acc[i] = (uint16_t)(acc[i] + (p[2 * i] | p[2 * i + 1] << 8));
            add_mask(acc, at + done, m, seeds->own[k], true);
            if (missing != SEC_SUM_NOBODY) // undoes what k added for the missing member
                add_mask(acc, at + done, m, seeds->pair[k], missing > k);
        }
        for (size_t i = 0; i < m; i++) {
            sum[done + i] = (int16_t)acc[i];
            possible = possible && sum[done + i] <= most && sum[done + i] >= -most;
        }
    }
    return possible ? NEB_OK
                    : neb_fail(NEB_ERR_DENIED,
                               "secure sum: the result is beyond what %d members can add up to: "
                               "one of them masked or revealed something false",
                               mset_count(seeds->set));
}
