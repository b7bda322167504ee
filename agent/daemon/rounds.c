// SPDX-License-Identifier: Apache-2.0
// Rounds of a job: opens them as the operator configured, sends their commits to the worker,
// notices members that diverged.
#include "agent/base/log.h"
#include "agent/daemon/snapshot.h"
#include "agent/daemon/state.h"
#include "agent/daemon/sums.h"
#include "agent/job/sides.h"
#include "agent/job/tune.h"
#include "compress/update.h"
#include "inter/round/sums.h"

#include <string.h>

// Clusters whose vote a signed membership version removed. If there were two voters, this is the
// lost one.
struct member_set daemon_removed_clusters(const struct daemon *d, const struct agent_jobrun *j) {
    struct member_set removed = mset_none();
    for (int i = 0; i < j->job.n_clusters; i++)
        if (agent_members_without_vote(d->trust, j->job.clusters[i].name))
            mset_add(&removed, i);
    return removed;
}

struct member_set daemon_gone_clusters(const struct daemon *d, const struct agent_jobrun *j) {
    struct member_set gone = mset_none();
    for (int i = 0; i < j->job.n_clusters; i++)
        if (!sec_members_by_name(agent_members_list(d->trust), j->job.clusters[i].name))
            mset_add(&gone, i);
    return gone;
}

static bool is_final(const struct inter_record *r) {
    bool final = true;
    for (uint8_t i = 0; i < r->n; i++)
        final = final && r->entries[i].flags & INTER_FINAL;
    return final;
}

// Recalls which final rounds a witness saw before a restart: they are not sent again.
static enum neb_status recall_finals(struct daemon *d, struct agent_jobrun *j) {
    struct inter_record r;
    for (uint32_t f = 0; f < (uint32_t)agent_job_fragments(&j->job); f++) {
        enum neb_status st =
            inter_ledger_last_commit(inter_service_ledger(d->service), j->id, f, &r);
        if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
            return st;
        j->rounds.finals |= st == NEB_OK && is_final(&r) ? 1ull << f : 0;
    }
    return NEB_OK;
}

enum neb_status daemon_open_rounds(struct daemon *d, struct agent_jobrun *j) {
    struct inter_job_config c = {.n_members = (uint8_t)j->job.n_clusters,
                                 .self = (uint8_t)j->self,
                                 .fragments = (uint32_t)agent_job_fragments(&j->job),
                                 .merge_after = (uint32_t)j->job.sync.merge_after,
                                 .commit_all = j->job.sync.commit_all,
                                 .grace = (neb_ns)((double)j->job.sync.grace_s * 1e9),
                                 .robust = j->job.sync.gate == AGENT_GATE_ROBUST,
                                 .masked = j->job.sync.gate == AGENT_GATE_PRIVATE,
                                 .colluders = (uint8_t)j->job.sync.private_colluders,
                                 .awaits_shape = true,
                                 .tune = agent_tune_config(&j->job)};
    c.steps = (uint64_t)j->job.steps;
    c.early_interval = (uint32_t)j->job.sync.early_interval;
    c.early_steps = (uint64_t)j->job.sync.early_steps;
    agent_tune_pace(&j->job, c.pace);
    c.step_tokens = agent_job_step_tokens(&j->job);
    for (int32_t f = 0; f < (int32_t)c.fragments; f++) {
        int32_t owner = agent_job_fragment_owner(&j->job, f);
        c.rules[f] = (struct inter_fragment_rule){.own = true,
                                                  .eta = agent_job_fragment_eta(&j->job, f),
                                                  .mu = agent_job_fragment_mu(&j->job, f),
                                                  .owned = owner >= 0,
                                                  .owner = (uint8_t)(owner >= 0 ? owner : 0)};
    }
    memcpy(c.id, j->id, sizeof c.id);
    memcpy(c.peers, j->peers, sizeof c.peers);
    for (int i = 0; i < j->job.n_clusters; i++)
        if (agent_job_only_votes(&j->job, i))
            mset_add(&c.witnesses, i);
    c.removed = j->removed = daemon_removed_clusters(d, j);
    c.gone = daemon_gone_clusters(d, j);
    if (c.masked && !j->sums)
        NEB_TRY(agent_sums_open(
            &(struct agent_sums_config){&d->service, d->identity, &d->members, j, j->dir},
            &j->sums));
    NEB_TRY(agent_snapshot_install(sec_vault_of(d->vault), d->service, &c, j->dir,
                                   agent_job_only_votes(&j->job, j->self), &j->doubt.taken));
    daemon_recall_tensors(j);
    daemon_recall_shape(d, j); // before updates on disk pass the gate again
    NEB_TRY(inter_service_job_open(d->service, &c));
    daemon_recall_shape(d, j); // again: only an open job has bounds of sizes
    return j->job.clusters[j->self].witness ? recall_finals(d, j) : NEB_OK;
}

