// SPDX-License-Identifier: Apache-2.0
// The gate: what a complete update must be before it may become part of a commit. Every member
// decides for itself, on the bytes on its own disk. The record holds the result.
//
//     headers claim no more than the job's parameters
//     ── every frame unpacks to finite numbers in scale
//     ── every unit has the shape that this member's own worker has
//     ── no more rows than the tokens allow
//     ── norm and sketch, for weights and outliers
//
// Most of it runs while the update arrives (arrive.c).
#include "agent/base/log.h"
#include "compress/update.h"
#include "inter/service/state.h"
#include "security/secure_sum.h"

#include <stdlib.h>
#include <string.h>

enum { BLOB_SLACK = 1 << 20 };

void inter_service_bound(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                         uint64_t elements, enum inter_counts counts) {
    size_t i = 0;
    while (i < s->n_bounds && memcmp(s->bounds[i].job, job, INTER_ID_BYTES))
        i++;
    if (i == s->n_bounds) {
        struct service_bound *all = realloc(s->bounds, (i + 1) * sizeof *all);
        if (!all) {
            s->st = neb_fail(NEB_ERR_NOMEM, "out of memory for the bounds of a job's updates");
            return;
        }
        s->bounds = all;
        s->n_bounds = i + 1;
        memcpy(all[i].job, job, INTER_ID_BYTES);
    }
    s->bounds[i].elements = elements;
    s->bounds[i].counts = counts;
    // fp32, a byte per row, headers: no codec produces more bytes.
    inter_node_job_bound(s->node, job, 5 * elements + BLOB_SLACK);
}

void service_unbound(struct inter_service *s, const uint8_t job[INTER_ID_BYTES]) {
    size_t kept = 0;
    for (size_t i = 0; i < s->n_shapes; i++)
        if (memcmp(s->shapes[i].job, job, INTER_ID_BYTES))
            s->shapes[kept++] = s->shapes[i];
    s->n_shapes = kept;
    for (size_t i = 0; i < s->n_bounds; i++)
        if (!memcmp(s->bounds[i].job, job, INTER_ID_BYTES)) {
            s->bounds[i] = s->bounds[--s->n_bounds];
            return;
        }
}

static const struct service_bound *bound_of(const struct inter_service *s,
                                            const uint8_t job[INTER_ID_BYTES]) {
    static const struct service_bound none = {.elements = UINT64_MAX};
    for (size_t i = 0; i < s->n_bounds; i++)
        if (!memcmp(s->bounds[i].job, job, INTER_ID_BYTES))
            return &s->bounds[i];
    return &none;
}

// ---- shapes -------------------------------------------------------------------------------------

static struct service_shape *shape_of(const struct inter_service *s,
                                      const uint8_t job[INTER_ID_BYTES], uint32_t fragment) {
    for (size_t i = 0; i < s->n_shapes; i++)
        if (s->shapes[i].fragment == fragment && !memcmp(s->shapes[i].job, job, INTER_ID_BYTES))
            return &s->shapes[i];
    return NULL;
}

enum neb_status inter_service_shape(struct inter_service *s, const uint8_t job[INTER_ID_BYTES],
                                    uint32_t fragment, uint64_t elements,
                                    const uint8_t sha256[INTER_SHA_BYTES]) {
    struct service_shape *x = shape_of(s, job, fragment);
    if (!x) {
        struct service_shape *all = realloc(s->shapes, (s->n_shapes + 1) * sizeof *all);
        if (!all)
            return neb_fail(NEB_ERR_NOMEM, "out of memory for the shapes of updates");
        s->shapes = all;
        x = &all[s->n_shapes++];
    }
    *x = (struct service_shape){.fragment = fragment, .elements = elements};
    memcpy(x->job, job, sizeof x->job);
    memcpy(x->sha256, sha256, sizeof x->sha256);
    return NEB_OK;
}

uint64_t service_elements_max(const struct inter_service *s, const uint8_t job[INTER_ID_BYTES]) {
    return bound_of(s, job)->elements;
}

// ---- the gate -----------------------------------------------------------------------------------

