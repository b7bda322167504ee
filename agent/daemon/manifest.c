// SPDX-License-Identifier: Apache-2.0
// The tensors of attached trainers. Each trainer sends their list before the first step. The agent
// keeps the list, and compares it with the list of the first cluster that has an attached trainer
// (tensor_list.h). No trainer begins before all lists are known to be equal. With `init: {from:
// CLUSTER}` that cluster then writes a checkpoint of step 0. An agent whose trainer begins with
// other values fetches it as a snapshot before it lets the trainer begin.
//
//     trainer          agent here            agent of the first such cluster that is a member
//        │ manifest        │ questions              │
//        │ ──────────────► │ ─────────────────────► │ marks this cluster
//        │ ok, or the      │ ◄───────────────────── │ begins when all have
//        │ difference      │ answers                │ the same list
//                          │                  agent of the cluster in `init`
//                          │ digest of the values   │
//                          │ ─────────────────────► │
//                          │ ◄───────────────────── │ equal: nothing is fetched
//
// Files: jobs/ID/tensors.json is the list; tensors.agreed names the clusters that have the same
// one.
#include "agent/base/fs.h"
#include "agent/base/log.h"
#include "agent/daemon/snapshot.h"
#include "agent/daemon/state.h"
#include "agent/job/sides.h"

#include <stdlib.h>
#include <string.h>

static const neb_ns ask_every = 2 * NEB_S, ask_again = 10 * NEB_S;
// A question can cost a digest of the whole list.
static const double asks_burst = 40, asks_a_second = 2;

static const char *name_of(const struct agent_jobrun *j, int k) { return j->job.clusters[k].name; }

static struct member_set away_from(const struct daemon *d, const struct agent_jobrun *j) {
    return mset_union(daemon_gone_clusters(d, j), daemon_removed_clusters(d, j));
}

// True if cluster k trains with a loop of its own, which has a list. The built-in trainer needs
// none: its tensors are those of the job.
static bool lists(const struct agent_jobrun *j, int k) {
    return k >= 0 && j->job.clusters[k].launcher == AGENT_LAUNCHER_ATTACH &&
           !agent_job_only_votes(&j->job, k);
}

// The cluster with whose list all others compare theirs: the first one that is still a member.
static int reference(const struct daemon *d, const struct agent_jobrun *j) {
    struct member_set away = away_from(d, j);
    int k = 0;
    while (k < j->self && (mset_has(away, k) || !lists(j, k)))
        k++;
    return k;
}

static bool is_settled(const struct daemon *d, const struct agent_jobrun *j) {
    struct member_set away = away_from(d, j);
    bool first = reference(d, j) == j->self, before = false;
    if (!j->tensors.list.own)
        return false;
    if (!j->federated)
        return true;
    for (int k = 0; k < agent_job_training(&j->job); k++) {
        bool agreed = mset_has(j->tensors.agreed, k);
        before = before || (agreed && k < j->self); // a reference, now or earlier
        if (first && k != j->self && !agreed && !mset_has(away, k) && lists(j, k))
            return false;
    }
    return first || before;
}

// ---- first parameters --------------------------------------------------------------------------

static bool has(const struct agent_jobrun *j, const char *file) {
    char path[NEB_PATH_MAX];
    return neb_path(path, sizeof path, j->dir, file) == NEB_OK && neb_fs_exists(path);
}

// True if the trainer here takes its first parameters from another cluster.
static bool starts_elsewhere(const struct agent_jobrun *j) {
    char dir[NEB_PATH_MAX];
    int from = agent_job_init_cluster(&j->job);
    bool any = false;
    return j->job.attached && j->federated && from >= 0 && from != j->self && !j->tensors.equal &&
           !agent_job_only_votes(&j->job, j->self) &&
           neb_path(dir, sizeof dir, j->dir, "checkpoint") == NEB_OK &&
           intra_ckpt_any(dir, &any) == NEB_OK && !any;
}

