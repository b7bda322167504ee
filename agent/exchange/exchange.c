// SPDX-License-Identifier: Apache-2.0
// The exchange of one cluster: set-up, and what is due between two steps.
#include "agent/exchange/exchange.h"
#include "agent/base/log.h"

#include <math.h>
#include <stdlib.h>

// ---- set-up -------------------------------------------------------------------------------------

void exchange_init(struct agent_exchange *x) {
    x->saves.newest = -1;
    x->loss_first = x->loss_last = NAN; // no step yet
}

static enum neb_status create_counts(struct agent_exchange *x) {
    size_t n = x->trainer.n_counters;
    x->counters = calloc(n + 1, sizeof *x->counters);
    bool whole = x->counters != NULL;
    for (int32_t f = 0; f < exchange_fragments(x) && whole; f++) {
        struct exchange_fragment *k = &x->kept[f];
        k->counts_base = calloc(2 * n + 1, sizeof *k->counts_base);
        k->counts_sent = k->counts_base ? k->counts_base + n : NULL;
        whole = k->counts_base != NULL;
    }
    return whole ? NEB_OK : neb_fail(NEB_ERR_NOMEM, "out of memory for row counts");
}

enum neb_status exchange_create(struct agent_exchange *x) {
    const struct agent_sync *s = &x->job.sync;
    if (!(x->fragment = calloc((size_t)x->trainer.n_units, sizeof *x->fragment)))
        return neb_fail(NEB_ERR_NOMEM, "out of memory for the exchange");
    NEB_TRY(exchange_cut(&x->job, x->trainer.units, x->trainer.n_units, x->fragment));
    struct inter_outer_config c = {
        .beta = s->error_feedback,
        .keep = s->blend > 0 ? 0 : s->anticipate / (float)agent_job_exchanging(&x->job),
        .blend = s->blend,
        .kappa = s->kappa,
        .row_weights = s->row_weights,
        .fragments = exchange_fragments(x),
        .robust = s->gate == AGENT_GATE_ROBUST};
    exchange_masked_config(x, &c);
    NEB_TRY(agent_shards_create(&x->trainer, &c, x->fragment, x->sum != NULL, &x->shards));
    x->outer = agent_shards_outer(x->shards);
    NEB_TRY(exchange_choose_codecs(x));
    exchange_plan_start(x);
    x->schedule = agent_schedule_of(&x->job);
    for (int32_t f = 0; f < exchange_fragments(x); f++)
        x->frags[f].send_step = x->kept[f].counted_miss = -1;
    return create_counts(x);
}

void exchange_destroy(struct agent_exchange *x) {
    json_decref(x->pending.line);
    intra_ckpt_async_destroy(&x->saves.saver);
    for (int f = 0; f < INTER_FRAGMENTS_MAX; f++) {
        free(x->kept[f].counts_base);
        neb_buf_free(&x->flight[f].blob);
        agent_ipc_msg_clear(&x->flight[f].message);
    }
    free(x->counters);
    free(x->fragment);
    agent_shards_destroy(&x->shards);
    x->outer = NULL;
    sec_sum_destroy(&x->sum);
}

enum neb_status exchange_send_shape(struct agent_exchange *x) {
    json_t *fragments = json_array();
    char hex[2 * INTER_SHA_BYTES + 1];
    uint8_t sha[INTER_SHA_BYTES];
    for (int32_t f = 0; f < exchange_fragments(x); f++) {
        uint64_t elements = agent_shards_shape(x->shards, f, sha);
        neb_hex(sha, sizeof sha, hex);
        json_array_append_new(fragments,
                              json_pack("{s:I,s:s}", "elements", (json_int_t)elements, "sha", hex));
    }
    struct neb_buf owners = {0}; // only the agent of ranks that connect themselves needs them
    int32_t n = 0;
    const int32_t *owner = agent_shards_owners(x->shards, &n);
    for (int32_t i = 0; i < n && agent_shards_carried(x->shards); i++)
        neb_buf_u32(&owners, (uint32_t)owner[i]);
    const struct agent_ipc_part part = {owners.p, owners.len};
    enum neb_status st = neb_buf_check(&owners);
    json_t *head = json_pack("{s:s,s:I,s:o}", "op", "shape", "elements", (json_int_t)x->elements,
                             "fragments", fragments);
    if (st == NEB_OK)
        st = agent_ipc_send(x->link.ipc, NULL, head, &part, owners.len > 0);
    else
        json_decref(head);
    neb_buf_free(&owners);
    return st;
}

static enum neb_status place(struct agent_exchange *x) {
    const struct agent_cluster *c = &x->job.clusters[x->cluster];
    bool must = c->outer_state == AGENT_OUTER_DEVICE;
    if (must && !x->trainer.device)
        return neb_fail(NEB_ERR_UNSUPPORTED,
                        "cluster %s: outer_state is device, but the cluster trains on the CPU. "
                        "Remove outer_state, or set `device: cuda` to see what is missing",
                        c->name);
    if (!x->trainer.device || x->sum) // masks: on the host
        return NEB_OK;
    if (c->outer_state == AGENT_OUTER_HOST)
        return x->trainer.deferred ? agent_shards_place(x->shards, AGENT_SHARDS_PINNED) : NEB_OK;
    return agent_shards_place(x->shards, must ? AGENT_SHARDS_DEVICE : AGENT_SHARDS_AUTO);
}

enum neb_status exchange_join(struct agent_exchange *x) {
    NEB_TRY(exchange_create(x));
    NEB_TRY(place(x));
    return x->federated ? exchange_send_shape(x) : NEB_OK;
}

