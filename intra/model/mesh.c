// SPDX-License-Identifier: Apache-2.0
// Checks a mesh against a model, and splits the world into its groups.
#include "intra/model/mesh.h"
#include "intra/model/model.h"

#include <stdlib.h>

int intra_mesh_rank(const struct intra_mesh_config *c, int dp_rank, int pp_rank, int tp_rank) {
    return tp_rank + c->tp * (dp_rank + c->dp * pp_rank);
}

enum neb_status intra_mesh_check(const struct intra_mesh_config *c,
                                 const struct intra_model_config *m) {
    const struct {
        const char *axis, *key;
        int32_t ways, value;
    } even[] = {{"tp", "n_heads", c->tp, m->n_heads},
                {"tp", "n_kv_heads", c->tp, m->n_kv_heads},
                {"tp", "d_ff", c->tp, m->d_ff},
                {"pp", "n_layers", c->pp, m->n_layers}};
    if (c->dp < 1 || c->pp < 1 || c->tp < 1)
        return neb_fail(NEB_ERR_INVALID, "mesh: dp %d, pp %d, tp %d must each be at least 1", c->dp,
                        c->pp, c->tp);
    for (size_t i = 0; i < sizeof even / sizeof even[0]; i++)
        if (even[i].value % even[i].ways)
            return neb_fail(
                NEB_ERR_INVALID,
                "mesh.%s: %d does not divide model.%s %d; every rank needs an equal part",
                even[i].axis, even[i].ways, even[i].key, even[i].value);
    if (m->vocab < c->tp)
        return neb_fail(NEB_ERR_INVALID, "mesh.tp: %d is more than model.vocab %d", c->tp,
                        m->vocab);
    return NEB_OK;
}

// Makes all groups of one kind at once: ranks of equal `color`, ordered by world rank.
static enum neb_status group(const struct intra_mesh *m, bool wanted, int color,
                             struct intra_comm **out) {
    return wanted ? m->world->ops->split(m->world, color, m->world->rank, out) : NEB_OK;
}

static enum neb_status split_all(struct intra_mesh *m) {
    int dp = m->c.dp, pp = m->c.pp, tp = m->c.tp;
    int line = m->tp_rank + tp * m->dp_rank; // the same for all ranks of a pipeline
    bool inner = m->pp_rank > 0 && m->pp_rank < pp - 1;
    NEB_TRY(group(m, tp > 1, m->dp_rank + dp * m->pp_rank, &m->tp));
    NEB_TRY(group(m, dp > 1, m->tp_rank + tp * m->pp_rank, &m->dp));
    NEB_TRY(group(m, pp > 1, line, &m->down));
    NEB_TRY(group(m, pp > 1, line, &m->up));
    // Every rank must take part in a split, so inner stages make a group and drop it.
    NEB_TRY(group(m, pp > 1, line + (inner ? tp * dp : 0), &m->ends));
    if (inner)
        intra_comm_destroy(&m->ends);
    return NEB_OK;
}

enum neb_status intra_mesh_create(const struct intra_mesh_config *c, struct intra_comm *world,
                                  struct intra_mesh **out) {
    if (c->dp < 1 || c->pp < 1 || c->tp < 1 ||
        (int64_t)c->dp * c->pp * c->tp != (int64_t)world->size)
        return neb_fail(
            NEB_ERR_INVALID,
            "mesh: dp %d x pp %d x tp %d is not the number of ranks that were started, %d", c->dp,
            c->pp, c->tp, world->size);
    struct intra_mesh *m = calloc(1, sizeof *m);
    if (!m)
        return neb_fail(NEB_ERR_NOMEM, "out of memory creating a mesh");
    *m = (struct intra_mesh){.c = *c,
                             .tp_rank = world->rank % c->tp,
                             .dp_rank = world->rank / c->tp % c->dp,
                             .pp_rank = world->rank / (c->tp * c->dp),
                             .world = world};
    enum neb_status st = split_all(m);
    if (st != NEB_OK) {
        intra_mesh_destroy(&m);
        return st;
    }
    *out = m;
    return NEB_OK;
}

void intra_mesh_abort(struct intra_mesh *m) {
    struct intra_comm *groups[] = {m ? m->ends : NULL, m ? m->up : NULL, m ? m->down : NULL,
                                   m ? m->dp : NULL, m ? m->tp : NULL};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        if (groups[i] && groups[i]->ops->abort)
            groups[i]->ops->abort(groups[i]);
}

void intra_mesh_destroy(struct intra_mesh **mp) {
    struct intra_mesh *m = *mp;
    if (!m)
        return;
    intra_comm_destroy(&m->ends);
    intra_comm_destroy(&m->up);
    intra_comm_destroy(&m->down);
    intra_comm_destroy(&m->dp);
    intra_comm_destroy(&m->tp);
    free(m);
    *mp = NULL;
}