static bool waits_for_start(const struct daemon *d, const struct agent_jobrun *j) {
    return j->state == AGENT_JOB_RUNNING && !j->tensors.told && is_settled(d, j) &&
           starts_elsewhere(j) && !has(j, "snapshot.bin");
}

// Sets the bound of snapshots: one with more parameters than the list has is refused.
static void bound(struct daemon *d, const struct agent_jobrun *j) {
    struct exchange_group_size sizes[AGENT_GROUPS_MAX + 1];
    uint64_t elements = 0;
    int32_t n = agent_job_groups(&j->job);
    if (exchange_manifest_sizes(j->tensors.list.own, sizes, n) != NEB_OK)
        return;
    for (int32_t g = 0; g < n; g++)
        elements += agent_job_group_fragments(&j->job, g) ? sizes[g].parameters : 0;
    inter_service_bound(d->service, j->id, elements, INTER_COUNTS_FOREIGN);
}

// Asks whether the trainer of that cluster begins with the same values.
static void ask_values(struct daemon *d, const struct agent_jobrun *j, uint32_t peer) {
    json_t *q = json_pack("{s:s,s:s}", "id", j->hex, "values", j->tensors.values);
    if (q)
        (void)daemon_post(d, peer, AGENT_MSG_TENSORS, q, false);
}

// Before the first round only the cluster that the job names has the state. Later any cluster has
// it.
static void fetch_start(struct daemon *d, struct agent_jobrun *j) {
    struct inter_snapshot_progress p;
    struct inter_record r;
    char path[NEB_PATH_MAX];
    uint32_t peer = j->peers[agent_job_init_cluster(&j->job)];
    if (inter_ledger_last_commit(inter_service_ledger(d->service), j->id, 0, &r) == NEB_OK) {
        daemon_ask_snapshot(d, j);
        return;
    }
    if (peer < NEB_MEMBERS_MAX && d->up[peer] && j->tensors.values[0] && !j->tensors.unequal) {
        ask_values(d, j, peer);
        return;
    }
    if (peer >= NEB_MEMBERS_MAX || !d->up[peer] ||
        inter_service_snapshot_progress(d->service, j->id, &p) ||
        neb_path(path, sizeof path, j->dir, "snapshot") != NEB_OK)
        return;
    bound(d, j);
    if (inter_service_snapshot_fetch(d->service, j->id, path, &peer, 1, false) != NEB_OK)
        neb_warn("job %s: the first parameters cannot be fetched now", j->job.name);
}

// True if no cluster that is still a member has the first parameters.
static bool start_is_lost(const struct daemon *d, const struct agent_jobrun *j) {
    return daemon_start_missing(d, j) && mset_has(away_from(d, j), agent_job_init_cluster(&j->job));
}

static void tell(struct daemon *d, struct agent_jobrun *j, bool ok, const char *text) {
    if (j->worker.client.len)
        daemon_send(d, &j->worker.client,
                    json_pack("{s:s, s:b, s:s, s:b}", "ev", "manifest", "ok", ok, "text", text,
                              "snapshot", ok && starts_elsewhere(j)));
}

bool daemon_start_missing(const struct daemon *d, const struct agent_jobrun *j) {
    struct inter_record r;
    return waits_for_start(d, j) && inter_ledger_last_commit(inter_service_ledger(d->service),
                                                             j->id, 0, &r) == NEB_ERR_NOT_FOUND;
}

bool daemon_start_arrived(struct daemon *d, struct agent_jobrun *j) {
    struct inter_snapshot *s = NULL;
    bool first = true;
    if (!waits_for_start(d, j) ||
        agent_snapshot_taken(sec_vault_of(d->vault), j->dir, &s) != NEB_OK)
        return false;
    for (uint32_t f = 0; f < s->fragments; f++)
        first = first && !s->parts[f].round;
    free(s);
    if (!first) // not the first state of the job: the others must confirm it
        return false;
    if (agent_snapshot_confirm(j->dir) != NEB_OK)
        daemon_report_fault(d, j, "the first parameters could not be stored; trying again");
    else
        daemon_note(d, j, "the first parameters are here");
    agent_timer_clear(&j->timers, AGENT_TIMER_BEHIND);
    daemon_tensors_look(d, j);
    return true;
}

