// SPDX-License-Identifier: Apache-2.0
// A sealed file that is written in any order: blobs and snapshots while they arrive. Every chunk is sealed on its own
// (XChaCha20-Poly1305, random nonce) and bound to its file, its place and the file's shape, so chunks can neither change places nor
// come from another file. That the chunks of one file are all there is for the digest of the whole to say, as in clear.
//
//     "nebsealc" | id of the site's key 8 | context 16 | file id 16 | chunk bytes u32, 0 u32 | total u64 | chunks: nonce 24, sealed, tag 16
//
// Pure: whoever has the file reads and writes it.
#ifndef SEC_SEAL_CHUNKS_H
#define SEC_SEAL_CHUNKS_H
#include "security/seal_key.h"

enum {
    SEC_CHUNKS_FRONT = 8 + SEC_SEAL_ID_BYTES + SEC_SEAL_CONTEXT_BYTES + 16 + 16,
    SEC_CHUNKS_EXTRA = 24 + 16, // a sealed chunk is this much longer
    SEC_CHUNKS_MAX = 16 << 20,  // largest chunk
};

struct sec_chunks;
// For a new file; its front is what sec_chunks_front gives.
NEB_MUST_CHECK enum neb_status sec_chunks_create(const struct sec_seal_key *k,
                                                 const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                                 uint32_t chunk, uint64_t total,
                                                 struct sec_chunks **out);
// For one that is there, by its front. NEB_ERR_FORMAT: none; NEB_ERR_DENIED: another key's or another job's.
NEB_MUST_CHECK enum neb_status sec_chunks_open(const struct sec_seal_key *k, const char *name,
                                               const uint8_t front[SEC_CHUNKS_FRONT],
                                               struct sec_chunks **out);
void sec_chunks_destroy(struct sec_chunks **c);
const uint8_t *sec_chunks_front(const struct sec_chunks *c); // (SEC_CHUNKS_FRONT)
uint32_t sec_chunks_bytes(const struct sec_chunks *c);       // of a chunk in clear, but the last
uint64_t sec_chunks_total(const struct sec_chunks *c);       // in clear
// where chunk i begins; of the one after the last: the file's length
uint64_t sec_chunks_at(const struct sec_chunks *c, uint64_t i);
size_t sec_chunks_len(const struct sec_chunks *c, uint64_t i); // of chunk i in clear
// out: sec_chunks_len + SEC_CHUNKS_EXTRA bytes.
void sec_chunks_seal(const struct sec_chunks *c, uint64_t i, const void *plain, uint8_t *out);
// plain: sec_chunks_len bytes. NEB_ERR_DENIED (not logged): not what was sealed there.
NEB_MUST_CHECK enum neb_status sec_chunks_unseal(const struct sec_chunks *c, uint64_t i,
                                                 const uint8_t *sealed, void *plain);

#endif
