// SPDX-License-Identifier: Apache-2.0
// The contents of a worker's checkpoints, how to continue from one, the merge log, and the final
// model.
#include "agent/base/log.h"
#include "agent/exchange/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum neb_status folder(const struct agent_worker *w, char *out, size_t cap) {
    return neb_path(out, cap, w->dir, "checkpoint");
}

enum { STATE_VERSION = 7 }; // of "worker.state"; others are refused

static void put_state(struct neb_buf *b, const struct agent_worker *w) {
    neb_buf_u32(b, STATE_VERSION);
    neb_buf_i64(b, w->schedule.base);
    neb_buf_u32(b, (uint32_t)w->schedule.interval);
    neb_buf_f64(b, w->step_s);
    neb_buf_i64(b, w->step);
    neb_buf_u64(b, w->all_tokens);
    neb_buf_f64(b, w->loss_first);
    neb_buf_f64(b, w->loss_last);
    neb_buf_f64(b, w->train_s);
    neb_buf_f64(b, w->stall_s);
    neb_buf_f64(b, w->sync_s);
    neb_buf_u64(b, w->payload_bytes);
    neb_buf_u64(b, w->payload_params);
    neb_buf_u32(b, w->rounds);
    neb_buf_i64(b, w->lost_steps);
    neb_buf_u32(b, w->incarnation);
    neb_buf_u8(b, w->left_out);
    neb_buf_i64(b, w->steps_left_out);
    for (int32_t f = 0; w->federated && f < w->job.sync.fragments; f++) {
        const struct agent_fragment *g = &w->frags[f];
        const struct agent_flight *t = &w->flight[f];
        const struct worker_fragment *k = &w->kept[f];
        neb_buf_u32(b, g->round);
        neb_buf_u8(b, g->in_flight);
        neb_buf_u8(b, g->sent_final);
        neb_buf_u8(b, g->finished);
        neb_buf_i64(b, g->send_step);
        neb_buf_i64(b, g->merge_step);
        neb_buf_i64(b, g->merged_step);
        neb_buf_u32(b, g->missed);
        neb_buf_i64(b, k->counted_miss);
        neb_buf_u64(b, k->tokens_base);
        neb_buf_i64(b, k->steps_base);
        neb_buf_u64(b, k->last_digest.lo);
        neb_buf_u64(b, k->last_digest.hi);
        neb_buf_u64(b, t->tokens);
        neb_buf_u64(b, t->tokens_at_send);
        neb_buf_u32(b, t->steps);
        neb_buf_u32(b, t->missed);
        neb_buf_u8(b, cmp_level_number(t->codec));
        neb_buf_f32(b, t->error);
        for (int i = 0; i < 2; i++) {
            neb_buf_u32(b, k->plans[i].interval);
            neb_buf_u32(b, k->plans[i].overlap);
            neb_buf_u8(b, cmp_level_number(k->plans[i].codec));
            neb_buf_u8(b, k->plans[i].reason);
            neb_buf_u8(b, k->plans[i].left_out);
        }
        neb_buf_u32(b, inter_outer_version(w->outer, f));
    }
    for (int32_t f = 0; w->federated && f < w->job.sync.fragments; f++)
        neb_buf_u32(b, w->flight[f].retries);
    neb_buf_u64(b, w->masked_sent);
}

