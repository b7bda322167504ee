#include "security/secure_sum.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1024 }; // integers of a mask made at a time

struct sec_sum { // all of it in locked memory
    uint8_t n, self;
    uint8_t shared[SEC_MEMBERS_MAX][SEC_SUM_SEED_BYTES]; // with each other member, of this round
    uint32_t attempt;                                    // 0: none begun
    bool masked;
    uint16_t revealed; // the set that was answered in this attempt; 0: none
    uint8_t own[SEC_SUM_SEED_BYTES];
};

static const char shared_context[] = "nebula secure sum pair v1", seed_context[] = "nebula secure sum mask v1";

// ---- seeds and masks ------------------------------------------------------------------------------------------

// Of a pair, the same on both sides: X25519, bound to the round and to both.
static bool share(const struct sec_sum_config *c, uint8_t other, uint8_t out[SEC_SUM_SEED_BYTES]) {
    uint8_t secret[crypto_scalarmult_BYTES];
    uint8_t low = c->self < other ? c->self : other, high = c->self < other ? other : c->self;
    bool ok = crypto_scalarmult(secret, c->secret, c->publics[other]) == 0;
    crypto_generichash_state h;
    crypto_generichash_init(&h, secret, sizeof secret, SEC_SUM_SEED_BYTES);
    crypto_generichash_update(&h, (const uint8_t *)shared_context, sizeof shared_context);
    crypto_generichash_update(&h, c->round, sizeof c->round);
    crypto_generichash_update(&h, c->publics[low], SEC_KEY_BYTES);
    crypto_generichash_update(&h, c->publics[high], SEC_KEY_BYTES);
    crypto_generichash_final(&h, out, SEC_SUM_SEED_BYTES);
    sodium_memzero(&h, sizeof h);
    sodium_memzero(secret, sizeof secret);
    return ok;
}

static void pair_seed(const struct sec_sum *s, uint8_t other, uint8_t out[SEC_SUM_SEED_BYTES]) {
    uint8_t attempt[4];
    crypto_generichash_state h;
    neb_put_u32(attempt, s->attempt);
    crypto_generichash_init(&h, s->shared[other], SEC_SUM_SEED_BYTES, SEC_SUM_SEED_BYTES);
    crypto_generichash_update(&h, (const uint8_t *)seed_context, sizeof seed_context);
    crypto_generichash_update(&h, attempt, sizeof attempt);
    crypto_generichash_final(&h, out, SEC_SUM_SEED_BYTES);
    sodium_memzero(&h, sizeof h);
}

// acc ± PRG(seed), modulo 2^32. The mask is the ChaCha20 key stream, four little-endian bytes an integer; a seed is used for
// one vector only, so the nonce is constant.
static void add_mask(uint32_t *acc, size_t count, const uint8_t seed[SEC_SUM_SEED_BYTES], bool minus) {
    static const uint8_t nonce[crypto_stream_chacha20_NONCEBYTES], zeros[4 * BLOCK];
    uint8_t stream[4 * BLOCK];
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        crypto_stream_chacha20_xor_ic(stream, zeros, 4 * n, nonce, at / (BLOCK / 16), seed);
        struct neb_rd r = neb_rd_make(stream, 4 * n);
        for (size_t i = 0; i < n; i++) {
            uint32_t m = neb_rd_u32(&r);
            acc[at + i] += minus ? 0u - m : m;
        }
    }
    sodium_memzero(stream, sizeof stream);
}

// ---- a member -------------------------------------------------------------------------------------------------

enum neb_status sec_sum_create(const struct sec_sum_config *c, struct sec_sum **out) {
    NEB_TRY(sec_init());
    if (c->n < 3 || c->n > SEC_MEMBERS_MAX || c->self >= c->n)
        return neb_fail(NEB_ERR_INVALID, "secure sum: %u members; 3 to %d can hide a summand", c->n,
                        SEC_MEMBERS_MAX);
    struct sec_sum *s = sodium_malloc(sizeof *s);
    if (!s)
        return neb_fail(NEB_ERR_NOMEM, "secure sum: no locked memory (ulimit -l)");
    sodium_memzero(s, sizeof *s);
    s->n = c->n;
    s->self = c->self;
    for (uint8_t k = 0; k < c->n; k++)
        if (k != c->self && !share(c, k, s->shared[k])) {
            sec_sum_destroy(&s);
            return neb_fail(NEB_ERR_INVALID, "secure sum: the key of member %u is no key", k);
        }
    *out = s;
    return NEB_OK;
}

void sec_sum_destroy(struct sec_sum **s) {
    if (!s || !*s)
        return;
    sodium_free(*s); // wipes
    *s = NULL;
}

enum neb_status sec_sum_begin(struct sec_sum *s, uint32_t attempt) {
    if (attempt <= s->attempt)
        return neb_fail(NEB_ERR_STATE, "secure sum: attempt %u after %u", attempt, s->attempt);
    s->attempt = attempt;
    s->masked = false;
    s->revealed = 0;
    randombytes_buf(s->own, sizeof s->own);
    return NEB_OK;
}

int32_t sec_sum_limit(uint8_t n) { return INT32_MAX / n / 2; }

void sec_sum_quantise(const float *x, size_t count, float scale, uint8_t n, int32_t *out) {
    const double limit = (double)sec_sum_limit(n);
    for (size_t i = 0; i < count; i++) {
        double q = (double)x[i] / (double)scale;
        q = q != q ? 0 : q > limit ? limit : q < -limit ? -limit : q;
        out[i] = (int32_t)nearbyint(q);
    }
}

