// SPDX-License-Identifier: Apache-2.0
// The exchange of a worker with several ranks: its state is divided over them
// (agent/exchange/shards.h). Not part of libnebula, where a trainer manages its own ranks.
#include "agent/exchange/shards.h"
#include "agent/exchange/worker.h"

static enum neb_status create(struct agent_worker *w, const struct inter_outer_config *c) {
    NEB_TRY(agent_shards_create(w->group, c, w->fragment, w->sum != NULL, w->K->pool, &w->shards));
    w->outer = agent_shards_outer(w->shards);
    return NEB_OK;
}

static void destroy(struct agent_worker *w) {
    w->outer = NULL; // shards owns it
    agent_shards_destroy(&w->shards);
}

static enum neb_status encode(struct agent_worker *w, int32_t f, const struct cmp_codec *codec,
                              inter_outer_counts *counts, void *user) {
    struct agent_flight *t = &w->flight[f];
    bool measured = w->job.sync.tune.mode == AGENT_TUNE_AUTO;
    return w->sum ? agent_shards_encode_masked(w->shards, f, w->frags[f].round, &t->blob)
                  : agent_shards_encode(w->shards, f, codec, counts, user,
                                        measured ? &t->error : NULL, &t->blob);
}

static enum neb_status merge(struct agent_worker *w, int32_t f, bool reject,
                             const struct inter_outer_round *r) {
    return agent_shards_merge(w->shards, f, reject, r, &w->kept[f].last_digest);
}

static enum neb_status digest(const struct agent_worker *w, int32_t f, struct kern_digest *d) {
    return agent_shards_digest(w->shards, f, d);
}

static uint64_t shape(const struct agent_worker *w, int32_t f, uint8_t sha256[32]) {
    return agent_shards_shape(w->shards, f, sha256);
}

static enum neb_status read_array(void *user, int which, uint64_t at, float *dst, size_t n) {
    struct intra_ckpt_array *const *arrays = user;
    return intra_ckpt_array_read(arrays[which], at, dst, n);
}

static enum neb_status restore(struct agent_worker *w, struct intra_ckpt_array *const *arrays) {
    return agent_shards_restore(w->shards, read_array, (void *)arrays);
}

struct snapshot {
    const struct neb_file *file;
    uint64_t at, n;
};

static enum neb_status read_snapshot(void *user, int which, uint64_t at, float *dst, size_t n) {
    const struct snapshot *s = user;
    uint64_t first = (uint64_t)which * s->n + at; // θ is first, v follows
    return neb_file_read(s->file, s->at + first * sizeof *dst, dst, n * sizeof *dst);
}

static enum neb_status adopt(struct agent_worker *w, int32_t f, uint32_t version,
                             const struct neb_file *file, uint64_t at, uint64_t n) {
    struct snapshot s = {file, at, n};
    return agent_shards_adopt(w->shards, f, version, read_snapshot, &s);
}

static enum neb_status save_model(struct agent_worker *w, struct intra_ckpt_writer *out) {
    return intra_group_save_model(w->group, out);
}

static enum neb_status place(struct agent_worker *w, bool must) {
    return agent_shards_place(w->shards, must);
}

const struct worker_mesh_ops worker_mesh = {.create = create,
                                            .destroy = destroy,
                                            .encode = encode,
                                            .merge = merge,
                                            .digest = digest,
                                            .shape = shape,
                                            .restore = restore,
                                            .adopt = adopt,
                                            .save_model = save_model,
                                            .place = place};
