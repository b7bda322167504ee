// SPDX-License-Identifier: Apache-2.0
// Writes a worker's checkpoints, and reports them to the agent once they are durable.
//
// The state is copied between two steps; on a mesh every rank copies what it writes. A thread
// writes the copy while training continues (intra/ckpt/checkpoint_async.h). The agent hears of a
// checkpoint only when it is on disk, because the agent then forgets what only older checkpoints
// need. The worker waits for the disk if there is no memory for a copy, or if an attached trainer
// saves its own state with the checkpoint.
#include "agent/base/log.h"
#include "agent/exchange/exchange.h"

#include <string.h>

static enum neb_status count_bytes(void *user, const char *name, enum intra_dtype dtype,
                                   uint64_t rows, uint64_t cols, const void *data, uint64_t bytes) {
    (void)name, (void)dtype, (void)rows, (void)cols, (void)data;
    *(uint64_t *)user += bytes + 64; // 64: alignment
    return NEB_OK;
}

// Bytes of a checkpoint now (*now), and with an update of every fragment in flight, all in fp32
// (*most).
static enum neb_status measure(struct agent_exchange *x, uint64_t *now, uint64_t *most) {
    struct intra_ckpt_writer *counter = NULL;
    *now = 0;
    NEB_TRY(intra_ckpt_create_sink(count_bytes, now, exchange_vault(x) != NULL, &counter));
    intra_ckpt_split(counter, ""); // other ranks have copies of their own parts
    enum neb_status st = exchange_write_checkpoint(x, counter);
    intra_ckpt_writer_destroy(&counter);
    *most = *now + 5 * x->elements + (1 << 20) + x->saves.reserve;
    return st;
}

enum neb_status exchange_save_start(struct agent_exchange *x) {
    uint64_t now, most;
    if (!x->job.checkpoint_every || !x->job.checkpoint_copy)
        return NEB_OK; // no checkpoint before the end, or the job wants no copies
    NEB_TRY(measure(x, &now, &most));
    enum neb_status st =
        intra_ckpt_async_create(exchange_vault(x), x->trainer.pool, now, most, &x->saves.saver);
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

static json_t *rounds_json(const struct agent_exchange *x, const uint32_t *of) {
    json_t *rounds = json_array();
    for (int32_t f = 0; f < exchange_fragments(x); f++)
        json_array_append_new(rounds, json_integer((json_int_t)of[f]));
    return rounds;
}

// Reports what the newest checkpoint holds, and which updates no checkpoint on disk needs any more.
// A process that has not written all of these checkpoints does not know what the older ones need,
// and releases nothing.
static void release_updates(struct agent_exchange *x) {
    int keep = x->job.checkpoint_keep;
    if (x->saves.newest == x->saves.now.step)
        return; // the same checkpoint again
    x->saves.newest = x->saves.now.step;
    memcpy(x->saves.rounds[x->saves.n % keep], x->saves.now.rounds, sizeof x->saves.now.rounds);
    json_t *head =
        json_pack("{s:s,s:o}", "op", "checkpoint", "saved", rounds_json(x, x->saves.now.rounds));
    if (++x->saves.n >= keep) // the next slot to write is the oldest one
        json_object_set_new(head, "rounds", rounds_json(x, x->saves.rounds[x->saves.n % keep]));
    if (agent_ipc_send(x->link.ipc, NULL, head, NULL, 0) != NEB_OK)
        neb_debug("the checkpoint could not be reported to the agent");
}

// Called when a checkpoint is on disk. aside: a thread wrote it.
static enum neb_status durable(struct agent_exchange *x, const struct intra_ckpt_async_result *r,
                               bool aside) {
    exchange_metrics(x, json_pack("{s:s,s:I,s:I,s:f,s:f,s:b}", "kind", "checkpoint", "step",
                                  (json_int_t)x->saves.now.step, "bytes", (json_int_t)r->bytes,
                                  "checkpoint_stall_ms", 1e3 * (x->saves.now.wait_s + r->copy_s),
                                  "write_ms", 1e3 * r->write_s, "while_training", aside));
    if (x->federated)
        release_updates(x);
    const struct agent_trainer *t = &x->trainer;
    return t->ops->durable ? t->ops->durable(t->user) : NEB_OK;
}

enum neb_status exchange_saved(struct agent_exchange *x) {
    struct intra_ckpt_async_result r;
    enum neb_status st =
        x->saves.saver ? intra_ckpt_async_result(x->saves.saver, &r) : NEB_ERR_NOT_FOUND;
    if (st == NEB_ERR_NOT_FOUND || st == NEB_ERR_AGAIN)
        return NEB_OK;
    NEB_TRY(st);
    return durable(x, &r, true);
}

enum neb_status exchange_save_wait(struct agent_exchange *x) {
    if (!x->saves.saver)
        return NEB_OK;
    neb_ns start = neb_now();
    intra_ckpt_async_wait(x->saves.saver);
    double waited_s = neb_seconds(neb_now() - start);
    NEB_TRY(exchange_saved(x));
    x->stall_s += waited_s;
    x->saves.now.wait_s = waited_s; // reported with the next checkpoint
    return NEB_OK;
}

static void begin_saving(struct agent_exchange *x, int64_t at) {
    x->saves.now.step = at;
    for (int32_t f = 0; x->federated && f < exchange_fragments(x); f++)
        x->saves.now.rounds[f] = x->frags[f].round;
}

static enum neb_status save_aside(struct agent_exchange *x, int64_t at, const char *dir,
                                  const char *path) {
    struct intra_ckpt_writer *out = NULL;
    NEB_TRY(exchange_save_wait(x));
    begin_saving(x, at);
    NEB_TRY(intra_ckpt_async_begin(x->saves.saver, &out));
    intra_ckpt_split(out, path);
    enum neb_status st = exchange_write_checkpoint(x, out);
    if (st == NEB_OK)
        return intra_ckpt_async_submit(x->saves.saver, &out, dir, path, x->job.checkpoint_keep);
    intra_ckpt_writer_destroy(&out);
    return st;
}

static enum neb_status save_now(struct agent_exchange *x, int64_t at, const char *dir,
                                const char *path) {
    struct intra_ckpt_writer *out = NULL;
    neb_ns start = neb_now();
    begin_saving(x, at);
    NEB_TRY(intra_ckpt_create_in(exchange_vault(x), path, &out));
    intra_ckpt_split(out, path);
    enum neb_status st = exchange_write_checkpoint(x, out);
    struct intra_ckpt_async_result r = {.bytes = intra_ckpt_bytes(out)};
    if (st == NEB_OK)
        st = intra_ckpt_commit(out);
    intra_ckpt_writer_destroy(&out);
    NEB_TRY(st);
    NEB_TRY(intra_ckpt_prune(exchange_vault(x), dir, x->job.checkpoint_keep));
    r.write_s = r.copy_s = neb_seconds(neb_now() - start);
    return durable(x, &r, false);
}

enum neb_status exchange_save(struct agent_exchange *x) { return exchange_save_at(x, x->step); }

enum neb_status exchange_save_at(struct agent_exchange *x, int64_t at) {
    char dir[NEB_PATH_MAX], path[NEB_PATH_MAX];
    exchange_heartbeat(x, false, 0);
    NEB_TRY(neb_path(dir, sizeof dir, x->dir, "checkpoint"));
    NEB_TRY(neb_fs_mkdirs(dir, 0700));
    NEB_TRY(intra_ckpt_step_path(dir, at, path, sizeof path));
    return x->saves.saver ? save_aside(x, at, dir, path) : save_now(x, at, dir, path);
}
