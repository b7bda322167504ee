// SPDX-License-Identifier: Apache-2.0
// One worker: the real schedule, with integers for tensors.
//
// In every inner step a cluster learns a known amount (a function of member, fragment and step).
// The codec sends u without its low bits, so there is always a residual. What was learned is always
// in exactly one of: a committed update, the residual, an update in flight, the unsent part, the
// dropped part. Integers do not round, so the check is exact.
#include "tests/sim/sim.h"

#include <string.h>

enum { CODEC_LOST_BITS = 0xf };

static int64_t learned(uint64_t seed, uint8_t member, uint32_t f, int64_t step, int k) {
    uint64_t z = neb_mix64(seed ^ neb_mix64((uint64_t)step << 16 ^ (uint64_t)member << 8 ^
                                            (uint64_t)f << 4 ^ (uint64_t)k));
    return (int64_t)(z % 2001) - 1000;
}

void sim_produced(uint64_t seed, uint8_t member, uint32_t f, int64_t steps,
                  int64_t out[SIM_WORDS]) {
    memset(out, 0, SIM_WORDS * sizeof *out);
    for (int64_t t = 0; t < steps; t++)
        for (int k = 0; k < SIM_WORDS; k++)
            out[k] += learned(seed, member, f, t, k);
}

uint64_t sim_tokens_of_step(uint8_t member) { return 1000 + 137u * member; }

static void reset(const struct sim *s, struct sim_worker_state *w) {
    *w = (struct sim_worker_state){0};
    for (uint32_t f = 0; f < s->o.fragments; f++)
        w->frags[f].send_step = w->counted_miss[f] = -1;
}

static const struct sim_log *logged(const struct sim_disk *d, uint32_t f, uint32_t round) {
    for (uint32_t k = 0; k < d->n_log[f]; k++)
        if (d->log[f][k].round == round)
            return &d->log[f][k];
    return NULL;
}

void sim_worker_boot(struct sim *s, uint8_t i) {
    struct sim_host *h = &s->h[i];
    if (h->idle)
        inter_node_job_idle(h->node, (uint8_t[INTER_ID_BYTES]){1});
    if (h->witness || !h->alive || h->split || h->idle)
        return;
    h->worker_alive = true;
    h->worker_boot++;
    h->disk.knows_shape = true;
    inter_node_job_judges(h->node, (uint8_t[INTER_ID_BYTES]){1});
    if (h->disk.has_checkpoint) {
        h->w = h->disk.checkpoint;
        for (uint32_t f = 0; f < s->o.fragments; f++) {
            struct agent_fragment *g = &h->w.frags[f];
            const struct sim_log *l = logged(&h->disk, f, g->round);
            g->arrived = false;
            if (l && g->in_flight) // merged where the first run merged it
                g->merge_step = l->step;
        }
    } else {
        reset(s, &h->w);
    }
    sim_note(s, "worker starts", i, h->w.step, 0, 0, 0);
    sim_post(s, 50 * NEB_MS, SIM_WORK, i, 0, h->worker_boot);
}

static bool commit_here(struct sim *s, uint8_t i, uint32_t f, uint32_t round) {
    const struct sim_round *r = round < SIM_ROUNDS ? s->h[i].disk.rounds[f][round] : NULL;
    return r && r->committed && !sim_disk_seeks(s, i, f, round);
}

bool sim_bad_update(const struct sim *s, uint8_t i, uint32_t f, uint32_t round) {
    return s->o.chaos && !s->o.masked &&
           neb_mix64(s->o.seed * 31 + i * 7 + f * 3 + round) % 97 == 0;
}

static void submit(struct sim *s, uint8_t i, uint32_t f) {
    struct sim_worker_state *w = &s->h[i].w;
    int64_t words[SIM_WORDS + 1];
    struct inter_manifest m = {.key = {.job = {1},
                                       .round = w->frags[f].round,
                                       .fragment = f,
                                       .member = i,
                                       .attempt = w->again[f]},
                               .tokens = w->tokens_sent[f],
                               .step = (uint64_t)w->frags[f].send_step,
                               .steps = (uint32_t)(w->tokens_sent[f] / sim_tokens_of_step(i)),
                               .missed = w->missed_sent[f],
                               .flags = w->frags[f].sent_final ? INTER_FINAL : 0};
    for (int k = 0; k < SIM_WORDS; k++)
        words[k] = w->e[f][k] & ~(int64_t)CODEC_LOST_BITS;
    words[SIM_WORDS] = sim_bad_update(s, i, f, w->frags[f].round);
    sim_host_submit(s, i, f, &m, words);
}

