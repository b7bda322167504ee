// SPDX-License-Identifier: Apache-2.0
// All clusters of a job in one process, without links or agents: about as fast as a synchronous
// run. Trainer, samplers, schedule, codecs and outer step are the product's. So the losses are
// those of a real run in which every round has the update of every cluster.
//
//     nebula-clusters JOB.yaml [--set KEY=VALUE]... [options]      prints one line of JSON
//
//     --seed N, --steps N   as in `nebula pretrain`
//     --corpus DIR          instead of data.corpus
//     --threads N           default 1
//     --state FILE          saves its state here every 250 steps, and continues from it
//     --stop-at N           saves its state at this step and ends (for tests)
//     --device cuda         trains, encodes and merges on one device, with a queue per cluster; the
//                           line then has step_s: seconds of a step with its part of the exchange
//     --precision fp32|bf16 as clusters.precision (default: bf16 on a device, else fp32)
//     --absent FROM:TO      the link of the last cluster is down from step FROM to step TO
//
// In an absence all clusters train on. Three or more go on with rounds without the last one, which
// applies their commits at step TO. Two cannot: they merge at step TO. The absence must be longer
// than sync.merge_after intervals, and the job must have one fragment.
//
// sync.scheme: synchronous takes the batches of all clusters in every step. Every sync.interval
// steps it makes the outer step, on the change of the parameters since the last one.
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/exchange/exchange.h"
#include "agent/job/groups.h"
#include "agent/job/model.h"
#include "agent/train/tensors.h"
#include "agent/train/worker.h"
#include "inter/record/weights.h"
#include "kernels/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAVE_EVERY = 250,
    WARM_UP = 16, // steps that step_s leaves out, if there are twice as many
};

struct commit { // of an absence
    struct inter_outer_part parts[INTER_PARTS_MAX];
    size_t n;
};

struct member {
    struct kern *device; // NULL: the CPU
    struct intra_trainer *t;
    struct worker_tensors tensors;
    struct intra_sampler *samplers[AGENT_CLUSTERS_MAX];
    int n_samplers; // one; in synchronous training those of all clusters
    struct inter_outer *outer;
    uint64_t tokens, *counters; // counters (2 V): now
    uint64_t *row_counts;       // (rows of the largest unit)
    struct kept {
        uint64_t tokens, tokens_sent, *base, *sent; // at the last merge, at the send
        struct neb_buf blob;
    } kept[INTER_FRAGMENTS_MAX];
};

struct run {
    struct agent_job job;
    struct kern *K;
    struct intra_corpus *corpus;
    struct member *members;
    int n; // of members
    struct agent_schedule schedule;
    struct agent_fragment frags[INTER_FRAGMENTS_MAX];
    int32_t fragments, *fragment; // of each unit
    struct cmp_codec codecs[INTER_FRAGMENTS_MAX];
    int32_t *tokens, *targets;
    int64_t step, stop_at;
    uint64_t payload_bytes, rounds; // bytes of one cluster
    double loss;                    // of the last step, smoothed
    const char *state;
    int64_t absent_from, absent_to; // steps; both 0: no absence
    int senders;                    // the first members: the round in flight has their updates
    bool merges;                    // it is a merge round
    struct inter_absence absences[NEB_MEMBERS_MAX];
    struct commit *commits; // (n_commits) for the last member
    size_t n_commits;
    bool on_device;
    enum agent_precision precision;
    double step_s;
};

static bool synchronous(const struct run *r) {
    return r->job.sync.scheme == AGENT_SCHEME_SYNCHRONOUS;
}

static bool cut(const struct run *r) { // the link of the last member is down
    return r->step >= r->absent_from && r->step < r->absent_to;
}

static uint32_t missed(const struct run *r) { // intervals of the absence
    uint32_t n = 0;
    for (int64_t step = r->absent_from; step < r->absent_to; step++)
        n += agent_schedule_due(&r->schedule, 0, step);
    return n;
}

// ---- set-up -------------------------------------------------------------------------------------

