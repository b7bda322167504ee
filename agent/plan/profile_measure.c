// SPDX-License-Identifier: Apache-2.0
// Measures a machine for agent/plan/profile.h: times micro-steps of small models, on processors and
// on a device, as training runs them. It takes the best of a few runs, with a clock that leaves out
// other processes (profile_clock.h), because a plan assumes an idle machine.
//
// Sizes rise until one takes too long; larger sizes then have the last rate. So a fast card is
// measured at sizes that keep it busy, and an emulated card (in tests) takes only seconds.
#include "agent/base/log.h"
#include "agent/plan/profile.h"
#include "agent/plan/profile_clock.h"
#include "intra/train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    RUNS = 3,
    CASE_MS = 100, // of one measurement on processors
    DEVICE_CASE_MS = 15,
    // No further run after one that took this long.
    RUN_MS_MOST = 1000,
    DEVICE_RUN_MS_MOST = 100,
    TOKENS = 1024, // of a micro-batch on processors; a quarter for the widest model
    SEQ = 256,
    HEAD = 64,
    COPY_BYTES = 16 << 20,
};
// A case that is expected to take longer than this is not timed. On a device, a smaller size gives
// the expected rate, which is too low.
static const double SKIP_S = 0.4, DEVICE_SKIP_S = 0.8;

struct place { // where a model trains
    struct kern *K;
    enum kern_type type;
};

// ---- micro-steps --------------------------------------------------------------------------------

// One block with the proportions of common models. The vocabulary has the same part of the FLOPs as
// in small models.
static struct intra_model_config model_of(int32_t width) {
    int32_t head = width / 2 < HEAD ? width / 2 : HEAD;
    return (struct intra_model_config){.vocab = 4 * width,
                                       .d_model = width,
                                       .n_layers = 1,
                                       .n_heads = width / head,
                                       .n_kv_heads = width / head,
                                       .head_dim = head,
                                       .d_ff = width / 2 * 5,
                                       .max_seq = SEQ,
                                       .rope_theta = 1e4f,
                                       .norm_eps = 1e-5f,
                                       .tied = true};
}

static const struct intra_trainable all = {.mode = INTRA_TRAIN_FULL};

static double flops_of(int32_t width, int32_t tokens) {
    int32_t T = tokens < SEQ ? tokens : SEQ;
    const struct intra_cost_job j = {.model = model_of(width),
                                     .trainable = all,
                                     .mesh = {1, 1, 1},
                                     .batch = tokens / T,
                                     .seq_len = T,
                                     .micros = 1,
                                     .ranks_a_host = 1,
                                     .share = 1};
    return intra_cost_flops(&j, NULL);
}

// The shortest micro-batch and the shortest update.
static enum neb_status run_steps(const struct place *at, struct intra_trainer *t,
                                 const struct intra_batch *b, double *micro_s, double *update_s) {
    struct profile_clock clock;
    struct intra_step_stats stats;
    bool host = kern_on_host(at->K);
    int threads = host ? kern_pool_threads(at->K->pool) : 1,
        case_ms = host ? CASE_MS : DEVICE_CASE_MS;
    neb_ns start = neb_now();
    *micro_s = *update_s = INFINITY;
    for (int i = 0; i <= RUNS || neb_now() - start < case_ms * NEB_MS; i++) {
        profile_clock_start(&clock);
        intra_trainer_micro_batch(t, b, NULL);
        NEB_TRY(at->K->ops->finish(at->K));
        double s = profile_clock_stop(&clock, threads);
        profile_clock_start(&clock);
        intra_trainer_update(t, &stats);
        NEB_TRY(stats.status);
        if (!i)
            continue; // in the first run pages are mapped, and libraries choose kernels
        *micro_s = fmin(*micro_s, s);
        *update_s = fmin(*update_s, profile_clock_stop(&clock, threads));
        if (s * 1000 > (host ? RUN_MS_MOST : DEVICE_RUN_MS_MOST))
            break;
    }
    return NEB_OK;
}

