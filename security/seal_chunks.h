// SPDX-License-Identifier: Apache-2.0
// A sealed file that is written in any order: blobs and snapshots while they arrive. Each chunk is
// sealed separately (XChaCha20-Poly1305, random nonce) and bound to its file, its place and the
// file's shape. So chunks cannot change places or come from another file. Only the digest of the
// whole file shows whether all chunks are there.
//
//     "nebsealc" | id of the site's key 8 | context 16 | file id 16 | chunk bytes u32, 0 u32
//     | total u64 | chunks: nonce 24, sealed, tag 16
//
// Pure: the caller reads and writes the file.
#ifndef SEC_SEAL_CHUNKS_H
#define SEC_SEAL_CHUNKS_H
#include "security/seal_key.h"

enum {
    SEC_CHUNKS_FRONT = 8 + SEC_SEAL_ID_BYTES + SEC_SEAL_CONTEXT_BYTES + 16 + 16,
    SEC_CHUNKS_EXTRA = 24 + 16, // a sealed chunk is longer by this
    SEC_CHUNKS_MAX = 16 << 20,  // largest chunk
};

struct sec_chunks;
// For a new file, which begins with sec_chunks_front. context: 16 bytes (seal_key.h). chunk, total:
// in clear. NEB_ERR_DENIED (not logged): k is the key of another job.
NEB_MUST_CHECK enum neb_status sec_chunks_create(const struct sec_seal_key *k,
                                                 const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                                 uint32_t chunk, uint64_t total,
                                                 struct sec_chunks **out);
// For an existing file, by its front. name: for errors. NEB_ERR_FORMAT: not a front.
// NEB_ERR_DENIED: sealed with another key, or for another job.
NEB_MUST_CHECK enum neb_status sec_chunks_open(const struct sec_seal_key *k, const char *name,
                                               const uint8_t front[SEC_CHUNKS_FRONT],
                                               struct sec_chunks **out);
void sec_chunks_destroy(struct sec_chunks **c);
const uint8_t *sec_chunks_front(const struct sec_chunks *c); // (SEC_CHUNKS_FRONT)
uint32_t sec_chunks_bytes(const struct sec_chunks *c);       // in clear, of all chunks but the last
uint64_t sec_chunks_total(const struct sec_chunks *c);       // in clear
// Where chunk i begins. i = number of chunks: the length of the file.
uint64_t sec_chunks_at(const struct sec_chunks *c, uint64_t i);
size_t sec_chunks_len(const struct sec_chunks *c, uint64_t i); // of chunk i, in clear
// out: sec_chunks_len + SEC_CHUNKS_EXTRA bytes.
void sec_chunks_seal(const struct sec_chunks *c, uint64_t i, const void *plain, uint8_t *out);
// plain: sec_chunks_len bytes. NEB_ERR_DENIED (not logged): these bytes were not sealed at this
// place.
NEB_MUST_CHECK enum neb_status sec_chunks_unseal(const struct sec_chunks *c, uint64_t i,
                                                 const uint8_t *sealed, void *plain);

#endif