static void send(struct sim *s, uint8_t i, uint32_t f, const struct agent_schedule *sched) {
    struct sim_host *h = &s->h[i];
    struct sim_worker_state *w = &h->w;
    struct agent_fragment *g = &w->frags[f];
    for (int k = 0; k < SIM_WORDS; k++) {
        w->e[f][k] += w->p[f][k];
        w->p[f][k] = 0;
    }
    w->tokens_sent[f] = w->tokens > w->tokens_base[f] ? w->tokens - w->tokens_base[f] : 0;
    w->again[f] = g->in_flight ? w->again[f] + 1 : 0;
    w->missed_sent[f] =
        g->missed + (g->in_flight ? w->missed_sent[f] : 0); // same rule as in agent/exchange
    uint64_t most = w->tokens_sent[f] / sim_tokens_of_step(i) / (uint64_t)s->interval + 1;
    w->missed_sent[f] = w->missed_sent[f] < most ? w->missed_sent[f] : (uint32_t)most;
    g->missed = 0;
    g->in_flight = true;
    g->arrived = false;
    g->sent_final = w->step >= sched->steps;
    g->send_step = w->step;
    g->merge_step = w->step + sched->overlap;
    const struct sim_log *l = logged(&h->disk, f, g->round);
    if (l)
        g->merge_step = l->step;
    sim_note(s, "send", i, f, g->round, w->step, g->sent_final);
    submit(s, i, f);
}

// A previous incarnation may have sent more tokens than this one has seen: then some of the tokens
// that count as lost were not lost. Tokens that this incarnation sent before a restart from a
// checkpoint are seen again.
static void settle_tokens(struct sim_worker_state *w, uint32_t f, uint64_t committed, bool former) {
    uint64_t most = former ? w->tokens - w->tokens_base[f] : committed;
    uint64_t here = committed < most ? committed : most;
    w->tokens_base[f] += here;
    w->tokens_lost[f] -= (int64_t)(committed - here);
}

// The worker repeats steps that are already committed (a refused update, or a repeated run): the
// next update counts tokens from their end.
static void at_cursor(struct sim_worker_state *w, uint32_t f) {
    const struct agent_fragment *g = &w->frags[f];
    bool ends = !g->in_flight && g->committed_step > g->send_step && g->committed_step == w->step;
    if (!ends || w->tokens <= w->tokens_base[f])
        return;
    w->tokens_lost[f] += (int64_t)(w->tokens - w->tokens_base[f]);
    w->tokens_base[f] = w->tokens;
}

