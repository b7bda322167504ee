// SPDX-License-Identifier: Apache-2.0
// Prints the state of every host when a run fails.
#include "inter/round/node_state.h"
#include "tests/sim/sim.h"

#include <stdio.h>

static void dump_record(const char *what, const struct inter_record *r) {
    if (!r)
        return;
    fprintf(stderr, "      %s (term %u):", what, r->term);
    for (uint8_t i = 0; i < r->n; i++)
        fprintf(stderr, " attempt %u of %u%s", r->entries[i].attempt, r->entries[i].member,
                r->entries[i].verdict == INTER_REJECTED ? ", rejected;" : ";");
    fprintf(stderr, "\n");
}

static unsigned long long hex(struct member_set s) { return mset_bits(s); }

static void dump_fragment(const struct sim *s, const struct job *j, uint32_t f) {
    const struct fragment *g = &j->fragments[f];
    fprintf(stderr,
            "   fragment %u: round %u floor %u voted %d (term %u) accepted %llx decided %d best %d "
            "(round %u)\n",
            f, g->round, g->floor, g->voted, g->vote.term, hex(g->accepted), g->decided,
            g->has_best, g->best.round);
    dump_record("decided", g->decided ? &g->decision : NULL);
    dump_record("voted for", g->voted ? &g->vote : NULL);
    dump_record("to be proposed again", g->has_best ? &g->best : NULL);
    dump_record("waits to be judged", g->waits ? &g->pending : NULL);
    for (uint32_t m = 0; m < s->o.members; m++) {
        const struct slot *t = &g->slots[m];
        if (t->known || !mset_empty(t->hints))
            fprintf(
                stderr,
                "      update of %u: attempt %u %s%sheld by %llx, refused by %llx, hints %llx\n", m,
                t->m.key.attempt, t->whole ? "whole, " : "", t->known ? "" : "unknown, ",
                hex(t->holders), hex(t->refusers), hex(t->hints));
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
