// SPDX-License-Identifier: Apache-2.0
#include "agent/train/distill_summary.h"
#include "agent/job/json.h"
#include "agent/show/report.h"
#include "agent/train/worker_stream.h"

#include <math.h>

json_t *agent_distill_summary(const struct agent_job *job, json_t *const *reports, int n) {
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

void agent_distill_print(const json_t *q, FILE *out) {
    const char *name;
    char loss[32], chrf[32];
    json_t *c;
    json_object_foreach(json_object_get(q, "clusters"), name, c) {
        double x = agent_json_get(c, "chrf");
        snprintf(chrf, sizeof chrf, isfinite(x) ? "%.2f" : "-", x);
        fprintf(out,
                "%-12s held-out loss %s nats a target token, chrF %s over %.0f pairs (beam %.0f)\n",
                name, agent_loss_text(agent_json_get(c, "eval_loss"), loss, sizeof loss), chrf,
                agent_json_get(c, "pairs"), agent_json_get(c, "beam"));
    }
    json_object_foreach(json_object_get(q, "clusters"), name, c)
        agent_stall_print(name, json_object_get(c, "stall"), out);
    if (isfinite(agent_json_get(q, "label_bytes_per_target_token")))
        fprintf(out,
                "bytes a target token: %.2f in labels, %.2f on the sockets; all logits in fp16 "
                "would take %.0f\n",
                agent_json_get(q, "label_bytes_per_target_token"),
                agent_json_get(q, "wan_bytes_per_target_token"),
                agent_json_get(q, "fp16_logits_bytes_per_target_token"));
}
