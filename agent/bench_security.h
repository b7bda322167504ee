// What encryption, signatures, digests and the gate add to a round, beside the same round in the open: one line of `nebula bench
// round`. The open round exists in this process alone; no agent can be told to leave them away.
#ifndef AGENT_BENCH_SECURITY_H
#define AGENT_BENCH_SECURITY_H
#include "agent/base/bytes.h"

struct bench_security {
    const struct neb_buf *update; // as it travels
    double compute_s, gate_s;     // of one member, measured: everything but the gate; the gate
    double rate_bps;              // of the emulated link
};
// The update goes through a socket in messages of 1 MiB, each not before the link would have carried the ones before: as it is, and
// with what a link and an agent do to it (CURVE's box, SHA-256 of chunks and whole, signatures of manifest, record and votes).
// Both are timed in turns and the best is taken. *open_s, *secured_s: the round.
NEB_MUST_CHECK enum neb_status bench_security(const struct bench_security *b, double *open_s,
                                              double *secured_s);

#endif
