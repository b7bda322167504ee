// SPDX-License-Identifier: Apache-2.0
// What a member sends how often, chosen from what was measured: a pure function with a memory of a few numbers.
//
//     (goodput, RTT, step time, bytes and error of the last update, rounds left) ─► codec, τ, H, and why
//
// An update costs no training time when it travels within its overlap, and the link carries all fragments of an interval:
//
//     T(codec) = 8·bytes(codec)/goodput + 4·RTT          manifest, state, last chunk, vote
//     fits:      T ≤ τ·step   and   P·8·bytes/goodput ≤ H·step     both at goodput/margin
//
// A round is committed when everybody's update is there: T is that of the slowest member, as far as a larger τ helps; what its own codec
// cannot change never makes a member's codec coarser.
//
// Among the allowed plans that fit, the finest codec with the smallest τ that it needs at the job's own H; then coarser codecs;
// then larger H, where the user allows that. A dense codec is allowed while its error, predicted from the measured one, stays below
// error_max; a sparse one only when the rounds that are left touch every element several times (rounds × density ≥ 4), so that a
// short run never goes sparse.
//
// A slow member makes fewer steps: as many as it can while the fastest one makes its H. It leaves out so many of every 64, evenly, their data
// too, so that steps, rounds, schedules and cursors are those of all; its update counts by the tokens that it did see. Not for a
// member that is less than an eighth slower, and nobody is left with fewer than an eighth.
//
// Hysteresis. A plan that does not fit any more is replaced at once, by one that fits with a margin of 1.2. A dearer plan (finer
// codec, smaller τ, smaller H) must fit with 1.5 twice in a row. Updates that are too small to fill the path leave the goodput a lower
// bound: then a finer codec may be tried on up to four times that; where the trial fails, the next one waits twice as long.
//
// An estimate can be wrong for long, so the updates themselves have the last word: what one took from its manifest until all others
// had it says which goodput it really met. No dearer plan is made that would be late at that; and a plan that two updates in a
// row found to be late is replaced as if the goodput were theirs. One alone may have met an outage.
//
// H is common: whoever sends earlier waits in every round for those who send later. A record holds what each member needs; each does with the
// longest H of them (inter_tune_planned), and its overlap may be as long as that allows. A member that two records or more have missed is
// not waited for.
//
// The leader decides for every member when it proposes a record; the plan holds from round r + 2 (struct inter_plan).
#ifndef INTER_TUNE_H
#define INTER_TUNE_H
#include "agent/base/clock.h"
#include "inter/record/types.h"

enum inter_codec_level { // codecs, finest first; in plans and manifests
    INTER_LEVEL_JOB,     // as the job says, whatever that is
    INTER_LEVEL_INT8,
    INTER_LEVEL_INT4,
    INTER_LEVEL_INT3,
    INTER_LEVEL_INT2,
    INTER_LEVEL_TOPK512,
    INTER_LEVEL_TOPK256,
    INTER_LEVEL_TOPK64,
    INTER_LEVELS
};
// text for cmp_codec_parse; NULL for INTER_LEVEL_JOB
const char *inter_codec_level_codec(enum inter_codec_level r);
enum inter_codec_level inter_codec_level_of(const char *codec); // INTER_LEVEL_JOB: none of them

enum inter_reason {
    INTER_REASON_JOB,      // nothing but the job's own values
    INTER_REASON_KEPT,     // what was planned before still fits
    INTER_REASON_LATE,     // updates would arrive after their merge step
    INTER_REASON_CAPACITY, // the link cannot carry all fragments of an interval
    INTER_REASON_ERROR,    // the codec loses too much
    INTER_REASON_ROOM,     // a finer codec or an earlier merge fits
    INTER_REASON_TRIAL,    // updates too small to measure by: a finer one is tried
    INTER_REASON_LIMIT,    // not even the coarsest plan within the bounds fits
    INTER_REASON_SPEED,    // how much slower it is than the fastest member has changed
    INTER_REASON_OTHERS,   // another member needs a longer interval
    INTER_REASONS
};
// A few words for logs and metrics.
const char *inter_reason_text(enum inter_reason r);

struct inter_tune_config {
    bool on;                                // off: plans are the job's own values
    bool codec, overlap, interval;          // which of them may change
    bool balance;                           // slow members make fewer steps
    uint8_t finest, coarsest;               // levels
    uint8_t first;                          // level of the job's codec
    uint32_t start_interval, start_overlap; // the job's
    uint32_t interval_max, overlap_max;
    uint32_t fragments;
    uint64_t steps; // of the job; 0: no end is known
    float error_max;
};

struct inter_tuner {              // of one member and fragment; all zero: nothing was decided yet
    struct inter_plan plan;       // newest
    uint8_t wishes;               // how often in a row a dearer plan would have done
    uint8_t trial;                // decisions since a trial began, 0: none is on
    uint8_t failures;             // trials in a row that did not hold
    uint16_t wait;                // decisions until the next trial
    struct inter_plan fell_from;  // what the link carried before it got slow; interval 0: nothing
    uint32_t fell_kbps;           // least that it has carried since, in two updates in a row
    uint32_t last_kbps;           // goodput that the last update had
    uint8_t left_out;             // of the plan
    uint8_t uneven;               // decisions in a row that would have changed it
    uint8_t belated;              // updates in a row that took longer than their plan allows
    uint32_t bytes[INTER_LEVELS]; // of the newest update of each codec; 0: none yet
};

struct inter_tune_update {
    struct inter_measure measure;
    uint32_t bytes;      // encoded as measure.codec
    neb_ns took;         // from its manifest until all others had it; 0: not known
    neb_ns others;       // inter_tune_flight of the slowest other member; 0: not known
    neb_ns fastest;      // step of the fastest member; 0: not known
    uint32_t interval;   // longest that any member's last plan needs; 0: not known
    uint64_t steps_done; // when it was sent
};
// What follows from a member's update about its plan. True: the plan has changed.
bool inter_tune(struct inter_tuner *t, const struct inter_tune_config *c,
                const struct inter_tune_update *u);
// A round: what each member has to know of the others (others, fastest, interval) is filled in, then inter_tune of each. An update of no bytes
// is not there.
void inter_tune_round(struct inter_tuner *t, const struct inter_tune_config *c,
                      struct inter_tune_update *u, uint8_t n);
// From the send of such an update, encoded as planned now, until the commit; 0: not known.
neb_ns inter_tune_flight(const struct inter_tuner *t, const struct inter_tune_update *u);
// The plan that a committed record says, adopted by every member, whoever leads next.
void inter_tune_adopt(struct inter_tuner *t, const struct inter_plan *plan);
// What a record says that a member does, H in common with all others. member < n_plans.
struct inter_plan inter_tune_planned(const struct inter_record *r, uint8_t member);
// The job's own values: what holds before anything was planned.
struct inter_plan inter_tune_first(const struct inter_tune_config *c);

#endif
