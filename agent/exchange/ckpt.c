// SPDX-License-Identifier: Apache-2.0
// The contents of checkpoints, how to continue from one, the merge log, and the final model.
#include "agent/base/log.h"
#include "agent/exchange/exchange.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- the state besides parameters ---------------------------------------------------------------

enum { STATE_VERSION = 7 }; // of "worker.state"; other versions are refused

struct state { // a state that is written to `to`, or read from `from`
    struct neb_buf *to;
    struct neb_rd *from;
    bool unknown; // the state has a codec that this program does not know
};
#define STATE_FIELD(NAME, TYPE)                                                                    \
    static void NAME(struct state *s, TYPE *x) {                                                   \
        if (s->to)                                                                                 \
            neb_buf_##NAME(s->to, *x);                                                             \
        else                                                                                       \
            *x = neb_rd_##NAME(s->from);                                                           \
    }
STATE_FIELD(u8, uint8_t)
STATE_FIELD(u32, uint32_t)
STATE_FIELD(u64, uint64_t)
STATE_FIELD(i64, int64_t)
STATE_FIELD(f32, float)
STATE_FIELD(f64, double)

static void flag(struct state *s, bool *x) {
    uint8_t byte = *x;
    u8(s, &byte);
    *x = byte == 1;
}

static void level(struct state *s, uint8_t *x) {
    if (s->to)
        neb_buf_u8(s->to, cmp_level_number(*x));
    else if (!inter_level_get(s->from, x))
        s->unknown = true;
}

static void pass_fragment(struct state *s, struct agent_exchange *x, int32_t f) {
    struct agent_fragment *g = &x->frags[f];
    struct agent_flight *t = &x->flight[f];
    struct exchange_fragment *k = &x->kept[f];
    uint32_t version = inter_outer_version(x->outer, f);
    u32(s, &g->round);
    flag(s, &g->in_flight);
    flag(s, &g->sent_final);
    flag(s, &g->finished);
    i64(s, &g->send_step);
    i64(s, &g->merge_step);
    i64(s, &g->merged_step);
    u32(s, &g->missed);
    i64(s, &k->counted_miss);
    u64(s, &k->tokens_base);
    i64(s, &k->steps_base);
    u64(s, &k->last_digest.lo);
    u64(s, &k->last_digest.hi);
    u64(s, &t->tokens);
    u64(s, &t->tokens_at_send);
    u32(s, &t->steps);
    u32(s, &t->missed);
    level(s, &t->codec);
    f32(s, &t->error);
    for (int i = 0; i < 2; i++) {
        struct inter_plan *p = &k->plans[i];
        u32(s, &p->interval);
        u32(s, &p->overlap);
        level(s, &p->codec);
        u8(s, &p->reason);
        u8(s, &p->left_out);
    }
    u32(s, &version);
    if (s->to)
        return;
    g->committed_step = k->steps_base;
    inter_outer_set_fragment(x->outer, f, version, g->in_flight && !exchange_follows(x, f));
}

static void pass_state(struct state *s, struct agent_exchange *x) {
    int32_t fragments = x->shards ? exchange_fragments(x) : 0;
    uint32_t interval = (uint32_t)x->schedule.interval;
    i64(s, &x->schedule.base);
    u32(s, &interval);
    x->schedule.interval = (int32_t)interval;
    f64(s, &x->step_s);
    i64(s, &x->step);
    u64(s, &x->all_tokens);
    f64(s, &x->loss_first);
    f64(s, &x->loss_last);
    f64(s, &x->train_s);
    f64(s, &x->stall_s);
    f64(s, &x->sync_s);
    u64(s, &x->payload_bytes);
    u64(s, &x->payload_params);
    u32(s, &x->rounds);
    i64(s, &x->lost_steps);
    u32(s, &x->incarnation);
    u8(s, &x->left_out);
    i64(s, &x->steps_left_out);
    for (int32_t f = 0; f < fragments; f++)
        pass_fragment(s, x, f);
    for (int32_t f = 0; f < fragments; f++)
        u32(s, &x->flight[f].retries);
    u64(s, &x->masked_sent);
    if (agent_job_groups(&x->job) > 1)
        i64(s, &x->schedule.base_cycles);
}

