// SPDX-License-Identifier: Apache-2.0
// What libnebula.c (the calls), lib_attach.c and lib_exchange.c share. Nobody else includes this.
#ifndef AGENT_LIB_STATE_H
#define AGENT_LIB_STATE_H
#include "agent/exchange/worker.h"
#include "agent/lib/copy.h"
#include "agent/lib/libnebula.h"

#include <locale.h>

struct shard { // a registered range of rows
    int32_t tensor, row0, rows;
    int dtype, place;
    void *data; // (rows, columns of the tensor), the trainer's
};

struct nebula {
    struct agent_worker w;
    // only what worker_sync.c reads of a trainer: vocabulary and token counts
    struct intra_trainer counts;
    struct kern kern; // only its pool
    struct nebula_hooks hooks;
    struct lib_copy *copy;
    struct shard *shards; // (n_shards)
    size_t n_shards;
    const struct intra_tensor **tensors; // (n_tensors) that are exchanged, canonical order
    int32_t n_tensors;
    char socket[NEB_PATH_MAX], job[NEB_PATH_MAX];
    pid_t owner; // that attached
    bool begun, failed, told_bf16;
    int state;      // enum nebula_state
    uint64_t reads; // how often parameters came into the model
    struct {        // of what all share: what nebula_info says, and of what it was computed
        struct kern_digest d;
        bool known, finished;
        uint32_t version, round;
        uint64_t reads; // of a job without exchange
    } digests[INTER_FRAGMENTS_MAX];
    // a word of the agent is asked for so often, and so long after a question without an answer nothing is expected of it
    neb_ns ask_after, silent_after;
    neb_ns step_end; // when the last call returned: what follows is the trainer's time
};

// libnebula.c: codes for the caller; the text is what nebula_last_error returns.
int lib_fail(enum nebula_status s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int lib_pass(enum neb_status st); // of a failure beneath; its text is the log's newest line

// For the length of a call numbers in text have a point, as jobs and settings write them, whatever locale the trainer's program has
// chosen; of this thread alone. GNU C (cleanup): calls return in many places.
#define LIB_POINT                                                                                  \
    __attribute__((cleanup(lib_locale_back), unused)) locale_t lib_locale_was = lib_locale_c()
locale_t lib_locale_c(void);
void lib_locale_back(const locale_t *was);

// lib_attach.c
void lib_destroy(struct nebula *n);

// lib_exchange.c
extern const struct worker_ops lib_worker_ops;
// restores, writes the parameters out, settles
NEB_MUST_CHECK enum neb_status lib_begin(struct nebula *n);
// all that is due before the next step; sets n->state
NEB_MUST_CHECK enum neb_status lib_settle(struct nebula *n);
// the trainer's wait hook
NEB_MUST_CHECK enum neb_status lib_idle(struct agent_worker *w);
// a checkpoint, the trainer's with it
NEB_MUST_CHECK enum neb_status lib_save_now(struct nebula *n);

#endif
