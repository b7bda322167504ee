// SPDX-License-Identifier: Apache-2.0
// Large sealed files: checkpoints, ledger blobs. They use libsodium's secretstream
// (XChaCha20-Poly1305) over chunks of 64 KiB. So writer and reader hold only one chunk in clear,
// and a file that was cut, reordered or changed anywhere is refused.
//
//     "nebseal1" | id of the site's key 8 | context 16 | stream header 24
//     | chunks of 64 KiB + 17; the last may be shorter and is marked
//
// The front is bound to the first chunk. The context (a job's id) says which of the site's keys
// opens the file (seal_key.h).
//
// The writer gives its bytes to a function of the caller. So code that writes files (checkpoints,
// the ledger) does not see whether they are sealed (vault.h).
//
// The reader authenticates the whole file once, in order, and keeps the stream's state before every
// 16th chunk. It opens any range from the nearest of these. States lie in locked memory and are
// wiped.
#ifndef SEC_SEAL_STREAM_H
#define SEC_SEAL_STREAM_H
#include "agent/base/bytes.h"
#include "security/seal_key.h"

enum {
    SEC_STREAM_FRONT = 8 + SEC_SEAL_ID_BYTES + SEC_SEAL_CONTEXT_BYTES + 24,
    SEC_STREAM_CHUNK = 64 << 10,
};

typedef enum neb_status sec_stream_put(void *user, const void *p, size_t n);
struct sec_stream_writer;
// NEB_ERR_DENIED (not logged): k is the key of another job. Errors of put.
NEB_MUST_CHECK enum neb_status sec_stream_create(const struct sec_seal_key *k,
                                                 const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                                 sec_stream_put *put, void *user,
                                                 struct sec_stream_writer **out);
NEB_MUST_CHECK enum neb_status sec_stream_add(struct sec_stream_writer *w, const void *p, size_t n);
// Writes the last chunk. Nothing may follow.
NEB_MUST_CHECK enum neb_status sec_stream_end(struct sec_stream_writer *w);
void sec_stream_destroy(struct sec_stream_writer **w);

struct sec_stream_reader;
// p: len bytes, valid until close. name: the file, for errors. NEB_ERR_FORMAT: not such a stream.
// NEB_ERR_DENIED: sealed with another key, or for another job. NEB_ERR_CORRUPT: a chunk, which the
// log names, was changed, cut or reordered.
NEB_MUST_CHECK enum neb_status sec_stream_open(const struct sec_seal_key *k, const char *name,
                                               const uint8_t *p, size_t len,
                                               struct sec_stream_reader **out);
uint64_t sec_stream_len(const struct sec_stream_reader *r); // in clear
// [at, at + n) lies within the length. NEB_ERR_CORRUPT: the bytes have changed since open.
NEB_MUST_CHECK enum neb_status sec_stream_read(struct sec_stream_reader *r, uint64_t at, void *dst,
                                               size_t n);
void sec_stream_close(struct sec_stream_reader **r);

// Checks the front of any sealed file, and gives the key of its context. NEB_ERR_DENIED: sealed
// with another key (the log names the ids of both), or for another job.
NEB_MUST_CHECK enum neb_status sec_seal_front_check(const struct sec_seal_key *k, const char *name,
                                                    const uint8_t id[SEC_SEAL_ID_BYTES],
                                                    const uint8_t context[SEC_SEAL_CONTEXT_BYTES],
                                                    uint8_t key[SEC_SEAL_KEY_BYTES]);

#endif