static const char *fault_of_masked(const struct inter_service *s, const struct inter_manifest *m,
                                   const struct neb_map *map) {
    const struct service_shape *x = shape_of(s, m->key.job, m->key.fragment);
    struct sec_sum_head h;
    const uint8_t *body;
    if (sec_sum_open(map->p, map->len, &h, &body) != NEB_OK)
        return NULL; // from another profile: let it pass
    return x && h.count != x->elements ? "it has a different number of parameters" : NULL;
}

// A token counts once for its row as input and once as target. Counts are rounded to 8 steps per
// octave, so they may exceed 2 x tokens by a sixteenth. Coarse counts (cmp_count_coarse) may add
// the same sum again for rows that are rare in this round, and 1 for each row.
bool service_counts_fit(enum inter_counts kind, const struct cmp_update_stats *stats,
                        uint64_t tokens) {
    if (kind == INTER_COUNTS_FOREIGN)
        return true;
    if (kind == INTER_COUNTS_EXACT)
        return stats->counts / 17 <= tokens / 8;
    uint64_t more = stats->counts > stats->count_rows ? stats->counts - stats->count_rows : 0;
    return more / 4 <= tokens || more / 4 - tokens <= tokens / 16;
}

static const char *fault_of(struct inter_service *s, const struct inter_manifest *m,
                            const struct neb_map *map, struct cmp_update_stats *stats) {
    const struct service_shape *x = shape_of(s, m->key.job, m->key.fragment);
    const struct service_bound *bound = bound_of(s, m->key.job);
    enum inter_screen screen =
        s->cb.screen ? s->cb.screen(s->cb.user, m, map->p, map->len) : INTER_SCREEN_USUAL;
    if (screen == INTER_SCREEN_REFUSE)
        return "the job's profile does not allow it";
    if (screen == INTER_SCREEN_EMPTY)
        return NULL;
    if (screen == INTER_SCREEN_PASS)
        return fault_of_masked(s, m, map);
    enum neb_status st;
    if (!service_arrival_verdict(s, m, &st, stats))
        st = inter_node_weighs(s->node, m->key.job)
                 ? cmp_update_check_sketch(s->gate, map->p, map->len, bound->elements, stats)
                 : cmp_update_check_max(s->gate, map->p, map->len, bound->elements, stats);
    // the bound may be newer than the arrival
    if (st != NEB_OK || stats->elements > bound->elements)
        return "it is malformed or too large, or holds a value that is not finite";
    if (x && memcmp(stats->shapes, x->sha256, sizeof x->sha256))
        return "its units are not those of this fragment";
    return service_counts_fit(bound->counts, stats, m->tokens)
               ? NULL
               : "it counts more rows than its tokens allow";
}

// The name of the member that made an update, also of a revoked one.
static const char *author(const struct inter_service *s, const struct inter_key *k) {
    uint32_t peer = inter_node_peer(s->node, k->job, k->member);
    if (peer < s->members.n && s->members.m[peer].pub.name[0])
        return s->members.m[peer].pub.name;
    if (peer < INTER_PEER_NONE && s->former[peer].name[0])
        return s->former[peer].name;
    return "this member";
}

enum neb_status service_gate(struct inter_service *s, const struct inter_manifest *m, bool *pass,
                             float *norm) {
    struct cmp_update_stats stats = {.norm = 0};
    struct neb_map map;
    NEB_TRY(inter_ledger_map_blob(s->ledger, &m->key, &map));
    const char *fault = fault_of(s, m, &map, &stats);
    neb_map_close(&map);
    *pass = !fault;
    if (!fault && stats.sketch)
        inter_node_sketch(s->node, &m->key, stats.sketch);
    // 0 means an unknown norm, so an update of zeros gets a tiny one.
    *norm = stats.norm > 1e-30 ? stats.norm < 1e30 ? (float)stats.norm : 1e30f : 1e-30f;
    if (fault)
        neb_log(NEB_LOG_ERROR,
                "update of %s for round %u is refused by the gate: %s; it does not count",
                author(s, &m->key), m->key.round, fault);
    return NEB_OK;
}
