// SPDX-License-Identifier: Apache-2.0
// The state of a worker's exchange: with one rank an inter_outer of all units, else a part on each
// rank (worker_mesh.c).
#include "agent/exchange/worker.h"

#include <stdlib.h>
#include <string.h>

enum neb_status worker_outer_create(struct agent_worker *w, const struct inter_outer_config *c,
                                    const struct inter_outer_unit *units) {
    return w->mesh ? w->mesh->create(w, c)
                   : inter_outer_create(c, units, w->n_units, w->K->pool, &w->outer);
}

void worker_outer_destroy(struct agent_worker *w) {
    if (w->mesh)
        w->mesh->destroy(w);
    else
        inter_outer_destroy(&w->outer);
}

// Moves the parameters of a fragment from or to where they are trained.
static enum neb_status move_fragment(struct agent_worker *w, int32_t f,
                                     enum neb_status (*move)(struct agent_worker *, const bool *)) {
    if (!move)
        return NEB_OK;
    memset(w->wanted, 0, (size_t)w->model->n_all_tensors * sizeof *w->wanted);
    for (int32_t i = 0; i < w->n_units; i++)
        if (w->fragment[i] == f)
            w->wanted[w->units[i].tensor->index] = true;
    return move(w, w->wanted);
}

// If the exchange is on the device too, nothing has to be fetched, and the trainer is notified of
// changes.
static enum neb_status fetch_fragment(struct agent_worker *w, int32_t f) {
    return inter_outer_on_device(w->outer) ? NEB_OK : move_fragment(w, f, w->ops.pull);
}
static enum neb_status return_fragment(struct agent_worker *w, int32_t f) {
    return move_fragment(w, f, inter_outer_on_device(w->outer) ? w->ops.changed : w->ops.push);
}

enum neb_status worker_outer_encode(struct agent_worker *w, int32_t f,
                                    const struct cmp_codec *codec, inter_outer_counts *counts,
                                    void *user) {
    struct agent_flight *t = &w->flight[f];
    uint32_t round = w->frags[f].round;
    bool measured = w->job.sync.tune.mode == AGENT_TUNE_AUTO;
    if (w->mesh)
        return w->mesh->encode(w, f, codec, counts, user);
    NEB_TRY(fetch_fragment(w, f));
    NEB_TRY(w->sum ? inter_outer_encode_masked(w->outer, f, round, &t->blob)
                   : inter_outer_encode(w->outer, f, codec, counts, user, &t->blob));
    if (measured)
        t->error = inter_outer_error(w->outer, f, t->blob.p, t->blob.len);
    return NEB_OK;
}

enum neb_status worker_outer_merge(struct agent_worker *w, int32_t f, bool reject,
                                   const struct inter_outer_round *r) {
    struct kern_digest *d = &w->kept[f].last_digest;
    if (w->mesh)
        return w->mesh->merge(w, f, reject, r);
    NEB_TRY(fetch_fragment(w, f)); // keeps what was learned since the send
    if (reject)
        inter_outer_reject(w->outer, f);
    if (r->n)
        NEB_TRY(inter_outer_apply(w->outer, f, r, d));
    else
        inter_outer_skip(w->outer, f, d);
    if (r->last)
        inter_outer_finish(w->outer, f);
    return return_fragment(w, f);
}

enum neb_status worker_outer_digest(const struct agent_worker *w, int32_t f,
                                    struct kern_digest *d) {
    if (w->mesh)
        return w->mesh->digest(w, f, d);
    *d = f < 0 ? inter_outer_digest(w->outer) : inter_outer_fragment_digest(w->outer, f);
    return NEB_OK;
}

uint64_t worker_outer_shape(const struct agent_worker *w, int32_t f, uint8_t sha256[32]) {
    return w->mesh ? w->mesh->shape(w, f, sha256) : inter_outer_shape(w->outer, f, sha256);
}

enum neb_status worker_outer_save(struct agent_worker *w, struct intra_ckpt_writer *out) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    if (w->mesh)
        return NEB_OK; // intra_group_save lets all ranks write theirs
    inter_outer_arrays(w->outer, arrays);
    NEB_TRY(inter_outer_pull(w->outer));
    for (int i = 0; i < INTER_OUTER_ARRAYS; i++)
        NEB_TRY(intra_ckpt_add(out, arrays[i].name, INTRA_F32, arrays[i].n, 1, arrays[i].p));
    return NEB_OK;
}

enum neb_status worker_outer_restore(struct agent_worker *w, const struct intra_ckpt *c) {
    struct intra_ckpt_array *from[INTER_OUTER_ARRAYS] = {0};
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    uint64_t n = w->model->n_all_trainable;
    enum neb_status st = NEB_OK;
    inter_outer_arrays(w->outer, arrays);
    for (int i = 0; i < INTER_OUTER_ARRAYS && st == NEB_OK; i++)
        st = intra_ckpt_array_open(c, arrays[i].name, n, &from[i]);
    if (st == NEB_OK && w->mesh)
        st = w->mesh->restore(w, from);
    for (int i = 0; i < INTER_OUTER_ARRAYS && st == NEB_OK && !w->mesh; i++)
        st = intra_ckpt_array_read(from[i], 0, arrays[i].p, arrays[i].n);
    for (int i = 0; i < INTER_OUTER_ARRAYS; i++)
        intra_ckpt_array_close(&from[i]);
    return st == NEB_OK && !w->mesh ? inter_outer_push(w->outer) : st;
}

// Reads fragment f of the array at file offset `at` directly into the memory of the exchange: a
// large model leaves no memory for a copy.
static enum neb_status read_fragment(const struct agent_worker *w, int32_t f,
                                     const struct neb_file *file, uint64_t at, float *to) {
    for (int32_t i = 0; i < w->n_units; i++) {
        const struct intra_unit *u = &w->units[i];
        size_t from = inter_outer_unit_at(w->outer, i);
        if (w->fragment[i] == f)
            NEB_TRY(neb_file_read(file, at + from * sizeof *to, to + from,
                                  (size_t)u->rows * (size_t)u->cols * sizeof *to));
    }
    return NEB_OK;
}

enum neb_status worker_outer_adopt(struct agent_worker *w, int32_t f, uint32_t version,
                                   const struct neb_file *file, uint64_t at, uint64_t n) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    if (w->mesh)
        return w->mesh->adopt(w, f, version, file, at, n);
    inter_outer_arrays(w->outer, arrays);
    NEB_TRY(read_fragment(w, f, file, at, arrays[0].p));
    NEB_TRY(read_fragment(w, f, file, at + n * sizeof *arrays[0].p, arrays[1].p));
    inter_outer_adopt(w->outer, f, arrays[0].p, arrays[1].p, version);
    return NEB_OK;
}

enum neb_status worker_outer_adopted(struct agent_worker *w) {
    bool there = inter_outer_on_device(w->outer); // the adopted parameters are there too
    enum neb_status (*told)(struct agent_worker *, const bool *) =
        there ? w->ops.changed : w->ops.push;
    return told && !w->mesh ? told(w, NULL) : NEB_OK;
}