// Merges the commit of the fragment's round, with or without an update of this worker.
static void merge(struct sim *s, uint8_t i, uint32_t f, bool taken_over) {
    struct sim_host *h = &s->h[i];
    struct sim_worker_state *w = &h->w;
    struct agent_fragment *g = &w->frags[f];
    const struct sim_round *r = h->disk.rounds[f][g->round];
    bool final = true, mine = false;
    uint64_t tokens_at_send = w->tokens_base[f] + w->tokens_sent[f];
    const struct sim_log *l = logged(&h->disk, f, g->round);
    if (l && l->step != w->step && !h->disk.jumped)
        sim_fail(s,
                 "worker %u merges round %u of fragment %u at step %lld, the first run merged "
                 "it at %lld",
                 i, g->round, f, (long long)w->step, (long long)l->step);
    if (!l) {
        if (h->disk.n_log[f] == SIM_ROUNDS)
            sim_fail(s, "the merge log is full");
        h->disk.log[f][h->disk.n_log[f]++] = (struct sim_log){g->round, w->step, !g->in_flight};
    }
    for (uint8_t k = 0; k < r->commit.n; k++) {
        const struct inter_entry *e = &r->commit.entries[k];
        final = final && e->flags & INTER_FINAL;
        mine = mine || (e->member == i && !taken_over);
        if (e->member == i && !taken_over)
            settle_tokens(w, f, e->tokens, e->attempt / SIM_ATTEMPTS_OF_EPOCH < w->incarnation);
        if (e->verdict == INTER_REJECTED) {
            for (int x = 0; e->member == i && x < SIM_WORDS; x++) {
                w->dropped[f][x] += w->e[f][x] + w->p[f][x];
                w->e[f][x] = w->p[f][x] = 0;
            }
            continue;
        }
        const struct sim_blob *b = sim_disk_blob(r, e->member, e->attempt);
        if (!b || !b->whole)
            sim_fail(s, "host %u committed round %u without the update of %u", i, g->round,
                     e->member);
        if (e->member == i && !taken_over && e->attempt / SIM_ATTEMPTS_OF_EPOCH < h->disk.epoch &&
            (int64_t)b->m.step > w->step)
            sim_fail(s, "worker %u goes on at step %lld: the steps up to %llu are committed", i,
                     (long long)w->step, (unsigned long long)b->m.step);
        for (int x = 0; x < SIM_WORDS; x++) {
            w->theta[f][x] -= b->words[x];
            if (e->member == i && !taken_over)
                w->e[f][x] -= b->words[x]; // e = u − D(c), with the bytes in the ledger
        }
    }
    sim_note(s, g->in_flight ? "merge" : "merge of others", i, f, g->round, w->step, final);
    if (mine)
        g->committed_step = (int64_t)r->commit.cursors[i];
    if (mine && g->committed_step > g->send_step)
        g->missed = 0;
    else if (g->in_flight && !mine) // the update was late
        g->missed += w->missed_sent[f] + 1;
    else if (g->in_flight && w->again[f] && w->tokens_base[f] < tokens_at_send)
        g->missed += w->missed_sent[f];
    g->in_flight = g->arrived = false;
    g->round++;
    g->merged_step = w->step;
    g->finished = final;
    if (!taken_over)
        sim_check_worker(s, i, f);
}

// True if the commit has an update of a previous incarnation with steps that this one has not made.
static bool of_previous_incarnation(const struct sim_worker_state *w, uint8_t i,
                                    const struct inter_record *r) {
    for (uint8_t k = 0; k < r->n; k++)
        if (r->entries[k].member == i && r->entries[k].verdict == INTER_ACCEPTED)
            return r->entries[k].attempt / SIM_ATTEMPTS_OF_EPOCH < w->incarnation &&
                   (int64_t)r->cursors[i] > w->step;
    return false;
}

// Merges such a commit and skips to its cursor. All that this incarnation learned of fragment f is
// part of the commit; the skipped steps count as dropped for the other fragments.
static void take_over(struct sim *s, uint8_t i, uint32_t f) {
    struct sim_worker_state *w = &s->h[i].w;
    int64_t cursor = (int64_t)s->h[i].disk.rounds[f][w->frags[f].round]->commit.cursors[i],
            before = w->step;
    int64_t made[SIM_WORDS], all[SIM_WORDS];
    uint64_t skipped = (uint64_t)(cursor - before) * sim_tokens_of_step(i);
    merge(s, i, f, true);
    w->step = cursor;
    w->frags[f].merged_step = cursor;
    w->frags[f].missed = 0;
    for (uint32_t g = 0; g < s->o.fragments; g++) {
        sim_produced(s->o.seed, i, g, before, made);
        sim_produced(s->o.seed, i, g, cursor, all);
        for (int x = 0; x < SIM_WORDS; x++)
            w->dropped[g][x] += all[x] - made[x];
        w->tokens_lost[g] += (int64_t)skipped;
    }
    sim_produced(s->o.seed, i, f, cursor, w->dropped[f]);
    w->tokens_base[f] = w->tokens;
    w->tokens_lost[f] = cursor * (int64_t)sim_tokens_of_step(i);
    for (uint32_t n = 0; n < w->frags[f].round; n++) {
        w->tokens_lost[f] -= (int64_t)s->oracle->commits[f][n].tokens[i];
        for (int x = 0; x < SIM_WORDS; x++)
            w->dropped[f][x] -= s->oracle->commits[f][n].words[i][x];
    }
    memset(w->e[f], 0, sizeof w->e[f]);
    memset(w->p[f], 0, sizeof w->p[f]);
    s->h[i].disk.jumped = true;
    s->r.taken_over++;
    sim_note(s, "take over", i, f, w->frags[f].round - 1, before, cursor);
    for (uint32_t g = 0; g < s->o.fragments; g++)
        sim_check_worker(s, i, g);
}

