// SPDX-License-Identifier: Apache-2.0
#include "agent/base/sha256.h"
#include "inter/record/tune.h"

#include <string.h>

enum { PROMISES_FOLLOW = 0x80 }; // flag in the byte that counts accepts

bool inter_key_equal(const struct inter_key *a, const struct inter_key *b) {
    return a->round == b->round && a->fragment == b->fragment && a->member == b->member &&
           a->attempt == b->attempt && !memcmp(a->job, b->job, sizeof a->job);
}

// Seconds since 2025; 1 if the clock shows an earlier time.
static uint64_t seconds_since(uint64_t day) {
    const uint64_t since = 1735689600, seconds = day / 1000000000u;
    return seconds > since ? seconds - since : 1;
}

uint32_t inter_attempt_first(uint64_t epoch) {
    const uint64_t most = (1u << 30) - 1, n = seconds_since(epoch);
    return (uint32_t)(n < most ? n : most) * (INTER_RETRIES_MAX + 1);
}

uint32_t inter_term_last(uint64_t day) {
    uint64_t last = seconds_since(day) * INTER_TERMS_A_SECOND + INTER_TERMS_AHEAD;
    return (uint32_t)(last < INTER_TERM_MAX ? last : INTER_TERM_MAX);
}

void inter_key_put(struct neb_buf *b, const struct inter_key *k) {
    neb_buf_add(b, k->job, sizeof k->job);
    neb_buf_u32(b, k->round);
    neb_buf_u32(b, k->fragment);
    neb_buf_u8(b, k->member);
    neb_buf_u32(b, k->attempt);
}

void inter_key_get(struct neb_rd *r, struct inter_key *k) {
    neb_rd_copy(r, k->job, sizeof k->job);
    k->round = neb_rd_u32(r);
    k->fragment = neb_rd_u32(r);
    k->member = neb_rd_u8(r);
    k->attempt = neb_rd_u32(r);
}

static bool key_valid(const struct inter_key *k) {
    return k->fragment < INTER_FRAGMENTS_MAX && k->member < NEB_MEMBERS_MAX;
}

void inter_manifest_put_body(struct neb_buf *b, const struct inter_manifest *m) {
    inter_key_put(b, &m->key);
    neb_buf_add(b, m->sha256, sizeof m->sha256);
    neb_buf_u32(b, m->bytes);
    neb_buf_u32(b, m->chunk_bytes);
    neb_buf_u64(b, m->tokens);
    neb_buf_u64(b, m->step);
    neb_buf_u32(b, m->steps);
    neb_buf_u32(b, m->missed);
    neb_buf_u8(b, m->flags);
    neb_buf_u64(b, m->digest[0]);
    neb_buf_u64(b, m->digest[1]);
    neb_buf_u32(b, m->measure.goodput_kbps);
    neb_buf_u32(b, m->measure.rtt_us);
    neb_buf_u32(b, m->measure.step_us);
    neb_buf_f32(b, m->measure.error);
    neb_buf_u8(b, cmp_level_number(m->measure.codec));
    neb_buf_u8(b, m->measure.full);
}

void inter_manifest_put(struct neb_buf *b, const struct inter_manifest *m) {
    inter_manifest_put_body(b, m);
    neb_buf_add(b, m->sig, sizeof m->sig);
}

bool inter_level_get(struct neb_rd *r, uint8_t *level) {
    int known = cmp_level_numbered(neb_rd_u8(r));
    *level = known > 0 ? (uint8_t)known : CMP_LEVEL_JOB;
    return known >= 0;
}