// ---- files -------------------------------------------------------------------------------------

static void store(const struct agent_jobrun *j, const char *name, const void *p, size_t n) {
    char path[NEB_PATH_MAX];
    if (neb_path(path, sizeof path, j->dir, name) != NEB_OK ||
        neb_fs_write(path, p, n, 0600) != NEB_OK)
        neb_warn("job %s: %s could not be stored; after a restart of the agent its trainer must "
                 "send it again",
                 j->job.name, name);
}

static void store_agreed(const struct agent_jobrun *j) {
    json_t *list = json_array();
    for (int k = 0; k < j->job.n_clusters; k++)
        if (mset_has(j->tensors.agreed, k))
            json_array_append_new(list, json_string(name_of(j, k)));
    char hex[2 * NEB_SHA256_BYTES + 1];
    neb_hex(j->tensors.list.sha, NEB_SHA256_BYTES, hex);
    json_t *o = json_pack("{s:s, s:o}", "sha256", hex, "clusters", list);
    char *text = json_dumps(o, JSON_COMPACT);
    if (text)
        store(j, "tensors.agreed", text, strlen(text));
    free(text);
    json_decref(o);
}

static void recall_agreed(struct agent_jobrun *j) {
    char path[NEB_PATH_MAX], hex[2 * NEB_SHA256_BYTES + 1];
    const json_t *name;
    size_t i;
    if (neb_path(path, sizeof path, j->dir, "tensors.agreed") != NEB_OK || !neb_fs_exists(path))
        return;
    json_t *o = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    const char *sha = json_string_value(json_object_get(o, "sha256"));
    neb_hex(j->tensors.list.sha, NEB_SHA256_BYTES, hex);
    json_array_foreach(json_object_get(o, "clusters"), i, name) {
        for (int k = 0; sha && !strcmp(sha, hex) && k < j->job.n_clusters; k++)
            if (json_is_string(name) && !strcmp(json_string_value(name), name_of(j, k)))
                mset_add(&j->tensors.agreed, k);
    }
    json_decref(o);
}

void daemon_recall_tensors(struct agent_jobrun *j) {
    char path[NEB_PATH_MAX];
    struct neb_buf text = {0};
    struct exchange_manifest *m = NULL;
    if (j->tensors.list.own || neb_path(path, sizeof path, j->dir, "tensors.json") != NEB_OK ||
        !neb_fs_exists(path))
        return;
    if (neb_fs_read(path, EXCHANGE_MANIFEST_MAX, &text) != NEB_OK ||
        exchange_manifest_read(text.p, text.len, &m) != NEB_OK ||
        agent_tensors_take(&j->tensors.list, m) != NEB_OK)
        neb_warn("%s is damaged; the tensors are unknown until a trainer attaches", path);
    else
        recall_agreed(j);
    neb_buf_free(&text);
}

// ---- other clusters ----------------------------------------------------------------------------

static void begin(struct daemon *d, struct agent_jobrun *j) {
    if (j->tensors.told || !is_settled(d, j) || waits_for_start(d, j))
        return;
    j->tensors.told = true;
    tell(d, j, true, "");
}

static void settle(struct daemon *d, struct agent_jobrun *j, int k) {
    if (!mset_has(j->tensors.agreed, k)) {
        mset_add(&j->tensors.agreed, k);
        store_agreed(j);
        neb_info("job %s: cluster %s has the same %d tensors", j->job.name, name_of(j, k),
                 j->tensors.list.n);
    }
    begin(d, j);
}

static void differ(struct daemon *d, struct agent_jobrun *j, const char *what) {
    char text[AGENT_TENSORS_TEXT + 240];
    if (j->state != AGENT_JOB_RUNNING)
        return;
    snprintf(text, sizeof text,
             "the clusters have different tensors: %s. All loops of a job need the same names, "
             "shapes, groups and frozen values. A group with `exchange: never` may differ",
             what);
    tell(d, j, false, text);
    daemon_job_give_up(d, j, text);
}