static enum neb_status create_outer(struct run *r, struct member *m) {
    const struct agent_sync *s = &r->job.sync;
    int32_t n = m->tensors.n;
    size_t rows = 1, counters = 2 * (size_t)m->t->c.model.vocab;
    struct inter_outer_unit *units = calloc((size_t)n + 1, sizeof *units);
    if (!units)
        return NEB_ERR_NOMEM;
    for (int32_t i = 0; i < n; i++) {
        const struct agent_unit *u = &m->tensors.units[i];
        units[i] =
            (struct inter_outer_unit){.rows = u->rows,
                                      .cols = u->cols,
                                      .row_weights = u->counter[0] >= 0 || u->counter[1] >= 0,
                                      .fragment = r->fragment[i],
                                      .theta_m = u->data};
        rows = u->rows > rows ? u->rows : rows;
    }
    const struct inter_outer_config c = {.beta = s->error_feedback,
                                         .keep = s->blend > 0 ? 0 : s->anticipate / (float)r->n,
                                         .blend = s->blend,
                                         .kappa = s->kappa,
                                         .row_weights = s->row_weights,
                                         .fragments = r->fragments};
    enum neb_status st = inter_outer_create(&c, units, n, r->K->pool, &m->outer);
    free(units);
    m->counters = calloc(counters, sizeof *m->counters);
    m->row_counts = calloc(rows, sizeof *m->row_counts);
    for (int32_t f = 0; f < r->fragments; f++)
        if (!(m->kept[f].base = calloc(2 * counters, sizeof *m->counters)))
            return NEB_ERR_NOMEM;
        else
            m->kept[f].sent = m->kept[f].base + counters;
    return st != NEB_OK || (m->counters && m->row_counts) ? st : NEB_ERR_NOMEM;
}

// From here on the parameters on the host are those of the last pull.
static enum neb_status outer_to_device(struct member *m) {
    float **there = calloc((size_t)m->tensors.n + 1, sizeof *there);
    if (!there)
        return NEB_ERR_NOMEM;
    for (int32_t i = 0; i < m->tensors.n; i++)
        there[i] = worker_tensors_there(&m->tensors, i);
    enum neb_status st = inter_outer_to_device(m->outer, m->device, there, 0);
    free(there);
    return st;
}

static enum neb_status create_member(struct run *r, int number) {
    struct member *m = &r->members[number];
    const struct agent_job *j = &r->job;
    m->n_samplers = synchronous(r) ? j->n_clusters : 1;
    struct intra_trainer_config c = {
        .model = agent_job_model(j, NULL, intra_corpus_vocab(r->corpus), j->model.mask),
        .trainable = j->trainable,
        .optim = j->optim,
        .batch = j->batch,
        .seq_len = j->seq_len,
        .accumulate = j->accumulate * m->n_samplers,
        .recompute = j->recompute,
        .seed = (uint64_t)j->seed};
    c.optim.schedule.steps = j->steps;
    for (int i = 0; i < m->n_samplers; i++)
        NEB_TRY(agent_job_sampler(j, synchronous(r) ? i : number, r->corpus, &m->samplers[i]));
    if (r->on_device)
        NEB_TRY(kern_device_open(0, NULL, &m->device));
    c.device = m->device;
    c.device_type = r->precision == AGENT_PRECISION_BF16 ||
                            (r->precision == AGENT_PRECISION_AUTO && r->on_device)
                        ? KERN_BF16
                        : KERN_F32;
    NEB_TRY(intra_trainer_create(&c, r->K, &m->t));
    NEB_TRY(worker_tensors_create(NULL, m->t, &m->tensors));
    if (!r->fragment) {
        r->fragment = calloc((size_t)m->tensors.n, sizeof *r->fragment);
        if (!r->fragment)
            return NEB_ERR_NOMEM;
        NEB_TRY(exchange_cut(j, m->tensors.units, m->tensors.n, r->fragment));
    }
    NEB_TRY(create_outer(r, m));
    return m->device ? outer_to_device(m) : NEB_OK;
}

