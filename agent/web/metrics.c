// SPDX-License-Identifier: Apache-2.0
#include "agent/web/metrics.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct metric {
    const char *key, *name, *type, *help;
    double scale;
};

static const struct metric of_peer[] = {
    {"up", "nebula_peer_up", "gauge", "1 if the link to the peer is up.", 1},
    {"rtt_ms", "nebula_peer_round_trip_seconds", "gauge", "Smoothed round trip time.", 1e-3},
    {"goodput_bps", "nebula_peer_goodput_bytes_per_second", "gauge",
     "Estimated goodput of the path.", 0.125},
    {"sent_bytes", "nebula_peer_sent_bytes_total", "counter", "Bytes sent on the sockets.", 1},
    {"recv_bytes", "nebula_peer_received_bytes_total", "counter", "Bytes received on the sockets.",
     1},
    {"resent_bytes", "nebula_peer_resent_bytes_total", "counter", "Update bytes that were resent.",
     1},
    {"refused", "nebula_peer_refused_messages_total", "counter",
     "Messages of the peer that the link refused.", 1},
    {"connects", "nebula_peer_connects_total", "counter",
     "Times that the link to the peer came up.", 1},
};
static const struct metric of_job[] = {
    {"step", "nebula_job_step", "gauge", "Inner steps done here.", 1},
    {"steps", "nebula_job_target_steps", "gauge", "Inner steps that the job asks for.", 1},
    {"lag", "nebula_job_lag_rounds", "gauge", "Rounds that this cluster has to catch up.", 1},
    {"live", "nebula_job_live_members", "gauge", "Members heard from recently, including this one.",
     1},
    {"equivocators_proven", "nebula_job_equivocators", "gauge",
     "Members that are proven to equivocate; revoke them.", 1},
    {"restarts", "nebula_job_worker_restarts", "gauge", "Worker restarts since the last progress.",
     1},
};
static const struct metric of_cluster[] = {
    {"loss", "nebula_cluster_loss_nats", "gauge", "Training loss per token.", 1},
    {"eval_loss", "nebula_cluster_held_out_loss_nats", "gauge",
     "Loss per token on held-out text (eval.every_steps).", 1},
    {"step", "nebula_cluster_step", "gauge", "Inner steps done.", 1},
    {"round", "nebula_cluster_round", "gauge", "Last merged round; -1 before the first.", 1},
    {"interval", "nebula_cluster_interval_steps", "gauge", "Inner steps between exchanges (H).", 1},
    {"tokens_per_s", "nebula_cluster_tokens_per_second", "gauge",
     "Training throughput; absent after the end of the job.", 1},
    {"age_s", "nebula_cluster_age_seconds", "gauge",
     "Time since the last line from the cluster's worker.", 1},
    {"stall_s", "nebula_cluster_stall_seconds_total", "counter",
     "Time spent waiting for other clusters.", 1},
    {"train_s", "nebula_cluster_train_seconds_total", "counter", "Time spent training.", 1},
    {"sent_bytes", "nebula_cluster_sent_bytes_total", "counter", "WAN bytes sent for the job.", 1},
    {"recv_bytes", "nebula_cluster_received_bytes_total", "counter",
     "WAN bytes received for the job.", 1},
};
static const char *const of_build[] = {"version", "commit", "build_type", "isa", "cuda", "nccl"};
#define COUNT(a) (sizeof(a) / sizeof *(a))

__attribute__((format(printf, 2, 3))) static void add(struct neb_buf *b, const char *fmt, ...) {
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n > 0 && n < (int)sizeof line)
        neb_buf_add(b, line, (size_t)n);
}

// Writes name="value" with the three escapes of the format.
static void label(struct neb_buf *b, const char *name, const json_t *value, bool first) {
    const char *s = json_string_value(value);
    add(b, "%s%s=\"", first ? "" : ",", name);
    for (; s && *s; s++)
        if (*s == '\\' || *s == '"')
            add(b, "\\%c", *s);
        else if (*s == '\n')
            add(b, "\\n");
        else
            neb_buf_add(b, s, 1);
    add(b, "\"");
}

static bool number_of(const json_t *v, double scale, double *out) {
    if (json_is_boolean(v))
        *out = json_is_true(v);
    else if (json_is_number(v))
        *out = json_number_value(v) * scale;
    else
        return false;
    return isfinite(*out);
}

