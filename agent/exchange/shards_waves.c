// SPDX-License-Identifier: Apache-2.0
// Which rank owns which unit, the waves in which a fragment is encoded and merged, and the memory
// that both take.
#include "agent/exchange/shards_plan.h"
#include "agent/exchange/shards_state.h"
#include "intra/train/shards.h"

#include <stdlib.h>
#include <string.h>

static enum neb_status deal(struct agent_shards *o) {
    uint64_t *elements = calloc((size_t)o->n + 1, sizeof *elements);
    if (!elements)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", o->n);
    for (int32_t i = 0; i < o->n; i++) {
        elements[i] = o->fragment[i] < 0 ? 0 : shards_unit_size(o, i);
        o->place[i] = o->elements;
        o->elements += elements[i];
    }
    intra_shards_assign(elements, o->fragment, o->n, o->single ? 1 : o->ranks, o->t.held, o->t.user,
                        o->load, o->owner);
    free(elements);
    for (int32_t i = 0; i < o->n; i++) {
        o->owner[i] = o->fragment[i] < 0 ? -1 : o->owner[i];
        o->local[i] = o->owner[i] == o->rank ? o->mine : -1;
        if (o->local[i] >= 0)
            o->own[o->mine++] = i;
    }
    return NEB_OK;
}

// Cuts each fragment into waves, in which no rank has more than `most` elements, or one unit.
static enum neb_status cut_waves(struct agent_shards *o, uint64_t most) {
    uint64_t *load = calloc((size_t)o->ranks, sizeof *load);
    if (!load)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", o->n);
    for (int32_t f = 0; f < o->c.fragments && most; f++) {
        int32_t wave = 0;
        memset(load, 0, (size_t)o->ranks * sizeof *load);
        for (int32_t i = 0; i < o->n; i++) {
            if (o->fragment[i] != f)
                continue;
            if (load[o->owner[i]] && load[o->owner[i]] + shards_unit_size(o, i) > most) {
                memset(load, 0, (size_t)o->ranks * sizeof *load);
                wave++;
            }
            load[o->owner[i]] += shards_unit_size(o, i);
            o->wave[i] = wave;
        }
    }
    free(load);
    return NEB_OK;
}

enum neb_status shards_deal(struct agent_shards *o, uint64_t wave) {
    NEB_TRY(deal(o));
    return cut_waves(o, wave);
}

size_t shards_places(const struct agent_shards *o, float **theta_m) {
    int32_t wave[INTER_FRAGMENTS_MAX] = {0};
    size_t end[INTER_FRAGMENTS_MAX] = {0}, most = 0;
    for (int32_t k = 0; k < o->mine; k++) {
        int32_t i = o->own[k], f = o->fragment[i];
        float *data = o->t.units[i].data;
        end[f] = wave[f] == o->wave[i] ? end[f] : 0;
        wave[f] = o->wave[i];
        if (theta_m)
            theta_m[k] = data ? data : o->room + end[f];
        end[f] += data ? 0 : shards_unit_size(o, i);
        most = end[f] > most ? end[f] : most;
    }
    return most;
}

int32_t shards_most_in_wave(const struct agent_shards *o) {
    int32_t most = 1, n[INTER_FRAGMENTS_MAX] = {0}, wave[INTER_FRAGMENTS_MAX] = {0};
    for (int32_t k = 0; k < o->mine; k++) {
        int32_t i = o->own[k], f = o->fragment[i];
        n[f] = wave[f] == o->wave[i] ? n[f] + 1 : 1;
        wave[f] = o->wave[i];
        most = n[f] > most ? n[f] : most;
    }
    return most;
}

bool shards_next(struct agent_shards *o, struct shards_wave *w) {
    int32_t number = -1;
    if (w->last)
        return false;
    w->begin = w->end;
    w->first += w->n;
    w->n = 0;
    for (; w->end < o->n; w->end++) {
        if (o->fragment[w->end] != w->f)
            continue;
        if (number >= 0 && o->wave[w->end] != number)
            break;
        number = o->wave[w->end];
        w->n += o->local[w->end] >= 0;
    }
    w->last = w->end == o->n;
    inter_outer_wave(o->outer, w->f, w->first, w->n, w->begin == 0, w->last);
    return true;
}

