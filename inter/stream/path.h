// SPDX-License-Identifier: Apache-2.0
// What a stream's producer knows of the way to its consumer, from batches that were acknowledged alone: goodput, round trip, and
// how long batches wait on the way beyond that. Pure.
//
//     batch 7 leaves at t1 ──► … ──► a GRANT says have 8, at t2
//     waited = (t2 − t1) − the smallest round trip          batches queue on the link: it is asked for more than it carries
//
// A batch that is not acknowledged yet counts with its age, so that a link which stands still is seen at once. Acknowledgements
// are up to 200 ms late (inter/stream/stream.h): less waiting than that says nothing.
#ifndef INTER_STREAM_PATH_H
#define INTER_STREAM_PATH_H
#include "agent/base/status.h"
#include "inter/round/estimate.h"

struct inter_stream_path {
    struct inter_estimate estimate;
    uint32_t window;         // batches
    uint64_t acked, sent;    // next to be acknowledged, next to leave
    neb_ns latest;           // round trip of the newest batch that was acknowledged
    struct inter_path_mark { // (window) of batch n in n % window
        struct inter_sent sent;
        uint32_t bytes;
        uint64_t next;    // after batch n; 0: none yet
        bool left, again; // it has left, and had before
    } * marks;
};

struct inter_stream_measure {
    double goodput_bps; // 0: unknown
    bool full;          // it is what the link carried when it was asked for more
    neb_ns rtt;         // 0: unknown
    neb_ns waited;      // of the newest batch, on the way; at least 0
};

// window: most batches that travel at once, 1 or more. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_stream_path_create(uint32_t window,
                                                        struct inter_stream_path **out);
void inter_stream_path_destroy(struct inter_stream_path **p);
// The link broke, or the consumer begins again: what travelled is forgotten, batch `next` is the first to be acknowledged.
void inter_stream_path_reset(struct inter_stream_path *p, uint64_t next);
// Batch seq leaves. One that goes again is waited for from now on, as all after it are; but its acknowledgement may be of the first copy, and
// tells neither round trip nor rate.
void inter_stream_path_sent(struct inter_stream_path *p, neb_ns now, uint64_t seq, uint32_t bytes);
// The same for one of those before the newest that a connection took along with it.
void inter_stream_path_retry(struct inter_stream_path *p, neb_ns now, uint64_t seq);
// The link would not take it.
void inter_stream_path_unsent(struct inter_stream_path *p, uint64_t seq);
// The consumer has all below `have`.
void inter_stream_path_acked(struct inter_stream_path *p, neb_ns now, uint64_t have);
// At monotonic time `now`.
struct inter_stream_measure inter_stream_path_measure(const struct inter_stream_path *p,
                                                      neb_ns now);

#endif
