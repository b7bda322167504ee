// SPDX-License-Identifier: Apache-2.0
// What a run leaves behind for people and programs: DIR/metrics.jsonl while it goes,
// DIR/summary.json at its end, and the summary as a table.
//
// Units: seconds, bytes on the socket (everything included), losses in nats per token. A number
// that is not known (no evaluation was taken, nothing was sent) is NAN here and null in the files.
#ifndef AGENT_REPORT_H
#define AGENT_REPORT_H
#include "agent/base/clock.h"
#include "agent/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// ---- metrics.jsonl
// ----------------------------------------------------------------------------------
//
// One JSON object a line, in the order of events:
//
//     {"t": 12.340, "kind": "step", "cluster": "paris", "step": 120, ...}
//
// Kinds: step, round, link, eval, checkpoint, tune, labels; note (something has changed, nothing is to be done) and fault (somebody
// should look), which have a text. Their fields, with units, are in agent/README.md (metrics.jsonl and summary.json): add new ones
// there.
//
// The writer adds t; kind and cluster are the caller's. Lines are appended whole, so that a reader
// may follow the file while it grows. Lines of another cluster that a dead link held up come later,
// in the order in which that one made them, and with the t of then.

struct agent_metrics; // one open file; one thread

// Appends to path. resume: keeps what is there, cuts off a last line that a crash left unfinished,
// and lets t go on from the last line; otherwise the file begins empty.
NEB_MUST_CHECK enum neb_status agent_metrics_open(const char *path, bool resume, neb_ns now,
                                                  struct agent_metrics **out);
void agent_metrics_close(struct agent_metrics **m);
void agent_metrics_show(struct agent_metrics *m,
                        FILE *f); // every line that is added goes there too
// Whether a line of cluster 0 … AGENT_CLUSTERS_MAX - 1 is to be added. All but those about its link are: of these there is one each second,
// which who looks on wants to see, and 60 days of them nobody. So they are farther apart the longer the run lasts, by a 600th of it, up to
// 30 s; that a link went, or came back, is always to be added.
bool agent_metrics_wants(struct agent_metrics *m, int cluster, neb_ns now, const json_t *line);
// Takes over (steals) line, an object, made at `now`; sets its t, of lines from before this run to
// its beginning. NEB_ERR_IO or NEB_ERR_NOSPC: nothing, or not the whole line, was written; the part
// is cut off again. NEB_ERR_INVALID: not an object with a kind.
NEB_MUST_CHECK enum neb_status agent_metrics_add(struct agent_metrics *m, neb_ns now, json_t *line);
double agent_metrics_seconds(const struct agent_metrics *m, neb_ns now); // t of a line written now

// Calls each(user, line) for every whole line; returns how many were not JSON objects in *bad (may
// be NULL). NEB_ERR_NOT_FOUND: no such file.
typedef void agent_metrics_each(void *user, const json_t *line);
NEB_MUST_CHECK enum neb_status agent_metrics_read(const char *path, agent_metrics_each *each,
                                                  void *user, int64_t *bad);

// Whether a cluster that had reported that it was stopped has made further steps since, as this line of it says: then that report,
// which may have come late, after an outage, is of a former run. report: NULL is none.
bool agent_report_is_former(const json_t *report, const json_t *line);

// ---- summary.json
// -----------------------------------------------------------------------------------

enum { AGENT_SUMMARY_CLUSTERS_MAX = 16, AGENT_DIGEST_TEXT = 65 };

struct agent_cluster_summary {
    char name[64];
    char device[96]; // "cpu (avx512, 2 threads)", "cuda (NVIDIA H100 80GB HBM3, bf16)"
    int64_t steps, tokens;
    double loss_first, loss_last; // training loss of the first and the last step (or logged step)
    double eval_loss;             // on held-out text, of the parameters of params_digest
    double stall_s, train_s;
    int64_t steps_left_out; // of steps: not made, since the others are faster (sync.tune.balance)
    int64_t lost_steps;     // made and lost, or not made: this cluster went on from what others had
    int64_t divergences;    // times that its parameters differed from the others'
    uint64_t wan_sent_bytes, wan_recv_bytes; // on the sockets
    uint64_t wan_payload_bytes;              // of those sent: updates, batches, snapshots
    // of those sent: headers and control; what is left is encryption, framing, liveness
    uint64_t wan_protocol_bytes;
    char params_digest[AGENT_DIGEST_TEXT]; // hexadecimal; empty: none
};

struct agent_summary {
    char job[64];
    char mode[16];
    int64_t params, trainable_params;
    int64_t rounds; // committed
    double wall_s;
    int32_t n_clusters;
    struct agent_cluster_summary clusters[AGENT_SUMMARY_CLUSTERS_MAX];
    uint64_t payload_bytes;  // encoded updates, over all senders and exchanges, before transport
    uint64_t payload_params; // parameters that those updates stand for, each time counted again
    json_t *missing;         // borrowed; names of clusters without a report; NULL: none
    // Differential privacy: ε at δ of so many sums; a sentence about it. "": the job asks for none
    struct {
        double epsilon, delta, clip, noise;
        int64_t releases;
        int32_t colluders;
        char text[512];
    } privacy;
    json_t *quality; // borrowed; what the mode measured of its result, NULL: nothing
};

// 8 * payload_bytes / payload_params. NAN when nothing was exchanged.
double agent_summary_bits_per_param(const struct agent_summary *s);
// Bytes that sending every step's trainable gradients in fp32 would take, over the mean of what the
// clusters sent. NAN when nothing was sent.
double agent_summary_reduction(const struct agent_summary *s);

// New references, NULL when out of memory. A cluster's part alone is what a worker reports to its
// agent.
json_t *agent_cluster_summary_to_json(const struct agent_cluster_summary *c);
json_t *agent_summary_to_json(const struct agent_summary *s);
// DIR/summary.json, atomic and durable.
NEB_MUST_CHECK enum neb_status agent_summary_write(const struct agent_summary *s, const char *dir);
// The same on one line, for programs that read a run's lines: {"kind": "summary", ...}. NEB_ERR_NOMEM; NEB_ERR_IO.
NEB_MUST_CHECK enum neb_status agent_summary_print_json(const struct agent_summary *s, FILE *out);
// Four digits behind the point, or "-" where it is not known. Returns buf.
const char *agent_loss_text(double loss, char *buf, size_t cap);
// Two lines about the job and a table with a row a cluster.
void agent_summary_print(const struct agent_summary *s, FILE *out);

#endif
