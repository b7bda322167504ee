// SPDX-License-Identifier: Apache-2.0
// What encryption, signatures, digests and the gate add to a round, beside the same round in the
// open: lines of `nebula bench round`. The open round exists only in this process; an agent always
// protects its rounds.
//
//     own update:  store (fsync) ∥ digest
//     per chunk:   chunk digest ─ box ─► wire ─► unbox ─ chunk digest ─ running digest ─ gate
//                  (one after another; all stages at once on different chunks)
//     at the end:  record, votes
//
// Each stage is measured alone, in processor time of its thread, so that other programs do not
// count. The pipeline (bench_pipeline) computes the part that a round waits for. The link is the
// slowest stage, so a round waits for the other stages only at the first and at the last chunk.
// Then threads do the same exchange for both members, over a socket as the link, timed by the
// clock.
#ifndef AGENT_BENCH_SECURITY_H
#define AGENT_BENCH_SECURITY_H
#include "agent/base/bytes.h"
#include "agent/base/clock.h"

enum bench_stage {      // of one update; stages of chunks: of all its chunks
    BENCH_OWN_DIGEST,   // sender, while the update goes to its disk
    BENCH_CHUNK_DIGEST, // sender and receiver each
    BENCH_BOX,
    BENCH_UNBOX,
    BENCH_RUNNING_DIGEST,
    BENCH_GATE,
    BENCH_SKETCH,     // with the gate, for angles between updates (compress/sketch.h)
    BENCH_SIGNATURES, // manifest, record and two votes: signed and verified
    BENCH_STAGES
};
extern const char *const bench_stage_names[BENCH_STAGES];

struct bench_security {
    const struct neb_buf *update; // as sent: whole updates in a row
    uint64_t elements;            // elements in it
    size_t chunk_bytes;
    double compute_s; // of one member, measured: everything except the gate
    double rate_bps;  // of the emulated link
    // of that link: a chunk leaves one round trip after the manifest that announces it
    double rtt_s;
};
struct bench_costs {
    double s[BENCH_STAGES]; // of the whole update, best of a few
    double store_s;         // update to disk: a file in /tmp, fsync
};
NEB_MUST_CHECK enum neb_status bench_security_measure(const struct bench_security *b,
                                                      struct bench_costs *out);
// Seconds from the update's hand-over to the verdict on it. Chunks pass the stages in order; a
// stage does one chunk at a time (one thread of an agent digests both what it sends and what it
// receives). A member checks its own update (gate and sketch) during the round trip before the
// first chunk; only longer checks count. secured false: only disk and wire.
double bench_pipeline(const struct bench_security *b, const struct bench_costs *c, bool secured);

enum bench_way {    // who sends, and on which processors
    BENCH_ONE_WAY,  // one sends, one receives, each on its own processors, as on two head nodes
    BENCH_BOTH_WAYS // both send and receive, together on this machine's processors
};
// One exchange, best of a few: by the clock, and processor time of all its threads.
struct bench_took {
    double clock_s, processor_s;
};
// Runs the exchange in turns secured and in the open, without the disk and the sender's own digest.
NEB_MUST_CHECK enum neb_status bench_exchange(const struct bench_security *b, enum bench_way way,
                                              struct bench_took *in_the_open,
                                              struct bench_took *secured);

#endif
