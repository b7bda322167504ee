// SPDX-License-Identifier: Apache-2.0
// Batches that a producer's agent keeps until their consumer has them for good: DIR/streams.db, by SQLite. Sealed, where the
// site seals (stream_seal.h); their numbers and sizes are in clear.
//
// A put is on disk when it returns. Space of dropped batches is used again, so the file grows to the bounds of the
// streams that it serves and no further. One thread.
#ifndef INTER_STREAM_SPOOL_H
#define INTER_STREAM_SPOOL_H
#include "inter/stream/stream.h"
#include "security/seal_key.h"

struct inter_spool;
// NEB_ERR_CORRUPT: not such a file, or damaged. NEB_ERR_IO, NEB_ERR_NOSPC as everywhere below.
NEB_MUST_CHECK enum neb_status inter_spool_open(const char *dir, struct inter_spool **out);
void inter_spool_close(struct inter_spool **s);
// What is put from here on is sealed; NULL: in clear. Borrowed. Batches in clear are read as well; sealed ones with their key only
// (NEB_ERR_DENIED, NEB_ERR_CORRUPT of get and restore).
void inter_spool_seal(struct inter_spool *s, const struct sec_seal_key *key);
// Durable when it returns. What is there under the number is replaced. NEB_ERR_NOSPC also where it would take the ledger's room
// (INTER_LEDGER_RESERVE_OWN).
NEB_MUST_CHECK enum neb_status inter_spool_put(struct inter_spool *s,
                                               const struct inter_stream_key *k, uint64_t seq,
                                               const void *p, size_t n);
// Removes batches below seq and remembers it as the base.
NEB_MUST_CHECK enum neb_status inter_spool_drop(struct inter_spool *s,
                                                const struct inter_stream_key *k, uint64_t seq);
// Replaces `out`. NEB_ERR_NOT_FOUND (not logged).
NEB_MUST_CHECK enum neb_status inter_spool_get(struct inter_spool *s,
                                               const struct inter_stream_key *k, uint64_t seq,
                                               struct neb_buf *out);
// Everything kept of a stream, into one that was just created.
NEB_MUST_CHECK enum neb_status inter_spool_restore(struct inter_spool *s,
                                                   struct inter_stream *stream);
// All streams of a job.
NEB_MUST_CHECK enum neb_status inter_spool_forget(struct inter_spool *s,
                                                  const uint8_t job[INTER_ID_BYTES]);

#endif
