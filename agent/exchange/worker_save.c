// SPDX-License-Identifier: Apache-2.0
// Writes a worker's checkpoints, and reports them to the agent once they are durable.
//
// The state is copied between two steps; on a mesh every rank copies what it writes. A thread
// writes the copy while training continues (intra/ckpt/checkpoint_async.h). The agent hears of a
// checkpoint only when it is on disk, because it then forgets what only older checkpoints need.
// Without memory for a copy, and in an attached trainer that saves its own state with it, the
// worker waits for the disk.
#include "agent/base/log.h"
#include "agent/exchange/worker.h"

#include <string.h>

static enum neb_status count_bytes(void *user, const char *name, enum intra_dtype dtype,
                                   uint64_t rows, uint64_t cols, const void *data, uint64_t bytes) {
    (void)name, (void)dtype, (void)rows, (void)cols, (void)data;
    *(uint64_t *)user += bytes + 64; // 64: alignment
    return NEB_OK;
}

// Bytes of a checkpoint now (*now), and with an update of every fragment in flight, all in fp32
// (*most).
static enum neb_status measure(struct agent_worker *w, uint64_t *now, uint64_t *most) {
    struct intra_ckpt_writer *counter = NULL;
    *now = 0;
    NEB_TRY(intra_ckpt_create_sink(count_bytes, now, worker_vault(w) != NULL, &counter));
    intra_ckpt_split(counter, ""); // other ranks have copies of their own parts
    enum neb_status st = worker_write_checkpoint(w, counter);
    intra_ckpt_writer_destroy(&counter);
    uint64_t travels = w->federated ? w->model->n_all_trainable : 0;
    *most = *now + 5 * travels + (1 << 20) + w->save_reserve;
    return st;
}

enum neb_status worker_save_start(struct agent_worker *w) {
    uint64_t now, most;
    if (!w->job.checkpoint_every || !w->job.checkpoint_copy)
        return NEB_OK; // only one at the end, for which nothing waits; or configured so
    NEB_TRY(measure(w, &now, &most));
    enum neb_status st = intra_ckpt_async_create(worker_vault(w), w->K->pool, now, most, &w->saver);
    if (st == NEB_ERR_NOMEM) {
        neb_warn(
            "no memory for a copy of the checkpoint (%.0f MB): training waits while checkpoints "
            "are written",
            (double)most * 1e-6);
        return NEB_OK;
    }
    neb_debug("checkpoints are copied (%.1f MB) and written while training continues",
              (double)now * 1e-6);
    return st;
}

static json_t *rounds_json(const struct agent_worker *w, const uint32_t *of) {
    json_t *rounds = json_array();
    for (int32_t f = 0; f < w->job.sync.fragments; f++)
        json_array_append_new(rounds, json_integer((json_int_t)of[f]));
    return rounds;
}

// Reports what the newest checkpoint holds, and which updates no checkpoint on disk needs any more.
// A process that has not written all of them itself does not know what the older ones need, and
// releases nothing.
static void release_updates(struct agent_worker *w) {
    int keep = w->job.checkpoint_keep;
    if (w->saved_step == w->saving.step)
        return; // the same checkpoint again
    w->saved_step = w->saving.step;
    memcpy(w->saved_rounds[w->n_saved % keep], w->saving.rounds, sizeof w->saving.rounds);
    json_t *head =
        json_pack("{s:s,s:o}", "op", "checkpoint", "saved", rounds_json(w, w->saving.rounds));
    if (++w->n_saved >= keep) // the next slot to write is the oldest one
        json_object_set_new(head, "rounds", rounds_json(w, w->saved_rounds[w->n_saved % keep]));
    if (agent_ipc_send(w->ipc, NULL, head, NULL, 0) != NEB_OK)
        neb_debug("the checkpoint could not be reported to the agent");
}

// Called when a checkpoint is on disk. aside: a thread wrote it.
static enum neb_status durable(struct agent_worker *w, const struct intra_ckpt_async_result *r,
                               bool aside) {
    worker_metrics(w, json_pack("{s:s,s:I,s:I,s:f,s:f,s:b}", "kind", "checkpoint", "step",
                                (json_int_t)w->saving.step, "bytes", (json_int_t)r->bytes,
                                "checkpoint_stall_ms", 1e3 * (w->saving.wait_s + r->copy_s),
                                "write_ms", 1e3 * r->write_s, "while_training", aside));
    if (w->federated)
        release_updates(w);
    return w->ops.durable ? w->ops.durable(w) : NEB_OK;
}

enum neb_status worker_saved(struct agent_worker *w) {
    struct intra_ckpt_async_result r;
    enum neb_status st = w->saver ? intra_ckpt_async_result(w->saver, &r) : NEB_ERR_NOT_FOUND;
    if (st == NEB_ERR_NOT_FOUND || st == NEB_ERR_AGAIN)
        return NEB_OK;
    NEB_TRY(st);
    return durable(w, &r, true);
}

enum neb_status worker_save_wait(struct agent_worker *w) {
    if (!w->saver)
        return NEB_OK;
    neb_ns start = neb_now();
    intra_ckpt_async_wait(w->saver);
    double waited_s = neb_seconds(neb_now() - start);
    NEB_TRY(worker_saved(w));
    w->stall_s += waited_s;
    w->saving.wait_s = waited_s; // reported with the next checkpoint
    return NEB_OK;
}

static void begin_saving(struct agent_worker *w, int64_t at) {
    w->saving.step = at;
    for (int32_t f = 0; w->federated && f < w->job.sync.fragments; f++)
        w->saving.rounds[f] = w->frags[f].round;
}

static enum neb_status save_aside(struct agent_worker *w, int64_t at, const char *dir,
                                  const char *path) {
    struct intra_ckpt_writer *out = NULL;
    NEB_TRY(worker_save_wait(w));
    begin_saving(w, at);
    NEB_TRY(intra_ckpt_async_begin(w->saver, &out));
    intra_ckpt_split(out, path);
    enum neb_status st = worker_write_checkpoint(w, out);
    if (st == NEB_OK)
        return intra_ckpt_async_submit(w->saver, &out, dir, path, w->job.checkpoint_keep);
    intra_ckpt_writer_destroy(&out);
    return st;
}

static enum neb_status save_now(struct agent_worker *w, int64_t at, const char *dir,
                                const char *path) {
    struct intra_ckpt_writer *out = NULL;
    neb_ns start = neb_now();
    begin_saving(w, at);
    NEB_TRY(intra_ckpt_create_in(worker_vault(w), path, &out));
    intra_ckpt_split(out, path);
    enum neb_status st = worker_write_checkpoint(w, out);
    struct intra_ckpt_async_result r = {.bytes = intra_ckpt_bytes(out)};
    if (st == NEB_OK)
        st = intra_ckpt_commit(out);
    intra_ckpt_writer_destroy(&out);
    NEB_TRY(st);
    NEB_TRY(intra_ckpt_prune(worker_vault(w), dir, w->job.checkpoint_keep));
    r.write_s = r.copy_s = neb_seconds(neb_now() - start);
    return durable(w, &r, false);
}

enum neb_status worker_save(struct agent_worker *w) { return worker_save_at(w, w->step); }

enum neb_status worker_save_at(struct agent_worker *w, int64_t at) {
    char dir[NEB_PATH_MAX], path[NEB_PATH_MAX];
    worker_heartbeat(w, false, 0);
    NEB_TRY(neb_path(dir, sizeof dir, w->dir, "checkpoint"));
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(intra_ckpt_step_path(dir, at, path, sizeof path));
    return w->saver ? save_aside(w, at, dir, path) : save_now(w, at, dir, path);
}
