// SPDX-License-Identifier: Apache-2.0
// Applies a commit, wave by wave. The first pass opens and checks all updates; it may fail and
// changes nothing. The second pass settles, steps and digests.
//
// On the host the second pass also sums, strip by strip, while a strip is in the cache. On an
// accelerator the first pass brings the frames there, unpacked, and checks them; the second one
// decodes them again, unit by unit, and needs the host for nothing.
#include "inter/outer/state.h"
#include "inter/record/robust.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Weight of each row of part p: (n_p + κ·share_p) / Σ_q (n_q + κ·share_q), members in order.
static void row_weights(const struct outer_apply *j, struct outer_slot *s, size_t p) {
    float kappa = j->o->c.kappa, *weights = s->weights + p * s->u.rows;
    for (uint32_t row = 0; row < s->u.rows; row++) {
        float sum = 0, own = 0;
        for (size_t q = 0; q < j->r->n; q++) {
            float prior = kappa * j->share[q];
            float n = (float)s->row_counts[q * s->u.rows + row] * j->scale[q] + prior;
            sum = sum + n;
            if (q == p)
                own = n;
        }
        weights[row] = sum > 0 ? own / sum : j->share[p];
    }
}

// Profile `robust`: decodes all parts side by side, then takes the trimmed mean.
static enum neb_status sum_robust(const struct outer_apply *j, struct outer_slot *s) {
    size_t n = j->r->n, rows = s->u.rows;
    float clip[INTER_PARTS_MAX], *all = malloc(n * (s->n + rows) * sizeof *all),
                                 *w = all + n * s->n;
    enum neb_status st =
        all ? NEB_OK
            : neb_fail(NEB_ERR_NOMEM, "out of memory for the robust mean of %zu updates", n);
    for (size_t p = 0; p < n && st == NEB_OK; p++) {
        clip[p] = j->r->parts[p].clip;
        st = cmp_decode(s->b->work, s->views[p].frame, s->views[p].frame_len, all + p * s->n, s->n);
        for (size_t row = 0; row < rows; row++)
            w[p * rows + row] = s->u.row_weights ? s->weights[p * rows + row] : j->share[p];
    }
    if (st == NEB_OK) {
        memset(s->mean, 0, s->n * sizeof(float));
        inter_robust_mean(s->mean, all, w, clip, n, rows, s->u.cols);
    }
    free(all);
    return st;
}

static enum neb_status read_counts(const struct outer_apply *j, struct outer_slot *s) {
    size_t rows = s->u.rows;
    for (size_t p = 0; s->u.row_weights && p < j->r->n; p++)
        NEB_TRY(cmp_update_counts(s->b->work, &s->views[p], s->u.rows, s->row_counts + p * rows));
    for (size_t p = 0; s->u.row_weights && p < j->r->n; p++)
        row_weights(j, s, p);
    return NEB_OK;
}

static struct outer_kept *kept_of(const struct inter_outer *o, const struct outer_slot *s,
                                  size_t p) {
    return &o->device->kept[(size_t)(s - o->slots) * INTER_PARTS_MAX + p];
}

// Decodes elements [at, at + n) of part p.
static const float *read_part(const struct outer_apply *j, struct outer_slot *s, size_t p,
                              size_t at, size_t n) {
    const struct outer_device *d = j->o->device;
    if (d)
        cmp_device_read(d->codec, &kept_of(j->o, s, p)->frame, d->part);
    else if (j->o->c.sum)
        outer_masked_own(j, s, p);
    else
        cmp_reader_read(s->b->readers[p], at, s->part, n);
    return d ? d->part : s->part;
}

static void add_part(const struct outer_apply *j, const struct outer_slot *s, size_t p, size_t at,
                     size_t n, float *acc, const float *part) {
    const struct inter_outer_part *update = &j->r->parts[p];
    const struct outer_device *d = j->o->device;
    struct kern *K = j->o->now.K;
    if (!s->u.row_weights) {
        float w = update->clip == 1 ? j->share[p] : j->share[p] * update->clip;
        K->ops->exact_add_scaled(K, acc, part, w, n);
        return;
    }
    const float *weights =
        d ? kept_of(j->o, s, p)->weights : s->weights + p * s->u.rows + at / s->u.cols;
    K->ops->exact_add_rows(K, acc, part, weights, n / s->u.cols, s->u.cols);
}