enum neb_status sec_sum_mask(struct sec_sum *s, const int32_t *q, size_t count, uint32_t *out) {
    uint8_t seed[SEC_SUM_SEED_BYTES];
    int32_t limit = sec_sum_limit(s->n);
    if (!s->attempt || s->masked)
        return neb_fail(NEB_ERR_STATE, "secure sum: a mask is used once; begin another attempt");
    for (size_t i = 0; i < count; i++)
        if (q[i] > limit || q[i] < -limit)
            return neb_fail(NEB_ERR_INVALID, "secure sum: integer %zu is beyond %d", i, limit);
    s->masked = true;
    for (size_t i = 0; i < count; i++)
        out[i] = (uint32_t)q[i];
    add_mask(out, count, s->own, false);
    for (uint8_t k = 0; k < s->n; k++) {
        if (k == s->self)
            continue;
        pair_seed(s, k, seed);
        add_mask(out, count, seed, k < s->self);
    }
    sodium_memzero(seed, sizeof seed);
    return NEB_OK;
}

// Who of n is not in the set; false: more are missing than may be, or there are bits beyond n.
static bool missing_of(uint8_t n, uint16_t set, uint8_t *missing) {
    int lost = 0;
    *missing = SEC_SUM_NOBODY;
    for (uint8_t k = 0; k < n; k++)
        if (!(set >> k & 1)) {
            *missing = k;
            lost++;
        }
    return !((uint32_t)set >> n) && lost <= (n < 4 ? 0 : 1);
}

enum neb_status sec_sum_reveal(struct sec_sum *s, uint16_t set, struct sec_sum_reveal *out) {
    uint8_t missing;
    if (!s->masked || !missing_of(s->n, set, &missing) || !(set >> s->self & 1) ||
        (s->revealed && s->revealed != set))
        return neb_fail(NEB_ERR_DENIED,
                        "secure sum: nothing is revealed for members %#x in attempt %u: too few, not "
                        "this one, or others were answered",
                        set, s->attempt);
    s->revealed = set;
    *out = (struct sec_sum_reveal){
        .attempt = s->attempt, .set = set, .member = s->self, .missing = missing};
    memcpy(out->own, s->own, sizeof out->own);
    if (missing != SEC_SUM_NOBODY)
        pair_seed(s, missing, out->pair);
    return NEB_OK;
}

// ---- anybody --------------------------------------------------------------------------------------------------

void sec_sum_reveal_put(struct neb_buf *out, const struct sec_sum_reveal *r) {
    neb_buf_u32(out, r->attempt);
    neb_buf_u16(out, r->set);
    neb_buf_u8(out, r->member);
    neb_buf_u8(out, r->missing);
    neb_buf_add(out, r->own, sizeof r->own);
    neb_buf_add(out, r->pair, sizeof r->pair);
}

bool sec_sum_reveal_get(const uint8_t *p, size_t len, struct sec_sum_reveal *out) {
    struct neb_rd r = neb_rd_make(p, len);
    out->attempt = neb_rd_u32(&r);
    out->set = neb_rd_u16(&r);
    out->member = neb_rd_u8(&r);
    out->missing = neb_rd_u8(&r);
    neb_rd_copy(&r, out->own, sizeof out->own);
    neb_rd_copy(&r, out->pair, sizeof out->pair);
    bool lost = out->missing < SEC_MEMBERS_MAX && !(out->set >> out->missing & 1);
    bool none = out->missing == SEC_SUM_NOBODY &&
                sodium_is_zero(out->pair, sizeof out->pair); // one form for one meaning
    return neb_rd_done(&r) && out->attempt && out->member < SEC_MEMBERS_MAX &&
           (out->set >> out->member & 1) && (lost || none);
}

enum neb_status sec_sum_unmask(uint8_t n, uint32_t attempt, uint16_t set,
                               const uint32_t *const *masked, const struct sec_sum_reveal *reveals,
                               size_t count, int32_t *sum) {
    uint8_t missing;
    if (n < 3 || n > SEC_MEMBERS_MAX || !missing_of(n, set, &missing))
        return neb_fail(NEB_ERR_FORMAT, "secure sum: members %#x of %u", set, n);
    for (uint8_t k = 0; k < n; k++)
        if (set >> k & 1 && (reveals[k].attempt != attempt || reveals[k].set != set ||
                             reveals[k].member != k || reveals[k].missing != missing))
            return neb_fail(NEB_ERR_FORMAT, "secure sum: member %u revealed for another sum", k);
    uint32_t *acc = calloc(count ? count : 1, sizeof *acc);
    if (!acc)
        return neb_fail(NEB_ERR_NOMEM, "secure sum of %zu integers", count);
    for (uint8_t k = 0; k < n; k++) {
        if (!(set >> k & 1))
            continue;
        for (size_t i = 0; i < count; i++)
            acc[i] += masked[k][i];
        add_mask(acc, count, reveals[k].own, true);
        if (missing != SEC_SUM_NOBODY) // what k had added for the missing one is taken away
            add_mask(acc, count, reveals[k].pair, missing > k);
    }
    int64_t most = (int64_t)sec_sum_limit(n) * __builtin_popcount(set);
    bool possible = true;
    for (size_t i = 0; i < count; i++) {
        int64_t v = acc[i] > INT32_MAX ? (int64_t)acc[i] - ((int64_t)1 << 32) : (int64_t)acc[i];
        possible = possible && v <= most && v >= -most;
        sum[i] = (int32_t)v;
    }
    free(acc);
    return possible ? NEB_OK
                    : neb_fail(NEB_ERR_DENIED, "secure sum: the result is beyond what %u members can "
                                               "add up to: one of them revealed something false",
                               (unsigned)__builtin_popcount(set));
}