// False if a value is outside what this program writes.
static bool sound(const struct agent_exchange *x) {
    if (x->step < 0 || x->left_out > INTER_LEFT_OUT_MAX ||
        (x->federated &&
         (x->schedule.base < 0 || x->schedule.base_cycles < 0 || x->schedule.interval < 1)))
        return false;
    for (int32_t f = 0; x->federated && f < exchange_fragments(x); f++) {
        for (int i = 0; i < 2; i++) {
            const struct inter_plan *p = &x->kept[f].plans[i];
            if (p->reason >= INTER_REASONS || p->left_out > INTER_LEFT_OUT_MAX)
                return false;
        }
        if (x->flight[f].retries > INTER_RETRIES_MAX)
            return false;
    }
    return true;
}

// Names what the numbers depend on: a resume is bit-identical only if this stays the same.
static void build_note(char *out, size_t cap, const struct agent_exchange *x) {
    snprintf(out, cap, "nebula %s, %s%s%s, %d threads", NEBULA_VERSION, x->isa,
             x->products ? ", " : "", x->products ? x->products : "",
             kern_pool_threads(x->trainer.pool));
}

static enum neb_status save_sync(struct agent_exchange *x, struct intra_ckpt_writer *out) {
    uint64_t counts = 2 * x->trainer.n_counters;
    char name[64];
    if (!x->saves.rest_only)
        NEB_TRY(agent_shards_save(x->shards, out));
    // the agent needs this to make a snapshot of the checkpoint
    uint64_t rounds[INTER_FRAGMENTS_MAX][EXCHANGE_ROUND_WORDS];
    for (int32_t f = 0; f < exchange_fragments(x); f++) {
        const struct kern_digest *d = &x->kept[f].last_digest;
        const uint64_t r[EXCHANGE_ROUND_WORDS] = {x->frags[f].round,
                                                  inter_outer_version(x->outer, f), d->lo, d->hi};
        memcpy(rounds[f], r, sizeof r);
    }
    NEB_TRY(intra_ckpt_add(out, "sync.rounds", INTRA_U64, (uint64_t)exchange_fragments(x),
                           EXCHANGE_ROUND_WORDS, rounds));
    for (int32_t f = 0; f < exchange_fragments(x); f++) {
        snprintf(name, sizeof name, "sync.counts.%d", f);
        NEB_TRY(intra_ckpt_add(out, name, INTRA_U64, counts, 1, x->kept[f].counts_base));
        if (x->frags[f].in_flight)
            NEB_TRY(agent_shards_save_flight(x->shards, f, &x->flight[f].blob, out));
    }
    return NEB_OK;
}

enum neb_status exchange_write_checkpoint(struct agent_exchange *x, struct intra_ckpt_writer *out) {
    struct neb_buf state = {0};
    char note[128];
    if (x->saves.trainer_only)
        return x->trainer.ops->save(x->trainer.user, out);
    neb_buf_u32(&state, STATE_VERSION);
    pass_state(&(struct state){.to = &state}, x);
    enum neb_status st = neb_buf_check(&state);
    if (st == NEB_OK)
        st = intra_ckpt_add(out, "worker.state", INTRA_BYTES, state.len, 1, state.p);
    neb_buf_free(&state);
    NEB_TRY(st);
    build_note(note, sizeof note, x);
    NEB_TRY(intra_ckpt_add(out, "build", INTRA_BYTES, strlen(note), 1, note));
    if (!x->saves.rest_only)
        NEB_TRY(x->trainer.ops->save(x->trainer.user, out));
    return x->shards ? save_sync(x, out) : NEB_OK;
}

static enum neb_status restore_sync(struct agent_exchange *x, const struct intra_ckpt *c) {
    uint64_t counts = 2 * x->trainer.n_counters;
    char name[64];
    NEB_TRY(agent_shards_restore(x->shards, x->saves.rest_only ? NULL : c));
    for (int32_t f = 0; f < exchange_fragments(x); f++) {
        snprintf(name, sizeof name, "sync.counts.%d", f);
        NEB_TRY(intra_ckpt_read(c, name, INTRA_U64, counts, 1, x->kept[f].counts_base));
        if (!x->frags[f].in_flight)
            continue;
        NEB_TRY(agent_shards_restore_flight(x->shards, f, c, &x->flight[f].blob));
        x->flight[f].payload = agent_shards_payload(x->shards, f);
    }
    return NEB_OK;
}

