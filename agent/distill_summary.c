#include "agent/distill_summary.h"
#include "agent/base/log.h"
#include "agent/worker_stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum neb_status absolute(char *path, size_t cap, const char *what) {
    char *full = path[0] ? realpath(path, NULL) : NULL;
    if (!path[0])
        return NEB_OK;
    if (!full)
        return neb_fail_errno("%s: cannot find %s", what, path);
    bool fits = strlen(full) < cap;
    if (fits)
        memcpy(path, full, strlen(full) + 1);
    free(full);
    return fits ? NEB_OK : neb_fail(NEB_ERR_LIMIT, "%s: path too long", what);
}

enum neb_status agent_distill_paths(struct agent_job *job) {
    NEB_TRY(absolute(job->distill.teacher, sizeof job->distill.teacher, "distill.teacher.init"));
    if (!job->distill.cache[0])
        return NEB_OK;
    NEB_TRY(neb_fs_mkdirs(job->distill.cache, 0755));
    return absolute(job->distill.cache, sizeof job->distill.cache, "distill.cache");
}

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}
static json_t *number_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *agent_distill_summary(const struct agent_job *job, json_t *const *reports, int n) {
    json_t *clusters = json_object();
    double sent = 0, rows = 0, bytes = 0, vocab = 0, params = NAN, step_tokens;
    for (int i = 0; i < n; i++) {
        const json_t *q = json_object_get(reports[i], "quality");
        bool student = job->clusters[i].role == AGENT_ROLE_STUDENT;
        if (q && clusters)
            json_object_set(clusters, job->clusters[i].name, (json_t *)(uintptr_t)q);
        sent += fmax(0, number(reports[i], "wan_sent_bytes"));
        rows += student ? fmax(0, number(reports[i], "label_rows")) : 0;
        bytes += student ? fmax(0, number(reports[i], "payload_bytes")) : 0;
        params = student ? number(reports[i], "trainable_params") : params;
        vocab = fmax(vocab, number(reports[i], "vocab"));
    }
    step_tokens = (double)job->batch * job->seq_len * job->accumulate;
    return json_pack("{s:o,s:o,s:o,s:o,s:o}", "clusters", clusters, "label_bytes_per_target_token",
                     number_or_null(rows > 0 ? bytes / rows : NAN), "wan_bytes_per_target_token",
                     number_or_null(rows > 0 ? sent / rows : NAN),
                     "fp16_logits_bytes_per_target_token",
                     number_or_null(vocab > 0 ? 2 * vocab : NAN), "fp16_gradient_bytes_per_token",
                     number_or_null(2 * params / step_tokens));
}

void agent_distill_print(const json_t *q, FILE *out) {
    const char *name;
    json_t *c;
    json_object_foreach(json_object_get(q, "clusters"), name, c) fprintf(
        out,
        "%-12s held-out loss %.4f nats a target token, chrF %.2f over %.0f pairs (beam %.0f)\n",
        name, number(c, "eval_loss"), number(c, "chrf"), number(c, "pairs"), number(c, "beam"));
    json_object_foreach(json_object_get(q, "clusters"), name, c)
        agent_stall_print(name, json_object_get(c, "stall"), out);
    if (isfinite(number(q, "label_bytes_per_target_token")))
        fprintf(out,
                "bytes a target token: %.2f in labels, %.2f on the sockets; all logits in fp16 "
                "would take %.0f\n",
                number(q, "label_bytes_per_target_token"), number(q, "wan_bytes_per_target_token"),
                number(q, "fp16_logits_bytes_per_target_token"));
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

enum neb_status agent_distill_export(const struct agent_job *job, char (*dirs)[NEB_PATH_MAX],
                                     const char *out) {
    const char *corpus = job->clusters[0].corpus[0] ? job->clusters[0].corpus : job->corpus;
    char dir[NEB_PATH_MAX], name[AGENT_NAME_MAX + 8];
    bool first = true;
    NEB_TRY(neb_path(dir, sizeof dir, out, "checkpoint"));
    NEB_TRY(neb_fs_mkdirs(dir, 0755));
    NEB_TRY(copy(corpus, "tokenizer.model", dir, "tokenizer.model"));
    for (int i = 0; i < job->n_clusters; i++) {
        bool teacher = job->clusters[i].role == AGENT_ROLE_TEACHER;
        snprintf(name, sizeof name, "%s.ckpt", job->clusters[i].name);
        if (!dirs[i][0] || (teacher && !job->distill.learn)) {
            if (!teacher)
                neb_info("student %s: jobs/ID/model.ckpt in its agent's home",
                         job->clusters[i].name);
            continue;
        }
        if (teacher && job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS)
            NEB_TRY(copy(dirs[0], "teacher.ckpt", dir, "teacher.ckpt"));
        else
            NEB_TRY(copy(dirs[i], "model.ckpt", dir,
                         teacher ? "teacher.ckpt"
                         : first ? "model.ckpt"
                                 : name));
        first = first && teacher;
    }
    return NEB_OK;
}
