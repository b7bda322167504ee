#include "agent/rtd_summary.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/worker_stream.h"

#include <math.h>
#include <string.h>

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static json_t *number_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

const json_t *agent_rtd_report_of(const struct agent_job *job, json_t *const *reports,
                                  enum agent_role role) {
    if (job->sync.scheme != AGENT_SCHEME_SYNCHRONOUS)
        return reports[agent_job_role(job, role)];
    return role == AGENT_ROLE_GENERATOR ? reports[0] : json_object_get(reports[0], "discriminator");
}

json_t *agent_rtd_summary(const struct agent_job *job, json_t *const *reports) {
    const json_t *g = agent_rtd_report_of(job, reports, AGENT_ROLE_GENERATOR),
                 *d = agent_rtd_report_of(job, reports, AGENT_ROLE_DISCRIMINATOR);
    json_t *gq = json_object_get(g, "quality"), *dq = json_object_get(d, "quality");
    bool both = job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    double tokens = number(d, "tokens"), step = (double)job->batch * job->seq_len * job->accumulate,
           wan = both ? 0 : number(g, "wan_sent_bytes") + number(d, "wan_sent_bytes");
    return json_pack("{s:O?,s:O?,s:o,s:o,s:o}", "generator", gq, "discriminator", dq,
                     "stream_bytes_per_token", number_or_null(number(dq, "batch_bytes_per_token")),
                     "wan_bytes_per_token", number_or_null(wan / tokens),
                     "fp16_gradient_bytes_per_token",
                     number_or_null(2 * number(d, "trainable_params") / step));
}

void agent_rtd_print(const json_t *q, FILE *out) {
    const json_t *g = json_object_get(q, "generator"), *d = json_object_get(q, "discriminator");
    fprintf(out,
            "held out: masked LM loss %.4f; detection loss %.4f, accuracy %.4f, area under the ROC "
            "curve %.4f\n",
            number(g, "eval_loss"), number(d, "eval_loss"), number(d, "eval_accuracy"),
            number(d, "eval_auc"));
    agent_stall_print("discriminator", json_object_get(d, "stall"), out);
    fprintf(out,
            "bytes a trained token: %.3f in batches, %.3f on the sockets; gradients in fp16 would "
            "take %.1f\n",
            number(q, "stream_bytes_per_token"), number(q, "wan_bytes_per_token"),
            number(q, "fp16_gradient_bytes_per_token"));
}

static enum neb_status copy(const char *from_dir, const char *from, const char *to_dir,
                            const char *to) {
    char a[NEB_PATH_MAX], b[NEB_PATH_MAX];
    struct neb_map map;
    NEB_TRY(neb_path(a, sizeof a, from_dir, from));
    NEB_TRY(neb_path(b, sizeof b, to_dir, to));
    NEB_TRY(neb_map_open(a, &map));
    enum neb_status st = neb_fs_write(b, map.p, map.len, 0644);
    neb_map_close(&map);
    return st;
}

enum neb_status agent_rtd_export(const struct agent_job *job, char (*dirs)[NEB_PATH_MAX],
                                 const char *out) {
    bool both = job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    int g = agent_job_role(job, AGENT_ROLE_GENERATOR),
        d = agent_job_role(job, AGENT_ROLE_DISCRIMINATOR);
    const char *corpus = job->clusters[0].corpus[0] ? job->clusters[0].corpus : job->corpus;
    char dir[NEB_PATH_MAX];
    NEB_TRY(neb_path(dir, sizeof dir, out, "checkpoint"));
    NEB_TRY(neb_fs_mkdirs(dir, 0755));
    NEB_TRY(copy(corpus, "tokenizer.model", dir, "tokenizer.model"));
    if (both)
        g = d = 0;
    if (dirs[g][0])
        NEB_TRY(copy(dirs[g], "model.ckpt", dir, "generator.ckpt"));
    if (dirs[d][0])
        return copy(dirs[d], both ? "discriminator.ckpt" : "model.ckpt", dir, "model.ckpt");
    neb_info("the discriminator is on cluster %s: jobs/ID/model.ckpt in its agent's home",
             job->clusters[d].name);
    return NEB_OK;
}
