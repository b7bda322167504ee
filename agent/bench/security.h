// SPDX-License-Identifier: Apache-2.0
// What encryption, signatures, digests and the gate add to a round, beside the same round in the open: lines of `nebula bench round`.
// The open round exists in this process alone; no agent can be told to leave them away.
//
//     own update:   store (fsync) ∥ digest ──► per chunk: chunk digest ─ box ─► wire ─► unbox ─ chunk digest ─ running digest ─ gate ──► record,
//                                              one after another, all at once on different chunks                                        votes
//
// Every stage is measured alone, as processor time of its thread, so that what else runs on the machine does not count. What of it a
// round waits for follows from the pipeline (bench_pipeline): the link is the slowest stage, so that of the others it waits for the first chunk's
// and the last chunk's. The same is then done, both members of it, by threads with a socket as the link, and timed by the clock.
#ifndef AGENT_BENCH_SECURITY_H
#define AGENT_BENCH_SECURITY_H
#include "agent/base/bytes.h"
#include "agent/base/clock.h"

enum bench_stage {      // of one update; the chunks' are per chunk
    BENCH_OWN_DIGEST,   // sender, while the update goes to its disk
    BENCH_CHUNK_DIGEST, // sender and receiver each
    BENCH_BOX,
    BENCH_UNBOX,
    BENCH_RUNNING_DIGEST,
    BENCH_GATE,
    BENCH_SKETCH,     // with the gate, for angles between updates (compress/sketch.h)
    BENCH_SIGNATURES, // manifest, record and two votes, made and checked
    BENCH_STAGES
};
extern const char *const bench_stage_names[BENCH_STAGES];

struct bench_security {
    const struct neb_buf *update; // as it travels, one after another whole updates
    uint64_t elements;            // that it holds
    size_t chunk_bytes;
    double compute_s; // of one member, measured: everything but the gate
    double rate_bps;  // of the emulated link
    double rtt_s;     // of it: a chunk leaves a round trip after the manifest that announces it
};
struct bench_costs {
    double s[BENCH_STAGES]; // of the whole update, best of a few
    double store_s;         // the update onto a disk: a file in /tmp, fsync
};
NEB_MUST_CHECK enum neb_status bench_security_measure(const struct bench_security *b,
                                                      struct bench_costs *out);
// Weighing this member's own update (gate and sketch of it) is no stage: it falls into the round trip before the first chunk, and what is beyond it
// counts in bench_pipeline.
// Seconds from the update's hand-over to the verdict on it, with chunks that pass stages one after another, each of which does one
// chunk at a time (an agent's thread digests both what it sends and what it takes). secured false: disk and wire only.
double bench_pipeline(const struct bench_security *b, const struct bench_costs *c, bool secured);

enum bench_way { // who takes part, and on which processors
    BENCH_ONE_WAY, // one sends, one receives: each member's processors are its own, as on two head nodes
    BENCH_BOTH_WAYS // both send and receive on this machine's processors together
};
// one exchange: best of a few, by the clock; and the processor time of all its threads
struct bench_took {
    double clock_s, processor_s;
};
// The same, done: in turns secured and in the open, without the disk and the sender's own digest.
NEB_MUST_CHECK enum neb_status bench_exchange(const struct bench_security *b, enum bench_way way,
                                              struct bench_took *in_the_open,
                                              struct bench_took *secured);

#endif