// Elements [at, at + n) of the parts. acc: receives their sum by their weights; NULL: it is known.
// Subtracts this member's part from the residual u.
static void take_parts(const struct outer_apply *j, struct outer_slot *s, size_t at, size_t n,
                       float *acc, float *u) {
    struct kern *K = j->o->now.K;
    if (acc)
        K->ops->zero(K, acc, n * sizeof(float));
    for (size_t p = 0; p < j->r->n; p++) {
        bool mine = j->r->parts[p].mine;
        if (!acc && !mine)
            continue;
        const float *part = read_part(j, s, p, at, n);
        if (mine)
            K->ops->exact_residual(K, u + at, part, n);
        if (acc)
            add_part(j, s, p, at, n, acc, part);
    }
}

static enum neb_status open_robust(const struct outer_apply *j, struct outer_slot *s) {
    struct kern *K = j->o->now.K;
    NEB_TRY(sum_robust(j, s));
    if (j->o->device) // a trimmed mean sorts, so it runs on the host
        kern_stage_upload(K, j->o->device->means + s->from, s->mean, s->n * sizeof(float));
    for (size_t p = 0; !j->o->device && p < j->r->n; p++)
        if (j->r->parts[p].mine)
            NEB_TRY(outer_open_part(s, p));
    return NEB_OK;
}

// Brings the unit's frames to the accelerator, where room_for has made room, and checks them.
static enum neb_status keep_parts(const struct outer_apply *j, struct outer_slot *s) {
    const struct outer_device *d = j->o->device;
    size_t bytes = s->u.rows * sizeof(float);
    for (size_t p = 0; p < j->r->n; p++) {
        struct outer_kept *k = kept_of(j->o, s, p);
        if (j->o->c.robust && !j->r->parts[p].mine)
            continue;
        NEB_TRY(cmp_device_keep(d->codec, s->b->work, s->views[p].frame, s->views[p].frame_len,
                                d->part, s->n, k->frame.streams, &k->frame));
        if (k->weights)
            kern_stage_upload(j->o->now.K, k->weights, s->weights + p * s->u.rows, bytes);
    }
    return NEB_OK;
}

static size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Lays out the frames of a wave's units, and makes room for them.
static enum neb_status room_for(const struct outer_apply *j) {
    struct inter_outer *o = j->o;
    size_t all = 0;
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0, bytes = 0;
        if (pass)
            NEB_TRY(outer_device_room(o, all));
        for (int32_t i = 0; i < j->g->count; i++) {
            const struct outer_slot *s = &o->slots[j->g->units[j->g->first + i]];
            for (size_t p = 0; p < j->r->n; p++) {
                struct outer_kept *k = kept_of(o, s, p);
                NEB_TRY(
                    cmp_device_frame_bytes(s->views[p].frame, s->views[p].frame_len, s->n, &bytes));
                k->frame.streams = pass ? o->device->frames + at : NULL;
                at += aligned(bytes);
                k->weights =
                    pass && s->u.row_weights ? (float *)(void *)(o->device->frames + at) : NULL;
                at += s->u.row_weights ? aligned(s->u.rows * sizeof(float)) : 0;
            }
        }
        all = at;
    }
    return NEB_OK;
}

// First pass.
static enum neb_status open_unit(void *arg, struct outer_slot *s) {
    struct outer_apply *j = arg;
    size_t rows = s->u.rows;
    if (j->o->c.sum)
        return outer_masked_sum(j, s);
    NEB_TRY(read_counts(j, s));
    if (j->o->c.robust) {
        NEB_TRY(open_robust(j, s));
        return j->o->device ? keep_parts(j, s) : NEB_OK;
    }
    for (size_t p = 0; s->u.row_weights && p < j->r->n; p++)
        for (size_t row = 0; j->r->parts[p].clip != 1 && row < rows; row++)
            s->weights[p * rows + row] = s->weights[p * rows + row] * j->r->parts[p].clip;
    if (j->o->device)
        return keep_parts(j, s);
    for (size_t p = 0; p < j->r->n; p++)
        NEB_TRY(outer_open_part(s, p));
    return NEB_OK;
}