static enum neb_status set_up(struct run *r, int threads) {
    struct agent_job *j = &r->job;
    size_t tokens = (size_t)j->batch * (size_t)j->seq_len;
    if (j->mode != AGENT_MODE_REPLICAS || j->attached || j->sync.tune.mode != AGENT_TUNE_FIXED)
        return neb_fail(NEB_ERR_UNSUPPORTED, "the job needs mode: replicas, a built-in model and "
                                             "sync.tune: fixed");
    r->n = synchronous(r) ? 1 : j->n_clusters;
    r->fragments = agent_job_fragments(j);
    r->schedule = agent_schedule_of(j);
    r->schedule.overlap = synchronous(r) ? 0 : r->schedule.overlap;
    r->loss = NAN;
    if (r->absent_to && (r->n < 2 || r->fragments > 1 || r->absent_to > j->steps ||
                         missed(r) <= (uint32_t)j->sync.merge_after))
        return neb_fail(NEB_ERR_INVALID,
                        "--absent: an absence ends at step %lld at the latest, misses more than "
                        "%d intervals, and needs two clusters and one fragment",
                        (long long)j->steps, j->sync.merge_after);
    NEB_TRY(kern_cpu_create(threads, &r->K));
    NEB_TRY(intra_corpus_open(agent_job_corpus(j, 0), false, &r->corpus));
    for (int32_t f = 0; f < r->fragments; f++)
        NEB_TRY(cmp_codec_parse(synchronous(r) ? "fp32" : agent_job_fragment_codec(j, f),
                                &r->codecs[f]));
    r->tokens = calloc(tokens, sizeof *r->tokens);
    r->targets = calloc(tokens, sizeof *r->targets);
    r->members = calloc((size_t)r->n, sizeof *r->members);
    if (!r->tokens || !r->targets || !r->members)
        return neb_fail(NEB_ERR_NOMEM, "out of memory");
    for (int i = 0; i < r->n; i++)
        NEB_TRY(create_member(r, i));
    return NEB_OK;
}

// ---- rounds -------------------------------------------------------------------------------------

struct source {
    struct run *r;
    struct member *m;
    int32_t f;
};

// Tokens seen of each row since the last merge, as in agent/exchange/rounds.c.
static const uint64_t *row_counts(void *user, int32_t unit) {
    const struct source *s = user;
    const struct member *m = s->m;
    const struct agent_unit *u = &m->tensors.units[unit];
    const uint64_t *base = m->kept[s->f].base;
    bool coarse = s->r->job.sync.row_counts == AGENT_ROWS_COARSE;
    double share = m->tokens ? (double)(m->tokens - m->kept[s->f].tokens) / (double)m->tokens : 0;
    for (uint32_t row = 0; row < u->rows; row++) {
        uint64_t all = 0, before = 0;
        for (int k = 0; k < 2; k++)
            if (u->counter[k] >= 0) {
                all += m->counters[u->counter[k] + row];
                before += base[u->counter[k] + row];
            }
        m->row_counts[row] = coarse ? cmp_count_coarse(all - before, all, share) : all - before;
    }
    return m->row_counts;
}

static enum neb_status send_one(struct run *r, struct member *m, int32_t f, bool merges) {
    struct kept *k = &m->kept[f];
    struct source s = {r, m, f};
    struct cmp_codec codec = r->codecs[f];
    if (merges && cmp_codec_coarse(&codec)) // as in agent/exchange/fragments.c
        NEB_TRY(cmp_codec_parse("int8", &codec));
    NEB_TRY(worker_tensors_counts(&m->tensors, m->counters));
    neb_buf_clear(&k->blob);
    NEB_TRY(inter_outer_encode(m->outer, f, &codec, row_counts, &s, &k->blob));
    memcpy(k->sent, m->counters, 2 * (size_t)m->t->c.model.vocab * sizeof *k->sent);
    k->tokens_sent = m->tokens;
    return NEB_OK;
}

