// SPDX-License-Identifier: Apache-2.0
// The state of the exchange for checkpoints that the loop writes itself: arrays by unit and owner,
// and on rank 0 the bytes of a small checkpoint file with everything else (rounds, plans, updates
// in flight, counters).
#include "agent/base/log.h"
#include "agent/exchange/shards.h"
#include "agent/lib/state.h"

#include <stdlib.h>
#include <string.h>

enum { ARRAYS = INTER_OUTER_ARRAYS + 1 }; // the last one: fp32 behind 16-bit tensors
static const char *const names[ARRAYS] = {"theta", "momentum", "residual", "sent", "shadow"};

// Units of this rank that have a state, in order.
static bool owns(const struct nebula *n, int32_t unit) {
    return n->fragment[unit] >= 0 && n->owner[unit] == n->rank;
}

static int arrays_of(const struct nebula *n, int32_t unit) {
    return !owns(n, unit) ? 0 : n->of[unit]->dtype == NEBULA_F32 ? INTER_OUTER_ARRAYS : ARRAYS;
}

struct found {
    bool rest; // rank 0's bytes
    int32_t unit, local;
    int array;
};

// False: there is no part i.
static bool find(const struct nebula *n, int32_t i, struct found *out) {
    *out = (struct found){.rest = n->rank == 0 && i == 0};
    if (i < 0 || out->rest)
        return i >= 0;
    i -= n->rank == 0;
    for (out->unit = 0; out->unit < n->x.trainer.n_units; out->unit++) {
        int here = arrays_of(n, out->unit);
        out->array = i;
        if (i < here)
            return true;
        i -= here;
        out->local += here > 0;
    }
    return false;
}

static float *memory_of(const struct nebula *n, const struct found *f) {
    struct inter_outer_array arrays[INTER_OUTER_ARRAYS];
    struct inter_outer *o = agent_shards_outer(n->rank ? n->shards : n->x.shards);
    if (f->array == INTER_OUTER_ARRAYS)
        return n->shadow[f->unit];
    inter_outer_arrays(o, arrays);
    return arrays[f->array].p + inter_outer_unit_at(o, f->local);
}

// ---- the rest -----------------------------------------------------------------------------------

static enum neb_status add_rest(struct nebula *n, struct intra_ckpt_writer *w) {
    uint64_t V = n->x.trainer.n_counters / 2;
    n->x.saves.rest_only = true;
    enum neb_status st = exchange_write_checkpoint(&n->x, w);
    n->x.saves.rest_only = false;
    if (st == NEB_OK && V)
        st = intra_ckpt_add(w, "attached.inputs", INTRA_U64, V, 1, n->sum);
    return st == NEB_OK && V ? intra_ckpt_add(w, "attached.targets", INTRA_U64, V, 1, n->sum + V)
                             : st;
}

// The clear text of a file.
static enum neb_status read_clear(const struct nebula *n, const char *path, struct neb_buf *out) {
    struct neb_file *f = NULL;
    NEB_TRY(neb_file_open(path, exchange_vault(&n->x), &f));
    neb_buf_clear(out);
    enum neb_status st = neb_buf_reserve(out, neb_file_len(f));
    if (st == NEB_OK)
        st = neb_file_read(f, 0, out->p, neb_file_len(f));
    out->len = st == NEB_OK ? neb_file_len(f) : 0;
    neb_file_close(&f);
    return st;
}

static enum neb_status write_clear(const struct nebula *n, const char *path,
                                   const struct neb_buf *b) {
    struct neb_fs_writer *w = NULL;
    NEB_TRY(neb_fs_writer_open(path, 0600, &w));
    enum neb_status st = neb_fs_writer_seal(w, exchange_vault(&n->x));
    if (st == NEB_OK)
        st = neb_fs_writer_add(w, b->p, b->len);
    if (st == NEB_OK)
        st = neb_fs_writer_commit(w);
    neb_fs_writer_destroy(&w);
    return st;
}

// Writes a checkpoint file, and reads its bytes.
static enum neb_status write_rest(struct nebula *n) {
    char path[NEB_PATH_MAX];
    struct intra_ckpt_writer *w = NULL;
    NEB_TRY(n->x.trainer.ops->counts(n, n->sum));
    NEB_TRY(neb_path(path, sizeof path, n->x.dir, "state.out"));
    NEB_TRY(intra_ckpt_create_in(exchange_vault(&n->x), path, &w));
    enum neb_status st = add_rest(n, w);
    if (st == NEB_OK)
        st = intra_ckpt_commit(w);
    intra_ckpt_writer_destroy(&w);
    neb_buf_free(&n->rest);
    if (st == NEB_OK)
        st = read_clear(n, path, &n->rest);
    if (neb_fs_exists(path) && neb_fs_remove(path) != NEB_OK)
        neb_warn("%s could not be removed", path);
    return st;
}

