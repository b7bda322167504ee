// What the files of mode distill's worker share: distill_worker.c (its life, messages, checkpoints), distill_streams.c (what it
// opens), distill_teacher.c, distill_student.c. Nobody else includes this.
#ifndef AGENT_DISTILL_RUN_H
#define AGENT_DISTILL_RUN_H
#include "agent/distill.h"
#include "agent/label_rate.h"
#include "agent/worker.h"
#include "agent/worker_stream.h"

struct distill_run {
    struct agent_worker *w;
    struct agent_distill_side *side, *teacher; // teacher: where both are here
    int32_t n_streams;
    struct agent_stream *streams[AGENT_CLUSTERS_MAX]; // teacher: by student; student: the first
    int student_of[AGENT_CLUSTERS_MAX];               // teacher: cluster of each stream
    int64_t labelled[AGENT_CLUSTERS_MAX];             // teacher: next step of each student
    struct agent_label_rate rate[AGENT_CLUSTERS_MAX]; // teacher: labels a position for each student
    struct neb_buf batch;
    neb_ns waiting_since; // student; 0: it does not
    bool said_waiting;
    uint64_t alone; // steps that were made without labels that should have come
    int64_t saved_step;
    json_t *quality;
    double eval_loss;
    char cache[NEB_PATH_MAX]; // empty: none
};

bool distill_teaches(const struct distill_run *r);
// Messages of the agent that are here; NEB_ERR_INVALID: a stream cannot go on.
NEB_MUST_CHECK enum neb_status distill_drain(struct distill_run *r);
// Waits up to 200 ms for one; counts as stall.
NEB_MUST_CHECK enum neb_status distill_wait(struct distill_run *r);
void distill_say_step(struct distill_run *r);
NEB_MUST_CHECK enum neb_status distill_maybe_save(struct distill_run *r);

// distill_streams.c: puts: where each stream goes on.
NEB_MUST_CHECK enum neb_status distill_open_streams(struct distill_run *r,
                                                    const uint64_t puts[AGENT_CLUSTERS_MAX]);

// distill_teacher.c
NEB_MUST_CHECK enum neb_status distill_teach(struct distill_run *r);
NEB_MUST_CHECK enum neb_status distill_wait_taken(struct distill_run *r);
bool distill_all_labelled(const struct distill_run *r);

// distill_student.c
NEB_MUST_CHECK enum neb_status distill_learn(struct distill_run *r);

#endif