static bool get_state(struct neb_rd *r, struct agent_worker *w) {
    int64_t base = neb_rd_i64(r);
    uint32_t interval = neb_rd_u32(r);
    if (w->federated && (base < 0 || interval < 1 || interval > INT32_MAX))
        return false;
    w->schedule.base = base;
    w->schedule.interval = (int32_t)interval;
    w->step_s = neb_rd_f64(r);
    w->step = neb_rd_i64(r);
    w->all_tokens = neb_rd_u64(r);
    w->loss_first = neb_rd_f64(r);
    w->loss_last = neb_rd_f64(r);
    w->train_s = neb_rd_f64(r);
    w->stall_s = neb_rd_f64(r);
    w->sync_s = neb_rd_f64(r);
    w->payload_bytes = neb_rd_u64(r);
    w->payload_params = neb_rd_u64(r);
    w->rounds = neb_rd_u32(r);
    w->lost_steps = neb_rd_i64(r);
    w->incarnation = neb_rd_u32(r);
    w->left_out = neb_rd_u8(r);
    w->steps_left_out = neb_rd_i64(r);
    if (w->left_out > INTER_LEFT_OUT_MAX)
        return false;
    for (int32_t f = 0; w->federated && f < w->job.sync.fragments; f++) {
        struct agent_fragment *g = &w->frags[f];
        struct agent_flight *t = &w->flight[f];
        struct worker_fragment *k = &w->kept[f];
        g->round = neb_rd_u32(r);
        g->in_flight = neb_rd_u8(r) == 1;
        g->sent_final = neb_rd_u8(r) == 1;
        g->finished = neb_rd_u8(r) == 1;
        g->send_step = neb_rd_i64(r);
        g->merge_step = neb_rd_i64(r);
        g->merged_step = neb_rd_i64(r);
        g->missed = neb_rd_u32(r);
        k->counted_miss = neb_rd_i64(r);
        k->tokens_base = neb_rd_u64(r);
        k->steps_base = g->committed_step = neb_rd_i64(r);
        k->last_digest.lo = neb_rd_u64(r);
        k->last_digest.hi = neb_rd_u64(r);
        t->tokens = neb_rd_u64(r);
        t->tokens_at_send = neb_rd_u64(r);
        t->steps = neb_rd_u32(r);
        t->missed = neb_rd_u32(r);
        bool known = inter_level_get(r, &t->codec);
        t->error = neb_rd_f32(r);
        for (int i = 0; i < 2; i++) {
            struct inter_plan *p = &k->plans[i];
            p->interval = neb_rd_u32(r);
            p->overlap = neb_rd_u32(r);
            known = inter_level_get(r, &p->codec) && known;
            p->reason = neb_rd_u8(r);
            p->left_out = neb_rd_u8(r);
            if (!known || p->reason >= INTER_REASONS || p->left_out > INTER_LEFT_OUT_MAX)
                return false;
        }
        inter_outer_set_fragment(w->outer, f, neb_rd_u32(r), g->in_flight);
    }
    for (int32_t f = 0; w->federated && f < w->job.sync.fragments; f++) {
        w->flight[f].retries = neb_rd_u32(r);
        if (w->flight[f].retries > INTER_RETRIES_MAX)
            return false;
    }
    w->masked_sent = neb_rd_u64(r);
    return neb_rd_done(r) && w->step >= 0;
}

// Names what the numbers depend on: a resume is bit-identical only if this stays the same.
static void build_note(char *out, size_t cap, const struct agent_worker *w) {
    snprintf(out, cap, "nebula %s, %s%s%s, %d threads", NEBULA_VERSION, w->isa,
             w->products ? ", " : "", w->products ? w->products : "",
             kern_pool_threads(w->K->pool));
}

static enum neb_status save_sync(struct agent_worker *w, struct intra_ckpt_writer *out) {
    uint64_t V = (uint64_t)w->trainer->c.model.vocab;
    char name[64];
    NEB_TRY(worker_outer_save(w, out));
    // the agent needs this to make a snapshot of the checkpoint
    uint64_t rounds[INTER_FRAGMENTS_MAX][WORKER_ROUND_WORDS];
    for (int32_t f = 0; f < w->job.sync.fragments; f++) {
        const struct kern_digest *d = &w->kept[f].last_digest;
        const uint64_t r[WORKER_ROUND_WORDS] = {w->frags[f].round, inter_outer_version(w->outer, f),
                                                d->lo, d->hi};
        memcpy(rounds[f], r, sizeof r);
    }
    NEB_TRY(intra_ckpt_add(out, "sync.rounds", INTRA_U64, (uint64_t)w->job.sync.fragments,
                           WORKER_ROUND_WORDS, rounds));
    for (int32_t f = 0; f < w->job.sync.fragments; f++) {
        snprintf(name, sizeof name, "sync.counts.%d", f);
        NEB_TRY(intra_ckpt_add(out, name, INTRA_U64, WORKER_COUNTS * V, 1, w->kept[f].counts.all));
        snprintf(name, sizeof name, "sync.blob.%d", f);
        if (w->frags[f].in_flight)
            NEB_TRY(intra_ckpt_add(out, name, INTRA_BYTES, w->flight[f].blob.len, 1,
                                   w->flight[f].blob.p));
    }
    return NEB_OK;
}

enum neb_status worker_write_checkpoint(struct agent_worker *w, struct intra_ckpt_writer *out) {
    struct neb_buf state = {0};
    char note[128];
    if (w->side && !w->federated) // in modes rtd and distill the side writes everything
        return w->ops.save(w, out);
    put_state(&state, w);
    enum neb_status st = neb_buf_check(&state);
    if (st == NEB_OK)
        st = intra_ckpt_add(out, "worker.state", INTRA_BYTES, state.len, 1, state.p);
    neb_buf_free(&state);
    NEB_TRY(st);
    build_note(note, sizeof note, w);
    NEB_TRY(intra_ckpt_add(out, "build", INTRA_BYTES, strlen(note), 1, note));
    NEB_TRY(w->ops.save(w, out));
    return w->federated ? save_sync(w, out) : NEB_OK;
}