enum neb_status exchange_resume(struct agent_exchange *x) {
    enum neb_status st = exchange_restore(x);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    x->restored = st == NEB_OK;
    exchange_set_lost(x, x->lost && !x->restored);
    if (x->restored)
        neb_info("going on from step %lld", (long long)x->step);
    return NEB_OK;
}

enum neb_status exchange_announce(struct agent_exchange *x) {
    for (int32_t f = 0; x->federated && f < exchange_fragments(x); f++)
        NEB_TRY(x->frags[f].in_flight ? exchange_resubmit(x, f) : exchange_request_commit(x, f));
    return x->federated ? exchange_wait_for_peers(x) : NEB_OK;
}

// ---- between two steps -------------------------------------------------------------------------

static const struct exchange_merge *logged(const struct agent_exchange *x, int32_t f) {
    for (size_t i = 0; i < x->merges.n; i++)
        if (x->merges.log[i].fragment == (uint32_t)f && x->merges.log[i].round == x->frags[f].round)
            return &x->merges.log[i];
    return NULL;
}

enum neb_status exchange_skip_steps(struct agent_exchange *x, int64_t n) {
    NEB_TRY(x->trainer.ops->skip(x->trainer.user, n));
    for (int32_t f = 0; x->federated && f < exchange_fragments(x); f++) {
        int64_t *base = &x->kept[f].steps_base;
        if (*base <= x->step)
            *base += n;
        else if (*base < x->step + n) {
            *base = x->step + n; // these steps are committed and must not be made again
            NEB_TRY(exchange_count_from_here(x, f));
        }
    }
    x->step += n;
    x->lost_steps += n;
    return NEB_OK;
}

// Takes one decision about one fragment. *more: call again at this step. *ready: the next step may
// begin.
static enum neb_status exchange_one(struct agent_exchange *x, int32_t f, bool *more, bool *ready) {
    struct agent_fragment *g = &x->frags[f];
    const struct agent_flight *t = &x->flight[f];
    const struct exchange_merge *l = logged(x, f); // a repeated run merges at the logged step
    // True if the others continued without us. A commit that contains our own update belongs to a
    // repeated run: it waits for our send, even if that is due at this step and the merge is
    // logged.
    bool foreign = t->here && !t->mine && !t->rejected;
    *more = true;
    if (x->lost && t->here && !g->in_flight && !g->finished) {
        if (t->cursor > x->step)
            NEB_TRY(exchange_skip_steps(x, t->cursor - x->step));
        return exchange_merge(x, f);
    }
    if (!x->lost && t->here && t->former && t->cursor > x->step && (!l || l->step <= x->step))
        return exchange_take_over(x, f);
    if (x->lost) { // nothing is computed until the state is complete
        *more = *ready = false;
        return NEB_OK;
    }
    if (!g->in_flight && !g->finished && (l ? l->foreign && l->step <= x->step : foreign)) {
        if (t->here)
            return exchange_merge(x, f);
        *more = *ready = false; // wait until the agent brings the commit
        return NEB_OK;
    }
    // After an outage the update in flight is outdated: the others' steps of the outage would enter
    // this round in full, and ours the next round. A newer update replaces it, so that these steps
    // are averaged. With masks it stays: two masked updates of one round reveal their difference.
    if (g->in_flight && !g->arrived && x->link.expected && !l && !x->sum &&
        t->retries < INTER_RETRIES_MAX && g->missed > (uint32_t)x->job.sync.merge_after) {
        *more = false;
        return exchange_send(x, f);
    }
    enum agent_decision d = agent_schedule_decide(&x->schedule, x->frags, f, x->step,
                                                  x->link.expected, x->kept[f].counted_miss);
    *more = d == AGENT_SEND || d == AGENT_MERGE || d == AGENT_MISS;
    if (d == AGENT_SEND)
        return exchange_send(x, f);
    if (d == AGENT_MERGE)
        return exchange_merge(x, f);
    if (d == AGENT_WAIT)
        *ready = false;
    if (d == AGENT_MISS) {
        g->missed++;
        x->kept[f].counted_miss = x->step;
    }
    return NEB_OK;
}

// A merge may give an earlier fragment its turn, so repeat until nothing changes: the result must
// not depend on when a commit arrived, because a repeated run gets the commits in another order.
enum neb_status exchange_step(struct agent_exchange *x, bool *ready) {
    *ready = true;
    NEB_TRY(exchange_complete(x, false));
    for (bool changed = x->federated; changed;) {
        changed = false;
        *ready = true;
        for (int32_t f = 0; f < exchange_fragments(x); f++) {
            const struct agent_fragment *g = &x->frags[f], before = *g;
            NEB_TRY(exchange_at_cursor(x, f));
            for (bool more = true; more;)
                NEB_TRY(exchange_one(x, f, &more, ready));
            changed = changed || g->round != before.round || g->in_flight != before.in_flight;
            // a round that an earlier run merged at this step must be merged here, connected or not
            if (g->in_flight && !g->arrived && x->step >= g->merge_step && logged(x, f))
                *ready = false;
        }
    }
    if (!x->federated)
        return NEB_OK;
    return *ready && x->step < x->job.steps ? exchange_open_next(x) : exchange_complete(x, true);
}

bool exchange_finished(const struct agent_exchange *x) {
    return x->federated ? agent_schedule_finished(&x->schedule, x->frags) : x->step >= x->job.steps;
}