// θ_m takes its share of the residual only if an update was in flight. Otherwise θ_m has held that
// share since an earlier merge.
void outer_merge(const struct inter_outer *o, const struct outer_fragment *g,
                 const struct outer_slot *s, const struct outer_arrays *m, size_t at, size_t n) {
    struct kern *K = o->now.K;
    const struct kern_ops *ops = K->ops;
    size_t bytes = n * sizeof(float);
    float *mine = s->theta_m + at, *theta = m->theta + at, *sent = m->sent + at, *u = m->u + at;
    if (g->in_flight && o->c.blend > 0) {
        // The progress since the send still has to be sent.
        ops->exact_pseudo_gradient(K, u, sent, mine, 1, n);
        ops->copy(K, sent, mine, bytes);
        ops->exact_add_scaled(K, sent, theta, -1, n);
        ops->copy(K, mine, theta, bytes);
        ops->exact_add_scaled(K, mine, sent, o->c.blend, n);
        // What θ_m keeps was sent before, by this member or another: the next Δ must not hold it.
        ops->exact_pseudo_gradient(K, u, mine, theta, 1, n);
        return;
    }
    ops->exact_rebase(K, mine, theta, sent, n);
    if (g->in_flight && o->c.keep > 0)
        ops->exact_add_scaled(K, mine, u, -o->c.keep, n);
}

// Elements [at, at + n) of Δ, if the first pass has summed; NULL: it has not.
static float *sum_known(const struct inter_outer *o, const struct outer_slot *s, size_t at) {
    if (o->c.robust)
        return o->device ? o->device->means + s->from : s->mean + at;
    return o->c.sum ? s->acc : NULL;
}

// In ordinary rounds Δ moves θ by η/(1 − μ) in all. After an absence the clusters' steps point less
// in one direction, and that would be too far; η is too short.
static float merge_rate(const struct inter_outer_round *r) { return r->eta / sqrtf(1 - r->mu); }

// Second pass, which fails only if the device fails.
static enum neb_status settle_unit(void *arg, struct outer_slot *s) {
    const struct outer_apply *j = arg;
    const struct inter_outer *o = j->o;
    struct kern *K = o->now.K;
    const struct kern_ops *ops = K->ops;
    const bool noted = j->g->in_flight;
    const struct outer_arrays m =
        outer_in(o, s, OUTER_THETA | OUTER_V | OUTER_U | (noted ? OUTER_SENT : 0));
    size_t strip = o->device ? s->n : s->strip;
    for (size_t at = 0; at < s->n; at += strip) {
        size_t n = s->n - at < strip ? s->n - at : strip, bytes = n * sizeof(float);
        float *sum = sum_known(o, s, at), *acc = o->device ? o->device->acc : s->acc;
        if (!noted) // no update in flight: progress counts from θ
            ops->copy(K, m.sent + at, m.theta + at, bytes);
        take_parts(j, s, at, n, sum ? NULL : acc, m.u);
        if (j->r->merge && !j->went_on) // v is as old as the absence
            ops->zero(K, m.v + at, bytes);
        if (j->r->merge)
            ops->exact_add_scaled(K, m.theta + at, sum ? sum : acc, -merge_rate(j->r), n);
        else
            ops->exact_outer_step(K, m.theta + at, m.v + at, sum ? sum : acc, j->r->eta, j->r->mu,
                                  n);
        outer_merge(o, j->g, s, &m, at, n);
        outer_digest(o, s, &m, at, n);
    }
    bool moved = !noted || o->c.blend > 0;
    outer_out(o, s, OUTER_THETA | OUTER_V | OUTER_U | (moved ? OUTER_SENT : 0));
    return NEB_OK;
}

static enum neb_status open_parts(struct inter_outer *o, const struct outer_fragment *g,
                                  const struct inter_outer_round *r) {
    for (size_t p = 0; p < r->n; p++) {
        if (!(r->parts[p].clip > 0 && r->parts[p].clip <= 1))
            return neb_fail(NEB_ERR_FORMAT, "commit: clip factor %g is not in (0, 1]",
                            (double)r->parts[p].clip);
        NEB_TRY(cmp_update_open(r->parts[p].blob, r->parts[p].len, g->shapes, (uint32_t)g->n,
                                o->views));
        for (int32_t i = 0; i < g->n; i++)
            o->slots[g->units[i]].views[p] = o->views[i];
    }
    return NEB_OK;
}