void daemon_witness_ends(struct daemon *d, struct agent_jobrun *j) {
    int32_t n = agent_job_fragments(&j->job);
    uint64_t all = n == 64 ? UINT64_MAX : (1ull << n) - 1;
    if (j->federated && j->job.clusters[j->self].witness && j->rounds.finals == all &&
        agent_job_active(j->state))
        daemon_witness_report(d, j, false);
}

// Number of clusters that send updates and are still members.
static int contributors(const struct daemon *d, const struct agent_jobrun *j) {
    struct member_set gone = mset_union(daemon_gone_clusters(d, j), daemon_removed_clusters(d, j));
    int n = 0;
    for (int i = 0; i < j->job.n_clusters; i++)
        n += !agent_job_only_votes(&j->job, i) && !mset_has(gone, i);
    return n;
}

// All loops must begin with the same values: round 0 has their digests.
static void compare_start(struct daemon *d, struct agent_jobrun *j, const struct inter_record *r) {
    char text[4 * AGENT_NAME_MAX];
    for (uint8_t i = 1; i < r->n && j->federated && j->state == AGENT_JOB_RUNNING; i++) {
        if (!memcmp(r->entries[i].digest, r->entries[0].digest, sizeof r->entries[i].digest))
            continue;
        snprintf(
            text, sizeof text,
            "%sthe loops of clusters %s and %s do not begin with the same values of fragment %u",
            j->job.init == AGENT_INIT_EQUAL ? "init: equal, but " : "",
            j->job.clusters[r->entries[0].member].name, j->job.clusters[r->entries[i].member].name,
            r->fragment);
        daemon_job_give_up(d, j, text);
    }
}

// Every contributor sends the digest of its parameters with its update. A diverged one computes its
// parameters again: from an older checkpoint and the ledger's updates, or from a snapshot.
static void check_divergence(struct daemon *d, struct agent_jobrun *j,
                             const struct inter_record *r) {
    enum { DIVERGENCES_MAX = 3 };
    char text[256];
    if (!r->round && j->job.attached)
        compare_start(d, j, r);
    if (!r->round || !j->federated || j->state != AGENT_JOB_RUNNING)
        return;
    daemon_proof_look_at(d, j, r); // a false state from another member is not this cluster's fault
    struct agent_divergence x = agent_divergence_of(r, j->self, contributors(d, j));
    if (x.others && !x.own)
        daemon_report_fault(d, j,
                            "another member's parameters differ from ours and most others'; it "
                            "computes them again");
    if (!x.own || j->worker.replaced ||
        (j->doubt.suspect[r->fragment] && r->round <= j->doubt.suspect[r->fragment]))
        return;
    d->faults[INTER_FAULT_DIVERGED]++;
    j->doubt.suspect[r->fragment] = r->round;
    j->doubt.all = x.all;
    snprintf(text, sizeof text,
             "ERROR: after round %u of fragment %u the parameters of this cluster differ from the "
             "others' though all applied "
             "the same commits; computing them again",
             r->round - 1, r->fragment);
    daemon_report_fault(d, j, text);
    if (++j->doubt.divergences > DIVERGENCES_MAX) {
        daemon_job_fail(d, j,
                        "its parameters differed from the others' four times: check this machine's "
                        "memory and processors");
        return;
    }
    daemon_worker_replace(d, j);
}

// What a record contains for this site's worker.
struct delivery {
    json_t *entries; // of the updates to merge
    struct agent_ipc_part parts[NEB_MEMBERS_MAX];
    size_t n;      // number of parts
    bool final;    // every update is its member's last
    bool whole;    // the bytes of all updates are here
    bool rejected; // this cluster's update
    bool unread;   // masked: too few clusters trained, so no update is read
};

