// SPDX-License-Identifier: Apache-2.0
#include "agent/train/rtd_summary.h"
#include "agent/job/json.h"
#include "agent/show/report.h"
#include "agent/train/worker_stream.h"

#include <math.h>

const json_t *agent_rtd_report_of(const struct agent_job *job, json_t *const *reports,
                                  enum agent_role role) {
    if (job->sync.scheme != AGENT_SCHEME_SYNCHRONOUS)
        return reports[agent_job_role(job, role)];
    return role == AGENT_ROLE_GENERATOR ? reports[0] : json_object_get(reports[0], "discriminator");
}

static double sum_of(const json_t *g, const json_t *d, const char *key) {
    return agent_json_get(g, key) + agent_json_get(d, key);
}

json_t *agent_rtd_summary(const struct agent_job *job, json_t *const *reports) {
    const json_t *g = agent_rtd_report_of(job, reports, AGENT_ROLE_GENERATOR),
                 *d = agent_rtd_report_of(job, reports, AGENT_ROLE_DISCRIMINATOR);
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

void agent_rtd_print(const json_t *q, FILE *out) {
    const json_t *g = json_object_get(q, "generator"), *d = json_object_get(q, "discriminator");
    char lm[32], detection[32], accuracy[32], auc[32];
    fprintf(out,
            "held out: masked LM loss %s; detection loss %s, accuracy %s, area under the ROC curve "
            "%s\n",
            agent_loss_text(agent_json_get(g, "eval_loss"), lm, sizeof lm),
            agent_loss_text(agent_json_get(d, "eval_loss"), detection, sizeof detection),
            agent_loss_text(agent_json_get(d, "eval_accuracy"), accuracy, sizeof accuracy),
            agent_loss_text(agent_json_get(d, "eval_auc"), auc, sizeof auc));
    agent_stall_print("discriminator", json_object_get(d, "stall"), out);
    fprintf(
        out,
        "bytes a trained token: %.3f in batches; %.3f sent for batches (with held-out ones), %.3f "
        "for the protocol, %.3f in all on the sockets; gradients in fp16 would take %.1f\n",
        agent_json_get(q, "stream_bytes_per_token"),
        agent_json_get(q, "wan_payload_bytes_per_token"),
        agent_json_get(q, "wan_protocol_bytes_per_token"), agent_json_get(q, "wan_bytes_per_token"),
        agent_json_get(q, "fp16_gradient_bytes_per_token"));
}