static uint64_t weight_of(const struct inter_outer_part *p) {
    return p->weight ? p->weight : p->tokens;
}

// The shares of the parts.
static enum neb_status weigh_parts(struct outer_apply *job) {
    const struct inter_outer_round *r = job->r;
    uint64_t total = 0;
    if (r->n < 1 || r->n > INTER_PARTS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "commit: %zu updates; a commit has 1 to %d", r->n,
                        INTER_PARTS_MAX);
    for (size_t p = 0; p < r->n; p++)
        total += weight_of(&r->parts[p]);
    // All updates may have 0 tokens: then all members have made their steps and only send the rest
    // of their residuals. The updates count alike.
    bool alike = total == 0;
    total = alike ? r->n : total;
    if (total > (1ull << 60))
        return neb_fail(NEB_ERR_FORMAT,
                        "commit: the weights of the updates sum to %llu tokens; at most 2^60",
                        (unsigned long long)total);
    // Conversion of a 64-bit integer to float rounds to nearest on every machine. Each quotient is
    // one fp32 division.
    for (size_t p = 0; p < r->n; p++) {
        uint64_t w = alike ? 1 : weight_of(&r->parts[p]);
        job->share[p] = (float)w / (float)total;
        job->scale[p] = w == r->parts[p].tokens || !r->parts[p].tokens
                            ? 1
                            : (float)w / (float)r->parts[p].tokens;
        job->went_on = job->went_on || job->scale[p] < 1;
    }
    return NEB_OK;
}

// Checks and opens the updates of a commit. On an accelerator their frames are then there.
static enum neb_status open_commit(struct outer_apply *job, int32_t f) {
    struct inter_outer *o = job->o;
    NEB_TRY(weigh_parts(job));
    NEB_TRY(o->c.sum ? outer_masked_open(f, job) : open_parts(o, job->g, job->r));
    if (o->device)
        NEB_TRY(room_for(job));
    NEB_TRY(outer_each(o, job->g, open_unit, job));
    return o->now.K->ops->finish(o->now.K);
}

enum neb_status inter_outer_open(struct inter_outer *o, int32_t f,
                                 const struct inter_outer_round *r) {
    const struct outer_fragment all = outer_whole(&o->fragments[f]);
    struct outer_apply job = {.o = o, .g = &all, .r = r};
    NEB_ASSERT(o->device);
    o->device->opened = NULL;
    NEB_TRY(open_commit(&job, f));
    o->device->opened = &o->fragments[f];
    return NEB_OK;
}

enum neb_status inter_outer_settle(struct inter_outer *o, int32_t f,
                                   const struct inter_outer_round *r) {
    struct outer_fragment *g = &o->fragments[f];
    struct outer_apply job = {.o = o, .g = g, .r = r};
    if (o->device && o->device->opened == g) {
        NEB_TRY(weigh_parts(&job));
    } else {
        if (o->device)
            o->device->opened = NULL;
        NEB_TRY(open_commit(&job, f));
    }
    if (g->begins)
        outer_digests_zero(o);
    NEB_TRY(outer_each(o, g, settle_unit, &job));
    if (!g->completes)
        return NEB_OK;
    if (o->device)
        o->device->opened = NULL;
    // If the commit does not hold our update, u stays as the residual. It already contains Δ, so
    // the progress up to the send leaves θ_m and comes back with the next update.
    g->in_flight = false;
    g->version++;
    return NEB_OK;
}

enum neb_status inter_outer_settled(struct inter_outer *o, int32_t f, struct kern_digest *digest) {
    NEB_TRY(o->now.K->ops->finish(o->now.K));
    *digest = outer_digests_sum(o, &o->fragments[f]);
    return NEB_OK;
}

enum neb_status inter_outer_apply(struct inter_outer *o, int32_t f,
                                  const struct inter_outer_round *r, struct kern_digest *digest) {
    NEB_TRY(inter_outer_settle(o, f, r));
    return o->fragments[f].completes ? inter_outer_settled(o, f, digest) : NEB_OK;
}
