// SPDX-License-Identifier: Apache-2.0
// The streams of an agent: carries out the actions of inter/stream/stream.h with the spool and the link. Part of the service,
// which passes on what comes from the link; the daemon passes on what comes from workers. One thread.
#ifndef INTER_STREAMS_H
#define INTER_STREAMS_H
#include "inter/link/job_limits.h"
#include "inter/link/link.h"
#include "inter/stream/spool.h"

enum { INTER_STREAMS_MAX = 64 };

// what the producer's worker is told, after every put and whatever the consumer says
struct inter_stream_room {
    uint64_t limit;  // it may put batches below
    uint64_t stored; // all below are on disk
    // below these the consumer has them for good, has applied them, has them
    uint64_t durable, applied, have;
    struct inter_stream_measure path;
};

// Of the daemon, towards the workers. Each may be NULL; none may call a function of this header.
struct inter_streams_callbacks {
    void *user;
    void (*room)(void *user, const struct inter_stream_key *k, const struct inter_stream_room *r);
    // The consumer attached ANYWHERE: batch seq is its first.
    void (*begin)(void *user, const struct inter_stream_key *k, uint64_t seq);
    // The consumer's next batch, in order, put `age` ago (-1: not known). It is valid during the call.
    void (*deliver)(void *user, const struct inter_stream_key *k, uint64_t seq, const void *p,
                    size_t n, neb_ns age);
    // The consumer shall save a checkpoint soon.
    void (*checkpoint)(void *user, const struct inter_stream_key *k);
    // The stream cannot go on; text says why, with both digests or numbers.
    void (*refused)(void *user, const struct inter_stream_key *k, const char *text);
    void (*fault)(void *user, const struct inter_stream_key *k, enum inter_stream_fault f);
    // Of a stream that is not open here: whether its job has ended here for good, with all that it was to learn, and `peer` is a cluster of it.
    bool (*over)(void *user, const struct inter_stream_key *k, uint32_t peer);
    // The stream cannot go on: its consumer wants batch `seq`, and the oldest that is kept is
    // `oldest`. It was started from an older checkpoint than the oldest that it had spoken of.
    void (*lost)(void *user, const struct inter_stream_key *k, bool consumer, uint64_t seq,
                 uint64_t oldest);
};

struct inter_streams;
// crypto, link and names (of link peers) are borrowed.
struct inter_streams_config {
    const char *dir; // of the spool, which is opened with the first producer
    const struct inter_node_crypto *crypto;
    struct inter_link *const *link;  // the service's: it opens another one when keys are rotated
    struct inter_job_limits *limits; // likewise: each stream's job may have one of its own
    const struct sec_seal_key *seal; // of the spool, borrowed; NULL: in clear
};
// c is copied, what it points to borrowed. NEB_ERR_NOMEM; NEB_ERR_LIMIT: dir is too long.
NEB_MUST_CHECK enum neb_status inter_streams_create(const struct inter_streams_config *c,
                                                    struct inter_streams **out);
void inter_streams_destroy(struct inter_streams **s);
// c is copied; nothing is called before.
void inter_streams_listen(struct inter_streams *s, const struct inter_streams_callbacks *c);

// Opens an endpoint, or answers OK when it is open with the same terms already (a worker that was started again). A producer's
// batches of an earlier life are there again. NEB_ERR_LIMIT: too many; NEB_ERR_EXISTS: open with other limits or terms.
NEB_MUST_CHECK enum neb_status inter_streams_open(struct inter_streams *s,
                                                  const struct inter_stream_config *c);
// NEB_ERR_NOT_FOUND (logged) where no such stream is open. NEB_ERR_STATE: a put that was refused: a gap, no room, or too
// large; it is to be put again below the next limit. After any other failure (the disk) the stream is closed. What is on disk when put returns NEB_OK is not lost any more.
NEB_MUST_CHECK enum neb_status inter_streams_put(struct inter_streams *s,
                                                 const struct inter_stream_key *k, uint64_t seq,
                                                 const void *p, size_t n);
// The consumer's worker: its cursor (or INTER_STREAM_ANYWHERE), what it has applied, what none of its checkpoints is below (inter/stream/stream.h).
NEB_MUST_CHECK enum neb_status
inter_streams_attach(struct inter_streams *s, const struct inter_stream_key *k, uint64_t cursor);
NEB_MUST_CHECK enum neb_status
inter_streams_applied(struct inter_streams *s, const struct inter_stream_key *k, uint64_t next);
NEB_MUST_CHECK enum neb_status
inter_streams_durable(struct inter_streams *s, const struct inter_stream_key *k, uint64_t next);
// The job's worker is gone: consumers wait for its next attach.
NEB_MUST_CHECK enum neb_status inter_streams_detach(struct inter_streams *s,
                                                    const uint8_t job[INTER_ID_BYTES]);
// Closes a job's streams; with `forget` their batches on disk go too.
NEB_MUST_CHECK enum neb_status inter_streams_close(struct inter_streams *s,
                                                   const uint8_t job[INTER_ID_BYTES], bool forget);
// False: no such stream.
bool inter_streams_stats(const struct inter_streams *s, const struct inter_stream_key *k,
                         struct inter_stream_stats *out);

// From the service. A batch that cannot be read ends its stream, and the callbacks are told why (refused). An error is one that the agent
// cannot go on with.
NEB_MUST_CHECK enum neb_status inter_streams_message(struct inter_streams *s, uint32_t peer,
                                                     bool bulk, const uint8_t *p, size_t n);
NEB_MUST_CHECK enum neb_status inter_streams_peer(struct inter_streams *s, uint32_t peer, bool up);
// A connection to a peer that is still there broke (INTER_LINK_LOST).
NEB_MUST_CHECK enum neb_status inter_streams_lost(struct inter_streams *s, uint32_t peer,
                                                  uint64_t way);
NEB_MUST_CHECK enum neb_status inter_streams_tick(struct inter_streams *s);

#endif