static enum neb_status send(struct run *r, int32_t f) {
    struct agent_fragment *g = &r->frags[f];
    bool first = r->step >= r->absent_to && g->committed_step < r->absent_to;
    r->senders = r->n - cut(r);
    r->merges = first && missed(r) > (uint32_t)r->job.sync.merge_after;
    for (int i = 0; i < r->senders; i++) {
        bool absent = r->n == 2 || i == r->n - 1; // of two, neither could commit
        NEB_TRY(send_one(r, &r->members[i], f, r->merges && absent));
    }
    r->payload_bytes += r->members[0].kept[f].blob.len;
    g->in_flight = g->arrived = true;
    g->send_step = r->step;
    g->merge_step = r->step + r->schedule.overlap;
    g->sent_final = r->step >= r->schedule.steps;
    return NEB_OK;
}

// The parts of a round by the weights of its record.
static void weigh(struct run *r, int32_t f, struct inter_outer_part *parts) {
    struct inter_record record = {.round = r->frags[f].round,
                                  .flags = r->merges ? INTER_MERGE : 0,
                                  .n = (uint8_t)r->senders,
                                  .n_plans = (uint8_t)r->n};
    for (int i = 0; i < r->senders; i++) {
        const struct kept *k = &r->members[i].kept[f];
        record.entries[i] = (struct inter_entry){
            .member = (uint8_t)i, .verdict = INTER_ACCEPTED, .tokens = k->tokens_sent - k->tokens};
    }
    inter_weights_fill(&record, r->absences);
    memcpy(r->absences, record.absences, sizeof r->absences);
    for (int i = 0; i < r->senders; i++)
        parts[i] = (struct inter_outer_part){.blob = r->members[i].kept[f].blob.p,
                                             .len = r->members[i].kept[f].blob.len,
                                             .tokens = record.entries[i].tokens,
                                             .weight = record.entries[i].weight,
                                             .clip = 1};
}

static enum neb_status keep_commit(struct run *r, const struct inter_outer_part *parts) {
    struct commit *more = realloc(r->commits, (r->n_commits + 1) * sizeof *more);
    if (!more)
        return NEB_ERR_NOMEM;
    r->commits = more;
    struct commit *c = &more[r->n_commits++];
    *c = (struct commit){.n = (size_t)r->senders};
    for (size_t p = 0; p < c->n; p++) {
        uint8_t *copy = malloc(parts[p].len + 1);
        if (!copy)
            return NEB_ERR_NOMEM;
        memcpy(copy, parts[p].blob, parts[p].len);
        c->parts[p] = parts[p];
        c->parts[p].blob = copy;
    }
    return NEB_OK;
}

static enum neb_status apply(struct run *r, int32_t f, int member, struct inter_outer_part *parts,
                             size_t n, struct kern_digest *digest) {
    const struct inter_outer_round round = {.parts = parts,
                                            .n = n,
                                            .eta = agent_job_fragment_eta(&r->job, f),
                                            .mu = agent_job_fragment_mu(&r->job, f),
                                            .merge = r->merges};
    for (size_t p = 0; p < n; p++)
        parts[p].mine = (int)p == member;
    return inter_outer_apply(r->members[member].outer, f, &round, digest);
}

static enum neb_status catch_up(struct run *r) {
    struct kern_digest d;
    r->merges = false;
    for (size_t k = 0; k < r->n_commits; k++) {
        NEB_TRY(apply(r, 0, r->n - 1, r->commits[k].parts, r->commits[k].n, &d));
        for (size_t p = 0; p < r->commits[k].n; p++)
            free((void *)r->commits[k].parts[p].blob);
    }
    r->n_commits = 0;
    return NEB_OK;
}