bool inter_manifest_get(struct neb_rd *r, struct inter_manifest *m) {
    *m = (struct inter_manifest){0};
    inter_key_get(r, &m->key);
    neb_rd_copy(r, m->sha256, sizeof m->sha256);
    m->bytes = neb_rd_u32(r);
    m->chunk_bytes = neb_rd_u32(r);
    m->tokens = neb_rd_u64(r);
    m->step = neb_rd_u64(r);
    m->steps = neb_rd_u32(r);
    m->missed = neb_rd_u32(r);
    m->flags = neb_rd_u8(r);
    m->digest[0] = neb_rd_u64(r);
    m->digest[1] = neb_rd_u64(r);
    m->measure.goodput_kbps = neb_rd_u32(r);
    m->measure.rtt_us = neb_rd_u32(r);
    m->measure.step_us = neb_rd_u32(r);
    m->measure.error = neb_rd_f32(r);
    bool known = inter_level_get(r, &m->measure.codec);
    uint8_t full = neb_rd_u8(r);
    m->measure.full = full == 1;
    neb_rd_copy(r, m->sig, sizeof m->sig);
    return !r->bad && known && full <= 1 && m->measure.error >= 0 && m->measure.error <= 1e6f &&
           key_valid(&m->key) && m->bytes > 0 && m->bytes <= INTER_BLOB_MAX &&
           m->chunk_bytes >= INTER_CHUNK_MIN && m->chunk_bytes <= INTER_CHUNK_MAX &&
           inter_chunks(m->bytes, m->chunk_bytes) <= INTER_CHUNKS_MAX &&
           m->tokens < INTER_TOKENS_MAX && m->flags <= INTER_FINAL;
}

void inter_record_put_value(struct neb_buf *b, const struct inter_record *r) {
    neb_buf_u8(b, INTER_RECORD_VERSION);
    neb_buf_add(b, r->job, sizeof r->job);
    neb_buf_u32(b, r->round);
    neb_buf_u32(b, r->fragment);
    neb_buf_u8(b, r->flags);
    neb_buf_f32(b, r->eta);
    neb_buf_f32(b, r->mu);
    neb_buf_add(b, r->previous, sizeof r->previous);
    neb_buf_u8(b, r->n);
    for (uint8_t i = 0; i < r->n; i++) {
        const struct inter_entry *e = &r->entries[i];
        neb_buf_u8(b, e->member);
        neb_buf_u8(b, e->flags);
        neb_buf_u8(b, e->verdict);
        neb_buf_u32(b, e->attempt);
        neb_buf_u32(b, e->bytes);
        neb_buf_add(b, e->sha256, sizeof e->sha256);
        neb_buf_u64(b, e->tokens);
        neb_buf_u64(b, e->weight);
        neb_buf_u64(b, e->digest[0]);
        neb_buf_u64(b, e->digest[1]);
        neb_buf_f32(b, e->clip);
    }
    neb_buf_u8(b, r->n_plans);
    for (uint8_t i = 0; i < r->n_plans; i++) {
        neb_buf_u32(b, r->plans[i].interval);
        neb_buf_u32(b, r->plans[i].overlap);
        neb_buf_u8(b, cmp_level_number(r->plans[i].codec));
        neb_buf_u8(b, r->plans[i].reason);
        neb_buf_u8(b, r->plans[i].left_out);
        neb_buf_u64(b, r->cursors[i]);
        neb_buf_u32(b, r->absences[i].base);
        neb_buf_u64(b, r->absences[i].others);
    }
}

void inter_record_put_body(struct neb_buf *b, const struct inter_record *r) {
    neb_buf_u32(b, r->term);
    neb_buf_u8(b, r->leader);
    inter_record_put_value(b, r);
}

static void put_promise(struct neb_buf *b, const struct inter_promise *p) {
    neb_buf_u32(b, p->term);
    neb_buf_u64(b, p->epoch);
    neb_buf_u32(b, p->round);
    neb_buf_u8(b, p->voted);
    neb_buf_u32(b, p->vote_term);
    neb_buf_add(b, p->vote_hash, sizeof p->vote_hash);
}

void inter_promise_put_body(struct neb_buf *b, const uint8_t job[INTER_ID_BYTES], uint32_t fragment,
                            const struct inter_promise *p) {
    neb_buf_add(b, job, INTER_ID_BYTES);
    neb_buf_u32(b, fragment);
    put_promise(b, p);
}

