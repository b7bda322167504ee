// SPDX-License-Identifier: Apache-2.0
// Rank 0 talks to the agent and decides. The other ranks do what rank 0 asks of them.
//
//     every rank        nebula_step …: all-reduce: do all ranks make this call?
//     rank 0            runs the call; tells the others each thing that it needs of them
//     another rank      waits for rank 0: a call of the exchange, a read, a save, a hook …
//     every rank        LIB_END: status, text, state and step of rank 0
#include "agent/base/log.h"
#include "agent/base/sha256.h"
#include "agent/lib/state.h"

#include <inttypes.h>
#include <string.h>

enum neb_status lib_call(struct nebula *n, enum lib_call call) {
    int32_t c = (int32_t)call;
    return n->ranks > 1 ? n->world->ops->broadcast(n->world, &c, sizeof c, 0) : NEB_OK;
}

// ---- waits and hooks ----------------------------------------------------------------------------

static enum neb_status own_wait(const struct nebula *n) {
    return n->hooks.wait && n->hooks.wait(n->hooks.user) != 0
               ? neb_fail(NEB_ERR_INTERRUPTED, "the trainer's wait hook ended the wait")
               : NEB_OK;
}

enum neb_status lib_idle(struct nebula *n) {
    neb_ns now = neb_now();
    enum neb_status st = own_wait(n);
    if (n->ranks == 1 || (st == NEB_OK && now - n->pinged < NEB_S))
        return st;
    n->pinged = now;
    NEB_TRY(lib_call(n, LIB_IDLE));
    return intra_comm_agree(n->world, st);
}

static enum neb_status own_hook(const struct nebula *n, int64_t step) {
    return n->hooks.checkpoint && n->hooks.checkpoint(n->hooks.user, n->x.dir, step) != 0
               ? neb_fail(NEB_ERR_IO, "the trainer's checkpoint hook failed at step %lld",
                          (long long)step)
               : NEB_OK;
}

static enum neb_status all_hooks(struct nebula *n) {
    int64_t step = n->x.step;
    if (n->ranks > 1)
        NEB_TRY(n->world->ops->broadcast(n->world, &step, sizeof step, 0));
    return intra_comm_agree(n->world, own_hook(n, step));
}

enum neb_status lib_hook(struct nebula *n) {
    if (!n->hooks.checkpoint) // all ranks have it or none
        return NEB_OK;
    NEB_TRY(lib_call(n, LIB_HOOK));
    return all_hooks(n);
}

// ---- the other ranks ----------------------------------------------------------------------------

struct end {
    int32_t result, state; // enum nebula_status, enum nebula_state
    int64_t step;
    char text[1000];
};

static enum neb_status serve_one(struct nebula *n, int32_t call) {
    switch (call) {
    case LIB_IDLE: return intra_comm_agree(n->world, own_wait(n));
    case LIB_COUNTS: return lib_sum_counts(n, NULL);
    case LIB_SAVE: return lib_save_all(n, NULL);
    case LIB_RESTORE: return lib_restore_all(n, NULL);
    case LIB_HOOK: return all_hooks(n);
    case LIB_DIGEST: return lib_own_digest(n, &(struct kern_digest){0, 0});
    case LIB_GATHER: return lib_gather(n, NULL, NULL);
    case LIB_BRING: return lib_bring_here(n);
    case LIB_KEYS: return lib_hand_keys(n);
    default: break;
    }
    enum neb_status st = agent_shards_follow(&n->x.trainer, call, &n->shards);
    n->initial = n->initial && !n->shards;
    return st;
}

// All ranks know when work for rank 0 has failed. LIB_END brings the failure back.
static int serve(struct nebula *n) {
    for (;;) {
        int32_t call = 0;
        struct end e;
        enum neb_status st = n->world->ops->broadcast(n->world, &call, sizeof call, 0);
        if (st == NEB_OK && call != LIB_END)
            st = serve_one(n, call);
        if (n->world->ops->lost(n->world))
            return lib_pass(st == NEB_OK ? NEB_ERR_IO : st);
        if (call != LIB_END)
            continue;
        LIB_TRY(n->world->ops->broadcast(n->world, &e, sizeof e, 0));
        n->state = e.state;
        n->x.step = e.step;
        return e.result ? lib_fail((enum nebula_status)e.result, "%s", e.text) : (int)NEBULA_OK;
    }
}

// ---- a call of libnebula.h ----------------------------------------------------------------------

static uint64_t code_of(const char *call) {
    uint8_t sha[NEB_SHA256_BYTES];
    uint64_t code;
    neb_sha256(call, strlen(call), sha);
    memcpy(&code, sha, sizeof code);
    return code;
}

int lib_enter(struct nebula *n, const char *call) {
    struct intra_comm *w = n->world;
    uint64_t both[2];
    char others[64] = "";
    lib_device_enter(n);
    if (n->ranks == 1)
        return NEBULA_OK;
    both[0] = code_of(call);
    both[1] = ~both[0];
    LIB_TRY(w->ops->all_reduce(w, both, 2, INTRA_COMM_U64, INTRA_COMM_MAX));
    if (both[0] == ~both[1])
        return NEBULA_OK;
    snprintf(others, sizeof others, "%s", call);
    LIB_TRY(w->ops->broadcast(w, others, sizeof others, 0));
    // the lowest rank that makes another call than rank 0 names its call
    enum neb_status st = strcmp(others, call)
                             ? neb_fail(NEB_ERR_STATE,
                                        "the ranks make different calls: %s on rank %d, %s on "
                                        "rank 0",
                                        call, n->rank, others)
                             : NEB_OK;
    n->failed = true;
    return lib_pass(intra_comm_agree(n->world, st));
}

static int leave(struct nebula *n, int s) {
    struct end e = {s, n->state, n->x.step, ""};
    if (n->ranks == 1)
        return s;
    if (n->rank)
        return serve(n);
    if (s)
        snprintf(e.text, sizeof e.text, "%s", nebula_last_error());
    if (lib_call(n, LIB_END) == NEB_OK)
        LIB_TRY(n->world->ops->broadcast(n->world, &e, sizeof e, 0));
    else if (!s)
        return lib_pass(NEB_ERR_IO);
    return s;
}

int lib_leave(struct nebula *n, int s) {
    s = leave(n, s);
    lib_device_leave(n);
    return s;
}
