// SPDX-License-Identifier: Apache-2.0
// A state that was taken from another cluster, until the others confirm it (judge.h).
// Meanwhile the worker continues with its present state and sends nothing that counts. If the
// others have a different state, the giver is reported, and not asked again.
#include "agent/base/fault.h"
#include "agent/base/log.h"
#include "agent/daemon/attach.h"
#include "agent/daemon/snapshot.h"
#include "agent/daemon/state.h"
#include "agent/daemon/status.h"
#include "agent/job/sides.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const neb_ns ask_retry = 60 * NEB_S; // after no member could be believed

// Other clusters that have parameters and are still members.
static struct member_set others_of(const struct daemon *d, const struct agent_jobrun *j) {
    struct member_set others = mset_none();
    for (int i = 0; i < j->job.n_clusters; i++)
        if (i != j->self && !agent_job_only_votes(&j->job, i))
            mset_add(&others, i);
    return mset_minus(mset_minus(others, daemon_gone_clusters(d, j)),
                      daemon_removed_clusters(d, j));
}

static void name(const struct agent_jobrun *j, struct member_set who, char *out, size_t cap) {
    if (!mset_empty(who))
        agent_status_names(&j->job, who, out, cap);
    else
        snprintf(out, cap, "several clusters");
}

// Reports a false state: what is wrong, who gave it, and what follows.
static void say_false(struct daemon *d, struct agent_jobrun *j, const char *what, bool proven) {
    char text[768], giver[160];
    name(j, j->doubt.proof.giver, giver, sizeof giver);
    snprintf(text, sizeof text, "ERROR: the state that %s gave %s: it is dropped", giver, what);
    size_t n = strlen(text);
    if (proven && !mset_empty(j->doubt.proof.giver))
        snprintf(text + n, sizeof text - n, ", and %s is not asked again", giver);
    daemon_report_fault(d, j, text);
}

struct member_set daemon_false_givers(const struct daemon *d, const struct agent_jobrun *j) {
    return mset_within(others_of(d, j), j->doubt.false_givers) ? mset_none()
                                                               : j->doubt.false_givers;
}

// Excludes the giver from further requests, if there is another member to ask. False: no member can
// be believed, and the job ends here.
static bool mark(struct daemon *d, struct agent_jobrun *j) {
    enum { DISPUTES_MAX = 3 };
    char text[640], names[320];
    struct member_set all = others_of(d, j);
    j->doubt.false_givers = mset_union(j->doubt.false_givers, j->doubt.proof.giver);
    if (mset_empty(all) || !mset_within(all, j->doubt.false_givers))
        return true;
    j->doubt.false_givers = mset_none();
    j->fetch.ask_at = neb_now() + ask_retry;
    agent_status_names(&j->job, all, names, sizeof names);
    bool over = ++j->doubt.disputes >= DISPUTES_MAX;
    int n = snprintf(text, sizeof text,
                     mset_count(all) > 1
                         ? "the states of %s differ, and nobody can tell which is right: nebula "
                           "rejoin at the wrong one, or nebula revoke, resolves this; "
                         : "the state of %s is false, and no other cluster can be asked; ",
                     names);
    snprintf(text + n, sizeof text - (size_t)n, "%s",
             over ? "this cluster's part of the job ends until then (nebula resume)"
                  : "this cluster waits, and asks again in a minute");
    if (over)
        daemon_job_leave(d, j, text);
    else
        daemon_report_fault(d, j, text);
    return !over;
}

static bool drop(struct daemon *d, struct agent_jobrun *j) {
    if (agent_snapshot_drop(j->dir, true) != NEB_OK)
        neb_warn("job %s: a false state could not be removed", j->job.name);
    j->doubt.proof.open = 0;
    j->doubt.taken = 0;
    return mark(d, j);
}

// Drops the state. The worker starts again without it, and asks for another one.
static void refuse(struct daemon *d, struct agent_jobrun *j, enum agent_proof_verdict v,
                   const struct inter_digests *said, struct member_set others) {
    char text[480], against[320];
    struct member_set who = mset_none(), judges = mset_union(others, j->doubt.proof.giver);
    for (int f = 0; f < INTER_FRAGMENTS_MAX; f++) {
        if (!(j->doubt.proof.open >> f & 1))
            continue;
        who = mset_union(who, mset_common(said[f].other, judges));
        if (j->doubt.proof.begun) // later checkpoints contain it too
            j->doubt.suspect[f] = j->doubt.proof.parts[f].round;
    }
    name(j, who, against, sizeof against);
    if (v == AGENT_PROOF_REFUTED)
        snprintf(text, sizeof text, "is not what the others have");
    else
        snprintf(text, sizeof text, "is not what %s reported, and nobody can tell which is right",
                 against);
    say_false(d, j, text, v == AGENT_PROOF_REFUTED);
    if (drop(d, j))
        daemon_worker_replace(d, j);
    // otherwise its next checkpoint would contain that state
    else if (j->doubt.proof.begun && j->worker.child.pid)
        daemon_worker_kill(j);
}