// The FLOP/s of a micro-step, and the parameters/s of its update.
static enum neb_status time_step(const struct place *at, int32_t width, int32_t tokens,
                                 double *rate, double *update) {
    int32_t T = tokens < SEQ ? tokens : SEQ, *ids = calloc((size_t)tokens, sizeof *ids);
    const struct intra_trainer_config c = {
        .model = model_of(width),
        .trainable = all,
        .optim = {.schedule = {.lr = 1e-6f}, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f},
        .batch = tokens / T,
        .seq_len = T,
        .accumulate = 1,
        .device = kern_on_host(at->K) ? NULL : at->K,
        .device_type = at->type};
    struct intra_trainer *t = NULL;
    double micro_s, update_s;
    enum neb_status st = ids ? intra_trainer_create(&c, at->K, &t)
                             : neb_fail(NEB_ERR_NOMEM, "out of memory measuring this machine");
    for (int32_t i = 0; st == NEB_OK && i < tokens; i++)
        ids[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)c.model.vocab);
    if (st == NEB_OK)
        st = run_steps(at, t,
                       &(struct intra_batch){.tokens = ids, .targets = ids, .B = c.batch, .T = T},
                       &micro_s, &update_s);
    if (st == NEB_OK) {
        *rate = flops_of(width, tokens) / micro_s;
        *update = (double)t->model->n_params / update_s;
    }
    intra_trainer_destroy(&t);
    free(ids);
    return st;
}

// ---- processors ---------------------------------------------------------------------------------

static enum neb_status on_processors(const struct place *at, double *step, double *update) {
    for (int i = 0; i < INTRA_COST_WIDTHS; i++) {
        int32_t width = intra_cost_widths[i],
                tokens = i == INTRA_COST_WIDTHS - 1 ? TOKENS / 4 : TOKENS;
        step[i] = i ? step[i - 1] : 0;
        if (!i || flops_of(width, tokens) / step[i] <= SKIP_S)
            NEB_TRY(time_step(at, width, tokens, &step[i], update));
    }
    return NEB_OK;
}

// threads 0: one for each processor. In bf16 the rates stay 0 if these processors have none.
static enum neb_status measure_rates(int threads, double (*step)[INTRA_COST_WIDTHS],
                                     int32_t *processors, double *update) {
    struct kern *K = NULL;
    double unused;
    NEB_TRY(kern_cpu_create(threads, &K));
    *processors = kern_pool_threads(K->pool);
    enum neb_status st = on_processors(&(struct place){.K = K}, step[KERN_F32], update);
    if (st == NEB_OK && kern_cpu_bf16_possible(K))
        st = on_processors(&(struct place){.K = K, .type = KERN_BF16}, step[KERN_BF16], &unused);
    kern_destroy(&K);
    return st;
}

// ---- devices ------------------------------------------------------------------------------------

static enum neb_status on_device(struct place *at, struct intra_device_rates *r) {
    for (int i = 0; i < INTRA_COST_STEPS; i++) {
        int32_t width = intra_cost_widths[i % INTRA_COST_WIDTHS],
                tokens = intra_cost_tokens[i / INTRA_COST_WIDTHS];
        double *step = &r->step[at->type][i];
        // The nearer of these two: the same width with fewer tokens, or a smaller width.
        if (i)
            *step = step[i < INTRA_COST_WIDTHS ? -1 : -INTRA_COST_WIDTHS];
        if (!i || flops_of(width, tokens) / *step <= DEVICE_SKIP_S)
            NEB_TRY(time_step(at, width, tokens, step, &r->update[at->type]));
    }
    return NEB_OK;
}

