// SPDX-License-Identifier: Apache-2.0
// The micro-batches of one step, as rank 0 of a group hands them to all ranks, and the pieces that
// replicas take.
//
//     rank 0      add, add, … ── bytes ──►  every rank     cut: the same pieces everywhere
//                                             piece          this replica's, one after the other
//     rank 0      take ◄─ results of picks ─  pack           the first rank of each last stage
//
// A piece is a whole micro-batch if the replicas divide their number, otherwise some of its
// sequences. Micro-batches of one shape may also be cut into equal pieces, which then span them.
#ifndef INTRA_STEP_H
#define INTRA_STEP_H
#include "agent/base/bytes.h"
#include "intra/model/batch.h"

struct intra_step_micro {     // a micro-batch; pointers go into the bytes of the step
    struct intra_batch b;     // without the teacher
    struct kern_soft soft;    // k 0: no teacher. Its rows are the targets, in order
    struct intra_picks picks; // n 0: none
    int64_t first;            // its first sequence among those of the step
};

struct intra_step_cut { // sequences [from, to) of the step
    int64_t from, to;
    int32_t replica;
};

struct intra_step_piece {
    struct intra_batch b;
    struct kern_soft soft;
    struct intra_picks picks; // n 0: none
    void *room;               // owned: the arrays of all three
    size_t room_bytes;
};

// One rank's copy of a step. Zeroed at first; its memory stays from step to step.
struct intra_step {
    struct neb_buf bytes;
    int32_t n, n_cuts, n_pieces;
    struct intra_step_micro *all;    // (n)
    struct intra_step_cut *cuts;     // (n_cuts)
    struct intra_step_piece *pieces; // (n_pieces) of this replica
    struct neb_buf results;
    struct intra_picks *wanted; // (n) rank 0: what the caller of add wants
    int32_t all_room, cuts_room, pieces_room, wanted_room;
};
void intra_step_free(struct intra_step *s);

// Rank 0: begins a step. add: the content of b and of the picks (NULL: none) is copied; the arrays
// for the results of picks are borrowed until take. NEB_ERR_NOMEM.
void intra_step_begin(struct intra_step *s);
NEB_MUST_CHECK enum neb_status intra_step_add(struct intra_step *s, const struct intra_batch *b,
                                              const struct intra_picks *picks);
// Cuts the bytes for `ways` replicas, and makes the pieces of `replica`. how: whole micro-batches,
// if the replicas divide their number; a part of each micro-batch for each replica; or, above 0, so
// many sequences for each piece, if all micro-batches have one shape. learns: all replicas get the
// same number of pieces; a piece without sequences has one without targets. NEB_ERR_NOMEM.
enum { INTRA_STEP_WHOLE = 0, INTRA_STEP_PARTS = -1 };
NEB_MUST_CHECK enum neb_status intra_step_cut(struct intra_step *s, int32_t ways, int32_t replica,
                                              int32_t how, bool learns);
// Bytes of the results of a replica: the same on all ranks. pack: fills s->results from this
// rank's pieces. take: rank 0 gives such bytes to the arrays of the caller of add.
size_t intra_step_result_bytes(const struct intra_step *s, int32_t replica);
NEB_MUST_CHECK enum neb_status intra_step_pack(struct intra_step *s);
void intra_step_take(struct intra_step *s, int32_t replica, const uint8_t *p);

#endif
