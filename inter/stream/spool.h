// SPDX-License-Identifier: Apache-2.0
// Batches that a producer's agent keeps until their consumer has saved them: the SQLite file
// DIR/streams.db. If the site seals, batches are sealed; their numbers and sizes are in
// clear.
//
// A put is on disk when it returns. The space of dropped batches is used again, so the file grows
// to the bounds of its streams and no further. Threads: one.
#ifndef INTER_STREAM_SPOOL_H
#define INTER_STREAM_SPOOL_H
#include "inter/stream/stream.h"
#include "security/seal_key.h"

struct inter_spool;
// NEB_ERR_CORRUPT: not a spool, or damaged. Like all functions below: NEB_ERR_IO, NEB_ERR_NOSPC.
NEB_MUST_CHECK enum neb_status inter_spool_open(const char *dir, struct inter_spool **out);
void inter_spool_close(struct inter_spool **s);
// Seals what is put from now on; key NULL: in clear. key is borrowed. Batches in clear stay
// readable. Without their key, sealed ones give NEB_ERR_DENIED or NEB_ERR_CORRUPT (get, restore).
void inter_spool_seal(struct inter_spool *s, const struct sec_seal_key *key);
// Durable when it returns. Replaces an earlier batch with this number. NEB_ERR_NOSPC also if the
// batch would take the ledger's reserve (INTER_LEDGER_RESERVE_OWN).
NEB_MUST_CHECK enum neb_status inter_spool_put(struct inter_spool *s,
                                               const struct inter_stream_key *k, uint64_t seq,
                                               const void *p, size_t n);
// Removes the batches below seq. seq is the new base.
NEB_MUST_CHECK enum neb_status inter_spool_drop(struct inter_spool *s,
                                                const struct inter_stream_key *k, uint64_t seq);
// Replaces `out`. NEB_ERR_NOT_FOUND (not logged).
NEB_MUST_CHECK enum neb_status inter_spool_get(struct inter_spool *s,
                                               const struct inter_stream_key *k, uint64_t seq,
                                               struct neb_buf *out);
// Restores all batches of a stream that was just created.
NEB_MUST_CHECK enum neb_status inter_spool_restore(struct inter_spool *s,
                                                   struct inter_stream *stream);
// Removes all streams of a job.
NEB_MUST_CHECK enum neb_status inter_spool_forget(struct inter_spool *s,
                                                  const uint8_t job[INTER_ID_BYTES]);

// A sealed batch is a sealed stream (security/seal_stream.h) of its job, bound to its place:
//
//     sealed by the job's key: | stream u64 | seq u64 | the batch |
//
// A batch in another batch's or job's place is refused like a changed one.

// Replaces out. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_stream_seal(const struct sec_seal_key *key,
                                                 const struct inter_stream_key *k, uint64_t seq,
                                                 const void *p, size_t n, struct neb_buf *out);
// Replaces out by the clear bytes of p, which comes from the file `name`. Bytes that are not sealed
// are copied. NEB_ERR_DENIED: key is NULL or another key. NEB_ERR_CORRUPT: changed, cut, or from
// another place.
NEB_MUST_CHECK enum neb_status inter_stream_unseal(const struct sec_seal_key *key, const char *name,
                                                   const struct inter_stream_key *k, uint64_t seq,
                                                   const void *p, size_t n, struct neb_buf *out);

#endif
