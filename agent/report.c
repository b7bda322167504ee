#include "agent/report.h"
#include "agent/progress.h"

#include <stdlib.h>
#include <string.h>

static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

json_t *agent_summary_make(const struct agent_job *job, json_t *const *reports, int n, double wall_s) {
    json_t *clusters = json_array();
    double sent = 0, payload = 0, params = 0, rounds = 0;
    for (int i = 0; i < n; i++) {
        sent += number(reports[i], "wan_sent_bytes");
        payload += number(reports[i], "payload_bytes");
        params += number(reports[i], "payload_params");
        rounds = number(reports[i], "rounds") > rounds ? number(reports[i], "rounds") : rounds;
        json_array_append(clusters, reports[i]);
    }
    double steps = number(reports[0], "steps"), trainable = number(reports[0], "trainable_params");
    static const char *const schemes[] = {"federated", "synchronous", "none"};
    return json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:f,s:o,s:o,s:o}", "job", job->name, "mode", "replicas", "scheme", schemes[job->sync.scheme],
                     "params", (json_int_t)number(reports[0], "params"), "trainable_params", (json_int_t)trainable, "rounds", (json_int_t)rounds,
                     "wall_s", wall_s, "clusters", clusters, "wire_bits_per_param", params > 0 ? json_real(8 * payload / params) : json_null(),
                     "reduction_vs_sync_fp32", sent > 0 ? json_real(steps * trainable * 4 / (sent / n)) : json_null());
}

enum neb_status agent_summary_write(const char *dir, const json_t *summary) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, dir, "summary.json"));
    char *text = json_dumps(summary, JSON_INDENT(1));
    if (!text)
        return neb_fail(NEB_ERR_NOMEM, "out of memory writing %s", path);
    enum neb_status st = neb_fs_write(path, text, strlen(text), 0644);
    free(text);
    return st;
}

void agent_summary_print(FILE *out, const json_t *summary) {
    json_t *clusters = json_object_get(summary, "clusters"), *c;
    char sent[32], recv[32];
    size_t i;
    fprintf(out, "\n%-12s %8s %10s %9s %9s %9s %8s %10s %10s  %s\n", "cluster", "steps", "tokens", "first", "last", "held-out", "stall",
            "WAN sent", "received", "parameters");
    json_array_foreach(clusters, i, c) {
        double train = number(c, "train_s") + number(c, "stall_s") + number(c, "sync_s");
        const char *name = json_string_value(json_object_get(c, "name")), *digest = json_string_value(json_object_get(c, "params_digest"));
        fprintf(out, "%-12s %8.0f %10.0f %9.3f %9.3f %9.3f %7.1f%% %10s %10s  %.16s\n", name ? name : "?", number(c, "steps"), number(c, "tokens"),
                number(c, "loss_first"), number(c, "loss_last"), number(c, "eval_loss"), train > 0 ? 100 * number(c, "stall_s") / train : 0,
                agent_human_bytes(number(c, "wan_sent_bytes"), sent, sizeof sent), agent_human_bytes(number(c, "wan_recv_bytes"), recv, sizeof recv),
                digest ? digest : "-");
    }
    fprintf(out, "%.0f rounds in %.1f s", number(summary, "rounds"), number(summary, "wall_s"));
    if (json_is_number(json_object_get(summary, "reduction_vs_sync_fp32")))
        fprintf(out, "; %.2f bits a parameter and exchange; %.0f times fewer bytes than synchronous fp32", number(summary, "wire_bits_per_param"),
                number(summary, "reduction_vs_sync_fp32"));
    fputc('\n', out);
}
