// SPDX-License-Identifier: Apache-2.0
#include "intra/train/shards.h"
#include "agent/base/status.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct turn {
    uint64_t elements;
    int32_t fragment, unit;
};

// By fragment, then by size, largest first, then by unit.
static int by_turn(const void *x, const void *y) {
    const struct turn *a = x, *b = y;
    if (a->fragment != b->fragment)
        return a->fragment < b->fragment ? -1 : 1;
    if (a->elements != b->elements)
        return a->elements > b->elements ? -1 : 1;
    return (a->unit > b->unit) - (a->unit < b->unit);
}

struct deal {
    intra_shards_held *held;
    void *user;
    int ranks;
    uint64_t *load, largest, total; // total: of the fragments so far
};

static int lightest(const struct deal *d) {
    int best = 0;
    for (int r = 1; r < d->ranks; r++)
        best = d->load[r] < d->load[best] ? r : best;
    return best;
}

// Of the ranks that hold most of the unit, the one with the lowest load.
static int best_holder(const struct deal *d, int32_t unit) {
    uint64_t most = d->held ? d->held(d->user, unit, 0) : 0;
    int best = 0;
    for (int r = 1; r < d->ranks; r++) {
        uint64_t has = d->held ? d->held(d->user, unit, r) : 0;
        if (has > most || (has == most && d->load[r] < d->load[best]))
            best = r;
        most = has > most ? has : most;
    }
    return best;
}

// Moves units of a fragment to the lightest rank, until no two ranks differ by more than the larger
// of one unit and 5 % of a share. One walk is enough: a unit that stays was within this bound when
// the walk passed it, and the lowest load never falls.
static void level(const struct deal *d, const struct turn *turns, int32_t n, int32_t *owner) {
    uint64_t share = d->total / (uint64_t)d->ranks / 20,
             slack = d->largest > share ? d->largest : share;
    for (int32_t i = 0; i < n; i++) {
        int to = lightest(d), from = owner[turns[i].unit];
        if (d->load[from] - d->load[to] <= slack)
            continue;
        owner[turns[i].unit] = to;
        d->load[from] -= turns[i].elements;
        d->load[to] += turns[i].elements;
    }
}

void intra_shards_assign(const uint64_t *elements, const int32_t *fragment, int32_t n, int ranks,
                         intra_shards_held *held, void *user, uint64_t *load, int32_t *owner) {
    struct deal d = {held, user, ranks, load, 0, 0};
    struct turn *turns = calloc((size_t)n + 1, sizeof *turns);
    NEB_ASSERT(turns); // a few bytes per unit
    memset(load, 0, (size_t)ranks * sizeof *load);
    for (int32_t i = 0; i < n; i++) {
        turns[i] = (struct turn){elements[i], fragment[i], i};
        d.largest = elements[i] > d.largest ? elements[i] : d.largest;
    }
    qsort(turns, (size_t)n, sizeof *turns, by_turn);
    for (int32_t i = 0, first = 0; i < n; i++) {
        int r = best_holder(&d, turns[i].unit);
        owner[turns[i].unit] = r;
        load[r] += turns[i].elements;
        d.total += turns[i].elements;
        if (i + 1 < n && turns[i + 1].fragment == turns[i].fragment)
            continue;
        level(&d, turns + first, i + 1 - first, owner);
        first = i + 1;
    }
    free(turns);
}

void intra_shards_fragments(const uint64_t *elements, const int32_t *layer, int32_t n,
                            int32_t layers, int32_t fragments, int32_t *fragment) {
    uint64_t *of_layer = calloc((size_t)layers + 2, sizeof *of_layer), sum = 0, total = 0;
    int32_t f = 0, left = 0; // layers from this one on that hold something
    bool used = false;       // fragment f holds something
    NEB_ASSERT(of_layer);
    for (int32_t i = 0; i < n; i++) {
        left += !of_layer[layer[i] + 1];
        of_layer[layer[i] + 1] += elements[i];
        total += elements[i];
    }
    for (int32_t l = 0; l < layers + 2; l++) {
        // Move on when the middle of this layer lies beyond the fragment's share, or when every
        // remaining fragment needs one of the remaining layers, so that none stays empty.
        if (f + 1 < fragments && used && of_layer[l] &&
            (left < fragments - f ||
             (sum + of_layer[l] / 2) * (uint64_t)fragments >= total * (uint64_t)(f + 1))) {
            f++;
            used = false;
        }
        used = used || of_layer[l] > 0;
        left -= of_layer[l] > 0;
        sum += of_layer[l];
        of_layer[l] = (uint64_t)f;
    }
    for (int32_t i = 0; i < n; i++)
        fragment[i] = (int32_t)of_layer[layer[i] + 1];
    free(of_layer);
}