// Reads the merges of the run that is repeated: "fragment round step" per line, then "f" if it was
// a commit without our update. Cuts off an incomplete last line, so that the next line does not
// extend it. Skips rounds before this state: after months there are millions.
static enum neb_status read_merges(struct agent_exchange *x) {
    char path[NEB_PATH_MAX];
    unsigned fragment, round;
    long long step;
    char line[128], mark[2];
    long whole = 0; // bytes up to the end of the last complete line
    NEB_TRY(neb_path(path, sizeof path, x->dir, "merges.log"));
    FILE *f = fopen(path, "r");
    if (!f)
        return NEB_OK;
    while (fgets(line, sizeof line, f)) {
        int n = sscanf(line, "%u %u %lld %1s", &fragment, &round, &step, mark);
        if (n < 3 || !strchr(line, '\n'))
            break; // an incomplete line: that merge was never used
        whole = ftell(f);
        if (fragment >= INTER_FRAGMENTS_MAX || round < x->frags[fragment].round)
            continue;
        struct exchange_merge *p = realloc(x->merges.log, (x->merges.n + 1) * sizeof *p);
        if (!p) {
            fclose(f);
            return neb_fail(NEB_ERR_NOMEM, "out of memory reading %s", path);
        }
        x->merges.log = p;
        x->merges.log[x->merges.n++] = (struct exchange_merge){fragment, round, step, n == 4};
    }
    fclose(f);
    return truncate(path, whole) == 0 ? NEB_OK : neb_fail_errno("cannot cut %s", path);
}

static enum neb_status restore_from(struct agent_exchange *x, const struct intra_ckpt *c) {
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
    struct state in = {.from = &r};
    pass_state(&in, x);
    if (!neb_rd_done(&r) || in.unknown || !sound(x))
        return neb_fail(NEB_ERR_FORMAT, "the state in %s does not fit this job",
                        intra_ckpt_path(c));
    build_note(note, sizeof note, x);
    if (!b || b->bytes != strlen(note) || memcmp(built, note, b->bytes))
        neb_warn("%s was written by another build or machine (%.*s; here %s): training continues, "
                 "but not bit for bit",
                 intra_ckpt_path(c), b ? (int)b->bytes : 0, (const char *)built, note);
    if (!x->saves.rest_only)
        NEB_TRY(x->trainer.ops->restore(x->trainer.user, c));
    return x->shards ? restore_sync(x, c) : NEB_OK;
}

// False if the checkpoint contains a suspect round. The agent suspects this cluster's state from
// that round on.
static bool trusted(const struct agent_exchange *x, const struct intra_ckpt *c) {
    const struct intra_ckpt_section *s = intra_ckpt_find(c, "sync.rounds");
    if (!x->federated || !s || s->rows != (uint64_t)exchange_fragments(x) ||
        s->cols != EXCHANGE_ROUND_WORDS)
        return true; // the reader reports what does not fit
    for (int32_t f = 0; f < exchange_fragments(x); f++) {
        uint64_t round[EXCHANGE_ROUND_WORDS];
        if (intra_ckpt_range(c, s, (size_t)f * sizeof round, round, sizeof round) != NEB_OK)
            return false;
        if (x->kept[f].suspect && round[0] >= x->kept[f].suspect)
            return false;
    }
    return true;
}

static enum neb_status holds_what_it_says(const struct agent_exchange *x, bool *holds) {
    *holds = true;
    for (int32_t f = 0; x->federated && f < exchange_fragments(x); f++) {
        struct kern_digest d;
        const struct kern_digest *last = &x->kept[f].last_digest;
        NEB_TRY(agent_shards_digest(x->shards, f, &d));
        if (x->frags[f].round && (d.lo != last->lo || d.hi != last->hi))
            *holds = false;
    }
    return NEB_OK;
}

enum neb_status exchange_newest(struct agent_exchange *x, struct intra_ckpt **out) {
    char dir[NEB_PATH_MAX], text[NEB_PATH_MAX + 128];
    NEB_TRY(neb_path(dir, sizeof dir, x->dir, "checkpoint"));
    enum neb_status st = intra_ckpt_take_latest_in(exchange_vault(x), dir, out);
    if (st != NEB_ERR_NOT_FOUND || !x->had_checkpoint)
        return st;
    x->had_checkpoint = false; // report it once
    snprintf(text, sizeof text,
             "every checkpoint in %s is damaged: this cluster starts without one, and takes the "
             "state of the other clusters if there are any",
             dir);
    neb_log(NEB_LOG_ERROR, "%s", text);
    exchange_metrics(x, json_pack("{s:s,s:s}", "kind", "fault", "text", text));
    return x->skips_init ? NEB_ERR_AGAIN : st;
}

