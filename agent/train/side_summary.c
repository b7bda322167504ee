// SPDX-License-Identifier: Apache-2.0
#include "agent/train/side_summary.h"
#include "agent/job/json.h"
#include "agent/show/report.h"

#include <math.h>

const json_t *agent_side_report(const struct agent_job *job, json_t *const *reports,
                                enum agent_role role) {
    if (job->sync.scheme != AGENT_SCHEME_SYNCHRONOUS)
        return reports[agent_job_role(job, role)];
    return role == AGENT_ROLE_GENERATOR ? reports[0] : json_object_get(reports[0], "discriminator");
}

static double sum_of(const json_t *g, const json_t *d, const char *key) {
    return agent_json_get(g, key) + agent_json_get(d, key);
}

static json_t *rtd_quality(const struct agent_job *job, json_t *const *reports) {
    const json_t *g = agent_side_report(job, reports, AGENT_ROLE_GENERATOR),
                 *d = agent_side_report(job, reports, AGENT_ROLE_DISCRIMINATOR);
    json_t *gq = json_object_get(g, "quality"), *dq = json_object_get(d, "quality");
    bool both = job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    double tokens = agent_json_get(d, "tokens"),
           step = (double)job->batch * job->seq_len * job->accumulate,
           wan = both ? 0 : sum_of(g, d, "wan_sent_bytes");
    return json_pack(
        "{s:O?,s:O?,s:o,s:o,s:o,s:o,s:o}", "generator", gq, "discriminator", dq,
        "stream_bytes_per_token", agent_json_number(agent_json_get(dq, "batch_bytes_per_token")),
        "wan_bytes_per_token", agent_json_number(wan / tokens), "wan_payload_bytes_per_token",
        agent_json_number(both ? 0 : sum_of(g, d, "wan_payload_bytes") / tokens),
        "wan_protocol_bytes_per_token",
        agent_json_number(both ? 0 : sum_of(g, d, "wan_protocol_bytes") / tokens),
        "fp16_gradient_bytes_per_token",
        agent_json_number(2 * agent_json_get(d, "trainable_params") / step));
}

static void print_stall(const char *name, const json_t *stall, FILE *out) {
    if (json_is_object(stall))
        fprintf(out,
                "%-12s waited %.2f s for its first batch, then %.2f s for the other side and %.2f "
                "s for the link\n",
                name, json_number_value(json_object_get(stall, "start_s")),
                json_number_value(json_object_get(stall, "peer_s")),
                json_number_value(json_object_get(stall, "link_s")));
}

static void print_rtd(const json_t *q, FILE *out) {
    const json_t *g = json_object_get(q, "generator"), *d = json_object_get(q, "discriminator");
    char lm[32], detection[32], accuracy[32], auc[32];
    fprintf(out,
            "held out: masked LM loss %s; detection loss %s, accuracy %s, area under the ROC curve "
            "%s\n",
            agent_loss_text(agent_json_get(g, "eval_loss"), lm, sizeof lm),
            agent_loss_text(agent_json_get(d, "eval_loss"), detection, sizeof detection),
            agent_loss_text(agent_json_get(d, "eval_accuracy"), accuracy, sizeof accuracy),
            agent_loss_text(agent_json_get(d, "eval_auc"), auc, sizeof auc));
    print_stall("discriminator", json_object_get(d, "stall"), out);
    fprintf(out,
            "bytes per trained token: %.3f in batches; %.3f sent for batches (with held-out ones), "
            "%.3f for the protocol, %.3f in all on the sockets; "
            "gradients in fp16 would take %.1f\n",
            agent_json_get(q, "stream_bytes_per_token"),
            agent_json_get(q, "wan_payload_bytes_per_token"),
            agent_json_get(q, "wan_protocol_bytes_per_token"),
            agent_json_get(q, "wan_bytes_per_token"),
            agent_json_get(q, "fp16_gradient_bytes_per_token"));
}

static json_t *distill_quality(const struct agent_job *job, json_t *const *reports, int n) {
    json_t *clusters = json_object();
    double sent = 0, rows = 0, bytes = 0, vocab = 0, params = NAN, step_tokens;
    for (int i = 0; i < n; i++) {
        const json_t *q = json_object_get(reports[i], "quality");
        bool student = job->clusters[i].role == AGENT_ROLE_STUDENT;
        if (q && clusters)
            json_object_set(clusters, job->clusters[i].name, (json_t *)(uintptr_t)q);
        sent += fmax(0, agent_json_get(reports[i], "wan_sent_bytes"));
        rows += student ? fmax(0, agent_json_get(reports[i], "label_rows")) : 0;
        bytes += student ? fmax(0, agent_json_get(reports[i], "payload_bytes")) : 0;
        params = student ? agent_json_get(reports[i], "trainable_params") : params;
        vocab = fmax(vocab, agent_json_get(reports[i], "vocab"));
    }
    step_tokens = (double)job->batch * job->seq_len * job->accumulate;
    return json_pack("{s:o,s:o,s:o,s:o,s:o}", "clusters", clusters, "label_bytes_per_target_token",
                     agent_json_number(rows > 0 ? bytes / rows : NAN), "wan_bytes_per_target_token",
                     agent_json_number(rows > 0 ? sent / rows : NAN),
                     "fp16_logits_bytes_per_target_token",
                     agent_json_number(vocab > 0 ? 2 * vocab : NAN),
                     "fp16_gradient_bytes_per_token", agent_json_number(2 * params / step_tokens));
}

static void print_distill(const json_t *q, FILE *out) {
    const char *name;
    char loss[32], chrf[32];
    json_t *c;
    json_object_foreach(json_object_get(q, "clusters"), name, c) {
        double x = agent_json_get(c, "chrf");
        snprintf(chrf, sizeof chrf, isfinite(x) ? "%.2f" : "-", x);
        fprintf(
            out,
            "%-12s held-out loss %s nats per target token, chrF %s over %.0f pairs (beam %.0f)\n",
            name, agent_loss_text(agent_json_get(c, "eval_loss"), loss, sizeof loss), chrf,
            agent_json_get(c, "pairs"), agent_json_get(c, "beam"));
    }
    json_object_foreach(json_object_get(q, "clusters"), name,
                        c) if (isfinite(agent_json_get(c, "mapped_share")))
        fprintf(out, "%-12s %.1f %% of the positions could be mapped from its vocabulary\n", name,
                100 * agent_json_get(c, "mapped_share"));
    json_object_foreach(json_object_get(q, "clusters"), name, c)
        print_stall(name, json_object_get(c, "stall"), out);
    if (isfinite(agent_json_get(q, "label_bytes_per_target_token")))
        fprintf(out,
                "bytes per target token: %.2f in labels, %.2f on the sockets; all logits in fp16 "
                "would take %.0f\n",
                agent_json_get(q, "label_bytes_per_target_token"),
                agent_json_get(q, "wan_bytes_per_target_token"),
                agent_json_get(q, "fp16_logits_bytes_per_target_token"));
}

json_t *agent_side_quality(const struct agent_job *job, json_t *const *reports, int n) {
    return job->mode == AGENT_MODE_RTD       ? rtd_quality(job, reports)
           : job->mode == AGENT_MODE_DISTILL ? distill_quality(job, reports, n)
                                             : NULL;
}

void agent_side_print(const json_t *quality, FILE *out) {
    json_object_get(quality, "clusters") ? print_distill(quality, out) : print_rtd(quality, out);
}