enum neb_status lib_rest_load(struct nebula *n) {
    struct agent_exchange *x = &n->x;
    uint64_t V = x->trainer.n_counters / 2;
    struct intra_ckpt *c = NULL;
    if (!n->loading)
        return NEB_OK;
    if (!n->rest.len)
        return neb_fail(NEB_ERR_STATE, "nebula_state_count was called before nebula_begin, but the "
                                       "part \"exchange\" was not set");
    NEB_TRY(neb_path(x->saves.rest, sizeof x->saves.rest, x->dir, "state.in"));
    NEB_TRY(write_clear(n, x->saves.rest, &n->rest));
    neb_buf_free(&n->rest);
    NEB_TRY(intra_ckpt_open_in(exchange_vault(x), x->saves.rest, true, &c));
    enum neb_status st = NEB_OK;
    if (V)
        st = intra_ckpt_read(c, "attached.inputs", INTRA_U64, V, 1, n->counters);
    if (V && st == NEB_OK)
        st = intra_ckpt_read(c, "attached.targets", INTRA_U64, V, 1, n->counters + V);
    intra_ckpt_close(&c);
    return st;
}

static enum neb_status bring_here(struct nebula *n) {
    if (!n->x.federated)
        return NEB_OK;
    for (int32_t i = 0; i < n->x.trainer.n_units; i++)
        NEB_TRY(lib_device_shadow_here(n, i));
    return inter_outer_pull(agent_shards_outer(n->rank ? n->shards : n->x.shards));
}

enum neb_status lib_bring_here(struct nebula *n) {
    return intra_comm_agree(n->world, bring_here(n));
}

// Rank 0: brings the state from the devices to the copies on the hosts, then writes the rest.
static enum neb_status write_all(struct nebula *n) {
    NEB_TRY(exchange_complete(&n->x, true));
    NEB_TRY(lib_late_figures(n, true));
    NEB_TRY(lib_call(n, LIB_BRING));
    NEB_TRY(lib_bring_here(n));
    return write_rest(n);
}

// ---- the calls ----------------------------------------------------------------------------------

int nebula_state_count(struct nebula *n, int32_t *out) {
    LIB_POINT;
    struct found f;
    int s = lib_usable(n, "nebula_state_count");
    if (s)
        return s;
    if (!out)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_state_count: out is NULL");
    if ((s = lib_enter(n, "nebula_state_count")) != NEBULA_OK)
        return s;
    bool first = !n->begun && !n->loading;
    n->loading = n->loading || first;
    enum neb_status st = first ? lib_prepare(n) : NEB_OK;
    if (st != NEB_OK) {
        n->failed = true;
        return lib_pass(st);
    }
    if (n->rank == 0)
        st = first ? lib_create(n) : n->begun ? write_all(n) : NEB_OK;
    s = lib_leave(n, lib_pass(st));
    n->failed = s != NEBULA_OK;
    for (*out = 0; !s && find(n, *out, &f);)
        ++*out;
    return s;
}

static int known(const struct nebula *n, const char *call, int32_t i, struct found *f) {
    int s = lib_usable(n, call);
    if (s)
        return s;
    if (!n->begun && !n->loading)
        return lib_fail(NEBULA_ERR_STATE, "%s: call nebula_state_count first", call);
    return find(n, i, f) ? (int)NEBULA_OK
                         : lib_fail(NEBULA_ERR_INVALID, "%s: this rank has no part %d", call, i);
}

int nebula_state_at(struct nebula *n, int32_t i, struct nebula_state_part *out) {
    struct found f;
    int s = known(n, "nebula_state_at", i, &f);
    if (s)
        return s;
    if (!out || out->size != sizeof *out)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_state_at: out is NULL or its size is not set");
    *out = (struct nebula_state_part){.size = sizeof *out};
    if (f.rest) {
        snprintf(out->name, sizeof out->name, "exchange");
        out->type = NEBULA_STATE_BYTES;
        out->total = out->count = (int64_t)n->rest.len;
        return NEBULA_OK;
    }
    const struct lib_tensor *t = n->of[f.unit];
    snprintf(out->name, sizeof out->name, "%s/%s", names[f.array], t->name);
    out->type = NEBULA_STATE_F32;
    out->total = t->size;
    out->offset = n->first[f.unit];
    out->count = (int64_t)agent_unit_size(&n->units[f.unit]);
    return NEBULA_OK;
}

int nebula_state_get(struct nebula *n, int32_t i, void *data) {
    struct found f;
    int s = known(n, "nebula_state_get", i, &f);
    if (s)
        return s;
    if (!data)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_state_get: data is NULL");
    if (f.rest && n->rest.len)
        memcpy(data, n->rest.p, n->rest.len);
    if (!f.rest)
        memcpy(data, memory_of(n, &f), agent_unit_size(&n->units[f.unit]) * sizeof(float));
    return NEBULA_OK;
}

int nebula_state_set(struct nebula *n, int32_t i, const void *data, int64_t count) {
    LIB_POINT;
    struct found f;
    int s = known(n, "nebula_state_set", i, &f);
    if (s)
        return s;
    if (n->begun)
        return lib_fail(NEBULA_ERR_STATE, "nebula_state_set: called after nebula_begin");
    if (!data || count < 0)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_state_set: data is NULL or count is negative");
    if (f.rest) {
        neb_buf_clear(&n->rest);
        neb_buf_add(&n->rest, data, (size_t)count);
        return lib_pass(neb_buf_check(&n->rest));
    }
    size_t size = agent_unit_size(&n->units[f.unit]);
    if (count != (int64_t)size)
        return lib_fail(NEBULA_ERR_INVALID, "nebula_state_set: part %d has %zu elements, not %lld",
                        i, size, (long long)count);
    memcpy(memory_of(n, &f), data, size * sizeof(float));
    return NEBULA_OK;
}