static void give_up_start(struct daemon *d, struct agent_jobrun *j) {
    char text[320];
    snprintf(
        text, sizeof text,
        "the job begins with the parameters of cluster %s, which is no longer a member. Submit "
        "it again with another cluster in `init: {from: CLUSTER}`",
        name_of(j, agent_job_init_cluster(&j->job)));
    tell(d, j, false, text);
    daemon_job_give_up(d, j, text);
}

static void ask(struct daemon *d, struct agent_jobrun *j) {
    int of = reference(d, j);
    uint32_t peer = j->peers[of];
    j->tensors.asked_at = neb_now();
    if (of != j->tensors.reference) // what is known of another list does not count
        j->tensors.list.low = j->tensors.list.high = 0;
    j->tensors.reference = of;
    json_t *q =
        peer < NEB_MEMBERS_MAX && d->up[peer] ? agent_tensors_question(&j->tensors.list) : NULL;
    if (!q)
        return;
    json_object_set_new(q, "id", json_string(j->hex));
    (void)daemon_post(d, peer, AGENT_MSG_TENSORS, q, false);
}

static bool may_ask(const struct daemon *d, const struct agent_jobrun *j) {
    return j->federated && reference(d, j) != j->self && j->tensors.list.own &&
           j->state == AGENT_JOB_RUNNING && lists(j, j->self);
}
static bool is_open(const struct daemon *d, const struct agent_jobrun *j) {
    return may_ask(d, j) && !is_settled(d, j);
}

void daemon_tensors_look(struct daemon *d, struct agent_jobrun *j) {
    // The first cluster may have lost its disk, and learns from questions who has the same list.
    if (may_ask(d, j) && neb_now() - j->tensors.asked_at >= (is_open(d, j) ? ask_every : ask_again))
        ask(d, j);
    if (start_is_lost(d, j)) {
        give_up_start(d, j);
        return;
    }
    if (waits_for_start(d, j) && neb_now() - j->tensors.asked_at >= ask_every) {
        j->tensors.asked_at = neb_now();
        fetch_start(d, j);
    }
    begin(d, j); // a cluster may have been revoked
}

// The first values of two trainers: a question of cluster k, or its answer.
static void on_values(struct daemon *d, struct agent_jobrun *j, int k, const json_t *body) {
    const char *values = json_string_value(json_object_get(body, "values"));
    const json_t *equal = json_object_get(body, "equal");
    if (values && j->tensors.list.own) {
        bool same = j->tensors.values[0] && !strcmp(values, j->tensors.values);
        json_t *answer = json_pack("{s:s,s:b}", "id", j->hex, "equal", same);
        if (answer)
            (void)daemon_post(d, j->peers[k], AGENT_MSG_TENSORS, answer, false);
    }
    if (!equal || k != agent_job_init_cluster(&j->job) || !daemon_start_missing(d, j))
        return;
    j->tensors.equal = json_is_true(equal);
    j->tensors.unequal = !j->tensors.equal;
    if (j->tensors.equal) {
        agent_timer_clear(&j->timers, AGENT_TIMER_BEHIND);
        daemon_note(d, j, "this loop begins with the first parameters: they need not be sent");
    }
    j->tensors.asked_at = 0;
    daemon_tensors_look(d, j);
}

