// SPDX-License-Identifier: Apache-2.0
#include "agent/train/label_rate.h"
#include "compress/softlabel.h"

#include <stdio.h>

static const neb_ns waits = 300 * NEB_MS; // above what late acknowledgements explain
// Windows until a trial; the most; windows that a rise must hold to count as a success.
enum { TRIAL_WINDOWS = 4, TRIAL_WINDOWS_MAX = 64, TRIAL_HOLDS = 16 };

void agent_label_rate_init(struct agent_label_rate *r, int32_t k, int32_t k_min, int32_t k_max,
                           uint32_t window) {
    *r = (struct agent_label_rate){.k = k,
                                   .k_min = k_min,
                                   .k_max = k_max,
                                   .window = window,
                                   .trial_after = (uint64_t)window * TRIAL_WINDOWS};
}

void agent_label_rate_made(struct agent_label_rate *r, uint64_t rows, uint64_t bytes) {
    if (!rows)
        return;
    r->bytes_per_row = (double)bytes / (double)rows;
    r->rows_per_batch = (double)rows;
}

// Measures the student's pace over at least half a window or two seconds.
static void count(struct agent_label_rate *r, neb_ns now, uint64_t applied) {
    neb_ns since = now - r->counted_at;
    if (!r->counted_at || applied < r->counted) {
        r->counted = applied;
        r->counted_at = now;
    } else if (since > 0 && (applied >= r->counted + r->window / 2 + 1 || since > 2 * NEB_S)) {
        r->batches_per_s = (double)(applied - r->counted) / neb_seconds(since);
        r->counted = applied;
        r->counted_at = now;
    }
}

static void change(struct agent_label_rate *r, uint64_t next, int32_t k) {
    r->bytes_per_row *= r->k > 0 ? (double)k / r->k : 0; // an estimate until the next batch is made
    r->k = k;
    r->hold_until = r->clear_from = next + r->window;
}

static bool shrink(struct agent_label_rate *r, const struct agent_label_view *v, int32_t fits,
                   char *reason, size_t cap) {
    int32_t half = r->k / 2 > r->k_min ? r->k / 2 : r->k_min, was = r->k;
    uint64_t most = (uint64_t)r->window * TRIAL_WINDOWS_MAX;
    bool failed = r->trial_at && v->next < r->trial_at + (uint64_t)r->window * TRIAL_HOLDS;
    if (failed)
        r->trial_after = 2 * r->trial_after < most ? 2 * r->trial_after : most;
    else
        r->trial_after = (uint64_t)r->window * TRIAL_WINDOWS;
    change(r, v->next, fits < half ? fits : half);
    snprintf(
        reason, cap,
        "k %d to %d: batches wait %.1f s on a link of %.2f Mbit/s, and the student has %llu left",
        was, r->k, neb_seconds(v->path.waited), v->path.goodput_bps / 1e6,
        (unsigned long long)(v->have - v->applied));
    return true;
}

static bool grow(struct agent_label_rate *r, const struct agent_label_view *v, int32_t fits,
                 char *reason, size_t cap) {
    int32_t was = r->k, more = 2 * r->k < r->k_max ? 2 * r->k : r->k_max;
    bool known = fits > r->k;
    if (!known && v->next < r->clear_from + r->trial_after)
        return false;
    if (known)
        snprintf(reason, cap, "k %d to %d: the link carries %.2f Mbit/s, and %.2f are needed", was,
                 more, v->path.goodput_bps / 1e6,
                 8e-6 * r->bytes_per_row * r->rows_per_batch * r->batches_per_s);
    else
        snprintf(reason, cap,
                 "k %d to %d: a trial, because nothing waited on the link for %llu batches", was,
                 more, (unsigned long long)(v->next - r->clear_from));
    r->trial_at = v->next;
    change(r, v->next, more);
    return true;
}

bool agent_label_rate_next(struct agent_label_rate *r, neb_ns now, const struct agent_label_view *v,
                           char *reason, size_t cap) {
    count(r, now, v->applied);
    bool late = v->path.waited > waits, few = v->have - v->applied <= r->window / 4;
    if (late && v->next > r->clear_from)
        r->clear_from = v->next;
    if (r->k_min >= r->k_max || v->next < r->hold_until)
        return false;
    // The goodput bounds what the link carries only if more was asked of it.
    int32_t fits = v->path.full
                       ? cmp_soft_k(r->k, r->k_min, r->k_max, r->bytes_per_row,
                                    r->rows_per_batch * r->batches_per_s, v->path.goodput_bps / 8)
                       : r->k;
    if (late && few && r->k > r->k_min)
        return shrink(r, v, fits, reason, cap);
    return !late && r->k < r->k_max && v->next >= r->clear_from + r->window &&
           grow(r, v, fits, reason, cap);
}