static enum neb_status merge(struct run *r, int32_t f) {
    struct agent_fragment *g = &r->frags[f];
    struct inter_outer_part parts[INTER_PARTS_MAX];
    struct kern_digest first = {0}, d;
    int senders = r->senders;
    weigh(r, f, parts);
    for (int i = 0; i < r->n; i++) {
        struct kept *k = &r->members[i].kept[f];
        if (i >= senders && cut(r)) {
            NEB_TRY(keep_commit(r, parts));
            continue;
        }
        NEB_TRY(apply(r, f, i, parts, (size_t)senders, &d));
        first = i ? first : d;
        if (memcmp(&first, &d, sizeof d) != 0)
            return neb_fail(NEB_ERR_STATE, "step %lld: the clusters' parameters differ",
                            (long long)r->step);
        if (g->sent_final)
            inter_outer_finish(r->members[i].outer, f);
        if (i >= senders)
            continue;
        k->tokens = k->tokens_sent;
        memcpy(k->base, k->sent, 2 * (size_t)r->members[i].t->c.model.vocab * sizeof *k->base);
    }
    g->in_flight = g->arrived = false;
    g->finished = g->sent_final;
    g->merged_step = r->step;
    g->committed_step = g->send_step;
    g->round++;
    r->rounds++;
    return NEB_OK;
}

static enum neb_status parameters_changed(struct run *r) { // on the device
    for (int i = 0; i < r->n && r->on_device; i++)
        NEB_TRY(intra_trainer_changed(r->members[i].t, NULL));
    return NEB_OK;
}

static enum neb_status exchange(struct run *r) {
    if (r->absent_to && r->step == r->absent_to) {
        NEB_TRY(catch_up(r));
        NEB_TRY(parameters_changed(r));
        if (r->n == 2) // both send again as soon as they see each other
            NEB_TRY(send(r, 0));
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (int32_t f = 0; f < r->fragments; f++)
            for (bool more = true; more;) {
                enum agent_decision d =
                    agent_schedule_decide(&r->schedule, r->frags, f, r->step, true, r->step);
                more = d == AGENT_MERGE || (d == AGENT_SEND && (r->n > 2 || !cut(r)));
                changed = changed || more;
                if (more)
                    NEB_TRY(d == AGENT_SEND ? send(r, f) : merge(r, f));
                if (d == AGENT_MERGE)
                    NEB_TRY(parameters_changed(r));
            }
    }
    return NEB_OK;
}

static enum neb_status learn(struct run *r, struct member *m, bool first) {
    struct intra_step_stats s;
    size_t T = (size_t)r->job.seq_len;
    for (int32_t a = 0; a < r->job.accumulate; a++)
        for (int i = 0; i < m->n_samplers; i++) {
            for (size_t b = 0; b < (size_t)r->job.batch; b++)
                intra_sampler_next(m->samplers[i], r->tokens + b * T, r->targets + b * T);
            intra_trainer_micro(m->t, r->tokens, r->targets);
        }
    intra_trainer_update(m->t, &s);
    m->tokens += (uint64_t)s.tokens;
    if (first)
        intra_loss_add(&(double){s.loss}, &r->loss, s.loss);
    return s.status;
}

// ---- state --------------------------------------------------------------------------------------

static void path_of(const struct run *r, int member, char *out) {
    snprintf(out, NEB_PATH_MAX, "%s.%d", r->state, member);
}

// Only while nothing is in flight.
static enum neb_status save_member(const struct run *r, struct member *m,
                                   struct intra_ckpt_writer *w) {
    struct inter_outer_array a[INTER_OUTER_ARRAYS];
    const uint64_t run[3] = {(uint64_t)r->step, r->payload_bytes, r->rounds};
    uint64_t cursor[INTRA_CURSOR_WORDS];
    size_t V = 2 * (size_t)m->t->c.model.vocab;
    char name[64];
    NEB_TRY(intra_trainer_save(m->t, w));
    NEB_TRY(intra_ckpt_add(w, "run", INTRA_U64, 3, 1, run));
    NEB_TRY(intra_ckpt_add(w, "frags", INTRA_BYTES, sizeof r->frags, 1, r->frags));
    NEB_TRY(intra_ckpt_add(w, "tokens", INTRA_U64, 1, 1, &m->tokens));
    for (int i = 0; i < m->n_samplers; i++) {
        intra_sampler_save(m->samplers[i], cursor);
        snprintf(name, sizeof name, "cursor.%d", i);
        NEB_TRY(intra_ckpt_add(w, name, INTRA_U64, INTRA_CURSOR_WORDS, 1, cursor));
    }
    NEB_TRY(inter_outer_pull(m->outer));
    inter_outer_arrays(m->outer, a);
    for (int i = 0; i < INTER_OUTER_ARRAYS; i++)
        NEB_TRY(intra_ckpt_add(w, a[i].name, INTRA_F32, a[i].n, 1, a[i].p));
    for (int32_t f = 0; f < r->fragments; f++) {
        const uint64_t kept[2] = {m->kept[f].tokens, inter_outer_version(m->outer, f)};
        snprintf(name, sizeof name, "kept.%d", f);
        NEB_TRY(intra_ckpt_add(w, name, INTRA_U64, 2, 1, kept));
        snprintf(name, sizeof name, "base.%d", f);
        NEB_TRY(intra_ckpt_add(w, name, INTRA_U64, V, 1, m->kept[f].base));
    }
    return NEB_OK;
}