// True if enough members are reachable for a commit.
static bool expected(struct sim *s, const struct sim_host *h) {
    struct inter_job_status st;
    uint8_t id[INTER_ID_BYTES] = {1};
    struct member_set data = mset_none(), all = mset_first((int)s->o.members);
    if (!inter_node_job_status(h->node, id, sim_clock(s, h), &st))
        return false;
    for (uint8_t m = 0; m < s->o.members; m++)
        mset_assign(&data, m, !s->h[m].witness);
    return mset_majority(st.live, all) &&
           mset_count(mset_common(mset_minus(st.live, st.idle), data)) >= 2 && mset_empty(st.waits);
}

static bool holds(const struct inter_record *r, uint8_t member) {
    for (uint8_t k = 0; k < r->n; k++)
        if (r->entries[k].member == member)
            return true;
    return false;
}

static bool exchange_pass(struct sim *s, uint8_t i, const struct agent_schedule *sched,
                          bool *changed) {
    struct sim_host *h = &s->h[i];
    struct sim_worker_state *w = &h->w;
    bool ready = true, peers = expected(s, h);
    uint32_t boot = h->worker_boot;
    *changed = false;
    for (uint32_t f = 0; f < s->o.fragments; f++) {
        struct agent_fragment *g = &w->frags[f], before = *g;
        for (bool more = true; more;) {
            const struct sim_log *l = logged(&h->disk, f, g->round);
            bool here = commit_here(s, i, f, g->round) && !g->finished;
            // The others committed without this worker. If the commit has an update of this worker,
            // the run is a repeated one.
            bool foreign = here && !holds(&h->disk.rounds[f][g->round]->commit, i);
            if (here && (!l || l->step <= w->step) &&
                of_previous_incarnation(w, i, &h->disk.rounds[f][g->round]->commit)) {
                take_over(s, i, f);
                continue;
            }
            if (!g->in_flight && here && (l ? l->foreign && l->step <= w->step : foreign)) {
                merge(s, i, f, false);
                continue;
            }
            // the first run merged here: wait for the ledger
            if (!g->in_flight && l && l->foreign && l->step <= w->step) {
                ready = false;
                break;
            }
            g->arrived = g->in_flight && here;
            // same rule as in agent/exchange
            if (g->in_flight && !g->arrived && peers && !l && w->again[f] < 3 && g->missed > 3) {
                send(s, i, f, sched);
                if (!h->worker_alive || h->worker_boot != boot)
                    return false;
                break;
            }
            enum agent_decision d = agent_schedule_decide(sched, w->frags, (int32_t)f, w->step,
                                                          peers, w->counted_miss[f]);
            more = d == AGENT_SEND || d == AGENT_MERGE || d == AGENT_MISS;
            if (d == AGENT_SEND) {
                send(s, i, f, sched);
                if (!h->worker_alive || h->worker_boot != boot)
                    return false; // the host crashed while it sent
            } else if (d == AGENT_MERGE) {
                merge(s, i, f, false);
            } else if (d == AGENT_WAIT) {
                ready = false;
            } else if (d == AGENT_MISS) {
                g->missed++;
                w->counted_miss[f] = w->step;
            }
        }
        *changed = *changed || g->round != before.round || g->in_flight != before.in_flight;
        const struct sim_log *l = logged(&h->disk, f, g->round);
        if (g->in_flight && !g->arrived && w->step >= g->merge_step && l)
            ready = false;
    }
    return ready;
}

