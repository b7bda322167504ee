// SPDX-License-Identifier: Apache-2.0
// The streams of an agent. Carries out the actions of inter/stream/stream.h with the spool and the
// link. The service passes on what the link delivers, the daemon what workers send. Threads: one.
#ifndef INTER_STREAMS_H
#define INTER_STREAMS_H
#include "inter/link/job_limits.h"
#include "inter/link/link.h"
#include "inter/stream/spool.h"

enum { INTER_STREAMS_MAX = 64 };

// From the daemon, for events of workers. Each may be NULL. A callback may not call a function of
// this header.
struct inter_streams_callbacks {
    void *user;
    // What concerns the worker: the actions ROOM, BEGIN, DELIVER, CHECKPOINT, LOST and FAULT
    // (stream.h). age: time since the put of a batch to deliver; -1: not known. All pointers are
    // valid during the call.
    void (*act)(void *user, const struct inter_stream_config *c,
                const struct inter_stream_action *a, const struct inter_stream_stats *now,
                neb_ns age);
    // The stream cannot go on. text is the reason. terms: a term differs; text has both digests.
    void (*refused)(void *user, const struct inter_stream_config *c, bool terms, const char *text);
    // For a stream that is not open here: true if its job is done here, so that the stream is never
    // opened again, and `peer` is a cluster of the job.
    bool (*over)(void *user, const struct inter_stream_key *k, uint32_t peer);
};

struct inter_streams;
struct inter_streams_config {
    const char *dir; // of the spool; the first producer opens it
    const struct inter_node_crypto *crypto;
    struct inter_link *const *link;  // the service's; a rotation of keys replaces the link
    struct inter_job_limits *limits; // the service's: limits of jobs
    const struct sec_seal_key *seal; // seals the spool; NULL: in clear
};
// c is copied; what it points to is borrowed, except dir. NEB_ERR_NOMEM. NEB_ERR_LIMIT: dir is too
// long.
NEB_MUST_CHECK enum neb_status inter_streams_create(const struct inter_streams_config *c,
                                                    struct inter_streams **out);
void inter_streams_destroy(struct inter_streams **s);
// c is copied. Without this call, no callback runs.
void inter_streams_listen(struct inter_streams *s, const struct inter_streams_callbacks *c);

// Opens an endpoint. OK too if it is open with the same terms (a restarted worker). A producer's
// batches from before are restored. NEB_ERR_LIMIT: too many streams. NEB_ERR_EXISTS: open with
// other limits or terms.
NEB_MUST_CHECK enum neb_status inter_streams_open(struct inter_streams *s,
                                                  const struct inter_stream_config *c);
// The batch is on disk when put returns NEB_OK. NEB_ERR_NOT_FOUND (logged): no such stream is open.
// NEB_ERR_STATE: refused, because it leaves a gap, is too large or has no room; put it again below
// the next limit. After any other failure (the disk) the stream is closed.
NEB_MUST_CHECK enum neb_status inter_streams_put(struct inter_streams *s,
                                                 const struct inter_stream_key *k, uint64_t seq,
                                                 const void *p, size_t n);
// From the worker: ATTACH at its cursor (or INTER_STREAM_ANYWHERE), APPLIED or DURABLE (stream.h).
// NEB_ERR_NOT_FOUND (logged): no such stream is open.
NEB_MUST_CHECK enum neb_status inter_streams_tell(struct inter_streams *s,
                                                  const struct inter_stream_key *k,
                                                  enum inter_stream_event_kind what, uint64_t seq);
// The job's worker is gone. Its consumers wait for the next attach.
NEB_MUST_CHECK enum neb_status inter_streams_detach(struct inter_streams *s,
                                                    const uint8_t job[INTER_ID_BYTES]);
// Closes a job's streams. forget: also removes their batches from the disk.
NEB_MUST_CHECK enum neb_status inter_streams_close(struct inter_streams *s,
                                                   const uint8_t job[INTER_ID_BYTES], bool forget);
// False: no such stream.
bool inter_streams_stats(const struct inter_streams *s, const struct inter_stream_key *k,
                         struct inter_stream_stats *out);

// From the service. A batch that cannot be read ends its stream; the `refused` callback gets the
// reason. After an error, the agent cannot go on.
NEB_MUST_CHECK enum neb_status inter_streams_message(struct inter_streams *s, uint32_t peer,
                                                     bool bulk, const uint8_t *p, size_t n);
NEB_MUST_CHECK enum neb_status inter_streams_peer(struct inter_streams *s, uint32_t peer, bool up);
// A connection to a peer broke, but the peer is still there (INTER_LINK_LOST).
NEB_MUST_CHECK enum neb_status inter_streams_lost(struct inter_streams *s, uint32_t peer,
                                                  uint64_t way);
NEB_MUST_CHECK enum neb_status inter_streams_tick(struct inter_streams *s);

#endif
