// SPDX-License-Identifier: Apache-2.0
// A step of each side of modes rtd and distill, and its time relative to a step of replicas: the
// 124M model, batches of its size, medians.
#include "agent/base/clock.h"
#include "intra/train/rtd.h"
#include "tests/gpu/gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM = 3, STEPS = 11, TOP = 16, MASKED = 7, SMALL_VOCAB = 97 }; // one in MASKED

struct modes {
    struct kern *D;
    struct kern *K;
    struct intra_trainer_config c;
    struct neb_rng r;
    size_t n;
    int32_t *x, *y, *at, *ids, *drawn;
    double *u;
    float *logp, *tail;
    double plain_ms; // a step of replicas
    bool small;
    int wrong;
};

struct side { // of one model
    struct intra_trainer *t;
    struct intra_model *frozen;
    struct intra_device *passes;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static struct intra_batch batch_of(const struct modes *m, const struct kern_soft *teacher) {
    return (struct intra_batch){
        .tokens = m->x, .targets = m->y, .B = m->c.batch, .T = m->c.seq_len, .teacher = teacher};
}

static bool replica(struct modes *m, struct side *s) {
    intra_trainer_micro(s->t, m->x, m->y);
    return true;
}
static bool discriminator(struct modes *m, struct side *s) {
    for (size_t i = 0; i < m->n; i++)
        m->y[i] = m->x[i] % MASKED == 0;
    intra_trainer_micro(s->t, m->x, m->y);
    return true;
}
static bool generator(struct modes *m, struct side *s) {
    for (size_t i = 0; i < m->n; i++)
        m->y[i] = i % MASKED ? KERN_IGNORE : m->y[i];
    intra_trainer_micro(s->t, m->x, m->y);
    intra_mask_draws(1, 1, (int32_t)(m->n / MASKED), m->u);
    return intra_device_sample(s->passes, m->c.model.vocab - 1, m->at, (int32_t)(m->n / MASKED), 1,
                               m->u, m->drawn) == NEB_OK;
}
static bool student(struct modes *m, struct side *s) {
    struct kern_soft soft = {.k = TOP,
                             .lambda = 0.5f,
                             .temperature = 2,
                             .ids = m->ids,
                             .logp = m->logp,
                             .tail = m->tail};
    struct intra_batch b = batch_of(m, &soft);
    intra_trainer_micro_batch(s->t, &b, NULL);
    return true;
}
static bool teacher(struct modes *m, struct side *s) {
    struct intra_batch b = batch_of(m, NULL);
    b.targets = NULL;
    return intra_device_pass(s->passes, &b, 0, NULL, NULL) == NEB_OK &&
           intra_device_labels(s->passes, m->at, (int32_t)m->n, TOP, 2, m->ids, m->logp, m->tail) ==
               NEB_OK;
}

static bool open_side(struct modes *m, struct side *s, const struct intra_trainer_config *c,
                      bool frozen) {
    struct intra_device_config d = {.D = m->D,
                                    .type = KERN_BF16,
                                    .batch = c->batch,
                                    .seq_len = c->seq_len,
                                    .micros = 1,
                                    .recompute = true,
                                    .soft_k = TOP};
    if (!frozen) {
        if (intra_trainer_create(c, m->K, &s->t) != NEB_OK)
            return false;
        s->passes = s->t->device;
        return true;
    }
    return intra_model_create(&c->model, &c->trainable, 1, &s->frozen) == NEB_OK &&
           intra_device_create(&d, s->frozen, NULL, &s->passes) == NEB_OK;
}

static void close_side(struct side *s) {
    if (!s->t)
        intra_device_destroy(&s->passes);
    intra_model_destroy(&s->frozen);
    intra_trainer_destroy(&s->t);
}

// Times a step of `work` by the host's clock, until the queue is empty.
static void measure(struct modes *m, const char *name, enum intra_head head, enum kern_mask mask,
                    bool frozen, bool (*work)(struct modes *, struct side *)) {
    struct side s = {0};
    struct intra_trainer_config c = m->c;
    struct intra_step_stats stats = {0};
    double ms[STEPS];
    int steps = m->small ? 3 : STEPS;
    c.model.head = head;
    c.model.mask = mask;
    bool well = open_side(m, &s, &c, frozen);
    for (int i = -WARM; well && i < steps; i++) {
        gpu_zipf(&m->r, &m->c, m->x, m->y);
        neb_ns from = neb_now();
        well = work(m, &s);
        if (s.t)
            intra_trainer_update(s.t, &stats);
        well = well && m->D->ops->finish(m->D) == NEB_OK && stats.status == NEB_OK &&
               isfinite(stats.loss);
        if (i >= 0)
            ms[i] = neb_seconds(neb_now() - from) * 1e3;
    }
    if (well) {
        qsort(ms, (size_t)steps, sizeof *ms, by_value);
        double median = ms[steps / 2];
        m->plain_ms = m->plain_ms > 0 ? m->plain_ms : median;
        printf("| %s | %.0f | %.1f | %.2f | %.1f |\n", name, (double)m->n / median * 1e3, median,
               median / m->plain_ms, (double)intra_device_bytes(s.passes) * 1e-9);
    } else {
        printf("| %s | **failed** | | | |\n", name);
    }
    m->wrong += !well;
    close_side(&s);
}

int gpu_modes(struct kern *D, bool small) {
    struct modes m = {.D = D, .r = neb_rng_make(4, 4), .small = small, .wrong = 1};
    m.c = small ? gpu_config(2, 64, 2, 96, SMALL_VOCAB, 16, 2)
                : gpu_config(12, 768, 12, 2048, 50304, 1024, 32);
    m.c.device = D;
    m.c.device_type = KERN_BF16;
    m.c.soft_k = TOP;
    m.n = (size_t)m.c.batch * (size_t)m.c.seq_len;
    m.x = malloc(m.n * sizeof *m.x);
    m.y = malloc(m.n * sizeof *m.y);
    m.at = malloc(m.n * sizeof *m.at);
    m.drawn = malloc(m.n * sizeof *m.drawn);
    m.u = malloc(m.n * sizeof *m.u);
    m.ids = malloc(m.n * TOP * sizeof *m.ids);
    m.logp = malloc(m.n * TOP * sizeof *m.logp);
    m.tail = malloc(m.n * sizeof *m.tail);
    if (m.x && m.y && m.at && m.drawn && m.u && m.ids && m.logp && m.tail &&
        kern_cpu_create(0, &m.K) == NEB_OK) {
        m.wrong = 0;
        for (size_t i = 0; i < m.n; i++)
            m.at[i] = (int32_t)i;
        printf("| a step of | tokens/s | ms | of replicas' | GB |\n| --- | --- | --- | --- | --- "
               "|\n");
        measure(&m, "replicas", INTRA_HEAD_LM, KERN_MASK_CAUSAL, false, replica);
        measure(&m, "discriminator", INTRA_HEAD_RTD, KERN_MASK_BIDIRECTIONAL, false, discriminator);
        measure(&m, "generator, draws at one position in 7", INTRA_HEAD_LM, KERN_MASK_BIDIRECTIONAL,
                false, generator);
        measure(&m, "teacher that is frozen, 16 labels at every position", INTRA_HEAD_LM,
                // the teacher's step comes first: the student learns from its labels
                KERN_MASK_CAUSAL, true, teacher);
        measure(&m, "student, 16 labels at every position", INTRA_HEAD_LM, KERN_MASK_CAUSAL, false,
                student);
        printf("\n");
    }
    kern_destroy(&m.K);
    free(m.x);
    free(m.y);
    free(m.at);
    free(m.drawn);
    free(m.u);
    free(m.ids);
    free(m.logp);
    free(m.tail);
    return m.wrong;
}
