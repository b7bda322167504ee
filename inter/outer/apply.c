// SPDX-License-Identifier: Apache-2.0
// Applies a commit on the host. The first pass opens and checks all updates; it may fail and
// changes nothing. The second pass sums, settles, steps and digests each strip of a unit while it
// is in the cache.
#include "inter/outer/state.h"
#include "inter/record/robust.h"

#include <stdlib.h>
#include <string.h>

// Weight of each row of part p: (n_p + κ·share_p) / Σ_q (n_q + κ·share_q), members in order.
void outer_row_weights(const struct outer_apply *j, struct outer_slot *s, size_t p) {
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
enum neb_status outer_sum_robust(const struct outer_apply *j, struct outer_slot *s) {
    size_t n = j->r->n, rows = s->u.rows;
    float clip[INTER_PARTS_MAX], *all = malloc(n * (s->n + rows) * sizeof *all),
                                 *w = all + n * s->n;
    enum neb_status st =
        all ? NEB_OK
            : neb_fail(NEB_ERR_NOMEM, "out of memory for the robust mean of %zu updates", n);
    for (size_t p = 0; p < n && st == NEB_OK; p++) {
        clip[p] = j->r->parts[p].clip;
        st = cmp_decode(s->work, s->views[p].frame, s->views[p].frame_len, all + p * s->n, s->n);
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

enum neb_status outer_read_counts(const struct outer_apply *j, struct outer_slot *s) {
    size_t rows = s->u.rows;
    for (size_t p = 0; s->u.row_weights && p < j->r->n; p++)
        NEB_TRY(cmp_update_counts(s->work, &s->views[p], s->u.rows, s->row_counts + p * rows));
    for (size_t p = 0; s->u.row_weights && p < j->r->n; p++)
        outer_row_weights(j, s, p);
    return NEB_OK;
}

// First pass, which may fail: unpacks and checks every part.
static enum neb_status open_unit(struct outer_apply *j, struct outer_slot *s) {
    size_t rows = s->u.rows;
    NEB_TRY(outer_read_counts(j, s));
    if (j->o->c.robust)
        NEB_TRY(outer_sum_robust(j, s));
    for (size_t p = 0; p < j->r->n; p++)
        if (!j->o->c.robust || j->r->parts[p].mine)
            NEB_TRY(outer_open_part(s, p));
    for (size_t p = 0; s->u.row_weights && !j->o->c.robust && p < j->r->n; p++)
        for (size_t row = 0; j->r->parts[p].clip != 1 && row < rows; row++)
            s->weights[p * rows + row] = s->weights[p * rows + row] * j->r->parts[p].clip;
    return NEB_OK;
}

static void sum_unit(void *arg, size_t i) {
    struct outer_apply *j = arg;
    struct outer_slot *s = &j->o->slots[j->g->units[i]];
    if (!j->o->c.sum) {
        s->st = open_unit(j, s);
        return;
    }
    memset(s->acc, 0, s->n * sizeof(float));
    outer_masked_sum(j, s);
}

// Returns the weighted sum of elements [at, at + n), and subtracts this member's part from the
// residual.
static const float *sum_strip(const struct outer_apply *j, struct outer_slot *s, size_t at,
                              size_t n) {
    for (size_t p = 0; j->o->c.sum && p < j->r->n; p++)
        if (j->r->parts[p].mine) {
            outer_masked_own(j, s, p);
            kern_exact_residual(j->o->u + s->at, s->part, s->n);
        }
    if (j->o->c.sum)
        return s->acc; // from the first pass
    bool robust = j->o->c.robust;
    memset(s->acc, 0, n * sizeof(float));
    for (size_t p = 0; p < j->r->n; p++) {
        const struct inter_outer_part *part = &j->r->parts[p];
        if (robust && !part->mine)
            continue;
        cmp_reader_read(s->readers[p], at, s->part, n);
        if (part->mine)
            kern_exact_residual(j->o->u + s->at + at, s->part, n);
        if (robust)
            continue;
        if (s->u.row_weights)
            kern_exact_add_rows(s->acc, s->part, s->weights + p * s->u.rows + at / s->u.cols,
                                n / s->u.cols, s->u.cols);
        else
            kern_exact_add_scaled(s->acc, s->part,
                                  part->clip == 1 ? j->share[p] : j->share[p] * part->clip, n);
    }
    return robust ? s->mean + at : s->acc;
}

// θ_m takes its share of the residual only if an update was in flight. Otherwise θ_m has held that
// share since an earlier merge.
void outer_merge_strip(const struct inter_outer *o, const struct outer_fragment *g,
                       const struct outer_slot *s, size_t at, size_t n) {
    float *mine = s->u.theta_m + at, *theta = o->theta + s->at + at, *sent = o->sent + s->at + at,
          *u = o->u + s->at + at;
    if (g->in_flight && o->c.blend > 0) {
        // The progress since the send still has to be sent.
        kern_exact_pseudo_gradient(u, sent, mine, 1, n);
        memcpy(sent, mine, n * sizeof(float));
        kern_exact_add_scaled(sent, theta, -1, n);
        memcpy(mine, theta, n * sizeof(float));
        kern_exact_add_scaled(mine, sent, o->c.blend, n);
        // What θ_m keeps was sent before, by this member or another: the next Δ must not hold it.
        kern_exact_pseudo_gradient(u, mine, theta, 1, n);
        return;
    }
    kern_exact_rebase(mine, theta, sent, n);
    if (g->in_flight && o->c.keep > 0)
        kern_exact_add_scaled(mine, u, -o->c.keep, n);
}

// Second pass, which cannot fail.
static void settle_unit(void *arg, size_t i) {
    struct outer_apply *j = arg;
    struct inter_outer *o = j->o;
    struct outer_slot *s = &o->slots[j->g->units[i]];
    s->digest = (struct kern_digest){0, 0};
    for (size_t at = 0; at < s->n; at += s->strip) {
        size_t n = s->n - at < s->strip ? s->n - at : s->strip, all = s->at + at;
        const float *sum = sum_strip(j, s, at, n);
        float *theta = o->theta + all, *v = o->v + all;
        if (j->r->merge) {
            memset(v, 0, n * sizeof(float));
            kern_exact_outer_step(theta, v, sum, 1, 0, n);
            memset(v, 0, n * sizeof(float));
        } else {
            kern_exact_outer_step(theta, v, sum, j->r->eta, j->r->mu, n);
        }
        outer_merge_strip(o, j->g, s, at, n);
        s->digest = kern_digest_add(s->digest, kern_digest_part(theta, v, s->place + at, n));
    }
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

static enum neb_status apply_on_host(struct outer_apply *j) {
    struct inter_outer *o = j->o;
    const struct outer_fragment *g = j->g;
    kern_pool_run(o->pool, (size_t)g->n, sum_unit, j);
    for (int32_t i = 0; i < g->n; i++)
        NEB_TRY(o->slots[g->units[i]].st);
    if (!g->in_flight) // no update in flight: progress counts from θ
        for (int32_t i = 0; i < g->n; i++) {
            const struct outer_slot *s = &o->slots[g->units[i]];
            memcpy(o->sent + s->at, o->theta + s->at, s->n * sizeof(float));
        }
    kern_pool_run(o->pool, (size_t)g->n, settle_unit, j);
    return NEB_OK;
}

enum neb_status inter_outer_apply(struct inter_outer *o, int32_t f,
                                  const struct inter_outer_round *r, struct kern_digest *digest) {
    struct outer_fragment *g = &o->fragments[f];
    struct outer_apply job = {.o = o, .g = g, .r = r};
    uint64_t total = 0;
    if (r->n < 1 || r->n > INTER_PARTS_MAX)
        return neb_fail(NEB_ERR_FORMAT, "commit: %zu updates; a commit has 1 to %d", r->n,
                        INTER_PARTS_MAX);
    for (size_t p = 0; p < r->n; p++) {
        total += weight_of(&r->parts[p]);
        job.mine |= r->parts[p].mine;
    }
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
        job.share[p] = (float)w / (float)total;
        job.scale[p] = w == r->parts[p].tokens || !r->parts[p].tokens
                           ? 1
                           : (float)w / (float)r->parts[p].tokens;
    }
    NEB_TRY(o->c.sum ? outer_masked_open(f, &job) : open_parts(o, g, r));
    if (o->device) {
        NEB_TRY(outer_device_sum(&job));
        NEB_TRY(outer_device_settle(&job));
    } else {
        NEB_TRY(apply_on_host(&job));
    }
    // If the commit does not hold our update, u stays as the residual. It already contains Δ, so
    // the progress up to the send leaves θ_m and comes back with the next update.
    g->in_flight = false;
    g->version++;
    *digest = outer_fragment_digest(o, g);
    return NEB_OK;
}
