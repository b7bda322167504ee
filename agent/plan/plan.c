// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/plan.h"
#include "agent/job/sides.h"
#include "agent/plan/profile.h"
#include "agent/train/label_bytes.h"
#include "intra/cost/cost.h"
#include "intra/train/trainer.h"
#include "security/secure_sum.h"

#include <math.h>
#include <stdlib.h>

// A plan counts tensors whose size depends on the vocabulary only if it knows the vocabulary.
static bool counts(const struct intra_tensor *t, int32_t vocab) {
    return vocab || t->row_kind == INTRA_ROWS_NONE;
}

static struct intra_model *layout_of(const struct agent_job *job, int32_t vocab) {
    struct intra_model_config c = job->model;
    c.vocab = vocab;
    return intra_cost_layout(&c, &job->trainable);
}

static void count_params(const struct agent_job *job, int32_t vocab, struct agent_plan *p) {
    struct intra_model *m = layout_of(job, vocab);
    for (int32_t i = 0; i < m->n_tensors; i++) {
        const struct intra_tensor *t = &m->tensors[i];
        int64_t n = counts(t, vocab) ? (int64_t)intra_tensor_size(t) : 0;
        p->params += n;
        if (!t->trainable)
            continue;
        p->trainable += n;
        p->tensor = n > p->tensor ? n : p->tensor;
    }
    intra_model_destroy(&m);
}

enum neb_status agent_codec_bits(const char *name, double *bits) {
    struct cmp_codec codec;
    NEB_TRY(cmp_codec_parse(name, &codec));
    return agent_profile_sample(&codec, bits, NULL);
}

const char *agent_bits_text(double bits, double most, char *out, size_t cap) {
    bool fixed = most > 0 && most <= 1.001 * bits;
    int n = snprintf(out, cap, "%s%.2f bits per parameter", fixed ? "" : "about ", bits);
    if (!fixed && most > 0 && n > 0 && (size_t)n < cap)
        snprintf(out + n, cap - (size_t)n, ", at most %.2f", most);
    return out;
}

// ---- bytes of an update -------------------------------------------------------------------------

struct shape { // a shape of units, and what one takes in an update
    int32_t rows, cols;
    double bytes;
};

// Adds what all units take. A model has few different shapes, so each is encoded once.
static enum neb_status add_units(const struct cmp_codec *codec, const struct intra_unit *units,
                                 int32_t n, int32_t vocab, struct agent_plan *p) {
    struct shape *all = calloc((size_t)n + 1, sizeof *all);
    int32_t shapes = 0, counted = 0;
    if (!all)
        return neb_fail(NEB_ERR_NOMEM, "out of memory planning %d units", n);
    enum neb_status st = NEB_OK;
    for (int32_t i = 0; i < n && st == NEB_OK; i++) {
        const struct intra_unit *u = &units[i];
        int32_t k = 0;
        if (!counts(u->tensor, vocab))
            continue;
        while (k < shapes && (all[k].rows != u->rows || all[k].cols != u->cols))
            k++;
        if (k == shapes) {
            all[shapes++] = (struct shape){u->rows, u->cols, 0};
            st = agent_profile_unit(codec, u->rows, u->cols, &all[k].bytes);
        }
        p->bytes_per_exchange += all[k].bytes;
        counted++;
    }
    p->bits_most = (double)cmp_codec_bytes_max(codec, (uint64_t)p->trainable, (uint64_t)counted);
    free(all);
    return st;
}

// What all fragments take together. Masked sums have one size, whatever the values.
static enum neb_status add_updates(const struct agent_job *job, int32_t vocab,
                                   struct agent_plan *p) {
    struct cmp_codec codec;
    struct intra_unit *units = NULL;
    int32_t fragments = agent_job_fragments(job), n = 0;
    if (job->sync.gate == AGENT_GATE_PRIVATE) {
        p->bytes_per_exchange =
            2 * (double)p->trainable +
            (double)fragments * (double)sec_sum_bytes((uint8_t)(p->others + 1), 0);
        p->bits_most = p->bytes_per_exchange;
        return NEB_OK;
    }
    NEB_TRY(cmp_codec_parse(job->sync.codec, &codec));
    struct intra_model *m = layout_of(job, vocab);
    enum neb_status st = intra_units(m, &units, &n);
    if (st == NEB_OK)
        st = add_units(&codec, units, n, vocab, p);
    free(units);
    intra_model_destroy(&m);
    return st;
}

enum neb_status agent_plan_frames(const struct agent_job *job, struct intra_cost_job *out) {
    struct cmp_codec codec;
    int32_t members = out->members > 0 ? out->members : 2;
    bool alone = job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS; // exchange_alone
    NEB_TRY(cmp_codec_parse(alone ? "fp32" : job->sync.codec, &codec));
    NEB_TRY(agent_profile_frames(&codec, members, &out->frames));
    if (job->sync.gate == AGENT_GATE_PRIVATE) // integers of 16 bits, and no streams of a codec
        out->frames = (struct intra_cost_frames){.work = 2, .update = 2};
    return NEB_OK;
}

