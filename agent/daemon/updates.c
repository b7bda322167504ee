// SPDX-License-Identifier: Apache-2.0
// What a worker sends about rounds: the shape of its updates, the updates, which round it waits
// for, and what its checkpoints hold.
#include "agent/daemon/updates.h"
#include "agent/base/bytes.h"
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/daemon/state.h"
#include "agent/daemon/sums.h"

#include <stdlib.h>
#include <string.h>

bool agent_shape_read(const json_t *said, uint32_t n, struct agent_update_shape *out) {
    const json_t *list = json_object_get(said, "fragments");
    json_int_t all = json_integer_value(json_object_get(said, "elements"));
    uint64_t left = all > 0 ? (uint64_t)all : 0;
    *out = (struct agent_update_shape){.elements = left, .n = n};
    bool good = left > 0 && n <= INTER_FRAGMENTS_MAX && json_array_size(list) == n;
    for (uint32_t i = 0; good && i < n; i++) {
        const json_t *f = json_array_get(list, i), *elements = json_object_get(f, "elements");
        const char *hex = json_string_value(json_object_get(f, "sha"));
        json_int_t k = json_integer_value(elements);
        good = json_is_integer(elements) && k >= 0 && (uint64_t)k <= left && hex &&
               neb_unhex(hex, out->fragments[i].sha, INTER_SHA_BYTES);
        if (good)
            left -= out->fragments[i].elements = (uint64_t)k;
    }
    return good;
}

static void apply(struct inter_service *s, const struct agent_jobrun *j,
                  const struct agent_update_shape *x) {
    enum inter_counts counts =
        j->job.sync.row_counts == AGENT_ROWS_COARSE ? INTER_COUNTS_COARSE : INTER_COUNTS_EXACT;
    // an attached trainer counts rows separately from the tokens of its steps
    for (int k = 0; k < j->job.n_clusters; k++)
        if (j->job.clusters[k].launcher == AGENT_LAUNCHER_ATTACH)
            counts = INTER_COUNTS_FOREIGN;
    inter_service_bound(s, j->id, x->elements, counts);
    for (uint32_t i = 0; i < x->n; i++)
        if (inter_service_shape(s, j->id, i, x->fragments[i].elements, x->fragments[i].sha) !=
            NEB_OK) {
            neb_warn("the shape of fragment %u of job %s is unknown: no update is judged", i,
                     j->job.name);
            return;
        }
    inter_service_job_judges(s, j->id);
}

void daemon_on_shape(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    const json_t *said = m->head;
    char path[NEB_PATH_MAX];
    struct agent_update_shape x;
    if (!agent_shape_read(said, (uint32_t)agent_job_fragments(&j->job), &x)) {
        neb_warn("the worker of job %s sent a malformed shape of its updates: no update is judged",
                 j->job.name);
        return;
    }
    json_t *kept = json_pack("{s:O,s:O}", "elements", json_object_get(said, "elements"),
                             "fragments", json_object_get(said, "fragments"));
    char *text = kept ? json_dumps(kept, JSON_COMPACT) : NULL;
    if (!text || neb_path(path, sizeof path, j->dir, "shape.json") != NEB_OK ||
        neb_fs_write(path, text, strlen(text), 0600) != NEB_OK)
        neb_warn("the shape of job %s could not be stored; after a restart it is unknown until the "
                 "worker is back",
                 j->job.name);
    free(text);
    json_decref(kept);
    if (j->ranks && m->n_parts == 1 &&
        agent_ranks_owners(j->ranks, m->parts[0].p, m->parts[0].len, x.elements) != NEB_OK)
        daemon_report_fault(d, j, "the trainer sent malformed owners of its units");
    apply(d->service, j, &x);
}

void daemon_recall_shape(struct daemon *d, const struct agent_jobrun *j) {
    char path[NEB_PATH_MAX];
    struct agent_update_shape x;
    if (neb_path(path, sizeof path, j->dir, "shape.json") != NEB_OK || !neb_fs_exists(path))
        return;
    json_t *said = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    if (agent_shape_read(said, (uint32_t)agent_job_fragments(&j->job), &x))
        apply(d->service, j, &x);
    else
        neb_warn("%s is damaged; the shape is unknown until the worker is back", path);
    json_decref(said);
}

