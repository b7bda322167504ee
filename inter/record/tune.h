// SPDX-License-Identifier: Apache-2.0
// The controller: it chooses codec, overlap τ and interval H of each member from measurements.
// Pure, with a few numbers of state per member and fragment.
//
//     goodput, RTT, step time, bytes and error of the last update, rounds left
//         ─► codec, τ, H, reason
//
// An update costs no training time if it arrives within its overlap and if the link carries all P
// fragments of an interval:
//
//     T(codec) = 8·bytes(codec)/goodput + (1 + INTER_AGREE_TRIPS)·RTT     last chunk, agreement
//     fits:      T ≤ τ·step   and   P·8·bytes/goodput ≤ H·step     both at goodput/margin
//
// A round commits when every member's update has arrived. So τ must be long enough for the slowest
// member's update too, up to the allowed τ. A member's codec gets coarser only because of its own
// link.
//
// Choice. Among the allowed plans that fit, the controller takes the finest codec with the smallest
// τ that it needs at the job's own H. If none fits it tries coarser codecs, then a larger H if the
// user allows that. A dense codec is allowed while its error, predicted from the measured one,
// stays at or below error_max. A sparse codec is allowed if the job itself uses it, or if the
// remaining rounds send every element several times (rounds × density ≥ INTER_COVERAGE_MIN), so
// a short run does not change to one. If nothing fits, round trips may be the reason: a coarser
// codec that arrives hardly earlier is not used.
//
// Balance. A slow member makes fewer steps: as many as it can while the fastest member makes its H.
// It leaves out some of every 64 steps, evenly spread, together with their data. So all members
// keep the same steps, rounds, schedules and cursors. Its update counts by the tokens that it did
// see. A member that is less than an eighth slower leaves out no step. Every member makes at least
// an eighth of its steps.
//
// Hysteresis. A plan that no longer fits is replaced at once, by one that fits with a margin of
// 1.2. A costlier plan (finer codec, smaller τ, smaller H) must fit with a margin of 1.5, usually
// twice in a row. Updates that are too small to fill the path show only a lower bound of the
// goodput. Then a finer codec that fits at four times this goodput may be tried. After a failed
// trial the wait for the next one doubles.
//
// Feedback. An estimate can be wrong for long, so the updates themselves decide. The time from an
// update's manifest until all others have it shows the goodput that it had. The controller makes no
// costlier plan that would be late at this goodput. If two updates in a row are late, the next plan
// assumes only the goodput that they had. A single late update may be due to an outage.
//
// H is common to all members, because a member that sends earlier waits in every round for the
// others. A record holds the H that each member needs. Every member uses the longest one
// (inter_tune_planned), and its overlap may be as long as that allows. A member with no update in
// three records in a row is not waited for.
//
// The leader decides for every member when it proposes a record. The plan holds from round r + 2
// (struct inter_plan).
#ifndef INTER_TUNE_H
#define INTER_TUNE_H
#include "agent/base/clock.h"
#include "compress/codec.h"
#include "inter/record/types.h"

// Round trips from an update's arrival to its commit: manifest; proposal and vote; commit.
enum { INTER_AGREE_TRIPS = 3 };
// Least rounds × density for a sparse codec, unless the job itself uses it.
#define INTER_COVERAGE_MIN 3.75

enum inter_reason {
    INTER_REASON_JOB,      // the job's own values
    INTER_REASON_KEPT,     // the previous plan still fits
    INTER_REASON_LATE,     // updates would arrive after their merge step
    INTER_REASON_CAPACITY, // the link cannot carry all fragments of an interval
    INTER_REASON_ERROR,    // the codec loses too much
    INTER_REASON_ROOM,     // a finer codec or an earlier merge fits
    INTER_REASON_TRIAL,    // a finer codec is tried, because updates are too small to measure
    INTER_REASON_LIMIT,    // no allowed plan fits: the fastest of them
    INTER_REASON_SPEED,    // the member's speed relative to the fastest one has changed
    INTER_REASON_OTHERS,   // another member needs a longer interval
    INTER_REASONS
};
// Text for logs and metrics.
const char *inter_reason_text(enum inter_reason r);

struct inter_tune_config {
    bool on;                                // off: plans are the job's own values
    bool codec, overlap, interval;          // which of them may change
    bool balance;                           // slow members make fewer steps
    uint8_t finest, coarsest;               // codec levels (compress/codec.h)
    uint8_t first;                          // level of the job's codec
    uint32_t start_interval, start_overlap; // the job's own
    uint32_t interval_max, overlap_max;
    double fragments; // sent in an interval, on average: some groups are due only every few rounds
    uint64_t steps;   // of the job; 0: no end is known
    float error_max;
};

struct inter_tuner {             // of one member and fragment; all zero: nothing decided yet
    struct inter_plan plan;      // newest
    uint8_t wishes;              // decisions in a row in which a costlier plan would fit
    uint8_t trial;               // decisions since a trial began; 0: no trial
    uint8_t failures;            // failed trials in a row
    uint16_t wait;               // decisions until the next trial
    struct inter_plan fell_from; // plan before the link became slow; interval 0: none
    uint32_t fell_kbps;          // lowest goodput since then, of two updates in a row
    uint32_t last_kbps;          // goodput of the last update
    uint8_t left_out;            // for the next plan
    uint8_t uneven;              // decisions in a row that would change left_out
    uint8_t belated;             // late updates in a row
    // of the newest update of each codec level; 0: none yet
    uint32_t bytes[CMP_LEVELS_MAX + 1];
};

struct inter_tune_update {
    struct inter_measure measure;
    uint32_t bytes;      // encoded as measure.codec
    neb_ns took;         // from its manifest until all others have it; 0: not known
    neb_ns others;       // inter_tune_flight of the slowest other member; 0: not known
    neb_ns fastest;      // step time of the fastest member; 0: not known
    uint32_t interval;   // longest that any member's last plan needs; 0: not known
    uint64_t steps_done; // when it was sent
};
// Decides a member's next plan from its update. True: the plan has changed.
bool inter_tune(struct inter_tuner *t, const struct inter_tune_config *c,
                const struct inter_tune_update *u);
// One round of n members: fills in what each has to know of the others (others, fastest, interval),
// then calls inter_tune for each. bytes 0: the member sent no update.
void inter_tune_round(struct inter_tuner *t, const struct inter_tune_config *c,
                      struct inter_tune_update *u, uint8_t n);
// Time from the send of such an update, encoded by the current plan, to the commit; 0: not known.
neb_ns inter_tune_flight(const struct inter_tuner *t, const struct inter_tune_update *u);
// Adopts the plan of a committed record. Every member does so, because any of them may lead next.
void inter_tune_adopt(struct inter_tuner *t, const struct inter_plan *plan);
// The plan of a member in a record, with the H that all members share. member < n_plans.
struct inter_plan inter_tune_planned(const struct inter_record *r, uint8_t member);
// The job's own values: the plan until there is another.
struct inter_plan inter_tune_first(const struct inter_tune_config *c);

#endif
