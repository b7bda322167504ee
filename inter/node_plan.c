// What members do from the round after the next: of what each said with its update, or as before. Its goodput is what it has said
// since, while that update travelled.
#include "inter/node_state.h"

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
    struct inter_tune_update updates[INTER_MEMBERS_MAX];
    neb_ns fastest = 0;
    uint32_t interval = 0; // as in the record before
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        updates[m] = update_of(s, j, g, m);
        neb_ns step = (neb_ns)updates[m].measure.step_us * NEB_US;
        fastest = step && (!fastest || step < fastest) ? step : fastest;
        if (g->slots[m].known && g->tuners[m].plan.interval > interval)
            interval = g->tuners[m].plan.interval;
    }
    for (uint8_t m = 0; m < j->c.n_members; m++) {
        for (uint8_t k = 0; k < j->c.n_members; k++) {
            neb_ns other = k == m ? 0 : inter_tune_travel(&g->tuners[k], &updates[k]);
            updates[m].others = other > updates[m].others ? other : updates[m].others;
        }
        updates[m].fastest = fastest;
        updates[m].interval = interval;
        inter_tune(&g->tuners[m], &j->c.tune, &updates[m]);
        r->plans[m] = g->tuners[m].plan;
    }
}
