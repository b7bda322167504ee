// SPDX-License-Identifier: Apache-2.0
// What a voter demands of a proposed record. A leader chooses whom it waits for and what they do next; the rest of a record follows
//
//     from the record before it       η, μ, absences, weights, cursors of members that it does not list: the same for all who have
//                                     that record, and asked of commits too
//     from the manifests it lists     cursors of their members, whether the round is a merge round: the proposal brings them
//     from their bytes                verdicts, and the norms that clip factors are made of: for whoever has them
//
// A voter that lacks bytes believes a verdict: it votes before they are here, as the two copies of every update ask for. With the
// profile `robust` it believes nothing, gets the bytes first (struct fragment: pending), and is asked again meanwhile. A witness never has
// bytes: it rejects by what data members have told it, and until then is asked again.
//
// A record lists no fewer updates than the job needs for one: with a witness, a leader could commit its own alone.
//
// Nor does a data member vote before its own worker has attached once: what the job's updates hold is that worker's word, and a record with an
// update of another shape is one that no cluster can apply.
//
// A value that was accepted before is accepted again, whatever is known by now: it may have been committed.
#include "inter/record/robust.h"
#include "inter/record/weights.h"
#include "inter/round/node_state.h"
#include "inter/round/sums.h"

#include <string.h>

bool node_norms_of(const struct fragment *g, const struct inter_record *r,
                   float norms[INTER_MEMBERS_MAX]) {
    bool all = true;
    memset(norms, 0, INTER_MEMBERS_MAX * sizeof *norms);
    for (uint8_t i = 0; i < r->n; i++) {
        const struct inter_entry *e = &r->entries[i];
        const struct slot *t = &g->slots[e->member];
        norms[e->member] = t->known && node_lists(r, &t->m) ? t->norm : 0;
        all = all && (e->verdict != INTER_ACCEPTED || norms[e->member] > 0);
    }
    return all;
}

// A member that was away for longer than others by the records.
static bool absent(const struct job *j, const struct fragment *g, const struct inter_record *r) {
    for (uint8_t i = 0; i < r->n; i++)
        if (g->round - g->absences[r->entries[i].member].base > j->c.merge_after)
            return true;
    return false;
}

bool node_follows(const struct job *j, const struct fragment *g, const struct inter_record *r) {
    uint16_t listed = 0;
    bool fair =
        r->n_plans == j->c.n_members && !memcmp(r->previous, g->previous, sizeof r->previous) &&
        !memcmp(&r->eta, &j->c.eta, sizeof r->eta) && !memcmp(&r->mu, &j->c.mu, sizeof r->mu) &&
        inter_weights_agree(r, g->absences) && (r->flags & INTER_MERGE || !absent(j, g, r));
    for (uint8_t i = 0; i < r->n; i++) {
        listed |= (uint16_t)BIT(r->entries[i].member);
        fair = fair && (j->c.robust || r->entries[i].clip == 1);
    }
    for (uint8_t m = 0; m < j->c.n_members && fair; m++)
        fair = listed >> m & 1 ? r->cursors[m] >= g->cursors[m] : r->cursors[m] == g->cursors[m];
    if (j->c.masked && !inter_sums_allowed(r, j->c.n_members, j->c.colluders))
        return false; // also of what was accepted before, as some say, or is proven
    return fair && !(listed & j->c.witnesses);
}

// What is known of a listed update: its manifest as the proposal brings it, or as it is here.
static const struct inter_manifest *manifest_of(const struct fragment *g,
                                                const struct inter_record *r, uint8_t m,
                                                const struct inter_manifest *given, uint8_t n) {
    for (uint8_t k = 0; k < n; k++)
        if (given[k].key.member == m)
            return &given[k];
    const struct slot *t = &g->slots[m];
    return t->known && node_lists(r, &t->m) ? &t->m : NULL;
}

// Cursors and the merge flag. An update whose manifest the leader does not have either, of a value that it has to propose again, may
// be anything that the job allows.
static bool manifests_agree(const struct job *j, const struct fragment *g,
                            const struct inter_record *r, const struct inter_manifest *given,
                            uint8_t n) {
    bool asked = absent(j, g, r), unknown = false;
    for (uint8_t i = 0; i < r->n; i++) {
        const struct inter_entry *e = &r->entries[i];
        const struct inter_manifest *m = manifest_of(g, r, e->member, given, n);
        uint64_t former = g->cursors[e->member], cursor = r->cursors[e->member];
        if (m ? cursor != (m->step > former ? m->step : former) : j->c.steps && cursor > j->c.steps)
            return false;
        if (j->c.step_tokens && !node_weight_possible(j, g, e->member, cursor, e->tokens))
            return false;
        asked = asked || (m && m->missed > j->c.merge_after);
        unknown = unknown || !m;
    }
    return r->flags & INTER_MERGE ? asked || unknown : !asked;
}

// Of two members neither can do without the other: there the other one's word on this one's own update counts.
static bool stands_by(const struct job *j, const struct slot *t) {
    return j->c.n_members > 2 && t->whole && !t->bad;
}

// A witness has no bytes. What data members have said of an update stands against a leader that says otherwise; nothing is rejected
// before enough of them have, or its owner: of two data members there is nobody else. Who lies about the other's update, or about its own, holds up
// rounds until it is revoked, and rejects nothing.
static enum node_judgement of_witness(const struct job *j, const struct inter_record *r,
                                      const struct inter_entry *e, const struct slot *t) {
    static const struct slot nothing;
    const struct slot *x = t->known && node_lists(r, &t->m) ? t : &nothing;
    bool fair = e->verdict == INTER_REJECTED ? node_witness_rejects(j, x, e->member)
                                             : !node_is_refused(j, x, e->member);
    return fair ? NODE_FAIR : NODE_UNKNOWN;
}