static void head(struct neb_buf *b, const char *name, const char *type, const char *help) {
    add(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

// A text value is a label of an info metric with the value 1: {codec="int4"}.
static void codec_sample(struct neb_buf *b, const json_t *cluster, const json_t *job) {
    const json_t *codec = json_object_get(cluster, "codec");
    if (!json_is_string(codec))
        return; // nothing sent yet
    add(b, "nebula_cluster_codec_info{");
    label(b, "job_id", json_object_get(job, "id"), true);
    label(b, "cluster", json_object_get(cluster, "name"), false);
    label(b, "codec", codec, false);
    add(b, "} 1\n");
}

static const char *const states[] = {"running", "stopping",  "done", "stopped",
                                     "failed",  "suspended", "held"};

// One sample for each state: 1 for the job's own.
static void state_samples(struct neb_buf *b, const json_t *job) {
    const char *is = json_string_value(json_object_get(job, "outcome"));
    is = is ? is : json_string_value(json_object_get(job, "state"));
    for (size_t i = 0; is && i < COUNT(states); i++) {
        add(b, "nebula_job_state{");
        label(b, "job_id", json_object_get(job, "id"), true);
        label(b, "name", json_object_get(job, "job"), false);
        add(b, ",state=\"%s\"} %d\n", states[i], !strcmp(is, states[i]));
    }
}

static void sample(struct neb_buf *b, const struct metric *m, const json_t *o, const char *what,
                   const json_t *who, const json_t *job) {
    double x;
    if (!number_of(json_object_get(o, m->key), m->scale, &x))
        return;
    add(b, "%s{", m->name);
    if (job)
        label(b, "job_id", json_object_get(job, "id"), true);
    label(b, what, who, !job);
    add(b, "} %.15g\n", x);
}

enum neb_status agent_metrics_text(const json_t *status, struct neb_buf *b) {
    const json_t *peers = json_object_get(status, "peers"), *jobs = json_object_get(status, "jobs"),
                 *o, *c, *v;
    size_t i, k;
    const char *kind;
    head(b, "nebula_agent_info", "gauge", "The agent; always 1.");
    add(b, "nebula_agent_info{");
    label(b, "agent", json_object_get(status, "name"), true);
    for (size_t n = 0; n < COUNT(of_build); n++)
        label(b, of_build[n], json_object_get(json_object_get(status, "about"), of_build[n]),
              false);
    add(b, "} 1\n");
    for (size_t m = 0; m < COUNT(of_peer); m++) {
        head(b, of_peer[m].name, of_peer[m].type, of_peer[m].help);
        json_array_foreach(peers, i, o)
            sample(b, &of_peer[m], o, "peer", json_object_get(o, "name"), NULL);
    }
    for (size_t m = 0; m < COUNT(of_job); m++) {
        head(b, of_job[m].name, of_job[m].type, of_job[m].help);
        json_array_foreach(jobs, i, o)
            sample(b, &of_job[m], o, "name", json_object_get(o, "job"), o);
    }
    head(b, "nebula_job_state", "gauge", "1 for the state of the job here, 0 for other states.");
    json_array_foreach(jobs, i, o) state_samples(b, o);
    for (size_t m = 0; m < COUNT(of_cluster); m++) {
        head(b, of_cluster[m].name, of_cluster[m].type, of_cluster[m].help);
        bool counter = !strcmp(of_cluster[m].type, "counter"),
             rate = !strcmp(of_cluster[m].key, "tokens_per_s");
        json_array_foreach(jobs, i, o) json_array_foreach(json_object_get(o, "clusters"), k, c) {
            if (rate && json_object_get(o, "outcome"))
                continue; // an ended job would keep its last rate for ever
            sample(b, &of_cluster[m], counter ? json_object_get(c, "counted") : c, "cluster",
                   json_object_get(c, "name"), o);
        }
    }
    head(b, "nebula_cluster_codec_info", "gauge",
         "The codec of the last update, as a label; always 1.");
    json_array_foreach(jobs, i, o) json_array_foreach(json_object_get(o, "clusters"), k, c)
        codec_sample(b, c, o);
    head(b, "nebula_refused_total", "counter",
         "Refused handshakes, enrolments, local messages, workers on other hosts and messages "
         "about masked sums.");
    json_object_foreach((json_t *)json_object_get(status, "refused"), kind, v)
        add(b, "nebula_refused_total{what=\"%s\"} %lld\n", kind, (long long)json_integer_value(v));
    head(b, "nebula_faults_total", "counter",
         "Faults by kind: refused messages and updates, divergence, lost disks.");
    json_object_foreach((json_t *)json_object_get(status, "faults"), kind, v)
        add(b, "nebula_faults_total{kind=\"%s\"} %lld\n", kind, (long long)json_integer_value(v));
    return neb_buf_check(b);
}