static void begin_worker(struct daemon *d, struct agent_jobrun *j) {
    if (agent_snapshot_confirm(j->dir) != NEB_OK) {
        daemon_report_fault(d, j, "a snapshot could not be taken over; trying again");
        j->doubt.proof.open = 0;
        return;
    }
    agent_timer_clear(&j->timers, AGENT_TIMER_BEHIND);
    j->fetch.hopeless_since = 0;
    j->fetch.gone = 0;
    j->fetch.any = false;
    neb_info("job %s: a snapshot is here; the worker restarts with it", j->job.name);
    daemon_note(d, j, "a snapshot is here; the worker restarts with it");
    daemon_worker_replace(d, j);
}

static void borne_out(struct daemon *d, struct agent_jobrun *j) {
    j->doubt.disputes = 0;
    if (!j->doubt.proof.begun)
        begin_worker(d, j);
}

static void begin_late(struct daemon *d, struct agent_jobrun *j) {
    struct agent_proof *p = &j->doubt.proof;
    struct inter_record r;
    char text[448], giver[160];
    name(j, j->doubt.proof.giver, giver, sizeof giver);
    snprintf(
        text, sizeof text,
        "for two minutes nobody but %s could be asked whether the state that it gave is that of "
        "the others: this cluster continues with it, and compares it once they report theirs",
        giver);
    daemon_report_fault(d, j, text);
    p->begun = true;
    for (uint32_t f = 0; f < INTER_FRAGMENTS_MAX; f++) // for past rounds no further digests come
        if (p->open >> f & 1 && inter_ledger_get_commit(inter_service_ledger(d->service), j->id, f,
                                                        p->parts[f].round, &r) == NEB_OK)
            p->open &= ~(1ull << f);
    begin_worker(d, j);
}

// Collects the members' digests. Closes a fragment whose round the ledger has passed: no digest of
// it can come, and no worker starts from it.
static void collect(struct daemon *d, struct agent_jobrun *j,
                    struct inter_digests said[INTER_FRAGMENTS_MAX]) {
    struct agent_proof *p = &j->doubt.proof;
    for (uint32_t f = 0; f < INTER_FRAGMENTS_MAX; f++) {
        said[f] = (struct inter_digests){0};
        if (p->open >> f & 1 &&
            inter_service_digests(d->service, j->id, f, p->parts[f].round, p->parts[f].digest,
                                  &said[f]) == NEB_ERR_NOT_FOUND)
            p->open &= ~(1ull << f);
    }
}

void daemon_proof_look(struct daemon *d, struct agent_jobrun *j) {
    struct inter_digests said[INTER_FRAGMENTS_MAX];
    struct agent_proof *p = &j->doubt.proof;
    if (!p->open || j->state != AGENT_JOB_RUNNING)
        return;
    struct member_set others =
        mset_minus(mset_minus(others_of(d, j), p->giver), daemon_rounds(d, j).equivocators);
    collect(d, j, said);
    neb_ns now = neb_now() + (neb_fault("snapshot.late") ? 2 * agent_proof_patience : 0);
    enum agent_proof_verdict v = agent_proof_look(p, said, others, mset_of(j->self), now);
    if (v >= AGENT_PROOF_DISPUTED)
        refuse(d, j, v, said, others);
    else if (v == AGENT_PROOF_LATE)
        begin_late(d, j);
    else if (v == AGENT_PROOF_CONFIRMED)
        borne_out(d, j);
}

// After the record of its round no further digests come.
void daemon_proof_look_at(struct daemon *d, struct agent_jobrun *j, const struct inter_record *r) {
    struct agent_proof *p = &j->doubt.proof;
    if (!(p->open >> r->fragment & 1) || p->parts[r->fragment].round != r->round)
        return;
    daemon_proof_look(d, j);
    if (p->begun)
        p->open &= ~(1ull << r->fragment);
}

void daemon_proof_begin(struct daemon *d, struct agent_jobrun *j, uint32_t giver, bool asks) {
    char text[384], names[160];
    struct inter_snapshot *s = NULL;
    struct member_set who = mset_none();
    if (agent_snapshot_taken(sec_vault_of(d->vault), j->dir, &s) != NEB_OK) {
        daemon_report_fault(d, j, "a snapshot could not be read; another one is fetched");
        return;
    }
    for (int i = 0; i < j->job.n_clusters; i++)
        if (agent_job_has_peer(j, i) && j->peers[i] == giver)
            mset_add(&who, i);
    agent_proof_begin(&j->doubt.proof, s, who, neb_now());
    free(s);
    if (!asks || !j->doubt.proof.open) {
        j->doubt.proof.open = 0;
        begin_worker(d, j);
        return;
    }
    daemon_proof_look(d, j);
    if (!daemon_proof_waits(j))
        return;
    name(j, who, names, sizeof names);
    snprintf(text, sizeof text,
             "a snapshot of %s has arrived; it is compared with the states of the others, and this "
             "cluster waits for that",
             names);
    neb_info("job %s: %s", j->job.name, text);
    daemon_note(d, j, text);
}

void daemon_proof_bad(struct daemon *d, struct agent_jobrun *j, const char *what) {
    char text[400];
    snprintf(text, sizeof text, "is not usable (%.300s)", what);
    say_false(d, j, text, true);
    if (drop(d, j) && !agent_attach_waits(j)) // its exit is then not a crash
        j->worker.replaced = true;
}
