// SPDX-License-Identifier: Apache-2.0
// The results of a run: summary, plots, models and exit status.
#include "agent/base/log.h"
#include "agent/cli/commands.h"
#include "agent/cli/pretrain_state.h"
#include "agent/job/json.h"
#include "agent/job/private.h"
#include "agent/show/export.h"
#include "agent/show/plots.h"
#include "agent/show/report.h"
#include "agent/train/side_summary.h"

#include <stdio.h>
#include <string.h>

// A count in the report of another site. A value that is no number, or too large, counts as 0: the
// cast would be undefined.
static uint64_t whole(const json_t *o, const char *key) {
    double x = agent_json_get(o, key);
    return x >= 0 && x < 0x1p62 ? (uint64_t)x : 0;
}

// The privacy of the sums that were read, by the cluster with the most of them.
static void make_privacy(const struct run *r, struct agent_summary *s) {
    if (!agent_private_noised(&r->job))
        return;
    for (int i = 0; i < r->expected; i++) {
        int64_t n = (int64_t)whole(r->reports[i], "releases");
        s->privacy.releases = n > s->privacy.releases ? n : s->privacy.releases;
    }
    s->privacy.epsilon = agent_private_epsilon(&r->job, s->privacy.releases, s->privacy.text);
    s->privacy.delta = (double)r->job.sync.dp.delta;
    s->privacy.clip = (double)r->job.sync.dp.clip;
    s->privacy.noise = (double)r->job.sync.dp.noise;
    s->privacy.colluders = agent_private_colluders(&r->job);
}

static void make_summary(const struct run *r, struct agent_summary *s) {
    memset(s, 0, sizeof *s);
    snprintf(s->job, sizeof s->job, "%s", r->job.name);
    bool distill = r->job.mode == AGENT_MODE_DISTILL;
    bool rtd = r->job.mode == AGENT_MODE_RTD,
         both = rtd && r->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
    snprintf(s->mode, sizeof s->mode, rtd ? "rtd" : distill ? "distill" : "replicas");
    s->wall_s = neb_seconds(neb_now() - r->start);
    for (int i = 0; i < (both ? 2 : r->expected); i++) {
        const json_t *p =
            both ? agent_side_report(&r->job, r->reports, r->job.clusters[i].role) : r->reports[i];
        if (!p && !both) // out of reach at a stop, or no longer a member
            continue;
        struct agent_cluster_summary *c = &s->clusters[s->n_clusters++];
        const char *digest = json_string_value(json_object_get(p, "params_digest"));
        snprintf(c->name, sizeof c->name, "%s", r->job.clusters[i].name);
        const char *device = json_string_value(json_object_get(p, "device"));
        if (device && !strncmp(device, "cuda", 4))
            snprintf(c->device, sizeof c->device, "%s", device);
        else
            snprintf(c->device, sizeof c->device, "cpu (%s%s, %d threads)", kern_cpu_isa(),
                     device && !strcmp(device, "cpu, bf16") ? ", bf16" : "",
                     (int)(whole(p, "threads") & 0xffff));
        if (r->job.clusters[i].launcher == AGENT_LAUNCHER_ATTACH)
            snprintf(c->device, sizeof c->device, "attached trainer");
        c->steps = (int64_t)whole(p, "steps");
        c->tokens = (int64_t)whole(p, "tokens");
        c->loss_first = agent_json_get(p, "loss_first");
        c->loss_last = agent_json_get(p, "loss_last");
        c->eval_loss = agent_json_get(p, "eval_loss");
        c->stall_s = agent_json_get(p, "stall_s");
        c->train_s = agent_json_get(p, "train_s");
        c->steps_left_out = (int64_t)whole(p, "steps_left_out");
        c->lost_steps = (int64_t)whole(p, "lost_steps");
        c->divergences = (int64_t)whole(p, "divergences");
        c->wan_sent_bytes = whole(p, "wan_sent_bytes");
        c->wan_recv_bytes = whole(p, "wan_recv_bytes");
        c->wan_payload_bytes = whole(p, "wan_payload_bytes");
        c->wan_protocol_bytes = whole(p, "wan_protocol_bytes");
        snprintf(c->params_digest, sizeof c->params_digest, "%s", digest ? digest : "");
        s->params = (int64_t)whole(p, "params");
        s->trainable_params = (int64_t)whole(p, "trainable_params");
        s->rounds =
            (int64_t)whole(p, "rounds") > s->rounds ? (int64_t)whole(p, "rounds") : s->rounds;
        s->payload_bytes += whole(p, "payload_bytes");
        s->payload_params += whole(p, "payload_params");
    }
}

// The job's folders in the agents' homes, if they are on this machine.
static enum neb_status job_dirs(const struct run *r, char (*dirs)[NEB_PATH_MAX]) {
    char jobs[NEB_PATH_MAX];
    if (!r->o.local && r->self >= 0) // only that of the asked agent
        memcpy(dirs[r->self], r->model_dir, sizeof dirs[r->self]);
    for (int i = 0; r->o.local && i < r->expected; i++) {
        NEB_TRY(neb_path(jobs, sizeof jobs, r->local.homes[i], "jobs"));
        NEB_TRY(neb_path(dirs[i], sizeof dirs[i], jobs, r->id));
    }
    return NEB_OK;
}

