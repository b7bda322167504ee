// SPDX-License-Identifier: Apache-2.0
// What the files of attached sides share: side.c (open, wait, report), side_teacher.c,
// side_student.c.
#ifndef AGENT_LIB_SIDE_H
#define AGENT_LIB_SIDE_H
#include "agent/exchange/stream.h"
#include "agent/job/label_request.h"
#include "agent/job/sides.h"
#include "agent/lib/state.h"
#include "compress/softlabel.h"

struct lib_side_text { // of one step, as the caller sees it
    int32_t sequences, rows;
    int32_t *lengths, *prefixes, *ids; // room for the text of a step
    int32_t *micro_rows, *micro_ends;  // (accumulate) rows; one past the last sequence
    uint64_t id;                       // of the request (agent_distill_text_id)
};

struct lib_side_peer { // the other end: a student of the teacher, or the teacher
    int cluster;
    struct agent_stream *labels, *requests;
};

struct nebula_side {
    struct nebula *n; // owned: the connection to the agent
    bool teaches, failed;
    bool differs; // a term differs from the other side's
    int32_t n_peers;
    struct lib_side_peer peers[AGENT_CLUSTERS_MAX];
    struct agent_request_limits limits;
    struct intra_pair_batch batch; // scratch: a micro-batch
    struct cmp_tokens *tokens;
    struct cmp_soft *soft;
    struct neb_buf bytes; // scratch: what is put
    int32_t *scratch;     // (agent_request_ids)
    // Teacher: all[0], the text that is being labelled. Student: those that were asked for, step s
    // in all[s % n_all].
    struct lib_side_text *all;
    int32_t n_all;
    int serves;    // teacher: whose text it has; -1: nobody's
    bool answered; // teacher: it has written the targets of that text
    // Student, from each teacher; with several teachers the mixture is the last. Teacher: one.
    int32_t *label_ids;
    float *label_logp, *label_tail; // (teachers, rows, CMP_SOFT_K_MAX), (teachers, rows)
    struct cmp_soft_rows labels;    // student: those of the step, k 0: they belong to another text
    int64_t step;                   // student: the next step to learn
    bool learning;                  // student: its labels were given
    uint64_t rows, put_bytes;       // labels that passed, for the report
    uint64_t mapped;                // teacher: rows with labels of another vocabulary
};

static inline const struct agent_job *lib_side_job(const struct nebula_side *s) {
    return &s->n->x.job;
}

// ---- side.c
// Handles messages that have come, and waits a little for more. NEB_ERR_STATE: the agent is another
// process now.
NEB_MUST_CHECK enum neb_status lib_side_wait(struct nebula_side *s);
// Puts s->bytes as the next batch, and waits until it is on the agent's disk. *stored false: the
// job was stopped before.
NEB_MUST_CHECK enum neb_status lib_side_put(struct nebula_side *s, struct agent_stream *t,
                                            bool *stored);
// The check at the start of a call: of a teacher or a student, or any side. The status at its end:
// after a failure that is none of the caller's values the side can only be closed.
int lib_side_usable(const struct nebula_side *s, const char *call, bool teacher, bool any);
int lib_side_end_call(struct nebula_side *s, enum neb_status st);
int lib_side_state(const struct nebula_side *s); // enum nebula_state
// Appends the sequences of s->batch to t, as its micro-batch `micro`. _lay_out: the reverse.
void lib_side_take_micro(const struct nebula_side *s, struct lib_side_text *t, int32_t micro);
void lib_side_lay_out(struct nebula_side *s, const struct lib_side_text *t, int32_t micro);
// Tells the caller the text that is served (teacher) or learned (student).
void lib_side_give_text(const struct nebula_side *s, const struct lib_side_text *t,
                        struct nebula_text *out);
// True if this side writes the text of a step itself (distill.source).
bool lib_side_writes(const struct nebula_side *s, int64_t step);
// Reports an error as the outcome of the job at all clusters. The side can then only be closed.
NEB_MUST_CHECK enum neb_status lib_side_end_job(struct nebula_side *s, const char *why);

// ---- side_teacher.c
// Sets s->serves if there is text to label.
NEB_MUST_CHECK enum neb_status lib_side_look_for_text(struct nebula_side *s);
// True if no student needs more labels: those that ended without their last labels say so.
bool lib_side_all_labelled(const struct nebula_side *s);

// ---- side_student.c
// Looks for the labels of the step that is due, of all teachers, and reads them into s->labels.
// *here false: some have not come.
NEB_MUST_CHECK enum neb_status lib_side_look_for_labels(struct nebula_side *s, bool *here);

#endif
