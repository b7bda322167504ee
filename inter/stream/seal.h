// SPDX-License-Identifier: Apache-2.0
// Sealed batches in the spool of a site that seals. Each is a sealed stream
// (security/seal_stream.h) of its job, bound to its place:
//
//     sealed by the job's key: | stream u64 | seq u64 | the batch |
//
// A batch in another batch's or job's place is refused like a changed one.
#ifndef INTER_STREAM_SEAL_H
#define INTER_STREAM_SEAL_H
#include "inter/stream/stream.h"
#include "security/seal_key.h"

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