static enum neb_status export_models(const struct run *r) {
    char dirs[AGENT_CLUSTERS_MAX][NEB_PATH_MAX] = {{0}};
    NEB_TRY(job_dirs(r, dirs));
    return agent_export_models(&r->job, r->id, dirs, r->out);
}

// Errors about the settings of a cluster name it themselves.
static void say_error(const char *cluster, const char *error) {
    char named[AGENT_NAME_MAX + 16];
    int n = snprintf(named, sizeof named, "cluster %s: ", cluster);
    neb_log(NEB_LOG_ERROR, "%s%s", strncmp(error, named, (size_t)n) ? named : "", error);
}

static json_t *missing_names(const struct run *r) {
    json_t *names = mset_empty(r->missing) ? NULL : json_array();
    for (int i = 0; names && i < r->expected; i++)
        if (mset_has(r->missing, i))
            json_array_append_new(names, json_string(r->job.clusters[i].name));
    return names;
}

static int say_missing(const struct run *r) {
    for (int i = 0; i < r->expected; i++)
        if (mset_has(r->missing, i))
            neb_warn("%s has not reported, and its agent could not be reached for %d s: the "
                     "summary covers the others. It may still finish: the same command with "
                     "--resume --out %s follows the job again",
                     r->job.clusters[i].name, r->o.report_within_s, r->o.out);
    return AGENT_EXIT_MISSING;
}

int pretrain_finish(struct run *r) {
    char dir[NEB_PATH_MAX];
    struct agent_summary s;
    int failed = 0, stopped = 0, missing = 0, left = 0;
    for (int i = 0; i < r->expected; i++) {
        const char *error = json_string_value(json_object_get(r->reports[i], "error"));
        if (error)
            say_error(r->job.clusters[i].name, error);
        failed += error != NULL;
        stopped += json_is_true(json_object_get(r->reports[i], "stopped"));
        missing += !r->reports[i] && !mset_has(r->gone, i);
        left += r->reports[i] != NULL;
    }
    r->over = failed && !missing;
    if (r->lines_lost)
        neb_warn("%llu lines of metrics.jsonl could not be written",
                 (unsigned long long)r->lines_lost);
    if (failed)
        return AGENT_EXIT_FAILED;
    make_summary(r, &s);
    s.missing = r->missing_names = missing_names(r);
    make_privacy(r, &s);
    if (left == r->expected)
        s.quality = r->quality = agent_side_quality(&r->job, r->reports, r->expected);
    if (agent_summary_write(&s, r->out) != NEB_OK || agent_plots_make(r->out) != NEB_OK)
        return AGENT_EXIT_FAILED;
    if (!r->o.common.json && left)
        agent_summary_print(&s, stdout);
    else if (r->o.common.json && agent_summary_print_json(&s, stdout) != NEB_OK)
        return AGENT_EXIT_FAILED;
    if (!r->o.common.json && s.quality && !stopped)
        agent_side_print(s.quality, stdout);
    if (r->ends[0] && (stopped || missing || !left)) {
        neb_log(
            NEB_LOG_ERROR,
            "the agent ended the job after a checkpoint: %s; when the list has enough members, "
            "--resume --out %s continues it. A new job can start from %s/checkpoint (init_from)",
            r->ends, r->o.out, r->model_dir);
        return AGENT_EXIT_FAILED;
    }
    if (stopped || (missing && mset_empty(r->missing))) {
        if (!r->o.common.json) {
            printf("stopped after a checkpoint; continue with --resume --out %s\n", r->o.out);
            if (neb_path(dir, sizeof dir, r->model_dir, "checkpoint") == NEB_OK &&
                neb_fs_exists(dir)) // a witness has none
                printf("the checkpoint is in %s\n", dir);
        }
        return AGENT_EXIT_INTERRUPTED;
    }
    bool same = true;
    for (int i = 1; i < s.n_clusters && r->job.mode == AGENT_MODE_REPLICAS &&
                    r->job.sync.scheme == AGENT_SCHEME_FEDERATED;
         i++)
        same = same && !strcmp(s.clusters[i].params_digest, s.clusters[0].params_digest);
    if (!same) {
        neb_log(NEB_LOG_ERROR, "the clusters' parameters differ at the end (digests above): the "
                               "result cannot be trusted");
        return AGENT_EXIT_FAILED;
    }
    if (export_models(r) != NEB_OK)
        return AGENT_EXIT_FAILED;
    return mset_empty(r->missing) ? AGENT_EXIT_OK : say_missing(r);
}

int pretrain_detached(const struct run *r) {
    const char *option = r->o.common.home ? " --home " : "",
               *home = r->o.common.home ? r->o.common.home : "";
    if (r->stop_sent)
        neb_info("detached while the job stops after a checkpoint; the same command with --resume "
                 "--out %s continues it",
                 r->o.out);
    else
        neb_info("detached: the job continues at its agents; the same command with --resume --out "
                 "%s follows it again, nebula stop %s%s%s stops it",
                 r->o.out, r->id, option, home);
    return AGENT_EXIT_INTERRUPTED;
}
