// SPDX-License-Identifier: Apache-2.0
// What a producer knows about the path to its consumer: goodput, round trip, and how long batches
// queue on the way. Only acknowledged batches are used. Pure.
//
//     batch 7 leaves at t1 ──► … ──► a GRANT says have 8, at t2
//     waited = (t2 − t1) − the smallest round trip     above 0: the link gets more than it carries
//
// A batch that is not acknowledged yet counts with its age, so a link that stands still shows at
// once. Acknowledgements may be 200 ms late (inter/stream/stream.h): a shorter wait means nothing.
#ifndef INTER_STREAM_PATH_H
#define INTER_STREAM_PATH_H
#include "agent/base/status.h"
#include "inter/round/estimate.h"

struct inter_stream_path {
    struct inter_estimate estimate;
    uint32_t window;         // batches
    uint64_t acked, sent;    // next to be acknowledged; next to leave
    neb_ns latest;           // round trip of the newest acknowledged batch
    struct inter_path_mark { // (window) batch n at n % window
        struct inter_sent sent;
        uint32_t bytes;
        uint64_t next;    // n + 1; 0: no batch yet
        bool left, again; // it was sent; it was sent more than once
    } * marks;
};

struct inter_stream_measure {
    double goodput_bps; // 0: unknown
    bool full;          // goodput_bps was measured while more was waiting than the link carried
    neb_ns rtt;         // 0: unknown
    neb_ns waited;      // queueing time of the newest batch; at least 0
};

// window: most batches in flight, 1 or more. NEB_ERR_NOMEM.
NEB_MUST_CHECK enum neb_status inter_stream_path_create(uint32_t window,
                                                        struct inter_stream_path **out);
void inter_stream_path_destroy(struct inter_stream_path **p);
// Call when the link broke or the consumer attached again. Forgets what was in flight. Batch `next`
// is the first to be acknowledged.
void inter_stream_path_reset(struct inter_stream_path *p, uint64_t next);
// Batch seq leaves. After a resend, seq and all later batches are waited for again. Its
// acknowledgement may belong to the first copy, so it gives no round trip and no rate.
void inter_stream_path_sent(struct inter_stream_path *p, neb_ns now, uint64_t seq, uint32_t bytes);
// Batch seq is resent alone, because its connection broke.
void inter_stream_path_retry(struct inter_stream_path *p, neb_ns now, uint64_t seq);
// The link did not take batch seq.
void inter_stream_path_unsent(struct inter_stream_path *p, uint64_t seq);
// The consumer has all batches below `have`.
void inter_stream_path_acked(struct inter_stream_path *p, neb_ns now, uint64_t have);
// now: monotonic time.
struct inter_stream_measure inter_stream_path_measure(const struct inter_stream_path *p,
                                                      neb_ns now);

#endif
