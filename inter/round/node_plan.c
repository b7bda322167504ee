// SPDX-License-Identifier: Apache-2.0
// Plans: what members do from the round after the next, computed from what each one sent with its
// update. A member without an update keeps its plan. A member's goodput is its newest report, made
// while that update was in flight.
#include "inter/round/node_state.h"

static struct inter_tune_update update_of(const struct step *s, const struct job *j,
                                          const struct fragment *g, uint8_t m) {
    const struct slot *t = &g->slots[m];
    bool full = j->members[m].full;
    uint32_t kbps = m == j->c.self ? node_goodput(s, j, &full) : j->members[m].goodput_kbps;
    if (!t->known)
        return (struct inter_tune_update){0};
    struct inter_tune_update u = {.measure = t->m.measure,
                                  .bytes = t->m.bytes,
                                  .took =
                                      t->began ? (t->spread ? t->spread : s->now) - t->began : 0,
                                  .steps_done = t->m.step};
    if (kbps) {
        u.measure.goodput_kbps = kbps;
        u.measure.full = full;
    }
    return u;
}

void node_plan(const struct step *s, const struct job *j, struct fragment *g,
               struct inter_record *r) {
    struct inter_tune_update updates[NEB_MEMBERS_MAX];
    for (uint8_t m = 0; m < j->c.n_members; m++)
        updates[m] = update_of(s, j, g, m);
    inter_tune_round(g->tuners, &j->c.tune, updates, j->c.n_members);
    for (uint8_t m = 0; m < j->c.n_members; m++)
        r->plans[m] = g->tuners[m].plan;
}