static uint32_t clamp_u32(double x) {
    return x > 0 ? x < (double)UINT32_MAX ? (uint32_t)x : UINT32_MAX : 0;
}

// Combines the worker's report (step time, error, codec) with the paths to the members that take
// its updates: the slowest path counts.
static void measure(struct inter_service *s, const struct agent_jobrun *j, const json_t *worker,
                    struct inter_measure *out) {
    json_int_t codec = json_integer_value(json_object_get(worker, "codec"));
    double error = json_number_value(json_object_get(worker, "error"));
    *out = (struct inter_measure){
        .step_us = clamp_u32((double)json_integer_value(json_object_get(worker, "step_us"))),
        .error = error >= 0 && error <= 1e6 ? (float)error : 0,
        .codec = codec > 0 && codec <= CMP_LEVELS_MAX && cmp_level((int)codec) ? (uint8_t)codec
                                                                               : CMP_LEVEL_JOB};
    double slowest = 0;
    for (int k = 0; k < j->job.n_clusters; k++) {
        struct inter_peer_stats p;
        if (!agent_job_has_peer(j, k) || j->job.clusters[k].witness ||
            inter_service_stats(s, j->peers[k], &p) != NEB_OK || !(p.path.goodput_bps > 0))
            continue;
        // All members take the update over one uplink; the estimate of each path shows its share of
        // it.
        if (slowest > 0 && p.path.goodput_bps >= slowest)
            continue;
        slowest = p.path.goodput_bps;
        out->goodput_kbps = clamp_u32(slowest / 1e3);
        out->full = p.path.full;
        // A ping may wait behind bulk data, and a chunk needs time on the line: the smaller value
        // is closer to the distance.
        neb_ns rtt = p.link.rtt && p.link.rtt < p.path.rtt ? p.link.rtt : p.path.rtt;
        out->rtt_us = clamp_u32(neb_seconds(rtt) * 1e6);
    }
}

// The policy admitted the job for larger updates. A cluster that continues from a snapshot, or
// leaves out steps, may have fewer tokens. An update without tokens is allowed: it contains only
// what others had before.
static bool too_few_tokens(struct daemon *d, struct agent_jobrun *j, uint64_t tokens) {
    char text[256];
    if (!tokens || (double)tokens >= j->terms.update_tokens)
        return false;
    snprintf(
        text, sizeof text,
        "an update would rest on %llu tokens, but the policy of this site requires %.0f: it is not "
        "sent, and the job stops. nebula resume continues the job, including what the update holds",
        (unsigned long long)tokens, j->terms.update_tokens);
    if (j->state == AGENT_JOB_RUNNING)
        daemon_job_give_up(d, j, text);
    return true;
}