static enum neb_status load_member(struct run *r, struct member *m, const struct intra_ckpt *c) {
    struct inter_outer_array a[INTER_OUTER_ARRAYS];
    uint64_t run[3], cursor[INTRA_CURSOR_WORDS];
    size_t V = 2 * (size_t)m->t->c.model.vocab;
    char name[64];
    NEB_TRY(intra_trainer_restore(m->t, c));
    NEB_TRY(intra_ckpt_read(c, "run", INTRA_U64, 3, 1, run));
    r->step = (int64_t)run[0];
    r->payload_bytes = run[1];
    r->rounds = run[2];
    NEB_TRY(intra_ckpt_read(c, "frags", INTRA_BYTES, sizeof r->frags, 1, r->frags));
    NEB_TRY(intra_ckpt_read(c, "tokens", INTRA_U64, 1, 1, &m->tokens));
    for (int i = 0; i < m->n_samplers; i++) {
        snprintf(name, sizeof name, "cursor.%d", i);
        NEB_TRY(intra_ckpt_read(c, name, INTRA_U64, INTRA_CURSOR_WORDS, 1, cursor));
        intra_sampler_restore(m->samplers[i], cursor);
    }
    inter_outer_arrays(m->outer, a);
    for (int i = 0; i < INTER_OUTER_ARRAYS; i++)
        NEB_TRY(intra_ckpt_read(c, a[i].name, INTRA_F32, a[i].n, 1, a[i].p));
    NEB_TRY(inter_outer_push(m->outer));
    for (int32_t f = 0; f < r->fragments; f++) {
        uint64_t kept[2];
        snprintf(name, sizeof name, "kept.%d", f);
        NEB_TRY(intra_ckpt_read(c, name, INTRA_U64, 2, 1, kept));
        m->kept[f].tokens = kept[0];
        inter_outer_set_fragment(m->outer, f, (uint32_t)kept[1], false);
        snprintf(name, sizeof name, "base.%d", f);
        NEB_TRY(intra_ckpt_read(c, name, INTRA_U64, V, 1, m->kept[f].base));
    }
    return NEB_OK;
}

// The last member's file counts: it is written last.
static enum neb_status save_all(struct run *r) {
    for (int i = 0; i < r->n; i++) {
        struct intra_ckpt_writer *w = NULL;
        char path[NEB_PATH_MAX];
        path_of(r, i, path);
        enum neb_status st = intra_ckpt_create(path, &w);
        if (st == NEB_OK)
            st = save_member(r, &r->members[i], w);
        if (st == NEB_OK)
            st = intra_ckpt_commit(w);
        intra_ckpt_writer_destroy(&w);
        NEB_TRY(st);
    }
    return NEB_OK;
}