void inter_record_put(struct neb_buf *b, const struct inter_record *r) {
    inter_record_put_body(b, r);
    neb_buf_add(b, r->sig, sizeof r->sig);
    neb_buf_u8(b, (uint8_t)(r->n_accepts | (r->n_promises ? PROMISES_FOLLOW : 0)));
    for (uint8_t i = 0; i < r->n_accepts; i++) {
        neb_buf_u8(b, r->accepts[i].member);
        neb_buf_u64(b, r->accepts[i].epoch);
        neb_buf_add(b, r->accepts[i].sig, sizeof r->accepts[i].sig);
    }
    if (!r->n_promises)
        return;
    neb_buf_u8(b, r->n_promises);
    for (uint8_t i = 0; i < r->n_promises; i++) {
        neb_buf_u8(b, r->promises[i].member);
        put_promise(b, &r->promises[i]);
        neb_buf_add(b, r->promises[i].sig, sizeof r->promises[i].sig);
    }
}

static bool get_entries(struct neb_rd *r, struct inter_record *c) {
    c->n = neb_rd_u8(r);
    if (r->bad || c->n < 1 || c->n > NEB_MEMBERS_MAX)
        return false;
    for (uint8_t i = 0; i < c->n; i++) {
        struct inter_entry *e = &c->entries[i];
        e->member = neb_rd_u8(r);
        e->flags = neb_rd_u8(r);
        e->verdict = neb_rd_u8(r);
        e->attempt = neb_rd_u32(r);
        e->bytes = neb_rd_u32(r);
        neb_rd_copy(r, e->sha256, sizeof e->sha256);
        e->tokens = neb_rd_u64(r);
        e->weight = neb_rd_u64(r);
        e->digest[0] = neb_rd_u64(r);
        e->digest[1] = neb_rd_u64(r);
        e->clip = neb_rd_f32(r);
        if (e->member >= NEB_MEMBERS_MAX || (i && e->member <= c->entries[i - 1].member) ||
            e->verdict > INTER_REJECTED || e->flags > INTER_FINAL || !(e->clip > 0) ||
            !(e->clip <= 1) || e->weight > INTER_TOKENS_MAX)
            return false;
    }
    return true;
}

static bool get_promises(struct neb_rd *r, struct inter_record *c) {
    c->n_promises = neb_rd_u8(r);
    if (!c->n_promises || c->n_promises > INTER_PROMISES_MAX)
        return false;
    for (uint8_t i = 0; i < c->n_promises; i++) {
        struct inter_promise *p = &c->promises[i];
        p->member = neb_rd_u8(r);
        p->term = neb_rd_u32(r);
        p->epoch = neb_rd_u64(r);
        p->round = neb_rd_u32(r);
        uint8_t voted = neb_rd_u8(r);
        p->voted = voted == 1;
        p->vote_term = neb_rd_u32(r);
        neb_rd_copy(r, p->vote_hash, sizeof p->vote_hash);
        neb_rd_copy(r, p->sig, sizeof p->sig);
        const struct inter_promise *before = i ? p - 1 : NULL;
        if (p->member >= NEB_MEMBERS_MAX || voted > 1 || p->term > INTER_TERM_MAX ||
            p->vote_term > INTER_TERM_MAX ||
            (before &&
             (p->term > before->term || (p->term == before->term && p->member <= before->member))))
            return false;
    }
    return true;
}

static bool get_accepts(struct neb_rd *r, struct inter_record *c) {
    uint8_t n = neb_rd_u8(r);
    c->n_accepts = n & (PROMISES_FOLLOW - 1);
    if (c->n_accepts > NEB_MEMBERS_MAX)
        return false;
    for (uint8_t i = 0; i < c->n_accepts; i++) {
        struct inter_accept *a = &c->accepts[i];
        a->member = neb_rd_u8(r);
        a->epoch = neb_rd_u64(r);
        neb_rd_copy(r, a->sig, sizeof a->sig);
        if (a->member >= NEB_MEMBERS_MAX || (i && a->member <= c->accepts[i - 1].member))
            return false;
    }
    return !(n & PROMISES_FOLLOW) || get_promises(r, c);
}