enum copy { COPY_UP, COPY_DOWN, COPY_WAIT };
static double time_copy(struct kern *D, enum copy what, void *there, void *pinned) {
    double best = INFINITY;
    for (int i = 0; i < 2 * RUNS; i++) {
        struct profile_clock clock;
        profile_clock_start(&clock);
        if (what == COPY_UP)
            D->ops->upload(D, there, pinned, COPY_BYTES);
        else
            D->ops->download(D, pinned, there, what == COPY_DOWN ? COPY_BYTES : sizeof(double));
        (void)D->ops->finish(D);
        best = fmin(best, profile_clock_stop(&clock, 1));
    }
    return best;
}

static enum neb_status measure_copies(struct kern *D, struct intra_device_rates *r) {
    void *there = NULL, *pinned = NULL;
    enum neb_status st = D->ops->alloc(D, COPY_BYTES, &there);
    if (st == NEB_OK)
        st = D->ops->alloc_pinned(D, COPY_BYTES, &pinned);
    if (st == NEB_OK) {
        memset(pinned, 0, COPY_BYTES);
        r->up = COPY_BYTES / time_copy(D, COPY_UP, there, pinned);
        r->down = COPY_BYTES / time_copy(D, COPY_DOWN, there, pinned);
        r->wait_s = time_copy(D, COPY_WAIT, there, pinned); // as a step waits for its norms
        st = D->ops->finish(D);
    }
    D->ops->release_pinned(D, pinned);
    D->ops->release(D, there);
    return st;
}

enum neb_status agent_profile_device(struct kern *D, struct intra_device_rates *r) {
    *r = (struct intra_device_rates){.count = D->count, .memory = (double)D->total_bytes};
    NEB_TRY(measure_copies(D, r));
    for (int t = 0; t < 2; t++) {
        struct place at = {.K = D, .type = t && !D->tensor_cores_bf16 ? KERN_F32 : t};
        NEB_TRY(on_device(&at, r));
        if (at.type != (enum kern_type)t) { // a card without bf16: jobs in bf16 are refused there
            memcpy(r->step[t], r->step[at.type], sizeof r->step[t]);
            r->update[t] = r->update[at.type];
        }
    }
    return NEB_OK;
}

// ---- the machine --------------------------------------------------------------------------------

static enum neb_status measure_sync(double *out) {
    char path[] = "/var/tmp/nebula-plan-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0)
        return neb_fail_errno("cannot measure an fsync in /var/tmp");
    double best = INFINITY;
    for (int i = 0; i < RUNS; i++) {
        neb_ns from = neb_now();
        if (write(fd, path, sizeof path) < 0 || fsync(fd) != 0) {
            close(fd);
            unlink(path);
            return neb_fail_errno("cannot measure an fsync in /var/tmp");
        }
        best = fmin(best, neb_seconds(neb_now() - from));
    }
    close(fd);
    unlink(path);
    *out = fmax(best, 1e-6);
    return NEB_OK;
}

enum neb_status agent_profile_measure(struct agent_profile *p) {
    struct kern_pool *pool = NULL;
    enum neb_status st = NEB_OK;
    double update;
    int32_t one;
    *p = (struct agent_profile){0};
    if (gethostname(p->host, sizeof p->host - 1) != 0 || !p->host[0])
        snprintf(p->host, sizeof p->host, "unnamed");
    snprintf(p->isa, sizeof p->isa, "%s", kern_cpu_isa());
    p->rates.memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    NEB_TRY(measure_rates(1, p->rates.one, &one, &update));
    NEB_TRY(measure_rates(0, p->rates.step, &p->rates.processors, &p->rates.update));
    NEB_TRY(kern_pool_create(p->rates.processors, &pool));
    for (int i = 0; cmp_variant(i, CMP_PLANNED) && st == NEB_OK; i++)
        st = agent_profile_codec(cmp_variant(i, CMP_PLANNED)->name, pool, &p->codecs[i]);
    kern_pool_destroy(&pool);
    NEB_TRY(st);
    agent_profile_find_link(p);
    NEB_TRY(measure_sync(&p->sync_s));
    return agent_profile_find_device(p);
}
