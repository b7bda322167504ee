// SPDX-License-Identifier: Apache-2.0
// A corpus that streams: its text may be larger than the disk. Its training shards are made from the
// sources while training, and only some of them are on disk at a time.
//
//     corpus.json      as of any corpus, and `shuffle`; lists the training shards with their digests
//     stream.json      the sources, and where in them each training shard begins
//     verdicts.bin     for each document, 2 bits: its split, or a duplicate
//     cache/           training shards that were made; the ones that are needed next stay
//
// The windows of an epoch come from `shuffle` shards at a time: that is the shuffle buffer. While
// they are trained on, a thread makes the shards of the next ones. A shard that is made again is
// compared with its digest, so a run resumes with the same bits, or fails if a source has changed.
// Several processes may use one folder.
#ifndef INTRA_STREAM_H
#define INTRA_STREAM_H
#include "intra/data/data.h"

struct stream_feed;
struct stream_shard { // as corpus.json lists it
    const char *file;
    uint64_t tokens;
    uint8_t sha256[INTRA_SHA_BYTES];
};
// Starts nothing yet. dir: the corpus; width: bytes per token. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status stream_feed_create(const char *dir, int32_t width,
                                                  struct stream_feed **out);
void stream_feed_destroy(struct stream_feed **f); // waits for the thread
// A training shard of the source with this index is to exist: shards must come in order.
NEB_MUST_CHECK enum neb_status stream_feed_add(struct stream_feed *f, int32_t source,
                                               const struct stream_shard *s);
// The file of a shard, which is made if it is missing. path: (cap). Errors as build_stream_shard().
NEB_MUST_CHECK enum neb_status stream_feed_get(struct stream_feed *f, int32_t source, size_t shard,
                                               char *path, size_t cap);
// `owner` will need these n shards of a source, in this order, and no others of it. They are made by
// the thread; files that no owner needs are removed. n 0: none any more.
void stream_feed_want(struct stream_feed *f, const void *owner, int32_t source,
                      const size_t *shards, size_t n);

#endif
