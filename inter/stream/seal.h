// SPDX-License-Identifier: Apache-2.0
// Batches of a spool at rest, where a site seals: each is a sealed stream (security/seal_stream.h) of its job, bound to its place.
//
//     sealed by the job's key: | stream u64 | seq u64 | the batch |
//
// So a batch that was put in another one's place, or another job's, is refused as one that was changed.
#ifndef INTER_STREAM_SEAL_H
#define INTER_STREAM_SEAL_H
#include "inter/stream/stream.h"
#include "security/seal_key.h"

// Replaces out. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_stream_seal(const struct sec_seal_key *key,
                                                 const struct inter_stream_key *k, uint64_t seq,
                                                 const void *p, size_t n, struct neb_buf *out);
// Replaces out by what p, of the file `name`, holds in clear; what was not sealed is copied. NEB_ERR_DENIED: key NULL, or another
// one; NEB_ERR_CORRUPT: changed, cut, or of another place.
NEB_MUST_CHECK enum neb_status inter_stream_unseal(const struct sec_seal_key *key, const char *name,
                                                   const struct inter_stream_key *k, uint64_t seq,
                                                   const void *p, size_t n, struct neb_buf *out);

#endif
