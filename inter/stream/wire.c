// SPDX-License-Identifier: Apache-2.0
#include "inter/stream/wire.h"
#include "agent/base/sha256.h"

#include <string.h>

static void put_head(struct neb_buf *b, const struct inter_stream_key *k,
                     enum inter_stream_kind kind) {
    neb_buf_u8(b, INTER_MSG_STREAM);
    neb_buf_u8(b, (uint8_t)kind);
    neb_buf_u16(b, k->id);
    neb_buf_add(b, k->job, sizeof k->job);
}

void inter_stream_put_hello(struct neb_buf *b, const struct inter_stream_key *k,
                            const struct inter_stream_hello *h) {
    put_head(b, k, INTER_STREAM_HELLO);
    neb_buf_u8(b, INTER_STREAM_VERSION);
    neb_buf_u8(b, h->role);
    neb_buf_u8(b, h->type);
    neb_buf_u8(b, h->ask);
    neb_buf_u32(b, h->batch_bytes);
    neb_buf_u64(b, h->base);
    neb_buf_u8(b, (uint8_t)h->n_terms);
    for (uint32_t i = 0; i < h->n_terms; i++) {
        neb_buf_str(b, h->terms[i].name);
        neb_buf_add(b, h->terms[i].sha256, INTER_SHA_BYTES);
    }
}

void inter_stream_put_grant(struct neb_buf *b, const struct inter_stream_key *k,
                            const struct inter_stream_grant *g) {
    put_head(b, k, INTER_STREAM_GRANT);
    neb_buf_u64(b, g->session);
    neb_buf_u64(b, g->have);
    neb_buf_u64(b, g->applied);
    neb_buf_u64(b, g->durable);
    neb_buf_u32(b, g->window_batches);
    neb_buf_u32(b, g->window_bytes);
}

void inter_stream_put_data(struct neb_buf *b, const struct inter_stream_key *k, uint64_t seq,
                           neb_ns put_at, const uint8_t sig[INTER_SIG_BYTES]) {
    put_head(b, k, INTER_STREAM_DATA);
    neb_buf_u64(b, seq);
    neb_buf_i64(b, put_at);
    neb_buf_add(b, sig, INTER_SIG_BYTES);
}

void inter_stream_put_signed(struct neb_buf *b, const struct inter_stream_key *k,
                             enum inter_stream_type type, uint64_t seq, const void *p, size_t n) {
    uint8_t sha[INTER_SHA_BYTES];
    neb_sha256(p, n, sha);
    neb_buf_add(b, k->job, sizeof k->job);
    neb_buf_u16(b, k->id);
    neb_buf_u8(b, (uint8_t)type);
    neb_buf_u64(b, seq);
    neb_buf_add(b, sha, sizeof sha);
}

static bool get_head(struct neb_rd *r, uint8_t *kind, struct inter_stream_key *k) {
    uint8_t type = neb_rd_u8(r);
    *kind = neb_rd_u8(r);
    k->id = neb_rd_u16(r);
    neb_rd_copy(r, k->job, sizeof k->job);
    return !r->bad && type == INTER_MSG_STREAM && *kind >= INTER_STREAM_HELLO &&
           *kind <= INTER_STREAM_DATA;
}

bool inter_stream_parse_key(const uint8_t *p, size_t n, struct inter_stream_key *out) {
    struct neb_rd r = neb_rd_make(p, n);
    uint8_t kind;
    return get_head(&r, &kind, out);
}

bool inter_stream_other_version(const uint8_t *p, size_t n) {
    struct neb_rd r = neb_rd_make(p, n);
    struct inter_stream_key k;
    uint8_t kind;
    return get_head(&r, &kind, &k) && kind == INTER_STREAM_HELLO &&
           neb_rd_u8(&r) != INTER_STREAM_VERSION && !r.bad;
}

static bool get_hello(struct neb_rd *r, struct inter_stream_hello *h) {
    uint8_t version = neb_rd_u8(r);
    h->role = neb_rd_u8(r);
    h->type = neb_rd_u8(r);
    uint8_t ask = neb_rd_u8(r);
    h->ask = ask == 1;
    h->batch_bytes = neb_rd_u32(r);
    h->base = neb_rd_u64(r);
    h->n_terms = neb_rd_u8(r);
    if (r->bad || version != INTER_STREAM_VERSION || ask > 1 || h->role > INTER_STREAM_CONSUMER ||
        h->type == 0 || h->type >= INTER_STREAM_TYPES || h->n_terms > INTER_STREAM_TERMS_MAX ||
        h->base > INT64_MAX)
        return false;
    for (uint32_t i = 0; i < h->n_terms; i++) {
        neb_rd_str(r, h->terms[i].name, sizeof h->terms[i].name);
        neb_rd_copy(r, h->terms[i].sha256, INTER_SHA_BYTES);
    }
    return neb_rd_done(r);
}

static bool get_grant(struct neb_rd *r, struct inter_stream_grant *g) {
    g->session = neb_rd_u64(r);
    g->have = neb_rd_u64(r);
    g->applied = neb_rd_u64(r);
    g->durable = neb_rd_u64(r);
    g->window_batches = neb_rd_u32(r);
    g->window_bytes = neb_rd_u32(r);
    return neb_rd_done(r) && g->session && g->durable <= g->applied && g->applied <= g->have &&
           g->have - g->applied <= INTER_STREAM_WINDOW_MAX && g->have <= INT64_MAX;
}

bool inter_stream_parse(const uint8_t *p, size_t n, struct inter_stream_message *out) {
    struct neb_rd r = neb_rd_make(p, n);
    uint8_t kind;
    *out = (struct inter_stream_message){0};
    if (!get_head(&r, &kind, &out->key))
        return false;
    out->kind = (enum inter_stream_kind)kind;
    if (out->kind == INTER_STREAM_HELLO)
        return get_hello(&r, &out->hello);
    if (out->kind == INTER_STREAM_GRANT)
        return get_grant(&r, &out->grant);
    out->seq = neb_rd_u64(&r);
    out->put_at = neb_rd_i64(&r);
    neb_rd_copy(&r, out->sig, sizeof out->sig);
    out->len = neb_rd_left(&r);
    out->body = neb_rd_view(&r, out->len);
    return neb_rd_done(&r) && out->seq < INT64_MAX && out->len > 0 &&
           out->len <= INTER_STREAM_BATCH_MAX;
}