static void delivery_fill(struct delivery *x, const struct agent_jobrun *j,
                          const struct inter_record *r, const struct neb_map *blobs) {
    *x = (struct delivery){.entries = json_array(), .final = is_final(r), .whole = true};
    for (uint8_t i = 0; i < r->n; i++) {
        const struct inter_entry *e = &r->entries[i];
        x->rejected |= e->member == j->self && e->verdict == INTER_REJECTED;
        if (e->verdict == INTER_REJECTED)
            continue;
        x->whole = x->whole && blobs[i].p;
        x->parts[x->n++] = (struct agent_ipc_part){blobs[i].p, blobs[i].len};
        json_array_append_new(x->entries,
                              json_pack("{s:i,s:I,s:I,s:I,s:f}", "member", e->member, "attempt",
                                        (json_int_t)e->attempt, "tokens", (json_int_t)e->tokens,
                                        "weight", (json_int_t)e->weight, "clip", (double)e->clip));
    }
}

static bool is_readable(const struct agent_jobrun *j, const struct inter_record *r) {
    return inter_sums_readable(r, (uint8_t)j->job.n_clusters,
                               (uint8_t)j->job.sync.private_colluders);
}

// Drops all updates: no member reveals seeds that would show a single update (inter/round/sums.h).
static void delivery_unread(struct delivery *x, const struct agent_jobrun *j,
                            const struct inter_record *r) {
    json_array_clear(x->entries);
    x->n = 0;
    x->whole = x->unread = true;
    for (uint8_t i = 0; i < r->n; i++)
        x->rejected |= r->entries[i].member == j->self;
}

void daemon_commit_gone(struct daemon *d, struct agent_jobrun *j, uint32_t fragment,
                        uint32_t round) {
    j->fetch.gone |= 1ull << fragment;
    j->fetch.gone_rounds[fragment] = round;
    daemon_ask_snapshot(d, j);
}

// Empty: no plan for this member.
static json_t *plan_of(const struct inter_record *r, int member) {
    if (member < 0 || member >= r->n_plans)
        return json_object();
    const struct inter_plan plan = inter_tune_planned(r, (uint8_t)member), *p = &plan;
    return json_pack("{s:I,s:I,s:i,s:i,s:i}", "interval", (json_int_t)p->interval, "overlap",
                     (json_int_t)p->overlap, "codec", p->codec, "reason", p->reason, "left_out",
                     p->left_out);
}

static void deliver(struct daemon *d, struct agent_jobrun *j, const struct inter_record *r,
                    struct delivery *x, json_t *seeds) {
    struct neb_buf own[AGENT_IPC_PARTS_MAX] = {{0}};
    uint64_t bit = 1ull << r->fragment;
    j->rounds.undelivered |= bit;
    if (!daemon_ranks_deliver(d, j, r->fragment, r->round, x->parts, x->n, own)) {
        for (size_t i = 0; i < AGENT_IPC_PARTS_MAX; i++)
            neb_buf_free(&own[i]);
        return;
    }
    json_t *head =
        json_pack("{s:s,s:I,s:I,s:I,s:f,s:f,s:b,s:b,s:b,s:b,s:O,s:o}", "ev", "commit", "cursor",
                  (json_int_t)r->cursors[j->self], "round", (json_int_t)r->round, "fragment",
                  (json_int_t)r->fragment, "eta", (double)r->eta, "mu", (double)r->mu, "merge",
                  !!(r->flags & INTER_MERGE), "final", x->final, "rejected", x->rejected, "unread",
                  x->unread, "entries", x->entries, "plan", plan_of(r, j->self));
    if (seeds)
        json_object_set(head, "seeds", seeds);
    // A commit that the worker cannot take stays in the ledger: nothing piles up in memory.
    enum neb_status st = agent_ipc_send(d->ipc, &j->worker.client, head, x->parts, x->n);
    for (size_t i = 0; i < x->n; i++)
        neb_buf_free(&own[i]);
    if (st != NEB_OK) {
        // AGAIN: its queue is full, or it has ended and its successor asks for the round
        if (st != NEB_ERR_AGAIN)
            neb_warn("the commit of round %u could not be sent to the worker: trying again",
                     r->round);
        return;
    }
    j->rounds.undelivered &= ~bit;
    j->rounds.wants[r->fragment] = 0;
    // with this commit it no longer needs a snapshot for the fragment
    if (j->fetch.gone >> r->fragment & 1 && j->fetch.gone_rounds[r->fragment] == r->round)
        j->fetch.gone &= ~(1ull << r->fragment);
    if (j->fetch.any || !j->fetch.gone) {
        agent_timer_clear(&j->timers, AGENT_TIMER_BEHIND);
        j->fetch.gone = 0;
        j->fetch.any = false;
    }
}