static bool exchange(struct sim *s, uint8_t i, const struct agent_schedule *sched) {
    struct sim_host *h = &s->h[i];
    uint32_t boot = h->worker_boot;
    for (bool changed;;) {
        bool ready = exchange_pass(s, i, sched, &changed);
        if (!changed || !h->worker_alive || h->worker_boot != boot)
            return ready;
    }
}

static void save(struct sim *s, uint8_t i) {
    s->h[i].disk.checkpoint = s->h[i].w;
    s->h[i].disk.has_checkpoint = true;
    sim_disk_prune(s, i);
}

// Counts as dropped all that was learned before w->step and is neither committed, nor in the
// residual, nor unsent.
static void count_dropped(struct sim *s, uint8_t i) {
    struct sim_worker_state *w = &s->h[i].w;
    for (uint32_t f = 0; f < s->o.fragments; f++) {
        sim_produced(s->o.seed, i, f, w->step, w->dropped[f]);
        for (uint32_t n = 0; n < w->frags[f].round; n++)
            // after a divergence the oracle knows one side only
            if (!s->split.on && !sim_lies(s, i) && s->oracle->commits[f][n].steps[i] > w->step)
                sim_fail(s, "worker %u goes on at step %lld: the steps up to %lld are committed", i,
                         (long long)w->step, (long long)s->oracle->commits[f][n].steps[i]);
        w->tokens_lost[f] = (int64_t)(sim_tokens_of_step(i) * (uint64_t)w->step) -
                            (int64_t)(w->tokens - w->tokens_base[f]);
        for (uint32_t n = 0; n < w->frags[f].round; n++)
            w->tokens_lost[f] -= (int64_t)s->oracle->commits[f][n].tokens[i];
        for (int x = 0; x < SIM_WORDS; x++) {
            for (uint32_t n = 0; n < w->frags[f].round; n++)
                w->dropped[f][x] -= s->oracle->commits[f][n].words[i][x];
            w->dropped[f][x] -= w->e[f][x] + w->p[f][x];
        }
        sim_check_worker(s, i, f);
    }
}

// After a disk loss: takes the parameters of the committed state and continues the data after its
// last committed update. False: the agent has not caught up yet.
static bool adopt(struct sim *s, uint8_t i) {
    struct sim_host *h = &s->h[i];
    struct sim_worker_state *w = &h->w;
    struct inter_job_status st;
    uint8_t id[INTER_ID_BYTES] = {1};
    if (!inter_node_job_status(h->node, id, sim_clock(s, h), &st) || !st.votes || st.lag)
        return false;
    for (uint32_t f = 0; f < s->o.fragments; f++) {
        struct agent_fragment *g = &w->frags[f];
        for (; commit_here(s, i, f, g->round); g->round++) {
            const struct sim_round *r = h->disk.rounds[f][g->round];
            bool final = true;
            for (uint8_t k = 0; k < r->commit.n; k++) {
                const struct inter_entry *e = &r->commit.entries[k];
                const struct sim_blob *b = sim_disk_blob(r, e->member, e->attempt);
                final = final && e->flags & INTER_FINAL;
                for (int x = 0; e->verdict == INTER_ACCEPTED && x < SIM_WORDS; x++)
                    w->theta[f][x] -= b->words[x];
            }
            if ((int64_t)r->commit.cursors[i] > w->step)
                w->step = (int64_t)r->commit.cursors[i];
            g->finished = final;
            h->disk.log[f][h->disk.n_log[f]++] = (struct sim_log){g->round, 0, true};
        }
        g->merged_step = w->step;
        w->tokens_base[f] = w->tokens;
    }
    w->incarnation = h->disk.epoch;
    h->disk.jumped = true;
    count_dropped(s, i);
    sim_note(s, "state adopted", i, w->step, w->frags[0].round, 0, 0);
    save(s, i);
    h->needs_state = false;
    return true;
}

