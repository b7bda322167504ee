// SPDX-License-Identifier: Apache-2.0
// What the exchange knows of a trainer: its tensors as units, and a few calls. A trainer is the
// built-in one, an attached loop (agent/lib), or a student that takes part in rounds. All of them
// pass tests/conform/test_trainer.c.
//
//     trainer     units    read · write    counts    save · restore · skip · idle
//                   │          │             │              │
//     exchange    owners     θ_m of a       weights       a checkpoint,
//                            fragment       of rows       or a wait
//
// A tensor of shape (d0, d1, …) is seen as d0 rows of d1·d2·… columns; a scalar or a vector is one
// row. A unit is a range of its rows. The list of units depends on the names and shapes of the
// tensors alone, so every cluster has the same list, whatever mesh it has.
//
// With several ranks each rank has a trainer with the same units. No rank needs to hold a whole
// tensor: read collects the rows of a unit on the rank that owns the unit, write distributes them.
#ifndef AGENT_TRAINER_H
#define AGENT_TRAINER_H
#include "agent/proc/ipc.h"
#include "intra/ckpt/checkpoint.h"
#include "intra/ranks/comm.h"
#include "kernels/pool.h"

struct kern;

struct agent_unit {
    const char *tensor; // its name, borrowed
    int64_t row0;       // its first row; the units of a tensor follow each other, from row 0
    // Its first column. 0, unless the row is longer than a unit may be: then `rows` is 1, and the
    // unit has columns [col0, col0 + cols) of the row. The units of a row follow each other.
    int64_t col0;
    uint32_t rows, cols;
    // Units of one group share a fragment, and fragments take whole groups in ascending order. All
    // units of a tensor have the same group. From 0.
    int32_t group;
    // Indices of the two counters of its row 0; those of the next rows follow. A row counts the sum
    // of both. -1: no counter. Both -1: the unit has the weight of the update's tokens.
    int64_t counter[2];
    // (rows, cols) fp32 on the host, with one rank: the trainer has the unit there between a read
    // and the next step. NULL: the exchange names the memory in each read and write.
    float *data;
};

static inline size_t agent_unit_size(const struct agent_unit *u) {
    return (size_t)u->rows * (size_t)u->cols;
}
// True for the first unit of a tensor.
static inline bool agent_unit_first(const struct agent_unit *u) {
    return u->row0 == 0 && u->col0 == 0;
}
static inline bool agent_unit_counts_rows(const struct agent_unit *u) {
    return u->counter[0] >= 0 || u->counter[1] >= 0;
}

struct agent_move { // a unit and where the exchange has it
    int32_t unit;
    int rank;  // the owner; 0 with one rank
    float *at; // (rows, cols) on the owner (the unit's data, if not NULL); NULL elsewhere
};

struct agent_trainer;
// Every call may fail with NEB_ERR_NOMEM or NEB_ERR_IO; then the trainer's state is undefined, and
// the job continues from a checkpoint. No call keeps a pointer that it gets.
struct agent_trainer_ops {
    // Copies the present parameters of n units to their owners. Collective over the ranks: all of
    // them pass the same units and owners in the same order. An owner may leave a unit out of its
    // own list if it trains the unit in the memory of the exchange.
    enum neb_status (*read)(void *user, const struct agent_move *moves, int32_t n);
    // The inverse: every rank that holds a part of the units continues from the owners' values.
    // there: the values are already in the memory that the call `there` gave, and the moves name
    // none.
    enum neb_status (*write)(void *user, const struct agent_move *moves, int32_t n, bool there);
    // Optional: called before the exchange uses the number of all tokens. A trainer that learns the
    // tokens of its steps late adds them now (exchange_told_step). Rank 0 only.
    enum neb_status (*tokens)(void *user);
    // Tokens of the whole cluster since the job began: (n_counters). Rank 0 only.
    enum neb_status (*counts)(void *user, uint64_t *out);
    // The trainer's part of a checkpoint: parameters, counters, optimiser, data cursors. Rank 0
    // only. After restore the next step continues from it. NEB_ERR_NOT_FOUND: a section is missing.
    enum neb_status (*save)(void *user, struct intra_ckpt_writer *out);
    enum neb_status (*restore)(void *user, const struct intra_ckpt *c);
    // Moves data and schedules past n steps that are committed but not made by this process. Rank 0
    // only.
    enum neb_status (*skip)(void *user, int64_t n);
    // The calls below are optional.
    // Called when the last checkpoint is on disk.
    enum neb_status (*durable)(void *user);
    // Called before each wait (up to 200 ms) for the agent or for other clusters. Its failure ends
    // the wait with this status.
    enum neb_status (*idle)(void *user);
    // On rank 0 of several: makes the other ranks call agent_shards_follow with n.
    enum neb_status (*call)(void *user, int32_t n);
    // With a device: the device memory in which this rank trains all rows of the unit. NULL: there
    // is none.
    float *(*there)(void *user, int32_t unit);
    // Optional, all or none: for a trainer that can move units on its device without the host.
    // alone: the owner of the unit has all its elements in its device's memory; with write: and no
    // other rank has any. All ranks give the same answers. read and write then leave the unit out,
    // and the owner's fetch and store enqueue copies between the trainer's memory and (rows, cols)
    // on the device.
    bool (*alone)(void *user, int32_t unit, bool write);
    enum neb_status (*fetch)(void *user, int32_t unit, float *to);
    enum neb_status (*store)(void *user, int32_t unit, float *from);
    // Called before the exchange enqueues what uses the trainer's memory (begin), and after it.
    void (*joint)(void *user, bool begin);
};

// Moves this rank's own part of updates to and from the agent (agent/exchange/carrier.h), on ranks
// other than 0. A part is an update of the units that the rank owns.
struct agent_part_key {
    int32_t fragment;
    uint32_t round, again; // again: how often a newer update replaced the round's
};
struct agent_carrier_ops {
    // Hands the part of an update in flight to the agent. The bytes are copied.
    enum neb_status (*put)(void *carrier, const struct agent_part_key *k, const void *p,
                           size_t len);
    // Waits for the parts of the round's commit, one for each of its updates. They stay until done.
    // k->again is not used.
    enum neb_status (*take)(void *carrier, const struct agent_part_key *k,
                            struct agent_ipc_part parts[AGENT_IPC_PARTS_MAX], size_t *n);
    void (*done)(void *carrier, const struct agent_part_key *k);
    // The agent has another process, or another job's state, than before.
    enum neb_status (*renew)(void *carrier);
};

struct agent_trainer {
    const struct agent_trainer_ops *ops;
    void *user;
    const struct agent_unit *units; // (n_units) borrowed
    int32_t n_units;
    size_t n_counters;
    // How many elements of a unit a rank holds. A unit is owned by a rank that holds much of it.
    // All ranks give the same answers for all ranks. NULL: the owner of a unit may be any rank.
    uint64_t (*held)(void *user, int32_t unit, int rank);
    struct kern_pool *pool; // borrowed; for encode and merge
    struct kern *device;    // borrowed; NULL: it trains on processors
    // With a device: the exchange may use it on a thread of its own between the trainer's calls of
    // exchange_step, and this thread may not, but in calls of the exchange.
    bool deferred;
    struct intra_comm *world; // borrowed; NULL: one rank
    // NULL on all ranks: all parts of updates pass through rank 0. carrier: of this rank, borrowed.
    const struct agent_carrier_ops *carrier_ops;
    void *carrier;
    // The most elements of a rank's units that are encoded or merged at once, at least one unit.
    // 0: the exchange chooses. Rank 0's counts.
    uint64_t wave;
};

#endif
