// SPDX-License-Identifier: Apache-2.0
#include "security/seal_chunks.h"

#include "agent/base/bytes.h"
#include "agent/base/log.h"
#include "agent/base/vault.h"
#include "security/locked.h"
#include "security/seal_stream.h"

#include <sodium.h>
#include <string.h>

static const char magic[] = NEB_SEALED_MAGIC "c";
enum {
    ID_AT = 8,
    CONTEXT_AT = ID_AT + SEC_SEAL_ID_BYTES,
    FILE_AT = CONTEXT_AT + SEC_SEAL_CONTEXT_BYTES,
    SHAPE_AT = FILE_AT + 16,
    NONCE = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES,
};
_Static_assert(NONCE + crypto_aead_xchacha20poly1305_ietf_ABYTES == SEC_CHUNKS_EXTRA,
               "extra bytes of a chunk");

struct sec_chunks { // in locked memory
    uint8_t key[SEC_SEAL_KEY_BYTES];
    uint8_t bound[SEC_CHUNKS_FRONT + 8]; // front, and the number of the chunk
    uint32_t chunk;
    uint64_t total;
};

// NULL: out of memory, or libsodium cannot start. The error is logged.
static struct sec_chunks *new_chunks(void) {
    struct sec_chunks *c = sec_seal_init() == NEB_OK ? sec_locked_alloc(sizeof *c) : NULL;
    if (c)
        sodium_memzero(c, sizeof *c);
    else
        neb_log(NEB_LOG_ERROR, "out of memory for sealing");
    return c;
}

enum neb_status sec_chunks_create(const struct sec_seal_key *k,
                                  const uint8_t context[SEC_SEAL_CONTEXT_BYTES], uint32_t chunk,
                                  uint64_t total, struct sec_chunks **out) {
    NEB_ASSERT(chunk && chunk <= SEC_CHUNKS_MAX);
    struct sec_chunks *c = *out = new_chunks();
    if (!c)
        return NEB_ERR_NOMEM;
    memcpy(c->bound, magic, 8);
    memcpy(c->bound + ID_AT, sec_seal_key_id(k), SEC_SEAL_ID_BYTES);
    memcpy(c->bound + CONTEXT_AT, context, SEC_SEAL_CONTEXT_BYTES);
    randombytes_buf(c->bound + FILE_AT, 16);
    neb_put_u32(c->bound + SHAPE_AT, chunk);
    neb_put_u64(c->bound + SHAPE_AT + 8, total);
    c->chunk = chunk;
    c->total = total;
    enum neb_status st = sec_seal_key_of(k, context, c->key);
    if (st != NEB_OK)
        sec_chunks_destroy(&c);
    *out = c;
    return st;
}

enum neb_status sec_chunks_open(const struct sec_seal_key *k, const char *name,
                                const uint8_t front[SEC_CHUNKS_FRONT], struct sec_chunks **out) {
    *out = NULL;
    if (memcmp(front, magic, 8) != 0)
        return neb_fail(NEB_ERR_FORMAT, "%s is not a file of sealed chunks", name);
    struct sec_chunks *c = new_chunks();
    if (!c)
        return NEB_ERR_NOMEM;
    memcpy(c->bound, front, SEC_CHUNKS_FRONT);
    struct neb_rd r = neb_rd_make(front + SHAPE_AT, 16);
    c->chunk = neb_rd_u32(&r);
    uint32_t zero = neb_rd_u32(&r);
    c->total = neb_rd_u64(&r);
    enum neb_status st = sec_seal_front_check(k, name, front + ID_AT, front + CONTEXT_AT, c->key);
    if (st == NEB_OK &&
        (zero || !c->chunk || c->chunk > SEC_CHUNKS_MAX || c->total > UINT64_MAX / 2))
        st = neb_fail(NEB_ERR_FORMAT, "%s is damaged: its chunk size or total size is out of range",
                      name);
    if (st != NEB_OK)
        sec_chunks_destroy(&c);
    *out = c;
    return st;
}

void sec_chunks_destroy(struct sec_chunks **c) {
    if (!c || !*c)
        return;
    sodium_free(*c); // wipes
    *c = NULL;
}

const uint8_t *sec_chunks_front(const struct sec_chunks *c) { return c->bound; }
uint32_t sec_chunks_bytes(const struct sec_chunks *c) { return c->chunk; }
uint64_t sec_chunks_total(const struct sec_chunks *c) { return c->total; }

size_t sec_chunks_len(const struct sec_chunks *c, uint64_t i) {
    uint64_t at = i * c->chunk;
    NEB_ASSERT(at < c->total);
    return c->total - at < c->chunk ? (size_t)(c->total - at) : c->chunk;
}

uint64_t sec_chunks_at(const struct sec_chunks *c, uint64_t i) {
    uint64_t clear = i * c->chunk < c->total ? i * c->chunk : c->total;
    return SEC_CHUNKS_FRONT + clear + i * SEC_CHUNKS_EXTRA;
}

void sec_chunks_seal(const struct sec_chunks *c, uint64_t i, const void *plain, uint8_t *out) {
    uint8_t bound[sizeof c->bound];
    memcpy(bound, c->bound, sizeof bound);
    neb_put_u64(bound + SEC_CHUNKS_FRONT, i);
    randombytes_buf(out, NONCE);
    crypto_aead_xchacha20poly1305_ietf_encrypt(out + NONCE, NULL, plain, sec_chunks_len(c, i),
                                               bound, sizeof bound, NULL, out, c->key);
}

enum neb_status sec_chunks_unseal(const struct sec_chunks *c, uint64_t i, const uint8_t *sealed,
                                  void *plain) {
    uint8_t bound[sizeof c->bound];
    size_t n = sec_chunks_len(c, i);
    memcpy(bound, c->bound, sizeof bound);
    neb_put_u64(bound + SEC_CHUNKS_FRONT, i);
    if (crypto_aead_xchacha20poly1305_ietf_decrypt(plain, NULL, NULL, sealed + NONCE,
                                                   n + SEC_CHUNKS_EXTRA - NONCE, bound,
                                                   sizeof bound, sealed, c->key) != 0)
        return NEB_ERR_DENIED;
    return NEB_OK;
}