void daemon_on_tensors(struct daemon *d, struct agent_jobrun *j, int k, const json_t *body) {
    char text[AGENT_TENSORS_TEXT] = "";
    enum agent_tensors_result result;
    const char *own = name_of(j, j->self), *other = name_of(j, k);
    if (!lists(j, k) ||
        !neb_bucket_take(&j->tensors.asked, neb_now(), 1, asks_burst, asks_a_second))
        return;
    if (json_object_get(body, "values") || json_object_get(body, "equal")) {
        on_values(d, j, k, body);
        return;
    }
    if (agent_tensors_is_answer(body)) {
        if (k != j->tensors.reference || !is_open(d, j))
            return;
        result = agent_tensors_learn(&j->tensors.list, body, own, other, text);
        if (result == AGENT_TENSORS_OPEN)
            ask(d, j);
    } else {
        json_t *answer = agent_tensors_answer(&j->tensors.list, body, own, other, &result, text);
        if (!answer)
            return;
        json_object_set_new(answer, "id", json_string(j->hex));
        (void)daemon_post(d, j->peers[k], AGENT_MSG_TENSORS, answer, false);
        if (mset_has(j->tensors.agreed, k)) // it has begun with the same list
            return;
    }
    if (result == AGENT_TENSORS_SAME)
        settle(d, j, k);
    else if (result == AGENT_TENSORS_DIFFER)
        differ(d, j, text);
}

// ---- the trainer -------------------------------------------------------------------------------

// A trainer whose groups differ from the job's groups has an error of its own.
static bool groups_fit(const struct agent_jobrun *j, const struct exchange_manifest *m, char *why,
                       size_t cap) {
    int32_t n;
    const struct exchange_tensor *all = exchange_manifest_tensors(m, &n);
    for (int32_t i = 0; i < n; i++) {
        int32_t g = agent_job_group_of(&j->job, all[i].name);
        if (g == all[i].group)
            continue;
        snprintf(why, cap, "tensor \"%s\" is in group %d of the job, not in %d", all[i].name, g,
                 all[i].group);
        return false;
    }
    return true;
}

// True if the agent accepts this list in place of its present one.
static bool takes(struct agent_jobrun *j, const struct exchange_manifest *m, char *why,
                  size_t cap) {
    char text[AGENT_TENSORS_TEXT];
    if (!groups_fit(j, m, why, cap))
        return false;
    if (!j->tensors.list.own || mset_empty(j->tensors.agreed))
        return true; // nobody relies on the old list
    if (!exchange_manifest_differ(j->tensors.list.own, "(as the job began)", m, name_of(j, j->self),
                                  text, sizeof text))
        return true;
    snprintf(why, cap, "the job has begun with other tensors: %s", text);
    return false;
}

static void take(struct daemon *d, struct agent_jobrun *j, struct exchange_manifest *m,
                 const struct agent_ipc_part *text, const char *values) {
    struct agent_tensor_list was = j->tensors.list;
    j->tensors.list = (struct agent_tensor_list){0};
    if (agent_tensors_take(&j->tensors.list, m) != NEB_OK) {
        agent_tensors_clear(&was);
        return;
    }
    if (!was.own || memcmp(was.sha, j->tensors.list.sha, sizeof was.sha) != 0) {
        j->tensors.agreed = mset_none();
        store(j, "tensors.json", text->p, text->len);
    }
    agent_tensors_clear(&was);
    snprintf(j->tensors.values, sizeof j->tensors.values, "%.64s", values);
    j->tensors.equal = j->tensors.unequal = j->tensors.told = false;
    begin(d, j);
    if (is_open(d, j))
        ask(d, j);
}

void daemon_on_manifest(struct daemon *d, struct agent_jobrun *j, struct agent_ipc_msg *msg) {
    struct exchange_manifest *m = NULL;
    char why[AGENT_TENSORS_TEXT + 128] = "the list of its tensors is malformed";
    const struct agent_ipc_part *text = &msg->parts[0];
    if (msg->n_parts != 1 || text->len > EXCHANGE_MANIFEST_MAX ||
        exchange_manifest_read(text->p, text->len, &m) != NEB_OK || !takes(j, m, why, sizeof why)) {
        exchange_manifest_destroy(&m);
        neb_warn("job %s: its trainer is refused: %s", j->job.name, why);
        tell(d, j, false, why);
        return;
    }
    take(d, j, m, text, agent_ipc_str(msg, "values", ""));
}