void daemon_deliver_retry(struct daemon *d, struct agent_jobrun *j) {
    for (uint32_t f = 0; f < INTER_FRAGMENTS_MAX && j->rounds.undelivered; f++) {
        bool due = j->rounds.undelivered >> f & 1 && j->rounds.wants[f];
        j->rounds.undelivered &= ~(1ull << f);
        if (due && inter_service_deliver(d->service, j->id, f, j->rounds.wants[f] - 1) != NEB_OK)
            j->rounds.undelivered |= 1ull << f;
    }
}

void daemon_on_commit(void *user, const struct inter_record *r, const struct neb_map *blobs) {
    struct daemon *d = user;
    struct agent_jobrun *j = daemon_job_by_id(d, r->job);
    struct delivery x;
    json_t *seeds = NULL;
    if (!j)
        return;
    delivery_fill(&x, j, r, blobs);
    if (daemon_ranks_asked(d, j, r->fragment, r->round, x.parts, x.n, x.whole))
        goto out;
    if (j->sums && x.n && !is_readable(j, r))
        delivery_unread(&x, j, r);
    if (j->sums && agent_sums_looks_up(j->sums)) {
        if (x.n)
            (void)agent_sums_commit(j->sums, r, blobs, &seeds);
        goto out;
    }
    if (j->job.clusters[j->self].witness)
        j->rounds.finals |= x.final ? 1ull << r->fragment : 0;
    else
        check_divergence(d, j, r);
    if (j->job.clusters[j->self].role == AGENT_ROLE_TEACHER) // a teacher votes, and merges nothing
        goto out;
    bool wanted = j->rounds.wants[r->fragment] == r->round + 1;
    if (j->worker.client.len && wanted && !x.whole)
        daemon_commit_gone(d, j, r->fragment, r->round);
    if (j->sums && x.n && !agent_sums_commit(j->sums, r, blobs, &seeds))
        x.whole = false; // delivered again when the sum can be read
    // only what the worker asked for: a restarted worker asks again, and each merge asks for the
    // next
    if (j->worker.client.len && x.whole && !j->report && agent_job_active(j->state) && wanted)
        deliver(d, j, r, &x, seeds);
out:
    json_decref(x.entries);
    json_decref(seeds);
}

// The ledger lost this cluster's own update of the open round. The worker keeps it until the round
// is over.
void daemon_on_lost(void *user, const struct inter_key *key) {
    struct daemon *d = user;
    struct agent_jobrun *j = daemon_job_by_id(d, key->job);
    if (j && j->worker.client.len)
        daemon_send(d, &j->worker.client,
                    json_pack("{s:s,s:I,s:I}", "ev", "resubmit", "fragment",
                              (json_int_t)key->fragment, "round", (json_int_t)key->round));
}

void daemon_on_gone(void *user, const struct inter_key *key, const char *text) {
    struct daemon *d = user;
    struct agent_jobrun *j = daemon_job_by_id(d, key->job);
    if (j && agent_job_active(j->state))
        daemon_job_fail(d, j, text);
}

// In a fragment with an owner, the update of another member has no units.
static bool is_empty(const uint8_t *p, size_t n) {
    struct neb_buf b = {0};
    cmp_update_begin(&b, 0);
    bool empty = b.len == n && !memcmp(b.p, p, n);
    neb_buf_free(&b);
    return empty;
}

// The check of an update that depends on the job: masked updates, and those of members that do not
// own a fragment with an owner, are checked here only.
enum inter_screen daemon_on_screen(void *user, const struct inter_manifest *m, const uint8_t *p,
                                   size_t n) {
    const struct agent_jobrun *j = daemon_job_by_id(user, m->key.job);
    int32_t owner = j && m->key.fragment < (uint32_t)agent_job_fragments(&j->job)
                        ? agent_job_fragment_owner(&j->job, (int32_t)m->key.fragment)
                        : -1;
    if (owner >= 0 && owner != m->key.member)
        return is_empty(p, n) ? INTER_SCREEN_EMPTY : INTER_SCREEN_REFUSE;
    if (!j || !j->sums)
        return INTER_SCREEN_USUAL;
    return agent_sums_admits(j->sums, m, p, n) ? INTER_SCREEN_PASS : INTER_SCREEN_REFUSE;
}