// Every thread has some units of a wave to work on, and a large model not too many waves: each one
// costs messages between ranks.
static uint64_t wave_elements(const struct agent_unit *units, int32_t n, int ranks, int threads) {
    enum { UNITS_A_THREAD = 2, UNITS_MIN = 4, WAVES_MAX = 64 };
    uint64_t unit = 0, all = 0, most = UNITS_A_THREAD * (uint64_t)threads;
    for (int32_t i = 0; i < n; i++) {
        unit = agent_unit_size(&units[i]) > unit ? agent_unit_size(&units[i]) : unit;
        all += agent_unit_size(&units[i]);
    }
    most = unit * (most > UNITS_MIN ? most : UNITS_MIN);
    all /= (uint64_t)ranks * WAVES_MAX;
    return most > all ? most : all;
}

uint64_t shards_wave_of(const struct agent_trainer *t, bool masked) {
    if (masked || (t->device && !t->deferred))
        return 0; // whole fragments
    return t->wave ? t->wave
                   : wave_elements(t->units, t->n_units, t->world ? t->world->size : 1,
                                   kern_pool_threads(t->pool));
}

// ---- prediction ---------------------------------------------------------------------------------

enum { BESIDE_A_UNIT = 34 << 10 }; // bytes: scratch of inter_outer, and what it knows of the unit

static enum neb_status lay_out(struct agent_shards *o, int threads) {
    size_t n = (size_t)o->n + 1;
    o->owner = calloc(n, sizeof *o->owner);
    o->local = calloc(n, sizeof *o->local);
    o->own = calloc(n, sizeof *o->own);
    o->place = calloc(n, sizeof *o->place);
    o->wave = calloc(n, sizeof *o->wave);
    o->load = calloc((size_t)o->ranks, sizeof *o->load);
    if (!o->owner || !o->local || !o->own || !o->place || !o->wave || !o->load)
        return neb_fail(NEB_ERR_NOMEM, "out of memory for %d units", o->n);
    return shards_deal(o, wave_elements(o->t.units, o->n, o->ranks, threads));
}

typedef void look(const struct agent_shards *o, void *out);

// Lays out the shards of all ranks, one after the other.
static enum neb_status each_rank(const struct agent_unit *units, int32_t n, const int32_t *fragment,
                                 int32_t fragments, int ranks, int threads, look *at, void *out) {
    enum neb_status st = NEB_OK;
    for (int r = 0; r < ranks && st == NEB_OK; r++) {
        struct agent_shards o = {.t.units = units,
                                 .c.fragments = fragments,
                                 .rank = r,
                                 .ranks = ranks,
                                 .n = n,
                                 .fragment = (int32_t *)(uintptr_t)fragment};
        st = lay_out(&o, threads);
        if (st == NEB_OK)
            at(&o, out);
        free(o.owner);
        free(o.local);
        free(o.own);
        free(o.place);
        free(o.wave);
        free(o.load);
    }
    return st;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void on_host(const struct agent_shards *o, void *out) {
    uint64_t *most = out, floats = INTER_OUTER_ARRAYS * o->load[o->rank] + shards_places(o, NULL);
    *most = larger(*most, floats * sizeof(float) + (uint64_t)o->mine * BESIDE_A_UNIT);
}

enum neb_status agent_shards_predict(const struct agent_unit *units, int32_t n,
                                     const int32_t *fragment, int32_t fragments, int ranks,
                                     int threads, uint64_t *bytes) {
    *bytes = 0;
    return each_rank(units, n, fragment, fragments, ranks, threads, on_host, bytes);
}

static void on_device(const struct agent_shards *o, void *out) {
    struct agent_shards_device *most = out;
    uint64_t unit = 0, scratch;
    for (int32_t k = 0; k < o->mine; k++)
        unit = larger(unit, shards_unit_size(o, o->own[k]));
    scratch = INTER_OUTER_UNITS * unit;
    most->there =
        larger(most->there, (INTER_OUTER_ARRAYS * o->load[o->rank] + scratch) * sizeof(float));
    most->pinned = larger(most->pinned, (INTER_OUTER_ARRAYS * unit + scratch) * sizeof(float));
    most->gathered = larger(most->gathered, shards_places(o, NULL) * sizeof(float));
}

enum neb_status agent_shards_predict_device(const struct agent_unit *units, int32_t n,
                                            const int32_t *fragment, int32_t fragments, int ranks,
                                            int threads, struct agent_shards_device *out) {
    *out = (struct agent_shards_device){0};
    return each_rank(units, n, fragment, fragments, ranks, threads, on_device, out);
}