static enum neb_status restore_sync(struct agent_worker *w, const struct intra_ckpt *c) {
    uint64_t V = (uint64_t)w->trainer->c.model.vocab;
    char name[64];
    NEB_TRY(worker_outer_restore(w, c));
    for (int32_t f = 0; f < w->job.sync.fragments; f++) {
        snprintf(name, sizeof name, "sync.counts.%d", f);
        NEB_TRY(intra_ckpt_read(c, name, INTRA_U64, WORKER_COUNTS * V, 1, w->kept[f].counts.all));
        snprintf(name, sizeof name, "sync.blob.%d", f);
        const struct intra_ckpt_section *s = intra_ckpt_find(c, name);
        if (!w->frags[f].in_flight)
            continue;
        if (!s)
            return neb_fail(NEB_ERR_CORRUPT, "%s: the update in flight of fragment %d is missing",
                            intra_ckpt_path(c), f);
        neb_buf_clear(&w->flight[f].blob);
        NEB_TRY(neb_buf_reserve(&w->flight[f].blob, s->bytes));
        NEB_TRY(intra_ckpt_range(c, s, 0, w->flight[f].blob.p, s->bytes));
        w->flight[f].blob.len = s->bytes;
    }
    return NEB_OK;
}

// Reads the merges of the run that is repeated: "fragment round step" per line, then "f" if it was
// a commit without our update. Cuts off an incomplete last line, so that the next line does not
// extend it. Skips rounds before this state: after months there are millions.
static enum neb_status read_merges(struct agent_worker *w) {
    char path[NEB_PATH_MAX];
    unsigned fragment, round;
    long long step;
    char line[128], mark[2];
    long whole = 0; // bytes up to the end of the last complete line
    NEB_TRY(neb_path(path, sizeof path, w->dir, "merges.log"));
    FILE *f = fopen(path, "r");
    if (!f)
        return NEB_OK;
    while (fgets(line, sizeof line, f)) {
        int n = sscanf(line, "%u %u %lld %1s", &fragment, &round, &step, mark);
        if (n < 3 || !strchr(line, '\n'))
            break; // an incomplete line: that merge was never used
        whole = ftell(f);
        if (fragment >= INTER_FRAGMENTS_MAX || round < w->frags[fragment].round)
            continue;
        struct agent_merge *p = realloc(w->log, (w->n_log + 1) * sizeof *p);
        if (!p) {
            fclose(f);
            return neb_fail(NEB_ERR_NOMEM, "out of memory reading %s", path);
        }
        w->log = p;
        w->log[w->n_log++] = (struct agent_merge){fragment, round, step, n == 4};
    }
    fclose(f);
    return truncate(path, whole) == 0 ? NEB_OK : neb_fail_errno("cannot cut %s", path);
}

static enum neb_status restore_from(struct agent_worker *w, const struct intra_ckpt *c) {
    char note[128];
    const struct intra_ckpt_section *s = intra_ckpt_find(c, "worker.state"),
                                    *b = intra_ckpt_find(c, "build");
    if (!s)
        return neb_fail(NEB_ERR_FORMAT, "%s is not a checkpoint of a worker", intra_ckpt_path(c));
    const void *state = intra_ckpt_data(c, s), *built = b ? intra_ckpt_data(c, b) : "";
    if (!state || !built)
        return NEB_ERR_IO;
    struct neb_rd r = neb_rd_make(state, s->bytes);
    uint32_t version = neb_rd_u32(&r);
    if (version != STATE_VERSION)
        return neb_fail(NEB_ERR_FORMAT, "%s has state version %u; this program reads version %d",
                        intra_ckpt_path(c), version, STATE_VERSION);
    if (!get_state(&r, w))
        return neb_fail(NEB_ERR_FORMAT, "the state in %s does not fit this job",
                        intra_ckpt_path(c));
    build_note(note, sizeof note, w);
    if (!b || b->bytes != strlen(note) || memcmp(built, note, b->bytes))
        neb_warn("%s was written by another build or machine (%.*s; here %s): training continues, "
                 "but not bit for bit",
                 intra_ckpt_path(c), b ? (int)b->bytes : 0, (const char *)built, note);
    NEB_TRY(w->ops.restore(w, c));
    return w->federated ? restore_sync(w, c) : NEB_OK;
}

// False if a checkpoint contains a round from which on the agent suspects this cluster's state.
static bool trusted(const struct agent_worker *w, const struct intra_ckpt *c) {
    const struct intra_ckpt_section *s = intra_ckpt_find(c, "sync.rounds");
    if (!w->federated || !s || s->rows != (uint64_t)w->job.sync.fragments ||
        s->cols != WORKER_ROUND_WORDS)
        return true; // the reader reports what does not fit
    for (int32_t f = 0; f < w->job.sync.fragments; f++) {
        uint64_t x[WORKER_ROUND_WORDS];
        if (intra_ckpt_range(c, s, (size_t)f * sizeof x, x, sizeof x) != NEB_OK)
            return false;
        if (w->kept[f].suspect && x[0] >= w->kept[f].suspect)
            return false;
    }
    return true;
}

