// SPDX-License-Identifier: Apache-2.0
#include "inter/record/weights.h"

#include <string.h>

__extension__ typedef unsigned __int128 wide;

static uint64_t add(uint64_t a, uint64_t b) { // an honest job stays far below the limit
    return a + b < INTER_OTHERS_MAX ? a + b : INTER_OTHERS_MAX;
}

static bool counts(const struct inter_entry *e) {
    return e->verdict == INTER_ACCEPTED && e->tokens;
}

static uint64_t weigh(const struct inter_entry *e, const struct inter_absence *a, uint32_t newest,
                      uint64_t fresh) {
    if (!counts(e) || a->base == newest)
        return e->tokens;
    uint64_t all = add(a->others, fresh);
    uint64_t w = (uint64_t)(((wide)e->tokens * fresh + all / 2) / all);
    return w ? w : 1;
}

// Sets the absences that the next record needs.
static void follow(struct inter_record *r, const struct inter_absence before[NEB_MEMBERS_MAX]) {
    uint64_t all = 0;
    for (uint8_t i = 0; i < r->n; i++)
        if (counts(&r->entries[i]))
            all = add(all, r->entries[i].tokens);
    for (uint8_t m = 0; m < r->n_plans; m++)
        r->absences[m] = (struct inter_absence){before[m].base, add(before[m].others, all)};
    // a rejected update is dropped, and its member restarts from this round too
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].member < r->n_plans)
            r->absences[r->entries[i].member] = (struct inter_absence){r->round + 1, 0};
}

void inter_weights_fill(struct inter_record *r,
                        const struct inter_absence before[NEB_MEMBERS_MAX]) {
    uint32_t newest = 0;
    uint64_t fresh = 0;
    for (uint8_t i = 0; i < r->n; i++)
        if (counts(&r->entries[i]) && before[r->entries[i].member].base > newest)
            newest = before[r->entries[i].member].base;
    for (uint8_t i = 0; i < r->n; i++)
        if (counts(&r->entries[i]) && before[r->entries[i].member].base == newest)
            fresh = add(fresh, r->entries[i].tokens);
    for (uint8_t i = 0; i < r->n; i++) {
        struct inter_entry *e = &r->entries[i];
        e->weight =
            r->flags & INTER_MERGE ? weigh(e, &before[e->member], newest, fresh) : e->tokens;
    }
    follow(r, before);
}

bool inter_weights_agree(const struct inter_record *r,
                         const struct inter_absence before[NEB_MEMBERS_MAX]) {
    struct inter_record mine = *r;
    inter_weights_fill(&mine, before);
    for (uint8_t i = 0; i < r->n; i++)
        if (mine.entries[i].weight != r->entries[i].weight)
            return false;
    for (uint8_t m = 0; m < r->n_plans; m++)
        if (mine.absences[m].base != r->absences[m].base ||
            mine.absences[m].others != r->absences[m].others)
            return false;
    return true;
}