void daemon_on_update(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    struct inter_manifest mf = {
        .tokens = (uint64_t)agent_ipc_int(m, "tokens", 0),
        .step = (uint64_t)agent_ipc_int(m, "step", 0),
        .steps = (uint32_t)agent_ipc_int(m, "steps", 0),
        .missed = (uint32_t)agent_ipc_int(m, "missed", 0),
        .flags = json_is_true(json_object_get(m->head, "final")) ? INTER_FINAL : 0};
    uint8_t digest[16];
    measure(d->service, j, json_object_get(m->head, "measure"), &mf.measure);
    if (m->n_parts != 1 || !neb_unhex(agent_ipc_str(m, "digest", ""), digest, sizeof digest)) {
        neb_warn("a malformed update from a worker was dropped");
        return;
    }
    struct neb_rd r = neb_rd_make(digest, sizeof digest);
    mf.digest[0] = neb_rd_u64(&r);
    mf.digest[1] = neb_rd_u64(&r);
    memcpy(mf.key.job, j->id, sizeof mf.key.job);
    mf.key.round = (uint32_t)agent_ipc_int(m, "round", 0);
    mf.key.fragment = (uint32_t)agent_ipc_int(m, "fragment", 0);
    mf.key.member = (uint8_t)j->self;
    mf.key.attempt = (uint32_t)agent_ipc_int(m, "again", 0);
    if (mf.key.fragment >= (uint32_t)agent_job_fragments(&j->job) || !j->federated) {
        neb_warn("an update for fragment %u of job %s was dropped", mf.key.fragment, j->job.name);
        return;
    }
    if (too_few_tokens(d, j, mf.tokens) ||
        daemon_ledger_behind(d, j, mf.key.fragment, mf.key.round))
        return;
    daemon_note_step(j, (int64_t)mf.step);
    j->rounds.wants[mf.key.fragment] = mf.key.round + 1;
    enum neb_status st = inter_service_submit(d->service, &mf, m->parts[0].p, m->parts[0].len);
    if (st == NEB_ERR_NOT_FOUND) {
        daemon_commit_gone(d, j, mf.key.fragment, mf.key.round);
    } else if (st != NEB_OK) {
        char text[NEB_PATH_MAX + 1024], why[1024];
        neb_last_error(why, sizeof why);
        snprintf(text, sizeof text, "update of round %u could not be stored in %.400s: %s",
                 mf.key.round, d->c->home, why);
        daemon_job_fail(d, j, text);
    }
}

// The worker has merged a round. Is the next one committed already?
void daemon_on_ready(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    int64_t f = agent_ipc_int(m, "fragment", -1), round = agent_ipc_int(m, "round", -1);
    if (!j->federated || f < 0 || f >= agent_job_fragments(&j->job) || round < 0)
        return;
    if (daemon_ledger_behind(d, j, (uint32_t)f, (uint32_t)round))
        return;
    j->rounds.wants[f] = (uint32_t)round + 1;
    enum neb_status st = inter_service_deliver(d->service, j->id, (uint32_t)f, (uint32_t)round);
    if (st == NEB_ERR_NOT_FOUND)
        daemon_commit_gone(d, j, (uint32_t)f, (uint32_t)round);
    else if (st != NEB_OK)
        neb_warn("the commit of round %lld could not be read", (long long)round);
}

// Notes what the worker's newest checkpoint holds, for --blobs-max. While a snapshot is given, its
// checkpoint counts instead: the member that takes it needs the updates since then.
static void note_saved(struct daemon *d, struct agent_jobrun *j, const json_t *saved) {
    uint32_t rounds[INTER_FRAGMENTS_MAX], n = (uint32_t)agent_job_fragments(&j->job);
    if (!j->federated || json_array_size(saved) != n || d->snapshots_given)
        return;
    for (uint32_t f = 0; f < n; f++) {
        const json_t *r = json_array_get(saved, f);
        if (!json_is_integer(r) || json_integer_value(r) < 0)
            return;
        rounds[f] = (uint32_t)json_integer_value(r);
    }
    if (inter_ledger_saved(inter_service_ledger(d->service), j->id, rounds, n) != NEB_OK)
        neb_warn("job %s: the ledger cannot store what its checkpoint holds", j->job.name);
}

void daemon_on_checkpoint(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *m) {
    json_t *rounds = json_object_get(m->head, "rounds"), *r;
    size_t f;
    if (j->linked && j->state == AGENT_JOB_RUNNING)
        daemon_job_save(d, j); // stores the byte counts, in case the agent is killed
    note_saved(d, j, json_object_get(m->head, "saved"));
    json_array_foreach(rounds, f, r) {
        if (!j->rounds.updates_stay && j->federated && json_is_integer(r) &&
            f < (size_t)agent_job_fragments(&j->job) &&
            inter_service_prune(d->service, j->id, (uint32_t)f, (uint32_t)json_integer_value(r)) !=
                NEB_OK)
            neb_warn("old updates of job %s could not be removed", j->job.name);
        if (j->sums && json_is_integer(r))
            agent_sums_prune(j->sums, (uint32_t)f, (uint32_t)json_integer_value(r));
    }
}