static enum neb_status holds_what_it_says(const struct agent_worker *w, bool *holds) {
    *holds = true;
    for (int32_t f = 0; w->federated && f < w->job.sync.fragments; f++) {
        struct kern_digest d;
        const struct kern_digest *last = &w->kept[f].last_digest;
        NEB_TRY(worker_outer_digest(w, f, &d));
        if (w->frags[f].round && (d.lo != last->lo || d.hi != last->hi))
            *holds = false;
    }
    return NEB_OK;
}

// Restores the newest checkpoint that can be trusted, and removes those that cannot. NEB_ERR_AGAIN:
// none is left, and this process holds the state of a bad one: a new process has to start.
static enum neb_status restore_newest(struct agent_worker *w, const char *dir) {
    for (bool dirty = false;; dirty = true) {
        struct intra_ckpt *c = NULL;
        char path[NEB_PATH_MAX];
        enum neb_status found = worker_newest(w, dir, &c);
        if (found != NEB_OK)
            return found == NEB_ERR_NOT_FOUND && dirty ? NEB_ERR_AGAIN : found;
        snprintf(path, sizeof path, "%s", intra_ckpt_path(c));
        bool good = trusted(w, c);
        enum neb_status st = good ? restore_from(w, c) : NEB_OK;
        intra_ckpt_close(&c);
        if (st == NEB_ERR_NOT_FOUND) // a section is missing, and the state is half restored
            return NEB_ERR_FORMAT;
        NEB_TRY(st);
        if (good)
            NEB_TRY(holds_what_it_says(w, &good));
        if (good)
            return NEB_OK;
        neb_warn("%s holds parameters that differ from those of the other members: it is removed, "
                 "and an older checkpoint is used",
                 path);
        NEB_TRY(neb_fs_remove(path));
    }
}

enum neb_status worker_restore(struct agent_worker *w) {
    char dir[NEB_PATH_MAX], path[NEB_PATH_MAX];
    NEB_TRY(folder(w, dir, sizeof dir));
    NEB_TRY(neb_path(path, sizeof path, w->dir, "merges.log"));
    enum neb_status st = restore_newest(w, dir);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    if (!w->federated)
        return st;
    bool whole = st == NEB_OK;
    // without a checkpoint too: the run had begun, and is repeated from its start
    NEB_TRY(read_merges(w));
    NEB_TRY(neb_fs_private(path, true)); // needed in an attached trainer, which sets its own umask
    if (!(w->log_file = fopen(path, "a")))
        return neb_fail_errno("cannot open %s", path);
    // updates in flight are merged at the step of the repeated run
    for (size_t i = 0; i < w->n_log; i++) {
        uint32_t f = w->log[i].fragment;
        struct agent_fragment *g = f < INTER_FRAGMENTS_MAX ? &w->frags[f] : NULL;
        if (g && g->in_flight && g->round == w->log[i].round)
            g->merge_step = w->log[i].step;
    }
    NEB_TRY(worker_adopt_snapshot(w, whole));
    return w->step || whole ? NEB_OK : NEB_ERR_NOT_FOUND;
}

enum neb_status worker_log_merge(struct agent_worker *w, int32_t f) {
    const struct agent_fragment *g = &w->frags[f];
    for (size_t i = 0; i < w->n_log; i++)
        if (w->log[i].fragment == (uint32_t)f && w->log[i].round == g->round)
            return NEB_OK; // the repeated run has logged it
    if (fprintf(w->log_file, "%d %u %lld%s\n", f, g->round, (long long)w->step,
                g->in_flight ? "" : " f") < 0 ||
        fflush(w->log_file) != 0 || fdatasync(fileno(w->log_file)) != 0)
        return neb_fail_errno("cannot write %s/merges.log", w->dir);
    return NEB_OK;
}

enum neb_status worker_write_model(struct agent_worker *w, const struct intra_model *m,
                                   const char *name) {
    char path[NEB_PATH_MAX];
    struct intra_ckpt_writer *out = NULL;
    NEB_TRY(neb_path(path, sizeof path, w->dir, name));
    NEB_TRY(intra_ckpt_create_in(worker_vault(w), path, &out));
    enum neb_status st = m ? intra_model_save(m, out) : w->mesh->save_model(w, out);
    if (st == NEB_OK)
        st = intra_ckpt_commit(out);
    intra_ckpt_writer_destroy(&out);
    return st;
}

enum neb_status worker_save_model(struct agent_worker *w) {
    if (w->mesh)
        return worker_write_model(w, NULL, "model.ckpt");
    if (w->ops.pull)
        NEB_TRY(w->ops.pull(w, NULL));
    return worker_write_model(w, w->model, "model.ckpt");
}
