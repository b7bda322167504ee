// SPDX-License-Identifier: Apache-2.0
// Makes an update from what a cluster has learned. A unit (a range of rows) is one task. On the
// host an encoder forms the pseudo-gradient and the residual in its one pass over memory.
#include "inter/outer/state.h"

#include <math.h>

struct encode_job {
    struct inter_outer *o;
    const struct outer_fragment *g;
    const struct cmp_codec *codec;
    inter_outer_counts *counts;
    void *user;
};

// Forms u, and notes θ_m at the send. A fragment in flight is encoded again: then what was learned
// since the send comes on top.
static struct outer_arrays form_u(const struct encode_job *j, const struct outer_slot *s) {
    const struct inter_outer *o = j->o;
    struct kern *K = o->now.K;
    bool again = j->g->in_flight;
    const struct outer_arrays m = outer_in(o, s, OUTER_U | (again ? OUTER_SENT : OUTER_THETA));
    K->ops->exact_pseudo_gradient(K, m.u, again ? m.sent : m.theta, s->theta_m,
                                  again ? 1 : o->c.beta - outer_held(o), s->n);
    K->ops->copy(K, m.sent, s->theta_m, s->n * sizeof(float));
    outer_out(o, s, OUTER_U | OUTER_SENT);
    return m;
}

// Forms u after inter_outer_form: the trainer's θ_m has gone on. Sent again, u is formed already.
static struct outer_arrays form_later(const struct encode_job *j, const struct outer_slot *s) {
    const struct inter_outer *o = j->o;
    struct kern *K = o->now.K;
    if (j->g->in_flight)
        return outer_in(o, s, OUTER_U);
    const struct outer_arrays m = outer_in(o, s, OUTER_U | OUTER_THETA | OUTER_SENT);
    K->ops->exact_pseudo_gradient(K, m.u, m.theta, m.sent, o->c.beta - outer_held(o), s->n);
    outer_out(o, s, OUTER_U);
    return m;
}

static enum neb_status encode_unit(void *arg, struct outer_slot *s) {
    const struct encode_job *j = arg;
    const struct inter_outer *o = j->o;
    const uint64_t *counts = s->u.row_weights ? j->counts(j->user, (int32_t)(s - o->slots)) : NULL;
    struct cmp_feedback f = {.u = o->now.u + s->at,
                             .theta = o->now.theta + s->at,
                             .theta_m = s->theta_m,
                             .sent = o->now.sent + s->at,
                             .beta = o->c.beta - outer_held(o)};
    struct cmp_source from = {.learned = &f};
    if (o->device || j->g->in_flight) {
        const struct outer_arrays m = j->g->formed ? form_later(j, s) : form_u(j, s);
        from = (struct cmp_source){.x = m.u, .device = o->device ? o->device->codec : NULL};
    }
    neb_buf_clear(&s->b->frame);
    return cmp_update_add(s->b->work, &s->b->frame, &s->shape, j->codec, &from, counts);
}

enum neb_status inter_outer_encode(struct inter_outer *o, int32_t f, const struct cmp_codec *codec,
                                   inter_outer_counts *counts, void *user, struct neb_buf *out) {
    struct outer_fragment *g = &o->fragments[f];
    struct encode_job job = {o, g, codec, counts, user};
    if (g->begins) {
        neb_buf_clear(out);
        cmp_update_begin(out, (uint32_t)g->n);
    }
    NEB_TRY(outer_each(o, g, encode_unit, &job));
    NEB_TRY(o->now.K->ops->finish(o->now.K));
    for (int32_t i = 0; i < g->count; i++)
        neb_buf_add(out, o->buffers[i].frame.p, o->buffers[i].frame.len);
    NEB_TRY(neb_buf_check(out));
    g->in_flight = g->in_flight || g->completes;
    g->formed = g->formed && !g->completes;
    return NEB_OK;
}

static enum neb_status subtract_unit(void *arg, struct outer_slot *s) {
    (void)form_u(arg, s);
    return NEB_OK;
}

static enum neb_status note_unit(void *arg, struct outer_slot *s) {
    const struct encode_job *j = arg;
    struct kern *K = j->o->now.K;
    const struct outer_arrays m = outer_in(j->o, s, 0);
    K->ops->copy(K, m.sent, s->theta_m, s->n * sizeof(float));
    outer_out(j->o, s, OUTER_SENT);
    return NEB_OK;
}

void inter_outer_form(struct inter_outer *o, int32_t f) {
    struct outer_fragment *g = &o->fragments[f];
    struct encode_job job = {.o = o, .g = g};
    NEB_ASSERT(o->device);
    outer_each(o, g, g->in_flight ? subtract_unit : note_unit, &job);
    g->formed = true;
}

enum neb_status inter_outer_encode_masked(struct inter_outer *o, int32_t f, uint32_t round,
                                          struct neb_buf *out) {
    struct outer_fragment *g = &o->fragments[f];
    struct encode_job job = {.o = o, .g = g};
    NEB_ASSERT(!o->device);
    NEB_TRY(outer_each(o, g, subtract_unit, &job)); // all units are masked together
    NEB_TRY(outer_mask(o, f, round, out));
    g->in_flight = true;
    return NEB_OK;
}

enum neb_status outer_open_part(struct outer_slot *s, size_t p) {
    if (!s->b->readers[p])
        NEB_TRY(cmp_reader_create(&s->b->readers[p]));
    return cmp_reader_open(s->b->readers[p], s->b->work, s->views[p].frame, s->views[p].frame_len,
                           s->n);
}

static bool better_sample(size_t n, size_t best) {
    const size_t enough = 1 << 16;
    return best < enough ? n > best : n >= enough && n < best;
}

static size_t elements_of(const struct cmp_unit_shape *s) { return (size_t)s->rows * s->cols; }

int32_t inter_outer_sample(const struct cmp_unit_shape *shapes, int32_t n) {
    int32_t pick = -1;
    for (int32_t i = 0; i < n; i++)
        if (pick < 0 || better_sample(elements_of(&shapes[i]), elements_of(&shapes[pick])))
            pick = i;
    return pick;
}

float inter_outer_unit_error(struct inter_outer *o, int32_t f, int32_t pick, const uint8_t *blob,
                             size_t len) {
    const struct outer_fragment *g = &o->fragments[f];
    double lost = 0, all = 0;
    if (pick < 0 || !g->in_flight ||
        cmp_update_open(blob, len, g->shapes, (uint32_t)g->n, o->views) != NEB_OK)
        return 0;
    struct outer_slot *s = &o->slots[g->units[pick]];
    const float *sent = o->host.u + s->at;
    s->b = &o->buffers[0];
    s->views[0] = o->views[pick];
    if (outer_open_part(s, 0) != NEB_OK ||
        (o->device && outer_device_fetch_u(o, s, &sent) != NEB_OK))
        return 0;
    for (size_t at = 0; at < s->n; at += s->strip) {
        size_t n = s->n - at < s->strip ? s->n - at : s->strip;
        cmp_reader_read(s->b->readers[0], at, s->part, n);
        for (size_t i = 0; i < n; i++) {
            double u = (double)sent[at + i], d = u - (double)s->part[i];
            lost += d * d;
            all += u * u;
        }
    }
    return all > 0 ? (float)sqrt(lost / all) : 0;
}
