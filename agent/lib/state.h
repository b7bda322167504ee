// SPDX-License-Identifier: Apache-2.0
// What libnebula.c (the calls), attach.c, exchange.c and trainer.c of this room share. No other
// file of the product includes this.
#ifndef AGENT_LIB_STATE_H
#define AGENT_LIB_STATE_H
#include "agent/exchange/exchange.h"
#include "agent/lib/copy.h"
#include "agent/lib/libnebula.h"
#include "intra/train/trainer.h"

#include <locale.h>

struct shard { // a registered range of rows
    int32_t tensor, row0, rows;
    int dtype, place;
    void *data; // (rows, columns of the tensor), the trainer's
};

struct nebula {
    struct agent_exchange x;
    struct kern_pool *pool;
    struct nebula_hooks hooks;
    struct intra_model *model; // the tensors between the trainer's memory and the exchange
    uint64_t *counters;        // (2, V) inputs and targets that nebula_count has seen
    struct intra_unit *rows;   // (x.trainer.n_units)
    struct agent_unit *units;  // the same, for the exchange
    bool *wanted;              // (tensors of the model) scratch
    struct lib_copy *copy;
    struct shard *shards; // (n_shards)
    size_t n_shards;
    const struct intra_tensor **tensors; // (n_tensors) exchanged tensors in canonical order
    int32_t n_tensors;
    char socket[NEB_PATH_MAX], job[NEB_PATH_MAX];
    pid_t owner; // the process that attached
    bool begun, failed, told_bf16;
    int state;      // enum nebula_state
    uint64_t reads; // how often parameters were read into the model
    struct {        // cache of nebula_info's digests, each with the state for which it was computed
        struct kern_digest d;
        bool known, finished;
        uint32_t version, round;
        uint64_t reads; // for a job without exchange
    } digests[INTER_FRAGMENTS_MAX];
    // How often to query the agent; how long after an unanswered query no commit is expected any
    // more.
    neb_ns ask_after, silent_after;
    neb_ns step_end; // end of the last call: the time since then is the trainer's
};

// libnebula.c: both return a status for the caller and set the text of nebula_last_error.
int lib_fail(enum nebula_status s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int lib_pass(enum neb_status st); // takes the text from the newest log line

// During a call, numbers in text have a decimal point, as jobs and settings write them, whatever
// locale the program has set. Affects this thread only. GNU C (cleanup), because calls return in
// many places.
#define LIB_POINT                                                                                  \
    __attribute__((cleanup(lib_locale_back), unused)) locale_t lib_locale_was = lib_locale_c()
locale_t lib_locale_c(void);
void lib_locale_back(const locale_t *was);

// attach.c
void lib_destroy(struct nebula *n);

// trainer.c
// Creates what n->x.trainer needs, over n->model and n->pool.
NEB_MUST_CHECK enum neb_status lib_trainer_create(struct nebula *n);
void lib_trainer_destroy(struct nebula *n);
// Writes all tensors to the trainer; writes the final model.
NEB_MUST_CHECK enum neb_status lib_trainer_write_all(struct nebula *n);
NEB_MUST_CHECK enum neb_status lib_trainer_write_model(struct nebula *n);
// Calls the trainer's wait hook.
NEB_MUST_CHECK enum neb_status lib_idle(const struct nebula *n);

// exchange.c
// Restores, writes the parameters to the trainer, settles.
NEB_MUST_CHECK enum neb_status lib_begin(struct nebula *n);
// Does all that is due before the next step; sets n->state.
NEB_MUST_CHECK enum neb_status lib_settle(struct nebula *n);
// Writes a checkpoint and calls the trainer's checkpoint hook.
NEB_MUST_CHECK enum neb_status lib_save_now(struct nebula *n);

#endif