bool inter_record_get(struct neb_rd *r, struct inter_record *c) {
    *c = (struct inter_record){0};
    c->term = neb_rd_u32(r);
    c->leader = neb_rd_u8(r);
    if (neb_rd_u8(r) != INTER_RECORD_VERSION)
        return false;
    neb_rd_copy(r, c->job, sizeof c->job);
    c->round = neb_rd_u32(r);
    c->fragment = neb_rd_u32(r);
    c->flags = neb_rd_u8(r);
    c->eta = neb_rd_f32(r);
    c->mu = neb_rd_f32(r);
    neb_rd_copy(r, c->previous, sizeof c->previous);
    if (!get_entries(r, c))
        return false;
    c->n_plans = neb_rd_u8(r);
    if (c->n_plans > NEB_MEMBERS_MAX)
        return false;
    for (uint8_t i = 0; i < c->n_plans; i++) {
        c->plans[i].interval = neb_rd_u32(r);
        c->plans[i].overlap = neb_rd_u32(r);
        bool known = inter_level_get(r, &c->plans[i].codec);
        c->plans[i].reason = neb_rd_u8(r);
        c->plans[i].left_out = neb_rd_u8(r);
        if (!known || c->plans[i].reason >= INTER_REASONS ||
            c->plans[i].left_out > INTER_LEFT_OUT_MAX)
            return false;
        c->cursors[i] = neb_rd_u64(r);
        c->absences[i].base = neb_rd_u32(r);
        c->absences[i].others = neb_rd_u64(r);
        if (c->absences[i].others > INTER_OTHERS_MAX)
            return false;
    }
    neb_rd_copy(r, c->sig, sizeof c->sig);
    return get_accepts(r, c) && !r->bad && c->term <= INTER_TERM_MAX &&
           c->fragment < INTER_FRAGMENTS_MAX && c->leader < NEB_MEMBERS_MAX &&
           c->flags <= INTER_MERGE && c->eta >= 0 && c->eta <= 10 && c->mu >= 0 && c->mu < 1;
}

void inter_record_hash(const struct inter_record *r, uint8_t out[INTER_SHA_BYTES]) {
    struct neb_buf b = {0};
    inter_record_put_value(&b, r);
    NEB_ASSERT(!b.oom);
    neb_sha256(b.p, b.len, out);
    neb_buf_free(&b);
}

void inter_accept_put_body(struct neb_buf *b, const struct inter_record *r,
                           const uint8_t hash[INTER_SHA_BYTES], uint64_t epoch) {
    neb_buf_add(b, r->job, sizeof r->job);
    neb_buf_u32(b, r->round);
    neb_buf_u32(b, r->fragment);
    neb_buf_u32(b, r->term);
    neb_buf_add(b, hash, INTER_SHA_BYTES);
    neb_buf_u64(b, epoch);
}

struct inter_key inter_entry_key(const struct inter_record *r, uint8_t i) {
    struct inter_key k = {.round = r->round,
                          .fragment = r->fragment,
                          .member = r->entries[i].member,
                          .attempt = r->entries[i].attempt};
    memcpy(k.job, r->job, sizeof k.job);
    return k;
}

void inter_standing_put(struct neb_buf *b, const struct inter_standing *s) {
    neb_buf_u8(b, 1); // version
    neb_buf_add(b, s->job, sizeof s->job);
    neb_buf_u32(b, s->term);
    neb_buf_u8(b, s->joined);
    neb_buf_u64(b, s->epoch);
    mset_write(b, s->renewed);
    for (int i = 0; i < NEB_MEMBERS_MAX; i++)
        neb_buf_u64(b, s->epochs[i]);
}

bool inter_standing_get(struct neb_rd *r, struct inter_standing *s) {
    *s = (struct inter_standing){0};
    bool known = neb_rd_u8(r) == 1;
    neb_rd_copy(r, s->job, sizeof s->job);
    s->term = neb_rd_u32(r);
    s->joined = neb_rd_u8(r) == 1;
    s->epoch = neb_rd_u64(r);
    s->renewed = mset_read(r);
    for (int i = 0; i < NEB_MEMBERS_MAX; i++)
        s->epochs[i] = neb_rd_u64(r);
    return known && s->term <= INTER_TERM_MAX && neb_rd_done(r);
}
