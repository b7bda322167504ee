// SPDX-License-Identifier: Apache-2.0
// What a run leaves for people and programs: DIR/metrics.jsonl during the run, DIR/summary.json at
// its end, and the summary as a table.
//
// Units: seconds, bytes on the socket (including all overhead), losses in nats per token. An
// unknown number (no evaluation, nothing sent) is NAN here and null in the files.
#ifndef AGENT_REPORT_H
#define AGENT_REPORT_H
#include "agent/base/clock.h"
#include "agent/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

// ---- metrics.jsonl ------------------------------------------------------------------------------
//
// One JSON object on each line, in the order of events:
//
//     {"t": 12.340, "kind": "step", "cluster": "paris", "step": 120, ...}
//
// The writer adds t (seconds since the run began; --resume continues it). Unknown values are null.
// Losses are in nats per token, intervals in inner steps. Sums can fall after a restart.
//
//     step        every log_every steps: step, tokens (so far), loss, lr, grad_norm (before
//                 clipping), tokens_per_s; train_s, stall_s (sums), stalled_s (since the last
//                 line). For a cluster at another site, loss and grad_norm are rounded means of
//                 several steps, and null in between (agent/daemon/disclose.h)
//     round       merged here: round, fragment, step, digest (of the parameters now), updates
//                 (their number), merge (true: a merge round), interval (H now). Of this cluster's
//                 own update: codec, payload_bytes, error (relative error of the codec; 0: not
//                 measured), tokens, share (weight, 0 to 1), missed (intervals before it), overlap
//                 (steps from send to merge), encode_s, travel_s (until the commit is here),
//                 held_s (from then until the merge), apply_s, stall_s (training waited for its commit)
//     link        up (every other cluster answers), sent_bytes, recv_bytes (sums, on the sockets),
//                 resent_bytes (sum, of updates), goodput_bps (of the best path), rtt_ms, stripes
//                 (bulk connections in use), links (more than two clusters: {NAME: {sent_bytes,
//                 recv_bytes}}, of all jobs)
//     eval        held-out loss: step, loss, sources ({NAME: loss})
//     checkpoint  on disk: step, bytes, checkpoint_stall_ms (training stood still), write_ms,
//                 while_training
//     tune        a new plan: round (that brought it), from_round, fragment, step, plan_codec,
//                 overlap, interval, left_out (share of skipped steps), reason
//     labels      mode distill, a new k: step, student, k, goodput_bps, waited_s, reason
//     note        text: a change that needs no action; device: where a starting worker trains
//     fault       text: somebody should look
//
// The caller sets kind and cluster. Lines are appended completely, so a reader can follow the
// growing file. Lines of another cluster that a dead link delayed come later, in their own order,
// with the t at which they were made.

struct agent_metrics; // one open file; for one thread

// Appends to path. resume: keeps the file, cuts off a partial last line after a crash, and
// continues t from the last line. Otherwise the file starts empty.
NEB_MUST_CHECK enum neb_status agent_metrics_open(const char *path, bool resume, neb_ns now,
                                                  struct agent_metrics **out);
void agent_metrics_close(struct agent_metrics **m);
// Copies every added line to f, too.
void agent_metrics_show(struct agent_metrics *m, FILE *f);
// True if this line of a cluster (0 … AGENT_CLUSTERS_MAX - 1) should be added: every line except
// some of kind link. Link lines come each second; the file keeps them at a distance of 1/600 of the
// run's time so far, at most 30 s. A link that goes down or comes up is always kept.
bool agent_metrics_wants(struct agent_metrics *m, int cluster, neb_ns now, const json_t *line);
// Takes over the caller's reference to `line`, an object made at `now`, and sets its t (never
// before the start of this run). NEB_ERR_IO, NEB_ERR_NOSPC: not written; a partial line is cut off.
// NEB_ERR_INVALID: not an object with a kind.
NEB_MUST_CHECK enum neb_status agent_metrics_add(struct agent_metrics *m, neb_ns now, json_t *line);
// The t of a line that is written now.
double agent_metrics_seconds(const struct agent_metrics *m, neb_ns now);

// Calls each(user, line) for every complete line. *bad (may be NULL): the number of lines that are
// not JSON objects. NEB_ERR_NOT_FOUND: no such file.
typedef void agent_metrics_each(void *user, const json_t *line);
NEB_MUST_CHECK enum neb_status agent_metrics_read(const char *path, agent_metrics_each *each,
                                                  void *user, int64_t *bad);

// True if `report` says that the cluster stopped, but this line shows that it has made more steps
// since. Then the report belongs to a previous run and came late, after an outage. report may be
// NULL.
bool agent_report_is_former(const json_t *report, const json_t *line);

// ---- summary.json -------------------------------------------------------------------------------

enum { AGENT_SUMMARY_CLUSTERS_MAX = 16, AGENT_DIGEST_TEXT = 65 };

struct agent_cluster_summary {
    char name[64];
    char device[96]; // "cpu (avx512, 2 threads)", "cuda (NVIDIA H100 80GB HBM3, bf16)"
    int64_t steps, tokens;
    double loss_first, loss_last; // training loss of the first and last (logged) step
    double eval_loss;             // held-out loss of the parameters in params_digest
    double stall_s, train_s;
    int64_t steps_left_out; // steps skipped because the cluster is slower (sync.tune.balance)
    int64_t lost_steps;     // steps lost or skipped when it adopted the state of others
    int64_t divergences;    // times that its parameters diverged
    uint64_t wan_sent_bytes, wan_recv_bytes; // on the sockets
    uint64_t wan_payload_bytes;              // of the sent bytes: updates, batches, snapshots
    // Of the sent bytes: headers and control. The rest is encryption, framing and heartbeats.
    uint64_t wan_protocol_bytes;
    char params_digest[AGENT_DIGEST_TEXT]; // hexadecimal; "": none
};

struct agent_summary {
    char job[64];
    char mode[16];
    int64_t params, trainable_params;
    int64_t rounds; // committed rounds
    double wall_s;
    int32_t n_clusters;
    struct agent_cluster_summary clusters[AGENT_SUMMARY_CLUSTERS_MAX];
    uint64_t payload_bytes;  // encoded updates of all senders, before transport
    uint64_t payload_params; // parameters in those updates; each update counts again
    json_t *missing;         // borrowed; names of clusters without a report; NULL: none
    // Differential privacy: ε at δ after `releases` sums, and a sentence about it. text "": not
    // used.
    struct {
        double epsilon, delta, clip, noise;
        int64_t releases;
        int32_t colluders;
        char text[512];
    } privacy;
    json_t *quality; // borrowed; quality measures of the mode; NULL: none
};

// 8 * payload_bytes / payload_params. NAN if nothing was exchanged.
double agent_summary_bits_per_param(const struct agent_summary *s);
// The bytes to send every step's trainable gradients in fp32, divided by the bytes that the
// clusters sent on average. NAN if nothing was sent.
double agent_summary_reduction(const struct agent_summary *s);

// Writes DIR/summary.json, atomically and durably.
NEB_MUST_CHECK enum neb_status agent_summary_write(const struct agent_summary *s, const char *dir);
// Prints it on one line for programs: {"kind": "summary", ...}. NEB_ERR_NOMEM, NEB_ERR_IO.
NEB_MUST_CHECK enum neb_status agent_summary_print_json(const struct agent_summary *s, FILE *out);
// Writes four decimals, or "-" if unknown. Returns buf.
const char *agent_loss_text(double loss, char *buf, size_t cap);
// Prints two lines about the job, and a table with one row for each cluster.
void agent_summary_print(const struct agent_summary *s, FILE *out);

#endif
