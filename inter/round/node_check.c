// SPDX-License-Identifier: Apache-2.0
// What a voter demands of a proposed record. A leader chooses which members it waits for and what
// they do next. The rest of a record follows
//
//     from the previous record     η, μ, absences, weights, cursors of unlisted members; these are
//                                  the same at every node that has that record, and commits are
//                                  checked for them too
//     from the listed manifests    cursors of listed members, merge flag; a proposal brings them
//     from the updates' bytes      verdicts, and norms for clip factors; only voters that have the
//                                  bytes can check them
//
// A voter without the bytes believes a verdict: it votes before they arrive, because two copies of
// an update are enough. With the profile `robust` it believes nothing: it gets the bytes first
// (struct fragment: pending), and the leader repeats its proposal meanwhile. A witness never has
// bytes. It goes by what data members report, and does not vote while a verdict differs from that.
//
// A record must list at least as many updates as the job needs. Otherwise a leader and a witness
// could commit the leader's update alone.
//
// A data member does not vote before its own worker has attached once. Only the worker knows what
// the job's updates hold, and no cluster can apply a record with an update of another shape.
//
// A value that this voter has accepted is accepted again, whatever it knows by now, because the
// value may have been committed.
#include "inter/record/robust.h"
#include "inter/record/weights.h"
#include "inter/round/node_state.h"
#include "inter/round/sums.h"

#include <string.h>

bool node_norms_of(const struct fragment *g, const struct inter_record *r,
                   float norms[NEB_MEMBERS_MAX]) {
    bool all = true;
    memset(norms, 0, NEB_MEMBERS_MAX * sizeof *norms);
    for (uint8_t i = 0; i < r->n; i++) {
        const struct inter_entry *e = &r->entries[i];
        const struct slot *t = &g->slots[e->member];
        norms[e->member] = t->known && node_lists(r, &t->m) ? t->norm : 0;
        all = all && (e->verdict != INTER_ACCEPTED || norms[e->member] > 0);
    }
    return all;
}

// True if a listed member was absent for longer than the job allows, by the records.
static bool absent(const struct job *j, const struct fragment *g, const struct inter_record *r) {
    for (uint8_t i = 0; i < r->n; i++)
        if (g->round - g->absences[r->entries[i].member].base > j->c.merge_after)
            return true;
    return false;
}

bool node_follows(const struct job *j, const struct fragment *g, const struct inter_record *r) {
    struct member_set listed = mset_none();
    float eta = inter_job_eta(&j->c, r->fragment), mu = inter_job_mu(&j->c, r->fragment);
    bool fair = r->n_plans == j->c.n_members &&
                !memcmp(r->previous, g->previous, sizeof r->previous) &&
                !memcmp(&r->eta, &eta, sizeof r->eta) && !memcmp(&r->mu, &mu, sizeof r->mu) &&
                inter_weights_agree(r, g->absences) && (r->flags & INTER_MERGE || !absent(j, g, r));
    for (uint8_t i = 0; i < r->n; i++) {
        mset_add(&listed, r->entries[i].member);
        fair = fair && (j->c.robust || r->entries[i].clip == 1);
    }
    for (uint8_t m = 0; m < j->c.n_members && fair; m++)
        fair =
            mset_has(listed, m) ? r->cursors[m] >= g->cursors[m] : r->cursors[m] == g->cursors[m];
    if (j->c.masked && !inter_sums_allowed(r, j->c.n_members, j->c.colluders))
        return false; // even if it was reported as accepted, or is proven
    return fair && !mset_meets(listed, j->c.witnesses);
}

// Manifest of a listed update: from the proposal, or the one here. NULL: not known.
static const struct inter_manifest *manifest_of(const struct fragment *g,
                                                const struct inter_record *r, uint8_t m,
                                                const struct inter_manifest *given, uint8_t n) {
    for (uint8_t k = 0; k < n; k++)
        if (given[k].key.member == m)
            return &given[k];
    const struct slot *t = &g->slots[m];
    return t->known && node_lists(r, &t->m) ? &t->m : NULL;
}

// Checks cursors and the merge flag. If the leader has to propose a value again without having a
// manifest of it, that update may be anything that the job allows.
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

// In a job of two members neither can do without the other, so the other's verdict on this node's
// update counts.
static bool stands_by(const struct job *j, const struct slot *t) {
    return j->c.n_members > 2 && t->whole && !t->bad;
}

// A witness has no bytes. It rejects an update only after the update's owner or enough other data
// members have refused it. A member that reports falsely can hold up rounds until it is revoked,
// but it rejects nothing.
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
    if (accepted || mset_has(j->c.gone, first_leader) || j->c.n_members < 3)
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

// True if r rejects this node's own update. Then the node judges it, even if it has sent a newer
// one.
static bool rejects_own(const struct job *j, const struct inter_record *r) {
    for (uint8_t i = 0; i < r->n; i++)
        if (r->entries[i].member == j->c.self && r->entries[i].verdict == INTER_REJECTED)
            return j->c.n_members > 2;
    return false;
}

enum node_judgement node_judge(const struct job *j, const struct fragment *g,
                               const struct inter_record *r, const struct inter_manifest *given,
                               uint8_t n) {
    float norms[NEB_MEMBERS_MAX];
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

// ---- manifests in a proposal --------------------------------------------------------------------

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

bool node_get_manifests(struct neb_rd *in, struct inter_manifest out[NEB_MEMBERS_MAX], uint8_t *n) {
    *n = neb_rd_u8(in);
    for (uint8_t i = 0; i < *n; i++)
        if (*n > NEB_MEMBERS_MAX || !inter_manifest_get(in, &out[i]))
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