// Replaces the `taken` fragments of the own checkpoint by those of a snapshot. The step never falls
// behind a committed update of this worker.
void sim_worker_adopt(struct sim *s, uint8_t i, const struct sim_worker_state *from,
                      uint64_t taken) {
    struct sim_host *h = &s->h[i];
    struct sim_worker_state *w = &h->w;
    if (h->disk.has_checkpoint)
        *w = h->disk.checkpoint;
    else
        reset(s, w);
    for (uint32_t f = 0; f < s->o.fragments; f++) {
        const struct agent_fragment *g = &from->frags[f];
        if (!(taken >> f & 1))
            continue;
        int64_t cursor = (int64_t)s->oracle->commits[f][g->round - 1].r.cursors[i];
        w->step = cursor > w->step ? cursor : w->step;
        w->frags[f] =
            (struct agent_fragment){.round = g->round, .finished = g->finished, .send_step = -1};
        w->counted_miss[f] = -1;
        memcpy(w->theta[f], from->theta[f], sizeof w->theta[f]);
        memset(w->e[f], 0, sizeof w->e[f]);
        memset(w->p[f], 0, sizeof w->p[f]);
        w->tokens_base[f] = w->tokens;
    }
    for (uint32_t f = 0; f < s->o.fragments; f++)
        if (taken >> f & 1)
            w->frags[f].merged_step = w->step;
    if (!h->disk.has_checkpoint)
        w->incarnation = h->disk.epoch;
    h->disk.jumped = true;
    count_dropped(s, i);
    save(s, i);
}

// With --idle one worker ends at a random moment, if enough honest workers remain for a round (the
// profile `robust` needs all but one).
static bool ends_for_good(const struct sim *s, uint8_t i) {
    uint64_t z = neb_mix64(s->o.seed + 41);
    uint32_t data = s->o.members - s->o.witnesses;
    bool enough = s->byzantine ? data > 3 && !s->o.robust : data > 2;
    return s->o.idle && enough && i == z % data && !sim_lies(s, i) && !s->h[i].needs_state &&
           s->now >= (neb_ns)(z >> 8) % 50 * NEB_S;
}

void sim_work(struct sim *s, uint8_t i) {
    struct sim_host *h = &s->h[i];
    struct sim_worker_state *w = &h->w;
    if (ends_for_good(s, i)) {
        sim_note(s, "idle", i, w->step, 0, 0, 0);
        h->idle = true;
        h->worker_alive = false;
        inter_node_job_idle(h->node, (uint8_t[INTER_ID_BYTES]){1});
        return;
    }
    if (sim_lies(s, i)) {
        sim_byzantine_works(s, i);
        return;
    }
    if (h->needs_state && !adopt(s, i)) {
        sim_post(s, h->step_time, SIM_WORK, i, 0, h->worker_boot);
        return;
    }
    struct agent_schedule sched = {.steps = s->interval * s->o.rounds,
                                   .interval = (int32_t)s->interval,
                                   .overlap = (int32_t)s->overlap,
                                   .fragments = (int32_t)s->o.fragments};
    uint32_t boot = h->worker_boot;
    bool done = true;
    for (uint32_t f = 0; f < s->o.fragments; f++) {
        done = done && w->frags[f].finished;
        // A restarted worker sends its update again.
        if (w->frags[f].in_flight && !commit_here(s, i, f, w->frags[f].round)) {
            submit(s, i, f);
            if (!h->worker_alive || h->worker_boot != boot)
                return;
        }
    }
    h->finished = done;
    if (done) {
        save(s, i);
        return;
    }
    bool ready = exchange(s, i, &sched);
    if (!h->worker_alive || h->worker_boot != boot)
        return;
    if (ready && w->step < sched.steps) {
        for (uint32_t f = 0; f < s->o.fragments; f++)
            for (int k = 0; k < SIM_WORDS; k++)
                w->p[f][k] += learned(s->o.seed, i, f, w->step, k);
        w->step++;
        w->tokens += sim_tokens_of_step(i);
        s->r.steps++;
        for (uint32_t f = 0; f < s->o.fragments; f++)
            at_cursor(w, f);
        if (w->step % 5 == 0)
            save(s, i);
    }
    sim_post(s, h->step_time, SIM_WORK, i, 0, h->worker_boot);
}