static enum node_judgement verdict(const struct job *j, const struct fragment *g,
                                   const struct inter_record *r, const struct inter_entry *e) {
    const struct slot *t = &g->slots[e->member];
    if (node_is_witness(j))
        return of_witness(j, r, e, t);
    if (!t->known || !node_lists(r, &t->m) || !(t->whole || t->refused))
        return NODE_UNKNOWN;
    if (e->member == j->c.self && e->verdict == INTER_REJECTED)
        return stands_by(j, t) ? NODE_UNFAIR : NODE_FAIR;
    if (e->member == j->c.self)
        return NODE_FAIR;
    return t->whole == (e->verdict == INTER_ACCEPTED) ? NODE_FAIR : NODE_UNFAIR;
}

enum node_judgement node_rejudge(const struct job *j, const struct fragment *g,
                                 const struct inter_record *r, uint8_t first_leader) {
    uint8_t hash[INTER_SHA_BYTES];
    enum node_judgement all = NODE_FAIR;
    inter_record_hash(r, hash);
    bool accepted = g->voted && !memcmp(hash, g->vote_hash, sizeof hash);
    if (accepted || j->c.gone >> first_leader & 1 || j->c.n_members < 3)
        return NODE_FAIR;
    for (uint8_t i = 0; i < r->n && all != NODE_UNFAIR; i++) {
        const struct inter_entry *e = &r->entries[i];
        enum node_judgement v = e->verdict == INTER_REJECTED ? verdict(j, g, r, e) : NODE_FAIR;
        bool own = e->member == j->c.self || node_is_witness(j);
        if (v == NODE_UNFAIR || (v == NODE_UNKNOWN && own))
            all = v;
    }
    return all;
}

// Of this member's own update its word counts: that it has sent a newer one meanwhile is none.
static bool rejects_own(const struct job *j, const struct inter_record *r) {
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].member == j->c.self && r->entries[i].verdict == INTER_REJECTED)
            return j->c.n_members > 2;
    return false;
}

enum node_judgement node_judge(const struct job *j, const struct fragment *g,
                               const struct inter_record *r, const struct inter_manifest *given,
                               uint8_t n) {
    float norms[INTER_MEMBERS_MAX];
    bool unknown = false;
    if (!node_follows(j, g, r) || !manifests_agree(j, g, r, given, n) ||
        (j->c.masked && !inter_sums_allowed(r, j->c.n_members, j->c.colluders)) ||
        r->n < node_least(j))
        return NODE_UNFAIR;
    for (uint8_t i = 0; i < r->n; i++) {
        enum node_judgement v = verdict(j, g, r, &r->entries[i]);
        if (v == NODE_UNFAIR)
            return NODE_UNFAIR;
        unknown = unknown || v == NODE_UNKNOWN;
    }
    if (!j->judges)
        return NODE_UNKNOWN;
    if (unknown && (node_is_witness(j) || rejects_own(j, r)))
        return NODE_UNKNOWN;
    if (!j->c.robust)
        return NODE_FAIR;
    if (unknown || !node_norms_of(g, r, norms))
        return NODE_UNKNOWN;
    return inter_robust_agrees(r, norms) ? NODE_FAIR : NODE_UNFAIR;
}

// ---- manifests that a proposal brings -------------------------------------------------------------------------

void node_put_manifests(struct neb_buf *b, const struct job *j, const struct inter_record *r) {
    const struct fragment *g = &j->fragments[r->fragment];
    uint8_t n = 0;
    for (int write = 0; write < 2; write++) {
        for (uint8_t i = 0; i < r->n; i++) {
            const struct slot *t = &g->slots[r->entries[i].member];
            if (!t->known || !node_lists(r, &t->m) || t->m.key.round != r->round)
                continue;
            n = (uint8_t)(n + !write);
            if (write)
                inter_manifest_put(b, &t->m);
        }
        if (!write)
            neb_buf_u8(b, n);
    }
}

bool node_get_manifests(struct neb_rd *in, struct inter_manifest out[INTER_MEMBERS_MAX],
                        uint8_t *n) {
    *n = neb_rd_u8(in);
    for (uint8_t i = 0; i < *n; i++)
        if (*n > INTER_MEMBERS_MAX || !inter_manifest_get(in, &out[i]))
            return false;
    return true;
}

bool node_manifests_fit(struct inter_node *x, const struct job *j, const struct fragment *g,
                        const struct inter_record *r, const struct inter_manifest *m, uint8_t n) {
    for (uint8_t i = 0; i < n; i++) {
        const struct slot *t = &g->slots[m[i].key.member];
        bool here = t->known && node_lists(r, &t->m) && t->m.step == m[i].step &&
                    t->m.steps == m[i].steps && t->m.missed == m[i].missed &&
                    !memcmp(t->m.sig, m[i].sig, sizeof t->m.sig);
        if (m[i].key.round != r->round || m[i].key.fragment != r->fragment ||
            memcmp(m[i].key.job, r->job, sizeof r->job) || !node_lists(r, &m[i]) ||
            !node_possible(j, g, &m[i]) || (!here && !node_verify_manifest(x, j, &m[i])))
            return false;
    }
    return true;
}