static enum neb_status load_all(struct run *r) {
    for (int i = 0; i < r->n; i++) {
        struct intra_ckpt *c = NULL;
        char path[NEB_PATH_MAX];
        int64_t step = r->step;
        path_of(r, i, path);
        NEB_TRY(intra_ckpt_open(path, true, &c));
        enum neb_status st = load_member(r, &r->members[i], c);
        intra_ckpt_close(&c);
        NEB_TRY(st);
        if (i && step != r->step)
            return neb_fail(NEB_ERR_STATE,
                            "%s is of another step than the files before it: "
                            "remove them",
                            path);
    }
    return NEB_OK;
}

static bool quiet(const struct run *r) {
    if (r->n_commits)
        return false;
    for (int32_t f = 0; f < r->fragments; f++)
        if (r->frags[f].in_flight)
            return false;
    return true;
}

// ---- the run ------------------------------------------------------------------------------------

static enum neb_status train(struct run *r) {
    int64_t saved = r->step, timed = r->step;
    if (r->job.steps - r->step >= 2 * WARM_UP)
        timed += WARM_UP;
    neb_ns from = neb_now();
    while (r->step < r->job.steps) {
        for (int i = 0; i < r->n; i++)
            NEB_TRY(learn(r, &r->members[i], i == 0));
        r->step++;
        NEB_TRY(exchange(r));
        if (r->step > timed)
            r->step_s = neb_seconds(neb_now() - from) / (double)(r->step - timed);
        else if (r->step == timed)
            from = neb_now();
        bool stops = r->step >= r->stop_at;
        if (r->state && quiet(r) && (r->step >= saved + SAVE_EVERY || stops)) {
            NEB_TRY(save_all(r));
            saved = r->step;
        }
        if (stops && quiet(r))
            return NEB_OK;
    }
    return NEB_OK;
}

// The product's windows are spread over the split. The others lie in the middle between them: they
// serve to choose settings. by_source: NULL for these.
static enum neb_status evaluate(const struct run *r, double *loss, json_t *by_source) {
    size_t T = (size_t)r->job.seq_len;
    double sum = 0;
    int32_t counted = 0;
    for (int32_t i = 0; i < intra_corpus_sources(r->corpus); i++) {
        uint64_t have = intra_corpus_windows(r->corpus, i, INTRA_VALID, r->job.seq_len),
                 most = (uint64_t)r->job.eval_windows, n = most && most < have ? most : have;
        int32_t *x = calloc(2 * n * T + 1, sizeof *x);
        if (!x)
            return neb_fail(NEB_ERR_NOMEM, "out of memory evaluating");
        for (uint64_t k = 0; k < n; k++) {
            uint64_t at = by_source ? k * have / n : (2 * k + 1) * have / (2 * n);
            intra_corpus_window(r->corpus, i, INTRA_VALID, r->job.seq_len, at, x + k * T,
                                x + (n + k) * T);
        }
        double l = n ? intra_trainer_eval(r->members[0].t, x, x + n * T, (int)n) : 0;
        free(x);
        if (n && by_source)
            json_object_set_new(by_source, intra_corpus_source_name(r->corpus, i), json_real(l));
        sum += l;
        counted += n > 0;
    }
    *loss = sum / counted;
    return NEB_OK;
}

static enum neb_status report(struct run *r) {
    const struct intra_model *m = r->members[0].t->model;
    double loss = NAN, other = NAN, dense = 4 * (double)m->n_trainable * (double)r->job.steps;
    json_t *by_source = json_object();
    NEB_TRY(evaluate(r, &loss, by_source));
    NEB_TRY(evaluate(r, &other, NULL));
    json_t *o = json_pack("{s:f,s:f,s:o,s:f,s:I,s:I,s:I,s:I}", "eval_loss", loss, "eval_loss_other",
                          other, "eval_by_source", by_source, "train_loss", r->loss, "seed",
                          (json_int_t)r->job.seed, "steps", (json_int_t)r->step, "params",
                          (json_int_t)m->n_params, "rounds", (json_int_t)r->rounds);
    if (!synchronous(r)) {
        json_object_set_new(o, "payload_bytes", json_integer((json_int_t)r->payload_bytes));
        json_object_set_new(o, "reduction_payload", json_real(dense / (double)r->payload_bytes));
    }
    if (r->on_device)
        json_object_set_new(o, "step_s", json_real(r->step_s));
    json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(7));
    putchar('\n');
    json_decref(o);
    return NEB_OK;
}