// The trainer has set the arrays already. This reads everything else, from the file x->saves.rest.
static enum neb_status restore_rest(struct agent_exchange *x) {
    struct intra_ckpt *c = NULL;
    bool good = false;
    NEB_TRY(intra_ckpt_open_in(exchange_vault(x), x->saves.rest, true, &c));
    x->saves.rest_only = true;
    enum neb_status st = restore_from(x, c);
    x->saves.rest_only = false;
    intra_ckpt_close(&c);
    if (st == NEB_OK)
        st = holds_what_it_says(x, &good);
    return st == NEB_OK && !good
               ? neb_fail(NEB_ERR_CORRUPT, "the state that was loaded does not match its digests")
               : st;
}

// Restores the newest checkpoint that can be trusted, and removes those that cannot. NEB_ERR_AGAIN:
// none is left, and this process holds the state of a bad one. A new process has to start.
static enum neb_status restore_newest(struct agent_exchange *x) {
    for (bool dirty = false;; dirty = true) {
        struct intra_ckpt *c = NULL;
        char path[NEB_PATH_MAX];
        enum neb_status found = exchange_newest(x, &c);
        if (found != NEB_OK)
            return found == NEB_ERR_NOT_FOUND && dirty ? NEB_ERR_AGAIN : found;
        snprintf(path, sizeof path, "%s", intra_ckpt_path(c));
        bool good = trusted(x, c);
        enum neb_status st = good ? restore_from(x, c) : NEB_OK;
        intra_ckpt_close(&c);
        if (st == NEB_ERR_NOT_FOUND) // a section is missing, and the state is half restored
            return NEB_ERR_FORMAT;
        NEB_TRY(st);
        if (good)
            NEB_TRY(holds_what_it_says(x, &good));
        if (good)
            return NEB_OK;
        neb_warn("%s holds parameters that differ from those of the other members: it is removed, "
                 "and an older checkpoint is used",
                 path);
        NEB_TRY(neb_fs_remove(path));
    }
}

enum neb_status exchange_restore(struct agent_exchange *x) {
    char path[NEB_PATH_MAX];
    NEB_TRY(neb_path(path, sizeof path, x->dir, "merges.log"));
    enum neb_status st = x->saves.rest[0] ? restore_rest(x) : restore_newest(x);
    if (st != NEB_OK && st != NEB_ERR_NOT_FOUND)
        return st;
    if (!x->federated)
        return st;
    bool whole = st == NEB_OK;
    // also without a checkpoint: then the run is repeated from its start
    NEB_TRY(read_merges(x));
    NEB_TRY(neb_fs_private(path, true)); // needed in an attached trainer, which sets its own umask
    if (!(x->merges.file = fopen(path, "a")))
        return neb_fail_errno("cannot open %s", path);
    // updates in flight are merged at the step of the repeated run
    for (size_t i = 0; i < x->merges.n; i++) {
        uint32_t f = x->merges.log[i].fragment;
        struct agent_fragment *g = f < INTER_FRAGMENTS_MAX ? &x->frags[f] : NULL;
        if (g && g->in_flight && g->round == x->merges.log[i].round)
            g->merge_step = x->merges.log[i].step;
    }
    NEB_TRY(exchange_adopt_snapshot(x, whole));
    return x->step || whole ? NEB_OK : NEB_ERR_NOT_FOUND;
}

enum neb_status exchange_log_merge(struct agent_exchange *x, int32_t f) {
    const struct agent_fragment *g = &x->frags[f];
    for (size_t i = 0; i < x->merges.n; i++)
        if (x->merges.log[i].fragment == (uint32_t)f && x->merges.log[i].round == g->round)
            return NEB_OK; // the repeated run has logged it
    if (fprintf(x->merges.file, "%d %u %lld%s\n", f, g->round, (long long)x->step,
                g->in_flight ? "" : " f") < 0 ||
        fflush(x->merges.file) != 0 || fdatasync(fileno(x->merges.file)) != 0)
        return neb_fail_errno("cannot write %s/merges.log", x->dir);
    return NEB_OK;
}

enum neb_status exchange_write_model(struct agent_exchange *x, const char *name,
                                     enum neb_status (*write)(void *user,
                                                              struct intra_ckpt_writer *out),
                                     void *user) {
    char path[NEB_PATH_MAX];
    struct intra_ckpt_writer *out = NULL;
    NEB_TRY(neb_path(path, sizeof path, x->dir, name));
    NEB_TRY(intra_ckpt_create_in(exchange_vault(x), path, &out));
    enum neb_status st = write(user, out);
    if (st == NEB_OK)
        st = intra_ckpt_commit(out);
    intra_ckpt_writer_destroy(&out);
    return st;
}
