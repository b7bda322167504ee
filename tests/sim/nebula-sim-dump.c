// Where everybody stands: printed when a run fails.
#include "inter/node_state.h"
#include "tests/sim/sim.h"

#include <stdio.h>

static void dump_fragment(const struct sim *s, const struct job *j, uint32_t f) {
    const struct fragment *g = &j->fragments[f];
    fprintf(stderr,
            "   fragment %u: round %u floor %u voted %d (term %u) accepted %x decided %d best %d "
            "(round %u)\n",
            f, g->round, g->floor, g->voted, g->vote.term, g->accepted, g->decided, g->has_best,
            g->best.round);
    for (uint8_t i = 0; g->decided && i < g->decision.n; i++)
        fprintf(stderr, "      decided: attempt %u of %u%s\n", g->decision.entries[i].attempt,
                g->decision.entries[i].member,
                g->decision.entries[i].verdict == INTER_REJECTED ? ", rejected" : "");
    for (uint32_t m = 0; m < s->o.members; m++) {
        const struct slot *t = &g->slots[m];
        if (t->known || t->hints)
            fprintf(stderr,
                    "      update of %u: attempt %u %s%sheld by %x, refused by %x, hints %x\n", m,
                    t->m.key.attempt, t->whole ? "whole, " : "", t->known ? "" : "unknown, ",
                    t->holders, t->refusers, t->hints);
    }
}

void sim_dump(const struct sim *s) {
    for (uint32_t i = 0; i < s->o.members; i++) {
        const struct sim_host *h = &s->h[i];
        if (!h->node)
            continue;
        const struct job *j = &h->node->jobs[0];
        fprintf(stderr,
                " host %u: %s term %u%s%s%s, hears leader %d, epoch %llu, worker at step %lld%s\n",
                i, h->alive ? "up" : "down", j->standing.term, j->standing.joined ? ", votes" : "",
                j->leads ? ", leads" : "", j->recovers ? ", recovers" : "", j->leader,
                (unsigned long long)j->standing.epoch, (long long)h->w.step,
                h->finished ? ", finished" : "");
        for (uint32_t f = 0; f < s->o.fragments; f++)
            dump_fragment(s, j, f);
    }
}