static void destroy(struct run *r) {
    for (int i = 0; r->members && i < r->n; i++) {
        struct member *m = &r->members[i];
        inter_outer_destroy(&m->outer);
        worker_tensors_destroy(&m->tensors);
        intra_trainer_destroy(&m->t);
        kern_destroy(&m->device);
        for (int k = 0; k < m->n_samplers; k++)
            intra_sampler_destroy(&m->samplers[k]);
        for (int32_t f = 0; f < r->fragments; f++) {
            free(m->kept[f].base);
            neb_buf_free(&m->kept[f].blob);
        }
        free(m->counters);
        free(m->row_counts);
    }
    free(r->commits);
    free(r->members);
    free(r->fragment);
    free(r->tokens);
    free(r->targets);
    intra_corpus_close(&r->corpus);
    kern_destroy(&r->K);
}

static enum neb_status set(struct run *r, const char *key, const char *value) {
    char text[NEB_PATH_MAX + 64];
    snprintf(text, sizeof text, "%s=%s", key, value);
    return agent_job_set(&r->job, text);
}

static enum neb_status take_absence(struct run *r, const char *value) {
    char *end;
    r->absent_from = strtol(value, &end, 10);
    r->absent_to = *end == ':' ? strtol(end + 1, &end, 10) : 0;
    return !*end && r->absent_from > 0 && r->absent_from < r->absent_to
               ? NEB_OK
               : neb_fail(NEB_ERR_INVALID, "--absent is FROM:TO, two steps, not \"%s\"", value);
}

static enum neb_status take(struct run *r, int argc, char **argv, int *threads) {
    if (argc < 2)
        return neb_fail(NEB_ERR_INVALID, "usage: nebula-clusters JOB.yaml [options]");
    NEB_TRY(agent_job_load(argv[1], &r->job));
    for (int i = 2; i < argc; i++) {
        const char *key = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        i++;
        if (!strcmp(key, "--set"))
            NEB_TRY(agent_job_set(&r->job, value));
        else if (!strcmp(key, "--seed") || !strcmp(key, "--steps"))
            NEB_TRY(set(r, key + 2, value));
        else if (!strcmp(key, "--corpus"))
            NEB_TRY(set(r, "data.corpus", value));
        else if (!strcmp(key, "--threads"))
            *threads = (int)strtol(value, NULL, 10);
        else if (!strcmp(key, "--stop-at"))
            r->stop_at = strtol(value, NULL, 10);
        else if (!strcmp(key, "--absent"))
            NEB_TRY(take_absence(r, value));
        else if (!strcmp(key, "--state"))
            r->state = value;
        else if (!strcmp(key, "--device") && !strcmp(value, "cuda"))
            r->on_device = true;
        else if (!strcmp(key, "--precision") && !strcmp(value, "fp32"))
            r->precision = AGENT_PRECISION_FP32;
        else if (!strcmp(key, "--precision") && !strcmp(value, "bf16"))
            r->precision = AGENT_PRECISION_BF16;
        else
            return neb_fail(NEB_ERR_INVALID, "unknown option %s %s", key, value);
    }
    return agent_job_validate(&r->job, argv[1]);
}

int main(int argc, char **argv) {
    static struct run r = {.stop_at = INT64_MAX};
    int threads = 1;
    char path[NEB_PATH_MAX];
    neb_log_set_level(NEB_LOG_WARN);
    enum neb_status st = take(&r, argc, argv, &threads);
    if (st == NEB_OK)
        st = set_up(&r, threads);
    if (st == NEB_OK && r.state) {
        path_of(&r, r.n - 1, path);
        st = neb_fs_exists(path) ? load_all(&r) : NEB_OK;
    }
    if (st == NEB_OK)
        st = train(&r);
    if (st == NEB_OK)
        st = report(&r);
    destroy(&r);
    return st == NEB_OK ? 0 : 1;
}