// Mode rtd: a masked token costs about log2(vocabulary) bits, and one bit for its position. Text
// costs as much as its ids.
static void plan_stream(const struct agent_job *job, int32_t vocab, struct agent_plan *p) {
    const struct agent_rtd_config *r = &job->rtd;
    int64_t cycle =
        r->generator_steps > r->discriminator_steps ? r->generator_steps : r->discriminator_steps;
    double bits = log2(vocab > 2 ? (double)vocab : 32768);
    p->exchanges = (job->steps * r->discriminator_steps + cycle - 1) / cycle;
    p->bytes_per_exchange = (double)p->tokens_per_step / 8 *
                            ((double)r->mask_rate * (bits + 1) + (r->push_text ? bits : 0));
    p->bytes = p->bytes_per_exchange * (double)p->exchanges;
    p->reduction = p->bytes > 0 ? 4 * (double)p->trainable * (double)p->exchanges / p->bytes : NAN;
}

static int64_t exchanges_of(const struct agent_job *job) {
    const struct agent_sync *s = &job->sync;
    int64_t early = job->steps < s->early_steps ? job->steps : s->early_steps;
    return (job->steps - early + s->interval - 1) / s->interval + // the last one drains
           (early + s->early_interval - 1) / s->early_interval;
}

// Memory of libnebula, if a cluster has a training loop of its own.
static enum neb_status plan_attached_memory(const struct agent_job *job, int32_t vocab,
                                            struct agent_plan *p) {
    bool any = false;
    for (int32_t i = 0; i < job->n_clusters; i++)
        any = any || job->clusters[i].launcher == AGENT_LAUNCHER_ATTACH;
    if (!any)
        return NEB_OK;
    struct intra_cost_job attached = {.model = job->model,
                                      .trainable = job->trainable,
                                      .muon = job->optim.kind == INTRA_OPTIM_MUON,
                                      .mesh = {1, 1, 1},
                                      .outer = true,
                                      .fragments = agent_job_fragments(job),
                                      .members = p->others + 1,
                                      .copy = job->checkpoint_every && job->checkpoint_copy};
    const struct intra_rates none = {0};
    struct intra_cost cost;
    NEB_TRY(agent_plan_frames(job, &attached));
    attached.model.vocab = vocab;
    intra_cost_exchange(&attached, &none, &cost);
    p->attached_bytes = cost.rank_bytes;
    return NEB_OK;
}

// The rounds of all clusters that train, or of federated students. A shard's owner sends its update
// to each of the others.
static enum neb_status plan_rounds(const struct agent_job *job, int32_t vocab,
                                   struct agent_plan *p) {
    p->others = agent_job_exchanging(job) - 1;
    if (!p->others)
        return NEB_OK;
    NEB_TRY(add_updates(job, vocab, p));
    double n = fmax(1, (double)p->trainable); // 0: all depends on the vocabulary
    p->bits_per_param = 8 * p->bytes_per_exchange / n;
    p->bits_most *= 8 / n;
    NEB_TRY(plan_attached_memory(job, vocab, p));
    p->exchanges = exchanges_of(job);
    p->bytes = p->bytes_per_exchange * (double)p->exchanges * p->others;
    return NEB_OK;
}

// Only the text knows how many target tokens a batch has, so this takes the largest possible batch.
static enum neb_status plan_labels(const struct agent_job *job, int32_t vocab,
                                   struct agent_plan *p) {
    return agent_job_role(job, AGENT_ROLE_TEACHER) < 0
               ? NEB_OK
               : agent_label_bytes(job->distill.k, vocab > 2 ? vocab : 32768,
                                   (double)job->batch * job->seq_len, &p->label_bytes);
}

// Only the loops know the tensors.
static enum neb_status plan_attached(const struct agent_job *job, struct agent_plan *p) {
    p->reduction = NAN;
    p->tokens_per_step = job->step_tokens;
    p->others = job->sync.scheme == AGENT_SCHEME_NONE ? 0 : agent_job_exchanging(job) - 1;
    p->exchanges = p->others ? exchanges_of(job) : 0;
    return agent_codec_bits(job->sync.codec, &p->bits_per_param);
}

enum neb_status agent_job_plan(const struct agent_job *job, int32_t vocab, struct agent_plan *p) {
    *p = (struct agent_plan){0};
    if (job->attached)
        return plan_attached(job, p);
    vocab = job->model.vocab ? job->model.vocab : vocab;
    count_params(job, vocab, p);
    int64_t share = p->trainable / agent_job_fragments(job);
    p->fragment = share > p->tensor ? share : p->tensor;
    p->tokens_per_step = (int64_t)job->batch * job->accumulate * job->seq_len;
    p->tokens = job->steps * p->tokens_per_step;
    p->reduction = NAN;
    if (job->sync.scheme == AGENT_SCHEME_NONE)
        return NEB_OK;
    if (job->mode == AGENT_MODE_RTD) {
        plan_stream(job, vocab, p);
        return NEB_OK;
    }
    if (job->sync.scheme == AGENT_SCHEME_SYNCHRONOUS) {
        p->exchanges = job->steps;
        p->bits_per_param = 32;
        p->bytes_per_exchange = 4 * (double)p->trainable;
        p->bytes = p->bytes_per_exchange * (double)p->exchanges;
    } else {
        if (job->mode == AGENT_MODE_DISTILL)
            NEB_TRY(plan_labels(job, vocab, p));
        if (job->mode == AGENT_MODE_REPLICAS || agent_distill_federates(job))
            NEB_TRY(plan_rounds(job, vocab, p));
    }
    if (p->bytes > 0)
        p->reduction = 4 * (double)p->trainable * (double)job->steps / p->bytes;
    return NEB_OK;
}
